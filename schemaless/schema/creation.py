"""Creation of tables from the metadata, and their upgrade by revisions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Final

from sqlalchemy import MetaData, Table
from sqlalchemy.dialects import mysql
from sqlalchemy.schema import CreateTable

from schemaless.errors import SchemaMismatch
from schemaless.schema import revisions
from schemaless.schema.databases import (
    check_identity,
    create_database,
    has_identity,
    verify_identity,
    version_of,
)
from schemaless.schema.engines import INNODB, StorageEngine
from schemaless.schema.revisions import METADATA
from schemaless.schema.sql import (
    CREATE_VERSION_TABLE,
    create_if_missing,
    insert_first_version,
    insert_identity,
    select_identity,
    select_version,
    use,
)
from schemaless.schema.tables import catalog_metadata, heartbeat_metadata, shard_metadata
from schemaless.schema.versions import Branch, Identity, head
from schemaless.wire.connection import Connection
from schemaless.wire.pool import NodePool

_ENGINE_TABLES: Final = frozenset({"cell"})
"""Tables of a shard that, like index tables, use the cluster's storage engine; the others are small and always use
InnoDB."""


def create_tables(pool: NodePool, database: str, branch: Branch, engine: StorageEngine = INNODB) -> None:
    """Create a branch's tables in a database and record the newest revision.

    Safe to repeat after an interruption: existing tables and a recorded revision are kept.

    Args:
        pool: pool of the database's primary.
        database: the database.
        branch: the branch of its revisions.
        engine: storage engine of the table of cells.
    """

    def operation(connection: Connection) -> None:
        connection.execute(use(database))
        for statement in _create_statements(branch, engine):
            connection.execute(statement)
        # If an interrupted run of an earlier version created the tables, their recorded revision is kept.
        connection.execute(insert_first_version(database, head(branch)))

    pool.run(operation, writes=True)


def create_shard(pool: NodePool, database: str, identity: Identity, engine: StorageEngine = INNODB) -> None:
    """Create a shard's database, tables and identity; safe to repeat after an interruption.

    Raises:
        ShardIdentityMismatch: the database exists with another identity.
    """
    create_database(pool, database)
    create_tables(pool, database, "shard", engine)
    statement = insert_identity(
        database, identity.datastore, identity.shard, identity.shard_count, identity.placement, identity.format
    )
    pool.run(lambda connection: connection.execute(statement), shard=identity.shard, writes=True)
    verify_identity(pool, database, identity)


def create_incoming(
    connection: Connection, database: str, names: Mapping[str, str], identity: Identity, engine: StorageEngine
) -> None:
    """Create a shard's database on the cluster it is being moved to, with temporary names for some tables.

    The temporary names keep clients from writing to the tables whose rows are still to be copied. Safe to repeat after
    an interruption; existing tables are kept.

    Args:
        connection: connection to the target cluster's primary.
        database: the shard's database.
        names: temporary names of tables, by their usual names.
        identity: the shard's identity.
        engine: storage engine of the table of cells.

    Raises:
        ShardIdentityMismatch: the database exists with another identity.
        SchemaMismatch: the database exists at another revision.
    """
    connection.execute(create_if_missing(database))
    connection.execute(use(database))
    for table in shard_metadata.sorted_tables:
        copied = table.to_metadata(MetaData(), name=names.get(table.name, table.name))
        connection.execute(_create(copied, engine if table.name in _ENGINE_TABLES else INNODB))
    connection.execute(CREATE_VERSION_TABLE)
    connection.execute(insert_first_version(database, head("shard")))
    facts = (identity.datastore, identity.shard, identity.shard_count, identity.placement, identity.format)
    connection.execute(insert_identity(database, *facts))
    check_identity(connection.rows(select_identity(database)), database, connection.node, identity)
    version = str(connection.rows(select_version(database))[0][0])
    if version != head("shard"):
        raise SchemaMismatch(
            f"{database!r} already exists on {connection.node} at revision {version!r}, but this version needs "
            f"{head('shard')!r}. Drop it there if it is a leftover, or use the version that created it"
        )


def catalog_tables() -> frozenset[str]:
    """Return the names of a catalog's tables."""
    return frozenset({*catalog_metadata.tables, "alembic_version"})


def upgrade(pool: NodePool, database: str, branch: Branch, expected: Identity | None = None) -> bool:
    """Run the revisions that a database lacks.

    Args:
        pool: pool of the database's primary.
        database: the database.
        branch: the branch of its revisions.
        expected: identity that a shard must have; not checked if it has no tables yet.

    Returns:
        False if the database was already up to date.

    Raises:
        ShardIdentityMismatch: the database belongs to another shard.
        SchemaMismatch: this version does not know the database's revision, or its tables differ from the metadata.
        ServerError: the server refused a revision; earlier revisions have been applied.
    """
    version = version_of(pool, database)
    if version == head(branch):
        return False
    revisions.check_known(pool, database, branch, version)
    if expected is not None and has_identity(pool, database):
        verify_identity(pool, database, expected)
    return revisions.run(pool, database, branch)


@cache
def creations(database: str) -> tuple[bytes, ...]:
    """Return the statements that create a cluster's own tables unless they exist."""
    qualified = MetaData(schema=database)
    return tuple(_create(table.to_metadata(qualified)) for table in heartbeat_metadata.sorted_tables)


@cache
def _create_statements(branch: Branch, engine: StorageEngine) -> Sequence[bytes]:
    tables = METADATA[branch].sorted_tables
    return [
        *(_create(table, engine if table.name in _ENGINE_TABLES else INNODB) for table in tables),
        CREATE_VERSION_TABLE,
    ]


def _create(table: Table, engine: StorageEngine = INNODB) -> bytes:
    if engine is not INNODB:
        table = table.to_metadata(MetaData())
        table.kwargs["mysql_engine"] = engine.clause
    return str(CreateTable(table, if_not_exists=True).compile(dialect=mysql.dialect())).encode()
