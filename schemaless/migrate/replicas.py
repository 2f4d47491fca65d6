"""Do replicas hold the same bytes as their primary? Compared by digest, and looked at again where replication lags."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Final

from schemaless.cells.sql import select_id_span
from schemaless.datastore import Datastore
from schemaless.errors import FeedRefused
from schemaless.internals import internals_of
from schemaless.migrate.originals import StoredDigest, digests, stored_digests
from schemaless.migrate.sql import select_block_digests, select_stored_digests
from schemaless.topology.replica_position import gtid_position, wait_for_gtid
from schemaless.wire.connection import Connection
from schemaless.wire.node import Node

_POLL_S: Final = 0.05
_WAIT_S: Final = 1.0
"""A replica is asked to wait so long at a time; a reply may not take longer than the pool allows."""

_UNSETTLED_S: Final = 5.0
"""A cell that keeps changing is looked at so long."""


class ReplicaLags(Exception):
    """The replica had not got in time what the primary had committed."""


class _Arrival(Enum):
    YES = "has all of it"
    NO = "not in time"
    UNKNOWN = "the primary writes no GTIDs"


def differing(
    store: Datastore,
    shard: int,
    replica: Node,
    after: int,
    up_to: int,
    seen: Mapping[int, StoredDigest],
    lag_timeout_s: float,
) -> list[tuple[int, StoredDigest | None, StoredDigest | None]]:
    """Compare a block of a shard's cells on a replica with what was seen on the primary.

    What differs is looked at again on both, once the replica has got all that the primary had committed, so cells that
    were changed meanwhile, and those that had not arrived yet, are no finding.

    Args:
        after: the block's cells have higher added_ids.
        up_to: the block's last added_id.
        seen: its cells on the primary, by added_id.
        lag_timeout_s: how long the replica may take.

    Returns:
        For each cell that differs for good: its added_id, the primary's and the replica's; None where it is not there.

    Raises:
        ReplicaLags: the replica has not caught up in time.
        ServerError: a server cannot be reached, or refuses.
    """
    internals = internals_of(store)
    sql = select_block_digests(internals.shards.database(shard), after, up_to)
    theirs = digests(internals.shards.run_on(replica, shard, lambda connection: connection.rows(sql)))
    ids = [added_id for added_id in {**seen, **theirs} if seen.get(added_id) != theirs.get(added_id)]
    return _look_again(store, shard, replica, ids, lag_timeout_s) if ids else []


def top_beyond(store: Datastore, shard: int, replica: Node) -> int | None:
    """Return the highest added_id that a replica has of a shard, if the primary has none as high; else None.

    Raises:
        ServerError: a server cannot be reached, or refuses.
    """
    internals = internals_of(store)
    sql = select_id_span(internals.shards.database(shard))
    theirs = internals.shards.run_on(replica, shard, lambda connection: connection.rows(sql))[0][1]
    # Later than the replica, which cannot be ahead of its primary.
    ours = internals.shards.rows(shard, sql)[0][1]
    return int(theirs) if theirs is not None and int(theirs) > int(ours or 0) else None


def _look_again(
    store: Datastore, shard: int, replica: Node, ids: list[int], lag_timeout_s: float
) -> list[tuple[int, StoredDigest | None, StoredDigest | None]]:
    give_up_s = time.monotonic() + lag_timeout_s
    unsettled_s = time.monotonic() + _UNSETTLED_S
    while True:
        before = stored_digests(store, shard, ids)
        arrival = _arrival(store, shard, replica, give_up_s)
        theirs = _on_replica(store, shard, replica, ids)
        now = stored_digests(store, shard, ids)
        ids = [added_id for added_id in ids if theirs.get(added_id) not in (before.get(added_id), now.get(added_id))]
        still = [added_id for added_id in ids if before.get(added_id) == now.get(added_id)]
        if not ids:
            return []
        late = time.monotonic() >= give_up_s
        if (arrival is _Arrival.YES and len(still) == len(ids)) or (arrival is _Arrival.UNKNOWN and late):
            return [(added_id, now.get(added_id), theirs.get(added_id)) for added_id in still]
        if arrival is _Arrival.NO and late:
            raise ReplicaLags
        if arrival is _Arrival.YES and time.monotonic() >= unsettled_s:
            # Those that change all the time are somebody's work, and arrive one after the other.
            return [(added_id, now.get(added_id), theirs.get(added_id)) for added_id in still]
        time.sleep(_POLL_S)


def _on_replica(store: Datastore, shard: int, replica: Node, ids: Iterable[int]) -> dict[int, StoredDigest]:
    internals = internals_of(store)
    sql = select_stored_digests(internals.shards.database(shard), ids)
    return digests(internals.shards.run_on(replica, shard, lambda connection: connection.rows(sql)))


def _arrival(store: Datastore, shard: int, replica: Node, give_up_s: float) -> _Arrival:
    """Wait until a replica has got what the primary has committed by now."""
    internals = internals_of(store)
    try:
        position = internals.shards.run(shard, gtid_position)
    except FeedRefused:
        return _Arrival.UNKNOWN

    def wait(connection: Connection) -> bool:
        # 0 would be for ever.
        return wait_for_gtid(connection, position, max(0.01, min(_WAIT_S, give_up_s - time.monotonic())))

    while not internals.shards.run_on(replica, shard, wait):
        if time.monotonic() >= give_up_s:
            return _Arrival.NO
    return _Arrival.YES
