"""``schemaless cell history``: a cell's versions."""

from __future__ import annotations

import click

from schemaless.cli.cell.get import cell_facts
from schemaless.cli.options import open_store, row_key_of, url_option
from schemaless.codec.envelope import describe_body
from schemaless.errors import CorruptBody
from schemaless.terminal.output import EXIT_FAILED, error, json_option, out, print_json, print_table


@click.command()
@click.argument("row_key")
@click.argument("column", required=False)
@click.option("--limit", type=click.IntRange(min=1), default=50, help="List at most so many versions of each column.")
@url_option
@json_option
def history(row_key: str, column: str | None, limit: int, url: str, as_json: bool) -> int:
    """List the versions of a row, newest first.

    The command lists all columns of the row, or only COLUMN.

    \b
    Examples:
      schemaless cell history uuid5:N14228
      schemaless cell history uuid5:N14228 LOG --limit 3 --json

    Exit status: 0, or 1 if there is no such row.
    """
    row = row_key_of(row_key)
    with open_store(url) as store:
        shard = store.shard_of(row)
        columns = [column] if column is not None else list(store.column_names(row))
        versions = [cell for name in columns for cell in store.get_stored_versions(row, name, limit=limit)]
    if not versions:
        error(f"no cells in row {row}{'' if column is None else f', column {column}'}")
        return EXIT_FAILED
    if as_json:
        print_json(
            [{**cell_facts(cell), "codec": _codec(cell.body), "body_bytes": len(cell.body)} for cell in versions]
        )
        return 0
    out().print(f"row {row} in shard {shard}")
    print_table(
        None,
        ["column", "created_at (UTC)", "codec", "ref_key", "added_id", "body bytes"],
        [
            [
                cell.column_name,
                f"{cell.created_at:%Y-%m-%d %H:%M:%S.%f}",
                _codec(cell.body),
                str(cell.ref_key),
                str(cell.added_id),
                f"{len(cell.body):,}",
            ]
            for cell in versions
        ],
        text_columns=3,
    )
    return 0


def _codec(body: bytes) -> str:
    try:
        return describe_body(body).name
    except CorruptBody as refusal:
        return f"unreadable: {refusal.message}"
