"""``schemaless cell get``: reads one cell."""

from __future__ import annotations

from typing import Any

import click

from schemaless.cell import Cell
from schemaless.cli.options import open_store, row_key_of, url_option
from schemaless.terminal.output import EXIT_FAILED, error, facts, json_option, print_json


@click.command()
@click.argument("row_key")
@click.argument("column")
@click.argument("ref_key", type=int, required=False)
@url_option
@json_option
def get(row_key: str, column: str, ref_key: int | None, url: str, as_json: bool) -> int:
    """Print a cell's document: the version REF_KEY, or the latest.

    With --json, the command also prints the cell's keys, added_id and created_at.

    \b
    Examples:
      schemaless cell get 71f0c4d2-2918-44cc-a2df-000000000001 BASE
      schemaless cell get uuid5:N14228 LOG 3 --json

    Exit status: 0, or 1 if there is no such cell.
    """
    row = row_key_of(row_key)
    with open_store(url) as store:
        cell = store.get_cell_latest(row, column) if ref_key is None else store.get_cell(row, column, ref_key)
    if cell is None:
        version = "" if ref_key is None else f" {ref_key}"
        error(f"no cell ({row}, {column}){version}; see 'schemaless cell history {row_key}'")
        return EXIT_FAILED
    if as_json:
        print_json({**cell_facts(cell), "body": cell.body})
    else:
        print_json(cell.body)
    return 0


def cell_facts(cell: Cell | Any) -> dict[str, Any]:
    """Return what identifies a cell, for ``--json``."""
    return {"row_key": str(cell.row_key), **facts(cell, "column_name", "ref_key", "added_id", "created_at")}
