"""Which shards are read together, and in which order."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final

from schemaless.cell import Page, StoredCell
from schemaless.store.feed.reader import Tail
from schemaless.store.followers.access import StoredFeed
from schemaless.store.followers.lease_state import LeaseState
from schemaless.store.followers.membership import Pair

PAGE_CELLS: Final = 500
"""Maximum number of cells per page, and of cells that are handled again after a crash."""

_TAIL_CELLS: Final = 100
"""A shard with more new cells than this is read on its own."""

_TAILS: Final = 64
"""Maximum number of shards that are read together."""


def next_batch(ready: deque[LeaseState]) -> list[LeaseState]:
    """Remove and return the first ready shard and the ones after it that can be read together with it."""
    batch = [ready.popleft()]
    name, cells = batch[0].pair[0], batch[0].lag
    while ready and 0 < cells <= PAGE_CELLS and batch[-1].lag <= _TAIL_CELLS and len(batch) < _TAILS:
        following = ready[0]
        cells += following.lag
        if following.pair[0] != name or not 0 < following.lag <= _TAIL_CELLS or cells > PAGE_CELLS:
            break
        batch.append(ready.popleft())
    return batch


def read_batch(feed: StoredFeed, batch: Sequence[LeaseState], column_name: str | None) -> dict[int, Page[StoredCell]]:
    """Read a batch in one statement per server; return pages by shard, without shards that need their own read."""
    tails = [
        Tail(follower.pair[1], follower.reached, follower.lag) for follower in batch if 0 < follower.lag <= _TAIL_CELLS
    ]
    return feed.tails(tails, column_name) if tails else {}


def in_turn(pairs: Iterable[Pair], last: Pair | None) -> list[Pair]:
    """Return pairs in order, starting after the last one served.

    Starting with the same pair each time would starve the others if that pair always had more cells.
    """
    ordered = sorted(pairs)
    place = 0 if last is None else bisect_right(ordered, last)
    return ordered[place:] + ordered[:place]
