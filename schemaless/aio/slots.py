"""Connection slots for tasks: a waiting task is suspended, and a returned slot goes to the task waiting longest."""

from __future__ import annotations

import asyncio
from collections import OrderedDict

from schemaless.aio.bridge import Waiter, waiter
from schemaless.base.events import Listener
from schemaless.wire.connection_slots import ConnectionSlots, Slot, SlotAwaited


class AsyncSlots(ConnectionSlots):
    """Semaphore over a fixed number of slots, for the tasks of one event loop.

    Timeouts use one timer, which is rescheduled only when it fires.
    """

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self._waiters = OrderedDict[Waiter, tuple[list[Slot], float]]()
        """The list that receives the slot, and the deadline by the loop's clock."""
        self._timer: asyncio.TimerHandle | None = None

    def take(self, held: list[Slot], timeout_s: float, listener: Listener | None = None) -> bool:
        """Wait for a slot and append it to ``held``; return False on a timeout."""
        if not self._free.empty():
            held.append(self._free.get_nowait())
            return True
        waiting = waiter()
        loop = waiting.bridge.loop
        assert loop is not None
        began_s = loop.time()
        self._waiters[waiting] = held, began_s + timeout_s
        self._set_timer(loop, began_s + timeout_s)
        try:
            waiting.wait()
        finally:
            self._waiters.pop(waiting, None)
        if not held:
            return False
        if listener is not None:
            listener(SlotAwaited(loop.time() - began_s))
        return True

    def give_back(self, held: list[Slot]) -> None:
        """Give back the slot in ``held``, if there is one."""
        while held:
            slot = held.pop()
            while self._waiters:
                waiting, (receiver, _) = self._waiters.popitem(last=False)
                if waiting.is_waiting:
                    # If the task is cancelled before it runs, it gives the slot back.
                    receiver.append(slot)
                    waiting.resume_later()
                    break
            else:
                self._free.put(slot)

    def _set_timer(self, loop: asyncio.AbstractEventLoop, deadline_s: float) -> None:
        if self._timer is not None:
            if self._timer.when() <= deadline_s:
                return
            self._timer.cancel()
        self._timer = loop.call_at(deadline_s, self._on_timer, loop)

    def _on_timer(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        now_s = loop.time()
        for waiting, (_, deadline_s) in list(self._waiters.items()):
            if deadline_s > now_s:
                self._set_timer(loop, deadline_s)
            else:
                del self._waiters[waiting]
                waiting.resume_later()
