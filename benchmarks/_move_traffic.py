"""Writers, a reader and a follower of one shard, in separate processes that send their observations at the end."""

from __future__ import annotations

import itertools
import random
import threading
import time
import uuid
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any, Final

import schemaless
from schemaless import Datastore

SHARD: Final = 0
_POLL_S: Final = 0.05
_LATEST: Final = 100
_SAMPLE: Final = 1_000


@dataclass
class Told:
    """Results that writers and the reader got.

    Attributes:
        written: rows by added_id, as acknowledged.
        began_s: when each put began, on the monotonic clock.
        took_s: how long it took, all of its attempts included.
        failed: error messages of puts that were repeated.
        missing: acknowledged rows that the reader was not given.
        reads: how many calls the reader made.
    """

    written: dict[int, bytes] = field(default_factory=dict)
    began_s: array[float] = field(default_factory=lambda: array("d"))
    took_s: array[float] = field(default_factory=lambda: array("d"))
    failed: list[str] = field(default_factory=list)
    missing: list[bytes] = field(default_factory=list)
    reads: int = 0


@dataclass
class Followed:
    """Cells that a follower was given, from the shard's first one on.

    Attributes:
        before: number, sum and XOR of the ids of cells that existed beforehand.
        later: ids of cells that were written later.
        out_of_order: ids that were not above the previous one.
    """

    before: tuple[int, int, int] = (0, 0, 0)
    later: array[int] = field(default_factory=lambda: array("Q"))
    out_of_order: list[int] = field(default_factory=list)


def rows_of(store: Datastore) -> Iterator[uuid.UUID]:
    """Yield new rows of the shard."""
    return (row for row in iter(uuid.uuid4, None) if store.shard_of(row) == SHARD)


def paced(per_s: float, stop: threading.Event) -> Iterator[None]:
    """Yield at this rate, or as fast as the caller iterates; turns missed during a slow call are not made up for."""
    if not per_s:
        while not stop.is_set():
            yield
        return
    next_s = time.monotonic() + random.uniform(0, 1 / per_s)
    while not stop.wait(max(0.0, next_s - time.monotonic())):
        yield
        next_s = max(next_s + 1 / per_s, time.monotonic())


def longest(told: Told, first_s: float, last_s: float) -> float:
    """Return the duration of the longest put under way between two moments; 0 if there is none."""
    calls = zip(told.began_s, told.took_s, strict=False)
    return max((took_s for began_s, took_s in calls if began_s < last_s and began_s + took_s > first_s), default=0.0)


def call(url: str, options: Any, out: Connection) -> None:
    """Put and get until told to stop, and answer requests for put durations; then send the results."""
    told, stop, lock = Told(), threading.Event(), threading.Lock()
    errors: list[BaseException] = []

    def guarded(work: Any, store: Datastore) -> None:
        try:
            work(store)
        except BaseException as error:  # noqa: BLE001 - said by the process
            errors.append(error)

    def write(store: Datastore) -> None:
        rows = rows_of(store)
        for _ in paced(options.per_s / options.writers, stop):
            row, began_s = next(rows), time.monotonic()
            while True:
                try:
                    put = store.put_cell(row, "BASE", 1, "x" * options.body_bytes)
                    break
                except schemaless.ServerError as error:
                    told.failed.append(f"{type(error).__name__}: {error}")
                    time.sleep(0.02)
            took_s = time.monotonic() - began_s
            with lock:
                told.began_s.append(began_s)
                told.took_s.append(took_s)
            told.written[put.added_id] = row.bytes

    def read(store: Datastore) -> None:
        there = [cell.row_key.bytes for cell in itertools.islice(store.iter_shard(SHARD), _SAMPLE)]
        latest: list[bytes] = []
        for _ in paced(options.reads_per_s, stop):
            if not latest:
                latest = list(told.written.copy().values())[-_LATEST:] + random.choices(there, k=_LATEST // 10)
            row = latest.pop()
            told.reads += 1
            if store.get_cell(uuid.UUID(bytes=row), "BASE", 1) is None:
                told.missing.append(row)

    with schemaless.connect(url, pool_size=options.writers + 2) as store:
        works = [write] * options.writers + [read]
        threads = [threading.Thread(target=guarded, args=(work, store), daemon=True) for work in works]
        for thread in threads:
            thread.start()
        while (asked := out.recv()) is not None:
            out.send(longest(told, *asked))
        stop.set()
        for thread in threads:
            thread.join()
    out.send((told, [repr(error) for error in errors]))


def follow(url: str, top: int, seen: Any, last: Any, out: Connection) -> None:
    """Follow the shard from its first cell until it has passed ``last``, then send what was given.

    Args:
        top: the highest id that existed beforehand.
        seen: receives the last id that was given, for others to read.
        last: if above 0, the follower ends at the first cell after it.
    """
    followed = Followed()
    count, total, mixed, previous = 0, 0, 0, 0
    with schemaless.connect(url) as store:
        for cell in store.iter_shard(SHARD, follow=True, poll_s=_POLL_S):
            added_id = cell.added_id
            if added_id <= previous:
                followed.out_of_order.append(added_id)
            previous = added_id
            if added_id <= top:
                count, total, mixed = count + 1, total + added_id, mixed ^ added_id
                if added_id == top or count % 10_000 == 0:
                    seen.value = added_id
            else:
                followed.later.append(added_id)
                seen.value = added_id
                if last.value and added_id > last.value:
                    break
    followed.before = count, total, mixed
    out.send(followed)


def faults_of_follower(followed: Followed, before: tuple[int, int, int], ids: Sequence[int], last: int) -> list[str]:
    """Return what is wrong with what a follower was given; empty if it got each cell once and in order.

    Args:
        before: like ``Followed.before``, of the cells that existed beforehand.
        ids: ids of the cells that were written later.
        last: cells after it do not count.
    """
    expected = {added_id for added_id in ids if added_id <= last}
    given = [added_id for added_id in followed.later if added_id <= last]
    faults = []
    if followed.before != before:
        faults.append(f"{before[0] - followed.before[0]:,} of those beforehand skipped (or other ones given)")
    if skipped := expected - set(given):
        faults.append(f"{len(skipped):,} skipped")
    if strange := set(given) - expected:
        faults.append(f"{len(strange):,} given that were not acknowledged")
    if len(given) != len(set(given)) or followed.out_of_order:
        faults.append(f"{len(given) - len(set(given)):,} given twice, {len(followed.out_of_order):,} out of order")
    return faults


def faults_of_shard(written: dict[int, bytes], there: Sequence[tuple[int, bytes]]) -> list[str]:
    """Return how a shard's later cells differ from what was acknowledged; empty if they do not.

    Args:
        written: rows by added_id.
        there: added_id and row of every cell after those that existed beforehand.
    """
    by_row: dict[bytes, list[int]] = {}
    for added_id, row in there:
        by_row.setdefault(row, []).append(added_id)
    lost = sum(row not in by_row for row in written.values())
    renumbered = sum(row in by_row and added_id not in by_row[row] for added_id, row in written.items())
    doubled = sum(len(ids) > 1 for ids in by_row.values()) + len(there) - len({added_id for added_id, _ in there})
    strange = len(by_row.keys() - set(written.values()))
    counts = {"lost": lost, "renumbered": renumbered, "doubled": doubled, "not acknowledged": strange}
    return [f"{count:,} {name}" for name, count in counts.items() if count]
