"""Connection pool of one server, with retries; every statement to a server goes through it.

Connections are in autocommit mode, and are neither reset on return nor pinged before use, so that a pooled call costs
hardly more than one on a bare connection. Instead, a failed connection is discarded together with all idle ones, and
operations that are safe to repeat are retried. SQLAlchemy's ``QueuePool`` is not used: it adds 6 us to each call (20
with cold caches), and decides by the class of the error whether to keep a connection, whereas this pool requires proof
that no reply is outstanding.
"""

from __future__ import annotations

import math
import os
import random
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from pymysql.constants import CR

from schemaless.base.events import Listener
from schemaless.base.type_variables import T
from schemaless.errors import (
    BodyTooLarge,
    InvalidInput,
    SchemalessError,
    ServerError,
    ServerTimeout,
    ServerUnavailable,
    ShardIdentityMismatch,
)
from schemaless.wire.address import RECHECK_S, Address
from schemaless.wire.attempts import (
    Attempt,
    Failure,
    Retried,
    Route,
    Step,
    answered,
    next_step,
    outcome_unknown,
)
from schemaless.wire.breaker import PROBE_S, Breaker
from schemaless.wire.claims import Claim
from schemaless.wire.connection import Connection, Rows
from schemaless.wire.connection_slots import ConnectionSlots, LiveObjects, Slot
from schemaless.wire.driver import DriverConnection, Reply
from schemaless.wire.errors import (
    NO_CLAIMS,
    ConnectionLost,
    Elsewhere,
    ReadOnly,
    ReplyTimedOut,
    ServerReplaced,
)
from schemaless.wire.node import Node
from schemaless.wire.runtime import THREADS, Runtime
from schemaless.wire.session import Facts, close, open_connection
from schemaless.wire.sql.sessions import NO_CLAIM
from schemaless.wire.urls import Credentials

READ_ONLY_S: Final = 1.0
"""Interval between attempts to find out whether the address of a read-only server, or of one that lacks a shard, leads
elsewhere now, in seconds."""

_JITTER: Final = (0.75, 1.25)

MAX_TIMEOUT_S: Final = 31_536_000


@dataclass(frozen=True, slots=True)
class PoolOptions:
    """Timeouts and limits of a pool's connections; times in seconds.

    Attributes:
        connect_timeout_s: timeout for connecting, and for the server's greeting.
        read_timeout_s: timeout for a reply.
        write_timeout_s: timeout for sending a statement.
        pool_size: maximum number of connections in use.
        pool_timeout_s: timeout for waiting until a connection is free.
        max_packet_bytes: statement size limit, in addition to the server's ``max_allowed_packet``.
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
                raise InvalidInput(
                    f"{name} must be a number of seconds above 0 and at most {MAX_TIMEOUT_S:,}, got {seconds!r}"
                )
        if type(self.pool_size) is not int or self.pool_size < 1:
            raise InvalidInput(f"pool_size must be an integer of at least 1, got {self.pool_size!r}")


class _CheckedOut:
    """A checked-out connection and its slot, from ``begin`` to ``end``; also a context manager.

    A signal handler can raise between any two bytecodes. So connections and slots change hands in single calls into C,
    and ``end`` may be called again if it was interrupted.
    """

    __slots__ = ("_connection", "_pool", "_shard", "slot")

    def __init__(self, pool: NodePool, shard: int | None) -> None:
        self._pool = pool
        self._shard = shard
        self.slot: list[Slot] = []
        self._connection: Connection | None = None

    def begin(self) -> Connection:
        """Wait for a slot, and take an idle connection or open one."""
        pool, shard = self._pool, self._shard
        if not pool.slots.take(self.slot, pool.options.pool_timeout_s, pool.listener):
            raise ServerTimeout(
                "no connection of the pool became free in time; raise pool_size, or make fewer concurrent calls",
                node=str(pool.node),
                shard=shard,
            )
        if time.monotonic() >= pool.recheck_at_s:
            pool.recheck(shard)
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
        """Give back the connection and the slot, after a block that ended with ``error``."""
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
            self._pool.slots.give_back(self.slot)

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
            self._pool.slots.give_back(self.slot)


class NodePool:
    """Connection pool of one server.

    Attributes:
        node: the server.
        breaker: the server's circuit breaker.
        options: timeouts and limits.
        credentials: the account.
        runtime: how calls wait.
        listener: if set, receives ``Retried`` and ``SlotAwaited``; not called for anything else.
        on_replaced: if set, called when the address turns out to lead to another server than before.
        address: the servers that the address has led to.
        recheck_at_s: time of the next ``recheck``, by ``time.monotonic``.
        engine: the SQLAlchemy engine, set and read by ``schema.engine``; None until set.
        idle: idle connections.
        opened: every open driver connection, in use or not; a forked child has to abandon them.
        slots: slots for connections in use.
        retry_pause_s: approximate pause before the first retry, in seconds; doubles with each further retry.
    """

    retry_pause_s: float = 0.05

    def __init__(
        self,
        node: Node,
        credentials: Credentials,
        options: PoolOptions,
        breaker: Breaker | None = None,
        claims: Mapping[Node, Claim] | None = None,
        runtime: Runtime = THREADS,
    ) -> None:
        self.node = node
        self.breaker: Breaker = breaker or Breaker()
        self._claims = {} if claims is None else claims
        self.options = options
        self.credentials = credentials
        self.runtime = runtime
        self.listener: Listener | None = None
        self.on_replaced: Callable[[Node], object] | None = None
        self.recheck_at_s = 0.0
        self.address = Address(node)
        self._read_only_at_s = -math.inf
        self._suspected_at_s = -math.inf
        self._lost_at_s = 0.0
        self._closed_at_s = 0.0
        self._reset()
        _all_pools.add(self)

    def _reset(self) -> None:
        self.engine: object | None = None
        self.idle: deque[Connection] = deque()
        self.opened: LiveObjects[DriverConnection] = LiveObjects[DriverConnection]()
        self.slots: ConnectionSlots = self.runtime.slots(self.options.pool_size)

    def __repr__(self) -> str:
        return f"NodePool({self.node})"

    @property
    def claim(self) -> Claim | None:
        """The claim that the server must hold, or None if it needs none."""
        return self._claims.get(self.node.having("primary"))

    def replace_connections(self) -> None:
        """Replace every existing connection once it is idle."""
        self._lost_at_s = time.monotonic()

    def open(
        self,
        shard: int | None = None,
        *,
        database: str | None = None,
        autocommit: bool = True,
        timeout_s: float | None = None,
    ) -> tuple[DriverConnection, Facts]:
        """Open a driver connection outside the pool; raises the errors of ``open_connection``.

        Args:
            shard: the shard concerned, for errors.
            database: default database, if any.
            autocommit: False to open transactions implicitly, as the DB API does.
            timeout_s: replaces all timeouts of the pool and the URL.
        """
        options, claim, credentials = self.options, self.claim, self.credentials
        timeouts = options.connect_timeout_s, options.read_timeout_s, options.write_timeout_s
        if timeout_s is not None:
            credentials, timeouts = credentials.without_timeouts(), (timeout_s,) * 3
        return open_connection(
            self.node,
            credentials,
            timeouts,
            self.opened.add,
            shard=shard,
            database=database,
            autocommit=autocommit,
            claim=NO_CLAIM if claim is None else claim.sql,
            runtime=self.runtime,
        )

    def suspect(self) -> None:
        """Have the next call check the address: a server that it has left may lack a shard that the new one has."""
        now_s = time.monotonic()
        if now_s - self._suspected_at_s >= READ_ONLY_S:
            self._suspected_at_s, self.recheck_at_s = now_s, 0.0

    def is_fresh(self, connection: Connection) -> bool:
        """Return True if no connection has been lost, and no server or claim has changed, since this one was opened."""
        return connection.connected_at_s >= max(self._lost_at_s, self.address.fresh_since_s)

    def is_verified(self, connection: Connection, shard: int) -> bool:
        """Return True unless the address has moved and the shard has not been verified on this connection's server."""
        return not self.address.has_moved or shard in connection.verified

    def keeps(self, connection: Connection, error: BaseException | None) -> bool:
        """Return True if a connection can be reused, after a block that ended with ``error``."""
        if isinstance(error, ConnectionLost):
            # The server restarted or closed idle connections, so older ones are probably dead, too.
            self._lost_at_s = time.monotonic()
            self.breaker.lost()
            return False
        if isinstance(error, ReadOnly) and self.claim is None:
            now_s = time.monotonic()
            if now_s - self._read_only_at_s >= READ_ONLY_S:
                # The address may lead to another server now, which only new connections reach.
                self._lost_at_s = self._read_only_at_s = now_s
            if not self.is_fresh(connection):
                error.may_have_moved = True
                return False
        return not (connection.busy or connection.unfinished) and connection.connected_at_s >= self._closed_at_s

    def connect(self, shard: int | None) -> Connection:
        """Open a connection.

        Raises:
            ServerUnavailable, ServerTimeout, AccessDenied, ServerRefused: the connection failed.
            ServerReplaced: the connection, which is now idle, reached another server than earlier ones; only if there
                is a shard, because the shard has to be verified there.
            PrimaryNotClaimed: the server does not hold the claim that the catalog requires.
            InvalidInput: the URL's options cannot be used.
        """
        try:
            raw, facts = self.open(shard)
        except ServerError as failure:
            if not answered(failure):
                self.breaker.failed()
            elif (claim := self.claim) is not None and failure.code in NO_CLAIMS:
                claim.check(None, str(self.node), shard)
            raise
        self.breaker.answered()
        # Read again: the required claim may have changed while connecting.
        if (claim := self.claim) is not None and facts.claim != claim.epoch:
            close(raw, idle=True)
            claim.check(facts.claim, str(self.node), shard)
        connection = Connection(raw, str(self.node), shard, facts, self.options.max_packet_bytes)
        connection.verified = self.address.verified_on(facts.server)
        try:
            self._check_address(facts, shard)
        except ServerReplaced:
            self.idle.append(connection)
            raise
        return connection

    def recheck(self, shard: int | None) -> None:
        """Open a connection to find out whether the address still leads to the same server; else replace idle ones.

        A server that an address has left may keep its connections open, and old data.

        Raises:
            ServerReplaced: it leads to another server; only if there is a shard.
        """
        self.recheck_at_s = _next_check_s()
        if not self.idle:
            return
        facts, claim = self._connect_briefly(), self.claim
        # After a failure, the existing connections may still work.
        if not isinstance(facts, SchemalessError) and (claim is None or facts.claim == claim.epoch):
            self._check_address(facts, shard)

    def _check_address(self, facts: Facts, shard: int | None) -> None:
        """Record which server a new connection reached.

        Raises:
            ServerReplaced: it is the first to another server; only if there is a shard.
        """
        self.recheck_at_s = _next_check_s()
        if not self.address.is_replaced(facts):
            return
        if self.on_replaced is not None:
            self.on_replaced(self.node)
        if shard is not None:
            message = "the address leads to another server than before, so nothing was sent; make the same call again"
            raise ServerReplaced(message, node=str(self.node), shard=shard)

    def probe(self) -> None:
        """Test whether the server accepts a connection within a second, and open or close the breaker accordingly."""
        found = self._connect_briefly()
        # Any other error is an answer of the server.
        if isinstance(found, ServerError) and not answered(found):
            self.breaker.trip()
        else:
            self.breaker.answered()

    def _connect_briefly(self) -> Facts | SchemalessError:
        """Open a connection within a second and close it; return the server's properties, or the error."""
        try:
            raw, facts = self.open(timeout_s=PROBE_S)
        except SchemalessError as error:
            return error
        close(raw, idle=True)
        return facts

    def fail_fast_or_probe(self, shard: int | None = None) -> None:
        """Fail fast while the breaker is open; the one caller whose turn it is probes the server first.

        Raises:
            ServerUnavailable: the server does not answer; sets ``retry_after_s``.
        """
        breaker = self.breaker
        if breaker.is_open:
            wait_s = breaker.wait_s()
            if wait_s is None:
                self.probe()
                wait_s = breaker.pause_s
            if breaker.is_open:
                refused = ServerUnavailable(
                    f"the server has not answered for {breaker.open_for_s():.1f} s, so nothing was sent; retry in "
                    f"{wait_s:.2f} s, and check that the server is running",
                    node=str(self.node),
                    shard=shard,
                    code=CR.CR_CONN_HOST_ERROR,
                )
                refused.retry_after_s = wait_s
                raise refused

    def _after_alarm(self, attempt: Attempt) -> None:
        """If a lost connection has raised an alarm, check that the server answers and still has the shard.

        Raises:
            ServerUnavailable: the server does not answer; sets ``retry_after_s``.
            Elsewhere: the shard has moved.
        """
        self.fail_fast_or_probe(attempt.shard)
        alarms = self.breaker.alarms
        if attempt.route is not None and attempt.shard is not None:
            # The server may have been replaced and come back before this client has read the new topology.
            self._raise_if_moved(
                attempt, ServerUnavailable("its connections were lost", node=str(self.node), shard=attempt.shard)
            )
            attempt.route.confirm(self.node, attempt.shard)
            # A call without a shard cannot check this, so it leaves the alarm to calls that have one.
            self.breaker.acknowledge(alarms)

    def _raise_if_moved(self, attempt: Attempt, error: ServerError) -> None:
        if attempt.route is not None and attempt.shard is not None:
            moved = attempt.route.moved(error, self.node, attempt.shard)
            if moved is not None:
                raise moved from error

    def connection(self, shard: int | None = None) -> _CheckedOut:
        """Check out a connection for a ``with`` block; discard it if the block fails in the driver or is interrupted.

        Raises:
            ServerUnavailable, ServerTimeout, AccessDenied: no connection is available when the block is entered.
        """
        return _CheckedOut(self, shard)

    def run(
        self,
        operation: Callable[[Connection], T],
        *,
        shard: int | None = None,
        writes: bool = False,
        route: Route | None = None,
    ) -> T:
        """Run an operation on a connection, and retry it after a lost connection or a deadlock.

        The operation must be safe to repeat: a read, or a write that detects whether it was applied before.

        Args:
            operation: receives a connection, which it must not keep.
            shard: the shard's number, for errors and ``route``.
            writes: True if a lost connection leaves the outcome open.
            route: checks whether the shard is still on this server, before a lost connection is replaced and after the
                last attempt; a replaced server may be back before its clients learn of the replacement.

        Raises:
            Elsewhere: the shard has moved.
            OutcomeUnknown: a write lost its connection on every attempt.
            ServerError: the error of the last attempt.
        """
        return self.run_attempts(operation, Attempt(shard, writes, route))

    def rows(self, sql: bytes) -> Rows:
        """Query the server; raises what ``run`` raises."""
        return self.run(lambda connection: connection.rows(sql))

    def execute(self, sql: bytes) -> Reply:
        """Run a statement that is safe to repeat; raises what ``run`` raises."""
        return self.run(lambda connection: connection.execute(sql), writes=True)

    def run_attempts(self, operation: Callable[[Connection], T], attempt: Attempt, failed: Failure | None = None) -> T:
        """Do what ``run`` does, after earlier attempts at the call, on other servers or on this one.

        Args:
            operation: receives a connection, which it must not keep.
            attempt: describes the call, and what earlier attempts left.
            failed: the error of a first attempt that the caller made itself, on another connection of this pool.
        """
        while True:
            if failed is None:
                try:
                    return self._attempt(operation, attempt)
                except (ServerError, BodyTooLarge, ShardIdentityMismatch) as error:
                    failed = error
            self._prepare_next(attempt, failed)
            failed = None

    def _attempt(self, operation: Callable[[Connection], T], attempt: Attempt) -> T:
        if self.breaker.alarmed:
            self._after_alarm(attempt)
        shard = attempt.shard
        held = _CheckedOut(self, shard)
        try:
            try:
                connection = held.begin()
                route = attempt.route
                if route is not None and shard is not None and not self.is_verified(connection, shard):
                    route.verify(connection, shard)
                result = operation(connection)
                held.end(None)
                return result
            except BaseException as error:
                held.end(error)
                raise
        finally:
            if held.slot:
                self.slots.give_back(held.slot)

    def _prepare_next(self, attempt: Attempt, error: Failure) -> None:
        """Return once the attempt should be repeated on this server.

        Raises:
            Elsewhere: the shard has moved.
            OutcomeUnknown, ServerError, BodyTooLarge, ShardIdentityMismatch: another attempt would not help.
        """
        if isinstance(error, Elsewhere):
            raise error
        failed_at_s = time.monotonic()
        attempt.failed(error)
        if isinstance(error, ReplyTimedOut):
            # The statement is slow or the server hangs; a new connection tells which.
            self.probe()
        pause_s = self.retry_pause_s * 2 ** (attempt.number - 1) * random.uniform(0.5, 1.5)  # noqa: S311 - jitter
        step = next_step(attempt, error, time.monotonic() + pause_s)
        if attempt.lost is not None and isinstance(error, ServerUnavailable):
            self.breaker.lost()
        if step is Step.PAUSE:
            attempt.begin_window(failed_at_s)
            self.runtime.sleep(pause_s)
        if step in (Step.PAUSE, Step.AGAIN):
            if self.listener is not None:
                self.listener(Retried(type(error).__name__))
            return
        if isinstance(error, ServerError) and step is Step.ELSEWHERE:
            self._raise_if_moved(attempt, error)
        if isinstance(error, ServerUnavailable) and error.retry_after_s is None and self.breaker.is_open:
            # The breaker opened, so the next call would fail at once.
            error.retry_after_s = self.breaker.until_retry_s()
        attempt.give_up(error)

    def run_once(self, operation: Callable[[Connection], T]) -> T:
        """Run an operation in a transaction that commits at most once; it need not be safe to repeat.

        It is retried until COMMIT is sent: before that, a lost connection rolls the transaction back.

        Raises:
            OutcomeUnknown: the reply to COMMIT was lost.
            ServerError: the error of the last attempt; nothing was written.
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
                    raise outcome_unknown(lost, "a COMMIT is not retried", lost) from lost
                raise

        return self.run(once)

    def close(self) -> None:
        """Close all idle connections, and those in use once they are returned.

        The pool stays usable and opens new connections on demand.
        """
        self._closed_at_s = time.monotonic()
        with suppress(IndexError):
            while True:
                self.idle.pop().close()

    def forget_after_fork(self) -> None:
        """Abandon the parent's connections in a forked child, without sending anything.

        That includes connections in use by the parent's threads: if the child kept the sockets open, the server would
        not notice when the parent closes them.
        """
        opened = list(self.opened)
        self._reset()
        if opened:
            null = os.open(os.devnull, os.O_RDWR)
            for raw in opened:
                # A closed connection has no socket, and one that is being wrapped in TLS no file descriptor.
                with suppress(AttributeError, OSError):
                    os.dup2(null, raw._sock.fileno(), inheritable=False)  # noqa: SLF001
            os.close(null)


def _next_check_s() -> float:
    return time.monotonic() + RECHECK_S * random.uniform(*_JITTER)  # noqa: S311 - jitter


_all_pools = LiveObjects[NodePool]()


def _after_fork_in_child() -> None:
    for pool in _all_pools:
        pool.forget_after_fork()


os.register_at_fork(after_in_child=_after_fork_in_child)
