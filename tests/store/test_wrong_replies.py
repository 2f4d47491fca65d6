"""A reply that is another statement's: the library lets none come so far, and looks at each all the same."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable

import pytest

from schemaless import WrongReply
from schemaless.mysql.connection import Connection
from schemaless.store.datastore import Datastore
from schemaless.store.tools import tools_of

pytestmark = pytest.mark.mysql

CALLS: dict[str, Callable[[Datastore, uuid.UUID, int, int], object]] = {
    "get_cell": lambda store, row, shard, last: store.get_cell(row, "BASE", 1),
    "get_cell_latest": lambda store, row, shard, last: store.get_cell_latest(row, "BASE"),
    "get_cells_latest": lambda store, row, shard, last: store.get_cells_latest([(row, "BASE")]),
    "get_row": lambda store, row, shard, last: store.get_row(row),
    "get_versions": lambda store, row, shard, last: list(store.get_versions(row, "BASE")),
    "put_cell, there already": lambda store, row, shard, last: store.put_cell(row, "BASE", 1, "mine"),
    "append_cell": lambda store, row, shard, last: store.append_cell(row, "BASE", 2),
    "read_stored": lambda store, row, shard, last: list(tools_of(store).read_stored(shard, [last])),
    "iter_shard": lambda store, row, shard, last: list(store.iter_shard(shard, last - 1)),
}


@pytest.mark.parametrize("call", CALLS)
def test_rows_of_another_key_are_refused_and_their_connection_is_closed(store, new_row, monkeypatch, call):
    """Nothing of another's cell is ever returned, nor taken for proof that one's own is there."""
    other = new_row()
    shard = store.shard_of(other)
    mine = next(row for row in iter(new_row, None) if store.shard_of(row) == shard)
    first = store.put_cell(other, "BASE", 1, "other").added_id
    last = store.put_cell(mine, "BASE", 1, "mine").added_id
    send = Connection._ask
    used = []

    def mixed_up(connection: Connection, sql: bytes) -> object:
        used.append(connection)
        if sql.startswith(b"SELECT"):
            sql = sql.replace(mine.hex.encode(), other.hex.encode()).replace(b"IN (%d)" % last, b"IN (%d)" % first)
            sql = sql.replace(b"added_id>%d" % (last - 1), b"added_id>%d" % (first - 1))
        return send(connection, sql)

    monkeypatch.setattr(Connection, "_ask", mixed_up)
    with pytest.raises(WrongReply, match=r"asked for .*, got .*; nothing of it was used") as caught:
        CALLS[call](store, mine, shard, last)
    monkeypatch.undo()

    assert caught.value.shard == shard
    assert caught.value.retryable
    pools = (tools_of(store).shards.pool_for(cluster.primary) for cluster in tools_of(store).topology.clusters)
    assert used[-1] not in itertools.chain.from_iterable(pool.idle for pool in pools)
    assert store.get_cell(mine, "BASE", 1).body == "mine"
    assert store.get_cell_latest(mine, "BASE").ref_key == 1
