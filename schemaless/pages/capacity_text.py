"""A capacity report in words and tables, for the terminal and the page alike."""

from __future__ import annotations

import datetime
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from schemaless.capacity.forecast import Forecast, NoForecast
from schemaless.capacity.measurement import added
from schemaless.numbers import Interval
from schemaless.terminal.output import bytes_text, estimate_text

if TYPE_CHECKING:
    from schemaless.capacity.report import ColumnForecast, DiskForecast, Report
    from schemaless.capacity.whatif import DiskOutlook, Scenario

WHAT_IF = "What if"
_MARKS_DAYS = (7, 30, 90, 180, 365, 730, 1_460)
_MOST_SHARD_ROWS = 64


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
        reasons = sorted({each.why or "" for each in scenario.unknown}) or ["there is no cluster with cells"]
        why = "; ".join(reasons)
        return Answer("not known", f"{why[:1].upper()}{why[1:]}.")
    words = interval_text(first)
    ends = first.days is not None and math.isfinite(first.days.mid)
    where = f" {first.disk} is full first." if len(scenario.disks) > 1 and ends else ""
    unknown = [each.disk for each in scenario.unknown]
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
    return _days(outlook.days.mid, outlook.horizon_days or 0)


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
            parts.append(f"{percent} %: {_whole(low)} days or more.")
        else:
            parts.append(f"{percent} %: {_whole(low)} to {_whole(high)} days.")
    return " ".join(parts)


def date_text(first_day: datetime.date, days: float) -> str:
    """Return the date in which so many days end."""
    return (first_day + datetime.timedelta(math.floor(days))).isoformat()


def tables(report: Report) -> list[Table]:
    """Return every table that has rows, in the order of the page."""
    found = [
        _scenarios(report),
        _forecasts(report),
        _coming(report),
        _stored(report),
        _codecs(report),
        _clusters(report),
        _cluster_skew(report),
        _moves(report),
    ]
    return [each for each in found if each.rows]


def shard_table(report: Report) -> Table:
    """Return the shards' sizes."""
    rows = [
        [str(each.shard), each.cluster, estimate_text(_allocated(report, each.cluster, each.shard), bytes_text)]
        for each in report.skew.shards
    ]
    return Table("Shards", ["shard", "cluster", "allocated"], rows, 2)


def history_table(report: Report) -> Table:
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


def _scenarios(report: Report) -> Table:
    rows = []
    for each in report.scenarios:
        first = each.first
        if first is None or first.days is None or first.first_day is None:
            rows.append([each.name, "not known", "", "", "", "", "", each.text])
            continue
        horizon, days = first.horizon_days or 0, first.days
        ends = math.isfinite(days.mid)
        rows.append(
            [
                each.name,
                _days(days.mid, horizon),
                _range(days.low_80, days.high_80, horizon),
                _range(days.low_95, days.high_95, horizon),
                at_rate_text(first.at_rate),
                date_text(first.first_day, days.mid) if ends else "",
                first.disk if ends else "",
                each.text,
            ]
        )
    columns = ["what if", "days until full", "80 %", "95 %", "constant rate", "full on", "full first", "what it is"]
    note = "Constant rate: each day as the last weeks were, with its 95 % interval."
    return Table(WHAT_IF, columns, rows, note=note, last_text=True)


def _forecasts(report: Report) -> Table:
    rows = [_forecast_row(each.disk.name, "bytes of disk", each) for each in report.disks]
    rows += [_forecast_row(f"{each.cluster} {each.column_name}", "body bytes", each) for each in report.columns]
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


def _forecast_row(name: str, unit: str, each: DiskForecast | ColumnForecast) -> list[str]:
    found = each.forecast
    now = per_day_text(each.history)
    if isinstance(found, NoForecast):
        return [name, unit, str(found.days), now, found.reason, *[""] * 5]
    grows = found.growth_share_per_year
    test = found.back_test
    held = ["too short", "", "", ""]
    if test is not None:
        held = [
            f"{test.held_days}",
            f"{test.daily_error_share:.0%}",
            f"{test.total_error_share:+.0%}",
            f"{test.inside_80_share:.0%}, {test.inside_95_share:.0%}" + ("" if test.failure is None else ": failed"),
        ]
    week = "none seen" if found.weekdays is None else _week_text(found.weekdays)
    year = f"{share_text(grows.mid)} ({share_text(grows.low_80)} to {share_text(grows.high_80)})"
    return [name, unit, str(found.history_days), now, year, week, *held]


def _coming(report: Report) -> Table:
    total = report.total
    if total is None or not isinstance(total.forecast, Forecast):
        return Table("What will come", [], [])
    sums = total.forecast.cumulative
    rows = []
    for days in (*(each for each in _MARKS_DAYS if each < len(sums)), len(sums)):
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


def _stored(report: Report) -> Table:
    from schemaless.capacity.report import stored

    rows = [
        [
            each.column_name,
            each.codec,
            estimate_text(each.cells),
            estimate_text(each.body_bytes, bytes_text),
            estimate_text(each.allocated_bytes, bytes_text),
            estimate_text(each.json_bytes, bytes_text),
        ]
        for each in stored(report.measurement)
    ]
    return Table("Stored now", ["column", "codec", "cells", "body bytes", "allocated", "as JSON text"], rows, 2)


def _codecs(report: Report) -> Table:
    rows = [
        [
            each.column_name,
            each.codec,
            str(each.sampled) + (f", {each.left} left" if each.left else ""),
            _share_text(each.body_share.low, each.body_share.mid, each.body_share.high),
            _share_text(each.allocated_share.low, each.allocated_share.mid, each.allocated_share.high),
            f"{each.encode_s * 1e6:,.0f}, {each.decode_s * 1e6:,.0f}",
            f"{seconds_text(each.encode_s_per_day)}, {seconds_text(each.decode_s_per_day)}",
        ]
        for each in sorted(report.trials, key=lambda each: (each.column_name, each.allocated_share.mid))
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


def _clusters(report: Report) -> Table:
    rows = []
    for space in report.measurement.clusters:
        known = space.problem is None
        rows.append(
            [
                space.cluster,
                f"{space.read_from} {space.node}" if known else f"not measured: {space.problem}",
                str(space.copies),
                str(space.shards),
                _size(space.file_bytes),
                "?" if space.rebuilt_bytes is None else estimate_text(space.rebuilt_bytes, bytes_text),
                _size(space.disk_bytes),
                _size(space.free_bytes),
                {"server": "server", "flag": "given"}.get(space.disk_from or "", "?"),
            ]
        )
    columns = ["cluster", "read from", "copies", "shards", "files", "if rebuilt", "disk", "free", "disk known from"]
    return Table("Clusters", columns, rows, 2)


def _cluster_skew(report: Report) -> Table:
    rows = [
        [
            each.cluster,
            estimate_text(_allocated(report, each.cluster), bytes_text),
            bytes_text(each.even_bytes),
            f"{each.now_bytes / each.even_bytes:.2f}" if each.even_bytes else "",
            bytes_text(each.after_bytes),
        ]
        for each in report.skew.clusters
    ]
    note = (
        "By its disk's share of all disks." if report.skew.by_disk else "The same for each, as not all disks are known."
    )
    if report.skew.shard_ratio is not None:
        note += f" The largest shard has {report.skew.shard_ratio:.2f} times the average one."
    return Table("Skew", ["cluster", "allocated", "its share", "of its share", "after the moves"], rows, 1, note)


def _allocated(report: Report, cluster: str, shard: int | None = None) -> Interval:
    return added(
        group.allocated_bytes
        for group in report.measurement.groups
        if group.cluster == cluster and shard in (None, group.shard)
    )


def _moves(report: Report) -> Table:
    rows = [
        [str(each.shard), each.from_cluster, each.to_cluster, bytes_text(each.size_bytes)]
        for each in report.skew.moves[:_MOST_SHARD_ROWS]
    ]
    more = len(report.skew.moves) - len(rows)
    note = f"A plan: nothing is moved. {bytes_text(report.skew.moved_bytes)} in all." + (
        f" {more} more in --json." if more > 0 else ""
    )
    return Table("Moves that would even it out", ["shard", "from", "to", "allocated"], rows, 3, note)


def per_day_text(history: Sequence[tuple[datetime.date, float]]) -> str:
    """Return what a day brings now, as the last four weeks did, with its interval; "?" of less than two weeks."""
    from schemaless.capacity.steps import rate

    found = rate(history)
    return "?" if found is None else estimate_text(found.per_day, bytes_text)


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


def joined(words: Iterable[str]) -> str:
    """Return a list in words."""
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last


def _share_text(low: float, mid: float, high: float) -> str:
    return f"{mid:.1%}" if low == high else f"{mid:.1%} ({low:.1%} to {high:.1%})"


def _week_text(weekdays: Sequence[float]) -> str:
    names = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
    most, least = max(range(7), key=lambda day: weekdays[day]), min(range(7), key=lambda day: weekdays[day])
    return f"{names[most]} {weekdays[most]:.0%}, {names[least]} {weekdays[least]:.0%}"


def _all_beyond(outlook: DiskOutlook) -> bool:
    return outlook.days is not None and math.isinf(outlook.days.low_95)


def _range(low: float, high: float, horizon: int) -> str:
    if math.isinf(low):
        return f"over {horizon:,}"
    if high == 0:
        return ""
    return f"{_whole(low)} or more" if math.isinf(high) else f"{_whole(low)} to {_whole(high)}"


def _whole(days: float) -> str:
    return f"{math.floor(days):,}"


def _days(days: float, horizon: int) -> str:
    if math.isinf(days):
        return f"over {horizon:,} days"
    if days == 0:
        return "no room"
    whole = math.floor(days)
    return "less than a day" if whole == 0 else "1 day" if whole == 1 else f"{whole:,} days"


def _size(count: int | None) -> str:
    return "?" if count is None else bytes_text(count)
