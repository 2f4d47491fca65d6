"""Build a capacity report.

``make`` reads the saved measurements from the catalog and samples cells to try codecs on; ``assemble_report`` is the
pure part.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from schemaless.capacity import history
from schemaless.capacity.disk_forecast import DiskForecast, disk_usage
from schemaless.capacity.disks import Disk, GivenDisk, disks_of, with_disks
from schemaless.capacity.forecast import Forecast, forecast
from schemaless.capacity.measure import check_disks, measure
from schemaless.capacity.measurement import Measurement
from schemaless.capacity.planning import Cost, Level, Planning, PlanningOptions, costs, levels, verdict
from schemaless.capacity.rebuilt import Unit, disk_per_body, is_small, predicted_files, unit_of, whole_files
from schemaless.capacity.report import NO_CODEC_TRIALS, CapacityReport, CodecTrials, ColumnForecast
from schemaless.capacity.report_notes import how_obtained, note_on_other_tables, notes_of, warnings_of
from schemaless.capacity.series import Series, daily, errors, weighted
from schemaless.capacity.skew import skew_of
from schemaless.capacity.steps import rate, steps
from schemaless.capacity.whatif import CodecEffect, Scenario, best_codec, codec_effects, growth_weights, mean, scenarios
from schemaless.codec.registry import DEFAULT, NONE, PACKED, Codec, codec_named, codec_names
from schemaless.codec.trial import NOT_TRIED, worth_trying
from schemaless.datastore import Datastore
from schemaless.errors import InvalidInput, ServerError
from schemaless.events import Listener, Step, ignore_events
from schemaless.internals import internals_of
from schemaless.numbers import Interval
from schemaless.survey.column_trials import CellSample, ColumnTrial, sample_cells, try_codec
from schemaless.survey.recommendation import LEAST_GAIN, MOST_CPU, Choice
from schemaless.survey.sampling import Bounds

TRIAL_BOUNDS: Final = Bounds(windows=48, window_rows=6, sample_bytes=4 << 20, whole_rows=300)
"""Size of the sample that every codec is tried on; a trial of all codecs takes some seconds of CPU."""

_MOST_COLUMN_FORECASTS: Final = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Options of a report.

    Attributes:
        codec: The codec to re-encode to; by default the recommended one, if any.
        disks: Disks by cluster that override the measured ones.
        least_gain: Share of the pages that a rewrite must save to be recommended, 0 to 1.
        most_cpu: Largest CPU time of a recommended codec, as a multiple of the default codec's.
        planning: Thresholds, lead time, price, and how long the disks must last.
        seed: Seed of the samples and simulated futures.
    """

    codec: str | None = None
    disks: Mapping[str, GivenDisk] = field(default_factory=dict)
    least_gain: float = LEAST_GAIN
    most_cpu: float = MOST_CPU
    planning: PlanningOptions = field(default_factory=PlanningOptions)
    seed: int = 1

    def choice(self, trials: Sequence[CodecEffect], measurement: Measurement) -> Choice | None:
        """Choose the codec to recommend; None if nothing was tried."""
        return best_codec(trials, measurement, DEFAULT.name, self.least_gain, self.most_cpu)


DEFAULT_OPTIONS: Final = Asked()


def make(
    store: Datastore, options: Asked = DEFAULT_OPTIONS, *, fresh: bool = False, listener: Listener = ignore_events
) -> CapacityReport:
    """Build a report of a datastore. Writes nothing.

    Args:
        store: The datastore.
        options: Options of the report.
        fresh: Take a new measurement; without a saved one this happens anyway.
        listener: Receives each step.

    Raises:
        UnknownCodec: There is no codec of the given name.
        InvalidInput: ``disks`` names an unknown cluster, or [report] is not installed.
        ServerError: The catalog's server cannot be reached. Problems of other servers are part of the report.
    """
    if options.codec is not None:
        codec_named(options.codec)
    check_disks(store, options.disks)
    listener(Step("reading the saved measurements"))
    measurements = history.read(store, [sample.sample_id for sample in history.kept(store)])
    notes: list[str] = []
    if fresh or not measurements:
        listener(Step("measuring"))
        measurements.append(measure(store, disks=options.disks, seed=options.seed))
        if not fresh:
            notes.append(
                "the catalog has no saved measurement, so one was taken for this report only; run 'schemaless capacity "
                "measure' daily to save them"
            )
    trials = NO_CODEC_TRIALS
    try:
        cells = _cells(store, measurements[-1], options.seed)
        if cells is not None:
            trials = try_all(cells, listener)
            target = options.codec or _chosen(options.choice(codec_effects(trials.columns, []), measurements[-1]))
            if target is not None and is_small(measurements[-1]):
                listener(Step(f"trying {target} on every cell"))
                files = whole_files(store, measurements[-1], codec_named(target), options.seed)
                trials = replace(trials, files=files)
            if not worth_trying(Codec(PACKED, NONE)):
                notes.append(NOT_TRIED)
    except (ServerError, InvalidInput) as error:
        notes.append(f"no codec could be tried: {error}")
    listener(Step("forecasting"))
    return assemble_report(measurements, trials, datetime.datetime.now(datetime.UTC), options, notes=notes)


def _chosen(choice: Choice | None) -> str | None:
    return None if choice is None or choice.chosen is None else choice.chosen.name


def assemble_report(
    measurements: Sequence[Measurement],
    trials: CodecTrials,
    made_at: datetime.datetime,
    options: Asked = DEFAULT_OPTIONS,
    *,
    notes: Sequence[str] = (),
) -> CapacityReport:
    """Build a report from measurements and codec trials. Needs no server.

    Args:
        measurements: Oldest first, at least one; sizes come from the last.
        trials: Trials of every codec on sampled cells of every column.
        made_at: Current time, UTC.
        options: Options of the report.
        notes: Notes to include, from the caller.

    Raises:
        InvalidInput: The extra [report] is not installed.
    """
    spaces, differences = with_disks(measurements[-1].clusters, options.disks)
    newest = replace(measurements[-1], clusters=spaces)
    series = daily([*measurements[:-1], newest])
    effects = codec_effects(trials.columns, series)
    choice = options.choice(effects, newest)
    codec = options.codec or _chosen(choice)
    if not any(effect.codec == codec for effect in effects):
        codec = None
    weights = growth_weights(newest, trials.disk_per_body)
    disks = []
    for disk in disks_of(newest):
        disk_series = [column for column in series if column.cluster in disk.clusters]
        disk_forecast = _disk_forecast(disk, disk_series, weights, options.seed)
        used = disk_usage(disk, disk_forecast.history, [*measurements[:-1], newest])
        disks.append(replace(disk_forecast, used=used))
    outlooks = scenarios(newest, disks, series, effects, _files(newest, trials), weights, codec)
    report = CapacityReport(
        made_at=made_at,
        measurement=newest,
        measured_at=tuple(measurement.taken_at for measurement in measurements),
        series=tuple(series),
        disks=tuple(disks),
        total=_total(disks, series, weights, options.seed),
        too_few=tuple(sorted({trial.column_name for trial in trials.columns if not trial.carried})),
        columns=tuple(_column_forecasts(series, options.seed)),
        trials=tuple(effects),
        weights=weights,
        choice=choice,
        codec=codec,
        scenarios=tuple(outlooks),
        planning=Planning(options.planning),
        skew=skew_of(newest),
        warnings=(),
        notes=(),
        how=how_obtained(newest, codec),
    )
    report = replace(report, planning=_planning(report, options.seed))
    return replace(
        report,
        warnings=tuple(warnings_of(report)),
        notes=(*notes, *differences, *newest.notes, *notes_of(report), *note_on_other_tables(measurements)),
    )


def _planning(report: CapacityReport, seed: int) -> Planning:
    now, after, options = report.now, report.after, report.planning.options
    by_name = {disk_forecast.disk.name: disk_forecast for disk_forecast in report.disks}
    worst_first = [by_name[outlook.disk] for outlook in now.worst_first]

    def of(scenario: Scenario | None) -> tuple[Level, ...]:
        return () if scenario is None else levels(scenario, worst_first, options)

    return Planning(options, of(now), of(after), _costs(report, seed), verdict(now, options))


def _costs(report: CapacityReport, seed: int) -> tuple[Cost, ...]:
    """Calculate costs from one forecast over all copies, since the bands of separate disks cannot be added up."""
    codec, after, options = report.codec, report.after, report.planning.options
    if options.price_per_tb is None:
        return ()
    disks = [disk_forecast.disk for disk_forecast in report.disks]
    copies_by_cluster = {name: disk.copies for disk in disks for name in disk.clusters}
    weights = {key: weight * copies_by_cluster.get(key[0], 1) for key, weight in report.weights.items()}
    growth = forecast(weighted(report.series, weights), seed=seed)
    if not isinstance(growth, Forecast):
        return ()
    if codec is None or after is None:
        return costs(growth, None, options)
    copies = {disk.name: disk.copies for disk in disks}
    days = {outlook.disk: (outlook.bytes_per_day or 0.0) * copies[outlook.disk] for outlook in report.now.disks}
    times = mean({outlook.disk: outlook.times for outlook in after.disks if outlook.times is not None}, days)
    return costs(growth, (codec, times), options)


def try_all(cells: CellSample, listener: Listener = ignore_events) -> CodecTrials:
    """Try every codec on sampled cells of every column. Needs no server."""
    layout = cells.layouts[0]
    now = {column: [len(cell.body) for cell in cells.of_column(column)] for column in cells.column_names()}
    columns: list[ColumnTrial] = []
    units: dict[str, dict[str, Unit]] = {}
    for name in codec_names():
        if not worth_trying(codec_named(name)):
            continue
        listener(Step(f"trying {name}"))
        for column in cells.column_names():
            trial = try_codec(cells, column, codec_named(name))
            columns.append(trial)
            lengths = [length for window in trial.migrated_bytes for length in window]
            unit = unit_of(column, lengths, layout, trial.migrated_share, now[column])
            if unit is not None and trial.carried:
                units.setdefault(name, {})[column] = unit
    per_body = {column: disk_per_body(column, lengths, layout) for column, lengths in now.items()}
    known = {column: size for column, size in per_body.items() if size is not None}
    return CodecTrials(tuple(columns), units, known, layout)


def _files(measurement: Measurement, trials: CodecTrials) -> dict[tuple[str, str], Interval]:
    """Return file lengths after a migration and a rebuild, by cluster and codec."""
    predicted = {}
    for space in measurement.clusters:
        for name, units in trials.units.items():
            size = predicted_files(measurement, space, units, trials.layout)
            if size is not None:
                predicted[space.cluster, name] = size
    return predicted | dict(trials.files)


def _cells(store: Datastore, newest: Measurement, seed: int) -> CellSample | None:
    reachable = {space.cluster for space in newest.clusters if space.problem is None}
    shards = [shard for name in sorted(reachable) for shard in internals_of(store).topology.shards_of(name)]
    if not shards or not newest.groups:
        return None
    cells = sample_cells(store, shards=shards, seed=seed, bounds=TRIAL_BOUNDS)
    return cells if cells.column_names() else None


def _total(
    forecasts: Sequence[DiskForecast], series: Sequence[Series], weights: Mapping[tuple[str, str], float], seed: int
) -> DiskForecast | None:
    if len(forecasts) == 1:
        return forecasts[0]
    if not forecasts:
        return None
    disks = [disk_forecast.disk for disk_forecast in forecasts]

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
        problem="; ".join(disk.problem for disk in disks if disk.problem) or None,
    )
    return _disk_forecast(everything, series, weights, seed)


def _disk_forecast(
    disk: Disk, series: Sequence[Series], weights: Mapping[tuple[str, str], float], seed: int
) -> DiskForecast:
    days = weighted(series, weights)
    growth = forecast(days, seed=seed)
    changes = steps(days) if isinstance(growth, Forecast) else ()
    return DiskForecast(disk, tuple(days), growth, changes, rate(days, changes), tuple(errors(series, weights)))


def _column_forecasts(series: Sequence[Series], seed: int) -> list[ColumnForecast]:
    largest = sorted(series, key=lambda column: -column.bytes_per_day)[:_MOST_COLUMN_FORECASTS]
    forecasts = []
    for column in sorted(largest, key=lambda column: (column.cluster, column.column_name)):
        days = tuple((day.day, day.body_bytes) for day in column.days)
        forecasts.append(ColumnForecast(column.cluster, column.column_name, days, forecast(days, seed=seed)))
    return forecasts
