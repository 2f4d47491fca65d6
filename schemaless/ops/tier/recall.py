"""Jobs that put the documents of cold cells back into the database, in the codec of their column."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from schemaless.base.keys import check_column_name
from schemaless.base.parts import parts
from schemaless.cell import StoredCell
from schemaless.codec.exact_text import exact_text
from schemaless.codec.recode import recode
from schemaless.codec.references import reference_of
from schemaless.ops.jobs.job import Failure
from schemaless.ops.jobs.kind import JobKind, JobSpec
from schemaless.ops.jobs.runner import ShardRun
from schemaless.ops.migrate.archive import digest_of
from schemaless.ops.migrate.body_updates import BodyUpdates, Change
from schemaless.ops.migrate.reclaimed import record_sizes
from schemaless.ops.migrate.reencode import PER_CELL_ERRORS
from schemaless.ops.migrate.sql import select_stored_digests
from schemaless.ops.tier.cooling import check_possible
from schemaless.ops.tier.sql import select_cold
from schemaless.planning.sampling.table_sizes import table_weights
from schemaless.store.cells.sql import select_id_span
from schemaless.store.datastore import Datastore
from schemaless.store.internals import internals_of

_PAGE_CELLS: Final = 2_000
_TEXT_BYTES: Final = 16 << 20
_PART_CELLS: Final = 200
_YIELDING_CELLS: Final = 50


@dataclass(frozen=True, slots=True)
class RecallSpec(JobSpec):
    """Parameters of a recall.

    Attributes:
        columns: recall only these columns; empty for all.
    """

    columns: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in self.columns:
            check_column_name(name)


class _ShardWork:
    """The work on one shard by one runner."""

    def __init__(self, store: Datastore, run: ShardRun) -> None:
        self._store = store
        self._internals = internals_of(store)
        self._run = run
        self._state = run.state
        self._shard = run.state.shard
        self._shards = self._internals.shards
        self._database = self._shards.database(self._shard)
        self._spec = RecallSpec.of(run.job)
        self._updates = BodyUpdates(self._shards, self._shard, full_row_images=False)

    def all(self) -> None:
        state = self._state
        if not state.top_id:
            low, high = self._shards.rows(self._shard, select_id_span(self._database))[0]
            state.first_id, state.top_id = int(low or 0), int(high or 0)
        more = True
        while more:
            self._run.gate()
            statement = select_cold(self._database, state.checkpoint, _PAGE_CELLS, self._spec.columns)
            rows = self._shards.rows(self._shard, statement)
            for part in parts(rows, _PART_CELLS, _TEXT_BYTES, lambda row: reference_of(row[1]).length):
                self._run.gate()
                began_s = time.monotonic()
                self._recall(sorted(int(row[0]) for row in part))
                state.checkpoint = int(part[-1][0])
                if self._run.due():
                    self._run.checkpoint()
                self._run.rest(time.monotonic() - began_s)
            more = len(rows) == _PAGE_CELLS
        state.checkpoint = max(state.checkpoint, state.top_id)
        self._run.finish()

    def _recall(self, ids: Sequence[int]) -> None:
        changes = []
        for cell in self._internals.read_stored(self._shard, ids):
            try:
                text, _ = exact_text(cell.body, self._internals.limits, self._internals.dictionaries)
                codec = self._store.codec_for(cell.column_name)
                found = recode(bytes(text), codec, dictionaries=self._internals.dictionaries)
            except PER_CELL_ERRORS as error:
                self._leave(cell, type(error).__name__, getattr(error, "message", str(error)))
            else:
                changes.append(Change(cell, digest_of(cell.body), found.body, found.keep_reason))
        for statement, sent in self._updates.statements(changes, self._leave):
            self._run.spend(sum(len(change.body) for change in sent))
            self._updates.send(statement)
            self._count(sent)

    def _count(self, changes: Sequence[Change[StoredCell]]) -> None:
        bodies = {change.cell.added_id: change for change in changes}
        for added_id, *_, digest, _ in self._shards.rows(self._shard, select_stored_digests(self._database, bodies)):
            change = bodies[added_id]
            if digest == digest_of(change.body):
                self._state.cells += 1
                self._state.bytes_before += len(change.cell.body)
                self._state.bytes_after += len(change.body)

    def _leave(self, cell: StoredCell, reason: str, message: str) -> None:
        self._state.left_cells += 1
        key = cell.row_key.bytes, cell.column_name, cell.ref_key
        self._run.fail(Failure(self._shard, cell.added_id, *key, reason, message))


def work(store: Datastore, run: ShardRun) -> None:
    """Recall the cold cells of one shard; runs in a worker."""
    _ShardWork(store, run).all()


RECALL: Final = JobKind(
    "recall",
    RecallSpec,
    table_weights,
    work,
    lambda store, spec, shards: check_possible(internals_of(store), shards),
    before=lambda store, job: record_sizes(store, job, "before"),
    after=lambda store, job: record_sizes(store, job, "after"),
)
