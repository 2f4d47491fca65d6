"""Answers of a capacity report in words, and the ``Table`` type of its tables."""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from schemaless.base.numbers import Interval, bytes_text, counted, number_text
from schemaless.planning.capacity.forecast import HISTORY_TIMES, MOST_DAYS, MOST_TIMES, Band, is_too_wide, whole_days
from schemaless.planning.capacity.options import FULL
from schemaless.planning.capacity.planning import ColdTier, Level, Saving
from schemaless.planning.capacity.report import CapacityReport
from schemaless.planning.capacity.steps import rate
from schemaless.planning.capacity.whatif import DiskOutlook, Scenario
from schemaless.ui.terminal.output import day_counts_text, days_long_text, estimate_text

TOO_WIDE: Final = "cannot be forecast yet"
"""Shown instead of an interval that would be too wide to be of use."""


@dataclass(frozen=True, slots=True)
class Table:
    """A table of the report.

    Attributes:
        title: Heading.
        columns: Headings of the columns.
        rows: Cells of each row.
        text_columns: Number of leading columns that contain text; the others contain figures.
        note: Text below the table.
        last_text: True if the last column contains text too.
    """

    title: str
    columns: list[str]
    rows: list[list[str]]
    text_columns: int = 1
    note: str = ""
    last_text: bool = False

    @classmethod
    def of(
        cls,
        title: str,
        rows: Sequence[dict[str, str]],
        text_columns: int = 1,
        note: str = "",
        *,
        last_text: bool = False,
    ) -> Table:
        """Return a table of cells by heading; the longest row has all headings, and missing cells are empty."""
        longest: dict[str, str] = max(rows, key=len, default={})
        cells = [[row.get(column, "") for column in longest] for row in rows]
        return cls(title, list(longest), cells, text_columns, note, last_text)


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer in a few words, with sentences that give the date and the intervals."""

    days: str
    detail: str


def saving_text(report: CapacityReport) -> str:
    """Return what re-encoding saves, as a sentence; 80 % intervals are in brackets."""
    saving = report.saving
    if saving is None:
        if report.choice is not None and report.choice.chosen is None and report.codec is None:
            return f"Re-encoding is not recommended: {report.choice.reason}."
        if report.codec is None:
            return "What re-encoding would save is unknown: no codec could be tried."
        return f"Re-encoding saves nothing: all cells are in {report.codec} already."
    return f"Re-encoding to {report.codec} {saved_text(saving)}."


def saved_text(saving: Saving) -> str:
    """Return the days, bytes and money that a change saves, such as "gains 73 days (61 to 90), ..."."""
    parts = []
    if saving.days is not None:
        days, verb = saving.days, "gains" if saving.days.mid >= 0 else "costs"
        if math.isinf(days.mid):
            parts.append(f"gains at least {counted(saving.least_days, 'day')}")
        elif math.isinf(days.high_80):
            parts.append(f"gains {counted(int(days.mid), 'day')} ({days.low_80:,.0f} or more)")
        else:
            ends = Interval(days.low_80, days.mid, days.high_80)
            parts.append(_changed(verb, ends, lambda count: counted(round(count), "day")))
    if saving.freed_bytes is not None and round(saving.freed_bytes.mid):
        verb = "frees" if saving.freed_bytes.mid >= 0 else "first takes"
        parts.append(_changed(verb, saving.freed_bytes, bytes_text))
    share, price, growth = saving.share, saving.price_per_month, saving.bytes_per_month
    if share is not None and growth is not None:
        verb = "saves" if share.mid >= 0 else "adds"
        amount = _changed(verb, growth, bytes_text, " a month")
        if price is not None:
            amount = _changed(verb, price, price_text, " a month")
        parts.append(f"{amount}, {abs(share.mid) * 100:.0f} % of the growth")
    return " and ".join(filter(None, [", ".join(parts[:-1]), *parts[-1:]])) or "has an unknown effect"


def _changed(verb: str, amount: Interval, text: Callable[[float], str], unit: str = "") -> str:
    size = amount if amount.mid >= 0 else Interval(-amount.high, -amount.mid, -amount.low)
    if is_too_wide(size.low, size.high):
        return f"{verb} an amount that cannot be forecast yet"
    mid, bracket, ends = estimate_text(size, text).partition(" (")
    return f"{verb} {mid}{unit}{bracket}{ends}"


def answer(scenario: Scenario) -> Answer:
    """Return when the first disk of a scenario will be full."""
    first = scenario.first
    if first is None:
        reasons = sorted({outlook.why or "" for outlook in scenario.unknown}) or ["no cluster holds any cells"]
        why = "; ".join(reasons)
        return Answer("unknown", f"{why[:1].upper()}{why[1:]}.")
    finite = first.days is not None and math.isfinite(first.days.mid)
    where = f" The disk of {first.disk} fills up first." if len(scenario.disks) > 1 and finite else ""
    unknown = [outlook.disk for outlook in scenario.unknown]
    missing = f" Unknown for {', '.join(unknown)}." if unknown else ""
    return Answer(days_text(first), f"{interval_text(first)}{where}{missing}{_constant_text(first)}")


def _constant_text(outlook: DiskOutlook) -> str:
    """Return a sentence about the constant rate over recent weeks, with a leading space."""
    if outlook.at_rate is None or outlook.rate_days is None or outlook.at_rate.mid == 0:
        return ""
    text = TOO_WIDE if _is_rate_vague(outlook.at_rate) else days_long_text(outlook.at_rate)
    return f" At the constant rate of the last {outlook.rate_days} days: {text}."


def at_rate_text(days: Interval | None) -> str:
    """Return the days until a disk is full at a constant rate, rounded down, with their interval."""
    if days is None:
        return ""
    return TOO_WIDE if _is_rate_vague(days) else day_counts_text(days)


def _is_rate_vague(days: Interval) -> bool:
    return math.isfinite(days.high) and is_too_wide(max(1.0, days.low), days.high)


def days_text(outlook: DiskOutlook) -> str:
    """Return the days until a disk is full, in a few words."""
    if outlook.days is None:
        return "unknown"
    return until_text(outlook.days.mid, outlook.horizon_days or 0)


def interval_text(outlook: DiskOutlook) -> str:
    """Return the date and both intervals as sentences."""
    days, first = outlook.days, outlook.first_day
    if days is None or first is None:
        return f"{outlook.why}."
    horizon = outlook.horizon_days or 0
    if days.high_95 == 0:
        fits = outlook.free_bytes is None or outlook.free_bytes.mid >= 0
        return "The disk is full today." if fits else "The data does not fit on the disk."
    if math.isinf(days.low_95):
        return (
            f"In at least 97.5 % of the simulated futures, the disk is not full within {counted(horizon, 'day')}. "
            f"{horizon_text(outlook)}"
        )
    date = f"Full on {date_text(first, days.mid)}. " if math.isfinite(days.mid) else ""
    intervals = []
    for percent, low, high in ((80, days.low_80, days.high_80), (95, days.low_95, days.high_95)):
        if math.isinf(low):
            interval = f"more than {counted(horizon, 'day')}"
        elif _is_vague(low, high, horizon):
            interval = TOO_WIDE
        elif math.isinf(high):
            interval = f"{counted(whole_days(low) or 0, 'day')} or more"
        else:
            interval = f"{whole(low)} to {counted(whole_days(high) or 0, 'day')}"
        intervals.append(f"{percent} % interval: {interval}")
    beyond = "" if math.isfinite(days.mid) else f" {horizon_text(outlook)}"
    return f"{date}{'; '.join(intervals)}.{beyond}"


def _is_vague(low_days: float, high_days: float, horizon: int) -> bool:
    return is_too_wide(max(1.0, low_days), min(high_days, horizon))


def between_text(low: float, high: float, text: Callable[[float], str]) -> str:
    """Format an interval of a figure, or say that it cannot be forecast."""
    return TOO_WIDE if is_too_wide(low, high) else f"{text(low)} to {text(high)}"


def horizon_text(outlook: DiskOutlook) -> str:
    """Return a sentence that explains the length of the forecast."""
    horizon, measured = outlook.horizon_days or 0, outlook.history_days or 0
    if horizon < min(HISTORY_TIMES * measured, MOST_DAYS):
        return (
            f"The forecast covers only {counted(horizon, 'day')}: daily growth varied too much; the 80 % interval of "
            f"more days would span a factor of over {MOST_TIMES:.0f}."
        )
    length = f"{HISTORY_TIMES} times the {counted(measured, 'day')} measured"
    limit = "" if horizon == HISTORY_TIMES * measured else f", at most {MOST_DAYS:,}"
    return f"The forecast covers only {counted(horizon, 'day')}: {length}{limit}."


def range_text(low: float, high: float, horizon: int) -> str:
    """Format an interval of days, rounded down; empty if there is no space left."""
    if math.isinf(low):
        return f"over {horizon:,}"
    if high == 0:
        return ""
    if _is_vague(low, high, horizon):
        return TOO_WIDE
    return f"{whole(low)} or more" if math.isinf(high) else f"{whole(low)} to {whole(high)}"


def date_text(first_day: datetime.date, days: float) -> str:
    """Return the date that is ``days`` after ``first_day``."""
    return (first_day + datetime.timedelta(math.floor(days))).isoformat()


def per_day_text(history: Sequence[tuple[datetime.date, float]]) -> str:
    """Return the average daily growth over the last four weeks with its interval; "?" without two weeks of data."""
    recent = rate(history)
    return "?" if recent is None else figure_text(recent.per_day)


def figure_text(figure: Interval, text: Callable[[float], str] = bytes_text) -> str:
    """Format a figure with its interval, or say that it cannot be forecast."""
    return TOO_WIDE if is_too_wide(figure.low, figure.high) else estimate_text(figure, text)


def seconds_text(seconds: float) -> str:
    """Format CPU time."""
    if seconds >= 7200:
        return f"{seconds / 3600:,.1f} h"
    if seconds >= 120:
        return f"{seconds / 60:,.1f} min"
    return f"{seconds:,.1f} s" if seconds >= 0.1 else f"{seconds * 1000:,.2f} ms"


def growth_text(share: float) -> str:
    """Format relative growth as a signed percentage, capped at +10,000 %."""
    return f"{share:+.0%}" if share < 100 else "over +10,000%"


def whole(days: float) -> str:
    """Format days, rounded down."""
    return f"{whole_days(days):,}"


def until_text(days: float, horizon: int) -> str:
    """Format the days until a disk is full in a few words; infinity means more than ``horizon``."""
    if math.isinf(days):
        return f"over {counted(horizon, 'day')}"
    if days == 0:
        return "no space left"
    return "less than a day" if days < 1 else counted(math.floor(days), "day")


def planning_lines(report: CapacityReport) -> list[str]:
    """Return sentences about the disk that fills up first, and about the cost of growth."""
    answers = [levels_text(report), order_answer(report), cost_answer(report)]
    lines = [
        answer if isinstance(answer, str) else f"{answer.days}: {answer.detail}"
        for answer in answers
        if answer is not None
    ]
    return [*lines, *(f"{name}: {answer.detail}" for name, answer in tier_answers(report).items())]


def levels_text(report: CapacityReport) -> str | None:
    """Return a sentence about when the disk that fills up first reaches each threshold."""
    levels = [level for level in report.planning.first() if level.share < FULL]
    if not levels:
        return None
    reached = [level for level in levels if level.days is not None and level.days.high_95 == 0]
    text = "; ".join(map(_reached_text, [*reached[-1:], *levels[len(reached) :]]))
    text = text[:1].upper() + text[1:]
    return f"{text}. In brackets: 80 % intervals." if any(level_range(level) for level in levels) else f"{text}."


def order_answer(report: CapacityReport) -> Answer | None:
    """Return the date by which to order disks; None without a lead time or a forecast."""
    full = next((level for level in report.planning.first() if level.share == FULL), None)
    if full is None or full.lead_days is None:
        return None
    day, today, lead = full.order_on, report.made_at.date(), counted(full.lead_days, "day")
    if day is None:
        return Answer(
            "Nothing to order yet",
            f"the disk does not fill up within {counted(full.horizon_days or 0, 'day')} in 9 of 10 cases.",
        )
    if day < today:
        late = (today - day).days
        return Answer(
            "Order now", f"with a lead time of {lead}, the order was due on {day}, {counted(late, 'day')} ago."
        )
    return Answer(f"Order by {day}", f"{lead} before the disk may be full (early end of the 80 % interval).")


def cost_answer(report: CapacityReport) -> Answer | None:
    """Return the cost of growth, now and after re-encoding; None if no price is known."""
    price = report.planning.options.price_per_tb
    costs = [(cost, cost.price) for cost in report.planning.costs if cost.price is not None]
    if price is None or not costs:
        return None
    now, *after = (
        f"{'' if cost.name == 'now' else f're-encoded to {cost.name}, '}{band_text(cost.size_bytes, bytes_text)} "
        f"cost {band_text(band, price_text)}"
        for cost, band in costs
    )
    sizes = "; ".join([now, *after])
    return Answer(
        f"Growth of {counted(costs[0][0].days, 'day')} costs {price_text(costs[0][1].mid)}",
        f"{sizes}. All copies are counted, at {number_text(price)} per TB of disk. In brackets: 80 % intervals.",
    )


def tier_answers(report: CapacityReport) -> dict[str, Answer]:
    """Return, for each compared scenario with tiering, how long the disks last, and what the cold store costs."""
    found = {}
    for each in report.comparisons:
        cold, first = each.cold, each.first
        if not each.change.tiers or cold is None or first is None or first.days is None:
            continue
        days = f"the first disk is full in {days_text(first)}"
        if math.isinf(first.days.mid):
            days = f"the disks do not fill within {counted(first.horizon_days or 0, 'day')}"
        if report.now.first is not None:
            days += f" (as now: {days_text(report.now.first)})"
        found[f"Scenario {each.change.name!r}"] = Answer(days_text(first), f"{days}; {cold_text(cold)}.")
    return found


def cold_text(cold: ColdTier) -> str:
    """Return the size, the growth and the price of a cold store as a clause."""
    price = cold.price_of_month
    shrinks = cold.bytes_per_month < 0
    rent = "" if price is None or shrinks else f", {price_text(price)} a month each"
    size, growth = estimate_text(cold.start_bytes, bytes_text), bytes_text(abs(cold.bytes_per_month))
    return f"the cold store begins with {size} and {'shrinks' if shrinks else 'grows'} by {growth} a month{rent}"


def verdict_text(report: CapacityReport) -> str | None:
    """Return the result of --fail-below as a sentence without a full stop; None if it was not given."""
    verdict = report.planning.verdict
    if verdict is None:
        return None
    if verdict.failed:
        return f"not all disks last {counted(verdict.asked_days, 'day')}: {'; '.join(verdict.reasons)}"
    return f"all disks last {counted(verdict.asked_days, 'day')} (early end of the 80 % interval)"


def level_name(level: Level) -> str:
    """Return the name of a level, such as "80 % full"."""
    return "full" if level.share == FULL else f"{level.share * 100:.4g} % full"


def on_text(level: Level) -> str:
    """Return the date on which a disk reaches a level."""
    assert level.days is not None
    if level.days.high_95 == 0:
        return "already"
    on = None if level.on is None else level.on["mid"]
    return "later" if on is None else on.isoformat()


def level_range(level: Level) -> str:
    """Return the 80 % interval of the date on which a disk reaches a level."""
    dates = level.on or {}
    low, high = dates.get("low_80"), dates.get("high_80")
    if level.days is not None and level.days.high_95 == 0:
        return ""
    if low is None:
        return f"not in {counted(level.horizon_days or 0, 'day')}"
    return f"{low} or later" if high is None else f"{low} to {high}"


def _reached_text(level: Level) -> str:
    assert level.days is not None
    if level.days.high_95 == 0:
        return f"already {level_name(level)}"
    if math.isinf(level.days.low_80):
        return f"{level_name(level)} not within {counted(level.horizon_days or 0, 'day')}"
    between = f"{level_name(level)} on {on_text(level)} ({level_range(level)})"
    return between if math.isfinite(level.days.mid) else f"{level_name(level)} on {level_range(level)}"


def price_text(price: float) -> str:
    """Format a price; without decimals if it is 1,000 or more, and ``under 0.01`` if only zeros would remain."""
    if 0 < price < 0.005:
        return "under 0.01"
    return f"{price:,.2f}" if price < 1000 else f"{price:,.0f}"


def band_text(band: Band, text: Callable[[float], str]) -> str:
    """Format a figure with its 80 % interval, or say that it cannot be forecast."""
    return figure_text(Interval(band.low_80, band.mid, band.high_80), text)
