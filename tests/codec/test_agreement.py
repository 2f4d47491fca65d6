"""With the ``[fast]`` extra and without it: the same documents, the same refusals, the same words."""

from __future__ import annotations

import collections
import dataclasses
import datetime
import decimal
import enum
import json
import random
import struct
import sys
import uuid
import zlib
from collections.abc import Callable
from typing import Any

import msgpack
import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from schemaless.codec.compressors import Zlib, Zstd
from schemaless.codec.documents import MAX_DEPTH, check_document, depth_of, identical
from schemaless.codec.engine import REFERENCE, Engine
from schemaless.codec.envelope import (
    Limits,
    check_canonical,
    decode_body,
    encode_body,
    keep_reason,
    same_document,
    same_put,
)
from schemaless.codec.legacy import read_exactly, read_legacy
from schemaless.codec.recode import recode
from schemaless.codec.registry import DEFAULT, codec_named, codec_names
from schemaless.codec.serializers import NotHeld
from schemaless.errors import CorruptBody, InvalidBody, SchemalessError

DEFLATE = Zlib(fast=True, deflate_min_bytes=0)
"""Nearly all streams here are so short that ``zlib`` would read them on both paths."""

FAST = Engine(fast=True)
FAST.compressors[DEFLATE.id] = DEFLATE
BOUNDED = settings(max_examples=150, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(st.characters(exclude_categories=["Cs"]))
    | st.sampled_from(
        [0, -1, 127, 128, 255, 256, 2**31, 2**32, 2**63, -32, -33, -(2**63), 0.0, -0.0, 1.0, 1e16, 5e-324]
    )
)
MODEL = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=8), inner, max_size=5)
)
UNHELD = st.integers(2**64, 2**200) | st.integers(-(2**200), -(2**63) - 1) | st.text(st.characters())
ANY_DOCUMENT = st.recursive(
    SCALARS | UNHELD,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(st.characters(), max_size=4), inner, max_size=4)
    ),
)


class Text(str):
    __slots__ = ()


class Whole(int):
    pass


class Real(float):
    pass


class Members(dict[str, Any]):
    pass


class Items(list[Any]):
    pass


class Colour(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    LOW = 1


class Word(enum.StrEnum):
    A = "a"


@dataclasses.dataclass
class Point:
    x: int = 1


Pair = collections.namedtuple("Pair", "a b")  # noqa: PYI024

STRANGERS: list[Any] = [
    *(
        Text("a"),
        Whole(1),
        Real(1.0),
        Members(),
        Members(a=1),
        Items(),
        Items([1]),
        Colour.RED,
        Level.LOW,
        Word.A,
        Point(),
    ),
    *(Pair(1, 2), (), (1,), b"", b"a", bytearray(b"a"), memoryview(b"a"), decimal.Decimal("1.5"), {1}, frozenset(), 1j),
    *(datetime.datetime(2013, 1, 1), datetime.date(2013, 1, 1), datetime.time(1), datetime.timedelta(1)),  # noqa: DTZ001
    *(
        uuid.UUID(int=1),
        object(),
        object,
        ...,
        range(3),
        collections.OrderedDict(a=1),
        collections.deque([1]),
        {}.keys(),
    ),
    *(msgpack.ExtType(1, b"a"), msgpack.Timestamp(1), collections.defaultdict(list), collections.UserDict(a=1)),
    *({1: 1}, {None: 1}, {b"a": 1}, {1.5: 1}, {True: 1}, {(1,): 1}, {Text("a"): 1}, {Word.A: 1}, {Level.LOW: 1}),
]
for package, names in {"ormsgpack": ("Ext", "Fragment"), "orjson": ("Fragment",), "msgspec": ("Raw",)}.items():
    for name in names if sys.modules.get(package) else ():  # imported by now, where it is installed
        wrapper = getattr(sys.modules[package], name)
        STRANGERS.append(wrapper(5, b"\x01") if name == "Ext" else wrapper(b"1"))


def outcome(call: Callable[[], Any]) -> tuple[str, Any]:
    """Return what a call gives, or the class and the words of what it raises on purpose."""
    try:
        return "gives", call()
    except SchemalessError as refusal:
        return type(refusal).__name__, str(refusal)


def agree(call: Callable[[Engine], Any]) -> tuple[str, Any]:
    """Assert that both engines give the same document or the same refusal, and return it."""
    fast, reference = outcome(lambda: call(FAST)), outcome(lambda: call(REFERENCE))
    assert fast[0] == reference[0], (fast, reference)
    if fast[0] == "gives" and not isinstance(fast[1], bytes | bool):
        assert identical(fast[1], reference[1]), (fast, reference)
    elif fast[0] != "gives":
        assert fast[1] == reference[1]
    return reference


@BOUNDED
@given(MODEL)
def test_encode_document_in_every_codec_round_trips(document: Any) -> None:
    """What goes in comes out, whichever engine wrote it and whichever reads it, and passes the check."""
    for name in codec_names():
        for writer in (FAST, REFERENCE):
            body = encode_body(document, codec_named(name), engine=writer)
            for reader in (FAST, REFERENCE):
                assert identical(decode_body(body, engine=reader), document)
            check_canonical(body)


@BOUNDED
@given(MODEL)
def test_dumps_is_the_same_on_both_engines(document: Any) -> None:
    """Payloads are the same bytes; only compression may differ."""
    assert FAST.msgpack.dumps(document) == REFERENCE.msgpack.dumps(document) == msgpack.packb(document)
    assert FAST.json.dumps(document) == REFERENCE.json.dumps(document)
    assert held(FAST.packed.dumps, document) == held(REFERENCE.packed.dumps, document)


def held(dumps: Callable[[Any], bytes], document: Any) -> bytes | str:
    try:
        return dumps(document)
    except NotHeld as refusal:
        return str(refusal)


@BOUNDED
@given(ANY_DOCUMENT, st.sampled_from(codec_names()))
def test_encode_what_messagepack_cannot_hold_falls_back_alike(document: Any, name: str) -> None:
    """Big integers and lone surrogates are stored as text, or refused in the same words where no text holds them."""
    codec = codec_named(name)
    kind, body = agree(lambda engine: encode_body(document, codec, engine=engine))

    if kind == "gives":
        assert identical(decode_body(body, engine=FAST), document)
        assert identical(decode_body(body, engine=REFERENCE), document)
        check_canonical(body)
    else:
        assert kind == "InvalidBody"
        assert "surrogate pair" in body


@BOUNDED
@given(st.data())
def test_encode_with_a_stranger_anywhere_is_refused_alike(data: st.DataObject) -> None:
    """Nothing outside the data model is let through, wherever it stands, and both engines name the same place."""
    stranger = data.draw(st.sampled_from(STRANGERS))
    document = stranger
    for _ in range(data.draw(st.integers(0, 5))):
        sibling = data.draw(MODEL)
        document = data.draw(
            st.sampled_from([[document], [sibling, document], {"k": document}, {"s": sibling, "k": document}])
        )
    for codec in map(codec_named, codec_names()):
        kind, words = agree(lambda engine, codec=codec: encode_body(document, codec, engine=engine))

        assert kind == "InvalidBody"
        assert words.startswith("body")


@pytest.mark.parametrize("stranger", STRANGERS, ids=lambda stranger: type(stranger).__name__)
def test_encode_stranger_raises_invalid_body(stranger: Any, engine: Engine) -> None:
    """Each kind of stranger is refused at the top as well as inside."""
    for document in (stranger, [stranger], {"a": [1, {"b": stranger}]}):
        with pytest.raises(InvalidBody, match=r"^body"):
            encode_body(document, engine=engine)


def nested(levels: int, kind: str) -> Any:
    document: Any = []
    for level in range(levels - 1):
        document = {"a": document} if kind == "dict" or (kind == "both" and level % 2) else [document]
    return document


@pytest.mark.parametrize("kind", ["list", "dict", "both"])
@pytest.mark.parametrize("levels", [1, 7, 8, 9, 11, 12, 13, 253, 254, 255, 256, 257, 510, 511, 512])
def test_encode_deep_document_round_trips(levels: int, kind: str) -> None:
    """512 levels are a document, on every path."""
    document = nested(levels, kind)
    for name in codec_names():
        for writer in (FAST, REFERENCE):
            body = encode_body(document, codec_named(name), engine=writer)

            assert decode_body(body, engine=FAST) == decode_body(body, engine=REFERENCE) == document
            assert depth_of(document) == levels


@pytest.mark.parametrize("kind", ["list", "dict", "both"])
@pytest.mark.parametrize("levels", [513, 514, 900, 1030, 5000])
def test_encode_too_deep_document_is_refused_alike(levels: int, kind: str) -> None:
    """513 levels are none."""
    document = nested(levels, kind)
    for codec in map(codec_named, codec_names()):
        refusal = agree(lambda engine, codec=codec: encode_body(document, codec, engine=engine))

        assert refusal[0] == "InvalidBody"
        assert "512 levels" in refusal[1]


def test_encode_document_that_holds_itself_is_refused_alike() -> None:
    """A cycle is an error, not a crash."""
    cycle: list[Any] = [1]
    cycle.append({"again": cycle})
    wide: dict[str, Any] = {}
    wide.update(a=wide, b=wide)
    for document in (cycle, wide):
        assert agree(lambda engine, document=document: encode_body(document, engine=engine))[0] == "InvalidBody"


@BOUNDED
@given(MODEL, MODEL)
def test_same_document_is_the_same_messagepack(one: Any, other: Any) -> None:
    """Where MessagePack can hold both, "same" is "the same bytes"."""
    for left, right in ((one, other), (one, one), (other, json.loads(json.dumps(other)))):
        assert same_document(left, right, engine=FAST) == same_document(left, right, engine=REFERENCE)
        if "nan" not in repr((left, right)):
            assert same_document(left, right) == (msgpack.packb(left) == msgpack.packb(right))


@BOUNDED
@given(ANY_DOCUMENT)
def test_same_put_forgives_key_order_only(document: Any) -> None:
    """A put of the same members in another order is the same put, but not the same document."""
    turned = reverse(document)

    assert same_put(document, turned, engine=FAST)
    assert same_put(document, turned, engine=REFERENCE)
    assert same_document(document, turned) == identical(document, turned)


def reverse(document: Any) -> Any:
    if isinstance(document, dict):
        return {key: reverse(document[key]) for key in reversed(document)}
    return [reverse(value) for value in document] if isinstance(document, list) else document


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


@settings(BOUNDED, max_examples=600)
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
        (Zlib(fast=False), DEFLATE, zlib.compress),
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
    """The trick that finds a stream's end cannot be fooled by bytes that look like one."""
    for content in (b"", filler, filler * 100, filler * 5000):
        stream = zlib.compress(content)
        for tail in (stream[-4:], stream[-1:], stream[-4:] * 3, b"\x00" * 4, stream):
            with pytest.raises(CorruptBody):
                DEFLATE.decompress(stream + tail, 1 << 20)
        assert DEFLATE.decompress(stream, 1 << 20) == content


@pytest.mark.parametrize("limit", [1, 999, 1000, 1001, 5000])
@pytest.mark.parametrize("name", ["msgpack+none", "msgpack+zlib", "msgpack+zstd", "json+zlib", "legacy"])
def test_decode_over_the_size_limit_is_refused_alike(limit: int, name: str) -> None:
    """The limit is exact: as many bytes decode, one more does not."""
    text = "x" * (1000 - (2 if "msgpack" not in name else 3))
    body = encode_body(text, codec_named(name))
    kind, _ = agree(lambda engine: decode_body(body, Limits(decoded_bytes=limit), engine=engine))

    assert kind == ("gives" if limit >= 1000 else "DecodedSizeExceeded")


@pytest.mark.parametrize("depth", [1, 5, 11, 12, 13, 100, MAX_DEPTH])
@pytest.mark.parametrize("name", ["msgpack+none", "msgpack+zlib", "json+zlib", "legacy"])
def test_decode_over_the_depth_limit_is_refused_alike(depth: int, name: str) -> None:
    """A lower limit holds as exactly as the highest."""
    for levels in (depth - 1, depth, depth + 1):
        if not 1 <= levels <= MAX_DEPTH:
            continue
        body = encode_body(nested(levels, "both"), codec_named(name))
        kind, _ = agree(lambda engine, body=body: decode_body(body, Limits(depth=depth), engine=engine))

        assert kind == ("gives" if levels <= depth else "NestingTooDeep")


def test_default_codec_is_the_one_under_test() -> None:
    """The default stays MessagePack and zlib at level 6."""
    assert (DEFAULT.name, DEFAULT.level, DEFAULT.format_byte) == ("msgpack+zlib", 6, 0x11)
