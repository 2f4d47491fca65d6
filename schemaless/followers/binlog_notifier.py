"""What has a worker look at a shard at once: a connection to each server that has its binary log sent.

Only a signal. It says which shards have new cells, and the change feed says what they are, so that nothing is lost
where it fails: whoever begins to listen looks at everything behind that, and everything is looked at now and then
besides. Where a server cannot be listened to, its shards are looked at as often as without.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable
from typing import Final

from schemaless.errors import AccessDenied, SchemalessError, ServerRefused
from schemaless.followers.membership import Timing
from schemaless.topology.shards import Shards
from schemaless.wire.binlog_events import Decoder, Ended, Inserts, Unreadable
from schemaless.wire.binlog_reader import LogReader
from schemaless.wire.node import Node
from schemaless.wire.pool import NodePool
from schemaless.wire.sql.parts import CELLS

_log = logging.getLogger("schemaless")

_FIRST_PAUSE_S: Final = 0.05
_STEADY_S: Final = 10.0
"""A connection that has lasted for so long was no accident: after it, the first pause is a short one again."""

_LATE_S: Final = 1.0
"""A transaction that was in the log already when somebody began to listen can be read so much later, at the latest."""

_END_S: Final = 1.0

HEARD: Final = "binary log"
NOT_YET: Final = "sweep: the binary log is not connected yet"


class Wakes:
    """What the binary logs say of a datastore's shards; closed as a ``with`` block ends.

    Args:
        shards: the datastore's.
        timing: how long things take.
    """

    def __init__(self, shards: Shards, timing: Timing) -> None:
        self.timing = timing
        self._shards = shards
        self._numbers = {shards.database(shard): shard for shard in range(shards.topology.shard_count)}
        self._lock = threading.Lock()
        self._news = threading.Event()
        self._woken: dict[int, int] = {}
        self._looks: list[float] = []
        self._sources: dict[Node, _Source] = {}

    def listen(self, nodes: Iterable[Node]) -> None:
        """Listen to these servers, and to no other any more."""
        wanted = set(nodes)
        for node in self._sources.keys() - wanted:
            self._sources.pop(node).end()
        for node in wanted - self._sources.keys():
            self._sources[node] = _Source(self, self._shards.pool_for(node))

    def hears(self, node: Node) -> bool:
        """Whether a server's new cells are heard of."""
        source = self._sources.get(node)
        return source is not None and source.said == HEARD

    def take(self) -> tuple[dict[int, int], bool]:
        """Return what was heard since the last call: the highest added_id of shards; and whether to look at all."""
        now_s = time.monotonic()
        with self._lock:
            self._news.clear()
            woken, self._woken = self._woken, {}
            due = [at_s for at_s in self._looks if at_s <= now_s]
            self._looks = [at_s for at_s in self._looks if at_s > now_s]
        return woken, bool(due)

    def wait(self, seconds: float) -> None:
        """Wait until something is heard, or so long."""
        if self._looks:
            seconds = min(seconds, min(self._looks, default=seconds) - time.monotonic())
        if seconds > 0:
            self._news.wait(seconds)

    @property
    def news(self) -> bool:
        """Whether ``take`` has something."""
        return self._news.is_set() or any(at_s <= time.monotonic() for at_s in self._looks)

    def told(self) -> dict[str, str]:
        """Return how new cells are found on each server."""
        return {str(node): source.said for node, source in list(self._sources.items())}

    def close(self) -> None:
        """End all connections."""
        self.listen(())

    # For the threads that listen

    def decoder(self) -> Decoder:
        """Return what reads one connection's events."""
        return Decoder(frozenset(self._numbers), CELLS)

    def heard(self, tops: dict[str, int]) -> None:
        """Note what was committed: the highest added_id by database."""
        with self._lock:
            for database, added_id in tops.items():
                shard = self._numbers[database]
                self._woken[shard] = max(added_id, self._woken.get(shard, 0))
            self._news.set()

    def look(self, later_s: float = 0.0) -> None:
        """Have all be looked at, so much later."""
        with self._lock:
            self._looks.append(time.monotonic() + later_s)
            self._news.set()


class _Source:
    """Listens to one server on a thread of its own, again and again."""

    def __init__(self, wakes: Wakes, pool: NodePool) -> None:
        self.said = NOT_YET
        self._wakes = wakes
        self._pool = pool
        self._reader: LogReader | None = None
        self._ended = threading.Event()
        self._pause_s = _FIRST_PAUSE_S
        self._thread = threading.Thread(target=self._run, name=f"binary log of {pool.node}", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Stop listening."""
        self._ended.set()
        until_s = time.monotonic() + _END_S
        while self._thread.is_alive() and time.monotonic() < until_s:
            # Over and over: it may have been about to connect.
            reader = self._reader
            if reader is not None:
                reader.cut()
            self._thread.join(_FIRST_PAUSE_S)

    def _run(self) -> None:
        while not self._ended.is_set():
            refused = False
            try:
                self._reader = LogReader(self._pool.node, self._pool.credentials)
                try:
                    if not self._ended.is_set():
                        self._hear(self._reader)
                finally:
                    self._reader.close()
            except SchemalessError as error:
                refused = isinstance(error, AccessDenied | ServerRefused)
                self._sweep(str(error), logging.INFO if refused else logging.WARNING)
            except Exception as error:  # noqa: BLE001 - whatever it is, who listens no more must not say that he does
                self._sweep(f"{type(error).__name__}: {error}", logging.ERROR)
            self._ended.wait(self._wakes.timing.refused_s if refused else self._pause_s)
            self._pause_s = min(self._wakes.timing.connect_s, self._pause_s * 2)

    def _sweep(self, reason: str, level: int) -> None:
        """Say that nothing is heard."""
        if not self._ended.is_set() and not self.said.endswith(reason):
            trace = level == logging.ERROR
            _log.log(level, "new cells on %s are found by sweep: %s", self._pool.node, reason, exc_info=trace)
        self.said = f"sweep: {reason}"

    def _hear(self, reader: LogReader) -> None:
        decoder = self._wakes.decoder()
        tops: dict[str, int] = {}
        steady_at_s = 0.0
        for event in reader.events():
            if self.said != HEARD:
                # It is sent from before now. What was before that is looked for, and what was just being committed.
                self.said = HEARD
                steady_at_s = time.monotonic() + _STEADY_S
                self._wakes.look()
                self._wakes.look(_LATE_S)
            elif time.monotonic() >= steady_at_s:
                self._pause_s = _FIRST_PAUSE_S
            news = decoder.read(event)
            if isinstance(news, Inserts):
                tops[news.schema] = max(news.last, tops.get(news.schema, 0))
            elif isinstance(news, Ended) and tops:
                self._wakes.heard(tops)
                tops = {}
            elif isinstance(news, Unreadable):
                raise ServerRefused(
                    "its binary log has compressed transactions, which cannot be read here", node=str(self._pool.node)
                )
