"""Which serializers and compressors exist, by stored id and by name, and the codecs that they make.

To add one is to write its class and to enter it here: ``engine`` makes it, ``envelope`` and ``recode`` ask it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from schemaless.codec.compressors import Compressor, Uncompressed, Zlib, Zstd
from schemaless.codec.dictionaries import NO_DICTIONARIES, Dictionaries, Dictionary
from schemaless.codec.json_text import JSONText
from schemaless.codec.messagepack import MessagePack
from schemaless.codec.packed import Packed
from schemaless.codec.serializers import Serializer
from schemaless.errors import InvalidInput, UnknownCodec

RESERVED_ID: Final = 15
"""This id marks an extended header, which no version writes yet."""

COMPRESS_MIN_BYTES: Final = 64
"""Shorter payloads are stored uncompressed: zlib alone adds 6 bytes, and there is nothing yet to refer back to."""


_Kind = TypeVar("_Kind", type[Serializer], type[Compressor])


class Registry(Generic[_Kind]):
    """The classes of the serializers, or of the compressors, by id and by name."""

    def __init__(self, noun: str) -> None:
        self._noun = noun
        self._by_id: dict[int, _Kind] = {}
        self._by_name: dict[str, _Kind] = {}

    def add(self, kind: _Kind) -> _Kind:
        """Enter ``kind`` and return it.

        Raises:
            ValueError: its id or its name is taken, or its id is not 0 to 14.
        """
        if not 0 <= kind.id < RESERVED_ID:
            raise ValueError(f"{self._noun} {kind.name!r} has id {kind.id}; ids are 0 to {RESERVED_ID - 1}")
        if kind.id in self._by_id:
            raise ValueError(
                f"{self._noun} id {kind.id} is {self._by_id[kind.id].name!r}, {kind.name!r} cannot have it"
            )
        if kind.name in self._by_name:
            raise ValueError(f"{self._noun} {kind.name!r} exists already, under id {self._by_name[kind.name].id}")
        self._by_id[kind.id] = kind
        self._by_name[kind.name] = kind
        return kind

    def get(self, kind_id: int) -> _Kind | None:
        """Return what stands under an id, or None."""
        return self._by_id.get(kind_id)

    def __iter__(self) -> Iterator[_Kind]:
        return iter(self._by_id.values())


SERIALIZERS: Final = Registry[type[Serializer]]("serializer")
COMPRESSORS: Final = Registry[type[Compressor]]("compressor")

JSON: Final = SERIALIZERS.add(JSONText)
MSGPACK: Final = SERIALIZERS.add(MessagePack)
PACKED: Final = SERIALIZERS.add(Packed)
NONE: Final = COMPRESSORS.add(Uncompressed)
ZLIB: Final = COMPRESSORS.add(Zlib)
ZSTD: Final = COMPRESSORS.add(Zstd)


@dataclass(frozen=True, slots=True)
class Codec:
    """A serializer and a compressor: what a body is asked to be written in.

    Attributes:
        serializer: what a document becomes a payload by.
        compressor: what a payload becomes shorter by.
        level: the compressor's level, or None for its own.
        compress_min_bytes: payloads shorter than this are stored uncompressed.
        dictionary: what zstd compresses with; None for nothing, and for other compressors.
        enveloped: whether the payload stands in an envelope; False for ``LEGACY`` alone.

    Raises:
        InvalidInput: the compressor has no such level, or takes no dictionary.
    """

    serializer: type[Serializer]
    compressor: type[Compressor]
    level: int | None = None
    compress_min_bytes: int = COMPRESS_MIN_BYTES
    dictionary: Dictionary | None = None
    enveloped: bool = True

    def __post_init__(self) -> None:
        levels = self.compressor.levels
        if self.level is not None and self.level not in levels:
            among = f"levels {levels[0]} to {levels[-1]}" if levels else "no levels"
            raise InvalidInput(f"{self.name} has {among}, got {self.level}")
        if self.dictionary is not None:
            self.check_takes_dictionary()

    def check_takes_dictionary(self) -> None:
        """Raise unless its compressor takes a dictionary.

        Raises:
            InvalidInput: it takes none.
        """
        if not self.compressor.takes_dictionary:
            raise InvalidInput(f"{self.name} takes no dictionary; zstd does")

    @property
    def own_dictionaries(self) -> Dictionaries:
        """What it takes to read bodies that this codec writes."""
        return NO_DICTIONARIES if self.dictionary is None else self.dictionary

    @property
    def name(self) -> str:
        """``msgpack+zlib``, ``json+none``, ...; ``legacy`` for bare JSON text. It has no level and no dictionary."""
        return f"{self.serializer.name}+{self.compressor.name}" if self.enveloped else "legacy"

    @property
    def is_binary(self) -> bool:
        """Whether it has a serializer other than JSON text, which stands in where that one cannot hold a document."""
        return not self.serializer.is_text

    @property
    def format_byte(self) -> int | None:
        """The serializer in the high four bits, the compressor in the low four; None for ``LEGACY``."""
        return self.serializer.id << 4 | self.compressor.id if self.enveloped else None

    def __str__(self) -> str:
        return self.name if self.dictionary is None else f"{self.name} with dictionary {self.dictionary.id}"


DEFAULT: Final = Codec(MSGPACK, ZLIB, 6)
LEGACY: Final = Codec(JSON, NONE, enveloped=False)
"""Bare JSON text has no envelope and no checksum, and is all that readers older than the envelope understand."""

_CODECS: Final = {
    codec.name: codec
    for codec in (
        DEFAULT,
        *(
            Codec(serializer, compressor, compressor.level)
            for serializer in sorted(SERIALIZERS, key=lambda kind: kind is not DEFAULT.serializer)
            for compressor in COMPRESSORS
        ),
        LEGACY,
    )
}


def codec_names() -> list[str]:
    """Return the name of every codec, the default first and ``legacy`` last."""
    return list(_CODECS)


def codec_named(name: str) -> Codec:
    """Return the codec of that name, at its own level.

    Raises:
        UnknownCodec: there is none; the message lists those that are.
    """
    try:
        return _CODECS[name]
    except KeyError:
        raise UnknownCodec(f"no codec is called {name!r}; take one of {', '.join(_CODECS)}") from None
