"""The capacity report assembled from measurements, forecasts and codec trials."""

from __future__ import annotations

import datetime
import json
import math
from dataclasses import replace

import pytest

from schemaless.base.numbers import Interval
from schemaless.cli.capacity import show
from schemaless.codec.trial import NEEDS_NATIVE
from schemaless.planning.capacity.basis import Collected
from schemaless.planning.capacity.disks import GivenDisk
from schemaless.planning.capacity.forecast import BackTest, Forecast, NoForecast
from schemaless.planning.capacity.measurement import NO_CODEC_TRIALS, Measurement
from schemaless.planning.capacity.options import PlanningOptions
from schemaless.planning.capacity.report import CapacityReport
from schemaless.planning.capacity.report_notes import note_on_other_tables
from schemaless.planning.capacity.reporting import assemble_report
from schemaless.planning.capacity.series import daily
from schemaless.ui.pages.capacity_json import report_json
from schemaless.ui.pages.capacity_page import capacity_html
from schemaless.ui.pages.capacity_tables import WHAT_IF, history_table, tables
from schemaless.ui.pages.capacity_words import TOO_WIDE, answer, at_rate_text, figure_text, price_text, saving_text
from schemaless.ui.terminal.output import begin_output
from tests.planning.capacity.reports import (
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
    """A report of two clusters with 40 days of growth."""
    return common()


@pytest.fixture(scope="module")
def odd() -> dict[str, CapacityReport]:
    """Reports of edge cases."""
    return odd_reports()


def days(found: CapacityReport, name: str) -> float:
    (scenario,) = (each for each in found.scenarios if each.name == name)
    assert scenario.first is not None
    assert scenario.first.days is not None
    return scenario.first.days.mid


def test_the_answer_is_the_disk_that_is_full_first(seen):
    """The smaller disk decides, and its days are about its free space divided by the growth."""
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


def test_scenarios_differ_in_the_expected_direction(seen):
    """More growth means fewer days, a rebuild more, a codec the most; no rebuild makes it worse."""
    assert days(seen, "growth x10") < days(seen, "growth x2") < days(seen, "now") < days(seen, "rebuilt")
    assert days(seen, "rebuilt") < days(seen, "msgpack+none") <= days(seen, "msgpack+zlib")
    assert days(seen, "growth x10, msgpack+zlib") > 3 * days(seen, "growth x10")
    assert days(seen, "growth x2") == pytest.approx(days(seen, "now") / 2, rel=0.15)
    assert days(seen, "a lost host") == days(seen, "now")  # Replicas hold all cells.


def test_files_after_a_codec_are_predicted_by_shard(seen):
    """The prediction includes the cells and the free space that each file keeps."""
    (scenario,) = (each for each in seen.scenarios if each.name == "msgpack+zlib")

    assert scenario.file_bytes is not None
    cells = sum(group.cells.mid for group in seen.measurement.groups)
    assert 1.2 < scenario.file_bytes.mid / (cells * 0.15 * 2000) < 1.6  # InnoDB keeps pages free.
    assert scenario.file_bytes.low < scenario.file_bytes.mid < scenario.file_bytes.high


def test_the_codec_is_the_recommended_or_the_requested_one(seen):
    """The default wins unless another codec saves a tenth more; --to overrides it."""
    assert seen.codec == "msgpack+zlib"
    assert report(least_gain=0.05).codec == "msgpack+zstd"
    assert report(codec="json+zlib").codec == "json+zlib"


def test_report_and_codec_advise_agree(seen):
    """Both use the same rule; here zstd is at the knee of bytes against time."""
    assert seen.choice is not None
    assert seen.choice.chosen is not None
    assert seen.choice.chosen.name == seen.codec
    assert seen.choice.knee.name == "msgpack+zstd"
    (codecs,) = (each for each in tables(seen) if each.title.startswith("Codecs"))
    assert seen.choice.knee_text in codecs.note


def test_a_codec_that_saves_too_little_is_not_recommended():
    """A saving of four percent gives a reason instead of a gain; the scenarios are still there."""
    shares = dict.fromkeys(SHARES, 1.0) | {"msgpack+zstd": 0.96}
    found = report(trials=tried(shares=shares))

    assert (found.codec, found.after) == (None, None)
    assert saving_text(found).startswith("Re-encoding is not recommended: msgpack+zstd saves 4.0%")
    assert days(found, "msgpack+zstd") > days(found, "msgpack+zlib")
    assert report(trials=tried(shares=shares), least_gain=0.01).codec == "msgpack+zstd"


def test_a_recommendation_of_packed_mentions_its_native_part():
    """Only packed needs a native package wherever its cells are read."""
    shares = dict.fromkeys(SHARES, 1.0) | {"packed+zstd": 0.3}
    found = report(trials=tried(shares=shares))

    assert found.codec == "packed+zstd"
    assert NEEDS_NATIVE in found.notes
    assert NEEDS_NATIVE not in report().notes


def test_shards_of_a_lost_host_without_a_replica_move_to_the_others():
    """Its bytes and its growth are added to the other disks, which are full sooner."""
    single = [space(name, copies=1, disk=8 * GIB) for name in ("cluster-1", "cluster-2", "cluster-3")]
    single = [replace(each, disk_from="flag") for each in single]
    found = report(measurement(clusters=single))

    (lost,) = (each for each in found.scenarios if each.name == "a lost host")
    assert len(lost.disks) == 2
    assert days(found, "a lost host") < 0.75 * days(found, "now")

    only = report(measurement(clusters=[space("cluster-1", copies=1)]))
    (lost,) = (each for each in only.scenarios if each.name == "a lost host")
    assert lost.first is None
    assert "no other disk of known size" in lost.change.description
    described = {row[0]: row[-1] for table in tables(only) if table.title == WHAT_IF for row in table.rows}
    assert (
        described["a lost host"] == f"{lost.change.description[:-1]}. Unknown: there is no other disk for its shards."
    )


@pytest.mark.parametrize(
    ("price", "text"),
    [(0, "0.00"), (0.0004, "under 0.01"), (0.006, "0.01"), (999.5, "999.50"), (1234.5, "1,234")],
)
def test_a_tiny_price_is_not_nothing(price, text):
    """Two decimals, as in money."""
    assert price_text(price) == text


def test_servers_of_one_machine_share_their_disk():
    """Two clusters that report the same disk fill it together, and a note says so."""
    shared = [space(name, disk=8 * GIB) for name in ("cluster-1", "cluster-2")]
    found = report(measurement(clusters=shared))

    assert [each.disk.name for each in found.disks] == ["cluster-1 and cluster-2"]
    assert found.disks[0].disk.file_bytes == 2 * round(1.1 * GIB)
    assert any("they report the same disk" in note for note in found.notes)


def test_a_given_disk_overrides_the_measured_one():
    """If only a different size is given, the free space is assumed to be the size less the files, with a note."""
    found = report(disks={"cluster-1": GivenDisk(40 * GIB)})

    assert found.disks[0].disk.free_bytes == 40 * GIB - round(1.1 * GIB)
    assert found.disks[0].disk.free_assumed
    assert any("assumes that only this datastore uses the disk" in note for note in found.notes)
    assert found.now.first is not None
    assert found.now.first.disk == "cluster-2"


def test_a_given_disk_that_differs_from_the_measured_one_is_noted():
    """The note has both values; a given disk that matches the measured one needs no note."""
    found = report(disks={"cluster-1": GivenDisk(40 * GIB, 3 * GIB), "cluster-2": GivenDisk(5 * GIB)})

    (note,) = (note for note in found.notes if note.endswith("; the report uses the given one"))
    assert (
        "cluster-1: the given disk has 42.9 GB with 3.22 GB free, but its server reports 4.29 GB with 3.11 GB free"
        in note
    )
    assert found.disks[1].disk.free_bytes == 5 * GIB - round(1.1 * GIB)
    assert not found.disks[1].disk.free_assumed


def test_older_measurements_add_days_before_the_newest():
    """If both have a day, the newest measurement counts."""
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
    """A week without cells was measured and is part of the series."""
    series = daily([measurement(days=30, growth_to=TODAY - datetime.timedelta(7))])

    assert [each.body_bytes for each in series[0].days[-7:]] == [0.0] * 7


def test_every_report_is_json(odd, seen):
    """All reports convert to plain values without infinity or NaN, which JSON does not have."""
    for found in (seen, *odd.values()):
        text = json.dumps(report_json(found), allow_nan=False)

        assert json.loads(text)["answer"]["now"].keys() >= {"days_until_full", "unknown"}


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("empty", "no day was measured"),
        ("one cell", "no day was measured"),
        ("one day", "1 day was measured, but a forecast needs at least 14"),
        ("all down", "not measured: no connection: refused"),
        ("dates long gone", "the size is constant: nothing was written on the 730 measured days"),
        ("no disk known", "size or free space of its disk is unknown; give --disk"),
    ],
)
def test_an_unknown_answer_has_a_reason(odd, name, why):
    """There is no figure, but a reason."""
    found = odd[name]

    assert found.now.first is None
    for each in found.now.disks:
        assert each.days is None
        assert each.why is not None
        assert why in each.why


@pytest.mark.long
def test_a_note_on_several_clusters_is_one_note():
    """What holds for all disks is said once, with their names; the page has the notes below the figures."""
    found = report(measurement(clusters=[space(name, disk=None) for name in ("cluster-1", "cluster-2")]))

    (note,) = (note for note in found.notes if "do not report the size" in note)
    assert note.startswith("cluster-1, cluster-2: the servers do not report")
    text = capacity_html(found)
    assert text.index(note[9:]) > text.index("What-if scenarios")


def test_imports_that_recur_are_named():
    """More than two imports stay in the forecast, which one note says for both clusters."""
    found = measurement(days=100)
    begins = [TODAY - datetime.timedelta(ago) for ago in (80, 50, 20)]
    growth = tuple(
        replace(
            day, body_bytes=day.body_bytes.times(20 if any(0 <= (day.day - each).days < 4 for each in begins) else 1)
        )
        for day in found.growth
    )

    (note,) = (note for note in report(replace(found, growth=growth)).notes if "imports recur" in note)
    assert note.startswith("cluster-1, cluster-2: imports recur, 3 in ")


def test_a_constant_rate_that_is_too_uncertain_is_no_number():
    """A factor of 100 between the ends is not shown; one without end is open."""
    assert at_rate_text(Interval(2, 30, 500)) == TOO_WIDE
    assert at_rate_text(Interval(2, 30, 150)) == "30 (2 to 150)"
    assert at_rate_text(Interval(2, 30, math.inf)) == "30 (2 or more)"
    assert at_rate_text(Interval(math.inf, math.inf, math.inf)) == "never"
    assert at_rate_text(Interval(40_000, 350_592_810, math.inf)) == "over 100 years"
    assert at_rate_text(Interval(20_000, 40_000, 350_592_810)) == TOO_WIDE
    assert at_rate_text(Interval(20_000, 40_000, 60_000)) == "over 100 years (20,000 or more)"
    assert at_rate_text(Interval(20_000, 30_000, 60_000)) == "30,000 (20,000 or more)"
    assert figure_text(Interval(1, 50, 101)) == TOO_WIDE
    assert figure_text(Interval(-1, 50, 101)) == "50 B (-1 to 101)"


def test_a_cluster_that_is_down_is_named_and_the_others_have_answers(odd):
    """Nothing is invented for it."""
    found = odd["a cluster that is down"]

    assert found.now.first is not None
    assert [each.disk for each in found.now.unknown] == ["cluster-2"]
    assert any("cluster-2: missing from all figures: no connection: refused" in warning for warning in found.warnings)
    assert ", except in cluster-2 (" in dict(found.how)["Sizes"]
    assert [each.cluster for each in found.skew.clusters] == ["cluster-1"]
    assert all(each.file_bytes is None for each in found.scenarios if each.change.trial)


def test_dates_of_the_future_are_left_out_and_counted(odd):
    """Cells with dates in the future do not count for the trend, and a note gives their number."""
    found = odd["dates of the future"]

    assert all(day < TODAY for each in found.disks for day, _ in each.history)
    assert any("have dates after 2026-06-01" in note for note in found.notes)


def test_a_full_disk_is_full_today(odd):
    """Without free space there are 0 days."""
    assert odd["a full disk"].now.first is not None
    assert odd["a full disk"].now.first.days == (0, 0, 0, 0, 0)


@pytest.mark.long
def test_a_finished_import_is_named_and_left_out():
    """It changes neither the days nor the costs, and no interval spans more than a factor of 100."""
    first = TODAY - datetime.timedelta(38)
    found = measurement(days=78)
    burst = replace(
        found,
        growth=tuple(
            replace(day, body_bytes=day.body_bytes.times(20)) if 0 <= (day.day - first).days < 8 else day
            for day in found.growth
        ),
    )
    planning = PlanningOptions(price_per_tb=90, lead_days=30)

    imported, plain = report(burst, planning=planning), report(found, planning=planning)

    (warning,) = (warning for warning in imported.warnings if "cluster-1" in warning)
    assert f"({first} to {first + datetime.timedelta(7)}, " in warning
    assert "is left out" in warning
    assert imported.now.first.days.mid == pytest.approx(plain.now.first.days.mid, rel=0.05)
    assert imported.now.first.bytes_per_day == pytest.approx(plain.now.first.bytes_per_day, rel=0.05)
    assert imported.now.first.at_rate.mid == pytest.approx(plain.now.first.at_rate.mid, rel=0.05)
    price = imported.planning.costs[0].price
    assert price.high_80 < 3 * price.low_80
    assert TOO_WIDE not in capacity_html(imported)


def test_a_column_that_the_measurement_lacks_does_not_end_the_report():
    """It was written after the sizes were measured and before codecs were tried."""
    found = report(trials=tried(("BASE", "STATUS", "LATER")))

    assert found.choice is not None
    assert {each.column_name for each in found.trials} == {"BASE", "STATUS", "LATER"}


def test_a_measurement_without_trials_says_to_measure_again():
    """Earlier versions saved none."""
    assert any("has no codec trials" in note for note in report(trials=NO_CODEC_TRIALS).notes)


def test_a_measurement_that_cannot_be_read_is_named():
    """The report goes on without it."""
    found = assemble_report(Collected((measurement(days=5),), unreadable=("measurement 3 is damaged",)), TAKEN_AT)
    assert "left out: measurement 3 is damaged" in found.warnings


def test_a_stale_measurement_and_a_wrong_clock_have_notes():
    """A report of old sizes says so, and so does a report that is older than its measurement."""
    late = assemble_report(Collected((measurement(days=5),)), TAKEN_AT + datetime.timedelta(9))
    early = assemble_report(Collected((measurement(days=5),)), TAKEN_AT - datetime.timedelta(1))

    assert any("9 days old" in note for note in late.notes)
    assert any("either this clock or the catalog server's is wrong" in note for note in early.notes)


def test_forecasts_are_by_disk_and_by_cluster_and_column(seen):
    """Each has its own back-test."""
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
    """With one day of history, no series has a forecast."""
    found = odd["one day"]

    assert all(isinstance(each.forecast, NoForecast) for each in (*found.disks, *found.columns))
    assert any("no forecast, because 1 day was measured" in note for note in found.notes)


def test_clusters_that_are_down_do_not_share_a_disk():
    """Two clusters without a known disk are not mistaken for one disk."""
    found = report(measurement(clusters=[down("cluster-1"), down("cluster-2"), space("cluster-3")]))

    assert len(found.disks) == 3


@pytest.mark.parametrize(("other", "mixed"), [("msgpack+zlib", True), ("msgpack+none", False), ("json+none", False)])
def test_a_mix_of_codecs_has_a_note_unless_it_is_a_fallback(other, mixed):
    """Half of a column in another codec matters for new cells; bodies too short to compress do not."""
    found = measurement(days=3)
    groups = [replace(group, codec=other if group.shard in (1, 3, 5, 7) else group.codec) for group in found.groups]

    notes = report(replace(found, groups=tuple(groups))).notes

    assert any("stored in several codecs" in note for note in notes) is mixed


@pytest.fixture(scope="module")
def launched() -> CapacityReport:
    """A service whose growth rose to two and a half times its level 17 days before the measurement."""
    before = measurement(days=70)
    begun = TODAY - datetime.timedelta(17)
    grown = (
        replace(each, body_bytes=each.body_bytes.times(2.5 if each.day >= begun else 1.0)) for each in before.growth
    )
    return report(replace(before, growth=tuple(grown)))


@pytest.mark.long
def test_a_back_test_that_failed_warns_at_the_headline(launched, seen, capsys):
    """If the bands did not hold, the answer says so and gives the days at the constant rate."""
    tests = [each.forecast.back_test for each in launched.disks if isinstance(each.forecast, Forecast)]
    assert [test is not None and test.failure is not None for test in tests] == [True, True]

    assert any(
        each.startswith("cluster-1") and ": the forecast failed its back-test: " in each for each in launched.warnings
    )
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
    begin_output(quiet=False)  # another test's command may have been asked for JSON
    show(launched)
    lines = capsys.readouterr().out.splitlines()
    assert lines[2].startswith("Re-encoding to ")
    assert lines[5].startswith("First disk full in: ")
    assert lines[6].startswith("WARNING: cluster-1")
    assert ": the forecast failed its back-test: " in lines[6]
    above = capacity_html(launched).partition('<div class="answer ')[0]
    assert ": the forecast failed its back-test" in above
    assert 'class="warnings"' not in capacity_html(seen)


def test_a_recent_step_is_detected_and_warned_about(launched, seen):
    """The warning has its day and size; a history without a step has none."""
    begun = TODAY - datetime.timedelta(17)

    for each in launched.disks:
        (step,) = each.steps
        assert abs((step.day - begun).days) <= 1
        assert step.times == pytest.approx(2.5, rel=0.2)
    assert any(": the daily growth rose abruptly on" in each for each in launched.warnings)
    assert [each.steps for each in seen.disks] == [(), ()]


def test_a_back_test_fails_by_its_days_or_by_its_sum():
    """Too few days inside the band, or a sum that is far off; deviations explained by chance are no failure."""
    right = BackTest(90, 30, 0.1, -0.05, 0.73, 0.97, True, True)

    assert right.failure is None
    assert replace(right, inside_80_share=0.43).failure == "only 43% of the last 30 days were in the 80 % band"
    assert "forecast 41% too low" in str(replace(right, total_error_share=-0.41, total_inside_80=False).failure)
    assert replace(right, total_error_share=-0.41).failure is None
    assert "too high" in str(replace(right, total_error_share=0.2, total_inside_95=False).failure)


def test_a_codec_tried_on_a_handful_of_cells_has_no_figure(seen):
    """Three cells are too few; a note says so, and the column keeps its size."""
    trials = tried()
    few = [replace(each, carried=each.column_name != "STATUS", sampled=3) for each in trials.columns]
    found = report(trials=replace(trials, columns=tuple(few)))

    assert {each.column_name for each in found.trials} == {"BASE"}
    assert any(note.startswith("STATUS: too few cells were sampled") for note in found.notes)
    assert days(found, "growth x10, msgpack+zlib") < days(seen, "growth x10, msgpack+zlib")


def test_every_estimate_in_the_tables_has_an_interval(seen):
    """Sizes, rates, weeks and shares that come from a sample."""
    by_title = {each.title: each for each in [*tables(seen), history_table(seen)]}

    for title, columns in {
        "Stored now": ("cells", "body bytes", "allocated", "as JSON text"),
        "Forecasts and their back-tests": ("a day now", "change in a year (80 %)"),
        "Codecs tried on sampled cells": ("body bytes vs. now", "allocated vs. now"),
        "Clusters": ("if rebuilt",),
        "Skew between clusters": ("allocated", "fair share", "after the moves"),
        "Largest shards": ("allocated",),
        "By week": ("growth of disk usage",),
    }.items():
        table = by_title[title]
        for column in columns:
            place = table.columns.index(column)
            assert all(" to " in row[place] for row in table.rows), (title, column, table.rows[0])


def test_other_tables_are_listed_with_their_growth():
    """Over all clusters; the growth needs an earlier measurement, and without other tables there is no note."""
    first, second = space("cluster-1", other_files={"index_1": 3 * MIB}), space("cluster-2")
    later = (
        replace(first, other_files={"follower": MIB, "index_1": 10 * MIB}),
        replace(second, other_files={"index_1": 2 * MIB}),
    )
    newest = measurement(clusters=later)
    old = replace(measurement(clusters=[first, second]), taken_at=TAKEN_AT - datetime.timedelta(5))

    assert note_on_other_tables([measurement()]) == []
    (alone,) = note_on_other_tables([newest])
    (both,) = report(old, newest).notes[-1:]

    assert "use 13.6 MB: follower 1.05 MB, index_1 12.6 MB. They count" in alone
    assert "13.6 MB: follower 1.05 MB, index_1 12.6 MB; they grew by 2.10 MB a day over 5 days. They count" in both
    assert Measurement.from_json(newest.to_json()).other_files == newest.other_files
