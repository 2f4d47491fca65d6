"""The migration against a plain loop that does the same work, and against the limit that this machine sets.

    python benchmarks/migrate.py [--flavour mysql|mariadb] [--workers N] [--rounds N] [--shards N] [--durable]

One private server, on this machine, so that it and the workers share the cores. The demo's 2,219 logbooks stand there
as legacy JSON text, in two datastores, one for each side; sides take turns, round by round, and all bodies are put back
to the same text in between.

- The plain loop: one connection; read a page of rows, ``json.loads``, ``msgpack.packb``, ``zlib.compress`` at level 6,
  decode again and compare, one UPDATE for each row with the old body's digest in its WHERE, commit every 200.
- The migration: ``migrate run`` with its job, leases, checkpoints, all verification and the archive of originals, and
  worker processes.

The server does not wait for the disk unless ``--durable`` says so: what is measured is what the cores are used for.

The limit: what the cores could do if none ever waited, from the CPU time that each stage takes by itself, with this
library's own functions: read, parse, encode, verify, write, and the server's own CPU time for the same statements.
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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
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
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--shards", type=int, default=8)
    parser.add_argument("--documents", type=int, default=2_219)
    parser.add_argument("--copies", type=int, default=1, help="store each document so many times, under other row_keys")
    parser.add_argument("--durable", action="store_true", help="have the server wait for the disk at each commit")
    parser.add_argument("--no-archive", action="store_true")
    asked = parser.parse_args()
    print(f"{processor()}, {os.cpu_count()} cores, Python {sys.version.split()[0]}, {' '.join(sys.argv)}")
    with tempfile.TemporaryDirectory(prefix="schemaless-bench-") as folder:
        options = {"innodb-buffer-pool-size": "512M", **({} if asked.durable else RELAXED)}
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
    used: list[float] = []
    for number in range(asked.rounds):
        for name in ("plain", "ours") if number % 2 else ("ours", "plain"):
            store = sides[name]
            put_back(store)
            settle(server)
            cpu_s = cpu_of(server.pid)
            began = time.perf_counter()
            if name == "plain":
                plain_loop(server, store)
            else:
                archive = None if asked.no_archive else str(folder / f"archive-{number}")
                spec = migrate.MigrateSpec(archive=archive)
                report = migrate.run(store, spec, count=asked.workers)
                assert report.total().cells == len(texts), report.total()
            taken = time.perf_counter() - began
            rates[name].append(size / taken / 1e6)
            if name == "ours":
                used.append(cpu_of(server.pid) - cpu_s)
        print(
            f"  round {number + 1}: plain {rates['plain'][-1]:.1f} MB/s, ours {rates['ours'][-1]:.1f} MB/s", flush=True
        )
    compare(sides["ours"], texts)
    ratios = [ours / plain for ours, plain in zip(rates["ours"], rates["plain"], strict=True)]
    stages = stage_times(server, sides["plain"], texts)
    total_s = sum(stages.values())
    limit = os.cpu_count() * size / total_s / 1e6
    print(f"\nCPU time of each stage by itself, in ms a MB of legacy text ({os.cpu_count()} cores)")
    for name, seconds in stages.items():
        print(f"  {name:28} {seconds / size * 1e9:7.2f}   {seconds / total_s:5.1%}")
    ours = statistics.median(rates["ours"])
    print(f"  the limit that they set: {limit:.1f} MB/s")
    print(f"\nplain loop {statistics.median(rates['plain']):.1f} MB/s, migration {ours:.1f} MB/s")
    low, mid, high = statistics.quantiles(ratios, n=4)
    print(f"migration / plain loop: {mid:.2f} (quartiles {low:.2f} to {high:.2f})")
    print(f"migration / limit: {ours / limit:.2f}")


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


def stage_times(server: LocalServer, store: schemaless.Datastore, texts: list[Any]) -> dict[str, float]:
    """Return the CPU seconds of each stage for all documents, the median of three."""
    put_back(store)
    bodies = [each[3] for each in texts]
    codec = replace(DEFAULT)
    parsed = [quick[0] for body in bodies if (quick := read_quickly(body, 512, ENGINE)) is not None]
    assert len(parsed) == len(bodies)
    packed = [ENGINE.msgpack.dumps_model(document) for document in parsed]
    sealed = [seal(MSGPACK.id, each, codec, ENGINE) for each in packed]

    def read() -> None:
        for shard in range(store.shard_count):
            after = 0
            while rows := store.shards.rows(
                shard,
                statements.select_block(
                    store.shards.database(shard), after, 128, 1 << 20, statements.wanted_bodies(0x11, (), ())
                ),
            ):
                after = int(rows[-1][0])

    def parse() -> None:
        for body in bodies:
            read_quickly(body, 512, ENGINE)

    def encode() -> None:
        for document in parsed:
            seal(MSGPACK.id, ENGINE.msgpack.dumps_model(document), codec, ENGINE)

    def verify() -> None:
        for new in sealed:
            _, payload = unseal(new, DEFAULT_LIMITS, ENGINE)
            assert ENGINE.json.gate is not None
            ENGINE.json.gate.text(ENGINE.msgpack.loads(payload))

    def write() -> None:
        for shard in range(store.shard_count):
            cells = list(store.scan_shard(shard, legacy_only=True))
            new = {cell.added_id: recode(cell.body).body for cell in cells}
            part = [(cell.added_id, cell.body, new[cell.added_id]) for cell in cells]
            with cpu() as spent:
                for start in range(0, len(part), 100):
                    sql = statements.update_bodies(store.shards.database(shard), part[start : start + 100])
                    store.shards.run(shard, lambda connection, sql=sql: replace_bodies(connection, sql), writes=True)
            wrote.append((spent[0], spent[1]))

    found: dict[str, list[float]] = {}

    def note(name: str, seconds: float) -> None:
        found.setdefault(name, []).append(seconds)

    @contextmanager
    def cpu() -> Iterator[list[float]]:
        server_s, own_s = cpu_of(server.pid), time.process_time()
        spent: list[float] = []
        yield spent
        spent += [time.process_time() - own_s, cpu_of(server.pid) - server_s]

    wrote: list[tuple[float, float]] = []
    stages: list[tuple[str, Callable[[], None]]] = [("parse", parse), ("encode", encode), ("verify", verify)]
    for _ in range(3):
        put_back(store)
        settle(server)
        with cpu() as spent:
            read()
        note("read, client", spent[0])
        note("read, server", spent[1])
        for name, stage in stages:
            began = time.process_time()
            stage()
            note(name, time.process_time() - began)
        wrote.clear()
        server_s = cpu_of(server.pid)
        write()
        # What it purges of the old bodies afterwards is a part of replacing them.
        settle(server)
        note("write, client", sum(client for client, _ in wrote))
        note("write, server", cpu_of(server.pid) - server_s - found["read, server"][-1])
    return {name: statistics.median(seconds) for name, seconds in found.items()}


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
