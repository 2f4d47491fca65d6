"""The rows that an index names, as they are now: the latest cells of some columns, read on their primaries.

The rows of a server are read in one statement, all servers at once. A row is read by one statement: in one snapshot.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Final, NamedTuple

from schemaless.cell import Cell
from schemaless.cluster.placement import shard_for
from schemaless.errors import CorruptBody, ServerError
from schemaless.mysql.pool import NodePool
from schemaless.mysql.sql import indexes as sql
from schemaless.mysql.together import Question, ask
from schemaless.store.index_tables import prove
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
    shard_of = {row: shard_for(row, shards.topology.shard_count) for row in rows}
    for shard in set(shard_of.values()):
        prove(shards, shard)
    known = shards.routing
    by_pool: dict[NodePool | None, dict[int, list[bytes]]] = {}
    for row, shard in shard_of.items():
        by_pool.setdefault(known.proven[shard], {}).setdefault(shard, []).append(row)
    # What is on its way, or was asked for where it is not any more: the usual way says where it is.
    left = [row for of_shard in by_pool.pop(None, {}).values() for row in of_shard]
    questions = []
    for pool, by_shard in by_pool.items():
        assert pool is not None
        wanted = {(row, column) for of_shard in by_shard.values() for row in of_shard for column in columns}
        statement = sql.select_latest_of_rows(
            [(shards.database(shard), of_shard) for shard, of_shard in by_shard.items()], columns
        )
        questions.append(Question(pool, statement, only(wanted, PAIR), next(iter(by_shard)), known))
    for (pool, *_), reply in zip(questions, ask(questions), strict=True):
        if isinstance(reply, ServerError):
            left += [row for of_shard in by_pool[pool].values() for row in of_shard]
            continue
        for cell in reply:
            row_key, cells = found[cell[1]]
            try:
                cells[cell[2]] = reader.cell(cell, shard_of[cell[1]], row_key)
            except CorruptBody as error:
                cells[cell[2]] = error
    for stored in reader.latest_stored((row, column) for row in left for column in columns):
        try:
            found[stored.row_key.bytes].cells[stored.column_name] = stored.decode()
        except CorruptBody as error:
            found[stored.row_key.bytes].cells[stored.column_name] = error
