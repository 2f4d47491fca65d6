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
    same_document,
    seal,
    unseal,
)
from schemaless.codec.legacy import parse_legacy, read_exactly, read_legacy, read_quickly
from schemaless.codec.registry import DEFAULT, JSON, MSGPACK, Codec
from schemaless.codec.serializers import Payload
from schemaless.errors import DecodedSizeExceeded, UnreadableLegacy, VerificationFailed


class Recoded(NamedTuple):
    """What became of a body.

    Attributes:
        body: the bytes to store.
        keep_reason: why a MessagePack codec kept JSON text, byte for byte (one of ``legacy.KEEP_REASONS``), or None.
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

    Text goes to a MessagePack codec as its document, unless that would lose something: then the text itself is kept,
    compressed. Text goes to a JSON codec, and back to ``legacy``, byte for byte. A payload whose serializer stays is
    compressed anew.

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
            parse_legacy(body, limits.depth, engine=engine)
            return Recoded(body, None, True)
        return _from_text(body, codec, limits.depth, engine)
    serializer_id, payload = unseal(body, limits, engine, dictionaries)
    unchanged = counts_as(body, codec, dictionaries, engine=engine)
    if serializer_id == MSGPACK.id:
        document = engine.msgpack.loads(payload, limits.depth)
        return Recoded(body, None, True) if unchanged else _from_msgpack(payload, document, codec, engine)
    text = bytes(payload)
    try:
        if not unchanged:
            return _from_text(text, codec, limits.depth, engine)
        document, keep_reason = read_legacy(text, limits.depth, engine=engine)
    except UnreadableLegacy:
        engine.json.loads(payload, limits.depth)  # raises, and says it of a payload
        raise
    return Recoded(body, keep_reason if codec.serializer == MSGPACK else None, True)


def _from_text(text: bytes, codec: Codec, depth: int, engine: Engine) -> Recoded:
    if codec.serializer == MSGPACK:
        return _to_msgpack(text, codec, depth, engine)
    parse_legacy(text, depth, engine=engine)
    if codec.serializer is None:
        return Recoded(check_length(text), None, False)
    return Recoded(_carried(JSON.id, text, codec, engine), None, False)


def _to_msgpack(text: bytes, codec: Codec, depth: int, engine: Engine) -> Recoded:
    """Return JSON text as MessagePack, or kept as text: the hot path of a migration."""
    quick = read_quickly(text, depth, engine)
    if quick is not None:
        document, shown = quick
        keep_reason = None
    else:
        document, keep_reason = read_exactly(text, depth)
        shown = None
    if keep_reason is not None:
        return Recoded(_carried(JSON.id, text, codec, engine), keep_reason, False)
    packed = engine.msgpack.dumps_model(document)
    body = seal(MSGPACK.id, packed, codec, engine)
    _, payload = unseal(body, DEFAULT_LIMITS, engine, codec.own_dictionaries)
    again = engine.msgpack.loads(payload)
    # Compared by other means than the packer's: compact JSON text tells 1 from 1.0 and 0.0 from -0.0, keeps the order,
    # and no NaN comes this way.
    same = identical(again, document) if shown is None else _shown(again, engine) == shown
    if not same or payload != packed:
        raise VerificationFailed(f"{len(body)} new bytes in {codec.name} do not decode to the document that went in")
    return Recoded(body, None, False)


def _from_msgpack(payload: Payload, document: JSONDocument, codec: Codec, engine: Engine) -> Recoded:
    if codec.serializer == MSGPACK:
        return Recoded(_carried(MSGPACK.id, bytes(payload), codec, engine), None, False)
    text = engine.json.dumps_model(document)
    if not same_document(engine.json.parse(text), document, engine=engine):
        raise VerificationFailed(f"{len(text)} bytes of JSON text do not read back as the document that went in")
    if codec.serializer is None:
        return Recoded(check_length(text), None, False)
    return Recoded(_carried(JSON.id, text, codec, engine), None, False)


def _carried(serializer_id: int, payload: bytes, codec: Codec, engine: Engine) -> bytes:
    """Return a payload that is known to decode in another envelope."""
    body = seal(serializer_id, payload, codec, engine)
    if unseal(body, DEFAULT_LIMITS, engine, codec.own_dictionaries) != (serializer_id, payload):
        raise VerificationFailed(f"{len(body)} new bytes in {codec.name} do not decode to the payload that went in")
    return body


def _shown(document: JSONDocument, engine: Engine) -> bytes | None:
    return None if engine.json.gate is None else engine.json.gate.text(document)
