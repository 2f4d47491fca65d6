"""The job that executes an erasure: shard by shard, throttled, and safe to kill at any time.

In each shard it erases the cells on the primary, then their copies in tables that moves have left, and waits for the
replicas of every cluster that has or had the shard. Then it records the shard in the ledger. Each step is safe to
repeat, so an interrupted shard starts over, and so does one whose primary has changed: the new primary may lack
erasures that the old one had committed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Unpack

from schemaless.errors import InvalidInput
from schemaless.ops.erasure.copies import clusters_of, copy_tables, erase_copies, wait_for_replicas
from schemaless.ops.erasure.dictionaries import DictionarySearch
from schemaless.ops.jobs.job import Job
from schemaless.ops.jobs.kind import JobKind, JobSpec, RunOptions
from schemaless.ops.jobs.runner import ShardRun
from schemaless.store.datastore import Datastore
from schemaless.store.erasures.eraser import MAX_CELLS, Batch, ShardEraser
from schemaless.store.erasures.ledger import Erasure
from schemaless.store.internals import internals_of

_YIELDING_CELLS: Final = 100
"""Maximum number of cells per transaction while applications use the server."""

_COPIES_AT_ONCE: Final = 1_000
REPLICA_PATIENCE_S: Final = 60.0
"""How long to wait for a replica of a shard, in seconds; after that, the ledger records that the replica is behind."""


@dataclass(frozen=True, slots=True)
class EraseSpec(JobSpec):
    """Parameters of an erase job.

    Attributes:
        erasure: number of the erasure in the ledger.
        replica_patience_s: how long to wait for a replica of a shard, in seconds.
        replay: erase again what restoring a backup has brought back, but nothing that was written after the erasure.
    """

    erasure: int = 0
    replica_patience_s: float = REPLICA_PATIENCE_S
    replay: bool = False

    def __post_init__(self) -> None:
        if self.erasure < 1:
            raise InvalidInput("an erase job needs the number of an erasure in the ledger")


def work(store: Datastore, run: ShardRun) -> None:
    """Execute an erasure of keys in one shard; runs in a worker."""
    spec = EraseSpec.of(run.job)
    internals = internals_of(store)
    ledger, shard = internals.erasures.ledger, run.state.shard
    before = bounds_of(ledger.entry(spec.erasure))[shard] if spec.replay else None
    search = DictionarySearch(internals)
    eraser = internals.erasures.eraser(shard, spec.erasure, search.see if search.needed else None)

    def batches() -> Iterator[Batch]:
        return eraser.erase_targets(ledger.targets(spec.erasure, shard), before)

    _execute(store, run, eraser, batches, spec.replica_patience_s)
    if search.found:
        ledger.note(spec.erasure, {"dictionaries": sorted(search.found)})
    run.finish()


def bounds_of(entry: Erasure) -> dict[int, datetime]:
    """Return when the erasure was executed in each shard, or else when it was recorded; older cells must be erased."""
    return {shard.shard: shard.executed_at or entry.intended_at for shard in entry.shards}


def erase_batches(
    store: Datastore,
    run: ShardRun,
    erasure: int,
    batches: Callable[[], Iterable[tuple[int, Sequence[int]]]],
    *,
    replica_patience_s: float = REPLICA_PATIENCE_S,
) -> None:
    """Erase cells of the run's shard by added_id, and their copies; does not finish the run.

    For kinds of jobs that choose the cells themselves. Everything is safe to repeat.

    Args:
        store: the datastore.
        run: the job's run on the shard; its checkpoint is advanced.
        erasure: number of the erasure in the ledger; its kind is ``range``.
        batches: returns pairs of the checkpoint to record afterwards and the added_ids to erase, from the run's
            checkpoint on. Each pair is requested right before its cells are erased. Called again, with the checkpoint
            at 0, if the primary has changed.
        replica_patience_s: how long to wait for a replica, in seconds.

    Raises:
        Stopped, LeaseLost: as ``ShardRun.gate``.
        ServerError: a server failed.
    """
    internals = internals_of(store)
    search = DictionarySearch(internals)
    eraser = internals.erasures.eraser(run.state.shard, erasure, search.see if search.needed else None)

    def erased() -> Iterator[Batch]:
        primary = str(internals.topology.cluster_of(run.state.shard).primary)
        if run.state.counters.setdefault("primary", primary) != primary:
            run.state.checkpoint = 0
            run.state.counters["primary"] = primary
        for checkpoint, ids in batches():
            yield from eraser.erase_ids(ids)
            run.state.checkpoint = max(run.state.checkpoint, checkpoint)
            yield Batch()

    _execute(store, run, eraser, erased, replica_patience_s)
    if search.found:
        internals.erasures.ledger.note(erasure, {"dictionaries": sorted(search.found)})


def cells_at_once(run: ShardRun) -> int:
    """Return the maximum number of cells of the next transaction: fewer while applications use the server."""
    return _YIELDING_CELLS if run.yields else MAX_CELLS


def _execute(
    store: Datastore,
    run: ShardRun,
    eraser: ShardEraser,
    batches: Callable[[], Iterator[Batch]],
    replica_patience_s: float,
) -> None:
    internals = internals_of(store)
    state, ledger = run.state, internals.erasures.ledger
    before = None
    # A failover may have lost erasures, and a move has taken the shard to another primary: start again there.
    while before != (cluster := internals.topology.cluster_of(state.shard)).primary:
        before = cluster.primary
        _erase_batches(run, eraser, batches())
        _erase_copies(store, run, eraser)
        names = clusters_of(store, [state.shard], copy_tables(internals, state.shard))
        behind = [each for name in names for each in wait_for_replicas(internals, name, run.gate, replica_patience_s)]
        # Counted in the shard's log: a killed runner has not counted its last transaction.
        cells, body_bytes, event = eraser.executed()
    ledger.note(eraser.erasure, {"replicas_behind": behind} if behind else {})
    state.cells, state.bytes_before = cells, body_bytes
    ledger.record_shard(eraser.erasure, state.shard, cells, body_bytes, event)


def _erase_batches(run: ShardRun, eraser: ShardEraser, batches: Iterator[Batch]) -> None:
    while True:
        run.gate()
        eraser.max_cells = cells_at_once(run)
        began_s = time.monotonic()
        batch = next(batches, None)
        if batch is None:
            return
        run.state.cells += batch.cells
        run.state.bytes_before += batch.body_bytes
        run.spend(batch.body_bytes)
        run.rest(time.monotonic() - began_s)
        if run.due():
            run.checkpoint()


def _erase_copies(store: Datastore, run: ShardRun, eraser: ShardEraser) -> None:
    internals = internals_of(store)
    after, erased = 0, 0
    while events := eraser.erased_ids(after, _COPIES_AT_ONCE):
        run.gate()
        ids = [added_id for _, added_id in events]
        replaced = erase_copies(internals, run.state.shard, eraser.erasure, ids)
        if replaced is None:
            break
        erased += replaced
        after = events[-1][0]
    run.state.counters["copies"] = run.state.counters.get("copies", 0) + erased


def _weigh(store: Datastore, shards: Sequence[int]) -> Mapping[int, int]:
    return dict.fromkeys(shards, 1)


def _check(store: Datastore, spec: EraseSpec, shards: Sequence[int]) -> None:
    entry = internals_of(store).erasures.ledger.entry(spec.erasure)
    if entry.kind != "keys":
        raise InvalidInput(
            f"erasure {entry.number} comes from a retention policy; 'schemaless retention run' executes it"
        )


ERASE: Final = JobKind("erase", EraseSpec, _weigh, work, _check)


def run(store: Datastore, spec: EraseSpec, **how: Unpack[RunOptions]) -> Erasure:
    """Execute an erasure of keys as a job, or continue it.

    Args:
        store: the datastore; its account needs the role ``erase``.
        spec: identifies the erasure, which must be in the ledger.
        how: see ``RunOptions``.

    Returns:
        The ledger's entry afterwards.

    Raises:
        SchemalessError: as for ``JobKind.run``.
    """
    ledger = internals_of(store).erasures.ledger
    shards = [each.shard for each in ledger.entry(spec.erasure).shards]
    ERASE.run(store, spec, shards, **how)
    return ledger.entry(spec.erasure)


def unfinished_job(job: Job, erasure: int) -> bool:
    """Return True if a job executes the given erasure and is unfinished."""
    return job.kind == "erase" and job.unfinished and EraseSpec.of(job).erasure == erasure
