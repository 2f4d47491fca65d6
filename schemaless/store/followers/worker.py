"""A worker: the loop that connects membership, leases, discovery of new cells, dispatch to handlers, and checkpoints.

Each turn, a worker brings its leases in line with the membership (``ownership.py``), learns which shards have new cells
(``discovery.py``), has them handled (``dispatch.py``) and records the locations it has reached (``checkpoints.py``).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from schemaless.base.logger import log
from schemaless.store.followers.access import DatastoreAccess
from schemaless.store.followers.binlog_notifier import BinlogNotifier
from schemaless.store.followers.black_box import BlackBox
from schemaless.store.followers.checkpoints import Checkpoints
from schemaless.store.followers.discovery import Discovery, PollSchedule
from schemaless.store.followers.dispatch import Dispatcher
from schemaless.store.followers.handler import Handler, HandlerContext, Interrupted
from schemaless.store.followers.inflight import Inflight
from schemaless.store.followers.leases import MAX_READ_PAUSE_S, MIN_READ_PAUSE_S, Leases
from schemaless.store.followers.membership import ALL, Member, Membership, Role, Timing, View
from schemaless.store.followers.ownership import Ownership
from schemaless.store.followers.rows import FollowerRows
from schemaless.store.followers.states import RUNNING

_STOP_CHECK_S: Final = 0.25
"""Interval at which an idle worker checks whether it is to stop, in seconds."""

_REPORTED_WAITS: Final = 20
"""Maximum number of waiting shards, and of shards with the error of their erasures, in a worker's status."""

_REPORTED_UNHEALTHY: Final = 64
"""Maximum number of shards in a worker's status that have stopped, are quarantined, or have parked cells."""


class Worker:
    """Handles the cells of some followers, in its share of the shards, until it is stopped.

    Args:
        access: the datastore.
        handlers: one for each follower.
        name: unique name of the worker.
        timing: intervals and timeouts.
        stop: when set, the worker finishes the current call, writes a checkpoint, releases its leases and returns.
        listen: whether to learn of new cells from the servers' binary logs, where possible.
        role: which shards the worker serves.
        box: memory that the supervisor can read after the worker's death.

    Attributes:
        membership: the worker's membership.
        leases: the leases that it holds.
        checkpoints: records locations.
        ownership: decides which shards it claims, keeps and releases.
        schedule: when it polls.
        discovery: finds new cells.
        dispatcher: gives new cells to the handlers.
        context: given to the handlers.
        inflight: the call in progress.
    """

    def __init__(
        self,
        access: DatastoreAccess,
        handlers: Sequence[Handler],
        name: str,
        *,
        timing: Timing | None = None,
        stop: threading.Event,
        listen: bool = True,
        role: Role = ALL,
        box: BlackBox | None = None,
    ) -> None:
        self.name = name
        self.timing: Timing = timing or Timing()
        self._access = access
        self._handlers = {handler.name: handler for handler in handlers}
        self._role = role
        self._stop = stop
        self._listens = listen
        me = Member(name, frozenset(self._handlers), role=role)
        self.inflight: Inflight = Inflight()
        self.schedule: PollSchedule = PollSchedule(self.timing.look_s)
        self.membership: Membership = Membership(
            access, name, list(self._handlers), self.timing, self._report, self._poll_soon
        )
        self.leases: Leases = Leases(name, FollowerRows(access.shards), box or BlackBox())
        self.checkpoints: Checkpoints = Checkpoints(self.leases, self.timing.note_s)
        self.ownership: Ownership = Ownership(
            me, access.shard_count, self.leases, self.checkpoints, self.timing.probation_s
        )
        self.discovery: Discovery = Discovery(self.ownership, self.schedule, access.shards, self._handlers)
        self.context: HandlerContext = HandlerContext(
            self.membership, self.leases, self.checkpoints, self.inflight, stop
        )
        self.dispatcher: Dispatcher = Dispatcher(role, self._handlers, self.context, access)

    def run(self, until: Callable[[], bool] = lambda: False) -> None:
        """Work until ``stop`` is set, ``until`` is true after a turn, or all of the followers have been removed."""
        with self.membership:
            if self._listens:
                self.discovery.notifier = BinlogNotifier(self._access.shards, self.timing)
                self.checkpoints.in_background = True
            try:
                while not self._stop.is_set():
                    view = self.membership.view
                    if view is not None and not any(name in view.desired_states for name in self._handlers):
                        log.warning(
                            "worker %s ends, because nothing is left for it to do; removed: %s",
                            self.name,
                            ", ".join(self._handlers),
                        )
                        self.leases.held.clear()
                        return
                    self.turn()
                    if until():
                        break
                    self._wait(view)
                self.release_all()
            finally:
                self.discovery.slot.close()
                self.checkpoints.slot.close()
                if self.discovery.notifier is not None:
                    self.discovery.notifier.close()

    def turn(self) -> None:
        """Poll for new cells if that is due, and handle them."""
        view = self.membership.view
        if view is None:
            return
        # Before the rows are read: leases from before the lapse are valid only if the rows say so now.
        if self.membership.generation != self.leases.generation:
            self.leases.generation = self.membership.generation
            self.discovery.doubt()
        self.discovery.collect()
        self.discovery.poll_if_due(view)
        if self.ownership.end_quarantines():
            self.schedule.poll_now()
        self.leases.resume(str(cluster.primary) for cluster in self._access.shards.topology.clusters)
        with suppress(Interrupted):
            self.dispatcher.run(view, time.monotonic() + max(self.timing.renew_s / 2, self.schedule.pause_s))
        self.checkpoints.write_if_due()

    def release_all(self) -> None:
        """Write a checkpoint and release all leases."""
        self.checkpoints.settle(wait=True)
        for lease in self.leases.held.values():
            # This is the last chance to record the location.
            lease.defer(0, "")
        self.checkpoints.write()
        for pair in list(self.leases.held):
            self.leases.release(pair)

    def hurry(self) -> None:
        """Renew the membership at once: another worker has died."""
        self.membership.hurry()

    def _wait(self, view: View | None) -> None:
        """Wait until cells can be handled, or a poll or a checkpoint is due."""
        notifier = self.discovery.notifier
        if notifier is None or view is None:
            self._stop.wait(self.schedule.pause_s)
            return
        now_s = time.monotonic()
        until_s = self.schedule.poll_at_s
        # A running checkpoint is not checked on all the time.
        running_s = now_s + MAX_READ_PAUSE_S if self.checkpoints.slot.busy else now_s
        checkpoint_at_s = max(self.checkpoints.next_s, running_s)
        if self.checkpoints.pending:
            until_s = min(until_s, checkpoint_at_s)
        for pair in self.leases.backlog:
            lease = self.leases.held.get(pair)
            if lease is not None and lease.has_work and view.desired_states.get(pair[0]) == RUNNING:
                ready_at_s = checkpoint_at_s if lease.stuck else max(lease.next_read_s, now_s + MIN_READ_PAUSE_S)
                until_s = min(until_s, max(lease.wait.until_s, ready_at_s))
        while (left_s := until_s - time.monotonic()) > 0 and not self._stop.is_set() and not notifier.has_news:
            notifier.wait(min(left_s, _STOP_CHECK_S))

    # Called on the thread of the heartbeat

    def _poll_soon(self) -> None:
        if self.discovery.notifier is not None:
            self.discovery.notifier.request_poll()

    def _report(self) -> Mapping[str, Any]:
        """Return the status to publish with the heartbeat."""
        notifier = self.discovery.notifier
        reported: dict[str, Any] = {
            "dealt": self.context.handled,
            "role": self._role,
            "owned": len(self.leases.held),
            "heard": self.leases.notified,
            "found": self.leases.polled,
            "finds_by": {} if notifier is None else notifier.report(),
        }
        timeouts_s = {name: handler.timeout_s for name, handler in self._handlers.items()}
        reported |= self.inflight.report(self.timing.busy_s, timeouts_s)
        waiting = [lease for lease in list(self.leases.held.values()) if lease.wait.reason and not lease.wait.is_over]
        failing = [lease for lease in list(self.leases.held.values()) if lease.erasure_wait.failures]
        reported["waits"] = [
            *([*lease.pair, lease.wait.reason] for lease in waiting[:_REPORTED_WAITS]),
            *(
                [*lease.pair, f"erased cells are not handled yet: {lease.erasure_wait.reason}"]
                for lease in failing[:_REPORTED_WAITS]
            ),
        ]
        # All shards: a run with --once ends when each is handled or fails too often.
        reported["erasures"] = [
            [*lease.pair, lease.erasure_wait.failures, lease.erasure_wait.reason if number < _REPORTED_WAITS else ""]
            for number, lease in enumerate(failing)
        ]
        unhealthy = [
            lease for lease in list(self.leases.held.values()) if lease.row.state != RUNNING or lease.row.parked
        ]
        reported["unhealthy"] = [list(lease.pair) for lease in unhealthy[:_REPORTED_UNHEALTHY]]
        return reported
