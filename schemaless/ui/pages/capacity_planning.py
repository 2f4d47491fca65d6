"""Planning part of a capacity report as text and tables: fill levels, orders, costs, and the largest shards."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from schemaless.base.numbers import Interval, added
from schemaless.planning.capacity.forecast import Band, is_too_wide
from schemaless.planning.capacity.planning import FULL, Level
from schemaless.planning.capacity.report import CapacityReport
from schemaless.planning.capacity.skew import fullest
from schemaless.ui.pages.capacity_words import TOO_WIDE, Answer, Table, at_rate_text, until_text
from schemaless.ui.terminal.output import bytes_text, counted, estimate_text

FULLEST: Final = "Largest shards"
LEVELS: Final = "When disks fill up"
MANY_SHARDS: Final = 64
"""Number of shards above which the chart shows a distribution instead of single shards."""

_MOST_DISKS: Final = 10


def planning_lines(report: CapacityReport) -> list[str]:
    """Return sentences about the disk that fills up first, and about the cost of growth."""
    answers = [levels_text(report), order_answer(report), cost_answer(report)]
    return [
        answer if isinstance(answer, str) else f"{answer.days}: {answer.detail}"
        for answer in answers
        if answer is not None
    ]


def levels_text(report: CapacityReport) -> str | None:
    """Return a sentence about when the disk that fills up first reaches each threshold."""
    levels = [level for level in report.planning.first() if level.share < FULL]
    if not levels:
        return None
    text = "; ".join(f"{level_name(level)} {_dates_text(level)}" for level in levels)
    return f"{text}. In brackets: 80 % intervals." if any(_range_text(level) for level in levels) else f"{text}."


def order_answer(report: CapacityReport) -> Answer | None:
    """Return the date by which to order disks; None without a lead time or a forecast."""
    full = next((level for level in report.planning.first() if level.share == FULL), None)
    if full is None or full.lead_days is None:
        return None
    day, today, lead = full.order_on, report.made_at.date(), f"{full.lead_days:,g} days"
    if day is None:
        return Answer(
            "Nothing to order yet", f"the disk does not fill up within {full.horizon_days:,} days in 9 of 10 cases."
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
        f"{'' if cost.name == 'now' else f're-encoded to {cost.name}, '}{band_text(cost.size_bytes, decimal_text)} "
        f"cost {band_text(band, price_text)}"
        for cost, band in costs
    )
    sizes = "; ".join([now, *after])
    return Answer(
        f"Growth of {costs[0][0].days:,} days costs {price_text(costs[0][1].mid)}",
        f"{sizes}. All copies are counted, at {price:,g} per TB of disk. In brackets: 80 % intervals.",
    )


def verdict_text(report: CapacityReport) -> str | None:
    """Return the result of --fail-below as a sentence without a full stop; None if it was not given."""
    verdict = report.planning.verdict
    if verdict is None:
        return None
    if verdict.failed:
        return f"not all disks last {verdict.asked_days:,g} days: {'; '.join(verdict.reasons)}"
    return f"all disks last {verdict.asked_days:,g} days (early end of the 80 % interval)"


def level_name(level: Level) -> str:
    """Return the name of a level, such as "80 % full"."""
    return "full" if level.share == FULL else f"{level.share * 100:.4g} % full"


def levels_table(report: CapacityReport) -> Table:
    """Return a table of when each disk reaches each level, most urgent disk first."""
    planning = report.planning
    disks = list(dict.fromkeys(level.disk for level in planning.now))
    shown = disks[:_MOST_DISKS]
    orders = planning.options.lead_days is not None
    rows = []
    for disk in shown:
        for stored, levels in (("as now", planning.now), (f"{report.codec}", planning.after)):
            for level in levels:
                if level.disk == disk and level.days is not None:
                    row = [disk, stored, level_name(level), _on_text(level), _range_text(level)]
                    days = until_text(level.days.mid, level.horizon_days or 0) if level.days.mid else "0 days"
                    row += [days, at_rate_text(level.at_rate)]
                    rows.append([*row, _order_day_text(level)] if orders else row)
    columns = ["disk", "stored", "level", "on", "80 %", "days", "constant rate"]
    note = (
        "The disk that fills up first is listed first. Rows with a codec: after re-encoding and a rebuild. "
        "80 %: interval "
        "of the date. Constant rate: days if growth stays as it was in recent weeks, with a 95 % interval."
    )
    if orders:
        columns.append("order by")
        note += (
            f" Order by: {planning.options.lead_days:,g} days before the early end of the 80 % interval, which is in "
            "time in 9 of 10 cases."
        )
    if len(disks) > len(shown):
        note += f" The table shows the first {len(shown)} of {len(disks):,} disks; --json and --csv list all of them."
    return Table(LEVELS, columns, rows, 3, note)


def costs_table(report: CapacityReport) -> Table:
    """Return a table of the disk space that the growth needs, and its price."""
    rows = [
        [
            "as now" if cost.name == "now" else f"{cost.name}, rebuilt",
            f"{cost.days:,} days",
            band_text(cost.size_bytes, decimal_text),
            "" if cost.price is None else band_text(cost.price, price_text),
        ]
        for cost in report.planning.costs
    ]
    price = report.planning.options.price_per_tb
    note = "" if price is None else f"At {price:,g} per TB of disk (1,000 GB), all copies counted, without reserve."
    return Table("Cost of growth", ["stored", "growth of", "disk space (80 %)", "price (80 %)"], rows, 1, note)


def fullest_table(report: CapacityReport) -> Table:
    """Return a table of the largest shards, by allocated bytes or, if there are many, by file length."""
    sizes = report.shard_sizes
    by_files = not report.skew.shards
    average = sum(shard.size_bytes for shard in sizes) / max(1, report.skew.shard_count)
    rows = []
    for shard in fullest(sizes):
        size = bytes_text(shard.size_bytes)
        if not by_files:
            size = estimate_text(allocated(report, shard.cluster, shard.shard), bytes_text)
        times = f"{shard.size_bytes / average:.2f}" if average else ""
        rows.append([str(shard.shard), shard.cluster, size, times])
    measure = "file" if by_files else "allocated"
    note = f"{counted(report.skew.shard_count, 'shard')}, with {bytes_text(average)} each on average."
    if by_files:
        note += " File lengths as reported by the servers, because there are too many shards to sample one by one."
    return Table(FULLEST, ["shard", "cluster", measure, "times the average"], rows, 2, note)


def allocated(report: CapacityReport, cluster: str, shard: int | None = None) -> Interval:
    """Return the allocated bytes of a cluster, or of one of its shards."""
    return added(
        group.allocated_bytes
        for group in report.measurement.groups
        if group.cluster == cluster and shard in (None, group.shard)
    )


def _on_text(level: Level) -> str:
    assert level.days is not None
    if level.days.high_95 == 0:
        return "already"
    on = None if level.on is None else level.on["mid"]
    return "later" if on is None else on.isoformat()


def _range_text(level: Level) -> str:
    dates = level.on or {}
    low, high = dates.get("low_80"), dates.get("high_80")
    if level.days is not None and level.days.high_95 == 0:
        return ""
    if low is None:
        return f"not in {level.horizon_days:,} days"
    return f"{low} or later" if high is None else f"{low} to {high}"


def _dates_text(level: Level) -> str:
    assert level.days is not None
    if level.days.high_95 == 0:
        return "already"
    if math.isinf(level.days.low_80):
        return f"not within {level.horizon_days:,} days"
    return f"on {_on_text(level)} ({_range_text(level)})"


def _order_day_text(level: Level) -> str:
    day = level.order_on
    return "not yet" if day is None else day.isoformat()


def price_text(price: float) -> str:
    """Format a price; without decimals if it is 1,000 or more."""
    return f"{price:,.2f}" if price < 1000 else f"{price:,.0f}"


def band_text(band: Band, text: Callable[[float], str]) -> str:
    """Format a figure with its 80 % interval, or say that it cannot be forecast."""
    if is_too_wide(band.low_80, band.high_80):
        return TOO_WIDE
    return estimate_text(Interval(band.low_80, band.mid, band.high_80), text)


def decimal_text(count: float) -> str:
    """Format bytes in powers of 1,000, the units that disks are sold in."""
    power = next((power for power in (4, 3, 2, 1) if count >= 1000**power), 0)
    return f"{count / 1000**power:,.3g} {('bytes', 'KB', 'MB', 'GB', 'TB')[power]}"
