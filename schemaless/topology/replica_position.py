"""GTID positions: what a primary has committed, and waiting until a replica has applied it."""

from __future__ import annotations

from schemaless.errors import FeedRefused
from schemaless.topology.sql.replicas import SELECT_GTID_POSITION, SELECT_GTID_POSITION_MARIADB, select_gtid_wait
from schemaless.wire.connection import Connection


def gtid_position(connection: Connection) -> str:
    """Return the position up to which a primary has committed.

    Raises:
        FeedRefused: the primary has GTIDs disabled.
    """
    sql = SELECT_GTID_POSITION_MARIADB if connection.is_mariadb else SELECT_GTID_POSITION
    position, enabled = connection.rows(sql)[0]
    if not int(enabled):
        raise FeedRefused(
            "the primary writes no GTIDs, so the position of a replica cannot be determined; set gtid_mode=ON "
            "(MariaDB: log_bin), or read from the primary",
            node=connection.node,
            shard=connection.shard,
        )
    return str(position)


def wait_for_gtid(connection: Connection, position: str, timeout_s: float) -> bool:
    """Wait until a replica has applied a primary's position; return False on a timeout."""
    sql = select_gtid_wait(position, timeout_s, mariadb=connection.is_mariadb)
    return bool(connection.rows(sql)[0][0] == 0)
