"""``Breaker``: keeps calls from a server that does not answer, and lets one at a time look whether it does again.

It has no thread. A call that finds it open is refused at once, with the time after which to try again; where that time
has come, one caller makes a connection with a short timeout, and all others go on being refused until it is there.
"""

from __future__ import annotations

import itertools
import random
import time
from typing import Final

FAILURES: Final = 3
"""So many connections in a row have to fail, none between them succeeding."""

FIRST_PAUSE_S: Final = 0.25
MOST_PAUSE_S: Final = 2.0
PROBE_S: Final = 0.8
"""A server may take so long to let one in that looks whether it answers again."""


class Breaker:
    """Of one server, whatever pools there are for it; shared by threads.

    Attributes:
        alarmed: the one flag that every call looks at: whether it is open, or a connection was lost since somebody last
            looked whether the server is still the one that it was.
        is_open: whether calls are refused.
        alarms: which alarm was the last one.
        pause_s: how long, at most, until somebody looks again.
        retry_at_s: when that is, by ``time.monotonic``.
    """

    __slots__ = (
        "_claims",
        "_count",
        "_failures",
        "_since_s",
        "_turn",
        "alarmed",
        "alarms",
        "is_open",
        "pause_s",
        "retry_at_s",
    )

    def __init__(self) -> None:
        self.alarmed = False
        self.is_open = False
        self.alarms = 0
        self.pause_s = FIRST_PAUSE_S
        self._count = itertools.count(1)
        self._failures = 0
        self.retry_at_s = 0.0
        self._since_s = 0.0
        self._turn = 0
        self._claims: dict[int, object] = {}

    def lost(self) -> None:
        """A connection was lost; the next call has to look first."""
        self.alarms = next(self._count)
        self.alarmed = True

    def looked(self, alarms: int) -> None:
        """Somebody has looked after what was the last alarm when he began."""
        if not self.is_open and alarms == self.alarms:
            self.alarmed = False

    def answered(self) -> None:
        """A connection was made: close."""
        self._failures = 0
        # Still alarmed: another server may have taken its place meanwhile, which is looked at before it is used.
        self.is_open = False

    def failed(self) -> None:
        """A connection could not be made, the server saying nothing."""
        self._failures += 1
        if self._failures >= FAILURES:
            self.trip()

    def trip(self) -> None:
        """Open, for a moment at first."""
        if self.is_open:
            return
        self._since_s = time.monotonic()
        self.pause_s = FIRST_PAUSE_S
        self.retry_at_s = self._since_s + _jittered(self.pause_s)
        self.is_open = True
        self.lost()

    def wait_s(self) -> float | None:
        """Return how long calls are still refused; None for the one caller that is to look now.

        Whoever gets None has claimed the turn: the next one comes after twice the pause, also if this caller ends in
        the middle.
        """
        now_s, turn = time.monotonic(), self._turn
        if now_s < self.retry_at_s:
            return self.retry_at_s - now_s
        mine = object()
        # A single call into C: of all callers at this moment one gets it.
        if self._claims.setdefault(turn, mine) is not mine:
            return self.pause_s
        self.pause_s = min(2 * self.pause_s, MOST_PAUSE_S)
        self.retry_at_s = now_s + _jittered(self.pause_s)
        self._turn = turn + 1
        self._claims.pop(turn - 1, None)
        return None

    def left_s(self) -> float:
        """Return how long it is until somebody may look; claims nothing."""
        return max(0.0, self.retry_at_s - time.monotonic())

    def open_for_s(self) -> float:
        """Return for how long it has been open."""
        return time.monotonic() - self._since_s


def _jittered(pause_s: float) -> float:
    return pause_s * random.uniform(0.5, 1)  # noqa: S311 - jitter
