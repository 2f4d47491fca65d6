"""Tries a codec on stored bodies and measures the size, encoding time and decoding time."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from schemaless.cell import JSONDocument
from schemaless.codec.dictionaries import NO_DICTIONARIES, Dictionaries
from schemaless.codec.engine import ENGINE, Engine
from schemaless.codec.envelope import (
    DEFAULT_LIMITS,
    counts_as,
    decode_body,
    describe_body,
    encode_body,
    is_delta,
    is_enveloped,
    same_document,
)
from schemaless.codec.legacy import LOSSES, read_legacy
from schemaless.codec.recode import recode
from schemaless.codec.registry import Codec
from schemaless.errors import BodyTooLarge, CorruptBody, VerificationFailed

NOT_TRIED: Final = (
    "packed was not tried: its native extension is not installed, and in pure Python it is many times slower than the "
    "others."
)

NEEDS_NATIVE: Final = (
    "packed is this fast only where its native extension is installed: before you set a column to packed, install "
    "schemaless-packed, and a version of this library that supports packed, wherever the column is read."
)


def worth_trying(codec: Codec, engine: Engine = ENGINE) -> bool:
    """Return whether timing the codec here is representative: packed needs its native extension."""
    return engine.serializers[codec.serializer.id].native


@dataclass(slots=True)
class Trial:
    """Result of trying a codec. The lists have one entry per body, in input order.

    Attributes:
        codec: the codec that was tried.
        new_bytes: size of each body if written again, or None if it cannot be re-encoded. Deltas count as they are if
            a migration leaves them so.
        migrated_bytes: size of each body after a migration to the codec. A migration skips bodies that are already in
            the codec, at any level, and bodies that cannot be re-encoded.
        encode_s: time to encode all documents, in seconds of this thread's CPU time, so that other load does not count.
        decode_s: time to decode the new bodies, in seconds of this thread's CPU time.
        left: number of bodies that cannot be re-encoded, by reason.
        bodies: the bodies after a migration; empty unless ``keep`` was set.
    """

    codec: Codec
    new_bytes: list[int | None] = field(default_factory=list)
    migrated_bytes: list[int] = field(default_factory=list)
    encode_s: float = 0.0
    decode_s: float = 0.0
    left: Counter[str] = field(default_factory=Counter)
    bodies: list[bytes] = field(default_factory=list)

    @property
    def encoded(self) -> int:
        """Number of bodies that ``encode_s`` and ``decode_s`` cover."""
        return len(self.new_bytes) - self.left.total()


def try_codec(
    bodies: Iterable[bytes],
    codec: Codec,
    *,
    dictionaries: Dictionaries = NO_DICTIONARIES,
    keep: bool = False,
    engine: Engine = ENGINE,
) -> Trial:
    """Re-encode bodies in a codec, then decode and compare each.

    Args:
        bodies: stored bodies in any codec; they are decoded one at a time.
        codec: the codec to try, including its level and dictionary.
        dictionaries: source of the dictionaries that ``bodies`` name.
        keep: keep the resulting bodies.
        engine: the implementations to use, with or without the ``[fast]`` extra.
    """
    trial = Trial(codec)
    for body in bodies:
        try:
            new = _encoded(body, codec, dictionaries, engine, trial)
            done = counts_as(body, codec, dictionaries, engine=engine)
        except (CorruptBody, BodyTooLarge, VerificationFailed) as error:
            trial.left[type(error).__name__] += 1
            trial.new_bytes.append(None)
            trial.migrated_bytes.append(len(body))
            if keep:
                trial.bodies.append(body)
            continue
        trial.new_bytes.append(len(body) if done and is_delta(body) else len(new))
        trial.migrated_bytes.append(len(body) if done else len(new))
        if keep:
            trial.bodies.append(body if done else new)
    return trial


def _encoded(body: bytes, codec: Codec, dictionaries: Dictionaries, engine: Engine, trial: Trial) -> bytes:
    document, exact = _document(body, codec, dictionaries, engine)
    if not trial.new_bytes:
        # The first body creates the compressor, which takes milliseconds with a dictionary.
        decode_body(encode_body(document, codec, engine=engine), DEFAULT_LIMITS, codec.own_dictionaries, engine=engine)
    started = time.thread_time()
    new = encode_body(document, codec, engine=engine)
    encoded = time.thread_time()
    again = decode_body(new, DEFAULT_LIMITS, codec.own_dictionaries, engine=engine)
    decoded = time.thread_time()
    if not same_document(again, document, engine=engine):
        raise VerificationFailed(
            f"the {len(new):,} bytes encoded as {codec.name} do not decode to the original document"
        )
    if not exact or (codec.is_binary and new[1] >> 4 != codec.serializer.id):
        # The text holds more than its document; a migration keeps the text.
        new = recode(body, codec, dictionaries=dictionaries, engine=engine).body
    trial.encode_s += encoded - started
    trial.decode_s += decoded - encoded
    return new


def _document(body: bytes, codec: Codec, dictionaries: Dictionaries, engine: Engine) -> tuple[JSONDocument, bool]:
    """Return a body's document, and whether encoding it gives the same bytes as migrating the body."""
    if not is_enveloped(body):
        document, keep_reason = read_legacy(body, DEFAULT_LIMITS.depth, engine=engine)
        return document, codec.is_binary and keep_reason not in LOSSES
    kept = describe_body(body).is_text
    return decode_body(body, DEFAULT_LIMITS, dictionaries, engine=engine), not kept
