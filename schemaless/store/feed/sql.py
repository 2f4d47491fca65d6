"""Statements for the change feed: the write locks on a shard, and the next cells of many shards."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from schemaless.wire.sql.parts import CREATED_AT, by_id, cell_table, id_range, text

_READING: Final = b"'SHARED','SHARED_HIGH_PRIO','SHARED_READ','SHARED_READ_ONLY','SHARED_UPGRADABLE','SHARED_NO_WRITE'"
"""Lock types that no INSERT holds: those of readers, and of ALTER TABLE, which may hold one for hours."""

UNLOCK_TABLES: Final = b"UNLOCK TABLES"


def select_write_locks(database: str) -> bytes:
    """Select the granted write locks on a shard's ``cell`` table, and the lock of this query itself.

    Returns:
        A statement whose rows consist of three numbers that identify a lock, the lock's database, the number of locks
        that the server could not record, auto_increment_increment, and whether the server is read-only.
    """
    return (
        b"SELECT m.OBJECT_INSTANCE_BEGIN, m.OWNER_THREAD_ID, m.OWNER_EVENT_ID, m.OBJECT_SCHEMA, s.VARIABLE_VALUE, "
        b"@@global.auto_increment_increment, @@global.read_only "
        b"FROM performance_schema.metadata_locks AS m JOIN performance_schema.global_status AS s "
        b"ON s.VARIABLE_NAME='Performance_schema_metadata_lock_lost' "
        b"WHERE m.OBJECT_TYPE='TABLE' AND m.LOCK_STATUS<>'PENDING' AND "
        b"(m.OBJECT_SCHEMA='performance_schema' AND m.OBJECT_NAME='metadata_locks' OR "
        b"m.OBJECT_SCHEMA='%b' AND m.OBJECT_NAME='cell' AND m.LOCK_TYPE NOT IN (%b))" % (database.encode(), _READING)
    )


def lock_cells(database: str, *, exclusive: bool = False) -> bytes:
    """Block all writers of a shard's ``cell`` table until ``UNLOCK_TABLES``; with ``exclusive``, readers too."""
    return b"LOCK TABLES %b %b" % (cell_table(database), b"WRITE" if exclusive else b"READ")


def select_tails(
    tails: Iterable[tuple[str, int, int, int]], max_body_bytes: int, column_name: str | None = None
) -> bytes:
    """Select the next cells of many shards.

    Args:
        tails: for each shard ``(database, shard, after, limit)``: cells with a higher added_id than ``after``.
        max_body_bytes: longer bodies are returned as NULL.
        column_name: bodies of other columns are returned as NULL.

    Returns:
        A statement whose rows are complete cells followed by the shard's number.
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


def select_ids(database: str, after: int, up_to: int) -> bytes:
    """Select the added_ids with ``after < added_id <= up_to``, in order."""
    return b"SELECT added_id FROM %b WHERE %b ORDER BY added_id" % (by_id(database), id_range(after, up_to))


def select_first_since(database: str, after: int, up_to: int, since: str) -> bytes:
    """Select the first cell in a range of added_ids that was stored at or after a time."""
    run = (by_id(database), id_range(after, up_to), text(since))
    return b"SELECT added_id FROM %b WHERE %b AND created_at>=%b ORDER BY added_id LIMIT 1" % run
