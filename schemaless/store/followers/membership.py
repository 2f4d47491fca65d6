"""Membership of workers, by leases in the catalog, and the assignment of shards to them.

Each worker renews its lease every two seconds on a separate thread, and reads who the other members are. Shards are
assigned by rendezvous hashing: among the workers that serve a follower, the one with the highest hash of worker,
follower and shard is assigned the shard. All workers compute the same assignment without communicating, and a worker
that joins or leaves moves only its own shards.

The assignment says who should own a shard. Who owns it is recorded in the shard itself, with an epoch (``rows.py``).
Ownership remains correct even when workers disagree about the membership.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple, Self

from schemaless.base.logger import log
from schemaless.errors import InvalidInput, SchemalessError
from schemaless.store.followers import sql
from schemaless.store.followers.access import DatastoreAccess
from schemaless.wire.connection import Connection
from schemaless.wire.pool import NodePool, PoolOptions

Pair = tuple[str, int]
"""A follower's name and a shard."""

Role = Literal["all", "healthy", "quarantine"]
"""Which shards a worker serves: all, those that are healthy, or those that are quarantined."""

ALL: Final = "all"
HEALTHY: Final = "healthy"
QUARANTINE: Final = "quarantine"

_HEARTBEAT_TIMEOUT_S: Final = 3.0
_FORGET_S: Final = 3_600.0
"""Time from the expiry of a dead worker's lease until the worker is deleted from the catalog, in seconds."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Intervals and timeouts of workers, in seconds.

    Attributes:
        lease_s: duration of a worker's membership lease, at most ``sql.MOST_LEASE_S``: workers take a lease that ends
            much later for that of a server whose clock was ahead.
        give_up_s: time since a worker's last renewal after which it starts nothing new; below ``lease_s``.
        renew_s: interval between renewals.
        busy_s: duration of a call after which the worker's other shards are reassigned.
        note_s: interval between checkpoints; after a crash, the cells handled since the last one are handled again.
        look_s: minimum interval between reads of the worker's rows, which find lost leases and parked cells to try
            again. Polls for new cells are separate.
        connect_s: maximum pause before a lost binary log connection is reopened.
        refused_s: pause before reconnecting to a server that refused to send its binary log.
        probation_s: time after which a claimed quarantined shard that has no cells left counts as healthy again.

    Raises:
        InvalidInput: the lease is too long, or a worker would give up only after its lease has expired.
    """

    lease_s: float = 10.0
    give_up_s: float = 8.0
    renew_s: float = 2.0
    busy_s: float = 10.0
    note_s: float = 0.1
    look_s: float = 2.0
    connect_s: float = 5.0
    refused_s: float = 60.0
    probation_s: float = 60.0

    def __post_init__(self) -> None:
        if not 0 < self.lease_s <= sql.MOST_LEASE_S:
            raise InvalidInput(
                f"lease_s must be above 0 and at most {sql.MOST_LEASE_S:,} seconds, got {self.lease_s!r}"
            )
        if not 0 < self.give_up_s < self.lease_s:
            raise InvalidInput(
                f"give_up_s must be above 0 and below lease_s ({self.lease_s:g} s), got {self.give_up_s!r}"
            )


@dataclass(frozen=True, slots=True)
class Member:
    """A live worker.

    Attributes:
        worker: its name.
        followers: names of the followers that it serves.
        busy_with: the shard of a call that has exceeded ``Timing.busy_s``; None if there is none.
        role: which shards it serves.
    """

    worker: str
    followers: frozenset[str]
    busy_with: Pair | None = None
    role: Role = ALL


class Assigned(NamedTuple):
    """A worker's pairs of follower and shard: those that it serves if healthy, those that it serves if quarantined."""

    healthy: frozenset[Pair]
    quarantined: frozenset[Pair]


@dataclass(frozen=True, slots=True)
class View:
    """The membership as a worker read it from the catalog.

    Attributes:
        members: the live workers, including the reader.
        desired_states: the desired state of each follower, by name.
    """

    members: tuple[Member, ...]
    desired_states: Mapping[str, str]

    def owner(self, pair: Pair, *, quarantined: bool = False) -> str | None:
        """Return the worker that a shard is assigned to; None if no worker serves the follower.

        Quarantined shards go to workers for quarantined shards, and to workers for all shards only if there are none of
        the former.
        """
        followers = [member for member in self.members if pair[0] in member.followers]
        if quarantined:
            serving = [member for member in followers if member.role == QUARANTINE]
            serving = serving or [member for member in followers if member.role == ALL]
        else:
            serving = [member for member in followers if member.role != QUARANTINE]
        for member in serving:
            if member.busy_with == pair:
                return member.worker
        free = [member for member in serving if member.busy_with is None] or serving
        return max((member.worker for member in free), key=lambda worker: _hash(worker, pair), default=None)

    def assigned(self, member: Member, shard_count: int) -> Assigned:
        """Return the pairs that are assigned to a worker."""

        def pairs(*, quarantined: bool) -> frozenset[Pair]:
            if member.role == (HEALTHY if quarantined else QUARANTINE):
                return frozenset()
            every = (
                (name, shard) for name in member.followers & self.desired_states.keys() for shard in range(shard_count)
            )
            return frozenset(pair for pair in every if self.owner(pair, quarantined=quarantined) == member.worker)

        return Assigned(pairs(quarantined=False), pairs(quarantined=True))

    def is_free(self, pair: Pair, owner: str | None) -> bool:
        """Return whether a shard may be claimed: its owner is dead, or busy with another shard."""
        member = self.member(owner)
        return member is None or (member.busy_with is not None and member.busy_with != pair)

    def member(self, worker: str | None) -> Member | None:
        """Return a live worker by name; None if there is none."""
        return next((member for member in self.members if member.worker == worker), None)


def _hash(worker: str, pair: Pair) -> bytes:
    return hashlib.blake2b(f"{worker} {pair[0]} {pair[1]}".encode(), digest_size=8).digest()


class Membership:
    """A worker's membership, as a context manager: it joins on entry and leaves on exit.

    Args:
        access: the datastore.
        worker: unique name of the worker.
        followers: names of the followers that it serves.
        timing: intervals and timeouts.
        report: called at each renewal; returns the status to publish as JSON, including "busy_with" and "role".
        changed: called after a renewal that ``hurry`` requested or that found a change in the members.

    Attributes:
        generation: increases after each lapse of the membership, during which others may have claimed the worker's
            shards.
        error: why the last renewal failed; None if it succeeded.
    """

    def __init__(
        self,
        access: DatastoreAccess,
        worker: str,
        followers: Sequence[str],
        timing: Timing,
        report: Callable[[], Mapping[str, Any]],
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        self.worker = worker
        self.generation: int = 0
        self.error: SchemalessError | None = None
        self._followers = json.dumps(list(followers))
        self._timing = timing
        self._report = report
        self._changed = changed
        self._access = access
        self._catalog = access.name
        self._pool = self._new_pool()
        self._renewed_s: float | None = None
        self._view: View | None = None
        self._ended = threading.Event()
        self._hurry = threading.Event()
        self._thread = threading.Thread(target=self._keep_alive, name="heartbeat", daemon=True)

    def __enter__(self) -> Self:
        self.renew()
        self._thread.start()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._ended.set()
        self._hurry.set()
        self._thread.join()
        try:
            if error is None:
                remove_worker(self._pool, self._catalog, self.worker)
        except SchemalessError as failure:
            log.warning(
                "worker %s cannot leave the membership; its lease in the catalog will expire by itself: %s",
                self.worker,
                failure,
            )
        finally:
            self._pool.close()

    @property
    def alive(self) -> bool:
        """True if this worker may start new work, because its lease will last a while longer."""
        renewed_s = self._renewed_s
        return renewed_s is not None and now_s() - renewed_s < self._timing.give_up_s

    @property
    def view(self) -> View | None:
        """The membership as of the last renewal; None if the lease may have expired."""
        return self._view if self.alive else None

    def renew(self) -> None:
        """Renew the lease and read the members; if the catalog's server fails, set ``error``."""
        started_s = now_s()
        figures = json.dumps(self._report())

        def operation(connection: Connection) -> View:
            connection.execute(
                sql.renew_worker(self._catalog, self.worker, self._followers, figures, self._timing.lease_s)
            )
            connection.execute(sql.delete_dead_workers(self._catalog, _FORGET_S))
            members = tuple(
                _member(str(worker), json.loads(followers), json.loads(status))
                for worker, followers, _, status in connection.rows(sql.select_workers(self._catalog))
            )
            settings = connection.rows(sql.select_settings(self._catalog))
            return View(members, {str(name): str(wanted) for name, wanted, _ in settings})

        if self._pool.node != self._access.catalog().node:
            self._pool.close()
            self._pool = self._new_pool()
        try:
            view = self._pool.run(operation)
        except SchemalessError as error:
            if self.error is None:
                log.warning(
                    "worker %s cannot renew its lease and starts nothing new until it can: %s", self.worker, error
                )
            self.error = error
            # The catalog may have moved to another server; the next renewal goes there.
            self._access.shards.router.again(self._access.shards.routing)
            return
        if self.error is not None:
            log.warning("worker %s can renew its lease again", self.worker)
        if self._renewed_s is None or started_s - self._renewed_s >= self._timing.give_up_s:
            self.generation += 1
        before, self._view, self._renewed_s, self.error = self._view, view, started_s, None
        if before is None or before.members != view.members:
            self._changed()

    def hurry(self) -> None:
        """Renew now instead of at the next interval."""
        self._hurry.set()

    def _new_pool(self) -> NodePool:
        # A separate pool with short timeouts: renewals must not wait for other statements.
        return self._access.shards.pools.new_pool(
            self._access.catalog().node,
            PoolOptions(_HEARTBEAT_TIMEOUT_S, _HEARTBEAT_TIMEOUT_S, _HEARTBEAT_TIMEOUT_S, 1),
        )

    def _keep_alive(self) -> None:
        while True:
            hurried = self._hurry.wait(self._timing.renew_s)
            self._hurry.clear()
            if self._ended.is_set():
                return
            self.renew()
            if hurried:
                # The dead worker may have joined and died between two renewals, and yet have claimed a shard.
                self._changed()


def now_s() -> float:
    """Return monotonic time; it includes suspensions of the machine if the system has such a clock."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if clock is None else time.clock_gettime(clock)


def remove_worker(pool: NodePool, catalog: str, worker: str) -> None:
    """Delete a dead worker from the catalog, so that others do not wait for its lease to expire."""
    pool.execute(sql.delete_worker(catalog, worker))


def _member(worker: str, followers: Sequence[str], status: Mapping[str, Any]) -> Member:
    busy = status.get("busy_with")
    pair = None if busy is None else (str(busy[0]), int(busy[1]))
    return Member(worker, frozenset(followers), pair, status.get("role", ALL))
