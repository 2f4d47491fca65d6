"""Replies in memory: packets, and rows of what is in them.

Pure Python, and the law. The native part takes their place where it is present and knows what is to be done; what it
does not know it leaves where it is, and what stands here decides and words the error.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any, Final, NamedTuple

import pymysql
import pymysql.connections
from pymysql import converters
from pymysql.constants import FIELD_TYPE

from schemaless.codec.fast import IS_WANTED, optional

_BINARY: Final = 63
"""A column of this character set has bytes, and no text."""

_READ_BY: Final = struct.Struct("<BH4xB5x")
"""This is the end of a column's description: its character set and its type are there, behind all its names."""
_READ_BY_BYTES: Final = _READ_BY.size - 1
"""The end's first byte says this: how many more there are."""
_KIND: Final = -6
"""Where a column's type stands in its description."""

NULL: Final = 0xFB
"""A value that begins so is none; a value's length is its first byte where that is less."""
ERROR: Final = 0xFF
"""A packet that begins so is an error."""
_END: Final = 0xFE
_LEAST_LONG_VALUE: Final = 9
HEADER_BYTES: Final = 4
_HEADER: Final = struct.Struct("<I")
"""A packet begins with three bytes that say how long it is, and one with its number."""
MOST_PIECE_BYTES: Final = 0xFFFFFF
"""A packet with so much in it goes on in the next one."""
_LENGTH_BYTES: Final = {0xFC: 2, 0xFD: 3, 0xFE: 8}
"""A value's length stands in so many bytes behind its first one."""

Maker = Callable[[bytes], Any] | None
"""This makes a column's values of their bytes; None where bytes stay so."""


class Packets(NamedTuple):
    """What is in the packets that lie whole in memory, up to an end and with it.

    Attributes:
        packets: none where the first one is not whole, or in pieces, or an error, or is numbered otherwise.
        bytes: how many they took.
        number: the next one's.
    """

    packets: list[bytes]
    bytes: int
    number: int


class PacketRows(NamedTuple):
    """The rows of such packets.

    Attributes:
        end: the packet that ended them, if any.
        bytes: how many bytes they took, and the end with them.
        number: the next packet's.
    """

    rows: list[tuple[Any, ...]]
    end: bytes | None
    bytes: int
    number: int


class Parser(NamedTuple):
    """A way to read what lies in memory: of bytes, and the number of their first packet; of rows, their makers too."""

    packets: Callable[[bytes, int], tuple[list[bytes], int, int]]
    rows: Callable[[bytes, int, Sequence[Maker]], tuple[list[tuple[Any, ...]], bytes | None, int, int]]


def packets_in(here: bytes, number: int) -> Packets:
    """Return the packets that lie whole in memory, of which the first one has this number."""
    packets: list[bytes] = []
    at, last = 0, len(here) - HEADER_BYTES
    while at < last:
        (header,) = _HEADER.unpack_from(here, at)
        begin = at + HEADER_BYTES
        length = header & MOST_PIECE_BYTES
        end = begin + length
        # Of the other packets each is read by itself, with all that may be wrong with it.
        if end > len(here) or header >> 24 != number or length in (0, MOST_PIECE_BYTES) or here[begin] == ERROR:
            break
        packets.append(here[begin:end])
        at, number = end, number + 1 & 0xFF
        if here[begin] == _END and is_end(packets[-1]):
            break
    return Packets(packets, at, number)


def rows_in(here: bytes, number: int, makers: Sequence[Maker]) -> PacketRows:
    """Return the rows of the packets that ``packets_in`` gives.

    Raises:
        InternalError, IndexError, ValueError: one of them is no row of such columns.
    """
    packets, taken, after = packets_in(here, number)
    end = packets.pop() if packets and is_end(packets[-1]) else None
    return PacketRows([row_of(packet, makers) for packet in packets], end, taken, after)


def row_of(packet: bytes, makers: Sequence[Maker]) -> tuple[Any, ...]:
    """Return the row that is in a packet.

    Raises:
        InternalError, IndexError, ValueError: it is no row of such columns.
    """
    row: list[Any] = []
    at = 0
    for make in makers:
        length = packet[at]
        at += 1
        if length >= NULL:
            if length == NULL:
                row.append(None)
                continue
            if length not in _LENGTH_BYTES:
                raise pymysql.InternalError(f"a value's length begins with {length:#x}, at byte {at - 1} of a row")
            begin = at + _LENGTH_BYTES[length]
            length = int.from_bytes(packet[at:begin], "little")
            at = begin
        end = at + length
        row.append(packet[at:end] if make is None else make(packet[at:end]))
        at = end
    if at != len(packet):
        raise pymysql.InternalError(f"a row has {len(packet)} bytes, and its values {at}")
    return tuple(row)


def is_end(packet: bytes) -> bool:
    """Whether a packet ends a reply's columns or rows; a value that long takes more bytes."""
    return packet[0] == _END and len(packet) < _LEAST_LONG_VALUE


def makers_of(
    columns: Sequence[bytes], encoding: str, has_text: bool, decoders: dict[int, Callable[[Any], Any]]
) -> list[Maker]:
    """Return what makes each column's values of their bytes, which PyMySQL does in two steps.

    Args:
        columns: their descriptions.
        encoding: the connection's.
        has_text: whether anything is to be text.
        decoders: what the driver has for a type.

    Raises:
        InternalError, IndexError, struct.error: one is no column's description.
    """
    return [_maker(column[-_READ_BY.size :], encoding, has_text, decoders.get(column[_KIND])) for column in columns]


@lru_cache(256)
def _maker(column: bytes, encoding: str, has_text: bool, convert: Any) -> Maker:
    """Return what makes a column's values, given the end of its description."""
    left, charset, kind = _READ_BY.unpack(column)
    if left != _READ_BY_BYTES:
        raise pymysql.InternalError(f"the description of a column ends with {column!r}")
    if convert is converters.through:
        convert = None
    if kind in pymysql.connections.TEXT_TYPES and kind != FIELD_TYPE.JSON:
        encoding = "" if charset == _BINARY else encoding
    elif kind != FIELD_TYPE.JSON:
        # int takes the digits as bytes.
        encoding = "" if convert is int else "ascii"
    if not has_text or not encoding:
        made: Maker = convert
        return made
    if convert is not None:
        return lambda value: convert(value.decode(encoding))
    # Without a name it takes half as long.
    return bytes.decode if encoding == "utf8" else partial(str, encoding=encoding)


REFERENCE: Final = Parser(packets_in, rows_in)
"""This is what the native part is measured by."""

_native: Final[Any] = optional("schemaless_packed") if IS_WANTED else None

# One of an earlier version has no rows.
PARSER: Final = Parser(_native.packets, _native.rows) if hasattr(_native, "rows") else REFERENCE
"""Replies are read by this."""
