"""Migrations: jobs that re-encode bodies in place, under live traffic, shard by shard.

What is done on a shard is in ``reencode``; the job, its leases and its workers are those of every job.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, replace
from typing import Any

from schemaless.cluster.topology import check_shard
from schemaless.errors import InvalidInput, JobConflict
from schemaless.jobs.job import Job, check_goes_on
from schemaless.jobs.ledger import Ledger
from schemaless.jobs.runner import make_watch
from schemaless.jobs.versions import versions
from schemaless.jobs.workers import GIVE_UP_S, Driver, opening_of, workers
from schemaless.migrate.reclaimed import note_sizes
from schemaless.migrate.reencode import work
from schemaless.migrate.spec import MigrateSpec
from schemaless.migrate.tally import MigrateReport, ShardTally
from schemaless.mysql.binary_log import binary_log, binary_log_point
from schemaless.mysql.connection import Connection
from schemaless.mysql.sql.figures import select_data_lengths
from schemaless.mysql.sql.servers import FRESH_STATISTICS
from schemaless.store.datastore import Datastore


def start(store: Datastore, spec: MigrateSpec, shards: Iterable[int] | None = None) -> tuple[Job, bool]:
    """Return a job for this, and whether it is new: an unfinished one with the same spec and shards is gone on with.

    Raises:
        InvalidInput: there is no such shard, no shard at all, or the dictionary is retired.
        CorruptBody: the dictionary cannot be had.
        JobConflict: another unfinished job is about one of these shards.
    """
    if spec.dictionary is not None:
        store.dictionaries.to_write_with(spec.dictionary)
    numbers = range(store.shard_count) if shards is None else shards
    chosen = sorted({check_shard(shard, store.shard_count) for shard in numbers})
    clusters = {store.topology.cluster_of(shard).name: store.topology.cluster_of(shard) for shard in chosen}
    alone = [name for name, cluster in sorted(clusters.items()) if not cluster.replicas]
    if spec.verify_after == "replica" and alone:
        raise InvalidInput(
            f"the catalog names no replica of {', '.join(alone)} to verify on; add it with "
            "'schemaless topology add-replica', or verify on the primary"
        )
    ledger = Ledger(store.catalog, store.name)
    found = _same(ledger, spec, chosen)
    if found is not None:
        return found, False
    try:
        job = ledger.create("migrate", spec.as_json(), weights_of(store, chosen), clusters, versions(store))
    except JobConflict:
        # Somebody may have begun the same at this moment.
        found = _same(ledger, spec, chosen)
        if found is None:
            raise
        return found, False
    return job, True


def _same(ledger: Ledger, spec: MigrateSpec, shards: list[int]) -> Job | None:
    """Return the unfinished job that is about just this; thresholds are its own, and may be changed."""
    for job in ledger.jobs("migrate"):
        same = job.unfinished and replace(MigrateSpec.from_json(job.spec), thresholds=spec.thresholds) == spec
        if same and [state.shard for state in ledger.shards(job.job_id, counters=False)] == shards:
            return job
    return None


def weights_of(store: Datastore, shards: Iterable[int]) -> dict[int, int]:
    """Return what each shard's table takes, as InnoDB estimates, in bytes: to weigh shards against each other."""
    weights: dict[int, int] = {}
    by_cluster: dict[str, list[int]] = {}
    for shard in shards:
        by_cluster.setdefault(store.topology.cluster_of(shard).name, []).append(shard)
    for members in by_cluster.values():
        for start_at in range(0, len(members), 500):
            part = members[start_at : start_at + 500]
            databases = {store.shards.database(shard): shard for shard in part}
            rows = store.shards.run(
                part[0],
                lambda connection, databases=databases: _data_lengths(connection, databases),  # type: ignore[misc]
            )
            weights |= {databases[str(name)]: int(length or 0) for name, length in rows}
            weights |= {shard: 1 for shard in part if shard not in weights}
    return weights


def _data_lengths(connection: Connection, databases: Iterable[str]) -> tuple[tuple[Any, ...], ...]:
    if not connection.is_mariadb:
        # MySQL would answer with what it has noted up to a day ago.
        connection.ensure(FRESH_STATISTICS)
    return connection.rows(select_data_lengths(databases))


def run(
    store: Datastore,
    spec: MigrateSpec | None = None,
    shards: Iterable[int] | None = None,
    *,
    job: Job | None = None,
    count: int = 1,
    dask: str | None = None,
    give_up_s: float = GIVE_UP_S,
    on_job: Callable[[Job, bool], None] = lambda job, new: None,
    on_turn: Callable[[], None] = lambda: None,
) -> MigrateReport:
    """Re-encode bodies, as a job in the catalog: begin one, or go on with the unfinished one that is the same.

    Each new body is decoded again and compared with what the old one meant, before it replaces it; the replacement
    happens only where the stored bytes are still the ones that were read.

    Args:
        store: the datastore; its account has the role ``migrate``.
        spec: what to do; by default, everything to MessagePack + zlib.
        shards: numbers of the shards; all unless given.
        job: go on with this one instead.
        count: workers: 1 is a thread of this process, more are processes.
        dask: the address of a Dask scheduler, or "local".
        give_up_s: how long a server may be unreachable before the run ends.
        on_job: called with the job, and whether it is new.
        on_turn: called about twice a second.

    Returns:
        What the whole job has done, by all its runs.

    Raises:
        InvalidInput: the job is no migration, or what ``start`` raises.
        JobConflict: another unfinished job is about one of these shards, or the job has ended otherwise.
        ServerError: a server cannot be reached; what was done is kept, and the same call goes on.
    """
    new = False
    if job is None:
        job, new = start(store, spec or MigrateSpec(), shards)
    else:
        check_goes_on(job, "migrate")
    on_job(job, new)
    with workers(count, dask) as hands:
        hands.prepare(opening_of(store))
        if new:
            _measure(store, job, "before")
        ended = Driver(store, job, work, make_watch, give_up_s=give_up_s, on_turn=on_turn).run(hands)
        hands.let_go()
        _measure(store, ended, "after")
    if ended.state == "aborted":
        raise JobConflict(f"job {job.job_id} was aborted: {ended.message}; what it had done stays done", job.job_id)
    return report_of(store, ended)


def _measure(store: Datastore, job: Job, when: str) -> None:
    """Note how far each cluster's binary log is, and how it will be written, and what the shards' files take."""
    full_images = MigrateSpec.from_json(job.spec).full_row_images
    ledger = Ledger(store.catalog, store.name)
    for state in ledger.clusters(job.job_id):
        pool = store.shards.pool_for(store.topology.cluster(state.cluster).primary)
        point = pool.run(binary_log_point)
        measures: dict[str, Any] = {f"binary_log_{when}": point}
        if when == "before":
            log = pool.run(lambda connection: binary_log(connection, full_images=full_images))
            measures["binary_log"] = {**asdict(log), "settings": None}
        ledger.measure_cluster(job.job_id, state.cluster, measures)
    note_sizes(store, job, when)


def report_of(store: Datastore, job: Job) -> MigrateReport:
    """Return what a job has done so far."""
    ledger = Ledger(store.catalog, store.name)
    report = MigrateReport(job.job_id, MigrateSpec.from_json(job.spec).target)
    for state in ledger.shards(job.job_id):
        tally = ShardTally.of(state)
        report.interruptions += tally.interruptions
        report.tallies |= {(state.shard, name): column for name, column in tally.columns.items()}
    report.failures = ledger.failures(job.job_id)
    return report
