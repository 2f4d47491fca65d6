"""Disk space of documents: as a JSON column, with InnoDB's own compression, and as bodies of this store.

    python benchmarks/packed_disk.py [--documents 7134] [--level 3]

The demo's logbooks go into tables with the columns and keys of a shard's, one table after the other on one private
MySQL server, and each table is rebuilt with ALTER TABLE ... FORCE. Shown for one document: bytes of its file that the
disk has allocated, bytes of the body, and microseconds to load (encoding and the INSERT, 20 rows per statement) and to
read (the SELECT by added_id, 50 rows per statement, and decoding to Python objects). Bodies with a dictionary have one
that was trained on the other half of the aircraft.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pymysql
from pymysql.converters import escape_string

from schemaless.bench.logbooks import documents
from schemaless.cell import JSONDocument
from schemaless.codec.dictionaries import FIRST_ID
from schemaless.codec.envelope import decode_body, encode_body
from schemaless.codec.registry import DEFAULT, PACKED, ZLIB, Codec, codec_named
from schemaless.codec.training import train
from schemaless.local.description import LocalServer
from schemaless.testing.servers import private_servers

TABLE = """
CREATE TABLE {name} (
    added_id BIGINT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY,
    row_key BINARY(16) NOT NULL,
    column_name VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    ref_key BIGINT NOT NULL,
    body {body} NOT NULL,
    created_at DATETIME(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6),
    UNIQUE KEY cell_key (row_key, column_name, ref_key)
) ENGINE=InnoDB {options}
"""
ROWS_WRITTEN = 20
ROWS_READ = 50


@dataclass(frozen=True)
class Way:
    """A way to store documents: a table, and the content of its column.

    Attributes:
        name: label in the output.
        body: the column's type.
        options: options of the table.
        encode: encodes the document of an aircraft, given its tail number.
        decode: the reverse.
    """

    name: str
    body: str
    options: str
    encode: Callable[[str, JSONDocument], bytes]
    decode: Callable[[Any], JSONDocument]


def main() -> None:
    """Print a line for each way."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=int, default=7_134)
    parser.add_argument("--level", type=int, default=3)
    arguments = parser.parse_args()
    logbooks = [(each.tail_number, each.month, each.body) for each in documents(limit=arguments.documents)]
    with private_servers("mysql", 1) as (server,):
        print(f"mysql {server.version}: {len(logbooks):,} logbooks")
        print(f"{'':34}{'on disk':>9}{'body':>9}{'load us':>10}{'read us':>10}")
        for number, way in enumerate(ways(logbooks, arguments.level)):
            measured(server, number, way, logbooks)


def ways(logbooks: Sequence[tuple[str, int, JSONDocument]], level: int) -> list[Way]:
    """Return all of them."""

    def text(tail_number: str, document: JSONDocument) -> bytes:
        return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()

    def ours(codec: Codec) -> Way:
        return Way(codec.name, "MEDIUMBLOB", "", lambda _, document: encode_body(document, codec), decode_body)

    def trained(codec: Codec) -> Way:
        halves: tuple[list[tuple[bytes, bytes]], ...] = ([], [])
        for tail_number, _, document in logbooks:
            halves[_half(tail_number)].append((_row(tail_number).bytes, encode_body(document)))
        codecs = [train(halves[1 - half], codec, values="real").codec for half in (0, 1)]
        dictionaries = [
            each.own_dictionaries.get(FIRST_ID).renumbered(FIRST_ID + half) for half, each in enumerate(codecs)
        ]
        codecs = [replace(each, dictionary=dictionary) for each, dictionary in zip(codecs, dictionaries, strict=True)]
        at_hand = {each.id: each for each in dictionaries}
        return Way(
            f"{codec.name} with a dictionary",
            "MEDIUMBLOB",
            "",
            lambda tail_number, document: encode_body(document, codecs[_half(tail_number)]),
            lambda body: decode_body(body, dictionaries=at_hand),
        )

    zstd = [replace(codec_named(name), level=level) for name in ("msgpack+zstd", "packed+zstd")]
    return [
        Way("JSON column", "JSON", "", text, json.loads),
        Way("ROW_FORMAT=COMPRESSED, 8 KB", "MEDIUMBLOB", "ROW_FORMAT=COMPRESSED KEY_BLOCK_SIZE=8", text, json.loads),
        Way("ROW_FORMAT=COMPRESSED, 4 KB", "MEDIUMBLOB", "ROW_FORMAT=COMPRESSED KEY_BLOCK_SIZE=4", text, json.loads),
        Way("COMPRESSION='zlib'", "MEDIUMBLOB", "COMPRESSION='zlib'", text, json.loads),
        ours(DEFAULT),
        *map(trained, zstd[:1]),
        ours(Codec(PACKED, ZLIB, ZLIB.level)),
        *map(ours, zstd[1:]),
        *map(trained, zstd[1:]),
    ]


def measured(server: LocalServer, number: int, way: Way, logbooks: Sequence[tuple[str, int, JSONDocument]]) -> None:
    """Load a table, rebuild it, read it, and print a line."""
    connection = pymysql.connect(unix_socket=str(server.socket), user="root", charset="utf8mb4", autocommit=True)
    cursor = connection.cursor()
    cursor.execute(f"CREATE DATABASE d{number}")
    cursor.execute(f"USE d{number}")
    cursor.execute(TABLE.format(name="cell", body=way.body, options=way.options))
    introducer = b"_utf8mb4" if way.body == "JSON" else b"_binary"
    size = 0
    started = time.perf_counter()
    for first in range(0, len(logbooks), ROWS_WRITTEN):
        rows = []
        for tail_number, month, document in logbooks[first : first + ROWS_WRITTEN]:
            body = way.encode(tail_number, document)
            size += len(body)
            quoted = escape_string(body.decode("latin-1")).encode("latin-1")
            rows.append(b"(0x%b,'LOG',%d,%b'%b')" % (_row(tail_number).hex.encode(), month, introducer, quoted))
        cursor.execute(b"INSERT INTO cell (row_key, column_name, ref_key, body) VALUES " + b",".join(rows))
    loaded_s = time.perf_counter() - started
    cursor.execute("ALTER TABLE cell FORCE")
    file = (server.data / f"d{number}" / "cell.ibd").stat()
    started = time.perf_counter()
    read = 0
    last = 0
    while rows := _read(cursor, last):
        for _, body in rows:
            way.decode(body)
        read += len(rows)
        last = rows[-1][0]
    read_s = time.perf_counter() - started
    assert read == len(logbooks)
    print(
        f"{way.name:34}{file.st_blocks * 512 / read:>9,.0f}{size / read:>9,.0f}"
        f"{loaded_s / read * 1e6:>10,.0f}{read_s / read * 1e6:>10,.0f}",
        flush=True,
    )
    cursor.execute(f"DROP DATABASE d{number}")
    connection.close()


def _read(cursor: Any, after: int) -> Sequence[tuple[int, Any]]:
    cursor.execute(f"SELECT added_id, body FROM cell WHERE added_id > {after} ORDER BY added_id LIMIT {ROWS_READ}")
    rows: Sequence[tuple[int, Any]] = cursor.fetchall()
    return rows


def _half(tail_number: str) -> int:
    return hashlib.sha256(tail_number.encode()).digest()[0] % 2


def _row(tail_number: str) -> uuid.UUID:
    return uuid.uuid5(uuid.NAMESPACE_OID, tail_number)


if __name__ == "__main__":
    main()
