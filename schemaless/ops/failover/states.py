"""State of a datastore's servers, and whether it agrees with the catalog."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, replace

from schemaless.base.keys import shard_database
from schemaless.errors import AccessDenied, SchemalessError
from schemaless.ops.failover.change import Change, on_datastore
from schemaless.ops.failover.promotion import held_claim, last_claim
from schemaless.ops.failover.semi_sync import SemiSync, redundancy, semi_sync
from schemaless.planning.sampling.table_sizes import tables_elsewhere
from schemaless.schema.engines import setting_faults
from schemaless.topology.catalog import is_identity, server_identity
from schemaless.topology.model import Cluster, Topology
from schemaless.topology.moves import StrayTable, stray_tables, strays_text
from schemaless.topology.replication import ReplicaThreads, is_read_only, replica_threads
from schemaless.wire.node import Node
from schemaless.wire.pool import NodePool
from schemaless.wire.urls import ServerURL


@dataclass(frozen=True, slots=True)
class NodeState:
    """State of one node.

    Attributes:
        cluster: name of its cluster.
        node: the node.
        version: version of the server, such as "9.7.4"; None if it does not answer.
        read_only: whether it is read-only; None if it does not answer.
        error: why it does not answer, or None.
        epoch: epoch of the claim that the catalog requires of the cluster's primary; 0 if it requires none.
        claim: epoch of the node's own claim; None if it has none, or none is required.
        last_claim: epoch of the last claim on its cluster that the node knows of.
        semi_sync: its semi-synchronous replication, if it is a primary that has replicas or waits for some.
        threads: its replication threads, if it is a replica.
        unsafe: settings that are unsafe for the cluster's storage engine, and what to set instead.
        replaced: whether it is a primary whose address leads to another server than the catalog has recorded.
        elsewhere: tables whose storage engine is not the cluster's, if it is a primary.
        strays: tables of cells that it should not have.
        exposed: what the cluster has lost of what would let it survive the loss of this primary, or None.
        sparse: the same, if it is less serious.
    """

    cluster: str
    node: Node
    version: str | None
    read_only: bool | None
    error: str | None
    epoch: int = 0
    claim: int | None = None
    last_claim: int = 0
    semi_sync: SemiSync | None = None
    threads: ReplicaThreads | None = None
    unsafe: tuple[str, ...] = ()
    replaced: bool = False
    elsewhere: tuple[str, ...] = ()
    strays: tuple[StrayTable, ...] = ()
    exposed: str | None = None
    sparse: str | None = None

    @property
    def fault(self) -> str | None:
        """Description of a contradiction between the node and the catalog, or of broken replication, or None."""
        if self.error is not None:
            return self.error
        if self.last_claim > self.epoch:
            return (
                f"it has recorded claim {self.last_claim}, but this catalog requires {self.epoch}: this is "
                f"the catalog of "
                "an old primary, or an adoption was interrupted; use the URL of the new primary (--url), or run "
                "'schemaless topology adopt' again"
            )
        if self.node.role == "primary" and self.read_only:
            return "the primary is read-only; has another server taken its place?"
        if self.node.role == "primary" and self.epoch and self.claim != self.epoch:
            has = "no claim" if self.claim is None else f"claim {self.claim}"
            return (
                f"the primary has {has}, but the catalog requires claim {self.epoch}: no new connection writes there; "
                "run 'schemaless topology adopt' for the server that was promoted"
            )
        if self.node.role == "replica" and not self.read_only:
            return "the replica accepts writes, which reach no other server; make it read-only"
        if self.threads is not None and self.threads.is_broken:
            return self.threads.problem
        stopped = None if self.semi_sync is None else self.semi_sync.fault(self.cluster)
        return stopped or (strays_text(self.strays, self.node.role) if self.strays else None)

    @property
    def warnings(self) -> list[str]:
        """Warnings about settings that could lose cells, tables in an unexpected engine, and what cannot be read."""
        replication = [] if self.semi_sync is None else self.semi_sync.warnings
        unsure = None if self.threads is None or self.threads.is_broken else self.threads.problem
        command = "adopt" if self.epoch else "set-primary"
        moved = (
            "the address leads to another server than the catalog has recorded; if that is intended, name the same "
            f"address to 'schemaless topology {command}'"
        )
        problems = filter(None, (moved if self.replaced else None, unsure, *self.unsafe, *self.elsewhere, self.sparse))
        return [*replication, *(f"{self.node}: {problem}" for problem in problems)]


@on_datastore
def node_states(url: ServerURL) -> tuple[Topology, list[NodeState]]:
    """Return a datastore's topology and the state of each of its nodes.

    Raises:
        InvalidInput: the URL cannot be used.
        TopologyError: there is no such datastore.
        ServerError: the catalog's server cannot be reached.
    """
    with closing(Change(url)) as change:
        name = change.topology.name
        states = [
            _with_tables(change, cluster, node_state(change.pool(node), name, cluster, node))
            for cluster in change.topology.clusters
            for node in cluster.nodes
        ]
        return change.topology, states


def _with_tables(change: Change, cluster: Cluster, state: NodeState) -> NodeState:
    """Add to a state the tables that the server should not have, and a primary's whose engine is not the cluster's."""
    topology, pool = change.topology, change.pool(state.node)
    if state.error is not None:
        return state
    strays = stray_tables(change.pool(change.url.node), topology.name, change.pool, cluster, state.node)
    shards = topology.shards_of(cluster.name) if state.node.role == "primary" else ()
    databases = [shard_database(topology.name, shard) for shard in shards]
    elsewhere = [
        f"{table} uses {found} in {count:,} of {len(databases):,} shards, but the catalog records {cluster.engine}; "
        + ("a move" if table == "cell" else "'schemaless index rebuild' or a move")
        + " of these shards converts it"
        for table, found, count in tables_elsewhere(pool, databases, cluster.engine)
    ]
    return replace(state, strays=tuple(strays), elsewhere=tuple(elsewhere))


def node_state(pool: NodePool, datastore: str, cluster: Cluster, node: Node) -> NodeState:
    """Return the state of a node, even if the node does not answer.

    Args:
        pool: connections to the node.
        datastore: name of the datastore.
        cluster: the node's cluster, according to the catalog.
        node: the node.
    """
    is_primary = node.role == "primary"
    try:
        version = pool.run(lambda connection: connection.version)
        claim, last = None, cluster.epoch
        try:
            last = last_claim(pool, datastore, cluster.name)
            if is_primary and cluster.epoch:
                claim = held_claim(pool, datastore, cluster.name)
        except AccessDenied:
            # Accounts created before claims existed lack the privilege; that matters only if a claim is required.
            if cluster.epoch:
                raise
        waits = semi_sync(pool) if is_primary else None
        exposed, sparse = (None, None) if waits is None else redundancy(cluster, waits)
        if waits is not None and not waits.enabled and not cluster.replicas:
            waits = None
        return NodeState(
            cluster.name,
            node,
            version,
            is_read_only(pool),
            None,
            cluster.epoch,
            claim,
            last,
            waits,
            None if is_primary else replica_threads(pool),
            tuple(setting_faults(pool, cluster.engine)),
            is_primary and node.server is not None and not is_identity(node.server, server_identity(pool)),
            exposed=exposed,
            sparse=sparse,
        )
    except SchemalessError as problem:
        return NodeState(cluster.name, node, None, None, str(problem))
