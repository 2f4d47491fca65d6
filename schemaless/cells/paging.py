"""Pages of cells, of a shard or of a row's versions, small enough for memory whatever bodies there are.

Bodies reach 16 MiB, and neighbours may differ by a thousand times. So a page asks for as many rows as should fit by the
sizes in the last one, and has the server leave out any body that could make it much longer. That takes one statement.
Where a body was left out, the server adds up the sizes first, and the page is read again up to where it fits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from schemaless.cell import MAX_BODY_BYTES
from schemaless.cells.sql import select_page, select_page_end
from schemaless.wire.connection import Check, Rows

MAX_PAGE_CELLS: Final = 1_000
_PAGE_BYTES: Final = 1 << 20
_FIRST_VERSIONS: Final = 8
_MOST_VERSIONS: Final = 100
_VERSIONS_BYTES: Final = 4 << 20
MOST_PAGE_BYTES: Final = 16 << 20
"""The bodies of a page take no more than this together: as much as one body can."""

Row = tuple[int, bytes, str, int, bytes, str]
"""A row is a whole cell: added_id, row_key, column_name, ref_key, body, created_at."""

Read = Callable[[bytes, Check | None], Any]
"""This is a function that sends a query, and has its rows looked at before they are used."""


@dataclass(slots=True)
class PageSize:
    """What is known of the sizes of a shard's bodies; threads may share one, the last one wins."""

    cells: int = 64

    def learn(self, rows: Sequence[Row]) -> None:
        """Take the next page to be like this one."""
        mean_bytes = sum([len(row[4]) for row in rows]) // len(rows)
        self.cells = max(1, min(MAX_PAGE_CELLS, _PAGE_BYTES // (mean_bytes + 1)))


def read_page(
    read: Read,
    size: PageSize,
    database: str,
    after: int,
    up_to: int | None,
    limit: int = MAX_PAGE_CELLS,
    *,
    legacy_only: bool = False,
    column_name: str | None = None,
) -> tuple[Sequence[Row], bool]:
    """Return the next cells, and whether there may be more behind them.

    Args:
        read: sends a query to the shard and returns its rows, where the check finds them to be its own.
        size: of this shard; learns.
        database: the shard's.
        after: only cells with a higher added_id.
        up_to: only cells up to this added_id.
        limit: at most so many cells.
        legacy_only: only bodies without an envelope.
        column_name: only cells of this column.
    """
    cells = min(limit, size.cells)

    def page(up_to: int | None, max_body_bytes: int) -> Sequence[Row]:
        rows: Sequence[Row] = read(
            select_page(
                database, after, up_to, cells, max_body_bytes, legacy_only=legacy_only, column_name=column_name
            ),
            lambda rows: _strange(rows, after, up_to, column_name),
        )
        return rows

    while True:
        rows = page(up_to, MOST_PAGE_BYTES // cells)
        more = len(rows) == cells
        if None not in [row[4] for row in rows]:
            break
        end = select_page_end(
            database, after, up_to, cells, _PAGE_BYTES, legacy_only=legacy_only, column_name=column_name
        )
        last, count, looked_at = read(end, None)[0]
        rows = [] if last is None else page(int(last), MAX_BODY_BYTES)
        more = count < looked_at or looked_at == cells
        if rows:  # else somebody erased them meanwhile
            break
    if rows:
        size.learn(rows)
    return rows, more


def _strange(rows: Rows, after: int, up_to: int | None, column_name: str | None) -> str | None:
    """Return what a page's rows have to do with others than those asked for; None for nothing."""
    first, last = rows[0], rows[-1]
    if not after < first[0] <= last[0] or (up_to is not None and last[0] > up_to):
        return f"asked for added_ids behind {after} up to {up_to}, got {first[0]} to {last[0]}"
    if column_name is not None and first[2] != column_name:
        return f"asked for column {column_name!r}, got {first[2]!r}"
    return None


def every_row(
    read: Read,
    size: PageSize,
    database: str,
    after: int,
    up_to: int | None,
    *,
    legacy_only: bool = False,
    column_name: str | None = None,
) -> Iterator[Row]:
    """Yield the cells behind ``after``, page by page; arguments as for ``read_page``."""
    more = True
    while more:
        rows, more = read_page(read, size, database, after, up_to, legacy_only=legacy_only, column_name=column_name)
        yield from rows
        if rows:
            after = rows[-1][0]


def read_versions(
    read: Callable[[bytes], Sequence[Row]],
    select: Callable[[int, int, int], bytes],
    above: int,
    below: int,
    descending: bool,
    limit: int | None,
) -> Iterator[Row]:
    """Yield versions of one row and column with ``above < ref_key < below``.

    Args:
        read: sends a query to the shard and returns its rows.
        select: makes the query of such bounds, and of how many to fetch.
        above: their lower bound.
        below: their upper one.
        descending: newest first.
        limit: at most so many; None for all.
    """
    left = limit
    most = _FIRST_VERSIONS
    while left is None or left > 0:
        size = most if left is None else min(left, most)
        rows = read(select(above, below, size))
        yield from rows
        if len(rows) < size:
            return
        left = None if left is None else left - len(rows)
        mean_bytes = max(1, sum(len(row[4]) for row in rows) // len(rows))
        most = max(1, min(_MOST_VERSIONS, most * 2, _VERSIONS_BYTES // mean_bytes))
        if descending:
            below = rows[-1][3]
        else:
            above = rows[-1][3]
