"""Disk space of a cell as a function of its body's length (``planning/sampling/page_model.py``)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

from schemaless.base.numbers import Interval, check_number
from schemaless.cell import MAX_BODY_BYTES
from schemaless.errors import InvalidInput
from schemaless.planning.sampling.page_model import (
    MYSQL,
    PAGE_BYTES,
    Content,
    Layout,
    Packer,
    entry_bytes,
    placed,
    rebuilt_file_bytes,
)

_ROWS: Final = 4_096
"""Minimum number of packed rows."""

_TIMES: Final = 10_000
"""Scale factor from the packed rows to a large table, where fixed costs and file growth steps are negligible."""


class DiskParts(NamedTuple):
    """What a cell's disk space consists of, in bytes; the parts add up to ``disk_bytes``.

    Attributes:
        body: The body.
        row: The rest of the row: header, key, column name, added_id, transaction ID, undo pointer and created_at.
        key: The entry in the unique key.
        unfilled: Space in the cell's pages that no row fills; largest for bodies with overflow pages of their own.
        free_pages: Free pages that InnoDB keeps for inserts.
    """

    body: float
    row: float
    key: float
    unfilled: float
    free_pages: float


def disk_parts(body_bytes: float, *, column_name: str = "BASE", layout: Layout = MYSQL) -> DiskParts:
    """Return what ``disk_bytes`` consists of.

    >>> [round(part) for part in disk_parts(2_800)]
    [2800, 65, 42, 412, 516]
    """
    total = disk_bytes(body_bytes, column_name=column_name, layout=layout)
    length = math.ceil(body_bytes)
    content = packed(column_name, [length], layout)
    pages = (content.row_pages + content.key_pages) * PAGE_BYTES / _ROWS
    record, overflow_pages = placed(column_name, length, layout)
    row = record if overflow_pages else record - length
    key = entry_bytes(column_name)
    return DiskParts(length, row, key, pages - length - row - key, total - pages)


def disk_bytes(body_bytes: float, *, column_name: str = "BASE", layout: Layout = MYSQL) -> float:
    """Return the disk space per cell, in bytes, in a large table whose bodies all have this length.

    This is the cell's share of a freshly rebuilt file: the row, its entry in the unique key, overflow pages, and the
    free pages that InnoDB keeps. With a column name of 4 bytes, bodies of up to 8,060 bytes share pages of 16 KiB, and
    longer ones get overflow pages of their own. Each table also has a fixed cost of a few MB, which matters with
    thousands of shards (docs/capacity.md).

    Args:
        body_bytes: Length of the stored body, 0 to 16,777,215 bytes; fractions are rounded up.
        column_name: Name of the column, which every row and key entry repeats.
        layout: Page layout of the server, ``MYSQL`` or ``MARIADB``.

    Raises:
        InvalidInput: ``body_bytes`` is out of range.

    >>> [round(disk_bytes(length)) for length in (300, 2_822, 8_060, 8_061, 12_000, 20_000)]
    [511, 3836, 9515, 16691, 16691, 33239]
    """
    check_number("body_bytes", body_bytes)
    if not 0 <= body_bytes <= MAX_BODY_BYTES:
        raise InvalidInput(f"body_bytes must be 0 to {MAX_BODY_BYTES:,}, got {body_bytes}")
    return bytes_per_row(packed(column_name, [math.ceil(body_bytes)], layout), layout)


def packed(column_name: str, lengths: Sequence[int], layout: Layout) -> Content:
    """Return the pages of rows with bodies of these lengths, repeated until one partly filled page does not matter."""
    packer = Packer(layout)
    for _ in range(-(-_ROWS // len(lengths))):
        for length in lengths:
            packer.add(column_name, length)
    return packer.content()


def bytes_per_row(content: Content, layout: Layout) -> float:
    """Return the bytes of a large file per row, given the pages of some rows."""
    return rebuilt_file_bytes(content.times(_TIMES), layout) / (content.rows * _TIMES)


def disk_bytes_range(body_bytes: Interval, *, column_name: str = "BASE", layout: Layout = MYSQL) -> Interval:
    """Return ``disk_bytes`` for an uncertain body length.

    Raises:
        InvalidInput: A bound of ``body_bytes`` is out of range.
    """
    # Sorted, because a partly filled page can make the shorter of two nearly equal lengths come out larger.
    return Interval(*sorted(disk_bytes(length, column_name=column_name, layout=layout) for length in body_bytes))
