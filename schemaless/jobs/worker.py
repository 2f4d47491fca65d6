"""In a worker: a shard claimed and worked on, and what is kept from one shard to the next."""

from __future__ import annotations

import logging
import math
import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final

from schemaless.datastore import Datastore
from schemaless.errors import LeaseLost, SchemalessError
from schemaless.internals import internals_of
from schemaless.jobs.job import Job
from schemaless.jobs.job_store import JobStore
from schemaless.jobs.runner import ShardRun, Stopped, Watch
from schemaless.jobs.throttle import Look, Thresholds
from schemaless.opening import Opening

_log = logging.getLogger("schemaless")

_LOOK_S: Final = 0.25
"""This is half of what a runner waits between two looks."""

_NICE: Final = 10
"""``nice`` takes so much by default: the 99th percentile of clients beside a migration fell by a sixth."""

Work = Callable[[Datastore, ShardRun], None]
"""A kind's work on a shard is done by a function of a module, which calls ``finish`` of the run at the end."""

MakeWatch = Callable[[Datastore, Job, str, str, Thresholds], Watch]
"""A function of a module takes a store, a job, a cluster, a runner and thresholds, and gives a watch over it."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a call.

    Attributes:
        shard: its shard.
        kind: "through", "busy" (somebody else has it), "stopped" or "failed".
        error: what it failed with.
    """

    shard: int
    kind: str
    error: SchemalessError | None = None


@dataclass(slots=True)
class _Kept:
    """What a worker keeps from one shard to the next."""

    store: Datastore
    opening: Opening
    job_store: JobStore
    learned: dict[int, dict[str, Any]] = field(default_factory=dict)
    watches: dict[tuple[int, str], tuple[Thresholds, KeptWatch]] = field(default_factory=dict)


class KeptWatch:
    """A worker's watch over a cluster, which goes on from one shard to the next.

    A shard begins with a look; where shards are small, that of the shard before is taken.

    Args:
        again_s: how long what it saw is taken for the present.
    """

    def __init__(self, watch: Watch, again_s: float = _LOOK_S) -> None:
        self._watch = watch
        self._again_s = again_s
        self._look: Look | None = None
        self._looked_s = -math.inf

    def look(self, reads: int = 0, runners: int = 1) -> Look:
        """Look, or return what was seen a moment ago; see ``Watch``."""
        if self._look is None or time.monotonic() - self._looked_s >= self._again_s:
            self._look = None
            look = self._watch.look(reads, runners)
            self._look, self._looked_s = replace(look, notes=()), time.monotonic()
            return look
        return self._look

    def close(self) -> None:
        """Let its connections go."""
        self._watch.close()


_kept = threading.local()


def work_on(
    opening: Opening, job_id: int, shard: int, driver: str, work: Work, make_watch: MakeWatch | None
) -> Outcome:
    """Claim a shard and work on it; runs in a worker."""
    try:
        kept = _kept_for(opening)
        store, job_store = kept.store, kept.job_store
        job = job_store.job(job_id)
        # The same for all shards of a worker: its watch over a cluster goes on from one to the next.
        runner = f"{driver}/{os.getpid()}.{threading.get_native_id()}"
        state = job_store.claim(job_id, shard, runner)
        if state is None:
            return Outcome(shard, "busy")
        cluster = internals_of(store).topology.cluster_of(shard).name

        def watch(thresholds: Thresholds) -> Watch:
            key = job_id, cluster
            before = kept.watches.get(key)
            if before is not None and before[0] == thresholds:
                return before[1]
            if before is not None:
                before[1].close()
            assert make_watch is not None
            kept.watches[key] = thresholds, KeptWatch(make_watch(store, job, cluster, runner, thresholds))
            return kept.watches[key][1]

        with ShardRun(
            job_store,
            job,
            state,
            cluster,
            watch if make_watch is not None else None,
            kept.learned.setdefault(job_id, {}),
        ) as run:
            work(store, run)
    except Stopped:
        return Outcome(shard, "stopped")
    except LeaseLost as error:
        _log.warning("%s", error)
        return Outcome(shard, "busy")
    except SchemalessError as error:
        return Outcome(shard, "failed", error)
    return Outcome(shard, "through")


def _kept_for(opening: Opening) -> _Kept:
    kept: _Kept | None = getattr(_kept, "kept", None)
    if kept is None or kept.opening != opening:
        let_go()
        _step_aside()
        store = opening.open()
        kept = _Kept(store, opening, JobStore(store))
        _kept.kept = kept
    return kept


def make_ready(opening: Opening) -> None:
    """Do what this worker's first call would have to wait for."""
    store = store_for(opening)
    internals_of(store).catalog.run(lambda connection: connection.version)


def store_for(opening: Opening) -> Datastore:
    """Return a datastore that stays open in this worker from one call to the next."""
    return _kept_for(opening).store


def _step_aside() -> None:
    """Have this thread's work wait for that of servers and clients on the same machine, for the rest of its life."""
    if sys.platform == "linux":  # where a thread has a priority of its own
        thread = threading.get_native_id()
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, thread, max(_NICE, os.getpriority(os.PRIO_PROCESS, thread)))


def let_go() -> None:
    """Close what this thread has kept."""
    kept: _Kept | None = getattr(_kept, "kept", None)
    if kept is not None:
        _kept.kept = None
        for _, watch in kept.watches.values():
            with suppress(SchemalessError):
                watch.close()
        kept.store.close()
