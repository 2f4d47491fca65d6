"""Secondary indexes: how fast one is filled, what a query takes, how late entries are, and that none is ever lost.

    python benchmarks/indexes.py                                     a quick one, on MySQL
    python benchmarks/indexes.py --cells 200000 --shards 64          cells a second of filling, and queries
    python benchmarks/indexes.py --cells 2000 --puts 4000 --per-s 400   put to entry
    python benchmarks/indexes.py --live 1000000 --kills 500 --freezes 100 --moves 30 --shards 64
                                                                     killed and frozen workers, shards that move
    python benchmarks/indexes.py --schedules 1000000                 the simulation, and its controls; hours

Each part is run where its option is given; none of them runs all, small. Servers do not wait for the disk at a commit.
"""

from __future__ import annotations

import argparse
import logging
import os
import platform
import statistics
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import schemaless
from schemaless.feed.indexes import Indexes, KeepIndexes, Watch
from schemaless.feed.worker import Worker
from schemaless.local.options import RELAXED
from schemaless.local.servers import down, up
from schemaless.store.definitions import define
from tests.index import schedules
from tests.index.live import CONTROLS, LiveIndex

BATCH = 1_000
TRIPS = define("trips", "BASE.client:uuid", ["BASE.at:int", "STATUS.s:text(16)"])


def filled_and_asked(url: str, cells: int, puts: int, per_s: float) -> None:
    """Fill an index by one worker, ask it, then time entries of new cells."""
    clients = [uuid.uuid4() for _ in range(max(1, cells // 40))]
    with schemaless.connect(url) as store:
        for start in range(0, cells // 2, BATCH):
            rows = [uuid.uuid4() for _ in range(min(BATCH, cells // 2 - start))]
            bodies = [{"client": str(clients[(start + n) % len(clients)]), "at": start + n} for n in range(len(rows))]
            store.put_cells([schemaless.NewCell(row, "BASE", 1, body) for row, body in zip(rows, bodies, strict=True)])
            store.put_cells([schemaless.NewCell(row, "STATUS", 1, {"s": "open"}) for row in rows])
        indexes, stop = Indexes(store), threading.Event()
        indexes.create(TRIPS)
        worker = Worker(store, KeepIndexes(()).dealers(store), "the worker", stop=stop)
        watch = Watch(indexes, (), lambda event: None, once=False)
        started_s = time.perf_counter()
        thread = threading.Thread(target=worker.run)
        thread.start()
        try:
            while indexes.all()[0].state != "ready":
                watch()
                time.sleep(0.05)
            took_s = time.perf_counter() - started_s
            print(f"filled: {cells:,} cells in {store.shard_count} shards, one worker: {cells / took_s:,.0f} cells/s")
            index = store.index("trips")
            times_ms, found = [], 0
            for client in clients[:500]:
                began_s = time.perf_counter()
                found += len(index.query(client=client, order_by="-at", limit=20).rows)
                times_ms.append(1e3 * (time.perf_counter() - began_s))
            print(f"query of {found / len(times_ms):.0f} rows, read again: {_spread(times_ms)}")
            late_ms = []
            began_s = time.perf_counter()
            for number in range(puts):
                time.sleep(max(0.0, began_s + number / per_s - time.perf_counter()))
                put_s = time.perf_counter()
                row = store.put_cell(uuid.uuid4(), "BASE", 1, {"client": str(clients[0]), "at": number}).key.row_key
                if number % 20 == 0:
                    assert index.wait(row, timeout_s=30)
                    late_ms.append(1e3 * (time.perf_counter() - put_s))
            print(f"put to entry, at up to {per_s:g} puts/s, each 20th waited for: {_spread(late_ms)}")
        finally:
            stop.set()
            thread.join()


def live(new: Callable[[str], str], asked: argparse.Namespace) -> bool:
    """Kill and freeze workers while cells come and shards move, as they are and with each fault.

    Each fault is given a twentieth of the cells and a fifth of the rest; return whether all is as expected.
    """
    good = True
    for number, control in enumerate(("", *CONTROLS)):
        cells, part = (asked.live // 20, 5) if control else (asked.live, 1)
        kills, freezes, moves = (-(-count // part) for count in (asked.kills, asked.freezes, asked.moves))
        url = new(f"live_{number}")
        with schemaless.connect(url) as store, tempfile.TemporaryDirectory() as folder:
            run = LiveIndex(store, url, Path(folder), control, patience_s=600.0, tells=True)
            started_s = time.monotonic()
            run.run(asked.workers, cells, kills, freezes, number, moves)
            took_s = time.monotonic() - started_s
            missing, others = run.missing_entries()
            rows = sum(1 for _ in run.last_said())
            good &= bool(missing) == bool(control)
            print(
                f"live, {control or 'as it is'}: {run.given.put:,} cells of {rows:,} rows in {store.shard_count} "
                f"shards, {asked.workers} workers, {run.deaths} kill -9, {run.freezes} freezes past the lease, "
                f"{run.moved} moves of shards, {took_s:.0f} s: {missing:,} entries missing, {others:,} left behind; "
                f"load {os.getloadavg()[0]:.1f}",
                flush=True,
            )
    return good


def _spread(times_ms: list[float]) -> str:
    ordered = sorted(times_ms)
    return f"p50 {statistics.median(ordered):.2f} ms, p99 {ordered[int(len(ordered) * 0.99)]:.2f} ms"


def simulated(count: int) -> bool:
    """Run the schedules; return whether nothing is missing, and each control is found."""
    good = True
    for variant in (schedules.DECIDED, *schedules.CONTROLS):
        found = schedules.run(variant, range(count))
        good &= bool(found.rows_missing) == (variant != schedules.DECIDED)
        print(
            f"{variant}: {found.rows_missing:,} rows missing, {found.entries_stale:,} entries stale after {count:,} "
            f"schedules, {found.deaths:,} deaths, {found.sleeps:,} sleepers"
        )
    return good


def main() -> int:
    """Run the parts that are asked for; fail where a row or entry is missing, or a control was not found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", type=int, help="cells to fill an index from, of two columns")
    parser.add_argument("--puts", type=int, default=400, help="puts whose entries are timed (default: %(default)s)")
    parser.add_argument("--per-s", type=float, default=200, help="puts a second (default: %(default)s)")
    parser.add_argument("--live", type=int, metavar="CELLS", help="cells, with workers that are killed and frozen")
    parser.add_argument("--kills", type=int, default=10, help="with --live, of each run (default: %(default)s)")
    parser.add_argument("--freezes", type=int, default=10, help="with --live, of each run (default: %(default)s)")
    parser.add_argument("--moves", type=int, default=5, help="with --live, of random shards (default: %(default)s)")
    parser.add_argument("--workers", type=int, default=3, help="with --live (default: %(default)s)")
    parser.add_argument("--schedules", type=int, help="schedules of each variant")
    parser.add_argument("--shards", type=int, default=16, help="of the datastore (default: %(default)s)")
    parser.add_argument("--servers", type=int, default=2, help="(default: %(default)s)")
    parser.add_argument("--flavour", choices=("mysql", "mariadb"), default="mysql")
    chosen = parser.parse_args()
    if not any((chosen.cells, chosen.live, chosen.schedules)):
        chosen.cells, chosen.live, chosen.schedules = 10_000, 5_000, 300
    # Shards that wait since a worker or a move was in the way say so, hundreds of times.
    logging.getLogger("schemaless").setLevel(logging.ERROR)
    good = simulated(chosen.schedules) if chosen.schedules else True
    if not any((chosen.cells, chosen.live)):
        return 0 if good else 1
    folder = Path(tempfile.mkdtemp(prefix="schemaless-indexes-"))
    try:
        servers = up(folder, chosen.servers, chosen.flavour, tied=True, remove=True, options=RELAXED)
        print(
            f"{chosen.flavour} {servers[0].version}, {len(servers)} servers, {os.cpu_count()} cores "
            f"({platform.machine()}), CPython {platform.python_version()}"
        )

        def new(name: str) -> str:
            return schemaless.create(name, chosen.shards, [server.url for server in servers])

        if chosen.cells:
            filled_and_asked(new("indexed"), chosen.cells, chosen.puts, chosen.per_s)
        if chosen.live:
            good &= live(new, chosen)
    finally:
        down(folder, delete=True)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
