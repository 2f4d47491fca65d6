"""Intervals, disk space of bodies, and the capacity model over both."""

from __future__ import annotations

import datetime
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemaless.base.numbers import Interval
from schemaless.cell import MAX_BODY_BYTES
from schemaless.cli.capacity_model import published_ratio
from schemaless.errors import InvalidInput
from schemaless.planning.capacity.disk_bytes import disk_bytes, disk_bytes_range, disk_parts
from schemaless.planning.capacity.outlook import Ranges, outlook
from schemaless.planning.sampling.page_model import MARIADB, MYSQL

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


@given(ranges, st.floats(0, 1_000))
def test_the_ends_of_the_answers_are_the_worst_and_best_plan(ranges, days):
    """The middle plan is always in between."""
    seen = outlook(ranges, START, days)
    good, bad = (outlook_of(ranges, case, days) for case in ("good", "bad"))

    assert seen.days_until_full.low == pytest.approx(bad.days_until_full.mid)
    assert seen.days_until_full.high == pytest.approx(good.days_until_full.mid)
    assert seen.at.hosts_needed.low == good.at.hosts_needed.mid <= seen.at.hosts_needed.mid
    assert seen.at.headroom_share.low == pytest.approx(bad.at.headroom_share.mid)
    dates = [day or datetime.date.max for day in seen.full_on]
    assert dates == sorted(dates)


def outlook_of(ranges: Ranges, case: str, days: float):
    """Return the outlook of one case with exact values."""
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
def test_an_interval_needs_ordered_numbers(ends):
    """Low, mid and high in this order."""
    with pytest.raises(InvalidInput):
        Interval.given(*ends)


def test_bodies_of_half_a_page_take_much_more_than_shorter_ones():
    """The steps of the page model: shared page, one overflow page, two overflow pages."""
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
def test_disk_bytes_agree_with_measured_tables(layout, body_bytes, rows, file_bytes):
    """Within 5 % of the 200 MB tables in benchmarks/logs/space.md, which include a fixed cost of some MB."""
    drawn = sum(disk_bytes(body_bytes * share, layout=layout) for share in (0.97, 0.98, 0.99, 1)) / 4

    assert drawn * rows == pytest.approx(file_bytes, rel=0.05)


@settings(max_examples=20)
@given(intervals(0, 100_000), st.sampled_from([MYSQL, MARIADB]))
def test_longer_bodies_never_take_less(lengths, layout):
    """Disk space is monotone in the length, and more than the body."""
    sizes = disk_bytes_range(lengths, layout=layout)

    assert sizes.mid == pytest.approx(disk_bytes(lengths.mid, layout=layout), rel=0.01)
    assert sizes.low > lengths.low


@pytest.mark.parametrize("length", [-1, MAX_BODY_BYTES + 1, math.nan])
def test_an_impossible_body_length_is_refused(length):
    """Negative, NaN, or above the 16 MiB of a MEDIUMBLOB."""
    with pytest.raises(InvalidInput, match="body_bytes must be"):
        disk_bytes(length)


def test_an_unpublished_ratio_is_an_error():
    """The error names the codecs with a published ratio."""
    with pytest.raises(InvalidInput, match=r"no published ratio for codec 'msgpack\+zstd', only for legacy, json\+zl"):
        published_ratio("msgpack+zstd")


@settings(max_examples=30, deadline=None)
@given(st.floats(0, 60_000), st.sampled_from([MYSQL, MARIADB]))
def test_the_parts_of_a_document_add_up(length, layout):
    """Body, row, index entry, unfilled space and free pages are the whole, and none is negative."""
    parts = disk_parts(length, layout=layout)

    assert sum(parts) == pytest.approx(disk_bytes(length, layout=layout))
    assert min(parts) >= 0
    assert parts.body == math.ceil(length)
