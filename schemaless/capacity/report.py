"""How long the disks last, as one frozen value: measurements, forecast and what-if put together.

What cannot be said is absent, and a note says why.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from schemaless.capacity.disks import Disk
from schemaless.capacity.filling import Filling
from schemaless.capacity.forecast import Forecast, NoForecast
from schemaless.capacity.measurement import Measurement
from schemaless.capacity.planning import Planning
from schemaless.capacity.rebuilt import Unit
from schemaless.capacity.series import Series
from schemaless.capacity.skew import ShardSize, Skew
from schemaless.capacity.steps import Rate, Step
from schemaless.capacity.whatif import CodecEffect, Scenario
from schemaless.numbers import Interval, added
from schemaless.survey.column_trials import ColumnTrial
from schemaless.survey.page_model import MYSQL, Layout
from schemaless.survey.recommendation import Choice


@dataclass(frozen=True, slots=True)
class Tried:
    """What trying codecs on sampled cells gave.

    Attributes:
        columns: every codec on every column.
        units: by codec and column, what a cell takes after a migration to it.
        disk_per_body: by column, how many bytes of a large file its cells take for each byte of their bodies.
        layout: how the servers lay pages out.
        files: by cluster and codec, how long files are after a migration and a rebuild, where every body was tried.
    """

    columns: tuple[ColumnTrial, ...]
    units: Mapping[str, Mapping[str, Unit]]
    disk_per_body: Mapping[str, float]
    layout: Layout = MYSQL
    files: Mapping[tuple[str, str], Interval] = field(default_factory=dict)


NOTHING_TRIED: Final = Tried((), {}, {})


@dataclass(frozen=True, slots=True)
class ColumnForecast:
    """Body bytes a day of a column in a cluster: as measured, and as forecast."""

    cluster: str
    column_name: str
    history: tuple[tuple[datetime.date, float], ...]
    forecast: Forecast | NoForecast


@dataclass(frozen=True, slots=True)
class DiskForecast:
    """Bytes that a day takes of a disk: as measured, and as forecast.

    Attributes:
        disk: which.
        history: whole days.
        forecast: of those to come.
        steps: days from which on each brought so many times as much as before.
        rate: of the last weeks, or of those since the last step.
        errors: half the width of each day's interval.
        used: how the disk came to be as full as it is.
    """

    disk: Disk
    history: tuple[tuple[datetime.date, float], ...]
    forecast: Forecast | NoForecast
    steps: tuple[Step, ...] = ()
    rate: Rate | None = None
    errors: tuple[float, ...] = ()
    used: Filling = field(default_factory=Filling)


@dataclass(frozen=True, slots=True)
class CapacityReport:
    """How long the disks last, and what would change it.

    Attributes:
        made_at: UTC.
        measurement: the newest one, which sizes are of.
        measured_at: when all that were used were taken, oldest first.
        series: daily growth by cluster and column.
        disks: forecasts by disk, in bytes of disk.
        total: the same of all disks together.
        too_few: columns of which too few cells were met to say what a codec makes of them.
        columns: forecasts by cluster and column, in body bytes; those that bring most, 40 at most.
        trials: codecs by column; none where no cell could be read.
        weights: by cluster and column, how many bytes of a large file a body byte takes.
        choice: which codec is worth it, and why; None where nothing was tried.
        codec: what a re-encoding would be to: the one that was asked for, or that is worth it; or None.
        scenarios: ``now`` first.
        planning: when each disk is how full, what to order by when, what it costs.
        skew: over shards and clusters.
        warnings: why the headline is not to be relied on, if it is not.
        notes: what a reader has to know before using a figure.
        how: how each kind of figure was obtained, and what is assumed: term and text.
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
        """As it is."""
        return self.scenarios[0]

    @property
    def after(self) -> Scenario | None:
        """After all was re-encoded to ``codec`` and rebuilt; None where there is none to go to."""
        return next(
            (scenario for scenario in self.scenarios if self.codec is not None and scenario.name == self.codec), None
        )

    @property
    def shard_sizes(self) -> tuple[ShardSize, ...]:
        """The shards: by allocated bytes where they were measured one by one, else by the lengths of their files."""
        return self.skew.shards or tuple(
            ShardSize(shard, space.cluster, size)
            for space in self.measurement.clusters
            for shard, size in space.shard_files
        )


class CodecTotal(NamedTuple):
    """The cells of a column in a codec, of all clusters together."""

    column_name: str
    codec: str
    cells: Interval
    body_bytes: Interval
    allocated_bytes: Interval
    json_bytes: Interval


def stored(measurement: Measurement) -> list[CodecTotal]:
    """Return what is stored, by column and codec."""
    totals = []
    for column, codec in sorted({(group.column_name, group.codec) for group in measurement.groups}):
        groups = [group for group in measurement.groups if (group.column_name, group.codec) == (column, codec)]
        sizes = [
            added(getattr(group, name) for group in groups)
            for name in ("cells", "body_bytes", "allocated_bytes", "json_bytes")
        ]
        totals.append(CodecTotal(column, codec, *sizes))
    return totals
