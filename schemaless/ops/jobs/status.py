"""Status of a job: progress, speed, estimated time to completion, and what it waits for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from schemaless.ops.jobs.job import ClusterState, Job, ShardState
from schemaless.ops.jobs.job_store import JobStore

_Z_95: Final = 1.96
"""Standard deviations either side of the mean that cover 95 % of a normal distribution."""


@dataclass(frozen=True, slots=True)
class Eta:
    """Estimated seconds until a job is done: mean and 95 % interval, based on how much the shards' speeds vary.

    The remaining work is measured in bytes. The estimate assumes that the number of runners stays the same.
    """

    low_s: float
    mid_s: float
    high_s: float


@dataclass(frozen=True, slots=True)
class JobStatus:
    """Status of a job.

    Attributes:
        job: the job.
        shards: state of each shard.
        clusters: state of each cluster.
        bytes_total: size of the tables, as InnoDB estimated it when the job was created.
        bytes_through: the part of ``bytes_total`` that is done.
        runners: number of shards that runners are working on.
        mb_per_s: table bytes processed by these runners, in megabytes per second; None if not known yet.
        eta: estimated time to completion; None if it is not known yet, or if there is no runner.
    """

    job: Job
    shards: list[ShardState]
    clusters: list[ClusterState]
    bytes_total: float
    bytes_through: float
    runners: int
    mb_per_s: float | None
    eta: Eta | None

    @property
    def fraction(self) -> float:
        """Completed share by bytes, 0 to 1."""
        return self.bytes_through / self.bytes_total if self.bytes_total else 1.0

    @property
    def done(self) -> int:
        """Number of completed shards."""
        return sum(state.state == "done" for state in self.shards)

    @property
    def waits(self) -> list[tuple[str, str]]:
        """Current reasons to wait, as pairs of cluster and reason."""
        return waits_of(self.job, self.clusters)


def waits_of(job: Job, clusters: Sequence[ClusterState]) -> list[tuple[str, str]]:
    """Return a job's current reasons to wait, as pairs of cluster and reason."""
    if not job.unfinished:
        return []
    if job.state == "paused":
        return [("all clusters", f"paused {job.message or ''}".rstrip())]
    held = [cluster for cluster in clusters if cluster.lease_left_s is not None and cluster.lease_left_s > 0]
    return [(cluster.cluster, cluster.reason) for cluster in held if cluster.reason is not None]


def status_of(job_store: JobStore, job_id: int, *, counters: bool = False) -> JobStatus:
    """Return the status of a job.

    Args:
        job_store: jobs of the datastore.
        job_id: the job.
        counters: include the detailed counters of each shard.

    Returns:
        The status.

    Raises:
        InvalidInput: the job does not exist.
    """
    job = job_store.job(job_id)
    shards = job_store.shards(job_id, counters=counters)
    total = float(sum(state.data_bytes for state in shards))
    through = sum(state.data_bytes * state.fraction for state in shards)
    runners = sum(state.held for state in shards)
    speed, eta = _speed(shards, runners, job.thresholds.max_mb_per_s)
    return JobStatus(job, shards, job_store.clusters(job_id), total, through, runners, speed, eta)


def _speed(
    shards: Sequence[ShardState], runners: int, budget_mb_per_s: float | None
) -> tuple[float | None, Eta | None]:
    started = [state for state in shards if state.busy_s > 0 and state.fraction > 0 and state.data_bytes]
    if not started or not runners:
        return None, None
    done_bytes = sum(state.data_bytes * state.fraction for state in started)
    busy_s = sum(state.busy_s for state in started)
    mean = busy_s / done_bytes  # seconds per byte of one runner
    remaining = [state.data_bytes * (1 - state.fraction) for state in shards]
    per_s = runners / mean
    replaced = sum(state.bytes_before for state in started)
    if budget_mb_per_s is not None and replaced:
        # All runners share one budget, so additional runners do not raise this limit.
        per_s = min(per_s, budget_mb_per_s * 1e6 * done_bytes / replaced)
    mid_s = sum(remaining) / per_s
    if len(started) > 1:
        # Variance between shards; each byte counts as one observation of its shard's speed.
        variance = sum(
            state.data_bytes * state.fraction * (state.busy_s / (state.data_bytes * state.fraction) - mean) ** 2
            for state in started
        ) / (done_bytes * (1 - 1 / len(started)))
    else:
        # A single shard gives no variance between shards; assume a standard deviation of half the mean.
        variance = mean**2 / 4
    of_shards = sum(shard_bytes * shard_bytes for shard_bytes in remaining)
    of_mean = sum(remaining) ** 2 / len(started)
    spread_s = _Z_95 * math.sqrt(variance * (of_shards + of_mean)) / runners
    return per_s / 1e6, Eta(max(0.0, mid_s - spread_s), mid_s, mid_s + spread_s)
