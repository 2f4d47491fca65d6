"""Runs the synchronous client on an event loop: each call in a greenlet that the loop resumes.

A greenlet has a stack of its own. Where the synchronous client would block, the greenlet switches back to the loop:

- For a socket or a connection slot it waits with a ``Waiter``. A callback of the loop resumes it directly; the task
  that made the call awaits one future until the call ends, because waking the task for each event would take longer
  than the rest of the event.
- For anything else it passes an awaitable to ``wait``, which the task awaits.

If the task is cancelled, ``CancelledError`` is raised where the greenlet waits, inside the synchronous code, like an
exception raised by a signal handler.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from time import monotonic
from typing import Any, Final, ParamSpec

from schemaless.base.type_variables import T
from schemaless.errors import WrongEventLoop

try:
    from greenlet import GreenletExit, getcurrent, greenlet
except ModuleNotFoundError:
    raise ModuleNotFoundError("schemaless.aio needs greenlet: pip install 'schemaless-store[async]'") from None

P = ParamSpec("P")

_MAX_IDLE: Final = 32
"""Maximum number of idle greenlets to keep; a call that finds none idle creates a new one."""

_TURN_S: Final = 0.001
"""Time that calls may take before the event loop gets a turn, in seconds; a single call may take longer."""

_DONE: Final = object()
_WAITS: Final = object()
"""Yielded by a greenlet that a ``Waiter`` resumes."""


class _Worker(greenlet):  # type: ignore[misc]
    """Greenlet that is reused for many calls, because starting one costs six times a call's other overhead.

    Attributes:
        bridge: runs the calls.
        waiter: the waiter that resumes the greenlet, or None.
        yielded: what the greenlet yielded last: ``_WAITS``, ``_DONE`` or an awaitable.
        progress: completed once the greenlet yields something other than ``_WAITS``; awaited by the call's task.
        outcome: result of the last call.
        error: exception that ended the last call, or None.
    """

    bridge: Bridge
    waiter: Waiter | None = None
    yielded: Any = None
    progress: asyncio.Future[None]
    outcome: Any = None
    error: BaseException | None = None

    def run(self, call: Callable[[], Any]) -> None:
        """Run calls until the greenlet is dropped."""
        while True:
            try:
                self.outcome = call()
            except GreenletExit:
                # The greenlet was dropped.
                return
            except BaseException as error:  # noqa: BLE001 - raised in the task
                self.error = error
            del call
            call = self.parent.switch(_DONE)


class Waiter:
    """An event that a greenlet waits for.

    Attributes:
        bridge: runs the greenlet.
    """

    __slots__ = ("_worker", "bridge")

    def __init__(self, worker: _Worker) -> None:
        self._worker = worker
        self.bridge: Bridge = worker.bridge

    @property
    def is_waiting(self) -> bool:
        """True until the greenlet is resumed, or its task is cancelled."""
        return self._worker.waiter is self and not self._worker.progress.done()

    def wait(self) -> Any:
        """Suspend the greenlet until ``resume`` is called; return its value, or raise it if it is an exception."""
        worker = self._worker
        worker.waiter = self
        value = worker.parent.switch(_WAITS)
        if isinstance(value, Exception):
            raise value
        return value

    def resume(self, value: Any = None) -> None:
        """Resume the greenlet, now or, if the loop should get a turn first, later. To be called by the event loop."""
        if self.bridge.is_due:
            self.bridge.enqueue(self, value)
        else:
            self.proceed(value)

    def resume_later(self, value: Any = None) -> None:
        """Resume the greenlet in one of the loop's next turns. Other greenlets may call this."""
        self.bridge.enqueue(self, value)

    def proceed(self, value: Any) -> None:
        """Switch to the greenlet, unless its task was cancelled."""
        worker = self._worker
        if worker.waiter is self and not worker.progress.done():
            self.bridge.switch(worker, value)
            if worker.yielded is not _WAITS and not worker.progress.done():
                worker.progress.set_result(None)


class Bridge:
    """Runs calls in greenlets on one event loop.

    Many replies may arrive at the same time. Once calls have run for a while without a turn of the event loop, the
    others are queued for its next turns, so that timers and other tasks are not late.

    Attributes:
        loop: the event loop; None before the first call.
    """

    def __init__(self) -> None:
        self.loop: asyncio.AbstractEventLoop | None = None
        self._idle: list[_Worker] = []
        self._spent_s = 0.0
        self._queue: deque[tuple[Waiter, Any]] = deque()
        self._has_scheduled_turn = False

    async def run(self, call: Callable[[], T]) -> T:
        """Run a function in a greenlet, where it may wait.

        Raises:
            WrongEventLoop: earlier calls ran in another event loop.
        """
        loop = asyncio.get_running_loop()
        if loop is not self.loop:
            self._bind(loop)
        worker = self._idle.pop() if self._idle else _Worker()
        worker.bridge = self
        # Shared with the task, so that context variables such as OpenTelemetry's current span are the task's.
        worker.gr_context = getcurrent().gr_context
        if self.is_due:
            worker.waiter = Waiter(worker)
            worker.yielded = _WAITS
            self.enqueue(worker.waiter, call)
        else:
            self.switch(worker, call)
        while worker.yielded is not _DONE:
            try:
                if worker.yielded is _WAITS:
                    worker.progress = loop.create_future()
                    await worker.progress
                    continue
                value = await worker.yielded
            except BaseException as error:  # noqa: BLE001 - raised where the greenlet waits
                self._throw(worker, error)
            else:
                self.switch(worker, value)
        outcome: T = worker.outcome
        failure = worker.error
        worker.outcome = worker.error = worker.gr_context = None
        if len(self._idle) < _MAX_IDLE:
            self._idle.append(worker)
        if failure is not None:
            try:
                raise failure
            finally:
                # The error's traceback refers to this frame.
                del failure
        return outcome

    def _bind(self, loop: asyncio.AbstractEventLoop) -> None:
        if self.loop is not None:
            raise WrongEventLoop(
                "this datastore belongs to another event loop, because its connections are registered there; call "
                "schemaless.aio.connect() in each loop. Nothing was sent"
            )
        self.loop = loop

    def switch(self, worker: _Worker, value: Any) -> None:
        """Run a greenlet until it yields, and store what it yields."""
        worker.waiter = None
        worker.parent = getcurrent()
        began_s = monotonic()
        worker.yielded = worker.switch(value)
        self._spent_s += monotonic() - began_s
        if self._spent_s > _TURN_S:
            self._schedule_turn()

    def _throw(self, worker: _Worker, error: BaseException) -> None:
        """Raise an exception where a greenlet waits, if it still does."""
        if worker.yielded is _DONE:
            # Cancelled after the call ended and before its task was resumed.
            worker.error = error
            return
        if isinstance(worker.yielded, Coroutine):
            # Cancelled before the task could await it; otherwise, it has ended, and this has no effect.
            worker.yielded.close()
        worker.waiter = None
        worker.parent = getcurrent()
        worker.yielded = worker.throw(error)

    @property
    def is_due(self) -> bool:
        """True if the event loop should get a turn before another call runs."""
        return self._spent_s > _TURN_S

    def enqueue(self, waiter: Waiter, value: Any) -> None:
        """Have a greenlet resumed in one of the loop's next turns."""
        self._queue.append((waiter, value))
        self._schedule_turn()

    def _schedule_turn(self) -> None:
        if not self._has_scheduled_turn:
            assert self.loop is not None
            self.loop.call_soon(self._turn)
            self._has_scheduled_turn = True

    def _turn(self) -> None:
        self._has_scheduled_turn = False
        self._spent_s = 0.0
        try:
            while self._queue and not self.is_due:
                waiter, value = self._queue.popleft()
                waiter.proceed(value)
        finally:
            if self._queue:
                self._schedule_turn()


def wait(awaitable: Awaitable[T]) -> T:
    """Suspend the greenlet until its task has awaited an awaitable, and return the result.

    Raises:
        RuntimeError: the caller does not run in ``Bridge.run``.
    """
    return _current_worker().parent.switch(awaitable)  # type: ignore[no-any-return]


def waiter() -> Waiter:
    """Return a waiter of the calling greenlet.

    Raises:
        RuntimeError: the caller does not run in ``Bridge.run``.
    """
    return Waiter(_current_worker())


def _current_worker() -> _Worker:
    worker = getcurrent()
    if type(worker) is not _Worker:
        raise RuntimeError("the asyncio client was about to wait outside Bridge.run, which would block the event loop")
    return worker
