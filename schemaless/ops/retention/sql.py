"""SQL statements about the time and sizes that plans of retention show."""

from __future__ import annotations

from collections.abc import Iterable

from schemaless.wire.sql.parts import LIVE, by_id, numbers

SELECT_NOW = b"SELECT CONCAT(UTC_TIMESTAMP(6),'+00:00')"


def select_sizes(database: str, ids: Iterable[int]) -> bytes:
    """Select, by column_name, how many of these cells are not erased and the total length of their bodies."""
    return (
        b"SELECT column_name, COUNT(*), COALESCE(SUM(LENGTH(body)),0) FROM %b WHERE added_id IN (%b) AND %b "
        b"GROUP BY column_name" % (by_id(database), numbers(ids), LIVE)
    )
