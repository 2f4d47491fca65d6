"""Exact JSON text: the same with and without the fast extra, and the same document when it is read back."""

from __future__ import annotations

import json
import random
import struct

import pytest
from hypothesis import given

from schemaless.codec.documents import identical
from schemaless.codec.engine import REFERENCE
from schemaless.codec.envelope import encode_body, seal
from schemaless.codec.exact_text import exact_text
from schemaless.codec.recode import recode
from schemaless.codec.registry import DEFAULT, LEGACY, codec_named, codec_names
from schemaless.errors import SchemalessError
from tests.codec.agreement import ANY_DOCUMENT, BOUNDED, FAST, MODEL, agree

pytestmark = pytest.mark.once  # each test names its engine


@pytest.mark.guarantee("export-exact")
@BOUNDED
@given(ANY_DOCUMENT)
def test_exact_text_is_the_same_with_both_engines_and_reads_back(document):
    """In every codec, and also the text that a dump writes."""
    for name in codec_names():
        try:
            body = encode_body(document, codec_named(name))
        except SchemalessError:
            continue
        texts = {bytes(exact_text(body, engine=engine)[0]) for engine in (FAST, REFERENCE)}
        assert texts == {recode(body, LEGACY).body}
        assert identical(json.loads(texts.pop().decode()), document)


@BOUNDED
@given(MODEL)
def test_exact_text_returns_the_document(document):
    """The document is the one that went in."""
    for name in codec_names():
        body = encode_body(document, codec_named(name))
        assert identical(exact_text(body)[1], document)


def test_exact_text_of_floats_is_what_json_writes():
    """Any bit pattern, and magnitudes at which the fast writer changes its notation."""
    chance = random.Random(1)
    for _ in range(5_000):
        bits = struct.unpack(">d", chance.randbytes(8))[0]
        near = chance.choice([-1, 1]) * chance.random() * 10 ** chance.randint(-8, 22)
        document = {"bits": bits, "near": [near, None], "text": "9e12"}
        expected = json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()
        assert exact_text(encode_body(document))[0] == expected


def test_exact_text_keeps_what_parsing_would_lose():
    """Text is kept byte for byte, with and without an envelope."""
    for text in (b'{"a":1,"a":2}', b"[1e999]", b'{ "n" :123456789012345678901234567890 }', b'"\\ud800"'):
        for body in (text, recode(text).body):
            assert exact_text(body)[0] == text


def test_exact_text_of_a_32_bit_float_that_is_not_finite():
    """The store reads 32-bit floats, which it does not write."""
    for payload, text in ((b"\xca\x7f\xc0\x00\x00", b"NaN"), (b"\x91\xca\xff\x80\x00\x00", b"[-Infinity]")):
        for engine in (FAST, REFERENCE):
            assert exact_text(seal(engine.msgpack, payload, DEFAULT, engine), engine=engine)[0] == text


@BOUNDED
@given(MODEL)
def test_exact_text_of_damaged_bodies_is_refused_alike(document):
    """A damaged body raises the same error with both engines."""
    body = encode_body(document)
    for damaged in (body[:-1], body[:2] + b"\x00" + body[3:], b"\xc1\x3f" + body[2:]):
        if damaged != body:
            outcome, _ = agree(lambda engine, damaged=damaged: exact_text(damaged, engine=engine)[1])
            assert outcome != "gives"
