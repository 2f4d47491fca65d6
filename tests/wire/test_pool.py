"""Pools: translation of driver errors, lost connections, limits and forks."""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import os
import threading
import types

import pymysql
import pytest

from schemaless import (
    AccessDenied,
    InvalidInput,
    OutcomeUnknown,
    ServerError,
    ServerRefused,
    ServerTimeout,
    ServerUnavailable,
    connect,
)
from schemaless.wire.errors import ConnectionLost, DatabaseMissing, Deadlock, DuplicateKey, ReplyTimedOut, translated
from schemaless.wire.pool import NodePool, PoolOptions
from schemaless.wire.urls import parse_url


class Stopped(Exception):
    """An application's own exception."""


@pytest.mark.parametrize(
    ("driver_error", "connecting", "kind"),
    [
        (pymysql.err.OperationalError(2003, "Can't connect"), True, ServerUnavailable),
        (pymysql.err.OperationalError(1040, "Too many connections"), True, ServerUnavailable),
        (pymysql.err.OperationalError(2013, "Lost connection"), False, ConnectionLost),
        (pymysql.err.OperationalError(2013, "Lost connection"), True, ServerUnavailable),
        (pymysql.err.InterfaceError(0, ""), False, ConnectionLost),
        (pymysql.err.InternalError("Packet sequence number wrong"), False, ConnectionLost),
        (pymysql.err.InternalError(-1, "a report of progress"), False, ConnectionLost),
        (TimeoutError("timed out"), False, ReplyTimedOut),
        (OSError(9, "Bad file descriptor"), False, ConnectionLost),
        (KeyError(255), False, ConnectionLost),
        (pymysql.err.OperationalError(1045, "Access denied"), True, AccessDenied),
        (pymysql.err.OperationalError(1142, "UPDATE command denied"), False, AccessDenied),
        (pymysql.err.OperationalError(1205, "Lock wait timeout"), False, ServerTimeout),
        (pymysql.err.OperationalError(1213, "Deadlock"), False, Deadlock),
        (pymysql.err.IntegrityError(1062, "Duplicate"), False, DuplicateKey),
        (pymysql.err.ProgrammingError(1146, "No table"), False, DatabaseMissing),
    ],
)
def test_translated_maps_every_kind_of_driver_error(driver_error, connecting, kind):
    """Callers need not know PyMySQL's classes."""
    error = translated(driver_error, "db-1:3306", 7, connecting=connecting)

    assert type(error) is kind
    assert (error.node, error.shard) == ("db-1:3306", 7)
    assert "db-1:3306, shard 7" in str(error)


@pytest.mark.parametrize("code", [2002, 2003])
def test_translated_unreachable_server_names_what_to_check(code):
    """Drivers use both error numbers for sockets and for ports; the address decides."""
    driver_error = pymysql.err.OperationalError(code, "Can't connect to MySQL server on 'localhost' ([Errno 2] x)")
    through_socket = translated(driver_error, "/run/mysqld/none.sock", None, connecting=True)
    through_port = translated(driver_error, "localhost:3306", None, connecting=True)

    assert str(through_socket).endswith("is the server running, and is the socket right?")
    assert "localhost" not in str(through_socket)
    assert str(through_port).endswith("is the server running, and are host and port right?")


@pytest.mark.mysql
@pytest.mark.twice
def test_connections_through_a_socket_use_no_tls_by_default(servers, flavour):
    """A local socket needs no TLS, which would take most of the time to connect."""

    def cipher(url: str) -> str:
        parsed = parse_url(url)
        with contextlib.closing(NodePool(parsed.node, parsed.credentials, PoolOptions())) as pool:
            ((_, value),) = pool.run(lambda connection: connection.rows(b"SHOW SESSION STATUS LIKE 'Ssl_cipher'"))
        return str(value)

    assert cipher(servers[0].url) == ""
    if flavour == "mariadb" and [int(part) for part in servers[0].version.split(".")] >= [11, 4]:
        assert cipher(f"{servers[0].url}&ssl_mode=required") != ""
    else:  # these servers have no certificate; later ones of MariaDB make one
        with pytest.raises(ServerRefused, match="give the server a certificate"):
            cipher(f"{servers[0].url}&ssl_mode=required")


def test_connect_to_a_missing_server_says_where_and_what_to_do(tmp_path):
    """A wrong address is an immediate one-line error, not a driver's traceback."""
    with pytest.raises(ServerUnavailable, match="is the server running") as caught:
        connect(f"mysql://root@/trips?unix_socket={tmp_path}/none.sock")
    assert caught.value.retryable


@pytest.mark.mysql
@pytest.mark.twice
@pytest.mark.parametrize(
    "options", ["nonsense=1", "connect_timeout=soon", "connect_timeout=0", "ssl_mode=perhaps", "charset=latin1"]
)
def test_connect_with_unusable_options_is_refused(datastore_url, options):
    """An option that the driver rejects is reported as an error in the URL, not as a TypeError."""
    with pytest.raises(InvalidInput):
        connect(f"{datastore_url}&{options}")


def test_connect_without_a_name_says_so():
    """The datastore's name is the URL's path."""
    with pytest.raises(InvalidInput, match="names no datastore"):
        connect("mysql://root@localhost/")


@pytest.fixture
def pool(server_urls):
    """A pool of two connections to the first server."""
    parsed = parse_url(server_urls[0])
    pool = NodePool(parsed.node, parsed.credentials, PoolOptions(pool_size=2))
    yield pool
    pool.close()


def connection_id(connection) -> int:
    """Return the server's id of a connection."""
    return int(connection.rows(b"SELECT CONNECTION_ID()")[0][0])


@pytest.mark.guarantee("retries")
@pytest.mark.mysql
@pytest.mark.twice
def test_run_on_a_killed_idle_connection_connects_again(pool):
    """Conformance 25: no call fails because the server closed idle connections."""
    first = pool.run(connection_id)
    killer = NodePool(pool.node, pool.credentials, PoolOptions())
    killer.run(lambda connection: connection.execute(b"KILL %d" % first))
    killer.close()

    assert pool.run(connection_id) != first


@pytest.mark.mysql
@pytest.mark.twice
def test_run_write_that_loses_every_connection_is_outcome_unknown(pool):
    """A write that may have happened is never reported as failed."""

    def lose(connection) -> None:
        with contextlib.suppress(ServerTimeout):  # MySQL reports the KILL itself as interrupted
            connection.execute(b"KILL %d" % connection_id(connection))
        connection.execute(b"DO 1")

    with pytest.raises(OutcomeUnknown, match="make the same call again"):
        pool.run(lose, writes=True)
    with pytest.raises(ServerUnavailable):
        pool.run(lose)


@pytest.mark.mysql
@pytest.mark.twice
def test_run_once_is_retried_until_commit_is_sent_and_never_after(pool):
    """Before COMMIT is sent a transaction is retried; after that its outcome is reported as unknown."""
    tries: list[int] = []

    def cut(connection) -> None:
        with pool.connection() as other:
            other.execute(b"KILL %d" % connection_id(connection))

    def lose_early(connection) -> int:
        tries.append(connection_id(connection))
        if len(tries) == 1:
            cut(connection)
            connection.execute(b"DO 1")
        return len(tries)

    def lose_late(connection) -> None:
        tries.append(connection_id(connection))
        cut(connection)

    assert pool.run_once(lose_early) == 2
    with pytest.raises(OutcomeUnknown, match="a COMMIT is not retried"):
        pool.run_once(lose_late)
    assert len(tries) == 3
    assert pool.run(connection_id) != tries[-1]


@pytest.mark.mysql
@pytest.mark.twice
@pytest.mark.parametrize("raised", [KeyboardInterrupt, Stopped])
@pytest.mark.parametrize("busy", [True, False])
def test_connection_is_kept_if_no_reply_is_outstanding_whatever_is_raised(pool, monkeypatch, raised, busy):
    """The proof that every reply was read decides, not the class of the exception."""
    seen = []

    def interrupted(connection) -> None:
        seen.append(connection_id(connection))
        if busy:
            monkeypatch.setattr(connection._raw, "receive", interrupt)
            connection.rows(b"SELECT 1")
        raise raised

    def interrupt() -> None:
        raise raised

    with pytest.raises(raised):
        pool.run(interrupted)

    assert (pool.run(connection_id) in seen) is not busy


@pytest.mark.mysql
@pytest.mark.twice
def test_a_call_beyond_the_pool_size_times_out_and_names_the_setting(pool):
    """The error of a pool that is too small names pool_size."""
    pool.options = dataclasses.replace(pool.options, pool_timeout_s=0.1)

    def nested(depth: int) -> int:
        return pool.run(lambda connection: nested(depth - 1) if depth > 1 else connection_id(connection))

    assert nested(2)
    with pytest.raises(ServerTimeout, match="pool_size"):
        nested(3)
    assert nested(2)


@pytest.mark.mysql
@pytest.mark.twice
def test_session_is_strict_whatever_the_server_default(pool):
    """Statements need backslash escapes and errors rather than truncation."""
    mode = pool.run(lambda connection: connection.rows(b"SELECT @@sql_mode"))[0][0]

    assert "STRICT_ALL_TABLES" in mode
    assert "NO_BACKSLASH_ESCAPES" not in mode


@pytest.mark.mysql
@pytest.mark.twice
def test_transaction_is_rolled_back_if_the_block_raises(pool):
    """The connection is usable afterwards."""
    pool.run(lambda connection: connection.execute(b"CREATE DATABASE IF NOT EXISTS pool_test"))
    pool.run(lambda connection: connection.execute(b"CREATE OR REPLACE VIEW pool_test.v AS SELECT 1"))
    pool.run(lambda connection: connection.execute(b"DROP TABLE IF EXISTS pool_test.t"))
    pool.run(lambda connection: connection.execute(b"CREATE TABLE pool_test.t (n INT PRIMARY KEY) ENGINE=InnoDB"))

    def half(connection) -> None:
        with connection.transaction():
            connection.execute(b"INSERT INTO pool_test.t VALUES (1)")
            connection.execute(b"INSERT INTO pool_test.t VALUES (1)")

    with pytest.raises(ServerError):
        pool.run(half)

    assert pool.run(lambda connection: connection.rows(b"SELECT * FROM pool_test.t")) == ()


@pytest.mark.mysql
@pytest.mark.twice
def test_a_lock_around_a_failed_transaction_is_released_with_its_connection(pool):
    """ROLLBACK ends the transaction, but not the lock that the surrounding block holds."""

    def refused(connection) -> None:
        with connection.whole():
            connection.rows(b"SELECT GET_LOCK('around', 0)")
            with connection.transaction():
                raise DuplicateKey("there already", node="db-1:3306")

    with pytest.raises(DuplicateKey):
        pool.run(refused)

    assert not pool.idle
    assert pool.run(lambda other: other.rows(b"SELECT GET_LOCK('around', 60)")) == ((1,),)


@pytest.mark.guarantee("reply-owner")
@pytest.mark.mysql
@pytest.mark.twice
@pytest.mark.parametrize(
    ("raised", "busy"),
    [
        (pymysql.err.OperationalError(2008, "Out of memory"), True),
        (pymysql.err.OperationalError(2020, "Got packet bigger than 'max_allowed_packet' bytes"), True),
        (KeyError(1317), True),
        (pymysql.err.OperationalError(1317, "Query execution was interrupted"), False),
    ],
)
def test_only_an_error_of_the_server_ends_a_reply(pool, monkeypatch, raised, busy):
    """After an error of the client library, the rest of the reply may still arrive."""

    def give_up(raw: pymysql.connections.Connection, command: int, query: bytes) -> None:
        raise raised

    pool.run(lambda connection: connection.rows(b"SELECT 1"))
    monkeypatch.setattr(pymysql.connections.Connection, "_execute_command", give_up)
    with pytest.raises(ServerError), pool.connection() as connection:
        connection.rows(b"SELECT 2")

    assert connection.busy == busy
    assert (connection in pool.idle) != busy


@pytest.mark.mysql
@pytest.mark.twice
def test_forked_child_does_not_use_its_parents_connections(pool):
    """Two processes on one socket would read each other's replies."""
    before = pool.run(connection_id)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writer, str(pool.run(connection_id)).encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    child_id = int(os.read(reader, 100))
    os.close(reader)
    os.close(writer)

    assert child_id != before
    assert pool.run(connection_id) == before


@pytest.mark.mysql
@pytest.mark.twice
def test_forked_child_abandons_every_pool_although_some_connections_are_closed(pool):
    """A closed connection has no socket to abandon, and one that is being wrapped in TLS no file descriptor."""

    class Closed:
        def __init__(self, sock: object) -> None:
            self._sock = sock

    closed = [Closed(None), Closed(types.SimpleNamespace(fileno=lambda: -1)), Closed(None)]
    pools = [pool, *(NodePool(pool.node, pool.credentials, PoolOptions()) for _ in closed[1:])]
    before = [each.run(connection_id) for each in pools]
    for each, connection in zip(pools, closed, strict=True):
        each.opened.add(connection)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writer, repr([each.run(connection_id) for each in pools]).encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    child_ids = ast.literal_eval(os.read(reader, 1000).decode())
    os.close(reader)
    os.close(writer)

    assert not set(child_ids) & set(before)
    assert [each.run(connection_id) for each in pools] == before
    for each in pools[1:]:
        each.close()


@pytest.mark.mysql
@pytest.mark.twice
def test_threads_share_a_pool(pool):
    """Twenty threads on two connections all get their own answers."""
    wrong = []

    def ask(number: int) -> None:
        for turn in range(20):
            answer = pool.run(lambda connection: connection.rows(b"SELECT %d" % (number * 1000 + turn)))  # noqa: B023
            if answer != ((number * 1000 + turn,),):
                wrong.append(answer)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert wrong == []


@pytest.mark.mysql
@pytest.mark.twice
def test_ensured_settings_are_sent_once_per_connection(server_urls):
    """Later users of the connection have the settings without another round trip."""
    parsed = parse_url(server_urls[0])
    pool = NodePool(parsed.node, parsed.credentials, PoolOptions())
    shown = b"SELECT @@session.lock_wait_timeout"
    with pool.connection() as first, pool.connection() as second:
        first.ensure(b"SET SESSION lock_wait_timeout=7")
        first.execute(b"SET SESSION lock_wait_timeout=9")
        first.ensure(b"SET SESSION lock_wait_timeout=7")
        found = first.rows(shown), second.rows(shown)
    pool.close()

    assert found[0] == ((9,),)
    assert found[1] != ((7,),)
