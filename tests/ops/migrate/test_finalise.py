"""finalise: an archive may be deleted only after the migration has been verified."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from schemaless import InvalidInput, JobConflict
from schemaless.ops.jobs.job_store import JobStore
from schemaless.ops.migrate import run as migrate
from schemaless.ops.migrate.archive_files import archive_files
from schemaless.ops.migrate.finalise import finalise
from schemaless.ops.migrate.originals import Originals
from schemaless.ops.migrate.spec import MigrateSpec
from schemaless.store.internals import internals_of
from tests.faults.kinds import ONE_KIND
from tests.ops.migrate.originals import TEXTS, everything, load, restore

pytestmark = [pytest.mark.mysql, ONE_KIND]


def test_finalise_says_which_files_may_go_and_deletes_none(migrate_store, job, tmp_path):
    """Finalising twice gives the same result."""
    first = finalise(migrate_store, job)
    files = archive_files(tmp_path)

    assert (first.refused, first.job.state, first.files) == ([], "finalised", files)
    assert first.freed_bytes == sum(file.path.stat().st_size for file in files) > 0
    assert first.job.message == f"{len(TEXTS)} cells verified"
    again = finalise(migrate_store, first.job)
    assert (again.refused, again.files) == ([], files)
    assert [what.partition(":")[0] for _, _, what in JobStore(migrate_store).events(job.job_id)][-1] == "finalised"


def test_finalise_of_a_job_that_replaced_nothing_asks_for_no_archive(migrate_store, job, tmp_path):
    """The last of several runs had nothing to do and created no folder."""
    report = migrate.run(migrate_store, MigrateSpec(archive=str(tmp_path / "never made")))
    last = JobStore(migrate_store).job(report.job_id)
    result = finalise(migrate_store, last)

    assert (result.job.state, result.refused, result.files) == ("finalised", [], [])


@pytest.mark.guarantee("migrate-late-writes", "finalise")
def test_finalise_refuses_while_one_legacy_body_is_left(migrate_store, fresh_store, new_row, job):
    """An application wrote a legacy body after the checkpoint; the next run re-encodes it."""
    load(fresh_store, new_row, [b'{"late": true}'])
    late = finalise(migrate_store, job)
    report = migrate.run(migrate_store, MigrateSpec())
    again = finalise(migrate_store, job)

    assert (late.refused, late.files, late.job.state) == (["1 NotReencoded"], [], "done")
    assert report.total().cells == 1
    assert (again.refused, again.job.state) == ([], "finalised")


def test_finalise_after_a_restore_is_refused(migrate_store, job, tmp_path):
    """After a restore, the bodies are not in the target codec."""
    restore(migrate_store, [tmp_path], [2])

    assert finalise(migrate_store, job).refused[0].endswith("NotReencoded")


def test_finalise_requires_accept_left_for_cells_left(migrate_store, fresh_store, new_row, tmp_path):
    """Unreadable cells that the job recorded can be accepted, others cannot."""
    load(fresh_store, new_row, [*TEXTS, b"{", b"\xff\xfe{\x00}\x00"])
    report = migrate.run(migrate_store, MigrateSpec(archive=str(tmp_path)))
    job = JobStore(migrate_store).job(report.job_id)
    refused = finalise(migrate_store, job)
    accepted = finalise(migrate_store, job, accept_left=True)

    assert refused.refused == [
        "2 cells that the job left unchanged (2 UnreadableLegacy); accept them with --accept-left"
    ]
    assert (accepted.refused, accepted.job.state) == ([], "finalised")
    assert accepted.verified.left == {"UnreadableLegacy": 2}
    assert accepted.job.message.endswith("2 left as they are")


def test_finalise_of_more_failures_than_are_named(migrate_store, fresh_store, new_row, tmp_path, monkeypatch):
    """Beyond the limit of recorded failures, cells that the job would also have left are accepted."""
    for module in ("jobs.runner", "migrate.finalise", "migrate.verify"):
        monkeypatch.setattr(f"schemaless.ops.{module}.FAILURES_KEPT", 3)
    rows = [next(row for row in iter(new_row, None) if fresh_store.shard_of(row) == n % 4) for n in range(40)]
    load(fresh_store, iter(rows).__next__, [b"{"] * 40)
    report = migrate.run(migrate_store, MigrateSpec(archive=str(tmp_path)))
    job = JobStore(migrate_store).job(report.job_id)

    assert len(report.failures) == 12
    assert finalise(migrate_store, job, accept_left=True).refused == []


def test_finalise_requires_accept_left_for_erased_cells(migrate_store, fresh_store, job, by_hand):
    """The archive has the last copy of an erased cell."""
    (shard, added_id), *_ = everything(fresh_store)
    sql = f"DELETE FROM `{internals_of(fresh_store).shards.database(shard)}`.cell WHERE added_id={added_id}"
    by_hand(fresh_store).execute(shard, sql.encode())

    assert finalise(migrate_store, job).refused == ["1 Erased"]
    accepted = finalise(migrate_store, job, accept_left=True)
    assert (accepted.refused, accepted.job.message) == ([], f"{len(TEXTS) - 1} cells verified, 1 erased since")


def test_finalise_refuses_a_job_that_is_not_done(migrate_store):
    """A job that is running, paused or cancelled."""
    job_store = JobStore(migrate_store)
    clusters = {cluster.name for cluster in internals_of(migrate_store).topology.clusters}
    job = job_store.create("migrate", MigrateSpec().as_json(), {0: 1}, clusters, {})
    with pytest.raises(JobConflict, match=r"cannot finalise job .* is running; complete it first with"):
        finalise(migrate_store, job)

    job_store.change_state(job.job_id, ["running"], "cancelled")
    with pytest.raises(JobConflict, match="is cancelled; complete another migration"):
        finalise(migrate_store, job_store.job(job.job_id))
    rebuild = job_store.create("rebuild", {}, {1: 1}, clusters, {})
    with pytest.raises(InvalidInput, match="is a rebuild, not a migration"):
        finalise(migrate_store, rebuild)


@pytest.mark.guarantee("finalise")
def test_finalise_misses_files_of_the_archive(migrate_store, job, tmp_path):
    """If runners ran on several machines, each has a part of the archive, and all parts have to be named."""
    file = archive_files(tmp_path, shards=[2])[0]
    elsewhere = Path(f"{tmp_path} of another machine")
    elsewhere.mkdir()
    file.path.rename(elsewhere / file.path.name)

    (refused,) = finalise(migrate_store, job).refused
    assert re.fullmatch(
        r"originals are missing from the archive for shards 2 \(0 of \d+\); name every folder .* with --archive",
        refused,
    )
    assert finalise(migrate_store, job, [tmp_path, elsewhere]).refused == []
    tmp_path.rename(f"{tmp_path} gone")
    with pytest.raises(
        InvalidInput, match=r"which does not exist on this machine; name the archive folder with --archive"
    ):
        finalise(migrate_store, job)
    assert finalise(migrate_store, job, [Path(f"{tmp_path} gone"), elsewhere]).refused == []


def test_one_job_of_several_is_finalised_by_its_own_files(migrate_store, job, tmp_path):
    """The originals of a later job are not listed."""
    later = migrate.run(migrate_store, MigrateSpec(to="json+zlib", archive=str(tmp_path)))
    job_store = JobStore(migrate_store)

    report = finalise(migrate_store, job_store.job(later.job_id))
    assert {file.job_id for file in report.files} == {later.job_id}
    assert {file.job_id for file in Originals.of(migrate_store, [tmp_path]).files} == {job.job_id, later.job_id}
