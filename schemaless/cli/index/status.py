"""``schemaless index status``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final

import click

from schemaless.admin.indexes import indexes_of
from schemaless.cli.options import open_store, url_option
from schemaless.followers.states import QUARANTINED
from schemaless.indexes.admin import IndexStatus
from schemaless.indexes.registry import BACKFILLING, READY
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
        indexes = indexes_of(store)
        statuses = [indexes.status(entry) for entry in (indexes.all() if name is None else indexes.named(name))]
    if as_json:
        print_json([status_json(index) for index in statuses])
    elif not statuses:
        out().print("there is no index yet; 'schemaless index create' makes one")
    else:
        show_statuses(statuses)
    return EXIT_FAILED if any(index.stands for index in statuses) else 0


def show_statuses(statuses: Sequence[IndexStatus]) -> None:
    """Print where indexes are."""
    print_table(
        None,
        ["index", "number", "state", "filled", "ids behind", "for", "workers"],
        [_row(index) for index in statuses],
        text_columns=1,
    )
    for index in statuses:
        name = index.entry.name
        for server, advice in index.small_caches.items():
            note(f"{server}: {advice}")
        fields = ", ".join(f"{field.name} {field.type}" for field in index.entry.definition.all_fields)
        note(f"{name} ({index.entry.number}): {fields}; of {', '.join(index.entry.definition.sources)}")
        if index.entry.message is not None:
            note(f"{name} ({index.entry.number}): {index.entry.message}")
        if index.entry.state in (BACKFILLING, READY) and not index.workers:
            note(f"no worker keeps {name} up to date now; start one with 'schemaless index run'")
        faults = [(shard.shard, shard.fault) for shard in index.shards if shard.fault is not None]
        for status in index.shards:
            if status.state == QUARANTINED:
                note(f"{name}, shard {status.shard} quarantined: {status.cause}")
        for shard, fault in faults[:_FAULTS_SHOWN]:
            note(f"{name}, shard {shard}: {fault}")
        if len(faults) > _FAULTS_SHOWN:
            note(f"{name}: {len(faults) - _FAULTS_SHOWN:,} more shards have faults; --json names each")
        for worker in index.workers:
            for _, shard, reason in worker.reported.get("waits", []):
                note(f"worker {worker.worker} waits in shard {shard}: {reason}")


def _row(index: IndexStatus) -> list[str]:
    behind_s = max((shard.behind_s for shard in index.shards), default=0.0)
    if not index.shards:
        return [index.entry.name, str(index.entry.number), index.entry.state, "-", "-", "-", "-"]
    return [
        index.entry.name,
        str(index.entry.number),
        index.entry.state,
        f"{_filled(index):.1%}",
        f"{_behind(index):,}",
        duration(behind_s) if behind_s else "-",
        str(len(index.workers)),
    ]


def _behind(index: IndexStatus) -> int:
    return sum(shard.ids_behind for shard in index.shards)


def _filled(index: IndexStatus) -> float:
    top = sum(shard.row.top for shard in index.shards if shard.row is not None)
    return 1 - _behind(index) / top if top else 1.0


def status_json(index: IndexStatus) -> dict[str, Any]:
    """Return a status for ``--json``."""
    definition = index.entry.definition
    return {
        **facts(index.entry, "name", "number", "state", "created_at", "ready_at", "message"),
        "stands": index.stands,
        "shard_field": definition.shard_field.name,
        "fields": [
            {"name": field.name, "column": field.column, "path": list(field.path), "type": field.type}
            for field in definition.all_fields
        ],
        "filled": _filled(index),
        "ids_behind": _behind(index),
        "behind_s": max((shard.behind_s for shard in index.shards), default=0.0),
        "small_table_caches": dict(index.small_caches),
        "workers": [asdict(worker) for worker in index.workers],
        "shards": [
            {
                **({} if shard.row is None else asdict(shard.row)),
                **facts(shard, "shard", "ids_behind", "behind_s", "fault"),
            }
            for shard in index.shards
        ],
    }
