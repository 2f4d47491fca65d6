"""References to cold files: their bytes never change, nothing near them reads, and no codec touches them."""

from __future__ import annotations

import json
import pickle
import re
from importlib import resources
from pathlib import Path

import pytest

from schemaless import ColdBodyMissing, ColdFileDamaged, CorruptBody, DecodedSizeExceeded, Limits
from schemaless.codec.engine import Engine
from schemaless.codec.envelope import (
    check_canonical,
    counts_as,
    decode_body,
    describe_body,
    dictionary_of,
    encode_body,
    enveloped,
    is_reference,
    same_document,
)
from schemaless.codec.exact_text import exact_text
from schemaless.codec.recode import recode
from schemaless.codec.references import (
    Reference,
    has_text_of,
    inlined,
    reference_body,
    reference_of,
    with_fault,
    with_text,
)
from schemaless.codec.registry import codec_named, codec_names
from schemaless.errors import ChecksumMismatch, TruncatedBody, UnknownFormat

FOLDER = Path(__file__).parents[1] / "vectors" / "references"
PLACES = {1: (0, 0), 17: (2, 256), 2**64 - 1: (2**32 - 1, 2**32 - 1)}
TEXT = b'{"fare":{"total":12.5},"legs":["JFK","BOS"]}'
BODY = reference_body(17, 2, 256, TEXT)


def test_golden_references_are_read_and_written_as_ever(engine: Engine) -> None:
    """Each file is the reference to a place in the file that it is named after."""
    assert sorted(FOLDER.iterdir()) == sorted(FOLDER / f"{file}.{kind}" for file in PLACES for kind in ("body", "json"))
    for file, (group, row) in PLACES.items():
        body, text = ((FOLDER / f"{file}.{kind}").read_bytes() for kind in ("body", "json"))
        assert body == reference_body(file, group, row, text)
        found = reference_of(body)
        assert found == Reference(file, group, row, len(text), found.text_crc)
        whole = pickle.loads(pickle.dumps(with_text(body, text)))
        assert same_document(decode_body(whole, engine=engine), json.loads(text), engine=engine)
        assert exact_text(whole, engine=engine)[0] == text
        assert (describe_body(body).name, dictionary_of(body)) == ("cold", None)
        check_canonical(body)


def test_the_example_on_the_page_is_a_reference() -> None:
    """FORMAT.md shows one, byte for byte."""
    page = resources.files("schemaless.codec").joinpath("FORMAT.md").read_text(encoding="utf-8")
    block = re.search(r"A reference to the compact JSON text of the first example:\s+```hex\n([^`]*)```", page)
    assert block is not None
    assert b"".join(bytes.fromhex(line.partition("#")[0]) for line in block[1].splitlines()) == BODY


def test_a_reference_stays_in_every_codec(engine: Engine) -> None:
    """Re-encoding leaves it alone, with its text or without, and no codec writes its format byte."""
    for name in codec_names():
        codec = codec_named(name)
        for body in (BODY, with_text(BODY, TEXT)):
            assert counts_as(body, codec, engine=engine)
            assert recode(body, codec, engine=engine) == (BODY, None, True)
        assert not is_reference(encode_body(json.loads(TEXT), codec, engine=engine))


def test_a_reference_without_its_text_names_the_file(engine: Engine) -> None:
    """A fault is raised when the body is decoded, and not before."""
    with pytest.raises(ColdBodyMissing, match="in cold file 17, which is not available here"):
        decode_body(BODY, engine=engine)
    with pytest.raises(ColdFileDamaged, match="has 45 bytes, but the reference records 44"):
        with_text(BODY, TEXT + b" ")
    with pytest.raises(ColdFileDamaged, match="CRC-32 of the JSON text"):
        with_text(BODY, TEXT.replace(b"JFK", b"EWR"))
    faulty = with_fault(BODY, ColdBodyMissing(17, "does not exist"))
    with pytest.raises(ColdBodyMissing, match="does not exist"):
        decode_body(faulty, engine=engine)
    with pytest.raises(DecodedSizeExceeded):
        decode_body(with_text(BODY, TEXT), Limits(decoded_bytes=43), engine=engine)


def test_a_copy_of_a_cold_cell_has_its_text():
    """Another datastore does not have the file; duplicate keys and the spelling of numbers are kept."""
    text = b'{"a": 1.50, "a": 2}'
    body = reference_body(17, 2, 256, text)
    copy = inlined(with_text(body, text))
    assert (describe_body(copy).is_text, exact_text(copy)[0]) == (True, text)
    with pytest.raises(ColdBodyMissing):
        inlined(body)


def test_references_are_compared_without_their_files():
    """By the length and the checksum of the text."""
    document = {"fare": {"total": 12.5}, "legs": ["JFK", "BOS"]}
    assert has_text_of(BODY, encode_body(document))
    assert has_text_of(TEXT, BODY)
    assert has_text_of(BODY, reference_body(18, 0, 0, TEXT))
    assert not has_text_of(BODY, encode_body([document]))
    assert not has_text_of(BODY, reference_body(17, 2, 256, TEXT + b" "))


@pytest.mark.guarantee("corruption-detected")
def test_a_damaged_reference_is_refused(engine: Engine) -> None:
    """Any flipped bit, any cut, and any byte more."""
    for position in range(8 * len(BODY)):
        flipped = bytearray(BODY)
        flipped[position // 8] ^= 1 << position % 8
        with pytest.raises(CorruptBody) as caught:
            decode_body(bytes(flipped), engine=engine)
        assert not isinstance(caught.value, ColdBodyMissing)
    for length in range(2, len(BODY)):
        with pytest.raises(TruncatedBody if length < 7 else ChecksumMismatch):
            reference_of(BODY[:length])
    with pytest.raises(ChecksumMismatch):
        decode_body(BODY + b"\0", engine=engine)
    with pytest.raises(UnknownFormat, match="a reference has 30 bytes"):
        decode_body(enveloped(0xF1, b"\0\0"), engine=engine)
