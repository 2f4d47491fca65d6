"""The state of one lease: how far a follower has got in a shard, and what it is waiting for."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from schemaless.errors import SchemalessError, ServerError
from schemaless.store.followers.membership import Pair
from schemaless.store.followers.parked import Move
from schemaless.store.followers.states import RUNNING, STOPPED

MIN_READ_PAUSE_S: Final = 0.001
MAX_READ_PAUSE_S: Final = 0.02
"""Maximum backoff between reads of a shard whose new cells are not visible yet, in seconds."""

_FIRST_BACKOFF_S: Final = 0.1
_MAX_BACKOFF_S: Final = 30.0
"""Maximum backoff after a failure, in seconds; the backoff doubles with each failure."""

_MIN_FAILED_S: Final = 2.0
"""Minimum time before a failed server that answers a poll is tried again, in seconds: other requests may still fail."""

_log = logging.getLogger("schemaless")


@dataclass(slots=True)
class LeaseState:
    """The lease that a worker holds on a shard, for one follower.

    Attributes:
        epoch: fencing token; every change of the row requires it.
        location: the location recorded in the row.
        reached: the location up to which cells are handled; the next checkpoint records it.
        top: the highest added_id that is known.
        attempts: number of attempts at the first cell after ``location``.
        careful: number of cells still to be handled one at a time, because a previous owner died while it handled them.
        state: running, quarantined, or stopped.
        death: message about the death of the worker that made the last attempt; None if it did not die.
        claimed_at_s: when the worker claimed the shard, on the monotonic clock.
        parked: number of parked cells.
        replays: number of parked cells to try again.
        last_event: the last known event of the shard's log of erased cells.
        erased_event: the last one that was handled and recorded.
        erasures_at_s: when to handle events, on the monotonic clock; in the future after a failure.
        erasure_failures: number of consecutive failures to handle events.
        erasures_error: error of the last one.
        deferred_until_s: when to continue, on the monotonic clock.
        reason: why the shard waits.
        failed_node: the failed server that the shard waits for; None if it waits for something else.
        failed_at_s: when that server was last tried, on the monotonic clock.
        failures: number of failures in a row.
        stuck: whether the location could not be recorded. No more cells are handled until it is, because each of them
            would be repeated after a crash.
        notified: the highest added_id that the binary log reported.
        notified_at_s: when it was reported, on the monotonic clock.
        pause_s: current backoff, in seconds, between reads that return nothing, as happens during an open transaction.
        next_read_s: when to read again, on the monotonic clock.
    """

    pair: Pair
    epoch: int
    location: int
    reached: int
    top: int
    attempts: int = 0
    careful: int = 0
    state: str = RUNNING
    death: str | None = None
    claimed_at_s: float = field(default_factory=time.monotonic)
    parked: int = 0
    replays: int = 0
    last_event: int = 0
    erased_event: int = 0
    erasures_at_s: float = -math.inf
    erasure_failures: int = 0
    erasures_error: str = ""
    deferred_until_s: float = 0.0
    reason: str | None = None
    failed_node: str | None = None
    failed_at_s: float = -math.inf
    failures: int = 0
    stuck: bool = False
    notified: int = 0
    notified_at_s: float = -math.inf
    pause_s: float = 0.0
    next_read_s: float = -math.inf

    @property
    def lag(self) -> int:
        """Number of added_ids between ``reached`` and ``top``."""
        return self.top - self.reached

    @property
    def has_work(self) -> bool:
        """True if there are cells to handle, now or later."""
        return self.replays > 0 or self.has_erasures or (self.state != STOPPED and self.top != self.reached)

    @property
    def has_erasures(self) -> bool:
        """True if events of erased cells are to be handled now."""
        return self.erased_event < self.last_event and self.erasures_at_s <= time.monotonic()

    def retry_erasures(self, reason: str) -> None:
        """Back off after a failure to handle erased cells, without delaying new cells."""
        self.erasure_failures += 1
        self.erasures_error = reason
        wait_s = min(_MAX_BACKOFF_S, _FIRST_BACKOFF_S * 2 ** min(self.erasure_failures - 1, 20))
        _log.warning("%s could not handle the erased cells of shard %d yet, and will try again: %s", *self.pair, reason)
        self.erasures_at_s = time.monotonic() + wait_s

    @property
    def is_due(self) -> bool:
        """True unless work in the shard is still deferred."""
        return self.deferred_until_s <= time.monotonic()

    @property
    def is_free(self) -> bool:
        """True if nothing keeps the shard from continuing."""
        return not self.stuck and self.is_due

    @property
    def move(self) -> Move:
        """The location to record."""
        return Move(self.pair, self.epoch, self.reached)

    def recorded(self, location: int) -> None:
        """Mark a location as recorded by a checkpoint."""
        self.location = max(self.location, location)
        if self.stuck:
            self.stuck, self.failures = False, 0
            self.defer(0, "")

    def notify(self, added_id: int) -> bool:
        """Process the binary log's report of a cell; return True if its added_id is above all known ones."""
        # A read may have returned nothing because of the transaction that has just committed.
        self.next_read_s = -math.inf
        if added_id <= self.top:
            return False
        self.top = self.notified = added_id
        self.notified_at_s = time.monotonic()
        return True

    def discount_read(self, *, progress: bool) -> None:
        """Schedule the next read: after a backoff if there are known cells that could not be read yet."""
        if progress or not self.has_work:
            self.pause_s = 0.0
        else:
            self.pause_s = min(MAX_READ_PAUSE_S, max(MIN_READ_PAUSE_S, self.pause_s * 2))
        self.next_read_s = time.monotonic() + self.pause_s

    def fail(self, error: SchemalessError) -> None:
        """Back off after a failure of the server, at most until it answers again."""
        node = error.node if isinstance(error, ServerError) and error.retryable else None
        if node is not None and node == self.failed_node and not self.is_due:
            # A poll has failed for the same reason.
            return
        self.failures += 1
        wait_s = min(_MAX_BACKOFF_S, _FIRST_BACKOFF_S * 2 ** min(self.failures - 1, 20))
        if self.failures == 1 or wait_s == _MAX_BACKOFF_S:
            _log.warning("%s waits in shard %d: %s", *self.pair, error)
        self.defer(wait_s, str(error))
        self.failed_node, self.failed_at_s = node, time.monotonic()

    def defer(self, seconds: float, reason: str) -> None:
        """Postpone all work in the shard."""
        self.deferred_until_s = time.monotonic() + seconds
        self.reason = reason
        self.failed_node = None


def resume_answering(leases: Iterable[LeaseState], answers: Callable[[str], bool]) -> None:
    """End the backoff of shards whose server answers again."""
    tried_s = time.monotonic() - _MIN_FAILED_S
    for lease in leases:
        if lease.failed_node is not None and lease.failed_at_s <= tried_s and answers(lease.failed_node):
            lease.defer(0, "")
