"""The supervisor of ``trigger run`` and ``index run``: it starts worker processes and replaces those that die.

A user function may leak memory, hang or crash in its worker's process. The supervisor's own process never calls one.
"""

from __future__ import annotations

import math
import multiprocessing
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass
from enum import Enum, auto
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Final, NamedTuple

from schemaless.base.interrupts import ignore_interrupts, starting_processes
from schemaless.base.logger import log
from schemaless.base.runner_names import runner_name
from schemaless.errors import InvalidInput, SchemalessError, ServerError
from schemaless.store.followers.access import DatastoreAccess
from schemaless.store.followers.black_box import BlackBox
from schemaless.store.followers.handler import Handler
from schemaless.store.followers.membership import HEALTHY, QUARANTINE, Pair, Role, Timing, remove_worker
from schemaless.store.followers.rows import FollowerRow, FollowerRows, Move
from schemaless.store.followers.states import DIED
from schemaless.store.followers.worker import Worker

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


class OpenWork(NamedTuple):
    """An open datastore in a worker process, and the handlers of the worker."""

    access: DatastoreAccess
    handlers: Sequence[Handler]


@dataclass(frozen=True, slots=True)
class Work:
    """The work of worker processes; each process gets a pickled copy.

    Attributes:
        title: description of the work, for messages.
        open: opens the datastore and creates the handlers, in a worker process.
    """

    title: str
    open: Callable[[], AbstractContextManager[OpenWork]]


class _State(Enum):
    """State of a seat: vacant, running, dismissed (in any order), dead, and vacant again."""

    VACANT = auto()
    RUNNING = auto()
    DISMISSED = auto()
    DEAD = auto()


class _Seat:
    """A worker process and its successors.

    Attributes:
        role: which shards they serve.
        state: vacant until the next process starts; dismissed while a process finishes its call, releases its shards
            and exits; dead while the shards of a dead process are released.
        again_s: when the next process may start, on the monotonic clock.
        needed_s: when a process was last needed, on the monotonic clock.
        kills: number of successive deaths blamed on shards.
        name: name of the worker; like the next three, of the last process.
        process: the process.
        box: tells what the process was doing, even after its death.
        burial: cleanup after its death.
    """

    name: str
    process: BaseProcess
    box: BlackBox
    burial: Future[None]

    def __init__(self, role: Role) -> None:
        self.role: Role = role
        self.state = _State.VACANT
        self.again_s = 0.0
        self.needed_s = -math.inf
        self._began_s = 0.0
        self.kills = 0
        # Backoff after deaths that are not blamed on a shard, in seconds.
        self._pause_s = 0.0

    @property
    def is_occupied(self) -> bool:
        """True if there is a process, alive or not noticed to be dead."""
        return self.state in (_State.RUNNING, _State.DISMISSED)

    @property
    def lived_s(self) -> float:
        """Time since the process was started, in seconds."""
        return time.monotonic() - self._began_s

    def start(self, work: Work, name: str, timing: Timing) -> None:
        """Start a process."""
        # A fork would inherit locks held by threads of this process, and everything the function's module has opened.
        context = multiprocessing.get_context("spawn")
        self.name, self.box = name, BlackBox(context)
        self._line, theirs = context.Pipe()
        arguments = (work, name, timing, self.role, self.box, theirs)
        self.process = context.Process(target=_work, args=arguments, name=f"worker {name.rpartition('/')[2]}")
        with starting_processes():
            self.process.start()
        theirs.close()
        self.state, self._began_s = _State.RUNNING, time.monotonic()

    def dismiss(self) -> None:
        """Make the worker finish its call, release its shards and exit."""
        self.state = _State.DISMISSED
        # The worker's end of the pipe reports that.
        self._line.close()

    def hurry(self) -> None:
        """Make the worker read the membership at once."""
        # The worker may be dead or dismissed. A frozen worker must not block the supervisor once its pipe is full.
        with suppress(OSError):
            poll = select.poll()
            poll.register(self._line.fileno(), select.POLLOUT)
            if poll.poll(0):
                self._line.send_bytes(_HURRY)

    def end(self) -> bool:
        """Note that the process has ended; return True if it died, False if it was dismissed or had nothing to do."""
        self._line.close()
        left = self.process.exitcode == _REMOVED or (self.process.exitcode == 0 and self.state is _State.DISMISSED)
        died = self.box.busy or not left
        self.state = _State.DEAD if died else _State.VACANT
        return died

    def back_off(self, lived_s: float, *, blamed: bool) -> float:
        """Schedule the start of the next process; return the time until then, in seconds.

        The backoff of a shard that killed a worker is kept in its row, and a shard can kill only one worker for healthy
        shards, because it is then quarantined. After such a death the seat pauses only briefly, just enough to keep a
        function that crashes on every cell from using up the machine's processors. Any other death doubles the pause of
        this seat.
        """
        if lived_s > _LIVED_S:
            self._pause_s, self.kills = 0.0, 0
        if blamed:
            self.kills += 1
            kills = 1 if self.role == QUARANTINE else self.kills
            wait_s = min(_MAX_KILLED_PAUSE_S, kills * _KILLED_PAUSE_S)
        else:
            self._pause_s = wait_s = min(_MAX_PAUSE_S, max(_FIRST_PAUSE_S, self._pause_s * 2))
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
        self._healthy = [_Seat(HEALTHY) for _ in range(count)]
        self._quarantine = [_Seat(QUARANTINE) for _ in range(count)]
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
                    log.warning("%s was removed; nothing is left to do", self._work.title)
                    return
                for seat in self._healthy:
                    self._fill(seat)
                self._serve_quarantined()
                wait([seat.process.sentinel for seat in self._occupied], _TURN_S)
        finally:
            self._stop(stop_s)

    @property
    def _occupied(self) -> list[_Seat]:
        return [seat for seat in (*self._healthy, *self._quarantine) if seat.is_occupied]

    def _fill(self, seat: _Seat) -> None:
        """Start a seat's next process, unless there is one or it is too early."""
        if seat.state is _State.VACANT and time.monotonic() >= seat.again_s:
            self._made += 1
            seat.start(self._work, f"{self._name}/{self._made}", self._timing)

    def _serve_quarantined(self) -> None:
        """Start workers for quarantined shards, and stop those that have not been needed for a while."""
        healthy, quarantine = (
            [seat.box for seat in seats if seat.is_occupied] for seats in (self._healthy, self._quarantine)
        )
        # Both kinds of workers count them; either kind may have no process at the moment.
        quarantined = max(sum(box.quarantined for box in boxes) for boxes in (healthy, quarantine))
        others = sum(box.healthy for box in healthy)
        every = quarantined + others if others else max(quarantined, self._access.shard_count)
        wanted = math.ceil(self._count * quarantined / every)
        now_s = time.monotonic()
        for number, seat in enumerate(self._quarantine):
            if number < wanted:
                seat.needed_s = now_s
                self._fill(seat)
            elif seat.is_occupied and now_s > seat.needed_s + _UNNEEDED_S:
                seat.dismiss()

    def _mourn(self, seat: _Seat) -> None:
        """Detect the death of a seat's process, and start the cleanup."""
        if seat.state is _State.DEAD and seat.burial.done():
            seat.burial.result()
            seat.state = _State.VACANT
        if seat.is_occupied and not seat.process.is_alive():
            if seat.end():
                seat.burial = self._burials.submit(self._bury, seat, seat.lived_s)
            else:
                self._removed |= seat.process.exitcode == _REMOVED

    def _bury(self, seat: _Seat, lived_s: float) -> None:
        """Clean up after a dead worker.

        The shard that is blamed for the death is quarantined and the others are released before the worker's membership
        is deleted, because other workers may claim its shards afterwards.
        """
        how, pair = _how(seat.process.exitcode), seat.box.at
        blamed = False
        try:
            if seat.box.claimed:
                blamed = self._settle(seat, pair, how)
        except SchemalessError as error:
            log.warning("cannot release shards of dead worker %s; others will claim them: %s", seat.name, error)
        wait_s = seat.back_off(lived_s, blamed=blamed)
        log.warning(
            "worker %s ended (%s) after %.0f s%s; its shards are taken over, and another worker starts in %.1f s",
            seat.name,
            how,
            lived_s,
            f", while it worked on shard {pair[1]} for {pair[0]}" if pair is not None else "",
            wait_s,
        )
        self._remove(seat.name)
        for other in self._occupied:
            other.hurry()

    def _settle(self, seat: _Seat, pair: Pair | None, how: str) -> bool:
        """Quarantine the shard that killed a worker and release its others; return True if a shard was blamed."""
        rows = FollowerRows(self._access.shards)
        names = self._followers()
        looked = rows.look((name, shard) for name in names for shard in range(self._access.shard_count))
        blamed = False
        if pair is not None and (row := looked.rows.get(pair)) is not None and row.worker == seat.name:
            kills = self._kills.setdefault(pair, _Kills())
            pause_s = kills.next_pause_s(row)
            if self._max_deaths is not None and kills.count >= self._max_deaths:
                rows.stop(Move(pair, row.epoch, row.location), f"{DIED} ({how}), {kills.count} times in a row")
                log.warning("%s: shard %d has stopped: %d workers died while handling it", *pair, kills.count)
            blamed = rows.quarantine(pair, row.epoch, f"{DIED} ({how})", pause_s)
            if blamed and not row.quarantined:
                log.warning(
                    "%s: shard %d is quarantined, because worker %s died while handling it; a separate worker "
                    "handles its cells one at a time",
                    *pair,
                    seat.name,
                )
        # Unless one is to blame, any of its shards may be at fault, so their next owners handle them carefully.
        for other, row in looked.rows.items() if blamed or not seat.box.busy else ():
            if row.worker == seat.name and other != pair:
                rows.release(other, row.epoch)
        return blamed

    def _remove(self, worker: str) -> None:
        """Delete a dead worker's membership, so that the others do not wait for its lease to expire."""
        try:
            remove_worker(self._access.catalog(), self._access.name, worker)
        except SchemalessError as error:
            log.warning(
                "cannot delete dead worker %s from the catalog; other workers wait for its lease to expire: %s",
                worker,
                error,
            )

    def _stop(self, stop_s: float) -> None:
        seats = self._occupied
        for seat in seats:
            seat.dismiss()
        began_s = time.monotonic()
        try:
            for seat in seats:
                seat.process.join(max(0.0, began_s + stop_s - time.monotonic()))
        finally:
            for seat in seats:
                if seat.process.is_alive():
                    # Less than ``stop_s`` after a second signal.
                    waited_s = time.monotonic() - began_s
                    log.warning("worker %s is still in a call after %.0f s, so it is killed", seat.name, waited_s)
                    seat.process.kill()
                    seat.process.join()
                    self._remove(seat.name)
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
    with ExitStack() as stack:
        try:
            access, handlers = stack.enter_context(work.open())
        except ServerError as error:
            log.warning("a worker of %s cannot open the datastore: %s", work.title, error)
            sys.exit(1)
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
