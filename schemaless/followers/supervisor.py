"""``trigger run`` and ``index run``: worker processes, and others in place of those that die.

A worker's own process is what a function may do whatever it likes to: leak, hang, crash. The supervisor calls nothing.
"""

from __future__ import annotations

import logging
import multiprocessing
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Final, Protocol

from schemaless.datastore import Datastore
from schemaless.errors import InvalidInput, SchemalessError
from schemaless.followers.handler import Dealer
from schemaless.followers.membership import Timing, remove_worker
from schemaless.followers.worker import Worker
from schemaless.internals import internals_of
from schemaless.opening import Opening, opening_of
from schemaless.runner_names import runner_name

_log = logging.getLogger("schemaless")

_TURN_S: Final = 0.2
_STOP_S: Final = 30.0
_FIRST_PAUSE_S: Final = 0.5
_MOST_PAUSE_S: Final = 30.0
_REMOVED: Final = 79
"""A worker ends with this status where what it works for was removed; a function may end it with any other."""

_LIVED_S: Final = 60.0
"""Who lived for so long did not die of its start."""


@dataclass(slots=True)
class _Child:
    name: str
    process: BaseProcess
    line: Connection
    began_s: float


class Work(Protocol):
    """What worker processes do; each gets a copy."""

    @property
    def title(self) -> str:
        """What it is called in messages."""

    def dealers(self, store: Datastore) -> Sequence[Dealer]:
        """Return what deals with cells, in a worker's own process."""


class Supervisor:
    """Keeps worker processes going.

    Args:
        store: the datastore.
        work: what they do.
        count: processes.
        timing: of the workers.
    """

    def __init__(self, store: Datastore, work: Work, count: int, *, timing: Timing | None = None) -> None:
        if count < 1:
            raise InvalidInput(f"workers must be 1 or more, got {count}")
        self._store = store
        self._work = work
        self._count = count
        self._timing = timing or Timing()
        self._name = runner_name()
        # Each process asks for the servers itself, so that a later one knows what has changed since.
        self._opening = replace(opening_of(store), topology=None)
        # A fork would have this process's threads' locks, and whatever the function's module opened.
        self._context = multiprocessing.get_context("spawn")
        self._children: list[_Child] = []
        self._made = 0
        self._removed = False
        self._pause_s = _FIRST_PAUSE_S
        self._again_s = 0.0

    def run(self, ended: Callable[[], bool] = lambda: False) -> None:
        """Work until ``ended`` says so, or for ever; on the way out workers end the calls that they are in."""
        try:
            while not ended():
                self._mourn()
                if self._removed:
                    _log.warning("%s was removed; nothing is left to do", self._work.title)
                    return
                while len(self._children) < self._count and time.monotonic() >= self._again_s:
                    self._children.append(self._start())
                wait([child.process.sentinel for child in self._children], _TURN_S)
        finally:
            self._stop()

    def _start(self) -> _Child:
        self._made += 1
        name = f"{self._name}/{self._made}"
        ours, theirs = self._context.Pipe()
        arguments = (self._opening, self._work, name, self._timing, theirs)
        process = self._context.Process(target=_work, args=arguments, name=f"worker {self._made}")
        process.start()
        theirs.close()
        return _Child(name, process, ours, time.monotonic())

    def _mourn(self) -> None:
        for child in list(self._children):
            if child.process.is_alive():
                continue
            self._children.remove(child)
            child.line.close()
            if child.process.exitcode == _REMOVED:
                self._removed = True
                return
            lived_s = time.monotonic() - child.began_s
            self._pause_s = _FIRST_PAUSE_S if lived_s > _LIVED_S else min(_MOST_PAUSE_S, self._pause_s * 2)
            self._again_s = time.monotonic() + self._pause_s
            _log.warning(
                "worker %s ended (%s) after %.0f s; its shards are taken over, and another begins in %.1f s",
                child.name,
                _how(child.process.exitcode),
                lived_s,
                self._pause_s,
            )
            self._remove(child)

    def _remove(self, child: _Child) -> None:
        """Have nobody wait for the lease of one that is known to be no more."""
        try:
            remove_worker(internals_of(self._store).catalog, self._store.name, child.name)
        except SchemalessError as error:
            _log.warning(
                "worker %s cannot be signed off, so the others wait for the end of its lease: %s", child.name, error
            )

    def _stop(self) -> None:
        for child in self._children:
            # Its end of the line tells it.
            child.line.close()
        until_s = time.monotonic() + _STOP_S
        try:
            for child in self._children:
                child.process.join(max(0.0, until_s - time.monotonic()))
        finally:
            for child in self._children:
                if child.process.is_alive():
                    _log.warning("worker %s is still in a call after %.0f s, and is killed", child.name, _STOP_S)
                    child.process.kill()
                    child.process.join()
                    self._remove(child)


def _how(status: int | None) -> str:
    if status is None or status >= 0:
        return f"exit status {status}"
    return signal.Signals(-status).name


def _work(opening: Opening, work: Work, name: str, timing: Timing, line: Connection) -> None:
    """Be a worker process, until the supervisor's end of the line is closed: when it stops, or dies."""
    # Ctrl-C and a service's end reach the whole group; the supervisor says what that means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    stop = threading.Event()
    threading.Thread(target=_listen, args=(line, stop), daemon=True).start()
    with opening.open() as store:
        # Comes back where it was told to stop, or what it works for was removed.
        Worker(store, work.dealers(store), name, timing=timing, stop=stop).run()
    if not stop.is_set():
        sys.exit(_REMOVED)


def _listen(line: Connection, stop: threading.Event) -> None:
    try:
        line.poll(None)
    finally:
        stop.set()
