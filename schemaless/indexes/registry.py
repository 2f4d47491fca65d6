"""Which secondary indexes there are, by the catalog, and in which state each is.

An index has a name and a number. The number is its table's; another definition under the same name has another number,
is built beside the old one, and takes the name when it is ready.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from schemaless.errors import IndexNotReady, ServerError, UnknownIndex
from schemaless.indexes import sql
from schemaless.indexes.definition import Definition
from schemaless.indexes.sql import Layout
from schemaless.wire.pool import NodePool

# stored; never renumber
DECLARED: Final = "declared"
BACKFILLING: Final = "backfilling"
READY: Final = "ready"
DROPPING: Final = "dropping"
DROPPED: Final = "dropped"

LOOK_S: Final = 2.0
"""A process goes by what it knows for so long."""


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """An index as the catalog has it.

    Attributes:
        number: never given twice.
        state: declared (its tables are being made), backfilling, ready, or dropping.
        created_at: UTC, ISO 8601.
        ready_at: UTC, ISO 8601; None until then.
        message: why it is in that state, where there is something to say.
    """

    number: int
    definition: Definition
    state: str
    created_at: str
    ready_at: str | None
    message: str | None

    @property
    def name(self) -> str:
        """What it is asked by."""
        return self.definition.name

    @property
    def follower(self) -> str:
        """What the follower that keeps it is called in the tables."""
        return f"index:{self.number}"

    @property
    def layout(self) -> Layout:
        """What its tables look like."""
        return self.definition.layout(self.number)


class Registry:
    """The catalog's list of indexes, kept for two seconds.

    Safe to share between threads: it is swapped whole.

    Attributes:
        checked: the tables that were compared with their definition, by shard, its place, and number.
    """

    def __init__(self, catalog: Callable[[], NodePool], datastore: str) -> None:
        self._catalog = catalog
        self._datastore = datastore
        self.checked: set[tuple[int, int, int]] = set()
        self._known: tuple[float, tuple[IndexEntry, ...]] | None = None

    def read(self) -> tuple[IndexEntry, ...]:
        """Return the indexes that are not dropped, as the catalog has them now."""
        began_s = time.monotonic()
        statement = sql.select_indexes(self._datastore)
        rows = self._catalog().run(lambda connection: connection.rows(statement))
        entries = tuple(
            IndexEntry(int(number), Definition.parse(str(name), definition), str(state), created, ready, message)
            for number, name, definition, state, created, ready, message in rows
        )
        known = self._known
        if known is None or began_s >= known[0]:
            # Another thread may have read it since.
            self._known = began_s, entries
        return entries

    def all(self) -> tuple[IndexEntry, ...]:
        """Return the indexes, as of two seconds ago at most; as they were last where the catalog does not answer."""
        known = self._known
        if known is not None and time.monotonic() - known[0] < LOOK_S:
            return known[1]
        try:
            return self.read()
        except ServerError:
            if known is None:
                raise
            return known[1]

    def ready(self, name: str) -> IndexEntry:
        """Return the index that queries of a name go to.

        Raises:
            UnknownIndex: there is none of that name.
            IndexNotReady: it is still being filled, or being dropped.
        """
        there = [entry for entry in self.all() if entry.name == name]
        for entry in reversed(there):
            if entry.state == READY:
                return entry
        if not there:
            names = sorted({entry.name for entry in self.all()})
            raise UnknownIndex(f"{self._datastore!r} has no index {name!r}; its indexes: {', '.join(names) or 'none'}")
        raise IndexNotReady(
            f"index {name} is {there[-1].state}, so queries would miss rows; 'schemaless index status {name}' says how "
            "far it is"
        )

    def expects(self, shard: int, table: str) -> bool:
        """Whether a table that is missing in a shard should be there, so that the shard may be elsewhere.

        Raises:
            UnknownIndex, IndexNotReady: it is that of an index which is dropped, or is not made yet.
        """
        match = sql.INDEX_TABLE.fullmatch(table)
        if match is None:
            return False
        for entry in self.read():
            if entry.number == int(match[1]):
                if entry.state in (DECLARED, DROPPING):
                    raise IndexNotReady(f"index {entry.name} is {entry.state}: shard {shard} has no {table}")
                return True
        raise UnknownIndex(f"the index of {table} was dropped")
