"""Tells when a follower has handled all cells and erasures that existed at a given time, and reports its progress."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Final

from schemaless.base.events import Advanced, Listener, Total, ignore_events
from schemaless.store.followers.access import DatastoreAccess
from schemaless.store.followers.membership import Pair
from schemaless.store.followers.rows import FollowerRow, FollowerRows
from schemaless.store.followers.states import DIED, STOPPED
from schemaless.store.followers.status import workers_of

_log = logging.getLogger("schemaless")

_MAX_ERASURE_ATTEMPTS: Final = 8
"""Number of failures, or of workers killed, after which a run that is to end no longer waits for a shard's erasures."""


class CaughtUp:
    """A predicate that is true once a follower has handled all cells and erasures that existed when it was created.

    Stopped shards count as done once their erasures are handled. Shards that cannot be read, have no row, or have
    parked cells to try again do not count as done.

    Args:
        access: the datastore.
        follower: name of the follower.
        listener: receives ``Total`` once, and ``Advanced`` after each call that finds progress, in added_ids.

    Attributes:
        gave_up: shards whose erasures are not handled after eight failures, and the error of each. They are retried by
            the next workers.
    """

    def __init__(self, access: DatastoreAccess, follower: str, listener: Listener = ignore_events) -> None:
        self.gave_up: dict[int, str] = {}
        self._access = access
        self._follower = follower
        self._listener = listener
        self._rows = FollowerRows(access.shards)
        self._pairs: list[Pair] = [(follower, shard) for shard in range(access.shard_count)]
        self._began: dict[Pair, FollowerRow] = {}
        self._epochs: dict[int, int] = {}
        self._left: int | None = None
        self._reported: set[int] = set()
        self()

    def __call__(self) -> bool:
        """Read the follower's rows; return True if it has caught up."""
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
        self.gave_up = dict(self._hopeless(left)) if left else {}
        return len(self.gave_up) == len(left)

    def _hopeless(self, left: Mapping[int, FollowerRow]) -> Iterable[tuple[int, str]]:
        """Yield the shards whose erasures have failed too often, with the last error."""
        failing = {
            shard: (failures, error)
            for worker in workers_of(self._access, self._follower)
            for name, shard, failures, error in worker.reported.get("erasures", [])
            if name == self._follower
        }
        for shard, row in left.items():
            failures, error = failing.get(shard, (0, ""))
            if not row.quarantined:
                self._epochs[shard] = row.epoch
            # For each worker that dies, the epoch rises twice: by its claim, and by the quarantine after its death.
            deaths = (row.epoch - self._epochs.setdefault(shard, row.epoch)) // 2
            if max(failures, deaths) >= _MAX_ERASURE_ATTEMPTS:
                yield shard, error or row.message or DIED

    def _report(self, left: int) -> None:
        if self._left is None:
            self._listener(Total(left))
        elif left < self._left:
            self._listener(Advanced(self._left - left))
        self._left = left if self._left is None else min(left, self._left)
