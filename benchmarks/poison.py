r"""Cells that kill their worker: how long other shards wait for it, and that nothing is missed.

    python benchmarks/poison.py                                        30 such cells in shard 0, beside 589 good ones
    python benchmarks/poison.py --good 5890 --work-ms 5 --rounds 5     more good cells, and a function that takes time
    python benchmarks/poison.py --hostile 2000 --hurts 40 --shards 16  a fifth of the cells faulty, workers killed and
                                                                       frozen

Each round runs two workers without and with the 30 cells, in turns, and times both from the start of the supervisor
until the function has been called for every good cell of the other shards. After the last round all 30 are parked, half
of them are skipped, and the others are replayed with a corrected function. Servers do not wait for the disk at a
commit.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import platform
import random
import signal
import statistics
import sys
import tempfile
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import schemaless
from schemaless.local.options import RELAXED
from schemaless.local.servers import down, up
from schemaless.store.followers.membership import Timing
from schemaless.store.followers.supervisor import Supervisor
from schemaless.store.triggers.admin import Triggers
from schemaless.store.triggers.supervision import caught_up, prepare, trigger_supervisor
from tests.store.followers import poison
from tests.store.followers.poison import EXITS, GOOD, HANGS, RAISES, Called

LEASE_S = 2.0


def put(store: schemaless.Datastore, kinds: Sequence[tuple[int, str]], work_ms: float) -> set[Called]:
    """Put a cell into each of these shards, of this kind."""
    cells, of_kind = [], {}
    rows = map(uuid.UUID, (f"{number:032x}" for number in range(1 << 62)))
    spare: dict[int, list[uuid.UUID]] = {shard: [] for shard in range(store.shard_count)}
    for shard, kind in kinds:
        while not spare[shard]:
            row = next(rows)
            spare[store.shard_of(row)].append(row)
        row = spare[shard].pop()
        of_kind[row] = kind
        cells.append(schemaless.NewCell(row, "BASE", 1, {"kind": kind, "work_s": work_ms / 1e3}))
    return {
        Called(of_kind[done.key.row_key], store.shard_of(done.key.row_key), done.added_id)
        for start in range(0, len(cells), 500)
        for done in store.put_cells(cells[start : start + 500])
    }


@contextlib.contextmanager
def running(url: str, trigger: schemaless.Trigger, target: str, workers: int, timing: Timing) -> Iterator[Supervisor]:
    """Run a supervisor for the block."""
    stop = threading.Event()
    with schemaless.connect(url) as store:
        supervisor = trigger_supervisor(store, target, trigger.name, workers, timing=timing)
        thread = threading.Thread(target=supervisor.run, args=(stop.is_set,))
        thread.start()
        try:
            yield supervisor
        finally:
            stop.set()
            thread.join()


def wait_until(condition: Callable[[], bool], patience_s: float = 900.0) -> float:
    """Wait for something; return how long that took."""
    began_s = time.monotonic()
    while not condition():
        if time.monotonic() > began_s + patience_s:
            raise TimeoutError(f"not within {patience_s:.0f} s")
        time.sleep(0.02)
    return time.monotonic() - began_s


def drained(url: str, log: Path, asked: argparse.Namespace, bad: int, *, to_the_end: bool) -> float:
    """Return how long it takes to call all good cells outside shard 0, with ``bad`` cells that kill in shard 0."""
    for old in (log, log.with_suffix(".fixed")):
        old.unlink(missing_ok=True)
    log.touch()
    with schemaless.connect(url) as store:
        put(store, [(0, EXITS)] * bad, 0)
        others = store.shard_count - 1
        good = put(store, [(1 + number % others, GOOD) for number in range(asked.good)], asked.work_ms)
        prepare(store, poison.exits)
        triggers = Triggers(store)
        began_s = time.monotonic()
        with running(url, poison.exits, poison.TARGET, asked.workers, Timing(probation_s=2.0)) as supervisor:
            took_s = wait_until(lambda: good <= set(poison.calls(log)))
            kinds = Counter(call.kind for call in poison.calls(log))
            deaths = sum(seat.kills for seat in supervisor._healthy)  # noqa: SLF001 - what the log says as lines
            print(
                f"    {bad} cells that kill: {asked.good:,} good cells were called after {took_s:.2f} s; by then "
                f"{kinds[EXITS]} calls had killed their worker, {deaths} of which served other shards",
                flush=True,
            )
            if to_the_end:
                wait_until(lambda: len(triggers.parked("exits", [0])) == bad)
                parked_s, calls = time.monotonic() - began_s, Counter(call.kind for call in poison.calls(log))
                deaths = sum(seat.kills for seat in supervisor._healthy)  # noqa: SLF001
                cells = triggers.parked("exits", [0])
                triggers.skip("exits", cells[::2])
                poison.fix(log)
                triggers.replay("exits", triggers.parked("exits", [0]))
                replayed_s = wait_until(lambda: not triggers.parked("exits", [0]))
                healthy_s = wait_until(lambda: triggers.status("exits").shards[0].state == "running")
                print(
                    f"    all {bad} were parked after {parked_s:.0f} s and {calls[EXITS]} deaths, {deaths} of workers "
                    f"that served other shards; half were skipped, the others came through {replayed_s:.1f} s after "
                    f"'replay'; the shard was healthy again {healthy_s:.1f} s later (after 2 s at its end)",
                    flush=True,
                )
        return took_s


def hostile(url: str, log: Path, asked: argparse.Namespace, seed: int) -> bool:
    """Make a fifth of the cells faulty, kill and freeze workers; return whether each cell was called, in its turn."""
    log.touch()
    chance = random.Random(seed)
    timing = Timing(lease_s=LEASE_S, give_up_s=1.5, renew_s=0.2, busy_s=1.0, note_s=0.02, look_s=0.2)
    with schemaless.connect(url) as store:
        faulty = [(EXITS, RAISES, HANGS)[number % 3] for number in range(asked.hostile // 5)]
        kinds = faulty + [GOOD] * (asked.hostile - len(faulty))
        chance.shuffle(kinds)
        cells = put(store, [(number % store.shard_count, kind) for number, kind in enumerate(kinds)], 0)
        prepare(store, poison.chaos)
        ended, frozen, done, hurt = caught_up(store, poison.chaos), {}, Counter[str](), 0
        began_s = time.monotonic()
        with running(url, poison.chaos, poison.CHAOS, asked.workers, timing) as supervisor:
            while not (ended() and hurt >= asked.hurts and not frozen):
                if time.monotonic() > began_s + 3_600:
                    raise TimeoutError("not within an hour")
                time.sleep(0.1)
                for pid in [pid for pid, until_s in frozen.items() if until_s <= time.monotonic()]:
                    del frozen[pid]
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGCONT)
                called = len(set(poison.calls(log)))
                alive = [child.process.pid for child in supervisor._occupied]  # noqa: SLF001
                alive = [pid for pid in alive if pid is not None and pid not in frozen]
                if hurt < asked.hurts and alive and called * (asked.hurts + 1) >= len(cells) * (hurt + 1):
                    pid, how = chance.choice(alive), chance.choice((signal.SIGKILL, signal.SIGSTOP))
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, how)
                    if how is signal.SIGSTOP:
                        frozen[pid] = time.monotonic() + 2 * LEASE_S
                    hurt += 1
                    done[how.name] += 1
            took_s = time.monotonic() - began_s
        calls = poison.calls(log)
        first = poison.first_calls(calls)
        parked = {(cell.shard, cell.added_id) for cell in Triggers(store).parked("chaos", range(store.shard_count))}
    turns = [[call.added_id for call in first if call.shard == shard] for shard in range(store.shard_count)]
    out_of_turn = sum(ids != sorted(ids) for ids in turns)
    missing, wrong = cells - set(calls), parked ^ {(c.shard, c.added_id) for c in cells if c.kind != GOOD}
    print(
        f"hostile, {len(cells):,} cells in {store.shard_count} shards, {asked.workers} workers, {len(faulty):,} cells "
        f"faulty (a third each: exit, raise, hang), {done['SIGKILL']} kill -9, {done['SIGSTOP']} freezes past the "
        f"lease, {took_s:.0f} s: {len(missing)} cells never called, {out_of_turn} shards out of order, {len(parked):,} "
        f"parked, {len(wrong)} of them wrongly or missing; {len(calls) - len(first):,} calls repeated; load "
        f"{os.getloadavg()[0]:.1f}"
    )
    return not (missing or out_of_turn or wrong)


def main() -> int:
    """Run the requested parts; fail if a cell is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--good", type=int, default=589, help="cells of other shards (default: %(default)s)")
    parser.add_argument("--poison", type=int, default=30, help="cells that kill, in shard 0 (default: %(default)s)")
    parser.add_argument("--work-ms", type=float, default=0.0, help="how long a call takes (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="(default: %(default)s)")
    parser.add_argument("--hostile", type=int, metavar="CELLS", help="a fifth of them faulty, instead of rounds")
    parser.add_argument(
        "--hurts", type=int, default=10, help="with --hostile: kills and freezes (default: %(default)s)"
    )
    parser.add_argument("--workers", type=int, default=2, help="(default: %(default)s)")
    parser.add_argument("--shards", type=int, default=8, help="of the datastore (default: %(default)s)")
    parser.add_argument("--flavour", choices=("mysql", "mariadb"), default="mysql")
    asked = parser.parse_args()
    logging.getLogger("schemaless").setLevel(logging.ERROR)
    folder = Path(tempfile.mkdtemp(prefix="schemaless-poison-"))
    log = folder / "calls"
    os.environ[poison.LOG] = str(log)
    good = True
    try:
        servers = up(folder, 2, asked.flavour, tied=True, remove=True, options=dict(RELAXED))
        print(
            f"{asked.flavour} {servers[0].version}, {len(servers)} servers, {os.cpu_count()} cores "
            f"({platform.machine()}), CPython {platform.python_version()}"
        )

        def new(name: str) -> str:
            return schemaless.create(name, asked.shards, [server.url for server in servers])

        if asked.hostile:
            return 0 if hostile(new("hostile"), log, asked, 28) else 1
        times: dict[int, list[float]] = {0: [], asked.poison: []}
        for number in range(asked.rounds):
            for bad, took_s in times.items():
                last = bad > 0 and number == asked.rounds - 1
                took_s.append(drained(new(f"round_{number}_{bad}"), log, asked, bad, to_the_end=last))
        clean_s, bad_s = (statistics.median(each) for each in times.values())
        good = bad_s <= 2 * clean_s
        print(
            f"{asked.good:,} good cells of {asked.work_ms:g} ms in {asked.shards - 1} shards, {asked.workers} workers: "
            f"{clean_s:.2f} s without and {bad_s:.2f} s with {asked.poison} cells that kill in another shard: "
            f"{bad_s / clean_s:.2f} of the time (medians of {asked.rounds}); load {os.getloadavg()[0]:.1f}"
        )
    finally:
        down(folder, delete=True)
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main())
