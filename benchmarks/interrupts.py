"""Checks that the store reports the truth while a signal handler raises: at each line, and by real alarms.

    python benchmarks/interrupts.py [--flavour mysql|mariadb] [--every N] [--all-classes] [--alarms N] [--minutes N]

On private servers. First an exception is raised at every n-th line event of the driver and of the library, in each
call, with connections that are already open (warm) or not (cold). Then real alarms strike at any moment: in
a process of one thread and in one of several, with pools of one and of eight connections, and in forked children.
After each interrupt, cells are read and compared with what was written (tests/faults/interrupts.py). Exit status 1 if
anything was wrong.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import schemaless
from schemaless.store.datastore import Datastore
from schemaless.store.internals import internals_of
from schemaless.testing.servers import private_servers
from schemaless.wire.pool import PoolOptions
from tests.faults.interrupts import (
    PACKET_BYTES,
    RAISED,
    TOLD,
    at_every_line,
    by_alarms,
    in_children,
    others_reading,
)

COLUMNS = ("wrong answers", "half batches", "lost places", "open transactions", "busy ones kept", "swallowed", "others")
CHILDREN = 4
THREADS = 3

Lines = list[tuple[str, Counter[str]]]


def column_of(fault: str) -> str:
    """Return the column that a fault is counted in."""
    said = fault.rpartition(": ")[2]
    if said in COLUMNS:
        return said
    return "swallowed" if "swallowed" in said or " became " in fault else "others"


def table(head: str, lines: Lines) -> int:
    """Print a line for each mode, and each fault by itself; return how many faults there were."""
    width = max(len(name) for name, _ in [(head, None), *lines])
    columns = ("interrupts", *COLUMNS)
    print(f"\n{head:<{width}}  " + "  ".join(columns), flush=True)
    wrong: Counter[str] = Counter()
    for name, found in lines:
        faults = Counter({fault: times for fault, times in found.items() if fault not in TOLD})
        counts: Counter[str] = Counter()
        for fault, times in faults.items():
            counts[column_of(fault)] += times
        numbers = [f"{found['alarms']:>10,}", *(f"{counts[column]:>{len(column)}}" for column in COLUMNS)]
        print(f"{name:<{width}}  " + "  ".join(numbers), flush=True)
        wrong.update({f"{name}: {fault}": times for fault, times in faults.items()})
    for fault, times in wrong.items():
        print(f"wrong, {times} times: {fault}")
    return wrong.total()


def opened(url: str, size: int) -> Datastore:
    """Return a datastore with pools of some connections, and small statements."""
    store = schemaless.connect(url, pool_size=size)
    for cluster in internals_of(store).topology.clusters:
        pool = internals_of(store).shards.pool_for(cluster.primary)
        pool.options = PoolOptions(pool_size=size, pool_timeout_s=10, max_packet_bytes=PACKET_BYTES)
    return store


def line_modes(url: str, every: int, all_classes: bool, minutes: float) -> Iterator[tuple[str, Counter[str]]]:
    """Interrupt each call at its lines; cold calls have many more, so only at every tenth of those."""
    for name, cold in (("warm", False), ("cold", True)):
        stride = every * 10 if cold else every
        with opened(url, 1) as store:
            until_s = time.monotonic() + minutes * 60
            found, count = at_every_line(
                store, raised=RAISED, every=stride, all_of_them=all_classes, cold=cold, until_s=until_s
            )
        found["alarms"] = count.total()
        over = ", time was up" if time.monotonic() > until_s else ""
        yield f"{name}, at one line of {stride}{over}", found


def alarm_modes(url: str, alarms: int) -> Iterator[tuple[str, Counter[str]]]:
    """Interrupt calls with alarms, an equal share of the requested number in each mode."""
    part = -(-alarms // 5)
    for size in (1, 8):
        with opened(url, size) as store:
            yield f"one thread, a pool of {size}", by_alarms(store, part, seed=size)
    for size in (1, 8):
        with opened(url, size) as store:
            with others_reading(store, THREADS) as wrong:
                found = by_alarms(store, part, seed=10 + size, alone=False)
            found.update(f"a thread beside: {error!r}" for error in wrong)
            found["lost places"] += sum(
                size - internals_of(store).shards.pool_for(cluster.primary).slots.free()
                for cluster in internals_of(store).topology.clusters
            )
            yield f"{1 + THREADS} threads, a pool of {size}", +found
    with opened(url, 8) as store:
        seeds = range(20, 20 + CHILDREN)
        yield (
            f"{CHILDREN} forked children, pools of 8",
            in_children(lambda seed: by_alarms(store, -(-part // CHILDREN), seed=seed), seeds),
        )


def main() -> int:
    """Run all modes and print the outcomes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--flavour", choices=("mysql", "mariadb"), default="mysql")
    parser.add_argument("--every", type=int, default=1, help="raise at every n-th line only; 0 for none")
    parser.add_argument("--all-classes", action="store_true", help="raise each class at each line, not in turns")
    parser.add_argument("--alarms", type=int, default=20_000, help="real alarms, over all modes; 0 for none")
    parser.add_argument("--minutes", type=float, default=60, help="limit for warm calls, and again for cold ones")
    arguments = parser.parse_args()
    # If an interrupt strikes before PyMySQL has stored a socket, garbage collection closes it.
    warnings.filterwarnings("ignore", r"unclosed <socket\.socket", ResourceWarning)
    wrong = 0
    with private_servers(arguments.flavour, 2) as servers:
        print(
            f"{servers[0].flavour} {servers[0].version}, two servers, a datastore of four shards; {os.cpu_count()} CPUs"
        )
        url = schemaless.create("interrupts", 4, [server.url for server in servers])
        asked = [
            ("raised at lines", line_modes(url, arguments.every, arguments.all_classes, arguments.minutes)),
            ("real alarms", alarm_modes(url, arguments.alarms)),
        ]
        for head, modes in asked[not arguments.every : 2 if arguments.alarms else 1]:
            began_s = time.monotonic()
            wrong += table(head, list(modes))
            print(f"{time.monotonic() - began_s:.0f} s")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
