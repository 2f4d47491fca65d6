"""Writer for the archive of a migration: each original body is synced to disk before the UPDATE that replaces it.

Files are append-only and each has one writer; ARCHIVE.md specifies their format.
"""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
import struct
import uuid
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

import msgpack
import zstandard

from schemaless.base.parts import parts
from schemaless.cell import CellKey, StoredCell
from schemaless.codec.dictionaries import Dictionary
from schemaless.errors import ArchiveFailed
from schemaless.store.cells.dictionaries import dictionary_line

# Part of the stored format; never renumber.
FORMAT: Final = 1
MARK: Final = struct.Struct("<4sI8sIIII")
"""Layout of a mark, the skippable zstd frame before each data frame.

Fields: magic, length, file id, then the data frame's number, compressed length, content length and CRC-32.
``MARK_CHECKSUM``, the CRC-32 of these fields, follows.
"""
MARK_CHECKSUM: Final = struct.Struct("<I")
MARK_MAGIC: Final = b"\x5a\x2a\x4d\x18"
MARK_BYTES: Final = MARK.size + MARK_CHECKSUM.size

_LEVEL: Final = 3
FRAME_BYTES: Final = 16 << 20
"""Maximum content of a frame before compression, in bytes; a longer cell gets a frame to itself."""

MOST_FRAME_BYTES: Final = FRAME_BYTES + (1 << 20)
_NEXT_STEPS: Final = {
    errno.ENOSPC: "free disk space there",
    errno.EDQUOT: "raise the quota or free disk space there",
    errno.EFBIG: "raise the file size limit (ulimit -f)",
    errno.EIO: "check that disk",
    errno.EROFS: "name a writable folder",
    errno.EACCES: "name a writable folder",
}


class ArchivedCell(NamedTuple):
    """A cell before its body was replaced.

    Attributes:
        row_key: 16 bytes.
        created_at: text such as ``2026-01-31 23:59:59.123456+00:00``.
        body: the original body.
        new_digest: SHA-256 of the new body.
    """

    added_id: int
    row_key: bytes
    column_name: str
    ref_key: int
    created_at: str
    body: bytes
    new_digest: bytes

    @property
    def key(self) -> CellKey:
        """The cell's key."""
        return CellKey(uuid.UUID(bytes=self.row_key), self.column_name, self.ref_key)


def archived(cell: StoredCell, new_body: bytes) -> ArchivedCell:
    """Return the archive record for a cell whose body is about to be replaced by ``new_body``."""
    return ArchivedCell(
        cell.added_id,
        cell.row_key.bytes,
        cell.column_name,
        cell.ref_key,
        created_text(cell),
        cell.body,
        digest_of(new_body),
    )


def digest_of(body: bytes) -> bytes:
    """Return the SHA-256 of a body."""
    return hashlib.sha256(body).digest()


def archive_dictionary(folder: Path, dictionary: Dictionary) -> Path:
    """Store in the archive a dictionary that originals depend on, synced to disk, unless it is already there.

    Args:
        folder: the datastore's folder in the archive; created if missing.
        dictionary: the dictionary; 'schemaless codec import' can read it back from the file.

    Returns:
        Path of the file.

    Raises:
        ArchiveFailed: the file cannot be written.
    """
    path = folder / f"dictionary-{dictionary.id}-{dictionary.digest.hex()[:16]}.ndjson"
    if path.exists():
        return path
    part = path.with_name(f".{path.name}.{secrets.token_hex(8)}.part")
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with part.open("xb") as file:
            file.write(dictionary_line(dictionary, {}) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
        _sync_folder(folder)
    except OSError as refusal:
        raise _failed(path, refusal) from refusal
    finally:
        with suppress(OSError):
            part.unlink(missing_ok=True)
    return path


def created_text(cell: StoredCell) -> str:
    """Return a cell's ``created_at`` in the server's format, always with microseconds."""
    return cell.created_at.isoformat(sep=" ", timespec="microseconds")


class ArchiveWriter:
    """Writer for the originals of one runner of a shard. The file is created when the first original is written.

    Attributes:
        path: path of the file.
        bytes_written: bytes synced to disk so far.
        cells: originals synced to disk so far.
    """

    def __init__(self, path: Path, header: Mapping[str, Any], frame_bytes: int = FRAME_BYTES) -> None:
        """Prepare a file with a header, in a folder that exists."""
        self.path = path
        self.bytes_written: int = 0
        self.cells: int = 0
        self._header = header
        self._frame_bytes = frame_bytes
        self._fd: int | None = None
        self._frames = 0
        self._broken = False
        self._compressor = zstandard.ZstdCompressor(level=_LEVEL, write_checksum=True, write_content_size=True)

    @classmethod
    def create(
        cls,
        folder: Path,
        *,
        datastore: str,
        shard: int,
        shard_count: int,
        job_id: int,
        epoch: int,
        frame_bytes: int = FRAME_BYTES,
    ) -> Self:
        """Prepare a new file, and create the folder ``datastore/job-<id>`` in ``folder``.

        Raises:
            ArchiveFailed: the folder cannot be created.
        """
        file_id = secrets.token_bytes(8)
        header = {
            "format": FORMAT,
            "datastore": datastore,
            "shard": shard,
            "shard_count": shard_count,
            "job_id": job_id,
            "epoch": epoch,
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            "file": file_id,
        }
        name = f"shard-{shard:04d}.{epoch}.{file_id.hex()}.zst"
        path = folder / datastore / f"job-{job_id:04d}" / name
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with suppress(PermissionError):  # a parent with search but no read permission cannot be synced
                _sync_folder(folder.absolute().parent)
            for subfolder in (path.parent.parent, path.parent):
                subfolder.mkdir(mode=0o700, exist_ok=True)
                # Sync even if another runner created it: that runner may not have synced it yet.
                _sync_folder(subfolder.parent)
        except OSError as refusal:
            raise _failed(path, refusal) from refusal
        return cls(path, header, frame_bytes)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if kind is None:
            self.close()
        else:
            self._drop()

    def append(self, cells: Sequence[ArchivedCell]) -> int:
        """Write cells and sync them to disk.

        Returns:
            Bytes written.

        Raises:
            ArchiveFailed: not all cells are on disk, so none of them may be updated. The writer cannot be used any
                more; earlier cells are intact.
        """
        if not cells:
            return 0
        written = self._write(list(_contents(cells, self._frame_bytes)))
        self.cells += len(cells)
        return written

    def close(self) -> None:
        """Write the end mark and close the file. A file left without one by a runner that died is also valid.

        Raises:
            ArchiveFailed: the end mark cannot be written.
        """
        if self._fd is not None and not self._broken:
            self._write([msgpack.packb({"cells": self.cells})])
        self._drop()

    def _write(self, contents: list[bytes]) -> int:
        if self._broken:
            raise ArchiveFailed(f"{self.path}: this writer is closed or has failed; create another one")
        self._broken = True  # until the sync succeeds: an interrupt may leave half a frame, too
        try:
            if self._fd is None:
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
                self._fd = os.open(self.path, flags, 0o600)
                _sync_folder(self.path.parent)
                contents = [msgpack.packb(self._header), *contents]
            data = b"".join(self._frame(self._frames + position, content) for position, content in enumerate(contents))
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(self._fd, rest) :]
            getattr(os, "fdatasync", os.fsync)(self._fd)  # macOS has no fdatasync
        except OSError as refusal:
            self._drop()
            raise _failed(self.path, refusal) from refusal
        except BaseException:
            self._drop()
            raise
        self._frames += len(contents)
        self.bytes_written += len(data)
        self._broken = False
        return len(data)

    def _frame(self, number: int, content: bytes) -> bytes:
        frame = self._compressor.compress(content)
        mark = MARK.pack(
            MARK_MAGIC, MARK_BYTES - 8, self._header["file"], number, len(frame), len(content), zlib.crc32(frame)
        )
        return mark + MARK_CHECKSUM.pack(zlib.crc32(mark)) + frame

    def _drop(self) -> None:
        """Close the file and truncate an incomplete frame; if that fails, readers report the frame as torn."""
        if self._fd is None:
            return
        fd, self._fd = self._fd, None
        try:
            if self._broken:
                os.ftruncate(fd, self.bytes_written)
        except OSError:
            pass
        finally:
            self._broken = True
            os.close(fd)


def _failed(path: Path, refusal: OSError) -> ArchiveFailed:
    cause = refusal.strerror or str(refusal)
    next_step = _NEXT_STEPS.get(refusal.errno or 0, "fix the cause")
    return ArchiveFailed(
        f"cannot write {path}: {cause}; every updated cell has its original in the archive; {next_step}, then run the "
        "same command again"
    )


def _contents(cells: Sequence[ArchivedCell], frame_bytes: int) -> Iterator[bytes]:
    pack = msgpack.Packer().pack
    records = (pack((*cell[:5], digest_of(cell.body), cell.body, cell.new_digest)) for cell in cells)
    return map(b"".join, parts(records, most_size=frame_bytes, size_of=len))


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
