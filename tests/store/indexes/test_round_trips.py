"""Round trips of queries and workers, and their results after lost connections and failed servers."""

from __future__ import annotations

import random
import re
import threading
import time
import uuid
from types import SimpleNamespace

import pytest

import schemaless
from schemaless.store.indexes import registry, sql
from schemaless.store.indexes.entries import Entries
from schemaless.store.internals import internals_of
from schemaless.wire.connection import Connection
from schemaless.wire.errors import ConnectionLost
from tests.store.indexes.test_indexes import CLIENT, trip

pytestmark = pytest.mark.mysql


@pytest.fixture
def index(kept, fresh_store, new_row, monkeypatch) -> schemaless.Index:
    """An index with rows of one client in every shard, on both servers; the list of indexes stays known."""
    monkeypatch.setattr(registry, "LOOK_S", 1_000)
    rows = [next(row for row in iter(new_row, None) if fresh_store.shard_of(row) == n % 4) for n in range(20)]
    cells = [schemaless.NewCell(row, "BASE", ref, trip(1 + n)) for n, row in enumerate(rows) for ref in (1, 2)]
    fresh_store.put_cells([*cells, *(schemaless.NewCell(row, "STATUS", 1, {"s": "open"}) for row in rows[::2])])
    kept.fill()
    index = fresh_store.index("client_trips")
    assert len(index.query(client=CLIENT).rows) == 20
    return index


def found(index: schemaless.Index) -> list[tuple[uuid.UUID, int, bool]]:
    rows = index.query(client=CLIENT, order_by="at").rows
    assert [row.entry["at"].day for row in rows] == list(range(1, 21))
    return [(row.row_key, row.cells["BASE"].ref_key, "STATUS" in row.cells) for row in rows]


def test_a_query_asks_for_entries_and_then_both_servers_at_once(index, monkeypatch):
    """Three round trips, the last two at the same time: no reply is read before both servers have their query."""
    ask, steps = Connection.ask, []

    def noted(connection, sql, *, send=True, receive=True):
        steps.append((connection.node, send, receive))
        return ask(connection, sql, send=send, receive=receive)

    monkeypatch.setattr(Connection, "ask", noted)
    rows = found(index)
    (_, *entries), *others = steps

    assert entries == [True, True]
    assert [(send, receive) for _, send, receive in others] == [(True, False)] * 2 + [(False, True)] * 2
    assert len({node for node, *_ in others}) == 2
    assert [(ref, status) for _, ref, status in rows] == [(2, True), (2, False)] * 10


def test_a_connection_that_is_lost_under_a_query_is_replaced(index, fresh_store, by_hand):
    """The query is sent to that server again."""
    expected = found(index)
    pools = {internals_of(fresh_store).shards.pool_for(c.primary) for c in internals_of(fresh_store).topology.clusters}
    for pool in pools:
        for connection in pool.idle:
            ((number,),) = connection.rows(b"SELECT CONNECTION_ID()")
            shards = by_hand(fresh_store)
            shards.pool_for(pool.node).run(lambda root, number=number: root.execute(b"KILL %d" % number))

    assert len(pools) == 2
    assert found(index) == expected


def test_rows_that_a_server_does_not_return_are_read_shard_by_shard(index, fresh_store, monkeypatch):
    """A shard may have moved: each row's shard is queried wherever it is now."""
    expected, queried = found(index), []
    shards = internals_of(fresh_store).shards
    rows, rows_of_shard = Connection.rows, shards.rows

    def refuse_several_shards(connection: Connection, sql: bytes, *args: object, **named: object) -> object:
        if len(set(re.findall(rb"`\w+_(\d{4})`", sql))) > 1:
            raise ConnectionLost("it is not here", node=connection.node)
        return rows(connection, sql, *args, **named)

    def recorded(shard, *args, **named):
        queried.append(shard)
        return rows_of_shard(shard, *args, **named)

    monkeypatch.setattr(Connection, "rows", refuse_several_shards)
    monkeypatch.setattr(shards, "rows", recorded)
    monkeypatch.setattr("schemaless.wire.pool.NodePool.retry_pause_s", 0.0)

    assert found(index) == expected
    assert queried[0] == fresh_store.shard_of(CLIENT), "the entries"
    assert sorted(queried[1:]) == [0, 1, 2, 3]


def test_a_reply_with_a_row_that_was_not_asked_for_is_not_used(index, monkeypatch):
    """The reply is rejected, and the shards are queried one by one."""
    expected, begin = found(index), Connection.begin
    other = (1, b"x" * 16, "BASE", 1, b"", "")
    monkeypatch.setattr(
        Connection, "begin", lambda self, sql, check: begin(self, sql, lambda rows: check([*rows, other]))
    )

    assert found(index) == expected


def new_cells(store, new_row, count: int) -> dict[int, uuid.UUID]:
    """Put a cell into each of ``count`` shards, of a client whose entries are in the same shard; return the clients."""
    clients = {}
    while len(clients) < count:
        client = new_row()
        row = next(row for row in iter(new_row, None) if store.shard_of(row) == store.shard_of(client))
        if store.shard_of(client) not in clients:
            clients[store.shard_of(client)] = client
            store.put_cell(row, "BASE", 1, trip(1, client))
    return clients


def writes(monkeypatch) -> list[tuple[str, bytes]]:
    """Record the statements about entries that are executed from now on, with their servers."""
    execute, sent = Connection.execute, []

    def noted(connection, sql):
        if b"`.index_" in sql or not sql.startswith((b"UPDATE", b"SET", b"INSERT", b"DELETE")):
            sent.append((connection.node, bytes(sql[:6])))
        return execute(connection, sql)

    monkeypatch.setattr(Connection, "execute", noted)
    return sent


def test_new_cells_of_many_shards_take_each_step_together(kept, fresh_store, new_row, monkeypatch):
    """One query for the versions of all of them, and one transaction per server, on both at once."""
    kept.fill()
    clients = new_cells(fresh_store, new_row, 4)
    # Writing to one server after the other would never pass the barrier.
    at_both, upsert = threading.Barrier(2), sql.upsert_entries
    monkeypatch.setattr(sql, "upsert_entries", lambda *args: at_both.wait(120) >= 0 and upsert(*args))
    refs, asked = sql.select_refs, []
    monkeypatch.setattr(sql, "select_refs", lambda *args: asked.append(args[0]) or refs(*args))
    begin, begun = Connection.begin, []
    monkeypatch.setattr(Connection, "begin", lambda self, *args: begun.append(self.node) or begin(self, *args))
    sent = writes(monkeypatch)
    kept.catch_up()
    monkeypatch.undo()

    assert len(asked) == 4, "each shard once"
    assert len(begun) == len(set(begun)) == 2
    by_server: dict[str, list[bytes]] = {}
    for node, what in sent:
        by_server.setdefault(node, []).append(what)
    assert list(by_server.values()) == [[b"START ", b"INSERT", b"INSERT", b"COMMIT"]] * 2
    index = fresh_store.index("client_trips")
    assert [len(index.query(client=client).rows) for client in clients.values()] == [1] * 4


def test_a_single_entry_is_written_without_a_transaction_around_it(kept, fresh_store, new_row, monkeypatch):
    """A single statement is a transaction by itself and needs no COMMIT."""
    kept.fill()
    ((_, client),) = new_cells(fresh_store, new_row, 1).items()
    sent = writes(monkeypatch)
    kept.catch_up()

    assert [what for _, what in sent] == [b"INSERT"]
    assert len(fresh_store.index("client_trips").query(client=client).rows) == 1


def test_a_failing_shard_delays_no_other(kept, fresh_store, new_row, monkeypatch):
    """Together they fail, so each is handled alone; the failing shard waits, with its reason."""
    kept.fill()
    worker = kept.worker()
    clients = new_cells(fresh_store, new_row, 4)
    writes, pages_of = Entries.writes, []

    def odd(self, pages):
        pages_of.append(sorted(pages))
        if 2 in pages:
            raise ValueError("an odd page")
        return writes(self, pages)

    monkeypatch.setattr(Entries, "writes", odd)
    worker.schedule.poll_now()
    worker.turn()
    waiting = {pair[1]: lease.wait.reason for pair, lease in worker.leases.held.items() if lease.wait.until_s}
    monkeypatch.undo()
    index = fresh_store.index("client_trips")
    there = {shard for shard, client in clients.items() if index.query(client=client).rows}

    assert pages_of == [[0, 1, 2, 3], [0], [1], [2], [3]]
    assert waiting == {2: "ValueError: an odd page"}
    assert there == {0, 1, 3}


def test_work_done_in_a_batch_counts_however_long_it_took(kept, fresh_store, new_row, monkeypatch):
    """Otherwise a slow machine would repeat it for ever, because each turn would end before it was recorded."""
    kept.fill()
    worker = kept.worker()
    new_cells(fresh_store, new_row, 4)
    writes = Entries.writes

    def slow(self, pages):
        clock = SimpleNamespace(monotonic=lambda: time.monotonic() + 10_000, thread_time=time.thread_time)
        monkeypatch.setattr("schemaless.store.followers.dispatch.time", clock)
        return writes(self, pages)

    monkeypatch.setattr(Entries, "writes", slow)
    worker.schedule.poll_now()
    worker.turn()
    monkeypatch.undo()

    assert [lease.reached - lease.top for lease in worker.leases.held.values()] == [0] * 4
    assert all(lease.reached for lease in worker.leases.held.values())


@pytest.mark.twice
def test_cells_of_long_rows_read_no_more_entries_than_those_of_short_ones(kept, fresh_store, new_row, by_hand):
    """Versions come in any order, and each belongs to another client than the one before; on two servers."""
    rows = [next(row for row in iter(new_row, None) if fresh_store.shard_of(row) == shard) for shard in range(4)]
    clients = [new_row() for _ in range(3)]
    refs = random.Random(5).sample(range(400), 400)
    fresh_store.put_cells(
        [schemaless.NewCell(row, "BASE", ref, trip(1, clients[ref % 3])) for ref in refs for row in rows]
    )
    kept.fill()
    kept.catch_up()

    index = fresh_store.index("client_trips")
    found = [{row.row_key for row in index.query(client=client).rows} for client in clients]
    assert found == [set(rows), set(), set()]
    database = internals_of(fresh_store).shards.database(0)
    cells = [cell for cell in fresh_store.get_stored_cells_for_shard(0, limit=1000).cells if cell.row_key == rows[0]]

    def read(connection: Connection) -> int:
        connection.execute(b"FLUSH STATUS")
        ids = [cell.added_id for cell in cells]
        selected = connection.rows(sql.select_refs(database, ["BASE"], ids))
        far = [cell for cell in cells if (cell.added_id, sql.NOT_NEAR) in {(row[0], row[2]) for row in selected}]
        previous = connection.rows(sql.select_previous(database, far))
        known = {int(row[0]): row[2] for row in (*selected, *previous)}
        assert {known[cell.added_id] for cell in cells} == {cell.ref_key - 1 for cell in cells}
        return sum(int(value) for _, value in connection.rows(b"SHOW SESSION STATUS LIKE 'Handler_read%'"))

    assert by_hand(fresh_store).run(0, read) / len(cells) < 40
