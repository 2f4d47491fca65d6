"""Measure a live datastore: sizes and growth, from a bounded number of rows and pages. Writes nothing.

How much is read depends on the number of shards, clusters and days, not on that of the cells. A cluster that cannot be
reached is in the measurement with its problem, and nothing else is said of it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final

from schemaless.capacity.days import grow
from schemaless.capacity.disks import GivenDisk, with_disks
from schemaless.capacity.groups import Part, Taken, take
from schemaless.capacity.measurement import ClusterFiles, DayIntake, Measurement
from schemaless.capacity.sql import SELECT_NOW
from schemaless.datastore import Datastore
from schemaless.errors import InvalidInput, ServerError
from schemaless.events import Advanced, Listener, nobody
from schemaless.internals import internals_of
from schemaless.numbers import Interval, added
from schemaless.survey.page_model import MARIADB, MYSQL
from schemaless.survey.sampling import Bounds
from schemaless.survey.table_sizes import TableSize, disk_space_of, known_table_sizes, layout_of, other_table_sizes
from schemaless.topology.model import Cluster
from schemaless.topology.shards import ReadFrom
from schemaless.wire.parallel import on_servers


@dataclass(frozen=True, slots=True)
class MeasureBounds:
    """How much a measurement reads, at most, about.

    Attributes:
        windows: of neighbouring added_ids, over all shards.
        window_rows: rows that one should have; fewer where bodies are long.
        pages: pages of 16 KiB.
        whole_rows: as many rows, if they have ``pages`` at most, are read as a whole.
        parts: as many shards are each measured on their own; of more, those of a cluster together.
        inverted_share: days are searched for where no more of the cells in the sample are out of order.
        day_shards: days are searched for in so many shards of a cluster; of more, in so many at random.
    """

    windows: int = 768
    window_rows: int = 24
    pages: int = 16_384
    whole_rows: int = 20_000
    parts: int = 64
    inverted_share: float = 0.01
    day_shards: int = 16

    def of_part(self, parts: int) -> Bounds:
        """Return what of it one of so many parts may have."""
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
    listener: Listener = nobody,
) -> Measurement:
    """Measure a datastore.

    Args:
        disks: by cluster, in place of what a server shows of its own; a note says where the two differ.
        seed: of the sample, to draw the same one again; the clock's unless given.
        bounds: how much is read.
        listener: told each advance, in clusters.

    Raises:
        InvalidInput: ``disks`` names a cluster that is not there.
        ServerError: the catalog's server cannot be reached. Other servers may be down: the measurement says it.
    """
    internals = internals_of(store)
    started = time.monotonic()
    check_disks(store, disks or {})
    now = datetime.fromisoformat(internals.catalog.run(lambda connection: str(connection.rows(SELECT_NOW)[0][0])))
    seed = time.time_ns() % 1_000_000 if seed is None else seed
    clusters = [cluster for cluster in internals.topology.clusters if internals.topology.shards_of(cluster.name)]
    by_shard = store.shard_count <= bounds.parts
    of_part = bounds.of_part(store.shard_count if by_shard else len(clusters))
    work = _Work(store, of_part, bounds, by_shard, seed, now, disks or {})
    measured: list[_ClusterTaken] = []
    for done in on_servers([(cluster.primary, cluster) for cluster in clusters], work.measure):
        measured.append(done)
        listener(Advanced())
    measured.sort(key=lambda done: done.space.cluster)
    taken = [part for done in measured for part in done.taken]
    return Measurement(
        taken_at=now.astimezone(UTC),
        datastore=store.name,
        shard_count=store.shard_count,
        groups=tuple(
            sorted(
                (group for part in taken for group in part.groups()),
                key=lambda group: (group.cluster, group.shard or 0, group.column_name, group.codec),
            )
        ),
        growth=tuple(growth for done in measured for growth in done.growth),
        clusters=tuple(done.space for done in measured),
        notes=tuple(_notes(measured)),
        rows_read=sum(done.rows_read for done in measured) + sum(part.rows_read for part in taken),
        pages_read=round(sum(part.pages_read for part in taken)),
        seconds=time.monotonic() - started,
        seed=seed,
    )


def check_disks(store: Datastore, disks: Mapping[str, GivenDisk]) -> None:
    """Refuse disks of clusters that are not there.

    Raises:
        InvalidInput: there is one.
    """
    names = [cluster.name for cluster in internals_of(store).topology.clusters]
    for name in disks:
        if name not in names:
            raise InvalidInput(f"there is no cluster {name!r}; there are {', '.join(names)}")


@dataclass(frozen=True, slots=True)
class _ClusterTaken:
    space: ClusterFiles
    taken: list[Taken]
    growth: list[DayIntake]
    notes: list[str]
    rows_read: int = 0


@dataclass(frozen=True, slots=True)
class _Work:
    store: Datastore
    bounds: Bounds
    whole: MeasureBounds
    by_shard: bool
    seed: int
    now: datetime
    disks: Mapping[str, GivenDisk]

    def measure(self, cluster: Cluster) -> _ClusterTaken:
        """Measure a cluster on a replica, on its primary where there is none that answers, or say why not."""
        tries: list[ReadFrom] = ["replica", "primary"] if cluster.replicas else ["primary"]
        notes: list[str] = []
        problem = ""
        for read_from in tries:
            try:
                done = self._measure(cluster, read_from)
            except ServerError as error:
                problem = str(error)
                notes.append(f"{cluster.name}: its {read_from} could not be read: {problem}")
            else:
                return replace(done, notes=[*notes, *done.notes])
        shards = len(internals_of(self.store).topology.shards_of(cluster.name))
        space = ClusterFiles(cluster.name, str(cluster.primary), "primary", len(cluster.nodes), shards, problem)
        return self._with_disk(_ClusterTaken(space, [], [], notes))

    def _measure(self, cluster: Cluster, read_from: ReadFrom) -> _ClusterTaken:
        shards, numbers = internals_of(self.store).shards, internals_of(self.store).topology.shards_of(cluster.name)
        node = shards.node_of(numbers[0], read_from)
        pool = shards.pool_for(node)
        notes: list[str] = []
        try:
            layout = layout_of(pool)
        except InvalidInput as error:
            layout = MARIADB if pool.run(lambda connection: connection.is_mariadb) else MYSQL
            notes.append(f"{cluster.name}: {error}; allocated bytes are those of such pages all the same")
        databases = [shards.database(shard) for shard in numbers]
        sizes = known_table_sizes(pool, databases)
        files = sum(sizes.values(), TableSize(0, 0))
        # Without PROCESS, a note says already what cannot be seen.
        others = other_table_sizes(pool, databases) if files.measured else {}
        alone = [Part(cluster.name, (number,), number, layout, read_from) for number in numbers]
        parts = alone if self.by_shard else [Part(cluster.name, tuple(numbers), None, layout, read_from)]
        taken = [take(self.store, part, self.bounds, self.seed + part.shards[0], self.now) for part in parts]
        rebuilt = added(part.file_bytes() for part in taken)
        bodies = added(part.body_bytes() for part in taken)
        between = sorted(end - of_bodies for end, of_bodies in zip(rebuilt, bodies, strict=True))
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
            overhead_bytes=Interval(*between),
            shard_files=tuple(
                (shard, sizes[name].file_bytes) for shard, name in zip(numbers, databases, strict=True) if name in sizes
            ),
            other_files=tuple((name, size.file_bytes) for name, size in sorted(others.items())),
        )
        shown = disk_space_of(pool, databases[0])
        if shown is not None:
            space = replace(space, disk_bytes=shown.total_bytes, free_bytes=shown.free_bytes, disk_from="server")
        growth = grow(
            self.store,
            cluster.name,
            taken,
            self.seed,
            self.now,
            inverted_share=self.whole.inverted_share,
            most_shards=self.whole.day_shards,
        )
        return self._with_disk(_ClusterTaken(space, taken, growth.days, [*notes, *growth.notes], growth.rows_read))

    def _with_disk(self, taken: _ClusterTaken) -> _ClusterTaken:
        (space,), notes = with_disks([taken.space], self.disks)
        return replace(taken, space=space, notes=[*taken.notes, *notes])


def _notes(measured: Sequence[_ClusterTaken]) -> list[str]:
    notes = [note for cluster in measured for note in cluster.notes]
    for cluster in measured:
        name = cluster.space.cluster
        damaged = sum(part.sample.count(("damaged",)).mid for part in cluster.taken)
        if damaged:
            notes.append(f"{name}: bodies that do not decode are among those that were tried; run 'schemaless check'")
        undecoded = sorted({name for part in cluster.taken for name in part.undecoded})
        notes += [
            f"{name}: no body of {column} in {codec} could be decoded, so its JSON text is taken to be as long"
            for column, codec in undecoded
        ]
    if not all(cluster.space.file_bytes_measured for cluster in measured if cluster.space.problem is None):
        notes.append(
            "the account may not see files (PROCESS), so their sizes are of InnoDB's statistics, read again, which "
            "leave some MB of each out"
        )
    if not any(part.sample.windows for cluster in measured for part in cluster.taken):
        notes.append("there are no cells")
    elif not any(day.complete for cluster in measured for day in cluster.growth):
        notes.append("no day is complete yet, so growth is not known")
    return notes
