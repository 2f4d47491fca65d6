"""Statements about the topology tables of the catalog."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from schemaless.wire.sql.parts import blob, delete, insert, table, term, text, update
from schemaless.wire.sql.sessions import SERVER_IDENTITY, SERVER_IDENTITY_MARIADB

NodeRow = tuple[str, str | None, int | None, str | None, str | None]
"""Role, host, port, socket and server identity of a node."""


def select_datastore(catalog: str, *, mariadb: bool) -> bytes:
    """Select the datastore's row, which is missing if the datastore's creation was interrupted early.

    Returns:
        A statement whose row is name, shard_count, placement, format, ready, topology_token, and the identity of the
        server that answers.
    """
    server = SERVER_IDENTITY_MARIADB if mariadb else SERVER_IDENTITY
    source = table(catalog, b"datastore")
    return b"SELECT name, shard_count, placement, format, ready, topology_token, %b FROM %b" % (server, source)


def select_identity(*, mariadb: bool) -> bytes:
    """Select the server's identity."""
    return b"SELECT %b" % (SERVER_IDENTITY_MARIADB if mariadb else SERVER_IDENTITY)


def select_token(catalog: str, cluster: str) -> bytes:
    """Select the topology token, whether the server is read-only, and a cluster's epoch."""
    epoch = b"(SELECT primary_epoch FROM %b WHERE name=%b)" % (table(catalog, b"cluster"), text(cluster))
    return b"SELECT topology_token, @@global.read_only, %b FROM %b" % (epoch, table(catalog, b"datastore"))


def update_token(catalog: str, token: bytes) -> bytes:
    """Replace the topology token."""
    return b"UPDATE %b SET topology_token=%b" % (table(catalog, b"datastore"), blob(token))


def lock_datastore(catalog: str) -> bytes:
    """Lock the topology against concurrent changes until the end of the transaction."""
    return b"SELECT only_row FROM %b FOR UPDATE" % table(catalog, b"datastore")


def insert_datastore(catalog: str, shard_count: int, placement: str, format_number: int) -> bytes:
    """Insert the datastore's row, marked as not ready; fails if it exists. The datastore has its catalog's name."""
    row = (1, catalog, shard_count, placement, format_number, 0)
    return insert(table(catalog, b"datastore"), "only_row, name, shard_count, placement, format, ready", [row])


def mark_ready(catalog: str) -> bytes:
    """Mark the datastore as ready."""
    return b"UPDATE %b SET ready=1" % table(catalog, b"datastore")


def select_clusters(catalog: str) -> bytes:
    """Select all clusters, ordered by name: name, epoch, id_block, storage engine, expected replicas, semi_sync."""
    columns = b"name, primary_epoch, id_block, engine, replicas, semi_sync"
    return b"SELECT %b FROM %b ORDER BY name" % (columns, table(catalog, b"cluster"))


def update_epoch(catalog: str, cluster: str, epoch: int, id_block: int) -> bytes:
    """Set the claim epoch that a cluster's primary must hold, and the block of added_ids that the claim begins."""
    return update(table(catalog, b"cluster"), {"primary_epoch": epoch, "id_block": id_block}, name=cluster)


def raise_replicas(catalog: str, cluster: str, replicas: int) -> bytes:
    """Record that a cluster has a number of replicas, unless it has had more."""
    most = b"GREATEST(COALESCE(replicas,0),%d)" % replicas
    return update(table(catalog, b"cluster"), {"replicas": most}, name=cluster)


def update_expected(catalog: str, cluster: str, changes: Mapping[str, int]) -> bytes:
    """Record how many replicas (``replicas``) a cluster should have, or whether it is to be semi-synchronous."""
    return update(table(catalog, b"cluster"), changes, name=cluster)


def insert_clusters(catalog: str, clusters: Iterable[tuple[str, str]]) -> bytes:
    """Insert clusters, given as name and storage engine."""
    return insert(table(catalog, b"cluster"), "name, engine", clusters)


def select_nodes(catalog: str) -> bytes:
    """Select the cluster, role, host, port, socket and server identity of all nodes, in insertion order."""
    return b"SELECT cluster, role, host, port, socket, server FROM %b ORDER BY node_id" % table(catalog, b"node")


def insert_nodes(catalog: str, cluster: str, nodes: Iterable[NodeRow]) -> bytes:
    """Insert nodes of a cluster."""
    columns = "cluster, role, host, port, socket, server"
    return insert(table(catalog, b"node"), columns, ((cluster, *node) for node in nodes))


def update_server(catalog: str, address: tuple[str | None, int | None, str | None], server: str) -> bytes:
    """Set the server identity of the node with an address (host, port and socket), unless it has one."""
    same = b"host<=>%b AND port<=>%b AND socket<=>%b" % tuple(map(term, address))
    return b"UPDATE %b SET server=%b WHERE server IS NULL AND %b" % (table(catalog, b"node"), text(server), same)


def delete_nodes(catalog: str, cluster: str) -> bytes:
    """Delete the nodes of a cluster."""
    return delete(table(catalog, b"node"), cluster=cluster)


def select_ranges(catalog: str) -> bytes:
    """Select first_shard, last_shard and cluster of all shard ranges, in order."""
    return b"SELECT first_shard, last_shard, cluster FROM %b ORDER BY first_shard" % table(catalog, b"shard_range")


def insert_ranges(catalog: str, ranges: Iterable[tuple[int, int, str]]) -> bytes:
    """Insert shard ranges, given as first shard, last shard and cluster."""
    return insert(table(catalog, b"shard_range"), "first_shard, last_shard, cluster", ranges)


def delete_ranges(catalog: str) -> bytes:
    """Delete all shard ranges, in the transaction that inserts the new ones."""
    return b"DELETE FROM %b" % table(catalog, b"shard_range")
