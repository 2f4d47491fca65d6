"""Decoder for insert events of a binary log: the table, and the highest value of its first column.

Apart from the ends of transactions, nothing else is decoded. For rows with the columns of ``cell``, the result is the
maximum over all rows of the event; for any other table it is the value of the event's first row.
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
"""Type codes of compressed transactions (MySQL) and of compressed row events (MariaDB)."""

_CELL_TYPES: Final = bytes((8, 254, 15, 8, 252, 18))
_CELL_WIDTHS: Final = (8, -1, -1, 8, -3, 8)
"""Value size of each column in bytes; negative for a length prefix of that many bytes, followed by the value."""


class Inserts(NamedTuple):
    """Rows inserted into a table.

    Attributes:
        schema: the table's database.
        last: highest value of the first column, as far as it could be decoded.
    """

    schema: str
    last: int


class Ended(NamedTuple):
    """End of a transaction: the preceding inserts are committed and become visible shortly."""


class Unreadable(NamedTuple):
    """An event whose contents cannot be decoded here."""


class Decoder:
    """Stateful decoder for the events of one connection, fed in order.

    Args:
        schemas: databases to report; others are skipped.
        table: table to report; others are skipped.
    """

    def __init__(self, schemas: frozenset[str], table: str) -> None:
        self._schemas = {schema.encode(): schema for schema in schemas}
        self._table = table.encode()
        self._tables: dict[bytes, tuple[str, bytes]] = {}
        self._checksum_bytes = 0

    def read(self, event: bytes) -> Inserts | Ended | Unreadable | None:
        """Decode an event; return None if it is not relevant.

        Args:
            event: the whole event, with its header.
        """
        kind = event[4]
        if kind == _FORMAT:
            # The first event of each log file says, just before its own checksum, whether events have checksums.
            self._checksum_bytes = 4 * (event[-5] == 1)
        if kind == _TABLE_MAP:
            self._map_table(event[_HEADER.size :])
        elif kind in _WRITE_ROWS:
            mapped = self._tables.get(event[_HEADER.size : _HEADER.size + 6])
            if mapped is not None:
                schema, types = mapped
                end = len(event) - self._checksum_bytes
                return Inserts(schema, _last_id(event, end, types, has_extra=kind == _HAS_EXTRA))
        elif kind in _UNREADABLE:
            return Unreadable()
        elif kind in (_XID, _QUERY):
            # COMMIT is logged as either type. A BEGIN is reported as an end too, which is harmless.
            return Ended()
        return None

    def _map_table(self, body: bytes) -> None:
        table_id, length = body[:6], body[8]
        schema = self._schemas.get(body[9 : 9 + length])
        at = 10 + length
        table = body[at + 1 : at + 1 + body[at]]
        at += 2 + body[at]
        if schema is None or table != self._table:
            # The table id may have belonged to another table before.
            self._tables.pop(table_id, None)
            return
        columns, at = _length(body, at)
        self._tables[table_id] = schema, body[at : at + columns]


def _last_id(event: bytes, end: int, types: bytes, *, has_extra: bool) -> int:
    at = _HEADER.size + 8
    if has_extra:
        at += struct.unpack_from("<H", event, at)[0]
    columns, at = _length(event, at)
    present = int.from_bytes(event[at : at + (columns + 7) // 8], "little")
    at += (columns + 7) // 8
    widths = [width for place, width in enumerate(_CELL_WIDTHS) if present >> place & 1]
    nulls = (len(widths) + 7) // 8
    (last,) = _ID.unpack_from(event, at + nulls)
    if types != _CELL_TYPES:
        return int(last)
    while at < end:
        last = max(last, _ID.unpack_from(event, at + nulls)[0])
        at += nulls
        for width in widths:
            at += width if width > 0 else int.from_bytes(event[at : at - width], "little") - width
    return int(last)


def _length(data: bytes, at: int) -> tuple[int, int]:
    """Decode a length-encoded integer; return it and the offset after it."""
    first = data[at]
    if first < 0xFB:
        return first, at + 1
    width = {0xFC: 2, 0xFD: 3, 0xFE: 8}[first]
    return int.from_bytes(data[at + 1 : at + 1 + width], "little"), at + 1 + width
