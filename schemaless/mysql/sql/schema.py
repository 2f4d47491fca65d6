"""Statements about databases and their tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, Final

from schemaless.mysql.sql.parts import (
    blob_hex,
    cell_table,
    insert,
    literal,
    moment,
    quoted_table,
    table,
    text,
    update,
)

SHOW_DATABASES: Final = b"SHOW DATABASES"

CREATE_VERSION_TABLE: Final = (
    b"CREATE TABLE IF NOT EXISTS alembic_version (version_num VARCHAR(32) NOT NULL, PRIMARY KEY (version_num))"
)
"""It makes the table that Alembic makes, in the connection's own database."""


def create_if_missing(database: str, character_set: str, collation: str) -> bytes:
    """Create a database, if it is not there."""
    return b"CREATE DATABASE IF NOT EXISTS `%b` CHARACTER SET %b COLLATE %b" % (
        database.encode(),
        character_set.encode(),
        collation.encode(),
    )


def use(database: str) -> bytes:
    """Make a database the connection's own."""
    return b"USE `%b`" % database.encode()


def select_moved_tables(datastore: str) -> bytes:
    """Select database and name of what moves of shards left behind on a server."""
    return (
        b"SELECT table_schema, table_name FROM information_schema.tables WHERE table_name LIKE '%%\\_moved\\_%%' "
        b"AND table_schema LIKE %b ORDER BY table_schema, table_name" % text(datastore.replace("_", "\\_") + "\\_____%")
    )


def show_tables(database: str) -> bytes:
    """Show the names of a database's tables."""
    return b"SHOW TABLES FROM `%b`" % database.encode()


def show_definition(database: str, table: str) -> bytes:
    """Show the statement that would make a table."""
    return b"SHOW CREATE TABLE %b" % quoted_table(database, table)


def checksum_tables(tables: Iterable[tuple[str, str]]) -> bytes:
    """Show the checksum of the rows of each table, given as database and name."""
    return b"CHECKSUM TABLE %b" % b",".join(quoted_table(*table) for table in tables)


def truncate_table(database: str, table: str) -> bytes:
    """Make a table as good as new."""
    return b"TRUNCATE TABLE %b" % quoted_table(database, table)


def select_rows(database: str, table: str) -> bytes:
    """Select all that is in a table."""
    return b"SELECT * FROM %b" % quoted_table(database, table)


def insert_rows(database: str, table: str, rows: Iterable[Sequence[Any]]) -> bytes:
    """Insert whole rows, as ``select_rows`` gave them."""
    values = b",".join(b"(%b)" % b",".join(map(_literal, row)) for row in rows)
    return b"INSERT INTO %b VALUES %b" % (quoted_table(database, table), values)


def drop_database(database: str) -> bytes:
    """Drop a database with all that is in it."""
    return b"DROP DATABASE `%b`" % database.encode()


def select_identity(database: str) -> bytes:
    """Select what a shard says of itself."""
    return b"SELECT datastore, shard, shard_count, placement, format FROM %b" % table(database, b"shard_identity")


def insert_identity(
    database: str, datastore: str, shard: int, shard_count: int, placement: str, format_number: int
) -> bytes:
    """Insert what a shard says of itself, unless it says something already."""
    names = "only_row, datastore, shard, shard_count, placement, format"
    row = (1, datastore, shard, shard_count, placement, format_number)
    return insert(table(database, b"shard_identity"), names, [row], ignore=True)


def insert_first_version(database: str, revision: str) -> bytes:
    """Write down the Alembic revision of tables that were just made, unless there is one."""
    return b"INSERT IGNORE INTO %b (version_num) SELECT %b FROM DUAL WHERE NOT EXISTS (SELECT * FROM %b)" % (
        _version(database),
        text(revision),
        _version(database),
    )


def update_version(database: str, old: str, new: str) -> bytes:
    """Write down that a database is at another revision than before."""
    return update(_version(database), {"version_num": new}, version_num=old)


def select_version(database: str) -> bytes:
    """Select the Alembic revision that a database is at."""
    return b"SELECT version_num FROM %b" % _version(database)


def select_table_made(database: str) -> bytes:
    """Select when the ``cell`` table was made or last rebuilt, as text, and whether that was in this second."""
    return (
        b"SELECT CONCAT(CREATE_TIME,''), CREATE_TIME>=NOW() FROM information_schema.TABLES "
        b"WHERE TABLE_SCHEMA='%b' AND TABLE_NAME='cell'" % database.encode()
    )


def rename_cells(database: str, name: str) -> bytes:
    """Give the ``cell`` table another name, under which nobody reads or writes it."""
    return b"RENAME TABLE %b TO %b" % (cell_table(database), quoted_table(database, name))


def rebuild_table(database: str) -> bytes:
    """Rebuild the ``cell`` table while it is read and written."""
    return b"ALTER TABLE %b FORCE, ALGORITHM=INPLACE, LOCK=NONE" % cell_table(database)


def _literal(value: Any) -> bytes:
    if isinstance(value, bytes):
        return blob_hex(value)
    return moment(value) if isinstance(value, datetime) else literal(value)


def _version(database: str) -> bytes:
    return table(database, b"alembic_version")
