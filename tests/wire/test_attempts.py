"""What follows a failed attempt, as a table."""

from __future__ import annotations

import math
from typing import Any, cast

import pytest

from schemaless.errors import (
    BodyTooLarge,
    OutcomeUnknown,
    PrimaryNotClaimed,
    ServerError,
    ServerRefused,
    ServerTimeout,
    ServerUnavailable,
    ShardIdentityMismatch,
)
from schemaless.wire.attempts import ATTEMPTS, Attempt, Route, Step, next_step
from schemaless.wire.errors import (
    ConnectionLost,
    DatabaseMissing,
    Deadlock,
    DuplicateKey,
    Elsewhere,
    ReadOnly,
    ReplyTimedOut,
    ServerReplaced,
)

pytestmark = pytest.mark.once

ROUTE = cast("Route", object())
NOW_S = 100.0


def error(kind: type[Any], **attributes: object) -> Any:
    """Return an error of the server of shard 3."""
    made = kind("message", node="db-1:3306", shard=3)
    for name, value in attributes.items():
        setattr(made, name, value)
    return made


LOST = error(ConnectionLost)
MISSING = Elsewhere("gone", node="db-1:3306", shard=3, missing=error(DatabaseMissing, code=1146))
MOVED = Elsewhere("moved", node="db-1:3306", shard=3)
SUSPECT = error(ReadOnly, code=1290, may_have_moved=True)


def attempt(number: int = 1, *, writes: bool = True, lost: bool = False, **state: Any) -> Attempt:
    """Return a failed attempt."""
    return Attempt(3, writes, ROUTE, number, LOST if lost else None, **state)


@pytest.mark.parametrize(
    ("before", "failure", "step"),
    [
        # Lost connections and deadlocks are repeated, up to a number of attempts.
        (attempt(1, lost=True), LOST, Step.PAUSE),
        (attempt(1, lost=True, writes=False), LOST, Step.PAUSE),
        (attempt(ATTEMPTS, lost=True), LOST, Step.ELSEWHERE),
        (attempt(1), error(Deadlock), Step.PAUSE),
        (attempt(ATTEMPTS), error(Deadlock), Step.RAISE),
        # A slow statement is repeated only if it writes.
        (attempt(1, lost=True), error(ReplyTimedOut), Step.PAUSE),
        (attempt(1, lost=True, writes=False), error(ReplyTimedOut), Step.ELSEWHERE),
        # Outages have a window, which locks have not.
        (attempt(2, lost=True, retry_until_s=NOW_S), LOST, Step.PAUSE),
        (attempt(2, lost=True, retry_until_s=NOW_S - 0.1), LOST, Step.ELSEWHERE),
        (attempt(2, lost=True, retry_until_s=NOW_S - 0.1), error(ServerUnavailable), Step.ELSEWHERE),
        (attempt(2, lost=True, retry_until_s=NOW_S - 0.1), error(Deadlock), Step.PAUSE),
        (attempt(2, lost=True, retry_until_s=NOW_S - 0.1), error(ServerTimeout), Step.PAUSE),
        # A server that does not answer is given time only after a connection to it was lost.
        (attempt(1), error(ServerUnavailable), Step.ELSEWHERE),
        (attempt(1), error(PrimaryNotClaimed), Step.ELSEWHERE),
        (attempt(1), error(ServerTimeout), Step.RAISE),
        (attempt(2, lost=True), error(ServerUnavailable), Step.PAUSE),
        (attempt(2, lost=True), error(ServerTimeout), Step.PAUSE),
        # A write that a server refuses as read-only is repeated once, if its connection was discarded.
        (attempt(1), SUSPECT, Step.AGAIN),
        (attempt(2), SUSPECT, Step.ELSEWHERE),
        (attempt(1), error(ReadOnly, code=1836), Step.ELSEWHERE),
        # An address that leads to another server: the shard has to be verified there.
        (attempt(1), error(ServerReplaced), Step.ELSEWHERE),
        (attempt(1, lost=True), error(ServerReplaced), Step.ELSEWHERE),
        (Attempt(3, True, None, 1), error(ServerReplaced), Step.AGAIN),
        (Attempt(3, True, None, ATTEMPTS), error(ServerReplaced), Step.RAISE),
        # A missing table may have been moved.
        (attempt(1), error(DatabaseMissing, code=1146), Step.ELSEWHERE),
        (attempt(1, lost=True), error(DatabaseMissing, code=1049), Step.ELSEWHERE),
        # Everything else is the answer.
        (attempt(1), error(DuplicateKey), Step.RAISE),
        (attempt(2, lost=True), error(ServerRefused), Step.RAISE),
        (attempt(1), error(OutcomeUnknown), Step.RAISE),
        (attempt(2, lost=True), BodyTooLarge("too large"), Step.RAISE),
        (attempt(2, lost=True), ShardIdentityMismatch("another shard"), Step.RAISE),
        # The catalog names another server, or none yet.
        (attempt(0, changes=1), MOVED, Step.AGAIN),
        (attempt(0, changes=20), MOVED, Step.AGAIN),
        (attempt(0, changes=21), MOVED, Step.RAISE),
        (attempt(0, wait_until_s=NOW_S + 1), MISSING, Step.WAIT),
        (attempt(0, wait_until_s=NOW_S), MISSING, Step.RAISE),
    ],
)
def test_next_step(before: Attempt, failure: Any, step: Step) -> None:
    """The function is pure: neither the attempt nor the error changes."""
    assert next_step(before, failure, NOW_S) is step


def test_a_replica_without_the_shard_is_left_for_the_primary() -> None:
    """Its primary has the shard already."""
    assert next_step(attempt(0), MISSING, NOW_S, at_primary=False) is Step.PRIMARY


def test_a_write_keeps_its_lost_connection_on_the_next_server() -> None:
    """Whether it took effect is still open; a read begins anew there."""
    write, read = (attempt(1, writes=writes, retry_until_s=NOW_S) for writes in (True, False))
    for one in (write, read):
        one.failed(LOST)
        one.leave(MOVED)

    assert (write.number, write.changes, write.open_write, write.retry_until_s) == (0, 1, LOST, NOW_S)
    assert (read.number, read.changes, read.open_write, read.retry_until_s) == (0, 1, None, math.inf)
    write.leave(MISSING)
    assert write.changes == 1, "the catalog still names the same server"


@pytest.mark.parametrize("last", [error(DatabaseMissing), BodyTooLarge("too large"), ShardIdentityMismatch("another")])
def test_a_call_that_gives_up_says_whether_it_may_have_written(last: Any) -> None:
    """The error of the last attempt tells nothing about the one whose connection was lost."""
    with pytest.raises(OutcomeUnknown) as unknown:
        attempt(2, lost=True).give_up(last)
    assert unknown.value.__cause__ is last
    for nothing_open in (attempt(1), attempt(2, lost=True, writes=False)):
        with pytest.raises(type(last)) as raised:
            nothing_open.give_up(last)
        assert raised.value is last


def test_a_read_that_got_no_reply_in_time_says_what_to_set() -> None:
    """It is a timeout, not an outage."""
    with pytest.raises(ServerTimeout, match="set a higher read_timeout") as raised:
        attempt(1, lost=True, writes=False).give_up(error(ReplyTimedOut))

    assert isinstance(raised.value, ServerError)
    assert raised.value.shard == 3
