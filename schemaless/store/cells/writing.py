"""Writing cells exactly once, shard by shard."""

from __future__ import annotations

import functools
import itertools
import operator
import uuid
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import chain
from typing import Any, Final

from schemaless.base.keys import cell_key, check_created_at, check_ref_key, check_type
from schemaless.base.parts import grouped
from schemaless.cell import CellKey, JSONDocument, NewStoredCell, Put, StoredCell
from schemaless.codec.dictionaries import Dictionaries
from schemaless.codec.envelope import (
    check_length,
    describe_body,
    erasure_of,
    is_erased,
    is_reference,
    same_put,
    whole_body,
)
from schemaless.codec.exact_text import exact_text
from schemaless.codec.legacy import LOSSES, read_legacy
from schemaless.codec.references import inlined
from schemaless.errors import (
    BatchError,
    BodyTooLarge,
    CellConflict,
    CellErased,
    ColdStoreUnavailable,
    InvalidCell,
    LatestChanged,
    OutcomeUnknown,
    SchemalessError,
    ServerError,
    ServerRefused,
    ServerTimeout,
    ServerUnavailable,
)
from schemaless.store.cells.bases import ChainedRows, with_bases
from schemaless.store.cells.reading import PLACE, Place, Reader, only_requested
from schemaless.store.cells.sql import (
    RETURNING,
    Row,
    insert_cells,
    lock_head,
    select_added_id,
    select_cells,
    select_latest_ref_key,
)
from schemaless.topology.placement import shard_for
from schemaless.topology.shards import Shards
from schemaless.wire.connection import Connection, Rows, split_statements
from schemaless.wire.driver import Reply
from schemaless.wire.errors import ConnectionLost, DuplicateKey

_MAX_INSERTS: Final = 20
"""Maximum number of attempts at an INSERT that hits existing keys; after these, the table is assumed to be at fault."""

_MAX_APPENDS: Final = 10_000
"""Maximum number of attempts at ``append_cell`` while other writers keep taking the next ref_key first."""

_MAX_COLD_READS: Final = 5
"""Maximum number of attempts at a put of existing cells whose bodies are replaced while their files are read."""

_KEYS_PER_SELECT: Final = 200
_PLACE: Final = operator.attrgetter("place")


@dataclass(slots=True)
class EncodedCell:
    """A validated cell, ready to write.

    Attributes:
        key: the cell's key.
        place: the key as the table stores it. Cells are inserted in order of ``place``, so that two batches rarely
            deadlock; ``place`` is also cheaper to hash than ``key``.
        body: the encoded body.
        document: returns the document of ``body``; called only to compare it with another body of the same key.
        created_at: UTC; None for the server's clock.
    """

    key: CellKey
    place: Place
    body: bytes
    document: Callable[[], JSONDocument]
    created_at: datetime | None = None


def encoded_cell(
    key: CellKey, body: bytes, document: Callable[[], JSONDocument], created_at: datetime | None = None
) -> EncodedCell:
    """Return a cell ready to write; ``key`` and ``created_at`` must already be validated."""
    return EncodedCell(key, (key.row_key.bytes, key.column_name, key.ref_key), body, document, created_at)


def encoded_stored(
    cell: NewStoredCell, decode: Callable[[bytes], JSONDocument], dictionaries: Dictionaries
) -> EncodedCell:
    """Return an encoded cell ready to write; its body is not decoded, except that a delta or a reference is made whole.

    Raises:
        CorruptBody: the body is a delta whose base, or a reference whose document, is not at hand.
        InvalidInput: the cell is not a ``NewStoredCell``, or its body is not bytes.
        InvalidCell: the key or created_at is invalid.
        BodyTooLarge: the body is larger than 16 MiB - 1.
    """
    check_type(cell, NewStoredCell, "a cell")
    key = cell_key(cell.row_key, cell.column_name, cell.ref_key)
    body = inlined(check_type(cell.body, bytes, "a stored body"))
    body = check_length(whole_body(body, dictionaries, compressed=True))
    return encoded_cell(key, body, lambda: decode(body), check_created_at(cell.created_at))


class Cells:
    """Writes cells of one datastore."""

    def __init__(self, shards: Shards, reader: Reader) -> None:
        self._shards = shards
        self._reader = reader

    def put_batch(self, cells: Sequence[EncodedCell], look_first: bool) -> list[Put]:
        """Write a batch of cells, in one transaction per shard.

        Args:
            cells: the cells. A key may occur more than once if the documents are equal; the first occurrence is
                written.
            look_first: read existing cells before inserting, for repeated imports, because an INSERT of an existing row
                uses up an added_id.

        Returns:
            One ``Put`` per cell, in the same order.

        Raises:
            InvalidCell: a key occurs with two different documents; nothing was sent.
            BatchError: at least one shard was not written; the others were.
        """
        distinct: dict[Place, EncodedCell] = {}
        for cell in cells:
            first = distinct.setdefault(cell.place, cell)
            if first is not cell and first.body != cell.body and not _same_document(first, cell):
                raise InvalidCell(f"cell {cell.key} occurs in the batch with two different bodies; nothing was written")
        shard_count = self._shards.topology.shard_count
        by_shard = grouped((shard_for(cell.place[0], shard_count), cell) for cell in distinct.values())
        puts: dict[Place, Put] = {}
        causes: dict[int, SchemalessError] = {}
        unreachable: dict[object, ServerUnavailable] = {}
        for shard in sorted(by_shard):
            if unreachable and (node := self._shards.node_of(shard)) in unreachable:
                down = unreachable[node]
                causes[shard] = type(down)(down.message, node=down.node, shard=shard, code=down.code)
                continue
            try:
                puts |= self.put_on_shard(shard, by_shard[shard], look_first=look_first)
            except SchemalessError as error:
                causes[shard] = error
                if isinstance(error, ServerUnavailable):
                    # The server's other shards would each run into the same timeout.
                    unreachable[self._shards.node_of(shard)] = error
        if causes:
            written = [puts[cell.place] for cell in distinct.values() if cell.place in puts]
            raise BatchError(written, [cell.key for cell in distinct.values() if cell.place not in puts], causes)
        return [puts[cell.place] for cell in cells]

    def put_on_shard(self, shard: int, cells: Sequence[EncodedCell], *, look_first: bool = False) -> dict[Place, Put]:
        """Write distinct cells of one shard: either all of them or none.

        After a lost connection the whole operation is repeated. The unique key makes the repeated INSERT wait until the
        first attempt has ended, and so reveals its outcome; a read would not.

        Raises:
            CellConflict: a cell exists with another body.
            CellErased: a cell existed and was erased.
            BodyTooLarge: a cell does not fit into one statement.
            OutcomeUnknown: every attempt lost its connection.
            ColdStoreUnavailable: a cell exists and is cold, so it cannot be compared; nothing was written.
        """
        ordered = sorted(cells, key=_PLACE)
        database = self._shards.database(shard)
        run = functools.partial(self._shards.run, shard)

        cold: dict[tuple[Place, bytes], Row] = {}

        def operation(connection: Connection) -> dict[Place, Put] | list[ChainedRows]:
            existing: dict[Place, Put] = {}
            missing = ordered
            compare = look_first or bool(cold)
            duplicate: DuplicateKey | None = None
            for _ in range(_MAX_INSERTS):
                if compare:
                    found = list(_existing_rows(connection, database, [cell.place for cell in ordered]))
                    if unread := [part for part in found if type(part) is ChainedRows and _is_unread(part, cold)]:
                        return unread
                    existing = self._compare([cold.get(_stored(row), row) for row in chain(*found)], shard, ordered)
                    missing = [cell for cell in ordered if cell.place not in existing]
                if not missing:
                    return existing
                try:
                    return existing | _insert(connection, database, missing)
                except DuplicateKey as error:
                    # Compare after the transaction has ended: its snapshot could hide the other writer's row.
                    compare, duplicate = True, error
            assert duplicate is not None
            raise ServerRefused(
                f"{duplicate.message} in each of {_MAX_INSERTS} attempts, although the table has no row with the "
                "cell's key. Does the table have another unique key, or a trigger?",
                node=connection.node,
                shard=shard,
                code=duplicate.code,
            )

        for _ in range(_MAX_COLD_READS):
            result = self._shards.run(shard, operation, writes=True)
            if isinstance(result, dict):
                return result
            # Nothing was written. Files are read without a connection, and then the cells are compared.
            for rows in result:
                cold |= {_stored(row): row for row in self._reader.cold.completed(rows, run, shard)}
        raise ColdStoreUnavailable(
            f"of {self._shards.topology.name}", f"the cells were changed during each of {_MAX_COLD_READS} attempts"
        )

    def append_on_shard(
        self,
        shard: int,
        row_key: uuid.UUID,
        column_name: str,
        body: bytes,
        if_latest: int | None = None,
        refill: bool = True,
    ) -> Put:
        """Write a body at the ref_key after the latest one, exactly once even if replies are lost.

        The reply to the INSERT, which arrives before COMMIT is sent, contains the added_id. If the reply to COMMIT is
        lost and the repeated INSERT meets an existing row, its added_id tells whether this call wrote it. Comparing
        bodies would not be enough, because another writer's body could be equal.

        With ``if_latest``, the latest ref_key is read before the INSERT, and again before COMMIT: a put may have
        written a version above the new one, which the unique key does not notice.

        Without ``refill``, the version before the new one is locked until COMMIT. An erasure of it that has begun is
        awaited; a later one waits for COMMIT, and then erases the new version too if that is among its targets.

        Raises:
            InvalidCell: the latest ref_key is the highest possible one.
            LatestChanged: the latest ref_key is not ``if_latest``; nothing was written.
            CellErased: the version before the new one was erased, and ``refill`` is False; nothing was written.
            OutcomeUnknown: the reply to a COMMIT was lost and retries did not settle the outcome; ``key`` identifies
                the cell that may have been written.
        """
        database = self._shards.database(shard)
        pair = row_key.bytes, column_name
        inserted: list[tuple[CellKey, int]] = []
        target: list[CellKey] = []

        def insert(connection: Connection, key: CellKey) -> Put:
            cell = encoded_cell(key, body, lambda: None)
            ((sql, _),) = _statements(connection, database, [cell])
            with connection.transaction():
                added_id = _inserted(connection, sql, 1).last_id
                if if_latest is not None and (latest := _latest_ref_key(connection, database, pair)) != key.ref_key:
                    raise LatestChanged(row_key, column_name, if_latest, latest, shard)
                if not refill and (erasure := _erasure_of(connection, database, (*pair, key.ref_key - 1))) is not None:
                    raise CellErased(key._replace(ref_key=key.ref_key - 1), erasure, shard)
                inserted.append((key, added_id))
            return Put(key, added_id, created=True)

        def operation(connection: Connection) -> Put:
            for _ in range(_MAX_APPENDS):
                if not target:
                    latest = _latest_ref_key(connection, database, pair)
                    if if_latest is not None and latest != if_latest:
                        raise LatestChanged(row_key, column_name, if_latest, latest, shard)
                    target.append(CellKey(row_key, column_name, check_ref_key(latest + 1)))
                key = target[0]
                try:
                    return insert(connection, key)
                except DuplicateKey:
                    added_id = _added_id(connection, database, (*pair, key.ref_key))
                    if added_id is not None and (key, added_id) in inserted:
                        return Put(key, added_id, created=True)
                    # Another writer's row, so no attempt of this call at that key was committed.
                    target.clear()
                    inserted.clear()
            raise ServerTimeout(
                f"gave up after {_MAX_APPENDS:,} attempts: other writers took each ref_key first; nothing was written",
                node=connection.node,
                shard=shard,
            )

        try:
            return self._shards.run(shard, operation, writes=True)
        except OutcomeUnknown as error:
            if not inserted:
                # No COMMIT was sent, and the server rolls back what a lost connection leaves open.
                last = error.__cause__ if isinstance(error.__cause__, ServerError) else error
                unwritten = ServerUnavailable(
                    f"nothing was written, because no COMMIT was sent ({last.message})",
                    node=error.node,
                    shard=shard,
                    code=error.code,
                )
                unwritten.retry_after_s = error.retry_after_s
                raise unwritten from error
            key = inserted[-1][0]
            unknown = OutcomeUnknown(
                f"the reply to the COMMIT of cell {key} was lost, and retries did not settle the outcome. Call "
                "put_cell with the same body and this key; appending again could write the body twice",
                node=error.node,
                shard=shard,
                code=error.code,
                key=key,
            )
            unknown.retry_after_s = error.retry_after_s
            raise unknown from error

    def _compare(self, rows: Iterable[Row], shard: int, cells: Sequence[EncodedCell]) -> dict[Place, Put]:
        """Return a ``Put`` for each cell of which ``rows`` has one with an equal document.

        Raises:
            CellConflict: a cell exists with another body.
            CellErased: a cell was erased. ``others`` of the first error has all further ones.
        """
        wanted = {cell.place: cell for cell in cells}
        same: dict[Place, Put] = {}
        refusals: list[CellConflict | CellErased] = []
        for row in rows:
            stored = self._reader.stored(row, shard)
            cell = wanted[row[1:4]]
            erasure = erasure_of(stored.body)
            if erasure is not None:
                # A copy of a cell that was erased there, too, is the same cell.
                if not is_erased(cell.body):
                    refusals.append(CellErased(cell.key, erasure, shard))
            elif stored.body != cell.body and not self._same(stored, cell):
                refusals.append(CellConflict(stored.decode(), shard))
            same[cell.place] = Put(cell.key, stored.added_id, created=False)
        if refusals:
            refusals[0].others = refusals[1:]
            raise refusals[0]
        return same

    def _same(self, stored: StoredCell, cell: EncodedCell) -> bool:
        """Return True if a cell equals the stored one: the same document, and the same text if parsing is lossy."""
        if is_erased(cell.body) or not same_put(self._reader.decode(stored), cell.document()):
            return False
        text = _lossy_text(cell.body, self._reader.dictionaries)
        return text is None or text == _lossy_text(stored.body, self._reader.dictionaries)


def _same_document(one: EncodedCell, other: EncodedCell) -> bool:
    if is_erased(one.body) or is_erased(other.body):
        return False
    return same_put(one.document(), other.document())


def _stored(row: Row) -> tuple[Place, bytes]:
    return row[1:4], bytes(row[4])


def _is_unread(rows: ChainedRows, known: Container[tuple[Place, bytes]]) -> bool:
    """Return whether cold files have to be read for some of these rows."""
    return bool(rows.references()) and any(_stored(row) not in known for row in rows.chained())


def _existing_rows(connection: Connection, database: str, places: Sequence[Place]) -> Iterator[Sequence[Row]]:
    """Yield the rows that exist, read outside of any transaction."""
    for start in range(0, len(places), _KEYS_PER_SELECT):
        part = places[start : start + _KEYS_PER_SELECT]
        rows: Any = connection.rows(select_cells(database, part), only_requested(set(part), PLACE))
        yield with_bases(connection, database, rows)


def _latest_ref_key(connection: Connection, database: str, pair: tuple[bytes, str]) -> int:
    """Return the latest ref_key of a row and column; 0 if there is no version."""
    prefix = pair[0] + pair[1].encode() + b" "

    def check(rows: Rows) -> str | None:
        value = rows[0][0]
        requested = isinstance(value, bytes) and value.startswith(prefix)
        return None if requested else f"requested {prefix!r}, got {value!r:.200}"

    ((value,),) = connection.rows(select_latest_ref_key(database, *pair), check)
    return int(value.removeprefix(prefix) or 0)


def _erasure_of(connection: Connection, database: str, place: Place) -> int | None:
    rows = connection.rows(lock_head(database, *place), only_requested([place], PLACE))
    return erasure_of(rows[0][4]) if rows else None


def _added_id(connection: Connection, database: str, place: Place) -> int | None:
    rows = connection.rows(select_added_id(database, *place), only_requested([place], PLACE))
    return int(rows[0][0]) if rows else None


def _lossy_text(body: bytes, dictionaries: Dictionaries) -> bytes | None:
    """Return the JSON text of a body if parsing loses something, such as a duplicate key; otherwise None."""
    if not is_reference(body) and not describe_body(body).is_text:
        return None
    text = bytes(exact_text(body, dictionaries=dictionaries)[0])
    return text if read_legacy(text).keep_reason in LOSSES else None


def _insert(connection: Connection, database: str, cells: Sequence[EncodedCell]) -> dict[Place, Put]:
    # Nearly every put fits into one statement.
    statement = _insert_sql(database, cells)
    if len(statement) <= connection.max_statement_bytes:
        return _insert_statement(connection, statement, cells)
    del statement
    batches = list(_statements(connection, database, cells))
    puts: dict[Place, Put] = {}
    with connection.transaction():
        for sql, part in batches:
            puts |= _insert_statement(connection, sql, part)
    return puts


def _insert_statement(connection: Connection, sql: bytes, cells: Sequence[EncodedCell]) -> dict[Place, Put]:
    ids: Iterable[int]
    if connection.is_mariadb and len(cells) > 1:
        # MyRocks assigns ids row by row, so those of concurrent INSERTs are interleaved.
        ids = _returned_ids(connection, sql, cells)
    else:
        # InnoDB reserves all ids of an INSERT with a known number of rows at once, so they have no gaps.
        ids = itertools.count(_inserted(connection, sql, len(cells)).last_id, connection.auto_increment_increment)
    return {cell.place: Put(cell.key, added_id, True) for cell, added_id in zip(cells, ids, strict=False)}


def _returned_ids(connection: Connection, sql: bytes, cells: Sequence[EncodedCell]) -> list[int]:
    """Send an INSERT and return the added_id of each cell, as reported by MariaDB.

    Raises:
        ConnectionLost: the reply reports other rows, so it belongs to another statement.
    """

    def check(rows: Rows) -> str | None:
        returned = [row[PLACE] for row in rows]
        if returned == [cell.place for cell in cells]:
            return None
        return f"expected {len(cells)} rows from place {cells[0].place} on, got {len(rows)} from {returned[:1]} on"

    return [int(row[0]) for row in connection.returned(sql + RETURNING, check)]


def _inserted(connection: Connection, sql: bytes, count: int) -> Reply:
    """Send an INSERT of ``count`` cells and return its reply.

    Raises:
        ConnectionLost: the reply reports a different number of new rows, so it belongs to another statement.
    """
    reply = connection.execute(sql)
    if reply.affected != count or not reply.last_id:
        raise ConnectionLost(
            f"the reply to an INSERT of {count} cells reports {reply.affected} rows and the id {reply.last_id}. Does a "
            "proxy in front of the server mix up replies?",
            node=connection.node,
            shard=connection.shard,
        )
    return reply


def _statements(
    connection: Connection, database: str, cells: Sequence[EncodedCell]
) -> Iterator[tuple[bytes, Sequence[EncodedCell]]]:
    """Split cells into INSERT statements that the server accepts.

    Raises:
        BodyTooLarge: a single cell is too long; nothing was sent.
    """

    def refuse(cell: EncodedCell, sql_bytes: int) -> None:
        raise BodyTooLarge(
            f"cell {cell.key}: the body has {len(cell.body):,} bytes and its INSERT {sql_bytes:,} (some bytes are "
            f"escaped), but the server accepts at most {connection.max_allowed_packet:,} bytes. Raise its "
            f"max_allowed_packet"
        )

    return split_statements(cells, functools.partial(_insert_sql, database), connection.max_statement_bytes, refuse)


def _insert_sql(database: str, cells: Sequence[EncodedCell]) -> bytes:
    rows = [(*cell.place, cell.body) for cell in cells]
    if all(cell.created_at is None for cell in cells):
        return insert_cells(database, rows)
    return insert_cells(database, rows, [cell.created_at for cell in cells])
