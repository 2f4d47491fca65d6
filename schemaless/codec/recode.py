"""Re-encodes one stored body in another codec and verifies the result, as a bulk migration does for each cell."""

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
    erasure_of,
    is_enveloped,
    is_reference,
    payload_of,
    reference_content,
    same_document,
    seal,
    unseal,
)
from schemaless.codec.legacy import LOSSES, parse_legacy, read_exactly, read_quickly
from schemaless.codec.registry import DEFAULT, Codec
from schemaless.codec.serializers import NotHeld, Payload, Serializer
from schemaless.errors import UnreadableLegacy, VerificationFailed


class Recoded(NamedTuple):
    """Result of re-encoding a body.

    Attributes:
        body: the bytes to store.
        keep_reason: why the document is stored as JSON text under a binary codec (one of ``legacy.KEEP_REASONS``), or
            None. In that case, an old body's JSON text is kept byte for byte.
        unchanged: whether the body was in the target codec already, or was erased; ``body`` is then the input itself.
    """

    body: bytes
    keep_reason: str | None
    unchanged: bool


class Conversion(NamedTuple):
    """A stored body's document in the form that a codec stores, not compressed yet.

    Attributes:
        stored: the stored body, if it was in the target codec already or was erased; otherwise None.
        serializer: the serializer of ``payload``.
        payload: the document, which decodes to what ``stored`` decodes to.
        keep_reason: as in ``Recoded``.
        codec: the target codec.
        is_copy: whether ``payload`` is the stored one, which may have another form than the serializer gives it.
    """

    stored: bytes | None
    serializer: Serializer
    payload: Payload
    keep_reason: str | None
    codec: Codec
    is_copy: bool = True

    def sealed(self, engine: Engine = ENGINE) -> Recoded:
        """Return the body to store, after decoding it to compare it with the payload.

        Raises:
            BodyTooLarge, VerificationFailed: as for ``recode``.
        """
        if self.stored is not None:
            return Recoded(self.stored, self.keep_reason, True)
        if not self.codec.enveloped:
            return Recoded(check_length(bytes(self.payload)), None, False)
        sealed = seal(self.serializer, self.payload, self.codec, engine)
        _, sealed_payload = unseal(sealed, DEFAULT_LIMITS, engine, self.codec.own_dictionaries)
        if sealed_payload != self.payload:
            raise VerificationFailed(
                f"the {len(sealed):,} bytes encoded as {self.codec.name} do not decode to the original payload"
            )
        return Recoded(sealed, self.keep_reason, False)


def recode(
    body: bytes,
    codec: Codec = DEFAULT,
    *,
    dictionaries: Dictionaries = NO_DICTIONARIES,
    limits: Limits = DEFAULT_LIMITS,
    engine: Engine = ENGINE,
) -> Recoded:
    """Re-encode a stored body, then decode the new bytes and compare.

    JSON text is parsed and written as MessagePack or packed, unless that would lose information or save no bytes: then
    the text itself is kept, compressed. Under a JSON codec or ``legacy``, text is preserved byte for byte. A payload
    whose serializer does not change is only compressed again.

    Args:
        body: any stored body.
        codec: the target codec; ``LEGACY`` removes the envelope.
        dictionaries: source of the zstd dictionary that ``body`` names, if any.
        limits: maximum decoded size, depth and number of values.
        engine: with or without the ``[fast]`` extra; only compressed bytes differ.

    Raises:
        CorruptBody: ``body`` does not decode (a subclass says why). Leave it unchanged.
        BodyTooLarge: the new body would be longer than 16 MiB - 1. Leave the stored one unchanged.
        VerificationFailed: the new bytes do not decode to the same document. Do not store them.
    """
    return convert(body, codec, dictionaries=dictionaries, limits=limits, engine=engine).sealed(engine)


def convert(
    body: bytes,
    codec: Codec = DEFAULT,
    *,
    dictionaries: Dictionaries = NO_DICTIONARIES,
    limits: Limits = DEFAULT_LIMITS,
    engine: Engine = ENGINE,
) -> Conversion:
    """Do the first part of ``recode``: all but the compression. Arguments and errors are the same."""
    # Decode.
    if is_reference(body):
        reference_content(body)
        return Conversion(body, engine.json, b"", None, codec)
    if erasure_of(body) is not None:
        return Conversion(body, engine.json, b"", None, codec)
    if is_enveloped(body):
        source, stored = unseal(body, limits, engine, dictionaries)
        unchanged = counts_as(body, codec, dictionaries, engine=engine)
    elif len(body) > limits.decoded_bytes:
        raise too_large(limits.decoded_bytes)
    else:
        source, stored = engine.json, body
        unchanged = not codec.enveloped
    try:
        document, compact, loss = _decode(source, stored, codec, limits, engine)
    except UnreadableLegacy:
        if is_enveloped(body):
            source.loads(stored, limits.depth, limits.values)  # raises MalformedPayload, the error for an envelope
        raise

    # Choose what to store.
    if codec.serializer.id == source.id:
        target, payload, keep_reason = source, stored, None
    else:
        target, payload, keep_reason = _convert(source, stored, document, loss, codec, engine)
    if not unchanged and target is not source and not target.is_text:
        reread = target.loads(payload, DEFAULT_LIMITS.depth)
        if not _is_same(reread, document, compact, target, engine):
            raise VerificationFailed(
                f"the {len(payload):,} bytes of {target.name} do not decode to the original document"
            )
    return Conversion(body if unchanged else None, target, payload, keep_reason, codec, target is source)


def _is_same(
    reread: JSONDocument, document: JSONDocument, compact: bytes | None, target: Serializer, engine: Engine
) -> bool:
    """Compare documents without the serializer under test.

    Compact JSON text distinguishes 1 from 1.0 and 0.0 from -0.0 and keeps key order, and the fast path never produces
    it for NaN.
    """
    gate = engine.json.gate
    if compact is not None and gate is not None:
        return bool(gate.text(reread) == compact)
    # ``same_document`` compares MessagePack.
    return identical(reread, document) if target is engine.msgpack else same_document(reread, document, engine=engine)


def _decode(
    source: Serializer, stored: Payload, codec: Codec, limits: Limits, engine: Engine
) -> tuple[JSONDocument, bytes | None, str | None]:
    """Return the document, its compact JSON text if available, and the information that parsing lost, if any."""
    if not source.is_text:
        return source.loads(stored, limits.depth, limits.values), None, None
    if not codec.is_binary:
        return parse_legacy(stored, limits.depth, limits.values, engine=engine), None, None
    quick = read_quickly(stored, limits.depth, engine, limits.values)
    if quick is not None:
        document, compact = quick
        return document, compact, None
    document, reason = read_exactly(stored, limits.depth, limits.values)
    return document, None, reason if reason in LOSSES else None


def _convert(
    source: Serializer, stored: Payload, document: JSONDocument, loss: str | None, codec: Codec, engine: Engine
) -> tuple[Serializer, Payload, str | None]:
    """Return the new serializer and payload, and the reason if JSON text is stored under a binary codec."""
    reason = loss
    if codec.is_binary and reason is None:
        try:
            payload = payload_of(document, codec, engine, stored if source.is_text else None)
            return engine.serializers[codec.serializer.id], payload, None
        except NotHeld as refusal:
            reason = str(refusal)
    if source.is_text:
        return source, stored, reason
    text = engine.json.dumps(document, checked=True)
    if not same_document(engine.json.parse(text), document, engine=engine):
        raise VerificationFailed(f"the {len(text):,} bytes of JSON text do not read back as the original document")
    return engine.json, text, reason
