"""Counts the cells that an erasure would erase: those of targets, or what has expired. Planning changes nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from schemaless.base.events import Advanced, Listener, ignore_events
from schemaless.ops.erasure.expired import Rule, blocks
from schemaless.ops.erasure.sql import select_sizes
from schemaless.store.datastore import Datastore
from schemaless.store.erasures.ledger import Target
from schemaless.store.erasures.sql import count_target
from schemaless.store.internals import internals_of


@dataclass(frozen=True, slots=True)
class PlannedCells:
    """Cells of one target, or of one column in one shard.

    Attributes:
        of: the target or the column.
        shard: number of the shard.
        cells: number of cells to erase.
        body_bytes: size of their bodies.
        erased: number of the target's cells already erased.
        columns: names of the columns of the target's cells, including those already erased.
    """

    of: str
    shard: int
    cells: int
    body_bytes: int
    erased: int = 0
    columns: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Plan:
    """What an erasure would erase.

    Attributes:
        parts: the cells by target, or by shard and column.
        held: number of expired cells that are kept because their row is held, by shard.
    """

    parts: Sequence[PlannedCells]
    held: Mapping[int, int]

    def total(self, of: str | None = None) -> PlannedCells:
        """Return the sums of all parts, or of those of one column."""
        chosen = [part for part in self.parts if of in (None, part.of)]
        sums = (sum(getattr(part, name) for part in chosen) for name in ("cells", "body_bytes", "erased"))
        return PlannedCells(of or "", 0, *sums)


def plan_targets(store: Datastore, targets: Iterable[Target], *, listener: Listener = ignore_events) -> Plan:
    """Count the cells of targets.

    Args:
        store: the datastore.
        targets: what is to be erased.
        listener: receives one event per target.

    Raises:
        ServerError: a server cannot be reached.
    """
    shards = internals_of(store).shards
    parts = []
    for target in targets:
        shard = store.shard_of(target.row_key)
        cells, size, erased, columns = shards.rows(shard, count_target(shards.database(shard), *target))[0]
        names = str(columns).split(",") if columns else []
        parts.append(PlannedCells(str(target), shard, int(cells), int(size), int(erased), names))
        listener(Advanced())
    return Plan(parts, {})


def plan_expired(
    store: Datastore, rules: Sequence[Rule], shards: Iterable[int] | None = None, *, listener: Listener = ignore_events
) -> Plan:
    """Count the expired cells.

    It reads every key of the shards' ``cell`` tables, and the lengths of the bodies that have expired.

    Args:
        store: the datastore.
        rules: what expires.
        shards: shard numbers, all by default.
        listener: receives an ``Advanced`` for each shard.

    Raises:
        InvalidInput: a shard does not exist.
        ServerError: a server is unreachable or rejects a statement.
    """
    internals = internals_of(store)
    parts, held = list[PlannedCells](), Counter[int]()
    for shard in internals.chosen_shards(shards) if rules else ():
        cells, sizes = Counter[str](), Counter[str]()
        for block in blocks(internals, shard, rules):
            held[shard] += len(block.held)
            statement = select_sizes(internals.shards.database(shard), block.ids)
            for column, count, size in internals.shards.rows(shard, statement) if block.ids else ():
                cells[str(column)] += int(count)
                sizes[str(column)] += int(size)
        parts += [PlannedCells(column, shard, count, sizes[column]) for column, count in cells.items()]
        listener(Advanced())
    return Plan(parts, held)
