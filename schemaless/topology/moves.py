"""Unfinished moves of shards, as listed in the catalog."""

from __future__ import annotations

from schemaless.errors import JobConflict
from schemaless.topology.sql.moving import select_move_jobs
from schemaless.wire.pool import NodePool


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
