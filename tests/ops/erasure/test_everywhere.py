"""Documents that came into a datastore on every path, each with a marker of its own, and were then erased.

Afterwards no marker is found by reading, in a dump or in archives. After a rebuild, without binary logs and after a
restart, a search of the files of primaries, replicas and the cluster that a shard has left finds markers only in logs
and buffers that the receipt names. Control: the same search finds each marker before the step that removes it.
"""

from __future__ import annotations

import json
import random
import re
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import schemaless
from schemaless.cli.main import run as command
from schemaless.codec.envelope import is_erased
from schemaless.local import servers as local
from schemaless.local.description import LocalServer
from schemaless.local.processes import wait_gone
from schemaless.local.rocksdb import CF_OPTIONS
from schemaless.ops.admin.indexes import indexes_of
from schemaless.ops.admin.ndjson import dump_lines, iter_dump
from schemaless.ops.erasure.copies import wait_for_replicas
from schemaless.ops.failover.clusters import add_cluster
from schemaless.ops.failover.nodes import add_replica
from schemaless.ops.migrate import rebuild
from schemaless.ops.migrate import run as migrate
from schemaless.ops.migrate.archive_files import archive_files, read_archive
from schemaless.ops.migrate.spec import MigrateSpec
from schemaless.ops.move import run as moves
from schemaless.ops.move.spec import MoveSpec
from schemaless.schema.sql import COMPACT
from schemaless.store.followers.worker import Worker
from schemaless.store.indexes.definition import define
from schemaless.store.internals import internals_of
from schemaless.store.triggers.calling import Calls
from schemaless.store.triggers.supervision import prepare
from schemaless.testing.servers import private_servers
from schemaless.wire.connection import Connection
from schemaless.wire.pool import NodePool, PoolOptions
from schemaless.wire.urls import parse_url
from tests.promotion import sql
from tests.store.followers.workers import CALM, turn

SEED = b"sesame-7f3a9c"
"""Beginning of every marker."""

COUNTS = {
    **dict.fromkeys(("put", "batch", "append", "load", "index", "parked", "archive", "moved"), 2),
    "legacy": 30,
    "packed": 300,
    "kept": 30,
}
"""Number of rows of each path; those of the last one are not erased."""

Rows = dict[str, list[uuid.UUID]]

_KINDS = (
    (r".*\.dblwr", "doublewrite file"),
    (r"#ib_redo\d+(_tmp)?|ib_logfile\d+", "redo log"),
    (r"undo_?\d+|.*\.ibu", "undo tablespace"),
    (r"ibdata\d+", "system tablespace"),
    (r"ibtmp\d+|temp_\d+\.ibt|#sql.*|ML.*", "temporary file"),
    (r"\d{6,}\.log", "write-ahead log"),
    (r".*relay.*\.\d{6}", "relay log"),
    (r".*\.\d{6}", "binary log"),
    (r".*\.(ibd|sst)", "data file"),
)
REUSED = {"redo log", "undo tablespace", "doublewrite file", "system tablespace"}
"""Kinds of files of which a server reuses parts in time; MariaDB's system tablespace has the undo logs."""


class FileMatch(NamedTuple):
    """A server's file with a marker."""

    path: Path
    kind: str


def marker(path: str) -> str:
    return f"{SEED.decode()}-{path}@example.org"


@pytest.fixture
def clusters(flavour: str, server_kind: str) -> Iterator[tuple[LocalServer, LocalServer]]:
    """A server with a replica, and another server; for the test alone, since their binary logs are deleted."""
    # Blocks of MyRocks are not compressed, for the search.
    uncompressed = {"rocksdb-default-cf-options": CF_OPTIONS.replace("kZSTD", "kNoCompression")}
    options = uncompressed if server_kind == "myrocks" else {}
    with ExitStack() as stack:
        (first,) = stack.enter_context(private_servers(flavour, 1, options, replicas=1))
        (second,) = stack.enter_context(private_servers(flavour, 1, options))
        yield first, second


def rows_for(store: schemaless.Datastore) -> Rows:
    """Return rows for each path, all in shard 0 but those of the shard that moves, which has a parked cell, too."""
    rows: dict[int, list[uuid.UUID]] = {0: [], 1: []}
    for number in range(2_000):
        row = uuid.uuid5(uuid.NAMESPACE_OID, f"everywhere {number}")
        rows[store.shard_of(row)].append(row)
    of_shard = {shard: iter(found) for shard, found in rows.items()}
    found = {path: list(islice(of_shard[int(path == "moved")], count)) for path, count in COUNTS.items()}
    found["parked"][1] = next(of_shard[1])
    return found


def leg(drawn: random.Random) -> dict[str, Any]:
    names = ("departure_airport", "arrival_airport", "scheduled_minutes", "delay_minutes", "aircraft_registration")
    return {name: drawn.randrange(10_000) for name in names}


def write(store: schemaless.Datastore, url: str, rows: Rows, folder: Path) -> bytes:
    """Write the rows of each path; return stored bytes of a document that was compressed with a dictionary."""

    def cells(path: str, column: str = "BASE") -> list[schemaless.NewCell]:
        return [schemaless.NewCell(row, column, 1, {"who": marker(path), "n": n}) for n, row in enumerate(rows[path])]

    def legacy(path: str, column: str) -> None:
        sizes, drawn = (5, 9_000, 100), random.Random(1)  # in pages, and beside them
        texts = [
            json.dumps([marker(path), drawn.randbytes(sizes[number % 3]).hex()]).encode()
            for number in range(len(rows[path]))
        ]
        pairs = zip(rows[path], texts, strict=True)
        store.put_stored_cells([schemaless.NewStoredCell(row, column, 1, text) for row, text in pairs])

    for path in ("put", "index", "parked", "moved"):
        for cell in cells(path, "PARKED" if path == "parked" else "BASE"):
            store.put_cell(cell.row_key, cell.column_name, 1, cell.body, codec="msgpack+none")
    store.put_cells(cells("batch"))
    for row in rows["append"]:
        store.append_cell(row, "BASE", {"who": marker("append")})
    lines = [json.dumps({"id": str(row), "who": marker("load")}) for row in rows["load"]]
    (folder / "load.ndjson").write_text("\n".join(lines))
    assert command(["load", str(folder / "load.ndjson"), "--column", "BASE", "--row-key", "id"]) == 0
    legacy("legacy", "LEGACY")
    legacy("kept", "LEGACY")
    legacy("archive", "ARCHIVED")
    migrate.run(store, MigrateSpec(columns=("ARCHIVED",), archive=str(folder / "originals")))

    drawn = random.Random(2)
    *samples, last = (
        schemaless.NewCell(row, "PACKED", 1, {"passenger": marker("packed"), "legs": [leg(drawn) for _ in range(4)]})
        for row in rows["packed"]
    )
    store.put_cells(samples)
    assert command(["codec", "train", "--column", "PACKED", "--to", "packed+zstd", "--seed", "7"]) == 0
    (number,) = internals_of(store).dictionary_replicas.catalog.rows()
    assert command(["codec", "set", "--column", "PACKED", "packed+zstd", "--dictionary", str(number)]) == 0
    with schemaless.connect(url) as again:
        again.put_cells([last])
    body = next(store.get_stored_versions(last.row_key, "PACKED")).body
    assert SEED not in body
    return body


def found_by_reading(store: schemaless.Datastore, rows: Rows) -> set[str]:
    """Return the paths whose documents are in a dump or in rows that are read."""
    lines = dump_lines(store, iter_dump(store, range(store.shard_count), None), stored=False)
    read = b"\n".join(line for _, line in lines)
    read += repr([store.get_row(row) for of_path in rows.values() for row in of_path]).encode()
    return {path for path in rows if marker(path).encode() in read}


def found_in_followers(store: schemaless.Datastore) -> set[str]:
    """Return what followers have kept of documents: entries of the index, and errors of parked cells."""
    shards = internals_of(store).shards
    texts = repr(
        [
            shards.rows(shard, f"SELECT {column} FROM `{shards.database(shard)}`.{table}".encode())
            for shard in range(store.shard_count)
            for column, table in (("error", "parked"), ("message", "follower"), ("who", "index_1"))
        ]
    )
    return {path for path in COUNTS if marker(path) in texts}


def found_in_archive(folder: Path) -> bool:
    originals = [cell.body for file in archive_files(folder) for cell in read_archive(file)]
    assert originals
    return any(SEED in body for body in originals)


def found_in_files(folders: list[Path], needles: dict[str, bytes]) -> dict[str, list[FileMatch]]:
    """Return the files that have the marker of each path; paths without any are left out."""
    found: dict[str, list[FileMatch]] = {}
    for file in sorted(file for folder in folders for file in folder.rglob("*") if file.is_file()):
        kind = next((kind for pattern, kind in _KINDS if re.fullmatch(pattern, file.name)), "other file")
        try:
            content = file.read_bytes()
        except FileNotFoundError:  # the server has removed it just now
            continue
        for path, needle in needles.items():
            if needle in content:
                found.setdefault(path, []).append(FileMatch(file, kind))
    return found


def rebuild_and_restart(
    store: schemaless.Datastore, primaries: list[LocalServer], eventually: Callable[..., None], *, rocksdb: bool
) -> None:
    """Do what an operator does to make the files forget: rebuild tables, delete binary logs, restart."""
    for primary in primaries:
        tables = sql(
            primary,
            "SELECT TABLE_SCHEMA, TABLE_NAME FROM information_schema.TABLES "
            "WHERE TABLE_SCHEMA LIKE 'every%' AND ENGINE='InnoDB'",
        )
        sql(primary, *(f"ALTER TABLE `{database}`.`{table}` FORCE" for database, table in tables))
    for cluster in internals_of(store).topology.clusters:
        assert wait_for_replicas(internals_of(store), cluster.name, lambda: None, 120) == []
    servers = [each for primary in primaries for each in (primary, *primary.replicas)]

    def purged(server: LocalServer) -> bool:
        # MariaDB keeps a log for a moment, for its own recovery.
        *_, last = sql(server, "SHOW BINARY LOGS")
        return len(sql(server, f"PURGE BINARY LOGS TO '{last[0]}'", "SHOW BINARY LOGS")) == 1

    for server in servers:
        sql(server, "FLUSH BINARY LOGS")
    for server in servers:
        eventually(lambda: purged(server), "earlier binary logs are deleted")  # noqa: B023
        sql(server, "SET GLOBAL innodb_fast_shutdown=0", "SHUTDOWN")
        assert wait_gone(server.pid, server.data, 300)
    for server in servers:
        local.start(server)
        if rocksdb:
            sql(server, *(statement.decode() for statement in COMPACT))


def flush(pool: NodePool, *, rocksdb: bool) -> None:
    """Write pages to the disk, as the server does in time."""

    def operation(connection: Connection) -> None:
        statement = (
            b"SELECT TABLE_SCHEMA, TABLE_NAME FROM information_schema.TABLES "
            b"WHERE TABLE_SCHEMA LIKE 'every%' AND ENGINE='InnoDB'"
        )
        for database, table in connection.rows(statement):
            connection.execute(f"FLUSH TABLES {database}.{table} FOR EXPORT".encode())
            connection.execute(b"UNLOCK TABLES")
        if rocksdb:
            connection.execute(b"SET GLOBAL rocksdb_force_flush_memtable_now=1")

    pool.run(operation)


def follow(worker: Worker) -> None:
    for lease in worker.leases.held.values():
        lease.wait.until_s = lease.erasure_wait.until_s = 0.0
    turn(worker)


@pytest.mark.guarantee("replaced-bytes")
@pytest.mark.innodb("files of MyRocks are compressed")
def test_a_rebuilt_table_holds_no_replaced_body(fresh_store, migrate_store, erase_store, move_url, by_hand, new_row):
    """Neither of an erasure nor of a migration, whether it was in a page of its own; before, its bytes are there."""
    shards, drawn = by_hand(fresh_store), random.Random(1)
    rows = [row for row in islice(iter(new_row, None), 200) if fresh_store.shard_of(row) == 0][:20]
    database, pool = shards.database(0), shards.pool_for(shards.topology.cluster_of(0).primary)
    ((folder,),) = pool.rows(b"SELECT @@datadir")
    file = Path(str(folder)) / database / "cell.ibd"
    if not file.exists():
        pytest.skip("the server's files are on another machine")
    texts = [json.dumps([marker(f"r{n}"), drawn.randbytes((5, 9_000)[n % 2]).hex()]) for n in range(len(rows))]
    fresh_store.put_stored_cells(
        [schemaless.NewStoredCell(row, "BASE", 1, text.encode()) for row, text in zip(rows, texts, strict=True)]
    )

    def found() -> set[int]:
        """Return the numbers of the documents whose stored bytes are in the table's file."""

        def written(connection: Connection) -> bytes:
            with connection.whole():
                connection.execute(f"FLUSH TABLES {database}.cell FOR EXPORT".encode())
                try:
                    return file.read_bytes()
                finally:
                    connection.execute(b"UNLOCK TABLES")

        content = pool.run(written)
        # A large body is in several pages.
        return {number for number, text in enumerate(texts) if text[:60].encode() in content}

    assert found() == {*range(len(rows))}
    erase_store.erase_many(rows[:10], reason="gdpr-art-17")
    migrate.run(migrate_store, shards=[0])
    assert found() != set()
    with schemaless.connect(move_url) as store:
        rebuild.run(store, shards=[0])
    assert found() == set()
    assert [fresh_store.get_cell(row, "BASE", 1).body for row in rows[10:]] == [*map(json.loads, texts[10:])]


@pytest.mark.long
@pytest.mark.guarantee("replaced-bytes")
@pytest.mark.myrocks
def test_no_trace_of_erased_documents_is_left_on_any_path(clusters, server_kind, tmp_path, monkeypatch, eventually):
    """Erased, and files searched byte by byte; what was not erased is as it was, and the search still finds it."""
    first, second = clusters
    url = schemaless.create("every", 2, [first.url])
    add_replica(url, "cluster-1", first.replicas[0].url)
    add_cluster(url, second.url)
    monkeypatch.setenv("SCHEMALESS_URL", url)
    pools = [root_of(server) for server in (first, *first.replicas, second)]
    folders = [server.data for server in (first, *first.replicas, second)]
    rocksdb = server_kind == "myrocks"

    @schemaless.trigger(column="PARKED", start="beginning", attempts=1)
    def keep(cell, call):
        raise ValueError(cell.body["who"])

    with ExitStack() as stack:
        store = stack.enter_context(schemaless.connect(url))
        rows = rows_for(store)
        indexes = indexes_of(store)
        indexes.create(define("people", "BASE.n:int", ["BASE.who:text(60)"]))
        packed = write(store, url, rows, tmp_path)
        needles = {path: packed[20:44] if path == "packed" else marker(path).encode() for path in rows}
        prepare(store, keep)
        access = internals_of(store).follower_access
        handlers = [*indexes.handlers(), Calls(keep, store)]
        worker = Worker(access, handlers, "one", timing=CALM, stop=threading.Event(), listen=False)
        stack.enter_context(worker.membership)
        follow(worker)
        moves.run(store, MoveSpec("cluster-2", accounts=False), [1])
        follow(worker)
        before = bodies(store)
        assert wait_for_replicas(internals_of(store), "cluster-1", lambda: None, 120) == []
        for pool in pools:
            flush(pool, rocksdb=rocksdb)

        # The controls: every path is found before it is erased, in the files that belong to it.
        assert found_by_reading(store, rows) == {*rows}
        assert found_in_followers(store) >= {"index", "parked"}
        assert found_in_archive(tmp_path / "originals")
        held = found_in_files(folders, needles)
        cells = r"\d+\.sst" if rocksdb else r"cell\.ibd"
        of_cluster_1 = folders[: len(first.replicas) + 1]
        for path in rows.keys() - {"moved"}:
            assert [is_in(held[path], folder, cells) for folder in of_cluster_1] == [True, True], path
        for folder in of_cluster_1:
            assert is_in(held["parked"], folder, r"parked\.ibd")
            assert is_in(held["moved"], folder, r"\d+\.sst" if rocksdb else r"cell_moved_\w+\.ibd")
        assert is_in(held["moved"], folders[-1], cells)
        assert any(is_in(held["index"], folder, r"\d+\.sst" if rocksdb else r"index_1\.ibd") for folder in folders)

        keys = [str(row) for path, of_path in rows.items() if path != "kept" for row in of_path]
        (tmp_path / "keys").write_text("\n".join(keys))
        reader = stack.enter_context(pools[0].connection())
        with reader.whole():
            # An open snapshot keeps the old rows in the undo logs, and in files of MyRocks.
            reader.execute(b"START TRANSACTION WITH CONSISTENT SNAPSHOT")
            reader.rows(b"SELECT COUNT(*) FROM every_0000.cell")
            assert command(["erase", "run", "--keys", str(tmp_path / "keys"), "--reason", "gdpr", "--execute"]) == 0
            follow(worker)
            for pool in pools:
                flush(pool, rocksdb=rocksdb)
            kinds = {match.kind for match in found_in_files(folders, {"legacy": needles["legacy"]})["legacy"]}
            reader.execute(b"ROLLBACK")
        assert kinds >= {"binary log", "relay log", "data file" if rocksdb else "redo log"}
        assert kinds & {"data file", "undo tablespace", "system tablespace", "doublewrite file"}
        assert found_by_reading(store, rows) == {"kept"}
        assert found_in_followers(store) == set()
        assert found_in_archive(tmp_path / "originals")
        assert command(["erase", "archive", str(tmp_path / "originals"), "--execute"]) == 0
        assert not found_in_archive(tmp_path / "originals")
        assert command(["erase", "verify", "1"]) == 0

        assert command(["rebuild", "--execute"]) == 0
        rebuild_and_restart(store, [first, second], eventually, rocksdb=rocksdb)
    left = found_in_files(folders, needles)
    assert all(is_in(left["kept"], folder, cells) for folder in of_cluster_1)
    assert {match.kind for path, matches in left.items() if path != "kept" for match in matches} <= REUSED, left
    with schemaless.connect(url) as store:
        after = bodies(store)
        assert after.keys() == before.keys()
        assert {key: body for key, body in after.items() if not is_erased(body)} == {
            key: body for key, body in before.items() if key[0] in rows["kept"]
        }


def is_in(matches: list[FileMatch], folder: Path, name: str) -> bool:
    """Return whether a file of a server is among the matches."""
    return any(match.path.is_relative_to(folder) and re.fullmatch(name, match.path.name) for match in matches)


def bodies(store: schemaless.Datastore) -> dict[tuple[uuid.UUID, str, int], bytes]:
    cells = (cell for shard in range(store.shard_count) for cell in store.scan_shard(shard))
    return {(cell.row_key, cell.column_name, cell.ref_key): cell.body for cell in cells}


def root_of(server: LocalServer) -> NodePool:
    url = parse_url(server.url)
    return NodePool(url.node, url.credentials, PoolOptions())
