"""The one way to a server: a driver connection, logged in, whose session is what the guarantees rest on.

What a server's administrator may have set globally, or has set by ``init_connect``, is set here for each session and
read back: a driver trusts a status flag, and a proxy may swallow a SET. The pool keeps what this makes, and the engines
of SQLAlchemy get theirs from here as well.

Of the variables that a session takes over from its server, these could break a promise in silence: writes that are not
committed (autocommit, completion_type), rows that are left out (sql_select_limit, sql_auto_is_null) or read before they
are committed (transaction_isolation), a cell that is written twice (unique_checks), literals that mean something else
(sql_mode, the character sets), wrong times (time_zone, timestamp) or order (max_sort_length), tables in an engine
without transactions (default_storage_engine), and writes that no replica gets (sql_log_bin, which only an administrator
may set back, so that it is refused). Two more would refuse work without need: sql_safe_updates and sql_big_selects.
What is left alone can make a call fail, and says so, or slow: timeouts, memory, the optimizer, the binary log's format.
One is set for speed (eq_range_index_dive_limit): statements name the index that they are read by, so that no server
need count the rows of each key that it is asked for, to choose one.
"""

from __future__ import annotations

import importlib
import math
import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import pymysql
import pymysql.connections
from pymysql.constants import CLIENT, COMMAND

from schemaless.errors import InvalidInput, ServerRefused
from schemaless.wire.driver import DriverConnection
from schemaless.wire.errors import interruption, is_drivers
from schemaless.wire.node import Node
from schemaless.wire.secret import Secret, clear_locals
from schemaless.wire.sql.sessions import NO_CLAIM, select_session, set_session
from schemaless.wire.urls import Credentials, driver_arguments, sqlalchemy_url

SQL_MODE: Final = "STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION"
"""Statements are built byte by byte: they need backslash escapes, and errors rather than truncation."""

_NO_LIMIT: Final = 2**64 - 1

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
"""Each session has these, as they read back. ``autocommit`` and the isolation come to them (``_wanted``)."""

READ_BACK: Final[dict[str, str | int]] = {
    "character_set_client": "utf8mb4",
    "character_set_connection": "utf8mb4",
    "character_set_results": "utf8mb4",
    "sql_log_bin": 1,
}
"""These are only read back: the driver has set them, or nobody but an administrator may."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What a server says of itself to a new connection.

    Attributes:
        max_allowed_packet: the longest statement that it takes, in bytes.
        auto_increment_increment: the distance of the ids that it hands out.
        version: as it gives it.
        connected_at_s: when, on the monotonic clock.
        claim: the epoch of its claim on the cluster that was asked about; None without, and where none was.
    """

    max_allowed_packet: int
    auto_increment_increment: int
    version: str
    connected_at_s: float
    claim: int | None


def open_connection(
    node: Node,
    credentials: Credentials,
    timeouts: tuple[float, float, float],
    made: Callable[[Any], object],
    *,
    database: str | None = None,
    autocommit: bool = True,
    claim: bytes = NO_CLAIM,
) -> tuple[Any, Facts]:
    """Return a driver connection whose session is set and read back, and what its server says of itself.

    Args:
        credentials: how to log in.
        timeouts: to connect, to read and to write, in seconds; what the URL says counts before them.
        made: called with the connection before anything is sent on it.
        database: its own, if any.
        autocommit: whether each statement is a transaction of its own.
        claim: the expression for the server's claim; see ``sql.replicas.own_claim``.

    Raises:
        InvalidInput: the URL's options cannot be used.
        ServerRefused: the server, or something on the way to it, does not leave the session as it was set.
        Exception: what the driver raised (``errors.translated``), or somebody's signal handler.
    """
    raw = None
    try:
        raw = _made(node, credentials, timeouts, database, made)
        return raw, _set_up(raw, str(node), autocommit, claim)
    except BaseException as error:
        clear_locals(error)
        if raw is not None:
            close(raw, idle=False)
        raise


def close(raw: Any, *, idle: bool) -> None:
    """End a driver connection.

    Args:
        raw: what ``open_connection`` returned, closed or not.
        idle: whether every reply on it has been read. On another nothing is sent any more, not even a farewell: that
            could come to stand in the middle of a statement.
    """
    is_pymysql = isinstance(raw, pymysql.connections.Connection)
    try:
        if is_pymysql:
            if idle and raw.open:
                # Not close(), which drops what a signal's handler raises meanwhile.
                raw._execute_command(COMMAND.COM_QUIT, b"")  # noqa: SLF001
        else:
            if not idle:
                with socket.socket(fileno=os.dup(raw.fileno())) as wire:
                    wire.shutdown(socket.SHUT_RDWR)
            raw.close()
    except Exception as error:  # noqa: BLE001 - it may be closed already, or the server gone
        if (another := interruption(error)) is not None:
            raise another from another.__cause__
    finally:
        if is_pymysql:
            raw._force_close()  # noqa: SLF001


def import_driver(credentials: Credentials) -> Any:
    """Return the module of the driver that a URL names.

    Raises:
        InvalidInput: it is not installed.
    """
    if credentials.drivername == "mysql+pymysql":
        return pymysql
    try:
        return importlib.import_module("MySQLdb")
    except ModuleNotFoundError as missing:
        raise InvalidInput(
            f"{credentials.drivername} needs the driver {missing.name!r}, which is not installed; "
            "use mysql:// for PyMySQL, which is"
        ) from None


def _made(
    node: Node,
    credentials: Credentials,
    timeouts: tuple[float, float, float],
    database: str | None,
    made: Callable[[Any], object],
) -> Any:
    """Return a connection that is logged in."""
    driver = import_driver(credentials)
    arguments = _called(
        _arguments, {"node": node, "credentials": credentials, "timeouts": timeouts, "database": database}
    )
    password: Secret | None = arguments.pop("password", None)
    if driver is not pymysql:
        login = {} if password is None else {"password": password.reveal()}
        try:
            raw = _called(driver.connect, arguments | login)
        finally:
            login.clear()
        made(raw)
        return raw
    raw = _called(DriverConnection, arguments | {"defer_connect": True})
    made(raw)
    # PyMySQL would wait as long for the server's greeting as for a reply to a statement.
    read_timeout_s = raw._read_timeout  # noqa: SLF001 - it has no public name
    raw._read_timeout = min(read_timeout_s, raw.connect_timeout)  # noqa: SLF001
    try:
        if password is not None:
            # As bytes: it would send text as Latin-1, where the programs that set passwords send UTF-8.
            raw.password = password.reveal().encode()
        raw.connect()
    finally:
        raw.password = b""
    raw._read_timeout = read_timeout_s  # noqa: SLF001
    return raw


def _called(connect: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    """Call the driver; only what it says of its arguments is about the URL."""
    try:
        return connect(**arguments)
    except (TypeError, ValueError) as error:
        if isinstance(error, UnicodeError) or not is_drivers(error):
            raise
        raise InvalidInput(f"the URL's options cannot be used: {error}") from error


def _arguments(
    node: Node, credentials: Credentials, timeouts: tuple[float, float, float], database: str | None
) -> dict[str, Any]:
    """Return what the driver is called with."""
    names = ("connect_timeout", "read_timeout", "write_timeout")
    ours: dict[str, Any] = dict(zip(names, timeouts, strict=True))
    if credentials.drivername == "mysql+mysqldb":
        # It takes whole seconds only, and 0 would mean for ever.
        ours = {name: math.ceil(value) for name, value in ours.items()}
    said = said_to_driver(node, credentials, database)
    # The session is set by us, behind the login, where init_connect has no more say.
    return {"charset": "utf8mb4", **ours, **said, "autocommit": None, **driver_arguments(node, credentials)}


def said_to_driver(node: Node, credentials: Credentials, database: str | None) -> dict[str, Any]:
    """Return what an address and a URL's options say to the driver, as SQLAlchemy's dialect reads them.

    Most URLs have no options of the driver, and PyMySQL. They are read here: to import SQLAlchemy takes longer than all
    else up to the first reply, and nothing but the tables' definitions and revisions needs it.
    """
    if credentials.drivername != "mysql+pymysql" or credentials.driver_options:
        url = sqlalchemy_url(node, credentials, database)
        kind: Any = url.get_dialect()
        _, read = kind(dbapi=kind.import_dbapi()).create_connect_args(url)
        return dict(read)
    said = {
        "host": node.host,
        "database": database,
        "user": credentials.username,
        "port": node.port,
        "unix_socket": node.socket,
    }
    return {name: value for name, value in said.items() if value} | {"client_flag": CLIENT.FOUND_ROWS}


def _set_up(raw: Any, node: str, autocommit: bool, claim: bytes) -> Facts:
    """Set the session in one round trip, and read it back in another, with what else is asked of a server."""
    version = str(raw.get_server_info())
    isolation = "tx_isolation" if "mariadb" in version.lower() else "transaction_isolation"
    wanted = {"autocommit": int(autocommit), **SETTINGS, isolation: "REPEATABLE-READ"}
    cursor = raw.cursor()
    cursor.execute(set_session({**wanted, "timestamp": None}))
    expected = wanted | READ_BACK
    cursor.execute(select_session(expected, claim))
    packet, increment, version, epoch, *actual = cursor.fetchone()
    cursor.close()
    for (name, value), held in zip(expected.items(), actual, strict=True):
        if str(held).lower() != str(value).lower():
            raise ServerRefused(
                f"sessions here have {name}={held!s}, and {value} is needed; it was set and did not stay so: look at "
                "init_connect on the server, and at what stands between",
                node=node,
            )
    return Facts(int(packet), int(increment), str(version), time.monotonic(), None if epoch is None else int(epoch))
