"""Parsers for sizes, counts, shares and ranges on the command line."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any, Final

import click

from schemaless.base.numbers import BINARY_UNITS, DECIMAL_UNITS, Interval
from schemaless.errors import InvalidInput

_MOST_ID: Final = 2**63 - 1
_MOST_DIGITS: Final = 20


class CatalogId(click.types.IntParamType):
    """The number of a job, a dictionary or an index, from 1."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the number."""
        number = int(super().convert(value, param, ctx))
        if not 1 <= number <= _MOST_ID:
            self.fail(f"{value!r} is not a number of at least 1", param, ctx)
        return number


class FiniteRange(click.FloatRange):
    """``click.FloatRange`` that refuses infinity, and NaN, which passes every range check."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the number."""
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a finite number", param, ctx)
        return number


_UNITS: Final = {
    name.lower(): base**power for base, names in (DECIMAL_UNITS, BINARY_UNITS) for power, name in enumerate(names)
}
_SIZE = re.compile(
    r"([0-9]{1,3}(?:[,_][0-9]{3})+(?:\.[0-9]+)?|[0-9]+(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?|\.[0-9]+)\s*([a-z]*)\Z",
    re.IGNORECASE,
)
_MULTIPLES: Final = {"": 1, "k": 10**3, "m": 10**6}


def size_of(value: str) -> float:
    """Parse a size into bytes: ``2822``, ``20kB`` (1,000s), ``512GiB`` (1,024s)."""
    number, unit = _split(value)
    if number is None:
        raise click.BadParameter(f"{value!r} is not a size; write, for example, 2822, 20kB, 1.5TB or 512GiB")
    if unit in ("k", "m", "g", "t", "p"):
        thousand = unit if unit == "k" else unit.upper()
        raise click.BadParameter(
            f"{value!r} can be read two ways; write {thousand}B for 1,000s or {unit.upper()}iB for 1,024s"
        )
    if unit and unit not in _UNITS:
        raise click.BadParameter(f"{value!r}: the unit must be B, kB, MB, GB, TB, PB, KiB, MiB, GiB, TiB or PiB")
    return _whole(value, number * _UNITS[unit or "b"])


def count_of(value: str) -> float:
    """Return a number of documents: ``1000000``, ``1,000,000``, ``1M``."""
    number, unit = _split(value)
    if number is None or unit not in _MULTIPLES:
        raise click.BadParameter(
            f"{value!r} is not a number of 0 or more; write, for example, 2500000, 2,500,000 or 2.5M"
        )
    return _whole(value, number * _MULTIPLES[unit])


def share_of(value: str) -> float:
    """Return a part of the whole: ``40%`` or ``0.4``."""
    share = fraction_of(value)
    if math.isnan(share):
        raise click.BadParameter(f"{value!r} is not a share; write, for example, 40% or 0.4")
    if not 0 <= share < 1:
        raise click.BadParameter(
            f"{value!r} is not a share of at least 0 % and below 100 %; write, for example, 40% or 0.4"
        )
    return share


def fraction_of(value: str) -> float:
    """Return a percentage or a number as a fraction; NaN if it is neither."""
    text = value.strip()
    try:
        return float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        return math.nan


def _split(value: str) -> tuple[float | None, str]:
    matched = _SIZE.match(value.strip())
    if matched is None:
        return None, ""
    return float(matched[1].replace(",", "").replace("_", "")), matched[2].lower()


def _whole(text: str, number: float) -> float:
    if not math.isfinite(number):
        raise click.BadParameter(f"{text!r} is too large to calculate with")
    return int(number) if number == int(number) else number


def growth_of(value: str) -> float:
    """Return a rate of growth: ``50%`` or ``0.5`` for half as many again, ``-10%`` for a tenth fewer."""
    share = fraction_of(value)
    if not math.isfinite(share) or share <= -1:
        raise click.BadParameter(f"{value!r} is not a growth rate above -100 %; write, for example, 50%, 0.5 or -10%")
    return share


def ratio_of(value: str) -> float:
    """Return a ratio above 0: ``14%`` or ``0.14``."""
    ratio = growth_of(value)
    if ratio <= 0:
        raise click.BadParameter(f"{value!r} is not a ratio above 0; write, for example, 14% or 0.14")
    return ratio


def range_of(read: Callable[[str], float]) -> Callable[[str], Interval]:
    """Return a parser of ``MID``, ``LOW..HIGH`` (``MID`` is their mean) or ``LOW..MID..HIGH``."""

    def interval(value: str) -> Interval:
        ends = [read(part) for part in value.split("..")]
        if len(ends) == 2:
            ends.insert(1, (ends[0] + ends[1]) / 2)
        if len(ends) not in (1, 3):
            raise click.BadParameter(f"expected VALUE, LOW..HIGH or LOW..MID..HIGH, got {value!r}")
        try:
            return Interval.of(ends[0]) if len(ends) == 1 else Interval.given(*ends)
        except InvalidInput:
            raise click.BadParameter(f"{value!r} is not in ascending order") from None

    return interval


def weekdays_of(value: str) -> tuple[float, ...]:
    """Return seven numbers, Monday first: ``1,1,1,1,1.3,0.8,0.6``."""
    try:
        return tuple(float(part) for part in value.split(","))
    except ValueError:
        raise click.BadParameter(f"{value!r} is not seven numbers, Monday first, such as 1,1,1,1,1.3,0.8,0.6") from None


def shards_of(text: str | None, shard_count: int) -> list[int]:
    """Parse a list of shards such as ``0-3,8``; None means all.

    Raises:
        InvalidInput: the list is malformed, or names a shard that does not exist.
    """
    if text is None:
        return list(range(shard_count))
    chosen: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        # Python refuses to convert numbers of thousands of digits.
        if not first.isdecimal() or (dash and not last.isdecimal()) or max(len(first), len(last)) > _MOST_DIGITS:
            raise InvalidInput(f"--shards takes numbers and ranges such as 0-3,8, got {text!r}")
        numbers = range(int(first), int(last if dash else first) + 1)
        if not numbers or numbers[-1] >= shard_count:
            raise InvalidInput(
                f"--shards {text!r}: {part.strip()!r} is not a shard or an ascending range from 0 to {shard_count - 1}"
            )
        chosen.update(numbers)
    return sorted(chosen)
