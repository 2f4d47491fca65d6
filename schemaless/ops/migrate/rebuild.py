"""Rebuild tables online, one at a time on each server, to return the free space in their files to the disk.

On MySQL, the table is copied at the job's pace (``table_copy.py``). On MariaDB, the server rebuilds it with one ALTER.
On MyRocks, a rebuild is a compaction of the whole server, once per job.

A running ALTER cannot be throttled, and each replica repeats it and lags by its duration; a copy needs one to build its
index. All checks are therefore made before a rebuild starts: free disk space, predicted duration, and whether the
replicas have caught up with the previous rebuild.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Unpack

from schemaless.base.events import Advanced, Listener, ignore_events
from schemaless.base.numbers import Interval
from schemaless.errors import AccessDenied, InvalidInput, ServerRefused
from schemaless.ops.jobs.driver import patiently
from schemaless.ops.jobs.job import Job
from schemaless.ops.jobs.job_store import JobStore
from schemaless.ops.jobs.kind import JobKind, JobSpec, RunOptions
from schemaless.ops.jobs.runner import ShardRun
from schemaless.ops.migrate.sql import SELECT_REBUILD_SETTINGS, SELECT_TEMPORARY_FOLDER
from schemaless.ops.migrate.table_alter import NotRebuilt, TableAlter
from schemaless.ops.migrate.table_copy import TableCopy
from schemaless.planning.sampling.sizing import PredictedSize, predict
from schemaless.planning.sampling.table_sizes import (
    TableSize,
    disk_space_of,
    layout_of,
    rebuild_log_bytes,
    shard_table_sizes,
)
from schemaless.schema.engines import INNODB, ROCKSDB, engine_of_cells
from schemaless.schema.sql import COMPACT
from schemaless.store.datastore import Datastore
from schemaless.store.internals import internals_of
from schemaless.wire.connection import Connection
from schemaless.wire.node import Node
from schemaless.wire.parallel import on_servers
from schemaless.wire.pool import PoolOptions
from schemaless.wire.sql.sessions import take_lock

ASSUMED_BYTES_PER_S: Final = Interval(10e6, 40e6, 200e6)
"""Assumed rebuild speed until a cluster has measurements: bytes of the larger of old and new file, per second."""

MOST_LAG_S: Final = 366 * 86_400
"""Upper limit of ``RebuildSpec.max_rebuild_lag_s``, in seconds."""

MOST_FREE_BYTES: Final = 2**63 - 1
"""Upper limit of ``RebuildSpec.free_bytes``."""

MOST_TRIES: Final = 3_600
"""Upper limit of ``RebuildSpec.lock_wait_s``, in seconds, and of ``RebuildSpec.attempts``."""

_SPREAD: Final = 1.5
"""Factor by which a rebuild may be slower or faster than the measured ones."""

_JOBS_MEASURED: Final = 5
_BYTES: Final = "rebuilt_bytes"
_SECONDS: Final = "rebuild_s"
_LAG_SECONDS: Final = "rebuild_lag_s"
_STATEMENT_S: Final = 7 * 24 * 3600.0
_COMPACTED: Final = "compacted"
_LOCK_POLL_S: Final = 1.0
_TEMPORARY_FOLDER_FULL: Final = 1878
_NEEDED_PER_CELL: Final = 64
"""Disk space for sorting the unique key, in bytes per cell."""


@dataclass(frozen=True, slots=True)
class RebuildSpec(JobSpec):
    """The parameters of a rebuild, stored with its job.

    Attributes:
        max_rebuild_lag_s: skip a shard of a cluster with replicas if its rebuild may take longer than this, in seconds.
        free_bytes: free disk space of each server according to the operator, used where it cannot be determined.
        lock_wait_s: time that the rebuild waits for transactions that use the table, in seconds. New writers queue up
            while it waits.
        attempts: maximum number of attempts per shard.
    """

    max_rebuild_lag_s: float = 600.0
    free_bytes: int | None = None
    lock_wait_s: int = 2
    attempts: int = 30

    def __post_init__(self) -> None:
        if not 0 < self.max_rebuild_lag_s <= MOST_LAG_S:
            raise InvalidInput(
                f"max_rebuild_lag_s must be above 0 seconds and at most {MOST_LAG_S:,}, got {self.max_rebuild_lag_s!r}"
            )
        if self.free_bytes is not None and not 0 <= self.free_bytes <= MOST_FREE_BYTES:
            raise InvalidInput(f"free_bytes must be from 0 to {MOST_FREE_BYTES:,}, got {self.free_bytes!r}")
        for name in ("lock_wait_s", "attempts"):
            value = getattr(self, name)
            if type(value) is not int or not 1 <= value <= MOST_TRIES:
                raise InvalidInput(f"{name} must be an integer from 1 to {MOST_TRIES:,}, got {value!r}")


@dataclass(frozen=True, slots=True)
class RebuildPlan:
    """Predicted cost and gain of rebuilding a shard.

    Attributes:
        shard: shard number.
        cluster: name of the cluster.
        replicas: number of the cluster's replicas.
        size: current file size.
        prediction: predicted file size.
        seconds: predicted duration in seconds.
        lag_s: predicted lag of the replicas, in seconds.
        needed_bytes: free disk space needed during the rebuild.
        free_bytes: free disk space; None if unknown.
        refusal: why the shard would be skipped, or None.
    """

    shard: int
    cluster: str
    replicas: int
    size: TableSize
    prediction: PredictedSize
    seconds: Interval
    lag_s: Interval
    needed_bytes: float
    free_bytes: int | None
    refusal: str | None


def plan_rebuild(
    store: Datastore,
    spec: RebuildSpec,
    shards: Iterable[int] | None = None,
    *,
    seed: int | None = None,
    listener: Listener = ignore_events,
) -> list[RebuildPlan]:
    """Predict the cost and the gain of rebuilding each shard, without changing anything.

    Args:
        store: the datastore.
        spec: parameters of the rebuild.
        shards: shard numbers, all by default.
        seed: seed of the samples; taken from the clock by default.
        listener: receives the progress, in shards.

    Returns:
        A plan for each shard, in the order of ``shards``.

    Raises:
        InvalidInput: a shard does not exist, or a server's page size is not supported.
        ServerError: a server cannot be reached.
    """
    chosen = internals_of(store).chosen_shards(shards)
    seed = time.time_ns() % 1_000_000 if seed is None else seed
    speeds = _speeds(JobStore(store))
    plans = {}
    by_server = [(internals_of(store).topology.cluster_of(shard).primary, shard) for shard in chosen]
    for plan in on_servers(by_server, lambda shard: _plan_shard(store, shard, spec, speeds, seed)):
        plans[plan.shard] = plan
        listener(Advanced())
    return [plans[shard] for shard in chosen]


_Speeds = Mapping[tuple[str, str], Interval]
"""Speeds of rebuilds and of replicas, by cluster and name of the measured duration, in bytes per second."""


def _speeds(job_store: JobStore) -> _Speeds:
    """Return the speeds of recent rebuilds."""
    sums: defaultdict[tuple[str, str], float] = defaultdict(float)
    for job in job_store.jobs("rebuild")[-_JOBS_MEASURED:]:
        for state in job_store.clusters(job.job_id):
            for name in (_BYTES, _SECONDS, _LAG_SECONDS):
                sums[state.cluster, name] += state.measures.get(name, 0)
    means = {(cluster, name): sums[cluster, _BYTES] / took for (cluster, name), took in [*sums.items()] if took}
    return {key: Interval(mean / _SPREAD, mean, mean * _SPREAD) for key, mean in means.items()}


def _plan_shard(store: Datastore, shard: int, spec: RebuildSpec, speeds: _Speeds, seed: int) -> RebuildPlan:
    internals = internals_of(store)
    cluster = internals.topology.cluster_of(shard)
    pool = internals.shards.pool_for(cluster.primary)
    database = internals.shards.database(shard)
    size = shard_table_sizes(store, [shard]).get(shard, TableSize(0, 0))
    prediction = predict(store, shard, layout_of(pool, cluster.engine), seed)
    work = max(size.file_bytes, prediction.file_bytes.high)
    of_cluster = (speeds.get((cluster.name, name), ASSUMED_BYTES_PER_S) for name in (_SECONDS, _LAG_SECONDS))
    seconds, lag_s = (Interval(work / speed.high, work / speed.mid, work / speed.low) for speed in of_cluster)
    own_file, logged = pool.run(lambda connection: connection.rows(SELECT_REBUILD_SETTINGS)[0])
    needed = prediction.file_bytes.high + _NEEDED_PER_CELL * prediction.cells.high
    if pool.run(lambda connection: connection.is_mariadb):
        # The log of concurrent writes.
        needed += rebuild_log_bytes(pool)
    elif int(logged):
        # The binary log, which receives all copied cells.
        needed += prediction.body_bytes.high
    disk = disk_space_of(pool, database)
    free = spec.free_bytes if disk is None else disk.free_bytes
    kept_free = spec.thresholds.min_free_bytes or 0
    refusal = None
    if cluster.engine == INNODB.name and not int(own_file):
        refusal = (
            f"innodb_file_per_table is OFF on {cluster.primary}: a rebuilt table might be stored in the shared system "
            "tablespace, whose file never shrinks; set the variable to ON there, then run the rebuild again"
        )
    elif free is not None and needed + kept_free > free:
        refusal = (
            f"its rebuild may need {needed / 1e6:,.0f} MB, but the disk of {cluster.primary} has {free / 1e6:,.0f} MB "
            f"free, of which {kept_free / 1e6:,.0f} MB (--min-free) are kept; free some space, then run the rebuild "
            "again"
        )
    elif cluster.replicas and cluster.engine == INNODB.name and lag_s.high > spec.max_rebuild_lag_s:
        refusal = (
            f"its rebuild may make the replicas of {cluster.name} lag by {lag_s.high:,.0f} s, which exceeds the "
            f"limit of {spec.max_rebuild_lag_s:g} s; raise the limit with --max-rebuild-lag"
        )
    return RebuildPlan(
        shard, cluster.name, len(cluster.replicas), size, prediction, seconds, lag_s, needed, free, refusal
    )


@dataclass(frozen=True, slots=True)
class ShardRebuilt:
    """Result of the rebuild of a shard.

    Attributes:
        shard: shard number.
        cluster: name of the cluster.
        state: "done", "failed" (the table is unchanged) or "waiting".
        before_bytes: file size before the rebuild.
        after_bytes: file size after the rebuild; None unless ``state`` is "done".
        predicted: predicted file size; None if there was no prediction.
        seconds: duration of the rebuild without the attempts that failed, or None.
        attempts: number of attempts to rebuild the table or, on MySQL, to swap it.
        message: why the shard was skipped, or another remark.
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
        """Relative error of the prediction; positive if it was too high."""
        if self.predicted is None or not self.after_bytes:
            return None
        return self.predicted.mid / self.after_bytes - 1


def weigh_files(store: Datastore, shards: Sequence[int]) -> dict[int, int]:
    """Return the file size of each shard in bytes, but at least 1."""
    sizes = shard_table_sizes(store, shards)
    return {shard: max(1, sizes[shard].file_bytes) if shard in sizes else 1 for shard in shards}


def run(
    store: Datastore, spec: RebuildSpec | None = None, shards: Iterable[int] | None = None, **how: Unpack[RunOptions]
) -> list[ShardRebuilt]:
    """Rebuild shards as a job in the catalog: start a job, or continue an unfinished one with the same spec.

    Applications keep reading and writing. After an interruption, even kill -9 of this process or of a server, each
    table is either unchanged or completely rebuilt, and repeating the call continues the job.

    Args:
        store: the datastore; its account needs the role ``move``.
        spec: parameters of the rebuild.
        shards: shard numbers, all by default.
        how: see ``RunOptions``. More workers than clusters are of no use.

    Returns:
        The result of each shard, including those that earlier runs of the job rebuilt.

    Raises:
        SchemalessError: as for ``JobKind.run``.
    """
    ended = REBUILD.run(store, spec or RebuildSpec(), shards, **how)
    return patiently(store, lambda: outcome_of(store, ended))


def outcome_of(store: Datastore, job: Job) -> list[ShardRebuilt]:
    """Return the result of a job so far."""
    return [
        ShardRebuilt(
            state.shard,
            internals_of(store).topology.cluster_of(state.shard).name,
            state.state,
            state.bytes_before,
            state.bytes_after if state.state == "done" else None,
            Interval(*state.counters["predicted"]) if "predicted" in state.counters else None,
            state.counters.get("seconds"),
            state.counters.get("attempts", 0),
            state.message or state.counters.get("note"),
        )
        for state in JobStore(store).shards(job.job_id)
    ]


def work(store: Datastore, shard_run: ShardRun) -> None:
    """Rebuild one shard; runs in a worker."""
    internals = internals_of(store)
    pool = internals.shards.pools.new_pool(
        internals.topology.cluster_of(shard_run.state.shard).primary,
        PoolOptions(read_timeout_s=_STATEMENT_S, pool_size=1),
    )
    try:
        with pool.connection(shard_run.state.shard) as connection, connection.whole():
            try:
                _ShardWork(store, shard_run, connection).rebuild()
            except NotRebuilt as refused:
                shard_run.checkpoint()
                leases = shard_run.job_store.leases
                leases.release(shard_run.job.job_id, shard_run.state, after="failed", message=str(refused))
            # Closing the session drops its settings and its lock.
            connection.unfinished = True
    finally:
        pool.close()


REBUILD: Final = JobKind("rebuild", RebuildSpec, weigh_files, work)


class _ShardWork:
    def __init__(self, store: Datastore, shard_run: ShardRun, connection: Connection) -> None:
        self._store = store
        self._internals = internals_of(store)
        self._run = shard_run
        self._state = shard_run.state
        self._connection = connection
        self._spec = RebuildSpec.of(shard_run.job)

    def rebuild(self) -> None:
        """Rebuild the table, unless an earlier runner or its server already did.

        Raises:
            NotRebuilt: a check refuses it, or it did not succeed; the table is unchanged.
        """
        shards, shard, counters = self._internals.shards, self._state.shard, self._state.counters
        node = self._internals.topology.cluster_of(shard).primary
        way = (TableAlter if self._connection.is_mariadb else TableCopy)(
            shards, self._run, self._connection, self._spec.attempts, self._spec.lock_wait_s
        )
        self._lock_server()
        # Check the identity of the shard before anything is changed.
        shards.verify(shard, node)
        if way.take_over():
            counters["note"] = "its runner died, but the rebuild was complete"
            self._finish()
            return
        planned = _plan_shard(self._store, shard, self._spec, _speeds(self._run.job_store), time.time_ns() % 1_000_000)
        if planned.refusal is not None:
            raise NotRebuilt(planned.refusal)
        counters["predicted"] = list(planned.prediction.file_bytes)
        self._state.bytes_before = planned.size.file_bytes
        if engine_of_cells(self._connection, shards.database(shard)) is ROCKSDB:
            self._compact(node)
            return
        try:
            took_s, lag_s = way.rebuild()
        except ServerRefused as error:
            if error.code != _TEMPORARY_FOLDER_FULL:
                raise
            folder = self._connection.rows(SELECT_TEMPORARY_FOLDER)[0][0]
            raise NotRebuilt(
                f"the folder {folder} of {node}, in which the rebuild sorts its index, is full ({error.message}). Make "
                f"room for {_NEEDED_PER_CELL * planned.prediction.cells.high / 1e6:,.0f} MB there, or set "
                "innodb_tmpdir to another folder, then run the rebuild again. The table is unchanged"
            ) from error
        counters["seconds"] = round(took_s, 3)
        self._finish()
        most_bytes = max(self._state.bytes_before, self._state.bytes_after)
        self._record({_BYTES: most_bytes, _SECONDS: took_s, _LAG_SECONDS: lag_s})

    def _compact(self, node: Node) -> None:
        """Compact all tables of the server once, when its first shard is due; a single shard cannot be compacted."""
        if self._measures().get(_COMPACTED):
            self._state.counters["note"] = "compacted together with another shard of the server"
        else:
            self._run.gate()
            self._state.counters["attempts"] = self._state.counters.get("attempts", 0) + 1
            self._run.checkpoint()
            began_s = time.monotonic()
            try:
                for statement in COMPACT:
                    self._connection.execute(statement)
            except AccessDenied as denied:
                raise NotRebuilt(
                    f"{denied.message}. MyRocks requires SUPER for a compaction: grant it to the account, or run on "
                    f"{node}: {'; '.join(statement.decode() for statement in COMPACT)}"
                ) from denied
            self._state.counters["seconds"] = round(time.monotonic() - began_s, 3)
            self._record({_COMPACTED: 1})
        self._finish()

    def _lock_server(self) -> None:
        """Wait until no other runner is rebuilding a shard of this datastore on this server.

        The lock belongs to the session. If a client dies, the server keeps its session, and so the lock, until the
        ALTER has ended.
        """
        lock = f"schemaless-rebuild-{self._store.name}"[:64]
        self._run.gate()
        while self._connection.rows(take_lock(lock, 0))[0][0] != 1:
            self._run.pause(_LOCK_POLL_S)

    def _measures(self) -> dict[str, float]:
        states = self._run.job_store.clusters(self._run.job.job_id)
        return next(state.measures for state in states if state.cluster == self._run.cluster)

    def _record(self, more: Mapping[str, float]) -> None:
        """Add to the cluster's measurements; the lock on the server keeps other runners from doing so concurrently."""
        known = self._measures()
        sums = {name: round(known.get(name, 0) + value, 3) for name, value in more.items()}
        self._run.job_store.record_on_cluster(self._run.job.job_id, self._run.cluster, sums)

    def _finish(self) -> None:
        shard = self._state.shard
        size = shard_table_sizes(self._store, [shard]).get(shard, TableSize(0, 0))
        self._state.bytes_after = size.file_bytes
        self._state.counters["allocated_after"] = size.allocated_bytes
        self._run.finish()
