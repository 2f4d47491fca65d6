"""Parts of an adoption: received transactions, new blocks of added_ids, and claims."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from schemaless.base.keys import heartbeat_database
from schemaless.errors import AccessDenied, ServerTimeout, ServerUnavailable, TopologyError
from schemaless.ops.failover.sql import SELECT_RECEIVED, select_own_claim, upsert_claim, use_up_id
from schemaless.ops.move.fence import side_of
from schemaless.schema.databases import next_id
from schemaless.topology.sql.moving import select_top
from schemaless.topology.sql.replicas import SELECT_GTID_APPLIED, select_beyond, select_lacking
from schemaless.wire.accounts import granting
from schemaless.wire.connection import Connection
from schemaless.wire.errors import DatabaseMissing
from schemaless.wire.pool import NodePool
from schemaless.wire.sql.sessions import ROLLBACK, START_TRANSACTION, select_claim

# stored; never renumber
BLOCK_BITS: Final = 20
"""Each claim begins a block of 2^BLOCK_BITS added_ids in every shard, more than replication should ever lag by."""

_GROUP_CHANNEL: Final = "group_replication_"
"""Name prefix of Group Replication's own channels, which a group's primary has too."""


@dataclass(frozen=True, slots=True)
class Received:
    """Transactions that a server has committed or received.

    Attributes:
        transactions: GTID sets: the committed transactions, and the received ones, which may still be in the relay log.
        replicates: whether it is configured to replicate from another server.
    """

    transactions: tuple[str, ...]
    replicates: bool


def received(pool: NodePool) -> Received:
    """Return the transactions that a MySQL server has committed or received.

    Raises:
        AccessDenied: the account lacks a privilege; the message has the GRANT statement.
    """

    def ask(connection: Connection) -> Received:
        (committed,) = connection.rows(SELECT_GTID_APPLIED)[0]
        table = "performance_schema.replication_connection_status"
        with granting(connection, "read which transactions the server has received", "SELECT", table):
            channels = connection.rows(SELECT_RECEIVED)
        return Received(
            (str(committed), *(str(transactions) for transactions, _, _ in channels)),
            any(state != "OFF" and not name.startswith(_GROUP_CHANNEL) for _, state, name in channels),
        )

    return pool.run(ask)


def missing_from(pool: NodePool, transactions: Iterable[str]) -> str:
    """Return the given GTIDs that a server has not committed; an empty string if it has committed all."""
    return str(pool.rows(select_lacking(transactions))[0][0])


def errant(pool: NodePool, others: Iterable[NodePool], old: NodePool | None) -> tuple[str, tuple[str, ...]]:
    """Return the GTIDs that a new primary has committed and no other server has, as one string, and warnings.

    Transactions of the old primary are no errant ones, even if it did not complete them: it may have been killed or
    made read-only while it waited for replicas to acknowledge them.

    Args:
        pool: the new primary.
        others: servers to compare with; those that do not answer are left out. If the account may not read what one has
            received, only what it has committed is compared, and a warning has the GRANT statement.
        old: the old primary, if it answers. Without it, only transactions that began on the new primary are returned,
            because others may be the old primary's.
    """
    known: list[str] = []
    warnings: list[str] = []
    for other in others:
        try:
            known += received(other).transactions
        except (ServerUnavailable, ServerTimeout):
            continue
        except AccessDenied as denied:
            warnings.append(f"{denied}; errant transactions may include some that it has received but not applied")
            with suppress(AccessDenied):
                known.append(str(other.rows(SELECT_GTID_APPLIED)[0][0]))
    if not known:
        return "", tuple(warnings)
    beyond, own = pool.rows(select_beyond(known))[0]
    origin = None if old is None else str(old.rows(select_beyond(known))[0][1])
    sets = [each.strip() for each in str(beyond).split(",")]
    uuids = [each.partition(":")[0] for each in sets]
    found = ",".join(
        each
        for each, uuid in zip(sets, uuids, strict=True)
        if each and (uuid != origin if origin else uuid == str(own))
    )
    return found, tuple(warnings)


def last_block(pool: NodePool, database: str) -> int | None:
    """Return the number of the block with a shard's highest added_id on a server; None if it has no cell table.

    The table's AUTO_INCREMENT counter is considered too, because a move raises it far above the ids of the rows.
    """

    def ask(connection: Connection) -> int | None:
        name = _cell_table(connection, database)
        if name is None:
            return None
        highest = connection.rows(select_top(database, name))[0][0] or 0
        return max(int(highest), next_id(connection, database, name) - 1) >> BLOCK_BITS

    return pool.run(ask)


def begin_block(pool: NodePool, database: str, block: int) -> None:
    """Raise a shard's next added_id to the start of a block of 2^20 ids, unless it is already higher.

    Raises:
        TopologyError: the server has no cell table for the shard.
    """

    def use_up(connection: Connection) -> None:
        name = _cell_table(connection, database)
        if name is None:
            raise TopologyError(
                f"{pool.node} has no cell table in {database!r}, or several that moves have renamed; find out which "
                "one has the shard's cells, and rename it to cell"
            )
        with connection.whole():
            connection.execute(START_TRANSACTION)
            connection.execute(use_up_id(database, name, block << BLOCK_BITS))
            connection.execute(ROLLBACK)

    pool.run(use_up)


def _cell_table(connection: Connection, database: str) -> str | None:
    """Return the name of a shard's cell table; a table fenced by a move counts, because the move may rename it back."""
    side = side_of(connection, database)
    names = ("cell",) if side.has_cell else side.moved.get("cell", ())
    return names[0] if len(names) == 1 else None


def held_claim(pool: NodePool, datastore: str, cluster: str) -> int | None:
    """Return the epoch of the claim that a server itself holds on a cluster, or None."""
    return _epoch(pool, select_own_claim(heartbeat_database(datastore), cluster))


def last_claim(pool: NodePool, datastore: str, cluster: str) -> int:
    """Return the epoch of the last claim on a cluster, by any server, that a server knows of; 0 if there is none."""
    return _epoch(pool, select_claim(heartbeat_database(datastore), cluster)) or 0


def _epoch(pool: NodePool, sql: bytes) -> int | None:
    try:
        rows = pool.rows(sql)
    except DatabaseMissing:
        return None
    return int(rows[0][0]) if rows and rows[0][0] is not None else None


def make_claim(pool: NodePool, datastore: str, cluster: str, epoch: int) -> None:
    """Claim a cluster for a writable server whose heartbeat tables exist; safe to repeat."""
    pool.execute(upsert_claim(heartbeat_database(datastore), cluster, epoch))
