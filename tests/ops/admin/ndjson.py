"""Shared by the tests of load and dump: difficult lines, and keys for them."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from typing import Any

from schemaless import Datastore
from schemaless.base.keys import row_key_for
from schemaless.cell import CellKey, StoredCell
from schemaless.ops.admin import ndjson as loading
from schemaless.store.internals import internals_of
from schemaless.topology.shards import Shards

KEPT_AS_TEXT = [
    b'{"a": 1, "a": 2, "pad": "' + b"x" * 100 + b'"}',
    b'{"n": 123456789012345678901234567890, "pad": "' + b"x" * 100 + b'"}',
    b'[1e999, "' + b"x" * 100 + b'"]',
    b'{"s": "\\ud800", "pad": "' + b"x" * 100 + b'"}',
]


PLAIN = [
    b'{ "b" : 1.50,\t"a": [1e2, -0.0, true, null] , "text": "' + b"long enough to be compressed " * 5 + b'" }',
    b"[NaN, Infinity, -Infinity]",
    b'"just text \\u00e9 \xc3\xa9"',
    b"0",
    b"null",
]


LINES = PLAIN + KEPT_AS_TEXT


def by_field(document: Any, line: bytes, number: int) -> CellKey:
    """Use the "id" of a document as its row_key."""
    return CellKey(row_key_for(document["id"]), "DOC", document.get("ref_key", 1))


def numbered(first: int, count: int, text: str = "some text") -> list[bytes]:
    """Return lines with ids for ``by_field``."""
    return [json.dumps({"id": f"n{number}", "text": text}).encode() for number in range(first, first + count)]


def bodies(store: Datastore) -> dict[CellKey, bytes]:
    """Return the stored bytes of all cells by key."""
    return {cell.key: cell.body for cell in everything(store)}


def everything(store: Datastore) -> Iterator[StoredCell]:
    return loading.iter_dump(store, range(store.shard_count), None)


def ids(store: Datastore, shard: int) -> list[int]:
    return [cell.added_id for cell in store.scan_shard(shard)]


def put_raw(store: Datastore, shards: Shards, row: uuid.UUID, body: bytes) -> None:
    """Store bytes that the library would reject."""
    shard = store.shard_of(row)
    shards.execute(
        shard,
        b"INSERT INTO `%b`.cell (row_key, column_name, ref_key, body) VALUES (x'%b', 'DOC', 1, x'%b')"
        % (internals_of(store).shards.database(shard).encode(), row.hex.encode(), body.hex().encode()),
    )
