"""Circuit breaker for a server that does not answer.

It has no thread. While it is open, calls fail immediately and say when to retry. Once that time has come, one caller
probes the server with a short connect timeout; all others keep failing until the probe succeeds.
"""

from __future__ import annotations

import itertools
import random
import time
from typing import Final

FAILURES: Final = 3
"""Number of consecutive unanswered connection attempts that open the breaker."""

FIRST_PAUSE_S: Final = 0.25
MAX_PAUSE_S: Final = 2.0
PROBE_S: Final = 0.8
"""Timeout of a probe connection, in seconds."""


class Breaker:
    """Circuit breaker of one server, shared by all pools of that server and by all threads.

    Attributes:
        alarmed: True if the breaker is open, or a connection has been lost since a caller last checked that the server
            is still the shard's primary. It is the only flag that every call reads.
        is_open: True while calls are rejected.
        alarms: number of the most recent alarm.
        pause_s: longest time until the next probe, in seconds; doubles with each failed probe.
        retry_at_s: time of the next probe, by ``time.monotonic``.
    """

    def __init__(self) -> None:
        self.alarmed: bool = False
        self.is_open: bool = False
        self.alarms: int = 0
        self.pause_s: float = FIRST_PAUSE_S
        self._count = itertools.count(1)
        self._failures = 0
        self.retry_at_s: float = 0.0
        self._opened_at_s = 0.0
        self._probe = 0
        self._claims: dict[int, object] = {}

    def lost(self) -> None:
        """Raise an alarm after a lost connection: the next call checks the server first."""
        self.alarms = next(self._count)
        self.alarmed = True

    def acknowledge(self, alarms: int) -> None:
        """Clear the alarm after a check, unless another alarm has been raised since the check began.

        Args:
            alarms: value of ``alarms`` when the check began.
        """
        if not self.is_open and alarms == self.alarms:
            self.alarmed = False

    def answered(self) -> None:
        """Close the breaker after a successful connection."""
        self._failures = 0
        # The alarm stays: the server may have been replaced during the outage, which the next call checks.
        self.is_open = False

    def failed(self) -> None:
        """Count a connection attempt that the server did not answer."""
        self._failures += 1
        if self._failures >= FAILURES:
            self.trip()

    def trip(self) -> None:
        """Open the breaker."""
        if self.is_open:
            return
        self._opened_at_s = time.monotonic()
        self.pause_s = FIRST_PAUSE_S
        self.retry_at_s = self._opened_at_s + _jittered(self.pause_s)
        self.is_open = True
        self.lost()

    def wait_s(self) -> float | None:
        """Return the seconds until the next probe, or None to the one caller that has to probe now.

        A caller that gets None has claimed this probe. The next probe is due after at most twice the previous pause,
        even if the caller never finishes.
        """
        now_s, probe = time.monotonic(), self._probe
        if now_s < self.retry_at_s:
            return self.retry_at_s - now_s
        claim = object()
        # setdefault is a single call into C, so exactly one of the concurrent callers claims the probe.
        if self._claims.setdefault(probe, claim) is not claim:
            return self.pause_s
        self.pause_s = min(2 * self.pause_s, MAX_PAUSE_S)
        self.retry_at_s = now_s + _jittered(self.pause_s)
        self._probe = probe + 1
        self._claims.pop(probe - 1, None)
        return None

    def until_retry_s(self) -> float:
        """Return the seconds until the next probe, without claiming it."""
        return max(0.0, self.retry_at_s - time.monotonic())

    def open_for_s(self) -> float:
        """Return how long the breaker has been open, in seconds."""
        return time.monotonic() - self._opened_at_s


def _jittered(pause_s: float) -> float:
    return pause_s * random.uniform(0.5, 1)  # noqa: S311 - jitter
