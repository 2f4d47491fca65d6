"""Databases' tables: created from the metadata and stamped, and upgraded by revisions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache

from sqlalchemy import MetaData, Table
from sqlalchemy.dialects import mysql
from sqlalchemy.schema import CreateTable

from schemaless.errors import SchemaMismatch
from schemaless.schema import revisions
from schemaless.schema.databases import (
    CHARACTER_SET,
    COLLATION,
    Identity,
    check_identity,
    create_database,
    has_identity,
    verify_identity,
    version_of,
)
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
from schemaless.schema.versions import Branch, head
from schemaless.wire.connection import Connection
from schemaless.wire.pool import NodePool


def create_tables(pool: NodePool, database: str, branch: Branch) -> None:
    """Create a branch's tables in ``database`` as the metadata has them, and stamp them with its newest revision.

    Safe to repeat after an interruption: what is there stays, with its revision.
    """

    def operation(connection: Connection) -> None:
        connection.execute(use(database))
        for statement in _create_statements(branch):
            connection.execute(statement)
        # An earlier version of this library may have made the tables, and was interrupted: they keep their revision.
        connection.execute(insert_first_version(database, head(branch)))

    pool.run(operation, writes=True)


def create_shard(pool: NodePool, database: str, identity: Identity) -> None:
    """Create a shard's database and tables and write its identity; safe to repeat after an interruption.

    Raises:
        ShardIdentityMismatch: the database is there and belongs to something else.
    """
    create_database(pool, database)
    create_tables(pool, database, "shard")
    statement = insert_identity(
        database, identity.datastore, identity.shard, identity.shard_count, identity.placement, identity.format
    )
    pool.run(lambda connection: connection.execute(statement), shard=identity.shard, writes=True)
    verify_identity(pool, database, identity)


def create_incoming(connection: Connection, database: str, names: Mapping[str, str], identity: Identity) -> None:
    """Create what a shard needs on the cluster that it is on its way to, without a table that anybody writes to.

    Safe to repeat after an interruption; what is there stays.

    Args:
        names: what the tables of cells and followers are called meanwhile.
        identity: of the shard.

    Raises:
        ShardIdentityMismatch: the database is there and belongs to something else.
        SchemaMismatch: it is at another revision.
    """
    connection.execute(create_if_missing(database, CHARACTER_SET, COLLATION))
    connection.execute(use(database))
    for table in shard_metadata.sorted_tables:
        connection.execute(_create(table.to_metadata(MetaData(), name=names.get(table.name, table.name))))
    connection.execute(CREATE_VERSION_TABLE)
    connection.execute(insert_first_version(database, head("shard")))
    facts = (identity.datastore, identity.shard, identity.shard_count, identity.placement, identity.format)
    connection.execute(insert_identity(database, *facts))
    check_identity(connection.rows(select_identity(database)), database, connection.node, identity)
    version = str(connection.rows(select_version(database))[0][0])
    if version != head("shard"):
        raise SchemaMismatch(
            f"{database!r} on {connection.node} is there already, at revision {version!r}, and this version needs "
            f"{head('shard')!r}; is it a leftover? Drop it there, or take the version that made it"
        )


def catalog_tables() -> frozenset[str]:
    """Return the names of the tables that a catalog has."""
    return frozenset({*catalog_metadata.tables, "alembic_version"})


def upgrade(pool: NodePool, database: str, branch: Branch, expected: Identity | None = None) -> bool:
    """Run the revisions that a database lacks.

    Args:
        branch: which revisions.
        expected: what a shard has to say of itself before it is changed; one without tables says nothing.

    Returns:
        Whether there was any.

    Raises:
        ShardIdentityMismatch: it is another shard.
        SchemaMismatch: it is at a revision that this version does not know, or its tables are not what they should be.
        ServerError: the server refused one; those before it are done.
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
    """Return the statements that create a cluster's own tables in ``database``, where they are missing."""
    named = MetaData(schema=database)
    return tuple(_create(table.to_metadata(named)) for table in heartbeat_metadata.sorted_tables)


@cache
def _create_statements(branch: Branch) -> Sequence[bytes]:
    return [*(_create(table) for table in METADATA[branch].sorted_tables), CREATE_VERSION_TABLE]


def _create(table: Table) -> bytes:
    return str(CreateTable(table, if_not_exists=True).compile(dialect=mysql.dialect())).encode()
