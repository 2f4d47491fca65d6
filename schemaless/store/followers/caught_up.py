"""Tells when a follower has handled all cells and erasures that existed at a given time, and reports its progress."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from typing import Final

from schemaless.base.events import Advanced, Listener, Total, ignore_events
from schemaless.errors import ServerError
from schemaless.store.followers.access import DatastoreAccess
from schemaless.store.followers.membership import Pair
from schemaless.store.followers.rows import FollowerRow, FollowerRows
from schemaless.store.followers.settings import Settings
from schemaless.store.followers.states import DIED, PAUSED, STOPPED
from schemaless.store.followers.status import WorkerStatus, workers_of

_log = logging.getLogger("schemaless")

_MAX_ATTEMPTS: Final = 8
"""Number of failures, or of workers killed, after which a run that is to end no longer waits for a shard."""


class Patience:
    """Decides which shards a run that is to end no longer waits for.

    Args:
        follower: name of the follower.
    """

    def __init__(self, follower: str) -> None:
        self._follower = follower
        # By shard: the place where deaths are counted, and the epoch before the first of them.
        self._places: dict[int, tuple[tuple[int, int], int]] = {}

    def lost(
        self, workers: Iterable[WorkerStatus], left: Mapping[int, FollowerRow], behind: Collection[int] = ()
    ) -> dict[int, str]:
        """Return the shards that failed too often or killed too many workers, and why; called at each poll.

        Args:
            workers: the live workers of the follower.
            left: the rows of the shards that are not done, by shard.
            behind: shards whose cells are not handled yet; failures of their erasures do not count.
        """
        failing = {
            shard: (failures, error)
            for worker in workers
            for name, shard, failures, error in worker.reported.get("erasures", [])
            if name == self._follower and shard not in behind
        }
        lost = {}
        for shard, row in left.items():
            deaths = self._deaths(shard, row)
            failures, error = failing.get(shard, (0, ""))
            if failures >= _MAX_ATTEMPTS:
                lost[shard] = error or "the log of its worker has the error"
            elif deaths >= _MAX_ATTEMPTS:
                # A shard that has stopped for another reason keeps the message about that.
                message = row.message or ""
                lost[shard] = message if message.startswith(DIED) else DIED
        return lost

    def _deaths(self, shard: int, row: FollowerRow) -> int:
        place = row.location, row.erased_event
        seen, epoch = self._places.get(shard, (None, 0))
        if seen != place or not (row.quarantined or row.state == STOPPED):
            epoch = row.epoch
            self._places[shard] = place, epoch
        # For each worker that dies, the epoch rises twice: by its claim, and by the quarantine after its death.
        return (row.epoch - epoch) // 2


class CaughtUp:
    """A predicate that is true once a follower has handled all cells and erasures that existed when it was created.

    It is also true if the follower is paused before that.

    Stopped shards count as done once their erasures are handled. Shards that cannot be read, have no row, or have
    parked cells to try again do not count as done.

    Args:
        access: the datastore.
        follower: name of the follower.
        listener: receives ``Total`` once, and ``Advanced`` after each call that finds progress, in added_ids.

    Attributes:
        gave_up: shards whose erasures are not handled after eight failures, and the error of each. They are retried by
            the next workers.
        paused: whether the follower is paused and has not caught up.
    """

    def __init__(self, access: DatastoreAccess, follower: str, listener: Listener = ignore_events) -> None:
        self.gave_up: dict[int, str] = {}
        self.paused: bool = False
        self._access = access
        self._follower = follower
        self._listener = listener
        self._rows = FollowerRows(access.shards)
        self._pairs: list[Pair] = [(follower, shard) for shard in range(access.shard_count)]
        self._began: dict[Pair, FollowerRow] = {}
        self._patience = Patience(follower)
        self._left: int | None = None
        self._reported: set[int] = set()
        self()

    def __call__(self) -> bool:
        """Read the follower's rows; return True if it has caught up or is paused."""
        try:
            done = self._is_done()
            setting = None if done else Settings(self._access).all().get(self._follower)
        except ServerError as error:
            if not error.retryable:
                raise
            # The workers wait for the catalog's server too.
            return False
        self.paused = setting is not None and setting.desired_state == PAUSED
        return done or self.paused

    def _is_done(self) -> bool:
        looked = self._rows.look(self._pairs)
        now = looked.rows
        for pair in self._pairs:
            if pair in now:
                self._began.setdefault(pair, now[pair])
            elif pair[1] not in self._reported:
                self._reported.add(pair[1])
                reason = looked.failed.get(pair[1], "it has no progress row there")
                _log.warning(
                    "cannot tell whether %s has caught up in shard %d: %s",
                    self._follower.partition(":")[2],
                    pair[1],
                    reason,
                )
        self._report(sum(max(0, self._began[pair].top - row.location) for pair, row in now.items()))
        if not all(
            pair in now
            and not now[pair].replays
            and (now[pair].location >= self._began[pair].top or now[pair].state == STOPPED)
            for pair in self._pairs
        ):
            return False
        left = {pair[1]: row for pair, row in now.items() if row.erased_event < self._began[pair].last_event}
        self.gave_up = self._patience.lost(workers_of(self._access, self._follower), left) if left else {}
        return len(self.gave_up) == len(left)

    def _report(self, left: int) -> None:
        if self._left is None:
            self._listener(Total(left))
        elif left < self._left:
            self._listener(Advanced(self._left - left))
        self._left = left if self._left is None else min(left, self._left)
