"""The call that a worker is making: published to other workers, and limited by a timeout.

The worker's thread begins and ends calls; the heartbeat's thread publishes them and enforces the timeout.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

from schemaless.base.logger import log
from schemaless.cell import CellKey, ErasedCell, StoredCell
from schemaless.store.followers.membership import Pair

TIMED_OUT: Final = 70
"""Exit status of a worker that ended itself because a call timed out."""


class InflightCall(NamedTuple):
    """A call in progress, and its start on the monotonic clock."""

    pair: Pair
    cell: StoredCell | ErasedCell
    since_s: float


class Inflight:
    """Tracks the call in progress, and ends the process when it times out.

    Attributes:
        call: the call in progress; None between calls.
    """

    __slots__ = ("call",)

    def __init__(self) -> None:
        self.call: InflightCall | None = None

    def track(self, pair: Pair, cell: StoredCell | ErasedCell) -> AbstractContextManager[None]:
        """Return a context manager that marks the call as in progress."""
        return _Tracking(self, InflightCall(pair, cell, time.monotonic()))

    def report(self, busy_s: float, timeouts_s: Mapping[str, float | None]) -> dict[str, Any]:
        """Return the status to publish, or end this process if the call has timed out.

        Args:
            busy_s: duration of a call after which the worker's other shards are reassigned, in seconds.
            timeouts_s: timeout of a call by follower, in seconds; None for no timeout.
        """
        call = self.call
        if call is None:
            return {}
        name, shard = call.pair
        for_s = time.monotonic() - call.since_s
        limit_s = timeouts_s[name]
        if limit_s is not None and for_s > limit_s:
            end_process(call.pair, call.cell.key, for_s)
        reported: dict[str, Any] = {
            "in_hand": {
                "name": name,
                "shard": shard,
                "added_id": call.cell.added_id,
                "key": [str(part) for part in call.cell.key],
                "since": (datetime.now(UTC) - timedelta(seconds=for_s)).isoformat(),
                "for_s": round(for_s, 3),
            }
        }
        if for_s > busy_s:
            reported["busy_with"] = call.pair
        return reported


class _Tracking(AbstractContextManager[None]):
    """Marks a call as in progress; a generator-based context manager would cost as much as an empty call."""

    __slots__ = ("_call", "_inflight")

    def __init__(self, inflight: Inflight, call: InflightCall) -> None:
        self._inflight = inflight
        self._call = call

    def __enter__(self) -> None:
        self._inflight.call = self._call

    def __exit__(self, *_: object) -> None:
        self._inflight.call = None


def end_process(pair: Pair, key: CellKey, for_s: float) -> None:
    """End this process, since a function cannot be interrupted; its successor handles cells one at a time."""
    log.error(
        "%s: the call for cell %s of shard %d did not return within %.0f s; this worker ends",
        pair[0],
        key,
        pair[1],
        for_s,
    )
    os._exit(TIMED_OUT)
