"""The migration against a plain loop that does the same work, and against the limit that this machine sets.

    python benchmarks/migrate.py [--flavour mysql|mariadb] [--workers N] [--rounds N] [--shards N] [--durable]

One private server, on this machine, so that it and the workers share the cores. The demo's 2,219 logbooks stand there
as legacy JSON text, in two datastores, one for each side; sides take turns, round by round, and all bodies are put back
to the same text in between.

- The plain loop: one connection; read a page of rows, ``json.loads``, ``msgpack.packb``, ``zlib.compress`` at level 6,
  decode again and compare, one UPDATE for each row with the old body's digest in its WHERE, commit every 200.
- The migration: ``migrate run`` with its job, leases, checkpoints and all verification, and worker processes; with
  ``--archive`` it keeps the originals too, which the plain loop does not.

The server does not wait for the disk unless ``--durable`` says so: what is measured is what the cores are used for.

The limit: what the cores could do if none ever waited, from the CPU time that each stage takes by itself, with this
library's own functions: read, parse, encode, verify, write, and the server's own CPU time for the same statements. It
is measured in each round, beside the two sides.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import statistics
import sys
import tempfile
import time
import uuid
import zlib
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
from schemaless.codec.registry import DEFAULT, MSGPACK
from schemaless.jobs import migrate
from schemaless.local.description import LocalServer
from schemaless.local.options import RELAXED
from schemaless.local.servers import down, up
from schemaless.mysql import statements
from schemaless.mysql.binary_log import binary_log
from schemaless.mysql.pool import Connection

COLUMN = "BASE"
TICKS = os.sysconf("SC_CLK_TCK")


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--flavour", choices=["mysql", "mariadb"], default="mysql")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--shards", type=int, default=8)
    parser.add_argument("--documents", type=int, default=2_219)
    parser.add_argument("--copies", type=int, default=1, help="store each document so many times, under other row_keys")
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
    texts = [
        (uuid.uuid5(logbook.row_key, str(copy)), COLUMN, logbook.ref_key, text)
        for logbook in logbook_documents(limit=asked.documents)
        for text in [logbook.json_text()]
        for copy in range(asked.copies)
    ]
    size = sum(len(each[3]) for each in texts)
    sides = {}
    for name in ("plain", "ours"):
        schemaless.create(name, asked.shards, [server.url])
        store = schemaless.connect(database_url(server.url, name))
        for start in range(0, len(texts), 500):
            store.put_stored_cells(
                [schemaless.NewStoredCell(*each) for each in texts[start : start + 500]], trusted=True
            )
        keep_originals(store)
        sides[name] = store
    print(f"{len(texts):,} documents, {size:,} bytes")
    rates: dict[str, list[float]] = {"plain": [], "ours": []}
    stages = Stages(server, sides["plain"], texts)
    for number in range(asked.rounds):
        for name in ("plain", "ours") if number % 2 else ("ours", "plain"):
            store = sides[name]
            put_back(store)
            settle(server)
            began = time.perf_counter()
            if name == "plain":
                plain_loop(server, store)
            else:
                archive = str(folder / f"archive-{number}") if asked.archive else None
                spec = migrate.MigrateSpec(archive=archive)
                report = migrate.run(store, spec, count=asked.workers)
                assert report.total().cells == len(texts), report.total()
            taken = time.perf_counter() - began
            rates[name].append(size / taken / 1e6)
        stages.measure()
        rates.setdefault("limit", []).append(stages.limit(size))
        print(
            f"  round {number + 1}: " + ", ".join(f"{name} {each[-1]:.1f}" for name, each in rates.items()), flush=True
        )
    compare(sides["ours"], texts)
    medians = {name: statistics.median(seconds) for name, seconds in stages.found.items()}
    total_s = sum(medians.values())
    print(f"\nCPU time of each stage by itself, in ms a MB of legacy text ({os.cpu_count()} cores)")
    for name, seconds in medians.items():
        print(f"  {name:28} {seconds / size * 1e9:7.2f}   {seconds / total_s:5.1%}")
    print("\nMB/s: " + ", ".join(f"{name} {statistics.median(each):.1f}" for name, each in rates.items()))
    for side, noun in (("plain", "plain loop"), ("limit", "limit")):
        ratios = [ours / other for ours, other in zip(rates["ours"], rates[side], strict=True)]
        low, mid, high = statistics.quantiles(ratios, n=4)
        print(f"migration / {noun}: {mid:.2f} (quartiles {low:.2f} to {high:.2f})")


def database_url(url: str, name: str) -> str:
    """Return the URL of a datastore on a server."""
    return url.replace("/?", f"/{name}?", 1)


def keep_originals(store: schemaless.Datastore) -> None:
    """Copy every body, to put it back from."""
    for shard in range(store.shard_count):
        database = store.shards.database(shard).encode()
        store.shards.execute(
            shard, b"CREATE TABLE `%b`.original AS SELECT added_id, body FROM `%b`.cell" % (database, database)
        )
        store.shards.execute(shard, b"ALTER TABLE `%b`.original ADD PRIMARY KEY (added_id)" % database)


def put_back(store: schemaless.Datastore) -> None:
    """Make every body its first bytes again."""
    for shard in range(store.shard_count):
        database = store.shards.database(shard).encode()
        store.shards.execute(
            shard,
            b"UPDATE `%b`.cell AS c JOIN `%b`.original AS o ON o.added_id=c.added_id SET c.body=o.body"
            % (database, database),
        )


def settle(server: LocalServer) -> None:
    """Wait until the server has nothing left to do, such as purging: it would share the cores with what is measured."""
    for _ in range(50):
        before = cpu_of(server.pid)
        time.sleep(0.2)
        if cpu_of(server.pid) - before < 0.02:
            return


def compare(store: schemaless.Datastore, texts: list[Any]) -> None:
    """Check that every document is what it was."""
    for row_key, column, ref_key, text in texts:
        found = store.get_cell(row_key, column, ref_key)
        assert found is not None
        assert found.body == json.loads(text)


def plain_loop(server: LocalServer, store: schemaless.Datastore) -> None:
    """Re-encode every body as a careful person would in an afternoon."""
    connection = pymysql.connect(unix_socket=str(server.socket), user="root", charset="utf8mb4")
    cursor = connection.cursor()
    for shard in range(store.shard_count):
        database = store.shards.database(shard)
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


class Stages:
    """What each stage takes by itself, measured in every round: these machines are not equally fast all the time.

    Attributes:
        found: the CPU seconds of each stage for all documents, round by round.
    """

    def __init__(self, server: LocalServer, store: schemaless.Datastore, texts: list[Any]) -> None:
        self._server = server
        self._store = store
        self._bodies = [each[3] for each in texts]
        self._parsed = [quick[0] for body in self._bodies if (quick := read_quickly(body, 512, ENGINE)) is not None]
        assert len(self._parsed) == len(self._bodies)
        packed = [ENGINE.msgpack.dumps_model(document) for document in self._parsed]
        self._sealed = [seal(MSGPACK.id, each, DEFAULT, ENGINE) for each in packed]
        self.found: dict[str, list[float]] = {}

    def measure(self) -> None:
        """Do every stage once."""
        put_back(self._store)
        settle(self._server)
        server_s, own_s = cpu_of(self._server.pid), time.process_time()
        self._read()
        self._note("read, client", time.process_time() - own_s)
        self._note("read, server", cpu_of(self._server.pid) - server_s)
        for name, stage in (("parse", self._parse), ("encode", self._encode), ("verify", self._verify)):
            own_s = time.process_time()
            stage()
            self._note(name, time.process_time() - own_s)
        self._write()

    def limit(self, size: int) -> float:
        """Return what all cores could do by the last round, if none ever waited, in MB/s of so many bytes."""
        return (os.cpu_count() or 1) * size / sum(each[-1] for each in self.found.values()) / 1e6

    def _note(self, name: str, seconds: float) -> None:
        self.found.setdefault(name, []).append(seconds)

    def _read(self) -> None:
        wanted = statements.wanted_bodies(DEFAULT.format_byte, (), ())
        for shard in range(self._store.shard_count):
            after = 0
            while rows := self._store.shards.rows(
                shard, statements.select_block(self._store.shards.database(shard), after, 128, 1 << 20, wanted)
            ):
                for row in rows:
                    self._store.stored_cell(row[:6], shard)
                after = int(rows[-1][0])

    def _parse(self) -> None:
        for body in self._bodies:
            read_quickly(body, 512, ENGINE)

    def _encode(self) -> None:
        for document in self._parsed:
            seal(MSGPACK.id, ENGINE.msgpack.dumps_model(document), DEFAULT, ENGINE)

    def _verify(self) -> None:
        assert ENGINE.json.gate is not None
        for new in self._sealed:
            _, payload = unseal(new, DEFAULT_LIMITS, ENGINE)
            ENGINE.json.gate.text(ENGINE.msgpack.loads(payload))

    def _write(self) -> None:
        client_s = server_s = 0.0
        for shard in range(self._store.shard_count):
            cells = list(self._store.scan_shard(shard, legacy_only=True))
            part = [(cell.added_id, cell.body, recode(cell.body).body) for cell in cells]
            own_s, before_s = time.process_time(), cpu_of(self._server.pid)
            for start in range(0, len(part), 100):
                sql = statements.update_bodies(self._store.shards.database(shard), part[start : start + 100])
                self._store.shards.run(shard, lambda connection, sql=sql: replace_bodies(connection, sql), writes=True)
            client_s += time.process_time() - own_s
            server_s += cpu_of(self._server.pid) - before_s
        # What it purges of the old bodies afterwards is a part of replacing them.
        before_s = cpu_of(self._server.pid)
        settle(self._server)
        self._note("write, client", client_s)
        self._note("write, server", server_s + cpu_of(self._server.pid) - before_s)


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
