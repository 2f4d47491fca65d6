"""The catalog: where a datastore writes down what it is and where its shards are."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from schemaless.errors import (
    AccessDenied,
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
from schemaless.wire.errors import DatabaseMissing
from schemaless.wire.node import Node
from schemaless.wire.pool import NodePool
from schemaless.wire.sql.sessions import set_session
from schemaless.wire.urls import ServerURL

_SILENT_S: Final = 5


class TopologyChanged(TopologyError):
    """Somebody else changed a cluster between its being read and its being written."""


@dataclass(frozen=True, slots=True)
class CatalogEntry:
    """A datastore's topology, and whether its creation has finished.

    Attributes:
        token: random, and drawn anew by each change of the topology; None before the first change under this revision.
    """

    topology: Topology
    ready: bool
    token: bytes | None = None


def read_catalog(pool: NodePool, name: str) -> CatalogEntry:
    """Read a datastore's description.

    Raises:
        DatastoreNotFound: there is no catalog of that name on the server.
        AccessDenied: the account may not read it, or there is none.
        SchemaMismatch: its tables are older or newer than this version.
        TopologyError: it contradicts itself.
    """
    try:
        version = version_of(pool, name)
    except DatabaseMissing:
        version = None
    except AccessDenied as denied:
        if denied.code != 1142:
            raise
        # To an account without privileges on it, a database that is not there looks the same as one that is.
        raise AccessDenied(
            f"there is no datastore {name!r}, or this account may not read it; check the name, or let "
            "'schemaless grants --role app' print what the account needs",
            node=denied.node,
            code=denied.code,
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
            f"the catalog of {name!r} is at revision {version!r}, this version needs "
            f"{head('catalog')!r}; run 'schemaless schema upgrade'"
        )
    return pool.run(lambda connection: read_again(connection, pool.node, name))


def find_catalog(url: ServerURL, name: str, pool_for: Callable[[Node], NodePool]) -> ServerURL:
    """Return a URL with the server that has the catalog in the first place, where it names several.

    The first that has it and takes writes is that one, else the first that has it. One that does not answer costs its
    connect timeout once: its breaker is opened.

    Args:
        url: what was given; one that names one server is returned as it is, and nobody is asked.
        name: the datastore's.
        pool_for: returns the pool for a server.

    Raises:
        ServerError, DatastoreNotFound: none of them has it; the message names all.
    """
    if len(url.nodes) == 1:
        return url
    chosen: Node | None = None
    problems: list[SchemalessError] = []
    for node in url.nodes:
        pool = pool_for(node)
        try:
            pool.heed()
            if version_of(pool, name) is None:
                raise DatastoreNotFound(f"{node}: no datastore {name!r} there")
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
        raise _nowhere(problems)
    return replace(url, node=chosen, others=tuple(node for node in url.nodes if node != chosen))


def _nowhere(problems: Sequence[SchemalessError]) -> SchemalessError:
    """Return one error for all servers of a URL: of the class of the first that is no failure to answer, if any is."""
    telling = next(
        (problem for problem in problems if not isinstance(problem, ServerUnavailable | ServerTimeout)), problems[0]
    )
    listed = "; ".join(map(str, problems))
    message = f"none of the {len(problems)} servers that the URL names for the catalog has it: {listed}"
    if isinstance(telling, ServerError):
        return type(telling)(message, node=telling.node, code=telling.code)
    return DatastoreNotFound(message)


def read_again(connection: Connection, node: Node, name: str) -> CatalogEntry:
    """Read the topology of a datastore that is open already.

    Raises:
        DatastoreNotFound, SchemaMismatch, TopologyError: it is not there any more, or cannot be used.
        ServerError: the catalog's server cannot be reached, or refuses.
    """
    with connection.transaction():
        return _read(connection, node, name)


def read_ready(pool: NodePool, name: str) -> CatalogEntry:
    """Read a description as ``read_catalog`` does, of a datastore whose creation came to its end.

    Raises:
        DatastoreNotFound: it did not.
    """
    entry = read_catalog(pool, name)
    if not entry.ready:
        raise DatastoreNotFound(
            f"the creation of datastore {name!r} was interrupted; run the same 'schemaless create' again"
        )
    return entry


def _read(connection: Connection, node: Node, name: str) -> CatalogEntry:
    """Read the rows that describe a datastore; in a transaction, as they are at one moment."""
    datastore = connection.rows(sql.select_datastore(name))
    addresses = connection.rows(sql.select_nodes(name))
    clusters = connection.rows(sql.select_clusters(name))
    ranges = connection.rows(sql.select_ranges(name))
    if not datastore:
        raise DatastoreNotFound(
            f"the catalog of {name!r} on {node} is empty: its creation was interrupted; "
            "run the same 'schemaless create' again"
        )
    own_name, shard_count, placement, format_number, ready, token = datastore[0]
    if own_name != name:
        raise TopologyError(f"the catalog in database {name!r} on {node} describes datastore {own_name!r}")
    if format_number > FORMAT:
        raise SchemaMismatch(
            f"datastore {name!r} has format {format_number}, this version knows up to {FORMAT}; "
            "use a later version of schemaless"
        )
    nodes: dict[str, list[Node]] = {}
    for cluster, *address in addresses:
        nodes.setdefault(cluster, []).append(Node(*address))
    topology = Topology(
        name=own_name,
        shard_count=shard_count,
        placement=placement,
        clusters=tuple(Cluster(name, tuple(nodes.get(name, ())), *numbers) for name, *numbers in clusters),
        ranges=tuple(ShardRange(*part) for part in ranges),
    )
    return CatalogEntry(topology, bool(ready), token=None if token is None else bytes(token))


def write_topology(pool: NodePool, topology: Topology) -> None:
    """Write a new datastore's description in one transaction, marked as not ready.

    Raises:
        DuplicateKey: a description is there already.
        OutcomeUnknown: the reply to COMMIT was lost.
    """
    name = topology.name

    def write(connection: Connection) -> None:
        # First, and never over another: two creations at once meet here, and the second is refused.
        connection.execute(sql.insert_datastore(name, topology.shard_count, topology.placement, FORMAT))
        connection.execute(sql.insert_clusters(name, [cluster.name for cluster in topology.clusters]))
        for cluster in topology.clusters:
            _insert_nodes(connection, name, cluster)
        ranges = [(part.first, part.last, part.cluster) for part in topology.ranges]
        connection.execute(sql.insert_ranges(name, ranges))
        _draw_token(connection, name)

    pool.run_once(write)


def write_cluster(pool: NodePool, before: Topology, cluster: Cluster) -> None:
    """Give a cluster other nodes, or another epoch, in one transaction, if it and its shards are still as they were.

    Args:
        pool: the catalog's server, which takes writes.
        before: what was read; changes of the cluster by others since then are not written over.
        cluster: with its new nodes and epoch.

    Raises:
        TopologyChanged: somebody else changed the cluster meanwhile; nothing was written.
        OutcomeUnknown: the reply to COMMIT was lost.
    """

    def write(connection: Connection) -> None:
        # Changes take turns by this lock.
        connection.rows(sql.lock_datastore(before.name))
        now = _read(connection, pool.node, before.name).topology
        # What becomes of other clusters has nothing to do with it: shards are moved all the time.
        current, known = (
            (topology.cluster(cluster.name), topology.shards_of(cluster.name)) for topology in (now, before)
        )
        if current != known:
            raise TopologyChanged(
                f"{cluster.name} of {before.name!r} was changed by somebody else at this moment; nothing was written, "
                "look at it with 'schemaless topology show' and run the command again"
            )
        connection.execute(sql.delete_nodes(before.name, cluster.name))
        _insert_nodes(connection, before.name, cluster)
        connection.execute(sql.update_epoch(before.name, cluster.name, cluster.epoch, cluster.id_block))
        _draw_token(connection, before.name)

    pool.run_once(write)


def write_new_cluster(pool: NodePool, before: Topology, cluster: Cluster) -> None:
    """Write a cluster more, without shards, in one transaction.

    Args:
        pool: the catalog's server, which takes writes.
        before: what was read; where others have added or changed clusters since then, nothing is written.
        cluster: with its nodes.

    Raises:
        TopologyChanged: somebody else changed the clusters meanwhile; nothing was written.
        OutcomeUnknown: the reply to COMMIT was lost.
    """

    def write(connection: Connection) -> None:
        connection.rows(sql.lock_datastore(before.name))
        now = _read(connection, pool.node, before.name).topology
        if now.clusters != before.clusters:
            raise TopologyChanged(
                f"the clusters of {before.name!r} were changed by somebody else at this moment; nothing was written, "
                "look at them with 'schemaless topology show' and run the command again"
            )
        connection.execute(sql.insert_clusters(before.name, [cluster.name]))
        _insert_nodes(connection, before.name, cluster)
        _draw_token(connection, before.name)

    pool.run_once(write)


def write_place(
    pool: NodePool, before: Topology, shard: int, target: str, with_it: Callable[[Connection], None]
) -> None:
    """Give a shard another cluster, in one transaction, if it and the servers of the two are still as they were.

    Where the catalog names that cluster already, nothing of it is changed, and ``with_it`` is done all the same.

    Args:
        pool: connections to the catalog's server that are for this alone: the server ends one that stays silent for
            a few seconds, so that nobody waits long for the locks of a program that has frozen.
        before: what was read, with the shard where it comes from.
        target: the cluster that it is on from now on.
        with_it: what else is written in the transaction; may be done twice.

    Raises:
        TopologyError: somebody else changed the two clusters, or the shard's place, meanwhile; nothing was written.
        OutcomeUnknown: the reply to COMMIT was lost.
    """
    name = before.name
    source = before.cluster_of(shard)

    def write(connection: Connection) -> None:
        connection.execute(set_session({"wait_timeout": _SILENT_S}))
        connection.rows(sql.lock_datastore(name))
        now = _read(connection, pool.node, name).topology
        for cluster in (source, before.cluster(target)):
            current = now.cluster(cluster.name)
            if (current.primary, current.epoch) != (cluster.primary, cluster.epoch):
                raise TopologyError(
                    f"{current.primary} is the primary of {cluster.name} by claim {current.epoch} now, and it was "
                    f"{cluster.primary} by claim {cluster.epoch} when shard {shard} was copied; nothing was written, "
                    "run the command again"
                )
        home = now.cluster_of(shard).name
        if home not in (source.name, target):
            raise TopologyError(
                f"shard {shard} is on {home} by now, and was on {source.name}; nothing was written, look at it with "
                "'schemaless topology show'"
            )
        if home != target:
            connection.execute(sql.delete_ranges(name))
            ranges = [(part.first, part.last, part.cluster) for part in now.with_place(shard, target).ranges]
            connection.execute(sql.insert_ranges(name, ranges))
            _draw_token(connection, name)
        with_it(connection)

    pool.run_once(write)


def _draw_token(connection: Connection, name: str) -> None:
    """Let every program that is connected see that the topology is another one; in the transaction that changes it."""
    connection.execute(sql.update_token(name, secrets.token_bytes(16)))


def _insert_nodes(connection: Connection, name: str, cluster: Cluster) -> None:
    nodes = [(node.role, node.host, node.port, node.socket) for node in cluster.nodes]
    connection.execute(sql.insert_nodes(name, cluster.name, nodes))


def mark_ready(pool: NodePool, name: str) -> None:
    """Write down that every shard is there; raises what ``NodePool.run`` does."""
    pool.run(lambda connection: connection.execute(sql.mark_ready(name)), writes=True)
