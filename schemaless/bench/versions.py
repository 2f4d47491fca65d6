"""Bytes per version of documents that change: in codecs of the store, whole and as differences. Needs no server."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from schemaless.base.events import Advanced, Listener, ignore_events
from schemaless.base.keys import row_key_for
from schemaless.base.parts import grouped
from schemaless.bench.corpora import Corpus
from schemaless.cell import JSONDocument
from schemaless.codec.deltas import can_be_delta, encode_delta, expected_base, is_keyframe
from schemaless.codec.engine import ENGINE
from schemaless.codec.envelope import encode_body
from schemaless.codec.registry import Codec, codec_named, codec_names
from schemaless.codec.serializers import NotHeld
from schemaless.codec.trial import worth_trying
from schemaless.store.history import _MOST_OF_WHOLE

_COLUMN: Final = "BASE"
"""Stands for any column; which versions are always whole depends on its name."""


@dataclass(frozen=True, slots=True)
class VersionBytes:
    """Sizes of all versions in a codec.

    Attributes:
        codec: name of the codec.
        versions: number of versions.
        whole_bytes: size of their bodies, each one whole.
        history_bytes: the same with superseded versions as differences.
        deltas: number of differences.
    """

    codec: str
    versions: int
    whole_bytes: int
    history_bytes: int
    deltas: int

    @property
    def share(self) -> float:
        """``history_bytes`` relative to ``whole_bytes``."""
        return self.history_bytes / self.whole_bytes


def codecs_with_versions() -> list[Codec]:
    """Return the codecs that have differences and whose speed here is representative."""
    return [codec for codec in map(codec_named, codec_names()) if codec.is_binary and worth_trying(codec)]


def version_bytes(corpus: Corpus, codecs: Sequence[Codec], listener: Listener = ignore_events) -> list[VersionBytes]:
    """Encode the versions of each row, which are in the order of the corpus.

    Args:
        corpus: the versions; those of a row need not be neighbours.
        codecs: codecs that have differences.
        listener: receives each codec that is done.
    """
    rows = grouped((row, document) for row, document in zip(corpus.rows, corpus.documents, strict=True))
    found = []
    for codec in codecs:
        found.append(_in_codec(codec, rows))
        listener(Advanced())
    return found


def _in_codec(codec: Codec, rows: dict[str, list[JSONDocument]]) -> VersionBytes:
    whole = history = deltas = 0
    for row, documents in rows.items():
        bodies = [encode_body(document, codec) for document in documents]
        made = _deltas(codec, row_key_for(row).bytes, documents, bodies)
        whole += sum(map(len, bodies))
        history += sum(min(len(body), len(delta or body)) for body, delta in zip(bodies, made, strict=True))
        deltas += sum(delta is not None for delta in made)
    return VersionBytes(codec.name, sum(map(len, rows.values())), whole, history, deltas)


def _deltas(
    codec: Codec, row_key: bytes, documents: Sequence[JSONDocument], bodies: Sequence[bytes]
) -> list[bytes | None]:
    """Return what a migration with ``--history`` stores instead of each version, or None if it stays whole."""
    serializer = ENGINE.serializers[codec.serializer.id]
    payloads = []
    for document in documents:
        try:
            payload = serializer.dumps(document)
        except NotHeld:
            payload = None
        payloads.append(payload if payload and can_be_delta(serializer, payload, document, ENGINE) else None)
    made: list[bytes | None] = [None] * len(documents)
    for number, payload in enumerate(payloads[:-1]):
        base = min(expected_base(row_key, _COLUMN, number), len(documents) - 1)
        base_payload = payloads[base]
        if payload is not None and base_payload is not None and not is_keyframe(row_key, _COLUMN, number):
            delta = encode_delta(serializer, payload, base, base_payload)
            if delta is not None and len(delta) <= _MOST_OF_WHOLE * len(bodies[number]):
                made[number] = delta
    return made
