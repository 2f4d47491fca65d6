"""A runner's claim on a shard: renews the lease, and provides the gate that makes the work wait or stop.

Twice a second, a thread checks whether the lease is due for renewal, the job was paused or cancelled, or the runner was
asked to stop. One of the runners on a cluster also holds the cluster's watch: it polls the servers on behalf of all
runners and stores in the catalog whether they have to wait.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final, Self

from schemaless.base.logger import log
from schemaless.base.type_variables import T
from schemaless.errors import LeaseLost, SchemalessError
from schemaless.ops.jobs.job import Failure, Job, ShardState, Signal, thresholds_of
from schemaless.ops.jobs.job_store import FAILURES_KEPT, JobStore
from schemaless.ops.jobs.leases import LEASE_S, RENEWED_WITHIN_S, lease_clock_s
from schemaless.ops.jobs.throttle import ClusterWatch

_HEARTBEAT_S: Final = 0.5
_FIRST_HEARTBEAT_S: Final = 0.005
"""First interval between heartbeats, in seconds; until servers are polled, it doubles up to ``_HEARTBEAT_S``."""

_CHECKPOINT_S: Final = 1.0
_STALE_S: Final = 10.0
"""Age at which the result of a poll is no longer valid, in seconds."""

_STORE_S: Final = 2.0
"""Interval at which an unchanged result of a poll is stored, in seconds."""

_REST: Final = 4
"""Ratio of the pause after a step to the step's duration."""

_RESERVED_S: Final = 10.0
"""Longest time for which a runner reserves a job's rate limit at once, in seconds."""

_RELEASE_S: Final = 5.0
"""Time for which a runner tries to release its lease, in seconds; after that, the lease has to expire."""

_MARGIN_S: Final = 10.0
"""Time before its lease expires at which a runner that cannot renew it stops working, in seconds."""


class Stopped(Exception):
    """The runner has to stop working on the shard; after a checkpoint, another runner can continue it."""


class ShardRun:
    """A claimed shard. A context manager that releases the shard at the end of the block.

    Args:
        job_store: jobs of the datastore.
        job: the job.
        state: state of the shard when it was claimed; the work updates it.
        cluster: cluster of the shard.
        watch: watch over the cluster's servers; None to run without throttling.
        learned: values that the work keeps from one shard of the job to the next.

    Attributes:
        thresholds: the job's thresholds as of the last heartbeat.
    """

    def __init__(
        self,
        job_store: JobStore,
        job: Job,
        state: ShardState,
        cluster: str,
        watch: ClusterWatch | None = None,
        learned: dict[str, Any] | None = None,
    ) -> None:
        self.job_store = job_store
        self.job = job
        self.state = state
        self.cluster = cluster
        self.learned: dict[str, Any] = {} if learned is None else learned
        self._watch = watch
        self.thresholds = job.thresholds
        self._spec: str | None = None
        self._waits: dict[str, float] | None = None
        self._waiting_for: tuple[str, float] | None = None
        self._signal: Signal | None = None
        self._renewed_s = lease_clock_s()
        self._error: BaseException | None = None
        self._changed = threading.Condition()
        self._ending = threading.Event()
        self._thread = threading.Thread(
            target=self._heartbeats, name=f"job {job.job_id} shard {state.shard}", daemon=True
        )
        self._saved_s = time.monotonic()
        self._paused_s = 0.0
        self._failures: list[Failure] = []
        self._failures_noted = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._ending.set()
        self._thread.join()
        if self.state.state == "waiting" and not isinstance(error, LeaseLost):
            message = None if error is None or isinstance(error, Stopped) else f"{type(error).__name__}: {error}"
            # The error of the block takes precedence over one of these statements; without them the lease expires.
            with suppress(SchemalessError):
                self._release(message)

    def _release(self, message: str | None) -> None:
        give_up_s = time.monotonic() + _RELEASE_S
        while True:
            try:
                self._record_failures()
                self.job_store.leases.release(self.job.job_id, self.state, message=message)
            except SchemalessError as error:
                if not error.retryable or time.monotonic() > give_up_s:
                    raise
                time.sleep(_HEARTBEAT_S)
            else:
                return

    def gate(self) -> None:
        """Block until work may continue; call it before every statement that puts load on a server.

        Raises:
            Stopped: the runner has to stop.
            LeaseLost: another runner has taken over the shard.
            SchemalessError: the watch over the servers failed.
        """
        with self._changed:
            while not self._may_continue():
                began_s = time.monotonic()
                self._changed.wait(_HEARTBEAT_S)
                if self._signal is not None and self._signal.state == "paused":
                    self._paused_s += time.monotonic() - began_s

    def _may_continue(self) -> bool:
        if self._error is not None:
            raise self._error
        signal = self._signal
        if signal is None:
            return False
        if signal.stop or signal.state in ("cancelled", "done", "finalised"):
            raise Stopped
        if signal.state == "paused" or signal.reason is not None:
            return False
        if lease_clock_s() - self._renewed_s > LEASE_S - RENEWED_WITHIN_S - _MARGIN_S:
            return False
        return self._watch is None or (signal.polled_ago_s is not None and signal.polled_ago_s < _STALE_S)

    def paced(
        self,
        blocks: Iterator[T],
        *,
        gate: Callable[[], None] | None = None,
        rest: Callable[[float], None] | None = None,
        save: Callable[[], None] | None = None,
    ) -> Iterator[T]:
        """Yield blocks of work at the job's pace: wait before each is begun, then checkpoint if due, and rest.

        ``blocks`` and the loop's body process a block in a way that is safe to repeat; the body then updates ``state``.
        A runner that dies anywhere repeats at most the blocks since the last checkpoint.

        Args:
            blocks: begins a block each time it is advanced.
            gate: replaces ``gate``.
            rest: replaces ``rest``; takes the time since the block was begun, in seconds.
            save: replaces ``checkpoint``.
        """
        while True:
            (gate or self.gate)()
            began_s = time.monotonic()
            try:
                block = next(blocks)
            except StopIteration:
                return
            yield block
            if self.due():
                (save or self.checkpoint)()
            (rest or self.rest)(time.monotonic() - began_s)

    def spend(self, amount: int, save: Callable[[], None] | None = None) -> None:
        """Block until the job's rate limit allows ``amount`` more bytes; raises what ``gate`` raises.

        A large amount is reserved in parts, so that all runners together never reserve far ahead: see ``sql.spend``.

        Args:
            amount: number of bytes.
            save: called before each wait during which a checkpoint is due.
        """
        while (mb_per_s := self.thresholds.max_mb_per_s) is not None:
            part = min(amount, max(1, int(mb_per_s * 1e6 * _RESERVED_S)))
            seconds = self.job_store.spend(self.job.job_id, part, mb_per_s * 1e6)
            if save is not None and seconds and self.due(seconds):
                save()
            self._wait(seconds)
            amount -= part
            if amount <= 0:
                return

    @property
    def yields(self) -> bool:
        """Whether to take small steps because applications use the cluster's primary."""
        signal = self._signal
        return signal is not None and signal.yields

    def rest(self, worked_s: float, share: float = 1.0, *, called: bool = False) -> None:
        """Pause after a step if applications use the servers, in proportion to the step's duration.

        Args:
            worked_s: duration of the step, in seconds.
            share: share of the full pause to take, up to 1.
            called: whether applications use another server involved in the step.
        """
        if called or self.yields:
            time.sleep(min(_HEARTBEAT_S, _REST * worked_s) * share)

    def pause(self, seconds: float) -> None:
        """Wait for a time that does not count as work; raises what ``gate`` raises."""
        self._paused_s += self._wait(seconds)

    def _wait(self, seconds: float) -> float:
        """Sleep for a time, and return how much of it was not spent in ``gate``."""
        slept_s, until_s = 0.0, time.monotonic() + seconds
        while (left_s := until_s - time.monotonic()) > 0:
            self.gate()
            slept_s += min(left_s, _HEARTBEAT_S)
            time.sleep(min(left_s, _HEARTBEAT_S))
        return slept_s

    def due(self, within_s: float = 0.0) -> bool:
        """Whether a checkpoint is due, or will be within a time."""
        return time.monotonic() - self._saved_s + within_s >= _CHECKPOINT_S

    def checkpoint(self) -> None:
        """Store ``state`` in the catalog.

        Raises:
            LeaseLost: another runner has taken over the shard.
        """
        self._note()
        self.job_store.leases.checkpoint(self.job.job_id, self.state)

    def _note(self) -> None:
        now_s = time.monotonic()
        self.state.busy_s += max(0.0, now_s - self._saved_s - self._paused_s)
        self._saved_s, self._paused_s = now_s, 0.0
        self._record_failures()

    def finish(self) -> None:
        """Mark the shard as done and release it."""
        self._note()
        self.job_store.leases.release(self.job.job_id, self.state, after="done")

    def fail(self, failure: Failure) -> None:
        """Record that a cell was left unchanged; the record is stored with the next checkpoint."""
        if self._failures_noted + len(self._failures) < FAILURES_KEPT:
            self._failures.append(failure)

    def _record_failures(self) -> None:
        if self._failures:
            self.job_store.record_failures(self.job.job_id, self._failures)
            self._failures_noted += len(self._failures)
            self._failures = []

    # The heartbeat thread

    def _heartbeats(self) -> None:
        interval_s = _FIRST_HEARTBEAT_S
        while True:
            try:
                self._renew()
            except BaseException as error:  # noqa: BLE001 - raised again in the runner's thread
                retryable = isinstance(error, SchemalessError) and error.retryable
                with self._changed:
                    if not retryable or lease_clock_s() - self._renewed_s > LEASE_S:
                        self._error = error
                    self._changed.notify_all()
                if self._error is not None:
                    return
                log.warning("job %d, shard %d: %s", self.job.job_id, self.state.shard, error)
            signal = self._signal
            # At the start of a job another runner may be about to finish the first poll.
            unpolled = self._watch is not None and (signal is None or signal.polled_ago_s is None)
            if self._ending.wait(interval_s if unpolled else _HEARTBEAT_S):
                return
            interval_s = min(2 * interval_s, _HEARTBEAT_S)

    def _renew(self) -> None:
        signal = self.job_store.leases.renew(self.job.job_id, self.state, self.cluster)
        with self._changed:
            self._signal = signal
            self._renewed_s = lease_clock_s()
            self._changed.notify_all()
        if self._watch is None:
            return
        if signal.spec != self._spec:
            self.thresholds = thresholds_of(json.loads(signal.spec))
            self._spec = signal.spec
        if not signal.watches:
            return
        if self._waits is None:
            stored = [state for state in self.job_store.clusters(self.job.job_id) if state.cluster == self.cluster]
            self._waits = dict(stored[0].waits) if stored else {}
            self._watch.proven.update(stored[0].figures.get("proven", ()) if stored else ())
        look = self._watch.look(self.thresholds)
        for note in look.notes:
            self.job_store.record_event(self.job.job_id, f"{self.cluster}: {note}")
            log.warning("%s: %s", self.cluster, note)
        now_s = time.monotonic()
        if self._waiting_for is not None:
            kind, since_s = self._waiting_for
            self._waits[kind] = round(self._waits.get(kind, 0.0) + now_s - since_s, 3)
        self._waiting_for = None if look.kind is None else (look.kind, now_s)
        changed = (look.reason, look.yields) != (signal.reason, signal.yields)
        if changed or signal.polled_ago_s is None or signal.polled_ago_s >= _STORE_S:
            self.job_store.leases.record_poll(self.job.job_id, self.cluster, self.state.runner or "", look, self._waits)
        with self._changed:
            self._signal = replace(signal, reason=look.reason, polled_ago_s=0.0, yields=look.yields)
            self._changed.notify_all()
