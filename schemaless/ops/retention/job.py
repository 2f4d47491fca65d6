"""The job that erases expired cells: shard by shard, throttled, and safe to kill at any time.

A run is one entry of the ledger of erasures: its scope is the rules, with the time that ages are measured from. However
often a run is interrupted, it erases what had expired when it was started. Every erased cell keeps its key as a
tombstone with the number of the entry: the change feed has no new gap, and the key cannot be written again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Unpack

from schemaless.cell import TOMBSTONE_BYTES
from schemaless.errors import InvalidInput
from schemaless.ops.erasure.expired import Rule, blocks, id_span, rules_of
from schemaless.ops.erasure.job import bounds_of, cells_at_once, erase_batches
from schemaless.ops.jobs.job import Job
from schemaless.ops.jobs.job_store import JobStore
from schemaless.ops.jobs.kind import JobKind, JobSpec, RunOptions
from schemaless.ops.jobs.runner import ShardRun
from schemaless.ops.jobs.throttle import Thresholds
from schemaless.ops.migrate.rebuild import weigh_files
from schemaless.ops.migrate.reclaimed import Part, file_sizes, record_sizes
from schemaless.ops.retention.plan import server_time
from schemaless.store.datastore import Datastore
from schemaless.store.internals import internals_of

REASON: Final = "retention"
"""Reason code of retention runs in the ledger of erasures."""


@dataclass(frozen=True, slots=True)
class RetainSpec(JobSpec):
    """Parameters of a retention job.

    Attributes:
        erasure: number of its entry in the ledger of erasures.
        replay: whether to erase again only what restoring a backup has brought back.
    """

    erasure: int = 0
    replay: bool = False

    def __post_init__(self) -> None:
        if self.erasure < 1:
            raise InvalidInput("a retention job needs the number of an entry in the ledger of erasures")


def work(store: Datastore, run: ShardRun) -> None:
    """Erase the expired cells of one shard; runs in a worker."""
    internals = internals_of(store)
    spec, state = RetainSpec.of(run.job), run.state
    entry = internals.erasures.ledger.entry(spec.erasure)
    rules = rules_of(entry)
    during = (entry.intended_at, bounds_of(entry)[state.shard]) if spec.replay else None
    low, high = id_span(internals, state.shard)
    state.first_id, state.top_id = low, high

    def batches() -> Iterator[tuple[int, Sequence[int]]]:
        after = max(state.checkpoint, low - 1)
        state.counters["held"] = state.counters.get("held", 0) if state.checkpoint else 0
        for block in blocks(internals, state.shard, rules, after, high, during, lambda: cells_at_once(run)):
            state.counters["held"] += len(block.held)
            yield block.up_to, block.ids

    erase_batches(store, run, spec.erasure, batches)
    state.bytes_after = TOMBSTONE_BYTES * state.cells
    run.finish()


RETAIN: Final = JobKind(
    "retain",
    RetainSpec,
    weigh_files,
    work,
    covers=lambda begun, asked: asked.replay,
    before=lambda store, job: record_sizes(store, job, "before"),
    after=lambda store, job: record_sizes(store, job, "after"),
)


def begin(store: Datastore) -> int | None:
    """Record a run in the ledger, or find the interrupted one; return its number, or None if there are no policies.

    Raises:
        ServerError: the catalog's server is unreachable or rejects a statement.
    """
    internals = internals_of(store)
    ledger = internals.erasures.ledger
    specs = [RetainSpec.of(job) for job in JobStore(store).jobs("retain") if job.state == "cancelled"]
    cancelled = {spec.erasure for spec in specs if not spec.replay}
    for entry in ledger.entries():
        if entry.kind == "range" and entry.executed_at is None and entry.number not in cancelled:
            return entry.number
    policies = internals.policies.all()
    if not policies:
        return None
    now = server_time(store)
    scope: dict[str, Any] = {"rules": [Rule.of(policy, now).as_json() for policy in policies]}
    return ledger.intend(REASON, kind="range", scope=scope, shards=range(store.shard_count))


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a retention run has done so far.

    Attributes:
        erasure: number of its entry in the ledger of erasures.
        job_id: number of its job.
        state: state of the job.
        cells: number of erased cells.
        held: number of expired cells that were kept because their rows are held. After an interruption, those in a
            repeated block are counted twice.
        bytes_before: size of the erased bodies.
        bytes_after: size of their tombstones.
        sizes: file sizes before and after the run, and after a rebuild.
    """

    erasure: int
    job_id: int
    state: str
    cells: int
    held: int
    bytes_before: int
    bytes_after: int
    sizes: Part


def run(store: Datastore, erasure: int, *, thresholds: Thresholds | None = None, **how: Unpack[RunOptions]) -> Outcome:
    """Execute a retention run as a job, or continue it.

    Args:
        store: the datastore; its account needs the role ``erase``.
        erasure: result of ``begin``.
        thresholds: throttling thresholds, if a new job is started.
        how: see ``RunOptions``.

    Raises:
        SchemalessError: as for ``JobKind.run``.
    """
    shards = [each.shard for each in internals_of(store).erasures.ledger.entry(erasure).shards]
    job = RETAIN.run(store, RetainSpec(erasure, thresholds=thresholds or Thresholds()), shards, **how)
    return outcome_of(store, job)


def outcome_of(store: Datastore, job: Job) -> Outcome:
    """Return what a retention job has done so far."""
    states = JobStore(store).shards(job.job_id)
    return Outcome(
        RetainSpec.of(job).erasure,
        job.job_id,
        job.state,
        sum(state.cells for state in states),
        sum(state.counters.get("held", 0) for state in states),
        sum(state.bytes_before for state in states),
        sum(state.bytes_after for state in states),
        file_sizes(store, job),
    )
