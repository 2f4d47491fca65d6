"""The leases that a worker holds on shards: how far each has got, what it waits for, and who may hold it.

A lease's fields are changed by its own methods only. Handlers change them by way of ``HandlerContext``.

A worker may not know whether a row names it as the owner: the reply to a claim may have been lost, or a move may have
raised the epoch and kept the name. Until it has read the row again, the pair of follower and shard is in doubt. Other
workers leave a live worker's rows alone.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Final

from schemaless.base.logger import log
from schemaless.errors import SchemalessError, ServerError
from schemaless.store.followers.black_box import BlackBox
from schemaless.store.followers.membership import Pair, View
from schemaless.store.followers.rows import FollowerRow, FollowerRows, Move
from schemaless.store.followers.states import DIED, QUARANTINED, STOPPED
from schemaless.wire.errors import READ_ONLY

PAGE_CELLS: Final = 500
"""Maximum number of cells per page, and of cells that are handled again after a crash."""

MIN_READ_PAUSE_S: Final = 0.001
MAX_READ_PAUSE_S: Final = 0.02
"""Maximum backoff between reads of a shard whose new cells are not visible yet, in seconds."""

_FIRST_BACKOFF_S: Final = 0.1
_MAX_BACKOFF_S: Final = 30.0
"""Maximum backoff after a failure, in seconds; the backoff doubles with each failure."""

_MIN_FAILED_S: Final = 2.0
"""Minimum time before a failed server that answers a poll is tried again, in seconds: other requests may still fail."""

_INVISIBLE_S: Final = 10.0
"""Time that a cell may take to become visible after the binary log reported it, in seconds."""


@dataclass(slots=True)
class Wait:
    """What a shard waits for.

    Attributes:
        failures: number of failures in a row.
        until_s: when to continue, on the monotonic clock.
        reason: why; an empty string if there is no reason to report.
        node: the failed server that the shard waits for; None if it waits for something else.
        began_s: when the wait began, on the monotonic clock.
    """

    failures: int = 0
    until_s: float = 0.0
    reason: str = ""
    node: str | None = None
    began_s: float = -math.inf

    @property
    def is_over(self) -> bool:
        """True if the work may continue."""
        return self.until_s <= time.monotonic()

    def defer(self, seconds: float, reason: str = "", node: str | None = None) -> None:
        """Postpone the work."""
        self.began_s = time.monotonic()
        self.until_s, self.reason, self.node = self.began_s + seconds, reason, node

    def count(self) -> float:
        """Count a failure; return how long to postpone the work, twice as long as before, in seconds."""
        self.failures += 1
        return min(_MAX_BACKOFF_S, _FIRST_BACKOFF_S * float(2 ** min(self.failures - 1, 20)))


@dataclass(slots=True)
class Lease:
    """The lease that a worker holds on a shard, for one follower.

    Attributes:
        row: the follower's row as this worker claimed it, and has read and changed it since.
        reached: the location up to which cells are handled; the next checkpoint records it.
        top: the highest added_id that is known.
        careful: number of cells still to be handled one at a time, because a previous owner died while it handled them.
        claimed_at_s: when the worker claimed the shard, on the monotonic clock.
        changes: number of changes of the row that the worker has made by itself, except for its location.
        wait: what all work in the shard waits for.
        erasure_wait: what events of erased cells wait for, without delaying new cells.
        stuck: whether the location could not be recorded. No more cells are handled until it is, because each of them
            would be repeated after a crash.
        notified: the highest added_id that the binary log reported.
        notified_at_s: when it was reported, on the monotonic clock.
        pause_s: current backoff, in seconds, between reads that return nothing, as happens during an open transaction.
        next_read_s: when to read again, on the monotonic clock.
    """

    pair: Pair
    row: FollowerRow
    reached: int
    top: int
    careful: int = 0
    claimed_at_s: float = field(default_factory=time.monotonic)
    changes: int = 0
    wait: Wait = field(default_factory=Wait)
    erasure_wait: Wait = field(default_factory=Wait)
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
        return self.row.replays > 0 or self.has_erasures or (self.row.state != STOPPED and self.top != self.reached)

    @property
    def has_erasures(self) -> bool:
        """True if events of erased cells are to be handled now."""
        return self.row.erased_event < self.row.last_event and self.erasure_wait.is_over

    @property
    def is_free(self) -> bool:
        """True if nothing keeps the shard from continuing."""
        return not self.stuck and self.wait.is_over

    @property
    def move(self) -> Move:
        """The location to record."""
        return Move(self.pair, self.row.epoch, self.reached)

    @property
    def is_recorded(self) -> bool:
        """True if the row has the location that was reached."""
        return self.row.location == self.reached

    @property
    def death(self) -> str | None:
        """Message about the death of the worker that made the last attempt; None if it did not die."""
        message = self.row.message
        return message if message is not None and message.startswith(DIED) else None

    def has_outlived_quarantine(self, probation_s: float) -> bool:
        """Return whether no worker has died during a page of cells, or during an idle time of ``probation_s``."""
        if self.row.state != QUARANTINED or self.row.replays:
            return False
        return self.careful == 0 or (not self.has_work and time.monotonic() - self.claimed_at_s > probation_s)

    # What was found out about the shard

    def refresh(self, row: FollowerRow) -> None:
        """Take over what the row says, which has the lease's epoch."""
        before = self.row
        last_event = max(before.last_event, row.last_event)
        self.row = replace(before, parked=row.parked, replays=row.replays, last_event=last_event)
        if before.state != row.state:
            self.row = replace(self.row, state=row.state, attempts=row.attempts, message=row.message)
            if row.state == QUARANTINED:
                self.careful = PAGE_CELLS
            if row.state != STOPPED:
                self.wait.defer(0)

    def notify(self, added_id: int) -> bool:
        """Process the binary log's report of a cell; return True if its added_id is above all known ones."""
        # A read may have returned nothing because of the transaction that has just committed.
        self.next_read_s = -math.inf
        if added_id <= self.top:
            return False
        self.top = self.notified = added_id
        self.notified_at_s = time.monotonic()
        return True

    def find_top(self, top: int) -> None:
        """Process the highest added_id that a poll found."""
        # A cell that the binary log has just reported may not be visible yet.
        reported = time.monotonic() < self.notified_at_s + _INVISIBLE_S
        self.top = max(top, self.notified) if reported else top

    def discount_read(self, *, progress: bool) -> None:
        """Schedule the next read: after a backoff if there are known cells that could not be read yet."""
        if progress or not self.has_work:
            self.pause_s = 0.0
        else:
            self.pause_s = min(MAX_READ_PAUSE_S, max(MIN_READ_PAUSE_S, self.pause_s * 2))
        self.next_read_s = time.monotonic() + self.pause_s

    def reach_end(self) -> None:
        """Note that the shard has no further cells: a dead owner cannot have been beyond its end."""
        # A quarantined shard may receive more cells that kill.
        self.careful = self.careful if self.row.state == QUARANTINED else 0

    # What was handled

    def advance(self, location: int, cells: int) -> None:
        """Move past handled cells."""
        self.reached = max(self.reached, location)
        self.top = max(self.top, self.reached)
        if cells and self.row.attempts:
            self.row = replace(self.row, attempts=0)

    def survive(self) -> None:
        """Note that a cell was handled with care and did not kill the worker."""
        self.careful = max(0, self.careful - 1)

    def trust(self) -> None:
        """Handle no cell with care: to repeat one does no harm."""
        self.careful = 0

    def attempt(self, attempts: int, message: str | None) -> None:
        """Note that the row has the location, and this number of attempts at the next cell."""
        self.row = replace(self.row, attempts=attempts, message=message)
        self.record(self.reached)

    def park(self, added_id: int) -> None:
        """Note that the next cell was parked and the location moved past it."""
        self.row = replace(self.row, parked=self.row.parked + 1)
        self.changes += 1
        self.advance(added_id, 1)
        self.survive()
        self.record(added_id)

    def stop(self) -> None:
        """Note that the follower has stopped before the next cell."""
        self.row = replace(self.row, state=STOPPED)
        self.changes += 1
        self.record(self.reached)

    def replay(self, cells: int) -> None:
        """Note that parked cells were tried again; 0 if none were left."""
        self.row = replace(self.row, replays=max(0, self.row.replays - cells) if cells else 0)

    def acknowledge(self, event_id: int) -> None:
        """Note that all events of erased cells up to this one were handled and recorded."""
        self.row = replace(self.row, erased_event=event_id)
        self.erasure_wait = Wait()

    def forget_events(self) -> None:
        """Note that the log of erased cells has no further events."""
        self.row = replace(self.row, last_event=self.row.erased_event)

    # Locations and failures

    def record(self, location: int) -> None:
        """Note that the row has a location."""
        self.row = replace(self.row, location=max(self.row.location, location))
        if self.stuck:
            self.stuck, self.wait = False, Wait()

    def fail_to_record(self, error: SchemalessError) -> None:
        """Handle no more cells until the location could be recorded."""
        self.stuck = True
        self.fail(error)

    def fail(self, error: SchemalessError) -> None:
        """Back off after a failure of the server, at most until it answers again."""
        node = error.node if isinstance(error, ServerError) and error.retryable else None
        if isinstance(error, ServerError) and error.code in READ_ONLY:
            # It answers, which must not end the wait.
            node = None
        if node is not None and node == self.wait.node and not self.wait.is_over:
            # A poll has failed for the same reason.
            return
        wait_s = self.wait.count()
        self.wait.defer(wait_s, str(error), node)
        if self.wait.failures == 1 or wait_s == _MAX_BACKOFF_S:
            log.warning("%s waits in shard %d: %s", *self.pair, error)

    def defer(self, seconds: float, reason: str) -> None:
        """Postpone all work in the shard."""
        self.wait.defer(seconds, reason)

    def count_failure(self) -> float:
        """Count a failure that says nothing about the shard's server; return how long to wait, in seconds."""
        return self.wait.count()

    def succeed(self) -> None:
        """Begin again with the shortest backoff."""
        self.wait.failures = 0

    def retry_erasures(self, reason: str) -> None:
        """Back off after a failure to handle erased cells, without delaying new cells."""
        self.erasure_wait.defer(self.erasure_wait.count(), reason)
        log.warning("%s could not handle the erased cells of shard %d yet, and will try again: %s", *self.pair, reason)


@dataclass(slots=True)
class Leases:
    """The leases of one worker.

    Attributes:
        worker: name of the worker.
        rows: the follower rows.
        box: records that the worker has claimed a shard.
        held: the leases by pair.
        unverified: held pairs whose rows have not been read since the worker's membership lapsed.
        doubtful: pairs whose rows may name this worker without its knowing.
        backlog: pairs with cells to process, now or later.
        generation: generation of the membership for which the leases are valid.
        notified: number of times that the binary log reported new cells in a shard.
        polled: number of times that polling found new cells in a shard.
    """

    worker: str
    rows: FollowerRows
    box: BlackBox
    held: dict[Pair, Lease] = field(default_factory=dict)
    unverified: set[Pair] = field(default_factory=set)
    doubtful: set[Pair] = field(default_factory=set)
    backlog: set[Pair] = field(default_factory=set)
    generation: int = 0
    notified: int = 0
    polled: int = 0

    def holds(self, lease: Lease) -> bool:
        """Return whether the worker still holds this very lease."""
        return self.held.get(lease.pair) is lease

    def claim(self, view: View, pair: Pair, row: FollowerRow) -> None:
        """Claim a pair if its row is still as it was read."""
        self.box.claim()
        try:
            epoch = self.rows.claim(pair, self.worker, row)
            if epoch is None:
                return
            # The previous owner may have moved its location until it lost the lease.
            now = self.rows.look([pair]).rows.get(pair)
        except SchemalessError as error:
            # The claim may have succeeded.
            self.doubtful.add(pair)
            log.warning("%s: cannot claim shard %d: %s", pair[0], pair[1], error)
            return
        self.doubtful.discard(pair)
        self.unverified.discard(pair)
        if now is None or now.epoch != epoch:
            return
        dead = row.worker is not None and view.member(row.worker) is None
        lease = Lease(pair, now, now.location, now.top, PAGE_CELLS if dead or now.quarantined else 0)
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
        if lease is not None and lease.is_recorded and self.release_row(pair, lease.row.epoch):
            del self.held[pair]

    def release_row(self, pair: Pair, epoch: int) -> bool:
        """Release a row; return False if its server fails."""
        try:
            self.rows.release(pair, epoch)
        except SchemalessError as error:
            log.warning("%s: cannot release shard %d: %s", pair[0], pair[1], error)
            return False
        return True

    def notify(self, pairs: Iterable[Pair], added_id: int) -> None:
        """Record that the binary log reported a cell."""
        for pair in pairs:
            lease = self.held.get(pair)
            if lease is not None and lease.notify(added_id):
                self.notified += 1
                self.backlog.add(pair)

    def update_top(self, lease: Lease, top: int) -> None:
        """Record the highest added_id that a read found."""
        self.polled += top > lease.top
        lease.find_top(top)
        if lease.has_work:
            self.backlog.add(lease.pair)

    def resume(self, primaries: Iterable[str]) -> None:
        """End the backoff of shards whose server answers again, or is no longer one of the primaries."""
        tried_s = time.monotonic() - _MIN_FAILED_S
        if answered := self.rows.take_answered():
            failed = set(primaries) - answered
            for wait in (lease.wait for lease in self.held.values()):
                if wait.node is not None and wait.node not in failed and wait.began_s <= tried_s:
                    wait.defer(0)
