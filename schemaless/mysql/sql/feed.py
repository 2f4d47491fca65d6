"""Statements that the change feed asks a server: who is writing to a shard."""

from __future__ import annotations

from typing import Final

from schemaless.mysql.sql.parts import cell_table

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
