"""Runs the synchronous client on an event loop: each call in a greenlet that the loop resumes.

A greenlet has a stack of its own. Where the synchronous client would block, the greenlet hands an awaitable to the
coroutine that runs it (``wait``), and continues with its result. A cancelled task raises ``CancelledError`` at that
point, inside the synchronous code, like an exception of a signal handler.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final, ParamSpec, TypeVar

try:
    from greenlet import GreenletExit, getcurrent, greenlet
except ModuleNotFoundError:
    raise ModuleNotFoundError("schemaless.aio needs greenlet: pip install 'schemaless-store[async]'") from None

P = ParamSpec("P")
T = TypeVar("T")

_MAX_IDLE: Final = 32
"""Number of greenlets that are kept; more calls at a time use greenlets of their own."""

_DONE: Final = object()


class _Failure:
    """An exception that ended a call."""

    def __init__(self, error: BaseException) -> None:
        self.error = error


class _Worker(greenlet):  # type: ignore[misc]
    """Greenlet that runs one call after the other: starting one costs six times as much as a call's other overhead.

    Attributes:
        outcome: result of the last call, or its ``_Failure``.
    """

    outcome: Any = None

    def run(self, call: Callable[[], Any]) -> None:
        """Run calls until the greenlet is dropped."""
        while True:
            try:
                self.outcome = call()
            except GreenletExit:
                # The greenlet was dropped.
                return
            except BaseException as error:  # noqa: BLE001 - raised in the task
                self.outcome = _Failure(error)
            del call
            call = self.parent.switch(_DONE)


class Bridge:
    """Runs calls in greenlets of one thread."""

    def __init__(self) -> None:
        self._idle: list[_Worker] = []

    async def run(self, call: Callable[[], T]) -> T:
        """Run a function in a greenlet, where it may call ``wait``."""
        current = getcurrent()
        worker = self._idle.pop() if self._idle else _Worker()
        worker.parent = current
        # Shared with the task, so that context variables such as OpenTelemetry's current span are the task's.
        worker.gr_context = current.gr_context
        awaited = worker.switch(call)
        while awaited is not _DONE:
            try:
                value = await awaited
            except BaseException as error:  # noqa: BLE001 - raised where the greenlet waits
                awaited = worker.throw(error)
            else:
                awaited = worker.switch(value)
        outcome: T | _Failure = worker.outcome
        worker.outcome = worker.gr_context = None
        if len(self._idle) < _MAX_IDLE:
            self._idle.append(worker)
        if type(outcome) is _Failure:
            try:
                raise outcome.error
            finally:
                # The error's traceback refers to this frame.
                del outcome
        return outcome  # type: ignore[return-value]


def wait(awaitable: Awaitable[T]) -> T:
    """Suspend the greenlet until an awaitable is done, and return its result.

    Raises:
        RuntimeError: the caller does not run in ``Bridge.run``.
    """
    current = getcurrent()
    if type(current) is not _Worker:
        raise RuntimeError("a call of the asyncio client waited outside of its task")
    return current.parent.switch(awaitable)  # type: ignore[no-any-return]
