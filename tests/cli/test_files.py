"""Files that commands write: refused before the work if they cannot be written, and never left incomplete."""

from __future__ import annotations

import errno
import os

import pytest

from schemaless.ops.jobs.job_store import JobStore
from schemaless.ui.terminal.files import unwritable_folder, write_whole
from tests.faults.kinds import ONE_KIND
from tests.ops.migrate.originals import load

NOBODY = "mysql://app@/none?unix_socket=/nobody/listens.sock"


@pytest.mark.parametrize(
    "command",
    [
        ("dump", "--output"),
        ("codec", "export", "--output"),
        ("cell", "tail", "--offsets"),
        ("migrate", "report", "--html"),
        ("migrate", "report", "--csv"),
        ("capacity", "report", "--html"),
        ("capacity", "report", "--png"),
        ("capacity", "report", "--csv"),
    ],
    ids=" ".join,
)
def test_an_unwritable_file_is_reported_before_any_io(invoke, tmp_path, command):
    """Exit 2 without a server: a folder that is not there, and one in which nothing can be made."""
    (tmp_path / "file").touch()
    missing = invoke(*command, tmp_path / "nope" / "x", url=NOBODY)
    below_a_file = invoke(*command, tmp_path / "file" / "x", url=NOBODY)
    pseudo = invoke(*command, "/proc/x", url=NOBODY)

    assert (missing.code, below_a_file.code, pseudo.code) == (2, 2, 2)
    assert f"there is no folder {tmp_path}/nope" in " ".join(missing.err.split())
    assert "there is no folder" in " ".join(below_a_file.err.split())
    assert "cannot write /proc/x: cannot create files in /proc" in " ".join(pseudo.err.split())


def test_an_uncreatable_folder_is_reported_before_the_benchmark(invoke, tmp_path):
    """A file in its way."""
    (tmp_path / "file").touch()
    result = invoke("bench", "codecs", "--corpus", "small", "--out", tmp_path / "file" / "there" / "x")

    assert result.code == 2
    assert f"{tmp_path}/file is not a folder" in " ".join(result.err.split())


def test_a_folder_that_can_be_created_is_accepted(tmp_path):
    """Folders that are not there yet, however deep; a link is followed."""
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere" / "far")

    assert unwritable_folder(tmp_path / "a" / "b" / "c") is None
    assert unwritable_folder(tmp_path / "link") is None
    assert unwritable_folder(tmp_path) is None


def test_a_failed_atomic_write_leaves_the_old_file(tmp_path, monkeypatch):
    """A full disk: the old file, and nothing beside it."""

    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    page = tmp_path / "page.html"
    write_whole(page, "before")
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space left") as caught:
            write_whole(page, "after")
        assert caught.value.filename == str(page)
        with pytest.raises(OSError, match="No space left"):
            write_whole(tmp_path / "new.html", b"new")

    assert (page.read_text(), [path.name for path in tmp_path.iterdir()]) == ("before", ["page.html"])
    write_whole(page, "äfter")
    assert page.read_bytes() == "äfter".encode()


@pytest.mark.long
@pytest.mark.mysql
@ONE_KIND
def test_a_report_stopped_while_writing_leaves_the_old_page(
    invoke, migrate_url, fresh_store, new_row, tmp_path, monkeypatch
):
    """The page of yesterday, whole."""
    load(fresh_store, new_row)
    assert invoke("migrate", "run", "--execute", url=migrate_url).code == 0
    page = tmp_path / "report.html"
    page.write_text("yesterday")

    def stopped(fd: int) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", stopped)
        result = invoke("migrate", "report", "--html", page, url=migrate_url)
    assert (result.code, page.read_text()) == (3, "yesterday")
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]
    assert invoke("migrate", "report", "--html", page, url=migrate_url).code == 0
    assert page.read_text().startswith("<!DOCTYPE html>")


@pytest.mark.mysql
@ONE_KIND
def test_an_uncreatable_archive_starts_no_job(invoke, migrate_url, migrate_store, fresh_store, new_row, tmp_path):
    """Such a job would have to be ended before another could begin."""
    load(fresh_store, new_row)
    (tmp_path / "file").touch()
    result = invoke("migrate", "run", "--execute", "--archive", tmp_path / "file" / "x", url=migrate_url)

    assert (result.code, "cannot archive originals in " in result.err) == (2, True)
    assert JobStore(migrate_store).jobs() == []
