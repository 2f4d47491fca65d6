"""The parts of an open datastore that followers use: shards, catalog and change feed.

``Internals.follower_access`` provides them; followers themselves know nothing of ``Datastore``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from schemaless.cell import Page, StoredCell
from schemaless.store.cells.reading import Reader
from schemaless.store.feed.reader import Changes, RowPage, Tail
from schemaless.store.followers.erasures import ErasureLog
from schemaless.topology.shards import Shards
from schemaless.wire.pool import NodePool


@dataclass(frozen=True, slots=True)
class DatastoreAccess:
    """The parts of an open datastore that followers use.

    Attributes:
        shards: the datastore's shards.
        catalog: returns the connections to the catalog's server, which a failover may change.
        changes: the change feeds of the shards, as rows.
        reader: turns rows into cells.
    """

    shards: Shards
    catalog: Callable[[], NodePool]
    changes: Changes
    reader: Reader

    @property
    def name(self) -> str:
        """Name of the datastore, which is also the name of its catalog."""
        return self.shards.topology.name

    @property
    def shard_count(self) -> int:
        """Number of shards."""
        return self.shards.topology.shard_count

    @property
    def erasure_log(self) -> ErasureLog:
        """The shards' logs of erased cells."""
        return ErasureLog(self.shards)

    def page(self, shard: int, location: int, limit: int, column_name: str | None) -> Page[StoredCell]:
        """Return the next cells of a shard after ``location``, read from its primary."""
        return self._cells(shard, self.changes.page(shard, location, limit, column_name, "primary"))

    def tails(self, tails: Sequence[Tail], column_name: str | None) -> dict[int, Page[StoredCell]]:
        """Return the next cells of several shards, read together; shards that need a read of their own are absent."""
        pages = self.changes.tails(tails, column_name)
        return {shard: self._cells(shard, page) for shard, page in pages.items()}

    def _cells(self, shard: int, page: RowPage) -> Page[StoredCell]:
        return Page([self.reader.stored(row, shard) for row in page.rows], page.next_location, page.held)
