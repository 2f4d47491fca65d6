"""``Change``: topology, connection pools and checks shared by all changes to a datastore's servers.

The catalog itself is on one of the clusters, so it moves with the primary of that cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import wraps
from typing import Concatenate, Final, ParamSpec

from schemaless.base.keys import shard_database
from schemaless.base.type_variables import T
from schemaless.errors import CatalogCopied, InvalidInput, ServerTimeout, ServerUnavailable, TopologyError
from schemaless.ops.failover.group_replication import group_view, has_replaced
from schemaless.ops.failover.promotion import errant
from schemaless.ops.failover.semi_sync import require_commits
from schemaless.schema.databases import verify_identity
from schemaless.schema.engines import check_server
from schemaless.topology.catalog import (
    CatalogEntry,
    find_catalog,
    identities,
    read_catalog,
    read_ready,
    with_identities,
    write_clusters,
)
from schemaless.topology.configuration import datastore_url
from schemaless.topology.model import Cluster, Topology
from schemaless.topology.replication import follows, has_caught_up_with, is_read_only, is_same_server
from schemaless.topology.router import MAX_REFRESH_INTERVAL_S
from schemaless.wire.node import Node
from schemaless.wire.parallel import AT_ONCE, on_servers
from schemaless.wire.pool import NodePool, PoolOptions
from schemaless.wire.pools import Pools
from schemaless.wire.secret import Secret
from schemaless.wire.urls import Credentials, ServerURL, parse_url

P = ParamSpec("P")

_OPTIONS: Final = PoolOptions(connect_timeout_s=5, pool_size=AT_ONCE)


@dataclass(frozen=True, slots=True)
class NodeChange:
    """Result of a change to a cluster's nodes.

    Attributes:
        cluster: the cluster afterwards, with its epoch.
        changed: False if the catalog already had this state.
        arrived_s: replication delay of a transaction from the primary to each checked replica, in seconds.
        removed: nodes that were removed from the catalog, with the reason.
        unasked: replicas that did not answer an adoption, so their transactions are unknown.
        old_primary: state of the previous primary: "read-only", "ahead" (it has transactions that the new one lacks),
            "unreachable", or "the same server"; None if the primary did not change.
        url: the datastore's new URL if the catalog moved, else None.
        quorum: whether the adopted primary belongs to a group whose majority has everything that was acknowledged, so
            that the old primary cannot commit any more.
        errant: GTIDs of transactions that a new primary has and the old one, or every other replica if the old one does
            not answer, lacks; MySQL only. They were written on the new primary, before its promotion or after it.
        warnings: what could not be read to find errant transactions, and what a new primary lacks to survive its own
            failure: a replica, or semi-synchronous replication.
    """

    cluster: Cluster
    changed: bool
    arrived_s: dict[Node, float]
    removed: dict[Node, str] = field(default_factory=dict)
    unasked: tuple[Node, ...] = ()
    old_primary: str | None = None
    url: str | None = None
    quorum: bool = False
    errant: str = ""
    warnings: tuple[str, ...] = ()

    @property
    def old_written_s(self) -> float | None:
        """Seconds for which connected programs may still write to the old primary; None if they cannot.

        Programs that cannot reach any server that knows of the change may write for longer.
        """
        return MAX_REFRESH_INTERVAL_S if self.old_primary == "unreachable" and not self.quorum else None


class Change:
    """A change to a datastore's servers, with its topology and connection pools.

    Args:
        url: the datastore's URL.
        copied: accept a catalog that was copied from another server.
        promoted: the server that the change makes a primary, if any. A catalog on this server is accepted although it
            does not name it: the server may have been promoted without being a replica in the catalog. The caller
            compares it with the old primary by ``old_primary``, which refuses a copy while the original is writable.
    """

    def __init__(self, url: ServerURL, *, copied: bool = False, promoted: Node | None = None) -> None:
        name = url.database or ""
        self._pools = Pools(url.credentials, _OPTIONS)
        self.url: ServerURL = find_catalog(url, name, self.pool)
        self._verified: set[tuple[str, Node]] = set()
        self._servers: dict[Node, str | None] = {}
        here = self.pool(self.url.node)
        self.entry: CatalogEntry = read_ready(here, name, copied=True)
        self.topology: Topology = self.entry.topology
        self._hint = ""
        if copied:
            return
        try:
            self.entry.require_home(here.node)
        except CatalogCopied:
            if promoted is None or not self.is_server(here, promoted):
                raise
            self._hint = (
                f". If the catalog on {here.node}, which does not name this server, was restored from a backup, change "
                "nothing on the original's servers, and run 'schemaless topology restored' instead"
            )

    def pool(self, node: Node) -> NodePool:
        """Return the pool for a server; all roles of an address share one."""
        return self._pools.pool_for(node)

    def close(self) -> None:
        """Close all connections."""
        self._pools.close()

    def require_new(self, node: Node) -> None:
        """Raise if a cluster already has a server with this address."""
        for cluster in self.topology.clusters:
            for other in cluster.nodes:
                if other.having("primary") == node.having("primary"):
                    raise InvalidInput(
                        f"{node} is already in {cluster.name}, with the role {other.role}; nothing was written"
                    )

    def verify(self, cluster: Cluster, node: Node) -> None:
        """Check the identity of all of a cluster's shards on one server, and its settings for the storage engine.

        Raises:
            ShardIdentityMismatch: a shard is missing, or another shard has its database.
            TopologyError: the server does not have the cluster's storage engine, or has unsafe settings for it.
        """
        if (cluster.name, node.having("primary")) in self._verified:
            return
        pool, topology = self.pool(node), self.topology
        check_server(pool, cluster.engine)

        def check(shard: int) -> None:
            verify_identity(pool, shard_database(topology.name, shard), topology.identity(shard))

        for _ in on_servers([(node, shard) for shard in topology.shards_of(cluster.name)], check):
            pass
        self._verified.add((cluster.name, node.having("primary")))

    def check_primary(self, cluster: Cluster, node: Node, timeout_s: float) -> NodePool:
        """Check that a server can be a cluster's primary, and return its pool."""
        if node != cluster.primary and node.having("replica") not in cluster.replicas:
            self.require_new(node)
        pool = self.pool(node)
        require_writable(pool, cluster.name)
        require_commits(pool, cluster.name, timeout_s)
        self.verify(cluster, node)
        return pool

    def prove_replica(self, cluster: Cluster, primary: Node, replica: Node, timeout_s: float) -> float:
        """Check that a server replicates from a primary; return the delay of a transaction, in seconds."""
        source, target = self.pool(primary), self.pool(replica)
        if is_same_server(source, target):
            raise TopologyError(
                f"{replica} is the primary {primary} itself, under another address; nothing was written"
            )
        if is_read_only(source):
            raise TopologyError(
                f"the primary {primary} of {cluster.name} is read-only, so no transaction can be committed there to "
                "check a replica; if another server has taken its place, name it with 'schemaless topology set-primary'"
            )
        # The check below writes to the primary.
        require_commits(source, cluster.name, timeout_s)
        self.verify(cluster, primary)
        arrived_s = follows(target, source, self.topology.name, cluster.name, timeout_s)
        if arrived_s is None:
            raise TopologyError(
                f"a transaction that was committed on {primary} did not arrive on {replica} within {timeout_s:g} s: "
                "either it is not a replica of that server, or its replication has stopped or lags; see SHOW REPLICA "
                "STATUS there (MariaDB: SHOW SLAVE STATUS). Nothing was written to the catalog"
            )
        self.verify(cluster, replica)
        return arrived_s

    def old_primary(self, cluster: Cluster, new: Node, timeout_s: float, *, accept_loss: bool = False) -> str:
        """Check that no transaction of a cluster's old primary is lost, and return that server's state.

        Returns:
            "the same server", "unreachable", "read-only", or, with ``accept_loss``, "ahead".
        """
        old = cluster.primary
        try:
            if is_same_server(self.pool(old), self.pool(new)):
                return "the same server"
        except (ServerUnavailable, ServerTimeout) as problem:
            if problem.node == str(new):
                raise
            return "unreachable"
        # A primary that lost its group's majority accepts no writes either: they block, and it does not get read-only.
        if not is_read_only(self.pool(old)) and not has_replaced(self.pool(new), self.pool(old)):
            raise TopologyError(
                f"the old primary {old} still accepts writes, which {new} would not receive; make it read-only first "
                f"(SET GLOBAL super_read_only = ON; MariaDB: read_only). Nothing was written{self._hint}"
            )
        if has_caught_up_with(self.pool(new), self.pool(old), timeout_s):
            return "read-only"
        if accept_loss:
            return "ahead"
        raise TopologyError(
            f"{new} lacks transactions that were committed on the old primary {old}, which still answers; let {new} "
            f"catch up first. Nothing was written{self._hint}"
        )

    def errant(self, cluster: Cluster, new: Node, old: str) -> tuple[str, tuple[str, ...]]:
        """Return the transactions of a new primary that its cluster's other servers lack, and warnings.

        See ``promotion.errant``.

        Not for MariaDB, and not for members of a group, which do not accept such transactions.

        Args:
            cluster: the cluster with its old primary.
            new: its new primary, before anything is written there.
            old: state of its old primary, as returned by ``old_primary``.
        """
        pool = self.pool(new)
        if old == "the same server" or pool.run(lambda connection: connection.is_mariadb) or group_view(pool):
            return "", ()
        if old != "unreachable":
            return errant(pool, [self.pool(cluster.primary)], self.pool(cluster.primary))
        return errant(pool, [self.pool(node) for node in cluster.replicas if node != new.having("replica")], None)

    def home(self, *, moves: Cluster | None = None, to: Node | None = None, old: str | None = None) -> NodePool:
        """Return the server on which to write the catalog: the primary of the cluster that has it.

        Args:
            moves: the cluster whose primary is being changed, if any.
            to: its new primary.
            old: state of its old primary, as returned by ``old_primary``.

        Raises:
            TopologyError: the server of the datastore's URL is not a primary that accepts writes.
        """
        here = self.pool(self.url.node)
        if to is not None and self.is_server(here, to):
            return here
        others = [cluster.primary for cluster in self.topology.clusters if cluster != moves]
        # The same address first: comparing with the others may wait for a server that is down.
        others.sort(key=lambda primary: primary != here.node)
        if any(self.is_server(here, primary) for primary in others):
            if not is_read_only(here):
                return here
        elif moves is not None and to is not None and old is not None and old != "unreachable":
            new = self.pool(to)
            if (
                self.is_server(here, moves.primary)
                and read_catalog(new, self.topology.name, copied=True).topology == self.topology
            ):
                return new
        raise TopologyError(
            f"{here.node} is not a primary that accepts writes, so the catalog cannot be changed there; use a URL "
            "(--url) that names the primary of the cluster with the catalog"
            + (f", which may be {to} now" if to is not None else "")
            + ". Nothing was written"
        )

    def moved_url(self, home: NodePool, node: Node) -> str | None:
        """Return the datastore's new URL if the catalog is on a new primary and the URL does not name it, else None."""
        if self.url.node == node or not (home.node == node or is_same_server(home, self.pool(node))):
            return None
        return replace(self.url, node=node).for_database(self.topology.name)

    def is_server(self, here: NodePool, node: Node) -> bool:
        """Return whether two addresses belong to the same server; False if the second one does not answer."""
        if here.node == node.having("primary"):
            return True
        try:
            return is_same_server(here, self.pool(node))
        except (ServerUnavailable, ServerTimeout):
            return False

    def identities(self, clusters: Iterable[Cluster]) -> dict[Node, str | None]:
        """Return identities that the clusters' nodes lack, as ``catalog.identities`` does; each server is asked once.

        A server that does not answer would otherwise delay each step of an adoption.
        """
        lacking = [with_identities(cluster, self._servers) for cluster in clusters]
        self._servers |= identities(lacking, self.pool)
        return self._servers

    def write(self, home: NodePool, cluster: Cluster) -> Cluster:
        """Write a cluster's nodes and epoch, and all missing identities, to the catalog; return the cluster."""
        write_clusters(home, self.topology, [cluster], self.identities([cluster, *self.topology.clusters]))
        self.topology = self.topology.with_cluster(cluster)
        return cluster


def require_writable(pool: NodePool, cluster: str) -> None:
    """Raise unless a server accepts writes."""
    if is_read_only(pool):
        raise TopologyError(
            f"{pool.node} is read-only, so it cannot be the primary of {cluster}. If it is a replica, name its primary "
            "instead, or stop its replication first (STOP REPLICA); then make it writable (SET GLOBAL super_read_only "
            "= OFF, read_only = OFF). Nothing was written"
        )


def require_same_system(pool: NodePool, home: NodePool) -> None:
    """Raise unless a server runs the same database system as the catalog's."""
    if pool.run(lambda connection: connection.is_mariadb) != home.run(lambda connection: connection.is_mariadb):
        raise TopologyError(
            f"one of {pool.node} and {home.node} is MySQL and the other is MariaDB, and shards cannot be moved between "
            "the two; nothing was written"
        )


def on_datastore(function: Callable[Concatenate[ServerURL, P], T]) -> Callable[Concatenate[str | ServerURL, P], T]:
    """Let a function of a datastore's URL also accept its text, which no traceback shows."""

    @wraps(function)
    def call(url: str | ServerURL, /, *args: P.args, **kwargs: P.kwargs) -> T:
        given = url if isinstance(url, ServerURL) else Secret(url)
        del url
        return function(given if isinstance(given, ServerURL) else datastore_url(given)[0], *args, **kwargs)

    return call


def server_of(url: ServerURL, server: str | Node) -> Node:
    """Parse a server's URL, unless it is parsed already; an account in it must be that of ``url``."""
    if isinstance(server, Node):
        return server
    parsed = parse_url(server)
    if parsed.database is not None:
        raise InvalidInput(f"expected the URL of a server, not of a database: {parsed}; omit the database name")
    own, given = url.credentials, parsed.credentials
    if given.username is not None and not _same_account(own, given):
        raise InvalidInput(
            f"all servers of a datastore share one account, but {parsed} names another one; omit the account"
        )
    return parsed.node


def _same_account(own: Credentials, given: Credentials) -> bool:
    return own.username == given.username and given.password in (None, own.password)
