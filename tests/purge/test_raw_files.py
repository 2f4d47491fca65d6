"""What servers' files hold of an erased body: found byte by byte, and gone once the files are purged."""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from schemaless.admin.create import create
from schemaless.cell import NewStoredCell
from schemaless.datastore import Datastore
from schemaless.errors import InvalidInput
from schemaless.failover.nodes import add_replica
from schemaless.local.description import LocalServer
from schemaless.opening import connect
from schemaless.purge.datastore import purge_datastore
from schemaless.purge.files import folders_of, kind_of, search_files
from schemaless.testing.servers import private_servers
from schemaless.wire.connection import Connection
from schemaless.wire.pool import NodePool, PoolOptions
from schemaless.wire.urls import parse_url

MARKER = b"Quackenbosch-7f3a9c"


@pytest.fixture
def server(flavour: str) -> Iterator[LocalServer]:
    """A server with a replica, for the test alone: its binary logs are deleted."""
    # Small redo logs: to resize one takes its whole length.
    options = {"loose-innodb-redo-log-capacity": "32M"} if flavour == "mysql" else {"innodb-log-file-size": "32M"}
    with private_servers(flavour, 1, options, replicas=1) as (primary,):
        yield primary


def root_of(server: LocalServer) -> NodePool:
    url = parse_url(server.url)
    return NodePool(url.node, url.credentials, PoolOptions())


def fill(store: Datastore) -> None:
    """Put legacy bodies of 40 bytes to 20 KB, so in pages and beside them; one in five has the marker."""
    drawn = random.Random(1)
    store.put_stored_cells(
        NewStoredCell(
            uuid.uuid5(uuid.NAMESPACE_OID, str(number)),
            "BASE",
            1,
            b'["%b", "%b"]'
            % (MARKER if number % 5 == 0 else b"x", drawn.randbytes(5 if number % 3 else 10_000).hex().encode()),
        )
        for number in range(300)
    )


def bodies(store: Datastore) -> dict[uuid.UUID, bytes]:
    return {cell.row_key: cell.body for cell in store.scan_shard(0)}


def replace_marked(connection: Connection) -> None:
    connection.execute(b"UPDATE raw_0000.cell SET body='0' WHERE body LIKE '%%%b%%'" % MARKER)


def flush(connection: Connection) -> None:
    """Write pages and undo logs to the disk, as the server does in time."""
    connection.execute(b"FLUSH TABLES raw_0000.cell FOR EXPORT")
    connection.execute(b"UNLOCK TABLES")


@pytest.mark.long
def test_nothing_is_left_of_a_replaced_body_after_a_purge(server: LocalServer) -> None:
    """Tables, undo and redo logs, binary and relay logs held it before; other cells are as they were."""
    primary, *_ = pools = [root_of(each) for each in (server, *server.replicas)]
    folders = [folder for pool in pools for folder in folders_of(pool) or ()]
    url = create("raw", 1, [server.url])
    for each in server.replicas:
        add_replica(url, "cluster-1", each.url)
    with connect(url) as store:
        fill(store)
        before = bodies(store)
        with primary.connection() as reader, reader.whole():
            # An open snapshot keeps the old rows in the undo logs.
            reader.execute(b"START TRANSACTION WITH CONSISTENT SNAPSHOT")
            reader.rows(b"SELECT COUNT(*) FROM raw_0000.cell")
            primary.run(replace_marked)
            primary.run(flush)
            held = {match.kind for match in search_files(folders, [MARKER])}
            reader.execute(b"ROLLBACK")
        assert purge_datastore(store) == sorted(folders)

        assert {"redo log", "binary log", "relay log"} < held
        assert held & {"data file", "undo tablespace", "system tablespace", "doublewrite file"}
        assert search_files(folders, [MARKER]) == []
        after = bodies(store)
        assert {key: body for key, body in after.items() if body != b"0"} == {
            key: body for key, body in before.items() if MARKER not in body
        }
        assert len(after) == len(before)
    for pool in pools:
        pool.close()


def test_a_search_counts_each_match_once_whatever_the_chunks(tmp_path: Path) -> None:
    """Matches that cross a chunk, overlap or are of several lengths are found as in the whole file."""
    drawn = random.Random(2)
    needles = [b"abab", b"babab", b"aaaaaaa"]
    for number, chunk in enumerate((1, 3, 4, 7, 64, 1_000)):
        content = bytes(drawn.choices(b"ab", k=600))
        path = tmp_path / f"{number}.ibd"
        path.write_bytes(content)
        found = {
            match.needle: (match.occurrences, match.offset)
            for match in search_files([tmp_path], needles, chunk_bytes=chunk)
        }
        positions = {needle: [at for at in range(len(content)) if content.startswith(needle, at)] for needle in needles}
        assert found == {needle: (len(at), at[0]) for needle, at in positions.items() if at}
        path.unlink()
    with pytest.raises(InvalidInput, match="at least 4 bytes"):
        search_files([tmp_path], [b"abc"])


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("cell.ibd", "data file"),
        ("ibdata1", "system tablespace"),
        ("undo_001", "undo tablespace"),
        ("spare.ibu", "undo tablespace"),
        ("#ib_redo12_tmp", "redo log"),
        ("ib_logfile0", "redo log"),
        ("#ib_16384_0.dblwr", "doublewrite file"),
        ("binlog.000012", "binary log"),
        ("relay.000002", "relay log"),
        ("mysqld-relay-bin.000002", "relay log"),
        ("ibtmp1", "temporary file"),
        ("error.log", "log"),
        ("auto.cnf", "other file"),
    ],
)
def test_files_are_told_apart_by_name(name: str, kind: str) -> None:
    """The receipt says in which kind of file something was found."""
    assert kind_of(Path(name)) == kind


def test_a_server_on_another_machine_is_refused(fresh_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its files cannot be read here, so nothing is purged at all."""
    url = parse_url("mysql://root@db-1:3306/trips")
    assert folders_of(NodePool(url.node, url.credentials, PoolOptions())) is None
    monkeypatch.setattr("schemaless.purge.datastore.folders_of", lambda pool: None)
    with connect(fresh_url) as store, pytest.raises(InvalidInput, match="Nothing was purged"):
        purge_datastore(store)
