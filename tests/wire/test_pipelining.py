"""Several servers asked at once: each works before the reply of the first one is read, and none is asked twice."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, cast

import pytest

from schemaless.errors import ServerError, ServerTimeout
from schemaless.wire.errors import ConnectionLost
from schemaless.wire.pipelining import Question, ask

pytestmark = [pytest.mark.mysql, pytest.mark.once]


class Server:
    """Stands for a server's pool, and for its connection: does what a test says, and notes in which order."""

    def __init__(self, name: str, done: list[str], losses: int = 0, away: bool = False, work: int = 1) -> None:
        self.node = name
        self.work = work
        self._done = done
        self._losses = losses
        self._away = away

    def run(self, operation: Callable[[Any], None], **asked: object) -> None:
        assert asked == {"shard": 1, "route": "the route"}
        if self._away:
            raise ServerError("it is away", node=self.node)
        while True:
            try:
                return operation(self)
            except ConnectionLost as error:
                self._done.append(f"{error.node} lost")

    def begin(self, sql: bytes, check: object) -> Callable[[], Any]:
        self._done.append(f"ask {self.node}")

        def rows() -> Any:
            if self._losses:
                self._losses -= 1
                raise ConnectionLost("it was lost", node=self.node)
            self._done.append(f"read {self.node}")
            return ((sql,),)

        return rows


def asked(servers: Iterable[Server]) -> tuple[list[ServerError | None], list[bytes]]:
    """Ask servers; return what each met, and the rows in the order in which they were taken."""
    route: Any = "the route"
    taken: list[bytes] = []
    questions = [
        Question(cast("Any", server), server.node.encode, lambda rows: None, 1, route, server.work)
        for server in servers
    ]
    return ask(questions, lambda rows: taken.append(rows[0][0])), taken


def test_each_server_works_before_a_reply_is_read_and_always_in_one_order():
    """Whoever holds a connection to a server waits for one to a later server only."""
    done: list[str] = []

    assert asked(Server(name, done) for name in "cab") == ([None] * 3, [b"a", b"b", b"c"])
    assert done == ["ask a", "ask b", "ask c", "read a", "read b", "read c"]
    assert asked([]) == ([], [])


def test_what_has_the_least_to_do_is_read_first_and_taken_while_the_others_work():
    """In whatever order they were asked."""
    done: list[str] = []
    works = dict(zip("abcd", (3, 1, 4, 2), strict=True))

    assert asked(Server(name, done, work=work) for name, work in works.items()) == (
        [None] * 4,
        [b"b", b"d", b"a", b"c"],
    )
    assert done[:4] == ["ask a", "ask b", "ask c", "ask d"]


def test_so_many_servers_at_a_time_and_no_more():
    """Each holds a connection, and some of the stack."""
    done: list[str] = []
    errors, taken = asked(Server(f"{number:03}", done) for number in range(300))
    held, most = 0, 0
    for step in done:
        held += 1 if step.startswith("ask") else -1
        most = max(most, held)

    assert errors == [None] * 300
    assert sorted(taken) == [b"%03d" % number for number in range(300)]
    assert (held, most) == (0, 8)


@pytest.mark.parametrize("lost", "abc")
def test_a_lost_connection_is_about_its_own_server_alone(lost):
    """That one is asked again; the others were asked, and are not asked once more, and nothing is taken twice."""
    done: list[str] = []
    errors, taken = asked(Server(name, done, losses=name == lost) for name in "abc")

    assert errors == [None] * 3
    assert taken == [*(name.encode() for name in "abc" if name != lost), lost.encode()]
    assert done == [
        *("ask a", "ask b", "ask c"),
        *(f"read {name}" for name in "abc" if name != lost),
        *(f"{lost} lost", f"ask {lost}", f"read {lost}"),
    ]


@pytest.mark.parametrize("away", "abc")
def test_a_server_that_is_away_keeps_no_other_from_being_asked(away):
    """Its error stands in the place of None."""
    done: list[str] = []
    errors, taken = asked(Server(name, done, away=name == away) for name in "abc")

    assert [isinstance(error, ServerError) for error in errors] == [name == away for name in "abc"]
    assert taken == [name.encode() for name in "abc" if name != away]
    assert sorted(done) == sorted(f"{what} {name}" for name in "abc" if name != away for what in ("ask", "read"))


class Stopped(BaseException):
    """Stands for what a signal's handler raises."""


SERVERS_ERRORS = [kind("by a handler", node="handler") for kind in (ConnectionLost, ServerTimeout, ServerError)]


@pytest.mark.parametrize("raised", [Stopped("by a handler"), OSError("by a handler"), *SERVERS_ERRORS], ids=repr)
@pytest.mark.parametrize("when", range(4))
def test_what_is_raised_while_servers_work_ends_the_call(raised, when):
    """Whatever it is, it is no server's error: nothing is asked again, and nothing counts as answered by it."""
    done: list[str] = []
    route: Any = "the route"
    servers: Any = [Server(name, done) for name in "abc"]
    taken: list[object] = []

    def take(rows: object) -> None:
        taken.append(rows)
        meanwhile()

    def meanwhile() -> None:
        if len(taken) == when:
            raise raised

    questions = [Question(server, server.node.encode, lambda rows: None, 1, route, 1) for server in servers]
    with pytest.raises(type(raised), match="by a handler"):
        ask(questions, take, meanwhile)
    assert done == ["ask a", "ask b", "ask c", *[f"read {name}" for name in "abc"[:when]]]


@pytest.mark.parametrize("raised", SERVERS_ERRORS, ids=repr)
def test_what_is_raised_before_rows_are_taken_leaves_none_out(raised):
    """A handler's error may pass for a server's there: whoever was not taken has an error, and is asked again."""
    done: list[str] = []
    route: Any = "the route"
    servers: Any = [Server(name, done) for name in "abc"]
    taken: list[Any] = []

    class Handler:
        """How much there is to do, which raises once, where it is compared: before the first server is read."""

        compared = False

        def __lt__(self, other: object) -> bool:
            if not Handler.compared:
                Handler.compared = True
                raise raised
            return False

    work: Any = Handler()
    questions = [Question(server, server.node.encode, lambda rows: None, 1, route, work) for server in servers]
    errors = ask(questions, taken.append)
    missing = {b"a", b"b", b"c"} - {rows[0][0] for rows in taken}

    assert {servers[number].node.encode() for number, error in enumerate(errors) if error is not None} >= missing
