"""``Change``: what every change of a datastore's servers works with: the topology, pools, and what is proven.

The catalog is on one of the clusters itself, so it moves with that one's primary.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from schemaless.errors import InvalidInput, ServerTimeout, ServerUnavailable, TopologyError
from schemaless.failover.group_replication import has_replaced
from schemaless.keys import shard_database
from schemaless.schema.databases import Identity, verify_identity
from schemaless.topology.catalog import find_catalog, read_catalog, read_ready, write_cluster
from schemaless.topology.configuration import datastore_url
from schemaless.topology.model import Cluster
from schemaless.topology.replication import follows, has_everything_of, is_read_only, is_same_server
from schemaless.wire.node import Node
from schemaless.wire.parallel import AT_ONCE, on_servers
from schemaless.wire.pool import NodePool, PoolOptions
from schemaless.wire.pools import Pools
from schemaless.wire.secret import Secret
from schemaless.wire.urls import Credentials, ServerURL, parse_url

_OPTIONS: Final = PoolOptions(connect_timeout_s=5, pool_size=AT_ONCE)


class Change:
    """A datastore's topology, and the servers that a change of it has to do with."""

    def __init__(self, url: ServerURL, name: str) -> None:
        self._pools = Pools(url.credentials, _OPTIONS)
        self.url = find_catalog(url, name, self.pool)
        self._verified: set[tuple[str, Node]] = set()
        self.topology = read_ready(self.pool(self.url.node), name).topology

    def pool(self, node: Node) -> NodePool:
        """Return the one pool for a server, whatever its role."""
        return self._pools.pool_for(node)

    def close(self) -> None:
        """Close the connections."""
        self._pools.close()

    def node_of(self, text: str) -> Node:
        """Return the server that an argument names; the account, if it names one, has to be the datastore's."""
        return server_of(self.url, text)

    def require_new(self, node: Node) -> None:
        """Raise unless no cluster has a server by that address."""
        for cluster in self.topology.clusters:
            for other in cluster.nodes:
                if other.having("primary") == node.having("primary"):
                    raise InvalidInput(f"{node} is the {other.role} of {cluster.name} already; nothing was written")

    def verify(self, cluster: Cluster, node: Node) -> None:
        """Check every shard of a cluster on one server.

        Raises:
            ShardIdentityMismatch: one is missing, or another one.
        """
        if (cluster.name, node.having("primary")) in self._verified:
            return
        pool, topology = self.pool(node), self.topology

        def check(shard: int) -> None:
            identity = Identity(topology.name, shard, topology.shard_count, topology.placement)
            verify_identity(pool, shard_database(topology.name, shard), identity)

        for _ in on_servers([(node, shard) for shard in topology.shards_of(cluster.name)], check):
            pass
        self._verified.add((cluster.name, node.having("primary")))

    def prove_replica(self, cluster: Cluster, primary: Node, replica: Node, timeout_s: float) -> float:
        """Check that one server is a replica of another; return how long a transaction took to it, in seconds."""
        source, target = self.pool(primary), self.pool(replica)
        if is_same_server(source, target):
            raise TopologyError(
                f"{replica} is the server of the primary {primary} itself, by another address; nothing was written"
            )
        if is_read_only(source):
            raise TopologyError(
                f"the primary {primary} of {cluster.name} is read-only, so nothing can be sent from there to prove a "
                "replica by; if another server has taken its place, name it with 'schemaless topology set-primary'"
            )
        # It is written to next.
        self.verify(cluster, primary)
        arrived_s = follows(target, source, self.topology.name, cluster.name, timeout_s)
        if arrived_s is None:
            raise TopologyError(
                f"a transaction that was committed on {primary} did not arrive on {replica} within {timeout_s:g} s: "
                f"either it is no replica of that server, or its replication has stopped or lags; see SHOW REPLICA "
                "STATUS there (MariaDB: SHOW SLAVE STATUS). Nothing was written to the catalog"
            )
        self.verify(cluster, replica)
        return arrived_s

    def old_primary(self, cluster: Cluster, new: Node, timeout_s: float, *, accept_loss: bool = False) -> str:
        """Return what is left of a cluster's primary, after checking that nothing of it gets lost, or may."""
        old = cluster.primary
        try:
            if is_same_server(self.pool(old), self.pool(new)):
                return "the same server"
        except (ServerUnavailable, ServerTimeout) as problem:
            if problem.node == str(new):
                raise
            return "unreachable"
        # Cut off from its group, it takes no writes either: it waits, and is not told to be read-only.
        if not is_read_only(self.pool(old)) and not has_replaced(self.pool(new), self.pool(old)):
            raise TopologyError(
                f"the old primary {old} still takes writes, which {new} would not get; make it read-only first "
                "(SET GLOBAL super_read_only = ON; MariaDB: read_only). Nothing was written"
            )
        if has_everything_of(self.pool(new), self.pool(old), timeout_s):
            return "read-only"
        if accept_loss:
            return "ahead"
        raise TopologyError(
            f"{new} lacks transactions that were committed on the old primary {old}, which still answers; let "
            "it catch up first. Nothing was written"
        )

    def home(self, *, moves: Cluster | None = None, to: Node | None = None, old: str | None = None) -> NodePool:
        """Return the server that the catalog is written on: a primary, which its own replicas get it from.

        Args:
            moves: the cluster whose primary is being changed, if any.
            to: its new primary.
            old: what is left of its old one.
        """
        here = self.pool(self.url.node)
        if to is not None and self._is(here, to):
            return here
        others = [cluster.primary for cluster in self.topology.clusters if cluster != moves]
        # The same address first: asking the others may mean to wait for one that is down.
        others.sort(key=lambda primary: primary != here.node)
        if any(self._is(here, primary) for primary in others):
            if not is_read_only(here):
                return here
        elif moves is not None and to is not None and old is not None and old != "unreachable":
            there = self.pool(to)
            if self._is(here, moves.primary) and read_catalog(there, self.topology.name).topology == self.topology:
                return there
        raise TopologyError(
            f"{here.node} is not a primary that takes writes, so the catalog cannot be changed there; name the "
            "datastore by the primary of the cluster that its catalog is on"
            + (f", which may be {to} now" if to is not None else "")
            + " (--url). Nothing was written"
        )

    def _is(self, here: NodePool, node: Node) -> bool:
        if here.node == node.having("primary"):
            return True
        try:
            return is_same_server(here, self.pool(node))
        except (ServerUnavailable, ServerTimeout):
            return False

    def write(self, home: NodePool, cluster: Cluster) -> Cluster:
        """Write a cluster's nodes and epoch, and return it."""
        write_cluster(home, self.topology, cluster)
        self.topology = self.topology.with_cluster(cluster)
        return cluster


@contextmanager
def opened(url: Secret) -> Iterator[Change]:
    """Give a change of a datastore for the block."""
    change = Change(*datastore_url(url))
    try:
        yield change
    finally:
        change.close()


def server_of(url: ServerURL, text: str) -> Node:
    """Return the server that ``text`` names; the account, if it names one, has to be that of ``url``."""
    parsed = parse_url(text)
    if parsed.database is not None:
        raise InvalidInput(f"expected the URL of a server, not of a database: {parsed}; leave the name out")
    own, given = url.credentials, parsed.credentials
    if given.username is not None and not _same_account(own, given):
        raise InvalidInput(
            f"all servers of a datastore share one account, {parsed} names another than {url}; leave it out"
        )
    return parsed.node


def _same_account(own: Credentials, given: Credentials) -> bool:
    return own.username == given.username and given.password in (None, own.password)
