"""Capacity planning: when disks reach fill thresholds, when to order more, and what growth costs. Pure functions.

The date for a threshold comes from the same forecast as the date for a full disk, with less free space. An order must
arrive by the early end of the 80 % interval, so that it is in time in nine of ten cases.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NamedTuple

from schemaless.base.numbers import Interval, check_number
from schemaless.errors import InvalidInput
from schemaless.planning.capacity.disk_forecast import DiskForecast
from schemaless.planning.capacity.forecast import Band, Forecast, whole_days
from schemaless.planning.capacity.whatif import DiskOutlook, Scenario, days_at_rate, days_until

THRESHOLDS: Final = (0.8, 0.9)
"""Default thresholds, as shares of a disk."""

FULL: Final = 1.0
TB: Final = 10**12
"""Bytes in a terabyte, the unit that disks are sold in."""

_COST_DAYS: Final = 365


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanningOptions:
    """Inputs of the planning part of a report.

    Attributes:
        thresholds: Shares of a disk, above 0 and below 1, in increasing order.
        lead_days: Days from ordering a disk until it can be used; None to plan no orders.
        price_per_tb: Price of a TB (1,000 GB) of disk, in any currency; None if unknown.
        fail_below_days: Days that all disks must last for a positive verdict; None for no verdict.
    """

    thresholds: tuple[float, ...] = THRESHOLDS
    lead_days: float | None = None
    price_per_tb: float | None = None
    fail_below_days: float | None = None

    def __post_init__(self) -> None:
        for share in self.thresholds:
            check_number("a threshold", share)
            if not 0 < share < FULL:
                raise InvalidInput(f"a threshold must be above 0 % and below 100 % of the disk, got {share:.6g}")
        if list(self.thresholds) != sorted(set(self.thresholds)):
            raise InvalidInput("thresholds must be in increasing order, each once, such as 80%,90%")
        for name in ("lead_days", "price_per_tb", "fail_below_days"):
            value = getattr(self, name)
            if value is not None:
                check_number(name, value)
                if value < 0:
                    raise InvalidInput(f"{name} must be 0 or more, got {value:g}")


@dataclass(frozen=True, slots=True)
class Level:
    """When a disk reaches a threshold.

    Attributes:
        disk: Name of the disk.
        share: Threshold as a share of the disk; 1 is full.
        days: Days until then, or None if unknown.
        at_rate: Days until then at the constant rate of recent weeks, or None if unknown.
        first_day: The date from which the days are counted.
        horizon_days: Number of forecast days; infinite ``days`` mean more days than this.
        why: Why the days are unknown.
        lead_days: Days from ordering a disk until it can be used, or None to plan no orders.
    """

    disk: str
    share: float
    days: Band | None
    at_rate: Interval | None
    first_day: datetime.date | None
    horizon_days: int | None
    why: str | None = None
    lead_days: float | None = None

    @property
    def on(self) -> dict[str, datetime.date | None] | None:
        """The dates on which the disk reaches the threshold, by field of the band; None beyond the horizon."""
        return self._dates(0.0)

    @property
    def order_by(self) -> dict[str, datetime.date | None] | None:
        """The latest dates to order, by field of the band."""
        return None if self.lead_days is None else self._dates(self.lead_days)

    @property
    def order_on(self) -> datetime.date | None:
        """The latest date to order so that the disk arrives in time in nine of ten cases."""
        dates = self.order_by
        return None if dates is None else dates["low_80"]

    def _dates(self, earlier_days: float) -> dict[str, datetime.date | None] | None:
        return None if self.first_day is None or self.days is None else self.days.dates(self.first_day, earlier_days)


class Month(NamedTuple):
    """Growth of a calendar month, or of the part of it that is in the period.

    Attributes:
        first_day: First day.
        days: Number of days.
        size_bytes: Growth of the forecast's median total in these days; the months add up to the period's median.
        price: Price of that disk space, or None if no price is known.
    """

    first_day: datetime.date
    days: int
    size_bytes: float
    price: float | None


@dataclass(frozen=True, slots=True)
class Cost:
    """Disk space and price of a period's growth, counting every copy.

    Attributes:
        name: Name of the scenario.
        days: Length of the period.
        size_bytes: Growth in the period.
        price: Price of that disk space, in the currency of ``price_per_tb``, or None if no price is known.
        months: The period month by month.
    """

    name: str
    days: int
    size_bytes: Band
    price: Band | None
    months: tuple[Month, ...]


@dataclass(frozen=True, slots=True)
class Verdict:
    """Result of checking that all disks last at least ``fail_below_days``.

    Attributes:
        asked_days: Days that the disks must last.
        failed: True if a disk does not last that long, or if that is unknown.
        reasons: For people, one per failing disk; sentences without their full stop.
    """

    asked_days: float
    failed: bool
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Planning:
    """Planning part of a report.

    Attributes:
        options: The inputs.
        now: When each disk reaches each threshold, and when it is full; the disk that fills up first comes first.
        after: The same after re-encoding, with the disks in the same order; empty without a codec to re-encode to.
        costs: Costs of the growth without and with re-encoding; empty if no price is known or there is no forecast.
        verdict: None if ``fail_below_days`` was not given.
    """

    options: PlanningOptions
    now: tuple[Level, ...] = ()
    after: tuple[Level, ...] = ()
    costs: tuple[Cost, ...] = ()
    verdict: Verdict | None = None

    def first(self, *, after: bool = False) -> list[Level]:
        """Return the levels of the disk that fills up first; an empty list if they are unknown."""
        levels = self.after if after else self.now
        return [level for level in levels if level.disk == levels[0].disk and level.days is not None]


def levels(scenario: Scenario, disks: Sequence[DiskForecast], options: PlanningOptions) -> tuple[Level, ...]:
    """Return when each disk of a scenario reaches each threshold, and when it is full.

    Args:
        scenario: The scenario.
        disks: The disks with their forecasts, in the order of the result.
        options: Thresholds and lead time.
    """
    outlooks = {outlook.disk: outlook for outlook in scenario.disks}
    return tuple(
        _level(outlooks[disk.disk.name], disk, share, options.lead_days)
        for disk in disks
        for share in (*options.thresholds, FULL)
    )


def _level(outlook: DiskOutlook, disk: DiskForecast, share: float, lead_days: float | None) -> Level:
    free, times, size = outlook.free_bytes, outlook.times, disk.disk.disk_bytes
    forecast = outlook.forecast or disk.forecast
    rate = None if outlook.forecast is not None else disk.rate
    if outlook.days is None or free is None or times is None or size is None or not isinstance(forecast, Forecast):
        return Level(outlook.disk, share, None, None, None, None, outlook.why, lead_days)
    reserve = (FULL - share) * size
    room = Interval(*(end - reserve for end in free))
    days = days_until(forecast, room, times)
    at_rate = None if rate is None else days_at_rate(rate.per_day, room, times)
    return Level(outlook.disk, share, days, at_rate, outlook.first_day, outlook.horizon_days, None, lead_days)


def cost(name: str, growth: Forecast, times: Interval, price_per_tb: float | None) -> Cost:
    """Return the cost of a year's growth, or of the horizon if that is shorter.

    Args:
        name: Name of the scenario.
        growth: Current growth of all disks together, counting every copy.
        times: Growth in the scenario as a multiple of ``growth``.
        price_per_tb: Price of a TB of disk.
    """
    days = min(_COST_DAYS, growth.horizon_days)
    ends = (times.low, times.low, times.mid, times.high, times.high)
    sizes = Band(*(size * end for size, end in zip(growth.cumulative[days - 1], ends, strict=True)))
    months = []
    for start, stop in _months(growth.first_day, days):
        before = growth.cumulative[start - 1].mid if start else 0.0
        size = (growth.cumulative[stop - 1].mid - before) * times.mid
        first_day = growth.first_day + datetime.timedelta(start)
        months.append(Month(first_day, stop - start, size, _price(size, price_per_tb)))
    price = None if price_per_tb is None else Band(*(size / TB * price_per_tb for size in sizes))
    return Cost(name, days, sizes, price, tuple(months))


def _price(size: float, price_per_tb: float | None) -> float | None:
    return None if price_per_tb is None else size / TB * price_per_tb


def _months(first_day: datetime.date, days: int) -> list[tuple[int, int]]:
    """Return each calendar month's first day and the day after its last, as day numbers from the period's start."""
    starts = [day for day in range(days) if day == 0 or (first_day + datetime.timedelta(day)).day == 1]
    return list(pairwise([*starts, days]))


def verdict(now: Scenario, options: PlanningOptions) -> Verdict | None:
    """Check that every disk lasts at least ``fail_below_days``; None if that was not given.

    The early end of the 80 % interval decides. If that is beyond a horizon shorter than ``fail_below_days``, the early
    end at the constant rate decides. A disk without an answer fails the check.
    """
    asked = options.fail_below_days
    if asked is None:
        return None
    reasons = [reason for reason in (_reason(outlook, asked) for outlook in now.worst_first) if reason is not None]
    if not now.disks:
        reasons.append("no disk has any cells, so it is unknown how long the disks last")
    return Verdict(asked, bool(reasons), tuple(reasons))


def _reason(outlook: DiskOutlook, asked: float) -> str | None:
    """Return why a disk fails the check, or None."""
    if outlook.days is None:
        return f"{outlook.disk}: how long it lasts is unknown: {outlook.why}"
    early, horizon = outlook.days.low_80, outlook.horizon_days or 0
    if early < asked:
        return f"{outlook.disk} may be full in {whole_days(early):,} days (the early end of the 80 % interval)"
    if math.isfinite(early) or horizon >= asked:
        return None
    if outlook.at_rate is None:
        return f"{outlook.disk}: the forecast covers only {horizon:,} days, and no constant rate is known"
    if outlook.at_rate.low < asked:
        low = whole_days(outlook.at_rate.low)
        at = "the early end of the interval at the constant rate of recent weeks"
        return f"{outlook.disk} may be full in {low:,} days ({at})"
    return None
