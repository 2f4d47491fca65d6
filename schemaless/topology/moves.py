"""Unfinished moves of shards, as listed in the catalog, and tables of shards on servers that should not have them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

from schemaless.base.keys import shard_database
from schemaless.base.numbers import shards_text
from schemaless.errors import FeedRefused, JobConflict, ServerError
from schemaless.schema.sql import select_cell_tables
from schemaless.topology.catalog import read_catalog
from schemaless.topology.model import Cluster
from schemaless.topology.replication import has_caught_up_with
from schemaless.topology.sql.moving import BEFORE_COMMIT, ENDED, moved, select_move_jobs, select_moves_of_shards
from schemaless.wire.node import Node, Role
from schemaless.wire.pool import NodePool

_CATCH_UP_S: Final = 0.2
"""Time that a replica with stray tables has to apply what its primary has committed, in seconds."""


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
    rows = pool.rows(select_move_jobs(datastore))
    return {job_id: state for job_id, state in rows if state in ("running", "paused")}


def last_move(pool: NodePool, datastore: str) -> int:
    """Return the number of the most recent move job; 0 if there has been none."""
    return max((job_id for job_id, _ in pool.rows(select_move_jobs(datastore))), default=0)


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


def cell_tables(pool: NodePool, datastore: str) -> list[StrayTable]:
    """Return all tables of cells on a server that the account can see, including those of moves."""
    found = []
    for database, name in pool.rows(select_cell_tables(datastore)):
        number = str(database).rpartition("_")[2]
        # A datastore with a longer name has databases that begin alike.
        if number.isdigit() and shard_database(datastore, int(number)) == database:
            found.append(StrayTable(int(number), str(database), str(name)))
    return found


def stray_tables(
    catalog: NodePool, datastore: str, pool_of: Callable[[Node], NodePool], cluster: Cluster, node: Node
) -> list[StrayTable]:
    """Return the tables of cells on a server for which neither the shard's location nor a move accounts.

    A server has them after it was restored from a backup that is older than a move of the shard. They are read a second
    time, because a move may have been under way. A replica that is behind may still have the tables of every move.

    Args:
        catalog: connections to the catalog's server.
        datastore: name of the datastore.
        pool_of: returns the connections to a server.
        cluster: the server's cluster.
        node: the server.

    Raises:
        ServerError: the server or the catalog's server cannot be reached.
    """
    pool = pool_of(node)
    found = list(_strays(catalog, datastore, pool, cluster.name))
    if not found:
        return []
    behind = node.role == "replica" and not _has_caught_up(pool, pool_of(cluster.primary))
    again = set(_strays(catalog, datastore, pool, cluster.name, behind=behind))
    return [table for table in found if table in again]


def _has_caught_up(replica: NodePool, primary: NodePool) -> bool:
    try:
        return has_caught_up_with(replica, primary, _CATCH_UP_S)
    except FeedRefused:
        return True  # Without GTIDs it would never be known to have caught up, and its tables would never be found.
    except ServerError:
        return False


def _strays(
    catalog: NodePool, datastore: str, pool: NodePool, cluster: str, *, behind: bool = False
) -> Iterator[StrayTable]:
    tables = cell_tables(pool, datastore)
    # The caller has opened the datastore, perhaps one whose catalog is being given its own servers.
    own = set(read_catalog(catalog, datastore, copied=True).topology.shards_of(cluster))
    leaving, arriving = set[int](), set[int]()
    moves = catalog.rows(select_moves_of_shards(datastore))
    for shard, source, target, phase in moves:
        if behind and cluster in (source, target):
            own.add(int(shard))
        if source == cluster and phase not in ENDED:
            leaving.add(int(shard))
        elif target == cluster and (phase in BEFORE_COMMIT or phase == "moved"):
            arriving.add(int(shard))
    for table in tables:
        # A failover or a rebuild sets the table of its own shard aside, and a rebuild copies it.
        accounted = own | (leaving if table.name.startswith(moved("cell", "")) else arriving)
        if table.shard not in accounted:
            yield table


def strays_text(tables: Iterable[StrayTable], role: Role) -> str:
    """Return what is wrong with stray tables of one server of a role, and what to do."""
    first, *rest = sorted(tables)
    shards = shards_text(sorted({first.shard, *(table.shard for table in rest)}))
    cause = "was it restored from a backup that is older than a move?"
    remedy = "Drop them, as soon as no program uses them"
    if role == "replica":
        cause = "the replica is behind, or was restored from a backup that is older than a move."
        remedy = (
            "Let it catch up; if it still has them then, drop them on the primary or, if the primary has none, set up "
            "the replica anew"
        )
    return (
        f"it has tables of cells that the catalog does not place there, of shards {shards}, such as "
        f"`{first.database}`.{first.name}: {cause} They may hold documents that have been erased since. {remedy}"
    )
