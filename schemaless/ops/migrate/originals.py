"""Read the originals of an archive by shard, each cell once, and compare them with the stored cells.

Files are read one frame at a time. Deduplication takes one bit of memory per cell of each job.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import groupby
from pathlib import Path
from typing import Any, Final, NamedTuple

from schemaless.base.parts import parts
from schemaless.cell import CellKey, StoredCell
from schemaless.codec.envelope import is_erased, same_document
from schemaless.errors import CorruptBody, InvalidInput
from schemaless.ops.jobs.job import ShardState
from schemaless.ops.migrate.archive import ArchivedCell, created_text, digest_of
from schemaless.ops.migrate.archive_files import ArchiveFile, archive_files, read_archive
from schemaless.ops.migrate.sql import select_stored_digests
from schemaless.ops.migrate.tally import ShardTally
from schemaless.store.datastore import Datastore
from schemaless.store.internals import internals_of
from schemaless.wire.node import Node

_PAGE_IDS = 1 << 16
_SHARDS_NAMED = 20
_CHUNK_BYTES: Final = 1 << 20


class StoredDigest(NamedTuple):
    """A stored cell with the SHA-256 of its body in place of the body."""

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
    """Return the rows of ``select_stored_digests`` by added_id."""
    return {row[0]: StoredDigest(*row) for row in rows}


def stored_digests(
    store: Datastore, shard: int, ids: Iterable[int], node: Node | None = None
) -> dict[int, StoredDigest]:
    """Read cells from a server, by default the primary, with digests computed by the server in place of bodies."""
    shards = internals_of(store).shards
    sql = select_stored_digests(shards.database(shard), ids)
    if node is None:
        return digests(shards.rows(shard, sql))
    return digests(shards.run_on(node, shard, lambda connection: connection.rows(sql)))


def digested(cell: StoredCell) -> StoredDigest:
    """Convert a cell that was read with its body to a ``StoredDigest``."""
    place = cell.added_id, cell.row_key.bytes, cell.column_name, cell.ref_key, created_text(cell)
    return StoredDigest(*place, digest_of(cell.body), len(cell.body))


@dataclass(slots=True)
class Originals:
    """Files of one or more archives.

    Attributes:
        files: files with a complete header.
        torn: files with an incomplete last frame, and its size in bytes. Files that end within their header are listed
            from the start; the others are added while they are read.
        records: cells in each file by file name, duplicates included; filled while they are read.
    """

    files: list[ArchiveFile]
    torn: dict[Path, int] = field(default_factory=dict)
    records: dict[str, int] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        store: Datastore,
        folders: Iterable[Path],
        *,
        job_id: int | None = None,
        shards: Collection[int] | None = None,
    ) -> Originals:
        """Find the archive files of a datastore in folders. Of several copies of a file, the longest is used.

        Raises:
            InvalidInput: a folder is missing, or a file was written for another shard count or is not a regular file.
            CorruptArchive: the header of a file is damaged.
        """
        by_name: dict[str, ArchiveFile] = {}
        torn: dict[Path, int] = {}
        for folder in folders:
            for file in archive_files(folder, store.name, job_id, shards, torn=torn):
                if file.shard_count != store.shard_count:
                    raise InvalidInput(
                        f"{file.path} was written for a datastore {file.datastore!r} with {file.shard_count} shards, "
                        f"but this one has {store.shard_count}; name the folder of this datastore's archive"
                    )
                known = by_name.get(file.path.name)
                if known is None or known.size_bytes < file.size_bytes:
                    by_name[file.path.name] = file
        return cls(sorted(by_name.values()), {path: size for path, size in torn.items() if path.name not in by_name})

    @property
    def size_bytes(self) -> int:
        """Total size of the files."""
        return sum(file.size_bytes for file in self.files)

    def shards(self) -> list[int]:
        """Return the numbers of the shards that have files."""
        return sorted({file.shard for file in self.files})

    def only(self, shard: int) -> Originals:
        """Return the files of one shard, for a worker."""
        return Originals([file for file in self.files if file.shard == shard])

    def cells(self) -> Iterator[ArchivedCell]:
        """Yield the cells of one shard's files, newest job first, each cell once per job, as that job archived it last.

        Every file is read and checked before the first cell is yielded.

        Raises:
            CorruptArchive: a file is damaged.
        """
        jobs = [list(group) for _, group in groupby(self.files, key=lambda file: file.job_id)]
        duplicates = [self._duplicates(group) for group in jobs]
        for group, newer_copies in zip(reversed(jobs), reversed(duplicates), strict=True):
            for file in group:
                for cell in read_archive(file):
                    if newer_copies[cell.added_id]:
                        newer_copies[cell.added_id] -= 1
                    else:
                        yield cell

    def _duplicates(self, files: list[ArchiveFile]) -> Counter[int]:
        """Read files to the end; return the number of extra copies of each cell in them, by added_id."""
        bitmaps: dict[int, bytearray] = {}
        duplicates: Counter[int] = Counter()
        for file in files:
            reader = read_archive(file)
            for cell in reader:
                number, position = divmod(cell.added_id, _PAGE_IDS)
                page = bitmaps.setdefault(number, bytearray(_PAGE_IDS // 8))
                bit = 1 << (position & 7)
                if page[position >> 3] & bit:
                    duplicates[cell.added_id] += 1
                page[position >> 3] |= bit
            self.records[file.path.name] = reader.cells
            if reader.torn_bytes:
                self.torn[file.path] = reader.torn_bytes
        return duplicates


@dataclass(frozen=True, slots=True, order=True)
class Missing:
    """A gap in an archive: a file that is missing, or holds fewer originals than the job recorded.

    Attributes:
        file: name of the file.
        found: originals in the file; None if the file is missing.
        expected: minimum number of originals, as recorded by the job.
    """

    job_id: int
    shard: int
    file: str
    found: int | None
    expected: int

    def __str__(self) -> str:
        gap = (
            f"with {self.expected:,} originals is missing"
            if self.found is None
            else f"holds {self.found:,} originals instead of at least {self.expected:,}"
        )
        return f"job {self.job_id}, shard {self.shard}: {self.file} {gap}"


def missing_of(job_id: int, states: Iterable[ShardState], records: Mapping[str, int]) -> list[Missing]:
    """Compare the files of a job's archive with the number of originals that the job recorded.

    A killed runner recorded only what it wrote up to its last checkpoint, about a second earlier.

    Args:
        job_id: the job.
        states: the job's shard states, with counters, for the shards to compare.
        records: cells in each file, as counted by ``Originals``.
    """
    return [
        Missing(job_id, state.shard, name, records.get(name), cells)
        for state in states
        for name, cells in sorted(ShardTally.of(state).archived.items())
        if records.get(name, -1) < cells
    ]


def missing_text(missing: Iterable[Missing]) -> str | None:
    """Return a sentence that names the shards with missing originals, or None if there are none."""
    found: Counter[int] = Counter()
    expected: Counter[int] = Counter()
    for gap in missing:
        found[gap.shard] += gap.found or 0
        expected[gap.shard] += gap.expected
    if not expected:
        return None
    shards = [f"{shard} ({found[shard]:,} of {count:,})" for shard, count in sorted(expected.items())]
    more = f" and {len(shards) - _SHARDS_NAMED:,} more" if len(shards) > _SHARDS_NAMED else ""
    return (
        f"originals are missing from the archive for shards {', '.join(shards[:_SHARDS_NAMED])}{more}; "
        "name every folder of the archive with --archive"
    )


class Match(Enum):
    """What the datastore has in place of an original."""

    GONE = "no cell"
    OTHER = "another cell"
    ORIGINAL = "the original body"
    MIGRATED = "the body that the migration wrote"
    SAME = "the same document in another encoding"
    ERASED = "an erased cell"
    CHANGED = "another body"


class Compared(NamedTuple):
    """An original and what is stored in its place; ``stored`` is None if there is nothing."""

    cell: ArchivedCell
    stored: StoredDigest | None
    match: Match


def compared(store: Datastore, shard: int, chunk: Sequence[ArchivedCell]) -> Iterator[Compared]:
    """Compare originals with the stored cells, which are read by digest, and completely if the digest is unknown."""
    by_id = stored_digests(store, shard, (cell.added_id for cell in chunk))
    others: dict[int, ArchivedCell] = {}
    for cell in chunk:
        stored = by_id.get(cell.added_id)
        if stored is None:
            yield Compared(cell, None, Match.GONE)
        elif stored.key != cell.key:
            yield Compared(cell, stored, Match.OTHER)
        elif stored.digest == digest_of(cell.body):
            yield Compared(cell, stored, Match.ORIGINAL)
        elif stored.digest == cell.new_digest:
            yield Compared(cell, stored, Match.MIGRATED)
        else:
            others[cell.added_id] = cell
    # A limited size per statement; cells that no longer exist are left out.
    for ids in parts(list(others), most_size=_CHUNK_BYTES, size_of=lambda added_id: by_id[added_id].body_bytes):
        for read in internals_of(store).read_stored(shard, ids):
            cell = others.pop(read.added_id)
            yield Compared(cell, digested(read), _match(store, cell.body, read.body))
    for cell in others.values():
        yield Compared(cell, None, Match.GONE)


def _match(store: Datastore, original: bytes, stored: bytes) -> Match:
    if is_erased(stored):
        return Match.ERASED
    try:
        same = not is_erased(original) and same_document(store.decode(original), store.decode(stored))
    except CorruptBody:
        same = False
    return Match.SAME if same else Match.CHANGED


def in_chunks(cells: Iterable[ArchivedCell], most_cells: int) -> Iterator[list[ArchivedCell]]:
    """Split cells into chunks for one statement each; a chunk holds no cell twice."""
    chunk: dict[int, ArchivedCell] = {}
    size = 0
    for cell in cells:
        if cell.added_id in chunk or len(chunk) >= most_cells or size >= _CHUNK_BYTES:
            yield list(chunk.values())
            chunk, size = {}, 0
        chunk[cell.added_id] = cell
        size += len(cell.body)
    if chunk:
        yield list(chunk.values())
