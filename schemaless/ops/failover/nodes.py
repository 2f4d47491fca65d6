"""Adds and removes replicas, and changes a cluster's primary in the catalog.

Every change is checked on the servers before it is written, and refused if the check fails. The catalog itself is on
one of the clusters, so it moves with the primary of that cluster.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from typing import Final

from schemaless.errors import InvalidInput, SchemalessError, TopologyError
from schemaless.ops.failover.adopt import take_over
from schemaless.ops.failover.change import Change, NodeChange, on_datastore, server_of
from schemaless.ops.failover.group_replication import has_majority
from schemaless.ops.failover.promotion import held_claim
from schemaless.ops.failover.semi_sync import promotion_warnings
from schemaless.topology import catalog
from schemaless.topology.lost_primaries import record_lost_primary, settle
from schemaless.wire.node import Node
from schemaless.wire.urls import ServerURL

ARRIVAL_TIMEOUT_S: Final = 30.0
"""Default timeout for a transaction to reach a replica, in seconds."""


@on_datastore
def add_replica(
    url: ServerURL, cluster: str, replica: str | Node, *, timeout_s: float = ARRIVAL_TIMEOUT_S
) -> NodeChange:
    """Add a replica to the catalog, after checking that it is one.

    The replica must not be the primary itself, must receive a transaction committed on the primary, and must have every
    shard of the cluster. A replica that the catalog already has is checked again, and nothing is written.

    Args:
        url: the datastore's URL.
        cluster: name of the replica's cluster, such as "cluster-1".
        replica: URL of the replica, such as ``mysql://db-1b:3306/``. The datastore's account is used.
        timeout_s: timeout for the transaction, in seconds.

    Raises:
        InvalidInput: an argument cannot be used.
        TopologyError: the server is not a replica of that cluster; nothing was written.
        ServerError: a server cannot be reached, or rejects a statement.
    """
    with closing(Change(url)) as change:
        now = change.topology.cluster(cluster)
        node = server_of(url, replica).having("replica")
        known = node in now.replicas
        if not known:
            change.require_new(node)
        home = change.home()
        arrived_s = change.prove_replica(now, now.primary, node, timeout_s)
        if known:
            return NodeChange(now, False, {node: arrived_s})
        after = change.write(home, replace(now, nodes=(*now.nodes, node)))
        # A rebuilt old primary has the same data as the primary, so nothing is left to recover from it.
        settle(change.pool(now.primary), change.topology.name, cluster, node)
        return NodeChange(after, True, {node: arrived_s})


@on_datastore
def remove_replica(url: ServerURL, cluster: str, replica: str) -> NodeChange:
    """Remove a replica from the catalog; the server need not answer.

    Args:
        url: the datastore's URL.
        cluster: name of the replica's cluster.
        replica: URL of the replica.

    Raises:
        InvalidInput: an argument cannot be used, or the cluster has no such replica.
        TopologyError: the datastore's URL is not that of the catalog's primary.
        ServerError: a server cannot be reached, or rejects a statement.
    """
    with closing(Change(url)) as change:
        now = change.topology.cluster(cluster)
        node = server_of(url, replica).having("replica")
        if node not in now.replicas:
            names = ", ".join(map(str, now.replicas)) or "none"
            raise InvalidInput(f"{node} is not a replica of {cluster}; its replicas are: {names}")
        remaining = tuple(other for other in now.nodes if other != node)
        return NodeChange(
            change.write(change.home(), replace(now, nodes=remaining)), True, {}, removed={node: "on request"}
        )


@on_datastore
def expect(url: ServerURL, cluster: str, *, replicas: int | None = None, semi_sync: bool | None = None) -> None:
    """Record what a cluster should have; None leaves unchanged what was recorded before.

    Args:
        url: the datastore's URL.
        cluster: name of the cluster.
        replicas: the number of replicas.
        semi_sync: whether it should be semi-synchronous.

    Raises:
        InvalidInput: there is no such cluster.
        TopologyError: the datastore's URL is not that of the catalog's primary.
        ServerError: a server cannot be reached, or rejects a statement.
    """
    with closing(Change(url)) as change:
        change.topology.cluster(cluster)
        given = {"replicas": replicas, "semi_sync": None if semi_sync is None else int(semi_sync)}
        changes = {name: value for name, value in given.items() if value is not None}
        catalog.expect(change.home(), change.topology.name, cluster, changes)


@on_datastore
def set_primary(
    url: ServerURL,
    cluster: str,
    primary: str,
    *,
    keep_old: bool = False,
    drop_replicas: bool = False,
    timeout_s: float = ARRIVAL_TIMEOUT_S,
) -> NodeChange:
    """Change a cluster's primary in the catalog, after a failover, a switchover or a change of address.

    The server may be the current primary: if its address leads to another server than before, this makes programs
    replace their connections when they next read the catalog, and gives the server the cluster's claim if it lacks it.

    The new primary must accept writes and have every shard of the cluster. The old one, if it answers, must be
    read-only and must not have transactions that the new one lacks. Replicas must follow the new primary. If the
    cluster uses claims, the new primary gets the next one. An old primary that does not answer is recorded on the new
    one as lost, until ``settle_lost`` is called, because it may have cells that no other server has.

    Args:
        url: the datastore's URL. If the catalog moves with this cluster, the URL must name the new primary.
        cluster: name of the cluster, such as "cluster-1".
        primary: URL of the new primary. The datastore's account is used.
        keep_old: keep the old primary in the catalog as a replica, which must already follow the new one.
        drop_replicas: remove from the catalog the replicas that do not follow the new primary, instead of refusing.
        timeout_s: timeout for a transaction to reach a replica, in seconds.

    Raises:
        InvalidInput: an argument cannot be used.
        TopologyError: a requirement is not met; nothing was written.
        ServerError: a server cannot be reached, or rejects a statement.
    """
    node = server_of(url, primary)
    with closing(Change(url, promoted=node)) as change:
        name = change.topology.name
        now = change.topology.cluster(cluster)
        same = node == now.primary
        pool = change.check_primary(now, node, timeout_s)
        old = "the same server" if same else change.old_primary(now, node, timeout_s)
        errant, unread = change.errant(now, node, old)
        home = change.home() if same else change.home(moves=now, to=node, old=old)
        if keep_old and old != "read-only":
            reason = f"the same server as {node}" if old == "the same server" else old
            raise TopologyError(
                f"{now.primary} cannot be kept as a replica, because it is {reason}; nothing was written"
            )
        replicas = [other for other in now.replicas if other != node.having("replica")]
        arrived_s: dict[Node, float] = {}
        removed = {} if keep_old or same else {now.primary: "it was the primary"}
        for replica in [*replicas, *([now.primary.having("replica")] if keep_old else [])]:
            try:
                arrived_s[replica] = change.prove_replica(now, node, replica, timeout_s)
            except SchemalessError as problem:
                if drop_replicas and replica in replicas:
                    removed[replica] = str(problem)
                    continue
                raise TopologyError(
                    f"{replica} does not follow the new primary {node} ({problem}); make it replicate from there, or "
                    + ("omit --keep-old-as-replica" if replica not in replicas else "remove it with --drop-replicas")
                    + ". Nothing was written"
                ) from problem
        if old == "unreachable" and not has_majority(pool, len(now.nodes)):
            record_lost_primary(pool, name, cluster, now.primary)
        result = replace(now, nodes=(node, *arrived_s))
        claims = now.epoch and not (same and held_claim(pool, name, cluster) == now.epoch)
        result = take_over(change, home, result, arrived_s) if claims else change.write(home, result)
        return NodeChange(
            result,
            True,
            arrived_s,
            removed,
            old_primary=None if same else old,
            url=None if same else change.moved_url(home, node),
            errant=errant,
            warnings=(*unread, *promotion_warnings(pool, now, result)),
        )
