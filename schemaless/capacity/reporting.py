"""How a report is made.

``make`` reads the measurements that the catalog keeps, and a few cells of each column to try codecs on;
``put_together`` is pure.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from schemaless.capacity import history
from schemaless.capacity.disks import Disk, GivenDisk, disks_of, with_disks
from schemaless.capacity.filling import filling
from schemaless.capacity.forecast import Forecast, forecast
from schemaless.capacity.measure import check_disks, measure
from schemaless.capacity.measurement import Measurement
from schemaless.capacity.planning import Cost, Level, Planning, Wishes, costs, levels, verdict
from schemaless.capacity.rebuilt import Unit, disk_per_body, is_small, predicted_files, unit_of, whole_files
from schemaless.capacity.report import NOTHING_TRIED, CapacityReport, ColumnForecast, DiskForecast, Tried
from schemaless.capacity.report_notes import beside_the_cells, how_obtained, notes_of, warnings_of
from schemaless.capacity.series import Series, daily, errors, weighted
from schemaless.capacity.skew import skew_of
from schemaless.capacity.steps import rate, steps
from schemaless.capacity.whatif import CodecEffect, Scenario, best_codec, codec_effects, growth_weights, mean, scenarios
from schemaless.codec.registry import DEFAULT, NONE, PACKED, Codec, codec_named, codec_names
from schemaless.codec.trial import NOT_TRIED, worth_trying
from schemaless.datastore import Datastore
from schemaless.errors import InvalidInput, ServerError
from schemaless.events import Listener, Step, nobody
from schemaless.internals import internals_of
from schemaless.numbers import Interval
from schemaless.survey.column_trials import CellSample, ColumnTrial, sample_cells, try_codec
from schemaless.survey.recommendation import LEAST_GAIN, MOST_CPU, Choice
from schemaless.survey.sampling import Bounds

TRIAL_BOUNDS: Final = Bounds(windows=48, window_rows=6, sample_bytes=4 << 20, whole_rows=300)
"""Every codec is tried on so many cells: that takes some seconds of CPU."""

_MOST_COLUMN_FORECASTS: Final = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What is asked of a report.

    Attributes:
        codec: what a re-encoding would be to; by default the one that is worth it, if any.
        disks: by cluster, in place of what was measured.
        least_gain: what a rewrite has to save of the pages to be worth it, 0 to 1.
        most_cpu: how many times the time of the default codec the one that is worth it may take.
        wishes: thresholds, lead time, price, and how long the disks have to last.
        seed: of samples and simulated futures.
    """

    codec: str | None = None
    disks: Mapping[str, GivenDisk] = field(default_factory=dict)
    least_gain: float = LEAST_GAIN
    most_cpu: float = MOST_CPU
    wishes: Wishes = field(default_factory=Wishes)
    seed: int = 1

    def choice(self, trials: Sequence[CodecEffect], measurement: Measurement) -> Choice | None:
        """Return which codec is worth it, and why; None where nothing was tried."""
        return best_codec(trials, measurement, DEFAULT.name, self.least_gain, self.most_cpu)


NOTHING_ASKED: Final = Asked()


def make(
    store: Datastore, asked: Asked = NOTHING_ASKED, *, fresh: bool = False, listener: Listener = nobody
) -> CapacityReport:
    """Make a report of a datastore. Writes nothing.

    Args:
        store: the datastore.
        asked: what it is to answer.
        fresh: measure anew, although the catalog has measurements; without any that is done anyhow.
        listener: told each step.

    Raises:
        UnknownCodec: there is no codec of that name.
        InvalidInput: ``disks`` names a cluster that is not there, or [report] is not installed.
        ServerError: the catalog's server cannot be reached. Other servers may be down: the report says it.
    """
    if asked.codec is not None:
        codec_named(asked.codec)
    check_disks(store, asked.disks)
    listener(Step("reading the measurements that are kept"))
    measurements = history.read(store, [sample.sample_id for sample in history.kept(store)])
    notes: list[str] = []
    if fresh or not measurements:
        listener(Step("measuring"))
        measurements.append(measure(store, disks=asked.disks, seed=asked.seed))
        if not fresh:
            notes.append(
                "no measurement is kept in the catalog, so one was taken for this report; 'capacity measure' keeps them"
            )
    tried = NOTHING_TRIED
    try:
        cells = _cells(store, measurements[-1], asked.seed)
        if cells is not None:
            tried = try_all(cells, listener)
            target = asked.codec or _chosen(asked.choice(codec_effects(tried.columns, []), measurements[-1]))
            if target is not None and is_small(measurements[-1]):
                listener(Step(f"trying {target} on every cell"))
                files = whole_files(store, measurements[-1], codec_named(target), asked.seed)
                tried = replace(tried, files=files)
            if not worth_trying(Codec(PACKED, NONE)):
                notes.append(NOT_TRIED)
    except (ServerError, InvalidInput) as error:
        notes.append(f"no codec could be tried: {error}")
    listener(Step("forecasting"))
    return put_together(measurements, tried, datetime.datetime.now(datetime.UTC), asked, notes=notes)


def _chosen(choice: Choice | None) -> str | None:
    return None if choice is None or choice.chosen is None else choice.chosen.name


def put_together(
    measurements: Sequence[Measurement],
    tried: Tried,
    made_at: datetime.datetime,
    asked: Asked = NOTHING_ASKED,
    *,
    notes: Sequence[str] = (),
) -> CapacityReport:
    """Return a report of what was measured and tried. Asks no server.

    Args:
        measurements: oldest first, one at least; sizes are those of the last.
        tried: every codec on sampled cells of every column.
        made_at: now, UTC.
        asked: what the report is to answer.
        notes: what the reading has to say.

    Raises:
        InvalidInput: the extra [report] is not installed.
    """
    spaces, differences = with_disks(measurements[-1].clusters, asked.disks)
    newest = replace(measurements[-1], clusters=spaces)
    series = daily([*measurements[:-1], newest])
    trials = codec_effects(tried.columns, series)
    choice = asked.choice(trials, newest)
    codec = asked.codec or _chosen(choice)
    if not any(trial.codec == codec for trial in trials):
        codec = None
    weights = growth_weights(newest, tried.disk_per_body)
    grown = []
    for disk in disks_of(newest):
        of_disk = [one for one in series if one.cluster in disk.clusters]
        forecasted = _disk_forecast(disk, of_disk, weights, asked.seed)
        used = filling(disk, forecasted.history, [*measurements[:-1], newest])
        grown.append(replace(forecasted, used=used))
    outlooks = scenarios(newest, grown, series, trials, _files(newest, tried), weights, codec)
    report = CapacityReport(
        made_at=made_at,
        measurement=newest,
        measured_at=tuple(measurement.taken_at for measurement in measurements),
        series=tuple(series),
        disks=tuple(grown),
        total=_total(grown, series, weights, asked.seed),
        too_few=tuple(sorted({trial.column_name for trial in tried.columns if not trial.carried})),
        columns=tuple(_column_forecasts(series, asked.seed)),
        trials=tuple(trials),
        weights=weights,
        choice=choice,
        codec=codec,
        scenarios=tuple(outlooks),
        planning=Planning(asked.wishes),
        skew=skew_of(newest),
        warnings=(),
        notes=(),
        how=how_obtained(newest, codec),
    )
    report = replace(report, planning=_planning(report, asked.seed))
    return replace(
        report,
        warnings=tuple(warnings_of(report)),
        notes=(*notes, *differences, *newest.notes, *notes_of(report), *beside_the_cells(measurements)),
    )


def _planning(report: CapacityReport, seed: int) -> Planning:
    now, after, wishes = report.now, report.after, report.planning.wishes
    grown = {forecasted.disk.name: forecasted for forecasted in report.disks}
    in_order = [grown[outlook.disk] for outlook in now.worst_first]

    def of(scenario: Scenario | None) -> tuple[Level, ...]:
        return () if scenario is None else levels(scenario, in_order, wishes)

    return Planning(wishes, of(now), of(after), _costs(report, seed), verdict(now, wishes))


def _costs(report: CapacityReport, seed: int) -> tuple[Cost, ...]:
    """Return what a year costs: one forecast of all copies, since the bands of disks must not be added up."""
    codec, after, wishes = report.codec, report.after, report.planning.wishes
    if wishes.price_per_tb is None:
        return ()
    disks = [forecasted.disk for forecasted in report.disks]
    copies = {name: disk.copies for disk in disks for name in disk.clusters}
    weights = {key: weight * copies.get(key[0], 1) for key, weight in report.weights.items()}
    grown = forecast(weighted(report.series, weights), seed=seed)
    if not isinstance(grown, Forecast):
        return ()
    if codec is None or after is None:
        return costs(grown, None, wishes)
    of_disk = {disk.name: disk.copies for disk in disks}
    days = {outlook.disk: (outlook.bytes_per_day or 0.0) * of_disk[outlook.disk] for outlook in report.now.disks}
    times = mean({outlook.disk: outlook.times for outlook in after.disks if outlook.times is not None}, days)
    return costs(grown, (codec, times), wishes)


def try_all(cells: CellSample, listener: Listener = nobody) -> Tried:
    """Try every codec on sampled cells of every column. Asks no server."""
    layout = cells.layouts[0]
    now = {column: [len(cell.body) for cell in cells.of_column(column)] for column in cells.column_names()}
    columns: list[ColumnTrial] = []
    units: dict[str, dict[str, Unit]] = {}
    for name in codec_names():
        if not worth_trying(codec_named(name)):
            continue
        listener(Step(f"trying {name}"))
        for column in cells.column_names():
            tried = try_codec(cells, column, codec_named(name))
            columns.append(tried)
            lengths = [length for window in tried.migrated_bytes for length in window]
            unit = unit_of(column, lengths, layout, tried.migrated_share, now[column])
            if unit is not None and tried.carried:
                units.setdefault(name, {})[column] = unit
    disk = {column: disk_per_body(column, lengths, layout) for column, lengths in now.items()}
    return Tried(tuple(columns), units, {column: size for column, size in disk.items() if size is not None}, layout)


def _files(measurement: Measurement, tried: Tried) -> dict[tuple[str, str], Interval]:
    """Return how long files are after a migration and a rebuild, by cluster and codec."""
    predicted = {}
    for space in measurement.clusters:
        for name, units in tried.units.items():
            size = predicted_files(measurement, space, units, tried.layout)
            if size is not None:
                predicted[space.cluster, name] = size
    return predicted | dict(tried.files)


def _cells(store: Datastore, newest: Measurement, seed: int) -> CellSample | None:
    reached = {space.cluster for space in newest.clusters if space.problem is None}
    shards = [shard for name in sorted(reached) for shard in internals_of(store).topology.shards_of(name)]
    if not shards or not newest.groups:
        return None
    cells = sample_cells(store, shards=shards, seed=seed, bounds=TRIAL_BOUNDS)
    return cells if cells.column_names() else None


def _total(
    grown: Sequence[DiskForecast], series: Sequence[Series], weights: Mapping[tuple[str, str], float], seed: int
) -> DiskForecast | None:
    if len(grown) == 1:
        return grown[0]
    if not grown:
        return None
    disks = [forecasted.disk for forecasted in grown]

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
    foretold = forecast(days, seed=seed)
    changes = steps(days) if isinstance(foretold, Forecast) else ()
    return DiskForecast(disk, tuple(days), foretold, changes, rate(days, changes), tuple(errors(series, weights)))


def _column_forecasts(series: Sequence[Series], seed: int) -> list[ColumnForecast]:
    most = sorted(series, key=lambda one: -one.bytes_per_day)[:_MOST_COLUMN_FORECASTS]
    forecasts = []
    for one in sorted(most, key=lambda one: (one.cluster, one.column_name)):
        days = tuple((day.day, day.body_bytes) for day in one.days)
        forecasts.append(ColumnForecast(one.cluster, one.column_name, days, forecast(days, seed=seed)))
    return forecasts
