"""The part of a job that runs in a worker: claim a shard, work on it, and cache connections for the next shard."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from schemaless.base.logger import log
from schemaless.errors import LeaseLost, SchemalessError
from schemaless.ops.jobs.job import Job, role_of
from schemaless.ops.jobs.job_store import JobStore
from schemaless.ops.jobs.runner import ShardRun, Stopped
from schemaless.ops.jobs.throttle import ClusterWatch
from schemaless.store.cold.targets import folder_of
from schemaless.store.datastore import Datastore
from schemaless.store.internals import Internals, internals_of
from schemaless.store.opening import Opening
from schemaless.wire.errors import needing

_NICE: Final = 10
"""Minimum nice value of workers; this cut the clients' 99th-percentile latency by a sixth in a measured migration."""

Work = Callable[[Datastore, ShardRun], None]
"""Does a job's work on a shard, then calls ``ShardRun.finish``. A module-level function, so that it can be pickled."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of one call of ``work_on``.

    Attributes:
        shard: the shard that the call worked on.
        kind: "through" (done), "busy" (another runner has the shard), "stopped" or "failed".
        error: the error if it failed.
    """

    shard: int
    kind: str
    error: SchemalessError | None = None


@dataclass(slots=True)
class _WorkerState:
    """State that a worker keeps between shards."""

    store: Datastore
    opening: Opening
    job_store: JobStore
    learned: dict[int, dict[str, Any]] = field(default_factory=dict)
    watches: dict[tuple[int, str], ClusterWatch] = field(default_factory=dict)


_local = threading.local()


def work_on(opening: Opening, job_id: int, shard: int, driver: str, work: Work, *, throttled: bool = True) -> Outcome:
    """Claim a shard and work on it; runs in a worker."""
    try:
        worker = _worker_state(opening)
        store, job_store = worker.store, worker.job_store
        job = job_store.job(job_id)
        # The same name for all shards of a worker, so that it keeps the watch over a cluster between shards.
        runner = f"{driver}/{os.getpid()}.{threading.get_native_id()}"
        state = job_store.leases.claim(job_id, shard, runner)
        if state is None:
            return Outcome(shard, "busy")
        cluster = internals_of(store).topology.cluster_of(shard).name

        key = job_id, cluster
        if throttled and key not in worker.watches:
            internals = internals_of(store)
            worker.watches[key] = ClusterWatch(internals.shards, cluster, runner, folders=_folders(internals, job))
        learned = worker.learned.setdefault(job_id, {})
        watch = worker.watches.get(key)
        with ShardRun(job_store, job, state, cluster, watch, learned) as run, needing(role_of(job.kind)):
            work(store, run)
    except Stopped:
        return Outcome(shard, "stopped")
    except LeaseLost as error:
        log.warning("%s", error)
        return Outcome(shard, "busy")
    except SchemalessError as error:
        return Outcome(shard, "failed", error)
    return Outcome(shard, "through")


def _folders(internals: Internals, job: Job) -> list[Path]:
    """Return the folders that a job fills on the machines of its runners."""
    archive = job.spec.get("archive")
    folders = [] if archive is None else [Path(archive)]
    # Erasures write cold files again, without what they erase.
    if job.kind in ("erase", "retain", "tier") and (cold := internals.cold.store()) is not None:
        folder = folder_of(cold.uri)
        folders += [] if folder is None else [folder]
    return folders


def _worker_state(opening: Opening) -> _WorkerState:
    state: _WorkerState | None = getattr(_local, "state", None)
    if state is None or state.opening != opening:
        let_go()
        _lower_priority()
        store = opening.open()
        state = _WorkerState(store, opening, JobStore(store))
        _local.state = state
    return state


def warm_up(opening: Opening) -> None:
    """Open the datastore and connect to the catalog before the worker's first call."""
    store = store_for(opening)
    internals_of(store).catalog.run(lambda connection: connection.version)


def store_for(opening: Opening) -> Datastore:
    """Return the datastore, which stays open in this worker between calls."""
    return _worker_state(opening).store


def _lower_priority() -> None:
    """Give servers and clients on the same machine precedence over this thread."""
    if sys.platform == "linux":  # the only platform with a priority per thread
        thread = threading.get_native_id()
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, thread, max(_NICE, os.getpriority(os.PRIO_PROCESS, thread)))


def let_go() -> None:
    """Close the datastore and the watches that this thread keeps between calls."""
    state: _WorkerState | None = getattr(_local, "state", None)
    if state is not None:
        _local.state = None
        for watch in state.watches.values():
            with suppress(SchemalessError):
                watch.close()
        state.store.close()
