"""How a datastore waits: ``THREADS`` blocks the calling thread; ``schemaless.aio`` suspends the caller's task instead.

Everything in this package that may wait does so through sockets of ``Runtime.wire``, or through one of the methods
below, so that there is one implementation of retries, routing and pools for both.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AbstractContextManager
from typing import Any, Final, Protocol

from schemaless.base.type_variables import T
from schemaless.wire.connection_slots import ConnectionSlots
from schemaless.wire.sockets import TLSWire, Wire


class Runtime(Protocol):
    """The operations that wait."""

    @property
    def wire(self) -> type[Wire]:
        """Class of unencrypted sockets."""

    @property
    def tls_wire(self) -> type[TLSWire]:
        """Class of TLS sockets."""

    def sleep(self, seconds: float) -> None:
        """Wait."""

    def lock(self) -> AbstractContextManager[Any]:
        """Return a lock that its holder may keep while it queries a server."""

    def slots(self, size: int) -> ConnectionSlots:
        """Return the slots of a pool."""

    def blocking(self, function: Callable[[], T]) -> T:
        """Call a function that may block, such as a DNS lookup, and return its result."""

    def result(self, future: Future[T], timeout_s: float) -> T:
        """Wait for the result of work in another thread, which continues if the caller stops waiting.

        Raises:
            TimeoutError: there was no result in time.
        """


class Threads:
    """Runtime of the synchronous client."""

    wire = Wire
    tls_wire = TLSWire
    slots = ConnectionSlots

    def sleep(self, seconds: float) -> None:
        """Block the thread."""
        time.sleep(seconds)

    def lock(self) -> AbstractContextManager[Any]:
        """Return a reentrant lock, because a signal handler may make calls."""
        return threading.RLock()

    def blocking(self, function: Callable[[], T]) -> T:
        """Call the function in this thread."""
        return function()

    def result(self, future: Future[T], timeout_s: float) -> T:
        """Block the thread."""
        return future.result(timeout_s)


THREADS: Final = Threads()
