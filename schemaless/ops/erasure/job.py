"""The jobs that execute erasures: shard by shard, throttled, and safe to kill at any time.

An erasure is an entry of the ledger: of the kind ``keys``, with a list of targets, or ``range``, with the rules of the
retention policies as of the start of the run. However often a run is interrupted, it erases what had expired then.

In each shard a job erases the cells on the primary, then their copies in tables that moves have left and in cold files,
and waits for the replicas of every cluster that has or had the shard. Then it records the shard in the ledger. Each
step is safe to repeat, so an interrupted shard starts over, and so does one whose primary has changed: the new primary
may lack erasures that the old one had committed.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final, Unpack

from schemaless.base.events import Event, Listener, ignore_events
from schemaless.base.logger import log
from schemaless.cell import TOMBSTONE_BYTES
from schemaless.errors import ArchiveFailed, ColdStoreUnavailable, InvalidInput
from schemaless.ops.erasure.archives import erase_from_archives
from schemaless.ops.erasure.cold_files import ColdEraser
from schemaless.ops.erasure.copies import clusters_of, copy_tables, erase_copies, wait_for_replicas
from schemaless.ops.erasure.dictionaries import DictionarySearch
from schemaless.ops.erasure.expired import Rule, blocks, rules_of, server_time
from schemaless.ops.erasure.places import archives as archive_folders
from schemaless.ops.erasure.status import ErasureStatus, record_acknowledgements
from schemaless.ops.jobs.job import Job, RunProgress
from schemaless.ops.jobs.job_store import JobStore
from schemaless.ops.jobs.kind import JobKind, JobSpec, RunOptions
from schemaless.ops.jobs.runner import ShardRun
from schemaless.ops.jobs.status import waits_of
from schemaless.ops.migrate.rebuild import weigh_files
from schemaless.ops.migrate.reclaimed import OtherJob, Part, file_sizes, others_before_rebuild, record_sizes
from schemaless.store.cells.sql import select_id_span
from schemaless.store.datastore import Datastore, check_datastore
from schemaless.store.erasures.eraser import MAX_CELLS, Batch, ShardEraser
from schemaless.store.erasures.ledger import Erasure
from schemaless.store.internals import Internals, internals_of

RETENTION: Final = "retention"
"""Reason code of retention runs in the ledger."""

REPLICA_PATIENCE_S: Final = 60.0
"""How long to wait for a replica of a shard, in seconds; after that, the ledger records that the replica is behind."""

_YIELDING_CELLS: Final = 100
"""Maximum number of cells per transaction while applications use the server."""

_COPIES_AT_ONCE: Final = 1_000

_LOOK_S: Final = 1.0
"""Interval between looks at why a job waits, in seconds."""


@dataclass(frozen=True, slots=True)
class ErasureSpec(JobSpec):
    """Parameters of a job that executes an erasure.

    Attributes:
        erasure: number of the erasure in the ledger.
        replay: erase again what restoring a backup has brought back, but nothing that was written after the erasure.
        replica_patience_s: how long to wait for a replica of a shard, in seconds.
    """

    erasure: int = 0
    replay: bool = False
    replica_patience_s: float = REPLICA_PATIENCE_S

    def __post_init__(self) -> None:
        if type(self.erasure) is not int or self.erasure < 1:
            raise InvalidInput(f"expected the number of an erasure in the ledger, got {self.erasure!r:.200}")


def bounds_of(entry: Erasure) -> dict[int, datetime]:
    """Return when the erasure was executed in each shard, or else when it was recorded; older cells must be erased."""
    return {shard.shard: shard.executed_at or entry.intended_at for shard in entry.shards}


def cells_at_once(run: ShardRun) -> int:
    """Return the maximum number of cells of the next transaction: fewer while applications use the server."""
    return _YIELDING_CELLS if run.yields else MAX_CELLS


def work(store: Datastore, run: ShardRun) -> None:
    """Execute an erasure in one shard; runs in a worker."""
    internals = internals_of(store)
    spec, state, ledger = ErasureSpec.of(run.job), run.state, internals.erasures.ledger
    entry = ledger.entry(spec.erasure)
    before = bounds_of(entry)[state.shard] if spec.replay else None
    search = DictionarySearch(internals)
    eraser = internals.erasures.eraser(state.shard, entry.number, search.see if search.needed else None)
    primary = None
    # A failover may have lost erasures, and a move has taken the shard to another primary: start again there.
    while primary != (cluster := internals.topology.cluster_of(state.shard)).primary:
        primary = cluster.primary
        if entry.kind == "keys":
            batches = eraser.erase_targets(ledger.targets(entry.number, state.shard), before)
        else:
            batches = _erase_expired(internals, run, entry, eraser, before)
        eraser.max_cells = cells_at_once(run)
        for batch in run.paced(batches):
            state.cells += batch.cells
            state.bytes_before += batch.body_bytes
            run.spend(batch.body_bytes)
            eraser.max_cells = cells_at_once(run)
        _erase_copies(internals, run, eraser)
        _erase_from_cold_files(internals, run, search)
        names = clusters_of(store, [state.shard], copy_tables(internals, state.shard))
        patience_s = spec.replica_patience_s
        behind = [each for name in names for each in wait_for_replicas(internals, name, run.gate, patience_s)]
        # Counted in the shard's log: a killed runner has not counted its last transaction.
        cells, body_bytes, event = eraser.executed()
    notes = {"replicas_behind": behind, "dictionaries": sorted(search.found)}
    ledger.note(entry.number, {name: found for name, found in notes.items() if found})
    state.cells, state.bytes_before, state.bytes_after = cells, body_bytes, TOMBSTONE_BYTES * cells
    ledger.record_shard(entry.number, state.shard, cells, body_bytes, event)
    run.finish()


def _erase_expired(
    internals: Internals, run: ShardRun, entry: Erasure, eraser: ShardEraser, before: datetime | None
) -> Iterator[Batch]:
    """Erase the expired cells of the run's shard from its checkpoint on, or from the start on another primary."""
    state = run.state
    primary = str(internals.topology.cluster_of(state.shard).primary)
    if state.counters.setdefault("primary", primary) != primary:
        state.checkpoint, state.counters["primary"] = 0, primary
    state.counters["held"] = state.counters.get("held", 0) if state.checkpoint else 0
    low, high = internals.shards.rows(state.shard, select_id_span(internals.shards.database(state.shard)))[0]
    state.first_id, state.top_id = int(low or 0), int(high or 0)
    for block in blocks(
        internals,
        state.shard,
        rules_of(entry),
        after=state.checkpoint,
        up_to=state.top_id,
        during=None if before is None else (entry.intended_at, before),
        at_once=lambda: cells_at_once(run),
    ):
        state.counters["held"] += len(block.held)
        yield from eraser.erase_ids(block.ids)
        state.checkpoint = max(state.checkpoint, block.up_to)
        yield Batch()


def _erase_copies(internals: Internals, run: ShardRun, eraser: ShardEraser) -> None:
    copies = run.state.counters
    copies.setdefault("copies", 0)
    for ids in eraser.erased_ids(_COPIES_AT_ONCE):
        run.gate()
        replaced = erase_copies(internals, run.state.shard, eraser.erasure, ids)
        if replaced is None:
            return
        copies["copies"] += replaced


def _erase_from_cold_files(internals: Internals, run: ShardRun, search: DictionarySearch) -> None:
    """Rewrite the cold files of the run's shard that have documents of this or another erasure."""
    cold = ColdEraser(internals, run.state.shard, run.gate, search.search if search.needed else None)
    try:
        files = cold.run()
    except ColdStoreUnavailable as error:
        if internals.cold.is_new:
            needed = (
                "files that the backup lists hold documents to erase again, this copy cannot be opened before then: "
                "make the cold store, or a copy of it in the same place, available here"
            )
            error.args = (f"{error}; {needed}",)
        raise
    if files:
        run.state.counters["cold_files"] = run.state.counters.get("cold_files", 0) + files


# A replay concerns fewer shards once it has been interrupted.
ERASE: Final = JobKind(
    "erase",
    ErasureSpec,
    lambda store, shards: dict.fromkeys(shards, 1),
    work,
    covers=lambda begun, asked: asked.replay,
)
RETAIN: Final = JobKind(
    "retain",
    ErasureSpec,
    weigh_files,
    work,
    covers=lambda begun, asked: asked.replay,
    before=lambda store, job: record_sizes(store, job, "before"),
    after=lambda store, job: record_sizes(store, job, "after"),
)


def run(store: Datastore, spec: ErasureSpec, shards: Iterable[int] | None = None, **how: Unpack[RunOptions]) -> Job:
    """Execute an erasure as a job, or continue it.

    Args:
        store: the datastore; its account needs the role ``erase``.
        spec: identifies the erasure, which must be in the ledger.
        shards: shard numbers; all of the erasure's by default.
        how: see ``RunOptions``.

    Raises:
        SchemalessError: as for ``JobKind.run``.
    """
    entry = internals_of(store).erasures.ledger.entry(spec.erasure)
    kind = ERASE if entry.kind == "keys" else RETAIN
    return kind.run(store, spec, [each.shard for each in entry.shards] if shards is None else shards, **how)


def finish_erasure(store: Datastore, number: int, *, archives: Iterable[str | Path] = ()) -> ErasureStatus:
    """Erase the copies that ``Datastore.erase`` leaves: in tables of moves, cold files, replicas, and local archives.

    This does the work of 'schemaless erase run --execute --erasure NUMBER' in this process, and of 'schemaless erase
    archive' for the folders in which migrations have kept originals. It is safe to repeat, also after an interruption.
    The account needs the role erase. While it waits, for instance for disk space, it logs why.

    Args:
        store: the datastore.
        number: number of the erasure, as in ``Erasure.number``.
        archives: folders of archives besides those that the catalog knows.

    Returns:
        The status: ``state`` is "executed" until all followers, which ``waiting`` names, have handled the erasure and
        the cold files of all shards are rewritten, and then "acknowledged". ``entry.notes`` names replicas that lag or
        do not answer.

    Raises:
        InvalidInput: an argument is of the wrong type, or there is no such erasure or folder.
        JobConflict: the job was cancelled.
        ArchiveFailed: a file was left as it is, because it cannot be written or its migration has not ended.
        ServerError, ColdStoreUnavailable: a server or the cold store failed; the work done is kept.
    """
    return finish(check_datastore(store), number, archives)


def finish(
    store: Datastore, number: int, archives: Iterable[str | Path], listener: Listener = ignore_events
) -> ErasureStatus:
    """Do what ``finish_erasure`` does; ``listener`` receives the events of the job and of the archives."""
    run(store, ErasureSpec(number), listener=_logging_waits(store, listener))
    known = [Path(folder) for folder in archive_folders(store)]
    folders = [Path(folder) for folder in archives] + [folder for folder in known if folder.is_dir()]
    files = erase_from_archives(store, folders, execute=True, listener=listener) if folders else []
    left = [file for file in files if file.skipped]
    if left:
        reasons = "; ".join(f"{file.path}: {file.skipped}" for file in left)
        raise ArchiveFailed(
            f"archives still have erased originals; repeat the call when the migration ends ({reasons})"
        )
    return record_acknowledgements(store, number)


def _logging_waits(store: Datastore, listener: Listener) -> Listener:
    """Return a listener that also logs why a job waits, once for each cluster and wait; nothing else shows it."""
    job_store = JobStore(store)
    waiting, looked_s = set[str](), 0.0

    def listen(event: Event) -> None:
        nonlocal waiting, looked_s
        listener(event)
        if isinstance(event, RunProgress) and time.monotonic() - looked_s >= _LOOK_S:
            waits = waits_of(event.job, job_store.clusters(event.job.job_id))
            for cluster, reason in waits:
                if cluster not in waiting:
                    log.warning("job %d waits on %s: %s", event.job.job_id, cluster, reason)
            waiting, looked_s = {cluster for cluster, _ in waits}, time.monotonic()

    return listen


def begin_retention(store: Datastore) -> int | None:
    """Record a retention run in the ledger, or find the interrupted one.

    Returns:
        The number of its entry; None if there are no policies.

    Raises:
        ServerError: the catalog's server is unreachable or rejects a statement.
    """
    internals = internals_of(store)
    ledger = internals.erasures.ledger
    specs = [ErasureSpec.of(job) for job in JobStore(store).jobs(RETAIN.name) if job.state == "cancelled"]
    cancelled = {spec.erasure for spec in specs if not spec.replay}
    for entry in ledger.entries():
        if entry.kind == "range" and entry.executed_at is None and entry.number not in cancelled:
            return entry.number
    policies = internals.policies.all()
    if not policies:
        return None
    now = server_time(store)
    scope: dict[str, Any] = {"rules": [Rule.of(policy, now).as_json() for policy in policies]}
    return ledger.intend(RETENTION, kind="range", scope=scope, shards=range(store.shard_count))


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a retention run has done so far.

    Attributes:
        erasure: number of its entry in the ledger.
        job_id: number of its job.
        state: state of the job.
        cells: number of erased cells.
        held: number of expired cells that were kept because their rows are held. After an interruption, those in a
            repeated block are counted twice.
        bytes_before: size of the erased bodies.
        bytes_after: size of their tombstones.
        sizes: file sizes before and after the run, and after a rebuild.
        others: other jobs that replaced bodies between the start of the run and the rebuild of a shard.
    """

    erasure: int
    job_id: int
    state: str
    cells: int
    held: int
    bytes_before: int
    bytes_after: int
    sizes: Part
    others: list[OtherJob]


def outcome_of(store: Datastore, job: Job) -> Outcome:
    """Return what a retention job has done so far."""
    states = JobStore(store).shards(job.job_id)
    return Outcome(
        ErasureSpec.of(job).erasure,
        job.job_id,
        job.state,
        sum(state.cells for state in states),
        sum(state.counters.get("held", 0) for state in states),
        sum(state.bytes_before for state in states),
        sum(state.bytes_after for state in states),
        file_sizes(store, job),
        others_before_rebuild(store, job),
    )
