"""Placement: the shard that owns a row."""

from __future__ import annotations

import zlib
from typing import Final

from schemaless.errors import InvalidCell

# stored; never renumber
PLACEMENT: Final = "crc32"
"""Name of the placement rule, as stored in the catalog and in every shard."""

MAX_SHARD_COUNT: Final = 65_536


def shard_for(row_key: bytes, shard_count: int) -> int:
    """Return the number of the shard that owns ``row_key``.

    It is ``crc32(row_key) % shard_count``; for 4,096 shards, ``CRC32(row_key) % 4096`` in MySQL. Every stored cell was
    placed by this rule, so it never changes.

    >>> shard_for(bytes(16), 4096)
    2901

    Args:
        row_key: 16 raw bytes (``uuid.bytes``, not the 32 hex digits).
        shard_count: number of shards of the datastore, fixed at its creation, 1 to 65,536.

    Returns:
        A shard number, ``0 <= n < shard_count``.

    Raises:
        InvalidCell: ``row_key`` is not 16 bytes long.
    """
    if len(row_key) != 16:
        raise InvalidCell(f"row_key must be 16 bytes, got {len(row_key)}: {row_key[:24]!r}; pass uuid.bytes")
    return zlib.crc32(row_key) % shard_count
