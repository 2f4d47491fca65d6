"""Statements about replicas: pointing one at its primary, how far it has got, and tokens that prove which it is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from schemaless.mysql.sql.parts import (
    NOW,
    Term,
    Value,
    blob_hex,
    delete,
    insert,
    literal,
    matching,
    table,
    text,
    upsert,
)

SELECT_GTID_POSITION: Final = b"SELECT @@global.gtid_executed, @@global.gtid_mode='ON'"
"""Its row is what a primary has committed, and whether it writes GTIDs at all."""

SELECT_GTID_POSITION_MARIADB: Final = b"SELECT @@global.gtid_binlog_pos, @@global.log_bin"

SELECT_GTID_APPLIED: Final = b"SELECT @@global.gtid_executed"
"""Its value is what a replica has applied."""

SELECT_GTID_APPLIED_MARIADB: Final = b"SELECT @@global.gtid_slave_pos"

SELECT_GTID_PURGED: Final = b"SELECT @@global.gtid_purged"
"""Its value is what nobody can fetch any more; MySQL only."""


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


def show_replica(*, mariadb: bool) -> bytes:
    """Show what a replica says of its replication; no row where it was never pointed at a primary."""
    return b"SHOW SLAVE STATUS" if mariadb else b"SHOW REPLICA STATUS"


SHOW_SEMI_SYNC: Final = b"SHOW GLOBAL VARIABLES LIKE 'rpl\\_semi\\_sync\\_%'"
SHOW_SEMI_SYNC_STATUS: Final = b"SHOW GLOBAL STATUS LIKE 'Rpl\\_semi\\_sync\\_%\\_status'"
SHOW_SEMI_SYNC_CLIENTS: Final = b"SHOW GLOBAL STATUS LIKE 'Rpl\\_semi\\_sync\\_%\\_clients'"
SHOW_GROUP: Final = b"SHOW GLOBAL VARIABLES LIKE 'group_replication_group_name'"


def begin_semi_sync(*, mariadb: bool) -> bytes:
    """Have a primary wait for a replica before it acknowledges a commit."""
    return b"SET GLOBAL rpl_semi_sync_%b_enabled=ON" % (b"master" if mariadb else b"source")


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
    key = {"cluster": cluster, "writer": writer}
    return upsert(_tokens(database), key, {"token": blob_hex(token), "written_at": NOW})


def select_token(database: str, cluster: str, writer: str) -> bytes:
    """Select a writer's last token."""
    return b"SELECT token FROM %b WHERE %b" % (_tokens(database), matching(cluster=cluster, writer=writer))


def delete_token(database: str, cluster: str, writer: str) -> bytes:
    """Remove a writer's row."""
    return delete(_tokens(database), cluster=cluster, writer=writer)


def delete_stale_tokens(database: str) -> bytes:
    """Remove the rows of writers that have written nothing for a day."""
    return b"DELETE FROM %b WHERE written_at < UTC_TIMESTAMP(6) - INTERVAL 1 DAY" % _tokens(database)


def own_claim(database: str, cluster: str) -> bytes:
    """Return an expression: the epoch of the claim that this very server has on a cluster; NULL without."""
    return b"(%b AND server=@@server_uuid)" % select_claim(database, cluster)


def select_own_claim(database: str, cluster: str) -> bytes:
    """Select the epoch of the claim that this very server has on a cluster."""
    return b"SELECT " + own_claim(database, cluster)


def select_claim(database: str, cluster: str) -> bytes:
    """Select the epoch of the last claim on a cluster that the server has heard of, whoever made it."""
    return b"SELECT epoch FROM %b WHERE cluster=%b" % (table(database, b"primary_claim"), text(cluster))


def upsert_claim(database: str, cluster: str, epoch: int) -> bytes:
    """Claim a cluster for this very server."""
    own: dict[str, Term] = {"epoch": epoch, "server": b"@@server_uuid", "claimed_at": NOW, "claimed_by": b"USER()"}
    return upsert(table(database, b"primary_claim"), {"cluster": cluster}, own)


def insert_lost_primary(database: str, cluster: str, server: str) -> bytes:
    """Write down that a former primary may have cells which a failover lost."""
    return insert(_lost(database), "cluster, server, lost_at", [(cluster, server, NOW)], ignore=True)


def select_lost_primaries(database: str) -> bytes:
    """Select cluster and server of those."""
    return b"SELECT cluster, server FROM %b ORDER BY lost_at" % _lost(database)


def delete_lost_primary(database: str, cluster: str, server: str) -> bytes:
    """Forget one of them."""
    return delete(_lost(database), cluster=cluster, server=server)


SELECT_RECEIVED: Final = (
    b"SELECT RECEIVED_TRANSACTION_SET, SERVICE_STATE, CHANNEL_NAME "
    b"FROM performance_schema.replication_connection_status"
)
"""Its rows are, for each source of a replica, what came from there, whether it still does, and the channel's name."""


def select_lacking(positions: Iterable[str]) -> bytes:
    """Select which of these transactions the server has not committed; MySQL only."""
    return b"SELECT GTID_SUBTRACT(%b, @@global.gtid_executed)" % text(",".join(filter(None, positions)))


def _replica(mariadb: bool) -> bytes:
    return b"SLAVE" if mariadb else b"REPLICA"


def _tokens(database: str) -> bytes:
    return table(database, b"heartbeat_token")


def _lost(database: str) -> bytes:
    return table(database, b"lost_primary")
