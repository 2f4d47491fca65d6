"""Damage of each kind is found with exact counts and repaired, and what is not damaged is no fault."""

from __future__ import annotations

import uuid

import pytest

import schemaless
from schemaless.feed.index_check import Found, IndexCheck
from schemaless.feed.indexes import Indexes
from tests.cli.conftest import invoke  # noqa: F401 - the fixture

pytestmark = pytest.mark.mysql


def totals(checking: IndexCheck) -> dict[str, int]:
    """Return what a check of all shards found, without what there is none of."""
    every = list(checking.run(range(4)))
    return {
        name: count for name in Found(0).counts if name != "shard" and (count := sum(e.counts[name] for e in every))
    }


def test_damage_of_each_kind_is_found_and_repaired(kept, fresh_store, by_hand, new_row, invoke, follow_url):  # noqa: F811
    """7 missing, 6 stale, 5 ahead, 4 orphans and 3 left behind elsewhere, of 100 rows; 2 have no entry, 1 lags."""
    rows = [new_row() for _ in range(100)]
    cells = [
        schemaless.NewCell(row, "BASE", 1, {"client": str(uuid.UUID(int=n)), "city": n}) for n, row in enumerate(rows)
    ]
    fresh_store.put_cells(cells)
    fresh_store.put_cells([schemaless.NewCell(new_row(), "BASE", 1, body) for body in ({}, {"client": 7})])
    entry = kept.fill()
    shards = by_hand(fresh_store)

    def damage(statement: bytes, some: list[uuid.UUID], *, elsewhere: bool = False) -> None:
        for row in some:
            own = fresh_store.shard_of(uuid.UUID(int=rows.index(row)))
            shard = (own + elsewhere) % 4
            names = (shards.database(shard).encode(), entry.number)
            sent = statement.replace(b"TABLE", b"`%b`.index_%d" % names).replace(b"ROW", b"x'%b'" % row.hex.encode())
            assert shards.execute(shard, sent).affected == 1

    copied = b"INSERT INTO TABLE (row_key, client, city, ref_0, ref_1) VALUES (ROW, REPEAT('x', 16), 1, 1, -1)"
    damage(b"DELETE FROM TABLE WHERE row_key=ROW", rows[:7])
    damage(b"UPDATE TABLE SET city=-1 WHERE row_key=ROW", rows[10:16])
    damage(b"UPDATE TABLE SET ref_0=9, city=-1 WHERE row_key=ROW", rows[20:25])
    damage(copied, rows[30:33], elsewhere=True)
    strange = [new_row() for _ in range(4)]
    rows += strange
    damage(copied, strange)
    fresh_store.put_cell(rows[50], "BASE", 2, {"client": str(uuid.UUID(int=50)), "city": -50})
    found = totals(IndexCheck(kept.follow, entry))
    said = invoke("index", "check", "client_trips", "--repair", "--json", url=follow_url)
    assert (said.code, said.json["missing"], "nothing was changed" in said.err) == (1, 7, True)
    kept.catch_up()
    repaired = totals(IndexCheck(kept.follow, entry, repair=True))

    assert found == {
        "rows": 102,
        "entries": 100,
        "without_entry": 2,
        "null_fields": 200,
        "lagging": 1,
        "missing": 7,
        "stale": 9,
        "ahead": 5,
        "orphan": 4,
    }
    # While it repairs, entries come and go.
    counted = {name: count for name, count in found.items() if name not in ("entries", "lagging")}
    assert {name: count for name, count in repaired.items() if name != "entries"} == {**counted, "repaired": 25}
    assert totals(IndexCheck(kept.follow, entry)) == {
        "rows": 102,
        "entries": 100,
        "without_entry": 2,
        "null_fields": 200,
    }
    assert invoke("index", "check", "client_trips", url=follow_url).code == 0


def test_a_lost_row_of_the_follower_is_told_and_made_again(kept, fresh_store, by_hand, new_row, invoke, follow_url):  # noqa: F811
    """Nobody keeps its shard meanwhile, so nothing there is said to lag; workers go over it once more."""
    entry = kept.fill()
    rows = [new_row() for _ in range(20)]
    fresh_store.put_cells([schemaless.NewCell(row, "BASE", 1, {"client": str(uuid.UUID(int=7))}) for row in rows])
    shards = by_hand(fresh_store)
    shards.execute(2, b"DELETE FROM `%b`.follower" % shards.database(2).encode())
    said = invoke("index", "check", "client_trips", url=follow_url)
    status = invoke("index", "status", "client_trips", url=follow_url)
    assert (said.code != 0, "shard 2 has no row of the follower that keeps index client_trips" in said.err) == (
        True,
        True,
    )
    assert (status.code, "shard 2: it has no progress row here" in status.err) == (1, True)
    Indexes(kept.admin).create(entry.definition)
    kept.catch_up()

    assert totals(IndexCheck(kept.follow, entry)) == {"rows": 20, "entries": 20, "null_fields": 60}
    assert invoke("index", "status", "client_trips", url=follow_url).code == 0


def test_a_shard_whose_worker_waits_stands(kept, follow_url, invoke):  # noqa: F811
    """The worker says so in the catalog, with its reason."""
    kept.fill()
    worker = kept.worker()
    next(iter(worker.owned.values())).wait(1_000, "db-1: gone")
    worker._members.renew()
    said = invoke("index", "status", "client_trips", url=follow_url)

    assert (said.code, "waits in shard" in said.err) == (1, True)
