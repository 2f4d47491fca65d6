"""Instances of all registered serializers and compressors: one engine with the ``[fast]`` extra, one without."""

from __future__ import annotations

from typing import Final

from schemaless.codec.compressors import Compressor
from schemaless.codec.fast import IS_WANTED
from schemaless.codec.json_text import JSONText
from schemaless.codec.messagepack import MessagePack
from schemaless.codec.packed import Packed
from schemaless.codec.registry import COMPRESSORS
from schemaless.codec.serializers import Serializer


class Engine:
    """One instance of every serializer and compressor.

    All engines return the same results and raise the same errors; only speed and compressed bytes differ.

    Attributes:
        fast: whether the installed packages of the ``[fast]`` extra are used.
        serializers: all serializers, by id.
        compressors: all compressors, by id.
        json: the serializer for legacy bodies, and the fallback of the other serializers.
        msgpack: the serializer used to compare documents.
        packed: the serializer with a native implementation.
    """

    def __init__(self, *, fast: bool) -> None:
        self.fast = fast
        self.json: JSONText = JSONText(fast=fast)
        self.msgpack: MessagePack = MessagePack(fast=fast)
        self.packed: Packed = Packed(fast=fast)
        self.serializers: dict[int, Serializer] = {kind.id: kind for kind in (self.json, self.msgpack, self.packed)}
        self.compressors: dict[int, Compressor] = {number: kind(fast=fast) for number, kind in COMPRESSORS.items()}


REFERENCE: Final = Engine(fast=False)
"""Reference engine: stock ``msgpack``, ``json`` and ``zlib``, and packed in pure Python."""

ENGINE: Final = Engine(fast=True) if IS_WANTED else REFERENCE
"""Default engine."""
