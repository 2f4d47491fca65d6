"""What erasures and retention runs cost applications, and what tombstones cost readers.

    python benchmarks/erasure.py live [--flavour mysql] [--cells 100000] [--rounds 4] [--seconds 15]
    python benchmarks/erasure.py tombstones [--flavour mysql] [--tombstones 1000000] [--rounds 20] [--seconds 40]
    python benchmarks/erasure.py versions [--flavour mysql] [--versions 1000 5000 20000]

``live``: four clients put and get documents of about 1 KB, with pauses of 10 ms on average; quiet phases alternate with
phases in which a separate process runs a job at the default thresholds: erasures of ``--cells`` cells in all, then a
retention run of as many. The clients pause equally long in both phases, so the ratio of rates says how much less they
get done, and p50 and p99 how much longer a call takes.

``tombstones``: two datastores on one server have the same live cells; one also has ``--tombstones`` tombstones.
Measured are gets and reads of the end of the feed per second, in turns; then one scan of each datastore.

``versions``: rows with as many ``--versions``, stored as deltas where possible, are erased as a row, as a list of
versions, and by a policy that keeps one version. CPU time of client and server per version, without the pauses of jobs.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import multiprocessing
import random
import statistics
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from migrate import cpu_of

import schemaless
from schemaless.base.keys import row_key_for
from schemaless.cell import NewCell, NewStoredCell
from schemaless.codec.envelope import tombstone
from schemaless.ops.erasure.expired import Rule, blocks
from schemaless.ops.erasure.job import ErasureSpec, begin_retention
from schemaless.ops.erasure.job import run as run_erasure
from schemaless.ops.migrate.run import run as migrate
from schemaless.ops.migrate.spec import MigrateSpec
from schemaless.store.datastore import Datastore
from schemaless.store.erasures.eraser import ShardEraser
from schemaless.store.erasures.ledger import Target, target
from schemaless.store.erasures.retention import Policy
from schemaless.store.internals import internals_of
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
    parser.add_argument("part", choices=("live", "tombstones", "versions"))
    parser.add_argument("--flavour", choices=("mysql", "mariadb"), default="mysql")
    parser.add_argument("--cells", type=int, default=100_000)
    parser.add_argument("--tombstones", type=int, default=1_000_000)
    parser.add_argument("--versions", type=int, nargs="*", default=[1_000, 5_000, 20_000])
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--seconds", type=float)
    options = parser.parse_args()
    with private_servers(options.flavour, 1, {"innodb-buffer-pool-size": "2G"}) as (server,):
        print(f"{server.flavour} {server.version}, 1 server, 2 shards", flush=True)
        url = schemaless.create("erasure", 2, [server.url])
        if options.part == "live":
            live(url, options.cells, options.rounds or 4, options.seconds or 15.0)
        elif options.part == "versions":
            with schemaless.connect(url, read_timeout_s=600) as store:
                for count in options.versions:
                    versions(store, server.pid, count)
        else:
            other = schemaless.create("graves", 2, [server.url])
            tombstones(url, other, options.tombstones, options.rounds or 20, options.seconds or 40.0)


def versions(store: Datastore, pid: int, count: int) -> None:
    """Print what erasing all versions of a row takes, in three ways."""
    internals = internals_of(store)

    def eraser(row: uuid.UUID, targets: list[Target]) -> ShardEraser:
        return internals.erasures.eraser(store.shard_of(row), internals.erasures.ledger.intend("benchmark", targets))

    def erase(row: uuid.UUID, targets: list[Target]) -> int:
        return sum(batch.cells for batch in eraser(row, targets).erase_targets(targets))

    def expire(row: uuid.UUID, column: str) -> int:
        erasing = eraser(row, [target(row)])
        found = blocks(internals, store.shard_of(row), [Rule(column, None, 1)], at_once=lambda: 500)
        return 1 + sum(batch.cells for block in found for batch in erasing.erase_ids(block.ids))

    ways: dict[str, Callable[[uuid.UUID, str], int]] = {
        "row": lambda row, _: erase(row, [target(row)]),
        "list": lambda row, column: erase(row, [target(row, column, n) for n in range(count)]),
        "policy": expire,
    }
    for what, way in ways.items():
        column = f"{what}-{count}"
        row = row_key_for(column)
        for start in range(0, count, 500):
            part = range(start, min(start + 500, count))
            store.put_cells([NewCell(row, column, n, {**document(0), "n": n}) for n in part])
        migrate(store, MigrateSpec(history=True))
        began_s, began_server_s = time.process_time(), cpu_of(pid)
        assert way(row, column) == count
        client_s, server_s = time.process_time() - began_s, cpu_of(pid) - began_server_s
        each = f"client {client_s / count * 1e6:4.0f}, server {server_s / count * 1e6:4.0f}"
        print(f"{count:6,} versions, {what:6}: CPU time in us per version: {each}", flush=True)


def live(url: str, cells: int, rounds: int, seconds: float) -> None:
    """Measure calls of clients during erasures and a retention run, and print the ratios to quiet phases."""
    context = multiprocessing.get_context("spawn")
    with schemaless.connect(url, read_timeout_s=600) as store, ProcessPoolExecutor(1, context) as pool:
        pool.submit(time.monotonic).result()  # imports are not part of a phase
        internals = internals_of(store)
        rows = fill(store, "live", 20_000)
        doomed = fill(store, "doomed", cells)
        fill(store, "expired", cells, "OLD", datetime.now(UTC) - timedelta(800))
        internals.policies.set(Policy("OLD", 400))
        ends = threading.Event()
        seeds = itertools.count(1_000, CLIENTS)

        def quietly(call: str) -> Phase:
            return clients(url, rows, lambda: ends.wait(seconds), next(seeds), call)

        quiet, beside = [], []
        for number in range(rounds):
            targets = [target(row) for row in doomed[number::rounds]]
            erasure = internals.erasures.ledger.intend("benchmark", targets)
            quiet.append(quietly("quiet"))
            job = functools.partial(apart, pool, run_erasure, url, ErasureSpec(erasure))
            beside.append(clients(url, rows, job, next(seeds), f"erasure of {len(targets):,} cells"))
        quiet.append(quietly("quiet"))
        ratios("erasures", quiet, beside, cells)
        run = begin_retention(store)
        assert run is not None
        job = functools.partial(apart, pool, run_erasure, url, ErasureSpec(run))
        runs = [clients(url, rows, job, next(seeds), f"retention run of {cells:,} cells")]
        quiet = [quiet[-1], quietly("quiet")]
        ratios("retention run", quiet, runs, cells)
        run = begin_retention(store)
        assert run is not None
        job = functools.partial(apart, pool, run_erasure, url, ErasureSpec(run))
        runs = [clients(url, rows, job, next(seeds), "retention run, nothing expires")]
        quiet = [quiet[-1], quietly("quiet")]
        ratios("retention run without expired cells", quiet, runs, 0)


def apart(pool: Executor, job: Callable[..., object], url: str, *arguments: Any) -> None:
    """Run a job in the other process."""
    pool.submit(run_job, job, url, *arguments).result()


def run_job(job: Callable[..., object], url: str, *arguments: Any) -> None:
    """Run a job on a connection of its own."""
    with schemaless.connect(url, read_timeout_s=600) as store:
        job(store, *arguments)


def ratios(name: str, quiet: Sequence[Phase], beside: Sequence[Phase], cells: int) -> None:
    """Print the figures of all phases of a kind taken together, and their ratios."""
    took_s = sum(phase.seconds for phase in beside)
    print(f"{name}: {cells:,} cells in {took_s:.1f} s, {cells / took_s:,.0f} a second")
    for call in ("put", "get"):
        before, after = merged(quiet, call), merged(beside, call)
        parts = [
            f"{what} {new / old:.3f}" for what, old, new in zip(("p50", "p99", "rate"), before, after, strict=True)
        ]
        print(f"  {call}: ratio of {', of '.join(parts)}", flush=True)


def tombstones(url: str, other: str, count: int, rounds: int, seconds: float) -> None:
    """Measure reads of a datastore and of another one that also has tombstones, in turns."""
    with schemaless.connect(url) as plain, schemaless.connect(other) as graves:
        stores = {"without": plain, "beside": graves}
        rows = {name: fill(store, "live", 20_000) for name, store in stores.items()}
        began_s = time.perf_counter()
        for start in range(0, count, 1_000):
            keys = (row_key_for(f"grave {each}") for each in range(start, min(count, start + 1_000)))
            graves.put_stored_cells([NewStoredCell(row, "BASE", 1, tombstone(1)) for row in keys], trusted=True)
        print(f"{count:,} tombstones put in {time.perf_counter() - began_s:.0f} s", flush=True)
        for store in stores.values():
            fill(store, "after", 2_000)
        chance = random.Random(1)
        rates: dict[str, list[float]] = {}
        for number in range(rounds):
            # The first of a pair has colder caches.
            for name in list(stores) if number % 2 else list(stores)[::-1]:
                for what, rate in reads(stores[name], rows[name], chance, seconds / rounds / 4).items():
                    rates.setdefault(f"{name} {what}", []).append(rate)
        for what in ("gets", "end of the feed"):
            old, new = rates[f"without {what}"], rates[f"beside {what}"]
            pairs = [after / before for before, after in zip(old, new, strict=True)]
            print(
                f"{what}: {statistics.median(old):,.0f} a second without, {statistics.median(new):,.0f} beside "
                f"{count:,} tombstones; median of {rounds} ratios {statistics.median(pairs):.3f}"
            )
        for name, store in stores.items():
            began_s = time.perf_counter()
            read = sum(1 for shard in range(store.shard_count) for _ in store.scan_shard(shard))
            took_s = time.perf_counter() - began_s
            print(f"scan of all shards, {name}: {read:,} cells in {took_s:.1f} s, {read / took_s:,.0f} a second")


def fill(
    store: schemaless.Datastore, name: str, count: int, column: str = "BASE", created_at: datetime | None = None
) -> list[uuid.UUID]:
    """Put cells and return their rows."""
    rows = [row_key_for(f"{name} {number}") for number in range(count)]
    for start in range(0, count, 500):
        part = range(start, min(count, start + 500))
        store.put_cells([NewCell(rows[each], column, 1, document(each), created_at=created_at) for each in part])
    return rows


class Phase(NamedTuple):
    """Calls that clients made, with or without a job running.

    Attributes:
        seconds: duration of the phase.
        taken: duration of each call in seconds, by kind.
    """

    seconds: float
    taken: dict[str, list[float]]


def merged(phases: Sequence[Phase], call: str) -> tuple[float, float, float]:
    """Return p50 and p99 in milliseconds, and calls per second, of all phases together."""
    taken = [each for phase in phases for each in phase.taken[call]]
    return *figures(taken), len(taken) / sum(phase.seconds for phase in phases)


def clients(url: str, rows: list[uuid.UUID], load: Callable[[], object], seed: int, name: str) -> Phase:
    """Run clients while ``load`` runs, print a line, and return the duration of each call."""
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
    began_s = time.perf_counter()
    for thread in threads:
        thread.start()
    try:
        load()
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    phase = Phase(time.perf_counter() - began_s, taken)
    calls = [
        f"{call} p50 {p50:.2f} p99 {p99:.2f} ms, {rate:.0f} a second"
        for call in taken
        for p50, p99, rate in (merged([phase], call),)
    ]
    print(f"{phase.seconds:6.1f} s {name}: {'; '.join(calls)}", flush=True)
    return phase


def reads(
    store: schemaless.Datastore, rows: list[uuid.UUID], chance: random.Random, seconds: float
) -> dict[str, float]:
    """Return gets per second, and cells per second when reading the last 200 of each shard's feed."""
    ends = {shard: store.end_of_shard(shard) for shard in range(store.shard_count)}

    def get() -> int:
        assert store.get_cell_latest(chance.choice(rows), "BASE") is not None
        return 1

    def feed() -> int:
        return sum(len(store.get_cells_for_shard(shard, max(0, end - 200), 200).cells) for shard, end in ends.items())

    rates = {}
    for name, call in (("gets", get), ("end of the feed", feed)):
        began_s, count = time.perf_counter(), 0
        while time.perf_counter() < began_s + seconds:
            count += call()
        rates[name] = count / (time.perf_counter() - began_s)
    return rates


def figures(seconds: list[float]) -> tuple[float, float]:
    """Return p50 and p99 in milliseconds."""
    quantiles = statistics.quantiles(seconds, n=100)
    return 1e3 * quantiles[49], 1e3 * quantiles[98]


if __name__ == "__main__":
    main()
