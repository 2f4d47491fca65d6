"""``Datastore``: the calls that applications use, each where its documentation is; the work is done below."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import NoReturn, Self

from schemaless.cell import Cell, JSONDocument, NewCell, NewStoredCell, Page, Put, RowKey, StoredCell
from schemaless.cells.writing import EncodedCell, encoded_cell, encoded_stored
from schemaless.codec.envelope import decode_body, encode_body
from schemaless.codec.registry import Codec, codec_named
from schemaless.errors import InvalidBody, InvalidInput
from schemaless.indexes.query import Index
from schemaless.internals import Internals
from schemaless.keys import cell_key, check_column_name, check_created_at, row_key_bytes
from schemaless.topology.model import check_shard
from schemaless.topology.placement import shard_for
from schemaless.topology.shards import FeedFrom, ReadFrom

_MAX_PAGE_CELLS = 100_000


class Datastore:
    """An open datastore: cells are written once, and read by key.

    Made by ``connect``. Every call may raise ``ServerError``, and for the first use of a shard
    ``ShardIdentityMismatch``. It is shared by threads, and neither copied nor pickled.
    """

    def __init__(self, internals: Internals) -> None:
        self._internals = internals
        self._shard_count = internals.topology.shard_count
        self._reader = internals.reader
        self._cells = internals.cells
        self._changes = internals.changes

    def __repr__(self) -> str:
        return f"Datastore({str(self._internals.url)!r}, shards={self._shard_count})"

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
        self._internals.shards.close()

    @property
    def name(self) -> str:
        """The datastore's name."""
        return self._internals.topology.name

    @property
    def shard_count(self) -> int:
        """How many shards it has; never changes."""
        return self._shard_count

    def codec_for(self, column_name: str) -> Codec:
        """Return what new bodies of a column are written in unless a call says otherwise."""
        return self._internals.columns.codec_for(check_column_name(column_name))

    def decode(self, body: bytes) -> JSONDocument:
        """Return the document of stored bytes, with this datastore's dictionaries; raises what ``decode_body`` does."""
        return decode_body(body, self._internals.limits, self._internals.dictionaries)

    def shard_of(self, row_key: RowKey) -> int:
        """Return the number of the shard that owns a row."""
        return shard_for(row_key_bytes(row_key), self._shard_count)

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
        shard = shard_for(cell.place[0], self._shard_count)
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
                body = encode_body(cell.body, chosen or self._internals.columns.codec_for(cell.column_name))
            except InvalidBody as error:
                raise InvalidBody(f"cell {position} of the batch, {key}: {error}; nothing was written") from None
            at = check_created_at(cell.created_at)
            encoded.append(encoded_cell(key, body, lambda document=cell.body: document, at))  # type: ignore[misc]
        return self._cells.put_batch(encoded, look_first)

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
            encoded.append(encoded_stored(cell, self.decode))
            if not trusted:
                self.decode(cell.body)
        return self._cells.put_batch(encoded, look_first)

    # Reading

    def get_cell(
        self, row_key: RowKey, column_name: str, ref_key: int, *, read_from: ReadFrom = "primary"
    ) -> Cell | None:
        """Read one version.

        Args:
            row_key: a ``uuid.UUID`` or its 16 bytes.
            column_name: the column.
            ref_key: the version.
            read_from: ``replica`` reads from a replica where the cluster has one; it may lag. ``available`` reads from
                the primary, and from a replica while that one does not answer: what is found by its whole key is right
                wherever it was found, other cells that a replica gave are ``stale``, and of what it has not got
                nobody knows whether it was written.

        Returns:
            The cell, or None where it is not there.

        Raises:
            CorruptBody: its stored bytes do not decode.
            StaleAbsence: with ``available``: the primary does not answer, and the replica has not got it.
        """
        return self._reader.version(cell_key(row_key, column_name, ref_key), read_from)

    def get_cell_latest(self, row_key: RowKey, column_name: str, *, read_from: ReadFrom = "primary") -> Cell | None:
        """Read the version with the highest ref_key, whenever it was written.

        Returns:
            The cell, or None where the row has none in that column.

        Raises:
            CorruptBody: its stored bytes do not decode.
            StaleAbsence: as ``get_cell``.
        """
        return self._reader.latest(row_key, column_name, read_from)

    def get_cells_latest(
        self, keys: Iterable[tuple[RowKey, str]], *, read_from: ReadFrom = "primary"
    ) -> dict[tuple[uuid.UUID, str], Cell]:
        """Read the latest version for many ``(row_key, column_name)``.

        Returns:
            The cells by row_key and column_name; those that are not there are absent.

        Raises:
            CorruptBody: stored bytes of one of them do not decode.
            StaleAbsence: as ``get_cell``, for one of them; ``found`` has the others.
        """
        return self._reader.latest_of_many(keys, read_from)

    def get_row(self, row_key: RowKey, *, read_from: ReadFrom = "primary") -> dict[str, Cell]:
        """Read a row: the latest cell of each of its columns.

        Returns:
            Cells by column_name, in the order of the names; empty where there is no such row.

        Raises:
            CorruptBody: stored bytes of one of them do not decode.
            StaleAbsence: as ``get_cell``, for the whole row.
        """
        return self._reader.row(row_key, read_from)

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
            StaleAbsence: while iterating, at the end: as ``get_cell``, where no version that was given is stale.
        """
        stored = self._reader.versions(row_key, column_name, after, before, descending, limit, read_from)
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
        return self._reader.versions(row_key, column_name, after, before, descending, limit, read_from)

    def column_names(self, row_key: RowKey, *, read_from: FeedFrom = "primary") -> list[str]:
        """Return the names of a row's columns, in their order; none where there is no such row.

        Names cannot be marked as stale, so there is no ``available`` here; ``get_row`` has them with their cells.
        """
        return self._reader.column_names(row_key, read_from)

    # By their content

    def index(self, name: str) -> Index:
        """Return a secondary index, to ask for rows by what is in their documents.

        Raises:
            UnknownIndex: there is none of that name.
            IndexNotReady: it is still being filled, or being dropped.
        """
        internals = self._internals
        return Index(internals.shards, internals.registry, internals.rows, name)

    # The change feed

    def get_cells_for_shard(
        self,
        shard: int,
        location: int = 0,
        limit: int = 1_000,
        *,
        column_name: str | None = None,
        read_from: FeedFrom = "primary",
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
        return Page([self._reader.cell(row, shard) for row in rows], next_location, held)

    def get_stored_cells_for_shard(
        self,
        shard: int,
        location: int = 0,
        limit: int = 1_000,
        *,
        column_name: str | None = None,
        read_from: FeedFrom = "primary",
    ) -> Page[StoredCell]:
        """Read cells as ``get_cells_for_shard`` does, without decoding them."""
        self._check_feed(shard, location, limit, column_name, read_from)
        rows, next_location, held = self._changes.page(shard, location, limit, column_name, read_from)
        return Page([self._reader.stored(row, shard) for row in rows], next_location, held)

    def iter_shard(
        self,
        shard: int,
        location: int = 0,
        *,
        column_name: str | None = None,
        read_from: FeedFrom = "primary",
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
        return (self._reader.cell(row, shard) for page in pages for row in page.rows)

    def end_of_shard(self, shard: int, *, timeout_s: float = 30) -> int:
        """Return the change feed's end: a location behind every cell that is there, and before every later one.

        Args:
            shard: its number.
            timeout_s: how long to wait for transactions that are open.

        Raises:
            ServerTimeout: one stays open for longer.
            FeedRefused: as in ``get_cells_for_shard``.
        """
        return self._changes.end(check_shard(shard, self._shard_count), timeout_s)

    def _check_feed(self, shard: int, location: int, limit: int, column_name: str | None, read_from: FeedFrom) -> None:
        check_shard(shard, self._shard_count)
        self._internals.shards.node_of(shard, read_from)
        if type(location) is not int or not 0 <= location < 1 << 64:
            raise InvalidInput(f"location must be 0 or an added_id, got {location!r}")
        if type(limit) is not int or not 1 <= limit <= _MAX_PAGE_CELLS:
            raise InvalidInput(f"limit must be a number from 1 to {_MAX_PAGE_CELLS}, got {limit!r}")
        if column_name is not None:
            check_column_name(column_name)

    # Whole shards

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
        return self._internals.scan(shard, after=after, up_to=up_to, legacy_only=legacy_only, column_name=column_name)

    def _codec(self, name: str | None, column_name: str) -> Codec:
        return self._internals.columns.codec_for(column_name) if name is None else codec_named(name)
