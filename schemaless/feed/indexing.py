"""The follower that keeps an index: a page of a shard's feed becomes entries, and only then is the location moved."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from schemaless.cell import StoredCell
from schemaless.errors import SchemalessError
from schemaless.feed.entries import Entries
from schemaless.feed.owned import Owned
from schemaless.feed.worker import Worker
from schemaless.store.registry import BACKFILLING, LOOK_S, READY, IndexEntry
from schemaless.store.tools import Tools

_log = logging.getLogger("schemaless")


class Indexing:
    """Deals with cells by keeping an index's entries."""

    timeout_s = None

    def __init__(self, tools: Tools, entry: IndexEntry) -> None:
        self.name = entry.follower
        self.column = entry.definition.sources[0] if len(entry.definition.sources) == 1 else None
        self._number = entry.number
        self._registry = tools.registry
        self._entries = Entries(tools, entry)

    def deal(self, worker: Worker, owned: Owned, cells: Sequence[StoredCell]) -> bool:
        """Bring the entries of the page's rows up to date; return whether that was done."""
        worker.go_on(owned)
        state = next((entry.state for entry in self._registry.all() if entry.number == self._number), "dropped")
        if state not in (BACKFILLING, READY):
            owned.wait(LOOK_S, f"the index is {state}")
            return False
        sources = self._entries.definition.sources
        of_sources = [cell for cell in cells if cell.column_name in sources]
        if of_sources:
            with worker.calling(owned, of_sources[-1]):
                self._keep(owned, of_sources)
        # Doing a page twice changes nothing: nobody needs to be careful.
        owned.careful = 0
        if cells:
            worker.dealt(owned, cells[-1].added_id)
        return True

    def _keep(self, owned: Owned, cells: Sequence[StoredCell]) -> None:
        try:
            self._entries.apply(self._entries.plan(owned.pair[1], cells))
        except SchemalessError:
            raise
        except Exception as error:
            if not owned.failures:
                _log.exception("%s cannot deal with a page of shard %d", *owned.pair)
            # What ended this worker would end each one that got the page after it.
            raise SchemalessError(f"{type(error).__name__}: {error}") from error

    def replay(self, worker: Worker, owned: Owned) -> None:
        """Nothing of an index is ever parked."""
