"""Migration with an archive: every replaced body can be restored, also those of public test suites."""

from __future__ import annotations

import json
import re
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from schemaless import ArchiveFailed, CorruptBody
from schemaless.codec.envelope import is_enveloped
from schemaless.codec.recode import recode
from schemaless.ops.jobs.job_store import JobStore
from schemaless.ops.migrate import archive
from schemaless.ops.migrate import run as migrate
from schemaless.ops.migrate.archive import digest_of
from schemaless.ops.migrate.archive_files import archive_files, read_archive
from schemaless.ops.migrate.finalise import finalise
from schemaless.ops.migrate.reencode import BlockBounds
from schemaless.ops.migrate.spec import MigrateSpec
from tests.faults.kinds import ONE_KIND
from tests.ops.migrate.originals import everything, load, public_texts, restore

pytestmark = [pytest.mark.mysql]


@pytest.fixture
def before(fresh_store, new_row):
    """Store legacy cells; return every stored cell."""
    load(fresh_store, new_row)
    return everything(fresh_store)


def originals(folder: Path) -> dict[tuple[int, int], archive.ArchivedCell]:
    return {(file.shard, cell.added_id): cell for file in archive_files(folder) for cell in read_archive(file)}


@pytest.mark.guarantee("archive-complete")
def test_each_original_is_in_the_archive_with_what_took_its_place(fresh_store, before, migrate_store, tmp_path):
    """The archive has the old key, added_id, created_at and body, the new body's digest, and an end mark."""
    report = migrate.run(migrate_store, MigrateSpec(archive=str(tmp_path)))
    after = everything(fresh_store)
    kept = originals(tmp_path)
    readers = [read_archive(file) for file in archive_files(tmp_path, fresh_store.name, report.job_id)]

    assert kept.keys() == before.keys()
    for place, cell in kept.items():
        key, body, created_at = before[place]
        assert (cell.key, cell.body) == (key, body)
        assert cell.created_at == created_at.strftime("%Y-%m-%d %H:%M:%S.%f+00:00")
        assert cell.new_digest == digest_of(after[place][1])
    assert [(len(list(reader)) > 0, reader.closed) for reader in readers] == [(True, True)] * 4
    restore(migrate_store, [tmp_path])
    assert everything(fresh_store) == before


def test_a_second_run_adds_nothing_to_the_archive(fresh_store, before, migrate_store, tmp_path):
    """A shard in which nothing is replaced has no archive file."""
    migrate.run(migrate_store, MigrateSpec(archive=str(tmp_path)))
    files = archive_files(tmp_path)
    migrate.run(migrate_store, MigrateSpec(archive=str(tmp_path)))

    assert archive_files(tmp_path) == files


@pytest.mark.guarantee("archive-complete")
def test_nothing_is_updated_that_is_not_archived(fresh_store, before, migrate_store, tmp_path, monkeypatch):
    """Whichever append fails, the replaced bodies are archived, and the next run completes the job."""
    original = archive.ArchiveWriter.append
    calls = []

    def fails(writer, cells):
        calls.append(len(cells))
        if len(calls) % 2 == 0:
            raise ArchiveFailed("no space; go on")
        return original(writer, cells)

    bounds = BlockBounds(first_rows=8)
    monkeypatch.setattr(archive.ArchiveWriter, "append", fails)
    for _ in range(3):
        with pytest.raises(ArchiveFailed):
            migrate.run(migrate_store, MigrateSpec(archive=str(tmp_path)), bounds=bounds)
        after = everything(fresh_store)
        assert {place for place in before if after[place] != before[place]} == originals(tmp_path).keys()
    monkeypatch.undo()
    migrate.run(migrate_store, MigrateSpec(archive=str(tmp_path)), bounds=bounds)

    assert all(is_enveloped(body) for _, body, _ in everything(fresh_store).values())
    restore(migrate_store, [tmp_path])
    assert everything(fresh_store) == before


LIMITED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]), resource.RLIM_INFINITY))
from schemaless.cli.main import run
sys.exit(run(sys.argv[2:]))
"""


@pytest.mark.long
@pytest.mark.guarantee("archive-complete")
@ONE_KIND
def test_an_archive_on_a_full_disk_stops_the_job_cleanly(fresh_store, new_row, migrate_url, migrate_store, tmp_path):
    """With a file size limit, the command exits with status 1 and one line; without it, it continues the job."""
    texts = [json.dumps({"n": n, "noise": [hash((n, k)) for k in range(60)]}).encode() for n in range(400)]
    load(fresh_store, new_row, texts)
    before = everything(fresh_store)
    command = ["migrate", "run", "--execute", "--archive", str(tmp_path), "--url", migrate_url]
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, "20000", *command], capture_output=True, text=True, timeout=120, check=False
    )
    after = everything(fresh_store)
    replaced = {place for place in before if after[place] != before[place]}

    assert done.returncode == 1
    assert re.search(
        r"^schemaless: cannot write \S+\.zst: File too large; every updated cell has its original .*; raise the",
        done.stderr,
        re.MULTILINE,
    )
    assert replaced <= originals(tmp_path).keys()
    assert len(replaced) < len(before)

    again = subprocess.run(
        [sys.executable, "-c", LIMITED, str(resource.RLIM_INFINITY), *command],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert again.returncode == 0, again.stderr
    assert all(is_enveloped(body) for _, body, _ in everything(fresh_store).values())
    restore(migrate_store, [tmp_path])
    assert everything(fresh_store) == before


@pytest.mark.guarantee("restore-exact")
@ONE_KIND
@pytest.mark.parametrize("codec", ["msgpack+zlib", "packed+zstd"])
@pytest.mark.long
def test_public_suites_come_through_a_migration_and_back(fresh_store, new_row, migrate_store, tmp_path, codec):
    """Readable bodies keep their documents, others are unchanged and reported, and a restore gives the exact bytes."""
    load(fresh_store, new_row, public_texts())
    before = everything(fresh_store)
    report = migrate.run(migrate_store, MigrateSpec(codec, archive=str(tmp_path)))
    unreadable = set()
    for shard in range(fresh_store.shard_count):
        for cell in fresh_store.scan_shard(shard):
            key, text, created_at = before[shard, cell.added_id]
            try:
                document = json.loads(text.decode())
            except (ValueError, RecursionError):
                unreadable.add((shard, cell.added_id))
                assert (cell.key, cell.body, cell.created_at) == (key, text, created_at)
                with pytest.raises(CorruptBody):
                    cell.decode()
                continue
            # JSON text distinguishes 1 from 1.0 and 0.0 from -0.0, keeps key order, and NaN equals NaN.
            assert json.dumps(cell.decode().body) == json.dumps(document), text[:80]
            assert is_enveloped(cell.body)
            assert (cell.key, cell.created_at) == (key, created_at)

    assert {(failure.shard, failure.added_id) for failure in report.failures} == unreadable
    assert report.total().left.total() == len(unreadable) > 150
    restored = restore(migrate_store, [tmp_path])
    assert (restored.total.restored, restored.total.left) == (len(before) - len(unreadable), {})
    assert everything(fresh_store) == before


KILLED = """
import os, signal, sys

import schemaless
from schemaless.ops.migrate import restore
from schemaless.ops.migrate import run as migrate
from schemaless.ops.migrate import archive
from schemaless.ops.migrate.body_updates import BodyUpdates
from schemaless.ops.migrate.reencode import BlockBounds
from schemaless.ops.migrate.spec import MigrateSpec
from schemaless.topology.shards import Shards

where, url, folder = sys.argv[1:]
calls = 0


def dies(original, first=lambda *arguments: None, after=False):
    def call(*arguments, **options):
        global calls
        calls += 1
        if calls == 3 and not after:
            first(*arguments)
            os.kill(os.getpid(), signal.SIGKILL)
        result = original(*arguments, **options)
        if calls == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    return call


if where == "half a frame":
    archive.os.write = dies(os.write, lambda fd, data, write=os.write: write(fd, data[: len(data) // 2]))
elif where == "before the sync":
    archive.os.fdatasync = dies(os.fdatasync)
elif where == "before the UPDATE":
    archive.os.fdatasync = dies(os.fdatasync, after=True)
elif where == "after the UPDATE":
    run, write = Shards.run, dies(Shards.run, after=True)
    Shards.run = lambda *arguments, **options: (write if options.get("writes") else run)(*arguments, **options)
elif where == "restore":
    BodyUpdates.send = dies(BodyUpdates.send, after=True)
with schemaless.connect(url) as store:
    if where == "restore":
        restore.run(store, restore.RestoreSpec((folder,)), chunk_cells=5)
    else:
        bounds = BlockBounds(first_rows=3, most_rows=3)
        migrate.run(store, MigrateSpec(archive=folder), bounds=bounds)
"""


@pytest.mark.long
@pytest.mark.guarantee("archive-complete")
@ONE_KIND
def test_killed_anywhere_between_archive_and_update_nothing_is_lost(
    fresh_store, before, migrate_url, migrate_store, tmp_path
):
    """Kill -9 at each step of a block and of a restore: replaced bodies are archived, and the next run continues."""

    def killed(where: str) -> None:
        command = [sys.executable, "-c", KILLED, where, migrate_url, str(tmp_path)]
        assert subprocess.run(command, timeout=120, check=False).returncode == -signal.SIGKILL

    replaced: set[tuple[int, int]] = set()
    for where in ("half a frame", "before the sync", "before the UPDATE", "after the UPDATE"):
        killed(where)
        after = everything(fresh_store)
        more = {place for place in before if after[place] != before[place]}
        kept = originals(tmp_path)

        assert replaced < more < before.keys(), where
        assert more <= kept.keys(), where
        assert all(kept[place].body == before[place][1] for place in kept)
        replaced = more
    report = migrate.run(migrate_store, MigrateSpec(archive=str(tmp_path)))
    job_store = JobStore(migrate_store)

    assert {place: recode(body).body for place, (_, body, _) in before.items()} == {
        place: body for place, (_, body, _) in everything(fresh_store).items()
    }
    assert finalise(migrate_store, job_store.job(report.job_id)).refused == []
    killed("restore")
    partly = everything(fresh_store)
    done = restore(migrate_store, [tmp_path])
    assert 0 < sum(partly[place] == before[place] for place in before) < len(before)
    assert done.total.restored + done.total.already == len(before)
    assert everything(fresh_store) == before
