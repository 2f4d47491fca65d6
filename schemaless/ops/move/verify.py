"""Verifies a moved shard row by row against its leftovers on the source. Cells are immutable, so nothing may differ.

A missing cell is restored from the leftovers, and followers past it are rewound. A move never changes a body: a
different body is accepted if the cell has since been erased, or re-encoded and still holds the same document; anything
else is an error.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from schemaless.cell import StoredCell
from schemaless.errors import CorruptBody, MoveRefused
from schemaless.ops.jobs.job import Failure
from schemaless.ops.jobs.runner import ShardRun
from schemaless.ops.jobs.server_load import discount_read
from schemaless.ops.move import sql
from schemaless.ops.move.fence import session, side_of
from schemaless.ops.move.record import MoveRecord, Records
from schemaless.ops.move.sql import CellRow
from schemaless.store.datastore import Datastore
from schemaless.store.internals import Internals, internals_of
from schemaless.wire.connection import Connection, Rows
from schemaless.wire.errors import DuplicateKey
from schemaless.wire.node import Node

BLOCK_ROWS: Final = 1_000


def verify_shard(store: Datastore, run: ShardRun, record: MoveRecord, rest: Callable[[float], None]) -> None:
    """Compare a shard with its leftovers from the last checkpoint on, and record it as verified.

    Args:
        store: the datastore.
        run: the job's run on the shard.
        record: record of its move.
        rest: pauses after a step; takes the step's duration in seconds.

    Raises:
        MoveRefused: a cell differs; the message names it.
        SchemalessError: a server failed.
    """
    internals = internals_of(store)
    records = Records(store)
    database = internals.shards.database(run.state.shard)
    verification = _Verification(internals, run, record, database)
    with session(internals.shards, internals.topology.cluster(record.source).primary, run.state.shard) as source:
        names = side_of(source, database).moved.get("cell", ())
        if len(names) != 1:
            raise MoveRefused(
                f"cannot verify shard {run.state.shard}: {database} on {source.node} has {len(names)} tables "
                "named cell_moved_..., but there must be exactly one to compare with; was it dropped by hand?"
            )
        rows = verification.compare(source, names[0], records, rest)
    run.checkpoint()
    records.note(run, {"phase": "verified", "fence_rows": rows}, token=record.token, phases=("moved",))


class _Verification:
    def __init__(self, internals: Internals, run: ShardRun, record: MoveRecord, database: str) -> None:
        self._internals = internals
        self._run = run
        self._record = record
        self._database = database

    def compare(self, source: Connection, table: str, records: Records, rest: Callable[[float], None]) -> int:
        """Compare all leftover cells with the shard's; return the number of leftover cells."""
        after = self._record.verified_id
        while True:
            self._run.gate()
            began_s = time.monotonic()
            block = source.rows(sql.select_ids_and_lengths(self._database, table, after, BLOCK_ROWS))
            if not block:
                break
            last = int(block[-1][0])
            old = by_id(source.rows(sql.select_digests(self._database, table, after, last)))
            new = by_id(self._moved_rows(after, last))
            # The target assigns only ids far above those of the source.
            unexpected = new.keys() - old.keys()
            if unexpected:
                raise self._differs(min(unexpected), "exists on the target, but not in the leftovers")
            differing = [added_id for added_id, row in old.items() if new.get(added_id) != row]
            for added_id in differing:
                self._settle(source, table, added_id, old[added_id], new.get(added_id))
            after = last
            if self._run.due():
                self._checkpoint(records, after)
            for _ in range(2):
                discount_read(source)
            rest(time.monotonic() - began_s)
        self._checkpoint(records, after)
        return int(source.rows(sql.count_rows(self._database, table))[0][0])

    def _moved_rows(self, after: int, last: int) -> Rows:
        def rows(connection: Connection) -> Rows:
            discount_read(connection)
            return connection.rows(sql.select_digests(self._database, "cell", after, last))

        return self._internals.shards.run(self._run.state.shard, rows)

    def _checkpoint(self, records: Records, after: int) -> None:
        records.note(self._run, {"verified_id": after}, token=self._record.token, phases=("moved",))
        self._run.checkpoint()

    def _settle(
        self, source: Connection, table: str, added_id: int, old: tuple[Any, ...], new: tuple[Any, ...] | None
    ) -> None:
        """Restore a missing cell, accept one that was re-encoded or erased since, and refuse any other difference."""
        shard = self._run.state.shard
        row = source.rows(sql.select_rows(self._database, table, [added_id]))[0]
        cell = self._internals.stored_cell((int(row[0]), *row[1:]), shard)
        if new is None:
            self._restore((int(row[0]), *row[1:]))
            self._fail(cell, "Lacking", "the cell was restored, and followers were rewound to it")
            return
        if new[:4] != old[:4]:
            raise self._differs(added_id, "has a different key or time on the target")
        (current,) = self._internals.read_stored(shard, [added_id])
        if not current.erased and not same_document(current, cell):
            raise self._differs(added_id, "has a different document on the target")

    def _restore(self, row: CellRow) -> None:
        """Insert a cell and rewind the followers that are past it, in one transaction; safe to repeat."""
        shards, shard, added_id = self._internals.shards, self._run.state.shard, row[0]

        def operation(connection: Connection) -> None:
            with connection.transaction():
                connection.execute(sql.insert_rows(self._database, "cell", [row]))
                connection.execute(sql.rewind_followers(self._database, added_id - 1))

        try:
            shards.run(shard, operation, writes=True)
        except DuplicateKey as error:
            # The cell exists if an earlier COMMIT succeeded and its reply was lost.
            if not shards.rows(shard, sql.select_ids(self._database, "cell", added_id - 1, added_id)):
                raise self._differs(added_id, "exists on the target under another added_id") from error

    def _fail(self, cell: StoredCell, reason: str, message: str) -> None:
        key = cell.key
        self._run.fail(
            Failure(cell.shard, cell.added_id, key.row_key.bytes, key.column_name, key.ref_key, reason, message)
        )

    def _differs(self, added_id: int, how: str) -> MoveRefused:
        source: Node = self._internals.topology.cluster(self._record.source).primary
        return MoveRefused(
            f"shard {self._run.state.shard}: the cell with added_id {added_id} {how}. The leftovers stay on {source}; "
            "compare them with the shard"
        )


def by_id(rows: tuple[tuple[Any, ...], ...]) -> Mapping[int, tuple[Any, ...]]:
    """Return the rows without their added_id, keyed by it."""
    return {int(row[0]): tuple(row[1:]) for row in rows}


def same_document(one: StoredCell, other: StoredCell) -> bool:
    """Return whether two cells contain the same document, or the same bytes if one cannot be decoded."""
    try:
        return repr(one.decode().body) == repr(other.decode().body)
    except CorruptBody:
        return one.body == other.body
