"""The catalog: where a datastore writes down what it is and where its shards are."""

from __future__ import annotations

from dataclasses import dataclass, replace

from schemaless.cluster.topology import FORMAT, Cluster, Node, ShardRange, Topology
from schemaless.errors import AccessDenied, DatastoreNotFound, SchemaMismatch, TopologyError
from schemaless.mysql.connection import Connection, Rows
from schemaless.mysql.errors import DatabaseMissing
from schemaless.mysql.pool import NodePool
from schemaless.mysql.revisions import head, known_revisions
from schemaless.mysql.schema import version_of
from schemaless.mysql.sql import catalog as sql
from schemaless.store.columns import ColumnSetting, settings


@dataclass(frozen=True, slots=True)
class CatalogEntry:
    """A datastore's topology, whether its creation came to its end, and what its columns are written in."""

    topology: Topology
    ready: bool
    columns: tuple[ColumnSetting, ...] = ()


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
    entry = _entry(pool.run(lambda connection: _read(connection, name)), pool.node, name)
    return replace(entry, columns=tuple(settings(pool, name)))


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


@dataclass(frozen=True, slots=True)
class _Description:
    """The rows that describe a datastore."""

    datastore: Rows
    nodes: Rows
    clusters: Rows
    ranges: Rows


def _read(connection: Connection, name: str) -> _Description:
    """Read a description as it is at one moment."""
    with connection.transaction():
        return _rows(connection, name)


def _rows(connection: Connection, name: str) -> _Description:
    return _Description(
        connection.rows(sql.select_datastore(name)),
        connection.rows(sql.select_nodes(name)),
        connection.rows(sql.select_clusters(name)),
        connection.rows(sql.select_ranges(name)),
    )


def _entry(found: _Description, node: Node, name: str) -> CatalogEntry:
    if not found.datastore:
        raise DatastoreNotFound(
            f"the catalog of {name!r} on {node} is empty: its creation was interrupted; "
            "run the same 'schemaless create' again"
        )
    own_name, shard_count, placement, format_number, ready = found.datastore[0]
    if own_name != name:
        raise TopologyError(f"the catalog in database {name!r} on {node} describes datastore {own_name!r}")
    if format_number > FORMAT:
        raise SchemaMismatch(
            f"datastore {name!r} has format {format_number}, this version knows up to {FORMAT}; "
            "use a later version of schemaless"
        )
    nodes: dict[str, list[Node]] = {}
    for cluster, *address in found.nodes:
        nodes.setdefault(cluster, []).append(Node(*address))
    topology = Topology(
        name=own_name,
        shard_count=shard_count,
        placement=placement,
        clusters=tuple(Cluster(cluster, tuple(nodes.get(cluster, ()))) for (cluster,) in found.clusters),
        ranges=tuple(ShardRange(*part) for part in found.ranges),
    )
    return CatalogEntry(topology, bool(ready))


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

    pool.run_once(write)


def write_nodes(pool: NodePool, before: Topology, cluster: Cluster) -> None:
    """Give a cluster other nodes, in one transaction, if the datastore is still as it was.

    Args:
        pool: the catalog's server, which takes writes.
        before: what was read; changes by others since then are not written over.
        cluster: with its new nodes.

    Raises:
        TopologyError: somebody else changed the datastore meanwhile; nothing was written.
        OutcomeUnknown: the reply to COMMIT was lost.
    """

    def write(connection: Connection) -> None:
        # Changes take turns by this lock.
        connection.rows(sql.lock_datastore(before.name))
        if _entry(_rows(connection, before.name), pool.node, before.name).topology != before:
            raise TopologyError(
                f"the topology of {before.name!r} was changed by somebody else at this moment; nothing was written, "
                "look at it with 'schemaless topology show' and run the command again"
            )
        connection.execute(sql.delete_nodes(before.name, cluster.name))
        _insert_nodes(connection, before.name, cluster)

    pool.run_once(write)


def _insert_nodes(connection: Connection, name: str, cluster: Cluster) -> None:
    nodes = [(node.role, node.host, node.port, node.socket) for node in cluster.nodes]
    connection.execute(sql.insert_nodes(name, cluster.name, nodes))


def mark_ready(pool: NodePool, name: str) -> None:
    """Write down that every shard is there; raises what ``NodePool.run`` does."""
    pool.run(lambda connection: connection.execute(sql.mark_ready(name)), writes=True)
