"""Records of former primaries that may hold cells lost in a failover; each is kept until the loss is settled."""

from __future__ import annotations

from schemaless.base.keys import heartbeat_database
from schemaless.topology.heartbeat import make_tables
from schemaless.topology.sql.replicas import delete_lost_primary, insert_lost_primary, select_lost_primaries
from schemaless.wire.errors import DatabaseMissing
from schemaless.wire.node import Node
from schemaless.wire.pool import NodePool


def record_lost_primary(pool: NodePool, datastore: str, cluster: str, server: Node) -> None:
    """Record on a cluster's new primary that the former one may hold cells that no other server has."""
    make_tables(pool, datastore)
    pool.execute(insert_lost_primary(heartbeat_database(datastore), cluster, str(server)))


def lost_primaries(pool: NodePool, datastore: str) -> list[tuple[str, str]]:
    """Return the cluster and address of each former primary whose loss has not been settled."""
    sql = select_lost_primaries(heartbeat_database(datastore))
    try:
        return [(cluster, server) for cluster, server in pool.rows(sql)]
    except DatabaseMissing:
        return []


def settle(pool: NodePool, datastore: str, cluster: str, server: Node) -> bool:
    """Delete the record of a former primary; return False if there was none."""
    if (cluster, str(server)) not in lost_primaries(pool, datastore):
        return False
    pool.execute(delete_lost_primary(heartbeat_database(datastore), cluster, str(server)))
    return True
