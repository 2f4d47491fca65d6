"""Capacity planning: when disks reach fill thresholds, when to order more, and what growth costs. Pure functions.

All costs come from one forecast of the growth of all disks, every copy counted, because the bands of separate disks
cannot be added up.

The date for a threshold comes from the same forecast as the date for a full disk, with less free space. An order must
arrive by the early end of the 80 % interval, so that it is in time in nine of ten cases.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import accumulate, pairwise
from typing import Final, NamedTuple

from schemaless.base.numbers import Interval, adding_up, counted, summed
from schemaless.planning.capacity.basis import Basis, DiskForecast, mean
from schemaless.planning.capacity.forecast import Band, Expiry, Forecast, NoForecast, whole_days
from schemaless.planning.capacity.model import GB, TB
from schemaless.planning.capacity.options import FULL, PlanningOptions
from schemaless.planning.capacity.whatif import DiskOutlook, Scenario, days_at_rate, days_until, ends_of

_COST_DAYS: Final = 365

MONTH_DAYS: Final = 365 / 12
"""Days of an average month."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Level(DiskOutlook):
    """When a disk reaches a threshold: its outlook if only the space below the threshold may be used.

    Attributes:
        share: Threshold as a share of the disk; 1 is full.
        lead_days: Days from ordering a disk until it can be used, or None to plan no orders.
    """

    share: float
    lead_days: float | None

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
            Negative if more data expires than is added.
        price: Price of the space by which the total exceeds all earlier ones; None if no price is known.
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
        size_bytes: Growth in the period; negative if more data expires than is added.
        price: Price of the largest growth in the period, in the currency of ``price_per_tb``, or None if no price is
            known. Space that becomes free later earns nothing.
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

    def first(self) -> list[Level]:
        """Return the levels of the disk that fills up first; an empty list if they are unknown."""
        return [level for level in self.now if level.disk == self.now[0].disk and level.days is not None]


@dataclass(frozen=True, slots=True)
class ColdTier:
    """The cold store in a period; it holds each file once.

    Attributes:
        start_bytes: Length of the files at the start, with those of the cells that are old enough by then.
        growth: Growth of the files in the period; its months have no prices.
        price_per_gb: Price of a GB for a month, or None if unknown.
    """

    start_bytes: Interval
    growth: Cost
    price_per_gb: float | None

    @property
    def bytes_per_month(self) -> float:
        """Growth in an average month."""
        return self.growth.size_bytes.mid * MONTH_DAYS / self.growth.days

    @property
    def price_of_month(self) -> float | None:
        """Price of an average month's growth, for each month that it is stored."""
        return None if self.price_per_gb is None else self.bytes_per_month / GB * self.price_per_gb

    @property
    def rents(self) -> list[float]:
        """Price of each of the growth's months: of the average length of the files; zeros if it is unknown."""
        size, rents = self.start_bytes.mid, []
        for month in self.growth.months:
            rents.append((size + month.size_bytes / 2) / GB * (self.price_per_gb or 0.0) * month.days / MONTH_DAYS)
            size += month.size_bytes
        return rents


@dataclass(frozen=True, slots=True)
class GrowthOfAll:
    """Growth of all disks together, all copies counted, and its share by disk.

    Attributes:
        forecast: The forecast, or why there is none.
        scale: Growth of all copies, as a multiple of ``forecast``.
        copies: Number of copies by disk name.
        weights: Present growth in bytes per day by disk name, all copies counted.
    """

    forecast: Forecast | NoForecast
    scale: float
    copies: Mapping[str, int]
    weights: Mapping[str, float]

    @classmethod
    def of(cls, basis: Basis, total: DiskForecast | None, now: Scenario) -> GrowthOfAll:
        """Return the growth of all disks.

        Args:
            basis: The disks and their growth.
            total: Forecast of one copy on all disks.
            now: The scenario without changes.
        """
        copies = {entry.disk.name: entry.disk.copies for entry in basis.disks}
        per_day = {outlook.disk: (outlook.bytes_per_day or 0.0) * copies[outlook.disk] for outlook in now.disks}
        if total is None:
            return cls(NoForecast("no disk has any cells", 0), 1.0, copies, per_day)
        return cls(*basis.forecast_copies(total), copies, per_day)

    def times(self, scenario: Scenario, copies: int | None = None) -> Interval:
        """Return the growth in a scenario as a multiple of ``forecast``, with another number of copies if given."""
        times = mean(
            {
                outlook.disk: outlook.times.times(1.0 if copies is None else copies / self.copies[outlook.disk])
                for outlook in scenario.disks
                if outlook.times is not None
            },
            self.weights,
        )
        return times.times(self.scale)

    def cost(self, scenario: Scenario, price_per_tb: float | None, copies: int | None = None) -> Cost | None:
        """Return the cost of a year's growth in a scenario; None if the growth of a disk is unknown."""
        if not isinstance(self.forecast, Forecast) or any(outlook.times is None for outlook in scenario.disks):
            return None
        times = self.times(scenario, copies)
        of_disk = {outlook.disk: outlook.expiries for outlook in scenario.disks}
        expiries = self._expiries(scenario, of_disk, times.mid, copies)
        growth = self.forecast.less(expiries) if expiries else self.forecast
        return _cost(scenario.name, growth, times, price_per_tb)

    def cold(self, scenario: Scenario, start_bytes: float, price_per_gb: float | None) -> ColdTier | None:
        """Return the cold store in a scenario; None if it has no files, or the growth of a disk is unknown.

        Args:
            scenario: The scenario.
            start_bytes: Length of the files that exist.
            price_per_gb: Price of a GB for a month.
        """
        parts = {outlook.disk: outlook.cold for outlook in scenario.disks if outlook.cold is not None}
        if not isinstance(self.forecast, Forecast) or any(outlook.times is None for outlook in scenario.disks):
            return None
        if not parts and not start_bytes:
            return None
        added = summed(part.start_bytes for part in parts.values())
        times = self.times(scenario, 1).mid
        expiries = self._expiries(scenario, {disk: part.expiries for disk, part in parts.items()}, times, 1)
        # The size of files is uncertain by the same share, whenever they are written.
        spread = added.times(times / added.mid) if added.mid else Interval.of(times)
        growth = _cost(scenario.name, self.forecast.expired(expiries), spread, None)
        return ColdTier(added.map(lambda end: start_bytes + end), growth, price_per_gb)

    def _expiries(
        self, scenario: Scenario, of_disk: Mapping[str, Sequence[Expiry]], times: float, copies: int | None
    ) -> list[Expiry]:
        """Return what expires on all disks, in units of ``times`` the forecast; each disk keeps its present share."""
        total = sum(self.weights.values())
        found = []
        for outlook in scenario.disks:
            if not of_disk.get(outlook.disk) or outlook.times is None or not times or not total:
                continue
            factor = outlook.times.mid * (copies or self.copies[outlook.disk]) / times
            of_one_copy = self.scale * self.weights[outlook.disk] / total / self.copies[outlook.disk]
            found += [
                Expiry(each.delay_days, tuple(size * factor for size in each.past), each.share * of_one_copy * factor)
                for each in of_disk[outlook.disk]
            ]
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison(Scenario):
    """A scenario with the figures that are compared.

    Attributes:
        full: When the first disk fills up, and by when to order with the scenario's lead time; None if unknown.
        price_per_tb: The scenario's price of a TB of disk, or None if unknown.
        stored_bytes: Total length of all files at the start, all copies counted; None if unknown.
        added_bytes: ``stored_bytes`` less what is stored now: space that additional copies need at once. Negative if
            the scenario frees space.
        cost: Cost of a year's growth; None without a forecast.
        cold: The cold store in that time; None without one, or without a forecast.
    """

    full: Level | None
    price_per_tb: float | None
    stored_bytes: Interval | None
    added_bytes: float | None
    cost: Cost | None
    cold: ColdTier | None

    @property
    def start_price(self) -> float | None:
        """Price of the space needed at once; 0 if space is freed, because freed space earns nothing."""
        if self.added_bytes is None or self.price_per_tb is None:
            return None
        return max(0.0, self.added_bytes) / TB * self.price_per_tb

    @property
    def year_price(self) -> float | None:
        """Price of the space needed at once, of a year's growth and of the cold store; None if a disk's is unknown."""
        if self.start_price is None or self.cost is None or self.cost.price is None:
            return None
        return self.start_price + self.cost.price.mid + sum(self._rents)

    @property
    def _rents(self) -> list[float]:
        return [] if self.cold is None else self.cold.rents

    def budget(self, digits: int = 2) -> list[float]:
        """Return the prices of the start and of each month, rounded so that they add up to ``year_price``."""
        months = [] if self.cost is None else [month.price or 0.0 for month in self.cost.months]
        rents = self._rents or [0.0] * len(months)
        return adding_up([self.start_price or 0.0, *map(sum, zip(months, rents, strict=True))], digits)


@dataclass(frozen=True, slots=True)
class Saving:
    """What a scenario saves, compared with the present.

    Attributes:
        days: Whole days by which the first disk lasts longer, the difference at each end of the bands; infinite if the
            scenario's days are beyond the horizon; None if either scenario's are unknown, or the present ones beyond.
        least_days: The days up to the horizon, which are saved at least if ``days.mid`` is infinite.
        freed_bytes: Space that is freed at once, all copies counted; negative if more is needed; None if unknown. All
            intervals that follow are 80 % ones, too.
        share: Share of the growth that is saved; None without a forecast.
        bytes_per_month: Growth that is saved in an average month of the year to come, all copies counted.
        price_per_month: Price of that disk space; None if no price is known.
    """

    days: Band | None
    least_days: int
    freed_bytes: Interval | None
    share: Interval | None
    bytes_per_month: Interval | None
    price_per_month: Interval | None

    @classmethod
    def of(cls, now: Comparison, then: Comparison) -> Saving:
        """Return what ``then`` saves compared with ``now``."""
        first, other, share, per_month = now.first, then.first, None, None
        days, least_days = None, 0
        if first is not None and other is not None and first.days and other.days and math.isfinite(first.days.mid):
            horizon = first.horizon_days or 0
            ends = [
                late if math.isinf(late) else math.floor(late) - math.floor(min(early, horizon))
                for early, late in zip(first.days, other.days, strict=True)
            ]
            days, least_days = Band(*sorted(ends)), horizon - math.floor(first.days.mid)
        freed = None
        if now.stored_bytes is not None and then.stored_bytes is not None:
            freed = _ordered(now.stored_bytes.mid - size for size in _ends_80(ends_of(then.stored_bytes)))
        if now.cost is not None and then.cost is not None and now.cost.size_bytes.low_80 > 0:
            before, after = _ends_80(now.cost.size_bytes), _ends_80(then.cost.size_bytes)
            shares = [1 - size / unchanged for unchanged, size in zip(before, after, strict=True)]
            share = _ordered(shares)
            months = now.cost.days / MONTH_DAYS
            per_month = _ordered(size * part / months for size, part in zip(before, share, strict=True))
        price = None
        if per_month is not None and now.price_per_tb is not None:
            price = per_month.map(lambda size: size / TB * (now.price_per_tb or 0.0))
        return cls(days, least_days, freed, share, per_month, price)


def _ends_80(band: Band) -> tuple[float, float, float]:
    return band.low_80, band.mid, band.high_80


def _ordered(values: Iterable[float]) -> Interval:
    """Return three values as an interval, with the second in the middle."""
    first, mid, last = values
    return Interval(min(first, mid, last), mid, max(first, mid, last))


def levels(
    basis: Basis, scenario: Scenario, disks: Sequence[str], thresholds: Sequence[float], lead_days: float | None
) -> tuple[Level, ...]:
    """Return when each of these disks of a scenario reaches each threshold, and when it is full."""
    outlooks = {outlook.disk: outlook for outlook in scenario.disks}
    entries = {entry.disk.name: entry for entry in basis.disks}
    return tuple(
        _level(outlooks[name], entries[name], share, lead_days) for name in disks for share in (*thresholds, FULL)
    )


def _level(outlook: DiskOutlook, disk: DiskForecast, share: float, lead_days: float | None) -> Level:
    inherited = {part.name: getattr(outlook, part.name) for part in fields(outlook)}
    level = Level(**inherited, share=share, lead_days=lead_days)
    free, times, size = outlook.free_bytes, outlook.times, disk.disk.disk_bytes
    forecast = outlook.forecast or disk.forecast
    rate = None if outlook.forecast is not None else disk.rate
    if outlook.days is None or free is None or times is None or size is None or not isinstance(forecast, Forecast):
        return level
    room = free.map(lambda end: end - (FULL - share) * size)
    at_rate = None if rate is None else days_at_rate(rate.per_day, room, times)
    return replace(level, free_bytes=room, days=days_until(forecast, room, times), at_rate=at_rate)


def compare(basis: Basis, growth: GrowthOfAll, now: Scenario, scenario: Scenario) -> Comparison:
    """Return the figures of a scenario that are compared.

    Args:
        basis: The disks, and the price and lead time of scenarios that do not set their own.
        growth: Growth of all disks.
        now: The scenario without changes.
        scenario: The scenario.
    """
    options, change, first = basis.options.planning, scenario.change, scenario.first
    lead_days = options.lead_days if change.lead_days is None else change.lead_days
    price = options.price_per_tb if change.price_per_tb is None else change.price_per_tb
    cold_price = options.cold_price_per_gb if change.cold_price_per_gb is None else change.cold_price_per_gb
    stored, before = _stored(scenario, growth.copies), _stored(now, growth.copies)
    return Comparison(
        **{part.name: getattr(scenario, part.name) for part in fields(scenario)},
        full=None if first is None else levels(basis, scenario, [first.disk], (), lead_days)[0],
        price_per_tb=price,
        stored_bytes=stored,
        added_bytes=None if stored is None or before is None else stored.mid - before.mid,
        cost=growth.cost(scenario, price, change.copies),
        cold=growth.cold(scenario, sum(space.cold_file_bytes for space in basis.measurement.clusters), cold_price),
    )


def _stored(scenario: Scenario, copies: Mapping[str, int]) -> Interval | None:
    """Return the length of all files of a scenario, all copies counted; None if a disk's files are unknown."""
    if scenario.file_bytes is None:
        return None
    change = scenario.change
    return change.total(size.times(change.copies or copies[disk]) for disk, size in scenario.disk_file_bytes.items())


def _cost(name: str, growth: Forecast, times: Interval, price_per_tb: float | None) -> Cost:
    """Return the cost of a year's growth, or of the horizon if that is shorter.

    Args:
        name: Name of the scenario.
        growth: Current growth of all disks together, counting every copy.
        times: Growth in the scenario as a multiple of ``growth``.
        price_per_tb: Price of a TB of disk.
    """
    days = min(_COST_DAYS, growth.horizon_days)
    ends = ends_of(times)
    sums = [[size * end for size, end in zip(band, ends, strict=True)] for band in growth.cumulative[:days]]
    sizes = Band(*sorted(sums[-1]))
    peaks = [list(accumulate(series, max, initial=0.0)) for series in zip(*sums, strict=True)]
    months = []
    for start, stop in _months(growth.first_day, days):
        before = growth.cumulative[start - 1].mid if start else 0.0
        size = (growth.cumulative[stop - 1].mid - before) * times.mid
        first_day = growth.first_day + datetime.timedelta(start)
        months.append(Month(first_day, stop - start, size, _price(peaks[2][stop] - peaks[2][start], price_per_tb)))
    price = None if price_per_tb is None else Band(*(peak[-1] / TB * price_per_tb for peak in peaks))
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
        low = counted(whole_days(early) or 0, "day")
        return f"{outlook.disk} may be full in {low} (the early end of the 80 % interval)"
    if math.isfinite(early) or horizon >= asked:
        return None
    if outlook.at_rate is None:
        return f"{outlook.disk}: the forecast covers only {counted(horizon, 'day')}, and no constant rate is known"
    if outlook.at_rate.low < asked:
        low = counted(whole_days(outlook.at_rate.low) or 0, "day")
        at = "the early end of the interval at the constant rate of recent weeks"
        return f"{outlook.disk} may be full in {low} ({at})"
    return None
