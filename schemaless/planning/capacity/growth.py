"""Cumulative growth: the number of documents written until a given day, in closed form, without a loop over days.

Time is in days, with 0.0 at the start of the first day. Counts are relative to the first day's rate, so at a constant
rate the sum until day t is t.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Literal

from schemaless.base.numbers import check_number
from schemaless.errors import InvalidInput

YEAR_DAYS: Final = 365
"""Period of a yearly growth rate, in days."""

Kind = Literal["linear", "compound"]


@dataclass(frozen=True, slots=True)
class Growth:
    """How the number of documents per day changes over time.

    Attributes:
        share_per_year: Growth over 365 days: 0.5 is 50 % more; negative for shrinking, above -1.
        kind: ``linear`` adds the same number each day (never below zero); ``compound`` multiplies by the same factor.
        weekdays: Weights of Monday to Sunday: seven numbers of 0 or more, not all 0. Only their proportions count.
        first_weekday: Weekday of the first day, 0 for Monday, as in ``date.weekday()``.

    Raises:
        InvalidInput: A value is out of these bounds.
    """

    share_per_year: float = 0.0
    kind: Kind = "compound"
    weekdays: tuple[float, ...] | None = None
    first_weekday: int = 0

    def __post_init__(self) -> None:
        check_number("share_per_year", self.share_per_year)
        if self.share_per_year <= -1:
            raise InvalidInput(f"share_per_year must be above -1 (0.5 is 50 % more), got {self.share_per_year}")
        if self.kind not in ("linear", "compound"):
            raise InvalidInput(f"growth must be linear or compound, got {self.kind!r}")
        if self.first_weekday not in range(7):
            raise InvalidInput(f"first_weekday must be 0 (Monday) to 6, got {self.first_weekday}")
        if self.weekdays is None:
            return
        for share in self.weekdays:
            check_number("a weekday's share", share)
        if len(self.weekdays) != 7 or min(self.weekdays) < 0 or not 0 < sum(self.weekdays) < math.inf:
            raise InvalidInput(
                f"weekdays must be 7 numbers of 0 or more, Monday first, not all 0; got {len(self.weekdays)}: "
                f"{', '.join(f'{share:g}' for share in self.weekdays)}"
            )

    @property
    def constant(self) -> bool:
        """True if every day has the same number of documents."""
        return self.share_per_year == 0 and self.weekdays is None

    def until(self, days: float) -> float:
        """Return the sum until ``days``, in units of the first day's average rate; infinity if a float overflows.

        >>> Growth().until(10)
        10
        >>> Growth(1.0, "linear").until(365), round(Growth(1.0, "compound").until(365), 1)
        (547.5, 526.6)
        >>> Growth(weekdays=(1, 1, 1, 1, 1, 0, 0), first_weekday=5).until(2)  # a weekend
        0.0
        """
        if days <= 0:
            return 0.0
        try:
            return days if self.constant else self._until(days)
        except OverflowError:
            return math.inf

    def _until(self, days: float) -> float:
        if self.kind == "linear" and self.share_per_year < 0:
            days = min(days, -YEAR_DAYS / self.share_per_year)  # The rate is zero from this day on.
        if self.weekdays is None:
            return self._between(0, days)
        average = sum(self.weekdays) / 7
        shares = [self.weekdays[(self.first_weekday + day) % 7] / average for day in range(7)]
        weeks, rest = divmod(days, 7)
        total = sum(share * self._same_weekday(day, weeks) for day, share in enumerate(shares)) if weeks else 0.0
        begin = 7 * weeks
        for day, share in enumerate(shares):
            if day < rest:
                total += share * self._between(begin + day, begin + min(day + 1, rest))
        return total

    def _between(self, begin: float, end: float) -> float:
        """Return the sum from ``begin`` to ``end``, ignoring weekdays."""
        if self.share_per_year == 0:
            return end - begin
        if self.kind == "linear":
            return (end - begin) * (1 + self.share_per_year / YEAR_DAYS * (begin + end) / 2)
        power = math.log1p(self.share_per_year) / YEAR_DAYS
        return math.exp(power * begin) * math.expm1(power * (end - begin)) / power if power else end - begin

    def _same_weekday(self, day: int, weeks: float) -> float:
        """Return the sum over every seventh day for ``weeks`` weeks, starting at ``day``, in closed form."""
        if self.share_per_year == 0:
            return weeks
        if self.kind == "linear":
            return weeks * (1 + self.share_per_year / YEAR_DAYS * (day + 0.5 + 7 * (weeks - 1) / 2))
        power = math.log1p(self.share_per_year) / YEAR_DAYS
        if not power:
            return weeks
        return self._between(day, day + 1) * math.expm1(7 * power * weeks) / math.expm1(7 * power)


CONSTANT: Final = Growth()
