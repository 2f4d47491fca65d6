"""Codecs, and their compressors: none, zlib and zstd.

A compressor checks that nothing follows the stream, and limits the size of the output.

``zlib`` is the reference. If installed, the native extension, built on libdeflate, is used, but only for streams that
``zlib`` reads the same way.
"""

from __future__ import annotations

import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Final

import zstandard

from schemaless.codec.dictionaries import NO_DICTIONARIES, Dictionaries, Dictionary, ZstdObjects
from schemaless.codec.fast import optional
from schemaless.codec.serializers import Payload, Serializer
from schemaless.errors import (
    DecodedSizeExceeded,
    DictionaryDamaged,
    InvalidInput,
    MalformedPayload,
    NotCanonical,
    TrailingBytes,
    TruncatedBody,
)

COMPRESS_MIN_BYTES: Final = 64
"""Minimum payload size for compression, in bytes. zlib adds 6 bytes, and short payloads have no repetition to use."""

_NATIVE_MAX_BYTES: Final = 1 << 22
"""Largest payload that the native extension inflates. ``zlib`` inflates larger ones, growing its buffer gradually."""

_ZLIB_NO_MEMORY: Final = "Error -4 "
"""Start of the text of a ``zlib.error`` for a failed allocation (Z_MEM_ERROR)."""

_ZSTD_MAGIC: Final = b"\x28\xb5\x2f\xfd"
_ZSTD_NO_MEMORY: Final = "not enough memory"
"""Part of the text of a ``zstandard.ZstdError`` for a failed allocation."""

_ZSTD_SIZE_UNKNOWN: Final = (1 << 64) - 1
_ZSTD_PLAUSIBLE_RATIO: Final = 64
_ZSTD_STEP_BYTES: Final = 256
"""Input bytes per step for a frame that states an implausible size. A step can inflate to 8 MiB (32 KiB per byte)."""


class Compressor(ABC):
    """Base class of compressors. Instances of one subclass differ only in speed.

    Attributes:
        id: the low four bits of the format byte, 0 to 14. It is stored and must never change.
        name: the second half of a codec's name.
        level: default compression level, or None if the compressor has no levels.
        levels: valid compression levels.
        takes_dictionary: whether it takes a ``Dictionary``, which its output then names.
    """

    id: ClassVar[int]
    name: ClassVar[str]
    level: ClassVar[int | None] = None
    levels: ClassVar[range] = range(0)
    takes_dictionary: ClassVar[bool] = False

    @abstractmethod
    def __init__(self, *, fast: bool) -> None:
        """Use the installed packages of the ``[fast]`` extra if ``fast``, and none otherwise."""

    @abstractmethod
    def compress(self, payload: Payload, codec: Codec) -> Payload:
        """Compress a payload with a codec's level and dictionary.

        With a dictionary at the default level, zstd's match tables have the size that suits the codec's serializer; see
        ``Serializer.table_bits``.
        """

    @abstractmethod
    def decompress(self, compressed: Payload, max_bytes: int, dictionaries: Dictionaries = NO_DICTIONARIES) -> Payload:
        """Return the original payload.

        Raises:
            DecodedSizeExceeded: the payload is longer than ``max_bytes``.
            CorruptBody: the compressed bytes are damaged (a more specific subclass says how).
        """

    @classmethod
    def dictionary_id(cls, compressed: Payload | memoryview) -> int | None:
        """Return the id of the dictionary that compressed bytes name, or None.

        Raises:
            CorruptBody: the bytes are not in this compressor's format (a subclass says why).
        """
        return None

    @classmethod
    def renumbered(cls, compressed: bytes, dictionary_id: int) -> bytes:
        """Return compressed bytes with another dictionary id; bytes that name no dictionary are returned unchanged."""
        return compressed

    def check_canonical(self, compressed: Payload, payload_bytes: int) -> None:
        """Check that compressed bytes are what a writer would store for a payload of ``payload_bytes`` bytes.

        Raises:
            NotCanonical: a writer would store other bytes.
        """
        if len(compressed) >= payload_bytes:
            raise NotCanonical(
                f"compressed to {len(compressed)} bytes from {payload_bytes}; a writer would store the "
                f"payload uncompressed"
            )


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


class Uncompressed(Compressor):
    """No compression."""

    id = 0  # stored; never renumber
    name = "none"

    def __init__(self, *, fast: bool) -> None:
        """Ignore ``fast``: there is nothing to speed up."""

    def compress(self, payload: Payload, codec: Codec) -> Payload:
        """Return ``payload`` itself."""
        return payload

    def decompress(self, compressed: Payload, max_bytes: int, dictionaries: Dictionaries = NO_DICTIONARIES) -> Payload:
        """Return ``compressed`` itself."""
        if len(compressed) > max_bytes:
            raise too_large(max_bytes)
        return compressed

    def check_canonical(self, compressed: Payload, payload_bytes: int) -> None:
        """Accept everything: the stored bytes are the payload."""


class Zlib(Compressor):
    """zlib (RFC 1950): one stream that ends with its Adler-32."""

    id = 1  # stored; never renumber
    name = "zlib"
    level: ClassVar[int] = 6
    levels: ClassVar[range] = range(1, 10)

    def __init__(self, *, fast: bool) -> None:
        """Use the native extension if ``fast`` is set and it is installed; its versions before 0.3 cannot compress."""
        native = optional("schemaless_packed") if fast else None
        self._inflate: Callable[[Payload, int], bytes | None] | None = getattr(native, "inflate", None)
        self._compress: Callable[[Payload, int], bytes] = getattr(native, "deflate", zlib.compress)

    def compress(self, payload: Payload, codec: Codec) -> Payload:
        """Return a zlib stream; ``level`` is 1 to 9, and 6 by default."""
        return self._compress(payload, self.level if codec.level is None else codec.level)

    def decompress(self, compressed: Payload, max_bytes: int, dictionaries: Dictionaries = NO_DICTIONARIES) -> Payload:
        """Inflate a stream.

        Raises:
            TruncatedBody: the stream is incomplete.
            TrailingBytes: bytes follow the end of the stream.
            DecodedSizeExceeded: the stream inflates to more than ``max_bytes``.
            MalformedPayload: zlib rejects the stream.
        """
        if self._inflate is not None:
            inflated = self._inflate(compressed, min(max_bytes, _NATIVE_MAX_BYTES))
            if inflated is not None:
                return inflated
        return _inflate(compressed, max_bytes)

    def check_canonical(self, compressed: Payload, payload_bytes: int) -> None:
        """Check that a stream is shorter than its payload and has a 32 KiB window."""
        super().check_canonical(compressed, payload_bytes)
        if compressed[0] != 0x78:
            raise NotCanonical(f"the zlib stream begins with 0x{compressed[0]:02X}, not with 0x78")


class Zstd(Compressor):
    """zstd (RFC 8878): one frame that states its content size and the dictionary it needs, if any.

    A frame has its own checksum only with a dictionary, since the envelope's checksum does not cover dictionaries.
    """

    id = 2  # stored; never renumber
    name = "zstd"
    level: ClassVar[int] = 3
    levels: ClassVar[range] = range(1, 23)
    takes_dictionary = True

    def __init__(self, *, fast: bool) -> None:
        self._plain = ZstdObjects()

    def compress(self, payload: Payload, codec: Codec) -> bytes:
        """Return a zstd frame; ``level`` is 1 to 22, and 3 by default."""
        level = self.level if codec.level is None else codec.level
        if codec.dictionary is None:
            return _zstd_stream(self._plain.compressor(level), payload)
        table_bits = codec.serializer.table_bits if level == self.level else None
        return _zstd_stream(codec.dictionary.zstd.compressor(level, table_bits), payload)

    def decompress(self, compressed: Payload, max_bytes: int, dictionaries: Dictionaries = NO_DICTIONARIES) -> bytes:
        """Return the content of a frame.

        Raises:
            TruncatedBody: the frame is incomplete.
            TrailingBytes: bytes follow the frame, even if they are another frame.
            DecodedSizeExceeded: the content is longer than ``max_bytes``.
            UnknownDictionary: ``dictionaries`` does not have the dictionary that the frame names.
            DictionaryDamaged: the dictionary is not the one that the frame was compressed with.
            MalformedPayload: zstd rejects the frame, or it is a skippable frame.
        """
        size, dictionary_id = frame_header(compressed)
        if size is not None and size > max_bytes:
            raise too_large(max_bytes)
        dictionary = dictionaries.get(dictionary_id) if dictionary_id else None
        decompressor = (self._plain if dictionary is None else dictionary.zstd).decompressor()
        if size is not None and 0 < size <= len(compressed) * _ZSTD_PLAUSIBLE_RATIO + 65536:
            try:
                return decompressor.decompress(compressed, allow_extra_data=False)
            except zstandard.ZstdError:
                pass  # decompressing in steps words the error
        return _decompress_in_steps(compressed, max_bytes, dictionary)

    @classmethod
    def dictionary_id(cls, compressed: Payload | memoryview) -> int | None:
        """Return the id of the dictionary that a frame names, or None."""
        return frame_header(compressed)[1] or None

    @classmethod
    def renumbered(cls, compressed: bytes, dictionary_id: int) -> bytes:
        """Return a frame with another, two-byte dictionary id."""
        descriptor = compressed[4]
        start = 5 if descriptor & 0x20 else 6
        end = start + (0, 1, 2, 4)[descriptor & 3]
        head = bytes((descriptor & ~3 | 2,)) + compressed[5:start]
        return b"".join((compressed[:4], head, dictionary_id.to_bytes(2, "little"), compressed[end:]))

    def check_canonical(self, compressed: Payload, payload_bytes: int) -> None:
        """Check that a frame is shorter than its payload and states its size and, if it needs one, its dictionary."""
        super().check_canonical(compressed, payload_bytes)
        size, dictionary_id = frame_header(compressed)
        # Frame descriptor bits: length of the dictionary id, and whether there is a checksum.
        flags = 6 if dictionary_id else 0
        if size is None or compressed[4] & 0x0F != flags:
            raise NotCanonical("the zstd frame header must state the size, the dictionary if any, and nothing else")


def frame_header(compressed: Payload | memoryview) -> tuple[int | None, int]:
    """Return a zstd frame's content size (or None) and dictionary id (or 0), from its header.

    Raises:
        TruncatedBody: the header is incomplete.
        MalformedPayload: the bytes are not a zstd frame.
    """
    if compressed[:4] != _ZSTD_MAGIC:
        if len(compressed) < 4 and _ZSTD_MAGIC.startswith(bytes(compressed)):
            raise TruncatedBody("the zstd frame ends in its header")
        raise MalformedPayload("the payload is not a zstd frame")
    try:
        header = zstandard.get_frame_parameters(compressed)
    except zstandard.ZstdError as refusal:
        if "not enough data" in str(refusal):
            raise TruncatedBody("the zstd frame ends in its header") from None
        raise MalformedPayload(f"zstd refuses the payload: {refusal}") from None
    return None if header.content_size == _ZSTD_SIZE_UNKNOWN else header.content_size, header.dict_id


def _zstd_stream(compressor: zstandard.ZstdCompressor, payload: Payload) -> bytes:
    try:
        return compressor.compress(payload)
    except zstandard.ZstdError as refusal:
        if _ZSTD_NO_MEMORY not in str(refusal):
            raise
        raise MemoryError(f"zstd could not allocate memory to compress {len(payload)} bytes") from None


def _inflate(compressed: Payload, max_bytes: int) -> bytes:
    stream = zlib.decompressobj()
    try:
        inflated = stream.decompress(compressed, max_bytes + 1)
    except zlib.error as refusal:
        if str(refusal).startswith(_ZLIB_NO_MEMORY):
            raise MemoryError(f"zlib could not allocate memory to inflate {len(compressed)} bytes") from None
        raise MalformedPayload(f"zlib refuses the payload: {refusal}") from None
    if len(inflated) > max_bytes:
        raise too_large(max_bytes)
    if not stream.eof:
        raise TruncatedBody("the zlib stream is incomplete")
    if stream.unused_data:
        raise TrailingBytes(f"{len(stream.unused_data)} bytes follow the zlib stream")
    return inflated


def _decompress_in_steps(compressed: Payload, max_bytes: int, dictionary: Dictionary | None) -> bytes:
    data = None if dictionary is None else dictionary.data
    stream = zstandard.ZstdDecompressor(dict_data=data, max_window_size=max(max_bytes, 1 << 10)).decompressobj()
    pieces: list[bytes] = []
    size = 0
    for start in range(0, len(compressed), _ZSTD_STEP_BYTES):
        if stream.eof:
            raise TrailingBytes(f"{len(compressed) - start} bytes follow the zstd frame")
        try:
            piece = stream.decompress(compressed[start : start + _ZSTD_STEP_BYTES])
        except zstandard.ZstdError as refusal:
            if "too much memory" in str(refusal):
                raise too_large(max_bytes) from None
            if _ZSTD_NO_MEMORY in str(refusal):
                raise MemoryError(f"zstd could not allocate memory to decompress {len(compressed)} bytes") from None
            if dictionary is not None:
                # The envelope's checksum is correct, so the frame is intact and the dictionary is not.
                raise DictionaryDamaged(
                    f"zstd refuses the payload with dictionary {dictionary.id}, which is not the one that it was "
                    f"compressed with: {refusal}"
                ) from None
            raise MalformedPayload(f"zstd refuses the payload: {refusal}") from None
        size += len(piece)
        if size > max_bytes:
            raise too_large(max_bytes)
        pieces.append(piece)
    if not stream.eof:
        raise TruncatedBody("the zstd frame is incomplete")
    if stream.unused_data:
        raise TrailingBytes("bytes follow the zstd frame")
    return b"".join(pieces)


def too_large(max_bytes: int) -> DecodedSizeExceeded:
    """Return the error for a payload that is longer than ``max_bytes``."""
    return DecodedSizeExceeded(f"decodes to more than {max_bytes} bytes")
