"""The follower that maintains an index: it writes the entries of a page of a shard's feed, then moves its location."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from schemaless.cell import StoredCell
from schemaless.errors import SchemalessError
from schemaless.followers.lease_state import Owned
from schemaless.followers.worker import Worker
from schemaless.indexes.entries import Entries
from schemaless.indexes.registry import BACKFILLING, LOOK_S, READY, IndexEntry, Registry

_log = logging.getLogger("schemaless")


class Indexing:
    """Handles cells by updating the entries of an index.

    Attributes:
        name: the follower's name.
        column: the only source column; None if the index has several.
        timeout_s: None: writing entries has no timeout of its own.
    """

    timeout_s = None

    def __init__(self, entry: IndexEntry, entries: Entries, registry: Registry) -> None:
        self.name = entry.follower
        self.column = entry.definition.sources[0] if len(entry.definition.sources) == 1 else None
        self._number = entry.number
        self._registry = registry
        self._entries = entries
        # Pages whose entries ``deal_together`` has written.
        self._written: list[Sequence[StoredCell]] = []

    def deal_together(self, worker: Worker, pages: Sequence[tuple[Owned, Sequence[StoredCell]]]) -> bool:
        """Update the entries of the rows of several pages, each step for all pages at once.

        New cells arrive in many shards, a few in each. Page by page, each would wait for about five round trips of
        every page before it.
        """
        self._written = []
        relevant = [(owned, of_sources) for owned, cells in pages if (of_sources := self._of_sources(cells))]
        if len(relevant) < 2:
            return False
        for owned, _ in relevant:
            worker.go_on(owned)
        first, cells = relevant[0]
        try:
            if self._state not in (BACKFILLING, READY):
                return False
            with worker.calling(first, cells[-1]):
                self._write(first, {owned.pair[1]: of_sources for owned, of_sources in relevant})
        except SchemalessError as error:
            _log.debug("%s: %d pages failed together and are handled one by one: %s", self.name, len(relevant), error)
            return False
        self._written = [cells for _, cells in pages]
        return True

    def deal(self, worker: Worker, owned: Owned, cells: Sequence[StoredCell]) -> bool:
        """Update the entries of the page's rows; return whether that was done."""
        worker.go_on(owned)
        state = self._state
        if state not in (BACKFILLING, READY):
            owned.wait(LOOK_S, f"the index is {state}")
            return False
        of_sources = self._of_sources(cells)
        if of_sources and not any(written is cells for written in self._written):
            with worker.calling(owned, of_sources[-1]):
                self._write(owned, {owned.pair[1]: of_sources})
        # Writing the entries of a page twice is harmless: no care is needed after the crash of a previous owner.
        owned.careful = 0
        if cells:
            worker.dealt(owned, cells[-1].added_id)
        return True

    @property
    def _state(self) -> str:
        return next((entry.state for entry in self._registry.all() if entry.number == self._number), "dropped")

    def _of_sources(self, cells: Sequence[StoredCell]) -> list[StoredCell]:
        sources = self._entries.definition.sources
        return [cell for cell in cells if cell.column_name in sources]

    def _write(self, owned: Owned, pages: Mapping[int, Sequence[StoredCell]]) -> None:
        try:
            self._entries.apply(self._entries.writes(pages))
        except SchemalessError:
            raise
        except Exception as error:
            if not owned.failures:
                _log.exception("%s: cannot index a page of shard %d", *owned.pair)
            # Any other exception would end this worker, and then every worker that takes over the page.
            raise SchemalessError(f"{type(error).__name__}: {error}") from error

    def replay(self, worker: Worker, owned: Owned) -> None:
        """Do nothing: cells of an index are never parked."""
