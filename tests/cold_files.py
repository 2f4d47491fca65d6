"""Cold files that tests write, in a folder, and the cells whose bodies refer to them."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from schemaless import Datastore
from schemaless.cell import CellKey, StoredCell
from schemaless.codec.exact_text import exact_text
from schemaless.codec.references import reference_body
from schemaless.store.cold.files import ColdFile, ShardFiles
from schemaless.store.internals import internals_of
from schemaless.topology.shards import Shards
from schemaless.wire.sql.parts import blob_hex, cell_table

GROUP_ROWS = 3
_SCHEMA = pa.schema(
    [
        pa.field("row_key", pa.string(), nullable=False),
        pa.field("column_name", pa.string(), nullable=False),
        pa.field("ref_key", pa.int64(), nullable=False),
        pa.field("added_id", pa.int64(), nullable=False),
        pa.field("body", pa.string()),
    ]
)


class ColdFolder:
    """The cold store of a datastore: a folder, in which ``freeze`` writes one file per shard.

    Attributes:
        folder: the folder.
    """

    def __init__(self, store: Datastore, by_hand: Callable[[Datastore], Shards], folder: Path) -> None:
        self.folder = folder
        self.shards = by_hand(store)
        self._store = store
        catalog = self.shards.pool_for(internals_of(store).catalog.node)
        incarnation = uuid.uuid4().hex
        catalog.execute(
            b"INSERT INTO `%b`.cold_store (only_row, uri, incarnation, set_by) VALUES (1, '%b', '%b', 'tests')"
            % (store.name.encode(), str(folder).encode(), incarnation.encode())
        )
        self.incarnation = incarnation

    def freeze(self, keys: Iterable[CellKey]) -> list[ColdFile]:
        """Write the documents of cells into files, and replace the bodies by references."""
        wanted, internals, made = set(keys), internals_of(self._store), []
        for shard in range(self._store.shard_count):
            cells = [cell for cell in self._store.scan_shard(shard) if cell.key in wanted]
            if cells:
                made.append(self.written(self.listed(cells), cells))
                for place, cell in enumerate(_ordered(cells)):
                    text, _ = exact_text(cell.body, dictionaries=internals.dictionaries)
                    body = reference_body(made[-1].file_id, *divmod(place, GROUP_ROWS), text)
                    database = internals.shards.database(shard)
                    self.shards.execute(
                        shard,
                        b"UPDATE %b SET body=%b WHERE added_id=%d"
                        % (cell_table(database), blob_hex(body), cell.added_id),
                    )
        return made

    def listed(self, cells: list[StoredCell]) -> ColdFile:
        """List a file as being written."""
        ids = [cell.added_id for cell in cells]
        return ShardFiles(self.shards, cells[0].shard).list_new(self.incarnation, min(ids), max(ids))

    def put(self, file: ColdFile, cells: list[StoredCell]) -> tuple[bytes, int]:
        """Write a file's object; return its content and the size of its documents."""
        sink, text_bytes = pa.BufferOutputStream(), 0
        ordered = _ordered(cells)
        with pq.ParquetWriter(sink, _SCHEMA) as writer:
            for start in range(0, len(cells), GROUP_ROWS):
                group = ordered[start : start + GROUP_ROWS]
                dictionaries = internals_of(self._store).dictionaries
                texts = [bytes(exact_text(cell.body, dictionaries=dictionaries)[0]) for cell in group]
                text_bytes += sum(map(len, texts))
                arrays: list[Any] = [
                    [str(cell.row_key) for cell in group],
                    [cell.column_name for cell in group],
                    [cell.ref_key for cell in group],
                    [cell.added_id for cell in group],
                    pa.array(texts, pa.string()),
                ]
                writer.write_table(pa.table(arrays, schema=_SCHEMA), row_group_size=len(group))
        content = sink.getvalue().to_pybytes()
        path = self.folder / file.name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return content, text_bytes

    def written(self, file: ColdFile, cells: list[StoredCell]) -> ColdFile:
        """Write a listed file and make it live."""
        content, text_bytes = self.put(file, cells)
        sums = {"file_bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        files = ShardFiles(self.shards, file.shard)
        assert files.publish(file, {"cells": len(cells), "text_bytes": text_bytes, **sums})
        return self.live(file)

    def live(self, file: ColdFile) -> ColdFile:
        """Return the generation of a file that is live."""
        (found,) = ShardFiles(self.shards, file.shard).all("live", file_id=file.file_id)
        return found

    def states(self, shard: int) -> list[tuple[int, str]]:
        """Return generation and state of each file of a shard, in the order of their numbers."""
        return [(file.generation, file.state) for file in ShardFiles(self.shards, shard).all()]

    def texts(self, file: ColdFile) -> list[list[str | None]]:
        """Return the texts of a file, by row group."""
        source = pq.ParquetFile(self.folder / file.name)
        return [source.read_row_group(number)["body"].to_pylist() for number in range(source.num_row_groups)]

    def names(self) -> set[str]:
        """Return the names of all files below the folder."""
        return {str(path.relative_to(self.folder)) for path in self.folder.rglob("*") if path.is_file()}


def _ordered(cells: list[StoredCell]) -> list[StoredCell]:
    return sorted(cells, key=lambda cell: (cell.row_key.bytes, cell.column_name, cell.ref_key))
