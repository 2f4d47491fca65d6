"""The breaker: calls to a server that does not answer are refused, and one at a time looks whether it does again."""

from __future__ import annotations

import itertools
import pickle
import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import NoReturn

import pytest

import schemaless
from schemaless import OutcomeUnknown, ServerError, ServerUnavailable
from schemaless.internals import internals_of
from schemaless.local.description import LocalServer
from schemaless.testing.servers import private_servers
from schemaless.wire import breaker, pool
from schemaless.wire.breaker import FAILURES, FIRST_PAUSE_S, MAX_PAUSE_S, Breaker
from schemaless.wire.errors import ConnectionLost, Deadlock
from schemaless.wire.urls import parse_url
from tests.freezing import freeze, thaw

ROW = uuid.UUID(int=7)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, in seconds, for a test to set; pauses are as long as they may be."""
    now = [100.0]
    monkeypatch.setattr(breaker.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(breaker.random, "uniform", lambda low, high: high)
    return now


@pytest.mark.once
def test_the_breaker_opens_backs_off_and_closes(clock):
    """Three failures in a row open it; each look that finds nobody doubles the pause, up to two seconds."""
    watched = Breaker()
    for _ in range(FAILURES - 1):
        watched.failed()
    watched.answered()
    assert not watched.alarmed
    for _ in range(FAILURES):
        watched.failed()
    assert (watched.alarmed, watched.is_open) == (True, True)

    pauses = []
    while len(pauses) < 6:
        wait_s = watched.wait_s()
        assert wait_s is not None
        pauses.append(wait_s)
        clock[0] += wait_s
        assert watched.wait_s() is None
        watched.failed()

    assert pauses == [FIRST_PAUSE_S, 0.5, 1.0, MAX_PAUSE_S, MAX_PAUSE_S, MAX_PAUSE_S]
    watched.answered()
    watched.acknowledge(watched.alarms)
    assert (watched.alarmed, watched.is_open) == (False, False)


@pytest.mark.once
def test_one_of_a_hundred_callers_looks(clock):
    """The turn is claimed by one; who is interrupted in the middle has not taken it along for good."""
    watched = Breaker()
    watched.trip()
    for _ in range(3):
        clock[0] += 2 * MAX_PAUSE_S
        together = threading.Barrier(100)

        def ask(_: int, together: threading.Barrier = together) -> float | None:
            together.wait()
            return watched.wait_s()

        with ThreadPoolExecutor(100) as threads:
            assert list(threads.map(ask, range(100))).count(None) == 1


@pytest.mark.once
def test_an_alarm_that_comes_while_somebody_looks_is_not_forgotten():
    """Only what was heard before the look is done with by it."""
    watched = Breaker()
    watched.lost()
    began = watched.alarms
    watched.lost()
    watched.acknowledge(began)
    assert watched.alarmed

    watched.acknowledge(watched.alarms)
    assert not watched.alarmed


@pytest.mark.once
@pytest.mark.parametrize("kind", [ServerUnavailable, OutcomeUnknown])
def test_when_to_try_again_survives_a_pickle(kind):
    """Errors come from worker processes, too."""
    refused = kind("nobody", node="db-1:3306", shard=3)
    refused.retry_after_s = 0.5

    again = pickle.loads(pickle.dumps(refused))

    assert (again.retry_after_s, again.node, again.shard) == (0.5, "db-1:3306", 3)


class _Slow:
    """A clock for ``pool`` that pauses move, and each attempt at a call by so much."""

    def __init__(self, attempt_s: float) -> None:
        self.now_s = 100.0
        self.attempt_s = attempt_s
        self.attempts = 0

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds

    def attempt(self, error: ServerError) -> NoReturn:
        self.attempts += 1
        self.now_s += self.attempt_s
        raise error


@pytest.mark.once
@pytest.mark.parametrize(("attempt_s", "attempts"), [(0.0, 3), (0.1, 3), (0.4, 2)])
def test_a_call_whose_server_is_gone_fails_within_a_second(attempt_s, attempts, monkeypatch, tmp_path):
    """On a busy machine it is repeated less often; a first time always. It says when the next one has a chance."""
    slow = _Slow(attempt_s)
    monkeypatch.setattr(pool, "time", slow)
    monkeypatch.setattr(pool.random, "uniform", lambda low, high: high)
    parsed = parse_url(f"mysql://root@/trips?unix_socket={tmp_path}/none.sock")
    gone = pool.NodePool(parsed.node, parsed.credentials, pool.PoolOptions(), Breaker())
    monkeypatch.setattr(gone, "connect", lambda shard: slow.attempt(ServerUnavailable("refused", node="db-1:3306")))
    before = SimpleNamespace(connected_at_s=slow.now_s, busy=True, close=lambda: None, shard=None)
    gone.idle.append(before)

    def put(connection: object) -> NoReturn:
        assert connection is before
        gone.breaker.trip()
        gone.breaker.answered()
        slow.attempt(ConnectionLost("server has gone away", node="db-1:3306"))

    began_s = slow.now_s
    with pytest.raises(OutcomeUnknown) as caught:
        gone.run(put, writes=True)

    assert slow.attempts == attempts
    assert slow.now_s - began_s <= 1
    assert caught.value.retry_after_s is None
    assert not gone.breaker.is_open

    doubt = ConnectionLost("another server has gone away", node="db-2:3306")
    doubt.retry_until_s, slow.attempts = slow.now_s - 0.1, 0
    with pytest.raises(OutcomeUnknown):
        gone.run(put, writes=True, doubt=doubt)
    assert slow.attempts == 1

    gone.breaker.trip()
    with pytest.raises(ServerUnavailable) as refused:
        gone.run(put)
    assert refused.value.retry_after_s


@pytest.mark.once
def test_a_deadlock_is_repeated_however_long_it_takes(monkeypatch, tmp_path):
    """Only an outage is told soon: who waits for a lock is not without a server."""
    slow = _Slow(10)
    monkeypatch.setattr(pool, "time", slow)
    parsed = parse_url(f"mysql://root@/trips?unix_socket={tmp_path}/none.sock")
    busy = pool.NodePool(parsed.node, parsed.credentials, pool.PoolOptions(), Breaker())
    monkeypatch.setattr(busy, "connect", lambda shard: slow.attempt(Deadlock("deadlock", node="db-1:3306")))

    with pytest.raises(Deadlock):
        busy.run(lambda connection: None)

    assert slow.attempts == pool.ATTEMPTS


@pytest.fixture(scope="module")
def server(flavour: str) -> Iterator[LocalServer]:
    """A server of its own, which is stopped now and then."""
    with private_servers(flavour, 1) as (running,):
        yield running


@pytest.mark.mysql
def test_a_server_that_hangs_is_asked_by_one_caller_at_a_time(server, eventually, monkeypatch):
    """Calls are refused without a word on the wire, and say when to come back; they go on where the server does."""
    url = schemaless.create("hangs", 1, [server.url])
    opened = itertools.count()
    original = pool.open_connection

    def count(*arguments, **options):
        next(opened)
        return original(*arguments, **options)

    with schemaless.connect(url, read_timeout_s=0.5, write_timeout_s=0.5, connect_timeout_s=0.5) as store:
        store.put_cell(ROW, "BASE", 1, "here")
        guard = internals_of(store).shards.pool_for(internals_of(store).shards.node_of(0)).breaker
        freeze(server.pid)
        try:
            eventually(lambda: refused_after(store) is not None, "the breaker opens")
            monkeypatch.setattr(pool, "open_connection", count)
            monkeypatch.setattr(guard, "retry_at_s", float("inf"))
            before = next(opened)
            answers = [refused_after(store) for _ in range(100)]
            assert None not in answers
            assert next(opened) == before + 1
        finally:
            thaw(server.pid)
        guard.retry_at_s = 0
        eventually(lambda: refused_after(store) is None, "calls are answered again")

        assert store.get_cell(ROW, "BASE", 1).body == "here"
        assert not guard.alarmed


def refused_after(store: schemaless.Datastore) -> float | None:
    """Call, and return when to try again; None where the call was answered, or failed otherwise."""
    try:
        store.get_cell(ROW, "BASE", 1)
    except ServerUnavailable as error:
        return error.retry_after_s
    except schemaless.ServerError:
        return None
    return None
