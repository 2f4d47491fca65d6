"""Compare a replica's cells with the primary's by digest, and repeat the comparison while replication lags."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Final

from schemaless.errors import FeedRefused, ServerTimeout
from schemaless.ops.migrate.originals import StoredDigest, digests, stored_digests
from schemaless.ops.migrate.sql import select_block_digests, select_settled_digests
from schemaless.store.cells.sql import select_id_span
from schemaless.store.datastore import Datastore
from schemaless.store.internals import internals_of
from schemaless.topology.replica_position import gtid_position, wait_for_gtid
from schemaless.wire.connection import Connection
from schemaless.wire.node import Node

_POLL_S: Final = 0.05
_WAIT_S: Final = 1.0
"""Longest GTID wait in one statement, in seconds; it must stay below the pool's read timeout."""

_UNSETTLED_S: Final = 5.0
"""Time for which the comparison of a cell that keeps changing is repeated, in seconds."""

_ROW_LOCKED: Final = (1205, 3572)
"""Errors of a row that an open transaction has locked."""


class ReplicaLags(Exception):
    """The replica did not catch up with the primary within the timeout."""


class PrimaryWaits(Exception):
    """The primary did not end its open transactions within the timeout."""


class _CaughtUp(Enum):
    YES = "it has every transaction"
    NO = "it lacks transactions"
    UNKNOWN = "the primary writes no GTIDs"


def differing(
    store: Datastore,
    shard: int,
    replica: Node,
    after: int,
    up_to: int,
    on_primary: Mapping[int, StoredDigest],
    lag_timeout_s: float,
) -> list[tuple[int, StoredDigest | None, StoredDigest | None]]:
    """Compare a block of cells on a replica with the digests read from the primary.

    Cells that differ are read again from both servers once the replica has caught up with the primary, so a cell that
    changed during the comparison or had not been replicated yet is not reported. A semi-synchronous primary shows a
    transaction only after replicas have it; the last read on the primary waits for such transactions.

    Args:
        after: the added_id after which the block begins.
        up_to: last added_id of the block.
        on_primary: the block's cells on the primary, by added_id.
        lag_timeout_s: time for the replica to catch up, in seconds.

    Returns:
        For each cell that still differs: added_id, the primary's digest, the replica's digest (None if missing there).

    Raises:
        ReplicaLags: the replica did not catch up in time.
        PrimaryWaits: transactions of such cells were still open on the primary at the end of that time.
        ServerError: a server cannot be reached, or rejects a statement.
    """
    internals = internals_of(store)
    sql = select_block_digests(internals.shards.database(shard), after, up_to)
    on_replica = digests(internals.shards.run_on(replica, shard, lambda connection: connection.rows(sql)))
    ids = [
        added_id for added_id in {**on_primary, **on_replica} if on_primary.get(added_id) != on_replica.get(added_id)
    ]
    return _compare_again(store, shard, replica, ids, lag_timeout_s) if ids else []


def top_beyond(store: Datastore, shard: int, replica: Node, lag_timeout_s: float) -> int | None:
    """Return the replica's highest added_id in a shard if it is beyond the primary's, else None.

    Raises:
        ReplicaLags, PrimaryWaits, ServerError: see ``differing``.
    """
    internals = internals_of(store)
    sql = select_id_span(internals.shards.database(shard))
    on_replica = internals.shards.run_on(replica, shard, lambda connection: connection.rows(sql))[0][1]
    # The primary is read second, so cells that arrive between the two reads cannot make the replica look ahead.
    on_primary = internals.shards.rows(shard, sql)[0][1]
    if on_replica is None or int(on_replica) <= int(on_primary or 0):
        return None
    return int(on_replica) if _compare_again(store, shard, replica, [int(on_replica)], lag_timeout_s) else None


def _compare_again(
    store: Datastore, shard: int, replica: Node, ids: list[int], lag_timeout_s: float
) -> list[tuple[int, StoredDigest | None, StoredDigest | None]]:
    deadline_s = time.monotonic() + lag_timeout_s
    unsettled_until_s = time.monotonic() + _UNSETTLED_S
    while True:
        before = stored_digests(store, shard, ids)
        caught_up = _wait_for_replica(store, shard, replica, deadline_s)
        on_replica = stored_digests(store, shard, ids, replica)
        now = _settled_digests(store, shard, ids)
        if now is None:
            if time.monotonic() >= deadline_s:
                raise PrimaryWaits
            time.sleep(_POLL_S)
            continue
        ids = [
            added_id for added_id in ids if on_replica.get(added_id) not in (before.get(added_id), now.get(added_id))
        ]
        settled = [added_id for added_id in ids if before.get(added_id) == now.get(added_id)]
        if not ids:
            return []
        timed_out = time.monotonic() >= deadline_s
        if (caught_up is _CaughtUp.YES and len(settled) == len(ids)) or (caught_up is _CaughtUp.UNKNOWN and timed_out):
            return [(added_id, now.get(added_id), on_replica.get(added_id)) for added_id in settled]
        if caught_up is _CaughtUp.NO and timed_out:
            raise ReplicaLags
        if caught_up is _CaughtUp.YES and time.monotonic() >= unsettled_until_s:
            # A cell that changes on every read is being written by an application; its changes do arrive.
            return [(added_id, now.get(added_id), on_replica.get(added_id)) for added_id in settled]
        time.sleep(_POLL_S)


def _settled_digests(store: Datastore, shard: int, ids: Iterable[int]) -> dict[int, StoredDigest] | None:
    """Read cells from the primary; None if an open transaction has written one of them."""
    database = internals_of(store).shards.database(shard)

    def read(connection: Connection) -> dict[int, StoredDigest]:
        sql = select_settled_digests(database, ids, mariadb=connection.is_mariadb)
        return digests(connection.rows(sql))

    try:
        return internals_of(store).shards.run(shard, read)
    except ServerTimeout as timeout:
        if timeout.code not in _ROW_LOCKED:
            raise
        return None


def _wait_for_replica(store: Datastore, shard: int, replica: Node, deadline_s: float) -> _CaughtUp:
    """Wait until a replica has all transactions committed so far, or until the deadline; return whether it has them."""
    internals = internals_of(store)
    try:
        position = internals.shards.run(shard, gtid_position)
    except FeedRefused:
        return _CaughtUp.UNKNOWN

    def wait(connection: Connection) -> bool:
        # A timeout of 0 waits forever.
        return wait_for_gtid(connection, position, max(0.01, min(_WAIT_S, deadline_s - time.monotonic())))

    while not internals.shards.run_on(replica, shard, wait):
        if time.monotonic() >= deadline_s:
            return _CaughtUp.NO
    return _CaughtUp.YES
