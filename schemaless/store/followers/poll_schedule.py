"""When a worker polls for new cells and reads its rows; both may take only a small share of its time."""

from __future__ import annotations

import time
from typing import Final

_POLLING_SHARE: Final = 0.04
"""Share of its time that a worker spends on polling while the binary logs do not report all new cells."""

_NOTIFIED_SHARE: Final = 0.01
"""Share of its time that a worker spends on reading rows while the binary logs report all new cells."""

_MIN_PAUSE_S: Final = 0.02
_MAX_PAUSE_S: Final = 5.0
_MAX_REST_S: Final = 10.0
_CHECK_S: Final = 0.5
"""Interval at which a notified worker checks whether anything else is due, in seconds."""


class PollSchedule:
    """Schedules a worker's polls and reads of its rows.

    Args:
        read_s: minimum interval between reads of the rows, in seconds.

    Attributes:
        pause_s: interval between polls, in seconds.
        poll_at_s: when the next poll is due, on the monotonic clock.
        read_at_s: when the next read of the rows is due, on the monotonic clock.
    """

    def __init__(self, read_s: float) -> None:
        self._read_s = read_s
        self.pause_s: float = _MIN_PAUSE_S
        self.poll_at_s: float = 0.0
        self.read_at_s: float = 0.0

    def polled(self, cpu_s: float, *, rows: bool, notified: bool) -> None:
        """Schedule the next poll and the next read of the rows after a poll.

        Args:
            cpu_s: processor time that the poll took here; the server is assumed to need as much again. Wall-clock time
                would overstate the cost on a busy machine.
            rows: whether the rows were read.
            notified: whether the binary logs report the new cells of all shards.
        """
        cost_s = 2 * cpu_s
        self.pause_s = min(_MAX_PAUSE_S, max(_MIN_PAUSE_S, cost_s / _POLLING_SHARE))
        now_s = time.monotonic()
        if rows:
            rest_s = min(_MAX_REST_S, cost_s / _NOTIFIED_SHARE) if notified else self.pause_s
            self.read_at_s = now_s + max(self._read_s, rest_s)
        self.poll_at_s = now_s + (_CHECK_S if notified else self.pause_s)

    def read_in_background(self, cpu_s: float) -> None:
        """Delay the next read of the rows in proportion to the cost of a background read."""
        self.read_at_s += min(_MAX_REST_S, 2 * cpu_s / _NOTIFIED_SHARE)

    def poll_now(self) -> None:
        """Make the next poll and the next read of the rows due now."""
        self.read_at_s = self.poll_at_s = 0.0
