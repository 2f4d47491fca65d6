"""Connections: one SQLAlchemy engine a node, which connects, and a small pool of driver connections for the hot paths.

AUTOCOMMIT, no reset on return, no ping before use: a pooled call then costs hardly more than one on a bare connection.
What those would have caught is caught here: a connection that failed is thrown away with all its idle neighbours, and
what may be repeated is repeated. SQLAlchemy's own pool would add 6 us to each call, and 20 where the caches are cold.
"""

from __future__ import annotations

import math
import os
import random
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any, Final, TypeVar

import sqlalchemy
from sqlalchemy import event
from sqlalchemy.engine import Engine
from sqlalchemy.pool import NullPool

from schemaless.cluster.topology import Node
from schemaless.errors import (
    BodyTooLarge,
    InvalidInput,
    OutcomeUnknown,
    SchemalessError,
    ServerError,
    ServerTimeout,
    ServerUnavailable,
)
from schemaless.mysql.errors import ConnectionLost, Deadlock, ReplyTimedOut, is_drivers, translated
from schemaless.mysql.urls import Credentials, driver_arguments, sqlalchemy_url

T = TypeVar("T")

MAX_TIMEOUT_S: Final = 31_536_000
ATTEMPTS: Final = 5
_FIRST_PAUSE_S: Final = 0.05

SESSION: Final = "SET SESSION sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION', time_zone = '+00:00'"
"""Statements are built here byte by byte: they need backslash escapes, and errors rather than truncation."""


@dataclass(frozen=True, slots=True)
class PoolOptions:
    """How a node's connections behave; times in seconds."""

    connect_timeout_s: float = 10
    read_timeout_s: float = 60
    write_timeout_s: float = 60
    pool_size: int = 8
    pool_timeout_s: float = 30

    def __post_init__(self) -> None:
        for name in ("connect_timeout_s", "read_timeout_s", "write_timeout_s", "pool_timeout_s"):
            seconds = getattr(self, name)
            if not isinstance(seconds, int | float) or not 0 < seconds <= MAX_TIMEOUT_S:
                raise InvalidInput(f"{name} must be seconds, over 0 and at most {MAX_TIMEOUT_S:,}, got {seconds!r}")
        if type(self.pool_size) is not int or self.pool_size < 1:
            raise InvalidInput(f"pool_size must be a number from 1 up, got {self.pool_size!r}")


@dataclass(frozen=True, slots=True)
class Executed:
    """What a statement without rows did."""

    affected: int
    last_id: int


class Connection:
    """A driver connection, checked out for a moment.

    Attributes:
        shard: what it is used for now; named in errors.
        unfinished: whether a transaction may be open on it, or a lock held by it, for what follows: it is closed then.
    """

    __slots__ = (
        "_ensured",
        "_raw",
        "auto_increment_increment",
        "connected_at_s",
        "max_allowed_packet",
        "node",
        "shard",
        "unfinished",
        "version",
    )

    def __init__(self, raw: Any, node: str, shard: int | None, facts: dict[Any, Any]) -> None:
        self._raw = raw
        self.node = node
        self.shard = shard
        self.unfinished = False
        self._ensured: frozenset[bytes] = frozenset()
        self.connected_at_s: float = facts["connected_at_s"]
        self.max_allowed_packet: int = facts["max_allowed_packet"]
        self.auto_increment_increment: int = facts["auto_increment_increment"]
        self.version: str = facts["version"]

    @property
    def is_mariadb(self) -> bool:
        """Whether the server is MariaDB; it says so in its version."""
        return "mariadb" in self.version.lower()

    def close(self) -> None:
        """Close it, whatever state it is in."""
        with suppress(Exception):
            self._raw.close()

    def rows(self, sql: bytes) -> tuple[tuple[Any, ...], ...]:
        """Send a query and return its rows."""
        cursor = self._raw.cursor()
        self._send(cursor, sql)
        try:
            return tuple(cursor.fetchall())
        finally:
            cursor.close()

    def execute(self, sql: bytes) -> Executed:
        """Send a statement without rows."""
        cursor = self._raw.cursor()
        self._send(cursor, sql)
        done = Executed(cursor.rowcount, cursor.lastrowid or 0)
        cursor.close()
        return done

    @property
    def ensured(self) -> frozenset[bytes]:
        """What ``ensure`` has run on it."""
        return self._ensured

    def ensure(self, settings: bytes) -> None:
        """Run a SET SESSION, unless it was run on this connection before; it holds for all who get it later."""
        if settings not in self._ensured:
            self.execute(settings)
            self._ensured |= {settings}

    def _send(self, cursor: Any, sql: bytes) -> None:
        try:
            cursor.execute(sql)
        except Exception as error:
            if not is_drivers(error):
                self.unfinished = True
                raise
            raise translated(error, self.node, self.shard, connecting=False) from error

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Run the block as one transaction: committed at its end, rolled back where it raises.

        Raises:
            ConnectionLost: the reply to COMMIT or ROLLBACK did not come, or was a refusal.
        """
        with self.whole():
            self.execute(b"START TRANSACTION")
            try:
                yield
            except ConnectionLost:
                raise
            except Exception:
                self._end_transaction(b"ROLLBACK")
                self.unfinished = False
                raise
            self._end_transaction(b"COMMIT")

    def _end_transaction(self, sql: bytes) -> None:
        try:
            self.execute(sql)
        except (ConnectionLost, Deadlock):
            raise
        except ServerError as error:
            # MySQL rolls back where COMMIT is interrupted. MariaDB may leave the transaction open, after ROLLBACK too.
            raise ConnectionLost(error.message, node=error.node, shard=error.shard, code=error.code) from error

    @contextmanager
    def whole(self) -> Iterator[None]:
        """For a block that leaves the session as it found it: where it does not come to its end, nobody gets that."""
        self.unfinished = True
        yield
        self.unfinished = False


class _CheckedOut:
    """A connection for the length of a ``with`` block; ``contextmanager`` would double what that costs."""

    __slots__ = ("_connection", "_pool", "_shard")

    def __init__(self, pool: NodePool, shard: int | None) -> None:
        self._pool = pool
        self._shard = shard

    def __enter__(self) -> Connection:
        self._connection = self._pool.take(self._shard)
        return self._connection

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._pool.give_back(self._connection, error)


class NodePool:
    """The connections to one server."""

    def __init__(self, node: Node, credentials: Credentials, options: PoolOptions) -> None:
        self.node = node
        self.options = options
        self._credentials = credentials
        self._lost_at_s = 0.0
        self._closed_at_s = 0.0
        self._begin()
        _all_pools.add(self)

    def _begin(self) -> None:
        self._engine: Engine | None = None
        self._lock = threading.Lock()
        self._idle: deque[Connection] = deque()
        # Every driver connection there is, in use or not: a forked child has to let go of them.
        self._opened: weakref.WeakSet[Any] = weakref.WeakSet()
        # One entry for each connection that may still be taken: a semaphore, but in C.
        self._places: SimpleQueue[None] = SimpleQueue()
        for _ in range(self.options.pool_size):
            self._places.put(None)

    def __repr__(self) -> str:
        return f"NodePool({self.node})"

    @property
    def engine(self) -> Engine:
        """SQLAlchemy's engine for this node; made on first use."""
        if self._engine is None:
            with self._lock:
                if self._engine is None:
                    self._engine = self._make_engine()
        return self._engine

    def _connect_args(self) -> dict[str, Any]:
        options = self.options
        arguments: dict[str, Any] = {
            "charset": "utf8mb4",
            "connect_timeout": options.connect_timeout_s,
            "read_timeout": options.read_timeout_s,
            "write_timeout": options.write_timeout_s,
        }
        if self._credentials.drivername == "mysql+mysqldb":
            # It takes whole seconds only, and 0 would mean for ever.
            whole = {name: math.ceil(value) for name, value in arguments.items() if name.endswith("_timeout")}
            arguments |= whole
        # What the URL says counts; SQLAlchemy hands it to the driver.
        said = self._credentials.driver_options
        used = {name: value for name, value in arguments.items() if name not in said}
        return used | {"init_command": SESSION} | driver_arguments(self.node, self._credentials)

    def _make_engine(self) -> Engine:
        try:
            engine = sqlalchemy.create_engine(
                sqlalchemy_url(self.node, self._credentials, None),
                isolation_level="AUTOCOMMIT",
                poolclass=NullPool,
                hide_parameters=True,
                connect_args=self._connect_args(),
            )
        except ModuleNotFoundError as missing:
            raise InvalidInput(
                f"{self._credentials.drivername} needs the driver {missing.name!r}, which is not installed; "
                "use mysql:// for PyMySQL, which is"
            ) from None
        event.listen(engine, "do_connect", self._open)
        event.listen(engine, "connect", _remember_facts)
        return engine

    def _open(self, dialect: Any, _record: Any, arguments: list[Any], options: dict[str, Any]) -> Any:
        """Make a driver connection as SQLAlchemy would, but let ``connect_timeout`` hold until the login is over."""
        if dialect.driver != "pymysql":
            connection = dialect.connect(*arguments, **options)
            self._opened.add(connection)
            return connection
        read_timeout_s = options["read_timeout"]
        options["read_timeout"] = min(read_timeout_s, options["connect_timeout"])
        try:
            connection = dialect.connect(*arguments, **options, defer_connect=True)
        except Exception as error:
            # Nothing was sent yet: a number that is out of range, an option that PyMySQL does not have.
            raise InvalidInput(f"the URL's options cannot be used: {error}") from error
        self._opened.add(connection)
        connection.connect()
        # PyMySQL would wait as long for the server's greeting as for a reply to a statement.
        connection._read_timeout = read_timeout_s  # noqa: SLF001 - it has no public name
        return connection

    def take(self, shard: int | None) -> Connection:
        """Check a connection out, for ``connection``.

        Raises:
            ServerUnavailable, ServerTimeout, AccessDenied: none could be had.
        """
        try:
            self._places.get(timeout=self.options.pool_timeout_s)
        except Empty:
            # An interrupt can strike where a place is nobody's: between its taking and the block, or after that.
            if self._in_use() >= self.options.pool_size:
                raise ServerTimeout(
                    "no connection of the pool became free in time; raise pool_size, or make fewer calls at once",
                    node=str(self.node),
                    shard=shard,
                ) from None
        try:
            while True:
                try:
                    connection = self._idle.pop()
                except IndexError:
                    return self._connect(shard)
                if connection.connected_at_s >= self._lost_at_s:
                    connection.shard = shard
                    return connection
                connection.close()
        except BaseException:
            self._places.put(None)
            raise

    def give_back(self, connection: Connection, error: BaseException | None) -> None:
        """Check a connection in after a block that ended with ``error``."""
        try:
            if isinstance(error, ConnectionLost):
                # The server restarted, or closed what was idle: older connections are likely as dead.
                self._lost_at_s = time.monotonic()
                connection.close()
            elif connection.unfinished or connection.connected_at_s < self._closed_at_s:
                connection.close()
            elif error is None or isinstance(error, Exception):
                self._idle.append(connection)
            else:
                # Interrupted in the middle of a reply: what would be read next on it is not ours.
                connection.close()
        finally:
            self._places.put(None)

    def _in_use(self) -> int:
        return sum(bool(connection.open) for connection in list(self._opened)) - len(self._idle)

    def _connect(self, shard: int | None) -> Connection:
        try:
            fairy = self.engine.raw_connection()
            connection = Connection(fairy.driver_connection, str(self.node), shard, fairy.info)
            fairy.detach()  # SQLAlchemy forgets it: from here on it is ours to close
            return connection
        except SchemalessError:
            raise
        except (TypeError, sqlalchemy.exc.ArgumentError) as error:
            raise InvalidInput(f"the URL's options cannot be used: {error}") from error
        except Exception as error:
            if isinstance(error, ValueError) and not isinstance(error, UnicodeError):
                # Of an option's value; what is no text came from the other side.
                raise InvalidInput(f"the URL's options cannot be used: {error}") from error
            if not is_drivers(error):
                raise
            raise translated(error, str(self.node), shard, connecting=True) from error

    def connection(self, shard: int | None = None) -> _CheckedOut:
        """Check a connection out for a ``with`` block.

        It is thrown away if the block fails in the driver or is interrupted.

        Raises:
            ServerUnavailable, ServerTimeout, AccessDenied: no connection could be had; at the block's beginning.
        """
        return _CheckedOut(self, shard)

    def run(self, operation: Callable[[Connection], T], *, shard: int | None = None, writes: bool = False) -> T:
        """Run ``operation`` on a connection, and again where the connection was lost or a deadlock ended it.

        ``operation`` must be safe to repeat: a read, or a write that finds out by itself whether it happened before.

        Args:
            operation: takes a connection; must not keep it.
            shard: named in errors.
            writes: whether a lost connection leaves the outcome open.

        Raises:
            OutcomeUnknown: a write lost its connection on every attempt.
            ServerError: what the last attempt met.
        """
        lost: ConnectionLost | None = None
        last: ServerError | None = None
        for attempt in range(ATTEMPTS):
            if attempt:
                time.sleep(_FIRST_PAUSE_S * 2 ** (attempt - 1) * random.uniform(0.5, 1.5))  # noqa: S311 - jitter
            try:
                with self.connection(shard) as connection:
                    return operation(connection)
            except ConnectionLost as error:
                lost = last = error
                if isinstance(error, ReplyTimedOut) and not writes:
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
                raise _unknown(lost, str(error), lost) from error
            except ServerError as error:
                last = error
                # At first, say so at once. After a loss the server may be restarting, or be busy with what it got.
                if lost is None or not isinstance(error, ServerUnavailable | ServerTimeout):
                    break
        assert last is not None
        if writes and lost is not None:
            raise _unknown(lost, last.message, last) from last
        raise last

    @contextmanager
    def session(self, database: str) -> Iterator[sqlalchemy.Connection]:
        """Give a SQLAlchemy connection for the block, with ``database`` as its own; for changes of tables.

        Beside the pool, and in AUTOCOMMIT. SQLAlchemy takes it to be in no database, so it cannot look for tables
        there; for that there is ``sqlalchemy_connection``, which takes 35 ms more to make.

        Raises:
            ServerError: whatever the server or the driver raised.
        """
        connecting = True
        try:
            with self.engine.connect() as connection:
                try:
                    connection.exec_driver_sql(f"USE `{database}`")
                    connecting = False
                    yield connection
                except BaseException:
                    connection.invalidate()
                    raise
        except sqlalchemy.exc.SQLAlchemyError as error:
            raise translated(error, str(self.node), None, connecting=connecting) from error

    @contextmanager
    def sqlalchemy_connection(self, database: str, *, writes: bool = False) -> Iterator[sqlalchemy.Connection]:
        """Give a SQLAlchemy connection of its own to one database, in one transaction; for schema and catalog work.

        Not one of the pool's: those belong to no database, and Alembic looks for tables in the connection's own.

        Raises:
            OutcomeUnknown: with ``writes``: the connection was lost.
            ServerError: whatever the server or the driver raised.
        """
        engine = sqlalchemy.create_engine(
            sqlalchemy_url(self.node, self._credentials, database),
            poolclass=NullPool,
            hide_parameters=True,
            connect_args=self._connect_args(),
        )
        event.listen(engine, "do_connect", self._open)
        connecting = True
        try:
            with engine.begin() as connection:
                connecting = False
                yield connection
        except sqlalchemy.exc.SQLAlchemyError as error:
            raised = translated(error, str(self.node), None, connecting=connecting)
            if writes and isinstance(raised, ConnectionLost):
                raised = _unknown(raised, "it was not repeated", raised)
            raise raised from error

    def close(self) -> None:
        """Close every idle connection, and each one in use when it is given back.

        The pool can still be used; it then connects again.
        """
        self._closed_at_s = time.monotonic()
        with suppress(IndexError):
            while True:
                self._idle.pop().close()

    def forget_after_fork(self) -> None:
        """Let a forked child go of its parent's connections, without a word on the wire.

        Of those in use by the parent's threads too: while the child held them open, the server would not see them end.
        """
        opened = list(self._opened)
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


def _unknown(lost: ConnectionLost, then: str, last: ServerError) -> OutcomeUnknown:
    return OutcomeUnknown(
        f"the reply to a write was lost ({lost.message}), and repeating it did not tell ({then}); "
        "make the same call again to settle it",
        node=last.node,
        shard=last.shard,
        code=last.code,
    )


_all_pools: weakref.WeakSet[NodePool] = weakref.WeakSet()
_of_the_parent: list[Any] = []
"""Kept from being collected: driver connections that are closed, or that do not say which socket is theirs."""


def _after_fork_in_child() -> None:
    for pool in list(_all_pools):
        pool.forget_after_fork()


def _remember_facts(driver_connection: Any, record: Any) -> None:
    record.info["connected_at_s"] = time.monotonic()
    cursor = driver_connection.cursor()
    cursor.execute("SELECT @@max_allowed_packet, @@auto_increment_increment, VERSION()")
    packet, increment, version = cursor.fetchone()
    cursor.close()
    record.info["max_allowed_packet"] = int(packet)
    record.info["auto_increment_increment"] = int(increment)
    record.info["version"] = str(version)


os.register_at_fork(after_in_child=_after_fork_in_child)
