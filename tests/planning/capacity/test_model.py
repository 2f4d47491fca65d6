"""The capacity model: the article's figures, units, bounds."""

from __future__ import annotations

import datetime
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemaless.errors import InvalidInput
from schemaless.planning.capacity.model import (
    GB,
    KB,
    TB,
    Plan,
    bytes_per_day,
    days_until_full,
    full_on,
    hosts_needed,
    replace,
    usable_bytes,
)

pytestmark = pytest.mark.once

ARTICLE = Plan(documents_per_day=1_000_000, bytes_per_document=20 * KB, disk_bytes_per_host=1_024 * GB)

plans = st.builds(
    Plan,
    documents_per_day=st.floats(1, 1e12),
    bytes_per_document=st.floats(1, 1e9),
    disk_bytes_per_host=st.floats(1e6, 1e18),
    overhead_share=st.floats(0, 0.99),
    copies=st.integers(1, 5),
    hosts=st.integers(5, 10_000),
)


@pytest.mark.parametrize(
    ("changes", "days"),
    [
        ({}, 51),
        ({"overhead_share": 0.4}, 30),
        ({"overhead_share": 0.4, "hosts": 32}, 983),
        ({"overhead_share": 0.4, "hosts": 32, "documents_per_day": 3_000_000}, 327),
        ({"overhead_share": 0.4, "hosts": 32, "documents_per_day": 10_000_000}, 98),
        ({"bytes_per_document": 2_822}, 362),
        ({"bytes_per_document": 2_822, "overhead_share": 0.4}, 217),
    ],
)
def test_the_articles_figures_come_out(changes, days):
    """51 and 30 days for one disk, 32 TB at three rates, and the same with 2,822 bytes a trip."""
    assert int(days_until_full(replace(ARTICLE, **changes))) == days


def test_a_terabyte_of_1000_gigabytes_lasts_50_days():
    """The article's 51 days require its 1,024 GB; powers of 1,000 and of 1,024 are never mixed."""
    assert days_until_full(replace(ARTICLE, disk_bytes_per_host=TB)) == 50
    assert days_until_full(replace(ARTICLE, disk_bytes_per_host=1_024 * 2**30)) == pytest.approx(54.97, abs=0.01)


def test_copies_multiply_writes_and_hosts_multiply_space():
    """Three copies on three hosts last as long as one copy on one host."""
    assert bytes_per_day(replace(ARTICLE, copies=3, hosts=3)) == 60 * GB
    assert usable_bytes(replace(ARTICLE, copies=3, hosts=3)) == 3 * 1_024 * GB
    assert days_until_full(replace(ARTICLE, copies=3, hosts=3)) == days_until_full(ARTICLE)


def test_without_new_documents_the_disks_are_never_full():
    """Infinite days, no date, and only the hosts that the copies need."""
    idle = replace(ARTICLE, documents_per_day=0, copies=2, hosts=2)

    assert days_until_full(idle) == math.inf
    assert full_on(datetime.date(2016, 3, 1), math.inf) is None
    assert hosts_needed(idle, days=365) == 2


@pytest.mark.parametrize(
    ("start", "days", "date"),
    [
        ((2016, 3, 1), 51.2, (2016, 4, 21)),
        ((2016, 2, 28), 1.0, (2016, 2, 29)),
        ((2016, 2, 28), 0.99, (2016, 2, 28)),
        ((2016, 2, 28), 0, (2016, 2, 28)),
    ],
)
def test_full_on_counts_whole_days(start, days, date):
    """The date is the day on which the last byte is written."""
    assert full_on(datetime.date(*start), days) == datetime.date(*date)


@pytest.mark.parametrize("days", [3_000_000, 1e12, 1e300])
def test_full_on_beyond_the_calendar_is_no_date(days):
    """A date after the year 9999 is None, not an error."""
    assert full_on(datetime.date(2016, 3, 1), days) is None


@pytest.mark.parametrize("days", [-1, math.nan, -math.inf])
def test_full_on_refuses_invalid_days(days):
    """Negative days and NaN."""
    with pytest.raises(InvalidInput, match="days must be 0 or more"):
        full_on(datetime.date(2016, 3, 1), days)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"documents_per_day": -1}, "documents_per_day must be 0 or more, got -1"),
        ({"documents_per_day": math.nan}, "documents_per_day must be finite, got nan"),
        ({"documents_per_day": "1M"}, "documents_per_day must be a number, got str: 1M"),
        ({"documents_per_day": True}, "documents_per_day must be a number, got bool: True"),
        ({"documents_per_day": 10**400}, "documents_per_day is too large to calculate with"),
        ({"bytes_per_document": 0}, "bytes_per_document must be 1 byte or more, got 0"),
        ({"bytes_per_document": -5.0}, r"bytes_per_document must be 1 byte or more, got -5\.0"),
        ({"bytes_per_document": math.inf}, "bytes_per_document must be finite, got inf"),
        ({"disk_bytes_per_host": 0}, "disk_bytes_per_host must be 1 byte or more, got 0"),
        ({"disk_bytes_per_host": -math.inf}, "disk_bytes_per_host must be finite, got -inf"),
        ({"overhead_share": 40}, r"overhead_share must be at least 0 and below 1 \(0\.4 is 40 %\), got 40"),
        ({"overhead_share": 1.0}, "at 1 there is no space for cells"),
        ({"overhead_share": -0.1}, r"overhead_share must be at least 0 and below 1 .* got -0\.1"),
        ({"copies": 0}, "copies must be an integer of at least 1, got 0"),
        ({"copies": 1.5}, r"copies must be an integer of at least 1, got 1\.5"),
        ({"hosts": -3}, "hosts must be an integer of at least 1, got -3"),
        ({"copies": 3, "hosts": 2}, "3 copies need at least 3 hosts, got 2; two copies on one host are lost together"),
    ],
)
def test_a_value_out_of_bounds_is_refused(changes, complaint):
    """The error names the invalid value and the expected one."""
    with pytest.raises(InvalidInput, match=complaint):
        replace(ARTICLE, **changes)


@pytest.mark.parametrize(
    ("function", "changes"),
    [
        (bytes_per_day, {"documents_per_day": 1e300, "bytes_per_document": 1e300}),
        (usable_bytes, {"disk_bytes_per_host": 1e308, "hosts": 100}),
        (days_until_full, {"documents_per_day": 1e-320, "disk_bytes_per_host": 1e300}),
        (lambda plan: hosts_needed(plan, days=1e300), {"documents_per_day": 1e20}),
    ],
)
def test_an_overflow_is_an_error(function, changes):
    """Values that are valid one by one but overflow together give an error, never infinity."""
    with pytest.raises(InvalidInput, match=r"cannot calculate the .* too large or too small; check their units"):
        function(replace(ARTICLE, **changes))


@pytest.mark.parametrize("days", [-1, math.nan, math.inf])
def test_hosts_needed_refuses_invalid_days(days):
    """Negative, infinite and NaN days."""
    with pytest.raises(InvalidInput, match="days must be"):
        hosts_needed(ARTICLE, days)


def test_hosts_needed_ignores_rounding_errors():
    """Disks that are full exactly on the requested day are enough."""
    exact = Plan(documents_per_day=1_000, bytes_per_document=100, disk_bytes_per_host=3_000_000, overhead_share=0.1)

    assert hosts_needed(exact, days=27 * 7) == 7


@given(plans, st.floats(0.001, 1e5))
def test_the_hosts_needed_last_and_one_fewer_do_not(plan, days):
    """hosts_needed is the smallest number of hosts that last the requested days."""
    needed = hosts_needed(plan, days)

    assert days_until_full(replace(plan, hosts=needed)) >= days * (1 - 1e-9)
    if needed > plan.copies:
        assert days_until_full(replace(plan, hosts=needed - 1)) < days * (1 + 1e-9)


@given(plans, st.floats(1.01, 100))
def test_days_scale_with_what_is_written(plan, factor):
    """Dividing the bytes per document by a factor multiplies the days by it."""
    larger = replace(plan, bytes_per_document=plan.bytes_per_document * factor)

    assert days_until_full(plan) == pytest.approx(days_until_full(larger) * factor)
