"""SQL for taking measurements, and for saving, reading and deleting them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Final

from schemaless.store.cells.sql import last_kept_version
from schemaless.wire.sql.parts import CREATED_AT, by_id, id_range, insert, moment, numbers, table, text


def select_same_sample(catalog: str, taken_at: str, figures: str) -> bytes:
    """Select the sample_id of the measurement with this time and figures of this length, which together identify it."""
    same = (table(catalog, b"capacity_sample"), text(taken_at), len(figures))
    return b"SELECT sample_id FROM %b WHERE taken_at=%b AND LENGTH(figures)=%d" % same


def insert_sample(catalog: str, taken_at: str, figures: str) -> bytes:
    """Insert a measurement."""
    return insert(table(catalog, b"capacity_sample"), "taken_at, figures", [(taken_at, figures)])


def select_sample_times(catalog: str) -> bytes:
    """Select the sample_id and time of every measurement, oldest first."""
    samples = table(catalog, b"capacity_sample")
    return b"SELECT sample_id, CONCAT(taken_at,'+00:00') FROM %b ORDER BY taken_at, sample_id" % samples


def select_samples(catalog: str, sample_ids: Iterable[int]) -> bytes:
    """Select the sample_id and figures of measurements, oldest first."""
    some = (table(catalog, b"capacity_sample"), numbers(sample_ids))
    return b"SELECT sample_id, figures FROM %b WHERE sample_id IN (%b) ORDER BY taken_at, sample_id" % some


def delete_samples(catalog: str, sample_ids: Iterable[int]) -> bytes:
    """Delete measurements."""
    return b"DELETE FROM %b WHERE sample_id IN (%b)" % (table(catalog, b"capacity_sample"), numbers(sample_ids))


def select_progress(catalog: str, since: datetime) -> bytes:
    """Select the progress of jobs, except erasures and sweeps, that are unfinished or ended after a time.

    The row: job_id, kind, and the number of completed shards of a move or rebuild, of changed cells of other jobs.
    """
    return (
        b"SELECT j.job_id, j.kind, SUM(IF(j.kind IN ('move','rebuild'),s.state='done',s.cells)) "
        b"FROM %b AS j JOIN %b AS s ON s.job_id=j.job_id WHERE j.kind NOT IN ('erase','sweep') "
        b"AND (j.state IN %b OR j.ended_at>=%b) "
        # The end of a finalised job is when it was finalised.
        b"GROUP BY j.job_id, j.kind, j.state HAVING j.state<>'finalised' OR MAX(s.ended_at)>=%b ORDER BY j.job_id"
        % (table(catalog, b"job"), table(catalog, b"job_shard"), b"('running','paused')", moment(since), moment(since))
    )


def select_figures(database: str, after: int, up_to: int) -> bytes:
    """Select added_id, column_name, body length, first bytes of the body and created_at of a range, in order.

    The range is ``after < added_id <= up_to``. The bytes are enough for ``references.text_bytes``.
    """
    columns = b"added_id, column_name, LENGTH(body), SUBSTRING(body,1,22), " + CREATED_AT
    return b"SELECT %b FROM %b WHERE %b ORDER BY added_id" % (columns, by_id(database), id_range(after, up_to))


def select_superseded(database: str, after: int, up_to: int, versions_kept: Iterable[int]) -> bytes:
    """Select the body bytes of each column in a range: all, and those in cells with at least N newer versions, by N."""
    sums = (b"SUM(IF(ref_key<(%b),LENGTH(body),0))" % last_kept_version(database, kept) for kept in versions_kept)
    return b"SELECT column_name, SUM(LENGTH(body)), %b FROM %b WHERE %b GROUP BY column_name" % (
        b", ".join(sums),
        by_id(database),
        id_range(after, up_to),
    )


def select_moments(database: str, places: Iterable[int]) -> bytes:
    """Select, for each added_id, the first row at or after it.

    The subquery with MIN avoids a range estimate, which would read 40 pages of a large table for one row.

    Returns:
        A statement whose rows are the requested added_id, the added_id found, and its created_at; an added_id without a
        row at or after it is left out.
    """
    table = by_id(database)
    return b" UNION ALL ".join(
        b"(SELECT %d, added_id, %b FROM %b WHERE added_id=(SELECT MIN(added_id) FROM %b WHERE added_id>=%d))"
        % (place, CREATED_AT, table, table, place)
        for place in places
    )


def count_columns(parts: Sequence[tuple[str, int, int]]) -> bytes:
    """Count cells by column_name in added_id ranges of shards on one server, without reading bodies.

    Args:
        parts: ``(database, after, up_to)`` for the rows with ``after < added_id <= up_to``.

    Returns:
        A statement whose rows are the position in ``parts``, column_name, and the count.
    """
    return b" UNION ALL ".join(
        b"(SELECT %d, column_name, COUNT(*) FROM %b WHERE %b GROUP BY column_name)"
        % (position, by_id(database), id_range(after, up_to))
        for position, (database, after, up_to) in enumerate(parts)
    )


SELECT_NOW: Final = b"SELECT CONCAT(UTC_TIMESTAMP(6),'+00:00')"
"""Statement that selects the server's time as text, in UTC with its offset."""
