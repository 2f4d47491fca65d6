"""SQL statements for the number, lengths and ages of cells and the sizes of tables; none fetches a body."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from schemaless.wire.sql.parts import by_id, by_key, cell_table, id_range, texts


def select_probe(database: str, low: int, after: int, up_to: int, rows: int) -> bytes:
    """Select the added_ids around ``after``: the last one up to ``after`` and the next one above, or NULL.

    Also selects the last added_id of the next ``rows`` rows, their number, and the size of their bodies in bytes.
    """
    table = by_id(database)
    return (
        b"SELECT (SELECT MAX(added_id) FROM %b WHERE added_id BETWEEN %d AND %d), "
        b"MIN(added_id), MAX(added_id), COUNT(*), SUM(size) FROM "
        b"(SELECT added_id, LENGTH(body) AS size FROM %b WHERE %b ORDER BY added_id LIMIT %d) AS probe"
        % (table, low, after, table, id_range(after, up_to), rows)
    )


def select_lengths(database: str, after: int, up_to: int) -> bytes:
    """Select column_name and body length of the rows with ``after < added_id <= up_to``, in order."""
    return b"SELECT column_name, LENGTH(body) FROM %b WHERE %b ORDER BY added_id" % (
        by_id(database),
        id_range(after, up_to),
    )


def count_versions(database: str, pairs: Sequence[tuple[bytes, str]], most: int) -> bytes:
    """Select the number of versions, up to ``most``, of each ``(row_key, column_name)``, after its position."""
    return b" UNION ALL ".join(
        b"(SELECT %d, COUNT(*) FROM (SELECT ref_key FROM %b WHERE row_key=x'%b' AND column_name='%b' LIMIT %d) AS v)"
        % (position, by_key(database), row_key.hex().encode(), column_name.encode(), most)
        for position, (row_key, column_name) in enumerate(pairs)
    )


def select_table_lengths(databases: Iterable[str], *, indexes: bool = False, free: bool = False) -> bytes:
    """Select the data length of each shard's ``cell`` table from InnoDB's statistics, in bytes.

    Args:
        databases: names of the databases.
        indexes: add the length of cell_key.
        free: add the free space in the file.
    """
    return _of_tables(b"DATA_LENGTH" + b"+INDEX_LENGTH" * indexes + b"+DATA_FREE" * free, databases)


def analyze_cells(databases: Iterable[str]) -> bytes:
    """Recalculate InnoDB's statistics of the ``cell`` tables of shards on one server."""
    return b"ANALYZE NO_WRITE_TO_BINLOG TABLE %b" % b",".join(cell_table(database) for database in databases)


def _of_tables(figure: bytes, databases: Iterable[str]) -> bytes:
    return (
        b"SELECT TABLE_SCHEMA, %b FROM information_schema.TABLES WHERE TABLE_NAME='cell' AND TABLE_SCHEMA IN (%b)"
        % (figure, texts(databases))
    )


SELECT_DATA_FOLDER: Final = b"SELECT @@datadir"


SELECT_PAGE_LAYOUT: Final = b"SELECT @@innodb_page_size, @@innodb_fill_factor"


SELECT_REBUILD_LOG_BYTES: Final = b"SELECT @@innodb_online_alter_log_max_size"


def select_tablespaces(databases: Iterable[str], *, mariadb: bool) -> bytes:
    """Select the name, size and allocated bytes of the file of each shard's ``cell`` table."""
    view = b"INNODB_SYS_TABLESPACES" if mariadb else b"INNODB_TABLESPACES"
    return b"SELECT NAME, FILE_SIZE, ALLOCATED_SIZE FROM information_schema.%b WHERE NAME IN (%b)" % (
        view,
        texts(f"{database}/cell" for database in databases),
    )


def select_lsm_sizes(databases: Iterable[str] | None = None) -> bytes:
    """Select the sizes of ``cell`` tables in MyRocks, by database and index; zeros if a table is only in memory.

    Args:
        databases: names of the databases; None for all databases of the server.

    Returns:
        A statement whose rows are the database, the index's name, the number of entries (obsolete ones included), and
        their raw and compressed bytes.
    """
    test = b"" if databases is None else b" AND d.TABLE_SCHEMA IN (%b)" % texts(databases)
    return b"SELECT d.TABLE_SCHEMA, d.INDEX_NAME, %b WHERE d.TABLE_NAME='cell'%b GROUP BY %b" % (
        _LSM_SIZES,
        test,
        b"d.TABLE_SCHEMA, d.INDEX_NAME",
    )


def select_other_lsm_sizes(databases: Iterable[str]) -> bytes:
    """Select the sizes of tables other than ``cell`` in MyRocks, summed over all shards.

    Returns:
        A statement whose rows are the table, the number of entries (obsolete ones included), and their raw and
        compressed bytes.
    """
    return b"SELECT d.TABLE_NAME, %b WHERE d.TABLE_NAME<>'cell' AND d.TABLE_SCHEMA IN (%b) GROUP BY d.TABLE_NAME" % (
        _LSM_SIZES,
        texts(databases),
    )


_LSM_SIZES: Final = (
    b"COALESCE(SUM(f.NUM_ROWS),0), COALESCE(SUM(f.DATA_SIZE),0), COALESCE(SUM(f.DATA_SIZE/t.raw*p.stored),0) "
    b"FROM information_schema.ROCKSDB_DDL AS d LEFT JOIN information_schema.ROCKSDB_INDEX_FILE_MAP AS f "
    b"ON f.COLUMN_FAMILY=d.COLUMN_FAMILY AND f.INDEX_NUMBER=d.INDEX_NUMBER "
    b"LEFT JOIN (SELECT SST_NAME, SUM(DATA_SIZE) AS raw FROM information_schema.ROCKSDB_INDEX_FILE_MAP "
    b"GROUP BY SST_NAME) AS t ON t.SST_NAME=f.SST_NAME "
    b"LEFT JOIN (SELECT SST_NAME, DATA_BLOCK_SIZE+INDEX_BLOCK_SIZE+FILTER_BLOCK_SIZE AS stored "
    b"FROM information_schema.ROCKSDB_SST_PROPS) AS p ON p.SST_NAME=f.SST_NAME"
)
"""Columns for the number of entries and the raw and compressed bytes of indexes ``d`` in files ``f``.

A file holds several indexes. Its compressed size is divided among them by their raw sizes.
"""


def select_engines(databases: Iterable[str]) -> bytes:
    """Select the database and storage engine of each shard's ``cell`` table."""
    return _of_tables(b"ENGINE", databases)


def select_other_tablespaces(databases: Iterable[str], *, mariadb: bool) -> bytes:
    """Select the name, file size and allocated bytes of tables other than ``cell``, summed over all shards."""
    view = b"INNODB_SYS_TABLESPACES" if mariadb else b"INNODB_TABLESPACES"
    return (
        b"SELECT SUBSTRING_INDEX(NAME,'/',-1) AS table_name, SUM(FILE_SIZE), SUM(ALLOCATED_SIZE) "
        b"FROM information_schema.%b WHERE SUBSTRING_INDEX(NAME,'/',1) IN (%b) AND NAME NOT LIKE '%%/cell' "
        b"GROUP BY table_name ORDER BY table_name" % (view, texts(databases))
    )
