"""Rebuilds shards' tables, online and one at a time on each server, so that their files give back what is free.

A rebuild cannot be slowed down once it runs, and a replica repeats it, lagging by its length. So all care is taken
before it begins: is the disk free enough, how long will it take, have the replicas caught up with the one before.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Unpack

from schemaless.datastore import Datastore
from schemaless.errors import InvalidInput, ServerError, ServerRefused, ServerTimeout
from schemaless.events import Advanced, Listener, nobody
from schemaless.internals import internals_of
from schemaless.jobs.job import Job, ShardState
from schemaless.jobs.job_store import JobStore
from schemaless.jobs.kind import HowToRun, JobKind, JobSpec
from schemaless.jobs.runner import ShardRun
from schemaless.migrate.sql import rebuild_table, select_table_made
from schemaless.numbers import Interval
from schemaless.survey.sizing import PredictedSize, predict
from schemaless.survey.table_sizes import TableSize, disk_space_of, known_table_sizes, layout_of, rebuild_log_bytes
from schemaless.wire.connection import Connection
from schemaless.wire.errors import ConnectionLost, DuplicateKey
from schemaless.wire.node import Node
from schemaless.wire.parallel import on_servers
from schemaless.wire.pool import PoolOptions
from schemaless.wire.sql.sessions import set_session, take_lock

ASSUMED_BYTES_PER_S: Final = Interval(20e6, 60e6, 400e6)
"""So much of the larger of the files before and after is taken for a second, until a rebuild there was measured."""

MOST_LAG_S: Final = 366 * 86_400
"""Upper limit of ``RebuildSpec.max_rebuild_lag_s``, in seconds."""

MOST_FREE_BYTES: Final = 2**63 - 1
"""Upper limit of ``RebuildSpec.free_bytes``."""

MOST_TRIES: Final = 3_600
"""Upper limit of ``RebuildSpec.lock_wait_s``, in seconds, and of ``RebuildSpec.attempts``."""

_SPREAD: Final = 1.5
"""A rebuild may take so many times as long as those measured before, or as short."""

_JOBS_MEASURED: Final = 5
_BYTES: Final = "rebuilt_bytes"
_SECONDS: Final = "rebuild_s"
_STATEMENT_S: Final = 7 * 24 * 3600.0
_TURN_S: Final = 1.0
_MADE_WAIT_S: Final = 0.1
_LONGEST_PAUSE_S: Final = 30.0
_LOG_TOO_SMALL: Final = 1799


@dataclass(frozen=True, slots=True)
class RebuildSpec(JobSpec):
    """What a rebuild is to do; stands in the job.

    Attributes:
        max_rebuild_lag_s: shards of clusters with replicas that may take longer are left alone.
        free_bytes: what the operator says is free on each server's disk, for those where it cannot be seen.
        lock_wait_s: how long the ALTER waits for a transaction that has the table open; every writer waits behind it.
        attempts: how often it is tried again.
    """

    max_rebuild_lag_s: float = 600.0
    free_bytes: int | None = None
    lock_wait_s: int = 2
    attempts: int = 30

    def __post_init__(self) -> None:
        if not 0 < self.max_rebuild_lag_s <= MOST_LAG_S:
            raise InvalidInput(
                f"max_rebuild_lag_s must be seconds, over 0 and at most {MOST_LAG_S:,}, got {self.max_rebuild_lag_s!r}"
            )
        if self.free_bytes is not None and not 0 <= self.free_bytes <= MOST_FREE_BYTES:
            raise InvalidInput(f"free_bytes must be from 0 to {MOST_FREE_BYTES:,}, got {self.free_bytes!r}")
        for name in ("lock_wait_s", "attempts"):
            value = getattr(self, name)
            if type(value) is not int or not 1 <= value <= MOST_TRIES:
                raise InvalidInput(f"{name} must be a whole number from 1 to {MOST_TRIES:,}, got {value!r}")


@dataclass(frozen=True, slots=True)
class RebuildPlan:
    """What rebuilding a shard would take and give.

    Attributes:
        size: of its file now.
        prediction: of what it would be.
        seconds: how long it may take; the replicas of its cluster would lag as long.
        needed_bytes: what has to be free on the disk meanwhile.
        free_bytes: what is; None where that is not known.
        refusal: why it would be left alone, or None.
    """

    shard: int
    cluster: str
    replicas: int
    size: TableSize
    prediction: PredictedSize
    seconds: Interval
    needed_bytes: float
    free_bytes: int | None
    refusal: str | None


def plan_rebuild(
    store: Datastore,
    spec: RebuildSpec,
    shards: Iterable[int] | None = None,
    *,
    seed: int | None = None,
    listener: Listener = nobody,
) -> list[RebuildPlan]:
    """Say what rebuilding each shard would take and give. Changes nothing.

    Args:
        spec: what would be asked for.
        shards: numbers of the shards; all unless given.
        seed: of the samples; the clock's unless given.
        listener: told each advance, in shards.

    Raises:
        InvalidInput: there is no such shard, or a server's page size is not known.
        ServerError: a server cannot be reached.
    """
    chosen = internals_of(store).chosen_shards(shards)
    seed = time.time_ns() % 1_000_000 if seed is None else seed
    speeds = _speeds(JobStore(store))

    def ask(shard: int) -> RebuildPlan:
        return _plan_shard(store, shard, spec, speeds, seed)

    plans = {}
    for plan in on_servers([(internals_of(store).topology.cluster_of(shard).primary, shard) for shard in chosen], ask):
        plans[plan.shard] = plan
        listener(Advanced())
    return [plans[shard] for shard in chosen]


def _plan_shard(
    store: Datastore, shard: int, spec: RebuildSpec, speeds: Mapping[str, Interval], seed: int
) -> RebuildPlan:
    internals = internals_of(store)
    cluster = internals.topology.cluster_of(shard)
    pool = internals.shards.pool_for(cluster.primary)
    database = internals.shards.database(shard)
    size = known_table_sizes(pool, [database]).get(database, TableSize(0, 0))
    prediction = predict(store, shard, layout_of(pool), seed)
    speed = speeds.get(cluster.name, ASSUMED_BYTES_PER_S)
    work = max(size.file_bytes, prediction.file_bytes.high)
    seconds = Interval(work / speed.high, work / speed.mid, work / speed.low)
    # Beside the new file: what is written meanwhile, and the sort of the second index.
    needed = prediction.file_bytes.high + rebuild_log_bytes(pool) + 64 * prediction.cells.high
    disk = disk_space_of(pool, database)
    free = spec.free_bytes if disk is None else disk.free_bytes
    refusal = None
    if free is not None and needed > free:
        refusal = (
            f"its rebuild may need {needed / 1e6:,.0f} MB, and {free / 1e6:,.0f} MB are free on the disk of "
            f"{cluster.primary}; free some and run it again"
        )
    elif cluster.replicas and seconds.high > spec.max_rebuild_lag_s:
        refusal = (
            f"its rebuild may take {seconds.high:,.0f} s, by which the replicas of {cluster.name} would lag, over the "
            f"limit of {spec.max_rebuild_lag_s:g} s; raise it with --max-rebuild-lag"
        )
    return RebuildPlan(shard, cluster.name, len(cluster.replicas), size, prediction, seconds, needed, free, refusal)


def _speeds(job_store: JobStore) -> dict[str, Interval]:
    """Return the bytes a second of each cluster whose last rebuilds were measured."""
    bytes_done: Counter[str] = Counter()
    seconds: Counter[str] = Counter()
    for job in job_store.jobs("rebuild")[-_JOBS_MEASURED:]:
        for state in job_store.clusters(job.job_id):
            bytes_done[state.cluster] += state.measures.get(_BYTES, 0)
            seconds[state.cluster] += state.measures.get(_SECONDS, 0)
    means = {cluster: bytes_done[cluster] / took_s for cluster, took_s in seconds.items() if took_s}
    return {cluster: Interval(mean / _SPREAD, mean, mean * _SPREAD) for cluster, mean in means.items()}


@dataclass(frozen=True, slots=True)
class ShardRebuilt:
    """What became of a shard.

    Attributes:
        state: "done", "failed" (left as it was), or "waiting".
        before_bytes: of its file.
        after_bytes: of its file; None unless done.
        predicted: what was predicted for that; None where nothing was.
        seconds: how long the ALTER took that succeeded, or None.
        attempts: how many ALTERs were begun.
        message: why it was left alone, or what else is to be said.
    """

    shard: int
    cluster: str
    state: str
    before_bytes: int
    after_bytes: int | None
    predicted: Interval | None
    seconds: float | None
    attempts: int
    message: str | None

    @property
    def off(self) -> float | None:
        """By what share the prediction was too high, or too low where negative."""
        if self.predicted is None or not self.after_bytes:
            return None
        return self.predicted.mid / self.after_bytes - 1


def _weigh(store: Datastore, shards: Sequence[int]) -> dict[int, int]:
    """Return the bytes of each shard's file."""
    internals = internals_of(store)
    sizes: dict[int, int] = {}
    for node, names in internals.databases_by_node(shards).items():
        known = known_table_sizes(internals.shards.pool_for(node), list(names))
        sizes |= {shard: max(1, known.get(name, TableSize(1, 1)).file_bytes) for name, shard in names.items()}
    return sizes


def run(
    store: Datastore, spec: RebuildSpec | None = None, shards: Iterable[int] | None = None, **how: Unpack[HowToRun]
) -> list[ShardRebuilt]:
    """Rebuild shards, as a job in the catalog: begin one, or go on with the unfinished one that is the same.

    Readers and writers go on. Interrupted, even by kill -9 of this process or of a server, a table is what it was, or
    rebuilt as a whole; the same call goes on.

    Args:
        store: the datastore; its account has the role ``admin``.
        shards: numbers of the shards; all unless given.
        how: see ``HowToRun``; more workers than there are clusters have nothing to do.

    Returns:
        What became of each shard, by all runs of the job.

    Raises:
        SchemalessError: as ``JobKind.run``.
    """
    return outcome_of(store, REBUILD.run(store, spec or RebuildSpec(), shards, **how))


def outcome_of(store: Datastore, job: Job) -> list[ShardRebuilt]:
    """Return what a job has done so far."""
    return [
        _rebuilt(state, internals_of(store).topology.cluster_of(state.shard).name)
        for state in JobStore(store).shards(job.job_id)
    ]


def _rebuilt(state: ShardState, cluster: str) -> ShardRebuilt:
    noted = state.counters
    predicted = noted.get("predicted")
    return ShardRebuilt(
        state.shard,
        cluster,
        state.state,
        state.bytes_before,
        state.bytes_after if state.state == "done" else None,
        None if predicted is None else Interval(*predicted),
        noted.get("seconds"),
        noted.get("attempts", 0),
        state.message or noted.get("note"),
    )


def work(store: Datastore, shard_run: ShardRun) -> None:
    """Do a job's work on one shard; runs in a worker."""
    internals = internals_of(store)
    pool = internals.shards.new_pool(
        internals.topology.cluster_of(shard_run.state.shard).primary,
        PoolOptions(read_timeout_s=_STATEMENT_S, pool_size=1),
    )
    try:
        with pool.connection(shard_run.state.shard) as connection, connection.whole():
            _ShardWork(store, shard_run, connection).rebuild()
            # What this session has set and locked goes with it.
            connection.unfinished = True
    finally:
        pool.close()


REBUILD: Final = JobKind("rebuild", RebuildSpec, _weigh, work)


class _ShardWork:
    """One shard in the hands of one runner, with a connection of its own."""

    def __init__(self, store: Datastore, shard_run: ShardRun, connection: Connection) -> None:
        self._store = store
        self._internals = internals_of(store)
        self._run = shard_run
        self._state = shard_run.state
        self._connection = connection
        self._database = self._internals.shards.database(shard_run.state.shard)
        self._spec = RebuildSpec.of(shard_run.job)

    def rebuild(self) -> None:
        """Rebuild it, unless that was done already, or is refused."""
        self._take_turn()
        # Its identity is proven before anything is changed.
        self._internals.shards.verify(self._state.shard, self._node)
        noted = self._state.counters
        if "made" in noted and noted["made"] != self._made():
            # The server went on with the ALTER of a runner that ended.
            noted["note"] = "its runner ended while the server rebuilt it"
            self._finish()
            return
        planned = _plan_shard(
            self._store, self._state.shard, self._spec, _speeds(self._run.job_store), time.time_ns() % 1_000_000
        )
        if planned.refusal is not None:
            self._leave(planned.refusal)
            return
        noted |= {
            "predicted": list(planned.prediction.file_bytes),
            "predicted_seconds": list(planned.seconds),
            "free_checked": planned.free_bytes is not None,
            "measured": planned.size.measured,
        }
        self._state.bytes_before = planned.size.file_bytes
        self._connection.execute(set_session({"lock_wait_timeout": self._spec.lock_wait_s}))
        began_s = self._alter()
        if began_s is not None:
            noted["seconds"] = round(time.monotonic() - began_s, 3)
            self._finish()
            self._measure_speed(noted["seconds"])

    @property
    def _node(self) -> Node:
        return self._internals.topology.cluster_of(self._state.shard).primary

    def _take_turn(self) -> None:
        """Wait until no other shard is being rebuilt on this server, by whomever.

        The lock is this session's, and the server keeps a session whose client is gone for as long as its ALTER runs.
        """
        lock = f"schemaless-rebuild-{self._store.name}"[:64]
        self._run.gate()
        while self._connection.rows(take_lock(lock, 0))[0][0] != 1:
            self._run.pause(_TURN_S)

    def _made(self) -> str:
        """Return when the table was made. In whole seconds: within the same one, wait for the next."""
        while True:
            made, lately = self._connection.rows(select_table_made(self._database))[0]
            if not lately:
                return str(made)
            time.sleep(_MADE_WAIT_S)

    def _alter(self) -> float | None:
        """Rebuild the table and return when the ALTER began; None where it was not to be had."""
        noted = self._state.counters
        for attempt in range(1, self._spec.attempts + 1):
            self._run.gate()
            noted["attempts"] = noted.get("attempts", 0) + 1
            noted["made"] = self._made()
            self._run.checkpoint()
            began_s = time.monotonic()
            try:
                self._connection.execute(rebuild_table(self._database))
            except ConnectionLost:
                raise
            except (ServerTimeout, DuplicateKey) as error:
                # A transaction has the table open. Or a writer met a cell that is there already, which on some servers
                # ends a rebuild; neither has changed anything.
                last: ServerError = error
            except ServerRefused as error:
                if error.code != _LOG_TOO_SMALL:
                    raise
                self._leave(
                    f"more was written meanwhile than innodb_online_alter_log_max_size holds ({error.message}); raise "
                    "it there, or run it again when less is written. The table is as it was"
                )
                return None
            else:
                return began_s
            if attempt < self._spec.attempts:
                self._run.pause(min(_LONGEST_PAUSE_S, 2.0 ** min(attempt, 8) / 2))
        self._leave(
            f"{self._spec.attempts} attempts were in vain, the last one: {last.message}; is a transaction open for "
            "long? See performance_schema.metadata_locks. The table is as it was"
        )
        return None

    def _measure_speed(self, took_s: float) -> None:
        """Add to the cluster's measures; nobody else does at this moment, by the turns that are taken."""
        job_id, job_store = self._run.job.job_id, self._run.job_store
        (state,) = (state for state in job_store.clusters(job_id) if state.cluster == self._run.cluster)
        size = max(self._state.bytes_before, self._state.bytes_after)
        measures = {
            _BYTES: state.measures.get(_BYTES, 0) + size,
            _SECONDS: round(state.measures.get(_SECONDS, 0) + took_s, 3),
        }
        job_store.note_on_cluster(job_id, self._run.cluster, measures)

    def _leave(self, why: str) -> None:
        self._run.checkpoint()
        self._run.job_store.release(self._run.job.job_id, self._state, after="failed", message=why)

    def _finish(self) -> None:
        size = known_table_sizes(self._internals.shards.pool_for(self._node), [self._database])[self._database]
        self._state.bytes_after = size.file_bytes
        self._state.counters["allocated_after"] = size.allocated_bytes
        self._run.finish()
