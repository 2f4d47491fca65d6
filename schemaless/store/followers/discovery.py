"""How a worker learns of new cells: from the servers' binary logs, and by polling.

Polls read the highest added_id of many shards in one statement. A worker whose servers all send their binary logs
polls rarely, and in the background.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from schemaless.store.followers.background_slot import BackgroundSlot
from schemaless.store.followers.binlog_notifier import BinlogNotifier
from schemaless.store.followers.leases import Lease
from schemaless.store.followers.membership import View
from schemaless.store.followers.ownership import Ownership
from schemaless.store.followers.rows import FollowerRow, Looked
from schemaless.topology.shards import Shards

_POLLING_SHARE: Final = 0.04
"""Share of its time that a worker spends on polling while the binary logs do not report all new cells."""

_NOTIFIED_SHARE: Final = 0.01
"""Share of its time that a worker spends on reading rows while the binary logs report all new cells."""

_MIN_PAUSE_S: Final = 0.02
_MAX_PAUSE_S: Final = 5.0
_MAX_REST_S: Final = 10.0
_CHECK_S: Final = 0.5
"""Interval at which a notified worker checks whether anything else is due, in seconds."""


@dataclass(slots=True)
class PollSchedule:
    """When a worker polls for new cells and reads its rows; both may take only a small share of its time.

    Attributes:
        read_s: minimum interval between reads of the rows, in seconds.
        pause_s: interval between polls, in seconds.
        poll_at_s: when the next poll is due, on the monotonic clock.
        read_at_s: when the next read of the rows is due, on the monotonic clock.
    """

    read_s: float
    pause_s: float = _MIN_PAUSE_S
    poll_at_s: float = 0.0
    read_at_s: float = 0.0

    def polled(self, cpu_s: float, *, rows: bool, notified: bool) -> None:
        """Schedule the next poll and the next read of the rows after a poll.

        Args:
            cpu_s: processor time that the poll took here; the server is assumed to need as much again. Wall-clock time
                would overstate the cost on a busy machine.
            rows: whether the rows were read.
            notified: whether the binary logs report the new cells of all shards.
        """
        cost_s = 2 * cpu_s
        self.pause_s = min(_MAX_PAUSE_S, max(_MIN_PAUSE_S, cost_s / _POLLING_SHARE))
        now_s = time.monotonic()
        if rows:
            rest_s = min(_MAX_REST_S, cost_s / _NOTIFIED_SHARE) if notified else self.pause_s
            self.read_at_s = now_s + max(self.read_s, rest_s)
        self.poll_at_s = now_s + (_CHECK_S if notified else self.pause_s)

    def read_in_background(self, cpu_s: float) -> None:
        """Delay the next read of the rows in proportion to the cost of a background read."""
        self.read_at_s += min(_MAX_REST_S, 2 * cpu_s / _NOTIFIED_SHARE)

    def poll_now(self) -> None:
        """Make the next poll and the next read of the rows due now."""
        self.read_at_s = self.poll_at_s = 0.0


class _Snapshot(NamedTuple):
    """State of a lease when a background read began."""

    lease: Lease
    reached: int
    changes: int

    def row(self, looked: Looked) -> FollowerRow | None:
        """Return the row that was read, with the changes that the worker has made since the read began."""
        lease = self.lease
        row = looked.rows.get(lease.pair)
        if row is None:
            return None
        if lease.changes != self.changes:
            row = replace(row, state=lease.row.state, parked=lease.row.parked)
        # A top below a location that had been reached means that cells were lost.
        return row if row.top < self.reached else replace(row, top=max(row.top, lease.top))


class _BackgroundRead(NamedTuple):
    """Result of a background read: the rows, the leases' state when it began, and its processor time in seconds."""

    looked: Looked
    before: list[_Snapshot]
    cpu_s: float


@dataclass(slots=True)
class Discovery:
    """Finds out which of a worker's shards have new cells.

    Attributes:
        ownership: reconciles the worker's leases with the rows.
        schedule: when to poll.
        shards: the datastore's shards.
        followers: names of the worker's followers.
        notifier: reports new cells from the binary logs; None if the worker only polls.
        slot: reads rows in the background.
    """

    ownership: Ownership
    schedule: PollSchedule
    shards: Shards
    followers: Collection[str]
    notifier: BinlogNotifier | None = None
    slot: BackgroundSlot[_BackgroundRead] = field(default_factory=lambda: BackgroundSlot("follower rows"))

    def doubt(self) -> None:
        """Suspend all leases until their rows have been read again."""
        self.slot.discard()
        self.ownership.doubt()

    def collect(self) -> None:
        """Apply what the binary logs have reported, and what a background read has found."""
        self._take_notifications()
        read = self.slot.take()
        if read is not None:
            self._apply(read)

    def poll_if_due(self, view: View) -> None:
        """Poll if the schedule says so, the rows have to be read before anything else, or there is no notifier."""
        if self.notifier is None or not self.ownership.reconciled or time.monotonic() >= self.schedule.poll_at_s:
            self.poll(view)

    def poll(self, view: View) -> None:
        """Read the rows, or poll for new cells, whichever is due."""
        unreported = self._listen()
        started_s = time.thread_time()
        outdated = self.ownership.is_outdated(view)
        due = time.monotonic() >= self.schedule.read_at_s
        if outdated or (due and (unreported or self.ownership.needs_rows)):
            self.ownership.reconcile(view)
        elif unreported:
            self._poll_shards(unreported)
        elif due and not self.slot.busy:
            self._begin_read()
        else:
            due = False
        self.schedule.polled(time.thread_time() - started_s, rows=outdated or due, notified=not unreported)

    def _take_notifications(self) -> None:
        if self.notifier is None:
            return
        tops, poll = self.notifier.take()
        if poll:
            self.schedule.poll_now()
        for shard, added_id in tops.items():
            self.ownership.leases.notify(((name, shard) for name in self.followers), added_id)

    def _listen(self) -> set[int]:
        """Listen to the primaries of the worker's shards; return the shards whose binary log is not available."""
        shards = {shard for _, shard in self.ownership.leases.held}
        if self.notifier is None:
            return shards
        nodes = {shard: self.shards.node_of(shard) for shard in shards}
        self.notifier.listen(nodes.values())
        return {shard for shard, node in nodes.items() if not self.notifier.is_listening(node)}

    def _poll_shards(self, shards: set[int]) -> None:
        tops, failed = self.ownership.leases.rows.tops(shards)
        for lease in list(self.ownership.leases.held.values()):
            shard = lease.pair[1]
            if shard in failed:
                lease.fail(failed[shard])
            else:
                self.ownership.leases.update_top(lease, tops.get(shard, lease.top))

    def _begin_read(self) -> None:
        leases = self.ownership.leases
        before = [_Snapshot(lease, lease.reached, lease.changes) for lease in leases.held.values()]

        def read() -> _BackgroundRead:
            started_s = time.thread_time()
            looked = leases.rows.look(snapshot.lease.pair for snapshot in before)
            return _BackgroundRead(looked, before, time.thread_time() - started_s)

        self.slot.begin(read)

    def _apply(self, read: _BackgroundRead) -> None:
        for before in read.before:
            if self.ownership.leases.holds(before.lease):
                failure = read.looked.failed.get(before.lease.pair[1])
                self.ownership.compare(before.lease, before.row(read.looked), failure)
        self.schedule.read_in_background(read.cpu_s)
