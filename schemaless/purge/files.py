"""Searches a server's files for byte strings, as they are on the disk."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Final, NamedTuple

from schemaless.errors import InvalidInput
from schemaless.purge.sql import SELECT_DOUBLEWRITE_FOLDER, SELECT_FILES, SELECT_FOLDERS, SHOW_ROCKSDB_FOLDERS
from schemaless.wire.connection import Connection
from schemaless.wire.pool import NodePool

MIN_NEEDLE: Final = 4
"""Minimum length of a byte string to search for; shorter ones occur by chance."""

CHUNK_BYTES: Final = 8 << 20
_KINDS: Final = (
    (r"#ib_.*\.dblwr|.*\.dblwr", "doublewrite file"),
    (r"#ib_redo\d+(_tmp)?|ib_logfile\d+", "redo log"),
    (r"undo_?\d+|.*\.ibu", "undo tablespace"),
    (r"ibdata\d+", "system tablespace"),
    (r"ibtmp\d+|temp_\d+\.ibt|#sql.*|ML.*", "temporary file"),
    (r"\d{6,}\.sst", "data file"),
    (r"\d{6,}\.log", "write-ahead log"),
    (r".*relay.*\.\d{6}", "relay log"),
    (r".*\.\d{6}", "binary log"),
    (r".*\.(ibd|MYD|MAD)", "data file"),
    (r".*\.(log|err)", "log"),
)


class FileMatch(NamedTuple):
    """A file that contains a byte string.

    Attributes:
        path: the file.
        kind: "data file", "system tablespace", "undo tablespace", "redo log", "write-ahead log" (of MyRocks),
            "doublewrite file", "binary log", "relay log", "temporary file", "log" or "other file".
        needle: the byte string.
        occurrences: number of occurrences.
        offset: position of the first one.
    """

    path: Path
    kind: str
    needle: bytes
    occurrences: int
    offset: int


def search_files(
    folders: Iterable[Path], needles: Collection[bytes], *, chunk_bytes: int = CHUNK_BYTES
) -> list[FileMatch]:
    """Search all files in some folders and their subfolders for byte strings.

    Files are read while the server writes to them, so call this function when nothing is writing rows with these bytes.
    Text in compressed bodies cannot be found.

    Args:
        folders: result of ``folders_of``.
        needles: the byte strings.
        chunk_bytes: how much of a file is in memory at a time.

    Raises:
        InvalidInput: a byte string is shorter than ``MIN_NEEDLE``.
        OSError: a file cannot be read. Files that vanish during the search are skipped.
    """
    short = [needle for needle in needles if len(needle) < MIN_NEEDLE]
    if short:
        raise InvalidInput(f"cannot search files for {short[0]!r}: a byte string needs at least {MIN_NEEDLE} bytes")
    paths = {path.resolve() for folder in folders for path in folder.rglob("*") if path.is_file()}
    return [match for path in sorted(paths) for match in _search(path, needles, chunk_bytes)]


def kind_of(path: Path) -> str:
    """Return the kind of a server's file, from its name."""
    return next((kind for pattern, kind in _KINDS if re.fullmatch(pattern, path.name)), "other file")


def _search(path: Path, needles: Collection[bytes], chunk_bytes: int) -> Iterable[FileMatch]:
    found: dict[bytes, tuple[int, int]] = {}
    overlap = max(map(len, needles), default=1) - 1
    try:
        with path.open("rb") as file:
            # Not mapped into memory: SIGBUS would kill this process if the server truncated the file.
            position, tail = 0, b""
            while chunk := file.read(chunk_bytes):
                data = tail + chunk
                start = position - len(tail)
                for needle in needles:
                    # Matches within the tail alone were counted with the chunk before.
                    at = data.find(needle, max(0, len(tail) - len(needle) + 1))
                    while at >= 0:
                        count, first = found.get(needle, (0, start + at))
                        found[needle] = count + 1, first
                        at = data.find(needle, at + 1)
                position += len(chunk)
                tail = data[-overlap:] if overlap else b""
    except FileNotFoundError:
        pass
    return [FileMatch(path, kind_of(path), needle, *found[needle]) for needle in found]


def folders_of(pool: NodePool) -> list[Path] | None:
    """Return the folders that a server writes to, or None if this process cannot search them.

    The server has to be on this machine: connected through its socket, with a readable data folder.

    Raises:
        ServerError: the server is unreachable or rejects a statement.
    """
    if pool.node.socket is None:
        return None

    def folders(connection: Connection) -> list[Path]:
        named = [*connection.rows(SELECT_FOLDERS)[0]]
        if connection.is_mariadb:
            named += [value for _, value in connection.rows(SHOW_ROCKSDB_FOLDERS)]
        else:
            named += connection.rows(SELECT_DOUBLEWRITE_FOLDER)[0]
        data = Path(str(named[0]))
        files = [Path(str(name)).parent for name in connection.rows(SELECT_FILES)[0] if name and "/" in str(name)]
        every = {data / str(name) for name in named if name} | {data / folder for folder in files}
        # A folder below another one would be searched twice.
        whole = {folder.resolve() for folder in every} - {Path("/"), Path(tempfile.gettempdir()).resolve()}
        return sorted(folder for folder in whole if not whole & set(folder.parents))

    try:
        found = pool.run(folders)
        return found if all(any(folder.iterdir()) for folder in found[:1]) else None
    except OSError:
        return None
