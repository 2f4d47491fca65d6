"""Settlement: find the transactions that may still commit a low added_id in a shard.

An INSERT takes a metadata lock on its table before it is assigned an added_id, and holds it until its transaction ends.
So the granted write locks on ``cell`` identify every transaction that may still commit an added_id below the highest
visible one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from schemaless.errors import AccessDenied, FeedRefused, ServerTimeout
from schemaless.schema.engines import INNODB, engine_of_cells
from schemaless.store.cells.sql import select_id_span
from schemaless.store.feed.sql import UNLOCK_TABLES, lock_cells, select_write_locks
from schemaless.wire.accounts import own_grant
from schemaless.wire.connection import Connection
from schemaless.wire.errors import READ_ONLY, CannotObserve
from schemaless.wire.sql.sessions import set_session

_TURNED_OFF: Final = (
    "performance_schema does not show metadata locks; start the server with performance_schema=ON and "
    "performance-schema-instrument='wait/lock/metadata/sql/mdl=ON'"
)


class WriteLock(NamedTuple):
    """Identity of a granted lock, constant while the lock is held.

    A later lock may get the same identity, so an ended transaction can appear to be open, but never the reverse.
    """

    instance: int
    thread: int
    event: int


@dataclass(frozen=True, slots=True)
class Observation:
    """An observation of a shard; the attributes were read in this order.

    Attributes:
        top: the highest visible added_id; 0 for an empty shard.
        writers: the write locks that were held after ``top`` was read.
    """

    top: int
    writers: frozenset[WriteLock]


def observe(connection: Connection, database: str) -> Observation:
    """Read a shard's highest added_id, then list the write locks on its ``cell`` table.

    Raises:
        CannotObserve: the server does not show its metadata locks, or does not let the account see them.
        FeedRefused: the server is read-only, or other servers assign added_ids as well.
    """
    top = top_id(connection, database)
    try:
        rows = connection.rows(select_write_locks(database))
    except AccessDenied as refusal:
        raise CannotObserve(
            f"the account may not read metadata locks; run {_grant(connection)}",
            node=connection.node,
            shard=connection.shard,
            code=refusal.code,
        ) from refusal
    # The query's own lock must be in the list: if locks are not instrumented, the table is just empty.
    if not any(schema == "performance_schema" for _, _, _, schema, *_ in rows):
        raise CannotObserve(_TURNED_OFF, node=connection.node, shard=connection.shard)
    *_, lost, increment, read_only = rows[0]
    if int(lost):
        raise CannotObserve(
            f"performance_schema could not record {lost} metadata locks; raise performance_schema_max_metadata_locks "
            "(-1 for automatic sizing) and restart the server",
            node=connection.node,
            shard=connection.shard,
        )
    if int(increment) != 1:
        raise FeedRefused(
            f"auto_increment_increment is {increment}, so several servers may write to this cluster and added_ids are "
            "not in order. The change feed needs a single primary; set the variable to 1",
            node=connection.node,
            shard=connection.shard,
        )
    if int(read_only):
        refused = FeedRefused(
            "the server is read-only. If it has become a replica, name the new primary with 'schemaless topology "
            "set-primary'",
            node=connection.node,
            shard=connection.shard,
            # The code that a write would be refused with.
            code=min(READ_ONLY),
        )
        refused.retryable = True
        raise refused
    locks = (WriteLock(*map(int, identity)) for *identity, schema, _, _, _ in rows if schema == database)
    return Observation(top, frozenset(locks))


def top_id(connection: Connection, database: str) -> int:
    """Return the highest visible added_id of a shard; 0 if the shard is empty."""
    return int(connection.rows(select_id_span(database))[0][1] or 0)


def wait_for_writers(connection: Connection, database: str) -> int | None:
    """Block writers briefly and return the highest added_id; for servers whose locks cannot be observed.

    New writers wait until all open transactions have ended, for one second at most.

    Returns:
        The highest added_id; None if a transaction stayed open for longer.

    Raises:
        FeedRefused: the account is not allowed to lock the table.
    """
    with connection.whole():
        connection.execute(set_session({"lock_wait_timeout": 1}))
        top = None
        try:
            # Without InnoDB's own table locks, a lock for reading does not wait for open transactions.
            connection.execute(lock_cells(database, exclusive=engine_of_cells(connection, database) is not INNODB))
        except AccessDenied as refusal:
            raise FeedRefused(
                "cannot tell a gap from a cell that is still to be committed, because the account lacks a privilege; "
                f"run {_grant(connection)} ('schemaless grants --role tail' prints all grants of the role)",
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
