"""Checkpoints: a worker writes the locations that it has reached to its follower rows, in the background.

A checkpoint is one or more transactions on each server. Handlers are still called while it is written, and a location
is recorded only after all cells up to it have been handled.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from schemaless.errors import SchemalessError
from schemaless.store.followers.background_slot import BackgroundSlot
from schemaless.store.followers.leases import PAGE_CELLS, Lease, Leases
from schemaless.store.followers.membership import Pair
from schemaless.store.followers.rows import Move

_CHECKPOINT_CELLS: Final = PAGE_CELLS // 2
"""Number of handled cells after which a checkpoint is written."""


class _Checkpoint(NamedTuple):
    moves: Sequence[tuple[Lease, Move]]
    lost: Collection[Pair]
    failed: Mapping[Pair, SchemalessError]


@dataclass(slots=True)
class Checkpoints:
    """Writes the locations of a worker's leases.

    Attributes:
        leases: the worker's leases.
        interval_s: interval between checkpoints, in seconds.
        pending: number of cells handled since the last checkpoint.
        written_s: start of the last checkpoint, on the monotonic clock.
        in_background: whether handlers may be called while a checkpoint is written.
        slot: background slot that writes checkpoints.
    """

    leases: Leases
    interval_s: float
    pending: int = 0
    written_s: float = field(default_factory=time.monotonic)
    in_background: bool = False
    slot: BackgroundSlot[_Checkpoint] = field(default_factory=lambda: BackgroundSlot("checkpoints"))

    @property
    def next_s(self) -> float:
        """When the next checkpoint is due, on the monotonic clock."""
        return self.written_s + self.interval_s

    def advance(self, lease: Lease, location: int, cells: int) -> None:
        """Record that a lease has reached a location, and write a checkpoint if one is due."""
        lease.advance(location, cells)
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
        # Locations are read here, because the leases advance while the step runs.
        moves = [
            (lease, lease.move)
            for lease in self.leases.held.values()
            if not lease.is_recorded and (not lease.stuck or lease.wait.is_over)
        ]
        if moves:
            self.slot.begin(lambda: _Checkpoint(moves, *self.leases.rows.move(move for _, move in moves)))
        self.pending = 0
        self.written_s = time.monotonic()
        if wait:
            self.settle(wait=True)

    def settle(self, *, wait: bool) -> bool:
        """Apply the result of the last checkpoint to the leases; return True if none is running any more."""
        written = self.slot.take(wait=wait)
        for lease, move in written.moves if written is not None else ():
            assert written is not None
            if not self.leases.holds(lease):
                continue
            if lease.pair in written.lost:
                self.leases.lose(lease.pair)
            elif lease.pair in written.failed:
                lease.fail_to_record(written.failed[lease.pair])
            else:
                lease.record(move.location)
        return not self.slot.busy
