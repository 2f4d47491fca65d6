"""Unfinished moves of shards, as listed in the catalog, and tables of shards on servers that should not have them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from schemaless.base.keys import shard_database
from schemaless.base.numbers import shards_text
from schemaless.errors import JobConflict
from schemaless.schema.sql import select_cell_tables
from schemaless.topology.catalog import read_catalog
from schemaless.topology.sql.moving import BEFORE_COMMIT, moved, select_move_jobs, select_open_moves
from schemaless.wire.node import Node
from schemaless.wire.pool import NodePool


class StrayTable(NamedTuple):
    """A table of cells on a server that should not have it.

    Attributes:
        shard: number of the shard.
        database: the shard's database.
        name: name of the table.
    """

    shard: int
    database: str
    name: str


def unfinished_moves(pool: NodePool, datastore: str) -> dict[int, str]:
    """Return the state of each move job that may have work left, by job number."""
    return {job_id: state for job_id, state in _move_jobs(pool, datastore) if state in ("running", "paused")}


def last_move(pool: NodePool, datastore: str) -> int:
    """Return the number of the most recent move job; 0 if there has been none."""
    return max((job_id for job_id, _ in _move_jobs(pool, datastore)), default=0)


def refuse_beside_moves(pool: NodePool, datastore: str) -> None:
    """Refuse to change index tables while shards are being moved: a change would not reach the new tables.

    Raises:
        JobConflict: a move has not finished.
    """
    for job_id, state in unfinished_moves(pool, datastore).items():
        raise JobConflict(
            f"move {job_id} is {state}, and index tables cannot be created, dropped or repaired while shards are being "
            f"moved. Complete the move with 'schemaless shards move --execute --job {job_id}' or end it with "
            f"'schemaless shards abort --job {job_id}', then run this command again. Nothing was changed",
            job_id,
        )


def _move_jobs(pool: NodePool, datastore: str) -> list[tuple[int, str]]:
    rows = pool.run(lambda connection: connection.rows(select_move_jobs(datastore)))
    return [(int(job_id), str(state)) for job_id, state in rows]


def cell_tables(pool: NodePool, datastore: str) -> list[StrayTable]:
    """Return all tables of cells on a server that the account can see, including those of moves."""
    found = []
    for database, name in pool.run(lambda connection: connection.rows(select_cell_tables(datastore))):
        number = str(database).rpartition("_")[2]
        # A datastore with a longer name has databases that begin alike.
        if number.isdigit() and shard_database(datastore, int(number)) == database:
            found.append(StrayTable(int(number), str(database), str(name)))
    return found


def stray_tables(catalog: NodePool, datastore: str, pool: NodePool, cluster: str, node: Node) -> list[StrayTable]:
    """Return the tables of cells on a server for which neither the shard's location nor a move accounts.

    A server has them after it was restored from a backup that is older than a move of the shard. They are read a second
    time, because a move may have been under way.

    Args:
        catalog: connections to the catalog's server.
        datastore: name of the datastore.
        pool: connections to the server.
        cluster: name of its cluster.
        node: the server.

    Raises:
        ServerError: a server cannot be reached.
    """
    found = list(_strays(catalog, datastore, pool, cluster, node))
    if not found:
        return []
    again = set(_strays(catalog, datastore, pool, cluster, node))
    return [table for table in found if table in again]


def _strays(catalog: NodePool, datastore: str, pool: NodePool, cluster: str, node: Node) -> Iterator[StrayTable]:
    tables = cell_tables(pool, datastore)
    # The caller has opened the datastore, perhaps one whose catalog is being given its own servers.
    own = set(read_catalog(catalog, datastore, copied=True).topology.shards_of(cluster))
    leaving, late, arriving = set[int](), set[int](), set[int]()
    for shard, source, target, phase in catalog.run(lambda connection: connection.rows(select_open_moves(datastore))):
        before = phase in BEFORE_COMMIT
        if source == cluster:
            leaving.add(int(shard))
            if phase == "moved" and node.role == "replica":
                late.add(int(shard))
        elif target == cluster and (before or phase == "moved"):
            arriving.add(int(shard))
    for table in tables:
        if table.name == "cell":
            accounted = own | arriving | late
        elif table.name.startswith(moved("cell", "")):
            # A failover sets the table of its own shard aside for a moment.
            accounted = own | leaving
        else:
            accounted = arriving
        if table.shard not in accounted:
            yield table


def strays_text(tables: Iterable[StrayTable]) -> str:
    """Return what is wrong with stray tables of one server, and what to do."""
    first, *rest = sorted(tables)
    shards = shards_text(sorted({first.shard, *(table.shard for table in rest)}))
    return (
        f"it has tables of cells that the catalog does not place there, of shards {shards}, such as "
        f"`{first.database}`.{first.name}: was it restored from a backup that is older than a move? They may hold "
        "documents that have been erased since. Drop them, as soon as no program uses them"
    )
