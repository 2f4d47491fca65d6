"""Cells and followers carried from the source to the target, under the ids, times and bytes that they have.

What is on the target is the checkpoint: before anything is written there, its ids are compared with the source's, so
whatever a mover of before has written is neither lacking nor doubled.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from schemaless.errors import MoveRefused
from schemaless.move import sql
from schemaless.move.sql import CellRow
from schemaless.topology.sql import moving
from schemaless.wire.connection import Connection, in_packets
from schemaless.wire.errors import DuplicateKey

_INSERT_BYTES: Final = 4 << 20
_INSERT_ROWS: Final = 2_000
_IDS_AT_ONCE: Final = 20_000
_ROW_BYTES: Final = 200
"""A cell takes so much of a statement beside its body, about."""


class Rest(NamedTuple):
    """What lay behind what is settled.

    Attributes:
        body_bytes: of the cells that the target lacked.
        ids: how many there are, those included that it had.
        whole: whether all of it is on the target now; not where time ran out.
    """

    body_bytes: int
    ids: int
    whole: bool = True


class Copier:
    """Copies a shard's cells into one table on the target.

    Attributes:
        cells: how many were copied.
        body_bytes: what their bodies take.
        took_s: how long the INSERTs took.
    """

    def __init__(self, target: Connection, database: str, table: str, most_rows: int = _INSERT_ROWS) -> None:
        self.cells = 0
        self.body_bytes = 0
        self.took_s = 0.0
        self._target = target
        self._database = database
        self._table = table
        self._most_rows = most_rows

    def seconds_for(self, body_bytes: int) -> float:
        """Return how long so many bytes take, by what was measured; 0 where nothing was."""
        return body_bytes * self.took_s / self.body_bytes if self.body_bytes else 0.0

    def copy(self, rows: Sequence[CellRow], after: int) -> int:
        """Copy rows behind ``after``, those that the target lacks; return their bodies' bytes."""
        if not rows:
            return 0
        statement = sql.select_ids(self._database, self._table, after, rows[-1][0])
        there = {int(row[0]) for row in self._target.rows(statement)}
        lacking = [row for row in rows if row[0] not in there]
        return sum(self._insert(part) for part in _parts(lacking, self._most_rows))

    def copy_rest(self, source: Connection, table: str, after: int, *, until_s: float = math.inf) -> Rest:
        """Copy what a table has behind ``after`` and the target lacks.

        Args:
            source: a session that may read it now.
            table: by its present name.
            after: everything up to here is on the target.
            until_s: no statement is begun later, by ``time.monotonic``.

        Raises:
            MoveRefused: the target has what the source lacks.
        """
        copied, seen = 0, 0
        while time.monotonic() < until_s:
            page = source.rows(sql.select_ids_and_lengths(self._database, table, after, _IDS_AT_ONCE))
            last = int(page[-1][0]) if page else None
            # What the target has behind the source's last one is no less strange than what it has in between.
            up_to = last if last is not None and len(page) == _IDS_AT_ONCE else (1 << 64) - 1
            there = {
                int(row[0]) for row in self._target.rows(sql.select_ids(self._database, self._table, after, up_to))
            }
            lengths = {int(added_id): int(length) for added_id, length in page}
            strange = there - lengths.keys()
            if strange:
                raise MoveRefused(
                    f"{self._database}.{self._table} on {self._target.node} has added_id {min(strange)}, which "
                    f"{table} on {source.node} lacks; did that server lose cells in a failover? Abort the move, and "
                    "begin another one"
                )
            lacking = [(added_id, length) for added_id, length in lengths.items() if added_id not in there]
            for ids in _id_parts(lacking, self._most_rows):
                if time.monotonic() >= until_s:
                    return Rest(copied, seen, whole=False)
                rows = source.rows(sql.select_rows(self._database, table, ids))
                copied += self._insert([(int(row[0]), *row[1:]) for row in sorted(rows)])
            seen += len(page)
            if last is None or len(page) < _IDS_AT_ONCE:
                return Rest(copied, seen)
            after = last
        return Rest(copied, seen, whole=False)

    def _insert(self, rows: Sequence[CellRow]) -> int:
        if not rows:
            return 0

        def too_long(row: CellRow, length: int) -> None:
            raise MoveRefused(
                f"the cell with added_id {row[0]} takes a statement of {length:,} bytes, and {self._target.node} "
                f"takes {self._target.max_statement_bytes:,}; raise max_allowed_packet there"
            )

        began_s = time.monotonic()
        for statement, _ in in_packets(
            rows,
            lambda part: sql.insert_rows(self._database, self._table, part),
            self._target.max_statement_bytes,
            too_long,
        ):
            try:
                self._target.execute(statement)
            except DuplicateKey as error:
                raise MoveRefused(
                    f"{self._database}.{self._table} on {self._target.node} has a cell under another added_id than the "
                    f"source ({error.message}); did a server lose cells in a failover? Abort the move, and begin "
                    "another one"
                ) from error
        size = sum(len(row[4]) for row in rows)
        self.took_s += time.monotonic() - began_s
        self.cells += len(rows)
        self.body_bytes += size
        return size


def _parts(rows: Sequence[CellRow], most_rows: int) -> Iterator[Sequence[CellRow]]:
    """Yield rows in parts of one INSERT each."""
    by_id = {row[0]: row for row in rows}
    for ids in _id_parts([(row[0], len(row[4])) for row in rows], most_rows):
        yield [by_id[added_id] for added_id in ids]


def _id_parts(lengths: Sequence[tuple[int, int]], most_rows: int) -> Iterator[Sequence[int]]:
    part: list[int] = []
    size = 0
    for added_id, length in lengths:
        if part and (size + length + _ROW_BYTES > _INSERT_BYTES or len(part) == most_rows):
            yield part
            part, size = [], 0
        part.append(added_id)
        size += length + _ROW_BYTES
    if part:
        yield part


def carry_over(source: Connection, target: Connection, database: str, token: str, *, fenced: bool) -> None:
    """Have the target's followers and parked cells be the source's, each follower with an epoch higher by one.

    Args:
        source: a session that may read them now.
        target: the session that writes.
        database: the shard's.
        token: of the names.
        fenced: whether the source's have the names by now that they are left behind under.
    """
    for table in sql.CARRIED:
        name = moving.moved(table, token) if fenced else table
        rows = [_raised(table, row) for row in source.rows(sql.select_carried(database, table, name))]
        there = moving.incoming(table, token)
        if [tuple(row) for row in target.rows(sql.select_carried(database, table, there))] == rows:
            continue
        target.execute(sql.delete_all(database, there))
        statements = in_packets(
            rows,
            lambda part, table=table, there=there: sql.insert_carried(database, table, there, part),  # type: ignore[misc]
            target.max_statement_bytes,
            _no_room,
        )
        for statement, _ in statements:
            target.execute(statement)


def _raised(table: str, row: tuple[object, ...]) -> tuple[object, ...]:
    if table != "follower":
        return row
    at = sql.CARRIED[table].index("epoch")
    return (*row[:at], int(str(row[at])) + 1, *row[at + 1 :])


def _no_room(row: tuple[object, ...], length: int) -> None:
    raise MoveRefused(
        f"a row of a follower takes a statement of {length:,} bytes, more than the target takes; raise "
        "max_allowed_packet there"
    )
