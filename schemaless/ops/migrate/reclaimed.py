"""Report the effect of a migration on space: bodies, files and binary logs, before, after and as predicted.

A run records file sizes and binary log positions in its job when it starts and when it ends; rebuilds record file sizes
too. The report reads only these records, so it needs no server but the catalog's and can be repeated later. A rebuild
also frees what other jobs have made smaller; their bodies are reported, but their share of the files is not known.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from schemaless.base.numbers import Interval, added, bytes_text, summed
from schemaless.ops.jobs.job import ClusterState, Job, Kind, ShardState, job_name
from schemaless.ops.jobs.job_store import JobStore
from schemaless.ops.migrate.plan import plan_migration
from schemaless.ops.migrate.spec import MigrateSpec
from schemaless.ops.migrate.tally import ShardTally, Tally, total_of
from schemaless.planning.sampling.sampling import Bounds
from schemaless.planning.sampling.table_sizes import shard_table_sizes
from schemaless.store.datastore import Datastore
from schemaless.store.internals import internals_of

_PREDICTED: Final = Bounds(windows=64, window_rows=32, sample_bytes=8 << 20, whole_rows=2_000)
"""Bounds of the sample of each cluster from which the effect is predicted."""


_REPLACE_BODIES: Final[tuple[Kind, ...]] = ("erase", "migrate", "recall", "restore", "retain", "tier")
"""Kinds of jobs that replace bodies by smaller or larger ones."""

# Records in the job


def record_sizes(store: Datastore, job: Job, when: str) -> None:
    """Record in a job the file size of each shard.

    Args:
        store: the datastore.
        job: a job.
        when: "before" or "after" the run.

    Raises:
        ServerError: a server cannot be reached.
    """
    job_store = JobStore(store)
    measures = {
        shard: {f"size_{when}": {"file": size.file_bytes, "allocated": size.allocated_bytes, "measured": size.measured}}
        for shard, size in shard_table_sizes(store, job_store.numbers(job.job_id)).items()
    }
    job_store.record_on_shards(job.job_id, measures)


def record_plan(store: Datastore, job: Job) -> None:
    """Record the predicted effect of a new migration in the job, from a small sample of each cluster.

    Args:
        store: the datastore.
        job: a migration that has not started.

    Raises:
        ServerError: a server cannot be reached.
    """
    internals = internals_of(store)
    job_store = JobStore(store)
    spec = MigrateSpec.of(job)
    shards = set(job_store.numbers(job.job_id))
    for cluster in job_store.clusters(job.job_id):
        planned = plan_migration(
            store,
            spec,
            [shard for shard in internals.topology.shards_of(cluster.cluster) if shard in shards],
            seed=time.time_ns() % 1_000_000,
            bounds=_PREDICTED,
        )
        predicted = {
            "cells": _rounded(planned.total.cells),
            "body_before": _rounded(planned.total.bytes_before),
            "body_after": _rounded(planned.total.bytes_after),
            "stored": [
                [stored.column_name, stored.codec, _rounded(stored.cells), _rounded(stored.body_bytes)]
                for stored in planned.stored
            ],
        }
        if planned.binary_log is not None and planned.binary_log.kept:
            full = spec.full_row_images or cluster.cluster in planned.binary_log.grants
            predicted["binary_log"] = _rounded(planned.binary_log.full if full else planned.binary_log.noblob)
        if planned.space is not None:
            predicted["growth"] = _rounded(planned.space.growth)
            predicted["file_rebuilt"] = _rounded(planned.space.rebuilt_after)
        job_store.record_on_cluster(job.job_id, cluster.cluster, {"predicted": predicted})


def _rounded(estimate: Interval) -> list[int]:
    return [round(end) for end in estimate]


# The report


@dataclass(frozen=True, slots=True)
class Stages:
    """Sizes in bytes before the migration, after it, and after a rebuild; None if not measured or not reached yet."""

    before: int | None = None
    after: int | None = None
    rebuilt: int | None = None

    @property
    def last(self) -> int | None:
        """The latest known size."""
        return next((size for size in (self.rebuilt, self.after, self.before) if size is not None), None)


@dataclass(frozen=True, slots=True)
class Part:
    """Figures of a shard, a cluster, or all shards.

    Attributes:
        name: "shard 17", the name of a cluster, or "all".
        cluster: cluster of a shard; empty otherwise.
        shards: number of shards.
        rebuilt_shards: number of shards rebuilt since the migration started.
        tally: re-encoded cells and their body bytes.
        file: file sizes. For several shards, ``rebuilt`` also includes shards that were not rebuilt, at their latest
            known size.
        allocated: disk space allocated by the file system.
        measured: False if the account could not see the actual sizes, so they come from InnoDB's statistics.
    """

    name: str
    cluster: str
    shards: int
    rebuilt_shards: int
    tally: Tally
    file: Stages
    allocated: Stages
    measured: bool


@dataclass(frozen=True, slots=True)
class OtherJob:
    """Bodies that another job replaced in the same shards, before they were rebuilt.

    Attributes:
        job_id: number of the job.
        kind: its kind.
        bytes_before: size of the bodies before.
        bytes_after: size of what replaced them.
    """

    job_id: int
    kind: Kind
    bytes_before: int
    bytes_after: int

    def __str__(self) -> str:
        replaced = f"{bytes_text(self.bytes_before)} by {bytes_text(self.bytes_after)}"
        return f"job {self.job_id} ({job_name(self.kind)}) replaced bodies of {replaced}"


def others_text(others: Iterable[OtherJob]) -> str:
    """Return in words what other jobs have to do with sizes after a rebuild; empty without any."""
    said = "; ".join(map(str, others))
    return (
        f"sizes after a rebuild, and their predictions, include what other jobs did before it: {said}" if said else ""
    )


@dataclass(frozen=True, slots=True)
class Prediction:
    """A predicted figure and its actual value."""

    what: str
    predicted: Interval
    actual: int

    @property
    def off(self) -> float | None:
        """Relative error of the prediction; positive if it was too high."""
        return self.predicted.mid / self.actual - 1 if self.actual else None


@dataclass(frozen=True, slots=True)
class ReclaimedReport:
    """Effect of a migration on space.

    Attributes:
        datastore: name of the datastore.
        job: the migration.
        to: target codec.
        made_at: time of the report, UTC.
        total: figures of all shards.
        clusters: figures by cluster.
        shards: figures by shard.
        columns: re-encoded cells by column_name.
        stored_before: estimated cells and body bytes by column and codec before the migration; empty if not recorded.
        binary_log: bytes that all sessions wrote to each cluster's binary log during the migration; None if unknown.
        predictions: predicted and actual figures.
        others: other jobs that replaced bodies between the start of the migration and the rebuild of a shard.
    """

    datastore: str
    job: Job
    to: str
    made_at: datetime
    total: Part
    clusters: list[Part]
    shards: list[Part]
    columns: dict[str, Tally]
    stored_before: list[tuple[str, str, Interval, Interval]]
    binary_log: dict[str, int | None]
    predictions: list[Prediction] = field(default_factory=list)
    others: list[OtherJob] = field(default_factory=list)

    @property
    def binary_log_bytes(self) -> int | None:
        """Bytes written to all binary logs; None if one is unknown."""
        return _total([*self.binary_log.values()])


def reclaimed_report(store: Datastore, job: Job, made_at: datetime) -> ReclaimedReport:
    """Build the report from the records of a migration and of later rebuilds. Queries only the catalog.

    Args:
        store: the datastore.
        job: a migration.
        made_at: time of the report, UTC.

    Returns:
        The report.
    """
    job_store = JobStore(store)
    states = job_store.shards(job.job_id)
    rebuilds = _rebuilds_after(job_store, job)
    tallies = {state.shard: ShardTally.of(state) for state in states}
    shards = [
        _shard_part(
            state, tallies[state.shard].total(), internals_of(store).topology.cluster_of(state.shard).name, rebuilds
        )
        for state in states
    ]
    clusters = job_store.clusters(job.job_id)
    columns: dict[str, Tally] = {}
    for tally in tallies.values():
        for name, column in tally.columns.items():
            columns.setdefault(name, Tally()).add(column)
    parts = [_sum_of(state.cluster, [part for part in shards if part.cluster == state.cluster]) for state in clusters]
    total = _sum_of("all", shards)
    logs = {state.cluster: state.measures.get("binary_log_bytes") for state in clusters}
    space = ReclaimedReport(
        store.name,
        job,
        MigrateSpec.of(job).to,
        made_at,
        total,
        parts,
        shards,
        dict(sorted(columns.items())),
        _stored(clusters),
        logs,
    )
    space.predictions.extend(_predictions(space, clusters, rebuilds))
    space.others.extend(_others(job_store, job, states, rebuilds))
    return space


def file_sizes(store: Datastore, job: Job) -> Part:
    """Return the total file sizes that a job has recorded, as a ``Part`` with an empty tally."""
    job_store = JobStore(store)
    rebuilds = _rebuilds_after(job_store, job)
    return _sum_of("all", [_shard_part(state, Tally(), "", rebuilds) for state in job_store.shards(job.job_id)])


def others_before_rebuild(store: Datastore, job: Job) -> list[OtherJob]:
    """Return other jobs that replaced bodies between the start of a job and the rebuild of one of its shards."""
    job_store = JobStore(store)
    return [*_others(job_store, job, job_store.shards(job.job_id), _rebuilds_after(job_store, job))]


def _others(
    job_store: JobStore, job: Job, states: Sequence[ShardState], rebuilds: Mapping[int, ShardState]
) -> Iterable[OtherJob]:
    shards = [state.shard for state in states if state.shard in rebuilds]
    for other in job_store.jobs() if shards else ():
        if other.kind not in _REPLACE_BODIES or other.job_id == job.job_id:
            continue
        if other.ended_at is not None and other.ended_at < job.created_at:
            continue
        theirs = {state.shard: state for state in job_store.shards(other.job_id)}
        concerned = [theirs[shard] for shard in shards if shard in theirs and _before(theirs[shard], rebuilds[shard])]
        before, after = (sum(getattr(state, name) for state in concerned) for name in ("bytes_before", "bytes_after"))
        if before or after:
            yield OtherJob(other.job_id, other.kind, before, after)


def _before(state: ShardState, rebuild: ShardState) -> bool:
    """Return whether work on a shard began before its rebuild ended."""
    return state.started_at is not None and (rebuild.ended_at is None or state.started_at < rebuild.ended_at)


def _rebuilds_after(job_store: JobStore, job: Job) -> dict[int, ShardState]:
    """Return the latest completed rebuild of each shard since a job was created."""
    rebuilds: dict[int, ShardState] = {}
    for rebuild in job_store.jobs("rebuild"):
        if rebuild.created_at >= job.created_at:
            done = (state for state in job_store.shards(rebuild.job_id) if state.state == "done")
            rebuilds |= {state.shard: state for state in done}
    return rebuilds


def _shard_part(state: ShardState, tally: Tally, cluster: str, rebuilds: Mapping[int, ShardState]) -> Part:
    before, after, rebuilt = state.measures.get("size_before", {}), state.measures.get("size_after", {}), {}
    if (rebuild := rebuilds.get(state.shard)) is not None:
        rebuilt = {"file": rebuild.bytes_after, "allocated": rebuild.counters.get("allocated_after")}
    file, allocated = (Stages(before.get(size), after.get(size), rebuilt.get(size)) for size in ("file", "allocated"))
    measured = bool(before.get("measured", True) and after.get("measured", True))
    return Part(f"shard {state.shard}", cluster, 1, bool(rebuilt), tally, file, allocated, measured)


def _sum_of(name: str, parts: Sequence[Part]) -> Part:
    return Part(
        name,
        "",
        len(parts),
        sum(part.rebuilt_shards for part in parts),
        total_of(part.tally for part in parts),
        _stages([part.file for part in parts]),
        _stages([part.allocated for part in parts]),
        all(part.measured for part in parts),
    )


def _total(sizes: Sequence[int | None]) -> int | None:
    """Return the sum, or None if a size is unknown or there is none."""
    known = [size for size in sizes if size is not None]
    return sum(known) if known and len(known) == len(sizes) else None


def _stages(stages: Sequence[Stages]) -> Stages:
    rebuilt = any(stage.rebuilt is not None for stage in stages)
    return Stages(
        _total([stage.before for stage in stages]),
        _total([stage.after for stage in stages]),
        _total([stage.last for stage in stages]) if rebuilt else None,
    )


def _stored(clusters: Iterable[ClusterState]) -> list[tuple[str, str, Interval, Interval]]:
    by_codec: dict[tuple[str, str], list[list[list[int]]]] = {}
    for state in clusters:
        for column, codec, *sizes in state.measures.get("predicted", {}).get("stored", ()):
            by_codec.setdefault((column, codec), []).append(sizes)
    return [
        (column, codec, *(added(Interval(*parts[place]) for parts in by_cluster) for place in (0, 1)))  # type: ignore[misc]
        for (column, codec), by_cluster in sorted(by_codec.items())
    ]


def _predictions(
    report: ReclaimedReport, clusters: Sequence[ClusterState], rebuilds: Mapping[int, ShardState]
) -> Iterable[Prediction]:
    """Yield the predictions whose actual value is known."""

    def recorded(name: str) -> Interval | None:
        values = [state.measures.get("predicted", {}).get(name) for state in clusters]
        if not values or None in values:
            return None
        return summed(Interval(*value) for value in values)

    total, job = report.total, report.job
    completed = not job.unfinished and job.state != "cancelled"
    growth = None if total.file.before is None or total.file.after is None else total.file.after - total.file.before
    rebuilt_bytes = total.file.rebuilt if total.rebuilt_shards == total.shards else None
    for what, name, actual in (
        ("cells re-encoded", "cells", total.tally.cells),
        ("body bytes before", "body_before", total.tally.bytes_before),
        ("body bytes after", "body_after", total.tally.bytes_after),
        ("binary log", "binary_log", report.binary_log_bytes),
        ("growth of the files", "growth", growth),
        ("files after a rebuild, predicted before the run", "file_rebuilt", rebuilt_bytes),
    ):
        predicted = recorded(name)
        if completed and predicted is not None and actual is not None:
            yield Prediction(what, predicted, actual)
    shards = {int(part.name.removeprefix("shard ")) for part in report.shards}
    rebuilt = [state for shard, state in sorted(rebuilds.items()) if shard in shards and "predicted" in state.counters]
    if rebuilt:
        yield Prediction(
            "files after a rebuild, predicted just before it",
            summed(Interval(*state.counters["predicted"]) for state in rebuilt),
            sum(state.bytes_after for state in rebuilt),
        )
