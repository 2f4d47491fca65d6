"""Statements about cells by their key and in the order of their added_id: what applications' calls send."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime

from schemaless.mysql.sql.parts import (
    CELL,
    CREATED_AT,
    blob,
    blob_hex,
    by_id,
    by_key,
    cell_table,
    escaped,
    id_range,
    moment,
    numbers,
    table,
    text,
)


def insert_cells(
    database: str, cells: Iterable[tuple[bytes, str, int, bytes]], created_at: Sequence[datetime | None] | None = None
) -> bytes:
    """Insert rows of ``(row_key, column_name, ref_key, body)``.

    Args:
        created_at: of each row, in UTC, or None for the server's clock; None where all are.
    """
    names = b"row_key,column_name,ref_key,body" + (b"" if created_at is None else b",created_at")
    parts = [b"INSERT INTO %b (%b) VALUES " % (cell_table(database), names)]
    for position, (row_key, column_name, ref_key, body) in enumerate(cells):
        key = (b"," if position else b"", row_key.hex().encode(), column_name.encode(), ref_key)
        end = b"')" if created_at is None else b"',%b)" % moment(created_at[position])
        parts += (b"%b(x'%b','%b',%d,_binary'" % key, escaped(body), end)
    # Joined once: each step before would be one more copy of every body.
    return b"".join(parts)


def insert_numbered_cells(database: str, cells: Iterable[tuple[int, bytes, str, int, bytes, datetime]]) -> bytes:
    """Insert rows of ``(added_id, row_key, column_name, ref_key, body, created_at)``; those that are there stay."""
    return b"INSERT IGNORE INTO %b (added_id,row_key,column_name,ref_key,body,created_at) VALUES %b" % (
        cell_table(database),
        b",".join(
            b"(%d,%b,%b,%d,%b,%b)"
            % (added_id, blob_hex(row_key), text(column_name), ref_key, blob(body), moment(created_at))
            for added_id, row_key, column_name, ref_key, body, created_at in cells
        ),
    )


def use_up_id(database: str, name: str, added_id: int) -> bytes:
    """Insert a row that no cell can be, for its added_id: rolled back, the server hands out only higher ones.

    Args:
        name: of the shard's table of cells.
    """
    return b"INSERT INTO %b (added_id,row_key,column_name,ref_key,body) VALUES (%d,%b,'',0,'')" % (
        table(database, name.encode()),
        added_id,
        blob_hex(bytes(16)),
    )


def select_cells(database: str, keys: Iterable[tuple[bytes, str, int]]) -> bytes:
    """Select the cells with these keys, in no particular order."""
    tests = [
        b"(row_key=x'%b' AND column_name='%b' AND ref_key=%d)" % (row_key.hex().encode(), column_name.encode(), ref_key)
        for row_key, column_name, ref_key in keys
    ]
    return b"SELECT %b FROM %b WHERE %b" % (CELL, by_key(database), b" OR ".join(tests))


def select_latest(database: str, pairs: Sequence[tuple[bytes, str]]) -> bytes:
    """Select, for each ``(row_key, column_name)``, the cell with the highest ref_key."""
    parts = [
        b"SELECT %b FROM %b WHERE row_key=x'%b' AND column_name='%b' ORDER BY ref_key DESC LIMIT 1"
        % (CELL, by_key(database), row_key.hex().encode(), column_name.encode())
        for row_key, column_name in pairs
    ]
    if len(parts) == 1:
        return parts[0]
    return b"(" + b") UNION ALL (".join(parts) + b")"


def select_row(database: str, row_key: bytes) -> bytes:
    """Select the latest cell of each column of a row."""
    key = row_key.hex().encode()
    return (
        b"SELECT c.added_id, c.row_key, c.column_name, c.ref_key, c.body, %b FROM "
        b"(SELECT column_name, MAX(ref_key) AS ref_key FROM %b WHERE row_key=x'%b' GROUP BY column_name) AS latest "
        b"STRAIGHT_JOIN %b AS c FORCE INDEX (cell_key) "
        b"ON c.row_key=x'%b' AND c.column_name=latest.column_name AND c.ref_key=latest.ref_key "
        b"ORDER BY c.column_name" % (CREATED_AT, by_key(database), key, cell_table(database), key)
    )


def select_column_names(database: str, row_key: bytes) -> bytes:
    """Select the names of a row's columns."""
    return b"SELECT DISTINCT column_name FROM %b WHERE row_key=x'%b' ORDER BY column_name" % (
        by_key(database),
        row_key.hex().encode(),
    )


def select_versions(
    database: str, row_key: bytes, column_name: str, above: int, below: int, descending: bool, limit: int
) -> bytes:
    """Select versions of one row and column with ``above < ref_key < below``."""
    return (
        b"SELECT %b FROM %b WHERE row_key=x'%b' AND column_name='%b' AND ref_key>%d AND ref_key<%d "
        b"ORDER BY ref_key %b LIMIT %d"
        % (
            CELL,
            by_key(database),
            row_key.hex().encode(),
            column_name.encode(),
            above,
            below,
            b"DESC" if descending else b"ASC",
            limit,
        )
    )


def select_latest_ref_key(database: str, row_key: bytes, column_name: str) -> bytes:
    """Select one value: whose it is, row_key and column_name and a space, and behind that the highest ref_key, if any.

    A server finds the highest without reading a row, and each further column costs the client as much time as that.
    """
    row, column = row_key.hex().encode(), column_name.encode()
    return b"SELECT CONCAT(x'%b','%b ',IFNULL(MAX(ref_key),'')) FROM %b WHERE row_key=x'%b' AND column_name='%b'" % (
        row,
        column,
        by_key(database),
        row,
        column,
    )


def select_added_id(database: str, row_key: bytes, column_name: str, ref_key: int) -> bytes:
    """Select added_id, row_key, column_name and ref_key of one cell."""
    return (
        b"SELECT added_id, row_key, column_name, ref_key FROM %b WHERE row_key=x'%b' AND column_name='%b' "
        b"AND ref_key=%d"
    ) % (by_key(database), row_key.hex().encode(), column_name.encode(), ref_key)


def select_by_id(database: str, ids: Iterable[int]) -> bytes:
    """Select the cells with these added_ids."""
    return b"SELECT %b FROM %b WHERE added_id IN (%b)" % (CELL, by_id(database), numbers(ids))


def select_page_end(
    database: str,
    after: int,
    up_to: int | None,
    limit: int,
    max_bytes: int,
    *,
    legacy_only: bool = False,
    column_name: str | None = None,
) -> bytes:
    """Select where a page of rows ends whose bodies have ``max_bytes`` at most, but one row at least.

    Sized by the server before anything is fetched: bodies reach 16 MiB, and neighbours may differ by a thousand times.

    Returns:
        A statement whose one row is the last added_id (NULL where there are no rows), the number of rows up to it, and
        the number of rows that were looked at, ``limit`` at most.
    """
    return (
        b"SELECT COALESCE(MAX(CASE WHEN total<=%d THEN added_id END), MIN(added_id)), "
        b"GREATEST(1, COUNT(CASE WHEN total<=%d THEN 1 END)), COUNT(*) FROM "
        b"(SELECT added_id, SUM(size) OVER (ORDER BY added_id ROWS UNBOUNDED PRECEDING) AS total FROM "
        b"(SELECT added_id, LENGTH(body) AS size FROM %b WHERE %b ORDER BY added_id LIMIT %d) AS page) AS totals"
        % (max_bytes, max_bytes, by_id(database), id_range(after, up_to, legacy_only, column_name), limit)
    )


def select_page(
    database: str,
    after: int,
    up_to: int | None,
    limit: int,
    max_body_bytes: int,
    *,
    legacy_only: bool = False,
    column_name: str | None = None,
) -> bytes:
    """Select the next ``limit`` cells with ``after < added_id <= up_to``, in that order; a longer body is NULL."""
    return (
        b"SELECT added_id, row_key, column_name, ref_key, IF(LENGTH(body)<=%d,body,NULL), %b FROM %b WHERE %b "
        b"ORDER BY added_id LIMIT %d"
        % (max_body_bytes, CREATED_AT, by_id(database), id_range(after, up_to, legacy_only, column_name), limit)
    )


def select_tails(
    tails: Iterable[tuple[str, int, int, int]], max_body_bytes: int, column_name: str | None = None
) -> bytes:
    """Select the next cells of many shards, each of ``(database, shard, after, limit)``.

    Args:
        tails: behind which added_id of each shard, and how many at most.
        max_body_bytes: a longer body is NULL.
        column_name: a body of any other column is NULL.

    Returns:
        A statement whose rows are whole cells, with the shard behind.
    """
    test = b"LENGTH(body)<=%d" % max_body_bytes
    if column_name is not None:
        test += b" AND column_name='%b'" % column_name.encode()
    parts = [
        b"(SELECT added_id, row_key, column_name, ref_key, IF(%b,body,NULL), %b, %d FROM %b WHERE %b "
        b"ORDER BY added_id LIMIT %d)" % (test, CREATED_AT, shard, by_id(database), id_range(after, None), limit)
        for database, shard, after, limit in tails
    ]
    return b" UNION ALL ".join(parts)


def select_keys_digest(database: str, after: int, up_to: int) -> bytes:
    """Select the number of rows with ``after < added_id <= up_to``, and a digest of their ids and keys."""
    key = b"CONCAT_WS('/',added_id,HEX(row_key),column_name,ref_key)"
    return (
        b"SELECT COUNT(*), BIT_XOR(CAST(CONV(LEFT(SHA2(%b,256),16),16,10) AS UNSIGNED)), "
        b"BIT_XOR(CAST(CONV(RIGHT(SHA2(%b,256),16),16,10) AS UNSIGNED)) FROM %b WHERE %b"
        % (key, key, by_id(database), id_range(after, up_to))
    )


def select_ids(database: str, after: int, up_to: int) -> bytes:
    """Select the added_ids with ``after < added_id <= up_to``, in their order."""
    return b"SELECT added_id FROM %b WHERE %b ORDER BY added_id" % (by_id(database), id_range(after, up_to))


def select_nothing(database: str) -> bytes:
    """Select no row; refused where the shard's cells are not."""
    return b"SELECT 1 FROM %b LIMIT 0" % cell_table(database)


def select_id_span(database: str) -> bytes:
    """Select the lowest and the highest added_id; both NULL for an empty shard."""
    return b"SELECT MIN(added_id), MAX(added_id) FROM %b" % cell_table(database)


def select_block_end(database: str, after: int, rows: int, up_to: int | None = None) -> bytes:
    """Select the last added_id, and the number, of the next ``rows`` rows; reads keys only.

    With added_id alone, and statistics that say there are two rows, MySQL would read the index from its beginning.
    """
    return (
        b"SELECT MAX(added_id), COUNT(*) FROM "
        b"(SELECT added_id, ref_key FROM %b WHERE %b ORDER BY added_id LIMIT %d) AS block"
        % (by_id(database), id_range(after, up_to), rows)
    )
