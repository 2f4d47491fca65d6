"""The rows that an index names, as they are now: the latest cells of some columns, read on their primaries.

The rows of a server are read in one statement, all servers at once. A row is read by one statement: in one snapshot.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from schemaless.cell import Cell
from schemaless.cluster.placement import shard_for
from schemaless.errors import CorruptBody
from schemaless.mysql.sql import indexes as sql
from schemaless.store.asking import rows_of_shards
from schemaless.store.paging import Row
from schemaless.store.reading import PAIR, Reader, only
from schemaless.store.shards import Shards

_READ_AT_ONCE: Final = 200

_VERSIONS: Final = 3
"""So many versions of a row's column are sent, on the average of a shard's rows, to save a search for each of them."""

_EXACT_READS: Final = 50
"""So often the latest versions are searched for one by one, after rows that had too many of them."""


class LatestRow(NamedTuple):
    """A row, as it was read.

    Attributes:
        cells: the latest cell of each column that was asked for and that it has; why it cannot be read where its body
            does not decode.
    """

    row_key: uuid.UUID
    cells: dict[str, Cell | CorruptBody]


class RowReader:
    """Reads the latest cells of rows; shared by threads.

    A server takes longer to begin a search than to read a row beside another one. So it is asked for all versions of a
    shard's rows at once, though not too many. Rows that have more are read again, each column's latest by a search of
    its own; and then all are for a while, of these columns.
    """

    def __init__(self, shards: Shards, reader: Reader, exact_reads: int = _EXACT_READS) -> None:
        self._shards = shards
        self._reader = reader
        self._exact_reads = exact_reads
        self._exact: dict[tuple[str, ...], int] = {}

    def read(self, rows: Sequence[bytes], columns: Sequence[str]) -> list[LatestRow]:
        """Read the latest cells of some columns of rows, in their order."""
        shard_count = self._shards.topology.shard_count
        shard_of = {row: shard_for(row, shard_count) for row in rows}
        latest: dict[bytes, dict[str, Row]] = {row: {} for row in shard_of}
        places = list(shard_of.items())
        for start in range(0, len(places), _READ_AT_ONCE):
            self._read(places[start : start + _READ_AT_ONCE], tuple(columns), latest)
        by_row = {row: self._decoded(row, shard, latest[row]) for row, shard in places}
        return [by_row[row] for row in rows]

    def _decoded(self, row: bytes, shard: int, of_row: dict[str, Row]) -> LatestRow:
        row_key = uuid.UUID(bytes=row)
        cells: dict[str, Cell | CorruptBody] = {}
        for column, cell in of_row.items():
            try:
                cells[column] = self._reader.cell(cell, shard, row_key)
            except CorruptBody as error:
                cells[column] = error
        return LatestRow(row_key, cells)

    def _read(
        self, places: Iterable[tuple[bytes, int]], columns: tuple[str, ...], latest: dict[bytes, dict[str, Row]]
    ) -> None:
        """Read the latest versions of some rows, given with their shards, into ``latest``."""
        by_shard: dict[int, list[bytes]] = {}
        for row, shard in places:
            by_shard.setdefault(shard, []).append(row)
        exact = self._exact.get(columns, 0)
        if exact:
            self._exact[columns] = exact - 1
        else:
            by_shard = self._read_versions(by_shard, columns, latest)
            if by_shard:
                self._exact[columns] = self._exact_reads
        self._select(by_shard, columns, sql.select_latest_of_rows, latest)

    def _read_versions(
        self, by_shard: Mapping[int, list[bytes]], columns: tuple[str, ...], latest: dict[bytes, dict[str, Row]]
    ) -> dict[int, list[bytes]]:
        """Read some rows into ``latest`` by their versions; return those of shards that have more, which it lacks."""
        most = _VERSIONS * len(columns)

        def select(database: str, of_shard: Sequence[bytes], columns: tuple[str, ...]) -> bytes:
            return sql.select_versions_of_rows(database, of_shard, columns, most * len(of_shard))

        counts = self._select(by_shard, columns, select, latest)
        more: dict[int, list[bytes]] = {}
        for shard, of_shard in by_shard.items():
            if counts[shard] == most * len(of_shard):
                for row in of_shard:
                    latest[row].clear()
                more[shard] = of_shard
        return more

    def _select(
        self,
        by_shard: Mapping[int, list[bytes]],
        columns: tuple[str, ...],
        select: Callable[[str, Sequence[bytes], tuple[str, ...]], bytes],
        latest: dict[bytes, dict[str, Row]],
    ) -> dict[int, int]:
        """Read cells of some rows, the latest of each column into ``latest``; return how many came, by shard."""
        if not by_shard:
            return {}

        def of_shard(shard: int) -> bytes:
            return select(self._shards.database(shard), by_shard[shard], columns)

        shard_of = {row: shard for shard, rows in by_shard.items() for row in rows}
        wanted = {(row, column) for row in shard_of for column in columns}
        counts = dict.fromkeys(by_shard, 0)
        # Typed for what every query gives, and these give cells.
        cells: Any = rows_of_shards(self._shards, by_shard, of_shard, only(wanted, PAIR))
        for cell in cells:
            row, column = cell[1], cell[2]
            counts[shard_of[row]] += 1
            of_row = latest[row]
            known = of_row.get(column)
            if known is None or known[3] < cell[3]:
                of_row[column] = cell
        return counts
