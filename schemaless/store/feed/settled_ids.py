"""The settled ids of each shard, as this process knows them.

Lists of unfinished transactions and the settled ids are kept in memory, so each gap is resolved once. They describe one
primary; losing them costs one more lock query.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from schemaless.base.logger import log
from schemaless.base.type_variables import T
from schemaless.store.feed.settlement import Observation, WriteLock, observe, wait_for_writers
from schemaless.topology.replica_position import gtid_position, wait_for_gtid
from schemaless.topology.routing import Spot
from schemaless.topology.shards import Shards
from schemaless.wire.connection import Connection
from schemaless.wire.errors import CannotObserve
from schemaless.wire.node import Node
from schemaless.wire.transactions import threads_named, users_of

_Place = tuple[int, int]
"""A shard and the number of times it has changed servers; see ``Spot.place``."""

_MAX_WAITING: Final = 8
"""Maximum number of lists of unfinished transactions kept per shard."""

_NAMED_AFTER_S: Final = 1.0
_NAMED_EVERY_S: Final = 10.0

_LOCK_RETRY_S: Final = 4.0
"""Pause before writers are blocked again after a transaction stayed open for too long, in seconds."""


@dataclass(frozen=True, slots=True)
class _State:
    """Settled ids of a shard on its primary. Immutable; when several threads replace it, the last one wins.

    Attributes:
        settled: every id up to this one is settled.
        waiting: pairs ``(top, locks)`` in ascending order: once none of the locks is held, ids up to top are settled.
        retry_lock_at_s: earliest time to block writers again, on the monotonic clock.
    """

    settled: int = 0
    waiting: tuple[tuple[int, frozenset[WriteLock]], ...] = ()
    retry_lock_at_s: float = 0.0


class SettledIds:
    """Determines the id up to which each server shows every settled cell.

    Attributes:
        replica_wait_s: maximum wait for a replica to receive the settled cells, in seconds.
    """

    def __init__(self, shards: Shards) -> None:
        self.replica_wait_s: float = 1.0
        self._shards = shards
        # By shard, so that the state of a former primary is dropped.
        self._states: dict[int, tuple[_Place, _State]] = {}
        self._replica_marks: dict[tuple[int, Node], tuple[_Place, str, int]] = {}
        self._warned = False
        # The transactions that hold a shard's feed, when to read their names, and the names.
        self._names: dict[int, tuple[tuple[_Place, frozenset[WriteLock]], float, str]] = {}

    def mark(self, spot: Spot) -> int:
        """Return the id up to which the spot's server is known to show every settled cell."""
        if spot.node == spot.primary:
            return self._state(spot).settled
        place, server, mark = self._replica_marks.get((spot.shard, spot.node), (None, None, 0))
        newest = self._shards.pool_for(spot.node).address.newest
        return mark if place == spot.place and newest is not None and newest.server == server else 0

    def settle(self, spot: Spot, wanted: int) -> tuple[int, str | None]:
        """Return the id up to which the spot's server shows every settled cell; if it is below ``wanted``, also why."""
        if spot.node == spot.primary:
            return self._settle_on_primary(spot, wanted)
        mark = self.mark(spot)
        if mark >= wanted:
            return mark, None
        settled, held = self._settle_on_primary(spot, wanted)
        if settled <= mark:
            return mark, held
        # Read after the ids were settled, so the position includes all of those transactions.
        position = self._ask(spot, spot.primary, gtid_position)
        arrived, server = self._ask(
            spot,
            spot.node,
            lambda connection: (wait_for_gtid(connection, position, self.replica_wait_s), connection.server),
        )
        if not arrived:
            return mark, f"replica {spot.node} lags behind {spot.primary}"
        self._replica_marks[spot.shard, spot.node] = spot.place, server, settled
        return settled, held

    def _settle_on_primary(self, spot: Spot, wanted: int) -> tuple[int, str | None]:
        state = self._state(spot)
        if state.settled < wanted:
            state = self._observe(spot, state)
            self._states[spot.shard] = spot.place, state
        if state.settled >= wanted:
            return state.settled, None
        return state.settled, f"open transactions on {spot.primary}{self._writers(spot, state)}"

    def _writers(self, spot: Spot, state: _State) -> str:
        """Return in words whose transactions hold the feed, once they have done so for a second; seldom read again."""
        locks = state.waiting[0][1] if state.waiting else frozenset()
        now_s, (known, due_s, names) = time.monotonic(), self._names.get(spot.shard, (None, 0.0, ""))
        if known != (spot.place, locks):
            due_s, names = now_s + _NAMED_AFTER_S, ""
        elif now_s >= due_s:
            database = self._shards.database(spot.shard)
            threads = [lock.thread for lock in locks]

            def ask(connection: Connection) -> str:
                return threads_named(connection, threads) if threads else users_of(connection, database)

            due_s, names = now_s + _NAMED_EVERY_S, f": {self._ask(spot, spot.primary, ask)}"
        self._names[spot.shard] = (spot.place, locks), due_s, names
        return names

    def _observe(self, spot: Spot, state: _State) -> _State:
        database = self._shards.database(spot.shard)
        try:
            observation = self._ask(spot, spot.primary, lambda connection: observe(connection, database))
        except CannotObserve as reason:
            if not self._warned:
                self._warned = True
                log.warning("change feed: %s. Until this is fixed, writers are blocked briefly at each gap", reason)
            return self._settle_by_locking(spot, state)
        return _after(state, observation)

    def _settle_by_locking(self, spot: Spot, state: _State) -> _State:
        now_s = time.monotonic()
        if now_s < state.retry_lock_at_s:
            return state
        database = self._shards.database(spot.shard)
        top = self._ask(spot, spot.primary, lambda connection: wait_for_writers(connection, database))
        if top is None:
            return _State(state.settled, retry_lock_at_s=time.monotonic() + _LOCK_RETRY_S)
        return _State(top)

    def forget(self, spot: Spot) -> None:
        """Discard the state of a shard whose cells were lost."""
        self._states.pop(spot.shard, None)

    def _state(self, spot: Spot) -> _State:
        place, state = self._states.get(spot.shard, (None, None))
        return state if state is not None and place == spot.place else _State()

    def _ask(self, spot: Spot, node: Node, operation: Callable[[Connection], T]) -> T:
        return self._shards.run_at(spot._replace(node=node), operation)


def _after(state: _State, observation: Observation) -> _State:
    if not observation.writers:
        return _State(observation.top)
    settled = state.settled
    waiting: list[tuple[int, frozenset[WriteLock]]] = []
    for top, locks in state.waiting:
        if still_held := locks & observation.writers:
            waiting.append((top, still_held))
        else:
            settled = top
            waiting.clear()
    if len(waiting) < _MAX_WAITING and observation.top > (waiting[-1][0] if waiting else settled):
        waiting.append((observation.top, observation.writers))
    return _State(settled, tuple(waiting))
