"""Work on many databases at once, so many on each server: a slow server does not keep the others waiting."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Final, TypeVar

from schemaless.wire.node import Node

T = TypeVar("T")
R = TypeVar("R")

AT_ONCE: Final = 4
"""So many databases of a server are worked on at a time. On two cores that two servers share, more gained nothing."""


def on_servers(
    items: Iterable[tuple[Node, T]], work: Callable[[T], R], at_once: int = AT_ONCE, *, stop_wait_s: float = 5.0
) -> Iterator[R]:
    """Yield ``work(item)`` for each item, in the order in which they come to their ends.

    Where it is left early, by an error or Ctrl-C, no further item is begun; those at work get ``stop_wait_s``, and what
    a server is busy with then goes on there.

    Args:
        items: each with the server that it is on.
        work: called in a thread; what it raises is raised here.
        at_once: threads for each server.
        stop_wait_s: how long those at work get when it is left early.
    """
    todo: dict[Node, queue.SimpleQueue[T]] = {}
    total = 0
    for node, item in items:
        todo.setdefault(node, queue.SimpleQueue()).put(item)
        total += 1
    done: queue.SimpleQueue[tuple[R, None] | tuple[None, BaseException]] = queue.SimpleQueue()
    stopped = threading.Event()

    def run(waiting: queue.SimpleQueue[T]) -> None:
        while not stopped.is_set():
            try:
                item = waiting.get_nowait()
            except queue.Empty:
                return
            try:
                done.put((work(item), None))
            except BaseException as error:  # noqa: BLE001 - raised again in the caller's thread
                # Here already: others could begin much before the caller hears of it.
                stopped.set()
                done.put((None, error))

    # Daemons, so that Ctrl-C does not wait for a statement that runs for hours.
    threads = [
        threading.Thread(target=run, args=(waiting,), daemon=True)
        for waiting in todo.values()
        for _ in range(min(at_once, waiting.qsize()))
    ]
    for thread in threads:
        thread.start()
    try:
        for _ in range(total):
            result, error = done.get()
            if error is not None:
                raise error
            yield result  # type: ignore[misc]
    finally:
        stopped.set()
        deadline = time.monotonic() + stop_wait_s
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
