"""Compresses sampled cells like MyRocks does, to predict their size there: blocks of neighbouring rows, zstd.

RocksDB (storage/rocksdb of MariaDB 10.11, table/block_based) writes rows in the order of added_id into blocks of
``block_size`` bytes, compresses each with the dictionary of its file, which consists of sampled rows, and stores a
block uncompressed if compression saves less than an eighth.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator, Sequence
from typing import Final

import zstandard

from schemaless.numbers import Interval
from schemaless.survey.page_model import lsm_row_bytes

BLOCK_BYTES: Final = 16_384
DICTIONARY_BYTES: Final = 16_384
LEVEL: Final = 3
"""Settings of ``docs/storage-engines.md``: block size, size of a file's dictionary, and level of zstd."""

MODEL_ERROR: Final = 0.04
"""Standard error of the prediction besides that of the sample, as measured by benchmarks/engines.py."""

_SAMPLE_BYTES: Final = 64
_BLOCK_OVERHEAD_BYTES: Final = 5 + 22
"""Trailer of a block, and its entry in the file's index, in bytes."""

_ENTRY: Final = struct.Struct(">HBQQ")


def stored_bytes(windows: Sequence[Sequence[tuple[bytes, bytes]]], column_name: str, seed: int = 0) -> list[float]:
    """Return the compressed size of the rows of each window, in bytes.

    Args:
        windows: row_key and body of sampled cells; those of a window are neighbours.
        column_name: column of all cells.
        seed: seed of the dictionary's samples.
    """
    rows = [[_row(number, key, column_name, body) for number, (key, body) in enumerate(window)] for window in windows]
    raw = b"".join(row for window in rows for row in window)
    if not raw:
        return [0.0] * len(windows)
    samples = random.Random(seed)  # noqa: S311 - a sample
    places = (samples.randrange(max(1, len(raw) - _SAMPLE_BYTES)) for _ in range(DICTIONARY_BYTES // _SAMPLE_BYTES))
    content = b"".join(raw[place : place + _SAMPLE_BYTES] for place in places)
    dictionary = zstandard.ZstdCompressionDict(content, dict_type=zstandard.DICT_TYPE_RAWCONTENT)
    compressor = zstandard.ZstdCompressor(level=LEVEL, dict_data=dictionary, write_content_size=False)
    sizes = [0.0] * len(windows)
    for block, parts in _blocks(rows):
        small = len(compressor.compress(block))
        stored = small if small <= len(block) * 7 // 8 else len(block)
        for window, length in parts:
            sizes[window] += (stored + _BLOCK_OVERHEAD_BYTES) * length / len(block)
    return sizes


def row_share(windows: Sequence[Sequence[tuple[bytes, bytes]]], column_name: str) -> float:
    """Return the compressed size of rows relative to their raw size; see ``page_model.Layout``."""
    raw = sum(lsm_row_bytes(column_name, len(body)) for window in windows for _, body in window)
    return sum(stored_bytes(windows, column_name)) / raw if raw else 1.0


def widened(size: Interval) -> Interval:
    """Return a predicted size with the error of the model added to that of the sample."""
    half = 1.96 * MODEL_ERROR * size.mid
    low, high = ((size.mid - size.low) ** 2 + half**2) ** 0.5, ((size.high - size.mid) ** 2 + half**2) ** 0.5
    return Interval(max(0.0, size.mid - low), size.mid, size.mid + high)


def _row(number: int, row_key: bytes, column_name: str, body: bytes) -> bytes:
    """Return a row as a block holds it: the end of its key that differs from the previous one, then its columns."""
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
