"""Metrics of servers: reachability, circuit breakers and replica lag.

Lag is measured by GTIDs, which any account may read, and without writing: it is the age of the oldest recorded GTID
position of the primary that the replica has not reached.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from typing import Final

from schemaless.datastore import Datastore
from schemaless.errors import ServerError
from schemaless.internals import internals_of
from schemaless.metrics.metric import Collector, Metric, Read, Sample
from schemaless.topology.model import Cluster
from schemaless.topology.replica_position import gtid_position, wait_for_gtid
from schemaless.wire.node import Node
from schemaless.wire.parallel import on_servers
from schemaless.wire.pool import NodePool, PoolOptions
from schemaless.wire.sql.sessions import SELECT_ONE

_EVERY_S: Final = 5.0
_WAIT_S: Final = 0.05
"""Time that a replica waits for a GTID position, in seconds; 0 would mean no timeout."""
_KEPT: Final = 720
"""Number of recorded positions, one hour's worth. A replica with a greater lag shows an hour."""
_OPTIONS: Final = PoolOptions(connect_timeout_s=2, read_timeout_s=2, write_timeout_s=2, pool_size=1, pool_timeout_s=2)

UP: Final = Metric("server_up", "1 if the server answers, else 0.", ("cluster", "role", "server"))
BREAKER: Final = Metric(
    "breaker_open",
    "1 if the exporter's own circuit breaker for the server is open, else 0.",
    ("cluster", "role", "server"),
)
LAG: Final = Metric(
    "replica_lag_seconds",
    "Seconds by which the replica lags the commits of its primary.",
    ("cluster", "server"),
)


class _Servers:
    def __init__(self, store: Datastore) -> None:
        self._internals = internals_of(store)
        self._pools: dict[Node, NodePool] = {}
        self._moments: dict[Node, deque[tuple[float, str]]] = {}

    def read(self) -> Iterator[Sample]:
        clusters = self._internals.shards.topology.clusters
        for samples in on_servers([(cluster.primary, cluster) for cluster in clusters], self._of_cluster, 1):
            yield from samples

    def _of_cluster(self, cluster: Cluster) -> list[Sample]:
        primary = self._pool(cluster.primary)
        answers = _answers(primary)
        samples = _of_server(answers, primary, cluster, "primary")
        position = None
        if answers and cluster.replicas:
            try:
                position = primary.run(gtid_position)
            except ServerError:
                position = None  # without GTIDs, the lag is unknown
        now_s = time.monotonic()
        for replica in cluster.replicas:
            answers = _answers(self._pool(replica))
            samples += _of_server(answers, self._pool(replica), cluster, "replica")
            moments = self._moments.setdefault(replica, deque(maxlen=_KEPT))
            if position is not None:
                moments.append((now_s, position))
            if answers and (lag_s := self._lag_s(replica, moments)) is not None:
                samples.append(LAG.at(lag_s, cluster.name, replica))
        return samples

    def _lag_s(self, replica: Node, moments: deque[tuple[float, str]]) -> float | None:
        """Return the age of the oldest position that has not been reached; None if it is unknown."""
        if not moments:
            return None
        pool = self._pool(replica)
        while moments:
            at_s, position = moments[0]
            if not pool.run(lambda connection, position=position: wait_for_gtid(connection, position, _WAIT_S)):  # type: ignore[misc]
                return time.monotonic() - at_s
            moments.popleft()
        return 0.0

    def _pool(self, node: Node) -> NodePool:
        """Return a pool with short timeouts, so that a server that is down delays no other."""
        pool = self._pools.get(node)
        if pool is None:
            pool = self._pools[node] = self._internals.shards.new_pool(node, _OPTIONS)
        return pool


def _of_server(answers: bool, pool: NodePool, cluster: Cluster, role: str) -> list[Sample]:
    labels = (cluster.name, role, pool.node)
    return [UP.at(answers, *labels), BREAKER.at(pool.breaker.is_open, *labels)]


def _answers(pool: NodePool) -> bool:
    try:
        pool.run(lambda connection: connection.rows(SELECT_ONE))
    except ServerError:
        return False
    return True


def _reading(store: Datastore) -> Read:
    return _Servers(store).read


SERVERS: Final = Collector("servers", (UP, BREAKER, LAG), _EVERY_S, _reading)
