"""What a retention run would erase: cells and bytes by column and shard. Planning changes nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from schemaless.base.events import Advanced, Listener, ignore_events
from schemaless.cell import TOMBSTONE_BYTES
from schemaless.ops.erasure.expired import Rule, blocks, id_span
from schemaless.ops.retention import sql
from schemaless.store.datastore import Datastore
from schemaless.store.erasures.retention import Policy
from schemaless.store.internals import internals_of


@dataclass(slots=True)
class Expired:
    """Expired cells of a column.

    Attributes:
        cells: number of cells.
        body_bytes: size of their bodies.
    """

    cells: int = 0
    body_bytes: int = 0

    @property
    def freed_bytes(self) -> int:
        """Body bytes freed: those of the cells, minus those of the tombstones that replace them."""
        return self.body_bytes - TOMBSTONE_BYTES * self.cells


@dataclass(slots=True)
class ShardPlan:
    """What expires in a shard.

    Attributes:
        shard: number of the shard.
        columns: expired cells that have not been erased yet, by column.
        held: number of expired cells that are kept because their row is held.
    """

    shard: int
    columns: dict[str, Expired] = field(default_factory=dict)
    held: int = 0


@dataclass(frozen=True, slots=True)
class RetentionPlan:
    """What a retention run would erase.

    Attributes:
        policies: the policies in force.
        now: the time that ages are measured from, UTC.
        shards: what expires, by shard.
    """

    policies: Sequence[Policy]
    now: datetime
    shards: Sequence[ShardPlan]

    def column(self, name: str) -> Expired:
        """Return the expired cells of a column in all shards."""
        parts = [shard.columns[name] for shard in self.shards if name in shard.columns]
        return Expired(sum(part.cells for part in parts), sum(part.body_bytes for part in parts))

    @property
    def held(self) -> int:
        """Number of expired cells that are kept because their row is held."""
        return sum(shard.held for shard in self.shards)


def server_time(store: Datastore) -> datetime:
    """Return the time by the clock of the catalog's server, UTC."""
    rows = internals_of(store).catalog.run(lambda connection: connection.rows(sql.SELECT_NOW))
    return datetime.fromisoformat(rows[0][0])


def plan(
    store: Datastore,
    policies: Sequence[Policy] | None = None,
    shards: Iterable[int] | None = None,
    *,
    listener: Listener = ignore_events,
) -> RetentionPlan:
    """Count the cells that a retention run would erase now.

    It reads every key of the shards' ``cell`` tables, and the lengths of the bodies that have expired.

    Args:
        store: the datastore.
        policies: policies to count by; those in the catalog by default.
        shards: shard numbers, all by default.
        listener: receives an ``Advanced`` for each shard.

    Raises:
        InvalidInput: a shard does not exist.
        ServerError: a server is unreachable or rejects a statement.
    """
    internals = internals_of(store)
    chosen = internals.chosen_shards(shards)
    asked = internals.policies.all() if policies is None else list(policies)
    now = server_time(store)
    rules = [Rule.of(policy, now) for policy in asked]
    planned = []
    for shard in chosen if rules else ():
        found = ShardPlan(shard)
        low, high = id_span(internals, shard)
        for block in blocks(internals, shard, rules, low - 1, high):
            found.held += len(block.held)
            statement = sql.select_sizes(internals.shards.database(shard), block.ids)
            for column, cells, size in internals.shards.rows(shard, statement) if block.ids else ():
                expired = found.columns.setdefault(str(column), Expired())
                expired.cells += int(cells)
                expired.body_bytes += int(size)
        planned.append(found)
        listener(Advanced())
    return RetentionPlan(asked, now, planned)
