"""The archive of a migration: each original body, on the disk before the UPDATE that replaces it.

Files are only ever appended to, each by the one writer that made it; docs/migration-archive.md describes their bytes.
"""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
import struct
import uuid
import zlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NamedTuple, Self

import msgpack
import zstandard

from schemaless.cell import CellKey, StoredCell
from schemaless.cells.dictionaries import dictionary_line
from schemaless.codec.dictionaries import Dictionary
from schemaless.errors import ArchiveFailed

# stored; never renumber
FORMAT: Final = 1
MARK: Final = struct.Struct("<4sI8sIIII")
"""A mark is a skippable zstd frame, of these parts.

They are magic and length, then the file's id, the number of the data frame that follows, its length, its content's
length and its CRC-32. The CRC-32 of these parts stands behind them, as ``MARK_CHECKSUM``.
"""
MARK_CHECKSUM: Final = struct.Struct("<I")
MARK_MAGIC: Final = b"\x5a\x2a\x4d\x18"
MARK_BYTES: Final = MARK.size + MARK_CHECKSUM.size

_LEVEL: Final = 3
FRAME_BYTES: Final = 16 << 20
"""A frame holds no more before compression, unless a single cell is longer."""

MOST_FRAME_BYTES: Final = FRAME_BYTES + (1 << 20)
_NEXT_STEPS: Final = {
    errno.ENOSPC: "make room there",
    errno.EDQUOT: "raise the quota there, or make room",
    errno.EFBIG: "raise the limit on a file's size (ulimit -f)",
    errno.EIO: "look at that disk",
    errno.EROFS: "name a folder that can be written",
    errno.EACCES: "name a folder that can be written",
}


class ArchivedCell(NamedTuple):
    """A cell as it was before its body was replaced.

    Attributes:
        row_key: 16 bytes.
        created_at: text, such as ``2026-01-31 23:59:59.123456+00:00``.
        body: the original.
        new_digest: SHA-256 of the body that was to take its place.
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
    """Return what is to be archived before ``new_body`` takes the place of a cell's body."""
    return ArchivedCell(
        cell.added_id,
        cell.row_key.bytes,
        cell.column_name,
        cell.ref_key,
        created_text(cell),
        cell.body,
        hashlib.sha256(new_body).digest(),
    )


def archive_dictionary(folder: Path, dictionary: Dictionary) -> Path:
    """Write a dictionary that originals name beside them, unless it is there; it is on the disk when this returns.

    Args:
        folder: the datastore's, in the archive; made where it is missing.
        dictionary: what 'schemaless codec import' takes back from the file.

    Raises:
        ArchiveFailed: it cannot be written.
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
    """Return a cell's ``created_at`` as the server writes it: always with microseconds."""
    return cell.created_at.isoformat(sep=" ", timespec="microseconds")


class ArchiveWriter:
    """Writes the originals of one runner of a shard to a file of its own, made with the first of them.

    Attributes:
        bytes_written: what is on the disk so far.
        cells: how many originals that is.
    """

    def __init__(
        self,
        folder: Path,
        *,
        datastore: str,
        shard: int,
        shard_count: int,
        job_id: int,
        epoch: int,
        frame_bytes: int = FRAME_BYTES,
    ) -> None:
        """Make the folder ``datastore/job-<id>`` in ``folder``.

        Raises:
            ArchiveFailed: it cannot be made.
        """
        self._id = secrets.token_bytes(8)
        self.path = folder / datastore / f"job-{job_id:04d}" / f"shard-{shard:04d}.{epoch}.{self._id.hex()}.zst"
        self.bytes_written = 0
        self._header = {
            "format": FORMAT,
            "datastore": datastore,
            "shard": shard,
            "shard_count": shard_count,
            "job_id": job_id,
            "epoch": epoch,
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            "file": self._id,
        }
        self._fd: int | None = None
        self._frames = 0
        self.cells = 0
        self._broken = False
        self._frame_bytes = frame_bytes
        self._compressor = zstandard.ZstdCompressor(level=_LEVEL, write_checksum=True, write_content_size=True)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with suppress(PermissionError):  # a parent that may be passed through, but not read
                _sync_folder(folder.absolute().parent)
            for made in (self.path.parent.parent, self.path.parent):
                made.mkdir(mode=0o700, exist_ok=True)
                # Also where another runner has made it: it may not have come to this yet.
                _sync_folder(made.parent)
        except OSError as refusal:
            raise self._failed(refusal) from refusal

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if kind is None:
            self.close()
        else:
            self._drop()

    def append(self, cells: Sequence[ArchivedCell]) -> int:
        """Write cells; they are on the disk when this returns.

        Returns:
            Bytes written.

        Raises:
            ArchiveFailed: not all of them are on the disk, so none of them may be updated. The writer is of no use
                any more; what it wrote before is whole.
        """
        if not cells:
            return 0
        written = self._write(list(_contents(cells, self._frame_bytes)))
        self.cells += len(cells)
        return written

    def close(self) -> None:
        """Write the end mark, and close the file. A file without one is whole as well: its runner ended before.

        Raises:
            ArchiveFailed: it cannot be written.
        """
        if self._fd is not None and not self._broken:
            self._write([msgpack.packb({"cells": self.cells})])
        self._drop()

    def _write(self, contents: list[bytes]) -> int:
        if self._broken:
            raise ArchiveFailed(f"{self.path}: this writer is closed, or was given up after an error; make another one")
        self._broken = True  # until all is done: also an interrupt may leave half a frame
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
            os.fdatasync(self._fd)
        except OSError as refusal:
            self._drop()
            raise self._failed(refusal) from refusal
        except BaseException:
            self._drop()
            raise
        self._frames += len(contents)
        self.bytes_written += len(data)
        self._broken = False
        return len(data)

    def _frame(self, number: int, content: bytes) -> bytes:
        frame = self._compressor.compress(content)
        mark = MARK.pack(MARK_MAGIC, MARK_BYTES - 8, self._id, number, len(frame), len(content), zlib.crc32(frame))
        return mark + MARK_CHECKSUM.pack(zlib.crc32(mark)) + frame

    def _drop(self) -> None:
        """Close the file, and cut off what is not whole, if that can be done: readers take it for torn otherwise."""
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

    def _failed(self, refusal: OSError) -> ArchiveFailed:
        return _failed(self.path, refusal)


def _failed(path: Path, refusal: OSError) -> ArchiveFailed:
    what = refusal.strerror or str(refusal)
    next_step = _NEXT_STEPS.get(refusal.errno or 0, "mend that")
    return ArchiveFailed(f"{path}: {what}; no cell was updated whose original is not archived; {next_step}, then go on")


def _contents(cells: Sequence[ArchivedCell], frame_bytes: int) -> Iterator[bytes]:
    packer = msgpack.Packer()
    parts: list[bytes] = []
    size = 0
    for cell in cells:
        packed = packer.pack(
            (
                cell.added_id,
                cell.row_key,
                cell.column_name,
                cell.ref_key,
                cell.created_at,
                hashlib.sha256(cell.body).digest(),
                cell.body,
                cell.new_digest,
            )
        )
        if parts and size + len(packed) > frame_bytes:
            yield b"".join(parts)
            parts, size = [], 0
        parts.append(packed)
        size += len(packed)
    yield b"".join(parts)


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
