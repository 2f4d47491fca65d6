"""Golden bodies: each format that was ever written reads today as it did then, and nothing near it reads at all."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from schemaless.codec.dictionaries import Dictionary
from schemaless.codec.engine import Engine
from schemaless.codec.envelope import (
    check_canonical,
    decode_body,
    describe_body,
    dictionary_of,
    is_enveloped,
    same_document,
)
from schemaless.codec.recode import recode
from schemaless.codec.registry import codec_named, codec_names
from schemaless.errors import CorruptBody, DictionaryDamaged, UnknownDictionary
from tests.cases import each

FOLDER = Path(__file__).parents[1] / "vectors" / "bodies"

FORMATS = {
    "json-none": "json+none",
    "json-zlib": "json+zlib",
    "json-zstd": "json+zstd",
    "json-zstd-dictionary": "json+zstd",
    "kept-big-integer-zlib": "json+zlib",
    "kept-big-integer-zstd": "json+zstd",
    "kept-duplicate-keys-zlib": "json+zlib",
    "kept-duplicate-keys-zstd": "json+zstd",
    "kept-duplicate-keys-zstd-dictionary": "json+zstd",
    "kept-lone-surrogate-zlib": "json+zlib",
    "kept-lone-surrogate-zstd": "json+zstd",
    "kept-overflow-zlib": "json+zlib",
    "kept-overflow-zstd": "json+zstd",
    "kept-short-zlib": "json+none",
    "kept-short-zstd": "json+none",
    "legacy": "legacy",
    "legacy-spaced": "legacy",
    "msgpack-none": "msgpack+none",
    "msgpack-not-finite": "msgpack+none",
    "msgpack-scalar": "msgpack+none",
    "msgpack-short": "msgpack+none",
    "msgpack-zlib": "msgpack+zlib",
    "msgpack-zlib-by-libdeflate": "msgpack+zlib",
    "msgpack-zstd": "msgpack+zstd",
    "msgpack-zstd-dictionary": "msgpack+zstd",
    "msgpack-zstd-dictionary-last-id": "msgpack+zstd",
    "packed-kept-big-integer": "packed+zstd",
    "packed-kept-lone-surrogate": "json+zstd",
    "packed-kept-nul": "json+zstd",
    "packed-kept-short": "json+none",
    "packed-none": "packed+none",
    "packed-zlib": "packed+zlib",
    "packed-zstd": "packed+zstd",
    "packed-zstd-dictionary": "packed+zstd",
}
PACKED = (
    "array-empty",
    "array-one",
    "arrays-empty",
    "arrays-of-lengths",
    "arrays-of-one-length",
    "bigint",
    "bigints",
    "booleans",
    "columns",
    "decimal",
    "decimal-greatest",
    "decimal-scale-15",
    "double",
    "double-beyond-decimal",
    "double-minus-zero",
    "double-not-finite",
    "every-kind",
    "false",
    "int",
    "int-greatest",
    "int-least",
    "nested",
    "null",
    "nulls",
    "object",
    "object-empty",
    "objects-empty",
    "predictor-line",
    "predictor-line-wraps",
    "predictor-previous",
    "predictor-tie",
    "predictor-wraps",
    "predictor-zero",
    "scale-of-most",
    "scale-of-none",
    "scales",
    "shapes",
    "text",
    "text-empty",
    "true",
    "typed-date",
    "typed-decimal",
    "typed-hex",
    "typed-hex-longest",
    "typed-integer",
    "typed-time",
    "typed-timestamp",
    "typed-timestamp-nanoseconds",
    "typed-timestamp-space-zone",
    "typed-timestamp-suffixes",
    "typed-uuid",
    "untyped-nanoseconds-beyond",
    "untyped-near",
    "untyped-too-few",
)
FORMATS |= {f"packed-of-{name}": "packed+none" for name in PACKED}
NAMED = {name: 65_535 if name.endswith("last-id") else 32_768 for name in FORMATS if "dictionary" in name}
_DICTIONARY = Dictionary((FOLDER.parent / "dictionaries" / "32768.dict").read_bytes())


class _Dictionaries:
    def get(self, dictionary_id: int) -> Dictionary:
        return _DICTIONARY.renumbered(dictionary_id)


DICTIONARIES = _Dictionaries()
ENVELOPED = [name for name, codec in FORMATS.items() if codec != "legacy"]


def body_of(name: str) -> bytes:
    return (FOLDER / f"{name}.body").read_bytes()


def text_of(name: str) -> bytes:
    return (FOLDER / f"{name}.json").read_bytes()


def test_vectors_are_the_files_in_the_folder() -> None:
    """A vector that is lost, or that no test reads, is noticed."""
    assert sorted(path.name for path in FOLDER.iterdir()) == sorted(
        f"{name}.{kind}" for name in FORMATS for kind in ("body", "json")
    )


def test_vectors_hold_every_format() -> None:
    """Each codec that can be asked for has golden bytes."""
    assert set(FORMATS.values()) == set(codec_names())


@each("name", FORMATS)
def test_decode_vector_gives_its_document(name: str, engine: Engine) -> None:
    """Bytes that were once written read as the same document for ever."""
    document = decode_body(body_of(name), dictionaries=DICTIONARIES, engine=engine)

    assert same_document(document, json.loads(text_of(name)), engine=engine)
    assert describe_body(body_of(name)).name == FORMATS[name]


@each("name", FORMATS)
def test_check_vector_finds_it_canonical(name: str) -> None:
    """What this store wrote passes its own check."""
    check_canonical(body_of(name), DICTIONARIES)


@each("name", [name for name in FORMATS if "kept-" in name and FORMATS[name].startswith("json")])
def test_recode_kept_vector_to_legacy_gives_its_text_back(name: str, engine: Engine) -> None:
    """Text that was kept comes back byte for byte."""
    recoded = recode(body_of(name), codec_named("legacy"), dictionaries=DICTIONARIES, engine=engine)
    assert recoded.body == text_of(name)


@pytest.mark.guarantee("corruption-detected")
@each("name", ENVELOPED)
def test_decode_vector_with_any_bit_flipped_raises(name: str, engine: Engine) -> None:
    """No single flipped bit goes unnoticed."""
    body = body_of(name)
    for bit in range(len(body) * 8):
        damaged = bytearray(body)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptBody):
            decode_body(bytes(damaged), dictionaries=DICTIONARIES, engine=engine)


@pytest.mark.guarantee("corruption-detected")
@each("name", ENVELOPED)
def test_decode_vector_cut_anywhere_raises(name: str, engine: Engine) -> None:
    """No truncation goes unnoticed, down to nothing at all."""
    body = body_of(name)
    for length in range(len(body)):
        with pytest.raises(CorruptBody):
            decode_body(body[:length], dictionaries=DICTIONARIES, engine=engine)


@pytest.mark.guarantee("corruption-detected")
@each("name", ENVELOPED)
def test_decode_vector_with_trailing_bytes_raises(name: str, engine: Engine) -> None:
    """No extension goes unnoticed: zeros, padding, random bytes, the body again."""
    body = body_of(name)
    chance = random.Random(20130101)
    tails = [bytes([byte]) * length for byte in (0x00, 0x20, 0xFF) for length in range(1, 9)]
    tails += [chance.randbytes(length) for length in range(1, 33)]
    tails += [body, body[-4:], body[2:]]
    for tail in tails:
        with pytest.raises(CorruptBody):
            decode_body(body + tail, dictionaries=DICTIONARIES, engine=engine)


@each("name", FORMATS)
def test_vector_names_its_dictionary_and_reads_with_no_other(name: str, engine: Engine) -> None:
    """The id stands in the body; without the dictionary, and with another under its id, nothing is returned."""
    body = body_of(name)
    assert dictionary_of(body) == NAMED.get(name)
    if name not in NAMED:
        return
    with pytest.raises(UnknownDictionary, match=str(NAMED[name])):
        decode_body(body, engine=engine)
    content = bytearray(_DICTIONARY.renumbered(NAMED[name]).content)
    content[-400:] = bytes(reversed(content[-400:]))
    with pytest.raises(DictionaryDamaged, match=str(NAMED[name])):
        decode_body(body, dictionaries=Dictionary(bytes(content)), engine=engine)


def test_vectors_are_enveloped_or_legacy() -> None:
    """The first byte alone tells which."""
    assert {name for name in FORMATS if is_enveloped(body_of(name))} == set(ENVELOPED)
