"""With the ``[fast]`` extra and without it, what is written: the same bytes, the same refusals, the same words."""

from __future__ import annotations

import collections
import dataclasses
import datetime
import decimal
import enum
import json
import sys
import uuid
from collections.abc import Callable
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemaless.codec.documents import depth_of, identical
from schemaless.codec.engine import REFERENCE, Engine
from schemaless.codec.envelope import (
    check_canonical,
    decode_body,
    encode_body,
    same_document,
    same_put,
)
from schemaless.codec.registry import DEFAULT, codec_named, codec_names
from schemaless.codec.serializers import NotHeld
from schemaless.errors import InvalidBody
from tests.cases import each
from tests.codec.agreement import ANY_DOCUMENT, BOUNDED, FAST, MODEL, agree

pytestmark = pytest.mark.once  # each test names its engine


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
    # Imported by now, where it is installed; older versions of ormsgpack have no Fragment.
    wrappers = [getattr(sys.modules.get(package), name, None) for name in names]
    STRANGERS.extend(wrap(5, b"\x01") if wrap.__name__ == "Ext" else wrap(b"1") for wrap in wrappers if wrap)


@pytest.mark.guarantee("exact-documents")
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


@pytest.mark.guarantee("exact-documents")
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


@each("stranger", STRANGERS)
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


@each("kind", ["list", "dict", "both"])
@each("levels", [1, 7, 8, 9, 11, 12, 13, 253, 254, 255, 256, 257, 510, 511, 512])
@pytest.mark.long
def test_encode_deep_document_round_trips(levels: int, kind: str) -> None:
    """512 levels are a document, on every path."""
    document = nested(levels, kind)
    for name in codec_names():
        for writer in (FAST, REFERENCE):
            body = encode_body(document, codec_named(name), engine=writer)

            assert decode_body(body, engine=FAST) == decode_body(body, engine=REFERENCE) == document
            assert depth_of(document) == levels


@each("kind", ["list", "dict", "both"])
@each("levels", [513, 514, 900, 1030, 5000])
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


def test_default_codec_is_the_one_under_test() -> None:
    """The default stays MessagePack and zlib at level 6."""
    assert (DEFAULT.name, DEFAULT.level, DEFAULT.format_byte) == ("msgpack+zlib", 6, 0x11)
