"""When a worker looks for new cells, and at its rows: as often as what that takes allows."""

from __future__ import annotations

import time
from typing import Final

_IDLE_SHARE: Final = 0.04
_HEARING_SHARE: Final = 0.01
"""A worker that hears of new cells looks for them for no more than this part of its time."""

_LEAST_PAUSE_S: Final = 0.02
_MOST_PAUSE_S: Final = 5.0
_MOST_LOOK_S: Final = 10.0
_CHECK_S: Final = 0.5
"""A worker that hears of new cells looks so often whether there is anything else to do."""


class Pace:
    """A worker's pace.

    Args:
        look_s: how often it looks at its rows, at most.

    Attributes:
        pause_s: how long it waits between two sweeps.
        sweep_at_s: when the next one is due, on the monotonic clock.
        look_at_s: when the next look at its rows is.
    """

    def __init__(self, look_s: float) -> None:
        self._look_s = look_s
        self.pause_s = _LEAST_PAUSE_S
        self.sweep_at_s = 0.0
        self.look_at_s = 0.0

    def looked(self, cpu_s: float, *, whole: bool, hears: bool) -> None:
        """Note what a sweep took, or a look at the rows.

        Args:
            cpu_s: in this thread's processor time, of which the server takes as much again: so waiting for a busy
                machine costs nothing.
            whole: whether it was a look.
            hears: whether new cells of all shards are heard of.
        """
        took_s = 2 * cpu_s
        self.pause_s = min(_MOST_PAUSE_S, max(_LEAST_PAUSE_S, took_s / _IDLE_SHARE))
        now_s = time.monotonic()
        if whole:
            rest_s = min(_MOST_LOOK_S, took_s / _HEARING_SHARE) if hears else self.pause_s
            self.look_at_s = now_s + max(self._look_s, rest_s)
        self.sweep_at_s = now_s + (_CHECK_S if hears else self.pause_s)

    def took(self, cpu_s: float) -> None:
        """Note what a look took that nobody waited for: the next one is that much later."""
        self.look_at_s += min(_MOST_LOOK_S, 2 * cpu_s / _HEARING_SHARE)

    def now(self) -> None:
        """Have a look at the rows be due."""
        self.look_at_s = self.sweep_at_s = 0.0
