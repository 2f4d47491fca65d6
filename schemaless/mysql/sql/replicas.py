"""Statements about replicas: pointing one at its primary, how far it has got, and tokens that prove which it is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from schemaless.mysql.sql.parts import Value, literal, text

SELECT_GTID_POSITION: Final = b"SELECT @@global.gtid_executed, @@global.gtid_mode='ON'"
"""What a primary has committed, and whether it writes GTIDs at all."""

SELECT_GTID_POSITION_MARIADB: Final = b"SELECT @@global.gtid_binlog_pos, @@global.log_bin"

SELECT_GTID_APPLIED: Final = b"SELECT @@global.gtid_executed"
"""What a replica has applied."""

SELECT_GTID_APPLIED_MARIADB: Final = b"SELECT @@global.gtid_slave_pos"

SELECT_GTID_PURGED: Final = b"SELECT @@global.gtid_purged"
"""What nobody can fetch any more; MySQL only."""


def show_replica(*, mariadb: bool) -> bytes:
    """Show what a replica says of its replication; no row where it was never pointed at a primary."""
    return b"SHOW SLAVE STATUS" if mariadb else b"SHOW REPLICA STATUS"


def start_replica(*, mariadb: bool) -> bytes:
    """Start to replicate."""
    return b"START %b" % _replica(mariadb)


def stop_replica(*, mariadb: bool) -> bytes:
    """Stop to replicate."""
    return b"STOP %b" % _replica(mariadb)


def point_replica(settings: Mapping[str, Value], *, mariadb: bool) -> bytes:
    """Point a replica at its primary; names of settings without ``SOURCE_`` (MariaDB: ``MASTER_``) before them."""
    prefix = b"MASTER_" if mariadb else b"SOURCE_"
    changes = b", ".join(b"%b%b=%b" % (prefix, name.encode(), literal(value)) for name, value in settings.items())
    if mariadb:
        # A word and no literal: from where its own log says that it is.
        return b"CHANGE MASTER TO %b, MASTER_USE_GTID=slave_pos" % changes
    return b"CHANGE REPLICATION SOURCE TO %b" % changes


def make_replication_account(name: str, host: str, password: str) -> tuple[bytes, bytes, bytes]:
    """Make an account that may replicate, or give it this password where it is there; three statements."""
    account = b"%b@%b" % (text(name), text(host))
    return (
        b"CREATE USER IF NOT EXISTS %b IDENTIFIED BY %b" % (account, text(password)),
        b"ALTER USER %b IDENTIFIED BY %b" % (account, text(password)),
        b"GRANT REPLICATION SLAVE ON *.* TO %b" % account,
    )


def select_gtid_wait(position: str, timeout_s: float, *, mariadb: bool) -> bytes:
    """Wait until a primary's position has been applied; the one value is 0 where it has been in time."""
    wait = b"SELECT MASTER_GTID_WAIT(%b, %.3f)" if mariadb else b"SELECT WAIT_FOR_EXECUTED_GTID_SET(%b, %.3f)"
    return wait % (text(position), timeout_s)


def upsert_token(database: str, cluster: str, writer: str, token: bytes) -> bytes:
    """Write a writer's token, in place of its last one."""
    values = b"token=x'%b', written_at=UTC_TIMESTAMP(6)" % token.hex().encode()
    return b"INSERT INTO %b SET cluster=%b, writer=%b, %b ON DUPLICATE KEY UPDATE %b" % (
        _tokens(database),
        text(cluster),
        text(writer),
        values,
        values,
    )


def select_token(database: str, cluster: str, writer: str) -> bytes:
    """Select a writer's last token."""
    return b"SELECT token FROM %b WHERE cluster=%b AND writer=%b" % (_tokens(database), text(cluster), text(writer))


def delete_token(database: str, cluster: str, writer: str) -> bytes:
    """Remove a writer's row."""
    return b"DELETE FROM %b WHERE cluster=%b AND writer=%b" % (_tokens(database), text(cluster), text(writer))


def delete_stale_tokens(database: str) -> bytes:
    """Remove the rows of writers that have written nothing for a day."""
    return b"DELETE FROM %b WHERE written_at < UTC_TIMESTAMP(6) - INTERVAL 1 DAY" % _tokens(database)


def _replica(mariadb: bool) -> bytes:
    return b"SLAVE" if mariadb else b"REPLICA"


def _tokens(database: str) -> bytes:
    return b"`%b`.heartbeat_token" % database.encode()
