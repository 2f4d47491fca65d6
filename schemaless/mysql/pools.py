"""The pools of a datastore's servers, which share one account: its catalog's, its shards', its replicas'."""

from __future__ import annotations

from dataclasses import replace

from schemaless.cluster.topology import Node
from schemaless.mysql.pool import NodePool, PoolOptions
from schemaless.mysql.urls import Credentials


class Pools:
    """One pool for each server, made on first use: the same one whatever the server is to the datastore.

    Attributes:
        options: how connections behave.
    """

    def __init__(self, credentials: Credentials, options: PoolOptions) -> None:
        self._credentials = credentials
        self.options = options
        self._pools: dict[Node, NodePool] = {}

    def pool_for(self, node: Node) -> NodePool:
        """Return the pool for a node's address."""
        pool = self._pools.get(node)
        if pool is None:
            address = node.having("primary")
            # Operations of dict, so no lock that a fork could leave taken; a pool made for nothing opens nothing.
            pool = self._pools.setdefault(address, NodePool(address, self._credentials, self.options))
            self._pools[node] = pool
        return pool

    def new_pool(self, node: Node, options: PoolOptions) -> NodePool:
        """Return a pool of its own for a node, which the caller closes; ``options`` hold whatever the URL says."""
        query = tuple(pair for pair in self._credentials.query if not pair[0].endswith("_timeout"))
        return NodePool(node, replace(self._credentials, query=query), options)

    def close(self) -> None:
        """Close every idle connection, and each one in use when it is given back."""
        for pool in list(self._pools.values()):
            pool.close()
