"""The migration against a plain loop that does the same work, and against the limit that this machine sets.

    python benchmarks/migrate.py [--flavour mysql|mariadb] [--workers N] [--rounds N] [--shards N] [--durable]

One private server, on this machine, so that it and the workers share the cores. It has the demo's 2,219 logbooks as
legacy JSON text, in a datastore for each side; sides take turns, round by round. In between, all bodies are restored to
the same text, and the server writes out every page that this has changed.

- The plain loop: one connection; read a page of rows, ``json.loads``, ``msgpack.packb``, ``zlib.compress`` at level 6,
  decode again and compare, one UPDATE for each row with the old body's digest in its WHERE, commit every 200.
- The bare loop: as many processes as the migration has workers, with this library's functions and statements, and
  nothing else: no job, no leases, no checkpoints, no throttle. It cannot be stopped and resumed.
- The migration: ``migrate run`` with its job, leases, checkpoints and all verification, and worker processes; with
  ``--archive`` it also keeps the originals, which neither loop does.

The server does not wait for the disk unless ``--durable`` is given, because this measures the use of the cores.

The limit: what the cores could do if none ever waited, from the CPU time that each stage takes by itself, with this
library's own functions: read, parse, encode, verify, write, and the server's own CPU time for the same statements. It
is measured before and after each run of the migration, with all cores at each stage, since the speed of machines like
these varies over time.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import json
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
import uuid
import zlib
from collections.abc import Iterable, Iterator
from multiprocessing.connection import Connection as MultiprocessingConnection
from pathlib import Path
from typing import Any

import msgpack
import pymysql
from codec import processor

import schemaless
from schemaless.bench.logbooks import documents as logbook_documents
from schemaless.codec.engine import ENGINE
from schemaless.codec.envelope import DEFAULT_LIMITS, seal, unseal
from schemaless.codec.legacy import read_quickly
from schemaless.codec.recode import recode
from schemaless.codec.registry import DEFAULT
from schemaless.local.description import LocalServer
from schemaless.local.options import RELAXED
from schemaless.local.servers import down, up
from schemaless.ops.migrate import run as migrate
from schemaless.ops.migrate.archive import digest_of
from schemaless.ops.migrate.binlog_cost import binary_log
from schemaless.ops.migrate.spec import MigrateSpec
from schemaless.ops.migrate.sql import select_block, update_bodies, wanted_bodies
from schemaless.store.internals import internals_of
from schemaless.wire.connection import Connection

COLUMN = "BASE"
SIDES = ("plain", "bare", "ours")
TICKS = os.sysconf("SC_CLK_TCK")


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--flavour", choices=["mysql", "mariadb"], default="mysql")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--shards", type=int, default=8)
    parser.add_argument("--documents", type=int, default=2_219)
    parser.add_argument("--copies", type=int, default=1, help="copies of each document, under other row_keys")
    parser.add_argument("--buffer-pool", default="512M", help="of the server")
    parser.add_argument("--durable", action="store_true", help="have the server wait for the disk at each commit")
    parser.add_argument("--archive", action="store_true", help="have the migration keep the originals in files")
    asked = parser.parse_args()
    print(f"{processor()}, {os.cpu_count()} cores, Python {sys.version.split()[0]}, {' '.join(sys.argv)}")
    with tempfile.TemporaryDirectory(prefix="schemaless-bench-") as folder:
        options = {"innodb-buffer-pool-size": asked.buffer_pool, **({} if asked.durable else RELAXED)}
        try:
            (server,) = up(Path(folder), 1, asked.flavour, options=options)
            print(
                f"{server.flavour} {server.version}, {asked.workers} workers, {asked.rounds} rounds, "
                f"{asked.shards} shards, {'durable' if asked.durable else 'relaxed'}"
            )
            measure(server, asked, Path(folder))
        finally:
            down(Path(folder), delete=True)
    return 0


def measure(server: LocalServer, asked: argparse.Namespace, folder: Path) -> None:
    """Run both sides in turns, then the stages."""
    count = size = 0
    sides = {}
    for name in SIDES:
        schemaless.create(name, asked.shards, [server.url])
        sides[name] = store = schemaless.connect(database_url(server.url, name))
        cells = [schemaless.NewStoredCell(*each) for each in texts(asked)]
        count, size = len(cells), sum(len(cell.body) for cell in cells)
        for start in range(0, len(cells), 500):
            store.put_stored_cells(cells[start : start + 500], trusted=True)
        # As with the command, the process that forks the workers has none of this data in its memory.
        del cells
        keep_originals(store)
    print(f"{count:,} documents, {size:,} bytes")
    rates: dict[str, list[float]] = {name: [] for name in (*SIDES, "limit")}
    stages = Stages(server, sides["plain"])
    for number in range(asked.rounds):
        for name in SIDES if number % 2 else reversed(SIDES):
            store = sides[name]
            if name == "ours":
                stages.measure()
            put_back(store)
            clean(server)
            began = time.perf_counter()
            if name == "plain":
                plain_loop(server, store)
            elif name == "bare":
                bare_loop(store, asked.workers)
            else:
                archive = str(folder / f"archive-{number}") if asked.archive else None
                spec = MigrateSpec(archive=archive)
                report = migrate.run(store, spec, count=asked.workers)
                assert report.total().cells == count, report.total()
            taken = time.perf_counter() - began
            rates[name].append(size / taken / 1e6)
            if name == "ours":
                stages.measure()
                rates["limit"].append(stages.limit(size))
        print(
            f"  round {number + 1}: " + ", ".join(f"{name} {each[-1]:.1f}" for name, each in rates.items()), flush=True
        )
    for name in ("ours", "bare"):
        compare(sides[name], texts(asked))
    medians = {name: statistics.median(seconds) for name, seconds in stages.found.items()}
    total_s = sum(medians.values())
    print(f"\nCPU time of each stage by itself, all {os.cpu_count()} cores at it, in ms a MB of legacy text")
    for name, seconds in medians.items():
        print(f"  {name:28} {seconds / size * 1e9:7.2f}   {seconds / total_s:5.1%}")
    print("\nMB/s: " + ", ".join(f"{name} {statistics.median(each):.1f}" for name, each in rates.items()))
    for side, noun in (("plain", "plain loop"), ("bare", "bare loop"), ("limit", "limit")):
        ratios = [ours / other for ours, other in zip(rates["ours"], rates[side], strict=True)]
        low, mid, high = statistics.quantiles(ratios, n=4)
        print(f"migration / {noun}: {mid:.2f} (quartiles {low:.2f} to {high:.2f})")


def texts(asked: argparse.Namespace) -> Iterator[tuple[uuid.UUID, str, int, bytes]]:
    """Yield the legacy cells: each logbook's text, under as many row_keys as asked."""
    for logbook in logbook_documents(limit=asked.documents):
        text = logbook.json_text()
        for copy in range(asked.copies):
            yield uuid.uuid5(logbook.row_key, str(copy)), COLUMN, logbook.ref_key, text


def database_url(url: str, name: str) -> str:
    """Return the URL of a datastore on a server."""
    return url.replace("/?", f"/{name}?", 1)


def keep_originals(store: schemaless.Datastore) -> None:
    """Copy every body, so that it can be restored."""
    for shard in range(store.shard_count):
        database = internals_of(store).shards.database(shard).encode()
        internals_of(store).shards.execute(
            shard, b"CREATE TABLE `%b`.original AS SELECT added_id, body FROM `%b`.cell" % (database, database)
        )
        internals_of(store).shards.execute(shard, b"ALTER TABLE `%b`.original ADD PRIMARY KEY (added_id)" % database)


def put_back(store: schemaless.Datastore) -> None:
    """Restore the original bytes of every body."""
    for shard in range(store.shard_count):
        database = internals_of(store).shards.database(shard).encode()
        internals_of(store).shards.execute(
            shard,
            b"UPDATE `%b`.cell AS c JOIN `%b`.original AS o ON o.added_id=c.added_id SET c.body=o.body"
            % (database, database),
        )


def clean(server: LocalServer) -> None:
    """Flush all changed pages of the server, so that writing them does not slow down the next measurement."""
    with pymysql.connect(unix_socket=str(server.socket), user="root") as connection, connection.cursor() as cursor:
        cursor.execute("SELECT @@innodb_max_dirty_pages_pct, @@innodb_max_dirty_pages_pct_lwm")
        (usual,) = cursor.fetchall()
        cursor.execute("SET GLOBAL innodb_max_dirty_pages_pct_lwm=0, innodb_max_dirty_pages_pct=0")
        for _ in range(100):
            cursor.execute("SHOW GLOBAL STATUS LIKE 'Innodb_buffer_pool_pages_dirty'")
            ((_, dirty),) = cursor.fetchall()
            if int(dirty) < 100:
                break
            time.sleep(0.1)
        cursor.execute("SET GLOBAL innodb_max_dirty_pages_pct=%s, innodb_max_dirty_pages_pct_lwm=%s", usual)
    settle(server)


def settle(server: LocalServer) -> None:
    """Wait until the server has nothing left to do, such as purging: it would share the cores with what comes next."""
    for _ in range(50):
        before = cpu_of(server.pid)
        time.sleep(0.2)
        if cpu_of(server.pid) - before < 0.02:
            return


def compare(store: schemaless.Datastore, cells: Iterable[tuple[uuid.UUID, str, int, bytes]]) -> None:
    """Check that every document is unchanged."""
    for row_key, column, ref_key, text in cells:
        found = store.get_cell(row_key, column, ref_key)
        assert found is not None
        assert found.body == json.loads(text)


def plain_loop(server: LocalServer, store: schemaless.Datastore) -> None:
    """Re-encode every body as a careful person would in an afternoon."""
    connection = pymysql.connect(unix_socket=str(server.socket), user="root", charset="utf8mb4")
    cursor = connection.cursor()
    for shard in range(store.shard_count):
        database = internals_of(store).shards.database(shard)
        after = done = 0
        while True:
            cursor.execute(
                f"SELECT added_id, body FROM `{database}`.cell WHERE added_id>%s ORDER BY added_id LIMIT 200", (after,)
            )
            rows = cursor.fetchall()
            if not rows:
                break
            for added_id, body in rows:
                document = json.loads(body)
                new = zlib.compress(msgpack.packb(document), 6)
                assert msgpack.unpackb(zlib.decompress(new)) == document
                cursor.execute(
                    f"UPDATE `{database}`.cell SET body=%s WHERE added_id=%s AND SHA2(body,256)=%s",
                    (new, added_id, hashlib.sha256(body).hexdigest()),
                )
                done += 1
                if done % 200 == 0:
                    connection.commit()
                after = added_id
        connection.commit()
    connection.close()


def bare_loop(store: schemaless.Datastore, count: int) -> None:
    """Re-encode every body as fast as this library's functions can, and nothing else."""
    context = multiprocessing.get_context("fork")
    shares = [range(number, store.shard_count, count) for number in range(count)]
    processes = [
        context.Process(target=reencode_share, args=(str(internals_of(store).url), shards)) for shards in shares
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        assert process.exitcode == 0


def reencode_share(url: str, shards: range) -> None:
    """Re-encode these shards, one block after the other."""
    wanted = wanted_bodies(DEFAULT.format_byte, (), ())
    with schemaless.connect(url) as store:
        for shard in shards:
            database, after = internals_of(store).shards.database(shard), 0
            while rows := internals_of(store).shards.rows(shard, select_block(database, after, 128, 1 << 20, wanted)):
                cells = [internals_of(store).reader.stored(row[:6], shard) for row in rows]
                sql = update_bodies(
                    database, [(cell.added_id, digest_of(cell.body), recode(cell.body).body) for cell in cells]
                )
                internals_of(store).shards.run(
                    shard, lambda connection, sql=sql: replace_bodies(connection, sql), writes=True
                )
                after = int(rows[-1][0])


class Stages:
    """CPU time of each stage by itself.

    One process per core does a share of the shards, all at the same time: a core does less in a second while the others
    also work, and a migration uses all of them.

    Attributes:
        found: the CPU seconds of each stage for all documents, one figure per measurement.
    """

    def __init__(self, server: LocalServer, store: schemaless.Datastore) -> None:
        self._server = server
        self._store = store
        self._pipes: list[MultiprocessingConnection] = []
        self._cores = os.cpu_count() or 1
        context = multiprocessing.get_context("fork")
        for number in range(self._cores):
            here, there = context.Pipe()
            shards = range(number, store.shard_count, self._cores)
            context.Process(
                target=serve_stages, args=(there, str(internals_of(store).url), shards), daemon=True
            ).start()
            self._pipes.append(here)
        for pipe in self._pipes:
            pipe.recv()
        self.found: dict[str, list[float]] = {}

    def measure(self) -> None:
        """Do every stage once."""
        put_back(self._store)
        clean(self._server)
        for stage in ("read", "parse", "encode", "verify", "write"):
            server_s = cpu_of(self._server.pid)
            for pipe in self._pipes:
                pipe.send(stage)
            own_s = sum(pipe.recv() for pipe in self._pipes)
            if stage == "write":
                # Purging the old bodies afterwards is a part of replacing them.
                settle(self._server)
            if stage in ("read", "write"):
                self._note(f"{stage}, client", own_s)
                self._note(f"{stage}, server", cpu_of(self._server.pid) - server_s)
            else:
                self._note(stage, own_s)

    def _note(self, name: str, seconds: float) -> None:
        self.found.setdefault(name, []).append(seconds)

    def limit(self, size: int) -> float:
        """Return the MB/s that all cores could do without waits, for ``size`` bytes, by the last two measurements."""
        taken_s = statistics.fmean(sum(each[time_ago] for each in self.found.values()) for time_ago in (-1, -2))
        return self._cores * size / taken_s / 1e6


def serve_stages(pipe: MultiprocessingConnection, url: str, shards: range) -> None:
    """Run the stages named through a pipe on these shards, and answer with the CPU seconds of each."""
    gc.freeze()
    store = schemaless.connect(url)
    share = Share(store, shards)
    pipe.send(None)
    while True:
        try:
            stage = getattr(share, pipe.recv())
        except EOFError:
            return
        began_s = time.process_time()
        stage()
        pipe.send(time.process_time() - began_s)


class Share:
    """One process's share of the work, stage by stage."""

    def __init__(self, store: schemaless.Datastore, shards: range) -> None:
        self._store = store
        self._shards = shards
        self._changes: dict[int, list[tuple[int, bytes, bytes]]] = {}
        self._parsed: list[Any] = []
        for shard in shards:
            self._changes[shard] = []
            for cell in store.scan_shard(shard, legacy_only=True):
                quick = read_quickly(cell.body, 512, ENGINE)
                assert quick is not None
                sealed = seal(ENGINE.msgpack, ENGINE.msgpack.dumps(quick[0], checked=True), DEFAULT, ENGINE)
                self._parsed.append(quick[0])
                self._changes[shard].append((cell.added_id, cell.body, sealed))

    def read(self) -> None:
        """Read blocks as a migration does."""
        wanted = wanted_bodies(DEFAULT.format_byte, (), ())
        for shard in self._shards:
            after = 0
            while rows := internals_of(self._store).shards.rows(
                shard, select_block(internals_of(self._store).shards.database(shard), after, 128, 1 << 20, wanted)
            ):
                for row in rows:
                    internals_of(self._store).reader.stored(row[:6], shard)
                after = int(rows[-1][0])

    def parse(self) -> None:
        """Parse legacy texts."""
        for changes in self._changes.values():
            for _, body, _ in changes:
                read_quickly(body, 512, ENGINE)

    def encode(self) -> None:
        """Encode and compress what was parsed."""
        for document in self._parsed:
            seal(ENGINE.msgpack, ENGINE.msgpack.dumps(document, checked=True), DEFAULT, ENGINE)

    def verify(self) -> None:
        """Decode new bodies, and write them as text to compare."""
        assert ENGINE.json.gate is not None
        for changes in self._changes.values():
            for _, _, new in changes:
                _, payload = unseal(new, DEFAULT_LIMITS, ENGINE)
                ENGINE.json.gate.text(ENGINE.msgpack.loads(payload))

    def write(self) -> None:
        """Replace bodies with the statements that a migration sends."""
        for shard, changes in self._changes.items():
            for start in range(0, len(changes), 100):
                part = [(added_id, digest_of(body), new) for added_id, body, new in changes[start : start + 100]]
                sql = update_bodies(internals_of(self._store).shards.database(shard), part)
                internals_of(self._store).shards.run(
                    shard, lambda connection, sql=sql: replace_bodies(connection, sql), writes=True
                )


def replace_bodies(connection: Connection, sql: bytes) -> None:
    """Send an UPDATE as a migration does, with its settings for the binary log."""
    settings = binary_log(connection).settings
    if settings is not None:
        connection.ensure(settings)
    connection.execute(sql)


def cpu_of(pid: int) -> float:
    """Return the CPU seconds that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


if __name__ == "__main__":
    sys.exit(main())
