"""Simulated schedules of index pages: the real computation of writes, with dictionaries as servers.

Writers put versions of rows into one home shard, in two columns: some commit late, some arrive late with a lower
ref_key. Workers read a page, read its rows in one snapshot, write entries server by server, delete those in old shards
server by server, and move the location. Between any two of these steps a worker may die, or sleep for any time and then
continue. At the end one undisturbed worker processes the rest, and every sleeper wakes and finishes. A row whose entry
is absent or differs from the row is missing; an entry without a row is stale.

A variant leaves out one part of the design. It is a control: the schedules have to detect it.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeVar

from schemaless.store.indexes.definition import define
from schemaless.store.indexes.entry_changes import Change, Entry, Part, RowState, page_writes

DECIDED: Final = "as decided"
CONTROLS: Final = (
    "upserts are not guarded",
    "deletes are not guarded",
    "the location is moved before the entries are written",
)
"""Variants in which rows are missing."""

STALE_CONTROLS: Final = ("the version before a cell is not read",)
"""Variants in which stale entries remain even if no worker sleeps."""

DEFINITION: Final = define("simulated", "BASE.client:int", ["BASE.city:int", "STATUS.s:int"])
SHARDS: Final = 4
SERVERS: Final = 2

_ROWS: Final = 4
_CELLS: Final = 28
_PAGE: Final = 6
_STEPS: Final = 420

Refs = tuple[int, ...]
T = TypeVar("T")


class Version(NamedTuple):
    """A cell in the feed."""

    added_id: int
    row_key: bytes
    column: str
    ref_key: int
    part: Part


@dataclass
class Process:
    """A worker."""

    number: int
    steps: Iterator[None]
    asleep_until: int = 0


@dataclass
class World:
    """A home shard, the shards of its entries, and everything that happens to them."""

    seed: int
    variant: str = DECIDED
    sleepers: bool = True
    cells: dict[int, Version] = field(default_factory=dict)
    open: dict[int, tuple[int, Version]] = field(default_factory=dict)
    entries: dict[int, dict[bytes, Entry]] = field(default_factory=lambda: {shard: {} for shard in range(SHARDS)})
    location: int = 0
    epoch: int = 0
    owner: int = 0
    started: int = 0
    last_id: int = 0
    now: int = 0
    deaths: int = 0
    sleeps: int = 0
    processes: list[Process] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.chance = random.Random(f"{self.seed}")
        self.rows = [bytes([number]) * 16 for number in range(_ROWS)]
        # Some rows are written once, so that no later version repairs a fault.
        self.once = {(row, column) for row in self.rows[:2] for column in ("BASE", "STATUS")}
        self.versions: dict[tuple[bytes, str], set[int]] = {}
        # Field values of the committed cells, by row and column, then by ref_key.
        self.parts: dict[tuple[bytes, str], dict[int, Part]] = {}

    # The schedule

    def run(self) -> None:
        """Run the schedule to its end."""
        while self.now < _STEPS:
            self.now += 1
            self._write()
            if len(self.processes) < 3:
                self.started += 1
                self.processes.append(Process(self.started, self._work(self.started)))
            awake = [process for process in self.processes if process.asleep_until <= self.now]
            if awake:
                self._step(self._one_of(awake))
        while self.last_id < _CELLS:
            self._write()
        self._commit(late=False)
        asleep, self.processes = self.processes, []
        self._to_the_end(self._work(-1))
        # Without sleepers, the remaining workers die.
        for process in asleep if self.sleepers else ():
            self._to_the_end(process.steps)
        self._to_the_end(self._work(-2))

    def _one_of(self, options: Sequence[T]) -> T:
        # Several times as fast as choice(), and called at every step.
        return options[int(self.chance.random() * len(options))]

    def _to_the_end(self, steps: Iterator[None]) -> None:
        for _ in range(40 * _CELLS):
            if next(steps, "end") == "end":
                return
        raise AssertionError(f"schedule {self.seed} does not end")

    def _step(self, process: Process) -> None:
        fate = self.chance.random()
        if fate < 0.02:
            self.processes.remove(process)
            self.deaths += 1
        elif self.sleepers and fate < 0.06:
            process.asleep_until = self.now + self._one_of((5, 40, 150, 10 * _STEPS))
            self.sleeps += 1
        else:
            next(process.steps)

    def _commit(self, *, late: bool = True) -> None:
        for added_id, (until, version) in list(self.open.items()):
            if until <= self.now or not late:
                del self.open[added_id]
                self.cells[added_id] = version
                self.parts.setdefault((version.row_key, version.column), {})[version.ref_key] = version.part

    def _write(self) -> None:
        if self.open:
            self._commit()
        if self.last_id == _CELLS or self.chance.random() > 0.15:
            return
        row, column = self._one_of(self.rows), self._one_of(("BASE", "BASE", "STATUS"))
        taken = self.versions.setdefault((row, column), set())
        if taken and (row, column) in self.once:
            return
        lower = [ref for ref in range(max(taken, default=0)) if ref not in taken]
        # Sometimes a version arrives late, with a lower ref_key than others.
        late = bool(lower) and self.chance.random() < 0.4
        ref_key = self._one_of(lower) if late else max(taken, default=-1) + self._one_of((1, 2, 3))
        taken.add(ref_key)
        self.last_id += 1
        client = self._one_of((None, *range(9)))
        part = (client, self._one_of(range(3))) if column == "BASE" else (self._one_of(range(3)),)
        version = Version(self.last_id, row, column, ref_key, part)
        self.open[self.last_id] = self.now + self._one_of((1, 1, 1, 20, 60)), version

    # A worker; at each yield something else may happen

    def _work(self, number: int) -> Iterator[None]:
        while True:
            yield
            # Sometimes a shard is taken from a worker that continues, as from a sleeper.
            if self._owner_works() and (not self.sleepers or self.chance.random() > 0.05):
                continue
            self.epoch, self.owner = self.epoch + 1, number
            yield from self._follow(self.epoch, self.location)
            if self._ended(self.location):
                return

    def _owner_works(self) -> bool:
        return any(each.number == self.owner and each.asleep_until <= self.now for each in self.processes)

    def _ended(self, location: int) -> bool:
        return not self.processes and not self._page(location)

    def _follow(self, epoch: int, reached: int) -> Iterator[None]:
        yield
        while epoch == self.epoch:
            page = self._page(reached)
            yield
            if not page:
                self._move(epoch, reached)
                yield
                if self._ended(reached):
                    return
                continue
            if self.variant == CONTROLS[2]:
                self._move(epoch, page[-1].added_id)
                yield
            plan = yield from self._plan(page)
            for server in range(SERVERS):
                for shard in (shard for shard in plan.upserts if shard % SERVERS == server):
                    for entry in plan.upserts[shard]:
                        self._upsert(shard, entry)
                yield
            for server in range(SERVERS):
                for shard in (shard for shard in plan.deletes if shard % SERVERS == server):
                    for row, refs in plan.deletes[shard]:
                        self._delete(shard, row, refs)
                yield
            reached = page[-1].added_id
            self._move(epoch, reached)
            yield

    def _plan(self, page: list[Version]) -> Iterator[None]:
        rows = {version.row_key for version in page}
        refs: dict[bytes, list[int]] = {row: [] for row in rows}
        before = {version: self._before(version) for version in page}
        for column in DEFINITION.sources:
            for row in rows:
                refs[row].append(self._latest(row, column))
        # Bodies are read later, which is safe because they never change.
        yield
        states = {
            row: RowState(
                tuple(of_row),
                {column: self._part(row, column, ref) for column, ref in zip(DEFINITION.sources, of_row, strict=True)},
            )
            for row, of_row in refs.items()
        }
        changes = [
            Change(
                version.row_key,
                version.column,
                version.part,
                self._part(version.row_key, version.column, before[version]),
            )
            for version in page
        ]
        if self.variant == STALE_CONTROLS[0]:
            nothing = {column: self._part(b"", column, -1) for column in DEFINITION.sources}
            changes = [change._replace(before=nothing[change.column]) for change in changes]
        return page_writes(DEFINITION, SHARDS, changes, states)

    def _page(self, location: int) -> list[Version]:
        end = min(self.open, default=_CELLS + 1)
        return [self.cells[added_id] for added_id in sorted(self.cells) if location < added_id < end][:_PAGE]

    def _latest(self, row: bytes, column: str) -> int:
        return max(self.parts.get((row, column), ()), default=-1)

    def _before(self, version: Version) -> int:
        refs = self.parts[version.row_key, version.column]
        return max((ref for ref in refs if ref < version.ref_key), default=-1)

    def _part(self, row: bytes, column: str, ref_key: int) -> Part:
        part = self.parts.get((row, column), {}).get(ref_key)
        return DEFINITION.part(column, None) if part is None else part

    def _upsert(self, shard: int, entry: Entry) -> None:
        stored = self.entries[shard].get(entry.row_key)
        if stored is None or self.variant == CONTROLS[0] or _at_most(stored.refs, entry.refs):
            self.entries[shard][entry.row_key] = entry
        else:
            # Like the statement: the higher refs of both, and the existing fields.
            both = tuple(map(max, stored.refs, entry.refs))
            self.entries[shard][entry.row_key] = stored._replace(refs=both)

    def _delete(self, shard: int, row: bytes, refs: Refs) -> None:
        stored = self.entries[shard].get(row)
        if stored is not None and (self.variant == CONTROLS[1] or _at_most(stored.refs, refs)):
            del self.entries[shard][row]

    def _move(self, epoch: int, location: int) -> None:
        if epoch == self.epoch:
            self.location = location

    # The outcome

    def _expected(self) -> dict[tuple[int, bytes], tuple[object, ...]]:
        expected = {}
        for row in self.rows:
            parts = {column: self._part(row, column, self._latest(row, column)) for column in DEFINITION.sources}
            values = (*parts["BASE"], *parts["STATUS"])
            shard = DEFINITION.shard_of(values[0], SHARDS)
            if shard is not None:
                expected[shard, row] = values
        return expected

    @property
    def missing(self) -> int:
        """Number of rows without a correct entry."""
        expected = self._expected()
        stored = {(shard, row): entry.values for shard, of in self.entries.items() for row, entry in of.items()}
        return sum(stored.get(key) != values for key, values in expected.items())

    @property
    def stale(self) -> int:
        """Number of entries without a row."""
        expected = self._expected()
        return sum((shard, row) not in expected for shard, of in self.entries.items() for row in of)


def _at_most(one: Refs, other: Refs) -> bool:
    return all(a <= b for a, b in zip(one, other, strict=True))


@dataclass(frozen=True)
class Outcome:
    """The sum over some schedules of a variant."""

    variant: str
    schedules: int
    rows_missing: int
    entries_stale: int
    deaths: int
    sleeps: int


def run(variant: str, seeds: range, *, sleepers: bool = True) -> Outcome:
    """Run a variant's schedules."""
    missing = stale = deaths = sleeps = 0
    for seed in seeds:
        world = World(seed, variant, sleepers)
        world.run()
        assert world.location == _CELLS, seed
        missing += world.missing
        stale += world.stale
        deaths += world.deaths
        sleeps += world.sleeps
    return Outcome(variant, len(seeds), missing, stale, deaths, sleeps)
