"""Notifies a worker of new cells, over one connection to each server that sends its binary log.

A notification is only a hint: it says which shards have new cells, and the change feed says which cells they are.
Nothing is lost when a connection fails, since everything is polled once it is back, and from time to time anyway. The
shards of a server whose binary log is not available are polled.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable
from typing import Final

from schemaless.base.logger import log
from schemaless.errors import AccessDenied, SchemalessError, ServerRefused
from schemaless.store.followers.membership import Timing
from schemaless.topology.shards import Shards
from schemaless.wire.binlog_events import Decoder, Ended, Inserts, Unreadable
from schemaless.wire.binlog_reader import LogReader
from schemaless.wire.node import Node
from schemaless.wire.pool import NodePool
from schemaless.wire.sql.parts import CELLS

_FIRST_PAUSE_S: Final = 0.05
"""Pause before the first reconnect, in seconds; it doubles up to ``Timing.connect_s``."""

_STABLE_S: Final = 10.0
"""Lifetime of a connection after which the reconnect pause is reset, in seconds."""

_LATE_S: Final = 1.0
"""Maximum time between a transaction's entry in the binary log and its visibility, in seconds."""

_JOIN_S: Final = 1.0
"""Maximum time to wait for a listener's thread to end, in seconds."""

HEARD: Final = "binary log"
NOT_YET: Final = "sweep: not connected to the binary log yet"


class BinlogNotifier:
    """Listens to the binary logs of a datastore's primaries.

    Args:
        shards: the datastore's shards.
        timing: pauses between reconnects.
    """

    def __init__(self, shards: Shards, timing: Timing) -> None:
        self.timing = timing
        self._shards = shards
        self._numbers = {shards.database(shard): shard for shard in range(shards.topology.shard_count)}
        self._lock = threading.Lock()
        self._news = threading.Event()
        self._tops: dict[int, int] = {}
        self._polls: list[float] = []
        self._listeners: dict[Node, _Listener] = {}

    def listen(self, nodes: Iterable[Node]) -> None:
        """Listen to these servers, and stop listening to all others."""
        wanted = set(nodes)
        for node in self._listeners.keys() - wanted:
            self._listeners.pop(node).end()
        for node in wanted - self._listeners.keys():
            self._listeners[node] = _Listener(self, self._shards.pool_for(node))
        for listener in self._listeners.values():
            listener.leave_old_server()

    def is_listening(self, node: Node) -> bool:
        """Return whether a server's binary log is being received."""
        listener = self._listeners.get(node)
        return listener is not None and listener.state == HEARD

    def take(self) -> tuple[dict[int, int], bool]:
        """Return the events since the last call.

        Returns:
            The highest added_id of each shard with new cells, and whether everything has to be polled.
        """
        now_s = time.monotonic()
        with self._lock:
            self._news.clear()
            tops, self._tops = self._tops, {}
            due = [at_s for at_s in self._polls if at_s <= now_s]
            self._polls = [at_s for at_s in self._polls if at_s > now_s]
        return tops, bool(due)

    def wait(self, seconds: float) -> None:
        """Wait for news, for at most ``seconds``."""
        if self._polls:
            seconds = min(seconds, min(self._polls, default=seconds) - time.monotonic())
        if seconds > 0:
            self._news.wait(seconds)

    @property
    def has_news(self) -> bool:
        """True if ``take`` has something to return."""
        return self._news.is_set() or any(at_s <= time.monotonic() for at_s in self._polls)

    def report(self) -> dict[str, str]:
        """Return how new cells are found, by server."""
        return {str(node): listener.state for node, listener in list(self._listeners.items())}

    def close(self) -> None:
        """End all connections."""
        self.listen(())

    # Called on the threads that listen

    def decoder(self) -> Decoder:
        """Return a decoder for the events of one connection."""
        return Decoder(frozenset(self._numbers), CELLS)

    def notify(self, tops: dict[str, int]) -> None:
        """Record a committed transaction: the highest added_id of each database."""
        with self._lock:
            for database, added_id in tops.items():
                shard = self._numbers[database]
                self._tops[shard] = max(added_id, self._tops.get(shard, 0))
            self._news.set()

    def request_poll(self, later_s: float = 0.0) -> None:
        """Request a poll of all shards after ``later_s`` seconds."""
        with self._lock:
            self._polls.append(time.monotonic() + later_s)
            self._news.set()


class _Listener:
    """Listens to one server on its own thread, and reconnects."""

    def __init__(self, notifier: BinlogNotifier, pool: NodePool) -> None:
        self.state = NOT_YET
        self._notifier = notifier
        self._pool = pool
        self._reader: LogReader | None = None
        self._ended = threading.Event()
        self._pause_s = _FIRST_PAUSE_S
        self._thread = threading.Thread(target=self._run, name=f"binary log of {pool.node}", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Stop listening."""
        self._ended.set()
        until_s = time.monotonic() + _JOIN_S
        while self._thread.is_alive() and time.monotonic() < until_s:
            # Repeatedly, because the thread may have been about to connect.
            reader = self._reader
            if reader is not None:
                reader.cut()
            self._thread.join(_FIRST_PAUSE_S)

    def leave_old_server(self) -> None:
        """Reconnect if the address has since led another connection to another server, unless it always does."""
        reader, newest = self._reader, self._pool.address.newest
        if reader is None or newest is None or self._pool.address.is_balanced:
            return
        if newest.server != reader.facts.server and newest.connected_at_s > reader.facts.connected_at_s:
            reader.cut()

    def _run(self) -> None:
        while not self._ended.is_set():
            refused = False
            try:
                self._reader = LogReader(self._pool.node, self._pool.credentials)
                try:
                    if not self._ended.is_set():
                        self._listen(self._reader)
                finally:
                    self._reader.close()
            except SchemalessError as error:
                refused = isinstance(error, AccessDenied | ServerRefused)
                self._fall_back(str(error), logging.INFO if refused else logging.WARNING)
            except Exception as error:  # noqa: BLE001 - a listener that ended must not report that it listens
                self._fall_back(f"{type(error).__name__}: {error}", logging.ERROR)
            self._ended.wait(self._notifier.timing.refused_s if refused else self._pause_s)
            self._pause_s = min(self._notifier.timing.connect_s, self._pause_s * 2)

    def _fall_back(self, reason: str, level: int) -> None:
        """Report that the server's shards are polled."""
        if not self._ended.is_set() and not self.state.endswith(reason):
            trace = level == logging.ERROR
            log.log(level, "new cells on %s are found by polling: %s", self._pool.node, reason, exc_info=trace)
        self.state = f"sweep: {reason}"

    def _listen(self, reader: LogReader) -> None:
        decoder = self._notifier.decoder()
        tops: dict[str, int] = {}
        stable_at_s = 0.0
        for event in reader.events():
            if self.state != HEARD:
                # The log is sent from the moment of the connect. A poll finds earlier cells, and a second one finds
                # those that were just being committed.
                self.state = HEARD
                stable_at_s = time.monotonic() + _STABLE_S
                self._notifier.request_poll()
                self._notifier.request_poll(_LATE_S)
            elif time.monotonic() >= stable_at_s:
                self._pause_s = _FIRST_PAUSE_S
            news = decoder.read(event)
            if isinstance(news, Inserts):
                tops[news.schema] = max(news.last, tops.get(news.schema, 0))
            elif isinstance(news, Ended) and tops:
                self._notifier.notify(tops)
                tops = {}
            elif isinstance(news, Unreadable):
                raise ServerRefused(
                    "its binary log has compressed transactions, which cannot be read here", node=str(self._pool.node)
                )
