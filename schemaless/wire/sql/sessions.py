"""Statements about servers and sessions: settings, transactions, named locks, load, logs, files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from schemaless.wire.sql.parts import table, text

START_TRANSACTION: Final = b"START TRANSACTION"
COMMIT: Final = b"COMMIT"
ROLLBACK: Final = b"ROLLBACK"

NOTHING: Final = b"DO 0"
"""It does nothing, and is counted."""

SELECT_ONE: Final = b"SELECT 1"
SELECT_ACCOUNT: Final = b"SELECT CURRENT_USER()"
SELECT_VERSION: Final = b"SELECT VERSION()"
SELECT_PORT: Final = b"SELECT @@global.port"
SELECT_READ_ONLY: Final = b"SELECT @@global.read_only"


SHOW_BINARY_LOGS: Final = b"SHOW BINARY LOGS"


def set_session(settings: Mapping[str, str | int | None]) -> bytes:
    """Set variables of the session; None sets the server's own value."""
    return b"SET SESSION " + b", ".join(b"%b=%b" % (name.encode(), _value(value)) for name, value in settings.items())


def _value(value: str | int | None) -> bytes:
    if value is None:
        return b"DEFAULT"
    return b"%d" % value if isinstance(value, int) else text(value)


NO_CLAIM: Final = b"NULL"
"""A connection that asks for no claim selects this in its place."""


def select_session(names: Iterable[str], claim: bytes = NO_CLAIM) -> bytes:
    """Select what a new connection asks.

    Returns:
        A statement whose row is the longest statement that the server takes, the distance of its ids, its version, the
        epoch of its claim (``sql.replicas.own_claim``), and these variables.
    """
    return b"SELECT @@max_allowed_packet, @@auto_increment_increment, VERSION(), %b, %b" % (
        claim,
        b", ".join(b"@@session.%b" % name.encode() for name in names),
    )


def take_lock(name: str, wait_s: int) -> bytes:
    """Take a named lock, of 64 characters at most, for the session; the one value is 1 where it was to be had."""
    return b"SELECT GET_LOCK(%b, %d)" % (text(name), wait_s)


def lock_is_free(name: str) -> bytes:
    """Select whether nobody has a named lock."""
    return b"SELECT IS_FREE_LOCK(%b)" % text(name)


def release_lock(name: str) -> bytes:
    """Release a named lock of the session."""
    return b"SELECT RELEASE_LOCK(%b)" % text(name)


def own_claim(database: str, cluster: str) -> bytes:
    """Return an expression: the epoch of the claim that this very server has on a cluster; NULL without."""
    return b"(%b AND server=@@server_uuid)" % select_claim(database, cluster)


SELECT_LOG_STATE: Final = b"SELECT @@global.gtid_executed, @@global.log_bin, @@global.binlog_format"
"""Its row is where a server's binary log ends, whether there is one, and what it has of a change."""


SELECT_LOG_STATE_MARIADB: Final = b"SELECT @@global.gtid_binlog_pos, @@global.log_bin, @@global.binlog_format"


def begin_to_replicate(name: str, position: str, heartbeat_s: float, *, mariadb: bool) -> bytes:
    """Say, before the command that has the binary log sent, who reads it, from where, and how.

    Args:
        name: a UUID that no other reader has.
        position: where to begin; MySQL is told in the command itself.
        heartbeat_s: how often something is to be sent where there is nothing to send.
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


def grant(privileges: str, what: str, account: object) -> str:
    """Return a GRANT.

    >>> grant("SELECT, INSERT", "`trips_0000`.`cell`", "'app'@'%'")
    "GRANT SELECT, INSERT ON `trips_0000`.`cell` TO 'app'@'%'"
    """
    return f"GRANT {privileges} ON {what} TO {account}"


def select_claim(database: str, cluster: str) -> bytes:
    """Select the epoch of the last claim on a cluster that the server has heard of, whoever made it."""
    return b"SELECT epoch FROM %b WHERE cluster=%b" % (table(database, b"primary_claim"), text(cluster))
