"""Archive files and the disk: syncs, a full disk, missing permissions, interrupts."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from schemaless import ArchiveFailed
from schemaless.ops.migrate import archive
from schemaless.ops.migrate.archive_files import archive_files, read_archive
from tests.ops.migrate.archives import cell, writer


@pytest.mark.guarantee("archive-complete")
def test_an_append_is_on_the_disk_when_it_returns(tmp_path, monkeypatch):
    """The file is synced after each write, and the folders after the file and the folders are created."""
    calls = []

    def spy(name):
        original = getattr(os, name)

        def call(fd, *rest):
            calls.append((name, where(fd)))
            return original(fd, *rest)

        monkeypatch.setattr(archive.os, name, call)

    def where(fd):
        return Path(f"/proc/self/fd/{fd}").readlink()

    for name in ("fsync", "fdatasync", "write"):
        spy(name)
    folder = tmp_path / "archive"
    made = writer(folder)
    made.append([cell(1)])
    made.append([cell(2)])
    made.close()

    assert calls == [
        *(("fsync", each) for each in (tmp_path, folder, folder / "trips", made.path.parent)),
        *[("write", made.path), ("fdatasync", made.path)] * 3,
    ]


def test_an_archive_needs_no_fdatasync(tmp_path, monkeypatch):
    """Systems without fdatasync, such as macOS, sync with fsync."""
    monkeypatch.delattr(archive.os, "fdatasync")
    made = writer(tmp_path / "archive")
    made.append([cell(1)])
    made.close()

    assert made.cells == 1


FULL_DISK = """
import resource, signal, sys
from pathlib import Path
from schemaless.errors import ArchiveFailed
from tests.ops.migrate.archives import cell, writer
import os

resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
made = writer(Path(sys.argv[1]))
done = 0
try:
    while True:
        made.append([cell(done + 1, os.urandom(3000))])
        done += 1
except ArchiveFailed as refusal:
    print(done, refusal)
try:
    made.append([cell(99)])
except ArchiveFailed as refusal:
    print(refusal)
made.close()
"""


def test_a_file_that_may_not_grow_is_cut_back_to_its_last_frame(tmp_path):
    """With a file size limit, the error names the cause and the earlier frames are intact."""
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(tmp_path)], capture_output=True, text=True, check=True, timeout=120
    )
    failed, again = done.stdout.splitlines()
    (file,) = archive_files(tmp_path)
    reader = read_archive(file)

    assert (
        f"6 cannot write {file.path}: File too large; every updated cell has its original in the archive; raise the"
        in failed
    )
    assert "is closed or has failed" in again
    assert [each.added_id for each in reader] == [1, 2, 3, 4, 5, 6]
    assert (reader.torn_bytes, reader.closed) == (0, False)
    assert file.size_bytes < 20_000


def test_full_disk_raises_and_leaves_no_partial_frame(tmp_path, monkeypatch):
    """/dev/full refuses every byte with ENOSPC."""
    real = os.open
    monkeypatch.setattr(
        archive.os,
        "open",
        lambda path, flags, *mode: real("/dev/full" if flags & os.O_EXCL else path, flags & ~os.O_EXCL, *mode),
    )
    made = writer(tmp_path)

    with pytest.raises(
        ArchiveFailed, match=r"No space left on device; every updated cell .*; free disk space there, then"
    ):
        made.append([cell(1)])
    assert archive_files(tmp_path) == []


def test_a_sync_that_fails_ends_the_writer(tmp_path, monkeypatch):
    """After a disk error the frame is discarded and the file truncated."""
    made = writer(tmp_path)
    made.append([cell(1)])

    def fails(fd: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(archive.os, "fdatasync", fails)
        with pytest.raises(ArchiveFailed, match=r"Input/output error; .*; check that disk"):
            made.append([cell(2)])
    with pytest.raises(ArchiveFailed, match="create another one"):
        made.append([cell(3)])

    assert [each.added_id for each in read_archive(made.path)] == [1]


def test_an_interrupt_in_the_middle_of_a_frame_ends_the_writer(tmp_path, monkeypatch):
    """After Ctrl-C between two writes, no frame follows the incomplete one."""
    made = writer(tmp_path)
    made.append([cell(1)])
    real = os.write

    def interrupted(fd: int, data: memoryview) -> int:
        real(fd, data[:50])
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(archive.os, "write", interrupted)
        with pytest.raises(KeyboardInterrupt):
            made.append([cell(2)])
    made.close()
    reader = read_archive(made.path)

    assert ([each.added_id for each in reader], reader.torn_bytes) == ([1], 0)


def test_folder_that_cannot_be_created_raises_at_once(tmp_path):
    """The writer fails before the first cell is read."""
    (tmp_path / "file").write_bytes(b"")

    with pytest.raises(ArchiveFailed, match=r"cannot write .*; every updated cell has its original"):
        writer(tmp_path / "file" / "archive")
