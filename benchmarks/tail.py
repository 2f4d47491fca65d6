"""Writers that make a plain tail skip rows, and how the change feed copes with them.

Sixteen processes write to one shard at once: they commit late, roll back, insert many rows with one statement, put
through the library, append, and are killed in the middle of a transaction. At the same time, two tails poll the primary
and, with ``--replica``, two the replica: a plain one (``WHERE added_id > last ORDER BY added_id``) and
``get_cells_for_shard``. At the end, each tail's ids are compared with those of the shard.

    python benchmarks/tail.py                                       a quick one: 20,000 rows on MySQL
    python benchmarks/tail.py --rows 200000 --replica               the one in docs/change-feed.md
    python benchmarks/tail.py --rows 50000 --replica --flavour mariadb
    python benchmarks/tail.py --rows 100000 --replica --flavour mariadb --engine rocksdb
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import platform
import random
import signal
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pymysql

import schemaless
from schemaless.local.options import RELAXED
from schemaless.local.servers import down, up
from schemaless.ops.failover.nodes import add_replica
from schemaless.store.feed import settled_ids as changes
from schemaless.store.feed.settlement import observe
from schemaless.wire.pool import NodePool, PoolOptions
from schemaless.wire.urls import parse_url

KINDS = (
    ("commits late", 4),
    ("rolls back", 3),
    ("inserts many", 3),
    ("puts batches", 2),
    ("appends", 2),
    ("is killed", 2),
)
"""Kinds of writers, and their numbers."""

POLL_S = 0.005
SLICE = 1_000


def connected(url: str) -> Any:
    """Return a bare PyMySQL connection to a local server."""
    return pymysql.connect(unix_socket=parse_url(url).node.socket, user="root", autocommit=True)


def rows_of(number: random.Random, count: int) -> str:
    """Return the VALUES of an INSERT of ``count`` rows with small legacy bodies."""
    return ",".join(
        f"(x'{number.randbytes(16).hex()}','BASE',1,'{json.dumps({'n': number.randrange(10**6)})}')"
        for _ in range(count)
    )


def write(kind: str, seed: int, server: str, url: str, database: str, enough: Any) -> None:
    """Write in one of the ways of ``KINDS`` until ``enough`` is set."""
    number = random.Random(seed)
    insert = f"INSERT INTO `{database}`.cell (row_key,column_name,ref_key,body) VALUES "
    if kind == "puts batches":
        with schemaless.connect(url) as store:
            while not enough.is_set():
                rows = [schemaless.NewCell(uuid.UUID(bytes=number.randbytes(16)), "BASE", 1, seed) for _ in range(50)]
                store.put_cells(rows)
                time.sleep(0.02)
        return
    if kind == "appends":
        with schemaless.connect(url) as store:
            row = uuid.UUID(bytes=number.randbytes(16))
            while not enough.is_set():
                store.append_cell(row, "STATUS", {"seed": seed})
                time.sleep(0.005)
        return
    connection = connected(server)
    cursor = connection.cursor()
    while not enough.is_set():
        if kind == "inserts many":
            cursor.execute(insert + rows_of(number, number.choice((100, 500))))
            time.sleep(0.2)
            continue
        cursor.execute("START TRANSACTION")
        for _ in range(number.randrange(1, 4)):
            cursor.execute(insert + rows_of(number, number.randrange(1, 8)))
            time.sleep(number.choice((0, 0, 0.002, 0.02)))
        if kind == "is killed":
            if number.random() < 0.5:
                os.kill(os.getpid(), signal.SIGKILL)
            with connected(server) as other, other.cursor() as killer, contextlib.suppress(pymysql.err.Error):
                killer.execute(f"KILL {connection.thread_id()}")
                cursor.execute("COMMIT")
            connection = connected(server)
            cursor = connection.cursor()
            continue
        time.sleep(number.choice((0, 0.001, 0.01, 0.05, 0.3)))
        cursor.execute("ROLLBACK" if kind == "rolls back" else "COMMIT")


def plain_ids(server: str, database: str) -> Callable[[], list[int]]:
    """Return a function for a plain tail's next step."""
    cursor = connected(server).cursor()
    last = 0

    def step() -> list[int]:
        nonlocal last
        cursor.execute(f"SELECT added_id FROM `{database}`.cell WHERE added_id>{last} ORDER BY added_id LIMIT {SLICE}")
        ids = [added_id for (added_id,) in cursor.fetchall()]
        last = ids[-1] if ids else last
        return ids

    return step


def feed_ids(url: str, read_from: Any, held_s: list[float]) -> Callable[[], list[int]]:
    """Return a function for the change feed's next step; records how long it was held with cells waiting."""
    store = schemaless.connect(url)
    location = 0
    since_s: float | None = None

    def step() -> list[int]:
        nonlocal location, since_s
        page = store.get_stored_cells_for_shard(0, location, SLICE, read_from=read_from)
        if page.next_location != location or not page.held:
            if since_s is not None:
                held_s.append(time.monotonic() - since_s)
            since_s = time.monotonic() if page.held else None
        elif since_s is None:
            since_s = time.monotonic()
        location = page.next_location
        return [cell.added_id for cell in page.cells]

    return step


def tail(name: str, server: str, url: str, database: str, settled: Any, report: Any) -> None:
    """Poll until ``settled`` is set and nothing new arrives, then report every id that was returned."""
    look_ms: list[float] = []
    held_s: list[float] = []
    observe = changes.observe

    def timed(*arguments: Any) -> Any:
        started_s = time.perf_counter()
        seen = observe(*arguments)
        look_ms.append(1e3 * (time.perf_counter() - started_s))
        return seen

    changes.observe = timed
    plain = name.startswith("plain")
    step = (
        plain_ids(server, database) if plain else feed_ids(url, "replica" if "replica" in name else "primary", held_s)
    )
    ids: list[int] = []
    steps = 0
    while True:
        last = settled.is_set()
        new = step()
        ids += new
        steps += 1
        if not new:
            if last:
                break
            time.sleep(POLL_S)
    report.send((name, ids, steps, look_ms, held_s))


@contextlib.contextmanager
def writers(server: str, url: str, database: str, target: int) -> Iterator[None]:
    """Run all writers during the block; those that kill themselves are replaced."""
    enough = multiprocessing.Event()
    running: list[tuple[str, Any]] = []
    seeds = iter(range(10**9))

    def start(kind: str) -> None:
        process = multiprocessing.Process(target=write, args=(kind, next(seeds), server, url, database, enough))
        process.start()
        running.append((kind, process))

    for kind, count in KINDS:
        for _ in range(count):
            start(kind)
    try:
        with connected(server) as connection, connection.cursor() as cursor:
            count = 0
            while count < target:
                time.sleep(0.2)
                cursor.execute(f"SELECT COUNT(*) FROM `{database}`.cell")
                count = cursor.fetchone()[0]
                if sys.stderr.isatty():
                    print(f"\r{count:>9,} of {target:,} rows", end="", file=sys.stderr, flush=True)
                for kind, process in list(running):
                    if not process.is_alive():
                        if kind != "is killed":
                            raise SystemExit(f"a writer that {kind} has ended")
                        running.remove((kind, process))
                        start(kind)
        if sys.stderr.isatty():
            print(file=sys.stderr)
        yield
    finally:
        enough.set()
        for _, process in running:
            process.join(30)
            process.kill()


def main() -> int:
    """Run the tails, print what each skipped, and fail if the change feed skipped anything."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=20_000, help="rows to write, at least (default: %(default)s)")
    parser.add_argument("--flavour", choices=("mysql", "mariadb"), default="mysql")
    parser.add_argument("--engine", choices=("innodb", "rocksdb"), default="innodb", help="of the cells")
    parser.add_argument("--replica", action="store_true", help="tail a replica as well")
    chosen = parser.parse_args()
    # Writers that kill themselves are replaced by the dozen.
    multiprocessing.set_start_method("fork")
    folder = Path(tempfile.mkdtemp(prefix="schemaless-tail-"))
    try:
        return run(folder, chosen.rows, chosen.flavour, chosen.engine, chosen.replica)
    finally:
        down(folder, delete=True)


def run(folder: Path, target: int, flavour: str, engine: str, replica: bool) -> int:
    """Run one round on its own servers."""
    replicas = 1 if replica else 0
    (server,) = up(folder, 1, flavour, engine=engine, tied=True, remove=True, options=RELAXED, replicas=replicas)
    url = schemaless.create("tailed", 1, [server.url], engine=engine)
    database = "tailed_0000"
    places = {"primary": server.url}
    if replica:
        places["replica"] = server.replicas[0].url
        add_replica(url, "cluster-1", places["replica"])
    idle_ms = look_cost_ms(server.url, database)
    settled = multiprocessing.Event()
    tails = []
    for place, where in places.items():
        for kind in ("plain", "feed"):
            ours, theirs = multiprocessing.Pipe(duplex=False)
            process = multiprocessing.Process(
                target=tail, args=(f"{kind}, {place}", where, url, database, settled, theirs)
            )
            process.start()
            tails.append((process, ours))
    started_s = time.monotonic()
    with writers(server.url, url, database, target):
        took_s = time.monotonic() - started_s
    if replica:
        wait_for(server.url, places["replica"], database)
    settled.set()
    reports = [pipe.recv() for _, pipe in tails]
    for process, _ in tails:
        process.join()
    with connected(server.url) as connection, connection.cursor() as cursor:
        cursor.execute(f"SELECT added_id FROM `{database}`.cell ORDER BY added_id")
        there = [added_id for (added_id,) in cursor.fetchall()]
    print(
        f"{flavour} {server.version} with {engine}, {os.cpu_count()} cores ({platform.machine()}), CPython "
        f"{platform.python_version()}; {sum(count for _, count in KINDS)} writers: "
        + ", ".join(f"{count} {kind}" for kind, count in KINDS)
    )
    print(
        f"{len(there):,} rows in {took_s:.0f} s, {there[-1] - len(there):,} ids that no row has; "
        f"a look at the locks of an idle server takes {idle_ms:.2f} ms"
    )
    faults = 0
    for name, ids, steps, look_ms, held_s in reports:
        skipped = len(set(there) - set(ids))
        wrong = len(ids) - len(set(ids)) + (ids != sorted(ids)) + len(set(ids) - set(there))
        line = f"{name:<15} {steps:>7,} polls   skipped {skipped:>6,}   twice, out of order, or not there {wrong}"
        if name.startswith("feed"):
            faults += skipped + wrong
            looks = (
                f"{len(look_ms):,} looks at locks, median {statistics.median(look_ms):.2f} ms" if look_ms else "no look"
            )
            line += f"   {looks}; longest stall {max(held_s, default=0):.2f} s"
        print(line)
    return 1 if faults else 0


def look_cost_ms(server: str, database: str) -> float:
    """Return the median time of reading the locks while nothing writes: its cost without waits for a core."""
    parsed = parse_url(server)
    pool = NodePool(parsed.node, parsed.credentials, PoolOptions())
    looks_ms = []
    with pool.connection() as connection:
        for _ in range(300):
            started_s = time.perf_counter()
            observe(connection, database)
            looks_ms.append(1e3 * (time.perf_counter() - started_s))
    pool.close()
    return statistics.median(looks_ms)


def wait_for(primary: str, replica: str, database: str) -> None:
    """Wait until the replica has every row."""
    counts = []
    while len(counts) < 2 or counts[0] != counts[1]:
        counts = []
        for url in (primary, replica):
            with connected(url) as connection, connection.cursor() as cursor:
                cursor.execute(f"SELECT COUNT(*) FROM `{database}`.cell")
                counts.append(cursor.fetchone()[0])
        time.sleep(0.1)


if __name__ == "__main__":
    raise SystemExit(main())
