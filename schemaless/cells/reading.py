"""Cells read by their keys, from whichever shard they are on; ``cells.py`` has the rules of writing them."""

from __future__ import annotations

import random
import uuid
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from datetime import datetime
from itertools import filterfalse
from operator import itemgetter
from typing import Any, Final, cast

from schemaless.cell import Cell, CellKey, JSONDocument, RowKey, StaleStoredCell, StoredCell
from schemaless.cells.paging import Row, read_versions
from schemaless.cells.sql import select_cells, select_column_names, select_latest, select_row, select_versions
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
from schemaless.keys import MAX_REF_KEY, check_column_name, check_ref_key, row_key_bytes
from schemaless.topology.placement import shard_for
from schemaless.topology.shards import FeedFrom, ReadFrom, Shards, log
from schemaless.wire.connection import Check, Connection, Rows

_KEYS_PER_SELECT: Final = 200
_PAIRS_PER_SELECT: Final = 200

Place = tuple[bytes, str, int]

ADDED_ID: Final = slice(0, 1)
"""These columns of a row are its added_id."""

PLACE: Final = slice(1, 4)
"""These columns of a row are its whole key."""

PAIR: Final = slice(1, 3)
"""These columns of a row are its row_key and column_name."""

ROW_KEY: Final = slice(1, 2)
"""These columns of a row are its row_key."""


class Reader:
    """Reads cells of one datastore; absence is never an error, stored bytes that do not decode are ``CorruptBody``."""

    def __init__(self, shards: Shards, limits: Limits, dictionaries: Dictionaries) -> None:
        self._shards = shards
        self._shard_count = shards.topology.shard_count
        self._limits = limits
        self.dictionaries = dictionaries

    # Rows as cells

    def decode(self, stored: StoredCell) -> JSONDocument:
        """Return a stored cell's document; errors name the cell."""
        try:
            return decode_body(stored.body, self._limits, self.dictionaries)
        except CorruptBody as error:
            raise error.at(stored.key, stored.shard) from error.__cause__

    def stored(self, row: Row, shard: int) -> StoredCell:
        """Return a row of the table as a cell with its stored bytes."""
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
        """Return a row of the table as a cell with its document; ``row_key`` is what the caller has of it already."""
        added_id, row_bytes, column_name, ref_key, body, created_at = row
        key = uuid.UUID(bytes=row_bytes) if row_key is None else row_key
        try:
            document = decode_body(body, self._limits, self.dictionaries)
        except CorruptBody as error:
            raise error.at(CellKey(key, column_name, ref_key), shard) from error.__cause__
        return Cell(key, column_name, ref_key, document, added_id, datetime.fromisoformat(created_at))

    def select(self, shard: int, sql: bytes, read_from: ReadFrom, wanted: Container[Any], key: slice) -> Sequence[Row]:
        """Send a query for whole cells to a shard.

        Args:
            shard: its number.
            sql: the query.
            read_from: which kind of node.
            wanted: the keys that were asked for.
            key: what of a row is a key among them: ``ADDED_ID``, ``PLACE``, ``PAIR`` or ``ROW_KEY``.

        Raises:
            WrongReply: a row came that was not asked for.
        """
        rows: Any = self._shards.rows(shard, sql, read_from=read_from, check=only(wanted, key))
        return cast("Sequence[Row]", rows)

    def by_keys(self, connection: Connection, database: str, keys: Iterable[Place]) -> Iterator[Row]:
        """Yield the rows that are there of ``keys``, read outside any transaction.

        Raises:
            WrongReply: a row came that was not asked for.
        """
        wanted = list(keys)
        for start in range(0, len(wanted), _KEYS_PER_SELECT):
            part = wanted[start : start + _KEYS_PER_SELECT]
            rows: Any = connection.rows(select_cells(database, part), only(set(part), PLACE))
            yield from rows

    # By key, as ``Datastore``'s calls of like names have it

    def version(self, key: CellKey, read_from: ReadFrom) -> Cell | None:
        """Read one version; ``key`` is a checked one."""
        if read_from == "available":
            return self._available().version(key, "primary")
        row = key.row_key.bytes
        shard = self._shard_of(row)
        wanted = [(row, key.column_name, key.ref_key)]
        sql = select_cells(self._shards.database(shard), wanted)
        rows = self.select(shard, sql, read_from, wanted, PLACE)
        return self.cell(rows[0], shard) if rows else None

    def latest(self, row_key: RowKey, column_name: str, read_from: ReadFrom) -> Cell | None:
        """Read the version with the highest ref_key."""
        if read_from == "available":
            return self._available().latest(row_key, column_name, "primary")
        wanted = [_pair(row_key, column_name)]
        shard = self._shard_of(wanted[0][0])
        sql = select_latest(self._shards.database(shard), wanted)
        rows = self.select(shard, sql, read_from, wanted, PAIR)
        return self.cell(rows[0], shard) if rows else None

    def latest_of_many(
        self, keys: Iterable[tuple[RowKey, str]], read_from: ReadFrom
    ) -> dict[tuple[uuid.UUID, str], Cell]:
        """Read the latest version for many ``(row_key, column_name)``."""
        if read_from == "available":
            return self._available().latest_of_many(keys, "primary")
        cells = (stored.decode() for stored in self.latest_stored(keys, read_from))
        return {(cell.row_key, cell.column_name): cell for cell in cells}

    def latest_stored(
        self, keys: Iterable[tuple[RowKey, str]], read_from: FeedFrom = "primary"
    ) -> Iterator[StoredCell]:
        """Yield the latest version for many ``(row_key, column_name)``, as it is stored."""
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
        return {cell.column_name: cell for cell in (self.cell(stored_row, shard) for stored_row in rows)}

    def versions(
        self,
        row_key: RowKey,
        column_name: str,
        after: int | None,
        before: int | None,
        descending: bool,
        limit: int | None,
        read_from: ReadFrom,
    ) -> Iterator[StoredCell]:
        """Read versions of one row and column, fetching as it goes; arguments are checked at once."""
        if read_from == "available":
            return self._available().versions(row_key, column_name, after, before, descending, limit, "primary")
        pair = row, _ = _pair(row_key, column_name)
        above = -1 if after is None else check_ref_key(after)
        below = MAX_REF_KEY + 1 if before is None else check_ref_key(before)
        if limit is not None and (type(limit) is not int or limit < 0):
            raise InvalidInput(f"limit must be a number from 0 up, or None for all, got {limit!r}")
        shard = self._shard_of(row)
        database = self._shards.database(shard)
        rows = read_versions(
            lambda sql: self.select(shard, sql, read_from, [pair], PAIR),
            lambda after, before, most: select_versions(database, *pair, after, before, descending, most),
            above,
            below,
            descending,
            limit,
        )
        return (self.stored(stored_row, shard) for stored_row in rows)

    def column_names(self, row_key: RowKey, read_from: ReadFrom) -> list[str]:
        """Return the names of a row's columns, in their order."""
        row = row_key_bytes(row_key)
        shard = self._shard_of(row)
        sql = select_column_names(self._shards.database(shard), row)
        return [str(name) for (name,) in self._shards.rows(shard, sql, read_from=read_from)]

    def _available(self) -> Available:
        return Available(self._shards, self._limits, self.dictionaries)

    def _shard_of(self, row_key: bytes) -> int:
        return shard_for(row_key, self._shard_count)


class Available(Reader):
    """One call that reads from the primary, and from a replica where that does not answer.

    What is found there by its whole key is right: a cell never changes. What is found by less of it may not be all
    there is, and is marked so; of what is not found nobody knows whether it was written.
    """

    def __init__(self, shards: Shards, limits: Limits, dictionaries: Dictionaries) -> None:
        super().__init__(shards, limits, dictionaries)
        self._lost: dict[int, ServerError] = {}

    def select(self, shard: int, sql: bytes, read_from: ReadFrom, wanted: Container[Any], key: slice) -> Sequence[Row]:
        """Send a query as ``Reader.select`` does; a shard whose primary did not answer is read from a replica on."""
        if shard not in self._lost:
            try:
                return super().select(shard, sql, "primary", wanted, key)
            except (ServerUnavailable, ServerTimeout) as error:
                if not self._is_down(shard, error):
                    raise
                self._lost[shard] = error
        check = only(wanted, key)
        replicas = self._shards.routing.clusters[shard].replicas
        for node in random.sample(replicas, len(replicas)):
            try:
                rows: Any = self._shards.run_on(node, shard, lambda connection: connection.rows(sql, check))
            except (ServerError, ShardIdentityMismatch) as problem:
                log.warning("shard %d is not read from %s either: %s", shard, node, problem)
                continue
            return cast("Sequence[Row]", rows)
        raise self._lost[shard]

    def _is_down(self, shard: int, error: ServerError) -> bool:
        """Whether a shard's primary does not answer; one that is slow does, and a shard on its way has left it."""
        if isinstance(error, ServerTimeout):
            return self._shards.pool_for(self._shards.node_of(shard)).breaker.is_open
        return not isinstance(error, ShardMoving)

    def stored(self, row: Row, shard: int) -> StoredCell:
        """Return a row as a cell, which may be stale where it is of a replica."""
        cell = super().stored(row, shard)
        if shard not in self._lost:
            return cell
        return StaleStoredCell(*(getattr(cell, field.name) for field in fields(cell)))

    def cell(self, row: Row, shard: int, row_key: uuid.UUID | None = None) -> Cell:
        """Return a row as a cell with its document, which may be stale where it is of a replica."""
        return self.stored(row, shard).decode()

    def version(self, key: CellKey, read_from: ReadFrom) -> Cell | None:
        """Read one version: where it is found, that is the cell, wherever it was."""
        cell = super().version(key, read_from)
        if cell is None:
            self._check_absent(self._shard_of(key.row_key.bytes), f"cell {key}")
            return None
        return Cell(*(getattr(cell, field.name) for field in fields(cell)))

    def latest(self, row_key: RowKey, column_name: str, read_from: ReadFrom) -> Cell | None:
        """Read the version with the highest ref_key that is there."""
        cell = super().latest(row_key, column_name, read_from)
        if cell is None:
            row = row_key_bytes(row_key)
            self._check_absent(self._shard_of(row), f"a cell of row {row.hex()} in column {column_name}")
        return cell

    def latest_of_many(
        self, keys: Iterable[tuple[RowKey, str]], read_from: ReadFrom
    ) -> dict[tuple[uuid.UUID, str], Cell]:
        """Read the latest version that is there for many ``(row_key, column_name)``."""
        wanted = list(keys)
        cells = super().latest_of_many(wanted, read_from)
        for row_key, column_name in wanted:
            row = row_key_bytes(row_key)
            if (uuid.UUID(bytes=row), column_name) not in cells:
                shard = self._shard_of(row)
                self._check_absent(shard, f"a cell of row {row.hex()} in column {column_name}", cells)
        return cells

    def row(self, row_key: RowKey, read_from: ReadFrom) -> dict[str, Cell]:
        """Read the latest cell that is there of each column of a row."""
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
    ) -> Iterator[StoredCell]:
        """Read versions that are there; one of them is stale, or it raises, where others may have been written."""
        versions = super().versions(row_key, column_name, after, before, descending, limit, read_from)
        return self._until_an_end(versions, row_key_bytes(row_key), column_name, limit)

    def _until_an_end(
        self, cells: Iterator[StoredCell], row: bytes, column_name: str, limit: int | None
    ) -> Iterator[StoredCell]:
        count, marked = 0, False
        for cell in cells:
            count, marked = count + 1, marked or cell.stale
            yield cell
        if count != limit and not marked:
            self._check_absent(self._shard_of(row), f"more versions of row {row.hex()} in column {column_name}")

    def _check_absent(self, shard: int, what: str, others: Mapping[tuple[uuid.UUID, str], Cell] | None = None) -> None:
        """Raise unless the primary itself said that something is not there.

        Raises:
            StaleAbsence: a replica said so.
        """
        lost = self._lost.get(shard)
        if lost is not None:
            absence = StaleAbsence(
                f"a replica has not got {what}, and whether it was written only the primary knows, which does not "
                f"answer ({lost.message})",
                node=lost.node,
                shard=shard,
                code=lost.code,
            )
            absence.retry_after_s = getattr(lost, "retry_after_s", None)
            absence.found = others or {}
            raise absence from lost


def _pair(row_key: RowKey, column_name: str) -> tuple[bytes, str]:
    """Return a checked row_key, as the table has it, and column_name."""
    return row_key_bytes(row_key), check_column_name(column_name)


def only(wanted: Container[Any], key: slice) -> Check:
    """Return a check that the parts ``key`` of all rows are among those that were asked for."""
    part = itemgetter(key)

    def check(rows: Rows) -> str | None:
        strange = next(filterfalse(wanted.__contains__, map(part, rows)), None)
        return None if strange is None else f"asked for {wanted!r:.200}, got {strange!r:.200}"

    return check
