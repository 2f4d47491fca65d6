"""Statements about databases, their tables and their revision."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from schemaless.wire.sql.parts import (
    insert,
    quoted_table,
    table,
    text,
    texts,
    update,
)

SHOW_DATABASES: Final = b"SHOW DATABASES"

CREATE_VERSION_TABLE: Final = (
    b"CREATE TABLE IF NOT EXISTS alembic_version (version_num VARCHAR(32) NOT NULL, PRIMARY KEY (version_num))"
)
"""Creates Alembic's version table in the connection's default database."""


def create_if_missing(database: str) -> bytes:
    """Create a database if it does not exist. The collation is explicit because servers have different defaults."""
    return b"CREATE DATABASE IF NOT EXISTS `%b` CHARACTER SET utf8mb4 COLLATE utf8mb4_bin" % database.encode()


def use(database: str) -> bytes:
    """Set the connection's default database."""
    return b"USE `%b`" % database.encode()


def select_moved_tables(datastore: str) -> bytes:
    """Select the database and name of each table that moves of shards have left on a server."""
    return _select_tables(datastore, b"table_name LIKE '%\\_moved\\_%'")


def select_cell_tables(datastore: str) -> bytes:
    """Select the database and name of each table of cells of a datastore on a server, including those of moves."""
    return _select_tables(datastore, b"(table_name='cell' OR table_name REGEXP '^cell_(moved|incoming)_')")


def _select_tables(datastore: str, condition: bytes) -> bytes:
    return (
        b"SELECT table_schema, table_name FROM information_schema.tables WHERE %b "
        b"AND table_schema LIKE %b ORDER BY table_schema, table_name"
        % (condition, text(datastore.replace("_", "\\_") + "\\_____%"))
    )


def show_tables(database: str) -> bytes:
    """List the tables of a database."""
    return b"SHOW TABLES FROM `%b`" % database.encode()


def show_definition(database: str, table: str) -> bytes:
    """Show a table's CREATE TABLE statement."""
    return b"SHOW CREATE TABLE %b" % quoted_table(database, table)


def drop_database(database: str) -> bytes:
    """Drop a database with all its tables."""
    return b"DROP DATABASE `%b`" % database.encode()


def select_identity(database: str) -> bytes:
    """Select a shard's identity."""
    return b"SELECT datastore, shard, shard_count, placement, format FROM %b" % table(database, b"shard_identity")


def select_identity_and_engine(database: str) -> bytes:
    """Select a shard's identity, followed by the storage engine of its ``cell`` table; NULL if the table is missing."""
    return b"SELECT datastore, shard, shard_count, placement, format, (%b) FROM %b" % (
        select_table_engine(database, "cell"),
        table(database, b"shard_identity"),
    )


def select_table_engine(database: str, name: str) -> bytes:
    """Select the storage engine of a table."""
    return b"SELECT ENGINE FROM information_schema.TABLES WHERE TABLE_SCHEMA=%b AND TABLE_NAME=%b" % (
        text(database),
        text(name),
    )


def select_tables_elsewhere(databases: Iterable[str], engine: str) -> bytes:
    """Select the tables of cells and index entries that are in a storage engine other than the given one.

    Returns:
        A statement whose rows are the table, its engine in lower case, and the number of shards.
    """
    return (
        b"SELECT TABLE_NAME, LOWER(ENGINE) AS found, COUNT(*) FROM information_schema.TABLES "
        b"WHERE TABLE_SCHEMA IN (%b) AND (TABLE_NAME='cell' OR TABLE_NAME REGEXP '^index_[0-9]+$') "
        b"AND LOWER(ENGINE)<>%b GROUP BY TABLE_NAME, found ORDER BY TABLE_NAME, found"
        % (texts(databases), text(engine))
    )


COMPACT: Final = (b"SET GLOBAL rocksdb_force_flush_memtable_now=1", b"SET GLOBAL rocksdb_compact_cf='default'")
"""Compacts all tables of MyRocks on a server while they are in use; OPTIMIZE TABLE would block readers and writers."""


def select_engine_support(engine: str) -> bytes:
    """Select whether a server supports a storage engine: YES, NO, DISABLED or DEFAULT; no row if it is unknown."""
    return b"SELECT SUPPORT FROM information_schema.ENGINES WHERE ENGINE=%b" % text(engine)


def select_global_variables(names: Iterable[str]) -> bytes:
    """Select the names and values of global variables on MariaDB; variables of missing plugins have no row."""
    return (
        b"SELECT VARIABLE_NAME, VARIABLE_VALUE FROM information_schema.GLOBAL_VARIABLES WHERE VARIABLE_NAME IN (%b)"
        % (texts(names))
    )


def insert_identity(
    database: str, datastore: str, shard: int, shard_count: int, placement: str, format_number: int
) -> bytes:
    """Insert a shard's identity, unless it has one."""
    names = "only_row, datastore, shard, shard_count, placement, format"
    row = (1, datastore, shard, shard_count, placement, format_number)
    return insert(table(database, b"shard_identity"), names, [row], ignore=True)


def insert_first_version(database: str, revision: str) -> bytes:
    """Record the Alembic revision of new tables, unless one is recorded."""
    return b"INSERT IGNORE INTO %b (version_num) SELECT %b FROM DUAL WHERE NOT EXISTS (SELECT * FROM %b)" % (
        _version(database),
        text(revision),
        _version(database),
    )


def update_version(database: str, old: str, new: str) -> bytes:
    """Record a database's new revision."""
    return update(_version(database), {"version_num": new}, version_num=old)


def select_version(database: str) -> bytes:
    """Select the Alembic revision of a database."""
    return b"SELECT version_num FROM %b" % _version(database)


def _version(database: str) -> bytes:
    return table(database, b"alembic_version")
