"""Index checks: every kind of damage is found with exact counts and repaired, and nothing else is a fault."""

from __future__ import annotations

import random
import uuid

import pytest

import schemaless
from schemaless.base.events import Advanced, Event, Total
from schemaless.errors import ServerUnavailable
from schemaless.ops.admin.indexes import indexes_of
from schemaless.ops.admin.table_check import TableCheck
from schemaless.ops.migrate.run import run as migrate
from schemaless.ops.migrate.spec import MigrateSpec
from schemaless.store.indexes.check import Found, IndexCheck
from schemaless.store.triggers.supervision import prepare
from tests.cases import each
from tests.cli.conftest import invoke  # noqa: F401 - the fixture

pytestmark = [pytest.mark.mysql]


def totals(checking: IndexCheck) -> dict[str, int]:
    """Return the non-zero counts of a check of all shards."""
    every = list(checking.run(range(4)))
    return {
        name: count for name in Found(0).counts if name != "shard" and (count := sum(e.counts[name] for e in every))
    }


@pytest.mark.parametrize("keys", ["random", pytest.param("consecutive", marks=pytest.mark.long)])
def test_progress_within_a_shard_is_reported(kept, fresh_store, keys):
    """In small steps that add up to one per shard, for random and for consecutive row_keys."""
    drawn = random.Random(1)
    base = drawn.getrandbits(127)
    rows = [uuid.UUID(int=drawn.getrandbits(128) if keys == "random" else base + 1_000 * n) for n in range(400)]
    fresh_store.put_cells(
        [schemaless.NewCell(row, "BASE", 1, {"client": str(uuid.UUID(int=n))}) for n, row in enumerate(rows)]
    )
    entry = kept.fill()
    events: list[Event] = []
    for shard in range(4):
        events.clear()
        list(indexes_of(kept.follow).check(entry, rows_per_query=10).run([shard], events.append))
        steps = [event.units for event in events if isinstance(event, Advanced)]

        assert events[0] == Total(1)
        assert sum(steps) == 1
        assert len(steps) > 8
        assert max(steps) < 0.3


def test_an_index_is_built_from_versions_stored_as_differences(kept, fresh_store, migrate_store, new_row):
    """The check, which reads the rows again, finds an entry for each row, and the query its latest version."""
    rows = [new_row() for _ in range(10)]
    ids = [str(uuid.UUID(int=n)) for n in range(20)]
    legs = [{"from": n, "to": n * 7} for n in range(40)]
    fresh_store.put_cells(
        [schemaless.NewCell(row, "BASE", n, {"client": ids[n], "legs": legs}) for row in rows for n in range(20)]
    )
    assert migrate(migrate_store, MigrateSpec(history=True)).total().cells > 150
    entry = kept.fill()
    assert totals(indexes_of(kept.follow).check(entry)) == {"rows": 10, "entries": 10, "null_fields": 30}
    found = kept.follow.index(entry.definition.name).query(client=ids[19]).rows
    assert {each.row_key for each in found} == set(rows)


@pytest.mark.guarantee("index-damage")
def test_damage_of_each_kind_is_found_and_repaired(kept, fresh_store, by_hand, new_row, invoke, follow_url):  # noqa: F811
    """Of 100 rows 7 are missing, 6 stale, 5 ahead, 4 orphans and 3 in another shard; 2 have no entry, 1 lags."""
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
    orphans = [new_row() for _ in range(4)]
    rows += orphans
    damage(copied, orphans)
    fresh_store.put_cell(rows[50], "BASE", 2, {"client": str(uuid.UUID(int=50)), "city": -50})
    found = totals(indexes_of(kept.follow).check(entry))
    said = invoke("index", "check", "client_trips", "--repair", "--json", url=follow_url)
    assert (said.code, said.json["missing"], "nothing was changed" in said.err) == (1, 7, True)
    kept.catch_up()
    repaired = totals(indexes_of(kept.follow).check(entry, repair=True))

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
    # The number of entries changes during the repair.
    counted = {name: count for name, count in found.items() if name not in ("entries", "lagging")}
    assert {name: count for name, count in repaired.items() if name != "entries"} == {**counted, "repaired": 25}
    assert totals(indexes_of(kept.follow).check(entry)) == {
        "rows": 102,
        "entries": 100,
        "without_entry": 2,
        "null_fields": 200,
    }
    assert invoke("index", "check", "client_trips", url=follow_url).code == 0


@pytest.mark.guarantee("index-damage")
def test_a_lost_follower_row_is_reported_and_recreated(kept, fresh_store, by_hand, new_row, invoke, follow_url):  # noqa: F811
    """Without it no worker maintains the shard, so nothing there counts as lagging; workers then read it again."""
    entry = kept.fill()
    rows = [new_row() for _ in range(20)]
    fresh_store.put_cells([schemaless.NewCell(row, "BASE", 1, {"client": str(uuid.UUID(int=7))}) for row in rows])
    shards = by_hand(fresh_store)
    shards.execute(2, b"DELETE FROM `%b`.follower" % shards.database(2).encode())
    said = invoke("index", "check", "client_trips", url=follow_url)
    status = invoke("index", "status", "client_trips", url=follow_url)
    assert (said.code != 0, "shard 2 has no row of the follower that maintains index client_trips" in said.err) == (
        True,
        True,
    )
    assert (status.code, "shard 2: no progress row in this shard" in status.err) == (1, True)
    indexes_of(kept.admin).create(entry.definition)
    kept.catch_up()

    assert totals(indexes_of(kept.follow).check(entry)) == {"rows": 20, "entries": 20, "null_fields": 60}
    assert invoke("index", "status", "client_trips", url=follow_url).code == 0


def test_a_shard_whose_worker_waits_stands(kept, follow_url, invoke):  # noqa: F811
    """The worker publishes it in the catalog, with the reason."""
    kept.fill()
    worker = kept.worker()
    next(iter(worker.leases.held.values())).defer(1_000, "db-1: gone")
    worker.membership.renew()
    said = invoke("index", "status", "client_trips", url=follow_url)

    assert (said.code, "waits in shard" in said.err) == (1, True)


PARKED = "INSERT INTO DB.parked (name, added_id, row_key, column_name, ref_key, attempts, error) VALUES "
FOLLOWER = "INSERT INTO DB.follower (name, location) VALUES "
DAMAGE = [
    # kind, table, damage to one shard, its reversal, a part of the message
    (
        *("FollowerMissing", "follower", "DELETE FROM DB.follower WHERE name='trigger:keep'"),
        *(FOLLOWER + "('trigger:keep', 0)", "'schemaless trigger remove keep --execute'"),
    ),
    (
        *("FollowerMissing", "follower", "DELETE FROM DB.follower WHERE name='index:1'"),
        *(FOLLOWER + "('index:1', 0)", "run 'schemaless index create' with the same fields"),
    ),
    (
        *("LocationLost", "follower", "UPDATE DB.follower SET location=99 WHERE name='trigger:keep'"),
        *(
            "UPDATE DB.follower SET location=0 WHERE name='trigger:keep'",
            "is 99, but the shard's last added_id is 0",
        ),
    ),
    (
        *("EpochAhead", "follower", "UPDATE DB.follower SET epoch=epoch+1e15 WHERE name='index:1'"),
        *("UPDATE DB.follower SET epoch=epoch-1e15 WHERE name='index:1'", "ahead of this server's clock"),
    ),
    (
        *("FollowerUnknown", "follower", FOLLOWER + "('trigger:gone', 0)"),
        *("DELETE FROM DB.follower WHERE name='trigger:gone'", "which is not in the catalog"),
    ),
    (
        *("ParkedCellMissing", "parked", PARKED + "('trigger:keep', 7, REPEAT('x', 16), 'BASE', 1, 8, 'no fare')"),
        *(
            "DELETE FROM DB.parked",
            "Discard the parked cell with 'schemaless trigger skip keep --shards 2 --added-id 7 --execute'",
        ),
    ),
    (
        *("FollowerUnknown", "parked", PARKED + "('trigger:gone', 7, REPEAT('x', 16), 'BASE', 1, 8, 'no fare')"),
        *("DELETE FROM DB.parked", "If they are not needed, delete the rows"),
    ),
    (
        *("IndexTableMissing", "index_1", "RENAME TABLE DB.index_1 TO DB.away", "RENAME TABLE DB.away TO DB.index_1"),
        "'schemaless index drop client_trips --number 1 --execute'",
    ),
    (
        *("SchemaMismatch", "index_1", "ALTER TABLE DB.index_1 DROP KEY query"),
        *("ALTER TABLE DB.index_1 ADD KEY query (client, at, city, s)", "its key query should have the columns"),
    ),
    (
        *("SchemaMismatch", "index_1", "ALTER TABLE DB.index_1 MODIFY city INT NULL"),
        *("ALTER TABLE DB.index_1 MODIFY city BIGINT NULL", "city INT, missing columns: city BIGINT"),
    ),
    ("IndexTableUnknown", "index_99", "CREATE TABLE DB.index_99 (n INT)", "DROP TABLE DB.index_99", "DROP TABLE `"),
]


@pytest.fixture
def followed(kept, follow_store):
    """A datastore with an index and a trigger."""

    @schemaless.trigger(column="BASE", start="beginning")
    def keep(cell, call):
        raise AssertionError

    prepare(follow_store, keep)
    return kept.fill()


def test_a_sound_datastore_passes_and_unseen_tables_are_listed(
    followed,
    fresh_store,
    new_row,
    invoke,  # noqa: F811
    fresh_url,
    follow_url,
    admin_url,
):
    """By the account of each role: admin sees all tables, follow all known ones, app the tables of indexes."""
    fresh_store.put_cells([schemaless.NewCell(new_row(), "BASE", 1, {}) for _ in range(9)])
    counts = {"followers": 2, "indexes": 1, "shards": 4, "parked_cells": 0, "index_tables": 4}
    for url, locations, unseen in (
        (admin_url, 8, set()),
        (follow_url, 8, {"index_*"}),
        (fresh_url, 0, {"index_*", "follower", "parked"}),
    ):
        said = invoke("check", "--json", url=url)
        assert (said.code, said.json["faults"]) == (0, [])
        tables = said.json["tables"]
        assert {each["table"] for each in tables.pop("unseen")} == unseen
        assert tables == {**counts, "locations": locations}
    said = invoke("check", url=fresh_url)

    assert (said.code, "use 'schemaless index check NAME'" in said.out) == (0, True)
    assert "not checked: follower in 2 shards of " in said.err


@pytest.mark.twice
def test_each_kind_of_damage_to_tables_is_found_and_named(
    followed,
    fresh_store,
    by_hand,
    invoke,  # noqa: F811
    admin_url,
):
    """Exactly one fault is reported, with shard, server and table, and exit status 1."""
    shards = by_hand(fresh_store)
    database, server = shards.database(2), str(shards.node_of(2))

    @each("kind, table, damage, undo, words", DAMAGE)
    def found(kind, table, damage, undo, words):
        shards.execute(2, damage.replace("DB", f"`{database}`").encode())
        said = invoke("check", "--json", url=admin_url)
        shards.execute(2, undo.replace("DB", f"`{database}`").encode())

        (fault,) = said.json["faults"]
        assert (said.code, fault["kind"], fault["shard"]) == (1, kind, 2)
        assert (fault["server"], fault["table"], words in fault["message"]) == (server, table, True), fault

    found()
    assert invoke("check", url=admin_url).code == 0


@pytest.mark.twice
@pytest.mark.guarantee("myrocks-indexes")
@pytest.mark.myrocks(only=True)
def test_tables_in_another_storage_engine_than_recorded_are_named(
    followed,
    fresh_store,
    by_hand,
    invoke,  # noqa: F811
    admin_url,
):
    """With the command that converts them: a move of the shard or, for entries of an index, its rebuild."""
    shards = by_hand(fresh_store)
    for table in ("cell", "index_1"):
        shards.execute(2, f"ALTER TABLE `{shards.database(2)}`.{table} ENGINE=InnoDB".encode())
    said = invoke("check", "--json", url=admin_url)
    for table in ("cell", "index_1"):
        shards.execute(2, f"ALTER TABLE `{shards.database(2)}`.{table} ENGINE=ROCKSDB".encode())

    assert said.code == 1
    assert [(fault["kind"], fault["shard"], fault["table"]) for fault in said.json["faults"]] == [
        ("EngineMismatch", 2, "cell"),
        ("EngineMismatch", 2, "index_1"),
    ]
    cell, index = (fault["message"] for fault in said.json["faults"])
    assert "uses the storage engine innodb, but the catalog records rocksdb for cluster-" in cell
    assert ("index rebuild" in cell, "'schemaless index rebuild client_trips --execute'" in index) == (False, True)
    assert invoke("check", url=admin_url).code == 0


@pytest.mark.twice
def test_an_index_that_is_made_or_dropped_while_tables_are_checked_is_no_fault(kept, admin_store):
    """A difference is checked again after the catalog was read again."""
    before = TableCheck(admin_store)
    entry = kept.make()
    made = before.run(range(4))
    beside = TableCheck(admin_store)
    indexes_of(admin_store).drop(entry, wait=lambda seconds: None)
    dropped = beside.run(range(4))

    assert (made.faults, dropped.faults) == ({}, {})
    assert (made.index_tables, dropped.index_tables) == (4, 0)


@pytest.mark.parametrize(
    ("how", "code"), [(KeyboardInterrupt(), 3), (ServerUnavailable("gone", node="db-1"), 1)], ids=["Ctrl-C", "gone"]
)
def test_a_check_of_an_index_that_is_cut_short_says_how_to_go_on(kept, invoke, follow_url, monkeypatch, how, code):  # noqa: F811
    """The results so far are printed, with the command for the remaining shards; a terminal shows the time left."""
    kept.fill()
    runs = IndexCheck.run

    def cut_short(self, shards, listener):
        for found in runs(self, shards, listener):
            if found.shard == 2:
                raise how
            yield found

    monkeypatch.setattr(IndexCheck, "run", cut_short)
    monkeypatch.setenv("FORCE_COLOR", "1")
    said = invoke("index", "check", "client_trips", "--repair", "--execute", "--json", url=follow_url)

    assert (said.code, said.json["left"], len(said.json["shards"])) == (code, "2-3", 2)
    before, _, after = said.err.partition("schemaless index check client_trips --shards 2-3 --repair --execute")
    assert " s left" in before
    assert after
