"""Detect steps in the daily growth, and calculate the constant rate since the last one. Pure functions.

A launch, a new client, a purge or an import can change the daily growth permanently from one day to the next. The
models of ``forecast`` mistake such a step for a wandering level or a trend, and are wrong for weeks. Steps are
therefore detected separately, by a rule that can be checked by hand: least squares on the logarithms of the growth in
the four weeks before and after a day, with a level, a slope, weekdays and a step, for every day with at least two weeks
before it and one week after. A step counts if it is at least six standard errors (corrected for autocorrelation) and
changes the level by 20 % or more. Noise, trends and single outliers do not count as steps; a level that wanders by 5 %
a day may.

The rate is the simplest forecast: every day adds the average of the last four weeks, without a trend or a model.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any, Final

from schemaless.capacity.series import RECENT_DAYS
from schemaless.numbers import LEVEL, Interval, student_t

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
