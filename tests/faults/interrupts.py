"""Exceptions that come from outside into a call: at each of its lines, by a trace, and at any moment, by real alarms.

What must hold afterwards: no slot of the pool is lost, no transaction is open, and each read gives the cell that was
asked for. ``ARRIVING`` exceptions must also reach the caller unchanged.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import json
import math
import os
import random
import signal
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import FrameType
from typing import Any, Final

import schemaless
from schemaless.store.datastore import Datastore
from schemaless.store.internals import internals_of
from schemaless.wire.pool import NodePool

ROOMS: Final = (
    "/pymysql/",
    *(f"/schemaless/{package}/" for package in ("wire", "topology", "cells", "feed", "indexes")),
    "/schemaless/store/datastore.py",
    "/schemaless/store/internals.py",
)
"""Whose lines are interrupted: the driver's, and those of the library that lie between it and the caller."""


class TimeIsUp(Exception):
    """What a framework's time limit raises, from a signal's handler."""


RAISED: Final[Sequence[type[BaseException]]] = (
    TimeIsUp,
    TimeoutError,
    OSError,
    RuntimeError,
    ValueError,
    KeyboardInterrupt,
)

ARRIVING: Final = (TimeIsUp, KeyboardInterrupt)
"""Those that end the call. The driver raises the other classes itself, so such an exception may end an attempt only."""

PACKET_BYTES: Final = 3 << 10
"""What a pool has to take for the server's ``max_allowed_packet``, for a batch to need several INSERTs."""

_REST_S: Final = 0.001

TOLD: Final = ("alarms", "came too late")
"""What ``by_alarms`` counts beside what was wrong."""

Call = Callable[[uuid.UUID], object]


def calls_of(store: Datastore) -> dict[str, Call]:
    """Return the calls of a datastore, for a row of its own each."""

    def body(row: uuid.UUID) -> dict[str, str]:
        return {"row": str(row), "fill": "x" * 64}

    def batch(row: uuid.UUID, fill_bytes: int) -> object:
        fill = random.Random(row.int).randbytes(fill_bytes).hex()
        cells = [schemaless.NewCell(row, f"C{n}", 1, body(row) | {"fill": fill}) for n in range(3)]
        return store.put_cells(cells)

    shard = 0
    return {
        "put_cell": lambda row: store.put_cell(row, "BASE", 1, body(row)),
        "put_cell again": lambda row: [store.put_cell(row, "BASE", 1, body(row)) for _ in range(2)],
        "put_cells": lambda row: batch(row, 10),
        "put_cells in several INSERTs": lambda row: batch(row, 900),
        "append_cell": lambda row: store.append_cell(row, "BASE", body(row)),
        "get_cell": lambda row: store.get_cell(row, "BASE", 1),
        "get_row": store.get_row,
        "get_cells_latest": lambda row: store.get_cells_latest([(row, "BASE"), (row, "C0")]),
        "get_versions": lambda row: list(store.get_versions(row, "BASE")),
        "get_cells_for_shard": lambda row: store.get_cells_for_shard(shard, limit=5),
    }


class Witness:
    """Rows that are known, and looks that tell whether a datastore is as sound as before."""

    def __init__(self, store: Datastore, *, alone: bool = True) -> None:
        self._store = store
        self._alone = alone
        self._known = {uuid.uuid4(): f"known {n}" for n in range(8)}
        for row, text in self._known.items():
            store.put_cell(row, "KNOWN", 1, text)
        self._turn = 0

    def pools(self) -> list[NodePool]:
        """Return the pools of the primaries."""
        return [
            internals_of(self._store).shards.pool_for(cluster.primary)
            for cluster in internals_of(self._store).topology.clusters
        ]

    def faults(self, row: uuid.UUID, call: str) -> Counter[str]:
        """Return what is wrong now, behind a call for ``row`` that was interrupted."""
        found: Counter[str] = Counter()
        for pool in self.pools():
            if self._alone:
                found["lost places"] += pool.options.pool_size - pool.slots.free()
            for connection in list(pool.idle) if self._alone else ():
                found["open transactions"] += bool(connection._raw.server_status & 1)
                found["busy ones kept"] += connection.busy
        for asked in (row, self._next()):
            cells = self._store.get_row(asked)
            wanted = self._known.get(asked)
            for cell in cells.values():
                good = cell.body == wanted if wanted else cell.body["row"] == str(asked)  # type: ignore[index, call-overload]
                found["wrong answers"] += not good
            found["wrong answers"] += wanted is not None and len(cells) != 1
            if "put_cells" in call and wanted is None:
                found["half batches"] += len(cells) not in (0, 3)
        return +found

    def _next(self) -> uuid.UUID:
        self._turn += 1
        return list(self._known)[self._turn % len(self._known)]


def interrupted_at(line: int, raised: type[BaseException], call: Callable[[], object]) -> bool | None:
    """Run a call, and raise at its n-th line in ``ROOMS``.

    Returns:
        Whether the exception arrived as it was raised; None where the call has fewer lines.
    """
    left = line
    error = raised("at a line") if raised is not KeyboardInterrupt else KeyboardInterrupt()

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal left
        name = frame.f_code.co_filename
        if not any(room in name for room in ROOMS):
            return None
        if event == "line":
            left -= 1
            if left == 0:
                raise error
        return trace

    arrived: BaseException | None = None
    sys.settrace(trace)
    try:
        call()
    except BaseException as caught:  # noqa: BLE001 - looked at below
        arrived = caught
    finally:
        sys.settrace(None)
    if left > 0:
        if arrived is not None:
            raise arrived
        return None
    return arrived is error


def at_every_line(
    store: Datastore,
    *,
    raised: Sequence[type[BaseException]],
    every: int = 1,
    all_of_them: bool = False,
    cold: bool,
    until_s: float = math.inf,
    calls: Iterable[str] | None = None,
) -> tuple[Counter[str], Counter[str]]:
    """Interrupt each call at each of its lines.

    Args:
        store: a datastore.
        raised: what is raised.
        every: only at each n-th line.
        all_of_them: each class at each line; otherwise they take turns.
        cold: close the connections before each call, so that it connects.
        until_s: when to stop, on the monotonic clock.
        calls: names of the calls; None for all.

    Returns:
        What was wrong, and how many interrupts each call took.
    """
    witness = Witness(store)
    wrong: Counter[str] = Counter()
    count: Counter[str] = Counter()
    every_call = calls_of(store)
    for name, call in every_call.items() if calls is None else [(name, every_call[name]) for name in calls]:
        for offset in range(len(raised)) if all_of_them else (0,):
            for turn, line in enumerate(itertools.count(1, every)):
                if time.monotonic() > until_s:
                    break
                row = uuid.uuid4()
                if cold:
                    store.close()
                kind = raised[(turn + offset) % len(raised)]
                arrived = interrupted_at(line, kind, lambda: call(row))  # noqa: B023
                if arrived is None:
                    break
                count[name] += 1
                wrong[f"{name}: {kind.__name__} swallowed or replaced"] += kind in ARRIVING and not arrived
                wrong.update({f"{name}: {what}": times for what, times in witness.faults(row, name).items()})
    gc.collect()
    return +wrong, count


def by_alarms(store: Datastore, count: int, seed: int, *, alone: bool = True) -> Counter[str]:
    """Interrupt calls with real alarms at any moment.

    Args:
        store: a datastore.
        count: how many alarms have to strike.
        seed: of what is called, and what is raised when.
        alone: whether the datastore's connections are used by this caller only.

    Returns:
        What was wrong; how many "alarms" struck, and how many "came too late".
    """
    chance = random.Random(seed)
    witness = Witness(store, alone=alone)
    calls = calls_of(store)
    took_s = {name: _time_of(call) for name, call in calls.items()}
    wrong: Counter[str] = Counter()
    fired: list[BaseException] = []
    dropped: list[str] = []

    def handler(signum: int, frame: FrameType | None) -> None:
        kind = chance.choice(RAISED)
        fired.append(kind("by an alarm") if kind is not KeyboardInterrupt else KeyboardInterrupt())
        raise fired[-1]

    def note_dropped(unraisable: Any) -> None:
        dropped.append(f"{unraisable.exc_value!r} was dropped by {unraisable.object!r}")

    before = signal.signal(signal.SIGALRM, handler)
    hook_before, sys.unraisablehook = sys.unraisablehook, note_dropped
    try:
        while wrong["alarms"] < count:
            name = chance.choice(list(calls))
            row = uuid.uuid4()
            fired.clear()
            arrived: BaseException | None = None
            try:
                signal.setitimer(signal.ITIMER_REAL, max(1e-6, took_s[name] * chance.uniform(0, 1.2)))
                calls[name](row)
                signal.setitimer(signal.ITIMER_REAL, 0)
            except BaseException as caught:  # noqa: BLE001 - looked at below
                arrived = caught
            signal.setitimer(signal.ITIMER_REAL, 0)
            if not fired:
                wrong["came too late"] += 1
                if arrived is not None:
                    raise arrived
                continue
            wrong["alarms"] += 1
            if arrived is not fired[0] and isinstance(fired[0], ARRIVING):
                wrong[f"{name}: {fired[0]!r} became {arrived!r}"] += 1
            wrong.update(witness.faults(row, name))
    finally:
        signal.signal(signal.SIGALRM, before)
        gc.collect()
        sys.unraisablehook = hook_before
    wrong.update(dropped)
    return +wrong


def _time_of(call: Call) -> float:
    call(uuid.uuid4())
    began_s = time.perf_counter()
    for _ in range(5):
        call(uuid.uuid4())
    return (time.perf_counter() - began_s) / 5


@contextlib.contextmanager
def others_reading(store: Datastore, threads: int) -> Iterator[list[object]]:
    """Read cells in threads during the block; yield what was wrong."""
    wrong: list[object] = []
    over = threading.Event()
    rows = [uuid.uuid4() for _ in range(threads)]
    for row in rows:
        store.put_cell(row, "BASE", 1, str(row))

    def read(row: uuid.UUID) -> None:
        # Who never rests keeps a pool's only place: whom a place is freed for has to get Python's lock first.
        while not over.wait(_REST_S):
            try:
                cell = store.get_cell(row, "BASE", 1)
            except Exception as error:  # noqa: BLE001 - reported to the caller
                wrong.append(error)
            else:
                if cell is None or cell.body != str(row):
                    wrong.append((row, cell))

    readers = [threading.Thread(target=read, args=(row,)) for row in rows]
    for reader in readers:
        reader.start()
    try:
        yield wrong
    finally:
        over.set()
        for reader in readers:
            reader.join()


def in_children(work: Callable[[int], Counter[str]], seeds: Iterable[int]) -> Counter[str]:
    """Run ``work`` in forked children at once, each with a seed; return the sum of what they counted."""
    readers = []
    for seed in seeds:
        reader, writer = os.pipe()
        if os.fork() == 0:
            try:
                told = dict(work(seed))
            except BaseException as error:  # noqa: BLE001 - reported to the parent
                told = {f"a child ended by {error!r}": 1}
            os.write(writer, json.dumps(told).encode())
            os._exit(0)
        os.close(writer)
        readers.append(reader)
    found: Counter[str] = Counter()
    for reader in readers:
        with os.fdopen(reader) as pipe:
            found.update(json.loads(pipe.read()))
        os.wait()
    return found
