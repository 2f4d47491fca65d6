"""Index administration of an open datastore, and the worker processes that maintain its indexes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

from schemaless.store.datastore import Datastore
from schemaless.store.followers.supervisor import OpenWork, Supervisor, Work
from schemaless.store.indexes.admin import Indexes
from schemaless.store.internals import internals_of
from schemaless.store.opening import Opening, opening_of


def indexes_of(store: Datastore) -> Indexes:
    """Return the index administration of an open datastore; no server is contacted."""
    internals = internals_of(store)
    return Indexes(internals.follower_access, internals.registry)


@contextmanager
def _open(opening: Opening, names: tuple[str, ...]) -> Iterator[OpenWork]:
    with opening.open() as store:
        yield OpenWork(internals_of(store).follower_access, indexes_of(store).handlers(names))


def index_supervisor(store: Datastore, names: tuple[str, ...], workers: int) -> Supervisor:
    """Return the supervisor of worker processes that maintain indexes.

    Args:
        store: the datastore.
        names: names of the indexes; empty for every index that exists when a worker starts.
        workers: number of worker processes.
    """
    indexes = indexes_of(store)
    # Each process reads the topology itself, because it may have changed since this process did.
    title = f"index {', '.join(names)}" if names else "each index"
    work = Work(title, partial(_open, replace(opening_of(store), topology=None), names))
    return Supervisor(
        internals_of(store).follower_access,
        work,
        lambda: [entry.follower for entry in indexes.maintained(names)],
        workers,
    )
