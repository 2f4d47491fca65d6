"""The model where values are not known exactly: every input low, mid, high, and so every answer.

The low end of an answer has all inputs at their bad end at once, the high end all at their good one. That is the
widest that the inputs allow, and says nothing of how likely it is.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from schemaless.capacity import model
from schemaless.capacity.growth import Growth, Kind
from schemaless.capacity.model import Plan
from schemaless.numbers import ZERO, Interval

__all__ = ["At", "Outlook", "Ranges", "outlook"]

_Case = Literal["good", "mid", "bad"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranges:
    """A plan whose values are intervals; for what each is, and its bounds, see ``Plan`` and ``Growth``.

    What is decided, and not estimated, is a plain number.
    """

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
        """Return the plan with every value at its ``good`` end, which fills disks late, its ``bad`` one, or in between.

        Raises:
            InvalidInput: a value is out of its bounds.
        """

        def more_is_bad(values: Interval) -> float:
            return {"good": values.low, "mid": values.mid, "bad": values.high}[case]

        def more_is_good(values: Interval) -> float:
            return {"good": values.high, "mid": values.mid, "bad": values.low}[case]

        return Plan(
            documents_per_day=more_is_bad(self.documents_per_day),
            bytes_per_document=more_is_bad(self.bytes_per_document),
            disk_bytes_per_host=more_is_good(self.disk_bytes_per_host),
            overhead_share=more_is_bad(self.overhead_share),
            stored_bytes=more_is_bad(self.stored_bytes),
            growth=Growth(more_is_bad(self.growth_share_per_year), self.growth_kind, self.weekdays, first_weekday),
            copies=self.copies,
            hosts=self.hosts,
            retention_days=self.retention_days,
        )


@dataclass(frozen=True, slots=True)
class At:
    """What holds on a day.

    Attributes:
        days: from the start.
        stored_bytes: the most that is stored until then, every copy counted.
        headroom_share: the part of the room for cells that is free; negative where it is too small.
        hosts_needed: that last until then.
    """

    days: float
    stored_bytes: Interval
    headroom_share: Interval
    hosts_needed: Interval


@dataclass(frozen=True, slots=True)
class Outlook:
    """The answers.

    Attributes:
        bytes_per_day: what all hosts take in a day at first, every copy counted.
        usable_bytes: what cells may have of all disks.
        days_until_full: from the start; infinite for never.
        full_on: the days on which that is, earliest first; None for never, or after the year 9999.
        at: of the day that was asked for.
    """

    bytes_per_day: Interval
    usable_bytes: Interval
    days_until_full: Interval
    full_on: tuple[datetime.date | None, datetime.date | None, datetime.date | None]
    at: At | None


def outlook(ranges: Ranges, start: datetime.date, days: float | None = None) -> Outlook:
    """Return what becomes of a plan that begins in the morning of ``start``, and how it stands after ``days``.

    Raises:
        InvalidInput: a value is out of its bounds.

    >>> trips = Ranges(
    ...     documents_per_day=Interval(800_000, 1_000_000, 1_250_000),
    ...     bytes_per_document=Interval.of(20_000),
    ...     disk_bytes_per_host=Interval.of(1_000 * model.GB),
    ... )
    >>> seen = outlook(trips, datetime.date(2016, 3, 1), days=25)
    >>> seen.days_until_full
    Interval(low=40.0, mid=50.0, high=62.5)
    >>> str(seen.full_on[0]), seen.at.headroom_share
    ('2016-04-10', Interval(low=0.375, mid=0.5, high=0.6))
    """
    good, mid, bad = (ranges.plan(case, start.weekday()) for case in ("good", "mid", "bad"))

    def rising(function: Callable[[Plan], float]) -> Interval:
        return _ordered(function(good), function(mid), function(bad))

    def falling(function: Callable[[Plan], float]) -> Interval:
        return _ordered(function(bad), function(mid), function(good))

    until_full = falling(model.days_until_full)
    at = None
    if days is not None:
        at = At(
            days,
            rising(lambda plan: model.most_bytes(plan, days)),
            falling(lambda plan: model.headroom_share(plan, days)),
            rising(lambda plan: model.hosts_needed(plan, days)),
        )
    return Outlook(
        rising(model.bytes_per_day),
        falling(model.usable_bytes),
        until_full,
        (
            model.full_on(start, until_full.low),
            model.full_on(start, until_full.mid),
            model.full_on(start, until_full.high),
        ),
        at,
    )


def _ordered(*values: float) -> Interval:
    """Return values that rise but for the last bit of a float, which must not make an error of them."""
    return Interval(*sorted(values))
