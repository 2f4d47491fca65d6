"""The inside of an open datastore: what jobs, surveys, capacity, administration and the command line may touch.

Applications call ``Datastore``, which shows none of this. ``internals_of`` is the one way from it to here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, Protocol

from schemaless.cell import Page, StoredCell
from schemaless.cells.column_codecs import ColumnCodecs, ColumnSetting, settings
from schemaless.cells.dictionaries import StoredDictionaries
from schemaless.cells.dictionary_replicas import DictionaryReplicas, dictionary_replicas_of
from schemaless.cells.paging import PageSize, Row, every_row
from schemaless.cells.reading import ADDED_ID, Reader
from schemaless.cells.sql import select_block_end, select_by_id, select_id_span
from schemaless.cells.writing import Cells
from schemaless.codec.envelope import Limits
from schemaless.feed.reader import Changes, Tail
from schemaless.indexes.registry import Registry
from schemaless.indexes.row_fetch import RowReader
from schemaless.keys import check_column_name
from schemaless.topology.model import Topology, check_shard
from schemaless.topology.shards import Shards
from schemaless.wire.connection import Check, Rows
from schemaless.wire.node import Node
from schemaless.wire.pool import NodePool, PoolOptions
from schemaless.wire.urls import ServerURL

_SCANNED_ROWS: Final = 10_000
_ASK_CONNECT_S: Final = 2.0
_ASK_READ_S: Final = 5.0


class Internals:
    """What one open datastore is made of; shared by threads as that is.

    Attributes:
        url: the catalog's server and the datastore's name.
        limits: how much one body may become.
        shards: the way to every shard's server.
        dictionaries: those that its bodies name.
        columns: what each column's new bodies are written in.
        reader: reads cells by their keys.
        rows: reads the rows that secondary indexes name.
        cells: writes cells, once.
        changes: the change feeds of its shards.
        registry: which secondary indexes there are.
    """

    def __init__(
        self, shards: Shards, url: ServerURL, limits: Limits, columns: Sequence[ColumnSetting] | None = None
    ) -> None:
        """Make them; no server is asked.

        Args:
            shards: the way to every shard's server.
            url: the catalog's server and the datastore's name.
            limits: how much one body may become.
            columns: what the catalog said just now, if it was asked.
        """
        self.url = url
        self.limits = limits
        self.shards = shards
        self.dictionaries = StoredDictionaries(lambda: self.dictionary_replicas)
        self.columns = ColumnCodecs(self._read_settings, self.dictionaries, columns)
        self.reader = Reader(shards, limits, self.dictionaries)
        self.rows = RowReader(shards, self.reader, Reader(shards, limits, self.dictionaries.at_hand))
        self.cells = Cells(shards, self.reader)
        self.changes = Changes(shards)
        self.registry = Registry(lambda: self.catalog, shards.topology.name)
        shards.known_tables = self.registry.expects

    @property
    def topology(self) -> Topology:
        """The shards and their servers, as far as is known; another one after a change of it."""
        return self.shards.topology

    @property
    def catalog(self) -> NodePool:
        """The connections to the catalog's server."""
        return self.shards.pool_for(self._catalog_node)

    @property
    def dictionary_replicas(self) -> DictionaryReplicas:
        """The catalog's dictionaries, and the copies that clusters have."""
        return dictionary_replicas_of(self.topology, self.catalog, self.shards.pool_for)

    @property
    def _catalog_node(self) -> Node:
        return self.shards.catalog or self.url.node

    def _read_settings(self) -> Sequence[ColumnSetting]:
        # Not of the pool: a process that writes to other servers keeps no connection to this one, and waits for it no
        # longer than a write may.
        options = PoolOptions(_ASK_CONNECT_S, _ASK_READ_S, _ASK_READ_S, 1)
        pool = self.shards.new_pool(self._catalog_node, options)
        try:
            return settings(pool, self.topology.name)
        finally:
            pool.close()

    def scan(
        self,
        shard: int,
        *,
        after: int = 0,
        up_to: int | None = None,
        legacy_only: bool = False,
        column_name: str | None = None,
        block_rows: int = _SCANNED_ROWS,
    ) -> Iterator[StoredCell]:
        """Read what a shard holds now; see ``Datastore.scan_shard``.

        Args:
            shard: its number.
            after: only cells with a higher added_id.
            up_to: only cells up to this added_id.
            legacy_only: only bodies without an envelope.
            column_name: only cells of this column.
            block_rows: how many rows a statement about a column goes over, at most.
        """
        check_shard(shard, self.topology.shard_count)
        parts: Iterable[tuple[int, int | None]] = [(after, up_to)]
        if column_name is not None:
            check_column_name(column_name)
            # A statement about a column that is rare there would go over the whole shard.
            blocks = self.id_blocks(shard, block_rows, after=after, up_to=up_to)
            parts = ((low, high) for low, high, _ in blocks)
        size, database = PageSize(), self.shards.database(shard)

        def read(sql: bytes, check: Check | None) -> Rows:
            return self.shards.rows(shard, sql, check=check)

        return (
            self.reader.stored(row, shard)
            for low, high in parts
            for row in every_row(read, size, database, low, high, legacy_only=legacy_only, column_name=column_name)
        )

    def stored_cell(self, row: Row, shard: int) -> StoredCell:
        """Return a row of ``sql.cells`` that is a whole cell as one."""
        return self.reader.stored(row, shard)

    def stored_tails(self, tails: Sequence[Tail], column_name: str | None) -> dict[int, Page[StoredCell]]:
        """Read the next cells of many shards' change feeds at once; those that take more than that are absent.

        What is absent is read by ``Datastore.get_stored_cells_for_shard``.
        """
        return {
            shard: Page([self.reader.stored(row, shard) for row in rows], next_location, held)
            for shard, (rows, next_location, held) in self.changes.tails(tails, column_name).items()
        }

    def read_stored(self, shard: int, ids: Sequence[int]) -> Iterator[StoredCell]:
        """Read the cells with these added_ids from a shard's primary; those that are gone are absent."""
        sql = select_by_id(self.shards.database(shard), ids)
        rows = self.reader.select(shard, sql, "primary", {(added_id,) for added_id in ids}, ADDED_ID)
        return (self.reader.stored(row, shard) for row in rows)

    def chosen_shards(self, shards: Iterable[int] | None) -> list[int]:
        """Return shards in their order, each once; all unless some are named.

        Raises:
            InvalidInput: there is no such shard.
        """
        count = self.topology.shard_count
        return sorted({check_shard(shard, count) for shard in (range(count) if shards is None else shards)})

    def databases_by_node(self, shards: Iterable[int]) -> dict[Node, dict[str, int]]:
        """Return, for each primary, the databases of these shards that it has, and whose each is."""
        databases: dict[Node, dict[str, int]] = {}
        for shard in shards:
            databases.setdefault(self.shards.node_of(shard), {})[self.shards.database(shard)] = shard
        return databases

    def id_span(self, shard: int) -> int:
        """Return how many added_ids a shard's cells span, gaps included; 0 for an empty one."""
        check_shard(shard, self.topology.shard_count)
        low, high = self.shards.rows(shard, select_id_span(self.shards.database(shard)))[0]
        return 0 if low is None else int(high) - int(low) + 1

    def id_blocks(
        self, shard: int, rows: int, *, after: int = 0, up_to: int | None = None
    ) -> Iterator[tuple[int, int, int]]:
        """Yield runs of neighbouring rows as ``(after, up_to, rows)``, reading their ids only.

        For work whose statements must stay short, however large the shard.
        """
        check_shard(shard, self.topology.shard_count)
        while True:
            sql = select_block_end(self.shards.database(shard), after, rows, up_to)
            last, count = self.shards.rows(shard, sql)[0]
            if not count:
                return
            yield after, int(last), int(count)
            after = int(last)


class Opened(Protocol):
    """Whatever has been opened and keeps its tools to itself: a ``Datastore``."""

    _internals: Internals


def internals_of(store: Opened) -> Internals:
    """Return an open datastore's inside, for this package's own tools; no application needs it."""
    return store._internals  # noqa: SLF001 - the one place that may
