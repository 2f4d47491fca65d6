"""Interval arithmetic for estimates (low, mid, high), and the quantiles used to compute bounds."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate, pairwise
from statistics import NormalDist
from typing import Final

from schemaless.errors import InvalidInput


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate with bounds. The name of the field that holds it gives the unit.

    Attributes:
        low: lower bound; may be infinite, such as the number of days until a disk is full when nothing is written.
        mid: best single estimate, between ``low`` and ``high``; not necessarily their mean.
        high: upper bound.

    >>> Interval(1, 2, 4).map(lambda gigabytes: gigabytes / 2)
    Interval(low=0.5, mid=1.0, high=2.0)
    """

    low: float
    mid: float
    high: float

    @classmethod
    def of(cls, value: Interval | float) -> Interval:
        """Return an interval unchanged, and a number as an interval of zero width.

        >>> Interval.of(7)
        Interval(low=7, mid=7, high=7)
        """
        return value if isinstance(value, Interval) else cls(value, value, value)

    @classmethod
    def given(cls, low: float, mid: float, high: float) -> Interval:
        """Return an interval from user input.

        Raises:
            InvalidInput: a value is not a number, or the values are not in ascending order.
        """
        for name, value in (("low", low), ("mid", mid), ("high", high)):
            check_number(name, value, finite=False)
        if not low <= mid <= high:
            raise InvalidInput(f"an interval needs low <= mid <= high, got {low}, {mid}, {high}")
        return cls(low, mid, high)

    def __iter__(self) -> Iterator[float]:
        """Yield low, mid and high."""
        return iter((self.low, self.mid, self.high))

    @property
    def exact(self) -> bool:
        """True if the interval has zero width, so the value was counted or given, not estimated."""
        return self.low == self.high

    def map(self, function: Callable[[float], float]) -> Interval:
        """Apply a monotonically increasing function to all three values."""
        return Interval(*map(function, self))

    def times(self, factor: float) -> Interval:
        """Scale by a factor of 0 or more."""
        return Interval(self.low * factor, self.mid * factor, self.high * factor)

    def __mul__(self, other: Interval) -> Interval:
        """Multiply two intervals whose values are 0 or more."""
        return Interval(self.low * other.low, self.mid * other.mid, self.high * other.high)


def adding_up(amounts: Iterable[float], digits: int = 0) -> list[float]:
    """Round amounts so that they add up to their rounded total, by rounding the running total.

    >>> adding_up([0.5, 0.4, 0.4, 0.4])
    [0.0, 1.0, 0.0, 1.0]
    """
    rounded = [0.0, *(float(round(total, digits)) for total in accumulate(amounts))]
    return [round(after - before, digits) for before, after in pairwise(rounded)]


def added(estimates: Iterable[Interval]) -> Interval:
    """Return the sum of independent estimates, whose errors add up in quadrature.

    >>> added([Interval(90, 100, 110), Interval(40, 50, 60), Interval.of(7)])
    Interval(low=142.85786437626905, mid=157.0, high=171.14213562373095)
    """
    mid = variance_low = variance_high = 0.0
    for estimate in estimates:
        mid += estimate.mid
        variance_low += (estimate.mid - estimate.low) ** 2
        variance_high += (estimate.high - estimate.mid) ** 2
    return Interval(mid - variance_low**0.5, mid, mid + variance_high**0.5)


def summed(estimates: Iterable[Interval]) -> Interval:
    """Return the sum of fully correlated estimates, whose errors add up linearly.

    >>> summed([Interval(90, 100, 110), Interval(40, 50, 60)])
    Interval(low=130.0, mid=150.0, high=170.0)
    """
    parts = list(estimates)
    return Interval(*(float(sum(ends)) for ends in zip(*parts, strict=True))) if parts else ZERO


ZERO: Final = Interval(0.0, 0.0, 0.0)

LEVEL: Final = 0.95
"""Default confidence level of intervals."""


def check_number(name: str, value: object, *, finite: bool = True) -> None:
    """Check that a value is a usable number.

    Raises:
        InvalidInput: it is not a number, is NaN, does not fit into a float, or is infinite although ``finite`` is set.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InvalidInput(f"{name} must be a number, got {type(value).__name__}: {str(value)[:40]}")
    try:
        usable = math.isfinite(value) if finite else not math.isnan(value)
    except OverflowError:  # the int does not fit a float
        usable = False
        if finite:
            raise InvalidInput(f"{name} is too large to calculate with") from None
    if not usable:
        raise InvalidInput(f"{name} must be {'finite' if finite else 'a number'}, got {str(value)[:40]}")


def student_t(probability: float, degrees: float) -> float:
    """Return a quantile of Student's t distribution, using its series expansion for many degrees of freedom.

    Exact for 1 and 2 degrees of freedom; within 1 % for 3 or more, and within 0.01 % for 10 or more.

    >>> [round(student_t(0.975, degrees), 3) for degrees in (1, 2, 10, 132)]
    [12.706, 4.303, 2.228, 1.978]

    Source: Abramowitz and Stegun, 26.7.5.
    """
    if degrees == 1:
        return math.tan(math.pi * (probability - 0.5))
    if degrees == 2:
        return (2 * probability - 1) / math.sqrt(2 * probability * (1 - probability))
    z = NormalDist().inv_cdf(probability)
    terms = (
        z,
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return math.fsum(term / degrees**power for power, term in enumerate(terms))


def poisson_bounds(observed: float, level: float = LEVEL) -> tuple[float, float]:
    """Return confidence bounds of a Poisson mean, given the observed count.

    >>> [round(bound, 1) for bound in poisson_bounds(0)], [round(bound, 1) for bound in poisson_bounds(10)]
    ([0.0, 3.7], [4.8, 18.4])

    Source: Byar's approximation of the exact bounds, within 1 %.
    """
    z = NormalDist().inv_cdf((1 + level) / 2)
    next_count = observed + 1
    high = next_count * (1 - 1 / (9 * next_count) + z / (3 * math.sqrt(next_count))) ** 3
    low = observed * max(0.0, 1 - 1 / (9 * observed) - z / (3 * math.sqrt(observed))) ** 3 if observed else 0.0
    return low, high


def counted(number: float, noun: str, plural: str | None = None) -> str:
    """Return a number with its noun, such as ``1 shard`` or ``2 shards``; ``plural`` gives an irregular plural."""
    return f"{number_text(number)} {noun if number == 1 else plural or f'{noun}s'}"


def number_text(value: float) -> str:
    """Format a number that a user gave, with all its digits and thousands grouped.

    >>> number_text(1_250_000.0), number_text(0.023), number_text(1_250.5)
    ('1,250,000', '0.023', '1,250.5')
    """
    return f"{int(value) if value == int(value) else value:,}"


DECIMAL_UNITS: Final = (1000.0, ("B", "kB", "MB", "GB", "TB", "PB"))
BINARY_UNITS: Final = (1024.0, ("B", "KiB", "MiB", "GiB", "TiB", "PiB"))
"""Systems of units of sizes: the factor between neighbours, and their names."""

_system = DECIMAL_UNITS


def use_binary_units(binary: bool) -> None:
    """Set whether sizes are shown in powers of 1,024 from now on, instead of powers of 1,000."""
    global _system
    _system = BINARY_UNITS if binary else DECIMAL_UNITS


def size_units() -> list[tuple[float, str]]:
    """Return the units of sizes with their number of bytes, smallest first."""
    base, names = _system
    return [(base**power, name) for power, name in enumerate(names)]


def units_text() -> str:
    """Return a sentence that explains the units of sizes."""
    (_, _), (small, kilo), (_, mega), *_ = size_units()
    return f"1 {kilo} is {small:,.0f} bytes, 1 {mega} is {small:,.0f} {kilo}, and so on."


def bytes_text(count: float) -> str:
    """Format a number of bytes with three significant digits.

    >>> bytes_text(999), bytes_text(20_480), bytes_text(1.5e9), bytes_text(614.4e9), bytes_text(999.9e6)
    ('999 B', '20.5 kB', '1.50 GB', '614 GB', '1.00 GB')
    """
    base, names = _system
    size, power = float(count), 0
    while abs(size) >= base - 0.5 and power < len(names) - 1:
        size, power = size / base, power + 1
    digits = 0 if power == 0 or abs(size) >= 99.95 else 1 if abs(size) >= 9.995 else 2
    return f"{size:,.{digits}f} {names[power]}"


def shards_text(shards: Iterable[int]) -> str:
    """Return ascending shard numbers as a list that ``--shards`` accepts, such as ``0-3,8``."""
    parts: list[list[int]] = []
    for shard in shards:
        if parts and parts[-1][-1] == shard - 1:
            parts[-1][1:] = [shard]
        else:
            parts.append([shard])
    return ",".join("-".join(map(str, part)) for part in parts)
