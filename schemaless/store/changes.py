"""The change feed: a shard's cells in ``added_id`` order, none of them skipped.

Ids are handed out before transactions commit, so a reader who goes on behind the highest id that he has seen skips what
is committed late with a lower one. Here ids are given out as *settled* only:

- Ids without a gap between them are, since cells are never deleted and no other can come between.
- Else read the highest id, top; then list who is writing (``mysql.writers``). Whoever may still commit an id up to top
  is in that list, since the lock comes before the id. When all of them have ended, every id up to top is settled: the
  cells up to there are read again, afresh.

Lists that are not done with wait in memory, and so do the settled marks, so that a gap is looked into once. All of it
is about one primary; losing it costs one more look.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from schemaless.cluster.topology import Node
from schemaless.errors import LocationLost, ServerTimeout
from schemaless.mysql.connection import Check, Rows
from schemaless.mysql.errors import CannotObserve
from schemaless.mysql.sql.cells import select_block_end, select_ids
from schemaless.mysql.writers import (
    Observation,
    WriteLock,
    gtid_position,
    observe,
    top_id,
    wait_for_gtid,
    wait_for_writers,
)
from schemaless.store.pages import PageSize, Row, read_page
from schemaless.store.shards import ReadFrom, Shards

log = logging.getLogger("schemaless")

_SCANNED_IDS: Final = 10_000
"""How many ids a page goes over at most when it is about one column."""

_LISTS: Final = 8
_HELD_POLL_S: Final = 0.02
_LOCK_REST_S: Final = 4.0
"""How long writers are left alone after they were held off in vain."""

_REPLICA_WAIT_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class _Feed:
    """What is known of a shard's ids on its primary. Never changed: threads replace it, and the last one wins.

    Attributes:
        settled: no id up to here can come any more.
        waiting: ``(top, locks)``, rising: all up to top is settled when none of the locks is held any more.
        rest_until_s: when writers may be held off again, on the monotonic clock.
    """

    settled: int = 0
    waiting: tuple[tuple[int, frozenset[WriteLock]], ...] = ()
    rest_until_s: float = 0.0


class RowPage(NamedTuple):
    """A ``Page``, of rows: who iterates makes one cell after the other, and seldom wakes the garbage collector."""

    rows: Sequence[Row]
    next_location: int
    held: str | None = None


@dataclass(slots=True)
class Changes:
    """The change feeds of one datastore's shards."""

    shards: Shards
    _feeds: dict[int, _Feed] = field(default_factory=dict)
    _replica_marks: dict[tuple[int, Node], int] = field(default_factory=dict)
    _sizes: dict[int, PageSize] = field(default_factory=dict)
    _warned: bool = False

    def page(self, shard: int, location: int, limit: int, column_name: str | None, read_from: ReadFrom) -> RowPage:
        """Return settled cells behind ``location``; see ``Datastore.get_cells_for_shard``."""
        node = self.shards.node_of(shard, read_from)
        if column_name is None:
            return self._page(node, shard, location, limit)
        return self._page_of_column(node, shard, location, limit, column_name)

    def pages(
        self, shard: int, location: int, limit: int, column_name: str | None, read_from: ReadFrom
    ) -> Iterator[RowPage]:
        """Yield pages up to the end of what is settled."""
        while True:
            page = self.page(shard, location, limit, column_name, read_from)
            if page.next_location == location:
                return
            yield page
            location = page.next_location

    def follow(
        self, shard: int, location: int, limit: int, column_name: str | None, read_from: ReadFrom, poll_s: float
    ) -> Iterator[RowPage]:
        """Yield pages for ever, waiting for new cells; empty ones, too, for callers that watch."""
        while True:
            page = self.page(shard, location, limit, column_name, read_from)
            yield page
            if page.next_location == location:
                time.sleep(min(poll_s, _HELD_POLL_S) if page.held else poll_s)
            location = page.next_location

    def end(self, shard: int, timeout_s: float) -> int:
        """Return a location that all cells which are there now lie before, and all later ones behind."""
        primary = self.shards.node_of(shard)
        top = self.shards.run_on(primary, shard, lambda connection: top_id(connection, self.shards.database(shard)))
        give_up_s = time.monotonic() + timeout_s
        while True:
            settled, held = self._settle(primary, shard, top)
            if settled >= top:
                return settled
            if time.monotonic() > give_up_s:
                raise ServerTimeout(
                    f"the feed's end is not settled after {timeout_s:g} s: {held}", node=str(primary), shard=shard
                )
            time.sleep(_HELD_POLL_S)

    # What is settled

    def _mark(self, node: Node, shard: int) -> int:
        """Return an id up to which ``node`` is known to show every cell that there will be."""
        if node == self.shards.node_of(shard):
            feed = self._feeds.get(shard)
            return 0 if feed is None else feed.settled
        return self._replica_marks.get((shard, node), 0)

    def _settle(self, node: Node, shard: int, wanted: int) -> tuple[int, str | None]:
        """Return the highest id up to which ``node`` shows every cell that there will be, and what that waits for."""
        primary = self.shards.node_of(shard)
        if node == primary:
            return self._settle_on_primary(primary, shard, wanted)
        mark = self._mark(node, shard)
        if mark >= wanted:
            return mark, None
        settled, held = self._settle_on_primary(primary, shard, wanted)
        if settled <= mark:
            return mark, held
        # Asked for behind the settling: so it has all those transactions.
        position = self.shards.run_on(primary, shard, gtid_position)
        arrived = self.shards.run_on(
            node, shard, lambda connection: wait_for_gtid(connection, position, _REPLICA_WAIT_S)
        )
        if not arrived:
            return mark, f"replica {node} lags behind {primary}"
        self._replica_marks[shard, node] = settled
        return settled, held

    def _settle_on_primary(self, primary: Node, shard: int, wanted: int) -> tuple[int, str | None]:
        feed = self._feeds.get(shard, _Feed())
        if feed.settled < wanted:
            feed = self._look(primary, shard, feed)
            self._feeds[shard] = feed
        if feed.settled >= wanted:
            return feed.settled, None
        if feed.waiting:
            threads = ", ".join(str(lock.thread) for lock in sorted(feed.waiting[0][1]))
            return feed.settled, f"transactions that stay open on {primary}, performance_schema threads {threads}"
        return feed.settled, f"a transaction that stays open on {primary}"

    def _look(self, primary: Node, shard: int, feed: _Feed) -> _Feed:
        database = self.shards.database(shard)
        try:
            seen = self.shards.run_on(primary, shard, lambda connection: observe(connection, database))
        except CannotObserve as reason:
            if not self._warned:
                self._warned = True
                log.warning("change feed: %s. Until then writers are held off for a moment at each gap", reason)
            return self._look_without_observing(primary, shard, feed)
        return _after(feed, seen)

    def _look_without_observing(self, primary: Node, shard: int, feed: _Feed) -> _Feed:
        now_s = time.monotonic()
        if now_s < feed.rest_until_s:
            return feed
        database = self.shards.database(shard)
        top = self.shards.run_on(primary, shard, lambda connection: wait_for_writers(connection, database))
        if top is None:
            return _Feed(feed.settled, rest_until_s=time.monotonic() + _LOCK_REST_S)
        return _Feed(top)

    # Reading

    def _page(self, node: Node, shard: int, location: int, limit: int) -> RowPage:
        settled_before = self._mark(node, shard)
        rows, _ = self._read(node, shard, location, None, limit)
        if not rows:
            self._check_location(node, shard, location)
            return RowPage([], location)
        last = rows[-1][0]
        if last - location == len(rows) or last <= settled_before:
            return RowPage(rows, last)
        settled, held = self._settle(node, shard, last)
        if settled > location:
            rows, _ = self._read(node, shard, location, settled, limit)
            if not rows:
                return RowPage([], settled, held)
            last = rows[-1][0]
            return RowPage(rows, last, held if last == settled else None)
        before_gap = [row for added_id, row in enumerate(rows, location + 1) if row[0] == added_id]
        return RowPage(before_gap, location + len(before_gap), held)

    def _page_of_column(self, node: Node, shard: int, location: int, limit: int, column_name: str) -> RowPage:
        end = self._end_of_ids(node, shard, location, None, limit)
        if end is None:
            self._check_location(node, shard, location)
            return RowPage([], location)
        last, without_gap = end
        held = None
        if not without_gap:
            settled, held = self._settle(node, shard, last)
            if settled > location:
                end = self._end_of_ids(node, shard, location, settled, limit)
                if end is None:
                    return RowPage([], settled, held)
                last, _ = end
                if last < settled:
                    held = None
            else:
                last = self._before_first_gap(node, shard, location, last)
                if last == location:
                    return RowPage([], location, held)
        rows, more = self._read(node, shard, location, last, limit, column_name)
        return RowPage(rows, rows[-1][0]) if more else RowPage(rows, last, held)

    def _end_of_ids(self, node: Node, shard: int, after: int, up_to: int | None, limit: int) -> tuple[int, bool] | None:
        """Return the last id of the next ones, and whether none is missing before it; None where there is no cell."""
        sql = select_block_end(self.shards.database(shard), after, max(limit, _SCANNED_IDS), up_to)
        last, count = self._rows(node, shard, sql)[0]
        return None if last is None else (int(last), int(last) - after == int(count))

    def _before_first_gap(self, node: Node, shard: int, after: int, up_to: int) -> int:
        sql = select_ids(self.shards.database(shard), after, up_to)
        for (added_id,) in self._rows(node, shard, sql):
            if added_id != after + 1:
                break
            after = added_id
        return after

    def _read(
        self, node: Node, shard: int, after: int, up_to: int | None, limit: int, column_name: str | None = None
    ) -> tuple[Sequence[Row], bool]:
        """Return the next cells, and whether there may be more behind them."""
        return read_page(
            lambda sql, check: self._rows(node, shard, sql, check),
            self._sizes.setdefault(shard, PageSize()),
            self.shards.database(shard),
            after,
            up_to,
            limit,
            column_name=column_name,
        )

    def _check_location(self, node: Node, shard: int, location: int) -> None:
        """Raise where cells that were read before are gone.

        Raises:
            LocationLost: there is no cell at or behind ``location`` on the primary.
        """
        if location == 0:
            return
        primary = self.shards.node_of(shard)
        database = self.shards.database(shard)
        for place in dict.fromkeys((node, primary)):
            last = self.shards.run_on(place, shard, lambda connection: top_id(connection, database))
            if last >= location:
                return
        self._feeds.pop(shard, None)
        raise LocationLost(shard, location, last)

    def _rows(self, node: Node, shard: int, sql: bytes, check: Check | None = None) -> Rows:
        return self.shards.run_on(node, shard, lambda connection: connection.rows(sql, check))


def _after(feed: _Feed, seen: Observation) -> _Feed:
    """Return what is known after one more look."""
    if not seen.writers:
        return _Feed(seen.top)
    settled = feed.settled
    waiting: list[tuple[int, frozenset[WriteLock]]] = []
    for top, locks in feed.waiting:
        if left := locks & seen.writers:
            waiting.append((top, left))
        else:
            settled = top
            waiting.clear()
    if len(waiting) < _LISTS and seen.top > (waiting[-1][0] if waiting else settled):
        waiting.append((seen.top, seen.writers))
    return _Feed(settled, tuple(waiting))
