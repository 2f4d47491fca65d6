"""Registry of serializers and compressors, by stored id and by name, and of the codecs that combine them.

To add one, write its class and add it here, a serializer in ``engine`` too; ``envelope`` and ``recode`` look it up.
"""

from __future__ import annotations

from typing import Final

from schemaless.codec.compressors import Codec as Codec
from schemaless.codec.compressors import Compressor, Uncompressed, Zlib, Zstd
from schemaless.codec.json_text import JSONText
from schemaless.codec.messagepack import MessagePack
from schemaless.codec.packed import Packed
from schemaless.codec.serializers import Serializer
from schemaless.errors import UnknownCodec

# stored; ids are never renumbered or given to another class, and 15 is reserved for an extended header
SERIALIZERS: Final[dict[int, type[Serializer]]] = {kind.id: kind for kind in (JSONText, MessagePack, Packed)}
"""Serializers by id."""

COMPRESSORS: Final[dict[int, type[Compressor]]] = {kind.id: kind for kind in (Uncompressed, Zlib, Zstd)}
"""Compressors by id."""

JSON, MSGPACK, PACKED = JSONText, MessagePack, Packed
NONE, ZLIB, ZSTD = Uncompressed, Zlib, Zstd

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
