"""Tells when a follower has handled all cells that existed at a given time, and reports its progress."""

from __future__ import annotations

import logging

from schemaless.events import Advanced, Listener, Total, ignore_events
from schemaless.followers.access import DatastoreAccess
from schemaless.followers.membership import Pair
from schemaless.followers.rows import FollowerRow, FollowerRows
from schemaless.followers.states import STOPPED

_log = logging.getLogger("schemaless")


class CaughtUp:
    """A predicate that is true once a follower has handled all cells that existed when the predicate was created.

    Stopped shards count as done. Shards that cannot be read, have no row, or have parked cells to try again do not.

    Args:
        access: the datastore.
        follower: name of the follower.
        erasures: whether the follower must also have handled all erasures.
        listener: receives ``Total`` once, and ``Advanced`` after each call that finds progress, in added_ids.
    """

    def __init__(
        self,
        access: DatastoreAccess,
        follower: str,
        listener: Listener = ignore_events,
        *,
        erasures: bool = False,
    ) -> None:
        self._erasures = erasures
        self._follower = follower
        self._listener = listener
        self._rows = FollowerRows(access.shards)
        self._pairs: list[Pair] = [(follower, shard) for shard in range(access.shard_count)]
        self._ends: dict[Pair, int] = {}
        self._left: int | None = None
        self._reported: set[int] = set()
        self()

    def __call__(self) -> bool:
        """Read the follower's rows; return True if it has caught up."""
        looked = self._rows.look(self._pairs)
        now = looked.rows
        for pair in self._pairs:
            if pair in now:
                self._ends.setdefault(pair, now[pair].top)
            elif pair[1] not in self._reported:
                self._reported.add(pair[1])
                reason = looked.failed.get(pair[1], "it has no progress row there")
                _log.warning(
                    "cannot tell whether %s has caught up in shard %d: %s",
                    self._follower.partition(":")[2],
                    pair[1],
                    reason,
                )
        self._report(sum(max(0, self._ends[pair] - row.location) for pair, row in now.items()))
        return all(
            pair in now
            and not now[pair].replays
            and (self._is_done(now[pair], self._ends[pair]) or now[pair].state == STOPPED)
            for pair in self._pairs
        )

    def _is_done(self, row: FollowerRow, end: int) -> bool:
        return row.location >= end and (not self._erasures or row.erased_event >= row.last_event)

    def _report(self, left: int) -> None:
        if self._left is None:
            self._listener(Total(left))
        elif left < self._left:
            self._listener(Advanced(self._left - left))
        self._left = left if self._left is None else min(left, self._left)
