"""Planning: fill thresholds, order dates, costs and the verdict of --fail-below."""

from __future__ import annotations

import csv
import datetime
import math
from dataclasses import replace

import pytest

from schemaless.base.numbers import Interval
from schemaless.errors import InvalidInput
from schemaless.planning.capacity.advice import suggestions
from schemaless.planning.capacity.basis import Collected, DiskForecast
from schemaless.planning.capacity.disks import Disk
from schemaless.planning.capacity.forecast import Forecast, NoForecast
from schemaless.planning.capacity.measurement import Measurement
from schemaless.planning.capacity.model import TB
from schemaless.planning.capacity.options import FULL, Asked, PlanningOptions
from schemaless.planning.capacity.planning import verdict
from schemaless.planning.capacity.report import CapacityReport
from schemaless.store.erasures.retention import parse_policy
from schemaless.ui.pages.capacity_json import csv_text, report_json
from schemaless.ui.pages.capacity_page import capacity_html
from schemaless.ui.pages.capacity_tables import LEVELS, tables
from schemaless.ui.pages.capacity_words import levels_text, planning_lines, verdict_text
from tests.planning.capacity.reports import (
    GIB,
    MIB,
    SHARES,
    TAKEN_AT,
    TODAY,
    common,
    measurement,
    odd_report,
    of_many_shards,
    report,
    space,
    tried,
    unit_of_share,
    within,
)

pytestmark = pytest.mark.once


@pytest.fixture(scope="module")
def asked() -> CapacityReport:
    """The common report with all planning options."""
    return report(planning=PlanningOptions(thresholds=(0.7, 0.95), lead_days=30, price_per_tb=90, fail_below_days=60))


@pytest.mark.long
def test_thresholds_come_one_after_the_other_and_before_full(asked):
    """Every level of a disk is later than the level before it, at all ends of its interval; full is the answer."""
    for found in (asked.planning.now, asked.planning.after):
        for disk in ("cluster-1", "cluster-2"):
            shown = [each for each in found if each.disk == disk]
            assert [each.share for each in shown] == [0.7, 0.95, FULL]
            for end in range(5):
                days = [each.days[end] for each in shown if each.days is not None]
                assert days == sorted(days)
    full = next(each for each in asked.planning.now if each.share == FULL)
    assert asked.now.first is not None
    assert (full.disk, full.days) == (asked.now.first.disk, asked.now.first.days)


def test_a_level_is_reached_when_its_free_space_is_used_up(asked):
    """The growth until the median date of 70 % equals the free space below that level."""
    disk = next(each for each in asked.disks if each.disk.name == "cluster-1")
    level = asked.planning.now[0]
    assert isinstance(disk.forecast, Forecast)
    assert disk.disk.disk_bytes is not None
    assert disk.disk.free_bytes is not None
    assert level.days is not None

    growth = disk.forecast.cumulative[math.floor(level.days.mid)].mid
    room = disk.disk.free_bytes - 0.3 * disk.disk.disk_bytes

    assert growth == pytest.approx(room, rel=0.03)


def test_a_level_that_is_already_reached_has_no_date(asked):
    """The report says that the level is already reached."""
    small = measurement(days=40, clusters=[space("cluster-1", disk=2 * GIB)])
    found = report(small, planning=PlanningOptions(thresholds=(0.4, 0.5)))

    (levels, *_) = tables(found)
    assert found.planning.now[0].days == (0.0,) * 5
    assert levels.rows[0] == ["cluster-1", "as now", "40 % full", "already", "", "", ""]
    assert planning_lines(found)[0].startswith("Already 50 % full.")


def test_an_order_is_due_before_the_early_end(asked):
    """The order is due one lead time before the early end of the 80 % interval; a past date is named as such."""
    full = next(each for each in asked.planning.now if each.share == FULL)
    assert full.days is not None
    assert full.order_on == TODAY + datetime.timedelta(math.floor(full.days.low_80) - 30)
    assert any(line.startswith(f"Order by {full.order_on}: 30 days before") for line in planning_lines(asked))

    late = report(planning=PlanningOptions(lead_days=200))
    assert any(
        line.startswith("Order now: with a lead time of 200 days") and "days ago" in line
        for line in planning_lines(late)
    )
    (levels,) = (table for table in tables(late) if table.title == LEVELS)
    assert levels.rows[2][-1].startswith("overdue since 2026-")


def test_costs_are_of_all_copies_at_the_price_given(asked):
    """The growth of a year, or of the horizon, counted for both copies; less after re-encoding."""
    now, after = asked.planning.costs
    total = asked.total
    assert total is not None
    assert isinstance(total.forecast, Forecast)

    assert now.days == total.forecast.horizon_days == 200
    assert now.size_bytes.mid == pytest.approx(2 * total.forecast.cumulative[199].mid, rel=0.02)
    assert now.price.high_80 == pytest.approx(now.size_bytes.high_80 / TB * 90)
    assert after.name == "msgpack+zlib"
    assert after.price.mid == pytest.approx(0.15 * now.price.mid, rel=0.01)
    assert report().planning.costs == ()


def test_the_worst_disk_comes_first(asked):
    """Levels, clusters and tables are ordered by urgency, not by name."""
    larger = [space("a", disk=9 * GIB), space("b", disk=5 * GIB), space("c", disk=4 * GIB), space("d", disk=None)]
    found = report(measurement(clusters=larger))

    by_title = {each.title: each for each in tables(found)}

    assert list(dict.fromkeys(each.disk for each in found.planning.now)) == ["c", "b", "a", "d"]
    assert [row[0] for row in by_title["Clusters"].rows] == ["c", "b", "a", "d"]
    assert list(dict.fromkeys(row[0] for row in by_title["When disks fill up"].rows)) == ["c", "b", "a"]


def test_verdict_uses_the_early_end():
    """A disk fails if its 80 % interval begins within the required days, even if its median is later."""
    now = common().now
    assert now.first is not None
    assert now.first.days is not None
    early, mid = now.first.days.low_80, now.first.days.mid
    required = (0, early - 1, early + 1, (early + mid) / 2, 4000)
    found = [verdict(now, PlanningOptions(fail_below_days=days)) for days in required]

    assert [each.failed for each in found if each is not None] == [False, False, True, True, True]
    assert [bool(each.reasons) for each in found if each is not None] == [False, False, True, True, True]
    assert verdict(now, PlanningOptions()) is None


def test_verdict_uses_the_constant_rate_beyond_the_horizon():
    """A history of 40 days gives a horizon of 200; whether a disk lasts 300 days depends on the constant rate."""
    large = report(measurement(clusters=[space("cluster-1", disk=80 * GIB)]))
    outlook = large.now.first
    assert outlook is not None
    assert outlook.days is not None
    assert math.isinf(outlook.days.low_95)

    found = [verdict(large.now, PlanningOptions(fail_below_days=days)) for days in (150, 300, 99_000)]

    assert [each.failed for each in found if each is not None] == [False, False, True]


def test_a_threshold_beyond_the_forecast_has_an_early_end():
    """If only the early end of its interval is within the forecast, the sentence gives that date alone."""
    full = next(each for each in report(planning=PlanningOptions(thresholds=(0.8,))).planning.first() if each.share < 1)
    assert full.days is not None
    later = replace(full, days=full.days._replace(mid=math.inf, high_80=math.inf, high_95=math.inf))
    found = report(planning=PlanningOptions(thresholds=(0.8,)))
    found = replace(found, planning=replace(found.planning, now=(later,)))

    assert levels_text(found) == f"80 % full on {later.on['low_80']} or later. In brackets: 80 % intervals."


@pytest.mark.parametrize("name", ["empty", "one day", "a cluster that is down", "no disk known", "a full disk"])
def test_an_unknown_disk_fails_the_verdict(name):
    """Without an answer a disk does not count as safe."""
    found = verdict(odd_report(name).now, PlanningOptions(fail_below_days=1))

    assert found is not None
    assert found.failed
    assert all(found.reasons)


def test_every_output_says_the_same(asked):
    """Text, page, CSV and JSON agree on dates, orders, costs and verdict."""
    data = report_json(asked)["planning"]
    rows = list(csv.DictReader(csv_text(asked).splitlines()))
    text = capacity_html(asked)
    words = " ".join([*planning_lines(asked), *(cell for each in tables(asked) for row in each.rows for cell in row)])
    for level, as_json in zip(asked.planning.now, data["now"], strict=True):
        on, order = level.on or {}, level.order_on
        shown = str(on["mid"])
        assert as_json["on"] == {key: None if day is None else str(day) for key, day in on.items()}
        assert as_json["order_by"]["low_80"] == str(order)
        (row,) = (
            each
            for each in rows
            if (each["section"], each["item"], each["figure"]) == ("planning.now", f"{level.disk} {level.share}", "on")
        )
        assert row["value"] == shown
        assert row["low_80"] == str(on["low_80"])
        for place in (shown, str(on["low_80"]), str(order)):
            assert place in text
            assert place in words
    cost = asked.planning.costs[0]
    (price,) = (
        row for row in rows if (row["section"], row["item"], row["figure"]) == ("planning.costs", "now", "price")
    )
    assert float(price["value"]) == data["costs"][0]["price"]["mid"] == round(cost.price.mid, 2)
    assert f"{cost.price.mid:,.2f}" in text
    assert data["verdict"] == {"fail_below_days": 60, "failed": False, "reasons": []}
    assert verdict_text(asked) == "all disks last 60 days (early end of the 80 % interval)"


def test_past_usage_is_calculated_back_from_now():
    """Daily growth is subtracted, latest day first; measured files are returned with the usage of others added."""
    disk = Disk(("a",), 1000, 600, False, 250, 1)
    days = [(TODAY - datetime.timedelta(ago), 100.0) for ago in (3, 2, 1)]
    base = measurement(days=0, clusters=[space("a")])
    older = replace(
        base, taken_at=TAKEN_AT - datetime.timedelta(9), clusters=(replace(base.clusters[0], file_bytes=90),)
    )
    newest = replace(base, clusters=(replace(base.clusters[0], file_bytes=250),))

    entry = DiskForecast(disk, tuple(days), NoForecast("too short", 3))
    fuller, unknown = (
        replace(entry, disk=replace(disk, **size)) for size in ({"free_bytes": 850}, {"disk_bytes": None})
    )

    assert [size for _, size in entry.usage_by_day()] == [100, 200, 300, 400]
    assert entry.usage_by_day()[-1][0] == TODAY
    assert entry.usage_measured([older, newest]) == [(older.taken_at, 240.0), (newest.taken_at, 400.0)]
    assert fuller.usage_by_day() == [(TODAY - datetime.timedelta(1), 50.0), (TODAY, 150.0)]
    assert unknown.usage_by_day() == unknown.usage_measured([newest]) == []


@pytest.mark.parametrize(
    "options",
    [
        {"thresholds": (0.0,)},
        {"thresholds": (1.0,)},
        {"thresholds": (0.9, 0.8)},
        {"thresholds": (0.8, 0.8)},
        {"lead_days": -1.0},
        {"price_per_tb": math.nan},
        {"fail_below_days": math.inf},
    ],
)
def test_invalid_planning_options_are_refused(options):
    """Thresholds of 0 or 100 %, out of order or duplicate, and negative or non-finite numbers."""
    with pytest.raises(InvalidInput):
        PlanningOptions(**options)


def test_an_empty_report_plans_nothing():
    """Without a forecast there are no levels, orders or costs."""
    found = odd_report("empty")

    assert all(each.days is None and each.why for each in found.planning.now)
    assert (found.planning.after, found.planning.costs, found.planning.verdict) == ((), (), None)
    assert planning_lines(found) == []
    assert "When disks fill up" not in [each.title for each in tables(found)]


@pytest.mark.long
def test_many_clusters_are_cut_to_the_worst():
    """The table has ten disks, and its note the total number; the other outputs have all disks."""
    clusters = [space(f"c-{number}", disk=(4 + number) * GIB) for number in range(12)]
    many = report(measurement(days=14, clusters=clusters))

    (table, *_) = tables(many)

    assert len({row[0] for row in table.rows}) == 10
    assert "The table shows the first 10 of 12 disks" in table.note
    assert len({each["disk"] for each in report_json(many)["planning"]["now"]}) == 12
    assert of_many_shards().planning.verdict is not None


@pytest.mark.long
def test_a_measurement_is_restored_with_the_files_of_its_shards():
    """Each shard's file length comes back from the catalog."""
    kept = of_many_shards().measurement

    again = Measurement.from_json(kept.to_json())

    assert sum(len(each.shard_files) for each in again.clusters) == 4096
    assert [each.shard_files for each in again.clusters] == [each.shard_files for each in kept.clusters]


def test_advice_ranks_what_helps_with_the_figures_of_the_scenarios():
    """Every kind of advice, the best first; each saving is that of its scenario, and what saves nothing is absent."""
    base = next(trial for trial in tried().columns if (trial.column_name, trial.codec) == ("BASE", "msgpack+zstd"))
    name, share = "msgpack+zstd, dictionary", within(0.07)
    dictionary = replace(base, codec=name, share=share, pages_share=share, migrated_pages_share=share)
    units = {"BASE": unit_of_share(0.07), "STATUS": unit_of_share(SHARES["msgpack+zstd"])}
    trials = replace(
        tried(),
        superseded={("BASE", 1): 0.6, ("STATUS", 1): 0.05},
        dictionaries=(dictionary,),
        units={**tried().units, name: units},
    )
    clusters = [space("cluster-1", other_files={"index_1": 9 * MIB, "follower": MIB})]
    newest = replace(measurement(days=120, clusters=clusters), trials=trials)
    policies = {"STATUS": parse_policy("STATUS", "20 days")}
    asked = Asked(planning=PlanningOptions(price_per_tb=90))
    names, since = {"index_1": "by_client"}, {"index_1": datetime.datetime(2026, 3, 1, 5, tzinfo=datetime.UTC)}
    found, advised = suggestions(Collected((newest,), policies=policies), TAKEN_AT, asked, names, since)
    by_name = {each.name: each.saving for each in advised}

    assert [each.urgency for each in advised] == sorted((each.urgency for each in advised), reverse=True)
    assert set(by_name) == {
        "re-encode to msgpack+zlib",
        "train dictionaries",
        "move to MyRocks",
        "move to MyRocks, packed+none",
        "keep only the last version of BASE",
        "run retention",
        "rebuild",
        "drop index by_client",
    }
    assert by_name["re-encode to msgpack+zlib"] == found.saving
    # BASE takes nine tenths of the growth: 0.9 * 0.07 + 0.1 * 0.14 remain.
    assert by_name["train dictionaries"].share.mid == pytest.approx(1 - 0.077, rel=0.01)
    commands = next(each.commands for each in advised if each.name == "train dictionaries")
    assert "schemaless codec train --column BASE" in commands
    assert "schemaless migrate run --execute --column STATUS --to msgpack+zstd" in commands
    assert [each.effort for each in advised if "no read was counted since 2026-03-01 05:00 UTC" in each.effort]
    assert by_name["drop index by_client"].freed_bytes == Interval.of(18 * MIB)
    rebuilt = next(each for each in found.scenarios if each.name == "rebuilt")
    days = [math.floor(each.first.days.mid) for each in (rebuilt, found.now) if each.first and each.first.days]
    assert by_name["rebuild"].days.mid == days[0] - days[1]
    assert by_name["keep only the last version of BASE"].share.mid == pytest.approx(0.6 * 0.9, rel=0.15)
    assert all(each.commands and each.effort for each in advised)
