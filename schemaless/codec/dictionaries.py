"""Dictionaries of zstd: bytes that compressor and decompressor both have before the first one of a body.

A dictionary's id stands in its own first bytes and in the header of each frame that was made with it, so a body says
which one it needs. Who has dictionaries at hand is a ``Dictionaries``; training is done in ``training``.
"""

from __future__ import annotations

import hashlib
import threading
from typing import Any, Final, Protocol, Self

import zstandard

from schemaless.errors import DictionaryDamaged, InvalidInput, UnknownDictionary

# stored; never change
FIRST_ID: Final = 32_768
"""No id is lower: those below are kept for a public register, as zstd's format has it."""
LAST_ID: Final = (1 << 16) - 1
"""No id is higher: each body that names a dictionary has two bytes for it."""

MAX_DICTIONARY_BYTES: Final = 4 << 20
"""No dictionary is longer; every process that reads has it in memory."""

_MAGIC: Final = b"\x37\xa4\x30\xec"
_HEAD_BYTES: Final = 8


class Dictionary:
    """A dictionary of zstd, with its id in its bytes. Threads may share it, and so may processes across ``fork``.

    Attributes:
        id: ``FIRST_ID`` to ``LAST_ID``.
        content: the bytes that ``zstd --train`` and ``zstandard`` make.
        data: the same as ``zstandard`` takes it.
    """

    __slots__ = ("_local", "content", "data", "id")

    def __init__(self, content: bytes) -> None:
        """Take a dictionary.

        Raises:
            DictionaryDamaged: these bytes are none, or none with an id that a stored body may name.
        """
        if content[:4] != _MAGIC or not _HEAD_BYTES < len(content) <= MAX_DICTIONARY_BYTES:
            raise DictionaryDamaged(f"{len(content)} bytes are no zstd dictionary of at most {MAX_DICTIONARY_BYTES}")
        self.id: Final = int.from_bytes(content[4:_HEAD_BYTES], "little")
        if not FIRST_ID <= self.id <= LAST_ID:
            raise DictionaryDamaged(f"a zstd dictionary has id {self.id}; ids here are {FIRST_ID} to {LAST_ID}")
        self.content: Final = content
        self.data = zstandard.ZstdCompressionDict(content, dict_type=zstandard.DICT_TYPE_FULLDICT)
        try:
            zstandard.ZstdCompressor(level=1, dict_data=self.data).compress(b"")
        except zstandard.ZstdError:
            raise DictionaryDamaged(f"zstd refuses the {len(content)} bytes of dictionary {self.id}") from None
        self._local = threading.local()  # zstandard's objects may not be shared between threads

    @property
    def digest(self) -> bytes:
        """The SHA-256 of its bytes."""
        return hashlib.sha256(self.content).digest()

    def get(self, dictionary_id: int) -> Dictionary:
        """Return itself: it is a ``Dictionaries`` that has one alone.

        Raises:
            UnknownDictionary: another one is asked for.
        """
        if dictionary_id != self.id:
            raise not_at_hand(dictionary_id)
        return self

    def renumbered(self, dictionary_id: int) -> Dictionary:
        """Return the same dictionary under another id: a body needs the one whose id its frame names."""
        head = _MAGIC + dictionary_id.to_bytes(_HEAD_BYTES - len(_MAGIC), "little")
        return Dictionary(head + self.content[_HEAD_BYTES:])

    def compressor(self, level: int, table_bits: int | None = None) -> zstandard.ZstdCompressor:
        """Return this thread's compressor: frames name the dictionary, and have a checksum of their content.

        The envelope's checksum does not cover the dictionary; this one tells when another has its id.

        Args:
            level: zstd's.
            table_bits: the tables of places in the dictionary have 2 ** this entries each; None for what the level
                has for a dictionary of this length.
        """
        compressors: dict[tuple[int, int | None], zstandard.ZstdCompressor]
        compressors = self._local.__dict__.setdefault("compressors", {})
        compressor = compressors.get((level, table_bits))
        if compressor is None:
            if table_bits is None:
                compressor = zstandard.ZstdCompressor(
                    level=level, dict_data=self.data, write_checksum=True, write_content_size=True, write_dict_id=True
                )
            else:
                parameters = zstandard.ZstdCompressionParameters.from_level(
                    level,
                    dict_size=len(self.content),
                    hash_log=table_bits,
                    chain_log=table_bits,
                    write_checksum=True,
                    write_content_size=True,
                    write_dict_id=True,
                )
                compressor = zstandard.ZstdCompressor(dict_data=self.data, compression_params=parameters)
            compressors[level, table_bits] = compressor
        return compressor

    def decompressor(self) -> zstandard.ZstdDecompressor:
        """Return this thread's decompressor."""
        decompressor: zstandard.ZstdDecompressor | None = self._local.__dict__.get("decompressor")
        if decompressor is None:
            decompressor = self._local.decompressor = zstandard.ZstdDecompressor(dict_data=self.data)
        return decompressor

    def __eq__(self, other: object) -> bool:
        return self.content == other.content if isinstance(other, Dictionary) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.content)

    def __repr__(self) -> str:
        return f"Dictionary({self.id}, {len(self.content)} bytes)"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.content,)


class Dictionaries(Protocol):
    """Whoever has dictionaries at hand."""

    def get(self, dictionary_id: int) -> Dictionary:
        """Return a dictionary.

        Raises:
            UnknownDictionary: there is none with that id.
            DictionaryDamaged: it is there, but not as it was.
        """


class DictionarySet:
    """Some dictionaries, by id."""

    def __init__(self, *dictionaries: Dictionary) -> None:
        self._by_id = {dictionary.id: dictionary for dictionary in dictionaries}

    def add(self, dictionary: Dictionary) -> Self:
        """Take one more, and return this set.

        Raises:
            InvalidInput: another one has its id.
        """
        if self._by_id.setdefault(dictionary.id, dictionary) != dictionary:
            raise InvalidInput(f"two dictionaries have id {dictionary.id}")
        return self

    def get(self, dictionary_id: int) -> Dictionary:
        """Return a dictionary, as ``Dictionaries`` has it."""
        try:
            return self._by_id[dictionary_id]
        except KeyError:
            raise not_at_hand(dictionary_id) from None


NO_DICTIONARIES: Final = DictionarySet()


def not_at_hand(dictionary_id: int) -> UnknownDictionary:
    """Return the error that says that a dictionary is not at hand."""
    return UnknownDictionary(f"compressed with zstd dictionary {dictionary_id}, which is not at hand")
