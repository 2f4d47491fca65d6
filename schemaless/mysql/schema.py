"""Databases and their tables: created from the metadata and stamped, upgraded by Alembic revisions, verified."""

from __future__ import annotations

import importlib.resources
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final, Literal

import alembic.command
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import MetaData
from sqlalchemy.dialects import mysql
from sqlalchemy.schema import CreateTable

from schemaless.cluster.topology import FORMAT
from schemaless.errors import SchemaMismatch, ShardIdentityMismatch
from schemaless.mysql.errors import DatabaseMissing
from schemaless.mysql.pool import Connection, NodePool
from schemaless.mysql.statements import insert_identity, select_identity, select_version
from schemaless.mysql.tables import CHARACTER_SET, COLLATION, catalog_metadata, shard_metadata

Branch = Literal["catalog", "shard"]

_METADATA: Final[dict[Branch, MetaData]] = {"catalog": catalog_metadata, "shard": shard_metadata}

# Alembic's ``op`` and ``context`` are one per process.
_alembic_lock = threading.Lock()


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
    statement = f"CREATE DATABASE IF NOT EXISTS `{database}` CHARACTER SET {CHARACTER_SET} COLLATE {COLLATION}"
    pool.run(lambda connection: connection.execute(statement.encode()))


def create_tables(pool: NodePool, database: str, branch: Branch) -> None:
    """Create a branch's tables in ``database`` as the metadata has them, and stamp them with its newest revision.

    Safe to repeat after an interruption: what is there stays.
    """

    def operation(connection: Connection) -> None:
        connection.execute(f"USE `{database}`".encode())
        for statement in _create_statements(branch):
            connection.execute(statement)
        connection.execute(b"INSERT IGNORE INTO alembic_version (version_num) VALUES ('%b')" % head(branch).encode())

    pool.run(operation)


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
    pool.run(lambda connection: connection.execute(statement), shard=identity.shard)
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
    rows = pool.run(lambda connection: connection.rows(b"SHOW DATABASES"))
    names = (str(row[0]) for row in rows)
    return sorted(name for name in names if name == datastore or _is_shard_of(name, datastore))


def tables_of(pool: NodePool, database: str) -> frozenset[str]:
    """Return the names of a database's tables."""
    rows = pool.run(lambda connection: connection.rows(f"SHOW TABLES FROM `{database}`".encode()))
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
            return None
        raise
    return str(rows[0][0]) if rows else None


def upgrade(pool: NodePool, database: str, branch: Branch) -> bool:
    """Run the revisions that a database lacks.

    Returns:
        Whether there was any.

    Raises:
        SchemaMismatch: it is at a revision that this version does not know.
        ServerError: the server refused one; those before it are done.
    """
    version = version_of(pool, database)
    if version == head(branch):
        return False
    if version is not None and version not in known_revisions(branch):
        raise SchemaMismatch(
            f"{database!r} on {pool.node} is at revision {version!r}, which this version does not know; "
            "use a later version of schemaless. Nothing was changed"
        )
    with _alembic_lock, pool.sqlalchemy_connection(database) as connection:
        config = _config()
        config.attributes["connection"] = connection
        config.attributes["metadata"] = _METADATA[branch]
        alembic.command.upgrade(config, f"{branch}@head")
    return True


@cache
def head(branch: Branch) -> str:
    """Return the newest revision of a branch."""
    revision = ScriptDirectory.from_config(_config()).get_revision(f"{branch}@head")
    assert revision is not None
    return revision.revision


@cache
def known_revisions(branch: Branch) -> frozenset[str]:
    """Return every revision of a branch that this version has."""
    script = ScriptDirectory.from_config(_config())
    return frozenset(revision.revision for revision in script.iterate_revisions(head(branch), "base"))


def _config() -> Config:
    folder = str(importlib.resources.files("schemaless.migrations"))
    config = Config()
    # ConfigParser would read a percent sign in a path as its own.
    config.set_main_option("script_location", folder.replace("%", "%%"))
    config.set_main_option("path_separator", "newline")
    config.set_main_option("version_locations", f"{folder}/catalog\n{folder}/shard".replace("%", "%%"))
    return config


@cache
def _create_statements(branch: Branch) -> Sequence[bytes]:
    dialect = mysql.dialect()
    statements = [
        str(CreateTable(table, if_not_exists=True).compile(dialect=dialect))
        for table in _METADATA[branch].sorted_tables
    ]
    # The same table that Alembic makes.
    statements.append(
        "CREATE TABLE IF NOT EXISTS alembic_version (version_num VARCHAR(32) NOT NULL, PRIMARY KEY (version_num))"
    )
    return [statement.encode() for statement in statements]


def _is_shard_of(database: str, datastore: str) -> bool:
    prefix, _, number = database.rpartition("_")
    return prefix == datastore and len(number) >= 4 and number.isdigit()
