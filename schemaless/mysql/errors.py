"""Driver errors to ours: no exception of PyMySQL, mysqlclient or SQLAlchemy leaves this room.

Drivers differ in their classes but not in MySQL's numbers, so the number decides.
"""

from __future__ import annotations

import re
from typing import Final

from sqlalchemy import exc as sqlalchemy_errors

from schemaless.errors import AccessDenied, ServerError, ServerRefused, ServerTimeout, ServerUnavailable


class ConnectionLost(ServerUnavailable):
    """The connection broke after something may have been sent on it."""


class ReplyTimedOut(ConnectionLost):
    """The client gave up waiting for a reply; the server may be at it still."""


class Deadlock(ServerTimeout):
    """The server ended this transaction, because of a deadlock or the like: rolled back, it may simply be repeated."""


class DuplicateKey(ServerRefused):
    """A unique key has the value already (error 1062)."""


class DatabaseMissing(ServerRefused):
    """The database or the table is not there."""


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
    1792: "the server is read-only: is it a replica?",
    1836: "the server is read-only: is it a replica?",
    2002: "is the server running, and is the socket right?",
    2003: "is the server running, and are host and port right?",
    3159: "it wants encrypted connections: add ssl_mode=required to the URL",
}
_OF_DRIVERS: Final = frozenset({"MySQLdb", "builtins", "pymysql", "socket", "sqlalchemy", "ssl", "struct"})
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
"""What is said where a server is not the one that the URL's TLS options ask for: nothing to try again."""


def error_code(error: BaseException) -> int | None:
    """Return MySQL's error number of a driver's exception, or None where it carries none."""
    if isinstance(error, sqlalchemy_errors.DBAPIError) and error.orig is not None:
        return error_code(error.orig)
    if error.args and isinstance(error.args[0], int):
        return error.args[0]
    return None


def is_drivers(error: BaseException) -> bool:
    """Whether a driver can have raised this, and not, say, the handler of a signal that came while it waited."""
    return type(error).__module__.partition(".")[0] in _OF_DRIVERS


def translated(error: BaseException, node: str, shard: int | None, *, connecting: bool) -> ServerError:
    """Return the exception of ours that says what the driver's ``error`` says.

    Args:
        error: what the driver or SQLAlchemy raised.
        node: the server's address.
        shard: the shard concerned, or None.
        connecting: True where nothing of the caller's can have been sent yet.
    """
    code = error_code(error)
    inner = error.orig if isinstance(error, sqlalchemy_errors.DBAPIError) and error.orig is not None else error
    text = str(inner.args[1]) if len(inner.args) > 1 else str(inner) or type(inner).__name__
    message = f"{text} (error {code})" if code else text
    unsafe = next((step for words, step in _TLS if words in text), None) if connecting else None
    if unsafe is not None:
        message += f"; {unsafe}"
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
    found = re.match(r"(?P<command>[A-Z]+)[A-Z ,]* command denied .*\b(?P<table>\w+)\W*$", text)
    if found is None:
        return ""
    command, table = found["command"], found["table"]
    if table == "metadata_locks":
        role = "tail"
    elif table in ("alembic_version", "heartbeat_token"):
        role = "admin"
    elif command == "SELECT" or (command == "INSERT" and table == "cell"):
        role = "app"
    elif (command == "UPDATE" and table in ("cell", "c")) or table.startswith("job"):
        role = "migrate"
    else:
        role = "admin"
    return f" --role {role}"
