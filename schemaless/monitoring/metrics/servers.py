"""Metrics of servers: reachability, circuit breakers, replica lag, and replication that has stopped.

Lag is measured with GTIDs, which any account may read, so nothing has to be written. It is the age of the oldest
recorded GTID position of the primary that the replica has not reached.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from schemaless.errors import ServerError
from schemaless.monitoring.metrics.metric import Collector, Metric, Read, Sample
from schemaless.ops.failover.semi_sync import semi_sync
from schemaless.store.datastore import Datastore
from schemaless.store.internals import internals_of
from schemaless.topology.model import Cluster
from schemaless.topology.replica_position import gtid_position, wait_for_gtid
from schemaless.topology.replication import replica_threads
from schemaless.topology.shards import Shards
from schemaless.wire.node import Node
from schemaless.wire.parallel import on_servers
from schemaless.wire.pool import NodePool, PoolOptions
from schemaless.wire.sql.sessions import SELECT_ONE

_EVERY_S: Final = 5.0
_WAIT_S: Final = 0.05
"""Time that a replica waits for a GTID position, in seconds; 0 would mean no timeout."""
_KEPT: Final = 1_800
"""Maximum number of recorded positions per replica, enough for at least an hour. For a replica that lags more, the age
of the oldest one is reported."""
_OPTIONS: Final = PoolOptions(connect_timeout_s=2, read_timeout_s=2, write_timeout_s=2, pool_size=1, pool_timeout_s=2)

UP: Final = Metric("server_up", "1 if the server answers, else 0.", ("cluster", "role", "server"))
BREAKER: Final = Metric(
    "breaker_open",
    "1 if the exporter's own circuit breaker for the server is open, else 0.",
    ("cluster", "role", "server"),
)
LAG: Final = Metric(
    "replica_lag_seconds",
    "Seconds by which the replica lags behind the commits of its primary.",
    ("cluster", "server"),
)
BLOCKED: Final = Metric(
    "writes_blocked",
    "1 if commits on the semi-synchronous primary wait for a replica that is missing or silent, else 0.",
    ("cluster", "server"),
)
RUNNING: Final = Metric(
    "replica_running",
    "1 if the replica's replication threads run, else 0; absent if the account may not read their state.",
    ("cluster", "server"),
)


class Lag(NamedTuple):
    """Replication lag; ``is_minimum`` is True if the replica has been behind since the first reading."""

    seconds: float
    is_minimum: bool


class ReplicaLag:
    """Measures the lag of replicas by GTIDs; nothing is written for it.

    Args:
        pool_for: returns the connections to a server.
    """

    def __init__(self, pool_for: Callable[[Node], NodePool]) -> None:
        self._pool_for = pool_for
        self._moments: dict[Node, deque[tuple[float, str]]] = {}
        self._caught_up: set[Node] = set()

    def note_primary(self, cluster: Cluster) -> None:
        """Record the primary's current position for each of its replicas."""
        try:
            position = self._pool_for(cluster.primary).run(gtid_position)
        except ServerError:
            return  # it does not answer, or writes no GTIDs
        now_s = time.monotonic()
        for replica in cluster.replicas:
            self._moments.setdefault(replica, deque(maxlen=_KEPT)).append((now_s, position))

    def of(self, replica: Node) -> Lag | None:
        """Return the age of the oldest recorded position that the replica has not reached; None if unknown.

        Raises:
            ServerError: the replica does not answer.
        """
        moments = self._moments.get(replica)
        if not moments:
            return None
        pool = self._pool_for(replica)
        while moments:
            at_s, position = moments[0]
            if not pool.run(lambda connection, position=position: wait_for_gtid(connection, position, _WAIT_S)):  # type: ignore[misc]
                return Lag(time.monotonic() - at_s, replica not in self._caught_up)
            self._caught_up.add(replica)
            moments.popleft()
        return Lag(0.0, False)


def probe_pool(shards: Shards, node: Node) -> NodePool:
    """Return a pool that gives up quickly, so that a server that is down does not delay the others."""
    return shards.pools.new_pool(node, _OPTIONS)


class _Servers:
    def __init__(self, store: Datastore) -> None:
        self._internals = internals_of(store)
        self._pools: dict[Node, NodePool] = {}
        self._lag = ReplicaLag(self._pool)

    def read(self) -> Iterator[Sample]:
        clusters = self._internals.shards.topology.clusters
        for samples in on_servers([(cluster.primary, cluster) for cluster in clusters], self._of_cluster, 1):
            yield from samples

    def _of_cluster(self, cluster: Cluster) -> list[Sample]:
        primary = self._pool(cluster.primary)
        answers = _answers(primary)
        samples = _of_server(answers, primary, cluster, "primary")
        if answers:
            samples.append(BLOCKED.at(semi_sync(primary).blocks_writes, cluster.name, cluster.primary))
        if answers and cluster.replicas:
            self._lag.note_primary(cluster)
        for replica in cluster.replicas:
            pool = self._pool(replica)
            answers = _answers(pool)
            samples += _of_server(answers, pool, cluster, "replica")
            if not answers:
                continue
            if (running := replica_threads(pool).running) is not None:
                samples.append(RUNNING.at(running, cluster.name, replica))
            if (lag := self._lag.of(replica)) is not None:
                samples.append(LAG.at(lag.seconds, cluster.name, replica))
        return samples

    def _pool(self, node: Node) -> NodePool:
        pool = self._pools.get(node)
        if pool is None:
            pool = self._pools[node] = probe_pool(self._internals.shards, node)
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


SERVERS: Final = Collector("servers", (UP, BREAKER, LAG, BLOCKED, RUNNING), _EVERY_S, _reading)
