"""A value that is not known exactly: low, mid, high."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from schemaless.errors import InvalidInput

__all__ = ["ZERO", "Interval", "check_number"]


@dataclass(frozen=True, slots=True)
class Interval:
    """What a value is at least, most likely, and at most. The unit is in the name of what holds it.

    Attributes:
        low: the least; may be infinite, as days until full are where nothing is written.
        mid: the best single figure, from ``low`` to ``high``; not their mean.
        high: the most.

    Raises:
        InvalidInput: they are not numbers, or not in this order.

    >>> Interval(1, 2, 4).map(lambda gigabytes: gigabytes / 2)
    Interval(low=0.5, mid=1.0, high=2.0)
    """

    low: float
    mid: float
    high: float

    def __post_init__(self) -> None:
        for name in ("low", "mid", "high"):
            check_number(name, getattr(self, name), finite=False)
        if not self.low <= self.mid <= self.high:
            raise InvalidInput(
                f"an interval is low, mid, high, each at least the one before; got {self.low}, {self.mid}, {self.high}"
            )

    @classmethod
    def of(cls, value: Interval | float) -> Interval:
        """Return an interval as it is, and a number as one of no width.

        >>> Interval.of(7)
        Interval(low=7, mid=7, high=7)
        """
        return value if isinstance(value, Interval) else cls(value, value, value)

    @property
    def exact(self) -> bool:
        """Whether it has no width."""
        return self.low == self.high

    def map(self, function: Callable[[float], float]) -> Interval:
        """Return ``function`` of each; it must never fall where the value rises."""
        return Interval(function(self.low), function(self.mid), function(self.high))

    def __mul__(self, other: Interval) -> Interval:
        """Return the product of two that are 0 or more."""
        return Interval(self.low * other.low, self.mid * other.mid, self.high * other.high)


def check_number(name: str, value: object, *, finite: bool = True) -> None:
    """Refuse what cannot be calculated with.

    Raises:
        InvalidInput: no number, NaN, beyond a float, or infinite although ``finite``.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InvalidInput(f"{name} must be a number, got {type(value).__name__}: {str(value)[:40]}")
    try:
        usable = math.isfinite(value) if finite else not math.isnan(value)
    except OverflowError:  # an int beyond what a float holds
        usable = False
        if finite:
            raise InvalidInput(f"{name} is too large to calculate with") from None
    if not usable:
        raise InvalidInput(f"{name} must be {'finite' if finite else 'a number'}, got {str(value)[:40]}")


ZERO: Final = Interval(0.0, 0.0, 0.0)
