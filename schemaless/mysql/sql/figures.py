"""Statements that say how many cells there are, how long and how old, and fetch no body that is not needed for it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from schemaless.mysql.sql.parts import CREATED_AT, by_id, id_range, numbers, texts


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


def select_figures(database: str, after: int, up_to: int) -> bytes:
    """Select what measuring needs of the rows with ``after < added_id <= up_to``, in their order.

    That is added_id, column_name, the body's length and its first two bytes, and created_at.
    """
    return b"SELECT added_id, column_name, LENGTH(body), SUBSTRING(body,1,2), %b FROM %b WHERE %b ORDER BY added_id" % (
        CREATED_AT,
        by_id(database),
        id_range(after, up_to),
    )


def select_bodies(database: str, ids: Iterable[int]) -> bytes:
    """Select added_id and body of the cells with these added_ids."""
    return b"SELECT added_id, body FROM %b WHERE added_id IN (%b)" % (by_id(database), numbers(ids))


def select_moments(database: str, places: Iterable[int]) -> bytes:
    """Select, for each added_id, the row from there on: what was when.

    By MIN no range is estimated, which would read 40 pages of a large table for one row.

    Returns:
        A statement whose rows are the added_id asked for, the row's, and its created_at; none behind the last row.
    """
    table = by_id(database)
    return b" UNION ALL ".join(
        b"(SELECT %d, added_id, %b FROM %b WHERE added_id=(SELECT MIN(added_id) FROM %b WHERE added_id>=%d))"
        % (place, CREATED_AT, table, table, place)
        for place in places
    )


def count_columns(parts: Sequence[tuple[str, int, int]]) -> bytes:
    """Count cells by column_name in stretches of added_ids, of one server's shards; touches no body.

    Args:
        parts: ``(database, after, up_to)``: the rows with ``after < added_id <= up_to``.

    Returns:
        A statement whose rows are the position in ``parts``, column_name, and how many.
    """
    return b" UNION ALL ".join(
        b"(SELECT %d, column_name, COUNT(*) FROM %b WHERE %b GROUP BY column_name)"
        % (position, by_id(database), id_range(after, up_to))
        for position, (database, after, up_to) in enumerate(parts)
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
