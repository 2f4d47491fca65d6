"""Counters of a migration: cells and bytes by shard and column, bodies left unchanged or kept as text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Self

from schemaless.ops.jobs.job import Failure, ShardState


@dataclass(slots=True)
class Counts:
    """Base of counters that are kept by shard and can be added up."""

    def add(self, other: Self) -> None:
        """Add the values of ``other``: numbers and ``Counter`` are summed, a dict is updated, None is ignored."""
        for item in fields(self):
            value, increment = getattr(self, item.name), getattr(other, item.name)
            if isinstance(value, dict):
                value.update(increment)
            elif increment is not None:
                setattr(self, item.name, value + increment)

    def as_json(self) -> dict[str, Any]:
        """Return the counters as JSON values."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: dict(value) if isinstance(value, dict) else value for name, value in values.items()}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Restore counters from ``as_json``; missing fields keep their defaults."""
        restored = cls()
        for name, value in values.items():
            setattr(restored, name, Counter(value) if isinstance(getattr(restored, name), Counter) else value)
        return restored


@dataclass(slots=True)
class Tally(Counts):
    """Counters of one shard and column.

    Attributes:
        cells: replaced bodies.
        bytes_before: size of the old bodies.
        bytes_after: size of the new bodies.
        kept_as_text: replaced bodies that remain JSON text in an envelope, by reason.
        left: bodies left unchanged, by reason.
        left_bytes: size of the bodies left unchanged.
        erased: cells that were erased between the read and the replacement.
        cold: cells whose document is in a cold file; their bodies are not replaced.
    """

    cells: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    kept_as_text: Counter[str] = field(default_factory=Counter)
    left: Counter[str] = field(default_factory=Counter)
    left_bytes: int = 0
    erased: int = 0
    cold: int = 0

    @property
    def reclaimed_bytes(self) -> int:
        """Body bytes saved."""
        return self.bytes_before - self.bytes_after


def total_of(tallies: Iterable[Tally]) -> Tally:
    """Return the sum of tallies."""
    total = Tally()
    for tally in tallies:
        total.add(tally)
    return total


@dataclass(slots=True)
class ShardTally:
    """Counters of a migration on one shard, stored in ``ShardState.counters``.

    Attributes:
        columns: tallies by column_name.
        rows: rows scanned in this pass.
        outdated: bodies found in this pass that were not in the target codec.
        interruptions: number of runners that died without releasing the shard. Their work after the last checkpoint
            (about a second's worth) is not counted.
        archived: number of originals written and synced to each archive file, by file name.
    """

    columns: dict[str, Tally] = field(default_factory=dict)
    rows: int = 0
    outdated: int = 0
    interruptions: int = 0
    archived: dict[str, int] = field(default_factory=dict)

    def column(self, name: str) -> Tally:
        """Return the tally of a column, adding one if needed."""
        if name not in self.columns:
            self.columns[name] = Tally()
        return self.columns[name]

    def total(self) -> Tally:
        """Return the sum over all columns."""
        return total_of(self.columns.values())

    def begin_pass(self) -> None:
        """Reset the counters of scanned rows, outdated, cold and unchanged bodies; each pass counts from zero."""
        self.rows = self.outdated = 0
        for tally in self.columns.values():
            tally.left.clear()
            tally.left_bytes = tally.cold = 0

    def add(self, other: ShardTally) -> None:
        """Add the counters of a part of this pass."""
        for name, tally in other.columns.items():
            self.column(name).add(tally)
        self.rows += other.rows
        self.outdated += other.outdated

    def store(self, state: ShardState) -> None:
        """Write the counters into the state of the shard."""
        total = self.total()
        state.cells = total.cells
        state.bytes_before = total.bytes_before
        state.bytes_after = total.bytes_after
        state.left_cells = total.left.total()
        state.counters = {
            "columns": {name: tally.as_json() for name, tally in self.columns.items()},
            "rows": self.rows,
            "found": self.outdated,
            "interruptions": self.interruptions,
            "archived": self.archived,
        }

    @classmethod
    def of(cls, state: ShardState) -> ShardTally:
        """Read the counters from the state of a shard."""
        counters = state.counters
        if not counters:
            return cls()
        columns = {name: Tally.from_json(value) for name, value in counters["columns"].items()}
        return cls(columns, counters["rows"], counters["found"], counters["interruptions"], counters["archived"])


@dataclass(slots=True)
class MigrateOutcome:
    """Result of a migration.

    Attributes:
        codec: target codec.
        tallies: counters by shard and column_name.
        failures: cells left unchanged, at most 1,000; ``Tally.left`` counts all of them.
        interruptions: see ``ShardTally``.
    """

    job_id: int
    codec: str
    tallies: dict[tuple[int, str], Tally] = field(default_factory=dict)
    failures: list[Failure] = field(default_factory=list)
    interruptions: int = 0

    def total(self) -> Tally:
        """Return the sum over all shards and columns."""
        return total_of(self.tallies.values())

    def by_column(self) -> dict[str, Tally]:
        """Return the sum of each column."""
        return {
            name: total_of(tally for (_, column), tally in self.tallies.items() if column == name)
            for name in sorted({column for _, column in self.tallies})
        }
