"""Translation of driver exceptions: those of PyMySQL, mysqlclient and SQLAlchemy never leave this package.

Drivers use different classes for the same MySQL error number, so the number decides.
"""

from __future__ import annotations

import re
import sys
from typing import Final

from schemaless.errors import AccessDenied, ServerError, ServerRefused, ServerTimeout, ServerUnavailable


class ConnectionLost(ServerUnavailable):
    """The connection was lost when part of a statement may already have been sent.

    Attributes:
        retry_until_s: end of the retry window, on this server or another one, by ``time.monotonic``.
    """

    retry_until_s: float = 0.0


class ReplyTimedOut(ConnectionLost):
    """The reply did not arrive within the read timeout; the server may still be executing the statement."""


class Deadlock(ServerTimeout):
    """The server rolled back the transaction after a deadlock or similar conflict; it can be retried."""


class DuplicateKey(ServerRefused):
    """The value already exists in a unique key (error 1062)."""


class DatabaseMissing(ServerRefused):
    """The database or table does not exist."""


class ReadOnly(ServerRefused):
    """The server is read-only.

    Attributes:
        may_have_moved: whether the pool has discarded the connection, because its address may lead elsewhere now.
    """

    may_have_moved: bool = False


class Elsewhere(ServerUnavailable):
    """The shard has moved to another server, or is being moved.

    Attributes:
        lost: the lost connection that leaves the outcome of a write open; None if nothing was written.
        missing: the server's ``DatabaseMissing``, if the catalog does not name another server yet.
    """

    def __init__(
        self, message: str, *, node: str, shard: int, lost: ServerError | None, missing: DatabaseMissing | None = None
    ) -> None:
        super().__init__(message, node=node, shard=shard, code=None if missing is None else missing.code)
        self.lost = lost
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
_READ_ONLY_SERVER: Final = "the server is read-only; check that the catalog names the primary"
_WRONG_HOST: Final = "is the server running, and are host and port right?"
_WRONG_SOCKET: Final = "is the server running, and is the socket right?"
NO_CLAIMS: Final = frozenset({1049, 1146, 1193})
"""Errors of a claim query on a server without claims: no database, no table, no server_uuid (MariaDB)."""

_NEXT_STEP: Final = {
    1021: "the server's disk is full: free some space, then retry",
    1114: "the server's disk or tablespace is full: free some space, then retry",
    1040: "the server has no free connection: raise max_connections or use smaller pools",
    1129: "the server blocks this host after too many failed connections: fix the cause, then run FLUSH HOSTS there",
    1153: "raise max_allowed_packet on the server",
    1203: "the account has no free connection: raise max_user_connections or use smaller pools",
    1226: "raise the account's limit, or use smaller pools",
    1045: "check the account in the URL and the password in SCHEMALESS_PASSWORD; TLS may be needed: ssl_mode=required",
    1698: "the account cannot log in this way: check the account in the URL and SCHEMALESS_PASSWORD",
    1205: "the lock was not granted in time; nothing was written",
    1290: _READ_ONLY_SERVER,
    1792: "transaction_read_only (MariaDB: tx_read_only) is on for new sessions: turn it off on the server",
    1836: _READ_ONLY_SERVER,
    2002: _WRONG_HOST,
    2003: _WRONG_HOST,
    3159: "the server requires encrypted connections: add ssl_mode=required to the URL",
}
_DRIVER_MODULES: Final = frozenset(
    {"MySQLdb", "builtins", "decimal", "pymysql", "socket", "sqlalchemy", "ssl", "struct"}
)
"""Top-level modules of the exception classes that a driver raises or passes on."""

_SERVER_ERROR_MODULES: Final = frozenset({"MySQLdb", "pymysql"})
_LACKS_PRIVILEGE: Final = frozenset({1044, 1142, 1143, 1227, 1370})
_OTHER_NAME: Final = "use a host name from the certificate, or verify the CA only: ssl_mode=verify_ca"
_OTHER_AUTHORITY: Final = "ssl_ca must contain the CA that signed the server's certificate"
_UNKNOWN_AUTHORITY: Final = f"{_OTHER_AUTHORITY}, and the certificate must be valid now"
_TLS_FAILURES: Final = (
    ("mismatch, certificate", _OTHER_NAME),
    ("certificate has expired", "renew the server's certificate or its CA's, and check this machine's clock"),
    ("certificate is not yet valid", "check the clocks of this machine and of the one that signed the certificate"),
    ("issuer certificate", _OTHER_AUTHORITY),
    ("self-signed certificate", _OTHER_AUTHORITY),
    ("certificate signature failure", _OTHER_AUTHORITY),
    ("CERTIFICATE_VERIFY_FAILED", "replace the server's certificate"),
    ("SSL is required", "give the server a certificate, or leave out ssl_mode for unencrypted connections"),
    # Messages of the C libraries.
    ("Validation of SSL server certificate failed", _OTHER_NAME),
    ("certificate in certificate chain", _OTHER_AUTHORITY),
    ("certificate verify failed", _UNKNOWN_AUTHORITY),
    # RSA encryption of a password, by the library cryptography.
    (
        "Encryption failed",
        "the password is too long to be sent without TLS: add ssl_mode=required, or use a shorter one",
    ),
)
"""Message fragments of failed TLS checks and logins, after which a retry is useless, and what to do about each."""


def error_code(error: BaseException) -> int | None:
    """Return the MySQL error number of a driver exception, or None.

    Python's own exceptions have none: the number of an OSError is a system error, and a KeyError's argument is a key.
    """
    error = _unwrapped(error)
    # Negative numbers are mysqlclient's own errors, and progress reports of MariaDB.
    if _top_level(type(error).__module__) in _SERVER_ERROR_MODULES and error.args and isinstance(error.args[0], int):
        return error.args[0] if error.args[0] >= 0 else None
    return None


def _unwrapped(error: BaseException) -> BaseException:
    """Return the driver exception inside one of SQLAlchemy's, else the exception itself."""
    # Importing SQLAlchemy takes as long as the rest of this package, and most programs never need it.
    sqlalchemy_errors = sys.modules.get("sqlalchemy.exc")
    if sqlalchemy_errors is None or not isinstance(error, sqlalchemy_errors.DBAPIError):
        return error
    inner: BaseException | None = error.orig
    return error if inner is None else _unwrapped(inner)


def is_drivers(error: Exception) -> bool:
    """Return True if an exception's class is one that a driver raises or passes on.

    An exception that a signal handler raises while the driver waits is told from the driver's by its class only: one of
    Python's own classes counts as a failure of the connection.
    """
    return _top_level(type(error).__module__) in _DRIVER_MODULES


def is_servers(error: BaseException) -> bool:
    """Return True if an exception's class and number show that it is an error reply from the server."""
    code = error_code(error)
    return (
        _top_level(type(error).__module__) in _SERVER_ERROR_MODULES
        and code is not None
        and code >= 1000
        and code // 1000 != 2
    )


def _top_level(module: str) -> str:
    return module.partition(".")[0]


def translated(error: BaseException, node: str, shard: int | None, *, connecting: bool) -> ServerError:
    """Translate a driver exception.

    Args:
        error: exception of the driver or of SQLAlchemy.
        node: the server's address.
        shard: the shard concerned, or None.
        connecting: True if no statement of the caller can have been sent yet.
    """
    code = error_code(error)
    inner = _unwrapped(error)
    # The second argument is the message, except in a UnicodeError, where it is the data.
    has_message = len(inner.args) > 1 and not isinstance(inner, UnicodeError)
    text = str(inner.args[1]) if has_message else str(inner) or type(inner).__name__
    # Drivers disagree on the number, 2002 or 2003, and PyMySQL reports localhost for every socket.
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


def _role(text: str) -> str:
    """Return the ``--role`` option for a denied command, or an empty string if the role is unknown."""
    refusal = re.match(r"(?P<command>[A-Z]+)[A-Z ,]* command denied .*\b(?P<table>\w+)\W*$", text)
    if refusal is None:
        return ""
    command, table = refusal["command"], refusal["table"]
    if table == "primary_claim":
        # Every role needs this privilege, so no particular role can be suggested.
        return ""
    if table == "metadata_locks":
        role = "tail"
    elif table.startswith("index_"):
        role = {"SELECT": "app", "DROP": "admin"}.get(command, "follow")
    elif table in ("follower", "parked", "follower_setting", "follower_worker"):
        role = "follow"
    elif table.startswith("erasure") or (table == "erased_cell" and command != "SELECT"):
        role = "erase"
    elif table in ("alembic_version", "heartbeat_token"):
        role = "admin"
    elif table in ("events_transactions_current", "threads"):
        role = "move"
    elif command == "SELECT" or (command == "INSERT" and table == "cell"):
        role = "app"
    elif (command == "UPDATE" and table in ("cell", "c")) or table.startswith("job"):
        role = "migrate"
    else:
        role = "admin"
    return f" --role {role}"
