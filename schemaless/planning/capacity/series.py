"""Build daily series for the forecast from measurements. Pure functions.

The newest measurement takes precedence; older ones only add days before its first day. Only whole days count, and days
after the measurement are dropped: cells with such dates come from wrong clocks or imports, and say nothing about
growth. Cold cells count with the bodies that they would have in the database.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from schemaless.codec.envelope import COLD, ERASED, REFERENCE_BYTES
from schemaless.planning.capacity.measurement import DayIntake, Measurement

_MOST_DAYS: Final = 730
"""Maximum length of a series, in days; older days say little about the future and cost time."""

_BOUNDARY_DAYS: Final = 7
"""Number of days, after the last day whose cells were erased, that may look partly erased."""

_ALL_ERASED: Final = 0.999
_MOSTLY_ERASED: Final = 0.5

RECENT_DAYS: Final = 28
"""Number of recent days whose average counts as the current daily growth."""


@dataclass(frozen=True, slots=True)
class Day:
    """Growth of a column in a cluster on one day.

    Attributes:
        day: The day, UTC.
        cells: Number of cells.
        body_bytes: Length of their bodies as stored now; of cold cells, as ``body_per_text`` predicts it.
        error_bytes: Half the width of the interval of ``body_bytes``.
        erased: True if the cells have been erased since then; the figures are then from an earlier measurement.
    """

    day: datetime.date
    cells: float
    body_bytes: float
    error_bytes: float = 0.0
    erased: bool = False


@dataclass(frozen=True, slots=True)
class Series:
    """Daily growth of a column in a cluster, without gaps, up to the last whole day before the measurement.

    Attributes:
        cluster: Name of the cluster.
        column_name: Name of the column.
        days: Growth of each day.
        left_out: Days of finished imports, which averages leave out.
    """

    cluster: str
    column_name: str
    days: tuple[Day, ...]
    left_out: frozenset[datetime.date] = frozenset()

    @property
    def _recent(self) -> list[Day]:
        return [day for day in self.days if day.day not in self.left_out][-RECENT_DAYS:]

    @property
    def cells_per_day(self) -> float:
        """Average number of cells a day over the last four weeks."""
        recent = self._recent
        return sum(day.cells for day in recent) / len(recent) if recent else 0.0

    @property
    def bytes_per_day(self) -> float:
        """Average body bytes a day over the last four weeks."""
        recent = self._recent
        return sum(day.body_bytes for day in recent) / len(recent) if recent else 0.0


def daily(measurements: Sequence[Measurement]) -> list[Series]:
    """Return the series of each cluster and column in the newest measurement, ordered by cluster and column.

    Args:
        measurements: Oldest first; at least one.
    """
    newest = measurements[-1]
    yesterday = newest.taken_at.date() - datetime.timedelta(1)
    per_text = body_per_text(newest)
    series: list[Series] = []
    for cluster, column in sorted({(intake.cluster, intake.column_name) for intake in newest.growth}):
        days: dict[datetime.date, Day] = {}
        erased: set[datetime.date] = set()
        for measurement in reversed(measurements):
            first = min(days, default=None)
            own = (each for each in measurement.growth if (each.cluster, each.column_name) == (cluster, column))
            intakes = [_in_database(each, per_text[column]) for each in own if each.complete]
            gone = _erased_days(intakes)
            erased |= gone
            for intake in intakes:
                if intake.day in gone or (first is not None and intake.day >= first):
                    continue
                days[intake.day] = Day(
                    intake.day,
                    intake.cells.mid,
                    intake.body_bytes.mid,
                    (intake.body_bytes.high - intake.body_bytes.low) / 2,
                    intake.day in erased,
                )
        series.append(Series(cluster, column, _dense(days, yesterday)))
    return series


def body_per_text(measurement: Measurement) -> dict[str, float]:
    """Return the length of stored bodies relative to their JSON text by column; 1 if all cells of a column are cold."""
    bodies, texts = dict.fromkeys(measurement.column_names, 0.0), dict.fromkeys(measurement.column_names, 0.0)
    for group in measurement.groups:
        if group.codec not in (COLD, ERASED):
            bodies[group.column_name] += group.body_bytes.mid
            texts[group.column_name] += group.json_bytes.mid
    return {column: bodies[column] / texts[column] if texts[column] else 1.0 for column in bodies}


def _in_database(intake: DayIntake, per_text: float) -> DayIntake:
    """Return the growth of a day with the bodies that its cold cells would have."""
    size = intake.body_bytes
    if not intake.cold_cells or not size.mid:
        return intake
    whole = max(0.0, size.mid - REFERENCE_BYTES * intake.cold_cells) + per_text * intake.cold_text_bytes
    return replace(intake, body_bytes=size.times(whole / size.mid))


def weighted(series: Iterable[Series], weights: Mapping[tuple[str, str], float]) -> list[tuple[datetime.date, float]]:
    """Return the daily sum of the series, with body bytes multiplied by the weight of their cluster and column."""
    totals: dict[datetime.date, float] = {}
    for one in series:
        weight = weights.get((one.cluster, one.column_name), 0.0)
        for day in one.days:
            totals[day.day] = totals.get(day.day, 0.0) + weight * day.body_bytes
    return sorted(totals.items())


def errors(series: Iterable[Series], weights: Mapping[tuple[str, str], float]) -> list[float]:
    """Return half the interval width for each day of ``weighted``, in the same order."""
    squares: dict[datetime.date, float] = {}
    for one in series:
        weight = weights.get((one.cluster, one.column_name), 0.0)
        for day in one.days:
            squares[day.day] = squares.get(day.day, 0.0) + (weight * day.error_bytes) ** 2
    return [value**0.5 for _, value in sorted(squares.items())]


def _erased_days(intakes: Sequence[DayIntake]) -> set[datetime.date]:
    """Return the days whose cells were erased before the measurement.

    The states of a day's cells come from samples near it, so days near erased ones look partly erased.
    """
    shares = {each.day: each.erased_share for each in intakes if each.cells.mid}
    gone = {day for day, share in shares.items() if share > _ALL_ERASED}
    if not gone:
        return gone
    boundary = max(gone) + datetime.timedelta(_BOUNDARY_DAYS)
    return gone | {day for day, share in shares.items() if day <= boundary and share > _MOSTLY_ERASED}


def _dense(days: Mapping[datetime.date, Day], last: datetime.date) -> tuple[Day, ...]:
    first = min((day for day, growth in days.items() if growth.cells), default=None)
    if first is None:
        return ()
    first = max(first, last - datetime.timedelta(_MOST_DAYS - 1))
    count = (last - first).days + 1
    return tuple(
        days.get(day, Day(day, 0.0, 0.0)) for day in (first + datetime.timedelta(number) for number in range(count))
    )
