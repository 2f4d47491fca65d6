"""What makes a promoted server the primary of a cluster: proofs that nothing is left behind, new ids, its claim."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from schemaless.errors import AccessDenied, TopologyError
from schemaless.failover.sql import SELECT_RECEIVED, select_own_claim, upsert_claim, use_up_id
from schemaless.keys import heartbeat_database
from schemaless.schema.databases import next_id
from schemaless.schema.sql import show_tables
from schemaless.topology.heartbeat import make_tables
from schemaless.topology.sql.moving import moved, select_top
from schemaless.topology.sql.replicas import SELECT_GTID_APPLIED, select_lacking
from schemaless.wire.accounts import own_grant
from schemaless.wire.connection import Connection
from schemaless.wire.errors import DatabaseMissing
from schemaless.wire.pool import NodePool
from schemaless.wire.sql.sessions import ROLLBACK, START_TRANSACTION, select_claim

# stored; never renumber
BLOCK_BITS: Final = 20
"""Each claim begins a block of 2^20 added_ids in every shard: more than a replica lags behind its primary."""

_GROUP_CHANNEL: Final = "group_replication_"
"""Group Replication's own channels begin so; a primary of a group has them too."""


@dataclass(frozen=True, slots=True)
class Received:
    """What a server has of its cluster's transactions.

    Attributes:
        transactions: sets of GTIDs: what it has committed, and what came to it and may still be in its relay log.
        replicates: whether it is told to replicate from another server.
    """

    transactions: tuple[str, ...]
    replicates: bool


def received(pool: NodePool) -> Received:
    """Return what a MySQL server has of its cluster's transactions.

    Raises:
        AccessDenied: the account may not see it; says which GRANT lets it.
    """

    def ask(connection: Connection) -> Received:
        (committed,) = connection.rows(SELECT_GTID_APPLIED)[0]
        try:
            channels = connection.rows(SELECT_RECEIVED)
        except AccessDenied as refusal:
            granted = own_grant(connection, "SELECT", "performance_schema.replication_connection_status")
            raise AccessDenied(
                f"the account may not see what was received from a primary; run there: {granted}",
                node=connection.node,
                code=refusal.code,
            ) from refusal
        return Received(
            (str(committed), *(str(transactions) for transactions, _, _ in channels)),
            any(state != "OFF" and not name.startswith(_GROUP_CHANNEL) for _, state, name in channels),
        )

    return pool.run(ask)


def lacking(pool: NodePool, transactions: Iterable[str]) -> str:
    """Return those of some GTIDs that a server has not committed; empty where it has all."""
    sql = select_lacking(transactions)
    return str(pool.run(lambda connection: connection.rows(sql))[0][0])


def last_block(pool: NodePool, database: str) -> int | None:
    """Return the block of the highest added_id that a server knows to have been given in a shard.

    None where it has no table of the shard's cells. The table's counter counts besides its rows: a move raises it far
    above them.
    """

    def ask(connection: Connection) -> int | None:
        name = _cells_in(connection, database)
        if name is None:
            return None
        highest = connection.rows(select_top(database, name))[0][0] or 0
        return max(int(highest), next_id(connection, database, name) - 1) >> BLOCK_BITS

    return pool.run(ask)


def begin_block(pool: NodePool, database: str, block: int) -> None:
    """Have a shard's next added_id be the first of a block of 2^20; one that gave higher ones already goes on there.

    Raises:
        TopologyError: the server has no table of the shard's cells.
    """

    def use_up(connection: Connection) -> None:
        name = _cells_in(connection, database)
        if name is None:
            raise TopologyError(f"{pool.node} has no table of cells, or several, in {database!r}")
        with connection.whole():
            connection.execute(START_TRANSACTION)
            connection.execute(use_up_id(database, name, block << BLOCK_BITS))
            connection.execute(ROLLBACK)

    pool.run(use_up)


def _cells_in(connection: Connection, database: str) -> str | None:
    """Return what a shard's table of cells is called: where a move has put it aside, it may get its name back."""
    try:
        names = {str(row[0]) for row in connection.rows(show_tables(database))}
    except DatabaseMissing:
        return None
    if "cell" in names:
        return "cell"
    aside = [name for name in names if name.startswith(moved("cell", ""))]
    return aside[0] if len(aside) == 1 else None


def held_claim(pool: NodePool, datastore: str, cluster: str) -> int | None:
    """Return the epoch of the claim that a server itself has on a cluster; None without."""
    try:
        rows = pool.run(lambda connection: connection.rows(select_own_claim(heartbeat_database(datastore), cluster)))
    except DatabaseMissing:
        return None
    return None if rows[0][0] is None else int(rows[0][0])


def last_claim(pool: NodePool, datastore: str, cluster: str) -> int:
    """Return the epoch of the last claim on a cluster that a server has heard of, whoever made it; 0 without."""
    try:
        rows = pool.run(lambda connection: connection.rows(select_claim(heartbeat_database(datastore), cluster)))
    except DatabaseMissing:
        return 0
    return int(rows[0][0]) if rows else 0


def make_claim(pool: NodePool, datastore: str, cluster: str, epoch: int) -> None:
    """Claim a cluster for a server that takes writes; safe to repeat."""
    make_tables(pool, datastore)
    sql = upsert_claim(heartbeat_database(datastore), cluster, epoch)
    pool.run(lambda connection: connection.execute(sql), writes=True)
