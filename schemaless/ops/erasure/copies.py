"""Copies of erased cells outside the shard's table: tables of moves on all clusters, and replicas.

A move leaves the old table ``cell_moved_...`` behind, and fills ``cell_incoming_...``. A running mover erases its
copies itself, but a mover may have died, so this module erases them as well. A move's copies of follower and index
tables may also contain parts of documents until the move drops them at its end. A server that a shard has left may also
have its table ``cell``: a replica that is behind, or a server that was restored from an older backup.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, NamedTuple

from schemaless.base.type_variables import T
from schemaless.codec.envelope import tombstone
from schemaless.errors import FeedRefused, ServerError
from schemaless.ops.move.fence import index_tables, side_of
from schemaless.ops.move.record import Records
from schemaless.ops.move.spec import BEFORE_COMMIT
from schemaless.ops.move.sql import CARRIED
from schemaless.store.cells.reading import ADDED_ID, only_requested
from schemaless.store.cells.sql import select_by_id
from schemaless.store.datastore import Datastore
from schemaless.store.erasures import sql
from schemaless.store.erasures.dependents import erase_in_copy, whole_bodies
from schemaless.store.internals import Internals, internals_of
from schemaless.topology.model import Cluster
from schemaless.topology.moves import stray_tables
from schemaless.topology.replica_position import gtid_position, wait_for_gtid
from schemaless.wire.connection import Connection
from schemaless.wire.errors import DatabaseMissing
from schemaless.wire.node import Node

_REPLICA_WAIT_S: Final = 0.5
_MAX_ATTEMPTS: Final = 20


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
        found += [CopyTable(cluster.name, cluster.primary, name) for name in side.copies]
    return found


def _while_tables_change(operation: Callable[[], T]) -> T:
    """Repeat an operation that fails because a mover renames or drops one of its tables."""
    for _ in range(_MAX_ATTEMPTS - 1):
        with suppress(DatabaseMissing):
            return operation()
    return operation()


def erase_copies(internals: Internals, shard: int, erasure: int, ids: Sequence[int]) -> int | None:
    """Erase cells in the tables of moves; return the number of bodies replaced, or None if there are no such tables."""
    database = internals.shards.database(shard)

    def current(ids: Sequence[int]) -> dict[int, bytes]:
        def read(connection: Connection) -> dict[int, bytes]:
            rows: Any = connection.rows(
                select_by_id(database, ids), only_requested({(each,) for each in ids}, ADDED_ID)
            )
            return whole_bodies(connection, database, rows, internals.dictionaries)

        return internals.shards.run(shard, read)

    def erase(table: CopyTable) -> int:
        operation = partial(
            erase_in_copy, database=database, name=table.name, ids=ids, tombstone=tombstone(erasure), current=current
        )
        return internals.shards.pool_for(table.node).run(operation, writes=True)

    replaced = _while_tables_change(lambda: [erase(table) for table in copy_tables(internals, shard)])
    return sum(replaced) if replaced else None


def live_copies(internals: Internals, shard: int, ids: Sequence[int]) -> tuple[dict[str, int], list[str]]:
    """Count the cells among these that still have their body, in tables of the shard on all servers but its own table.

    Returns:
        The number of cells by table, without tables that have none, and the replicas that cannot be read, with reasons.

    Raises:
        ServerError: a primary cannot be reached.
    """
    database = internals.shards.database(shard)
    home = internals.topology.cluster_of(shard).name
    found, unread = _on_all_servers(
        internals, lambda cluster, node: _live_on(internals, node, database, ids, own=cluster.name == home)
    )
    return {table: live for counts in found for table, live in counts.items()}, unread


def _on_all_servers(internals: Internals, read: Callable[[Cluster, Node], T]) -> tuple[list[T], list[str]]:
    """Return what can be read on the servers, and the replicas that cannot be read, with reasons."""
    found, unread = [], []
    for cluster in internals.topology.clusters:
        for node in cluster.nodes:
            try:
                found.append(read(cluster, node))
            except ServerError as error:
                if node.role == "primary":
                    raise
                unread.append(f"replica {error}")
    return found, unread


def live_bodies(internals: Internals, shard: int, ids: Sequence[int]) -> int:
    """Return how many bodies of these cells are still in the tables that ``erase_copies`` would erase."""
    database = internals.shards.database(shard)
    nodes = [cluster.primary for cluster in internals.topology.clusters]
    return sum(sum(_live_on(internals, node, database, ids, own=True).values()) for node in nodes)


def _live_on(internals: Internals, node: Node, database: str, ids: Sequence[int], *, own: bool) -> dict[str, int]:
    def count(connection: Connection) -> dict[str, int]:
        side = side_of(connection, database)
        names = [*side.copies, *(["cell"] if side.has_cell and not own else [])]
        counts = {name: int(connection.rows(sql.count_live(database, ids, name))[0][0]) for name in names}
        return {f"{database}.{name} on {node}": live for name, live in counts.items() if live}

    return _while_tables_change(lambda: internals.shards.pool_for(node).run(count))


def clusters_of(store: Datastore, shards: Collection[int], tables: Iterable[CopyTable]) -> list[str]:
    """Return the clusters that have or had cells of some shards, in the catalog's order.

    The catalog keeps the record of every move. Former clusters count because their logs and replicas may still have
    what they had.

    Args:
        store: the datastore.
        shards: numbers of the shards.
        tables: result of ``copy_tables`` for these shards.

    Raises:
        ServerError: the catalog's server cannot be reached.
    """
    topology = internals_of(store).topology
    names = {topology.cluster_of(shard).name for shard in shards} | {table.cluster for table in tables}
    for record in Records(store).all():
        if record.shard in shards:
            names |= {record.source, *((record.target,) if record.servers else ())}
    return [cluster.name for cluster in topology.clusters if cluster.name in names]


def strays(store: Datastore, shards: Collection[int]) -> list[str]:
    """Return the tables of cells of some shards on servers that should not have them; see ``stray_tables``.

    Replicas that cannot be read are left out.

    Raises:
        ServerError: a primary cannot be reached.
    """
    internals = internals_of(store)

    def read(cluster: Cluster, node: Node) -> list[str]:
        tables = stray_tables(internals.catalog, store.name, internals.shards.pool_for, cluster, node)
        return [f"{table.database}.{table.name} on {node}" for table in tables if table.shard in shards]

    return [table for tables in _on_all_servers(internals, read)[0] for table in tables]


def tables_of_moves(store: Datastore, shards: Collection[int]) -> list[str]:
    """Return the tables of unfinished moves, except cell tables, that may contain parts of documents of some shards.

    Index entries may be in a shard other than that of their rows, so the result includes the index tables of all
    shards, but the follower tables only of the given shards. A move drops these tables before it ends, or if it is
    aborted.

    Raises:
        ServerError: a cluster of such a move cannot be reached.
    """
    internals = internals_of(store)
    found = []
    for record in Records(store).all():
        if record.phase not in (*BEFORE_COMMIT, "moved"):
            continue
        database = internals.shards.database(record.shard)
        for cluster in (record.source, record.target):
            node = internals.topology.cluster(cluster).primary
            side = internals.shards.pool_for(node).run(lambda connection, name=database: side_of(connection, name))  # type: ignore[misc]
            for kind in (side.moved, side.incoming):
                tables = [*index_tables(kind), *(CARRIED if record.shard in shards else ())]
                found += [f"{database}.{name} on {node}" for table in tables for name in kind.get(table, ())]
    return found


def wait_for_replicas(internals: Internals, cluster: str, gate: Callable[[], None], patience_s: float) -> list[str]:
    """Wait until all replicas of a cluster have applied what its primary has committed so far.

    Args:
        internals: the datastore.
        cluster: name of the cluster.
        gate: called between attempts; raises if the wait has to end.
        patience_s: how long to wait for a replica that does not answer or lags, in seconds.

    Returns:
        The replicas that did not catch up, each with the reason.
    """
    servers = internals.topology.cluster(cluster)
    if not servers.replicas:
        return []
    try:
        position = internals.shards.pool_for(servers.primary).run(gtid_position)
    except FeedRefused as error:
        return [f"{node}: {error}" for node in servers.replicas]
    reasons = ((node, _wait(internals, node, position, gate, patience_s)) for node in servers.replicas)
    return [f"{node}: {reason}" for node, reason in reasons if reason is not None]


def _wait(internals: Internals, node: Node, position: str, gate: Callable[[], None], patience_s: float) -> str | None:
    until_s = time.monotonic() + patience_s
    while True:
        gate()
        try:
            if internals.shards.pool_for(node).run(lambda each: wait_for_gtid(each, position, _REPLICA_WAIT_S)):
                return None
            reason = f"it has not applied the erasure within {patience_s:g} s"
        except ServerError as error:
            reason = str(error)
            time.sleep(_REPLICA_WAIT_S)
        if time.monotonic() > until_s:
            return reason
