"""Compresses sampled cells as MyRocks does, to predict their size there: in blocks of neighbouring rows, with zstd.

RocksDB (storage/rocksdb of MariaDB 10.11, table/block_based) writes rows in the order of added_id into blocks of
``block_size`` bytes, compresses each with its file's dictionary, which is a randomly chosen block of the file, and
stores a block uncompressed if compression saves less than an eighth.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator, Sequence
from typing import Final

import zstandard

from schemaless.base.numbers import Interval

BLOCK_BYTES: Final = 16_384
DICTIONARY_BYTES: Final = 16_384
LEVEL: Final = 3
"""Zstd level. Like the two sizes above, it is a setting from ``docs/storage-engines.md``."""

MODEL_ERROR: Final = 0.04
"""Standard error of the prediction in addition to that of the sample, as measured by benchmarks/engines.py."""

_DICTIONARIES: Final = 8
"""Number of blocks that serve as dictionaries, so that the result does not depend on a single choice."""

_WINDOW_IDS: Final = 99_991
"""Assumed distance between the added_ids of two windows; equal ids in all windows would compress too well."""

_BLOCK_OVERHEAD_BYTES: Final = 5 + 22
"""Trailer of a block, and its entry in the file's index, in bytes."""

_ENTRY: Final = struct.Struct(">HBQQ")


def stored_bytes(windows: Sequence[Sequence[tuple[bytes, bytes]]], column_name: str) -> list[float]:
    """Return the compressed size of the rows of each window, in bytes.

    Args:
        windows: row_key and body of sampled cells; those of a window are neighbours.
        column_name: column of all cells.
    """
    rows = [
        [_row(place * _WINDOW_IDS + number, key, column_name, body) for number, (key, body) in enumerate(window)]
        for place, window in enumerate(windows)
    ]
    blocks = list(_blocks(rows))
    chosen = random.Random(0).sample(range(len(blocks)), min(_DICTIONARIES, len(blocks)))  # noqa: S311 - a sample
    compressors = {number: _compressor(blocks[number][0]) for number in chosen}
    sizes = [0.0] * len(windows)
    for number, (block, parts) in enumerate(blocks):
        # A block is not its own dictionary: in a file, that is one block of thousands.
        others = [other for other in chosen if other != number]
        compressor = compressors[others[number % len(others)]] if others else _compressor(b"")
        small = len(compressor.compress(block))
        stored = small if small <= len(block) * 7 // 8 else len(block)
        for window, length in parts:
            sizes[window] += (stored + _BLOCK_OVERHEAD_BYTES) * length / len(block)
    return sizes


def _compressor(dictionary: bytes) -> zstandard.ZstdCompressor:
    content = zstandard.ZstdCompressionDict(dictionary[:DICTIONARY_BYTES], dict_type=zstandard.DICT_TYPE_RAWCONTENT)
    return zstandard.ZstdCompressor(level=LEVEL, dict_data=content, write_content_size=False)


def widened(size: Interval, error: float = MODEL_ERROR) -> Interval:
    """Return a predicted size with the relative standard error of a model added to that of the sample."""
    half = 1.96 * error * size.mid
    low, high = ((size.mid - size.low) ** 2 + half**2) ** 0.5, ((size.high - size.mid) ** 2 + half**2) ** 0.5
    return Interval(max(0.0, size.mid - low), size.mid, size.mid + high)


def _row(number: int, row_key: bytes, column_name: str, body: bytes) -> bytes:
    """Return a row as a block holds it: the part of its key that differs from the previous key, then its columns."""
    head = _ENTRY.pack(len(body) & 0xFFFF, len(column_name), number << 8, 0x99B0000000000000 | number)
    return head + row_key + column_name.encode() + len(body).to_bytes(3, "little") + body


def _blocks(rows: Sequence[Sequence[bytes]]) -> Iterator[tuple[bytes, list[tuple[int, int]]]]:
    """Yield blocks, with the window and length of each of their rows."""
    block: list[bytes] = []
    parts: list[tuple[int, int]] = []
    size = 0
    for window, members in enumerate(rows):
        for row in members:
            block.append(row)
            parts.append((window, len(row)))
            size += len(row)
            if size >= BLOCK_BYTES:
                yield b"".join(block), parts
                block, parts, size = [], [], 0
    if block:
        yield b"".join(block), parts
