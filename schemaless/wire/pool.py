"""Connections to a node: a small pool of driver connections, the one way that statements take to a server.

AUTOCOMMIT, no reset on return, no ping before use: a pooled call then costs hardly more than one on a bare connection.
What those would have caught is caught here: a connection that failed is thrown away with all its idle neighbours, and
what may be repeated is repeated. SQLAlchemy's ``QueuePool`` would add 6 us to each call, and 20 where the caches are
cold; and it decides by the class of an error whether a connection is kept, where this one wants proof that no reply is
still on its way.
"""

from __future__ import annotations

import os
import random
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

from pymysql.constants import CR

from schemaless.errors import (
    BodyTooLarge,
    InvalidInput,
    SchemalessError,
    ServerError,
    ServerTimeout,
    ServerUnavailable,
)
from schemaless.events import Event, Listener
from schemaless.wire.breaker import PROBE_S, Breaker
from schemaless.wire.claims import Claim
from schemaless.wire.connection import Connection
from schemaless.wire.connection_slots import ConnectionSlots, Living, Place
from schemaless.wire.errors import NO_CLAIMS, ConnectionLost, Deadlock, ReplyTimedOut, interruption, translated
from schemaless.wire.node import Node
from schemaless.wire.route import Route, follow, outcome_unknown, speaks
from schemaless.wire.session import Facts, close, open_connection
from schemaless.wire.sql.sessions import NO_CLAIM
from schemaless.wire.urls import Credentials

if TYPE_CHECKING:
    from sqlalchemy.engine import Engine

T = TypeVar("T")

MAX_TIMEOUT_S: Final = 31_536_000
ATTEMPTS: Final = 5

RETRY_FOR_S: Final = 0.5
"""Behind a first repetition, none is begun so long after a connection was lost: an outage is told within a second."""


@dataclass(frozen=True, slots=True)
class PoolOptions:
    """How a node's connections behave; times in seconds.

    Attributes:
        max_packet_bytes: what a statement may have, where the server would take more.
    """

    connect_timeout_s: float = 10
    read_timeout_s: float = 60
    write_timeout_s: float = 60
    pool_size: int = 8
    pool_timeout_s: float = 30
    max_packet_bytes: int = 1 << 30

    def __post_init__(self) -> None:
        for name in ("connect_timeout_s", "read_timeout_s", "write_timeout_s", "pool_timeout_s"):
            seconds = getattr(self, name)
            if not isinstance(seconds, int | float) or not 0 < seconds <= MAX_TIMEOUT_S:
                raise InvalidInput(f"{name} must be seconds, over 0 and at most {MAX_TIMEOUT_S:,}, got {seconds!r}")
        if type(self.pool_size) is not int or self.pool_size < 1:
            raise InvalidInput(f"pool_size must be a number from 1 up, got {self.pool_size!r}")


@dataclass(frozen=True, slots=True)
class Retried(Event):
    """A statement is sent again, since its connection was lost or a deadlock ended it."""

    cause: str


class _CheckedOut:
    """A connection, and its place in the pool, from ``begin`` to ``end``; also as a ``with`` block.

    An exception of a signal's handler can come between any two steps of Python's. So what must not get lost goes from
    one hand to the other in a single call into C, and ``end`` may be called again where it was interrupted.
    """

    __slots__ = ("_connection", "_pool", "_shard", "place")

    def __init__(self, pool: NodePool, shard: int | None) -> None:
        self._pool = pool
        self._shard = shard
        self.place: list[Place] = []
        self._connection: Connection | None = None

    def begin(self) -> Connection:
        """Wait for a place, and take an idle connection or make one."""
        pool, shard = self._pool, self._shard
        if not pool.places.take(self.place, pool.options.pool_timeout_s, pool.listener):
            raise ServerTimeout(
                "no connection of the pool became free in time; raise pool_size, or make fewer calls at once",
                node=str(pool.node),
                shard=shard,
            )
        while True:
            try:
                connection = pool.idle.pop()
            except IndexError:
                connection = pool.connect(shard)
                self._connection = connection
                return connection
            if pool.is_fresh(connection):
                self._connection = connection
                connection.shard = shard
                return connection
            connection.close()

    def end(self, error: BaseException | None) -> None:
        """Give back what is still held, after a block that ended with ``error``."""
        try:
            connection = self._connection
            if connection is not None:
                if self._pool.keeps(connection, error):
                    self._connection = None
                    self._pool.idle.append(connection)
                else:
                    connection.close()
                    self._connection = None
        finally:
            self._pool.places.give_back(self.place)

    def __enter__(self) -> Connection:
        try:
            return self.begin()
        except BaseException as error:
            self.__exit__(None, error, None)
            raise

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            self.end(error)
        finally:
            self._pool.places.give_back(self.place)


class NodePool:
    """The connections to one server.

    Attributes:
        listener: told of ``Retried`` and ``SlotAwaited``, which no call meets as long as all is well; or None.
        retry_pause_s: about how long a call waits before its second attempt; twice as long before each further one.
    """

    retry_pause_s: float = 0.05

    def __init__(
        self,
        node: Node,
        credentials: Credentials,
        options: PoolOptions,
        breaker: Breaker | None = None,
        claims: Mapping[Node, Claim] | None = None,
    ) -> None:
        self.node = node
        self.breaker = breaker or Breaker()
        self._claims = {} if claims is None else claims
        self.options = options
        self.credentials = credentials
        self.listener: Listener | None = None
        self._lost_at_s = 0.0
        self._closed_at_s = 0.0
        self._begin()
        _all_pools.add(self)

    def _begin(self) -> None:
        # What ``engine.session`` made for this pool.
        self.engine: Engine | None = None
        self.idle: deque[Connection] = deque()
        # Every driver connection there is, in use or not: a forked child has to let go of them.
        self.opened = Living[Any]()
        self.places = ConnectionSlots(self.options.pool_size)

    def __repr__(self) -> str:
        return f"NodePool({self.node})"

    @property
    def claim(self) -> Claim | None:
        """What the server has to have before a connection to it is used; None where none is asked for."""
        return self._claims.get(self.node.having("primary"))

    def claim_changed(self) -> None:
        """Have every connection of before be replaced, once it is given back."""
        self._lost_at_s = time.monotonic()

    def open(self, database: str | None = None, *, autocommit: bool = True) -> tuple[Any, Facts]:
        """Return a new driver connection that is none of the pool's; raises what ``open_connection`` raises."""
        options, claim = self.options, self.claim
        return open_connection(
            self.node,
            self.credentials,
            (options.connect_timeout_s, options.read_timeout_s, options.write_timeout_s),
            self.opened.add,
            database=database,
            autocommit=autocommit,
            claim=NO_CLAIM if claim is None else claim.sql,
        )

    def is_fresh(self, connection: Connection) -> bool:
        """Whether nothing was heard since this connection was made that it will not have outlived."""
        return connection.connected_at_s >= self._lost_at_s

    def keeps(self, connection: Connection, error: BaseException | None) -> bool:
        """Whether a connection is idle and fit for the next caller, after a block that ended with ``error``."""
        if isinstance(error, ConnectionLost):
            # The server restarted, or closed what was idle: older connections are likely as dead.
            self._lost_at_s = time.monotonic()
            self.breaker.lost()
            return False
        return not (connection.busy or connection.unfinished) and connection.connected_at_s >= self._closed_at_s

    def connect(self, shard: int | None) -> Connection:
        """Return a new connection.

        Raises:
            ServerUnavailable, ServerTimeout, AccessDenied, ServerRefused: none could be had.
            PrimaryNotClaimed: the server is not the primary that the catalog asks for.
            InvalidInput: the URL's options cannot be used.
        """
        try:
            raw, facts = self.open()
        except SchemalessError:
            raise
        except Exception as error:
            raised = interruption(error)
            if raised is error:
                raise
            if raised is None:
                failure = translated(error, str(self.node), shard, connecting=True)
                if not speaks(failure):
                    self.breaker.failed()
                elif (claim := self.claim) is not None and failure.code in NO_CLAIMS:
                    claim.check(None, str(self.node), shard)
                raise failure from error
        else:
            self.breaker.answered()
            # The claim that is asked for now, which may not be the one of a moment ago.
            if (claim := self.claim) is not None and facts.claim != claim.epoch:
                close(raw, idle=True)
                claim.check(facts.claim, str(self.node), shard)
            return Connection(raw, str(self.node), shard, facts, self.options.max_packet_bytes)
        raise raised

    def probe(self) -> None:
        """Look whether the server lets one in within a second, and open or close the breaker accordingly."""
        timeouts = (PROBE_S, PROBE_S, PROBE_S)
        raised: BaseException | None = None
        try:
            raw, _ = open_connection(self.node, self.credentials.without_timeouts(), timeouts, self.opened.add)
            close(raw, idle=True)
        except SchemalessError:
            # It answers, and refuses.
            self.breaker.answered()
        except Exception as error:
            raised = interruption(error)
            if raised is error:
                raise
            if raised is None and not speaks(translated(error, str(self.node), None, connecting=True)):
                self.breaker.trip()
            elif raised is None:
                self.breaker.answered()
        else:
            self.breaker.answered()
        if raised is not None:
            raise raised

    def heed(self, shard: int | None = None) -> None:
        """Look whether the server answers, where it did not: one caller, the others are refused meanwhile.

        Raises:
            ServerUnavailable: the server does not answer; with ``retry_after_s``.
        """
        breaker = self.breaker
        if breaker.is_open:
            wait_s = breaker.wait_s()
            if wait_s is None:
                self.probe()
                wait_s = breaker.pause_s
            if breaker.is_open:
                refused = ServerUnavailable(
                    f"it has not answered for {breaker.open_for_s():.1f} s, so no call is made; try again in "
                    f"{wait_s:.2f} s; is the server running?",
                    node=str(self.node),
                    shard=shard,
                    code=CR.CR_CONN_HOST_ERROR,
                )
                refused.retry_after_s = wait_s
                raise refused

    def _after_alarm(self, route: Route | None, shard: int | None, lost: ServerError | None) -> None:
        """Look before a call is made after an alarm: whether the server answers, and whether the shard is still there.

        Raises:
            ServerUnavailable: the server does not answer; with ``retry_after_s``.
            Elsewhere: says ``route``.
        """
        self.heed(shard)
        alarms = self.breaker.alarms
        if route is not None and shard is not None:
            # A server whose connections were lost may have been replaced, and be back before its clients heard of it.
            alarm = ServerUnavailable("its connections were lost", node=str(self.node), shard=shard)
            follow(route, alarm, self.node, shard, lost)
            route.confirm(self.node, shard)
            # Whoever has no shard to ask after leaves the alarm to those who have one.
            self.breaker.looked(alarms)

    def connection(self, shard: int | None = None) -> _CheckedOut:
        """Check a connection out for a ``with`` block.

        It is thrown away if the block fails in the driver or is interrupted.

        Raises:
            ServerUnavailable, ServerTimeout, AccessDenied: no connection could be had; at the block's beginning.
        """
        return _CheckedOut(self, shard)

    def run(
        self,
        operation: Callable[[Connection], T],
        *,
        shard: int | None = None,
        writes: bool = False,
        route: Route | None = None,
        doubt: ServerError | None = None,
    ) -> T:
        """Run ``operation`` on a connection, and again where the connection was lost or a deadlock ended it.

        ``operation`` must be safe to repeat: a read, or a write that finds out by itself whether it happened before.

        Args:
            operation: takes a connection; must not keep it.
            shard: named in errors.
            writes: whether a lost connection leaves the outcome open.
            route: asked before a lost connection is replaced, and where all attempts have failed, whether the shard is
                still here; a server that was replaced may be back before its clients have heard of it.
            doubt: a connection to another server that this very write was lost with before.

        Raises:
            Elsewhere: says ``route``.
            OutcomeUnknown: a write lost its connection on every attempt.
            ServerError: what the last attempt met.
        """
        lost = doubt
        last: ServerError | None = None
        for attempt in range(ATTEMPTS):
            if attempt:
                pause_s = self.retry_pause_s * 2 ** (attempt - 1) * random.uniform(0.5, 1.5)  # noqa: S311 - jitter
                if isinstance(last, ServerUnavailable):
                    self.breaker.lost()
                    again = attempt > 1 or doubt is not None
                    if again and isinstance(lost, ConnectionLost) and time.monotonic() + pause_s > lost.retry_until_s:
                        break
                time.sleep(pause_s)
                if self.listener is not None:
                    self.listener(Retried(type(last).__name__))
            try:
                if self.breaker.alarmed:
                    self._after_alarm(route, shard, lost if writes else None)
                held = _CheckedOut(self, shard)
                try:
                    try:
                        result = operation(held.begin())
                        held.end(None)
                        return result
                    except BaseException as error:
                        held.end(error)
                        raise
                finally:
                    if held.place:
                        self.places.give_back(held.place)
            except ConnectionLost as error:
                before = lost if isinstance(lost, ConnectionLost) else None
                error.retry_until_s = before.retry_until_s if before else time.monotonic() + RETRY_FOR_S
                lost = last = error
                if isinstance(error, ReplyTimedOut):
                    # A slow statement, or a server that hangs: a new connection tells.
                    self.probe()
                if isinstance(error, ReplyTimedOut) and not writes:
                    if route is not None and shard is not None:
                        follow(route, error, self.node, shard, None)
                    # It may be running there still: asking again would only add another.
                    raise ServerTimeout(
                        f"no reply in time ({error.message}); give a higher read_timeout in the URL or to connect()",
                        node=error.node,
                        shard=shard,
                        code=error.code,
                    ) from error
            except Deadlock as error:
                last = error
            except BodyTooLarge as error:
                if lost is None or not writes:
                    raise
                # This connection takes less than the one that was lost, which may have written it.
                raise outcome_unknown(lost, str(error), lost) from error
            except ServerError as error:
                last = error
                # At first, say so at once. After a loss the server may be restarting, or be busy with what it got.
                if lost is None or not isinstance(error, ServerUnavailable | ServerTimeout):
                    break
        assert last is not None
        if route is not None and shard is not None:
            follow(route, last, self.node, shard, lost if writes else None)
        if isinstance(last, ServerUnavailable) and last.retry_after_s is None and self.breaker.is_open:
            # By now the next call is refused at once.
            last.retry_after_s = self.breaker.left_s()
        if writes and lost is not None:
            raise outcome_unknown(lost, last.message, last) from last
        raise last

    def run_once(self, operation: Callable[[Connection], T]) -> T:
        """Run ``operation`` in a transaction that is committed once at most; it need not be safe to repeat.

        It is repeated as long as COMMIT has not been sent: what a lost connection leaves open is rolled back.

        Raises:
            OutcomeUnknown: the reply to COMMIT was lost.
            ServerError: what the last attempt met; nothing was written.
        """

        def once(connection: Connection) -> T:
            committing = False
            try:
                with connection.transaction():
                    result = operation(connection)
                    committing = True
                return result
            except ConnectionLost as lost:
                if committing:
                    raise outcome_unknown(lost, "it was not repeated", lost) from lost
                raise

        return self.run(once)

    def close(self) -> None:
        """Close every idle connection, and each one in use when it is given back.

        The pool can still be used; it then connects again.
        """
        self._closed_at_s = time.monotonic()
        with suppress(IndexError):
            while True:
                self.idle.pop().close()

    def forget_after_fork(self) -> None:
        """Let a forked child go of its parent's connections, without a word on the wire.

        Of those in use by the parent's threads too: while the child held them open, the server would not see them end.
        """
        opened = list(self.opened)
        self._begin()
        if opened:
            nowhere = os.open(os.devnull, os.O_RDWR)
            for connection in opened:
                try:
                    # What mysqlclient says to the server when it is collected goes nowhere then.
                    os.dup2(nowhere, int(getattr(connection, "_sock", connection).fileno()), inheritable=False)
                except Exception:  # noqa: BLE001 - a closed one: each driver has its own way to say so
                    _of_the_parent.append(connection)
            os.close(nowhere)


_all_pools = Living[NodePool]()
_of_the_parent: list[Any] = []
"""These driver connections are kept from being collected: they are closed, or do not say which socket is theirs."""


def _after_fork_in_child() -> None:
    for pool in _all_pools:
        pool.forget_after_fork()


os.register_at_fork(after_in_child=_after_fork_in_child)
