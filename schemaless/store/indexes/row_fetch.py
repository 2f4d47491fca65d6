"""Row fetcher for index queries: reads the latest cells of many rows from their primaries.

Each server gets one statement for all of its rows, and the servers work at the same time. A row is always read by a
single statement, so its cells come from one snapshot.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import product
from typing import Any, Final, NamedTuple

from schemaless.base.parts import grouped
from schemaless.base.type_variables import T
from schemaless.cell import Cell, JSONDocument
from schemaless.errors import CorruptBody
from schemaless.store.cells.reading import PAIR, Reader, only_requested
from schemaless.store.cells.sql import Row
from schemaless.store.indexes import sql
from schemaless.topology.placement import shard_for
from schemaless.topology.scatter_gather import query_shards
from schemaless.topology.shards import Shards

_ROWS_PER_ROUND_TRIP: Final = 200

_MAX_VERSIONS: Final = 3
"""Limit on the average number of versions fetched per row and column of a shard."""

_EXACT_READS: Final = 50
"""Number of reads that look up each latest version separately after a read has found rows with too many versions."""

LatestCells = dict[str, Row]
"""The latest cell of each column of a row, by column name."""


class LatestRow(NamedTuple):
    """The latest cells of a row, decoded.

    Attributes:
        row_key: the row.
        cells: the latest cell of each requested column that the row has, in the order of the request.
        documents: the documents of these cells, by column name.
        damaged: the error for each column whose latest cell cannot be decoded; such a cell is not in ``cells``.
    """

    row_key: uuid.UUID
    cells: dict[str, Cell]
    documents: dict[str, JSONDocument]
    damaged: dict[str, CorruptBody]


class RowReader:
    """Reads the latest cells of rows. Thread-safe.

    Starting a search takes a server longer than reading the next row of an index. So the reader fetches all versions of
    a shard's rows by one range scan, up to a limit. If a shard reaches the limit, its rows are fetched again with a
    separate search for the latest version of each column; the next reads of the same columns begin with these searches.
    """

    def __init__(self, shards: Shards, reader: Reader, local_reader: Reader, exact_reads: int = _EXACT_READS) -> None:
        """Create the reader; no server is contacted.

        Args:
            shards: the datastore's shards.
            reader: decodes cells and fetches the dictionaries that they need.
            local_reader: decodes cells with the dictionaries that are in memory, since fetching one would take another
                connection while some are held.
            exact_reads: number of reads that look up each latest version separately, after one that found rows with too
                many versions.
        """
        self._shards = shards
        self._reader = reader
        self._local_reader = local_reader
        self._exact_reads = exact_reads
        self._exact_reads_left: dict[tuple[str, ...], int] = {}

    def read(
        self,
        row_keys: Sequence[bytes],
        columns: Sequence[str],
        convert: Callable[[LatestRow], T],
        while_waiting: Callable[[], object] = lambda: None,
    ) -> list[T]:
        """Read the latest cells of some columns of rows.

        Rows of one server are decoded and converted while the other servers work.

        Args:
            row_keys: the rows, each once.
            columns: the names of the columns.
            convert: called once for each row, including rows without cells; must not query a server.
            while_waiting: called while servers work, zero or more times; must not query a server.

        Returns:
            The results of ``convert``, in the order of ``row_keys``.
        """
        names = tuple(columns)
        shard_count = self._shards.topology.shard_count
        shard_of = {row_key: shard_for(row_key, shard_count) for row_key in row_keys}
        converted: dict[bytes, T] = {}
        undecoded: dict[bytes, LatestCells] = {}

        def on_row(row_key: bytes, cells: LatestCells) -> None:
            row = _decoded(self._local_reader, row_key, shard_of[row_key], names, cells)
            if row.damaged:
                # The body may only need a dictionary that is not in memory, or be in a cold file.
                undecoded[row_key] = cells
            else:
                converted[row_key] = convert(row)

        for start in range(0, len(row_keys), _ROWS_PER_ROUND_TRIP):
            part = row_keys[start : start + _ROWS_PER_ROUND_TRIP]
            self._fetch({row_key: shard_of[row_key] for row_key in part}, names, on_row, while_waiting)
        completed = self._reader.completed([cell for cells in undecoded.values() for cell in cells.values()])
        for cell in completed:
            undecoded[cell[1]][cell[2]] = cell
        for row_key in row_keys:
            if row_key not in converted:
                cells = undecoded.get(row_key, {})
                converted[row_key] = convert(_decoded(self._reader, row_key, shard_of[row_key], names, cells))
        return [converted[row_key] for row_key in row_keys]

    def _fetch(
        self,
        shard_of: Mapping[bytes, int],
        columns: tuple[str, ...],
        on_row: Callable[[bytes, LatestCells], None],
        while_waiting: Callable[[], object],
    ) -> None:
        """Call ``on_row`` for each of these rows that has cells."""
        exact_reads_left = self._exact_reads_left.get(columns, 0)
        if exact_reads_left:
            self._exact_reads_left[columns] = exact_reads_left - 1
        else:
            limit = _MAX_VERSIONS * len(columns)
            select = partial(sql.select_versions_of_rows, versions=limit)
            overfull = self._query(shard_of, columns, select, limit, on_row, while_waiting)
            if not overfull:
                return
            self._exact_reads_left[columns] = self._exact_reads
            shard_of = {row_key: shard for row_key, shard in shard_of.items() if shard in overfull}
        self._query(shard_of, columns, sql.select_latest_of_rows, None, on_row, while_waiting)

    def _query(
        self,
        shard_of: Mapping[bytes, int],
        columns: tuple[str, ...],
        select: Callable[[str, Sequence[bytes], tuple[str, ...]], bytes],
        limit: int | None,
        on_row: Callable[[bytes, LatestCells], None],
        while_waiting: Callable[[], object],
    ) -> set[int]:
        """Query the shards of some rows, and call ``on_row`` with the latest cells of each row.

        Args:
            shard_of: the rows, with their shards.
            columns: the names of the columns.
            select: returns the query for rows of one database.
            limit: the average number of cells per row of a shard at which that query stops; None if it returns
                everything.
            on_row: called for each row that has cells.
            while_waiting: as for ``read``.

        Returns:
            The shards whose query reached the limit. ``on_row`` was called for none of their rows.
        """
        rows_of = grouped((shard, row_key) for row_key, shard in shard_of.items())
        overfull: set[int] = set()

        def statement(shard: int) -> bytes:
            return select(self._shards.database(shard), rows_of[shard], columns)

        def on_cells(cells: Iterable[Any]) -> None:
            counts = dict.fromkeys(rows_of, 0)
            latest: dict[bytes, LatestCells] = {}
            for cell in cells:
                _, row_key, column, ref_key, _, _ = cell
                counts[shard_of[row_key]] += 1
                of_row = latest.setdefault(row_key, {})
                if of_row.setdefault(column, cell)[3] < ref_key:
                    of_row[column] = cell
            if limit is not None:
                overfull.update(shard for shard, rows in rows_of.items() if counts[shard] == limit * len(rows))
            for row_key, of_row in latest.items():
                if shard_of[row_key] not in overfull:
                    on_row(row_key, of_row)

        check = only_requested(set(product(shard_of, columns)), PAIR)
        query_shards(self._shards, rows_of, statement, on_cells, check, while_waiting)
        return overfull


def _decoded(reader: Reader, row: bytes, shard: int, columns: Sequence[str], latest: Mapping[str, Row]) -> LatestRow:
    row_key = uuid.UUID(bytes=row)
    cells: dict[str, Cell] = {}
    documents: dict[str, JSONDocument] = {}
    damaged: dict[str, CorruptBody] = {}
    for column in columns:
        stored = latest.get(column)
        if stored is None:
            continue
        try:
            cell = reader.cell(stored, shard, row_key)
            if not cell.erased:
                cells[column] = cell
                documents[column] = cell.body
        except CorruptBody as error:
            damaged[column] = error
    return LatestRow(row_key, cells, documents, damaged)
