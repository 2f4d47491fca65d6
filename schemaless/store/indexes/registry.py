"""The secondary indexes of a datastore and their states, as the catalog lists them.

An index has a name and a number; its tables are named after the number. A new definition under an existing name gets a
new number, is built beside the old index, and takes over the name when it is ready.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from schemaless.errors import IndexNotReady, ServerError, UnknownIndex
from schemaless.store.indexes import sql
from schemaless.store.indexes.definition import Definition
from schemaless.store.indexes.sql import Layout
from schemaless.wire.pool import NodePool

# Stored in the catalog; never change.
DECLARED: Final = "declared"
BACKFILLING: Final = "backfilling"
READY: Final = "ready"
DROPPING: Final = "dropping"
DROPPED: Final = "dropped"

LOOK_S: Final = 2.0
"""Time for which a process reuses the list of indexes before it reads it again, in seconds."""


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """An index as the catalog lists it.

    Attributes:
        number: the index's number; never reused.
        definition: the fields of the index.
        state: declared (its tables are being created), backfilling, ready or dropping.
        created_at: UTC, ISO 8601.
        ready_at: UTC, ISO 8601; None until the index is ready.
        message: the reason for the state, if there is one.
    """

    number: int
    definition: Definition
    state: str
    created_at: str
    ready_at: str | None
    message: str | None

    @property
    def name(self) -> str:
        """The name that queries use."""
        return self.definition.name

    @property
    def follower(self) -> str:
        """Name of the follower that maintains the index."""
        return f"index:{self.number}"

    @property
    def layout(self) -> Layout:
        """Layout of the index's tables."""
        return self.definition.layout(self.number)


class Registry:
    """The catalog's list of indexes, cached for two seconds. Thread-safe: the list is replaced as a whole.

    Attributes:
        checked: tables whose definition has been checked, each as shard, number of its moves, and index number.
    """

    def __init__(self, catalog: Callable[[], NodePool], datastore: str) -> None:
        """Create the registry; no server is contacted.

        Args:
            catalog: returns the connections to the catalog's server, which a failover may change.
            datastore: the datastore's name.
        """
        self._catalog = catalog
        self._datastore = datastore
        self.checked: set[tuple[int, int, int]] = set()
        self._cached: tuple[float, tuple[IndexEntry, ...]] | None = None

    def read(self) -> tuple[IndexEntry, ...]:
        """Read from the catalog the indexes that have not been dropped."""
        started_s = time.monotonic()
        rows = self._catalog().rows(sql.select_indexes(self._datastore))
        entries = tuple(
            IndexEntry(int(number), Definition.parse(str(name), definition), str(state), created, ready, message)
            for number, name, definition, state, created, ready, message in rows
        )
        cached = self._cached
        # Another thread may have stored a later list in the meantime.
        if cached is None or started_s >= cached[0]:
            self._cached = started_s, entries
        return entries

    def all(self) -> tuple[IndexEntry, ...]:
        """Return the list of indexes, at most two seconds old, or the last known one if the catalog does not answer."""
        cached = self._cached
        if cached is not None and time.monotonic() - cached[0] < LOOK_S:
            return cached[1]
        try:
            return self.read()
        except ServerError:
            if cached is None:
                raise
            return cached[1]

    def ready(self, name: str) -> IndexEntry:
        """Return the index that serves queries under a name.

        Raises:
            UnknownIndex: there is no index of that name.
            IndexNotReady: the index is still being built, or is being dropped.
        """
        named = [entry for entry in self.all() if entry.name == name]
        for entry in reversed(named):
            if entry.state == READY:
                return entry
        if not named:
            names = sorted({entry.name for entry in self.all()})
            raise UnknownIndex(f"{self._datastore!r} has no index {name!r}; its indexes: {', '.join(names) or 'none'}")
        raise IndexNotReady(
            f"index {name} is {named[-1].state}, so a query would miss rows; 'schemaless index run' fills an index, "
            f"and 'schemaless index status {name}' shows its progress"
        )

    def expects(self, shard: int, table: str) -> bool:
        """Return True if a table that is missing from a shard should exist there; if so, the shard may have moved.

        Raises:
            UnknownIndex: the table's index was dropped.
            IndexNotReady: the table's index is being created or dropped.
        """
        match = sql.INDEX_TABLE.fullmatch(table)
        if match is None:
            return False
        for entry in self.read():
            if entry.number == int(match[1]):
                if entry.state in (DECLARED, DROPPING):
                    raise IndexNotReady(
                        f"index {entry.name} is {entry.state}, so shard {shard} has no table {table}; 'schemaless "
                        f"index status {entry.name}' shows its progress"
                    )
                return True
        raise UnknownIndex(f"the index of table {table} was dropped")
