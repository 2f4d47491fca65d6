"""Bodies: a document in its envelope, as it stands in the table. ``FORMAT.md`` describes the bytes.

Writing makes three things, each once: the payload, the compressed payload, and the body, which alone is a copy. Reading
makes as many: the compressed payload, which alone is a copy, the payload, and the document.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Final

from schemaless.cell import MAX_BODY_BYTES, JSONDocument
from schemaless.codec.compressors import too_large
from schemaless.codec.dictionaries import NO_DICTIONARIES, Dictionaries
from schemaless.codec.documents import MAX_DEPTH, identical
from schemaless.codec.engine import ENGINE, REFERENCE, Engine
from schemaless.codec.legacy import LOSSES, parse_legacy, read_legacy
from schemaless.codec.registry import COMPRESSORS, DEFAULT, NONE, SERIALIZERS, Codec
from schemaless.codec.serializers import SHORT_AS_TEXT, NotHeld, Payload, Serializer, unreadable_values
from schemaless.codec.values import MAX_VALUES
from schemaless.errors import BodyTooLarge, ChecksumMismatch, InvalidInput, TruncatedBody, UnknownFormat

# stored; never renumber
MARK: Final = 0xC1
"""Every enveloped body begins with this byte: MessagePack never uses it, and it is never valid in UTF-8."""

HEADER_BYTES: Final = 2
CHECKSUM_BYTES: Final = 4
_SHORTEST: Final = HEADER_BYTES + 1 + CHECKSUM_BYTES
_HEADERS: Final = tuple(bytes((MARK, format_byte)) for format_byte in range(256))
_HEADER_CHECKSUMS: Final = tuple(map(zlib.crc32, _HEADERS))
_KNOWN_FORMATS: Final = frozenset(
    serializer.id << 4 | compressor.id for serializer in SERIALIZERS for compressor in COMPRESSORS
)


@dataclass(frozen=True, slots=True)
class Limits:
    """How much one body may become.

    Attributes:
        decoded_bytes: the largest payload, once inflated; checked while inflating.
        depth: the most levels of lists and objects, 1 to 512.
        values: the most lists, objects, keys of objects and scalars together; counted before any is made.

    Raises:
        InvalidInput: one is out of range.
    """

    decoded_bytes: int = 64 << 20
    depth: int = MAX_DEPTH
    values: int = MAX_VALUES

    def __post_init__(self) -> None:
        for name, most in (("decoded_bytes", None), ("depth", MAX_DEPTH), ("values", None)):
            limit = getattr(self, name)
            if type(limit) is not int or limit < 1 or (most is not None and limit > most):
                allowed = "1 up" if most is None else f"1 to {most}"
                raise InvalidInput(f"limits: {name} must be a number from {allowed}, got {limit!r}")


DEFAULT_LIMITS: Final = Limits()


@dataclass(frozen=True, slots=True)
class BodyFormat:
    """What a body says about itself.

    Attributes:
        name: the codec that it is stored in (``msgpack+zlib``, ``json+none``, ...), or ``legacy``. It may have been
            asked for in another one, and have fallen back: too short to be compressed, or kept as text.
        format_byte: its second byte, or None for ``legacy``.
    """

    name: str
    format_byte: int | None

    @property
    def is_text(self) -> bool:
        """Whether what it holds is JSON text."""
        serializer = None if self.format_byte is None else SERIALIZERS.get(self.format_byte >> 4)
        return serializer is None or serializer.is_text


def encode_body(document: JSONDocument, codec: Codec = DEFAULT, *, engine: Engine = ENGINE) -> bytes:
    """Return a document's stored bytes.

    What MessagePack cannot hold (integers beyond 64 bits, lone surrogates) is stored as JSON text, under the same
    compressor; so is what packed cannot hold, or not in fewer bytes. A payload that compression would not make smaller
    is stored uncompressed.

    Args:
        document: dict with str keys, list, str, int, float, bool or None, nested up to 512 levels; no subclasses.
        codec: what to write it in.
        engine: with or without the ``[fast]`` extra; only compressed bytes differ.

    Raises:
        InvalidBody: something in it is outside the JSON data model; the message names its path.
        BodyTooLarge: the body would be longer than 16 MiB - 1, or its payload than readers accept, or have more values.
    """
    if codec.is_binary:
        serializer = engine.serializers[codec.serializer.id]
        try:
            return seal(serializer, payload_of(document, codec, engine, checked=False), codec, engine)
        except NotHeld:
            pass
    text = engine.json.dumps(document)
    if codec.enveloped:
        return seal(engine.json, text, codec, engine)
    _check_values(engine.json, text)
    return check_length(text)


def decode_body(
    body: bytes,
    limits: Limits = DEFAULT_LIMITS,
    dictionaries: Dictionaries = NO_DICTIONARIES,
    *,
    engine: Engine = ENGINE,
) -> JSONDocument:
    """Return the document of stored bytes, enveloped or legacy.

    Args:
        body: any stored body.
        limits: how much it may become.
        dictionaries: asked for the one that the body names, if it names one.
        engine: with or without the ``[fast]`` extra; the result is the same.

    Raises:
        CorruptBody: one of its family, which says what is wrong. Nothing is inflated before the checksum holds.
        RecursionError: the caller's own stack is too deep; the body may be sound.
    """
    if body[:1] != b"\xc1":
        if len(body) > limits.decoded_bytes:
            raise too_large(limits.decoded_bytes)
        return parse_legacy(body, limits.depth, limits.values, engine=engine)
    serializer, payload = unseal(body, limits, engine, dictionaries)
    return serializer.loads(payload, limits.depth, limits.values)


def is_enveloped(body: bytes) -> bool:
    """Return whether a body has an envelope; one that has none is legacy."""
    return body[:1] == b"\xc1"


def describe_body(body: bytes) -> BodyFormat:
    """Say how a body is stored, from its first two bytes alone: nothing is checked or inflated.

    Raises:
        TruncatedBody: too short for an envelope.
        UnknownFormat: a format byte that this version does not know.
    """
    if not is_enveloped(body):
        return BodyFormat("legacy", None)
    if len(body) < _SHORTEST:
        raise TruncatedBody(f"an enveloped body has at least {_SHORTEST} bytes, this one has {len(body)}")
    return _format(body[1])


def dictionary_of(body: bytes) -> int | None:
    """Return the id of the dictionary that a body names, or None; from its first bytes alone.

    Raises:
        CorruptBody: one of its family: it is compressed by zstd, and has no frame.
    """
    compressor = COMPRESSORS.get(body[1] & 15) if is_enveloped(body) and len(body) > 1 else None
    if compressor is None or not compressor.takes_dictionary:
        return None
    return compressor.dictionary_id(memoryview(body)[HEADER_BYTES:-CHECKSUM_BYTES])


def renumbered_body(body: bytes, dictionary_id: int) -> bytes:
    """Return a body that names a dictionary with another id for it, and is the same otherwise.

    For a dictionary that has another number here than where the body comes from.
    """
    compressor = ENGINE.compressors[body[1] & 15]
    return _enveloped(body[1], compressor.renumbered(body[HEADER_BYTES:-CHECKSUM_BYTES], dictionary_id))


def counts_as(
    body: bytes, codec: Codec, dictionaries: Dictionaries = NO_DICTIONARIES, *, engine: Engine = ENGINE
) -> bool:
    """Return whether a body is what asking for ``codec`` gives, so that re-encoding it would change nothing.

    Its own format does, and so do the fallbacks: a payload stored uncompressed that is below ``compress_min_bytes`` or
    that compression does not shorten, and JSON text under a codec that has a reason to keep it as text.
    A zstd frame has to name the codec's dictionary, or none where that has none. Its level does not show in a body.
    Bodies in their own format are told apart by their first bytes; only fallbacks are looked into.

    Raises:
        CorruptBody: one of its family, where the body has to be looked into.
    """
    if not codec.enveloped or not is_enveloped(body):
        return not codec.enveloped and not is_enveloped(body)
    own = len(body) > 1 and body[1] == codec.format_byte
    if own and not codec.compressor.takes_dictionary:
        return True
    describe_body(body)
    serializer_id, compressor_id = body[1] >> 4, body[1] & 15
    if compressor_id not in codec.compressor.counts_as:
        return False
    if compressor_id == codec.compressor.id:
        if dictionary_of(body) != (None if codec.dictionary is None else codec.dictionary.id):
            return False
        if own:
            return True
    if serializer_id not in codec.serializer.counts_as:
        return False
    serializer, payload = unseal(body, DEFAULT_LIMITS, engine, dictionaries)
    if compressor_id != codec.compressor.id and _shortened(payload, codec, engine) is not None:
        return False
    if serializer_id == codec.serializer.id:
        return True
    serializer.loads(payload, DEFAULT_LIMITS.depth)  # so that bad text is a bad payload, not a bad legacy body
    return keep_reason(payload, codec, DEFAULT_LIMITS.depth, engine=engine) is not None


def keep_reason(
    text: Payload, codec: Codec, depth: int, values: int = MAX_VALUES, *, engine: Engine = ENGINE
) -> str | None:
    """Return why JSON text stays text under a codec (one of ``legacy.KEEP_REASONS``), or None where it does not.

    Raises:
        CorruptBody: one of its family: it is no JSON text, or too deep, or has too many values.
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
    """Return a document's payload in a codec's serializer.

    Args:
        codec: one that ``is_binary``.
        engine: with or without the ``[fast]`` extra.
        text: the JSON text that would be stored in its place; compact text unless given.
        checked: whether ``document`` is known to be in the JSON data model.

    Raises:
        InvalidBody: it is not.
        NotHeld: JSON text is to be stored: the serializer cannot hold the document, or not in fewer bytes.
        BodyTooLarge: the document has more values than readers accept.
    """
    serializer = engine.serializers[codec.serializer.id]
    payload = serializer.dumps(document, checked=checked)
    if not serializer.yields_to_text or serializer.is_preferred(payload, document, text, codec.compress_min_bytes):
        return payload
    raise NotHeld(SHORT_AS_TEXT)


def check_canonical(body: bytes, dictionaries: Dictionaries = NO_DICTIONARIES) -> None:
    """Raise unless a body is one that this store writes: stricter than reading, and zlib streams always by ``zlib``.

    A legacy body is JSON text. An enveloped one is as ``decode_body`` reads it; besides, its MessagePack is in its one
    spelling (no ext, no bin, no key twice in an object, the shortest form of everything), and so is packed; a
    compressed payload is shorter than the plain one, a zlib stream has a window of 32 KiB, and a zstd frame states its
    size and nothing else or, with a dictionary, its id in two bytes and a checksum besides.

    Raises:
        NotCanonical: it decodes, but no writer of this store would have written it.
        CorruptBody: another of its family: it does not decode.
    """
    if not is_enveloped(body):
        decode_body(body)
        return
    strict, payload = unseal(body, DEFAULT_LIMITS, REFERENCE, dictionaries)
    serializer, compressor = ENGINE.serializers[strict.id], ENGINE.compressors[body[1] & 15]
    document = serializer.loads(payload, DEFAULT_LIMITS.depth)
    compressor.check_canonical(body[HEADER_BYTES:-CHECKSUM_BYTES], len(payload))
    serializer.check_canonical(payload, document)


def same_document(left: JSONDocument, right: JSONDocument, *, engine: Engine = ENGINE) -> bool:
    """Return whether two documents are the same: the same MessagePack bytes, where it can hold them.

    1 is not 1.0, True is not 1, 0.0 is not -0.0, NaN is NaN, key order counts. Both are documents already: what a
    decoder returned, or ``encode_body`` took.
    """
    return _same_bytes(left, right, engine) or identical(left, right)


def same_put(left: JSONDocument, right: JSONDocument, *, engine: Engine = ENGINE) -> bool:
    """Return whether putting ``left`` where ``right`` is stored is the same put: as strict, but in any key order."""
    return _same_bytes(left, right, engine) or identical(left, right, key_order=False)


def _same_bytes(left: JSONDocument, right: JSONDocument, engine: Engine) -> bool:
    try:
        return engine.msgpack.dumps(left, checked=True) == engine.msgpack.dumps(right, checked=True)
    except NotHeld:
        return False


def seal(serializer: Serializer, payload: Payload, codec: Codec, engine: Engine) -> bytes:
    """Return a serializer's payload in an envelope, compressed as ``codec`` has it where that makes it shorter.

    Raises:
        BodyTooLarge: longer than 16 MiB - 1, or a payload that readers would refuse, for its length or its values.
    """
    if len(payload) > DEFAULT_LIMITS.decoded_bytes:
        raise BodyTooLarge(f"body has {len(payload)} bytes before compression, at most {DEFAULT_LIMITS.decoded_bytes}")
    _check_values(serializer, payload)
    compressed = _shortened(payload, codec, engine)
    if compressed is None:
        return _enveloped(serializer.id << 4 | NONE.id, payload)
    return _enveloped(serializer.id << 4 | codec.compressor.id, compressed)


def _enveloped(format_byte: int, content: Payload) -> bytes:
    checksum = zlib.crc32(content, _HEADER_CHECKSUMS[format_byte])
    return check_length(b"".join((_HEADERS[format_byte], content, checksum.to_bytes(CHECKSUM_BYTES, "big"))))


def unseal(
    body: bytes, limits: Limits, engine: Engine, dictionaries: Dictionaries = NO_DICTIONARIES
) -> tuple[Serializer, Payload]:
    """Return what serializer an enveloped body's payload is in, and the payload.

    Raises:
        CorruptBody: one of its family.
    """
    if len(body) < _SHORTEST:
        raise TruncatedBody(f"an enveloped body has at least {_SHORTEST} bytes, this one has {len(body)}")
    stored = int.from_bytes(body[-CHECKSUM_BYTES:], "big")
    format_byte = body[1]
    compressed = body[HEADER_BYTES:-CHECKSUM_BYTES]
    computed = zlib.crc32(compressed, _HEADER_CHECKSUMS[format_byte])
    if computed != stored:
        raise ChecksumMismatch(f"CRC-32 of {len(body)} bytes is {computed:08x}, the body says {stored:08x}")
    if format_byte not in _KNOWN_FORMATS:
        _format(format_byte)
    payload = engine.compressors[format_byte & 15].decompress(compressed, limits.decoded_bytes, dictionaries)
    return engine.serializers[format_byte >> 4], payload


def check_length(body: bytes) -> bytes:
    """Return ``body`` if a table can hold it.

    Raises:
        BodyTooLarge: it is longer than 16 MiB - 1.
    """
    if len(body) > MAX_BODY_BYTES:
        raise BodyTooLarge(f"body has {len(body)} bytes once encoded, at most {MAX_BODY_BYTES}; split the document")
    return body


def _check_values(serializer: Serializer, payload: Payload) -> None:
    if len(payload) > MAX_VALUES and serializer.exceeds(payload, MAX_VALUES):
        raise unreadable_values()


def _shortened(payload: Payload, codec: Codec, engine: Engine) -> Payload | None:
    """Return the compressed payload, or None where it is to be stored uncompressed."""
    if len(payload) < codec.compress_min_bytes:
        return None
    compressed = engine.compressors[codec.compressor.id].compress(
        payload, codec.level, codec.dictionary, codec.serializer.table_bits
    )
    return compressed if len(compressed) < len(payload) else None


def _format(format_byte: int) -> BodyFormat:
    serializer, compressor = SERIALIZERS.get(format_byte >> 4), COMPRESSORS.get(format_byte & 15)
    if serializer is None or compressor is None:
        noun = "compressor" if serializer else "serializer"
        number = format_byte & 15 if serializer else format_byte >> 4
        raise UnknownFormat(f"format byte 0x{format_byte:02X}: {noun} {number} is not one that this version knows")
    return BodyFormat(f"{serializer.name}+{compressor.name}", format_byte)
