"""Replies that belong to another statement: none should arrive, and yet every reply is checked."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable

import pytest

from schemaless import NewCell, Put, WrongReply
from schemaless.store.datastore import Datastore
from schemaless.store.internals import internals_of
from schemaless.wire.connection import Connection

pytestmark = [pytest.mark.mysql, pytest.mark.twice, pytest.mark.myrocks, pytest.mark.guarantee("reply-matches")]

CALLS: dict[str, Callable[[Datastore, uuid.UUID, int, int], object]] = {
    "get_cell": lambda store, row, shard, last: store.get_cell(row, "BASE", 1),
    "get_cell_latest": lambda store, row, shard, last: store.get_cell_latest(row, "BASE"),
    "get_cells_latest": lambda store, row, shard, last: store.get_cells_latest([(row, "BASE")]),
    "get_row": lambda store, row, shard, last: store.get_row(row),
    "get_rows": lambda store, row, shard, last: store.get_rows([row]),
    "get_versions": lambda store, row, shard, last: list(store.get_versions(row, "BASE")),
    "put_cell, there already": lambda store, row, shard, last: store.put_cell(row, "BASE", 1, "mine"),
    "append_cell": lambda store, row, shard, last: store.append_cell(row, "BASE", 2),
    "read_stored": lambda store, row, shard, last: list(internals_of(store).read_stored(shard, [last])),
    "iter_shard": lambda store, row, shard, last: list(store.iter_shard(shard, last - 1)),
}


def idle(store: Datastore) -> set[Connection]:
    """Return the connections that the next call may use."""
    internals = internals_of(store)
    pools = (internals.shards.pool_for(cluster.primary) for cluster in internals.topology.clusters)
    return set(itertools.chain.from_iterable(pool.idle for pool in pools))


@pytest.mark.parametrize("call", CALLS)
def test_rows_of_another_key_are_refused_and_their_connection_is_closed(store, new_row, monkeypatch, call):
    """Another cell is never returned, nor taken as proof that the requested cell exists."""
    other = new_row()
    shard = store.shard_of(other)
    mine = next(row for row in iter(new_row, None) if store.shard_of(row) == shard)
    first = store.put_cell(other, "BASE", 1, "other").added_id
    last = store.put_cell(mine, "BASE", 1, "mine").added_id
    send = Connection.ask
    used = []

    def mixed_up(connection: Connection, sql: bytes) -> object:
        used.append(connection)
        if sql.startswith(b"SELECT"):
            sql = sql.replace(mine.hex.encode(), other.hex.encode()).replace(b"IN (%d)" % last, b"IN (%d)" % first)
            sql = sql.replace(b"added_id>%d" % (last - 1), b"added_id>%d" % (first - 1))
        return send(connection, sql)

    monkeypatch.setattr(Connection, "ask", mixed_up)
    with pytest.raises(WrongReply, match=r"requested .*, got .*") as caught:
        CALLS[call](store, mine, shard, last)
    monkeypatch.undo()

    assert caught.value.shard == shard
    assert caught.value.retryable
    assert used[-1] not in idle(store)
    assert store.get_cell(mine, "BASE", 1).body == "mine"
    assert store.get_cell_latest(mine, "BASE").ref_key == 1


PUTS: dict[str, Callable[[Datastore, uuid.UUID], Put]] = {
    "put_cell": lambda store, row: store.put_cell(row, "BASE", 1, "mine"),
    "put_cells": lambda store, row: store.put_cells([NewCell(row, name, 1, "mine") for name in ("BASE", "TIP")])[0],
    "put_row": lambda store, row: store.put_row(row, {"BASE": "mine", "TIP": "mine"}, 1)["BASE"],
    "append_cell": lambda store, row: store.append_cell(row, "BASE", "mine"),
}


@pytest.mark.parametrize("instead", [b"DO 1", b"SELECT 1"])
@pytest.mark.parametrize("call", PUTS)
def test_a_write_counts_only_with_its_own_reply(store, new_row, monkeypatch, call, instead):
    """Another statement's reply leaves the outcome open, so the write is repeated and settled by what is stored."""
    row = new_row()
    send = Connection.ask
    used = []

    def mixed_up(connection: Connection, sql: bytes) -> object:
        if sql.startswith(b"INSERT") and not used:
            used.append(connection)
            sql = instead
        return send(connection, sql)

    monkeypatch.setattr(Connection, "ask", mixed_up)
    put = PUTS[call](store, row)
    monkeypatch.undo()

    assert used
    assert put.created
    assert store.get_cell(row, "BASE", 1).added_id == put.added_id
    assert used[0] not in idle(store)


def test_a_reply_without_columns_does_not_prove_absence(store, new_row, monkeypatch):
    """It is not a result of a query, not even an empty one."""
    row = new_row()
    store.put_cell(row, "BASE", 1, "mine")
    send = Connection.ask
    monkeypatch.setattr(Connection, "ask", lambda connection, sql: send(connection, b"DO 1"))
    with pytest.raises(WrongReply, match="without a result set"):
        store.get_cell(row, "BASE", 1)
