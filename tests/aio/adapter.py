"""Calls of an asyncio datastore from threads, so that tests of the synchronous client run through it."""

from __future__ import annotations

import asyncio
import functools
import inspect
import threading
from collections.abc import AsyncIterator, Awaitable, Iterator
from contextlib import contextmanager
from typing import Any

import schemaless.aio
from schemaless import Cell
from schemaless.aio import AsyncColumn, AsyncDatastore, AsyncIndex


class Adapter:
    """Looks like a ``Datastore``; each call is a task on the event loop of another thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop, target: object) -> None:
        self._loop = loop
        self._target = target

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._target, name)
        if not callable(value) or name.startswith("_"):
            return value

        @functools.wraps(value)
        def call(*arguments: Any, **options: Any) -> Any:
            result = value(*arguments, **options)
            if isinstance(result, AsyncIterator):
                return self._iterated(result)
            if isinstance(result, AsyncColumn | AsyncIndex):
                return Adapter(self._loop, result)
            if isinstance(result, Cell):
                return result
            assert inspect.isawaitable(result), f"{name} is no coroutine"
            return self._wait(result)

        return call

    def _wait(self, awaitable: Awaitable[Any]) -> Any:
        async def awaited() -> Any:
            return await awaitable

        return asyncio.run_coroutine_threadsafe(awaited(), self._loop).result()

    def _iterated(self, items: AsyncIterator[Any]) -> Iterator[Any]:
        end = object()
        while (item := self._wait(anext(items, end))) is not end:
            yield item

    def __reduce__(self) -> Any:
        return self._target.__reduce__()


@contextmanager
def loop_in_a_thread() -> Iterator[asyncio.AbstractEventLoop]:
    """Yield an event loop that runs in a thread; tasks that are left over fail the test."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="event loop")
    thread.start()
    try:
        yield loop
        left = asyncio.run_coroutine_threadsafe(_others(), loop).result()
        assert left == []
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()


async def _others() -> list[Any]:
    return [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]


@contextmanager
def adapted(loop: asyncio.AbstractEventLoop, url: str, **options: Any) -> Iterator[Any]:
    """Yield a datastore that is opened through ``schemaless.aio`` and looks like a ``Datastore``."""
    store: AsyncDatastore = asyncio.run_coroutine_threadsafe(schemaless.aio.connect(url, **options), loop).result()
    try:
        yield Adapter(loop, store)
    finally:
        asyncio.run_coroutine_threadsafe(store.close(), loop).result()
