"""A shard moved by hand, step by step, as docs/operations.md tells it; or by the library, and left nowhere else."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any

import pymysql

from schemaless.ops.move import run as moves
from schemaless.ops.move.record import MoveRecord
from schemaless.ops.move.spec import MoveSpec
from schemaless.schema.creation import create_shard
from schemaless.schema.versions import Identity
from schemaless.store.datastore import Datastore
from schemaless.store.internals import internals_of
from schemaless.topology.shards import Shards
from schemaless.wire.node import Node
from schemaless.wire.pools import Pools

_COPIED = "added_id, row_key, column_name, ref_key, body, created_at"
_ROOM = 1 << 20
"""How far the ids on the target begin above those that are there."""


class MoveByHand:
    """One shard on its way to another cluster; root does it.

    Args:
        store: the datastore.
        shards: of the same, as root reaches them.
        shard: which one.
        to: the cluster's name; another than it is on, unless given.
    """

    def __init__(self, store: Datastore, shards: Shards, shard: int, to: str | None = None) -> None:
        internals = internals_of(store)
        topology = internals.topology
        self.shard = shard
        source = topology.cluster_of(shard)
        self.to = to or next(cluster.name for cluster in topology.clusters if cluster.name != source.name)
        self.source, self.target = source.primary, topology.cluster(self.to).primary
        self._name = topology.name
        self._database = shards.database(shard)
        self._catalog = internals.catalog.node
        self._pools: Pools = shards.pools
        self._moved = f"cell_moved_{secrets.token_hex(4)}"
        self._identity = Identity(topology.name, shard, topology.shard_count, topology.placement)

    def run(self) -> None:
        """Do all of it."""
        self.copy()
        self.fence()
        self.flip()

    def copy(self) -> None:
        """Make the shard on the target, its cells under another name, and copy what is there."""
        if not query(self.target, f"SHOW DATABASES LIKE '{self._database}'"):
            create_shard(self._pools.pool_for(self.target), self._database, self._identity)
            query(self.target, f"RENAME TABLE `{self._database}`.cell TO `{self._database}`.cell_incoming")
        else:
            query(self.target, f"CREATE TABLE `{self._database}`.cell_incoming LIKE {self._left_behind()}")
        self._copy_rest("cell")

    def fence(self) -> None:
        """Take the table away on the source, copy the rest, and give the target's its name."""
        query(self.source, f"RENAME TABLE `{self._database}`.cell TO `{self._database}`.{self._moved}")
        self._copy_rest(self._moved)
        top = query(self.target, f"SELECT COALESCE(MAX(added_id), 0) FROM `{self._database}`.cell_incoming")[0][0]
        query(self.target, f"ALTER TABLE `{self._database}`.cell_incoming AUTO_INCREMENT = {int(top) + _ROOM}")
        query(self.target, f"RENAME TABLE `{self._database}`.cell_incoming TO `{self._database}`.cell")

    def give_up(self) -> None:
        """Give the source's table its name again, before the target's got it."""
        query(self.source, f"RENAME TABLE `{self._database}`.{self._moved} TO `{self._database}`.cell")

    def flip(self) -> None:
        """Change the catalog so that it names the target."""
        ranges = query(self._catalog, f"SELECT first_shard, last_shard, cluster FROM `{self._name}`.shard_range")
        where = {shard: cluster for first, last, cluster in ranges for shard in range(first, last + 1)}
        where[self.shard] = self.to
        values = ", ".join(f"({shard}, {shard}, '{cluster}')" for shard, cluster in sorted(where.items()))
        query(
            self._catalog,
            "START TRANSACTION",
            f"DELETE FROM `{self._name}`.shard_range",
            f"INSERT INTO `{self._name}`.shard_range (first_shard, last_shard, cluster) VALUES {values}",
            f"UPDATE `{self._name}`.datastore SET topology_token = x'{secrets.token_hex(16)}'",
            "COMMIT",
        )

    def _left_behind(self) -> str:
        tables = [str(name) for (name,) in query(self.target, f"SHOW TABLES FROM `{self._database}`")]
        return f"`{self._database}`." + next(name for name in tables if name.startswith("cell_moved_"))

    def _copy_rest(self, table: str) -> None:
        there = query(self.target, f"SELECT added_id FROM `{self._database}`.cell_incoming")
        known = {added_id for (added_id,) in there}
        rows = query(self.source, f"SELECT {_COPIED} FROM `{self._database}`.{table}")
        lacking = [row for row in rows if row[0] not in known]
        if lacking:
            with connected(self.target) as connection, connection.cursor() as cursor:
                cursor.executemany(
                    f"INSERT INTO `{self._database}`.cell_incoming ({_COPIED}) VALUES (%s, %s, %s, %s, %s, %s)",
                    lacking,
                )


def connected(node: Node) -> Any:
    """Return a connection to a server as root, closed by its ``with`` block."""
    return pymysql.connect(
        host=node.host,
        port=node.port or 0,
        unix_socket=node.socket,
        user="root",
        autocommit=True,
        charset="utf8mb4",
        ssl_disabled=node.socket is not None,  # it would take most of the time
    )


def query(node: Node, *statements: str) -> Sequence[tuple[Any, ...]]:
    """Run statements on one connection to a server as root; return the last one's rows."""
    with connected(node) as connection, connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)
        return list(cursor.fetchall())


def move_away(store: Datastore, shard: int) -> MoveRecord:
    """Move a shard to another cluster, and drop what is left behind; return what became of it."""
    internals = internals_of(store)
    internals.shards.router.again(internals.shards.routing)
    home = internals.topology.cluster_of(shard)
    target = next(each.name for each in internals.topology.clusters if each != home)
    (record,) = moves.run(store, MoveSpec(target, accounts=False), [shard])
    assert record.phase == "verified", record
    for left in moves.left_behind(store, [shard]):
        moves.drop(store, left)
    return record
