"""Long-running operations for asyncio: each runs in a thread, with a synchronous datastore of its own.

They start threads and read files, so a greenlet of the event loop would block the loop.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable
from pathlib import Path

from schemaless.aio.datastore import AsyncDatastore
from schemaless.base.events import Event
from schemaless.base.type_variables import T
from schemaless.errors import InvalidInput
from schemaless.ops.admin.catching_up import catch_up_unless
from schemaless.ops.erasure.job import finish
from schemaless.ops.erasure.status import ErasureStatus
from schemaless.store.datastore import Datastore
from schemaless.store.opening import opening_of
from schemaless.store.triggers.declaration import Trigger


async def catch_up(
    store: AsyncDatastore, *triggers: Trigger, indexes: Iterable[str] | None = None, timeout_s: float = 60.0
) -> bool:
    """Call triggers for the cells and erasures that exist now, and index them, in another thread.

    The functions get a synchronous datastore, as in workers. If the task is cancelled, the running call is completed
    and its cell recorded before the coroutine ends.
    """
    handled = await _in_thread(store, lambda opened, stop: catch_up_unless(stop, opened, triggers, indexes, timeout_s))
    # Without this, queries would use a list of indexes in which those just filled are not ready.
    await store.indexes()
    return handled


async def finish_erasure(store: AsyncDatastore, number: int, *, archives: Iterable[str | Path] = ()) -> ErasureStatus:
    """Erase the copies that ``AsyncDatastore.erase`` leaves: in tables of moves, replicas, and archives.

    If the task is cancelled, the running step is completed and recorded before the coroutine ends; the next call
    continues there.
    """
    return await _in_thread(
        store, lambda opened, stop: finish(opened, number, archives, lambda event: _check(stop, event))
    )


class _StopRequested(Exception):
    """Raised in the thread of a cancelled operation."""


def _check(stop: threading.Event, event: Event) -> None:
    if stop.is_set():
        raise _StopRequested


async def _in_thread(store: AsyncDatastore, operation: Callable[[Datastore, threading.Event], T]) -> T:
    if not isinstance(store, AsyncDatastore):
        raise InvalidInput(f"expected an AsyncDatastore, from schemaless.aio.connect(), got {type(store).__name__}")
    opening, stop = opening_of(store), threading.Event()

    def run() -> T:
        with opening.open() as opened:
            return operation(opened, stop)

    running = asyncio.ensure_future(asyncio.to_thread(run))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        stop.set()
        await asyncio.wait([running])
        # Its error is the consequence of the cancellation.
        if not running.cancelled():
            running.exception()
        raise
