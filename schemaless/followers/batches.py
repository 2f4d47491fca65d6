"""Which shards' new cells a worker reads at once, and whose turn it is."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final, Protocol, TypeVar

from schemaless.cell import Page, StoredCell
from schemaless.datastore import Datastore
from schemaless.feed.reader import Tail
from schemaless.followers.membership import Pair
from schemaless.internals import internals_of

PAGE_CELLS: Final = 500
"""So many cells are dealt with before locations are written down, and so many may come again after a crash."""

_TAIL_CELLS: Final = 100
"""A shard with more new cells than that is read by itself."""

_TAILS: Final = 64
"""So many shards are read together, at most."""


class Behind(Protocol):
    """A follower in a shard, some added_ids behind the shard's end."""

    @property
    def pair(self) -> Pair:
        """Follower and shard."""

    @property
    def reached(self) -> int:
        """How far it is."""

    @property
    def behind(self) -> int:
        """How many added_ids are between that and the end, as far as is known."""


Follower = TypeVar("Follower", bound=Behind)


def next_ones(ready: deque[Follower]) -> list[Follower]:
    """Take the next one from those that are ready, and others that are to be read together with it."""
    together = [ready.popleft()]
    name, cells = together[0].pair[0], together[0].behind
    while ready and 0 < cells <= PAGE_CELLS and together[-1].behind <= _TAIL_CELLS and len(together) < _TAILS:
        following = ready[0]
        cells += following.behind
        if following.pair[0] != name or not 0 < following.behind <= _TAIL_CELLS or cells > PAGE_CELLS:
            break
        together.append(ready.popleft())
    return together


def read_together(store: Datastore, together: Sequence[Behind], column_name: str | None) -> dict[int, Page[StoredCell]]:
    """Return the pages of those that can be read in one statement, by shard; each of the others is read by itself."""
    tails = [
        Tail(follower.pair[1], follower.reached, follower.behind)
        for follower in together
        if 0 < follower.behind <= _TAIL_CELLS
    ]
    return internals_of(store).stored_tails(tails, column_name) if tails else {}


def in_turn(pairs: Iterable[Pair], last: Pair | None) -> list[Pair]:
    """Return pairs in the order in which their turns come, behind the one whose turn was last.

    Whoever begins with the same one each time never comes to the others, where there is always more of it.
    """
    ordered = sorted(pairs)
    place = 0 if last is None else bisect_right(ordered, last)
    return ordered[place:] + ordered[:place]
