"""Statements of tiering: which cells become cold, and which are."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from schemaless.wire.sql.parts import CELL, COLD, IS_DELTA, LIVE, by_id, id_range, moment, text

Rule = tuple[str, datetime]
"""A column, and the time before which its cells were written that become cold."""


def _eligible(rules: Sequence[Rule]) -> bytes:
    chosen = b" OR ".join(b"(column_name=%b AND created_at<%b)" % (text(name), moment(at)) for name, at in rules)
    return b"(%b) AND %b AND NOT (%b)" % (chosen or b"FALSE", LIVE, COLD)


def select_eligible(database: str, after: int, up_to: int, rules: Sequence[Rule], limit: int) -> bytes:
    """Select added_id and length of the body of the first cells in a range that become cold, in order."""
    return b"SELECT added_id, LENGTH(body) FROM %b WHERE %b AND %b ORDER BY added_id LIMIT %d" % (
        by_id(database),
        id_range(after, up_to),
        _eligible(rules),
        limit,
    )


def count_tiers(database: str, after: int, up_to: int, rules: Sequence[Rule]) -> bytes:
    """Select, by column, numbers and total lengths of bodies in a range: all live, cold and eligible ones.

    The columns are column_name, cells, bytes, cold cells, length of their JSON texts, eligible cells, their bytes.
    """
    eligible = _eligible(rules)
    length = b"CONV(HEX(SUBSTRING(body,19,4)),16,10)"
    return (
        b"SELECT column_name, COUNT(*), SUM(LENGTH(body)), SUM(%b), SUM(IF(%b,%b,0)), SUM(%b), "
        b"SUM(IF(%b,LENGTH(body),0)) FROM %b WHERE %b AND %b GROUP BY column_name"
        % (COLD, COLD, length, eligible, eligible, by_id(database), id_range(after, up_to), LIVE)
    )


def select_cold(database: str, after: int, limit: int, columns: Sequence[str]) -> bytes:
    """Select added_id and body of the next cold cells after an added_id, in order; with ``columns``, of these only."""
    of_columns = b"column_name IN (%b)" % b",".join(map(text, columns)) if columns else b"TRUE"
    return b"SELECT added_id, body FROM %b WHERE %b AND %b AND %b ORDER BY added_id LIMIT %d" % (
        by_id(database),
        id_range(after, None),
        COLD,
        of_columns,
        limit,
    )


def select_references(database: str, after: int, up_to: int, file_id: int, limit: int) -> bytes:
    """Select the next cells in a range of added_ids that refer to a file, in order."""
    return b"SELECT %b FROM %b WHERE %b AND SUBSTRING(body,1,10)=x'C1F1%016X' ORDER BY added_id LIMIT %d" % (
        CELL,
        by_id(database),
        id_range(after, up_to),
        file_id,
        limit,
    )


def select_has_deltas(database: str, after: int, up_to: int) -> bytes:
    """Select whether a cell in a range of added_ids is stored as a difference from another version."""
    return b"SELECT EXISTS(SELECT 1 FROM %b WHERE %b AND %b)" % (by_id(database), id_range(after, up_to), IS_DELTA)
