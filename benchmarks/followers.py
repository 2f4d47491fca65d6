r"""Followers: calls per second, time from commit to call, cost of an idle worker, and a check that nothing is missed.

    python benchmarks/followers.py                                             a quick one, on MySQL
    python benchmarks/followers.py --cells 200000 --shards 64                  calls a second with an empty function
    python benchmarks/followers.py --puts 6000 --per-s 500 --shards 1024 --set table-open-cache-instances=1 \
        --set table-open-cache=20000 --set table-definition-cache=10000        commit to call, and what idling costs
    python benchmarks/followers.py --live 1000000 --kills 500 --freezes 100 --moves 30 --shards 64
                                                                               killed workers, shards that move
    python benchmarks/followers.py --heard 1000000 --cuts 1000 --shards 64     listeners that are cut
    python benchmarks/followers.py --schedules 1000000                         the simulation, and its controls

Each part runs if its option is given; without any of them, all run on a small scale. Servers do not wait for the disk
at a commit.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import platform
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from _feed_trace import STEPS, Trace, lateness_ms, quantiles, waited_s
from _schedules import outcomes

import schemaless
from schemaless.local.options import RELAXED
from schemaless.local.servers import down, up
from schemaless.store.followers.membership import Timing
from schemaless.store.followers.worker import Worker
from schemaless.store.internals import internals_of
from schemaless.store.triggers.calling import Calls
from schemaless.store.triggers.supervision import caught_up, prepare
from schemaless.wire.pool import NodePool
from tests.store.followers import schedules
from tests.store.followers.live import CONTROLS, Given, Live

BATCH = 1_000


@schemaless.trigger(column=None, start="beginning")
def nothing(cell: schemaless.Cell, call: schemaless.Call) -> None:
    """Do nothing."""


@contextlib.contextmanager
def working(
    store: schemaless.Datastore, trigger: schemaless.Trigger, *, listen: bool = True, timing: Timing | None = None
) -> Iterator[Worker]:
    """Run a worker of a trigger in a thread for the block."""
    prepare(store, trigger)
    stop = threading.Event()
    worker = Worker(
        internals_of(store).follower_access,
        [Calls(trigger, store)],
        f"worker of {trigger.name}",
        timing=timing,
        stop=stop,
        listen=listen,
    )
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        yield worker
    finally:
        stop.set()
        thread.join()


def calls_a_second(url: str, cells: int) -> None:
    """Put cells, then let one worker call an empty function for all of them."""
    with schemaless.connect(url) as store:
        for start in range(0, cells, BATCH):
            rows = (uuid.uuid4() for _ in range(min(BATCH, cells - start)))
            store.put_cells([schemaless.NewCell(row, "BASE", 1, {"n": start}) for row in rows])
        prepare(store, nothing)
        ended = caught_up(store, nothing)
        started_s, cpu_s = time.perf_counter(), time.process_time()
        with working(store, nothing):
            while not ended():
                time.sleep(0.05)
            took_s, cpu_s = time.perf_counter() - started_s, time.process_time() - cpu_s
    print(
        f"empty function, {cells:,} cells in {store.shard_count} shards, one worker: {cells / took_s:,.0f} cells/s, "
        f"{cpu_s / cells * 1e6:.0f} us of its CPU a cell"
    )


def commit_to_call(url: str, pids: Sequence[int], puts: int, per_s: float, *, listen: bool, slow: int) -> None:
    """Put cells at a steady pace from another process, and measure the time from the put's return to the call."""
    trace = Trace()

    @schemaless.trigger(column="TIMED")
    def timed(cell: schemaless.Cell, call: schemaless.Call) -> None:
        trace.at_s["called"][call.shard, cell.added_id] = time.monotonic()

    with trace.watching(), schemaless.connect(url) as store, working(store, timed, listen=listen) as worker:
        while len(worker.leases.held) < store.shard_count:
            time.sleep(0.05)
        time.sleep(1)
        before_s, looked_s = time.process_time(), time.monotonic()
        time.sleep(10)
        idle = (time.process_time() - before_s) / (time.monotonic() - looked_s)
        before_s, looked_s, waited_before_s = time.process_time(), time.monotonic(), [waited_s(pid) for pid in pids]
        with lateness_ms() as late_ms:
            trace.put(url, "TIMED", puts, per_s)
        took_s = time.monotonic() - looked_s
        busy = (time.process_time() - before_s) / took_s
        waited = [(waited_s(pid) - before_s) / took_s for pid, before_s in zip(pids, waited_before_s, strict=True)]
        until_s = time.monotonic() + 30
        while len(trace.at_s["called"]) < puts and time.monotonic() < until_s:
            time.sleep(0.05)
        shards = store.shard_count
    delays_ms = trace.delays_ms("put", "called")
    print(
        f"commit to call, {puts:,} puts at {per_s:g}/s over {shards} shards, by "
        f"{'binary log' if listen else 'sweep'}: {quantiles(delays_ms)} ms; {len(delays_ms):,} of {puts:,} called; the "
        f"worker takes {busy:.0%} of a core, idle {idle:.1%}; load {os.getloadavg()[0]:.1f}, a process that only "
        f"sleeps is late by {quantiles(late_ms)} ms; for a processor waited, each second, this process "
        f"{waited[0]:.2f} s, the servers {sum(waited[1:]):.2f} s"
    )
    steps = ("put", *STEPS) if listen else ("put", "read", "called")
    for since, until in pairwise(steps):
        print(f"    {since} to {until}: {quantiles(trace.delays_ms(since, until))} ms")
    for line in trace.slow(slow):
        print(f"    slow: {line}")


def heard_while_cut(url: str, cells: int, cuts: int) -> bool:
    """Cut the connections that carry binary logs while cells arrive; return whether each cell was handled.

    Cells are counted whose put returned, and calls until every shard's location has reached its end. The number of
    cells still in flight just after the last put is printed too.
    """
    # Each cut is logged.
    logging.getLogger("schemaless").setLevel(logging.ERROR)
    given, counting = Given(), threading.Lock()

    @schemaless.trigger(column=None, start="beginning")
    def counted(cell: schemaless.Cell, call: schemaless.Call) -> None:
        with counting:
            given.note_given(call.shard, cell.added_id)

    batches = max(cuts, cells // BATCH)
    done, began_s, told_s = 0, time.monotonic(), time.monotonic()
    # Reconnect quickly, so that each cut finds a listener.
    timing = Timing(connect_s=0.05)
    with schemaless.connect(url) as store, working(store, counted, timing=timing) as worker:
        shards = internals_of(store).shards
        pools = [shards.pool_for(node) for node in {shards.node_of(shard) for shard in range(store.shard_count)}]
        for batch in range(batches):
            rows = (uuid.uuid4() for _ in range(cells // batches))
            puts = store.put_cells([schemaless.NewCell(row, "BASE", 1, batch) for row in rows])
            with counting:
                for put in puts:
                    given.note_put(store.shard_of(put.key.row_key), put.added_id)
            while done * batches < cuts * batch and (ended := sum(cut(pool) for pool in pools)):
                done += ended
            if (now_s := time.monotonic()) - told_s > 10:
                told_s, left_s = now_s, (now_s - began_s) / (batch + 1) * (batches - batch - 1)
                print(f"{given.put:,} of {cells:,} cells, {done} cuts, {left_s:.0f} s left", file=sys.stderr)
        late = len(given.missing)
        stopped_s, ended = time.monotonic(), caught_up(store, counted)
        while not ended():
            time.sleep(0.02)
        told = worker._report()  # noqa: SLF001 - what 'trigger status' shows
        late_s = time.monotonic() - stopped_s
    print(
        f"listener, {given.put:,} cells in {store.shard_count} shards, its connections cut {done:,} times, "
        f"{time.monotonic() - began_s:.0f} s: when the last put returned {late:,} were not dealt with yet, "
        f"{late_s:.1f} s later {len(given.missing)}; {given.repeated:,} calls were repeated. New cells of a "
        f"shard were heard of {told['heard']:,} times, and found by looking {told['found']:,} times"
    )
    return not given.missing


def cut(pool: NodePool) -> int:
    """End the connections on which a server sends its binary log; return their number."""
    ended = 0
    with pool.connection() as root:
        for number, _, _, _, command, *_ in root.rows(b"SHOW PROCESSLIST"):
            if command.startswith("Binlog Dump"):
                with contextlib.suppress(schemaless.SchemalessError):
                    root.execute(b"KILL %d" % number)
                    ended += 1
    return ended


def live(new: Callable[[str], str], asked: argparse.Namespace) -> bool:
    """Kill and freeze workers while cells arrive and shards move, first unmodified ones, then with each fault.

    A run with a fault has only a few cells and kills. Return whether all is as expected.
    """
    good = True
    for number, control in enumerate(("", *CONTROLS)):
        cells, kills, freezes, moves = asked.live, asked.kills, asked.freezes, asked.moves
        if control:
            cells, kills, freezes, moves = min(cells, 20_000), 5, 0, min(20, asked.moves)
        url = new(f"live_{number}")
        with schemaless.connect(url) as store, tempfile.TemporaryDirectory() as folder:
            run = Live(store, url, Path(folder), control, 10.0 if control else 600.0, tells=True)
            started_s = time.monotonic()
            try:
                run.run(asked.workers, cells, kills, freezes, number, moves)
            except TimeoutError as late:
                print(f"{late}; {'as it has to be' if control else 'that is too long'}")
            given = run.given
            good &= bool(given.missing) if control else not given.missing and not given.out_of_turn
            print(
                f"live, {control or 'as it is'}: {given.put:,} cells in {store.shard_count} shards, {asked.workers} "
                f"workers, {run.deaths} kill -9, {run.freezes} freezes past the lease, {run.moved} moves of shards, "
                f"{time.monotonic() - started_s:.0f} s: {len(given.missing):,} missing, {given.out_of_turn} out of "
                f"turn, {given.repeated:,} calls repeated; load {os.getloadavg()[0]:.1f}",
                flush=True,
            )
    return good


def simulated(count: int, of_controls: int) -> bool:
    """Run the schedules; return whether nothing is missing and every control was detected."""
    good = True
    for found, took_s in outcomes(schedules.run, schedules.DECIDED, schedules.CONTROLS, count, of_controls):
        good &= bool(found.missing) == (found.variant != schedules.DECIDED)
        print(
            f"{found.variant}: cells missing in {len(found.missing):,} of {found.schedules:,} schedules "
            f"({found.deaths:,} deaths, {found.sleeps:,} sleepers, {found.resets:,} resets, {found.parked:,} parked, "
            f"{found.repeated:,} calls repeated; {took_s:.0f} s)",
            flush=True,
        )
    return good


def main() -> int:
    """Run the requested parts; fail if a cell is missing or a control was not detected."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", type=int, help="cells to call an empty function for")
    parser.add_argument("--puts", type=int, help="puts to time until their calls")
    parser.add_argument("--per-s", type=float, default=200, help="puts per second (default: %(default)s)")
    parser.add_argument("--slow", type=int, default=0, help="with --puts: slowest cells to print details of")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="an option of the servers")
    parser.add_argument("--sweep", action="store_true", help="with --puts: repeat without the binary log")
    parser.add_argument("--live", type=int, metavar="CELLS", help="cells, with workers that are killed and frozen")
    parser.add_argument("--kills", type=int, default=5, help="with --live (default: %(default)s)")
    parser.add_argument("--freezes", type=int, default=2, help="with --live (default: %(default)s)")
    parser.add_argument("--moves", type=int, default=5, help="with --live, of random shards (default: %(default)s)")
    parser.add_argument("--workers", type=int, default=3, help="with --live (default: %(default)s)")
    parser.add_argument("--heard", type=int, default=20_000, metavar="CELLS", help="with --cuts (default: %(default)s)")
    parser.add_argument("--cuts", type=int, help="how often the listeners' connections are cut while cells arrive")
    parser.add_argument("--schedules", type=int, help="simulated schedules, on all processors")
    parser.add_argument("--of-controls", type=int, help="schedules of each control (default: as many)")
    parser.add_argument("--shards", type=int, default=16, help="of the datastore (default: %(default)s)")
    parser.add_argument("--servers", type=int, default=2, help="(default: %(default)s)")
    parser.add_argument("--flavour", choices=("mysql", "mariadb"), default="mysql")
    chosen = parser.parse_args()
    if not any((chosen.cells, chosen.puts, chosen.live, chosen.cuts, chosen.schedules)):
        chosen.cells, chosen.puts, chosen.live, chosen.cuts, chosen.schedules = 10_000, 400, 2_000, 20, 300
    good = True
    if chosen.schedules:
        good = simulated(chosen.schedules, chosen.of_controls or chosen.schedules)
    if not any((chosen.cells, chosen.puts, chosen.live, chosen.cuts)):
        return 0 if good else 1
    options = dict(RELAXED) | dict(each.split("=", 1) for each in chosen.set)
    folder = Path(tempfile.mkdtemp(prefix="schemaless-followers-"))
    try:
        servers = up(folder, chosen.servers, chosen.flavour, tied=True, remove=True, options=options)
        print(
            f"{chosen.flavour} {servers[0].version}, {len(servers)} servers, {os.cpu_count()} cores "
            f"({platform.machine()}), CPython {platform.python_version()}"
        )

        def new(name: str) -> str:
            return schemaless.create(name, chosen.shards, [server.url for server in servers])

        if chosen.cells:
            calls_a_second(new("calls"), chosen.cells)
        if chosen.puts:
            pids = [os.getpid(), *(server.pid for server in servers)]
            for listen in (True, False)[: 1 + chosen.sweep]:
                commit_to_call(
                    new(f"timed_{listen:d}"), pids, chosen.puts, chosen.per_s, listen=listen, slow=chosen.slow
                )
        if chosen.live:
            logging.getLogger("schemaless").setLevel(logging.ERROR)
            good &= live(new, chosen)
        if chosen.cuts:
            good &= heard_while_cut(new("heard"), chosen.heard, chosen.cuts)
    finally:
        down(folder, delete=True)
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main())
