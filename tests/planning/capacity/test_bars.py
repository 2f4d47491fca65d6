"""The bars of file bytes by column and codec, which must agree with the rest of the page."""

from __future__ import annotations

from dataclasses import replace

import pytest

from schemaless.base.numbers import Interval
from schemaless.planning.capacity.disk_bytes import disk_bytes
from schemaless.planning.capacity.report import bars
from schemaless.ui.pages.capacity_page import capacity_html
from tests.planning.capacity.reports import MIB, common, measurement, report, space, tried, within

pytestmark = pytest.mark.once


def small_files():
    """A small datastore like the demo's, whose new files are shorter than rebuilt ones."""
    spaces = [
        space(name, stored=40 * MIB, disk=66 * MIB, rebuilt_bytes=within(70 * MIB))
        for name in ("cluster-1", "cluster-2")
    ]
    found = measurement(clusters=[replace(each, free_bytes=22 * MIB) for each in spaces], bytes_a_day=MIB / 8)
    groups = tuple(
        replace(group, cells=group.cells.times(1 / 26), body_bytes=group.body_bytes.times(1 / 26))
        for group in found.groups
    )
    return report(replace(found, groups=groups))


def test_each_column_is_drawn_by_its_own_ratio():
    """A column that shrinks to 42 % is drawn at 42 %, regardless of other columns and of free space in files."""
    trials = tried()
    columns = [
        replace(each, share=within(0.42), pages_share=within(0.42), migrated_pages_share=within(0.42))
        if each.column_name == "STATUS"
        else each
        for each in trials.columns
    ]

    now, *codecs = bars(report(trials=replace(trials, columns=tuple(columns))))

    (zlib,) = (bar for bar in codecs if bar.name == "msgpack+zlib")
    assert zlib.columns["STATUS"] / now.columns["STATUS"] == pytest.approx(0.42)
    assert zlib.columns["BASE"] / now.columns["BASE"] == pytest.approx(0.15)


def test_bars_are_as_long_as_the_files_of_their_scenario():
    """Columns and rest add up to the measured files now, and to the predicted files of the scenario."""
    for found in (common(), small_files()):
        by_name = {each.name: each for each in found.scenarios}

        for bar in bars(found):
            if bar.name == "now":
                assert bar.total == Interval.of(float(sum(each.file_bytes or 0 for each in found.measurement.clusters)))
            else:
                assert bar.total == by_name[bar.name].file_bytes
            assert sum(bar.columns.values()) + bar.rest == pytest.approx(bar.total.mid)


def test_the_current_codec_has_no_scenario():
    """Re-encoding to the codec that all cells already have is not a scenario."""
    assert {group.codec for group in common().measurement.groups} == {"legacy"}
    assert "legacy" not in {each.name for each in common().scenarios}
    assert "legacy" in {each.codec for each in common().trials}


def test_small_files_that_a_rebuild_would_lengthen_are_not_rebuilt():
    """Unless bodies get longer, no rebuild scenario fills a disk sooner than now."""
    found = small_files()
    now = found.now.first
    assert now is not None
    assert now.days is not None

    for each in found.scenarios:
        if each.name == "rebuilt" or each.change.trial == each.name:
            assert each.first is not None
            assert each.first.days is not None
            assert each.first.days.mid >= now.days.mid, each.name
    assert "no space left" not in capacity_html(found)


@pytest.mark.parametrize("measured", [True, False])
def test_old_statistics_do_not_shorten_a_rebuilt_file(measured):
    """Statistics may be outdated, so only a measured file length bounds the length after a rebuild."""
    short = space("cluster-1", file_bytes=1_000_000, file_bytes_measured=measured)
    found = report(measurement(clusters=[short]))

    (rebuilt,) = (each.file_bytes for each in found.scenarios if each.name == "rebuilt")

    assert rebuilt is not None
    assert rebuilt.mid == (1_000_000 if measured else short.rebuilt_bytes.mid)


def test_rows_of_cold_cells_keep_their_length_in_every_codec():
    """They are drawn apart, and what is predicted of the files has them as they are."""
    found = measurement()
    rows = replace(found.groups[0], codec="cold", body_bytes=Interval.of(1e7), allocated_bytes=within(50 * MIB))
    with_rows = report(replace(found, groups=(*found.groups, rows)))
    now, *codecs = bars(with_rows)
    before, after = ({each.name: each.file_bytes.mid for each in of.scenarios[:4]} for of in (common(), with_rows))

    assert [bar.columns["BASE, cold"] for bar in codecs] == pytest.approx([now.columns["BASE, cold"]] * len(codecs))
    size = rows.cells.mid * disk_bytes(1e7 / rows.cells.mid)
    assert after["msgpack+zlib"] - before["msgpack+zlib"] == pytest.approx(size, rel=0.05)
