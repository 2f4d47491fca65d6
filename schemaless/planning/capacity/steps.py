"""Detect steps and bursts in the daily growth, and calculate the constant rate. Pure functions.

A launch, a new client, a purge or an import can change the daily growth permanently from one day to the next. The
models of ``forecast`` mistake such a step for a wandering level or a trend, and are wrong for weeks. Steps are
therefore detected separately, by a rule that can be checked by hand: least squares on the logarithms of the growth in
the four weeks before and after a day, with a level, a slope, weekdays and a step, for every day with at least two weeks
before it and one week after. A step counts if it is at least six standard errors (corrected for autocorrelation) and
changes the level by 20 % or more. Noise, trends and single outliers do not count as steps; a level that wanders by 5 %
a day may.

A burst is a finished import: days that add several times the usual growth, after which the growth is as before. It
says nothing about the days to come, and a trend fitted through it is absurd, so forecasts, steps and rates leave its
days out, as if they had not been measured.

The rate is the simplest forecast: every day adds the average of the last four weeks, without a trend or a model.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any, Final

from schemaless.base.numbers import LEVEL, Interval, student_t
from schemaless.planning.capacity.series import RECENT_DAYS

_DAYS_BEFORE: Final = 14
_DAYS_AFTER: Final = 7
_DAYS_AROUND: Final = 28
_LEAST_CHANGE_SHARE: Final = 0.20
_STANDARD_ERRORS: Final = 6.0
_MOST_STEPS: Final = 3
_LEAST_VARIANCE: Final = 1e-6
_MOST_AUTOCORRELATION: Final = 0.9
"""Upper limit of the estimated autocorrelation; above it the corrected standard error would be a guess."""

_OUTLIER: Final = 4.0
"""Number of standard deviations to which residuals are clipped, so that a one-day import does not count as a step."""


_BURST_AROUND: Final = 45
"""Days before and after each day whose lower quartile is the level that a burst is compared with."""

_BURST_TIMES: Final = 4.0
"""Smallest growth on a day of a burst, as a multiple of that level."""

_BURST_PAUSE: Final = 3
"""Longest pause within a burst, in days; imports may rest at weekends."""

_BURST_DAYS_WORTH: Final = 14
"""Smallest excess of a burst, as a multiple of the usual daily growth; less is part of the noise."""

_LIKE_BEFORE: Final = 1.5
"""Largest ratio between the usual growth and the growth right before and after a burst."""

_MOST_BURSTS: Final = 2
"""Maximum number of bursts; more are a recurring pattern, which the forecast has to include."""


@dataclass(frozen=True, slots=True)
class Burst:
    """From ``first_day`` to ``last_day``, the daily growth was ``times`` its usual level."""

    first_day: datetime.date
    last_day: datetime.date
    times: float

    @property
    def dates(self) -> list[datetime.date]:
        """The days."""
        return [self.first_day + datetime.timedelta(day) for day in range((self.last_day - self.first_day).days + 1)]


def bursts(history: Sequence[tuple[datetime.date, float]]) -> tuple[Burst, ...]:
    """Return the finished imports in a history, oldest first; empty if there are none, or if they recur.

    Args:
        history: Whole days in order, with the growth of each.
    """
    found = _imports(history)
    return found if len(found) <= _MOST_BURSTS else ()


def recurring(history: Sequence[tuple[datetime.date, float]]) -> int:
    """Return the number of finished imports if they are too many to leave out, else 0."""
    found = _imports(history)
    return len(found) if len(found) > _MOST_BURSTS else 0


def _imports(history: Sequence[tuple[datetime.date, float]]) -> tuple[Burst, ...]:
    import numpy

    values = numpy.array([value for _, value in history], dtype=float)
    if len(values) < _DAYS_BEFORE + _DAYS_AFTER:
        return ()
    around = numpy.pad(values, _BURST_AROUND, constant_values=numpy.nan)
    windows = numpy.lib.stride_tricks.sliding_window_view(around, 2 * _BURST_AROUND + 1)
    # NaN sorts last; nanpercentile would take ten times as long.
    ranks = (numpy.isfinite(windows).sum(axis=1) - 1) // 4
    level = numpy.sort(windows, axis=1)[numpy.arange(len(values)), ranks]
    high = numpy.flatnonzero((level > 0) & (values >= _BURST_TIMES * level))
    if not len(high):
        return ()
    found = []
    for run in numpy.split(high, numpy.flatnonzero(numpy.diff(high) > _BURST_PAUSE + 1) + 1):
        times = _burst_times(values, int(run[0]), int(run[-1]) + 1)
        if times is not None:
            found.append(Burst(history[run[0]][0], history[run[-1]][0], times))
    return tuple(found)


def _burst_times(values: Any, start: int, stop: int) -> float | None:
    """Return the growth of a run of days as a multiple of the usual growth; None if the run is no finished import."""
    import numpy

    before, after = values[max(0, start - _DAYS_AROUND) : start], values[stop : stop + _DAYS_AROUND]
    if len(after) < (_DAYS_AFTER if len(before) >= _DAYS_AFTER else _DAYS_BEFORE):
        return None
    usual = float(numpy.median(numpy.concatenate([before, after])))
    # A launch rises as fast, but falls slowly or not at all.
    sides = [side for side in (before, before[-_DAYS_AFTER:], after, after[:_DAYS_AFTER]) if len(side) >= _DAYS_AFTER]
    returned = all(usual / _LIKE_BEFORE <= float(numpy.median(side)) <= _LIKE_BEFORE * usual for side in sides)
    run = values[start:stop]
    if not usual or not returned or float(run.sum()) < (_BURST_DAYS_WORTH + len(run)) * usual:
        return None
    return float(run.mean()) / usual


def usual_days(
    history: Sequence[tuple[datetime.date, float]], left_out: Iterable[Burst]
) -> list[tuple[datetime.date, float]]:
    """Return a history without the days of bursts."""
    dates = {day for burst in left_out for day in burst.dates}
    return [(day, value) for day, value in history if day not in dates]


@dataclass(frozen=True, slots=True)
class Step:
    """From ``day`` on, the daily growth is multiplied by ``times``."""

    day: datetime.date
    times: float


@dataclass(frozen=True, slots=True)
class Rate:
    """Constant daily rate over recent weeks.

    Attributes:
        days: Number of days averaged over; a multiple of 7.
        per_day: Daily average, in the unit of the history, with a 95 % interval derived from the differences between
            weeks.
    """

    days: int
    per_day: Interval


def rate(history: Sequence[tuple[datetime.date, float]], since: Sequence[Step] = ()) -> Rate | None:
    """Return the rate over the whole weeks since the last step, at most four; None if there are fewer than two."""
    days = [(day, value) for day, value in history if not since or day >= since[-1].day]
    weeks = min(RECENT_DAYS, len(days)) // 7
    if weeks < 2:
        return None
    values = [value for _, value in days[len(days) - 7 * weeks :]]
    means = [fmean(values[first : first + 7]) for first in range(0, len(values), 7)]
    mid = fmean(means)
    half = student_t((1 + LEVEL) / 2, weeks - 1) * stdev(means) / math.sqrt(weeks)
    return Rate(7 * weeks, Interval(max(0.0, mid - half), mid, mid + half))


def steps(history: Sequence[tuple[datetime.date, float]]) -> tuple[Step, ...]:
    """Return the clearest steps of a history, at most three, oldest first.

    Args:
        history: Whole days in order, with the growth of each. Days without growth are left out, as they have no
            logarithm; if they make up more than a tenth, no steps are detected.
    """
    import numpy

    days = [(day, value) for day, value in history if value > 0]
    if len(days) < _DAYS_BEFORE + _DAYS_AFTER or len(days) < 0.9 * len(history):
        return ()
    numbers = numpy.array([(day - days[0][0]).days for day, _ in days])
    y = numpy.log([value for _, value in days])
    steps: list[Step] = []
    for _ in range(_MOST_STEPS):
        fits = [_fit_step(numbers, y, place) for place in range(_DAYS_BEFORE, len(days) - _DAYS_AFTER + 1)]
        clarity, size, place = max((abs(size) / error, size, place) for place, (size, error) in enumerate(fits))
        if clarity < _STANDARD_ERRORS or abs(math.expm1(size)) < _LEAST_CHANGE_SHARE:
            break
        steps.append(Step(days[place + _DAYS_BEFORE][0], math.exp(size)))
        y[place + _DAYS_BEFORE :] -= size
    return tuple(sorted(steps, key=lambda step: step.day))


def _fit_step(numbers: Any, logarithms: Any, place: int) -> tuple[float, float]:
    """Fit a step that begins on the day at ``place`` to the weeks around it, and return its size and standard error."""
    import numpy

    around = slice(max(0, place - _DAYS_AROUND), place + _DAYS_AROUND)
    x, y = numbers[around], logarithms[around]
    step = (numpy.arange(len(logarithms))[around] >= place).astype(float)
    known = numpy.column_stack([numpy.ones(len(x)), (x - x[0]) / _DAYS_AROUND, *((x % 7 == day) for day in range(6))])
    basis = numpy.linalg.qr(known)[0]
    rest, column = (series - basis @ (basis.T @ series) for series in (y, step))
    size = float(column @ rest / (column @ column))
    residuals = rest - size * column
    spread = _OUTLIER * 1.4826 * float(numpy.median(numpy.abs(residuals)))
    if spread:
        # Fit again with clipped outliers.
        size = float(column @ (size * column + numpy.clip(residuals, -spread, spread)) / (column @ column))
        residuals = numpy.clip(rest - size * column, -spread, spread)
    squares = float(residuals @ residuals)
    correlation = float(residuals[1:] @ residuals[:-1]) / squares if squares else 0.0
    correlation = min(_MOST_AUTOCORRELATION, max(0.0, correlation))
    variance = max(squares / max(1, len(x) - known.shape[1] - 1), _LEAST_VARIANCE)
    return size, math.sqrt(variance * (1 + correlation) / (1 - correlation) / float(column @ column))
