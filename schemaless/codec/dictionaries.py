"""zstd dictionaries: sample content shared by compressor and decompressor, so that short bodies compress well.

A dictionary begins with its id, and every frame compressed with it names that id, so a body states which dictionary it
needs. Lookup goes through the ``Dictionaries`` protocol; ``training`` trains dictionaries.
"""

from __future__ import annotations

import hashlib
import threading
from typing import Any, Final, Protocol

import zstandard

from schemaless.errors import DictionaryDamaged, UnknownDictionary

# stored; never change
FIRST_ID: Final = 32_768
"""Lowest id; zstd's format reserves lower ones for a public registry."""
LAST_ID: Final = (1 << 16) - 1
"""Highest id; a body stores it in two bytes."""

MAX_DICTIONARY_BYTES: Final = 4 << 20
"""Maximum size of a dictionary in bytes; every reading process keeps its dictionaries in memory."""

_MAGIC: Final = b"\x37\xa4\x30\xec"
_HEAD_BYTES: Final = 8


class ZstdObjects:
    """Compressors and decompressors of ``zstandard``, which may not be shared between threads: one of each per thread.

    Args:
        data: the dictionary, if any. Frames compressed with one have its id and a checksum: the envelope's checksum
            does not cover the dictionary, and the frame's detects a different dictionary with the same id.
    """

    __slots__ = ("_data", "_local")

    def __init__(self, data: zstandard.ZstdCompressionDict | None = None) -> None:
        self._data = data
        self._local = threading.local()

    def compressor(self, level: int, table_bits: int | None = None) -> zstandard.ZstdCompressor:
        """Return this thread's compressor.

        Args:
            level: zstd compression level.
            table_bits: log2 of the number of entries in the match tables; None for the level's default.
        """
        compressors: dict[tuple[int, int | None], zstandard.ZstdCompressor]
        compressors = self._local.__dict__.setdefault("compressors", {})
        compressor = compressors.get((level, table_bits))
        if compressor is None:
            has = self._data is not None
            frame: dict[str, Any] = {"write_checksum": has, "write_content_size": True, "write_dict_id": has}
            options: dict[str, Any] = {"level": level, **frame}
            if self._data is not None and table_bits is not None:
                size = len(self._data)
                frame |= {"dict_size": size, "hash_log": table_bits, "chain_log": table_bits}
                options = {"compression_params": zstandard.ZstdCompressionParameters.from_level(level, **frame)}
            compressor = compressors[level, table_bits] = zstandard.ZstdCompressor(dict_data=self._data, **options)
        return compressor

    def decompressor(self) -> zstandard.ZstdDecompressor:
        """Return this thread's decompressor."""
        decompressor: zstandard.ZstdDecompressor | None = self._local.__dict__.get("decompressor")
        if decompressor is None:
            decompressor = self._local.decompressor = zstandard.ZstdDecompressor(dict_data=self._data)
        return decompressor


class Dictionary:
    """A zstd dictionary. Safe to share between threads and across ``fork``.

    Attributes:
        id: the id in the dictionary's header, ``FIRST_ID`` to ``LAST_ID``.
        content: the bytes as written by ``zstd --train`` or ``zstandard``.
        data: the dictionary as a ``zstandard`` object.
        zstd: compressors and decompressors that use it.
    """

    __slots__ = ("content", "data", "id", "zstd")

    def __init__(self, content: bytes) -> None:
        """Load a dictionary from its bytes.

        Raises:
            DictionaryDamaged: the bytes are not a zstd dictionary, or its size or id is outside the valid range.
        """
        if content[:4] != _MAGIC or not _HEAD_BYTES < len(content) <= MAX_DICTIONARY_BYTES:
            raise DictionaryDamaged(
                f"not a zstd dictionary, or longer than {MAX_DICTIONARY_BYTES} bytes: got {len(content)} bytes"
            )
        self.id: Final = int.from_bytes(content[4:_HEAD_BYTES], "little")
        if not FIRST_ID <= self.id <= LAST_ID:
            raise DictionaryDamaged(f"a zstd dictionary has id {self.id}; ids must be from {FIRST_ID} to {LAST_ID}")
        self.content: Final = content
        full = zstandard.DICT_TYPE_FULLDICT
        self.data: zstandard.ZstdCompressionDict = zstandard.ZstdCompressionDict(content, dict_type=full)
        try:
            zstandard.ZstdCompressor(level=1, dict_data=self.data).compress(b"")
        except zstandard.ZstdError:
            raise DictionaryDamaged(f"zstd refuses the {len(content)} bytes of dictionary {self.id}") from None
        self.zstd: Final = ZstdObjects(self.data)

    @property
    def digest(self) -> bytes:
        """SHA-256 of the content."""
        return hashlib.sha256(self.content).digest()

    def get(self, dictionary_id: int) -> Dictionary:
        """Return this dictionary, so that it can serve as a ``Dictionaries`` with one entry.

        Raises:
            UnknownDictionary: ``dictionary_id`` is not the id of this dictionary.
        """
        if dictionary_id != self.id:
            raise not_at_hand(dictionary_id)
        return self

    def renumbered(self, dictionary_id: int) -> Dictionary:
        """Return a copy of this dictionary with another id, to match the id that a frame names."""
        head = _MAGIC + dictionary_id.to_bytes(_HEAD_BYTES - len(_MAGIC), "little")
        return Dictionary(head + self.content[_HEAD_BYTES:])

    def __eq__(self, other: object) -> bool:
        return self.content == other.content if isinstance(other, Dictionary) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.content)

    def __repr__(self) -> str:
        return f"Dictionary({self.id}, {len(self.content)} bytes)"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.content,)


class Dictionaries(Protocol):
    """Lookup of dictionaries by id."""

    def get(self, dictionary_id: int) -> Dictionary:
        """Return a dictionary.

        Raises:
            UnknownDictionary: no dictionary has that id.
            DictionaryDamaged: the dictionary's bytes have changed.
        """


class _NoDictionaries:
    def get(self, dictionary_id: int) -> Dictionary:
        raise not_at_hand(dictionary_id)


NO_DICTIONARIES: Final = _NoDictionaries()


def not_at_hand(dictionary_id: int) -> UnknownDictionary:
    """Return the error for a dictionary that is not available."""
    return UnknownDictionary(f"compressed with zstd dictionary {dictionary_id}, which is not available")
