"""A follower in a shard, in its owner's hands: how far it is, and what it waits for."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Final

from schemaless.feed.members import Pair
from schemaless.feed.rows import Move

RUNNING: Final = "running"
PAUSED: Final = "paused"
STOPPED: Final = "stopped"


@dataclass(slots=True)
class Owned:
    """A follower in a shard, in its owner's hands.

    Attributes:
        epoch: what the row is asked for.
        location: as it is written down.
        reached: how far it is; written down with the next ones.
        top: the highest added_id, as of the last look, or as was heard since.
        attempts: of the first cell behind ``location``.
        careful: so many cells are still to be dealt with one by one, since the owner before died among them.
        state: running, or stopped.
        parked: how many cells are parked, as of the last look and what was parked since.
        replays: how many of them are to be tried again.
        not_before_s: when there is something to do again, on the monotonic clock.
        reason: what is waited for.
        heard: the highest added_id that was heard of.
        heard_at_s: when that was, on the monotonic clock.
    """

    pair: Pair
    epoch: int
    location: int
    reached: int
    top: int
    attempts: int = 0
    careful: int = 0
    state: str = RUNNING
    parked: int = 0
    replays: int = 0
    not_before_s: float = 0.0
    reason: str | None = None
    failures: int = 0
    heard: int = 0
    heard_at_s: float = -math.inf

    @property
    def behind(self) -> int:
        """How many added_ids are between how far it is and the end, as of the last look."""
        return self.top - self.reached

    @property
    def more(self) -> bool:
        """Whether there is something to be done, now or later."""
        return self.replays > 0 or (self.state == RUNNING and self.top != self.reached)

    @property
    def move(self) -> Move:
        """What is to be written down."""
        return Move(self.pair, self.epoch, self.reached)

    def wait(self, seconds: float, reason: str) -> None:
        """Leave it alone for so long."""
        self.not_before_s = time.monotonic() + seconds
        self.reason = reason
