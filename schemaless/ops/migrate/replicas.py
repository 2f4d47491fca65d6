"""Compare a replica's cells with the primary's by digest, and repeat the comparison while replication lags."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Final, NamedTuple

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


class Difference(NamedTuple):
    """A cell that differs: its digests on the primary and on the replica, None where it is missing."""

    added_id: int
    primary: StoredDigest | None
    replica: StoredDigest | None


class ReplicaComparison:
    """Comparison of one shard on a replica with the primary.

    Cells that differ are read again from both servers once the replica has caught up with the primary, so a cell that
    changed during the comparison or had not been replicated yet is not reported. A semi-synchronous primary shows a
    transaction only after replicas have it; the last read on the primary waits for such transactions.

    Args:
        store: the datastore.
        shard: shard number.
        replica: the replica.
        lag_timeout_s: time for the replica to catch up, in seconds.
    """

    def __init__(self, store: Datastore, shard: int, replica: Node, lag_timeout_s: float) -> None:
        self._store = store
        self._shards = internals_of(store).shards
        self._shard = shard
        self._database = self._shards.database(shard)
        self._replica = replica
        self._lag_timeout_s = lag_timeout_s

    def differing(self, after: int, up_to: int, on_primary: Mapping[int, StoredDigest]) -> list[Difference]:
        """Compare the cells with ``after < added_id <= up_to`` with the digests read from the primary.

        Raises:
            ReplicaLags: the replica did not catch up in time.
            PrimaryWaits: transactions of such cells were still open on the primary at the end of that time.
            ServerError: a server cannot be reached, or rejects a statement.
        """
        sql = select_block_digests(self._database, after, up_to)
        there = digests(self._shards.run_on(self._replica, self._shard, lambda connection: connection.rows(sql)))
        ids = [added_id for added_id in {**on_primary, **there} if on_primary.get(added_id) != there.get(added_id)]
        return self._compare_again(ids) if ids else []

    def top_beyond(self) -> int | None:
        """Return the replica's highest added_id in the shard if it is beyond the primary's, else None.

        Raises:
            ReplicaLags, PrimaryWaits, ServerError: see ``differing``.
        """
        sql = select_id_span(self._database)
        there = self._shards.run_on(self._replica, self._shard, lambda connection: connection.rows(sql))[0][1]
        # The primary is read second, so cells that arrive between the two reads cannot make the replica look ahead.
        on_primary = self._shards.rows(self._shard, sql)[0][1]
        if there is None or int(there) <= int(on_primary or 0):
            return None
        return int(there) if self._compare_again([int(there)]) else None

    def _compare_again(self, ids: list[int]) -> list[Difference]:
        deadline_s = time.monotonic() + self._lag_timeout_s
        unsettled_until_s = time.monotonic() + _UNSETTLED_S
        while True:
            before = stored_digests(self._store, self._shard, ids)
            caught_up = self._wait(deadline_s)
            there = stored_digests(self._store, self._shard, ids, self._replica)
            now = self._settled(ids)
            timed_out = time.monotonic() >= deadline_s
            if now is None:
                if timed_out:
                    raise PrimaryWaits(
                        f"it has transactions that the primary did not complete within {self._lag_timeout_s:g} s; "
                        "check with 'schemaless topology show' whether it waits for a replica, and verify again"
                    )
            else:
                ids = [number for number in ids if there.get(number) not in (before.get(number), now.get(number))]
                settled = [number for number in ids if before.get(number) == now.get(number)]
                # A cell that changes on every read is being written by an application; its changes do arrive.
                final = len(settled) == len(ids) or time.monotonic() >= unsettled_until_s
                if not ids or (caught_up is _CaughtUp.YES and final) or (caught_up is _CaughtUp.UNKNOWN and timed_out):
                    return [Difference(number, now.get(number), there.get(number)) for number in settled]
                if caught_up is _CaughtUp.NO and timed_out:
                    raise ReplicaLags(f"it did not catch up within {self._lag_timeout_s:g} s; verify again once it has")
            time.sleep(_POLL_S)

    def _settled(self, ids: Iterable[int]) -> dict[int, StoredDigest] | None:
        """Read cells from the primary; None if an open transaction has written one of them."""

        def read(connection: Connection) -> dict[int, StoredDigest]:
            sql = select_settled_digests(self._database, ids, mariadb=connection.is_mariadb)
            return digests(connection.rows(sql))

        try:
            return self._shards.run(self._shard, read)
        except ServerTimeout as timeout:
            if timeout.code not in _ROW_LOCKED:
                raise
            return None

    def _wait(self, deadline_s: float) -> _CaughtUp:
        """Wait until the replica has all transactions committed so far, or until the deadline."""
        try:
            position = self._shards.run(self._shard, gtid_position)
        except FeedRefused:
            return _CaughtUp.UNKNOWN

        def wait(connection: Connection) -> bool:
            # A timeout of 0 waits forever.
            return wait_for_gtid(connection, position, max(0.01, min(_WAIT_S, deadline_s - time.monotonic())))

        while not self._shards.run_on(self._replica, self._shard, wait):
            if time.monotonic() >= deadline_s:
                return _CaughtUp.NO
        return _CaughtUp.YES
