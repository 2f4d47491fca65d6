"""Runtime of the asyncio client: suspends tasks, and belongs to one event loop."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import AbstractContextManager, suppress
from functools import partial
from types import TracebackType
from typing import Any, ParamSpec

from schemaless.aio import bridge
from schemaless.aio.slots import AsyncSlots
from schemaless.aio.sockets import AsyncTLSWire, AsyncWire
from schemaless.base.type_variables import T
from schemaless.wire.connection_slots import LiveObjects

P = ParamSpec("P")


class EventLoop:
    """Runtime of one datastore; implements ``wire.runtime.Runtime``."""

    wire = AsyncWire
    tls_wire = AsyncTLSWire
    slots = AsyncSlots

    def __init__(self) -> None:
        self._bridge = bridge.Bridge()
        _runtimes.add(self)

    def run(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, T]:
        """Return a coroutine that runs a function of the synchronous client; it raises what ``Bridge.run`` raises."""
        return self._bridge.run(partial(function, *args, **kwargs))

    def forget_after_fork(self) -> None:
        """Reset the state after a fork, so that the child can use the datastore in its own event loop."""
        self._bridge = bridge.Bridge()

    def sleep(self, seconds: float) -> None:
        """Suspend the task."""
        bridge.wait(asyncio.sleep(seconds))

    def lock(self) -> AbstractContextManager[Any]:
        """Return a lock that works between tasks; a thread lock does not exclude other greenlets of the same thread."""
        return _Lock()

    def blocking(self, function: Callable[[], T]) -> T:
        """Call a function in a worker thread; it is not interrupted if the task is cancelled."""
        return bridge.wait(asyncio.get_running_loop().run_in_executor(None, function))

    def result(self, future: Future[T], timeout_s: float) -> T:
        """Suspend the task."""
        loop = asyncio.get_running_loop()
        ready = asyncio.Event()

        def wake(done: Future[T]) -> None:
            # The loop may be closed by now, if the caller was cancelled or did not wait any longer.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(ready.set)

        # Not ``wrap_future``: others may wait for the same work, so it must not be cancelled with the caller.
        future.add_done_callback(wake)
        bridge.wait(asyncio.wait_for(ready.wait(), timeout_s))
        return future.result()


_runtimes = LiveObjects[EventLoop]()


def _after_fork_in_child() -> None:
    for runtime in _runtimes:
        runtime.forget_after_fork()


os.register_at_fork(after_in_child=_after_fork_in_child)


class _Lock:
    """``asyncio.Lock`` as a context manager for synchronous code."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()

    def __enter__(self) -> None:
        bridge.wait(self._lock.acquire())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.release()
