"""Reads jobs: all unfinished ones, the newest of each kind, and the last few that ended."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

from schemaless.monitoring.status.model import JobView, WaitView
from schemaless.ops.jobs.job import Job, ShardState, job_name
from schemaless.ops.jobs.job_store import JobStore
from schemaless.ops.jobs.leases import LEASE_S, RENEWED_WITHIN_S
from schemaless.ops.jobs.status import JobStatus, status_of
from schemaless.store.datastore import Datastore

_ENDED_SHOWN: Final = 5
_LATE_LEASE_S: Final = LEASE_S - RENEWED_WITHIN_S - 4.0
"""Remaining lease below which its renewal is late, in seconds; that of a live runner is at most four seconds late."""


class JobReader:
    """Reads jobs from the catalog, with one statement per table for each unfinished job.

    Args:
        store: the datastore.
    """

    def __init__(self, store: Datastore) -> None:
        self._job_store = JobStore(store)
        self._ended: dict[tuple[int, str], JobView] = {}

    def __call__(self) -> tuple[JobView, ...]:
        """Return unfinished jobs, newest first, then ended ones."""
        jobs = self._job_store.jobs()[::-1]
        newest = {job.kind: job.job_id for job in reversed(jobs)}
        ended = [job for job in jobs if not job.unfinished]
        shown = [job for at, job in enumerate(ended) if at < _ENDED_SHOWN or newest[job.kind] == job.job_id]
        return tuple(self._views([*(job for job in jobs if job.unfinished), *shown]))

    def _views(self, jobs: list[Job]) -> Iterator[JobView]:
        for job in jobs:
            # The figures of an ended job stay the same.
            view = self._ended.get((job.job_id, job.state)) or _view(status_of(self._job_store, job.job_id))
            if not view.unfinished:
                self._ended[job.job_id, view.state] = view
            yield view


def _view(status: JobStatus) -> JobView:
    job, eta = status.job, status.eta
    waited: Counter[str] = Counter()
    for cluster in status.clusters:
        waited.update(cluster.waits)
    open_shards = [shard for shard in status.shards if shard.state == "waiting"]
    states = Counter(map(_state, status.shards))
    return JobView(
        job_id=job.job_id,
        kind=job.kind,
        name=job_name(job.kind),
        state=job.state,
        unfinished=job.unfinished,
        fraction=status.fraction,
        bytes_total=status.bytes_total,
        shards=len(status.shards),
        shards_done=status.done,
        shards_failed=sum(shard.message is not None and not shard.held for shard in open_shards),
        runners=status.runners,
        runners_silent=sum(shard.held and (shard.lease_left_s or 0.0) < _LATE_LEASE_S for shard in open_shards),
        abandoned=states["abandoned"],
        mb_per_s=status.mb_per_s,
        eta_s=None if eta is None else eta.mid_s,
        eta_low_s=None if eta is None else eta.low_s,
        eta_high_s=None if eta is None else eta.high_s,
        waits=tuple(WaitView(cluster, reason) for cluster, reason in status.waits),
        waited_s=dict(waited),
        created_at=job.created_at,
        ended_at=job.ended_at,
        clusters={cluster.cluster: dict(cluster.waits) for cluster in status.clusters},
        shard_states={state: states[state] for state in ("waiting", "held", "abandoned", "done")},
        cells=sum(shard.cells for shard in status.shards),
        bytes_before=sum(shard.bytes_before for shard in status.shards),
        bytes_after=sum(shard.bytes_after for shard in status.shards),
        left_cells=sum(shard.left_cells for shard in status.shards),
        lease_left_s=min((shard.lease_left_s or 0.0 for shard in status.shards if shard.held), default=None),
    )


def _state(shard: ShardState) -> str:
    if shard.state != "waiting":
        return "done"
    if shard.held:
        return "held"
    return "waiting" if shard.lease_left_s is None else "abandoned"
