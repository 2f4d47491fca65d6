"""Index administration of an open datastore, and the worker processes that maintain its indexes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from schemaless.datastore import Datastore
from schemaless.followers.handler import Dealer
from schemaless.followers.settings import Settings
from schemaless.followers.status import shard_statuses, workers_of
from schemaless.followers.table_cache import small_table_caches
from schemaless.indexes.admin import FollowerAccess, Indexes
from schemaless.internals import internals_of


def indexes_of(store: Datastore) -> Indexes:
    """Return the index administration of an open datastore; no server is contacted."""
    internals = internals_of(store)
    followers = FollowerAccess(
        Settings(store),
        partial(shard_statuses, store),
        partial(workers_of, store),
        partial(small_table_caches, internals),
    )
    return Indexes(internals.shards, internals.reader, internals.registry, lambda: internals.catalog, followers)


@dataclass(frozen=True, slots=True)
class KeepIndexes:
    """The work of worker processes that maintain indexes.

    Attributes:
        names: names of the indexes; empty for every index that exists when a worker starts.
    """

    names: tuple[str, ...]

    @property
    def title(self) -> str:
        """Description of the work in messages."""
        return f"index {', '.join(self.names)}" if self.names else "each index"

    def dealers(self, store: Datastore) -> Sequence[Dealer]:
        """Return the handlers of a worker."""
        return indexes_of(store).handlers(self.names)

    def followers(self, store: Datastore) -> Sequence[str]:
        """Return the names of the followers that maintain these indexes."""
        return [entry.follower for entry in indexes_of(store).maintained(self.names)]
