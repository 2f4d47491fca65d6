"""Parser for replies of the MySQL protocol: packets in memory, and the rows in them.

The pure-Python functions are the reference implementation. If the native extension is installed, it parses what it can
and leaves the rest unread, so that this code handles it and raises any error.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any, Final, NamedTuple

import pymysql
import pymysql.connections
import pymysql.converters
from pymysql.constants import FIELD_TYPE

from schemaless.codec.fast import IS_WANTED, optional

_BINARY: Final = 63
"""MySQL's number for the binary character set, whose values are bytes, not text."""

_COLUMN_TAIL: Final = struct.Struct("<BH4xB5x")
"""Fixed-size end of a column description: length, character set, and type."""
_COLUMN_TAIL_LENGTH: Final = _COLUMN_TAIL.size - 1
"""Value of the length byte: number of bytes after it."""
_TYPE_OFFSET: Final = -6
"""Offset of the type byte in a column description, from its end."""

NULL: Final = 0xFB
"""First byte of a NULL value; smaller first bytes are the length of the value."""
OK: Final = 0x00
"""First byte of an OK packet."""
MIN_OK_BYTES: Final = 7
ERROR: Final = 0xFF
"""First byte of an error packet."""
_END: Final = 0xFE
_MIN_LONG_VALUE_BYTES: Final = 9
HEADER_BYTES: Final = 4
_HEADER: Final = struct.Struct("<I")
"""Packet header: three bytes of length, one byte of sequence number."""
MAX_PIECE_BYTES: Final = 0xFFFFFF
"""Payload size of a packet that continues in the next one, in bytes."""
_STATUS: Final = struct.Struct("<H")
_LENGTH_BYTES: Final = {0xFC: 2, 0xFD: 3, 0xFE: 8}
"""Number of length bytes that follow, by the first byte of a long value."""

Converter = Callable[[bytes], Any] | None
"""Converts the bytes of a column's values; None to keep bytes."""


class Parser(NamedTuple):
    """Implementation of ``packets_in`` and ``rows_in``."""

    packets: Callable[[bytes, int], tuple[list[bytes], int, int]]
    rows: Callable[[bytes, int, Sequence[Converter]], tuple[list[tuple[Any, ...]], bytes | None, int, int]]


def packets_in(buffer: bytes, number: int) -> tuple[list[bytes], int, int]:
    """Split buffered bytes into complete packets; the first one must have sequence number ``number``.

    Returns:
        The payloads up to and including an end packet, the packets' size in bytes with headers, and the sequence number
        of the next packet. The list is empty if the first packet is incomplete, split, an error, or out of sequence.
    """
    packets: list[bytes] = []
    at, last = 0, len(buffer) - HEADER_BYTES
    while at < last:
        (header,) = _HEADER.unpack_from(buffer, at)
        begin = at + HEADER_BYTES
        length = header & MAX_PIECE_BYTES
        end = begin + length
        # Every other packet is read on its own, with full error handling.
        if end > len(buffer) or header >> 24 != number or length in (0, MAX_PIECE_BYTES) or buffer[begin] == ERROR:
            break
        packets.append(buffer[begin:end])
        at, number = end, number + 1 & 0xFF
        if buffer[begin] == _END and is_end(packets[-1]):
            break
    return packets, at, number


def rows_in(
    buffer: bytes, number: int, converters: Sequence[Converter]
) -> tuple[list[tuple[Any, ...]], bytes | None, int, int]:
    """Decode the rows of the complete packets in a buffer.

    Returns:
        The rows, the end packet if it has arrived, the packets' size in bytes, and the sequence number of the next one.

    Raises:
        InternalError, IndexError, ValueError: a packet is not a row of these columns.
    """
    packets, taken, after = packets_in(buffer, number)
    end = packets.pop() if packets and is_end(packets[-1]) else None
    return [row_of(packet, converters) for packet in packets], end, taken, after


def row_of(packet: bytes, converters: Sequence[Converter]) -> tuple[Any, ...]:
    """Decode a row packet.

    Raises:
        InternalError, IndexError, ValueError: the packet is not a row of these columns.
    """
    row: list[Any] = []
    at = 0
    for convert in converters:
        length = packet[at]
        at += 1
        if length >= NULL:
            if length == NULL:
                row.append(None)
                continue
            if length not in _LENGTH_BYTES:
                raise pymysql.InternalError(f"invalid length byte {length:#x} of a value, at byte {at - 1} of a row")
            begin = at + _LENGTH_BYTES[length]
            length = int.from_bytes(packet[at:begin], "little")
            at = begin
        end = at + length
        row.append(packet[at:end] if convert is None else convert(packet[at:end]))
        at = end
    if at != len(packet):
        raise pymysql.InternalError(f"a row has {len(packet)} bytes, but its values take {at}")
    return tuple(row)


def ok_of(packet: bytes) -> tuple[int, int, int]:
    """Return the number of affected rows, the first generated id and the server status of an OK packet.

    Raises:
        InternalError, IndexError, struct.error: the packet is malformed.
    """
    affected, at = _length_at(packet, 1)
    last_id, at = _length_at(packet, at)
    (status,) = _STATUS.unpack_from(packet, at)
    return affected, last_id, status


def _length_at(packet: bytes, at: int) -> tuple[int, int]:
    """Return a number in the protocol's encoding of lengths, and the offset after it."""
    first = packet[at]
    if first < NULL:
        return first, at + 1
    if first not in _LENGTH_BYTES:
        raise pymysql.InternalError(f"invalid length byte {first:#x}, at byte {at} of a packet")
    end = at + 1 + _LENGTH_BYTES[first]
    return int.from_bytes(packet[at + 1 : end], "little"), end


def is_end(packet: bytes) -> bool:
    """Return True for the packet that ends the columns or rows; a row with the same first byte is longer."""
    return packet[0] == _END and len(packet) < _MIN_LONG_VALUE_BYTES


def converters_of(
    columns: Sequence[bytes], encoding: str, has_text: bool, decoders: dict[int, Callable[[Any], Any]]
) -> list[Converter]:
    """Return the converter of each column; each does in one call what PyMySQL does in two.

    Args:
        columns: column descriptions.
        encoding: encoding of the connection.
        has_text: True to decode text columns.
        decoders: the driver's converters by column type.

    Raises:
        InternalError, IndexError, struct.error: a column description is malformed.
    """
    tail = -_COLUMN_TAIL.size
    return [_converter(column[tail:], encoding, has_text, decoders.get(column[_TYPE_OFFSET])) for column in columns]


@lru_cache(256)
def _converter(column_tail: bytes, encoding: str, has_text: bool, convert: Any) -> Converter:
    length, charset, kind = _COLUMN_TAIL.unpack(column_tail)
    if length != _COLUMN_TAIL_LENGTH:
        raise pymysql.InternalError(f"malformed column description that ends with {column_tail!r}")
    if convert is pymysql.converters.through:
        convert = None
    if kind in pymysql.connections.TEXT_TYPES and kind != FIELD_TYPE.JSON:
        encoding = "" if charset == _BINARY else encoding
    elif kind != FIELD_TYPE.JSON:
        # int() accepts ASCII bytes.
        encoding = "" if convert is int else "ascii"
    if not has_text or not encoding:
        converter: Converter = convert
        return converter
    if convert is not None:
        return lambda value: convert(value.decode(encoding))
    # bytes.decode without an argument takes half as long as str() with an encoding.
    return bytes.decode if encoding == "utf8" else partial(str, encoding=encoding)


REFERENCE: Final = Parser(packets_in, rows_in)
"""Pure-Python reference implementation."""

_native: Final[Any] = optional("schemaless_packed") if IS_WANTED else None

PARSER: Final = REFERENCE if _native is None else Parser(_native.packets, _native.rows)
"""Parser in use: the native one if available."""
