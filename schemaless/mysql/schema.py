"""Databases and their tables: created from the metadata and stamped, upgraded by revisions, verified."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from sqlalchemy.dialects import mysql
from sqlalchemy.schema import CreateTable

from schemaless.cluster.topology import FORMAT
from schemaless.errors import ShardIdentityMismatch
from schemaless.mysql import revisions
from schemaless.mysql.connection import Connection
from schemaless.mysql.errors import DatabaseMissing
from schemaless.mysql.pool import NodePool
from schemaless.mysql.revisions import Branch
from schemaless.mysql.sql.schema import (
    CREATE_VERSION_TABLE,
    SHOW_DATABASES,
    create_if_missing,
    insert_first_version,
    insert_identity,
    select_identity,
    select_version,
    show_tables,
    use,
)
from schemaless.mysql.tables import CHARACTER_SET, COLLATION, catalog_metadata


@dataclass(frozen=True, slots=True)
class Identity:
    """What a shard database says of itself."""

    datastore: str
    shard: int
    shard_count: int
    placement: str
    format: int = FORMAT

    def __str__(self) -> str:
        return f"shard {self.shard} of {self.shard_count} of {self.datastore!r}, placed by {self.placement}"


def create_database(pool: NodePool, database: str) -> None:
    """Create an empty database, if it is not there, with the character set named outright."""
    sql = create_if_missing(database, CHARACTER_SET, COLLATION)
    pool.run(lambda connection: connection.execute(sql), writes=True)


def create_tables(pool: NodePool, database: str, branch: Branch) -> None:
    """Create a branch's tables in ``database`` as the metadata has them, and stamp them with its newest revision.

    Safe to repeat after an interruption: what is there stays, with its revision.
    """

    def operation(connection: Connection) -> None:
        connection.execute(use(database))
        for statement in _create_statements(branch):
            connection.execute(statement)
        # An earlier version of this library may have made the tables, and was interrupted: they keep their revision.
        connection.execute(insert_first_version(database, revisions.head(branch)))

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


def has_identity(pool: NodePool, database: str) -> bool:
    """Whether a shard database says which shard it is; one whose tables are still to be made does not."""
    return "shard_identity" in tables_of(pool, database)


def verify_identity(pool: NodePool, database: str, expected: Identity) -> None:
    """Check that a shard database is the one that the catalog takes it for.

    Raises:
        ShardIdentityMismatch: it is missing, or another one.
    """
    try:
        rows = pool.run(lambda connection: connection.rows(select_identity(database)), shard=expected.shard)
    except DatabaseMissing:
        raise ShardIdentityMismatch(
            f"{pool.node} has no database {database!r} for {expected}; is the catalog's cluster right? "
            "Nothing was read or written"
        ) from None
    if not rows:
        raise ShardIdentityMismatch(
            f"{database!r} on {pool.node} does not say which shard it is (shard_identity is empty); "
            "nothing was read or written"
        )
    found = Identity(*rows[0])
    if found.format > expected.format:
        raise ShardIdentityMismatch(
            f"{database!r} on {pool.node} has format {found.format}, this version knows up to {expected.format}; "
            "use a later version. Nothing was read or written"
        )
    if found != expected:
        raise ShardIdentityMismatch(
            f"{database!r} on {pool.node} is {found}, the catalog says {expected}; nothing was read or written"
        )


def databases_like(pool: NodePool, datastore: str) -> list[str]:
    """Return the databases on a server that a datastore of this name would use, catalog and shards."""
    rows = pool.run(lambda connection: connection.rows(SHOW_DATABASES))
    names = (str(row[0]) for row in rows)
    return sorted(name for name in names if name == datastore or _is_shard_of(name, datastore))


def tables_of(pool: NodePool, database: str) -> frozenset[str]:
    """Return the names of a database's tables."""
    rows = pool.run(lambda connection: connection.rows(show_tables(database)))
    return frozenset(str(row[0]) for row in rows)


def catalog_tables() -> frozenset[str]:
    """Return the names of the tables that a catalog has."""
    return frozenset({*catalog_metadata.tables, "alembic_version"})


def version_of(pool: NodePool, database: str) -> str | None:
    """Return the revision that a database is at, or None where it has none.

    Raises:
        DatabaseMissing: the database is not there at all.
    """
    try:
        rows = pool.run(lambda connection: connection.rows(select_version(database)))
    except DatabaseMissing as missing:
        if missing.code == 1146:
            # MariaDB says so of a database that is missing, too; this tells them apart.
            tables_of(pool, database)
            return None
        raise
    return str(rows[0][0]) if rows else None


def upgrade(pool: NodePool, database: str, branch: Branch, expected: Identity | None = None) -> bool:
    """Run the revisions that a database lacks.

    Args:
        pool: its server.
        database: its name.
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
    if version == revisions.head(branch):
        return False
    revisions.check_known(pool, database, branch, version)
    if expected is not None and has_identity(pool, database):
        verify_identity(pool, database, expected)
    return revisions.run(pool, database, branch)


@cache
def _create_statements(branch: Branch) -> Sequence[bytes]:
    dialect = mysql.dialect()
    statements = [
        str(CreateTable(table, if_not_exists=True).compile(dialect=dialect))
        for table in revisions.METADATA[branch].sorted_tables
    ]
    return [*(statement.encode() for statement in statements), CREATE_VERSION_TABLE]


def _is_shard_of(database: str, datastore: str) -> bool:
    prefix, _, number = database.rpartition("_")
    return prefix == datastore and len(number) >= 4 and number.isdigit()
