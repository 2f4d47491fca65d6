"""Databases: creation, inspection, and verification of a shard's identity."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

from schemaless.base.keys import heartbeat_database
from schemaless.errors import ShardIdentityMismatch
from schemaless.schema.sql import (
    SHOW_DATABASES,
    create_if_missing,
    select_identity,
    select_identity_and_engine,
    select_version,
    show_definition,
    show_tables,
)
from schemaless.schema.versions import Identity
from schemaless.wire.connection import Connection
from schemaless.wire.errors import DatabaseMissing
from schemaless.wire.pool import NodePool

SHARD_TABLES: Final = frozenset({"cell", "cold_file", "erased_cell", "follower", "parked", "shard_identity"})
"""Tables that every shard has; ``schema.tables`` defines them."""

_AUTO_INCREMENT: Final = re.compile(r"\bAUTO_INCREMENT=(\d+)")


def create_database(pool: NodePool, database: str) -> None:
    """Create an empty database if it does not exist."""
    pool.execute(create_if_missing(database))


def has_identity(pool: NodePool, database: str) -> bool:
    """Return True if a shard database has an identity table, which is missing until its tables are created."""
    return "shard_identity" in tables_of(pool, database)


def verify_identity(pool: NodePool, database: str, expected: Identity) -> str | None:
    """Check that a shard database has the identity that the catalog expects.

    Returns:
        The storage engine of its ``cell`` table in lower case; None on MySQL, where it is always InnoDB, and if the
        table is missing.

    Raises:
        ShardIdentityMismatch: the database is missing or has another identity.
    """
    try:
        return pool.run(lambda connection: identity_on(connection, database, expected), shard=expected.shard)
    except DatabaseMissing:
        absent = ShardIdentityMismatch(
            f"{pool.node} has no database {database!r} for {expected}; check that the catalog names the right cluster. "
            "Nothing was read or written"
        )
        absent.absent = True
        raise absent from None


def identity_on(connection: Connection, database: str, expected: Identity) -> str | None:
    """Do what ``verify_identity`` does on a connection, and add the shard to ``Connection.verified``.

    Raises:
        DatabaseMissing: the database is missing.
        ShardIdentityMismatch: it has another identity.
    """
    rows = connection.rows((select_identity_and_engine if connection.is_mariadb else select_identity)(database))
    check_identity([row[:5] for row in rows], database, connection.node, expected)
    connection.verified.add(expected.shard)
    engine = rows[0][5] if len(rows[0]) > 5 else None
    return None if engine is None else str(engine).lower()


def check_identity(rows: Sequence[Sequence[Any]], database: str, node: str, expected: Identity) -> None:
    """Check the identity row of a shard database.

    Raises:
        ShardIdentityMismatch: it is missing or differs from the expected one.
    """
    if not rows:
        raise ShardIdentityMismatch(
            f"{database!r} on {node} has no identity (the table shard_identity is empty); nothing was read or written"
        )
    identity = Identity(*rows[0])
    if identity.format > expected.format:
        raise ShardIdentityMismatch(
            f"{database!r} on {node} has format {identity.format}, but this version only knows formats up to "
            f"{expected.format}; use a later version. Nothing was read or written"
        )
    if identity != expected:
        raise ShardIdentityMismatch(
            f"{database!r} on {node} is {identity}, but the catalog says {expected}; nothing was read or written"
        )


def databases_like(pool: NodePool, datastore: str) -> list[str]:
    """Return the databases on a server that a datastore of this name would use: catalog, shards, cluster database."""
    rows = pool.rows(SHOW_DATABASES)
    names = (str(row[0]) for row in rows)
    fixed = (datastore, heartbeat_database(datastore))
    return sorted(name for name in names if name in fixed or _is_shard_of(name, datastore))


def tables_of(pool: NodePool, database: str) -> frozenset[str]:
    """Return the names of a database's tables."""
    rows = pool.rows(show_tables(database))
    return frozenset(str(row[0]) for row in rows)


def version_of(pool: NodePool, database: str) -> str | None:
    """Return the revision of a database, or None if it has none.

    Raises:
        DatabaseMissing: the database does not exist.
    """
    try:
        rows = pool.rows(select_version(database))
    except DatabaseMissing as missing:
        if missing.code == 1146:
            # MariaDB reports the same error for a missing database; this query tells them apart.
            tables_of(pool, database)
            return None
        raise
    return str(rows[0][0]) if rows else None


def next_id(connection: Connection, database: str, table: str) -> int:
    """Return a table's next auto-increment id from its definition; the information schema's may be a day old."""
    definition = str(connection.rows(show_definition(database, table))[0][1])
    counter = _AUTO_INCREMENT.search(definition.rpartition(")")[2])
    return int(counter[1]) if counter is not None else 1


def _is_shard_of(database: str, datastore: str) -> bool:
    prefix, _, number = database.rpartition("_")
    return prefix == datastore and len(number) >= 4 and number.isdigit()
