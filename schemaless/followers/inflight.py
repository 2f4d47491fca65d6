"""What a worker is at: the cell that it is in a call for, as others see it, and the end of one that does not come back.

Begun and ended on the worker's thread, told on that of its signs of life.
"""

from __future__ import annotations

import logging
import os
import time
from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

from schemaless.cell import CellKey, StoredCell
from schemaless.followers.membership import Pair

_log = logging.getLogger("schemaless")

TIMED_OUT: Final = 70
"""A worker that ended itself has this exit status."""


class InHand(NamedTuple):
    """A call that a worker is in, since a moment of the monotonic clock."""

    pair: Pair
    cell: StoredCell
    since_s: float


class Hand:
    """What a worker has in its hand.

    Attributes:
        has: the call that it is in; None between calls.
    """

    __slots__ = ("has",)

    def __init__(self) -> None:
        self.has: InHand | None = None

    def taking(self, pair: Pair, cell: StoredCell) -> AbstractContextManager[None]:
        """Have others see, while the block runs, that this cell is in a call."""
        return _Taking(self, InHand(pair, cell, time.monotonic()))

    def told(self, busy_s: float, timeout_s: dict[str, float | None]) -> dict[str, Any]:
        """Return what others are to know; ends this process where a call takes too long.

        Args:
            busy_s: after how long the worker's other shards are to be dealt to others.
            timeout_s: how long a call may take, by the follower's name; None for ever.
        """
        has = self.has
        if has is None:
            return {}
        name, shard = has.pair
        for_s = time.monotonic() - has.since_s
        limit_s = timeout_s[name]
        if limit_s is not None and for_s > limit_s:
            end_process(has.pair, has.cell.key, for_s)
        told: dict[str, Any] = {
            "in_hand": {
                "name": name,
                "shard": shard,
                "added_id": has.cell.added_id,
                "key": [str(part) for part in has.cell.key],
                "since": (datetime.now(UTC) - timedelta(seconds=for_s)).isoformat(),
                "for_s": round(for_s, 3),
            }
        }
        if for_s > busy_s:
            told["busy_with"] = has.pair
        return told


class _Taking(AbstractContextManager[None]):
    """A block with a cell in hand; made of a generator it would cost as much as an empty call."""

    __slots__ = ("_hand", "_has")

    def __init__(self, hand: Hand, has: InHand) -> None:
        self._hand = hand
        self._has = has

    def __enter__(self) -> None:
        self._hand.has = self._has

    def __exit__(self, *_: object) -> None:
        self._hand.has = None


def end_process(pair: Pair, key: CellKey, for_s: float) -> None:
    """End this process at once, since a call in it does not come back; the successor takes that cell carefully."""
    _log.error(
        "%s: the call for cell %s of shard %d did not return within %.0f s: this worker ends",
        pair[0],
        key,
        pair[1],
        for_s,
    )
    os._exit(TIMED_OUT)
