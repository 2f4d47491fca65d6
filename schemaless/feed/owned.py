"""A follower in a shard, in its owner's hands: how far it is, and what it waits for."""

from __future__ import annotations

import logging
import math
import time
from dataclasses import dataclass
from typing import Final

from schemaless.errors import SchemalessError
from schemaless.feed.members import Pair
from schemaless.feed.rows import Move

RUNNING: Final = "running"
PAUSED: Final = "paused"
STOPPED: Final = "stopped"

LEAST_AGAIN_S: Final = 0.001
MOST_AGAIN_S: Final = 0.02
_FIRST_WAIT_S: Final = 0.1
_MOST_WAIT_S: Final = 30.0

_log = logging.getLogger("schemaless")


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
        stuck: its location could not be written down; nothing more is begun before it is, or more and more would come
            again.
        heard: the highest added_id that was heard of.
        heard_at_s: when that was, on the monotonic clock.
        pause_s: how long it was left alone when it was read last and gave nothing: a transaction may hold it up.
        again_at_s: when it is read again, on the monotonic clock.
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
    stuck: bool = False
    heard: int = 0
    heard_at_s: float = -math.inf
    pause_s: float = 0.0
    again_at_s: float = -math.inf

    @property
    def behind(self) -> int:
        """How many added_ids are between how far it is and the end, as of the last look."""
        return self.top - self.reached

    @property
    def more(self) -> bool:
        """Whether there is something to be done, now or later."""
        return self.replays > 0 or (self.state == RUNNING and self.top != self.reached)

    @property
    def free(self) -> bool:
        """Whether nothing keeps it from being gone on with."""
        return not self.stuck and self.not_before_s <= time.monotonic()

    @property
    def move(self) -> Move:
        """What is to be written down."""
        return Move(self.pair, self.epoch, self.reached)

    def noted(self, location: int) -> None:
        """Take over that this was written down."""
        self.location = max(self.location, location)
        if self.stuck:
            self.stuck, self.failures = False, 0
            self.wait(0, "")

    def hear(self, added_id: int) -> bool:
        """Note that a cell was heard of; return whether it is beyond all that were known."""
        # Whatever held it up may be over.
        self.again_at_s = -math.inf
        if added_id <= self.top:
            return False
        self.top = self.heard = added_id
        self.heard_at_s = time.monotonic()
        return True

    def read(self, *, came: bool) -> None:
        """Note whether reading it gave anything; where there is more that cannot be read yet, it waits a little."""
        self.pause_s = 0.0 if came or not self.more else min(MOST_AGAIN_S, max(LEAST_AGAIN_S, self.pause_s * 2))
        self.again_at_s = time.monotonic() + self.pause_s

    def fail(self, error: SchemalessError) -> None:
        """Leave it alone since its server failed: for longer each time."""
        self.failures += 1
        wait_s = min(_MOST_WAIT_S, _FIRST_WAIT_S * 2 ** min(self.failures - 1, 20))
        if self.failures == 1 or wait_s == _MOST_WAIT_S:
            _log.warning("%s waits in shard %d: %s", *self.pair, error)
        self.wait(wait_s, str(error))

    def wait(self, seconds: float, reason: str) -> None:
        """Leave it alone for so long."""
        self.not_before_s = time.monotonic() + seconds
        self.reason = reason
