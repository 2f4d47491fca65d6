"""Statements that set up private servers: replication, groups, and MariaDB's system tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from schemaless.wire.sql.parts import Value, literal, text

SELECT_SKIPS_NETWORKING: Final = b"SELECT @@global.skip_networking"


BEGIN_MARIADB: Final = b"create database if not exists mysql;\nuse mysql;\nSET @auth_root_socket=NULL;\n"
"""Prologue that MariaDB's bootstrap scripts expect."""


END_MARIADB: Final = b"delete from global_priv where User='' or (User='root' and Host<>'localhost');\n"
"""Epilogue of the bootstrap: no anonymous accounts, and root from localhost only."""


SELECT_GTID_APPLIED_MARIADB: Final = b"SELECT @@global.gtid_slave_pos"


SELECT_GTID_PURGED: Final = b"SELECT @@global.gtid_purged"
"""The transactions that replicas can no longer fetch; MySQL only."""


SHOW_REPLICA: Final = b"SHOW REPLICA STATUS"
"""Shows a replica's status; no row if no primary was ever configured."""

START_REPLICA: Final = b"START REPLICA"
STOP_REPLICA: Final = b"STOP REPLICA"


SHOW_SEMI_SYNC: Final = b"SHOW GLOBAL VARIABLES LIKE 'rpl\\_semi\\_sync\\_%'"
SHOW_SEMI_SYNC_CLIENTS: Final = b"SHOW GLOBAL STATUS LIKE 'Rpl\\_semi\\_sync\\_%\\_clients'"


def begin_semi_sync(*, mariadb: bool) -> bytes:
    """Make commits on a primary wait for a replica."""
    return b"SET GLOBAL rpl_semi_sync_%b_enabled=ON" % (b"master" if mariadb else b"source")


def point_replica(settings: Mapping[str, Value], *, mariadb: bool) -> bytes:
    """Configure a replica's primary; setting names are given without ``SOURCE_`` (MariaDB: ``MASTER_``)."""
    prefix = b"MASTER_" if mariadb else b"SOURCE_"
    changes = b", ".join(b"%b%b=%b" % (prefix, name.encode(), literal(value)) for name, value in settings.items())
    if mariadb:
        # A keyword, not a literal: continue from the replica's own position.
        return b"CHANGE MASTER TO %b, MASTER_USE_GTID=slave_pos" % changes
    return b"CHANGE REPLICATION SOURCE TO %b" % changes


def make_replication_account(name: str, host: str, password: str) -> tuple[bytes, bytes, bytes]:
    """Create a replication account, or change its password if it exists; three statements."""
    return _make_account(name, host, password, b"REPLICATION SLAVE")


def _make_account(name: str, host: str, password: str, privileges: bytes) -> tuple[bytes, bytes, bytes]:
    account = b"%b@%b" % (text(name), text(host))
    return (
        b"CREATE USER IF NOT EXISTS %b IDENTIFIED BY %b" % (account, text(password)),
        b"ALTER USER %b IDENTIFIED BY %b" % (account, text(password)),
        b"GRANT %b ON *.* TO %b" % (privileges, account),
    )


SELECT_MEMBER_STATE: Final = (
    b"SELECT COALESCE(MAX(IF(MEMBER_ID=@@server_uuid, MEMBER_STATE, NULL)), 'OFFLINE') AS state, "
    b"COALESCE(2 * SUM(MEMBER_STATE IN ('ONLINE', 'RECOVERING')) > COUNT(*), 0) AS majority "
    b"FROM performance_schema.replication_group_members"
)
"""One row: the state of the server in its group, and whether it sees a majority of the group."""


SELECT_GROUP_NAME: Final = b"SELECT @@group_replication_group_name"


START_GROUP: Final = b"START GROUP_REPLICATION"


STOP_GROUP: Final = b"STOP GROUP_REPLICATION"


_RECOVERY: Final = "group_replication_recovery"
"""Channel through which a joining member fetches missing transactions; the group uses its account too."""


def make_member_account(name: str, host: str, password: str) -> tuple[bytes, ...]:
    """Create the account that members use, on a server outside a group, without writing to the binary log."""
    privileges = b"REPLICATION SLAVE, CONNECTION_ADMIN, BACKUP_ADMIN, GROUP_REPLICATION_STREAM"
    return (
        b"SET SESSION sql_log_bin=0",
        *_make_account(name, host, password, privileges),
        b"SET SESSION sql_log_bin=1",
        b"CHANGE REPLICATION SOURCE TO SOURCE_USER=%b, SOURCE_PASSWORD=%b FOR CHANNEL %b"
        % (text(name), text(password), text(_RECOVERY)),
    )


def set_global(name: str, value: str | int) -> bytes:
    """Set a global variable until the server restarts."""
    return b"SET GLOBAL %b=%b" % (name.encode(), literal(value))


SELECT_ANY_SHARD: Final = b"SELECT 1 FROM information_schema.tables WHERE table_name = 'shard_identity' LIMIT 1"
"""Selects a row if a datastore has shards on the server."""
