"""Copies of erased cells outside of the shard's table: tables of moves on all clusters, and replicas.

A move leaves the old table ``cell_moved_...`` behind, and fills ``cell_incoming_...``. A mover that is running erases
its copies itself; here, they are erased in any case, because a mover may never come back. Old tables of followers and
indexes have parts of documents, too.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from schemaless.codec.envelope import tombstone
from schemaless.datastore import Datastore
from schemaless.erasures import sql
from schemaless.errors import FeedRefused, ServerError
from schemaless.indexes.sql import select_index_columns
from schemaless.internals import Internals, internals_of
from schemaless.move.fence import index_tables, side_of
from schemaless.move.record import Records
from schemaless.topology.replica_position import gtid_position, wait_for_gtid
from schemaless.wire.connection import Connection
from schemaless.wire.node import Node
from schemaless.wire.sql.parts import blob_hex

_REPLICA_WAIT_S: Final = 0.5


class CopyTable(NamedTuple):
    """A table on some cluster that a move of a shard has left behind or is filling.

    Attributes:
        cluster: name of the cluster.
        node: its primary.
        name: name of the table.
    """

    cluster: str
    node: Node
    name: str


def copy_tables(internals: Internals, shard: int) -> list[CopyTable]:
    """Return the tables with copies of a shard's cells on all clusters.

    Raises:
        ServerError: a cluster's primary cannot be reached.
    """
    database = internals.shards.database(shard)
    found = []
    for cluster in internals.topology.clusters:
        side = internals.shards.pool_for(cluster.primary).run(lambda connection: side_of(connection, database))
        names = [*side.moved.get("cell", ()), *side.incoming.get("cell", ())]
        found += [CopyTable(cluster.name, cluster.primary, name) for name in names]
    return found


def erase_copies(
    internals: Internals, shard: int, erasure: int, ids: Sequence[int], tables: Sequence[CopyTable]
) -> int:
    """Erase cells in the tables of moves; return the number of bodies that were replaced."""
    database = internals.shards.database(shard)
    replaced = 0
    for table in tables:
        statement = sql.erase_copies(database, table.name, ids, tombstone(erasure))
        pool = internals.shards.pool_for(table.node)
        replaced += pool.run(
            lambda connection, statement=statement: connection.execute(statement).affected,  # type: ignore[misc]
            writes=True,
        )
    return replaced


def live_copies(internals: Internals, shard: int, ids: Sequence[int], tables: Sequence[CopyTable]) -> dict[str, int]:
    """Return the number of bodies that were not erased, by table; tables without any are left out."""
    database = internals.shards.database(shard)
    found = {}
    for table in tables:
        statement = sql.count_live_copies(database, table.name, ids)
        pool = internals.shards.pool_for(table.node)
        rows = pool.run(lambda connection, statement=statement: connection.rows(statement))  # type: ignore[misc]
        if int(rows[0][0]):
            found[f"{database}.{table.name} on {table.node}"] = int(rows[0][0])
    return found


class LeftTable(NamedTuple):
    """A table of a follower or an index that a finished move has left on its source.

    Attributes:
        node: the source's primary.
        database: the shard's database.
        name: name of the table.
        values: columns that may have parts of documents, with the SQL values that replace them.
        key: column by which rows are chosen: ``row_key``, ``added_id``, or ``name`` of the follower.
    """

    node: Node
    database: str
    name: str
    values: Mapping[str, bytes]
    key: str

    def __str__(self) -> str:
        return f"{self.database}.{self.name} on {self.node}"


def left_tables(store: Datastore, shard: int) -> list[LeftTable]:
    """Return tables that finished moves have left behind with parts of a shard's documents, except those of cells.

    Index entries may be in another shard than their rows, so these are the tables of indexes of all shards, and of the
    shard's followers. Tables of a move that is under way are the mover's, which also rewinds the followers.

    Raises:
        ServerError: a source cannot be reached.
    """
    internals = internals_of(store)
    found = []
    for record in Records(store).all():
        if record.phase not in ("moved", "verified"):
            continue
        node = internals.topology.cluster(record.source).primary
        pool, database = internals.shards.pool_for(node), internals.shards.database(record.shard)
        side = pool.run(lambda connection, name=database: side_of(connection, name))  # type: ignore[misc]
        if side.has_cell:
            continue
        columns = pool.run(lambda connection, name=database: connection.rows(select_index_columns(name)))  # type: ignore[misc]
        for table in index_tables(side.moved):
            for name in side.moved[table]:
                values = {str(row[1]): _blank(str(row[2]), str(row[3])) for row in columns if row[0] == name}
                values = {column: value for column, value in values.items() if not _is_key(column)}
                found.append(LeftTable(node, database, name, values, "row_key"))
        if record.shard == shard:
            for table, values, key in (
                ("parked", {"error": sql.REMOVED}, "added_id"),
                ("follower", {"message": b"NULL"}, "name"),
            ):
                found += [LeftTable(node, database, name, values, key) for name in side.moved.get(table, ())]
    return found


def _is_key(column: str) -> bool:
    return column == "row_key" or column.startswith("ref_")


def _blank(sql_type: str, nullable: str) -> bytes:
    if nullable == "YES":
        return b"NULL"
    if sql_type.startswith("datetime"):
        return b"'1970-01-01'"
    return b"''" if "char" in sql_type or "binary" in sql_type else b"0"


def _keys(internals: Internals, shard: int, ids: Sequence[int], table: LeftTable) -> list[bytes]:
    """Return the values of a table's key for some cells, as SQL; for a follower's message, those of all followers."""
    if table.key == "added_id":
        return [b"%d" % added_id for added_id in ids]
    if table.key == "name":
        return [b"name"]
    rows = internals.shards.rows(shard, sql.select_rows_of(internals.shards.database(shard), ids))
    return [blob_hex(bytes(row_key)) for (row_key,) in rows]


def blank_left(internals: Internals, shard: int, ids: Sequence[int], tables: Sequence[LeftTable]) -> None:
    """Overwrite the copies of some cells in tables that moves have left behind."""
    for table in tables:
        keys = _keys(internals, shard, ids, table)
        statement = sql.blank_rows(table.database, table.name, table.values, table.key, keys)
        pool = internals.shards.pool_for(table.node)
        pool.run(lambda connection, statement=statement: connection.execute(statement), writes=True)  # type: ignore[misc]


def not_blank(internals: Internals, shard: int, ids: Sequence[int], tables: Sequence[LeftTable]) -> dict[str, int]:
    """Return the number of rows that ``blank_left`` would change, by table; tables without any are left out."""
    found = {}
    for table in tables:
        keys = _keys(internals, shard, ids, table)
        statement = sql.count_not_blank(table.database, table.name, table.values, table.key, keys)
        pool = internals.shards.pool_for(table.node)
        rows = pool.run(lambda connection, statement=statement: connection.rows(statement))  # type: ignore[misc]
        if int(rows[0][0]):
            found[str(table)] = int(rows[0][0])
    return found


def wait_for_replicas(internals: Internals, cluster: str, gate: Callable[[], None], patience_s: float) -> list[str]:
    """Wait until all replicas of a cluster have applied what its primary has committed by now.

    Args:
        internals: the datastore.
        cluster: name of the cluster.
        gate: called between attempts; raises if the wait has to end.
        patience_s: how long to wait for a replica that does not answer or lags, in seconds.

    Returns:
        The replicas that did not get there, each with the reason.
    """
    servers = internals.topology.cluster(cluster)
    if not servers.replicas:
        return []
    try:
        position = internals.shards.pool_for(servers.primary).run(gtid_position)
    except FeedRefused as error:
        return [f"{node}: {error}" for node in servers.replicas]
    behind = []
    for node in servers.replicas:
        reason = _wait(internals, node, position, gate, patience_s)
        if reason is not None:
            behind.append(f"{node}: {reason}")
    return behind


def _wait(internals: Internals, node: Node, position: str, gate: Callable[[], None], patience_s: float) -> str | None:
    until_s = time.monotonic() + patience_s
    while True:
        gate()
        try:
            if internals.shards.pool_for(node).run(_applied(position)):
                return None
            reason = f"it has not applied the erasure within {patience_s:g} s"
        except ServerError as error:
            reason = str(error)
        if time.monotonic() > until_s:
            return reason
        time.sleep(_REPLICA_WAIT_S if "has not applied" not in reason else 0)


def _applied(position: str) -> Callable[[Connection], bool]:
    return lambda connection: wait_for_gtid(connection, position, _REPLICA_WAIT_S)
