"""``schemaless index status``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final

import click

from schemaless.cli.options import open_store, url_option
from schemaless.feed.indexes import Indexes, IndexStatus
from schemaless.store.registry import BACKFILLING, READY
from schemaless.terminal.output import EXIT_FAILED, facts, json_option, note, out, print_json, print_table
from schemaless.terminal.progress import duration

_FAULTS_SHOWN: Final = 16


@click.command()
@click.argument("name", required=False)
@url_option
@json_option
def status(name: str | None, url: str, as_json: bool) -> int:
    """Show the state of an index, or of all indexes.

    An index is declared while its tables are made, backfilling while it is filled, ready, or dropping while its tables
    are removed; only a ready one accepts queries. How far it is behind is given in two ways: by the added_ids between
    its locations and the ends of the shards, counting all columns, and by the age of the first of these cells. The
    status also names the workers, and says why a shard waits.

    \b
    Examples:
      schemaless index status
      schemaless index status client_trips --json

    Exit status: 0, or 1 if a shard cannot be asked, has no progress row, or has a worker that waits after an error.
    """
    with open_store(url) as store:
        indexes = Indexes(store)
        found = [indexes.status(entry) for entry in (indexes.all() if name is None else indexes.named(name))]
    if as_json:
        print_json([status_json(each) for each in found])
    elif not found:
        out().print("there is no index yet; 'schemaless index create' makes one")
    else:
        show_statuses(found)
    return EXIT_FAILED if any(each.stands for each in found) else 0


def show_statuses(found: Sequence[IndexStatus]) -> None:
    """Print where indexes are."""
    print_table(
        None,
        ["index", "number", "state", "filled", "ids behind", "for", "workers"],
        [_row(each) for each in found],
        text_columns=1,
    )
    for each in found:
        name = each.entry.name
        for server, advice in each.small_caches.items():
            note(f"{server}: {advice}")
        fields = ", ".join(f"{field.name} {field.type}" for field in each.entry.definition.all_fields)
        note(f"{name} ({each.entry.number}): {fields}; of {', '.join(each.entry.definition.sources)}")
        if each.entry.message is not None:
            note(f"{name} ({each.entry.number}): {each.entry.message}")
        if each.entry.state in (BACKFILLING, READY) and not each.workers:
            note(f"no worker keeps {name} up to date now; start one with 'schemaless index run'")
        faults = [(shard.shard, shard.fault) for shard in each.shards if shard.fault is not None]
        for shard, fault in faults[:_FAULTS_SHOWN]:
            note(f"{name}, shard {shard}: {fault}")
        if len(faults) > _FAULTS_SHOWN:
            note(f"{name}: {len(faults) - _FAULTS_SHOWN:,} more shards have faults; --json names each")
        for worker in each.workers:
            for _, shard, reason in worker.told.get("waits", []):
                note(f"worker {worker.worker} waits in shard {shard}: {reason}")


def _row(each: IndexStatus) -> list[str]:
    behind_s = max((shard.behind_s for shard in each.shards), default=0.0)
    if not each.shards:
        return [each.entry.name, str(each.entry.number), each.entry.state, "-", "-", "-", "-"]
    return [
        each.entry.name,
        str(each.entry.number),
        each.entry.state,
        f"{_filled(each):.1%}",
        f"{_behind(each):,}",
        duration(behind_s) if behind_s else "-",
        str(len(each.workers)),
    ]


def _behind(each: IndexStatus) -> int:
    return sum(shard.ids_behind for shard in each.shards)


def _filled(each: IndexStatus) -> float:
    top = sum(shard.row.top for shard in each.shards if shard.row is not None)
    return 1 - _behind(each) / top if top else 1.0


def status_json(each: IndexStatus) -> dict[str, Any]:
    """Return a status for ``--json``."""
    definition = each.entry.definition
    return {
        **facts(each.entry, "name", "number", "state", "created_at", "ready_at", "message"),
        "stands": each.stands,
        "shard_field": definition.shard_field.name,
        "fields": [
            {"name": field.name, "column": field.column, "path": list(field.path), "type": field.type}
            for field in definition.all_fields
        ],
        "filled": _filled(each),
        "ids_behind": _behind(each),
        "behind_s": max((shard.behind_s for shard in each.shards), default=0.0),
        "small_table_caches": dict(each.small_caches),
        "workers": [asdict(worker) for worker in each.workers],
        "shards": [
            {
                **({} if shard.row is None else asdict(shard.row)),
                **facts(shard, "shard", "ids_behind", "behind_s", "fault"),
            }
            for shard in each.shards
        ],
    }
