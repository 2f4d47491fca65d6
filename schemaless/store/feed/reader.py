"""The change feed: a shard's cells in ``added_id`` order, none of them skipped.

Ids are assigned before transactions commit, so a reader that continues after the highest id it has seen skips cells
that are committed late with a lower id. This reader only returns cells up to an id that is *settled*: no cell with a
lower id can appear any more.

- Ids without a gap between them are settled, because cells are never deleted.
- Otherwise, the reader takes the highest visible id (top), then lists the transactions that are writing
  (``settlement``). A transaction takes its lock before its id, so every transaction that may still commit an id up to
  top is in that list. Once all of them have ended, every id up to top is settled, and the cells up to top are read
  again.

Settled ids describe one primary (``settled_ids``), so a page uses one routing from its first statement to its last. If
the shard moves in between, the page is read again on the new server, without the old server's settled ids.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import Any, Final, NamedTuple

from schemaless.base.logger import log
from schemaless.base.parts import grouped
from schemaless.base.type_variables import T
from schemaless.codec.deltas import Payloads
from schemaless.errors import LocationLost, SchemalessError, ServerTimeout
from schemaless.store.cells.bases import CHAINED_HEADERS
from schemaless.store.cells.cold_bodies import ColdBodies
from schemaless.store.cells.paging import MAX_PAGE_BYTES, PageSize, Scan
from schemaless.store.cells.sql import Row, select_block_end
from schemaless.store.feed.settled_ids import SettledIds
from schemaless.store.feed.settlement import top_id
from schemaless.store.feed.sql import select_ids, select_tails
from schemaless.topology.routing import Routing, Spot
from schemaless.topology.shards import ReadFrom, Shards
from schemaless.wire.connection import Check, Connection, Rows
from schemaless.wire.errors import Elsewhere
from schemaless.wire.node import Node
from schemaless.wire.pool import NodePool

_SCANNED_IDS: Final = 10_000
"""Maximum number of ids that a page of one column examines, unless its limit is higher."""

_HELD_POLL_S: Final = 0.02


class Tail(NamedTuple):
    """A request for a shard's next cells: strictly after a location, at most ``limit`` of them."""

    shard: int
    location: int
    limit: int


class RowPage(NamedTuple):
    """A ``Page`` of rows. Converting rows to cells one at a time keeps the garbage collector from running often."""

    rows: Sequence[Row]
    next_location: int
    held: str | None = None


@dataclass(slots=True)
class Changes:
    """The change feeds of a datastore's shards.

    Attributes:
        shards: the datastore's shards.
        cold: reads the documents of cold cells; None to return their references.
        settled: the settled ids of each shard.
    """

    shards: Shards
    cold: ColdBodies | None = None
    settled: SettledIds = field(init=False)
    _sizes: dict[int, PageSize] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.settled = SettledIds(self.shards)

    def page(
        self,
        shard: int,
        location: int,
        limit: int,
        column_name: str | None,
        read_from: ReadFrom,
        payloads: Payloads | None = None,
    ) -> RowPage:
        """Return settled cells after ``location``; see ``Datastore.get_cells_for_shard``.

        ``payloads`` are those of earlier pages.
        """

        def page(spot: Spot) -> RowPage:
            if column_name is None:
                return self._page(spot, location, limit, payloads)
            return self._page_of_column(spot, location, limit, column_name, payloads)

        return self._follow(shard, read_from, page)

    def tails(self, tails: Sequence[Tail], column_name: str | None) -> dict[int, RowPage]:
        """Read pages of many shards from their primaries, with one statement per server.

        Only simple cases are handled: the shard has already been verified on its primary, no id is missing that may
        still appear, and no body is too long for a statement about many shards. Other shards are absent from the
        result; ``page`` reads them.

        Args:
            tails: the requests, at most one per shard.
            column_name: return only cells of this column.
        """
        self.shards.router.refresh_if_due()
        routing = self.shards.routing
        by_pool = grouped((pool, tail) for tail in tails if (pool := routing.proven[tail.shard]) is not None)
        pages: dict[int, RowPage] = {}
        for pool, wanted in by_pool.items():
            # Before the read: ids that are settled later may include cells that the read does not see.
            marks = {
                shard: self.settled.mark(Spot(routing, shard, routing.clusters[shard].primary))
                for shard, _, _ in wanted
            }
            try:
                rows = self._read_tails(pool, routing, wanted, column_name)
            except SchemalessError as error:
                # One shard's error fails the statement for all; read alone, each meets only its own.
                log.debug("reading %d shards one by one: %s", len(wanted), error)
                continue
            for tail in wanted:
                page = self._tail_page(marks[tail.shard], tail.location, rows.get(tail.shard, []), column_name)
                if page is not None:
                    pages[tail.shard] = page
        return pages

    def _read_tails(
        self, pool: NodePool, routing: Routing, tails: Sequence[Tail], column_name: str | None
    ) -> dict[int, list[tuple[Any, ...]]]:
        wanted = {tail.shard: tail.location for tail in tails}
        sql = select_tails(
            ((self.shards.database(shard), shard, location, limit) for shard, location, limit in tails),
            MAX_PAGE_BYTES // sum(tail.limit for tail in tails),
            column_name,
        )

        def check(rows: Rows) -> str | None:
            for added_id, *_, shard in rows:
                if added_id <= wanted.get(shard, added_id):
                    return f"requested {sorted(wanted.items())}, got added_id {added_id} of shard {shard}"
            return None

        rows = pool.run(lambda connection: connection.rows(sql, check), shard=tails[0].shard, route=routing)
        return {shard: list(of_shard) for shard, of_shard in groupby(rows, key=itemgetter(-1))}

    def _tail_page(
        self, mark: int, location: int, rows: Sequence[tuple[Any, ...]], column_name: str | None
    ) -> RowPage | None:
        if not rows:
            return None
        last = rows[-1][0]
        if last - location != len(rows) and last > mark:
            return None
        cells = [row[:6] for row in rows if column_name is None or row[2] == column_name]
        if any(cell[4] is None or cell[4][:2] in CHAINED_HEADERS for cell in cells):
            return None
        return RowPage(cells, last)

    def pages(
        self,
        shard: int,
        location: int,
        limit: int,
        column_name: str | None,
        read_from: ReadFrom,
        poll_s: float | None = None,
    ) -> Iterator[RowPage]:
        """Yield pages up to the last settled cell, or forever.

        Args:
            shard, location, limit, column_name, read_from: as for ``page``.
            poll_s: interval at which to check for new cells, in seconds; empty pages are then yielded as well, so that
                callers can act in between. None to end at the last settled cell.
        """
        payloads = Payloads()
        while True:
            page = self.page(shard, location, limit, column_name, read_from, payloads)
            is_end = page.next_location == location
            if is_end and poll_s is None:
                return
            yield page
            if is_end and poll_s is not None:
                self.shards.runtime.sleep(min(poll_s, _HELD_POLL_S) if page.held else poll_s)
            location = page.next_location

    def end(self, shard: int, timeout_s: float) -> int:
        """Return a location after all existing cells and before all future ones; see ``Datastore.end_of_shard``."""
        deadline_s = time.monotonic() + timeout_s

        def end(spot: Spot) -> int:
            database = self.shards.database(shard)
            top = self._ask(spot, spot.primary, lambda connection: top_id(connection, database))
            while True:
                settled, held = self.settled.settle(spot, top)
                if settled >= top:
                    return settled
                if time.monotonic() > deadline_s:
                    raise ServerTimeout(
                        f"the end of the change feed was not settled within {timeout_s:g} s; waiting for {held}",
                        node=str(spot.primary),
                        shard=shard,
                    )
                self.shards.runtime.sleep(_HELD_POLL_S)

        return self._follow(shard, "primary", end)

    # Routing

    def _follow(self, shard: int, read_from: ReadFrom, work: Callable[[Spot], T]) -> T:
        """Return the result of ``work`` on the shard's server; repeat it on the new server if the shard moves."""
        self.shards.router.refresh_if_due()
        return self.shards.follow(shard, read_from, lambda spot: self._on_one_server(spot, work))

    def _on_one_server(self, spot: Spot, work: Callable[[Spot], T]) -> T:
        """Return the result of ``work`` from one server, as what one replica shows may be missing on another.

        Raises:
            Elsewhere: the replica's address has moved in the meantime.
        """
        if spot.node == spot.primary:
            return work(spot)
        address = self.shards.pool_for(spot.node).address
        if address.is_balanced:
            return work(spot._replace(node=spot.primary))
        before = address.newest
        result = work(spot)
        if before is not None and address.newest is not None and address.newest.server != before.server:
            message = "the replica's address leads to another server than before; make the same call again"
            raise Elsewhere(message, node=str(spot.node), shard=spot.shard)
        return result

    def _ask(self, spot: Spot, node: Node, operation: Callable[[Connection], T]) -> T:
        """Run ``operation`` on a server of the shard's cluster, using the spot's routing."""
        return self.shards.run_at(spot._replace(node=node), operation)

    # Reading

    def _page(self, spot: Spot, location: int, limit: int, payloads: Payloads | None) -> RowPage:
        settled_before = self.settled.mark(spot)
        rows, _ = self._read(spot, location, None, limit, payloads)
        if not rows:
            self._check_location(spot, location)
            return RowPage([], location)
        last = rows[-1][0]
        if last - location == len(rows) or last <= settled_before:
            return RowPage(rows, last)
        settled, held = self.settled.settle(spot, last)
        if settled > location:
            rows, _ = self._read(spot, location, settled, limit, payloads)
            if not rows:
                return RowPage([], settled, held)
            last = rows[-1][0]
            return RowPage(rows, last, held if last == settled else None)
        before_gap = [row for added_id, row in enumerate(rows, location + 1) if row[0] == added_id]
        return RowPage(before_gap, location + len(before_gap), held)

    def _page_of_column(
        self, spot: Spot, location: int, limit: int, column_name: str, payloads: Payloads | None
    ) -> RowPage:
        end = self._end_of_ids(spot, location, None, limit)
        if end is None:
            self._check_location(spot, location)
            return RowPage([], location)
        last, without_gap = end
        held = None
        if not without_gap:
            settled, held = self.settled.settle(spot, last)
            if settled > location:
                end = self._end_of_ids(spot, location, settled, limit)
                if end is None:
                    return RowPage([], settled, held)
                last, _ = end
                if last < settled:
                    held = None
            else:
                last = self._before_first_gap(spot, location, last)
                if last == location:
                    return RowPage([], location, held)
        rows, more = self._read(spot, location, last, limit, payloads, column_name)
        return RowPage(rows, rows[-1][0]) if more else RowPage(rows, last, held)

    def _end_of_ids(self, spot: Spot, after: int, up_to: int | None, limit: int) -> tuple[int, bool] | None:
        """Return the last id of the next block of cells, and whether no id before it is missing; None without cells."""
        sql = select_block_end(self.shards.database(spot.shard), after, max(limit, _SCANNED_IDS), up_to)
        last, count = self._rows(spot, sql)[0]
        return None if last is None else (int(last), int(last) - after == int(count))

    def _before_first_gap(self, spot: Spot, after: int, up_to: int) -> int:
        sql = select_ids(self.shards.database(spot.shard), after, up_to)
        for (added_id,) in self._rows(spot, sql):
            if added_id != after + 1:
                break
            after = added_id
        return after

    def _read(
        self,
        spot: Spot,
        after: int,
        up_to: int | None,
        limit: int,
        payloads: Payloads | None,
        column_name: str | None = None,
    ) -> tuple[Sequence[Row], bool]:
        """Return the next cells, and whether more may follow."""
        size = self._sizes.setdefault(spot.shard, PageSize())
        run = partial(self._ask, spot, spot.node)
        complete = None if self.cold is None else partial(self.cold.completed, shard=spot.shard)
        scan = Scan(
            run,
            self.shards.database(spot.shard),
            size,
            column_name=column_name,
            payloads=payloads,
            complete=complete,
        )
        return scan.page(after, up_to, limit)

    def _check_location(self, spot: Spot, location: int) -> None:
        """Check that the cells up to a location still exist.

        Raises:
            LocationLost: the primary has no cell at or after ``location``.
        """
        if location == 0:
            return
        database = self.shards.database(spot.shard)
        for node in dict.fromkeys((spot.node, spot.primary)):
            last = self._ask(spot, node, lambda connection: top_id(connection, database))
            if last >= location:
                return
        self.settled.forget(spot)
        lost = LocationLost(spot.shard, location, last)
        if self.shards.router.again(spot.routing).changes[spot.shard] != spot.routing.changes[spot.shard]:
            raise Elsewhere(str(lost), node=str(spot.node), shard=spot.shard) from lost
        raise lost

    def _rows(self, spot: Spot, sql: bytes, check: Check | None = None) -> Rows:
        return self._ask(spot, spot.node, lambda connection: connection.rows(sql, check))
