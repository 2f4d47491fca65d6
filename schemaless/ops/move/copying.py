"""Copies cells, with their ids, times and bytes, and followers' rows from the source to the target.

The rows on the target are the checkpoint: ids are compared before every write, so a successor of a killed mover neither
skips nor duplicates cells.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from schemaless.base.parts import grouped, parts
from schemaless.base.type_variables import T
from schemaless.codec.dictionaries import Dictionaries
from schemaless.codec.envelope import tombstone
from schemaless.errors import MoveRefused
from schemaless.ops.move import sql
from schemaless.ops.move.fence import Fence
from schemaless.ops.move.sql import CellRow
from schemaless.store.erasures.dependents import erase_in_copy, whole_bodies
from schemaless.topology.sql import moving
from schemaless.wire.connection import Connection, split_statements
from schemaless.wire.errors import DuplicateKey

_INSERT_BYTES: Final = 4 << 20
INSERT_ROWS: Final = 2_000
_IDS_AT_ONCE: Final = 20_000
_EVENTS_AT_ONCE: Final = 1_000
_ROW_BYTES: Final = 200
"""Estimated size that a cell takes up in a statement, without its body, in bytes."""


def fitting(
    target: Connection, rows: Sequence[T], statement: Callable[[Sequence[T]], bytes], name: Callable[[T], str]
) -> Iterator[bytes]:
    """Yield statements for rows, each of which fits the target's packets.

    Raises:
        MoveRefused: a row is too long for a statement of its own; ``name`` says which.
    """

    def too_long(row: T, length: int) -> None:
        raise MoveRefused(
            f"{name(row)} needs a statement of {length:,} bytes, but {target.node} accepts at most "
            f"{target.max_statement_bytes:,}; raise max_allowed_packet there"
        )

    return (part for part, _ in split_statements(rows, statement, target.max_statement_bytes, too_long))


class Tail(NamedTuple):
    """Result of copying the cells above the settled id.

    Attributes:
        body_bytes: body bytes of the cells that the target lacked.
        ids: number of cells compared, including those that the target already had.
        complete: whether the target has all of them now; False if time ran out.
    """

    body_bytes: int
    ids: int
    complete: bool = True


class Copier:
    """Copies a shard's cells into one table on the target.

    Attributes:
        cells: number of copied cells.
        body_bytes: total size of their bodies.
        took_s: total duration of the INSERT statements, in seconds.
    """

    def __init__(self, target: Connection, database: str, table: str) -> None:
        self.cells: int = 0
        self.body_bytes: int = 0
        self.took_s: float = 0.0
        self._target = target
        self._database = database
        self._table = table

    def seconds_for(self, body_bytes: int) -> float:
        """Estimate, at the measured rate, the seconds for copying that many bytes; 0 before the first INSERT."""
        return body_bytes * self.took_s / self.body_bytes if self.body_bytes else 0.0

    def copy(self, rows: Sequence[CellRow], after: int) -> int:
        """Copy those rows above ``after`` that the target lacks; return the size of their bodies in bytes."""
        if not rows:
            return 0
        statement = sql.select_ids(self._database, self._table, after, rows[-1][0])
        present = {int(row[0]) for row in self._target.rows(statement)}
        missing = [row for row in rows if row[0] not in present]
        return sum(map(self._insert, parts(missing, INSERT_ROWS, _INSERT_BYTES, lambda row: len(row[4]) + _ROW_BYTES)))

    def copy_tail(self, source: Connection, table: str, after: int, *, until_s: float = math.inf) -> Tail:
        """Copy the cells above ``after`` that the target lacks.

        Args:
            source: a session that can read the table now.
            table: present name of the source's cell table.
            after: the id up to which the target has everything.
            until_s: ``time.monotonic()`` after which no further statement is started.

        Raises:
            MoveRefused: the target has a cell that the source lacks.
        """
        copied, compared = 0, 0
        while time.monotonic() < until_s:
            page = source.rows(sql.select_ids_and_lengths(self._database, table, after, _IDS_AT_ONCE))
            last = int(page[-1][0]) if page else None
            # The last page also covers the target's ids above the source's last one: they are as wrong as any between.
            up_to = last if last is not None and len(page) == _IDS_AT_ONCE else sql.MOST_ID
            present = {
                int(row[0]) for row in self._target.rows(sql.select_ids(self._database, self._table, after, up_to))
            }
            lengths = {int(added_id): int(length) for added_id, length in page}
            unexpected = present - lengths.keys()
            if unexpected:
                raise MoveRefused(
                    f"{self._database}.{self._table} on {self._target.node} has added_id {min(unexpected)}, which is "
                    f"missing from {table} on {source.node}; did that server lose cells in a failover? Abort the move "
                    "and start a new one"
                )
            missing = [(added_id, length) for added_id, length in lengths.items() if added_id not in present]
            for part in parts(missing, INSERT_ROWS, _INSERT_BYTES, lambda cell: cell[1] + _ROW_BYTES):
                if time.monotonic() >= until_s:
                    return Tail(copied, compared, complete=False)
                rows = source.rows(sql.select_rows(self._database, table, [added_id for added_id, _ in part]))
                copied += self._insert([(int(row[0]), *row[1:]) for row in sorted(rows)])
            compared += len(page)
            if last is None or len(page) < _IDS_AT_ONCE:
                return Tail(copied, compared)
            after = last
        return Tail(copied, compared, complete=False)

    def _insert(self, rows: Sequence[CellRow]) -> int:
        began_s = time.monotonic()
        insert = partial(sql.insert_rows, self._database, self._table)
        for statement in fitting(self._target, rows, insert, lambda row: f"the cell with added_id {row[0]}"):
            try:
                self._target.execute(statement)
            except DuplicateKey as error:
                raise MoveRefused(
                    f"{self._database}.{self._table} on {self._target.node} has a cell under a different added_id than "
                    f"the source ({error.message}); did a server lose cells in a failover? Abort the move and start a "
                    "new one"
                ) from error
        size = sum(len(row[4]) for row in rows)
        self.took_s += time.monotonic() - began_s
        self.cells += len(rows)
        self.body_bytes += size
        return size


def carry_over(fence: Fence, token: str, *, fenced: bool) -> None:
    """Replace the target's followers and parked cells with the source's; each follower's epoch is raised by one.

    Args:
        fence: the mover's sessions.
        token: token in the names of the move's tables.
        fenced: whether the source's tables were already renamed to their ``_moved_`` names.
    """
    source, target, database = fence.reader if fenced else fence.source, fence.target, fence.database
    for table in sql.CARRIED:
        name = moving.moved(table, token) if fenced else table
        rows = [_with_next_epoch(table, row) for row in source.rows(sql.select_carried(database, table, name))]
        incoming = moving.incoming(table, token)
        if [tuple(row) for row in target.rows(sql.select_carried(database, table, incoming))] == rows:
            continue
        target.execute(sql.delete_all(database, incoming))
        insert = partial(sql.insert_carried, database, table, incoming)
        for statement in fitting(target, rows, insert, lambda row: "a follower's row"):
            target.execute(statement)


def copy_erasures(fence: Fence, token: str, dictionaries: Dictionaries, *, fenced: bool) -> None:
    """Erase the copies of cells that were erased after they were copied, and copy the log of erased cells.

    Erased cells that are copied later already have their tombstones. Safe to repeat: each entry of the log is copied
    after its cell's tombstone is written.

    Args:
        fence: the mover's sessions.
        token: token in the names of the move's tables.
        dictionaries: the dictionaries that bodies refer to.
        fenced: whether the source's tables were already renamed to their ``_moved_`` names.
    """
    source, target, database = fence.reader if fenced else fence.source, fence.target, fence.database
    name = moving.moved("erased_cell", token) if fenced else "erased_cell"
    log, cells = (moving.incoming(table, token) for table in ("erased_cell", "cell"))
    serving = moving.moved("cell", token) if fenced else "cell"

    def current(ids: Sequence[int]) -> dict[int, bytes]:
        bodies: dict[int, bytes] = {}
        for added_id in ids:
            # One by one: a statement cannot name a table twice that the session has locked.
            rows: Any = source.rows(sql.select_rows(database, serving, [added_id]))
            bodies |= whole_bodies(source, database, rows, dictionaries, serving)
        return bodies

    last = target.rows(sql.select_last_event(database, log))[0][0]
    after = -1 if last is None else int(last)
    while rows := source.rows(sql.select_events(database, name, after, _EVENTS_AT_ONCE)):
        by_erasure = grouped((int(erasure), int(added_id)) for _, added_id, erasure, *_ in rows)
        for erasure, ids in by_erasure.items():
            erase_in_copy(target, database, cells, ids, tombstone(erasure), current)
        target.execute(sql.insert_events(database, log, rows))
        after = int(rows[-1][0])
    # The lock row was copied first, and a stalled migration may have recorded deltas in it since.
    if first := source.rows(sql.select_events(database, name, -1, 1)):
        target.execute(sql.insert_events(database, log, first))


def _with_next_epoch(table: str, row: tuple[object, ...]) -> tuple[object, ...]:
    if table != "follower":
        return row
    column = sql.CARRIED[table].index("epoch")
    return (*row[:column], int(str(row[column])) + 1, *row[column + 1 :])
