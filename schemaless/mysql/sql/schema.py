"""Statements about databases and their tables."""

from __future__ import annotations

from schemaless.mysql.sql.parts import cell_table


def select_identity(database: str) -> bytes:
    """Select what a shard says of itself."""
    return b"SELECT datastore, shard, shard_count, placement, format FROM `%b`.shard_identity" % database.encode()


def insert_identity(
    database: str, datastore: str, shard: int, shard_count: int, placement: str, format_number: int
) -> bytes:
    """Insert what a shard says of itself, unless it says something already."""
    return (
        b"INSERT IGNORE INTO `%b`.shard_identity (only_row, datastore, shard, shard_count, placement, format) "
        b"VALUES (1, '%b', %d, %d, '%b', %d)"
        % (database.encode(), datastore.encode(), shard, shard_count, placement.encode(), format_number)
    )


def select_version(database: str) -> bytes:
    """Select the Alembic revision that a database is at."""
    return b"SELECT version_num FROM `%b`.alembic_version" % database.encode()


def select_table_made(database: str) -> bytes:
    """Select when the ``cell`` table was made or last rebuilt, as text, and whether that was in this second."""
    return (
        b"SELECT CONCAT(CREATE_TIME,''), CREATE_TIME>=NOW() FROM information_schema.TABLES "
        b"WHERE TABLE_SCHEMA='%b' AND TABLE_NAME='cell'" % database.encode()
    )


def rebuild_table(database: str) -> bytes:
    """Rebuild the ``cell`` table while it is read and written."""
    return b"ALTER TABLE %b FORCE, ALGORITHM=INPLACE, LOCK=NONE" % cell_table(database)
