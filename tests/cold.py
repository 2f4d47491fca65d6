"""Cold files that tests write without a job, and the cells whose bodies refer to them."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

import pyarrow.parquet as pq

from schemaless import Datastore
from schemaless.cell import CellKey, StoredCell
from schemaless.codec.exact_text import exact_text
from schemaless.codec.references import reference_body
from schemaless.store.cold.content import ColdCell, Content, content_of, without_documents
from schemaless.store.cold.files import ColdFile, ShardFiles
from schemaless.store.cold.targets import MARKER, mark, open_target
from schemaless.store.internals import internals_of
from schemaless.topology.shards import Shards
from schemaless.wire.sql.parts import blob_hex, cell_table


class ColdFolder:
    """The cold store of a datastore, in a folder or at a URI.

    Args:
        store: the datastore.
        shards: its shards as root reaches them.
        folder: where the files are.
    """

    def __init__(self, store: Datastore, shards: Shards, folder: str | Path) -> None:
        self.store, self.shards, self.folder = store, shards, Path(folder)
        self.target = open_target(str(folder))
        mark(self.target)
        self.incarnation = uuid.uuid4().hex
        catalog = shards.pool_for(internals_of(store).catalog.node)
        catalog.execute(
            b"INSERT INTO `%b`.cold_store SET only_row=1, uri='%b', incarnation='%b', set_by='a test'"
            % (store.name.encode(), str(folder).encode(), self.incarnation.encode())
        )

    def freeze(self, keys: Iterable[CellKey | tuple[uuid.UUID, str, int]]) -> list[ColdFile]:
        """Write the documents of cells into a file for each shard, and replace the bodies by references."""
        wanted, made = set(keys), []
        for shard in range(self.store.shard_count):
            cells = [cell for cell in internals_of(self.store).scan(shard, cold=False) if cell.key in wanted]
            if cells:
                file = self.listed(cells)
                content = self.put(file, cells)
                made.append(self.published(file, content))
                for cell in cells:
                    text, _ = exact_text(cell.body, dictionaries=internals_of(self.store).dictionaries)
                    place = content.places[cell.added_id]
                    self.write(shard, cell.added_id, reference_body(file.file_id, *place, text))
        return made

    def write(self, shard: int, added_id: int, body: bytes) -> None:
        """Replace a body."""
        table = cell_table(self.shards.database(shard))
        self.shards.execute(shard, b"UPDATE %b SET body=%b WHERE added_id=%d" % (table, blob_hex(body), added_id))

    def listed(self, cells: Sequence[StoredCell]) -> ColdFile:
        """List a file as being written."""
        ids = [cell.added_id for cell in cells]
        return ShardFiles(self.shards, cells[0].shard).list_new(self.incarnation, min(ids), max(ids))

    def put(self, file: ColdFile, cells: Sequence[StoredCell]) -> Content:
        """Write a file's object."""
        dictionaries = internals_of(self.store).dictionaries
        content = content_of(
            [
                ColdCell(
                    cell.added_id,
                    cell.row_key.bytes,
                    cell.column_name,
                    cell.ref_key,
                    bytes(exact_text(cell.body, dictionaries=dictionaries)[0]),
                    cell.created_at.isoformat(" ", "microseconds"),
                )
                for cell in cells
            ],
            file.shard,
        )
        self.target.put(file.name, content.data, "test")
        return content

    def published(self, file: ColdFile, content: Content, replaces: ColdFile | None = None) -> ColdFile:
        """Make a file live whose object was written."""
        written: dict[str, int | str] = {
            "cells": len(content.places),
            "text_bytes": content.text_bytes,
            "file_bytes": len(content.data),
            "sha256": content.sha256,
        }
        assert ShardFiles(self.shards, file.shard).publish(file, written, replaces)
        return self.live(file)

    def rewrite(self, file: ColdFile, erased: Collection[int]) -> ColdFile:
        """Replace a file by its next generation, without the documents of some added_ids."""
        content = without_documents(self.target.read(file.name), erased)
        assert content is not None
        ids = file.first_id, file.last_id
        successor = ShardFiles(self.shards, file.shard).list_new(
            self.incarnation, *ids, file_id=file.file_id, generation=file.generation + 1
        )
        self.target.put(successor.name, content.data, "test")
        live = self.published(successor, content, file)
        self.target.delete([file.name])
        return live

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
        """Return the names of all files below the folder but the marker."""
        return {str(path.relative_to(self.folder)) for path in self.folder.rglob("*") if path.is_file()} - {MARKER}
