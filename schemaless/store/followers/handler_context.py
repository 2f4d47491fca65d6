"""Methods that a handler calls while it handles cells, to check whether to go on, track calls and record progress."""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager

from schemaless.cell import ErasedCell, StoredCell
from schemaless.errors import LeaseLost
from schemaless.store.followers.checkpoints import Checkpoints
from schemaless.store.followers.inflight import Inflight
from schemaless.store.followers.lease_state import LeaseState
from schemaless.store.followers.leases import Leases
from schemaless.store.followers.membership import Membership
from schemaless.store.followers.rows import FollowerRows
from schemaless.store.followers.states import RUNNING


class Interrupted(Exception):
    """Handling of a page stops; this worker or another one continues it later."""


class HandlerContext:
    """The worker as its handlers see it.

    Args:
        membership: the worker's membership.
        leases: its leases.
        checkpoints: its checkpoints.
        rows: the follower rows.
        inflight: tracks the call in progress.
        stop: set when the worker is to stop.
    """

    def __init__(
        self,
        membership: Membership,
        leases: Leases,
        checkpoints: Checkpoints,
        rows: FollowerRows,
        inflight: Inflight,
        stop: threading.Event,
    ) -> None:
        self._membership = membership
        self._leases = leases
        self._checkpoints = checkpoints
        self._rows = rows
        self._inflight = inflight
        self._stop = stop
        self.handled: int = 0
        """Number of cells handled."""

    @property
    def rows(self) -> FollowerRows:
        """The follower rows, for changes by a handler; a running checkpoint is awaited first."""
        self._checkpoints.settle(wait=True)
        return self._rows

    def check_active(self, lease: LeaseState) -> None:
        """Check that the next cell may be handled; called before each cell.

        Raises:
            Interrupted: the worker is stopping, the follower is paused, or the worker's leases are in doubt.
        """
        view = self._membership.view
        if (
            self._stop.is_set()
            or view is None
            or self._membership.generation != self._leases.generation
            or view.desired_states.get(lease.pair[0]) != RUNNING
        ):
            raise Interrupted

    def calling(self, lease: LeaseState, cell: StoredCell | ErasedCell) -> AbstractContextManager[None]:
        """Return a context manager that publishes the cell as being processed."""
        return self._inflight.track(lease.pair, cell)

    def advance(self, lease: LeaseState, added_id: int, *, at_once: bool = False, cells: int = 1) -> None:
        """Move past handled cells.

        Args:
            lease: the shard's lease.
            added_id: added_id of the last cell.
            at_once: record the location now instead of at the next checkpoint.
            cells: number of cells.

        Raises:
            LeaseLost: another worker has claimed the shard.
            Interrupted: the shard's server failed; the location is kept and recorded later.
        """
        self.handled += cells
        self._checkpoints.advance(lease, added_id, cells)
        if at_once:
            self._checkpoints.write()
        if not self._leases.holds(lease):
            raise LeaseLost(f"{lease.pair[0]} in shard {lease.pair[1]} was taken over by another worker")
        if not lease.is_free:
            raise Interrupted

    def recorded(self, lease: LeaseState) -> None:
        """Mark ``lease.reached`` as recorded, after a handler has recorded it itself."""
        lease.location, lease.stuck = lease.reached, False
        lease.top = max(lease.top, lease.reached)
