"""Statements that say how many cells there are, how long and how old, and fetch no body that is not needed for it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from schemaless.wire.sql.parts import by_id, id_range, texts
from schemaless.wire.sql.sessions import set_session


def select_probe(database: str, low: int, after: int, up_to: int, rows: int) -> bytes:
    """Select what lies about an added_id: the one up to it and the next one, NULL where there is none.

    Of the next ``rows`` rows also the last one's, their number, and their bodies' bytes.
    """
    table = by_id(database)
    return (
        b"SELECT (SELECT MAX(added_id) FROM %b WHERE added_id BETWEEN %d AND %d), "
        b"MIN(added_id), MAX(added_id), COUNT(*), SUM(size) FROM "
        b"(SELECT added_id, LENGTH(body) AS size FROM %b WHERE %b ORDER BY added_id LIMIT %d) AS probe"
        % (table, low, after, table, id_range(after, up_to), rows)
    )


def select_lengths(database: str, after: int, up_to: int) -> bytes:
    """Select column_name and body length of the rows with ``after < added_id <= up_to``, in their order."""
    return b"SELECT column_name, LENGTH(body) FROM %b WHERE %b ORDER BY added_id" % (
        by_id(database),
        id_range(after, up_to),
    )


def select_data_lengths(databases: Iterable[str]) -> bytes:
    """Select the length of each shard's ``cell`` table as InnoDB's statistics have it, in bytes."""
    return _of_tables(b"DATA_LENGTH", databases)


def select_table_lengths(databases: Iterable[str]) -> bytes:
    """Select what each shard's ``cell`` table has on disk as InnoDB's statistics have it, in bytes."""
    return _of_tables(b"DATA_LENGTH+INDEX_LENGTH+DATA_FREE", databases)


def estimate_cells(databases: Iterable[str]) -> bytes:
    """Select how many cells some shards of one server have together, as InnoDB's statistics have it."""
    return (
        b"SELECT COALESCE(SUM(TABLE_ROWS),0) FROM information_schema.TABLES WHERE TABLE_NAME='cell' "
        b"AND TABLE_SCHEMA IN (%b)" % texts(databases)
    )


def _of_tables(figure: bytes, databases: Iterable[str]) -> bytes:
    return (
        b"SELECT TABLE_SCHEMA, %b FROM information_schema.TABLES WHERE TABLE_NAME='cell' AND TABLE_SCHEMA IN (%b)"
        % (figure, texts(databases))
    )


SELECT_DATA_FOLDER: Final = b"SELECT @@datadir"


SELECT_PAGE_LAYOUT: Final = b"SELECT @@innodb_page_size, @@innodb_fill_factor"


SELECT_REBUILD_LOG_BYTES: Final = b"SELECT @@innodb_online_alter_log_max_size"


FRESH_STATISTICS: Final = set_session({"information_schema_stats_expiry": 0})
"""It lets information_schema.TABLES say what is so now; MySQL only, MariaDB keeps nothing back."""


def select_tablespaces(databases: Iterable[str], *, mariadb: bool) -> bytes:
    """Select name, length and allocated bytes of the file of each shard's ``cell`` table."""
    view = b"INNODB_SYS_TABLESPACES" if mariadb else b"INNODB_TABLESPACES"
    return b"SELECT NAME, FILE_SIZE, ALLOCATED_SIZE FROM information_schema.%b WHERE NAME IN (%b)" % (
        view,
        texts(f"{database}/cell" for database in databases),
    )


def select_other_tablespaces(databases: Iterable[str], *, mariadb: bool) -> bytes:
    """Select name, and the files' length and allocated bytes, of the tables beside ``cell``: of all shards together."""
    view = b"INNODB_SYS_TABLESPACES" if mariadb else b"INNODB_TABLESPACES"
    return (
        b"SELECT SUBSTRING_INDEX(NAME,'/',-1) AS table_name, SUM(FILE_SIZE), SUM(ALLOCATED_SIZE) "
        b"FROM information_schema.%b WHERE SUBSTRING_INDEX(NAME,'/',1) IN (%b) AND NAME NOT LIKE '%%/cell' "
        b"GROUP BY table_name ORDER BY table_name" % (view, texts(databases))
    )
