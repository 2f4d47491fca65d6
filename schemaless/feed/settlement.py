"""Who is writing to a shard, and how far a replica has got: what the change feed asks a server.

An INSERT takes a metadata lock on its table before its added_id is handed out, and keeps it to the end of its
transaction. So the granted write locks on ``cell`` name every transaction that may still bring an added_id below the
highest one that is visible.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from schemaless.cells.sql import select_id_span
from schemaless.errors import AccessDenied, FeedRefused, ServerTimeout
from schemaless.feed.sql import UNLOCK_TABLES, lock_cells, select_write_locks
from schemaless.wire.accounts import own_grant
from schemaless.wire.connection import Connection
from schemaless.wire.errors import READ_ONLY, CannotObserve
from schemaless.wire.sql.sessions import set_session

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
        rows = connection.rows(select_write_locks(database))
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
            "set-primary'",
            node=connection.node,
            shard=connection.shard,
            # As a write would have it.
            code=min(READ_ONLY),
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
        connection.execute(set_session({"lock_wait_timeout": 1}))
        top = None
        try:
            connection.execute(lock_cells(database))
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
            connection.execute(UNLOCK_TABLES)
        connection.execute(set_session({"lock_wait_timeout": None}))
        return top


def _grant(connection: Connection) -> str:
    return own_grant(connection, "SELECT", "performance_schema.metadata_locks")
