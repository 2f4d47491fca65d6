"""Where the time between a cell's commit and its call goes: each step, and what else was slow at that moment.

A separate process puts the cells (``put``). This one watches the listener, the worker and the machine.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

from schemaless.store.followers import dispatch
from schemaless.store.followers.access import DatastoreAccess
from schemaless.store.followers.binlog_notifier import BinlogNotifier
from schemaless.store.followers.checkpoints import Checkpoints
from schemaless.store.followers.discovery import Discovery
from schemaless.store.followers.dispatch import Dispatcher
from schemaless.store.followers.worker import Worker

Cell = tuple[int, int]
"""Shard and added_id."""

STEPS = ("heard", "woken", "read", "called")
SHOWN = ("p50", "p90", "p99", "most")

PUTS = """
import sys, time, uuid, schemaless
url, column, puts, per_s, field = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4]), sys.argv[5]
with schemaless.connect(url) as store:
    for _ in range(200):
        store.get_cell_latest(uuid.uuid4(), column)
    done, began = [], time.monotonic()
    for number in range(puts):
        time.sleep(max(0, began + number / per_s - time.monotonic()))
        body = {field: str(uuid.uuid4()), "at": number} if field else number
        put_s, put = time.monotonic(), store.put_cell(uuid.uuid4(), column, 1, body)
        done.append((store.shard_of(put.key.row_key), put.added_id, put_s, time.monotonic()))
    for line in done:
        print(*line)
"""

LATE = """
import sys, time
while True:
    due = time.monotonic() + 0.002
    time.sleep(0.002)
    print(time.monotonic() - due, flush=True)
"""
"""Program that does nothing but wake up: its lateness is the machine's own part in every figure."""


@dataclass
class Trace:
    """Time at which each cell reached each step, on the clock that all processes share."""

    at_s: dict[str, dict[Cell, float]] = field(default_factory=lambda: {step: {} for step in STEPS})
    heard_up_to: dict[int, list[tuple[int, float]]] = field(default_factory=dict)
    woken_up_to: dict[int, list[tuple[int, float]]] = field(default_factory=dict)
    busy: list[tuple[str, float, float]] = field(default_factory=list)
    puts: list[tuple[Cell, float, float]] = field(default_factory=list)

    def put(self, url: str, column: str, puts: int, per_s: float, field: str = "") -> None:
        """Put cells at a steady pace from a separate process; documents have a UUID in ``field``, if given."""
        command = [sys.executable, "-c", PUTS, url, column, str(puts), str(per_s), field]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        for line in done.stdout.splitlines():
            shard, added_id, put_s, done_s = line.split()
            self.puts.append(((int(shard), int(added_id)), float(put_s), float(done_s)))

    def delays_ms(self, since: str, until: str) -> list[float]:
        """Return the times between two steps of each cell that reached both, shortest first."""
        begun = {cell: done_s for cell, _, done_s in self.puts} if since == "put" else self._at(since)
        # Copied in one step: other threads keep adding.
        ended = dict(self._at(until))
        return sorted(1e3 * (at_s - begun[cell]) for cell, at_s in ended.items() if cell in begun)

    def slow(self, count: int) -> list[str]:
        """Return lines about the slowest cells: each step, and what the worker was doing at that time."""
        called, lines = self.at_s["called"], []
        puts = sorted((each for each in self.puts if each[0] in called), key=lambda each: each[2] - called[each[0]])
        for cell, put_s, done_s in puts[:count]:
            steps = [f"put took {1e3 * (done_s - put_s):.1f}"]
            before_s = done_s
            for step in STEPS:
                at_s = self._at(step).get(cell)
                if at_s is not None:
                    steps.append(f"{step} +{1e3 * (at_s - before_s):.1f}")
                    before_s = at_s
            meanwhile = [
                f"{what} {1e3 * (ended_s - began_s):.1f}"
                for what, began_s, ended_s in self.busy
                if ended_s > done_s and began_s < called[cell] and ended_s - began_s > 0.002
            ][-12:]
            lines.append(f"{cell}: {', '.join(steps)}; meanwhile {', '.join(meanwhile) or 'nothing'}")
        return lines

    def _at(self, step: str) -> dict[Cell, float]:
        up_to = {"heard": self.heard_up_to, "woken": self.woken_up_to}.get(step)
        if up_to is None:
            return self.at_s[step]
        found = {}
        for cell, _, _ in self.puts:
            # News of a later cell of the shard includes this one.
            first = next((at_s for added_id, at_s in up_to.get(cell[0], []) if added_id >= cell[1]), None)
            if first is not None:
                found[cell] = first
        return found

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """During the block, record the steps of all workers and listeners in this process."""
        with contextlib.ExitStack() as stack:
            heard, took, read = BinlogNotifier.notify, BinlogNotifier.take, dispatch.read_batch
            stack.enter_context(patch.object(BinlogNotifier, "notify", self._heard(heard)))
            stack.enter_context(patch.object(BinlogNotifier, "take", self._took(took)))
            stack.enter_context(patch.object(dispatch, "read_batch", self._read(read)))
            for owner, name in (
                (Checkpoints, "write"),
                (Discovery, "poll"),
                (Dispatcher, "_handle_page"),
                (Discovery, "_apply"),
                (Worker, "_report"),
                (Worker, "_wait"),
            ):
                stack.enter_context(patch.object(owner, name, self._timed(name, getattr(owner, name))))
            yield

    def _timed(self, name: str, method: Any) -> Any:
        def timed(*arguments: Any, **named: Any) -> Any:
            began_s = time.monotonic()
            try:
                return method(*arguments, **named)
            finally:
                self.busy.append((name.strip("_"), began_s, time.monotonic()))

        return timed

    def _heard(self, method: Any) -> Any:
        def heard(notifier: BinlogNotifier, tops: dict[str, int]) -> None:
            now_s = time.monotonic()
            for database, added_id in tops.items():
                self.heard_up_to.setdefault(notifier._numbers[database], []).append((added_id, now_s))  # noqa: SLF001
            method(notifier, tops)

        return heard

    def _took(self, method: Any) -> Any:
        def take(notifier: BinlogNotifier) -> Any:
            woken, look = method(notifier)
            now_s = time.monotonic()
            for shard, added_id in woken.items():
                self.woken_up_to.setdefault(shard, []).append((added_id, now_s))
            return woken, look

        return take

    def _read(self, function: Any) -> Any:
        def read(feed: DatastoreAccess, batch: Sequence[Any], column: str | None) -> Any:
            began_s = time.monotonic()
            pages = function(feed, batch, column)
            now_s = time.monotonic()
            self.busy.append((f"read {len(batch)}, {len(batch) - len(pages)} left out,", began_s, now_s))
            for shard, page in pages.items():
                for cell in page.cells:
                    self.at_s["read"][shard, cell.added_id] = now_s
            return pages

        return read


@contextlib.contextmanager
def lateness_ms() -> Iterator[list[float]]:
    """Measure how late a separate process wakes up during the block; filled in, in ascending order, at its end."""
    late: list[float] = []
    with subprocess.Popen([sys.executable, "-c", LATE], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        reader = threading.Thread(target=lambda: late.extend(1e3 * float(line) for line in process.stdout or ()))
        reader.start()
        try:
            yield late
        finally:
            process.kill()
            reader.join()
            late.sort()


def waited_s(pid: int) -> float:
    """Return how long the threads of a process were ready to run but waited for a processor."""
    return sum(int(path.read_text().split()[1]) for path in Path(f"/proc/{pid}/task").glob("*/schedstat")) / 1e9


def ran_s(pid: int) -> float:
    """Return how long the threads of a process had a processor."""
    return sum(int(path.read_text().split()[0]) for path in Path(f"/proc/{pid}/task").glob("*/schedstat")) / 1e9


def quantiles(values: Sequence[float]) -> str:
    """Return p50, p90, p99 and the maximum of sorted values, as text."""
    if not values:
        return "none"
    at = [values[min(len(values) - 1, int(len(values) * part))] for part in (0.5, 0.9, 0.99, 1.0)]
    return ", ".join(f"{name} {value:.1f}" for name, value in zip(SHOWN, at, strict=True))
