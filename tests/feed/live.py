"""Workers in processes of their own, killed with -9 and frozen past their lease at any moment, while cells come.

What the suite does with a few thousand cells, ``benchmarks/followers.py --live`` does with as many as one likes.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path

import schemaless
from schemaless.feed.settings import Settings
from tests.feed.child import NAME, TIMING

_BATCH = 100
_NEARLY = 150


@dataclass
class Live:
    """One run.

    Args:
        store: writes cells.
        url: of the same datastore, for workers.
        folder: where they write down what they were given.
        early: have workers write locations down before their cells are dealt with, which loses cells: the control.
        patience_s: how long cells are waited for.

    Attributes:
        there: shard and added_id of every cell that was put.
        deaths: how often a worker was killed.
        freezes: how often one was frozen past its lease, and let go on.
    """

    store: schemaless.Datastore
    url: str
    folder: Path
    early: bool = False
    patience_s: float = 120.0
    there: set[tuple[int, int]] = field(default_factory=set)
    deaths: int = 0
    freezes: int = 0
    _running: list[subprocess.Popen[bytes]] = field(default_factory=list)
    _frozen: list[tuple[float, subprocess.Popen[bytes]]] = field(default_factory=list)
    _started: int = 0
    _lines: list[tuple[int, int]] = field(default_factory=list)
    _read: int = 0

    def run(self, workers: int, cells: int, kills: int, freezes: int, seed: int) -> None:
        """Put the cells, hurt the workers, and wait until every cell was dealt with.

        Raises:
            TimeoutError: some are not.
        """
        chance = random.Random(seed)
        with schemaless.connect(self.url) as store:
            Settings(store).make(NAME, {}, lambda shard: 0)
        (self.folder / "seen").touch()
        self._running = [self._start() for _ in range(workers)]
        hurts = ["kill"] * kills + ["freeze"] * freezes
        chance.shuffle(hurts)
        parts = max(1, cells // _BATCH)
        every = max(1, parts // (len(hurts) + 1))
        try:
            for part in range(parts):
                self._put(part)
                if part == 0 or (part % every == every - 1 and hurts):
                    # The last ones are in somebody's hands, or will be in a moment.
                    self._until(len(self.there) - _NEARLY if part else 1)
                if part % every == every - 1 and hurts:
                    self._hurt(hurts.pop(), chance)
                self._thaw(time.monotonic())
            for until_s, _ in list(self._frozen):
                time.sleep(max(0.0, until_s - time.monotonic()))
                self._thaw(time.monotonic())
            self._until(len(self.there))
        finally:
            for process in self._running:
                process.kill()
                process.wait()

    def seen(self) -> list[tuple[int, int]]:
        """Return what workers were given so far, in its order: shard and added_id."""
        with (self.folder / "seen").open("rb") as file:
            file.seek(self._read)
            for line in file.read().splitlines(keepends=True):
                if line.endswith(b"\n"):
                    self._read += len(line)
                    shard, added_id = line.split()
                    self._lines.append((int(shard), int(added_id)))
        return self._lines

    @property
    def missing(self) -> set[tuple[int, int]]:
        """The cells that nobody was given."""
        return self.there - set(self.seen())

    @property
    def out_of_turn(self) -> int:
        """How many cells were first given to somebody when a later one of their shard had been already."""
        highest: dict[int, int] = {}
        count = 0
        for shard, added_id in dict.fromkeys(self.seen()):
            count += added_id < highest.get(shard, 0)
            highest[shard] = max(added_id, highest.get(shard, 0))
        return count

    def _put(self, part: int) -> None:
        rows = (uuid.UUID(int=part * _BATCH + number) for number in range(_BATCH))
        puts = self.store.put_cells([schemaless.NewCell(row, "BASE", 1, part) for row in rows])
        self.there |= {(self.store.shard_of(put.key.row_key), put.added_id) for put in puts}

    def _hurt(self, how: str, chance: random.Random) -> None:
        asleep = [process for _, process in self._frozen]
        victim = chance.choice([each for each in self._running if each not in asleep] or self._running)
        if how == "freeze" and len(asleep) < len(self._running) - 1:
            os.kill(victim.pid, signal.SIGSTOP)
            self._frozen.append((time.monotonic() + 2 * TIMING.lease_s, victim))
            return
        victim.kill()
        victim.wait()
        self.deaths += 1
        self._frozen = [each for each in self._frozen if each[1] is not victim]
        self._running[self._running.index(victim)] = self._start()

    def _thaw(self, now_s: float) -> None:
        for until_s, victim in list(self._frozen):
            if now_s >= until_s:
                os.kill(victim.pid, signal.SIGCONT)
                self._frozen.remove((until_s, victim))
                self.freezes += 1

    def _start(self) -> subprocess.Popen[bytes]:
        self._started += 1
        command = [sys.executable, "-m", "tests.feed.child", self.url, str(self.folder / "seen"), f"w{self._started}"]
        command += ["early"] * self.early
        return subprocess.Popen(command, cwd=Path(__file__).parents[2])

    def _until(self, enough: int) -> None:
        until_s = time.monotonic() + self.patience_s
        while len(self.there & set(self.seen())) < enough:
            if time.monotonic() > until_s:
                raise TimeoutError(f"{len(self.missing)} cells are missing after {self.patience_s:.0f} s")
            self._thaw(time.monotonic())
            time.sleep(0.01)
