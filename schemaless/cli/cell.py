"""``schemaless cell``: reads and writes single cells."""

from __future__ import annotations

import sys
from typing import Any

import click

from schemaless.base.interrupts import advising
from schemaless.cell import Cell, NewStoredCell, Put
from schemaless.cli.cell_tail import tail
from schemaless.cli.command import JSONCommand, QueryCommand
from schemaless.cli.option import option
from schemaless.cli.options import allow_nan_option, codec_option, row_key_of, time_of
from schemaless.codec.envelope import describe_body
from schemaless.codec.legacy import check_text_finite, read_json
from schemaless.codec.lines import MAX_LINE_BYTES
from schemaless.codec.recode import recode
from schemaless.codec.registry import LEGACY, codec_named
from schemaless.errors import BatchError, CorruptBody, InvalidInput
from schemaless.store.datastore import Datastore
from schemaless.store.internals import internals_of
from schemaless.store.opening import connect
from schemaless.ui.terminal.output import (
    EXIT_FAILED,
    as_json,
    error,
    facts,
    note,
    out,
    print_json,
    print_result,
    print_rows,
)


@click.group(commands=[tail])
def cell() -> None:
    """Write and read single cells, or follow the change feed.

    ROW_KEY is a UUID, or uuid5:NAME, which hashes a name as 'load --row-key uuid5:FIELD' does.
    """


_as_option = codec_option(
    "--as",
    legacy=True,
    default=None,
    help_text="The codec to store the body in.  [default: the column's codec, msgpack+zlib for most]",
)


@cell.command(cls=JSONCommand)
@click.argument("row_key")
@click.argument("column")
@click.argument("ref_key", type=int)
@click.argument("body", default="-")
@_as_option
@allow_nan_option
def put(row_key: str, column: str, ref_key: int, body: str, url: str, codec: str | None, allow_nan: bool) -> None:
    """Write one cell. BODY is JSON text, or - for standard input.

    Writing the same cell with the same body again changes nothing. Writing it with another body is an error: write a
    change as a new cell with a higher REF_KEY.

    \b
    Examples:
      schemaless cell put 71f0c4d2-2918-44cc-a2df-000000000001 BASE 1 \\
          '{"fare": {"total": 12.5}}'
      schemaless cell put uuid5:N14228 LOG 13 - < log.json
    """
    text = _json_text_of(body, allow_nan)
    with connect(url) as store:
        try:
            new = NewStoredCell(row_key_of(row_key), column, ref_key, _encoded(store, column, text, codec))
            (done,) = store.put_stored_cells([new], trusted=True)
        except BatchError as batch_error:
            raise next(iter(batch_error.causes.values())) from None
        _print_put(done, store.shard_of(done.key.row_key))


@cell.command(cls=JSONCommand)
@click.argument("row_key")
@click.argument("column")
@click.argument("body", default="-")
@_as_option
@allow_nan_option
def append(row_key: str, column: str, body: str, url: str, codec: str | None, allow_nan: bool) -> None:
    """Write the next version of a document.

    Its REF_KEY is the highest one plus 1, or 1 for the first version.

    BODY is JSON text, or - for standard input. Running the command twice writes two versions; 'schemaless cell put' can
    be repeated.

    \b
    Examples:
      schemaless cell append uuid5:N14228 STATUS '{"status": "grounded"}'
      schemaless cell append uuid5:N14228 LOG - < log.json
    """
    text = _json_text_of(body, allow_nan)
    row = row_key_of(row_key)
    with connect(url) as store:
        shard, encoded = store.shard_of(row), _encoded(store, column, text, codec)
        with advising(lambda: f"'schemaless cell get {row_key} {column}' shows whether this version was written"):
            done = internals_of(store).cells.append_on_shard(shard, row, column, encoded)
        _print_put(done, shard)


def _json_text_of(body: str, allow_nan: bool) -> bytes:
    given = sys.stdin.buffer.read(MAX_LINE_BYTES + 1) if body == "-" else body.encode("utf-8", "surrogateescape")
    text = given.strip()
    try:
        if len(given) > MAX_LINE_BYTES:
            raise InvalidInput(f"BODY: longer than {MAX_LINE_BYTES:,} bytes, the limit for a document")
        read_json(text)
        if not allow_nan:
            check_text_finite(text)
    except CorruptBody as refusal:
        raise InvalidInput(f"BODY: {refusal.message}") from None
    return text


def _encoded(store: Datastore, column: str, text: bytes, codec: str | None) -> bytes:
    chosen = store.codec_for(column)
    chosen = chosen if codec is None else codec_named(codec)
    return text if chosen is LEGACY else recode(text, chosen).body


def _print_put(done: Put, shard: int) -> None:
    print_result({**done.key._asdict(), "shard": shard, **facts(done, "added_id", "created")})
    what = "created" if done.created else "was there already"
    note(f"{what}: cell {done.key} in shard {shard}, added_id {done.added_id}")


@cell.command(cls=QueryCommand)
@click.argument("row_key")
@click.argument("column")
@click.argument("ref_key", type=int, required=False)
@option("--at TIME", "The latest version stored by this time, such as 2026-03-01T12:00+00:00.")
def get(row_key: str, column: str, ref_key: int | None, at: str | None, store: Datastore) -> int:
    """Print a cell's document: version REF_KEY, or the latest.

    With --at, the latest is the highest REF_KEY among the versions whose created_at is TIME or earlier.

    With --json, the command also prints the cell's key, added_id and created_at. The output is always valid JSON: NaN
    and infinities, which older writers may have stored, are printed as the strings "NaN", "Infinity" and "-Infinity".

    \b
    Examples:
      schemaless cell get 71f0c4d2-2918-44cc-a2df-000000000001 BASE
      schemaless cell get uuid5:N14228 LOG 3 --json
      schemaless cell get uuid5:N14228 LOG --at 2026-03-01T12:00+00:00

    Exit status: 0, or 1 if there is no such cell.
    """
    if ref_key is not None and at is not None:
        raise InvalidInput("give REF_KEY or --at, not both")
    row = row_key_of(row_key)
    if ref_key is None:
        cell = store.get_cell_latest(row, column, at=None if at is None else time_of("--at", at))
    else:
        cell = store.get_cell(row, column, ref_key)
    if cell is None:
        version = f" {ref_key}" if ref_key is not None else f" stored by {at}" if at is not None else ""
        error(f"no cell ({row}, {column}){version}; see 'schemaless cell history {row_key}'")
        return EXIT_FAILED
    print_json({**cell_facts(cell), "body": cell.body} if as_json() else cell.body)
    return 0


def cell_facts(cell: Cell | Any) -> dict[str, Any]:
    """Return the fields that identify a cell, for ``--json``."""
    return {"row_key": str(cell.row_key), **facts(cell, "column_name", "ref_key", "added_id", "created_at")}


@cell.command(cls=QueryCommand)
@click.argument("row_key")
@click.argument("column", required=False)
@option("--limit", "Maximum number of versions to list per column.", type=click.IntRange(min=1), default=50)
def history(row_key: str, column: str | None, limit: int, store: Datastore) -> int:
    """List the versions of a row, newest first.

    The command lists all columns of the row, or only COLUMN.

    \b
    Examples:
      schemaless cell history uuid5:N14228
      schemaless cell history uuid5:N14228 LOG --limit 3 --json

    Exit status: 0, or 1 if there is no such row.
    """
    row = row_key_of(row_key)
    shard = store.shard_of(row)
    columns = [column] if column is not None else list(store.column_names(row))
    versions = [
        cell for name in columns for cell in store.get_stored_versions(row, name, limit=limit, include_erased=True)
    ]
    if not versions:
        error(f"no cells in row {row}{'' if column is None else f', column {column}'}")
        return EXIT_FAILED
    print_result([{**cell_facts(cell), "codec": _codec(cell.body), "body_bytes": len(cell.body)} for cell in versions])
    out().print(f"row {row} in shard {shard}")
    rows = [
        {
            "column": cell.column_name,
            "created_at (UTC)": f"{cell.created_at:%Y-%m-%d %H:%M:%S.%f}",
            "codec": _codec(cell.body),
            "ref_key": str(cell.ref_key),
            "added_id": str(cell.added_id),
            "body bytes": f"{len(cell.body):,}",
        }
        for cell in versions
    ]
    print_rows(None, rows, text_columns=3)
    return 0


def _codec(body: bytes) -> str:
    try:
        return describe_body(body).name
    except CorruptBody as refusal:
        return f"unreadable: {refusal.message}"
