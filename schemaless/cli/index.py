"""``schemaless index``: secondary indexes."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any, Final

import click

from schemaless.base.events import ignore_events
from schemaless.base.numbers import shards_text as list_of_shards
from schemaless.cli.command import JSONCommand, QueryCommand
from schemaless.cli.job_options import stop_option, workers_option
from schemaless.cli.option import option
from schemaless.cli.options import execute_option, note_dry, note_gave_up, note_waits, shard_json
from schemaless.cli.quantities import CatalogId
from schemaless.errors import InvalidInput, SchemalessError
from schemaless.ops.admin.indexes import index_supervisor, indexes_of
from schemaless.store.datastore import Datastore
from schemaless.store.followers.states import QUARANTINED
from schemaless.store.indexes.admin import IndexStatus, Watch
from schemaless.store.indexes.check import Found
from schemaless.store.indexes.definition import define
from schemaless.store.indexes.registry import BACKFILLING, DROPPING, READY, IndexEntry
from schemaless.store.opening import connect
from schemaless.ui.terminal.output import EXIT_FAILED, facts, hint, note, out, print_result, print_table, progress
from schemaless.ui.terminal.progress import duration


@click.group()
def index() -> None:
    """Find rows by the contents of their documents.

    An index holds some fields of the latest version of each row, from one or several columns. Workers on any number of
    machines maintain it from the change feed. Writes do not touch it, so an entry appears a moment after its cell. The
    same workers fill a new index while applications write; it accepts queries once it is ready. A query gives a value
    for the shard field, searches only the shard that the value determines, and checks each row that it finds against
    its cells, so that it never returns a row that does not match.

    \b
    Workflow:
      schemaless index create client_trips --shard-field BASE.client:uuid \\
          --field BASE.at:time
      schemaless index run --workers 4
      schemaless index status

    In Python:

    \b
      store.index("client_trips").query(
          client=x, where=[("at", ">=", "2026-03-01")], order_by="-at"
      )
    """


@index.command(cls=JSONCommand)
@click.argument("name")
@option(
    "--shard-field FIELD",
    "The field whose value decides the shard of an entry; every query gives a value for it.",
    required=True,
)
@option(
    "--field FIELD",
    "A field to query and order by; repeat the option for more fields; their order matters.",
    name="fields",
    multiple=True,
)
def create(name: str, shard_field: str, fields: tuple[str, ...], url: str) -> None:
    """Create a secondary index, to be filled by workers.

    An index is a table in each shard.

    A FIELD is [NAME=]COLUMN.PATH:TYPE. COLUMN and PATH locate the value in the documents of a column, with dots between
    keys. TYPE is uuid, int, float, bool, time (ISO 8601; UTC unless stated otherwise) or text(N). NAME defaults to the
    last key. Quote a column name that contains a dot: '"v1.BASE".client:uuid'. A value that is missing or does not fit
    its type is NULL; a row whose shard field is NULL has no entry. A text of more than N characters is truncated in the
    index, and queries still find its row. An index has at most 16 fields.

    The order of fields matters: a query returns rows in the order of the first field that it does not match by '='.

    If the command is interrupted, run it again to resume it. On an existing index, it restores progress rows that
    shards have lost, and workers read those shards again. If the name exists with different fields, the new index is
    built beside the old one, which answers queries until the new one is ready.

    The account needs the role admin. Afterwards, grant the roles follow, app and admin again, for the new tables; then
    'schemaless index run' fills the index.

    \b
    Examples:
      schemaless index create client_trips --shard-field BASE.client:uuid \\
          --field BASE.at:time --field status=STATUS.s:text(64)
    """
    definition = define(name, shard_field, fields)
    with connect(url) as store, progress("creating tables", None, "shards") as listener:
        entry, created = indexes_of(store).create(definition, listener)
    print_result(
        {
            **facts(entry, "name", "number", "state"),
            "created": created,
            "columns": list(definition.sources),
            "fields": [field.name for field in definition.all_fields],
        }
    )
    out().print(f"index {name} {'created' if created else 'already exists'}, number {entry.number}: {entry.state}")
    if created:
        _note_next(name)


def _note_next(name: str) -> None:
    note("grant the roles follow, app and admin again ('schemaless grants' prints the SQL), then fill the index:")
    note(f"  schemaless index run {name}")


@index.command(cls=JSONCommand)
@click.argument("name")
@execute_option()
def rebuild(name: str, execute: bool, store: Datastore) -> None:
    """Build an index again, beside the present one.

    The new index has the same fields, and its tables are in the storage engine of each shard's cluster: use this to
    convert an index whose tables are in another engine according to 'schemaless topology show', or to replace damaged
    tables. The present index answers queries until the new one is ready and takes over the name. The account
    needs the role admin. If the command is interrupted, run it again to resume it.

    \b
    Workflow:
      schemaless index rebuild client_trips --execute
      schemaless grants --role follow     (and app, admin, for the new tables)
      schemaless index run client_trips --once
      schemaless index drop client_trips --replaced --execute

    \b
    Examples:
      schemaless index rebuild client_trips
      schemaless index rebuild client_trips --execute --json
    """
    indexes = indexes_of(store)
    entry, created = indexes.ready(name), False
    if execute:
        with progress("creating tables", None, "shards") as listener:
            entry, created = indexes.rebuild(name, listener)
    print_result({"name": name, "number": entry.number, "state": entry.state, "created": created})
    if created:
        out().print(f"index {name} created as number {entry.number}, beside the present one; state: {entry.state}")
        _note_next(name)
    elif execute:
        out().print(f"index {name} is already being rebuilt, as number {entry.number}; state: {entry.state}")
    else:
        out().print(f"index {name} (number {entry.number}) would be rebuilt")


@index.command(cls=JSONCommand)
@click.argument("names", nargs=-1)
@workers_option
@option("--once", "Exit once all cells and erasures stored so far have been processed.", is_flag=True)
@stop_option
def run(names: tuple[str, ...], workers: int, once: bool, stop_s: float, store: Datastore) -> int:
    """Fill indexes and keep them up to date, until Ctrl-C.

    Without NAMES, the command maintains all indexes. Workers on any number of machines divide the shards among
    themselves and take over the shards of a worker that dies. An index is filled from the beginning of the change feed
    while applications write; once every existing cell has been read, the index is ready and accepts queries. The
    command shows the progress, the rate and the remaining time.

    You can kill it at any moment: the next run reprocesses the cells that each worker processed in its last 100 ms (at
    most 500), which does no harm. The account needs the role follow, with grants for the tables of these indexes.

    \b
    Examples:
      schemaless index run --workers 4
      schemaless index run client_trips --once

    Exit status: 3 if stopped; with --once, 0, or 1 if the index cannot be maintained in some shard, for instance
    because its cells kill 8 workers, or erased cells could not be handled 8 times in a row.
    """
    indexes = indexes_of(store)
    for name in names:
        indexes.named(name)
    while True:
        entries = indexes.maintained(names)
        if not entries:
            raise InvalidInput("there is no index yet; create one with 'schemaless index create'")
        filling = [entry.name for entry in entries if entry.state == BACKFILLING]
        supervisor = index_supervisor(store, names, workers)
        note(f"maintaining {', '.join(f'{entry.name} ({entry.number})' for entry in entries)}")
        title = f"filling {', '.join(filling)}"
        with progress(title, None, "ids") if filling else nullcontext(ignore_events) as listener:
            watch = Watch(indexes, names, listener, once=once)
            supervisor.run(watch, stop_s=stop_s)
        if once:
            break
    statuses = [indexes.status(entry) for entry in indexes.maintained(names)]
    print_result([status_json(index) for index in statuses])
    show_statuses(statuses)
    for name, gave_up in watch.gave_up.items():
        note_gave_up(gave_up, f"new or erased cells of index {name}")
    return EXIT_FAILED if watch.gave_up or any(index.stands for index in statuses) else 0


_FAULTS_SHOWN: Final = 16


@index.command(cls=QueryCommand)
@click.argument("name", required=False)
def status(name: str | None, store: Datastore) -> int:
    """Show the state of an index, or of all indexes.

    An index is declared while its tables are being created, backfilling while it is being filled, then ready, and
    dropping while its tables are being removed; only a ready one accepts queries. Its lag is shown as the number of
    added_ids that are still to be processed, including those of columns that it does not index, and as the age of the
    oldest cell among them. The status also lists the workers, and the reasons why shards wait.

    \b
    Examples:
      schemaless index status
      schemaless index status client_trips --json

    Exit status: 0, or 1 if a shard is unreachable, has no progress row, or has a worker that waits after an error.
    """
    indexes = indexes_of(store)
    statuses = [indexes.status(entry) for entry in (indexes.all() if name is None else indexes.named(name))]
    print_result([status_json(index) for index in statuses])
    if not statuses:
        out().print("there is no index yet; create one with 'schemaless index create'")
    else:
        show_statuses(statuses)
    return EXIT_FAILED if any(index.stands for index in statuses) else 0


def show_statuses(statuses: Sequence[IndexStatus]) -> None:
    """Print the state of indexes."""
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
            note(f"no worker is maintaining {name} now; 'schemaless index run' keeps one running")
        faults = [(shard.shard, shard.fault) for shard in index.shards if shard.fault is not None]
        for status in index.shards:
            if status.state == QUARANTINED:
                note(f"{name}, shard {status.shard} quarantined: {status.cause}")
        for shard, fault in faults[:_FAULTS_SHOWN]:
            note(f"{name}, shard {shard}: {fault}")
        if len(faults) > _FAULTS_SHOWN:
            hint(f"{name}: {len(faults) - _FAULTS_SHOWN:,} more shards have faults; --json lists them all")
        note_waits(index.workers)


def _row(index: IndexStatus) -> list[Any]:
    row = [index.entry.name, index.entry.number, index.entry.state]
    if not index.shards:
        return [*row, *"----"]
    behind = duration(index.behind_s) if index.behind_s else "-"
    return [*row, f"{_filled(index):.1%}", index.ids_behind, behind, len(index.workers)]


def _filled(index: IndexStatus) -> float:
    top = sum(shard.row.top for shard in index.shards if shard.row is not None)
    return 1 - index.ids_behind / top if top else 1.0


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
        **facts(index, "ids_behind", "behind_s"),
        "small_table_caches": dict(index.small_caches),
        "workers": [worker.as_json() for worker in index.workers],
        "shards": [shard_json(shard) for shard in index.shards],
    }


_COLUMNS: Final = tuple(Found(-1).counts)[1:]


@index.command(cls=JSONCommand)
@click.argument("name")
@option("--repair", "Repair the faults; needs --execute.", is_flag=True)
@option("--execute", "Make the change. Without this option, the command only says what it would do.", is_flag=True)
def check(name: str, repair: bool, shards: list[int], execute: bool, store: Datastore) -> int:
    """Compare each row with its entry, and each entry with its row.

    \b
      missing   a row whose entry is missing
      stale     an entry that differs from its row, or is in a shard that the
                row's shard field no longer selects
      ahead     an entry from versions that the row does not have, after a
                failover that lost cells
      orphan    an entry of a row that has no cell

    The check runs while applications write and workers run. It examines each difference a second time, and counts
    cells that workers have not processed yet as lagging. A row whose shard field does not fit its type has no entry,
    and other fields that do not fit are NULL: the check counts both, and neither is a fault. --repair writes entries
    that are missing or wrong, and deletes entries that a shard should not have. The account needs the role follow. If
    the check is interrupted, it prints its findings so far and the command that checks the remaining shards.

    \b
    Examples:
      schemaless index check client_trips
      schemaless index check client_trips --shards 0-63 --repair --execute

    Exit status: 0, or 1 if a fault was found and not repaired.
    """
    indexes = indexes_of(store)
    ready = [entry for entry in indexes.named(name) if entry.state == READY]
    if not ready:
        raise InvalidInput(f"index {name} is not ready; 'schemaless index status {name}' shows its progress")
    checking = indexes.check(ready[-1], repair=repair and execute)
    results: list[Found] = []
    try:
        with progress(f"checking {name}", len(shards), "shards") as listener:
            results.extend(checking.run(shards, listener))
    except (KeyboardInterrupt, SchemalessError):
        # Hours of checking may precede this point.
        left = list_of_shards(shards[len(results) :])
        _print(ready[-1], results, left)
        repairing = " --repair --execute" if repair and execute else ""
        note(f"to check the remaining shards: schemaless index check {name} --shards {left}{repairing}")
        raise
    total = _print(ready[-1], results, None)
    if repair and not execute:
        note_dry()
    return EXIT_FAILED if total.faults > total.repaired else 0


def _print(entry: IndexEntry, results: list[Found], left: str | None) -> Found:
    total = Found(-1)
    for checked in results:
        for column in _COLUMNS:
            setattr(total, column, getattr(total, column) + getattr(checked, column))
    counts = {column: total.counts[column] for column in _COLUMNS}
    facts = {"name": entry.name, "number": entry.number, **counts, "left": left}
    print_result({**facts, "shards": [checked.counts for checked in results]})
    shown = [checked for checked in results if checked.faults]
    rows: list[list[Any]] = [[checked.shard, *(checked.counts[column] for column in _COLUMNS)] for checked in shown]
    rows.append(["all", *counts.values()])
    print_table(None, ["shard", *(column.replace("_", " ") for column in _COLUMNS)], rows)
    if not total.faults and left is None:
        out().print(f"index {entry.name} agrees with its rows")
    return total


@index.command(cls=JSONCommand)
@click.argument("name")
@option("--number N", "Drop only the index with this number, if several have the name.", type=CatalogId())
@option(
    "--replaced", "Drop only indexes that another definition has replaced, or whose drop was interrupted.", is_flag=True
)
@execute_option()
def drop(name: str, number: int | None, replaced: bool, execute: bool, store: Datastore) -> None:
    """Drop an index.

    Queries on the index fail as soon as the command starts. The command waits until all workers have released the
    index, and then drops its table in each shard. It drops every index of that name, unless --number or --replaced
    restricts it. Cells are not changed. If the command is interrupted, run it again to resume it. The account needs the
    role admin, with grants for the index's tables.

    \b
    Examples:
      schemaless index drop client_trips
      schemaless index drop client_trips --replaced --execute
    """
    indexes = indexes_of(store)
    chosen = [
        entry
        for entry in indexes.named(name)
        if (number is None or entry.number == number) and (not replaced or entry.state == DROPPING)
    ]
    if not chosen:
        there = ", ".join(f"{entry.number} ({entry.state})" for entry in indexes.named(name))
        raise InvalidInput(f"no index {name} matches these options; the indexes with this name are {there}")
    for entry in chosen if execute else ():
        with progress(f"dropping {name} ({entry.number})", None, "shards") as listener:
            indexes.drop(entry, listener)
    print_result({"name": name, "numbers": [entry.number for entry in chosen], "dropped": execute})
    for entry in chosen:
        out().print(f"index {name}, number {entry.number}, {entry.state}, {'is' if execute else 'would be'} dropped")
