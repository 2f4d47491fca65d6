"""The rows that an index names, as they are now: the latest cells of some columns, read on their primaries.

The rows of a server are read in one statement, all servers at once. A row is read by one statement: in one snapshot.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from schemaless.cell import Cell
from schemaless.cluster.placement import shard_for
from schemaless.errors import CorruptBody
from schemaless.mysql.sql import indexes as sql
from schemaless.store.asking import rows_of_shards
from schemaless.store.reading import PAIR, only
from schemaless.store.tools import Tools

_READ_AT_ONCE: Final = 200


class LatestRow(NamedTuple):
    """A row, as it was read.

    Attributes:
        cells: the latest cell of each column that was asked for and that it has; why it cannot be read where its body
            does not decode.
    """

    row_key: uuid.UUID
    cells: dict[str, Cell | CorruptBody]


def read_rows(tools: Tools, rows: Sequence[bytes], columns: Sequence[str]) -> list[LatestRow]:
    """Read the latest cells of some columns of rows, in their order."""
    found = {row: LatestRow(uuid.UUID(bytes=row), {}) for row in rows}
    keys = list(found)
    for start in range(0, len(keys), _READ_AT_ONCE):
        _read(tools, keys[start : start + _READ_AT_ONCE], columns, found)
    return [found[row] for row in rows]


def _read(tools: Tools, rows: Sequence[bytes], columns: Sequence[str], found: dict[bytes, LatestRow]) -> None:
    shards, reader = tools.shards, tools.reader
    by_shard: dict[int, list[bytes]] = {}
    for row in rows:
        by_shard.setdefault(shard_for(row, shards.topology.shard_count), []).append(row)
    selects = {
        shard: sql.select_latest_of_rows(shards.database(shard), of_shard, columns)
        for shard, of_shard in by_shard.items()
    }
    shard_of = {row: shard for shard, of_shard in by_shard.items() for row in of_shard}
    wanted = {(row, column) for row in rows for column in columns}
    # Typed for what every query gives, and these give cells.
    cells: Any = rows_of_shards(shards, selects, only(wanted, PAIR))
    for cell in cells:
        row_key, of_row = found[cell[1]]
        try:
            of_row[cell[2]] = reader.cell(cell, shard_of[cell[1]], row_key)
        except CorruptBody as error:
            of_row[cell[2]] = error
