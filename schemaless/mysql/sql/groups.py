"""Statements about Group Replication: what a member says of its group, and making one."""

from __future__ import annotations

from typing import Final

from schemaless.mysql.sql.parts import literal, text

SELECT_SERVER: Final = b"SELECT @@server_uuid, @@group_replication_single_primary_mode"
"""Its row is who the server is, and whether its group has one primary; only a server with the plugin has the second."""

SELECT_MEMBERS: Final = (
    b"SELECT MEMBER_ID, MEMBER_HOST, MEMBER_PORT, MEMBER_STATE, MEMBER_ROLE "
    b"FROM performance_schema.replication_group_members"
)
"""Its rows are the members of the group as the server sees them; none where it does not have the plugin."""

SELECT_OWN_PLACE: Final = (
    b"SELECT COALESCE(MAX(IF(MEMBER_ID=@@server_uuid, MEMBER_STATE, NULL)), 'OFFLINE') AS state, "
    b"COALESCE(2 * SUM(MEMBER_STATE IN ('ONLINE', 'RECOVERING')) > COUNT(*), 0) AS majority "
    b"FROM performance_schema.replication_group_members"
)
"""Its row is the state of the server itself in its group, and whether it sees a majority of it."""

SELECT_GROUP_NAME: Final = b"SELECT @@group_replication_group_name"
START_GROUP: Final = b"START GROUP_REPLICATION"
STOP_GROUP: Final = b"STOP GROUP_REPLICATION"
_RECOVERY: Final = "group_replication_recovery"
"""By this channel a member gets what it lacks; the account of it is the group's own too."""


def make_member_account(name: str, host: str, password: str) -> tuple[bytes, ...]:
    """Make the account by which members reach each other, on a server that is in no group yet; nothing is logged."""
    account = b"%b@%b" % (text(name), text(host))
    return (
        b"SET SESSION sql_log_bin=0",
        b"CREATE USER IF NOT EXISTS %b IDENTIFIED BY %b" % (account, text(password)),
        b"ALTER USER %b IDENTIFIED BY %b" % (account, text(password)),
        b"GRANT REPLICATION SLAVE, CONNECTION_ADMIN, BACKUP_ADMIN, GROUP_REPLICATION_STREAM ON *.* TO %b" % account,
        b"SET SESSION sql_log_bin=1",
        b"CHANGE REPLICATION SOURCE TO SOURCE_USER=%b, SOURCE_PASSWORD=%b FOR CHANNEL %b"
        % (text(name), text(password), text(_RECOVERY)),
    )


def set_global(name: str, value: str | int) -> bytes:
    """Set one of the plugin's settings, or the server's, until it ends."""
    return b"SET GLOBAL %b=%b" % (name.encode(), literal(value))
