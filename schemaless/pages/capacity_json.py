"""A report as plain values for JSON: bytes, days and CPU seconds; null for what is not known, and for never."""

from __future__ import annotations

import datetime
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from schemaless.capacity.forecast import Band, NoForecast
from schemaless.capacity.skew import fullest
from schemaless.capacity.whatif import DiskOutlook, Scenario
from schemaless.numbers import Interval
from schemaless.survey.choice import Choice

if TYPE_CHECKING:
    from schemaless.capacity.planning import Level, Planning
    from schemaless.capacity.report import CapacityReport, ColumnForecast, DiskForecast

__all__ = ["full_on", "report_json"]


def report_json(report: CapacityReport) -> dict[str, Any]:
    """Return a report for ``json.dumps``."""
    return {
        "made_at": report.made_at.isoformat(timespec="seconds"),
        "datastore": report.measurement.datastore,
        "answer": {
            "warnings": list(report.warnings),
            "now": _first_json(report.now),
            "after_re_encoding": None if report.after is None else {"codec": report.codec, **_first_json(report.after)},
        },
        "planning": _planning_json(report.planning),
        "measured_at": [at.isoformat(timespec="seconds") for at in report.measured_at],
        "measurement": report.measurement.to_json(),
        "forecasts": {
            "disks": [
                {
                    "disk": filling.disk.name,
                    "disk_bytes": filling.disk.disk_bytes,
                    "free_bytes": filling.disk.free_bytes,
                    "free_assumed": filling.disk.free_assumed,
                    "file_bytes": filling.disk.file_bytes,
                    "steps": [{"day": step.day.isoformat(), "times": round(step.times, 4)} for step in filling.steps],
                    "rate": None
                    if filling.rate is None
                    else {"days": filling.rate.days, "bytes_per_day": _bytes(filling.rate.per_day)},
                    "used": {
                        "by_growth": [[day.isoformat(), round(size)] for day, size in filling.used.by_day],
                        "by_files": [
                            [at.isoformat(timespec="seconds"), round(size)] for at, size in filling.used.measured
                        ],
                    },
                    **_forecast_json(filling),
                }
                for filling in report.disks
            ],
            "columns": [
                {"cluster": column.cluster, "column_name": column.column_name, **_forecast_json(column)}
                for column in report.columns
            ],
        },
        "codecs": [
            {
                "column_name": trial.column_name,
                "codec": trial.codec,
                "sampled_cells": trial.sampled,
                "left_cells": trial.left,
                "body_share": _shares(trial.body_share),
                "allocated_share": _shares(trial.allocated_share),
                "migrated_share": _shares(trial.migrated_share),
                "cells_per_day": round(trial.cells_per_day, 3),
                "encode_cpu_s_per_day": trial.encode_s_per_day,
                "decode_cpu_s_per_day": trial.decode_s_per_day,
            }
            for trial in report.trials
        ],
        "choice": None if report.choice is None else _choice_json(report.choice),
        "scenarios": [
            {
                "name": scenario.name,
                "text": scenario.text,
                "codec": scenario.codec,
                "file_bytes": None if scenario.file_bytes is None else _bytes(scenario.file_bytes),
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
                {
                    "cluster": fill.cluster,
                    "now_bytes": round(fill.now_bytes),
                    "even_bytes": round(fill.even_bytes),
                    "after_bytes": round(fill.after_bytes),
                }
                for fill in report.skew.clusters
            ],
            "shards": [
                {"shard": shard.shard, "cluster": shard.cluster, "bytes": round(shard.size_bytes)}
                for shard in report.skew.shards
            ],
            "fullest_shards": [
                {"shard": shard.shard, "cluster": shard.cluster, "bytes": round(shard.size_bytes)}
                for shard in fullest(report.shard_sizes)
            ],
            "fullest_by": "allocated" if report.skew.shards else "file",
            "moves": [
                {
                    "shard": move.shard,
                    "from": move.from_cluster,
                    "to": move.to_cluster,
                    "bytes": round(move.size_bytes),
                }
                for move in report.skew.moves
            ],
        },
        "notes": list(report.notes),
        "how": dict(report.how),
    }


def _planning_json(planning: Planning) -> dict[str, Any]:
    asked, verdict = planning.wishes, planning.verdict
    return {
        "thresholds": list(asked.thresholds),
        "lead_days": asked.lead_days,
        "price_per_tb": asked.price_per_tb,
        "now": [_level_json(level) for level in planning.now],
        "after_re_encoding": [_level_json(level) for level in planning.after],
        "costs": [
            {
                "stored": cost.name,
                "days": cost.days,
                "bytes": {name: round(size) for name, size in cost.size_bytes._asdict().items()},
                "price": {name: round(price, 2) for name, price in cost.price._asdict().items()},
            }
            for cost in planning.costs
        ],
        "verdict": None
        if verdict is None
        else {"fail_below_days": verdict.asked_days, "failed": verdict.failed, "reasons": list(verdict.reasons)},
    }


def _level_json(level: Level) -> dict[str, Any]:
    return {
        "disk": level.disk,
        "share": level.share,
        "days": None if level.days is None else _band(level.days),
        "on": _dates_json(level.on),
        "order_by": _dates_json(level.order_by),
        "at_constant_rate": None if level.at_rate is None else _plain_json(level.at_rate),
        "horizon_days": level.horizon_days,
        "why": level.why,
    }


def _dates_json(dates: Mapping[str, datetime.date | None] | None) -> dict[str, str | None] | None:
    return None if dates is None else {name: None if day is None else day.isoformat() for name, day in dates.items()}


def _choice_json(choice: Choice) -> dict[str, Any]:
    return {
        "codec": None if choice.chosen is None else choice.chosen.name,
        "best": choice.best.name,
        "gain": _shares(choice.best.gain if choice.chosen is None else choice.chosen.gain),
        "least_gain": choice.least_gain,
        "most_cpu": choice.most_cpu,
        "knee": choice.knee.name,
        "edge": [
            {"codec": option.name, "share": _shares(option.share), "cpu_times": choice.cpu_times(option)}
            for option in choice.edge
        ],
        "reason": choice.reason,
    }


def _first_json(scenario: Scenario) -> dict[str, Any]:
    first = scenario.first
    return {
        "disk": None if first is None else first.disk,
        "days_until_full": None if first is None or first.days is None else _band(first.days),
        "full_on": None if first is None else full_on(first),
        "horizon_days": None if first is None else first.horizon_days,
        "at_constant_rate": None if first is None else _at_rate_json(first),
        "unknown": {unknown.disk: unknown.why for unknown in scenario.unknown},
    }


def _outlook_json(outlook: DiskOutlook) -> dict[str, Any]:
    return {
        "disk": outlook.disk,
        "free_bytes": None if outlook.free_bytes is None else _bytes(outlook.free_bytes),
        "bytes_per_day": None if outlook.bytes_per_day is None else round(outlook.bytes_per_day),
        "days_until_full": None if outlook.days is None else _band(outlook.days),
        "full_on": full_on(outlook),
        "horizon_days": outlook.horizon_days,
        "at_constant_rate": _at_rate_json(outlook),
        "why": outlook.why,
    }


def _at_rate_json(outlook: DiskOutlook) -> dict[str, Any] | None:
    days = outlook.at_rate
    return None if days is None else {"rate_of_days": outlook.rate_days, "days_until_full": _plain_json(days)}


def _plain_json(days: Interval) -> dict[str, float | None]:
    ends = {name: getattr(days, name) for name in ("low", "mid", "high")}
    return {name: None if math.isinf(value) else round(value, 3) for name, value in ends.items()}


def full_on(outlook: DiskOutlook) -> dict[str, str | None] | None:
    """Return the dates of an outlook's days, null for those beyond the horizon."""
    first, days = outlook.first_day, outlook.days
    if first is None or days is None:
        return None
    return {
        name: None if math.isinf(value) else (first + datetime.timedelta(math.floor(value))).isoformat()
        for name, value in days._asdict().items()
    }


def _forecast_json(grown: ColumnForecast | DiskForecast) -> dict[str, Any]:
    forecast = grown.forecast
    result: dict[str, Any] = {"history": [[day.isoformat(), round(value)] for day, value in grown.history]}
    if isinstance(forecast, NoForecast):
        return {**result, "forecast": None, "reason": forecast.reason}
    test = forecast.back_test
    result["forecast"] = {
        "first_day": forecast.first_day.isoformat(),
        "history_days": forecast.history_days,
        "horizon_days": forecast.horizon_days,
        "growth_share_per_year": _band(forecast.growth_share_per_year),
        "weekdays": forecast.weekdays,
        "weekly_share": forecast.weekly_share,
        "compound_share": forecast.compound_share,
        "daily": [[round(value) for value in band] for band in forecast.daily],
        "cumulative": [[round(value) for value in band] for band in forecast.cumulative],
        "bands": list(Band._fields),
        "back_test": None
        if test is None
        else {
            "fitted_days": test.fitted_days,
            "held_days": test.held_days,
            "daily_error_share": test.daily_error_share,
            "total_error_share": test.total_error_share,
            "failure": test.failure,
            "inside_80_share": test.inside_80_share,
            "inside_95_share": test.inside_95_share,
            "total_inside_80": test.total_inside_80,
            "total_inside_95": test.total_inside_95,
        },
    }
    return result


def _band(band: Band) -> dict[str, float | None]:
    return {name: None if math.isinf(value) else round(value, 4) for name, value in band._asdict().items()}


def _bytes(estimate: Interval) -> dict[str, int]:
    return {"low": round(estimate.low), "mid": round(estimate.mid), "high": round(estimate.high)}


def _shares(estimate: Interval) -> dict[str, float]:
    return {"low": round(estimate.low, 5), "mid": round(estimate.mid, 5), "high": round(estimate.high, 5)}
