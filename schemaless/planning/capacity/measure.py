"""Measure sizes and growth of a live datastore from a bounded number of rows and pages. Writes nothing.

The amount read depends on the number of shards, clusters and days, not on the number of cells. A cluster that cannot be
reached appears in the measurement with its problem and no figures.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final

from schemaless.base.events import Advanced, Listener, ignore_events
from schemaless.base.numbers import Interval, added
from schemaless.base.parts import parts
from schemaless.errors import InvalidInput, ServerError
from schemaless.planning.capacity.codec_trials import with_trials
from schemaless.planning.capacity.days import IntakeByDay, intake_by_day
from schemaless.planning.capacity.disks import GivenDisk, with_disks
from schemaless.planning.capacity.groups import Part, PartSample, sample_part
from schemaless.planning.capacity.history import job_progress
from schemaless.planning.capacity.measurement import ClusterFiles, Measurement
from schemaless.planning.capacity.sql import SELECT_NOW
from schemaless.planning.sampling.page_model import MARIADB, MYSQL
from schemaless.planning.sampling.sampling import Bounds
from schemaless.planning.sampling.table_sizes import (
    TableSize,
    disk_space_of,
    known_table_sizes,
    layout_of,
    other_table_sizes,
)
from schemaless.store.cold.sql import sum_live_files
from schemaless.store.datastore import Datastore
from schemaless.store.internals import internals_of
from schemaless.topology.model import Cluster
from schemaless.topology.shards import ReadFrom
from schemaless.wire.parallel import on_servers

_SHARDS_AT_ONCE: Final = 64


@dataclass(frozen=True, slots=True)
class MeasureBounds:
    """Approximate upper bounds on what a measurement reads.

    Attributes:
        windows: Number of windows of neighbouring added_ids, over all shards.
        window_rows: Target number of rows per window; fewer if bodies are long.
        pages: Number of pages of 16 KiB.
        whole_rows: Maximum number of rows at which all are read, provided that they fit in ``pages``.
        parts: Largest number of shards that are measured one by one; beyond it, the shards of a cluster are measured
            together.
        inverted_share: Maximum share of sampled cells out of order; above it, the ends of days are not searched for by
            added_id.
        day_shards: Maximum number of shards per cluster in which the ends of days are searched for; if there are more,
            a random selection of this size is searched.
    """

    windows: int = 768
    window_rows: int = 24
    pages: int = 16_384
    whole_rows: int = 20_000
    parts: int = 64
    inverted_share: float = 0.01
    day_shards: int = 16

    def of_part(self, parts: int) -> Bounds:
        """Return the bounds for one of ``parts`` parts."""
        return Bounds(
            windows=max(16, self.windows // parts),
            window_rows=self.window_rows,
            sample_bytes=1 << 62,
            whole_rows=self.whole_rows // parts,
            pages=max(1, self.pages // parts),
            round_windows=8,
            probes=8,
            probe_rows=2,
        )


MEASURE_BOUNDS: Final = MeasureBounds()


def measure(
    store: Datastore,
    *,
    disks: Mapping[str, GivenDisk] | None = None,
    seed: int | None = None,
    bounds: MeasureBounds = MEASURE_BOUNDS,
    engines: Collection[str] = (),
    codec: str | None = None,
    trials: bool = True,
    listener: Listener = ignore_events,
) -> Measurement:
    """Measure a datastore, and try every codec on sampled cells.

    Args:
        store: The datastore.
        disks: Disks by cluster that override what the servers report; a note says where they differ.
        seed: Seed of the sample, to draw the same one again; taken from the clock by default.
        bounds: How much to read.
        engines: Other storage engines to try the cells in.
        codec: Codec to try on every cell if the datastore is small; by default the recommended one.
        trials: False to try no codecs.
        listener: Receives progress, in clusters, and each step of the trials.

    Raises:
        InvalidInput: ``disks`` names an unknown cluster.
        ServerError: The catalog's server cannot be reached. Problems with other servers are noted in the measurement.
    """
    internals = internals_of(store)
    started = time.monotonic()
    check_disks(store, disks or {})
    now = datetime.fromisoformat(internals.catalog.run(lambda connection: str(connection.rows(SELECT_NOW)[0][0])))
    progress = {job_id: done for job_id, _, done in job_progress(store, now)}
    seed = time.time_ns() % 1_000_000 if seed is None else seed
    clusters = [cluster for cluster in internals.topology.clusters if internals.topology.shards_of(cluster.name)]
    by_shard = store.shard_count <= bounds.parts
    of_part = bounds.of_part(store.shard_count if by_shard else len(clusters))
    measurer = _Measurer(store, of_part, bounds, by_shard, seed, now)
    measured: list[_ClusterResult] = []
    for result in on_servers([(cluster.primary, cluster) for cluster in clusters], measurer.measure):
        measured.append(result)
        listener(Advanced())
    measured.sort(key=lambda result: result.space.cluster)
    spaces, disk_notes = with_disks([result.space for result in measured], disks or {})
    samples = [part for result in measured for part in result.samples]
    measurement = Measurement(
        taken_at=now.astimezone(UTC),
        datastore=store.name,
        shard_count=store.shard_count,
        groups=tuple(
            sorted(
                (group for part in samples for group in part.groups()),
                key=lambda group: (group.cluster, group.shard or 0, group.column_name, group.codec),
            )
        ),
        growth=tuple(day for result in measured for day in result.intake.days),
        clusters=spaces,
        notes=(*disk_notes, *_notes(measured)),
        rows_read=sum(result.intake.rows_read for result in measured) + sum(part.rows_read for part in samples),
        pages_read=round(sum(part.pages_read for part in samples)),
        seed=seed,
        job_progress=progress,
    )
    if trials:
        measurement = with_trials(store, measurement, seed=seed, engines=engines, codec=codec, listener=listener)
    return replace(measurement, seconds=time.monotonic() - started)


def check_disks(store: Datastore, disks: Mapping[str, GivenDisk]) -> None:
    """Check that every given disk belongs to a known cluster.

    Raises:
        InvalidInput: A disk is given for an unknown cluster.
    """
    names = [cluster.name for cluster in internals_of(store).topology.clusters]
    for name in disks:
        if name not in names:
            raise InvalidInput(
                f"{disks[name].source} names the cluster {name!r}, which does not exist; the clusters are "
                f"{', '.join(names)}"
            )


@dataclass(frozen=True, slots=True)
class _ClusterResult:
    space: ClusterFiles
    samples: list[PartSample]
    intake: IntakeByDay
    notes: list[str]


@dataclass(frozen=True, slots=True)
class _Measurer:
    store: Datastore
    bounds: Bounds
    whole: MeasureBounds
    by_shard: bool
    seed: int
    now: datetime

    def measure(self, cluster: Cluster) -> _ClusterResult:
        """Measure a cluster on a replica, else on its primary; if neither answers, the result contains the error."""
        tries: list[ReadFrom] = ["replica", "primary"] if cluster.replicas else ["primary"]
        notes: list[str] = []
        problem = ""
        for read_from in tries:
            try:
                result = self._measure(cluster, read_from)
            except ServerError as error:
                problem = str(error)
                notes.append(f"{cluster.name}: its {read_from} could not be read: {problem}")
            else:
                return replace(result, notes=[*notes, *result.notes])
        shards = len(internals_of(self.store).topology.shards_of(cluster.name))
        space = ClusterFiles(cluster.name, str(cluster.primary), "primary", len(cluster.nodes), shards, problem)
        return _ClusterResult(space, [], IntakeByDay(), notes)

    def _measure(self, cluster: Cluster, read_from: ReadFrom) -> _ClusterResult:
        shards, numbers = internals_of(self.store).shards, internals_of(self.store).topology.shards_of(cluster.name)
        node = shards.node_of(numbers[0], read_from)
        pool = shards.pool_for(node)
        notes: list[str] = []
        try:
            layout = layout_of(pool, cluster.engine)
        except InvalidInput as error:
            layout = MARIADB if pool.run(lambda connection: connection.is_mariadb) else MYSQL
            notes.append(f"{cluster.name}: {error}; allocated bytes are calculated for the default page size")
        databases = [shards.database(shard) for shard in numbers]
        sizes = known_table_sizes(pool, databases)
        files = sum(sizes.values(), TableSize(0, 0))
        # Without PROCESS these are not visible either, and a note about the missing privilege is added anyway.
        others = other_table_sizes(pool, databases) if files.measured else {}
        alone = [Part(cluster.name, (number,), number, layout, read_from) for number in numbers]
        sampled = alone if self.by_shard else [Part(cluster.name, tuple(numbers), None, layout, read_from)]
        listed = [row for part in parts(databases, _SHARDS_AT_ONCE) for row in pool.rows(sum_live_files(part))]
        cold_files, cold_file_bytes, cold_text_bytes = (sum(map(int, column)) for column in zip(*listed, strict=True))
        samples = [sample_part(self.store, part, self.bounds, self.seed + part.shards[0], self.now) for part in sampled]
        rebuilt = added(part.file_bytes() for part in samples)
        bodies = added(part.body_bytes() for part in samples)
        overhead = sorted(file_end - body_end for file_end, body_end in zip(rebuilt, bodies, strict=True))
        space = ClusterFiles(
            cluster=cluster.name,
            node=str(node),
            read_from=node.role,
            copies=len(cluster.nodes),
            shards=len(numbers),
            file_bytes=files.file_bytes,
            file_allocated_bytes=files.allocated_bytes,
            file_bytes_measured=files.measured,
            rebuilt_bytes=rebuilt,
            overhead_bytes=Interval(*overhead),
            shard_files=tuple(
                (shard, sizes[name].file_bytes) for shard, name in zip(numbers, databases, strict=True) if name in sizes
            ),
            other_files={name: size.file_bytes for name, size in sorted(others.items())},
            cold_files=cold_files,
            cold_file_bytes=cold_file_bytes,
            cold_text_bytes=cold_text_bytes,
        )
        reported = disk_space_of(pool, databases[0])
        if reported is not None:
            space = replace(space, disk_bytes=reported.total_bytes, free_bytes=reported.free_bytes, disk_from="server")
        intake = intake_by_day(
            self.store,
            cluster.name,
            samples,
            self.seed,
            self.now,
            inverted_share=self.whole.inverted_share,
            most_shards=self.whole.day_shards,
        )
        return _ClusterResult(space, samples, intake, [*notes, *intake.notes])


def _notes(measured: Sequence[_ClusterResult]) -> list[str]:
    notes = [note for cluster in measured for note in cluster.notes]
    for cluster in measured:
        name = cluster.space.cluster
        damaged = sum(part.sample.count(("damaged",)).mid for part in cluster.samples)
        if damaged:
            notes.append(f"{name}: some sampled bodies cannot be decoded; run 'schemaless check'")
        undecoded = sorted({name for part in cluster.samples for name in part.undecoded})
        notes += [
            f"{name}: no sampled body of {column} in {codec} could be decoded, so the JSON text of each is assumed to "
            "be as long as its stored body"
            for column, codec in undecoded
        ]
    if not all(cluster.space.file_bytes_measured for cluster in measured if cluster.space.problem is None):
        notes.append(
            "the account lacks the PROCESS privilege and cannot see files, so file sizes come from InnoDB's "
            "statistics, which are a few MB too low for each file"
        )
    if not any(part.sample.windows for cluster in measured for part in cluster.samples):
        notes.append("there are no cells")
    elif not any(day.complete for cluster in measured for day in cluster.intake.days):
        notes.append("no day is complete yet, so the growth is unknown")
    return notes
