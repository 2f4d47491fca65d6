"""What the figures of a report are calculated from: measurements, disks, growth, trials and options.

``Basis.of`` assembles it without I/O; ``whatif`` and ``planning`` calculate with it.
"""

from __future__ import annotations

import datetime
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeVar

from schemaless.base.numbers import Interval, summed
from schemaless.base.parts import grouped
from schemaless.codec.envelope import COLD
from schemaless.codec.registry import DEFAULT, LEGACY
from schemaless.planning.capacity.disks import Disk, disks_of
from schemaless.planning.capacity.forecast import Forecast, History, NoForecast, forecast
from schemaless.planning.capacity.measurement import Group, Measurement
from schemaless.planning.capacity.options import Asked
from schemaless.planning.capacity.rebuilt import predicted
from schemaless.planning.capacity.series import Series, body_per_text, daily, errors, weighted
from schemaless.planning.capacity.steps import Burst, Rate, Step, rate, steps, usual_days
from schemaless.planning.sampling.block_trial import MODEL_ERROR, widened
from schemaless.planning.sampling.column_trials import HISTORY, CodecTrial, HistoryTrial
from schemaless.planning.sampling.recommendation import LEAST_GAIN, MOST_CPU, Choice, Option, choose
from schemaless.planning.sampling.sizing import PAGE_MODEL_ERROR
from schemaless.schema.engines import INNODB
from schemaless.store.erasures.retention import Policy

K = TypeVar("K", bound=Hashable)

_MOST_COLUMNS: Final = 40


@dataclass(frozen=True, slots=True)
class Collected:
    """Input of a report.

    Attributes:
        measurements: Oldest first, at least one; sizes and codec trials come from the last.
        notes: Caveats about the collected figures.
        changes: What has changed the cells since the last measurement.
        unreadable: The saved measurements that cannot be read, and why.
        policies: The retention policies in force, by column.
        tiers: The ages in days at which cells become cold, by column, of the policies in force.
        engines: Name of the storage engine by cluster.
    """

    measurements: tuple[Measurement, ...]
    notes: tuple[str, ...] = ()
    changes: tuple[str, ...] = ()
    unreadable: tuple[str, ...] = ()
    policies: Mapping[str, Policy] = field(default_factory=dict)
    tiers: Mapping[str, int] = field(default_factory=dict)
    engines: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DiskForecast:
    """Daily growth of the usage of a disk, in bytes: measured and forecast.

    Attributes:
        disk: The disk.
        history: Growth of each whole day.
        forecast: Growth of the days to come.
        steps: Days on which the level of the growth changed abruptly.
        rate: Constant rate of the last four weeks, or of the whole weeks since the last step if they are fewer.
        errors: Half the width of each day's 95 % interval, in the order of ``history``.
        bursts: Finished imports, which the forecast, the steps and the rate leave out.
    """

    disk: Disk
    history: tuple[tuple[datetime.date, float], ...]
    forecast: Forecast | NoForecast
    steps: tuple[Step, ...] = ()
    rate: Rate | None = None
    errors: tuple[float, ...] = ()
    bursts: tuple[Burst, ...] = ()

    def usage_by_day(self) -> list[tuple[datetime.date, float]]:
        """Return how the disk filled up; an empty list if its size or free space is unknown.

        The usage at the start of the forecast is known, so each day's growth is subtracted from it, latest day first.
        """
        if self.disk.used_bytes is None or not self.history:
            return []
        used = float(self.disk.used_bytes)
        by_day = [(self.history[-1][0] + datetime.timedelta(1), used)]
        for day, growth in reversed(self.history):
            used -= growth
            if used < 0:
                break  # The days add up to more than is stored: bodies were longer then, or cells were deleted.
            by_day.append((day, used))
        return by_day[::-1]

    def usage_measured(self, measurements: Sequence[Measurement]) -> list[tuple[datetime.datetime, float]]:
        """Return the usage according to the measured file lengths; an empty list if the usage is unknown.

        It differs from the reconstructed usage if files contain free space or were rebuilt. Usage by others is assumed
        to be constant, as its history is unknown.
        """
        disk, measured = self.disk, []
        if disk.used_bytes is None:
            return []
        for measurement in measurements:
            sizes = [space.file_bytes for space in measurement.clusters if space.cluster in disk.clusters]
            if len(sizes) == len(disk.clusters) and None not in sizes:
                others = disk.used_bytes - (disk.file_bytes or 0)
                measured.append((measurement.taken_at, others + float(sum(size or 0 for size in sizes))))
        return measured


@dataclass(frozen=True, slots=True)
class ColumnForecast:
    """Daily body bytes of a column in a cluster: measured and forecast."""

    cluster: str
    column_name: str
    history: tuple[tuple[datetime.date, float], ...]
    forecast: Forecast | NoForecast


@dataclass(frozen=True, slots=True)
class EngineEffect:
    """Effect of a storage engine on a column, from a trial on sampled cells; no server with the engine is needed.

    Attributes:
        column_name: Name of the column.
        engine: Name of the storage engine.
        codec: Name of the codec, or None for bodies as they are stored now.
        sampled: Number of cells tried.
        now_per_body: Bytes of disk per body byte now.
        per_body: Bytes of disk that the engine and the codec need per byte of the current bodies.
    """

    column_name: str
    engine: str
    codec: str | None
    sampled: int
    now_per_body: float
    per_body: Interval

    @property
    def share(self) -> Interval:
        """Disk space in the engine relative to the disk space now."""
        return self.per_body.times(1 / self.now_per_body)


@dataclass(frozen=True, slots=True)
class Basis:
    """What the figures of a report are calculated from.

    Attributes:
        measurements: Oldest first; sizes and codec trials come from the last, which has the disks given by the user.
        options: Options of the report.
        policies: The retention policies in force, by column.
        tiers: The ages in days at which cells become cold, by column, of the policies in force.
        file_share: Size of cold files relative to the bodies that they replace, by column.
        engine_of: Name of the storage engine by cluster; clusters that are not listed use InnoDB.
        weights: Bytes of a large file per body byte, by cluster and column.
        series: Daily growth by cluster and column.
        disks: Forecast of each disk, in bytes of disk space.
        trials: Codec trials by column, without columns of which too few cells were sampled.
        history: Trials with superseded versions as differences, of the columns that have such versions.
        dictionaries: Trials with a dictionary, of the columns that one helps.
        engines: Effects of other storage engines by column and codec.
        files: Length of a cluster's files after a migration and a rebuild, by engine (None for the present one),
            cluster, and codec (None for bodies as they are stored now).
    """

    measurements: tuple[Measurement, ...]
    options: Asked
    policies: Mapping[str, Policy]
    tiers: Mapping[str, int]
    file_share: Mapping[str, Interval]
    engine_of: Mapping[str, str]
    weights: Mapping[tuple[str, str], float]
    series: tuple[Series, ...]
    disks: tuple[DiskForecast, ...]
    trials: tuple[CodecTrial, ...]
    history: tuple[HistoryTrial, ...]
    dictionaries: tuple[CodecTrial, ...]
    engines: tuple[EngineEffect, ...]
    files: Mapping[tuple[str | None, str, str | None], Interval]

    @classmethod
    def of(cls, collected: Collected, options: Asked) -> Basis:
        """Assemble the basis of a report.

        Raises:
            InvalidInput: The extra [report] is not installed.
        """
        newest = collected.measurements[-1]
        trials = newest.trials
        weights = growth_weights(newest, trials.disk_per_body)
        basis = cls(
            measurements=collected.measurements,
            options=options,
            policies=collected.policies,
            tiers=collected.tiers,
            file_share=file_shares(newest),
            engine_of=collected.engines,
            weights=weights,
            series=tuple(daily(collected.measurements)),
            disks=(),
            trials=tuple(usable(trials.columns)),
            history=trials.history,
            dictionaries=trials.dictionaries,
            engines=tuple(effect for engine in trials.engines for effect in _engine_effects(engine, newest, weights)),
            files={
                (engine, *key): size
                for engine, of_engine in [(None, trials), *trials.engines.items()]
                for key, size in predicted(replace(newest, trials=of_engine)).items()
            },
        )
        disks = tuple(basis.forecast_disk(disk) for disk in disks_of(newest, options.disk_names))
        bursts = {
            cluster: frozenset(day for burst in entry.bursts for day in burst.dates)
            for entry in disks
            for cluster in entry.disk.clusters
        }
        series = tuple(replace(one, left_out=bursts.get(one.cluster, frozenset())) for one in basis.series)
        return replace(basis, disks=disks, series=series)

    @property
    def measurement(self) -> Measurement:
        """The newest measurement."""
        return self.measurements[-1]

    @property
    def tried(self) -> tuple[CodecTrial, ...]:
        """All trials of codecs in the present storage engine."""
        return (*self.trials, *self.history, *self.dictionaries)

    @property
    def too_few(self) -> list[str]:
        """Columns with too few sampled cells to evaluate codecs."""
        return sorted({trial.column_name for trial in self.measurement.trials.columns if not trial.carried})

    def history_codec(self, codec: str | None) -> str | None:
        """Return the codec to show differences with: the given one, the default, or None if nothing would change."""
        tried = [trial.codec.removesuffix(HISTORY) for trial in self.history]
        return next((name for name in (codec, DEFAULT.name) if name in tried), None)

    def cells_per_day(self, column_name: str) -> float:
        """Return the current number of new cells a day in a column."""
        return sum(series.cells_per_day for series in self.series if series.column_name == column_name)

    def bytes_per_day(self, disk: Disk) -> dict[tuple[str, str], float]:
        """Return the current daily growth of a disk by cluster and column."""
        return {
            (series.cluster, series.column_name): series.bytes_per_day
            * self.weights.get((series.cluster, series.column_name), 0.0)
            for series in self.series
            if series.cluster in disk.clusters
        }

    def converts(self, cluster: str, engine: str | None) -> bool:
        """Return True if a cluster's cells would have to be converted to an engine."""
        return engine is not None and self.engine_of.get(cluster, INNODB.name) != engine

    def recommended(self, engine: str | None = None) -> Choice[Option] | None:
        """Choose the codec to recommend for an engine, by default the present one; None if nothing was tried."""
        least_gain, most_cpu = self.options.least_gain, self.options.most_cpu
        if engine is None:
            return best_codec(self.trials, self.measurement, least_gain=least_gain, most_cpu=most_cpu)
        tried = self.measurement.trials.engines[engine]
        effects = usable(tried.columns)
        return best_codec(effects, self.measurement, tried.disk_per_body, least_gain=least_gain, most_cpu=most_cpu)

    def forecast_disk(self, disk: Disk) -> DiskForecast:
        """Forecast the growth of a disk that holds one copy of its clusters' data."""
        series = [column for column in self.series if column.cluster in disk.clusters]
        days = weighted(series, self.weights)
        parts = self._by_datastore(series, self.weights)
        growth = forecast(days, seed=self.options.seed, parts=parts)
        imports = growth.bursts if isinstance(growth, Forecast) else ()
        # Before the first day of the youngest datastore, its growth is unknown: neither a step nor part of the rate.
        start = max((part[0][0] for part in parts if part), default=datetime.date.min)
        usual = [(day, value) for day, value in usual_days(days, imports) if day >= start]
        changes = steps(usual) if isinstance(growth, Forecast) else ()
        half_widths = tuple(errors(series, self.weights))
        return DiskForecast(disk, tuple(days), growth, changes, rate(usual, changes), half_widths, imports)

    def forecast_total(self) -> DiskForecast | None:
        """Forecast the growth of one copy on all disks together; None if there are none."""
        if len(self.disks) < 2:
            return self.disks[0] if self.disks else None
        disks = [entry.disk for entry in self.disks]

        def sum_of(name: str) -> int | None:
            values = [getattr(disk, name) for disk in disks]
            return None if None in values else sum(values)

        everything = Disk(
            clusters=tuple(name for disk in disks for name in disk.clusters),
            disk_bytes=sum_of("disk_bytes"),
            free_bytes=sum_of("free_bytes"),
            free_assumed=any(disk.free_assumed for disk in disks),
            file_bytes=sum_of("file_bytes"),
            copies=min(disk.copies for disk in disks),
        )
        return self.forecast_disk(everything)

    def forecast_copies(self, total: DiskForecast | None) -> tuple[Forecast | NoForecast, float]:
        """Forecast the growth of all disks, counting every copy; return it with a factor to multiply it by.

        Args:
            total: Result of ``forecast_total``.
        """
        copies = {name: entry.disk.copies for entry in self.disks for name in entry.disk.clusters}
        if total is not None and len(set(copies.values())) == 1:  # The usual case, which needs no further forecast.
            return total.forecast, float(total.disk.copies)
        weights = {key: weight * copies.get(key[0], 1) for key, weight in self.weights.items()}
        days, parts = weighted(self.series, weights), self._by_datastore(self.series, weights)
        return forecast(days, seed=self.options.seed, parts=parts), 1.0

    def forecast_columns(self) -> list[ColumnForecast]:
        """Forecast the body bytes of the columns that grow fastest."""
        largest = sorted(self.series, key=lambda column: -column.bytes_per_day)[:_MOST_COLUMNS]
        forecasts = []
        for column in sorted(largest, key=lambda column: (column.cluster, column.column_name)):
            days = tuple((day.day, day.body_bytes) for day in column.days)
            growth = forecast(days, seed=self.options.seed)
            forecasts.append(ColumnForecast(column.cluster, column.column_name, days, growth))
        return forecasts

    def _by_datastore(self, series: Sequence[Series], weights: Mapping[tuple[str, str], float]) -> list[History]:
        """Return the daily growth of each datastore, or an empty list if there is only one."""
        parts = grouped((self.measurement.datastore_of(one.cluster), one) for one in series)
        return [weighted(parts[name], weights) for name in sorted(parts)] if len(parts) > 1 else []


def growth_weights(measurement: Measurement, disk_per_body: Mapping[str, Interval]) -> dict[tuple[str, str], float]:
    """Return how many bytes of disk space a new body byte takes, by cluster and column.

    Args:
        measurement: The newest measurement.
        disk_per_body: Bytes of a large file per body byte, by column. For columns without one, the ratio in the current
            files is used, which is too high in small files because of their fixed costs.
    """
    weights = {}
    for cluster, column in sorted({(group.cluster, group.column_name) for group in measurement.groups}):
        groups = [group for group in groups_of(measurement, column) if group.cluster == cluster and group.codec != COLD]
        bodies = sum(group.body_bytes.mid for group in groups)
        if column in disk_per_body:
            weights[cluster, column] = disk_per_body[column].mid
        elif bodies:
            weights[cluster, column] = sum(group.allocated_bytes.mid for group in groups) / bodies
    return weights


def file_shares(measurement: Measurement) -> dict[str, Interval]:
    """Return the size of cold files relative to the stored bodies by column: of existing files, else of the trial."""
    shares = dict(measurement.trials.file_share)
    per_text = body_per_text(measurement)
    for column in {group.column_name for group in measurement.groups if group.codec == COLD}:
        datastore = measurement.datastore_of(column)
        spaces = [space for space in measurement.clusters if measurement.datastore_of(space.cluster) == datastore]
        texts = sum(space.cold_text_bytes for space in spaces)
        if texts:
            shares[column] = Interval.of(sum(space.cold_file_bytes for space in spaces) / texts / per_text[column])
    return shares


def usable(trials: Sequence[CodecTrial]) -> list[CodecTrial]:
    """Return the codec trials without those of columns of which too few cells were sampled."""
    return [trial for trial in trials if trial.carried]


def best_codec(
    trials: Sequence[CodecTrial],
    measurement: Measurement,
    disk_per_body: Mapping[str, Interval] | None = None,
    *,
    least_gain: float = LEAST_GAIN,
    most_cpu: float = MOST_CPU,
) -> Choice[Option] | None:
    """Choose the codec, other than ``legacy``, to re-encode all columns to; None if nothing was tried.

    With ``disk_per_body``, the space of the cells is calculated from its ratios, not measured.
    """

    def sums(size: str) -> dict[str, float]:
        return {
            name: sum(getattr(group, size).mid for group in groups_of(measurement, name) if group.codec != COLD)
            for name in measurement.column_names
        }

    cells, bodies, pages = sums("cells"), sums("body_bytes"), sums("allocated_bytes")
    if disk_per_body is not None:
        pages = {name: size * disk_per_body[name].mid for name, size in bodies.items() if name in disk_per_body}
    by_codec = grouped((trial.codec, trial) for trial in trials if trial.column_name in cells)
    by_codec.pop(LEGACY.name, None)
    options = [
        Option(
            codec,
            mean({trial.column_name: trial.migrated_pages_share for trial in of_codec}, pages),
            mean({trial.column_name: trial.share for trial in of_codec}, bodies).mid,
            sum((trial.encode_s + trial.decode_s) * cells[trial.column_name] for trial in of_codec),
            sum(trial.left_cells for trial in of_codec),
        )
        for codec, of_codec in by_codec.items()
    ]
    return choose(options, DEFAULT.name, least_gain=least_gain, most_cpu=most_cpu)


def _engine_effects(
    engine: str, measurement: Measurement, weights: Mapping[tuple[str, str], float]
) -> list[EngineEffect]:
    """Express the results of trials in a storage engine as bytes of disk per byte of the current bodies."""
    tried = measurement.trials.engines[engine]
    error = PAGE_MODEL_ERROR if engine == INNODB.name else MODEL_ERROR
    found = []
    for column in sorted({trial.column_name for trial in tried.columns if trial.carried} & tried.disk_per_body.keys()):
        groups = groups_of(measurement, column)
        now = sum(group.body_bytes.mid * weights.get((group.cluster, column), 0.0) for group in groups)
        if not now:
            continue
        now /= sum(group.body_bytes.mid for group in groups)
        per_body = widened(tried.disk_per_body[column], error)
        trials = [trial for trial in tried.every if trial.column_name == column]
        found.append(EngineEffect(column, engine, None, trials[0].sampled, now, per_body))
        found += [
            EngineEffect(column, engine, trial.codec, trial.sampled, now, per_body * trial.migrated_pages_share)
            for trial in trials
        ]
    return found


def groups_of(measurement: Measurement, column: str) -> list[Group]:
    """Return the groups of a column."""
    return [group for group in measurement.groups if group.column_name == column]


def mean(shares: Mapping[K, Interval], weights: Mapping[K, float]) -> Interval:
    """Return the weighted mean of shares by column or disk; columns or disks without a share count as 1."""
    total = sum(weights.values())
    if not total:
        return Interval.of(1.0)
    return summed(
        shares.get(name, Interval.of(1.0)).times(weight / total) for name, weight in weights.items() if weight
    )
