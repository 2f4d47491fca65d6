"""Scenarios side by side, the monthly budget, and several datastores, as tables of a capacity report."""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable, Sequence
from typing import Final

from schemaless.planning.capacity.comparison import Comparison
from schemaless.planning.capacity.planning import Month
from schemaless.planning.capacity.report import CapacityReport, datastore_totals
from schemaless.planning.capacity.whatif import DiskOutlook
from schemaless.ui.pages.capacity_planning import band_text, decimal_text, price_text
from schemaless.ui.pages.capacity_words import (
    Table,
    at_rate_text,
    date_text,
    days_text,
    range_text,
    until_text,
)
from schemaless.ui.terminal.output import bytes_text, estimate_text, size_text

SIDE_BY_SIDE: Final = "Scenarios side by side"
BY_DISK: Final = "Days until full, by disk"
BUDGET: Final = "Monthly budget"
DATASTORES: Final = "Datastores"

_WEEK: Final = datetime.timedelta(7)


def comparison_tables(report: CapacityReport) -> list[Table]:
    """Return the tables of datastores, scenarios and budget; one with nothing to compare has no rows."""
    return [_datastores(report), _side_by_side(report), _by_disk(report), _budget(report)]


def _datastores(report: CapacityReport) -> Table:
    totals = datastore_totals(report)
    rows = [
        [
            "all" if total.name is None else total.name,
            estimate_text(total.cells),
            estimate_text(total.body_bytes, bytes_text),
            size_text(total.file_bytes, "?"),
            size_text(total.copies_bytes, "?"),
            bytes_text(total.bytes_per_day),
            "unknown" if total.first is None else days_text(total.first),
            "" if total.first is None or not _finite(total.first) else total.first.disk,
        ]
        for total in totals
    ]
    columns = ["datastore", "cells", "body bytes", "files", "all copies", "a day now", "first disk full in", "disk"]
    note = "Files: those of one copy. A day now: growth of the files of one copy, averaged over the last few weeks."
    return Table(DATASTORES, columns, rows if len(totals) > 1 else [], 1, note)


def _side_by_side(report: CapacityReport) -> Table:
    compared = report.comparisons
    if not report.compares:
        return Table(SIDE_BY_SIDE, [], [])

    def row(name: str, text: Callable[[Comparison], str]) -> list[str]:
        return [name, *(text(comparison) for comparison in compared)]

    rows = [
        row("growth", lambda each: each.change.changes.get("growth", "x1")),
        row("codec", lambda each: each.change.codec or "as now"),
        row("storage engine", lambda each: each.change.changes.get("engine", "as now")),
        row("rebuilt", lambda each: "yes" if each.change.rebuilds else "no"),
        row("copies", lambda each: str(each.change.copies or "as now")),
        row("price per TB", lambda each: "" if each.price_per_tb is None else f"{each.price_per_tb:,g}"),
        row("lead time", lambda each: "" if each.full is None else _lead_text(each.full.lead_days)),
    ]
    rows = [cells for cells in rows if len(set(cells[1:])) > 1]  # What all scenarios have in common is not a change.
    rows += [
        row("first disk full in", _full_in),
        row("full on", lambda each: _of_days(each, lambda first: _full_on(first))),
        row("80 %", lambda each: _of_days(each, lambda first: _range(first, 80))),
        row("95 %", lambda each: _of_days(each, lambda first: _range(first, 95))),
        row("at the constant rate", lambda each: _of_days(each, lambda first: at_rate_text(first.at_rate))),
        row("full first", lambda each: _of_days(each, lambda first: first.disk if _finite(first) else "")),
    ]
    if any(each.full is not None and each.full.lead_days is not None for each in compared):
        rows.append(row("order by", _order_by))
    rows.append(row("stored at the start", _stored))
    days = next((each.cost.days for each in compared if each.cost is not None), None)
    if days is not None:
        rows.append(row(f"growth of {days:,} days", _growth))
    if days is not None and any(each.price_per_tb is not None for each in compared):
        rows += [
            row("cost at the start", lambda each: _price(each.start_price)),
            row(f"cost of {days:,} days' growth", _growth_price),
            row("cost in total", lambda each: _price(each.year_price)),
        ]
    note = (
        "Days with 80 % and 95 % intervals, as in the other tables. Stored at the start and growth count all "
        "copies, in the units that disks are sold in (powers of 1,000). "
        "Cost at the start: the price of the space that additional copies need at once."
    )
    return Table(SIDE_BY_SIDE, ["figure", *(each.change.name for each in compared)], rows, 1, note)


def _by_disk(report: CapacityReport) -> Table:
    compared = report.comparisons
    disks = [outlook.disk for outlook in report.now.worst_first]
    if not report.compares or len(disks) < 2:
        return Table(BY_DISK, [], [])
    outlooks = [{outlook.disk: outlook for outlook in each.scenario.disks} for each in compared]
    rows = [[disk, *(_days_and_range(by_disk[disk]) for by_disk in outlooks)] for disk in disks]
    return Table(BY_DISK, ["disk", *(each.change.name for each in compared)], rows, 1, "In brackets: 80 % intervals.")


def _budget(report: CapacityReport) -> Table:
    compared = [each for each in report.comparisons if each.year_price is not None and each.cost is not None]
    if not compared:
        return Table(BUDGET, [], [])
    months: Sequence[Month] = compared[0].cost.months if compared[0].cost is not None else ()
    names = ["at the start", *(month_text(month) for month in months), "total"]
    columns = [_budget_column(each) for each in compared]
    rows = [[name, *(column[place] for column in columns)] for place, name in enumerate(names)]
    note = (
        "Price of the disk space that each month's growth takes, all copies counted; at the start: price of the "
        "space that additional copies "
        "take at once. Months add up to the total. The free space of today's disks and space that re-encoding frees "
        "are not deducted."
    )
    return Table(BUDGET, ["month", *(each.change.name for each in compared)], rows, 1, note)


def _budget_column(comparison: Comparison) -> list[str]:
    total = comparison.year_price or 0.0
    digits = 2 if total < 1000 else 0
    return [f"{price:,.{digits}f}" for price in (*comparison.budget(digits), total)]


def month_text(month: Month) -> str:
    """Return the name of a month, with the number of days if only part of it falls in the period."""
    following = (month.first_day.replace(day=28) + _WEEK).replace(day=1)
    whole = month.first_day.day == 1 and month.days == (following - month.first_day).days
    return f"{month.first_day:%Y-%m}" + ("" if whole else f" ({month.days} {'day' if month.days == 1 else 'days'})")


def _finite(outlook: DiskOutlook) -> bool:
    return outlook.days is not None and math.isfinite(outlook.days.mid)


def _of_days(comparison: Comparison, text: Callable[[DiskOutlook], str]) -> str:
    first = comparison.scenario.first
    return "" if first is None else text(first)


def _full_in(comparison: Comparison) -> str:
    first = comparison.scenario.first
    return "unknown" if first is None else days_text(first)


def _full_on(first: DiskOutlook) -> str:
    assert first.days is not None
    return date_text(first.first_day, first.days.mid) if first.first_day is not None and _finite(first) else ""


def _range(first: DiskOutlook, percent: int) -> str:
    days = first.days
    assert days is not None
    low, high = (days.low_80, days.high_80) if percent == 80 else (days.low_95, days.high_95)
    return range_text(low, high, first.horizon_days or 0)


def _days_and_range(outlook: DiskOutlook) -> str:
    if outlook.days is None:
        return "unknown"
    days, interval = until_text(outlook.days.mid, outlook.horizon_days or 0), _range(outlook, 80)
    return f"{days} ({interval})" if interval and not math.isinf(outlook.days.low_80) else days


def _order_by(comparison: Comparison) -> str:
    if comparison.full is None or comparison.full.lead_days is None or comparison.full.days is None:
        return ""
    day = comparison.full.order_on
    return "not yet" if day is None else day.isoformat()


def _lead_text(days: float | None) -> str:
    return "" if days is None else f"{days:,g} days"


def _stored(comparison: Comparison) -> str:
    return "?" if comparison.stored_bytes is None else estimate_text(comparison.stored_bytes, decimal_text)


def _growth(comparison: Comparison) -> str:
    return "?" if comparison.cost is None else band_text(comparison.cost.size_bytes, decimal_text)


def _growth_price(comparison: Comparison) -> str:
    cost = comparison.cost
    return "" if cost is None or cost.price is None else band_text(cost.price, price_text)


def _price(price: float | None) -> str:
    return "" if price is None else price_text(price)
