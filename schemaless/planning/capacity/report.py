"""The capacity report as one frozen value: its basis, and the forecasts, scenarios and planning calculated from it.

``reporting.py`` builds it; ``schemaless.ui.pages`` renders it. Unknown figures are None, and a note says why.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from schemaless.base.numbers import Interval, added
from schemaless.codec.envelope import COLD
from schemaless.planning.capacity.basis import Basis, ColumnForecast, DiskForecast
from schemaless.planning.capacity.options import NOTHING
from schemaless.planning.capacity.planning import Comparison, Planning, Saving
from schemaless.planning.capacity.skew import ShardSize, Skew, file_sizes
from schemaless.planning.capacity.whatif import DiskOutlook, Scenario
from schemaless.planning.sampling.column_trials import plain_name
from schemaless.planning.sampling.recommendation import Choice, Option


@dataclass(frozen=True, slots=True)
class CapacityReport(Basis):
    """How long the disks last, and what would change that.

    Attributes:
        made_at: Time of the report, UTC.
        total: Forecast of all disks together.
        columns: Forecasts by cluster and column, in body bytes; at most the 40 with the most growth.
        choice: The recommended codec and the reasons, or None if nothing was tried.
        codec: The codec to re-encode to: the requested or the recommended one, or None.
        scenarios: What-if scenarios, starting with ``now``.
        planning: Fill thresholds, order dates and costs.
        compared: All scenarios but the lost host, by name, with the figures to compare.
        comparisons: ``now`` and the scenarios of the user; without these, ``now`` and re-encoding to ``codec``.
        saving: What re-encoding to ``codec`` saves, or None.
        skew: Distribution of bytes over shards and clusters.
        warnings: Reasons not to rely on the headline figure.
        notes: Caveats to read before using a figure.
        how: Method and assumptions for each kind of figure, as pairs of a term and a text.
    """

    made_at: datetime.datetime
    total: DiskForecast | None
    columns: tuple[ColumnForecast, ...]
    choice: Choice[Option] | None
    codec: str | None
    scenarios: tuple[Scenario, ...]
    planning: Planning
    compared: Mapping[str, Comparison]
    comparisons: tuple[Comparison, ...]
    saving: Saving | None
    skew: Skew
    warnings: tuple[str, ...]
    notes: tuple[str, ...]
    how: tuple[tuple[str, str], ...]

    @property
    def now(self) -> Comparison:
        """The scenario without changes."""
        return self.compared[NOTHING.name]

    @property
    def after(self) -> Comparison | None:
        """The scenario in which cells are re-encoded to ``codec`` and tables rebuilt.

        None if there is no such scenario.
        """
        return self.compared.get(self.codec or "")

    @property
    def compares(self) -> bool:
        """True if the user gave scenarios to compare."""
        return any(comparison.change.name not in ("now", self.codec) for comparison in self.comparisons)

    @property
    def shard_sizes(self) -> tuple[ShardSize, ...]:
        """Sizes of the shards: allocated bytes if they were measured one by one, else the lengths of their files."""
        return self.skew.shards or tuple(file_sizes(self.measurement))


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


@dataclass(frozen=True, slots=True)
class Bar:
    """File bytes of all columns in one codec.

    Attributes:
        name: ``now``, or the name of the codec.
        columns: Bytes that the cells of each column occupy.
        rest: Bytes of the files that no cell occupies.
        total: Length of all files, or of all cells if file lengths are unknown.
    """

    name: str
    columns: Mapping[str, float]
    rest: float
    total: Interval


def bars(report: CapacityReport) -> list[Bar]:
    """Return the bar for now, then one per codec, shortest first; an empty list if there are no cells.

    The file bytes of a column are its body bytes multiplied by the ratio of file bytes to body bytes in a large file.
    For another codec, they are multiplied by the column's ratio in that codec. The rest of the file length is free
    space inside the files; a small file is mostly free space.
    """
    measurement = report.measurement
    columns: dict[str, float] = {}
    for group in measurement.groups:
        name, size = group.column_name, group.body_bytes.mid
        size *= report.weights.get((group.cluster, name), 0.0)
        if group.codec == COLD:  # Its rows keep their size in every codec.
            name, size = f"{name}, cold", group.allocated_bytes.mid
        columns[name] = columns.get(name, 0.0) + size
    if not sum(columns.values()):
        return []
    files = [space.file_bytes for space in measurement.clusters if space.problem is None]
    known = None if None in files else Interval.of(float(sum(size or 0 for size in files)))
    first = _bar("now", columns, known)
    codecs = []
    for scenario in report.scenarios:
        codec = scenario.change.trial
        if codec is None or scenario.name != codec:
            continue
        ratios = {
            trial.column_name: trial.migrated_pages_share.mid
            for trial in report.tried
            if trial.codec in (codec, plain_name(codec))
        }
        # Scale the fitted sizes of the first bar, so that an unchanged column is drawn at the same length in both.
        sizes = {name: size * ratios.get(name, 1.0) for name, size in first.columns.items()}
        codecs.append(_bar(codec, sizes, scenario.file_bytes))
    return [first, *sorted(codecs, key=lambda bar: bar.total.mid)]


def _bar(name: str, columns: Mapping[str, float], files: Interval | None) -> Bar:
    """Fit a bar to the length of the files, if that is known."""
    cells = sum(columns.values())
    if files is None:
        return Bar(name, columns, 0.0, Interval.of(cells))
    fits = min(1.0, files.mid / cells) if cells else 1.0
    sizes = {column: size * fits for column, size in columns.items()}
    return Bar(name, sizes, max(0.0, files.mid - sum(sizes.values())), files)
