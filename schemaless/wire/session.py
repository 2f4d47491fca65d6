"""Opening and closing of driver connections, and the session variables that the store's guarantees depend on.

Every connection is opened here, for the pools as well as for SQLAlchemy. The session variables are set explicitly,
whatever the server's globals or ``init_connect`` say, and then read back, because a driver may omit a SET that a status
flag makes seem unnecessary, and a proxy may drop one.

Server defaults of these variables could silently break a guarantee:

- autocommit, completion_type: writes that are not committed
- sql_select_limit, sql_auto_is_null: missing rows
- transaction_isolation: uncommitted reads
- unique_checks: cells written twice
- sql_mode, character sets: literals with another meaning
- time_zone, timestamp, max_sort_length: wrong times or a wrong order
- default_storage_engine: tables without transactions
- sql_log_bin: writes that are not replicated; only an administrator can reset it, so a session without it is refused

optimizer_switch is changed on MariaDB, because index condition pushdown makes MyRocks omit rows.

sql_safe_updates and sql_big_selects would reject valid statements. eq_range_index_dive_limit is set for speed: every
statement names its index, so the optimizer need not count the rows of each key. All other variables (timeouts, memory,
optimizer, binary log format) can only make a call slow or fail with an error.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from pymysql.constants import CLIENT, COMMAND

from schemaless.errors import InvalidInput, ServerRefused
from schemaless.wire.driver import DriverConnection
from schemaless.wire.errors import error_code, is_drivers, translated
from schemaless.wire.node import Node
from schemaless.wire.runtime import THREADS, Runtime
from schemaless.wire.secret import clear_locals
from schemaless.wire.sql.sessions import NO_CLAIM, select_session, set_session
from schemaless.wire.urls import Credentials

if TYPE_CHECKING:
    from sqlalchemy.engine import URL

SQL_MODE: Final = "STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION"
"""SQL mode that keeps backslash escapes in literals and rejects values that do not fit instead of truncating them."""

_UNKNOWN: Final = re.compile(r"unexpected keyword argument '(\w+)'")

_NO_LIMIT: Final = 2**64 - 1
_UNKNOWN_VARIABLE: Final = 1193

SETTINGS: Final[dict[str, str | int]] = {
    "sql_mode": SQL_MODE,
    "time_zone": "+00:00",
    "completion_type": "NO_CHAIN",
    "sql_select_limit": _NO_LIMIT,
    "sql_safe_updates": 0,
    "sql_big_selects": 1,
    "sql_auto_is_null": 0,
    "unique_checks": 1,
    "foreign_key_checks": 1,
    "max_sort_length": 1024,
    "eq_range_index_dive_limit": 1,
    "default_storage_engine": "InnoDB",
}
"""Session variables to set, with values as the server returns them; autocommit and the isolation level are added."""

MARIADB_SETTINGS: Final[dict[str, str | int]] = {"optimizer_switch": "index_condition_pushdown=off"}
"""Further session variables to set on MariaDB; the value read back is a list that contains the setting among others.

With pushed index conditions, MyRocks compares VARCHAR key columns wrongly: a query for several keys misses rows.
"""

READ_BACK: Final[dict[str, str | int]] = {
    "character_set_client": "utf8mb4",
    "character_set_connection": "utf8mb4",
    "character_set_results": "utf8mb4",
    "sql_log_bin": 1,
}
"""Session variables that are only checked: the driver sets them, or only an administrator can."""


@dataclass(frozen=True, slots=True)
class Facts:
    """Server properties, read when a connection is opened.

    Attributes:
        max_allowed_packet: maximum statement size, in bytes.
        auto_increment_increment: step between generated ids.
        version: the server's version string.
        is_mariadb: True if the server is MariaDB.
        server: tells the server apart from others that its address may lead to; see ``sql.sessions.SERVER``.
        connected_at_s: when opening the connection began, by ``time.monotonic``.
        claim: epoch of the server's claim on the cluster; None if it has none, or if it was not queried.
    """

    max_allowed_packet: int
    auto_increment_increment: int
    version: str
    is_mariadb: bool
    server: str
    connected_at_s: float
    claim: int | None


def open_connection(
    node: Node,
    credentials: Credentials,
    timeouts: tuple[float, float, float],
    register: Callable[[DriverConnection], object],
    *,
    shard: int | None = None,
    database: str | None = None,
    autocommit: bool = True,
    claim: bytes = NO_CLAIM,
    runtime: Runtime = THREADS,
) -> tuple[DriverConnection, Facts]:
    """Open a driver connection, and set up and verify its session.

    Args:
        node: the server.
        credentials: the account.
        timeouts: connect, read and write timeout, in seconds; timeouts in the URL take precedence.
        register: called with the connection before anything is sent on it.
        shard: the shard concerned, for errors.
        database: default database, if any.
        autocommit: False to open transactions implicitly, as the DB API does.
        claim: SQL expression for the server's claim; see ``sql.sessions.own_claim``.
        runtime: how the connection waits.

    Returns:
        The connection and the properties of its server.

    Raises:
        InvalidInput: the URL's options cannot be used.
        ServerUnavailable, ServerTimeout, AccessDenied, ServerRefused: the connection failed, or the session variables
            did not keep their values.
    """
    raw = None
    # The start, because an address leads a later connection to the same server or a later one.
    began_s = time.monotonic()
    try:
        # Reads certificates.
        raw = runtime.blocking(partial(_unconnected, node, credentials, timeouts, database))
        raw.runtime = runtime
        register(raw)
        _log_in(raw, credentials)
        return raw, _set_up(raw, str(node), autocommit, claim, began_s)
    except BaseException as error:
        clear_locals(error)
        if raw is not None:
            close(raw, idle=False)
        if is_drivers(error):
            raise translated(error, str(node), shard, connecting=True) from error
        raise


def close(raw: DriverConnection, *, idle: bool) -> None:
    """Close a driver connection; does nothing if it is closed already.

    Args:
        raw: a connection from ``open_connection``.
        idle: True if every reply has been read. Otherwise no COM_QUIT is sent, since it could end up in the middle of a
            statement.
    """
    try:
        if idle and raw.open:
            # PyMySQL's close() would ignore an exception of a signal handler.
            raw._execute_command(COMMAND.COM_QUIT, b"")  # noqa: SLF001
    except Exception as error:
        if not is_drivers(error):
            raise
    finally:
        raw._force_close()  # noqa: SLF001


def _log_in(raw: DriverConnection, credentials: Credentials) -> None:
    # PyMySQL would wait for the server's greeting as long as for a reply to a statement.
    read_timeout_s: Any = raw._read_timeout  # noqa: SLF001 - PyMySQL has no public name for it
    raw._read_timeout = min(read_timeout_s, raw.connect_timeout)  # noqa: SLF001
    try:
        if credentials.password is not None:
            # PyMySQL would encode a str as Latin-1, but passwords are set as UTF-8.
            raw.password = credentials.password.reveal().encode()
        raw.connect()
    finally:
        raw.password = b""
    raw._read_timeout = read_timeout_s  # noqa: SLF001


def _unconnected(
    node: Node, credentials: Credentials, timeouts: tuple[float, float, float], database: str | None
) -> DriverConnection:
    try:
        arguments: dict[str, Any] = {
            "charset": "utf8mb4",
            **dict(zip(("connect_timeout", "read_timeout", "write_timeout"), timeouts, strict=True)),
            **url_arguments(node, credentials, database),
            **credentials.tls.driver_arguments(socket=node.socket is not None),
            # The session is set up after the login, so that init_connect cannot override it.
            "autocommit": None,
            "defer_connect": True,
        }
        return DriverConnection(**arguments)
    except (TypeError, ValueError) as error:
        if isinstance(error, UnicodeError):
            raise
        if (unknown := _UNKNOWN.search(str(error))) is not None:
            raise InvalidInput(f"the URL has the unknown option {unknown[1]!r}; correct or remove it") from error
        raise InvalidInput(f"the URL's options cannot be used: {error}") from error


def url_arguments(node: Node, credentials: Credentials, database: str | None) -> dict[str, Any]:
    """Return the driver arguments for an address and a URL's options, as SQLAlchemy's dialect would.

    The common case, a URL without driver options, does not import SQLAlchemy: the import takes longer than everything
    else up to the first reply.
    """
    if credentials.driver_options:
        url = sqlalchemy_url(node, credentials, database)
        kind: Any = url.get_dialect()
        _, read = kind(dbapi=kind.import_dbapi()).create_connect_args(url)
        return dict(read)
    arguments = {
        "host": node.host,
        "database": database,
        "user": credentials.username,
        "port": node.port,
        "unix_socket": node.socket,
    }
    return {name: value for name, value in arguments.items() if value} | {"client_flag": CLIENT.FOUND_ROWS}


def sqlalchemy_url(node: Node, credentials: Credentials, database: str | None) -> URL:
    """Return a node's SQLAlchemy URL, without the password and TLS options."""
    from sqlalchemy.engine import URL  # slow, and rarely needed

    options = dict(credentials.driver_options)
    if node.socket is not None:
        options["unix_socket"] = node.socket
    return URL.create("mysql+pymysql", credentials.username, None, node.host, node.port, database, options)


def _set_up(raw: DriverConnection, node: str, autocommit: bool, claim: bytes, began_s: float) -> Facts:
    """Set the session variables in one round trip; read them and the server's properties back in a second one.

    If the greeting names another product, as a proxy's may, this takes up to two round trips more.
    """
    mariadb = "mariadb" in str(raw.server_version).lower()
    try:
        facts = _set_up_as(raw, node, autocommit, claim, began_s, mariadb=mariadb)
    except Exception as error:
        if error_code(error) != _UNKNOWN_VARIABLE:
            raise
    else:
        if facts.is_mariadb == mariadb:
            return facts
    return _set_up_as(raw, node, autocommit, claim, began_s, mariadb=not mariadb)


def _set_up_as(
    raw: DriverConnection, node: str, autocommit: bool, claim: bytes, began_s: float, *, mariadb: bool
) -> Facts:
    isolation = "tx_isolation" if mariadb else "transaction_isolation"
    settings = {"autocommit": int(autocommit), **SETTINGS, isolation: "REPEATABLE-READ"}
    if mariadb:
        settings |= MARIADB_SETTINGS
    raw.send(set_session({**settings, "timestamp": None}))
    raw.receive()
    expected = settings | READ_BACK
    raw.send(select_session(expected, claim))
    packet, increment, version, is_mariadb, server, epoch, *actual = raw.receive().row()
    for (name, value), held in zip(expected.items(), actual, strict=True):
        kept = str(held).lower()
        if str(value).lower() not in (kept.split(",") if name in MARIADB_SETTINGS else [kept]):
            raise ServerRefused(
                f"the session has {name}={held!s} although it was set to {value}; check init_connect on the server and "
                "any proxy in between",
                node=node,
            )
    held_epoch = None if epoch is None else int(epoch)
    return Facts(int(packet), int(increment), str(version), bool(int(is_mariadb)), str(server), began_s, held_epoch)
