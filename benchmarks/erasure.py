"""What an erasure costs applications: latency of puts and gets beside it, and reads beside tombstones.

    python benchmarks/erasure.py [--flavour mysql] [--cells 100000] [--tombstones 1000000] [--seconds 20]

Four clients put and get documents of about 1 KB, quietly and then beside an erase job of ``--cells`` cells at the
default thresholds. Then the same gets, and reads of the end of the feed, before and after ``--tombstones`` tombstones
are in the shard. Prints p50 and p99 in milliseconds, calls a second, and the ratios to the quiet phase.
"""

from __future__ import annotations

import argparse
import random
import statistics
import threading
import time
import uuid
from collections.abc import Callable
from typing import Any

import schemaless
from schemaless.cell import NewCell, NewStoredCell
from schemaless.codec.envelope import tombstone
from schemaless.erase.job import EraseSpec
from schemaless.erase.job import run as run_erasure
from schemaless.erasures.ledger import target
from schemaless.internals import internals_of
from schemaless.keys import row_key_for
from schemaless.testing.servers import private_servers

CLIENTS = 4
PAUSE_S = 0.01


def document(number: int) -> dict[str, Any]:
    """Return a document of about 1 KB."""
    return {
        "trip": f"{number:032x}",
        "points": [[number % 90 + step / 7, step * 1.5, f"{number}/{step}"] for step in range(30)],
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--flavour", choices=("mysql", "mariadb"), default="mysql")
    parser.add_argument("--cells", type=int, default=100_000)
    parser.add_argument("--tombstones", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=float, default=20.0)
    options = parser.parse_args()
    with private_servers(options.flavour, 1, {"innodb-buffer-pool-size": "2G"}) as (server,):
        print(f"{server.flavour} {server.version}, 1 server, 2 shards", flush=True)
        measure(schemaless.create("erasure", 2, [server.url]), options.cells, options.tombstones, options.seconds)


def measure(url: str, cells: int, tombstones: int, seconds: float) -> dict[str, float]:
    """Fill the datastore, measure all phases, print them, and return the ratios."""
    with schemaless.connect(url, read_timeout_s=600) as store:
        live = fill(store, "live", max(1_000, cells // 5))
        doomed = fill(store, "doomed", cells)
        ratios: dict[str, float] = {}
        ends = threading.Event()
        quiet = clients(url, live, lambda: ends.wait(seconds), seed=1_000)
        number = internals_of(store).erasures.ledger.intend("benchmark", [target(row) for row in doomed])
        began_s = time.perf_counter()
        beside = clients(url, live, lambda: run_erasure(store, EraseSpec(number)), seed=2_000)
        took_s = time.perf_counter() - began_s
        print(f"{cells:,} cells erased in {took_s:.1f} s, {cells / took_s:,.0f} a second")
        for name in ("put", "get"):
            before, after = figures(quiet[name]), figures(beside[name])
            ratios[f"{name} p99"] = after[1] / before[1]
            ratios[f"{name} p50"] = after[0] / before[0]
            print(
                f"{name}: quiet p50 {before[0]:.2f} p99 {before[1]:.2f} ms, "
                f"beside p50 {after[0]:.2f} p99 {after[1]:.2f} ms"
            )
        before_tombstones = reads(store, live, seconds / 2)
        began_s = time.perf_counter()
        for start in range(0, tombstones, 1_000):
            rows = (row_key_for(f"grave {each}") for each in range(start, min(tombstones, start + 1_000)))
            store.put_stored_cells([NewStoredCell(row, "BASE", 1, tombstone(1)) for row in rows], trusted=True)
        print(f"{tombstones:,} tombstones put in {time.perf_counter() - began_s:.0f} s")
        fill(store, "after", 1_000)
        after_tombstones = reads(store, live, seconds / 2)
        for name, value in after_tombstones.items():
            ratios[f"{name} rate beside tombstones"] = value / before_tombstones[name]
            print(
                f"{name}: {before_tombstones[name]:,.0f} a second before, {value:,.0f} beside {tombstones:,} tombstones"
            )
        for name, ratio in ratios.items():
            print(f"ratio of {name}: {ratio:.3f}", flush=True)
    return ratios


def fill(store: schemaless.Datastore, name: str, count: int) -> list[uuid.UUID]:
    """Put cells and return their rows."""
    rows = [row_key_for(f"{name} {number}") for number in range(count)]
    for start in range(0, count, 500):
        part = range(start, min(count, start + 500))
        store.put_cells([NewCell(rows[number], "BASE", 1, document(number)) for number in part])
    return rows


def clients(url: str, rows: list[uuid.UUID], load: Callable[[], object], seed: int) -> dict[str, list[float]]:
    """Run clients while ``load`` runs; return the duration of each call, in seconds."""
    taken: dict[str, list[float]] = {"put": [], "get": []}
    stop = threading.Event()

    def client(seed: int) -> None:
        chance = random.Random(seed)
        with schemaless.connect(url) as store:
            while not stop.is_set():
                time.sleep(chance.expovariate(1 / PAUSE_S))
                began_s = time.perf_counter()
                store.put_cell(uuid.UUID(int=chance.getrandbits(128)), "BASE", 1, document(chance.randrange(1_000)))
                taken["put"].append(time.perf_counter() - began_s)
                began_s = time.perf_counter()
                assert store.get_cell_latest(chance.choice(rows), "BASE") is not None
                taken["get"].append(time.perf_counter() - began_s)

    threads = [threading.Thread(target=client, args=(seed + number,)) for number in range(CLIENTS)]
    for thread in threads:
        thread.start()
    try:
        load()
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    return taken


def reads(store: schemaless.Datastore, rows: list[uuid.UUID], seconds: float) -> dict[str, float]:
    """Return gets, and cells of the feed's last 500 cells, a second; medians of ten rounds."""
    chance = random.Random(1)
    ends = {shard: store.end_of_shard(shard) for shard in range(store.shard_count)}
    rates: dict[str, list[float]] = {"gets": [], "feed": []}
    for _ in range(10):
        until_s, began_s, count = time.perf_counter() + seconds / 20, time.perf_counter(), 0
        while time.perf_counter() < until_s:
            assert store.get_cell_latest(chance.choice(rows), "BASE") is not None
            count += 1
        rates["gets"].append(count / (time.perf_counter() - began_s))
        until_s, began_s, count = time.perf_counter() + seconds / 20, time.perf_counter(), 0
        while time.perf_counter() < until_s:
            for shard, end in ends.items():
                count += len(store.get_cells_for_shard(shard, max(0, end - 200), 200).cells)
        rates["feed"].append(count / (time.perf_counter() - began_s))
    return {name: statistics.median(each) for name, each in rates.items()}


def figures(seconds: list[float]) -> tuple[float, float]:
    """Return p50 and p99 in milliseconds."""
    quantiles = statistics.quantiles(seconds, n=100)
    return 1e3 * quantiles[49], 1e3 * quantiles[98]


if __name__ == "__main__":
    main()
