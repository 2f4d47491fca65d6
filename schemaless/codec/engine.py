"""What does the work behind the ids of the registry: one engine with the ``[fast]`` extra, one without."""

from __future__ import annotations

import os
from typing import Final, Protocol

from schemaless.cell import JSONDocument
from schemaless.codec.compressors import Stored, Zlib, Zstd
from schemaless.codec.dictionaries import Dictionaries, Dictionary
from schemaless.codec.packed import Packed
from schemaless.codec.registry import JSON, MSGPACK, NONE, PACKED, ZLIB, ZSTD
from schemaless.codec.serializers import JSONText, MessagePack, Payload


class PayloadSerializer(Protocol):
    """What stands behind a ``Serializer``."""

    def dumps(self, document: JSONDocument) -> bytes:
        """Return a document's payload, or raise ``NotHeld`` where there is none."""

    def dumps_model(self, document: JSONDocument) -> bytes:
        """Return the payload of what a parser returned: known to be in the data model."""

    def loads(self, payload: Payload, depth: int, values: int = ...) -> JSONDocument:
        """Return a payload's document."""


class PayloadCompressor(Protocol):
    """What stands behind a ``Compressor``."""

    def compress(self, payload: Payload, level: int | None, dictionary: Dictionary | None = None) -> Payload:
        """Return a payload compressed."""

    def decompress(self, compressed: Payload, max_bytes: int, dictionaries: Dictionaries = ...) -> Payload:
        """Return what was compressed, at most ``max_bytes`` of it."""


class Engine:
    """Every serializer and compressor, by id.

    Results and refusals of all engines are the same; only speed and compressed bytes differ.

    Attributes:
        fast: whether the packages of the ``[fast]`` extra are used, each where it is present.
    """

    def __init__(self, *, fast: bool) -> None:
        self.fast = fast
        self.json = JSONText(fast=fast)
        self.msgpack = MessagePack(fast=fast)
        self.packed = Packed(fast=fast)
        self.serializers: dict[int, PayloadSerializer] = {
            JSON.id: self.json,
            MSGPACK.id: self.msgpack,
            PACKED.id: self.packed,
        }
        self.compressors: dict[int, PayloadCompressor] = {NONE.id: Stored(), ZLIB.id: Zlib(fast=fast), ZSTD.id: Zstd()}


REFERENCE: Final = Engine(fast=False)
"""Stock ``msgpack``, ``json`` and ``zlib``, and packed in pure Python."""

ENGINE: Final = REFERENCE if os.environ.get("SCHEMALESS_FAST") == "0" else Engine(fast=True)
"""What every call uses unless told; ``SCHEMALESS_FAST=0`` in the environment, at import, makes it ``REFERENCE``."""
