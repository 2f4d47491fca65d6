"""The data types of the API: cells, keys, pages and the results of writes.

They are independent of storage; ``codec`` defines the stored bytes and ``schema`` the tables.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, NamedTuple, TypeVar

MAX_BODY_BYTES: Final = (1 << 24) - 1
"""Maximum size of an encoded body: 16 MiB - 1, the capacity of a MEDIUMBLOB."""

JSONDocument = Any
"""A JSON document: a dict with str keys, a list, str, int, float, bool or None, and so on inside dicts and lists. Type
checkers accept any value, because such a type would make ``cell.body["fare"]["total"]`` an error; calls check the value
and name the path to what is not JSON."""

if TYPE_CHECKING:
    from typing_extensions import TypeVar as TypeVarWithDefault

    BodyT = TypeVarWithDefault("BodyT", default=Any, covariant=True)
else:
    BodyT = TypeVar("BodyT", covariant=True)  # a default needs Python 3.13

TOMBSTONE_HEAD: Final = b"\xc1\xf0"
TOMBSTONE_BYTES: Final = 14
"""Size of an erased cell's body, which begins with ``TOMBSTONE_HEAD``; see ``codec/FORMAT.md``."""

RowKey = uuid.UUID | bytes
"""A row_key as calls accept it: a ``uuid.UUID`` or its 16 bytes."""


class CellKey(NamedTuple):
    """The key of a cell. A key identifies one immutable body."""

    row_key: uuid.UUID
    column_name: str
    ref_key: int

    def __str__(self) -> str:
        return f"({self.row_key}, {self.column_name}, {self.ref_key})"


@dataclass(frozen=True, slots=True)
class Erased:
    """Placeholder for an erased document: the ``body`` of a ``Cell`` whose ``erased`` is True. Not a JSON value.

    Attributes:
        erasure: number of the erasure in the ledger.
    """

    erasure: int


class ErasedCell(NamedTuple):
    """An entry of a shard's erasure log: one cell whose body was erased.

    Attributes:
        event_id: position in the log: 1, 2, 3 and so on within the shard.
        erasure: number of the erasure in the ledger.
        key: the cell's key.
        added_id: position of the cell in its shard's change feed.
        erased_at: time of the erasure, as an aware datetime in UTC.
    """

    event_id: int
    erasure: int
    key: CellKey
    added_id: int
    erased_at: datetime


@dataclass(frozen=True, slots=True)
class NewCell:
    """A cell to write.

    Attributes:
        row_key: a ``uuid.UUID`` or its 16 bytes.
        column_name: 1 to 64 characters of ``[A-Za-z0-9_.:-]``.
        ref_key: the version, 0 to 2^63 - 1.
        body: the document.
        created_at: for imports, the time at which the document was first stored, as an aware datetime. None to use the
            server's clock. If the cell already exists, its time is kept.
    """

    row_key: RowKey
    column_name: str
    ref_key: int
    body: JSONDocument
    created_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class NewStoredCell:
    """A cell to write whose body is already encoded: for imports and copies.

    Attributes:
        row_key: a ``uuid.UUID`` or its 16 bytes.
        column_name: 1 to 64 characters of ``[A-Za-z0-9_.:-]``.
        ref_key: the version, 0 to 2^63 - 1.
        body: the encoded bytes.
        created_at: as in ``NewCell``.
    """

    row_key: RowKey
    column_name: str
    ref_key: int
    body: bytes
    created_at: datetime | None = None


@dataclass(frozen=True, slots=True, init=False)
class Cell(Generic[BodyT]):
    """A cell with its document, as returned by reads. ``Cell[Trip]`` is a cell whose body is a ``Trip``.

    Attributes:
        row_key: the row.
        column_name: the column.
        ref_key: the version.
        body: the document, or ``Erased`` if it was erased.
        added_id: position of the cell in its shard's change feed; unique within the shard.
        created_at: time at which the server stored the cell, as an aware datetime in UTC.
        stale: True for a ``StaleCell``: the primary did not answer, and a read without the full key found the cell on a
            replica. The primary may have newer cells.
    """

    row_key: uuid.UUID
    column_name: str
    ref_key: int
    body: BodyT
    added_id: int
    created_at: datetime
    stale: ClassVar[bool] = False

    def __init__(
        self,
        row_key: uuid.UUID,
        column_name: str,
        ref_key: int,
        body: BodyT,
        added_id: int,
        created_at: datetime,
    ) -> None:
        # What a frozen dataclass generates, in three fifths of the time; every read creates cells.
        _set_row_key(self, row_key)
        _set_column_name(self, column_name)
        _set_ref_key(self, ref_key)
        _set_body(self, body)
        _set_added_id(self, added_id)
        _set_created_at(self, created_at)

    @property
    def key(self) -> CellKey:
        """Key of the cell."""
        return CellKey(self.row_key, self.column_name, self.ref_key)

    @property
    def erased(self) -> bool:
        """True if the document was erased; ``body`` is then an ``Erased``."""
        return isinstance(self.body, Erased)


_set_row_key, _set_column_name, _set_ref_key, _set_body, _set_added_id, _set_created_at = (
    vars(Cell)[each.name].__set__ for each in fields(Cell)
)


class StaleCell(Cell[BodyT]):
    """A cell that ``read_from="available"`` found on a replica.

    A separate class, so that no cell has to store the flag ``stale``.
    """

    __slots__ = ()
    stale: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class StoredCell:
    """A cell with its stored bytes, for tools that do not need the document.

    Attributes:
        row_key: the row.
        column_name: the column.
        ref_key: the version.
        body: the bytes in the table.
        added_id: position of the cell in its shard's change feed; unique within the shard.
        created_at: time at which the server stored the cell, as an aware datetime in UTC.
        shard: number of the shard that the cell was read from.
        decoder: decodes ``body``; set by the datastore that read the cell, so a stored cell cannot be pickled.
        stale: True for a ``StaleStoredCell``, as in ``Cell``.
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
        """Key of the cell."""
        return CellKey(self.row_key, self.column_name, self.ref_key)

    @property
    def erased(self) -> bool:
        """True if the document was erased; ``decode`` returns a cell whose ``body`` is an ``Erased``."""
        return self.body[:2] == TOMBSTONE_HEAD

    def decode(self) -> Cell:
        """Decode the body and return the cell with its document.

        Raises:
            CorruptBody: the stored bytes do not decode; the error names the cell.
        """
        return Cell(self.row_key, self.column_name, self.ref_key, self.decoder(self), self.added_id, self.created_at)


class StaleStoredCell(StoredCell):
    """A stored cell that ``read_from="available"`` found on a replica."""

    __slots__ = ()
    stale: ClassVar[bool] = True

    def decode(self) -> StaleCell:
        """Decode the body and return the cell with its document, marked as stale.

        Raises:
            CorruptBody: the stored bytes do not decode; the error names the cell.
        """
        document = self.decoder(self)
        return StaleCell(self.row_key, self.column_name, self.ref_key, document, self.added_id, self.created_at)


AnyCell = TypeVar("AnyCell", Cell, StoredCell)


@dataclass(frozen=True, slots=True)
class Page(Generic[AnyCell]):
    """A page of a shard's change feed, in ``added_id`` order.

    Attributes:
        cells: the cells. There may be fewer than the limit, or none, even before the end of the feed.
        next_location: the location of the next page. Store it after the cells have been processed.
        held: the reason why the feed stops before the shard's last cell, such as an open transaction; None otherwise.
    """

    cells: list[AnyCell]
    next_location: int
    held: str | None = None


class Put(NamedTuple):
    """The result of writing one cell.

    Attributes:
        key: the cell's key.
        added_id: position of the cell in its shard's change feed.
        created: False if the cell already existed with the same body.
    """

    key: CellKey
    added_id: int
    created: bool
