"""The next cells of many shards' feeds in one statement: the same as read one by one, or absent."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import pytest

import schemaless
from schemaless.errors import WrongReply
from schemaless.store.feed import reader as changes
from schemaless.store.feed.reader import Tail
from schemaless.store.internals import internals_of
from schemaless.wire.connection import Connection

pytestmark = [pytest.mark.mysql, pytest.mark.twice]

INSERT = b"INSERT INTO `%b`.cell (row_key,column_name,ref_key,body) VALUES (x'%b','BASE',1,'0')"
LONG = 5_000


@pytest.fixture
def put(fresh_store: schemaless.Datastore) -> Callable[..., None]:
    """Puts cells into one shard."""
    numbers = iter(range(10**6))

    def put_some(shard: int, count: int = 3, column_name: str = "BASE", body: bytes = b"0") -> None:
        while count:
            row = uuid.uuid5(uuid.NAMESPACE_OID, f"tail {next(numbers)}")
            if fresh_store.shard_of(row) == shard:
                fresh_store.put_stored_cells([schemaless.NewStoredCell(row, column_name, 1, body)])
                count -= 1

    return put_some


@pytest.fixture
def store(follow_store: schemaless.Datastore, put: Callable[..., None]) -> schemaless.Datastore:
    """Shards that were read before, with three cells each."""
    for shard in range(follow_store.shard_count):
        put(shard)
        follow_store.get_stored_cells_for_shard(shard)
    return follow_store


def tails(
    store: schemaless.Datastore, location: int = 0, column_name: str | None = None, limit: int = 100
) -> dict[int, schemaless.Page[schemaless.StoredCell]]:
    """Return the tails of all shards."""
    wanted = [Tail(shard, location, limit) for shard in range(store.shard_count)]
    return internals_of(store).follower_access.tails(wanted, column_name)


def test_tails_equal_the_pages_of_each_shard(store, put):
    """After any location, for all columns or one, up to the limit."""
    for shard in range(4):
        put(shard, 2, "OTHER", b"1")
        put(shard, 1, "BASE", b"2")
    for location in (0, 2, 4):
        for column_name in (None, "BASE", "OTHER"):
            found = tails(store, location, column_name)
            assert found == {
                shard: store.get_stored_cells_for_shard(shard, location, column_name=column_name) for shard in range(4)
            }, (location, column_name)
    (first,) = {page.next_location for page in tails(store, limit=4).values()}
    assert first == 4
    assert tails(store, 6) == {}, "what has nothing new is read alone: it may have lost what it had"


def test_a_shard_that_was_not_read_before_is_absent(follow_store, put):
    """The shard has to be verified first."""
    put(1)
    put(2)
    follow_store.get_stored_cells_for_shard(2)

    assert tails(follow_store).keys() == {2}


def test_a_gap_that_may_be_filled_keeps_its_shard_out_until_it_is_settled(store, put, by_hand, new_row):
    """The other shards are returned; a settled gap is passed."""
    shards = by_hand(store)
    row = next(row for row in iter(new_row, None) if store.shard_of(row) == 0)
    with shards.pool_for(shards.node_of(0)).connection() as late:
        late.execute(b"START TRANSACTION")
        late.execute(INSERT % (shards.database(0).encode(), row.hex.encode()))
        for shard in range(4):
            put(shard)
        assert tails(store).keys() == {1, 2, 3}
        late.execute(b"ROLLBACK")
    assert tails(store).keys() == {1, 2, 3}
    store.get_stored_cells_for_shard(0)

    assert [cell.added_id for cell in tails(store)[0].cells] == [1, 2, 3, 5, 6, 7]


@pytest.mark.guarantee("feed-order")
def test_ids_settled_after_the_read_do_not_count(store, put, by_hand, new_row, monkeypatch):
    """A gap that another thread has seen settled in the meantime is still a gap in rows read before that."""
    shards, late = by_hand(store), []
    pool = internals_of(store).shards.pool_for(internals_of(store).shards.node_of(1))
    run = pool.run
    inserts = [
        INSERT % (shards.database(1).encode(), row.hex.encode())
        for row in (new_row() for _ in range(60))
        if store.shard_of(row) == 1
    ]

    def filled_meanwhile(*arguments: Any, **named: Any) -> object:
        read = run(*arguments, **named)
        if late and named.get("shard") is not None:
            late.pop().execute(b"COMMIT")
            store.get_stored_cells_for_shard(1, 3)
        return read

    with shards.pool_for(shards.node_of(1)).connection() as connection:
        connection.execute(b"START TRANSACTION")
        connection.execute(inserts[0])
        connection.execute(b"ROLLBACK")
        connection.execute(b"START TRANSACTION")
        connection.execute(inserts[1])
        late.append(connection)
        put(1)
        monkeypatch.setattr(pool, "run", filled_meanwhile)
        found = tails(store, 3)

    assert 1 not in found
    assert len(tails(store, 3)[1].cells) == 4


def test_a_long_body_keeps_its_shard_out(store, put, monkeypatch):
    """The size of the reply is bounded whatever the bodies; bodies of other columns are not fetched."""
    monkeypatch.setattr(changes, "MAX_PAGE_BYTES", 4 * 100 * 1_000)
    put(3, 1, "OTHER", b'"%b"' % (b"x" * LONG))

    assert tails(store).keys() == {0, 1, 2}
    assert tails(store, column_name="BASE").keys() == {0, 1, 2, 3}


def test_a_missing_table_makes_its_servers_shards_be_read_alone(store, by_hand):
    """Reading the shard alone finds its new server."""
    shards = by_hand(store)
    database = shards.database(1).encode()
    others = {shard for shard in range(4) if shards.node_of(shard) != shards.node_of(1)}
    shards.execute(1, b"RENAME TABLE `%b`.cell TO `%b`.away" % (database, database))

    assert tails(store).keys() == others


def test_a_reply_of_something_else_is_not_used(store, monkeypatch):
    """As for every read."""
    send = Connection.rows
    strange: list[Exception] = []

    def mixed_up(self: Connection, sql: bytes, check: object = None) -> object:
        try:
            return send(self, sql.replace(b"added_id>2", b"added_id>1"), check)  # type: ignore[arg-type]
        except WrongReply as error:
            strange.append(error)
            raise

    monkeypatch.setattr(Connection, "rows", mixed_up)

    assert tails(store, 2) == {}
    assert "got added_id 2" in str(strange[0])
