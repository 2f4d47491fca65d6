"""The way to a shard: its database, its server's pool, and the proof that it is the right one."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Literal, TypeVar

from schemaless.cluster.topology import Node, Topology, shard_database
from schemaless.errors import InvalidInput
from schemaless.mysql.connection import Check, Connection, Executed, Rows
from schemaless.mysql.pool import NodePool, PoolOptions
from schemaless.mysql.pools import Pools
from schemaless.mysql.schema import Identity, verify_identity

T = TypeVar("T")

ReadFrom = Literal["primary", "replica"]


class Shards:
    """Every shard of a datastore, opened on first use."""

    def __init__(self, topology: Topology, pools: Pools) -> None:
        self.topology = topology
        self.pools = pools
        self._verified: set[tuple[int, Node]] = set()
        self._clusters = [
            cluster
            for part in sorted(topology.ranges, key=lambda part: part.first)
            for cluster in [topology.cluster_of(part.first)] * (part.last - part.first + 1)
        ]
        self._turn = itertools.count()
        # For each shard the pool of its primary, once the shard is proven there: the way that nearly every call takes.
        self._proven: list[NodePool | None] = [None] * topology.shard_count

    def database(self, shard: int) -> str:
        """Return the name of a shard's database."""
        return shard_database(self.topology.name, shard)

    def pool_for(self, node: Node) -> NodePool:
        """Return the one pool for a node."""
        return self.pools.pool_for(node)

    def new_pool(self, node: Node, options: PoolOptions) -> NodePool:
        """Return a pool of its own for a node, which the caller closes; ``options`` hold whatever the URL says."""
        return self.pools.new_pool(node, options)

    def node_of(self, shard: int, read_from: ReadFrom = "primary") -> Node:
        """Return the node that serves a shard; replicas take turns, and a cluster without one uses its primary."""
        if read_from not in ("primary", "replica"):
            raise InvalidInput(f"read_from must be 'primary' or 'replica', got {read_from!r}")
        cluster = self._clusters[shard]
        if read_from == "replica" and cluster.replicas:
            return cluster.replicas[next(self._turn) % len(cluster.replicas)]
        return cluster.primary

    def run(
        self,
        shard: int,
        operation: Callable[[Connection], T],
        *,
        read_from: ReadFrom = "primary",
        writes: bool = False,
    ) -> T:
        """Run ``operation`` on a connection to a shard's server, after proving the shard on its first use.

        Args:
            shard: a checked shard number.
            operation: must be safe to repeat; see ``NodePool.run``.
            read_from: which kind of node.
            writes: whether a lost connection leaves the outcome open.

        Raises:
            ShardIdentityMismatch: the database is not that shard of this datastore.
            ServerError: the server refused or failed.
        """
        pool = self._proven[shard]
        if pool is not None and read_from == "primary":
            return pool.run(operation, shard=shard, writes=writes)
        return self.run_on(self.node_of(shard, read_from), shard, operation, writes=writes)

    def run_on(self, node: Node, shard: int, operation: Callable[[Connection], T], *, writes: bool = False) -> T:
        """Run ``operation`` as ``run`` does, on this node of the shard's cluster."""
        if (shard, node) not in self._verified:
            self.verify(shard, node)
        return self.pool_for(node).run(operation, shard=shard, writes=writes)

    def rows(self, shard: int, sql: bytes, *, read_from: ReadFrom = "primary", check: Check | None = None) -> Rows:
        """Send a query to a shard and return its rows; raises what ``run`` and ``Connection.rows`` raise."""
        return self.run(shard, lambda connection: connection.rows(sql, check), read_from=read_from)

    def execute(self, shard: int, sql: bytes) -> Executed:
        """Send a statement that is safe to repeat to a shard's primary; raises what ``run`` raises."""
        return self.run(shard, lambda connection: connection.execute(sql), writes=True)

    def verify(self, shard: int, node: Node) -> None:
        """Check a shard's identity on one node.

        Raises:
            ShardIdentityMismatch: it is not the one that the catalog takes it for.
        """
        topology = self.topology
        identity = Identity(topology.name, shard, topology.shard_count, topology.placement)
        pool = self.pool_for(node)
        verify_identity(pool, self.database(shard), identity)
        self._verified.add((shard, node))
        if node == self._clusters[shard].primary:
            self._proven[shard] = pool

    def close(self) -> None:
        """Close every idle connection."""
        self.pools.close()
