"""An independent client (PyMySQL, zlib, msgpack), the library and an in-memory model agree on every cell."""

from __future__ import annotations

import itertools
import json
import random
import uuid
import zlib
from typing import Any

import msgpack
import pymysql
import pytest

from schemaless import CellConflict, NewCell
from tests.promotion import sql

pytestmark = [pytest.mark.mysql, pytest.mark.twice, pytest.mark.myrocks]

SHARDS = 4
COLUMNS = ("BASE", "STATUS")
Key = tuple[uuid.UUID, str, int]


def encode(document: Any) -> bytes:
    """Encode a document as codec/FORMAT.md has it: MessagePack, with zlib if that is smaller, and a CRC-32."""
    payload = msgpack.packb(document)
    small = zlib.compress(payload, 6)
    head, rest = (b"\xc1\x11", small) if len(small) < len(payload) >= 64 else (b"\xc1\x10", payload)
    return head + rest + zlib.crc32(head + rest).to_bytes(4, "big")


def decode(body: bytes) -> Any:
    """Decode a body in the default codec, or bare JSON text."""
    if body[:1] != b"\xc1":
        return json.loads(body.decode())
    assert zlib.crc32(body[:-4]).to_bytes(4, "big") == body[-4:]
    payload = {0x11: zlib.decompress, 0x10: bytes}[body[1]](body[2:-4])
    return msgpack.unpackb(payload, strict_map_key=True)


def documents(chosen: random.Random) -> Any:
    """Yield documents of many shapes and lengths."""
    for number in itertools.count():
        yield {
            "n": number,
            "text": "é'\\\0\n😀"[: number % 6] + "x" * chosen.choice((0, 10, 300, 5_000)),
            "values": [None, True, 1.5, -(2**63), 2**64 - 1, {"": []}][: number % 7],
        }


class Independent:
    """Reads and writes cells of a datastore by SQL."""

    def __init__(self, servers: list[Any], name: str) -> None:
        self.connections = [
            pymysql.connect(unix_socket=str(server.socket), user="root", autocommit=True, ssl_disabled=True)
            for server in servers
        ]
        self.homes = {
            shard: next(
                at for at, server in enumerate(servers) if sql(server, f"SHOW DATABASES LIKE '{name}_{shard:04}'")
            )
            for shard in range(SHARDS)
        }
        self.name = name

    def run(self, shard: int, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        """Run a statement on a shard's table and return its rows."""
        with self.connections[self.homes[shard]].cursor() as cursor:
            cursor.execute(statement.format(f"`{self.name}_{shard:04}`.cell"), values)
            return list(cursor.fetchall())

    def put(self, key: Key, body: bytes) -> None:
        """Write a cell, as another program of this format would."""
        shard = zlib.crc32(key[0].bytes) % SHARDS
        statement = "INSERT INTO {} (row_key, column_name, ref_key, body) VALUES (_binary %s, %s, %s, _binary %s)"
        self.run(shard, statement, key[0].bytes, key[1], key[2], body)

    def cells(self) -> dict[int, list[tuple[int, Key, Any]]]:
        """Return added_id, key and document of the cells of each shard, in order."""
        statement = "SELECT added_id, row_key, column_name, ref_key, body FROM {} ORDER BY added_id"
        return {
            shard: [
                (added_id, (uuid.UUID(bytes=row), column, ref_key), decode(body))
                for added_id, row, column, ref_key, body in self.run(shard, statement)
            ]
            for shard in range(SHARDS)
        }


@pytest.mark.guarantee("myrocks-format")
def test_the_store_agrees_with_an_independent_client(fresh_store, tail_store, servers, new_row):
    """Each reads what the other one wrote, by key, by row, by version and in order."""
    chosen = random.Random(454)
    other = Independent(servers, fresh_store.name)
    bodies = documents(chosen)
    model: dict[Key, Any] = {}
    ids: dict[Key, int] = {}
    for row in [new_row() for _ in range(15)]:
        keys = [(row, column, n) for column in COLUMNS for n in sorted(chosen.sample(range(9), 3))]
        model.update({key: next(bodies) for key in keys})
        first, second, *rest = keys
        put = fresh_store.put_cell(*first, model[first])
        ids[first] = put.added_id
        other.put(second, encode(model[second]))
        other.put(rest[0], json.dumps(model[rest[0]]).encode())
        batch = fresh_store.put_cells([NewCell(*key, model[key]) for key in keys[1:]])
        assert [each.created for each in batch] == [False, False, True, True, True]
        ids.update({key: each.added_id for key, each in zip(keys[1:], batch, strict=True)})
        assert put.created
        with pytest.raises(CellConflict) as conflict:
            fresh_store.put_cell(*second, {"another": 1})
        assert conflict.value.stored.body == model[second]

    stored = other.cells()
    assert {key: document for cells in stored.values() for _, key, document in cells} == model
    assert {key: added_id for cells in stored.values() for added_id, key, _ in cells} == ids
    for shard, cells in stored.items():
        assert {zlib.crc32(key[0].bytes) % SHARDS for _, key, _ in cells} == {shard}
        fed = [
            (cell.added_id, (cell.row_key, cell.column_name, cell.ref_key), cell.body)
            for cell in tail_store.iter_shard(shard)
        ]
        assert fed == cells
    for key, document in model.items():
        cell = fresh_store.get_cell(*key)
        assert (cell.added_id, cell.body) == (ids[key], document)
    for row, column in {key[:2] for key in model}:
        versions = sorted(key[2] for key in model if key[:2] == (row, column))
        latest = fresh_store.get_cell_latest(row, column)
        assert (latest.ref_key, latest.body) == (versions[-1], model[row, column, versions[-1]])
        assert [cell.ref_key for cell in fresh_store.get_versions(row, column)] == versions[::-1]
        assert fresh_store.get_row(row)[column] == latest
        assert fresh_store.get_cell(row, column, 99) is None
