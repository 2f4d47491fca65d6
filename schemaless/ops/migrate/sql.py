"""Statements of migrations: scan a shard for bodies to replace, compare digests, replace bodies, rebuild tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from schemaless.codec.deltas import ANCHOR_INTERVAL, KEYFRAME_INTERVAL
from schemaless.codec.envelope import DELTA
from schemaless.store.cells.sql import _DESCRIPTOR, _names, latest_version, with_keys
from schemaless.wire.sql.parts import (
    COLD,
    CREATED_AT,
    IS_DELTA,
    LIVE,
    by_id,
    by_key,
    cell_table,
    escaped,
    id_range,
    numbers,
    quoted_table,
    table,
    text,
    texts,
)
from schemaless.wire.sql.transactions import ACCOUNT

_DIGESTS: Final = b"added_id, row_key, column_name, ref_key, " + CREATED_AT + b", UNHEX(SHA2(body,256)), LENGTH(body)"

_ZSTD: Final = 2
_NAMES_NONE: Final = b"SUBSTRING(body,3,4)=x'28B52FFD' AND %b&3=0" % _DESCRIPTOR


def wanted_bodies(
    target: int | None,
    sources: Sequence[int | None],
    columns: Sequence[str],
    *,
    dictionary_id: int | None = None,
    deltas: bool = False,
) -> bytes:
    """Return a condition for rows whose bodies may need re-encoding.

    It excludes erased and cold cells, and bodies already in the target format.

    Args:
        target: format byte of the target codec; None for legacy.
        sources: match only bodies with these format bytes; empty for all.
        columns: match only these columns; empty for all.
        dictionary_id: dictionary of the target codec, if that is zstd; None for no dictionary.
        deltas: match deltas with the target's serializer, which otherwise count as being in the target format.
    """
    head = b"SUBSTRING(body,1,%d)%b"

    def having(form: int | None) -> bytes:
        return head % ((1, b"<>x'C1'") if form is None else (2, b"=x'C1%02X'" % form))

    test = head % ((1, b"=x'C1'") if target is None else (2, b"<>x'C1%02X'" % target))
    if target is not None and target & 15 == _ZSTD:
        named = _NAMES_NONE if dictionary_id is None else _names(dictionary_id)
        test = b"(%b OR NOT (%b))" % (test, named)
    if target is not None and not deltas:
        test = b"(%b AND SUBSTRING(body,1,2)<>x'C1%02X')" % (test, target & 0xF0 | DELTA)
    if sources:
        test += b" AND (%b)" % b" OR ".join(map(having, sources))
    return _of_columns(b"%b AND %b AND NOT %b" % (test, LIVE, COLD), columns)


def cold_cells(columns: Sequence[str]) -> bytes:
    """Return a condition for the cold cells of these columns; with none of them, of all."""
    return _of_columns(COLD, columns)


def _of_columns(test: bytes, columns: Sequence[str]) -> bytes:
    return test + (b" AND column_name IN (%b)" % texts(columns) if columns else b"")


_KEYFRAME: Final = (
    b"CONV(LEFT(SHA2(CONCAT(row_key,UNHEX(LPAD(HEX(%%b DIV %d),16,'0')),column_name),256),2),16,10)%%%%%d=%%b%%%%%d"
    % (KEYFRAME_INTERVAL, KEYFRAME_INTERVAL, KEYFRAME_INTERVAL)
)
_BASE: Final = b"CAST(CONV(HEX(SUBSTRING(body,3,8)),16,10) AS UNSIGNED)"


def superseded_bodies(target: int, columns: Sequence[str]) -> bytes:
    """Return a condition for rows in the target format (its format byte) that may be stored as deltas.

    It also matches deltas whose base was the latest version, and those alone among deltas.

    It matches only these columns; with none of them, all.
    """
    whole = b"SUBSTRING(body,1,2)=x'C1%02X' AND NOT (%b)" % (target, _KEYFRAME % (b"ref_key", b"ref_key"))
    of_higher_level = b"ref_key%%%d<>0 AND %b%%%d=0 OR %b" % (
        ANCHOR_INTERVAL,
        _BASE,
        ANCHOR_INTERVAL,
        _KEYFRAME % (_BASE, _BASE),
    )
    delta = b"SUBSTRING(body,1,2)=x'C1%02X' AND NOT (%b)" % (target & 0xF0 | DELTA, of_higher_level)
    return _of_columns(b"(%b OR %b)" % (whole, delta), columns)


def select_history_block(
    database: str,
    after: int,
    rows: int,
    max_body_bytes: int,
    wanted: bytes,
    superseded: bytes,
    cold: bytes,
    *,
    is_known: bool,
) -> bytes:
    """Select the next ``rows`` rows after an added_id.

    Each row is a cell followed by the length of its body, the ref_key of the latest version, if that is higher, and
    whether it is ``cold``. The length is NULL unless the body is ``wanted``, or is ``superseded`` and there is a
    version that is higher than the cell, or than the base of a delta. The body is NULL where the length is or where it
    is longer than ``max_body_bytes``. The latest version is NULL for bodies that are only wanted if ``is_known``.
    """
    return (
        b"SELECT STRAIGHT_JOIN block.added_id, block.row_key, block.column_name, block.ref_key, "
        b"IF((wanted OR latest>top) AND size<=%d,body,NULL), %b, IF(wanted OR latest>top,size,NULL), "
        b"IF(latest>block.ref_key,latest,NULL), cold FROM (SELECT added_id, row_key, column_name, ref_key, "
        b"LENGTH(body) AS size, (%b) AS wanted, IF(%b,(%b),NULL) AS latest, IF(%b,%b,ref_key) AS top, "
        b"(%b) AS cold FROM %b AS c FORCE INDEX (PRIMARY) WHERE added_id>%d ORDER BY added_id LIMIT %d) AS block "
        b"JOIN %b ON cell.added_id=block.added_id ORDER BY block.added_id"
        % (
            max_body_bytes,
            CREATED_AT,
            wanted,
            superseded if is_known else b"(%b) OR (%b)" % (wanted, superseded),
            latest_version(database),
            IS_DELTA,
            _BASE,
            cold,
            cell_table(database),
            after,
            rows,
            by_id(database),
        )
    )


def select_live(database: str, keys: Iterable[tuple[bytes, str, int]]) -> bytes:
    """Select row_key, column_name and ref_key of the cells with these keys that are neither erased nor cold."""
    return b"SELECT row_key, column_name, ref_key FROM %b WHERE (%b) AND %b AND NOT %b" % (
        by_key(database),
        with_keys(keys),
        LIVE,
        COLD,
    )


def select_block(database: str, after: int, rows: int, max_body_bytes: int, wanted: bytes, cold: bytes = COLD) -> bytes:
    """Select the next ``rows`` rows after an added_id.

    Each row is a cell followed by the length of its body, NULL, and whether it is ``cold``. The length is NULL where
    the body is not ``wanted``; the body is NULL where it is not wanted or longer than ``max_body_bytes``.
    """
    return (
        b"SELECT added_id, row_key, column_name, ref_key, IF((%b) AND LENGTH(body)<=%d,body,NULL), %b, "
        b"IF(%b,LENGTH(body),NULL), NULL, (%b) FROM %b WHERE added_id>%d ORDER BY added_id LIMIT %d"
        % (wanted, max_body_bytes, CREATED_AT, wanted, cold, by_id(database), after, rows)
    )


def select_stored_digests(database: str, ids: Iterable[int]) -> bytes:
    """Select the keys and body digests of the cells with these added_ids, without transferring the bodies."""
    return b"SELECT %b FROM %b WHERE added_id IN (%b)" % (_DIGESTS, by_id(database), numbers(ids))


def select_settled_digests(database: str, ids: Iterable[int], *, mariadb: bool) -> bytes:
    """Select the same rows as ``select_stored_digests``; fails if an open transaction has written one of them."""
    locked = b"LOCK IN SHARE MODE" if mariadb else b"FOR SHARE"
    return b"%b %b NOWAIT" % (select_stored_digests(database, ids), locked)


def select_block_digests(database: str, after: int, up_to: int) -> bytes:
    """Select the same columns as ``select_stored_digests``, for the cells with ``after < added_id <= up_to``."""
    return b"SELECT %b FROM %b WHERE %b ORDER BY added_id" % (_DIGESTS, by_id(database), id_range(after, up_to))


def select_live_cold_files(database: str) -> bytes:
    """Select file_id, first_id and last_id of a shard's cold files that references may be to."""
    return b"SELECT file_id, first_id, last_id FROM %b WHERE state='live'" % table(database, b"cold_file")


LONGEST_IN_UNION: Final = 65_535
"""Longest body that ``update_bodies`` may replace together with others, in bytes.

MariaDB 11.4.5 returns a longer literal of a UNION without some multiple of 65,536 bytes.
"""


def update_bodies(database: str, changes: Iterable[tuple[int, bytes, bytes]]) -> bytes:
    """Replace bodies that are still unchanged, given ``(added_id, SHA-256 of the stored body, new body)``.

    The guard is a digest, because sending the old bodies would double the size of the binary log. The statement is an
    UPDATE, because an upsert would bring back a cell that was erased in between. The number of matched rows is the
    number of bodies that were still unchanged.
    """
    rows = list(changes)
    if len(rows) == 1:
        ((added_id, digest, new),) = rows
        still = b"WHERE added_id=%d AND SHA2(body,256)='%b'" % (added_id, digest.hex().encode())
        return b"".join((b"UPDATE %b SET body=_binary'" % cell_table(database), escaped(new), b"' ", still))
    parts = [b"UPDATE ("]
    for position, (added_id, digest, new) in enumerate(rows):
        if position:
            parts += (b" UNION ALL SELECT %d,_binary'" % added_id, escaped(new), b"','%b'" % digest.hex().encode())
        else:
            names = b"' AS new_body,'%b' AS digest" % digest.hex().encode()
            parts += (b"SELECT %d AS id,_binary'" % added_id, escaped(new), names)
    parts.append(
        b") AS v STRAIGHT_JOIN %b AS c FORCE INDEX (PRIMARY) ON c.added_id=v.id "
        b"SET c.body=v.new_body WHERE SHA2(c.body,256)=v.digest" % cell_table(database)
    )
    return b"".join(parts)


SHOW_BINARY_LOG_SETTINGS: Final = (
    b"SHOW SESSION VARIABLES WHERE Variable_name IN "
    b"('log_bin', 'binlog_format', 'binlog_row_image', 'binlog_rows_query_log_events', 'binlog_annotate_row_events')"
)


def select_table_created(database: str) -> bytes:
    """Select, as text, when the ``cell`` table was created or rebuilt, and whether that was in the current second."""
    return (
        b"SELECT CONCAT(CREATE_TIME,''), CREATE_TIME>=NOW() FROM information_schema.TABLES "
        b"WHERE TABLE_SCHEMA='%b' AND TABLE_NAME='cell'" % database.encode()
    )


def rebuild_table(database: str) -> bytes:
    """Rebuild the ``cell`` table online."""
    return b"ALTER TABLE %b FORCE, ALGORITHM=INPLACE, LOCK=NONE" % cell_table(database)


def create_copy(database: str, name: str) -> tuple[bytes, ...]:
    """Create an empty copy of the ``cell`` table without its unique key, which is faster to build at the end."""
    created = quoted_table(database, name)
    return b"CREATE TABLE %b LIKE %b" % (created, cell_table(database)), b"ALTER TABLE %b DROP KEY cell_key" % created


def add_unique_key(database: str, name: str) -> bytes:
    """Add the unique key to a copy of the ``cell`` table."""
    key = b"ADD UNIQUE KEY cell_key (row_key, column_name, ref_key)"
    return b"ALTER TABLE %b %b, ALGORITHM=INPLACE" % (quoted_table(database, name), key)


def select_has_key(database: str, name: str) -> bytes:
    """Select whether a copy of the ``cell`` table has its unique key."""
    return (
        b"SELECT COUNT(*)>0 FROM information_schema.STATISTICS WHERE TABLE_SCHEMA=%b AND TABLE_NAME=%b "
        b"AND INDEX_NAME='cell_key'" % (text(database), text(name))
    )


def select_extent(database: str, name: str, after: int, up_to: int, rows: int, max_bytes: int) -> bytes:
    """Select the last added_id (NULL if there are no rows), the number and the total size of the next rows of a table.

    They are at most ``rows`` rows, and at most one more than fit into ``max_bytes``.
    """
    page = (
        b"SELECT added_id, LENGTH(body)+100 AS size FROM %b FORCE INDEX (PRIMARY) WHERE %b "
        b"ORDER BY added_id LIMIT %d" % (quoted_table(database, name), id_range(after, up_to), rows)
    )
    return (
        b"SELECT MAX(added_id), COUNT(*), SUM(size) FROM (SELECT added_id, size, SUM(size) OVER (ORDER BY added_id "
        b"ROWS UNBOUNDED PRECEDING) AS total FROM (%b) AS page) AS totals WHERE total-size<%d" % (page, max_bytes)
    )


def copy_cells(database: str, name: str, after: int, up_to: int | None = None) -> bytes:
    """Copy the cells with ``after < added_id <= up_to`` into another table of the shard."""
    return b"INSERT INTO %b SELECT * FROM %b WHERE %b ORDER BY added_id" % (
        quoted_table(database, name),
        by_id(database),
        id_range(after, up_to),
    )


def copy_erasures(database: str, name: str, after: int) -> bytes:
    """Copy the bodies of the cells that were erased after an event into a copy of the ``cell`` table."""
    log, copy, cell = table(database, b"erased_cell"), quoted_table(database, name), cell_table(database)
    return (
        b"UPDATE %b STRAIGHT_JOIN %b ON %b.added_id=%b.added_id STRAIGHT_JOIN %b ON %b.added_id=%b.added_id "
        b"SET %b.body=%b.body WHERE %b.event_id>%d" % (log, copy, copy, log, cell, cell, log, copy, cell, log, after)
    )


def copy_dependents(database: str, name: str, after: int) -> bytes:
    """Copy the bodies of the cells that are deltas against a cell that was erased after an event, only in the copy."""
    tables = table(database, b"erased_cell"), cell_table(database), cell_table(database), quoted_table(database, name)
    return (
        b"UPDATE %b AS log STRAIGHT_JOIN %b AS base ON base.added_id=log.added_id STRAIGHT_JOIN %b AS now "
        b"FORCE INDEX (cell_key) ON now.row_key=base.row_key AND now.column_name=base.column_name "
        b"AND now.ref_key<base.ref_key STRAIGHT_JOIN %b AS copy ON copy.added_id=now.added_id SET copy.body=now.body "
        b"WHERE log.event_id>%d AND SUBSTRING(copy.body,1,2) IN (x'C113',x'C123') AND copy.body<>now.body"
        % (*tables, after)
    )


def lock_for_swap(database: str, name: str) -> bytes:
    """Lock the ``cell`` table, its copy and the log of erased cells until ``UNLOCK_TABLES``."""
    cell, copy, erased = cell_table(database), quoted_table(database, name), table(database, b"erased_cell")
    # Each name that a statement gives a table needs a lock.
    return (
        b"LOCK TABLES %b WRITE, %b WRITE, %b READ, %b AS log READ, %b AS base READ, %b AS now READ, %b AS copy WRITE"
        % (cell, copy, erased, erased, cell, cell, copy)
    )


def count_lacking(database: str, name: str, after: int, up_to: int) -> bytes:
    """Count a table's rows that the ``cell`` table lacks or has otherwise.

    Not counted are erased cells, and the bodies of deltas against them: those are whole in the ``cell`` table.
    """
    columns = (b"added_id", b"row_key", b"column_name", b"ref_key", b"created_at")
    cell, erased = cell_table(database), table(database, b"erased_cell")
    dependent = (
        b"SUBSTRING(old.body,1,2) IN (x'C113',x'C123') AND EXISTS(SELECT 1 FROM %b AS base JOIN %b AS log "
        b"ON log.added_id=base.added_id WHERE base.row_key=old.row_key AND base.column_name=old.column_name "
        b"AND base.ref_key=CAST(CONV(HEX(SUBSTRING(old.body,3,8)),16,10) AS UNSIGNED))" % (cell, erased)
    )
    return (
        b"SELECT COUNT(*) FROM (SELECT * FROM %b WHERE %b) AS old LEFT JOIN %b AS new ON %b AND (new.body=old.body "
        b"OR %b) WHERE new.added_id IS NULL AND old.added_id NOT IN (SELECT added_id FROM %b)"
        % (
            quoted_table(database, name),
            id_range(after, up_to),
            cell,
            b" AND ".join(b"new.%b=old.%b" % (column, column) for column in columns),
            dependent,
            erased,
        )
    )


SELECT_TRANSACTIONS: Final = (
    b"SELECT t.PROCESSLIST_ID=CONNECTION_ID(), t.PROCESSLIST_ID, e.EVENT_ID, %b, e.TIMER_WAIT/1e12 "
    b"FROM performance_schema.events_transactions_current AS e JOIN performance_schema.threads AS t USING (THREAD_ID) "
    b"WHERE e.STATE='ACTIVE' AND e.AUTOCOMMIT='NO' AND t.PROCESSLIST_ID IS NOT NULL "
    b"AND e.ISOLATION_LEVEL IN ('REPEATABLE READ','SERIALIZABLE')" % ACCOUNT
)
"""Selects the transactions that read from one snapshot until they end, and the one that this statement is in.

The columns are whether it is that one, its connection, the number of its event, its account, and its age in seconds;
MySQL only.
``information_schema.INNODB_TRX`` fails while a statement with a binary body is running (error 3854).
"""

SELECT_REBUILD_SETTINGS: Final = b"SELECT @@global.innodb_file_per_table, @@global.log_bin"
"""Selects whether rebuilt tables have files of their own, and whether the server writes a binary log."""

SELECT_TEMPORARY_FOLDER: Final = b"SELECT IFNULL(NULLIF(@@innodb_tmpdir,''),@@tmpdir)"
"""Selects the folder in which a rebuild sorts an index."""
