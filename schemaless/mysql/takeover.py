"""What makes a promoted server the primary of a cluster: proofs that nothing is left behind, new ids, its claim."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from schemaless.cluster.topology import Node, heartbeat_database
from schemaless.errors import AccessDenied, TopologyError
from schemaless.mysql.connection import Connection
from schemaless.mysql.errors import DatabaseMissing
from schemaless.mysql.grants import own_grant
from schemaless.mysql.heartbeat import make_tables
from schemaless.mysql.pool import NodePool
from schemaless.mysql.schema import next_id
from schemaless.mysql.sql.cells import use_up_id
from schemaless.mysql.sql.moves import moved, select_top
from schemaless.mysql.sql.replicas import (
    SELECT_GTID_APPLIED,
    SELECT_RECEIVED,
    delete_lost_primary,
    insert_lost_primary,
    select_claim,
    select_lacking,
    select_lost_primaries,
    select_own_claim,
    upsert_claim,
)
from schemaless.mysql.sql.schema import show_tables
from schemaless.mysql.sql.servers import ROLLBACK, START_TRANSACTION

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


def note_lost(pool: NodePool, datastore: str, cluster: str, server: Node) -> None:
    """Write down, on a cluster's new primary, that the former one may have cells which nobody else has."""
    make_tables(pool, datastore)
    sql = insert_lost_primary(heartbeat_database(datastore), cluster, str(server))
    pool.run(lambda connection: connection.execute(sql), writes=True)


def lost_primaries(pool: NodePool, datastore: str) -> list[tuple[str, str]]:
    """Return cluster and address of the former primaries that ``note_lost`` was called for and ``settle`` was not."""
    sql = select_lost_primaries(heartbeat_database(datastore))
    try:
        return [(str(cluster), str(server)) for cluster, server in pool.run(lambda connection: connection.rows(sql))]
    except DatabaseMissing:
        return []


def settle(pool: NodePool, datastore: str, cluster: str, server: Node) -> bool:
    """Forget that a former primary may have such cells; return whether that was written down."""
    if (cluster, str(server)) not in lost_primaries(pool, datastore):
        return False
    sql = delete_lost_primary(heartbeat_database(datastore), cluster, str(server))
    pool.run(lambda connection: connection.execute(sql), writes=True)
    return True
