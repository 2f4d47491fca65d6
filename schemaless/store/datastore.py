"""``connect()`` and ``Datastore``: the calls that applications use."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import NoReturn, Self

from schemaless.cell import Cell, JSONDocument, NewCell, NewStoredCell, Page, Put, RowKey, StoredCell
from schemaless.cluster.placement import shard_for
from schemaless.cluster.topology import Topology, check_shard
from schemaless.codec.envelope import DEFAULT_LIMITS, Limits, check_length, decode_body, encode_body, same_put
from schemaless.codec.registry import Codec, codec_named
from schemaless.errors import InvalidBody, InvalidCell, InvalidInput
from schemaless.keys import MAX_REF_KEY, cell_key, check_column_name, check_created_at, check_ref_key, row_key_bytes
from schemaless.mysql.connection import Check, Rows
from schemaless.mysql.pool import NodePool, PoolOptions
from schemaless.mysql.pools import Pools
from schemaless.mysql.secret import Secret
from schemaless.mysql.sql.cells import (
    select_block_end,
    select_by_id,
    select_cells,
    select_column_names,
    select_id_span,
    select_latest,
    select_row,
    select_versions,
)
from schemaless.mysql.urls import ServerURL, datastore_url
from schemaless.store.catalog import read_ready
from schemaless.store.cells import ADDED_ID, PAIR, PLACE, ROW_KEY, Cells, EncodedCell, Place, encoded_cell
from schemaless.store.changes import Changes
from schemaless.store.columns import ColumnCodecs, ColumnSetting, settings
from schemaless.store.dictionaries import StoredDictionaries
from schemaless.store.pages import PageSize, Row, every_row, read_versions
from schemaless.store.shards import ReadFrom, Shards

_PAIRS_PER_SELECT = 200
_MAX_PAGE_CELLS = 100_000
_SCANNED_ROWS = 10_000
_ASK_CONNECT_S = 2.0
_ASK_READ_S = 5.0


def connect(
    url: str,
    *,
    connect_timeout_s: float = 10,
    read_timeout_s: float = 60,
    write_timeout_s: float = 60,
    pool_size: int = 8,
    limits: Limits = DEFAULT_LIMITS,
) -> Datastore:
    """Open a datastore.

    Args:
        url: the catalog's server and the datastore's name, such as ``mysql://app@db-1:3306/mezzanine`` or
            ``mysql://app@/mezzanine?unix_socket=/run/mysqld.sock``. The account serves for every node of the datastore;
            a password stands in the URL, in ``SCHEMALESS_PASSWORD``, or in the option file that the URL names by
            ``?read_default_file=``. ``?ssl_mode=`` and ``?ssl_ca=`` say how connections are encrypted, and what a
            server's certificate has to prove.
        connect_timeout_s: how long a server may take to answer a new connection.
        read_timeout_s: how long a reply may take.
        write_timeout_s: how long sending may take.
        pool_size: connections to each server, at most.
        limits: the largest document to decode.

    Returns:
        An open datastore: a context manager, safe to share between threads and across ``fork``.

    Raises:
        InvalidInput: the URL cannot be used.
        DatastoreNotFound: there is no such datastore, or its creation was interrupted.
        TopologyError: the catalog cannot be used by this version.
        ServerError: the catalog's server cannot be reached, or refuses.
    """
    address = Secret(url)
    del url  # a failure's traceback shows the variables of this call
    parsed, _ = datastore_url(address)
    return Opening(parsed, PoolOptions(connect_timeout_s, read_timeout_s, write_timeout_s, pool_size), limits).open()


@dataclass(frozen=True, slots=True)
class Opening:
    """All that it takes to open a datastore: what a job hands to its worker processes, the password sealed for them.

    Attributes:
        url: the catalog's server and the datastore's name, as ``datastore_url`` returns them.
        topology: as the catalog has it; None reads it there.
    """

    url: ServerURL = field(repr=False)
    options: PoolOptions
    limits: Limits
    topology: Topology | None = None

    def open(self) -> Datastore:
        """Open it; raises what ``connect`` raises."""
        pools = Pools(self.url.credentials, self.options)
        if self.topology is not None:
            return Datastore(Shards(self.topology, pools), self, None)
        name = self.url.database
        assert name is not None
        catalog = pools.pool_for(self.url.node)
        try:
            entry = read_ready(catalog, name)
        except BaseException:
            pools.close()
            raise
        if all(node.having("primary") != catalog.node for cluster in entry.topology.clusters for node in cluster.nodes):
            # No shard is there, or none by this address, so nothing more may be asked of it for long.
            catalog.close()
        return Datastore(Shards(entry.topology, pools), self, entry.columns)


class Datastore:
    """An open datastore: cells are written once, and read by key.

    Made by ``connect``. Every call may raise ``ServerError``, and for the first use of a shard
    ``ShardIdentityMismatch``. It is shared by threads, and neither copied nor pickled.
    """

    def __init__(self, shards: Shards, opening: Opening, columns: Sequence[ColumnSetting] | None) -> None:
        self.shards = shards
        self.opening = opening
        self.topology: Topology = shards.topology
        self.url = str(opening.url)
        limits = opening.limits
        self._limits = limits
        self.dictionaries = StoredDictionaries(lambda: self.catalog, self.topology.name)
        self._columns = ColumnCodecs(self._read_settings, self.dictionaries, columns)
        self._cells = Cells(shards, limits, self.dictionaries)
        self._changes = Changes(shards)

    def __repr__(self) -> str:
        return f"Datastore({self.url!r}, shards={self.topology.shard_count})"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Datastore holds this process's connections: it is not copied or pickled; connect() there")

    def close(self) -> None:
        """Close the idle connections to every server."""
        self.shards.close()

    @property
    def catalog(self) -> NodePool:
        """The connections to the catalog's server."""
        return self.shards.pool_for(self.opening.url.node)

    @property
    def name(self) -> str:
        """The datastore's name."""
        return self.topology.name

    @property
    def shard_count(self) -> int:
        """How many shards it has; never changes."""
        return self.topology.shard_count

    def codec_for(self, column_name: str) -> Codec:
        """Return what new bodies of a column are written in unless a call says otherwise."""
        return self._columns.codec_for(check_column_name(column_name))

    def decode(self, body: bytes) -> JSONDocument:
        """Return the document of stored bytes, with this datastore's dictionaries; raises what ``decode_body`` does."""
        return decode_body(body, self._limits, self.dictionaries)

    def _read_settings(self) -> Sequence[ColumnSetting]:
        # Not of the pool: a process that writes to other servers keeps no connection to this one, and waits for it no
        # longer than a write may.
        options = PoolOptions(_ASK_CONNECT_S, _ASK_READ_S, _ASK_READ_S, 1)
        pool = self.shards.new_pool(self.opening.url.node, options)
        try:
            return settings(pool, self.name)
        finally:
            pool.close()

    def shard_of(self, row_key: RowKey) -> int:
        """Return the number of the shard that owns a row."""
        return shard_for(row_key_bytes(row_key), self.topology.shard_count)

    # Writing

    def put_cell(
        self, row_key: RowKey, column_name: str, ref_key: int, body: JSONDocument, *, codec: str | None = None
    ) -> Put:
        """Write one cell.

        Writing the same cell with the same body again changes nothing; key order does not count.

        Args:
            row_key: a ``uuid.UUID`` or its 16 bytes.
            column_name: 1 to 64 of ``[A-Za-z0-9_.:-]``.
            ref_key: the version, 0 to 2^63 - 1.
            body: dict with str keys, list, str, int, float, bool or None, nested.
            codec: such as ``msgpack+zstd``; unless given, what the column is set to ('schemaless codec set'), and
                MessagePack + zlib for one that is not.

        Returns:
            What became of it. After a lost connection that had to be repeated, ``created`` may be False for a cell that
            this very call created.

        Raises:
            InvalidCell: the key or the body is not allowed; nothing was sent.
            CellConflict: the cell exists with another body; nothing was written.
            OutcomeUnknown: the reply was lost and could not be had; write the same cell again to settle it.
        """
        key = cell_key(row_key, column_name, ref_key)
        cell = encoded_cell(key, encode_body(body, self._codec(codec, column_name)), lambda: body)
        shard = shard_for(cell.place[0], self.topology.shard_count)
        return self._cells.put_on_shard(shard, [cell])[cell.place]

    def put_cells(self, cells: Iterable[NewCell], *, codec: str | None = None, look_first: bool = False) -> list[Put]:
        """Write cells, in one transaction for each shard.

        Args:
            cells: the same key may stand there twice if the bodies are the same; the first one's ``created_at`` counts.
            codec: as in ``put_cell``.
            look_first: read what is there before inserting. For imports that are repeated: an INSERT that meets an
                existing cell would use up an added_id.

        Returns:
            One Put for each cell, in the order given; empty for an empty batch.

        Raises:
            InvalidCell: a key or a body is not allowed, or a key stands there with two bodies; nothing was sent.
            BatchError: at least one shard was not written (``causes`` says why: ``CellConflict``, ``OutcomeUnknown``,
                ...); ``written`` and ``not_written`` say which cells.
        """
        chosen = None if codec is None else codec_named(codec)
        encoded: list[EncodedCell] = []
        for position, cell in enumerate(cells):
            key = cell_key(cell.row_key, cell.column_name, cell.ref_key)
            try:
                body = encode_body(cell.body, chosen or self._columns.codec_for(cell.column_name))
            except InvalidBody as error:
                raise InvalidBody(f"cell {position} of the batch, {key}: {error}; nothing was written") from None
            at = check_created_at(cell.created_at)
            encoded.append(encoded_cell(key, body, lambda document=cell.body: document, at))  # type: ignore[misc]
        return self._put(encoded, look_first)

    def append_cell(self, row_key: RowKey, column_name: str, body: JSONDocument, *, codec: str | None = None) -> Put:
        """Write a body as the next version: at the latest ref_key + 1, and at 1 where there is none.

        When another writer takes that ref_key first, the next one is tried. Appending the same body twice gives two
        cells. Takes four round trips to the server, where ``put_cell`` takes one.

        Args:
            row_key: a ``uuid.UUID`` or its 16 bytes.
            column_name: 1 to 64 of ``[A-Za-z0-9_.:-]``.
            body: as in ``put_cell``.
            codec: as in ``put_cell``.

        Returns:
            Where it was written; ``created`` is True.

        Raises:
            InvalidCell: the key or the body is not allowed, or ref_keys are used up; nothing was written.
            OutcomeUnknown: the reply to the commit was lost and could not be had; ``put_cell`` the same body with the
                error's ``key`` to settle it. Any other ``ServerError`` means that nothing was written.
        """
        row = uuid.UUID(bytes=row_key_bytes(row_key))
        check_column_name(column_name)
        encoded = encode_body(body, self._codec(codec, column_name))
        return self._cells.append_on_shard(self.shard_of(row), row, column_name, encoded)

    def put_stored_cells(
        self, cells: Iterable[NewStoredCell], *, look_first: bool = False, trusted: bool = False
    ) -> list[Put]:
        """Write cells whose bodies are stored bytes already, byte for byte: for imports and copies.

        Args:
            cells: bodies that ``decode`` reads: with this datastore's dictionaries, legacy text included.
            look_first: as in ``put_cells``.
            trusted: the caller has decoded every body already, so do not do it again.

        Returns:
            As ``put_cells``. A cell that is there with other bytes but the same document counts as the same.

        Raises:
            CorruptBody: a body does not decode; nothing was sent.
            BodyTooLarge: a body is over 16 MiB - 1; nothing was sent.
            InvalidCell, BatchError: as ``put_cells``.
        """
        encoded = []
        for cell in cells:
            key = cell_key(cell.row_key, cell.column_name, cell.ref_key)
            check_length(cell.body)
            if not trusted:
                self.decode(cell.body)
            at = check_created_at(cell.created_at)
            encoded.append(encoded_cell(key, cell.body, lambda body=cell.body: self.decode(body), at))  # type: ignore[misc]
        return self._put(encoded, look_first)

    def _put(self, cells: Sequence[EncodedCell], look_first: bool) -> list[Put]:
        distinct: dict[Place, EncodedCell] = {}
        for cell in cells:
            first = distinct.setdefault(cell.place, cell)
            if first is not cell and first.body != cell.body and not same_put(first.document(), cell.document()):
                raise InvalidCell(f"cell {cell.key} stands in the batch twice, with two bodies; nothing was written")
        puts = self._cells.put_batch(list(distinct.values()), look_first)
        if len(puts) == len(cells):
            return puts
        by_place = dict(zip(distinct, puts, strict=True))
        return [by_place[cell.place] for cell in cells]

    # Reading

    def get_cell(
        self, row_key: RowKey, column_name: str, ref_key: int, *, read_from: ReadFrom = "primary"
    ) -> Cell | None:
        """Read one version.

        Args:
            row_key: a ``uuid.UUID`` or its 16 bytes.
            column_name: the column.
            ref_key: the version.
            read_from: ``replica`` reads from a replica where the cluster has one; it may lag.

        Returns:
            The cell, or None where it is not there.

        Raises:
            CorruptBody: its stored bytes do not decode.
        """
        key = cell_key(row_key, column_name, ref_key)
        row = key.row_key.bytes
        shard = shard_for(row, self.topology.shard_count)
        wanted = [(row, column_name, ref_key)]
        sql = select_cells(self.shards.database(shard), wanted)
        rows = self._cells.select(shard, sql, read_from, wanted, PLACE)
        return self._cells.cell(rows[0], shard) if rows else None

    def get_cell_latest(self, row_key: RowKey, column_name: str, *, read_from: ReadFrom = "primary") -> Cell | None:
        """Read the version with the highest ref_key, whenever it was written.

        Returns:
            The cell, or None where the row has none in that column.

        Raises:
            CorruptBody: its stored bytes do not decode.
        """
        row = row_key_bytes(row_key)
        shard = shard_for(row, self.topology.shard_count)
        wanted = [(row, check_column_name(column_name))]
        sql = select_latest(self.shards.database(shard), wanted)
        rows = self._cells.select(shard, sql, read_from, wanted, PAIR)
        return self._cells.cell(rows[0], shard) if rows else None

    def get_cells_latest(
        self, keys: Iterable[tuple[RowKey, str]], *, read_from: ReadFrom = "primary"
    ) -> dict[tuple[uuid.UUID, str], Cell]:
        """Read the latest version for many ``(row_key, column_name)``.

        Returns:
            The cells by row_key and column_name; those that are not there are absent.

        Raises:
            CorruptBody: stored bytes of one of them do not decode.
        """
        by_shard: dict[int, list[tuple[bytes, str]]] = {}
        wanted = dict.fromkeys((row_key_bytes(row_key), check_column_name(name)) for row_key, name in keys)
        for pair in wanted:
            by_shard.setdefault(shard_for(pair[0], self.topology.shard_count), []).append(pair)
        found: dict[tuple[uuid.UUID, str], Cell] = {}
        for shard, pairs in sorted(by_shard.items()):
            for start in range(0, len(pairs), _PAIRS_PER_SELECT):
                sql = select_latest(self.shards.database(shard), pairs[start : start + _PAIRS_PER_SELECT])
                for row in self._cells.select(shard, sql, read_from, wanted, PAIR):
                    cell = self._cells.cell(row, shard)
                    found[cell.row_key, cell.column_name] = cell
        return found

    def get_row(self, row_key: RowKey, *, read_from: ReadFrom = "primary") -> dict[str, Cell]:
        """Read a row: the latest cell of each of its columns.

        Returns:
            Cells by column_name, in the order of the names; empty where there is no such row.

        Raises:
            CorruptBody: stored bytes of one of them do not decode.
        """
        row = row_key_bytes(row_key)
        shard = shard_for(row, self.topology.shard_count)
        sql = select_row(self.shards.database(shard), row)
        rows = self._cells.select(shard, sql, read_from, [(row,)], ROW_KEY)
        return {cell.column_name: cell for cell in (self._cells.cell(found, shard) for found in rows)}

    def get_versions(
        self,
        row_key: RowKey,
        column_name: str,
        *,
        after: int | None = None,
        before: int | None = None,
        descending: bool = True,
        limit: int | None = None,
        read_from: ReadFrom = "primary",
    ) -> Iterator[Cell]:
        """Read versions of one row and column.

        Args:
            row_key: a ``uuid.UUID`` or its 16 bytes.
            column_name: the column.
            after: only versions with a higher ref_key.
            before: only versions with a lower ref_key.
            descending: newest first.
            limit: at most so many; all of them unless given.
            read_from: as in ``get_cell``.

        Returns:
            An iterator that fetches as it goes; arguments are checked at once.

        Raises:
            InvalidInput: ``limit`` is negative.
            CorruptBody: while iterating: stored bytes do not decode.
        """
        stored = self.get_stored_versions(
            row_key,
            column_name,
            after=after,
            before=before,
            descending=descending,
            limit=limit,
            read_from=read_from,
        )
        return (version.decode() for version in stored)

    def get_stored_versions(
        self,
        row_key: RowKey,
        column_name: str,
        *,
        after: int | None = None,
        before: int | None = None,
        descending: bool = True,
        limit: int | None = None,
        read_from: ReadFrom = "primary",
    ) -> Iterator[StoredCell]:
        """Read versions as ``get_versions`` does, without decoding them."""
        row = row_key_bytes(row_key)
        check_column_name(column_name)
        above = -1 if after is None else check_ref_key(after)
        below = MAX_REF_KEY + 1 if before is None else check_ref_key(before)
        if limit is not None and (type(limit) is not int or limit < 0):
            raise InvalidInput(f"limit must be a number from 0 up, or None for all, got {limit!r}")
        shard = shard_for(row, self.topology.shard_count)

        def select(after: int, before: int, most: int) -> bytes:
            return select_versions(self.shards.database(shard), row, column_name, after, before, descending, most)

        rows = read_versions(
            lambda sql: self._cells.select(shard, sql, read_from, [(row, column_name)], PAIR),
            select,
            above,
            below,
            descending,
            limit,
        )
        return (self._cells.stored(found, shard) for found in rows)

    def column_names(self, row_key: RowKey, *, read_from: ReadFrom = "primary") -> list[str]:
        """Return the names of a row's columns, in their order; none where there is no such row."""
        row = row_key_bytes(row_key)
        shard = shard_for(row, self.topology.shard_count)
        sql = select_column_names(self.shards.database(shard), row)
        return [str(name) for (name,) in self.shards.rows(shard, sql, read_from=read_from)]

    # The change feed

    def get_cells_for_shard(
        self,
        shard: int,
        location: int = 0,
        limit: int = 1_000,
        *,
        column_name: str | None = None,
        read_from: ReadFrom = "primary",
    ) -> Page[Cell]:
        """Read a shard's cells in ``added_id`` order, strictly behind ``location``: the change feed.

        A cell that is committed late, with a lower added_id than others that can be read already, is never skipped:
        while a transaction is open that may bring one, the feed ends before it. It never waits itself.

        Args:
            shard: its number.
            location: 0, a page's ``next_location``, or the added_id of one of this shard's cells.
            limit: at most so many cells; pages are bounded by their bytes as well.
            column_name: only cells of this column.
            read_from: ``replica`` reads from a replica where the cluster has one, after it has got all that is settled.

        Returns:
            A page. Without cells and with the ``next_location`` that was given, there is nothing new yet.

        Raises:
            InvalidInput: an argument cannot be used.
            LocationLost: the shard has no cell at or behind ``location``: a failover lost some.
            FeedRefused: there is a gap, and this server cannot tell whether it is settled; says what to grant or set.
            CorruptBody: stored bytes of one of them do not decode; ``get_stored_cells_for_shard`` reads past it.
        """
        self._check_feed(shard, location, limit, column_name, read_from)
        rows, next_location, held = self._changes.page(shard, location, limit, column_name, read_from)
        return Page([self._cells.cell(row, shard) for row in rows], next_location, held)

    def get_stored_cells_for_shard(
        self,
        shard: int,
        location: int = 0,
        limit: int = 1_000,
        *,
        column_name: str | None = None,
        read_from: ReadFrom = "primary",
    ) -> Page[StoredCell]:
        """Read cells as ``get_cells_for_shard`` does, without decoding them."""
        self._check_feed(shard, location, limit, column_name, read_from)
        rows, next_location, held = self._changes.page(shard, location, limit, column_name, read_from)
        return Page([self._cells.stored(row, shard) for row in rows], next_location, held)

    def iter_shard(
        self,
        shard: int,
        location: int = 0,
        *,
        column_name: str | None = None,
        read_from: ReadFrom = "primary",
        follow: bool = False,
        poll_s: float = 0.5,
        limit: int = 1_000,
    ) -> Iterator[Cell]:
        """Read a shard's change feed cell by cell; to go on later, keep the last cell's ``added_id`` as the location.

        Args:
            shard: its number.
            location: as in ``get_cells_for_shard``.
            column_name: only cells of this column.
            read_from: as in ``get_cells_for_shard``.
            follow: wait for new cells at the end, for ever; otherwise the end of what is settled ends the iteration.
            poll_s: how often to look for new cells.
            limit: cells to fetch at once, at most.

        Raises:
            InvalidInput: an argument cannot be used.
            LocationLost, FeedRefused, CorruptBody: while iterating, as ``get_cells_for_shard``.
        """
        self._check_feed(shard, location, limit, column_name, read_from)
        pages = (
            self._changes.follow(shard, location, limit, column_name, read_from, poll_s)
            if follow
            else self._changes.pages(shard, location, limit, column_name, read_from)
        )
        return (self._cells.cell(row, shard) for page in pages for row in page.rows)

    def end_of_shard(self, shard: int, *, timeout_s: float = 30) -> int:
        """Return the change feed's end: a location behind every cell that is there, and before every later one.

        Args:
            shard: its number.
            timeout_s: how long to wait for transactions that are open.

        Raises:
            ServerTimeout: one stays open for longer.
            FeedRefused: as in ``get_cells_for_shard``.
        """
        return self._changes.end(check_shard(shard, self.topology.shard_count), timeout_s)

    def _check_feed(self, shard: int, location: int, limit: int, column_name: str | None, read_from: ReadFrom) -> None:
        check_shard(shard, self.topology.shard_count)
        self.shards.node_of(shard, read_from)
        if type(location) is not int or not 0 <= location < 1 << 64:
            raise InvalidInput(f"location must be 0 or an added_id, got {location!r}")
        if type(limit) is not int or not 1 <= limit <= _MAX_PAGE_CELLS:
            raise InvalidInput(f"limit must be a number from 1 to {_MAX_PAGE_CELLS}, got {limit!r}")
        if column_name is not None:
            check_column_name(column_name)

    # Whole shards, for tools

    def scan_shard(
        self,
        shard: int,
        *,
        after: int = 0,
        up_to: int | None = None,
        legacy_only: bool = False,
        column_name: str | None = None,
    ) -> Iterator[StoredCell]:
        """Read what a shard holds now, in ``added_id`` order, without decoding: for check, dump and migrate.

        Not a change feed: a cell that is being written meanwhile with a lower added_id may be missed.

        Args:
            shard: its number.
            after: only cells with a higher added_id.
            up_to: only cells up to this added_id.
            legacy_only: only bodies without an envelope.
            column_name: only cells of this column; the others' bodies are not fetched.

        Raises:
            InvalidInput: there is no such shard.
            InvalidCell: no column may have this name.
        """
        check_shard(shard, self.topology.shard_count)
        parts: Iterable[tuple[int, int | None]] = [(after, up_to)]
        if column_name is not None:
            check_column_name(column_name)
            # A statement about a column that is rare there would go over the whole shard.
            blocks = self.id_blocks(shard, _SCANNED_ROWS, after=after, up_to=up_to)
            parts = ((low, high) for low, high, _ in blocks)
        size, database = PageSize(), self.shards.database(shard)

        def read(sql: bytes, check: Check | None) -> Rows:
            return self.shards.rows(shard, sql, check=check)

        return (
            self._cells.stored(row, shard)
            for low, high in parts
            for row in every_row(read, size, database, low, high, legacy_only=legacy_only, column_name=column_name)
        )

    def stored_cell(self, row: Row, shard: int) -> StoredCell:
        """Return a row of ``sql.cells`` that is a whole cell as one."""
        return self._cells.stored(row, shard)

    def read_stored(self, shard: int, ids: Sequence[int]) -> Iterator[StoredCell]:
        """Read the cells with these added_ids from a shard's primary; those that are gone are absent."""
        sql = select_by_id(self.shards.database(shard), ids)
        rows = self._cells.select(shard, sql, "primary", {(added_id,) for added_id in ids}, ADDED_ID)
        return (self._cells.stored(row, shard) for row in rows)

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

    def _codec(self, name: str | None, column_name: str) -> Codec:
        return self._columns.codec_for(column_name) if name is None else codec_named(name)
