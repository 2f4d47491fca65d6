"""Reading and writing the catalog, which describes a datastore and the location of its shards."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from schemaless.base.parts import grouped
from schemaless.errors import (
    AccessDenied,
    CatalogCopied,
    DatastoreNotFound,
    SchemalessError,
    SchemaMismatch,
    ServerError,
    ServerTimeout,
    ServerUnavailable,
    TopologyError,
)
from schemaless.schema.databases import version_of
from schemaless.schema.versions import FORMAT, head, known_revisions
from schemaless.topology.model import Cluster, ShardRange, Topology
from schemaless.topology.replication import is_read_only
from schemaless.topology.sql import catalog as sql
from schemaless.wire.connection import Connection
from schemaless.wire.errors import DatabaseMissing, reworded
from schemaless.wire.node import Node
from schemaless.wire.parallel import on_servers
from schemaless.wire.pool import NodePool
from schemaless.wire.sql.sessions import set_session
from schemaless.wire.urls import ServerURL

_IDLE_TIMEOUT_S: Final = 5


class TopologyChanged(TopologyError):
    """Another program changed a cluster after it was read and before it was written."""


@dataclass(frozen=True, slots=True)
class CatalogEntry:
    """A datastore's topology, as read from the catalog.

    Attributes:
        topology: clusters, nodes and shard ranges.
        ready: True if the creation of the datastore has finished.
        token: random token that every topology change replaces; None in an upgraded catalog until its first change.
        server: identity of the server that it was read from.
    """

    topology: Topology
    ready: bool
    token: bytes | None = None
    server: str | None = None

    def require_home(self, node: Node) -> None:
        """Check that the catalog names the server that it was read from, by identity or by address.

        An address is accepted for itself, because a failover may give it to a server with another identity. Any server
        is accepted while the identity of one in the catalog is unknown: the address may be another one of that server.

        Args:
            node: address from which the catalog was read.

        Raises:
            CatalogCopied: the catalog names other servers only.
        """
        for member in (member for cluster in self.topology.clusters for member in cluster.nodes):
            if member.server is None or is_identity(member.server, self.server) or member.having("primary") == node:
                return
        name, primaries = self.topology.name, ", ".join(str(cluster.primary) for cluster in self.topology.clusters)
        raise CatalogCopied(
            f"the catalog of {name!r} on {node} is a copy, for instance from a backup: it names {primaries}, but not "
            "this server. No server that it names was contacted. Run 'schemaless topology restored --map CLUSTER=URL' "
            "with the new server of each cluster; if this is no copy, but a server that was moved or promoted, run "
            "'schemaless topology adopt' or 'set-primary' with its URL"
        )


def read_catalog(pool: NodePool, name: str, *, copied: bool = False) -> CatalogEntry:
    """Read the catalog of a datastore.

    Args:
        pool: pool of the catalog's server.
        name: the datastore's name.
        copied: also accept a catalog that was copied from another server.

    Raises:
        DatastoreNotFound: the server has no catalog of this name.
        AccessDenied: the account cannot read the catalog, or the catalog does not exist.
        SchemaMismatch: the catalog's tables are older or newer than this version.
        CatalogCopied: the catalog was copied from another server.
        TopologyError: the catalog is inconsistent.
    """
    try:
        version = version_of(pool, name)
    except DatabaseMissing:
        version = None
    except AccessDenied as denied:
        if denied.code != 1142:
            raise
        # Without privileges, a missing database looks the same as an existing one.
        raise reworded(
            denied,
            f"there is no datastore {name!r}, or this account may not read it; check the name, or run "
            "'schemaless grants --role app' for the privileges that the account needs",
        ) from denied
    if version is None:
        raise DatastoreNotFound(
            f"no datastore {name!r} on {pool.node}; check the URL, or create it with 'schemaless create {name}'"
        )
    if version not in known_revisions("catalog"):
        raise SchemaMismatch(
            f"the catalog of {name!r} is at revision {version!r}, which this version does not know; "
            "use a later version of schemaless"
        )
    if version != head("catalog"):
        raise SchemaMismatch(
            f"the catalog of {name!r} is at revision {version!r}, but this version needs "
            f"{head('catalog')!r}; run 'schemaless schema upgrade'"
        )
    return pool.run(lambda connection: reread(connection, pool.node, name, copied=copied))


def find_catalog(url: ServerURL, name: str, pool_for: Callable[[Node], NodePool]) -> ServerURL:
    """Find the server with the catalog among those that a URL names, and return the URL with this server first.

    A writable server with the catalog is preferred to a read-only one. A server that does not answer costs its connect
    timeout only once, because its breaker is opened.

    Args:
        url: the URL; if it names one server, it is returned unchanged and no server is queried.
        name: the datastore's name.
        pool_for: returns the pool of a server.

    Raises:
        ServerError, DatastoreNotFound: none of the servers has the catalog; the message lists all of them.
    """
    if len(url.nodes) == 1:
        return url
    chosen: Node | None = None
    problems: list[SchemalessError] = []
    for node in url.nodes:
        pool = pool_for(node)
        try:
            pool.fail_fast_or_probe()
            if version_of(pool, name) is None:
                raise DatastoreNotFound(f"{node}: no datastore {name!r}")
            if not is_read_only(pool):
                chosen = node
                break
        except (ServerError, DatastoreNotFound) as problem:
            problems.append(problem)
            if isinstance(problem, ServerUnavailable):
                pool.breaker.trip()
            continue
        chosen = chosen or node
    if chosen is None:
        raise _none_has_it(problems)
    return replace(url, node=chosen, others=tuple(node for node in url.nodes if node != chosen))


def _none_has_it(problems: Sequence[SchemalessError]) -> SchemalessError:
    """Combine the errors of all servers into one; if any server answered, use the class of its error."""
    answer = next(
        (problem for problem in problems if not isinstance(problem, ServerUnavailable | ServerTimeout)), problems[0]
    )
    listed = "; ".join(map(str, problems))
    message = f"none of the {len(problems)} servers in the URL has the catalog: {listed}"
    if isinstance(answer, ServerError):
        return reworded(answer, message)
    return DatastoreNotFound(message)


def reread(connection: Connection, node: Node, name: str, *, copied: bool = False) -> CatalogEntry:
    """Read the topology of an open datastore, without checking the catalog's schema again.

    Raises:
        CatalogCopied: the catalog was copied from another server, unless ``copied`` accepts that.
        DatastoreNotFound, SchemaMismatch, TopologyError: the catalog is gone, or cannot be used.
        ServerError: the catalog's server cannot be reached, or rejects a statement.
    """
    with connection.transaction():
        entry = _read(connection, node, name)
    if not copied:
        entry.require_home(node)
    return entry


def read_ready(pool: NodePool, name: str, *, copied: bool = False) -> CatalogEntry:
    """Read the catalog of a datastore whose creation has finished; raises what ``read_catalog`` raises.

    Raises:
        DatastoreNotFound: the creation was interrupted.
    """
    entry = read_catalog(pool, name, copied=copied)
    if not entry.ready:
        raise DatastoreNotFound(
            f"the creation of datastore {name!r} was interrupted; run the same 'schemaless create' again"
        )
    return entry


def _read(connection: Connection, node: Node, name: str) -> CatalogEntry:
    """Read the rows that describe a datastore; call it in a transaction, for a consistent snapshot."""
    datastore = connection.rows(sql.select_datastore(name, mariadb=connection.is_mariadb))
    addresses = connection.rows(sql.select_nodes(name))
    clusters = connection.rows(sql.select_clusters(name))
    ranges = connection.rows(sql.select_ranges(name))
    if not datastore:
        raise DatastoreNotFound(
            f"the catalog of {name!r} on {node} is empty: its creation was interrupted; "
            "run the same 'schemaless create' again"
        )
    own_name, shard_count, placement, format_number, ready, token, server = datastore[0]
    if own_name != name:
        raise TopologyError(f"the catalog in database {name!r} on {node} describes datastore {own_name!r}")
    if format_number > FORMAT:
        raise SchemaMismatch(
            f"datastore {name!r} has format {format_number}, but this version knows formats up to {FORMAT}; "
            "use a later version of schemaless"
        )
    nodes = grouped((cluster, Node(*address)) for cluster, *address in addresses)
    topology = Topology(
        name=own_name,
        shard_count=shard_count,
        placement=placement,
        clusters=tuple(Cluster(name, tuple(nodes.get(name, ())), *facts) for name, *facts in clusters),
        ranges=tuple(ShardRange(*part) for part in ranges),
    )
    return CatalogEntry(topology, bool(ready), None if token is None else bytes(token), str(server))


def write_topology(pool: NodePool, topology: Topology) -> None:
    """Write a new datastore's topology in one transaction, marked as not ready.

    Raises:
        DuplicateKey: the catalog already has a topology.
        OutcomeUnknown: the reply to COMMIT was lost.
    """
    name = topology.name

    def write(connection: Connection) -> None:
        # This insert comes first: of two concurrent creations, the second one fails here.
        connection.execute(sql.insert_datastore(name, topology.shard_count, topology.placement, FORMAT))
        connection.execute(sql.insert_clusters(name, [(part.name, part.engine) for part in topology.clusters]))
        for cluster in topology.clusters:
            _insert_nodes(connection, name, cluster)
        ranges = [(part.first, part.last, part.cluster) for part in topology.ranges]
        connection.execute(sql.insert_ranges(name, ranges))
        _replace_token(connection, name)

    pool.run_once(write)


def _change(
    pool: NodePool, name: str, write: Callable[[Connection, Topology], None], *, idle_timeout_s: int | None = None
) -> None:
    """Call ``write`` with the current topology, in one transaction; a row lock serializes topology changes."""

    def change(connection: Connection) -> None:
        if idle_timeout_s is not None:
            connection.execute(set_session({"wait_timeout": idle_timeout_s}))
        connection.rows(sql.lock_datastore(name))
        write(connection, _read(connection, pool.node, name).topology)

    pool.run_once(change)


def write_clusters(
    pool: NodePool, before: Topology, clusters: Sequence[Cluster], servers: Mapping[Node, str | None]
) -> None:
    """Write nodes and epochs of clusters in one transaction, unless these clusters or their shards have changed.

    Clusters that the topology lacks are added, without shards, unless any cluster has changed.

    Args:
        pool: pool of the catalog's primary.
        before: the topology that the change is based on.
        clusters: the clusters with their new nodes and epochs.
        servers: identities to record for nodes of any cluster that have none, as returned by ``identities``.

    Raises:
        TopologyChanged: the clusters were changed concurrently; nothing was written.
        OutcomeUnknown: the reply to COMMIT was lost.
    """
    name = before.name
    existing = {cluster.name for cluster in before.clusters}

    def write(connection: Connection, now: Topology) -> None:
        for cluster in clusters:
            # Changes of other clusters do not matter, and shards are moved all the time.
            current, known = (
                (topology.cluster(cluster.name), topology.shards_of(cluster.name))
                if cluster.name in existing
                else topology.clusters
                for topology in (now, before)
            )
            if current != known:
                raise TopologyChanged(
                    f"the clusters of {name!r} were changed concurrently; nothing was written. Check them with "
                    "'schemaless topology show' and run the command again"
                )
        for cluster in clusters:
            if cluster.name in existing:
                connection.execute(sql.delete_nodes(name, cluster.name))
            else:
                connection.execute(sql.insert_clusters(name, [(cluster.name, cluster.engine)]))
            _insert_nodes(connection, name, cluster)
            connection.execute(sql.update_epoch(name, cluster.name, cluster.epoch, cluster.id_block))
            if cluster.replicas:
                connection.execute(sql.raise_replicas(name, cluster.name, len(cluster.replicas)))
        _record(connection, name, servers)
        _replace_token(connection, name)

    _change(pool, name, write)


def write_shard_location(
    pool: NodePool, before: Topology, shard: int, target: str, with_it: Callable[[Connection], None]
) -> None:
    """Assign a shard to another cluster in one transaction, unless its location or a primary involved has changed.

    If the catalog already names the target cluster, only ``with_it`` is called.

    Args:
        pool: dedicated pool of the catalog's primary. Its sessions get a short idle timeout, so that a frozen program
            does not hold the locks for long.
        before: the topology that the change is based on, with the shard on its source cluster.
        shard: the shard's number.
        target: the shard's new cluster.
        with_it: makes further writes in the same transaction; may be called more than once.

    Raises:
        TopologyError: one of the clusters, or the shard's location, was changed concurrently; nothing was written.
        OutcomeUnknown: the reply to COMMIT was lost.
    """
    name = before.name
    source = before.cluster_of(shard)

    def write(connection: Connection, now: Topology) -> None:
        for cluster in (source, before.cluster(target)):
            current = now.cluster(cluster.name)
            if (current.primary, current.epoch) != (cluster.primary, cluster.epoch):
                raise TopologyError(
                    f"the primary of {cluster.name} is now {current.primary} with claim {current.epoch}; it was "
                    f"{cluster.primary} with claim {cluster.epoch} when shard {shard} was copied; nothing was written; "
                    "run the command again"
                )
        home = now.cluster_of(shard).name
        if home not in (source.name, target):
            raise TopologyError(
                f"shard {shard} is now on {home}, no longer on {source.name}; nothing was written. Check it with "
                "'schemaless topology show'"
            )
        if home != target:
            connection.execute(sql.delete_ranges(name))
            ranges = [(part.first, part.last, part.cluster) for part in now.with_place(shard, target).ranges]
            connection.execute(sql.insert_ranges(name, ranges))
            _replace_token(connection, name)
        with_it(connection)

    _change(pool, name, write, idle_timeout_s=_IDLE_TIMEOUT_S)


def record_identities(pool: NodePool, name: str, servers: Mapping[Node, str | None]) -> None:
    """Record the identities of nodes that have none. Connected programs are not notified, because nothing else changes.

    Args:
        pool: pool of the catalog's primary.
        name: the datastore's name.
        servers: identities by address, as returned by ``identities``.
    """
    if any(servers.values()):
        _change(pool, name, lambda connection, _: _record(connection, name, servers))


def identities(clusters: Collection[Cluster], pool_for: Callable[[Node], NodePool]) -> dict[Node, str | None]:
    """Ask the servers of all nodes without an identity for it, in parallel.

    Returns:
        Identities by address, with the role "primary"; None for a server that did not answer or refused.
    """

    def ask(node: Node) -> tuple[Node, str | None]:
        try:
            return node, server_identity(pool_for(node))
        except ServerError:
            return node, None

    unknown = {node.having("primary") for cluster in clusters for node in cluster.nodes if node.server is None}
    return dict(on_servers([(node, node) for node in unknown], ask))


def with_identities(cluster: Cluster, servers: Mapping[Node, str | None]) -> Cluster:
    """Return a cluster whose nodes without an identity have the one from ``servers``, if any."""
    nodes = (replace(node, server=node.server or servers.get(node.having("primary"))) for node in cluster.nodes)
    return replace(cluster, nodes=tuple(nodes))


def server_identity(pool: NodePool) -> str:
    """Return the identity of a server; compare it with ``is_identity``."""
    return str(pool.run(lambda connection: connection.rows(sql.select_identity(mariadb=connection.is_mariadb)))[0][0])


def is_identity(recorded: str, server: str | None) -> bool:
    """Whether a recorded identity is that of a server.

    On MariaDB, both have two parts: the place, and the network card if the server's version reports it. The card is
    compared only if both have it, so an upgrade to such a version makes no other server. Two cards are two servers,
    even in the same place: a container that was recreated may be refused, and one command records it; but a copy in
    another network that was accepted would write to the original.
    """
    if server is None:
        return False
    (place, _, card), (own_place, _, own_card) = recorded.partition(":"), server.partition(":")
    return place == own_place and (card == own_card or not (card and own_card))


def _record(connection: Connection, name: str, servers: Mapping[Node, str | None]) -> None:
    for node, server in servers.items():
        if server is not None:
            connection.execute(sql.update_server(name, (node.host, node.port, node.socket), server))


def _replace_token(connection: Connection, name: str) -> None:
    """Replace the topology token, in the transaction of the change, so that connected programs notice it."""
    connection.execute(sql.update_token(name, secrets.token_bytes(16)))


def _insert_nodes(connection: Connection, name: str, cluster: Cluster) -> None:
    nodes = [(node.role, node.host, node.port, node.socket, node.server) for node in cluster.nodes]
    connection.execute(sql.insert_nodes(name, cluster.name, nodes))


def mark_ready(pool: NodePool, name: str) -> None:
    """Mark the creation of a datastore as finished; raises the errors of ``NodePool.run``."""
    pool.execute(sql.mark_ready(name))


def expect(pool: NodePool, name: str, cluster: str, changes: Mapping[str, int]) -> None:
    """Record in the catalog how many ``replicas`` a cluster should have, or whether it is to be ``semi_sync``."""

    def write(connection: Connection, now: Topology) -> None:
        connection.execute(sql.update_expected(name, cluster, changes))
        _replace_token(connection, name)

    _change(pool, name, write)


def note_semi_sync(connection: Connection, name: str, cluster: str) -> None:
    """Record in the catalog that a cluster is semi-synchronous; other programs need not know that at once."""
    connection.execute(sql.update_expected(name, cluster, {"semi_sync": 1}))
