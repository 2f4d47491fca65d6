"""Moves as jobs: begun or joined, planned, aborted, and what they left behind dropped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Unpack

from schemaless.datastore import Datastore
from schemaless.errors import AccessDenied, InvalidInput, JobConflict, MoveRefused, ServerUnavailable
from schemaless.events import Advanced, Listener, nobody
from schemaless.internals import internals_of
from schemaless.jobs.job import Job
from schemaless.jobs.job_store import JobStore
from schemaless.jobs.kind import HowToRun, JobKind
from schemaless.move import sql
from schemaless.move.accounts import lacking_grants
from schemaless.move.fence import index_tables, session, side_of, take_locks
from schemaless.move.record import MoveRecord, Records
from schemaless.move.refusals import refusal_of
from schemaless.move.spec import BEFORE_COMMIT, MoveSpec
from schemaless.move.steps import work
from schemaless.numbers import Interval
from schemaless.runner_names import who
from schemaless.schema.sql import drop_database, show_tables
from schemaless.survey.table_sizes import TableSize, data_lengths, disk_space_of, known_table_sizes
from schemaless.topology.model import Cluster
from schemaless.topology.replication import is_same_server
from schemaless.topology.sql import moving
from schemaless.wire.connection import Connection
from schemaless.wire.errors import DatabaseMissing
from schemaless.wire.node import Node

ASSUMED_BYTES_PER_S: Final = Interval(5e6, 14e6, 40e6)
"""So many bytes of a table are taken to be copied in a second, until a move was measured."""

_SPREAD: Final = 2.0
_JOBS_MEASURED: Final = 5


def _weigh(store: Datastore, shards: Sequence[int]) -> dict[int, int]:
    internals = internals_of(store)
    sizes: dict[int, int] = {}
    for node, names in internals.databases_by_node(shards).items():
        lengths = data_lengths(internals.shards.pool_for(node), list(names))
        sizes |= {shard: max(1, lengths.get(name, 1)) for name, shard in names.items()}
    return sizes


def _check(store: Datastore, spec: MoveSpec, shards: Sequence[int]) -> None:
    target = internals_of(store).topology.cluster(spec.target)
    for cluster in _sources(store, shards, target):
        pools = internals_of(store).shards
        if is_same_server(pools.pool_for(cluster.primary), pools.pool_for(target.primary)):
            raise InvalidInput(f"{cluster.name} and {target.name} are one server, by two addresses")


MOVE: Final = JobKind("move", MoveSpec, _weigh, work, _check, reaches=lambda spec: (spec.target,))


def _sources(store: Datastore, shards: Sequence[int], target: Cluster) -> list[Cluster]:
    topology = internals_of(store).topology
    clusters = {topology.cluster_of(shard).name: topology.cluster_of(shard) for shard in shards}
    return [cluster for cluster in clusters.values() if cluster != target]


@dataclass(frozen=True, slots=True)
class ShardPlan:
    """What moving a shard would take.

    Attributes:
        source: the cluster that it is on.
        size: of its file there.
        seconds: how long its copying may take, with nobody else at work.
        free_bytes: what is free on the target's disk; None where that cannot be seen.
        refusal: why it would not be moved, or None.
        grants: what is to be run on the target first, so that accounts are let in there.
    """

    shard: int
    source: str
    target: str
    size: TableSize
    seconds: Interval
    free_bytes: int | None
    refusal: str | None
    grants: tuple[str, ...] = ()


def plan(store: Datastore, spec: MoveSpec, shards: Iterable[int], *, listener: Listener = nobody) -> list[ShardPlan]:
    """Say what moving each shard would take. Changes nothing.

    Args:
        spec: what would be asked for.
        shards: numbers of the shards.
        listener: told each advance, in shards.

    Raises:
        InvalidInput: there is no such shard or cluster.
        ServerError: a server cannot be reached.
    """
    internals = internals_of(store)
    internals.shards.again(internals.shards.routing)
    chosen = internals.chosen_shards(shards)
    _check(store, spec, chosen)
    node = internals.topology.cluster(spec.target).primary
    sizes, speed, busy = sizes_of(store, chosen), _speed(store), _busy(store)
    space = disk_space_of(internals.shards.pool_for(node), store.name)
    free_bytes = None if space is None else space.free_bytes
    needed = 0
    plans = []
    with session(internals.shards, node, chosen[0]) as at_target:
        for shard in chosen:
            refusal, grants = _looked_at(store, shard, spec, at_target)
            size = sizes.get(shard, TableSize(0, 0))
            if refusal is None and shard in busy:
                refusal = f"job {busy[shard]} has not finished it"
            if refusal is None:
                needed += size.file_bytes
                if free_bytes is not None and needed > free_bytes:
                    refusal = f"it has no room there beside the other shards: {node} has {free_bytes:,} bytes free"
            seconds = Interval(*(size.file_bytes / rate for rate in (speed.high, speed.mid, speed.low)))
            source = internals.topology.cluster_of(shard).name
            plans.append(ShardPlan(shard, source, spec.target, size, seconds, free_bytes, refusal, grants))
            listener(Advanced())
    return plans


def _looked_at(
    store: Datastore, shard: int, spec: MoveSpec, at_target: Connection
) -> tuple[str | None, tuple[str, ...]]:
    """Return why a shard cannot be moved, and what is to be granted first."""
    internals = internals_of(store)
    source = internals.topology.cluster_of(shard)
    if source.name == spec.target:
        return "it is there already", ()
    database = internals.shards.database(shard)
    with session(internals.shards, source.primary, shard) as at_source:
        while True:
            indexes = internals.registry.read()
            sides = side_of(at_source, database), side_of(at_target, database)
            if indexes == internals.registry.read():
                break
        refusal = refusal_of(*sides, database, at_source, at_target, indexes)
        if refusal is not None or not spec.accounts:
            return refusal, ()
        try:
            grants = tuple(lacking_grants(at_source, at_target, database))
        except AccessDenied as error:
            return f"this account cannot see whether its accounts may use it there: {error}", ()
    return (f"its accounts lack {len(grants)} privileges there" if grants else None), grants


def sizes_of(store: Datastore, shards: Sequence[int]) -> dict[int, TableSize]:
    """Return what the files of shards take; those that cannot be seen are absent."""
    internals = internals_of(store)
    sizes: dict[int, TableSize] = {}
    for node, names in internals.databases_by_node(shards).items():
        known = known_table_sizes(internals.shards.pool_for(node), list(names))
        sizes |= {shard: known[name] for name, shard in names.items() if name in known}
    return sizes


def _busy(store: Datastore) -> dict[int, int]:
    """Return the shards that unfinished jobs are not through with, and whose each is."""
    job_store = JobStore(store)
    return {
        state.shard: job.job_id
        for job in job_store.jobs()
        if job.unfinished
        for state in job_store.shards(job.job_id, counters=False)
        if state.state == "waiting"
    }


def _speed(store: Datastore) -> Interval:
    """Return how many bytes of bodies the last moves copied in a second."""
    job_store = JobStore(store)
    states = [state for job in job_store.jobs("move")[-_JOBS_MEASURED:] for state in job_store.shards(job.job_id)]
    size, took_s = sum(state.bytes_before for state in states), sum(state.busy_s for state in states)
    if not size or not took_s:
        return ASSUMED_BYTES_PER_S
    return Interval(size / took_s / _SPREAD, size / took_s, size / took_s * _SPREAD)


def begin_or_join(store: Datastore, spec: MoveSpec, shards: Iterable[int]) -> tuple[Job, bool]:
    """Return a job for this, and whether it is new; see ``JobKind.begin_or_join``.

    Raises:
        MoveRefused: some of the shards cannot be moved; no job was begun.
        JobConflict: another unfinished job is about one of them.
    """
    chosen = internals_of(store).chosen_shards(shards)
    joined = MOVE.same(JobStore(store), spec, chosen)
    if joined is not None:
        return joined, False
    busy = _busy(store)
    refused = [
        shard_plan
        for shard_plan in plan(store, spec, chosen)
        if shard_plan.refusal is not None and shard_plan.shard not in busy
    ]
    if refused:
        others = f"; neither can {len(refused) - 1} others" if len(refused) > 1 else ""
        raise MoveRefused(f"shard {refused[0].shard} cannot be moved to {spec.target}: {refused[0].refusal}{others}")
    return MOVE.begin_or_join(store, spec, chosen)


def run(store: Datastore, spec: MoveSpec, shards: Iterable[int], **how: Unpack[HowToRun]) -> list[MoveRecord]:
    """Move shards, as a job in the catalog: begin one, or go on with the unfinished one that is the same.

    Readers, writers and followers go on. Interrupted anywhere, the same call goes on.

    Args:
        store: the datastore; its account has the role ``move``.
        spec: where to, and how.
        shards: numbers of the shards.
        how: see ``HowToRun``.

    Returns:
        What became of each shard.

    Raises:
        MoveRefused: a shard cannot be moved as things are; those that are moved stay so.
        SchemalessError: as ``JobKind.run``.
    """
    if how.get("job") is None:
        how["job"], how["new"] = begin_or_join(store, spec, shards)
    ended = MOVE.run(store, spec, shards, **how)
    return Records(store).all(ended.job_id)


def abort(store: Datastore, move: Job, *, uncompared: bool = False, **how: Unpack[HowToRun]) -> list[MoveRecord]:
    """End a move for good: shards that have not been cut over stay where they are, and what was copied is dropped.

    A shard that is past its commit point has moved, and stays so. Interrupted anywhere, the same call goes on.

    Args:
        uncompared: whether shards that have moved from a server that cannot be reached are not compared with what they
            left behind there.

    Returns:
        What became of each shard.

    Raises:
        JobConflict: it has ended already.
        MoveRefused: a shard is not to be compared, and the server that it came from can be reached.
        SchemalessError: what a server met.
    """
    job_store, records = JobStore(store), Records(store)
    job_id = move.job_id
    move.check_kind("move")
    if not move.unfinished:
        raise JobConflict(f"job {job_id} is {move.state}; only one that is running or paused can be aborted")
    spec, topology = MoveSpec.of(move), internals_of(store).topology
    for shard in job_store.numbers(job_id):
        records.begin(job_id, shard, topology.cluster_of(shard).name, spec.target)
        records.note_outcome(job_id, shard, BEFORE_COMMIT, {"phase": "aborting"})
    if uncompared:
        for record in records.all(job_id):
            if record.phase == "moved":
                _leave_uncompared(store, record)
    job_store.change_state(job_id, ("paused",), "running", f"to be aborted, by {who()}")
    how["job"] = job_store.job(job_id)
    MOVE.run(store, spec, **how)
    outcomes = records.all(job_id)
    if not any(record.phase in ("moved", "verified", "dropped") for record in outcomes):
        job_store.change_state(job_id, ("done",), "aborted", f"by {who()}")
    return outcomes


def _leave_uncompared(store: Datastore, record: MoveRecord) -> None:
    internals = internals_of(store)
    node = internals.topology.cluster(record.source).primary
    try:
        with session(internals.shards, node, record.shard):
            pass
    except ServerUnavailable:
        # What was left behind is gone with its server.
        Records(store).note_outcome(record.job_id, record.shard, ("moved",), {"phase": "dropped"})
    else:
        raise MoveRefused(
            f"shard {record.shard} can be compared with what it left behind, since {node} can be reached; run the same "
            "command without --uncompared"
        )


@dataclass(frozen=True, slots=True)
class LeftBehind:
    """What a move has left on the cluster that a shard came from.

    Attributes:
        tables: their names.
        cells: how many are in the table of cells.
        refusal: why it is not to be dropped, or None.
    """

    record: MoveRecord
    node: Node
    tables: tuple[str, ...]
    cells: int
    refusal: str | None

    @property
    def has_cells(self) -> bool:
        """Whether its cells are there, in the last of the tables."""
        return bool(self.tables) and self.tables[-1] == moving.moved("cell", self.record.token or "")


def left_behind(store: Datastore, shards: Iterable[int] | None = None) -> list[LeftBehind]:
    """Return what moves have left behind, with why some of it has to stay.

    Raises:
        ServerError: a server cannot be reached.
    """
    internals = internals_of(store)
    chosen = set(internals.chosen_shards(shards))
    internals.shards.again(internals.shards.routing)
    left = []
    for record in Records(store).all():
        if record.shard not in chosen or record.phase not in ("moved", "verified"):
            continue
        node = internals.topology.cluster(record.source).primary
        with session(internals.shards, node, record.shard) as connection:
            left.append(_left_there(store, record, node, connection))
    return left


def _left_there(store: Datastore, record: MoveRecord, node: Node, connection: Connection) -> LeftBehind:
    internals = internals_of(store)
    database = internals.shards.database(record.shard)
    side = side_of(connection, database)
    # Of this move and no other, the cells last: as long as they are there, they are counted.
    of_move = [(table, moving.moved(table, record.token or "")) for table in (*index_tables(side.moved), *sql.FENCED)]
    tables = tuple(name for table, name in of_move if name in side.moved.get(table, ()))
    cells = moving.moved("cell", record.token or "")
    counts = [int(connection.rows(sql.count_rows(database, name))[0][0]) for name in tables if name == cells]
    refusal = None
    if record.phase == "moved":
        refusal = f"it was not compared with the moved shard yet; job {record.job_id} has not finished"
    elif side.has_cell or internals.topology.cluster_of(record.shard).name == record.source:
        refusal = f"the shard is on {node} again"
    elif counts and counts != [record.fence_rows]:
        refusal = f"it has {counts[0]:,} cells, and {record.fence_rows:,} were compared"
    return LeftBehind(record, node, tables, sum(counts), refusal)


def drop(store: Datastore, left: LeftBehind, *, listener: Listener = nobody) -> None:
    """Drop what a move left behind, and the shard's database there where nothing else is in it.

    It looks once more behind the locks of movers, and drops in the session that holds them: whoever moves the shard
    back meanwhile ends that first. Killed anywhere, the same again goes on. The listener is told that one more shard
    is through.

    Raises:
        MoveRefused: it has to stay.
        ServerError: the server refused or failed; the same again goes on.
    """
    record, internals = left.record, internals_of(store)
    database = internals.shards.database(record.shard)
    with session(internals.shards, left.node, record.shard) as connection:
        take_locks(connection, database, record.shard)
        internals.shards.again(internals.shards.routing)
        now = _left_there(store, record, left.node, connection)
        if now.refusal is not None:
            raise MoveRefused(f"shard {record.shard}: {now.refusal}; nothing was dropped")
        for name in now.tables:
            connection.execute(sql.drop_table(database, name))
        try:
            rest = {str(row[0]) for row in connection.rows(show_tables(database))}
        except DatabaseMissing:
            # Whoever was killed before this was noted had dropped it.
            rest = None
        if rest is not None and rest <= {"shard_identity", "alembic_version"}:
            connection.execute(drop_database(database))
    Records(store).note_outcome(record.job_id, record.shard, ("verified",), {"phase": "dropped"})
    listener(Advanced())
