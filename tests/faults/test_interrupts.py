"""Ctrl-C, and what else a signal's handler raises, inside a call: the pool stays usable, and no reply is another's."""

from __future__ import annotations

import contextlib
import gc
import signal
from collections.abc import Iterator
from types import FrameType
from typing import Any

import pytest

import schemaless
from schemaless.store.datastore import Datastore
from schemaless.store.internals import internals_of
from schemaless.wire.connection import Connection
from schemaless.wire.pool import NodePool, PoolOptions, _CheckedOut
from schemaless.wire.urls import parse_url
from tests.accounts import Accounts
from tests.faults.interrupts import (
    PACKET_BYTES,
    RAISED,
    TOLD,
    TimeIsUp,
    at_every_line,
    by_alarms,
    calls_of,
    in_children,
    others_reading,
)
from tests.faults.kinds import ONE_KIND

pytestmark = [
    pytest.mark.mysql,
    ONE_KIND,
    # Struck between the making of a socket and its keeping, PyMySQL drops it: it is closed where it is collected.
    pytest.mark.filterwarnings(r"ignore:unclosed <socket\.socket fd=\d+, family=1, type=1, proto=0:ResourceWarning"),
]


@pytest.fixture(autouse=True)
def _no_python_code_in_the_collector() -> Iterator[None]:
    """Python drops an exception that an alarm raises in a finalizer or in a callback of the collector.

    This package has neither, but objects of earlier tests have finalizers, and Hypothesis has a callback.
    """
    callbacks = gc.callbacks[:]
    gc.callbacks.clear()
    gc.collect()
    gc.freeze()
    yield
    gc.callbacks[:] = callbacks


@pytest.fixture
def root_url(accounts: Accounts, fresh_url: str) -> str:
    """A new datastore for an account that may write and tail; each of the others may do one of the two."""
    return accounts.root(fresh_url)


@pytest.fixture
def store(root_url: str) -> Iterator[Datastore]:
    """A datastore with two connections to each server, with short timeouts."""
    with schemaless.connect(root_url, pool_size=2) as opened:
        for cluster in internals_of(opened).topology.clusters:
            pool = internals_of(opened).shards.pool_for(cluster.primary)
            pool.options = PoolOptions(pool_size=2, pool_timeout_s=0.05, max_packet_bytes=PACKET_BYTES)
        yield opened


@contextlib.contextmanager
def signal_after(seconds: float, handler: Any) -> Iterator[None]:
    """Send a signal in the middle of the block."""
    previous = signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


def pools_of(store: Datastore) -> list[NodePool]:
    """Return the pools of a datastore's primaries."""
    return [internals_of(store).shards.pool_for(cluster.primary) for cluster in internals_of(store).topology.clusters]


@pytest.mark.guarantee("reply-owner")
@pytest.mark.parametrize("call", [pytest.param("get_cell", marks=pytest.mark.long), "put_cell"])
def test_an_exception_at_every_line_never_gives_a_call_another_calls_reply(store, call):
    """Of the driver or of the library, whatever its class: the connection that was busy is closed."""
    wrong, count = at_every_line(store, raised=RAISED, cold=False, calls=[call])

    assert not wrong
    assert count[call] >= 100


@pytest.mark.guarantee("reply-owner")
@pytest.mark.parametrize("cold", [False, True])
def test_an_exception_at_any_line_leaves_the_pool_sound(store, cold):
    """No wrong answer, no lost slot, no open transaction; Ctrl-C and an application's own class arrive unchanged.

    A cut of what benchmarks/interrupts.py does: some lines of each call, one class at each.
    """
    wrong, count = at_every_line(store, raised=RAISED, every=199 if cold else 41, cold=cold)

    assert not wrong
    assert len(count) == len(calls_of(store))
    assert min(count.values()) >= 4


@pytest.mark.guarantee("reply-owner")
def test_alarms_at_any_moment_leave_the_pool_sound(store):
    """Real signals, whose handler raises: a cut of what benchmarks/interrupts.py does."""
    found = by_alarms(store, 150, seed=5)

    assert found["alarms"] == 150
    assert set(found) <= set(TOLD), found


@pytest.mark.long
def test_alarms_beside_threads_of_the_same_pool_do_not_disturb_them(root_url):
    """Only the main thread gets them; the others go on, and get their own replies."""
    with schemaless.connect(root_url, pool_size=8) as wide:
        with others_reading(wide, threads=3) as wrong:
            found = by_alarms(wide, 60, seed=6, alone=False)

        assert set(found) <= set(TOLD), found
        assert wrong == []
        assert [pool.slots.free() for pool in pools_of(wide)] == [8, 8]


@pytest.mark.long
@pytest.mark.guarantee("reply-owner")
def test_alarms_in_forked_children_leave_the_pool_sound(store):
    """Each child connects anew; none reads a reply of its parent's, or of another child's."""
    found = in_children(lambda seed: by_alarms(store, 30, seed=seed), range(2)) + by_alarms(store, 10, seed=7)

    assert found["alarms"] == 70
    assert set(found) <= set(TOLD), found


@pytest.mark.guarantee("signal-handlers")
@pytest.mark.parametrize("raised", [TimeIsUp, KeyboardInterrupt])
def test_append_ended_by_a_handler_raises_the_handlers_own_error(store, new_row, monkeypatch, raised):
    """ROLLBACK's failure does not take its place, and the connection is not used again."""
    execute = Connection.execute

    def struck(connection: Connection, sql: bytes) -> Any:
        if sql.startswith(b"INSERT"):
            monkeypatch.setattr(Connection, "execute", execute)
            with signal_after(0.05, handler):
                return connection.execute(sql.replace(b"VALUES (x'", b"VALUES (SLEEP(5) + x'", 1))
        return execute(connection, sql)

    def handler(signum: int, frame: FrameType | None) -> None:
        raise raised

    monkeypatch.setattr(Connection, "execute", struck)
    row = new_row()
    with pytest.raises(raised):
        store.append_cell(row, "BASE", 1)
    assert store.get_row(row) == {}
    assert store.append_cell(row, "BASE", 2).key.ref_key == 1


@pytest.mark.guarantee("reply-owner")
def test_a_slot_lost_by_an_interrupt_is_replaced(store):
    """An interrupt between taking a slot and using it would lose the slot."""
    (pool, *_) = pools_of(store)
    assert pool.slots.take([], 0)
    assert pool.slots.take([], 0)

    assert pool.run(lambda connection: connection.rows(b"SELECT 1")) == ((1,),)
    with pool.connection(), pool.connection(), pytest.raises(schemaless.ServerTimeout), pool.connection():
        pytest.fail("a third connection of two")


@pytest.mark.guarantee("signal-handlers")
@pytest.mark.parametrize("raised", [TimeIsUp, KeyboardInterrupt])
def test_an_exception_of_a_signal_handler_ends_the_call(store, row, raised):
    """A time limit of the caller's is not taken for a lost connection; the reply that comes later is discarded."""
    asked: list[Connection] = []

    def handler(signum: int, frame: FrameType | None) -> None:
        if asked and asked[0].busy:
            raise raised
        # On a busy machine, nothing is sent yet, and the connection would be kept.
        signal.setitimer(signal.ITIMER_REAL, 0.1)

    def sleep(connection: Connection) -> object:
        asked.append(connection)
        return connection.rows(b"SELECT SLEEP(20)")

    shard = store.shard_of(row)
    before = internals_of(store).shards.rows(shard, b"SELECT CONNECTION_ID()")
    with pytest.raises(raised), signal_after(0.1, handler):
        internals_of(store).shards.run(shard, sleep, writes=True)

    assert internals_of(store).shards.rows(shard, b"SELECT CONNECTION_ID()") != before


def test_ctrl_c_while_a_pool_is_full_loses_no_slot(server_urls):
    """The one who waits has nothing to give back."""
    parsed = parse_url(server_urls[0])
    pool = NodePool(parsed.node, parsed.credentials, PoolOptions(pool_size=1, pool_timeout_s=20))
    with pool.connection(), pytest.raises(KeyboardInterrupt), signal_after(0.05, signal.default_int_handler):
        pool.run(lambda connection: connection.rows(b"SELECT 1"))

    assert pool.slots.free() == 1
    assert pool.run(lambda connection: connection.rows(b"SELECT 1")) == ((1,),)
    pool.close()


def test_an_interrupt_while_a_failed_call_returns_its_slot_loses_none(store, monkeypatch):
    """It comes back at once, though who caught the interrupt still holds the frames that had it."""
    (pool, *_) = pools_of(store)
    end = _CheckedOut.end

    def struck(held: _CheckedOut, error: BaseException | None) -> None:
        monkeypatch.setattr(_CheckedOut, "end", end)
        raise TimeIsUp

    monkeypatch.setattr(_CheckedOut, "end", struck)
    with pytest.raises(TimeIsUp) as caught:
        pool.run(lambda connection: connection.rows(b"SELECT nothing"))

    assert caught.value.__traceback__ is not None
    assert pool.slots.free() == 2
    del caught
    gc.collect()


def test_a_handlers_error_while_a_socket_is_closed_arrives(store, row, monkeypatch):
    """PyMySQL would drop whatever is raised there."""
    store.get_cell(row, "BASE", 1)
    (connection,) = (
        internals_of(store).shards.pool_for(internals_of(store).topology.cluster_of(store.shard_of(row)).primary).idle
    )
    wire = connection._raw._sock

    class Struck:
        def __getattr__(self, name: str) -> Any:
            return getattr(wire, name)

        def close(self) -> None:
            wire.close()
            raise TimeIsUp

    connection._raw._sock = Struck()
    with pytest.raises(TimeIsUp):
        connection.close()
    assert not connection._raw.open
