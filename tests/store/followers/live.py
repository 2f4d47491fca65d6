"""Worker processes killed with SIGKILL and frozen past their lease, while cells arrive and shards move.

The suite runs this with a few thousand cells, ``benchmarks/followers.py --live`` with any number.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Final
from unittest import mock

import schemaless
from schemaless.ops.move import steps
from schemaless.ops.move.fence import Fence
from schemaless.store.followers.settings import Settings
from schemaless.store.internals import internals_of
from schemaless.topology.sql import moving
from tests.movers import move_away
from tests.processes import PROCESSES
from tests.store.followers import child
from tests.store.followers.child import EARLY, NAME, SKIPS, TIMING

_TELL_S: Final = 10.0
_MANY: Final = 20_000
"""Number of cells from which batches are larger; otherwise the puts would take most of the time."""

_LARGER: Final = 12

_BEHIND: Final = {1: 1.5, _LARGER: 5.0}
"""Number of batches that workers may lag when the next one is put, by batch scale."""


@contextmanager
def _skipping() -> Iterator[None]:
    """Make moves set the shard's followers to its end, as if they had handled all of its cells."""
    carry_over = steps.carry_over

    def wrong(fence: Fence, token: str, *, fenced: bool) -> None:
        carry_over(fence, token, fenced=fenced)
        followers, cells = (f"`{fence.database}`.{moving.incoming(table, token)}" for table in ("follower", "cell"))
        fence.target.execute(
            f"UPDATE {followers} SET location=(SELECT COALESCE(MAX(added_id), 0) FROM {cells})".encode()
        )

    with mock.patch.object(steps, "carry_over", wrong):
        yield


CONTROLS: Final[dict[str, Callable[[], AbstractContextManager[None]]]] = {EARLY: nullcontext, SKIPS: _skipping}
"""Faults that must be detected, each with its change of shard moves."""


class Given:
    """The cells that were put and those that were delivered.

    Attributes:
        put: number of cells put.
        missing: shard and added_id of the cells that have not been delivered.
        repeated: number of deliveries beyond the first of a cell.
        out_of_turn: number of cells first delivered after a later cell of their shard.
    """

    def __init__(self) -> None:
        self.put = 0
        self.missing: set[tuple[int, int]] = set()
        self.repeated = 0
        self.out_of_turn = 0
        self._seen: dict[int, set[int]] = defaultdict(set)
        self._highest: dict[int, int] = defaultdict(int)

    def note_put(self, shard: int, added_id: int) -> None:
        """Record a cell whose put has returned."""
        self.put += 1
        if added_id not in self._seen[shard]:
            self.missing.add((shard, added_id))

    def note_given(self, shard: int, added_id: int) -> None:
        """Record a delivered cell."""
        if added_id in self._seen[shard]:
            self.repeated += 1
            return
        self._seen[shard].add(added_id)
        self.missing.discard((shard, added_id))
        self.out_of_turn += added_id < self._highest[shard]
        self._highest[shard] = max(added_id, self._highest[shard])


@dataclass
class Live:
    """One run.

    Args:
        store: writes cells.
        url: URL of the same datastore, for workers and moves.
        folder: where workers log their cells.
        control: the fault that the run must detect; empty for none.
        patience_s: timeout for the delivery of cells, in seconds.
        tells: report progress on standard error.

    Attributes:
        given: the cells.
        deaths: number of workers killed.
        freezes: number of workers frozen past their lease and continued.
        moved: number of shard moves.
    """

    store: schemaless.Datastore
    url: str
    folder: Path
    control: str = ""
    patience_s: float = 120.0
    tells: bool = False
    given: Given = field(default_factory=Given)
    deaths: int = 0
    freezes: int = 0
    moved: int = 0
    parts: int = 0
    scale: int = 1
    _running: list[BaseProcess] = field(default_factory=list)
    _frozen: list[tuple[float, BaseProcess]] = field(default_factory=list)
    _started: int = 0
    _read: int = 0
    _wanted: int = 0
    _began_s: float = 0.0
    _told_s: float = 0.0
    _putting: threading.Lock = field(default_factory=threading.Lock)
    _move: Future[None] | None = None

    @property
    def batch(self) -> int:
        """Number of cells per batch."""
        return 100 * self.scale

    def run(self, workers: int, cells: int, kills: int, freezes: int, seed: int, moves: int = 0) -> None:
        """Put cells while killing and freezing workers and moving shards, and wait until every cell is delivered.

        There are fewer moves if a move takes longer than its share of the run.

        Raises:
            TimeoutError: some cells were not delivered.
        """
        chance = random.Random(seed)
        self.scale = _LARGER if cells >= _MANY else 1
        self._wanted, self._began_s, self._told_s = cells, time.monotonic(), time.monotonic()
        self._begin()
        self._running = [self._start() for _ in range(workers)]
        hurts = ["kill"] * kills + ["freeze"] * freezes
        chance.shuffle(hurts)
        hurt = shifted = 0
        faulty = CONTROLS.get(self.control, nullcontext)
        try:
            with ThreadPoolExecutor(1) as mover, schemaless.connect(self.url, read_timeout_s=20) as away, faulty():
                while self.given.put < cells:
                    self._put_more()
                    # The last cells are in flight, or will be in a moment.
                    self._until(self.given.put - int(_BEHIND[self.scale] * self.batch) if self.parts > 1 else 1)
                    part = min(1.0, self.given.put / cells)
                    while hurt < int(part * len(hurts)):
                        self._hurt(hurts[hurt], chance)
                        hurt += 1
                    # Only after workers have caught up with the last move, which may have rewound each follower.
                    if shifted < min(moves, int(part * (moves + 1))) and (self._move is None or self._move.done()):
                        self._moved()
                        self._move = mover.submit(self._move_one, away, chance.randrange(self.store.shard_count))
                        shifted += 1
                self._moved()
                while self._frozen:
                    self._pause()
                self._until(self.given.put)
        finally:
            for process in self._running:
                process.kill()
                process.join()

    def _begin(self) -> None:
        """Make the follower."""
        with schemaless.connect(self.url) as store:
            Settings(internals_of(store).follower_access).create(NAME, {}, lambda shard: 0)
        (self.folder / "seen").touch()

    # Cells

    def _put_more(self) -> None:
        """Put the next cells."""
        with self._putting:
            self._put(self.parts)
            self.parts += 1

    def _put(self, part: int) -> None:
        rows = (uuid.UUID(int=part * self.batch + number) for number in range(self.batch))
        for put in self.store.put_cells([schemaless.NewCell(row, "BASE", 1, part) for row in rows]):
            self.given.note_put(self.store.shard_of(put.key.row_key), put.added_id)

    def _dealt(self) -> int:
        """Return how many cells were dealt with."""
        with (self.folder / "seen").open("rb") as file:
            file.seek(self._read)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                self._read += len(line)
                shard, added_id = line.split()
                self.given.note_given(int(shard), int(added_id))
        return self.given.put - len(self.given.missing)

    def _until(self, enough: int) -> None:
        until_s = time.monotonic() + self.patience_s
        while True:
            dealt = self._dealt()
            self._tell(dealt)
            if dealt >= enough:
                return
            if time.monotonic() > until_s:
                raise TimeoutError(f"{self.given.put - dealt} cells are missing after {self.patience_s:.0f} s")
            self._pause()

    def _pause(self) -> None:
        self._thaw(time.monotonic())
        time.sleep(0.01 if self.scale == 1 else 0.05)

    def _tell(self, dealt: int) -> None:
        now_s = time.monotonic()
        if self.tells and now_s - self._told_s > _TELL_S:
            self._told_s, took_s = now_s, now_s - self._began_s
            left_s = took_s / max(1, dealt) * max(0, self._wanted - dealt)
            print(
                f"{self.control or 'as it is'}: {dealt:,} of {self._wanted:,} cells dealt with, {self.deaths} killed, "
                f"{self.freezes} frozen, {self.moved} moves, {took_s:.0f} s, {left_s:.0f} s left",
                file=sys.stderr,
                flush=True,
            )

    # Shards that move

    def _moved(self) -> None:
        """Wait until the last move has ended; raises what it met."""
        while self._move is not None and not self._move.done():
            self._pause()
        if self._move is not None:
            self._move.result()
            self._move = None

    def _move_one(self, store: schemaless.Datastore, shard: int) -> None:
        move_away(store, shard)
        self.moved += 1

    # Workers

    def _hurt(self, how: str, chance: random.Random) -> None:
        while how == "freeze" and len(self._frozen) >= len(self._running) - 1:
            self._pause()
        asleep = [process for _, process in self._frozen]
        victim = chance.choice([each for each in self._running if each not in asleep])
        if how == "freeze":
            self._freeze(victim)
            self._frozen.append((time.monotonic() + 2 * TIMING.lease_s, victim))
            return
        victim.kill()
        victim.join()
        self.deaths += 1
        self._running[self._running.index(victim)] = self._start()

    def _freeze(self, victim: BaseProcess) -> None:
        send(victim, signal.SIGSTOP)

    def _thaw(self, now_s: float) -> None:
        for frozen in list(self._frozen):
            if now_s >= frozen[0]:
                send(frozen[1], signal.SIGCONT)
                self._frozen.remove(frozen)
                self.freezes += 1

    def _start(self) -> BaseProcess:
        self._started += 1
        function, arguments = self._program(f"w{self._started}")
        process = PROCESSES.Process(target=function, args=arguments, daemon=True)
        process.start()
        return process

    def _program(self, name: str) -> tuple[Callable[..., None], tuple[Any, ...]]:
        """Return the function of a worker process and its arguments."""
        return child.work, (self.url, str(self.folder / "seen"), name, self.control)


def send(process: BaseProcess, number: int) -> None:
    """Send a worker a signal."""
    assert process.pid is not None
    os.kill(process.pid, number)
