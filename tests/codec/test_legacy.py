"""Legacy text: read exactly, kept where a document would lose something, and named where it is none."""

from __future__ import annotations

import bz2
import gzip
import json
import pickle
import zlib
from typing import Any

import msgpack
import pytest
import zstandard

from schemaless.codec.engine import Engine
from schemaless.codec.envelope import decode_body
from schemaless.codec.legacy import KEEP_REASONS, looks_like, read_exactly, read_legacy, read_quickly
from schemaless.errors import NestingTooDeep, UnreadableLegacy
from tests.cases import each

pytestmark = pytest.mark.once  # each test names its engine

TEXT = b'{"a": [1, -2.5, true, null, "\\u00e9 \\"q\\": 1"], "b": {}}'


@each(
    "text, reason",
    [
        (TEXT, None),
        (b"1", None),
        (b" [ ] ", None),
        (b"NaN", None),
        (b"[Infinity,-Infinity]", None),
        (b"-0", None),
        (b"1e-999", None),
        (b"0.1000000000000000055511151231257827", None),
        (b"18446744073709551615", None),
        (b"-9223372036854775808", None),
        (b'"\\ud83d\\ude95"', None),
        (b"18446744073709551616", "integer beyond 64 bits"),
        (b'{"a": [-9223372036854775809]}', "integer beyond 64 bits"),
        (b'"\\ud83d"', "lone surrogate"),
        (b'{"\\ude95": 1}', "lone surrogate"),
        (b'{"a": 1, "a": 1}', "duplicate keys"),
        (b'{"a" :1,"a"\n:1}', "duplicate keys"),
        (b'{"a":1,"\\u0061":1}', "duplicate keys"),
        (b'{"b":[{"a":"\\u0022:","a":"\\u0022\\u0022"}]}', "duplicate keys"),
        (b'{"a":"x","a":"\\u0022\\u0022\\u0022\\u0022"}', "duplicate keys"),
        (b'{"":1,"":2}', "duplicate keys"),
        (b"1e999", "number beyond a double"),
        (b'{"a":[-1e400]}', "number beyond a double"),
        (b"1" + b"0" * 400 + b".0", "number beyond a double"),
        (b'{"a":1e999,"a":"\\ud800","b":18446744073709551616}', "duplicate keys"),
        (b'[1e999,18446744073709551616,"\\ud800"]', "number beyond a double"),
    ],
)
def test_reading_text_gives_the_reason_to_keep_it(text: bytes, reason: str | None, engine: Engine) -> None:
    """A document is what ``json.loads`` gives; what it would lose, or MessagePack cannot hold, has a name."""
    document = read_legacy(text, engine=engine)

    assert repr(document.value) == repr(json.loads(text.decode()))
    assert document.keep_reason == reason
    assert reason is None or reason in KEEP_REASONS
    assert repr(decode_body(text, engine=engine)) == repr(document.value)


@pytest.mark.parametrize("dumps", [{"separators": (",", ":")}, {}, {"indent": 2}, {"ensure_ascii": False}])
def test_text_of_common_writers_takes_the_fast_path(dumps: dict[str, Any]) -> None:
    """Spaces, escapes and quotes in strings do not send sound text the slow way."""
    fast = Engine(fast=True)
    if fast.json.gate is None or read_quickly(b"1", 512, fast) is None:
        pytest.skip("orjson, ormsgpack or msgspec of the extra [fast] cannot be imported; 'make install' installs them")
    text = json.dumps({"a : b": 'say "hi": now', "é": [1.5, {"b": None}], "\u2028": "\x00\x1f"}, **dumps).encode()

    assert read_quickly(text, 512, fast) is not None


@each(
    "body, guess",
    [
        (b"", "empty"),
        (gzip.compress(TEXT, mtime=0), "gzip"),
        (zlib.compress(TEXT), "bare zlib"),
        (zlib.compress(TEXT, 1), "bare zlib"),
        (len(TEXT).to_bytes(4, "little") + zlib.compress(TEXT), "MySQL's COMPRESS"),
        (zstandard.compress(TEXT), "zstd"),
        (bz2.compress(TEXT), "bzip2"),
        (pickle.dumps({"a": 1}, 2), "pickle"),
        (pickle.dumps({"a": 1}, 5), "pickle"),
        (b"\xef\xbb\xbf" + TEXT, "byte order mark"),
        (TEXT.decode().encode("utf-16"), "UTF-16"),
        (TEXT.decode().encode("utf-16-le"), "UTF-16"),
        (TEXT.decode().encode("utf-16-be"), "UTF-16"),
        (TEXT.decode().encode("utf-32"), "UTF-32"),
        (TEXT.decode().encode("utf-32-be"), "UTF-32"),
        (b'{"a": "\xed\xa0\x80"}', "raw surrogates"),
        ('{"a": "é"}'.encode("latin-1"), "an encoding other than UTF-8"),
        (TEXT[:-1], "cut short"),
        (b"{'a': 1}", "damaged"),
        (b"hello", "another kind"),
        (msgpack.packb({"a": ["x" * 40, 1.5, 200]}), "bare MessagePack"),
        (b"\xff\x00\x17\x80\x99", "binary"),
    ],
)
def test_reading_binary_data_says_what_it_looks_like(body: bytes, guess: str, engine: Engine) -> None:
    """Unreadable bodies are left unchanged, and the message says what to look for."""
    assert guess in looks_like(body)
    with pytest.raises(UnreadableLegacy, match="not JSON text") as raised:
        decode_body(body, engine=engine)
    assert str(raised.value).endswith(looks_like(body))
    with pytest.raises(UnreadableLegacy):
        read_legacy(body, engine=engine)


@pytest.mark.parametrize(
    "text", [b"[" * 100_000, b"[" * 513 + b"]" * 513, b'{"a":' * 513 + b"1" + b"}" * 513, b'[{"":' * 50_000]
)
def test_read_deep_text_raises_nesting_too_deep(text: bytes, engine: Engine) -> None:
    """Depth is an error of its own, never a crash, whether the text ends or not."""
    with pytest.raises(NestingTooDeep):
        decode_body(text, engine=engine)
    with pytest.raises(NestingTooDeep):
        read_legacy(text, engine=engine)


def test_read_text_with_brackets_in_strings_is_not_deep(engine: Engine) -> None:
    """Brackets that stand in strings, after any escapes, do not count."""
    document = ['[{"\\' * 400, {'\\"[': "]" * 600}]

    assert decode_body(json.dumps(document).encode(), engine=engine) == document


def test_read_damaged_text_of_any_kind_takes_linear_time(engine: Engine) -> None:
    """A megabyte of quotes, backslashes or brackets is refused at once."""
    for piece in (b'"', b"\\", b'\\"', b'[{"', b'"\\', b"[]"):
        with pytest.raises((UnreadableLegacy, NestingTooDeep)):
            decode_body(piece * (1_000_000 // len(piece)), engine=engine)


def test_read_integer_longer_than_python_reads_is_unreadable(engine: Engine) -> None:
    """``json.loads`` is the definition, and it refuses more than 4,300 digits."""
    assert read_legacy(b"9" * 4300, engine=engine).keep_reason == "integer beyond 64 bits"
    with pytest.raises(UnreadableLegacy, match=r"JSON text that cannot be read: an integer has more than 4,300 digits"):
        read_legacy(b"9" * 4301, engine=engine)


def test_read_exactly_is_the_reference() -> None:
    """The slow way alone tells all there is to know."""
    assert read_exactly(b'{"a":{"b":1,"b":2}}') == ({"a": {"b": 2}}, "duplicate keys")
