"""How far a job is, how fast it is, when it may be through, and what it waits for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from schemaless.jobs.job import ClusterState, Job, ShardState
from schemaless.jobs.job_store import JobStore

_MOST_LIKELY: Final = 1.96
"""So many standard deviations on either side hold 95 % of a normal distribution."""


@dataclass(frozen=True, slots=True)
class Eta:
    """Seconds until a job is through, with its spread: 95 %, as far as shards differ in speed.

    What is left is weighed by bytes, and taken to go on with as many runners as there are now.
    """

    low_s: float
    mid_s: float
    high_s: float


@dataclass(frozen=True, slots=True)
class JobStatus:
    """A job at a glance.

    Attributes:
        shards: where it is on each.
        clusters: what was seen of each cluster.
        bytes_total: the tables' bytes, as InnoDB estimated them when the job was made.
        bytes_through: of those, what is through.
        runners: how many shards somebody works on now.
        mb_per_s: table bytes a second that these runners get through, in megabytes; None before anything is known.
        eta: None before anything is known, or without a runner.
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
        """How much is through, by bytes: 0 to 1."""
        return self.bytes_through / self.bytes_total if self.bytes_total else 1.0

    @property
    def done(self) -> int:
        """Shards that are through."""
        return sum(state.state == "done" for state in self.shards)

    @property
    def waits(self) -> list[tuple[str, str]]:
        """What is waited for now, by cluster."""
        if not self.job.unfinished:
            return []
        if self.job.state == "paused":
            return [("all clusters", f"paused {self.job.message or ''}".rstrip())]
        held = [cluster for cluster in self.clusters if cluster.lease_left_s is not None and cluster.lease_left_s > 0]
        return [(cluster.cluster, cluster.reason) for cluster in held if cluster.reason is not None]


def status_of(job_store: JobStore, job_id: int, *, counters: bool = False) -> JobStatus:
    """Return how far a job is.

    Args:
        job_id: which one.
        counters: with the detailed counters of each shard.

    Raises:
        InvalidInput: there is no such job.
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
    begun = [state for state in shards if state.busy_s > 0 and state.fraction > 0 and state.data_bytes]
    if not begun or not runners:
        return None, None
    through = sum(state.data_bytes * state.fraction for state in begun)
    busy_s = sum(state.busy_s for state in begun)
    mean = busy_s / through  # seconds a byte, of one runner
    left = [state.data_bytes * (1 - state.fraction) for state in shards]
    per_s = runners / mean
    replaced = sum(state.bytes_before for state in begun)
    if budget_mb_per_s is not None and replaced:
        # One for all: runners that came since do not make it more.
        per_s = min(per_s, budget_mb_per_s * 1e6 * through / replaced)
    mid_s = sum(left) / per_s
    if len(begun) > 1:
        # Shards differ: each byte counts as one observation of its shard's speed.
        variance = sum(
            state.data_bytes * state.fraction * (state.busy_s / (state.data_bytes * state.fraction) - mean) ** 2
            for state in begun
        ) / (through * (1 - 1 / len(begun)))
    else:
        # One shard says nothing of how they differ.
        variance = mean**2 / 4
    parts = sum(left_bytes * left_bytes for left_bytes in left)
    own = sum(left) ** 2 / len(begun)
    spread_s = _MOST_LIKELY * math.sqrt(variance * (parts + own)) / runners
    return per_s / 1e6, Eta(max(0.0, mid_s - spread_s), mid_s, mid_s + spread_s)
