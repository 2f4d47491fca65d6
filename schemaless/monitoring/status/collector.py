"""The collector: reads each part of a status at its own interval, and assembles the latest readings."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime
from typing import Any, Final, Generic, NamedTuple, Self

from schemaless.base.logger import log
from schemaless.base.type_variables import T
from schemaless.errors import SchemalessError
from schemaless.monitoring.status.capacity import CapacityReader
from schemaless.monitoring.status.cold import ColdReader
from schemaless.monitoring.status.findings import findings_of
from schemaless.monitoring.status.followers import FollowerReader, ShardReader, follower_views, manifests
from schemaless.monitoring.status.history import History
from schemaless.monitoring.status.jobs import JobReader
from schemaless.monitoring.status.model import DEFAULT_OPTIONS, MonitorOptions, PartView, Status
from schemaless.monitoring.status.servers import ServerReader
from schemaless.store.datastore import Datastore
from schemaless.store.internals import internals_of


class _Intervals(NamedTuple):
    """Rests between readings, in seconds; the last ones are the maximum rests after reading jobs and all shards."""

    servers_s: float
    jobs_s: float
    followers_s: float
    most_jobs_s: float
    most_shards_s: float


_FOR_PEOPLE: Final = _Intervals(3.0, 2.0, 3.0, 4.0, 3600.0)
"""With 4,096 shards and MySQL's default table cache, the readings take less than 1 % of a core."""

_FOR_METRICS: Final = _Intervals(5.0, 5.0, 15.0, 5.0, 60.0)
"""Alerts must not be late by more than a minute."""

_SLOW_S: Final = 60.0
"""Rest between readings of capacity, and of the manifests of exports, in seconds."""

_REST: Final = 200.0
"""Rest after reading jobs or all shards, as a multiple of the time that the reading took."""

_SOON: Final = 10.0
"""Minimum rest before a requested reading of all shards, as a multiple of the duration of the last one."""

_STOP_WAIT_S: Final = 5.0


class Part(Generic[T]):
    """A part of the status.

    Attributes:
        value: its last reading; None before the first, and if the last one failed.
        view: when it was read, and why the reading failed if it did.

    Args:
        name: name of the part.
        every_s: rest between readings, in seconds.
        read: reads the part; an error is reported, and the part is unknown until the next reading.
        rest: minimum rest, as a multiple of the duration of the last reading.
        most_rest_s: maximum of that rest, in seconds.
        remember: called with each value and the time of its reading.
    """

    def __init__(
        self,
        name: str,
        every_s: float,
        read: Callable[[], T | None],
        *,
        rest: float = 0.0,
        most_rest_s: float = 0.0,
        remember: Callable[[T, datetime], None] = lambda value, at: None,
    ) -> None:
        self.value: T | None = None
        self.view: PartView = PartView(name, None, every_s, None)
        self._every_s = every_s
        self._read = read
        self._rest = rest
        self._most_rest_s = most_rest_s
        self._remember = remember
        self._woken = threading.Event()
        self._ended = threading.Event()

    def refresh(self) -> None:
        """Read the part again."""
        began_s = time.monotonic()
        problem: str | None = None
        value: T | None = None
        try:
            value = self._read()
        except SchemalessError as error:
            problem = str(error)
        except Exception as error:  # noqa: BLE001 - a reader with a bug must not end its thread
            # The page must not show what the message of such an error says: it may contain a key.
            problem = f"unexpected {type(error).__name__}; the log of 'schemaless status' has the traceback"
            if problem != self.view.problem:
                log.exception("status: cannot read %s", self.view.name)
        took_s = time.monotonic() - began_s
        rest_s = max(self._every_s, min(self._most_rest_s, self._rest * took_s))
        self.value = value
        at = datetime.now(UTC)
        self.view = PartView(self.view.name, at, round(rest_s, 1), problem, took_s)
        if value is not None:
            self._remember(value, at)

    def wait(self) -> bool:
        """Wait until the next reading is due, or ``wake`` is called after a minimum rest; False after ``end``."""
        rest_s = self.view.every_s
        soonest_s = max(self._every_s, min(rest_s, _SOON * self.view.took_s))
        if not self._ended.wait(soonest_s):
            self._woken.wait(rest_s - soonest_s)
            self._woken.clear()
        return not self._ended.is_set()

    def wake(self) -> None:
        """Bring the next reading forward."""
        self._woken.set()

    def end(self) -> None:
        """End all waits, present and future."""
        self._ended.set()
        self._woken.set()


class Collector:
    """Collects the status of a datastore: once with ``collect``, or repeatedly during its ``with`` block.

    Attributes:
        parts: all parts.

    Args:
        store: the datastore. Give it short timeouts, so that a hanging server is reported quickly.
        for_metrics: whether to read at the intervals of metrics, and the manifests of exports too.
        forecast: whether to forecast when disks will be full.
        options: what is written, and what is reported.
    """

    def __init__(
        self,
        store: Datastore,
        *,
        for_metrics: bool = False,
        forecast: bool = True,
        options: MonitorOptions = DEFAULT_OPTIONS,
    ) -> None:
        every = _FOR_METRICS if for_metrics else _FOR_PEOPLE
        self._store = store
        self._for_metrics = for_metrics
        self._options = options
        self._history = History(lambda shard: internals_of(store).topology.cluster_of(shard).name)
        self._server_reader = ServerReader(store, options)
        remember = self._history
        self._servers = Part("servers", every.servers_s, self._server_reader, remember=remember.note_servers)
        self._jobs = Part("jobs", every.jobs_s, JobReader(store), rest=_REST, most_rest_s=every.most_jobs_s)
        follower_reader = FollowerReader(store, lambda: self._shards.value, lambda: self._shards.wake())
        self._followers = Part("followers", every.followers_s, follower_reader)
        shard_reader = ShardReader(internals_of(store).shards, follower_reader.names)
        self._shards = Part(
            "shards",
            every.followers_s,
            shard_reader,
            rest=_REST,
            most_rest_s=every.most_shards_s,
            remember=lambda last, at: remember.note_tops(last.tops, at),
        )
        capacity_reader = CapacityReader(store, forecast=forecast)
        self._capacity = Part("capacity", _SLOW_S, capacity_reader, remember=remember.note_capacity)
        # Like shards, it opens tables of every shard.
        self._cold = Part("cold", _SLOW_S, ColdReader(store), rest=_REST, most_rest_s=every.most_shards_s)
        self._exports = Part("exports", _SLOW_S, lambda: manifests(store))
        parts = self._servers, self._jobs, self._followers, self._shards, self._capacity, self._cold
        self.parts: Sequence[Part[Any]] = (*parts, self._exports) if for_metrics else parts
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Self:
        for part in self.parts:
            thread = threading.Thread(
                target=self._keep_reading, args=(part,), name=f"status {part.view.name}", daemon=True
            )
            self._threads.append(thread)
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        for part in self.parts:
            part.end()
        for thread in self._threads:
            thread.join(_STOP_WAIT_S)
        self.close()

    def close(self) -> None:
        """Close the connections that the collector opened itself."""
        self._server_reader.close()

    def collect(self, on_part: Callable[[], None] = lambda: None) -> Status:
        """Read all parts once, concurrently, close the collector, and return the status.

        Args:
            on_part: called after each part.
        """
        with closing(self), ThreadPoolExecutor(len(self.parts)) as threads:
            for _ in threads.map(Part.refresh, self.parts):
                on_part()
        return self.status()

    def status(self) -> Status:
        """Return the last readings; no server is contacted."""
        now = datetime.now(UTC)
        clusters, jobs = self._servers.value, self._jobs.value
        followers = follower_views(self._followers.value, self._shards.value)
        views = tuple(part.view for part in self.parts)
        topology, last = internals_of(self._store).topology, self._shards.value if self._for_metrics else None
        return Status(
            datastore=self._store.name,
            taken_at=now,
            shards=self._store.shard_count,
            findings=findings_of(
                clusters or (),
                jobs or (),
                followers or (),
                self._capacity.value,
                self._cold.value or (),
                views,
                now,
                self._options.disk_full_from,
            ),
            clusters=clusters,
            jobs=jobs,
            followers=followers,
            capacity=self._capacity.value,
            parts=views,
            ends={} if last is None else {(topology.cluster_of(at).name, at): top for at, top in last.tops.items()},
            exports=self._exports.value,
            cold=self._cold.value,
            hottest=self._history.hottest(),
            history=self._history.series(),
        )

    def _keep_reading(self, part: Part[Any]) -> None:
        part.refresh()
        while part.wait():
            part.refresh()
