"""Brings a worker's leases in line with the follower rows and with its assignments."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace

from schemaless.errors import SchemalessError
from schemaless.store.followers.assignments import Assignments
from schemaless.store.followers.batches import PAGE_CELLS
from schemaless.store.followers.black_box import BlackBox
from schemaless.store.followers.checkpoints import Checkpoints
from schemaless.store.followers.lease_state import LeaseState
from schemaless.store.followers.leases import Leases
from schemaless.store.followers.membership import HEALTHY, QUARANTINE, Member, Pair, Role, View
from schemaless.store.followers.poll_schedule import PollSchedule
from schemaless.store.followers.rows import FollowerRow, FollowerRows, Looked
from schemaless.store.followers.states import DIED, QUARANTINED, RUNNING, STOPPED

_log = logging.getLogger("schemaless")


class Ownership:
    """Decides which shards a worker claims, keeps and releases.

    Args:
        worker: name of the worker.
        role: which shards it serves.
        leases: its leases.
        rows: the follower rows.
        assignments: the shards assigned to it.
        checkpoints: records locations before leases are released.
        schedule: brings the next read of the rows forward.
        box: tells the supervisor how many shards are healthy and how many are quarantined.
        probation_s: time after which a claimed quarantined shard that has no cells left counts as healthy again, in
            seconds.
    """

    def __init__(
        self,
        worker: str,
        role: Role,
        leases: Leases,
        rows: FollowerRows,
        assignments: Assignments,
        checkpoints: Checkpoints,
        schedule: PollSchedule,
        box: BlackBox,
        probation_s: float,
    ) -> None:
        self._worker = worker
        self._role = role
        self._leases = leases
        self._rows = rows
        self._assignments = assignments
        self._checkpoints = checkpoints
        self._schedule = schedule
        self._box = box
        self._probation_s = probation_s
        # As of the last reconciliation: the pairs to hold, and the assigned pairs that are quarantined.
        self._due: frozenset[Pair] = frozenset()
        self._quarantined: frozenset[Pair] = frozenset()
        # The membership that the last reconciliation used; None forces another one.
        self._reconciled: tuple[tuple[Member, ...], Mapping[str, str]] | None = None

    @property
    def reconciled(self) -> bool:
        """False if the rows have to be read before anything else."""
        return self._reconciled is not None

    @property
    def needs_rows(self) -> bool:
        """True if quarantined shards concern this worker: only the follower rows show which shards are quarantined."""
        return bool(self._quarantined) or self._role == QUARANTINE

    def is_outdated(self, view: View) -> bool:
        """Return whether leases or membership have changed since the last reconciliation."""
        leases = self._leases
        changed = bool(leases.doubtful or leases.unverified) or leases.held.keys() != self._due
        return changed or self._reconciled != (view.members, view.desired_states)

    def doubt(self) -> None:
        """Suspend all leases until their rows have been read again: another worker may have claimed them."""
        self._reconciled = None
        self._leases.unverified |= self._leases.held.keys()

    def reconcile(self, view: View) -> None:
        """Read the rows, and drop, release and claim leases accordingly."""
        leases, assigned = self._leases, self._assignments.of(view)
        every = assigned.healthy | assigned.quarantined
        looked = self._rows.look(every | leases.held.keys() | leases.doubtful)
        for pair in list(leases.held):
            self.compare(leases.held[pair], looked.rows.get(pair), looked.failed.get(pair[1]))
        self._quarantine(view, assigned.healthy, looked.rows)
        quarantined = {pair for pair, row in looked.rows.items() if row.quarantined}
        # A shard without a row, or that cannot be read, keeps its owner.
        kept = {pair for pair in assigned.quarantined & leases.held.keys() if pair not in looked.rows}
        pairs = (assigned.healthy - quarantined) | (assigned.quarantined & quarantined) | kept
        self._due, self._quarantined = pairs, every & quarantined
        self._box.found(len(pairs - quarantined), len(self._quarantined))
        surplus = [pair for pair in leases.held if pair not in pairs]
        if surplus:
            self._checkpoints.write()
            for pair in surplus:
                leases.release(pair)
        for pair in pairs - leases.held.keys():
            row = looked.rows.get(pair)
            if row is not None and (row.worker == self._worker or view.is_free(pair, row.worker)):
                leases.claim(view, pair, row)
        self._settle_doubts(pairs, looked)
        leases.unverified &= leases.held.keys()
        self._reconciled = view.members, view.desired_states

    def _settle_doubts(self, pairs: frozenset[Pair], looked: Looked) -> None:
        """Release rows that name this worker although it has no lease there: other workers would never claim them."""
        leases = self._leases
        for pair in leases.doubtful - leases.held.keys():
            row = looked.rows.get(pair)
            settled = (
                row is None or row.worker != self._worker or (pair not in pairs and leases.release_row(pair, row.epoch))
            )
            if settled and pair[1] not in looked.failed:
                leases.doubtful.discard(pair)

    def compare(self, lease: LeaseState, row: FollowerRow | None, failure: SchemalessError | None) -> None:
        """Update a lease from its row; drop it if the row has another epoch."""
        if failure is not None:
            lease.fail(failure)
            return
        self._leases.unverified.discard(lease.pair)
        if row is None or row.epoch != lease.epoch:
            self._leases.lose(lease.pair)
            return
        lease.parked, lease.replays = row.parked, row.replays
        lease.last_event = max(lease.last_event, row.last_event)
        self._leases.update_top(lease, row.top)
        if row.quarantined and self._role == HEALTHY:
            # The next reconciliation releases it.
            self._reconciled = None
        if lease.state != row.state:
            lease.state, lease.attempts = row.state, row.attempts
            if row.state == QUARANTINED:
                lease.careful = PAGE_CELLS
            if row.state != STOPPED:
                lease.defer(0, "")

    def _quarantine(self, view: View, pairs: Iterable[Pair], rows: dict[Pair, FollowerRow]) -> None:
        """Quarantine shards whose dead owner was in a call that may have killed it.

        The owner's supervisor usually does that, but it may have died as well. Without this, the same cell would kill
        the next worker.
        """
        if self._role != HEALTHY:
            return
        for pair in pairs:
            row = rows.get(pair)
            if row is None or row.worker in (None, self._worker) or view.member(row.worker) is not None:
                continue
            if row.state == RUNNING and row.attempts and (row.message or "").startswith(DIED):
                try:
                    if self._rows.quarantine(pair, row.epoch, row.message or DIED, 0.0):
                        rows[pair] = replace(row, state=QUARANTINED, worker=None, epoch=row.epoch + 1)
                except SchemalessError as error:
                    _log.warning("%s: cannot quarantine shard %d: %s", *pair, error)

    def end_quarantines(self) -> None:
        """Release shards that count as healthy again: no worker has died during a page of cells or an idle period."""
        held = self._leases.held
        for lease in [each for each in held.values() if each.state == QUARANTINED and not each.replays]:
            proven = lease.careful == 0
            idle = not lease.has_work and time.monotonic() - lease.claimed_at_s > self._probation_s
            if not (proven or idle):
                continue
            self._checkpoints.write()
            if lease.location != lease.reached or not self._leases.holds(lease):
                continue
            try:
                self._rows.end_quarantine(lease.pair, lease.epoch)
            except SchemalessError as error:
                lease.fail(error)
                continue
            _log.warning("%s: shard %d is no longer quarantined", *lease.pair)
            del held[lease.pair]
            self._schedule.poll_now()
            self._reconciled = None
