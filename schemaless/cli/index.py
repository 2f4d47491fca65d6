"""``schemaless index``: secondary indexes."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict
from typing import Any, Final

import click

from schemaless.admin.indexes import index_supervisor, indexes_of
from schemaless.cli.jobs import workers_option
from schemaless.cli.options import execute_option, note_dry, open_store, shards_of, shards_option, url_option
from schemaless.cli.quantities import CatalogId
from schemaless.errors import InvalidInput, SchemalessError
from schemaless.events import ignore_events
from schemaless.followers.states import QUARANTINED
from schemaless.indexes.admin import IndexStatus, Watch
from schemaless.indexes.check import Found
from schemaless.indexes.definition import define
from schemaless.indexes.registry import BACKFILLING, DROPPING, READY, IndexEntry
from schemaless.numbers import shards_text as list_of_shards
from schemaless.terminal.output import (
    EXIT_FAILED,
    ReadOnlyCommand,
    facts,
    json_option,
    note,
    out,
    print_json,
    print_table,
    progress,
)
from schemaless.terminal.progress import duration


@click.group()
def index() -> None:
    """Find rows by the contents of their documents.

    An index holds some fields of the latest version of each row, from one column or several. Workers keep it up to date
    from the change feed, on any number of machines. Writers do nothing for it, so an entry appears a moment after its
    cell. The same workers fill a new index while applications write, and queries are accepted once it is ready. A query
    names a value of the shard field, looks in that one shard, and reads each row that it finds again, so that a row
    that does not match is never returned.

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


@index.command()
@click.argument("name")
@click.option(
    "--shard-field",
    metavar="FIELD",
    required=True,
    help="The field whose value decides which shard an entry is in; every query names a value of it.",
)
@click.option(
    "--field",
    "fields",
    metavar="FIELD",
    multiple=True,
    help="A field to query and order by; repeat it for more, in their order.",
)
@url_option
@json_option
def create(name: str, shard_field: str, fields: tuple[str, ...], url: str, as_json: bool) -> None:
    """Create a secondary index, which workers then fill.

    An index is a table in each shard.

    A FIELD is [NAME=]COLUMN.PATH:TYPE. COLUMN and PATH say where its value is in the documents of a column, with a dot
    between keys. TYPE is uuid, int, float, bool, time (ISO 8601; UTC unless it says otherwise) or text(N). NAME is the
    last key unless you give another. A column whose name has a dot stands in quotes: '"v1.BASE".client:uuid'. A value
    that is missing or does not fit is NULL; a row whose shard field is NULL has no entry. A text over N characters is
    cut in the index, and queries still find its row. An index has at most 16 fields.

    The order of fields counts: a query returns rows in the order of the first field that it does not ask for by '='.

    If the command is interrupted, the same command continues. On an index that exists, it restores the progress rows
    that shards have lost, and workers read those shards again. With an existing name and other fields, the new index is
    built beside the old one, which answers queries until the new one is ready.

    The account needs the role admin. Afterwards, grant the roles follow, app and admin again, for the new tables; then
    'schemaless index run' fills the index.

    \b
    Examples:
      schemaless index create client_trips --shard-field BASE.client:uuid \\
          --field BASE.at:time --field status=STATUS.s:text(64)
    """
    definition = define(name, shard_field, fields)
    with open_store(url) as store, progress("making tables", None, "shards") as listener:
        entry, made = indexes_of(store).create(definition, listener)
    if as_json:
        print_json(
            {
                "name": name,
                "number": entry.number,
                "state": entry.state,
                "created": made,
                "columns": list(definition.sources),
                "fields": [field.name for field in definition.all_fields],
            }
        )
        return
    out().print(
        f"index {name} is {'made' if made else 'there already'}, number {entry.number}: {entry.state}", markup=False
    )
    if made:
        note("run what 'schemaless grants' prints for the roles follow, app and admin again; then fill the index by")
        note(f"  schemaless index run {name}")


@index.command()
@click.argument("names", nargs=-1)
@workers_option
@click.option("--once", is_flag=True, help="End once all cells that are stored now have been processed.")
@url_option
@json_option
def run(names: tuple[str, ...], workers: int, once: bool, url: str, as_json: bool) -> int:
    """Fill indexes and keep them up to date, until Ctrl-C.

    Without NAMES, the command keeps all indexes. All workers share the shards out between them, on any number of
    machines, and take over the shards of a worker that dies. An index is filled from the beginning of the change feed,
    while applications write; once every cell that was there has been read, the index is ready and accepts queries. The
    command shows how far that is, how fast, and how long it will still take.

    Kill it at any moment: the next run continues at most 100 ms or 500 cells of each worker earlier, which does no
    harm. The account needs the role follow, with grants for the tables of these indexes.

    \b
    Examples:
      schemaless index run --workers 4
      schemaless index run client_trips --once

    Exit status: 3 stopped; with --once 0, or 1 if the index cannot be kept up to date in some shard.
    """
    with open_store(url) as store:
        indexes = indexes_of(store)
        for name in names:
            indexes.named(name)
        while True:
            entries = indexes.maintained(names)
            if not entries:
                raise InvalidInput("there is no index yet; 'schemaless index create' makes one")
            filling = [entry.name for entry in entries if entry.state == BACKFILLING]
            supervisor = index_supervisor(store, names, workers)
            note(f"keeping {', '.join(f'{entry.name} ({entry.number})' for entry in entries)}")
            title = f"filling {', '.join(filling)}"
            with progress(title, None, "ids") if filling else nullcontext(ignore_events) as listener:
                supervisor.run(Watch(indexes, names, listener, once=once))
            if once:
                break
        statuses = [indexes.status(entry) for entry in indexes.maintained(names)]
    if as_json:
        print_json([status_json(index) for index in statuses])
    else:
        show_statuses(statuses)
    return EXIT_FAILED if any(index.stands for index in statuses) else 0


_FAULTS_SHOWN: Final = 16


@index.command(cls=ReadOnlyCommand)
@click.argument("name", required=False)
@url_option
@json_option
def status(name: str | None, url: str, as_json: bool) -> int:
    """Show the state of an index, or of all indexes.

    An index is declared while its tables are created, backfilling while it is filled, ready, or dropping while its
    tables are removed; only a ready one accepts queries. How far it is behind is given in two ways: by the added_ids
    between its locations and the ends of the shards, counting all columns, and by the age of the first of these cells.
    The status also names the workers, and says why a shard waits.

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
        "workers": [worker.as_json() for worker in index.workers],
        "shards": [
            {
                **({} if shard.row is None else asdict(shard.row)),
                **facts(shard, "shard", "ids_behind", "behind_s", "fault"),
            }
            for shard in index.shards
        ],
    }


_COLUMNS: Final = (
    *("rows", "entries", "without_entry", "null_fields", "lagging"),
    *("missing", "stale", "ahead", "orphan", "repaired"),
)


@index.command()
@click.argument("name")
@click.option("--repair", is_flag=True, help="Repair the faults; needs --execute.")
@shards_option
@execute_option
@url_option
@json_option
def check(name: str, repair: bool, shards_text: str | None, execute: bool, url: str, as_json: bool) -> int:
    """Compare each row with its entry, and each entry with its row.

    \b
      missing   a row without the entry that it makes
      stale     an entry that says something else than the row, or is in a
                shard that the row has left
      ahead     an entry made of versions that the row does not have, after a
                failover that lost cells
      orphan    an entry of a row that has no cell

    The check runs while applications write and workers run. It looks at each difference again, and counts as lagging
    what workers have yet to do. Rows whose shard field does not fit have no entry, and other fields that do not fit are
    NULL: the check counts both, and neither is a fault. --repair writes entries that are missing or stale, and deletes
    entries that belong to no row. The account needs the role follow. A check that is stopped, or meets an error, prints
    what it found until then, and the command that checks the shards that are left.

    \b
    Examples:
      schemaless index check client_trips
      schemaless index check client_trips --shards 0-63 --repair --execute

    Exit status: 0, or 1 if a fault was found and not repaired.
    """
    with open_store(url) as store:
        indexes = indexes_of(store)
        ready = [entry for entry in indexes.named(name) if entry.state == READY]
        if not ready:
            raise InvalidInput(f"index {name} is not ready; 'schemaless index status {name}' says how far it is")
        shards = shards_of(shards_text, store.shard_count)
        checking = indexes.check(ready[-1], repair=repair and execute)
        results: list[Found] = []
        try:
            with progress(f"checking {name}", len(shards), "shards") as listener:
                results.extend(checking.run(shards, listener))
        except (KeyboardInterrupt, SchemalessError):
            # Hours of checking may precede this point.
            left = list_of_shards(shards[len(results) :])
            _print(ready[-1], results, left, as_json=as_json)
            mended = " --repair --execute" if repair and execute else ""
            note(f"to check the remaining shards: schemaless index check {name} --shards {left}{mended}")
            raise
    total = _print(ready[-1], results, None, as_json=as_json)
    if repair and not execute:
        note_dry()
    return EXIT_FAILED if total.faults > total.repaired else 0


def _print(entry: IndexEntry, results: list[Found], left: str | None, *, as_json: bool) -> Found:
    """Print the findings and return the totals of all shards; ``left`` lists the shards not yet checked."""
    total = Found(-1)
    for checked in results:
        for column in _COLUMNS:
            setattr(total, column, getattr(total, column) + getattr(checked, column))
    if as_json:
        counts = {column: total.counts[column] for column in _COLUMNS}
        facts = {"name": entry.name, "number": entry.number, **counts, "left": left}
        print_json({**facts, "shards": [checked.counts for checked in results]})
    else:
        shown = [checked for checked in results if checked.faults]
        rows = [[str(checked.shard), *(f"{checked.counts[column]:,}" for column in _COLUMNS)] for checked in shown]
        rows.append(["all", *(f"{total.counts[column]:,}" for column in _COLUMNS)])
        print_table(None, ["shard", *(column.replace("_", " ") for column in _COLUMNS)], rows)
        if not total.faults and left is None:
            out().print(f"index {entry.name} agrees with its rows", markup=False)
    return total


@index.command()
@click.argument("name")
@click.option(
    "--number",
    type=CatalogId(),
    metavar="N",
    help="Drop only the index of this number, if several have the name.",
)
@click.option(
    "--replaced",
    is_flag=True,
    help="Drop only indexes that another definition has replaced, or whose drop was interrupted.",
)
@execute_option
@url_option
@json_option
def drop(name: str, number: int | None, replaced: bool, execute: bool, url: str, as_json: bool) -> None:
    """Drop an index.

    From then on, queries of the index are refused. The command waits until workers have let go of the index, and then
    drops its table in each shard. It drops every index of the name, unless --number or --replaced chooses one. Cells
    are not changed. If the command is interrupted, the same command continues. The account needs the role admin, with
    grants for the index's tables.

    \b
    Examples:
      schemaless index drop client_trips
      schemaless index drop client_trips --replaced --execute
    """
    with open_store(url) as store:
        indexes = indexes_of(store)
        chosen = [
            entry
            for entry in indexes.named(name)
            if (number is None or entry.number == number) and (not replaced or entry.state == DROPPING)
        ]
        if not chosen:
            there = ", ".join(f"{entry.number} ({entry.state})" for entry in indexes.named(name))
            raise InvalidInput(f"no index {name} matches that; there are {there}")
        for entry in chosen if execute else ():
            with progress(f"dropping {name} ({entry.number})", None, "shards") as listener:
                indexes.drop(entry, listener)
    if as_json:
        print_json({"name": name, "numbers": [entry.number for entry in chosen], "dropped": execute})
        return
    for entry in chosen:
        out().print(
            f"index {name}, number {entry.number}, {entry.state}, {'is' if execute else 'would be'} dropped",
            markup=False,
        )
    if not execute:
        note_dry()
