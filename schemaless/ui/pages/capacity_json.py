"""A capacity report as plain values for JSON (null for unknown and for never), and the same flattened to CSV."""

from __future__ import annotations

import datetime
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from typing import Any, Final

from schemaless.base.numbers import Interval, adding_up
from schemaless.planning.capacity.basis import ColumnForecast, DiskForecast
from schemaless.planning.capacity.forecast import Band, NoForecast, whole_days
from schemaless.planning.capacity.planning import ColdTier, Comparison, Cost, Level, Planning, Saving
from schemaless.planning.capacity.report import CapacityReport, datastore_totals
from schemaless.planning.capacity.skew import ShardSize, fullest
from schemaless.planning.capacity.whatif import DiskOutlook, Scenario
from schemaless.planning.sampling.recommendation import Choice, Option
from schemaless.ui.terminal.output import facts
from schemaless.ui.terminal.shown import CSVText

_ENDS: Final = ("low_95", "low_80", "value", "high_80", "high_95")
_COLUMNS: Final = {"low": "low_95", "mid": "value", "high": "high_95"} | {end: end for end in _ENDS}
_NAMES: Final = (
    *("stored", "cluster", "disk", "shard", "from", "to", "column_name", "engine", "codec", "share", "day"),
    "first_day",
)
"""Keys whose values together name an entry of a list that has no ``name``."""


def report_json(report: CapacityReport) -> dict[str, Any]:
    """Return a report as plain values for ``json.dumps``."""
    skew = report.skew
    return {
        "made_at": _plain(report.made_at),
        "datastore": report.measurement.datastore,
        "answer": {
            "saving": report.saving and {"codec": report.codec, **saving_json(report.saving)},
            "warnings": list(report.warnings),
            "now": _first_json(report.now),
            "after_re_encoding": None if report.after is None else {"codec": report.codec, **_first_json(report.after)},
        },
        "planning": _planning_json(report.planning),
        "comparison": [_comparison_json(comparison) for comparison in report.comparisons],
        "datastores": [
            _facts(total, "name", "cells", "body_bytes", "file_bytes", "copies_bytes", "bytes_per_day")
            | {"first": total.first and _outlook_json(total.first)}
            for total in datastore_totals(report)
        ],
        "measured_at": [_plain(measurement.taken_at) for measurement in report.measurements],
        "measurement": report.measurement.to_json(trials=False),
        "forecasts": {
            "disks": [
                {
                    "disk": growth.disk.name,
                    **_facts(growth.disk, "disk_bytes", "free_bytes", "free_assumed", "file_bytes"),
                    "steps": [_facts(step, "day", "times", digits=4) for step in growth.steps],
                    "rate": growth.rate and {"days": growth.rate.days, "bytes_per_day": _plain(growth.rate.per_day)},
                    "used": {
                        "by_growth": _pairs(growth.usage_by_day()),
                        "by_files": _pairs(growth.usage_measured(report.measurements)),
                    },
                    **_forecast_json(growth),
                }
                for growth in report.disks
            ],
            "columns": [_facts(column, "cluster", "column_name") | _forecast_json(column) for column in report.columns],
        },
        "codecs": [
            {
                **_facts(trial, "column_name", "codec"),
                "sampled_cells": trial.sampled,
                "left_cells": trial.left_cells,
                "body_share": _plain(trial.share, 5),
                "allocated_share": _plain(trial.pages_share, 5),
                "migrated_share": _plain(trial.migrated_pages_share, 5),
                "cells_per_day": round(report.cells_per_day(trial.column_name), 3),
                "encode_cpu_s_per_day": trial.encode_s * report.cells_per_day(trial.column_name),
                "decode_cpu_s_per_day": trial.decode_s * report.cells_per_day(trial.column_name),
            }
            for trial in report.tried
        ],
        "versions": [
            {
                **_facts(trial, "column_name", "codec"),
                "versions_per_row": _plain(trial.versions, 2),
                "superseded_share": _plain(trial.now, 5),
                "delta_share": _plain(trial.as_deltas, 5),
            }
            for trial in report.history
        ],
        "engines": [
            {
                **_facts(effect, "column_name", "engine", "codec"),
                "sampled_cells": effect.sampled,
                "now_bytes_per_body_byte": round(effect.now_per_body, 5),
                "bytes_per_body_byte": _plain(effect.per_body, 5),
                "share": _plain(effect.share, 5),
            }
            for effect in report.engines
        ],
        "cold_files": [
            {"column_name": column, "share": _plain(share, 5)} for column, share in sorted(report.file_share.items())
        ],
        "choice": None if report.choice is None else _choice_json(report.choice),
        "scenarios": [
            {
                "name": scenario.name,
                "text": scenario.change.description,
                "codec": scenario.change.trial,
                "file_bytes": _plain(scenario.file_bytes),
                "disks": [_outlook_json(outlook) for outlook in scenario.disks],
            }
            for scenario in report.scenarios
        ],
        "skew": {
            "largest_shard_over_average": skew.shard_ratio,
            "fullest_cluster_over_its_share": skew.cluster_ratio,
            "fullest_cluster_over_its_share_after_moves": skew.cluster_ratio_after,
            "shares_by_disk": skew.by_disk,
            "clusters": [_facts(fill, "cluster", "now_bytes", "even_bytes", "after_bytes") for fill in skew.clusters],
            "shards": [_shard_json(size) for size in skew.shards],
            "fullest_shards": [_shard_json(size) for size in fullest(report.shard_sizes)],
            "fullest_by": "allocated" if skew.shards else "file",
            "moves": [
                {"shard": move.shard, "from": move.from_cluster, "to": move.to_cluster, "bytes": round(move.size_bytes)}
                for move in skew.moves
            ],
        },
        "notes": list(report.notes),
        "how": dict(report.how),
    }


def csv_text(report: CapacityReport) -> str:
    """Return the values of ``report_json`` as CSV, one line per value that is known; what never happens is empty.

    The columns are the section (the keys that lead to the value), the item (the names of the list entry that holds it,
    or its number from 1), the figure (the value's own key), the value, and the ends of its 80 % and 95 % intervals. The
    item of a figure by day is the day.
    """
    writer = CSVText()
    writer.writerow(["section", "item", "figure", *_ENDS])
    for section, item, figure, values in _flat(report_json(report), "", "", ""):
        if values != {"value": None}:
            writer.writerow([section, item, figure, *(values.get(end) for end in _ENDS)])
    return writer.getvalue()


def _flat(value: Any, section: str, item: str, figure: str) -> Iterator[tuple[str, str, str, dict[str, Any]]]:
    """Yield the section, item, figure, and values by column of each figure in JSON data."""
    inner = f"{section}.{figure}".strip(".")
    if section.startswith("measurement") and isinstance(value, list) and [type(part) for part in value] == [int] * 3:
        value = dict(zip(("low", "mid", "high"), value, strict=True))  # An interval in a measurement's own JSON form.
    if isinstance(value, dict) and value.keys() <= _COLUMNS.keys():
        yield section, item, figure, {_COLUMNS[end]: part for end, part in value.items()}
    elif isinstance(value, dict):
        for key, part in value.items():
            yield from _flat(part, inner, item, key)
    elif isinstance(value, list):
        for number, part in enumerate(value, start=1):
            if isinstance(part, dict):
                keys = ("name",) if part.get("name") else _NAMES
                names = [key for key in keys if isinstance(part.get(key), str | int | float)]
                named = [item, *dict.fromkeys(str(part[key]) for key in names)] if names else [item, str(number)]
                figures = {key: inner for key, inner in part.items() if key not in names}
                yield from _flat(figures, section, " ".join(filter(None, named)), figure)
            elif isinstance(part, list) and len(part) == 2:
                yield section, f"{item} {part[0]}".strip(), figure, {"value": part[1]}
            elif isinstance(part, list):
                yield section, f"{item} {number}".strip(), figure, dict(zip(_ENDS, part, strict=True))
            else:
                yield section, f"{item} {number}".strip(), figure, {"value": part}
    else:
        yield section, item, figure, {"value": value}


def _shard_json(size: ShardSize) -> dict[str, Any]:
    return {"shard": size.shard, "cluster": size.cluster, "bytes": round(size.size_bytes)}


def _planning_json(planning: Planning) -> dict[str, Any]:
    verdict = planning.verdict
    return {
        **facts(planning.options, "thresholds", "lead_days", "price_per_tb", "cold_price_per_gb"),
        "now": [_level_json(level) for level in planning.now],
        "after_re_encoding": [_level_json(level) for level in planning.after],
        "costs": [{"stored": cost.name, **_cost_json(cost)} for cost in planning.costs],
        "verdict": verdict and {"fail_below_days": verdict.asked_days, **facts(verdict, "failed", "reasons")},
    }


def saving_json(saving: Saving) -> dict[str, Any]:
    """Return what a change saves as plain values for ``json.dumps``."""
    return {
        **_facts(saving, "days", "freed_bytes"),
        "share": _plain(saving.share, 5),
        "bytes_per_month": _plain(saving.bytes_per_month),
        "price_per_month": _plain(saving.price_per_month, 2),
    }


def _cost_json(cost: Cost) -> dict[str, Any]:
    return {"days": cost.days, "bytes": _plain(cost.size_bytes), "price": _plain(cost.price, 2)}


def _comparison_json(comparison: Comparison) -> dict[str, Any]:
    change, cost = comparison.change, comparison.cost
    return {
        "name": change.name,
        "text": change.description,
        "changes": {
            "growth": dict(change.growth_by_datastore) if isinstance(change.growth, Mapping) else change.growth,
            **facts(change, "codec", "history", "dictionary", "engine", "copies", "price_per_tb", "lead_days"),
            "tier_after": dict(change.tiers) if isinstance(change.tier_after, Mapping) else change.tier_after,
            "rebuilt": change.rebuilds,
        },
        "first_full": comparison.full and _level_json(comparison.full),
        "price_per_tb": comparison.price_per_tb,
        **_facts(comparison, "stored_bytes", "added_bytes"),
        "growth": cost and _cost_json(cost),
        "cold": comparison.cold and cold_json(comparison.cold),
        "budget": cost and _budget_json(comparison, cost),
    }


def cold_json(cold: ColdTier) -> dict[str, Any]:
    """Return the cold store of a scenario as plain values for ``json.dumps``."""
    return {
        **_facts(cold, "start_bytes", "bytes_per_month"),
        "price_per_gb": cold.price_per_gb,
        "price_of_month": _plain(cold.price_of_month, 2),
        "growth_bytes": _plain(cold.growth.size_bytes),
        "months": [
            {**_facts(month, "first_day", "days"), "bytes": round(month.size_bytes), "price": round(rent, 4)}
            for month, rent in zip(cold.growth.months, cold.rents, strict=True)
        ],
    }


def _budget_json(comparison: Comparison, cost: Cost) -> dict[str, Any]:
    start, *prices = comparison.budget() if comparison.year_price is not None else [None] * (1 + len(cost.months))
    sizes = adding_up(month.size_bytes for month in cost.months)
    return {
        "start_price": start,
        "months": [
            {**_facts(month, "first_day", "days"), "bytes": round(size), "price": price}
            for month, size, price in zip(cost.months, sizes, prices, strict=True)
        ],
        "total_price": _plain(comparison.year_price, 2),
    }


def _level_json(level: Level) -> dict[str, Any]:
    return {
        **facts(level, "disk", "share"),
        "days": _days(level.days),
        **_facts(level, "on", "order_by"),
        "at_constant_rate": _days(level.at_rate),
        **facts(level, "horizon_days", "why"),
    }


def _choice_json(choice: Choice[Option]) -> dict[str, Any]:
    return {
        "codec": None if choice.chosen is None else choice.chosen.name,
        "best": choice.best.name,
        "gain": _plain((choice.chosen or choice.best).gain, 5),
        **facts(choice, "least_gain", "most_cpu"),
        "knee": choice.knee.name,
        "edge": [
            {"codec": option.name, "share": _plain(option.share, 5), "cpu_times": choice.cpu_times(option)}
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
    dates = outlook.days.dates(outlook.first_day) if outlook.days and outlook.first_day else None
    return {
        **_facts(outlook, "disk", "free_bytes", "bytes_per_day"),
        "days_until_full": _days(outlook.days),
        "full_on": _plain(dates),
        "horizon_days": outlook.horizon_days,
        "at_constant_rate": outlook.at_rate
        and {"rate_of_days": outlook.rate_days, "days_until_full": _days(outlook.at_rate)},
        "why": outlook.why,
    }


def _forecast_json(growth: ColumnForecast | DiskForecast) -> dict[str, Any]:
    forecast = growth.forecast
    if isinstance(forecast, NoForecast):
        return {"history": _pairs(growth.history), "forecast": None, "reason": forecast.reason}
    test = forecast.back_test
    shares = ("daily_error_share", "total_error_share", "failure", "inside_80_share", "inside_95_share")
    return {
        "history": _pairs(growth.history),
        "forecast": {
            **_facts(forecast, "first_day", "history_days", "horizon_days"),
            "growth_share_per_year": _plain(forecast.growth_share_per_year, 4),
            **facts(forecast, "weekdays", "weekly_share", "compound_share"),
            "daily": [[round(value) for value in band] for band in forecast.daily],
            "cumulative": [[round(value) for value in band] for band in forecast.cumulative],
            "bands": list(Band._fields),
            "back_test": test
            and facts(test, "fitted_days", "held_days", *shares, "total_inside_80", "total_inside_95"),
        },
    }


def _pairs(history: Iterable[tuple[datetime.date, float]]) -> list[list[Any]]:
    return [[_plain(day), round(value)] for day, value in history]


def _days(days: Interval | Band | None) -> dict[str, int | None] | None:
    return None if days is None else {name: whole_days(end) for name, end in _ends(days).items()}


def _ends(figure: Interval | Band) -> dict[str, float]:
    return figure._asdict() if isinstance(figure, Band) else asdict(figure)


def _facts(value: object, *names: str, digits: int | None = None) -> dict[str, Any]:
    """Return attributes of a value, see ``_plain``."""
    return {name: _plain(getattr(value, name), digits) for name in names}


def _plain(value: Any, digits: int | None = None) -> Any:
    """Return a value for JSON, with figures rounded to ``digits`` decimals or to whole numbers; infinity is null."""
    if isinstance(value, Interval | Band):
        value = _ends(value)
    if isinstance(value, dict):
        return {name: _plain(part, digits) for name, part in value.items()}
    if isinstance(value, datetime.datetime):
        return value.isoformat(timespec="seconds")
    if isinstance(value, datetime.date):
        return value.isoformat()
    if isinstance(value, float):
        return None if math.isinf(value) else round(value, digits)
    return value
