"""Gives a restored datastore its own servers.

A catalog that was restored on another server still names the servers of the original, so opening it is refused
(``CatalogEntry.require_home``). The steps here are: checks, which read the new servers only; an incarnation of its own,
so that it deletes no cold file of the original; erasures, repeated while no other program can open the datastore;
claims on the new servers; the new servers in the catalog, in one transaction. If a call is interrupted before that
transaction, the catalog is still refused, and the call can be repeated. The repetition keeps the incarnation, because
its cold files would belong to no datastore otherwise: their objects would never be deleted.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, replace

from schemaless.base.keys import heartbeat_database
from schemaless.codec.envelope import DEFAULT_LIMITS
from schemaless.errors import InvalidInput, TopologyError
from schemaless.ops.failover.adopt import begin_blocks, next_block
from schemaless.ops.failover.change import Change, on_datastore, require_same_system, require_writable, server_of
from schemaless.ops.failover.promotion import last_claim, make_claim
from schemaless.ops.failover.sql import update_incarnation
from schemaless.schema.databases import databases_like
from schemaless.store.cold.settings import ColdSettings
from schemaless.store.datastore import Datastore
from schemaless.store.internals import Internals
from schemaless.topology.catalog import is_identity, server_identity, with_identities, write_clusters
from schemaless.topology.model import Cluster, Topology
from schemaless.topology.replication import require_different
from schemaless.topology.shards import Shards
from schemaless.wire.node import Node
from schemaless.wire.pool import PoolOptions
from schemaless.wire.pools import Pools
from schemaless.wire.urls import ServerURL


@dataclass(frozen=True, slots=True)
class Restored:
    """Result of ``restored``.

    Attributes:
        topology: the topology afterwards.
        changed: False if an earlier call had given the datastore these servers; erasures were repeated nevertheless.
    """

    topology: Topology
    changed: bool


@on_datastore
def restored(
    url: ServerURL, servers: Mapping[str, str], erase: Callable[[Datastore], None], *, replaces_original: bool = False
) -> Restored:
    """Give a datastore whose catalog was copied, for instance restored from a backup, its own servers.

    The new servers must accept writes and have every shard. No server of the original is contacted, unless
    ``replaces_original`` allows it. If a call is interrupted, repeat it; it continues with the same cold store.

    Args:
        url: the datastore's URL, with the server that the catalog was copied to.
        servers: URL of each cluster's new primary, by the cluster's name or by its old primary's address.
        erase: called with the datastore before anyone else can open it; repeats its erasures.
        replaces_original: the original is no longer in use, so the new servers may be servers of the original, and
            clusters that ``servers`` lacks keep theirs.

    Raises:
        InvalidInput: an argument cannot be used, or a cluster has no new server.
        TopologyError: the catalog is not a copy, or a server does not have what it should; the catalog was not changed.
        ServerError: a server cannot be reached, or rejects a statement.
    """
    with closing(Change(url, copied=True)) as change:
        before = change.topology
        old = {node.having("primary"): node.server for cluster in before.clusters for node in cluster.nodes}
        recorded = [server for server in old.values() if server is not None]
        is_home = _is_any(recorded, change.entry.server)
        after = _with_servers(change, servers, is_home=is_home, keep=replaces_original)
        changed = not is_home or replaces_original
        if is_home and not replaces_original and _primaries(after) != _primaries(before):
            raise TopologyError(
                f"the catalog of {before.name!r} on {change.url.node} is not a copy: it names this server. 'schemaless "
                "topology set-primary' changes one server; add --replaces-original if the original is no longer in use"
            )
        for cluster in after.clusters:
            pool = change.pool(cluster.primary)
            # An address of the original is not contacted.
            belongs = cluster.primary in old or _is_any(recorded, server_identity(pool))
            if changed and belongs and not replaces_original:
                raise TopologyError(
                    f"{cluster.primary}, given for {cluster.name}, is a server of the original datastore; give the "
                    "server on which the backup was restored, or add --replaces-original if the original is no longer "
                    "in use. Nothing was written"
                )
            _check(change, cluster)
        require_different(change.pool(primary) for primary in _primaries(after))
        found = change.identities(after.clusters)
        after = replace(after, clusters=tuple(with_identities(cluster, found) for cluster in after.clusters))
        if change.entry.server not in [cluster.primary.server for cluster in after.clusters]:
            raise TopologyError(
                f"the catalog is on {change.url.node}, which is none of the servers given; restore it on the primary "
                "of one of the clusters. Nothing was written"
            )
        is_copy, catalog = changed and not replaces_original, change.pool(change.url.node)
        cold = ColdSettings(lambda: catalog, before.name).store()
        is_continued = cold is not None and changed and cold.incarnation == _incarnation(change, cold.incarnation)
        if is_continued and replaces_original:
            raise TopologyError(
                f"an earlier call without --replaces-original began to make {before.name!r} a copy, which does not own "
                "the original's cold files any more: repeat it without this option, or restore the catalog again. "
                "Nothing was written"
            )
        if is_copy and not is_continued:
            # Before erasures are repeated: the cold files that the copy lists belong to the original, which needs them.
            catalog.execute(update_incarnation(before.name, _incarnation(change, secrets.token_hex(16))))
        _erase(change, after, erase, has_new_cold=is_copy)
        if changed:
            clusters = [_claimed(change, cluster) if cluster.epoch else cluster for cluster in after.clusters]
            write_clusters(catalog, before, clusters, {})
            after = replace(after, clusters=tuple(clusters))
        return Restored(after, changed)


def _incarnation(change: Change, random: str) -> str:
    """Return an incarnation that begins like a random number, and shows that this server was given it.

    The rest depends on the topology's token, too, which changes when the datastore gets its servers: a backup of it
    that is restored on the same server gets another incarnation, because it may have moved in the meantime.
    """
    given = f"{random[:16]} {change.entry.server} {(change.entry.token or b'').hex()}"
    return random[:16] + hashlib.sha256(given.encode()).hexdigest()[:16]


def _is_any(recorded: Iterable[str], server: str | None) -> bool:
    return any(is_identity(identity, server) for identity in recorded)


def _primaries(topology: Topology) -> list[Node]:
    return [cluster.primary for cluster in topology.clusters]


def _with_servers(change: Change, servers: Mapping[str, str], *, is_home: bool, keep: bool) -> Topology:
    """Return the topology with the given servers as the only ones of their clusters."""
    topology, given = change.topology, dict[str, Node]()
    for old, new in servers.items():
        node = server_of(change.url, new)
        named = [cluster.name for cluster in topology.clusters if old in (cluster.name, str(cluster.primary))]
        # An earlier call may have replaced the address.
        named += [cluster.name for cluster in topology.clusters if is_home and cluster.primary == node]
        if not named:
            raise InvalidInput(f"{topology.name!r} has no cluster {old!r}; its clusters are {_listed(topology)}")
        if named[0] in given:
            raise InvalidInput(f"two servers are given for {named[0]}: {given[named[0]]} and {node}")
        given[named[0]] = node
    missing = [cluster.name for cluster in topology.clusters if cluster.name not in given]
    if missing and not keep:
        raise InvalidInput(
            f"no server is given for {', '.join(missing)}; the clusters of {topology.name!r} are {_listed(topology)}. "
            "Add --map for each. Nothing was written"
        )
    # Without identities, because other servers may have the old addresses now.
    clusters = tuple(
        replace(
            cluster,
            nodes=(given[cluster.name],)
            if cluster.name in given
            else tuple(replace(node, server=None) for node in cluster.nodes),
        )
        for cluster in topology.clusters
    )
    after = replace(topology, clusters=clusters)
    if len(set(_primaries(after))) != len(clusters):
        raise InvalidInput("the same server is given for two clusters; each needs its own. Nothing was written")
    return after


def _listed(topology: Topology) -> str:
    return ", ".join(f"{cluster.name} ({cluster.primary})" for cluster in topology.clusters)


def _check(change: Change, cluster: Cluster) -> None:
    """Check that a server can be a cluster's primary, and has its databases."""
    pool, home = change.pool(cluster.primary), change.pool(change.url.node)
    require_same_system(pool, home)
    require_writable(pool, cluster.name)
    change.verify(cluster, cluster.primary)
    own = heartbeat_database(change.topology.name)
    if own not in databases_like(pool, change.topology.name):
        raise TopologyError(f"{pool.node} has no database {own}; restore that of {cluster.name}. Nothing was written")


def _erase(change: Change, topology: Topology, erase: Callable[[Datastore], None], *, has_new_cold: bool) -> None:
    """Open the datastore with its new servers, which the catalog does not name yet, and repeat its erasures."""
    # The claims of the original are not valid on these servers.
    unclaimed = replace(topology, clusters=tuple(replace(cluster, epoch=0) for cluster in topology.clusters))
    shards = Shards(unclaimed, Pools(change.url.credentials, PoolOptions()))
    internals = Internals(shards, change.url, DEFAULT_LIMITS)
    # A drill may not reach the original's cold store.
    internals.cold.is_new = has_new_cold
    with Datastore(internals) as store:
        erase(store)


def _claimed(change: Change, cluster: Cluster) -> Cluster:
    """Give a cluster's new primary the next claim, and return the cluster with it."""
    pool, name = change.pool(cluster.primary), change.topology.name
    epoch = 1 + max(cluster.epoch, last_claim(pool, name, cluster.name))
    claimed = replace(cluster, epoch=epoch, id_block=next_block(change, cluster, cluster.primary))
    begin_blocks(change, claimed)
    make_claim(pool, name, cluster.name, epoch)
    return claimed
