"""The capacity report as one frozen value: measurements, forecasts, scenarios and planning.

``reporting.py`` builds it; ``schemaless.pages`` renders it. Unknown figures are None, and a note says why.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from schemaless.capacity.disk_forecast import DiskForecast
from schemaless.capacity.forecast import Forecast, NoForecast
from schemaless.capacity.measurement import Measurement
from schemaless.capacity.planning import Planning
from schemaless.capacity.rebuilt import Unit
from schemaless.capacity.series import Series
from schemaless.capacity.skew import ShardSize, Skew
from schemaless.capacity.whatif import CodecEffect, Scenario
from schemaless.numbers import Interval, added
from schemaless.survey.column_trials import ColumnTrial
from schemaless.survey.page_model import MYSQL, Layout
from schemaless.survey.recommendation import Choice


@dataclass(frozen=True, slots=True)
class CodecTrials:
    """Results of trying codecs on sampled cells.

    Attributes:
        columns: One trial for each codec and column.
        units: Average cell after a migration, by codec and column.
        disk_per_body: Bytes of a large file per body byte, by column.
        layout: Page layout of the servers.
        files: File lengths after a migration and a rebuild, by cluster and codec, if every body was tried.
    """

    columns: tuple[ColumnTrial, ...]
    units: Mapping[str, Mapping[str, Unit]]
    disk_per_body: Mapping[str, float]
    layout: Layout = MYSQL
    files: Mapping[tuple[str, str], Interval] = field(default_factory=dict)


NO_CODEC_TRIALS: Final = CodecTrials((), {}, {})


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
        measurement: The newest measurement, which sizes come from.
        measured_at: Times of all measurements used, oldest first.
        series: Daily growth by cluster and column.
        disks: Forecast of each disk, in bytes of disk.
        total: Forecast of all disks together.
        too_few: Columns with too few sampled cells to evaluate codecs.
        columns: Forecasts by cluster and column, in body bytes; at most the 40 with the most growth.
        trials: Codecs by column; empty if no cell could be read.
        weights: Bytes of a large file per body byte, by cluster and column.
        choice: The recommended codec and the reasons, or None if nothing was tried.
        codec: The codec to re-encode to: the requested or the recommended one, or None.
        scenarios: What-if scenarios, starting with ``now``.
        planning: Fill thresholds, order dates and costs.
        skew: Distribution of bytes over shards and clusters.
        warnings: Reasons not to rely on the headline figure.
        notes: Caveats to read before using a figure.
        how: How each kind of figure was obtained, and what is assumed: pairs of term and text.
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
    weights: Mapping[tuple[str, str], float]
    choice: Choice | None
    codec: str | None
    scenarios: tuple[Scenario, ...]
    planning: Planning
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
        """The scenario re-encoded to ``codec`` and rebuilt; None without such a codec."""
        return next(
            (scenario for scenario in self.scenarios if self.codec is not None and scenario.name == self.codec), None
        )

    @property
    def shard_sizes(self) -> tuple[ShardSize, ...]:
        """Sizes of the shards: allocated bytes if they were measured one by one, else the lengths of their files."""
        return self.skew.shards or tuple(
            ShardSize(shard, space.cluster, size)
            for space in self.measurement.clusters
            for shard, size in space.shard_files
        )


class CodecTotal(NamedTuple):
    """The cells of a column in a codec, over all clusters."""

    column_name: str
    codec: str
    cells: Interval
    body_bytes: Interval
    allocated_bytes: Interval
    json_bytes: Interval


def stored(measurement: Measurement) -> list[CodecTotal]:
    """Sum the measured groups by column and codec."""
    totals = []
    for column, codec in sorted({(group.column_name, group.codec) for group in measurement.groups}):
        groups = [group for group in measurement.groups if (group.column_name, group.codec) == (column, codec)]
        sizes = [
            added(getattr(group, name) for group in groups)
            for name in ("cells", "body_bytes", "allocated_bytes", "json_bytes")
        ]
        totals.append(CodecTotal(column, codec, *sizes))
    return totals
