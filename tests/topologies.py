"""Datastores that are elsewhere than their catalogs say."""

from __future__ import annotations

from schemaless import Datastore
from schemaless.store.internals import Internals, internals_of
from schemaless.topology.model import Topology
from schemaless.topology.shards import Shards
from schemaless.wire.pools import Pools


def opened_as(store: Datastore, topology: Topology) -> Datastore:
    """Return the datastore opened by a topology that stays, whatever the catalog says; the caller closes it."""
    internals = internals_of(store)
    shards = Shards(topology, Pools(internals.url.credentials, internals.shards.pools.options))
    return Datastore(Internals(shards, internals.url, internals.limits))
