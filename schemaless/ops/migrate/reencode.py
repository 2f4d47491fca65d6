"""Re-encode one shard: read a block of cells, prepare their new bodies, and replace the bodies that are unchanged.

Keys, ``added_id`` and ``created_at`` stay the same. The stored bytes show which cells are done, so repeating a block is
harmless; the job's checkpoint says where to resume.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Self

from schemaless.base.parts import parts
from schemaless.cell import StoredCell
from schemaless.codec.deltas import Payloads
from schemaless.codec.envelope import counts_as, dictionary_of, is_delta, whole_body
from schemaless.codec.recode import Conversion, convert
from schemaless.errors import BodyTooLarge, CorruptBody, SchemalessError, VerificationFailed
from schemaless.ops.jobs.job import Failure
from schemaless.ops.jobs.leases import INTERRUPTED
from schemaless.ops.jobs.runner import ShardRun, Stopped
from schemaless.ops.jobs.throttle import discount_read
from schemaless.ops.migrate.archive import ArchiveWriter, archive_dictionary, archived, digest_of
from schemaless.ops.migrate.body_updates import BodyUpdates, Change
from schemaless.ops.migrate.originals import stored_digests
from schemaless.ops.migrate.spec import MigrateSpec
from schemaless.ops.migrate.sql import select_block, select_history_block
from schemaless.ops.migrate.tally import ShardTally
from schemaless.store.cells.reading import Place
from schemaless.store.cells.sql import select_id_span
from schemaless.store.datastore import Datastore
from schemaless.store.history import History, latest_versions, place_of
from schemaless.store.internals import internals_of
from schemaless.topology.replica_position import gtid_position, wait_for_gtid
from schemaless.wire.node import Node

PER_CELL_ERRORS: Final = (CorruptBody, BodyTooLarge, VerificationFailed)
"""Errors of ``recode`` that concern a single body: the body is left unchanged, and the run continues."""

_STEP_MS: Final = 4
"""Target duration of a statement while applications use the server, in milliseconds, so that they wait only briefly."""

_STEP_BYTES: Final = 128 << 10
"""Target size of a page while applications use the server; not smaller, since every commit syncs to disk, however few
rows it changes."""

_MOST_BYTES: Final = 8 << 20
"""Target size of a page while no application uses the server; a body that does not fit is fetched separately."""

_PAYLOADS_BYTES: Final = 32 << 20
"""Memory for payloads that the versions in later blocks may be stored against."""

_ROUNDS: Final = 10
_REPLICA_WAIT_S: Final = 1.0

_LATEST_VERSIONS: Final = 1 << 17
"""Number of rows and columns of which the latest version is kept for later blocks."""

BlockRow = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class BlockBounds:
    """Limits on the blocks that a shard is divided into.

    Attributes:
        first_rows: rows in the first page. The size of later pages is derived from how long statements take.
        most_rows: maximum number of rows in a page.
        most_bytes: maximum memory for the bodies of a block, in bytes.
        next_pass_s: pause between passes over a shard when the migration follows new writes, in seconds.
    """

    first_rows: int = 64
    most_rows: int = 2_000
    most_bytes: int = 16 << 20
    next_pass_s: float = 5.0


BLOCK_BOUNDS: Final = BlockBounds()


def work(store: Datastore, shard_run: ShardRun, bounds: BlockBounds = BLOCK_BOUNDS) -> None:
    """Re-encode one shard; runs in a worker."""
    with _ShardWork(store, shard_run, bounds) as shard_work:
        shard_work.all_passes()


@dataclass(slots=True)
class Block:
    """Consecutive rows of a shard that are re-encoded and replaced together.

    Attributes:
        last_id: added_id of the last row.
        cells: cells to re-encode next: those that were read, later those that changed before they were replaced.
        updates: UPDATE statements to send, with their changes.
        tally: counters of this block.
        failures: cells left unchanged.
        digests: SHA-256 of the new bodies by added_id, to verify after the write.
        latest: the ref_key of the latest version, by key, of cells that have a higher one; with ``history`` only.
    """

    last_id: int
    cells: list[StoredCell]
    updates: list[tuple[bytes, Sequence[Change[StoredCell]]]] = field(default_factory=list)
    tally: ShardTally = field(default_factory=ShardTally)
    failures: list[Failure] = field(default_factory=list)
    digests: dict[int, bytes] = field(default_factory=dict)
    latest: Mapping[Place, int] = field(default_factory=dict)

    def leave(self, cell: StoredCell, reason: str, message: str) -> None:
        """Count a cell that is left unchanged."""
        column = self.tally.column(cell.column_name)
        column.left[reason] += 1
        column.left_bytes += len(cell.body)
        key = cell.row_key.bytes, cell.column_name, cell.ref_key
        self.failures.append(Failure(cell.shard, cell.added_id, *key, reason, message))

    def count(self, change: Change[StoredCell]) -> None:
        """Count a cell that was replaced."""
        column = self.tally.column(change.cell.column_name)
        column.cells += 1
        column.bytes_before += len(change.cell.body)
        column.bytes_after += len(change.body)
        if change.keep_reason is not None:
            column.kept_as_text[change.keep_reason] += 1


def _leave(block: Block, cell: StoredCell, error: SchemalessError) -> None:
    block.leave(cell, type(error).__name__, getattr(error, "message", str(error)))


class _ShardWork:
    """Re-encoding of one shard by one runner.

    The next block is read and prepared while the sender's thread commits the previous one, so at most two blocks are in
    memory. While the job yields to applications, the two steps alternate instead.
    """

    def __init__(self, store: Datastore, shard_run: ShardRun, bounds: BlockBounds) -> None:
        self._store = store
        self._bounds = bounds
        self._internals = internals_of(store)
        self._shards = self._internals.shards
        self._run = shard_run
        self._state = shard_run.state
        self._shard = shard_run.state.shard
        self._database = self._shards.database(self._shard)
        self._spec = spec = MigrateSpec.of(shard_run.job)
        self._dictionaries = self._internals.dictionaries
        if spec.dictionary is not None:
            # Check the catalog again now that the job is in it, since 'codec remove' checks for jobs.
            self._dictionaries.for_new_bodies(spec.dictionary)
        self._codec = spec.codec(self._dictionaries)
        self._wanted, self._cold = spec.wanted, spec.cold
        self._tally = ShardTally.of(self._state)
        if self._state.message == INTERRUPTED:
            self._tally.interruptions += 1
        self._page_rows: int = shard_run.learned.get("rows", bounds.first_rows)
        self._update_s = 0.0
        self._in_flight: tuple[Block, Future[None]] | None = None
        self._committed: list[Block] = []
        self._archive: ArchiveWriter | None = None
        self._archived_dictionaries: set[int | None] = {None}
        self._payloads = Payloads(_PAYLOADS_BYTES)
        self._latest: dict[tuple[bytes, str], int] = {}
        self._latest_known = False
        self._updates = BodyUpdates(
            self._shards, self._shard, full_row_images=spec.full_row_images, has_bases=spec.stores_deltas()
        )
        self._sender = ThreadPoolExecutor(1, thread_name_prefix=f"shard {self._shard}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        try:
            # The error that ended the block takes precedence over errors of statements in flight.
            with suppress(SchemalessError):
                self._settle()
        finally:
            self._sender.shutdown()
        if self._archive is not None:
            self._archive.__exit__(kind, error, trace)
        for block in self._committed:
            self._abandon(block)
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
                self._confirm()
                raise
            self._confirm()
            if not self._spec.follow or self._tally.outdated == self._tally.total().left.total():
                break
            self._save()
            self._run.pause(self._bounds.next_pass_s)
            self._state.pass_number += 1
            self._begin_pass()
        self._note()
        if self._archive is not None:
            self._archive.close()
        self._run.finish()

    def _begin_pass(self) -> None:
        low, high = self._shards.rows(self._shard, select_id_span(self._database))[0]
        self._state.first_id = int(low or 0)
        self._state.top_id = int(high or 0)
        self._state.checkpoint = max(0, self._state.first_id - 1)
        self._tally.begin_pass()
        self._latest.clear()

    def _one_pass(self) -> None:
        read_to, at_end = self._state.checkpoint, False
        while not at_end:
            self._run.gate()
            began_s = time.monotonic()
            most_bytes = self._bounds.most_bytes
            sql = self._select_block(read_to, most_bytes)
            rows = self._shards.rows(self._shard, sql)
            read_s = worked_s = time.monotonic() - began_s
            at_end = len(rows) < self._page_rows
            known = sum(self._latest.get(row[1:3], 0) > row[3] for row in rows if row[6] is not None)
            # The bodies of a block fit in memory; a longer body has a block to itself.
            blocks = list(parts(rows, most_size=most_bytes, size_of=lambda row: int(row[6] or 0)))
            for block in blocks:
                if len(blocks) > 1:
                    # The bodies of the whole page are in memory besides this block's.
                    self._settle()
                self._run.spend(sum(int(row[6] or 0) for row in block), self._save)
                began_s = time.monotonic()
                self._submit(self.prepare(self._read(block), self._payloads))
                if self._run.yields:
                    self._settle()
                worked_s += time.monotonic() - began_s
                read_to = int(block[-1][0])
            self._resize(rows, read_s)
            self._latest_known = 2 * known > len(rows)
            if self._run.due():
                self._save()
            self._run.rest(worked_s)
        self._settle()

    def _resize(self, rows: Sequence[BlockRow], read_s: float) -> None:
        """Choose the size of the next page so that the slower of its two statements takes the target duration."""
        if 2 * len(rows) < self._page_rows:
            # A short page at the end of the shard is no basis for an estimate.
            return
        size = sum(int(row[6] or 0) for row in rows if row[4] is not None or self._spec.stores_deltas())
        target_s = (min(_STEP_MS, self._spec.chunk_ms) if self._run.yields else self._spec.chunk_ms) / 1000
        by_duration = len(rows) * target_s / max(read_s, self._update_s, 1e-6)
        most_bytes = _STEP_BYTES if self._run.yields else _MOST_BYTES
        most = min(self._bounds.most_rows, max(1, most_bytes * len(rows) // max(size, 1)))
        self._page_rows = max(1, min(most, 2 * self._page_rows, max(self._page_rows // 2, int(by_duration))))
        self._run.learned["rows"] = self._page_rows

    # Blocks

    def _select_block(self, after: int, most_bytes: int) -> bytes:
        block = self._database, after, self._page_rows, most_bytes // self._page_rows
        if self._spec.stores_deltas():
            conditions = self._wanted, self._spec.superseded, self._cold
            return select_history_block(*block, *conditions, is_known=self._latest_known)
        return select_block(*block, self._wanted, self._cold)

    def _read(self, rows: Sequence[BlockRow]) -> Block:
        """Return a block of cells; the bodies that are too long for their page, and deltas, are read now."""
        at_hand = [row for row in rows if row[4] is not None and not is_delta(row[4])]
        cells = [self._internals.reader.stored(row[:6], self._shard) for row in at_hand]
        longer = sorted({int(row[0]) for row in rows if row[6] is not None} - {cell.added_id for cell in cells})
        if longer:
            cells += self._internals.read_stored(self._shard, longer)
        superseded = [row for row in rows if row[6] is not None and self._spec.stores_deltas(row[2])]
        latest = {row[1:4]: row[7] for row in superseded if row[7] is not None}
        if len(self._latest) > _LATEST_VERSIONS:
            self._latest.clear()
        if self._latest_known:
            latest |= self._latest_of([row[1:4] for row in superseded if row[7] is None])
        self._latest |= {place[:2]: ref_key for place, ref_key in latest.items()}
        tally = ShardTally(rows=len(rows), outdated=len(cells))
        for column_name in [row[2] for row in rows if row[8]]:
            tally.column(column_name).cold += 1
        return Block(int(rows[-1][0]), cells, tally=tally, latest=latest)

    def _latest_of(self, places: Sequence[Place]) -> dict[Place, int]:
        """Return the ref_key of a higher version, by key, of the cells that have one: the latest when it was looked up.

        A version that is written later is used by the next pass, as if it had been written after this one.
        """
        unknown = [place for place in places if self._latest.get(place[:2], 0) <= place[2]]
        found = latest_versions(self._internals, self._shard, unknown)
        return {place: self._latest[place[:2]] for place in places if self._latest.get(place[:2], 0) > place[2]} | found

    def prepare(self, block: Block, payloads: Payloads | None = None) -> Block:
        """Re-encode and verify the cells of a block, and build the UPDATEs; a body that fits in none is left.

        ``payloads`` are those of earlier blocks.
        """
        converted: dict[Place, Conversion] = {}
        places = [place_of(cell) for cell in block.cells]
        for cell, place in zip(block.cells, places, strict=True):
            try:
                body = whole_body(cell.body, self._dictionaries) if self._spec.history is False else cell.body
                found = convert(body, self._codec, dictionaries=self._dictionaries)
            except PER_CELL_ERRORS as error:
                _leave(block, cell, error)
            else:
                converted[place] = found
        deltas: Mapping[Place, tuple[bytes, Place | None]] = {}
        if block.latest:
            deltas = History(self._internals, self._shard, self._codec, converted, block.latest, payloads).deltas()
        changes = []
        for cell, place in zip(block.cells, places, strict=True):
            if place in deltas:
                changes.append(Change(cell, digest_of(cell.body), deltas[place][0], base=deltas[place][1]))
            elif place in converted and converted[place].stored is cell.body:
                block.tally.outdated -= 1
            elif place in converted:
                try:
                    sealed = converted[place].sealed()
                except PER_CELL_ERRORS as error:
                    _leave(block, cell, error)
                else:
                    changes.append(Change(cell, digest_of(cell.body), sealed.body, sealed.keep_reason))
        block.cells = []
        block.updates = self._updates.statements(changes, block.leave)
        return block

    def commit(self, block: Block) -> None:
        """Send the UPDATEs of a block, each after its originals are archived, and count the cells that they replaced.

        Cells that have changed since they were read are prepared and sent again. Runs in the sender's thread.
        """
        if not block.updates:
            self._shards.run(self._shard, discount_read)
        for attempt in range(_ROUNDS):
            if attempt:
                if block.latest:
                    block.latest = latest_versions(self._internals, self._shard, map(place_of, block.cells))
                self.prepare(block)
            for sql, changes in block.updates:
                self._archive_originals(changes)
                began_s = time.monotonic()
                sent = self._updates.send(sql, {change.base for change in changes if change.base is not None})
                self._update_s = time.monotonic() - began_s
                block.cells += self._unreplaced(block, changes, *sent)
            if not block.cells:
                return
        for cell in block.cells:
            block.leave(cell, "Contended", f"it changed during each of {_ROUNDS} attempts; run the migration again")

    def _unreplaced(
        self, block: Block, changes: Sequence[Change[StoredCell]], affected: int, resent: bool
    ) -> Iterator[StoredCell]:
        """Count the cells that an UPDATE replaced, and yield those that have to be tried again."""
        now = None
        if affected != len(changes):
            ids = [change.cell.added_id for change in changes]
            now = {cell.added_id: cell for cell in self._internals.read_stored(self._shard, ids, cold=False)}
        for change in changes:
            cell = change.cell
            stored = cell if now is None else now.get(cell.added_id)
            # If more cells hold their new body than the UPDATE matched, another runner replaced the rest. Which ones
            # does not matter. After a lost reply the number of matched rows is that of the repeated statement only.
            if now is None or (stored is not None and stored.body == change.body and (resent or affected > 0)):
                affected -= 1
                block.count(change)
                if self._spec.verify_after is not None:
                    block.digests[cell.added_id] = digest_of(change.body)
            elif stored is None:
                block.tally.column(cell.column_name).erased += 1
                block.tally.outdated -= 1
            elif stored.body != change.body and (stored.body == cell.body or not self._is_done(stored.body)):
                # If it has not changed, a base of the UPDATE's deltas is gone, and another one is needed.
                yield stored

    def _is_done(self, body: bytes) -> bool:
        """Return whether another runner has re-encoded a body."""
        try:
            return counts_as(body, self._codec, self._dictionaries)
        except CorruptBody:
            return False

    def _archive_originals(self, changes: Sequence[Change[StoredCell]]) -> None:
        """Write the originals of some changes to the archive, and sync them."""
        if self._spec.archive is None:
            return
        folder = Path(self._spec.archive)
        if self._archive is None:
            self._archive = ArchiveWriter.create(
                folder,
                datastore=self._store.name,
                shard=self._shard,
                shard_count=self._store.shard_count,
                job_id=self._run.job.job_id,
                epoch=self._state.epoch,
            )
        for number in {dictionary_of(change.cell.body) for change in changes} - self._archived_dictionaries:
            assert number is not None
            archive_dictionary(folder / self._store.name, self._dictionaries.get(number))
            self._archived_dictionaries.add(number)
        self._archive.append([archived(self._whole(change.cell), change.body) for change in changes])

    def _whole(self, cell: StoredCell) -> StoredCell:
        if not is_delta(cell.body):
            return cell
        return replace(cell, body=whole_body(cell.body, self._dictionaries, compressed=True))

    # Counters and checkpoints

    def _submit(self, block: Block) -> None:
        """Commit a block in the sender's thread, once the block before is settled."""
        self._settle()
        self._in_flight = block, self._sender.submit(self.commit, block)

    def _settle(self) -> None:
        """Wait for the block in flight.

        Raises:
            SchemalessError: an UPDATE of the block failed; the block has to be read again.
        """
        if self._in_flight is None:
            return
        block, done = self._in_flight
        error = done.exception()
        self._in_flight = None
        if error is not None:
            self._abandon(block)
            raise error
        block.updates = []
        self._committed.append(block)
        if self._spec.verify_after is None:
            self._confirm()

    def _abandon(self, block: Block) -> None:
        """Count only the bodies that a block replaced: the block will be read again, and its other cells with it."""
        block.tally.begin_pass()
        self._tally.add(block.tally)

    def _confirm(self) -> None:
        """Count the committed blocks and advance the checkpoint, once their new bodies are verified if requested."""
        if self._spec.verify_after is not None:
            self._verify_after(
                {added_id: digest for block in self._committed for added_id, digest in block.digests.items()}
            )
        for block in self._committed:
            self._tally.add(block.tally)
            for failure in block.failures:
                self._run.fail(failure)
            self._state.checkpoint = block.last_id
            self._state.top_id = max(self._state.top_id, block.last_id)
        self._committed = []

    def _save(self) -> None:
        # What is in flight counts too, because a wait may follow, and an end without warning.
        self._settle()
        self._confirm()
        self._note()
        self._run.checkpoint()

    def _note(self) -> None:
        """Write the counters into the shard's state, including the number of originals synced to the archive."""
        if self._archive is not None and self._archive.cells:
            self._tally.archived[self._archive.path.name] = self._archive.cells
        self._tally.store(self._state)

    def _verify_after(self, expected: dict[int, bytes]) -> None:
        """Compare new bodies with what a server has stored.

        Raises:
            VerificationFailed: a stored body is not the one that was written.
        """
        if not expected:
            return
        node, ids = self._node_to_verify(), list(expected)
        for part in parts(ids, self._bounds.most_rows):
            for added_id, stored in stored_digests(self._store, self._shard, part, node).items():
                if stored.digest != expected[added_id]:
                    raise VerificationFailed(
                        f"shard {self._shard}, added_id {added_id}: the body stored on {node} is not the one just "
                        "written; another program is changing bodies there, or the server lost a write. The run "
                        "stopped without changing more cells; find the cause, then run the same command again"
                    )

    def _node_to_verify(self) -> Node:
        """Return the server to read new bodies from, after waiting for a replica to catch up."""
        if self._spec.verify_after == "primary":
            return self._shards.node_of(self._shard)
        node = self._shards.node_of(self._shard, "replica")
        position = self._shards.run(self._shard, gtid_position)
        while not self._shards.run_on(
            node, self._shard, lambda connection: wait_for_gtid(connection, position, _REPLICA_WAIT_S)
        ):
            self._run.gate()
        return node
