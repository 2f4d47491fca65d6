"""Decides after a failed attempt at an operation whether the pool makes another one, and which error is raised."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NoReturn

from schemaless.base.events import Event, Listener
from schemaless.errors import BodyTooLarge, ServerError, ServerTimeout, ServerUnavailable
from schemaless.wire.breaker import Breaker
from schemaless.wire.errors import ConnectionLost, Deadlock, ReadOnly, ReplyTimedOut, ServerReplaced
from schemaless.wire.node import Node
from schemaless.wire.route import Route, outcome_unknown, raise_if_moved
from schemaless.wire.runtime import Runtime

ATTEMPTS: Final = 5

RETRY_FOR_S: Final = 0.5
"""Retry window after a lost connection, in seconds; the first retry is exempt. Outages are reported within a second."""


@dataclass(frozen=True, slots=True)
class Retried(Event):
    """An operation is retried after a lost connection, a deadlock, an outage or a change of servers.

    Attributes:
        cause: class of the error.
    """

    cause: str


@dataclass(frozen=True, slots=True)
class RetryContext:
    """Parts of a pool that its retries use.

    Attributes:
        node: the pool's server.
        breaker: the server's circuit breaker.
        runtime: sleeps between attempts.
        pause_s: mean pause before the first retry; each further one is twice as long.
        listener: receives a ``Retried`` for each retry.
        probe: finds out whether the server still answers.
    """

    node: Node
    breaker: Breaker
    runtime: Runtime
    pause_s: float
    listener: Listener | None
    probe: Callable[[], object]


class Retries:
    """Failed attempts at one operation.

    Args:
        context: parts of the pool that makes the attempts.
        shard: the shard's number, for errors and ``route``.
        route: checks whether the shard is still on the pool's server.
        doubt: the error of an earlier attempt at this write, on another server, whose outcome is open.
        writes: True if a lost connection leaves the outcome open.
    """

    def __init__(
        self, context: RetryContext, shard: int | None, route: Route | None, doubt: ServerError | None, *, writes: bool
    ) -> None:
        self._context = context
        self._shard = shard
        self._route = route
        self._doubt = doubt
        self._writes = writes
        self._lost = doubt
        self._attempts = 0

    @property
    def open_write(self) -> ServerError | None:
        """The error that leaves the outcome of a write open, if any."""
        return self._lost if self._writes else None

    def wait_or_raise(self, error: ServerError | BodyTooLarge) -> None:
        """Wait until the operation should be attempted again.

        Raises:
            Elsewhere: the shard has moved.
            OutcomeUnknown: no attempt settled the outcome of a write.
            ServerError, BodyTooLarge: the error of the attempt, if another attempt would not help.
        """
        if isinstance(error, BodyTooLarge):
            self._raise_too_large(error)
        self._attempts += 1
        if self._reaches_another_server(error):
            self._report(error)
        elif not (self._may_pass(error) and self._attempts < ATTEMPTS and self._waited(error)):
            self._give_up(error)

    def _reaches_another_server(self, error: ServerError) -> bool:
        """Return True if the next attempt may be on another server, to which the address leads now.

        Raises:
            Elsewhere: it is, and the shard's identity has to be verified there.
        """
        if isinstance(error, ServerReplaced):
            self._raise_if_moved(error, self.open_write)
            return self._attempts < ATTEMPTS
        # Nothing was written. A failed COMMIT is a ``ConnectionLost``.
        return isinstance(error, ReadOnly) and error.may_have_moved and self._attempts == 1

    def _raise_too_large(self, error: BodyTooLarge) -> NoReturn:
        lost = self.open_write
        if lost is None:
            raise error
        # This server's limit is lower than that of the lost connection, which may have written the statement.
        raise outcome_unknown(lost, str(error), lost) from error

    def _give_up(self, error: ServerError) -> NoReturn:
        lost = self.open_write
        self._raise_if_moved(error, lost)
        breaker = self._context.breaker
        if isinstance(error, ServerUnavailable) and error.retry_after_s is None and breaker.is_open:
            # The breaker opened, so the next call would fail at once.
            error.retry_after_s = breaker.until_retry_s()
        if lost is not None:
            raise outcome_unknown(lost, error.message, error) from error
        raise error

    def _may_pass(self, error: ServerError) -> bool:
        """Return True if another attempt can succeed."""
        if isinstance(error, ConnectionLost):
            self._record_loss(error)
            return True
        if isinstance(error, Deadlock):
            return True
        # Fail at once, unless a connection was lost: the server may be restarting, or busy with the statement.
        return self._lost is not None and isinstance(error, ServerUnavailable | ServerTimeout)

    def _record_loss(self, error: ConnectionLost) -> None:
        before = self._lost if isinstance(self._lost, ConnectionLost) else None
        error.retry_until_s = before.retry_until_s if before else time.monotonic() + RETRY_FOR_S
        self._lost = error
        if not isinstance(error, ReplyTimedOut):
            return
        # The statement is slow or the server hangs; a new connection tells which.
        self._context.probe()
        if not self._writes:
            self._raise_if_moved(error, None)
            # The statement may still be running, and a retry would only add another one.
            raise ServerTimeout(
                f"no reply in time ({error.message}); set a higher read_timeout in the URL or in connect()",
                node=error.node,
                shard=self._shard,
                code=error.code,
            ) from error

    def _waited(self, error: ServerError) -> bool:
        """Pause before the next attempt; return False if that would exceed the retry window."""
        context, lost = self._context, self._lost
        pause_s = context.pause_s * 2 ** (self._attempts - 1) * random.uniform(0.5, 1.5)  # noqa: S311 - jitter
        if isinstance(error, ServerUnavailable):
            context.breaker.lost()
            is_limited = self._attempts > 1 or self._doubt is not None
            if is_limited and isinstance(lost, ConnectionLost) and time.monotonic() + pause_s > lost.retry_until_s:
                return False
        context.runtime.sleep(pause_s)
        self._report(error)
        return True

    def _report(self, error: ServerError) -> None:
        if self._context.listener is not None:
            self._context.listener(Retried(type(error).__name__))

    def _raise_if_moved(self, error: ServerError, open_write: ServerError | None) -> None:
        if self._route is not None and self._shard is not None:
            raise_if_moved(self._route, error, self._context.node, self._shard, open_write)
