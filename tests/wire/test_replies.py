"""Reply parsers: the native extension agrees with the reference implementation, and leaves it what it cannot parse."""

from __future__ import annotations

import datetime
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemaless.codec.fast import optional
from schemaless.wire.replies import REFERENCE, Converter, Parser, is_end, row_of
from tests.skips import NATIVE_NOT_BUILT

pytestmark = pytest.mark.once

native: Any = optional("schemaless_packed")
needs_native = pytest.mark.skipif(native is None, reason=NATIVE_NOT_BUILT)

CONVERTERS: tuple[Converter, ...] = (
    None,
    int,
    bytes.decode,
    datetime.date.fromisoformat,
    lambda value: value.decode("ascii"),
)


def length(value: bytes, width: int) -> bytes:
    """Return a length-encoded value whose length takes at least ``width`` bytes."""
    if width == 0 and len(value) < 0xFB:
        return bytes([len(value)]) + value
    for first, size in ((0xFC, 2), (0xFD, 3), (0xFE, 8)):
        if width <= size and len(value) < 1 << 8 * size:
            return bytes([first]) + len(value).to_bytes(size, "little") + value
    raise AssertionError(width)


texts = st.one_of(
    st.text(max_size=300).map(str.encode),
    st.integers(-(10**20), 10**20).map(lambda number: b"%d" % number),
    st.sampled_from((b"", b"-", b"+1", b" 1 ", b"1_0", b"007", b"-0", b"\xd9\xa1", b"\xed\xa0\x80", b"2026-01-31")),
    st.binary(max_size=20),
)
values = st.one_of(st.just(b"\xfb"), st.builds(length, texts, st.sampled_from((0, 0, 0, 1, 2, 3, 8))))
rows = st.lists(values, max_size=4).map(b"".join)
ends = st.binary(max_size=9).map(b"\xfe".__add__)
other_packets = st.one_of(st.binary(max_size=12), st.binary(max_size=12).map(b"\xff".__add__))
converters = st.lists(st.sampled_from(CONVERTERS), max_size=4)


@st.composite
def buffers(draw: st.DrawFn) -> tuple[bytes, int]:
    """Draw the received part of a reply, sometimes truncated or corrupted, and its first sequence number."""
    packets = draw(st.lists(st.one_of(rows, rows, rows, ends, other_packets), max_size=8))
    number = draw(st.sampled_from((0, 1, 7, 250, 255)))
    data = b"".join(
        struct.pack("<I", len(packet) | ((number + count) & 0xFF) << 24) + packet
        for count, packet in enumerate(packets)
    )
    if draw(st.booleans()):
        data = data[: draw(st.integers(0, len(data)))]
    if data and draw(st.booleans()):
        place = draw(st.integers(0, len(data) - 1))
        data = data[:place] + draw(st.binary(min_size=1, max_size=1)) + data[place + 1 :]
    return data, number


@needs_native
@given(buffers())
def test_native_packets_equal_the_reference(buffer):
    """The same packets are parsed, and the same number of bytes is consumed."""
    assert native.packets(*buffer) == REFERENCE.packets(*buffer)


def outcome(parser: Parser, data: bytes, number: int, converters: list[Converter]) -> object:
    """Return what a connection would get from a buffer: typed rows, end packet and unread bytes, or the error."""
    found: list[tuple[Any, ...]] = []
    try:
        while True:
            more, end, taken, number = parser.rows(data, number, converters)
            found += more
            data = data[taken:]
            if end is not None:
                break
            if not taken:
                # As a connection does with a complete packet.
                packets, taken, number = REFERENCE.packets(data, number)
                if not packets:
                    break
                end = packets[0] if is_end(packets[0]) else None
                assert end is None
                found.append(row_of(packets[0], converters))
    except Exception as error:  # noqa: BLE001 - both parsers must raise the same error
        return type(error), str(error)
    return [[(type(value), value) for value in row] for row in found], end, data, number


@needs_native
@given(buffers(), converters)
def test_native_rows_equal_the_reference(buffer, converters):
    """Both return the same rows or raise the same error."""
    assert outcome(native, *buffer, converters) == outcome(REFERENCE, *buffer, converters)


@needs_native
def test_a_malformed_row_is_left_to_the_reference():
    """The rows before it are returned; rejecting the next one is up to the reference."""
    packets = (b"\x011\x01a", b"\x012\x01b", b"\x013\x02b", b"\x014\x01d")
    data = b"".join(struct.pack("<I", len(packet) | number << 24) + packet for number, packet in enumerate(packets))

    assert native.rows(data, 0, [int, bytes.decode]) == ([(1, "a"), (2, "b")], None, 16, 2)


def test_a_split_packet_is_left_unread():
    """The caller joins it with the packets that follow."""
    data = struct.pack("<I", 0xFFFFFF) + bytes(0xFFFFFF)
    for parser in filter(None, (REFERENCE, native)):
        assert parser.packets(data, 0) == ([], 0, 0)
        assert parser.rows(data, 0, []) == ([], None, 0, 0)


@needs_native
@pytest.mark.parametrize("arguments", [(b"", 256, []), (b"", -1, []), (bytearray(), 0, []), (b"", 0, 1), ("", 0, [])])
def test_arguments_of_wrong_types_are_rejected(arguments):
    """Buffer, sequence number and converters are checked."""
    with pytest.raises((TypeError, OverflowError)):
        native.rows(*arguments)
