"""One body into another codec, verified: what a bulk migration does to each cell."""

from __future__ import annotations

from typing import NamedTuple

from schemaless.cell import JSONDocument
from schemaless.codec.compressors import too_large
from schemaless.codec.dictionaries import NO_DICTIONARIES, Dictionaries
from schemaless.codec.documents import identical
from schemaless.codec.engine import ENGINE, Engine
from schemaless.codec.envelope import (
    DEFAULT_LIMITS,
    Limits,
    check_length,
    counts_as,
    is_enveloped,
    keep_reason,
    payload_of,
    same_document,
    seal,
    unseal,
)
from schemaless.codec.legacy import LOSSES, parse_legacy, read_exactly, read_quickly
from schemaless.codec.registry import DEFAULT, Codec
from schemaless.codec.serializers import NotHeld, Payload, Serializer
from schemaless.errors import UnreadableLegacy, VerificationFailed


class Recoded(NamedTuple):
    """What became of a body.

    Attributes:
        body: the bytes to store.
        keep_reason: why JSON text is kept, byte for byte, or written (one of ``legacy.KEEP_REASONS``), or None.
        unchanged: whether the body was in that codec already; ``body`` is then the very bytes that came.
    """

    body: bytes
    keep_reason: str | None
    unchanged: bool


def recode(
    body: bytes,
    codec: Codec = DEFAULT,
    *,
    dictionaries: Dictionaries = NO_DICTIONARIES,
    limits: Limits = DEFAULT_LIMITS,
    engine: Engine = ENGINE,
) -> Recoded:
    """Return a stored body in another codec, after decoding the new bytes again and comparing.

    Text goes to a MessagePack or packed codec as its document, unless that would lose something or not be smaller:
    then the text itself is kept, compressed. Text goes to a JSON codec, and back to ``legacy``, byte for byte. A
    payload whose serializer stays is compressed again.

    Args:
        body: any stored body.
        codec: what it shall be in; ``LEGACY`` takes the envelope off.
        dictionaries: asked for the one that ``body`` names, if it names one.
        limits: how much the body may become.
        engine: with or without the ``[fast]`` extra; only compressed bytes differ.

    Raises:
        CorruptBody: one of its family: ``body`` does not decode; leave it as it is.
        BodyTooLarge: the new body would be longer than 16 MiB - 1; leave it as it is.
        VerificationFailed: the new bytes do not decode to the same document; nothing may be written.
    """
    if not is_enveloped(body):
        if len(body) > limits.decoded_bytes:
            raise too_large(limits.decoded_bytes)
        if not codec.enveloped:
            parse_legacy(body, limits.depth, limits.values, engine=engine)
            return Recoded(body, None, True)
        return _from_text(body, codec, limits, engine)
    serializer, payload = unseal(body, limits, engine, dictionaries)
    unchanged = counts_as(body, codec, dictionaries, engine=engine)
    if not serializer.is_text:
        document = serializer.loads(payload, limits.depth, limits.values)
        if unchanged:
            return Recoded(body, None, True)
        return _from_document(serializer, payload, document, codec, engine)
    try:
        if not unchanged:
            return _from_text(payload, codec, limits, engine)
        reason = keep_reason(payload, codec, limits.depth, limits.values, engine=engine)
    except UnreadableLegacy:
        serializer.loads(payload, limits.depth, limits.values)  # raises, and says it of a payload
        raise
    return Recoded(body, reason, True)


def _from_text(text: Payload, codec: Codec, limits: Limits, engine: Engine) -> Recoded:
    if codec.is_binary:
        return _to_binary(text, codec, limits, engine)
    parse_legacy(text, limits.depth, limits.values, engine=engine)
    return _as_text(text, None, codec, engine)


def _as_text(text: Payload, reason: str | None, codec: Codec, engine: Engine) -> Recoded:
    """Return text that is known to read, in its envelope or in none."""
    if codec.enveloped:
        return Recoded(_carried(engine.json, text, codec, engine), reason, False)
    return Recoded(check_length(bytes(text)), None, False)


def _to_binary(text: Payload, codec: Codec, limits: Limits, engine: Engine) -> Recoded:
    """Return JSON text as MessagePack or packed, or kept as text: the hot path of a migration."""
    quick = read_quickly(text, limits.depth, engine, limits.values)
    if quick is not None:
        (document, shown), reason = quick, None
    else:
        (document, reason), shown = read_exactly(text, limits.depth, limits.values), None
    if reason not in LOSSES:
        try:
            return Recoded(_written(document, shown, codec, engine, text), None, False)
        except NotHeld as refusal:
            reason = str(refusal)
    return _as_text(text, reason, codec, engine)


def _written(
    document: JSONDocument, shown: bytes | None, codec: Codec, engine: Engine, text: Payload | None = None
) -> bytes:
    """Return a document's body.

    Raises:
        NotHeld: JSON text is to be stored.
        VerificationFailed: the new bytes do not decode to the document.
    """
    serializer = engine.serializers[codec.serializer.id]
    payload = payload_of(document, codec, engine, text)
    body = seal(serializer, payload, codec, engine)
    _, stored = unseal(body, DEFAULT_LIMITS, engine, codec.own_dictionaries)
    again = serializer.loads(stored, DEFAULT_LIMITS.depth)
    # Compared by other means than the serializer's: compact JSON text tells 1 from 1.0 and 0.0 from -0.0, keeps the
    # order, and no NaN comes this way.
    if shown is not None:
        same = _shown(again, engine) == shown
    elif serializer.compares:
        same = identical(again, document)
    else:
        same = same_document(again, document, engine=engine)
    if not same or stored != payload:
        raise VerificationFailed(f"{len(body)} new bytes in {codec.name} do not decode to the document that went in")
    return body


def _from_document(
    serializer: Serializer, payload: Payload, document: JSONDocument, codec: Codec, engine: Engine
) -> Recoded:
    if codec.serializer.id == serializer.id:
        return Recoded(_carried(serializer, payload, codec, engine), None, False)
    reason = None
    if codec.is_binary:
        try:
            return Recoded(_written(document, None, codec, engine), None, False)
        except NotHeld as refusal:
            reason = str(refusal)
    text = engine.json.dumps(document, checked=True)
    if not same_document(engine.json.parse(text), document, engine=engine):
        raise VerificationFailed(f"{len(text)} bytes of JSON text do not read back as the document that went in")
    return _as_text(text, reason, codec, engine)


def _carried(serializer: Serializer, payload: Payload, codec: Codec, engine: Engine) -> bytes:
    """Return a payload that is known to decode in another envelope."""
    body = seal(serializer, payload, codec, engine)
    if unseal(body, DEFAULT_LIMITS, engine, codec.own_dictionaries) != (serializer, payload):
        raise VerificationFailed(f"{len(body)} new bytes in {codec.name} do not decode to the payload that went in")
    return body


def _shown(document: JSONDocument, engine: Engine) -> bytes | None:
    return None if engine.json.gate is None else engine.json.gate.text(document)
