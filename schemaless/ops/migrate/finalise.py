"""Finalise a migration: verify all of it once more, then list the archive files that may be deleted.

Nothing here deletes a file.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from schemaless.base.events import Listener, ignore_events
from schemaless.base.numbers import counted
from schemaless.errors import InvalidInput, JobConflict
from schemaless.ops.jobs.job import Job, continue_command
from schemaless.ops.jobs.job_store import FAILURES_KEPT, JobStore
from schemaless.ops.jobs.workers import Workers
from schemaless.ops.migrate.archive_files import ArchiveFile
from schemaless.ops.migrate.originals import Originals, missing_of, missing_text
from schemaless.ops.migrate.spec import MigrateSpec
from schemaless.ops.migrate.verify import ERASED, VerifyOptions, VerifyReport, verify
from schemaless.store.datastore import Datastore


@dataclass(slots=True)
class FinaliseOutcome:
    """Result of finalising a job.

    Attributes:
        job: the job in its new state.
        verified: report of the verification.
        refused: reasons why the job was not finalised; empty if it was.
        files: archive files that may be deleted; empty if the job was not finalised.
    """

    job: Job
    verified: VerifyReport
    refused: list[str] = field(default_factory=list)
    files: list[ArchiveFile] = field(default_factory=list)

    @property
    def freed_bytes(self) -> int:
        """Total size of the files that may be deleted."""
        return sum(file.size_bytes for file in self.files)


def archive_of(store: Datastore, job: Job | None, folders: Iterable[Path] = ()) -> Originals | None:
    """Return the originals of a job, or, without a job, those of all jobs in the folders.

    Args:
        store: the datastore.
        job: a migration, or None.
        folders: folders of the archive or of parts of it; by default the folder that the job wrote to.

    Returns:
        The originals. None if the job has no archive, replaced nothing and so created no folder, or was finalised and
        its archive deleted.

    Raises:
        InvalidInput: a folder does not exist on this machine.
        CorruptArchive: the header of a file is damaged.
    """
    named = list(folders)
    if not named:
        own = None if job is None else MigrateSpec.of(job).archive
        if job is None or own is None:
            return None
        if not Path(own).is_dir():
            states = JobStore(store).shards(job.job_id, counters=False)
            if job.state == "finalised" or not any(state.cells for state in states):
                return None
            raise InvalidInput(
                f"job {job.job_id} wrote its originals to {own}, which does not exist on this machine; name the "
                "archive folder with --archive, once for each machine that the migration ran on"
            )
        named = [Path(own)]
    return Originals.of(store, named, job_id=None if job is None else job.job_id)


def verify_migration(
    store: Datastore,
    job: Job | None,
    options: VerifyOptions,
    shards: Collection[int] | None = None,
    *,
    workers: Workers | None = None,
    listener: Listener = ignore_events,
) -> VerifyReport:
    """Verify the result of a migration, and compare its archive with the number of originals that it recorded.

    Cells that an unfinished or cancelled job has not re-encoded are no faults.

    Args:
        store: the datastore.
        job: a migration; None to verify without one.
        options: what to check; ``wanted`` and ``named`` are those of the job.
        shards: shards of the job, all of them by default.
        workers: as in ``verify``.
        listener: as in ``verify``.

    Raises:
        SchemalessError: as for ``verify``.
    """
    if job is None:
        return verify(store, shards, options, workers=workers, listener=listener)
    job_store = JobStore(store)
    states = [state for state in job_store.shards(job.job_id) if shards is None or state.shard in shards]
    left = [state.shard for state in states if state.left_cells]
    options = replace(
        options,
        wanted=MigrateSpec.of(job) if job.state in ("done", "finalised") else None,
        named=[failure for shard in left for failure in job_store.failures(job.job_id, FAILURES_KEPT, [shard])],
    )
    report = verify(store, [state.shard for state in states], options, workers=workers, listener=listener)
    # The files of a finalised job may have been deleted.
    if options.archive is not None and job.state != "finalised":
        report.missing = missing_of(job.job_id, states, report.records)
    return report


def finalise(
    store: Datastore,
    job: Job,
    folders: Iterable[Path] = (),
    options: VerifyOptions = VerifyOptions(),  # noqa: B008 - immutable
    *,
    accept_left: bool = False,
    workers: Workers | None = None,
    listener: Listener = ignore_events,
) -> FinaliseOutcome:
    """Verify the result of a migration and mark the job as finalised.

    Finalising is refused if ``verify_migration`` finds a fault, if a body is left that the job should have replaced
    (unless the job recorded it and ``accept_left`` is set), or if the archive holds fewer originals than the job
    recorded.

    Args:
        store: the datastore.
        job: a migration that is done.
        folders: as in ``archive_of``.
        options: what to compare cells with, besides the archive.
        accept_left: accept cells that the job left unchanged and recorded, and archived cells that have been erased
            since.
        workers: as in ``verify``.
        listener: as in ``verify``.

    Returns:
        The verification report, and the reasons for a refusal or the files that may be deleted.

    Raises:
        JobConflict: the job is not done.
        InvalidInput: the job is not a migration, or its archive is not on this machine.
        CorruptArchive: a file of the archive is damaged.
        ServerError: a server cannot be reached, or rejects a statement.
    """
    job.check_kind("migrate")
    if job.state not in ("done", "finalised"):
        next_step = (
            f"complete it first with '{continue_command(job.kind, job.job_id)}'"
            if job.unfinished
            else "complete another migration and finalise that one"
        )
        raise JobConflict(f"cannot finalise job {job.job_id}: it is {job.state}; {next_step}", job.job_id)
    originals = archive_of(store, job, folders)
    options = replace(options, archive=originals)
    report = verify_migration(store, job, options, workers=workers, listener=listener)
    result = FinaliseOutcome(job, report, _objections(report, accept_left))
    if result.refused:
        return result
    left = "".join(
        f", {count:,} {what}"
        for count, what in ((report.left.total(), "left as they are"), (report.faults[ERASED], "erased since"))
        if count
    )
    verified = f"{counted(report.cells, 'cell')} verified{left}"
    job_store = JobStore(store)
    job_store.change_state(job.job_id, ("done",), "finalised", verified)
    result.job = job_store.job(job.job_id)
    result.files = [] if originals is None else originals.files
    return result


def _objections(report: VerifyReport, accept_left: bool) -> list[str]:
    accepted = {ERASED} if accept_left else set()
    objections = [f"{count:,} {kind}" for kind, count in report.faults.most_common() if kind not in accepted]
    if report.left and not accept_left:
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in report.left.most_common())
        objections.append(
            f"{counted(report.left.total(), 'cell')} that the job left unchanged "
            f"({reasons}); accept them with --accept-left"
        )
    gaps = missing_text(report.missing)
    if gaps is not None:
        objections.append(gaps)
    return objections
