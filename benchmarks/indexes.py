"""Secondary indexes: filling speed, query times, delay of entries, and a check that none is ever lost.

    python benchmarks/indexes.py                                     a quick one, on MySQL
    python benchmarks/indexes.py --cells 2000000 --shards 64 --set innodb-buffer-pool-size=1G   10^6 entries; minutes
    python benchmarks/indexes.py --cells 20000 --shards 64 --puts 4000 --per-s 400   put to entry
    python benchmarks/indexes.py --cells 20000 --against ../before   another checkout beside this one, in turns
    python benchmarks/indexes.py --live 1000000 --kills 500 --freezes 100 --moves 30 --shards 64
                                                                     killed and frozen workers, shards that move
    python benchmarks/indexes.py --schedules 1000000                 the simulation, and its controls

Each part runs if its option is given; without any of them, all run on a small scale. Servers do not wait for the disk
at a commit.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from _feed_trace import quantiles
from _schedules import outcomes
from codec import processor

import schemaless
from schemaless.local.options import RELAXED
from schemaless.local.servers import down, up
from schemaless.ops.admin.indexes import indexes_of
from schemaless.store.followers.worker import Worker
from schemaless.store.indexes.admin import Watch
from schemaless.store.indexes.definition import define
from schemaless.store.internals import internals_of
from tests.store.indexes import schedules
from tests.store.indexes.live import CONTROLS, LiveIndex

BATCH = 1_000
QUERIES = 200
TRIPS = define("trips", "BASE.client:uuid", ["BASE.at:int", "STATUS.s:text(16)"])


def filled(url: str, cells: int, versions: int) -> list[str]:
    """Put rows of two columns and let one worker fill an index of them; return the clients, which have 20 rows each.

    Args:
        url: the datastore's.
        cells: number of cells to put, with one version each.
        versions: number of versions of each row's second column instead.
    """
    clients = [str(uuid.uuid4()) for _ in range(max(1, cells // 40))]
    with schemaless.connect(url) as store:
        for start in range(0, cells // 2, BATCH):
            rows = [uuid.uuid4() for _ in range(min(BATCH, cells // 2 - start))]
            bodies = [{"client": clients[(start + n) % len(clients)], "at": start + n} for n in range(len(rows))]
            store.put_cells([schemaless.NewCell(row, "BASE", 1, body) for row, body in zip(rows, bodies, strict=True)])
            for ref in range(1, versions + 1):
                store.put_cells([schemaless.NewCell(row, "STATUS", ref, {"s": f"open since {ref}"}) for row in rows])
        indexes, stop = indexes_of(store), threading.Event()
        indexes.create(TRIPS)
        worker = Worker(
            internals_of(store).follower_access, indexes_of(store).handlers(), "the first worker", stop=stop
        )
        watch = Watch(indexes, (), lambda event: None, once=False)
        started_s = time.perf_counter()
        thread = threading.Thread(target=worker.run)
        thread.start()
        try:
            while indexes.all()[0].state != "ready":
                watch()
                time.sleep(0.05)
            took_s = time.perf_counter() - started_s
        finally:
            stop.set()
            thread.join()
        shards = store.shard_count
    cells = cells // 2 * (1 + versions)
    print(f"filled: {cells:,} cells in {shards} shards, one worker: {cells / took_s:,.0f} cells/s", flush=True)
    return clients


def asked(url: str, checkouts: Sequence[Path], clients: Sequence[str], pids: Sequence[int], rounds: int) -> None:
    """Query the 20 rows of clients, new ones each time, with each checkout in turn."""
    figures: dict[Path, list[dict[str, Any]]] = {checkout: [] for checkout in checkouts}
    chosen = random.sample(clients, min(len(clients), QUERIES * rounds))
    with tempfile.NamedTemporaryFile("w+") as file:
        for number in range(rounds):
            share = chosen[number * len(chosen) // rounds : (number + 1) * len(chosen) // rounds]
            file.seek(0)
            file.truncate()
            print(*share, file=file, flush=True)
            for checkout in checkouts:
                figures[checkout].append(_part(checkout, "queries", url, file.name, *map(str, pids)))
    for checkout, parts in figures.items():
        times_ms = [time_ms for part in parts for time_ms in part["times_ms"]]
        mean = {name: sum(part[name] for part in parts) / len(times_ms) for name in ("rows", "client_ms", "servers_ms")}
        print(
            f"{_name(checkout)}: {len(times_ms):,} queries of {mean['rows']:.0f} rows, each read again, in {rounds} "
            f"rounds: {_spread(times_ms)}; CPU of the client {mean['client_ms']:.2f} ms, of the servers "
            f"{mean['servers_ms']:.2f} ms; {parts[0]['statements']:.1f} statements in {parts[0]['round_trips']:.1f} "
            f"round trips; load {os.getloadavg()[0]:.1f}",
            flush=True,
        )


def put_to_entry(url: str, checkouts: Sequence[Path], puts: int, per_s: float, rounds: int) -> bool:
    """Put cells from one process while a worker keeps the index in another; return whether each was handled."""
    figures: dict[Path, list[dict[str, Any]]] = {checkout: [] for checkout in checkouts}
    for _ in range(rounds):
        for checkout in checkouts:
            figures[checkout].append(_part(checkout, "keep", url, str(puts), str(per_s)))
    for checkout, parts in figures.items():
        steps = {
            name: sorted(each for part in parts for each in part["delays_ms"][name]) for name in parts[0]["delays_ms"]
        }
        print(
            f"{_name(checkout)}: put to entry, {rounds} times {puts:,} puts at {per_s:g}/s: "
            f"{quantiles(steps.pop('all'))} ms; the worker "
            f"takes {sum(part['cpu_ms'] for part in parts) / rounds:.2f} ms of CPU a cell; "
            f"{sum(part['missing'] for part in parts)} missing; load {os.getloadavg()[0]:.1f}"
        )
        for name, delays_ms in steps.items():
            print(f"    {name}: {quantiles(delays_ms)} ms", flush=True)
    return not any(part["missing"] for parts in figures.values() for part in parts)


def _name(checkout: Path) -> str:
    return "here" if checkout == Path(__file__).parents[1] else checkout.name


def _part(checkout: Path, *arguments: str) -> Any:
    """Run a part in a separate process, and return its output."""
    command = [sys.executable, str(Path(__file__).with_name("_index_parts.py")), *arguments]
    ended = subprocess.run(
        command, check=True, stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": str(checkout)}
    )
    return json.loads(ended.stdout)


def live(new: Callable[[str], str], asked: argparse.Namespace) -> bool:
    """Kill and freeze workers while cells arrive and shards move, first unmodified ones, then with each fault.

    A run with a fault has a twentieth of the cells and a fifth of everything else. Return whether all is as expected.
    """
    good = True
    for number, control in enumerate(CONTROLS if asked.controls else ("", *CONTROLS)):
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


def simulated(count: int, of_controls: int) -> bool:
    """Run the schedules; return whether nothing is missing and every control was detected."""
    good = True
    for found, took_s in outcomes(schedules.run, schedules.DECIDED, schedules.CONTROLS, count, of_controls):
        good &= bool(found.rows_missing) == (found.variant != schedules.DECIDED)
        print(
            f"{found.variant}: {found.rows_missing:,} rows missing, {found.entries_stale:,} entries stale after "
            f"{found.schedules:,} schedules, {found.deaths:,} deaths, {found.sleeps:,} sleepers; {took_s:.0f} s",
            flush=True,
        )
    return good


def main() -> int:
    """Run the requested parts; fail if a row or entry is missing or a control was not detected."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", type=int, help="cells to fill an index from, of two columns")
    parser.add_argument(
        "--versions", type=int, default=1, help="with --cells, of the second column (default: %(default)s)"
    )
    parser.add_argument("--rounds", type=int, default=5, help="with --cells, of queries (default: %(default)s)")
    parser.add_argument("--puts", type=int, default=400, help="with --cells, puts to time (default: %(default)s)")
    parser.add_argument("--put-rounds", type=int, default=1, help="of these puts (default: %(default)s)")
    parser.add_argument("--per-s", type=float, default=200, help="puts per second (default: %(default)s)")
    parser.add_argument("--against", type=Path, help="with --cells, another checkout to compare with")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="an option of the servers")
    parser.add_argument("--live", type=int, metavar="CELLS", help="cells, with workers that are killed and frozen")
    parser.add_argument("--kills", type=int, default=10, help="with --live, of each run (default: %(default)s)")
    parser.add_argument("--freezes", type=int, default=10, help="with --live, of each run (default: %(default)s)")
    parser.add_argument("--moves", type=int, default=5, help="with --live, of random shards (default: %(default)s)")
    parser.add_argument("--workers", type=int, default=3, help="with --live (default: %(default)s)")
    parser.add_argument("--controls", action="store_true", help="with --live, only the faults that must be found")
    parser.add_argument("--schedules", type=int, help="simulated schedules, on all processors")
    parser.add_argument("--of-controls", type=int, help="schedules of each control (default: as many)")
    parser.add_argument("--shards", type=int, default=16, help="of the datastore (default: %(default)s)")
    parser.add_argument("--servers", type=int, default=2, help="(default: %(default)s)")
    parser.add_argument("--flavour", choices=("mysql", "mariadb"), default="mysql")
    chosen = parser.parse_args()
    if not any((chosen.cells, chosen.live, chosen.schedules)):
        chosen.cells, chosen.live, chosen.schedules = 10_000, 5_000, 300
    # Silence hundreds of messages about shards that wait for another worker or a move.
    logging.getLogger("schemaless").setLevel(logging.ERROR)
    good = True
    if chosen.schedules:
        good = simulated(chosen.schedules, chosen.of_controls or chosen.schedules)
    if not any((chosen.cells, chosen.live)):
        return 0 if good else 1
    options = dict(RELAXED) | dict(each.split("=", 1) for each in chosen.set)
    checkouts = [each.resolve() for each in (chosen.against, Path(__file__).parents[1]) if each is not None]
    folder = Path(tempfile.mkdtemp(prefix="schemaless-indexes-"))
    try:
        servers = up(folder, chosen.servers, chosen.flavour, tied=True, remove=True, options=options)
        print(
            f"{chosen.flavour} {servers[0].version}, {len(servers)} servers, {os.cpu_count()} cores "
            f"({platform.machine()}, {processor()}), CPython {platform.python_version()}"
        )

        def new(name: str) -> str:
            return schemaless.create(name, chosen.shards, [server.url for server in servers])

        if chosen.cells:
            url = new("indexed")
            clients = filled(url, chosen.cells, chosen.versions)
            asked(url, checkouts, clients, [server.pid for server in servers], chosen.rounds)
            good &= put_to_entry(url, checkouts, chosen.puts, chosen.per_s, chosen.put_rounds)
        if chosen.live:
            good &= live(new, chosen)
    finally:
        down(folder, delete=True)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
