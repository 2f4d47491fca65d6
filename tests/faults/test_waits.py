"""Every wait for the network ends: at a timeout that the caller chose, with an error that says what is known."""

from __future__ import annotations

import contextlib
import random
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

import schemaless
from schemaless.cell import NewStoredCell
from schemaless.local.description import LocalServer
from schemaless.store.internals import internals_of
from schemaless.wire import attempts
from schemaless.wire import pool as pools
from schemaless.wire.pool import NodePool, PoolOptions
from schemaless.wire.urls import parse_url
from tests.faults.kinds import ONE_KIND
from tests.faults.proxy import Fault, Proxy

SHORT_S = 0.2
READ_S = 1.0
"""Timeout for replies where a statement that is not the one under test may have to be answered in time, too."""
LONG_S = 120.0
"""Nothing here may take that long: where the wrong timeout ends a wait, ``within`` fails."""


@contextlib.contextmanager
def within(seconds: float = LONG_S / 2) -> Iterator[None]:
    """Fail where the block waits for a timeout that is not the one under test."""
    began_s = time.monotonic()
    yield

    assert time.monotonic() - began_s < seconds


def listener(backlog: int) -> socket.socket:
    """Return a socket that listens on loopback and never accepts."""
    return socket.create_server(("127.0.0.1", 0), backlog=backlog)


def connect_to(port: int, **timeouts: float) -> schemaless.Datastore:
    """Open a datastore on a port."""
    return schemaless.connect(f"mysql://root@127.0.0.1:{port}/trips?ssl_mode=disabled", **timeouts)


def test_connect_to_a_host_that_does_not_answer_ends_at_connect_timeout():
    """A full queue drops what knocks, as a firewall does."""
    with listener(0) as deaf, contextlib.ExitStack() as others, within():
        port = deaf.getsockname()[1]
        for _ in range(3):
            other = others.enter_context(socket.socket())
            other.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                other.connect(("127.0.0.1", port))

        with pytest.raises(schemaless.ServerUnavailable, match="timed out") as caught:
            connect_to(port, connect_timeout_s=SHORT_S, read_timeout_s=LONG_S)
    assert caught.value.retryable
    assert caught.value.node == f"127.0.0.1:{port}"


@pytest.mark.guarantee("waits-bounded")
def test_connect_to_a_server_that_never_speaks_ends_at_connect_timeout():
    """Accepted is not connected: the greeting and the login are waited for no longer than that."""
    with listener(8) as silent, within():
        port = silent.getsockname()[1]

        with pytest.raises(schemaless.ServerUnavailable, match="timed out"):
            connect_to(port, connect_timeout_s=SHORT_S, read_timeout_s=LONG_S)


def test_connect_to_a_server_that_hangs_up_says_so():
    """Something else may listen there."""
    with listener(8) as other:
        threading.Thread(target=lambda: other.accept()[0].close(), daemon=True).start()

        with pytest.raises(schemaless.ServerUnavailable, match="Lost connection"):
            connect_to(other.getsockname()[1], connect_timeout_s=LONG_S)


def test_connect_to_something_that_is_no_mysql_server_says_so():
    """A web server, say, or a mail server: an error of the library, not of a driver that lost its way."""
    with listener(8) as other:

        def greet() -> None:
            end, _ = other.accept()
            end.sendall(b"220 mail.example ESMTP; this is the wrong port\r\n" * 3)
            end.close()

        threading.Thread(target=greet, daemon=True).start()

        with pytest.raises(schemaless.ServerUnavailable):
            connect_to(other.getsockname()[1], connect_timeout_s=LONG_S)


@pytest.fixture(scope="module")
def proxy(servers: list[LocalServer]) -> Iterator[Proxy]:
    """The first server, by way of a proxy."""
    proxy = Proxy([str(servers[0].socket)])
    yield proxy
    proxy.close()


@pytest.fixture(scope="module")
def url(proxy: Proxy) -> str:
    """A datastore of one shard behind the proxy."""
    return schemaless.create("waits", 1, proxy.urls)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take a server that is busy for one that answers: after a timeout, a probe would have to be answered in 0.8 s."""
    monkeypatch.setattr(pools, "PROBE_S", LONG_S)
    monkeypatch.setattr(pools.NodePool, "retry_pause_s", 0.002)


@pytest.fixture
def store(url: str, proxy: Proxy, patient: None) -> Iterator[schemaless.Datastore]:
    """The datastore, with long timeouts."""
    with schemaless.connect(url, connect_timeout_s=LONG_S, read_timeout_s=LONG_S, write_timeout_s=LONG_S) as opened:
        yield opened
        proxy.disarm()


@contextlib.contextmanager
def impatient(store: schemaless.Datastore) -> Iterator[None]:
    """Shorten the timeout for replies for the block, which must not take as long as another timeout."""
    pool = internals_of(store).shards.pool_for(internals_of(store).shards.node_of(0))
    options, pool.options = pool.options, replace(pool.options, read_timeout_s=READ_S)
    store.close()
    with within():
        yield
    pool.options = options
    store.close()


@pytest.mark.mysql
@ONE_KIND
@pytest.mark.parametrize("where", ["greeting", "login", "setup"])
def test_a_login_that_is_never_answered_ends_at_connect_timeout(proxy, url, where):
    """Of each step of it."""
    proxy.arm([Fault(where, "no reply", "stall")])

    with within(), pytest.raises(schemaless.ServerUnavailable, match="timed out"):
        schemaless.connect(url, connect_timeout_s=SHORT_S, read_timeout_s=LONG_S)
    # On a busy machine, an earlier step may have taken that long.
    proxy.disarm()


@pytest.mark.guarantee("waits-bounded")
@pytest.mark.mysql
@ONE_KIND
def test_a_read_whose_reply_does_not_come_ends_at_read_timeout(proxy, store, row):
    """It is not asked again: it may be running there still. The next one is answered on a new connection."""
    store.put_cell(row, "BASE", 1, "there")
    proxy.arm([Fault("SELECT", "reply random", "stall")])

    with (
        impatient(store),
        pytest.raises(schemaless.ServerTimeout, match=r"no reply in time.*set a higher read_timeout") as caught,
    ):
        store.get_cell(row, "BASE", 1)

    assert caught.value.retryable
    assert caught.value.shard == 0
    assert store.get_cell(row, "BASE", 1).body == "there"


@pytest.mark.mysql
@ONE_KIND
def test_a_write_whose_reply_does_not_come_is_repeated_after_read_timeout(proxy, store, row):
    """The repeated INSERT tells what became of the first."""
    proxy.arm([Fault("INSERT", "no reply", "stall")])

    with impatient(store):
        put = store.put_cell(row, "BASE", 1, "there")

    assert put.added_id == store.get_cell(row, "BASE", 1).added_id


@pytest.mark.guarantee("outcome-known")
@pytest.mark.mysql
@ONE_KIND
def test_a_write_that_is_never_answered_is_an_unknown_outcome_in_the_end(proxy, store, row, monkeypatch):
    """After a read_timeout for each attempt."""
    monkeypatch.setattr(attempts, "ATTEMPTS", 2)
    proxy.arm([Fault("INSERT", "no reply", "stall")] * 2)

    with impatient(store), pytest.raises(schemaless.OutcomeUnknown, match="timed out"):
        store.put_cell(row, "BASE", 1, "there")

    assert not store.put_cell(row, "BASE", 1, "there").created


@pytest.mark.guarantee("waits-bounded")
@pytest.mark.mysql
@ONE_KIND
def test_a_peer_that_stops_reading_ends_a_write_at_write_timeout(proxy, url, row, patient):
    """A long statement fills the buffers on the way, and then waits for room."""
    noise = random.Random(1).randbytes(7_000_000).hex()
    with schemaless.connect(url, connect_timeout_s=LONG_S, read_timeout_s=LONG_S, write_timeout_s=SHORT_S) as store:
        store.get_row(row)
        proxy.arm([Fault("INSERT", "unread", "stall")] * 5)

        with within(), pytest.raises(schemaless.BatchError) as caught:
            store.put_stored_cells([NewStoredCell(row, "BASE", 1, f'"{noise}"'.encode())], trusted=True)
        proxy.disarm()

        assert isinstance(caught.value.causes[0], schemaless.OutcomeUnknown)
        assert "timed out" in str(caught.value)
        assert store.get_row(row) == {}


@pytest.mark.guarantee("waits-bounded")
@pytest.mark.mysql
@ONE_KIND
def test_a_pool_with_nothing_free_ends_at_its_timeout(proxy, url):
    """And names the setting."""
    parsed = parse_url(proxy.urls[0])
    pool = NodePool(parsed.node, parsed.credentials, PoolOptions(pool_size=1, pool_timeout_s=SHORT_S))

    with pool.connection(), within(), pytest.raises(schemaless.ServerTimeout, match="pool_size") as caught:
        pool.run(lambda connection: connection.rows(b"SELECT 1"), shard=3)

    assert (caught.value.retryable, caught.value.shard) == (True, 3)
    pool.close()


@pytest.mark.mysql
@ONE_KIND
def test_timeouts_may_be_parts_of_a_second(url):
    """They were rounded to whole seconds once, and half a second to none."""
    with schemaless.connect(url, read_timeout_s=60.4, write_timeout_s=61.5) as store:
        found = internals_of(store).shards.run(
            0, lambda connection: (connection._raw._read_timeout, connection._raw._write_timeout)
        )
    # On a busy machine, connecting may take that long.
    with (
        pytest.raises((schemaless.ServerTimeout, schemaless.ServerUnavailable)),
        schemaless.connect(url, read_timeout_s=0.4) as store,
    ):
        internals_of(store).shards.rows(0, b"SELECT SLEEP(20)")

    assert found == (60.4, 61.5)


@pytest.mark.parametrize("name", ["connect_timeout_s", "read_timeout_s", "write_timeout_s"])
@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf"), "1"])
def test_connect_with_a_timeout_without_an_end_is_refused(name, seconds):
    """No wait is for ever."""
    with pytest.raises(schemaless.InvalidInput, match=f"{name} must be a number of seconds"):
        schemaless.connect("mysql://root@127.0.0.1:1/trips", **{name: seconds})


def test_connect_with_a_pool_of_none_is_refused():
    """SQLAlchemy would take 0 for no limit."""
    with pytest.raises(schemaless.InvalidInput, match="pool_size"):
        schemaless.connect("mysql://root@127.0.0.1:1/trips", pool_size=0)
