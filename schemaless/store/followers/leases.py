"""The leases that a worker holds on shards: claiming them, losing them, releasing them.

A worker may not know whether a row names it as the owner: the reply to a claim may have been lost, or a move may have
raised the epoch and kept the name. Until it has read the row again, the pair of follower and shard is in doubt. Other
workers leave a live worker's rows alone.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from typing import Final

from schemaless.errors import SchemalessError
from schemaless.store.followers.batches import PAGE_CELLS
from schemaless.store.followers.black_box import BlackBox
from schemaless.store.followers.lease_state import LeaseState
from schemaless.store.followers.membership import Pair, View
from schemaless.store.followers.rows import FollowerRow, FollowerRows
from schemaless.store.followers.states import DIED

_log = logging.getLogger("schemaless")

_INVISIBLE_S: Final = 10.0
"""Time that a cell may take to become visible after the binary log reported it, in seconds."""


class Leases:
    """The leases of one worker.

    Attributes:
        held: the leases by pair.
        unverified: held pairs whose rows have not been read since the worker's membership lapsed.
        doubtful: pairs whose rows may name this worker without its knowing.
        backlog: pairs with cells to process, now or later.
        generation: generation of the membership for which the leases are valid.
        notified: number of times that the binary log reported new cells in a shard.
        polled: number of times that polling found new cells in a shard.

    Args:
        worker: name of the worker.
        rows: the follower rows.
        box: records that the worker has claimed a shard.
    """

    def __init__(self, worker: str, rows: FollowerRows, box: BlackBox) -> None:
        self.held: dict[Pair, LeaseState] = {}
        self.unverified: set[Pair] = set()
        self.doubtful: set[Pair] = set()
        self.backlog: set[Pair] = set()
        self.generation = 0
        self.notified: int = 0
        self.polled: int = 0
        self._worker = worker
        self._rows = rows
        self._box = box

    def holds(self, lease: LeaseState) -> bool:
        """Return whether the worker still holds this very lease."""
        return self.held.get(lease.pair) is lease

    def claim(self, view: View, pair: Pair, row: FollowerRow) -> None:
        """Claim a pair if its row is still as it was read."""
        self._box.claim()
        try:
            epoch = self._rows.claim(pair, self._worker, row)
            if epoch is None:
                return
            # The previous owner may have moved its location until it lost the lease.
            now = self._rows.look([pair]).rows.get(pair)
        except SchemalessError as error:
            # The claim may have succeeded.
            self.doubtful.add(pair)
            _log.warning("%s: cannot claim shard %d: %s", pair[0], pair[1], error)
            return
        self.doubtful.discard(pair)
        self.unverified.discard(pair)
        if now is None or now.epoch != epoch:
            return
        dead = row.worker is not None and view.member(row.worker) is None
        careful = PAGE_CELLS if dead or now.quarantined else 0
        lease = LeaseState(pair, epoch, now.location, now.location, now.top, now.attempts, careful)
        lease.state, lease.parked, lease.replays = now.state, now.parked, now.replays
        lease.last_event, lease.erased_event = now.last_event, now.erased_event
        lease.death = now.message if now.message is not None and now.message.startswith(DIED) else None
        if now.retry_s is not None and now.retry_s > 0:
            lease.defer(now.retry_s, now.message or "")
        self.held[pair] = lease
        self.backlog.add(pair)

    def lose(self, pair: Pair) -> None:
        """Drop a lease whose row has another epoch. Its pair is doubtful: a row that moved still names this worker."""
        self.held.pop(pair, None)
        self.doubtful.add(pair)

    def release(self, pair: Pair) -> None:
        """Release a lease if its location is recorded; keep it if the server fails."""
        lease = self.held.get(pair)
        if lease is not None and lease.location == lease.reached and self.release_row(pair, lease.epoch):
            del self.held[pair]

    def release_row(self, pair: Pair, epoch: int) -> bool:
        """Release a row; return False if its server fails."""
        try:
            self._rows.release(pair, epoch)
        except SchemalessError as error:
            _log.warning("%s: cannot release shard %d: %s", pair[0], pair[1], error)
            return False
        return True

    def notify(self, pairs: Iterable[Pair], added_id: int) -> None:
        """Record that the binary log reported a cell."""
        for pair in pairs:
            lease = self.held.get(pair)
            if lease is not None and lease.notify(added_id):
                self.notified += 1
                self.backlog.add(pair)

    def update_top(self, lease: LeaseState, top: int) -> None:
        """Record the highest added_id that a read found."""
        self.polled += top > lease.top
        # A cell that the binary log has just reported may not be visible yet.
        reported = time.monotonic() < lease.notified_at_s + _INVISIBLE_S
        lease.top = max(top, lease.notified) if reported else top
        if lease.has_work:
            self.backlog.add(lease.pair)
