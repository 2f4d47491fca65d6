"""How many documents come until a day, when each day brings another number of them: closed forms, no loop over days.

Time is in days from the start, 0.0 being the morning of the first day. Everything is relative to the first day's rate,
so that the sum of a constant rate until day t is t.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Literal

from schemaless.errors import InvalidInput
from schemaless.numbers import check_number

__all__ = ["CONSTANT", "YEAR_DAYS", "Growth", "Kind"]

YEAR_DAYS: Final = 365
"""A rate of growth is that of so many days."""

Kind = Literal["linear", "compound"]


@dataclass(frozen=True, slots=True)
class Growth:
    """How the documents of a day change.

    Attributes:
        share_per_year: 0.5 for half as many again after 365 days; negative where they become fewer, above -1.
        kind: ``linear`` adds the same number each day, down to none; ``compound`` multiplies by the same factor.
        weekdays: what Monday to Sunday have of an average day; any seven numbers of 0 or more that are not all 0, as
            only their proportions count.
        first_weekday: of the first day, 0 for Monday, as ``date.weekday()`` gives it.

    Raises:
        InvalidInput: a value is out of these bounds.
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
            raise InvalidInput(f"growth is linear or compound, got {self.kind!r}")
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
        """Whether every day brings the same."""
        return self.share_per_year == 0 and self.weekdays is None

    def until(self, days: float) -> float:
        """Return what has come until ``days``, in documents of the first day's average rate; infinity beyond floats.

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
            days = min(days, -YEAR_DAYS / self.share_per_year)  # the day from which there are none
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
        """Return what comes from ``begin`` to ``end`` where all weekdays are alike."""
        if self.share_per_year == 0:
            return end - begin
        if self.kind == "linear":
            return (end - begin) * (1 + self.share_per_year / YEAR_DAYS * (begin + end) / 2)
        power = math.log1p(self.share_per_year) / YEAR_DAYS
        return math.exp(power * begin) * math.expm1(power * (end - begin)) / power if power else end - begin

    def _same_weekday(self, day: int, weeks: float) -> float:
        """Return what the days ``day``, ``day + 7``, ... of so many weeks bring: a series."""
        if self.share_per_year == 0:
            return weeks
        if self.kind == "linear":
            return weeks * (1 + self.share_per_year / YEAR_DAYS * (day + 0.5 + 7 * (weeks - 1) / 2))
        power = math.log1p(self.share_per_year) / YEAR_DAYS
        if not power:
            return weeks
        return self._between(day, day + 1) * math.expm1(7 * power * weeks) / math.expm1(7 * power)


CONSTANT: Final = Growth()
