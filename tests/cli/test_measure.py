"""``capacity measure`` and ``capacity history``: what they print, keep, and end with."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from schemaless import NewCell

pytestmark = pytest.mark.mysql


@pytest.fixture
def measure_url(accounts, fresh_store, new_row) -> str:
    """A datastore with four days of cells, for ``measure``."""
    start = datetime.now(UTC) - timedelta(days=3)
    fresh_store.put_cells(
        [NewCell(new_row(), "BASE", 1, {"n": number}, start + timedelta(hours=number)) for number in range(72)]
    )
    accounts.allow("measure", fresh_store.name, 4)
    return accounts.url("measure", accounts.servers[0], fresh_store.name)


def test_measure_prints_and_keeps_and_history_lists(invoke, measure_url):
    """Figures, growth, how much was read; then one line for each measurement."""
    nothing = invoke("capacity", "history", url=measure_url)
    first = invoke("capacity", "measure", "--disk", "cluster-1=4TB:1.5TB", url=measure_url)
    second = invoke("capacity", "measure", "--json", "--seed", 5, url=measure_url)
    listed = invoke("capacity", "history", url=measure_url)
    kept = invoke("capacity", "history", "--last", 1, "--json", url=measure_url).json

    assert nothing.out == "no measurement is kept; 'schemaless capacity measure' takes one\n"
    assert (first.code, first.err) == (0, "")
    assert "BASE" in first.out
    assert "msgpack+none" in first.out
    assert "new a day, " in first.out
    assert "all of it was read: " in first.out
    assert first.out.endswith("kept in the catalog as measurement 1\n")
    assert second.json["sample_id"] == 2
    assert second.json["seed"] == 5
    assert second.json["groups"][0]["cells"]["exact"]
    assert sum(each["cells"]["mid"] for each in second.json["growth"]) == 72
    assert kept == [second.json]
    assert [line.split()[0] for line in listed.out.splitlines()] == ["no.", "1", "2"]


def test_measure_that_cannot_be_kept_is_shown_all_the_same(invoke, fresh_url):
    """The application's account reads cells, and may not write measurements."""
    refused = invoke("capacity", "measure", "--json", url=fresh_url)
    unkept = invoke("capacity", "measure", "--no-keep", url=fresh_url)

    assert (refused.code, unkept.code) == (1, 0)
    assert refused.json["sample_id"] is None
    assert "not kept in the catalog: " in refused.err
    assert "grants --role measure" in refused.err
    assert "note: there are no cells" in unkept.out
    assert "(stat.)" in unkept.out
    assert "kept in the catalog" not in unkept.out


@pytest.mark.parametrize(
    ("disk", "complaint"),
    [
        ("4TB", "is not CLUSTER=SIZE"),
        ("cluster-1=4T", "can be read two ways"),
        ("cluster-1=1TB:2TB", "more is free than there is"),
        ("nowhere=1TB", "there is no cluster 'nowhere'"),
    ],
)
def test_measure_refuses_a_disk_that_it_cannot_use(invoke, datastore_url, disk, complaint):
    """Before anything is read."""
    result = invoke("capacity", "measure", "--disk", disk, url=datastore_url)

    assert result.code == 2
    assert complaint in result.err
