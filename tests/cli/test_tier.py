"""``schemaless tier``: the cold store, policies, plans and runs from the command line."""

from __future__ import annotations

import random
import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from schemaless import NewCell
from schemaless.planning.capacity.history import changes_since
from schemaless.planning.capacity.measure import measure


@pytest.fixture
def filled(fresh_store):
    """Two hundred cells of LOG, every second one 200 days old."""
    now = datetime.now(UTC)
    cells = [
        NewCell(
            uuid.uuid5(uuid.NAMESPACE_DNS, f"aircraft {number}"),
            "LOG",
            1,
            {"n": number, "pad": "words and words " * 20},
            created_at=now - timedelta(200 if number % 2 == 0 else 1),
        )
        for number in range(200)
    ]
    fresh_store.put_cells(cells)
    return cells


@pytest.mark.mysql
def test_cells_become_cold_and_come_back(invoke, filled, fresh_store, admin_url, migrate_url, fresh_url, tmp_path):
    """From the place of the files to the space freed, and back; nothing is written without --execute."""
    assert "no cold store" in invoke("tier", "store", url=admin_url).err
    assert invoke("tier", "set", "LOG", "--after", "180d", url=admin_url).out.startswith("LOG: cold after 180 days; ")
    assert "no cold store" in invoke("tier", "run", url=migrate_url).err
    assert invoke("tier", "store", tmp_path / "cold", url=admin_url).code == 0
    planned = invoke("tier", "plan", "--json", url=fresh_url).json
    dry = invoke("tier", "run", url=migrate_url)
    measured = measure(fresh_store, trials=False)

    assert planned["columns"]["LOG"]["eligible_cells"] == 100
    assert planned["freed_bytes"] == planned["columns"]["LOG"]["eligible_bytes"] - 100 * 30
    assert "100 cells would become cold" in dry.out
    assert invoke("tier", "set", "LOGG", "--after", "180d", url=admin_url).code == 0
    assert invoke("tier", "plan", url=fresh_url).err == "LOGG has a policy, but no cells in these shards\n"
    assert invoke("tier", "set", "LOGG", "--never", url=admin_url).code == 0
    assert not [*tmp_path.rglob("*.parquet")]
    done = invoke("tier", "run", "--execute", "--json", url=migrate_url)
    status = invoke("tier", "status", "--json", url=fresh_url).json

    assert (done.code, done.json["cells"], done.json["state"], done.json["files"]) == (0, 100, "done", 4)
    assert done.json["bytes_before"] - done.json["bytes_after"] == planned["freed_bytes"]
    assert status["columns"]["LOG"]["cold_cells"] == 100
    assert status["file_bytes"] == done.json["file_bytes"]
    assert sum(path.stat().st_size for path in tmp_path.rglob("*.parquet")) == status["file_bytes"]
    assert invoke("tier", "verify", url=fresh_url).out.endswith("100 cold cells: 0 faults\n")
    assert "no further cells" in invoke("tier", "plan", url=fresh_url).out
    assert invoke("tier", "store", tmp_path / "other", url=admin_url).code == 2
    assert "100 cold cells with" in invoke("tier", "recall", url=migrate_url).out
    back = invoke("tier", "recall", "--column", "LOG", "--execute", "--json", url=migrate_url)

    assert (back.code, back.json["cells"], back.json["bytes_after"]) == (0, 100, done.json["bytes_before"])
    assert {cell.row_key: cell.body for shard in range(4) for cell in fresh_store.iter_shard(shard)} == {
        cell.row_key: cell.body for cell in filled
    }
    kept = invoke("tier", "sweep", "--execute", "--json", url=migrate_url).json
    assert (kept["condemned"], kept["deleted"]) == (4, 0)
    written = [*tmp_path.rglob("*.parquet")]
    swept = invoke("tier", "sweep", "--execute", "--keep-days", 0, "--json", url=migrate_url).json
    assert (swept["deleted"], swept["deleted_bytes"]) == (4, status["file_bytes"])
    # What a writer that had stalled puts afterwards, a file that no row names any more, and one of another datastore.
    old, foreign = written[0].with_name(f"{1:016x}-0-{'ab' * 8}.parquet"), tmp_path / "cold" / "other.parquet"
    for path in (written[0], old, foreign):
        path.write_bytes(b"")
    assert invoke("tier", "sweep", "--execute", "--json", url=migrate_url).json["deleted"] == 2
    foreign.unlink()
    assert not [*tmp_path.rglob("*.parquet")]
    assert changes_since(fresh_store, measured) == [
        f"tier run {done.json['job']} has moved documents to cold files",
        f"recall {back.json['job']} has put cold documents back",
    ]
    assert invoke("tier", "set", "LOG", "--never", url=admin_url).out == "LOG: no further cells become cold\n"


def test_what_cannot_be_done_is_said(invoke, fresh_url, admin_url, migrate_url):
    """Usage where nothing or too much is asked for, and the command that is missing."""
    assert invoke("tier", "set", "LOG", url=admin_url).code == 2
    assert invoke("tier", "set", "LOG", "--after", "3 weeks", url=admin_url).code == 2
    assert invoke("tier", "set", "LOG", "--after", "9d", "--never", url=admin_url).code == 2
    assert invoke("tier", "store", "--keep-days", 3, url=admin_url).code == 2
    assert "contains credentials" in invoke("tier", "store", "s3://KEY:SECRET@bucket/cold", url=admin_url).err
    assert "'schemaless tier set COLUMN" in invoke("tier", "run", "--execute", url=migrate_url).err
    assert "no cold store" in invoke("tier", "sweep", "--execute", url=migrate_url).err


@pytest.mark.long
@pytest.mark.mysql
def test_a_forecast_with_tiering_agrees_with_the_outcome(
    invoke, fresh_store, admin_url, migrate_url, move_url, measure_url, tmp_path
):
    """Files and tables as --tier-after predicts them, against a run and a rebuild; the growth stays what it was."""
    numbers, now = random.Random(5), datetime.now(UTC)
    cells = [
        NewCell(
            uuid.UUID(int=numbers.getrandbits(128)),
            "LOG",
            1,
            {"values": [numbers.uniform(0, 1) for _ in range(800)]},
            created_at=now - timedelta(days=number // 40, minutes=number % 40),
        )
        for number in reversed(range(1600))
    ]
    for start in range(0, len(cells), 400):
        fresh_store.put_cells(cells[start : start + 400])

    def report() -> Any:
        assert invoke("capacity", "measure", url=measure_url).code == 0
        options = ("--tier-after", 10, "--cold-price-per-gb", 0.023, "--price-per-tb", 90)
        return invoke("capacity", "report", *options, "--json", url=measure_url).json

    before = report()
    scenario = {each["name"]: each for each in before["scenarios"]}["cold after 10 days"]
    predicted = before["comparison"][1]["cold"]
    invoke("tier", "store", tmp_path / "cold", url=admin_url)
    invoke("tier", "set", "LOG", "--after", "10d", url=admin_url)
    done = invoke("tier", "run", "--execute", "--json", url=migrate_url).json
    assert invoke("rebuild", "--execute", url=move_url).code == 0
    after = report()
    clusters = after["measurement"]["clusters"]
    files = sum(space["cold_file_bytes"] for space in clusters)
    (cold,) = [group for group in after["cold_files"] if group["column_name"] == "LOG"]

    assert files == done["file_bytes"]
    assert sum(space["cold_files"] for space in clusters) == done["files"]
    # Row groups of the files hold as many documents as those of the sample; only the footers differ.
    assert predicted["start_bytes"]["mid"] == pytest.approx(files, rel=0.05)
    # InnoDB lengthens each of the four files by an extent at a time.
    assert scenario["file_bytes"]["mid"] == pytest.approx(sum(space["file_bytes"] for space in clusters), abs=4 << 20)
    assert scenario["file_bytes"]["mid"] < before["scenarios"][0]["file_bytes"]["mid"] - (8 << 20)
    grown = [each["forecasts"]["disks"][0]["rate"]["bytes_per_day"]["mid"] for each in (before, after)]
    assert grown[1] == pytest.approx(grown[0], rel=0.05)
    assert cold["share"]["mid"] == pytest.approx(before["cold_files"][0]["share"]["mid"], rel=0.05)
    texts = sum(group["json_bytes"][1] for group in after["measurement"]["groups"] if group["codec"] == "cold")
    assert texts == sum(space["cold_text_bytes"] for space in clusters) == done["text_bytes"]
    assert [each["name"] for each in after["comparison"]] == ["now", "tiering", "cold after 10 days"]
    assert after["comparison"][1]["cold"]["start_bytes"]["mid"] == pytest.approx(files, rel=0.05)
    assert "the cold store begins with" in invoke("capacity", "report", url=measure_url).out
