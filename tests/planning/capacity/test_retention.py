"""Retention in forecasts: against a day-by-day simulation, and in a whole report."""

from __future__ import annotations

import datetime
import math
import random
from dataclasses import replace

import numpy
import pytest

from schemaless.base.numbers import Interval
from schemaless.cell import TOMBSTONE_BYTES
from schemaless.cli.capacity_scenarios import read_scenarios
from schemaless.errors import InvalidInput
from schemaless.planning.capacity.basis import Collected
from schemaless.planning.capacity.combined import combine
from schemaless.planning.capacity.expiry import Stored, expiring
from schemaless.planning.capacity.forecast import Band, Forecast
from schemaless.planning.capacity.measurement import NO_CODEC_TRIALS, CodecTrials, DayIntake, Measurement
from schemaless.planning.capacity.options import Asked, WhatIf
from schemaless.planning.capacity.reporting import assemble_report
from schemaless.planning.capacity.series import daily
from schemaless.store.erasures.retention import parse_policy
from schemaless.ui.pages.capacity_tables import tables
from tests.planning.capacity.reports import GIB, MIB, PLANNING, TAKEN_AT, TODAY, measurement, report, space, tried

pytestmark = pytest.mark.once

NEVER = math.inf
DAY = datetime.timedelta(1)


def forecast_of(paths: list[list[float]]) -> Forecast:
    """A forecast whose simulated futures are given."""
    totals = numpy.cumsum(numpy.array(paths), axis=1)
    none = Band(0, 0, 0, 0, 0)
    days = (none,) * totals.shape[1]
    return Forecast(TODAY, 1, days, days, none, None, 0.0, 0.0, None, totals)


def first_day_over(past: list[float], future: list[float], keep: int, freed: float, room: float) -> float:
    """Simulate day by day: data of ``keep`` days ago expires each morning; return the day that ends over ``room``."""
    written = [*past, *future]
    stored = sum(past) - freed * sum(past[: max(0, len(past) - keep)])
    start = sum(past)
    for day, size in enumerate(future):
        expires = len(past) + day - keep
        if expires >= 0:
            stored -= freed * written[expires]
        stored += size
        if stored - start >= room:
            return day
    return NEVER


@pytest.mark.guarantee("retention-forecasts")
@pytest.mark.parametrize("seed", range(40))
def test_expiry_is_that_of_a_simulation_of_every_day(seed: int) -> None:
    """Random histories, futures, ages and rooms: the disk fills on the same day as in the simulation."""
    draw = random.Random(seed)
    past = [draw.uniform(0, 10) for _ in range(draw.choice([1, 5, 40]))]
    future = [draw.uniform(0, 10) for _ in range(120)]
    keep = draw.choice([1, 2, 7, 30, 90, 200])
    freed = draw.choice([1.0, 0.9, 0.3])
    room = draw.uniform(1, 300)
    stored = Stored("LOG", 0, 0.0, [(TODAY - (len(past) - n) * DAY, size) for n, size in enumerate(past)], 1.0)
    # Without a number of cells, tombstones take nothing; a share of superseded bytes stands in for ``freed``.
    policy = parse_policy("LOG", f"{keep} days and 3 versions")
    found = expiring(policy, stored, 1.0, CodecTrials((), {}, {}, superseded={("LOG", 3): freed}))
    days = forecast_of([future]).less([found.expiry]).days_until(room + found.expired_bytes).mid

    expected = first_day_over(past, future, keep, freed, room)
    assert math.floor(days) == expected if expected != NEVER else days == NEVER


def test_versions_expire_at_the_rate_at_which_they_are_superseded() -> None:
    """If 0.75 of a column is superseded, a quarter of its growth remains, and 0.75 of what is stored is freed."""
    stored = Stored("LOG", 0, 1_000.0, [], 0.5)
    trials = CodecTrials((), {}, {}, superseded={("LOG", 3): 0.75})
    found = expiring(parse_policy("LOG", "3 versions"), stored, 1.0, trials)
    left = forecast_of([[16.0] * 100]).less([found.expiry])

    assert found.expired_bytes == 750
    assert left.days_until(100).mid == pytest.approx(100 / (16 - 16 * 0.5 * 0.75))


def test_tombstones_remain() -> None:
    """A cell that takes 2,000 bytes leaves its row: about a twelfth of that."""
    cells, size = 1_000, 2_000_000.0
    stored = Stored("LOG", cells, size, [(TODAY - 50 * DAY, size), (TODAY - DAY, 0.0)], 1.0)
    expired = expiring(parse_policy("LOG", "10 days"), stored, 1.0, NO_CODEC_TRIALS).expired_bytes
    assert 0.85 * size < expired < 0.97 * size


@pytest.fixture(scope="module")
def of_policies():  # type: ignore[no-untyped-def]
    """A report of disks that fill up, unless BASE expires after 20 days."""
    what_ifs = (
        WhatIf(name="long", retention={"BASE": "400 days"}),
        WhatIf(name="double", retention={"BASE": "20 days"}, growth=2),
        WhatIf(name="packed", retention={"BASE": "20 days"}, codec="msgpack+zlib"),
    )
    return assemble_report(
        Collected((measurement(days=60),), policies={"BASE": parse_policy("BASE", "20 days")}),
        TAKEN_AT,
        Asked(what_ifs=what_ifs),
    )


@pytest.mark.long
@pytest.mark.guarantee("retention-forecasts")
def test_with_the_policies_in_force_the_disk_never_fills(of_policies) -> None:  # type: ignore[no-untyped-def]
    """Days until full: without retention some, with 20 days none within the forecast, with 400 as without."""
    days = {scenario.name: scenario.first.days.mid for scenario in of_policies.scenarios}
    assert days["now"] < of_policies.now.first.horizon_days
    assert days["retention"] == NEVER
    assert days["rebuilt"] <= days["long"] < NEVER
    assert days["packed"] == NEVER
    assert days["double"] >= days["growth x2"]
    retained = next(scenario for scenario in of_policies.scenarios if scenario.name == "retention")
    assert "BASE: keep 20 days" in retained.change.description
    assert retained.file_bytes.mid < of_policies.now.file_bytes.mid
    text = next(table for table in tables(of_policies) if any("retention" in row for row in table.rows))
    assert text.rows


@pytest.mark.guarantee("retention-forecasts")
def test_a_scenario_with_a_policy_has_growth_cost_and_budget() -> None:
    """Growth and price are those of the disk, copies counted; months add up; what has expired earns nothing."""
    only = measurement(days=60, clusters=[space("cluster-1", disk=4 * GIB)])
    what_ifs = tuple(
        WhatIf(name=f"{days}", retention={"BASE": f"{days} days", "STATUS": f"{days} days"}) for days in (30, 400)
    )
    found = report(only, planning=PLANNING, what_ifs=what_ifs)
    now, short, long = found.comparisons

    for each in (short, long):
        (disk,) = each.disks
        assert each.cost is not None
        assert disk.forecast is not None
        assert each.cost.size_bytes.mid == pytest.approx(2 * disk.forecast.cumulative[each.cost.days - 1].mid)
        assert sum(month.size_bytes for month in each.cost.months) == pytest.approx(each.cost.size_bytes.mid)
        assert sum(each.budget()) == pytest.approx(round(each.year_price or 0.0, 2), abs=1e-9)
        assert min(month.price or 0.0 for month in each.cost.months) >= 0
    assert now.cost is not None
    assert short.cost.size_bytes.mid < 0.4 * now.cost.size_bytes.mid
    assert long.cost.price.mid == pytest.approx(now.cost.price.mid, rel=1e-3)


def test_a_report_without_policies_is_unchanged() -> None:
    """No scenario, and the same days."""
    assert "retention" not in {scenario.name for scenario in report().scenarios}


def emptied(newest: Measurement, before: datetime.date) -> Measurement:
    """A measurement after a retention run: the days before a date hold tombstones."""
    size = Interval.of(float(TOMBSTONE_BYTES))

    def of_day(each: DayIntake) -> DayIntake:
        if each.day >= before:
            return each
        # Samples near the boundary hold some of the following day's bodies.
        last = each.day == before - DAY
        bodies = each.body_bytes.times(0.3) if last else size.times(each.cells.mid)
        return replace(each, body_bytes=bodies, erased_share=0.7 if last else 1.0)

    return replace(newest, growth=tuple(map(of_day, newest.growth)))


@pytest.mark.guarantee("retention-forecasts")
def test_days_that_were_erased_keep_the_growth_of_an_earlier_measurement() -> None:
    """A retention run does not look like a start of growth, and its days do not expire a second time."""
    first, newest = measurement(days=60), measurement(days=60)
    older = replace(first, taken_at=TAKEN_AT - DAY)
    cut = TODAY - 20 * DAY
    series = daily([older, emptied(newest, cut)])
    whole = daily([first])

    assert [each.body_bytes for each in series[0].days] == [each.body_bytes for each in whole[0].days]
    assert [day.day for day in series[0].days if day.erased] == [day.day for day in whole[0].days if day.day < cut]
    policy = {"BASE": parse_policy("BASE", "20 days")}
    again = assemble_report(Collected((older, emptied(newest, cut)), policies=policy), TAKEN_AT)
    once = assemble_report(Collected((older, newest), policies=policy), TAKEN_AT)
    files = [next(s for s in each.scenarios if s.name == "retention").file_bytes.mid for each in (again, once)]
    rebuilt = next(s for s in again.scenarios if s.name == "rebuilt").file_bytes.mid
    assert files[0] == pytest.approx(rebuilt)
    assert files[1] < rebuilt - 100 * MIB


@pytest.mark.long
def test_policies_of_several_datastores_are_told_apart() -> None:
    """A policy applies to the column of its own datastore."""
    users = replace(measurement(days=60, bytes_a_day=5 * MIB), datastore="users")
    users = replace(users, clusters=tuple(replace(each, node=f"u-{each.node}") for each in users.clusters))
    policy = parse_policy("BASE", "30 days")
    trips = replace(measurement(), trials=replace(tried(), superseded={("BASE", 2): 0.5}))
    both = combine({"trips": Collected((trips,), policies={"BASE": policy}), "users": Collected((users,))})
    assert both.policies == {"trips/BASE": policy}
    assert both.measurements[-1].trials.superseded == {("trips/BASE", 2): 0.5}
    found = assemble_report(both, TAKEN_AT)
    assert "trips/BASE: keep 30 days" in next(s.change.description for s in found.scenarios if s.name == "retention")


def test_scenario_files_name_policies(tmp_path) -> None:  # type: ignore[no-untyped-def]
    """A table of columns and words; anything else is refused with the key."""
    file = tmp_path / "scenarios.toml"
    file.write_text('[scenarios.shorter]\nretention = { BASE = "400 days and the last 3 versions" }\n')
    (shorter,) = read_scenarios(file).what_ifs
    policy = shorter.policies["BASE"]
    assert (policy.keep_days, policy.keep_versions) == (400, 3)
    assert shorter.rebuilds
    assert shorter.changes["retention"] == "BASE: keep 400 days and the last 3 versions"
    for bad, words in (('{ BASE = "a while" }', "not a policy"), ("{ BASE = 400 }", "must be text"), ("1", "a table")):
        file.write_text(f"[scenarios.shorter]\nretention = {bad}\n")
        with pytest.raises(InvalidInput, match=words):
            read_scenarios(file)
    with pytest.raises(InvalidInput, match="'OTHER', which has no cells"):
        report(what_ifs=(WhatIf(name="x", retention={"OTHER": "3 days"}),))
