"""One body into another codec, verified: what a bulk migration does to each cell."""

from __future__ import annotations

from typing import NamedTuple

from schemaless.cell import JSONDocument
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
from schemaless.codec.registry import DEFAULT, JSON, MSGPACK, Codec
from schemaless.codec.serializers import NotHeld, Payload
from schemaless.errors import DecodedSizeExceeded, UnreadableLegacy, VerificationFailed


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
    payload whose serializer stays is compressed anew.

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
            raise DecodedSizeExceeded(f"decodes to more than {limits.decoded_bytes} bytes")
        if codec.serializer is None:
            parse_legacy(body, limits.depth, limits.values, engine=engine)
            return Recoded(body, None, True)
        return _from_text(body, codec, limits, engine)
    serializer_id, payload = unseal(body, limits, engine, dictionaries)
    unchanged = counts_as(body, codec, dictionaries, engine=engine)
    if serializer_id != JSON.id:
        document = engine.serializers[serializer_id].loads(payload, limits.depth, limits.values)
        if unchanged:
            return Recoded(body, None, True)
        return _from_document(serializer_id, payload, document, codec, engine)
    text = bytes(payload)
    try:
        if not unchanged:
            return _from_text(text, codec, limits, engine)
        reason = keep_reason(text, codec, limits.depth, limits.values, engine=engine)
    except UnreadableLegacy:
        engine.json.loads(payload, limits.depth, limits.values)  # raises, and says it of a payload
        raise
    return Recoded(body, reason, True)


def _from_text(text: bytes, codec: Codec, limits: Limits, engine: Engine) -> Recoded:
    if codec.is_binary:
        return _to_binary(text, codec, limits, engine)
    parse_legacy(text, limits.depth, limits.values, engine=engine)
    if codec.serializer is None:
        return Recoded(check_length(text), None, False)
    return Recoded(_carried(JSON.id, text, codec, engine), None, False)


def _to_binary(text: bytes, codec: Codec, limits: Limits, engine: Engine) -> Recoded:
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
    return Recoded(_carried(JSON.id, text, codec, engine), reason, False)


def _written(
    document: JSONDocument, shown: bytes | None, codec: Codec, engine: Engine, text: bytes | None = None
) -> bytes:
    """Return a document's body.

    Raises:
        NotHeld: JSON text is to be stored.
        VerificationFailed: the new bytes do not decode to the document.
    """
    packed = payload_of(document, codec, engine, text)
    body = seal(codec.serializer_id, packed, codec, engine)
    _, payload = unseal(body, DEFAULT_LIMITS, engine, codec.own_dictionaries)
    again = engine.serializers[codec.serializer_id].loads(payload, DEFAULT_LIMITS.depth)
    # Compared by other means than the packer's: compact JSON text tells 1 from 1.0 and 0.0 from -0.0, keeps the order,
    # and no NaN comes this way.
    if shown is not None:
        same = _shown(again, engine) == shown
    elif codec.serializer == MSGPACK:
        same = identical(again, document)
    else:
        same = same_document(again, document, engine=engine)
    if not same or payload != packed:
        raise VerificationFailed(f"{len(body)} new bytes in {codec.name} do not decode to the document that went in")
    return body


def _from_document(
    serializer_id: int, payload: Payload, document: JSONDocument, codec: Codec, engine: Engine
) -> Recoded:
    if codec.serializer is not None and codec.serializer_id == serializer_id:
        return Recoded(_carried(serializer_id, bytes(payload), codec, engine), None, False)
    reason = None
    if codec.is_binary:
        try:
            return Recoded(_written(document, None, codec, engine), None, False)
        except NotHeld as refusal:
            reason = str(refusal)
    text = engine.json.dumps_model(document)
    if not same_document(engine.json.parse(text), document, engine=engine):
        raise VerificationFailed(f"{len(text)} bytes of JSON text do not read back as the document that went in")
    if codec.serializer is None:
        return Recoded(check_length(text), None, False)
    return Recoded(_carried(JSON.id, text, codec, engine), reason, False)


def _carried(serializer_id: int, payload: bytes, codec: Codec, engine: Engine) -> bytes:
    """Return a payload that is known to decode in another envelope."""
    body = seal(serializer_id, payload, codec, engine)
    if unseal(body, DEFAULT_LIMITS, engine, codec.own_dictionaries) != (serializer_id, payload):
        raise VerificationFailed(f"{len(body)} new bytes in {codec.name} do not decode to the payload that went in")
    return body


def _shown(document: JSONDocument, engine: Engine) -> bytes | None:
    return None if engine.json.gate is None else engine.json.gate.text(document)
