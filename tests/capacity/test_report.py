"""The report's value, put together from what was measured, forecast and tried."""

from __future__ import annotations

import datetime
import json
import math
from dataclasses import replace

import pytest

from schemaless.capacity.disks import GivenDisk
from schemaless.capacity.forecast import BackTest, Forecast, NoForecast
from schemaless.capacity.measurement import Measurement
from schemaless.capacity.report import CapacityReport
from schemaless.capacity.report_notes import beside_the_cells
from schemaless.capacity.reporting import put_together
from schemaless.capacity.series import daily
from schemaless.cli.capacity.report import show
from schemaless.codec.trial import NEEDS_NATIVE
from schemaless.pages.capacity_json import report_json
from schemaless.pages.capacity_page import capacity_html
from schemaless.pages.capacity_text import history_table, tables
from schemaless.pages.capacity_words import answer
from tests.capacity.reports import (
    GIB,
    MIB,
    SHARES,
    TAKEN_AT,
    TODAY,
    common,
    down,
    measurement,
    odd_reports,
    report,
    space,
    tried,
)

pytestmark = pytest.mark.once


@pytest.fixture(scope="module")
def seen() -> CapacityReport:
    """Two clusters with 40 days of growth."""
    return common()


@pytest.fixture(scope="module")
def odd() -> dict[str, CapacityReport]:
    """Reports of what is not as it should be."""
    return odd_reports()


def days(found: CapacityReport, name: str) -> float:
    (scenario,) = (each for each in found.scenarios if each.name == name)
    assert scenario.first is not None
    assert scenario.first.days is not None
    return scenario.first.days.mid


def test_the_answer_is_the_disk_that_is_full_first(seen):
    """The smaller disk decides, and its days are about what is free over what comes."""
    first = seen.now.first

    assert first is not None
    assert first.disk == "cluster-1"
    assert first.free_bytes is not None
    assert first.bytes_per_day == pytest.approx(16 * MIB * 1.07 * 1.3, rel=0.1)
    assert (
        0.6 * first.free_bytes.mid / first.bytes_per_day
        < days(seen, "now")
        < first.free_bytes.mid / first.bytes_per_day
    )
    assert first.days is not None
    assert first.days.low_95 < first.days.low_80 < first.days.mid < first.days.high_80


def test_scenarios_stand_in_their_order(seen):
    """What gives room gives days: more growth less, a rebuild more, a codec most; nothing that is rebuilt is worse."""
    assert days(seen, "growth x10") < days(seen, "growth x2") < days(seen, "now") < days(seen, "rebuilt")
    assert days(seen, "rebuilt") < days(seen, "msgpack+none") <= days(seen, "msgpack+zlib")
    assert days(seen, "growth x10, msgpack+zlib") > 3 * days(seen, "growth x10")
    assert days(seen, "growth x2") == pytest.approx(days(seen, "now") / 2, rel=0.15)
    assert days(seen, "a lost host") == days(seen, "now")  # there are replicas


def test_files_after_a_codec_are_predicted_by_shard(seen):
    """What the cells take then, and what each file has besides."""
    (scenario,) = (each for each in seen.scenarios if each.name == "msgpack+zlib")

    assert scenario.file_bytes is not None
    cells = sum(group.cells.mid for group in seen.measurement.groups)
    assert 1.2 < scenario.file_bytes.mid / (cells * 0.15 * 2000) < 1.6  # and what InnoDB keeps free
    assert scenario.file_bytes.low < scenario.file_bytes.mid < scenario.file_bytes.high


def test_the_codec_is_the_one_that_is_worth_it_or_the_one_asked_for(seen):
    """The default one where nothing saves a tenth more than it does; a choice goes before it."""
    assert seen.codec == "msgpack+zlib"
    assert report(least_gain=0.05).codec == "msgpack+zstd"
    assert report(codec="json+zlib").codec == "json+zlib"


def test_report_and_advice_are_of_one_mind(seen):
    """Both ask the same function, of what each tried: here the knee is zstd's, which no other is better than."""
    assert seen.choice is not None
    assert seen.choice.chosen is not None
    assert seen.choice.chosen.name == seen.codec
    assert seen.choice.knee.name == "msgpack+zstd"
    (codecs,) = (each for each in tables(seen) if each.title.startswith("Codecs"))
    assert seen.choice.knee_text in codecs.note


def test_a_codec_that_saves_less_than_a_rewrite_is_worth_is_not_advised():
    """Four percent: no re-encoding is advised, a note says why, and the scenarios are there all the same."""
    shares = dict.fromkeys(SHARES, 1.0) | {"msgpack+zstd": 0.96}
    found = report(trials=tried(shares=shares))

    assert (found.codec, found.after) == (None, None)
    assert any("no re-encoding is advised: msgpack+zstd saves 4.0%" in note for note in found.notes)
    assert days(found, "msgpack+zstd") > days(found, "msgpack+zlib")
    assert report(trials=tried(shares=shares), least_gain=0.01).codec == "msgpack+zstd"


def test_a_report_that_advises_packed_says_what_its_readers_need():
    """Its native part; no other codec needs anything."""
    shares = dict.fromkeys(SHARES, 1.0) | {"packed+zstd": 0.3}
    found = report(trials=tried(shares=shares))

    assert found.codec == "packed+zstd"
    assert NEEDS_NATIVE in found.notes
    assert NEEDS_NATIVE not in report().notes


def test_a_lost_host_without_a_replica_goes_to_the_others():
    """Its bytes and its growth are added to the other disks, which are full sooner."""
    alone = [space(name, copies=1, disk=8 * GIB) for name in ("cluster-1", "cluster-2", "cluster-3")]
    alone = [replace(each, disk_from="flag") for each in alone]
    found = report(measurement(clusters=alone))

    (lost,) = (each for each in found.scenarios if each.name == "a lost host")
    assert len(lost.disks) == 2
    assert days(found, "a lost host") < 0.75 * days(found, "now")

    only = report(measurement(clusters=[space("cluster-1", copies=1)]))
    (lost,) = (each for each in only.scenarios if each.name == "a lost host")
    assert lost.first is None
    assert "no other disk" in lost.text


def test_servers_of_one_machine_share_their_disk():
    """Two clusters that show the same disk fill it together, and a note says so."""
    shared = [space(name, disk=8 * GIB) for name in ("cluster-1", "cluster-2")]
    found = report(measurement(clusters=shared))

    assert [each.disk.name for each in found.disks] == ["cluster-1 and cluster-2"]
    assert found.disks[0].disk.file_bytes == 2 * round(1.1 * GIB)
    assert any("show the same disk" in note for note in found.notes)


def test_a_given_disk_goes_before_the_measured_one():
    """--disk says it better than a server; what is free is then the size less the files, which is said."""
    found = report(disks={"cluster-1": GivenDisk(40 * GIB)})

    assert found.disks[0].disk.free_bytes == 40 * GIB - round(1.1 * GIB)
    assert found.disks[0].disk.free_assumed
    assert any("taken to be all but this datastore's files" in note for note in found.notes)
    assert found.now.first is not None
    assert found.now.first.disk == "cluster-2"


def test_a_given_disk_that_differs_from_the_measured_one_is_noted():
    """Which of the two counts, and what the other was; one that is the same is not worth a word."""
    found = report(disks={"cluster-1": GivenDisk(40 * GIB, 3 * GIB), "cluster-2": GivenDisk(5 * GIB)})

    (note,) = (note for note in found.notes if note.endswith("; what is given counts"))
    assert "cluster-1: --disk gives 42.95 GB with 3.221 GB free, its server shows 4.295 GB with 3.114 GB free" in note
    assert found.disks[1].disk.free_bytes == 5 * GIB - round(1.1 * GIB)
    assert not found.disks[1].disk.free_assumed


def test_older_measurements_add_days_that_the_newest_does_not_have():
    """A trend needs no reading again; where both know a day, the newest counts."""
    newest = measurement(days=20)
    older = replace(
        measurement(days=60, growth_to=TODAY - datetime.timedelta(10)), taken_at=TAKEN_AT - datetime.timedelta(10)
    )
    series = daily([older, newest])

    assert [len(each.days) for each in series] == [70] * 4
    assert series[0].days[-1].day == TODAY - datetime.timedelta(1)
    mid = {each.day: each.body_bytes.mid for each in newest.growth if each.cluster == "cluster-1"}
    assert all(each.body_bytes > 0 for each in series[0].days)
    assert mid


def test_days_without_cells_after_the_last_one_count():
    """Nothing coming for a week is something that was measured."""
    series = daily([measurement(days=30, growth_to=TODAY - datetime.timedelta(7))])

    assert [each.body_bytes for each in series[0].days[-7:]] == [0.0] * 7


def test_every_report_is_json(odd, seen):
    """All of them are plain values, without infinity or NaN, which JSON does not have."""
    for found in (seen, *odd.values()):
        text = json.dumps(report_json(found), allow_nan=False)

        assert json.loads(text)["answer"]["now"].keys() >= {"days_until_full", "unknown"}


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("empty", "no growth was measured|nothing|no day was measured"),
        ("one cell", "no day was measured"),
        ("one day", "1 day was measured, and a forecast needs 14 at least"),
        ("all down", "not measured: no connection: refused"),
        ("dates long gone", "nothing came in on the 730 days that were measured"),
        ("no disk known", "its disk is not known; give --disk"),
    ],
)
def test_what_cannot_be_said_is_not_said(odd, name, why):
    """There is no figure, and the reason stands in its place."""
    found = odd[name]

    assert found.now.first is None
    for each in found.now.disks:
        assert each.days is None
        assert each.why is not None
        assert any(part in each.why for part in why.split("|")), each.why


def test_a_cluster_that_is_down_is_named_and_the_others_are_answered(odd):
    """Nothing pretends to know it, and what is known is still said."""
    found = odd["a cluster that is down"]

    assert found.now.first is not None
    assert [each.disk for each in found.now.unknown] == ["cluster-2"]
    assert any("cluster-2 is in no figure: no connection: refused" in note for note in found.notes)
    assert [each.cluster for each in found.skew.clusters] == ["cluster-1"]
    assert all(each.file_bytes is None for each in found.scenarios if each.codec)


def test_dates_of_the_future_are_left_out_and_counted(odd):
    """Cells that have not come yet do not make a trend, and a note says how many there are."""
    found = odd["dates of the future"]

    assert all(day < TODAY for each in found.disks for day, _ in each.history)
    assert any("have dates after 2026-06-01" in note for note in found.notes)


def test_a_full_disk_is_full_today(odd):
    """No free byte is no day."""
    assert odd["a full disk"].now.first is not None
    assert odd["a full disk"].now.first.days == (0, 0, 0, 0, 0)


def test_a_stale_measurement_and_a_clock_that_is_behind_are_said():
    """A report of last week's sizes says that it is, and so does one from before its measurement."""
    late = put_together([measurement(days=5)], tried(), TAKEN_AT + datetime.timedelta(9))
    early = put_together([measurement(days=5)], tried(), TAKEN_AT - datetime.timedelta(1))

    assert any("9 days old" in note for note in late.notes)
    assert any("one of the two clocks is wrong" in note for note in early.notes)


def test_forecasts_are_by_disk_and_by_cluster_and_column(seen):
    """Each has its own, with its back-test."""
    assert [(each.cluster, each.column_name) for each in seen.columns] == [
        (cluster, column) for cluster in ("cluster-1", "cluster-2") for column in ("BASE", "STATUS")
    ]
    for each in (*seen.disks, *seen.columns):
        assert isinstance(each.forecast, Forecast)
        assert each.forecast.back_test is not None
    assert seen.total is not None
    assert math.fsum(value for _, value in seen.total.history) == pytest.approx(
        math.fsum(value for each in seen.disks for _, value in each.history)
    )


def test_too_short_a_history_has_a_reason_everywhere(odd):
    """No series of a report with one day has a forecast."""
    found = odd["one day"]

    assert all(isinstance(each.forecast, NoForecast) for each in (*found.disks, *found.columns))
    assert any("no forecast, as 1 day was measured" in note for note in found.notes)


def test_a_cluster_down_alone_is_no_disk_of_another():
    """Two that are down are not taken for one disk."""
    found = report(measurement(clusters=[down("cluster-1"), down("cluster-2"), space("cluster-3")]))

    assert len(found.disks) == 3


@pytest.mark.parametrize(("other", "mixed"), [("msgpack+zlib", True), ("msgpack+none", False), ("json+none", False)])
def test_several_codecs_are_said_and_fallbacks_are_not(other, mixed):
    """Half of a column in another codec changes what new cells are like; bodies too short to compress do not."""
    found = measurement(days=3)
    groups = [replace(group, codec=other if group.shard in (1, 3, 5, 7) else group.codec) for group in found.groups]

    notes = report(replace(found, groups=tuple(groups))).notes

    assert any("stored in several codecs" in note for note in notes) is mixed


@pytest.fixture(scope="module")
def launched() -> CapacityReport:
    """A service whose days bring two and a half times as much since 17 days before the measurement."""
    before = measurement(days=70)
    begun = TODAY - datetime.timedelta(17)
    grown = (
        replace(each, body_bytes=each.body_bytes.times(2.5 if each.day >= begun else 1.0)) for each in before.growth
    )
    return report(replace(before, growth=tuple(grown)))


def test_a_back_test_that_failed_warns_at_the_headline(launched, seen, capsys):
    """Where the bands did not hold, the answer says so itself, and what the last weeks' constant rate comes to."""
    tests = [each.forecast.back_test for each in launched.disks if isinstance(each.forecast, Forecast)]
    assert [test is not None and test.failure is not None for test in tests] == [True, True]

    assert any("the forecast of cluster-1 failed its back-test: " in each for each in launched.warnings)
    first = launched.now.first
    assert first is not None
    assert first.at_rate is not None
    assert first.free_bytes is not None
    assert first.rate_days == 14
    assert first.at_rate.mid == pytest.approx(first.free_bytes.mid / (2.5 * 16 * MIB * 1.15 * 1.3), rel=0.1)
    assert first.at_rate.low < first.at_rate.mid < first.at_rate.high
    assert "At the constant rate of the last 14 days: " in answer(launched.now).detail
    assert report_json(launched)["answer"]["now"]["at_constant_rate"]["rate_of_days"] == 14
    assert not any("failed" in each for each in seen.warnings)
    show(launched)
    lines = capsys.readouterr().out.splitlines()
    assert lines[2].startswith("Until a disk is full as it is: ")
    assert lines[3].startswith("WARNING: the forecast of cluster-1 failed its back-test: ")
    box = capacity_html(launched).partition("</div>")[0]
    assert "Warning: the forecast of cluster-1 failed its back-test" in box
    assert 'class="warnings"' not in capacity_html(seen)


def test_a_step_in_the_level_is_found_and_said(launched, seen):
    """With its day and its size, at the headline while it is new; a history without one has none."""
    begun = TODAY - datetime.timedelta(17)

    for each in launched.disks:
        (step,) = each.steps
        assert abs((step.day - begun).days) <= 1
        assert step.times == pytest.approx(2.5, rel=0.2)
    assert any("what a day brings changed at once on" in each for each in launched.warnings)
    assert [each.steps for each in seen.disks] == [(), ()]


def test_a_back_test_fails_by_its_days_or_by_its_sum():
    """Too few days in the band, or a sum far off; what chance explains is no failure."""
    right = BackTest(90, 30, 0.1, -0.05, 0.73, 0.97, True, True)

    assert right.failure is None
    assert replace(right, inside_80_share=0.43).failure == "its 80 % band held 43% of the last 30 days"
    assert "forecast 41% too low" in str(replace(right, total_error_share=-0.41, total_inside_80=False).failure)
    assert replace(right, total_error_share=-0.41).failure is None
    assert "too high" in str(replace(right, total_error_share=0.2, total_inside_95=False).failure)


def test_a_codec_tried_on_a_handful_of_cells_has_no_figure(seen):
    """What three cells say is left out, with a note, and the column counts as it is."""
    trials = tried()
    few = [replace(each, carried=each.column_name != "STATUS", sampled=3) for each in trials.columns]
    found = report(trials=replace(trials, columns=tuple(few)))

    assert {each.column_name for each in found.trials} == {"BASE"}
    assert any(note.startswith("STATUS: too few cells were met to say") for note in found.notes)
    assert days(found, "growth x10, msgpack+zlib") < days(seen, "growth x10, msgpack+zlib")


def test_no_estimate_of_the_tables_stands_without_its_interval(seen):
    """Sizes, rates, weeks and shares of a sample: each has its low and its high beside it."""
    by_title = {each.title: each for each in [*tables(seen), history_table(seen)]}

    for title, columns in {
        "Stored now": ("cells", "body bytes", "allocated", "as JSON text"),
        "Forecasts and their back-tests": ("a day now", "growth in a year (80 %)"),
        "Codecs, tried on sampled cells": ("body bytes, of now", "allocated, of now"),
        "Clusters": ("if rebuilt",),
        "Skew": ("allocated", "its share", "after the moves"),
        "The fullest shards": ("allocated",),
        "By week": ("bytes of disk",),
    }.items():
        table = by_title[title]
        for column in columns:
            place = table.columns.index(column)
            assert all(" to " in row[place] for row in table.rows), (title, column, table.rows[0])


def test_tables_beside_the_cells_are_named_with_their_growth():
    """Of all clusters together; without an earlier day their growth is not told, and without any, nothing is."""
    first, second = space("cluster-1", other_files=(("index_1", 3 * MIB),)), space("cluster-2")
    later = (
        replace(first, other_files=(("follower", MIB), ("index_1", 10 * MIB))),
        replace(second, other_files=(("index_1", 2 * MIB),)),
    )
    newest = measurement(clusters=later)
    old = replace(measurement(clusters=[first, second]), taken_at=TAKEN_AT - datetime.timedelta(5))

    assert beside_the_cells([measurement()]) == []
    (alone,) = beside_the_cells([newest])
    (both,) = report(old, newest).notes[-1:]

    assert "take 13.0 MiB: follower 1.0 MiB, index_1 12.0 MiB. They are part" in alone
    assert "13.0 MiB: follower 1.0 MiB, index_1 12.0 MiB; they grew by 2.0 MiB a day over 5 days. They are" in both
    assert Measurement.from_json(newest.to_json()).other_files == newest.other_files
