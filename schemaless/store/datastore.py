"""``Datastore``: the public calls and their documentation. They check arguments and delegate to ``Internals``."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from operator import itemgetter
from typing import Any, NoReturn, Self

from schemaless.base.keys import (
    MAX_REF_KEY,
    cell_key,
    check_column_name,
    check_created_at,
    check_each,
    check_ref_key,
    check_type,
    row_key_bytes,
)
from schemaless.base.numbers import check_number
from schemaless.base.type_variables import T
from schemaless.cell import Cell, ErasedCell, JSONDocument, NewCell, NewStoredCell, Page, Put, RowKey, StoredCell
from schemaless.codec.envelope import decode_body, encode_body
from schemaless.codec.registry import Codec, codec_named
from schemaless.errors import InvalidBody, InvalidCell, InvalidInput
from schemaless.store.arrow.reader import Since, record_batches
from schemaless.store.cells.writing import EncodedCell, encoded_cell, encoded_stored
from schemaless.store.erasures.ledger import Erasure, Target, target
from schemaless.store.indexes.admin import Indexes
from schemaless.store.indexes.definition import define
from schemaless.store.indexes.query import Index
from schemaless.store.indexes.registry import IndexEntry
from schemaless.store.internals import Internals
from schemaless.store.typed import Column, Upcast
from schemaless.topology.model import check_shard
from schemaless.topology.pinging import Ping, ping_server
from schemaless.topology.placement import shard_for
from schemaless.topology.shards import FeedFrom, ReadFrom
from schemaless.wire.parallel import on_servers

_MAX_PAGE_CELLS = 100_000


class Datastore:
    """An open datastore: writes immutable cells and reads them by key.

    Returned by ``connect``, and usable as a context manager:

        with schemaless.connect("mysql://app@db-1:3306/mezzanine") as store:
            store.put_cell(row_key, "BASE", 1, {"fare": {"total": 12.5}})
            cell = store.get_cell_latest(row_key, "BASE")

    A datastore is thread-safe and may be used after ``fork``. It cannot be copied or pickled: in a process that was not
    forked, call ``connect``.

    Any method that contacts a server can raise ``ServerError``. The first use of a shard can also raise
    ``ShardIdentityMismatch``.
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

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "cannot copy or pickle a Datastore: its connections belong to this process; open another one with connect()"
        )

    def close(self) -> None:
        """Close the idle connections to all servers. A closed datastore can still be used; it connects again."""
        self._internals.shards.close()

    @property
    def name(self) -> str:
        """Name of the datastore."""
        return self._internals.topology.name

    @property
    def shard_count(self) -> int:
        """Number of shards. It is fixed when the datastore is created."""
        return self._shard_count

    def ping(self, timeout_s: float = 1.0) -> list[Ping]:
        """Connect to every server of the datastore at the same time, and report which ones answer.

        The call uses connections of its own, and does not affect the circuit breakers of other calls.

        Args:
            timeout_s: maximum time to wait for each server, once for the connection and once for each reply, in
                seconds.

        Returns:
            One result per server: the clusters in order, each with its primary first, and the catalog's server at the
            end if it has no shards. A server that does not answer raises nothing: its ``error`` says why.

        Raises:
            InvalidInput: the timeout is invalid.
        """
        shards, servers = self._internals.shards, self._internals.servers()
        pings = on_servers(
            [(server.node, (position, server)) for position, server in enumerate(servers)],
            lambda item: (item[0], ping_server(shards, item[1], timeout_s)),
        )
        return [ping for _, ping in sorted(pings, key=itemgetter(0))]

    def codec_for(self, column_name: str) -> Codec:
        """Return the codec that new bodies of a column are written with by default.

        Raises:
            InvalidCell: the column name is invalid.
        """
        return self._internals.columns.codec_for(check_column_name(column_name))

    def decode(self, body: bytes) -> JSONDocument:
        """Decode stored bytes, using this datastore's dictionaries.

        Raises:
            InvalidInput: ``body`` is not bytes.
            CorruptBody: the bytes do not decode.
        """
        check_type(body, bytes, "body")
        return decode_body(body, self._internals.limits, self._internals.dictionaries)

    def shard_of(self, row_key: RowKey) -> int:
        """Return the number of the shard that a row belongs to.

        Raises:
            InvalidCell: the row_key is invalid.
        """
        return shard_for(row_key_bytes(row_key), self._shard_count)

    # Writing

    def put_cell(
        self, row_key: RowKey, column_name: str, ref_key: int, body: JSONDocument, *, codec: str | None = None
    ) -> Put:
        """Write one cell.

        Repeating the call with the same body is safe and changes nothing. Bodies are compared as documents: the order
        of keys does not matter.

        Args:
            row_key: a ``uuid.UUID`` or its 16 bytes.
            column_name: 1 to 64 characters of ``[A-Za-z0-9_.:-]``.
            ref_key: the version, 0 to 2^63 - 1.
            body: a JSON document: dict with str keys, list, str, int, float, bool or None. NaN and infinities are not
                JSON, and are refused unless the datastore was opened with ``allow_nan``.
            codec: name of a codec, such as ``msgpack+zstd``. Defaults to the column's setting ('schemaless codec set'),
                or MessagePack + zlib if there is none.

        Returns:
            The key and added_id of the cell, and whether this call created it. If a connection was lost during the
            call, ``created`` may be False even though the call created the cell.

        Raises:
            InvalidCell: the key or the body is invalid; nothing was sent.
            CellConflict: the cell exists with another body; nothing was written.
            CellErased: the cell existed and was erased; nothing was written.
            OutcomeUnknown: the reply was lost and retries did not settle the outcome; repeat the call.
        """
        key = cell_key(row_key, column_name, ref_key)
        cell = encoded_cell(key, self._encode(body, self._codec(codec, column_name)), lambda: body)
        shard = shard_for(cell.place[0], self._shard_count)
        return self._cells.put_on_shard(shard, [cell])[cell.place]

    def put_row(
        self, row_key: RowKey, bodies: Mapping[str, JSONDocument], ref_key: int, *, codec: str | None = None
    ) -> dict[str, Put]:
        """Write one version of several columns of a row, in one transaction: either all of them or none.

        Repeating the call with the same bodies is safe and changes nothing.

        Args:
            row_key: a ``uuid.UUID`` or its 16 bytes.
            bodies: a JSON document, as in ``put_cell``, for each column.
            ref_key: the version, the same for each column.
            codec: name of a codec for all columns; defaults to the setting of each column, as in ``put_cell``.

        Returns:
            For each column, what ``put_cell`` returns.

        Raises:
            InvalidInput: ``bodies`` is not a mapping.
            InvalidCell, CellConflict, CellErased, OutcomeUnknown: as for ``put_cell``. If several cells exist with
                another body or were erased, ``others`` has the further errors.
        """
        check_type(bodies, Mapping, "bodies")  # type: ignore[type-abstract]
        row = uuid.UUID(bytes=row_key_bytes(row_key))
        cells: list[EncodedCell] = []
        for name, body in bodies.items():
            key = cell_key(row, name, ref_key)
            try:
                encoded = self._encode(body, self._codec(codec, name))
            except InvalidBody as error:
                raise InvalidBody(f"column {name}: {error}") from None
            cells.append(encoded_cell(key, encoded, lambda document=body: document))  # type: ignore[misc]
        if not cells:
            return {}
        puts = self._cells.put_on_shard(self.shard_of(row), cells)
        return {cell.key.column_name: puts[cell.place] for cell in cells}

    def put_cells(self, cells: Iterable[NewCell], *, codec: str | None = None, look_first: bool = False) -> list[Put]:
        """Write a batch of cells, in one transaction per shard.

        Repeating the call with the same bodies is safe and changes nothing.

        Args:
            cells: the cells. A key may occur twice if both bodies are equal; the first one's ``created_at`` is stored.
            codec: name of a codec for all cells; defaults to the setting of each column, as in ``put_cell``.
            look_first: read existing cells before inserting the others. Use it for imports that are repeated, because
                each INSERT of an existing cell uses up an added_id.

        Returns:
            One ``Put`` per cell, in the same order.

        Raises:
            InvalidInput: an element is not a ``NewCell``; nothing was sent.
            InvalidCell: a key or a body is invalid, or a key occurs with two bodies; nothing was sent.
            BatchError: at least one shard failed. ``written`` and ``not_written`` list the cells, and ``causes`` has
                the error of each failed shard, such as ``CellConflict`` or ``OutcomeUnknown``; ``conflicts`` and
                ``erased`` list the cells that these errors are about.
        """
        chosen = None if codec is None else codec_named(codec)

        def encoded(cell: NewCell) -> EncodedCell:
            check_type(cell, NewCell, "a cell")
            key = cell_key(cell.row_key, cell.column_name, cell.ref_key)
            try:
                body = self._encode(cell.body, chosen or self._internals.columns.codec_for(cell.column_name))
            except InvalidBody as error:
                raise InvalidBody(f"{key}: {error}. Nothing was written") from None
            return encoded_cell(key, body, lambda: cell.body, check_created_at(cell.created_at))

        return self._cells.put_batch([*check_each(cells, "cells", encoded)], look_first)

    def append_cell(
        self,
        row_key: RowKey,
        column_name: str,
        body: JSONDocument,
        *,
        if_latest: int | None = None,
        refill: bool = True,
        codec: str | None = None,
    ) -> Put:
        """Write a body as the next version, with the highest ref_key plus 1, or 1 for the first version.

        If another writer takes that ref_key first, the next one is used. Unlike ``put_cell``, the call is not safe to
        repeat: appending the same body twice creates two cells. It takes four round trips; ``put_cell`` takes one.

        With ``if_latest``, the body is written only if that is the latest version, as version ``if_latest`` + 1. Of
        several such calls with the same ``if_latest``, one succeeds. An erased version still counts as the latest. A
        put with a higher ref_key that runs at the same time counts as later than the append. This takes five round
        trips.

        Args:
            row_key: a ``uuid.UUID`` or its 16 bytes.
            column_name: 1 to 64 characters of ``[A-Za-z0-9_.:-]``.
            body: a JSON document, as in ``put_cell``.
            if_latest: ref_key of the latest version, as last read; 0 if there is none, or if it is 0. None to append to
                any version.
            refill: whether to append after an erased version. Pass False for documents about a person, so that a late
                writer does not store again what was erased, not even during the erasure of the row or column. A version
                that a retention policy has erased counts too. It takes one more round trip.
            codec: name of a codec, as in ``put_cell``.

        Returns:
            The key and added_id of the new cell; ``created`` is True.

        Raises:
            InvalidCell: the key or the body is invalid, or the highest possible ref_key is already taken; nothing was
                written.
            LatestChanged: the latest version is not ``if_latest``, but the error's ``latest``; nothing was written.
            CellErased: the latest version was erased, and ``refill`` is False; nothing was written.
            OutcomeUnknown: the reply to the commit was lost and retries did not settle the outcome. Call ``put_cell``
                with the same body and the error's ``key``. After any other ``ServerError``, nothing was written.
        """
        row = uuid.UUID(bytes=row_key_bytes(row_key))
        check_column_name(column_name)
        if if_latest is not None and check_ref_key(if_latest, "if_latest") == MAX_REF_KEY:
            raise InvalidCell(f"no version can follow if_latest={MAX_REF_KEY}, the highest possible ref_key")
        encoded = self._encode(body, self._codec(codec, column_name))
        return self._cells.append_on_shard(self.shard_of(row), row, column_name, encoded, if_latest, refill)

    def put_stored_cells(
        self, cells: Iterable[NewStoredCell], *, look_first: bool = False, trusted: bool = False
    ) -> list[Put]:
        """Write a batch of encoded cells, byte for byte: for imports and copies.

        Args:
            cells: cells whose bodies ``decode`` can read, including legacy text. They may hold NaN and infinities.
            look_first: read existing cells first, as in ``put_cells``.
            trusted: skip decoding the bodies, because the caller has already decoded them.

        Returns:
            One ``Put`` per cell, in the same order. An existing cell with other bytes but the same document counts as
            equal.

        Raises:
            InvalidInput: an element is not a ``NewStoredCell``, or its body is not bytes; nothing was sent.
            CorruptBody: a body does not decode; nothing was sent.
            BodyTooLarge: a body is larger than 16 MiB - 1; nothing was sent.
            InvalidCell, BatchError: as for ``put_cells``.
        """
        encoded, dictionaries = [], self._internals.dictionaries
        for cell in check_each(cells, "cells", lambda cell: encoded_stored(cell, self.decode, dictionaries)):
            encoded.append(cell)
            if not trusted:
                self.decode(cell.body)
        return self._cells.put_batch(encoded, look_first)

    # Reading

    def get_cell(
        self, row_key: RowKey, column_name: str, ref_key: int, *, read_from: ReadFrom = "primary"
    ) -> Cell | None:
        """Read one cell by its full key.

        Args:
            row_key: a ``uuid.UUID`` or its 16 bytes.
            column_name: the column.
            ref_key: the version.
            read_from: ``primary``, ``replica`` or ``available``. ``replica`` reads from a replica if the cluster has
                one; the replica may lag. ``available`` reads from the primary, and falls back to a replica while the
                primary does not answer. A cell found by its full key is correct wherever it was found; any other cell
                from a replica is marked ``stale``, because a newer one may exist on the primary.

        Returns:
            The cell, or None if it does not exist or was erased.

        Raises:
            CorruptBody: the stored bytes do not decode.
            StaleAbsence: with ``available`` only: the primary does not answer and the cell is missing from the replica,
                so it may still exist on the primary.
        """
        return self._reader.version(cell_key(row_key, column_name, ref_key), read_from)

    def get_cell_latest(
        self, row_key: RowKey, column_name: str, *, at: datetime | None = None, read_from: ReadFrom = "primary"
    ) -> Cell | None:
        """Read the latest version: the cell with the highest ref_key, regardless of when it was written.

        With ``at``, the highest ref_key among the cells whose ``created_at`` is ``at`` or earlier. Only that field
        counts: a cell imported with its own ``created_at`` appears at that time, not when it was imported, and an
        erased cell takes its place at all times since it was written.

        Args:
            row_key: a ``uuid.UUID`` or its 16 bytes.
            column_name: the column.
            at: an aware datetime, to ignore versions that were stored later; None for the latest of all.
            read_from: where to read, as in ``get_cell``.

        Returns:
            The cell, or None if the row has no cell in that column or the latest one was erased. An earlier version is
            never returned in its place.

        Raises:
            InvalidInput: ``at`` is not an aware datetime.
            CorruptBody: the stored bytes do not decode.
            StaleAbsence: as for ``get_cell``.
        """
        return self._reader.latest(row_key, column_name, at, read_from)

    def get_cells_latest(
        self, keys: Iterable[tuple[RowKey, str]], *, at: datetime | None = None, read_from: ReadFrom = "primary"
    ) -> dict[tuple[uuid.UUID, str], Cell]:
        """Read the latest versions in many rows and columns, with one statement per server for up to 200 of them.

        Args:
            keys: pairs of row_key and column_name.
            at: ignore versions that were stored later, as in ``get_cell_latest``.
            read_from: where to read, as in ``get_cell``.

        Returns:
            The cells by row_key and column_name. Missing and erased cells are left out.

        Raises:
            InvalidInput: ``keys`` is not an iterable of pairs, or ``at`` is not an aware datetime.
            InvalidCell: a row_key or a column name is invalid.
            CorruptBody: the stored bytes of a cell do not decode.
            StaleAbsence: as for ``get_cell``, if any of the cells is missing from a replica; ``found`` has the cells
                that were found.
        """
        return self._reader.latest_of_many(keys, at, read_from)

    def get_row(
        self,
        row_key: RowKey,
        *,
        columns: Iterable[str] | None = None,
        at: datetime | None = None,
        read_from: ReadFrom = "primary",
    ) -> dict[str, Cell]:
        """Read a row: the latest cell of each of its columns.

        Args:
            row_key: a ``uuid.UUID`` or its 16 bytes.
            columns: names of the columns to read; None for all.
            at: ignore versions that were stored later, as in ``get_cell_latest``.
            read_from: where to read, as in ``get_cell``.

        Returns:
            The cells by column name, ordered by name; an empty dict if the row does not exist.

        Raises:
            InvalidInput: ``columns`` is not an iterable, or ``at`` is not an aware datetime.
            InvalidCell: the row_key or a column name is invalid.
            CorruptBody: the stored bytes of a cell do not decode.
            StaleAbsence: as for ``get_cell``, if the replica has no such cell of the row.
        """
        return self._reader.row(row_key, columns, at, read_from)

    def get_rows(
        self,
        row_keys: Iterable[RowKey],
        *,
        columns: Iterable[str] | None = None,
        at: datetime | None = None,
        read_from: ReadFrom = "primary",
    ) -> dict[uuid.UUID, dict[str, Cell]]:
        """Read many rows: the latest cell of each of their columns.

        Each primary gets one statement per 200 rows; all primaries work at the same time. Replicas are read shard by
        shard. The cells of one row come from one snapshot.

        Args:
            row_keys: the rows; each is a ``uuid.UUID`` or its 16 bytes.
            columns: names of the columns to read; None for all.
            at: ignore versions that were stored later, as in ``get_cell_latest``.
            read_from: where to read, as in ``get_cell``.

        Returns:
            For each row, what ``get_row`` returns, by row_key, in the order of ``row_keys``. Rows without such cells
            are left out.

        Raises:
            InvalidInput: ``row_keys`` or ``columns`` is not an iterable, or ``at`` is not an aware datetime.
            InvalidCell: a row_key or a column name is invalid; the message gives its position.
            CorruptBody: the stored bytes of a cell do not decode.
            StaleAbsence: as for ``get_row``, if any of the rows is missing from a replica; ``found`` has the cells that
                were found.
        """
        return self._reader.rows(row_keys, columns, at, read_from)

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
        include_erased: bool = False,
    ) -> Iterator[Cell]:
        """Iterate over the versions of one row and column.

        Args:
            row_key: a ``uuid.UUID`` or its 16 bytes.
            column_name: the column.
            after: return only versions with a higher ref_key.
            before: return only versions with a lower ref_key.
            descending: return the highest ref_key first.
            limit: maximum number of versions; None for all.
            read_from: where to read, as in ``get_cell``.
            include_erased: also return erased versions, whose ``body`` is an ``Erased``.

        Returns:
            An iterator that fetches cells as it advances. Arguments are checked by the call itself.

        Raises:
            InvalidCell: the row_key, the column name or a bound is invalid.
            InvalidInput: ``limit`` is negative.
            CorruptBody: while iterating, the stored bytes of a cell do not decode.
            StaleAbsence: at the end of the iteration, if the primary does not answer, the replica has no more versions,
                and none of those returned was ``stale``.
        """
        options = (after, before, descending, limit, read_from, include_erased)
        stored = self._reader.versions(row_key, column_name, *options)
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
        include_erased: bool = False,
    ) -> Iterator[StoredCell]:
        """Iterate over versions as ``get_versions`` does, without decoding them."""
        options = (after, before, descending, limit, read_from, include_erased)
        return self._reader.versions(row_key, column_name, *options)

    def column_names(self, row_key: RowKey, *, read_from: FeedFrom = "primary") -> list[str]:
        """Return the sorted names of a row's columns; an empty list if the row does not exist.

        Args:
            row_key: a ``uuid.UUID`` or its 16 bytes.
            read_from: ``primary`` or ``replica``. Names cannot be marked as stale, so ``available`` is not supported;
                use ``get_row``.
        """
        return self._reader.column_names(row_key, read_from)

    # Typed documents

    def column(self, column_name: str, model: type[T], *, upcast: Upcast | None = None) -> Column[T]:
        """Return a column whose documents are instances of a class; no server is contacted.

        Args:
            column_name: the column.
            model: a dataclass, a ``msgspec.Struct`` or a pydantic model. msgspec converts the first two, pydantic the
                last; install them with the ``[typed]`` extra.
            upcast: called with each document that is read, before it is converted; returns documents of an older shape
                in the current one, and all others unchanged. Stored cells do not change.

        Raises:
            InvalidCell: the column name is invalid.
            InvalidInput: msgspec is not installed, or does not support the model; or ``upcast`` is no function.
        """
        return Column(self, column_name, model, upcast)

    # Erasure

    def erase(
        self,
        row_key: RowKey,
        column_name: str | None = None,
        ref_key: int | None = None,
        *,
        reason: str,
        requested_by: str | None = None,
        must_exist: bool = False,
    ) -> Erasure:
        """Erase the documents of a row, of one of its columns, or of one version.

        The erasure is recorded in the ledger, and then every body is replaced by a tombstone. Keys, ``added_id`` and
        ``created_at`` are kept. Reads then return nothing, and a put to an erased key raises ``CellErased``. Repeating
        the call is safe. Cold files, leftovers of moves, archives and replicas are handled separately, by
        ``finish_erasure`` or 'schemaless erase run --execute --erasure NUMBER', and followers by their workers;
        'schemaless erase status' shows what is left to do. The account needs the role erase.

        Args:
            row_key: a ``uuid.UUID`` or its 16 bytes.
            column_name: the column; None for all columns.
            ref_key: the version; None for all versions that exist now.
            reason: code for the ledger, 1 to 64 characters of ``[A-Za-z0-9_.:-]``; kept forever.
            requested_by: who asked for it; by default the current user and machine.
            must_exist: refuse a key without cells, erased or not, since it may be mistyped.

        Returns:
            The ledger's entry: its number, and how many cells were erased.

        Raises:
            InvalidCell, InvalidInput: an argument is invalid, or a key has no cells and ``must_exist`` is set; nothing
                was recorded or erased.
            RowHeld: the row is under a legal hold; nothing was recorded or erased.
            ServerError: a server failed. If the erasure was recorded, it stays ``intended`` until the command above
                completes it, also after an interrupt; repeating the call records another one.
        """
        wanted = [target(row_key, column_name, ref_key)]
        return self._internals.erasures.erase(wanted, reason, requested_by, must_exist)

    def erase_many(
        self,
        keys: Iterable[RowKey | tuple[RowKey] | tuple[RowKey, str] | tuple[RowKey, str, int]],
        *,
        reason: str,
        requested_by: str | None = None,
        must_exist: bool = False,
    ) -> Erasure:
        """Erase rows, columns and versions in one erasure, such as everything about a person.

            erasure = store.erase_many([rider, *rides, (invoice, "ADDRESS")], reason="gdpr-art-17", must_exist=True)
            schemaless.finish_erasure(store, erasure.number)

        Args:
            keys: row_keys, and tuples of a row_key, a column and a version, of which the last ones may be missing; at
                least one, because a query that finds nothing would otherwise look like an erasure.
            reason: code for the ledger, as in ``erase``.
            requested_by: who asked for it, as in ``erase``.
            must_exist: refuse keys without cells, as in ``erase``.

        Returns:
            The ledger's entry, as from ``erase``.

        Raises:
            InvalidCell, InvalidInput, RowHeld, ServerError: as for ``erase``; if one key is refused, none is erased.
        """

        def to_erase(key: RowKey | tuple[Any, ...]) -> Target:
            parts = key if isinstance(key, tuple) else (key,)
            if not 1 <= len(parts) <= 3:
                raise InvalidInput(f"a key to erase is a row_key, or (row_key, column, version), got {key!r:.200}")
            return target(*parts)

        if isinstance(keys, Mapping):
            raise InvalidInput("keys must not be a mapping, whose values would be ignored; pass a list of its keys")
        wanted = list(dict.fromkeys(check_each(keys, "keys", to_erase)))
        return self._internals.erasures.erase(wanted, reason, requested_by, must_exist)

    def get_erased_for_shard(self, shard: int, after: int = 0, limit: int = 1_000) -> list[ErasedCell]:
        """Read a shard's log of erased cells, for change feed consumers that may have read them before the erasure.

        After each page of the feed, process the log's new events before reading the next page. Every erased cell then
        appears in the log, in the feed as erased, or in both.

        Args:
            shard: number of the shard.
            after: the last ``event_id`` that was processed, or 0; only later events are returned.
            limit: maximum number of events, 1 to 100,000.

        Returns:
            The next events in order, without gaps; an empty list if there are none.

        Raises:
            InvalidInput: an argument is invalid.
        """
        self._check_feed(shard, after, limit, None, "primary")
        return [event.erased for event in self._internals.erasures.log.events(shard, after, limit)]

    # Secondary indexes

    def index(self, name: str) -> Index:
        """Return a secondary index, which finds rows by the contents of their documents; no server is contacted."""
        internals = self._internals
        return Index(internals.shards, internals.registry, internals.rows, name)

    def create_index(self, name: str, *, shard_field: str, fields: Iterable[str] = ()) -> IndexEntry:
        """Create a secondary index: a table in each shard, which workers then fill.

            store.create_index("client_trips", shard_field="BASE.client:uuid", fields=["BASE.at:time"])

        The index accepts queries once it is filled, by ``catch_up`` or 'schemaless index run'. The account needs the
        role admin, and those of workers and applications need their roles again for the new tables. Repeating the call
        is safe, and completes an interrupted one; with other fields, the new index is built beside the old one, which
        answers queries until the new one is ready.

        Args:
            name: 1 to 32 characters of ``[A-Za-z0-9_.-]``.
            shard_field: the field whose value decides the shard of an entry; every query gives a value for it.
            fields: fields to query and order by; their order matters. A field is ``[NAME=]COLUMN.PATH:TYPE``, where
                TYPE is uuid, int, float, bool, time or text(N).

        Returns:
            The index, with its number and state.

        Raises:
            InvalidInput: a field is invalid, or another index of that name is still being built.
            JobConflict: shards are being moved.
        """
        return self._indexes.create(define(name, shard_field, fields))[0]

    def drop_index(self, name: str) -> None:
        """Drop every index of a name; cells are not changed.

        Queries are refused at once. If workers maintain the index, its tables are dropped about four seconds later,
        when they have noticed. The account needs the role admin. If the call is interrupted, repeat it.

        Raises:
            InvalidInput: there is no index of that name.
            JobConflict: shards are being moved.
        """
        for entry in self._indexes.named(name):
            self._indexes.drop(entry, wait=self._internals.shards.runtime.sleep)

    def indexes(self) -> list[IndexEntry]:
        """Read which secondary indexes exist, and their states: declared, backfilling, ready or dropping."""
        return list(self._indexes.all())

    @property
    def _indexes(self) -> Indexes:
        return Indexes(self._internals.follower_access, self._internals.registry)

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
        """Read one page of a shard's change feed: its cells in ``added_id`` order, strictly after ``location``.

        No cell is ever skipped, even if it is committed late, after cells with a higher added_id: the feed ends before
        any gap that an open transaction may still fill. The call does not wait for such transactions.

        Args:
            shard: number of the shard.
            location: 0, the ``next_location`` of a page, or the added_id of one of the shard's cells.
            limit: maximum number of cells, 1 to 100,000. A page is also limited by its size in bytes.
            column_name: return only cells of this column.
            read_from: ``primary`` or ``replica``. A replica is not read until it has received every settled cell.

        Returns:
            A page of cells. If it has no cells and its ``next_location`` equals ``location``, there is nothing new yet.

        Raises:
            InvalidInput, InvalidCell: an argument is invalid.
            LocationLost: ``location`` is beyond the shard's last cell: a failover lost cells, or the location belongs
                to another shard.
            FeedRefused: the server cannot tell whether a gap is settled; the message names the privilege to grant or
                the variable to set.
            CorruptBody: the stored bytes of a cell do not decode; ``get_stored_cells_for_shard`` reads past it.
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
        """Read one page of a shard's change feed as ``get_cells_for_shard`` does, without decoding the cells."""
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
        """Iterate over a shard's change feed.

        To resume later, store the last cell's ``added_id`` and pass it as ``location``.

        Args:
            shard: number of the shard.
            location: where to start, as in ``get_cells_for_shard``.
            column_name: return only cells of this column.
            read_from: where to read, as in ``get_cells_for_shard``.
            follow: wait for new cells at the end of the feed instead of ending the iteration.
            poll_s: interval at which to check for new cells, in seconds.
            limit: maximum number of cells to fetch at a time.

        Raises:
            InvalidInput, InvalidCell: an argument is invalid.
            LocationLost, FeedRefused, CorruptBody: while iterating, as for ``get_cells_for_shard``.
        """
        self._check_feed(shard, location, limit, column_name, read_from)
        check_number("poll_s", poll_s)
        poll = max(0, poll_s) if follow else None
        pages = self._changes.pages(shard, location, limit, column_name, read_from, poll)
        return (self._reader.cell(row, shard) for page in pages for row in page.rows)

    def end_of_shard(self, shard: int, *, timeout_s: float = 30) -> int:
        """Return the end of a shard's change feed: a location after all existing cells and before all future ones.

        Args:
            shard: number of the shard.
            timeout_s: maximum time to wait for open transactions, in seconds.

        Raises:
            InvalidInput: there is no such shard, or ``timeout_s`` is not a number.
            ServerTimeout: a transaction stayed open for longer than ``timeout_s``.
            FeedRefused: as for ``get_cells_for_shard``.
        """
        check_number("timeout_s", timeout_s)
        return self._changes.end(check_shard(shard, self._shard_count), timeout_s)

    def _check_feed(self, shard: int, location: int, limit: int, column_name: str | None, read_from: FeedFrom) -> None:
        check_shard(shard, self._shard_count)
        self._internals.shards.node_of(shard, read_from)
        _check_location(location, "location")
        if type(limit) is not int or not 1 <= limit <= _MAX_PAGE_CELLS:
            raise InvalidInput(f"limit must be an int from 1 to {_MAX_PAGE_CELLS:,}, got {limit!r}")
        if column_name is not None:
            check_column_name(column_name)

    # Analytics

    def arrow(
        self,
        column: str | None = None,
        *,
        fields: Iterable[str] = (),
        since: Since = None,
        shards: Iterable[int] | None = None,
    ) -> Any:
        """Stream the history of a column as Arrow record batches, for pandas, polars, DuckDB and others.

            table = polars.from_arrow(store.arrow("BASE", fields=["fare.total:float"]).read_all())

        Each row is one cell: row_key, column_name, ref_key, added_id, shard, created_at, the body as exact JSON text,
        and the typed columns. A value that a typed column cannot hold exactly is null, and so is the body of an erased
        cell. Batches are read as the reader advances, shard by shard and in ``added_id`` order within a shard, up to
        the last settled cell.

        Args:
            column: the column; None for all columns.
            fields: typed columns, ``[NAME=]PATH:TYPE`` where TYPE is uuid, int, float, bool, time, text(N) or, unlike
                for index fields, text. If ``column`` is None, PATH begins with a column name.
            since: an aware datetime, to return cells that were stored at that time or later, or a mapping of shards to
                added_ids, to return cells after them. Keep the highest added_id of each shard for the next call.
            shards: numbers of the shards to read; None for all.

        Returns:
            A ``pyarrow.RecordBatchReader``.

        Raises:
            InvalidInput: an argument is invalid, or pyarrow is not installed (extra ``[export]``).
            InvalidCell: the column name is invalid.
            LocationLost, FeedRefused, CorruptBody: while reading, as for ``get_cells_for_shard``.
        """
        return record_batches(self._internals, column, fields, since, shards)

    # Whole datastores and shards

    def iter_cells(self, column_name: str | None = None, *, latest: bool = False) -> Iterator[Cell]:
        """Iterate over all cells of the datastore, shard by shard, without a change feed's guarantees.

        Every cell that is committed before the call is returned once; one that is written during the iteration may be
        missing. Erased cells are left out. Cells of a shard come in ``added_id`` order; with ``latest``, in order of
        their row_keys.

        Args:
            column_name: the column; None for all columns.
            latest: return only the latest version in each row and column, as of when the row is read.

        Raises:
            InvalidCell: the column name is invalid.
            CorruptBody: while iterating, the stored bytes of a cell do not decode.
        """
        columns = None if column_name is None else [check_column_name(column_name)]
        scan, latest_cells, shards = self._internals.scan, self._internals.latest_cells, range(self._shard_count)
        if latest:
            return (cell for shard in shards for cell in latest_cells(shard, columns))
        stored = (cell for shard in shards for cell in scan(shard, column_name=column_name))
        return (cell.decode() for cell in stored if not cell.erased)

    def count(self, column_name: str | None = None, *, exact: bool = False) -> int:
        """Count cells, all versions and erased cells included.

        Args:
            column_name: the column; None for all columns.
            exact: read the keys of all cells, in index blocks of 20,000, instead of estimating. The default takes a few
                statements: the number of cells is taken from the servers' statistics, which may be off by half (by more
                on MyRocks), and a column's share from up to 32,000 keys.

        Returns:
            The number of cells. An exact count includes all cells committed before the call, and may include some
            written during it.

        Raises:
            InvalidCell: the column name is invalid.
        """
        if column_name is not None:
            check_column_name(column_name)
        return self._internals.count(column_name, exact=exact)

    def scan_shard(
        self,
        shard: int,
        *,
        after: int = 0,
        up_to: int | None = None,
        legacy_only: bool = False,
        column_name: str | None = None,
    ) -> Iterator[StoredCell]:
        """Iterate over a shard's current cells in ``added_id`` order, without decoding them.

        This is not a change feed: a cell that is written during the scan may be missed. Use ``iter_shard`` to see every
        cell.

        Args:
            shard: number of the shard.
            after: return only cells with a higher added_id.
            up_to: return only cells up to this added_id.
            legacy_only: return only cells whose body has no envelope.
            column_name: return only cells of this column. Bodies of other columns are not fetched.

        Raises:
            InvalidInput: there is no such shard, or a bound is not an added_id.
            InvalidCell: the column name is invalid.
        """
        _check_location(after, "after")
        if up_to is not None:
            _check_location(up_to, "up_to")
        return self._internals.scan(shard, after=after, up_to=up_to, legacy_only=legacy_only, column_name=column_name)

    def _encode(self, document: JSONDocument, codec: Codec) -> bytes:
        return encode_body(document, codec, allow_nan=self._internals.allow_nan)

    def _codec(self, name: str | None, column_name: str) -> Codec:
        return self._internals.columns.codec_for(column_name) if name is None else codec_named(name)


def _check_location(location: int, name: str) -> None:
    if type(location) is not int or not 0 <= location < 1 << 64:
        raise InvalidInput(f"{name} must be 0 or an added_id, got {location!r:.80}")


def check_datastore(store: object) -> Datastore:
    """Return ``store`` if it is a datastore.

    Raises:
        InvalidInput: it is something else, such as an ``AsyncDatastore``.
    """
    if not isinstance(store, Datastore):
        raise InvalidInput(f"expected a Datastore, from schemaless.connect(), got {type(store).__name__}")
    return store
