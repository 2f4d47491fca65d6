"""Tables of a capacity report, for both the terminal and the HTML page."""

from __future__ import annotations

import datetime
import math
from collections.abc import Sequence

from schemaless.base.numbers import Interval, added
from schemaless.planning.capacity.disk_forecast import DiskForecast
from schemaless.planning.capacity.forecast import Forecast, NoForecast, is_too_wide
from schemaless.planning.capacity.report import CapacityReport, ColumnForecast, stored
from schemaless.planning.capacity.steps import usual_days
from schemaless.schema.engines import ENGINES
from schemaless.ui.pages.capacity_comparison import comparison_tables
from schemaless.ui.pages.capacity_planning import allocated, costs_table, fullest_table, levels_table
from schemaless.ui.pages.capacity_words import (
    TOO_WIDE,
    Table,
    at_rate_text,
    between_text,
    date_text,
    horizon_text,
    per_day_text,
    range_text,
    seconds_text,
    share_text,
    until_text,
)
from schemaless.ui.terminal.output import bytes_text, estimate_text, size_text

WHAT_IF = "What-if scenarios"
_MARKS_DAYS = (7, 30, 90, 180, 365, 730, 1_460)
_MOST_SHARD_ROWS = 64


def tables(report: CapacityReport) -> list[Table]:
    """Return all non-empty tables in the order of the page."""
    tables = [
        *comparison_tables(report),
        levels_table(report),
        costs_table(report),
        _scenarios(report),
        _forecasts(report),
        _coming(report),
        _stored(report),
        _codecs(report),
        _engines(report),
        _clusters(report),
        _cluster_skew(report),
        fullest_table(report),
        _moves(report),
    ]
    return [table for table in tables if table.rows]


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
        rows.append([days[0][0].isoformat(), str(len(days)), "measured", estimate_text(size, bytes_text)])
    if isinstance(total.forecast, Forecast):
        sums = total.forecast.cumulative
        for begin in range(0, min(len(sums), len(total.history)) // 7 * 7, 7):
            band = total.forecast.between(begin, begin + 7)
            day = total.forecast.first_day + datetime.timedelta(begin)
            growth = f"{bytes_text(band.mid)} (80 %: {between_text(band.low_80, band.high_80, bytes_text)})"
            rows.append([day.isoformat(), "7", "forecast", growth])
    return Table("By week", ["week from", "days", "source", "growth of disk usage"], rows, 3)


def _scenarios(report: CapacityReport) -> Table:
    rows = []
    for scenario in report.scenarios:
        first = scenario.first
        if first is None or first.days is None or first.first_day is None:
            rows.append([scenario.name, "unknown", "", "", "", "", "", scenario.text])
            continue
        horizon, days = first.horizon_days or 0, first.days
        finite = math.isfinite(days.mid)
        rows.append(
            [
                scenario.name,
                until_text(days.mid, horizon),
                range_text(days.low_80, days.high_80, horizon),
                range_text(days.low_95, days.high_95, horizon),
                at_rate_text(first.at_rate),
                date_text(first.first_day, days.mid) if finite else "",
                first.disk if finite else "",
                scenario.text,
            ]
        )
    columns = ["scenario", "days until full", "80 %", "95 %", "constant rate", "full on", "full first", "description"]
    note = "Constant rate: days if growth stays as it was in recent weeks, with a 95 % interval."
    beyond = [first for first in (scenario.first for scenario in report.scenarios) if first and first.days]
    if any(first.days and math.isinf(first.days.high_95) for first in beyond):
        note += f" {horizon_text(beyond[0])}"
    return Table(WHAT_IF, columns, rows, note=note, last_text=True)


def _forecasts(report: CapacityReport) -> Table:
    rows = [_forecast_row(f"{growth.disk.name}: disk", growth) for growth in report.disks]
    rows += [_forecast_row(f"{column.cluster}: {column.column_name}", column) for column in report.columns]
    columns = [
        "series",
        "days measured",
        "a day now",
        "change in a year (80 %)",
        "weekly pattern",
        "back-test days",
        "daily error",
        "total error",
        "inside bands",
    ]
    note = (
        "Series: growth of disk usage, and of the body bytes of each column. Change in a year: change in "
        "the growth per day. "
        "The back-test forecasts the last days of the history from the days before them. Inside bands: share of these "
        "days inside the 80 % and 95 % bands, which should be close to those percentages."
    )
    return Table("Forecasts and their back-tests", columns, rows, 1, note)


def _forecast_row(name: str, growth: DiskForecast | ColumnForecast) -> list[str]:
    forecast = growth.forecast
    if isinstance(forecast, NoForecast):
        return [name, str(forecast.days), per_day_text(growth.history), forecast.reason, *[""] * 5]
    now = per_day_text(usual_days(growth.history, forecast.bursts))
    change = forecast.growth_share_per_year
    test = forecast.back_test
    held = ["too short", "", "", ""]
    if test is not None:
        held = [
            f"{test.held_days}",
            f"{test.daily_error_share:.0%}",
            f"{test.total_error_share:+.0%}",
            f"{test.inside_80_share:.0%}, {test.inside_95_share:.0%}" + ("" if test.failure is None else ": failed"),
        ]
    week = "none" if forecast.weekdays is None else _week_text(forecast.weekdays)
    year = TOO_WIDE
    if not is_too_wide(1 + change.low_80, 1 + change.high_80):
        year = f"{share_text(change.mid)} ({share_text(change.low_80)} to {share_text(change.high_80)})"
    return [name, str(forecast.history_days), now, year, week, *held]


def _coming(report: CapacityReport) -> Table:
    total = report.total
    if total is None or not isinstance(total.forecast, Forecast):
        return Table("Expected growth", [], [])
    sums = total.forecast.cumulative
    rows = []
    for days in (*(mark for mark in _MARKS_DAYS if mark < len(sums)), len(sums)):
        band = sums[days - 1]
        rows.append(
            [
                f"{days:,}",
                (total.forecast.first_day + datetime.timedelta(days - 1)).isoformat(),
                bytes_text(band.mid),
                between_text(band.low_80, band.high_80, bytes_text),
                between_text(band.low_95, band.high_95, bytes_text),
            ]
        )
    return Table("Expected growth of disk usage", ["days", "until the end of", "growth", "80 %", "95 %"], rows, 2)


def _stored(report: CapacityReport) -> Table:

    rows = [
        [
            group.column_name,
            group.codec,
            estimate_text(group.cells),
            estimate_text(group.body_bytes, bytes_text),
            estimate_text(group.allocated_bytes, bytes_text),
            estimate_text(group.json_bytes, bytes_text),
        ]
        for group in stored(report.measurement)
    ]
    return Table("Stored now", ["column", "codec", "cells", "body bytes", "allocated", "as JSON text"], rows, 2)


def _codecs(report: CapacityReport) -> Table:
    rows = [
        [
            trial.column_name,
            trial.codec,
            str(trial.sampled) + (f", {trial.left_cells} not re-encoded" if trial.left_cells else ""),
            _share_text(trial.body_share.low, trial.body_share.mid, trial.body_share.high),
            _share_text(trial.allocated_share.low, trial.allocated_share.mid, trial.allocated_share.high),
            f"{trial.encode_s * 1e6:,.0f}, {trial.decode_s * 1e6:,.0f}",
            f"{seconds_text(trial.encode_s_per_day)}, {seconds_text(trial.decode_s_per_day)}",
        ]
        for trial in sorted(report.trials, key=lambda trial: (trial.column_name, trial.allocated_share.mid))
    ]
    columns = [
        "column",
        "codec",
        "cells tried",
        "body bytes vs. now",
        "allocated vs. now",
        "encode, decode (µs a cell)",
        "CPU a day (write, read)",
    ]
    return Table(
        "Codecs tried on sampled cells",
        columns,
        rows,
        2,
        "CPU a day: to write the current number of new cells per day, and to read them once."
        + ("" if report.choice is None else f" Over all columns, {report.choice.knee_text}."),
    )


def _engines(report: CapacityReport) -> Table:
    rows = [
        [
            effect.column_name,
            ENGINES[effect.engine].title,
            effect.codec or "as stored",
            str(effect.sampled),
            f"{effect.now_per_body:.2f}",
            estimate_text(effect.per_body, lambda size: f"{size:.2f}"),
            estimate_text(effect.share, lambda share: f"{share:.1%}"),
        ]
        for effect in report.engines
    ]
    columns = ["column", "storage engine", "codec", "cells tried", "now", "in the engine", "vs. now"]
    note = "Now, in the engine: bytes of a large table per current body byte, with 95 % intervals."
    return Table("Storage engines tried on sampled cells", columns, rows, 3, note)


def _clusters(report: CapacityReport) -> Table:
    rows = []
    places = {outlook.disk: place for place, outlook in enumerate(report.now.worst_first)}
    order = {name: places[outlook.disk.name] for outlook in report.disks for name in outlook.disk.clusters}
    for space in sorted(report.measurement.clusters, key=lambda space: order.get(space.cluster, len(order))):
        known = space.problem is None
        rows.append(
            [
                space.cluster,
                f"{space.read_from} {space.node}" if known else f"not measured: {space.problem}",
                str(space.copies),
                str(space.shards),
                size_text(space.file_bytes, "?"),
                "?" if space.rebuilt_bytes is None else estimate_text(space.rebuilt_bytes, bytes_text),
                size_text(space.disk_bytes, "?"),
                size_text(space.free_bytes, "?"),
                {"server": "server", "flag": "--disk"}.get(space.disk_from or "", "?"),
            ]
        )
    columns = ["cluster", "read from", "copies", "shards", "files", "if rebuilt", "disk", "free", "disk size from"]
    return Table("Clusters", columns, rows, 2)


def _cluster_skew(report: CapacityReport) -> Table:
    everything = added(group.allocated_bytes for group in report.measurement.groups)
    rows = [
        [
            fill.cluster,
            estimate_text(allocated(report, fill.cluster), bytes_text),
            estimate_text(_scaled(fill.even_bytes, everything), bytes_text),
            f"{fill.now_bytes / fill.even_bytes:.2f}" if fill.even_bytes else "",
            estimate_text(_scaled(fill.after_bytes, allocated(report, fill.cluster)), bytes_text),
        ]
        for fill in report.skew.clusters
    ]
    note = (
        "The fair share of a cluster is proportional to its disk."
        if report.skew.by_disk
        else "The fair share is the same for all clusters, because not all disks are known."
    )
    if report.skew.shard_ratio is not None:
        note += f" The largest shard is {report.skew.shard_ratio:.2f} times the average."
    return Table(
        "Skew between clusters",
        ["cluster", "allocated", "fair share", "times fair share", "after the moves"],
        rows,
        1,
        note,
    )


def _scaled(size: float, estimate: Interval) -> Interval:
    """Return ``size`` with the relative interval of ``estimate``."""
    return estimate.times(size / estimate.mid) if estimate.mid else Interval.of(size)


def _moves(report: CapacityReport) -> Table:
    rows = [
        [
            str(move.shard),
            move.from_cluster,
            move.to_cluster,
            estimate_text(allocated(report, move.from_cluster, move.shard), bytes_text),
        ]
        for move in report.skew.moves[:_MOST_SHARD_ROWS]
    ]
    more = len(report.skew.moves) - len(rows)
    note = (
        f"This is a proposal; nothing has been moved. The moves would copy "
        f"{bytes_text(report.skew.moved_bytes)}." + (f" --json has {more} more." if more > 0 else "")
    )
    return Table("Moves that would balance the clusters", ["shard", "from", "to", "allocated"], rows, 3, note)


def _share_text(low: float, mid: float, high: float) -> str:
    return f"{mid:.1%}" if low == high else f"{mid:.1%} ({low:.1%} to {high:.1%})"


def _week_text(weekdays: Sequence[float]) -> str:
    names = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
    most, least = max(range(7), key=lambda day: weekdays[day]), min(range(7), key=lambda day: weekdays[day])
    return f"{names[most]} {weekdays[most]:.0%}, {names[least]} {weekdays[least]:.0%}"
