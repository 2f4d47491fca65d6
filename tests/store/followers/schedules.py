"""Schedules of a follower in one shard, as a pure model: who does what, one statement after the other, by a seed.

Writers take ids and commit late. Workers look, claim, read a page, call, and write down how far they are; between any
two statements one may be killed, or fall asleep for longer than its lease and go on as if nothing had happened. Some
cells fail and are parked, some kill the worker that calls them, and an operator rewinds the follower. At the end, one
undisturbed worker handles the rest; a cell that was neither called since the last rewind nor parked is missing.

A variant leaves one thing of the design out. It is a control: the schedules have to find it.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

LEASE: Final = 30
"""In steps."""

SURE: Final = 20
"""Maximum number of steps since a worker was awake after which it starts something."""

CONTROLS: Final = (
    "locations are not fenced",
    "the location is written before the call",
    "the location is moved before the cell is parked",
    "every id that is visible counts",
)
DECIDED: Final = "as decided"

_CELLS: Final = 30
_ATTEMPTS: Final = 3
_PAGE: Final = 6
_STEPS: Final = 900

T = TypeVar("T")


class Killed(Exception):
    """The process is no more."""


@dataclass
class Row:
    """The follower's row in the shard."""

    location: int = 0
    worker: int | None = None
    epoch: int = 0
    attempts: int = 0


@dataclass
class Process:
    """A worker."""

    number: int
    steps: Iterator[None]
    awake_at: int = 0
    asleep_until: int = 0


@dataclass
class World:
    """A shard, its follower, and all that happens to them.

    Attributes:
        called: the cells that were called since they were last asked for.
        repeated: calls of cells that had been called.
    """

    seed: int
    variant: str = DECIDED
    row: Row = field(default_factory=Row)
    committed: set[int] = field(default_factory=set)
    open: dict[int, int] = field(default_factory=dict)
    called: set[int] = field(default_factory=set)
    parked: set[int] = field(default_factory=set)
    last_id: int = 0
    now: int = 0
    deaths: int = 0
    sleeps: int = 0
    resets: int = 0
    repeated: int = 0
    processes: list[Process] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.chance = random.Random(f"{self.seed}")
        ids = range(1, _CELLS + 1)
        self.failing = set(self.chance.sample(ids, 2))
        self.deadly = set(self.chance.sample(ids, 1))
        self.calm = False

    # Events

    def run(self) -> set[int]:
        """Run the schedule, and return the cells that are missing in the end."""
        workers = 0
        while self.now < _STEPS:
            self.now += 1
            self._write()
            if len(self.processes) < 3:
                workers += 1
                self.processes.append(Process(workers, self._work(workers), self.now))
            awake = [process for process in self.processes if process.asleep_until <= self.now]
            if awake:
                self._step(self._one_of(awake))
            if self.chance.random() < 0.003:
                self._set_back()
        self.calm = True
        self.committed |= self.open.keys()
        self.open.clear()
        # Only one worker remains.
        self.processes = [Process(0, self._work(0), self.now)]
        for _ in range(40 * _CELLS):
            if not self._missing():
                # Nothing that it does from here on takes a call back.
                break
            self.now += 1
            self._step(self.processes[0])
            if not self.processes:
                self.processes = [Process(0, self._work(0), self.now)]
        return self._missing()

    def _missing(self) -> set[int]:
        return self.committed - self.called - self.parked

    def _one_of(self, options: Sequence[T]) -> T:
        # It is several times as fast as choice(), and is asked at every step.
        return options[int(self.chance.random() * len(options))]

    def _write(self) -> None:
        for added_id, until in list(self.open.items()) if self.open else ():
            if until <= self.now:
                del self.open[added_id]
                if self.chance.random() < 0.8:
                    self.committed.add(added_id)
        if self.last_id < _CELLS and self.chance.random() < 0.08:
            self.last_id += 1
            late = self._one_of((1, 1, 1, 40, 120))
            self.open[self.last_id] = self.now + late

    def _step(self, process: Process) -> None:
        # Awake, it says that it lives before anything else; the others see it.
        just_woken = self.now - process.awake_at > SURE
        if not just_woken:
            process.awake_at = self.now
        fate = 1.0 if self.calm else self.chance.random()
        if fate < 0.01:
            self.processes.remove(process)
            self.deaths += 1
            return
        if fate < 0.02:
            process.asleep_until = self.now + self._one_of((5, LEASE + 5, 3 * LEASE))
            self.sleeps += 1
            return
        try:
            next(process.steps)
        except Killed:
            self.processes.remove(process)
            self.deaths += 1
        if just_woken:
            process.awake_at = self.now

    def _set_back(self) -> None:
        self.resets += 1
        location = self.chance.randrange(self.row.location + 1)
        self.row = Row(location, None, self.row.epoch + 1)
        self.called -= set(range(location + 1, _CELLS + 1))
        self.parked -= set(range(location + 1, _CELLS + 1))

    # What a worker does; a yield is where something else may happen

    def _work(self, number: int) -> Iterator[None]:
        while True:
            yield
            seen = (self.row.epoch, self.row.worker)
            if seen[1] not in (None, number) and self._lives(seen[1]):
                continue
            yield
            if self.row.epoch != seen[0]:
                continue
            self.row.epoch, self.row.worker = self.row.epoch + 1, number
            epoch = self.row.epoch
            yield
            if self.row.epoch == epoch:
                yield from self._follow(number, epoch, self.row.location, careful=seen[1] is not None)

    def _follow(self, number: int, epoch: int, reached: int, *, careful: bool) -> Iterator[None]:
        while self.row.epoch == epoch:
            yield
            page = self._page(reached)
            for added_id in page:
                yield
                if not self._sure(number):
                    break
                if careful:
                    self.row.attempts += self.row.epoch == epoch
                    if self.row.attempts > _ATTEMPTS:
                        yield from self._park(epoch, added_id)
                        reached = added_id
                        continue
                    yield
                if self.variant == "the location is written before the call":
                    self._move(epoch, added_id)
                    yield
                if added_id in self.failing:
                    yield from self._park(epoch, added_id)
                else:
                    self._call(added_id)
                reached = added_id
                if careful or self.chance.random() < 0.3:
                    yield
                    self._move(epoch, reached)
            yield
            self._move(epoch, reached)
            careful = careful and bool(page)
            yield

    def _call(self, added_id: int) -> None:
        if added_id in self.deadly:
            raise Killed
        self.repeated += added_id in self.called
        self.called.add(added_id)

    def _park(self, epoch: int, added_id: int) -> Iterator[None]:
        if self.variant == "the location is moved before the cell is parked":
            self._move(epoch, added_id)
            yield
        if self.row.epoch == epoch or self.variant == "locations are not fenced":
            self.parked.add(added_id)
        self._move(epoch, added_id)

    def _move(self, epoch: int, location: int) -> None:
        if self.row.epoch == epoch or self.variant == "locations are not fenced":
            self.row.location, self.row.attempts = location, 0

    def _page(self, location: int) -> list[int]:
        end = min(self.open, default=_CELLS + 1)
        if self.variant == "every id that is visible counts":
            end = _CELLS + 1
        return sorted([added_id for added_id in self.committed if location < added_id < end])[:_PAGE]

    def _lives(self, number: int | None) -> bool:
        return self._awake_within(number, LEASE)

    def _sure(self, number: int) -> bool:
        return self._awake_within(number, SURE)

    def _awake_within(self, number: int | None, steps: int) -> bool:
        return any(process.number == number and self.now - process.awake_at < steps for process in self.processes)


@dataclass(frozen=True)
class Outcome:
    """Result of running schedules of a variant.

    Attributes:
        missing: schedules with cells that are missing, by their seeds.
    """

    variant: str
    schedules: int
    missing: list[int]
    deaths: int
    sleeps: int
    resets: int
    parked: int
    repeated: int


def run(variant: str, seeds: range) -> Outcome:
    """Run a variant's schedules."""
    missing, deaths, sleeps, resets, parked, repeated = [], 0, 0, 0, 0, 0
    for seed in seeds:
        world = World(seed, variant)
        if world.run():
            missing.append(seed)
        deaths += world.deaths
        sleeps += world.sleeps
        resets += world.resets
        parked += len(world.parked)
        repeated += world.repeated
    return Outcome(variant, len(seeds), missing, deaths, sleeps, resets, parked, repeated)
