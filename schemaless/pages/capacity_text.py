"""The tables of a capacity report, for the terminal and the page alike."""

from __future__ import annotations

import datetime
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from schemaless.capacity.forecast import Forecast, NoForecast
from schemaless.numbers import Interval, added
from schemaless.pages.capacity_planning import allocated, costs_table, fullest_table, levels_table
from schemaless.pages.capacity_words import (
    Table,
    at_rate_text,
    date_text,
    per_day_text,
    seconds_text,
    share_text,
    until_text,
    whole,
)
from schemaless.terminal.output import bytes_text, estimate_text, size_text

if TYPE_CHECKING:
    from schemaless.capacity.report import CapacityReport, ColumnForecast, DiskForecast

WHAT_IF = "What if"
_MARKS_DAYS = (7, 30, 90, 180, 365, 730, 1_460)
_MOST_SHARD_ROWS = 64


def tables(report: CapacityReport) -> list[Table]:
    """Return every table that has rows, in the order of the page."""
    tables = [
        levels_table(report),
        costs_table(report),
        _scenarios(report),
        _forecasts(report),
        _coming(report),
        _stored(report),
        _codecs(report),
        _clusters(report),
        _cluster_skew(report),
        fullest_table(report),
        _moves(report),
    ]
    return [table for table in tables if table.rows]


def history_table(report: CapacityReport) -> Table:
    """Return what came in by week, and what is forecast for as many weeks."""
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
            brings = f"{bytes_text(band.mid)} (80 %: {bytes_text(band.low_80)} to {bytes_text(band.high_80)})"
            rows.append([day.isoformat(), "7", "forecast", brings])
    return Table("By week", ["week from", "days", "", "bytes of disk"], rows, 3)


def _scenarios(report: CapacityReport) -> Table:
    rows = []
    for scenario in report.scenarios:
        first = scenario.first
        if first is None or first.days is None or first.first_day is None:
            rows.append([scenario.name, "not known", "", "", "", "", "", scenario.text])
            continue
        horizon, days = first.horizon_days or 0, first.days
        ends = math.isfinite(days.mid)
        rows.append(
            [
                scenario.name,
                until_text(days.mid, horizon),
                _range(days.low_80, days.high_80, horizon),
                _range(days.low_95, days.high_95, horizon),
                at_rate_text(first.at_rate),
                date_text(first.first_day, days.mid) if ends else "",
                first.disk if ends else "",
                scenario.text,
            ]
        )
    columns = ["what if", "days until full", "80 %", "95 %", "constant rate", "full on", "full first", "what it is"]
    note = "Constant rate: the days if each one brings what those of the last weeks brought, with their 95 % interval."
    return Table(WHAT_IF, columns, rows, note=note, last_text=True)


def _forecasts(report: CapacityReport) -> Table:
    rows = [_forecast_row(grown.disk.name, "bytes of disk", grown) for grown in report.disks]
    rows += [_forecast_row(f"{column.cluster} {column.column_name}", "body bytes", column) for column in report.columns]
    columns = [
        "of",
        "unit",
        "days measured",
        "a day now",
        "growth in a year (80 %)",
        "weekly shape",
        "back-test: days",
        "days off by",
        "sum off by",
        "in 80 %, 95 %",
    ]
    note = 'The back-test was made without the last days; "in 80 %" says how many of them were within that band.'
    return Table("Forecasts and their back-tests", columns, rows, 2, note)


def _forecast_row(name: str, unit: str, grown: DiskForecast | ColumnForecast) -> list[str]:
    forecast = grown.forecast
    now = per_day_text(grown.history)
    if isinstance(forecast, NoForecast):
        return [name, unit, str(forecast.days), now, forecast.reason, *[""] * 5]
    grows = forecast.growth_share_per_year
    test = forecast.back_test
    held = ["too short", "", "", ""]
    if test is not None:
        held = [
            f"{test.held_days}",
            f"{test.daily_error_share:.0%}",
            f"{test.total_error_share:+.0%}",
            f"{test.inside_80_share:.0%}, {test.inside_95_share:.0%}" + ("" if test.failure is None else ": failed"),
        ]
    week = "none seen" if forecast.weekdays is None else _week_text(forecast.weekdays)
    year = f"{share_text(grows.mid)} ({share_text(grows.low_80)} to {share_text(grows.high_80)})"
    return [name, unit, str(forecast.history_days), now, year, week, *held]


def _coming(report: CapacityReport) -> Table:
    total = report.total
    if total is None or not isinstance(total.forecast, Forecast):
        return Table("What will come", [], [])
    sums = total.forecast.cumulative
    rows = []
    for days in (*(mark for mark in _MARKS_DAYS if mark < len(sums)), len(sums)):
        band = sums[days - 1]
        rows.append(
            [
                f"{days:,}",
                (total.forecast.first_day + datetime.timedelta(days - 1)).isoformat(),
                bytes_text(band.mid),
                f"{bytes_text(band.low_80)} to {bytes_text(band.high_80)}",
                f"{bytes_text(band.low_95)} to {bytes_text(band.high_95)}",
            ]
        )
    return Table(
        "What will come, as stored now", ["days", "until the end of", "bytes of disk", "80 %", "95 %"], rows, 2
    )


def _stored(report: CapacityReport) -> Table:
    from schemaless.capacity.report import stored

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
            str(trial.sampled) + (f", {trial.left} left" if trial.left else ""),
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
        "body bytes, of now",
        "allocated, of now",
        "encode, decode: us a cell",
        "CPU a day",
    ]
    return Table(
        "Codecs, tried on sampled cells",
        columns,
        rows,
        2,
        "CPU a day: to write today's cells a day, and to read them once."
        + ("" if report.choice is None else f" Of all columns together, {report.choice.knee_text}."),
    )


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
                {"server": "server", "flag": "given"}.get(space.disk_from or "", "?"),
            ]
        )
    columns = ["cluster", "read from", "copies", "shards", "files", "if rebuilt", "disk", "free", "disk known from"]
    return Table("Clusters", columns, rows, 2)


def _cluster_skew(report: CapacityReport) -> Table:
    everything = added(group.allocated_bytes for group in report.measurement.groups)
    rows = [
        [
            fill.cluster,
            estimate_text(allocated(report, fill.cluster), bytes_text),
            estimate_text(_likely(fill.even_bytes, everything), bytes_text),
            f"{fill.now_bytes / fill.even_bytes:.2f}" if fill.even_bytes else "",
            estimate_text(_likely(fill.after_bytes, allocated(report, fill.cluster)), bytes_text),
        ]
        for fill in report.skew.clusters
    ]
    note = (
        "By its disk's share of all disks." if report.skew.by_disk else "The same for each, as not all disks are known."
    )
    if report.skew.shard_ratio is not None:
        note += f" The largest shard has {report.skew.shard_ratio:.2f} times the average one."
    return Table("Skew", ["cluster", "allocated", "its share", "of its share", "after the moves"], rows, 1, note)


def _likely(size: float, like: Interval) -> Interval:
    """Return a size with an interval that is as wide, in proportion, as that of what it was made from."""
    return like.times(size / like.mid) if like.mid else Interval.of(size)


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
    note = f"A plan: nothing is moved. {bytes_text(report.skew.moved_bytes)} in all." + (
        f" {more} more in --json." if more > 0 else ""
    )
    return Table("Moves that would even it out", ["shard", "from", "to", "allocated"], rows, 3, note)


def _share_text(low: float, mid: float, high: float) -> str:
    return f"{mid:.1%}" if low == high else f"{mid:.1%} ({low:.1%} to {high:.1%})"


def _week_text(weekdays: Sequence[float]) -> str:
    names = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
    most, least = max(range(7), key=lambda day: weekdays[day]), min(range(7), key=lambda day: weekdays[day])
    return f"{names[most]} {weekdays[most]:.0%}, {names[least]} {weekdays[least]:.0%}"


def _range(low: float, high: float, horizon: int) -> str:
    if math.isinf(low):
        return f"over {horizon:,}"
    if high == 0:
        return ""
    return f"{whole(low)} or more" if math.isinf(high) else f"{whole(low)} to {whole(high)}"
