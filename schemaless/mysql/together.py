"""Several servers asked at once by one thread: each is sent its query before the reply of the first one is read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from schemaless.errors import ServerError
from schemaless.mysql.connection import Check, Connection, Rows
from schemaless.mysql.pool import NodePool
from schemaless.mysql.route import Route

_AT_ONCE: Final = 8
"""So many servers work at a time: each holds a connection, and some of the caller's stack."""


class Question(NamedTuple):
    """A query for a server.

    Attributes:
        pool: the server's.
        sql: makes the query, while the servers before this one work; may be asked again where the connection was lost.
        check: looks at its rows, if any.
        shard: one that it is about.
        route: asked whether that one is still there where the server fails.
    """

    pool: NodePool
    sql: Callable[[], bytes]
    check: Check | None
    shard: int
    route: Route


def ask(questions: Sequence[Question]) -> list[Rows | ServerError]:
    """Return the rows of each question, or what its server met instead; each is about another server."""
    replies: dict[int, Rows | ServerError] = {}
    # Always in this order: nobody waits for a connection to a server while somebody else waits the other way round.
    order = sorted(range(len(questions)), key=lambda number: str(questions[number].pool.node))
    for start in range(0, len(order), _AT_ONCE):
        _ask(questions, order[start : start + _AT_ONCE], replies)
    return [replies[number] for number in range(len(questions))]


def _ask(questions: Sequence[Question], order: Sequence[int], replies: dict[int, Rows | ServerError]) -> None:
    """Ask the first of these; those behind it while its server works, or where it could not be asked."""
    if not order:
        return
    (pool, sql, check, shard, route), left = questions[order[0]], list(order[1:])

    def operation(connection: Connection) -> Rows:
        rows = connection.begin(sql(), check)
        others = left.copy()
        # Once, however often this is repeated.
        left.clear()
        _ask(questions, others, replies)
        return rows()

    try:
        replies[order[0]] = pool.run(operation, shard=shard, route=route)
    except ServerError as error:
        replies[order[0]] = error
    _ask(questions, left, replies)
