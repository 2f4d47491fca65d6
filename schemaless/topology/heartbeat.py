"""Tokens: written on a primary, read on its replicas. One that appears there proves a replica, and dates what it has.

Each writer has a row of its own, so any number of them may use one cluster at the same time. Their table is in a small
database of each cluster, with that cluster's copies of the dictionaries (``store/shelves.py``).
"""

from __future__ import annotations

from schemaless.keys import heartbeat_database
from schemaless.schema.databases import create_database
from schemaless.topology.sql.replicas import delete_stale_tokens, delete_token, select_token, upsert_token
from schemaless.wire.connection import Connection
from schemaless.wire.errors import DatabaseMissing
from schemaless.wire.pool import NodePool


def make_tables(pool: NodePool, datastore: str) -> None:
    """Make the tables of a cluster on its primary, and their database, where they are missing."""
    from schemaless.schema.creation import creations  # it imports Alembic, and mostly these tables are there already

    database = heartbeat_database(datastore)
    create_database(pool, database)
    for statement in creations(database):
        pool.run(lambda connection, statement=statement: connection.execute(statement))  # type: ignore[misc]


def write_token(connection: Connection, datastore: str, cluster: str, writer: str, token: bytes) -> None:
    """Write a writer's token, in place of its last one.

    Args:
        connection: to the primary.
        cluster: whose primary it is.
        writer: 1 to 255 characters that no other writer has.
        token: 16 bytes.

    Raises:
        DatabaseMissing: the table is to be made first.
    """
    connection.execute(upsert_token(heartbeat_database(datastore), cluster, writer, token))


def read_token(connection: Connection, datastore: str, cluster: str, writer: str) -> bytes | None:
    """Return a writer's last token as this server has it; None where it has none."""
    try:
        rows = connection.rows(select_token(heartbeat_database(datastore), cluster, writer))
    except DatabaseMissing:
        return None
    return bytes(rows[0][0]) if rows else None


def remove_token(connection: Connection, datastore: str, cluster: str, writer: str) -> None:
    """Remove a writer's row."""
    connection.execute(delete_token(heartbeat_database(datastore), cluster, writer))


def remove_stale_tokens(connection: Connection, datastore: str) -> None:
    """Remove the rows of writers that have written nothing for a day: they were killed."""
    connection.execute(delete_stale_tokens(heartbeat_database(datastore)))
