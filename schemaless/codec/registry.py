"""Registry of serializers and compressors, by stored id and by name, and of the codecs that combine them.

To add one, write its class and add it here, a serializer in ``engine`` too; ``envelope`` and ``recode`` look it up.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from schemaless.codec.compressors import Compressor, Uncompressed, Zlib, Zstd
from schemaless.codec.dictionaries import NO_DICTIONARIES, Dictionaries, Dictionary
from schemaless.codec.json_text import JSONText
from schemaless.codec.messagepack import MessagePack
from schemaless.codec.packed import Packed
from schemaless.codec.serializers import Serializer
from schemaless.errors import InvalidInput, UnknownCodec

COMPRESS_MIN_BYTES: Final = 64
"""Minimum payload size for compression, in bytes. zlib adds 6 bytes, and short payloads have no repetition to use."""


# stored; ids are never renumbered or given to another class, and 15 is reserved for an extended header
SERIALIZERS: Final[dict[int, type[Serializer]]] = {kind.id: kind for kind in (JSONText, MessagePack, Packed)}
"""Serializers by id."""

COMPRESSORS: Final[dict[int, type[Compressor]]] = {kind.id: kind for kind in (Uncompressed, Zlib, Zstd)}
"""Compressors by id."""

JSON, MSGPACK, PACKED = JSONText, MessagePack, Packed
NONE, ZLIB, ZSTD = Uncompressed, Zlib, Zstd


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
            for serializer in sorted(SERIALIZERS.values(), key=lambda kind: kind is not DEFAULT.serializer)
            for compressor in COMPRESSORS.values()
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
    codec = next((codec for known, codec in _CODECS.items() if known == name), None)
    if codec is None:
        raise UnknownCodec(f"no codec is called {name!r}; use one of {', '.join(_CODECS)}")
    return codec
