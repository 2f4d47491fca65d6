"""Puts the originals of an archive back, byte for byte: the way back from a migration, and a job like it.

What is done on a shard is in ``put_back``. The job says where to go on, and what was counted; what is done shows in the
bytes, so another restore finds it done. Originals that a job has archived and that are not there are named.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Final, Unpack

from schemaless.datastore import Datastore
from schemaless.errors import InvalidInput
from schemaless.events import Advanced, Listener, Total, nobody
from schemaless.internals import internals_of
from schemaless.jobs.job import Failure
from schemaless.jobs.job_store import FAILURES_KEPT, JobStore
from schemaless.jobs.kind import HowToRun, JobKind, JobSpec
from schemaless.jobs.runner import ShardRun
from schemaless.migrate.binlog_cost import log_settings
from schemaless.migrate.originals import Missing, Originals, missing_of
from schemaless.migrate.put_back import CHUNK_CELLS, ShardRestored, put_back
from schemaless.migrate.run import weights_of
from schemaless.migrate.spec import MigrateSpec
from schemaless.migrate.tally import ShardTally
from schemaless.runner_names import is_dead_here
from schemaless.wire.connection import Connection


@dataclass(frozen=True, slots=True)
class RestoreSpec(JobSpec):
    """What a restore is to do; stands in the job.

    Where the archives of several jobs are given, the newest job is undone first, so that a cell ends with its oldest
    original.

    Attributes:
        archives: folders, the archives or parts of them; each worker looks for them on its own machine.
        shards: only these; all that there are files of unless given.
        job: only what this job replaced.
        full_row_images: leave the binary log's row images as the server has them.
    """

    archives: tuple[str, ...]
    shards: tuple[int, ...] | None = None
    job: int | None = None
    full_row_images: bool = False

    def originals(self, store: Datastore, shards: Collection[int] | None) -> Originals:
        """Find the files; raises what ``Originals.of`` raises."""
        return Originals.of(store, map(Path, self.archives), job_id=self.job, shards=shards)


@dataclass(slots=True)
class RestoreOutcome:
    """What a restore did, by all its runs, or would do.

    Attributes:
        job_id: its job; None where nothing was changed.
        total: what was counted on all shards together.
        failures: cells that were left as they are, the first thousand of them.
        jobs: whose originals these are.
        torn: files whose last frame is not whole, with its bytes: a runner ended there, or a copy broke off.
        missing: originals that these jobs have archived, and that are not in the files.
        unknown_jobs: jobs of which the catalog does not know how many originals they have archived.
        interruptions: runners of these jobs that ended without a word: what each archived since its last checkpoint,
            a second or so, the job has not noted.
    """

    job_id: int | None = None
    files: int = 0
    archive_bytes: int = 0
    shards: int = 0
    total: ShardRestored = field(default_factory=ShardRestored)
    failures: list[Failure] = field(default_factory=list)
    jobs: set[int] = field(default_factory=set)
    torn: dict[Path, int] = field(default_factory=dict)
    missing: list[Missing] = field(default_factory=list)
    unknown_jobs: set[int] = field(default_factory=set)
    interruptions: int = 0


class _Restore:
    """A restore, and what the migrations had noted of its originals when it began."""

    def __init__(self, store: Datastore, spec: RestoreSpec) -> None:
        """Find the files.

        Raises:
            InvalidInput: a folder is missing, there is nothing of these shards in them, or the job is no migration.
            CorruptArchive: a file's header is damaged.
        """
        self._ledger = job_store = JobStore(store)
        jobs = job_store.jobs()
        migrations = [job for job in jobs if job.kind == "migrate"]
        # Before the files are looked for: what is noted until now has to be in them.
        through = {
            job.job_id: {
                state.shard for state in job_store.shards(job.job_id, counters=False) if state.state != "waiting"
            }
            for job in migrations
            if job.unfinished
        }
        self.originals = originals = spec.originals(store, spec.shards)
        if not originals.files:
            for job in jobs:
                # One that the catalog does not know may have an archive all the same.
                if job.job_id == spec.job:
                    job.check_kind("migrate")
            raise InvalidInput(
                f"no originals of datastore {store.name!r}"
                + (f", job {spec.job}," if spec.job is not None else "")
                + (" of these shards" if spec.shards is not None else "")
                + f" in {', '.join(spec.archives)}; name the folder that --archive named"
                + "".join(f"; {path} ends before its header does" for path in sorted(originals.torn)[:1])
            )
        self._known = {job.job_id for job in migrations}
        self._jobs = {file.job_id for file in originals.files}
        kept = {job.job_id for job in migrations if MigrateSpec.of(job).archive is not None}
        self._unknown = self._jobs - kept
        self._noted = {
            job_id: [
                state
                for state in job_store.shards(job_id)
                if (spec.shards is None or state.shard in spec.shards)
                and (job_id not in through or state.shard in through[job_id])
            ]
            for job_id in sorted(self._jobs & kept)
        }

    @property
    def cells(self) -> int | None:
        """How many archived cells there should be; None where that is not known."""
        return None if self._unknown else sum(state.cells for states in self._noted.values() for state in states)

    def outcome(
        self, tallies: Mapping[int, ShardRestored], failures: list[Failure], job_id: int | None = None
    ) -> RestoreOutcome:
        """Put together what was counted on each shard."""
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
        for job, states in self._noted.items():
            outcome.missing += missing_of(job, states, records)
            outcome.interruptions += sum(ShardTally.of(state).interruptions for state in states)
        return outcome

    def note(self, outcome: RestoreOutcome) -> None:
        """Write down with the migrations that they were undone."""
        what = f"restored {outcome.total.restored:,} cells in {outcome.shards:,} shards"
        for job_id in sorted(self._jobs & self._known):
            self._ledger.note_event(job_id, what)


def count(store: Datastore, spec: RestoreSpec, *, listener: Listener = nobody) -> RestoreOutcome:
    """Say what a restore would do. Changes nothing.

    Args:
        spec: what would be asked for.
        listener: told each advance, in archived cells, and the total before the first, where that is known.

    Raises:
        InvalidInput: a folder is missing, there is nothing of these shards in them, or the job is no migration.
        CorruptArchive: a file is damaged.
        ServerError: a server cannot be reached, or refuses.
    """
    restore = _Restore(store, spec)
    if restore.cells is not None:
        listener(Total(restore.cells))
    tallies: dict[int, ShardRestored] = {}
    failures: list[Failure] = []

    def leave(failure: Failure) -> None:
        if len(failures) < FAILURES_KEPT:
            failures.append(failure)

    for shard in restore.originals.shards():
        tallies[shard] = ShardRestored()
        mine = restore.originals.only(shard)
        for cells in put_back(store, shard, mine, tallies[shard], send=None, fail=leave):
            listener(Advanced(cells))
    return restore.outcome(tallies, failures)


def run(
    store: Datastore, spec: RestoreSpec, *, chunk_cells: int = CHUNK_CELLS, **how: Unpack[HowToRun]
) -> RestoreOutcome:
    """Put originals back, as a job in the catalog: begin one, or go on with the unfinished one that is the same.

    An unfinished restore that was about something else on these shards, and that nobody works on, is ended: what is
    done shows in the bytes, so nothing is lost by it.

    Args:
        store: the datastore; its account has the role ``migrate``.
        chunk_cells: how many originals are put back together, at most.
        how: see ``HowToRun``.

    Returns:
        What the whole job has done, by all its runs.

    Raises:
        SchemalessError: as ``JobKind.run``.
        InvalidInput: a folder is missing, there is nothing of these shards in them, or the job is no migration.
        CorruptArchive: a file is damaged. Of its shard nothing was changed.
    """
    restore = _Restore(store, spec)
    shards = restore.originals.shards()
    ended = replace(RESTORE, work=partial(work, chunk_cells=chunk_cells)).run(store, spec, shards, **how)
    job_store = JobStore(store)
    tallies = {state.shard: ShardRestored.of(state) for state in job_store.shards(ended.job_id)}
    outcome = restore.outcome(tallies, job_store.failures(ended.job_id), ended.job_id)
    restore.note(outcome)
    return outcome


def _end_abandoned(store: Datastore, spec: RestoreSpec, shards: Sequence[int]) -> None:
    job_store = JobStore(store)
    for job in job_store.jobs("restore"):
        if job.state != "running":
            continue
        waiting = [state for state in job_store.shards(job.job_id, counters=False) if state.state == "waiting"]
        held = any(state.held and not is_dead_here(state.runner or "") for state in waiting)
        if not held and not {state.shard for state in waiting}.isdisjoint(shards):
            job_store.change_state(job.job_id, ("running",), "aborted", "another restore of its shards was begun")


def work(store: Datastore, shard_run: ShardRun, chunk_cells: int = CHUNK_CELLS) -> None:
    """Put a shard's originals back; runs in a worker."""
    internals = internals_of(store)
    state, learned = shard_run.state, shard_run.learned
    spec = RestoreSpec.of(shard_run.job)
    if "originals" not in learned:
        learned["originals"] = spec.originals(store, shard_run.job_store.numbers(shard_run.job.job_id))
    originals = learned["originals"].only(state.shard)
    if not originals.files:
        raise InvalidInput(f"{', '.join(spec.archives)} has no originals of shard {state.shard} where this worker runs")
    full_images = spec.full_row_images
    settings = internals.shards.run(state.shard, lambda connection: log_settings(connection, full_images=full_images))
    tally = ShardRestored.of(state).again()

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
        for _ in put_back(
            store, state.shard, originals, tally, send=send, fail=shard_run.fail, chunk_cells=chunk_cells
        ):
            # Also where nothing was to be put back: a look costs the servers something, too.
            shard_run.gate()
            if shard_run.due():
                tally.store(state)
                shard_run.checkpoint()
    finally:
        tally.store(state)
    shard_run.finish()


RESTORE: Final = JobKind("restore", RestoreSpec, weights_of, work, _end_abandoned)
