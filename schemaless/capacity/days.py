"""Growth by day (UTC): where days begin among the added_ids of a shard, and how many cells lie between.

Where created_at follows added_id, the ends of days are searched for: a few single rows are looked at for each day,
until its end is known as well as its cells have to be. Between two ends some windows are counted, which touches no
body. What a body takes comes from the windows of the sample that lie nearest in time.

Where created_at does not follow added_id (imported history, clocks that jump), cells of one day lie anywhere. Then only
the sample tells, by the created_at of its cells, and intervals are wide. A few that are out of order do no harm: of
the cells looked at, the most that are in order are taken.
"""

from __future__ import annotations

import math
import random
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from typing import Final

from schemaless.capacity.day_ends import PLACES, ConnectionSlots, End, Probe, inverted, search
from schemaless.capacity.groups import Taken
from schemaless.capacity.measurement import DayIntake, Method
from schemaless.capacity.sql import count_columns, select_moments
from schemaless.datastore import Datastore
from schemaless.internals import internals_of
from schemaless.numbers import LEVEL, Interval, added, poisson_bounds, student_t
from schemaless.survey.sampling import Span, draw, tile_count
from schemaless.topology.shards import ReadFrom

MOST_DAYS: Final = 400
"""So many days of history are looked at, the latest ones."""

_DAY_SHARE: Final = 0.02
"""The end of a day is to be known to this part of an average day's cells, over all shards together."""

_ALL: Final = 1 << 30

_DAY_WINDOWS: Final = 8

_DAY_WINDOW_ROWS: Final = 32

_SCATTER_DAYS: Final = 10
"""So many days before and behind a day tell how much its windows differ."""

_NEAREST: Final = 32
"""So many windows of the sample, the nearest ones, tell what a body of a day takes."""

_FEW: Final = 30

_DAY_S: Final = 86_400


@dataclass(slots=True)
class IntakeByDay:
    """What came in day by day in a cluster.

    Attributes:
        days: in the order of column_name and day.
        notes: what a reader has to know.
        rows_read: rows that the servers were asked for.
    """

    days: list[DayIntake] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    rows_read: int = 0


def grow(
    store: Datastore,
    cluster: str,
    taken: Sequence[Taken],
    seed: int,
    now: datetime,
    *,
    inverted_share: float,
    most_shards: int,
) -> IntakeByDay:
    """Find out what came in day by day in a cluster, which was sampled just before.

    Args:
        inverted_share: days are searched for where no more of the cells in the sample are out of order.
        most_shards: in so many shards, chosen at random, where there are more.

    Raises:
        ServerError: its server cannot be reached.
    """
    if not any(of_cluster.sample.windows for of_cluster in taken):
        return IntakeByDay()
    future = sum(of_cluster.sample.count(("future",)).mid for of_cluster in taken)
    notes = []
    if future:
        notes.append(
            f"{cluster}: about {future:,.0f} cells have a created_at after now ({now:%Y-%m-%d %H:%M} UTC), by a clock "
            "that was wrong; they are in no day"
        )
    if all(of_cluster.sample.exact for of_cluster in taken):
        return IntakeByDay(_by_created_at(cluster, taken, now.date(), "count"), notes)
    points: defaultdict[int, list[Probe]] = defaultdict(list)
    for of_cluster in taken:
        for shard, added_id, at in of_cluster.moments:
            points[shard].append(Probe(added_id, added_id, at))
    share = _inverted_share(points.values())
    if share <= inverted_share:
        search = _Search(store, taken, random.Random(~seed), now, most_shards)  # noqa: S311 - nothing secret
        ends = search.ends()
        # The first ones, which lie evenly: the others look closely at where something is wrong.
        even = [probes[: len(search.days)] for probes in search.probes.values()]
        share = _inverted_share([*points.values(), *even])
        if share <= inverted_share:
            if share:
                notes.append(
                    f"{cluster}: of the cells looked at, {share:.2%} are out of order, by a clock that jumped or by an "
                    "import; they count for the day among whose cells they lie"
                )
            return IntakeByDay(search.growth(cluster, ends), notes, search.rows_read)
    notes.append(
        f"{cluster}: created_at does not follow added_id ({share:.1%} of the cells looked at are out of order: "
        "imported history, or clocks that jump), so its days are estimated from the sample, with wide intervals"
    )
    return IntakeByDay(_by_created_at(cluster, taken, now.date(), "sample"), notes)


def _inverted_share(shards: Iterable[Sequence[Probe]]) -> float:
    counts = [(inverted(points), len(points)) for points in shards]
    return sum(out for out, _ in counts) / max(1, sum(count for _, count in counts))


class _Search:
    """Searches a cluster's shards for the ends of days, and counts between them."""

    def __init__(
        self, store: Datastore, taken: Sequence[Taken], randomly: random.Random, now: datetime, most_shards: int
    ) -> None:
        self._store = store
        self._internals = internals_of(store)
        self._taken = taken
        self._random = randomly
        self._read_from: ReadFrom = taken[0].part.read_from
        spans: defaultdict[int, list[Span]] = defaultdict(list)
        for cluster in taken:
            for span in cluster.sample.spans:
                spans[span.shard].append(span)
        self._all = [ConnectionSlots(spans[shard]) for shard in sorted(spans)]
        self._chosen = self._all
        if len(self._all) > most_shards:
            numbers = sorted(randomly.sample(range(len(self._all)), most_shards))
            self._chosen = [self._all[number] for number in numbers]
        cells = sum(cluster.sample.total(*cluster.sample.keys_of("cells")).mid for cluster in taken)
        self._rows_per_id = max(1e-9, cells / sum(cluster.sample.ids for cluster in taken))
        self._now = now
        self.days: list[date] = []
        self.probes: dict[int, list[Probe]] = {}
        self.rows_read = 0

    def ends(self) -> dict[int, list[End]]:
        """Return the beginning of each day, and of the one after the last, in each shard that is searched: places."""
        first = min(probe.at for searched in self._chosen for probe in self._ask(searched, [0, searched.count // 2]))
        today = self._now.date()
        oldest = max(datetime.fromtimestamp(first, UTC).date(), today - timedelta(days=MOST_DAYS - 1))
        self.days = [oldest + timedelta(days=number) for number in range((today - oldest).days + 1)]
        midnights = [
            datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp()
            for day in (*self.days, today + timedelta(days=1))
        ]
        ends_of = {}
        for searched in self._chosen:
            tolerated_ids = searched.count / max(1, len(self.days)) * _DAY_SHARE * math.sqrt(len(self._chosen))
            ends, self.probes[searched.shard] = search(
                lambda places, searched=searched: self._ask(searched, places),  # type: ignore[misc]
                Span(searched.shard, 0, searched.count - 1),
                midnights,
                tolerated_ids,
            )
            ends_of[searched.shard] = ends
        return ends_of

    def _ask(self, of: ConnectionSlots, places: Sequence[int]) -> list[Probe]:
        database = self._internals.shards.database(of.shard)
        by_id = {of.id_at(place): place for place in places}
        ids = sorted(by_id)
        probes = []
        for start in range(0, len(ids), PLACES):
            sql = select_moments(database, ids[start : start + PLACES])
            for asked, added_id, created_at in self._internals.shards.rows(of.shard, sql, read_from=self._read_from):
                at = datetime.fromisoformat(created_at).timestamp()
                probes.append(Probe(by_id[int(asked)], of.place_of(int(added_id)), at))
        self.rows_read += len(probes)
        return probes

    def growth(self, cluster: str, ends: dict[int, list[End]]) -> list[DayIntake]:
        """Return what came in between the ends of days."""
        counted = [self._count(ends, number) for number in range(len(self.days))]
        columns = sorted({column for of_cluster in self._taken for _, column, _ in of_cluster.sample.keys_of("cells")})
        today = self._now.date()
        intakes = []
        for column in columns:
            sizes = _Sizes(self._taken, column)
            for number, (day, count) in enumerate(zip(self.days, counted, strict=True)):
                about = counted[max(0, number - _SCATTER_DAYS) : number + _SCATTER_DAYS + 1]
                cells = count.cells(column, *_scatter(about, column))
                noon = datetime(day.year, day.month, day.day, 12, tzinfo=UTC).timestamp()
                complete = day < today and (day > self.days[0] or len(self.days) == MOST_DAYS)
                intakes.append(DayIntake(day, cluster, column, cells, sizes.bytes_of(cells, noon), "search", complete))
        return intakes

    def _count(self, ends: dict[int, list[End]], number: int) -> _Counted:
        """Count the cells of one day, or those in some windows of it."""
        pieces: list[Span] = []
        variance = slack = 0.0
        by_shard: list[tuple[int, int]] = []
        for searched in self._chosen:
            begin, end = ends[searched.shard][number], ends[searched.shard][number + 1]
            variance += begin.variance + end.variance
            slack += (begin.high - begin.low + end.high - end.low) / 4
            spans = searched.between(round(begin.mid), round(end.mid))
            by_shard.append((_id_count(spans), searched.count))
            pieces += spans
        ids, searched_ids = _id_count(pieces), sum(searched.count for searched in self._chosen)
        times = sum(searched.count for searched in self._all) / searched_ids
        if len(self._chosen) < len(self._all):
            mean = ids / searched_ids
            spread = sum((own - mean * count) ** 2 for own, count in by_shard) / max(1, len(by_shard) - 1)
            variance += spread * len(by_shard) * (1 - len(self._chosen) / len(self._all))
        counted = _Counted(ids * times, variance * times**2, slack * times)
        width = max(1, round(_DAY_WINDOW_ROWS / self._rows_per_id))
        whole = tile_count(pieces, width) <= 2 * _DAY_WINDOWS
        windows = draw(pieces, width, _ALL if whole else _DAY_WINDOWS, self._random.getrandbits(32))
        if not windows:
            return counted
        parts = [(self._internals.shards.database(window.shard), window.after, window.up_to) for window in windows]
        counts: list[dict[str, int]] = [{} for _ in windows]
        sql = count_columns(parts)
        for part, column, count in self._internals.shards.rows(windows[0].shard, sql, read_from=self._read_from):
            counts[int(part)][str(column)] = int(count)
            self.rows_read += int(count)
        counted.windows = [(window.up_to - window.after, cells) for window, cells in zip(windows, counts, strict=True)]
        counted.whole = whole and times == 1
        return counted


def _id_count(spans: Sequence[Span]) -> int:
    return sum(span.high - span.low + 1 for span in spans)


@dataclass(slots=True)
class _Counted:
    """A day, of all shards.

    Attributes:
        ids: how many added_ids it has.
        variance: of that.
        slack: by how many ids its ends in the shards lie apart from where they are taken to be, all together.
        windows: of it, each with its ids and its cells by column_name.
        whole: whether these are all there is.
    """

    ids: float
    variance: float
    slack: float
    windows: list[tuple[int, dict[str, int]]] = field(default_factory=list)
    whole: bool = False

    @property
    def window_ids(self) -> int:
        return sum(ids for ids, _ in self.windows)

    def seen(self, column: str) -> int:
        return sum(cells.get(column, 0) for _, cells in self.windows)

    def cells(self, column: str, scatter: float, degrees: float) -> Interval:
        """Return how many cells of a column the day has.

        Args:
            scatter: variance of a window's cells for each expected one.
            degrees: of freedom, that the scatter has.
        """
        ids, seen = self.window_ids, self.seen(column)
        if not ids:
            return Interval.of(0.0)
        density, times = seen / ids, self.ids / ids
        left = 0.0 if self.whole else max(0.0, 1 - 1 / times)
        variance = scatter * seen * times**2 * left + density**2 * self.variance + scatter * density * self.slack
        half = student_t((1 + LEVEL) / 2, degrees) * math.sqrt(variance)
        low, mid, high = seen * times - half, seen * times, seen * times + half
        if left and seen <= _FEW:
            fewest, most = poisson_bounds(seen)
            low, high = min(low, fewest * times), max(high, most * times)
        return Interval(max(0.0, low), mid, high)


def _scatter(counted: Sequence[_Counted], column: str) -> tuple[float, float]:
    """Return how much the windows of a day differ: variance for each expected cell, some days taken together."""
    squares = expected = 0.0
    degrees = 0
    for day in counted:
        if day.whole or len(day.windows) < 2 or not day.seen(column):
            continue
        density = day.seen(column) / day.window_ids
        more = len(day.windows) / (len(day.windows) - 1)
        for ids, cells in day.windows:
            squares += more * (cells.get(column, 0) - density * ids) ** 2
            expected += density * ids
        degrees += len(day.windows) - 1
    return (squares / expected if expected else 1.0), max(3.0, degrees)


class _Sizes:
    """What bodies of a column take, by the windows of the sample that are nearest in time."""

    def __init__(self, taken: Sequence[Taken], column: str) -> None:
        windows = []
        for cluster in taken:
            codecs = [codec for _, name, codec in cluster.sample.keys_of("cells") if name == column]
            for window, figures in zip(cluster.sample.windows, cluster.sample.figures, strict=True):
                values = figures.values
                cells = sum(values.get(("cells", column, codec), 0.0) for codec in codecs)
                if cells and values.get(("timed",)):
                    size = sum(values.get(("bytes", column, codec), 0.0) for codec in codecs)
                    at = values["at",] / values["timed",]
                    squares = values.get(("squares", column), 0.0)
                    windows.append((at, *(window.weight * value for value in (cells, size, squares))))
        self._windows = sorted(windows)
        self._times = [at for at, *_ in self._windows]

    def bytes_of(self, cells: Interval, noon: float) -> Interval:
        """Return what so many cells of the day with this noon take."""
        if not self._windows or not cells.high:
            return Interval.of(0.0)
        near = self._nearest(noon)
        count, total, squares = (sum(part) for part in list(zip(*near, strict=True))[1:])
        mean, mid = total / count, cells.mid * total / count
        if len(near) < 4:
            return Interval(0.0, mid, 2 * cells.high * mean)
        errors = sum((size - mean * cells_of) ** 2 for _, cells_of, size, _ in near)
        half = cells.mid * math.sqrt(errors * len(near) / (len(near) - 1)) / count
        # The cells of the day are others than those of the windows: their mean has a spread of its own.
        half = math.hypot(half, math.sqrt(cells.mid * max(0.0, squares / count - mean**2)))
        half *= student_t((1 + LEVEL) / 2, len(near) - 1)
        below = math.hypot((cells.mid - cells.low) * mean, half)
        above = math.hypot((cells.high - cells.mid) * mean, half)
        return Interval(max(0.0, mid - below), mid, mid + above)

    def _nearest(self, noon: float) -> list[tuple[float, ...]]:
        low, high = (bisect_left(self._times, noon + side * _DAY_S / 2) for side in (-1, 1))
        while high - low < min(_NEAREST, len(self._times)):
            if low and (high == len(self._times) or noon - self._times[low - 1] <= self._times[high] - noon):
                low -= 1
            else:
                high += 1
        return self._windows[low:high]


def _by_created_at(cluster: str, taken: Sequence[Taken], today: date, method: Method) -> list[DayIntake]:
    """Return what came in on each day, by the created_at of the cells in the sample."""
    days = sorted({(column, day) for of_cluster in taken for _, column, day in of_cluster.sample.keys_of("day")})
    first = min((day for _, day in days), default="")
    return [
        DayIntake(
            day=date.fromisoformat(day),
            cluster=cluster,
            column_name=column,
            cells=added(of_cluster.sample.count(("day", column, day)) for of_cluster in taken),
            body_bytes=added(of_cluster.sample.total(("day bytes", column, day)) for of_cluster in taken),
            method=method,
            complete=first < day < today.isoformat(),
        )
        for column, day in days
    ]
