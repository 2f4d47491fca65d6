"""Connections: what URLs mean, what errors become, and what happens when a connection breaks."""

from __future__ import annotations

import ast
import contextlib
import errno
import os
import threading
import types

import pymysql
import pytest
import sqlalchemy

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
        (sqlalchemy.exc.OperationalError("x", {}, pymysql.err.OperationalError(1213, "Deadlock")), False, Deadlock),
    ],
)
def test_translated_every_kind_of_driver_error_has_one_of_ours(driver_error, connecting, kind):
    """Nobody has to know PyMySQL's classes."""
    error = translated(driver_error, "db-1:3306", 7, connecting=connecting)

    assert type(error) is kind
    assert (error.node, error.shard) == ("db-1:3306", 7)
    assert "db-1:3306, shard 7" in str(error)


@pytest.mark.parametrize("code", [2002, 2003])
def test_translated_unreachable_server_asks_for_what_its_address_has(code):
    """Drivers use either number for sockets and for ports; the address decides."""
    driver_error = pymysql.err.OperationalError(code, "Can't connect to MySQL server on 'localhost' ([Errno 2] x)")
    through_socket = translated(driver_error, "/run/mysqld/none.sock", None, connecting=True)
    through_port = translated(driver_error, "localhost:3306", None, connecting=True)

    assert str(through_socket).endswith("is the server running, and is the socket right?")
    assert "localhost" not in str(through_socket)
    assert str(through_port).endswith("is the server running, and are host and port right?")


@pytest.mark.mysql
def test_connections_through_a_socket_do_without_tls_unless_told(servers, flavour):
    """What stays on the machine needs none, and setting it up took most of the time to connect."""

    def cipher(url: str) -> str:
        parsed = parse_url(url)
        with contextlib.closing(NodePool(parsed.node, parsed.credentials, PoolOptions())) as pool:
            ((_, value),) = pool.run(lambda connection: connection.rows(b"SHOW SESSION STATUS LIKE 'Ssl_cipher'"))
        return str(value)

    assert cipher(servers[0].url) == ""
    if flavour == "mysql":
        assert cipher(f"{servers[0].url}&ssl_mode=required") != ""
    else:  # as it is started here it has no certificate
        with pytest.raises(ServerRefused, match="give the server a certificate"):
            cipher(f"{servers[0].url}&ssl_mode=required")


def test_connect_to_nobody_says_where_and_what_to_do(tmp_path):
    """A wrong address is a one-line error at once, not a driver's traceback."""
    with pytest.raises(ServerUnavailable, match="is the server running") as caught:
        connect(f"mysql://root@/trips?unix_socket={tmp_path}/none.sock")
    assert caught.value.retryable


@pytest.mark.mysql
@pytest.mark.parametrize(
    "options", ["nonsense=1", "connect_timeout=soon", "connect_timeout=0", "ssl_mode=perhaps", "charset=latin1"]
)
def test_connect_with_options_that_cannot_be_used_is_refused(datastore_url, options):
    """What the driver does not take is an error of the URL, and no driver's TypeError."""
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
    pool = NodePool(parsed.node, parsed.credentials, PoolOptions(pool_size=2, pool_timeout_s=1))
    yield pool
    pool.close()


def connection_id(connection) -> int:
    """Return the server's number of a connection."""
    return int(connection.rows(b"SELECT CONNECTION_ID()")[0][0])


@pytest.mark.mysql
def test_run_on_a_killed_idle_connection_connects_again(pool):
    """Conformance 25: a server that closed idle connections costs nobody a call."""
    first = pool.run(connection_id)
    killer = NodePool(pool.node, pool.credentials, PoolOptions())
    killer.run(lambda connection: connection.execute(b"KILL %d" % first))
    killer.close()

    assert pool.run(connection_id) != first


@pytest.mark.mysql
def test_run_write_that_loses_every_connection_is_outcome_unknown(pool):
    """A write is never said to have failed when it may have happened."""

    def lose(connection) -> None:
        with contextlib.suppress(ServerTimeout):  # MySQL says "interrupted" of the KILL itself
            connection.execute(b"KILL %d" % connection_id(connection))
        connection.execute(b"DO 1")

    with pytest.raises(OutcomeUnknown, match="make the same call again"):
        pool.run(lose, writes=True)
    with pytest.raises(ServerUnavailable):
        pool.run(lose)


@pytest.mark.mysql
def test_run_once_is_repeated_until_commit_is_sent_and_never_after(pool):
    """Nothing of a transaction that was not committed is left; where that is not known, it is said and not tried."""
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
@pytest.mark.parametrize("raised", [KeyboardInterrupt, RuntimeError, TimeoutError])
@pytest.mark.parametrize("busy", [True, False])
def test_connection_is_kept_where_no_reply_is_on_its_way_whoever_raises(pool, monkeypatch, raised, busy):
    """What counts is the proof that every reply was read, not the class of what ended the block."""
    seen = []

    def interrupted(connection) -> None:
        seen.append(connection_id(connection))
        if busy:
            monkeypatch.setattr(connection._raw, "_read_query_result", lambda unbuffered: interrupt())
            connection.rows(b"SELECT 1")
        raise raised

    def interrupt() -> None:
        raise raised

    with pytest.raises(raised):
        pool.run(interrupted)

    assert (pool.run(connection_id) in seen) is not busy


@pytest.mark.mysql
def test_connections_over_the_pools_size_wait_and_then_say_so(pool):
    """A pool that is too small is named as such."""

    def nested(depth: int) -> int:
        return pool.run(lambda connection: nested(depth - 1) if depth > 1 else connection_id(connection))

    assert nested(2)
    with pytest.raises(ServerTimeout, match="pool_size"):
        nested(3)
    assert nested(2)


@pytest.mark.mysql
def test_session_is_strict_whatever_the_server_says(pool):
    """Statements need backslash escapes and errors rather than truncation."""
    mode = pool.run(lambda connection: connection.rows(b"SELECT @@sql_mode"))[0][0]

    assert "STRICT_ALL_TABLES" in mode
    assert "NO_BACKSLASH_ESCAPES" not in mode


@pytest.mark.mysql
def test_transaction_is_rolled_back_where_the_block_raises(pool):
    """And the connection is fit for use afterwards."""
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
def test_a_lock_around_a_transaction_that_was_refused_goes_with_its_connection(pool):
    """ROLLBACK ends the transaction; what the block around it holds is held still."""

    def refused(connection) -> None:
        with connection.whole():
            connection.rows(b"SELECT GET_LOCK('around', 0)")
            with connection.transaction():
                raise DuplicateKey("there already", node="db-1:3306")

    with pytest.raises(DuplicateKey):
        pool.run(refused)

    assert not pool.idle
    assert pool.run(lambda other: other.rows(b"SELECT GET_LOCK('around', 5)")) == ((1,),)


@pytest.mark.mysql
@pytest.mark.parametrize(
    ("raised", "busy"),
    [
        (pymysql.err.OperationalError(2008, "Out of memory"), True),
        (pymysql.err.OperationalError(2020, "Got packet bigger than 'max_allowed_packet' bytes"), True),
        (KeyError(1317), True),
        (pymysql.err.OperationalError(1317, "Query execution was interrupted"), False),
    ],
)
def test_only_what_the_server_says_ends_a_reply(pool, monkeypatch, raised, busy):
    """A client library that gives up has left the rest of it on the way."""

    def give_up(raw: pymysql.connections.Connection, command: int, query: bytes) -> None:
        raise raised

    pool.run(lambda connection: connection.rows(b"SELECT 1"))
    by_the_driver = types.FunctionType(give_up.__code__, {"__name__": "pymysql"}, closure=give_up.__closure__)
    monkeypatch.setattr(pymysql.connections.Connection, "_execute_command", by_the_driver)
    with pytest.raises(ServerError), pool.connection() as connection:
        connection.rows(b"SELECT 2")

    assert connection.busy == busy
    assert (connection in pool.idle) != busy


@pytest.mark.mysql
def test_what_watches_the_driver_is_not_taken_for_the_application(pool, monkeypatch):
    """Tracers of applications wrap a driver's calls: their frames stand between, and its errors stay its own."""
    send, seen = pymysql.connections.Connection._execute_command, []

    def traced(raw: pymysql.connections.Connection, command: int, query: bytes) -> None:
        seen.append(query)
        send(raw, command, query)

    monkeypatch.setattr(pymysql.connections.Connection, "_execute_command", traced)
    with pytest.raises(DatabaseMissing):
        pool.run(lambda connection: connection.rows(b"SELECT * FROM nowhere.nothing"))
    assert pool.run(lambda connection: connection_id(connection) == connection_id(connection))
    assert len(seen) >= 3


@pytest.mark.mysql
@pytest.mark.parametrize("module", ["gevent._socket3", "eventlet.greenio.base"])
def test_a_lost_connection_is_one_whoever_makes_the_sockets(pool, module):
    """Those of gevent and eventlet stand in the place of Python's."""

    def read(number_of_bytes: int) -> bytes:
        raise ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")

    def lose(connection) -> int:
        seen.append(connection_id(connection))
        if len(seen) == 1:
            connection._raw._rfile = types.SimpleNamespace(
                read=types.FunctionType(read.__code__, {**globals(), "__name__": module, "__builtins__": __builtins__}),
                close=connection._raw._rfile.close,
            )
        return connection_id(connection)

    seen: list[int] = []

    assert pool.run(lose) == seen[-1]
    assert len(seen) == 2


@pytest.mark.mysql
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
    childs = int(os.read(reader, 100))
    os.close(reader)
    os.close(writer)

    assert childs != before
    assert pool.run(connection_id) == before


@pytest.mark.mysql
def test_forked_child_lets_go_of_every_pool_though_some_connections_are_closed(pool):
    """A closed connection has no socket to let go of, and mysqlclient has an error of its own for that."""

    class Closed:
        def fileno(self) -> int:
            raise pymysql.err.OperationalError(2006, "")

    closed = [Closed() for _ in range(3)]
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
    childs = ast.literal_eval(os.read(reader, 1000).decode())
    os.close(reader)
    os.close(writer)

    assert not set(childs) & set(before)
    assert [each.run(connection_id) for each in pools] == before
    for each in pools[1:]:
        each.close()


@pytest.mark.mysql
def test_threads_share_a_pool(pool):
    """Twenty threads on two connections, each gets its own answers."""
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
def test_ensured_settings_are_sent_once_for_each_connection(server_urls):
    """Whoever gets the connection later has them, and they cost no round trip then."""
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
