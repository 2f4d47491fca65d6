"""A slot for one step of work on a separate thread, whose result the worker's loop takes when it is ready.

A worker polls its rows and writes its checkpoints this way, so that handlers do not wait for either.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic

from schemaless.base.type_variables import T


class BackgroundSlot(Generic[T]):
    """Runs one step at a time on its own thread.

    Args:
        thread_name: name of the thread.
    """

    def __init__(self, thread_name: str) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name)
        self._step: Future[T] | None = None

    @property
    def busy(self) -> bool:
        """True if a step is running or its result has not been taken."""
        return self._step is not None

    def begin(self, step: Callable[[], T]) -> None:
        """Start a step; the slot must not be busy."""
        self._step = self._thread.submit(step)

    def take(self, *, wait: bool = False) -> T | None:
        """Return the result of the step, or None if there is no step or it has not ended.

        Args:
            wait: block until the step has ended.

        Raises:
            Exception: whatever the step raised.
        """
        if self._step is None or not (wait or self._step.done()):
            return None
        ended, self._step = self._step, None
        return ended.result()

    def discard(self) -> None:
        """Ignore the result of the running step."""
        self._step = None

    def close(self) -> None:
        """Wait for the running step, and accept no further ones."""
        self._thread.shutdown()
