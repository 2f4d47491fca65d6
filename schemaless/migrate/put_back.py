"""One shard's originals, put back or only counted: each where the stored body is still what took its place.

A cell gets its original where its stored body is the one that the migration put there, or is the same document in some
other codec. Anything else is left and named. What is done shows in the bytes, so a shard is begun again from its first
original where its runner ended.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from schemaless.codec.envelope import dictionary_of
from schemaless.datastore import Datastore
from schemaless.errors import CorruptBody, DictionaryDamaged, UnknownDictionary
from schemaless.internals import internals_of
from schemaless.jobs.job import Failure, ShardState
from schemaless.migrate.archive import ArchivedCell
from schemaless.migrate.originals import (
    Originals,
    StoredDigest,
    bodies_of,
    digest_of,
    in_chunks,
    same_meaning,
    stored_digests,
)
from schemaless.migrate.sql import replace_bodies
from schemaless.migrate.tally import Counts
from schemaless.wire.connection import in_packets

CHUNK_CELLS: Final = 200
"""So many originals are put back together, at most."""

_CHUNK_BYTES: Final = 1 << 20
_ROUNDS: Final = 10

Send = Callable[[bytes, int], None]
"""This is a function that sends an UPDATE, which puts that many bytes of originals back."""

Fail = Callable[[Failure], None]
"""This is a function that takes a cell that is left as it is."""


@dataclass(slots=True)
class ShardRestored(Counts):
    """What was counted on one shard; stands in ``ShardState.counters``.

    Attributes:
        archived: cells that the archive has, once for each job.
        restored: bodies that were replaced by originals; where nothing is changed, that would be.
        bytes_before: what those took.
        bytes_after: what they take now.
        already: cells whose body was the original when this began.
        left: cells that were left as they are, by reason.
        records: cells in each file, by its name, those that stand there twice counted twice.
        torn: files whose last frame is not whole, by their names, with its bytes.
    """

    archived: int = 0
    restored: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    already: int = 0
    left: Counter[str] = field(default_factory=Counter)
    records: dict[str, int] = field(default_factory=dict)
    torn: dict[str, int] = field(default_factory=dict)

    def again(self) -> ShardRestored:
        """Return what counts where the shard is begun again: what was replaced stays so, all else is counted again."""
        return ShardRestored(
            restored=self.restored, bytes_before=self.bytes_before, bytes_after=self.bytes_after, already=-self.restored
        )

    def store(self, state: ShardState) -> None:
        """Write it into a shard's state."""
        state.cells = self.restored
        state.bytes_before = self.bytes_before
        state.bytes_after = self.bytes_after
        state.left_cells = self.left.total()
        state.first_id, state.checkpoint = 1, self.archived
        state.top_id = max(1, sum(self.records.values()))
        # Of several jobs' originals, one that was put back may be replaced again on the way.
        state.counters = {**self.as_json(), "already": max(0, self.already)}

    @classmethod
    def of(cls, state: ShardState) -> ShardRestored:
        """Return what stands in a shard's state."""
        return cls.from_json(state.counters)


class _Change(NamedTuple):
    cell: ArchivedCell
    stored: StoredDigest


def put_back(
    store: Datastore,
    shard: int,
    originals: Originals,
    tally: ShardRestored,
    *,
    send: Send | None,
    fail: Fail,
    chunk_cells: int = CHUNK_CELLS,
) -> Iterator[int]:
    """Go over a shard's originals: all its files are read, and so checked, before the first cell is changed.

    Args:
        originals: its files.
        tally: takes what is counted.
        send: sends an UPDATE; None changes nothing, and counts what would be done.
        fail: takes each cell that is left as it is.
        chunk_cells: how many are put back together, at most.

    Yields:
        How many archived cells it has come further; ``tally`` has them.

    Raises:
        CorruptArchive: a file is damaged. Nothing was changed.
        ServerError: a server cannot be reached, or refuses; what was done is kept.
    """
    work = _PutBack(store, shard, tally, send, fail)
    for chunk in in_chunks(originals.of_shard(shard), chunk_cells, _CHUNK_BYTES):
        # All files are read by now.
        tally.records = {file.path.name: count for file, count in originals.records.items()}
        work.restore(chunk)
        tally.archived += len(chunk)
        yield len(chunk)
    # Also where no file has a cell.
    tally.records = {file.path.name: count for file, count in originals.records.items()}
    tally.torn = {path.name: size for path, size in originals.torn.items()}


class _PutBack:
    """One shard's cells, a chunk at a time."""

    def __init__(self, store: Datastore, shard: int, tally: ShardRestored, send: Send | None, fail: Fail) -> None:
        self._store = store
        self._internals = internals_of(store)
        self._shard = shard
        self._tally = tally
        self._send = send
        self._fail = fail
        self._first: dict[int, int] = {}
        self._sent: set[int] = set()

    def restore(self, cells: list[ArchivedCell]) -> None:
        """Give cells their originals; those that changed meanwhile are looked at again."""
        pending = cells
        self._first, self._sent = {}, set()
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
            self._leave(cell, "Contended", f"it changed under each of {_ROUNDS} attempts; run the restore again")

    def _classified(self, cells: Sequence[ArchivedCell]) -> Iterator[_Change]:
        """Count the cells that have their original, or cannot have it; yield the others with what is stored."""
        by_id = stored_digests(self._store, self._shard, (cell.added_id for cell in cells))
        others: list[_Change] = []
        for cell in cells:
            stored = by_id.get(cell.added_id)
            if stored is None:
                self._leave(cell, "Erased", "it is not there any more")
                continue
            self._first.setdefault(cell.added_id, stored.body_bytes)
            if stored.key != cell.key:
                self._leave(cell, "OtherCell", f"added_id {cell.added_id} is cell {stored.key} in this datastore")
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
        """Return why an original could not be read, were it put back: its dictionary is not in the catalog any more."""
        try:
            number = dictionary_of(cell.body)
            if number is not None:
                self._internals.dictionaries.get(number)
        except (UnknownDictionary, DictionaryDamaged) as error:
            return error
        except CorruptBody:
            pass  # it was no better before
        return None

    def _same_documents(self, others: Sequence[_Change]) -> Iterator[_Change]:
        """Yield those whose stored body means what the original does."""
        unread = {change.cell.added_id: change for change in others}
        stored = (change.stored for change in others)
        for added_id, body in bodies_of(self._store, self._shard, stored, _CHUNK_BYTES):
            change = unread.pop(added_id)
            if same_meaning(self._store, change.cell.body, body):
                yield _Change(change.cell, change.stored._replace(digest=digest_of(body), body_bytes=len(body)))
            else:
                self._leave(
                    change.cell,
                    "Changed",
                    "its stored body is neither the one that took the original's place nor the same document",
                )
        for change in unread.values():
            self._leave(change.cell, "Erased", "it is not there any more")

    def _statements(self, changes: Sequence[_Change]) -> Iterator[tuple[bytes, Sequence[_Change]]]:
        """Cut changes into UPDATE statements that the server takes; an original that is too long alone is left."""
        database = self._internals.shards.database(self._shard)

        def update(part: Sequence[_Change]) -> bytes:
            return replace_bodies(
                database, ((change.cell.added_id, change.stored.digest, change.cell.body) for change in part)
            )

        def leave(change: _Change, sql_bytes: int) -> None:
            self._leave(
                change.cell,
                "BodyTooLarge",
                f"its original has {len(change.cell.body):,} bytes, and its UPDATE {sql_bytes:,}; raise the server's "
                "max_allowed_packet",
            )

        most_bytes = self._internals.shards.run(self._shard, lambda connection: connection.max_statement_bytes)
        return in_packets(changes, update, most_bytes, leave)

    def _count(self, cell: ArchivedCell) -> None:
        self._tally.restored += 1
        self._tally.bytes_before += self._first[cell.added_id]
        self._tally.bytes_after += len(cell.body)

    def _leave(self, cell: ArchivedCell, reason: str, message: str) -> None:
        self._tally.left[reason] += 1
        self._fail(Failure(self._shard, cell.added_id, cell.row_key, cell.column_name, cell.ref_key, reason, message))
