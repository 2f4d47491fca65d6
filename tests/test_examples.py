"""The examples, run on real servers as their readers would run them."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pymysql
import pytest
from sqlalchemy import make_url

import schemaless
from schemaless import NewCell
from schemaless.base.keys import row_key_for

pytestmark = [pytest.mark.once, pytest.mark.long]

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"
FIRST = "JFK            15 trips       150.00\nLGA            15 trips       150.00\n"
THEN = "JFK            16 trips       170.00\nLGA            14 trips       140.00\n"
SHORT = sorted(EXAMPLES.glob("*.py"))


def run(name: str, *arguments: object, code: int = 0) -> str:
    """Run an example, and return what it prints."""
    command = [sys.executable, EXAMPLES / name, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


def test_examples_are_short_typed_and_listed():
    """Under 150 lines each, right for mypy --strict, and in the overview."""
    overview = (EXAMPLES / "README.md").read_text(encoding="utf-8")

    assert [path.name for path in SHORT if len(path.read_text(encoding="utf-8").splitlines()) >= 150] == []
    assert [path.name for path in SHORT if f"]({path.name})" not in overview] == []
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", *SHORT], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout


@pytest.mark.mysql
def test_a_trip_service_writes_reads_and_imports(fresh_url, monkeypatch):
    """Through HTTP: twice the same is once, another document for the same version is refused, history stays."""
    testclient = pytest.importorskip(
        "fastapi.testclient", reason="no fastapi: 'make install' installs the extra [test]"
    )
    monkeypatch.setenv("SCHEMALESS_URL", fresh_url)
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import trip_service

    trip, other = uuid.uuid4(), uuid.uuid4()
    first, second = {"to": "JFK", "fare": 12.5, "note": None}, {"to": "JFK", "fare": 14.0, "note": "waited"}
    with testclient.TestClient(trip_service.app) as client:
        assert client.get(f"/trips/{trip}").status_code == 404
        for created in (True, False):
            assert client.put(f"/trips/{trip}/versions/1", json=first).json() == {"created": created}
        assert client.put(f"/trips/{trip}/versions/2", json=second).json() == {"created": True}
        for version in (1, 4, 2**63 - 1):
            conflict = client.put(f"/trips/{trip}/versions/{version}", json=second)
            assert (conflict.status_code, conflict.json()["detail"]["latest"]) == (409, 2)
        assert client.get(f"/trips/{trip}").json()["trip"] == second
        history = client.get(f"/trips/{trip}/history").json()
        assert [(each["version"], each["trip"]) for each in history] == [(2, second), (1, first)]
        assert client.put(f"/trips/{trip}/versions/0", json=first).status_code == 422

        assert client.post("/trips", json={str(trip): first, str(other): second}).json() == {
            "written": 1,
            "there_before": 1,
        }
        failed = client.post("/trips", json={str(other): first})
        assert (failed.status_code, failed.json()["detail"]["not_written"]) == (409, [str(other)])

        problems = [schemaless.InvalidCell("too large"), schemaless.ServerUnavailable("no answer", node="db-1:3306")]

        async def failing():
            raise problems.pop()

        trip_service.app.dependency_overrides[trip_service.the_trips] = failing
        assert [client.get(f"/trips/{trip}").status_code for _ in (1, 2)] == [503, 422]


@pytest.mark.mysql
def test_a_projection_counts_each_cell_once(fresh_url, fresh_store, tmp_path):
    """Run again after more was written, and after a version that came late."""
    trips = [row_key_for(f"trip {number}") for number in range(30)]
    fresh_store.put_cells(
        [NewCell(trip, "TRIP", 2, {"to": ("JFK", "LGA")[n % 2], "fare": 10}) for n, trip in enumerate(trips)]
    )
    view = tmp_path / "fares.sqlite"
    assert run("projection.py", fresh_url, view).split() == [
        "JFK",
        "15",
        "trips",
        "150.00",
        "LGA",
        "15",
        "trips",
        "150.00",
    ]

    fresh_store.put_cell(trips[0], "TRIP", 1, {"to": "EWR", "fare": 99})
    fresh_store.put_cell(trips[1], "TRIP", 3, {"to": "JFK", "fare": 20})
    fresh_store.put_cell(trips[2], "OTHER", 1, {})
    for _ in range(2):
        assert run("projection.py", fresh_url, view).split() == [
            "JFK",
            "16",
            "trips",
            "170.00",
            "LGA",
            "14",
            "trips",
            "140.00",
        ]


@pytest.mark.mysql
def test_a_nightly_job_fails_where_a_disk_is_full_too_soon(accounts, fresh_store, new_row, tmp_path):
    """It keeps the measurement, writes the page, and its exit status is the answer."""
    pytest.importorskip("statsmodels", reason="no statsmodels: 'make install' installs the extra [report]")
    start = datetime.now(UTC) - timedelta(days=20)
    fresh_store.put_cells(
        [NewCell(new_row(), "TRIP", 1, {"n": n, "said": "x" * 200}, start + timedelta(hours=n)) for n in range(480)],
        codec="json+none",
    )
    accounts.allow("measure", fresh_store.name, 4)
    url = accounts.url("measure", accounts.servers[0], fresh_store.name)
    disks = [part for cluster in ("cluster-1", "cluster-2") for part in ("--disk", f"{cluster}=1GB:100kB")]

    said = run("nightly_capacity.py", url, tmp_path / "pages", *disks, "--at-least", 100_000, code=1)
    assert "cluster-1: " in said
    assert "that is less than 100000" in said
    (page,) = (tmp_path / "pages").glob("capacity-*.html")
    assert page.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")


@pytest.mark.mysql
def test_an_import_keeps_times_and_can_be_run_again(server_urls, fresh_url, fresh_store, prefix):
    """From a table of another database on a server of its own account; rows that came since are added."""
    made = datetime(2021, 3, 4, 5, 6, 7, tzinfo=UTC)
    url = make_url(server_urls[0])
    source = f"{prefix}shop"
    login = {"user": url.username or "root", "password": url.password or "", "autocommit": True}
    where = (
        {"unix_socket": url.query["unix_socket"]}
        if "unix_socket" in url.query
        else {"host": url.host, "port": url.port}
    )
    with pymysql.connect(**login, **where) as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE {source}")
        try:
            cursor.execute(f"CREATE TABLE {source}.orders (id INT PRIMARY KEY, doc JSON, created_at DATETIME)")
            insert = f"INSERT INTO {source}.orders VALUES (%s, %s, %s)"
            cursor.executemany(
                insert,
                [(n, json.dumps({"n": n, "of": [1.5, None, "ж"]}), made + timedelta(days=n)) for n in range(1, 601)],
            )
            arguments = ("--from", server_urls[0].replace("/?", f"/{source}?"), "--table", "orders", fresh_url)
            assert run("import_json_column.py", *arguments) == "600 written, 0 there before\n"
            cursor.execute(insert, (601, "{}", made))
            assert run("import_json_column.py", *arguments) == "1 written, 600 there before\n"
        finally:
            cursor.execute(f"DROP DATABASE {source}")

    cell = fresh_store.get_cell_latest(
        uuid.uuid5(uuid.uuid5(uuid.NAMESPACE_URL, "https://shop.example/orders"), "600"), "ORDER"
    )
    assert cell is not None
    assert cell.body == {"n": 600, "of": [1.5, None, "ж"]}
    assert cell.created_at == made + timedelta(days=600)


@pytest.mark.mysql
def test_a_field_is_added_once_to_documents_that_lack_it(fresh_url, tail_url, tmp_path, monkeypatch):
    """A second run finds nothing to do; a document that has the field keeps it."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import add_field

    keys = [uuid.uuid4() for _ in range(20)]
    with schemaless.connect(fresh_url) as store, schemaless.connect(tail_url) as feed:
        store.put_cells([NewCell(key, "FARE", 1, {"cents": 5}) for key in keys])
        store.put_cell(uuid.uuid4(), "FARE", 1, {"cents": 5, "currency": "EUR"})
        for expected in (20, 0):
            shards = range(store.shard_count)
            changed = [add_field.add_field(store, feed, shard, tmp_path / f"shard-{shard}") for shard in shards]
            assert sum(changed) == expected
        assert {cell.body["currency"] for cell in store.iter_cells("FARE", latest=True)} == {"USD", "EUR"}
        assert store.get_cell_latest(keys[0], "FARE").ref_key == 2
