"""What a server's binary log says of inserts: the table, and the highest number in its first column.

Nothing else of a row is read, and no other event is looked into. A number is found where rows are as ``cell`` has them;
of any others it is that of an event's first row.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

_HEADER: Final = struct.Struct("<IBIIIH")
_ID: Final = struct.Struct("<Q")
_QUERY: Final = 2
_XID: Final = 16
_FORMAT: Final = 15
_TABLE_MAP: Final = 19
_WRITE_ROWS: Final = frozenset({23, 30})
_HAS_EXTRA: Final = 30
_UNREADABLE: Final = frozenset({40, 166, 169})
"""These events are a compressed transaction (MySQL), and compressed rows (MariaDB)."""

_TYPES_OF_CELL: Final = bytes((8, 254, 15, 8, 252, 18))
_WIDTHS_OF_CELL: Final = (8, -1, -1, 8, -3, 8)
"""A value of each column takes so many bytes, or (below 0) a length of so many bytes and what that says."""


class Inserts(NamedTuple):
    """Rows that were inserted into a table.

    Attributes:
        last: the highest number in its first column, of those that could be read.
    """

    schema: str
    last: int


class Ended(NamedTuple):
    """A transaction ended; what was said before is committed, and visible in a moment."""


class Unreadable(NamedTuple):
    """Something was written that cannot be read here."""


class Decoder:
    """Reads one connection's events, in their order.

    Args:
        schemas: tables of other databases are passed over.
        table: tables of other names are.
    """

    def __init__(self, schemas: frozenset[str], table: str) -> None:
        self._schemas = {schema.encode(): schema for schema in schemas}
        self._table = table.encode()
        self._tables: dict[bytes, tuple[str, bytes]] = {}
        self._checksum_bytes = 0

    def read(self, event: bytes) -> Inserts | Ended | Unreadable | None:
        """Return what an event says; None where that is nothing of interest.

        Args:
            event: whole, as the server sent it.
        """
        kind = event[4]
        if kind == _FORMAT:
            # The first event of each of its files; before its own checksum it says whether the others have one.
            self._checksum_bytes = 4 * (event[-5] == 1)
        if kind == _TABLE_MAP:
            self._learn(event[_HEADER.size :])
        elif kind in _WRITE_ROWS:
            known = self._tables.get(event[_HEADER.size : _HEADER.size + 6])
            if known is not None:
                schema, types = known
                end = len(event) - self._checksum_bytes
                return Inserts(schema, _last_id(event, end, types, has_extra=kind == _HAS_EXTRA))
        elif kind in _UNREADABLE:
            return Unreadable()
        elif kind in (_XID, _QUERY):
            # Behind a transaction's rows a COMMIT is an event of either kind; a BEGIN before them does no harm.
            return Ended()
        return None

    def _learn(self, body: bytes) -> None:
        number, length = body[:6], body[8]
        schema = self._schemas.get(body[9 : 9 + length])
        at = 10 + length
        table = body[at + 1 : at + 1 + body[at]]
        at += 2 + body[at]
        if schema is None or table != self._table:
            # The number may have been another table's.
            self._tables.pop(number, None)
            return
        columns, at = _length(body, at)
        self._tables[number] = schema, body[at : at + columns]


def _last_id(event: bytes, end: int, types: bytes, *, has_extra: bool) -> int:
    at = _HEADER.size + 8
    if has_extra:
        at += struct.unpack_from("<H", event, at)[0]
    columns, at = _length(event, at)
    present = int.from_bytes(event[at : at + (columns + 7) // 8], "little")
    at += (columns + 7) // 8
    widths = [width for place, width in enumerate(_WIDTHS_OF_CELL) if present >> place & 1]
    nulls = (len(widths) + 7) // 8
    (last,) = _ID.unpack_from(event, at + nulls)
    if types != _TYPES_OF_CELL:
        return int(last)
    while at < end:
        last = max(last, _ID.unpack_from(event, at + nulls)[0])
        at += nulls
        for width in widths:
            at += width if width > 0 else int.from_bytes(event[at : at - width], "little") - width
    return int(last)


def _length(data: bytes, at: int) -> tuple[int, int]:
    """Read a length as the protocol packs it; return it, and where it ends."""
    first = data[at]
    if first < 0xFB:
        return first, at + 1
    width = {0xFC: 2, 0xFD: 3, 0xFE: 8}[first]
    return int.from_bytes(data[at + 1 : at + 1 + width], "little"), at + 1 + width
