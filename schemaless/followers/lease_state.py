"""A follower in a shard, in its owner's hands: how far it is, and what it waits for."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from schemaless.errors import SchemalessError, ServerError
from schemaless.followers.membership import Pair
from schemaless.followers.rows import Move
from schemaless.followers.states import RUNNING, STOPPED

LEAST_AGAIN_S: Final = 0.001
MOST_AGAIN_S: Final = 0.02
_FIRST_WAIT_S: Final = 0.1
_MOST_WAIT_S: Final = 30.0
_LEAST_AWAY_S: Final = 2.0
"""A server may answer a look and yet fail at all else: then it is tried again so often."""

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
        state: running, quarantined, or stopped.
        death: how the worker of the last attempt ended; None if it did not die.
        claimed_at_s: when this worker claimed it, on the monotonic clock.
        parked: how many cells are parked, as of the last look and what was parked since.
        replays: how many of them are to be tried again.
        not_before_s: when there is something to do again, on the monotonic clock.
        reason: what is waited for.
        away: the server that is waited for, since it failed; None where another reason is.
        failed_at_s: when it was tried last, on the monotonic clock.
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
    death: str | None = None
    claimed_at_s: float = field(default_factory=time.monotonic)
    parked: int = 0
    replays: int = 0
    not_before_s: float = 0.0
    reason: str | None = None
    away: str | None = None
    failed_at_s: float = -math.inf
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
        return self.replays > 0 or (self.state != STOPPED and self.top != self.reached)

    @property
    def due(self) -> bool:
        """Whether what it waits for is over."""
        return self.not_before_s <= time.monotonic()

    @property
    def free(self) -> bool:
        """Whether nothing keeps it from being gone on with."""
        return not self.stuck and self.due

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
        """Leave it alone since its server failed: for longer each time, or until that server answers again."""
        away = error.node if isinstance(error, ServerError) and error.retryable else None
        if away is not None and away == self.away and not self.due:
            # A look has failed as well, which says nothing new.
            return
        self.failures += 1
        wait_s = min(_MOST_WAIT_S, _FIRST_WAIT_S * 2 ** min(self.failures - 1, 20))
        if self.failures == 1 or wait_s == _MOST_WAIT_S:
            _log.warning("%s waits in shard %d: %s", *self.pair, error)
        self.wait(wait_s, str(error))
        self.away, self.failed_at_s = away, time.monotonic()

    def wait(self, seconds: float, reason: str) -> None:
        """Leave it alone for so long."""
        self.not_before_s = time.monotonic() + seconds
        self.reason = reason
        self.away = None


def wake(every: Iterable[Owned], back: Callable[[str], bool]) -> None:
    """Have those go on whose server is back: it may be long until they would have tried again."""
    tried_s = time.monotonic() - _LEAST_AWAY_S
    for owned in every:
        if owned.away is not None and owned.failed_at_s <= tried_s and back(owned.away):
            owned.wait(0, "")
