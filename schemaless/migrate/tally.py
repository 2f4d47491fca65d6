"""What a migration counts: cells and bytes by shard and column, and what it left or kept as text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Self

from schemaless.jobs.job import Failure, ShardState


@dataclass(slots=True)
class Counts:
    """Figures that add up: the base of what is counted shard by shard."""

    def add(self, other: Self) -> None:
        """Add another's numbers and counters to these; a dict takes the other's entries, and None adds nothing."""
        for figure in fields(self):
            mine, more = getattr(self, figure.name), getattr(other, figure.name)
            if isinstance(mine, dict):
                mine.update(more)
            elif more is not None:
                setattr(self, figure.name, mine + more)

    def as_json(self) -> dict[str, Any]:
        """Return them as JSON values."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: dict(value) if isinstance(value, dict) else value for name, value in values.items()}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Return what ``as_json`` gave, by this version or an earlier one."""
        return cls(
            **{
                field.name: Counter(values[field.name]) if field.default_factory is Counter else values[field.name]
                for field in fields(cls)
                if field.name in values
            }
        )


@dataclass(slots=True)
class Tally(Counts):
    """Cells and their body bytes, of one shard and column.

    Attributes:
        cells: bodies replaced.
        bytes_before: what those took.
        bytes_after: what they take now.
        kept_as_text: of those, how many stayed JSON text under an envelope, by reason.
        left: bodies that were not replaced, by reason.
        left_bytes: what those take.
        erased: cells that were erased while the job had them in hand; nothing is left of them.
    """

    cells: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    kept_as_text: Counter[str] = field(default_factory=Counter)
    left: Counter[str] = field(default_factory=Counter)
    left_bytes: int = 0
    erased: int = 0

    @property
    def reclaimed_bytes(self) -> int:
        """Body bytes that are no longer needed."""
        return self.bytes_before - self.bytes_after


def total_of(tallies: Iterable[Tally]) -> Tally:
    """Return the sum."""
    total = Tally()
    for tally in tallies:
        total.add(tally)
    return total


@dataclass(slots=True)
class ShardTally:
    """What a job has counted on one shard; stands in ``ShardState.counters``.

    Attributes:
        columns: by column_name.
        rows: rows looked at in this pass.
        outdated: bodies of this pass that were not in the codec asked for.
        interruptions: how often a runner ended without a word: what it had done since its last checkpoint, a second
            or so, is done but in no count.
        archived: how many originals are on the disk in each file of the archive, by its name.
    """

    columns: dict[str, Tally] = field(default_factory=dict)
    rows: int = 0
    outdated: int = 0
    interruptions: int = 0
    archived: dict[str, int] = field(default_factory=dict)

    def column(self, name: str) -> Tally:
        """Return a column's tally, a new one if need be."""
        return self.columns.setdefault(name, Tally())

    def total(self) -> Tally:
        """Return the sum over columns."""
        return total_of(self.columns.values())

    def begin_pass(self) -> None:
        """Forget what the last pass left: this one looks at all of it again."""
        self.rows = self.outdated = 0
        for tally in self.columns.values():
            tally.left.clear()
            tally.left_bytes = 0

    def store(self, state: ShardState) -> None:
        """Write it into a shard's state."""
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
        """Return what stands in a shard's state."""
        counters = state.counters
        if not counters:
            return cls()
        columns = {name: Tally.from_json(value) for name, value in counters["columns"].items()}
        return cls(
            columns, counters["rows"], counters["found"], counters["interruptions"], dict(counters.get("archived", {}))
        )


@dataclass(slots=True)
class MigrateOutcome:
    """What a migration did.

    Attributes:
        codec: what it re-encoded to.
        tallies: by shard and column_name.
        failures: cells left as they are, the first thousand of them; ``Tally.left`` counts all.
        interruptions: see ``ShardTally``.
    """

    job_id: int
    codec: str
    tallies: dict[tuple[int, str], Tally] = field(default_factory=dict)
    failures: list[Failure] = field(default_factory=list)
    interruptions: int = 0

    def total(self) -> Tally:
        """Return the sum over shards and columns."""
        return total_of(self.tallies.values())

    def by_column(self) -> dict[str, Tally]:
        """Return the sums by column_name."""
        return {
            name: total_of(tally for (_, column), tally in self.tallies.items() if column == name)
            for name in sorted({column for _, column in self.tallies})
        }
