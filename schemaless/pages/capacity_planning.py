"""What a planner asks of a report, in words and tables: levels, orders, costs, and the fullest shards."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from schemaless.capacity.forecast import Band
from schemaless.capacity.planning import FULL, Level
from schemaless.capacity.skew import fullest
from schemaless.numbers import Interval, added
from schemaless.pages.capacity_words import Answer, Table, at_rate_text, until_text
from schemaless.terminal.output import bytes_text, estimate_text

if TYPE_CHECKING:
    from schemaless.capacity.report import CapacityReport

__all__ = [
    "FULLEST",
    "LEVELS",
    "MANY_SHARDS",
    "allocated",
    "cost_answer",
    "costs_table",
    "fullest_table",
    "level_name",
    "levels_table",
    "levels_text",
    "order_answer",
    "planning_lines",
    "verdict_text",
]

FULLEST: Final = "The fullest shards"
LEVELS: Final = "How full, and when"
MANY_SHARDS: Final = 64
"""Of more shards, the picture is of their distribution, and only the fullest stand in the table."""

_MOST_DISKS: Final = 10


def planning_lines(report: CapacityReport) -> list[str]:
    """Return what follows for the disk that is full first, as it is, and what growth costs: sentences."""
    answers = [levels_text(report), order_answer(report), cost_answer(report)]
    return [
        answer if isinstance(answer, str) else f"{answer.days}: {answer.detail}"
        for answer in answers
        if answer is not None
    ]


def levels_text(report: CapacityReport) -> str | None:
    """Return when the disk that is full first reaches each threshold, as a sentence."""
    levels = [level for level in report.planning.first() if level.share < FULL]
    if not levels:
        return None
    text = "; ".join(f"{level_name(level)} {_dates_text(level)}" for level in levels)
    return f"{text}, in 80 of 100 cases." if any(_range_text(level) for level in levels) else f"{text}."


def order_answer(report: CapacityReport) -> Answer | None:
    """Return until when to order; None where nothing is to be ordered, or nothing is known."""
    full = next((level for level in report.planning.first() if level.share == FULL), None)
    if full is None or full.lead_days is None:
        return None
    day, today, lead = full.order_on, report.made_at.date(), f"{full.lead_days:,g} days"
    if day is None:
        return Answer("Nothing to order yet", f"not full within {full.horizon_days:,} days in 9 of 10 cases.")
    if day < today:
        late = (today - day).days
        return Answer("Order now", f"with {lead} from order to use, that was due on {day}, {late:,} days ago.")
    return Answer(f"Order by {day}", f"{lead} before the early end of the 80 % interval in which it is full.")


def cost_answer(report: CapacityReport) -> Answer | None:
    """Return what growth costs, now and after re-encoding; None where no price is known."""
    price, costs = report.planning.wishes.price_per_tb, report.planning.costs
    if price is None or not costs:
        return None
    now, *after = (
        f"{_band_text(cost.price, _price_text)}{'' if cost.name == 'now' else f' as {cost.name}'}, for "
        f"{_band_text(cost.size_bytes, _decimal_text)}"
        for cost in costs
    )
    sizes = "; ".join([now, *after])
    return Answer(
        f"Growth of {costs[0].days:,} days costs {_price_text(costs[0].price.mid)}",
        f"{sizes} of disk, all copies, at {price:,g} a TB; 80 of 100 cases in brackets.",
    )


def verdict_text(report: CapacityReport) -> str | None:
    """Return why the disks do not last as long as was asked, or that they do; None where nobody asked."""
    verdict = report.planning.verdict
    if verdict is None:
        return None
    if verdict.failed:
        return f"not all disks last {verdict.asked_days:,g} days: {'; '.join(verdict.reasons)}"
    return f"all disks last {verdict.asked_days:,g} days, by the early end of the 80 % interval"


def level_name(level: Level) -> str:
    """Return how full a disk is then, in a word or two."""
    return "full" if level.share == FULL else f"{level.share * 100:.4g} % full"


def levels_table(report: CapacityReport) -> Table:
    """Return when each disk is how full, the one that is full first before the others."""
    planning = report.planning
    disks = list(dict.fromkeys(level.disk for level in planning.now))
    shown = disks[:_MOST_DISKS]
    orders = planning.wishes.lead_days is not None
    rows = []
    for disk in shown:
        for stored, levels in (("as it is", planning.now), (f"{report.codec}", planning.after)):
            for level in levels:
                if level.disk == disk and level.days is not None:
                    row = [disk, stored, level_name(level), _on_text(level), _range_text(level)]
                    days = until_text(level.days.mid, level.horizon_days or 0) if level.days.mid else "0 days"
                    row += [days, at_rate_text(level.at_rate)]
                    rows.append([*row, _order_day_text(level)] if orders else row)
    columns = ["disk", "stored", "level", "on", "80 %", "days", "constant rate"]
    note = (
        "The disk that is full first stands first. With a codec: after re-encoding and a rebuild. 80 %: in 80 of 100 "
        "cases. Constant rate: the days if each one brings what the last weeks' days brought, with their 95 % interval."
    )
    if orders:
        columns.append("order by")
        note += (
            f" Order by: {planning.wishes.lead_days:,g} days before the early end of the 80 % interval, to be in time"
            " in 9 of 10 cases."
        )
    if len(disks) > len(shown):
        note += f" The {len(shown)} that are full first, of {len(disks):,}; all stand in --json and --csv."
    return Table(LEVELS, columns, rows, 3, note)


def costs_table(report: CapacityReport) -> Table:
    """Return what growth takes of disks, and what so much disk costs."""
    rows = [
        [
            "as it is" if cost.name == "now" else f"{cost.name}, rebuilt",
            f"{cost.days:,} days",
            _band_text(cost.size_bytes, _decimal_text),
            _band_text(cost.price, _price_text),
        ]
        for cost in report.planning.costs
    ]
    price = report.planning.wishes.price_per_tb
    note = "" if price is None else f"At {price:,g} a TB of disk (1,000 GB), every copy counted, without room to spare."
    return Table("What growth costs", ["stored", "growth of", "takes (80 %)", "costs (80 %)"], rows, 1, note)


def fullest_table(report: CapacityReport) -> Table:
    """Return the fullest shards: what they have allocated, or where they are many how long their files are."""
    sizes = report.shard_sizes
    by_files = not report.skew.shards
    average = sum(fullest_shard.size_bytes for fullest_shard in sizes) / max(1, report.skew.shard_count)
    rows = []
    for fullest_shard in fullest(sizes):
        size = bytes_text(fullest_shard.size_bytes)
        if not by_files:
            size = estimate_text(allocated(report, fullest_shard.cluster, fullest_shard.shard), bytes_text)
        times = f"{fullest_shard.size_bytes / average:.2f}" if average else ""
        rows.append([str(fullest_shard.shard), fullest_shard.cluster, size, times])
    what = "file" if by_files else "allocated"
    note = f"Of {report.skew.shard_count:,} shards; one has {bytes_text(average)} on average."
    if by_files:
        note += " Lengths of files, as the servers give them: so many shards are not sampled one by one."
    return Table(FULLEST, ["shard", "cluster", what, "times the average"], rows, 2, note)


def allocated(report: CapacityReport, cluster: str, shard: int | None = None) -> Interval:
    """Return what a cluster, or one of its shards, has allocated."""
    return added(
        group.allocated_bytes
        for group in report.measurement.groups
        if group.cluster == cluster and shard in (None, group.shard)
    )


def _on_text(level: Level) -> str:
    """Return the date of the middle."""
    assert level.days is not None
    if level.days.high_95 == 0:
        return "already"
    on = None if level.on is None else level.on["mid"]
    return "later" if on is None else on.isoformat()


def _range_text(level: Level) -> str:
    """Return the dates of the 80 % interval."""
    dates = level.on or {}
    low, high = dates.get("low_80"), dates.get("high_80")
    if level.days is not None and level.days.high_95 == 0:
        return ""
    if low is None:
        return f"not in {level.horizon_days:,} days"
    return f"{low} or later" if high is None else f"{low} to {high}"


def _dates_text(level: Level) -> str:
    """Return the date with its interval, for a sentence."""
    assert level.days is not None
    if level.days.high_95 == 0:
        return "already"
    if math.isinf(level.days.low_80):
        return f"on no day of the next {level.horizon_days:,}"
    return f"on {_on_text(level)} ({_range_text(level)})"


def _order_day_text(level: Level) -> str:
    day = level.order_on
    return "not yet" if day is None else day.isoformat()


def _price_text(price: float) -> str:
    return f"{price:,.2f}" if price < 1000 else f"{price:,.0f}"


def _band_text(band: Band, text: Callable[[float], str]) -> str:
    return estimate_text(Interval(band.low_80, band.mid, band.high_80), text)


def _decimal_text(count: float) -> str:
    """Return bytes in powers of 1,000, as disks are sold."""
    power = next((power for power in (4, 3, 2, 1) if count >= 1000**power), 0)
    return f"{count / 1000**power:,.3g} {('bytes', 'KB', 'MB', 'GB', 'TB')[power]}"
