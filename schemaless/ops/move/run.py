"""Move jobs: planning, running and aborting them, and dropping their leftovers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Unpack

from schemaless.base.events import Advanced, Listener, ignore_events
from schemaless.base.keys import heartbeat_database
from schemaless.base.numbers import Interval, counted
from schemaless.base.runner_names import who
from schemaless.errors import InvalidInput, JobConflict, MoveRefused, ServerUnavailable
from schemaless.ops.jobs.driver import patiently
from schemaless.ops.jobs.job import Job
from schemaless.ops.jobs.job_store import JobStore
from schemaless.ops.jobs.kind import JobKind, RunOptions
from schemaless.ops.move import sql
from schemaless.ops.move.checks import obstacle
from schemaless.ops.move.compare import Leftovers
from schemaless.ops.move.fence import index_tables, session, side_of, take_locks
from schemaless.ops.move.record import MoveRecord, Records
from schemaless.ops.move.spec import BEFORE_COMMIT, MoveSpec
from schemaless.ops.move.steps import work
from schemaless.planning.sampling.table_sizes import TableSize, disk_space_of, shard_table_sizes, table_weights
from schemaless.schema.sql import drop_database, show_tables
from schemaless.store.datastore import Datastore
from schemaless.store.internals import internals_of
from schemaless.topology.replication import is_same_server
from schemaless.topology.sql import moving
from schemaless.wire.connection import Connection
from schemaless.wire.errors import DatabaseMissing
from schemaless.wire.node import Node

ASSUMED_BYTES_PER_S: Final = Interval(5e6, 14e6, 40e6)
"""Copy rate in table bytes per second, assumed until the rate of a move has been measured."""

_SPREAD: Final = 2.0
_JOBS_MEASURED: Final = 5


def _refuse(store: Datastore, spec: MoveSpec, shards: Sequence[int]) -> None:
    """Refuse a new job if any shard cannot be moved; shards of unfinished jobs are reported as a conflict instead.

    Raises:
        MoveRefused: some of the shards cannot be moved.
    """
    busy = JobStore(store).exclusive()
    refused = [
        shard_plan
        for shard_plan in plan(store, spec, shards)
        if shard_plan.refusal is not None and shard_plan.shard not in busy
    ]
    if not refused:
        return
    first, others = refused[0], len(refused) - 1
    more = f"; {counted(others, 'more shard')} cannot be moved either" if others else ""
    step = ", which 'schemaless shards plan' prints" if first.grants else ""
    raise MoveRefused(f"shard {first.shard} cannot be moved to {spec.target}: {first.refusal}{step}{more}")


MOVE: Final = JobKind(
    "move",
    MoveSpec,
    table_weights,
    work,
    _refuse,
    covers=lambda begun, asked: asked.drain is not None and begun.drain == asked.drain,
    reaches=lambda spec: (spec.target,),
)


@dataclass(frozen=True, slots=True)
class ShardPlan:
    """Prediction of one shard's move.

    Attributes:
        shard: number of the shard.
        source: the cluster that has the shard.
        target: the cluster that it would move to.
        size: size of its table file on the source.
        seconds: predicted duration of the copy on otherwise idle servers.
        free_bytes: free space on the target's disk; None if unknown.
        refusal: why the shard cannot be moved, or None.
        grants: GRANT statements to run on the target first.
    """

    shard: int
    source: str
    target: str
    size: TableSize
    seconds: Interval
    free_bytes: int | None
    refusal: str | None
    grants: tuple[str, ...] = ()


def plan(
    store: Datastore, spec: MoveSpec, shards: Iterable[int], *, listener: Listener = ignore_events
) -> list[ShardPlan]:
    """Predict the move of each shard, without changing anything.

    Args:
        store: the datastore.
        spec: options of the move.
        shards: numbers of the shards.
        listener: receives one event per shard.

    Raises:
        InvalidInput: a shard or the target cluster does not exist.
        ServerError: a server cannot be reached.
    """
    internals = internals_of(store)
    internals.shards.router.again(internals.shards.routing)
    chosen = internals.chosen_shards(shards)
    node = internals.topology.cluster(spec.target).primary
    for cluster in dict.fromkeys(internals.topology.cluster_of(shard) for shard in chosen):
        pools = internals.shards.pool_for(cluster.primary), internals.shards.pool_for(node)
        if cluster.name != spec.target and is_same_server(*pools):
            raise InvalidInput(f"{cluster.name} and {spec.target} are the same server under two addresses")
    sizes, speed, busy = shard_table_sizes(store, chosen), _speed(store), JobStore(store).exclusive()
    space = disk_space_of(internals.shards.pool_for(node), heartbeat_database(store.name))
    free_bytes, kept_free = None if space is None else space.free_bytes, spec.thresholds.min_free_bytes or 0
    needed = 0
    plans = []
    with session(internals.shards, node, chosen[0]) as at_target:
        for shard in chosen:
            refusal, grants = _check_shard(store, shard, spec, at_target)
            size = sizes.get(shard, TableSize(0, 0))
            if refusal is None and shard in busy:
                refusal = f"job {busy[shard]} has not finished with it"
            if refusal is None:
                needed += size.file_bytes
                if free_bytes is not None and needed + kept_free > free_bytes:
                    refusal = (
                        f"the disk of {node} is too small for this shard and those before it: they need {needed:,} "
                        f"bytes, but only {free_bytes:,} are free, of which {kept_free:,} (--min-free) are kept"
                    )
            seconds = Interval(*(size.file_bytes / rate for rate in (speed.high, speed.mid, speed.low)))
            source = internals.topology.cluster_of(shard).name
            plans.append(ShardPlan(shard, source, spec.target, size, seconds, free_bytes, refusal, tuple(grants)))
            listener(Advanced())
    return plans


def _check_shard(store: Datastore, shard: int, spec: MoveSpec, at_target: Connection) -> tuple[str | None, list[str]]:
    internals = internals_of(store)
    source = internals.topology.cluster_of(shard)
    if source.name == spec.target:
        return f"it is already on {spec.target}", []
    with session(internals.shards, source.primary, shard) as at_source:
        return obstacle(internals, shard, spec, at_source, at_target)


def _speed(store: Datastore) -> Interval:
    """Return the copy rate of recent moves in body bytes per second, or else the assumed rate in table bytes."""
    job_store = JobStore(store)
    states = [state for job in job_store.jobs("move")[-_JOBS_MEASURED:] for state in job_store.shards(job.job_id)]
    size, took_s = sum(state.bytes_before for state in states), sum(state.busy_s for state in states)
    if not size or not took_s:
        return ASSUMED_BYTES_PER_S
    return Interval(size / took_s / _SPREAD, size / took_s, size / took_s * _SPREAD)


def run(store: Datastore, spec: MoveSpec, shards: Iterable[int], **how: Unpack[RunOptions]) -> list[MoveRecord]:
    """Move shards in a job: start one, or continue the unfinished job for the same move.

    Readers, writers and followers keep running. After an interruption, repeating the call continues the work.

    Args:
        store: the datastore; its account needs the role ``move``.
        spec: target and options of the move.
        shards: numbers of the shards.
        how: see ``RunOptions``.

    Returns:
        The record of each shard's move.

    Raises:
        MoveRefused: a shard cannot be moved now; shards that have moved stay on the target.
        SchemalessError: as for ``JobKind.run``.
    """
    ended = MOVE.run(store, spec, shards, **how)
    return patiently(store, lambda: Records(store).all(ended.job_id))


def abort(store: Datastore, move: Job, *, uncompared: bool = False, **how: Unpack[RunOptions]) -> list[MoveRecord]:
    """Abort a move: shards that have not been cut over stay on their source, and their copies are dropped.

    A shard past its commit point stays on the target. After an interruption, repeating the call continues the work.

    Args:
        store: the datastore; its account needs the role ``move``.
        move: the job to abort.
        uncompared: whether to skip the verification of moved shards whose source cannot be reached.
        how: see ``RunOptions``.

    Returns:
        The record of each shard's move.

    Raises:
        JobConflict: the job has already ended.
        MoveRefused: ``uncompared`` is set, but a moved shard's source can be reached.
        SchemalessError: a server failed.
    """
    job_store, records = JobStore(store), Records(store)
    job_id = move.job_id
    move.check_kind("move")
    outcomes = records.all(job_id)
    if move.state in ("done", "cancelled") and outcomes and all(record.phase == "aborted" for record in outcomes):
        # A previous call was interrupted after its last shard.
        job_store.change_state(job_id, ("done",), "cancelled", f"by {who()}")
        return outcomes
    if not move.unfinished:
        raise JobConflict(f"job {job_id} is {move.state}; only a running or paused job can be aborted")
    spec, topology = MoveSpec.of(move), internals_of(store).topology
    for shard in job_store.numbers(job_id):
        records.begin(job_id, shard, topology.cluster_of(shard).name, spec.target)
        records.note_outcome(job_id, shard, BEFORE_COMMIT, {"phase": "aborting"})
    if uncompared:
        for record in records.all(job_id):
            if record.phase == "moved":
                _skip_verification(store, record)
    job_store.change_state(job_id, ("paused",), "running", f"resumed to abort the move, by {who()}")
    how["job"] = job_store.job(job_id)
    MOVE.run(store, spec, **how)
    outcomes = records.all(job_id)
    if not any(record.phase in ("moved", "verified", "dropped") for record in outcomes):
        job_store.change_state(job_id, ("done",), "cancelled", f"by {who()}")
    return outcomes


def _skip_verification(store: Datastore, record: MoveRecord) -> None:
    internals = internals_of(store)
    node = internals.topology.cluster(record.source).primary
    try:
        with session(internals.shards, node, record.shard):
            pass
    except ServerUnavailable:
        # The leftovers are lost with their server.
        Records(store).note_outcome(record.job_id, record.shard, ("moved",), {"phase": "dropped"})
    else:
        raise MoveRefused(
            f"shard {record.shard} can be compared with its leftovers, because {node} can be reached; run the same "
            "command without --uncompared"
        )


def left_behind(store: Datastore, shards: Iterable[int] | None = None) -> list[Leftovers]:
    """Return the leftovers of all moves, or only of the moves of some shards.

    Raises:
        ServerError: a server cannot be reached.
    """
    internals = internals_of(store)
    chosen = set(internals.chosen_shards(shards))
    internals.shards.router.again(internals.shards.routing)
    leftovers = []
    for record in Records(store).all():
        if record.shard not in chosen or record.phase not in ("moved", "verified"):
            continue
        node = internals.topology.cluster(record.source).primary
        with session(internals.shards, node, record.shard) as connection:
            leftovers.append(_read_leftovers(store, record, node, connection))
    return leftovers


def _read_leftovers(store: Datastore, record: MoveRecord, node: Node, connection: Connection) -> Leftovers:
    internals = internals_of(store)
    database = internals.shards.database(record.shard)
    side = side_of(connection, database)
    # Only the tables of this move; the cell table is last, so that its rows can be counted until it is dropped.
    of_move = [(table, moving.moved(table, record.token or "")) for table in (*index_tables(side.moved), *sql.FENCED)]
    tables = tuple(name for table, name in of_move if name in side.moved.get(table, ()))
    cells = moving.moved("cell", record.token or "")
    counts = [int(connection.rows(sql.count_rows(database, name))[0][0]) for name in tables if name == cells]
    refusal = None
    if record.phase == "moved":
        refusal = f"the moved shard has not been compared with its leftovers yet; job {record.job_id} has not finished"
    elif side.has_cell or internals.topology.cluster_of(record.shard).name == record.source:
        refusal = f"the shard is on {node} again"
    elif counts and counts != [record.fence_rows]:
        refusal = f"its leftovers have {counted(counts[0], 'cell')}, but {record.fence_rows:,} were compared"
    return Leftovers(record, node, tables, sum(counts), refusal)


def drop(store: Datastore, left: Leftovers, *, listener: Listener = ignore_events) -> None:
    """Drop a move's leftovers, and then the shard's old database if nothing else is in it.

    Repeats the checks under the movers' locks, and drops the tables in the session that holds the locks: a mover that
    moves the shard back kills that session first. After an interruption, repeating the call continues the work.

    Args:
        store: the datastore; its account needs the role ``move``.
        left: the leftovers.
        listener: receives one event when they are dropped.

    Raises:
        MoveRefused: the tables must not be dropped.
        ServerError: the server refused or failed; repeating the call continues the work.
    """
    record, internals = left.record, internals_of(store)
    database = internals.shards.database(record.shard)
    with session(internals.shards, left.node, record.shard) as connection:
        take_locks(connection, database, record.shard)
        internals.shards.router.again(internals.shards.routing)
        now = _read_leftovers(store, record, left.node, connection)
        if now.refusal is not None:
            raise MoveRefused(f"shard {record.shard}: {now.refusal}; nothing was dropped")
        for name in now.tables:
            connection.execute(sql.drop_table(database, name))
        try:
            rest = {str(row[0]) for row in connection.rows(show_tables(database))}
        except DatabaseMissing:
            # An earlier call dropped the database, and was interrupted before it updated the record.
            rest = None
        if rest is not None and rest <= {"shard_identity", "alembic_version"}:
            connection.execute(drop_database(database))
    Records(store).note_outcome(record.job_id, record.shard, ("verified",), {"phase": "dropped"})
    listener(Advanced())
