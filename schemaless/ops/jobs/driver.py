"""The driver of a job, which dispatches shards to workers until none is left.

The work on each shard is one call. The runner that executes the call begins by claiming the shard, so any number of
drivers on any machines can share a job. A runner that dies loses only the work since its last checkpoint, about one
second's worth.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import suppress
from typing import Final

from schemaless.base.events import Listener, ignore_events
from schemaless.base.interrupts import is_interrupt
from schemaless.base.logger import log
from schemaless.base.runner_names import is_dead_here, runner_name
from schemaless.base.type_variables import T
from schemaless.errors import SchemalessError, ServerError
from schemaless.ops.jobs.job import Job, RunProgress
from schemaless.ops.jobs.job_store import JobStore
from schemaless.ops.jobs.worker import Outcome, Work, work_on
from schemaless.ops.jobs.workers import Workers, is_death
from schemaless.store.datastore import Datastore
from schemaless.store.internals import internals_of
from schemaless.store.opening import opening_of

POLL_S: Final = 0.5
"""Interval between polls of the job, in seconds."""

STOP_TIMEOUT_S: Final = 30.0
"""Time that a run that ends early waits for its runners, in seconds."""

_LONGEST_PAUSE_S: Final = 30.0

GIVE_UP_S: Final = 600.0
"""Time after which a run ends if a server stays unreachable, in seconds."""


def patiently(store: Datastore, call: Callable[[], T]) -> T:
    """Return the result of a call that is safe to repeat, and repeat it while a server is unavailable.

    For what precedes and follows the work of a job: repeating the command would not repeat it.

    Raises:
        SchemalessError: an error that a retry cannot fix, or that persisted for too long.
    """
    began_s, shards = time.monotonic(), internals_of(store).shards
    while True:
        try:
            return call()
        except ServerError as error:
            since_s = time.monotonic() - began_s
            if not error.retryable or since_s > GIVE_UP_S:
                raise
            pause_s = _announced_pause_s(error, since_s)
        time.sleep(pause_s)
        shards.router.again(shards.routing)


def _announced_pause_s(error: SchemalessError, since_s: float) -> float:
    """Log an error, and return the pause until the next attempt, in seconds."""
    pause_s = min(_LONGEST_PAUSE_S, max(POLL_S, since_s / 2))
    log.warning("%s; trying again in %.1f s", error, pause_s)
    return pause_s


class Driver:
    """Dispatches the shards of a job to workers until none is left.

    Args:
        store: the datastore.
        job: the job.
        work: does the work on a shard.
        listener: receives ``RunProgress`` at each poll of the job.
    """

    def __init__(self, store: Datastore, job: Job, work: Work, listener: Listener = ignore_events) -> None:
        self._store = store
        self._internals = internals_of(store)
        self._opening = opening_of(store)
        self._job = job
        self._work = work
        self._listener = listener
        self._name = runner_name()
        self._job_store = JobStore(store)
        self._calls: dict[Future[Outcome], int] = {}
        self._dispatched: set[int] = set()
        # As of the last poll, by cluster: shards to dispatch (the next one last), and shards of other drivers' runners.
        self._free: dict[str, list[int]] = {}
        self._held: Counter[str] = Counter()
        self._polled_s = -math.inf
        # Keyed by cluster name; "" is the catalog.
        self._failing_since_s: dict[str, float] = {}
        self._not_before_s: dict[str, float] = {}

    def run(self, workers: Workers) -> Job:
        """Work until the job has ended.

        Returns:
            The job in its final state.

        Raises:
            SchemalessError: an error that a retry cannot fix, or that persisted for too long; the job can be continued.
        """
        job_id = self._job.job_id
        try:
            while True:
                try:
                    polls = not self._calls or time.monotonic() - self._polled_s >= POLL_S
                    if polls:
                        self._poll()
                    if self._job.unfinished:
                        self._dispatch(workers)
                    if not self._calls and self._job.unfinished and self._job_store.complete(job_id):
                        # A primary that is promoted right now may have lost that.
                        self._job = self._job_store.job(job_id)
                    ended = not self._calls and not self._job.unfinished
                    if polls:
                        self._listener(RunProgress(self._job))
                        self._recovered("")
                except ServerError as error:
                    self._back_off("", error)
                    ended = False
                if ended:
                    return self._job
                self._collect(workers)
        except BaseException as error:
            self._stop(interrupted=is_interrupt(error))
            raise

    def _poll(self) -> None:
        """Read the job's state, and release the shards of dead runners. A claim detects later changes by others."""
        job_id = self._job.job_id
        self._job = self._job_store.job(job_id)
        waiting = [state for state in self._job_store.shards(job_id, counters=False) if state.state == "waiting"]
        calls = set(self._calls.values())
        for runner in {state.runner for state in waiting if state.held and state.runner is not None}:
            if not runner.startswith(self._name) and is_dead_here(runner):
                self._job_store.leases.release_dead(job_id, runner)
        self._free = {}
        self._held = Counter()
        for state in reversed(waiting):
            if state.shard in calls:
                continue
            if state.held:
                self._held[self._cluster(state.shard)] += 1
            else:
                self._free.setdefault(self._cluster(state.shard), []).append(state.shard)
        self._polled_s = time.monotonic()

    def _dispatch(self, workers: Workers) -> None:
        if len(self._calls) > workers.size:
            return
        load = self._held + Counter(map(self._cluster, self._calls.values()))
        now_s = time.monotonic()
        # Queue one more shard per worker, so that a worker never waits for the next one.
        while len(self._calls) < 2 * workers.size:
            ready = [name for name, shards in self._free.items() if shards and self._not_before_s.get(name, 0) <= now_s]
            if not ready:
                return
            cluster = min(ready, key=lambda name: (load[name], name))
            shard = self._free[cluster].pop()
            load[cluster] += 1
            # Before the call exists: an interrupt may keep it from being recorded.
            self._dispatched.add(shard)
            call = workers.submit(work_on, self._opening, self._job.job_id, shard, self._name, self._work)
            self._calls[call] = shard

    def _cluster(self, shard: int) -> str:
        return self._internals.topology.cluster_of(shard).name

    def _collect(self, workers: Workers) -> None:
        """Wait for a call to finish, up to the poll interval, and process the results."""
        if not self._calls:
            time.sleep(POLL_S)
            return
        done, _ = wait(self._calls, timeout=POLL_S, return_when=FIRST_COMPLETED)
        for call in done:
            shard = self._calls.pop(call)
            self._dispatched.discard(shard)
            cluster = self._cluster(shard)
            try:
                outcome = call.result()
            except Exception as error:
                if not is_death(error):
                    raise
                # When one process of a pool dies, the pool terminates the others.
                self._job_store.leases.release_dead(self._job.job_id, self._name)
                workers.replace_dead([shard, *self._calls.values()], error)
                self._calls.clear()
                return
            if outcome.error is None:
                if outcome.kind == "through":
                    workers.deaths = 0
                    self._recovered(cluster)
                elif outcome.kind == "busy":
                    self._not_before_s[cluster] = time.monotonic() + POLL_S
            else:
                self._back_off(cluster, outcome.error)

    def _recovered(self, cluster: str) -> None:
        self._failing_since_s.pop(cluster, None)
        self._not_before_s.pop(cluster, None)

    def _back_off(self, cluster: str, error: SchemalessError) -> None:
        """Pause work on a failing cluster.

        Raises:
            SchemalessError: the error is not retryable, or the cluster has failed for too long.
        """
        now_s = time.monotonic()
        since_s = self._failing_since_s.setdefault(cluster, now_s)
        if not error.retryable or now_s - since_s > GIVE_UP_S:
            raise error
        pause_s = _announced_pause_s(error, now_s - since_s)
        self._not_before_s[cluster] = now_s + pause_s
        if not cluster:
            time.sleep(pause_s)

    def _stop(self, *, interrupted: bool) -> None:
        """Ask this driver's runners to stop, and wait for them."""
        for call in self._calls:
            call.cancel()
        running = {call for call in self._calls if not call.cancelled()}
        deadline_s = time.monotonic() + STOP_TIMEOUT_S
        logged = False
        while time.monotonic() < deadline_s:
            # The leases count, too: an interrupt between submitting a call and recording it leaves an unknown runner,
            # and Dask cancels a call that goes on.
            held = False
            with suppress(SchemalessError):
                self._job_store.leases.ask_to_stop(self._job.job_id, self._name, self._dispatched)
                states = self._job_store.shards(self._job.job_id, counters=False)
                held = any(state.held and (state.runner or "").startswith(self._name) for state in states)
            if not running and not held:
                return
            if not logged:
                logged = True
                log.warning(
                    "stopping: waiting for runners to finish their step and save a checkpoint%s",
                    "; press Ctrl-C again to kill them at once" if interrupted else "",
                )
            if running:
                running = wait(running, timeout=POLL_S).not_done
            else:
                time.sleep(POLL_S)
