"""restore: each cell gets its exact original bytes back, and nothing else changes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import threading
import uuid

import pytest

from schemaless import CorruptArchive, InvalidInput, JobConflict, connect
from schemaless.base.events import Advanced, only
from schemaless.codec.registry import codec_named
from schemaless.ops.jobs.job_store import JobStore
from schemaless.ops.jobs.status import status_of
from schemaless.ops.jobs.throttle import Thresholds
from schemaless.ops.migrate import body_updates
from schemaless.ops.migrate import run as migration
from schemaless.ops.migrate.archive import ArchivedCell, ArchiveWriter
from schemaless.ops.migrate.archive_files import archive_files
from schemaless.ops.migrate.binlog_cost import binary_log
from schemaless.ops.migrate.restore import RESTORE, RestoreSpec
from schemaless.ops.migrate.restore import run as run_restore
from schemaless.ops.migrate.spec import MigrateSpec
from schemaless.ops.migrate.sql import update_bodies
from schemaless.store.internals import internals_of
from tests.faults.kinds import ONE_KIND
from tests.ops.migrate.originals import TEXTS, everything, load, migrate, restore
from tests.packets import small_packets

pytestmark = pytest.mark.mysql


@pytest.fixture
def before(fresh_store, new_row):
    """Store legacy cells; return every stored cell."""
    load(fresh_store, new_row)
    return everything(fresh_store)


def set_body(shards, store, added_id, shard, body):
    sql = (
        f"UPDATE `{internals_of(store).shards.database(shard)}`.cell SET body=x'{body.hex()}' WHERE added_id={added_id}"
    )
    shards.execute(shard, sql.encode())


@pytest.mark.guarantee("restore-exact")
def test_restore_gives_back_every_first_byte(fresh_store, before, migrate_store, tmp_path):
    """Bodies, keys, added_ids and times are those before the migration; a second restore finds nothing to do."""
    migrate(migrate_store, tmp_path)
    migrated = everything(fresh_store)
    seen: list[Advanced] = []
    dry = restore(migrate_store, [tmp_path], execute=False, listener=only(Advanced, seen.append))
    unchanged = everything(fresh_store) == migrated
    report = restore(migrate_store, [tmp_path])

    assert migrated != before
    assert unchanged
    assert everything(fresh_store) == before
    assert (report.total.archived, report.total.restored, report.total.already, report.total.left) == (
        len(TEXTS),
        len(TEXTS),
        0,
        {},
    )
    assert (dry.total.restored, dry.total.bytes_before, dry.total.bytes_after) == (
        report.total.restored,
        report.total.bytes_before,
        report.total.bytes_after,
    )
    assert report.total.bytes_before == sum(len(body) for _, body, _ in migrated.values())
    assert report.total.bytes_after == sum(len(body) for _, body, _ in before.values())
    assert (sum(more.units for more in seen), report.shards, report.files, report.torn) == (len(TEXTS), 4, 4, {})

    again = restore(migrate_store, [tmp_path])
    assert (again.total.restored, again.total.already, again.total.left) == (0, len(TEXTS), {})
    assert everything(fresh_store) == before


def test_restore_of_some_shards_leaves_the_others(fresh_store, before, migrate_store, tmp_path):
    """Other shards stay migrated."""
    migrate(migrate_store, tmp_path)
    migrated = everything(fresh_store)
    report = restore(migrate_store, [tmp_path], [1, 3])
    after = everything(fresh_store)

    assert report.shards == 2
    assert after == {place: (before if place[0] in (1, 3) else migrated)[place] for place in before}


def test_restore_of_bodies_in_yet_another_codec_goes_by_their_meaning(fresh_store, before, migrate_store, tmp_path):
    """After a later migration without an archive, restore still works: the documents are the same."""
    migrate(migrate_store, tmp_path / "a")
    migrate(migrate_store, tmp_path / "not kept", codec_named("msgpack+zstd"), job_id=2)
    report = restore(migrate_store, [tmp_path / "a"])

    assert (report.total.restored, report.total.left) == (len(TEXTS), {})
    assert everything(fresh_store) == before


def test_restore_undoes_the_jobs_of_several_archives_newest_first(fresh_store, before, migrate_store, tmp_path):
    """With several jobs, a cell ends with its oldest original; a single job is undone by itself."""
    migrate(migrate_store, tmp_path / "a")
    between = everything(fresh_store)
    migrate(migrate_store, tmp_path / "b", codec_named("json+zlib"), job_id=2)

    restore(migrate_store, [tmp_path], job=2)
    assert everything(fresh_store) == between
    migrate(migrate_store, tmp_path / "b", codec_named("json+zlib"), job_id=2, epoch=2)
    restore(migrate_store, [tmp_path / "a", tmp_path / "b", tmp_path])
    assert everything(fresh_store) == before


def test_restore_after_originals_were_archived_twice(fresh_store, before, migrate_store, tmp_path):
    """A runner that dies between archive and UPDATE leaves originals in the archive that were never replaced."""
    migrate(migrate_store, tmp_path, epoch=1, update=False)
    first = restore(migrate_store, [tmp_path])
    migrate(migrate_store, tmp_path, epoch=2)
    report = restore(migrate_store, [tmp_path])

    assert (first.total.restored, first.total.already) == (0, len(TEXTS))
    assert (report.total.archived, report.total.restored, report.total.left) == (len(TEXTS), len(TEXTS), {})
    assert everything(fresh_store) == before


def test_the_original_that_was_archived_last_counts(fresh_store, before, migrate_store, by_hand, tmp_path):
    """A body that changed between two passes of a job is restored to its last original."""
    (shard, added_id), _ = next(iter(before.items()))
    migrate(migrate_store, tmp_path, epoch=1)
    set_body(by_hand(fresh_store), fresh_store, added_id, shard, b'{"changed": "%b"}' % (b"by hand " * 30))
    migrate(migrate_store, tmp_path, epoch=2)
    report = restore(migrate_store, [tmp_path])
    after = everything(fresh_store)

    assert report.total.left == {}
    assert json.loads(after[shard, added_id][1]) == {"changed": "by hand " * 30}
    assert {place for place in before if after[place] != before[place]} == {(shard, added_id)}


@pytest.mark.guarantee("restore-exact")
def test_restore_leaves_what_is_no_longer_the_same_and_names_it(fresh_store, before, migrate_store, by_hand, tmp_path):
    """Cells with another document, damaged body or other key, and erased ones, are reported; the rest is restored."""
    migrate(migrate_store, tmp_path)
    places = [place for place in before if place[0] == 2][:4]
    ids = [added_id for _, added_id in places]
    shards = by_hand(fresh_store)
    set_body(shards, fresh_store, ids[0], 2, b'{"other": 1}')
    set_body(shards, fresh_store, ids[1], 2, b"\xc1\x11damaged body")
    database = internals_of(fresh_store).shards.database(2)
    shards.execute(2, f"DELETE FROM `{database}`.cell WHERE added_id={ids[2]}".encode())
    shards.execute(2, f"UPDATE `{database}`.cell SET ref_key=ref_key+1000 WHERE added_id={ids[3]}".encode())
    damaged = everything(fresh_store)
    report = restore(migrate_store, [tmp_path])
    after = everything(fresh_store)

    assert report.total.left == {"Changed": 2, "Erased": 1, "OtherCell": 1}
    assert [(left.shard, left.added_id, left.reason) for left in report.failures] == [
        (2, ids[0], "Changed"),
        (2, ids[1], "Changed"),
        (2, ids[2], "Erased"),
        (2, ids[3], "OtherCell"),
    ]
    assert uuid.UUID(bytes=report.failures[0].row_key) == before[places[0]][0].row_key
    assert {place for place in after if after[place] == damaged[place]} >= set(places) - {places[2]}
    assert all(after[place] == before[place] for place in before if place not in places)


def test_restore_does_not_overwrite_a_body_changed_under_it(
    fresh_store, before, migrate_store, by_hand, tmp_path, monkeypatch
):
    """A body that changes between the read and the UPDATE is protected by the digest of the body that was read."""
    migrate(migrate_store, tmp_path)
    changed = []

    def replace(database, changes):
        changes = list(changes)
        if not changed:
            changed.append((changes[0][0], int(database[-4:])))
            set_body(by_hand(fresh_store), fresh_store, *changed[0], b'{"changed": true}')
        return update_bodies(database, changes)

    monkeypatch.setattr(body_updates, "update_bodies", replace)
    report = restore(migrate_store, [tmp_path])
    added_id, shard = changed[0]

    assert (report.total.restored, report.total.left) == (len(TEXTS) - 1, {"Changed": 1})
    assert everything(fresh_store)[shard, added_id][1] == b'{"changed": true}'


def test_interrupted_restore_continues(fresh_store, before, migrate_store, tmp_path, monkeypatch):
    """Interrupted at any statement, the same call continues the job, and the counts include all runs."""
    migrate(migrate_store, tmp_path)
    original = body_updates.update_bodies
    for _ in range(3):
        statements = []

        def stop(database, changes, statements=statements):
            statements.append(database)
            if len(statements) == 2:
                raise KeyboardInterrupt
            return original(database, changes)

        monkeypatch.setattr(body_updates, "update_bodies", stop)
        with pytest.raises(KeyboardInterrupt):
            run_restore(migrate_store, RestoreSpec((str(tmp_path),)), chunk_cells=7)
    partly = everything(fresh_store)
    monkeypatch.setattr(body_updates, "update_bodies", original)
    report = run_restore(migrate_store, RestoreSpec((str(tmp_path),)), chunk_cells=7)
    jobs = JobStore(migrate_store).jobs()

    assert 0 < sum(partly[place] == before[place] for place in before) < len(TEXTS)
    assert (report.total.archived, report.total.restored, report.total.already) == (len(TEXTS), len(TEXTS), 0)
    assert [(job.job_id, job.kind, job.state) for job in jobs] == [(report.job_id, "restore", "done")]
    assert everything(fresh_store) == before


def test_a_damaged_archive_changes_nothing_of_its_shard(fresh_store, before, migrate_store, tmp_path):
    """A damaged file is found before its shard is changed; earlier shards are done; a good copy completes the job."""
    migrate(migrate_store, tmp_path / "a")
    migrated = everything(fresh_store)
    shutil.copytree(tmp_path / "a", tmp_path / "copy")
    file = archive_files(tmp_path / "a", shards=[2])[0]
    content = bytearray(file.path.read_bytes())
    content[-60] ^= 1
    file.path.write_bytes(content)

    with pytest.raises(CorruptArchive, match=file.path.name):
        restore(migrate_store, [tmp_path / "a"])
    after = everything(fresh_store)
    assert all(after[place] == before[place] for place in before if place[0] == 0)
    assert all(after[place] == migrated[place] for place in before if place[0] == 2)

    report = restore(migrate_store, [tmp_path / "copy"])
    assert everything(fresh_store) == before
    # The first job had no runner left.
    assert [job.state for job in JobStore(migrate_store).jobs()] == ["cancelled", "done"]
    assert report.total.archived == len(TEXTS)


def test_torn_end_is_reported_and_the_rest_restored(fresh_store, before, migrate_store, tmp_path):
    """A runner was killed while it wrote; its complete frames are restored."""
    migrate(migrate_store, tmp_path)
    file = archive_files(tmp_path, shards=[1])[0]
    file.path.write_bytes(file.path.read_bytes()[:-3])
    report = restore(migrate_store, [tmp_path])

    assert list(report.torn) == [file.path]
    assert report.torn[file.path] > 0
    assert everything(fresh_store) == before


def test_restore_of_another_datastores_archive_is_refused(fresh_store, before, migrate_store, tmp_path):
    """An archive of another datastore or shard count, and a missing folder."""
    key = {"shard": 1, "job_id": 1, "epoch": 1}
    cell = ArchivedCell(1, bytes(16), "A", 1, "2026-01-01 00:00:00.000000+00:00", b"1", bytes(32))
    for folder, datastore, shard_count in (("a", "somebody_elses", 4), ("b", fresh_store.name, 8)):
        with ArchiveWriter.create(tmp_path / folder, datastore=datastore, shard_count=shard_count, **key) as writer:
            writer.append([cell])

    with pytest.raises(InvalidInput, match=r"no originals of datastore .* in .*/a; name the archive folder"):
        restore(migrate_store, [tmp_path / "a"])
    with pytest.raises(InvalidInput, match="with 8 shards, but this one has 4"):
        restore(migrate_store, [tmp_path / "b"])
    with pytest.raises(InvalidInput, match=r"folder .* does not exist"):
        restore(migrate_store, [tmp_path / "c"])


def test_restore_beside_a_job_that_is_at_work_is_refused(fresh_store, before, migrate_store, tmp_path):
    """A running migration would undo the restore; after its end, or on other shards, the restore runs."""
    migrate(migrate_store, tmp_path)
    migrated = everything(fresh_store)
    job_store = JobStore(migrate_store)
    clusters = {internals_of(migrate_store).topology.cluster_of(shard).name for shard in (0, 1)}
    job = job_store.create("migrate", {}, {0: 1, 1: 1}, clusters, {})

    with pytest.raises(JobConflict, match=f"job cancel {job.job_id}"):
        restore(migrate_store, [tmp_path])
    assert everything(fresh_store) == migrated
    assert restore(migrate_store, [tmp_path], [2, 3]).total.left == {}
    job_store.change_state(job.job_id, ["running"], "cancelled")
    restore(migrate_store, [tmp_path])
    assert everything(fresh_store) == before


def test_statements_stay_under_the_packet(fresh_store, new_row, migrate_store, tmp_path, monkeypatch):
    """A chunk is split to fit the packet limit; an original that fits in no statement is reported."""
    too_long = json.dumps([str(uuid.UUID(int=number * 7919**8)) for number in range(400)]).encode()
    load(fresh_store, new_row, [*TEXTS, too_long])
    before = everything(fresh_store)
    migrate(migrate_store, tmp_path)
    (place,) = [place for place in before if before[place][1] == too_long]
    sent = []
    watch(monkeypatch, lambda updates, sql: sent.append(len(sql)))
    with small_packets(migrate_store, 11_024) as store:
        report = restore(store, [tmp_path])
    after = everything(fresh_store)

    assert (report.total.restored, report.total.left) == (len(TEXTS), {"BodyTooLarge": 1})
    assert "raise the server's max_allowed_packet" in report.failures[0].message
    assert len(sent) > 4
    assert max(sent) <= 10_000
    assert [found for found in before if after[found] != before[found]] == [place]


def watch(monkeypatch, on_sent):
    """Call a function with the ``BodyUpdates`` and the statement after each UPDATE of a restore."""
    send = body_updates.BodyUpdates.send

    def watched(updates, sql):
        sent = send(updates, sql)
        on_sent(updates, sql)
        return sent

    monkeypatch.setattr(body_updates.BodyUpdates, "send", watched)


def test_restore_waits_while_a_threshold_says_so(fresh_store, before, migrate_store, tmp_path, eventually):
    """A flag file pauses the restore with a reason; when it is removed, the restore completes."""
    migrate(migrate_store, tmp_path / "a")
    migrated = everything(fresh_store)
    flag = tmp_path / "wait"
    flag.touch()
    thresholds = Thresholds(flag_file=str(flag), max_mb_per_s=1000)
    job_store = JobStore(migrate_store)
    reports = []
    run = threading.Thread(
        target=lambda: reports.append(restore(migrate_store, [tmp_path / "a"], thresholds=thresholds))
    )
    run.start()
    waits = []
    eventually(lambda: (job_store.jobs() and waits.extend(status_of(job_store, 1).waits)) or waits, "it waits")
    ((cluster, reason),) = waits
    waiting = everything(fresh_store)
    flag.unlink()
    run.join(120)

    assert (cluster, str(flag) in reason) == ("cluster-1", True)
    assert waiting == migrated
    assert reports[0].total.restored == len(TEXTS)
    assert everything(fresh_store) == before


def test_restore_keeps_old_bodies_out_of_the_binary_log(before, migrate_store, migrate_url, tmp_path, monkeypatch):
    """The sessions have the binary log settings of a migration, unless full row images are requested."""
    migrate(migrate_store, tmp_path)
    seen: list[str] = []

    def look(updates, sql):
        ((image,),) = updates.shards.rows(updates.shard, b"SELECT @@session.binlog_row_image")
        seen.append(image)

    watch(monkeypatch, look)
    with connect(migrate_url) as store:
        may = internals_of(store).shards.run(0, binary_log).row_image
    restore(migrate_store, [tmp_path], [0, 1], full_row_images=True)
    full = list(seen)
    restore(migrate_store, [tmp_path], [2, 3])

    assert set(full) == {"FULL"}
    assert set(seen[len(full) :]) == {may}


# Restore as a job


@pytest.mark.long
@ONE_KIND
def test_restore_by_two_workers_gives_back_every_first_byte(fresh_store, before, migrate_store, tmp_path):
    """With processes, bytes, counts and missing originals are the same as with one thread."""
    migrated = JobStore(migrate_store).job(migration.run(migrate_store, MigrateSpec(archive=str(tmp_path))).job_id)
    file = archive_files(tmp_path, shards=[1])[0]
    dry = restore(migrate_store, [tmp_path], execute=False)
    whole = file.path.read_bytes()
    file.path.write_bytes(whole[:-3])
    report = restore(migrate_store, [tmp_path], count=2)
    events = JobStore(migrate_store).events(migrated.job_id)

    assert everything(fresh_store) == before
    assert (report.total.restored, report.total.already, report.total.left) == (len(TEXTS), 0, {})
    assert report.total.bytes_after == dry.total.bytes_after
    assert (list(report.torn), report.missing) == ([file.path], [])
    assert events[-1][2] == f"restored {len(TEXTS)} cells in 4 shards"


def held(migrate_store, tmp_path, eventually, count=1):
    """Start a restore in a thread, paused before its first cell; return its job, thread and outcomes."""
    job_store = JobStore(migrate_store)
    spec = RestoreSpec((str(tmp_path),))
    job, _ = RESTORE.begin_or_join(migrate_store, spec)
    job_store.change_state(job.job_id, ("running",), "paused", "by a test")
    outcomes = []

    def work():
        try:
            outcomes.append(restore(migrate_store, [tmp_path], count=count))
        except JobConflict as error:
            outcomes.append(error)

    run = threading.Thread(target=work)
    run.start()
    eventually(lambda: status_of(job_store, job.job_id).runners, "a runner waits")
    return job, run, outcomes


@pytest.mark.long
def test_paused_restore_waits_until_resumed(fresh_store, before, migrate_store, tmp_path, eventually):
    """While paused, nothing is restored, and the status shows the progress."""
    migrate(migrate_store, tmp_path)
    migrated = everything(fresh_store)
    job, run, outcomes = held(migrate_store, tmp_path, eventually)
    job_store = JobStore(migrate_store)
    waiting = status_of(job_store, job.job_id)
    paused = everything(fresh_store)
    job_store.change_state(job.job_id, ("paused",), "running")
    run.join(120)
    through = status_of(job_store, job.job_id)

    assert paused == migrated
    assert (waiting.job.kind, waiting.waits, waiting.done) == ("restore", [("all clusters", "paused by a test")], 0)
    assert everything(fresh_store) == before
    assert (outcomes[0].job_id, outcomes[0].total.restored) == (job.job_id, len(TEXTS))
    assert (through.job.state, through.done, through.fraction) == ("done", 4, 1.0)
    assert sum(state.cells for state in through.shards) == len(TEXTS)


@pytest.mark.long
def test_cancelled_restore_ends_and_another_does_the_rest(fresh_store, before, migrate_store, tmp_path, eventually):
    """The runners stop; a new job does the rest."""
    migrate(migrate_store, tmp_path)
    job, run, outcomes = held(migrate_store, tmp_path, eventually)
    JobStore(migrate_store).change_state(job.job_id, ("running", "paused"), "cancelled", "by a test")
    run.join(120)
    report = restore(migrate_store, [tmp_path])

    assert "was cancelled (by a test)" in str(outcomes[0])
    assert report.job_id == job.job_id + 1
    assert everything(fresh_store) == before


def test_restore_beside_an_active_restore_is_refused(fresh_store, before, migrate_store, tmp_path, eventually):
    """A second restore or a migration of its shards is refused, other shards are not; a paused job is not abandoned."""
    migrate(migrate_store, tmp_path)
    job, run, _ = held(migrate_store, tmp_path, eventually)
    job_store = JobStore(migrate_store)
    goes_on = f"join it with 'schemaless migrate restore --execute --job {job.job_id}', or end it with"
    with pytest.raises(JobConflict, match=goes_on):
        restore(migrate_store, [tmp_path], [1])
    with pytest.raises(JobConflict, match=goes_on):
        migration.run(migrate_store, MigrateSpec(), [1])
    job_store.change_state(job.job_id, ("paused",), "running")
    run.join(120)

    assert job_store.job(job.job_id).state == "done"
    assert everything(fresh_store) == before


@pytest.mark.long
def test_worker_of_a_restore_that_is_killed_is_replaced(fresh_store, before, migrate_store, tmp_path, eventually):
    """After kill -9 of a worker in the middle of a shard, the driver starts others, which take over the shard."""
    migrate(migrate_store, tmp_path)
    job_store = JobStore(migrate_store)
    database = internals_of(fresh_store).shards.database(0).encode()
    with (
        internals_of(migrate_store)
        .shards.pool_for(internals_of(migrate_store).shards.node_of(0))
        .connection() as blocker
    ):
        # These row locks stop a worker in the middle of its shard.
        blocker.execute(b"START TRANSACTION")
        blocker.execute(b"UPDATE `%b`.cell SET body=body" % database)
        reports = []
        run = threading.Thread(target=lambda: reports.append(restore(migrate_store, [tmp_path], count=2)))
        run.start()
        eventually(lambda: job_store.jobs() and job_store.shards(1)[0].held, "shard 0 is taken")
        taken = job_store.shards(1)[0]
        eventually(lambda: job_store.shards(1)[3].state == "done", "others are through")
        os.kill(int(taken.runner.rpartition("/")[2].partition(".")[0]), signal.SIGKILL)
        eventually(lambda: job_store.shards(1)[0].epoch > taken.epoch, "shard 0 is taken over")
        blocker.execute(b"ROLLBACK")
    run.join(120)

    assert everything(fresh_store) == before
    # The server completed the UPDATE of the killed worker.
    assert reports[0].total.restored + reports[0].total.already == len(TEXTS)
    assert job_store.job(1).state == "done"


def test_restore_continued_without_its_files_is_refused(fresh_store, before, migrate_store, tmp_path, eventually):
    """A worker that has no files of a shard must not mark it as done."""
    migrate(migrate_store, tmp_path)
    migrated = everything(fresh_store)
    job, _ = RESTORE.begin_or_join(migrate_store, RestoreSpec((str(tmp_path),)))
    for file in archive_files(tmp_path, shards=[0, 1, 2]):
        file.path.unlink()
    # The worker has begun with the next shard when the error of the first one is looked at.
    with pytest.raises(InvalidInput, match=r"no originals of shard [012] in .* on the machine of this worker"):
        run_restore(migrate_store, RestoreSpec.of(job), job=job)
    after = everything(fresh_store)

    assert JobStore(migrate_store).job(job.job_id).unfinished
    assert all(after[place] == migrated[place] for place in before if place[0] < 3)
