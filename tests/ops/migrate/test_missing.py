"""Originals that a job recorded but that are missing from the archive are reported, whatever the reason."""

from __future__ import annotations

import os

import pytest

from schemaless import InvalidInput
from schemaless.base.events import Total, only
from schemaless.ops.jobs.job_store import JobStore
from schemaless.ops.migrate import run as migrate
from schemaless.ops.migrate.archive import MARK_BYTES
from schemaless.ops.migrate.archive_files import archive_files
from schemaless.ops.migrate.finalise import finalise
from schemaless.ops.migrate.originals import Missing, missing_of, missing_text
from schemaless.ops.migrate.spec import MigrateSpec
from schemaless.ops.migrate.tally import ShardTally
from schemaless.store.internals import internals_of
from tests.faults.kinds import ONE_KIND
from tests.ops.migrate.originals import TEXTS, everything, load, restore

pytestmark = [pytest.mark.mysql, ONE_KIND]


def second_frame(data: bytes) -> int:
    """Offset of the first frame after the header."""
    return MARK_BYTES + int.from_bytes(data[20:24], "little")


@pytest.mark.guarantee("archive-missing")
@pytest.mark.parametrize(
    ("end", "found"),
    [(lambda data: len(data) - 60, 0), (second_frame, 0), (lambda data: MARK_BYTES + 1, None), (lambda data: 0, None)],
    ids=["cut", "header alone", "cut header", "empty"],
)
def test_restore_from_a_file_that_is_cut_names_what_is_missing(fresh_store, migrate_store, job, tmp_path, end, found):
    """Other originals are restored, and the missing ones are reported."""
    file = archive_files(tmp_path, shards=[1])[0]
    cells = sum(shard == 1 for shard, _ in everything(fresh_store))
    data = file.path.read_bytes()
    file.path.write_bytes(data[: end(data)])
    totals: list[Total] = []
    dry = restore(migrate_store, [tmp_path], execute=False, listener=only(Total, totals.append))
    report = restore(migrate_store, [tmp_path])

    assert report.missing == dry.missing == [Missing(job.job_id, 1, file.path.name, found, cells)]
    assert report.total.restored == len(TEXTS) - cells
    assert totals == [Total(len(TEXTS))]
    assert (file.path in report.torn) == (end is not second_frame)


@pytest.mark.guarantee("archive-missing")
def test_restore_without_one_file_names_it(migrate_store, job, tmp_path):
    """Only the requested shards are compared; if another folder has a copy of the file, nothing is missing."""
    file = archive_files(tmp_path, shards=[2])[0]
    copy = tmp_path / "copy"
    copy.mkdir()
    whole = file.path.read_bytes()
    (copy / file.path.name).write_bytes(whole[:-60])
    file.path.unlink()
    cut = restore(migrate_store, [tmp_path], execute=False).missing
    (copy / file.path.name).unlink()
    gone = restore(migrate_store, [tmp_path], execute=False).missing
    others = restore(migrate_store, [tmp_path], [0, 1, 3], execute=False).missing
    (copy / file.path.name).write_bytes(whole)

    assert [(each.file, each.found) for each in (*cut, *gone)] == [(file.path.name, 0), (file.path.name, None)]
    assert others == []
    assert restore(migrate_store, [tmp_path], execute=False).missing == []


@pytest.mark.guarantee("archive-missing")
def test_duplicate_originals_do_not_hide_a_missing_file(fresh_store, new_row, migrate_store, tmp_path):
    """Each file is compared with the number that its runner recorded, not with a total."""
    load(fresh_store, new_row, TEXTS[:8])
    shard = next(shard for shard in range(fresh_store.shard_count) if internals_of(fresh_store).id_span(shard))
    first = migrate.run(migrate_store, MigrateSpec(archive=str(tmp_path)), shards=[shard])
    job_store = JobStore(migrate_store)
    (state,) = job_store.shards(first.job_id)
    (file,) = archive_files(tmp_path)
    tally = ShardTally.of(state)

    assert tally.archived == {file.path.name: state.cells}
    assert missing_of(first.job_id, [state], {file.path.name: state.cells}) == []
    other = f"shard-{shard:04}.2.0001020304050607.zst"
    tally.archived[other] = 3
    tally.store(state)
    assert missing_of(first.job_id, [state], {file.path.name: 2 * state.cells}) == [
        Missing(first.job_id, shard, other, None, 3)
    ]


def test_missing_originals_are_named_by_shard(migrate_store, job):
    """The message of a file, and the sentence about all of them."""
    state = JobStore(migrate_store).shards(job.job_id)[2]
    (name,) = ShardTally.of(state).archived
    missing = missing_of(job.job_id, [state], {name: 1})

    assert str(missing[0]) == f"job 1, shard 2: {name} holds 1 originals instead of at least {state.cells}"
    assert missing_text(missing) == (
        f"originals are missing from the archive for shards 2 (1 of {state.cells}); "
        "name every folder of the archive with --archive"
    )
    assert missing_text([]) is None


@pytest.mark.guarantee("finalise")
def test_finalise_of_a_file_without_its_header_is_refused(migrate_store, job, tmp_path):
    """The missing originals are reported; when the file is back, the job is finalised."""
    file = archive_files(tmp_path, shards=[3])[0]
    data = file.path.read_bytes()
    file.path.write_bytes(data[:MARK_BYTES])
    refused = finalise(migrate_store, job)
    file.path.write_bytes(data)

    assert refused.job.state == "done"
    assert [(each.shard, each.file, each.found) for each in refused.verified.missing] == [(3, file.path.name, None)]
    assert refused.verified.torn == {file.path: MARK_BYTES}
    assert finalise(migrate_store, job).refused == []


def test_restore_where_nothing_has_a_header_is_refused_with_the_file(migrate_store, job, tmp_path):
    """There is nothing to restore, and the error gives the reason."""
    for file in archive_files(tmp_path):
        file.path.write_bytes(b"")

    with pytest.raises(InvalidInput, match=r"no originals of datastore .*; .*/shard-0000\..* ends within its header"):
        restore(migrate_store, [tmp_path])


def test_restore_of_a_job_that_the_catalog_does_not_know_says_so(migrate_store, job, tmp_path, by_hand):
    """For a job that is not in the catalog, missing originals cannot be detected."""
    pool = by_hand(migrate_store).pool_for(internals_of(migrate_store).topology.cluster_of(0).primary)
    for table in ("job_event", "job_failure", "job_cluster", "job_shard", "job"):
        sql = f"DELETE FROM `{migrate_store.name}`.{table}"
        pool.run(lambda connection, sql=sql: connection.execute(sql.encode()), writes=True)
    totals: list[Total] = []
    restore(migrate_store, [tmp_path], execute=False, listener=only(Total, totals.append))
    report = restore(migrate_store, [tmp_path])

    assert (report.total.restored, report.unknown_jobs, report.missing, totals) == (len(TEXTS), {job.job_id}, [], [])


def test_a_named_pipe_is_refused_without_blocking(migrate_store, job, tmp_path):
    """Reading a named pipe without a writer would block forever."""
    pipe = archive_files(tmp_path, shards=[0])[0].path.with_name("shard-0000.9.0001020304050607.zst")
    os.mkfifo(pipe)

    for call in (lambda: restore(migrate_store, [tmp_path]), lambda: finalise(migrate_store, job)):
        with pytest.raises(InvalidInput, match="is not a regular file; move it away"):
            call()
