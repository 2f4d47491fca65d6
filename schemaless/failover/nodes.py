"""Changes to the nodes of a datastore's clusters: replicas, and which server is the primary.

Nothing is written down before it is proven, and what cannot be proven is refused. The catalog is on one of the clusters
itself, so it moves with that one's primary.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, replace
from typing import Final

from schemaless.errors import InvalidInput, SchemalessError, TopologyError
from schemaless.failover.adopt import take_over
from schemaless.failover.change import Change, opened, server_of
from schemaless.failover.group_replication import has_majority
from schemaless.topology.configuration import datastore_url
from schemaless.topology.lost_primaries import note_lost, settle
from schemaless.topology.model import Cluster
from schemaless.topology.replication import is_read_only, is_same_server
from schemaless.wire.node import Node
from schemaless.wire.secret import Secret
from schemaless.wire.urls import ServerURL

ARRIVAL_TIMEOUT_S: Final = 30.0
"""A transaction may take so long from a primary to its replica."""


@dataclass(frozen=True, slots=True)
class NodeChange:
    """What became of a change.

    Attributes:
        cluster: as it is now.
        changed: False where it was so already.
        arrived_s: how long a transaction took from the primary to each replica that was tried, in seconds.
        removed: nodes that the catalog no longer names.
        old_primary: None, or what was found of the one before: "read-only", "unreachable", or "the same server".
        url: the datastore's URL from now on, where the catalog moved; else None.
    """

    cluster: Cluster
    changed: bool
    arrived_s: dict[Node, float]
    removed: tuple[Node, ...] = ()
    old_primary: str | None = None
    url: str | None = None


def add_replica(url: str, cluster: str, replica: str, *, timeout_s: float = ARRIVAL_TIMEOUT_S) -> NodeChange:
    """Write a replica into the catalog, after proving that it is one.

    It has to be another server than the primary, a transaction that is committed on the primary has to arrive there,
    and every shard of the cluster has to be there under its own identity. Adding one that is there already proves it
    again, and writes nothing.

    Args:
        cluster: whose replica it is, such as "cluster-1".
        replica: its server's URL, such as ``mysql://db-1b:3306/``. The datastore's account is used.
        timeout_s: how long the transaction may take.

    Raises:
        InvalidInput: an argument cannot be used.
        TopologyError: it is no replica of that cluster; nothing was written.
        ServerError: a server cannot be reached, or refuses.
    """
    address = Secret(url)
    del url
    at, name = datastore_url(address)
    return add_node(at, name, cluster, server_of(at, replica), timeout_s=timeout_s)


def add_node(
    url: ServerURL, name: str, cluster: str, node: Node, *, timeout_s: float = ARRIVAL_TIMEOUT_S
) -> NodeChange:
    """Do what ``add_replica`` does, for callers that have parsed what they were given."""
    with closing(Change(url, name)) as change:
        now = change.topology.cluster(cluster)
        node = node.having("replica")
        known = node in now.replicas
        if not known:
            change.require_new(node)
        home = change.home()
        arrived_s = change.prove_replica(now, now.primary, node, timeout_s)
        if known:
            return NodeChange(now, False, {node: arrived_s})
        after = change.write(home, replace(now, nodes=(*now.nodes, node)))
        # Whatever it had once: it has what the primary has now.
        settle(change.pool(now.primary), name, cluster, node)
        return NodeChange(after, True, {node: arrived_s})


def remove_replica(url: str, cluster: str, replica: str) -> NodeChange:
    """Take a replica out of the catalog; it need not answer.

    Raises:
        InvalidInput: an argument cannot be used, or the cluster has no such replica.
        TopologyError: the datastore's URL is not that of the catalog's primary.
        ServerError: a server cannot be reached, or refuses.
    """
    address = Secret(url)
    del url
    with opened(address) as change:
        now = change.topology.cluster(cluster)
        node = change.node_of(replica).having("replica")
        if node not in now.replicas:
            names = ", ".join(map(str, now.replicas)) or "none"
            raise InvalidInput(f"{node} is no replica of {cluster}; its replicas are: {names}")
        rest = tuple(other for other in now.nodes if other != node)
        return NodeChange(change.write(change.home(), replace(now, nodes=rest)), True, {}, removed=(node,))


def set_primary(
    url: str,
    cluster: str,
    primary: str,
    *,
    keep_old: bool = False,
    drop_replicas: bool = False,
    timeout_s: float = ARRIVAL_TIMEOUT_S,
) -> NodeChange:
    """Write down which server is a cluster's primary, after a failover, a switchover or a change of address.

    The new one has to take writes and to have every shard of the cluster under its own identity. The old one, if it
    answers, has to be read-only, and the new one to have all that was committed there. Replicas have to follow the new
    one. Where the cluster's primary has a claim, the new one gets the next. An old one that does not answer is written
    down on the new one, until ``settle_lost``: it may have cells that nobody else has.

    Args:
        url: the datastore, by a server that has its catalog: where the catalog moves with this cluster, the new one.
        cluster: such as "cluster-1".
        primary: the new one's URL. The datastore's account is used.
        keep_old: write the old one down as a replica, which has to follow the new one by now.
        drop_replicas: take replicas that do not follow the new one out of the catalog, instead of refusing.
        timeout_s: how long a transaction may take to a replica.

    Raises:
        InvalidInput: an argument cannot be used.
        TopologyError: something of this is not so; nothing was written.
        ServerError: a server cannot be reached, or refuses.
    """
    address = Secret(url)
    del url
    with opened(address) as change:
        now = change.topology.cluster(cluster)
        node = change.node_of(primary)
        if node == now.primary:
            change.verify(now, node)
            return NodeChange(now, False, {})
        if node.having("replica") not in now.replicas:
            change.require_new(node)
        if is_read_only(change.pool(node)):
            raise TopologyError(
                f"{node} is read-only, so it cannot be the primary of {cluster}; stop its replication and make it "
                "writable first (STOP REPLICA; SET GLOBAL super_read_only = OFF, read_only = OFF). Nothing was written"
            )
        change.verify(now, node)
        old = change.old_primary(now, node, timeout_s)
        home = change.home(moves=now, to=node, old=old)
        if keep_old and old != "read-only":
            raise TopologyError(f"{now.primary} cannot stay as a replica, it is {old}; nothing was written")
        replicas = [other for other in now.replicas if other != node.having("replica")]
        arrived_s: dict[Node, float] = {}
        dropped: list[Node] = []
        for replica in [*replicas, *([now.primary.having("replica")] if keep_old else [])]:
            try:
                arrived_s[replica] = change.prove_replica(now, node, replica, timeout_s)
            except SchemalessError as problem:
                if drop_replicas and replica in replicas:
                    dropped.append(replica)
                    continue
                raise TopologyError(
                    f"{replica} does not follow the new primary {node} ({problem}); point it there, or "
                    + ("leave --keep-old-as-replica out" if replica not in replicas else "take it out: --drop-replicas")
                    + ". Nothing was written"
                ) from problem
        if old == "unreachable" and not has_majority(change.pool(node), len(now.nodes)):
            note_lost(change.pool(node), change.topology.name, cluster, now.primary)
        result = replace(now, nodes=(node, *arrived_s))
        result = take_over(change, home, result, arrived_s) if now.epoch else change.write(home, result)
        moved = change.url.node != node and (home.node == node or is_same_server(home, change.pool(node)))
        return NodeChange(
            result,
            True,
            arrived_s,
            removed=(*([] if keep_old else [now.primary]), *dropped),
            old_primary=old,
            url=replace(change.url, node=node).for_database(change.topology.name) if moved else None,
        )
