"""What is particular to the asyncio client: its event loop, forks, slots, locks, and that nothing blocks the loop."""

from __future__ import annotations

import asyncio
import inspect
import itertools
import socket
import ssl
import subprocess
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import uvloop
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import schemaless
import schemaless.aio
from schemaless import InvalidInput, NewCell, ServerTimeout, ServerUnavailable, WrongEventLoop
from schemaless.aio.bridge import Bridge, wait
from schemaless.aio.slots import AsyncSlots
from schemaless.monitoring import telemetry
from schemaless.ops import coroutines
from schemaless.ops.erasure.job import finish
from schemaless.store.cells.column_codecs import ColumnSetting, set_column
from schemaless.store.cells.dictionary_replicas import DictionaryReplica
from schemaless.store.internals import internals_of
from schemaless.wire import attempts
from schemaless.wire import pool as pool_module
from schemaless.wire.connection_slots import Slot
from tests.accounts import Accounts
from tests.aio.cancelling import check_pools, drain
from tests.dictionaries import COLUMN, document, kept

LOOPS = pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])


@pytest.mark.mysql
@LOOPS
def test_many_tasks_share_few_connections(fresh_url: str, new_row: Callable[[], uuid.UUID], run: Any) -> None:
    """200 tasks over two connections to each server: every call gets its own reply, and all connections are kept."""
    rows = [new_row() for _ in range(200)]

    async def main() -> None:
        async with await schemaless.aio.connect(fresh_url, pool_size=2) as store:

            async def one(row: uuid.UUID) -> None:
                body = {"row": str(row), "text": "x" * (row.int % 30_000)}
                assert (await store.put_cell(row, "BASE", 1, body)).created
                cell = await store.get_cell(row, "BASE", 1)
                assert cell is not None
                assert cell.body == body

            await asyncio.gather(*map(one, rows))
            found = await store.get_cells_latest([(row, "BASE") for row in rows])
            assert {row for row, _ in found} == set(rows)
            check_pools(store)
            pools = internals_of(store).shards.pools
            assert {len(pool.idle) for pool in pools._pools.values()} == {2}

    run(main())


def test_help_names_the_method_that_describes_the_arguments() -> None:
    """The docstrings of the asynchronous methods have only a summary."""
    described = inspect.getdoc(schemaless.aio.AsyncDatastore.append_cell) or ""
    assert described.endswith("Arguments, results and errors are those of ``Datastore.append_cell``.")


@pytest.mark.mysql
def test_connect_takes_the_url_from_the_environment(fresh_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In both clients; without it, the error names the variable. An iterator that is awaited says how it is used."""

    async def main() -> None:
        async with await schemaless.aio.connect() as store:
            await store.put_cell(uuid.UUID(int=1), "BASE", 1, {})
            with pytest.raises(TypeError, match=r"get_versions\(\) returns an asynchronous iterator.*async for"):
                await store.get_versions(uuid.UUID(int=1), "BASE")  # type: ignore[misc]
            with pytest.raises(TypeError, match=r"get_versions\(\) returns .*'for' or list\(\); use 'async for"):
                list(store.get_versions(uuid.UUID(int=1), "BASE"))  # type: ignore[call-overload]

    monkeypatch.setenv("SCHEMALESS_URL", fresh_url)
    asyncio.run(main())
    with schemaless.connect() as store:
        assert store.get_cell(uuid.UUID(int=1), "BASE", 1) is not None
    monkeypatch.setenv("SCHEMALESS_URL", "")
    with pytest.raises(schemaless.InvalidInput, match="or set SCHEMALESS_URL"):
        schemaless.connect()


@pytest.mark.guarantee("aio-one-loop")
@pytest.mark.mysql
@LOOPS
def test_another_event_loop_is_refused(fresh_url: str, run: Any) -> None:
    """Both in this thread and in another one: nothing is sent, and the first loop still works."""

    async def main() -> None:
        async with await schemaless.aio.connect(fresh_url) as store:

            async def use() -> None:
                with pytest.raises(WrongEventLoop, match="belongs to another event loop"):
                    await store.get_row(uuid.UUID(int=1))

            await asyncio.to_thread(run, use())
            assert await store.get_row(uuid.UUID(int=1)) == {}
        return store

    store = run(main())

    async def later() -> None:
        with pytest.raises(WrongEventLoop):
            await store.close()
        with pytest.raises(WrongEventLoop):
            await anext(store.iter_shard(0))

    run(later())


_FORKING = """
import asyncio, os, sys, uuid
import schemaless.aio

async def begin():
    store = await schemaless.aio.connect(sys.argv[1])
    await store.put_cell(uuid.UUID(int=1), "FORK", 1, "parent")
    return store

async def in_child(store):
    assert (await store.get_cell(uuid.UUID(int=1), "FORK", 1)).body == "parent"
    await store.put_cell(uuid.UUID(int=1), "FORK", 2, "child")
    await store.close()

async def end(store):
    assert [cell.body async for cell in store.get_versions(uuid.UUID(int=1), "FORK")] == ["child", "parent"]
    await store.close()

loop = asyncio.new_event_loop()
store = loop.run_until_complete(begin())
child = os.fork()
if not child:
    asyncio.run(in_child(store))
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
loop.run_until_complete(end(store))
loop.close()
"""


@pytest.mark.guarantee("aio-one-loop")
@pytest.mark.mysql
def test_a_forked_child_has_its_own_loop_and_connections(fresh_url: str) -> None:
    """The child opens its own connections, and the parent keeps using its loop and connections."""
    command = [sys.executable, "-W", "error", "-c", _FORKING, fresh_url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)

    assert (done.returncode, done.stderr) == (0, "")


_IMPORTING = """
import asyncio, sys, threading, uuid, schemaless.aio

class Imports:
    def find_spec(self, name, path=None, target=None):
        if threading.current_thread() is threading.main_thread():
            print(name)

async def main():
    async with await schemaless.aio.connect(sys.argv[1]) as store:
        row = uuid.uuid4()
        await store.put_cell(row, "ARROW", 1, {"total": 0.5})
        await store.get_cell_latest(row, "ARROW")
        sys.meta_path.insert(0, Imports())
        rows = [row async for batch in store.arrow("ARROW", fields=["total:float"]) for row in batch.to_pylist()]
        assert rows[0]["total"] == 0.5

asyncio.run(main())
"""


@pytest.mark.mysql
def test_pyarrow_is_not_imported_on_the_loop(fresh_url: str) -> None:
    """The import takes longer than other tasks can wait."""
    command = [sys.executable, "-W", "error", "-c", _IMPORTING, fresh_url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)

    assert (done.returncode, done.stderr, done.stdout) == (0, "", "")


@pytest.mark.once
def test_a_server_that_is_away_is_an_error_as_in_the_synchronous_client(tmp_path: Any) -> None:
    """With the same text, for a socket and for a port."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    for url in (f"mysql://root@/trips?unix_socket={tmp_path}/none.sock", f"mysql://root@127.0.0.1:{port}/trips"):
        with pytest.raises(ServerUnavailable) as blocking:
            schemaless.connect(url)
        with pytest.raises(ServerUnavailable) as suspended:
            asyncio.run(schemaless.aio.connect(url))
        assert str(suspended.value) == str(blocking.value)


@pytest.mark.once
def test_a_server_that_never_answers_times_out() -> None:
    """The greeting does not come: connect_timeout_s ends the wait, by a timer of the loop."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"mysql://root@127.0.0.1:{silent.getsockname()[1]}/trips"
        with pytest.raises(ServerUnavailable, match="timed out"):
            asyncio.run(schemaless.aio.connect(url, connect_timeout_s=0.05))


@pytest.mark.mysql
def test_a_reply_that_does_not_come_in_time_is_an_error(
    fresh_url: str, by_hand: Any, row: uuid.UUID, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A write that waits for a lock longer than read_timeout_s is undecided, and settled by the next one."""
    monkeypatch.setattr(attempts, "ATTEMPTS", 2)
    monkeypatch.setattr(pool_module, "PROBE_S", 60)

    async def main() -> None:
        async with await schemaless.aio.connect(fresh_url) as store, await schemaless.aio.connect(fresh_url) as patient:
            shard = await store.shard_of(row)
            # Not while it connects to the catalog: a busy machine may need longer.
            pool = internals_of(store).shards.pool_for(internals_of(store).shards.node_of(shard))
            pool.options = replace(pool.options, read_timeout_s=1)
            await store.close()
            shards = by_hand(store)
            database = shards.database(shard).encode()
            with shards.pool_for(shards.node_of(shard)).connection() as other:
                other.execute(b"LOCK TABLES `%b`.cell WRITE" % database)
                with pytest.raises(ServerTimeout):
                    await store.get_cell(row, "BASE", 1)
                with pytest.raises(schemaless.OutcomeUnknown):
                    await store.put_cell(row, "BASE", 1, {})
                other.execute(b"UNLOCK TABLES")
            await patient.put_cell(row, "BASE", 1, {})
            check_pools(store)

    asyncio.run(main())


@pytest.mark.mysql
def test_a_slot_that_does_not_become_free_in_time_is_an_error(fresh_url: str, by_hand: Any, row: uuid.UUID) -> None:
    """A timer of the loop ends the wait after pool_timeout_s, without disturbing the call that has the slot."""

    async def main() -> None:
        async with await schemaless.aio.connect(fresh_url, pool_size=1) as store:
            shard = await store.shard_of(row)
            await store.get_cell(row, "BASE", 1)
            pool = internals_of(store).shards.pool_for(internals_of(store).shards.node_of(shard))
            object.__setattr__(pool.options, "pool_timeout_s", 0.05)
            shards = by_hand(store)
            with shards.pool_for(shards.node_of(shard)).connection() as other:
                other.execute(b"LOCK TABLES `%b`.cell WRITE" % shards.database(shard).encode())
                first = asyncio.ensure_future(store.get_cell(row, "BASE", 1))
                await asyncio.sleep(0)
                with pytest.raises(ServerTimeout, match="raise pool_size, or make fewer concurrent calls"):
                    await store.get_cell(row, "BASE", 1)
                other.execute(b"UNLOCK TABLES")
            assert await first is None
            check_pools(store)

    asyncio.run(main())


@pytest.mark.guarantee("aio-cancelled", "aio-cancelled-write")
@pytest.mark.once
def test_a_slot_goes_to_the_longest_waiter_and_back_if_that_is_cancelled() -> None:
    """A task that is cancelled after it was given a slot, and before it runs, has it to give back."""

    async def main() -> None:
        slots, order = AsyncSlots(1), []

        async def use(name: str, held: list[Slot]) -> None:
            try:
                assert await Bridge().run(lambda: slots.take(held, 10))
            except asyncio.CancelledError:
                slots.give_back(held)
                raise
            order.append(name)

        first: list[Slot] = []
        await use("first", first)
        waiting = {}
        for name in ("second", "third", "fourth"):
            waiting[name] = asyncio.ensure_future(use(name, []))
            await asyncio.sleep(0)
        waiting["second"].cancel()
        slots.give_back(first)
        waiting["third"].cancel()
        await asyncio.wait([*waiting.values()])
        assert order == ["first", "fourth"]
        assert [waiting[name].cancelled() for name in ("second", "third")] == [True, True]

    asyncio.run(main())


@pytest.mark.once
def test_waiters_that_time_out_or_are_cancelled_are_forgotten() -> None:
    """While all connections stay in use, calls that gave up take no memory."""

    async def main() -> None:
        slots = AsyncSlots(1)
        assert slots.take([], 10)

        def wait_for_one(timeout_s: float) -> asyncio.Task[bool]:
            return asyncio.ensure_future(Bridge().run(lambda: slots.take([], timeout_s)))

        timed_out, cancelled = wait_for_one(0), wait_for_one(10)
        waiting = wait_for_one(10)
        await asyncio.sleep(0)
        cancelled.cancel()
        await asyncio.wait([timed_out, cancelled])
        assert (timed_out.result(), cancelled.cancelled()) == (False, True)
        assert len(slots._waiters) == 1, "the one that still waits"
        slots.give_back([Slot()])
        assert await waiting

    asyncio.run(main())


@pytest.mark.guarantee("aio-loop")
@pytest.mark.once
def test_waiting_outside_of_a_call_is_an_error() -> None:
    """Code that would block the loop fails instead."""

    async def main() -> None:
        sleeping = asyncio.sleep(0)
        with pytest.raises(RuntimeError, match=r"wait outside Bridge\.run"):
            wait(sleeping)
        await sleeping

    asyncio.run(main())


@pytest.mark.guarantee("aio-loop")
@pytest.mark.mysql
def test_concurrent_tasks_fetch_a_dictionary_once(
    accounts: Accounts, fresh_url: str, new_row: Callable[[], uuid.UUID], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop keeps running while a task holds the lock and queries the catalog."""
    rows = [new_row() for _ in range(40)]
    with schemaless.connect(accounts.root(fresh_url)) as admin:
        made = kept(admin)
        setting = ColumnSetting(COLUMN, "msgpack+zstd", None, made.id)
        set_column(internals_of(admin).dictionary_replicas, setting)
    with schemaless.connect(fresh_url) as admin:
        admin.put_cells([NewCell(row, COLUMN, 1, document(n)) for n, row in enumerate(rows)])
    fetched = []
    row_of = DictionaryReplica.row

    def counted(self: DictionaryReplica, dictionary_id: int) -> Any:
        fetched.append(dictionary_id)
        return row_of(self, dictionary_id)

    monkeypatch.setattr(DictionaryReplica, "row", counted)

    async def main() -> None:
        async with await schemaless.aio.connect(fresh_url) as store:
            cells = await asyncio.gather(*(store.get_cell(row, COLUMN, 1) for row in rows))
            assert [cell.body if cell else None for cell in cells] == [document(n) for n in range(len(rows))]

    asyncio.run(main())
    assert fetched == [made.id]


@pytest.mark.guarantee("aio-loop")
@pytest.mark.mysql
def test_nothing_blocks_the_loop(loopback: Any, by_hand: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """DNS and certificates are read in other threads, and no sleep of a thread is used."""
    here = threading.get_ident()
    elsewhere: list[str] = []

    def guarded(owner: Any, name: str) -> None:
        original = getattr(owner, name)

        def call(*arguments: Any, **options: Any) -> Any:
            assert threading.get_ident() != here, f"{name} blocks the loop"
            elsewhere.append(name)
            return original(*arguments, **options)

        monkeypatch.setattr(owner, name, call)

    for owner, name in ((socket, "getaddrinfo"), (ssl, "create_default_context"), (time, "sleep")):
        guarded(owner, name)

    async def main() -> None:
        with pytest.raises(schemaless.SchemalessError):
            await schemaless.aio.connect(loopback.url("nobody", f"ssl_ca={loopback.folder}/ca.pem", name="none"))

    asyncio.run(main())
    assert set(elsewhere) == {"getaddrinfo", "create_default_context"}


@pytest.mark.mysql
def test_an_iteration_lets_other_tasks_run_and_ends_after_an_interruption(
    fresh_url: str, tail_url: str, new_row: Callable[[], uuid.UUID]
) -> None:
    """Cells of one page arrive without waiting; a followed feed whose step was cancelled does not look ended."""

    async def main() -> None:
        async with await schemaless.aio.connect(fresh_url) as store, await schemaless.aio.connect(tail_url) as tail:
            await store.put_cells([NewCell(new_row(), "BASE", 1, list(range(500))) for _ in range(400)])
            turns = 0

            async def count() -> None:
                nonlocal turns
                while True:
                    await asyncio.sleep(0)
                    turns += 1

            counting = asyncio.ensure_future(count())
            assert sum([len(await drain(tail.iter_shard(shard))) for shard in range(4)]) == 400
            counting.cancel()
            assert turns > 10

            shared = tail.iter_shard(0)
            first, second = await asyncio.gather(anext(shared), anext(shared), return_exceptions=True)
            assert isinstance(second, RuntimeError)
            assert "another task waits for this iterator's next item" in str(second)
            assert [first, *await drain(shared)] == await drain(tail.iter_shard(0))

            feed = tail.iter_shard(0, follow=True, poll_s=60)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(drain(feed), 0.5)
            with pytest.raises(RuntimeError, match="start a new one after the last item"):
                await anext(feed)
            check_pools(tail)

    asyncio.run(main())


@pytest.mark.mysql
def test_a_loop_that_ends_during_calls_closes_their_connections(fresh_url: str, by_hand: Any) -> None:
    """asyncio.run cancels what is left; the locks of the calls are gone."""
    stores = []

    async def main() -> None:
        store = await schemaless.aio.connect(fresh_url)
        stores.append(store)
        shards = by_hand(store)
        with shards.pool_for(shards.node_of(0)).connection() as other:
            other.execute(b"LOCK TABLES `%b`.cell WRITE" % shards.database(0).encode())
            left.extend(asyncio.ensure_future(store.get_cells_for_shard(0)) for _ in range(20))
            await asyncio.sleep(0.05)
            other.execute(b"UNLOCK TABLES")

    left: list[asyncio.Future[Any]] = []
    asyncio.run(main())
    assert all(task.done() for task in left)
    check_pools(stores[0])


@pytest.mark.mysql
def test_spans_are_children_of_the_tasks_own(fresh_url: str, new_row: Callable[[], uuid.UUID]) -> None:
    """Also of tasks that wait at the same time; a cancelled call ends its span."""
    exporter, tracers = InMemorySpanExporter(), TracerProvider()
    tracers.add_span_processor(SimpleSpanProcessor(exporter))
    tracer = tracers.get_tracer("application")

    async def main() -> None:
        async with await schemaless.aio.connect(fresh_url, pool_size=1) as store:
            assert telemetry.instrument(store, tracer_provider=tracers)
            assert telemetry.instrument(store)

            async def request(number: int) -> None:
                with tracer.start_as_current_span(f"request {number}"):
                    await store.put_cell(new_row(), "BASE", 1, {})
                    await store.get_row(new_row())

            await asyncio.gather(*map(request, range(5)))
            late = asyncio.ensure_future(request(5))
            await asyncio.sleep(0)
            late.cancel()
            await asyncio.wait([late])

    asyncio.run(main())
    spans = exporter.get_finished_spans()
    requests = {span.context.span_id: span.name for span in spans if span.name.startswith("request")}
    calls = Counter((requests[span.parent.span_id], span.name) for span in spans if span.name.startswith("schemaless"))
    names = ("schemaless.put_cell", "schemaless.get_row")
    assert calls == Counter({(f"request {number}", name): 1 for number in range(5) for name in names}) + Counter(
        {("request 5", names[0]): 1}
    )


@pytest.mark.mysql
@pytest.mark.twice
def test_catch_up_cancelled_in_a_call_completes_and_records_it(follow_url: str, fresh_store: Any, new_row: Any) -> None:
    """The next one continues after it, with a synchronous datastore for the functions in a thread of their own."""
    entered, release = threading.Event(), threading.Event()
    seen: list[int] = []

    @schemaless.trigger(column="BASE", start="beginning")
    def note_each(cell: schemaless.Cell, call: schemaless.Call) -> None:
        assert call.store.get_cell(*cell.key) == cell
        seen.append(cell.body)
        entered.set()
        release.wait(120)

    row = new_row()
    for number in range(3):
        fresh_store.put_cell(row, "BASE", number, number)

    async def main() -> tuple[list[int], list[bool]]:
        async with await schemaless.aio.connect(follow_url) as store:
            task = asyncio.create_task(schemaless.aio.catch_up(store, note_each))
            await asyncio.to_thread(entered.wait, 30)
            task.cancel()
            asyncio.get_running_loop().call_later(0.05, release.set)
            with pytest.raises(asyncio.CancelledError):
                await task
            cancelled = list(seen)
            return cancelled, [await schemaless.aio.catch_up(store, note_each) for _ in range(2)]

    assert asyncio.run(main()) == ([0], [True, False])
    assert seen == [0, 1, 2]


@pytest.mark.mysql
@pytest.mark.twice
@pytest.mark.parametrize("event", [1, 3])
def test_an_erasure_is_finished_after_a_cancellation(
    erase_url: str, fresh_store: Any, new_row: Any, monkeypatch: pytest.MonkeyPatch, event: int
) -> None:
    """Whatever the thread had begun, the next call completes it."""
    reached, cancelled, events = threading.Event(), threading.Event(), itertools.count(1)
    rows = [new_row() for _ in range(8)]
    for row in rows:
        fresh_store.put_cell(row, "BASE", 1, "secret")

    def held(store: Any, number: int, archives: Any, listener: Any) -> Any:
        def listens(said: Any) -> None:
            if next(events) == event:
                reached.set()
                assert cancelled.wait(120)
            listener(said)

        return finish(store, number, archives, listens)

    monkeypatch.setattr(coroutines, "finish", held)

    async def main() -> schemaless.ErasureStatus:
        async with await schemaless.aio.connect(erase_url) as store:
            number = (await store.erase_many(rows, reason="gdpr")).number
            task = asyncio.create_task(schemaless.aio.finish_erasure(store, number))
            assert await asyncio.to_thread(reached.wait, 120)
            task.cancel()
            asyncio.get_running_loop().call_later(0.05, cancelled.set)
            with pytest.raises(asyncio.CancelledError):
                await task
            with pytest.raises(InvalidInput, match="expected an AsyncDatastore"):
                await schemaless.aio.finish_erasure(fresh_store, number)
            return await schemaless.aio.finish_erasure(store, number)

    finished = asyncio.run(main())
    assert (finished.state, finished.cells) == ("acknowledged", len(rows))
