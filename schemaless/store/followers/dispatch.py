"""Dispatch of new cells to handlers: which shard's turn it is, and what a failure means for its shard."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from schemaless.cell import Page, StoredCell
from schemaless.errors import LeaseLost, SchemalessError
from schemaless.store.followers.access import StoredFeed
from schemaless.store.followers.batches import PAGE_CELLS, in_turn, next_batch, read_batch
from schemaless.store.followers.black_box import BlackBox
from schemaless.store.followers.checkpoints import Checkpoints
from schemaless.store.followers.erasures import ErasureLog
from schemaless.store.followers.handler import Handler
from schemaless.store.followers.handler_context import HandlerContext, Interrupted
from schemaless.store.followers.lease_state import LeaseState
from schemaless.store.followers.leases import Leases
from schemaless.store.followers.membership import HEALTHY, QUARANTINE, Pair, Role, View
from schemaless.store.followers.states import QUARANTINED, RUNNING, STOPPED


class Dispatcher:
    """Passes the new cells of a worker's shards to the handlers of its followers.

    Args:
        role: which shards the worker serves.
        handlers: its handlers by follower.
        context: given to the handlers.
        leases: its leases.
        checkpoints: its checkpoints.
        feed: reads cells.
        log: reads the log of erased cells.
        box: records the shard that the worker is working on.
    """

    def __init__(
        self,
        role: Role,
        handlers: Mapping[str, Handler],
        context: HandlerContext,
        leases: Leases,
        checkpoints: Checkpoints,
        feed: StoredFeed,
        log: ErasureLog,
        box: BlackBox,
    ) -> None:
        self._role = role
        self._handlers = handlers
        self._context = context
        self._leases = leases
        self._checkpoints = checkpoints
        self._feed = feed
        self._log = log
        self._box = box
        self._last: Pair | None = None

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
            if lease.replays and self._is_ready(view, lease):
                with self.working_on(lease):
                    self._handlers[lease.pair[0]].replay(self._context, lease)
        ready = deque(lease for lease in leases if lease.state != STOPPED and self._is_ready(view, lease))
        while ready:
            # A death is blamed on one shard, so quarantined shards are not batched.
            batch = [ready.popleft()] if self._role == QUARANTINE else next_batch(ready)
            handler = self._handlers[batch[0].pair[0]]
            pages = read_batch(self._feed, batch, handler.column)
            shared = self._handle_batch(handler, batch, pages)
            for lease in batch:
                self._last = lease.pair
                if self._leases.holds(lease) and lease.is_free and self._handle_page(lease, pages.get(lease.pair[1])):
                    ready.append(lease)
                # At least one page, however long the read took. Pages that are not handled now are read again, unless
                # the handler has already done the work for all of them.
                if time.monotonic() >= until_s and (not shared or lease is batch[-1]):
                    return

    def _handle_erasures(self, lease: LeaseState) -> None:
        """Tell the handler which of the cells it has handled were erased, and acknowledge the erasures."""
        handler = self._handlers[lease.pair[0]]
        with self.working_on(lease):
            while lease.erased_event < lease.last_event:
                self._context.check_active(lease)
                events = self._log.events(lease.pair[1], lease.erased_event)
                if not events:
                    lease.last_event = lease.erased_event
                    return
                # Also cells after the location: a page may have been handled, and then not recorded.
                try:
                    handled = handler.handle_erased(self._context, lease, events)
                except (LeaseLost, Interrupted):
                    raise
                except SchemalessError as error:
                    lease.retry_erasures(str(error))
                    return
                if not handled:
                    return
                ids = [event.erased.added_id for event in events]
                self._context.rows.acknowledge(lease.pair, lease.epoch, events[-1].erased.event_id, ids)
                lease.erased_event, lease.erasure_failures = events[-1].erased.event_id, 0

    def _handle_batch(self, handler: Handler, batch: list[LeaseState], pages: Mapping[int, Page[StoredCell]]) -> bool:
        if any(lease.careful for lease in batch):
            # A previous owner died, perhaps in a batch: handled one by one, the shard at fault is known.
            return False
        if len(batch) == 1:
            self._box.enter(batch[0].pair)
        else:
            self._box.enter_batch(handler.name)
        try:
            read = [(lease, pages[lease.pair[1]].cells) for lease in batch if lease.pair[1] in pages]
            shared = handler.handle_batch(self._context, read)
        except Interrupted:
            self._box.leave()
            raise
        self._box.leave()
        return shared

    def _is_ready(self, view: View, lease: LeaseState) -> bool:
        active = lease.pair not in self._leases.unverified and view.desired_states.get(lease.pair[0]) == RUNNING
        active = active and not (lease.state == QUARANTINED and self._role == HEALTHY)
        return active and lease.has_work and lease.is_free and lease.next_read_s <= time.monotonic()

    def _handle_page(self, lease: LeaseState, page: Page[StoredCell] | None) -> bool:
        """Handle a page, reading it first if it is None; return True if the shard has more cells to handle now."""
        handler = self._handlers[lease.pair[0]]
        progress = False
        with self.working_on(lease):
            self._context.check_active(lease)
            if page is None:
                page = self._feed.page(lease.pair[1], lease.reached, PAGE_CELLS, handler.column)
            lease.discount_read(progress=page.next_location > lease.reached)
            if page.next_location == lease.reached and page.held is None:
                # The end of the shard: a dead owner cannot have been beyond it. A quarantined shard may receive more
                # cells that kill.
                lease.careful = lease.careful if lease.state == QUARANTINED else 0
            elif handler.handle(self._context, lease, page.cells):
                progress = page.next_location > lease.reached or bool(page.cells)
                self._checkpoints.advance(lease, page.next_location, 0)
        return progress and lease.reached < lease.top

    @contextmanager
    def working_on(self, lease: LeaseState) -> Iterator[None]:
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
                lease.failures = 0
        self._box.leave()
