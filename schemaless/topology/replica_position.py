"""How far a primary has committed and a replica has applied, as GTID positions."""

from __future__ import annotations

from schemaless.errors import FeedRefused
from schemaless.topology.sql.replicas import SELECT_GTID_POSITION, SELECT_GTID_POSITION_MARIADB, select_gtid_wait
from schemaless.wire.connection import Connection


def gtid_position(connection: Connection) -> str:
    """Return what a primary has committed, as its replicas' GTID waits take it.

    Raises:
        FeedRefused: it writes no GTIDs.
    """
    sql = SELECT_GTID_POSITION_MARIADB if connection.is_mariadb else SELECT_GTID_POSITION
    position, enabled = connection.rows(sql)[0]
    if not int(enabled):
        raise FeedRefused(
            "the primary writes no GTIDs, so it cannot be told how far a replica has got; set gtid_mode=ON "
            "(MariaDB: log_bin), or read from the primary",
            node=connection.node,
            shard=connection.shard,
        )
    return str(position)


def wait_for_gtid(connection: Connection, position: str, timeout_s: float) -> bool:
    """Wait until a replica has applied all of a primary's position; False where it has not in time."""
    sql = select_gtid_wait(position, timeout_s, mariadb=connection.is_mariadb)
    return bool(connection.rows(sql)[0][0] == 0)
