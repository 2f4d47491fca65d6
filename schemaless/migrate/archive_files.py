"""Reads the archive of a migration: strictly, and one frame at a time.

``archive`` writes it, docs/migration-archive.md describes its bytes.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import zlib
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

import msgpack
import zstandard

from schemaless.errors import CorruptArchive, InvalidInput
from schemaless.events import Event, Listener, nobody
from schemaless.migrate.archive import (
    FORMAT,
    MARK,
    MARK_BYTES,
    MARK_CHECKSUM,
    MARK_MAGIC,
    MOST_FRAME_BYTES,
    ArchivedCell,
)

_UNWRITTEN_BYTES: Final = 16
"""So many zeros at a file's end are what a power cut leaves of bytes that did not reach the disk."""

_NAME: Final = re.compile(r"shard-(\d{4,})\.(\d+)\.([0-9a-f]{16})\.zst", re.ASCII)
_RECORD: Final = (int, bytes, str, int, str, bytes, bytes, bytes)
_HEADER: Final = {
    "datastore": str,
    "shard": int,
    "shard_count": int,
    "job_id": int,
    "epoch": int,
    "created": str,
    "file": bytes,
}


@dataclass(frozen=True, slots=True, order=True)
class ArchiveFile:
    """A file of an archive, and what its header says; in the order in which originals were archived.

    Attributes:
        created: when it was made, by the clock of the machine that made it.
        size_bytes: when it was looked at.
    """

    datastore: str
    shard: int
    job_id: int
    epoch: int
    created: str
    path: Path
    shard_count: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class HeadlessFile(Event):
    """A file of an archive, whosesoever it is, that ends before its header does."""

    path: Path
    size_bytes: int


def archive_files(
    folder: Path,
    datastore: str | None = None,
    job_id: int | None = None,
    shards: Collection[int] | None = None,
    *,
    listener: Listener = nobody,
) -> list[ArchiveFile]:
    """Find the files of an archive in a folder and all below it, and read their headers.

    Files under other names are not looked at. One that ends before its header does is left out: its writer ended
    before anything was on the disk, or it is a copy that broke off.

    Args:
        folder: any folder of the archive, or one that such files were copied to.
        datastore: only its files.
        job_id: only this job's.
        shards: only these shards'.
        listener: told each ``HeadlessFile``.

    Raises:
        InvalidInput: there is no such folder, a file has a format of a later version, or what has the name of a file
            is none, such as a named pipe.
        CorruptArchive: a file's header is damaged, or its name belongs to another one.
        OSError: a file cannot be read.
    """
    if not folder.is_dir():
        raise InvalidInput(f"no folder {folder}; name the one that --archive named, or one below it")
    files = []
    for path in sorted(folder.rglob("shard-*.zst")):
        name = _NAME.fullmatch(path.name)
        if name is None or (shards is not None and int(name[1]) not in shards):
            continue
        file = _described(path)
        if file is None:
            listener(HeadlessFile(path, path.stat().st_size))
            continue
        if datastore not in (None, file.datastore) or job_id not in (None, file.job_id):
            continue
        files.append(file)
    return sorted(files)


def _described(path: Path) -> ArchiveFile | None:
    with _opened(path) as stream:
        first = next(_Frames(path, stream).contents(), None)
        size_bytes = os.fstat(stream.fileno()).st_size
    if first is None:
        return None
    header = _header(path, first)
    name = _NAME.fullmatch(path.name)
    said = (header["shard"], header["epoch"], header["file"].hex())
    if name is not None and said != (int(name[1]), int(name[2]), name[3]):
        raise CorruptArchive(
            f"{path}: its header is that of shard {said[0]}, epoch {said[1]}, file {said[2]}; give it its name back",
            path=path,
        )
    fields = {key: header[key] for key in ("datastore", "shard", "job_id", "epoch", "created", "shard_count")}
    return ArchiveFile(path=path, size_bytes=size_bytes, **fields)


class ArchiveReader:
    """Reads the cells of one file, in the order in which they were written, each checked against its own digest.

    Holds one frame in memory, of 17 MiB at most.

    Attributes:
        cells: how many were read so far.
        torn_bytes: set at the end: bytes of a last frame that is not whole. Its cells were never updated where the
            writer ended there; of a copy that broke off, nobody knows.
        closed: set at the end: whether there is an end mark. Without one the runner ended before its work did.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.cells = 0
        self.torn_bytes = 0
        self.closed = False

    def __iter__(self) -> Iterator[ArchivedCell]:
        """Read from the beginning.

        Raises:
            CorruptArchive: the file is damaged, other than by ending in the middle of a frame.
            InvalidInput: its format is of a later version, or it is no regular file.
            OSError: it cannot be read.
        """
        self.cells, self.torn_bytes, self.closed = 0, 0, False
        with _opened(self.path) as stream:
            frames = _Frames(self.path, stream)
            for content in frames.contents():
                if frames.number == 0:
                    _header(self.path, content)
                    continue
                if self.closed:
                    raise frames.damaged("it stands behind the end mark")
                for record in _objects(content, frames):
                    if type(record) is dict:
                        self.closed = True
                        if record.get("cells") != self.cells:
                            raise frames.damaged(
                                f"the end mark counts {record.get('cells')} cells, the file has {self.cells}"
                            )
                        continue
                    cell = _cell(record, frames)
                    self.cells += 1
                    yield cell
            self.torn_bytes = frames.torn_bytes
            if self.closed and self.torn_bytes:
                raise frames.damaged("it stands behind the end mark")


def read_archive(file: ArchiveFile | Path) -> ArchiveReader:
    """Return the cells of a file, to be iterated over; see ``ArchiveReader``."""
    return ArchiveReader(file.path if isinstance(file, ArchiveFile) else file)


def _opened(path: Path) -> BinaryIO:
    """Open a regular file; anything else is refused: a named pipe would hold its reader as long as nobody writes."""
    stream = open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))  # noqa: SIM115
    if stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
        return stream
    stream.close()
    raise InvalidInput(f"{path}: it has the name of a file of originals, but it is no regular file; move it away")


class _Frames:
    """Goes through a file frame by frame.

    Attributes:
        number: of the frame that was read last; the header is frame 0.
        offset: where its mark begins.
        torn_bytes: what follows the last whole frame, at the end.
    """

    def __init__(self, path: Path, stream: BinaryIO) -> None:
        self.path = path
        self.number = -1
        self.offset = 0
        self.torn_bytes = 0
        self._stream = stream
        self._decompressor = zstandard.ZstdDecompressor()

    def contents(self) -> Iterator[bytes]:
        file_id = None
        while True:
            offset = self._stream.tell()
            mark = self._stream.read(MARK_BYTES)
            if not mark:
                return
            self.number += 1
            self.offset = offset
            if len(mark) < MARK_BYTES:
                self._torn(mark)
                return
            magic, length, found_id, number, frame_bytes, content_bytes, checksum = MARK.unpack_from(mark)
            (mark_checksum,) = MARK_CHECKSUM.unpack_from(mark, MARK.size)
            if mark_checksum != zlib.crc32(mark[: MARK.size]) or (magic, length) != (MARK_MAGIC, MARK_BYTES - 8):
                if self._unwritten(offset + MARK_BYTES):
                    return
                raise self.damaged("its mark is not one, or its checksum is wrong")
            if (number, found_id) != (self.number, file_id or found_id):
                raise self.damaged(f"its mark is that of frame {number} of file {found_id.hex()}")
            file_id = found_id
            if content_bytes > MOST_FRAME_BYTES or frame_bytes > 2 * MOST_FRAME_BYTES:
                raise self.damaged(f"it says that it holds {content_bytes} bytes, more than any writer puts into one")
            frame = self._stream.read(frame_bytes)
            if len(frame) < frame_bytes:
                self.torn_bytes = len(mark) + len(frame)
                return
            if zlib.crc32(frame) != checksum:
                if self._unwritten(offset + MARK_BYTES + frame_bytes):
                    return
                raise self.damaged("its checksum is wrong")
            yield self._inflated(frame, content_bytes)

    def damaged(self, what: str) -> CorruptArchive:
        return CorruptArchive(
            f"{self.path}: frame {self.number}, at byte {self.offset}: {what}; take this file from a copy, other files "
            "are not concerned",
            path=self.path,
            offset=self.offset,
            frame=self.number,
        )

    def _inflated(self, frame: bytes, content_bytes: int) -> bytes:
        try:
            if zstandard.get_frame_parameters(frame).content_size != content_bytes:
                raise self.damaged("the zstd frame and its mark differ in its content's size")
            return self._decompressor.decompress(frame, allow_extra_data=False)
        except zstandard.ZstdError as refusal:
            raise self.damaged(f"zstd refuses it: {refusal}") from None

    def _torn(self, mark: bytes) -> None:
        if mark[:4] != MARK_MAGIC[: len(mark)] and mark.strip(b"\0"):
            raise self.damaged("its mark is not one")
        self.torn_bytes = len(mark)

    def _unwritten(self, end: int) -> bool:
        """Whether the file ends in zeros that begin in this frame; ``end`` is where it would end."""
        fd = self._stream.fileno()
        size = os.fstat(fd).st_size
        begin = size
        while begin > self.offset:
            start = max(self.offset, begin - 65536)
            kept = os.pread(fd, begin - start, start).rstrip(b"\0")
            begin = start + len(kept)
            if kept:
                break
        if begin >= end or size - begin < _UNWRITTEN_BYTES:
            return False
        self.torn_bytes = size - self.offset
        return True


def _objects(content: bytes, frames: _Frames) -> Iterator[Any]:
    unpacker = msgpack.Unpacker(max_buffer_size=len(content) or 1, strict_map_key=True)
    unpacker.feed(content)
    end = 0
    try:
        for unpacked in unpacker:
            end = unpacker.tell()
            yield unpacked
    except (ValueError, msgpack.UnpackException) as refusal:
        raise frames.damaged(f"it is not MessagePack as a writer has it: {refusal}") from None
    if end != len(content):
        raise frames.damaged("its last record is cut short")


def _cell(record: Any, frames: _Frames) -> ArchivedCell:
    if type(record) is not list or tuple(map(type, record)) != _RECORD:
        raise frames.damaged("it holds a record that no writer makes")
    added_id, row_key, column_name, ref_key, created_at, digest, body, new_digest = record
    if (len(row_key), len(digest), len(new_digest)) != (16, 32, 32):
        raise frames.damaged("it holds a record that no writer makes")
    if hashlib.sha256(body).digest() != digest:
        raise frames.damaged(
            f"the original of added_id {added_id} (row_key {row_key.hex()}, {column_name}, {ref_key}) is not the one "
            "whose SHA-256 stands beside it"
        )
    return ArchivedCell(added_id, row_key, column_name, ref_key, created_at, body, new_digest)


def _header(path: Path, content: bytes) -> dict[str, Any]:
    try:
        header = msgpack.unpackb(content)
    except (ValueError, msgpack.UnpackException):
        header = None
    if type(header) is not dict or type(header.get("format")) is not int:
        raise CorruptArchive(f"{path}: frame 0, at byte 0: it holds no header; is this an archive?", path=path)
    if header["format"] != FORMAT:
        raise InvalidInput(
            f"{path}: archive format {header['format']}, this version reads format {FORMAT}; "
            "use the version that wrote it"
        )
    if any(type(header.get(key)) is not kind for key, kind in _HEADER.items()):
        raise CorruptArchive(f"{path}: frame 0, at byte 0: its header lacks fields; is this an archive?", path=path)
    return header
