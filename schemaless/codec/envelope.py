"""Encodes documents as the enveloped bodies stored in cells, and decodes them. ``FORMAT.md`` describes the bytes.

Writing allocates the payload, the compressed payload and the body; only the body is a copy. Reading allocates the
compressed payload, the payload and the document; only the compressed payload is a copy.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from schemaless.cell import MAX_BODY_BYTES, TOMBSTONE_HEAD, Erased, JSONDocument
from schemaless.codec.compressors import too_large
from schemaless.codec.dictionaries import NO_DICTIONARIES, Dictionaries
from schemaless.codec.documents import MAX_DEPTH, check_finite, identical
from schemaless.codec.engine import ENGINE, REFERENCE, Engine
from schemaless.codec.legacy import LOSSES, parse_legacy, read_legacy
from schemaless.codec.registry import COMPRESSORS, DEFAULT, JSON, NONE, SERIALIZERS, Codec, codec_named
from schemaless.codec.serializers import SHORT_AS_TEXT, NotHeld, Payload, Serializer, unreadable_values
from schemaless.codec.values import MAX_VALUES
from schemaless.errors import (
    BaseMissing,
    BodyTooLarge,
    ChecksumMismatch,
    ColdBodyMissing,
    InvalidInput,
    TruncatedBody,
    UnknownFormat,
)

# stored; never renumber
MARK: Final = 0xC1
"""First byte of every enveloped body: unused in MessagePack and invalid in UTF-8."""

HEADER_BYTES: Final = 2
CHECKSUM_BYTES: Final = 4
_SHORTEST: Final = HEADER_BYTES + 1 + CHECKSUM_BYTES
_TOMBSTONE_FORMAT: Final = TOMBSTONE_HEAD[1]
REFERENCE_HEAD: Final = b"\xc1\xf1"
"""The first two bytes of references to cold files."""

REFERENCE_FORMAT: Final = REFERENCE_HEAD[1]
REFERENCE_BYTES: Final = 30
"""Length of a reference."""
_NUMBER_BYTES: Final = 8
DELTA: Final = 3
"""The low four bits of the format byte of a delta, the difference from another version."""

ERASED: Final = "erased"
"""Name of the format of erased bodies, in place of a codec's."""

COLD: Final = "cold"
"""Name of the format of references to cold files, in place of a codec's."""

_HEADERS: Final = tuple(bytes((MARK, format_byte)) for format_byte in range(256))
_HEADER_CHECKSUMS: Final = tuple(map(zlib.crc32, _HEADERS))
_KNOWN_FORMATS: Final = frozenset(
    serializer << 4 | compressor for serializer in SERIALIZERS for compressor in COMPRESSORS
)

DELTA_FORMATS: Final = {kind.id << 4 | DELTA: f"{kind.name}+delta" for kind in SERIALIZERS.values() if not kind.is_text}
"""The format bytes of deltas, with their names."""

_CHAINED_FORMATS: Final = frozenset((*DELTA_FORMATS, REFERENCE_FORMAT))

DELTA_HEADERS: Final = frozenset(_HEADERS[format_byte] for format_byte in DELTA_FORMATS)
"""The first two bytes of deltas."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits on what one body may decode to.

    Attributes:
        decoded_bytes: maximum size of the inflated payload in bytes, enforced while inflating.
        depth: maximum nesting of lists and objects, 1 to 512.
        values: maximum number of lists, objects, keys and scalars, counted before any is allocated.

    Raises:
        InvalidInput: a limit is out of range.
    """

    decoded_bytes: int = 64 << 20
    depth: int = MAX_DEPTH
    values: int = MAX_VALUES

    def __post_init__(self) -> None:
        for name, maximum in (("decoded_bytes", None), ("depth", MAX_DEPTH), ("values", None)):
            limit = getattr(self, name)
            if type(limit) is not int or limit < 1 or (maximum is not None and limit > maximum):
                allowed = "of at least 1" if maximum is None else f"from 1 to {maximum}"
                raise InvalidInput(f"limits: {name} must be an integer {allowed}, got {limit!r}")


DEFAULT_LIMITS: Final = Limits()


class ChainedBody(bytes):
    """The stored bytes of a delta or of a reference, with access to the versions or the text that it depends on.

    Every function of the codec that takes a body accepts it. ``unseal`` does what the function of this name does. A
    pickled copy has what it depends on.
    """

    unseal: Callable[[Limits, Engine, Dictionaries], tuple[Serializer, Payload]]

    def __reduce__(self) -> tuple[Any, ...]:
        return ChainedBody, (bytes(self),), {"unseal": self.unseal}


@dataclass(frozen=True, slots=True)
class BodyFormat:
    """Storage format of a body, as its header states it.

    Attributes:
        name: the codec of the stored bytes (``msgpack+zlib``, ``json+none``, ...), or ``legacy``. It differs from the
            configured codec if the payload was too short to compress or did not shrink, or the document was kept as
            text. ``erased`` for a body that was erased, ``cold`` for a reference to a cold file.
        format_byte: the second byte of the body, or None for ``legacy``.
    """

    name: str
    format_byte: int | None

    @property
    def is_text(self) -> bool:
        """Whether the payload is JSON text."""
        if self.format_byte is None:
            return True
        serializer = SERIALIZERS.get(self.format_byte >> 4)
        return serializer is not None and serializer.is_text


def encode_body(
    document: JSONDocument, codec: Codec = DEFAULT, *, engine: Engine = ENGINE, allow_nan: bool = True
) -> bytes:
    """Encode a document as the bytes to store.

    A document that MessagePack cannot represent (integers beyond 64 bits, lone surrogates) is stored as JSON text with
    the same compressor. So is a document that packed cannot represent or would not make shorter. A payload that does
    not shrink is stored uncompressed.

    Args:
        document: dict with str keys, list, str, int, float, bool or None, nested up to 512 levels; no subclasses.
        codec: the codec to encode with.
        engine: the implementations to use, with or without the ``[fast]`` extra; only compressed bytes differ.
        allow_nan: whether to accept NaN and infinities.

    Raises:
        InvalidBody: a value is outside the JSON data model; the message names its path.
        BodyTooLarge: the body would exceed 16 MiB - 1, or the payload would exceed a limit that readers enforce.
    """
    if codec.is_binary:
        serializer = engine.serializers[codec.serializer.id]
        try:
            payload = payload_of(document, codec, engine, checked=False)
        except NotHeld:
            pass
        else:
            if not allow_nan:
                check_encoded_finite(serializer, payload, document, engine)
            return seal(serializer, payload, codec, engine)
    text = engine.json.dumps(document)
    if not allow_nan:
        check_encoded_finite(engine.json, text, document, engine)
    if codec.enveloped:
        return seal(engine.json, text, codec, engine)
    _check_values(engine.json, text)
    return check_length(text)


def check_encoded_finite(serializer: Serializer, payload: Payload, document: JSONDocument, engine: Engine) -> None:
    """Refuse NaN and infinities, but walk the document only if its payload may hold one."""
    if not serializer.may_hold_nan(payload):
        return
    if serializer is engine.packed:  # any number may have the bytes it looks for
        with suppress(NotHeld):
            if not engine.msgpack.may_hold_nan(engine.msgpack.dumps(document, checked=True)):
                return
    check_finite(document)


def decode_body(
    body: bytes,
    limits: Limits = DEFAULT_LIMITS,
    dictionaries: Dictionaries = NO_DICTIONARIES,
    *,
    engine: Engine = ENGINE,
) -> JSONDocument:
    """Decode a stored body, enveloped or legacy; return an ``Erased`` for a body that was erased.

    Args:
        body: any stored body.
        limits: maximum decoded size, depth and number of values.
        dictionaries: source of the zstd dictionary that ``body`` names, if any.
        engine: the implementations to use, with or without the ``[fast]`` extra; the result is the same.

    Raises:
        CorruptBody: the body does not decode (a subclass says why). The checksum is verified before inflating.
        RecursionError: the caller's stack is too deep; the body may be valid.
    """
    if body[:1] != b"\xc1":
        if len(body) > limits.decoded_bytes:
            raise too_large(limits.decoded_bytes)
        return parse_legacy(body, limits.depth, limits.values, engine=engine)
    try:
        serializer, payload = unseal(body, limits, engine, dictionaries)
    except UnknownFormat:
        number = erasure_of(body)
        if number is None:
            raise
        return Erased(number)
    return serializer.loads(payload, limits.depth, limits.values)


def tombstone(erasure: int) -> bytes:
    """Return the body that replaces an erased cell's body.

    Args:
        erasure: number of the erasure in the ledger, 1 to 2^64 - 1.
    """
    return enveloped(_TOMBSTONE_FORMAT, erasure.to_bytes(_NUMBER_BYTES, "big"))


def is_erased(body: bytes) -> bool:
    """Return whether a body's first bytes mark it as erased."""
    return body[:HEADER_BYTES] == TOMBSTONE_HEAD


def erasure_of(body: bytes) -> int | None:
    """Return the number of the erasure that erased a body; None for any other body.

    Raises:
        CorruptBody: the body begins like an erased one but is damaged.
    """
    if not is_erased(body):
        return None
    if len(body) < _SHORTEST:
        raise TruncatedBody(f"an enveloped body has at least {_SHORTEST} bytes, this one has {len(body)}")
    number = check_checksum(body)
    if len(number) != _NUMBER_BYTES:
        raise UnknownFormat(
            f"format byte 0x{_TOMBSTONE_FORMAT:02X}: the erasure number has {len(number)} bytes, not {_NUMBER_BYTES}"
        )
    return int.from_bytes(number, "big")


def is_delta(body: bytes) -> bool:
    """Return whether a body's first bytes mark it as the difference from another version."""
    return body[:HEADER_BYTES] in DELTA_HEADERS


def base_of(body: bytes) -> int:
    """Return the ref_key of the version that a difference was made from, from its first bytes.

    Raises:
        TruncatedBody: the body is too short for a delta.
    """
    if len(body) <= HEADER_BYTES + _NUMBER_BYTES + CHECKSUM_BYTES:
        raise TruncatedBody(f"a delta has more than 14 bytes, this one has {len(body)}")
    return int.from_bytes(body[HEADER_BYTES : HEADER_BYTES + _NUMBER_BYTES], "big")


def whole_body(
    body: bytes, dictionaries: Dictionaries = NO_DICTIONARIES, *, compressed: bool = False, engine: Engine = ENGINE
) -> bytes:
    """Return a body that depends on no other version: one with zlib or uncompressed for a delta, others unchanged.

    Raises:
        CorruptBody: the body is a delta and does not decode (a subclass says why).
    """
    if not is_delta(body):
        return body
    serializer, payload = unseal(body, DEFAULT_LIMITS, engine, dictionaries)
    return seal(serializer, payload, codec_named(f"{serializer.name}+{'zlib' if compressed else 'none'}"), engine)


def is_reference(body: bytes) -> bool:
    """Return whether a body's first bytes mark it as a reference to a document in a cold file."""
    return body[:HEADER_BYTES] == REFERENCE_HEAD


def reference_content(body: bytes) -> bytes:
    """Verify a reference, and return the bytes between its header and its checksum.

    Raises:
        CorruptBody: the reference is damaged (a subclass says how).
    """
    if len(body) < _SHORTEST:
        raise TruncatedBody(f"an enveloped body has at least {_SHORTEST} bytes, this one has {len(body)}")
    content = check_checksum(body)
    if len(body) != REFERENCE_BYTES:
        raise UnknownFormat(
            f"format byte 0x{REFERENCE_FORMAT:02X}: a reference has {REFERENCE_BYTES} bytes, this body has {len(body)}"
        )
    return content


def is_enveloped(body: bytes) -> bool:
    """Return whether a body has an envelope; a legacy body has none."""
    return body[:1] == b"\xc1"


def describe_body(body: bytes) -> BodyFormat:
    """Return a body's storage format from its first two bytes, without checking or inflating it.

    Raises:
        TruncatedBody: the body is too short for an envelope.
        UnknownFormat: this version does not know the format byte.
    """
    if not is_enveloped(body):
        return BodyFormat("legacy", None)
    if len(body) < _SHORTEST:
        raise TruncatedBody(f"an enveloped body has at least {_SHORTEST} bytes, this one has {len(body)}")
    return _format(body[1])


def dictionary_of(body: bytes) -> int | None:
    """Return the id of the dictionary that a body's first bytes name, or None.

    Raises:
        CorruptBody: the body should hold a zstd frame and does not (a subclass says why).
    """
    compressor = COMPRESSORS.get(body[1] & 15) if is_enveloped(body) and len(body) > 1 else None
    if compressor is None or not compressor.takes_dictionary:
        return None
    return compressor.dictionary_id(memoryview(body)[HEADER_BYTES:-CHECKSUM_BYTES])


def renumbered_body(body: bytes, dictionary_id: int) -> bytes:
    """Return the body with a different dictionary id, and otherwise unchanged.

    Used when a body comes from a datastore where the dictionary has another id.
    """
    compressor = ENGINE.compressors[body[1] & 15]
    return enveloped(body[1], compressor.renumbered(body[HEADER_BYTES:-CHECKSUM_BYTES], dictionary_id))


def counts_as(
    body: bytes, codec: Codec, dictionaries: Dictionaries = NO_DICTIONARIES, *, engine: Engine = ENGINE
) -> bool:
    """Return whether a body is already in ``codec``, so that re-encoding it would change nothing.

    A body counts if it has the codec's own format, or one of its fallbacks: an uncompressed payload that is shorter
    than ``compress_min_bytes`` or does not shrink, or JSON text that the codec keeps as text. A zstd frame must name
    the codec's dictionary, or none if the codec has none. The compression level is not stored, so it is not compared.
    The codec's own format is recognized by the first bytes; only fallbacks are decoded. A delta counts as being in each
    codec with its serializer, and an erased body or a reference as being in every codec.

    Raises:
        CorruptBody: the body had to be decoded and does not decode (a subclass says why).
    """
    if is_erased(body) or is_reference(body):
        return True
    if not codec.enveloped or not is_enveloped(body):
        return not codec.enveloped and not is_enveloped(body)
    own = len(body) > 1 and body[1] == codec.format_byte
    if own and not codec.compressor.takes_dictionary:
        return True
    describe_body(body)
    serializer_id, compressor_id = body[1] >> 4, body[1] & 15
    if is_delta(body):
        return serializer_id == codec.serializer.id
    if compressor_id not in (codec.compressor.id, NONE.id):
        return False
    if compressor_id == codec.compressor.id:
        if dictionary_of(body) != (None if codec.dictionary is None else codec.dictionary.id):
            return False
        if own:
            return True
    if serializer_id not in (codec.serializer.id, JSON.id):
        return False
    serializer, payload = unseal(body, DEFAULT_LIMITS, engine, dictionaries)
    if compressor_id != codec.compressor.id and _shortened(payload, codec, engine) is not None:
        return False
    if serializer_id == codec.serializer.id:
        return True
    serializer.loads(payload, DEFAULT_LIMITS.depth)  # raises MalformedPayload for invalid text, not UnreadableLegacy
    return keep_reason(payload, codec, DEFAULT_LIMITS.depth, engine=engine) is not None


def keep_reason(
    text: Payload, codec: Codec, depth: int, values: int = MAX_VALUES, *, engine: Engine = ENGINE
) -> str | None:
    """Return why a codec keeps this JSON text as text (one of ``legacy.KEEP_REASONS``), or None if it does not.

    Raises:
        CorruptBody: the text is not JSON, is nested too deeply or has too many values.
    """
    document, reason = read_legacy(text, depth, values, engine=engine)
    if not codec.is_binary or reason in LOSSES:
        return reason if codec.is_binary else None
    try:
        payload_of(document, codec, engine, text)
    except NotHeld as refusal:
        return str(refusal)
    return None


def payload_of(
    document: JSONDocument, codec: Codec, engine: Engine, text: Payload | None = None, *, checked: bool = True
) -> bytes:
    """Serialize a document with a binary codec's serializer.

    Args:
        codec: a codec that ``is_binary``.
        engine: the implementations to use, with or without the ``[fast]`` extra.
        text: the JSON text that would be stored instead; defaults to compact text.
        checked: whether ``document`` is known to be in the JSON data model.

    Raises:
        InvalidBody: ``document`` is outside the JSON data model.
        NotHeld: the serializer cannot represent the document or would not make it shorter; store JSON text instead.
        BodyTooLarge: the document has more values than readers accept.
    """
    serializer = engine.serializers[codec.serializer.id]
    payload = serializer.dumps(document, checked=checked)
    if serializer is engine.packed and not engine.packed.is_preferred(payload, document, text, codec):
        raise NotHeld(SHORT_AS_TEXT)
    return payload


def check_canonical(body: bytes, dictionaries: Dictionaries = NO_DICTIONARIES) -> None:
    """Check that a body is exactly what this store writes. Stricter than decoding; always inflates with ``zlib``.

    A legacy body must be JSON text. An enveloped body must decode, and its payload must be canonical: MessagePack
    without ext, bin or duplicate keys and in its shortest form, or packed exactly as its writer encodes it. A
    compressed payload must be shorter than the uncompressed one. A zlib stream must have a 32 KiB window. A zstd frame
    must state its content size and nothing else, except that with a dictionary it also has a two-byte dictionary id and
    a checksum.

    Raises:
        NotCanonical: the body decodes, but this store would have written other bytes.
        CorruptBody: the body does not decode (another subclass says why).
    """
    if is_reference(body):
        reference_content(body)
        return
    if not is_enveloped(body) or is_erased(body):
        decode_body(body)
        return
    strict, payload = unseal(body, DEFAULT_LIMITS, REFERENCE, dictionaries)
    serializer, compressor = ENGINE.serializers[strict.id], ENGINE.compressors.get(body[1] & 15)
    document = serializer.loads(payload, DEFAULT_LIMITS.depth)
    if compressor is not None:  # a delta has no compressor of its own
        compressor.check_canonical(body[HEADER_BYTES:-CHECKSUM_BYTES], len(payload))
    serializer.check_canonical(payload, document)


def same_document(left: JSONDocument, right: JSONDocument, *, engine: Engine = ENGINE) -> bool:
    """Return whether two valid documents are the same, comparing MessagePack bytes where possible.

    1 differs from 1.0, True from 1, 0.0 from -0.0; NaN equals NaN; key order counts. Both arguments must be valid
    documents: returned by a decoder or accepted by ``encode_body``.
    """
    return _same_bytes(left, right, engine) or identical(left, right)


def same_put(left: JSONDocument, right: JSONDocument, *, engine: Engine = ENGINE) -> bool:
    """Return whether two puts of the same cell are equal: like ``same_document``, but ignoring key order."""
    return _same_bytes(left, right, engine) or identical(left, right, key_order=False)


def _same_bytes(left: JSONDocument, right: JSONDocument, engine: Engine) -> bool:
    try:
        return engine.msgpack.dumps(left, checked=True) == engine.msgpack.dumps(right, checked=True)
    except NotHeld:
        return False


def seal(serializer: Serializer, payload: Payload, codec: Codec, engine: Engine) -> bytes:
    """Wrap a payload in an envelope, compressed with ``codec`` if that makes it shorter.

    Raises:
        BodyTooLarge: the body exceeds 16 MiB - 1, or the payload exceeds the readers' limit on size or number of
            values.
    """
    if len(payload) > DEFAULT_LIMITS.decoded_bytes:
        raise BodyTooLarge(f"body has {len(payload)} bytes before compression (limit {DEFAULT_LIMITS.decoded_bytes})")
    _check_values(serializer, payload)
    compressed = _shortened(payload, codec, engine)
    if compressed is None:
        return enveloped(serializer.id << 4 | NONE.id, payload)
    return enveloped(serializer.id << 4 | codec.compressor.id, compressed)


def enveloped(format_byte: int, content: Payload) -> bytes:
    """Return a body with this format byte and content."""
    checksum = zlib.crc32(content, _HEADER_CHECKSUMS[format_byte])
    return check_length(b"".join((_HEADERS[format_byte], content, checksum.to_bytes(CHECKSUM_BYTES, "big"))))


def unseal(
    body: bytes, limits: Limits, engine: Engine, dictionaries: Dictionaries = NO_DICTIONARIES
) -> tuple[Serializer, Payload]:
    """Verify an enveloped body's checksum and return its serializer and inflated payload.

    Raises:
        CorruptBody: the envelope is damaged or its format unknown (a subclass says why).
    """
    if len(body) < _SHORTEST:
        raise TruncatedBody(f"an enveloped body has at least {_SHORTEST} bytes, this one has {len(body)}")
    format_byte = body[1]
    if format_byte in _CHAINED_FORMATS and isinstance(body, ChainedBody):
        return body.unseal(limits, engine, dictionaries)
    compressed = check_checksum(body)
    if format_byte not in _KNOWN_FORMATS:
        if format_byte in DELTA_FORMATS:
            raise BaseMissing(base_of(body), "is not available here")
        if format_byte == REFERENCE_FORMAT:
            file = int.from_bytes(reference_content(body)[:_NUMBER_BYTES], "big")
            raise ColdBodyMissing(file, "is not available here")
        raise _unknown(format_byte)
    payload = engine.compressors[format_byte & 15].decompress(compressed, limits.decoded_bytes, dictionaries)
    return engine.serializers[format_byte >> 4], payload


def check_checksum(body: bytes) -> bytes:
    """Verify the checksum of an enveloped body, and return the bytes between header and checksum.

    Raises:
        ChecksumMismatch: the checksum differs.
    """
    stored = int.from_bytes(body[-CHECKSUM_BYTES:], "big")
    content = body[HEADER_BYTES:-CHECKSUM_BYTES]
    computed = zlib.crc32(content, _HEADER_CHECKSUMS[body[1]])
    if computed != stored:
        raise ChecksumMismatch(f"CRC-32 of {len(body)} bytes is {computed:08x}, but the body records {stored:08x}")
    return content


def check_length(body: bytes) -> bytes:
    """Return ``body`` unchanged if it fits into a table.

    Raises:
        BodyTooLarge: ``body`` is longer than 16 MiB - 1.
    """
    if len(body) > MAX_BODY_BYTES:
        raise BodyTooLarge(f"body has {len(body)} bytes once encoded (limit {MAX_BODY_BYTES}); split the document")
    return body


def _check_values(serializer: Serializer, payload: Payload) -> None:
    if len(payload) > MAX_VALUES and serializer.exceeds(payload, MAX_VALUES):
        raise unreadable_values()


def _shortened(payload: Payload, codec: Codec, engine: Engine) -> Payload | None:
    """Return the compressed payload, or None if the payload is to be stored uncompressed."""
    if len(payload) < codec.compress_min_bytes:
        return None
    compressed = engine.compressors[codec.compressor.id].compress(payload, codec)
    return compressed if len(compressed) < len(payload) else None


def _format(format_byte: int) -> BodyFormat:
    if format_byte == _TOMBSTONE_FORMAT:
        return BodyFormat(ERASED, format_byte)
    if format_byte == REFERENCE_FORMAT:
        return BodyFormat(COLD, format_byte)
    if format_byte in DELTA_FORMATS:
        return BodyFormat(DELTA_FORMATS[format_byte], format_byte)
    serializer, compressor = SERIALIZERS.get(format_byte >> 4), COMPRESSORS.get(format_byte & 15)
    if serializer is None or compressor is None:
        raise _unknown(format_byte)
    return BodyFormat(f"{serializer.name}+{compressor.name}", format_byte)


def _unknown(format_byte: int) -> UnknownFormat:
    noun = "compressor" if SERIALIZERS.get(format_byte >> 4) else "serializer"
    number = format_byte & 15 if noun == "compressor" else format_byte >> 4
    return UnknownFormat(f"format byte 0x{format_byte:02X}: {noun} {number} is unknown to this version")
