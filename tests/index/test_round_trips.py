"""What a query sends, and that it gives the same rows where a server, a connection or a shard is not as it was."""

from __future__ import annotations

import uuid

import pytest

import schemaless
from schemaless.mysql.connection import Connection
from schemaless.mysql.errors import ConnectionLost
from schemaless.store.reading import Reader
from schemaless.store.tools import tools_of
from tests.index.test_indexes import CLIENT, trip

pytestmark = pytest.mark.mysql


@pytest.fixture
def index(kept, fresh_store, new_row) -> schemaless.Index:
    """An index with rows of one client in each shard, over both servers."""
    rows = [new_row() for _ in range(20)]
    cells = [schemaless.NewCell(row, "BASE", ref, trip(1 + n)) for n, row in enumerate(rows) for ref in (1, 2)]
    fresh_store.put_cells([*cells, *(schemaless.NewCell(row, "STATUS", 1, {"s": "open"}) for row in rows[::2])])
    kept.fill()
    assert {fresh_store.shard_of(row) for row in rows} == set(range(4))
    index = fresh_store.index("client_trips")
    assert len(index.query(client=CLIENT).rows) == 20
    return index


def found(index: schemaless.Index) -> list[tuple[uuid.UUID, int, bool]]:
    rows = index.query(client=CLIENT, order_by="at").rows
    assert [row.entry["at"].day for row in rows] == list(range(1, 21))
    return [(row.row_key, row.cells["BASE"].ref_key, "STATUS" in row.cells) for row in rows]


def test_a_query_asks_for_entries_and_then_both_servers_at_once(index, monkeypatch):
    """Three round trips, of which the last two are one in time: no reply is read before both servers have a query."""
    ask, steps = Connection._ask, []

    def noted(connection, sql, *, send=True, receive=True):
        steps.append((connection.node, send, receive))
        return ask(connection, sql, send=send, receive=receive)

    monkeypatch.setattr(Connection, "_ask", noted)
    rows = found(index)
    (_, *entries), *others = steps

    assert entries == [True, True]
    assert [(send, receive) for _, send, receive in others] == [(True, False)] * 2 + [(False, True)] * 2
    assert len({node for node, *_ in others}) == 2
    assert [(ref, status) for _, ref, status in rows] == [(2, True), (2, False)] * 10


def test_a_connection_that_is_lost_under_a_query_is_replaced(index, fresh_store, by_hand):
    """The query is sent again to that server."""
    expected = found(index)
    pools = {tools_of(fresh_store).shards.pool_for(c.primary) for c in tools_of(fresh_store).topology.clusters}
    for pool in pools:
        for connection in pool.idle:
            ((number,),) = connection.rows(b"SELECT CONNECTION_ID()")
            shards = by_hand(fresh_store)
            shards.pool_for(pool.node).run(lambda root, number=number: root.execute(b"KILL %d" % number))

    assert len(pools) == 2
    assert found(index) == expected


def test_rows_that_a_server_does_not_give_are_read_by_their_shards(index, monkeypatch):
    """As where a shard has gone elsewhere since: each row's shard is asked, wherever it is."""
    expected, asked = found(index), []
    latest = Reader.latest_stored

    def refuse(connection: Connection, sql: bytes, check: object = None) -> None:
        raise ConnectionLost("it is not here", node=connection.node)

    def noted(reader, keys, *rest):
        wanted = list(keys)
        asked.extend(wanted)
        return latest(reader, wanted, *rest)

    monkeypatch.setattr(Connection, "begin", refuse)
    monkeypatch.setattr(Reader, "latest_stored", noted)
    monkeypatch.setattr("schemaless.mysql.pool.NodePool.retry_pause_s", 0.0)

    assert found(index) == expected
    assert len(asked) == 40


def test_a_reply_with_a_row_that_was_not_asked_for_is_not_used(index, monkeypatch):
    """It is no answer: the shards are asked one by one."""
    expected, begin = found(index), Connection.begin
    other = (1, b"x" * 16, "BASE", 1, b"", "")
    monkeypatch.setattr(
        Connection, "begin", lambda self, sql, check: begin(self, sql, lambda rows: check([*rows, other]))
    )

    assert found(index) == expected
