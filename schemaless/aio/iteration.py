"""Asynchronous iteration over a synchronous iterator that queries servers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any, Final, Generic, TypeVar

from schemaless.aio.runtime import EventLoop

T = TypeVar("T")

_END: Final[Any] = object()


class SteppedIterator(AsyncIterator[T], Generic[T]):
    """Asynchronous iterator over a synchronous one, each step in a greenlet of its own.

    A step that fails or is cancelled ends the synchronous iterator, so further steps raise an error; otherwise, the
    failure would look like the end of the data.
    """

    def __init__(self, runtime: EventLoop, items: Iterator[T]) -> None:
        self._runtime = runtime
        self._items = items
        self._broken: str | None = None

    async def __anext__(self) -> T:
        if self._broken is not None:
            raise RuntimeError(self._broken)
        try:
            item = await self._runtime.run(next, self._items, _END)
        except BaseException as error:
            self._broken = (
                f"the iteration ended with {type(error).__name__}; start a new one after the last item received"
            )
            raise
        if item is _END:
            raise StopAsyncIteration
        return item
