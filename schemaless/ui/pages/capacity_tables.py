"""Tables of a capacity report, for both the terminal and the HTML page."""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable, Sequence
from typing import Final

from schemaless.base.numbers import Interval, added, bytes_text, counted, number_text
from schemaless.base.parts import grouped
from schemaless.base.type_variables import T
from schemaless.planning.capacity.basis import ColumnForecast, DiskForecast
from schemaless.planning.capacity.forecast import Band, Forecast, NoForecast, is_too_wide
from schemaless.planning.capacity.measurement import Measurement
from schemaless.planning.capacity.planning import Comparison, Level, Month
from schemaless.planning.capacity.report import CapacityReport, datastore_totals
from schemaless.planning.capacity.skew import fullest
from schemaless.planning.capacity.steps import usual_days
from schemaless.planning.capacity.whatif import DiskOutlook, Scenario
from schemaless.planning.sampling.recommendation import share_text
from schemaless.schema.engines import ENGINES
from schemaless.ui.pages.capacity_words import (
    TOO_WIDE,
    Table,
    at_rate_text,
    band_text,
    between_text,
    date_text,
    days_text,
    growth_text,
    horizon_text,
    level_name,
    level_range,
    on_text,
    per_day_text,
    price_text,
    range_text,
    seconds_text,
)
from schemaless.ui.terminal.output import estimate_text, size_text

WHAT_IF: Final = "What-if scenarios"
SIDE_BY_SIDE: Final = "Scenarios side by side"
BY_DISK: Final = "Days until full, by disk"
BUDGET: Final = "Monthly budget"
DATASTORES: Final = "Datastores"
FULLEST: Final = "Largest shards"
LEVELS: Final = "When disks fill up"

_MARKS_DAYS: Final = (7, 30, 90, 180, 365, 730, 1_460)
_MOST_SHARD_ROWS: Final = 64
_MOST_DISKS: Final = 10
_WEEK: Final = datetime.timedelta(7)


def _known(value: T | None, text: Callable[[T], str], unknown: str = "") -> str:
    return unknown if value is None else text(value)


def _lead_time(level: Level | None) -> str:
    return "" if level is None or level.lead_days is None else counted(level.lead_days, "day")


def _bytes_estimate(size: Interval) -> str:
    return estimate_text(size, bytes_text)


def tables(report: CapacityReport) -> list[Table]:
    """Return all non-empty tables in the order of the page."""
    tables = [
        *comparison_tables(report),
        _levels(report),
        _costs(report),
        _scenarios(report),
        _forecasts(report),
        _coming(report),
        stored_table(report.measurement),
        _codecs(report),
        _versions(report),
        _engines(report),
        _clusters(report),
        _cluster_skew(report),
        _fullest(report),
        _moves(report),
    ]
    return [table for table in tables if table.rows]


def comparison_tables(report: CapacityReport) -> list[Table]:
    """Return the tables of datastores, scenarios and budget; one with nothing to compare has no rows."""
    return [_datastores(report), _side_by_side(report), _by_disk(report), _budget(report)]


def _datastores(report: CapacityReport) -> Table:
    totals = datastore_totals(report)
    rows = [
        {
            "datastore": total.name or "all",
            "cells": estimate_text(total.cells),
            "body bytes": _bytes_estimate(total.body_bytes),
            "files": size_text(total.file_bytes, "?"),
            "all copies": size_text(total.copies_bytes, "?"),
            "a day now": bytes_text(total.bytes_per_day),
            "first disk full in": _known(total.first, days_text, "unknown"),
            "disk": _known(total.first, _full_disk),
        }
        for total in totals
    ]
    note = "Files: those of one copy. A day now: growth of the files of one copy, averaged over the last few weeks."
    return Table.of(DATASTORES, rows if len(totals) > 1 else [], 1, note)


def _retention(comparison: Comparison) -> str:
    """Return the retention policy of a scenario, or of how many columns it has one, in a few words."""
    policies = [*comparison.change.policies.items()]
    if len(policies) > 1:
        return counted(len(policies), "column")
    return "; ".join(f"{column}: {policy}" for column, policy in policies)


def _side_by_side(report: CapacityReport) -> Table:
    compared = report.comparisons
    if not report.compares:
        return Table(SIDE_BY_SIDE, [], [])

    def row(name: str, text: Callable[[Comparison], str]) -> list[str]:
        return [name, *(text(comparison) for comparison in compared)]

    def of_first(name: str, text: Callable[[DiskOutlook], str], unknown: str = "") -> list[str]:
        return row(name, lambda each: _known(each.first, text, unknown))

    rows = [
        row("growth", lambda each: each.change.changes.get("growth", "x1")),
        row("codec", lambda each: each.change.trial or "as now"),
        row("storage engine", lambda each: each.change.changes.get("engine", "as now")),
        row("retention", lambda each: _retention(each) or "as now"),
        row("rebuilt", lambda each: "yes" if each.change.rebuilds else "no"),
        row("copies", lambda each: str(each.change.copies or "as now")),
        row("cold after", lambda each: each.change.changes.get("cold after", "never")),
        row("price per TB", lambda each: _known(each.price_per_tb, number_text)),
        row("lead time", lambda each: _lead_time(each.full)),
    ]
    rows = [cells for cells in rows if len(set(cells[1:])) > 1]  # What all scenarios have in common is not a change.
    rows += [
        of_first("first disk full in", days_text, "unknown"),
        of_first("full on", _full_on),
        of_first("80 %", lambda first: _range(first, 80)),
        of_first("95 %", lambda first: _range(first, 95)),
        of_first("at the constant rate", lambda first: at_rate_text(first.at_rate)),
        of_first("full first", _full_disk),
    ]
    days = next((each.cost.days for each in compared if each.cost is not None), None)
    period = "" if days is None else counted(days, "day")
    optional = [
        row("order by", lambda each: _known(each.full, lambda full: _order_by(full, report))),
        row("stored at the start", lambda each: _known(each.stored_bytes, _bytes_estimate, "?")),
        row(
            f"growth of {period}",
            lambda each: _known(each.cost, lambda cost: band_text(cost.size_bytes, bytes_text), period and "?"),
        ),
        row("cold store at the start", lambda each: _known(each.cold, lambda cold: _bytes_estimate(cold.start_bytes))),
        row("its growth in a month", lambda each: _known(each.cold, lambda cold: bytes_text(cold.bytes_per_month))),
        row(
            "price of that growth, each month",
            lambda each: _known(each.cold, lambda cold: _known(cold.price_of_month, price_text)),
        ),
        row("cost of the cold store", lambda each: _known(_rent(each), price_text)),
        row("cost at the start", lambda each: _known(each.start_price, price_text) if period else ""),
        row(f"cost of {period}' growth", lambda each: _known(each.cost, lambda cost: _known(cost.price, _price_band))),
        row("cost in total", lambda each: _known(each.year_price, price_text)),
    ]
    rows += [cells for cells in optional if any(cells[1:])]
    note = (
        "Days with 80 % and 95 % intervals, as in the other tables. Stored at the start and growth count all "
        "copies. "
        "Cost at the start: the price of the space that additional copies need at once."
    )
    return Table(SIDE_BY_SIDE, ["figure", *(each.change.name for each in compared)], rows, 1, note)


def _rent(comparison: Comparison) -> float | None:
    cold = comparison.cold
    return None if cold is None or cold.price_per_gb is None else sum(cold.rents)


def _by_disk(report: CapacityReport) -> Table:
    compared = report.comparisons
    disks = [outlook.disk for outlook in report.now.worst_first]
    if not report.compares or len(disks) < 2:
        return Table(BY_DISK, [], [])
    outlooks = [{outlook.disk: outlook for outlook in each.disks} for each in compared]

    def cell(outlook: DiskOutlook) -> str:
        bounded = outlook.days is not None and not math.isinf(outlook.days.low_80) and _range(outlook, 80)
        return days_text(outlook) + (f" ({_range(outlook, 80)})" if bounded else "")

    rows = [[disk, *(cell(by_disk[disk]) for by_disk in outlooks)] for disk in disks]
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
        "Price of the disk space that each month's growth takes, all copies counted; at the start: price of the space "
        "that additional copies take at once. Months add up to the total. The free space of today's disks and space "
        "that re-encoding or retention frees are not deducted. With a price of the cold store, its rent is included."
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
    return f"{month.first_day:%Y-%m}" + ("" if whole else f" ({counted(month.days, 'day')})")


def _price_band(price: Band) -> str:
    return band_text(price, price_text)


def _order_by(level: Level, report: CapacityReport) -> str:
    if level.days is None or level.lead_days is None:
        return ""
    day = level.order_on
    if day is not None and day < report.made_at.date():
        return f"overdue since {day}"
    return _known(day, str, "not yet")


def _full_disk(first: DiskOutlook) -> str:
    """Return the disk, if it fills up within the horizon."""
    return first.disk if _full_on(first) else ""


def _full_on(first: DiskOutlook) -> str:
    if first.days is None or first.first_day is None or math.isinf(first.days.mid):
        return ""
    return date_text(first.first_day, first.days.mid)


def _range(first: DiskOutlook, percent: int) -> str:
    if first.days is None:
        return ""
    low, high = (first.days.low_80, first.days.high_80) if percent == 80 else (first.days.low_95, first.days.high_95)
    return range_text(low, high, first.horizon_days or 0)


def _levels(report: CapacityReport) -> Table:
    """Return a table of when each disk reaches each level, most urgent disk first."""
    planning = report.planning
    disks = list(dict.fromkeys(level.disk for level in planning.now))
    shown = disks[:_MOST_DISKS]
    orders = planning.options.lead_days is not None
    rows = []
    for disk in shown:
        for codec, levels in (("as now", planning.now), (f"{report.codec}", planning.after)):
            for level in levels:
                if level.disk == disk and level.days is not None:
                    reached = level.days.high_95 == 0
                    row = {
                        "disk": disk,
                        "stored": codec,
                        "level": level_name(level),
                        "on": on_text(level),
                        "80 %": level_range(level),
                        "days": "" if reached else days_text(level),
                        "constant rate": "" if reached else at_rate_text(level.at_rate),
                    }
                    rows.append(row | ({"order by": _order_by(level, report)} if orders else {}))
    note = (
        "The disk that fills up first is listed first. Rows with a codec: after re-encoding and a rebuild. 80 %: "
        "interval of the date. Constant rate: days if growth stays as it was in recent weeks, with a 95 % interval."
    )
    if orders:
        note += (
            f" Order by: {counted(planning.options.lead_days or 0, 'day')} before the early end of the 80 % "
            "interval, which is in time in 9 of 10 cases."
        )
    if len(disks) > len(shown):
        note += f" The table shows the first {len(shown)} of {len(disks):,} disks; --json and --csv list all of them."
    return Table.of(LEVELS, rows, 3, note)


def _costs(report: CapacityReport) -> Table:
    """Return a table of the disk space that the growth needs, and its price."""
    rows = [
        {
            "stored": "as now" if cost.name == "now" else f"{cost.name}, rebuilt",
            "growth of": counted(cost.days, "day"),
            "disk space (80 %)": band_text(cost.size_bytes, bytes_text),
            "price (80 %)": _known(cost.price, _price_band),
        }
        for cost in report.planning.costs
    ]
    price = report.planning.options.price_per_tb
    note = (
        ""
        if price is None
        else f"At {number_text(price)} per TB of disk (1,000 GB), all copies counted, without reserve."
    )
    return Table.of("Cost of growth", rows, 1, note)


def _fullest(report: CapacityReport) -> Table:
    """Return a table of the largest shards, by allocated bytes or, if there are many, by file length."""
    sizes = report.shard_sizes
    by_files = not report.skew.shards
    average = sum(shard.size_bytes for shard in sizes) / max(1, report.skew.shard_count)
    rows = []
    for shard in fullest(sizes):
        size = bytes_text(shard.size_bytes)
        if not by_files:
            size = _bytes_estimate(_allocated(report, shard.cluster, shard.shard))
        times = f"{shard.size_bytes / average:.2f}" if average else ""
        measure = "file" if by_files else "allocated"
        rows.append({"shard": str(shard.shard), "cluster": shard.cluster, measure: size, "times the average": times})
    note = f"{counted(report.skew.shard_count, 'shard')}, with {bytes_text(average)} each on average."
    if by_files:
        note += " File lengths as reported by the servers, because there are too many shards to sample one by one."
    return Table.of(FULLEST, rows, 2, note)


def _allocated(report: CapacityReport, cluster: str, shard: int | None = None) -> Interval:
    """Return the allocated bytes of a cluster, or of one of its shards."""
    return added(
        group.allocated_bytes
        for group in report.measurement.groups
        if group.cluster == cluster and shard in (None, group.shard)
    )


def history_table(report: CapacityReport) -> Table:
    """Return measured growth by week, and the forecast for the same number of weeks."""
    total = report.total
    rows: list[list[str]] = []
    if total is None:
        return Table("By week", [], [])
    for begin in range(0, len(total.history), 7):
        days = total.history[begin : begin + 7]
        size = Interval.of(sum(value for _, value in days))
        if total.errors:
            half = math.hypot(*total.errors[begin : begin + 7])
            size = Interval(max(0.0, size.mid - half), size.mid, size.mid + half)
        rows.append([days[0][0].isoformat(), str(len(days)), "measured", _bytes_estimate(size)])
    if isinstance(total.forecast, Forecast):
        sums = total.forecast.cumulative
        for begin in range(0, min(len(sums), len(total.history)) // 7 * 7, 7):
            band = total.forecast.between(begin, begin + 7)
            day = total.forecast.first_day + datetime.timedelta(begin)
            growth = f"{bytes_text(band.mid)} (80 %: {between_text(band.low_80, band.high_80, bytes_text)})"
            rows.append([day.isoformat(), "7", "forecast", growth])
    return Table("By week", ["week from", "days", "source", "growth of disk usage"], rows, 3)


def _described(scenario: Scenario) -> str:
    """Return the description of a scenario, and why its days are unknown."""
    text = scenario.change.description
    if scenario.first is not None:
        return text
    reasons = "; ".join(sorted({outlook.why for outlook in scenario.unknown if outlook.why}))
    return f"{text.rstrip('.')}. Unknown: {reasons}." if reasons else text


def _scenarios(report: CapacityReport) -> Table:
    rows = [
        {
            "scenario": scenario.name,
            "days until full": _known(scenario.first, days_text, "unknown"),
            "80 %": _known(scenario.first, lambda first: _range(first, 80)),
            "95 %": _known(scenario.first, lambda first: _range(first, 95)),
            "constant rate": _known(scenario.first, lambda first: at_rate_text(first.at_rate)),
            "full on": _known(scenario.first, _full_on),
            "full first": _known(scenario.first, _full_disk),
            "description": _described(scenario),
        }
        for scenario in report.scenarios
    ]
    note = "Constant rate: days if growth stays as it was in recent weeks, with a 95 % interval."
    beyond = [first for first in (scenario.first for scenario in report.scenarios) if first and first.days]
    if any(first.days and math.isinf(first.days.high_95) for first in beyond):
        note += f" {horizon_text(beyond[0])}"
    return Table.of(WHAT_IF, rows, note=note, last_text=True)


def _forecasts(report: CapacityReport) -> Table:
    rows = [_forecast_row(f"{growth.disk.name}: disk", growth) for growth in report.disks]
    rows += [_forecast_row(f"{column.cluster}: {column.column_name}", column) for column in report.columns]
    note = (
        "Series: growth of disk usage, and of the body bytes of each column. Change in a year: change in the growth "
        "per day. The back-test forecasts the last days of the history from the days before them. Inside bands: share "
        "of these days inside the 80 % and 95 % bands, which should be close to those percentages."
    )
    return Table.of("Forecasts and their back-tests", rows, 1, note)


def _forecast_row(name: str, growth: DiskForecast | ColumnForecast) -> dict[str, str]:
    forecast = growth.forecast
    if isinstance(forecast, NoForecast):
        days, now, year, week, test = forecast.days, per_day_text(growth.history), forecast.reason, "", None
    else:
        days, now = forecast.history_days, per_day_text(usual_days(growth.history, forecast.bursts))
        change, test = forecast.growth_share_per_year, forecast.back_test
        year = f"{growth_text(change.mid)} ({growth_text(change.low_80)} to {growth_text(change.high_80)})"
        if is_too_wide(1 + change.low_80, 1 + change.high_80):
            year = TOO_WIDE
        week = _known(forecast.weekdays, _week_text, "none")
    row = {
        "series": name,
        "days measured": str(days),
        "a day now": now,
        "change in a year (80 %)": year,
        "weekly pattern": week,
        "back-test days": "too short" if week else "",
    }
    if test is not None:
        inside = f"{test.inside_80_share:.0%}, {test.inside_95_share:.0%}"
        row |= {
            "back-test days": f"{test.held_days}",
            "daily error": f"{test.daily_error_share:.0%}",
            "total error": f"{test.total_error_share:+.0%}",
            "inside bands": inside + ("" if test.failure is None else ": failed"),
        }
    return row


def _coming(report: CapacityReport) -> Table:
    total = report.total
    if total is None or not isinstance(total.forecast, Forecast):
        return Table("Expected growth", [], [])
    sums = total.forecast.cumulative
    rows = []
    for days in (*(mark for mark in _MARKS_DAYS if mark < len(sums)), len(sums)):
        band = sums[days - 1]
        rows.append(
            {
                "days": f"{days:,}",
                "until the end of": (total.forecast.first_day + datetime.timedelta(days - 1)).isoformat(),
                "growth": bytes_text(band.mid),
                "80 %": between_text(band.low_80, band.high_80, bytes_text),
                "95 %": between_text(band.low_95, band.high_95, bytes_text),
            }
        )
    return Table.of("Expected growth of disk usage", rows, 2)


def stored_table(measurement: Measurement, *, by_cluster: bool = False) -> Table:
    """Return the sizes by column and codec, and by cluster if asked."""
    names = ["cluster", "column_name", "codec"] if by_cluster else ["column_name", "codec"]
    groups = grouped((tuple(getattr(group, name) for name in names), group) for group in measurement.groups)
    rows = [
        {name.removesuffix("_name"): text for name, text in zip(names, key, strict=True)}
        | {
            "cells": estimate_text(added(group.cells for group in groups[key])),
            "body bytes": _bytes_estimate(added(group.body_bytes for group in groups[key])),
            "allocated": _bytes_estimate(added(group.allocated_bytes for group in groups[key])),
            "as JSON text": _bytes_estimate(added(group.json_bytes for group in groups[key])),
        }
        for key in sorted(groups)
    ]
    return Table.of("Stored now", rows, len(names))


def _codecs(report: CapacityReport) -> Table:
    rows = [
        {
            "column": trial.column_name,
            "codec": trial.codec,
            "cells tried": f"{trial.sampled}" + (f", {trial.left_cells} not re-encoded" if trial.left_cells else ""),
            "body bytes vs. now": share_text(trial.share),
            "allocated vs. now": share_text(trial.pages_share),
            "encode, decode (µs a cell)": f"{trial.encode_s * 1e6:,.0f}, {trial.decode_s * 1e6:,.0f}",
            "CPU a day (write, read)": ", ".join(
                seconds_text(each * report.cells_per_day(trial.column_name))
                for each in (trial.encode_s, trial.decode_s)
            ),
        }
        for trial in sorted(report.tried, key=lambda trial: (trial.column_name, trial.pages_share.mid))
    ]
    note = "CPU a day: to write the current number of new cells per day, and to read them once."
    if report.choice is not None:
        note += f" Over all columns, {report.choice.knee_text}."
    return Table.of("Codecs tried on sampled cells", rows, 2, note)


def _versions(report: CapacityReport) -> Table:
    rows = [
        {
            "column": trial.column_name,
            "versions per row": estimate_text(trial.versions, "{:,.1f}".format),
            "superseded": share_text(trial.now),
            "as differences": share_text(trial.as_deltas),
            "codec": trial.codec,
        }
        for trial in sorted(report.history, key=lambda trial: (trial.column_name, trial.codec))
    ]
    note = (
        "Body bytes of versions that have a higher one, now and stored as differences from it, relative to all body "
        "bytes of the column now. Erased versions count as versions."
    )
    return Table.of("Versions", rows, 1, note, last_text=True)


def _engines(report: CapacityReport) -> Table:
    rows = [
        {
            "column": effect.column_name,
            "storage engine": ENGINES[effect.engine].title,
            "codec": effect.codec or "as stored",
            "cells tried": str(effect.sampled),
            "now": f"{effect.now_per_body:.2f}",
            "in the engine": estimate_text(effect.per_body, "{:.2f}".format),
            "vs. now": share_text(effect.share),
        }
        for effect in report.engines
    ]
    note = "Now, in the engine: bytes of a large table per current body byte, with 95 % intervals."
    return Table.of("Storage engines tried on sampled cells", rows, 3, note)


def _clusters(report: CapacityReport) -> Table:
    places = {outlook.disk: place for place, outlook in enumerate(report.now.worst_first)}
    order = {name: places[outlook.disk.name] for outlook in report.disks for name in outlook.disk.clusters}
    rows = [
        {
            "cluster": space.cluster,
            "read from": _known(space.problem, "not measured: {}".format, f"{space.read_from} {space.node}"),
            "copies": str(space.copies),
            "shards": str(space.shards),
            "files": size_text(space.file_bytes, "?"),
            "if rebuilt": _known(space.rebuilt_bytes, _bytes_estimate, "?"),
            "disk": size_text(space.disk_bytes, "?"),
            "free": size_text(space.free_bytes, "?"),
            "disk size from": {"server": "server", "flag": "--disk"}.get(space.disk_from or "", "?"),
        }
        for space in sorted(report.measurement.clusters, key=lambda space: order.get(space.cluster, len(order)))
    ]
    return Table.of("Clusters", rows, 2)


def _cluster_skew(report: CapacityReport) -> Table:
    everything = added(group.allocated_bytes for group in report.measurement.groups)
    rows = [
        {
            "cluster": fill.cluster,
            "allocated": _bytes_estimate(_allocated(report, fill.cluster)),
            "fair share": _bytes_estimate(_scaled(fill.even_bytes, everything)),
            "times fair share": f"{fill.now_bytes / fill.even_bytes:.2f}" if fill.even_bytes else "",
            "after the moves": _bytes_estimate(_scaled(fill.after_bytes, _allocated(report, fill.cluster))),
        }
        for fill in report.skew.clusters
    ]
    note = (
        "The fair share of a cluster is proportional to its disk."
        if report.skew.by_disk
        else "The fair share is the same for all clusters, because not all disks are known."
    )
    if report.skew.shard_ratio is not None:
        note += f" The largest shard is {report.skew.shard_ratio:.2f} times the average."
    return Table.of("Skew between clusters", rows, 1, note)


def _scaled(size: float, estimate: Interval) -> Interval:
    """Return ``size`` with the relative interval of ``estimate``."""
    return estimate.times(size / estimate.mid) if estimate.mid else Interval.of(size)


def _moves(report: CapacityReport) -> Table:
    rows = [
        {
            "shard": str(move.shard),
            "from": move.from_cluster,
            "to": move.to_cluster,
            "allocated": _bytes_estimate(_allocated(report, move.from_cluster, move.shard)),
        }
        for move in report.skew.moves[:_MOST_SHARD_ROWS]
    ]
    more = len(report.skew.moves) - len(rows)
    note = (
        f"This is a proposal; nothing has been moved. The moves would copy "
        f"{bytes_text(report.skew.moved_bytes)}." + (f" --json has {more} more." if more > 0 else "")
    )
    return Table.of("Moves that would balance the clusters", rows, 3, note)


def _week_text(weekdays: Sequence[float]) -> str:
    names = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
    most, least = max(range(7), key=lambda day: weekdays[day]), min(range(7), key=lambda day: weekdays[day])
    return f"{names[most]} {weekdays[most]:.0%}, {names[least]} {weekdays[least]:.0%}"
