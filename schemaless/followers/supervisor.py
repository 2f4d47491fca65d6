"""``trigger run`` and ``index run``: worker processes, and others in place of those that die.

A worker's own process is what a function may do whatever it likes to: leak, hang, crash. The supervisor calls nothing.
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

from schemaless.errors import InvalidInput, SchemalessError
from schemaless.followers.access import DatastoreAccess
from schemaless.followers.black_box import BlackBox
from schemaless.followers.handler import Handler
from schemaless.followers.membership import HEALTHY, QUARANTINE, Pair, Role, Timing, remove_worker
from schemaless.followers.rows import FollowerRow, FollowerRows
from schemaless.followers.states import DIED
from schemaless.followers.worker import Worker
from schemaless.interrupts import ignore_interrupts, starting_processes
from schemaless.runner_names import runner_name

_log = logging.getLogger("schemaless")

_TURN_S: Final = 0.2
_STOP_S: Final = 30.0
_FIRST_PAUSE_S: Final = 0.5
_MOST_PAUSE_S: Final = 30.0
_REMOVED: Final = 79
"""Exit status of a worker whose follower was removed, if it ends between calls."""

_LIVED_S: Final = 60.0
"""Who lived for so long did not die of its start."""

_KILLED_PAUSE_S: Final = 0.2
_MOST_KILLED_PAUSE_S: Final = 5.0
"""Pause before a worker that a shard killed is replaced, in seconds: this much longer for each of them in a row."""

_FIRST_SHARD_PAUSE_S: Final = 0.1
"""Backoff of a shard after its first kill, in seconds; it doubles while the shard stays where it is."""

_UNNEEDED_S: Final = 10.0
"""A worker for quarantined shards is stopped when there were none for this long, in seconds."""

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
        """Have it end the call that it is in, give its shards back, and end."""
        self.dismissed = True
        # Its end of the line reports that.
        self.line.close()

    def hurry(self) -> None:
        """Have it see at once which workers live."""
        # It may be dead or dismissed by now; if it is frozen, it has enough to read.
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
        """Description of the work in messages."""

    def open(self) -> AbstractContextManager[OpenWork]:
        """Open the datastore and create the handlers, in a worker process."""


@dataclass(slots=True)
class _Seat:
    """A worker process and its successors.

    Attributes:
        role: which shards they serve.
        child: the process; None between one and the next.
        burial: what the death of the last process led to, once that is known; None if it is settled.
        pause_s: the backoff after deaths that no shard is to blame for.
        kills: how many deaths in a row were blamed on shards.
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
        """Whether the next process may start."""
        return self.child is None and self.burial is None and time.monotonic() >= self.again_s

    def back_off(self, lived_s: float, *, blamed: bool) -> float:
        """Set when the next process starts; return how long that is from now, in seconds.

        The backoff of a shard that killed a worker is kept in its row, and each shard kills one worker for healthy
        shards at most: such deaths only have a pause that keeps a function which dies of every cell from using up the
        machine's processors. Any other death doubles the pause of this seat.
        """
        if lived_s > _LIVED_S:
            self.pause_s, self.kills = 0.0, 0
        if blamed:
            self.kills += 1
            wait_s = min(_MOST_KILLED_PAUSE_S, self.kills * _KILLED_PAUSE_S)
            wait_s = _KILLED_PAUSE_S if self.role == QUARANTINE else wait_s
        else:
            self.pause_s = wait_s = min(_MOST_PAUSE_S, max(_FIRST_PAUSE_S, self.pause_s * 2))
        self.again_s = time.monotonic() + wait_s
        return wait_s


class Supervisor:
    """Keeps worker processes going.

    A worker that dies while it works on a shard leaves the shard in its black box. The supervisor then quarantines the
    shard in its row, releases the worker's other shards, and replaces the worker. While there are quarantined shards,
    it runs workers for them beside the others: at most as many, and one if few shards are quarantined.

    Args:
        access: the datastore, in this process.
        work: what the worker processes do.
        followers: returns the names of the followers that they serve.
        count: number of processes for healthy shards.
        timing: intervals and timeouts of the workers.
    """

    def __init__(
        self,
        access: DatastoreAccess,
        work: Work,
        followers: Callable[[], Sequence[str]],
        count: int,
        *,
        timing: Timing | None = None,
    ) -> None:
        if count < 1:
            raise InvalidInput(f"workers must be 1 or more, got {count}")
        self._access = access
        self._work = work
        self._followers = followers
        self._count = count
        self._timing = timing or Timing()
        self._name = runner_name()
        # A fork would have this process's threads' locks, and whatever the function's module opened.
        self._context = multiprocessing.get_context("spawn")
        self._healthy = [_Seat(HEALTHY) for _ in range(count)]
        self._quarantine = [_Seat(QUARANTINE) for _ in range(count)]
        self._wanted_s = [-math.inf] * count  # when each worker for quarantined shards was needed last
        self._kills: dict[Pair, _Kills] = {}
        # A server that does not answer must not keep this from replacing other workers.
        self._burials = ThreadPoolExecutor(_BURIALS_AT_ONCE, "burial")
        self._made = 0
        self._removed = False

    def run(self, ended: Callable[[], bool] = lambda: False) -> None:
        """Work until ``ended`` says so, or for ever; on the way out workers end the calls that they are in."""
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
            self._stop()

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
        # Both kinds of workers look for them; either may have no process at the moment.
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
                # It gives back what it has, and ends.
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
        """Find out whether a seat's process died, and of what; see that its shards are served."""
        if seat.burial is not None and seat.burial.done():
            seat.burial.result()
            seat.burial = None
        child = seat.child
        if child is None or child.process.is_alive():
            return
        seat.child = None
        child.line.close()
        if child.box.at is None and child.process.exitcode == _REMOVED:
            self._removed = True
            return
        if child.box.at is None and child.process.exitcode == 0 and child.dismissed:
            return
        lived_s = time.monotonic() - child.began_s
        seat.burial = self._burials.submit(self._bury, seat, child, lived_s)

    def _bury(self, seat: _Seat, child: _Child, lived_s: float) -> bool:
        """Quarantine the shard that a worker died of, release its others, and sign it off; return whether there is one.

        In this order: others may claim shards of a worker only once it is signed off.
        """
        how, pair = _how(child.process.exitcode), child.box.at
        blamed = False
        try:
            if child.box.claimed:
                blamed = self._settle(child, pair, how)
        except SchemalessError as error:
            _log.warning("the shards of worker %s are left to its successors as they are: %s", child.name, error)
        wait_s = seat.back_off(lived_s, blamed=blamed)
        _log.warning(
            "worker %s ended (%s) after %.0f s%s; its shards are taken over, and another begins in %.1f s",
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
            pause_s = self._kills.setdefault(pair, _Kills()).next_pause_s(row)
            blamed = rows.quarantine(pair, row.epoch, f"{DIED} ({how})", pause_s)
            if blamed and not row.quarantined:
                _log.warning(
                    "%s: shard %d is quarantined, since worker %s died of it: a worker of its own calls its cells "
                    "one at a time",
                    *pair,
                    child.name,
                )
        if pair is not None and not blamed:
            # Any of its shards may be at fault: whoever claims one takes care.
            return False
        for other, row in looked.rows.items():
            if row.worker == child.name and other != pair:
                rows.release(other, row.epoch)
        return blamed

    def _remove(self, child: _Child) -> None:
        """Have nobody wait for the lease of one that is known to be no more."""
        try:
            remove_worker(self._access.catalog(), self._access.name, child.name)
        except SchemalessError as error:
            _log.warning(
                "worker %s cannot be signed off, so the others wait for the end of its lease: %s", child.name, error
            )

    def _stop(self) -> None:
        children = self._children
        for child in children:
            child.dismiss()
        until_s = time.monotonic() + _STOP_S
        try:
            for child in children:
                child.process.join(max(0.0, until_s - time.monotonic()))
        finally:
            for child in children:
                if child.process.is_alive():
                    _log.warning("worker %s is still in a call after %.0f s, and is killed", child.name, _STOP_S)
                    child.process.kill()
                    child.process.join()
                    self._remove(child)
            self._burials.shutdown()


@dataclass(slots=True)
class _Kills:
    """How often a shard killed its worker at the place where it is.

    Attributes:
        place: location, and number of parked cells to be tried again, at the last death.
        count: deaths at that place.
    """

    place: tuple[int, int] = (-1, 0)
    count: int = 0

    def next_pause_s(self, row: FollowerRow) -> float:
        """Note a death; return how long the shard is left alone after it. Attempts counted by others count, too."""
        place = row.location, row.replays
        self.count = self.count + 1 if place == self.place else 1
        self.place = place
        return float(min(_MOST_PAUSE_S, _FIRST_SHARD_PAUSE_S * 2 ** min(max(self.count, row.attempts) - 1, 20)))


def _how(status: int | None) -> str:
    if status is None or status >= 0:
        return f"exit status {status}"
    return signal.Signals(-status).name


def _work(work: Work, name: str, timing: Timing, role: Role, box: BlackBox, line: Connection) -> None:
    """Be a worker process, until the supervisor's end of the line is closed: when it stops, or dies."""
    # Ctrl-C and a service's end reach the whole group; the supervisor says what that means.
    ignore_interrupts()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    stop = threading.Event()
    with work.open() as (access, handlers):
        worker = Worker(access, handlers, name, timing=timing, stop=stop, role=role, box=box)
        threading.Thread(target=_listen, args=(line, worker, stop), daemon=True).start()
        # Comes back where it was told to stop, or what it works for was removed.
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
