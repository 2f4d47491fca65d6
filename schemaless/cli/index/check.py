"""``schemaless index check``."""

from __future__ import annotations

from typing import Final

import click

from schemaless.admin.indexes import indexes_of
from schemaless.cli.options import note_dry, open_store, shards_of, shards_option, url_option
from schemaless.cli.trigger.steer import execute_option
from schemaless.errors import InvalidInput, SchemalessError
from schemaless.indexes.check import Found
from schemaless.indexes.registry import READY, IndexEntry
from schemaless.numbers import shards_text as list_of_shards
from schemaless.terminal.output import EXIT_FAILED, json_option, note, out, print_json, print_table, progress

_COLUMNS: Final = (
    *("rows", "entries", "without_entry", "null_fields", "lagging"),
    *("missing", "stale", "ahead", "orphan", "repaired"),
)


@click.command()
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
      stale     an entry that says something else than the row, or is in a shard that the row has left
      ahead     an entry made of versions that the row does not have, after a failover that lost cells
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
            # Hours of checking may be behind it.
            left = list_of_shards(shards[len(results) :])
            _print(ready[-1], results, left, as_json=as_json)
            mended = " --repair --execute" if repair and execute else ""
            note(f"to check the shards that are left: schemaless index check {name} --shards {left}{mended}")
            raise
    total = _print(ready[-1], results, None, as_json=as_json)
    if repair and not execute:
        note_dry()
    return EXIT_FAILED if total.faults > total.repaired else 0


def _print(entry: IndexEntry, results: list[Found], left: str | None, *, as_json: bool) -> Found:
    """Print what was found, and return it of all shards; ``left`` is a list of those that were not got to."""
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
