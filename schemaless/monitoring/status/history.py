"""What a collector remembers: series of lag, puts, bytes and days left, and the shards with the most puts."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Final

from schemaless.monitoring.status.model import CapacityView, ClusterView, HotShard, Point

_POINTS: Final = 240
"""Maximum number of points of a series."""

_SPACING_S: Final = 30.0
"""Minimum distance of two points of a series, in seconds; of values in between, the worst is kept. Lag goes back two
hours, puts further if all shards are read less often."""

_HOTTEST: Final = 5


class _Series:
    """A series of bounded length."""

    def __init__(self, worst: Callable[[float, float], float]) -> None:
        self._worst = worst
        self._points: deque[Point] = deque(maxlen=_POINTS)

    def add(self, at: datetime, value: float) -> None:
        last = self._points[-1] if self._points else None
        if last is not None and (at - last.at).total_seconds() < _SPACING_S:
            self._points[-1] = Point(last.at, self._worst(last.value, value))
        else:
            self._points.append(Point(at, value))

    def add_once(self, at: datetime, value: float) -> None:
        if not self._points or at > self._points[-1].at:
            self.add(at, value)

    def points(self) -> tuple[Point, ...]:
        return tuple(self._points)


class History:
    """Remembers readings in bounded memory; the readers' threads add to it, others read.

    Args:
        cluster_of: returns the name of a shard's cluster.
    """

    def __init__(self, cluster_of: Callable[[int], str]) -> None:
        self._cluster_of = cluster_of
        self._lock = threading.Lock()
        self._series = {"lag": _Series(max), "puts": _Series(max), "bytes": _Series(max), "days left": _Series(min)}
        self._tops: tuple[datetime, Mapping[int, int]] | None = None
        self._hottest: tuple[HotShard, ...] = ()

    def note_servers(self, clusters: Sequence[ClusterView], at: datetime) -> None:
        """Add the largest lag of all replicas."""
        lags = [node.lag_s for cluster in clusters for node in cluster.nodes if node.lag_s is not None]
        if lags:
            with self._lock:
                self._series["lag"].add(at, max(lags))

    def note_tops(self, tops: Mapping[int, int], at: datetime) -> None:
        """Add the puts per second of all shards since the last reading of their highest added_ids.

        A put that finds its cell takes an added_id too, and is counted.
        """
        with self._lock:
            before, self._tops = self._tops, (at, tops)
            if before is None or at <= before[0]:
                return
            puts = {shard: top - before[1][shard] for shard, top in tops.items() if top > before[1].get(shard, top)}
            seconds, total = (at - before[0]).total_seconds(), sum(puts.values())
            self._series["puts"].add(at, total / seconds)
            self._hottest = tuple(
                HotShard(shard, self._cluster_of(shard), puts[shard] / seconds, puts[shard] / total)
                for shard in sorted(puts, key=lambda shard: -puts[shard])[:_HOTTEST]
            )

    def note_capacity(self, capacity: CapacityView, at: datetime) -> None:
        """Add the sizes of measurements, and the days until the first disk is full as of the newest one.

        A forecast is made once for each measurement and belongs to its time, not to ``at``.
        """
        with self._lock:
            for point in capacity.sizes:
                self._series["bytes"].add_once(*point)
            if days := [disk.days for disk in capacity.disks if disk.days is not None]:
                self._series["days left"].add_once(capacity.measured_at, min(days))

    def series(self) -> dict[str, tuple[Point, ...]]:
        """Return the points of each series that has any."""
        with self._lock:
            return {name: points for name, series in self._series.items() if (points := series.points())}

    def hottest(self) -> tuple[HotShard, ...]:
        """Return the shards with the most puts between the last two readings of all shards, most first."""
        with self._lock:
            return self._hottest
