"""Runs the synchronous client on an event loop: each call in a greenlet that the loop resumes.

A greenlet has a stack of its own. Where the synchronous client would block, the greenlet calls ``wait``, which hands an
awaitable to the coroutine that runs the greenlet, and returns the awaitable's result. If the task is cancelled,
``CancelledError`` is raised at that point, inside the synchronous code, like an exception raised by a signal handler.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Any, Final, ParamSpec, TypeVar

try:
    from greenlet import GreenletExit, getcurrent, greenlet
except ModuleNotFoundError:
    raise ModuleNotFoundError("schemaless.aio needs greenlet: pip install 'schemaless-store[async]'") from None

P = ParamSpec("P")
T = TypeVar("T")

_MAX_IDLE: Final = 32
"""Maximum number of idle greenlets to keep; a call that finds none idle creates a new one."""

_TURN_S: Final = 0.001
"""Time that calls may take before the event loop gets a turn, in seconds; a single call may take longer."""

_DONE: Final = object()


class _Worker(greenlet):  # type: ignore[misc]
    """Greenlet that is reused for many calls, because starting one costs six times a call's other overhead.

    Attributes:
        bridge: runs the calls.
        outcome: result of the last call.
        error: exception that ended the last call, or None.
    """

    bridge: Bridge
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


class Bridge:
    """Runs calls in greenlets of one thread.

    Many replies may arrive at the same time. Once calls have run for a while without a turn of the event loop, the
    other calls wait for one, so that timers and other tasks are not late.
    """

    def __init__(self) -> None:
        self._idle: list[_Worker] = []
        self._spent_s = 0.0
        self._mean_s = _TURN_S
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def run(self, call: Callable[[], T]) -> T:
        """Run a function in a greenlet, where it may call ``wait``."""
        if self.is_due:
            await self.turn()
        current = getcurrent()
        worker = self._idle.pop() if self._idle else _Worker()
        worker.bridge = self
        worker.parent = current
        # Shared with the task, so that context variables such as OpenTelemetry's current span are the task's.
        worker.gr_context = current.gr_context
        awaited = self._switch(worker, call)
        while awaited is not _DONE:
            try:
                value = await awaited
            except BaseException as error:  # noqa: BLE001 - raised where the greenlet waits
                awaited = worker.throw(error)
            else:
                awaited = self._switch(worker, value)
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

    def _switch(self, worker: _Worker, value: Any) -> Any:
        began_s = monotonic()
        awaited = worker.switch(value)
        took_s = monotonic() - began_s
        self._spent_s += took_s
        self._mean_s += (took_s - self._mean_s) / 16
        return awaited

    @property
    def is_due(self) -> bool:
        """True if the event loop should get a turn before another call runs."""
        return self._spent_s > _TURN_S or bool(self._waiting)

    def turn(self) -> asyncio.Future[None]:
        """Return a future that completes in one of the loop's next turns; calls run for about ``_TURN_S`` per turn."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        if not self._waiting:
            loop.call_soon(self._next_turn, loop)
        self._waiting.append(future)
        return future

    def turned(self) -> None:
        """Called when the event loop has had a turn."""
        self._spent_s = 0.0

    def _next_turn(self, loop: asyncio.AbstractEventLoop) -> None:
        count = int(_TURN_S / self._mean_s) + 1
        for _ in range(min(count, len(self._waiting))):
            waiting = self._waiting.popleft()
            if not waiting.done():
                waiting.set_result(None)
        self.turned()
        if self._waiting:
            loop.call_soon(self._next_turn, loop)


def pause() -> None:
    """Give the event loop a turn if calls have been running for a while."""
    bridge = getcurrent().bridge
    if bridge.is_due:
        wait(bridge.turn())


def wait(awaitable: Awaitable[T]) -> T:
    """Suspend the greenlet until an awaitable is done, and return its result.

    Raises:
        RuntimeError: the caller does not run in ``Bridge.run``.
    """
    current = getcurrent()
    if type(current) is not _Worker:
        raise RuntimeError("wait() of the asyncio client was called outside Bridge.run")
    return current.parent.switch(awaitable)  # type: ignore[no-any-return]
