"""Cells written once: the rules of it, shard by shard. ``datastore.py`` is the face of it."""

from __future__ import annotations

import functools
import itertools
import operator
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from schemaless.cell import CellKey, JSONDocument, NewStoredCell, Put, StoredCell
from schemaless.cells.reading import PLACE, Place, Reader, only
from schemaless.cells.sql import insert_cells, select_added_id, select_latest_ref_key
from schemaless.codec.dictionaries import Dictionaries
from schemaless.codec.envelope import check_length, describe_body, same_put
from schemaless.codec.legacy import LOSSES, read_legacy
from schemaless.codec.recode import recode
from schemaless.codec.registry import LEGACY
from schemaless.errors import (
    BatchError,
    BodyTooLarge,
    CellConflict,
    InvalidCell,
    OutcomeUnknown,
    SchemalessError,
    ServerRefused,
    ServerTimeout,
    ServerUnavailable,
)
from schemaless.keys import cell_key, check_created_at, check_ref_key
from schemaless.topology.placement import shard_for
from schemaless.topology.shards import Shards
from schemaless.wire.connection import Connection, Rows, in_packets
from schemaless.wire.driver import Reply
from schemaless.wire.errors import ConnectionLost, DuplicateKey

_RACES: Final = 20
_APPEND_RACES: Final = 10_000
_PLACE: Final = operator.attrgetter("place")


@dataclass(slots=True)
class EncodedCell:
    """A checked cell, ready to be written.

    Attributes:
        place: the parts of ``key`` as the table has them: the order in which every writer inserts, so that two batches
            seldom deadlock, and cheaper to look up by than ``key``.
        document: gives the document that ``body`` holds; asked only where a cell with other bytes is there already.
        created_at: in UTC, or None for the server's clock.
    """

    key: CellKey
    place: Place
    body: bytes
    document: Callable[[], JSONDocument]
    created_at: datetime | None = None


def encoded_cell(
    key: CellKey, body: bytes, document: Callable[[], JSONDocument], created_at: datetime | None = None
) -> EncodedCell:
    """Return a cell ready to be written; ``key`` and ``created_at`` are checked ones."""
    return EncodedCell(key, (key.row_key.bytes, key.column_name, key.ref_key), body, document, created_at)


def encoded_stored(cell: NewStoredCell, decode: Callable[[bytes], JSONDocument]) -> EncodedCell:
    """Return a cell whose body is stored bytes, checked but for these, ready to be written.

    Raises:
        InvalidCell: its key or its created_at is not allowed.
        BodyTooLarge: its body is over 16 MiB - 1.
    """
    key = cell_key(cell.row_key, cell.column_name, cell.ref_key)
    body = check_length(cell.body)
    return encoded_cell(key, body, lambda: decode(body), check_created_at(cell.created_at))


class Cells:
    """Writes cells of one datastore."""

    def __init__(self, shards: Shards, reader: Reader) -> None:
        self._shards = shards
        self._reader = reader

    def put_batch(self, cells: Sequence[EncodedCell], look_first: bool) -> list[Put]:
        """Write cells, one transaction a shard.

        Args:
            cells: the same key may stand there twice if the bodies are the same; the first one counts.
            look_first: read what is there before inserting: for repeated imports, since an INSERT that meets an
                existing row burns an added_id.

        Returns:
            One Put for each cell, in the order given.

        Raises:
            InvalidCell: a key stands there with two bodies; nothing was sent.
            BatchError: at least one shard was not written; the others were.
        """
        distinct: dict[Place, EncodedCell] = {}
        for cell in cells:
            first = distinct.setdefault(cell.place, cell)
            if first is not cell and first.body != cell.body and not same_put(first.document(), cell.document()):
                raise InvalidCell(f"cell {cell.key} stands in the batch twice, with two bodies; nothing was written")
        shard_count = self._shards.topology.shard_count
        by_shard: dict[int, list[EncodedCell]] = {}
        for cell in distinct.values():
            by_shard.setdefault(shard_for(cell.place[0], shard_count), []).append(cell)
        puts: dict[Place, Put] = {}
        causes: dict[int, SchemalessError] = {}
        unreachable: dict[object, ServerUnavailable] = {}
        for shard in sorted(by_shard):
            if unreachable and (node := self._shards.node_of(shard)) in unreachable:
                met = unreachable[node]
                causes[shard] = type(met)(met.message, node=met.node, shard=shard, code=met.code)
                continue
            try:
                puts |= self.put_on_shard(shard, by_shard[shard], look_first=look_first)
            except SchemalessError as error:
                causes[shard] = error
                if isinstance(error, ServerUnavailable):
                    # Its other shards would each wait out the same timeout.
                    unreachable[self._shards.node_of(shard)] = error
        if causes:
            written = [puts[cell.place] for cell in distinct.values() if cell.place in puts]
            raise BatchError(written, [cell.key for cell in distinct.values() if cell.place not in puts], causes)
        return [puts[cell.place] for cell in cells]

    def put_on_shard(self, shard: int, cells: Sequence[EncodedCell], *, look_first: bool = False) -> dict[Place, Put]:
        """Write distinct cells of one shard: all of them, or none.

        After a lost connection all of it is repeated: the unique key makes the repeated INSERT wait behind the first
        attempt, and so tells what became of it. A read could not.

        Raises:
            CellConflict: a cell is there with another body.
            BodyTooLarge: a body does not fit into one statement.
            OutcomeUnknown: connections were lost again and again.
        """
        ordered = sorted(cells, key=_PLACE)
        database = self._shards.database(shard)

        def operation(connection: Connection) -> dict[Place, Put]:
            there: dict[Place, Put] = {}
            missing = ordered
            look = look_first
            met: DuplicateKey | None = None
            for _ in range(_RACES):
                if look:
                    there = self._compare(connection, database, shard, ordered)
                    missing = [cell for cell in ordered if cell.place not in there]
                if not missing:
                    return there
                try:
                    return there | _insert(connection, database, missing)
                except DuplicateKey as error:
                    # Compared after the transaction has ended: inside it, its snapshot could hide the other's row.
                    look, met = True, error
            assert met is not None
            raise ServerRefused(
                f"{met.message}, {_RACES} times over, and no row with the cell's key is there; has the table another "
                "unique key, or a trigger?",
                node=connection.node,
                shard=shard,
                code=met.code,
            )

        return self._shards.run(shard, operation, writes=True)

    def append_on_shard(self, shard: int, row_key: uuid.UUID, column_name: str, body: bytes) -> Put:
        """Write a body at the ref_key after the latest: once, whatever becomes of replies.

        The INSERT's reply gives the added_id before COMMIT is sent. So when the reply to COMMIT is lost and the
        repeated INSERT meets a row, its added_id tells whose it is; its body could be equal by chance.

        Raises:
            InvalidCell: the latest ref_key is the highest there can be.
            OutcomeUnknown: a COMMIT was sent and its outcome cannot be found out; ``key`` says which cell it is about.
        """
        database = self._shards.database(shard)
        tried: list[tuple[CellKey, int]] = []
        place: list[CellKey] = []

        def insert(connection: Connection, key: CellKey) -> Put:
            cell = encoded_cell(key, body, lambda: None)
            ((sql, _),) = _statements(connection, database, [cell])
            with connection.transaction():
                added_id = _inserted(connection, sql, 1).last_id
                tried.append((key, added_id))
            return Put(key, added_id, created=True)

        def operation(connection: Connection) -> Put:
            for _ in range(_APPEND_RACES):
                if not place:
                    latest = _latest_ref_key(connection, database, (row_key.bytes, column_name))
                    place.append(CellKey(row_key, column_name, check_ref_key(1 if latest is None else latest + 1)))
                key = place[0]
                try:
                    return insert(connection, key)
                except DuplicateKey:
                    added_id = _added_id(connection, database, (row_key.bytes, column_name, key.ref_key))
                    if added_id is not None and (key, added_id) in tried:
                        return Put(key, added_id, created=True)
                    # Another's; so whatever was tried there is not stored.
                    place.clear()
                    tried.clear()
            raise ServerTimeout(
                f"beaten to the next ref_key {_APPEND_RACES} times; nothing was written",
                node=connection.node,
                shard=shard,
            )

        try:
            return self._shards.run(shard, operation, writes=True)
        except OutcomeUnknown as error:
            if not tried:
                # No COMMIT was ever sent, and what a lost connection leaves open is rolled back.
                unwritten = ServerUnavailable(
                    f"{error.message.partition('; make')[0]}; nothing was written",
                    node=error.node,
                    shard=shard,
                    code=error.code,
                )
                unwritten.retry_after_s = error.retry_after_s
                raise unwritten from error
            key = tried[-1][0]
            unknown = OutcomeUnknown(
                f"the reply to the COMMIT of cell {key} was lost, and repeating it did not tell; to settle it, "
                "put_cell the same body with this key: appending again could write it twice",
                node=error.node,
                shard=shard,
                code=error.code,
                key=key,
            )
            unknown.retry_after_s = error.retry_after_s
            raise unknown from error

    def _compare(
        self, connection: Connection, database: str, shard: int, cells: Sequence[EncodedCell]
    ) -> dict[Place, Put]:
        """Return a Put for each cell that is there with the same body.

        Raises:
            CellConflict: one is there with another body.
        """
        wanted = {cell.place: cell for cell in cells}
        same: dict[Place, Put] = {}
        for row in self._reader.by_keys(connection, database, wanted):
            stored = self._reader.stored(row, shard)
            cell = wanted[row[1:4]]
            if stored.body != cell.body and not self._same(stored, cell):
                raise CellConflict(stored.decode(), shard)
            same[cell.place] = Put(cell.key, stored.added_id, created=False)
        return same

    def _same(self, stored: StoredCell, cell: EncodedCell) -> bool:
        """Whether a cell is the stored one: the same document, and the same text where text says more than that."""
        if not same_put(self._reader.decode(stored), cell.document()):
            return False
        text = _telling_text(cell.body, self._reader.dictionaries)
        return text is None or text == _telling_text(stored.body, self._reader.dictionaries)


def _latest_ref_key(connection: Connection, database: str, pair: tuple[bytes, str]) -> int | None:
    """Return the highest ref_key of a row and column; None where there is none."""
    whose = pair[0] + pair[1].encode() + b" "

    def check(rows: Rows) -> str | None:
        answer = rows[0][0]
        ours = isinstance(answer, bytes) and answer.startswith(whose)
        return None if ours else f"asked for {whose!r}, got {answer!r:.200}"

    ((answer,),) = connection.rows(select_latest_ref_key(database, *pair), check)
    return int(answer.removeprefix(whose)) if answer != whose else None


def _added_id(connection: Connection, database: str, place: Place) -> int | None:
    """Return one cell's added_id; None where it is not there."""
    rows = connection.rows(select_added_id(database, *place), only([place], PLACE))
    return int(rows[0][0]) if rows else None


def _telling_text(body: bytes, dictionaries: Dictionaries) -> bytes | None:
    """Return a body's JSON text if parsing it loses something, such as a key that stands there twice; else None."""
    if not describe_body(body).is_text:
        return None
    text = recode(body, LEGACY, dictionaries=dictionaries).body
    return text if read_legacy(text).keep_reason in LOSSES else None


def _insert(connection: Connection, database: str, cells: Sequence[EncodedCell]) -> dict[Place, Put]:
    # Nearly every put is one statement.
    whole = _insert_sql(database, cells)
    if len(whole) <= connection.max_statement_bytes:
        return _insert_statement(connection, whole, cells)
    del whole
    batches = list(_statements(connection, database, cells))
    puts: dict[Place, Put] = {}
    with connection.transaction():
        for sql, part in batches:
            puts |= _insert_statement(connection, sql, part)
    return puts


def _insert_statement(connection: Connection, sql: bytes, cells: Sequence[EncodedCell]) -> dict[Place, Put]:
    done = _inserted(connection, sql, len(cells))
    # A statement whose number of rows is known reserves its ids at once, so they follow the first without a gap.
    ids = itertools.count(done.last_id, connection.auto_increment_increment)
    return {cell.place: Put(cell.key, added_id, True) for cell, added_id in zip(cells, ids, strict=False)}


def _inserted(connection: Connection, sql: bytes, count: int) -> Reply:
    """Send an INSERT of so many cells and return its reply.

    Raises:
        ConnectionLost: the reply is not of that many new cells, and so another statement's.
    """
    done = connection.execute(sql)
    if done.affected != count or not done.last_id:
        raise ConnectionLost(
            f"the reply to an INSERT of {count} cells is of {done.affected} rows, the first with id {done.last_id}; "
            "does something on the way to the server mix up replies?",
            node=connection.node,
            shard=connection.shard,
        )
    return done


def _statements(
    connection: Connection, database: str, cells: Sequence[EncodedCell]
) -> Iterator[tuple[bytes, Sequence[EncodedCell]]]:
    """Cut cells into INSERT statements that the server takes.

    Raises:
        BodyTooLarge: one cell alone is too long; nothing was sent.
    """

    def refuse(cell: EncodedCell, sql_bytes: int) -> None:
        raise BodyTooLarge(
            f"cell {cell.key}: its body has {len(cell.body):,} bytes, and its INSERT {sql_bytes:,} (some bytes need "
            f"escaping); the server takes {connection.max_allowed_packet:,}. Raise max_allowed_packet there"
        )

    return in_packets(cells, functools.partial(_insert_sql, database), connection.max_statement_bytes, refuse)


def _insert_sql(database: str, cells: Sequence[EncodedCell]) -> bytes:
    rows = [(*cell.place, cell.body) for cell in cells]
    if all(cell.created_at is None for cell in cells):
        return insert_cells(database, rows)
    return insert_cells(database, rows, [cell.created_at for cell in cells])
