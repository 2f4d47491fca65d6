"""What a body takes on disk: InnoDB's steps, row and index included, from mysql/page_model.py."""

from __future__ import annotations

import math
from typing import Final

from schemaless.errors import InvalidInput
from schemaless.numbers import Interval, check_number
from schemaless.survey.page_model import MYSQL, Layout, Packer, rebuilt_file_bytes

__all__ = ["LONGEST_BODY_BYTES", "disk_bytes", "disk_bytes_range"]

LONGEST_BODY_BYTES: Final = (1 << 24) - 1
"""A MEDIUMBLOB holds no more."""

_ROWS: Final = 4_096
"""These are enough rows for a page that is full in part not to show."""

_TIMES: Final = 10_000
"""In a table so many times as large, what it takes once and the steps in which its file grows do not show."""


def disk_bytes(body_bytes: float, *, column_name: str = "BASE", layout: Layout = MYSQL) -> float:
    """Return what each of very many cells with bodies of this length takes on disk.

    That is its part of the table's file: the row, its entry in the unique key, overflow pages, and the free pages that
    InnoDB keeps, as it is right after the table was rebuilt. Bodies of 8,060 bytes and less share pages of 16 KiB;
    longer ones have pages of their own (for a column name of 4 bytes). A table takes some MB more once, however many
    cells it has; with thousands of shards that counts (docs/capacity-model.md).

    Args:
        body_bytes: of the stored body, in bytes, 0 to 16,777,215; parts of a byte count as one.
        column_name: it stands in each row and in its key.
        layout: of the server, ``MYSQL`` or ``MARIADB``.

    Raises:
        InvalidInput: no such length.

    >>> [round(disk_bytes(length)) for length in (300, 2_822, 8_060, 8_061, 12_000, 20_000)]
    [511, 3836, 9515, 16691, 16691, 33239]
    """
    check_number("body_bytes", body_bytes)
    if not 0 <= body_bytes <= LONGEST_BODY_BYTES:
        raise InvalidInput(f"body_bytes must be 0 to {LONGEST_BODY_BYTES:,}, got {body_bytes}")
    packer = Packer(layout)
    for _ in range(_ROWS):
        packer.add(column_name, math.ceil(body_bytes))
    return rebuilt_file_bytes(packer.content().times(_TIMES), layout) / (_ROWS * _TIMES)


def disk_bytes_range(body_bytes: Interval, *, column_name: str = "BASE", layout: Layout = MYSQL) -> Interval:
    """Return the same of a length that is not known exactly.

    Raises:
        InvalidInput: no such length.
    """
    # Sorted: lengths a few bytes apart may differ the wrong way by what a page in part leaves.
    return Interval(*sorted(disk_bytes(length, column_name=column_name, layout=layout) for length in body_bytes))
