"""Shared memory that tells a supervisor what a worker process was doing, even after the process has died.

A process that is killed cannot report what it was doing. What it has written to shared memory remains readable.
"""

from __future__ import annotations

import ctypes
from multiprocessing.context import BaseContext
from typing import Any, Final

from schemaless.store.followers.membership import Pair

_LONGEST: Final = 255
"""Maximum combined length of a follower's name and a shard number, in bytes."""

_CLAIMED: Final = 0
_HEALTHY: Final = 1
_QUARANTINED: Final = 2


class BlackBox:
    """The shard that a worker is working on, and the numbers of healthy and of quarantined shards that it found.

    Args:
        context: creates memory shared with the processes that it starts; None for memory of this process only.
    """

    def __init__(self, context: BaseContext | None = None) -> None:
        text, counts = ctypes.c_char * _LONGEST, ctypes.c_long * 3
        try:
            self._at: Any = text() if context is None else context.RawArray(ctypes.c_char, _LONGEST)
            self._counts: Any = counts() if context is None else context.RawArray(ctypes.c_long, 3)
        except OSError as error:
            # A container may lack /dev/shm, or have it read-only.
            reason = f"{error.strerror}; workers share memory with this process in /dev/shm"
            raise OSError(error.errno, reason, "starting worker processes") from error

    def enter(self, pair: Pair) -> None:
        """Record that the worker begins to work on a shard."""
        self._at.value = b"%b %d" % (pair[0].encode(), pair[1])

    def enter_batch(self, follower: str) -> None:
        """Record that the worker begins to work on several shards at once."""
        self._at.value = follower.encode()

    def leave(self) -> None:
        """Record that the worker is not working on a shard."""
        self._at.value = b""

    @property
    def busy(self) -> bool:
        """Whether the worker is working on shards, or was when it died."""
        return bool(self._at.value)

    @property
    def at(self) -> Pair | None:
        """The one shard that the worker is working on, or was when it died; None between shards and in a batch."""
        name, _, shard = self._at.value.decode(errors="replace").rpartition(" ")
        # The process may have been killed while it wrote this.
        return (name, int(shard)) if name and shard.isdecimal() else None

    @property
    def claimed(self) -> bool:
        """Whether the worker may have claimed a shard."""
        return bool(self._counts[_CLAIMED])

    def claim(self) -> None:
        """Record that the worker is about to claim a shard."""
        self._counts[_CLAIMED] = 1

    def found(self, healthy: int, quarantined: int) -> None:
        """Record how many of the worker's assigned shards are healthy, and how many quarantined."""
        self._counts[_HEALTHY], self._counts[_QUARANTINED] = healthy, quarantined

    @property
    def healthy(self) -> int:
        """Number of healthy shards when the worker last read its rows."""
        return int(self._counts[_HEALTHY])

    @property
    def quarantined(self) -> int:
        """Number of quarantined shards when the worker last read its rows."""
        return int(self._counts[_QUARANTINED])
