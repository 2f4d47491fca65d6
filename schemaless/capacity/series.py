"""Daily series out of measurements: what a forecast takes. Pure.

The newest measurement knows the days best; older ones add days before its first one. Whole days only, and none that had
not come when it was measured: clocks and imports put cells there, and they say nothing of growth.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from schemaless.capacity.measurement import DayIntake, Measurement

__all__ = ["RECENT_DAYS", "Day", "Series", "daily", "errors", "weighted"]

_MOST_DAYS: Final = 730
"""A series has two years at most: what was before says little about what comes, and costs time."""

RECENT_DAYS: Final = 28
""""A day now" is the average of so many days."""


@dataclass(frozen=True, slots=True)
class Day:
    """What a column of a cluster got on a day: cells, and bytes of their bodies as they are stored now.

    Attributes:
        error_bytes: half the width of the interval of ``body_bytes``.
    """

    day: datetime.date
    cells: float
    body_bytes: float
    error_bytes: float = 0.0


@dataclass(frozen=True, slots=True)
class Series:
    """What a column of a cluster got, day by day without a gap, to the last whole day before the measurement."""

    cluster: str
    column_name: str
    days: tuple[Day, ...]

    @property
    def cells_per_day(self) -> float:
        """Cells on an average day of the last four weeks."""
        recent = self.days[-RECENT_DAYS:]
        return sum(day.cells for day in recent) / len(recent) if recent else 0.0

    @property
    def bytes_per_day(self) -> float:
        """Body bytes likewise."""
        recent = self.days[-RECENT_DAYS:]
        return sum(day.body_bytes for day in recent) / len(recent) if recent else 0.0


def daily(measurements: Sequence[Measurement]) -> list[Series]:
    """Return a series for each cluster and column that the newest measurement has, in their order.

    Args:
        measurements: oldest first; one at least.
    """
    newest = measurements[-1]
    yesterday = newest.taken_at.date() - datetime.timedelta(1)
    series: list[Series] = []
    for cluster, column in sorted({(intake.cluster, intake.column_name) for intake in newest.growth}):
        days: dict[datetime.date, Day] = {}
        for measurement in reversed(measurements):
            first = min(days, default=None)
            for intake in _of(measurement.growth, cluster, column):
                if intake.complete and (first is None or intake.day < first):
                    days[intake.day] = Day(
                        intake.day,
                        intake.cells.mid,
                        intake.body_bytes.mid,
                        (intake.body_bytes.high - intake.body_bytes.low) / 2,
                    )
        series.append(Series(cluster, column, _dense(days, yesterday)))
    return series


def weighted(series: Iterable[Series], weights: Mapping[tuple[str, str], float]) -> list[tuple[datetime.date, float]]:
    """Return the sum of series day by day, each body byte counted as its cluster's and column's weight says."""
    totals: dict[datetime.date, float] = {}
    for one in series:
        weight = weights.get((one.cluster, one.column_name), 0.0)
        for day in one.days:
            totals[day.day] = totals.get(day.day, 0.0) + weight * day.body_bytes
    return sorted(totals.items())


def errors(series: Iterable[Series], weights: Mapping[tuple[str, str], float]) -> list[float]:
    """Return half the width of the interval of each day of ``weighted``, in its order."""
    squares: dict[datetime.date, float] = {}
    for one in series:
        weight = weights.get((one.cluster, one.column_name), 0.0)
        for day in one.days:
            squares[day.day] = squares.get(day.day, 0.0) + (weight * day.error_bytes) ** 2
    return [value**0.5 for _, value in sorted(squares.items())]


def _of(growth: Iterable[DayIntake], cluster: str, column: str) -> list[DayIntake]:
    return [intake for intake in growth if intake.cluster == cluster and intake.column_name == column]


def _dense(days: Mapping[datetime.date, Day], last: datetime.date) -> tuple[Day, ...]:
    """Return the days from the first one that brought something to ``last``; what is not there brought nothing."""
    first = min((day for day, brought in days.items() if brought.cells), default=None)
    if first is None:
        return ()
    first = max(first, last - datetime.timedelta(_MOST_DAYS - 1))
    count = (last - first).days + 1
    return tuple(
        days.get(day, Day(day, 0.0, 0.0)) for day in (first + datetime.timedelta(number) for number in range(count))
    )
