"""With the ``[fast]`` extra and without it, what is read: the same documents, the same refusals, the same words."""

from __future__ import annotations

import json
import random
import struct
import zlib
from typing import Any

import msgpack
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from schemaless.codec.compressors import Zlib, Zstd
from schemaless.codec.documents import MAX_DEPTH, check_document, identical
from schemaless.codec.engine import REFERENCE
from schemaless.codec.envelope import (
    Limits,
    decode_body,
    encode_body,
    keep_reason,
)
from schemaless.codec.legacy import read_exactly, read_legacy
from schemaless.codec.recode import recode
from schemaless.codec.registry import codec_named, codec_names
from schemaless.errors import CorruptBody
from tests.cases import each
from tests.codec.agreement import ANY_DOCUMENT, BOUNDED, FAST, MODEL, agree, outcome
from tests.codec.test_agreement_on_writing import nested

pytestmark = pytest.mark.once  # each test names its engine

JSON_PIECES = st.sampled_from(
    [
        *(
            "{",
            "}",
            "[",
            "]",
            ":",
            ",",
            " ",
            "\n",
            '"',
            "\\",
            '"a"',
            '"a":1',
            '"a": ',
            '"a" :',
            '"b":',
            '"\\u0022:"',
            '"\\":"',
        ),
        *(
            '"\\u003a"',
            '"\\ud83d"',
            '"\\ud83d\\ude00"',
            "NaN",
            "Infinity",
            "-Infinity",
            "1e999",
            "-1e999",
            "1E400",
            "9" * 400,
        ),
        *(
            "18446744073709551616",
            "-9223372036854775809",
            "0",
            "-0",
            "-0.0",
            "01",
            "1.",
            "1e5",
            "true",
            "null",
            "\ufeff",
        ),
        *(
            '"é"',
            '"\x7f"',
            '"\t"',
            "\\u0061",
            '{"a":1,"a":2}',
            '{"a":{"b":1},"a":2}',
            '{"\\u0061":1,"a":2}',
            "0" * 5,
            "\x00",
        ),
    ]
)


@BOUNDED
@given(st.lists(JSON_PIECES, max_size=8).map("".join))
def test_read_broken_text_agrees_with_the_reference(text: str) -> None:
    """Text that is nearly JSON is read or refused alike, and kept for the same reason."""
    agree_on_text(text.encode())


@BOUNDED
@given(ANY_DOCUMENT, st.randoms(use_true_random=False))
def test_read_spelled_text_agrees_with_the_reference(document: Any, chance: random.Random) -> None:
    """Spaces, escapes and doubled members in any mix: the quick screens never miss a loss."""
    agree_on_text(spell(document, chance).encode("utf-8", "replace"))


def spell(value: Any, chance: random.Random) -> str:
    """Return JSON text of ``value``, spelled at random, sometimes with a member twice."""
    space = chance.choice(["", "", " ", "\n", "\t"])
    if isinstance(value, dict):
        members = [(key, item) for key, item in value.items() for _ in range(chance.choice([1, 1, 1, 2]))]
        chance.shuffle(members)
        inside = f"{space},{space}".join(
            f"{spell(key, chance)}{space}:{space}{spell(item, chance)}" for key, item in members
        )
        return f"{{{space}{inside}}}"
    if isinstance(value, list):
        return f"[{space}{f'{space},'.join(spell(item, chance) for item in value)}]"
    if isinstance(value, str):
        return '"' + "".join(spell_character(character, chance) for character in value) + '"'
    return json.dumps(value)


def spell_character(character: str, chance: random.Random) -> str:
    if chance.random() < 0.3 or "\ud800" <= character <= "\udfff":
        return json.dumps(character)[1:-1] if ord(character) > 0xFFFF else f"\\u{ord(character):04x}"
    return json.dumps(character, ensure_ascii=False)[1:-1]


def agree_on_text(text: bytes) -> None:
    read = outcome(lambda: read_legacy(text, engine=FAST))
    exact = outcome(lambda: read_exactly(text))
    assert read[0] == exact[0]
    if read[0] != "gives":
        assert read[1] == exact[1]
        return
    assert read[1].keep_reason == exact[1].keep_reason
    assert identical(read[1].value, exact[1].value)
    assert identical(exact[1].value, json.loads(text.decode()))
    for name in codec_names():
        codec = codec_named(name)
        fast, reference = (recode(text, codec, engine=engine) for engine in (FAST, REFERENCE))
        assert fast.keep_reason == reference.keep_reason == keep_reason(text, codec, MAX_DEPTH, engine=REFERENCE)
        if not name.startswith("packed"):
            assert fast.keep_reason == (exact[1].keep_reason if name.startswith("msgpack") else None)
        assert identical(decode_body(fast.body), exact[1].value)
        assert identical(decode_body(reference.body), exact[1].value)
        if fast.keep_reason or not codec.is_binary:
            assert recode(fast.body, codec_named("legacy")).body == text


def enveloped(format_byte: int, payload: bytes) -> bytes:
    """Return a payload, whatever it is, in an envelope whose checksum holds."""
    head = bytes((0xC1, format_byte)) + payload
    return head + zlib.crc32(head).to_bytes(4, "big")


MSGPACK_BYTES = st.binary(max_size=24) | st.lists(
    st.sampled_from(
        [b"\xc0", b"\xc1", b"\xc4\x00", b"\xc4\x01a", b"\xc5\x00\x00", b"\xc7\x00\x01", b"\xd4\x01a", b"\xd6\xff0000"]
    )
    | st.sampled_from(
        [b"\x81", b"\x82", b"\x91", b"\x92", b"\xdc\x00\x01", b"\xdd\x00\x00\x00\x01", b"\xde\x00\x01", b"\x80"]
    )
    | st.sampled_from(
        [b"\xa1a", b"\xa1\xff", b"\xd9\x01a", b"\xa3\xed\xa0\x80", b"\xca\x3f\x80\x00\x00", b"\xcf\xff\xff", b"\x01"]
    )
    | st.floats().map(lambda number: b"\xcb" + struct.pack(">d", number)),
    max_size=7,
).map(b"".join)


@settings(BOUNDED, max_examples=4 * settings.default.max_examples)
@given(MSGPACK_BYTES)
def test_decode_any_messagepack_bytes_is_agreed_on(payload: bytes) -> None:
    """With a checksum that holds, the payload alone decides, and both engines decide alike."""
    for format_byte, stored in ((0x10, payload), (0x11, zlib.compress(payload)), (0x12, zstandard.compress(payload))):
        body = enveloped(format_byte, stored) if stored else b""
        kind, document = agree(lambda engine, body=body: decode_body(body, engine=engine))
        if kind == "gives":
            check_document(document)


@BOUNDED
@given(MODEL, st.integers(0, 10_000), st.integers(0, 255))
def test_decode_damaged_payload_is_agreed_on(document: Any, position: int, byte: int) -> None:
    """One wrong byte under a checksum that holds: both engines read the same or refuse in the same words."""
    payload = bytearray(msgpack.packb(document))
    payload[position % len(payload)] = byte
    agree(lambda engine: decode_body(enveloped(0x10, bytes(payload)), engine=engine))


@BOUNDED
@given(st.binary(max_size=200) | st.text(max_size=60).map(lambda text: (text * 9).encode()), st.data())
def test_decompress_damaged_stream_is_agreed_on(content: bytes, data: st.DataObject) -> None:
    """Cut, extended or damaged streams end alike on every path; what both read is what went in."""
    for reference, fast, compress in (
        (Zlib(fast=False), Zlib(fast=True), zlib.compress),
        (Zstd(fast=False), Zstd(fast=True), zstandard.compress),
    ):
        stream = bytearray(compress(content))
        damage = data.draw(st.sampled_from(["cut", "extend", "repeat", "tail", "change"]))
        if damage == "cut":
            del stream[data.draw(st.integers(0, len(stream) - 1)) :]
        elif damage == "extend":
            stream += data.draw(st.binary(min_size=1, max_size=9))
        elif damage == "repeat":
            stream = stream * 2
        elif damage == "tail":
            stream = stream + stream[-data.draw(st.integers(1, 8)) :]
        else:
            stream[data.draw(st.integers(0, len(stream) - 1))] ^= data.draw(st.integers(1, 255))
        damaged = bytes(stream)
        outcomes = [
            outcome(lambda end=end, damaged=damaged: bytes(end.decompress(damaged, 1 << 20)))
            for end in (reference, fast)
        ]

        assert outcomes[0] == outcomes[1]
        assert damage == "change" or outcomes[0][0] != "gives"


@pytest.mark.parametrize("filler", [b"\x00", b"ab", b"\x90"])
def test_decompress_trailing_bytes_that_repeat_the_checksum_raise(filler: bytes) -> None:
    """Bytes after a stream are refused, even where they look like its end."""
    zlib_fast = Zlib(fast=True)
    for content in (b"", filler, filler * 100, filler * 5000):
        stream = zlib.compress(content)
        for tail in (stream[-4:], stream[-1:], stream[-4:] * 3, b"\x00" * 4, stream):
            with pytest.raises(CorruptBody):
                zlib_fast.decompress(stream + tail, 1 << 20)
        assert zlib_fast.decompress(stream, 1 << 20) == content


@each("limit", [1, 999, 1000, 1001, 5000])
@each("name", ["msgpack+none", "msgpack+zlib", "msgpack+zstd", "json+zlib", "legacy"])
def test_decode_over_the_size_limit_is_refused_alike(limit: int, name: str) -> None:
    """The limit is exact: as many bytes decode, one more does not."""
    text = "x" * (1000 - (2 if "msgpack" not in name else 3))
    body = encode_body(text, codec_named(name))
    kind, _ = agree(lambda engine: decode_body(body, Limits(decoded_bytes=limit), engine=engine))

    assert kind == ("gives" if limit >= 1000 else "DecodedSizeExceeded")


@each("depth", [1, 5, 11, 12, 13, 100, MAX_DEPTH])
@each("name", ["msgpack+none", "msgpack+zlib", "json+zlib", "legacy"])
def test_decode_over_the_depth_limit_is_refused_alike(depth: int, name: str) -> None:
    """A lower limit holds as exactly as the highest."""
    for levels in (depth - 1, depth, depth + 1):
        if not 1 <= levels <= MAX_DEPTH:
            continue
        body = encode_body(nested(levels, "both"), codec_named(name))
        kind, _ = agree(lambda engine, body=body: decode_body(body, Limits(depth=depth), engine=engine))

        assert kind == ("gives" if levels <= depth else "NestingTooDeep")
