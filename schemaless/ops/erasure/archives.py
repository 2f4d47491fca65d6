"""Erases originals from the archives of migrations.

A file is rewritten with tombstones in place of the originals of erased cells, synced, and renamed over the old one. It
keeps its name, its number of records and its order, so verification and restore count the same records as before.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final

from schemaless.base.events import Advanced, Listener, ignore_events
from schemaless.codec.envelope import is_erased
from schemaless.errors import ArchiveFailed
from schemaless.ops.jobs.job_store import JobStore
from schemaless.ops.migrate.archive import ArchivedCell, ArchiveWriter
from schemaless.ops.migrate.archive_files import ArchiveFile, read_archive
from schemaless.ops.migrate.originals import Originals
from schemaless.store.datastore import Datastore
from schemaless.store.internals import Internals, internals_of

_CELLS_AT_ONCE: Final = 500
_NO_DIGEST: Final = bytes(32)


@dataclass(frozen=True, slots=True)
class ErasedFile:
    """An archive file that has, or had, originals of erased cells.

    Attributes:
        path: the file.
        originals: number of originals of erased cells.
        skipped: why the file was not rewritten, or None.
    """

    path: Path
    originals: int
    skipped: str | None = None


def erase_from_archives(
    store: Datastore, folders: Iterable[Path], *, execute: bool, listener: Listener = ignore_events
) -> list[ErasedFile]:
    """Erase the originals of all erased cells from archives on this machine.

    Args:
        store: the datastore.
        folders: folders of archives.
        execute: rewrite the files. Otherwise, only count.
        listener: receives one event per file.

    Returns:
        The files that have originals of erased cells. A file of an unfinished migration is left alone, because its
        writer still appends to it.

    Raises:
        InvalidInput: a folder does not exist.
        CorruptArchive: a file is damaged; files before it have been rewritten.
        ArchiveFailed: a file cannot be written; it is unchanged.
        ServerError: a server cannot be reached.
    """
    internals = internals_of(store)
    unfinished = {job.job_id for job in JobStore(store).jobs("migrate") if job.unfinished}
    found = []
    for file in Originals.of(store, folders).files:
        count = sum(erased for _, erased in _with_tombstones(internals, file))
        if count:
            skipped = f"migration {file.job_id} has not ended" if file.job_id in unfinished else None
            found.append(ErasedFile(file.path, count, skipped))
            if execute and skipped is None:
                _rewrite(internals, file)
        listener(Advanced())
    return found


def _with_tombstones(internals: Internals, file: ArchiveFile) -> Iterator[tuple[Sequence[ArchivedCell], int]]:
    """Yield the file's cells in parts, with tombstones for erased originals, and each part's number of replacements."""
    every = iter(read_archive(file))
    while part := list(islice(every, _CELLS_AT_ONCE)):
        ids = sorted({cell.added_id for cell in part if not is_erased(cell.body)})
        stored = internals.read_stored(file.shard, ids, cold=False) if ids else ()
        tombstones = {(cell.added_id, cell.key): cell.body for cell in stored if cell.erased}
        cells = [
            cell._replace(body=tombstones[cell.added_id, cell.key], new_digest=_NO_DIGEST)
            if (cell.added_id, cell.key) in tombstones and not is_erased(cell.body)
            else cell
            for cell in part
        ]
        yield cells, sum(before is not after for before, after in zip(part, cells, strict=True))


def _rewrite(internals: Internals, file: ArchiveFile) -> None:
    new = file.path.with_name(f".{file.path.name}.{secrets.token_hex(8)}.part")
    try:
        with ArchiveWriter(new, file.header) as writer:
            for cells, _ in _with_tombstones(internals, file):
                writer.append(cells)
        new.replace(file.path)
        folder = os.open(file.path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        raise ArchiveFailed(f"cannot rewrite {file.path}: {error.strerror or error}; the file is unchanged") from error
    finally:
        with suppress(OSError):
            new.unlink(missing_ok=True)
