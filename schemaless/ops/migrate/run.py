"""Migrations: jobs that re-encode bodies in place, shard by shard, while applications read and write.

``reencode`` does the work on a shard; leases and workers are those of the job engine.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, Unpack

from schemaless.errors import InvalidInput
from schemaless.ops.jobs.driver import patiently
from schemaless.ops.jobs.job import Job
from schemaless.ops.jobs.job_store import JobStore
from schemaless.ops.jobs.kind import JobKind, RunOptions
from schemaless.ops.migrate.binlog_cost import BinaryLogPoint, binary_log_point, bytes_between
from schemaless.ops.migrate.reclaimed import record_sizes
from schemaless.ops.migrate.reencode import BLOCK_BOUNDS, BlockBounds, work
from schemaless.ops.migrate.spec import MigrateSpec, with_settings
from schemaless.ops.migrate.tally import MigrateOutcome, ShardTally
from schemaless.planning.sampling.table_sizes import table_weights
from schemaless.store.datastore import Datastore
from schemaless.store.internals import internals_of


def _check(store: Datastore, spec: MigrateSpec, shards: Sequence[int]) -> None:
    """Validate a spec against the catalog before the job is created.

    Raises:
        InvalidInput: the dictionary is retired, or a cluster has no replica to verify on.
        CorruptBody: the dictionary is unknown or damaged.
    """
    internals = internals_of(store)
    if spec.dictionary is not None:
        internals.dictionaries.for_new_bodies(spec.dictionary)
    clusters = {internals.topology.cluster_of(shard) for shard in shards}
    alone = sorted(cluster.name for cluster in clusters if not cluster.replicas)
    if spec.verify_after == "replica" and alone:
        raise InvalidInput(
            f"cannot verify on replicas: the catalog lists no replica of {', '.join(alone)}; add one with "
            "'schemaless topology add-replica', or verify on the primary"
        )


def _measure(store: Datastore, job: Job, when: str) -> None:
    """Record binary log positions of each cluster, and file sizes of the shards, before or after a run."""
    internals = internals_of(store)
    job_store = JobStore(store)
    for state in job_store.clusters(job.job_id):
        pool = internals.shards.pool_for(internals.topology.cluster(state.cluster).primary)
        point = pool.run(binary_log_point)
        measures: dict[str, Any] = {f"binary_log_{when}": point}
        began = state.measures.get("binary_log_before")
        if when == "after" and began is not None and point is not None:
            measures["binary_log_bytes"] = pool.run(partial(bytes_between, start=BinaryLogPoint(*began), end=point))
        job_store.record_on_cluster(job.job_id, state.cluster, measures)
    record_sizes(store, job, when)


MIGRATE: Final = JobKind(
    "migrate",
    MigrateSpec,
    table_weights,
    work,
    _check,
    before=lambda store, job: _measure(store, job, "before"),
    after=lambda store, job: _measure(store, job, "after"),
)


def run(
    store: Datastore,
    spec: MigrateSpec | None = None,
    shards: Iterable[int] | None = None,
    *,
    bounds: BlockBounds = BLOCK_BOUNDS,
    **how: Unpack[RunOptions],
) -> MigrateOutcome:
    """Re-encode bodies as a job in the catalog: start a job, or continue an unfinished one with the same spec.

    Each new body is decoded and compared with the document of the old one before it is written, and it replaces only
    the exact bytes that were read.

    Args:
        store: the datastore; its account needs the role ``migrate``.
        spec: parameters of the migration. The default re-encodes everything to MessagePack + zlib.
        shards: shard numbers, all by default.
        bounds: limits on the blocks that a shard is divided into.
        how: see ``RunOptions``.

    Returns:
        The result of the whole job, including its earlier runs.

    Raises:
        SchemalessError: as for ``JobKind.run``.
        InvalidInput: the dictionary is retired, or a cluster has no replica to verify on.
        CorruptBody: the dictionary is unknown or damaged.
    """
    kind, spec = replace(MIGRATE, work=partial(work, bounds=bounds)), spec or MigrateSpec()
    if how.get("job") is None:
        spec = with_settings(store, spec)
    ended = kind.run(store, spec, shards, **how)
    return patiently(store, lambda: outcome_of(store, ended))


def outcome_of(store: Datastore, job: Job) -> MigrateOutcome:
    """Return the result of a job so far."""
    job_store = JobStore(store)
    outcome = MigrateOutcome(job.job_id, MigrateSpec.of(job).target)
    for state in job_store.shards(job.job_id):
        tally = ShardTally.of(state)
        outcome.interruptions += tally.interruptions
        outcome.tallies |= {(state.shard, name): column for name, column in tally.columns.items()}
    outcome.failures = job_store.failures(job.job_id)
    return outcome
