"""The handler of a follower: what it does with cells. A trigger calls a function, an index updates its entries."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

from schemaless.cell import ErasedCell, StoredCell
from schemaless.store.followers.checkpoints import Checkpoints
from schemaless.store.followers.erasures import ErasureEvent
from schemaless.store.followers.inflight import Inflight
from schemaless.store.followers.leases import Lease, Leases
from schemaless.store.followers.membership import Membership
from schemaless.store.followers.rows import FollowerRows
from schemaless.store.followers.sql import ParkedRow
from schemaless.store.followers.states import RUNNING


class Interrupted(Exception):
    """Handling of a page stops; this worker or another one continues it later."""


@dataclass(slots=True)
class HandlerContext:
    """The worker as its handlers see it: whether to go on, the call in progress, and progress.

    Attributes:
        membership: the worker's membership.
        leases: its leases.
        checkpoints: its checkpoints.
        inflight: tracks the call in progress.
        stopping: set when the worker is to stop.
        handled: number of cells handled.
    """

    membership: Membership
    leases: Leases
    checkpoints: Checkpoints
    inflight: Inflight
    stopping: threading.Event
    handled: int = 0

    @property
    def rows(self) -> FollowerRows:
        """The follower rows, for changes by a handler; a running checkpoint is awaited first."""
        self.checkpoints.settle(wait=True)
        return self.leases.rows

    def check_active(self, lease: Lease) -> None:
        """Check that the next cell may be handled; called before each cell.

        Raises:
            Interrupted: the worker is stopping, the follower is paused, or the worker's leases are in doubt.
        """
        view = self.membership.view
        if (
            self.stopping.is_set()
            or view is None
            or self.membership.generation != self.leases.generation
            or view.desired_states.get(lease.pair[0]) != RUNNING
        ):
            raise Interrupted

    def calling(self, lease: Lease, cell: StoredCell | ErasedCell) -> AbstractContextManager[None]:
        """Return a context manager that publishes the cell as being processed."""
        return self.inflight.track(lease.pair, cell)

    def advance(self, lease: Lease, added_id: int, *, at_once: bool = False, cells: int = 1) -> None:
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
        self.checkpoints.advance(lease, added_id, cells)
        if at_once:
            self.checkpoints.write()
        if not self.leases.holds(lease):
            raise lease.move.lost()
        if not lease.is_free:
            raise Interrupted

    def note_attempt(self, lease: Lease, attempts: int, wait_s: float | None, message: str | None) -> None:
        """Record the location, the number of attempts at the next cell, and its message.

        Args:
            lease: the shard's lease.
            attempts: number of attempts.
            wait_s: time until the next attempt, for the status, in seconds; None if there is no wait.
            message: message of the last attempt.

        Raises:
            LeaseLost: another worker has claimed the shard.
        """
        self.rows.note_attempt(lease.move, attempts, wait_s, message)
        lease.attempt(attempts, message)

    def park(self, lease: Lease, row: ParkedRow) -> None:
        """Park a cell and move past it; raises what ``note_attempt`` does."""
        self.rows.parked.park(lease.move._replace(location=row.added_id), row)
        lease.park(row.added_id)

    def stop(self, lease: Lease, message: str) -> None:
        """Stop the follower in a shard, before its next cell; raises what ``note_attempt`` does."""
        self.rows.stop(lease.move, message)
        lease.stop()


class Handler(ABC):
    """Handles the cells of a follower.

    Attributes:
        name: the follower's name.
        column: the column whose cells are handled; None for all columns.
        timeout_s: timeout of a call, in seconds, after which the process is ended; None for no timeout.
    """

    name: str
    column: str | None
    timeout_s: float | None = None

    def handle_batch(self, context: HandlerContext, pages: Sequence[tuple[Lease, Sequence[StoredCell]]]) -> bool:
        """Do the work that several shards can share; return True if ``handle`` has nothing left to do but advance.

        ``handle`` is called for each of the pages in any case.
        """
        return False

    @abstractmethod
    def handle(self, context: HandlerContext, lease: Lease, cells: Sequence[StoredCell]) -> bool:
        """Handle cells in order; return True if all of them were handled.

        Calls ``context.check_active`` before each cell and ``context.advance`` after it, or each once for the whole
        page. Cells after ``lease.reached`` are delivered again.

        Raises:
            SchemalessError: a server failed; the shard backs off.
        """

    @abstractmethod
    def handle_erased(self, context: HandlerContext, lease: Lease, events: Sequence[ErasureEvent]) -> bool:
        """Remove what was derived from cells that were erased after they were handled; return True if that was done.

        May be called again for the same events, and for cells that were never handled. A handler must call
        ``lease.retry_erasures`` before it returns False.

        Raises:
            SchemalessError: a server failed; the events are delivered again.
        """

    def replay(self, context: HandlerContext, lease: Lease) -> None:  # noqa: B027 - only triggers park cells
        """Handle the parked cells that are to be tried again."""
