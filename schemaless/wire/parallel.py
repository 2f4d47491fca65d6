"""Parallel work on many databases, with a limit per server, so that a slow server does not delay the others."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Final, TypeVar

from schemaless.base.type_variables import T
from schemaless.wire.node import Node

R = TypeVar("R")

AT_ONCE: Final = 4
"""Default number of threads per server. More were no faster with two servers on two shared cores."""

STOP_WAIT_S: Final = 5.0
"""How long to wait for running items after an error, in seconds."""


def on_servers(items: Iterable[tuple[Node, T]], work: Callable[[T], R], at_once: int = AT_ONCE) -> Iterator[R]:
    """Yield ``work(item)`` for each item, in order of completion.

    After an error or Ctrl-C no further item is started. Running items get ``STOP_WAIT_S`` to finish; a statement that
    takes longer keeps running on its server.

    Args:
        items: pairs of a server and an item.
        work: called in a thread; its exceptions are raised in the caller.
        at_once: threads per server.
    """
    queues: dict[Node, queue.SimpleQueue[T]] = {}
    total = 0
    for node, item in items:
        queues.setdefault(node, queue.SimpleQueue()).put(item)
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
                # Set here and not by the caller, so that the other threads stop at once.
                stopped.set()
                done.put((None, error))

    # Daemon threads, so that Ctrl-C does not wait for a statement that runs for hours.
    threads = [
        threading.Thread(target=run, args=(waiting,), daemon=True)
        for waiting in queues.values()
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
        deadline = time.monotonic() + STOP_WAIT_S
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
