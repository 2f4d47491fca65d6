"""Indexes that several processes create or drop at the same time."""

from __future__ import annotations

import pytest

import schemaless
from schemaless.admin.indexes import indexes_of
from schemaless.errors import InvalidInput
from schemaless.events import Total, only
from schemaless.followers.settings import Settings
from schemaless.indexes.registry import BACKFILLING
from schemaless.internals import internals_of
from schemaless.wire.connection import Connection
from schemaless.wire.driver import Reply
from tests.indexes.conftest import TRIPS
from tests.movers import query

pytestmark = [pytest.mark.mysql, pytest.mark.shared]


@pytest.mark.parametrize("when", ["before its insert", "after its insert"])
def test_two_who_create_an_index_at_once_make_one(kept, admin_store, monkeypatch, when):
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
