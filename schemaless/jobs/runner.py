"""One shard of a job in the hands of one runner: its lease kept alive, and a gate that says when to go on.

A thread renews the lease every second and hears what has changed: paused, aborted, asked to stop. One of the runners
on a cluster also looks at its servers, for all of them, and writes down whether they may go on.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from types import TracebackType
from typing import Any, Final, Protocol, Self

from schemaless.datastore import Datastore
from schemaless.errors import LeaseLost, SchemalessError, ServerError, TopologyError
from schemaless.internals import internals_of
from schemaless.jobs.job import Failure, Job, ShardState, Signal, thresholds_of
from schemaless.jobs.job_store import FAILURES_KEPT, LEASE_S, RENEWED_WITHIN_S, JobStore
from schemaless.jobs.throttle import ClusterWatch, Look, Thresholds
from schemaless.topology.model import Cluster
from schemaless.topology.shards import Shards

_log = logging.getLogger("schemaless")

_BEAT_S: Final = 0.5
_FIRST_BEAT_S: Final = 0.005
"""Until somebody has looked at the servers, each beat is twice as long as the one before."""

_CHECKPOINT_S: Final = 1.0
_STALE_S: Final = 10.0
"""A look at the servers that is older says nothing any more."""

_NOTE_S: Final = 2.0
"""A look is written down so often where nothing has changed."""

_RUNNERS_S: Final = 10.0
"""A number of runners is taken for the present one so long."""

_REST: Final = 4
"""A step is followed by a rest of so many times its length."""

_MARGIN_S: Final = 10.0
"""A runner that cannot renew its lease stands still so long before the end of it."""


class Stopped(Exception):
    """The runner is to end its work on the shard here: a checkpoint is written, others may go on."""


class Watch(Protocol):
    """Looks at a cluster's servers; ``throttle.ClusterWatch``."""

    def look(self, reads: int = 0, runners: int = 1) -> Look:
        """Return whether work may go on.

        Args:
            reads: how many SELECTs this runner has sent to the catalog; only grows.
            runners: how many there are of the job, which do about the same.
        """

    def close(self) -> None:
        """Let its connections go."""


class ShardRun:
    """A claimed shard. A context manager: the shard is given back at the end of its block.

    Args:
        state: the shard as it was claimed; the work keeps it up to date.
        cluster: the cluster that it is on.
        watch: gives the watch over the cluster's servers under these thresholds, when it falls to this runner, and
            keeps it for its next shard; None looks at nothing.
        learned: what this runner has found out on other shards of the job, for the work to use and to add to.
    """

    def __init__(
        self,
        job_store: JobStore,
        job: Job,
        state: ShardState,
        cluster: str,
        watch: Callable[[Thresholds], Watch] | None = None,
        learned: dict[str, Any] | None = None,
    ) -> None:
        self.job_store = job_store
        self.job = job
        self.state = state
        self.cluster = cluster
        self.learned: dict[str, Any] = {} if learned is None else learned
        self._make_watch = watch
        self._watch: Watch | None = None
        self._thresholds = job.thresholds
        self._spec: str | None = None
        self._runners: tuple[int, float] | None = None
        self._waits: dict[str, float] = {}
        self._waiting_for: tuple[str, float] | None = None
        self._signal: Signal | None = None
        self._renewed_s = time.monotonic()
        self._error: BaseException | None = None
        self._changed = threading.Condition()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._beat, name=f"job {job.job_id} shard {state.shard}", daemon=True)
        self._saved_s = self._began_s = time.monotonic()
        self._paused_s = 0.0
        self._failures: list[Failure] = []
        self._failures_noted = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ending.set()
        self._thread.join()
        if self.state.state == "waiting" and not isinstance(error, LeaseLost):
            message = None if error is None or isinstance(error, Stopped) else f"{type(error).__name__}: {error}"
            # The caller is to hear the error of the block, not one of these notes: without them the lease runs out.
            with suppress(SchemalessError):
                self._note_failures()
                self.job_store.release(self.job.job_id, self.state, message=message)

    def gate(self) -> None:
        """Return when work may go on; call it before every statement that costs the servers something.

        Raises:
            Stopped: it is to end here.
            LeaseLost: the shard is another runner's by now.
            SchemalessError: what the watch over the servers raised.
        """
        with self._changed:
            while not self._may_go_on():
                began_s = time.monotonic()
                self._changed.wait(_BEAT_S)
                if self._signal is not None and self._signal.state == "paused":
                    self._paused_s += time.monotonic() - began_s

    def _may_go_on(self) -> bool:
        if self._error is not None:
            raise self._error
        signal = self._signal
        if signal is None:
            return False
        if signal.stop or signal.state in ("aborted", "done", "finalised"):
            raise Stopped
        if signal.state == "paused" or signal.reason is not None:
            return False
        if time.monotonic() - self._renewed_s > LEASE_S - RENEWED_WITHIN_S - _MARGIN_S:
            return False
        return self._make_watch is None or (signal.looked_ago_s is not None and signal.looked_ago_s < _STALE_S)

    def spend(self, amount: int) -> None:
        """Wait until the job's budget allows that many bytes more; raises what ``gate`` raises."""
        mb_per_s = self._thresholds.max_mb_per_s
        if mb_per_s is None:
            return
        until_s = time.monotonic() + self.job_store.spend(self.job.job_id, amount, mb_per_s * 1e6)
        while (left_s := until_s - time.monotonic()) > 0:
            self.gate()
            time.sleep(min(left_s, _BEAT_S))

    @property
    def yields(self) -> bool:
        """Whether to take small steps, since applications use the cluster's primary."""
        signal = self._signal
        return signal is not None and signal.yields

    def rest(self, worked_s: float, share: float = 1.0, *, called: bool = False) -> None:
        """Leave the servers to applications for a while after a step that took so long; not at all where none calls.

        Args:
            worked_s: how long the step took.
            share: how much of the rest to take, up to 1.
            called: whether they call another server that the step was about.
        """
        if called or self.yields:
            time.sleep(min(_BEAT_S, _REST * worked_s) * share)

    def pause(self, seconds: float) -> None:
        """Wait, but hear a stop; raises what ``gate`` raises."""
        until_s = time.monotonic() + seconds
        while (left_s := until_s - time.monotonic()) > 0:
            self.gate()
            time.sleep(min(left_s, _BEAT_S))
            self._paused_s += min(left_s, _BEAT_S)

    def due(self) -> bool:
        """Whether it is time for a checkpoint."""
        return time.monotonic() - self._saved_s >= _CHECKPOINT_S

    def checkpoint(self) -> None:
        """Write ``state`` down.

        Raises:
            LeaseLost: the shard is another runner's by now.
        """
        self._account()
        self._note_failures()
        self.job_store.checkpoint(self.job.job_id, self.state)

    def _account(self) -> None:
        now_s = time.monotonic()
        self.state.busy_s += max(0.0, now_s - self._saved_s - self._paused_s)
        self._saved_s, self._paused_s = now_s, 0.0

    def finish(self) -> None:
        """Write down that the shard is through."""
        self._account()
        self._note_failures()
        self.job_store.release(self.job.job_id, self.state, after="done")

    def fail(self, failure: Failure) -> None:
        """Remember a cell that was left as it is; written down with the next checkpoint."""
        if self._failures_noted + len(self._failures) < FAILURES_KEPT:
            self._failures.append(failure)

    def _note_failures(self) -> None:
        if self._failures:
            self.job_store.note_failures(self.job.job_id, self._failures)
            self._failures_noted += len(self._failures)
            self._failures = []

    # The thread

    def _beat(self) -> None:
        first_s = _FIRST_BEAT_S
        while True:
            try:
                self._renew()
            except SchemalessError as error:
                with self._changed:
                    if not error.retryable or time.monotonic() - self._renewed_s > LEASE_S:
                        self._error = error
                    self._changed.notify_all()
                if self._error is not None:
                    return
                _log.warning("job %d, shard %d: %s", self.job.job_id, self.state.shard, error)
            except BaseException as error:  # noqa: BLE001 - raised again in the runner's thread
                with self._changed:
                    self._error = error
                    self._changed.notify_all()
                return
            signal = self._signal
            # At the beginning somebody else may be about to look.
            unseen = self._make_watch is not None and (signal is None or signal.looked_ago_s is None)
            if self._ending.wait(first_s if unseen else _BEAT_S):
                return
            first_s = min(2 * first_s, _BEAT_S)

    def _renew(self) -> None:
        signal = self.job_store.renew(self.job.job_id, self.state, self.cluster)
        with self._changed:
            self._signal = signal
            self._renewed_s = time.monotonic()
            self._changed.notify_all()
        if self._make_watch is None:
            return
        if signal.spec != self._spec:
            self._take_thresholds(signal.spec)
        self._spec = signal.spec
        if not signal.watches:
            return
        if self._watch is None:
            self._watch = self._make_watch(self._thresholds)
            noted = [state for state in self.job_store.clusters(self.job.job_id) if state.cluster == self.cluster]
            self._waits = dict(noted[0].waits) if noted else {}
        if self._runners is None or time.monotonic() - self._runners[1] >= _RUNNERS_S:
            self._runners = self.job_store.runners(self.job.job_id), time.monotonic()
        look = self._watch.look(self.job_store.reads, self._runners[0])
        for note in look.notes:
            self.job_store.note_event(self.job.job_id, f"{self.cluster}: {note}")
            _log.warning("%s: %s", self.cluster, note)
        now_s = time.monotonic()
        if self._waiting_for is not None:
            kind, since_s = self._waiting_for
            self._waits[kind] = round(self._waits.get(kind, 0.0) + now_s - since_s, 3)
        self._waiting_for = None if look.kind is None else (look.kind, now_s)
        changed = (look.reason, look.yields) != (signal.reason, signal.yields)
        if changed or signal.looked_ago_s is None or signal.looked_ago_s >= _NOTE_S:
            self.job_store.note_look(
                self.job.job_id, self.cluster, self.state.runner or "", look.reason, look.figures, self._waits
            )
        with self._changed:
            self._signal = replace(signal, reason=look.reason, looked_ago_s=0.0, yields=look.yields)
            self._changed.notify_all()

    def _take_thresholds(self, spec: str) -> None:
        thresholds = thresholds_of(json.loads(spec))
        if thresholds != self._thresholds:
            self._thresholds = thresholds
            self._watch = None


def make_watch(store: Datastore, job: Job, cluster: str, runner: str, thresholds: Thresholds) -> Watch:
    """Make the watch over a cluster's servers, whichever they are at the time."""
    internals = internals_of(store)
    job_store = JobStore(store)

    def make(servers: Cluster) -> Watch:
        seen = next((state.figures for state in job_store.clusters(job.job_id) if state.cluster == cluster), {})
        return ClusterWatch(
            internals.shards,
            servers,
            thresholds,
            runner,
            proven=seen.get("proven", ()),
            catalog=internals.catalog,
        )

    return FollowingWatch(internals.shards, cluster, make)


class FollowingWatch:
    """A watch that goes on with the servers that its cluster has now.

    Args:
        shards: of the datastore.
        cluster: its name.
        make: makes the watch over a cluster as it is.
    """

    def __init__(self, shards: Shards, cluster: str, make: Callable[[Cluster], Watch]) -> None:
        self._shards = shards
        self._name = cluster
        self._make = make
        self._cluster = shards.topology.cluster(cluster)
        self._watch = make(self._cluster)

    def look(self, reads: int = 0, runners: int = 1) -> Look:
        """Look, and again at the others where the servers that were looked at are not the cluster's any more."""
        self._shards.look_now_and_then()
        self._take_servers()
        known = self._shards.routing
        try:
            look = self._watch.look(reads, runners)
        except (TopologyError, ServerError):
            self._shards.again(known)
            if not self._take_servers():
                raise
            return self._watch.look(reads, runners)
        if look.kind == "unreachable":
            self._shards.again(known)
            if self._take_servers():
                return self._watch.look(reads, runners)
        return look

    def close(self) -> None:
        """Let its connections go."""
        self._watch.close()

    def _take_servers(self) -> bool:
        """Take the servers that the cluster has now; return whether they are others."""
        servers = self._shards.topology.cluster(self._name)
        if servers == self._cluster:
            return False
        self._watch.close()
        self._watch, self._cluster = self._make(servers), servers
        return True
