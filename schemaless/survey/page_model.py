"""How large the file of a ``cell`` table is once the table has been rebuilt: worked out from stored lengths, pure.

What InnoDB does, for ROW_FORMAT=DYNAMIC and pages of 16 KiB:

- A row whose record is shorter than half a page, 8,126 bytes, is in a leaf page of the primary key. Otherwise
  its body is in overflow pages of its own, and 20 bytes stay in the record.
- Leaf pages are filled in the order of added_id up to 15/16 (``innodb_fill_factor`` 100), two records at least.
- Pages are given to a segment one by one up to 32, then by extents of 64. A leaf page takes another extent where less
  than an eighth of the segment is free; MariaDB is content with four free extents. Overflow pages take what is free.
- The file grows by a page, then by one extent, beyond 32 of them by four.

Source: storage/innobase of both servers (``page0size``, ``btr0load``/``btr0bulk``, ``lob0lob``/``btr0cur``,
``fsp0fsp``); the number of pages that a new table has besides, ``spare_pages``, is measured. benchmarks/page_model.py
holds all of it against what ``ALTER TABLE ... FORCE`` gives.
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
"""Records and their directory may take so much of a page."""

_LONGEST_RECORD_BYTES: Final = _EMPTY_PAGE_BYTES // 2
_SLOT_BYTES: Final = 0.5
"""Each record takes so much of the page's directory."""

_POINTER_BYTES: Final = 20
_RECORD_BYTES: Final = 5 + 1 + 8 + 6 + 7 + 16 + 8 + 8
"""A record has a header, the length of column_name, added_id, transaction, undo, row_key, ref_key and created_at."""

_ENTRY_BYTES: Final = 5 + 1 + 16 + 8 + 8
"""An entry of cell_key has, besides column_name, a header, its length, row_key, ref_key and added_id."""

_NODE_BYTES: Final = 17
"""An inner page of the primary key has so much for each page below."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Where servers differ.

    Attributes:
        first_overflow_bytes: of a body, in its first overflow page.
        overflow_bytes: in each further one.
        most_reserve_pages: a segment's free pages that satisfy a leaf page, however large the segment is.
        small_pages: of a file whose segments have single pages only, in no index.
        spare_pages: of a larger one.
        spare_share: of the file's extents, kept free besides.
        fill_factor: ``innodb_fill_factor``, 10 to 100.
    """

    first_overflow_bytes: int
    overflow_bytes: int
    most_reserve_pages: float
    small_pages: int
    spare_pages: int
    spare_share: float = 0.0
    fill_factor: int = 100


MYSQL: Final = Layout(15_680, 16_327, math.inf, 6, 328, 0.01)
MARIADB: Final = Layout(16_330, 16_330, 4 * _EXTENT_PAGES, 4, 8)


@dataclass(frozen=True, slots=True)
class Content:
    """What some rows take; contents add up, and scale.

    Attributes:
        rows: how many.
        leaf_pages: of the primary key, the last one in part.
        overflow_pages: of bodies.
        key_pages: leaf pages of cell_key.
    """

    rows: float = 0.0
    leaf_pages: float = 0.0
    overflow_pages: float = 0.0
    key_pages: float = 0.0

    def times(self, factor: float) -> Content:
        """Return what ``factor`` times these rows take."""
        return Content(*(factor * value for value in (self.rows, self.leaf_pages, self.overflow_pages, self.key_pages)))


class Packer:
    """Packs rows into pages as a rebuild does."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        free = PAGE_BYTES / 16 if layout.fill_factor == 100 else PAGE_BYTES * (100 - layout.fill_factor) / 100
        self._filled_bytes = _EMPTY_PAGE_BYTES - free
        self._rows = self._full_pages = self._overflow_pages = 0
        self._page_rows = 0
        self._page_bytes = self._key_bytes = 0.0

    def add(self, column_name: str, body_bytes: int) -> None:
        """Add the next row, in the order of added_id."""
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
        """Return what the rows take that were added."""
        begun = min(1.0, self._page_bytes / self._filled_bytes)
        return Content(self._rows, self._full_pages + begun, self._overflow_pages, self._key_bytes / _EMPTY_PAGE_BYTES)


def new_pages(column_name: str, before_bytes: int, after_bytes: int, layout: Layout) -> float:
    """Return how many pages a body's replacement takes before those of the old one are free; an upper bound.

    A body that is shorter and stays in its leaf page takes none. One that comes into a leaf page, or grows there,
    splits pages, which are half empty then. One in overflow pages gets new ones, and the old ones are free once purged.
    """
    (before, _), (after, overflow_pages) = (
        placed(column_name, length, layout) for length in (before_bytes, after_bytes)
    )
    return overflow_pages + 2 * max(0, after - before) / _EMPTY_PAGE_BYTES


def placed(column_name: str, body_bytes: int, layout: Layout) -> tuple[int, int]:
    """Return the bytes of a row's record, and how many overflow pages its body has."""
    record = _RECORD_BYTES + len(column_name) + (2 if body_bytes > 127 else 1) + body_bytes
    if record < _LONGEST_RECORD_BYTES:
        return record, 0
    rest = max(0, body_bytes - layout.first_overflow_bytes)
    return _RECORD_BYTES + len(column_name) + 2 + _POINTER_BYTES, 1 + -(-rest // layout.overflow_bytes)


def rebuilt_file_bytes(content: Content, layout: Layout) -> int:
    """Return how long the file of a table with this content is, right after it was rebuilt.

    By ``ALTER TABLE ... FORCE``: a small table may take some MB more then than it did when it was new.
    """
    leaf, overflow = max(1, math.ceil(content.leaf_pages)), math.ceil(content.overflow_pages)
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
    # A leaf page takes one extent at a time; the overflow pages between two of them use that up again.
    often = overflow < (_EXTENT_PAGES - 8) * leaf
    reserve = min(used / 7, layout.most_reserve_pages) if often else 0.0
    return _SINGLE_PAGES + math.ceil((used + reserve - _SINGLE_PAGES) / _EXTENT_PAGES) * _EXTENT_PAGES


def entry_bytes(column_name: str) -> float:
    """Return what a row takes of cell_key."""
    return _ENTRY_BYTES + len(column_name) + _SLOT_BYTES


def _inner_pages(leaf: int) -> int:
    pages, level = 0, leaf
    while level > 1:
        level = math.ceil(level * (_NODE_BYTES + _SLOT_BYTES) / (_EMPTY_PAGE_BYTES * 15 / 16))
        pages += level
    return pages
