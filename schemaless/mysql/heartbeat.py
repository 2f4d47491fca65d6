"""Tokens: written on a primary, read on its replicas. One that appears there proves a replica, and dates what it has.

Each writer has a row of its own, so any number of them may use one cluster at the same time.
"""

from __future__ import annotations

from functools import cache

from sqlalchemy.dialects import mysql
from sqlalchemy.schema import CreateTable

from schemaless.cluster.topology import heartbeat_database
from schemaless.mysql.connection import Connection
from schemaless.mysql.errors import DatabaseMissing
from schemaless.mysql.pool import NodePool
from schemaless.mysql.schema import create_database
from schemaless.mysql.sql.replicas import delete_stale_tokens, delete_token, select_token, upsert_token
from schemaless.mysql.tables import heartbeat_token


def make_table(pool: NodePool, datastore: str) -> None:
    """Make the table of tokens on a primary, and its database, where they are missing."""
    database = heartbeat_database(datastore)
    create_database(pool, database)
    pool.run(lambda connection: connection.execute(_create(database)))


def write_token(connection: Connection, datastore: str, cluster: str, writer: str, token: bytes) -> None:
    """Write a writer's token, in place of its last one.

    Args:
        connection: to the primary.
        datastore: its name.
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


@cache
def _create(database: str) -> bytes:
    name = heartbeat_token.name
    text = str(CreateTable(heartbeat_token, if_not_exists=True).compile(dialect=mysql.dialect()))
    return text.replace(f"IF NOT EXISTS {name}", f"IF NOT EXISTS `{database}`.{name}", 1).encode()
