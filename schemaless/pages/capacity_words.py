"""Answers of a capacity report in words, and what its tables are."""

from __future__ import annotations

import datetime
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from schemaless.numbers import Interval
from schemaless.terminal.output import bytes_text, estimate_text

if TYPE_CHECKING:
    from schemaless.capacity.whatif import DiskOutlook, Scenario


@dataclass(frozen=True, slots=True)
class Table:
    """A table of the report: the first ``text_columns`` are words, the others figures, but for a ``last_text``."""

    title: str
    columns: list[str]
    rows: list[list[str]]
    text_columns: int = 1
    note: str = ""
    last_text: bool = False


@dataclass(frozen=True, slots=True)
class Answer:
    """What a scenario comes to: a few words, and a sentence with the interval and the date."""

    days: str
    detail: str


def answer(scenario: Scenario) -> Answer:
    """Return the answer of a scenario, which is that of the disk that is full first."""
    first = scenario.first
    if first is None:
        reasons = sorted({outlook.why or "" for outlook in scenario.unknown}) or ["there is no cluster with cells"]
        why = "; ".join(reasons)
        return Answer("not known", f"{why[:1].upper()}{why[1:]}.")
    words = interval_text(first)
    ends = first.days is not None and math.isfinite(first.days.mid)
    where = f" {first.disk} is full first." if len(scenario.disks) > 1 and ends else ""
    unknown = [outlook.disk for outlook in scenario.unknown]
    apart = f" Nothing is known of {', '.join(unknown)}." if unknown else ""
    return Answer(days_text(first), f"{words}{where}{apart}{_constant_text(first)}")


def _constant_text(outlook: DiskOutlook) -> str:
    """Return what the constant rate of the last weeks says, as a sentence behind others."""
    if outlook.at_rate is None or outlook.rate_days is None or outlook.at_rate.mid == 0:
        return ""
    mid, opened, ends = at_rate_text(outlook.at_rate).partition(" (")
    sentence = mid if mid == "never" else f"{mid} days{opened}{ends}"
    return f" At the constant rate of the last {outlook.rate_days} days: {sentence}."


def at_rate_text(days: Interval | None) -> str:
    """Return days at a constant rate with their interval, in whole days."""
    if days is None:
        return ""
    return estimate_text(days, lambda value: "never" if math.isinf(value) else f"{math.floor(value):,}")


def days_text(outlook: DiskOutlook) -> str:
    """Return an outlook's days in a word or two."""
    if outlook.days is None:
        return "not known"
    return until_text(outlook.days.mid, outlook.horizon_days or 0)


def interval_text(outlook: DiskOutlook) -> str:
    """Return the date, and both intervals, as sentences."""
    days, first = outlook.days, outlook.first_day
    if days is None or first is None:
        return f"{outlook.why}."
    horizon = outlook.horizon_days or 0
    if days.high_95 == 0:
        return "Its disk does not hold what is there at the start."
    if _all_beyond(outlook):
        return f"No simulated future has it full within {horizon:,} days, which is as far as the history lets one look."
    parts = []
    if math.isfinite(days.mid):
        parts.append(f"On {date_text(first, days.mid)}.")
    for percent, low, high in ((80, days.low_80, days.high_80), (95, days.low_95, days.high_95)):
        if math.isinf(low):
            parts.append(f"{percent} %: more than {horizon:,} days.")
        elif math.isinf(high):
            parts.append(f"{percent} %: {whole(low)} days or more.")
        else:
            parts.append(f"{percent} %: {whole(low)} to {whole(high)} days.")
    return " ".join(parts)


def date_text(first_day: datetime.date, days: float) -> str:
    """Return the date in which so many days end."""
    return (first_day + datetime.timedelta(math.floor(days))).isoformat()


def per_day_text(history: Sequence[tuple[datetime.date, float]]) -> str:
    """Return what a day brings now, as the last four weeks did, with its interval; "?" of less than two weeks."""
    from schemaless.capacity.steps import rate

    steady = rate(history)
    return "?" if steady is None else estimate_text(steady.per_day, bytes_text)


def seconds_text(seconds: float) -> str:
    """Return CPU time for people."""
    if seconds >= 7200:
        return f"{seconds / 3600:,.1f} h"
    if seconds >= 120:
        return f"{seconds / 60:,.1f} min"
    return f"{seconds:,.1f} s" if seconds >= 0.1 else f"{seconds * 1000:,.2f} ms"


def share_text(share: float) -> str:
    """Return a share of growth as percent; beyond all measure it is said to be so."""
    return f"{share:+.0%}" if share < 100 else "over +10,000%"


def _all_beyond(outlook: DiskOutlook) -> bool:
    return outlook.days is not None and math.isinf(outlook.days.low_95)


def whole(days: float) -> str:
    """Return whole days, rounded down."""
    return f"{math.floor(days):,}"


def until_text(days: float, horizon: int) -> str:
    """Return days, or that they are beyond the horizon, in a word or two."""
    if math.isinf(days):
        return f"over {horizon:,} days"
    if days == 0:
        return "no room"
    whole = math.floor(days)
    return "less than a day" if whole == 0 else "1 day" if whole == 1 else f"{whole:,} days"
