"""Reads the state of every server: whether it answers, its claim, its lag, its circuit breaker, and stray tables."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Final

from schemaless.errors import SchemalessError
from schemaless.monitoring.metrics.servers import Lag, ReplicaLag, probe_pool
from schemaless.monitoring.status.model import ClusterView, NodeView
from schemaless.ops.failover.states import NodeState, node_state
from schemaless.store.datastore import Datastore
from schemaless.store.internals import internals_of
from schemaless.topology.model import Cluster
from schemaless.topology.moves import StrayTable, stray_tables
from schemaless.wire.node import Node
from schemaless.wire.parallel import on_servers
from schemaless.wire.pool import NodePool

_STRAYS_S: Final = 60.0
"""Minimum rest between two searches for tables that a server should not have, in seconds."""

_STRAYS_REST: Final = 200.0
"""Minimum rest, as a multiple of the time that the search took."""


class ServerReader:
    """Reads all servers; different clusters are read concurrently.

    A server that does not answer costs at most two seconds, and nothing while its breaker is open.

    Args:
        store: the datastore.
    """

    def __init__(self, store: Datastore) -> None:
        self._internals = internals_of(store)
        self._shards = self._internals.shards
        self._pools: dict[Node, NodePool] = {}
        self._lag = ReplicaLag(self._pool)
        self._strays: dict[tuple[str, Node], tuple[float, tuple[StrayTable, ...]]] = {}

    def __call__(self) -> tuple[ClusterView, ...]:
        """Return the clusters as currently listed in the catalog or, if it does not answer, as last read."""
        self._shards.router.again(self._shards.routing)
        clusters = self._shards.topology.clusters
        read = list(on_servers([(cluster.primary, cluster) for cluster in clusters], self._read, 1))
        return tuple(sorted(read, key=lambda view: [cluster.name for cluster in clusters].index(view.name)))

    def close(self) -> None:
        """Close all connections."""
        for pool in self._pools.values():
            pool.close()

    def _read(self, cluster: Cluster) -> ClusterView:
        if cluster.replicas:
            self._lag.note_primary(cluster)
        shards = len(self._shards.topology.shards_of(cluster.name))
        return ClusterView(cluster.name, cluster.epoch, shards, tuple(self._nodes(cluster)))

    def _nodes(self, cluster: Cluster) -> Iterator[NodeView]:
        for node in cluster.nodes:
            pool = self._pool(node)
            state = node_state(pool, self._shards.topology.name, cluster, node)
            if state.error is None:
                state = replace(state, strays=self._strays_of(cluster, node))
            lag = self._lag_of(node) if node.role == "replica" and state.error is None else None
            yield _view(state, lag, breaker_open=pool.breaker.is_open)

    def _lag_of(self, replica: Node) -> Lag | None:
        try:
            return self._lag.of(replica)
        except SchemalessError:  # it stopped answering just now; the next reading reports that
            return None

    def _strays_of(self, cluster: Cluster, node: Node) -> tuple[StrayTable, ...]:
        """Return the tables that a server should not have; read seldom, because that goes through all its tables."""
        due_s, strays = self._strays.get((cluster.name, node), (0.0, ()))
        if (began_s := time.monotonic()) < due_s:
            return strays
        with suppress(SchemalessError):  # a server that does not answer is reported already
            found = stray_tables(self._internals.catalog, self._shards.topology.name, self._pool, cluster, node)
            strays = tuple(found)
        now_s = time.monotonic()
        self._strays[cluster.name, node] = now_s + max(_STRAYS_S, _STRAYS_REST * (now_s - began_s)), strays
        return strays

    def _pool(self, node: Node) -> NodePool:
        # Roles change in a failover, addresses stay.
        address = node.having("primary")
        if address not in self._pools:
            self._pools[address] = probe_pool(self._shards, address)
        return self._pools[address]


def _view(state: NodeState, lag: Lag | None, *, breaker_open: bool) -> NodeView:
    up = state.error is None
    claim = None
    if up and state.node.role == "primary":
        claim = "none required" if not state.epoch else "held" if state.claim == state.epoch else "missing"
    return NodeView(
        address=str(state.node),
        role=state.node.role,
        up=up,
        version=state.version,
        read_only=state.read_only,
        claim=claim,
        lag_s=None if lag is None else round(lag.seconds, 1),
        lag_is_minimum=lag is not None and lag.is_minimum,
        breaker_open=breaker_open,
        fault=state.fault,
        warnings=tuple(state.warnings),
    )
