"""The commands ``capacity measure`` and ``capacity history``: output, saved measurements, exit status."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import pytest

from schemaless import NewCell
from schemaless.store.internals import internals_of

pytestmark = pytest.mark.mysql


@pytest.fixture
def measure_url(accounts, fresh_store, new_row) -> str:
    """A datastore with four days of cells and an older column, under the role ``measure``."""
    start = datetime.now(UTC) - timedelta(days=3)
    fresh_store.put_cells([NewCell(new_row(), "OLD", 1, {}, start - timedelta(days=n)) for n in range(30, 6, -1)])
    fresh_store.put_cells(
        [NewCell(new_row(), "BASE", 1, {"n": number}, start + timedelta(hours=number)) for number in range(72)]
    )
    accounts.allow("measure", fresh_store.name, 4)
    return accounts.url("measure", accounts.servers[0], fresh_store.name)


def test_measure_saves_and_history_lists(invoke, measure_url):
    """'measure' prints figures, growth and the amount read; 'history' one line per measurement."""
    nothing = invoke("capacity", "history", url=measure_url)
    first = invoke("capacity", "measure", "--disk", "cluster-1=4TB:1.5TB", url=measure_url)
    second = invoke("capacity", "measure", "--json", "--seed", 5, url=measure_url)
    listed = invoke("capacity", "history", url=measure_url)
    saved = invoke("capacity", "history", "--last", 1, "--json", url=measure_url).json

    assert nothing.out == "no measurements saved yet; take one with 'schemaless capacity measure'\n"
    assert (first.code, first.err) == (0, "")
    assert "BASE" in first.out
    assert "msgpack+none" in first.out
    today = datetime.now(UTC).date()
    assert f"new a day, {today - timedelta(7)} to {today - timedelta(1)}\n" in first.out
    assert re.search(r"\nOLD +0 +0 B +count\n", first.out)
    assert "read all cells: " in first.out
    assert first.out.endswith("saved in the catalog as measurement 1\n")
    assert second.json["sample_id"] == 2
    assert second.json["seed"] == 5
    assert second.json["groups"][0]["cells"]["exact"]
    assert sum(each["cells"]["mid"] for each in second.json["growth"]) == 72 + 24
    assert saved == [second.json]
    assert [line.split()[0] for line in listed.out.splitlines()] == ["no.", "1", "2"]


def test_a_cluster_that_was_not_read_is_named(invoke, measure_url, fresh_store, by_hand, tmp_path):
    """The cells of the other one are not all cells."""
    catalog = by_hand(fresh_store).pool_for(internals_of(fresh_store).catalog.node)
    (down,) = {each.name for each in internals_of(fresh_store).topology.clusters} - {"cluster-1"}
    sql = f"UPDATE `{fresh_store.name}`.node SET socket = '{tmp_path}/gone' WHERE cluster = '{down}'"
    catalog.execute(sql.encode())
    found = invoke("capacity", "measure", "--no-keep", url=measure_url)

    assert found.code == 1
    assert f"\nread all cells, except in {down} (2 shards): " in found.out


def test_a_measurement_that_cannot_be_saved_is_still_shown(invoke, fresh_url):
    """The application's account can read cells but not write measurements."""
    refused = invoke("capacity", "measure", "--json", url=fresh_url)
    unsaved = invoke("capacity", "measure", "--no-keep", url=fresh_url)

    assert (refused.code, unsaved.code) == (1, 0)
    assert refused.json["sample_id"] is None
    assert "not saved in the catalog: " in refused.err
    assert "grants --role measure" in refused.err
    assert "note: there are no cells" in unsaved.out
    assert "(stat.)" in unsaved.out
    assert "saved in the catalog" not in unsaved.out


@pytest.mark.parametrize(
    ("disk", "complaint"),
    [
        ("4TB", "is not of the form CLUSTER=TOTAL"),
        ("cluster-1=4T", "can be read two ways"),
        ("cluster-1=1TB:2TB", "the free space is larger than the disk"),
        ("nowhere=1TB", "--disk names the cluster 'nowhere'"),
    ],
)
def test_measure_refuses_an_invalid_disk(invoke, datastore_url, disk, complaint):
    """Before it reads anything."""
    result = invoke("capacity", "measure", "--disk", disk, url=datastore_url)

    assert result.code == 2
    assert complaint in result.err
