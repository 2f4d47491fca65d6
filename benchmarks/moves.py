"""A shard moved back and forth under writers, a reader and a follower: what was lost, and how long programs waited.

    python benchmarks/moves.py --moves 20 --writers 8 --cells 1000000
    python benchmarks/moves.py --flavour mariadb --moves 20 --writers 8 --cells 200000
    python benchmarks/moves.py --moves 4 --cells 10000000 --body-bytes 16 --buffer-pool 3G

The writers put cells one by one, ``--per-s`` per second in all; the reader gets what was acknowledged last; the
follower reads the shard from its first cell on. They and the mover are separate processes. Each line is a move: how
long it took to copy the cells that existed at its beginning, and those written during that copy (the tail); attempts at
the cut; the pause, from the lock to the catalog's change; the longest put during the cut; cells copied per second; and
the parts of the pause: the lock, the source's renames, the target's, the catalog's change, and the rest, which is
copying. What a move leaves behind is dropped after it.

At the end, the shard is compared with what was acknowledged: the initial cells (``--cells``) by number and by a digest
of ids, keys, times and bodies; the writers' cells by row and id. Then cells are removed, renumbered and changed by SQL,
and the run fails unless each change is detected.
"""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import os
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final
from unittest.mock import patch

from _move_traffic import (
    SHARD,
    Followed,
    Told,
    call,
    faults_of_follower,
    faults_of_shard,
    follow,
    rows_of,
)

import schemaless
from schemaless import Datastore, NewStoredCell
from schemaless.local.options import RELAXED
from schemaless.ops.jobs.throttle import Thresholds
from schemaless.ops.move import run as moves
from schemaless.ops.move.fence import Fence
from schemaless.ops.move.record import Records
from schemaless.ops.move.spec import MoveSpec
from schemaless.store.internals import internals_of
from schemaless.testing.servers import private_servers

DURABLE: Final = {"innodb-flush-log-at-trx-commit": "1", "sync-binlog": "1", "innodb-flush-method": "O_DIRECT"}
_AT_ONCE: Final = 1_000
_FIRST: Final = 20_000
_BY_SERVER: Final = 200_000
_LEAD_S: Final = 2.0
_DIGEST: Final = (
    b"COUNT(*), COALESCE(SUM(added_id),0), COALESCE(BIT_XOR(added_id),0), COALESCE(BIT_XOR(CAST(CONV(LEFT(SHA2("
    b"CONCAT_WS('|',added_id,HEX(row_key),column_name,ref_key,UNIX_TIMESTAMP(created_at),HEX(body)),256),16),16,10) "
    b"AS UNSIGNED)),0)"
)


PARTS: Final = ("lock", "rename_source", "rename_target", "flip")
"""Functions whose time is measured within a pause; the rest of it is copying."""


@dataclass
class Move:
    """When the parts of a move began, on the monotonic clock.

    Attributes:
        copied_s: when all initial cells were on the target.
        tries_s: when each attempt at the cut began.
        parts_s: within the pause, how long each of ``PARTS`` took.
        moved_s: when the catalog named the target.
        ended_s: when the shard was compared.
    """

    began_s: float
    top: int
    cells: int = 0
    copied_s: float = 0.0
    tries_s: list[float] = field(default_factory=list)
    parts_s: dict[str, float] = field(default_factory=dict)
    moved_s: float = 0.0
    ended_s: float = 0.0
    pause_s: float = 0.0


def main() -> int:
    """Run the moves and print the outcome; return 1 if anything is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--flavour", choices=("mysql", "mariadb"), default="mysql")
    parser.add_argument("--moves", type=int, default=4)
    parser.add_argument("--at-most", type=float, default=86_400, help="seconds until no further move begins")
    parser.add_argument("--cells", type=int, default=10_000, help="in the shard beforehand")
    parser.add_argument("--body-bytes", type=int, default=500)
    parser.add_argument("--writers", type=int, default=4)
    parser.add_argument("--per-s", type=float, default=200, help="puts per second, of all writers; 0: no pauses")
    parser.add_argument("--reads-per-s", type=float, default=50)
    parser.add_argument("--quiet", type=float, default=20, help="seconds before the first move")
    parser.add_argument("--durable", action="store_true", help="servers that wait for the disk at each commit")
    parser.add_argument("--buffer-pool", default="512M", help="of each server")
    parser.add_argument("--yield-above", help="calls a second, or off: as for 'shards move'")
    options = parser.parse_args()
    logging.getLogger("schemaless").setLevel(logging.ERROR)
    server_options = {"innodb-buffer-pool-size": options.buffer_pool, **(DURABLE if options.durable else {})}
    with private_servers(options.flavour, 2, server_options) as servers:
        print(f"{servers[0].flavour} {servers[0].version}, {RELAXED | server_options}")
        print(f"load average {load()}", flush=True)
        return soak(schemaless.create("soak", 2, [server.url for server in servers]), options)


def soak(url: str, options: argparse.Namespace) -> int:
    """Move the shard back and forth under load, and compare it with what was acknowledged."""
    began_s = time.monotonic()
    with schemaless.connect(url, read_timeout_s=600) as store:
        fill(store, options.cells, options.body_bytes)
        before, top = digest(store), top_of(store)
        print(f"{before[0]:,} cells beforehand, filled in {time.monotonic() - began_s:.0f} s", flush=True)
        with traffic(url, top, options) as (calling, following, seen, last):
            while seen.value < top:
                following.check()
                time.sleep(0.1)
            calling.start()
            time.sleep(_LEAD_S)
            quiet_s = time.monotonic()
            time.sleep(options.quiet)
            done: list[Move] = []
            print("move  copy s  tail s  tries  pause ms  longest put ms  cells/s  parts ms", flush=True)
            while len(done) < options.moves and time.monotonic() - began_s < options.at_most:
                following.check()
                done.append(move(store, options))
                print(line(len(done), done[-1], calling.ask(done[-1].moved_s - done[-1].pause_s, done[-1].moved_s)))
                sys.stdout.flush()
            told: Told = calling.result()
            last.value = max(told.written)
            put = store.put_cell(next(rows_of(store)), "BASE", 1, "last")
            told.written[put.added_id] = put.key.row_key.bytes
            followed: Followed = following.result()
        show(told, quiet_s, done)
        print(f"load average {load()}")
        faults = check(store, told, followed, before, top, int(last.value))
        return int(bool(faults) or not control(store, told, followed, before, top, int(last.value)))


# Data


def fill(store: Datastore, cells: int, body_bytes: int) -> None:
    """Put cells into the shard: some by the library, the rest as copies of these made by the server."""
    rows = rows_of(store)
    left = min(cells, _FIRST)
    while left > 0:
        body = b'"%b"' % (b"y" * body_bytes)
        store.put_stored_cells(
            [NewStoredCell(row, "BASE", 1, body) for row in islice(rows, min(left, _AT_ONCE))], trusted=True
        )
        left -= _AT_ONCE
    there, turn = min(cells, _FIRST), 0
    while there < cells:
        turn += 1
        key = b"LEFT(UNHEX(SHA2(CONCAT(%d,'-',added_id),256)),16)" % turn
        for first in range(0, top_of(store), _BY_SERVER):
            sql = b"INSERT INTO soak_0000.cell (row_key,column_name,ref_key,body) SELECT %b,column_name,ref_key,body "
            sql += b"FROM soak_0000.cell WHERE added_id>%d AND added_id<=%d AND CRC32(%b)%%2=%d LIMIT %d"
            made = sql % (key, first, first + _BY_SERVER, key, SHARD, cells - there)
            there += internals_of(store).shards.execute(SHARD, made).affected
            if there == cells:
                break


def rows_in(store: Datastore, sql: bytes) -> Sequence[tuple[Any, ...]]:
    """Return rows of the shard, wherever it is."""
    return internals_of(store).shards.rows(SHARD, sql)


def top_of(store: Datastore) -> int:
    """Return the shard's highest id."""
    return int(rows_in(store, b"SELECT COALESCE(MAX(added_id),0) FROM soak_0000.cell")[0][0])


def digest(store: Datastore, top: int | None = None) -> tuple[int, int, int, int]:
    """Return number, sum of ids, XOR of ids, and XOR of the rows' digests, of the cells up to ``top``."""
    top = top_of(store) if top is None else top
    count, total, ids, mixed = 0, 0, 0, 0
    for first in range(0, top, _BY_SERVER):
        sql = b"SELECT %b FROM soak_0000.cell WHERE added_id>%d AND added_id<=%d"
        row = rows_in(store, sql % (_DIGEST, first, min(top, first + _BY_SERVER)))[0]
        count, total, ids, mixed = count + int(row[0]), total + int(row[1]), ids ^ int(row[2]), mixed ^ int(row[3])
    return count, total, ids, mixed


# Traffic


class Process:
    """A process that sends its findings when it ends, on request or by itself."""

    def __init__(self, target: Any, *arguments: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self._here, there = context.Pipe()
        self._process = context.Process(target=target, args=(*arguments, there), daemon=True)

    def start(self) -> None:
        """Begin."""
        self._process.start()

    def check(self) -> None:
        """Exit if the process has already ended."""
        if not self._process.is_alive() and not self._here.poll():
            sys.exit(f"{self._process} ended with {self._process.exitcode}")

    def ask(self, *question: Any) -> Any:
        """Return its answer to a question while it runs."""
        self._here.send(question)
        return self._here.recv()

    def result(self) -> Any:
        """End it, and return what it has found."""
        self._here.send(None)
        while not self._here.poll(1):
            self.check()
        found = self._here.recv()
        if isinstance(found, tuple):
            found, errors = found
            for error in errors:
                sys.exit(f"a thread of the traffic ended: {error}")
        self._process.join()
        return found

    def stop(self) -> None:
        """Kill it, whatever it is doing."""
        if self._process.is_alive():
            self._process.terminate()
            self._process.join()


@contextmanager
def traffic(url: str, top: int, options: argparse.Namespace) -> Iterator[tuple[Process, Process, Any, Any]]:
    """Return writers and reader, not yet started; the follower; the id it has reached, and the one to end at."""
    context = multiprocessing.get_context("spawn")
    seen, last = context.Value("Q", 0), context.Value("Q", 0)
    calling, following = Process(call, url, options), Process(follow, url, top, seen, last)
    following.start()
    try:
        yield calling, following, seen, last
    finally:
        for process in (calling, following):
            process.stop()


# Moves


def move(store: Datastore, options: argparse.Namespace) -> Move:
    """Move the shard to the other cluster, and drop what is left behind."""
    topology = internals_of(store).topology
    target = next(each.name for each in topology.clusters if each != topology.cluster_of(SHARD))
    thresholds = Thresholds()
    if options.yield_above is not None:
        thresholds = Thresholds(yield_above_per_s=None if options.yield_above == "off" else float(options.yield_above))
    this = Move(time.monotonic(), top_of(store))
    with clocked(this):
        (record,) = moves.run(store, MoveSpec(target, thresholds=thresholds), [SHARD])
    this.ended_s = time.monotonic()
    assert record.phase == "verified"
    assert record.pause_s is not None
    this.pause_s = record.pause_s
    for left in moves.left_behind(store):
        this.cells = left.cells
        moves.drop(store, left)
    return this


@contextmanager
def clocked(this: Move) -> Iterator[None]:
    """Record when parts of a move begin, based on what the mover writes to the catalog."""
    note = Records.note

    def noted(self: Records, run: Any, changes: dict[str, Any], **how: Any) -> None:
        note(self, run, changes, **how)
        if not this.copied_s and changes.get("settled_id", -1) >= this.top:
            this.copied_s = time.monotonic()
        if changes.get("phase") == "cutting":
            this.tries_s.append(time.monotonic())

    def timed(owner: Any, name: str) -> Any:
        does = getattr(owner, name)

        def work(*arguments: Any) -> Any:
            began_s = time.monotonic()
            try:
                return does(*arguments)
            finally:
                this.moved_s = time.monotonic()
                this.parts_s[name] = this.moved_s - began_s

        return patch.object(owner, name, work)

    with ExitStack() as patches:
        patches.enter_context(patch.object(Records, "note", noted))
        for name in PARTS:
            patches.enter_context(timed(Records if name == "flip" else Fence, name))
        yield


def line(number: int, this: Move, longest_s: float) -> str:
    """Return the line about a move."""
    copied_s = min(this.copied_s or this.tries_s[0], this.tries_s[0])
    took_s = this.tries_s[-1] - this.began_s
    return (
        f"{number:4} {copied_s - this.began_s:7.1f} {this.tries_s[-1] - copied_s:7.1f} {len(this.tries_s):6}"
        f" {this.pause_s * 1000:9.0f} {longest_s * 1000:15.0f} {this.cells / took_s:8,.0f}  {parts(this)}"
    )


def parts(this: Move) -> str:
    """Return what the pause consisted of, in milliseconds."""
    took_ms = [this.parts_s[name] * 1000 for name in PARTS]
    return " ".join(f"{each:.0f}" for each in (*took_ms, this.pause_s * 1000 - sum(took_ms)))


# What came of it


def show(told: Told, quiet_s: float, done: Sequence[Move]) -> None:
    """Print how long puts took: while nothing was moved, in each part of a move, and around the cuts."""
    spans: dict[str, list[tuple[float, float]]] = {
        "quiet": [(quiet_s, done[0].began_s)],
        "copying": [(each.began_s, each.moved_s - each.pause_s) for each in done],
        "cuts": [(each.moved_s - each.pause_s, each.moved_s) for each in done],
        "comparing": [(each.moved_s, each.ended_s) for each in done],
    }
    found: dict[str, list[float]] = {name: [] for name in spans}
    for began_s, took_s in zip(told.began_s, told.took_s, strict=True):
        for name in ("cuts", "copying", "comparing", "quiet"):
            if any(began_s < last_s and began_s + took_s > first_s for first_s, last_s in spans[name]):
                found[name].append(took_s)
                break
    print(f"pauses, ms:            {spread([each.pause_s for each in done])}")
    for name, seconds in found.items():
        if seconds:
            print(f"puts, {name + ', ms:':17}{spread(seconds)}")
    if found["quiet"] and found["copying"]:
        print(f"p99 while copying / quiet: {p99(found['copying']) / p99(found['quiet']):.2f}")
    print(f"{len(told.failed):,} attempts at puts failed{': ' + told.failed[0] if told.failed else ''}")


def p99(seconds: Sequence[float]) -> float:
    """Return the 99th percentile: 99 of 100 were at most this long."""
    ordered = sorted(seconds)
    return ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))]


def spread(seconds: Sequence[float]) -> str:
    """Return median, 99th percentile and maximum in milliseconds, and the count."""
    middle, most = statistics.median(seconds) * 1000, max(seconds) * 1000
    return f"p50 {middle:7.1f}  p99 {p99(seconds) * 1000:7.1f}  most {most:7.1f}  ({len(seconds):,})"


def later(store: Datastore, top: int) -> list[tuple[int, bytes]]:
    """Return added_id and row of the cells after ``top``."""
    found: list[tuple[int, bytes]] = []
    after = top
    sql = b"SELECT added_id,row_key FROM soak_0000.cell WHERE added_id>%d ORDER BY added_id LIMIT 50000"
    while rows := rows_in(store, sql % after):
        found += [(int(added_id), bytes(row)) for added_id, row in rows]
        after = found[-1][0]
    return found


def check(
    store: Datastore, told: Told, followed: Followed, before: tuple[int, int, int, int], top: int, last: int
) -> list[str]:
    """Print and return what is wrong; the follower must have been given the ids up to ``last``."""
    now = digest(store, top)
    faults = []
    if now[:3] != before[:3]:
        faults.append(f"beforehand: {before[0] - now[0]:,} lost, or others in their place")
    elif now != before:
        faults.append("beforehand: a cell is another one by now")
    faults += faults_of_shard(told.written, later(store, top))
    faults += [f"follower: {fault}" for fault in faults_of_follower(followed, before[:3], list(told.written), last)]
    if told.missing:
        faults.append(f"reader: {len(told.missing):,} of {told.reads:,} reads found nothing")
    print(
        f"{now[0]:,} cells of {before[0]:,} beforehand, {len(told.written):,} acknowledged since; "
        f"{told.reads:,} reads; follower: {followed.before[0]:,} and {len(followed.later):,} cells"
    )
    print("; ".join(faults) or "0 lost, 0 renumbered, 0 doubled, 0 skipped", flush=True)
    return faults


def control(
    store: Datastore, told: Told, followed: Followed, before: tuple[int, int, int, int], top: int, last: int
) -> bool:
    """Damage cells by SQL, and return whether the check detects each kind."""
    run = internals_of(store).shards.execute
    some = sorted(told.written)[len(told.written) // 2 :][:3]
    middle = rows_in(store, b"SELECT added_id FROM soak_0000.cell WHERE added_id>%d LIMIT 2" % (top // 2))
    run(SHARD, b"DELETE FROM soak_0000.cell WHERE added_id=%d" % some[0])
    run(SHARD, b"UPDATE soak_0000.cell SET added_id=%d WHERE added_id=%d" % (last + 1000, some[1]))
    row = told.written[some[2]].hex().encode()
    sql = b"INSERT INTO soak_0000.cell (row_key,column_name,ref_key,body) VALUES (x'%b','OTHER',1,'1')"
    run(SHARD, sql % row)
    run(SHARD, b"UPDATE soak_0000.cell SET body='1' WHERE added_id=%d" % middle[0][0])
    followed.later.remove(some[0])
    followed.later.append(some[1])
    print("after one row lost, one renumbered, one doubled, one changed, and one skipped and one given twice:")
    faults = check(store, told, followed, before, top, last)
    run(SHARD, b"DELETE FROM soak_0000.cell WHERE added_id=%d" % middle[1][0])
    print("and one lost of those beforehand:")
    faults += check(store, told, followed, before, top, last)
    wanted = ("1 lost", "1 renumbered", "1 doubled", "another one by now", "1 skipped", "1 given twice", "1 lost, or")
    lacking = [each for each in wanted if not any(each in fault for fault in faults)]
    print(f"NOT FOUND: {lacking}" if lacking else "all of it found")
    return not lacking


def load() -> str:
    """Return the machine's load, over one and five minutes."""
    return ", ".join(f"{each:.1f}" for each in os.getloadavg()[:2])


if __name__ == "__main__":
    sys.exit(main())
