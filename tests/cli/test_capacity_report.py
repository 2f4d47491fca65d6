"""The command ``schemaless capacity report`` on real servers: terminal, JSON, CSV, page and picture."""

from __future__ import annotations

import csv
import itertools
import json
import struct
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import make_url

import schemaless
from schemaless import NewStoredCell
from schemaless.base.events import Listener
from schemaless.planning.capacity.disks import GivenDisk
from schemaless.planning.capacity.options import Asked
from schemaless.planning.capacity.report import CapacityReport
from schemaless.planning.capacity.reporting import make
from schemaless.store.internals import internals_of
from schemaless.testing.datastores import Datastores
from schemaless.ui.pages.capacity_json import report_json
from schemaless.ui.pages.capacity_words import answer
from schemaless.wire.node import Node
from tests.topologies import opened_as

DAYS = 40
DISKS = ["--disk", "cluster-1=40GiB:256KiB", "--disk", "cluster-2=40GiB:768KiB"]


def grow(url: str, new_row: Callable[[], uuid.UUID]) -> None:
    """Write about 20 legacy cells a day for 40 days."""
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
        numbers = itertools.count()
        # The same rows in each run: the forecasts depend on which disk each cell is on.
        grow(url, lambda: uuid.uuid5(uuid.NAMESPACE_OID, f"grown {next(numbers)}"))
        yield url, {}


@pytest.fixture
def grown(_shared, monkeypatch):
    """A shared read-only datastore, whose reports are built once and cached for all tests."""
    url, reports = _shared

    def make_once(
        stores: Mapping[str, schemaless.Datastore], options: Asked, *, fresh: bool, listener: Listener
    ) -> CapacityReport:
        key = repr((options, fresh))
        if key not in reports:
            reports[key] = make(stores, options, fresh=fresh, listener=listener)
        return reports[key]

    monkeypatch.setattr("schemaless.cli.capacity.make", make_once)
    return url


@pytest.fixture
def grown_anew(fresh_url, new_row):
    """The same datastore for a single test."""
    grow(fresh_url, new_row)
    return fresh_url


@pytest.fixture
def measure_url(accounts, grown_anew):
    """Its URL under the role ``measure``."""
    name = str(make_url(grown_anew).database)
    accounts.allow("measure", name, 4)
    return accounts.url("measure", grown_anew)


@pytest.mark.mysql
@pytest.mark.long
def test_report_says_the_same_everywhere(invoke, grown, tmp_path):
    """Terminal, JSON, CSV and page have the same answer, and the picture is a PNG file."""
    files = {name: tmp_path / f"report.{name}" for name in ("html", "png", "csv")}
    options = [part for name, file in files.items() for part in (f"--{name}", file)]
    done = invoke("capacity", "report", *DISKS, "--to", "msgpack+zlib", *options, url=grown)
    assert done.code == 0, done.err
    data = invoke("capacity", "report", *DISKS, "--to", "msgpack+zlib", "--json", url=grown).json

    days = data["answer"]["now"]["days_until_full"]["mid"]
    assert f"First disk full in: {days} days." in done.out
    assert data["answer"]["now"]["disk"] == "cluster-1"
    rows = list(csv.DictReader(files["csv"].read_text().splitlines()))
    (row,) = (
        each
        for each in rows
        if [each[key] for key in ("section", "item", "figure")]
        == ["scenarios.disks", "now cluster-1", "days_until_full"]
    )
    assert row["value"] == str(days)
    page = files["html"].read_text()
    assert f"<b>{days} days</b>" in page
    assert page.count("<figure") == 5
    width, height = struct.unpack(">II", files["png"].read_bytes()[16:24])
    assert (width, height) == (2320, 1920)


@pytest.mark.once
@pytest.mark.mysql
def test_report_starts_with_the_answer_and_adds_tables_with_all(invoke, monkeypatch, grown):
    """What is saved, answer, scenarios, notes; --all adds the other tables. In 80 columns no word is broken."""
    short = invoke("capacity", "report", *DISKS, url=grown)
    wide = invoke("capacity", "report", *DISKS, "--all", url=grown)
    monkeypatch.setenv("COLUMNS", "80")
    narrow = invoke("capacity", "report", *DISKS, "--all", url=grown)

    others = (
        "Forecasts and their back-tests",
        "Stored now",
        "Codecs tried on sampled cells",
        "Clusters",
        "Skew between clusters",
    )
    assert short.code == wide.code == narrow.code == 0
    order = ["Re-encoding ", "First disk full in", "\nWhat-if scenarios\n", "note: "]
    assert [short.out.index(part) for part in order] == sorted(short.out.index(part) for part in order)
    assert [title for title in others if f"\n{title}\n" in short.out] == []
    assert [title for title in others if f"\n{title}\n" in wide.out] == list(others)
    assert "\n--all adds: Forecasts and their back-tests, " in short.out
    words = set(filter(str.isalpha, wide.out.split()))
    assert words - set(narrow.out.split()) == set()
    assert len(words) > 100


@pytest.mark.mysql
def test_report_recovers_the_written_history(invoke, grown):
    """Growth and the saving of a codec, for cells whose days and bodies are known."""
    data = invoke("capacity", "report", *DISKS, "--json", url=grown).json

    (first, second) = data["forecasts"]["disks"]
    # The first day and today are incomplete; after midnight, the day of the last cells is complete.
    assert len(first["history"]) == len(second["history"])
    assert len(first["history"]) in (DAYS - 1, DAYS)
    cells = {(each["column_name"], each["codec"]): each for each in data["codecs"]}
    assert cells["BASE", "msgpack+zlib"]["cells_per_day"] == pytest.approx(22 * 2 / 3 * 5 / 7 + 9 * 2 / 7, rel=0.1)
    assert 0.05 < cells["BASE", "msgpack+zlib"]["body_share"]["mid"] < 0.35
    assert cells["BASE", "legacy"]["body_share"]["mid"] == 1.0
    by_name = {each["name"]: each["disks"][0]["days_until_full"] for each in data["scenarios"]}
    assert by_name["growth x10"]["mid"] < by_name["growth x2"]["mid"] < by_name["now"]["mid"]
    # Whole days, which depend on the day of the week.
    assert by_name["now"]["low_95"] <= by_name["now"]["low_80"] < by_name["now"]["mid"]


@pytest.mark.long
@pytest.mark.mysql
def test_report_uses_saved_measurements_or_takes_one(invoke, grown_anew, measure_url):
    """Without a saved measurement it takes one, with a note; the next report uses the saved one."""
    before = invoke("capacity", "report", "--json", url=grown_anew).json
    assert any("no saved measurement" in note for note in before["notes"])

    saved = invoke("capacity", "measure", "--json", url=measure_url)
    after = invoke("capacity", "report", "--json", url=grown_anew).json
    assert saved.code == 0, saved.err
    assert after["measured_at"] == [saved.json["taken_at"].split(".")[0] + "+00:00"]
    assert not any("no saved measurement" in note for note in after["notes"])
    assert "trials" not in saved.json

    advised = invoke("capacity", "advise", "--price-per-tb", "90", "--json", url=measure_url).json["suggestions"]
    (best,) = (each for each in advised if each["name"] == f"re-encode to {after['answer']['saving']['codec']}")
    assert best["share"] == after["answer"]["saving"]["share"]
    assert "schemaless rebuild --execute" in best["commands"]
    shown = invoke("capacity", "advise", url=measure_url).out
    assert "schemaless migrate run --execute --to" in shown

    refused = invoke("capacity", "report", "--engine", "rocksdb", url=grown_anew)
    assert refused.code == 2
    assert "has no trials in MyRocks" in refused.err
    assert "measure --engine rocksdb" in refused.err


@pytest.mark.once
@pytest.mark.mysql
@pytest.mark.long
def test_fail_below_sets_the_exit_status(invoke, grown):
    """0 if all disks last long enough, 1 if one does not or is unknown, 2 for invalid options."""
    long = invoke(
        "capacity", "report", *DISKS, "--fail-below", "1", "--lead-time", "5", "--price-per-tb", "90", url=grown
    )
    short = invoke("capacity", "report", *DISKS, "--fail-below", "2000", "--json", url=grown)
    unknown = invoke("capacity", "report", "--disk", "cluster-1=40GiB:256KiB", "--fail-below", "2000", url=grown)
    wrong = invoke("capacity", "report", "--thresholds", "90%,80%", url=grown)

    assert (long.code, short.code, unknown.code, wrong.code) == (0, 1, 1, 2)
    assert "\nWhen disks fill up\n" in long.out
    assert "order by" in long.out.lower()
    assert "at 90 per TB" in long.out
    assert short.err.splitlines()[-1].startswith("schemaless: not all disks last 2,000 days: cluster-1 may be full in ")
    assert short.json["planning"]["verdict"]["failed"] is True
    assert short.json["answer"]["now"]["disk"] == "cluster-1"
    assert "thresholds must be in increasing order" in wrong.err


@pytest.mark.mysql
def test_report_of_an_empty_datastore_says_so(invoke, fresh_url, tmp_path):
    """The answer is unknown in every format, and there are no charts."""
    done = invoke("capacity", "report", "--html", tmp_path / "r.html", "--png", tmp_path / "r.png", url=fresh_url)

    assert done.code == 0, done.err
    assert "First disk full in: unknown." in done.out
    assert "note: there are no cells" in done.out
    assert not (tmp_path / "r.png").exists()
    assert "<figure" not in (tmp_path / "r.html").read_text()


@pytest.mark.mysql
def test_report_of_one_cell_says_so(invoke, fresh_store, fresh_url, new_row):
    """One cell is measured, but gives no forecast."""
    fresh_store.put_cell(new_row(), "BASE", 1, {"fare": 12.5})

    done = invoke("capacity", "report", *DISKS, url=fresh_url)

    assert done.code == 0, done.err
    assert "First disk full in: unknown." in done.out
    assert "needs at least 14" in done.out


@pytest.mark.long
@pytest.mark.mysql
def test_report_with_a_cluster_that_is_down_answers_for_the_other(grown, tmp_path):
    """It is named with the reason, its disk has no figures, and codecs are tried on the cells of the other."""
    disks = {name: GivenDisk(40 << 30, 1 << 18) for name in ("cluster-1", "cluster-2")}
    with schemaless.connect(grown) as store:
        unreachable = Node("primary", socket=str(tmp_path / "unreachable.sock"))
        up, down = internals_of(store).topology.clusters
        topology = replace(internals_of(store).topology, clusters=(up, replace(down, nodes=(unreachable,))))
        with opened_as(store, topology) as half:
            found = make({"": half}, Asked(disks=disks), fresh=True)

    data = report_json(found)
    assert data["answer"]["now"]["disk"] == up.name
    assert data["answer"]["now"]["days_until_full"]["mid"] > 0
    assert "unreachable.sock" in data["answer"]["now"]["unknown"][down.name]
    assert found.warnings[0].startswith(f"{down.name}: missing from all figures")
    assert {each.codec for each in found.trials} >= {"msgpack+zlib", "legacy"}
    assert f"Unknown for {down.name}." in answer(found.now).detail


@pytest.mark.mysql
def test_report_refuses_an_unknown_codec_or_cluster(invoke, fresh_url):
    """Each is an error of one line."""
    codec = invoke("capacity", "report", "--to", "gzip", url=fresh_url)
    cluster = invoke("capacity", "report", "--disk", "cluster-9=1TB", url=fresh_url)

    assert (codec.code, cluster.code) == (2, 2) or (codec.code, cluster.code) == (1, 1)
    assert "'gzip'" in codec.err
    assert "--disk names the cluster 'cluster-9'" in cluster.err
