"""What was left behind, held row by row against the shard where it is now. Cells never change, so nothing may differ.

A cell that lacks is put back from what was left behind, and followers that are past it go on from there. A body that
differs is none of a move's: it is either the same document, re-encoded since, or it is told.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from schemaless.cell import StoredCell
from schemaless.datastore import Datastore
from schemaless.errors import CorruptBody, MoveRefused
from schemaless.internals import Internals, internals_of
from schemaless.jobs.job import Failure
from schemaless.jobs.runner import ShardRun
from schemaless.jobs.server_load import note_read
from schemaless.move import sql
from schemaless.move.fence import session, side_of
from schemaless.move.record import MoveRecord, Records
from schemaless.move.sql import CellRow
from schemaless.wire.connection import Connection, Rows
from schemaless.wire.errors import DuplicateKey
from schemaless.wire.node import Node

BLOCK_ROWS: Final = 1_000


def verify_shard(store: Datastore, run: ShardRun, record: MoveRecord, rest: Callable[[float], None]) -> None:
    """Compare a shard with what it left behind, from where the last runner was; note that it is the same.

    Args:
        store: the datastore.
        run: the shard, in the hands of this runner.
        record: of its move.
        rest: leaves the servers to applications after a step that took so many seconds.

    Raises:
        MoveRefused: a cell is another one there; the message says which.
        SchemalessError: what a server met.
    """
    internals = internals_of(store)
    records = Records(store)
    database = internals.shards.database(run.state.shard)
    proof = _Proof(internals, run, record, database)
    with session(internals.shards, internals.topology.cluster(record.source).primary, run.state.shard) as source:
        names = side_of(source, database).moved.get("cell", ())
        if len(names) != 1:
            raise MoveRefused(
                f"{database} on {source.node} has {len(names)} tables cell_moved_..., in place of one to compare with; "
                "was it dropped by hand?"
            )
        rows = proof.compare(source, names[0], records, rest)
    run.checkpoint()
    records.note(run, {"phase": "verified", "fence_rows": rows}, token=record.token, phases=("moved",))


class _Proof:
    def __init__(self, internals: Internals, run: ShardRun, record: MoveRecord, database: str) -> None:
        self._internals = internals
        self._run = run
        self._record = record
        self._database = database

    def compare(self, source: Connection, table: str, records: Records, rest: Callable[[float], None]) -> int:
        """Compare all of it; return how many cells were left behind."""
        after = self._record.verified_id
        while True:
            self._run.gate()
            began_s = time.monotonic()
            block = source.rows(sql.select_ids_and_lengths(self._database, table, after, BLOCK_ROWS))
            if not block:
                break
            last = int(block[-1][0])
            left = by_id(source.rows(sql.select_digests(self._database, table, after, last)))
            there = by_id(self._there(after, last))
            # No ids were given on the target below those that it began with.
            strange = there.keys() - left.keys()
            if strange:
                raise self._differs(min(strange), "is there now, but was not left behind")
            differing = [added_id for added_id, row in left.items() if there.get(added_id) != row]
            for added_id in differing:
                self._settle(source, table, added_id, left[added_id], there.get(added_id))
            after = last
            if self._run.due():
                self._note(records, after)
            for _ in range(2):
                note_read(source)
            rest(time.monotonic() - began_s)
        self._note(records, after)
        return int(source.rows(sql.count_rows(self._database, table))[0][0])

    def _there(self, after: int, last: int) -> Rows:
        def rows(connection: Connection) -> Rows:
            note_read(connection)
            return connection.rows(sql.select_digests(self._database, "cell", after, last))

        return self._internals.shards.run(self._run.state.shard, rows)

    def _note(self, records: Records, after: int) -> None:
        records.note(self._run, {"verified_id": after}, token=self._record.token, phases=("moved",))
        self._run.checkpoint()

    def _settle(
        self, source: Connection, table: str, added_id: int, left: tuple[Any, ...], there: tuple[Any, ...] | None
    ) -> None:
        shard = self._run.state.shard
        row = source.rows(sql.select_rows(self._database, table, [added_id]))[0]
        cell = self._internals.stored_cell((int(row[0]), *row[1:]), shard)
        if there is None:
            # As it was, and before anybody is told that it is verified.
            self._put_back((int(row[0]), *row[1:]))
            self._fail(cell, "Lacking", "it was put back, and followers continue from there")
            return
        if there[:4] != left[:4]:
            raise self._differs(added_id, "has another key or time")
        (now,) = self._internals.read_stored(shard, [added_id])
        if not same_document(now, cell):
            raise self._differs(added_id, "has another document")

    def _put_back(self, row: CellRow) -> None:
        """Insert a cell, and have followers that are past it go on from there: both or none, once or repeated."""
        shards, shard, added_id = self._internals.shards, self._run.state.shard, row[0]

        def operation(connection: Connection) -> None:
            with connection.transaction():
                connection.execute(sql.insert_rows(self._database, "cell", [row]))
                connection.execute(sql.rewind_followers(self._database, added_id - 1))

        try:
            shards.run(shard, operation, writes=True)
        except DuplicateKey as error:
            # Where the reply to an earlier COMMIT was lost, it is there by now.
            if not shards.rows(shard, sql.select_ids(self._database, "cell", added_id - 1, added_id)):
                raise self._differs(added_id, "is there under another added_id") from error

    def _fail(self, cell: StoredCell, reason: str, message: str) -> None:
        key = cell.key
        self._run.fail(
            Failure(cell.shard, cell.added_id, key.row_key.bytes, key.column_name, key.ref_key, reason, message)
        )

    def _differs(self, added_id: int, how: str) -> MoveRefused:
        source: Node = self._internals.topology.cluster(self._record.source).primary
        return MoveRefused(
            f"shard {self._run.state.shard}: the cell with added_id {added_id} {how}; the old table stays on {source}, "
            "so compare the two"
        )


def by_id(rows: tuple[tuple[Any, ...], ...]) -> Mapping[int, tuple[Any, ...]]:
    """Return what is behind the added_id of each row, by that."""
    return {int(row[0]): tuple(row[1:]) for row in rows}


def same_document(one: StoredCell, other: StoredCell) -> bool:
    """Whether two bodies are one document; where one is damaged, whether they are the same bytes."""
    try:
        return repr(one.decode().body) == repr(other.decode().body)
    except CorruptBody:
        return one.body == other.body
