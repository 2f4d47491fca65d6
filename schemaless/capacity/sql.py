"""Statements for capacity samples, and for the figures that a measurement reads."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from schemaless.wire.sql.parts import CREATED_AT, by_id, id_range, insert, numbers, table, text


def select_same_sample(catalog: str, taken_at: str, figures: str) -> bytes:
    """Select the number of a measurement of this time, about which no more is compared than its length."""
    same = (table(catalog, b"capacity_sample"), text(taken_at), len(figures))
    return b"SELECT sample_id FROM %b WHERE taken_at=%b AND LENGTH(figures)=%d" % same


def insert_sample(catalog: str, taken_at: str, figures: str) -> bytes:
    """Insert a measurement."""
    return insert(table(catalog, b"capacity_sample"), "taken_at, figures", [(taken_at, figures)])


def select_sample_times(catalog: str) -> bytes:
    """Select number and time of every measurement, the oldest first."""
    samples = table(catalog, b"capacity_sample")
    return b"SELECT sample_id, CONCAT(taken_at,'+00:00') FROM %b ORDER BY taken_at, sample_id" % samples


def select_samples(catalog: str, sample_ids: Iterable[int]) -> bytes:
    """Select number and figures of measurements, the oldest first."""
    some = (table(catalog, b"capacity_sample"), numbers(sample_ids))
    return b"SELECT sample_id, figures FROM %b WHERE sample_id IN (%b) ORDER BY taken_at, sample_id" % some


def delete_samples(catalog: str, sample_ids: Iterable[int]) -> bytes:
    """Delete measurements."""
    return b"DELETE FROM %b WHERE sample_id IN (%b)" % (table(catalog, b"capacity_sample"), numbers(sample_ids))


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


SELECT_NOW: Final = b"SELECT CONCAT(UTC_TIMESTAMP(6),'+00:00')"
"""Its value is the server's clock, as text that says UTC."""
