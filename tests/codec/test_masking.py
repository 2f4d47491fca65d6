"""Masking: a dictionary trained on masked documents holds their structure and none of their values."""

from __future__ import annotations

import json
import random
import uuid
from typing import Any

import pytest
from hypothesis import given

from schemaless.cell import JSONDocument
from schemaless.codec.envelope import encode_body
from schemaless.codec.masking import Mask, Values
from schemaless.codec.registry import codec_named
from schemaless.codec.training import train
from tests.codec.agreement import ANY_DOCUMENT

ROWS = 300
CITY = "Zwolle-Harderwijk"
SURNAME = "Quackenbosch"


def key(number: int) -> bytes:
    return uuid.uuid5(uuid.NAMESPACE_OID, str(number)).bytes


def trip(number: int) -> dict[str, Any]:
    """Return a document: a value of every row, a value of three rows, numbers, and a map keyed by a person."""
    drawn = random.Random(number)
    return {
        "destination": CITY,
        "passenger": SURNAME if number in (7, 80, 150) else f"{drawn.randbytes(6).hex()}",
        "phone": 31_612_345_678 + number,
        "paid": round(drawn.uniform(1, 90), 2),
        "shared": number % 2 == 0,
        "ratings": {f"{SURNAME}.{number}@example.org": drawn.randrange(1, 6)},
        "note": None,
    }


def content(values: Values, codec: str = "msgpack+zstd") -> bytes:
    cells = [(key(number), encode_body(trip(number))) for number in range(ROWS)]
    return train(cells, codec_named(codec), sizes=(4_096,), values=values).dictionary.content


@pytest.mark.guarantee("dictionary-values")
@pytest.mark.parametrize("codec", ["msgpack+zstd", "json+zstd", "packed+zstd"])
def test_a_dictionary_holds_no_value_by_default(codec: str) -> None:
    """Keys are in it; a value of every row, of some rows, and a key that is data, are not. The control has them."""
    masked, real = content("masked", codec), content("real", codec)
    assert b"passenger" in masked
    assert CITY.encode() not in masked
    assert SURNAME.encode() not in masked
    assert b"@example.org" in real
    assert CITY.encode() in real
    assert SURNAME.encode() in real


@pytest.mark.guarantee("dictionary-values")
def test_common_values_are_those_of_many_rows() -> None:
    """What two in a hundred rows hold stays, so it says nothing about one of them; the rest is masked."""
    common = content("common")
    assert CITY.encode() in common
    assert SURNAME.encode() not in common


def test_training_again_gives_the_same_dictionary() -> None:
    """The replacements are seeded."""
    assert content("masked") == content("masked")


@given(ANY_DOCUMENT)
def test_a_masked_document_has_the_same_structure(document: JSONDocument) -> None:
    """Keys, types, lengths, nesting, booleans and nulls stay, whatever the document."""
    mask = Mask(2)
    for number in (0, 1):
        mask.see(key(number), document)
    masked = mask.mask(document)
    assert masked is None or shape(masked) == shape(document)


def shape(value: JSONDocument) -> Any:
    if isinstance(value, dict):
        return [(name, shape(item)) for name, item in value.items()]
    if isinstance(value, list):
        return [shape(item) for item in value]
    return (str, len(value)) if isinstance(value, str) else value if isinstance(value, bool | None) else type(value)


def test_numbers_keep_their_sign_and_length() -> None:
    """A masked number takes as many digits as the real one, and is drawn anew each time."""
    values = [-7, 0, 42, 31_612_345_678, -(2**63), 2**64 - 1, 0.0, -12.345, 1e300, 5e-324, float("inf")]
    mask = Mask(1)
    masked = mask.mask(values)
    assert isinstance(masked, list)
    for real, other in zip(values, masked, strict=True):
        assert type(other) is type(real)
        assert (other < 0) == (real < 0)  # type: ignore[operator]
        if isinstance(real, int) or 1e-4 < abs(real) < 1e15:
            assert len(str(other)) <= len(str(real))
        if isinstance(real, int):
            assert len(str(other)) == len(str(real))
    assert len({json.dumps(mask.mask([31_612_345_678])) for _ in range(50)}) == 50


def test_text_keeps_case_punctuation_and_alphabet() -> None:
    """What remains of a string is its form."""
    mask = Mask(1)
    text = "Jörg van der Berg, +31 6-1234 <JB@example.org> Привет 東京"
    mask.see(key(0), text)
    masked = mask.mask(text)
    assert isinstance(masked, str)
    for before, after in zip(text, masked, strict=True):
        assert before.isalnum() == after.isalnum()
        assert before.isalnum() or before == after
        assert (before.isascii(), before.isdigit(), before.isupper()) == (
            after.isascii(),
            after.isdigit(),
            after.isupper(),
        ) or not before.isascii()
    assert "Berg" not in masked
    assert "1234" not in masked
