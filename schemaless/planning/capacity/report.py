"""The capacity report as one frozen value: measurements, forecasts, scenarios and planning.

``reporting.py`` builds it; ``schemaless.ui.pages`` renders it. Unknown figures are None, and a note says why.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from schemaless.base.numbers import Interval, added
from schemaless.planning.capacity.comparison import Comparison
from schemaless.planning.capacity.disk_forecast import DiskForecast
from schemaless.planning.capacity.engines import EngineEffect
from schemaless.planning.capacity.forecast import Forecast, NoForecast
from schemaless.planning.capacity.measurement import Measurement
from schemaless.planning.capacity.planning import Planning
from schemaless.planning.capacity.series import Series
from schemaless.planning.capacity.skew import ShardSize, Skew
from schemaless.planning.capacity.whatif import CodecEffect, DiskOutlook, Scenario
from schemaless.planning.sampling.recommendation import Choice


@dataclass(frozen=True, slots=True)
class ColumnForecast:
    """Daily body bytes of a column in a cluster: measured and forecast."""

    cluster: str
    column_name: str
    history: tuple[tuple[datetime.date, float], ...]
    forecast: Forecast | NoForecast


@dataclass(frozen=True, slots=True)
class CapacityReport:
    """How long the disks last, and what would change that.

    Attributes:
        made_at: Time of the report, UTC.
        measurement: The newest measurement, from which sizes are taken.
        measured_at: Times of all measurements used, oldest first.
        series: Daily growth by cluster and column.
        disks: Forecast of each disk, in bytes of disk space.
        total: Forecast of all disks together.
        too_few: Columns with too few sampled cells to evaluate codecs.
        columns: Forecasts by cluster and column, in body bytes; at most the 40 with the most growth.
        trials: Effects of codecs by column; empty if no cell could be read.
        engines: Effects of other storage engines by column, alone and with the codec of a scenario; empty if none was
            requested.
        weights: Bytes of a large file per body byte, by cluster and column.
        choice: The recommended codec and the reasons, or None if nothing was tried.
        codec: The codec to re-encode to: the requested or the recommended one, or None.
        scenarios: What-if scenarios, starting with ``now``.
        planning: Fill thresholds, order dates and costs.
        comparisons: ``now`` and the scenarios of the user; without these, ``now`` and re-encoding to ``codec``.
        skew: Distribution of bytes over shards and clusters.
        warnings: Reasons not to rely on the headline figure.
        notes: Caveats to read before using a figure.
        how: Method and assumptions for each kind of figure, as pairs of a term and a text.
    """

    made_at: datetime.datetime
    measurement: Measurement
    measured_at: tuple[datetime.datetime, ...]
    series: tuple[Series, ...]
    disks: tuple[DiskForecast, ...]
    total: DiskForecast | None
    too_few: tuple[str, ...]
    columns: tuple[ColumnForecast, ...]
    trials: tuple[CodecEffect, ...]
    engines: tuple[EngineEffect, ...]
    weights: Mapping[tuple[str, str], float]
    choice: Choice | None
    codec: str | None
    scenarios: tuple[Scenario, ...]
    planning: Planning
    comparisons: tuple[Comparison, ...]
    skew: Skew
    warnings: tuple[str, ...]
    notes: tuple[str, ...]
    how: tuple[tuple[str, str], ...]

    @property
    def now(self) -> Scenario:
        """The scenario without changes."""
        return self.scenarios[0]

    @property
    def after(self) -> Scenario | None:
        """The scenario in which cells are re-encoded to ``codec`` and tables rebuilt.

        None if there is no such scenario.
        """
        return next(
            (scenario for scenario in self.scenarios if self.codec is not None and scenario.name == self.codec), None
        )

    @property
    def compares(self) -> bool:
        """True if the user gave scenarios to compare."""
        return any(comparison.change.name not in ("now", self.codec) for comparison in self.comparisons)

    @property
    def shard_sizes(self) -> tuple[ShardSize, ...]:
        """Sizes of the shards: allocated bytes if they were measured one by one, else the lengths of their files."""
        return self.skew.shards or tuple(
            ShardSize(shard, space.cluster, size)
            for space in self.measurement.clusters
            for shard, size in space.shard_files
        )


class CodecTotal(NamedTuple):
    """Number and size of a column's cells in one codec, over all clusters."""

    column_name: str
    codec: str
    cells: Interval
    body_bytes: Interval
    allocated_bytes: Interval
    json_bytes: Interval


def stored(measurement: Measurement) -> list[CodecTotal]:
    """Sum the measured sizes by column and codec."""
    totals = []
    for column, codec in sorted({(group.column_name, group.codec) for group in measurement.groups}):
        groups = [group for group in measurement.groups if (group.column_name, group.codec) == (column, codec)]
        sizes = [
            added(getattr(group, name) for group in groups)
            for name in ("cells", "body_bytes", "allocated_bytes", "json_bytes")
        ]
        totals.append(CodecTotal(column, codec, *sizes))
    return totals


class DatastoreTotal(NamedTuple):
    """Sizes of one datastore, or of all together; the former add up exactly to the latter.

    Attributes:
        name: Name of the datastore, or None for all.
        cells: Number of cells.
        body_bytes: Length of their bodies.
        file_bytes: Length of the files of one copy, or None if unknown.
        copies_bytes: Length of the files of all copies, or None if unknown.
        bytes_per_day: Daily growth of the files of one copy, averaged over the last four weeks.
        first: The datastore's disk that fills up first, or None if unknown.
    """

    name: str | None
    cells: Interval
    body_bytes: Interval
    file_bytes: int | None
    copies_bytes: int | None
    bytes_per_day: float
    first: DiskOutlook | None


def datastore_totals(report: CapacityReport) -> list[DatastoreTotal]:
    """Return the sizes of each datastore, and their total if there are several."""
    names = report.measurement.datastores
    return [_total_of(report, name) for name in names] + ([_total_of(report, None)] if len(names) > 1 else [])


def _total_of(report: CapacityReport, name: str | None) -> DatastoreTotal:
    measurement = report.measurement

    def belongs(cluster: str) -> bool:
        return name is None or measurement.datastore_of(cluster) == name

    spaces = [space for space in measurement.clusters if belongs(space.cluster)]
    groups = [group for group in measurement.groups if belongs(group.cluster)]
    known = all(space.file_bytes is not None for space in spaces)
    disks = {growth.disk.name for growth in report.disks if any(map(belongs, growth.disk.clusters))}
    return DatastoreTotal(
        name=name,
        cells=added(group.cells for group in groups),
        body_bytes=added(group.body_bytes for group in groups),
        file_bytes=sum(space.file_bytes or 0 for space in spaces) if known else None,
        copies_bytes=sum((space.file_bytes or 0) * space.copies for space in spaces) if known else None,
        bytes_per_day=sum(
            series.bytes_per_day * report.weights.get((series.cluster, series.column_name), 0.0)
            for series in report.series
            if belongs(series.cluster)
        ),
        first=next(
            (outlook for outlook in report.now.worst_first if outlook.disk in disks and outlook.days is not None), None
        ),
    )
