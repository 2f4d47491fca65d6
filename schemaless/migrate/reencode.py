"""One shard in the hands of one runner: read, decode, encode, verify, and replace only what is still what was read.

A cell's key, ``added_id`` and ``created_at`` stay. What is done shows in the bytes, so whatever is repeated finds it
done; the job in the catalog says where to go on.
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
from schemaless.cells.sql import select_id_span
from schemaless.codec.dictionaries import Dictionaries
from schemaless.codec.envelope import counts_as, dictionary_of
from schemaless.codec.recode import recode
from schemaless.codec.registry import Codec
from schemaless.datastore import Datastore
from schemaless.errors import BodyTooLarge, CorruptBody, SchemalessError, VerificationFailed
from schemaless.internals import internals_of
from schemaless.jobs.job import Failure
from schemaless.jobs.job_store import INTERRUPTED
from schemaless.jobs.runner import ShardRun, Stopped
from schemaless.jobs.server_load import note_read
from schemaless.migrate.archive import ArchiveWriter, archive_dictionary, archived
from schemaless.migrate.binlog_cost import log_settings
from schemaless.migrate.blocks import BLOCK_BOUNDS, BlockBounds, groups
from schemaless.migrate.spec import MigrateSpec
from schemaless.migrate.sql import select_block, select_digests, update_bodies
from schemaless.migrate.tally import ShardTally
from schemaless.topology.replica_position import gtid_position, wait_for_gtid
from schemaless.wire.connection import Connection, in_packets
from schemaless.wire.node import Node

LEAVES: Final = (CorruptBody, BodyTooLarge, VerificationFailed)
"""``recode`` raises these for a body that is better left as it is; one such body does not stop the others."""

_STEP_MS: Final = 4
"""A statement should take so long where applications use the server: what they wait for is over soon."""

_STEP_BYTES: Final = 128 << 10
"""A block has so much of bodies there: a commit that waits for the disk takes as long for one row as for some."""

_MOST_BYTES: Final = 8 << 20
"""A block has no more of bodies, as far as the sizes of the last one tell; a longer one is fetched by itself."""

_ROUNDS: Final = 10
_REPLICA_WAIT_S: Final = 1.0


def work(store: Datastore, shard_run: ShardRun, bounds: BlockBounds = BLOCK_BOUNDS) -> None:
    """Do a job's work on one shard; runs in a worker."""
    with _ShardWork(store, shard_run, bounds) as shard_work:
        shard_work.all_passes()


@dataclass(frozen=True, slots=True)
class _Change:
    cell: StoredCell
    body: bytes
    keep_reason: str | None


@dataclass(slots=True)
class _Sent:
    """A block that was read, and whose new bodies are on their way to the server.

    Attributes:
        last_id: the added_id of its last cell.
        rows: how many cells it has.
        outdated: how many of them were to be re-encoded.
        left: those that were left as they are, so far.
        updated: what became of each UPDATE that is through.
        done: ends when all are, or one failed.
    """

    last_id: int
    rows: int
    outdated: int
    left: list[tuple[StoredCell, str, str]]
    updated: list[_Updated]
    done: Future[None]


class _Updated(NamedTuple):
    """An UPDATE that was sent: what for, how many rows it matched, and whether it had to be sent again."""

    part: Sequence[_Change]
    affected: int
    resent: bool


class _ShardWork:
    """One shard in the hands of one runner.

    While the server replaces a block, the next one is read and re-encoded here: two blocks are in memory at most. Where
    the job yields to applications, one thing is done after the other.
    """

    def __init__(self, store: Datastore, shard_run: ShardRun, bounds: BlockBounds) -> None:
        self._store = store
        self._bounds = bounds
        self._internals = internals_of(store)
        self._run = shard_run
        self._state = shard_run.state
        self._shard = shard_run.state.shard
        self._database = self._internals.shards.database(self._shard)
        self._spec = MigrateSpec.of(shard_run.job)
        if self._spec.dictionary is not None:
            # What the catalog says now, after the job has been written there: 'codec remove' looks for jobs.
            self._internals.dictionaries.to_write_with(self._spec.dictionary)
        self._codec = self._spec.codec(self._internals.dictionaries)
        self._archived_dictionaries: set[int] = set()
        self._wanted = self._spec.wanted
        self._tally = ShardTally.of(self._state)
        if self._state.message == INTERRUPTED:
            self._tally.interruptions += 1
        self._rows: int = shard_run.learned.get("rows", bounds.first_rows)
        self._statement_s = 0.0
        self._update_s = 0.0
        self._read_to = self._state.checkpoint
        self._outdated = 0
        self._sent: _Sent | None = None
        self._sender = ThreadPoolExecutor(1, thread_name_prefix=f"shard {self._shard}")
        self._unverified: dict[int, bytes] = {}
        full_images = self._spec.full_row_images
        self._log_settings = self._internals.shards.run(
            self._shard, lambda connection: log_settings(connection, full_images=full_images)
        )
        self._verified_to = self._state.checkpoint
        self._left: list[tuple[StoredCell, str, str]] = []
        self._writer: ArchiveWriter | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        try:
            # The caller is to hear the error of the block, not one of what was on its way.
            with suppress(SchemalessError):
                self._settle()
        finally:
            self._sender.shutdown()
        if self._writer is not None:
            self._writer.__exit__(kind, error, trace)
        if self._unverified:
            # Read again by whoever goes on.
            self._state.checkpoint = self._verified_to
        self._note()

    def all_passes(self) -> None:
        """Go over the shard, once or until nothing is left to do."""
        if not self._state.top_id:
            self._begin_pass()
        while True:
            try:
                self._one_pass()
            except Stopped:
                self._settle()
                self._verify()
                raise
            done = self._tally.outdated == self._tally.total().left.total()
            if not self._spec.follow or done:
                break
            self._save()
            self._run.pause(self._bounds.next_pass_s)
            self._state.pass_number += 1
            self._begin_pass()
        self._verify()
        self._note()
        if self._writer is not None:
            self._writer.close()
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
                # Longer than their share of a block's memory; together they may fit into it all the same.
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
        """Choose the next block's rows so that its slower statement takes what it should."""
        if 2 * rows < self._rows:
            # The few at a shard's end say little.
            return
        wanted_s = (min(_STEP_MS, self._spec.chunk_ms) if self._run.yields else self._spec.chunk_ms) / 1000
        could = rows * wanted_s / max(self._statement_s, self._update_s, 1e-6)
        most_bytes = _STEP_BYTES if self._run.yields else _MOST_BYTES
        most = min(self._bounds.most_rows, max(1, most_bytes * rows // max(size, 1)))
        self._rows = max(1, min(most, 2 * self._rows, max(self._rows // 2, int(could))))
        self._run.learned["rows"] = self._rows

    def _note(self) -> None:
        """Write into the shard's state what was counted, and how much of the archive's file is on the disk."""
        if self._writer is not None and self._writer.cells:
            self._tally.archived[self._writer.path.name] = self._writer.cells
        self._tally.store(self._state)

    def _save(self) -> None:
        self._verify()
        self._note()
        self._run.checkpoint()

    def _replace(self, cells: list[StoredCell], rows: Sequence[Sequence[Any]]) -> None:
        """Re-encode a block's cells, and send them off once the block before is through."""
        self._outdated += len(cells)
        parts = list(self._statements(self._recoded(cells)))
        outdated, left = self._outdated, self._left
        self._outdated, self._left = 0, []
        self._settle()
        updated: list[_Updated] = []
        done = self._sender.submit(self._send, parts, updated)
        self._sent = _Sent(int(rows[-1][0]), len(rows), outdated, left, updated, done)

    def _settle(self) -> None:
        """Wait for the block that was sent off, and count what became of it: from here on it is done.

        Raises:
            SchemalessError: what its statements raised; the block is not done, and is to be read again.
        """
        sent, self._sent = self._sent, None
        if sent is None:
            return
        self._outdated, self._left = sent.outdated, sent.left
        try:
            sent.done.result()
        except BaseException:
            # What its other statements replaced is found done by whoever reads the block again, so it counts here.
            with suppress(SchemalessError):
                for update in sent.updated:
                    self._unreplaced(update)
            raise
        self._judge(sent.updated)
        self._tally.outdated += self._outdated
        self._outdated = 0
        self._count_left()
        self._state.checkpoint = sent.last_id
        self._state.top_id = max(self._state.top_id, self._state.checkpoint)
        self._tally.rows += sent.rows

    def _replace_now(self, cells: list[StoredCell]) -> None:
        """Re-encode and replace cells of the block that is being read."""
        self._outdated += len(cells)
        updated: list[_Updated] = []
        self._send(list(self._statements(self._recoded(cells))), updated)
        self._judge(updated)

    def _send(self, parts: Sequence[tuple[bytes, Sequence[_Change]]], updated: list[_Updated]) -> None:
        """Send UPDATEs, each when its originals are in the archive; runs in the sender's thread, too."""
        for sql, part in parts:
            self._archive(part)
            began_s = time.monotonic()
            affected, resent = self._update(sql)
            self._update_s = time.monotonic() - began_s
            updated.append(_Updated(part, affected, resent))
        if not parts:
            self._internals.shards.run(self._shard, note_read)

    def _judge(self, updated: list[_Updated]) -> None:
        """Count what became of cells; those that changed meanwhile are tried again."""
        for _ in range(_ROUNDS - 1):
            pending = [cell for update in updated for cell in self._unreplaced(update)]
            if not pending:
                return
            updated = []
            self._send(list(self._statements(self._recoded(pending))), updated)
        for cell in [cell for update in updated for cell in self._unreplaced(update)]:
            self._leave(cell, "Contended", f"it changed under each of {_ROUNDS} attempts; run the migration again")

    def _recoded(self, cells: list[StoredCell]) -> list[_Change]:
        changes = []
        for cell in cells:
            try:
                recoded = recode(cell.body, self._codec, dictionaries=self._internals.dictionaries)
            except LEAVES as error:
                self._leave(cell, type(error).__name__, getattr(error, "message", str(error)))
            else:
                if recoded.unchanged:
                    self._outdated -= 1
                else:
                    changes.append(_Change(cell, recoded.body, recoded.keep_reason))
        return changes

    def _unreplaced(self, updated: _Updated) -> list[StoredCell]:
        """Count what an UPDATE has done, and return the cells that are still to be done."""
        part, affected, resent = updated
        now = None if affected == len(part) else self._read_again(part)
        pending = []
        for change in part:
            cell = change.cell
            stored = cell if now is None else now.get(cell.added_id)
            # Of the bodies that are the new ones now, this statement replaced as many as the server said, another
            # run the others; which of them is not known, nor needed. After a lost reply the server's number is
            # not that of the first attempt.
            if now is None or (stored is not None and stored.body == change.body and (resent or affected > 0)):
                affected -= 1
                tally = self._tally.column(cell.column_name)
                tally.cells += 1
                tally.bytes_before += len(cell.body)
                tally.bytes_after += len(change.body)
                if change.keep_reason is not None:
                    tally.kept_as_text[change.keep_reason] += 1
                if self._spec.verify_after is not None:
                    self._unverified[cell.added_id] = change.body
            elif stored is None:
                self._tally.column(cell.column_name).erased += 1
                self._outdated -= 1
            elif stored.body == change.body or _is_done(stored.body, self._codec, self._internals.dictionaries):
                # Another run was there first.
                continue
            else:
                pending.append(stored)
        return pending

    def _update(self, sql: bytes) -> tuple[int, bool]:
        """Send an UPDATE; return how many rows it matched, and whether it had to be sent again after a lost reply."""
        attempts = 0

        def operation(connection: Connection) -> int:
            nonlocal attempts
            attempts += 1
            if self._log_settings is not None:
                connection.ensure(self._log_settings)
            return connection.execute(sql).affected

        return self._internals.shards.run(self._shard, operation, writes=True), attempts > 1

    def _read_again(self, part: Sequence[_Change]) -> dict[int, StoredCell]:
        """Read the cells of a statement that matched fewer rows than it named."""
        ids = [change.cell.added_id for change in part]
        return {cell.added_id: cell for cell in self._internals.read_stored(self._shard, ids)}

    def _statements(self, changes: list[_Change]) -> Iterator[tuple[bytes, Sequence[_Change]]]:
        """Cut changes into UPDATE statements that the server takes; a body that is too long alone is left."""

        def update(part: Sequence[_Change]) -> bytes:
            return update_bodies(
                self._database, ((change.cell.added_id, change.cell.body, change.body) for change in part)
            )

        def leave(change: _Change, sql_bytes: int) -> None:
            self._leave(
                change.cell,
                "BodyTooLarge",
                f"its new body has {len(change.body):,} bytes, and its UPDATE {sql_bytes:,}; "
                "raise the server's max_allowed_packet",
            )

        most_bytes = self._internals.shards.run(self._shard, lambda connection: connection.max_statement_bytes)
        return in_packets(changes, update, most_bytes, leave)

    def _archive(self, part: Sequence[_Change]) -> None:
        """Keep the originals, on the disk before their UPDATE is sent."""
        if self._spec.archive is None:
            return
        if self._writer is None:
            self._writer = ArchiveWriter(
                Path(self._spec.archive),
                datastore=self._store.name,
                shard=self._shard,
                shard_count=self._store.shard_count,
                job_id=self._run.job.job_id,
                epoch=self._state.epoch,
            )
        for number in {dictionary_of(change.cell.body) for change in part} - {None} - self._archived_dictionaries:
            assert number is not None
            dictionary = self._internals.dictionaries.get(number)
            archive_dictionary(Path(self._spec.archive) / self._store.name, dictionary)
            self._archived_dictionaries.add(number)
        self._writer.append([archived(change.cell, change.body) for change in part])

    def _verify(self) -> None:
        """Read what was written since the last checkpoint again, and compare."""
        if not self._unverified:
            self._verified_to = self._state.checkpoint
            return
        expected = {added_id: hashlib.sha256(body).hexdigest() for added_id, body in self._unverified.items()}
        node = self._where_to_verify()
        ids = list(expected)
        rows = self._bounds.most_rows
        for start_at in range(0, len(ids), rows):
            sql = select_digests(self._database, ids[start_at : start_at + rows])
            digests = self._internals.shards.run_on(node, self._shard, lambda connection, sql=sql: connection.rows(sql))  # type: ignore[misc]
            for added_id, digest in digests:
                if digest != expected[int(added_id)]:
                    raise VerificationFailed(
                        f"shard {self._shard}, added_id {added_id}: what is stored on {node} is not what was written a "
                        "moment ago; something else writes bodies there, or the server lost a write. Nothing more was "
                        "changed"
                    )
        self._unverified = {}
        self._verified_to = self._state.checkpoint

    def _where_to_verify(self) -> Node:
        """Return the server to read from; a replica once it has what was written."""
        if self._spec.verify_after == "primary":
            return self._internals.shards.node_of(self._shard)
        node = self._internals.shards.node_of(self._shard, "replica")
        position = self._internals.shards.run(self._shard, gtid_position)
        while not self._internals.shards.run_on(
            node, self._shard, lambda connection: wait_for_gtid(connection, position, _REPLICA_WAIT_S)
        ):
            self._run.gate()
        return node

    def _leave(self, cell: StoredCell, reason: str, message: str) -> None:
        self._left.append((cell, reason, message))

    def _count_left(self) -> None:
        """Count what a block has left, once it is through: what is stopped in the middle is done again."""
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
