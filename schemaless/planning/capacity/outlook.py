"""The capacity model with uncertain inputs: every input is an interval, and so is every answer.

The worst end of an answer combines the worst ends of all inputs, the best end the best ones. That is the widest range
that the inputs allow; it has no confidence level.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Literal

from schemaless.base.numbers import ZERO, Interval
from schemaless.planning.capacity import model
from schemaless.planning.capacity.growth import Growth, Kind
from schemaless.planning.capacity.model import Plan

_Case = Literal["good", "mid", "bad"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranges:
    """A ``Plan`` with its estimated values as intervals; see ``Plan`` and ``Growth`` for meaning and bounds."""

    documents_per_day: Interval
    bytes_per_document: Interval
    disk_bytes_per_host: Interval
    overhead_share: Interval = ZERO
    stored_bytes: Interval = ZERO
    growth_share_per_year: Interval = ZERO
    growth_kind: Kind = "compound"
    weekdays: tuple[float, ...] | None = None
    copies: int = 1
    hosts: int = 1
    retention_days: float | None = None

    def plan(self, case: _Case = "mid", first_weekday: int = 0) -> Plan:
        """Return the plan with every value at its ``good`` end (disks fill late), its ``mid`` or its ``bad`` end.

        Raises:
            InvalidInput: A value is out of bounds.
        """
        worst = {"good": "low", "mid": "mid", "bad": "high"}[case]
        values = {part.name: getattr(self, part.name) for part in fields(self)}
        values |= {name: getattr(value, worst) for name, value in values.items() if isinstance(value, Interval)}
        # Of the disk alone, more is better.
        values["disk_bytes_per_host"] = [*self.disk_bytes_per_host][("bad", "mid", "good").index(case)]
        rate, kind, weekdays = (values.pop(name) for name in ("growth_share_per_year", "growth_kind", "weekdays"))
        return Plan(**values, growth=Growth(rate, kind, weekdays, first_weekday))


@dataclass(frozen=True, slots=True)
class StateAt:
    """State of a plan after a number of days.

    Attributes:
        days: Days from the start.
        stored_bytes: Peak of the stored bytes until then, all copies.
        headroom_share: Share of the usable bytes that is still free; negative if they are exceeded.
        hosts_needed: Number of hosts needed to last until then.
    """

    days: float
    stored_bytes: Interval
    headroom_share: Interval
    hosts_needed: Interval


@dataclass(frozen=True, slots=True)
class Outlook:
    """Answers of the model.

    Attributes:
        bytes_per_day: Bytes written to all hosts per day at the start, all copies, averaged over a week.
        usable_bytes: Bytes of all disks that are available for cells.
        days_until_full: Days from the start; infinite for never.
        full_on: The dates for ``days_until_full``, earliest first; None for never or after the year 9999.
        at: State on the requested day, if any.
    """

    bytes_per_day: Interval
    usable_bytes: Interval
    days_until_full: Interval
    full_on: tuple[datetime.date | None, datetime.date | None, datetime.date | None]
    at: StateAt | None


def outlook(ranges: Ranges, start: datetime.date, days: float | None = None) -> Outlook:
    """Evaluate a plan that starts at the beginning of ``start``, and its state after ``days`` if given.

    Raises:
        InvalidInput: A value is out of bounds.

    >>> trips = Ranges(
    ...     documents_per_day=Interval(800_000, 1_000_000, 1_250_000),
    ...     bytes_per_document=Interval.of(20_000),
    ...     disk_bytes_per_host=Interval.of(1_000 * model.GB),
    ... )
    >>> result = outlook(trips, datetime.date(2016, 3, 1), days=25)
    >>> result.days_until_full
    Interval(low=40.0, mid=50.0, high=62.5)
    >>> str(result.full_on[0]), result.at.headroom_share
    ('2016-04-10', Interval(low=0.375, mid=0.5, high=0.6))
    """
    plans = [ranges.plan(case, start.weekday()) for case in ("good", "mid", "bad")]

    def ends(function: Callable[[Plan], float]) -> Interval:
        return Interval(*sorted(map(function, plans)))  # They are in order except for rounding errors.

    until_full = ends(model.days_until_full)
    first, likely, last = (model.full_on(start, end) for end in until_full)
    at = None
    if days is not None:
        at = StateAt(
            days,
            ends(lambda plan: model.most_bytes(plan, days)),
            ends(lambda plan: model.headroom_share(plan, days)),
            ends(lambda plan: model.hosts_needed(plan, days)),
        )
    return Outlook(ends(model.bytes_per_day), ends(model.usable_bytes), until_full, (first, likely, last), at)
