"""Counts the cells that an erasure would erase, without changing anything."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from schemaless.base.events import Advanced, Listener, ignore_events
from schemaless.ops.erasure.places import Places, places
from schemaless.store.datastore import Datastore
from schemaless.store.erasures import sql
from schemaless.store.erasures.ledger import Target
from schemaless.store.internals import internals_of


@dataclass(frozen=True, slots=True)
class PlannedTarget:
    """Cells of one target.

    Attributes:
        target: what is to be erased.
        shard: number of its shard.
        cells: number of cells to erase.
        body_bytes: size of their bodies.
        erased: number of cells already erased.
        columns: names of the columns of all these cells, including those already erased.
    """

    target: Target
    shard: int
    cells: int
    body_bytes: int
    erased: int
    columns: Sequence[str]


@dataclass(frozen=True, slots=True)
class Plan:
    """What an erasure would erase.

    Attributes:
        targets: the cells of each target.
        places: where else documents may be.
    """

    targets: Sequence[PlannedTarget]
    places: Places

    @property
    def cells(self) -> int:
        """Number of cells to erase."""
        return sum(each.cells for each in self.targets)

    @property
    def body_bytes(self) -> int:
        """Size of the bodies of the cells to erase, in bytes."""
        return sum(each.body_bytes for each in self.targets)

    @property
    def erased(self) -> int:
        """Number of cells already erased."""
        return sum(each.erased for each in self.targets)


def plan(store: Datastore, targets: Iterable[Target], *, listener: Listener = ignore_events) -> Plan:
    """Count the cells that an erasure would erase, and list where else their documents may be.

    Args:
        store: the datastore.
        targets: what is to be erased.
        listener: receives one event per target.

    Raises:
        ServerError: a server cannot be reached.
    """
    shards = internals_of(store).shards
    planned = []
    for target in targets:
        shard = store.shard_of(target.row_key)
        statement = sql.count_target(shards.database(shard), *target)
        cells, size, erased, columns = shards.rows(shard, statement)[0]
        names = str(columns).split(",") if columns else []
        planned.append(PlannedTarget(target, shard, int(cells), int(size), int(erased), names))
        listener(Advanced())
    return Plan(planned, places(store, {each.shard for each in planned}))
