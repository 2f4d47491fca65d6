"""The shards that the current membership assigns to one worker."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import NamedTuple

from schemaless.store.followers.membership import HEALTHY, QUARANTINE, Member, Pair, Role, View


class Assigned(NamedTuple):
    """A worker's pairs of follower and shard: those that it serves if healthy, those that it serves if quarantined."""

    healthy: frozenset[Pair]
    quarantined: frozenset[Pair]


class Assignments:
    """Computes a worker's assignments, and remembers them until members or followers change.

    Args:
        worker: name of the worker.
        role: which shards it serves.
        followers: names of its followers.
        shard_count: number of shards of the datastore.
    """

    def __init__(self, worker: str, role: Role, followers: Collection[str], shard_count: int) -> None:
        self._worker = worker
        self._role = role
        self._followers = followers
        self._shard_count = shard_count
        self._known: tuple[tuple[tuple[Member, ...], frozenset[str]], Assigned] | None = None

    def of(self, view: View) -> Assigned:
        """Return the pairs that are assigned to the worker."""
        key = view.members, frozenset(view.desired_states)
        if self._known is None or self._known[0] != key:
            healthy = frozenset() if self._role == QUARANTINE else frozenset(self._pairs(view, quarantined=False))
            quarantined = frozenset() if self._role == HEALTHY else frozenset(self._pairs(view, quarantined=True))
            self._known = key, Assigned(healthy, quarantined)
        return self._known[1]

    def _pairs(self, view: View, *, quarantined: bool) -> Iterator[Pair]:
        for name in self._followers:
            for shard in range(self._shard_count) if name in view.desired_states else ():
                if view.owner((name, shard), quarantined=quarantined) == self._worker:
                    yield name, shard
