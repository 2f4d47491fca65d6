"""Driver errors to ours: no exception of PyMySQL, mysqlclient or SQLAlchemy leaves this room.

Drivers differ in their classes but not in MySQL's numbers, so the number decides.
"""

from __future__ import annotations

import re
import sys
from types import TracebackType
from typing import Final

from schemaless.errors import AccessDenied, ServerError, ServerRefused, ServerTimeout, ServerUnavailable


class ConnectionLost(ServerUnavailable):
    """The connection broke after something may have been sent on it.

    Attributes:
        retry_until_s: until when its call may be repeated, here or at another server, by ``time.monotonic``.
    """

    retry_until_s: float = 0.0


class ReplyTimedOut(ConnectionLost):
    """The client gave up waiting for a reply; the server may be at it still."""


class Deadlock(ServerTimeout):
    """The server ended this transaction, because of a deadlock or the like: rolled back, it may simply be repeated."""


class DuplicateKey(ServerRefused):
    """A unique key has the value already (error 1062)."""


class DatabaseMissing(ServerRefused):
    """The database or the table is not there."""


class Elsewhere(ServerUnavailable):
    """The catalog names another server for the shard than the one that was asked, or the shard may be on its way there.

    Attributes:
        lost: the loss that leaves open whether an attempt at a write happened; None where nothing was written.
        missing: what the server said, where the catalog names no other server yet.
    """

    def __init__(
        self, message: str, *, node: str, shard: int, lost: ServerError | None, missing: DatabaseMissing | None = None
    ) -> None:
        super().__init__(message, node=node, shard=shard, code=None if missing is None else missing.code)
        self.lost = lost
        self.missing = missing


class CannotObserve(ServerRefused):
    """The server does not show who is writing, or not to this account."""


_LOST: Final = frozenset({2006, 2013, 2014, 2027, 2055, 1053, 1079, 1152, 1158, 1159, 1160, 1161, 1927, 4031, 3169})
_UNREACHABLE: Final = frozenset({1040, 1203, 2002, 2003, 2004, 2005, 2009, 2026})
_DENIED: Final = frozenset(
    {1044, 1045, 1095, 1130, 1142, 1143, 1227, 1370, 1410, 1698, 1820, 1862, 3118, 3159, 3955, 4151}
)
_WAITED: Final = frozenset({1205, 1317, 1969, 3024, 3572})
_REPEAT: Final = frozenset({1020, 1213, 1412, 3101})
_ACCOUNT_LIMIT: Final = 1226
_MISSING: Final = frozenset({1008, 1049, 1146})
_WRONG_HOST: Final = "is the server running, and are host and port right?"
_WRONG_SOCKET: Final = "is the server running, and is the socket right?"
READ_ONLY: Final = frozenset({1290, 1836})
"""A server that is set read-only, as replicas are, says one of these to a write."""

NO_CLAIMS: Final = frozenset({1049, 1146, 1193})
"""A server without a claim says one of these when asked for it: no database, no table, no identity (MariaDB)."""

_NEXT_STEP: Final = {
    1021: "the server's disk is full: make room, then repeat",
    1114: "the server's disk or tablespace is full: make room, then repeat",
    1040: "it has no connection free: raise max_connections or use smaller pools",
    1129: "the server takes no more connections from this host: look for what broke them, then FLUSH HOSTS there",
    1153: "raise max_allowed_packet there",
    1203: "the account has no connection free: raise max_user_connections or use smaller pools",
    1226: "raise the account's limit, or use smaller pools",
    1045: "check the account in the URL and the password in SCHEMALESS_PASSWORD; it may want TLS (ssl_mode=required)",
    1698: "the account may not log in this way: check the account in the URL and SCHEMALESS_PASSWORD",
    1205: "a lock was not given in time; nothing was written",
    1290: "the server is read-only: is it a replica?",
    1792: "its sessions begin with transaction_read_only (MariaDB: tx_read_only) on: set it off there",
    1836: "the server is read-only: is it a replica?",
    2002: _WRONG_HOST,
    2003: _WRONG_HOST,
    3159: "it wants encrypted connections: add ssl_mode=required to the URL",
}
_OF_DRIVERS: Final = frozenset({"MySQLdb", "builtins", "decimal", "pymysql", "socket", "sqlalchemy", "ssl", "struct"})
"""The exceptions that a driver raises, or lets through, have their classes from these modules."""

_OF_SERVERS: Final = frozenset({"MySQLdb", "pymysql"})
_OWN: Final = frozenset({"MySQLdb", "pymysql", "sqlalchemy"})
"""Nobody else raises classes of these modules, whatever frames of tools that watch a driver stand between."""

_FRAMES_OF_DRIVERS: Final = frozenset(
    {
        "MySQLdb",
        "codecs",
        "cryptography",
        "encodings",
        # They take the place of Python's socket.
        "eventlet",
        "gevent",
        "pymysql",
        "socket",
        "sqlalchemy",
        "ssl",
        "struct",
    }
)
_FRAMES_ABOVE: Final = frozenset({"alembic", "contextlib", "schemaless"})
_LACKS_PRIVILEGE: Final = frozenset({1044, 1142, 1143, 1227, 1370})
_OTHER_NAME: Final = "use a name that is in the certificate, or have only the CA checked: ssl_mode=verify_ca"
_OTHER_AUTHORITY: Final = "ssl_ca has to name the authority that signed the server's certificate"
_TLS: Final = (
    ("mismatch, certificate", _OTHER_NAME),
    ("CERTIFICATE_VERIFY_FAILED", _OTHER_AUTHORITY),
    ("SSL is required", "give the server a certificate, or leave ssl_mode out to send cells in the open"),
    # The C libraries' words.
    ("Validation of SSL server certificate failed", _OTHER_NAME),
    ("certificate in certificate chain", _OTHER_AUTHORITY),
    ("certificate verify failed", _OTHER_AUTHORITY),
)
"""These are said where a server is not the one that the URL's TLS options ask for: there is nothing to try again."""


def error_code(error: BaseException) -> int | None:
    """Return MySQL's error number of a driver's exception, or None where it carries none.

    None of Python's own has one: the number of an OSError is the system's, and a KeyError's is a key.
    """
    error = _unwrapped(error)
    # Below 0 is what mysqlclient says of itself, and a MariaDB's report of progress, which no reply ends with.
    if _room(type(error).__module__) in _OF_SERVERS and error.args and isinstance(error.args[0], int):
        return error.args[0] if error.args[0] >= 0 else None
    return None


def _unwrapped(error: BaseException) -> BaseException:
    """Return the driver's exception that one of SQLAlchemy's stands for, else the same one.

    To import SQLAlchemy takes as long as all the rest of this package, and most programs never use it.
    """
    sqlalchemy_errors = sys.modules.get("sqlalchemy.exc")
    if sqlalchemy_errors is None or not isinstance(error, sqlalchemy_errors.DBAPIError):
        return error
    inner: BaseException | None = error.orig
    return error if inner is None else _unwrapped(inner)


def is_drivers(error: BaseException) -> bool:
    """Whether the driver itself raised this, and not, say, the handler of a signal that came while it waited.

    Told by its class, where that is a driver's own, else by where it was raised: each frame is this package's, the
    driver's, or of what these stand on. What was put into a thread from outside (``PyThreadState_SetAsyncExc``) has no
    frame of its own; it is told by its class, or by having no arguments, which a driver's errors always have.
    """
    room = _room(type(error).__module__)
    if not isinstance(error, Exception) or not error.args or room not in _OF_DRIVERS:
        return False
    if room in _OWN:
        return True
    trace = error.__traceback__
    while trace is not None:
        if (module := _module(trace)) not in _FRAMES_OF_DRIVERS and module not in _FRAMES_ABOVE:
            return False
        trace = trace.tb_next
    return True


def is_servers(error: BaseException) -> bool:
    """Whether this is an error that the server replied with: a driver's class, and no number of a client library's."""
    code = error_code(error)
    return _room(type(error).__module__) in _OF_SERVERS and code is not None and code >= 1000 and code // 1000 != 2


def interruption(error: BaseException) -> BaseException | None:
    """Return what the application raised into a driver's work; None where the driver itself failed.

    A driver takes any OSError for a failure of its socket, that of a signal's handler too, and raises its own instead:
    the handler's is then the reason for it.
    """
    seen: BaseException | None = error
    while seen is not None:
        if not is_drivers(seen):
            return seen
        seen = seen.__cause__ or seen.__context__
        # What the caller was handling at the time was not caught by a driver.
        if seen is not None and (seen.__traceback__ is None or _module(seen.__traceback__) not in _FRAMES_OF_DRIVERS):
            return None
    return None


def _module(trace: TracebackType) -> str:
    return _room(str(trace.tb_frame.f_globals.get("__name__", "")))


def _room(module: str) -> str:
    return module.partition(".")[0]


def translated(error: BaseException, node: str, shard: int | None, *, connecting: bool) -> ServerError:
    """Return the exception of ours that says what the driver's ``error`` says.

    Args:
        error: what the driver or SQLAlchemy raised.
        node: the server's address.
        shard: the shard concerned, or None.
        connecting: True where nothing of the caller's can have been sent yet.
    """
    code = error_code(error)
    inner = _unwrapped(error)
    # The second argument of a UnicodeError is what was to be decoded.
    worded = len(inner.args) > 1 and not isinstance(inner, UnicodeError)
    text = str(inner.args[1]) if worded else str(inner) or type(inner).__name__
    # Drivers disagree in the number, 2002 or 2003, and PyMySQL calls the host of every socket localhost.
    absent_socket = code in (2002, 2003) and node.startswith("/")
    if absent_socket:
        text = text.replace(" on 'localhost'", "")
    message = f"{text} (error {code})" if code else text
    unsafe = next((step for words, step in _TLS if words in text), None) if connecting else None
    if unsafe is not None:
        message += f"; {unsafe}"
    elif absent_socket:
        message += f"; {_WRONG_SOCKET}"
    elif code in _NEXT_STEP:
        message += f"; {_NEXT_STEP[code]}"
    elif code in _LACKS_PRIVILEGE:
        message += f"; 'schemaless grants{_role(text)}' prints what the account needs"

    kind: type[ServerError]
    if unsafe is not None:
        kind = ServerRefused
    elif code == 1062:
        kind = DuplicateKey
    elif code in _REPEAT:
        kind = Deadlock
    elif code in _DENIED:
        kind = AccessDenied
    elif code in _WAITED:
        kind = ServerTimeout
    elif code in _MISSING:
        kind = DatabaseMissing
    elif connecting and (code in _UNREACHABLE or code in _LOST or code == _ACCOUNT_LIMIT or not code):
        kind = ServerUnavailable
    elif code in _LOST or code in _UNREACHABLE or not code:
        # No number means that the driver lost its place in the protocol or the socket failed under it.
        kind = ReplyTimedOut if "timed out" in text else ConnectionLost
    else:
        kind = ServerRefused
    return kind(message, node=node, shard=shard, code=code or None)


def _role(text: str) -> str:
    """Return the option of ``schemaless grants`` for what an account was refused, empty where that cannot be told."""
    refusal = re.match(r"(?P<command>[A-Z]+)[A-Z ,]* command denied .*\b(?P<table>\w+)\W*$", text)
    if refusal is None:
        return ""
    command, table = refusal["command"], refusal["table"]
    if table == "primary_claim":
        # Of any role.
        return ""
    if table == "metadata_locks":
        role = "tail"
    elif table.startswith("index_"):
        role = {"SELECT": "app", "DROP": "admin"}.get(command, "follow")
    elif table in ("follower", "parked", "follower_setting", "follower_worker"):
        role = "follow"
    elif table in ("alembic_version", "heartbeat_token"):
        role = "admin"
    elif command == "SELECT" or (command == "INSERT" and table == "cell"):
        role = "app"
    elif (command == "UPDATE" and table in ("cell", "c")) or table.startswith("job"):
        role = "migrate"
    else:
        role = "admin"
    return f" --role {role}"
