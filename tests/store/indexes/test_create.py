"""Indexes that several processes create or drop at the same time."""

from __future__ import annotations

import asyncio
import logging
import uuid

import pytest

import schemaless
import schemaless.aio
from schemaless.base.events import Total, only
from schemaless.errors import InvalidInput
from schemaless.ops.admin.indexes import indexes_of
from schemaless.ops.failover.states import node_states
from schemaless.planning.sampling.table_sizes import other_table_sizes
from schemaless.store.followers.settings import Settings
from schemaless.store.indexes.definition import define
from schemaless.store.indexes.registry import BACKFILLING
from schemaless.store.internals import internals_of
from schemaless.wire.connection import Connection
from schemaless.wire.driver import Reply
from tests.movers import query
from tests.store.indexes.conftest import TRIPS

pytestmark = [pytest.mark.mysql, pytest.mark.twice]


@pytest.mark.parametrize("when", ["before its insert", "after its insert"])
def test_two_concurrent_creations_of_an_index_create_one(kept, admin_store, monkeypatch, when):
    """Wherever the two overlap, both return the same index, and it is created completely."""
    execute, made = Connection.execute, []

    def raced(self: Connection, statement: bytes) -> Reply:
        if not statement.startswith(b"INSERT INTO") or b"secondary_index" not in statement or made:
            return execute(self, statement)
        made.append(None)
        inserted = execute(self, statement) if when == "after its insert" else None
        made[0] = indexes_of(admin_store).create(TRIPS)[0]
        return execute(self, statement) if inserted is None else inserted

    monkeypatch.setattr(Connection, "execute", raced)
    mine, new = indexes_of(admin_store).create(TRIPS)

    assert (mine, new) == (made[0], False)
    assert [each.number for each in indexes_of(admin_store).all()] == [mine.number]
    assert mine.state == BACKFILLING


def test_an_index_dropped_while_it_is_created_says_so(accounts, fresh_url):
    """Nothing is left of it, and the creating process gets an error."""

    def drop(total: Total) -> None:
        (entry,) = indexes_of(root).all()
        indexes_of(root).drop(entry, wait=lambda seconds: None)

    with schemaless.connect(accounts.root(fresh_url)) as root:
        with pytest.raises(InvalidInput, match="trips was dropped while it was being created"):
            indexes_of(root).create(TRIPS, only(Total, drop))
        shards = internals_of(root).shards
        statements = {shard: f"SHOW TABLES FROM `{shards.database(shard)}` LIKE 'index%'" for shard in range(4)}

        assert [query(shards.node_of(shard), statement) for shard, statement in statements.items()] == [[]] * 4
        assert not [name for name in Settings(internals_of(root).follower_access).all() if name.startswith("index:")]


@pytest.mark.guarantee("myrocks-indexes")
@pytest.mark.myrocks(only=True)
def test_entries_are_in_the_engine_of_the_cluster_and_a_rebuild_converts_them(
    kept, fresh_store, admin_url, by_hand, new_row, caplog
):
    """Tables in another engine are named and used; 'index rebuild' builds new ones beside them, which take the name."""
    for number in range(20):
        document = {"client": str(uuid.UUID(int=number % 3)), "at": "2026-03-01T08:00:00Z", "city": number}
        fresh_store.put_cell(new_row(), "BASE", 1, document)
    old = kept.fill()
    shards = by_hand(fresh_store)

    def engines(number: int) -> set[str]:
        select = "SELECT ENGINE FROM information_schema.TABLES WHERE TABLE_SCHEMA='{}' AND TABLE_NAME='index_{}'"
        found = [shards.rows(n, select.format(shards.database(n), number).encode()) for n in range(4)]
        return {engine for rows in found for (engine,) in rows}

    def cities() -> list[int]:
        rows = fresh_store.index("client_trips").query(client=uuid.UUID(int=1), order_by="-at").rows
        return sorted(row.entry["city"] for row in rows)

    assert engines(old.number) == {"ROCKSDB"}
    for shard in range(4):
        shards.execute(shard, f"ALTER TABLE `{shards.database(shard)}`.index_{old.number} ENGINE=InnoDB".encode())
    warnings = [warning for state in node_states(admin_url)[1] for warning in state.warnings]
    assert any(f"index_{old.number} uses innodb in 2 of 2 shards" in warning for warning in warnings)
    internals_of(fresh_store).registry.checked.clear()
    with caplog.at_level(logging.WARNING, "schemaless"):
        before = cities()
    assert "tables of index client_trips on" in caplog.text
    new = kept.rebuild("client_trips")
    assert indexes_of(kept.admin).rebuild("client_trips") == (new, False)
    kept.catch_up()
    indexes = indexes_of(kept.follow)
    assert indexes.watch(new, indexes.backfill(new))
    internals_of(fresh_store).registry.read()
    node = internals_of(fresh_store).topology.clusters[0].primary
    databases = [shards.database(shard) for shard in internals_of(fresh_store).topology.shards_of("cluster-1")]

    assert engines(new.number) == {"ROCKSDB"}
    assert cities() == before == sorted(number for number in range(20) if number % 3 == 1)
    assert [(each.number, each.state) for each in indexes.named("client_trips")] == [
        (old.number, "dropping"),
        (new.number, "ready"),
    ]
    assert f"index_{new.number}" in other_table_sizes(shards.pool_for(node), databases)


def test_an_index_is_created_filled_and_dropped_from_python(kept, fresh_store, admin_store, new_row):
    """With the accounts that docs/indexes.md names; repeating a call changes nothing."""
    declared = {"shard_field": "BASE.client:int", "fields": ["BASE.city:int"]}
    made = admin_store.create_index("by_client", **declared)
    again = admin_store.create_index("by_client", **declared)
    kept.allow(made.number)
    for city in range(20):
        fresh_store.put_cell(new_row(), "BASE", 1, {"client": 7, "city": city})
    before = [(entry.name, entry.state) for entry in fresh_store.indexes()]
    handled = [schemaless.catch_up(kept.follow, indexes=names) for names in ([], ["by_client"], None)]
    after = [(entry.name, entry.state) for entry in fresh_store.indexes()]
    found = fresh_store.index("by_client").query(client=7, order_by="-city", limit=3)
    admin_store.drop_index("by_client")

    assert again.number == made.number
    assert (before, after) == ([("by_client", "backfilling")], [("by_client", "ready")])
    assert handled == [False, True, False]
    assert [row.entry["city"] for row in found.rows] == [19, 18, 17]
    assert fresh_store.indexes() == []
    for arguments, message in (((kept.follow, print), "decorated with @schemaless.trigger"), ((print,), "Datastore")):
        with pytest.raises(InvalidInput, match=message):
            schemaless.catch_up(*arguments)
    with pytest.raises(InvalidInput, match="indexes must be a list"):
        schemaless.catch_up(kept.follow, indexes="by_client")
    with pytest.raises(InvalidInput, match="no index 'by_client'"):
        admin_store.drop_index("by_client")


def test_an_index_filled_from_asyncio_answers_at_once(kept, follow_url, fresh_store, new_row):
    """The thread that fills it has another datastore; the caller's reads the list of indexes again."""
    kept.make(define("client_trips", "BASE.client:int", ["BASE.city:int"]))
    fresh_store.put_cell(new_row(), "BASE", 1, {"client": 7, "city": 1})

    async def main() -> int:
        async with await schemaless.aio.connect(follow_url) as store:
            assert [entry.state for entry in await store.indexes()] == [BACKFILLING]
            assert await schemaless.aio.catch_up(store)
            return len((await store.index("client_trips").query(client=7)).rows)

    assert asyncio.run(main()) == 1
