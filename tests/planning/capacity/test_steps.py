"""Detection of steps in the daily growth, and the constant rate since the last one."""

from __future__ import annotations

import datetime
import math
import random

import pytest

from schemaless.planning.capacity.steps import Step, bursts, rate, recurring, steps, usual_days
from tests.planning.capacity.reports import WEEK

pytestmark = pytest.mark.once

FIRST = datetime.date(2026, 1, 1)


def history(days, seed, *, noise=0.08, a_year=2.0, wanders=0.0, step=(), outlier=None):
    """Days with a weekly pattern, noise, growth, steps, and an optional outlier."""
    drawn = random.Random(seed)
    level, found = 0.0, []
    for number in range(days):
        day = FIRST + datetime.timedelta(number)
        level += drawn.gauss(0, wanders)
        value = 1e6 * a_year ** (number / 365) * WEEK[day.weekday()] * math.exp(level + drawn.gauss(0, noise))
        value *= math.prod(times for at, times in step if number >= at)
        found.append((day, value * (20 if number == outlier else 1)))
    return found


@pytest.mark.parametrize(("days", "at", "times"), [(60, 48, 2.0), (120, 60, 0.5), (180, 172, 1.8), (400, 300, 3.0)])
def test_steps_finds_day_and_size(days, at, times):
    """The day within one day, and the size within a quarter."""
    (found,) = steps(history(days, 3, step=((at, times),)))

    assert abs((found.day - FIRST).days - at) <= 1
    assert found.times == pytest.approx(times, rel=0.25)


def test_steps_finds_two_in_order():
    """A launch, and a later shutdown of a client."""
    found = steps(history(200, 4, step=((80, 2.5), (150, 0.4))))

    assert [round((step.day - FIRST).days, -1) for step in found] == [80, 150]
    assert found[0].times > 2
    assert found[1].times < 0.5


@pytest.mark.parametrize(
    "kind",
    [{}, {"noise": 0.3}, {"a_year": 5.0}, {"a_year": 0.2}, {"wanders": 0.01}, {"outlier": 60}],
    ids=str,
)
def test_steps_has_no_false_positives(kind):
    """Noise, growth, a slightly wandering level and an import on one day are not steps."""
    assert [steps(history(100, seed, **kind)) for seed in range(8)] == [()] * 8


def test_steps_needs_enough_days():
    """No steps are detected in less than three weeks, or if most days have no growth."""
    assert steps(history(20, 1, step=((10, 5.0),))) == ()
    assert steps([(day, value if day.day == 1 else 0.0) for day, value in history(90, 1)]) == ()
    assert steps([]) == ()


@pytest.mark.parametrize(
    ("days", "at", "length", "times"),
    [(78, 40, 8, 20.0), (78, 40, 1, 500.0), (140, 30, 20, 6.0), (60, 0, 3, 20.0), (400, 380, 10, 12.0)],
)
def test_bursts_finds_a_finished_import(days, at, length, times):
    """Its days and size; the other days are as usual, and have no step."""
    made = [(day, round(value)) for day, value in history(days, 5, step=((at, times), (at + length, 1 / times)))]

    (found,) = bursts(made)

    assert [(day - FIRST).days for day in (found.first_day, found.last_day)] == [at, at + length - 1]
    assert found.times == pytest.approx(times, rel=0.5)
    assert [day for day, _ in usual_days(made, [found])] == [day for day, _ in made if day not in found.dates]
    assert steps(usual_days(made, [found])) == ()


@pytest.mark.parametrize(
    "kind",
    [
        {},
        {"noise": 0.5},
        {"a_year": 50.0},
        {"wanders": 0.03},
        {"step": ((60, 8.0),)},
        {"step": ((96, 20.0),)},
        {"step": ((60, 6.0), *((number, 0.93) for number in range(61, 86)))},
        {"step": tuple((at, times) for first in (20, 50, 80) for at, times in ((first, 20.0), (first + 4, 1 / 20)))},
    ],
    ids=["steady", "noise", "growth", "wandering", "a step", "unfinished", "a launch", "recurring"],
)
def test_bursts_has_no_false_positives(kind):
    """Only a finished import that does not recur is a burst; everything else is part of the forecast."""
    assert [bursts(history(100, seed, **kind)) for seed in range(8)] == [()] * 8
    several = 3 if len(kind.get("step", ())) == 6 else 0
    assert {recurring(history(100, seed, **kind)) for seed in range(8)} == {several}


def test_rate_averages_whole_weeks():
    """Four weeks, or the weeks since the last step, with an interval from their differences; None below two weeks."""
    days = [(FIRST + datetime.timedelta(number), 10.0 + (number // 7) % 2) for number in range(30)]
    found = rate(days)

    assert found is not None
    assert found.days == 28
    assert found.per_day.low < 10.5 < found.per_day.high
    since = rate(days, [Step(FIRST + datetime.timedelta(15), 2.0)])
    assert since is not None
    assert since.days == 14
    assert rate(days, [Step(FIRST + datetime.timedelta(20), 2.0)]) is None
    assert rate(days[:13]) is None
