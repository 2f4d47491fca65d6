"""Growth, weekdays and retention: the closed forms compared with day-by-day sums."""

from __future__ import annotations

import math

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from schemaless.errors import InvalidInput
from schemaless.planning.capacity.growth import YEAR_DAYS, Growth
from schemaless.planning.capacity.model import (
    GB,
    KB,
    Plan,
    days_until_full,
    headroom_share,
    hosts_needed,
    most_bytes,
    replace,
    usable_bytes,
)

pytestmark = pytest.mark.once

ARTICLE = Plan(documents_per_day=1_000_000, bytes_per_document=20 * KB, disk_bytes_per_host=1_024 * GB)

weeks = st.none() | st.tuples(*[st.floats(0, 10)] * 7).filter(lambda week: sum(week) > 0.1)
growths = st.builds(
    Growth, st.floats(-0.9, 3), st.sampled_from(["linear", "compound"]), weeks, first_weekday=st.integers(0, 6)
)
plans = st.builds(
    Plan,
    documents_per_day=st.floats(1, 1e6),
    bytes_per_document=st.floats(100, 1e5),
    disk_bytes_per_host=st.floats(1e9, 1e13),
    overhead_share=st.floats(0, 0.9),
    copies=st.integers(1, 3),
    hosts=st.integers(3, 50),
    growth=growths,
    stored_bytes=st.just(0.0) | st.floats(0, 1e12),
    retention_days=st.none() | st.floats(1, 400),
)


def day_by_day(growth: Growth, days: int) -> float:
    """Integrate the rate numerically in steps of a hundredth of a day."""
    week = growth.weekdays or (1,) * 7
    total = 0.0
    for step in range(days * 100):
        at = (step + 0.5) / 100
        if growth.kind == "linear":
            rate = max(0.0, 1 + growth.share_per_year * at / YEAR_DAYS)
        else:
            rate = (1 + growth.share_per_year) ** (at / YEAR_DAYS)
        total += rate * week[(growth.first_weekday + int(at)) % 7] * 7 / sum(week) / 100
    return total


@settings(max_examples=25)
@given(growths, st.integers(1, 60))
def test_the_closed_forms_are_the_sum_of_days(growth, days):
    """Linear and compound growth, positive and negative, with and without weekdays."""
    assert growth.until(days) == pytest.approx(day_by_day(growth, days), rel=1e-4, abs=1e-4)


def test_linear_decline_stops_at_zero():
    """At -50 % a year, the rate is zero after two years, and never negative."""
    decline = Growth(-0.5, "linear")

    assert decline.until(2 * YEAR_DAYS) == decline.until(20 * YEAR_DAYS) == YEAR_DAYS


def test_weekdays_do_not_change_the_sum_of_a_week():
    """Only proportions of weekdays count; the first weekday decides about the first days."""
    shape = (2, 2, 2, 2, 2, 1, 1)

    assert Growth(weekdays=shape).until(70) == pytest.approx(70)
    assert Growth(weekdays=shape).until(5) > 5 > Growth(weekdays=shape, first_weekday=5).until(5)
    assert Growth(weekdays=(1,) * 7).until(3.5) == 3.5


def test_growth_that_overflows_a_float_is_not_an_error():
    """Growing a thousandfold a year fills any disk early."""
    assert Growth(999).until(1e6) == math.inf
    assert 0 < days_until_full(replace(ARTICLE, growth=Growth(999))) < 51.2
    with pytest.raises(InvalidInput, match="cannot calculate the bytes to be stored"):
        hosts_needed(replace(ARTICLE, growth=Growth(999)), days=1e6)


def test_negative_growth_may_never_fill_the_disks():
    """The sum of a declining rate is bounded."""
    assert days_until_full(replace(ARTICLE, hosts=100, growth=Growth(-0.9))) == math.inf
    assert days_until_full(replace(ARTICLE, hosts=100, growth=Growth(-0.9, "linear"))) == math.inf


@given(plans)
def test_disks_that_hold_the_retention_period_are_never_full(plan):
    """If the documents of one retention period fit at a constant rate, no later day fills the disks."""
    retention = plan.retention_days or 30.0
    plan = replace(plan, growth=Growth(), stored_bytes=0.0, retention_days=retention)
    needs = most_bytes(plan, retention)
    assume(not math.isclose(needs, usable_bytes(plan), rel_tol=1e-9))

    assert (days_until_full(plan) == math.inf) == (needs < usable_bytes(plan))
    assert most_bytes(plan, 50 * retention) == pytest.approx(needs)


def test_growth_that_takes_ages_to_outgrow_retention_counts_as_never():
    """A billion years would be numerical noise, so the answer is infinity."""
    plan = Plan(documents_per_day=1, bytes_per_document=100, disk_bytes_per_host=31_414_681_601, hosts=3)

    assert days_until_full(replace(plan, growth=Growth(1.0, "linear"), retention_days=1)) == math.inf
    assert days_until_full(replace(plan, growth=Growth(1.0, "linear"))) < 1e6


def test_initially_stored_cells_are_deleted_by_retention():
    """They are deleted evenly over the retention period; without retention they stay."""
    plan = replace(ARTICLE, stored_bytes=500 * GB, retention_days=30)

    assert days_until_full(plan) == math.inf
    assert most_bytes(plan, 1_000) == pytest.approx(600 * GB)
    assert days_until_full(replace(plan, retention_days=None)) == pytest.approx(26.2)
    assert days_until_full(replace(plan, stored_bytes=2_000 * GB)) == 0


def test_the_busiest_day_of_the_week_fills_disks_that_an_average_one_does_not():
    """With weekdays and a retention that is not a whole number of weeks, the peak counts."""
    steady = replace(ARTICLE, disk_bytes_per_host=21 * GB, retention_days=1)

    assert days_until_full(steady) == math.inf
    assert days_until_full(replace(steady, growth=Growth(weekdays=(1, 1, 1, 1, 2, 1, 1)))) == pytest.approx(4.2)


@given(
    st.builds(
        Plan,
        documents_per_day=st.just(1),
        bytes_per_document=st.just(1_000),
        disk_bytes_per_host=st.floats(5_000, 60_000),
        growth=growths,
        stored_bytes=st.just(0.0) | st.floats(0, 60_000),
        retention_days=st.integers(1, 50),
    )
)
def test_the_full_date_with_retention_matches_a_daily_balance(plan):
    """A day-by-day balance of written and deleted bytes gives the same first full day."""
    written = [plan.growth.until(day + 1) - plan.growth.until(day) for day in range(300)]
    ledger = [plan.stored_bytes]
    for day in range(1, 301):
        initial = max(0.0, 1 - day / plan.retention_days) * plan.stored_bytes
        ledger.append(initial + sum(written[max(0, day - plan.retention_days) : day]) * 1_000)
    full = next((day for day, stored in enumerate(ledger) if stored >= plan.disk_bytes_per_host), math.inf)
    assume(all(not math.isclose(stored, plan.disk_bytes_per_host, rel_tol=1e-3) for stored in ledger))

    days = days_until_full(plan)
    assert math.ceil(days) == full if full < math.inf else days > 300


@given(plans, st.floats(0, 2_000), st.floats(0, 2_000))
def test_the_peak_never_falls(plan, day, other):
    """Until a later day, the peak is never less and the free share never more."""
    early, late = sorted((day, other))

    assert most_bytes(plan, early) <= most_bytes(plan, late) * (1 + 1e-9)
    assert headroom_share(plan, early) >= headroom_share(plan, late) - 1e-9


@given(plans)
def test_days_until_full_is_the_first_time_without_free_space(plan):
    """At that time the space is used up, just before it is not; infinity means never."""
    days, room = days_until_full(plan), usable_bytes(plan)

    if days == math.inf:
        assert most_bytes(plan, 1e5) < room * (1 + 1e-9)
    elif days > 0:
        assert most_bytes(plan, days) >= room * (1 - 1e-6)
        assert most_bytes(plan, days * (1 - 1e-6)) <= room * (1 + 1e-9)


@pytest.mark.parametrize(
    ("name", "worse"),
    [
        ("documents_per_day", lambda value: value * 1.5),
        ("bytes_per_document", lambda value: value * 1.5),
        ("disk_bytes_per_host", lambda value: value / 1.5),
        ("overhead_share", lambda value: value + 0.05),
        ("hosts", lambda value: max(3, value - 1)),
        ("stored_bytes", lambda value: value + 1e10),
        ("retention_days", lambda value: None if value is None else value + 30),
        ("growth", lambda value: replace(value, share_per_year=value.share_per_year + 0.3)),
    ],
)
@given(plan=plans)
@settings(max_examples=15)
def test_each_input_made_worse_fills_the_disks_no_later(name, worse, plan):
    """The answer is monotone in every input."""
    if name == "retention_days":
        plan = replace(plan, stored_bytes=0.0)
    worsened = replace(plan, **{name: worse(getattr(plan, name))})

    assert days_until_full(worsened) <= days_until_full(plan) * (1 + 1e-9)
    assert hosts_needed(worsened, 365) >= hosts_needed(plan, 365) or name == "hosts"


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"share_per_year": -1}, "share_per_year must be above -1"),
        ({"share_per_year": math.nan}, "share_per_year must be finite, got nan"),
        ({"kind": "explosive"}, "growth must be linear or compound, got 'explosive'"),
        ({"weekdays": (1, 2, 3)}, "weekdays must be 7 numbers of 0 or more, Monday first, not all 0; got 3: 1, 2, 3"),
        ({"weekdays": (0,) * 7}, "not all 0; got 7: 0, 0"),
        ({"weekdays": (-1, *(1,) * 6)}, "of 0 or more"),
        ({"first_weekday": 7}, r"first_weekday must be 0 \(Monday\) to 6, got 7"),
    ],
)
def test_growth_out_of_bounds_is_refused(changes, complaint):
    """The error names the invalid value."""
    with pytest.raises(InvalidInput, match=complaint):
        Growth(**changes)


@pytest.mark.parametrize("days", [0, 0.5, 40_000, math.nan, "30"])
def test_retention_out_of_bounds_is_refused(days):
    """Retention is between one day and a hundred years."""
    with pytest.raises(InvalidInput, match="retention_days must be"):
        replace(ARTICLE, retention_days=days)
