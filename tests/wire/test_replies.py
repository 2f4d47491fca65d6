"""Replies in memory: the native part reads what it knows as the reference does, and leaves the rest to it."""

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
    """Return a value behind its length, in so many bytes, or more where it takes them."""
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
strangers = st.one_of(st.binary(max_size=12), st.binary(max_size=12).map(b"\xff".__add__))
converters = st.lists(st.sampled_from(CONVERTERS), max_size=4)


@st.composite
def memories(draw: st.DrawFn) -> tuple[bytes, int]:
    """Draw what has come of a reply, and its first packet's number; cut off or changed somewhere, now and then."""
    packets = draw(st.lists(st.one_of(rows, rows, rows, ends, strangers), max_size=8))
    number = draw(st.sampled_from((0, 1, 7, 250, 255)))
    here = b"".join(
        struct.pack("<I", len(packet) | ((number + count) & 0xFF) << 24) + packet
        for count, packet in enumerate(packets)
    )
    if draw(st.booleans()):
        here = here[: draw(st.integers(0, len(here)))]
    if here and draw(st.booleans()):
        place = draw(st.integers(0, len(here) - 1))
        here = here[:place] + draw(st.binary(min_size=1, max_size=1)) + here[place + 1 :]
    return here, number


@needs_native
@given(memories())
def test_packets_are_those_of_the_reference(memory):
    """The same, and no more and no less of what is there is taken."""
    assert native.packets(*memory) == REFERENCE.packets(*memory)


def outcome(parser: Parser, here: bytes, number: int, converters: list[Converter]) -> object:
    """Return what a connection would get of a memory: rows with their types, the end, what is left; or the error."""
    found: list[tuple[Any, ...]] = []
    try:
        while True:
            more, end, taken, number = parser.rows(here, number, converters)
            found += more
            here = here[taken:]
            if end is not None:
                break
            if not taken:
                # What a connection does then, of what came whole.
                packets, taken, number = REFERENCE.packets(here, number)
                if not packets:
                    break
                end = packets[0] if is_end(packets[0]) else None
                assert end is None
                found.append(row_of(packets[0], converters))
    except Exception as error:  # noqa: BLE001 - whatever it is, it has to be the same
        return type(error), str(error)
    return [[(type(value), value) for value in row] for row in found], end, here, number


@needs_native
@given(memories(), converters)
def test_rows_are_those_of_the_reference(memory, converters):
    """Or what is raised is: nothing is a row by the native part that is none by the reference, or another one."""
    assert outcome(native, *memory, converters) == outcome(REFERENCE, *memory, converters)


@needs_native
def test_a_row_that_is_none_is_left_where_it_is():
    """The rows before it are given; the next one is the reference's to refuse."""
    packets = (b"\x011\x01a", b"\x012\x01b", b"\x013\x02b", b"\x014\x01d")
    here = b"".join(struct.pack("<I", len(packet) | number << 24) + packet for number, packet in enumerate(packets))

    assert native.rows(here, 0, [int, bytes.decode]) == ([(1, "a"), (2, "b")], None, 16, 2)


def test_a_piece_of_a_packet_is_left_where_it_is():
    """It goes on in the next one: whoever reads it puts them together."""
    here = struct.pack("<I", 0xFFFFFF) + bytes(0xFFFFFF)
    for parser in filter(None, (REFERENCE, native)):
        assert parser.packets(here, 0) == ([], 0, 0)
        assert parser.rows(here, 0, []) == ([], None, 0, 0)


@needs_native
@pytest.mark.parametrize("arguments", [(b"", 256, []), (b"", -1, []), (bytearray(), 0, []), (b"", 0, 1), ("", 0, [])])
def test_arguments_of_other_kinds_are_refused(arguments):
    """They are no bytes, no number of a packet, or no converters."""
    with pytest.raises((TypeError, OverflowError)):
        native.rows(*arguments)
