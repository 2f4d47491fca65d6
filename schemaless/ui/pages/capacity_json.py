"""Convert a capacity report to plain values for JSON: bytes, days and CPU seconds; null for unknown and for never."""

from __future__ import annotations

import datetime
import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from schemaless.base.numbers import Interval, adding_up
from schemaless.planning.capacity.comparison import Comparison
from schemaless.planning.capacity.disk_forecast import DiskForecast
from schemaless.planning.capacity.forecast import Band, NoForecast, whole_days
from schemaless.planning.capacity.planning import Cost, Level, Planning
from schemaless.planning.capacity.report import CapacityReport, ColumnForecast, datastore_totals
from schemaless.planning.capacity.skew import ShardSize, fullest
from schemaless.planning.capacity.whatif import DiskOutlook, Scenario
from schemaless.planning.sampling.recommendation import Choice
from schemaless.ui.terminal.output import facts


def report_json(report: CapacityReport) -> dict[str, Any]:
    """Return a report as plain values for ``json.dumps``."""
    return {
        "made_at": report.made_at.isoformat(timespec="seconds"),
        "datastore": report.measurement.datastore,
        "answer": {
            "warnings": list(report.warnings),
            "now": _first_json(report.now),
            "after_re_encoding": None if report.after is None else {"codec": report.codec, **_first_json(report.after)},
        },
        "planning": _planning_json(report.planning),
        "comparison": [_comparison_json(comparison) for comparison in report.comparisons],
        "datastores": [
            {
                **facts(total, "name"),
                "cells": _rounded(total.cells),
                "body_bytes": _rounded(total.body_bytes),
                **facts(total, "file_bytes", "copies_bytes"),
                "bytes_per_day": round(total.bytes_per_day),
                "first": total.first and _outlook_json(total.first),
            }
            for total in datastore_totals(report)
        ],
        "measured_at": [at.isoformat(timespec="seconds") for at in report.measured_at],
        "measurement": report.measurement.to_json(trials=False),
        "forecasts": {
            "disks": [
                {
                    "disk": growth.disk.name,
                    **facts(growth.disk, "disk_bytes", "free_bytes", "free_assumed", "file_bytes"),
                    "steps": [{"day": step.day.isoformat(), "times": round(step.times, 4)} for step in growth.steps],
                    "rate": growth.rate and {"days": growth.rate.days, "bytes_per_day": _rounded(growth.rate.per_day)},
                    "used": {
                        "by_growth": [[day.isoformat(), round(size)] for day, size in growth.used.by_day],
                        "by_files": [
                            [at.isoformat(timespec="seconds"), round(size)] for at, size in growth.used.measured
                        ],
                    },
                    **_forecast_json(growth),
                }
                for growth in report.disks
            ],
            "columns": [
                {**facts(column, "cluster", "column_name"), **_forecast_json(column)} for column in report.columns
            ],
        },
        "codecs": [
            {
                **facts(trial, "column_name", "codec"),
                "sampled_cells": trial.sampled,
                "left_cells": trial.left_cells,
                **{
                    name: _rounded(getattr(trial, name), 5)
                    for name in ("body_share", "allocated_share", "migrated_share")
                },
                "cells_per_day": round(trial.cells_per_day, 3),
                "encode_cpu_s_per_day": trial.encode_s_per_day,
                "decode_cpu_s_per_day": trial.decode_s_per_day,
            }
            for trial in report.trials
        ],
        "engines": [
            {
                **facts(effect, "column_name", "engine", "codec"),
                "sampled_cells": effect.sampled,
                "now_bytes_per_body_byte": round(effect.now_per_body, 5),
                "bytes_per_body_byte": _rounded(effect.per_body, 5),
                "share": _rounded(effect.share, 5),
            }
            for effect in report.engines
        ],
        "choice": None if report.choice is None else _choice_json(report.choice),
        "scenarios": [
            {
                **facts(scenario, "name", "text", "codec"),
                "file_bytes": scenario.file_bytes and _rounded(scenario.file_bytes),
                "disks": [_outlook_json(outlook) for outlook in scenario.disks],
            }
            for scenario in report.scenarios
        ],
        "skew": {
            "largest_shard_over_average": report.skew.shard_ratio,
            "fullest_cluster_over_its_share": report.skew.cluster_ratio,
            "fullest_cluster_over_its_share_after_moves": report.skew.cluster_ratio_after,
            "shares_by_disk": report.skew.by_disk,
            "clusters": [
                {"cluster": fill.cluster}
                | {name: round(getattr(fill, name)) for name in ("now_bytes", "even_bytes", "after_bytes")}
                for fill in report.skew.clusters
            ],
            "shards": [_shard_json(size) for size in report.skew.shards],
            "fullest_shards": [_shard_json(size) for size in fullest(report.shard_sizes)],
            "fullest_by": "allocated" if report.skew.shards else "file",
            "moves": [
                {"shard": move.shard, "from": move.from_cluster, "to": move.to_cluster, "bytes": round(move.size_bytes)}
                for move in report.skew.moves
            ],
        },
        "notes": list(report.notes),
        "how": dict(report.how),
    }


def _shard_json(size: ShardSize) -> dict[str, Any]:
    return {"shard": size.shard, "cluster": size.cluster, "bytes": round(size.size_bytes)}


def _planning_json(planning: Planning) -> dict[str, Any]:
    verdict = planning.verdict
    return {
        **facts(planning.options, "thresholds", "lead_days", "price_per_tb"),
        "now": [_level_json(level) for level in planning.now],
        "after_re_encoding": [_level_json(level) for level in planning.after],
        "costs": [{"stored": cost.name, **_cost_json(cost)} for cost in planning.costs],
        "verdict": verdict and {"fail_below_days": verdict.asked_days, **facts(verdict, "failed", "reasons")},
    }


def _cost_json(cost: Cost) -> dict[str, Any]:
    price = cost.price and {name: round(price, 2) for name, price in cost.price._asdict().items()}
    return {
        "days": cost.days,
        "bytes": {name: round(size) for name, size in cost.size_bytes._asdict().items()},
        "price": price,
    }


def _comparison_json(comparison: Comparison) -> dict[str, Any]:
    change, cost = comparison.change, comparison.cost
    return {
        **facts(change, "name"),
        "text": change.description,
        "changes": {
            "growth": dict(change.growth_by_datastore) if isinstance(change.growth, Mapping) else change.growth,
            **facts(change, "codec", "engine", "copies", "price_per_tb", "lead_days"),
            "rebuilt": change.rebuilds,
        },
        "first_full": comparison.full and _level_json(comparison.full),
        "price_per_tb": comparison.price_per_tb,
        "stored_bytes": comparison.stored_bytes and _rounded(comparison.stored_bytes),
        "added_bytes": None if comparison.added_bytes is None else round(comparison.added_bytes),
        "growth": cost and _cost_json(cost),
        "budget": cost
        and {
            "start_price": None if comparison.year_price is None else comparison.budget()[0],
            "months": [
                {
                    "first_day": month.first_day.isoformat(),
                    "days": month.days,
                    "bytes": round(size),
                    "price": None if comparison.year_price is None else price,
                }
                for month, size, price in zip(
                    cost.months,
                    adding_up(month.size_bytes for month in cost.months),
                    comparison.budget()[1:],
                    strict=True,
                )
            ],
            "total_price": _cents(comparison.year_price),
        },
    }


def _cents(price: float | None) -> float | None:
    return None if price is None else round(price, 2)


def _level_json(level: Level) -> dict[str, Any]:
    return {
        **facts(level, "disk", "share"),
        "days": level.days and _days(level.days),
        "on": _dates_json(level.on),
        "order_by": _dates_json(level.order_by),
        "at_constant_rate": level.at_rate and _whole(level.at_rate),
        **facts(level, "horizon_days", "why"),
    }


def _dates_json(dates: Mapping[str, datetime.date | None] | None) -> dict[str, str | None] | None:
    return None if dates is None else {name: None if day is None else day.isoformat() for name, day in dates.items()}


def _choice_json(choice: Choice) -> dict[str, Any]:
    return {
        "codec": None if choice.chosen is None else choice.chosen.name,
        "best": choice.best.name,
        "gain": _rounded((choice.chosen or choice.best).gain, 5),
        **facts(choice, "least_gain", "most_cpu"),
        "knee": choice.knee.name,
        "edge": [
            {"codec": option.name, "share": _rounded(option.share, 5), "cpu_times": choice.cpu_times(option)}
            for option in choice.edge
        ],
        "reason": choice.reason,
    }


def _first_json(scenario: Scenario) -> dict[str, Any]:
    names = ("disk", "days_until_full", "full_on", "horizon_days", "at_constant_rate")
    first = {} if scenario.first is None else _outlook_json(scenario.first)
    unknown = {outlook.disk: outlook.why for outlook in scenario.unknown}
    return {**{name: first.get(name) for name in names}, "unknown": unknown}


def _outlook_json(outlook: DiskOutlook) -> dict[str, Any]:
    days = outlook.at_rate
    return {
        "disk": outlook.disk,
        "free_bytes": outlook.free_bytes and _rounded(outlook.free_bytes),
        "bytes_per_day": None if outlook.bytes_per_day is None else round(outlook.bytes_per_day),
        "days_until_full": outlook.days and _days(outlook.days),
        "full_on": _dates_json(outlook.days.dates(outlook.first_day) if outlook.days and outlook.first_day else None),
        "horizon_days": outlook.horizon_days,
        "at_constant_rate": days and {"rate_of_days": outlook.rate_days, "days_until_full": _whole(days)},
        "why": outlook.why,
    }


def _forecast_json(growth: ColumnForecast | DiskForecast) -> dict[str, Any]:
    forecast = growth.forecast
    result: dict[str, Any] = {"history": [[day.isoformat(), round(value)] for day, value in growth.history]}
    if isinstance(forecast, NoForecast):
        return {**result, "forecast": None, "reason": forecast.reason}
    test = forecast.back_test
    shares = ("daily_error_share", "total_error_share", "failure", "inside_80_share", "inside_95_share")
    result["forecast"] = {
        "first_day": forecast.first_day.isoformat(),
        **facts(forecast, "history_days", "horizon_days"),
        "growth_share_per_year": _band(forecast.growth_share_per_year),
        **facts(forecast, "weekdays", "weekly_share", "compound_share"),
        "daily": [[round(value) for value in band] for band in forecast.daily],
        "cumulative": [[round(value) for value in band] for band in forecast.cumulative],
        "bands": list(Band._fields),
        "back_test": test and facts(test, "fitted_days", "held_days", *shares, "total_inside_80", "total_inside_95"),
    }
    return result


def _band(band: Band) -> dict[str, float | None]:
    return {name: None if math.isinf(value) else round(value, 4) for name, value in band._asdict().items()}


def _days(band: Band) -> dict[str, int | None]:
    return {name: whole_days(days) for name, days in band._asdict().items()}


def _whole(interval: Interval) -> dict[str, int | None]:
    return {name: whole_days(days) for name, days in asdict(interval).items()}


def _rounded(interval: Interval, digits: int | None = None) -> dict[str, float | None]:
    """Round an interval to ``digits`` decimals, or to whole numbers; infinity becomes null."""
    return {name: None if math.isinf(end) else round(end, digits) for name, end in asdict(interval).items()}
