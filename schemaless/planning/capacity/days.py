"""Growth by day (UTC): find where days begin among the added_ids of each shard, and count the cells in between.

If created_at follows added_id, a search probes a few single rows per day until the day's end is known precisely enough.
Cells are then counted in some windows between two ends, without touching bodies. Body sizes come from the windows of
the sample that are nearest in time.

If created_at does not follow added_id (imported history, jumping clocks), the cells of a day can be anywhere. The days
are then estimated from the created_at of the sampled cells, with wide intervals. A few cells out of order do no harm:
the search uses the longest chain of probes that is in order.
"""

from __future__ import annotations

import math
import random
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from typing import Final

from schemaless.base.numbers import LEVEL, Interval, added, counted, poisson_bounds, student_t
from schemaless.base.parts import grouped
from schemaless.codec.envelope import COLD, ERASED
from schemaless.planning.capacity.day_ends import PLACES, DenseIds, End, Probe, inverted, search
from schemaless.planning.capacity.groups import PartSample
from schemaless.planning.capacity.measurement import DayIntake, Method
from schemaless.planning.capacity.sql import count_columns, select_moments
from schemaless.planning.sampling.sampling import Span, draw, id_count, tile_count
from schemaless.store.datastore import Datastore
from schemaless.store.internals import internals_of
from schemaless.topology.shards import ReadFrom

MOST_DAYS: Final = 400
"""Maximum length of the measured history, in days."""

_DAY_SHARE: Final = 0.02
"""Required precision of a day's end, over all shards, as a share of an average day's cells."""

_ALL: Final = 1 << 30

_DAY_WINDOWS: Final = 8

_DAY_WINDOW_ROWS: Final = 32

_SCATTER_DAYS: Final = 10
"""Number of days on each side of a day that are pooled with it to estimate the variance between windows."""

_NEAREST: Final = 32
"""Number of sample windows, nearest in time, from which the body sizes of a day are estimated."""

_POISSON_CELLS: Final = 30
"""Up to this number of counted cells, the interval is at least as wide as the exact Poisson interval."""

_DAY_S: Final = 86_400


@dataclass(slots=True)
class IntakeByDay:
    """The daily intake of a cluster.

    Attributes:
        days: Ordered by column_name and day.
        notes: Caveats for the reader of the measurement.
        rows_read: Number of rows fetched from the servers.
    """

    days: list[DayIntake] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    rows_read: int = 0


def intake_by_day(
    store: Datastore,
    cluster: str,
    samples: Sequence[PartSample],
    seed: int,
    now: datetime,
    *,
    inverted_share: float,
    most_shards: int,
) -> IntakeByDay:
    """Determine the daily intake of a cluster that was just sampled.

    Args:
        inverted_share: Maximum share of sampled cells out of order; above it, the ends of days are not
            searched for by added_id.
        most_shards: Maximum number of shards to search; if there are more, a random selection of this size is searched.

    Raises:
        ServerError: The server of the cluster cannot be reached.
    """
    if not any(part.sample.windows for part in samples):
        return IntakeByDay()
    future = sum(part.sample.count(("future",)).mid for part in samples)
    notes = []
    if future:
        notes.append(
            f"{cluster}: about {counted(round(future), 'cell has', 'cells have')} a created_at in the future "
            f"(now is {now:%Y-%m-%d %H:%M} UTC), probably from a wrong clock; they are not counted for any day"
        )
    if all(part.sample.exact for part in samples):
        return IntakeByDay(_by_created_at(cluster, samples, now.date(), "count"), notes)
    points = [probes for part in samples for probes in part.probes.values()]
    share = _inverted_share(points)
    if share <= inverted_share:
        search = _Search(store, samples, random.Random(~seed), now, most_shards)  # noqa: S311 - nothing secret
        ends = search.ends()
        # Only the first probes, which are evenly spaced: later ones concentrate where the order is wrong.
        even = [probes[: len(search.days)] for probes in search.probes.values()]
        share = _inverted_share([*points, *even])
        if share <= inverted_share:
            if share:
                notes.append(
                    f"{cluster}: {share:.2%} of the probed cells are out of order, because a clock jumped or cells "
                    "were imported; each is counted on the day of its neighbours"
                )
            return IntakeByDay(search.growth(cluster, ends), notes, search.rows_read)
    notes.append(
        f"{cluster}: created_at does not follow added_id ({share:.1%} of the probed cells are out of order because of "
        "an import or a clock jump), so daily growth is estimated from the sample, with wide intervals"
    )
    return IntakeByDay(_by_created_at(cluster, samples, now.date(), "sample"), notes)


def _inverted_share(shards: Iterable[Sequence[Probe]]) -> float:
    counts = [(inverted(points), len(points)) for points in shards]
    return sum(out for out, _ in counts) / max(1, sum(count for _, count in counts))


class _Search:
    """Searches the shards of a cluster for the ends of days, and counts the cells between them."""

    def __init__(
        self, store: Datastore, samples: Sequence[PartSample], rng: random.Random, now: datetime, most_shards: int
    ) -> None:
        self._internals = internals_of(store)
        self._samples = samples
        self._random = rng
        self._read_from: ReadFrom = samples[0].part.read_from
        spans = grouped((span.shard, span) for part in samples for span in part.sample.spans)
        self._all = [DenseIds(spans[shard]) for shard in sorted(spans)]
        self._chosen = self._all
        if len(self._all) > most_shards:
            numbers = sorted(rng.sample(range(len(self._all)), most_shards))
            self._chosen = [self._all[number] for number in numbers]
        cells = sum(part.sample.total(*part.sample.keys_of("cells")).mid for part in samples)
        self._rows_per_id = max(1e-9, cells / sum(part.sample.ids for part in samples))
        self._now = now
        self.days: list[date] = []
        self.probes: dict[int, list[Probe]] = {}
        self.rows_read = 0

    def ends(self) -> dict[int, list[End]]:
        """Return, for each searched shard, the places where each day begins and where the last one ends."""
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

    def _ask(self, ids: DenseIds, places: Sequence[int]) -> list[Probe]:
        database = self._internals.shards.database(ids.shard)
        by_id = {ids.id_at(place): place for place in places}
        probed = sorted(by_id)
        probes = []
        for start in range(0, len(probed), PLACES):
            sql = select_moments(database, probed[start : start + PLACES])
            for probe, added_id, created_at in self._internals.shards.rows(ids.shard, sql, read_from=self._read_from):
                at = datetime.fromisoformat(created_at).timestamp()
                probes.append(Probe(by_id[int(probe)], ids.place_of(int(added_id)), at))
        self.rows_read += len(probes)
        return probes

    def growth(self, cluster: str, ends: dict[int, list[End]]) -> list[DayIntake]:
        """Return the intake between the ends of days."""
        counted = [self._count(ends, number) for number in range(len(self.days))]
        columns = sorted({column for part in self._samples for _, column, _ in part.sample.keys_of("cells")})
        today = self._now.date()
        intakes = []
        for column in columns:
            sizes = _BodySizes(self._samples, column)
            for number, (day, count) in enumerate(zip(self.days, counted, strict=True)):
                nearby = counted[max(0, number - _SCATTER_DAYS) : number + _SCATTER_DAYS + 1]
                cells = count.cells(column, *_scatter(nearby, column))
                noon = datetime(day.year, day.month, day.day, 12, tzinfo=UTC).timestamp()
                complete = day < today and (day > self.days[0] or len(self.days) == MOST_DAYS)
                size, states = sizes.bytes_of(cells, noon), sizes.states_of(cells, noon)
                intakes.append(DayIntake(day, cluster, column, cells, size, "search", complete, *states))
        return intakes

    def _count(self, ends: dict[int, list[End]], number: int) -> _CountedDay:
        """Count the cells of one day, or of some windows of it."""
        pieces: list[Span] = []
        variance = slack = 0.0
        by_shard: list[tuple[int, int]] = []
        for searched in self._chosen:
            begin, end = ends[searched.shard][number], ends[searched.shard][number + 1]
            variance += begin.variance + end.variance
            slack += (begin.high - begin.low + end.high - end.low) / 4
            spans = searched.between(round(begin.mid), round(end.mid))
            by_shard.append((id_count(spans), searched.count))
            pieces += spans
        ids, searched_ids = id_count(pieces), sum(searched.count for searched in self._chosen)
        times = sum(searched.count for searched in self._all) / searched_ids
        if len(self._chosen) < len(self._all):
            mean = ids / searched_ids
            spread = sum((own - mean * count) ** 2 for own, count in by_shard) / max(1, len(by_shard) - 1)
            variance += spread * len(by_shard) * (1 - len(self._chosen) / len(self._all))
        counted = _CountedDay(ids * times, variance * times**2, slack * times)
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


@dataclass(slots=True)
class _CountedDay:
    """Counts of a day, extrapolated to all shards.

    Attributes:
        ids: Number of added_ids in the day.
        variance: Variance of ``ids``.
        slack: Expected error of the day's ends, summed over the shards, in added_ids.
        windows: Counted windows: number of added_ids, and cells by column_name.
        whole: True if the windows cover the whole day.
    """

    ids: float
    variance: float
    slack: float
    windows: list[tuple[int, dict[str, int]]] = field(default_factory=list)
    whole: bool = False

    @property
    def window_ids(self) -> int:
        return sum(ids for ids, _ in self.windows)

    def counted_cells(self, column: str) -> int:
        return sum(cells.get(column, 0) for _, cells in self.windows)

    def cells(self, column: str, scatter: float, degrees: float) -> Interval:
        """Estimate the number of cells in a column on the day.

        Args:
            scatter: Variance of a window's cell count, per expected cell.
            degrees: Degrees of freedom of ``scatter``.
        """
        ids, count = self.window_ids, self.counted_cells(column)
        if not ids:
            return Interval.of(0.0)
        density, times = count / ids, self.ids / ids
        uncounted = 0.0 if self.whole else max(0.0, 1 - 1 / times)
        variance = scatter * count * times**2 * uncounted + density**2 * self.variance + scatter * density * self.slack
        half = student_t((1 + LEVEL) / 2, degrees) * math.sqrt(variance)
        low, mid, high = count * times - half, count * times, count * times + half
        if uncounted and count <= _POISSON_CELLS:
            fewest, most = poisson_bounds(count)
            low, high = min(low, fewest * times), max(high, most * times)
        return Interval(max(0.0, low), mid, high)


def _scatter(counted: Sequence[_CountedDay], column: str) -> tuple[float, float]:
    """Return the variance between windows per expected cell, pooled over the days, and its degrees of freedom."""
    squares = expected = 0.0
    degrees = 0
    for day in counted:
        if day.whole or len(day.windows) < 2 or not day.counted_cells(column):
            continue
        density = day.counted_cells(column) / day.window_ids
        bessel = len(day.windows) / (len(day.windows) - 1)
        for ids, cells in day.windows:
            squares += bessel * (cells.get(column, 0) - density * ids) ** 2
            expected += density * ids
        degrees += len(day.windows) - 1
    return (squares / expected if expected else 1.0), max(3.0, degrees)


class _BodySizes:
    """Estimates body sizes of a column on a day from the sample windows nearest in time."""

    def __init__(self, samples: Sequence[PartSample], column: str) -> None:
        windows = []
        for part in samples:
            codecs = [codec for _, name, codec in part.sample.keys_of("cells") if name == column]
            for window, figures in zip(part.sample.windows, part.sample.figures, strict=True):
                values = figures.values
                cells = sum(values.get(("cells", column, codec), 0.0) for codec in codecs)
                if cells and values.get(("timed",)):
                    size = sum(values.get(("bytes", column, codec), 0.0) for codec in codecs)
                    at = values["at",] / values["timed",]
                    squares, texts = values.get(("squares", column), 0.0), values.get(("texts", column), 0.0)
                    cold, erased = (values.get(("cells", column, state), 0.0) for state in (COLD, ERASED))
                    sums = (cells, size, squares, cold, texts, erased)
                    windows.append((at, *(window.weight * value for value in sums)))
        self._windows = sorted(windows)
        self._times = [at for at, *_ in self._windows]

    def bytes_of(self, cells: Interval, noon: float) -> Interval:
        """Estimate the total body bytes of ``cells`` cells on the day whose noon is ``noon``."""
        if not self._windows or not cells.high:
            return Interval.of(0.0)
        near = self._nearest(noon)
        count, total, squares = (sum(part) for part in list(zip(*near, strict=True))[1:4])
        mean, mid = total / count, cells.mid * total / count
        if len(near) < 4:
            return Interval(0.0, mid, 2 * cells.high * mean)
        errors = sum((size - mean * cells_of) ** 2 for _, cells_of, size, *_ in near)
        half = cells.mid * math.sqrt(errors * len(near) / (len(near) - 1)) / count
        # The cells of the day are not those of the windows, so the variance of their own mean is added.
        half = math.hypot(half, math.sqrt(cells.mid * max(0.0, squares / count - mean**2)))
        half *= student_t((1 + LEVEL) / 2, len(near) - 1)
        below = math.hypot((cells.mid - cells.low) * mean, half)
        above = math.hypot((cells.high - cells.mid) * mean, half)
        return Interval(max(0.0, mid - below), mid, mid + above)

    def states_of(self, cells: Interval, noon: float) -> tuple[int, int, float]:
        """Estimate how many of these cells are cold, the bytes of their JSON text, and the share of erased cells."""
        near = self._nearest(noon)
        count = max(1.0, sum(window[1] for window in near))
        cold, texts, erased = (sum(window[place] for window in near) / count for place in (4, 5, 6))
        return round(cells.mid * cold), round(cells.mid * texts), erased

    def _nearest(self, noon: float) -> list[tuple[float, ...]]:
        low, high = (bisect_left(self._times, noon + side * _DAY_S / 2) for side in (-1, 1))
        while high - low < min(_NEAREST, len(self._times)):
            if low and (high == len(self._times) or noon - self._times[low - 1] <= self._times[high] - noon):
                low -= 1
            else:
                high += 1
        return self._windows[low:high]


def _by_created_at(cluster: str, samples: Sequence[PartSample], today: date, method: Method) -> list[DayIntake]:
    """Estimate the daily intake from the created_at of the sampled cells."""
    days = sorted({(column, day) for part in samples for _, column, day in part.sample.keys_of("day")})
    first = min((day for _, day in days), default="")
    return [
        DayIntake(
            day=date.fromisoformat(day),
            cluster=cluster,
            column_name=column,
            cells=added(part.sample.count(("day", column, day)) for part in samples),
            body_bytes=added(part.sample.total(("day bytes", column, day)) for part in samples),
            method=method,
            complete=first < day < today.isoformat(),
            cold_cells=round(sum(part.sample.total(("day cold", column, day)).mid for part in samples)),
            cold_text_bytes=round(sum(part.sample.total(("day texts", column, day)).mid for part in samples)),
            erased_share=sum(part.sample.total(("day erased", column, day)).mid for part in samples)
            / sum(part.sample.total(("day", column, day)).mid for part in samples),
        )
        for column, day in days
    ]
