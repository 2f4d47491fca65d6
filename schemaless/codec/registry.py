"""Which serializers and compressors exist, under which stored ids, and the codecs that they make.

Names and numbers only: ``serializers`` and ``compressors`` hold the work, ``envelope`` the bytes around it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from schemaless.codec.dictionaries import NO_DICTIONARIES, Dictionaries, Dictionary
from schemaless.errors import InvalidInput, UnknownCodec

RESERVED_ID: Final = 15
"""Marks an extended header, which no version writes yet."""

COMPRESS_MIN_BYTES: Final = 64
"""Shorter payloads are stored uncompressed: zlib alone adds 6 bytes, and there is nothing yet to refer back to."""


@dataclass(frozen=True, slots=True)
class Serializer:
    """How a document becomes a payload.

    Attributes:
        id: the high four bits of the format byte, 0 to 14.
        name: the first half of a codec's name.
    """

    id: int
    name: str


@dataclass(frozen=True, slots=True)
class Compressor:
    """How a payload becomes shorter.

    Attributes:
        id: the low four bits of the format byte, 0 to 14.
        name: the second half of a codec's name.
        level: its level where a codec does not say, or None where it has none.
        levels: those that it has.
    """

    id: int
    name: str
    level: int | None = None
    levels: range = range(0)


_Kind = TypeVar("_Kind", Serializer, Compressor)


class Registry(Generic[_Kind]):
    """The serializers, or the compressors, by id and by name."""

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


SERIALIZERS: Final = Registry[Serializer]("serializer")
COMPRESSORS: Final = Registry[Compressor]("compressor")

# stored; never renumber
JSON: Final = SERIALIZERS.add(Serializer(0, "json"))
MSGPACK: Final = SERIALIZERS.add(Serializer(1, "msgpack"))
PACKED: Final = SERIALIZERS.add(Serializer(2, "packed"))
NONE: Final = COMPRESSORS.add(Compressor(0, "none"))
ZLIB: Final = COMPRESSORS.add(Compressor(1, "zlib", level=6, levels=range(1, 10)))
ZSTD: Final = COMPRESSORS.add(Compressor(2, "zstd", level=3, levels=range(1, 23)))


@dataclass(frozen=True, slots=True)
class Codec:
    """A serializer and a compressor: what a body is asked to be written in.

    Attributes:
        serializer: None for ``LEGACY``.
        compressor: ``NONE`` for ``LEGACY``.
        level: the compressor's level, or None for its own.
        compress_min_bytes: payloads shorter than this are stored uncompressed.
        dictionary: what zstd compresses with; None for nothing, and for other compressors.

    Raises:
        InvalidInput: the compressor has no such level, or takes no dictionary.
    """

    serializer: Serializer | None
    compressor: Compressor
    level: int | None = None
    compress_min_bytes: int = COMPRESS_MIN_BYTES
    dictionary: Dictionary | None = None

    def __post_init__(self) -> None:
        levels = self.compressor.levels
        if self.level is not None and self.level not in levels:
            among = f"levels {levels[0]} to {levels[-1]}" if levels else "no levels"
            raise InvalidInput(f"{self.name} has {among}, got {self.level}")
        if self.dictionary is not None and self.compressor != ZSTD:
            raise InvalidInput(f"{self.name} takes no dictionary; zstd does")

    @property
    def own_dictionaries(self) -> Dictionaries:
        """What it takes to read bodies that this codec writes."""
        return NO_DICTIONARIES if self.dictionary is None else self.dictionary

    @property
    def name(self) -> str:
        """``msgpack+zlib``, ``json+none``, ...; ``legacy`` for bare JSON text. No level, no dictionary."""
        return "legacy" if self.serializer is None else f"{self.serializer.name}+{self.compressor.name}"

    @property
    def is_binary(self) -> bool:
        """Whether it has a serializer other than JSON text, which stands in where that one cannot hold a document."""
        return self.serializer is not None and self.serializer.id != JSON.id

    @property
    def serializer_id(self) -> int:
        """The id of its serializer; that of JSON for ``LEGACY``."""
        return JSON.id if self.serializer is None else self.serializer.id

    @property
    def format_byte(self) -> int | None:
        """The serializer in the high four bits, the compressor in the low four; None for ``LEGACY``."""
        return None if self.serializer is None else self.serializer.id << 4 | self.compressor.id

    def __str__(self) -> str:
        return self.name if self.dictionary is None else f"{self.name} with dictionary {self.dictionary.id}"


DEFAULT: Final = Codec(MSGPACK, ZLIB, 6)
LEGACY: Final = Codec(None, NONE)
"""Bare JSON text without an envelope: no checksum, and all that readers older than the envelope understand."""

_CODECS: Final = {
    codec.name: codec
    for codec in (
        DEFAULT,
        *(
            Codec(serializer, compressor, compressor.level)
            for serializer in (MSGPACK, JSON, PACKED)
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
