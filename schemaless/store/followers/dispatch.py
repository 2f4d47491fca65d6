"""Dispatch of new cells to handlers: which shard's turn it is, and what a failure means for its shard."""

from __future__ import annotations

import time
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from schemaless.cell import Page, StoredCell
from schemaless.errors import LeaseLost, SchemalessError
from schemaless.store.feed.reader import Tail
from schemaless.store.followers.access import DatastoreAccess
from schemaless.store.followers.black_box import BlackBox
from schemaless.store.followers.handler import Handler, HandlerContext, Interrupted
from schemaless.store.followers.leases import PAGE_CELLS, Lease, Leases
from schemaless.store.followers.membership import HEALTHY, QUARANTINE, Pair, Role, View
from schemaless.store.followers.states import QUARANTINED, RUNNING, STOPPED

_TAIL_CELLS: Final = 100
"""A shard with more new cells than this is read on its own."""

_TAILS: Final = 64
"""Maximum number of shards that are read together."""


@dataclass(slots=True)
class Dispatcher:
    """Passes the new cells of a worker's shards to the handlers of its followers.

    Attributes:
        role: which shards the worker serves.
        handlers: its handlers by follower.
        context: given to the handlers.
        access: the datastore.
    """

    role: Role
    handlers: Mapping[str, Handler]
    context: HandlerContext
    access: DatastoreAccess
    _last: Pair | None = None

    @property
    def _leases(self) -> Leases:
        return self.context.leases

    @property
    def _box(self) -> BlackBox:
        return self.context.leases.box

    def run(self, view: View, until_s: float) -> None:
        """Handle new cells until there are none left or time is up; at least one page is handled.

        Raises:
            Interrupted: the worker must not continue now.
        """
        held = self._leases.held
        leases = [lease for pair in in_turn(self._leases.backlog, self._last) if (lease := held.get(pair)) is not None]
        self._leases.backlog = {lease.pair for lease in leases if lease.has_work}
        for lease in leases:
            # While no page is in memory: a page that is read from here on has the tombstones.
            if lease.has_erasures and self._is_ready(view, lease):
                self._handle_erasures(lease)
            if lease.row.replays and self._is_ready(view, lease):
                with self.working_on(lease):
                    self.handlers[lease.pair[0]].replay(self.context, lease)
        ready = deque(lease for lease in leases if lease.row.state != STOPPED and self._is_ready(view, lease))
        while ready:
            # A death is blamed on one shard, so quarantined shards are not batched.
            batch = [ready.popleft()] if self.role == QUARANTINE else next_batch(ready)
            handler = self.handlers[batch[0].pair[0]]
            pages = read_batch(self.access, batch, handler.column)
            shared = self._handle_batch(handler, batch, pages)
            for lease in batch:
                self._last = lease.pair
                if self._leases.holds(lease) and lease.is_free and self._handle_page(lease, pages.get(lease.pair[1])):
                    ready.append(lease)
                # At least one page, however long the read took. Pages that are not handled now are read again, unless
                # the handler has already done the work for all of them.
                if time.monotonic() >= until_s and (not shared or lease is batch[-1]):
                    return

    def _handle_erasures(self, lease: Lease) -> None:
        """Tell the handler which of the cells it has handled were erased, and acknowledge the erasures."""
        handler = self.handlers[lease.pair[0]]
        with self.working_on(lease):
            while lease.row.erased_event < lease.row.last_event:
                self.context.check_active(lease)
                events = self.access.erasure_log.events(lease.pair[1], lease.row.erased_event)
                if not events:
                    lease.forget_events()
                    return
                # Also cells after the location: a page may have been handled, and then not recorded.
                try:
                    handled = handler.handle_erased(self.context, lease, events)
                except (LeaseLost, Interrupted):
                    raise
                except SchemalessError as error:
                    lease.retry_erasures(str(error))
                    return
                if not handled:
                    return
                ids = [event.erased.added_id for event in events]
                self.context.rows.acknowledge(lease.pair, lease.row.epoch, events[-1].erased.event_id, ids)
                lease.acknowledge(events[-1].erased.event_id)

    def _handle_batch(self, handler: Handler, batch: list[Lease], pages: Mapping[int, Page[StoredCell]]) -> bool:
        if any(lease.careful for lease in batch):
            # A previous owner died, perhaps in a batch: handled one by one, the shard at fault is known.
            return False
        if len(batch) == 1:
            self._box.enter(batch[0].pair)
        else:
            self._box.enter_batch(handler.name)
        try:
            read = [(lease, pages[lease.pair[1]].cells) for lease in batch if lease.pair[1] in pages]
            shared = handler.handle_batch(self.context, read)
        except Interrupted:
            self._box.leave()
            raise
        self._box.leave()
        return shared

    def _is_ready(self, view: View, lease: Lease) -> bool:
        active = lease.pair not in self._leases.unverified and view.desired_states.get(lease.pair[0]) == RUNNING
        active = active and not (lease.row.state == QUARANTINED and self.role == HEALTHY)
        return active and lease.has_work and lease.is_free and lease.next_read_s <= time.monotonic()

    def _handle_page(self, lease: Lease, page: Page[StoredCell] | None) -> bool:
        """Handle a page, reading it first if it is None; return True if the shard has more cells to handle now."""
        handler = self.handlers[lease.pair[0]]
        progress = False
        with self.working_on(lease):
            self.context.check_active(lease)
            if page is None:
                page = self.access.page(lease.pair[1], lease.reached, PAGE_CELLS, handler.column)
            lease.discount_read(progress=page.next_location > lease.reached)
            if page.next_location == lease.reached and page.held is None:
                lease.reach_end()
            elif handler.handle(self.context, lease, page.cells):
                progress = page.next_location > lease.reached or bool(page.cells)
                self.context.checkpoints.advance(lease, page.next_location, 0)
        return progress and lease.reached < lease.top

    @contextmanager
    def working_on(self, lease: Lease) -> Iterator[None]:
        """Record the shard for the supervisor; defer it if its server fails, and drop its lease if that was lost."""
        self._box.enter(lease.pair)
        try:
            yield
        except LeaseLost:
            self._leases.lose(lease.pair)
        except Interrupted:
            # A shard that is not free was interrupted by a failure of its server.
            if lease.is_free:
                self._box.leave()
                raise
        except SchemalessError as error:
            lease.fail(error)
        else:
            if lease.is_free:
                lease.succeed()
        self._box.leave()


def next_batch(ready: deque[Lease]) -> list[Lease]:
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


def read_batch(access: DatastoreAccess, batch: Sequence[Lease], column_name: str | None) -> dict[int, Page[StoredCell]]:
    """Read a batch in one statement per server; return pages by shard, without shards that need their own read."""
    tails = [
        Tail(follower.pair[1], follower.reached, follower.lag) for follower in batch if 0 < follower.lag <= _TAIL_CELLS
    ]
    return access.tails(tails, column_name) if tails else {}


def in_turn(pairs: Iterable[Pair], last: Pair | None) -> list[Pair]:
    """Return pairs in order, starting after the last one served.

    Starting with the same pair each time would starve the others if that pair always had more cells.
    """
    ordered = sorted(pairs)
    place = 0 if last is None else bisect_right(ordered, last)
    return ordered[place:] + ordered[:place]
