"""The supervisor of ``trigger run`` and ``index run``: it starts worker processes and replaces those that die.

A user function may leak memory, hang or crash in its worker's process. The supervisor's own process never calls one.
"""

from __future__ import annotations

import logging
import math
import multiprocessing
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Final, NamedTuple, Protocol

from schemaless.base.interrupts import ignore_interrupts, starting_processes
from schemaless.base.runner_names import runner_name
from schemaless.errors import InvalidInput, SchemalessError
from schemaless.store.followers.access import DatastoreAccess
from schemaless.store.followers.black_box import BlackBox
from schemaless.store.followers.handler import Handler
from schemaless.store.followers.membership import HEALTHY, QUARANTINE, Pair, Role, Timing, remove_worker
from schemaless.store.followers.parked import Move
from schemaless.store.followers.rows import FollowerRow, FollowerRows
from schemaless.store.followers.states import DIED
from schemaless.store.followers.worker import Worker

_log = logging.getLogger("schemaless")

_TURN_S: Final = 0.2
STOP_S: Final = 25.0
"""Default time that workers are given to finish their calls before they are killed, in seconds; Kubernetes kills all
processes of a container after 30 seconds."""

_FIRST_PAUSE_S: Final = 0.5
_MAX_PAUSE_S: Final = 30.0
"""Maximum backoff after the death of a worker, in seconds; the backoff doubles with each death."""

_REMOVED: Final = 79
"""Exit status of a worker that ends between calls because its followers were removed."""

_LIVED_S: Final = 60.0
"""Lifetime of a worker after which its backoff is reset, in seconds."""

_KILLED_PAUSE_S: Final = 0.2
_MAX_KILLED_PAUSE_S: Final = 5.0
"""Maximum pause before a worker killed by a shard is replaced, in seconds; it grows with each successive death."""

_FIRST_SHARD_PAUSE_S: Final = 0.1
"""Backoff of a shard after its first kill, in seconds; it doubles with each further kill at the same place."""

_UNNEEDED_S: Final = 10.0
"""Time after which a worker for quarantined shards that is not needed is stopped, in seconds."""

_BURIALS_AT_ONCE: Final = 4
_HURRY: Final = b"hurry"


@dataclass(slots=True)
class _Child:
    name: str
    process: BaseProcess
    line: Connection
    began_s: float
    box: BlackBox
    dismissed: bool = False

    def dismiss(self) -> None:
        """Make the worker finish its call, release its shards and exit."""
        self.dismissed = True
        # The worker's end of the pipe reports that.
        self.line.close()

    def hurry(self) -> None:
        """Make the worker read the membership at once."""
        # The worker may be dead or dismissed. A frozen worker must not block the supervisor once its pipe is full.
        with suppress(OSError):
            poll = select.poll()
            poll.register(self.line.fileno(), select.POLLOUT)
            if poll.poll(0):
                self.line.send_bytes(_HURRY)


class OpenWork(NamedTuple):
    """An open datastore in a worker process, and the handlers of the worker."""

    access: DatastoreAccess
    handlers: Sequence[Handler]


class Work(Protocol):
    """The work of worker processes; each process gets a copy."""

    @property
    def title(self) -> str:
        """Description of the work, for messages."""

    def open(self) -> AbstractContextManager[OpenWork]:
        """Open the datastore and create the handlers, in a worker process."""


@dataclass(slots=True)
class _Seat:
    """A worker process and its successors.

    Attributes:
        role: which shards they serve.
        child: the running process; None between two processes.
        burial: cleanup after the last process; None once it is done.
        pause_s: backoff after deaths that are not blamed on a shard, in seconds.
        kills: number of successive deaths blamed on shards.
        again_s: when the next process starts, on the monotonic clock.
    """

    role: Role
    child: _Child | None = None
    burial: Future[bool] | None = None
    pause_s: float = 0.0
    kills: int = 0
    again_s: float = 0.0

    @property
    def vacant(self) -> bool:
        """True if the next process may start."""
        return self.child is None and self.burial is None and time.monotonic() >= self.again_s

    def back_off(self, lived_s: float, *, blamed: bool) -> float:
        """Schedule the start of the next process; return the time until then, in seconds.

        The backoff of a shard that killed a worker is kept in its row, and a shard can kill only one worker for healthy
        shards, because it is then quarantined. After such a death the seat pauses only briefly, just enough to keep a
        function that crashes on every cell from using up the machine's processors. Any other death doubles the pause of
        this seat.
        """
        if lived_s > _LIVED_S:
            self.pause_s, self.kills = 0.0, 0
        if blamed:
            self.kills += 1
            wait_s = min(_MAX_KILLED_PAUSE_S, self.kills * _KILLED_PAUSE_S)
            wait_s = _KILLED_PAUSE_S if self.role == QUARANTINE else wait_s
        else:
            self.pause_s = wait_s = min(_MAX_PAUSE_S, max(_FIRST_PAUSE_S, self.pause_s * 2))
        self.again_s = time.monotonic() + wait_s
        return wait_s


class Supervisor:
    """Runs worker processes.

    A worker that dies while it works on a shard leaves a record of the shard in its black box. The supervisor then
    quarantines the shard in its row, releases the worker's other shards, and replaces the worker. While there are
    quarantined shards, it runs additional workers for them: at most as many as the others, and only one if few shards
    are quarantined.

    Args:
        access: the datastore, in this process.
        work: what the worker processes do.
        followers: returns the names of the followers that they serve.
        count: number of processes for healthy shards.
        timing: intervals and timeouts of the workers.
        max_deaths: number of successive deaths at the same place after which a shard is stopped; None to continue, if
            the handlers count the attempts at a cell themselves or wait for a remedy.
    """

    def __init__(
        self,
        access: DatastoreAccess,
        work: Work,
        followers: Callable[[], Sequence[str]],
        count: int,
        *,
        timing: Timing | None = None,
        max_deaths: int | None = None,
    ) -> None:
        if count < 1:
            raise InvalidInput(f"workers must be 1 or more, got {count}")
        self._access = access
        self._work = work
        self._followers = followers
        self._count = count
        self._timing = timing or Timing()
        self._max_deaths = max_deaths
        self._name = runner_name()
        # A fork would inherit locks held by threads of this process, and everything the function's module has opened.
        self._context = multiprocessing.get_context("spawn")
        self._healthy = [_Seat(HEALTHY) for _ in range(count)]
        self._quarantine = [_Seat(QUARANTINE) for _ in range(count)]
        self._wanted_s = [-math.inf] * count  # when each worker for quarantined shards was last needed
        self._kills: dict[Pair, _Kills] = {}
        # A server that does not answer must not delay the replacement of other workers.
        self._burials = ThreadPoolExecutor(_BURIALS_AT_ONCE, "burial")
        self._made = 0
        self._removed = False

    def run(self, ended: Callable[[], bool] = lambda: False, *, stop_s: float = STOP_S) -> None:
        """Run workers until ``ended`` returns True, then let them finish their calls.

        Args:
            ended: called several times a second.
            stop_s: time that running calls get to complete before they are killed, in seconds.
        """
        try:
            while not ended():
                for seat in (*self._healthy, *self._quarantine):
                    self._mourn(seat)
                if self._removed:
                    _log.warning("%s was removed; nothing is left to do", self._work.title)
                    return
                for seat in self._healthy:
                    self._fill(seat)
                self._serve_quarantined()
                wait([child.process.sentinel for child in self._children], _TURN_S)
        finally:
            self._stop(stop_s)

    @property
    def _children(self) -> list[_Child]:
        return [seat.child for seat in (*self._healthy, *self._quarantine) if seat.child is not None]

    def _fill(self, seat: _Seat) -> None:
        if seat.vacant:
            seat.child = self._start(seat.role)

    def _serve_quarantined(self) -> None:
        """Start workers for quarantined shards, and stop those that have not been needed for a while."""
        healthy, quarantine = (
            [seat.child.box for seat in seats if seat.child is not None] for seats in (self._healthy, self._quarantine)
        )
        # Both kinds of workers count them; either kind may have no process at the moment.
        quarantined = max(sum(box.quarantined for box in boxes) for boxes in (healthy, quarantine))
        others = sum(box.healthy for box in healthy)
        every = quarantined + others if others else max(quarantined, self._access.shard_count)
        wanted = math.ceil(self._count * quarantined / every)
        now_s = time.monotonic()
        for number, seat in enumerate(self._quarantine):
            if number < wanted:
                self._wanted_s[number] = now_s
                self._fill(seat)
            elif seat.child is not None and now_s > self._wanted_s[number] + _UNNEEDED_S:
                # The worker releases its shards and exits.
                seat.child.dismiss()

    def _start(self, role: Role) -> _Child:
        self._made += 1
        name = f"{self._name}/{self._made}"
        box = BlackBox(self._context)
        ours, theirs = self._context.Pipe()
        arguments = (self._work, name, self._timing, role, box, theirs)
        process = self._context.Process(target=_work, args=arguments, name=f"worker {self._made}")
        with starting_processes():
            process.start()
        theirs.close()
        return _Child(name, process, ours, time.monotonic(), box)

    def _mourn(self, seat: _Seat) -> None:
        """Detect the death of a seat's process, and start the cleanup."""
        if seat.burial is not None and seat.burial.done():
            seat.burial.result()
            seat.burial = None
        child = seat.child
        if child is None or child.process.is_alive():
            return
        seat.child = None
        child.line.close()
        if not child.box.busy and child.process.exitcode == _REMOVED:
            self._removed = True
            return
        if not child.box.busy and child.process.exitcode == 0 and child.dismissed:
            return
        lived_s = time.monotonic() - child.began_s
        seat.burial = self._burials.submit(self._bury, seat, child, lived_s)

    def _bury(self, seat: _Seat, child: _Child, lived_s: float) -> bool:
        """Clean up after a dead worker; return True if a shard was blamed for the death.

        The shard is quarantined and the others are released before the worker's membership is deleted, because other
        workers may claim its shards afterwards.
        """
        how, pair = _how(child.process.exitcode), child.box.at
        blamed = False
        try:
            if child.box.claimed:
                blamed = self._settle(child, pair, how)
        except SchemalessError as error:
            _log.warning("cannot release shards of dead worker %s; others will claim them: %s", child.name, error)
        wait_s = seat.back_off(lived_s, blamed=blamed)
        _log.warning(
            "worker %s ended (%s) after %.0f s%s; its shards are taken over, and another worker starts in %.1f s",
            child.name,
            how,
            lived_s,
            f", while it worked on shard {pair[1]} for {pair[0]}" if pair is not None else "",
            wait_s,
        )
        self._remove(child)
        for other in self._children:
            other.hurry()
        return blamed

    def _settle(self, child: _Child, pair: Pair | None, how: str) -> bool:
        rows = FollowerRows(self._access.shards)
        names = self._followers()
        looked = rows.look((name, shard) for name in names for shard in range(self._access.shard_count))
        blamed = False
        if pair is not None and (row := looked.rows.get(pair)) is not None and row.worker == child.name:
            kills = self._kills.setdefault(pair, _Kills())
            pause_s = kills.next_pause_s(row)
            if self._max_deaths is not None and kills.count >= self._max_deaths:
                rows.stop(Move(pair, row.epoch, row.location), f"{DIED} ({how}), {kills.count} times in a row")
                _log.warning("%s: shard %d has stopped: %d workers died while handling it", *pair, kills.count)
            blamed = rows.quarantine(pair, row.epoch, f"{DIED} ({how})", pause_s)
            if blamed and not row.quarantined:
                _log.warning(
                    "%s: shard %d is quarantined, because worker %s died while handling it; a separate worker "
                    "handles its cells one at a time",
                    *pair,
                    child.name,
                )
        if child.box.busy and not blamed:
            # Any of its shards may be at fault, so their next owners handle them carefully.
            return False
        for other, row in looked.rows.items():
            if row.worker == child.name and other != pair:
                rows.release(other, row.epoch)
        return blamed

    def _remove(self, child: _Child) -> None:
        """Delete a dead worker's membership, so that the others do not wait for its lease to expire."""
        try:
            remove_worker(self._access.catalog(), self._access.name, child.name)
        except SchemalessError as error:
            _log.warning(
                "cannot delete dead worker %s from the catalog; other workers wait for its lease to expire: %s",
                child.name,
                error,
            )

    def _stop(self, stop_s: float) -> None:
        children = self._children
        for child in children:
            child.dismiss()
        began_s = time.monotonic()
        try:
            for child in children:
                child.process.join(max(0.0, began_s + stop_s - time.monotonic()))
        finally:
            for child in children:
                if child.process.is_alive():
                    # Less than ``stop_s`` after a second signal.
                    waited_s = time.monotonic() - began_s
                    _log.warning("worker %s is still in a call after %.0f s, so it is killed", child.name, waited_s)
                    child.process.kill()
                    child.process.join()
                    self._remove(child)
            self._burials.shutdown()


@dataclass(slots=True)
class _Kills:
    """Counts how often a shard killed its worker at the same place.

    Attributes:
        place: location and number of parked cells to try again, at the last death.
        count: number of deaths at that place.
    """

    place: tuple[int, int] = (-1, 0)
    count: int = 0

    def next_pause_s(self, row: FollowerRow) -> float:
        """Count a death and return the backoff, in seconds; attempts counted by other supervisors are included."""
        place = row.location, row.replays
        self.count = self.count + 1 if place == self.place else 1
        self.place = place
        return float(min(_MAX_PAUSE_S, _FIRST_SHARD_PAUSE_S * 2 ** min(max(self.count, row.attempts) - 1, 20)))


def _how(status: int | None) -> str:
    if status is None or status >= 0:
        return f"exit status {status}"
    return signal.Signals(-status).name


def _work(work: Work, name: str, timing: Timing, role: Role, box: BlackBox, line: Connection) -> None:
    """Run a worker in this process until the supervisor closes its end of the pipe, or dies."""
    # Ctrl-C, SIGTERM and SIGHUP may reach the whole process group; the supervisor decides what happens.
    ignore_interrupts()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    stop = threading.Event()
    with work.open() as (access, handlers):
        worker = Worker(access, handlers, name, timing=timing, stop=stop, role=role, box=box)
        threading.Thread(target=_listen, args=(line, worker, stop), daemon=True).start()
        # Returns after ``stop`` is set, or when all followers have been removed.
        worker.run()
    if not stop.is_set():
        sys.exit(_REMOVED)


def _listen(line: Connection, worker: Worker, stop: threading.Event) -> None:
    try:
        while line.recv_bytes() == _HURRY:
            worker.hurry()
    except (EOFError, OSError):
        # The other end was closed.
        pass
    finally:
        stop.set()
