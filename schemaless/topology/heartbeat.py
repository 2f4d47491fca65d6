"""Heartbeat tokens, which are written on a primary and read on its replicas to prove replication and measure lag.

Every writer has its own row, so any number of programs can use a cluster concurrently; only monitors share one. The
table is in a small database of each cluster, next to its dictionary replicas (``store/cells/dictionary_replicas.py``).
"""

from __future__ import annotations

from typing import NamedTuple

from schemaless.base.keys import heartbeat_database
from schemaless.schema.databases import create_database
from schemaless.topology.sql.replicas import (
    delete_stale_tokens,
    delete_token,
    insert_beat,
    select_beat,
    select_token,
    update_beat,
    upsert_token,
)
from schemaless.wire.connection import Connection
from schemaless.wire.errors import DatabaseMissing
from schemaless.wire.pool import NodePool


def make_tables(pool: NodePool, datastore: str) -> None:
    """Create a cluster's own database and tables on its primary, if they do not exist."""
    from schemaless.schema.creation import creations  # imports Alembic, and the tables usually exist

    database = heartbeat_database(datastore)
    create_database(pool, database)
    for statement in creations(database):
        pool.execute(statement)


def write_token(connection: Connection, datastore: str, cluster: str, writer: str, token: bytes) -> None:
    """Write a token, replacing the writer's previous one.

    Args:
        connection: connection to the cluster's primary.
        datastore: the datastore's name.
        cluster: the cluster's name.
        writer: unique name of the writer, 1 to 255 characters.
        token: 16 bytes.

    Raises:
        DatabaseMissing: the table does not exist; see ``make_tables``.
    """
    connection.execute(upsert_token(heartbeat_database(datastore), cluster, writer, token))


def read_token(connection: Connection, datastore: str, cluster: str, writer: str) -> bytes | None:
    """Return a writer's token as stored on this server, or None."""
    try:
        rows = connection.rows(select_token(heartbeat_database(datastore), cluster, writer))
    except DatabaseMissing:
        return None
    return bytes(rows[0][0]) if rows else None


def remove_token(connection: Connection, datastore: str, cluster: str, writer: str) -> None:
    """Delete a writer's row."""
    connection.execute(delete_token(heartbeat_database(datastore), cluster, writer))


def remove_stale_tokens(connection: Connection, datastore: str) -> None:
    """Delete the rows of writers that have been silent for a day, probably because they were killed."""
    connection.execute(delete_stale_tokens(heartbeat_database(datastore)))


class Beat(NamedTuple):
    """A heartbeat: when it was written, in seconds since 1970, and its age in seconds, by the clock of the server."""

    written_s: float
    age_s: float


def write_beat(connection: Connection, datastore: str, cluster: str, every_s: float) -> bool:
    """Write the heartbeat of a cluster on its primary, and return True; False if one is younger than ``every_s``.

    Raises:
        DatabaseMissing: the table does not exist; see ``make_tables``.
    """
    database = heartbeat_database(datastore)
    statements = update_beat(database, cluster, every_s), insert_beat(database, cluster)
    return any(connection.execute(statement).affected for statement in statements)


def read_beat(connection: Connection, datastore: str, cluster: str) -> Beat | None:
    """Return the heartbeat of a cluster as stored on a server, or None."""
    try:
        rows = connection.rows(select_beat(heartbeat_database(datastore), cluster))
    except DatabaseMissing:
        return None
    return Beat(int(rows[0][0]) / 1e6, int(rows[0][1]) / 1e6) if rows else None
