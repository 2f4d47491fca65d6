"""Statements that the change feed asks a server: who is writing to a shard."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from schemaless.wire.sql.parts import CREATED_AT, by_id, cell_table, id_range

_NO_WRITERS: Final = (
    b"'SHARED','SHARED_HIGH_PRIO','SHARED_READ','SHARED_READ_ONLY','SHARED_UPGRADABLE','SHARED_NO_WRITE'"
)
"""Those who do not insert hold these locks: readers, and ALTER TABLE, which may hold its own for hours."""

UNLOCK_TABLES: Final = b"UNLOCK TABLES"


def select_write_locks(database: str) -> bytes:
    """Select the granted write locks on a shard's ``cell``, and this query's own.

    Returns:
        A statement whose rows are three numbers that identify a lock, the database that it is in, how many locks the
        server had no room for, auto_increment_increment, and whether the server is read-only.
    """
    return (
        b"SELECT m.OBJECT_INSTANCE_BEGIN, m.OWNER_THREAD_ID, m.OWNER_EVENT_ID, m.OBJECT_SCHEMA, s.VARIABLE_VALUE, "
        b"@@global.auto_increment_increment, @@global.read_only "
        b"FROM performance_schema.metadata_locks AS m JOIN performance_schema.global_status AS s "
        b"ON s.VARIABLE_NAME='Performance_schema_metadata_lock_lost' "
        b"WHERE m.OBJECT_TYPE='TABLE' AND m.LOCK_STATUS<>'PENDING' AND "
        b"(m.OBJECT_SCHEMA='performance_schema' AND m.OBJECT_NAME='metadata_locks' OR "
        b"m.OBJECT_SCHEMA='%b' AND m.OBJECT_NAME='cell' AND m.LOCK_TYPE NOT IN (%b))" % (database.encode(), _NO_WRITERS)
    )


def lock_cells(database: str) -> bytes:
    """Hold off everybody who would write to a shard's ``cell``, until ``UNLOCK_TABLES``."""
    return b"LOCK TABLES %b READ" % cell_table(database)


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


def select_ids(database: str, after: int, up_to: int) -> bytes:
    """Select the added_ids with ``after < added_id <= up_to``, in their order."""
    return b"SELECT added_id FROM %b WHERE %b ORDER BY added_id" % (by_id(database), id_range(after, up_to))
