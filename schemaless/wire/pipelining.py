"""Queries to several servers at once, from one thread: every query is sent before the first reply is read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from schemaless.errors import ServerError
from schemaless.wire.attempts import Attempt, Route
from schemaless.wire.connection import Check, Rows
from schemaless.wire.pool import NodePool

_MAX_SERVERS: Final = 8
"""Servers queried at a time; the caller holds a connection to each of them."""


class Query(NamedTuple):
    """A query for one server.

    Attributes:
        pool: the server's connections.
        sql: builds the statement, while earlier servers are already working; called again for a retry.
        check: validates the rows, if given.
        shard: a shard that the query reads; named in errors.
        route: checks, after the server has failed, whether that shard is still on it.
        size: the amount of work relative to the other queries; replies to smaller queries are read first.
    """

    pool: NodePool
    sql: Callable[[], bytes]
    check: Check | None
    shard: int
    route: Route
    size: int


def run_queries(
    queries: Sequence[Query], on_rows: Callable[[Rows], None], while_waiting: Callable[[], object] = lambda: None
) -> list[ServerError | None]:
    """Run queries, each on a different server, and hand the rows of one server to the caller while the others work.

    Connections are acquired in the order of the servers' addresses, so that two callers never wait for each other. A
    server that fails is retried alone, by the rules of ``NodePool.run``, once the connections to the others have been
    returned.

    Args:
        queries: the queries; no two of them for the same server.
        on_rows: receives the rows of one query. It must not query a server, because connections are held. An exception
            from it ends the call and is passed on unchanged, even if it is a ``ServerError``.
        while_waiting: called once for every eight servers, after their queries have been sent; the same rules apply.

    Returns:
        For each query, the error of its server, or None if the query's rows were delivered.
    """
    errors: list[ServerError | None] = [None] * len(queries)
    in_order = sorted(range(len(queries)), key=lambda number: str(queries[number].pool.node))
    for start in range(0, len(in_order), _MAX_SERVERS):
        attempts = [(number, _First(queries[number])) for number in in_order[start : start + _MAX_SERVERS]]
        _first_attempts([attempt for _, attempt in attempts], on_rows, while_waiting)
        for number, attempt in attempts:
            if not attempt.answered:
                errors[number] = attempt.retry(on_rows)
    return errors


def _first_attempts(
    attempts: Sequence[_First], on_rows: Callable[[Rows], None], while_waiting: Callable[[], object]
) -> None:
    # The list holds every connection that must be returned. A signal handler may raise at any line: an attempt is in
    # the list before it takes a slot, and what an exception keeps the inner ``finally`` from returning, the outer does.
    try:
        try:
            for attempt in attempts:
                attempt.send()
            while_waiting()
            for attempt in sorted(attempts, key=lambda attempt: attempt.query.size):
                attempt.receive(on_rows)
        finally:
            for attempt in attempts:
                attempt.checked_out.end(attempt.error)
    finally:
        for attempt in attempts:
            attempt.query.pool.slots.give_back(attempt.checked_out.slot)


class _First:
    """The first attempt at a query.

    Attributes:
        answered: whether the rows have arrived and been handed to the caller.
        checked_out: the connection, once ``send`` has taken it.
        error: the error of the attempt.
    """

    __slots__ = ("_read", "answered", "checked_out", "error", "query")

    def __init__(self, query: Query) -> None:
        self.query = query
        self.answered = False
        # Takes no slot before ``begin``.
        self.checked_out = query.pool.connection(query.shard)
        self._read: Callable[[], Rows] | None = None
        self.error: ServerError | None = None

    def send(self) -> None:
        query = self.query
        if query.pool.breaker.alarmed:
            # ``NodePool.run`` first finds out whether the server is up and still has the shard.
            return
        statement = query.sql()
        try:
            connection = self.checked_out.begin()
            if query.pool.is_verified(connection, query.shard):
                self._read = connection.begin(statement, query.check)
        except ServerError as error:
            self.error = error

    def receive(self, on_rows: Callable[[Rows], None]) -> None:
        if self._read is None:
            return
        try:
            rows = self._read()
        except ServerError as error:
            self.error = error
            return
        # Outside of ``try``: an exception of the caller's is not the server's.
        on_rows(rows)
        self.answered = True

    def retry(self, on_rows: Callable[[Rows], None]) -> ServerError | None:
        """Run the query alone and return the error of its last attempt, if all attempts failed."""
        pool, sql, check, shard, route, _ = self.query
        statement = sql()
        try:
            rows = pool.run_attempts(
                lambda connection: connection.rows(statement, check), Attempt(shard, False, route), self.error
            )
        except ServerError as error:
            return error
        on_rows(rows)
        return None
