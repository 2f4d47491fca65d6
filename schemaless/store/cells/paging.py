"""Pages of cells, from a shard or from one row's versions, whose size in bytes is bounded however large the bodies are.

Bodies can reach 16 MiB, and adjacent ones may differ by a factor of a thousand. Each request therefore asks for the
number of rows that should fit, judging by the previous page, and the server leaves out any body that could make the
page much longer. That usually takes one statement. If a body was left out, a second one adds up the sizes on the
server, and a third one reads the rows that fit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from schemaless.cell import MAX_BODY_BYTES
from schemaless.store.cells.sql import select_page, select_page_end
from schemaless.wire.connection import Check, Rows

MAX_PAGE_CELLS: Final = 1_000
_PAGE_BYTES: Final = 1 << 20
_FIRST_VERSIONS: Final = 8
_MAX_VERSIONS: Final = 100
_VERSIONS_BYTES: Final = 4 << 20
MAX_PAGE_BYTES: Final = 16 << 20
"""Maximum total size of the bodies in a page, in bytes: enough for one body of maximum size."""

Row = tuple[int, bytes, str, int, bytes, str]
"""A complete row of the ``cell`` table: added_id, row_key, column_name, ref_key, body, created_at."""

Read = Callable[[bytes, Check | None], Any]
"""Function that sends a query, validates the rows with a check, if given, and returns them."""


@dataclass(slots=True)
class PageSize:
    """Number of cells to request for the next page of a shard. Threads may share it; the last update wins."""

    cells: int = 64

    def learn(self, rows: Sequence[Row]) -> None:
        """Adapt to the body sizes of a page."""
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
    """Read the next cells of a shard.

    Args:
        read: sends a query to the shard and returns its validated rows.
        size: the shard's page size; updated from the sizes of the bodies read.
        database: the shard's database.
        after: return only cells with a higher added_id.
        up_to: return only cells up to this added_id; None for no upper limit.
        limit: maximum number of cells.
        legacy_only: return only cells whose bodies have no envelope.
        column_name: return only cells of this column.

    Returns:
        The cells, and whether more may follow.
    """
    cells = min(limit, size.cells)

    def page(up_to: int | None, max_body_bytes: int) -> Sequence[Row]:
        rows: Sequence[Row] = read(
            select_page(
                database, after, up_to, cells, max_body_bytes, legacy_only=legacy_only, column_name=column_name
            ),
            lambda rows: _check_page(rows, after, up_to, column_name),
        )
        return rows

    while True:
        rows = page(up_to, MAX_PAGE_BYTES // cells)
        more = len(rows) == cells
        if None not in [row[4] for row in rows]:
            break
        end = select_page_end(
            database, after, up_to, cells, _PAGE_BYTES, legacy_only=legacy_only, column_name=column_name
        )
        last, count, examined = read(end, None)[0]
        rows = [] if last is None else page(int(last), MAX_BODY_BYTES)
        more = count < examined or examined == cells
        if rows:  # if empty, the cells were erased between the two statements
            break
    if rows:
        size.learn(rows)
    return rows, more


def _check_page(rows: Rows, after: int, up_to: int | None, column_name: str | None) -> str | None:
    """Describe how the rows of a page differ from the requested ones; return None if they match."""
    first, last = rows[0], rows[-1]
    if not after < first[0] <= last[0] or (up_to is not None and last[0] > up_to):
        return f"requested added_ids after {after} up to {up_to}, got {first[0]} to {last[0]}"
    if column_name is not None and first[2] != column_name:
        return f"requested column {column_name!r}, got {first[2]!r}"
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
    """Yield the cells after ``after``, page by page; arguments as for ``read_page``."""
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
        select: returns the query for a lower bound, an upper bound and a number of rows.
        above: exclusive lower bound of ref_key.
        below: exclusive upper bound of ref_key.
        descending: yield the highest ref_key first.
        limit: maximum number of versions; None for all.
    """
    remaining = limit
    batch = _FIRST_VERSIONS
    while remaining is None or remaining > 0:
        size = batch if remaining is None else min(remaining, batch)
        rows = read(select(above, below, size))
        yield from rows
        if len(rows) < size:
            return
        remaining = None if remaining is None else remaining - len(rows)
        mean_bytes = max(1, sum(len(row[4]) for row in rows) // len(rows))
        batch = max(1, min(_MAX_VERSIONS, batch * 2, _VERSIONS_BYTES // mean_bytes))
        if descending:
            below = rows[-1][3]
        else:
            above = rows[-1][3]
