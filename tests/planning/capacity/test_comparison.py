"""Scenarios side by side, several datastores in one report, and the agreement of all figures of the page."""

from __future__ import annotations

import csv
import datetime
import io
import math
import re
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from schemaless.base.numbers import Interval, bytes_text
from schemaless.errors import InvalidInput
from schemaless.planning.capacity.advice import suggestions
from schemaless.planning.capacity.basis import Collected
from schemaless.planning.capacity.combined import combine
from schemaless.planning.capacity.disks import GivenDisk
from schemaless.planning.capacity.forecast import Forecast, NoForecast, forecast
from schemaless.planning.capacity.measurement import DayIntake
from schemaless.planning.capacity.model import TB
from schemaless.planning.capacity.options import Asked, WhatIf
from schemaless.planning.capacity.report import CapacityReport, datastore_totals
from schemaless.planning.capacity.reporting import assemble_report
from schemaless.planning.sampling.block_trial import MODEL_ERROR
from schemaless.ui.pages.capacity_json import cold_json, csv_text, report_json, saving_json
from schemaless.ui.pages.capacity_page import capacity_html
from schemaless.ui.pages.capacity_tables import tables
from schemaless.ui.pages.capacity_words import saving_text, tier_answers
from schemaless.ui.terminal.output import estimate_text
from tests.planning.capacity.reports import (
    GIB,
    IN_MYROCKS,
    MIB,
    PLANNING,
    RACK,
    TAKEN_AT,
    TODAY,
    WHAT_IFS,
    common,
    growth,
    measurement,
    of_two,
    report,
    space,
    tried,
    users,
    within,
)

pytestmark = pytest.mark.once


@pytest.fixture(scope="module")
def both() -> CapacityReport:
    """Two datastores that share a disk, and three scenarios."""
    return of_two(planning=PLANNING, what_ifs=WHAT_IFS)


@pytest.fixture(scope="module")
def page(both) -> dict[str, list[list[str]]]:
    """The tables of the page by title."""
    return dict(_Tables(capacity_html(both)).tables)


class _Tables(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tables: list[tuple[str, list[list[str]]]] = []
        self.text: list[str] = []
        self._in_cell = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if values.get("role") == "region":
            self.tables.append((values["aria-label"] or "", []))
        elif tag == "tr":
            self.tables[-1][1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][1][-1].append("")
            self._in_cell = True

    def handle_endtag(self, tag: str) -> None:
        self._in_cell = self._in_cell and tag not in ("td", "th")

    def handle_data(self, data: str) -> None:
        self.text.append(data)
        if self._in_cell:
            self.tables[-1][1][-1][-1] += data


def column(table: list[list[str]], name: str) -> dict[str, str]:
    """The cells of a column by the text of their row."""
    return {row[0]: row[table[0].index(name)] for row in table[1:]}


def number(text: str) -> float:
    """The first number of a cell."""
    found = re.search(r"[0-9][0-9,]*(\.[0-9]+)?", text)
    assert found is not None, text
    return float(found[0].replace(",", ""))


def test_every_scenario_is_compared_with_now(both):
    """The comparison starts with the present, and the built-in scenarios remain."""
    assert [each.change.name for each in both.comparisons] == ["now", *(each.name for each in WHAT_IFS)]
    names = [each.name for each in both.scenarios]
    assert names[:2] == ["now", "rebuilt"]
    assert names[-len(WHAT_IFS) :] == [each.name for each in WHAT_IFS]


def test_growth_shortens_and_a_codec_lengthens(both):
    """Twice the growth of all datastores is the built-in scenario; of one, it changes only its own disks."""
    by_name = {each.name: {disk.disk: disk for disk in each.disks} for each in both.scenarios}

    assert by_name["twice"] == by_name["growth x2"]
    changed, codec = by_name["trips grows"], by_name["msgpack+zlib"]
    assert changed["trips/cluster-2"].times == codec["trips/cluster-2"].times.times(2)
    assert codec["rack-a"].times.mid < changed["rack-a"].times.mid < 2 * codec["rack-a"].times.mid


def test_copies_change_costs_and_not_days(both):
    """Three copies instead of two: half as much again to buy at once, and every month."""
    now, _, _, more, *_ = both.comparisons

    assert more.first.days == now.first.days
    assert more.stored_bytes.mid == pytest.approx(1.5 * now.stored_bytes.mid)
    assert more.start_price == pytest.approx(0.5 * now.stored_bytes.mid / TB * 60)
    assert more.cost.price.mid == pytest.approx(1.5 * now.cost.price.mid * 60 / 90)
    assert more.full.order_on == now.full.order_on + datetime.timedelta(35)


def test_a_codec_that_frees_space_costs_nothing_at_the_start(both):
    """Freed space is not income."""
    codec = both.comparisons[2]

    assert codec.added_bytes < 0
    assert codec.start_price == 0


def test_costs_with_and_without_scenarios_are_the_same(both):
    """The cost of growth in planning, in the comparison, and in a report without scenarios."""
    without = of_two(planning=PLANNING)

    assert both.planning.costs[0] == both.comparisons[0].cost == without.planning.costs[0]
    assert without.planning.costs[1] == without.comparisons[1].cost
    assert [each.change.name for each in without.comparisons] == ["now", without.codec]


def test_every_figure_follows_from_others_of_the_json(both):
    """Savings, totals, months, dates and money, recalculated by their definitions from the JSON alone."""
    policy = WhatIf(name="short", retention={"trips/BASE": "30 days", "users/BASE": "the last 2 versions"})
    for found in (both, of_two(planning=PLANNING), of_two(planning=PLANNING, what_ifs=(policy,), shared=False)):
        data = report_json(found)
        now = data["comparison"][0]
        for each in data["comparison"]:
            growth, budget, full, price = each["growth"], each["budget"], each["first_full"], each["price_per_tb"]
            for end, size in growth["bytes"].items():
                assert growth["price"][end] == pytest.approx(max(0, size) / TB * price, abs=0.01)
            assert sum(month["bytes"] for month in budget["months"]) == growth["bytes"]["mid"]
            assert sum(month["days"] for month in budget["months"]) == growth["days"]
            months = sum(round(100 * month["price"]) for month in budget["months"])
            assert months + round(100 * budget["start_price"]) == round(100 * budget["total_price"])
            added = each["stored_bytes"]["mid"] - now["stored_bytes"]["mid"]
            assert each["added_bytes"] == pytest.approx(added, abs=1)
            assert budget["start_price"] == pytest.approx(max(0, added) / TB * price, abs=0.01)
            if full["on"]["low_80"] is not None:
                on, order = (datetime.date.fromisoformat(full[key]["low_80"]) for key in ("on", "order_by"))
                assert (on - order).days == (each["changes"]["lead_days"] or data["planning"]["lead_days"])
        for name in ("cells", "body_bytes"):
            *parts, total = (each[name]["mid"] for each in data["datastores"])
            assert total == pytest.approx(sum(parts), abs=1)
        for name in ("file_bytes", "copies_bytes", "bytes_per_day"):
            *parts, total = (each[name] for each in data["datastores"])
            assert total == pytest.approx(sum(parts), abs=1)


def test_what_is_saved_follows_from_the_figures_of_now_and_of_the_codec():
    """The first line of the report: days, bytes and money, from the JSON alone; its intervals are 80 % ones, too."""
    found = report(measurement(days=120), planning=PLANNING, codec="packed+none")
    data = report_json(found)
    saving, (now, then) = data["answer"]["saving"], data["comparison"]
    days = [data["answer"][which]["days_until_full"] for which in ("now", "after_re_encoding")]
    sizes = [each["growth"]["bytes"] for each in (now, then)]
    months = now["growth"]["days"] / (365 / 12)

    assert saving["days"] == {end: late - days[0][end] for end, late in days[1].items()}
    assert saving["freed_bytes"]["mid"] == now["stored_bytes"]["mid"] - then["stored_bytes"]["mid"]
    assert saving["share"]["mid"] == pytest.approx(1 - sizes[1]["mid"] / sizes[0]["mid"], abs=1e-4)
    saved = sizes[0]["mid"] - sizes[1]["mid"]
    assert saving["bytes_per_month"]["mid"] == pytest.approx(saved / months, rel=1e-6)
    assert saving["price_per_month"]["mid"] == pytest.approx(saved / months / TB * 90, abs=0.005)
    inner, stored = 1.2816 / 1.96, then["stored_bytes"]
    for end, other, sign in (("low", "high", -1), ("high", "low", 1)):
        width_95 = sign * (found.after.first.times.mid - getattr(found.after.first.times, other))
        assert width_95 > 0
        assert saving["share"][end] == pytest.approx(saving["share"]["mid"] + sign * inner * width_95, abs=1e-4)
        near = stored["mid"] + inner * (stored[other] - stored["mid"])
        assert saving["freed_bytes"][end] == pytest.approx(now["stored_bytes"]["mid"] - near, abs=1)
    text = saving_text(found)
    assert text.startswith(f"Re-encoding to packed+none gains {saving['days']['mid']} days (")
    assert f" and saves {saving['price_per_month']['mid']:.2f} a month (" in text


def test_every_figure_of_advice_follows_from_the_json_of_its_report():
    """Days, bytes and money of each suggestion, and their order; an index by its files in the measurement."""
    clusters = [space("cluster-1", other_files={"index_1": 9 * MIB}), space("cluster-2", disk=5 * GIB, copies=3)]
    newest = measurement(days=120, clusters=clusters)
    newest = replace(newest, trials=replace(tried(), superseded={("BASE", 1): 0.6}, file_share={"BASE": within(0.2)}))
    found, advised = suggestions(Collected((newest,)), TAKEN_AT, Asked(planning=PLANNING), {"index_1": "a"}, {})
    data = report_json(found)
    scenarios = {each["name"]: each for each in data["scenarios"]}
    compared = {each["name"]: each for each in data["comparison"]}
    now = compared["now"]
    months = now["growth"]["days"] / (365 / 12)

    def days(scenario: str, end: str) -> int:
        return min(disk["days_until_full"][end] or math.inf for disk in scenarios[scenario]["disks"])

    names = {
        "re-encode to msgpack+zlib": "msgpack+zlib",
        "keep only the last version of BASE": "the last version of BASE",
        "rebuild": "rebuilt",
        "move to MyRocks": "MyRocks",
        "move documents to cold files after 90 days": "cold after 90 days",
    }
    order = []
    for each in advised:
        saving, name = saving_json(each.saving), names.get(each.name)
        if each.name == "drop index a":
            files = [(cluster["other_files"], cluster["copies"]) for cluster in data["measurement"]["clusters"]]
            freed = sum(other.get("index_1", 0) * copies for other, copies in files)
            assert saving["freed_bytes"]["mid"] == freed == 18 * MIB
        elif name is not None and name in scenarios:
            gained = days(name, "mid") - days("now", "mid")
            assert saving["days"]["mid"] == (None if math.isinf(gained) else gained)
        assert (each.cold and cold_json(each.cold)) == (compared[name]["cold"] if name in compared else None)
        if name in compared:
            then = compared[name]
            saved = now["growth"]["bytes"]["mid"] - then["growth"]["bytes"]["mid"]
            freed = now["stored_bytes"]["mid"] - then["stored_bytes"]["mid"]
            assert saving["freed_bytes"]["mid"] == pytest.approx(freed, abs=1)
            assert saving["bytes_per_month"]["mid"] == pytest.approx(saved / months, abs=1)
            assert saving["price_per_month"]["mid"] == pytest.approx(saved / months / TB * 90, abs=0.005)
        gained = saving["days"] and (each.saving.least_days if saving["days"]["mid"] is None else saving["days"]["mid"])
        order.append((gained or 0, (saving["bytes_per_month"] or {"mid": 0})["mid"]))
    assert {each.name for each in advised} >= {*list(names)[:3], *list(names)[4:], "drop index a"}
    assert order == sorted(order, reverse=True)


def test_what_retention_frees_and_saves_follows_from_the_days_of_the_json():
    """What is older than the limit is free at once; later, each day frees what was added as many days earlier."""
    keep, policy = 30, WhatIf(name="short", retention={"BASE": "30 days", "STATUS": "30 days"})
    found = report(
        measurement(days=120, bytes_a_day=4 * MIB, clusters=[space("cluster-1")]), planning=PLANNING, what_ifs=(policy,)
    )
    data = report_json(found)
    (disk,) = data["forecasts"]["disks"]
    scenarios = {each["name"]: each["file_bytes"]["mid"] for each in data["scenarios"] if each["file_bytes"]}
    (now, short) = (each for each in data["comparison"] if each["name"] in ("now", "short"))
    copies = data["measurement"]["clusters"][0]["copies"]

    length = short["growth"]["days"]
    added = [day[2] for day in disk["forecast"]["cumulative"]][: length - keep][-1]
    older, recent = (sum(size for _, size in days) for days in (disk["history"][:-keep], disk["history"][-keep:]))
    freed_now = scenarios["rebuilt"] - scenarios["short"]
    freed_later = (now["growth"]["bytes"]["mid"] - short["growth"]["bytes"]["mid"]) / copies
    # A tombstone of each erased cell remains.
    assert 0.9 < freed_now / older < 1
    assert freed_later / (recent + added) == pytest.approx(freed_now / older, rel=0.03)


def test_what_tiering_frees_and_costs_follows_from_the_days_of_the_json():
    """Old cells leave rows at once; later, each day what was added as many days earlier; files and rents by hand."""
    after, per_text, existing, price = 30, 0.2, 700 * MIB, 0.023
    one = space("cluster-1", cold_files=9, cold_file_bytes=existing)
    newest = measurement(days=120, bytes_a_day=4 * MIB, clusters=[one])
    newest = replace(newest, trials=replace(tried(), file_share=dict.fromkeys(("BASE", "STATUS"), within(per_text))))
    found = report(
        newest,
        planning=replace(PLANNING, cold_price_per_gb=price),
        what_ifs=(WhatIf(name="tiers", tier_after=after), WhatIf(name="free", tier_after=after, cold_price_per_gb=0)),
    )
    data = report_json(found)
    (disk,) = data["forecasts"]["disks"]
    now, tiers, free = data["comparison"]
    scenarios = {each["name"]: each["file_bytes"]["mid"] for each in data["scenarios"] if each["file_bytes"]}
    length, copies = tiers["growth"]["days"], data["measurement"]["clusters"][0]["copies"]
    today = datetime.date.fromisoformat(disk["forecast"]["first_day"])
    days = [(datetime.date.fromisoformat(each["day"]), each) for each in data["measurement"]["growth"]]
    old = [each for day, each in days if (today - day).days > after]
    recent = sum(each["body_bytes"][1] for day, each in days if 0 < (today - day).days <= after)
    bodies = sum(each["body_bytes"][1] for each in old)
    groups = data["measurement"]["groups"]
    cells = bodies * sum(each["cells"][1] for each in groups) / sum(each["body_bytes"][1] for each in groups)
    added = [day[2] for day in disk["forecast"]["cumulative"]][length - after - 1] / 1.3

    # A row with a reference takes 155 to 165 bytes of a large table in InnoDB.
    freed = scenarios["rebuilt"] - scenarios["tiers"]
    assert 1.3 * bodies - 170 * cells < freed < 1.3 * bodies - 150 * cells
    later = (now["growth"]["bytes"]["mid"] - tiers["growth"]["bytes"]["mid"]) / copies
    assert later / (recent + added) == pytest.approx(freed / bodies, rel=0.01)
    cold = tiers["cold"]
    assert cold["start_bytes"]["mid"] == pytest.approx(existing + per_text * bodies, rel=1e-3)
    assert cold["start_bytes"]["high"] == pytest.approx(existing + 1.03 * per_text * bodies, rel=1e-3)
    assert cold["growth_bytes"]["mid"] == pytest.approx(per_text * (recent + added), rel=1e-3)
    assert cold["bytes_per_month"] == pytest.approx(cold["growth_bytes"]["mid"] * 365 / 12 / length, abs=1)
    assert cold["price_of_month"] == pytest.approx(cold["bytes_per_month"] / 1e9 * price, abs=0.005)
    size, rents = cold["start_bytes"]["mid"], 0.0
    for month in cold["months"]:
        rent = (size + month["bytes"] / 2) / 1e9 * price * month["days"] * 12 / 365
        assert month["price"] == pytest.approx(rent, abs=1e-3)
        size, rents = size + month["bytes"], rents + rent
    assert size == pytest.approx(cold["start_bytes"]["mid"] + cold["growth_bytes"]["mid"], abs=len(cold["months"]))
    totals = [each["budget"]["total_price"] for each in (tiers, free)]
    assert totals[0] - totals[1] == pytest.approx(rents, abs=0.02)
    still = now["cold"]
    assert (still["start_bytes"]["mid"], still["growth_bytes"]["mid"]) == (existing, 0)
    text = tier_answers(found)["Scenario 'tiers'"].detail
    assert "grows by 49.2 MB a month, under 0.01 a month each" in text
    assert "the disks do not fill within 600 days (as now: " in text


def test_what_retention_erases_leaves_the_cold_files_or_never_becomes_cold():
    """Cold after 30 days and erased after 60, files hold what was written in the 30 days between; else, nothing."""
    newest = measurement(days=120, bytes_a_day=4 * MIB, clusters=[space("cluster-1")])
    superseded = {("BASE", 2): 0.6, ("STATUS", 2): 0.6}
    trials = replace(tried(), file_share=dict.fromkeys(("BASE", "STATUS"), within(0.2)), superseded=superseded)
    policies = {"early": "20 days", "late": "60 days", "versions": "2 versions"}
    found = report(
        replace(newest, trials=trials),
        what_ifs=(
            WhatIf(name="tiers", tier_after=30),
            WhatIf(name="erased", retention=dict.fromkeys(("BASE", "STATUS"), policies["early"])),
            *(
                WhatIf(name=name, tier_after=30, retention=dict.fromkeys(("BASE", "STATUS"), policy))
                for name, policy in policies.items()
            ),
        ),
    )
    _, tiers, erased, early, late, versions = found.comparisons

    def bodies(low: int, high: int) -> float:
        return sum(each.body_bytes.mid for each in newest.growth if low < (TODAY - each.day).days <= high)

    assert late.stored_bytes == tiers.stored_bytes
    assert late.cost == replace(tiers.cost, name="late")
    assert late.cold.start_bytes.mid == pytest.approx(0.2 * bodies(30, 60), rel=1e-3)
    then, days = [day.mid / 1.3 for day in found.disks[0].forecast.cumulative], late.cold.growth.days
    expected = 0.2 * (then[days - 31] - then[days - 61] - bodies(30, 60))
    assert late.cold.growth.size_bytes.mid == pytest.approx(expected, rel=0.01)
    assert f" and {'shrinks' if expected < 0 else 'grows'} by " in tier_answers(found)["Scenario 'late'"].detail
    assert early.stored_bytes == erased.stored_bytes
    assert early.cost == replace(erased.cost, name="early")
    assert early.cold.start_bytes.mid == early.cold.growth.size_bytes.mid == 0
    assert versions.cold.start_bytes.mid == pytest.approx(0.4 * tiers.cold.start_bytes.mid)


def test_references_have_the_rows_of_the_engine_that_cells_move_to():
    """In MyRocks, a row with a reference takes 90 to 110 bytes."""
    newest = measurement(days=120, bytes_a_day=4 * MIB, clusters=[space("cluster-1")])
    newest = replace(newest, trials=replace(tried(), file_share=dict.fromkeys(("BASE", "STATUS"), within(0.2))))
    moved = WhatIf(name="moved", engine="rocksdb")
    found = report(newest, what_ifs=(moved, replace(moved, name="both", tier_after=30)))
    files = {each.name: each.file_bytes.mid for each in found.scenarios if each.file_bytes is not None}
    bodies = sum(each.body_bytes.mid for each in newest.growth if (TODAY - each.day).days > 30)
    cells = bodies * sum(each.cells.mid for each in newest.groups) / sum(each.body_bytes.mid for each in newest.groups)

    freed = files["moved"] - files["both"]
    assert IN_MYROCKS * bodies - 110 * cells < freed < IN_MYROCKS * bodies - 90 * cells


def test_cold_cells_grow_as_they_did_before_they_were_cold():
    """Days whose cells are cold count with the bodies that these would have, and are not moved a second time."""
    hot = measurement(days=120, bytes_a_day=4 * MIB, clusters=[space("cluster-1")])
    hot = replace(hot, trials=replace(tried(), file_share=dict.fromkeys(("BASE", "STATUS"), within(0.2))))
    cut = hot.taken_at.date() - datetime.timedelta(60)

    def of_day(each: DayIntake) -> DayIntake:
        cells = round(each.cells.mid)
        return replace(
            each,
            body_bytes=Interval.of(30.0 * cells),
            cold_cells=cells,
            cold_text_bytes=round(each.body_bytes.mid),
        )

    cold = replace(hot, growth=tuple(of_day(each) if each.day < cut else each for each in hot.growth))
    cold = replace(cold, clusters=(replace(hot.clusters[0], cold_file_bytes=200, cold_text_bytes=1000),))
    found = {
        name: report(each, planning=PLANNING, what_ifs=(WhatIf(name="tiers", tier_after=60),))
        for name, each in (("hot", hot), ("cold", cold))
    }
    (before,), (after,) = (each.disks for each in found.values())
    assert [size for _, size in after.history] == pytest.approx([size for _, size in before.history], rel=1e-3)
    started = {name: each.comparisons[1].cold.start_bytes.mid for name, each in found.items()}
    assert started["hot"] > 20 * MIB
    assert started["cold"] == pytest.approx(200, abs=20_000)


@pytest.mark.long
def test_copies_that_differ_between_disks_are_counted_disk_by_disk():
    """One disk with one copy and one with three: the cost is in between, and follows an explicit number."""
    spaces = [space("cluster-1", copies=1), space("cluster-2", copies=3, disk=5 * GIB)]
    found = report(measurement(clusters=spaces), planning=PLANNING, what_ifs=(WhatIf(name="two copies", copies=2),))
    equal = report(
        measurement(clusters=[replace(each, copies=2) for each in spaces]), planning=PLANNING, what_ifs=WHAT_IFS[:1]
    )

    now, two = found.comparisons
    assert two.stored_bytes.mid == pytest.approx(equal.comparisons[0].stored_bytes.mid)
    assert two.cost.price.mid == pytest.approx(equal.comparisons[0].cost.price.mid, rel=0.02)
    assert now.cost.price.mid == pytest.approx(two.cost.price.mid, rel=0.1)


def test_another_engine_shrinks_files_and_slows_growth(both):
    """Both follow the trial's bytes per body byte, and a codec multiplies with it; the intervals include its error."""
    now, *_, moved, packed = both.comparisons
    bodies = sum(group.body_bytes.mid for group in both.measurement.groups)

    assert moved.stored_bytes.mid == pytest.approx(2 * IN_MYROCKS * bodies)
    assert packed.stored_bytes.mid == pytest.approx(0.7 * moved.stored_bytes.mid)
    assert moved.stored_bytes.high / moved.stored_bytes.mid > 1 + 1.96 * MODEL_ERROR
    for disk, outlook in enumerate(moved.disks):
        assert outlook.times.mid == pytest.approx(IN_MYROCKS / 1.3)
        assert outlook.times.low < (1 - 1.96 * MODEL_ERROR) * outlook.times.mid
        assert packed.disks[disk].times.mid == pytest.approx(0.7 * outlook.times.mid)
    assert now.first.at_rate.mid < moved.first.at_rate.mid < packed.first.at_rate.mid
    assert moved.cost.price.mid == pytest.approx(IN_MYROCKS / 1.3 * now.cost.price.mid)


def test_a_cluster_that_has_the_engine_stays_as_it_is():
    """Of a datastore in the middle of its moves, only the clusters in the other engine change."""
    change = WhatIf(name="on MyRocks", engine="rocksdb")
    found = assemble_report(
        Collected((measurement(),), engines={"cluster-2": "rocksdb"}), TAKEN_AT, Asked(what_ifs=(change,))
    )
    moved, stayed = found.comparisons[1].disks

    assert moved.times.mid == pytest.approx(IN_MYROCKS / 1.3)
    assert stayed.times.mid == 1
    rebuilt = next(each for each in found.scenarios if each.name == "rebuilt")
    assert found.comparisons[1].disk_file_bytes["cluster-2"] == rebuilt.disk_file_bytes["cluster-2"]


def test_an_engine_that_could_not_be_tried_has_no_figures():
    """Without a sampled cell the days, sizes and costs are unknown, and the outlook says why."""
    found = report(
        trials=replace(tried(), engines={}), planning=PLANNING, what_ifs=(WhatIf(name="x", engine="rocksdb"),)
    )
    now, moved = found.comparisons

    assert now.cost is not None
    assert (moved.first, moved.stored_bytes, moved.cost) == (None, None, None)
    assert {outlook.why for outlook in moved.disks} == {"none of its cells could be tried in MyRocks"}
    assert found.engines == ()
    (side,) = (table for table in tables(found) if table.title == "Scenarios side by side")
    assert column([side.columns, *side.rows], "x")["first disk full in"] == "unknown"


def test_the_engine_option_adds_the_cells_as_stored_and_in_its_own_codec():
    """The codec is chosen among those tried in that engine, unless one is given, and present re-encoding remains."""
    of_engine = {asked: report(engine="rocksdb", codec=asked) for asked in (None, "msgpack+zlib")}
    names = {asked: [each.change.name for each in found.comparisons] for asked, found in of_engine.items()}

    assert names[None] == ["now", "msgpack+zlib", "MyRocks", "MyRocks, packed+none"]
    assert names["msgpack+zlib"] == ["now", "msgpack+zlib", "MyRocks", "MyRocks, msgpack+zlib"]
    assert {(effect.codec, effect.column_name) for effect in of_engine[None].engines} == {
        (codec, name) for codec in (None, "packed+none") for name in ("BASE", "STATUS")
    }


def test_a_shared_disk_fills_up_by_all_its_datastores(both):
    """A day's growth of the disk is that of both, and it is full earlier than with one of them."""
    rack = next(each for each in both.disks if each.disk.name == "rack-a")
    alone = next(each for each in of_two(shared=False).disks if each.disk.name == "users/cluster-1")

    assert rack.disk.clusters == ("trips/cluster-1", "users/cluster-1")
    assert rack.disk.file_bytes == round(1.1 * GIB) + round(1.1 * GIB / 2)
    assert rack.history[-1][1] > alone.history[-1][1]
    first = next(each for each in both.now.disks if each.disk == "rack-a")
    assert first.bytes_per_day == pytest.approx(
        sum(
            each.bytes_per_day * both.weights[each.cluster, each.column_name]
            for each in both.series
            if each.cluster in RACK
        )
    )


def test_a_younger_datastore_is_not_a_step(both):
    """A datastore whose history begins later neither warns nor makes the forecast explode."""
    rack = next(each for each in both.disks if each.disk.name == "rack-a")

    assert isinstance(rack.forecast, Forecast)
    assert len(rack.history) > rack.forecast.history_days == 40
    assert rack.steps == ()
    assert rack.forecast.daily[99].mid < 3 * rack.history[-1][1]
    new = Collected((users(growth=users().growth[-25:]),))
    shared = Asked(disks=dict.fromkeys(RACK, GivenDisk(10 * GIB, 5 * GIB)), disk_names=RACK)
    last = assemble_report(combine({"trips": Collected((measurement(),)), "users": new}), TAKEN_AT, shared)
    rate = next(each for each in last.disks if each.disk.name == "rack-a").rate
    assert rate is not None
    assert rate.days < 28 == rack.rate.days, "not diluted by days before the first of the younger datastore"
    together = forecast(rack.history, horizon_days=100)
    assert isinstance(together, Forecast)
    assert together.daily[99].mid > 3 * rack.history[-1][1], "the control: the sum looks like a step"


def test_futures_of_parts_add_up():
    """The median of the sum is near the sum of the medians, and its band is narrower than the sum of the bands."""
    last = measurement().taken_at.date()
    one, other = (
        [(day.day, day.body_bytes.mid) for day in growth("cluster-1", name, 60, 8 * MIB, last)] for name in ("a", "b")
    )
    history = [(day, value + more) for (day, value), (_, more) in zip(one, other, strict=True)]
    parts = [forecast(one), forecast(other)]
    both = forecast(history, parts=[one, other])
    assert isinstance(both, Forecast)
    assert all(isinstance(part, Forecast) for part in parts)

    sums = [part.cumulative[99] for part in parts if isinstance(part, Forecast)]
    assert both.cumulative[99].mid == pytest.approx(sum(band.mid for band in sums), rel=0.02)
    width = sum(band.high_80 - band.low_80 for band in sums)
    assert 0.5 * width < both.cumulative[99].high_80 - both.cumulative[99].low_80 < 0.95 * width
    assert both.back_test is not None
    assert both.back_test.failure is None
    short = forecast(history, parts=[one, other[-10:]])
    assert isinstance(short, NoForecast)
    assert short.reason.startswith("10 days were measured")


def test_skew_stays_within_a_datastore(both):
    """No move goes from one datastore to another, and fair shares are those within a datastore."""
    for move in both.skew.moves:
        assert move.from_cluster.split("/")[0] == move.to_cluster.split("/")[0]
    fills = {fill.cluster: fill for fill in both.skew.clusters}
    assert fills["users/cluster-1"].now_bytes == pytest.approx(fills["users/cluster-1"].even_bytes)


def test_sizes_of_datastores_add_up(both):
    """Every column of the table, exactly."""
    *parts, total = datastore_totals(both)

    assert [part.name for part in parts] == ["trips", "users"]
    for name in ("file_bytes", "copies_bytes", "bytes_per_day"):
        assert getattr(total, name) == pytest.approx(sum(getattr(part, name) for part in parts))
    for name in ("cells", "body_bytes"):
        assert getattr(total, name).mid == pytest.approx(sum(getattr(part, name).mid for part in parts))
    assert total.first == both.now.first
    assert len(datastore_totals(common())) == 1


def test_measurements_of_different_days_lose_no_datastore():
    """If one datastore was measured two days later, its last days are left out of all figures, not counted as zero."""
    later = replace(
        users(), taken_at=TAKEN_AT + datetime.timedelta(2), growth=measurement_growth(TAKEN_AT + datetime.timedelta(2))
    )
    collected = combine({"trips": Collected((measurement(),)), "users": Collected((later,))})
    found = assemble_report(collected, TAKEN_AT)

    assert {each.days[-1].day for each in found.series} == {TAKEN_AT.date() - datetime.timedelta(1)}
    assert all(each.days[-1].body_bytes > 0 for each in found.series)
    assert not any("after" in note for note in found.notes if "cells have dates" in note)


def measurement_growth(taken_at: datetime.datetime) -> tuple[object, ...]:
    return tuple(growth("cluster-1", "BASE", 60, 5 * MIB, taken_at.date()))


def test_a_datastore_given_twice_is_refused():
    """Its bytes would be counted twice."""
    with pytest.raises(InvalidInput, match=r"trips and again are the same datastore, trips on cluster-1.example:3306"):
        combine({"trips": Collected((measurement(),)), "again": Collected((measurement(),))})


@pytest.mark.parametrize(
    ("what_if", "error"),
    [
        (WhatIf(name="now"), "scenario 'now': two scenarios have this name"),
        (WhatIf(name="a lost host"), "scenario 'a lost host': two scenarios have this name"),
        (WhatIf(name="x", growth={"cars": 2}), "growth names 'cars', but the report is about trips"),
        (WhatIf(name="x", tier_after={"LOG": 2}), "tier_after names the column 'LOG', which has no cells"),
        (WhatIf(name="x", tier_after=2), r"no sizes of cold files; .*\[cold\]"),
    ],
)
def test_scenarios_that_do_not_fit_the_report_are_refused(what_if, error):
    """A name that is taken, or a datastore that is not in the report."""
    with pytest.raises(InvalidInput, match=error):
        report(what_ifs=(what_if,))


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"growth": 0}, "growth must be above 0, got 0"),
        ({"growth": {"trips": -1}}, "growth must be above 0, got -1"),
        ({"growth": math.nan}, "growth must be finite"),
        ({"copies": 0}, "copies must be a whole number of 1 or more"),
        ({"price_per_tb": -1}, "price_per_tb must be 0 or more"),
        ({"codec": "gzip"}, "gzip"),
        ({"engine": "myisam"}, "scenario 'x': engine must be one of innodb, rocksdb, got 'myisam'"),
        ({"tier_after": -1}, "scenario 'x': tier_after must be a whole number of days from 0"),
        ({"tier_after": {"LOG": "30 days"}}, "tier_after of LOG must be a whole number"),
        ({"cold_price_per_gb": -1}, "cold_price_per_gb must be 0 or more"),
        ({"engine": "rocksdb", "rebuilt": False}, "scenario 'x': a move to another engine writes new tables"),
    ],
)
def test_impossible_changes_are_refused(changes, error):
    """The error names the scenario."""
    with pytest.raises(InvalidInput, match=error):
        WhatIf(name="x", **changes)


@pytest.mark.long
def test_every_number_of_the_page_agrees_with_the_others(both, page):
    """Days, dates, sizes and prices: each is calculated once, and shown wherever it belongs."""
    data = report_json(both)
    html = capacity_html(both)
    text = "".join(_Tables(html).text)
    first = data["answer"]["now"]
    days = math.floor(first["days_until_full"]["mid"])
    side, what_if = page["Scenarios side by side"], page["What-if scenarios"]
    levels = [row for row in page["When disks fill up"][1:] if row[0] == first["disk"] and row[2] == "full"]

    # The answer, in the box, the tables and the descriptions of charts.
    assert f"First disk full in{days} days" in text
    assert number(column(side, "now")["first disk full in"]) == days
    assert number(column(what_if, "days until full")["now"]) == days
    assert number(levels[0][5]) == days
    assert number(column(page["Datastores"], "first disk full in")["all"]) == days
    assert min(number(cell) for cell in column(page["Days until full, by disk"], "now").values()) == days
    assert f"stored as now: {days} days" in html
    assert f"now {days} days" in html

    # Dates are the first day plus the days, also for orders.
    start = both.now.first.first_day
    on = start + datetime.timedelta(days)
    shown = (column(side, "now")["full on"], levels[0][3], column(what_if, "full on")["now"], first["full_on"]["mid"])
    assert set(shown) == {on.isoformat()}
    early = start + datetime.timedelta(math.floor(first["days_until_full"]["low_80"]))
    assert {column(side, "now")["order by"], levels[0][7]} == {(early - datetime.timedelta(45)).isoformat()}
    assert levels[0][4].startswith(early.isoformat())

    # Each scenario has the same figures in both tables, in the table by disk, in JSON and in CSV.
    lines = list(csv.DictReader(io.StringIO(csv_text(both))))
    for compared in data["comparison"]:
        name, full = compared["name"], compared["first_full"]
        beside = column(side, name)
        row = next(cells for cells in what_if if cells[0] == name)
        assert row[1:7] == [
            beside[key]
            for key in ("first disk full in", "80 %", "95 %", "at the constant rate", "full on", "full first")
        ]
        by_disk = column(page["Days until full, by disk"], name)[full["disk"]]
        assert by_disk.startswith(beside["first disk full in"])
        exact = [line for line in lines if (line["section"], line["item"]) == ("comparison.first_full", name)]
        (days_line,) = (
            line
            for line in lines
            if [line["section"], line["item"], line["figure"]]
            == ["scenarios.disks", f"{name} {full['disk']}", "days_until_full"]
        )
        early_days = days_line["low_80"] and round(float(days_line["low_80"]), 4)
        assert (early_days or None) == full["days"]["low_80"]
        assert f"order_by{full['order_by']['low_80'] or ''}" in [
            each["figure"] + each["low_80"] for each in exact if each["figure"] == "order_by"
        ]

    # Of each column in another engine: the table, JSON and CSV; together they are the size at the start.
    tried_in = page["Storage engines tried on sampled cells"]
    assert len(tried_in) - 1 == len(data["engines"]) == 2 * len(both.measurement.column_names)
    for row, effect in zip(tried_in[1:], data["engines"], strict=True):
        assert [row[0], row[2]] == [effect["column_name"], effect["codec"] or "as stored"]
        per_body, share = effect["bytes_per_body_byte"], effect["share"]
        assert row[5] == f"{per_body['mid']:.2f} ({per_body['low']:.2f} to {per_body['high']:.2f})"
        assert row[6] == f"{share['mid']:.1%} ({share['low']:.1%} to {share['high']:.1%})"
        assert share["mid"] == pytest.approx(per_body["mid"] / effect["now_bytes_per_body_byte"], abs=1e-4)
        of_effect = [
            line
            for line in lines
            if line["section"] == "engines"
            and line["item"] == f"{row[0]} {effect['engine']} {effect['codec'] or ''}".strip()
            and line["figure"] != "sampled_cells"
        ]
        assert {line["figure"]: float(line["value"]) for line in of_effect} == {
            "now_bytes_per_body_byte": effect["now_bytes_per_body_byte"],
            "bytes_per_body_byte": per_body["mid"],
            "share": share["mid"],
        }
        assert [float(of_effect[1][end]) for end in ("low_95", "high_95")] == [per_body["low"], per_body["high"]]
    for compared in (each for each in data["comparison"] if each["changes"]["engine"]):
        beside = column(side, compared["name"])
        assert (beside["storage engine"], beside["codec"]) == ("MyRocks", compared["changes"]["codec"] or "as now")
        per_column = {
            effect["column_name"]: effect["bytes_per_body_byte"]["mid"]
            for effect in data["engines"]
            if effect["codec"] == compared["changes"]["codec"]
        }
        bodies = [(group.column_name, group.body_bytes.mid) for group in both.measurement.groups]
        size = 2 * sum(per_column[name] * length for name, length in bodies)
        assert compared["stored_bytes"]["mid"] == pytest.approx(size, rel=1e-4)
        assert beside["stored at the start"] == estimate_text(Interval(**compared["stored_bytes"]), bytes_text)
        (stored_line,) = (
            line for line in lines if line["figure"] == "stored_bytes" and line["item"] == compared["name"]
        )
        assert [float(stored_line[end]) for end in ("low_95", "value", "high_95")] == list(
            compared["stored_bytes"].values()
        )

    # Months and the start add up to the total; the growth is that of the cost table and of the sentence.
    budget = page["Monthly budget"]
    for place, compared in enumerate(data["comparison"], 1):
        cells = [number(row[place]) for row in budget[1:]]
        assert sum(cells[:-1]) == pytest.approx(cells[-1], abs=1e-6)
        beside = column(side, compared["name"])
        assert number(beside["cost in total"]) == cells[-1]
        assert number(beside["cost at the start"]) == cells[0]
        budgets = [line for line in lines if line["section"].startswith("comparison.budget")]
        spent = [line for line in budgets if f"{line['item']} ".startswith(f"{compared['name']} ")]
        assert [round(float(line["value"]), 2) for line in spent if line["figure"].endswith("price")] == cells
        assert compared["budget"]["total_price"] == cells[-1]
    period = data["comparison"][0]["growth"]["days"]
    cost = next(row for row in page["Cost of growth"] if row[0] == "as now")
    assert cost[2:] == [
        column(side, "now")[f"growth of {period} days"],
        column(side, "now")[f"cost of {period} days' growth"],
    ]
    assert f"Growth of {period} days costs {cost[3].split()[0]}" in text

    # Sizes: datastores add up to the box, clusters and stored cells to the datastores.
    sizes = {row["name"]: row for row in data["datastores"]}
    assert sum(sizes[name]["file_bytes"] for name in ("trips", "users")) == sizes[None]["file_bytes"]
    assert column(page["Datastores"], "files")["all"] in text.split("Stored now")[1][:12]
    stored = {line["item"]: float(line["value"]) for line in lines if line["figure"] == "stored_bytes"}
    assert stored["now"] == sizes[None]["copies_bytes"] == data["comparison"][0]["stored_bytes"]["mid"]
    cells_of = {name: number(cell) for name, cell in column(page["Datastores"], "cells").items()}
    assert cells_of["all"] == pytest.approx(cells_of["trips"] + cells_of["users"], abs=2)
    assert cells_of["all"] == pytest.approx(sum(number(row[2]) for row in page["Stored now"][1:]), abs=4)


def test_days_are_rounded_down_everywhere(both, page):
    """No cell or sentence shows a fraction of a day, and none rounds up."""
    exact = {math.floor(value) for outlook in outlooks(both) for value in outlook if math.isfinite(value)}

    for name in ("What-if scenarios", "Scenarios side by side", "Days until full, by disk"):
        for row in page[name][1:]:
            for cell in row[1:]:
                for found in re.findall(r"(?<![-.0-9])([0-9,]+) days", cell):
                    assert int(found.replace(",", "")) in exact | {both.now.first.horizon_days, 45, 10}, (name, cell)


def outlooks(found: CapacityReport) -> Iterator[tuple[float, ...]]:
    for scenario in found.scenarios:
        for outlook in scenario.disks:
            yield from (tuple(each) for each in (outlook.days, outlook.at_rate) if each is not None)


def test_tables_hold_as_many_cells_as_columns(both):
    """With and without prices, lead times and disks."""
    reports = [both, of_two(what_ifs=WHAT_IFS[:1]), report(what_ifs=WHAT_IFS[:1]), of_two(shared=False)]
    for found in reports:
        for table in tables(found):
            assert {len(row) for row in table.rows} == {len(table.columns)}, table.title


@pytest.mark.long
def test_a_figure_beyond_the_horizon_is_explained():
    """The length of the forecast, and why it is not longer."""
    large = [space("cluster-1", disk=4096 * GIB)]

    texts = "".join(_Tables(capacity_html(report(measurement(days=30, clusters=large)))).text)

    assert "over 150 days" in texts
    assert "The forecast covers only 150 days: 5 times the 30 days measured." in texts
