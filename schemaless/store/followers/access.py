"""The parts of an open datastore that followers use: shards, catalog and change feed.

``Internals.follower_access`` provides them; followers themselves know nothing of ``Datastore``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from schemaless.cell import Page, StoredCell
from schemaless.store.cells.reading import Reader
from schemaless.store.feed.reader import Changes, Tail
from schemaless.topology.shards import Shards
from schemaless.wire.pool import NodePool


@dataclass(frozen=True, slots=True)
class StoredFeed:
    """The change feeds of the shards, read from the primaries as stored cells.

    Attributes:
        changes: the change feeds, as rows.
        reader: turns rows into cells.
    """

    changes: Changes
    reader: Reader

    def page(self, shard: int, location: int, limit: int, column_name: str | None) -> Page[StoredCell]:
        """Return the next cells of a shard after ``location``."""
        rows, next_location, held = self.changes.page(shard, location, limit, column_name, "primary")
        return Page([self.reader.stored(row, shard) for row in rows], next_location, held)

    def tails(self, tails: Sequence[Tail], column_name: str | None) -> dict[int, Page[StoredCell]]:
        """Return the next cells of several shards, read together; shards that need a read of their own are absent."""
        return {
            shard: Page([self.reader.stored(row, shard) for row in rows], next_location, held)
            for shard, (rows, next_location, held) in self.changes.tails(tails, column_name).items()
        }


@dataclass(frozen=True, slots=True)
class DatastoreAccess:
    """The parts of an open datastore that followers use.

    Attributes:
        shards: the datastore's shards.
        catalog: returns the connections to the catalog's server, which a failover may change.
        feed: the change feeds of the shards.
    """

    shards: Shards
    catalog: Callable[[], NodePool]
    feed: StoredFeed

    @property
    def name(self) -> str:
        """Name of the datastore, which is also the name of its catalog."""
        return self.shards.topology.name

    @property
    def shard_count(self) -> int:
        """Number of shards."""
        return self.shards.topology.shard_count
