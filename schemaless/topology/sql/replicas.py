"""Statements about replication: GTID positions, heartbeat tokens and former primaries."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from schemaless.wire.sql.parts import (
    NOW,
    blob_hex,
    delete,
    insert,
    later,
    matching,
    table,
    text,
    upsert,
)

SELECT_GTID_POSITION: Final = b"SELECT @@global.gtid_executed, @@global.gtid_mode='ON'"
"""Selects the position up to which a primary has committed, and whether GTIDs are enabled."""

SELECT_GTID_POSITION_MARIADB: Final = b"SELECT @@global.gtid_binlog_pos, @@global.log_bin"

SELECT_GTID_APPLIED: Final = b"SELECT @@global.gtid_executed"
"""Selects the position up to which a replica has applied transactions."""

READ_FOR_THREADS: Final = (
    "replication_connection_status",
    "replication_applier_status",
    "replication_applier_status_by_worker",
)
"""Tables of MySQL's performance_schema that ``SELECT_THREADS`` reads."""

SELECT_THREADS: Final = (
    b"SELECT receiver.SERVICE_STATE, receiver.LAST_ERROR_NUMBER, receiver.LAST_ERROR_MESSAGE, applier.SERVICE_STATE, "
    b"(SELECT MAX(LAST_ERROR_NUMBER) FROM performance_schema.replication_applier_status_by_worker worker "
    b"WHERE worker.CHANNEL_NAME=receiver.CHANNEL_NAME) "
    b"FROM performance_schema.replication_connection_status receiver "
    b"JOIN performance_schema.replication_applier_status applier ON applier.CHANNEL_NAME=receiver.CHANNEL_NAME "
    b"WHERE receiver.CHANNEL_NAME<>'group_replication_recovery'"
)
"""Selects the state and last error of the receiver (IO thread) and applier (SQL thread) of each channel; MySQL only."""

SELECT_HAS_THREADS: Final = b"SELECT @@performance_schema, @@innodb_read_only"
"""Selects whether ``SELECT_THREADS`` can have rows, and whether another server writes the storage (Aurora)."""

SHOW_THREADS_MARIADB: Final = b"SHOW ALL SLAVES STATUS"
"""Shows replication channels; ``THREADS_MARIADB`` says where the values of ``SELECT_THREADS`` are."""

THREADS_MARIADB: Final = (12, 36, 37, 13, 38)

_BEAT: Final = "heartbeat"
"""Writer of the heartbeat, which all monitors of a cluster share."""


def select_gtid_wait(position: str, timeout_s: float, *, mariadb: bool) -> bytes:
    """Wait until a position has been applied; the value is 0 on success."""
    wait = b"SELECT MASTER_GTID_WAIT(%b, %.3f)" if mariadb else b"SELECT WAIT_FOR_EXECUTED_GTID_SET(%b, %.3f)"
    return wait % (text(position), timeout_s)


def upsert_token(database: str, cluster: str, writer: str, token: bytes) -> bytes:
    """Write a token, replacing the writer's previous one."""
    key = {"cluster": cluster, "writer": writer}
    return upsert(_tokens(database), key, {"token": blob_hex(token), "written_at": NOW})


def select_token(database: str, cluster: str, writer: str) -> bytes:
    """Select a writer's token."""
    return b"SELECT token FROM %b WHERE %b" % (_tokens(database), matching(cluster=cluster, writer=writer))


def delete_token(database: str, cluster: str, writer: str) -> bytes:
    """Delete a writer's row."""
    return delete(_tokens(database), cluster=cluster, writer=writer)


def delete_stale_tokens(database: str) -> bytes:
    """Delete the rows of writers that have been silent for a day."""
    return b"DELETE FROM %b WHERE written_at < UTC_TIMESTAMP(6) - INTERVAL 1 DAY" % _tokens(database)


def update_beat(database: str, cluster: str, every_s: float) -> bytes:
    """Write the cluster's heartbeat, unless there is none, or one that is younger than ``every_s``."""
    beats = _tokens(database), NOW, matching(cluster=cluster, writer=_BEAT), later(-every_s), NOW
    return b"UPDATE %b SET written_at=%b WHERE %b AND written_at NOT BETWEEN %b AND %b" % beats


def insert_beat(database: str, cluster: str) -> bytes:
    """Write the cluster's first heartbeat."""
    row = cluster, _BEAT, blob_hex(bytes(16)), NOW
    return insert(_tokens(database), "cluster, writer, token, written_at", [row], ignore=True)


def select_beat(database: str, cluster: str) -> bytes:
    """Select when the heartbeat was written, and its age, both in microseconds; the first one since 1970."""
    return (
        b"SELECT TIMESTAMPDIFF(MICROSECOND,'1970-01-01',written_at), TIMESTAMPDIFF(MICROSECOND,written_at,%b) "
        b"FROM %b WHERE %b" % (NOW, _tokens(database), matching(cluster=cluster, writer=_BEAT))
    )


def insert_lost_primary(database: str, cluster: str, server: str) -> bytes:
    """Record that a former primary may hold cells that were lost in a failover."""
    return insert(_lost(database), "cluster, server, lost_at", [(cluster, server, NOW)], ignore=True)


def select_lost_primaries(database: str) -> bytes:
    """Select the cluster and server of the recorded former primaries."""
    return b"SELECT cluster, server FROM %b ORDER BY lost_at" % _lost(database)


def delete_lost_primary(database: str, cluster: str, server: str) -> bytes:
    """Delete the record of a former primary."""
    return delete(_lost(database), cluster=cluster, server=server)


def select_lacking(positions: Iterable[str]) -> bytes:
    """Select the transactions in the given positions that the server has not committed; MySQL only."""
    return b"SELECT GTID_SUBTRACT(%b, @@global.gtid_executed)" % text(",".join(filter(None, positions)))


def select_beyond(positions: Iterable[str]) -> bytes:
    """Select the transactions that the server has committed and no given position has, and its UUID; MySQL only."""
    return b"SELECT GTID_SUBTRACT(@@global.gtid_executed, %b), @@server_uuid" % text(",".join(filter(None, positions)))


def _tokens(database: str) -> bytes:
    return table(database, b"heartbeat_token")


def _lost(database: str) -> bytes:
    return table(database, b"lost_primary")
