"""Tells when a follower has handled all cells and erasures that existed at a given time, and reports its progress."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from schemaless.base.events import Advanced, Listener, Total, ignore_events
from schemaless.base.logger import log
from schemaless.errors import SchemalessError, ServerError
from schemaless.store.followers.access import DatastoreAccess
from schemaless.store.followers.rows import FollowerRow, FollowerRows
from schemaless.store.followers.settings import Settings
from schemaless.store.followers.states import DIED, PAUSED, STOPPED
from schemaless.store.followers.status import workers_of

_MAX_ATTEMPTS: Final = 8
"""Number of failures, or of workers killed, after which a run that is to end no longer waits for a shard."""


class Progress:
    """How far a follower has handled the cells and erasures that existed when each shard was first read.

    Args:
        access: the datastore.
        follower: name of the follower.

    Attributes:
        began: each shard's row when it was first read.
        rows: each shard's row as of the last read; shards that have none or cannot be read are absent.
        failed: the error of each shard that could not be read.
    """

    def __init__(self, access: DatastoreAccess, follower: str) -> None:
        self.began: dict[int, FollowerRow] = {}
        self._access = access
        self._follower = follower
        self._rows = FollowerRows(access.shards)
        # By shard: the place where deaths are counted, and the epoch before the first of them.
        self._places: dict[int, tuple[tuple[int, int], int]] = {}
        self.read()

    def read(self) -> None:
        """Read the follower's rows."""
        looked = self._rows.look((self._follower, shard) for shard in range(self._access.shard_count))
        self.rows: dict[int, FollowerRow] = {shard: row for (_, shard), row in looked.rows.items()}
        self.failed: dict[int, SchemalessError] = looked.failed
        self.began = self.rows | self.began

    @property
    def total(self) -> int:
        """Number of added_ids that existed, summed over the shards."""
        return sum(row.top for row in self.began.values())

    @property
    def done(self) -> int:
        """Number of those that are handled."""
        return sum(min(row.location, self.began[shard].top) for shard, row in self.rows.items())

    @property
    def left(self) -> int:
        """Number of those that are not handled, in shards that can be read."""
        return sum(max(0, self.began[shard].top - row.location) for shard, row in self.rows.items())

    @property
    def behind(self) -> set[int]:
        """Shards whose cells are not handled; a stopped follower handles none."""
        return {shard for shard in range(self._access.shard_count) if not self._has_cells(shard)}

    @property
    def unerased(self) -> set[int]:
        """Shards whose erasures are not handled."""
        rows, began = self.rows, self.began
        return {
            shard
            for shard in range(self._access.shard_count)
            if shard not in rows or rows[shard].erased_event < began[shard].last_event
        }

    def gave_up(self, shards: Collection[int]) -> dict[int, str]:
        """Return which of the shards a run that is to end no longer waits for, and why; called at each poll.

        These are shards that killed eight workers at the same place, or whose erasures failed eight times although
        their cells are handled.
        """
        behind = self.behind
        failing = {
            shard: (failures, error)
            for worker in (workers_of(self._access, self._follower) if shards else ())
            for name, shard, failures, error in worker.reported.get("erasures", [])
            if name == self._follower and shard not in behind
        }
        lost = {}
        for shard, row in ((shard, self.rows[shard]) for shard in shards if shard in self.rows):
            deaths = self._deaths(shard, row)
            failures, error = failing.get(shard, (0, ""))
            if failures >= _MAX_ATTEMPTS:
                lost[shard] = error or "the log of its worker has the error"
            elif deaths >= _MAX_ATTEMPTS:
                # A shard that has stopped for another reason keeps the message about that.
                message = row.message or ""
                lost[shard] = message if message.startswith(DIED) else DIED
        return lost

    def _has_cells(self, shard: int) -> bool:
        row = self.rows.get(shard)
        if row is None or row.replays:
            return False
        return row.location >= self.began[shard].top or row.state == STOPPED

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
        self._progress = Progress(access, follower)
        self._left = self._progress.left
        self._reported: set[int] = set()
        listener(Total(self._left))

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
        progress = self._progress
        progress.read()
        for shard in set(range(self._access.shard_count)) - progress.rows.keys() - self._reported:
            self._reported.add(shard)
            log.warning(
                "cannot tell whether %s has caught up in shard %d: %s",
                self._follower.partition(":")[2],
                shard,
                progress.failed.get(shard, "it has no progress row there"),
            )
        if progress.left < self._left:
            self._listener(Advanced(self._left - progress.left))
            self._left = progress.left
        if progress.behind:
            return False
        self.gave_up = progress.gave_up(progress.unerased)
        return self.gave_up.keys() == progress.unerased
