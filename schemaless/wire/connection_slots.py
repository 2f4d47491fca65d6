"""Connection slots: a semaphore that stays correct when a signal handler raises an exception.

Such an exception can occur between any two bytecodes, so a slot changes hands in a single call into C.
"""

from __future__ import annotations

import itertools
import time
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Final, Generic

from schemaless.base.events import Event, Listener
from schemaless.base.type_variables import T

_ONCE: Final = (0,)


class LiveObjects(Generic[T]):
    """Weak collection of objects that are still referenced elsewhere.

    Unlike ``WeakSet`` it has no callbacks: an exception that a signal handler raises inside a callback is printed and
    lost.
    """

    def __init__(self) -> None:
        self._references: dict[int, weakref.ref[T]] = {}
        self._numbers = itertools.count()

    def add(self, item: T) -> None:
        """Add an object, and drop the references to objects that have been garbage-collected."""
        self._references[next(self._numbers)] = weakref.ref(item)
        for number, reference in list(self._references.items()):
            if reference() is None:
                self._references.pop(number, None)

    def __iter__(self) -> Iterator[T]:
        items = [reference() for reference in list(self._references.values())]
        return (item for item in items if item is not None)


@dataclass(frozen=True, slots=True)
class SlotAwaited(Event):
    """A call had to wait for a connection because all connections to the server were in use."""

    seconds: float


class Slot:
    """Permission to use one connection. A weak reference to it shows whether it was lost."""

    __slots__ = ("__weakref__",)


class ConnectionSlots:
    """Semaphore over a fixed number of slots."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._free: SimpleQueue[Slot] = SimpleQueue()
        self._slots = LiveObjects[Slot]()
        for _ in range(size):
            self._replace_lost()

    def take(self, held: list[Slot], timeout_s: float, listener: Listener | None = None) -> bool:
        """Wait for a slot and append it to ``held``; return False on a timeout.

        The listener receives ``SlotAwaited`` if the call had to wait.
        """
        began_s = 0.0
        for wait_s in (0, timeout_s, 0):
            try:
                held.extend(map(self._free.get, (True,), (wait_s,)))
            except Empty:
                began_s = began_s or time.monotonic()
                self._replace_lost()
            else:
                if began_s and listener is not None:
                    listener(SlotAwaited(time.monotonic() - began_s))
                return True
        return False

    def give_back(self, held: list[Slot]) -> None:
        """Give back the slot in ``held``, if there is one."""
        if held:
            any(map(self._free.put, map(held.pop, _ONCE)))

    def free(self) -> int:
        """Return the number of free slots."""
        while self._replace_lost():
            pass
        return self._free.qsize()

    def _replace_lost(self) -> bool:
        """Add a slot if fewer than ``size`` exist; one can be lost in an interrupt before it is given back."""
        slot = Slot()
        self._slots.add(slot)
        # The count includes the new slot. If two threads add one at the same time, both may give up, but they never
        # both succeed.
        if sum(1 for _ in self._slots) > self._size:
            return False
        self._free.put(slot)
        return True
