"""The catalog: where a datastore writes down what it is and where its shards are."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import cast

from sqlalchemy import Connection, delete, insert, select, update

from schemaless.cluster.topology import FORMAT, Cluster, Node, Role, ShardRange, Topology
from schemaless.errors import AccessDenied, DatastoreNotFound, SchemaMismatch, TopologyError
from schemaless.mysql import tables
from schemaless.mysql.errors import DatabaseMissing
from schemaless.mysql.pool import NodePool
from schemaless.mysql.revisions import head, known_revisions
from schemaless.mysql.schema import version_of
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
    with pool.sqlalchemy_connection(name) as connection:
        entry = _read(connection, pool.node, name)
    return replace(entry, columns=tuple(settings(pool, name)))


def _read(connection: Connection, node: Node, name: str) -> CatalogEntry:
    rows = connection.execute(select(tables.datastore)).all()
    nodes = connection.execute(select(tables.node).order_by(tables.node.c.node_id)).all()
    clusters = connection.execute(select(tables.cluster.c.name).order_by(tables.cluster.c.name)).all()
    ranges = connection.execute(select(tables.shard_range).order_by(tables.shard_range.c.first_shard)).all()
    if not rows:
        raise DatastoreNotFound(
            f"the catalog of {name!r} on {node} is empty: its creation was interrupted; "
            "run the same 'schemaless create' again"
        )
    row = rows[0]
    if row.name != name:
        raise TopologyError(f"the catalog in database {name!r} on {node} describes datastore {row.name!r}")
    if row.format > FORMAT:
        raise SchemaMismatch(
            f"datastore {name!r} has format {row.format}, this version knows up to {FORMAT}; "
            "use a later version of schemaless"
        )
    topology = Topology(
        name=row.name,
        shard_count=row.shard_count,
        placement=row.placement,
        clusters=tuple(
            Cluster(
                cluster.name,
                tuple(
                    Node(cast("Role", each.role), each.host, each.port, each.socket)
                    for each in nodes
                    if each.cluster == cluster.name
                ),
            )
            for cluster in clusters
        ),
        ranges=tuple(ShardRange(part.first_shard, part.last_shard, part.cluster) for part in ranges),
    )
    return CatalogEntry(topology, bool(row.ready))


def write_topology(pool: NodePool, topology: Topology) -> None:
    """Write a new datastore's description in one transaction, marked as not ready.

    Raises:
        DuplicateKey: a description is there already.
    """
    with pool.sqlalchemy_connection(topology.name, writes=True) as connection:
        # First, and never over another: two creations at once meet here, and the second is refused.
        connection.execute(
            insert(tables.datastore).values(
                only_row=1,
                name=topology.name,
                shard_count=topology.shard_count,
                placement=topology.placement,
                format=FORMAT,
                ready=0,
            )
        )
        for cluster in topology.clusters:
            connection.execute(insert(tables.cluster).values(name=cluster.name))
            _insert_nodes(connection, cluster)
        for part in topology.ranges:
            connection.execute(
                insert(tables.shard_range).values(first_shard=part.first, last_shard=part.last, cluster=part.cluster)
            )


def write_nodes(pool: NodePool, before: Topology, cluster: Cluster) -> None:
    """Give a cluster other nodes, in one transaction, if the datastore is still as it was.

    Args:
        pool: the catalog's server, which takes writes.
        before: what was read; changes by others since then are not written over.
        cluster: with its new nodes.

    Raises:
        TopologyError: somebody else changed the datastore meanwhile; nothing was written.
    """
    with pool.sqlalchemy_connection(before.name) as connection:
        # Changes take turns by this lock.
        connection.execute(select(tables.datastore.c.only_row).with_for_update()).all()
        if _read(connection, pool.node, before.name).topology != before:
            raise TopologyError(
                f"the topology of {before.name!r} was changed by somebody else at this moment; nothing was written, "
                "look at it with 'schemaless topology show' and run the command again"
            )
        connection.execute(delete(tables.node).where(tables.node.c.cluster == cluster.name))
        _insert_nodes(connection, cluster)


def _insert_nodes(connection: Connection, cluster: Cluster) -> None:
    for node in cluster.nodes:
        connection.execute(
            insert(tables.node).values(
                cluster=cluster.name, role=node.role, host=node.host, port=node.port, socket=node.socket
            )
        )


def mark_ready(pool: NodePool, name: str) -> None:
    """Write down that every shard is there."""
    with pool.sqlalchemy_connection(name, writes=True) as connection:
        connection.execute(update(tables.datastore).values(ready=1))
