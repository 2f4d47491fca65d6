"""How many connections may be in use: places that are taken and given back, whenever a signal's handler raises.

Its exception can come between any two steps of Python's, so a place goes from hand to hand in a single call into C.
"""

from __future__ import annotations

import itertools
import time
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Final, Generic, TypeVar

from schemaless.events import Event, Listener

T = TypeVar("T")

_ONCE: Final = (0,)


class Living(Generic[T]):
    """What is still referred to elsewhere.

    A ``WeakSet`` without its callbacks, which run in the middle of calls: what a signal's handler raises in a callback
    is printed and lost.
    """

    def __init__(self) -> None:
        self._references: dict[int, weakref.ref[T]] = {}
        self._numbers = itertools.count()

    def add(self, thing: T) -> None:
        """Add one, and forget those that are gone."""
        self._references[next(self._numbers)] = weakref.ref(thing)
        for number, reference in list(self._references.items()):
            if reference() is None:
                self._references.pop(number, None)

    def __iter__(self) -> Iterator[T]:
        things = [reference() for reference in list(self._references.values())]
        return (thing for thing in things if thing is not None)


@dataclass(frozen=True, slots=True)
class SlotAwaited(Event):
    """All connections to a server were in use, and a call had to wait for one."""

    seconds: float


class Place:
    """That one more connection may be in use. A weak reference tells where one got lost."""

    __slots__ = ("__weakref__",)


class ConnectionSlots:
    """As many places as there may be connections: a semaphore, but in C."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._free: SimpleQueue[Place] = SimpleQueue()
        self._made = Living[Place]()
        for _ in range(size):
            self._replace_lost()

    def take(self, held: list[Place], timeout_s: float, listener: Listener | None = None) -> bool:
        """Wait for a place and put it into ``held``; return whether there was one in time.

        The listener, if there is one, is told of a wait, and of no place that was free.
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

    def give_back(self, held: list[Place]) -> None:
        """Give back a place, if there is one in ``held``."""
        if held:
            any(map(self._free.put, map(held.pop, _ONCE)))

    def free(self) -> int:
        """Return how many may be taken now."""
        while self._replace_lost():
            pass
        return self._free.qsize()

    def _replace_lost(self) -> bool:
        """Add a place, unless there are as many as there shall be: free, or in somebody's hands.

        An interrupt can strike where nobody is left to give a place back.
        """
        place = Place()
        self._made.add(place)
        # Counted with the new one: where two threads add one at once, both may give up, but never both go on.
        if sum(1 for _ in self._made) > self._size:
            return False
        self._free.put(place)
        return True
