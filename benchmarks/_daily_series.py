"""Daily series to compare forecasts with: twelve that are synthetic and seeded, and twelve that are real and public.

The synthetic ones contain events typical of a datastore: launches, purges, outages, holidays, bulk loads. The real
ones, in ``daily_series.csv``, are daily counts of things other than bytes; THIRD_PARTY.md names their sources.
"""

from __future__ import annotations

import csv
import datetime
import math
import random
from collections.abc import Callable
from pathlib import Path

Days = list[tuple[datetime.date, float]]

_FIRST = datetime.date(2024, 1, 1)
_COUNT = 548
_WEEK = (1.15, 1.1, 1.05, 1.05, 1.15, 0.8, 0.7)


def made() -> dict[str, Days]:
    """Return the synthetic series, by name."""
    return {name: _series(name, level) for name, level in _MADE.items()}


def public() -> dict[str, Days]:
    """Return the real series, by name."""
    found = {}
    with (Path(__file__).parent / "daily_series.csv").open(encoding="utf-8", newline="") as file:
        for name, first, values in list(csv.reader(file))[1:]:
            day = datetime.date.fromisoformat(first)
            found[name] = [
                (day + datetime.timedelta(number), float(value))
                for number, value in enumerate(values.split())
                if value != "-"
            ]
    return found


Level = Callable[[int, datetime.date, random.Random, list[float]], float]
"""Function from a day's number, its date, a random generator and the previous levels to the day's level."""


def _series(name: str, level: Level) -> Days:
    draw = random.Random(name)
    found: Days = []
    levels: list[float] = []
    for number in range(_COUNT):
        day = _FIRST + datetime.timedelta(number)
        levels.append(level(number, day, draw, levels))
        value = 1e9 * levels[-1] * _WEEK[day.weekday()] * math.exp(draw.gauss(0, 0.08))
        found.append((day, max(0.0, value)))
    return found


def _steady(number: int, day: datetime.date, draw: random.Random, levels: list[float]) -> float:
    return 1 + 0.5 * number / 365


def _compound(number: int, day: datetime.date, draw: random.Random, levels: list[float]) -> float:
    return float(2.2 ** (number / 365))


def _wandering(number: int, day: datetime.date, draw: random.Random, levels: list[float]) -> float:
    return (levels[-1] if levels else 1.0) * math.exp(draw.gauss(0.001, 0.02))


def _shifts(number: int, day: datetime.date, draw: random.Random, levels: list[float]) -> float:
    """Up, down, up: new clients and lost ones."""
    return next(size for until, size in ((150, 1.0), (290, 1.6), (400, 1.1), (_COUNT, 1.9)) if number < until)


def _purge(number: int, day: datetime.date, draw: random.Random, levels: list[float]) -> float:
    """The daily amount drops by half and keeps growing."""
    return (1 + 0.4 * number / 365) * (1.0 if number < 330 else 0.5)


def _outages(number: int, day: datetime.date, draw: random.Random, levels: list[float]) -> float:
    """Some days have next to nothing; the day after catches up."""
    late = 1.0 - levels[-1] if levels and levels[-1] < 0.5 else 0.0
    return draw.uniform(0.0, 0.3) if draw.random() < 0.025 else 1 + 0.3 * number / 365 + late


def _launch(number: int, day: datetime.date, draw: random.Random, levels: list[float]) -> float:
    """Four times as much from one day to the next, most of which is gone a few weeks later."""
    after = number - 260
    return 1.0 if after < 0 else 1.5 + 2.5 * math.exp(-after / 18)


def _holidays(number: int, day: datetime.date, draw: random.Random, levels: list[float]) -> float:
    """45 % on single holidays and in the last days of the year; 80 % in August."""
    single = {(1, 1), (3, 29), (4, 1), (5, 1), (5, 9), (5, 20), (10, 3), (11, 1)}
    off = (day.month, day.day) in single or (day.month == 12 and day.day > 20)
    return (1 + 0.3 * number / 365) * (0.45 if off else 0.8 if day.month == 8 else 1.0)


def _bulk(number: int, day: datetime.date, draw: random.Random, levels: list[float]) -> float:
    """Occasional imports of three to nine days' worth of data."""
    return 1 + 0.3 * number / 365 + (draw.uniform(3, 9) if draw.random() < 0.02 else 0.0)


def _month_ends(number: int, day: datetime.date, draw: random.Random, levels: list[float]) -> float:
    """Twice as much on the last two days of each month."""
    last = (day + datetime.timedelta(2)).month != day.month
    return (1 + 0.3 * number / 365) * (2.0 if last else 1.0)


def _seasons(number: int, day: datetime.date, draw: random.Random, levels: list[float]) -> float:
    """A yearly cycle of 25 % up and down."""
    return (1 + 0.3 * number / 365) * (1 + 0.25 * math.sin(2 * math.pi * number / 365))


def _slowing(number: int, day: datetime.date, draw: random.Random, levels: list[float]) -> float:
    """Fast growth that ends."""
    return 1 + 3 / (1 + math.exp(-(number - 250) / 45))


_MADE: dict[str, Level] = {
    "steady growth": _steady,
    "compound growth": _compound,
    "a level that wanders": _wandering,
    "level shifts": _shifts,
    "a purge": _purge,
    "outages": _outages,
    "a launch": _launch,
    "holidays": _holidays,
    "bulk loads": _bulk,
    "month ends": _month_ends,
    "seasons": _seasons,
    "growth that ends": _slowing,
}
