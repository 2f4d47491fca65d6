"""How a worker learns of new cells: from the servers' binary logs, and by polling.

Polls read the highest added_id of many shards in one statement. A worker whose servers all send their binary logs
polls rarely, and in the background.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import replace
from typing import NamedTuple

from schemaless.store.followers.background_slot import BackgroundSlot
from schemaless.store.followers.binlog_notifier import BinlogNotifier
from schemaless.store.followers.lease_state import LeaseState
from schemaless.store.followers.leases import Leases
from schemaless.store.followers.membership import Pair, View
from schemaless.store.followers.ownership import Ownership
from schemaless.store.followers.poll_schedule import PollSchedule
from schemaless.store.followers.rows import FollowerRow, FollowerRows, Looked
from schemaless.topology.shards import Shards


class _Snapshot(NamedTuple):
    """State of a lease when a background read began."""

    epoch: int
    reached: int
    state: str
    parked: int


class _BackgroundRead(NamedTuple):
    """Result of a background read: the rows, the leases' state when it began, and its processor time in seconds."""

    looked: Looked
    before: dict[Pair, _Snapshot]
    cpu_s: float

    def row(self, lease: LeaseState) -> FollowerRow | None:
        """Return a row with the changes that the worker has made since the read began."""
        row = self.looked.rows.get(lease.pair)
        if row is None:
            return None
        before = self.before[lease.pair]
        return replace(
            row,
            # A top below a location that had been reached means that cells were lost.
            top=row.top if row.top < before.reached else max(row.top, lease.top),
            state=row.state if lease.state == before.state else lease.state,
            parked=row.parked if lease.parked == before.parked else lease.parked,
        )


class Discovery:
    """Finds out which of a worker's shards have new cells.

    Attributes:
        notifier: reports new cells from the binary logs; None if the worker only polls.
        slot: reads rows in the background.

    Args:
        leases: the worker's leases.
        ownership: reconciles the leases with the rows.
        rows: the follower rows.
        schedule: when to poll.
        shards: the datastore's shards.
        followers: names of the worker's followers.
    """

    def __init__(
        self,
        leases: Leases,
        ownership: Ownership,
        rows: FollowerRows,
        schedule: PollSchedule,
        shards: Shards,
        followers: Collection[str],
    ) -> None:
        self.notifier: BinlogNotifier | None = None
        self.slot: BackgroundSlot[_BackgroundRead] = BackgroundSlot("follower rows")
        self._leases = leases
        self._ownership = ownership
        self._rows = rows
        self._schedule = schedule
        self._shards = shards
        self._followers = followers

    def close(self) -> None:
        """Wait for a background read."""
        self.slot.close()

    def doubt(self) -> None:
        """Suspend all leases until their rows have been read again."""
        self.slot.discard()
        self._ownership.doubt()

    def collect(self) -> None:
        """Apply what the binary logs have reported, and what a background read has found."""
        self._take_notifications()
        read = self.slot.take()
        if read is not None:
            self._apply(read)

    def poll_if_due(self, view: View) -> None:
        """Poll if the schedule says so, the rows have to be read before anything else, or there is no notifier."""
        if self.notifier is None or not self._ownership.reconciled or time.monotonic() >= self._schedule.poll_at_s:
            self.poll(view)

    def poll(self, view: View) -> None:
        """Read the rows, or poll for new cells, whichever is due."""
        unreported = self._listen()
        started_s = time.thread_time()
        outdated = self._ownership.is_outdated(view)
        due = time.monotonic() >= self._schedule.read_at_s
        if outdated or (due and (unreported or self._ownership.needs_rows)):
            self._ownership.reconcile(view)
        elif unreported:
            self._poll_shards(unreported)
        elif due and not self.slot.busy:
            self._begin_read()
        else:
            due = False
        self._schedule.polled(time.thread_time() - started_s, rows=outdated or due, notified=not unreported)

    def _take_notifications(self) -> None:
        if self.notifier is None:
            return
        tops, poll = self.notifier.take()
        if poll:
            self._schedule.poll_now()
        for shard, added_id in tops.items():
            self._leases.notify(((name, shard) for name in self._followers), added_id)

    def _listen(self) -> set[int]:
        """Listen to the primaries of the worker's shards; return the shards whose binary log is not available."""
        shards = {shard for _, shard in self._leases.held}
        if self.notifier is None:
            return shards
        nodes = {shard: self._shards.node_of(shard) for shard in shards}
        self.notifier.listen(nodes.values())
        return {shard for shard, node in nodes.items() if not self.notifier.is_listening(node)}

    def _poll_shards(self, shards: set[int]) -> None:
        tops, failed = self._rows.tops(shards)
        for lease in list(self._leases.held.values()):
            shard = lease.pair[1]
            if shard in failed:
                lease.fail(failed[shard])
            else:
                self._leases.update_top(lease, tops.get(shard, lease.top))

    def _begin_read(self) -> None:
        before = {
            pair: _Snapshot(lease.epoch, lease.reached, lease.state, lease.parked)
            for pair, lease in self._leases.held.items()
        }

        def read() -> _BackgroundRead:
            started_s = time.thread_time()
            looked = self._rows.look(before)
            return _BackgroundRead(looked, before, time.thread_time() - started_s)

        self.slot.begin(read)

    def _apply(self, read: _BackgroundRead) -> None:
        for pair, before in read.before.items():
            lease = self._leases.held.get(pair)
            if lease is not None and lease.epoch == before.epoch:
                self._ownership.compare(lease, read.row(lease), read.looked.failed.get(pair[1]))
        self._schedule.read_in_background(read.cpu_s)
