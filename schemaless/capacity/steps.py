"""Steps in what days bring, and the rate since the last one: what a forecast of trends does not see. Pure.

A launch, a new client, a purge or an import changes from one day to the next what a day brings, and stays. The models
of ``forecast`` take such a step for a level that wanders, or for a trend, and are wrong about it for weeks. So it is
looked for apart, by a rule that can be checked by hand: least squares on the logarithm of the four weeks before a day
and the four from it on, of a level, a slope, the weekdays and a step; for every day that has two weeks before it and
one from it on. The step is there where it is six times its standard error, widened where errors of neighbouring days
are alike, and makes a difference of 20 % or more. Noise, trends and single days that stand out make none; a level
that wanders by 5 % a day may.

The rate is the plainest forecast of all, each day as the last four weeks were: it has no trend, and needs no model.
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

__all__ = ["Rate", "Step", "rate", "steps"]

_DAYS_BEFORE: Final = 14
_DAYS_BEHIND: Final = 7
_DAYS_AROUND: Final = 28
_LEAST_CHANGE_SHARE: Final = 0.20
_STANDARD_ERRORS: Final = 6.0
_MOST_STEPS: Final = 3
_LEAST_VARIANCE: Final = 1e-6
_MOST_ALIKE: Final = 0.9
"""Where neighbouring errors are more alike than this, a standard error is no more than a guess."""

_OUTLIER: Final = 4.0
"""A day counts for so many standard deviations at most: an import of one day is no step."""


@dataclass(frozen=True, slots=True)
class Step:
    """From a day on, each brings ``times`` as much as before."""

    day: datetime.date
    times: float


@dataclass(frozen=True, slots=True)
class Rate:
    """What a day brings if the last weeks go on as they were.

    Attributes:
        days: how many days it is of, the last ones, whole weeks.
        per_day: on average, in the unit of the history, with its 95 % interval, which is of the differences between the
            weeks.
    """

    days: int
    per_day: Interval


def rate(history: Sequence[tuple[datetime.date, float]], since: Sequence[Step] = ()) -> Rate | None:
    """Return the rate of the last four weeks, or of those since the last step; None of less than two weeks."""
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
    """Return the steps of a history, oldest first, three at most: the clearest ones.

    Args:
        history: whole days in their order, and what came in on each. Days that brought nothing are left out, as a
            logarithm has no zero; where these are more than a tenth, nothing is looked for.
    """
    import numpy

    days = [(day, value) for day, value in history if value > 0]
    if len(days) < _DAYS_BEFORE + _DAYS_BEHIND or len(days) < 0.9 * len(history):
        return ()
    numbers = numpy.array([(day - days[0][0]).days for day, _ in days])
    y = numpy.log([value for _, value in days])
    steps: list[Step] = []
    for _ in range(_MOST_STEPS):
        tried = [_tried(numbers, y, place) for place in range(_DAYS_BEFORE, len(days) - _DAYS_BEHIND + 1)]
        clear, size, place = max((abs(size) / error, size, place) for place, (size, error) in enumerate(tried))
        if clear < _STANDARD_ERRORS or abs(math.expm1(size)) < _LEAST_CHANGE_SHARE:
            break
        steps.append(Step(days[place + _DAYS_BEFORE][0], math.exp(size)))
        y[place + _DAYS_BEFORE :] -= size
    return tuple(sorted(steps, key=lambda step: step.day))


def _tried(numbers: Any, logarithms: Any, place: int) -> tuple[float, float]:
    """Return a step's size before a day, and its standard error, from the weeks around it."""
    import numpy

    around = slice(max(0, place - _DAYS_AROUND), place + _DAYS_AROUND)
    x, y = numbers[around], logarithms[around]
    step = (numpy.arange(len(logarithms))[around] >= place).astype(float)
    known = numpy.column_stack([numpy.ones(len(x)), (x - x[0]) / _DAYS_AROUND, *((x % 7 == day) for day in range(6))])
    basis = numpy.linalg.qr(known)[0]
    rest, column = (series - basis @ (basis.T @ series) for series in (y, step))
    size = float(column @ rest / (column @ column))
    left = rest - size * column
    spread = _OUTLIER * 1.4826 * float(numpy.median(numpy.abs(left)))
    if spread:
        # Once more, with what lies far off brought nearer.
        size = float(column @ (size * column + numpy.clip(left, -spread, spread)) / (column @ column))
        left = numpy.clip(rest - size * column, -spread, spread)
    squares = float(left @ left)
    alike = min(_MOST_ALIKE, max(0.0, float(left[1:] @ left[:-1]) / squares)) if squares else 0.0
    variance = max(squares / max(1, len(x) - known.shape[1] - 1), _LEAST_VARIANCE)
    return size, math.sqrt(variance * (1 + alike) / (1 - alike) / float(column @ column))
