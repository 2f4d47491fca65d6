"""``schemaless cell put``: writes one cell."""

from __future__ import annotations

import sys

import click

from schemaless.cell import NewStoredCell
from schemaless.cli.options import codec_option, open_store, row_key_of, url_option
from schemaless.codec.legacy import read_json
from schemaless.codec.lines import MAX_LINE_BYTES
from schemaless.codec.recode import recode
from schemaless.codec.registry import LEGACY, codec_named
from schemaless.errors import BatchError, CorruptBody, InvalidInput
from schemaless.terminal.output import facts, json_option, note, print_json


@click.command()
@click.argument("row_key")
@click.argument("column")
@click.argument("ref_key", type=int)
@click.argument("body", default="-")
@url_option
@codec_option(
    "--as",
    legacy=True,
    default=None,
    help_text="The codec to store the body in.  [default: the column's codec, msgpack+zlib for most]",
)
@json_option
def put(row_key: str, column: str, ref_key: int, body: str, url: str, codec: str | None, as_json: bool) -> None:
    """Write one cell. BODY is JSON text, or - for standard input.

    Writing the same cell with the same body again changes nothing. Writing it with another body is refused: a change is
    a new cell with a higher REF_KEY.

    \b
    Examples:
      schemaless cell put 71f0c4d2-2918-44cc-a2df-000000000001 BASE 1 '{"fare": {"total": 12.5}}'
      schemaless cell put uuid5:N14228 LOG 13 - < log.json
    """
    given = sys.stdin.buffer.read(MAX_LINE_BYTES + 1) if body == "-" else body.encode("utf-8", "surrogateescape")
    text = given.strip()
    try:
        if len(given) > MAX_LINE_BYTES:
            raise InvalidInput(f"BODY: longer than {MAX_LINE_BYTES:,} bytes, which no document may be")
        read_json(text)
    except CorruptBody as refusal:
        raise InvalidInput(f"BODY: {refusal.message}") from None
    with open_store(url) as store:
        chosen = store.codec_for(column) if codec is None else codec_named(codec)
        stored = text if chosen is LEGACY else recode(text, chosen).body
        try:
            done = store.put_stored_cells([NewStoredCell(row_key_of(row_key), column, ref_key, stored)], trusted=True)[
                0
            ]
        except BatchError as batch_error:
            raise next(iter(batch_error.causes.values())) from None
        shard = store.shard_of(done.key.row_key)
    if as_json:
        print_json({**done.key._asdict(), "shard": shard, **facts(done, "added_id", "created")})
        return
    what = "created" if done.created else "was there already"
    note(f"{what}: cell {done.key} in shard {shard}, added_id {done.added_id}")
