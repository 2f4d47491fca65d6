"""Registry of serializers and compressors, by stored id and by name, and of the codecs that combine them.

To add one, write its class and register it here. ``engine`` instantiates it; ``envelope`` and ``recode`` look it up.
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
"""Id reserved for an extended header, which no version writes yet."""

COMPRESS_MIN_BYTES: Final = 64
"""Minimum payload size for compression, in bytes. zlib adds 6 bytes, and short payloads have no repetition to use."""


_Kind = TypeVar("_Kind", type[Serializer], type[Compressor])


class Registry(Generic[_Kind]):
    """Serializer or compressor classes by id and by name."""

    def __init__(self, noun: str) -> None:
        self._noun = noun
        self._by_id: dict[int, _Kind] = {}
        self._by_name: dict[str, _Kind] = {}

    def add(self, kind: _Kind) -> _Kind:
        """Register ``kind`` and return it.

        Raises:
            ValueError: the id or name is taken, or the id is not 0 to 14.
        """
        if not 0 <= kind.id < RESERVED_ID:
            raise ValueError(f"{self._noun} {kind.name!r} has id {kind.id}; ids are 0 to {RESERVED_ID - 1}")
        if kind.id in self._by_id:
            raise ValueError(
                f"{self._noun} id {kind.id} is {self._by_id[kind.id].name!r}; {kind.name!r} cannot have it"
            )
        if kind.name in self._by_name:
            raise ValueError(f"{self._noun} {kind.name!r} exists already, under id {self._by_name[kind.name].id}")
        self._by_id[kind.id] = kind
        self._by_name[kind.name] = kind
        return kind

    def get(self, kind_id: int) -> _Kind | None:
        """Return the class registered under an id, or None."""
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
    """A serializer and a compressor to write bodies with.

    Attributes:
        serializer: the class that turns documents into payloads.
        compressor: the class that compresses payloads.
        level: the compression level, or None for the compressor's default.
        compress_min_bytes: payloads shorter than this are stored uncompressed.
        dictionary: the dictionary that zstd compresses with, if any.
        enveloped: whether the payload is wrapped in an envelope; False only for ``LEGACY``.

    Raises:
        InvalidInput: the compressor has no such level or takes no dictionary.
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
        """Check that the compressor takes a dictionary.

        Raises:
            InvalidInput: the compressor takes none.
        """
        if not self.compressor.takes_dictionary:
            raise InvalidInput(f"codec {self.name} does not take a dictionary; only codecs with zstd do")

    @property
    def own_dictionaries(self) -> Dictionaries:
        """Dictionaries needed to read the bodies that this codec writes."""
        return NO_DICTIONARIES if self.dictionary is None else self.dictionary

    @property
    def name(self) -> str:
        """Name without level and dictionary: ``msgpack+zlib``, ``json+none``, ..., or ``legacy`` for bare JSON text."""
        return f"{self.serializer.name}+{self.compressor.name}" if self.enveloped else "legacy"

    @property
    def is_binary(self) -> bool:
        """Whether the serializer is a binary one; JSON text is then the fallback for documents it cannot represent."""
        return not self.serializer.is_text

    @property
    def format_byte(self) -> int | None:
        """Serializer id in the high four bits, compressor id in the low four; None for ``LEGACY``."""
        return self.serializer.id << 4 | self.compressor.id if self.enveloped else None

    def __str__(self) -> str:
        return self.name if self.dictionary is None else f"{self.name} with dictionary {self.dictionary.id}"


DEFAULT: Final = Codec(MSGPACK, ZLIB, 6)
LEGACY: Final = Codec(JSON, NONE, enveloped=False)
"""Bare JSON text, without envelope or checksum; the only format that readers older than the envelope understand."""

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
    """Return the codec of that name, at its default level.

    Raises:
        UnknownCodec: no codec has that name; the message lists the valid ones.
    """
    try:
        return _CODECS[name]
    except KeyError:
        raise UnknownCodec(f"no codec is called {name!r}; use one of {', '.join(_CODECS)}") from None
