"""The internals of an open datastore, for the operations of this package: jobs, surveys, administration, commands.

Applications use ``Datastore``, which exposes none of this. ``internals_of`` is the only way to get an ``Internals``
from it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Final, Protocol

from schemaless.base.keys import check_column_name, check_each
from schemaless.cell import Cell, StoredCell
from schemaless.codec.deltas import Payloads
from schemaless.codec.envelope import Limits
from schemaless.store.cells.cold_bodies import ColdBodies
from schemaless.store.cells.column_codecs import ColumnCodecs, ColumnSetting, settings
from schemaless.store.cells.counting import column_share, estimate_on, exact_count
from schemaless.store.cells.dictionaries import StoredDictionaries
from schemaless.store.cells.dictionary_replicas import DictionaryReplicas
from schemaless.store.cells.paging import PageSize, Scan
from schemaless.store.cells.reading import ADDED_ID, Reader, Source
from schemaless.store.cells.sql import select_block_end, select_by_id, select_id_span, select_row_keys
from schemaless.store.cells.writing import Cells
from schemaless.store.cold.settings import ColdSettings
from schemaless.store.erasures.eraser import Erasures
from schemaless.store.erasures.holds import Holds
from schemaless.store.erasures.retention import Policies
from schemaless.store.feed.reader import Changes
from schemaless.store.feed.sql import select_first_since
from schemaless.store.followers.access import DatastoreAccess
from schemaless.store.indexes.registry import Registry
from schemaless.store.indexes.row_fetch import RowReader
from schemaless.topology.model import Topology, check_shard
from schemaless.topology.pinging import Server, servers_of
from schemaless.topology.shards import ReadFrom, Shards
from schemaless.wire.node import Node
from schemaless.wire.pool import NodePool, PoolOptions
from schemaless.wire.urls import ServerURL

_ROWS_PER_BLOCK: Final = 10_000
_ROWS_PER_PAGE: Final = 64
"""Number of rows to read the latest cells of at a time; each cell may have 16 MiB."""

_SINCE_MARGIN: Final = timedelta(minutes=10)
"""How much earlier than a given time to begin, because ``created_at`` is not in commit order."""

_END_TIMEOUT_S: Final = 30.0
_SETTINGS_CONNECT_TIMEOUT_S: Final = 2.0
_SETTINGS_REPLY_TIMEOUT_S: Final = 5.0


class Internals:
    """The parts of an open datastore, wired together. Thread-safe.

    Attributes:
        url: the catalog's server and the datastore's name.
        limits: limits of a decoded document.
        allow_nan: whether new documents may hold NaN and infinities.
        shards: routes calls to the shards' servers.
        dictionaries: the dictionaries that bodies refer to.
        columns: the codec of each column.
        reader: reads cells by their keys.
        rows: fetches the rows that index entries refer to.
        cells: writes cells.
        changes: the change feeds of the shards.
        registry: the catalog's list of secondary indexes.
        erasures: erases cells.
        cold: says where cold files are.
        cold_bodies: reads the documents of cold cells.
    """

    def __init__(
        self,
        shards: Shards,
        url: ServerURL,
        limits: Limits,
        columns: Sequence[ColumnSetting] | None = None,
        *,
        allow_nan: bool = False,
    ) -> None:
        """Create the parts; no server is contacted.

        Args:
            shards: routes calls to the shards' servers.
            url: the catalog's server and the datastore's name.
            limits: limits of a decoded document.
            columns: the column settings, if they were just read from the catalog.
            allow_nan: whether new documents may hold NaN and infinities.
        """
        self.url = url
        self.limits = limits
        self.allow_nan = allow_nan
        self.shards = shards
        self.dictionaries: StoredDictionaries = StoredDictionaries(lambda: self.dictionary_replicas, shards.runtime)
        self.columns: ColumnCodecs = ColumnCodecs(self._read_settings, self.dictionaries, columns)
        self.cold: ColdSettings = ColdSettings(lambda: self.catalog, shards.topology.name)
        self.cold_bodies: ColdBodies = ColdBodies(shards, self.cold, limits)
        self.reader: Reader = Reader(shards, limits, self.dictionaries, self.cold_bodies)
        local_reader = Reader(shards, limits, self.dictionaries.in_memory, self.cold_bodies)
        self.rows: RowReader = RowReader(shards, self.reader, local_reader)
        self.cells: Cells = Cells(shards, self.reader)
        self.changes: Changes = Changes(shards, self.cold_bodies)
        self.registry: Registry = Registry(lambda: self.catalog, shards.topology.name)
        shards.router.known_tables = self.registry.expects
        self.erasures: Erasures = Erasures(shards, self.reader, self.registry, lambda: self.catalog)
        self.policies: Policies = Policies(lambda: self.catalog, shards.topology.name)
        self.holds: Holds = self.erasures.ledger.holds

    @property
    def topology(self) -> Topology:
        """The shards and their servers, as last read from the catalog; replaced when they change."""
        return self.shards.topology

    @property
    def catalog(self) -> NodePool:
        """The connections to the catalog's server."""
        return self.shards.pool_for(self._catalog_node)

    @property
    def follower_access(self) -> DatastoreAccess:
        """The parts of the datastore that followers and their workers use."""
        return DatastoreAccess(self.shards, lambda: self.catalog, self.changes, self.reader)

    @property
    def dictionary_replicas(self) -> DictionaryReplicas:
        """The catalog's dictionaries and the copies on the clusters."""
        return DictionaryReplicas.of(self.topology, self.catalog, self.shards.pool_for)

    def servers(self) -> list[Server]:
        """Return the servers that ``Datastore.ping`` queries."""
        return servers_of(self.shards, self._catalog_node)

    @property
    def _catalog_node(self) -> Node:
        return self.shards.router.catalog or self.url.node

    def _read_settings(self) -> Sequence[ColumnSetting]:
        # A separate pool with short timeouts: a process that writes to other servers keeps no connection to the
        # catalog's, and a write must not wait for it.
        options = PoolOptions(_SETTINGS_CONNECT_TIMEOUT_S, _SETTINGS_REPLY_TIMEOUT_S, _SETTINGS_REPLY_TIMEOUT_S, 1)
        pool = self.shards.pools.new_pool(self._catalog_node, options)
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
        block_rows: int = _ROWS_PER_BLOCK,
        cold: bool = True,
    ) -> Iterator[StoredCell]:
        """Read the current cells of a shard; see ``Datastore.scan_shard``.

        Args:
            shard: its number.
            after: return only cells with a higher added_id.
            up_to: return only cells up to this added_id.
            legacy_only: return only cells whose body has no envelope.
            column_name: return only cells of this column.
            block_rows: maximum number of rows that one statement examines when ``column_name`` is given.
            cold: read the documents of cold cells; otherwise, their bodies are references without them.
        """
        check_shard(shard, self.topology.shard_count)
        parts: Iterable[tuple[int, int | None]] = [(after, up_to)]
        if column_name is not None:
            check_column_name(column_name)
            # A single statement about a rare column would examine the whole shard.
            blocks = self.id_blocks(shard, block_rows, after=after, up_to=up_to)
            parts = ((low, high) for low, high, _ in blocks)
        run, database = partial(self.shards.run, shard), self.shards.database(shard)
        complete = partial(self.cold_bodies.completed, shard=shard) if cold else None
        scan = Scan(run, database, PageSize(), legacy_only, column_name, Payloads(), complete)
        return (self.reader.stored(row, shard) for low, high in parts for row in scan.rows(low, high))

    def read_stored(
        self, shard: int, ids: Sequence[int], read_from: ReadFrom = "primary", *, cold: bool = True
    ) -> Iterator[StoredCell]:
        """Read the cells with these added_ids from a shard; missing cells are left out.

        Without ``cold``, the bodies of cold cells are references without their documents.
        """
        sql = select_by_id(self.shards.database(shard), ids)
        rows = self.reader.select(shard, sql, {(added_id,) for added_id in ids}, ADDED_ID, Source(read_from), cold=cold)
        return (self.reader.stored(row, shard) for row in rows)

    def chosen_shards(self, shards: Iterable[int] | None) -> list[int]:
        """Return shard numbers in ascending order, without duplicates; all shards for None.

        Raises:
            InvalidInput: there is no shard with one of these numbers.
        """
        count = self.topology.shard_count
        chosen = range(count) if shards is None else shards
        return sorted({*check_each(chosen, "shards", lambda shard: check_shard(shard, count))})

    def latest_cells(self, shard: int, columns: Sequence[str] | None) -> Iterator[Cell]:
        """Read the latest cells of all rows of a shard, in order of their row_keys; erased cells are left out."""
        after = b""
        while keys := self.shards.rows(shard, select_row_keys(self.shards.database(shard), after, _ROWS_PER_PAGE)):
            row_keys = [bytes(key[0]) for key in keys]
            for cells in self.reader.rows(row_keys, columns, None, "primary").values():
                yield from cells.values()
            after = row_keys[-1]

    def count(self, column_name: str | None, *, exact: bool) -> int:
        """Return the number of cells of the datastore, or of one column; see ``Datastore.count``."""
        if exact:
            return sum(exact_count(self.shards, shard, column_name) for shard in range(self.topology.shard_count))
        by_node = self.databases_by_node(range(self.topology.shard_count))
        cells = sum(estimate_on(self.shards, node, list(databases)) for node, databases in by_node.items())
        return cells if column_name is None else round(cells * column_share(self.shards, column_name))

    def databases_by_node(self, shards: Iterable[int]) -> dict[Node, dict[str, int]]:
        """Return the databases of these shards, with their shard numbers, grouped by primary."""
        databases: dict[Node, dict[str, int]] = {}
        for shard in shards:
            databases.setdefault(self.shards.node_of(shard), {})[self.shards.database(shard)] = shard
        return databases

    def id_span(self, shard: int) -> int:
        """Return the number of added_ids from a shard's first cell to its last, gaps included; 0 if it is empty."""
        check_shard(shard, self.topology.shard_count)
        low, high = self.shards.rows(shard, select_id_span(self.shards.database(shard)))[0]
        return 0 if low is None else int(high) - int(low) + 1

    def id_blocks(
        self, shard: int, rows: int, *, after: int = 0, up_to: int | None = None
    ) -> Iterator[tuple[int, int, int]]:
        """Yield blocks of consecutive rows as ``(after, up_to, rows)``, reading only their keys.

        Use it if statements must stay short regardless of the size of the shard.
        """
        check_shard(shard, self.topology.shard_count)
        while True:
            sql = select_block_end(self.shards.database(shard), after, rows, up_to)
            last, count = self.shards.rows(shard, sql)[0]
            if not count:
                return
            yield after, int(last), int(count)
            after = int(last)

    def location_since(self, shard: int, since: datetime) -> int:
        """Return a location before all of a shard's cells stored at ``since`` or later, with a margin of 10 minutes."""
        at = (since.astimezone(UTC) - _SINCE_MARGIN).replace(tzinfo=None).isoformat(" ")
        database = self.shards.database(shard)
        for after, up_to, _ in self.id_blocks(shard, _ROWS_PER_BLOCK):
            rows = self.shards.rows(shard, select_first_since(database, after, up_to, at))
            if rows:
                return int(rows[0][0]) - 1
        return self.changes.end(shard, _END_TIMEOUT_S)


class Opened(Protocol):
    """An object that keeps the internals of an open datastore private: a ``Datastore``."""

    _internals: Internals


def internals_of(store: Opened) -> Internals:
    """Return the internals of an open datastore, for this package's own operations."""
    return store._internals  # noqa: SLF001 - the only place that may access them
