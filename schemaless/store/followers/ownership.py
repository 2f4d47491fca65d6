"""Brings a worker's leases in line with the follower rows and with its assignments."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from schemaless.base.logger import log
from schemaless.errors import SchemalessError
from schemaless.store.followers.checkpoints import Checkpoints
from schemaless.store.followers.leases import Lease, Leases
from schemaless.store.followers.membership import HEALTHY, QUARANTINE, Assigned, Member, Pair, View
from schemaless.store.followers.rows import FollowerRow, Looked
from schemaless.store.followers.states import DIED, QUARANTINED, RUNNING


@dataclass(slots=True)
class Ownership:
    """Decides which shards a worker claims, keeps and releases.

    Attributes:
        me: the worker.
        shard_count: number of shards of the datastore.
        leases: the worker's leases.
        checkpoints: records locations before leases are released.
        probation_s: time after which a claimed quarantined shard that has no cells left counts as healthy again, in
            seconds.
    """

    me: Member
    shard_count: int
    leases: Leases
    checkpoints: Checkpoints
    probation_s: float
    # As of the last reconciliation: the pairs to hold, and the assigned pairs that are quarantined.
    _due: frozenset[Pair] = frozenset()
    _quarantined: frozenset[Pair] = frozenset()
    # The membership that the last reconciliation used; None forces another one.
    _reconciled: View | None = None
    _assigned: tuple[View, Assigned] | None = None

    @property
    def reconciled(self) -> bool:
        """False if the rows have to be read before anything else."""
        return self._reconciled is not None

    @property
    def needs_rows(self) -> bool:
        """True if quarantined shards concern this worker: only the follower rows show which shards are quarantined."""
        return bool(self._quarantined) or self.me.role == QUARANTINE

    def is_outdated(self, view: View) -> bool:
        """Return whether leases or membership have changed since the last reconciliation."""
        leases = self.leases
        changed = bool(leases.doubtful or leases.unverified) or leases.held.keys() != self._due
        return changed or self._reconciled != view

    def doubt(self) -> None:
        """Suspend all leases until their rows have been read again: another worker may have claimed them."""
        self._reconciled = None
        self.leases.unverified |= self.leases.held.keys()

    def assigned(self, view: View) -> Assigned:
        """Return the pairs that are assigned to the worker; computed again if members or followers change."""
        if self._assigned is None or self._assigned[0] != view:
            self._assigned = view, view.assigned(self.me, self.shard_count)
        return self._assigned[1]

    def reconcile(self, view: View) -> None:
        """Read the rows, and drop, release and claim leases accordingly."""
        leases, assigned = self.leases, self.assigned(view)
        every = assigned.healthy | assigned.quarantined
        looked = self.leases.rows.look(every | leases.held.keys() | leases.doubtful)
        for pair in list(leases.held):
            self.compare(leases.held[pair], looked.rows.get(pair), looked.failed.get(pair[1]))
        self._quarantine(view, assigned.healthy, looked.rows)
        quarantined = {pair for pair, row in looked.rows.items() if row.quarantined}
        # A shard without a row, or that cannot be read, keeps its owner.
        kept = {pair for pair in assigned.quarantined & leases.held.keys() if pair not in looked.rows}
        pairs = (assigned.healthy - quarantined) | (assigned.quarantined & quarantined) | kept
        self._due, self._quarantined = pairs, every & quarantined
        self.leases.box.found(len(pairs - quarantined), len(self._quarantined))
        surplus = [pair for pair in leases.held if pair not in pairs]
        if surplus:
            self.checkpoints.write()
            for pair in surplus:
                leases.release(pair)
        for pair in pairs - leases.held.keys():
            row = looked.rows.get(pair)
            if row is not None and (row.worker == self.me.worker or view.is_free(pair, row.worker)):
                leases.claim(view, pair, row)
        self._settle_doubts(pairs, looked)
        leases.unverified &= leases.held.keys()
        self._reconciled = view

    def _settle_doubts(self, pairs: frozenset[Pair], looked: Looked) -> None:
        """Release rows that name this worker although it has no lease there: other workers would never claim them."""
        leases = self.leases
        for pair in leases.doubtful - leases.held.keys():
            row = looked.rows.get(pair)
            settled = (
                row is None
                or row.worker != self.me.worker
                or (pair not in pairs and leases.release_row(pair, row.epoch))
            )
            if settled and pair[1] not in looked.failed:
                leases.doubtful.discard(pair)

    def compare(self, lease: Lease, row: FollowerRow | None, failure: SchemalessError | None) -> None:
        """Update a lease from its row; drop it if the row has another epoch."""
        if failure is not None:
            lease.fail(failure)
            return
        self.leases.unverified.discard(lease.pair)
        if row is None or row.epoch != lease.row.epoch:
            self.leases.lose(lease.pair)
            return
        lease.refresh(row)
        self.leases.update_top(lease, row.top)
        if row.quarantined and self.me.role == HEALTHY:
            # The next reconciliation releases it.
            self._reconciled = None

    def _quarantine(self, view: View, pairs: Iterable[Pair], rows: dict[Pair, FollowerRow]) -> None:
        """Quarantine shards whose dead owner was in a call that may have killed it.

        The owner's supervisor usually does that, but it may have died as well. Without this, the same cell would kill
        the next worker.
        """
        if self.me.role != HEALTHY:
            return
        for pair in pairs:
            row = rows.get(pair)
            if row is None or row.worker in (None, self.me.worker) or view.member(row.worker) is not None:
                continue
            if row.state == RUNNING and row.attempts and (row.message or "").startswith(DIED):
                try:
                    if self.leases.rows.quarantine(pair, row.epoch, row.message or DIED, 0.0):
                        rows[pair] = replace(row, state=QUARANTINED, worker=None, epoch=row.epoch + 1)
                except SchemalessError as error:
                    log.warning("%s: cannot quarantine shard %d: %s", *pair, error)

    def end_quarantines(self) -> bool:
        """Release shards that count as healthy again; return True if there were any."""
        ended = False
        for lease in list(self.leases.held.values()):
            if not lease.has_outlived_quarantine(self.probation_s):
                continue
            self.checkpoints.write()
            if not lease.is_recorded or not self.leases.holds(lease):
                continue
            try:
                self.leases.rows.end_quarantine(lease.pair, lease.row.epoch)
            except SchemalessError as error:
                lease.fail(error)
                continue
            log.warning("%s: shard %d is no longer quarantined", *lease.pair)
            del self.leases.held[lease.pair]
            self._reconciled, ended = None, True
        return ended
