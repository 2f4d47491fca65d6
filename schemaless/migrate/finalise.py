"""The end of a migration: all of it proven once more, and then said which originals are needed no longer.

Deletes nothing itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from schemaless.datastore import Datastore
from schemaless.errors import InvalidInput, JobConflict
from schemaless.events import Listener, nobody
from schemaless.jobs.job import Failure, Job, ShardState, go_on_command
from schemaless.jobs.job_store import FAILURES_KEPT, JobStore
from schemaless.jobs.workers import Workers
from schemaless.migrate.archive_files import ArchiveFile
from schemaless.migrate.originals import Missing, Originals, missing_of, missing_text
from schemaless.migrate.spec import MigrateSpec
from schemaless.migrate.verify import ERASED, LAG_TIMEOUT_S, Depth, Proof, verify


@dataclass(slots=True)
class FinaliseOutcome:
    """What a job's end found, and whether the job is finalised by it.

    Attributes:
        job: as it is now.
        verified: what was looked at.
        refused: why the job is not finalised; empty where it is.
        missing: originals that the job has archived, and that are not there.
        files: files of the archive that may be deleted; none where it was refused.
    """

    job: Job
    verified: Proof
    refused: list[str] = field(default_factory=list)
    missing: list[Missing] = field(default_factory=list)
    files: list[ArchiveFile] = field(default_factory=list)

    @property
    def freed_bytes(self) -> int:
        """What deleting those files gives back."""
        return sum(file.size_bytes for file in self.files)


def archive_of(store: Datastore, job: Job, folders: Iterable[Path] = ()) -> Originals | None:
    """Return a job's originals; None for a job without an archive, or one that was finalised and its archive deleted.

    A job that replaced nothing may have made no folder: that is none, too.

    Args:
        folders: where its archive is, or the parts of it; where the job wrote it unless given.

    Raises:
        InvalidInput: a folder is not there: it may be on another machine.
        CorruptArchive: a file's header is damaged.
    """
    own = MigrateSpec.of(job).archive
    named = list(folders)
    if own is None and not named:
        return None
    if own is not None and not named:
        if not Path(own).is_dir():
            states = JobStore(store).shards(job.job_id, counters=False)
            if job.state == "finalised" or not any(state.cells for state in states):
                return None
            raise InvalidInput(
                f"job {job.job_id} keeps its originals in {own}, which is not here; name the folder by --archive, "
                "every part of it where its runners were on several machines"
            )
        named = [Path(own)]
    return Originals.of(store, named, job_id=job.job_id)


def named_failures(job_store: JobStore, job_id: int, states: Iterable[ShardState]) -> list[Failure]:
    """Return every cell that a job has left and named."""
    failures: list[Failure] = []
    for state in states:
        if state.left_cells:
            failures += job_store.failures(job_id, FAILURES_KEPT, [state.shard])
    return failures


def finalise(
    store: Datastore,
    job: Job,
    folders: Iterable[Path] = (),
    *,
    accept_left: bool = False,
    replicas: bool = True,
    lag_timeout_s: float = LAG_TIMEOUT_S,
    hands: Workers | None = None,
    listener: Listener = nobody,
) -> FinaliseOutcome:
    """Verify all that a job was about, and call it finalised where nothing speaks against that.

    Against it speak: a fault of ``verify``; a body that the job should have replaced, unless it has named it and
    ``accept_left`` says so; fewer originals than it has archived.

    Args:
        job: a migration that is done.
        folders: as in ``archive_of``.
        accept_left: it is well that cells are left which the job has named, and that archived ones were erased since.
        replicas: as in ``verify``.
        lag_timeout_s: as in ``verify``.
        hands: who verifies; this process itself unless given.
        listener: as in ``verify``.

    Raises:
        JobConflict: the job is not done.
        InvalidInput: it is no migration, or its archive is not here.
        CorruptArchive: a file of the archive is damaged.
        ServerError: a server cannot be reached, or refuses.
    """
    job.check_kind("migrate")
    if job.state not in ("done", "finalised"):
        next_step = (
            f"let it come to its end first ('{go_on_command(job.kind, job.job_id)}')"
            if job.unfinished
            else "run another to its end, and finalise that"
        )
        raise JobConflict(f"job {job.job_id} is {job.state}; {next_step}", job.job_id)
    job_store = JobStore(store)
    states = job_store.shards(job.job_id)
    originals = archive_of(store, job, folders)
    shards = [state.shard for state in states]
    depth = Depth(
        MigrateSpec.of(job),
        named_failures(job_store, job.job_id, states),
        archive=originals,
        replicas=replicas,
        lag_timeout_s=lag_timeout_s,
    )
    proof = verify(store, shards, depth, hands=hands, listener=listener)
    # After it was finalised, its files may be deleted.
    compared = originals is not None and job.state != "finalised"
    missing = missing_of(job.job_id, states, proof.records) if compared else []
    result = FinaliseOutcome(job, proof, _objections(proof, missing, accept_left), missing)
    if result.refused:
        return result
    left = "".join(
        f", {count:,} {what}"
        for count, what in ((proof.left.total(), "left as they are"), (proof.faults[ERASED], "erased since"))
        if count
    )
    job_store.change_state(job.job_id, ("done",), "finalised", f"{proof.cells:,} cells verified{left}")
    result.job = job_store.job(job.job_id)
    result.files = [] if originals is None else originals.files
    return result


def _objections(proof: Proof, missing: Iterable[Missing], accept_left: bool) -> list[str]:
    accepted = {ERASED} if accept_left else set()
    objections = [f"{count:,} {kind}" for kind, count in proof.faults.most_common() if kind not in accepted]
    if proof.left and not accept_left:
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in proof.left.most_common())
        objections.append(
            f"{proof.left.total():,} cells that the job left and named ({reasons}); --accept-left is for these"
        )
    lacking = missing_text(missing)
    if lacking is not None:
        objections.append(lacking)
    return objections
