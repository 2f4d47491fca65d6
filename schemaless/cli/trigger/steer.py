"""``schemaless trigger pause``, ``resume``, ``remove`` and ``reset``."""

from __future__ import annotations

from datetime import datetime

import click

from schemaless.cli.options import note_dry, open_store, shards_of, shards_option, url_option
from schemaless.errors import InvalidInput
from schemaless.keys import check_created_at
from schemaless.terminal.output import json_option, out, print_json
from schemaless.triggers.admin import Triggers

execute_option = click.option(
    "--execute", is_flag=True, help="Really do it; without it, the command only says what it would do."
)


@click.command()
@click.argument("name")
@url_option
@json_option
def pause(name: str, url: str, as_json: bool) -> None:
    """Pause a trigger: workers start no more calls until 'trigger resume'.

    Calls that are running end by themselves. Workers learn of the pause within two seconds, and keep their shards.

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

    Shards that have stopped try their cell again, from the first attempt on. A shard stops when too many of its cells
    are parked: look at them with 'trigger parked', fix the cause, and then 'trigger replay' or 'trigger skip' them.
    Otherwise the shard stops at the same cell again.

    \b
    Examples:
      schemaless trigger resume bill_rider
    """
    with open_store(url) as store:
        restarted = Triggers(store).resume(name)
    if as_json:
        print_json({"name": name, "wanted": "running", "restarted_shards": restarted})
    else:
        out().print(f"{name} continues; {restarted} shards had stopped", markup=False)


@click.command()
@click.argument("name")
@execute_option
@url_option
@json_option
def remove(name: str, execute: bool, url: str, as_json: bool) -> None:
    """Forget a trigger, with its progress and parked cells.

    Its workers end by themselves. If the trigger is run again later, it begins where the start= of its decorator says.

    \b
    Examples:
      schemaless trigger remove bill_rider
      schemaless trigger remove bill_rider --execute
    """
    with open_store(url) as store:
        triggers = Triggers(store)
        trigger = triggers.status(name)
        parked = sum(shard.row.parked for shard in trigger.shards if shard.row is not None)
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
@click.option("--location", type=click.IntRange(min=0), help="Continue after this added_id; for one shard only.")
@click.option(
    "--since",
    metavar="TIME",
    help="Continue from the cells that were stored at this time, such as 2026-03-01T12:00+00:00.",
)
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
    """Let a trigger continue from another location.

    The trigger is called again for the cells after the location. Use it after the function was fixed, or after a
    failover that lost cells. Cells after the location that are parked are no longer parked, since the trigger is called
    for them again anyway. The worker of a shard continues from the new location within a moment.

    With --since, the command reads the shards to find the location, and begins ten minutes earlier, since cells are not
    stored in the exact order of their times.

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
        before = {status.shard: status.row for status in triggers.status(name).shards}
        shards = shards_of(shards_text, store.shard_count)
        if location is not None and len(shards) != 1:
            raise InvalidInput("--location is for one shard: name that shard with --shards")
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
        f"{name} {'continues' if execute else 'would continue'} from there in {len(changes)} shards, with {total:,} "
        "added_ids of all columns before it",
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
