"""What the servers of a datastore say of themselves: whether each is what the catalog takes it for."""

from __future__ import annotations

from dataclasses import dataclass

from schemaless.errors import AccessDenied, SchemalessError
from schemaless.failover.change import Change, opened
from schemaless.failover.promotion import held_claim, last_claim
from schemaless.failover.semi_sync import SemiSync, semi_sync
from schemaless.topology.model import Cluster, Topology
from schemaless.topology.replication import is_read_only
from schemaless.wire.node import Node
from schemaless.wire.secret import Secret


@dataclass(frozen=True, slots=True)
class NodeState:
    """What a node says of itself.

    Attributes:
        version: such as "9.7.4"; None where it does not answer.
        read_only: whether it takes no writes; None where it does not answer.
        error: why it does not answer, or None.
        epoch: the claim that the catalog asks for, where it is the primary; 0 where none is.
        claim: the epoch of the claim that it has itself; None without, and where none is asked for.
        heard_of: the epoch of the last claim on its cluster that it knows of, whoever made it.
        waiting: how it waits for its replicas, where it is the primary and has any.
    """

    cluster: str
    node: Node
    version: str | None
    read_only: bool | None
    error: str | None
    epoch: int = 0
    claim: int | None = None
    heard_of: int = 0
    waiting: SemiSync | None = None

    @property
    def fault(self) -> str | None:
        """What is wrong with it, or None."""
        if self.error is not None:
            return self.error
        if self.heard_of > self.epoch:
            return (
                f"it knows of claim {self.heard_of}, and this catalog asks for {self.epoch}: this is an old primary's "
                "catalog, or a takeover was interrupted; name the datastore by the new primary (--url), or run "
                "'schemaless topology adopt' again"
            )
        if self.node.role == "primary" and self.read_only:
            return "the primary is read-only; has another server taken its place?"
        if self.node.role == "primary" and self.epoch and self.claim != self.epoch:
            has = "no claim" if self.claim is None else f"claim {self.claim}"
            return (
                f"the primary has {has}, and the catalog asks for claim {self.epoch}: no new connection writes there; "
                "'schemaless topology adopt' takes over what was promoted"
            )
        if self.node.role == "replica" and not self.read_only:
            return "the replica takes writes, which no other server gets; set it read-only"
        return None if self.waiting is None else self.waiting.fault

    @property
    def warnings(self) -> list[str]:
        """What a failover would make of it."""
        return [] if self.waiting is None else self.waiting.warnings


def node_states(url: str) -> tuple[Topology, list[NodeState]]:
    """Return a datastore's topology, and what each of its nodes says.

    Raises:
        InvalidInput: the URL cannot be used.
        TopologyError: there is no such datastore.
        ServerError: the catalog's server cannot be reached.
    """
    address = Secret(url)
    del url
    with opened(address) as change:
        states = [_state(change, cluster, node) for cluster in change.topology.clusters for node in cluster.nodes]
        return change.topology, states


def _state(change: Change, cluster: Cluster, node: Node) -> NodeState:
    pool = change.pool(node)
    is_primary = node.role == "primary"
    try:
        version = pool.run(lambda connection: connection.version)
        claim, heard_of = None, cluster.epoch
        try:
            heard_of = last_claim(pool, change.topology.name, cluster.name)
            if is_primary and cluster.epoch:
                claim = held_claim(pool, change.topology.name, cluster.name)
        except AccessDenied:
            # An account of before there were claims; it is refused where one is asked for.
            if cluster.epoch:
                raise
        waiting = semi_sync(pool) if is_primary and cluster.replicas else None
        return NodeState(cluster.name, node, version, is_read_only(pool), None, cluster.epoch, claim, heard_of, waiting)
    except SchemalessError as problem:
        return NodeState(cluster.name, node, None, None, str(problem))
