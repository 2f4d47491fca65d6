"""Makes cells cold without a job: writes a file, lists it, and replaces the bodies."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from schemaless import Datastore, StoredCell
from schemaless.codec.exact_text import exact_text
from schemaless.codec.references import reference_body
from schemaless.store.cold.content import ColdCell, content_of
from schemaless.store.cold.files import ColdFile, ShardFiles
from schemaless.store.cold.targets import open_target
from schemaless.store.internals import internals_of
from schemaless.topology.shards import Shards


class ColdMaker:
    """Makes cells cold, in a folder or at a URI.

    Args:
        store: the datastore.
        shards: its shards as root reaches them.
        uri: where the files are.
    """

    def __init__(self, store: Datastore, shards: Shards, uri: str | Path) -> None:
        self.store, self.shards, self.target = store, shards, open_target(str(uri))
        catalog = internals_of(store).catalog
        root = shards.pool_for(catalog.node)
        root.execute(
            b"INSERT INTO `%b`.cold_store SET only_row=1, uri='%b', incarnation='%b', set_by='a test' "
            b"ON DUPLICATE KEY UPDATE uri=VALUES(uri)" % (store.name.encode(), str(uri).encode(), b"ab" * 16)
        )

    def __call__(self, cells: Sequence[StoredCell]) -> ColdFile:
        """Replace the bodies of cells of one shard by references to a new file."""
        shard = cells[0].shard
        files, ids = ShardFiles(self.shards, shard), [cell.added_id for cell in cells]
        file = files.list_new("ab" * 16, min(ids), max(ids))
        texts = [exact_text(cell.body, dictionaries=internals_of(self.store).dictionaries)[0] for cell in cells]
        content = content_of(
            [
                ColdCell(
                    cell.added_id,
                    cell.row_key.bytes,
                    cell.column_name,
                    cell.ref_key,
                    bytes(text),
                    cell.created_at.isoformat(" ", "microseconds"),
                )
                for cell, text in zip(cells, texts, strict=True)
            ],
            shard,
        )
        self.target.put(file.name, content.data, "test")
        assert files.publish(file, {"cells": len(cells), "file_bytes": len(content.data), "sha256": content.sha256})
        for cell, text in zip(cells, texts, strict=True):
            body = reference_body(file.file_id, *content.places[cell.added_id], text)
            self.write(shard, cell.added_id, body)
        (listed,) = [each for each in files.all(file_id=file.file_id) if each.generation == file.generation]
        return listed

    def write(self, shard: int, added_id: int, body: bytes) -> None:
        """Replace a body."""
        database = self.shards.database(shard).encode()
        self.shards.execute(
            shard, b"UPDATE `%b`.cell SET body=x'%b' WHERE added_id=%d" % (database, body.hex().encode(), added_id)
        )
