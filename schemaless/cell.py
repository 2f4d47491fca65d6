"""The cell: its key, its forms and its limits.

What it is, not how it is stored: bytes are the codec's, tables are ``mysql``'s.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import Any, ClassVar, Final, Generic, NamedTuple, TypeVar

MAX_BODY_BYTES: Final = (1 << 24) - 1
"""No encoded body is longer: a MEDIUMBLOB holds so much, 16 MiB - 1."""

JSONDocument = Any
"""A document is dict with str keys, list, str, int, float, bool or None, nested; mypy has no finite name for it."""

RowKey = uuid.UUID | bytes
"""Calls accept these as a row_key: a UUID, or its 16 bytes."""


class CellKey(NamedTuple):
    """What names a cell: one body, ever, stands under it."""

    row_key: uuid.UUID
    column_name: str
    ref_key: int

    def __str__(self) -> str:
        return f"({self.row_key}, {self.column_name}, {self.ref_key})"


@dataclass(frozen=True, slots=True)
class NewCell:
    """A cell to be written.

    Attributes:
        created_at: for imports, when the document was first stored, aware; None for the server's clock when it is
            written. A cell that is there already keeps the time that it has.
    """

    row_key: RowKey
    column_name: str
    ref_key: int
    body: JSONDocument
    created_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class NewStoredCell:
    """A cell to be written whose body is encoded already: for imports and copies.

    Attributes:
        created_at: as that of ``NewCell``.
    """

    row_key: RowKey
    column_name: str
    ref_key: int
    body: bytes
    created_at: datetime | None = None


@dataclass(frozen=True, slots=True, init=False)
class Cell:
    """A cell as it was read.

    Attributes:
        body: the document.
        added_id: its place in its shard's change feed; unique within the shard only.
        created_at: when the server stored it; UTC, aware.
        stale: whether a newer one, or others beside it, may have been written that this read could not see: it was
            found on a replica, while the primary did not answer, and not by its whole key. True for a ``StaleCell``.
    """

    row_key: uuid.UUID
    column_name: str
    ref_key: int
    body: JSONDocument
    added_id: int
    created_at: datetime
    stale: ClassVar[bool] = False

    def __init__(
        self,
        row_key: uuid.UUID,
        column_name: str,
        ref_key: int,
        body: JSONDocument,
        added_id: int,
        created_at: datetime,
    ) -> None:
        # As a frozen dataclass would by itself, in three fifths of the time: every read makes some.
        _set_row_key(self, row_key)
        _set_column_name(self, column_name)
        _set_ref_key(self, ref_key)
        _set_body(self, body)
        _set_added_id(self, added_id)
        _set_created_at(self, created_at)

    @property
    def key(self) -> CellKey:
        """The cell's key."""
        return CellKey(self.row_key, self.column_name, self.ref_key)


_set_row_key, _set_column_name, _set_ref_key, _set_body, _set_added_id, _set_created_at = (
    vars(Cell)[each.name].__set__ for each in fields(Cell)
)


class StaleCell(Cell):
    """A cell that ``read_from="available"`` found on a replica; a class of its own, so that others cost nothing."""

    __slots__ = ()
    stale: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class StoredCell:
    """A cell with its stored bytes, for tools that do not need the document.

    Attributes:
        body: the stored bytes, as they are in the table.
        shard: the shard that it was read from.
        stale: as that of ``Cell``. True for a ``StaleStoredCell``.
        decoder: turns ``body`` into the document; set by the store that read it.
    """

    row_key: uuid.UUID
    column_name: str
    ref_key: int
    body: bytes
    added_id: int
    created_at: datetime
    shard: int
    decoder: Callable[[StoredCell], JSONDocument] = field(repr=False, compare=False)
    stale: ClassVar[bool] = False

    @property
    def key(self) -> CellKey:
        """The cell's key."""
        return CellKey(self.row_key, self.column_name, self.ref_key)

    def decode(self) -> Cell:
        """Return the cell with its document.

        Raises:
            CorruptBody: the stored bytes do not decode; the error names this cell.
        """
        return Cell(self.row_key, self.column_name, self.ref_key, self.decoder(self), self.added_id, self.created_at)


class StaleStoredCell(StoredCell):
    """A stored cell that ``read_from="available"`` found on a replica."""

    __slots__ = ()
    stale: ClassVar[bool] = True

    def decode(self) -> StaleCell:
        """Return the cell with its document, as stale; raises as that of ``StoredCell``."""
        document = self.decoder(self)
        return StaleCell(self.row_key, self.column_name, self.ref_key, document, self.added_id, self.created_at)


AnyCell = TypeVar("AnyCell", Cell, StoredCell)


@dataclass(frozen=True, slots=True)
class Page(Generic[AnyCell]):
    """Some of a shard's cells, in ``added_id`` order.

    Attributes:
        cells: at most as many as were asked for; may be fewer, or none, before the end.
        next_location: where the next page begins; keep it once the cells are dealt with.
        held: why the feed does not go on at once, such as writes that are still open; None where it does not wait.
    """

    cells: list[AnyCell]
    next_location: int
    held: str | None = None


class Put(NamedTuple):
    """What became of one written cell.

    Attributes:
        key: the cell's key.
        added_id: its place in its shard's change feed.
        created: False where the same cell with the same body was there before.
    """

    key: CellKey
    added_id: int
    created: bool
