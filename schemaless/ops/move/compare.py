"""Compares a moved shard with its leftovers on the source, row by row. Cells are immutable, so nothing may differ.

A move never changes a body: a different body is accepted if the cell has since been erased, or re-encoded and still
holds the same document. The move job compares each shard before it finishes: it restores a missing cell from the
leftovers and rewinds followers past it; any other difference is an error. ``schemaless shards verify`` compares again,
without changing anything.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from schemaless.base.events import Advanced, Listener, ignore_events
from schemaless.cell import StoredCell
from schemaless.codec.envelope import whole_body
from schemaless.codec.references import same_stored_document
from schemaless.errors import MoveRefused
from schemaless.ops.jobs.job import Failure
from schemaless.ops.jobs.runner import ShardRun
from schemaless.ops.jobs.throttle import discount_read
from schemaless.ops.move import sql
from schemaless.ops.move.fence import session, side_of
from schemaless.ops.move.record import MoveRecord, Records
from schemaless.store.cells.bases import with_bases
from schemaless.store.cells.sql import Row
from schemaless.store.datastore import Datastore
from schemaless.store.internals import internals_of
from schemaless.topology.sql import moving
from schemaless.wire.connection import Connection, Rows
from schemaless.wire.errors import DuplicateKey
from schemaless.wire.node import Node

BLOCK_ROWS: Final = 1_000

ERASED: Final = "erased"
RE_ENCODED: Final = "re-encoded"
ACCEPTED: Final = (ERASED, RE_ENCODED)
LACKING: Final = "is missing on the target"
STRANGE: Final = "exists on the target, but not in the leftovers"


@dataclass(frozen=True, slots=True)
class Leftovers:
    """Leftovers of a move: a shard's old tables on its source.

    Attributes:
        record: record of the move.
        node: the source's primary.
        tables: names of the tables, the cell table last.
        cells: number of rows in the cell table.
        refusal: why the tables must not be dropped, or None.
    """

    record: MoveRecord
    node: Node
    tables: tuple[str, ...]
    cells: int
    refusal: str | None

    @property
    def has_cells(self) -> bool:
        """Whether the cell table still exists; it is dropped last."""
        return bool(self.tables) and self.tables[-1] == moving.moved("cell", self.record.token or "")


@dataclass(slots=True)
class Compared:
    """Result of comparing a shard with its leftovers.

    Attributes:
        record: the move.
        cells: number of cells in the leftovers.
        left_digest: SHA-256 over the ids, keys, times and bytes of the leftover cells.
        digest: the same over these cells on the shard's present cluster; differs if one was re-encoded or erased.
        re_encoded: number of cells with different bytes but the same document.
        lacking: added_ids missing from the present cluster.
        differing: added_ids whose key, time or document differs.
        strange: added_ids, up to the last leftover one, that exist only on the present cluster.
    """

    record: MoveRecord
    cells: int = 0
    left_digest: str = ""
    digest: str = ""
    re_encoded: int = 0
    lacking: list[int] = field(default_factory=list)
    differing: list[int] = field(default_factory=list)
    strange: list[int] = field(default_factory=list)

    @property
    def same(self) -> bool:
        """True if the present cluster has the leftover cells and no others up to the last one.

        They may have been re-encoded or erased since.
        """
        return not (self.lacking or self.differing or self.strange)


def compare(store: Datastore, left: Leftovers, *, listener: Listener = ignore_events) -> Compared:
    """Compare a shard with the leftovers of its move, cell by cell, without changing anything.

    Args:
        store: the datastore.
        left: the leftovers, with the cell table last.
        listener: receives one event when the shard has been compared.

    Raises:
        MoveRefused: the leftover cell table is gone.
        ServerError: a server cannot be reached.
    """
    shard, compared = left.record.shard, Compared(left.record)
    if not left.has_cells:
        raise MoveRefused(
            f"cannot compare shard {shard}: {left.node} has no leftover cell table; was it dropped by hand?"
        )
    digests = hashlib.sha256(), hashlib.sha256()
    with session(internals_of(store).shards, left.node, shard) as source:
        comparison = _Comparison(store, shard, source, left.tables[-1])
        for block in comparison.blocks(0):
            for digest, rows in zip(digests, (block.old, block.new), strict=True):
                digest.update(repr(sorted(rows.items())).encode())
            compared.cells += len(block.old)
            for added_id, difference in comparison.differences(block):
                compared.re_encoded += difference == RE_ENCODED
                if difference not in ACCEPTED:
                    faults = {STRANGE: compared.strange, LACKING: compared.lacking}
                    faults.get(difference, compared.differing).append(added_id)
    compared.left_digest, compared.digest = (digest.hexdigest() for digest in digests)
    listener(Advanced())
    return compared


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
    internals, records, shard = internals_of(store), Records(store), run.state.shard
    database = internals.shards.database(shard)

    last = record.verified_id

    def checkpoint(**changes: str | int) -> None:
        records.note(run, {"verified_id": last, **changes}, ("moved",))
        run.checkpoint()

    with session(internals.shards, internals.topology.cluster(record.source).primary, shard) as source:
        names = side_of(source, database).moved.get("cell", ())
        if len(names) != 1:
            raise MoveRefused(
                f"cannot verify shard {shard}: {database} on {source.node} has {len(names)} tables "
                "named cell_moved_..., but there must be exactly one to compare with; was it dropped by hand?"
            )
        comparison = _Comparison(store, shard, source, names[0])
        for block in run.paced(comparison.blocks(last), rest=rest, save=checkpoint):
            for added_id, difference in comparison.differences(block):
                comparison.settle(run, added_id, difference)
            last = block.last
        rows = int(source.rows(sql.count_rows(database, names[0]))[0][0])
    checkpoint(phase="verified", fence_rows=rows)


class _Block(NamedTuple):
    """Digests of cells by added_id, up to and including ``last``: in the leftovers, and in the moved shard."""

    last: int
    old: Mapping[int, tuple[Any, ...]]
    new: Mapping[int, tuple[Any, ...]]


class _Comparison:
    """Reads a moved shard and its leftovers; ``table`` is the leftover cell table on ``source``."""

    def __init__(self, store: Datastore, shard: int, source: Connection, table: str) -> None:
        self._internals = internals_of(store)
        self._shard = shard
        self._database = self._internals.shards.database(shard)
        self._source = source
        self._table = table

    def blocks(self, after: int) -> Iterator[_Block]:
        """Yield the cells above an added_id, in order."""

        def moved_rows(connection: Connection) -> Rows:
            # The job's own reads must not count as those of applications.
            discount_read(connection)
            return connection.rows(sql.select_digests(self._database, "cell", after, last))

        while old := _by_id(
            self._source.rows(sql.select_digests(self._database, self._table, after, limit=BLOCK_ROWS))
        ):
            discount_read(self._source)
            last = max(old)
            yield _Block(last, old, _by_id(self._internals.shards.run(self._shard, moved_rows)))
            after = last

    def differences(self, block: _Block) -> Iterator[tuple[int, str]]:
        """Yield the cells that differ, and how: one of the constants above, or another text for users."""
        for added_id in sorted(block.old.keys() | block.new.keys()):
            if block.old.get(added_id) != block.new.get(added_id):
                yield added_id, self._difference(block, added_id)

    def _difference(self, block: _Block, added_id: int) -> str:
        if added_id not in block.new:
            return LACKING
        # The target assigns only ids far above those of the source.
        if added_id not in block.old:
            return STRANGE
        if block.new[added_id][:4] != block.old[added_id][:4]:
            return "has a different key or time on the target"
        (current,) = self._internals.read_stored(self._shard, [added_id], cold=False)
        if current.erased:
            return ERASED
        same = same_stored_document(current, self._left(added_id), self._internals.dictionaries)
        return RE_ENCODED if same else "has a different document on the target"

    def _left(self, added_id: int) -> StoredCell:
        return self._internals.reader.stored(self._left_row(added_id), self._shard)

    def _left_row(self, added_id: int) -> Row:
        rows: Any = self._source.rows(sql.select_rows(self._database, self._table, [added_id]))
        (row,) = with_bases(self._source, self._database, rows, self._table)
        return row

    def settle(self, run: ShardRun, added_id: int, difference: str) -> None:
        """Restore a missing cell, accept one that was re-encoded or erased since, and refuse any other difference."""
        if difference in ACCEPTED:
            return
        if difference != LACKING:
            raise self._refusal(added_id, difference)
        self._restore(added_id)
        cell = self._left(added_id)
        key, message = cell.key, "the cell was restored, and followers were rewound to it"
        run.fail(Failure(cell.shard, added_id, key.row_key.bytes, key.column_name, key.ref_key, "Lacking", message))

    def _restore(self, added_id: int) -> None:
        """Insert a cell and rewind the followers that are past it, in one transaction; safe to repeat."""
        shards = self._internals.shards
        row = self._left_row(added_id)
        rows = [(*row[:4], whole_body(row[4], self._internals.dictionaries, compressed=True), row[5])]

        def operation(connection: Connection) -> None:
            with connection.transaction():
                connection.execute(sql.insert_rows(self._database, "cell", rows))
                connection.execute(sql.rewind_followers(self._database, added_id - 1))

        try:
            shards.run(self._shard, operation, writes=True)
        except DuplicateKey as error:
            # The cell exists if an earlier COMMIT succeeded and its reply was lost.
            if not shards.rows(self._shard, sql.select_ids(self._database, "cell", added_id - 1, added_id)):
                raise self._refusal(added_id, "exists on the target under another added_id") from error

    def _refusal(self, added_id: int, how: str) -> MoveRefused:
        return MoveRefused(
            f"shard {self._shard}: the cell with added_id {added_id} {how}. The leftovers stay on "
            f"{self._source.node}; compare them with the shard"
        )


def _by_id(rows: Rows) -> Mapping[int, tuple[Any, ...]]:
    """Return the rows without their added_id, keyed by it."""
    return {int(row[0]): tuple(row[1:]) for row in rows}
