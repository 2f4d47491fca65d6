"""Statements about servers and sessions: variables, transactions, named locks, claims, binary logs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from schemaless.wire.sql.parts import table, text

START_TRANSACTION: Final = b"START TRANSACTION"
COMMIT: Final = b"COMMIT"
ROLLBACK: Final = b"ROLLBACK"

NOTHING: Final = b"DO 0"
"""No-op statement that the server counts in its ``Com_do`` status variable."""

SELECT_ONE: Final = b"SELECT 1"
SELECT_ACCOUNT: Final = b"SELECT CURRENT_USER()"
SELECT_VERSION: Final = b"SELECT VERSION()"
SELECT_PORT: Final = b"SELECT @@global.port"
SELECT_READ_ONLY: Final = b"SELECT @@global.read_only"
SERVER_IDENTITY: Final = b"@@server_uuid"
"""SQL expression for the identity of a MySQL server, at most 64 characters."""

SERVER_IDENTITY_MARIADB: Final = (
    b"CONCAT_WS(':', LEFT(SHA2(CONCAT_WS('/', @@hostname, @@datadir, @@port), 256), 32), NULLIF((SELECT variable_value "
    b"FROM information_schema.global_variables WHERE variable_name='SERVER_UID'), ''))"
)
"""The same for MariaDB, which has no UUID: a hash of host name, data directory and port, and, on versions that report
it (10.11.9), a colon and a hash of the hardware address of its network card and its port."""

SHOW_BINARY_LOGS: Final = b"SHOW BINARY LOGS"


def set_session(settings: Mapping[str, str | int | None]) -> bytes:
    """Set session variables; None restores the server's default."""
    return b"SET SESSION " + b", ".join(b"%b=%b" % (name.encode(), _value(value)) for name, value in settings.items())


def _value(value: str | int | None) -> bytes:
    if value is None:
        return b"DEFAULT"
    return b"%d" % value if isinstance(value, int) else text(value)


NO_CLAIM: Final = b"NULL"
"""Placeholder for connections that need no claim."""


SERVER: Final = b"CONCAT_WS('|', @@hostname, @@port, @@datadir, @@global.server_id /*!80000 , @@server_uuid */)"
"""Expression that tells servers apart, on MySQL and MariaDB; a restart does not change it.

Servers that replicate from each other have different ids, even if containers give them the same host name and folder.
MariaDB, which has no ``server_uuid``, skips comments with this version.
"""


MARIADB: Final = b"0 /*M! + 1 */"
"""Expression that is 1 on MariaDB, which executes such comments, and 0 on MySQL.

A proxy's greeting may name another product, and MariaDB's version string can be configured.
"""


def select_session(names: Iterable[str], claim: bytes = NO_CLAIM) -> bytes:
    """Select the server properties and session variables that a new connection checks.

    Returns:
        A statement whose row is max_allowed_packet, auto_increment_increment, the version, the product (``MARIADB``),
        the server (``SERVER``), the epoch of the server's claim (``own_claim``), and the variables.
    """
    return b"SELECT @@max_allowed_packet, @@auto_increment_increment, VERSION(), %b, %b, %b, %b" % (
        MARIADB,
        SERVER,
        claim,
        b", ".join(b"@@session.%b" % name.encode() for name in names),
    )


def take_lock(name: str, wait_s: int) -> bytes:
    """Acquire a named lock (at most 64 characters) for the session; the value is 1 on success."""
    return b"SELECT GET_LOCK(%b, %d)" % (text(name), wait_s)


def take_own_lock(name: str, wait_s: int) -> bytes:
    """Acquire a named lock; the row also has the connection's id."""
    return take_lock(name, wait_s) + b", CONNECTION_ID()"


def lock_is_free(name: str) -> bytes:
    """Select whether a named lock is free."""
    return b"SELECT IS_FREE_LOCK(%b)" % text(name)


def release_lock(name: str) -> bytes:
    """Release a named lock of the session."""
    return b"SELECT RELEASE_LOCK(%b)" % text(name)


def kill(thread: int, *, query: bool = False) -> bytes:
    """Kill a connection, or only its running statement."""
    return b"KILL %b%d" % (b"QUERY " if query else b"", thread)


def process_list(*, mariadb: bool) -> bytes:
    """Return the view of connections; without PROCESS, only the account's own are visible.

    That of MySQL's information_schema fails while any connection's statement has bytes in it, such as a body.
    """
    return b"information_schema.PROCESSLIST" if mariadb else b"performance_schema.processlist"


def select_thread_state(thread: int, *, mariadb: bool) -> bytes:
    """Select what a connection is doing or waiting for."""
    return b"SELECT STATE FROM %b WHERE ID=%d" % (process_list(mariadb=mariadb), thread)


def own_claim(database: str, cluster: str) -> bytes:
    """Return an expression for the epoch of this server's own claim on a cluster; NULL if it has none."""
    return b"(%b AND server=@@server_uuid)" % select_claim(database, cluster)


SELECT_LOG_STATE: Final = b"SELECT @@global.gtid_executed, @@global.log_bin, @@global.binlog_format"
"""Selects the end of the binary log, whether it is enabled, and its format."""

SELECT_LOG_STATE_MARIADB: Final = b"SELECT @@global.gtid_binlog_pos, @@global.log_bin, @@global.binlog_format"


def begin_to_replicate(name: str, position: str, heartbeat_s: float, *, mariadb: bool) -> bytes:
    """Set the user variables that a replica sets before it requests the binary log.

    Args:
        name: a unique UUID for this reader.
        position: GTID position to start from, for MariaDB only: MySQL gets it in the dump command.
        heartbeat_s: interval of heartbeat events on an idle log, in seconds.
        mariadb: True for MariaDB.
    """
    settings = {
        "master_binlog_checksum": b"@@global.binlog_checksum",
        "master_heartbeat_period": b"%d" % round(heartbeat_s * 1e9),
    }
    if mariadb:
        settings |= {"mariadb_slave_capability": b"4", "slave_connect_state": text(position)}
    else:
        settings |= {name.replace("master", "source"): value for name, value in settings.items()}
        settings |= {"replica_uuid": text(name), "slave_uuid": text(name)}
    return b"SET " + b", ".join(b"@%b=%b" % (name.encode(), value) for name, value in settings.items())


def grant(privileges: str, scope: str, account: object) -> str:
    """Return a GRANT statement.

    >>> grant("SELECT, INSERT", "`trips_0000`.`cell`", "'app'@'%'")
    "GRANT SELECT, INSERT ON `trips_0000`.`cell` TO 'app'@'%'"
    """
    return f"GRANT {privileges} ON {scope} TO {account}"


def select_claim(database: str, cluster: str) -> bytes:
    """Select the epoch of the latest claim on a cluster that this server has recorded, whichever server holds it."""
    return b"SELECT epoch FROM %b WHERE cluster=%b" % (table(database, b"primary_claim"), text(cluster))
