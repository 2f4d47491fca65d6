"""Migrations: jobs that re-encode bodies in place, under live traffic, shard by shard.

What is done on a shard is in ``reencode``; the job, its leases and its workers are those of every job.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any, Final, Unpack

from schemaless.errors import InvalidInput
from schemaless.jobs.job import Job
from schemaless.jobs.kind import HowToRun, JobKind
from schemaless.jobs.ledger import Ledger
from schemaless.migrate.reclaimed import note_sizes
from schemaless.migrate.reencode import work
from schemaless.migrate.spec import MigrateSpec
from schemaless.migrate.tally import MigrateReport, ShardTally
from schemaless.mysql.binary_log import binary_log, binary_log_point
from schemaless.mysql.connection import Connection
from schemaless.mysql.sql.figures import select_data_lengths
from schemaless.mysql.sql.servers import FRESH_STATISTICS
from schemaless.store.datastore import Datastore
from schemaless.store.tools import tools_of


def _check(store: Datastore, spec: MigrateSpec, shards: Sequence[int]) -> None:
    """Refuse what cannot be done.

    Raises:
        InvalidInput: the dictionary is retired, or there is no replica to verify on.
        CorruptBody: the dictionary cannot be had.
    """
    tools = tools_of(store)
    if spec.dictionary is not None:
        tools.dictionaries.to_write_with(spec.dictionary)
    clusters = {tools.topology.cluster_of(shard).name: tools.topology.cluster_of(shard) for shard in shards}
    alone = [name for name, cluster in sorted(clusters.items()) if not cluster.replicas]
    if spec.verify_after == "replica" and alone:
        raise InvalidInput(
            f"the catalog names no replica of {', '.join(alone)} to verify on; add it with "
            "'schemaless topology add-replica', or verify on the primary"
        )


def weights_of(store: Datastore, shards: Iterable[int]) -> dict[int, int]:
    """Return what each shard's table takes, as InnoDB estimates, in bytes: to weigh shards against each other."""
    tools = tools_of(store)
    weights: dict[int, int] = {}
    by_cluster: dict[str, list[int]] = {}
    for shard in shards:
        by_cluster.setdefault(tools.topology.cluster_of(shard).name, []).append(shard)
    for members in by_cluster.values():
        for start_at in range(0, len(members), 500):
            part = members[start_at : start_at + 500]
            databases = {tools.shards.database(shard): shard for shard in part}
            rows = tools.shards.run(
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


def _measure(store: Datastore, job: Job, when: str) -> None:
    """Note how far each cluster's binary log is, and how it will be written, and what the shards' files take."""
    tools = tools_of(store)
    full_images = MigrateSpec.of(job).full_row_images
    ledger = Ledger(store)
    for state in ledger.clusters(job.job_id):
        pool = tools.shards.pool_for(tools.topology.cluster(state.cluster).primary)
        point = pool.run(binary_log_point)
        measures: dict[str, Any] = {f"binary_log_{when}": point}
        if when == "before":
            log = pool.run(lambda connection: binary_log(connection, full_images=full_images))
            measures["binary_log"] = {**asdict(log), "settings": None}
        ledger.measure_cluster(job.job_id, state.cluster, measures)
    note_sizes(store, job, when)


MIGRATE: Final = JobKind(
    "migrate",
    MigrateSpec,
    weights_of,
    work,
    _check,
    before=lambda store, job: _measure(store, job, "before"),
    after=lambda store, job: _measure(store, job, "after"),
)


def run(
    store: Datastore,
    spec: MigrateSpec | None = None,
    shards: Iterable[int] | None = None,
    **how: Unpack[HowToRun],
) -> MigrateReport:
    """Re-encode bodies, as a job in the catalog: begin one, or go on with the unfinished one that is the same.

    Each new body is decoded again and compared with what the old one meant, before it replaces it; the replacement
    happens only where the stored bytes are still the ones that were read.

    Args:
        store: the datastore; its account has the role ``migrate``.
        spec: what to do; by default, everything to MessagePack + zlib.
        shards: numbers of the shards; all unless given.
        how: see ``HowToRun``.

    Returns:
        What the whole job has done, by all its runs.

    Raises:
        SchemalessError: as ``JobKind.run``.
        InvalidInput: the dictionary is retired, or there is no replica to verify on.
        CorruptBody: the dictionary cannot be had.
    """
    return report_of(store, MIGRATE.run(store, spec or MigrateSpec(), shards, **how))


def report_of(store: Datastore, job: Job) -> MigrateReport:
    """Return what a job has done so far."""
    ledger = Ledger(store)
    report = MigrateReport(job.job_id, MigrateSpec.of(job).target)
    for state in ledger.shards(job.job_id):
        tally = ShardTally.of(state)
        report.interruptions += tally.interruptions
        report.tallies |= {(state.shard, name): column for name, column in tally.columns.items()}
    report.failures = ledger.failures(job.job_id)
    return report
