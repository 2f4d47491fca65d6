"""Scenarios side by side: how long the disks last, when to order, and what the growth costs. Pure functions.

All of a report's costs come from one forecast of the growth of all disks, every copy counted, because the bands of
separate disks cannot be added up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from schemaless.base.numbers import Interval, adding_up
from schemaless.planning.capacity.disk_forecast import DiskForecast
from schemaless.planning.capacity.forecast import Forecast, NoForecast
from schemaless.planning.capacity.planning import TB, Cost, Level, PlanningOptions, cost, levels
from schemaless.planning.capacity.whatif import NOTHING, Scenario, WhatIf, mean


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
        return cost(scenario.name, self.forecast, self.times(scenario, copies), price_per_tb)


@dataclass(frozen=True, slots=True)
class Comparison:
    """A scenario with the figures that are compared.

    Attributes:
        change: What the scenario changes.
        scenario: Its outlook for each disk.
        full: When the first disk fills up, and by when to order with the scenario's lead time; None if unknown.
        price_per_tb: The scenario's price of a TB of disk, or None if unknown.
        stored_bytes: Total length of all files at the start, all copies counted; None if unknown.
        added_bytes: ``stored_bytes`` less what is stored now: space that additional copies need at once. Negative if
            the scenario frees space.
        cost: Cost of a year's growth; None without a forecast, or if the scenario sets retention periods.
    """

    change: WhatIf
    scenario: Scenario
    full: Level | None
    price_per_tb: float | None
    stored_bytes: Interval | None
    added_bytes: float | None
    cost: Cost | None

    @property
    def start_price(self) -> float | None:
        """Price of the space needed at once; 0 if space is freed, because freed space earns nothing."""
        if self.added_bytes is None or self.price_per_tb is None:
            return None
        return max(0.0, self.added_bytes) / TB * self.price_per_tb

    @property
    def year_price(self) -> float | None:
        """Price of the space needed at once and of a year's growth; None if either is unknown."""
        if self.start_price is None or self.cost is None or self.cost.price is None:
            return None
        return self.start_price + self.cost.price.mid

    def budget(self, digits: int = 2) -> list[float]:
        """Return the prices of the start and of each month, rounded so that they add up to ``year_price``."""
        months = () if self.cost is None else self.cost.months
        return adding_up([self.start_price or 0.0, *(month.price or 0.0 for month in months)], digits)


def compare(
    changes: Sequence[tuple[WhatIf, Scenario]],
    disks: Sequence[DiskForecast],
    growth: GrowthOfAll,
    now: Scenario,
    options: PlanningOptions,
) -> tuple[Comparison, ...]:
    """Compare scenarios.

    Args:
        changes: What each scenario changes, and its outlook, in order.
        disks: The disks with their forecasts.
        growth: Growth of all disks.
        now: The scenario without changes.
        options: Price and lead time of scenarios that do not set their own.
    """
    return tuple(_comparison(change, scenario, disks, growth, now, options) for change, scenario in changes)


def _comparison(
    change: WhatIf,
    scenario: Scenario,
    disks: Sequence[DiskForecast],
    growth: GrowthOfAll,
    now: Scenario,
    options: PlanningOptions,
) -> Comparison:
    lead_days = options.lead_days if change.lead_days is None else change.lead_days
    price = options.price_per_tb if change.price_per_tb is None else change.price_per_tb
    first = scenario.first
    first_disks = [] if first is None else [disk for disk in disks if disk.disk.name == first.disk]
    found = levels(scenario, first_disks, replace(options, thresholds=(), lead_days=lead_days))
    stored = _stored(scenario, growth.copies, change)
    before = _stored(now, growth.copies, NOTHING)
    return Comparison(
        change=change,
        scenario=scenario,
        full=found[0] if found else None,
        price_per_tb=price,
        stored_bytes=stored,
        added_bytes=None if stored is None or before is None else stored.mid - before.mid,
        cost=None if change.retention else growth.cost(scenario, price, change.copies),
    )


def _stored(scenario: Scenario, copies: Mapping[str, int], change: WhatIf) -> Interval | None:
    """Return the length of all files of a scenario, all copies counted; None if a disk's files are unknown."""
    if scenario.file_bytes is None:
        return None
    return change.total(size.times(change.copies or copies[disk]) for disk, size in scenario.disk_file_bytes.items())
