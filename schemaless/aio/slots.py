"""Connection slots for tasks: a waiting task is suspended, and a returned slot goes to the task waiting longest."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from queue import Empty

from schemaless.aio.bridge import wait
from schemaless.base.events import Listener
from schemaless.wire.connection_slots import ConnectionSlots, Slot, SlotAwaited


class AsyncSlots(ConnectionSlots):
    """Semaphore over a fixed number of slots, for the tasks of one event loop."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self._waiters = OrderedDict[asyncio.Future[Slot], None]()

    def take(self, held: list[Slot], timeout_s: float, listener: Listener | None = None) -> bool:
        """Wait for a slot and append it to ``held``; return False on a timeout."""
        try:
            held.append(self._free.get_nowait())
        except Empty:
            began_s = time.monotonic()
        else:
            return True
        waiter: asyncio.Future[Slot] = asyncio.get_running_loop().create_future()
        self._waiters[waiter] = None
        try:
            wait(asyncio.wait((waiter,), timeout=timeout_s))
        except BaseException:
            if waiter.done():
                # The task was cancelled after it had been given the slot.
                self.give_back([waiter.result()])
            raise
        finally:
            self._waiters.pop(waiter, None)
        if not waiter.done():
            return False
        held.append(waiter.result())
        if listener is not None:
            listener(SlotAwaited(time.monotonic() - began_s))
        return True

    def give_back(self, held: list[Slot]) -> None:
        """Give back the slot in ``held``, if there is one."""
        while held:
            slot = held.pop()
            while self._waiters:
                waiter, _ = self._waiters.popitem(last=False)
                if not waiter.done():
                    waiter.set_result(slot)
                    break
            else:
                self._free.put(slot)
