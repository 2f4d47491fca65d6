"""Reading cells by their keys. ``Available`` adds the fallback to replicas."""

from __future__ import annotations

import random
import uuid
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from datetime import datetime
from itertools import filterfalse
from operator import itemgetter
from typing import Any, Final, cast

from schemaless.base.keys import MAX_REF_KEY, check_column_name, check_ref_key, row_key_bytes
from schemaless.cell import Cell, CellKey, JSONDocument, RowKey, StaleStoredCell, StoredCell
from schemaless.codec.dictionaries import Dictionaries
from schemaless.codec.envelope import Limits, decode_body
from schemaless.errors import (
    CorruptBody,
    InvalidInput,
    ServerError,
    ServerTimeout,
    ServerUnavailable,
    ShardIdentityMismatch,
    ShardMoving,
    StaleAbsence,
)
from schemaless.store.cells.paging import Row, read_versions
from schemaless.store.cells.sql import select_cells, select_column_names, select_latest, select_row, select_versions
from schemaless.topology.placement import shard_for
from schemaless.topology.shards import FeedFrom, ReadFrom, Shards, log
from schemaless.wire.connection import Check, Connection, Rows

_KEYS_PER_SELECT: Final = 200
_PAIRS_PER_SELECT: Final = 200

Place = tuple[bytes, str, int]
"""A cell's key as the table stores it: row_key, column_name, ref_key."""

ADDED_ID: Final = slice(0, 1)
"""The columns of a row that hold its added_id, for ``only_requested``."""

PLACE: Final = slice(1, 4)
"""The columns of a row that hold its full key."""

PAIR: Final = slice(1, 3)
"""The columns of a row that hold its row_key and column_name."""

ROW_KEY: Final = slice(1, 2)
"""The columns of a row that hold its row_key."""


class Reader:
    """Reads cells of one datastore.

    Missing cells are not an error. Stored bytes that do not decode raise ``CorruptBody``.
    """

    def __init__(self, shards: Shards, limits: Limits, dictionaries: Dictionaries) -> None:
        self._shards = shards
        self._shard_count = shards.topology.shard_count
        self._limits = limits
        self.dictionaries = dictionaries

    # Conversion of rows to cells

    def decode(self, stored: StoredCell) -> JSONDocument:
        """Decode a stored cell; errors name the cell."""
        try:
            return decode_body(stored.body, self._limits, self.dictionaries)
        except CorruptBody as error:
            raise error.at(stored.key, stored.shard) from error.__cause__

    def stored(self, row: Row, shard: int) -> StoredCell:
        """Return the cell of a row, with its stored bytes."""
        added_id, row_key, column_name, ref_key, body, created_at = row
        return StoredCell(
            uuid.UUID(bytes=row_key),
            column_name,
            ref_key,
            body,
            added_id,
            datetime.fromisoformat(created_at),
            shard,
            self.decode,
        )

    def cell(self, row: Row, shard: int, row_key: uuid.UUID | None = None) -> Cell:
        """Return the cell of a row, with its document; pass a known ``row_key`` to avoid parsing it again."""
        added_id, row_bytes, column_name, ref_key, body, created_at = row
        key = uuid.UUID(bytes=row_bytes) if row_key is None else row_key
        try:
            document = decode_body(body, self._limits, self.dictionaries)
        except CorruptBody as error:
            raise error.at(CellKey(key, column_name, ref_key), shard) from error.__cause__
        return Cell(key, column_name, ref_key, document, added_id, datetime.fromisoformat(created_at))

    def select(self, shard: int, sql: bytes, read_from: ReadFrom, wanted: Container[Any], key: slice) -> Sequence[Row]:
        """Send a query for complete cells to a shard.

        Args:
            shard: number of the shard.
            sql: the query.
            read_from: the kind of server to read from.
            wanted: the requested keys.
            key: the columns that hold such a key: ``ADDED_ID``, ``PLACE``, ``PAIR`` or ``ROW_KEY``.

        Raises:
            WrongReply: the reply has a row that was not requested.
        """
        rows: Any = self._shards.rows(shard, sql, read_from=read_from, check=only_requested(wanted, key))
        return cast("Sequence[Row]", rows)

    def by_keys(self, connection: Connection, database: str, keys: Iterable[Place]) -> Iterator[Row]:
        """Yield the existing rows of ``keys``, read outside of any transaction.

        Raises:
            WrongReply: a reply has a row that was not requested.
        """
        wanted = list(keys)
        for start in range(0, len(wanted), _KEYS_PER_SELECT):
            part = wanted[start : start + _KEYS_PER_SELECT]
            rows: Any = connection.rows(select_cells(database, part), only_requested(set(part), PLACE))
            yield from rows

    # Reads by key; ``Datastore`` documents them

    def version(self, key: CellKey, read_from: ReadFrom) -> Cell | None:
        """Read one version; ``key`` must already be validated."""
        if read_from == "available":
            return self._available().version(key, "primary")
        row = key.row_key.bytes
        shard = self._shard_of(row)
        wanted = [(row, key.column_name, key.ref_key)]
        sql = select_cells(self._shards.database(shard), wanted)
        return self._live(self.select(shard, sql, read_from, wanted, PLACE), shard)

    def latest(self, row_key: RowKey, column_name: str, read_from: ReadFrom) -> Cell | None:
        """Read the version with the highest ref_key."""
        if read_from == "available":
            return self._available().latest(row_key, column_name, "primary")
        wanted = [_pair(row_key, column_name)]
        shard = self._shard_of(wanted[0][0])
        sql = select_latest(self._shards.database(shard), wanted)
        return self._live(self.select(shard, sql, read_from, wanted, PAIR), shard)

    def latest_of_many(
        self, keys: Iterable[tuple[RowKey, str]], read_from: ReadFrom
    ) -> dict[tuple[uuid.UUID, str], Cell]:
        """Read the latest version of each ``(row_key, column_name)``."""
        if read_from == "available":
            return self._available().latest_of_many(keys, "primary")
        cells = (stored.decode() for stored in self.latest_stored(keys, read_from) if not stored.erased)
        return {(cell.row_key, cell.column_name): cell for cell in cells}

    def latest_stored(
        self, keys: Iterable[tuple[RowKey, str]], read_from: FeedFrom = "primary"
    ) -> Iterator[StoredCell]:
        """Yield the latest version of each ``(row_key, column_name)``, with its stored bytes."""
        by_shard: dict[int, list[tuple[bytes, str]]] = {}
        wanted = dict.fromkeys(_pair(row_key, name) for row_key, name in keys)
        for pair in wanted:
            by_shard.setdefault(self._shard_of(pair[0]), []).append(pair)
        for shard, pairs in sorted(by_shard.items()):
            for start in range(0, len(pairs), _PAIRS_PER_SELECT):
                sql = select_latest(self._shards.database(shard), pairs[start : start + _PAIRS_PER_SELECT])
                for row in self.select(shard, sql, read_from, wanted, PAIR):
                    yield self.stored(row, shard)

    def row(self, row_key: RowKey, read_from: ReadFrom) -> dict[str, Cell]:
        """Read the latest cell of each column of a row."""
        if read_from == "available":
            return self._available().row(row_key, "primary")
        row = row_key_bytes(row_key)
        shard = self._shard_of(row)
        sql = select_row(self._shards.database(shard), row)
        rows = self.select(shard, sql, read_from, [(row,)], ROW_KEY)
        cells = (self.cell(stored_row, shard) for stored_row in rows)
        return {cell.column_name: cell for cell in cells if not cell.erased}

    def versions(
        self,
        row_key: RowKey,
        column_name: str,
        after: int | None,
        before: int | None,
        descending: bool,
        limit: int | None,
        read_from: ReadFrom,
        include_erased: bool = False,
    ) -> Iterator[StoredCell]:
        """Iterate over versions of one row and column; arguments are checked before the first fetch."""
        if read_from == "available":
            return self._available().versions(
                row_key, column_name, after, before, descending, limit, "primary", include_erased
            )
        pair = row, _ = _pair(row_key, column_name)
        above = -1 if after is None else check_ref_key(after)
        below = MAX_REF_KEY + 1 if before is None else check_ref_key(before)
        if limit is not None and (type(limit) is not int or limit < 0):
            raise InvalidInput(f"limit must be an int of 0 or more, or None for all versions, got {limit!r}")
        shard = self._shard_of(row)
        database = self._shards.database(shard)
        rows = read_versions(
            lambda sql: self.select(shard, sql, read_from, [pair], PAIR),
            lambda after, before, count: select_versions(
                database, *pair, after, before, descending, count, live_only=not include_erased
            ),
            above,
            below,
            descending,
            limit,
        )
        return (self.stored(stored_row, shard) for stored_row in rows)

    def column_names(self, row_key: RowKey, read_from: ReadFrom) -> list[str]:
        """Return the names of a row's columns, sorted."""
        row = row_key_bytes(row_key)
        shard = self._shard_of(row)
        sql = select_column_names(self._shards.database(shard), row)
        return [str(name) for (name,) in self._shards.rows(shard, sql, read_from=read_from)]

    def _live(self, rows: Sequence[Row], shard: int) -> Cell | None:
        """Return the cell of the only row, or None if there is no row or the cell was erased."""
        cell = self.cell(rows[0], shard) if rows else None
        return None if cell is None or cell.erased else cell

    def _available(self) -> Available:
        return Available(self._shards, self._limits, self.dictionaries)

    def _shard_of(self, row_key: bytes) -> int:
        return shard_for(row_key, self._shard_count)


class Available(Reader):
    """Reader for a single call with ``read_from="available"``: falls back to a replica if a primary does not answer.

    Cells are immutable, so a cell found on a replica by its full key is correct. A read by part of the key may miss
    cells or return older versions, so its cells are marked as stale. A cell missing from the replica may still exist on
    the primary.
    """

    def __init__(self, shards: Shards, limits: Limits, dictionaries: Dictionaries) -> None:
        super().__init__(shards, limits, dictionaries)
        self._lost: dict[int, ServerError] = {}

    def select(self, shard: int, sql: bytes, read_from: ReadFrom, wanted: Container[Any], key: slice) -> Sequence[Row]:
        """Send a query as ``Reader.select`` does, but to the shard's replicas once its primary has failed to answer."""
        if shard not in self._lost:
            try:
                return super().select(shard, sql, "primary", wanted, key)
            except (ServerUnavailable, ServerTimeout) as error:
                if not self._is_down(shard, error):
                    raise
                self._lost[shard] = error
        check = only_requested(wanted, key)
        replicas = self._shards.routing.clusters[shard].replicas
        for node in random.sample(replicas, len(replicas)):
            try:
                rows: Any = self._shards.run_on(node, shard, lambda connection: connection.rows(sql, check))
            except (ServerError, ShardIdentityMismatch) as problem:
                log.warning("cannot read shard %d from replica %s either: %s", shard, node, problem)
                continue
            return cast("Sequence[Row]", rows)
        raise self._lost[shard]

    def _is_down(self, shard: int, error: ServerError) -> bool:
        """Return True if a shard's primary is down; False if it is merely slow or the shard is being moved."""
        if isinstance(error, ServerTimeout):
            return self._shards.pool_for(self._shards.node_of(shard)).breaker.is_open
        return not isinstance(error, ShardMoving)

    def stored(self, row: Row, shard: int) -> StoredCell:
        """Return the cell of a row, with its stored bytes; marked as stale if a replica was read."""
        cell = super().stored(row, shard)
        if shard not in self._lost:
            return cell
        return StaleStoredCell(*(getattr(cell, field.name) for field in fields(cell)))

    def cell(self, row: Row, shard: int, row_key: uuid.UUID | None = None) -> Cell:
        """Return the cell of a row, with its document; marked as stale if a replica was read."""
        return self.stored(row, shard).decode()

    def version(self, key: CellKey, read_from: ReadFrom) -> Cell | None:
        """Read one version, which is never stale because it is found by its full key."""
        cell = super().version(key, read_from)
        if cell is None:
            self._check_absent(self._shard_of(key.row_key.bytes), f"cell {key}")
            return None
        return Cell(*(getattr(cell, field.name) for field in fields(cell)))

    def latest(self, row_key: RowKey, column_name: str, read_from: ReadFrom) -> Cell | None:
        """Read the version with the highest ref_key from the primary or a replica."""
        cell = super().latest(row_key, column_name, read_from)
        if cell is None:
            row = row_key_bytes(row_key)
            self._check_absent(self._shard_of(row), f"a cell of row {row.hex()} in column {column_name}")
        return cell

    def latest_of_many(
        self, keys: Iterable[tuple[RowKey, str]], read_from: ReadFrom
    ) -> dict[tuple[uuid.UUID, str], Cell]:
        """Read the latest version of each ``(row_key, column_name)`` from its primary or a replica."""
        wanted = list(keys)
        cells = super().latest_of_many(wanted, read_from)
        for row_key, column_name in wanted:
            row = row_key_bytes(row_key)
            if (uuid.UUID(bytes=row), column_name) not in cells:
                shard = self._shard_of(row)
                self._check_absent(shard, f"a cell of row {row.hex()} in column {column_name}", cells)
        return cells

    def row(self, row_key: RowKey, read_from: ReadFrom) -> dict[str, Cell]:
        """Read the latest cell of each column of a row from the primary or a replica."""
        cells = super().row(row_key, read_from)
        if not cells:
            row = row_key_bytes(row_key)
            self._check_absent(self._shard_of(row), f"row {row.hex()}")
        return cells

    def versions(
        self,
        row_key: RowKey,
        column_name: str,
        after: int | None,
        before: int | None,
        descending: bool,
        limit: int | None,
        read_from: ReadFrom,
        include_erased: bool = False,
    ) -> Iterator[StoredCell]:
        """Iterate over versions; if some may be missing, one is marked as stale, or ``StaleAbsence`` is raised."""
        options = (after, before, descending, limit, read_from, include_erased)
        versions = super().versions(row_key, column_name, *options)
        return self._check_complete(versions, row_key_bytes(row_key), column_name, limit)

    def _check_complete(
        self, cells: Iterator[StoredCell], row: bytes, column_name: str, limit: int | None
    ) -> Iterator[StoredCell]:
        count, stale = 0, False
        for cell in cells:
            count, stale = count + 1, stale or cell.stale
            yield cell
        if count != limit and not stale:
            self._check_absent(self._shard_of(row), f"more versions of row {row.hex()} in column {column_name}")

    def _check_absent(
        self, shard: int, missing: str, others: Mapping[tuple[uuid.UUID, str], Cell] | None = None
    ) -> None:
        """Raise ``StaleAbsence`` if the shard was read from a replica, which may lack the cell.

        Raises:
            StaleAbsence: a replica was read.
        """
        lost = self._lost.get(shard)
        if lost is not None:
            absence = StaleAbsence(
                f"the replica does not have {missing}. The primary may, but it does not answer "
                f"({lost.message}); try again later",
                node=lost.node,
                shard=shard,
                code=lost.code,
            )
            absence.retry_after_s = getattr(lost, "retry_after_s", None)
            absence.found = others or {}
            raise absence from lost


def _pair(row_key: RowKey, column_name: str) -> tuple[bytes, str]:
    return row_key_bytes(row_key), check_column_name(column_name)


def only_requested(wanted: Container[Any], key: slice) -> Check:
    """Return a check that every row was requested: the values in its ``key`` columns must be in ``wanted``."""
    key_of = itemgetter(key)

    def check(rows: Rows) -> str | None:
        unrequested = next(filterfalse(wanted.__contains__, map(key_of, rows)), None)
        return None if unrequested is None else f"requested {wanted!r:.200}, got {unrequested!r:.200}"

    return check
