"""``schemaless dump``."""

from __future__ import annotations

from pathlib import Path

import click

from schemaless.base.events import Advanced
from schemaless.cli.command import ReadOnlyCommand
from schemaless.cli.option import option
from schemaless.errors import InvalidInput
from schemaless.ops.admin import ndjson as loading
from schemaless.store.datastore import Datastore
from schemaless.store.internals import internals_of
from schemaless.ui.terminal.files import OutputFile, data_output
from schemaless.ui.terminal.output import progress


@click.command(cls=ReadOnlyCommand)
@option("--column NAME", "Only cells of this column.")
@option("--stored", "Write stored bytes (base64) instead of documents: an exact copy.", is_flag=True)
@option("--output", "Write to this file instead of standard output.", type=OutputFile(Path))
def dump(store: Datastore, column: str | None, shards: list[int], stored: bool, output: Path | None) -> None:
    """Write cells as NDJSON.

    Each line is one cell: row_key, column_name, ref_key, added_id, created_at and body. Within each shard, cells are
    in the order of their added_id. 'schemaless load --from-dump' reads the lines. A body that does not decode ends the
    dump with an error that names the cell; with --stored, bodies are not decoded. A column without cells is an error. A
    file given with --output appears only when the dump is complete.

    Documents are written exactly: a stored NaN or infinity stays one, which is not JSON, and needs 'load --allow-nan'.

    \b
    Examples:
      schemaless dump | gzip > cells.ndjson.gz
      schemaless dump --column LOG --shards 0-3 | jq .body
      schemaless dump --stored --output exact.ndjson
    """
    ids = sum(internals_of(store).id_span(shard) for shard in shards)
    last = (-1, 0)
    with data_output(output) as sink, progress("dumping", ids, "ids") as listener:
        for cell, lines in loading.dump_lines(store, loading.iter_dump(store, shards, column), stored=stored):
            sink.write(lines)
            listener(Advanced(cell.added_id - last[1] if cell.shard == last[0] else 1))
            last = (cell.shard, cell.added_id)
        if column is not None and last == (-1, 0):
            raise InvalidInput(f"no cell in the given shards is in column {column!r}; check the name of the column")
