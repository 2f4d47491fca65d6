"""Intervals, what bodies take on disk, and the model over both."""

from __future__ import annotations

import datetime
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemaless.capacity.disk_bytes import LONGEST_BODY_BYTES, disk_bytes, disk_bytes_range
from schemaless.capacity.outlook import Ranges, outlook
from schemaless.capacity.ratios import ratio
from schemaless.errors import InvalidInput
from schemaless.numbers import Interval
from schemaless.survey.page_model import MARIADB, MYSQL

pytestmark = pytest.mark.once

START = datetime.date(2016, 3, 1)


def intervals(least: float, most: float) -> st.SearchStrategy[Interval]:
    values = st.floats(least, most)
    return st.tuples(values, values, values).map(lambda ends: Interval(*sorted(ends)))


ranges = st.builds(
    Ranges,
    documents_per_day=intervals(1, 1e6),
    bytes_per_document=intervals(100, 1e5),
    disk_bytes_per_host=intervals(1e9, 1e13),
    overhead_share=intervals(0, 0.9),
    stored_bytes=intervals(0, 1e11),
    growth_share_per_year=intervals(-0.9, 3),
    growth_kind=st.sampled_from(["linear", "compound"]),
    weekdays=st.none() | st.just((1, 1, 1, 1, 1.3, 0.8, 0.6)),
    copies=st.integers(1, 3),
    hosts=st.integers(3, 50),
    retention_days=st.none() | st.floats(1, 200),
)


@settings(max_examples=40)
@given(ranges, st.floats(0, 1_000))
def test_the_answers_hold_every_plan_between_the_ends(ranges, days):
    """Low is the bad case and high the good one: the middle plan lies between, whatever the inputs."""
    seen = outlook(ranges, START, days)
    good, bad = (outlook_of(ranges, case, days) for case in ("good", "bad"))

    assert seen.days_until_full.low == pytest.approx(bad.days_until_full.mid)
    assert seen.days_until_full.high == pytest.approx(good.days_until_full.mid)
    assert seen.at.hosts_needed.low == good.at.hosts_needed.mid <= seen.at.hosts_needed.mid
    assert seen.at.headroom_share.low == pytest.approx(bad.at.headroom_share.mid)
    dates = [day or datetime.date.max for day in seen.full_on]
    assert dates == sorted(dates)


def outlook_of(ranges: Ranges, case: str, days: float):
    """Return the outlook of one corner, as exact values."""
    plan = ranges.plan(case)
    corner = Ranges(
        **{
            name: Interval.of(getattr(plan, name))
            for name in (
                "documents_per_day",
                "bytes_per_document",
                "disk_bytes_per_host",
                "overhead_share",
                "stored_bytes",
            )
        },
        growth_share_per_year=Interval.of(plan.growth.share_per_year),
        growth_kind=ranges.growth_kind,
        weekdays=ranges.weekdays,
        copies=ranges.copies,
        hosts=ranges.hosts,
        retention_days=ranges.retention_days,
    )
    return outlook(corner, START, days)


@pytest.mark.parametrize("ends", [(2, 1, 3), (1, 3, 2), (1, math.nan, 2), ("1", 2, 3), (1, 2, True)])
def test_an_interval_rises_and_holds_numbers(ends):
    """Low, mid, high, in this order."""
    with pytest.raises(InvalidInput):
        Interval.given(*ends)


def test_bodies_of_half_a_page_take_much_more_than_shorter_ones():
    """The steps that the page model knows: in a page with others, one overflow page, two."""
    assert disk_bytes(8_061) / disk_bytes(8_060) == pytest.approx(1.75, abs=0.01)
    assert disk_bytes(15_681) / disk_bytes(15_680) == pytest.approx(2, abs=0.02)
    assert disk_bytes(15_681, layout=MARIADB) == disk_bytes(8_061, layout=MARIADB)


@pytest.mark.parametrize(
    ("layout", "body_bytes", "rows", "file_bytes"),
    [
        (MYSQL, 300, 677_963, 348.1e6),
        (MYSQL, 2_600, 78_113, 306.2e6),
        (MYSQL, 7_900, 25_708, 251.7e6),
        (MYSQL, 12_000, 16_924, 293.6e6),
        (MYSQL, 40_000, 5_078, 260.0e6),
    ],
)
def test_what_a_cell_takes_is_what_rebuilt_tables_had(layout, body_bytes, rows, file_bytes):
    """Within 5 % of the tables of 200 MB in docs/benchmarks/space.md; they have some MB more once."""
    drawn = sum(disk_bytes(body_bytes * share, layout=layout) for share in (0.97, 0.98, 0.99, 1)) / 4

    assert drawn * rows == pytest.approx(file_bytes, rel=0.05)


@settings(max_examples=20)
@given(intervals(0, 100_000), st.sampled_from([MYSQL, MARIADB]))
def test_longer_bodies_never_take_less(lengths, layout):
    """Low, mid and high of lengths are low, mid and high of what they take, and more than the bodies themselves."""
    taken = disk_bytes_range(lengths, layout=layout)

    assert taken.mid == pytest.approx(disk_bytes(lengths.mid, layout=layout), rel=0.01)
    assert taken.low > lengths.low


@pytest.mark.parametrize("length", [-1, LONGEST_BODY_BYTES + 1, math.nan])
def test_a_body_that_no_cell_can_have_is_refused(length):
    """Above 16 MiB there are none."""
    with pytest.raises(InvalidInput, match="body_bytes must be"):
        disk_bytes(length)


def test_a_ratio_that_nobody_measured_is_not_guessed():
    """Only codecs of the source, and it says which."""
    with pytest.raises(InvalidInput, match=r"no ratio was measured for 'msgpack\+zstd', only for legacy, json\+zlib"):
        ratio("msgpack+zstd")
