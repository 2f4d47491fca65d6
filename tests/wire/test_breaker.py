"""The circuit breaker: calls to a server that does not answer fail fast, and one caller at a time probes it."""

from __future__ import annotations

import itertools
import pickle
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace
from typing import NoReturn

import pytest

import schemaless
from schemaless import OutcomeUnknown, ServerError, ServerUnavailable
from schemaless.store.internals import internals_of
from schemaless.wire import breaker, pool
from schemaless.wire.attempts import ATTEMPTS, Attempt
from schemaless.wire.breaker import FAILURES, FIRST_PAUSE_S, MAX_PAUSE_S, Breaker
from schemaless.wire.errors import ConnectionLost, Deadlock
from schemaless.wire.runtime import Threads
from schemaless.wire.urls import parse_url
from tests.freezing import freeze, thaw

ROW = uuid.UUID(int=7)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Current time in seconds, set by the test; jitter is always at its maximum."""
    now = [100.0]
    monkeypatch.setattr(breaker.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(breaker.random, "uniform", lambda low, high: high)
    return now


@pytest.mark.guarantee("breaker")
@pytest.mark.once
def test_the_breaker_opens_backs_off_and_closes(clock):
    """Three consecutive failures open it; each failed probe doubles the pause, up to two seconds."""
    tested = Breaker()
    for _ in range(FAILURES - 1):
        tested.failed()
    tested.answered()
    assert not tested.alarmed
    for _ in range(FAILURES):
        tested.failed()
    assert (tested.alarmed, tested.is_open) == (True, True)

    pauses = []
    while len(pauses) < 6:
        wait_s = tested.wait_s()
        assert wait_s is not None
        pauses.append(wait_s)
        clock[0] += wait_s
        assert tested.wait_s() is None
        tested.failed()

    assert pauses == [FIRST_PAUSE_S, 0.5, 1.0, MAX_PAUSE_S, MAX_PAUSE_S, MAX_PAUSE_S]
    tested.answered()
    tested.acknowledge(tested.alarms)
    assert (tested.alarmed, tested.is_open) == (False, False)


@pytest.mark.guarantee("breaker")
@pytest.mark.once
def test_one_of_a_hundred_callers_probes(clock):
    """One caller claims the probe, and a caller that never finishes does not block later probes."""
    tested = Breaker()
    tested.trip()
    for _ in range(3):
        clock[0] += 2 * MAX_PAUSE_S
        barrier = threading.Barrier(100)

        def ask(_: int, barrier: threading.Barrier = barrier) -> float | None:
            barrier.wait()
            return tested.wait_s()

        with ThreadPoolExecutor(100) as threads:
            assert list(threads.map(ask, range(100))).count(None) == 1


@pytest.mark.guarantee("lost-connection-rereads")
@pytest.mark.once
def test_an_alarm_raised_during_a_check_is_kept():
    """A check acknowledges only the alarms raised before it began."""
    tested = Breaker()
    tested.lost()
    began = tested.alarms
    tested.lost()
    tested.acknowledge(began)
    assert tested.alarmed

    tested.acknowledge(tested.alarms)
    assert not tested.alarmed


@pytest.mark.once
@pytest.mark.parametrize("kind", [ServerUnavailable, OutcomeUnknown])
def test_retry_after_survives_pickling(kind):
    """Errors are also passed on from worker processes."""
    refused = kind("refused", node="db-1:3306", shard=3)
    refused.retry_after_s = 0.5

    copy = pickle.loads(pickle.dumps(refused))

    assert (copy.retry_after_s, copy.node, copy.shard) == (0.5, "db-1:3306", 3)


class _FakeClock(Threads):
    """Clock and runtime of a pool that advances with each pause, and by a fixed time with each attempt."""

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


@pytest.mark.guarantee("fail-soon")
@pytest.mark.once
@pytest.mark.parametrize(("attempt_s", "attempts"), [(0.0, 3), (0.1, 3), (0.4, 2)])
def test_a_call_to_a_dead_server_fails_within_a_second(attempt_s, attempts, monkeypatch, tmp_path):
    """Slow attempts leave fewer retries, but always one; the error says when to retry once the breaker is open."""
    fake_clock = _FakeClock(attempt_s)
    monkeypatch.setattr(pool, "time", fake_clock)
    monkeypatch.setattr(pool.random, "uniform", lambda low, high: high)
    parsed = parse_url(f"mysql://root@/trips?unix_socket={tmp_path}/none.sock")
    dead = pool.NodePool(parsed.node, parsed.credentials, pool.PoolOptions(), Breaker(), runtime=fake_clock)
    monkeypatch.setattr(
        dead, "connect", lambda shard: fake_clock.attempt(ServerUnavailable("refused", node="db-1:3306"))
    )
    before = SimpleNamespace(connected_at_s=fake_clock.now_s, busy=True, close=lambda: None, shard=None)
    dead.idle.append(before)

    def put(connection: object) -> NoReturn:
        assert connection is before
        dead.breaker.trip()
        dead.breaker.answered()
        fake_clock.attempt(ConnectionLost("server has gone away", node="db-1:3306"))

    began_s = fake_clock.now_s
    with pytest.raises(OutcomeUnknown) as caught:
        dead.run(put, writes=True)

    assert fake_clock.attempts == attempts
    assert fake_clock.now_s - began_s <= 1
    assert caught.value.retry_after_s is None
    assert not dead.breaker.is_open

    lost, fake_clock.attempts = ConnectionLost("another server has gone away", node="db-2:3306"), 0
    with pytest.raises(OutcomeUnknown):
        dead.run_attempts(put, Attempt(writes=True, lost=lost, retry_until_s=fake_clock.now_s - 0.1))
    assert fake_clock.attempts == 1

    dead.breaker.trip()
    with pytest.raises(ServerUnavailable) as refused:
        dead.run(put)
    assert refused.value.retry_after_s


@pytest.mark.guarantee("fail-soon")
@pytest.mark.once
def test_a_deadlock_is_retried_however_long_it_takes(monkeypatch, tmp_path):
    """The retry window is for outages only, not for lock waits."""
    fake_clock = _FakeClock(10)
    monkeypatch.setattr(pool, "time", fake_clock)
    parsed = parse_url(f"mysql://root@/trips?unix_socket={tmp_path}/none.sock")
    busy = pool.NodePool(parsed.node, parsed.credentials, pool.PoolOptions(), Breaker(), runtime=fake_clock)
    monkeypatch.setattr(busy, "connect", lambda shard: fake_clock.attempt(Deadlock("deadlock", node="db-1:3306")))

    with pytest.raises(Deadlock):
        busy.run(lambda connection: None)

    assert fake_clock.attempts == ATTEMPTS


@pytest.mark.guarantee("breaker")
@pytest.mark.mysql
def test_a_hanging_server_is_probed_by_one_caller_at_a_time(servers, eventually, monkeypatch):
    """Calls are rejected without using the network and say when to retry; they succeed once the server answers."""
    server = servers[0]
    url = schemaless.create("hangs", 1, [server.url])
    opened = itertools.count()
    original = pool.open_connection

    def count(*arguments, **options):
        next(opened)
        return original(*arguments, **options)

    with schemaless.connect(url) as store:
        store.put_cell(ROW, "BASE", 1, "here")
        hanging = internals_of(store).shards.pool_for(internals_of(store).shards.node_of(0))
        guard, patient = hanging.breaker, hanging.options
        # Short only until the server is read again: a busy machine may need longer.
        hanging.options = replace(patient, connect_timeout_s=0.5, read_timeout_s=0.5, write_timeout_s=0.5)
        hanging.close()
        eventually(lambda: refused_after(store) is None and hanging.idle, "a connection with that timeout is open")
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
            hanging.options = patient
            thaw(server.pid)
        guard.retry_at_s = 0
        eventually(lambda: refused_after(store) is None, "calls are answered again")

        assert store.get_cell(ROW, "BASE", 1).body == "here"
        assert not guard.alarmed


def refused_after(store: schemaless.Datastore) -> float | None:
    """Make a call and return its retry_after_s; None if it was answered or failed in another way."""
    try:
        store.get_cell(ROW, "BASE", 1)
    except ServerUnavailable as error:
        return error.retry_after_s
    except schemaless.ServerError:
        return None
    return None
