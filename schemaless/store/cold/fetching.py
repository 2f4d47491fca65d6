"""Fetches row groups of cold files: in threads of its own, each group once at a time, with a cache for the process.

A fetch holds no connection to a database server, so a slow cold store does not exhaust their pools.
"""

from __future__ import annotations

import atexit
import os
import re
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, Final, NamedTuple

from schemaless.errors import ColdStoreUnavailable, InvalidInput
from schemaless.store.cold.content import Damaged, Footer, Group, load_cold, read_group
from schemaless.store.cold.targets import Target, unavailable
from schemaless.wire.runtime import Runtime

CACHE_VARIABLE: Final = "SCHEMALESS_COLD_CACHE_MIB"
"""Environment variable with the size of the process's cache of decoded row groups, in MiB."""

_CACHE_MIB: Final = 64

_THREADS: Final = 8
_END_S: Final = 1.0
"""How long the end of the process waits for fetches, because a thread that decodes meanwhile could crash it."""

_AHEAD: Final = 16
"""Number of row groups that one call requests at a time, so that others do not wait for all of its groups."""


class Wanted(NamedTuple):
    """A row group to fetch.

    Attributes:
        name: name of the file in the store.
        file_bytes: the file's size; 0 if unknown.
        group: number of the row group.
    """

    name: str
    file_bytes: int
    group: int


class Cache:
    """Decoded row groups and footers, up to a number of bytes; the least recently used go first. Thread-safe."""

    def __init__(self) -> None:
        self.max_bytes = 0
        self.hits: int = 0
        self.misses: int = 0
        self._entries: OrderedDict[tuple[Any, ...], Group | Footer] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def get(self, key: tuple[Any, ...]) -> Any:
        """Return an entry, or None."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is not None:
                self._entries.move_to_end(key)
            return entry

    def keep(self, key: tuple[Any, ...], entry: Group | Footer) -> None:
        """Add an entry, unless it alone is larger than the cache."""
        with self._lock:
            old = self._entries.pop(key, None)
            self._bytes += entry.size - (0 if old is None else old.size)
            self._entries[key] = entry
            while self._bytes > self.max_bytes:
                _, dropped = self._entries.popitem(last=False)
                self._bytes -= dropped.size

    def clear(self) -> None:
        """Drop all entries."""
        with self._lock:
            self._entries.clear()
            self._bytes = 0


class _Process:
    """What the datastores of a process share: the cache, the threads, and the fetches in progress."""

    def __init__(self) -> None:
        self.cache = Cache()
        self.lock = threading.Lock()
        self.pending: dict[tuple[Any, ...], Future[Group]] = {}
        self._calls: SimpleQueue[Callable[[], bool]] = SimpleQueue()
        self._threads: list[threading.Thread] = []

    def submit(self, target: Target, wanted: Wanted, max_text_bytes: int) -> Group | Future[Group]:
        key = target.uri, wanted.name, wanted.group
        with self.lock:
            known: Group | None = self.cache.get(key)
            if known is not None:
                self.cache.hits += 1
                return known
            pending = self.pending.get(key)
            if pending is not None:
                return pending
            self.cache.misses += 1
            if len(self._threads) < _THREADS:
                # Unlike those of an executor, they do not keep a process alive whose store hangs.
                thread = threading.Thread(target=self._work, name="schemaless-cold", daemon=True)
                thread.start()
                self._threads.append(thread)
            future = self.pending[key] = Future()
            self._calls.put(partial(self._answer, future, key, target, wanted, max_text_bytes))
            return future

    def end(self) -> None:
        """Drop the fetches that have not begun, and wait a moment for the others."""
        with suppress(Empty):
            while True:
                self._calls.get_nowait()
        for _ in self._threads:
            self._calls.put(lambda: False)
        deadline_s = time.monotonic() + _END_S
        for thread in self._threads:
            thread.join(max(0.0, deadline_s - time.monotonic()))

    def _work(self) -> None:
        # A call has no name here, so that no idle thread keeps a result.
        while self._calls.get()():
            pass

    def _answer(self, future: Future[Group], *request: Any) -> bool:
        try:
            future.set_result(self._fetch(*request))
        except BaseException as error:  # noqa: BLE001 - whoever waits for the result raises it
            future.set_exception(error)
        return True

    def _fetch(self, key: tuple[Any, ...], target: Target, wanted: Wanted, max_text_bytes: int) -> Group:
        try:
            footer_key = key[:2]
            footer = self.cache.get(footer_key)
            group, current = read_group(target, wanted.name, wanted.file_bytes, wanted.group, max_text_bytes, footer)
            if footer is None:
                self.cache.keep(footer_key, current)
            self.cache.keep(key, group)
            return group
        finally:
            with self.lock:
                self.pending.pop(key, None)


_process = _Process()


def cache() -> Cache:
    """Return this process's cache.

    Raises:
        InvalidInput: ``CACHE_VARIABLE`` is not a number.
    """
    if not _process.cache.max_bytes:
        mib = os.environ.get(CACHE_VARIABLE) or str(_CACHE_MIB)
        if not re.fullmatch("[0-9]{1,6}", mib):
            raise InvalidInput(f"{CACHE_VARIABLE} must be a number of MiB, got {mib!r}")
        _process.cache.max_bytes = max(1, int(mib) << 20)
    return _process.cache


def _after_fork_in_child() -> None:
    # The parent's threads do not exist here, and its lock may be held for ever.
    global _process
    _process = _Process()


os.register_at_fork(after_in_child=_after_fork_in_child)
atexit.register(lambda: _process.end())


def fetch(
    target: Target, wanted: Iterable[Wanted], runtime: Runtime, timeout_s: float, max_text_bytes: int
) -> Iterator[tuple[Wanted, Group | FileNotFoundError | Damaged]]:
    """Yield row groups, or what is wrong with the file of each, in the order in which they are requested.

    Args:
        target: the cold store.
        wanted: the row groups, each once.
        runtime: how the caller waits.
        timeout_s: how long to wait for each row group once it is requested, in seconds.
        max_text_bytes: maximum size of a row group's texts.

    Raises:
        ColdStoreUnavailable: the store cannot be read, or did not respond in time.
        InvalidInput: pyarrow is not installed, or the size of the cache is invalid.
    """
    load_cold()
    cache()
    remaining = iter(wanted)
    ahead: deque[tuple[Wanted, Group | Future[Group]]] = deque()
    while True:
        while len(ahead) < _AHEAD and (request := next(remaining, None)) is not None:
            ahead.append((request, _process.submit(target, request, max_text_bytes)))
        if not ahead:
            return
        request, future = ahead.popleft()
        if isinstance(future, Group):
            yield request, future
            continue
        found: Group | FileNotFoundError | Damaged
        try:
            with unavailable(target.uri):
                found = future.result() if future.done() else runtime.result(future, timeout_s)
        except (FileNotFoundError, Damaged) as error:
            found = error
        except TimeoutError:
            raise ColdStoreUnavailable(target.uri, f"no reply within {timeout_s:g} s") from None
        except OSError as error:
            raise ColdStoreUnavailable(target.uri, f"{request.name}: {error}") from error
        yield request, found
