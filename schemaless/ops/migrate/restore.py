"""Restores: jobs that put archived originals back, byte for byte, and so undo a migration.

``restore_shard`` does the work on a shard. The job records the progress and the counters; the stored bytes show which
cells have been restored, so another restore skips them. Originals that a migration recorded but that are missing from
the files are reported.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Final, Unpack

from schemaless.base.events import Advanced, Listener, Total, ignore_events
from schemaless.base.runner_names import is_dead_here
from schemaless.errors import InvalidInput
from schemaless.ops.jobs.job import Failure
from schemaless.ops.jobs.job_store import FAILURES_KEPT, JobStore
from schemaless.ops.jobs.kind import JobKind, JobSpec, RunOptions
from schemaless.ops.jobs.runner import ShardRun
from schemaless.ops.migrate.binlog_cost import log_settings
from schemaless.ops.migrate.originals import Missing, Originals, missing_of
from schemaless.ops.migrate.restore_shard import CHUNK_CELLS, RestoreTally, restore_shard
from schemaless.ops.migrate.spec import MigrateSpec
from schemaless.ops.migrate.tally import ShardTally
from schemaless.planning.sampling.table_sizes import table_weights
from schemaless.store.datastore import Datastore
from schemaless.store.internals import internals_of
from schemaless.wire.connection import Connection


@dataclass(frozen=True, slots=True)
class RestoreSpec(JobSpec):
    """The parameters of a restore, stored with its job.

    If the archives belong to several jobs, the newest job is undone first, so each cell ends up with its oldest
    original.

    Attributes:
        archives: folders that hold archives or parts of them; each worker looks for them on its own machine.
        shards: restore only these shards; None for every shard that has files.
        job: restore only what this migration replaced; None for every job that has files.
        full_row_images: keep the server's setting for row images in the binary log.
    """

    archives: tuple[str, ...]
    shards: tuple[int, ...] | None = None
    job: int | None = None
    full_row_images: bool = False

    def originals(self, store: Datastore, shards: Collection[int] | None) -> Originals:
        """Find the archive files; raises the same errors as ``Originals.of``."""
        return Originals.of(store, map(Path, self.archives), job_id=self.job, shards=shards)


@dataclass(slots=True)
class RestoreOutcome:
    """Result of a restore over all its runs, or of a dry run.

    Attributes:
        job_id: job of the restore; None for a dry run.
        files: number of archive files.
        archive_bytes: total size of the files.
        shards: number of shards.
        total: counters of all shards.
        failures: cells left unchanged, at most 1,000.
        jobs: migrations that the originals belong to.
        torn: size of the incomplete last frame in bytes, by file; such a frame is left by a runner that died, or by an
            incomplete copy of the file.
        missing: originals that these jobs recorded and that are missing from the files.
        unknown_jobs: jobs for which the catalog does not record the number of originals.
        interruptions: number of runners of these jobs that died. Originals that such a runner archived after its last
            checkpoint (about a second's worth) are not counted in the catalog.
    """

    job_id: int | None = None
    files: int = 0
    archive_bytes: int = 0
    shards: int = 0
    total: RestoreTally = field(default_factory=RestoreTally)
    failures: list[Failure] = field(default_factory=list)
    jobs: set[int] = field(default_factory=set)
    torn: dict[Path, int] = field(default_factory=dict)
    missing: list[Missing] = field(default_factory=list)
    unknown_jobs: set[int] = field(default_factory=set)
    interruptions: int = 0


class _Restore:
    """The files of a restore, and the number of originals that the migrations recorded before it started."""

    def __init__(self, store: Datastore, spec: RestoreSpec) -> None:
        """Find the files.

        Raises:
            InvalidInput: a folder is missing, the folders hold no originals of these shards, or the job is not a
                migration.
            CorruptArchive: the header of a file is damaged.
        """
        self._job_store = job_store = JobStore(store)
        jobs = job_store.jobs()
        migrations = [job for job in jobs if job.kind == "migrate"]
        # Read before the files are listed: everything recorded by now must be in them.
        finished = {
            job.job_id: {
                state.shard for state in job_store.shards(job.job_id, counters=False) if state.state != "waiting"
            }
            for job in migrations
            if job.unfinished
        }
        self.originals = originals = spec.originals(store, spec.shards)
        if not originals.files:
            for job in jobs:
                # A job that is not in the catalog may have an archive, so an unknown id is no error here.
                if job.job_id == spec.job:
                    job.check_kind("migrate")
            raise InvalidInput(
                f"no originals of datastore {store.name!r}"
                + (f", job {spec.job}," if spec.job is not None else "")
                + (" for these shards" if spec.shards is not None else "")
                + f" in {', '.join(spec.archives)}; name the archive folder of the migration"
                + "".join(f"; {path} ends within its header" for path in sorted(originals.torn)[:1])
            )
        self._known = {job.job_id for job in migrations}
        self._jobs = {file.job_id for file in originals.files}
        archiving = {job.job_id for job in migrations if MigrateSpec.of(job).archive is not None}
        self._unknown = self._jobs - archiving
        self._recorded = {
            job_id: [
                state
                for state in job_store.shards(job_id)
                if (spec.shards is None or state.shard in spec.shards)
                and (job_id not in finished or state.shard in finished[job_id])
            ]
            for job_id in sorted(self._jobs & archiving)
        }

    @property
    def cells(self) -> int | None:
        """Expected number of archived cells; None if unknown."""
        return None if self._unknown else sum(state.cells for states in self._recorded.values() for state in states)

    def outcome(
        self, tallies: Mapping[int, RestoreTally], failures: list[Failure], job_id: int | None = None
    ) -> RestoreOutcome:
        """Combine the counters of the shards into an outcome."""
        files = self.originals.files
        outcome = RestoreOutcome(job_id, len(files), self.originals.size_bytes, len(tallies), failures=failures)
        outcome.jobs, outcome.unknown_jobs = self._jobs, self._unknown
        total = outcome.total
        for tally in tallies.values():
            total.add(tally)
        outcome.torn = self.originals.torn | {
            file.path: total.torn[file.path.name] for file in files if file.path.name in total.torn
        }
        records = Counter({file: total.records[file.path.name] for file in files if file.path.name in total.records})
        for job, states in self._recorded.items():
            outcome.missing += missing_of(job, states, records)
            outcome.interruptions += sum(ShardTally.of(state).interruptions for state in states)
        return outcome

    def record(self, outcome: RestoreOutcome) -> None:
        """Record the restore in the event logs of the migrations that it undid."""
        cells, shards = outcome.total.restored, outcome.shards
        event = f"restored {cells:,} cell{'s' * (cells != 1)} in {shards:,} shard{'s' * (shards != 1)}"
        for job_id in sorted(self._jobs & self._known):
            self._job_store.record_event(job_id, event)


def count(store: Datastore, spec: RestoreSpec, *, listener: Listener = ignore_events) -> RestoreOutcome:
    """Count what a restore would do, without changing anything.

    Args:
        store: the datastore.
        spec: parameters of the restore.
        listener: receives the total, if known, then the progress, both in archived cells.

    Returns:
        The predicted outcome.

    Raises:
        InvalidInput: a folder is missing, the folders hold no originals of these shards, or ``spec.job`` is not a
            migration.
        CorruptArchive: a file is damaged.
        ServerError: a server cannot be reached, or rejects a statement.
    """
    restore = _Restore(store, spec)
    if restore.cells is not None:
        listener(Total(restore.cells))
    tallies: dict[int, RestoreTally] = {}
    failures: list[Failure] = []

    def leave(failure: Failure) -> None:
        if len(failures) < FAILURES_KEPT:
            failures.append(failure)

    for shard in restore.originals.shards():
        tallies[shard] = RestoreTally()
        of_shard = restore.originals.only(shard)
        for cells in restore_shard(store, shard, of_shard, tallies[shard], send=None, fail=leave):
            listener(Advanced(cells))
    return restore.outcome(tallies, failures)


def run(
    store: Datastore, spec: RestoreSpec, *, chunk_cells: int = CHUNK_CELLS, **how: Unpack[RunOptions]
) -> RestoreOutcome:
    """Restore originals as a job in the catalog: start a job, or continue an unfinished one with the same spec.

    An unfinished restore of these shards with another spec is cancelled unless a runner is working on it. Nothing is
    lost: the stored bytes show what it restored.

    Args:
        store: the datastore; its account needs the role ``migrate``.
        spec: parameters of the restore.
        chunk_cells: maximum number of originals in one UPDATE.
        how: see ``RunOptions``.

    Returns:
        The result of the whole job, including its earlier runs.

    Raises:
        SchemalessError: as for ``JobKind.run``.
        InvalidInput: a folder is missing, the folders hold no originals of these shards, or ``spec.job`` is not a
            migration.
        CorruptArchive: a file is damaged. No cell of its shard was changed.
    """
    restore = _Restore(store, spec)
    shards = restore.originals.shards()
    ended = replace(RESTORE, work=partial(work, chunk_cells=chunk_cells)).run(store, spec, shards, **how)
    job_store = JobStore(store)
    tallies = {state.shard: RestoreTally.of(state) for state in job_store.shards(ended.job_id)}
    outcome = restore.outcome(tallies, job_store.failures(ended.job_id), ended.job_id)
    restore.record(outcome)
    return outcome


def _end_abandoned(store: Datastore, spec: RestoreSpec, shards: Sequence[int]) -> None:
    job_store = JobStore(store)
    for job in job_store.jobs("restore"):
        if job.state != "running":
            continue
        waiting = [state for state in job_store.shards(job.job_id, counters=False) if state.state == "waiting"]
        held = any(state.held and not is_dead_here(state.runner or "") for state in waiting)
        if not held and not {state.shard for state in waiting}.isdisjoint(shards):
            job_store.change_state(job.job_id, ("running",), "cancelled", "another restore of its shards was started")


def work(store: Datastore, shard_run: ShardRun, chunk_cells: int = CHUNK_CELLS) -> None:
    """Restore the originals of a shard; runs in a worker."""
    internals = internals_of(store)
    state, learned = shard_run.state, shard_run.learned
    spec = RestoreSpec.of(shard_run.job)
    if "originals" not in learned:
        learned["originals"] = spec.originals(store, shard_run.job_store.numbers(shard_run.job.job_id))
    originals = learned["originals"].only(state.shard)
    if not originals.files:
        raise InvalidInput(
            f"no originals of shard {state.shard} in {', '.join(spec.archives)} on the machine of this worker; run the "
            "restore where the archive is, or mount the archive on that machine"
        )
    full_images = spec.full_row_images
    settings = internals.shards.run(state.shard, lambda connection: log_settings(connection, full_images=full_images))
    tally = RestoreTally.of(state).restarted()

    def send(sql: bytes, body_bytes: int) -> None:
        def operation(connection: Connection) -> None:
            if settings is not None:
                connection.ensure(settings)
            connection.execute(sql)

        shard_run.gate()
        shard_run.spend(body_bytes)
        began_s = time.monotonic()
        internals.shards.run(state.shard, operation, writes=True)
        shard_run.rest(time.monotonic() - began_s)

    shard_run.gate()
    try:
        for _ in restore_shard(
            store, state.shard, originals, tally, send=send, fail=shard_run.fail, chunk_cells=chunk_cells
        ):
            # Chunks without an UPDATE put load on the server, too.
            shard_run.gate()
            if shard_run.due():
                tally.store(state)
                shard_run.checkpoint()
    finally:
        tally.store(state)
    shard_run.finish()


RESTORE: Final = JobKind("restore", RestoreSpec, table_weights, work, _end_abandoned)
