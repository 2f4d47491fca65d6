"""Read the archive of a migration, one frame at a time, and reject anything invalid.

``archive`` writes the files; ARCHIVE.md specifies their format.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import zlib
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Final

import msgpack
import zstandard

from schemaless.errors import CorruptArchive, InvalidInput
from schemaless.ops.migrate.archive import (
    FORMAT,
    MARK,
    MARK_BYTES,
    MARK_CHECKSUM,
    MARK_MAGIC,
    MOST_FRAME_BYTES,
    ArchivedCell,
)

_UNWRITTEN_BYTES: Final = 16
"""Minimum number of zero bytes at the end of a file that counts as data lost in a power failure."""

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
    """A file of an archive and the fields of its header. Files sort in the order in which originals were archived.

    Attributes:
        created: creation time by the clock of the machine that wrote the file.
        size_bytes: size of the file when its header was read.
        header: the complete header.
    """

    datastore: str
    shard: int
    job_id: int
    epoch: int
    created: str
    path: Path
    shard_count: int
    size_bytes: int
    header: dict[str, Any] = field(compare=False, repr=False)


def archive_files(
    folder: Path,
    datastore: str | None = None,
    job_id: int | None = None,
    shards: Collection[int] | None = None,
    *,
    torn: dict[Path, int] | None = None,
) -> list[ArchiveFile]:
    """Find the archive files in a folder and its subfolders, and read their headers.

    Files not named like archive files are ignored. A file that ends within its header is left out: its writer died
    before anything reached the disk, or the file is an incomplete copy.

    Args:
        folder: a folder of the archive, or one that its files were copied to.
        datastore: return only files of this datastore.
        job_id: return only files of this job.
        shards: return only files of these shards.
        torn: receives the size of each file that is left out, in bytes.

    Returns:
        The files in the order in which originals were archived.

    Raises:
        InvalidInput: the folder does not exist, a file has the format of a later version, or a path with the name of
            an archive file is something other than a regular file, such as a named pipe.
        CorruptArchive: the header of a file is damaged or does not match the file name.
        OSError: a file cannot be read.
    """
    if not folder.is_dir():
        raise InvalidInput(f"folder {folder} does not exist; name the archive folder of the migration or a subfolder")
    files = []
    for path in sorted(folder.rglob("shard-*.zst")):
        name = _NAME.fullmatch(path.name)
        if name is None or (shards is not None and int(name[1]) not in shards):
            continue
        file = _read_header(path)
        if file is None:
            if torn is not None:
                torn[path] = path.stat().st_size
            continue
        if datastore not in (None, file.datastore) or job_id not in (None, file.job_id):
            continue
        files.append(file)
    return sorted(files)


def _read_header(path: Path) -> ArchiveFile | None:
    with _open_regular(path) as stream:
        first = next(ArchiveReader(path).contents(stream), None)
        size_bytes = os.fstat(stream.fileno()).st_size
    if first is None:
        return None
    header = _parse_header(path, first)
    name = _NAME.fullmatch(path.name)
    in_header = (header["shard"], header["epoch"], header["file"].hex())
    if name is not None and in_header != (int(name[1]), int(name[2]), name[3]):
        raise CorruptArchive(
            f"{path}: its header belongs to shard {in_header[0]}, epoch {in_header[1]}, file {in_header[2]}; restore "
            "the original file name",
            path=path,
        )
    fields = {key: header[key] for key in ("datastore", "shard", "job_id", "epoch", "created", "shard_count")}
    return ArchiveFile(path=path, size_bytes=size_bytes, header=header, **fields)


class ArchiveReader:
    """Iterable over the cells of one file in the order they were written; each is checked against its digest.

    It holds one frame in memory, at most 17 MiB.

    Attributes:
        cells: cells read so far.
        torn_bytes: size of an incomplete last frame; set once the file has been read. If the writer died there, none of
            that frame's cells had been updated. If the file is an incomplete copy, they may have been.
        closed: whether the file has an end mark; set once it has been read. Without one, the runner has died or is
            still writing, or the file is an incomplete copy.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.cells: int = 0
        self.torn_bytes: int = 0
        self.closed: bool = False
        # Number and offset of the frame that was read last.
        self._number, self._offset = -1, 0
        self._decompressor = zstandard.ZstdDecompressor()

    def __iter__(self) -> Iterator[ArchivedCell]:
        """Read the file from the beginning.

        Raises:
            CorruptArchive: the file is damaged; ending in the middle of a frame is not an error.
            InvalidInput: the file has the format of a later version, or is not a regular file.
            OSError: the file cannot be read.
        """
        self.cells, self.closed = 0, False
        with _open_regular(self.path) as stream:
            for content in self.contents(stream):
                if self._number == 0:
                    _parse_header(self.path, content)
                    continue
                if self.closed:
                    raise self._damaged("it follows the end mark")
                for record in self._objects(content):
                    if type(record) is dict:
                        self.closed = True
                        if record.get("cells") != self.cells:
                            raise self._damaged(
                                f"the end mark counts {record.get('cells')} cells, but the file has {self.cells}"
                            )
                        continue
                    cell = self._cell(record)
                    self.cells += 1
                    yield cell
            if self.closed and self.torn_bytes:
                raise self._damaged("it follows the end mark")

    def contents(self, stream: BinaryIO) -> Iterator[bytes]:
        """Yield the content of each frame; the header is that of frame 0."""
        self._number, self.torn_bytes, file_id = -1, 0, None
        while True:
            offset = stream.tell()
            mark = stream.read(MARK_BYTES)
            if not mark:
                return
            self._number += 1
            self._offset = offset
            if len(mark) < MARK_BYTES:
                self._torn(mark)
                return
            magic, length, found_id, number, frame_bytes, content_bytes, checksum = MARK.unpack_from(mark)
            (mark_checksum,) = MARK_CHECKSUM.unpack_from(mark, MARK.size)
            if mark_checksum != zlib.crc32(mark[: MARK.size]) or (magic, length) != (MARK_MAGIC, MARK_BYTES - 8):
                if self._lost_in_power_failure(stream, offset + MARK_BYTES):
                    return
                raise self._damaged("its mark is invalid or has a wrong checksum")
            if (number, found_id) != (self._number, file_id or found_id):
                raise self._damaged(f"its mark belongs to frame {number} of file {found_id.hex()}")
            file_id = found_id
            if content_bytes > MOST_FRAME_BYTES or frame_bytes > 2 * MOST_FRAME_BYTES:
                raise self._damaged(
                    f"its mark claims {content_bytes} bytes of content, more than a writer puts in a frame"
                )
            frame = stream.read(frame_bytes)
            if len(frame) < frame_bytes:
                self.torn_bytes = len(mark) + len(frame)
                return
            if zlib.crc32(frame) != checksum:
                if self._lost_in_power_failure(stream, offset + MARK_BYTES + frame_bytes):
                    return
                raise self._damaged("its checksum is wrong")
            yield self._inflated(frame, content_bytes)

    def _damaged(self, what: str) -> CorruptArchive:
        return CorruptArchive(
            f"{self.path}: frame {self._number}, at byte {self._offset}: {what}; replace this file with a good copy "
            "(other files are not affected)",
            path=self.path,
            offset=self._offset,
            frame=self._number,
        )

    def _inflated(self, frame: bytes, content_bytes: int) -> bytes:
        try:
            if zstandard.get_frame_parameters(frame).content_size != content_bytes:
                raise self._damaged("the zstd frame and its mark give different content sizes")
            return self._decompressor.decompress(frame, allow_extra_data=False)
        except zstandard.ZstdError as refusal:
            raise self._damaged(f"zstd refuses it: {refusal}") from None

    def _torn(self, mark: bytes) -> None:
        if mark[:4] != MARK_MAGIC[: len(mark)] and mark.strip(b"\0"):
            raise self._damaged("its mark is invalid")
        self.torn_bytes = len(mark)

    def _lost_in_power_failure(self, stream: BinaryIO, end: int) -> bool:
        """Return whether the file ends in zeros that begin within this frame; ``end`` is where the frame should end."""
        fd = stream.fileno()
        size = os.fstat(fd).st_size
        begin = size
        while begin > self._offset:
            start = max(self._offset, begin - 65536)
            kept = os.pread(fd, begin - start, start).rstrip(b"\0")
            begin = start + len(kept)
            if kept:
                break
        if begin >= end or size - begin < _UNWRITTEN_BYTES:
            return False
        self.torn_bytes = size - self._offset
        return True

    def _objects(self, content: bytes) -> Iterator[Any]:
        unpacker = msgpack.Unpacker(max_buffer_size=len(content) or 1, strict_map_key=True)
        unpacker.feed(content)
        end = 0
        try:
            for unpacked in unpacker:
                end = unpacker.tell()
                yield unpacked
        except (ValueError, msgpack.UnpackException) as refusal:
            raise self._damaged(f"it is not valid MessagePack: {str(refusal) or type(refusal).__name__}") from None
        if end != len(content):
            raise self._damaged("its last record is truncated")

    def _cell(self, record: Any) -> ArchivedCell:
        if type(record) is not list or tuple(map(type, record)) != _RECORD:
            raise self._damaged("it holds an invalid record")
        added_id, row_key, column_name, ref_key, created_at, digest, body, new_digest = record
        if (len(row_key), len(digest), len(new_digest)) != (16, 32, 32):
            raise self._damaged("it holds an invalid record")
        if hashlib.sha256(body).digest() != digest:
            raise self._damaged(
                f"the original of added_id {added_id} (row_key {row_key.hex()}, {column_name}, {ref_key}) does not "
                "match its SHA-256"
            )
        return ArchivedCell(added_id, row_key, column_name, ref_key, created_at, body, new_digest)


def read_archive(file: ArchiveFile | Path) -> ArchiveReader:
    """Return a reader for the cells of a file."""
    return ArchiveReader(file.path if isinstance(file, ArchiveFile) else file)


def _open_regular(path: Path) -> BinaryIO:
    """Open a regular file; anything else is refused, since reading a named pipe would block until it has a writer."""
    stream = open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))  # noqa: SIM115
    if stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
        return stream
    stream.close()
    raise InvalidInput(f"{path}: it has the name of an archive file but is not a regular file; move it away")


def _parse_header(path: Path, content: bytes) -> dict[str, Any]:
    try:
        header = msgpack.unpackb(content)
    except (ValueError, msgpack.UnpackException):
        header = None
    if type(header) is not dict or type(header.get("format")) is not int:
        raise CorruptArchive(f"{path}: frame 0, at byte 0: it has no header; is this an archive file?", path=path)
    if header["format"] != FORMAT:
        raise InvalidInput(
            f"{path}: it has archive format {header['format']}, but this version reads format {FORMAT}; read it with "
            "the version that wrote it"
        )
    if any(type(header.get(key)) is not kind for key, kind in _HEADER.items()):
        raise CorruptArchive(
            f"{path}: frame 0, at byte 0: its header lacks fields; is this an archive file?", path=path
        )
    return header
