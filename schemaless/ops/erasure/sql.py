"""Statements that show what servers still store of replaced bodies, and that find expired cells of a shard.

None of them reads the body of a cell that is kept.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import datetime
from typing import Final

from schemaless.store.cells.sql import last_kept_version
from schemaless.wire.sql.parts import (
    LIVE,
    by_id,
    id_range,
    moment,
    numbers,
    table,
    text,
    texts,
)

SHOW_LOG_EXPIRY: Final = (
    b"SHOW GLOBAL VARIABLES WHERE Variable_name IN ('log_bin', 'binlog_expire_logs_seconds', 'expire_logs_days')"
)


SELECT_NOW: Final = b"SELECT CONCAT(UTC_TIMESTAMP(6),'+00:00')"


def select_expired(database: str, after: int, up_to: int, rules: Iterable[bytes]) -> bytes:
    """Select added_id and row_key of the cells in a range that expire under a rule, erased ones included.

    Args:
        database: the shard's database.
        after: added_id before the range.
        up_to: last added_id of the range.
        rules: conditions returned by ``expires``, at least one.
    """
    return b"SELECT added_id, row_key FROM %b WHERE %b AND (%b) ORDER BY added_id" % (
        by_id(database),
        id_range(after, up_to),
        b" OR ".join(rules),
    )


def expires(
    database: str,
    column_name: str,
    before: datetime | None,
    kept_versions: int | None,
    as_of: datetime | None = None,
) -> bytes:
    """Return the condition under which a cell of a column expires.

    Args:
        database: the shard's database.
        column_name: the column.
        before: time in UTC; cells created then or later are kept; None to disregard age.
        kept_versions: cells with fewer newer versions than this, erased ones included, are kept; None to disregard
            versions.
        as_of: time in UTC; cells created then or later do not expire, and do not count as newer versions.
    """
    conditions = [b"column_name=%b" % text(column_name)]
    existing = b"TRUE"
    if as_of is not None:
        conditions.append(b"created_at<%b" % moment(as_of))
        existing = b"newer.created_at<%b" % moment(as_of)
    if before is not None:
        conditions.append(b"created_at<%b" % moment(before))
    if kept_versions is not None:
        conditions.append(b"ref_key<(%b)" % last_kept_version(database, kept_versions, existing))
    return b"(%b)" % b" AND ".join(conditions)


def select_files_of_erasure(database: str, erasure: int, states: Iterable[str]) -> bytes:
    """Select file_id and generation of the cold files in some states that may have, or had, documents of an erasure."""
    return (
        b"SELECT file_id, generation FROM %b AS file WHERE state IN (%b) AND EXISTS (SELECT 1 FROM %b AS log "
        b"WHERE log.erasure=%d AND log.event_id>file.erased_event AND log.added_id>=file.first_id "
        b"AND log.added_id<=file.last_id)" % (_files(database), texts(states), table(database, b"erased_cell"), erasure)
    )


def select_events(database: str, after: int, up_to: int, limit: int) -> bytes:
    """Select event_id and added_id of the next erased cells, in the order of events."""
    return b"SELECT event_id, added_id FROM %b WHERE event_id>%d AND event_id<=%d ORDER BY event_id LIMIT %d" % (
        table(database, b"erased_cell"),
        after,
        up_to,
        limit,
    )


def advance_cold_files(database: str, event: int, but: Collection[int]) -> bytes:
    """Record that cold files, but for some, have no documents whose erasure is an event up to this one."""
    others = b" AND file_id NOT IN (%b)" % numbers(but) if but else b""
    files = _files(database), event, event, others
    return b"UPDATE %b SET erased_event=%d WHERE erased_event<%d AND state<>'deleted'%b" % files


def select_any_live(database: str, first_id: int, last_id: int) -> bytes:
    """Select a row if a cell in a range of added_ids is not erased."""
    return b"SELECT 1 FROM %b WHERE %b AND %b LIMIT 1" % (by_id(database), id_range(first_id - 1, last_id), LIVE)


def _files(database: str) -> bytes:
    return table(database, b"cold_file")


def select_sizes(database: str, ids: Iterable[int]) -> bytes:
    """Select, by column_name, how many of these cells are not erased and the total length of their bodies."""
    return (
        b"SELECT column_name, COUNT(*), COALESCE(SUM(LENGTH(body)),0) FROM %b WHERE added_id IN (%b) AND %b "
        b"GROUP BY column_name" % (by_id(database), numbers(ids), LIVE)
    )
