"""Counts of cells: estimates from the servers' statistics and samples of keys, and exact counts of keys."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Final

from schemaless.store.cells.sql import (
    FRESH_STATISTICS,
    count_cells,
    estimate_cells,
    sample_keys,
    select_ends,
    select_row_key_after,
)
from schemaless.topology.shards import Shards
from schemaless.wire.connection import Connection
from schemaless.wire.node import Node

_BLOCK_CELLS: Final = 20_000
_SAMPLED_SHARDS: Final = 16
_SAMPLED_KEYS: Final = 2_000
"""Number of consecutive keys to sample in a shard."""


def exact_count(shards: Shards, shard: int, column_name: str | None = None, *, block_cells: int = _BLOCK_CELLS) -> int:
    """Count the cells of a shard, or of one of its columns, by reading all keys, block by block."""
    database, after, count = shards.database(shard), b"", 0
    while True:
        end = shards.rows(shard, select_row_key_after(database, after, block_cells))
        up_to = bytes(end[0][0]) if end else None
        count += int(shards.rows(shard, count_cells(database, after, up_to, column_name))[0][0])
        if up_to is None:
            return count
        after = up_to


def estimate_on(shards: Shards, node: Node, databases: Sequence[str]) -> int:
    """Return the number of cells in the databases of some shards on a server, according to its statistics."""

    def read(connection: Connection) -> int:
        if not connection.is_mariadb:
            connection.ensure(FRESH_STATISTICS)
        return int(connection.rows(estimate_cells(databases))[0][0])

    return shards.pool_for(node).run(read)


def column_share(shards: Shards, column_name: str) -> float:
    """Estimate the share of a column's cells from random stretches of keys in some shards; 0 if no cell was found."""
    numbers = range(shards.topology.shard_count)
    seen = found = 0
    for shard in random.sample(numbers, min(len(numbers), _SAMPLED_SHARDS)):
        database = shards.database(shard)
        low, high = shards.rows(shard, select_ends(database))[0]
        if low is not None:
            start = random.randint(int.from_bytes(low), int.from_bytes(high))  # noqa: S311 - a sample
            sql = sample_keys(database, start.to_bytes(len(low)), _SAMPLED_KEYS, column_name)
            keys, of_column = shards.rows(shard, sql)[0]
            seen, found = seen + int(keys), found + int(of_column)
    return found / seen if seen else 0.0
