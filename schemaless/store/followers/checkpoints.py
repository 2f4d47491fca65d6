"""Checkpoints: a worker writes the locations that it has reached to its follower rows, in the background.

A checkpoint is one or more transactions on each server. Handlers are still called while it is written, and a location
is recorded only after all cells up to it have been handled.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from schemaless.errors import SchemalessError
from schemaless.store.followers.background_slot import BackgroundSlot
from schemaless.store.followers.batches import PAGE_CELLS
from schemaless.store.followers.lease_state import LeaseState
from schemaless.store.followers.leases import Leases
from schemaless.store.followers.membership import Pair
from schemaless.store.followers.parked import Move
from schemaless.store.followers.rows import FollowerRows

_CHECKPOINT_CELLS: Final = PAGE_CELLS // 2
"""Number of handled cells after which a checkpoint is written."""


class _Checkpoint(NamedTuple):
    moves: Sequence[tuple[LeaseState, Move]]
    lost: Collection[Pair]
    failed: Mapping[Pair, SchemalessError]


class Checkpoints:
    """Writes the locations of a worker's leases.

    Attributes:
        pending: number of cells handled since the last checkpoint.
        written_s: start of the last checkpoint, on the monotonic clock.
        in_background: whether handlers may be called while a checkpoint is written.
        slot: background slot that writes checkpoints.

    Args:
        leases: the worker's leases.
        rows: the follower rows.
        interval_s: interval between checkpoints, in seconds.
    """

    def __init__(self, leases: Leases, rows: FollowerRows, interval_s: float) -> None:
        self.pending: int = 0
        self.written_s: float = time.monotonic()
        self.in_background = False
        self.slot: BackgroundSlot[_Checkpoint] = BackgroundSlot("checkpoints")
        self._leases = leases
        self._rows = rows
        self._interval_s = interval_s

    @property
    def next_s(self) -> float:
        """When the next checkpoint is due, on the monotonic clock."""
        return self.written_s + self._interval_s

    def advance(self, lease: LeaseState, location: int, cells: int) -> None:
        """Record that a lease has reached a location, and write a checkpoint if one is due."""
        lease.reached = max(lease.reached, location)
        lease.top = max(lease.top, lease.reached)
        lease.attempts = 0 if cells else lease.attempts
        self.pending += cells
        full = self.pending >= _CHECKPOINT_CELLS
        if full or time.monotonic() >= self.next_s:
            # The cells of the running checkpoint and those since then are one page at most.
            self.write(wait=not self.in_background or full)

    def write_if_due(self) -> None:
        """Write a checkpoint at the end of the worker's turn, if one is due or ``in_background`` is False."""
        if not self.in_background or time.monotonic() >= self.next_s:
            self.write(wait=not self.in_background)

    def write(self, *, wait: bool = True) -> None:
        """Write the locations of all leases. Lost leases are dropped; those whose server fails are kept and retried.

        Args:
            wait: whether to return only after the checkpoint is written. Otherwise it is only started, unless one is
                already running.
        """
        if not self.settle(wait=wait):
            return
        ahead = (lease for lease in self._leases.held.values() if lease.reached != lease.location)
        self._begin(lease for lease in ahead if not lease.stuck or lease.is_due)
        self.pending = 0
        self.written_s = time.monotonic()
        if wait:
            self.settle(wait=True)

    def settle(self, *, wait: bool) -> bool:
        """Apply the result of the last checkpoint to the leases; return True if none is running any more."""
        written = self.slot.take(wait=wait)
        for lease, move in written.moves if written is not None else ():
            assert written is not None
            if not self._leases.holds(lease):
                continue
            if lease.pair in written.lost:
                self._leases.lose(lease.pair)
            elif lease.pair in written.failed:
                lease.stuck = True
                lease.fail(written.failed[lease.pair])
            else:
                lease.recorded(move.location)
        return not self.slot.busy

    def _begin(self, leases: Iterable[LeaseState]) -> None:
        # Locations are read here, because the leases advance while the step runs.
        moves = [(lease, lease.move) for lease in leases]
        if moves:
            self.slot.begin(lambda: _Checkpoint(moves, *self._rows.move(move for _, move in moves)))
