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
from schemaless.codec.deltas import Payloads
from schemaless.codec.envelope import is_erased
from schemaless.store.cells.bases import mean_bytes, stored_rows, with_bases, within_budget
from schemaless.store.cells.sql import Row, select_page, select_page_end
from schemaless.wire.connection import Connection, Rows
from schemaless.wire.sql.parts import id_range

MAX_PAGE_CELLS: Final = 1_000
_PAGE_BYTES: Final = 1 << 20
_FIRST_VERSIONS: Final = 8
_MAX_VERSIONS: Final = 100
_VERSIONS_BYTES: Final = 4 << 20
MAX_PAGE_BYTES: Final = 16 << 20
"""Maximum total size of the bodies in a page, in bytes: enough for one body of maximum size."""
Run = Callable[[Callable[[Connection], Any]], Any]
"""Function that runs an operation on a connection to the shard's server, and returns its result."""


@dataclass(slots=True)
class PageSize:
    """Number of cells to request for the next page of a shard. Threads may share it; the last update wins."""

    cells: int = 64

    def learn(self, rows: Sequence[Row]) -> None:
        """Adapt to the body sizes of a page."""
        self.cells = max(1, min(MAX_PAGE_CELLS, _PAGE_BYTES // (mean_bytes(rows) + 1)))


@dataclass(frozen=True, slots=True)
class Scan:
    """Reads cells of a shard in ``added_id`` order.

    Attributes:
        run: runs an operation on a connection to the shard's server.
        database: the shard's database.
        size: the shard's page size; updated from the sizes of the bodies read.
        legacy_only: return only cells whose bodies have no envelope.
        column_name: return only cells of this column.
        payloads: what pages have in common, so that deltas on a page do not need what earlier pages have read.
        complete: adds the documents of cold cells to the rows of a page; None to leave references as they are.
    """

    run: Run
    database: str
    size: PageSize
    legacy_only: bool = False
    column_name: str | None = None
    payloads: Payloads | None = None
    complete: Callable[[Sequence[Row], Run], Sequence[Row]] | None = None

    def page(self, after: int, up_to: int | None, limit: int = MAX_PAGE_CELLS) -> tuple[Sequence[Row], bool]:
        """Return the next cells with ``after < added_id <= up_to`` (None for no upper limit), and whether more follow.

        There are at most ``limit`` cells. More may follow even if the page is empty.
        """
        cells = min(limit, self.size.cells)

        def page(up_to: int | None, max_body_bytes: int) -> Sequence[Row]:
            where = id_range(after, up_to, self.legacy_only, self.column_name)
            sql = select_page(self.database, where, cells, max_body_bytes)

            def operation(connection: Connection) -> Sequence[Row]:
                rows: Any = connection.rows(sql, lambda rows: self._check(rows, after, up_to))
                return with_bases(connection, self.database, rows, payloads=self.payloads)

            rows: Sequence[Row] = self.run(operation)
            return rows

        while True:
            rows = page(up_to, MAX_PAGE_BYTES // cells)
            more = len(rows) == cells
            if None not in [row[4] for row in stored_rows(rows)]:
                break
            where = id_range(after, up_to, self.legacy_only, self.column_name)
            sql = select_page_end(self.database, where, cells, _PAGE_BYTES)
            last, count, examined = self.run(lambda connection: connection.rows(sql)[0])  # noqa: B023
            rows = [] if last is None else page(int(last), MAX_BODY_BYTES)
            more = count < examined or examined == cells
            if rows:  # if empty, the cells were erased between the two statements
                break
        if rows:
            self.size.learn(rows)
        fitting = within_budget(rows, MAX_PAGE_BYTES)
        more = more or len(fitting) < len(rows)
        return fitting if self.complete is None else self.complete(fitting, self.run), more

    def rows(self, after: int, up_to: int | None) -> Iterator[Row]:
        """Yield the cells with ``after < added_id <= up_to``, page by page."""
        more = True
        while more:
            rows, more = self.page(after, up_to)
            yield from rows
            after = rows[-1][0] if rows else after

    def _check(self, rows: Rows, after: int, up_to: int | None) -> str | None:
        """Describe how the rows of a page differ from the requested ones; return None if they match."""
        first, last = rows[0], rows[-1]
        if not after < first[0] <= last[0] or (up_to is not None and last[0] > up_to):
            return f"requested added_ids after {after} up to {up_to}, got {first[0]} to {last[0]}"
        if self.column_name is not None and first[2] != self.column_name:
            return f"requested column {self.column_name!r}, got {first[2]!r}"
        return None


def read_versions(
    read: Callable[[bytes], Sequence[Row]],
    select: Callable[[int, int, int], bytes],
    above: int,
    below: int,
    descending: bool,
    limit: int | None,
    *,
    live_only: bool,
) -> Iterator[Row]:
    """Yield versions of one row and column with ``above < ref_key < below``.

    Args:
        read: sends a query to the shard and returns its rows.
        select: returns the query for a lower bound, an upper bound and a number of rows.
        above: exclusive lower bound of ref_key.
        below: exclusive upper bound of ref_key.
        descending: yield the highest ref_key first.
        limit: maximum number of versions; None for all.
        live_only: do not yield versions that were erased, nor count them. ``select`` skips them, but ``read`` may read
            a row again.
    """
    remaining = limit
    batch = _FIRST_VERSIONS
    while remaining is None or remaining > 0:
        size = batch if remaining is None else min(remaining, batch)
        rows = read(select(above, below, size))
        found = [row for row in rows if not is_erased(row[4])] if live_only else rows
        yield from found
        if len(rows) < size:
            return
        remaining = None if remaining is None else remaining - len(found)
        batch = max(1, min(_MAX_VERSIONS, batch * 2, _VERSIONS_BYTES // max(1, mean_bytes(rows))))
        if descending:
            below = rows[-1][3]
        else:
            above = rows[-1][3]
