"""Runs the synchronous client on an event loop: each call in a greenlet that the loop resumes.

A greenlet has a stack of its own. Where the synchronous client would block, the greenlet hands an awaitable to the
coroutine that runs it (``wait``), and continues with its result. A cancelled task raises ``CancelledError`` at that
point, inside the synchronous code, like an exception of a signal handler.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, ParamSpec, TypeVar

from greenlet import getcurrent, greenlet

P = ParamSpec("P")
T = TypeVar("T")


class _Call(greenlet):  # type: ignore[misc]
    """A call of the synchronous client."""


async def run(function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Run a function in a greenlet, where it may call ``wait``."""
    call = _Call(function)
    # Shared with the task, so that context variables such as OpenTelemetry's current span are the task's.
    call.gr_context = getcurrent().gr_context
    result: Any = call.switch(*args, **kwargs)
    while not call.dead:
        try:
            value = await result
        except BaseException as error:  # noqa: BLE001 - raised where the greenlet waits
            result = call.throw(error)
        else:
            result = call.switch(value)
    return result  # type: ignore[no-any-return]


def wait(awaitable: Awaitable[T]) -> T:
    """Suspend the greenlet until an awaitable is done, and return its result.

    Raises:
        RuntimeError: the caller does not run in ``run``.
    """
    current = getcurrent()
    if type(current) is not _Call or current.parent is None:
        raise RuntimeError("a call of the asyncio client waited outside of its task")
    return current.parent.switch(awaitable)  # type: ignore[no-any-return]
