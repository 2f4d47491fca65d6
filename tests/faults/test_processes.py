"""One datastore shared by threads and by forked children, and what is left when processes end."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import textwrap
import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import schemaless
from schemaless.local.description import LocalServer
from schemaless.store.datastore import Datastore
from schemaless.store.internals import internals_of
from schemaless.wire import pool as pools
from schemaless.wire.connection import Connection
from tests.faults.child import put_and_read
from tests.faults.kinds import ONE_KIND
from tests.faults.proxy import ANSWERING, SENDING, Fault, Proxy

pytestmark = [pytest.mark.mysql, ONE_KIND]

THREADS = 16


@pytest.fixture
def store(fresh_url: str) -> Iterator[Datastore]:
    """A new datastore, with fewer connections than there are threads."""
    with schemaless.connect(fresh_url, pool_size=4) as opened:
        yield opened


def in_threads(work: Callable[[int], object]) -> list[Any]:
    """Run ``work(number)`` in all threads, which begin together."""
    start = threading.Barrier(THREADS)

    def begin(number: int) -> object:
        start.wait()
        return work(number)

    with ThreadPoolExecutor(THREADS) as executor:
        return list(executor.map(begin, range(THREADS)))


def connection_id(connection: Connection) -> int:
    """Return the server's number of a connection."""
    return int(connection.rows(b"SELECT CONNECTION_ID()")[0][0])


def everything(store: Datastore) -> dict[schemaless.CellKey, object]:
    """Return each cell's body by its key, as the scans of all shards give it."""
    cells = [cell.decode() for shard in range(store.shard_count) for cell in store.scan_shard(shard)]
    found = {cell.key: cell.body for cell in cells}
    assert len(found) == len(cells)
    return found


# ---- threads


@pytest.mark.long
@pytest.mark.guarantee("threads-and-forks")
def test_threads_share_one_datastore(store, new_row):
    """Puts, batches, appends, gets and scans at once: each thread reads its own, and in the end all of it is there."""
    own = [[new_row() for _ in range(6)] for _ in range(THREADS)]
    common = new_row()

    def work(number: int) -> dict[schemaless.CellKey, object]:
        written: dict[schemaless.CellKey, object] = {}
        for turn, row in enumerate(own[number]):
            document = {"thread": number, "turn": turn}
            put = store.put_cell(row, "BASE", turn, document)
            assert put.created
            assert store.get_cell(row, "BASE", turn).added_id == put.added_id
            batch = store.put_cells([schemaless.NewCell(row, name, 1, [name, number, turn]) for name in ("A", "B")])
            appended = store.append_cell(common, "LOG", document)
            written |= {put.key: document, appended.key: document}
            written |= {part.key: [part.key.column_name, number, turn] for part in batch}
            assert {name: cell.body for name, cell in store.get_row(row).items()} == {
                "BASE": document,
                "A": ["A", number, turn],
                "B": ["B", number, turn],
            }
            seen = [cell.row_key for cell in store.scan_shard(store.shard_of(row))]
            assert row in seen
        latest = store.get_cells_latest((row, "BASE") for row in own[number])
        assert {cell.body["thread"] for cell in latest.values()} == {number}
        return written

    expected: dict[schemaless.CellKey, object] = {}
    for written in in_threads(work):
        assert not expected.keys() & written.keys()
        expected |= written

    assert everything(store) == expected
    assert [cell.ref_key for cell in store.get_versions(common, "LOG", descending=False)] == list(range(1, 97))


@pytest.mark.guarantee("threads-and-forks")
def test_threads_read_their_own_replies_while_connections_break(servers, new_row, monkeypatch):
    """Faults hit any process; no caller gets another's reply, and every error is the library's and true."""
    monkeypatch.setattr(pools.NodePool, "retry_pause_s", 0.002)
    chance = random.Random(16)
    proxy = Proxy([str(servers[0].socket)])
    own = [[new_row() for _ in range(8)] for _ in range(THREADS)]
    hows = ("rst", "fin", "half", "late", "delay")
    with schemaless.connect(schemaless.create("broken", 2, proxy.urls), pool_size=6) as store:
        proxy.arm(
            Fault(
                chance.choice(("INSERT", "SELECT")),
                chance.choice(SENDING + ANSWERING[:-1]),
                chance.choice(hows),
                chance.randint(0, 3),
                chance.choice((0, 0.005)),
                chance.getrandbits(30),
            )
            for _ in range(80)
        )

        def work(number: int) -> list[uuid.UUID]:
            written = []
            for row in own[number]:
                try:
                    put = store.put_cell(row, "BASE", 1, [number, str(row)])
                    written.append(row)
                    cell = store.get_cell(row, "BASE", 1)
                except (schemaless.OutcomeUnknown, schemaless.ServerUnavailable):
                    continue
                assert (cell.added_id, cell.body) == (put.added_id, [number, str(row)])
            return written

        written = {row for part in in_threads(work) for row in part}
        assert len(proxy.disarm()) < 60
        found = {key.row_key: body for key, body in everything(store).items()}

        assert written <= found.keys()
        assert all(found[row] == [number, str(row)] for number in range(THREADS) for row in own[number] if row in found)
    proxy.close()


# ---- forks


def in_child(work: Callable[[], object]) -> Callable[[], Any]:
    """Fork, and return what waits for the child and gives what ``work`` returned there."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        # A child that hangs ends, too.
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(120)
        status = 1
        try:
            os.write(writer, json.dumps(work()).encode())
            status = 0
        finally:
            os._exit(status)
    os.close(writer)

    def wait() -> Any:
        with os.fdopen(reader) as answers:
            said = answers.read()
        _, status = os.waitpid(child, 0)
        assert status == 0, f"the child ended with status {status}"
        return json.loads(said)

    return wait


@pytest.mark.guarantee("threads-and-forks")
def test_a_forked_child_and_its_parent_both_continue(store, new_row):
    """On connections of their own, by the server's numbers; the parent's are the same after the child has gone."""
    ours, theirs = new_row(), new_row()
    store.put_cell(ours, "BASE", 1, "before")
    before = internals_of(store).shards.run(store.shard_of(ours), connection_id)

    def child() -> list[object]:
        store.put_cell(theirs, "BASE", 1, "child")
        return [
            internals_of(store).shards.run(store.shard_of(ours), connection_id),
            store.get_cell(ours, "BASE", 1).body,
        ]

    there, read = in_child(child)()

    assert read == "before"
    assert there != before
    assert internals_of(store).shards.run(store.shard_of(ours), connection_id) == before
    assert store.get_cell(theirs, "BASE", 1).body == "child"


@pytest.mark.long
def test_children_and_interpreters_exit_quietly_and_close_nothing(fresh_url):
    """However a child ends, its parent's connections stay open, idle or in use; neither has to close anything."""
    script = textwrap.dedent(f"""
        import os, sys, threading, uuid, schemaless
        from schemaless.store.internals import internals_of
        def number(connection):
            return connection.rows(b"SELECT CONNECTION_ID()")[0][0]
        store = schemaless.connect({fresh_url!r})
        other = schemaless.connect({fresh_url!r})
        other.put_cell(uuid.uuid4(), "BASE", 1, 1)
        internals_of(store).shards.run(0, number)
        in_use, go_on = threading.Event(), threading.Event()
        def hold(connection):
            results.append(number(connection))
            in_use.set()
            go_on.wait()
            results.append(number(connection))
        results = []
        thread = threading.Thread(target=internals_of(store).shards.run, args=(0, hold))
        thread.start()
        in_use.wait()
        idle = internals_of(store).shards.run(0, number)
        for leave in (sys.exit, lambda: os._exit(0), store.close, lambda: None):
            child = os.fork()
            if child == 0:
                assert store.put_cell(uuid.uuid4(), "BASE", 1, 1).created
                leave()
                sys.exit()
            assert os.waitpid(child, 0)[1] == 0
        go_on.set()
        thread.join()
        pool = internals_of(store).shards.pool_for(internals_of(store).shards.node_of(0))
        with pool.connection() as one, pool.connection() as two:
            assert {{number(one), number(two)}} == {{idle, *results}}, (idle, results)
        assert len(results) == 2 and len(set(results)) == 1
        other.close()
        threading.Thread(target=internals_of(store).shards.rows, args=(0, b"SELECT SLEEP(2)"), daemon=True).start()
        print("as before")
    """)
    ended = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", "-c", script],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=Path(__file__).parents[2],
    )

    assert (ended.stderr, ended.stdout, ended.returncode) == ("", "as before\n", 0)


@pytest.mark.guarantee("threads-and-forks")
def test_a_fork_during_calls_of_other_threads_does_not_disturb_them(store, new_row):
    """Threads hold every connection and wait for more; the child neither hangs nor speaks on what they hold."""
    row = new_row()
    shard = store.shard_of(row)
    busy = threading.Barrier(5)

    def hold(connection: Connection) -> tuple[int, int]:
        number = connection_id(connection)
        busy.wait()
        connection.rows(b"SELECT SLEEP(0.3)")
        return number, connection_id(connection)

    with ThreadPoolExecutor(12) as threads:
        holders = [threads.submit(internals_of(store).shards.run, shard, hold) for _ in range(4)]
        busy.wait()
        waiters = [threads.submit(store.put_cell, new_row(), "BASE", 1, number) for number in range(8)]
        children = [in_child(lambda: store.put_cell(uuid.uuid4(), "CHILD", 1, 1).created) for _ in range(3)]

        assert [wait() for wait in children] == [True, True, True]
        assert all(first == last for first, last in (holder.result() for holder in holders))
        assert all(waiter.result().created for waiter in waiters)


def test_a_child_forked_while_threads_connect_does_not_hang(fresh_url, new_row):
    """A pool's first connection is opened under a lock; forks happen at every moment of that."""
    for _ in range(5):
        with schemaless.connect(fresh_url, pool_size=4) as store, ThreadPoolExecutor(4) as threads:
            puts = [threads.submit(store.put_cell, new_row(), "BASE", 1, 1) for _ in range(4)]
            created = in_child(lambda: store.put_cell(uuid.uuid4(), "CHILD", 1, 1).created)()

            assert created
            assert all(put.result().created for put in puts)


def test_the_server_notices_a_dead_parent_while_its_child_lives(servers: list[LocalServer], new_row):
    """Else what it had locked would stay locked: the child must not hold the parent's connections open."""
    row = new_row()
    url = schemaless.create("dies", 1, [servers[0].url])
    script = textwrap.dedent(f"""
        import os, sys, threading, time, schemaless
        from schemaless.store.internals import internals_of
        store = schemaless.connect({url!r})
        holds = threading.Event()
        def hold(connection):
            connection.execute(b"START TRANSACTION")
            connection.execute(b"INSERT INTO dies_0000.cell (row_key, column_name, ref_key, body) "
                               b"VALUES (x'{row.hex}', 'BASE', 1, '1')")
            holds.set()
            time.sleep(60)
        threading.Thread(target=internals_of(store).shards.run, args=(0, hold), daemon=True).start()
        holds.wait()
        if os.fork() == 0:
            print(os.getpid(), flush=True)
            time.sleep(60)
            os._exit(0)
        time.sleep(60)
    """)
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        try:
            parent.kill()
            with schemaless.connect(url, read_timeout_s=20) as store:
                put = store.put_cell(row, "BASE", 1, "mine")
                os.kill(child, 0)

                assert put.created
        finally:
            os.kill(child, signal.SIGKILL)


@pytest.mark.long
@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_multiprocessing_children_work_however_they_are_started(store, fresh_url, new_row, method):
    """The URL is what is handed on."""
    mine = [new_row() for _ in range(3)]
    store.put_cell(mine[0], "BASE", 1, "parent")
    with multiprocessing.get_context(method).Pool(1) as pool:
        read = pool.apply(put_and_read, (fresh_url, mine))
        pool.close()
        pool.join()

    assert read == {row: {"row": str(row)} for row in mine}
    assert {name: cell.body for name, cell in store.get_row(mine[0]).items()} == {
        "BASE": "parent",
        "CHILD": {"row": str(mine[0])},
    }
