"""Who works: the workers that live, by leases in the catalog, and which of them each shard is dealt to.

A worker says that it lives every two seconds, on a thread of its own, and reads who else does. The shards are dealt
out by rendezvous hashing: of the workers that serve a follower, the one with the highest hash of worker, follower and
shard has the shard. So all of them come to the same deal without a word, and one that comes or goes moves its own
shards only.

The deal says who should have a shard. Who has it stands in the shard itself, with an epoch (``rows.py``): what two
workers think of each other at one moment need not agree for that to hold.
"""

from __future__ import annotations

import hashlib
import json
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Literal, Self

from schemaless.errors import SchemalessError
from schemaless.followers import sql
from schemaless.internals import Internals
from schemaless.wire.connection import Connection
from schemaless.wire.pool import NodePool, PoolOptions

_log = logging.getLogger("schemaless")

Pair = tuple[str, int]
"""A pair is a follower's name and a shard."""

Role = Literal["all", "healthy", "quarantine"]
"""Which shards a worker serves: all, those that are healthy, or those that are quarantined."""

ALL: Final = "all"
HEALTHY: Final = "healthy"
QUARANTINE: Final = "quarantine"

_ASK_S: Final = 3.0
_FORGET_S: Final = 3_600.0


@dataclass(frozen=True, slots=True)
class Timing:
    """How long things take, in seconds; what tests make shorter.

    Attributes:
        lease_s: how long a worker is taken to live without a word from it.
        give_up_s: after how long without having said so a worker begins nothing more; below ``lease_s``.
        renew_s: how often it says so.
        busy_s: after how long in one call a worker's other shards are dealt to others.
        note_s: how often locations are written down, at least; it is what comes again after a crash.
        look_s: how often an owner looks at its rows, at most: for parked cells that are to be tried again, and for a
            shard that was taken from it. Else it only looks for new cells.
        connect_s: how long it waits, at most, until it connects to a binary log again that was lost.
        refused_s: the same, where the server refused to send it.
        probation_s: how long a quarantined shard has to be at its end before it counts as healthy again.
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


@dataclass(frozen=True, slots=True)
class Member:
    """A worker that lives.

    Attributes:
        worker: its name.
        followers: the names of those that it serves.
        busy_with: the shard whose call it has been in for long; None where it has not.
        role: which shards it serves.
    """

    worker: str
    followers: frozenset[str]
    busy_with: Pair | None = None
    role: Role = ALL


@dataclass(frozen=True, slots=True)
class View:
    """What a worker saw in the catalog.

    Attributes:
        members: those that live, itself among them.
        wanted: what is wanted of each follower, by its name.
    """

    members: tuple[Member, ...]
    wanted: Mapping[str, str]

    def owner(self, pair: Pair, *, quarantined: bool = False) -> str | None:
        """Return the worker that a shard is dealt to; None if no worker serves the follower.

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

    def is_free(self, pair: Pair, owner: str | None) -> bool:
        """Whether others may take a shard that was somebody's: he lives no more, or is busy elsewhere."""
        member = self.member(owner)
        return member is None or (member.busy_with is not None and member.busy_with != pair)

    def member(self, worker: str | None) -> Member | None:
        """Return a worker that lives, by its name."""
        return next((member for member in self.members if member.worker == worker), None)


def _hash(worker: str, pair: Pair) -> bytes:
    return hashlib.blake2b(f"{worker} {pair[0]} {pair[1]}".encode(), digest_size=8).digest()


class Members:
    """A worker's place among the others, as a ``with`` block: alive from its beginning to its end.

    Args:
        internals: of the datastore.
        worker: its name, that no other has.
        followers: the names of the followers that it serves.
        timing: how often, and how long.
        beat: called at each sign of life; returns what others are to know, as JSON, "busy_with" and "role" among it.
        changed: called after a sign of life that found other members than the one before.

    Attributes:
        generation: rises where this worker did not say for too long that it lives: what was its own may be another's.
        error: why the last sign of life was not taken; None where it was.
    """

    def __init__(
        self,
        internals: Internals,
        worker: str,
        followers: Sequence[str],
        timing: Timing,
        beat: Callable[[], Mapping[str, Any]],
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        self.worker = worker
        self.generation = 0
        self.error: SchemalessError | None = None
        self._followers = json.dumps(list(followers))
        self._timing = timing
        self._beat = beat
        self._changed = changed
        self._catalog = internals.topology.name
        self._internals = internals
        self._pool = self._new_pool()
        self._renewed_s: float | None = None
        self._view: View | None = None
        self._ended = threading.Event()
        self._hurry = threading.Event()
        self._thread = threading.Thread(target=self._keep_alive, name="sign of life", daemon=True)

    def __enter__(self) -> Self:
        self.renew()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._hurry.set()
        self._thread.join()
        try:
            if error is None:
                remove_worker(self._pool, self._catalog, self.worker)
        except SchemalessError as left:
            _log.warning("%s could not sign off, and stays in the catalog until its lease ends: %s", self.worker, left)
        finally:
            self._pool.close()

    @property
    def alive(self) -> bool:
        """Whether this worker may begin something: the others take it to live, for a while yet."""
        renewed_s = self._renewed_s
        return renewed_s is not None and now_s() - renewed_s < self._timing.give_up_s

    @property
    def view(self) -> View | None:
        """What was seen at the last sign of life; None where that is too long ago."""
        return self._view if self.alive else None

    def renew(self) -> None:
        """Give a sign of life, and see who else lives; where the catalog does not answer, ``error`` says so."""
        started_s = now_s()
        figures = json.dumps(self._beat())

        def operation(connection: Connection) -> View:
            connection.execute(
                sql.renew_worker(self._catalog, self.worker, self._followers, figures, self._timing.lease_s)
            )
            connection.execute(sql.delete_dead_workers(self._catalog, _FORGET_S))
            members = tuple(
                _member(str(worker), json.loads(followers), json.loads(told))
                for worker, followers, _, told in connection.rows(sql.select_workers(self._catalog))
            )
            settings = connection.rows(sql.select_settings(self._catalog))
            return View(members, {str(name): str(wanted) for name, wanted, _ in settings})

        if self._pool.node != self._internals.catalog.node:
            self._pool.close()
            self._pool = self._new_pool()
        try:
            view = self._pool.run(operation)
        except SchemalessError as error:
            if self.error is None:
                _log.warning(
                    "%s cannot give a sign of life, and begins nothing new until it can: %s", self.worker, error
                )
            self.error = error
            # The catalog may be on another server by now, which is asked the next time.
            self._internals.shards.again(self._internals.shards.routing)
            return
        if self.error is not None:
            _log.warning("%s gives signs of life again", self.worker)
        if self._renewed_s is None or started_s - self._renewed_s >= self._timing.give_up_s:
            self.generation += 1
        before, self._view, self._renewed_s, self.error = self._view, view, started_s, None
        if before is None or before.members != view.members:
            self._changed()

    def hurry(self) -> None:
        """Renew now instead of at the next interval: the membership has changed."""
        self._hurry.set()

    def _new_pool(self) -> NodePool:
        # Of its own, with short waits: a sign of life must not stand in line behind anything.
        return self._internals.shards.new_pool(self._internals.catalog.node, PoolOptions(_ASK_S, _ASK_S, _ASK_S, 1))

    def _keep_alive(self) -> None:
        while True:
            hurried = self._hurry.wait(self._timing.renew_s)
            self._hurry.clear()
            if self._ended.is_set():
                return
            self.renew()
            if hurried:
                # The one that left may not have been seen at all, and yet have had a shard.
                self._changed()


def now_s() -> float:
    """Return seconds by a clock that goes on while the machine is suspended, where there is one."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if clock is None else time.clock_gettime(clock)


def remove_worker(pool: NodePool, catalog: str, worker: str) -> None:
    """Take a worker out of the catalog that is known to be no more: nobody need wait for its lease."""
    pool.run(lambda connection: connection.execute(sql.delete_worker(catalog, worker)), writes=True)


def _member(worker: str, followers: Sequence[str], told: Mapping[str, Any]) -> Member:
    busy = told.get("busy_with")
    pair = None if busy is None else (str(busy[0]), int(busy[1]))
    return Member(worker, frozenset(followers), pair, told.get("role", ALL))
