"""A codec tried on stored bodies: what they would take in it, and what writing and reading them costs."""

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
    is_enveloped,
    same_document,
)
from schemaless.codec.legacy import LOSSES, read_legacy
from schemaless.codec.recode import recode
from schemaless.codec.registry import Codec
from schemaless.errors import BodyTooLarge, CorruptBody, VerificationFailed

NOT_TRIED: Final = (
    "packed was not tried: its native part is not installed, and in pure Python it takes many times the time of the "
    "others."
)

NEEDS_NATIVE: Final = (
    "packed has this speed only where its native part is installed: before a column is set to it, install "
    "schemaless-packed, and a version of this library that knows packed, wherever its cells are read."
)


def worth_trying(codec: Codec, engine: Engine = ENGINE) -> bool:
    """Return whether a codec takes here what it would take where it is used: packed has to have its native part."""
    return engine.serializers[codec.serializer.id].native


@dataclass(slots=True)
class Trial:
    """What became of some bodies. The lists have one entry for each body, in the order that they came.

    Attributes:
        codec: what was tried.
        new_bytes: their lengths, were they written again; None for one that cannot be had in this codec.
        migrated_bytes: their lengths after a migration to it, which leaves those that are in it already, at whatever
            level, and those that it cannot have.
        encode_s: what encoding all of them took, from documents, in seconds of this thread's processor time: others on
            the machine make it no longer.
        decode_s: what decoding the new bodies took, likewise.
        left: how many cannot be had, by reason.
    """

    codec: Codec
    new_bytes: list[int | None] = field(default_factory=list)
    migrated_bytes: list[int] = field(default_factory=list)
    encode_s: float = 0.0
    decode_s: float = 0.0
    left: Counter[str] = field(default_factory=Counter)

    @property
    def encoded(self) -> int:
        """How many bodies ``encode_s`` and ``decode_s`` are of."""
        return len(self.new_bytes) - self.left.total()


def try_codec(
    bodies: Iterable[bytes], codec: Codec, *, dictionaries: Dictionaries = NO_DICTIONARIES, engine: Engine = ENGINE
) -> Trial:
    """Encode bodies again, in a codec, and decode and compare each.

    Args:
        bodies: stored bodies, in whatever codec; one at a time is held as a document.
        codec: what to try; its level counts, and so does its dictionary.
        dictionaries: those that ``bodies`` name.
        engine: with or without the ``[fast]`` extra.
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
            continue
        trial.new_bytes.append(len(new))
        trial.migrated_bytes.append(len(body) if done else len(new))
    return trial


def _encoded(body: bytes, codec: Codec, dictionaries: Dictionaries, engine: Engine, trial: Trial) -> bytes:
    document, exact = _document(body, codec, dictionaries, engine)
    if not trial.new_bytes:
        # A compressor is made with its first body, which takes milliseconds with a dictionary.
        decode_body(encode_body(document, codec, engine=engine), DEFAULT_LIMITS, codec.own_dictionaries, engine=engine)
    started = time.thread_time()
    new = encode_body(document, codec, engine=engine)
    encoded = time.thread_time()
    again = decode_body(new, DEFAULT_LIMITS, codec.own_dictionaries, engine=engine)
    decoded = time.thread_time()
    if not same_document(again, document, engine=engine):
        raise VerificationFailed(f"{len(new)} new bytes in {codec.name} do not decode to the document that went in")
    if not exact or (codec.is_binary and new[1] >> 4 != codec.serializer.id):
        # Its text says more than the document does; a migration keeps it.
        new = recode(body, codec, dictionaries=dictionaries, engine=engine).body
    trial.encode_s += encoded - started
    trial.decode_s += decoded - encoded
    return new


def _document(body: bytes, codec: Codec, dictionaries: Dictionaries, engine: Engine) -> tuple[JSONDocument, bool]:
    """Return a body's document, and whether encoding that gives what a migration would."""
    if not is_enveloped(body):
        document, keep_reason = read_legacy(body, DEFAULT_LIMITS.depth, engine=engine)
        return document, codec.is_binary and keep_reason not in LOSSES
    kept = describe_body(body).is_text
    return decode_body(body, DEFAULT_LIMITS, dictionaries, engine=engine), not kept
