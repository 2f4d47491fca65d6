"""A look at a worker's rows that its calls do not wait for: on a thread of its own, one at a time."""

from __future__ import annotations

import time
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import NamedTuple

from schemaless.followers.lease_state import Owned
from schemaless.followers.membership import Pair
from schemaless.followers.rows import FollowerRow, FollowerRows, Looked


class Before(NamedTuple):
    """How a shard was in its owner's hands when a look began."""

    epoch: int
    reached: int
    state: str
    parked: int


class Seen(NamedTuple):
    """What a look found.

    Attributes:
        looked: the rows.
        before: how each was when the look began.
        cpu_s: the processor time that it took here.
    """

    looked: Looked
    before: dict[Pair, Before]
    cpu_s: float

    def row(self, owned: Owned) -> FollowerRow | None:
        """Return what a row says as of now: what its owner has done since is not in it."""
        row = self.looked.rows.get(owned.pair)
        if row is None:
            return None
        before = self.before[owned.pair]
        return replace(
            row,
            # Below what was reached already, cells were lost.
            top=row.top if row.top < before.reached else max(row.top, owned.top),
            state=row.state if owned.state == before.state else owned.state,
            parked=row.parked if owned.parked == before.parked else owned.parked,
        )


class Lookout:
    """Looks at rows while others work."""

    def __init__(self, rows: FollowerRows) -> None:
        self._rows = rows
        self._thread = ThreadPoolExecutor(1, "look at rows")
        self._look: Future[Seen] | None = None

    @property
    def busy(self) -> bool:
        """Whether a look is on its way, or what it found was not taken yet."""
        return self._look is not None

    def begin(self, owned: Iterable[Owned]) -> None:
        """Begin to look at the rows of shards; not while it is busy."""
        before = {row.pair: Before(row.epoch, row.reached, row.state, row.parked) for row in owned}

        def look() -> Seen:
            started_s = time.thread_time()
            looked = self._rows.look(before)
            return Seen(looked, before, time.thread_time() - started_s)

        self._look = self._thread.submit(look)

    def take(self) -> Seen | None:
        """Return what the last look found, once it has ended; raises what it raised."""
        if self._look is None or not self._look.done():
            return None
        ended, self._look = self._look, None
        return ended.result()

    def drop(self) -> None:
        """Forget a look that is on its way: what it finds is from too long ago."""
        self._look = None

    def close(self) -> None:
        """Wait for a look that is on its way, and begin no more."""
        self._thread.shutdown()
