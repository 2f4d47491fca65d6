"""Queries to several servers at once: all are sent before the first reply is read, and no server is queried twice."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from schemaless.errors import ServerError, ServerTimeout
from schemaless.wire import pool as pool_module
from schemaless.wire.attempts import Attempt
from schemaless.wire.connection import Connection
from schemaless.wire.errors import ConnectionLost
from schemaless.wire.pipelining import Query, run_queries
from schemaless.wire.pool import NodePool, PoolOptions
from schemaless.wire.urls import parse_url

pytestmark = [pytest.mark.mysql, pytest.mark.once]


class Server:
    """Stands in for a server's pool and for its connection; records the steps of all servers in one list.

    Attributes:
        held: the number of connections that are checked out.
        errors: the error that each connection was returned with.
    """

    def __init__(
        self, name: str, steps: list[str], losses: int = 0, away: bool = False, size: int = 1, alarmed: bool = False
    ) -> None:
        self.node = name
        self.size = size
        self.breaker = SimpleNamespace(alarmed=alarmed)
        self.slots = self
        self.held = 0
        self.errors: list[ServerError | None] = []
        self._steps = steps
        self._losses = losses
        self._away = away

    def connection(self, shard: int) -> CheckedOut:
        assert shard == 1
        return CheckedOut(self)

    def connect(self) -> Server:
        if self._away:
            raise ServerError("it is down", node=self.node)
        return self

    def is_verified(self, connection: Server, shard: int) -> bool:
        return (connection, shard) == (self, 1)

    def give_back(self, slot: list[object]) -> None:
        self.held -= len(slot)
        slot.clear()

    def run_attempts(self, operation: Callable[[Any], Any], attempt: Attempt, failed: object) -> Any:
        assert attempt == Attempt(1, False, cast("Any", "the route"))
        assert isinstance(failed, ServerError) == (not self.breaker.alarmed)
        self._steps.append(f"retry {self.node}")
        return operation(self.connect())

    def begin(self, sql: bytes, check: object) -> Callable[[], Any]:
        self._steps.append(f"send {self.node}")
        return lambda: self._read(sql)

    def rows(self, sql: bytes, check: object) -> Any:
        return self.begin(sql, check)()

    def _read(self, sql: bytes) -> Any:
        if self._losses:
            self._losses -= 1
            raise ConnectionLost("it was lost", node=self.node)
        self._steps.append(f"read {self.node}")
        return ((sql,),)


class CheckedOut:
    """Stands in for a connection that is checked out, and for its slot."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.slot: list[object] = []

    def begin(self) -> Server:
        connection = self.server.connect()
        self.server.held += 1
        self.slot.append(self)
        return connection

    def end(self, error: ServerError | None) -> None:
        if self.slot:
            self.server.errors.append(error)
        self.server.give_back(self.slot)


def queries_of(servers: Iterable[Server]) -> list[Query]:
    route: Any = "the route"
    return [
        Query(cast("Any", server), server.node.encode, lambda rows: None, 1, route, server.size) for server in servers
    ]


def run(servers: Iterable[Server]) -> tuple[list[ServerError | None], list[bytes]]:
    """Query servers; return the error of each, and the rows in the order in which they were delivered."""
    servers = list(servers)
    rows: list[bytes] = []
    errors = run_queries(queries_of(servers), lambda of_server: rows.append(of_server[0][0]))
    assert [server.held for server in servers] == [0] * len(servers)
    return errors, rows


def test_every_query_is_sent_before_a_reply_is_read_and_always_in_one_order():
    """A caller that holds a connection to a server only waits for connections to later servers."""
    steps: list[str] = []

    assert run(Server(name, steps) for name in "cab") == ([None] * 3, [b"a", b"b", b"c"])
    assert steps == ["send a", "send b", "send c", "read a", "read b", "read c"]
    assert run([]) == ([], [])


def test_the_smallest_reply_is_read_first_and_delivered_while_others_work():
    """The order of the replies does not depend on the order in which the servers were queried."""
    steps: list[str] = []
    sizes = dict(zip("abcd", (3, 1, 4, 2), strict=True))

    assert run(Server(name, steps, size=size) for name, size in sizes.items()) == (
        [None] * 4,
        [b"b", b"d", b"a", b"c"],
    )
    assert steps[:4] == ["send a", "send b", "send c", "send d"]


def test_at_most_eight_servers_are_queried_at_a_time():
    """Each of them holds one of the caller's connections."""
    steps: list[str] = []
    errors, rows = run(Server(f"{number:03}", steps) for number in range(300))
    held, most = 0, 0
    for step in steps:
        held += 1 if step.startswith("send") else -1
        most = max(most, held)

    assert errors == [None] * 300
    assert sorted(rows) == [b"%03d" % number for number in range(300)]
    assert (held, most) == (0, 8)


@pytest.mark.parametrize("lost", "abc")
def test_a_lost_connection_concerns_only_its_own_server(lost):
    """That server is retried, with no other connection held; the others are not, and no row is delivered twice."""
    steps: list[str] = []
    servers = [Server(name, steps, losses=name == lost) for name in "abc"]
    errors, rows = run(servers)

    assert errors == [None] * 3
    assert rows == [*(name.encode() for name in "abc" if name != lost), lost.encode()]
    assert steps == [
        *("send a", "send b", "send c"),
        *(f"read {name}" for name in "abc" if name != lost),
        *(f"retry {lost}", f"send {lost}", f"read {lost}"),
    ]
    assert [[type(error) for error in server.errors] for server in servers] == [
        [ConnectionLost if name == lost else type(None)] for name in "abc"
    ]


@pytest.mark.parametrize("away", "abc")
def test_a_server_that_is_down_does_not_keep_others_from_being_queried(away):
    """Its error is returned in its position."""
    steps: list[str] = []
    errors, rows = run(Server(name, steps, away=name == away) for name in "abc")

    assert [isinstance(error, ServerError) for error in errors] == [name == away for name in "abc"]
    assert rows == [name.encode() for name in "abc" if name != away]
    assert sorted(steps) == sorted(
        [f"retry {away}", *(f"{step} {name}" for name in "abc" if name != away for step in ("send", "read"))]
    )


def test_a_server_with_an_alarm_is_queried_alone():
    """The pool has to find out first whether the server is still the primary."""
    steps: list[str] = []
    errors, rows = run(Server(name, steps, alarmed=name == "b") for name in "abc")

    assert (errors, rows) == ([None] * 3, [b"a", b"c", b"b"])
    assert steps == ["send a", "send c", "read a", "read c", "retry b", "send b", "read b"]


class Interrupted(BaseException):
    """Stands in for what a signal handler raises."""


SERVER_ERRORS = [kind("by a handler", node="handler") for kind in (ConnectionLost, ServerTimeout, ServerError)]


@pytest.mark.parametrize("raised", [Interrupted("by a handler"), OSError("by a handler"), *SERVER_ERRORS], ids=repr)
@pytest.mark.parametrize("when", range(4))
def test_an_exception_of_the_caller_ends_the_call(raised, when):
    """Whatever its class, it is not taken for a server's: nothing is retried, and no connection counts as lost."""
    steps: list[str] = []
    servers = [Server(name, steps) for name in "abc"]
    delivered: list[object] = []

    def on_rows(rows: object) -> None:
        delivered.append(rows)
        while_waiting()

    def while_waiting() -> None:
        if len(delivered) == when:
            raise raised

    with pytest.raises(type(raised), match="by a handler") as caught:
        run_queries(queries_of(servers), on_rows, while_waiting)
    assert caught.value is raised
    assert steps == ["send a", "send b", "send c", *[f"read {name}" for name in "abc"[:when]]]
    assert [(server.held, server.errors) for server in servers] == [(0, [None])] * 3


@pytest.mark.parametrize("raised", [Interrupted("by a handler"), *SERVER_ERRORS], ids=repr)
def test_an_interrupt_between_the_steps_arrives_and_returns_every_connection(raised):
    """Here it strikes while the order of the replies is determined."""
    servers = [Server(name, []) for name in "abc"]

    class Size(int):
        def __lt__(self, other: object) -> bool:
            raise raised

    servers[0].size = servers[1].size = Size()
    with pytest.raises(type(raised)) as caught:
        run_queries(queries_of(servers), lambda rows: None)
    assert caught.value is raised
    assert [(server.held, server.errors) for server in servers] == [(0, [None])] * 3


@pytest.mark.parametrize("struck", "abc")
def test_an_interrupt_while_connections_are_returned_loses_no_slot(struck, monkeypatch):
    """What the first pass does not return, a second one does."""
    servers = [Server(name, []) for name in "abc"]
    end = CheckedOut.end

    def interrupted(self: CheckedOut, error: ServerError | None) -> None:
        if self.server.node == struck:
            raise Interrupted
        end(self, error)

    monkeypatch.setattr(CheckedOut, "end", interrupted)
    with pytest.raises(Interrupted):
        run_queries(queries_of(servers), lambda rows: None)
    assert [server.held for server in servers] == [0] * 3


def test_a_query_without_a_reply_in_time_is_not_sent_again(server_urls, monkeypatch, eventually):
    """It may still be running on the server, so a second attempt would only add to the load."""
    parsed = parse_url(server_urls[0])
    monkeypatch.setattr(pool_module, "PROBE_S", 60)
    pool = NodePool(parsed.node, parsed.credentials, PoolOptions(read_timeout_s=1, pool_size=1))
    eventually(lambda: is_connected(pool), "the server has answered in time once")
    sent: list[bytes] = []
    ask = Connection.ask

    def recorded(connection: Connection, sql: bytes, **options: bool) -> Any:
        if options.get("send", True):
            sent.append(sql)
        return ask(connection, sql, **options)

    monkeypatch.setattr(Connection, "ask", recorded)
    route: Any = SimpleNamespace(moved=lambda *_: None, confirm=lambda *_: None)
    rows: list[object] = []
    errors = run_queries([Query(pool, lambda: b"SELECT SLEEP(4)", None, 1, route, 1)], rows.append)

    assert [type(error) for error in errors] == [ServerTimeout]
    assert (sent, rows, pool.slots.free()) == ([b"SELECT SLEEP(4)"], [], 1)
    pool.close()


def is_connected(pool: NodePool) -> bool:
    """Return whether a pool has an open connection, after an attempt to open one."""
    with contextlib.suppress(ServerError):
        pool.run(lambda connection: None)
    return bool(pool.idle)
