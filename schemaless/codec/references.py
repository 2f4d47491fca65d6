"""References: bodies of cells whose document is in a cold file. ``FORMAT.md`` describes the bytes."""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from typing import Final

from schemaless.cell import StoredCell
from schemaless.codec.compressors import too_large
from schemaless.codec.dictionaries import NO_DICTIONARIES, Dictionaries
from schemaless.codec.engine import ENGINE, Engine
from schemaless.codec.envelope import (
    DEFAULT_LIMITS,
    REFERENCE_FORMAT,
    ChainedBody,
    Limits,
    enveloped,
    is_reference,
    reference_content,
    same_document,
    seal,
    unseal,
)
from schemaless.codec.exact_text import exact_text
from schemaless.codec.registry import codec_named
from schemaless.codec.serializers import Payload, Serializer
from schemaless.errors import ColdFileDamaged, CorruptBody

_FIELDS: Final = struct.Struct(">QIIII")  # stored; never change


@dataclass(frozen=True, slots=True)
class Reference:
    """Where the document of a cold cell is.

    Attributes:
        file: number of the file in its shard.
        group: row group of the file, from 0.
        row: row of the group, from 0.
        length: length of the document's JSON text in bytes.
        text_crc: CRC-32 of that text.
    """

    file: int
    group: int
    row: int
    length: int
    text_crc: int


def reference_body(file: int, group: int, row: int, text: Payload) -> bytes:
    """Return the body that replaces the body of a cell whose document is in a cold file.

    Args:
        file: number of the file in the cell's shard, 0 to 2^64 - 1.
        group: row group of the file, from 0.
        row: row of the group, from 0.
        text: the document's exact JSON text, as the file has it.
    """
    return enveloped(REFERENCE_FORMAT, _FIELDS.pack(file, group, row, len(text), zlib.crc32(text)))


def reference_of(body: bytes) -> Reference:
    """Return the contents of a body for which ``is_reference`` is True.

    Raises:
        CorruptBody: the body is damaged (a subclass says how).
    """
    return Reference(*_FIELDS.unpack(reference_content(body)))


def text_bytes(body: bytes) -> int:
    """Return the length of the JSON text of a reference, as its first bytes state it; 0 for any other body."""
    return int.from_bytes(body[18:22], "big") if is_reference(body) else 0


def inlined(body: bytes, engine: Engine = ENGINE) -> bytes:
    """Return a body that depends on no file: JSON text with zlib for a reference with its text, others unchanged.

    Raises:
        CorruptBody: the body is a reference without its text (a subclass says why).
    """
    if not is_reference(body):
        return body
    serializer, payload = unseal(body, DEFAULT_LIMITS, engine)
    return seal(serializer, payload, codec_named("json+zlib"), engine)


def has_text_of(body: bytes, other: bytes, dictionaries: Dictionaries = NO_DICTIONARIES) -> bool:
    """Return whether two bodies, at least one of which is a reference, have the same JSON text; no file is read.

    Raises:
        CorruptBody: a body is damaged (a subclass says how).
    """
    lengths_and_checksums = []
    for each in (body, other):
        if is_reference(each):
            reference = reference_of(each)
            lengths_and_checksums.append((reference.length, reference.text_crc))
        else:
            text, _ = exact_text(each, dictionaries=dictionaries)
            lengths_and_checksums.append((len(text), zlib.crc32(text)))
    return lengths_and_checksums[0] == lengths_and_checksums[1]


def same_stored_document(one: StoredCell, other: StoredCell, dictionaries: Dictionaries) -> bool:
    """Return whether two cells have the same document, or the same bytes if one cannot be decoded; no file is read."""
    if one.erased or other.erased:
        return one.body == other.body
    try:
        if is_reference(one.body) or is_reference(other.body):
            return has_text_of(one.body, other.body, dictionaries)
        return same_document(one.decode().body, other.decode().body)
    except CorruptBody:
        return one.body == other.body


def with_text(body: bytes, text: Payload) -> ChainedBody:
    """Return a reference with its document's JSON text; ``decode_body`` and ``exact_text`` accept it like a whole body.

    Args:
        body: a reference.
        text: the text that the cold file has for it.

    Raises:
        ColdFileDamaged: the text has another length or CRC-32 than the reference says.
        CorruptBody: the reference is damaged (another subclass says how).
    """
    reference = reference_of(body)
    if len(text) != reference.length:
        raise ColdFileDamaged(
            reference.file, f"the JSON text has {len(text):,} bytes, but the reference records {reference.length:,}"
        )
    if zlib.crc32(text) != reference.text_crc:
        raise ColdFileDamaged(
            reference.file,
            f"CRC-32 of the JSON text is {zlib.crc32(text):08x}, but the reference records {reference.text_crc:08x}",
        )
    return _chained(body, _Text(bytes(text)))


def with_fault(body: bytes, fault: CorruptBody) -> ChainedBody:
    """Return a reference that raises ``fault`` when it is decoded."""
    return _chained(body, _Fault(fault))


def _chained(body: bytes, unseal: _Text | _Fault) -> ChainedBody:
    chained = ChainedBody(body)
    chained.unseal = unseal
    return chained


@dataclass(frozen=True, slots=True)
class _Text:
    text: bytes

    def __call__(self, limits: Limits, engine: Engine, dictionaries: Dictionaries) -> tuple[Serializer, Payload]:
        if len(self.text) > limits.decoded_bytes:
            raise too_large(limits.decoded_bytes)
        return engine.json, self.text


@dataclass(frozen=True, slots=True)
class _Fault:
    fault: CorruptBody

    def __call__(self, limits: Limits, engine: Engine, dictionaries: Dictionaries) -> tuple[Serializer, Payload]:
        raise self.fault
