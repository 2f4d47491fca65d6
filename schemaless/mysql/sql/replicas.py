"""Statements that tell and keep replicas: tokens written on a primary and read there, and how far one has got."""

from __future__ import annotations

from typing import Final

from schemaless.mysql.sql.parts import text

SELECT_GTID_POSITION: Final = b"SELECT @@global.gtid_executed, @@global.gtid_mode='ON'"
"""What a primary has committed, and whether it writes GTIDs at all."""

SELECT_GTID_POSITION_MARIADB: Final = b"SELECT @@global.gtid_binlog_pos, @@global.log_bin"


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


def _tokens(database: str) -> bytes:
    return b"`%b`.heartbeat_token" % database.encode()
