"""Index administration of an open datastore, and the worker processes that maintain its indexes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

from schemaless.store.datastore import Datastore
from schemaless.store.followers.settings import Settings
from schemaless.store.followers.status import shard_statuses, workers_of
from schemaless.store.followers.supervisor import OpenWork, Supervisor
from schemaless.store.followers.table_cache import small_table_caches
from schemaless.store.indexes.admin import FollowerAccess, Indexes
from schemaless.store.internals import internals_of
from schemaless.store.opening import Opening, opening_of


def indexes_of(store: Datastore) -> Indexes:
    """Return the index administration of an open datastore; no server is contacted."""
    internals = internals_of(store)
    access = internals.follower_access
    followers = FollowerAccess(
        Settings(access),
        partial(shard_statuses, access),
        partial(workers_of, access),
        partial(small_table_caches, internals.shards),
    )
    return Indexes(internals.shards, internals.reader, internals.registry, lambda: internals.catalog, followers)


@dataclass(frozen=True, slots=True)
class MaintainIndexes:
    """The work of worker processes that maintain indexes.

    Attributes:
        opening: opens the datastore.
        names: names of the indexes; empty for every index that exists when a worker starts.
    """

    opening: Opening
    names: tuple[str, ...]

    @property
    def title(self) -> str:
        """Description of the work in messages."""
        return f"index {', '.join(self.names)}" if self.names else "each index"

    @contextmanager
    def open(self) -> Iterator[OpenWork]:
        """Open the datastore and create the handlers, in a worker process."""
        with self.opening.open() as store:
            yield OpenWork(internals_of(store).follower_access, indexes_of(store).handlers(self.names))


def index_supervisor(store: Datastore, names: tuple[str, ...], workers: int) -> Supervisor:
    """Return the supervisor of worker processes that maintain indexes.

    Args:
        store: the datastore.
        names: names of the indexes; empty for every index that exists when a worker starts.
        workers: number of worker processes.
    """
    indexes = indexes_of(store)
    # Each process reads the topology itself, because it may have changed since this process did.
    work = MaintainIndexes(replace(opening_of(store), topology=None), names)
    return Supervisor(
        internals_of(store).follower_access,
        work,
        lambda: [entry.follower for entry in indexes.maintained(names)],
        workers,
    )
