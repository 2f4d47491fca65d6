"""Tombstones: their bytes never change, nothing near them reads, and no codec touches them."""

from __future__ import annotations

import re
from importlib import resources
from pathlib import Path

import pytest

from schemaless import Erased
from schemaless.codec.engine import Engine
from schemaless.codec.envelope import (
    check_canonical,
    counts_as,
    decode_body,
    describe_body,
    dictionary_of,
    encode_body,
    erasure_of,
    is_erased,
    tombstone,
)
from schemaless.codec.recode import recode
from schemaless.codec.registry import codec_named, codec_names
from schemaless.errors import ChecksumMismatch, CorruptBody, InvalidBody, TruncatedBody, UnknownFormat

FOLDER = Path(__file__).parents[1] / "vectors" / "tombstones"
NUMBERS = (1, 17, 2**64 - 1)


def test_golden_tombstones_are_read_and_written_as_ever(engine: Engine) -> None:
    """Each file is the tombstone of the erasure that it is named after."""
    assert sorted(FOLDER.iterdir()) == sorted(FOLDER / f"{number}.body" for number in NUMBERS)
    for number in NUMBERS:
        body = (FOLDER / f"{number}.body").read_bytes()
        assert body == tombstone(number)
        assert decode_body(body, engine=engine) == Erased(number)
        assert (erasure_of(body), describe_body(body).name, dictionary_of(body)) == (number, "erased", None)
        check_canonical(body)


def test_the_example_on_the_page_is_a_tombstone() -> None:
    """FORMAT.md shows that of erasure 17, byte for byte."""
    page = resources.files("schemaless.codec").joinpath("FORMAT.md").read_text(encoding="utf-8")
    block = re.search(r"A tombstone of erasure 17:\s+```hex\n([^`]*)```", page)
    assert block is not None
    assert b"".join(bytes.fromhex(line.partition("#")[0]) for line in block[1].splitlines()) == tombstone(17)


def test_a_tombstone_stays_in_every_codec(engine: Engine) -> None:
    """A migration has nothing to do, and nothing brings a document back."""
    for name in codec_names():
        codec = codec_named(name)
        assert counts_as(tombstone(17), codec, engine=engine)
        assert recode(tombstone(17), codec, engine=engine) == (tombstone(17), None, True)


@pytest.mark.guarantee("tombstone-refused")
def test_a_damaged_tombstone_is_refused(engine: Engine) -> None:
    """Any flipped bit, any cut, and any byte more."""
    body = tombstone(17)
    for position in range(8 * len(body)):
        flipped = bytearray(body)
        flipped[position // 8] ^= 1 << position % 8
        with pytest.raises(CorruptBody):
            decode_body(bytes(flipped), engine=engine)
    for length in range(2, len(body)):
        with pytest.raises(TruncatedBody if length < 7 else ChecksumMismatch):
            erasure_of(body[:length])
    with pytest.raises(ChecksumMismatch):
        decode_body(body + b"\0", engine=engine)
    with pytest.raises(UnknownFormat, match="the erasure number has 1 bytes"):
        decode_body(b"\xc1\xf0\xc0\xe0\xf4\x06h", engine=engine)


def test_no_document_is_a_tombstone(engine: Engine) -> None:
    """The marker cannot be encoded, and no codec writes the format byte."""
    with pytest.raises(InvalidBody):
        encode_body(Erased(17), engine=engine)
    assert not any(is_erased(encode_body({"a": 1}, codec_named(name), engine=engine)) for name in codec_names())
