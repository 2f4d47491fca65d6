"""Several servers asked at once: each works before the reply of the first one is read, and none is asked twice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from schemaless.errors import ServerError
from schemaless.mysql.together import Question, ask

pytestmark = [pytest.mark.mysql, pytest.mark.once]


class Server:
    """Stands for a server's pool, and for its connection: does what a test says, and notes in which order."""

    def __init__(self, name: str, done: list[str], losses: int = 0, away: bool = False) -> None:
        self.node = name
        self._done = done
        self._losses = losses
        self._away = away

    def run(self, operation: Callable[[Any], Any], **asked: object) -> Any:
        assert asked == {"shard": 1, "route": "the route"}
        if self._away:
            raise ServerError("it is away", node=self.node)
        while True:
            try:
                return operation(self)
            except ConnectionError:
                self._done.append(f"{self.node} lost")

    def begin(self, sql: bytes, check: object) -> Callable[[], Any]:
        self._done.append(f"ask {self.node}")

        def rows() -> Any:
            if self._losses:
                self._losses -= 1
                raise ConnectionError
            self._done.append(f"read {self.node}")
            return ((sql,),)

        return rows


def question(server: Server) -> Question:
    pool: Any = server
    route: Any = "the route"
    return Question(pool, server.node.encode, lambda rows: None, 1, route)


def test_each_server_works_before_a_reply_is_read_and_always_in_one_order():
    """Whoever holds a connection to a server waits for one to a later server only."""
    done: list[str] = []
    replies = ask([question(Server(name, done)) for name in "cab"])

    assert replies == [((b"c",),), ((b"a",),), ((b"b",),)]
    assert done == ["ask a", "ask b", "ask c", "read c", "read b", "read a"]
    assert ask([]) == []


def test_so_many_servers_at_a_time_and_no_more():
    """Each holds a connection, and some of the stack."""
    done: list[str] = []
    replies = ask([question(Server(f"{number:03}", done)) for number in range(300)])
    held, most = 0, 0
    for step in done:
        held += 1 if step.startswith("ask") else -1
        most = max(most, held)

    assert [rows[0][0] for rows in replies if not isinstance(rows, ServerError)] == [b"%03d" % n for n in range(300)]
    assert (held, most) == (0, 8)


def test_a_lost_connection_is_about_its_own_server_alone():
    """That one is asked again; those behind it were asked, and are not asked once more."""
    done: list[str] = []
    replies = ask([question(Server(name, done, losses=name == "a")) for name in "ab"])

    assert replies == [((b"a",),), ((b"b",),)]
    assert done == ["ask a", "ask b", "read b", "a lost", "ask a", "read a"]


@pytest.mark.parametrize("away", "abc")
def test_a_server_that_is_away_keeps_no_other_from_being_asked(away):
    """Its error stands in the place of its rows."""
    done: list[str] = []
    replies = ask([question(Server(name, done, away=name == away)) for name in "abc"])

    assert [isinstance(reply, ServerError) for reply in replies] == [name == away for name in "abc"]
    assert sorted(done) == sorted(f"{what} {name}" for name in "abc" if name != away for what in ("ask", "read"))
