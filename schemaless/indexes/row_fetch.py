"""The rows that an index names, as they are now: the latest cells of some columns, read on their primaries.

The rows of a server are read in one statement, all servers at once. A row is read by one statement: in one snapshot.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import product
from typing import Any, Final, NamedTuple, TypeVar

from schemaless.cell import Cell, JSONDocument
from schemaless.cells.paging import Row
from schemaless.cells.reading import PAIR, Reader, only
from schemaless.errors import CorruptBody
from schemaless.indexes import sql
from schemaless.topology.placement import shard_for
from schemaless.topology.scatter_gather import ask_shards
from schemaless.topology.shards import Shards
from schemaless.wire.connection import Rows

T = TypeVar("T")

_READ_AT_ONCE: Final = 200

_VERSIONS: Final = 3
"""So many versions of a row's column are sent, on the average of a shard's rows, to save a search for each of them."""

_EXACT_READS: Final = 50
"""So often the latest versions are searched for one by one, after rows that had too many of them."""


Take = Callable[[bytes, dict[str, Row]], None]
"""This function is given a row's key, and the latest cell of each of its columns that were asked for."""


class LatestRow(NamedTuple):
    """A row, as it was read.

    Attributes:
        cells: the latest cell of each column that was asked for and that it has, in their order.
        documents: theirs.
        damaged: why a column's latest cell is not among them: its body does not decode.
    """

    row_key: uuid.UUID
    cells: dict[str, Cell]
    documents: dict[str, JSONDocument]
    damaged: dict[str, CorruptBody]


class RowReader:
    """Reads the latest cells of rows; shared by threads.

    A server takes longer to begin a search than to read a row beside another one. So it is asked for all versions of a
    shard's rows at once, though not too many. Rows that have more are read again, each column's latest by a search of
    its own; and then all are for a while, of these columns.
    """

    def __init__(self, shards: Shards, reader: Reader, at_hand: Reader, exact_reads: int = _EXACT_READS) -> None:
        """Make it; no server is asked.

        Args:
            shards: the way to every shard's server.
            reader: turns stored bytes into cells.
            at_hand: does so without asking a server, which would want a second connection where the first is held.
            exact_reads: so often the latest versions are searched for one by one, after rows that had too many.
        """
        self._shards = shards
        self._reader = reader
        self._at_hand = at_hand
        self._exact_reads = exact_reads
        self._exact: dict[tuple[str, ...], int] = {}

    def read(
        self,
        rows: Sequence[bytes],
        columns: Sequence[str],
        make: Callable[[LatestRow], T],
        meanwhile: Callable[[], object] = lambda: None,
    ) -> list[T]:
        """Read the latest cells of some columns of rows, and return what ``make`` makes of each, in their order.

        What one server gave is dealt with while others work.

        Args:
            rows: their row_keys.
            columns: the names of the columns.
            make: given each row once; must not ask a server.
            meanwhile: may be called while servers work, once or more often; must not ask one either.
        """
        shard_count = self._shards.topology.shard_count
        shard_of = {row: shard_for(row, shard_count) for row in rows}
        made: dict[bytes, T] = {}
        left: dict[bytes, dict[str, Row]] = {}

        def take(row: bytes, of_row: dict[str, Row]) -> None:
            latest = _decoded(self._at_hand, row, shard_of[row], columns, of_row)
            if latest.damaged:
                # Perhaps it only takes a dictionary that is not at hand.
                left[row] = of_row
            else:
                made[row] = make(latest)

        places = list(shard_of.items())
        for start in range(0, len(places), _READ_AT_ONCE):
            self._read(places[start : start + _READ_AT_ONCE], tuple(columns), take, meanwhile)
        for row, shard in places:
            if row not in made:
                made[row] = make(_decoded(self._reader, row, shard, columns, left.get(row, {})))
        return [made[row] for row in rows]

    def _read(
        self,
        places: Iterable[tuple[bytes, int]],
        columns: tuple[str, ...],
        take: Take,
        meanwhile: Callable[[], object],
    ) -> None:
        """Read the latest versions of some rows, given with their shards."""
        by_shard: dict[int, list[bytes]] = {}
        for row, shard in places:
            by_shard.setdefault(shard, []).append(row)
        exact = self._exact.get(columns, 0)
        if exact:
            self._exact[columns] = exact - 1
        else:
            most = _VERSIONS * len(columns)
            select = partial(sql.select_versions_of_rows, versions=most)
            by_shard = self._select(by_shard, columns, select, most, take, meanwhile)
            if by_shard:
                self._exact[columns] = self._exact_reads
        if by_shard:
            self._select(by_shard, columns, sql.select_latest_of_rows, None, take, meanwhile)

    def _select(
        self,
        by_shard: Mapping[int, list[bytes]],
        columns: tuple[str, ...],
        select: Callable[[str, Sequence[bytes], tuple[str, ...]], bytes],
        most: int | None,
        take: Take,
        meanwhile: Callable[[], object],
    ) -> dict[int, list[bytes]]:
        """Read cells of some rows, and have the latest of each column taken.

        Args:
            by_shard: the rows of each shard.
            columns: the names of their columns.
            select: makes the statement about some rows of a database.
            most: how many cells this gives of each row, on the average of a shard's; None where all come.
            take: given each row that has cells.
            meanwhile: as that of ``read``.

        Returns:
            The rows of those shards that have more cells: none of them was taken.
        """

        def of_shard(shard: int) -> bytes:
            return select(self._shards.database(shard), by_shard[shard], columns)

        def of_server(cells: Any) -> None:
            # Typed for what every query gives, and these give cells.
            counts = dict.fromkeys(by_shard, 0)
            newest: dict[bytes, dict[str, Row]] = {}
            for cell in cells:
                _, row, column, ref_key, _, _ = cell
                counts[shard_of[row]] += 1
                of_row = newest.setdefault(row, {})
                if of_row.setdefault(column, cell)[3] < ref_key:
                    of_row[column] = cell
            if most is not None:
                more.update({shard: rows for shard, rows in by_shard.items() if counts[shard] == most * len(rows)})
            for row, of_row in newest.items():
                if shard_of[row] not in more:
                    take(row, of_row)

        def prepare() -> None:
            if not wanted:
                shard_of.update({row: shard for shard, rows in by_shard.items() for row in rows})
                wanted.update(product(shard_of, columns))
            meanwhile()

        def strange(cells: Rows) -> str | None:
            # What is checked comes here before it goes to ``of_server``.
            if not wanted:
                prepare()
            return check(cells)

        more: dict[int, list[bytes]] = {}
        shard_of: dict[bytes, int] = {}
        wanted: set[tuple[bytes, str]] = set()
        check = only(wanted, PAIR)
        ask_shards(self._shards, by_shard, of_shard, of_server, strange, prepare)
        return more


def _decoded(reader: Reader, row: bytes, shard: int, columns: Sequence[str], of_row: Mapping[str, Row]) -> LatestRow:
    row_key = uuid.UUID(bytes=row)
    cells: dict[str, Cell] = {}
    documents: dict[str, JSONDocument] = {}
    damaged: dict[str, CorruptBody] = {}
    for column in columns:
        stored = of_row.get(column)
        if stored is None:
            continue
        try:
            cell = cells[column] = reader.cell(stored, shard, row_key)
            documents[column] = cell.body
        except CorruptBody as error:
            damaged[column] = error
    return LatestRow(row_key, cells, documents, damaged)
