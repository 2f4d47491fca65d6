"""Instances of all registered serializers and compressors: one engine with the ``[fast]`` extra, one without."""

from __future__ import annotations

from typing import Final, TypeVar

from schemaless.codec.compressors import Compressor
from schemaless.codec.fast import IS_WANTED
from schemaless.codec.json_text import JSONText
from schemaless.codec.messagepack import MessagePack
from schemaless.codec.packed import Packed
from schemaless.codec.registry import COMPRESSORS, SERIALIZERS
from schemaless.codec.serializers import Serializer

_One = TypeVar("_One", bound=Serializer)


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
        self.serializers: dict[int, Serializer] = {kind.id: kind(fast=fast) for kind in SERIALIZERS}
        self.compressors: dict[int, Compressor] = {kind.id: kind(fast=fast) for kind in COMPRESSORS}
        self.json: JSONText = self._only(JSONText)
        self.msgpack: MessagePack = self._only(MessagePack)
        self.packed: Packed = self._only(Packed)

    def _only(self, kind: type[_One]) -> _One:
        serializer = self.serializers[kind.id]
        assert isinstance(serializer, kind)
        return serializer


REFERENCE: Final = Engine(fast=False)
"""Reference engine: stock ``msgpack``, ``json`` and ``zlib``, and packed in pure Python."""

ENGINE: Final = Engine(fast=True) if IS_WANTED else REFERENCE
"""Default engine."""
