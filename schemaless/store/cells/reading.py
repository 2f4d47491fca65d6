"""Reading cells by their keys, from the primary, from a replica, or from whichever of them answers."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from itertools import filterfalse
from operator import itemgetter
from typing import Any, Final, NoReturn, TypeVar, cast

from schemaless.base.keys import (
    MAX_REF_KEY,
    check_at,
    check_column_name,
    check_column_names,
    check_each,
    check_ref_key,
    row_key_bytes,
)
from schemaless.base.logger import log
from schemaless.base.parts import grouped
from schemaless.cell import Cell, CellKey, JSONDocument, RowKey, StaleCell, StaleStoredCell, StoredCell
from schemaless.codec.deltas import Payloads
from schemaless.codec.dictionaries import Dictionaries
from schemaless.codec.envelope import Limits, decode_body, is_delta
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
from schemaless.store.cells.bases import CHAINED_HEADERS, FIRST_STEPS, split, with_bases
from schemaless.store.cells.cold_bodies import ColdBodies
from schemaless.store.cells.paging import read_versions
from schemaless.store.cells.sql import (
    Row,
    select_cells,
    select_column_names,
    select_latest,
    select_row,
    select_rows,
    select_versions,
    select_with_bases,
)
from schemaless.topology.placement import shard_for
from schemaless.topology.scatter_gather import query_shards
from schemaless.topology.shards import ReadFrom, Shards
from schemaless.wire.connection import Check, Connection, Rows

_PAIRS_PER_SELECT: Final = 200
_ROWS_PER_SELECT: Final = 200

_READS_AFTER_DELTA: Final = 16
"""Number of versions of a column that are read together with what they depend on, after one that was a delta.

This takes a quarter longer for whole versions, and saves deltas a second statement, which takes as long as the first.
"""

K = TypeVar("K", tuple[bytes], tuple[bytes, str])

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


@dataclass(slots=True)
class Source:
    """Where a single call reads.

    With ``available``, a shard whose primary does not answer is read from a replica for the rest of the call. Cells are
    immutable, so a cell found there by its full key is correct. A read by part of the key may miss cells or return
    older versions, so its cells are stale. A cell missing from the replica may still exist on the primary.

    Attributes:
        read_from: the kind of server.
        lost: the error of each primary that did not answer, by shard; cells of these shards are stale.
    """

    read_from: ReadFrom
    lost: dict[int, ServerError] = field(default_factory=dict)

    def check_absent(self, shard: int, missing: str, found: dict[tuple[uuid.UUID, str], Cell] | None = None) -> None:
        """Check that a cell which was not found does not exist.

        Args:
            shard: number of its shard.
            missing: describes the cell.
            found: the cells that the call has found.

        Raises:
            StaleAbsence: a replica was read, which may lack the cell.
        """
        lost = self.lost.get(shard)
        if lost is not None:
            absence = StaleAbsence(
                f"the replica does not have {missing}. The primary may, but it does not answer "
                f"({lost.message}); try again later",
                node=lost.node,
                shard=shard,
                code=lost.code,
            )
            absence.retry_after_s = getattr(lost, "retry_after_s", None)
            absence.found = found or {}
            raise absence from lost


PRIMARY: Final = Source("primary")


def _source(read_from: ReadFrom) -> Source:
    # One object for all reads from primaries, since it never changes and every get would create one.
    return PRIMARY if read_from == "primary" else Source(read_from)


class Reader:
    """Reads cells of one datastore.

    Missing cells are not an error. Stored bytes that do not decode raise ``CorruptBody``.
    """

    def __init__(self, shards: Shards, limits: Limits, dictionaries: Dictionaries, cold: ColdBodies) -> None:
        self._shards = shards
        self.cold = cold
        self._shard_count = shards.topology.shard_count
        self._limits = limits
        self.dictionaries = dictionaries
        self._expected_deltas: dict[str, int] = {}

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "cannot pickle or deep-copy a StoredCell, because its datastore decodes it; take the Cell that decode() "
            "returns, or a NewStoredCell with the same bytes"
        )

    # Conversion of rows to cells

    def decode(self, stored: StoredCell) -> JSONDocument:
        """Decode a stored cell; errors name the cell."""
        try:
            return decode_body(stored.body, self._limits, self.dictionaries)
        except CorruptBody as error:
            raise error.at(stored.key, stored.shard) from error.__cause__

    def stored(self, row: Row, shard: int, source: Source = PRIMARY) -> StoredCell:
        """Return the cell of a row, with its stored bytes."""
        added_id, row_key, column_name, ref_key, body, created_at = row
        return (StaleStoredCell if shard in source.lost else StoredCell)(
            uuid.UUID(bytes=row_key),
            column_name,
            ref_key,
            body,
            added_id,
            datetime.fromisoformat(created_at),
            shard,
            self.decode,
        )

    def cell(self, row: Row, shard: int, row_key: uuid.UUID | None = None, source: Source = PRIMARY) -> Cell:
        """Return the cell of a row, with its document; pass a known ``row_key`` to avoid parsing it again."""
        added_id, row_bytes, column_name, ref_key, body, created_at = row
        key = uuid.UUID(bytes=row_bytes) if row_key is None else row_key
        try:
            document = decode_body(body, self._limits, self.dictionaries)
        except CorruptBody as error:
            raise error.at(CellKey(key, column_name, ref_key), shard) from error.__cause__
        kind = StaleCell if shard in source.lost else Cell
        return kind(key, column_name, ref_key, document, added_id, datetime.fromisoformat(created_at))

    def select(
        self,
        shard: int,
        sql: bytes,
        wanted: Container[Any],
        key: slice,
        source: Source = PRIMARY,
        payloads: Payloads | None = None,
        *,
        has_bases: bool = False,
        cold: bool = True,
    ) -> Sequence[Row]:
        """Send a query for complete cells to a shard.

        Args:
            shard: number of the shard.
            sql: the query.
            wanted: the requested keys.
            key: the columns that hold such a key: ``ADDED_ID``, ``PLACE``, ``PAIR`` or ``ROW_KEY``.
            source: where to read.
            payloads: those of earlier queries for versions of the same cells.
            has_bases: whether the query is one of ``select_with_bases``.
            cold: read the documents of cold cells; otherwise, their bodies are references without them.

        Raises:
            WrongReply: the reply has a row that was not requested.
        """
        check, database = only_requested(wanted, key), self._shards.database(shard)

        def operation(connection: Connection) -> Sequence[Row]:
            rows = connection.rows(sql, check)
            if has_bases:
                cells, known = split(rows)
                return with_bases(connection, database, cells, known=known)
            return with_bases(connection, database, cast("Sequence[Row]", rows), payloads=payloads)

        rows: Sequence[Row] = self._run(operation, shard, source)
        if not cold:
            return rows
        run = partial(self._run, shard=shard, source=source)
        # A replica may not know yet that a file was rewritten.
        return self.cold.completed(rows, run, shard, None if source.read_from == "replica" else run)

    def _run(self, operation: Callable[[Connection], Any], shard: int, source: Source) -> Any:
        """Run an operation on a server of a shard that ``source`` allows."""
        read_from = source.read_from
        if read_from == "available":
            if shard in source.lost:
                return self._read_replica(shard, operation, source.lost[shard])
            read_from = "primary"
        try:
            return self._shards.run(shard, operation, read_from=read_from)
        except (ServerUnavailable, ServerTimeout) as error:
            if source.read_from != "available" or not self._is_down(shard, error):
                raise
            source.lost[shard] = error
            return self._read_replica(shard, operation, error)

    def completed(self, rows: Sequence[Row]) -> Sequence[Row]:
        """Return rows of many shards with what is needed to decode them, reading it from their primaries."""
        by_shard = grouped((self._shard_of(row[1]), row) for row in rows if row[4][:2] in CHAINED_HEADERS)
        if not by_shard:
            return rows
        whole: dict[int, dict[int, Row]] = {}
        for shard, chained in by_shard.items():
            run = partial(self._shards.run, shard)
            complete = partial(with_bases, database=self._shards.database(shard), rows=chained)
            whole[shard] = {row[0]: row for row in self.cold.completed(run(complete), run, shard)}
        return [whole[self._shard_of(row[1])][row[0]] if row[4][:2] in CHAINED_HEADERS else row for row in rows]

    def _read_replica(self, shard: int, operation: Callable[[Connection], Any], lost: ServerError) -> Any:
        """Query any replica of a shard that answers, or raise the primary's error."""
        replicas = self._shards.routing.clusters[shard].replicas
        for node in random.sample(replicas, len(replicas)):
            try:
                return self._shards.run_on(node, shard, operation)
            except (ServerError, ShardIdentityMismatch) as problem:
                log.warning("cannot read shard %d from replica %s either: %s", shard, node, problem)
        raise lost

    def _is_down(self, shard: int, error: ServerError) -> bool:
        """Return True if a shard's primary is down; False if it is merely slow or the shard is being moved."""
        if isinstance(error, ServerTimeout):
            return self._shards.pool_for(self._shards.node_of(shard)).breaker.is_open
        return not isinstance(error, ShardMoving)

    # Reads by key; ``Datastore`` documents them

    def version(self, key: CellKey, read_from: ReadFrom) -> Cell | None:
        """Read one version; ``key`` must already be validated."""
        source, row = _source(read_from), key.row_key.bytes
        shard = self._shard_of(row)
        wanted = [(row, key.column_name, key.ref_key)]
        database, expected = self._shards.database(shard), self._expected_deltas.get(key.column_name, 0)
        sql = select_with_bases(database, wanted[0], FIRST_STEPS) if expected else select_cells(database, wanted)
        rows = self.select(shard, sql, wanted, PLACE, source, has_bases=expected > 0)
        if rows and is_delta(rows[0][4]):
            self._expected_deltas[key.column_name] = _READS_AFTER_DELTA
        elif expected:
            self._expected_deltas[key.column_name] = expected - 1
        # Never stale, because it was found by its full key.
        cell = self._live(rows, shard, PRIMARY)
        if cell is None:
            source.check_absent(shard, f"cell {key}")
        return cell

    def latest(self, row_key: RowKey, column_name: str, at: datetime | None, read_from: ReadFrom) -> Cell | None:
        """Read the version with the highest ref_key, among those stored by the time ``at`` if that is given."""
        source, wanted = _source(read_from), [_pair(row_key, column_name)]
        shard = self._shard_of(wanted[0][0])
        sql = select_latest(self._shards.database(shard), wanted, check_at(at))
        rows = self.select(shard, sql, wanted, PAIR, source)
        cell = self._live(rows, shard, source)
        if cell is None:
            source.check_absent(shard, _described(*wanted[0]))
        return cell

    def latest_of_many(
        self, keys: Iterable[tuple[RowKey, str]], at: datetime | None, read_from: ReadFrom
    ) -> dict[tuple[uuid.UUID, str], Cell]:
        """Read the latest version of each ``(row_key, column_name)``."""
        source, at = _source(read_from), check_at(at)
        wanted = list(dict.fromkeys(check_each(keys, "keys", _checked_pair)))
        cells: dict[tuple[uuid.UUID, str], Cell] = {}
        for start in range(0, len(wanted), _PAIRS_PER_SELECT):
            pairs = wanted[start : start + _PAIRS_PER_SELECT]
            for row, shard in self._rows_of(pairs, partial(select_latest, at=at), PAIR, source):
                cell = self.cell(row, shard, source=source)
                if not cell.erased:
                    cells[cell.row_key, cell.column_name] = cell
        for row_key, name in wanted if source.lost else ():
            if (uuid.UUID(bytes=row_key), name) not in cells:
                source.check_absent(self._shard_of(row_key), _described(row_key, name), cells)
        return cells

    def row(
        self, row_key: RowKey, columns: Iterable[str] | None, at: datetime | None, read_from: ReadFrom
    ) -> dict[str, Cell]:
        """Read the latest cell of each column of a row, or of some columns."""
        source, row, names, at = _source(read_from), row_key_bytes(row_key), check_column_names(columns), check_at(at)
        if names == ():
            return {}
        shard = self._shard_of(row)
        database = self._shards.database(shard)
        is_whole = names is None and at is None
        sql = select_row(database, row) if is_whole else select_rows(database, [row], names, at)
        rows = self.select(shard, sql, [(row,)], ROW_KEY, source)
        read = (self.cell(stored_row, shard, source=source) for stored_row in rows)
        cells = {cell.column_name: cell for cell in read if not cell.erased}
        if not cells:
            source.check_absent(shard, f"row {row.hex()}")
        return dict(sorted(cells.items()))

    def rows(
        self, row_keys: Iterable[RowKey], columns: Iterable[str] | None, at: datetime | None, read_from: ReadFrom
    ) -> dict[uuid.UUID, dict[str, Cell]]:
        """Read the latest cell of each column of many rows, or of some columns."""
        source, names, at = _source(read_from), check_column_names(columns), check_at(at)
        wanted = list(dict.fromkeys(check_each(row_keys, "row_keys", row_key_bytes)))
        if names == ():
            return {}
        found: dict[bytes, dict[str, Cell]] = {row: {} for row in wanted}

        def statement(database: str, rows: Sequence[tuple[bytes]]) -> bytes:
            return select_rows(database, [row for (row,) in rows], names, at)

        for start in range(0, len(wanted), _ROWS_PER_SELECT):
            part = [(row,) for row in wanted[start : start + _ROWS_PER_SELECT]]
            for stored_row, shard in self._rows_of(part, statement, ROW_KEY, source):
                cell = self.cell(stored_row, shard, source=source)
                if not cell.erased:
                    found[stored_row[1]][cell.column_name] = cell
        for row in wanted if source.lost else ():
            if not found[row]:
                cells = {(cell.row_key, name): cell for of_row in found.values() for name, cell in of_row.items()}
                source.check_absent(self._shard_of(row), f"row {row.hex()}", cells)
        return {uuid.UUID(bytes=row): dict(sorted(cells.items())) for row, cells in found.items() if cells}

    def _rows_of(
        self, keys: Sequence[K], statement: Callable[[str, Sequence[K]], bytes], key: slice, source: Source
    ) -> Iterator[tuple[Row, int]]:
        """Yield the rows of tables that hold the latest cells with some keys, with their shards.

        Primaries get one statement each, and work at the same time.

        Args:
            keys: the requested keys, which begin with the row_key.
            statement: builds the query for the keys of one shard, from the name of its database.
            key: the columns that hold such a key: ``PAIR`` or ``ROW_KEY``.
            source: where to read.
        """
        by_shard = grouped((self._shard_of(requested[0]), requested) for requested in keys)
        wanted = set(keys)

        def select(shard: int) -> bytes:
            return statement(self._shards.database(shard), by_shard[shard])

        if source.read_from == "primary":
            fetched: list[Any] = []
            query_shards(self._shards, by_shard, select, fetched.extend, only_requested(wanted, key))
            return ((row, self._shard_of(row[1])) for row in self.completed(fetched))
        return ((row, shard) for shard in by_shard for row in self.select(shard, select(shard), wanted, key, source))

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
        pair = row, _ = _pair(row_key, column_name)
        above = -1 if after is None else check_ref_key(after)
        below = MAX_REF_KEY + 1 if before is None else check_ref_key(before)
        if limit is not None and (type(limit) is not int or limit < 0):
            raise InvalidInput(f"limit must be an int of 0 or more, or None for all versions, got {limit!r}")
        source, shard = _source(read_from), self._shard_of(row)
        database = self._shards.database(shard)
        payloads = Payloads()
        rows = read_versions(
            lambda sql: self.select(shard, sql, [pair], PAIR, source, payloads),
            lambda after, before, count: select_versions(
                database, *pair, after, before, descending, count, live_only=not include_erased
            ),
            above,
            below,
            descending,
            limit,
            live_only=not include_erased,
        )

        def cells() -> Iterator[StoredCell]:
            count, stale = 0, False
            for stored_row in rows:
                cell = self.stored(stored_row, shard, source)
                count, stale = count + 1, stale or cell.stale
                yield cell
            if count != limit and not stale:
                source.check_absent(shard, f"more versions of row {row.hex()} in column {column_name}")

        return cells()

    def column_names(self, row_key: RowKey, read_from: ReadFrom) -> list[str]:
        """Return the names of a row's columns, sorted."""
        row = row_key_bytes(row_key)
        shard = self._shard_of(row)
        sql = select_column_names(self._shards.database(shard), row)
        return [str(name) for (name,) in self._shards.rows(shard, sql, read_from=read_from)]

    def _live(self, rows: Sequence[Row], shard: int, source: Source) -> Cell | None:
        """Return the cell of the only row, or None if there is no row or the cell was erased."""
        cell = self.cell(rows[0], shard, source=source) if rows else None
        return None if cell is None or cell.erased else cell

    def _shard_of(self, row_key: bytes) -> int:
        return shard_for(row_key, self._shard_count)


def _described(row: bytes, column_name: str) -> str:
    return f"a cell of row {row.hex()} in column {column_name}"


def _pair(row_key: RowKey, column_name: str) -> tuple[bytes, str]:
    return row_key_bytes(row_key), check_column_name(column_name)


def _checked_pair(pair: object) -> tuple[bytes, str]:
    if not isinstance(pair, (tuple, list)) or len(pair) != 2:
        raise InvalidInput(f"expected a pair of row_key and column_name, got {pair!r:.80}")
    return _pair(*pair)


def only_requested(wanted: Container[Any], key: slice) -> Check:
    """Return a check that every row was requested: the values in its ``key`` columns must be in ``wanted``."""
    key_of = itemgetter(key)

    def check(rows: Rows) -> str | None:
        unrequested = next(filterfalse(wanted.__contains__, map(key_of, rows)), None)
        return None if unrequested is None else f"requested {wanted!r:.200}, got {unrequested!r:.200}"

    return check
