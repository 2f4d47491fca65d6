"""What a planner asks of a report: when each disk is how full, until when to order, and what growth costs. Pure.

A threshold is a part of a disk, and the disk reaches it as it reaches its end: by the same forecast, with less room.
What is ordered has to be there when the early end of the 80 % interval comes, so that in nine of ten cases it is in
time.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from schemaless.capacity.forecast import Band, Forecast
from schemaless.capacity.whatif import DiskOutlook, Scenario, days_at_rate, days_until
from schemaless.errors import InvalidInput
from schemaless.numbers import Interval, check_number

if TYPE_CHECKING:
    from schemaless.capacity.report import DiskForecast

__all__ = ["FULL", "TB", "THRESHOLDS", "Cost", "Level", "Planning", "Verdict", "Wishes", "costs", "levels", "verdict"]

THRESHOLDS: Final = (0.8, 0.9)
"""These parts of a disk are asked for unless others are."""

FULL: Final = 1.0
TB: Final = 10**12
"""A terabyte has so many bytes where disks are sold."""

_COST_DAYS: Final = 365


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """What is asked.

    Attributes:
        thresholds: parts of a disk, above 0 and below 1, in their order.
        lead_days: from an order until a disk can be used; None where nothing is to be ordered.
        price_per_tb: of a TB (1,000 GB) of disk, in any currency; None where no price is known.
        fail_below_days: the least number of days that all disks have to last; None where nobody is to be woken.
    """

    thresholds: tuple[float, ...] = THRESHOLDS
    lead_days: float | None = None
    price_per_tb: float | None = None
    fail_below_days: float | None = None

    def __post_init__(self) -> None:
        for share in self.thresholds:
            check_number("a threshold", share)
            if not 0 < share < FULL:
                raise InvalidInput(f"a threshold is a part of a disk, above 0 % and below 100 %, got {share:.6g}")
        if list(self.thresholds) != sorted(set(self.thresholds)):
            raise InvalidInput("thresholds must be given in their order, each once, such as 80%,90%")
        for name in ("lead_days", "price_per_tb", "fail_below_days"):
            value = getattr(self, name)
            if value is not None:
                check_number(name, value)
                if value < 0:
                    raise InvalidInput(f"{name} must be 0 or more, got {value:g}")


@dataclass(frozen=True, slots=True)
class Level:
    """When a disk is how full.

    Attributes:
        disk: its name.
        share: of the disk; 1 is full.
        days: until then; None where that cannot be said.
        at_rate: likewise, if each day brings what the last weeks did; None where that is not known.
        first_day: that days count from.
        horizon_days: how far the forecast looks; infinite days are more than this.
        why: the reason where nothing can be said.
        lead_days: from an order until a disk can be used; None where nothing is to be ordered.
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
        """The dates of ``days``, by the names of the band; None for those beyond the horizon."""
        return self._dates(0.0)

    @property
    def order_by(self) -> dict[str, datetime.date | None] | None:
        """The days on which to order at the latest, by the end of the band that is planned with."""
        return None if self.lead_days is None else self._dates(self.lead_days)

    @property
    def order_on(self) -> datetime.date | None:
        """The day on which to order at the latest, to be in time in nine of ten cases."""
        dates = self.order_by
        return None if dates is None else dates["low_80"]

    def _dates(self, earlier_days: float) -> dict[str, datetime.date | None] | None:
        return None if self.first_day is None or self.days is None else self.days.dates(self.first_day, earlier_days)


@dataclass(frozen=True, slots=True)
class Cost:
    """What something takes of disks, every copy counted, and what so much disk costs.

    Attributes:
        name: ``now``, or a codec's.
        days: how many days of growth it is of.
        size_bytes: what they bring.
        price: of so much disk, in the currency of the price.
    """

    name: str
    days: int
    size_bytes: Band
    price: Band


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether all disks last as long as was asked.

    Attributes:
        asked_days: how long that is.
        failed: whether one does not, or cannot be said to.
        reasons: for people, one for each disk that does not; sentences without their full stop.
    """

    asked_days: float
    failed: bool
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Planning:
    """The answers.

    Attributes:
        wishes: what was asked.
        now: each disk at each threshold and full, the disk that is full first before the others.
        after: the same after re-encoding, of the disks in the same order; none where there is nothing to go to.
        costs: none where no price is known, or nothing is forecast.
        verdict: None where nobody asked.
    """

    wishes: Wishes
    now: tuple[Level, ...] = ()
    after: tuple[Level, ...] = ()
    costs: tuple[Cost, ...] = ()
    verdict: Verdict | None = None

    def first(self, *, after: bool = False) -> list[Level]:
        """Return the levels of the disk that is full first; none where that is not known."""
        levels = self.after if after else self.now
        return [level for level in levels if level.disk == levels[0].disk and level.days is not None]


def levels(scenario: Scenario, grown: Sequence[DiskForecast], wishes: Wishes) -> tuple[Level, ...]:
    """Return when each disk of a scenario is how full.

    Args:
        scenario: what becomes of the disks.
        grown: disks, as they are to be sorted, with what a day takes of each.
        wishes: which thresholds, and how long an order takes.
    """
    outlooks = {outlook.disk: outlook for outlook in scenario.disks}
    return tuple(
        _level(outlooks[of_disk.disk.name], of_disk, share, wishes.lead_days)
        for of_disk in grown
        for share in (*wishes.thresholds, FULL)
    )


def _level(outlook: DiskOutlook, grown: DiskForecast, share: float, lead_days: float | None) -> Level:
    free, times, size = outlook.free_bytes, outlook.times, grown.disk.disk_bytes
    forecast, rate = grown.forecast, grown.rate
    if outlook.days is None or free is None or times is None or size is None or not isinstance(forecast, Forecast):
        return Level(outlook.disk, share, None, None, None, None, outlook.why, lead_days)
    kept_free = (FULL - share) * size
    room = Interval(*(end - kept_free for end in free))
    days = days_until(forecast, room, times)
    at_rate = None if rate is None else days_at_rate(rate.per_day, room, times)
    return Level(outlook.disk, share, days, at_rate, outlook.first_day, outlook.horizon_days, None, lead_days)


def costs(forecast: Forecast, after: tuple[str, Interval] | None, wishes: Wishes) -> tuple[Cost, ...]:
    """Return what the growth of a year costs, or of as much of it as is forecast, now and after re-encoding.

    Args:
        forecast: of bytes a day of all disks together, every copy counted.
        after: the codec, and what a day takes then as a part of what it takes now.
        wishes: what a TB costs.
    """
    if wishes.price_per_tb is None:
        return ()
    days = min(_COST_DAYS, forecast.horizon_days)
    brings = forecast.cumulative[days - 1]
    prices = [_cost("now", days, brings, wishes.price_per_tb)]
    if after is not None:
        name, times = after
        ends = (times.low, times.low, times.mid, times.high, times.high)
        sizes = Band(*(size * end for size, end in zip(brings, ends, strict=True)))
        prices.append(_cost(name, days, sizes, wishes.price_per_tb))
    return tuple(prices)


def _cost(name: str, days: int, sizes: Band, price_per_tb: float) -> Cost:
    return Cost(name, days, sizes, Band(*(size / TB * price_per_tb for size in sizes)))


def verdict(now: Scenario, wishes: Wishes) -> Verdict | None:
    """Return whether every disk lasts as long as was asked; None where nobody asked.

    By the early end of the 80 % interval. Where that is beyond the horizon and the horizon is too near, the early end
    of the constant rate's interval decides. What cannot be said of a disk is no reason to sleep on.
    """
    asked = wishes.fail_below_days
    if asked is None:
        return None
    reasons = [reason for reason in (_reason(outlook, asked) for outlook in now.worst_first) if reason is not None]
    if not now.disks:
        reasons.append("nothing is known, as there is no disk with cells")
    return Verdict(asked, bool(reasons), tuple(reasons))


def _reason(outlook: DiskOutlook, asked: float) -> str | None:
    """Return why a disk does not last so long, or cannot be said to."""
    if outlook.days is None:
        return f"{outlook.disk}: it cannot be said how long it lasts: {outlook.why}"
    early, horizon = outlook.days.low_80, outlook.horizon_days or 0
    if early < asked:
        return f"{outlook.disk} may be full in {math.floor(early):,} days (the early end of the 80 % interval)"
    if math.isfinite(early) or horizon >= asked:
        return None
    if outlook.at_rate is None:
        return f"{outlook.disk}: its history lets one look {horizon:,} days ahead, and no constant rate is known"
    if outlook.at_rate.low < asked:
        low = math.floor(outlook.at_rate.low)
        return f"{outlook.disk} may be full in {low:,} days (the early end at the constant rate of the last weeks)"
    return None
