"""restore: each cell gets its first bytes back, whatever happened in between, and nothing else changes."""

from __future__ import annotations

import json
import shutil
import uuid

import pytest

from schemaless import CorruptArchive, InvalidInput, JobConflict, connect
from schemaless.codec.registry import codec_named
from schemaless.jobs.ledger import Ledger
from schemaless.jobs.throttle import Thresholds
from schemaless.migrate import restore as restore_job
from schemaless.migrate.archive import ArchivedCell, ArchiveWriter
from schemaless.migrate.archive_files import archive_files
from schemaless.migrate.restore import restore
from schemaless.mysql.binary_log import binary_log
from schemaless.mysql.sql.bodies import replace_bodies
from tests.migrate.originals import TEXTS, everything, load, migrate

pytestmark = pytest.mark.mysql


@pytest.fixture
def before(fresh_store, new_row):
    """A datastore of legacy cells; gives all of it."""
    load(fresh_store, new_row)
    return everything(fresh_store)


def set_body(shards, store, added_id, shard, body):
    sql = f"UPDATE `{store.shards.database(shard)}`.cell SET body=x'{body.hex()}' WHERE added_id={added_id}"
    shards.execute(shard, sql.encode())


def test_restore_gives_back_every_first_byte(fresh_store, before, migrate_store, tmp_path):
    """Bodies, keys, ids and times are as before the migration; a second restore finds nothing to do."""
    migrate(migrate_store, tmp_path)
    migrated = everything(fresh_store)
    dry = restore(migrate_store, [tmp_path], execute=False)
    unchanged = everything(fresh_store) == migrated
    seen = []
    report = restore(migrate_store, [tmp_path], on_cells=seen.append)

    assert migrated != before
    assert unchanged
    assert everything(fresh_store) == before
    assert (report.archived, report.restored, report.already, report.left) == (len(TEXTS), len(TEXTS), 0, {})
    assert (dry.restored, dry.bytes_before, dry.bytes_after) == (
        report.restored,
        report.bytes_before,
        report.bytes_after,
    )
    assert report.bytes_before == sum(len(body) for _, body, _ in migrated.values())
    assert report.bytes_after == sum(len(body) for _, body, _ in before.values())
    assert (sum(seen), report.shards, report.files, report.torn) == (len(TEXTS), 4, 4, {})

    again = restore(migrate_store, [tmp_path])
    assert (again.restored, again.already, again.left) == (0, len(TEXTS), {})
    assert everything(fresh_store) == before


def test_restore_of_some_shards_leaves_the_others(fresh_store, before, migrate_store, tmp_path):
    """--shards: the rest stays as the migration left it."""
    migrate(migrate_store, tmp_path)
    migrated = everything(fresh_store)
    report = restore(migrate_store, [tmp_path], [1, 3])
    after = everything(fresh_store)

    assert report.shards == 2
    assert after == {place: (before if place[0] in (1, 3) else migrated)[place] for place in before}


def test_restore_of_bodies_in_yet_another_codec_goes_by_their_meaning(fresh_store, before, migrate_store, tmp_path):
    """A later migration that kept no archive is no hindrance: the documents are the same."""
    migrate(migrate_store, tmp_path / "a")
    migrate(migrate_store, tmp_path / "not kept", codec_named("msgpack+zstd"), job_id=2)
    report = restore(migrate_store, [tmp_path / "a"])

    assert (report.restored, report.left) == (len(TEXTS), {})
    assert everything(fresh_store) == before


def test_restore_undoes_the_jobs_of_several_archives_newest_first(fresh_store, before, migrate_store, tmp_path):
    """A cell ends with its oldest original; one job alone goes back one step."""
    migrate(migrate_store, tmp_path / "a")
    between = everything(fresh_store)
    migrate(migrate_store, tmp_path / "b", codec_named("json+zlib"), job_id=2)

    restore(migrate_store, [tmp_path], job_id=2)
    assert everything(fresh_store) == between
    migrate(migrate_store, tmp_path / "b", codec_named("json+zlib"), job_id=2, epoch=2)
    restore(migrate_store, [tmp_path / "a", tmp_path / "b", tmp_path])
    assert everything(fresh_store) == before


def test_restore_after_originals_were_archived_twice(fresh_store, before, migrate_store, tmp_path):
    """Runners that were killed between archive and UPDATE leave originals there that were never replaced."""
    migrate(migrate_store, tmp_path, epoch=1, update=False)
    first = restore(migrate_store, [tmp_path])
    migrate(migrate_store, tmp_path, epoch=2)
    report = restore(migrate_store, [tmp_path])

    assert (first.restored, first.already) == (0, len(TEXTS))
    assert (report.archived, report.restored, report.left) == (len(TEXTS), len(TEXTS), {})
    assert everything(fresh_store) == before


def test_the_original_that_was_archived_last_counts(fresh_store, before, migrate_store, by_hand, tmp_path):
    """A body that was changed between two passes of a job comes back as it was changed."""
    (shard, added_id), _ = next(iter(before.items()))
    migrate(migrate_store, tmp_path, epoch=1)
    set_body(by_hand(fresh_store), fresh_store, added_id, shard, b'{"changed": "%b"}' % (b"by hand " * 30))
    migrate(migrate_store, tmp_path, epoch=2)
    report = restore(migrate_store, [tmp_path])
    after = everything(fresh_store)

    assert report.left == {}
    assert json.loads(after[shard, added_id][1]) == {"changed": "by hand " * 30}
    assert {place for place in before if after[place] != before[place]} == {(shard, added_id)}


def test_restore_leaves_what_is_no_longer_the_same_and_names_it(fresh_store, before, migrate_store, by_hand, tmp_path):
    """Another document, a damaged body, an erased cell, another cell: all as they are, the rest restored."""
    migrate(migrate_store, tmp_path)
    places = [place for place in before if place[0] == 2][:4]
    ids = [added_id for _, added_id in places]
    shards = by_hand(fresh_store)
    set_body(shards, fresh_store, ids[0], 2, b'{"other": 1}')
    set_body(shards, fresh_store, ids[1], 2, b"\xc1\x11damaged body")
    database = fresh_store.shards.database(2)
    shards.execute(2, f"DELETE FROM `{database}`.cell WHERE added_id={ids[2]}".encode())
    shards.execute(2, f"UPDATE `{database}`.cell SET ref_key=ref_key+1000 WHERE added_id={ids[3]}".encode())
    damaged = everything(fresh_store)
    report = restore(migrate_store, [tmp_path])
    after = everything(fresh_store)

    assert report.left == {"Changed": 2, "Erased": 1, "OtherCell": 1}
    assert [(left.shard, left.added_id, left.reason) for left in report.failures] == [
        (2, ids[2], "Erased"),
        (2, ids[3], "OtherCell"),
        (2, ids[0], "Changed"),
        (2, ids[1], "Changed"),
    ]
    assert uuid.UUID(bytes=report.failures[2].row_key) == before[places[0]][0].row_key
    assert {place for place in after if after[place] == damaged[place]} >= set(places) - {places[2]}
    assert all(after[place] == before[place] for place in before if place not in places)


def test_restore_does_not_overwrite_a_body_changed_under_it(
    fresh_store, before, migrate_store, by_hand, tmp_path, monkeypatch
):
    """Between the look and the UPDATE: the guard is the digest of what was looked at."""
    migrate(migrate_store, tmp_path)
    changed = []

    def replace(database, changes):
        changes = list(changes)
        if not changed:
            changed.append((changes[0][0], int(database[-4:])))
            set_body(by_hand(fresh_store), fresh_store, *changed[0], b'{"changed": true}')
        return replace_bodies(database, changes)

    monkeypatch.setattr(restore_job, "replace_bodies", replace)
    report = restore(migrate_store, [tmp_path])
    added_id, shard = changed[0]

    assert (report.restored, report.left) == (len(TEXTS) - 1, {"Changed": 1})
    assert everything(fresh_store)[shard, added_id][1] == b'{"changed": true}'


def test_restore_that_was_stopped_goes_on(fresh_store, before, migrate_store, tmp_path, monkeypatch):
    """Stopped after any chunk, it is run again; no state is kept but the bytes."""
    monkeypatch.setattr(restore_job, "_CHUNK_CELLS", 7)
    migrate(migrate_store, tmp_path)
    for stop_after in (1, 5, 9):
        chunks = []

        def stop(more, chunks=chunks, stop_after=stop_after):
            chunks.append(more)
            if len(chunks) == stop_after:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            restore(migrate_store, [tmp_path], on_cells=stop)
    report = restore(migrate_store, [tmp_path])

    assert 0 < report.restored < len(TEXTS)
    assert everything(fresh_store) == before


def test_a_damaged_archive_changes_nothing_of_its_shard(fresh_store, before, migrate_store, tmp_path):
    """All of a shard's files are read before its first cell is changed; earlier shards are done, a copy mends it."""
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
    assert {place for place in before if after[place] != before[place]} == {place for place in before if place[0] >= 2}
    assert all(after[place] == migrated[place] for place in before if place[0] >= 2)

    restore(migrate_store, [tmp_path / "copy"])
    assert everything(fresh_store) == before


def test_a_torn_end_is_told_and_no_hindrance(fresh_store, before, migrate_store, tmp_path):
    """A runner that was killed while it wrote: what it had written whole is restored."""
    migrate(migrate_store, tmp_path)
    file = archive_files(tmp_path, shards=[1])[0]
    file.path.write_bytes(file.path.read_bytes()[:-3])
    report = restore(migrate_store, [tmp_path])

    assert list(report.torn) == [file.path]
    assert report.torn[file.path] > 0
    assert everything(fresh_store) == before


def test_restore_of_what_is_not_this_datastores_is_refused(fresh_store, before, migrate_store, tmp_path):
    """Another datastore's, another count of shards, or an empty folder."""
    key = {"shard": 1, "job_id": 1, "epoch": 1}
    cell = ArchivedCell(1, bytes(16), "A", 1, "2026-01-01 00:00:00.000000+00:00", b"1", bytes(32))
    for folder, datastore, shard_count in (("a", "somebody_elses", 4), ("b", fresh_store.name, 8)):
        with ArchiveWriter(tmp_path / folder, datastore=datastore, shard_count=shard_count, **key) as writer:
            writer.append([cell])

    with pytest.raises(InvalidInput, match=r"no originals of datastore .* in .*/a; name the folder"):
        restore(migrate_store, [tmp_path / "a"])
    with pytest.raises(InvalidInput, match="with 8 shards, this one has 4"):
        restore(migrate_store, [tmp_path / "b"])
    with pytest.raises(InvalidInput, match="no folder"):
        restore(migrate_store, [tmp_path / "c"])


def test_restore_beside_a_job_that_is_at_work_is_refused(fresh_store, before, migrate_store, tmp_path):
    """The job would replace again what is put back; once it has ended, or for other shards, it runs."""
    migrate(migrate_store, tmp_path)
    migrated = everything(fresh_store)
    ledger = Ledger(migrate_store)
    clusters = {migrate_store.topology.cluster_of(shard).name for shard in (0, 1)}
    job = ledger.create("migrate", {}, {0: 1, 1: 1}, clusters, {})

    with pytest.raises(JobConflict, match=f"migrate abort --job {job.job_id}"):
        restore(migrate_store, [tmp_path])
    assert everything(fresh_store) == migrated
    assert restore(migrate_store, [tmp_path], [2, 3]).left == {}
    ledger.change_state(job.job_id, ["running"], "aborted")
    restore(migrate_store, [tmp_path])
    assert everything(fresh_store) == before


def test_statements_stay_under_the_packet(fresh_store, new_row, migrate_store, tmp_path, monkeypatch):
    """A chunk is cut into statements that the server takes; one original that it would not take is left and named."""
    too_long = json.dumps([str(uuid.UUID(int=number * 7919**8)) for number in range(400)]).encode()
    load(fresh_store, new_row, [*TEXTS, too_long])
    before = everything(fresh_store)
    migrate(migrate_store, tmp_path)
    (place,) = [place for place in before if before[place][1] == too_long]
    packet = migrate_store.shards.run(place[0], lambda connection: connection.max_allowed_packet)
    monkeypatch.setattr(restore_job, "_PACKET_MARGIN_BYTES", packet - 10_000)
    sent = []
    original = restore_job._Shard._send
    monkeypatch.setattr(restore_job._Shard, "_send", lambda work, sql: (sent.append(len(sql)), original(work, sql))[1])
    report = restore(migrate_store, [tmp_path])
    after = everything(fresh_store)

    assert (report.restored, report.left) == (len(TEXTS), {"BodyTooLarge": 1})
    assert "raise the server's max_allowed_packet" in report.failures[0].message
    assert len(sent) > 4
    assert max(sent) <= 10_000
    assert [found for found in before if after[found] != before[found]] == [place]


def test_restore_waits_while_a_threshold_says_so(fresh_store, before, migrate_store, tmp_path):
    """A flag file holds it up, with the reason told; once it is gone, the restore goes on to its end."""
    migrate(migrate_store, tmp_path)
    migrated = everything(fresh_store)
    flag = tmp_path / "wait"
    flag.touch()
    reasons = []

    def told(cluster: str, reason: str) -> None:
        reasons.append((cluster, reason))
        assert everything(fresh_store) == migrated
        flag.unlink()

    thresholds = Thresholds(flag_file=str(flag), max_mb_per_s=1000)
    report = restore(migrate_store, [tmp_path], thresholds=thresholds, on_wait=told)

    assert report.restored == len(TEXTS)
    assert [(cluster, str(flag) in reason) for cluster, reason in reasons] == [("cluster-1", True)]
    assert everything(fresh_store) == before


def test_restore_keeps_old_bodies_out_of_the_binary_log(before, migrate_store, migrate_url, tmp_path, monkeypatch):
    """What it sends goes through sessions that are set as a migration's are; not so where full images are asked for."""
    migrate(migrate_store, tmp_path)
    seen: list[str] = []
    original = restore_job._Shard._send

    def send(work, sql):
        original(work, sql)
        ((image,),) = work._store.shards.rows(work._shard, b"SELECT @@session.binlog_row_image")
        seen.append(image)

    monkeypatch.setattr(restore_job._Shard, "_send", send)
    with connect(migrate_url) as store:
        may = store.shards.run(0, binary_log).row_image
    with connect(migrate_url) as store:
        restore(store, [tmp_path], [0, 1], full_row_images=True)
    full = list(seen)
    with connect(migrate_url) as store:
        restore(store, [tmp_path], [2, 3])

    assert set(full) == {"FULL"}
    assert set(seen[len(full) :]) == {may}
