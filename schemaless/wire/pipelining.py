"""Several servers asked at once by one thread: each is sent its query before the reply of the first one is read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from schemaless.errors import ServerError
from schemaless.wire.connection import Check, Connection, Rows
from schemaless.wire.pool import NodePool
from schemaless.wire.route import Route

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
        work: how much it is, beside others; what takes less is read first.
    """

    pool: NodePool
    sql: Callable[[], bytes]
    check: Check | None
    shard: int
    route: Route
    work: int


def ask(
    questions: Sequence[Question], take: Callable[[Rows], None], meanwhile: Callable[[], None] = lambda: None
) -> list[ServerError | None]:
    """Ask each question, of which each is about another server; return what its server met, None where it answered.

    Args:
        questions: what to ask.
        take: given the rows of each, while others work: it must not ask a server, for connections are held meanwhile.
        meanwhile: called before replies are read, perhaps more than once, the first time while all work; it must not
            either.
    """
    asking = _Asking(questions, take, meanwhile)
    # Always in this order: nobody waits for a connection to a server while somebody else waits the other way round.
    order = sorted(range(len(questions)), key=lambda number: str(questions[number].pool.node))
    for start in range(0, len(order), _AT_ONCE):
        try:
            asking.ask(order[start : start + _AT_ONCE])
        except _Stopped as stopped:
            raise stopped.error from stopped.error.__cause__
    return [None if number in asking.taken else asking.error(number) for number in range(len(questions))]


class _Stopped(Exception):
    """Something was raised by what the caller does meanwhile: by no server, whatever its class; nothing is repeated."""

    def __init__(self, error: ServerError) -> None:
        super().__init__(str(error))
        self.error = error


class _Asking:
    """Some servers, asked at once.

    Attributes:
        taken: the numbers of the questions whose rows were taken.
    """

    def __init__(
        self, questions: Sequence[Question], take: Callable[[Rows], None], meanwhile: Callable[[], None]
    ) -> None:
        self._questions = questions
        self._take = take
        self._meanwhile = meanwhile
        self._errors: dict[int, ServerError] = {}
        self.taken: set[int] = set()
        self._waiting: dict[int, Callable[[], Rows]] = {}
        self._failed: dict[int, ServerError] = {}

    def error(self, number: int) -> ServerError:
        """Return what kept the rows of a question from being taken; its server's error, or a signal's handler's."""
        node = str(self._questions[number].pool.node)
        return self._errors.get(number) or ServerError("its reply was not read to the end", node=node)

    def ask(self, order: Sequence[int]) -> None:
        """Ask the first of these; those behind it while its server works, or where it could not be asked."""
        if not order:
            self._read()
            return
        number, left = order[0], list(order[1:])
        pool, sql, check, shard, route, _ = self._questions[number]

        def operation(connection: Connection) -> None:
            self._waiting[number] = connection.begin(sql(), check)
            others = left.copy()
            # Once, however often this is repeated.
            left.clear()
            self.ask(others)
            error = self._failed.pop(number, None)
            if error is not None:
                raise error

        try:
            pool.run(operation, shard=shard, route=route)
        except ServerError as error:
            self._errors[number] = error
        # Where it was not asked, those behind it were not either, and nobody's reply was read.
        self.ask(left)

    def _read(self) -> None:
        """Read the replies of all that were asked, of those first that have the least to do."""
        try:
            self._meanwhile()
        except ServerError as error:
            raise _Stopped(error) from error
        for number in sorted(self._waiting, key=lambda number: self._questions[number].work):
            try:
                rows = self._waiting.pop(number)()
            except ServerError as error:
                self._failed[number] = error
                continue
            try:
                self._take(rows)
            except ServerError as error:
                raise _Stopped(error) from error
            self.taken.add(number)
