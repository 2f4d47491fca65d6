"""Saved measurements in the catalog: JSON round trip, listing and thinning."""

from __future__ import annotations

import dataclasses
import json
from datetime import UTC, date, datetime, timedelta

import pytest

import schemaless
from schemaless import AccessDenied, InvalidInput
from schemaless.base.numbers import Interval
from schemaless.planning.capacity import history
from schemaless.planning.capacity.history import Kept, thinned
from schemaless.planning.capacity.measurement import ClusterFiles, DayIntake, Group, Measurement
from schemaless.planning.capacity.reporting import collect
from schemaless.store.internals import internals_of
from tests.planning.capacity.reports import tried

NOW = datetime(2026, 5, 20, 3, 0, 0, 123456, tzinfo=UTC)
MEASUREMENT = Measurement(
    taken_at=NOW,
    datastore="trips",
    shard_count=2,
    groups=(Group("a", 0, "BASE", "legacy", *(Interval(1.0, 2.0, 3.0) for _ in range(4))),),
    growth=(DayIntake(date(2026, 5, 19), "a", "BASE", Interval.of(2.0), Interval(1.0, 2.0, 4.0), "search"),),
    clusters=(
        ClusterFiles("a", "db-1:3306", "replica", 2, 1, None, 10, 20, True, Interval.of(9.0), None, 100, None, "flag"),
        ClusterFiles("b", "db-2:3306", "primary", 1, 1, "db-2:3306 is down", cold_files=3, cold_file_bytes=40),
    ),
    notes=("it's \\ a note",),
    rows_read=7,
    pages_read=3,
    seconds=0.25,
    seed=11,
    trials=dataclasses.replace(
        tried(),
        files={("a", None): Interval.of(1.5)},
        superseded={("BASE", 2): 0.25},
        file_share={"BASE": Interval(0.1, 0.2, 0.3)},
    ),
    job_progress={3: 40},
)


def test_a_measurement_survives_its_json():
    """Including unknown values, and codec trials to the last digit."""
    assert Measurement.from_json(json.loads(json.dumps(MEASUREMENT.to_json(), allow_nan=False))) == MEASUREMENT


def test_a_measurement_of_a_later_format_is_refused():
    """A later format cannot be read correctly."""
    with pytest.raises(InvalidInput, match="format 3"):
        Measurement.from_json({**MEASUREMENT.to_json(), "format": 3})


def test_thinning_keeps_days_then_weeks_then_months():
    """Of four years of measurements every six hours few remain, including first and last; thinning is idempotent."""
    found = [Kept(number, NOW - timedelta(hours=6 * (5_844 - number))) for number in range(5_844)]
    deleted = {each.sample_id for each in thinned(found, NOW)}
    remaining = [each for each in found if each.sample_id not in deleted]
    ages = [(NOW - each.taken_at).days for each in remaining]

    assert sum(age < 14 for age in ages) == 55
    assert sum(14 <= age < 100 for age in ages) in (86, 87)
    assert 88 <= sum(100 <= age < 731 for age in ages) <= 92
    assert 23 <= sum(age >= 731 for age in ages) <= 26
    assert remaining[0] is found[0]
    assert remaining[-1] is found[-1]
    assert thinned(remaining, NOW) == []


@pytest.mark.mysql
def test_kept_measurements_are_listed_read_and_thinned(accounts, fresh_store, by_hand):
    """Requires the role measure; saving the same measurement twice saves it once."""
    accounts.allow("measure", fresh_store.name, 4)
    with schemaless.connect(
        accounts.url("measure", internals_of(fresh_store).url.for_database(fresh_store.name))
    ) as store:
        assert history.latest(store) is None
        old = [dataclasses.replace(MEASUREMENT, taken_at=NOW - timedelta(days=200, hours=hour)) for hour in range(4)]
        numbers = [history.keep(store, each) for each in (*old, MEASUREMENT)]
        again = history.keep(store, MEASUREMENT)
        kept = history.kept(store)

        assert again == numbers[-1]
        assert [each.sample_id for each in kept] == [numbers[3], numbers[0], numbers[-1]]
        assert kept[-1].taken_at == NOW
        assert history.latest(store) == MEASUREMENT
        assert history.read(store, [again, numbers[3]]) == ({numbers[3]: old[3], again: MEASUREMENT}, [])
        catalog = by_hand(fresh_store).pool_for(internals_of(fresh_store).catalog.node)
        table = f"`{fresh_store.name}`.capacity_sample"
        for figures in ("LEFT(figures, 99)", "'{\"format\": 1}'", "'[]'"):
            sql = f"UPDATE {table} SET figures = {figures} WHERE sample_id = {again}".encode()
            catalog.run(lambda connection, sql=sql: connection.execute(sql), writes=True)
            with pytest.raises(InvalidInput, match=f"measurement {again} in the catalog is damaged|has format 1, but"):
                history.latest(store)
        fresh = collect(store, fresh=True)
        assert [each.datastore for each in fresh.measurements] == ["trips", "trips", store.name]
        (unreadable,) = fresh.unreadable
        assert unreadable.startswith(f"measurement {again} in the catalog is damaged (")
    with pytest.raises(AccessDenied):
        history.keep(fresh_store, dataclasses.replace(MEASUREMENT, taken_at=NOW + timedelta(days=1)))
