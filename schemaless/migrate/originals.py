"""The originals of an archive as restore and verify need them: by shard, each cell once, beside what is stored now.

Files are read one frame at a time; of each job's cells one bit is kept.
"""

from __future__ import annotations

import hashlib
import uuid
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from schemaless.cell import CellKey, StoredCell
from schemaless.codec.envelope import same_document
from schemaless.datastore import Datastore
from schemaless.errors import CorruptBody, InvalidInput
from schemaless.events import only
from schemaless.internals import internals_of
from schemaless.jobs.job import ShardState
from schemaless.migrate.archive import ArchivedCell, created_text
from schemaless.migrate.archive_files import ArchiveFile, HeadlessFile, archive_files, read_archive
from schemaless.migrate.sql import select_stored_digests
from schemaless.migrate.tally import ShardTally

_PAGE_IDS = 1 << 16
_SHARDS_NAMED = 20


class StoredDigest(NamedTuple):
    """A cell as it is stored, with its body's SHA-256 in place of the body."""

    added_id: int
    row_key: bytes
    column_name: str
    ref_key: int
    created_at: str
    digest: bytes
    body_bytes: int

    @property
    def key(self) -> CellKey:
        """The cell's key."""
        return CellKey(uuid.UUID(bytes=self.row_key), self.column_name, self.ref_key)


def digests(rows: Iterable[Sequence[Any]]) -> dict[int, StoredDigest]:
    """Return the rows of ``statements.select_stored_digests`` by added_id."""
    return {
        int(added_id): StoredDigest(int(added_id), bytes(row_key), column, int(ref_key), at, bytes(digest), int(length))
        for added_id, row_key, column, ref_key, at, digest, length in rows
    }


def stored_digests(store: Datastore, shard: int, ids: Iterable[int]) -> dict[int, StoredDigest]:
    """Read cells from a shard's primary, but not their bodies."""
    internals = internals_of(store)
    return digests(internals.shards.rows(shard, select_stored_digests(internals.shards.database(shard), ids)))


def digested(cell: StoredCell) -> StoredDigest:
    """Return a cell that was read whole as its digest would be read."""
    return StoredDigest(
        cell.added_id,
        cell.row_key.bytes,
        cell.column_name,
        cell.ref_key,
        created_text(cell),
        digest_of(cell.body),
        len(cell.body),
    )


def same_meaning(store: Datastore, original: bytes, stored: bytes) -> bool:
    """Whether two bodies of a datastore are the same document, as a migration has it; False where one is none."""
    try:
        return same_document(store.decode(original), store.decode(stored))
    except CorruptBody:
        return False


def digest_of(body: bytes) -> bytes:
    """Return a body's SHA-256."""
    return hashlib.sha256(body).digest()


@dataclass(slots=True)
class Originals:
    """Files of one or more archives.

    Attributes:
        files: all of them.
        torn: files whose last frame is not whole, with its bytes; filled while they are read, but for those that end
            before their header does: they are in no other list.
        unclosed: files without an end mark; filled while they are read.
        records: cells in each file, those that stand there twice counted twice; filled while they are read.
    """

    files: list[ArchiveFile]
    torn: dict[Path, int] = field(default_factory=dict)
    unclosed: set[Path] = field(default_factory=set)
    records: Counter[ArchiveFile] = field(default_factory=Counter)

    @classmethod
    def of(
        cls,
        store: Datastore,
        folders: Iterable[Path],
        *,
        job_id: int | None = None,
        shards: Collection[int] | None = None,
    ) -> Originals:
        """Find a datastore's files in folders; of copies, one counts.

        Raises:
            InvalidInput: a folder is missing, a file belongs to another number of shards, or is no regular file.
            CorruptArchive: a file's header is damaged.
        """
        by_name: dict[str, ArchiveFile] = {}
        headless: list[HeadlessFile] = []
        listener = only(HeadlessFile, headless.append)
        for folder in folders:
            for file in archive_files(folder, store.name, job_id, shards, listener=listener):
                if file.shard_count != store.shard_count:
                    raise InvalidInput(
                        f"{file.path}: it is of a datastore {file.datastore!r} with {file.shard_count} shards, this "
                        f"one has {store.shard_count}; name the archive of this one"
                    )
                known = by_name.get(file.path.name)
                if known is None or known.size_bytes < file.size_bytes:
                    by_name[file.path.name] = file
        torn = {file.path: file.size_bytes for file in headless if file.path.name not in by_name}
        return cls(sorted(by_name.values()), torn)

    @property
    def size_bytes(self) -> int:
        """What the files take."""
        return sum(file.size_bytes for file in self.files)

    def shards(self) -> list[int]:
        """Return the shards that there are files of."""
        return sorted({file.shard for file in self.files})

    def only(self, shard: int) -> Originals:
        """Return a shard's files alone, for a worker."""
        return Originals([file for file in self.files if file.shard == shard])

    def of_shard(self, shard: int) -> Iterator[ArchivedCell]:
        """Yield a shard's cells: the newest job's first, each cell once a job, as it was archived last.

        All files of the shard are read, and so checked, before the first cell is given.

        Raises:
            CorruptArchive: one is damaged.
        """
        files = [file for file in self.files if file.shard == shard]
        jobs = [list(group) for _, group in groupby(files, key=lambda file: file.job_id)]
        repeated = [self._repeated(group) for group in jobs]
        for group, later in zip(reversed(jobs), reversed(repeated), strict=True):
            for file in group:
                for cell in read_archive(file):
                    if later[cell.added_id]:
                        later[cell.added_id] -= 1
                    else:
                        yield cell

    def _repeated(self, files: list[ArchiveFile]) -> Counter[int]:
        """Read files whole; return how often cells stand in them beyond the first time."""
        seen: dict[int, bytearray] = {}
        repeated: Counter[int] = Counter()
        for file in files:
            reader = read_archive(file)
            for cell in reader:
                number, position = divmod(cell.added_id, _PAGE_IDS)
                page = seen.setdefault(number, bytearray(_PAGE_IDS // 8))
                bit = 1 << (position & 7)
                if page[position >> 3] & bit:
                    repeated[cell.added_id] += 1
                page[position >> 3] |= bit
            self.records[file] = reader.cells
            if reader.torn_bytes:
                self.torn[file.path] = reader.torn_bytes
            if not reader.closed:
                self.unclosed.add(file.path)
        return repeated


@dataclass(frozen=True, slots=True, order=True)
class Missing:
    """Originals that a job has written to its archive, and that are not in the files at hand.

    Attributes:
        file: the name of the file that they were written to; empty for a job that has not noted it.
        found: how many originals are there; None where the file is not.
        expected: how many there have to be, at least.
    """

    job_id: int
    shard: int
    file: str
    found: int | None
    expected: int

    def __str__(self) -> str:
        what = "is not there, which had" if self.found is None else f"has {self.found:,} of at least"
        return f"job {self.job_id}, shard {self.shard}: {self.file or 'the archive'} {what} {self.expected:,} originals"


def missing_of(job_id: int, states: Iterable[ShardState], records: Mapping[ArchiveFile, int]) -> list[Missing]:
    """Compare the files of a job's archive with what it has noted that it wrote there.

    A runner that was killed has noted what it wrote up to its last checkpoint, a second or so before.

    Args:
        states: where it is on the shards that are asked for, with counters.
        records: how many cells each file has, as ``Originals`` counts them.
    """
    counts: dict[str, int] = {}
    by_shard: Counter[int] = Counter()
    for file, count in records.items():
        if file.job_id == job_id:
            counts[file.path.name] = count
            by_shard[file.shard] += count
    missing: list[Missing] = []
    for state in states:
        noted = ShardTally.of(state).archived
        lacking = [
            Missing(job_id, state.shard, name, counts.get(name), cells)
            for name, cells in sorted(noted.items())
            if counts.get(name, -1) < cells
        ]
        if not lacking and by_shard[state.shard] < state.cells:
            lacking = [Missing(job_id, state.shard, "", by_shard[state.shard], state.cells)]
        missing += lacking
    return missing


def missing_text(missing: Iterable[Missing]) -> str | None:
    """Return in a sentence which shards lack originals; None where none does."""
    there: Counter[int] = Counter()
    expected: Counter[int] = Counter()
    for gap in missing:
        there[gap.shard] += gap.found or 0
        expected[gap.shard] += gap.expected
    if not expected:
        return None
    lacking = [f"{shard} ({there[shard]:,} of {count:,})" for shard, count in sorted(expected.items())]
    more = f" and {len(lacking) - _SHARDS_NAMED:,} more" if len(lacking) > _SHARDS_NAMED else ""
    return (
        f"originals are missing in the archive, of shards {', '.join(lacking[:_SHARDS_NAMED])}{more}; "
        "is all of it named?"
    )


def in_chunks(cells: Iterable[ArchivedCell], most_cells: int, most_bytes: int) -> Iterator[list[ArchivedCell]]:
    """Cut cells into chunks for a statement each; no cell twice in one."""
    chunk: dict[int, ArchivedCell] = {}
    size = 0
    for cell in cells:
        if cell.added_id in chunk:
            yield list(chunk.values())
            chunk, size = {}, 0
        chunk[cell.added_id] = cell
        size += len(cell.body)
        if len(chunk) >= most_cells or size >= most_bytes:
            yield list(chunk.values())
            chunk, size = {}, 0
    if chunk:
        yield list(chunk.values())


def bodies_of(
    store: Datastore, shard: int, cells: Iterable[StoredDigest], most_bytes: int
) -> Iterator[tuple[int, bytes]]:
    """Read the bodies of cells, ``most_bytes`` at a time; those that are gone meanwhile are absent."""
    internals = internals_of(store)
    ids: list[int] = []
    size = 0
    for cell in cells:
        if ids and size + cell.body_bytes > most_bytes:
            for stored in internals.read_stored(shard, ids):
                yield stored.added_id, stored.body
            ids, size = [], 0
        ids.append(cell.added_id)
        size += cell.body_bytes
    if ids:
        for stored in internals.read_stored(shard, ids):
            yield stored.added_id, stored.body
