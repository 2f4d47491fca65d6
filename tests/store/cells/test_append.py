"""``append_cell``: writes the next version exactly once, despite concurrent writers and lost replies."""

from __future__ import annotations

import pickle
import random
import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

import schemaless
from schemaless.base.keys import MAX_REF_KEY
from schemaless.cell import CellKey
from schemaless.local.description import LocalServer
from schemaless.store.internals import internals_of
from schemaless.wire.connection import Connection
from schemaless.wire.driver import Reply
from schemaless.wire.errors import ConnectionLost
from schemaless.wire.pool import NodePool
from tests.faults.proxy import ANSWERING, SENDING, Fault, Proxy

pytestmark = pytest.mark.twice


def test_append_starts_at_1_and_continues_after_the_latest(store: schemaless.Datastore, row: uuid.UUID) -> None:
    """The latest version is the one with the highest ref_key in the column, whenever it was written."""
    first = store.append_cell(row, "STATUS", {"state": "begun"})
    assert first.key == CellKey(row, "STATUS", 1)
    assert first.created
    store.put_cell(row, "STATUS", 7, "put")
    store.put_cell(row, "STATUS", 3, "put late")
    store.put_cell(row, "OTHER", 90, "of another column")
    last = store.append_cell(row, "STATUS", None)
    assert last.key.ref_key == 8
    found = store.get_cell_latest(row, "STATUS")
    assert found is not None
    assert (found.ref_key, found.body, found.added_id) == (8, None, last.added_id)


def test_append_continues_at_1_after_0(store: schemaless.Datastore, row: uuid.UUID) -> None:
    """ref_key 0 is a normal version."""
    store.put_cell(row, "STATUS", 0, "a list's first position")
    assert store.append_cell(row, "STATUS", "next").key.ref_key == 1


def test_the_same_body_twice_is_two_cells(store: schemaless.Datastore, row: uuid.UUID) -> None:
    """Unlike a put, an append of an equal body is not a repetition."""
    puts = [store.append_cell(row, "STATUS", {"same": True}, codec="json+zlib") for _ in range(3)]
    assert [put.key.ref_key for put in puts] == [1, 2, 3]
    assert len({put.added_id for put in puts}) == 3


def test_append_refuses_before_any_io(store: schemaless.Datastore, row: uuid.UUID) -> None:
    """Invalid keys and bodies are refused as by put_cell."""
    with pytest.raises(schemaless.InvalidCell, match="column_name"):
        store.append_cell(row, "no spaces", {})
    with pytest.raises(schemaless.InvalidBody, match="bytes"):
        store.append_cell(row, "STATUS", {"raw": b"x"})
    with pytest.raises(schemaless.InvalidCell, match="row_key"):
        store.append_cell("text", "STATUS", {})  # type: ignore[arg-type]
    for if_latest in (-1, MAX_REF_KEY, MAX_REF_KEY + 1, True, "1"):
        with pytest.raises(schemaless.InvalidCell, match="if_latest"):
            store.append_cell(row, "STATUS", {}, if_latest=if_latest)  # type: ignore[arg-type]


def test_append_after_the_highest_ref_key_is_refused(store: schemaless.Datastore, row: uuid.UUID) -> None:
    """There is no version after 2^63 - 1, and nothing is written."""
    store.put_cell(row, "STATUS", MAX_REF_KEY, "the end")
    with pytest.raises(schemaless.InvalidCell, match="ref_key"):
        store.append_cell(row, "STATUS", "one more")
    assert [cell.body for cell in store.get_versions(row, "STATUS")] == ["the end"]


@pytest.mark.guarantee("append-once")
def test_many_appenders_of_one_row_take_a_ref_key_each(store: schemaless.Datastore, row: uuid.UUID) -> None:
    """Eight threads append to one row: no ref_key is skipped or used twice."""
    start = threading.Barrier(8)

    def appender(number: int) -> list[schemaless.Put]:
        start.wait()
        return [store.append_cell(row, "STATUS", number) for _ in range(6)]

    with ThreadPoolExecutor(8) as threads:
        puts = [put for done in threads.map(appender, range(8)) for put in done]
    assert sorted(put.key.ref_key for put in puts) == list(range(1, 49))
    stored = {cell.ref_key: (cell.body, cell.added_id) for cell in store.get_versions(row, "STATUS")}
    assert stored == {put.key.ref_key: (position // 6, put.added_id) for position, put in enumerate(puts)}


class _Faults:
    """Loses the replies to chosen statements, before or after the server has received them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, losses: list[tuple[bytes, bool]]) -> None:
        self.losses = losses
        execute = Connection.execute

        def faulty(connection: Connection, sql: bytes) -> Reply:
            if self.losses and sql.startswith(self.losses[0][0]):
                _, arrives = self.losses.pop(0)
                if arrives:
                    execute(connection, sql)
                raise ConnectionLost("lost for the test (error 2013)", node=connection.node, code=2013)
            return execute(connection, sql)

        monkeypatch.setattr(Connection, "execute", faulty)


@pytest.mark.guarantee("append-once")
@pytest.mark.parametrize("arrives", [True, False])
def test_a_lost_commit_reply_is_settled_by_the_added_id(
    store: schemaless.Datastore, row: uuid.UUID, monkeypatch: pytest.MonkeyPatch, arrives: bool
) -> None:
    """Whether or not the COMMIT arrived, exactly one cell is created and its Put is correct."""
    store.append_cell(row, "STATUS", "same")
    faults = _Faults(monkeypatch, [(b"COMMIT", arrives)])
    put = store.append_cell(row, "STATUS", "same")
    assert not faults.losses
    assert put.key.ref_key == 2
    assert [(cell.ref_key, cell.added_id) for cell in store.get_versions(row, "STATUS", limit=1)] == [(2, put.added_id)]


@pytest.mark.parametrize("statement", [b"START", b"INSERT"])
@pytest.mark.parametrize("arrives", [True, False])
def test_a_connection_lost_before_commit_is_rolled_back_and_repeated(
    store: schemaless.Datastore, row: uuid.UUID, monkeypatch: pytest.MonkeyPatch, statement: bytes, arrives: bool
) -> None:
    """The transaction that was open on the lost connection leaves nothing behind."""
    faults = _Faults(monkeypatch, [(statement, arrives)])
    put = store.append_cell(row, "STATUS", "same")
    assert not faults.losses
    assert [cell.added_id for cell in store.get_versions(row, "STATUS")] == [put.added_id]


@pytest.mark.guarantee("append-once")
def test_an_equal_body_of_another_writer_is_not_mistaken_for_this_call(
    store: schemaless.Datastore, datastore_url: str, row: uuid.UUID, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The COMMIT never arrives, and another writer appends an equal body: comparing bodies would lose one."""
    faults = _Faults(monkeypatch, [(b"COMMIT", False)])
    run = internals_of(store).shards.run
    beaten = []

    def beat(*arguments, **options):
        def operation(connection: Connection) -> schemaless.Put:
            if not faults.losses and not beaten:
                beaten.append(True)
                with schemaless.connect(datastore_url) as other:
                    other.append_cell(row, "STATUS", "same")
            return arguments[1](connection)

        return run(arguments[0], operation, **options)

    monkeypatch.setattr(internals_of(store).shards, "run", beat)
    put = store.append_cell(row, "STATUS", "same")
    monkeypatch.undo()
    assert beaten
    assert put.key.ref_key == 2
    assert [cell.body for cell in store.get_versions(row, "STATUS")] == ["same", "same"]


@pytest.mark.guarantee("append-once")
def test_a_commit_that_stays_open_names_its_key(
    store: schemaless.Datastore, row: uuid.UUID, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OutcomeUnknown names the cell, and put_cell settles the outcome."""
    _Faults(monkeypatch, [(b"COMMIT", True), *[(b"START", False)] * 4])
    with pytest.raises(schemaless.OutcomeUnknown) as caught:
        store.append_cell(row, "STATUS", "once")
    monkeypatch.undo()
    error = pickle.loads(pickle.dumps(caught.value))
    assert error.key == CellKey(row, "STATUS", 1)
    assert not error.retryable
    assert not store.put_cell(*error.key, "once").created
    assert len(list(store.get_versions(row, "STATUS"))) == 1


def test_without_a_commit_nothing_was_written_and_it_says_so(
    store: schemaless.Datastore, row: uuid.UUID, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If no COMMIT was sent, the outcome is known."""
    _Faults(monkeypatch, [(b"INSERT", True)] * 5)
    with pytest.raises(schemaless.ServerUnavailable, match="nothing was written"):
        store.append_cell(row, "STATUS", "never")
    monkeypatch.undo()
    assert store.get_cell_latest(row, "STATUS") is None


@pytest.mark.guarantee("append-conditional")
def test_a_higher_version_that_is_put_before_the_insert_is_noticed(
    store: schemaless.Datastore, row: uuid.UUID, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The unique key of the new version does not notice it."""
    store.append_cell(row, "STATUS", "first", if_latest=0)
    execute, waiting = Connection.execute, [9]

    def beaten(connection: Connection, sql: bytes) -> Reply:
        if waiting and sql.startswith(b"START"):
            store.put_cell(row, "STATUS", waiting.pop(), "put")
        return execute(connection, sql)

    monkeypatch.setattr(Connection, "execute", beaten)
    with pytest.raises(schemaless.LatestChanged, match="is 9, not 1; nothing was written") as caught:
        store.append_cell(row, "STATUS", "second", if_latest=1)
    monkeypatch.undo()
    error = pickle.loads(pickle.dumps(caught.value))
    assert (error.row_key, error.column_name, error.if_latest, error.latest) == (row, "STATUS", 1, 9)
    assert error.shard == store.shard_of(row)
    assert [cell.ref_key for cell in store.get_versions(row, "STATUS")] == [9, 1]
    assert store.append_cell(row, "STATUS", "third", if_latest=error.latest).key.ref_key == 10


@contextmanager
def _cut_at_random(servers: list[LocalServer], name: str, seed: int) -> Iterator[schemaless.Datastore]:
    """Open a datastore of one shard whose connections are cut at random places."""
    chance = random.Random(seed)
    proxy = Proxy([str(servers[0].socket)])
    try:
        with schemaless.connect(schemaless.create(name, 1, proxy.urls), pool_size=40) as store:
            store.column_names(uuid.uuid4())
            proxy.arm(
                Fault(
                    chance.choice(["SELECT", "START TRANSACTION", "INSERT", "COMMIT", "COMMIT"]),
                    chance.choice(SENDING + ANSWERING),
                    chance.choice(["rst", "fin"]),
                    seed=chance.getrandbits(32),
                )
                for _ in range(20)
            )
            yield store
            assert len(proxy.struck) >= 10
            proxy.disarm()
    finally:
        proxy.close()


@pytest.mark.guarantee("append-conditional")
def test_each_version_has_one_winner_among_40_writers_with_cut_connections(
    servers: list[LocalServer], prefix: str, row: uuid.UUID, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was acknowledged is stored, and what is stored was acknowledged or left open by name."""
    monkeypatch.setattr(NodePool, "retry_pause_s", 0.002)
    acknowledged: list[tuple[int, int, str]] = []
    left_open: list[tuple[CellKey | None, str]] = []
    failed: set[type] = set()

    def append(store: schemaless.Datastore, latest: int, body: str) -> None:
        try:
            put = store.append_cell(row, "STATUS", body, if_latest=latest)
            acknowledged.append((latest + 1, put.added_id, body))
        except schemaless.OutcomeUnknown as unknown:
            left_open.append((unknown.key, body))
        except (schemaless.LatestChanged, schemaless.ServerUnavailable, schemaless.ServerTimeout) as error:
            failed.add(type(error))

    def writer(store: schemaless.Datastore, number: int) -> None:
        for attempt in range(1_000):
            try:
                cell = store.get_cell_latest(row, "STATUS")
            except (schemaless.ServerUnavailable, schemaless.ServerTimeout):
                continue
            latest = 0 if cell is None else cell.ref_key
            if latest >= 12:
                break
            append(store, latest, f"writer {number}, attempt {attempt}")

    with _cut_at_random(servers, f"{prefix}winners", 5) as store:
        with ThreadPoolExecutor(40) as threads:
            list(threads.map(lambda number: writer(store, number), range(40)))
        stored = [(cell.ref_key, cell.added_id, cell.body) for cell in store.get_versions(row, "STATUS")]
    assert [ref_key for ref_key, _, _ in reversed(stored)] == list(range(1, len(stored) + 1))
    assert set(acknowledged) <= set(stored)
    assert len({ref_key for ref_key, _, _ in acknowledged}) == len(acknowledged)
    assert {(CellKey(row, "STATUS", ref_key), body) for ref_key, _, body in set(stored) - set(acknowledged)} <= set(
        left_open
    )
    assert schemaless.LatestChanged in failed
