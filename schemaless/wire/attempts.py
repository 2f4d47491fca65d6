"""What a call does after a failed attempt: repeat it here or on another server, or raise an error.

An ``Attempt`` records what is known, ``next_step`` decides, and its callers, ``NodePool`` and ``topology.shards``, do
what it decides.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, NoReturn, Protocol

from schemaless.base.events import Event
from schemaless.errors import (
    BodyTooLarge,
    OutcomeUnknown,
    ServerError,
    ServerTimeout,
    ServerUnavailable,
    ShardIdentityMismatch,
)
from schemaless.wire.connection import Connection
from schemaless.wire.errors import (
    READ_ONLY,
    ConnectionLost,
    DatabaseMissing,
    Deadlock,
    Elsewhere,
    ReadOnly,
    ReplyTimedOut,
    ServerReplaced,
)
from schemaless.wire.node import Node

ATTEMPTS: Final = 5
"""Maximum number of attempts on one server."""

RETRY_FOR_S: Final = 0.5
"""Retry window after a lost connection, in seconds; the first retry is exempt. Outages are reported within a second."""

_MAX_CHANGES: Final = 20

Failure = ServerError | BodyTooLarge | ShardIdentityMismatch


@dataclass(frozen=True, slots=True)
class Retried(Event):
    """An operation is retried after a lost connection, a deadlock, an outage or a change of servers.

    Attributes:
        cause: class of the error.
    """

    cause: str


class Route(Protocol):
    """Checks whether a shard is still on the server that a call uses."""

    def moved(self, error: ServerError, node: Node, shard: int) -> Elsewhere | None:
        """Return an ``Elsewhere`` if the shard has moved or is being moved, else None.

        Args:
            error: an error that may have this cause; see ``may_have_moved``.
            node: the server's address.
            shard: the shard's number.
        """

    def confirm(self, node: Node, shard: int) -> None:
        """Check that the last attempt to read the catalog succeeded, if the shard's cluster uses claims.

        Raises:
            ServerUnavailable: the catalog cannot be read.
        """

    def verify(self, connection: Connection, shard: int) -> None:
        """Verify a shard's identity on a connection, and add it to ``Connection.verified``.

        Raises:
            DatabaseMissing: the database is missing.
            ShardIdentityMismatch: the database is not this shard.
        """


class Step(Enum):
    """What follows a failed attempt."""

    AGAIN = auto()
    """Repeat it at once."""
    PAUSE = auto()
    """Repeat it after a pause."""
    ELSEWHERE = auto()
    """Repeat it on the server that the catalog names, if the shard has moved; otherwise raise the error."""
    PRIMARY = auto()
    """Read from the primary, because the replica does not have the shard yet."""
    WAIT = auto()
    """Repeat it after a pause, because the shard is being moved."""
    RAISE = auto()
    """Raise the error, or ``OutcomeUnknown`` if an attempt may have written."""


@dataclass(slots=True)
class Attempt:
    """An attempt at a call, and what earlier attempts left.

    Attributes:
        shard: the shard's number, for errors and ``route``.
        writes: True if a lost connection leaves the outcome open.
        route: checks whether the shard is still on the server.
        number: number of failed attempts on this server.
        lost: error of the last lost connection, which may have carried a write.
        retry_until_s: end of the retry window, by ``time.monotonic``; it begins with the first retry.
        changes: how often the shard was found on another server.
        wait_until_s: how long to wait for a shard that is being moved, by ``time.monotonic``.
    """

    shard: int | None = None
    writes: bool = False
    route: Route | None = None
    number: int = 0
    lost: ServerError | None = None
    retry_until_s: float = math.inf
    changes: int = 0
    wait_until_s: float = math.inf

    @property
    def open_write(self) -> ServerError | None:
        """The error that leaves the outcome of a write open, if any."""
        return self.lost if self.writes else None

    def failed(self, error: Failure) -> None:
        """Record an error of the attempt."""
        self.number += 1
        if isinstance(error, ConnectionLost):
            self.lost = error

    def begin_window(self, failed_at_s: float) -> None:
        """Begin the retry window, unless it has begun or no connection was lost."""
        if self.lost is not None and self.retry_until_s == math.inf:
            self.retry_until_s = failed_at_s + RETRY_FOR_S

    def leave(self, moved: Elsewhere) -> None:
        """Record that the shard is on another server, or is being moved."""
        self.number = 0
        self.changes += moved.missing is None
        if not self.writes:
            self.lost, self.retry_until_s = None, math.inf

    def give_up(self, error: Failure, problem: str | None = None) -> NoReturn:
        """Raise the error of the last attempt, or ``OutcomeUnknown`` if an attempt may have written.

        Args:
            error: the error.
            problem: why ``OutcomeUnknown`` could not be settled; by default, the error's message.
        """
        lost = self.open_write
        if lost is not None:
            last = error if isinstance(error, ServerError) else lost
            message = error.message if isinstance(error, ServerError) else str(error)
            raise outcome_unknown(lost, problem or message, last) from error
        if isinstance(error, ReplyTimedOut):
            # The statement may still be running, and a retry would only add another one.
            raise ServerTimeout(
                f"no reply in time ({error.message}); set a higher read_timeout in the URL or in connect()",
                node=error.node,
                shard=self.shard,
                code=error.code,
            ) from error
        raise error


def next_step(attempt: Attempt, error: Failure, at_s: float, *, at_primary: bool = True) -> Step:
    """Decide what follows a failed attempt.

    Args:
        attempt: the attempt, with the error recorded.
        error: its error.
        at_s: when the attempt would be repeated, by ``time.monotonic``.
        at_primary: False if an ``Elsewhere`` came from a replica.
    """
    if isinstance(error, Elsewhere):
        if error.missing is None:
            return Step.AGAIN if attempt.changes <= _MAX_CHANGES else Step.RAISE
        if not at_primary:
            return Step.PRIMARY
        return Step.WAIT if at_s < attempt.wait_until_s else Step.RAISE
    if not isinstance(error, ServerError):
        return Step.RAISE
    if isinstance(error, ServerReplaced) and attempt.route is None:
        return Step.AGAIN if attempt.number < ATTEMPTS else Step.RAISE
    # Nothing was written. A failed COMMIT is a ``ConnectionLost``.
    if isinstance(error, ReadOnly) and error.may_have_moved and attempt.number == 1:
        return Step.AGAIN
    # The window is for outages, not for locks.
    in_time = at_s <= attempt.retry_until_s or not isinstance(error, ServerUnavailable)
    if in_time and attempt.number < ATTEMPTS and _may_pass(attempt, error):
        return Step.PAUSE
    return Step.ELSEWHERE if may_have_moved(error) else Step.RAISE


def may_have_moved(error: ServerError) -> bool:
    """Return True if a shard that has moved, or a new primary, can be the cause of an error."""
    return isinstance(error, ServerUnavailable | DatabaseMissing) or error.code in READ_ONLY


def _may_pass(attempt: Attempt, error: ServerError) -> bool:
    """Return True if another attempt on the same server can succeed."""
    if isinstance(error, ServerReplaced) or (isinstance(error, ReplyTimedOut) and not attempt.writes):
        return False
    # Fail at once, unless a connection was lost: the server may be restarting, or busy with the statement.
    return isinstance(error, ConnectionLost | Deadlock) or (
        attempt.lost is not None and isinstance(error, ServerUnavailable | ServerTimeout)
    )


def answered(failure: ServerError) -> bool:
    """Return True if a failed connection attempt got an answer from the server itself."""
    return not isinstance(failure, ServerUnavailable) or (failure.code is not None and failure.code < 2000)


def outcome_unknown(lost: ServerError, retry_failure: str, last: ServerError) -> OutcomeUnknown:
    """Return the error for a write whose connection was lost and whose outcome no retry could settle.

    Args:
        lost: the error of the lost connection.
        retry_failure: why retries could not settle it.
        last: the last error; its node, shard and code are reported.
    """
    unknown = OutcomeUnknown(
        f"the reply to a write was lost ({lost.message}), and it is unknown whether the write took effect "
        f"({retry_failure}); make the same call again to settle it",
        node=last.node,
        shard=last.shard,
        code=last.code,
    )
    unknown.retry_after_s = last.retry_after_s if isinstance(last, ServerUnavailable) else None
    return unknown
