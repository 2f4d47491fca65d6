"""How many values a document may have: counted exactly, before they are made, alike on both engines and both ways."""

from __future__ import annotations

import functools
import json
import tracemalloc
import zlib
from typing import Any

import msgpack
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from schemaless.cell import MAX_BODY_BYTES
from schemaless.codec.documents import identical
from schemaless.codec.engine import Engine
from schemaless.codec.envelope import Limits, decode_body, encode_body
from schemaless.codec.packed import Packed
from schemaless.codec.recode import recode
from schemaless.codec.registry import codec_named
from schemaless.codec.serializers import NotHeld
from schemaless.codec.values import MAX_VALUES, messagepack_exceeds, text_exceeds
from schemaless.errors import BodyTooLarge, TooManyValues, UnreadableLegacy
from tests.cases import each

pytestmark = [pytest.mark.once, pytest.mark.guarantee("bounded-memory")]  # each test names its engine

TEXT = st.text(st.sampled_from(',:[]{}"\\ \u00e9\U0001f6950'), max_size=6) | st.text("x", min_size=31, max_size=40)
SCALARS = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | TEXT
DOCUMENTS = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=20) | st.dictionaries(TEXT, inner, max_size=20), max_leaves=60
)


def values_of(document: Any) -> int:
    """Return what the rule says, by the document itself."""
    if isinstance(document, dict):
        return 1 + sum(1 + values_of(value) for value in document.values())
    return 1 + sum(map(values_of, document)) if isinstance(document, list) else 1


def enveloped(format_byte: int, payload: bytes) -> bytes:
    head = bytes((0xC1, format_byte)) + payload
    return head + zlib.crc32(head).to_bytes(4, "big")


def empty_lists(count: int) -> bytes:
    """Return a list of so many empty lists as MessagePack."""
    return b"\xdd" + count.to_bytes(4, "big") + b"\x90" * count


@given(DOCUMENTS, st.sampled_from([None, 0, 3]))
def test_counts_are_those_of_the_document(document: Any, indent: int | None) -> None:
    """Neither spelling nor what stands in strings matters: one value less is too few, that many are enough."""
    count = values_of(document)
    spellings = [
        (messagepack_exceeds, msgpack.packb(document)),
        (text_exceeds, json.dumps(document, indent=indent).encode()),
        (text_exceeds, json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()),
    ]

    for exceeds, payload in spellings:
        assert not exceeds(payload, count)
        assert count == 1 or exceeds(payload, count - 1)


@given(st.binary(max_size=60) | st.text('[]{},:"\\a ', max_size=60).map(str.encode), st.integers(1, 20))
def test_counts_of_anything_end(payload: bytes, limit: int) -> None:
    """Bytes that are no document are the decoder's to report; counting neither raises nor loops forever."""
    assert messagepack_exceeds(payload, limit) in (False, True)
    assert text_exceeds(payload, limit) in (False, True)


@each("first", [first for first in range(256) if not 0x80 <= first < 0xA0])
def test_every_spelling_of_messagepack_is_stepped_over(first: int) -> None:
    """What stands behind a value is found where it begins: the sizes are those of the stock decoder."""
    for padding in range(36):
        value = bytes((first,)) + bytes(padding)
        try:
            msgpack.unpackb(value)
        except (msgpack.exceptions.UnpackException, ValueError):
            continue
        behind = b"\x92" + value + b"\x92\xc0\xc0"

        assert messagepack_exceeds(behind, 4)
        assert not messagepack_exceeds(behind, 5)


@pytest.mark.parametrize("name", ["msgpack+none", "msgpack+zlib", "msgpack+zstd", "json+zlib", "legacy"])
def test_decode_over_the_limit_of_values_is_refused_alike(name: str, engine: Engine) -> None:
    """The limit is exact on both engines, and for text that only the reference can read."""
    for document in ({"a": [1, 2.5, "x,y"], "b": {}}, {"a": [1, float("nan"), "[[[["], "b": 2**70}):
        count = values_of(document)
        body = encode_body(document, codec_named(name))
        assert repr(decode_body(body, Limits(values=count), engine=engine)) == repr(document)
        assert recode(body, codec_named(name), limits=Limits(values=count), engine=engine).unchanged
        with pytest.raises(TooManyValues, match=f"more than {count - 1} lists, objects, keys and scalars"):
            decode_body(body, Limits(values=count - 1), engine=engine)
        with pytest.raises(TooManyValues):
            recode(body, codec_named(name), limits=Limits(values=count - 1), engine=engine)


BOMBS = (
    "zlib, 63 million lists",
    "zstd, below 200 bytes",
    "zlib, objects",
    "announced, not there",
    "deep before wide",
    "JSON text",
    "legacy",
)


@functools.cache
def bombs() -> dict[str, bytes]:
    """Return small bodies that would become gigabytes of values, or hundreds of megabytes."""
    objects = (16 << 20).to_bytes(4, "big") + b"\x81\xa1a\xc0" * ((16 << 20) - 2)
    text = b"[" + b"[]," * 5_500_000 + b"[]]"
    return {
        "zlib, 63 million lists": enveloped(0x11, zlib.compress(empty_lists(63_000_000))),
        "zstd, below 200 bytes": enveloped(0x12, zstandard.compress(empty_lists(4_450_000), 22)),
        "zlib, objects": enveloped(0x11, zlib.compress(b"\xdd" + objects)),
        "announced, not there": enveloped(0x11, zlib.compress(b"\xdd\xff\xff\xff\xff" + b"\x90" * (5 << 20))),
        "deep before wide": enveloped(0x11, zlib.compress((b"\xdd\x00\x10\x00\x00" + b"\xc0" * 0xFFFFF) * 50)),
        "JSON text": enveloped(0x01, zlib.compress(text)),
        "legacy": text[: MAX_BODY_BYTES - 1],
    }


@pytest.mark.parametrize(
    ("name", "engine"),
    [
        pytest.param(name, engine, marks=[pytest.mark.long] if (place + (engine == "fast")) % 2 else [])
        for place, name in enumerate(BOMBS)
        for engine in ("reference", "fast")
    ],
    indirect=["engine"],
)
def test_bomb_of_values_is_refused_before_any_is_made(name: str, engine: Engine) -> None:
    """What it inflates to is all the memory that a body can take so."""
    assert tuple(bombs()) == BOMBS
    body = bombs()[name]
    # The one that has to be counted value by value, while memory is traced, would take seconds.
    limits = Limits(values=MAX_VALUES // 16 if name == "deep before wide" else MAX_VALUES)
    tracemalloc.start()
    try:
        with pytest.raises(TooManyValues):
            decode_body(body, limits, engine=engine)
        with pytest.raises(TooManyValues):
            recode(body, codec_named("msgpack+zstd"), limits=limits, engine=engine)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert peak_bytes < 200 << 20


def test_unreadable_bytes_that_look_like_a_bomb_are_not_unpacked() -> None:
    """What an error says of bytes without an envelope is found out within the same limit."""
    tracemalloc.start()
    try:
        with pytest.raises(UnreadableLegacy, match="no envelope, and not JSON text"):
            decode_body(empty_lists(16_000_000))
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert peak_bytes < 200 << 20


@pytest.mark.parametrize(
    ("name", "engine"),
    [
        ("msgpack+zlib", "fast"),
        *(
            pytest.param(*case, marks=pytest.mark.long)
            for case in [("msgpack+zlib", "reference"), ("json+zlib", "fast"), ("legacy", "reference")]
        ),
    ],
    indirect=["engine"],
)
def test_encode_more_values_than_readers_take_raises(name: str, engine: Engine) -> None:
    """What is written can be read: the largest that is taken decodes, and one value more is not written."""
    largest = [0] * (MAX_VALUES - 1)
    body = encode_body(largest, codec_named(name), engine=engine)
    assert decode_body(body, engine=engine) == largest
    with pytest.raises(
        BodyTooLarge, match="more than 4,194,304 lists, objects, keys and scalars, which readers refuse"
    ):
        encode_body([*largest, 0], codec_named(name), engine=engine)


@given(DOCUMENTS)
def test_packed_values_are_counted_by_the_rule_on_both_engines(document: Any) -> None:
    """Rows and keys, in whatever columns they stand: one value less is too few, that many are enough."""
    count = values_of(document)
    for codec in (Packed(fast=True), Packed(fast=False)):
        try:
            payload = codec.dumps(document)
        except NotHeld:
            return

        assert identical(codec.loads(payload, values=count), document)
        if count > 1:
            with pytest.raises(TooManyValues, match=f"more than {count - 1:,} lists"):
                codec.loads(payload, values=count - 1)


def test_packed_bomb_of_values_is_refused_before_they_are_made() -> None:
    """Its columns take next to no bytes: a megabyte that pays for four million values, of lists of nothing."""
    bomb = Packed(fast=True).dumps([[]] * 1_000_000)

    tracemalloc.start()
    try:
        with pytest.raises(TooManyValues):
            Packed(fast=False).loads(bomb, values=500_000)
        assert tracemalloc.get_traced_memory()[1] < 20 << 20
    finally:
        tracemalloc.stop()
