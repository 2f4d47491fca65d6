"""Restore the originals of one shard, or count what a restore would do.

A cell gets its original back if its stored body is the one that the migration wrote, or the same document in another
codec. Every other cell is left unchanged and reported. The stored bytes show which cells are restored, so there is no
checkpoint: after a crash the shard starts again at its first original.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from schemaless.codec.envelope import dictionary_of, is_erased
from schemaless.errors import CorruptBody, DictionaryDamaged, UnknownDictionary
from schemaless.ops.jobs.job import Failure, ShardState
from schemaless.ops.migrate.archive import ArchivedCell
from schemaless.ops.migrate.originals import (
    Originals,
    StoredDigest,
    bodies_of,
    digest_of,
    in_chunks,
    same_meaning,
    stored_digests,
)
from schemaless.ops.migrate.sql import replace_bodies
from schemaless.ops.migrate.tally import Counts
from schemaless.store.datastore import Datastore
from schemaless.store.internals import internals_of
from schemaless.wire.connection import split_statements

CHUNK_CELLS: Final = 200
"""Maximum number of originals in one UPDATE."""

_CHUNK_BYTES: Final = 1 << 20
_ROUNDS: Final = 10

Send = Callable[[bytes, int], None]
"""Sends an UPDATE; the second argument is the total size of its originals in bytes."""

Fail = Callable[[Failure], None]
"""Receives each cell that is left unchanged."""


@dataclass(slots=True)
class RestoreTally(Counts):
    """Counters of a restore on one shard, stored in ``ShardState.counters``.

    Attributes:
        archived: cells in the archive, each counted once per job.
        restored: bodies replaced by their originals, or in a dry run, bodies that would be.
        bytes_before: size of those bodies before the restore.
        bytes_after: size of their originals.
        already: cells that had their original body when the restore started.
        left: cells left unchanged, by reason.
        records: cells in each file by file name, duplicates included.
        torn: size of the incomplete last frame by file name.
    """

    archived: int = 0
    restored: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    already: int = 0
    left: Counter[str] = field(default_factory=Counter)
    records: dict[str, int] = field(default_factory=dict)
    torn: dict[str, int] = field(default_factory=dict)

    def restarted(self) -> RestoreTally:
        """Return the counters to restart the shard with; only those of restored cells are kept."""
        return RestoreTally(
            restored=self.restored, bytes_before=self.bytes_before, bytes_after=self.bytes_after, already=-self.restored
        )

    def store(self, state: ShardState) -> None:
        """Write the counters into the state of the shard."""
        state.cells = self.restored
        state.bytes_before = self.bytes_before
        state.bytes_after = self.bytes_after
        state.left_cells = self.left.total()
        state.first_id, state.checkpoint = 1, self.archived
        state.top_id = max(1, sum(self.records.values()))
        # With originals of several jobs, a restored body may be replaced again by that of an older job.
        state.counters = {**self.as_json(), "already": max(0, self.already)}

    @classmethod
    def of(cls, state: ShardState) -> RestoreTally:
        """Read the counters from the state of a shard."""
        return cls.from_json(state.counters)


class _Change(NamedTuple):
    cell: ArchivedCell
    stored: StoredDigest


def restore_shard(
    store: Datastore,
    shard: int,
    originals: Originals,
    tally: RestoreTally,
    *,
    send: Send | None,
    fail: Fail,
    chunk_cells: int = CHUNK_CELLS,
) -> Iterator[int]:
    """Restore the originals of a shard. Every file is read and checked before the first cell is changed.

    Args:
        store: the datastore.
        shard: shard number.
        originals: archive files of the shard.
        tally: counters to update.
        send: sends an UPDATE; None for a dry run, which only counts.
        fail: receives each cell that is left unchanged.
        chunk_cells: maximum number of originals in one UPDATE.

    Yields:
        Number of archived cells in each finished chunk; ``tally`` includes them.

    Raises:
        CorruptArchive: a file is damaged. Nothing was changed.
        ServerError: a server cannot be reached, or rejects a statement. Restored cells stay restored.
    """
    work = _ShardRestore(store, shard, tally, send, fail)
    for chunk in in_chunks(originals.of_shard(shard), chunk_cells, _CHUNK_BYTES):
        # of_shard reads every file before it yields a cell, so the counts are complete here.
        tally.records = {file.path.name: count for file, count in originals.records.items()}
        work.restore(chunk)
        tally.archived += len(chunk)
        yield len(chunk)
    # Repeated for a shard whose files hold no cell.
    tally.records = {file.path.name: count for file, count in originals.records.items()}
    tally.torn = {path.name: size for path, size in originals.torn.items()}


class _ShardRestore:
    def __init__(self, store: Datastore, shard: int, tally: RestoreTally, send: Send | None, fail: Fail) -> None:
        self._store = store
        self._internals = internals_of(store)
        self._shard = shard
        self._tally = tally
        self._send = send
        self._fail = fail
        self._size_before: dict[int, int] = {}
        self._sent: set[int] = set()

    def restore(self, cells: list[ArchivedCell]) -> None:
        """Restore a chunk of cells, retrying those that other clients change in the meantime."""
        pending = cells
        self._size_before, self._sent = {}, set()
        for _ in range(_ROUNDS):
            changes = []
            for change in self._classified(pending):
                if self._send is None:
                    self._count(change.cell)
                else:
                    changes.append(change)
            for sql, part in self._statements(changes):
                assert self._send is not None
                self._send(sql, sum(len(change.cell.body) for change in part))
                self._sent.update(change.cell.added_id for change in part)
            pending = [change.cell for change in changes if change.cell.added_id in self._sent]
            if not pending:
                return
        for cell in pending:
            self._leave(cell, "Contended", f"it changed during each of {_ROUNDS} attempts; run the restore again")

    def _classified(self, cells: Sequence[ArchivedCell]) -> Iterator[_Change]:
        """Yield the cells to restore with their stored digests; count or report the others."""
        by_id = stored_digests(self._store, self._shard, (cell.added_id for cell in cells))
        others: list[_Change] = []
        for cell in cells:
            stored = by_id.get(cell.added_id)
            if stored is None:
                self._leave(cell, "Erased", "it was erased")
                continue
            self._size_before.setdefault(cell.added_id, stored.body_bytes)
            if stored.key != cell.key:
                self._leave(
                    cell, "OtherCell", f"added_id {cell.added_id} belongs to cell {stored.key} in this datastore"
                )
            elif stored.digest == digest_of(cell.body):
                if cell.added_id in self._sent:
                    self._count(cell)
                else:
                    self._tally.already += 1
            elif (unreadable := self._lacks_dictionary(cell)) is not None:
                self._leave(cell, type(unreadable).__name__, unreadable.message)
            elif stored.digest == cell.new_digest:
                yield _Change(cell, stored)
            else:
                others.append(_Change(cell, stored))
        yield from self._same_documents(others)

    def _lacks_dictionary(self, cell: ArchivedCell) -> CorruptBody | None:
        """Return the error if the original's dictionary is missing from the catalog or damaged, else None."""
        try:
            number = dictionary_of(cell.body)
            if number is not None:
                self._internals.dictionaries.get(number)
        except (UnknownDictionary, DictionaryDamaged) as error:
            return error
        except CorruptBody:
            pass  # the original was just as damaged before the migration
        return None

    def _same_documents(self, others: Sequence[_Change]) -> Iterator[_Change]:
        """Yield the changes whose stored body is the same document as the original; report the others."""
        unread = {change.cell.added_id: change for change in others}
        stored = (change.stored for change in others)
        for added_id, body in bodies_of(self._store, self._shard, stored, _CHUNK_BYTES):
            change = unread.pop(added_id)
            if is_erased(body):
                self._leave(change.cell, "Erased", "it was erased")
            elif is_erased(change.cell.body):
                self._leave(change.cell, "Erased", "its original was erased from the archive")
            elif same_meaning(self._store, change.cell.body, body):
                yield _Change(change.cell, change.stored._replace(digest=digest_of(body), body_bytes=len(body)))
            else:
                self._leave(
                    change.cell,
                    "Changed",
                    "its stored body is neither the one that the migration wrote nor an encoding of the same document",
                )
        for change in unread.values():
            self._leave(change.cell, "Erased", "it was erased")

    def _statements(self, changes: Sequence[_Change]) -> Iterator[tuple[bytes, Sequence[_Change]]]:
        """Yield UPDATE statements that fit the server's packet limit; report an original that fits in none."""
        database = self._internals.shards.database(self._shard)

        def update(part: Sequence[_Change]) -> bytes:
            return replace_bodies(
                database, ((change.cell.added_id, change.stored.digest, change.cell.body) for change in part)
            )

        def leave(change: _Change, sql_bytes: int) -> None:
            self._leave(
                change.cell,
                "BodyTooLarge",
                f"its original has {len(change.cell.body):,} bytes, which makes an UPDATE of {sql_bytes:,} bytes; "
                "raise the server's max_allowed_packet",
            )

        most_bytes = self._internals.shards.run(self._shard, lambda connection: connection.max_statement_bytes)
        return split_statements(changes, update, most_bytes, leave)

    def _count(self, cell: ArchivedCell) -> None:
        self._tally.restored += 1
        self._tally.bytes_before += self._size_before[cell.added_id]
        self._tally.bytes_after += len(cell.body)

    def _leave(self, cell: ArchivedCell, reason: str, message: str) -> None:
        self._tally.left[reason] += 1
        self._fail(Failure(self._shard, cell.added_id, cell.row_key, cell.column_name, cell.ref_key, reason, message))
