"""Datastores that are elsewhere than their catalogs say."""

from __future__ import annotations

from schemaless import Datastore
from schemaless.internals import Tools, tools_of
from schemaless.topology.model import Topology
from schemaless.topology.shards import Shards
from schemaless.wire.pools import Pools


def opened_as(store: Datastore, topology: Topology) -> Datastore:
    """Return the datastore opened by a topology that stays, whatever the catalog says; the caller closes it."""
    tools = tools_of(store)
    shards = Shards(topology, Pools(tools.url.credentials, tools.shards.pools.options))
    return Datastore(Tools(shards, tools.url, tools.limits))
