"""Translation of driver exceptions: those of PyMySQL and SQLAlchemy never leave this package."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, TypeVar

import pymysql

from schemaless.errors import AccessDenied, ServerError, ServerRefused, ServerTimeout, ServerUnavailable

E = TypeVar("E", bound=ServerError)


class ConnectionLost(ServerUnavailable):
    """The connection was lost when part of a statement may already have been sent."""


class ReplyTimedOut(ConnectionLost):
    """The reply did not arrive within the read timeout; the server may still be executing the statement."""


class Deadlock(ServerTimeout):
    """The server rolled back the transaction after a deadlock or similar conflict; it can be retried."""


class DuplicateKey(ServerRefused):
    """The value already exists in a unique key (error 1062)."""


class DatabaseMissing(ServerRefused):
    """The database or table does not exist."""


class ReadOnly(ServerRefused):
    """The server is read-only: a replica, or a primary that another one is about to replace.

    Attributes:
        may_have_moved: whether the pool has discarded the connection, because its address may lead elsewhere now.
    """

    retryable = True
    may_have_moved: bool = False


class Elsewhere(ServerUnavailable):
    """The shard has moved to another server, or is being moved.

    Attributes:
        missing: the server's ``DatabaseMissing``, if the catalog does not name another server yet.
    """

    def __init__(self, message: str, *, node: str, shard: int, missing: DatabaseMissing | None = None) -> None:
        super().__init__(message, node=node, shard=shard, code=None if missing is None else missing.code)
        self.missing = missing


class ServerReplaced(ServerUnavailable):
    """A new connection reached another server than earlier ones; nothing was sent."""


class CannotObserve(ServerRefused):
    """The server does not show open transactions, at least not to this account."""


READ_ONLY: Final = frozenset({1290, 1836})
"""Errors of a write to a read-only server, such as a replica."""

_LOST: Final = frozenset({2006, 2013, 2014, 2027, 2055, 1053, 1079, 1152, 1158, 1159, 1160, 1161, 1927, 4031, 3169})
_UNREACHABLE: Final = frozenset({1040, 1203, 2002, 2003, 2004, 2005, 2009, 2026})
_CLASSES: Final[dict[type[ServerError], tuple[int, ...]]] = {
    AccessDenied: (1044, 1045, 1095, 1130, 1142, 1143, 1227, 1370, 1410, 1698, 1820, 1862, 3118, 3159, 3955, 4151),
    ServerTimeout: (1205, 1317, 1969, 3024, 3572),
    Deadlock: (1020, 1213, 1412, 3101),
    DuplicateKey: (1062,),
    DatabaseMissing: (1008, 1049, 1146),
    ReadOnly: tuple(READ_ONLY),
}
_CLASS_OF: Final = {code: kind for kind, codes in _CLASSES.items() for code in codes}
_ACCOUNT_LIMIT: Final = 1226
_LOCKED: Final = "unlock the account on each server: ALTER USER ... IDENTIFIED BY '...' ACCOUNT UNLOCK"
_READ_ONLY_SERVER: Final = "the server is read-only; check that the catalog names the primary"
_WRONG_HOST: Final = "is the server running, and are host and port right?"
_WRONG_SOCKET: Final = "is the server running, and is the socket right?"
NO_CLAIMS: Final = frozenset({1049, 1146, 1193})
"""Errors of a claim query on a server without claims: no database, no table, no server_uuid (MariaDB)."""

_NEXT_STEP: Final = {
    1021: "the server's disk is full: free some space, then retry",
    1114: "the server's disk or tablespace is full: free some space, then retry",
    1040: "the server has no free connection: raise max_connections or use smaller pools",
    1129: "the server blocks this host after too many failed connections: fix the cause, then run "
    "TRUNCATE TABLE performance_schema.host_cache there",
    1153: "raise max_allowed_packet on the server",
    1203: "the account has no free connection: raise max_user_connections or use smaller pools",
    1226: "raise the account's limit, or use smaller pools",
    1045: "check the account in the URL and the password in SCHEMALESS_PASSWORD; TLS may be needed: ssl_mode=required",
    1665: "set binlog_format=ROW on the server",
    1698: "the account cannot log in this way: check the account in the URL and SCHEMALESS_PASSWORD",
    1205: "the lock was not granted in time; nothing was written",
    1290: _READ_ONLY_SERVER,
    1792: "transaction_read_only (MariaDB: tx_read_only) is on for new sessions: turn it off on the server",
    1836: _READ_ONLY_SERVER,
    2002: _WRONG_HOST,
    2003: _WRONG_HOST,
    3118: _LOCKED,
    3159: "the server requires encrypted connections: add ssl_mode=required to the URL",
    4151: _LOCKED,
}
_DRIVER_MODULES: Final = frozenset({"builtins", "decimal", "pymysql", "socket", "ssl", "struct"})
"""Top-level modules of the exception classes that the driver raises or passes on."""

_LACKS_PRIVILEGE: Final = frozenset({1044, 1142, 1143, 1227, 1370})
_OTHER_NAME: Final = "use a host name from the certificate, or verify the CA only: ssl_mode=verify_ca"
_OTHER_AUTHORITY: Final = "ssl_ca must contain the CA that signed the server's certificate"
_TLS_FAILURES: Final = (
    ("mismatch, certificate", _OTHER_NAME),
    ("certificate has expired", "renew the server's certificate or its CA's, and check this machine's clock"),
    ("certificate is not yet valid", "check the clocks of this machine and of the one that signed the certificate"),
    ("issuer certificate", _OTHER_AUTHORITY),
    ("self-signed certificate", _OTHER_AUTHORITY),
    ("certificate signature failure", _OTHER_AUTHORITY),
    ("CERTIFICATE_VERIFY_FAILED", "replace the server's certificate"),
    ("SSL is required", "give the server a certificate, or leave out ssl_mode for unencrypted connections"),
    # RSA encryption of a password, by the library cryptography.
    (
        "Encryption failed",
        "the password is too long to be sent without TLS: add ssl_mode=required, or use a shorter one",
    ),
)
"""Message fragments of failed TLS checks and logins, after which a retry is useless, and what to do about each."""


def reworded(error: E, message: str) -> E:
    """Return the error of a server with another message, which says what to do about it."""
    return type(error)(message, node=error.node, shard=error.shard, code=error.code)


@contextmanager
def needing(role: str) -> Iterator[None]:
    """Make refusals within the block name the role that is needed for the work there, whichever table they concern."""
    try:
        yield
    except AccessDenied as denied:
        raise reworded(denied, _COMMAND.sub(f"'schemaless grants --role {role}'", denied.message)) from denied


def error_code(error: BaseException | None) -> int | None:
    """Return the MySQL error number of a driver exception, or None.

    Python's own exceptions have none: the number of an OSError is a system error, and a KeyError's argument is a key.
    """
    # Negative numbers are progress reports of MariaDB.
    if isinstance(error, pymysql.MySQLError) and error.args and isinstance(error.args[0], int) and error.args[0] >= 0:
        return error.args[0]
    return None


def is_drivers(error: BaseException) -> bool:
    """Return True if an exception's class is one that a driver raises or passes on.

    An exception that a signal handler raises while the driver waits is told from the driver's by its class only: one of
    Python's own classes counts as a failure of the connection. A MemoryError is this process's own.
    """
    if not isinstance(error, Exception) or isinstance(error, MemoryError):
        return False
    return type(error).__module__.partition(".")[0] in _DRIVER_MODULES


def is_servers(error: BaseException) -> bool:
    """Return True if an exception's class and number show that it is an error reply from the server."""
    code = error_code(error)
    return code is not None and code >= 1000 and code // 1000 != 2


def translated(error: BaseException, node: str, shard: int | None, *, connecting: bool) -> ServerError:
    """Translate a driver exception.

    Args:
        error: exception of the driver, or one of SQLAlchemy's without an exception of the driver inside.
        node: the server's address.
        shard: the shard concerned, or None.
        connecting: True if no statement of the caller can have been sent yet.
    """
    code = error_code(error)
    # The second argument is the message, except in a UnicodeError, where it is the data.
    has_message = len(error.args) > 1 and not isinstance(error, UnicodeError)
    text = str(error.args[1]) if has_message else str(error) or type(error).__name__
    # PyMySQL reports localhost for every socket.
    absent_socket = code in (2002, 2003) and node.startswith("/")
    if absent_socket:
        text = text.replace(" on 'localhost'", "")
    message = f"{text} (error {code})" if code else text
    tls_step = next((step for words, step in _TLS_FAILURES if words in text), None) if connecting else None
    if tls_step is not None:
        message += f"; {tls_step}"
    elif absent_socket:
        message += f"; {_WRONG_SOCKET}"
    elif code in _NEXT_STEP:
        message += f"; {_NEXT_STEP[code]}"
    elif code in _LACKS_PRIVILEGE:
        message += f"; 'schemaless grants{_role(text)}' prints what the account needs"

    kind = ServerRefused if tls_step is not None else _class_of(code, text, connecting=connecting)
    return kind(message, node=node, shard=shard, code=code or None)


def _class_of(code: int | None, text: str, *, connecting: bool) -> type[ServerError]:
    if code in _CLASS_OF:
        return _CLASS_OF[code]
    # Without a number, the driver lost track of the protocol, or the socket failed.
    is_lost = not code or code in _LOST or code in _UNREACHABLE
    if connecting and (is_lost or code == _ACCOUNT_LIMIT):
        return ServerUnavailable
    if is_lost:
        return ReplyTimedOut if "timed out" in text else ConnectionLost
    return ServerRefused


_ROLES: Final = (
    # Every role needs this privilege, so no particular role can be suggested.
    (r"primary_claim .*", ""),
    (r"metadata_locks .*", "tail"),
    (r"(\w+_(incoming|moved|noted)_\w+|shard_move) .*|cell DROP", "move"),
    (r"index_\w+ SELECT", "app"),
    (r"index_\w+ (ALTER|CREATE|DROP|INDEX)", "admin"),
    (r"(index_\w+|follower|parked|follower_setting|follower_worker) .*", "follow"),
    (r"(erasure\w*|legal_hold|retention_policy) .*|erased_cell (?!SELECT).*", "erase"),
    (r"(alembic_version|heartbeat_token) .*", "admin"),
    (r"(events_transactions_current|threads|tables_priv|db) .*", "move"),
    (r"replication_\w+ .*", "admin"),
    (r"(keyring_component|log)_status .*", "backup"),
    (r"(capacity_sample|table_io_waits\w+) .*", "measure"),
    (r"\w+ SELECT|cell INSERT", "app"),
    (r"(cell|c) UPDATE|cold_file .*|job\w* .*", "migrate"),
    (r".*", "admin"),
)
"""Role that lacks a privilege, by table and command; the first match counts. Jobs know better: see ``needing``."""

_COMMAND: Final = re.compile(r"'schemaless grants(?: --role \w+)?'")


def _role(text: str) -> str:
    """Return the ``--role`` option for a denied command, or an empty string if the role is unknown."""
    refusal = re.match(r"(?P<command>[A-Z]+)[A-Z ,]* command denied .*\b(?P<table>\w+)\W*$", text)
    if refusal is None:
        return ""
    denied = f"{refusal['table']} {refusal['command']}"
    role = next(role for pattern, role in _ROLES if re.fullmatch(pattern, denied))
    return role and f" --role {role}"
