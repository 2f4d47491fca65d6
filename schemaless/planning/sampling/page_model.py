"""Model of InnoDB's page allocation: the file size of a rebuilt ``cell`` table, computed from stored lengths.

InnoDB's rules for ROW_FORMAT=DYNAMIC and pages of 16 KiB:

- A record shorter than half a page, 8,126 bytes, is stored in a leaf page of the primary key. Otherwise its body is
  stored in separate overflow pages, and 20 bytes remain in the record.
- Leaf pages are filled to 15/16 (``innodb_fill_factor`` 100) in the order of added_id, with at least two records each.
- A segment gets its first 32 pages one by one, then extents of 64 pages. A new leaf page takes another extent if less
  than an eighth of the segment is free; on MariaDB, four free extents suffice. Overflow pages use free pages.
- The file grows by single pages, then by one extent at a time, and beyond 32 extents by four at a time.

Source: storage/innobase of both servers (``page0size``, ``btr0load``/``btr0bulk``, ``lob0lob``/``btr0cur``,
``fsp0fsp``); ``spare_pages``, the number of pages outside of indexes, and ``MYSQL_COPIED`` were determined by
measurement of 26 tables.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

PAGE_BYTES: Final = 16_384

_EXTENT_PAGES: Final = 64
_SINGLE_PAGES: Final = 32
_SMALL_EXTENTS: Final = 32
_GROWTH_EXTENTS: Final = 4

_EMPTY_PAGE_BYTES: Final = 16_252
"""Space for records and their directory in a page, in bytes."""

_LONGEST_RECORD_BYTES: Final = _EMPTY_PAGE_BYTES // 2
_SLOT_BYTES: Final = 0.5
"""Average space that a record takes up in the page's directory, in bytes."""

_POINTER_BYTES: Final = 20
_RECORD_BYTES: Final = 5 + 1 + 8 + 6 + 7 + 16 + 8 + 8
"""Size of a record without column_name and body: header, length of column_name, added_id, transaction, undo, row_key,
ref_key and created_at, in bytes."""

_ENTRY_BYTES: Final = 5 + 1 + 16 + 8 + 8
"""Size of an entry of cell_key without column_name: header, length of column_name, row_key, ref_key and added_id, in
bytes."""

_LSM_ROW_BYTES: Final = 4 + 8 + 16 + 1 + 8 + 3 + 8
"""Size of a MyRocks row without column_name and body: number of the index, added_id, row_key, length of column_name,
ref_key, length of the body and created_at, in bytes."""

_LSM_ENTRY_BYTES: Final = 4 + 16 + 8 + 8 + 4
"""Size of an entry of cell_key in MyRocks without column_name, which takes 9 bytes for every 8 characters: number of
the index, row_key, ref_key, added_id, and data for restoring the column_name, in bytes."""

_NODE_BYTES: Final = 17
"""Size of a child page's entry in an inner page of the primary key, in bytes."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Parameters that differ between servers.

    Attributes:
        first_overflow_bytes: body bytes in the first overflow page.
        overflow_bytes: body bytes in each further overflow page.
        most_reserve_pages: maximum number of free pages that a segment reserves for leaf pages.
        small_pages: pages outside of indexes in a file whose segments have only single pages.
        spare_pages: pages outside of indexes in a larger file.
        spare_share: share of the file's extents that is kept free in addition.
        split_pages: leaf pages that stay free because the first one was split.
        fill_factor: ``innodb_fill_factor``, 10 to 100.
        row_share: compressed size of a row relative to its raw size, on MyRocks, which has no pages; None on InnoDB.
        key_share: the same for entries of cell_key.
    """

    first_overflow_bytes: int
    overflow_bytes: int
    most_reserve_pages: float
    small_pages: int
    spare_pages: int
    spare_share: float = 0.0
    split_pages: float = 0.0
    fill_factor: int = 100
    row_share: float | None = None
    key_share: float = 1.0


MYSQL: Final = Layout(15_680, 16_327, math.inf, 6, 328, 0.01)
"""Layout after ``ALTER TABLE ... FORCE``; tables that have grown take up to 7 % less."""

MYSQL_COPIED: Final = Layout(15_680, 16_327, 0, 6, 413, split_pages=0.5)
"""Layout after 'schemaless rebuild', which copies tables on MySQL and is not subject to ``innodb_fill_factor``."""

MARIADB: Final = Layout(16_330, 16_330, 4 * _EXTENT_PAGES, 4, 8)
MYROCKS: Final = Layout(0, 0, 0, 0, 0, row_share=1.0, key_share=0.4)
"""Layout assumed for MyRocks until a server has stored enough cells: codecs have already compressed the bodies, and a
compressed entry of cell_key consists mostly of the 16 random bytes of its row_key (benchmarks/logs/engines.md)."""


@dataclass(frozen=True, slots=True)
class Content:
    """Pages that rows fill; contents can be added and scaled.

    Attributes:
        rows: number of rows.
        leaf_pages: leaf pages of the primary key, the last one as a fraction.
        overflow_pages: overflow pages of bodies.
        key_pages: leaf pages of cell_key.
    """

    rows: float = 0.0
    leaf_pages: float = 0.0
    overflow_pages: float = 0.0
    key_pages: float = 0.0

    @property
    def row_pages(self) -> float:
        """Pages that hold rows: leaf and overflow pages."""
        return self.leaf_pages + self.overflow_pages

    def __add__(self, other: Content) -> Content:
        return Content(
            self.rows + other.rows,
            self.leaf_pages + other.leaf_pages,
            self.overflow_pages + other.overflow_pages,
            self.key_pages + other.key_pages,
        )

    def times(self, factor: float) -> Content:
        """Return the content of ``factor`` times as many rows."""
        return Content(*(factor * value for value in (self.rows, self.leaf_pages, self.overflow_pages, self.key_pages)))


class Packer:
    """Packs rows into pages as a rebuild does."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        free = PAGE_BYTES / 16 if layout.fill_factor == 100 else PAGE_BYTES * (100 - layout.fill_factor) / 100
        self._filled_bytes = _EMPTY_PAGE_BYTES - free
        self._rows = self._full_pages = self._overflow_pages = 0
        self._page_rows = 0
        self._page_bytes = self._key_bytes = self._block_bytes = 0.0

    def add(self, column_name: str, body_bytes: int) -> None:
        """Add the next row, in the order of added_id."""
        if self._layout.row_share is not None:
            self._rows += 1
            self._block_bytes += placed(column_name, body_bytes, self._layout)[0]
            self._key_bytes += self._layout.key_share * lsm_entry_bytes(column_name)
            return
        record, overflow_pages = placed(column_name, body_bytes, self._layout)
        self._overflow_pages += overflow_pages
        taken = self._page_bytes + record + _SLOT_BYTES
        if taken > _EMPTY_PAGE_BYTES or (self._page_rows >= 2 and taken > self._filled_bytes):
            self._full_pages += 1
            self._page_rows, taken = 0, record + _SLOT_BYTES
        self._page_rows += 1
        self._page_bytes = taken
        self._rows += 1
        self._key_bytes += entry_bytes(column_name)

    def content(self) -> Content:
        """Return the pages that the added rows fill; on MyRocks, each 16 KiB of compressed blocks count as a page."""
        if self._layout.row_share is not None:
            return Content(self._rows, self._block_bytes / PAGE_BYTES, 0, self._key_bytes / PAGE_BYTES)
        last = min(1.0, self._page_bytes / self._filled_bytes)
        return Content(self._rows, self._full_pages + last, self._overflow_pages, self._key_bytes / _EMPTY_PAGE_BYTES)


def new_pages(column_name: str, before_bytes: int, after_bytes: int, layout: Layout) -> float:
    """Return an upper bound on the pages that a replacement body needs before those of the old one are freed.

    A shorter body that stays in its leaf page needs none. A body that moves into a leaf page, or grows there, splits
    pages, which are then half empty. A body in overflow pages gets new ones; the old ones are free after the purge.
    """
    if layout.row_share is not None:
        return placed(column_name, after_bytes, layout)[0] / PAGE_BYTES
    (before, _), (after, overflow_pages) = (
        placed(column_name, length, layout) for length in (before_bytes, after_bytes)
    )
    return overflow_pages + 2 * max(0, after - before) / _EMPTY_PAGE_BYTES


def placed(column_name: str, body_bytes: int, layout: Layout) -> tuple[int, int]:
    """Return the size of a row's record in bytes (compressed, on MyRocks), and the number of its overflow pages."""
    if layout.row_share is not None:
        return round(layout.row_share * lsm_row_bytes(column_name, body_bytes)), 0
    record = _RECORD_BYTES + len(column_name) + (2 if body_bytes > 127 else 1) + body_bytes
    if record < _LONGEST_RECORD_BYTES:
        return record, 0
    rest = max(0, body_bytes - layout.first_overflow_bytes)
    return _RECORD_BYTES + len(column_name) + 2 + _POINTER_BYTES, 1 + -(-rest // layout.overflow_bytes)


def rebuilt_file_bytes(content: Content, layout: Layout) -> int:
    """Return the file size of a table with this content right after a rebuild, in bytes.

    A small table may be a few MB larger after a rebuild than when it was new.
    """
    if layout.row_share is not None:
        return round((content.leaf_pages + content.key_pages) * PAGE_BYTES)
    split = layout.split_pages if content.leaf_pages > 1 else 0.0
    leaf, overflow = max(1, math.ceil(content.leaf_pages + split)), math.ceil(content.overflow_pages)
    key = max(1, math.ceil(content.key_pages))
    inner = _inner_pages(leaf) + _inner_pages(key)
    if max(leaf + overflow, key) < _SINGLE_PAGES:
        return (leaf + overflow + key + inner + layout.small_pages) * PAGE_BYTES
    pages = _segment_pages(leaf, overflow, layout) + _segment_pages(key, 0, layout) + inner + layout.spare_pages
    extents = math.ceil(pages / _EXTENT_PAGES)
    extents += int(extents * layout.spare_share)
    if extents > _SMALL_EXTENTS:
        extents = math.ceil(extents / _GROWTH_EXTENTS) * _GROWTH_EXTENTS
    return extents * _EXTENT_PAGES * PAGE_BYTES


def _segment_pages(leaf: int, overflow: int, layout: Layout) -> int:
    used = leaf + overflow
    if used <= _SINGLE_PAGES:
        return used
    # A leaf page allocates an extent at a time. If overflow pages use up each of them, no reserve builds up.
    builds_up = overflow < (_EXTENT_PAGES - 8) * leaf
    reserve = min(used / 7, layout.most_reserve_pages) if builds_up else 0.0
    return _SINGLE_PAGES + math.ceil((used + reserve - _SINGLE_PAGES) / _EXTENT_PAGES) * _EXTENT_PAGES


def lsm_row_bytes(column_name: str, body_bytes: int) -> int:
    """Return the raw size of a row and its key in MyRocks, in bytes."""
    return _LSM_ROW_BYTES + len(column_name) + body_bytes


def lsm_entry_bytes(column_name: str) -> int:
    """Return the raw size of a row's entry of cell_key in MyRocks, in bytes."""
    return _LSM_ENTRY_BYTES + 9 * -(-len(column_name) // 8)


def entry_bytes(column_name: str) -> float:
    """Return the size of a row's entry in cell_key, in bytes."""
    return _ENTRY_BYTES + len(column_name) + _SLOT_BYTES


def _inner_pages(leaf: int) -> int:
    pages, level = 0, leaf
    while level > 1:
        level = math.ceil(level * (_NODE_BYTES + _SLOT_BYTES) / (_EMPTY_PAGE_BYTES * 15 / 16))
        pages += level
    return pages
