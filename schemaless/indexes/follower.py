"""The follower that keeps an index: a page of a shard's feed becomes entries, and only then is the location moved."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from schemaless.cell import StoredCell
from schemaless.errors import SchemalessError
from schemaless.followers.lease_state import Owned
from schemaless.followers.worker import Worker
from schemaless.indexes.entries import Entries
from schemaless.indexes.registry import BACKFILLING, LOOK_S, READY, IndexEntry
from schemaless.internals import Internals

_log = logging.getLogger("schemaless")


class Indexing:
    """Deals with cells by keeping an index's entries."""

    timeout_s = None

    def __init__(self, internals: Internals, entry: IndexEntry) -> None:
        self.name = entry.follower
        self.column = entry.definition.sources[0] if len(entry.definition.sources) == 1 else None
        self._number = entry.number
        self._registry = internals.registry
        self._entries = Entries(internals, entry)
        # The pages of which that was done together.
        self._kept: list[Sequence[StoredCell]] = []

    def deal_together(self, worker: Worker, pages: Sequence[tuple[Owned, Sequence[StoredCell]]]) -> bool:
        """Bring the entries of several pages' rows up to date, each step for all of them at once.

        New cells come to many shards, a few to each: page by page, each would wait for some five round trips of each
        page before it.
        """
        self._kept = []
        some = [(owned, of_sources) for owned, cells in pages if (of_sources := self._of_sources(cells))]
        if len(some) < 2:
            return False
        for owned, _ in some:
            worker.go_on(owned)
        first, cells = some[0]
        try:
            if self._state not in (BACKFILLING, READY):
                return False
            with worker.calling(first, cells[-1]):
                self._keep(first, {owned.pair[1]: of_sources for owned, of_sources in some})
        except SchemalessError as error:
            _log.debug("%s: %d shards are dealt with one by one: %s", self.name, len(some), error)
            return False
        self._kept = [cells for _, cells in pages]
        return True

    def deal(self, worker: Worker, owned: Owned, cells: Sequence[StoredCell]) -> bool:
        """Bring the entries of the page's rows up to date; return whether that was done."""
        worker.go_on(owned)
        state = self._state
        if state not in (BACKFILLING, READY):
            owned.wait(LOOK_S, f"the index is {state}")
            return False
        of_sources = self._of_sources(cells)
        if of_sources and not any(kept is cells for kept in self._kept):
            with worker.calling(owned, of_sources[-1]):
                self._keep(owned, {owned.pair[1]: of_sources})
        # Doing a page twice changes nothing: nobody needs to be careful.
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

    def _keep(self, owned: Owned, pages: Mapping[int, Sequence[StoredCell]]) -> None:
        try:
            self._entries.apply(self._entries.writes(pages))
        except SchemalessError:
            raise
        except Exception as error:
            if not owned.failures:
                _log.exception("%s cannot deal with a page of shard %d", *owned.pair)
            # What ended this worker would end each one that got the page after it.
            raise SchemalessError(f"{type(error).__name__}: {error}") from error

    def replay(self, worker: Worker, owned: Owned) -> None:
        """Nothing of an index is ever parked."""
