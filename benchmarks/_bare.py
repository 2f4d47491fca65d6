"""One side of ``benchmarks/store.py``: the loop that a careful user of PyMySQL would write without this library.

One autocommit connection per server with one cursor, the shard computed from the row_key, and one multi-row INSERT for
each shard's part of a batch. Statements have the library's text, built as bytes (PyMySQL's own parameters would send a
body as hex digits, twice as long). No retries, no checks, no error messages.
"""

from __future__ import annotations

import uuid
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import msgpack
import pymysql

from schemaless.base.keys import shard_database
from schemaless.topology.model import Topology
from schemaless.wire.node import Node

Given = tuple[uuid.UUID, str, int, Any]
"""A cell to write: row_key, column_name, ref_key, and the document or its bytes."""

_COLUMNS = b"added_id, row_key, column_name, ref_key, body, created_at"


class Bare:
    """Connections to the servers of a datastore; for one thread.

    Args:
        topology: where the shards are.
        account: user name and password.
        encoding: whether bodies are documents (encoded here) or bytes.
        page: rows per page of a scan.
    """

    def __init__(self, topology: Topology, account: tuple[str | None, str | None], encoding: bool, page: int) -> None:
        nodes = [topology.cluster_of(shard).primary for shard in range(topology.shard_count)]
        self._given = topology, account, encoding, page
        self._connections = {node: connect(node, *account) for node in dict.fromkeys(nodes)}
        cursors = {node: connection.cursor() for node, connection in self._connections.items()}
        self._cursors = [cursors[node] for node in nodes]
        databases = [shard_database(topology.name, shard) for shard in range(topology.shard_count)]
        self._tables = [b"`%b`.cell" % database.encode() for database in databases]
        self._encoding = encoding
        self._page = page

    def another(self) -> Bare:
        """Return a copy with its own connections, for another thread."""
        return Bare(*self._given)

    def close(self) -> None:
        """Close the connections."""
        for connection in self._connections.values():
            connection.close()

    def put(self, cells: Sequence[Given]) -> None:
        """Write a batch: one statement, and so one transaction, for each shard."""
        by_shard: dict[int, list[bytes]] = {}
        for row_key, column, ref_key, body in cells:
            if self._encoding:
                body = zlib.compress(msgpack.packb(body), 6)
            escaped = body.replace(b"\\", b"\\\\").replace(b"'", b"\\'")
            by_shard.setdefault(self._shard(row_key), []).append(
                b"(x'%b','%b',%d,_binary'%b')" % (row_key.bytes.hex().encode(), column.encode(), ref_key, escaped)
            )
        for shard, values in by_shard.items():
            self._cursors[shard].execute(
                b"INSERT INTO %b (row_key,column_name,ref_key,body) VALUES %b"
                % (self._tables[shard], b",".join(values))
            )

    def put_one(self, cell: Given) -> None:
        """Write one cell."""
        self.put([cell])

    def latest(self, key: tuple[uuid.UUID, str]) -> Any:
        """Read one cell."""
        shard = self._shard(key[0])
        return self._read(shard, self._select_latest(shard, key))[0]

    def latest_of_many(self, keys: Sequence[tuple[uuid.UUID, str]]) -> list[Any]:
        """Read many cells, with one statement a shard."""
        by_shard: dict[int, list[bytes]] = {}
        for key in keys:
            shard = self._shard(key[0])
            by_shard.setdefault(shard, []).append(self._select_latest(shard, key))
        found: list[Any] = []
        for shard, parts in by_shard.items():
            found += self._read(shard, b"(" + b") UNION ALL (".join(parts) + b")")
        return found

    def row(self, row_key: uuid.UUID) -> list[Any]:
        """Read the latest cell of each column of a row."""
        shard = self._shard(row_key)
        key, table = row_key.bytes.hex().encode(), self._tables[shard]
        return self._read(
            shard,
            b"SELECT c.added_id, c.row_key, c.column_name, c.ref_key, c.body, c.created_at FROM "
            b"(SELECT column_name, MAX(ref_key) AS ref_key FROM %b FORCE INDEX (cell_key) WHERE row_key=x'%b' "
            b"GROUP BY column_name) AS latest STRAIGHT_JOIN %b AS c FORCE INDEX (cell_key) "
            b"ON c.row_key=x'%b' AND c.column_name=latest.column_name AND c.ref_key=latest.ref_key "
            b"ORDER BY c.column_name" % (table, key, table, key),
        )

    def scan(self, shard: int) -> Iterator[Any]:
        """Read a shard, page by page."""
        after = 0
        while True:
            rows = self._read(
                shard,
                b"SELECT %b FROM %b WHERE added_id>%d ORDER BY added_id LIMIT %d"
                % (_COLUMNS, self._tables[shard], after, self._page),
            )
            yield from rows
            if len(rows) < self._page:
                return
            after = rows[-1][0]

    def drop(self, databases: Sequence[str]) -> None:
        """Remove databases from every server."""
        for connection in self._connections.values():
            for database in databases:
                connection.query(f"DROP DATABASE IF EXISTS `{database}`")

    def _shard(self, row_key: uuid.UUID) -> int:
        return zlib.crc32(row_key.bytes) % len(self._tables)

    def _select_latest(self, shard: int, key: tuple[uuid.UUID, str]) -> bytes:
        return (
            b"SELECT %b FROM %b FORCE INDEX (cell_key) WHERE row_key=x'%b' AND column_name='%b' "
            b"ORDER BY ref_key DESC LIMIT 1"
            % (_COLUMNS, self._tables[shard], key[0].bytes.hex().encode(), key[1].encode())
        )

    def _read(self, shard: int, sql: bytes) -> Sequence[Any]:
        cursor = self._cursors[shard]
        cursor.execute(sql)
        rows: Sequence[Any] = cursor.fetchall()
        if self._encoding:
            return [(*row[:4], msgpack.unpackb(zlib.decompress(row[4])), row[5]) for row in rows]
        return rows


def connect(node: Node, username: str | None, password: str | None) -> Any:
    """Return a new autocommit connection."""
    return pymysql.connect(
        host=node.host or "localhost",
        port=node.port or 3306,
        unix_socket=node.socket,
        user=username,
        password=password or "",
        charset="utf8mb4",
        autocommit=True,
        ssl_disabled=node.socket is not None,  # as in the library
    )
