"""``schemaless capacity report``: terminal, JSON, CSV and a picture, of real servers."""

from __future__ import annotations

import csv
import json
import struct
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import make_url

import schemaless
from schemaless import NewStoredCell
from schemaless.capacity import reporting
from schemaless.capacity.disks import GivenDisk
from schemaless.capacity.report import CapacityReport
from schemaless.capacity.reporting import Asked, make
from schemaless.events import Listener
from schemaless.internals import internals_of
from schemaless.pages.capacity_json import report_json
from schemaless.pages.capacity_words import answer
from schemaless.testing.datastores import Datastores
from schemaless.wire.node import Node
from tests.topologies import opened_as

DAYS = 40
DISKS = ["--disk", "cluster-1=40GiB:256KiB", "--disk", "cluster-2=40GiB:768KiB"]


def grow(url: str, new_row: Callable[[], uuid.UUID]) -> None:
    """Put about 20 legacy cells a day for 40 days."""
    today = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    cells = []
    for ago in range(DAYS, -1, -1):
        for number in range(22 if (today - timedelta(ago)).weekday() < 5 else 14):
            at = today - timedelta(ago) + timedelta(seconds=number)
            text = json.dumps({"day": ago, "words": [f"word {number * word}" for word in range(50 + 2 * number)]})
            cells.append(NewStoredCell(new_row(), "BASE" if number % 3 else "STATUS", 1, text.encode(), created_at=at))
    with schemaless.connect(url) as store:
        store.put_stored_cells(cells)


@pytest.fixture(scope="module")
def _shared(_datastores: Datastores) -> Iterator[tuple[str, dict[str, CapacityReport]]]:
    with _datastores.fresh() as url:
        grow(url, uuid.uuid4)
        yield url, {}


@pytest.fixture
def grown(_shared, monkeypatch):
    """A datastore that nobody changes. A report of it is made once, and shown as often as tests ask for it."""
    url, reports = _shared

    def make_once(store: schemaless.Datastore, asked: Asked, *, fresh: bool, listener: Listener) -> CapacityReport:
        key = repr((asked, fresh))
        if key not in reports:
            reports[key] = make(store, asked, fresh=fresh, listener=listener)
        return reports[key]

    monkeypatch.setattr(reporting, "make", make_once)
    return url


@pytest.fixture
def grown_anew(fresh_url, new_row):
    """The same for one test alone."""
    grow(fresh_url, new_row)
    return fresh_url


@pytest.fixture
def measure_url(accounts, grown_anew):
    """The same for ``measure``."""
    name = str(make_url(grown_anew).database)
    accounts.allow("measure", name, 4)
    return accounts.url("measure", grown_anew)


@pytest.mark.mysql
def test_report_says_the_same_everywhere(invoke, grown, tmp_path):
    """The answer of the terminal is that of the JSON, the CSV and the page, and the picture is a PNG file."""
    files = {name: tmp_path / f"report.{name}" for name in ("html", "png", "csv")}
    options = [part for name, file in files.items() for part in (f"--{name}", file)]
    done = invoke("capacity", "report", *DISKS, "--to", "msgpack+zlib", *options, url=grown)
    assert done.code == 0, done.err
    data = invoke("capacity", "report", *DISKS, "--to", "msgpack+zlib", "--json", url=grown).json

    days = data["answer"]["now"]["days_until_full"]["mid"]
    assert f"Until a disk is full as it is: {int(days)} days." in done.out
    assert data["answer"]["now"]["disk"] == "cluster-1"
    rows = list(csv.DictReader(files["csv"].read_text().splitlines()))
    (row,) = (
        each for each in rows if (each["name"], each["item"], each["figure"]) == ("now", "cluster-1", "days_until_full")
    )
    assert float(row["value"]) == pytest.approx(days, abs=0.001)
    page = files["html"].read_text()
    assert f"<b>{int(days)} days</b>" in page
    assert page.count("<figure") == 5
    width, height = struct.unpack(">II", files["png"].read_bytes()[16:24])
    assert (width, height) == (2320, 1920)


@pytest.mark.once
@pytest.mark.mysql
def test_report_leads_with_the_answer_and_keeps_the_rest_for_all(invoke, monkeypatch, grown):
    """Answer, notes, what if; the other tables come with --all. In 80 columns no word is broken."""
    short = invoke("capacity", "report", *DISKS, url=grown)
    wide = invoke("capacity", "report", *DISKS, "--all", url=grown)
    monkeypatch.setenv("COLUMNS", "80")
    narrow = invoke("capacity", "report", *DISKS, "--all", url=grown)

    others = ("Forecasts and their back-tests", "Stored now", "Codecs, tried on sampled cells", "Clusters", "Skew")
    assert short.code == wide.code == narrow.code == 0
    assert short.out.index("Until a disk is full as it is") < short.out.index("note: ") < short.out.index("\nWhat if\n")
    assert [title for title in others if f"\n{title}\n" in short.out] == []
    assert [title for title in others if f"\n{title}\n" in wide.out] == list(others)
    assert "\n--all adds: Forecasts and their back-tests, " in short.out
    words = set(filter(str.isalpha, wide.out.split()))
    assert words - set(narrow.out.split()) == set()
    assert len(words) > 100


@pytest.mark.mysql
def test_report_finds_what_was_put_there(invoke, grown):
    """Growth, weekly shape, and what a codec saves, of cells whose days and bodies are known."""
    data = invoke("capacity", "report", *DISKS, "--json", url=grown).json

    (first, second) = data["forecasts"]["disks"]
    assert len(first["history"]) == len(second["history"]) == DAYS - 1  # neither the first day nor today is whole
    cells = {(each["column_name"], each["codec"]): each for each in data["codecs"]}
    assert cells["BASE", "msgpack+zlib"]["cells_per_day"] == pytest.approx(22 * 2 / 3 * 5 / 7 + 9 * 2 / 7, rel=0.1)
    assert 0.05 < cells["BASE", "msgpack+zlib"]["body_share"]["mid"] < 0.35
    assert cells["BASE", "legacy"]["body_share"]["mid"] == 1.0
    by_name = {each["name"]: each["disks"][0]["days_until_full"] for each in data["scenarios"]}
    assert by_name["growth x10"]["mid"] < by_name["growth x2"]["mid"] < by_name["now"]["mid"]
    assert by_name["now"]["low_95"] < by_name["now"]["low_80"] < by_name["now"]["mid"]


@pytest.mark.mysql
def test_report_uses_what_is_kept_and_measures_where_nothing_is(invoke, grown_anew, measure_url):
    """Without a measurement one is taken and said to be; the next report is of the kept one."""
    before = invoke("capacity", "report", "--json", url=grown_anew).json
    assert any("no measurement is kept" in note for note in before["notes"])

    kept = invoke("capacity", "measure", "--json", url=measure_url)
    after = invoke("capacity", "report", "--json", url=grown_anew).json
    assert kept.code == 0, kept.err
    assert after["measured_at"] == [kept.json["taken_at"].split(".")[0] + "+00:00"]
    assert not any("no measurement is kept" in note for note in after["notes"])


@pytest.mark.once
@pytest.mark.mysql
def test_report_wakes_somebody_by_its_exit_status(invoke, grown):
    """0 where all disks last so long, 1 where one does not or cannot be said to, 2 for what means nothing."""
    long = invoke(
        "capacity", "report", *DISKS, "--fail-below", "1", "--lead-time", "5", "--price-per-tb", "90", url=grown
    )
    short = invoke("capacity", "report", *DISKS, "--fail-below", "2000", "--json", url=grown)
    unknown = invoke("capacity", "report", "--disk", "cluster-1=40GiB:256KiB", "--fail-below", "2000", url=grown)
    wrong = invoke("capacity", "report", "--thresholds", "90%,80%", url=grown)

    assert (long.code, short.code, unknown.code, wrong.code) == (0, 1, 1, 2)
    assert "\nHow full, and when\n" in long.out
    assert "order by" in long.out.lower()
    assert "at 90 a TB" in long.out
    assert short.err.splitlines()[-1].startswith("schemaless: not all disks last 2,000 days: cluster-1 may be full in ")
    assert short.json["planning"]["verdict"]["failed"] is True
    assert short.json["answer"]["now"]["disk"] == "cluster-1"
    assert "thresholds must be given in their order" in wrong.err


@pytest.mark.mysql
def test_report_of_an_empty_datastore_says_so(invoke, fresh_url, tmp_path):
    """Nothing is known of how long it lasts, in any form, and there is no chart of nothing."""
    done = invoke("capacity", "report", "--html", tmp_path / "r.html", "--png", tmp_path / "r.png", url=fresh_url)

    assert done.code == 0, done.err
    assert "Until a disk is full as it is: not known." in done.out
    assert "note: there are no cells" in done.out
    assert not (tmp_path / "r.png").exists()
    assert "<figure" not in (tmp_path / "r.html").read_text()


@pytest.mark.mysql
def test_report_of_one_cell_says_so(invoke, fresh_store, fresh_url, new_row):
    """One cell is measured, and no forecast is made of it."""
    fresh_store.put_cell(new_row(), "BASE", 1, {"fare": 12.5})

    done = invoke("capacity", "report", *DISKS, url=fresh_url)

    assert done.code == 0, done.err
    assert "Until a disk is full as it is: not known." in done.out
    assert "needs 14 at least" in done.out


@pytest.mark.mysql
def test_report_with_a_cluster_that_is_down_answers_for_the_other(grown, tmp_path):
    """It is named with its reason, nothing is said about its disk, and codecs are tried on the other's cells."""
    disks = {name: GivenDisk(40 << 30, 1 << 18) for name in ("cluster-1", "cluster-2")}
    with schemaless.connect(grown) as store:
        nobody = Node("primary", socket=str(tmp_path / "nobody.sock"))
        up, down = internals_of(store).topology.clusters
        topology = replace(internals_of(store).topology, clusters=(up, replace(down, nodes=(nobody,))))
        with opened_as(store, topology) as half:
            found = make(half, Asked(disks=disks), fresh=True)

    data = report_json(found)
    assert data["answer"]["now"]["disk"] == up.name
    assert data["answer"]["now"]["days_until_full"]["mid"] > 0
    assert "nobody.sock" in data["answer"]["now"]["unknown"][down.name]
    assert any(note.startswith(f"{down.name} is in no figure") for note in data["notes"])
    assert {each.codec for each in found.trials} >= {"msgpack+zlib", "legacy"}
    assert f"Nothing is known of {down.name}." in answer(found.now).detail


@pytest.mark.mysql
def test_report_refuses_what_is_not_there(invoke, fresh_url):
    """A codec and a cluster that do not exist are errors of one line."""
    codec = invoke("capacity", "report", "--to", "gzip", url=fresh_url)
    cluster = invoke("capacity", "report", "--disk", "cluster-9=1TB", url=fresh_url)

    assert (codec.code, cluster.code) == (2, 2) or (codec.code, cluster.code) == (1, 1)
    assert "no codec is called 'gzip'" in codec.err
    assert "there is no cluster 'cluster-9'" in cluster.err
