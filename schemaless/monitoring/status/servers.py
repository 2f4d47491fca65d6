"""Reads the state of every server: whether it answers and takes writes, claim, lag, breaker, transactions, strays."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple

from schemaless.base.keys import heartbeat_database
from schemaless.errors import AccessDenied, SchemalessError, ServerError
from schemaless.monitoring.status.model import ClusterView, MonitorOptions, NodeView, TransactionView
from schemaless.monitoring.status.probe import Write, WriteProbe
from schemaless.ops.failover.states import NodeState, node_state
from schemaless.planning.sampling.table_sizes import DiskSpace, database_folder, disk_space_in
from schemaless.store.datastore import Datastore
from schemaless.store.internals import internals_of
from schemaless.topology.catalog import note_semi_sync
from schemaless.topology.heartbeat import read_beat
from schemaless.topology.model import Cluster
from schemaless.topology.moves import StrayTable, stray_tables
from schemaless.topology.replica_position import gtid_position, wait_for_gtid
from schemaless.wire.node import Node
from schemaless.wire.parallel import on_servers
from schemaless.wire.pool import NodePool, PoolOptions
from schemaless.wire.transactions import open_transactions

_WAIT_S: Final = 0.05
"""Time that a replica waits for a GTID position, in seconds; 0 would mean no timeout."""

_KEPT: Final = 1_800
"""Maximum number of recorded positions per replica, enough for an hour. For a replica that lags more, the age of the
oldest one is reported."""

_OPTIONS: Final = PoolOptions(connect_timeout_s=2, read_timeout_s=2, write_timeout_s=2, pool_size=1, pool_timeout_s=2)
"""Gives up quickly, so that a server that is down does not delay the others."""

_STRAYS_S: Final = 60.0
"""Minimum rest between two searches for tables that a server should not have, in seconds."""

_STRAYS_REST: Final = 200.0
"""Minimum rest, as a multiple of the time that the search took."""


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


class ServerReader:
    """Reads all servers; different clusters are read concurrently.

    A server that does not answer costs at most two seconds, and nothing while its breaker is open.

    Args:
        store: the datastore.
        options: what is written, and which transactions are listed.
    """

    def __init__(self, store: Datastore, options: MonitorOptions) -> None:
        self._internals = internals_of(store)
        self._shards = self._internals.shards
        self._shards.router.keeps_connection = True
        self._pools: dict[Node, NodePool] = {}
        self._lag = ReplicaLag(self._pool)
        datastore = self._shards.topology.name
        self._probe = WriteProbe(self._shards.pools, self._pool, datastore) if options.probe else None
        # Clusters as read from the catalog before this process recorded that they are semi-synchronous.
        self._noted: dict[str, Cluster] = {}
        self._unrecorded: set[str] = set()
        self._options = options
        self._folders: dict[Node, Path | None] = {}
        self._strays: dict[tuple[str, Node], tuple[float, tuple[StrayTable, ...]]] = {}

    def __call__(self) -> tuple[ClusterView, ...]:
        """Return the clusters as currently listed in the catalog or, if it does not answer, as last read."""
        self._shards.router.again(self._shards.routing)
        clusters = self._shards.topology.clusters
        read = list(on_servers([(cluster.primary, cluster) for cluster in clusters], self._read, 1))
        if self._probe is not None and self._unrecorded:
            self._note_semi_sync(self._probe)
        return tuple(sorted(read, key=lambda view: [cluster.name for cluster in clusters].index(view.name)))

    def close(self) -> None:
        """Close all connections."""
        for pool in self._pools.values():
            pool.close()
        if self._probe is not None:
            self._probe.close()

    def _read(self, cluster: Cluster) -> ClusterView:
        if cluster.replicas:
            self._lag.note_primary(cluster)
        shards = len(self._shards.topology.shards_of(cluster.name))
        missing = max(0, (cluster.expected_replicas or 0) - len(cluster.replicas))
        return ClusterView(cluster.name, cluster.epoch, shards, tuple(self._nodes(cluster)), missing)

    def _nodes(self, cluster: Cluster) -> Iterator[NodeView]:
        write = Write()
        if self._noted.get(cluster.name) is cluster:
            cluster = replace(cluster, semi_sync=True)
        for node in sorted(cluster.nodes, key=lambda node: node.role):  # the primary first
            pool = self._pool(node)
            state = node_state(pool, self._shards.topology.name, cluster, node)
            self._find_semi_sync(cluster, state)
            disk = self._disk(pool, state)
            if state.error is not None:
                yield _view(state, None, disk, breaker_open=pool.breaker.is_open)
                continue
            state = replace(state, strays=self._strays_of(cluster, node))
            if node.role == "replica":
                yield _view(state, self._lag_of(cluster, node, write), disk, breaker_open=pool.breaker.is_open)
                continue
            write = write if self._probe is None else self._probe(cluster)
            transactions, unseen = self._transactions(pool)
            view = _view(state, None, disk, breaker_open=pool.breaker.is_open)
            problems = (f"{node}: {problem}" for problem in (write.untried, unseen) if problem is not None)
            yield replace(
                view,
                warnings=(*view.warnings, *problems),
                write_s=write.took_s,
                write_age_s=None if write.beat is None else write.beat.age_s,
                write_problem=write.problem,
                transactions=transactions,
            )

    def _find_semi_sync(self, cluster: Cluster, state: NodeState) -> None:
        found = state.semi_sync
        if found is None or not (found.enabled and cluster.replicas) or found.group or cluster.semi_sync:
            return
        self._noted[cluster.name] = cluster
        self._unrecorded.add(cluster.name)

    def _note_semi_sync(self, probe: WriteProbe) -> None:
        """Record in the catalog which clusters are semi-synchronous, so that it is missed afterwards."""
        # The account may not write there, or the write hangs; then only this process remembers it.
        with suppress(SchemalessError), probe.connection(self._internals.catalog.node) as connection:
            while self._unrecorded:
                note_semi_sync(connection, self._shards.topology.name, self._unrecorded.pop())

    def _transactions(self, pool: NodePool) -> tuple[tuple[TransactionView, ...] | None, str | None]:
        """Return a primary's old transactions, or why they cannot be seen."""
        older_than_s, backup = self._options.transactions_older_than_s, self._options.backup_account
        try:
            found = pool.run(lambda connection: open_transactions(connection, older_than_s, backup))
        except AccessDenied as denied:
            return None, denied.message
        except SchemalessError:  # it stopped answering just now; the next reading reports that
            return None, None
        return tuple(TransactionView(*each, each.account.rpartition("@")[0] == backup) for each in found), None

    def _disk(self, pool: NodePool, state: NodeState) -> DiskSpace | None:
        """Return the space on a server's disk, also once the server does not answer any more; None if unknown."""
        if pool.node.socket is None:
            return None
        if pool.node not in self._folders and state.error is None:
            database = heartbeat_database(self._shards.topology.name)
            with suppress(SchemalessError):
                self._folders[pool.node] = pool.run(lambda connection: database_folder(connection, database))
        folder = self._folders.get(pool.node)
        return None if folder is None else disk_space_in(folder)

    def _lag_of(self, cluster: Cluster, replica: Node, write: Write) -> Lag | None:
        """Return a replica's lag by GTIDs or, on servers without them, by the heartbeat that has arrived there."""
        try:
            lag = self._lag.of(replica)
            if lag is None and write.beat is not None:
                name = self._shards.topology.name
                beat = self._pool(replica).run(lambda connection: read_beat(connection, name, cluster.name))
                lag = None if beat is None else Lag(max(0.0, write.beat.written_s - beat.written_s), is_minimum=False)
        except SchemalessError:  # it stopped answering just now; the next reading reports that
            return None
        return lag

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
            self._pools[address] = self._shards.pools.new_pool(address, _OPTIONS)
        return self._pools[address]


def _view(state: NodeState, lag: Lag | None, disk: DiskSpace | None, *, breaker_open: bool) -> NodeView:
    up = state.error is None
    claim = None
    is_primary = state.node.role == "primary"
    if up and is_primary:
        claim = "none required" if not state.epoch else "held" if state.claim == state.epoch else "missing"
    return NodeView(
        address=str(state.node),
        role=state.node.role,
        up=up,
        version=state.version,
        read_only=state.read_only,
        claim=claim,
        lag_s=None if lag is None else round(lag.seconds, 3),
        lag_is_minimum=lag is not None and lag.is_minimum,
        breaker_open=breaker_open,
        fault=state.fault,
        warnings=tuple(state.warnings),
        writes_blocked=(state.semi_sync is not None and state.semi_sync.blocks_writes) if up and is_primary else None,
        exposed=state.exposed,
        replica_running=None if state.threads is None else state.threads.running,
        disk_bytes=None if disk is None else disk.used_bytes + disk.free_bytes,
        free_bytes=None if disk is None else disk.free_bytes,
    )
