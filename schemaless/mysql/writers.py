"""Who is writing to a shard, and how far a replica has got: what the change feed asks a server.

An INSERT takes a metadata lock on its table before its added_id is handed out, and keeps it to the end of its
transaction. So the granted write locks on ``cell`` name every transaction that may still bring an added_id below the
highest one that is visible.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from schemaless.errors import AccessDenied, FeedRefused, ServerTimeout
from schemaless.mysql.connection import Connection
from schemaless.mysql.errors import CannotObserve
from schemaless.mysql.sql.cells import select_id_span
from schemaless.mysql.sql.parts import text

_NO_WRITERS: Final = (
    b"'SHARED','SHARED_HIGH_PRIO','SHARED_READ','SHARED_READ_ONLY','SHARED_UPGRADABLE','SHARED_NO_WRITE'"
)
"""Locks of those who do not insert: readers, and ALTER TABLE, which may hold its own for hours."""

_TURNED_OFF: Final = (
    "performance_schema does not show metadata locks; start the server with performance_schema=ON and "
    "performance-schema-instrument='wait/lock/metadata/sql/mdl=ON'"
)


class WriteLock(NamedTuple):
    """A granted lock, the same as long as it is held.

    A later one may look like it, so that a transaction seems to go on that has ended; never the other way round.
    """

    instance: int
    thread: int
    event: int


@dataclass(frozen=True, slots=True)
class Observation:
    """What was seen of a shard, in this order.

    Attributes:
        top: its highest added_id; 0 for an empty one.
        writers: the write locks that were held after that.
    """

    top: int
    writers: frozenset[WriteLock]


def observe(connection: Connection, database: str) -> Observation:
    """Read a shard's highest added_id, then list the transactions that have its ``cell`` locked for writing.

    Raises:
        CannotObserve: the server does not show its metadata locks, or not to this account.
        FeedRefused: added_ids do not come from this server's counter alone.
    """
    top = top_id(connection, database)
    try:
        rows = connection.rows(_select_locks(database))
    except AccessDenied as refusal:
        raise CannotObserve(
            f"the account may not see metadata locks; {_grant(connection)}",
            node=connection.node,
            shard=connection.shard,
            code=refusal.code,
        ) from refusal
    # The query's own lock proves that locks are listed at all: switched off, the table is silently empty.
    if not any(schema == "performance_schema" for _, _, _, schema, *_ in rows):
        raise CannotObserve(_TURNED_OFF, node=connection.node, shard=connection.shard)
    *_, lost, increment, read_only = rows[0]
    if int(lost):
        raise CannotObserve(
            f"performance_schema had no room for {lost} metadata locks; raise performance_schema_max_metadata_locks "
            "(-1 lets it grow) and restart the server",
            node=connection.node,
            shard=connection.shard,
        )
    if int(increment) != 1:
        raise FeedRefused(
            f"auto_increment_increment is {increment}, so several servers may write to this cluster, and added_ids are "
            "in no order; the change feed needs one primary",
            node=connection.node,
            shard=connection.shard,
        )
    if int(read_only):
        raise FeedRefused(
            "the server is read-only: is it a replica by now? Name the new primary with 'schemaless topology "
            "set-primary', then connect again",
            node=connection.node,
            shard=connection.shard,
        )
    locks = (WriteLock(*map(int, identity)) for *identity, schema, _, _, _ in rows if schema == database)
    return Observation(top, frozenset(locks))


def top_id(connection: Connection, database: str) -> int:
    """Return a shard's highest added_id that is visible; 0 for an empty one."""
    return int(connection.rows(select_id_span(database))[0][1] or 0)


def wait_for_writers(connection: Connection, database: str) -> int | None:
    """Hold writers off for a moment, and return the highest added_id then; for servers that cannot be observed.

    New writers wait meanwhile: for a second at most, when a transaction stays open longer than that.

    Returns:
        None where a transaction stayed open.

    Raises:
        FeedRefused: the account may not lock the table.
    """
    with connection.whole():
        connection.execute(b"SET SESSION lock_wait_timeout=1")
        top = None
        try:
            connection.execute(b"LOCK TABLES `%b`.cell READ" % database.encode())
        except AccessDenied as refusal:
            raise FeedRefused(
                f"cells that are committed late cannot be told from gaps: {_grant(connection)} "
                "('schemaless grants --role tail' prints all of it)",
                node=connection.node,
                shard=connection.shard,
                code=refusal.code,
            ) from refusal
        except ServerTimeout:
            pass
        else:
            top = top_id(connection, database)
            connection.execute(b"UNLOCK TABLES")
        connection.execute(b"SET SESSION lock_wait_timeout=DEFAULT")
        return top


def gtid_position(connection: Connection) -> str:
    """Return what a primary has committed, as its replicas' GTID waits take it.

    Raises:
        FeedRefused: it writes no GTIDs.
    """
    if connection.is_mariadb:
        position, enabled = connection.rows(b"SELECT @@global.gtid_binlog_pos, @@global.log_bin")[0]
    else:
        position, enabled = connection.rows(b"SELECT @@global.gtid_executed, @@global.gtid_mode='ON'")[0]
    if not int(enabled):
        raise FeedRefused(
            "the primary writes no GTIDs, so it cannot be told how far a replica has got; set gtid_mode=ON "
            "(MariaDB: log_bin), or read from the primary",
            node=connection.node,
            shard=connection.shard,
        )
    return str(position)


def wait_for_gtid(connection: Connection, position: str, timeout_s: float) -> bool:
    """Wait until a replica has applied all of a primary's position; False where it has not in time."""
    wait = (
        b"SELECT MASTER_GTID_WAIT(%b, %.3f)"
        if connection.is_mariadb
        else b"SELECT WAIT_FOR_EXECUTED_GTID_SET(%b, %.3f)"
    )
    return bool(connection.rows(wait % (text(position), timeout_s))[0][0] == 0)


def _select_locks(database: str) -> bytes:
    return (
        b"SELECT m.OBJECT_INSTANCE_BEGIN, m.OWNER_THREAD_ID, m.OWNER_EVENT_ID, m.OBJECT_SCHEMA, s.VARIABLE_VALUE, "
        b"@@global.auto_increment_increment, @@global.read_only "
        b"FROM performance_schema.metadata_locks AS m JOIN performance_schema.global_status AS s "
        b"ON s.VARIABLE_NAME='Performance_schema_metadata_lock_lost' "
        b"WHERE m.OBJECT_TYPE='TABLE' AND m.LOCK_STATUS<>'PENDING' AND "
        b"(m.OBJECT_SCHEMA='performance_schema' AND m.OBJECT_NAME='metadata_locks' OR "
        b"m.OBJECT_SCHEMA='%b' AND m.OBJECT_NAME='cell' AND m.LOCK_TYPE NOT IN (%b))" % (database.encode(), _NO_WRITERS)
    )


def _grant(connection: Connection) -> str:
    account = connection.rows(b"SELECT CURRENT_USER()")[0][0]
    user, _, host = str(account).rpartition("@")
    return f"GRANT SELECT ON performance_schema.metadata_locks TO '{user}'@'{host}'"
