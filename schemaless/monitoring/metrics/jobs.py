"""Metrics of jobs, read from the catalog: all unfinished jobs, and the latest of each kind."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from schemaless.monitoring.metrics.metric import Collector, Metric, Read, Sample
from schemaless.ops.jobs.job import Job, ShardState
from schemaless.ops.jobs.job_store import JobStore
from schemaless.ops.jobs.status import JobStatus, status_of
from schemaless.store.datastore import Datastore

_JOB: Final = ("kind", "job")
_EVERY_S: Final = 5.0

STATE: Final = Metric("job_state", "1 for the job's current state.", (*_JOB, "state"))
FRACTION: Final = Metric("job_fraction", "Completed fraction of the job, by bytes, from 0 to 1.", _JOB)
SHARDS: Final = Metric(
    "job_shards",
    "Shards by state: waiting, held by a runner, abandoned by a runner (its lease expired), or done.",
    (*_JOB, "state"),
)
CELLS: Final = Metric("job_cells", "Bodies that the job has replaced.", _JOB, "counter")
BEFORE: Final = Metric("job_bytes_before", "Bytes of the replaced bodies before the job.", _JOB, "counter")
AFTER: Final = Metric("job_bytes_after", "Bytes of the replaced bodies after the job.", _JOB, "counter")
LEFT: Final = Metric("job_left_cells", "Bodies that the job left unchanged in this pass.", _JOB)
LEASE: Final = Metric("job_lease_left_seconds", "Seconds until the first lease expires, unless renewed.", _JOB)
ETA: Final = Metric(
    "job_eta_seconds",
    "Estimated seconds until the job is done, with the bounds of the 95 % interval.",
    (*_JOB, "bound"),
)
WAITS: Final = Metric("job_waits", "1 if the job is paused, or is waiting for the cluster, else 0.", (*_JOB, "cluster"))
WAITED: Final = Metric(
    "job_waited_seconds",
    "Seconds that the job has waited, by reason.",
    (*_JOB, "cluster", "reason"),
    "counter",
)


def _reading(store: Datastore) -> Read:
    job_store = JobStore(store)

    def read() -> Iterator[Sample]:
        jobs = job_store.jobs()
        newest = {job.kind: job.job_id for job in jobs}
        for job in jobs:
            if job.unfinished or newest[job.kind] == job.job_id:
                yield from _samples(job, status_of(job_store, job.job_id))

    return read


def _samples(job: Job, status: JobStatus) -> Iterator[Sample]:
    labels = (job.kind, job.job_id)
    yield STATE.at(1, *labels, job.state)
    yield FRACTION.at(status.fraction, *labels)
    for state in ("waiting", "held", "abandoned", "done"):
        yield SHARDS.at(sum(_stands(shard) == state for shard in status.shards), *labels, state)
    yield CELLS.at(sum(shard.cells for shard in status.shards), *labels)
    yield BEFORE.at(sum(shard.bytes_before for shard in status.shards), *labels)
    yield AFTER.at(sum(shard.bytes_after for shard in status.shards), *labels)
    yield LEFT.at(sum(shard.left_cells for shard in status.shards), *labels)
    leases = [shard.lease_left_s for shard in status.shards if shard.held and shard.lease_left_s is not None]
    if leases:
        yield LEASE.at(min(leases), *labels)
    if status.eta is not None:
        for bound, seconds in (("low", status.eta.low_s), ("mid", status.eta.mid_s), ("high", status.eta.high_s)):
            yield ETA.at(seconds, *labels, bound)
    waiting = {cluster for cluster, _ in status.waits}
    for cluster in status.clusters:
        paused = job.state == "paused"
        yield WAITS.at(paused or cluster.cluster in waiting, *labels, cluster.cluster)
        for reason, seconds in cluster.waits.items():
            yield WAITED.at(seconds, *labels, cluster.cluster, reason)


def _stands(shard: ShardState) -> str:
    if shard.state != "waiting":
        return "done"
    if shard.held:
        return "held"
    return "waiting" if shard.lease_left_s is None else "abandoned"


JOBS: Final = Collector(
    "jobs", (STATE, FRACTION, SHARDS, CELLS, BEFORE, AFTER, LEFT, LEASE, ETA, WAITS, WAITED), _EVERY_S, _reading
)
