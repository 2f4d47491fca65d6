"""Restores: jobs that put archived originals back, byte for byte, and so undo a migration.

A cell gets its original back if its stored body is the one that the migration wrote, or the same document in another
codec. Every other cell is left unchanged and reported. The stored bytes show which cells are restored, so there is no
checkpoint: after a crash a shard starts again at its first original. Originals that a migration recorded but that are
missing from the files are reported.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Final, Unpack

from schemaless.base.events import Advanced, Listener, Total, ignore_events
from schemaless.base.runner_names import is_dead_here
from schemaless.codec.envelope import dictionary_of, is_erased
from schemaless.errors import CorruptBody, DictionaryDamaged, InvalidInput, UnknownDictionary
from schemaless.ops.jobs.driver import patiently
from schemaless.ops.jobs.job import Failure, ShardState
from schemaless.ops.jobs.job_store import FAILURES_KEPT, JobStore
from schemaless.ops.jobs.kind import JobKind, JobSpec, RunOptions
from schemaless.ops.jobs.runner import ShardRun
from schemaless.ops.migrate.archive import ArchivedCell
from schemaless.ops.migrate.body_updates import BodyUpdates, Change
from schemaless.ops.migrate.originals import Match, Missing, Originals, compared, in_chunks, missing_of
from schemaless.ops.migrate.spec import MigrateSpec
from schemaless.ops.migrate.tally import Counts, ShardTally
from schemaless.planning.sampling.table_sizes import table_weights
from schemaless.store.datastore import Datastore
from schemaless.store.internals import internals_of

CHUNK_CELLS: Final = 200
"""Maximum number of originals in one UPDATE."""

_ROUNDS: Final = 10


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
class RestoreTally(Counts):
    """Counters of a restore on one shard, stored in ``ShardState.counters``.

    Attributes:
        archived: cells in the archive, each counted once per job.
        restored: bodies replaced by their originals, or in a dry run, bodies that would be.
        bytes_before: size of those bodies before the restore.
        bytes_after: size of their originals.
        already: cells that had their original body when the restore started.
        left: cells left unchanged, by reason.
        records: cells in each file by file name, duplicates included.
        torn: size of the incomplete last frame by path.
    """

    archived: int = 0
    restored: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    already: int = 0
    left: Counter[str] = field(default_factory=Counter)
    records: dict[str, int] = field(default_factory=dict)
    torn: dict[str, int] = field(default_factory=dict)

    def restarted(self) -> RestoreTally:
        """Return the counters to restart the shard with; only those of restored cells are kept."""
        return RestoreTally(
            restored=self.restored, bytes_before=self.bytes_before, bytes_after=self.bytes_after, already=-self.restored
        )

    def store(self, state: ShardState) -> None:
        """Write the counters into the state of the shard."""
        state.cells = self.restored
        state.bytes_before = self.bytes_before
        state.bytes_after = self.bytes_after
        state.left_cells = self.left.total()
        state.first_id, state.checkpoint = 1, self.archived
        state.top_id = max(1, sum(self.records.values()))
        # With originals of several jobs, a restored body may be replaced again by that of an older job.
        state.counters = {**self.as_json(), "already": max(0, self.already)}


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
        torn: size of the incomplete last frame in bytes, by file; such a frame is left by a runner that died, or by an
            incomplete copy of the file.
        missing: originals that the migrations recorded and that are missing from the files.
        unknown_jobs: jobs for which the catalog does not record the number of originals.
        interruptions: number of runners of these migrations that died. Originals that such a runner archived after its
            last checkpoint (about a second's worth) are not counted in the catalog.
    """

    job_id: int | None = None
    files: int = 0
    archive_bytes: int = 0
    shards: int = 0
    total: RestoreTally = field(default_factory=RestoreTally)
    failures: list[Failure] = field(default_factory=list)
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
        self._store = store
        self._job_store = job_store = JobStore(store)
        jobs = job_store.jobs()
        # Read before the files are listed: everything recorded by now must be in them.
        recorded = {
            job.job_id: [
                state for state in job_store.shards(job.job_id) if spec.shards is None or state.shard in spec.shards
            ]
            for job in jobs
            if job.kind == "migrate" and spec.job in (None, job.job_id) and MigrateSpec.of(job).archive is not None
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
        found = {file.job_id for file in originals.files}
        self._undone = sorted(found & {job.job_id for job in jobs if job.kind == "migrate"})
        self._unknown = found - recorded.keys()
        self._recorded = {job_id: states for job_id, states in recorded.items() if job_id in found}

    @property
    def cells(self) -> int | None:
        """Expected number of archived cells; None if unknown."""
        return None if self._unknown else sum(state.cells for states in self._recorded.values() for state in states)

    def outcome(
        self, tallies: Mapping[int, RestoreTally], failures: list[Failure], job_id: int | None = None
    ) -> RestoreOutcome:
        """Combine the counters of the shards into an outcome."""
        originals = self.originals
        outcome = RestoreOutcome(job_id, len(originals.files), originals.size_bytes, len(tallies), failures=failures)
        outcome.unknown_jobs = self._unknown
        for tally in tallies.values():
            outcome.total.add(tally)
        outcome.torn = originals.torn | {Path(path): size for path, size in outcome.total.torn.items()}
        for job, states in self._recorded.items():
            outcome.missing += missing_of(job, states, outcome.total.records)
            outcome.interruptions += sum(ShardTally.of(state).interruptions for state in states)
        return outcome

    def record(self, outcome: RestoreOutcome) -> None:
        """Record the restore in the event logs of the migrations that it undid."""
        cells, shards = outcome.total.restored, outcome.shards
        event = f"restored {cells:,} cell{'s' * (cells != 1)} in {shards:,} shard{'s' * (shards != 1)}"
        for job_id in self._undone:
            patiently(self._store, partial(self._job_store.record_event, job_id, event))


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
        work = _ShardRestore(store, restore.originals.only(shard), RestoreTally(), leave)
        tallies[shard] = work.tally
        for cells in work.chunks(CHUNK_CELLS):
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

    def outcome_of() -> RestoreOutcome:
        tallies = {state.shard: RestoreTally.from_json(state.counters) for state in job_store.shards(ended.job_id)}
        return restore.outcome(tallies, job_store.failures(ended.job_id), ended.job_id)

    outcome = patiently(store, outcome_of)
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
    tally = RestoreTally.from_json(state.counters).restarted()
    shard_restore = _ShardRestore(store, originals, tally, shard_run.fail, shard_run)
    shard_run.gate()
    try:
        for _ in shard_restore.chunks(chunk_cells):
            # Chunks without an UPDATE put load on the server, too.
            shard_run.gate()
            if shard_run.due():
                tally.store(state)
                shard_run.checkpoint()
    finally:
        tally.store(state)
    shard_run.finish()


class _ShardRestore:
    """Restore of one shard.

    Args:
        store: the datastore.
        originals: archive files of the shard.
        tally: counters to update.
        fail: receives each cell that is left unchanged.
        shard_run: the claimed shard; None for a dry run, which only counts.
    """

    def __init__(
        self,
        store: Datastore,
        originals: Originals,
        tally: RestoreTally,
        fail: Callable[[Failure], None],
        shard_run: ShardRun | None = None,
    ) -> None:
        self.tally = tally
        self._store = store
        self._originals = originals
        self._shard = originals.files[0].shard
        self._fail = fail
        self._run = shard_run
        self._updates: BodyUpdates | None = None
        if shard_run is not None:
            full = RestoreSpec.of(shard_run.job).full_row_images
            self._updates = BodyUpdates(internals_of(store).shards, self._shard, full_row_images=full)
        self._size_before: dict[int, int] = {}
        self._sent: set[int] = set()

    def chunks(self, chunk_cells: int) -> Iterator[int]:
        """Restore the originals in chunks, and yield the number of cells in each.

        Raises:
            CorruptArchive: a file is damaged. Nothing was changed, since every file is read and checked first.
            ServerError: a server cannot be reached, or rejects a statement. Restored cells stay restored.
        """
        for chunk in in_chunks(self._originals.cells(), chunk_cells):
            self.tally.records = self._originals.records
            self._restore(chunk)
            self.tally.archived += len(chunk)
            yield len(chunk)
        # Repeated for a shard whose files hold no cell.
        self.tally.records = self._originals.records
        self.tally.torn = {str(path): size for path, size in self._originals.torn.items()}

    def _restore(self, cells: list[ArchivedCell]) -> None:
        """Restore a chunk of cells, retrying those that other clients change at the same time."""
        self._size_before, self._sent = {}, set()
        for _ in range(_ROUNDS):
            changes = list(self._changes(cells))
            if self._updates is None or self._run is None:
                for change in changes:
                    self._count(change.cell)
                return
            for sql, part in self._updates.statements(changes, self._leave):
                self._run.gate()
                self._run.spend(sum(len(change.body) for change in part))
                began_s = time.monotonic()
                self._updates.send(sql)
                self._run.rest(time.monotonic() - began_s)
                self._sent.update(change.cell.added_id for change in part)
            cells = [change.cell for change in changes if change.cell.added_id in self._sent]
            if not cells:
                return
        for cell in cells:
            self._leave(cell, "Contended", f"it changed during each of {_ROUNDS} attempts; run the restore again")

    def _changes(self, cells: Sequence[ArchivedCell]) -> Iterator[Change[ArchivedCell]]:
        """Yield the cells to restore; count or report the others."""
        for cell, stored, match in compared(self._store, self._shard, cells):
            if stored is None or match is Match.ERASED:
                self._leave(cell, "Erased", "it was erased")
                continue
            self._size_before.setdefault(cell.added_id, stored.body_bytes)
            if match is Match.OTHER:
                self._leave(
                    cell, "OtherCell", f"added_id {cell.added_id} belongs to cell {stored.key} in this datastore"
                )
            elif match is Match.ORIGINAL:
                if cell.added_id in self._sent:
                    self._count(cell)
                else:
                    self.tally.already += 1
            elif is_erased(cell.body):
                self._leave(cell, "Erased", "its original was erased from the archive")
            elif (unreadable := self._lacks_dictionary(cell)) is not None:
                self._leave(cell, type(unreadable).__name__, unreadable.message)
            elif match is Match.CHANGED:
                self._leave(
                    cell,
                    "Changed",
                    "its stored body is neither the one that the migration wrote nor an encoding of the same document",
                )
            else:
                yield Change(cell, stored.digest, cell.body)

    def _lacks_dictionary(self, cell: ArchivedCell) -> CorruptBody | None:
        """Return the error if the original's dictionary is missing from the catalog or damaged, else None."""
        try:
            number = dictionary_of(cell.body)
            if number is not None:
                internals_of(self._store).dictionaries.get(number)
        except (UnknownDictionary, DictionaryDamaged) as error:
            return error
        except CorruptBody:
            pass  # the original was just as damaged before the migration
        return None

    def _count(self, cell: ArchivedCell) -> None:
        self.tally.restored += 1
        self.tally.bytes_before += self._size_before[cell.added_id]
        self.tally.bytes_after += len(cell.body)

    def _leave(self, cell: ArchivedCell, reason: str, message: str) -> None:
        self.tally.left[reason] += 1
        self._fail(Failure(self._shard, cell.added_id, cell.row_key, cell.column_name, cell.ref_key, reason, message))


RESTORE: Final = JobKind("restore", RestoreSpec, table_weights, work, _end_abandoned)
