"""``schemaless trigger pause``, ``resume``, ``remove`` and ``reset``."""

from __future__ import annotations

from datetime import datetime

import click

from schemaless.cli.options import note_dry, open_store, shards_of, shards_option, url_option
from schemaless.errors import InvalidInput
from schemaless.feed.operations import Triggers
from schemaless.keys import check_created_at
from schemaless.terminal.output import json_option, out, print_json

execute_option = click.option("--execute", is_flag=True, help="Do it; without, only what would be done is said.")


@click.command()
@click.argument("name")
@url_option
@json_option
def pause(name: str, url: str, as_json: bool) -> None:
    """Have workers begin no more calls, until 'resume'.

    Calls that are going on come to their end. Workers see it within two seconds, and keep their shards.

    \b
    Examples:
      schemaless trigger pause bill_rider
    """
    with open_store(url) as store:
        Triggers(store).pause(name)
    if as_json:
        print_json({"name": name, "wanted": "paused"})
    else:
        out().print(f"{name} is paused; 'schemaless trigger resume {name}' lets it continue", markup=False)


@click.command()
@click.argument("name")
@url_option
@json_option
def resume(name: str, url: str, as_json: bool) -> None:
    """Let a paused trigger continue.

    Shards that stand still try their cell again, from the first attempt on. A shard stands still where too many cells
    are parked: look at them with 'parked', mend what was wrong and 'replay' them, or 'skip' them. Where none of that
    was done, it comes to stand still at the same cell again.

    \b
    Examples:
      schemaless trigger resume bill_rider
    """
    with open_store(url) as store:
        stood = Triggers(store).resume(name)
    if as_json:
        print_json({"name": name, "wanted": "running", "restarted_shards": stood})
    else:
        out().print(f"{name} goes on; {stood} shards stood still", markup=False)


@click.command()
@click.argument("name")
@execute_option
@url_option
@json_option
def remove(name: str, execute: bool, url: str, as_json: bool) -> None:
    """Forget a trigger: how far it is in each shard, and its parked cells.

    Its workers end by themselves. If it is run again later, it begins where its start= says.

    \b
    Examples:
      schemaless trigger remove bill_rider
      schemaless trigger remove bill_rider --execute
    """
    with open_store(url) as store:
        triggers = Triggers(store)
        found = triggers.status(name)
        parked = sum(each.row.parked for each in found.shards if each.row is not None)
        if execute:
            triggers.remove(name)
    if as_json:
        print_json({"name": name, "removed": execute, "parked": parked})
        return
    out().print(
        f"{name} {'is' if execute else 'would be'} removed, with {parked:,} parked cells",
        markup=False,
    )
    if not execute:
        note_dry()


@click.command()
@click.argument("name")
@click.option("--from-beginning", is_flag=True, help="Continue from the first cell.")
@click.option("--location", type=click.IntRange(min=0), help="Continue behind this added_id; for one shard only.")
@click.option("--since", metavar="TIME", help="Continue with cells stored since then, such as 2026-03-01T12:00+00:00.")
@shards_option
@execute_option
@url_option
@json_option
def reset(
    name: str,
    from_beginning: bool,
    location: int | None,
    since: str | None,
    shards_text: str | None,
    execute: bool,
    url: str,
    as_json: bool,
) -> None:
    """Have a trigger continue from another location: it is called again for the cells behind that.

    For a function that was mended, and after a failover that lost cells. Cells that are parked behind the place are
    parked no more: they come again by themselves. Whoever works on a shard goes on from there within a moment.

    --since begins ten minutes earlier, since cells are not in the order of their times, and reads the shards for it.

    \b
    Examples:
      schemaless trigger reset bill_rider --from-beginning
      schemaless trigger reset bill_rider --since 2026-03-01T12:00+00:00 --execute
      schemaless trigger reset bill_rider --shards 17 --location 250311 --execute
    """
    if sum((from_beginning, location is not None, since is not None)) != 1:
        raise InvalidInput("name one place: --from-beginning, --location or --since")
    with open_store(url) as store:
        triggers = Triggers(store)
        before = {each.shard: each.row for each in triggers.status(name).shards}
        shards = shards_of(shards_text, store.shard_count)
        if location is not None and len(shards) != 1:
            raise InvalidInput("--location is one shard's: name it with --shards")
        at = None if since is None else _moment(since)
        places = {
            shard: triggers.location_since(shard, at) if at is not None else location or 0
            for shard in shards
            if before[shard] is not None
        }
        if execute:
            triggers.reset(name, places)
    changes = [
        {"shard": shard, "before": row.location, "after": place, "added_ids": row.top - place}
        for shard, place in places.items()
        if (row := before[shard]) is not None
    ]
    if as_json:
        print_json({"name": name, "reset": execute, "shards": changes})
        return
    total = sum(change["added_ids"] for change in changes)
    out().print(
        f"{name} {'goes' if execute else 'would go'} on from there in {len(changes)} shards: "
        f"{total:,} added_ids, of all columns, {'are' if execute else 'would be'} to come",
        markup=False,
    )
    if not execute:
        note_dry()


def _moment(text: str) -> datetime:
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidInput(f"--since takes a time such as 2026-03-01T12:00+00:00, got {text!r}") from None
    if at.tzinfo is None:
        raise InvalidInput(f"--since needs a time zone, such as +00:00; got {text!r}")
    checked = check_created_at(at)
    assert checked is not None
    return checked
