"""FORMAT.md says what the code does: its examples and tables are recomputed from the page."""

from __future__ import annotations

import json
import re
import zlib
from importlib import resources

import pytest

from schemaless import errors
from schemaless.codec import packed_reader
from schemaless.codec.compressors import COMPRESS_MIN_BYTES
from schemaless.codec.deltas import MAX_CHAIN, MAX_PAIR_BYTES
from schemaless.codec.documents import MAX_DEPTH, MAX_INTEGER_DIGITS
from schemaless.codec.engine import Engine
from schemaless.codec.envelope import DEFAULT_LIMITS, DELTA, DELTA_FORMATS, decode_body, describe_body, encode_body
from schemaless.codec.registry import COMPRESSORS, SERIALIZERS, codec_named, codec_names
from schemaless.codec.values import MAX_VALUES

pytestmark = pytest.mark.once  # each test names its engine

PAGE = resources.files("schemaless.codec").joinpath("FORMAT.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"`(\{.*\})`[^`]*```hex\n([^`]*)```", PAGE)


def bytes_of(block: str) -> list[bytes]:
    return [bytes.fromhex(line.partition("#")[0]) for line in block.splitlines()]


def test_page_has_its_examples() -> None:
    """One body uncompressed, one compressed, and two that are packed."""
    assert len(EXAMPLES) == 4


@pytest.mark.parametrize(("text", "block"), EXAMPLES)
def test_example_on_the_page_decodes_to_its_document(text: str, block: str, engine: Engine) -> None:
    """The bytes on the page are a body of the document beside them."""
    body = b"".join(bytes_of(block))

    assert decode_body(body, engine=engine) == json.loads(text)
    assert f"CRC-32 of the {len(body) - 4} bytes above" in block
    assert bytes_of(block)[-1] == zlib.crc32(body[:-4]).to_bytes(4, "big")


def test_uncompressed_example_is_what_is_written(engine: Engine) -> None:
    """The first example is byte for byte what ``encode_body`` gives."""
    text, block = EXAMPLES[0]
    body = encode_body(json.loads(text), engine=engine)

    assert b"".join(bytes_of(block)) == body
    assert f"The payload has {len(body) - 6} bytes" in PAGE


@pytest.mark.parametrize(("text", "block"), EXAMPLES[2:])
def test_packed_example_is_what_is_written(text: str, block: str, engine: Engine) -> None:
    """The packed examples are byte for byte what ``encode_body`` gives, and their payloads as long as the page says."""
    body = encode_body(json.loads(text), codec_named("packed+none"), engine=engine)
    sections = [int(spelled) for spelled in re.findall(r"# (\d+) bytes of (?:schema|tokens)", block)]

    assert b"".join(bytes_of(block)) == body
    assert list(body[2:4]) == sections


def test_packed_numbers_on_the_page_are_those_of_the_code() -> None:
    """Kinds, their bits, and what the payload pays for stand in the code as on the page."""
    names, bits, kinds = (
        [cell.strip() for cell in row.split("|")[2:-1]]
        for row in re.findall(r"^\| (?:kind|bit of the mask|byte among the kinds) \|.*$", PAGE, re.MULTILINE)
    )
    numbers = {name.upper(): kind for name, kind in zip(names, kinds, strict=True) if name != "boolean"}

    assert numbers == {name: str(getattr(packed_reader, name)) for name in numbers}
    assert dict(zip(names, map(int, bits), strict=True)) == {
        name: packed_reader.BITS[packed_reader.TRUE if name == "boolean" else getattr(packed_reader, name.upper())]
        for name in names
    }
    assert "four times the payload's length" in PAGE
    assert packed_reader.VALUES_PER_BYTE == packed_reader.TYPED_MIN == 4


def test_id_tables_on_the_page_are_the_registry() -> None:
    """Each serializer and compressor stands on the page under its id, and nothing else does."""
    rows = dict(re.findall(r"^\| `(\w+)` \| (\d+) \|", PAGE, re.MULTILINE))

    codecs = {kind.name: str(kind.id) for kind in (*SERIALIZERS.values(), *COMPRESSORS.values())}

    assert rows == codecs | {"delta": str(DELTA)}


def test_format_bytes_on_the_page_name_their_codecs() -> None:
    """The table of format bytes is what ``describe_body`` says."""
    formats, _, codecs = re.search(r"\| format byte \|(.*)\|\n(.*)\n\| codec \|(.*)\|\n", PAGE).groups()  # type: ignore[union-attr]
    table = dict(zip(re.findall(r"0x(\w\w)", formats), re.findall(r"`([\w+]+)`", codecs), strict=True))

    assert {byte: describe_body(bytes((0xC1, int(byte, 16), 0, 0, 0, 0, 0))).name for byte in table} == table
    assert set(table.values()) == set(codec_names()) - {"legacy"}


def test_format_bytes_of_deltas_are_on_the_page() -> None:
    """A delta is described by its format byte alone, under the name that the page has."""
    assert dict(re.findall(r"`0x([12]3)` \(`(\w+\+delta)`\)", PAGE)) == {
        f"{b:02x}": n for b, n in DELTA_FORMATS.items()
    }
    assert f"more than {MAX_CHAIN:,} deltas" in PAGE
    assert f"at most {MAX_PAIR_BYTES >> 20} MiB together" in PAGE


def test_errors_on_the_page_exist() -> None:
    """Each error that the page names is one of the corruption family."""
    named = set(re.findall(r"\| `([A-Z][a-z]\w+)` \|$", PAGE, re.MULTILINE))

    assert len(named) == 15
    assert all(issubclass(getattr(errors, name), errors.CorruptBody) for name in named)


def test_numbers_on_the_page_are_the_limits() -> None:
    """The limits that the page states are those of the code."""
    assert f"shorter than {COMPRESS_MIN_BYTES} bytes" in PAGE
    assert f"more than {MAX_DEPTH} levels" in PAGE
    assert PAGE.count(f"{MAX_VALUES:,}") == 2
    assert f"{DEFAULT_LIMITS.decoded_bytes >> 20} MiB (by default)" in PAGE
    assert f"at most {MAX_INTEGER_DIGITS:,} digits" in PAGE
