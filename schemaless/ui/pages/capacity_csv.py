"""Format a capacity report as CSV, one figure per line."""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable, Mapping
from typing import Any

from schemaless.base.numbers import Interval, adding_up
from schemaless.planning.capacity.comparison import Comparison
from schemaless.planning.capacity.disk_forecast import DiskForecast
from schemaless.planning.capacity.forecast import Forecast, whole_days
from schemaless.planning.capacity.planning import Cost, Planning
from schemaless.planning.capacity.report import CapacityReport, datastore_totals
from schemaless.planning.capacity.skew import fullest
from schemaless.planning.capacity.whatif import Scenario
from schemaless.ui.terminal.shown import CSVText


def csv_text(report: CapacityReport) -> str:
    """Return one line per figure with section, name, item, unit and intervals; empty values mean unknown or never."""
    writer = CSVText()
    writer.writerow(["section", "name", "item", "figure", "unit", "low_95", "low_80", "value", "high_80", "high_95"])

    def line(section: str, name: str, item: str, figure: str, unit: str, *values: Any) -> None:
        low_95, low_80, mid, high_80, high_95 = values if len(values) == 5 else ("", "", *values, "", "")
        numbers = [
            "" if isinstance(value, float) and math.isinf(value) else value
            for value in (low_95, low_80, mid, high_80, high_95)
        ]
        writer.writerow([section, name, item, figure, unit, *numbers])

    for scenario in report.scenarios:
        _scenario_lines(line, scenario)
    _planning_lines(line, report.planning)
    for compared in report.comparisons:
        _comparison_lines(line, compared)
    _datastore_lines(line, report)
    _codec_lines(line, report)
    for disk_forecast in report.disks:
        _disk_lines(line, disk_forecast)
    _skew_lines(line, report)
    return writer.getvalue()


def _scenario_lines(line: Callable[..., None], scenario: Scenario) -> None:
    for outlook in scenario.disks:
        where = ("scenario", scenario.name, outlook.disk)
        if outlook.days is not None:
            line(*where, "days_until_full", "days", *map(_days, outlook.days))
        if outlook.at_rate is not None:
            line(*where, "days_at_constant_rate", "days", *_five(outlook.at_rate, math.floor))
        if outlook.free_bytes is not None:
            line(*where, "free", "bytes", *_five(outlook.free_bytes, round))
        if outlook.bytes_per_day is not None:
            line(*where, "growth_per_day", "bytes", round(outlook.bytes_per_day))


def _codec_lines(line: Callable[..., None], report: CapacityReport) -> None:
    for group in report.measurement.groups:
        name = group.cluster if group.shard is None else f"{group.cluster} shard {group.shard}"
        for figure in ("cells", "body_bytes", "allocated_bytes", "json_bytes"):
            size = getattr(group, figure)
            unit = "cells" if figure == "cells" else "bytes"
            line("stored", name, f"{group.column_name} {group.codec}", figure, unit, *_five(size, round))
    for trial in report.trials:
        where = ("codec", trial.codec, trial.column_name)
        for figure in ("body_share", "allocated_share"):
            line(*where, figure, "share", *_five(getattr(trial, figure), lambda share: round(share, 5)))
        line(*where, "encode", "cpu_s_per_day", trial.encode_s_per_day)
        line(*where, "decode", "cpu_s_per_day", trial.decode_s_per_day)
    for effect in report.engines:
        where = ("engine", effect.engine, f"{effect.column_name} {effect.codec or 'as stored'}")
        line(*where, "now", "bytes per body byte", round(effect.now_per_body, 5))
        for figure, unit in (("per_body", "bytes per body byte"), ("share", "share")):
            line(*where, figure, unit, *_five(getattr(effect, figure), lambda value: round(value, 5)))


def _skew_lines(line: Callable[..., None], report: CapacityReport) -> None:
    kind = "allocated" if report.skew.shards else "file"
    for shard in fullest(report.shard_sizes):
        line("fullest", f"shard {shard.shard}", shard.cluster, kind, "bytes", round(shard.size_bytes))
    for fill in report.skew.clusters:
        line("skew", fill.cluster, "", "now", "bytes", round(fill.now_bytes))
        line("skew", fill.cluster, "", "even", "bytes", round(fill.even_bytes))
    for move in report.skew.moves:
        where = f"{move.from_cluster} to {move.to_cluster}"
        line("move", f"shard {move.shard}", where, "move", "bytes", round(move.size_bytes))


def _disk_lines(line: Callable[..., None], disk_forecast: DiskForecast) -> None:
    name = disk_forecast.disk.name
    for day, value in disk_forecast.history:
        line("history", name, day.isoformat(), "growth", "bytes", round(value))
    for day, size in disk_forecast.used.by_day:
        line("used", name, day.isoformat(), "by_growth", "bytes", round(size))
    for at, size in disk_forecast.used.measured:
        line("used", name, at.isoformat(timespec="seconds"), "by_files", "bytes", round(size))
    forecast = disk_forecast.forecast
    if isinstance(forecast, Forecast):
        for number, band in enumerate(forecast.daily):
            day = forecast.first_day + datetime.timedelta(number)
            line("forecast", name, day.isoformat(), "growth", "bytes", *(round(value) for value in band))


def _planning_lines(line: Callable[..., None], planning: Planning) -> None:
    for stored, levels in (("now", planning.now), ("after", planning.after)):
        for level in levels:
            where = ("level", stored, level.disk)
            name = f"{level.share * 100:.6g}%"
            if level.days is not None:
                line(*where, f"days_until_{name}", "days", *map(_days, level.days))
            if level.on is not None:
                line(*where, f"{name}_on", "date", *_dates(level.on))
            if level.order_by is not None:
                line(*where, f"order_for_{name}", "date", *_dates(level.order_by))
    for cost in planning.costs:
        _cost_lines(line, "cost", cost)
    if planning.verdict is not None:
        line("verdict", "now", "", "failed", "", int(planning.verdict.failed))


def _cost_lines(line: Callable[..., None], section: str, cost: Cost) -> None:
    period = f"{cost.days} days"
    line(section, cost.name, period, "growth", "bytes", *(round(size) for size in cost.size_bytes))
    if cost.price is not None:
        line(section, cost.name, period, "price", "", *(round(price, 2) for price in cost.price))


def _comparison_lines(line: Callable[..., None], compared: Comparison) -> None:
    name = compared.change.name
    for what, value in compared.change.changes.items():
        line("change", name, "", what, "", value)
    if compared.full is not None and compared.full.days is not None:
        where = ("comparison", name, compared.full.disk)
        if compared.full.on is not None:
            line(*where, "full_on", "date", *_dates(compared.full.on))
        if compared.full.order_by is not None:
            line(*where, "order_by", "date", *_dates(compared.full.order_by))
    if compared.stored_bytes is not None:
        line("comparison", name, "all copies", "stored", "bytes", *_five(compared.stored_bytes, round))
    if compared.cost is not None:
        _cost_lines(line, "comparison", compared.cost)
        _budget_lines(line, compared, compared.cost)


def _budget_lines(line: Callable[..., None], compared: Comparison, cost: Cost) -> None:
    start, *prices = compared.budget()
    sizes = adding_up(month.size_bytes for month in cost.months)

    def price_line(at: str, price: float) -> None:
        if compared.year_price is not None:
            line("budget", compared.change.name, at, "price", "", price)

    price_line("start", start)
    for month, size, price in zip(cost.months, sizes, prices, strict=True):
        at = month.first_day.isoformat()
        line("budget", compared.change.name, at, "growth", "bytes", round(size))
        price_line(at, price)
    price_line("total", round(compared.year_price or 0.0, 2))


def _datastore_lines(line: Callable[..., None], report: CapacityReport) -> None:
    for total in datastore_totals(report):
        where = ("datastore", total.name or "(all)")
        line(*where, "", "cells", "cells", *_five(total.cells, round))
        line(*where, "", "body_bytes", "bytes", *_five(total.body_bytes, round))
        if total.file_bytes is not None:
            line(*where, "", "file_bytes", "bytes", total.file_bytes)
            line(*where, "", "copies_bytes", "bytes", total.copies_bytes)
        line(*where, "", "growth_per_day", "bytes", round(total.bytes_per_day))
        if total.first is not None and total.first.days is not None:
            line(*where, total.first.disk, "days_until_full", "days", *map(_days, total.first.days))


def _days(days: float) -> float:
    whole = whole_days(days)
    return math.inf if whole is None else whole


def _dates(dates: Mapping[str, datetime.date | None]) -> list[str]:
    return ["" if day is None else day.isoformat() for day in dates.values()]


def _five(interval: Interval, text: Callable[[float], float] = float) -> tuple[Any, ...]:
    """Return a 95 % interval as the five values of a line."""
    low, mid, high = (value if math.isinf(value) else text(value) for value in interval)
    return low, "", mid, "", high
