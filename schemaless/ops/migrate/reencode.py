"""Re-encode one shard: read a block, decode, encode, verify, and replace the bodies that are still unchanged.

Keys, ``added_id`` and ``created_at`` stay the same. The stored bytes show which cells are done, so repeating a block is
harmless; the job's checkpoint says where to resume.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

from schemaless.cell import StoredCell
from schemaless.codec.dictionaries import Dictionaries
from schemaless.codec.envelope import counts_as, dictionary_of
from schemaless.codec.recode import recode
from schemaless.codec.registry import Codec
from schemaless.errors import BodyTooLarge, CorruptBody, SchemalessError, VerificationFailed
from schemaless.ops.jobs.job import Failure
from schemaless.ops.jobs.leases import INTERRUPTED
from schemaless.ops.jobs.runner import ShardRun, Stopped
from schemaless.ops.jobs.throttle import discount_read
from schemaless.ops.migrate.archive import ArchiveWriter, archive_dictionary, archived
from schemaless.ops.migrate.binlog_cost import log_settings
from schemaless.ops.migrate.blocks import BLOCK_BOUNDS, BlockBounds, groups
from schemaless.ops.migrate.spec import MigrateSpec
from schemaless.ops.migrate.sql import select_block, select_digests, update_bodies
from schemaless.ops.migrate.tally import ShardTally
from schemaless.store.cells.sql import select_id_span
from schemaless.store.datastore import Datastore
from schemaless.store.internals import internals_of
from schemaless.topology.replica_position import gtid_position, wait_for_gtid
from schemaless.wire.connection import Connection, split_statements
from schemaless.wire.node import Node

PER_CELL_ERRORS: Final = (CorruptBody, BodyTooLarge, VerificationFailed)
"""Errors of ``recode`` that concern a single body: the body is left unchanged, and the run continues."""

_STEP_MS: Final = 4
"""Target duration of a statement while applications use the server, in milliseconds, so that they wait only briefly."""

_STEP_BYTES: Final = 128 << 10
"""Target size of a block while applications use the server; not smaller, since every commit syncs to disk, however few
rows it changes."""

_MOST_BYTES: Final = 8 << 20
"""Target size of a block while no application uses the server; a body that does not fit is fetched separately."""

_ROUNDS: Final = 10
_REPLICA_WAIT_S: Final = 1.0


def work(store: Datastore, shard_run: ShardRun, bounds: BlockBounds = BLOCK_BOUNDS) -> None:
    """Re-encode one shard; runs in a worker."""
    with _ShardWork(store, shard_run, bounds) as shard_work:
        shard_work.all_passes()


@dataclass(frozen=True, slots=True)
class _Change:
    cell: StoredCell
    body: bytes
    keep_reason: str | None


@dataclass(slots=True)
class _BlockInFlight:
    """A block whose UPDATEs are being sent.

    Attributes:
        last_id: added_id of the block's last cell.
        rows: cells in the block.
        outdated: cells to re-encode.
        left: cells left unchanged so far.
        updated: results of the UPDATEs that have finished.
        done: completes when all UPDATEs have finished or one has failed.
    """

    last_id: int
    rows: int
    outdated: int
    left: list[tuple[StoredCell, str, str]]
    updated: list[_Updated]
    done: Future[None]


class _Updated(NamedTuple):
    """Result of an UPDATE: its changes, the number of rows matched, and whether it was sent more than once."""

    part: Sequence[_Change]
    affected: int
    resent: bool


class _Originals:
    """Archiver of original bodies, each synced before its UPDATE is sent; does nothing without an archive."""

    def __init__(self, store: Datastore, shard_run: ShardRun, spec: MigrateSpec) -> None:
        self._store = store
        self._run = shard_run
        self._folder = None if spec.archive is None else Path(spec.archive)
        self._dictionaries = internals_of(store).dictionaries
        self._archived_dictionaries: set[int] = set()
        self._writer: ArchiveWriter | None = None

    def append(self, part: Sequence[_Change]) -> None:
        """Write and sync the originals of some changes."""
        if self._folder is None:
            return
        if self._writer is None:
            self._writer = ArchiveWriter(
                self._folder,
                datastore=self._store.name,
                shard=self._run.state.shard,
                shard_count=self._store.shard_count,
                job_id=self._run.job.job_id,
                epoch=self._run.state.epoch,
            )
        for number in {dictionary_of(change.cell.body) for change in part} - {None} - self._archived_dictionaries:
            assert number is not None
            archive_dictionary(self._folder / self._store.name, self._dictionaries.get(number))
            self._archived_dictionaries.add(number)
        self._writer.append([archived(change.cell, change.body) for change in part])

    def count(self, tally: ShardTally) -> None:
        """Write the number of synced originals into a tally."""
        if self._writer is not None and self._writer.cells:
            tally.archived[self._writer.path.name] = self._writer.cells

    def close(self) -> None:
        """Complete the archive file."""
        if self._writer is not None:
            self._writer.close()

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if self._writer is not None:
            self._writer.__exit__(kind, error, trace)


class _ReadBack:
    """Check for ``--verify-after``: reads new bodies back before each checkpoint and compares digests.

    Attributes:
        verified_to: the checkpoint up to which all new bodies have been verified.
    """

    def __init__(self, store: Datastore, shard_run: ShardRun, spec: MigrateSpec, rows_per_query: int) -> None:
        self.verified_to = shard_run.state.checkpoint
        self._shards = internals_of(store).shards
        self._run = shard_run
        self._shard = shard_run.state.shard
        self._node_type = spec.verify_after
        self._rows_per_query = rows_per_query
        self._bodies: dict[int, bytes] = {}

    @property
    def pending(self) -> bool:
        """True if some new bodies have not been verified yet."""
        return bool(self._bodies)

    def add(self, added_id: int, body: bytes) -> None:
        """Record a new body that was written."""
        if self._node_type is not None:
            self._bodies[added_id] = body

    def verify(self) -> None:
        """Verify the bodies written since the last checkpoint.

        Raises:
            VerificationFailed: a stored body is not the one that was written.
        """
        if self._bodies:
            expected = {added_id: hashlib.sha256(body).hexdigest() for added_id, body in self._bodies.items()}
            node = self._node()
            ids = list(expected)
            for start_at in range(0, len(ids), self._rows_per_query):
                part = ids[start_at : start_at + self._rows_per_query]
                sql = select_digests(self._shards.database(self._shard), part)
                digests = self._shards.run_on(node, self._shard, lambda connection, sql=sql: connection.rows(sql))  # type: ignore[misc]
                for added_id, digest in digests:
                    if digest != expected[int(added_id)]:
                        raise VerificationFailed(
                            f"shard {self._shard}, added_id {added_id}: the body stored on {node} is not the one just "
                            "written; another program is changing bodies there, or the server lost a write. The run "
                            "stopped without changing more cells; find the cause, then run the same command again"
                        )
            self._bodies = {}
        self.verified_to = self._run.state.checkpoint

    def _node(self) -> Node:
        """Return the server to read back from, after waiting for a replica to catch up."""
        if self._node_type == "primary":
            return self._shards.node_of(self._shard)
        node = self._shards.node_of(self._shard, "replica")
        position = self._shards.run(self._shard, gtid_position)
        while not self._shards.run_on(
            node, self._shard, lambda connection: wait_for_gtid(connection, position, _REPLICA_WAIT_S)
        ):
            self._run.gate()
        return node


class _ShardWork:
    """Re-encoding of one shard by one runner.

    The next block is read and re-encoded while the server updates the previous one, so at most two blocks are in
    memory. While the job yields to applications, the two steps alternate instead.
    """

    def __init__(self, store: Datastore, shard_run: ShardRun, bounds: BlockBounds) -> None:
        self._bounds = bounds
        self._internals = internals_of(store)
        self._run = shard_run
        self._state = shard_run.state
        self._shard = shard_run.state.shard
        self._database = self._internals.shards.database(self._shard)
        self._spec = MigrateSpec.of(shard_run.job)
        if self._spec.dictionary is not None:
            # Check the catalog again now that the job is in it, since 'codec remove' checks for jobs.
            self._internals.dictionaries.for_new_bodies(self._spec.dictionary)
        self._codec = self._spec.codec(self._internals.dictionaries)
        self._originals = _Originals(store, shard_run, self._spec)
        self._wanted = self._spec.wanted
        self._tally = ShardTally.of(self._state)
        if self._state.message == INTERRUPTED:
            self._tally.interruptions += 1
        self._rows: int = shard_run.learned.get("rows", bounds.first_rows)
        self._statement_s = 0.0
        self._update_s = 0.0
        self._read_to = self._state.checkpoint
        self._outdated = 0
        self._in_flight: _BlockInFlight | None = None
        self._sender = ThreadPoolExecutor(1, thread_name_prefix=f"shard {self._shard}")
        self._read_back = _ReadBack(store, shard_run, self._spec, bounds.most_rows)
        full_images = self._spec.full_row_images
        self._log_settings = self._internals.shards.run(
            self._shard, lambda connection: log_settings(connection, full_images=full_images)
        )
        self._left: list[tuple[StoredCell, str, str]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        try:
            # The error that ended the block takes precedence over errors of statements in flight.
            with suppress(SchemalessError):
                self._settle()
        finally:
            self._sender.shutdown()
        self._originals.__exit__(kind, error, trace)
        if self._read_back.pending:
            # The next runner repeats the blocks that were not verified.
            self._state.checkpoint = self._read_back.verified_to
        self._note()

    def all_passes(self) -> None:
        """Run one pass over the shard or, with ``follow``, as many as it takes until no body is left to re-encode."""
        if not self._state.top_id:
            self._begin_pass()
        while True:
            try:
                self._one_pass()
            except Stopped:
                self._settle()
                self._read_back.verify()
                raise
            done = self._tally.outdated == self._tally.total().left.total()
            if not self._spec.follow or done:
                break
            self._save()
            self._run.pause(self._bounds.next_pass_s)
            self._state.pass_number += 1
            self._begin_pass()
        self._read_back.verify()
        self._note()
        self._originals.close()
        self._run.finish()

    def _begin_pass(self) -> None:
        low, high = self._internals.shards.rows(self._shard, select_id_span(self._database))[0]
        self._state.first_id = int(low or 0)
        self._state.top_id = int(high or 0)
        self._state.checkpoint = max(0, self._state.first_id - 1)
        self._tally.begin_pass()

    def _one_pass(self) -> None:
        self._read_to = self._state.checkpoint
        while True:
            self._run.gate()
            began_s = time.monotonic()
            most_bytes = self._bounds.most_bytes
            sql = select_block(self._database, self._read_to, self._rows, most_bytes // self._rows, self._wanted)
            rows = self._internals.shards.rows(self._shard, sql)
            worked_s = self._statement_s = time.monotonic() - began_s
            if not rows:
                break
            at_end = len(rows) < self._rows
            cells = [self._internals.stored_cell(row[:6], self._shard) for row in rows if row[4] is not None]
            size = sum(len(cell.body) for cell in cells)
            self._run.spend(size)
            began_s = time.monotonic()
            longer = [(int(row[0]), int(row[6])) for row in rows if row[4] is None and row[6] is not None]
            for ids, fit in groups(longer, most_bytes - size, most_bytes):
                # Bodies over their share of the block's memory may still fit in it together.
                if not fit:
                    self._settle()
                more = list(self._internals.read_stored(self._shard, ids))
                self._run.spend(sum(len(cell.body) for cell in more))
                if fit:
                    cells += more
                else:
                    self._replace_now(more)
            self._replace(cells, rows)
            self._read_to = int(rows[-1][0])
            if self._run.yields:
                self._settle()
            self._resize(len(rows), size)
            if self._run.due():
                self._save()
            self._run.rest(worked_s + time.monotonic() - began_s)
            if at_end:
                break
        self._settle()

    def _resize(self, rows: int, size: int) -> None:
        """Choose the size of the next block so that the slower of its two statements takes the target duration."""
        if 2 * rows < self._rows:
            # A short block at the end of the shard is no basis for an estimate.
            return
        target_s = (min(_STEP_MS, self._spec.chunk_ms) if self._run.yields else self._spec.chunk_ms) / 1000
        by_duration = rows * target_s / max(self._statement_s, self._update_s, 1e-6)
        most_bytes = _STEP_BYTES if self._run.yields else _MOST_BYTES
        most = min(self._bounds.most_rows, max(1, most_bytes * rows // max(size, 1)))
        self._rows = max(1, min(most, 2 * self._rows, max(self._rows // 2, int(by_duration))))
        self._run.learned["rows"] = self._rows

    def _note(self) -> None:
        """Write the counters into the shard's state, including the number of originals synced to the archive."""
        self._originals.count(self._tally)
        self._tally.store(self._state)

    def _save(self) -> None:
        self._read_back.verify()
        self._note()
        self._run.checkpoint()

    def _replace(self, cells: list[StoredCell], rows: Sequence[Sequence[Any]]) -> None:
        """Re-encode the cells of a block, and send the UPDATEs once the previous block has finished."""
        self._outdated += len(cells)
        parts = list(self._statements(self._recoded(cells)))
        outdated, left = self._outdated, self._left
        self._outdated, self._left = 0, []
        self._settle()
        updated: list[_Updated] = []
        done = self._sender.submit(self._send, parts, updated)
        self._in_flight = _BlockInFlight(int(rows[-1][0]), len(rows), outdated, left, updated, done)

    def _settle(self) -> None:
        """Wait for the block in flight, count its results and advance the checkpoint.

        Raises:
            SchemalessError: an UPDATE of the block failed; the block has to be read again.
        """
        block, self._in_flight = self._in_flight, None
        if block is None:
            return
        self._outdated, self._left = block.outdated, block.left
        try:
            block.done.result()
        except BaseException:
            # Count the UPDATEs that succeeded: the next read of the block finds their cells done and skips them.
            with suppress(SchemalessError):
                for update in block.updated:
                    self._unreplaced(update)
            raise
        self._retry_changed(block.updated)
        self._tally.outdated += self._outdated
        self._outdated = 0
        self._count_left()
        self._state.checkpoint = block.last_id
        self._state.top_id = max(self._state.top_id, self._state.checkpoint)
        self._tally.rows += block.rows

    def _replace_now(self, cells: list[StoredCell]) -> None:
        """Re-encode and replace cells of the current block without waiting for the rest of it."""
        self._outdated += len(cells)
        updated: list[_Updated] = []
        self._send(list(self._statements(self._recoded(cells))), updated)
        self._retry_changed(updated)

    def _send(self, parts: Sequence[tuple[bytes, Sequence[_Change]]], updated: list[_Updated]) -> None:
        """Send UPDATEs, each after its originals are archived; also called in the sender's thread."""
        for sql, part in parts:
            self._originals.append(part)
            began_s = time.monotonic()
            affected, resent = self._update(sql)
            self._update_s = time.monotonic() - began_s
            updated.append(_Updated(part, affected, resent))
        if not parts:
            self._internals.shards.run(self._shard, discount_read)

    def _retry_changed(self, updated: list[_Updated]) -> None:
        """Count the replaced cells, and retry the ones that changed between the read and the UPDATE."""
        for _ in range(_ROUNDS - 1):
            pending = [cell for update in updated for cell in self._unreplaced(update)]
            if not pending:
                return
            updated = []
            self._send(list(self._statements(self._recoded(pending))), updated)
        for cell in [cell for update in updated for cell in self._unreplaced(update)]:
            self._leave(cell, "Contended", f"it changed during each of {_ROUNDS} attempts; run the migration again")

    def _recoded(self, cells: list[StoredCell]) -> list[_Change]:
        changes = []
        for cell in cells:
            try:
                recoded = recode(cell.body, self._codec, dictionaries=self._internals.dictionaries)
            except PER_CELL_ERRORS as error:
                self._leave(cell, type(error).__name__, getattr(error, "message", str(error)))
            else:
                if recoded.unchanged:
                    self._outdated -= 1
                else:
                    changes.append(_Change(cell, recoded.body, recoded.keep_reason))
        return changes

    def _unreplaced(self, updated: _Updated) -> list[StoredCell]:
        """Count the cells that an UPDATE replaced, and return those that have to be tried again."""
        part, affected, resent = updated
        now = None
        if affected != len(part):
            ids = [change.cell.added_id for change in part]
            now = {cell.added_id: cell for cell in self._internals.read_stored(self._shard, ids)}
        pending = []
        for change in part:
            cell = change.cell
            stored = cell if now is None else now.get(cell.added_id)
            # If more cells hold their new body than the UPDATE matched, another runner replaced the rest. Which ones
            # does not matter. After a lost reply the number of matched rows is that of the repeated statement only.
            if now is None or (stored is not None and stored.body == change.body and (resent or affected > 0)):
                affected -= 1
                tally = self._tally.column(cell.column_name)
                tally.cells += 1
                tally.bytes_before += len(cell.body)
                tally.bytes_after += len(change.body)
                if change.keep_reason is not None:
                    tally.kept_as_text[change.keep_reason] += 1
                self._read_back.add(cell.added_id, change.body)
            elif stored is None:
                self._tally.column(cell.column_name).erased += 1
                self._outdated -= 1
            elif stored.body == change.body or _is_done(stored.body, self._codec, self._internals.dictionaries):
                # Another runner replaced it first.
                continue
            else:
                pending.append(stored)
        return pending

    def _update(self, sql: bytes) -> tuple[int, bool]:
        """Send an UPDATE; return the number of rows matched, and whether it was repeated after a lost reply."""
        attempts = 0

        def operation(connection: Connection) -> int:
            nonlocal attempts
            attempts += 1
            if self._log_settings is not None:
                connection.ensure(self._log_settings)
            return connection.execute(sql).affected

        return self._internals.shards.run(self._shard, operation, writes=True), attempts > 1

    def _statements(self, changes: list[_Change]) -> Iterator[tuple[bytes, Sequence[_Change]]]:
        """Yield UPDATE statements within the server's packet limit; a body that fits in none is left unchanged."""

        def update(part: Sequence[_Change]) -> bytes:
            return update_bodies(
                self._database, ((change.cell.added_id, change.cell.body, change.body) for change in part)
            )

        def leave(change: _Change, sql_bytes: int) -> None:
            self._leave(
                change.cell,
                "BodyTooLarge",
                f"its new body has {len(change.body):,} bytes, which makes an UPDATE of {sql_bytes:,} bytes; raise the "
                "server's max_allowed_packet",
            )

        most_bytes = self._internals.shards.run(self._shard, lambda connection: connection.max_statement_bytes)
        return split_statements(changes, update, most_bytes, leave)

    def _leave(self, cell: StoredCell, reason: str, message: str) -> None:
        self._left.append((cell, reason, message))

    def _count_left(self) -> None:
        """Count the cells left unchanged; called after the block has finished, since an interrupted one is repeated."""
        for cell, reason, message in self._left:
            tally = self._tally.column(cell.column_name)
            tally.left[reason] += 1
            tally.left_bytes += len(cell.body)
            self._run.fail(
                Failure(self._shard, cell.added_id, cell.row_key.bytes, cell.column_name, cell.ref_key, reason, message)
            )
        self._left = []


def _is_done(body: bytes, codec: Codec, dictionaries: Dictionaries) -> bool:
    try:
        return counts_as(body, codec, dictionaries)
    except CorruptBody:
        return False
