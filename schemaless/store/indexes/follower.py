"""The follower that maintains an index: it writes the entries of a page of a shard's feed, then moves its location."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from schemaless.base.logger import log
from schemaless.cell import StoredCell
from schemaless.errors import SchemalessError
from schemaless.store.followers.erasures import ErasureEvent
from schemaless.store.followers.handler import Handler, HandlerContext
from schemaless.store.followers.leases import Lease
from schemaless.store.indexes.entries import Entries
from schemaless.store.indexes.registry import BACKFILLING, DECLARED, LOOK_S, READY, IndexEntry, Registry


class Indexing(Handler):
    """Handles cells by updating the entries of an index.

    Attributes:
        name: the follower's name.
        column: the only source column; None if the index has several.
    """

    def __init__(self, entry: IndexEntry, entries: Entries, registry: Registry) -> None:
        self.name = entry.follower
        self.column = entry.definition.sources[0] if len(entry.definition.sources) == 1 else None
        self._number = entry.number
        self._registry = registry
        self._entries = entries
        # Pages whose entries ``handle_batch`` has written.
        self._written: list[Sequence[StoredCell]] = []

    def handle_batch(self, context: HandlerContext, pages: Sequence[tuple[Lease, Sequence[StoredCell]]]) -> bool:
        """Update the entries of the rows of several pages, each step for all pages at once.

        New cells arrive in many shards, a few in each. Handled one by one, each page would wait for about five round
        trips of every page before it.
        """
        self._written = []
        relevant = [(lease, of_sources) for lease, cells in pages if (of_sources := self._of_sources(cells))]
        if len(relevant) < 2:
            return False
        for lease, _ in relevant:
            context.check_active(lease)
        first, cells = relevant[0]
        try:
            if self._state not in (BACKFILLING, READY):
                return False
            with context.calling(first, cells[-1]):
                self._write(first, {lease.pair[1]: of_sources for lease, of_sources in relevant})
        except SchemalessError as error:
            log.debug("%s: %d pages failed together and are handled one by one: %s", self.name, len(relevant), error)
            return False
        self._written = [cells for _, cells in pages]
        return True

    def handle(self, context: HandlerContext, lease: Lease, cells: Sequence[StoredCell]) -> bool:
        """Update the entries of the page's rows; return whether that was done."""
        context.check_active(lease)
        state = self._state
        if state not in (BACKFILLING, READY):
            lease.defer(LOOK_S, f"the index is {state}")
            return False
        of_sources = self._of_sources(cells)
        if of_sources and not any(written is cells for written in self._written):
            with context.calling(lease, of_sources[-1]):
                self._write(lease, {lease.pair[1]: of_sources})
        # Writing the entries of a page twice is harmless: no care is needed after the crash of a previous owner.
        lease.trust()
        if cells:
            context.advance(lease, cells[-1].added_id)
        return True

    @property
    def _state(self) -> str:
        return next((entry.state for entry in self._registry.all() if entry.number == self._number), "dropped")

    def _of_sources(self, cells: Sequence[StoredCell]) -> list[StoredCell]:
        sources = self._entries.definition.sources
        return [cell for cell in cells if cell.column_name in sources]

    def _write(self, lease: Lease, pages: Mapping[int, Sequence[StoredCell]]) -> None:
        try:
            self._entries.apply(self._entries.writes(pages))
        except SchemalessError:
            raise
        except Exception as error:
            if not lease.wait.failures:
                log.exception("%s: cannot index a page of shard %d", *lease.pair)
            # Any other exception would end this worker, and then every worker that takes over the page.
            raise SchemalessError(f"{type(error).__name__}: {error}") from error

    def handle_erased(self, context: HandlerContext, lease: Lease, events: Sequence[ErasureEvent]) -> bool:
        """Delete or update the entries that were built from erased cells."""
        state = self._state
        if state not in (BACKFILLING, READY):
            if state == DECLARED:
                lease.retry_erasures(f"the index is {state}")
            return state != DECLARED
        sources = self._entries.definition.sources
        concerned = [event for event in events if event.erased.key.column_name in sources]
        if concerned:
            with context.calling(lease, concerned[-1].erased):
                self._entries.erase(lease.pair[1], self._number, concerned)
        return True
