"""FORMAT.md says what the code does: its examples and tables are recomputed from the page."""

from __future__ import annotations

import json
import re
import zlib
from importlib import resources

import pytest

from schemaless import errors
from schemaless.codec.documents import MAX_DEPTH, MAX_INTEGER_DIGITS
from schemaless.codec.engine import Engine
from schemaless.codec.envelope import DEFAULT_LIMITS, decode_body, describe_body, encode_body
from schemaless.codec.registry import COMPRESS_MIN_BYTES, COMPRESSORS, SERIALIZERS, codec_names

PAGE = resources.files("schemaless.codec").joinpath("FORMAT.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"`(\{.*\})`[^`]*```hex\n([^`]*)```", PAGE)


def bytes_of(block: str) -> list[bytes]:
    return [bytes.fromhex(line.partition("#")[0]) for line in block.splitlines()]


def test_page_has_its_examples() -> None:
    """One body uncompressed, one compressed."""
    assert len(EXAMPLES) == 2


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


def test_id_tables_on_the_page_are_the_registry() -> None:
    """Each serializer and compressor stands on the page under its id, and nothing else does."""
    rows = dict(re.findall(r"^\| `(\w+)` \| (\d+) \|", PAGE, re.MULTILINE))

    assert rows == {kind.name: str(kind.id) for kind in (*SERIALIZERS, *COMPRESSORS)}


def test_format_bytes_on_the_page_name_their_codecs() -> None:
    """The table of format bytes is what ``describe_body`` says."""
    formats, _, codecs = re.search(r"\| format byte \|(.*)\|\n(.*)\n\| codec \|(.*)\|\n", PAGE).groups()  # type: ignore[union-attr]
    table = dict(zip(re.findall(r"0x(\w\w)", formats), re.findall(r"`([\w+]+)`", codecs), strict=True))

    assert {byte: describe_body(bytes((0xC1, int(byte, 16), 0, 0, 0, 0, 0))).name for byte in table} == table
    assert set(table.values()) == set(codec_names()) - {"legacy"}


def test_errors_on_the_page_exist() -> None:
    """Each error that the page names is one of the corruption family."""
    named = set(re.findall(r"\| `([A-Z][a-z]\w+)` \|$", PAGE, re.MULTILINE))

    assert len(named) == 10
    assert all(issubclass(getattr(errors, name), errors.CorruptBody) for name in named)


def test_numbers_on_the_page_are_the_limits() -> None:
    """The limits that the page states are those of the code."""
    assert f"shorter than {COMPRESS_MIN_BYTES} bytes" in PAGE
    assert f"more than {MAX_DEPTH} levels" in PAGE
    assert f"{DEFAULT_LIMITS.decoded_bytes >> 20} MiB (unless told)" in PAGE
    assert f"at most {MAX_INTEGER_DIGITS:,} digits" in PAGE
