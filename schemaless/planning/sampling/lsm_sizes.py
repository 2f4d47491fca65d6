"""Sizes of tables in MyRocks: compressed bytes, and the obsolete versions of cells that compaction would remove."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from schemaless.planning.sampling.page_model import MYROCKS, Layout
from schemaless.planning.sampling.sql import select_engines, select_lsm_sizes, select_other_lsm_sizes
from schemaless.schema.engines import ROCKSDB
from schemaless.schema.sql import select_engine_support
from schemaless.wire.connection import Connection

_LEAST_RAW_BYTES: Final = 1 << 18
"""Minimum raw size for measuring compression, in bytes; smaller files consist mostly of metadata."""


@dataclass(frozen=True, slots=True)
class IndexSize:
    """Size that an index of one or more tables has on disk; the latest writes, still in memory, are not included.

    Attributes:
        entries: number of entries, including obsolete versions.
        raw_bytes: their size before compression.
        stored_bytes: their size in files.
    """

    entries: int = 0
    raw_bytes: int = 0
    stored_bytes: int = 0

    def __add__(self, other: IndexSize) -> IndexSize:
        return IndexSize(
            self.entries + other.entries, self.raw_bytes + other.raw_bytes, self.stored_bytes + other.stored_bytes
        )


@dataclass(frozen=True, slots=True)
class LsmSize:
    """Size of one or more ``cell`` tables.

    Attributes:
        rows: the primary key, which holds the bodies.
        keys: the index cell_key. Its entries never change, so it has exactly one for each cell.
    """

    rows: IndexSize = IndexSize()
    keys: IndexSize = IndexSize()

    def __add__(self, other: LsmSize) -> LsmSize:
        return LsmSize(self.rows + other.rows, self.keys + other.keys)

    @property
    def stored_bytes(self) -> int:
        """Size of both indexes in the files, in bytes."""
        return self.rows.stored_bytes + self.keys.stored_bytes

    @property
    def obsolete_bytes(self) -> int:
        """Bytes of the obsolete versions that compaction removes, estimated from their share of the entries."""
        obsolete = max(0, self.rows.entries - self.keys.entries)
        return round(self.rows.stored_bytes * obsolete / self.rows.entries) if self.rows.entries else 0


def lsm_sizes(connection: Connection, databases: Iterable[str] | None = None) -> dict[str, LsmSize]:
    """Return the sizes of the ``cell`` tables in MyRocks, by database, on a server that has MyRocks.

    Args:
        connection: a connection to the server.
        databases: names of the databases; None for all databases of the server.
    """
    sizes: dict[str, LsmSize] = {}
    for database, index, *numbers in connection.rows(select_lsm_sizes(databases)):
        part = IndexSize(*(int(number) for number in numbers))
        added = LsmSize(rows=part) if index == "PRIMARY" else LsmSize(keys=part)
        sizes[str(database)] = sizes.get(str(database), LsmSize()) + added
    return sizes


def other_lsm_sizes(connection: Connection, databases: Iterable[str]) -> dict[str, int]:
    """Return the stored bytes of tables other than ``cell`` in MyRocks by name, summed over ``databases``."""
    if not connection.is_mariadb or not connection.rows(select_engine_support(ROCKSDB.clause)):
        return {}
    rows = connection.rows(select_other_lsm_sizes(databases))
    return {str(table): int(stored) for table, _, _, stored in rows}


def in_myrocks(connection: Connection, databases: Iterable[str]) -> list[str]:
    """Return the databases whose ``cell`` table is in MyRocks."""
    if not connection.is_mariadb:
        return []
    return [str(name) for name, engine in connection.rows(select_engines(databases)) if engine == ROCKSDB.clause]


def lsm_layout(connection: Connection) -> Layout:
    """Return the layout of cells in MyRocks, with the compression ratio measured over all cells on the server."""
    total = sum(lsm_sizes(connection).values(), LsmSize())
    if total.rows.raw_bytes < _LEAST_RAW_BYTES:
        return MYROCKS
    rows, keys = total.rows, total.keys
    key_share = keys.stored_bytes / keys.raw_bytes if keys.raw_bytes else MYROCKS.key_share
    return replace(MYROCKS, row_share=rows.stored_bytes / rows.raw_bytes, key_share=key_share)
