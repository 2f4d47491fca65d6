"""Pages of a shard's cells in ``added_id`` order, small enough for memory whatever bodies there are.

Bodies reach 16 MiB, and neighbours may differ by a thousand times. So a page asks for as many rows as should fit by the
sizes in the last one, and has the server leave out any body that could make it much longer. That takes one statement.
Where a body was left out, the server adds up the sizes first, and the page is read again up to where it fits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from schemaless.cell import MAX_BODY_BYTES
from schemaless.mysql import statements

MAX_PAGE_CELLS: Final = 1_000
_PAGE_BYTES: Final = 1 << 20
_MOST_PAGE_BYTES: Final = 16 << 20
"""What bodies of a page can take together at most: as much as one body can."""

Row = tuple[int, bytes, str, int, bytes, str]
"""A whole cell: added_id, row_key, column_name, ref_key, body, created_at."""

Read = Callable[[bytes], Any]


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
        read: sends a query to the shard and returns its rows.
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
            statements.select_page(
                database, after, up_to, cells, max_body_bytes, legacy_only=legacy_only, column_name=column_name
            )
        )
        return rows

    while True:
        rows = page(up_to, _MOST_PAGE_BYTES // cells)
        more = len(rows) == cells
        if None not in [row[4] for row in rows]:
            break
        end = statements.select_page_end(
            database, after, up_to, cells, _PAGE_BYTES, legacy_only=legacy_only, column_name=column_name
        )
        last, count, looked_at = read(end)[0]
        rows = [] if last is None else page(int(last), MAX_BODY_BYTES)
        more = count < looked_at or looked_at == cells
        if rows:  # else somebody erased them meanwhile
            break
    if rows:
        size.learn(rows)
    return rows, more
