"""Build a capacity report.

``collect`` reads the saved measurements of a datastore from the catalog and samples cells to try codecs on;
``assemble_report`` is the pure part. ``make`` does both for one datastore, ``make_of_several`` for several.
"""

from __future__ import annotations

import datetime
import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from schemaless.capacity import history
from schemaless.capacity.combined import Collected, combine, predicted
from schemaless.capacity.comparison import GrowthOfAll, compare
from schemaless.capacity.disk_forecast import disk_usage
from schemaless.capacity.disks import GivenDisk, disks_of, with_disks
from schemaless.capacity.engines import EngineEffect, Engines, engine_effects
from schemaless.capacity.expiry import NO_RETENTION, Retention
from schemaless.capacity.growth_forecasts import GrowthForecasts
from schemaless.capacity.measure import check_disks, measure
from schemaless.capacity.measurement import Measurement
from schemaless.capacity.planning import Cost, Level, Planning, PlanningOptions, levels, verdict
from schemaless.capacity.rebuilt import Unit, disk_per_body, is_small, unit_in_blocks, unit_of, whole_files
from schemaless.capacity.report import NO_CODEC_TRIALS, CapacityReport, CodecTrials
from schemaless.capacity.report_notes import how_obtained, note_on_other_tables, notes_of, warnings_of
from schemaless.capacity.series import daily
from schemaless.capacity.skew import skew_of
from schemaless.capacity.sql import select_superseded
from schemaless.capacity.whatif import (
    NOTHING,
    CodecEffect,
    Scenario,
    WhatIf,
    best_codec,
    codec_effects,
    growth_weights,
    scenarios,
)
from schemaless.codec.registry import DEFAULT, NONE, PACKED, Codec, codec_named, codec_names
from schemaless.codec.trial import NOT_TRIED, worth_trying
from schemaless.datastore import Datastore
from schemaless.errors import InvalidInput, ServerError
from schemaless.events import Event, Listener, Step, ignore_events
from schemaless.internals import internals_of
from schemaless.numbers import Interval
from schemaless.schema.engines import ENGINES, ROCKSDB
from schemaless.survey.column_trials import (
    CellSample,
    ColumnTrial,
    layouts_in,
    sample_cells,
    space_per_body,
    try_codec,
)
from schemaless.survey.page_model import MYROCKS, MYSQL
from schemaless.survey.recommendation import LEAST_GAIN, MOST_CPU, Choice
from schemaless.survey.sampling import Bounds

TRIAL_BOUNDS: Final = Bounds(windows=48, window_rows=6, sample_bytes=4 << 20, whole_rows=300)
"""Size of the sample that every codec is tried on; trying all codecs takes several seconds of CPU time."""

BLOCK_TRIAL_BOUNDS: Final = Bounds(windows=48, window_rows=24, sample_bytes=8 << 20, whole_rows=1_200)
"""Like ``TRIAL_BOUNDS``, but for MyRocks, whose blocks hold several rows; a window should fill a block."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Options of a report.

    Attributes:
        codec: The codec to re-encode to; by default the recommended one, if any.
        engine: Storage engine to compare with, both with the bodies as they are now and re-encoded to the codec for
            that engine.
        disks: Disks by cluster that override the measured ones. In a report of several datastores, clusters are called
            ``datastore/cluster``.
        disk_names: Name of the disk by cluster; clusters with the same name share a disk.
        least_gain: Share of the pages that a rewrite must save to be recommended, 0 to 1.
        most_cpu: Largest CPU time of a recommended codec, as a multiple of the default codec's.
        planning: Thresholds, lead time, price, and how long the disks must last.
        what_ifs: Scenarios to compare.
        seed: Seed of the samples and simulated futures.
    """

    codec: str | None = None
    engine: str | None = None
    disks: Mapping[str, GivenDisk] = field(default_factory=dict)
    disk_names: Mapping[str, str] = field(default_factory=dict)
    least_gain: float = LEAST_GAIN
    most_cpu: float = MOST_CPU
    planning: PlanningOptions = field(default_factory=PlanningOptions)
    what_ifs: tuple[WhatIf, ...] = ()
    seed: int = 1

    def choice(
        self,
        trials: Sequence[CodecEffect],
        measurement: Measurement,
        disk_per_body: Mapping[str, Interval] | None = None,
    ) -> Choice | None:
        """Choose the codec to recommend; None if nothing was tried."""
        return best_codec(trials, measurement, DEFAULT.name, self.least_gain, self.most_cpu, disk_per_body)

    @property
    def engines(self) -> set[str]:
        """Storage engines to compare with."""
        return {engine for engine in (self.engine, *(change.engine for change in self.what_ifs)) if engine is not None}


DEFAULT_OPTIONS: Final = Asked()

_log = logging.getLogger("schemaless")


def make(
    store: Datastore, options: Asked = DEFAULT_OPTIONS, *, fresh: bool = False, listener: Listener = ignore_events
) -> CapacityReport:
    """Build a report of a datastore. Writes nothing.

    Args:
        store: The datastore.
        options: Options of the report.
        fresh: Take a new measurement even if one is saved.
        listener: Receives each step.

    Raises:
        UnknownCodec: There is no codec of the given name.
        InvalidInput: ``disks`` names an unknown cluster, or the extra [report] is not installed.
        ServerError: The catalog's server cannot be reached. Problems with other servers are noted in the report.
    """
    collected = collect(store, options, fresh=fresh, listener=listener)
    listener(Step("forecasting"))
    return _assembled(collected, options)


def make_of_several(
    stores: Mapping[str, Datastore],
    options: Asked = DEFAULT_OPTIONS,
    *,
    fresh: bool = False,
    listener: Listener = ignore_events,
) -> CapacityReport:
    """Build one report of several datastores, given by name. Writes nothing.

    Args:
        stores: The datastores. Their clusters and columns are called ``name/cluster`` and ``name/column``.
        options: Options of the report.
        fresh: Take new measurements even if some are saved.
        listener: Receives each step.

    Raises:
        UnknownCodec: There is no codec of the given name.
        InvalidInput: ``disks`` names an unknown cluster, a datastore is given twice, or the extra [report] is not
            installed.
        ServerError: A catalog's server cannot be reached. Problems with other servers are noted in the report.
    """
    parts = {}
    for name, store in stores.items():
        own = {
            cluster: disk
            for given, disk in options.disks.items()
            for datastore, slash, cluster in [given.partition("/")]
            if datastore == name and slash
        }

        def listen(event: Event, name: str = name) -> None:
            listener(Step(f"{name}: {event.what}") if isinstance(event, Step) else event)

        parts[name] = collect(store, replace(options, disks=own), fresh=fresh, listener=listen)
    listener(Step("forecasting"))
    return _assembled(combine(parts), options)


def _assembled(collected: Collected, options: Asked) -> CapacityReport:
    now = datetime.datetime.now(datetime.UTC)
    return assemble_report(
        collected.measurements,
        collected.trials,
        now,
        options,
        notes=collected.notes,
        retention=collected.retention,
        engines=collected.engines,
    )


def collect(
    store: Datastore, options: Asked = DEFAULT_OPTIONS, *, fresh: bool = False, listener: Listener = ignore_events
) -> Collected:
    """Read the measurements of a datastore, and try codecs on a sample of its cells; see ``make``."""
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
                "measure' daily to save measurements"
            )
    trials = NO_CODEC_TRIALS
    retention = NO_RETENTION
    cells = None
    try:
        cells = _cells(store, measurements[-1], options.seed, options.engines)
        if cells is not None:
            trials = try_all(cells, listener)
            target = options.codec or _chosen(options.choice(codec_effects(trials.columns, []), measurements[-1]))
            if target is not None and is_small(measurements[-1]) and not cells.in_blocks:
                listener(Step(f"trying {target} on every cell"))
                files = whole_files(store, measurements[-1], codec_named(target), options.seed)
                trials = replace(trials, files=files)
            trials = replace(trials, engines=_try_engines(store, cells, options.engines, listener))
            if not worth_trying(Codec(PACKED, NONE)):
                notes.append(NOT_TRIED)
    except (ServerError, InvalidInput) as error:
        notes.append(f"no codec could be tried: {error}")
    try:
        retention = _retention(store, cells, options.what_ifs)
    except ServerError as error:
        notes.append(f"retention policies could not be read: {error}")
    engines = {cluster.name: cluster.engine for cluster in internals_of(store).topology.clusters}
    return Collected(tuple(measurements), trials, tuple(notes), retention, engines)


def _try_engines(
    store: Datastore, cells: CellSample, engines: Collection[str], listener: Listener
) -> dict[str, CodecTrials]:
    """Try every codec in each given storage engine, except one that all clusters already use."""
    present = {cluster.engine for cluster in internals_of(store).topology.clusters}
    found = {}
    for engine in sorted(engines):
        if present != {engine}:
            listener(Step(f"trying {ENGINES[engine].title}"))
            found[engine] = try_all(replace(cells, layouts=layouts_in(store, cells.taken.windows, engine)), listener)
    return found


def _retention(store: Datastore, cells: CellSample | None, what_ifs: Sequence[WhatIf]) -> Retention:
    """Read the policies in force, and the share of sampled body bytes superseded by newer versions."""
    internals = internals_of(store)
    policies = {policy.column_name: policy for policy in internals.policies.all()}
    asked = {
        (column.rpartition("/")[2], policy.keep_versions)
        for rules in (policies, *(change.policies for change in what_ifs))
        for column, policy in rules.items()
        if policy.keep_versions is not None
    }
    if cells is None:
        return Retention(policies)
    superseded: dict[tuple[str, int], float] = {}
    for column, kept in sorted(asked):
        over = under = 0
        for window in cells.taken.windows:
            statement = select_superseded(
                internals.shards.database(window.shard), window.after, window.up_to, column, kept
            )
            every, old = internals.shards.rows(window.shard, statement)[0]
            over, under = over + int(old), under + int(every)
        superseded[column, kept] = over / under if under else 0.0
    return Retention(policies, superseded, cells.layouts[0] if cells.layouts else MYSQL)


def _chosen(choice: Choice | None) -> str | None:
    return None if choice is None or choice.chosen is None else choice.chosen.name


def assemble_report(
    measurements: Sequence[Measurement],
    trials: CodecTrials,
    made_at: datetime.datetime,
    options: Asked = DEFAULT_OPTIONS,
    *,
    notes: Sequence[str] = (),
    retention: Retention = NO_RETENTION,
    engines: Mapping[str, str] | None = None,
) -> CapacityReport:
    """Build a report from measurements and codec trials. Needs no server.

    Args:
        measurements: Oldest first, at least one; sizes come from the last.
        trials: Trials of every codec on sampled cells of every column.
        made_at: Current time, UTC.
        options: Options of the report.
        notes: Notes to include, from the caller.
        retention: The policies in force, and what is known about expired cells.
        engines: Name of the storage engine by cluster; by default, all clusters use InnoDB.

    Raises:
        InvalidInput: The extra [report] is not installed.
    """
    known = {space.cluster for space in measurements[-1].clusters}
    for cluster in (*options.disks, *options.disk_names):
        if cluster not in known:
            raise InvalidInput(
                f"a disk was given for cluster {cluster!r}, which does not exist; the report's clusters are "
                f"{', '.join(sorted(known))}"
            )
    spaces, differences = with_disks(measurements[-1].clusters, options.disks)
    newest = replace(measurements[-1], clusters=spaces)
    series = daily([*measurements[:-1], newest])
    effects = codec_effects(trials.columns, series)
    choice = options.choice(effects, newest)
    codec = options.codec or _chosen(choice)
    if not any(effect.codec == codec for effect in effects):
        codec = None
    weights = growth_weights(newest, trials.disk_per_body)
    forecasts = GrowthForecasts(series, weights, newest.datastore_of, options.seed)
    disks = []
    for disk in disks_of(newest, options.disk_names):
        disk_forecast = forecasts.of_disk(disk)
        used = disk_usage(disk, disk_forecast.history, [*measurements[:-1], newest])
        disks.append(replace(disk_forecast, used=used))
    _check_codecs(options, effects)
    files = predicted(newest, trials)
    others = _others(trials, newest, weights, engines or {})
    options = replace(options, what_ifs=(*_in_engine(options, trials, newest, codec), *options.what_ifs))
    outlooks = scenarios(newest, disks, series, effects, files, weights, codec, options.what_ifs, retention, others)
    total = forecasts.total(disks)
    compared = options.planning.price_per_tb is not None or bool(options.what_ifs)
    growth = forecasts.of_all(disks, total if compared else None, outlooks[0])
    report = CapacityReport(
        made_at=made_at,
        measurement=newest,
        measured_at=tuple(measurement.taken_at for measurement in measurements),
        series=tuple(series),
        disks=tuple(disks),
        total=total,
        too_few=tuple(sorted({trial.column_name for trial in trials.columns if not trial.carried})),
        columns=tuple(forecasts.of_columns()),
        trials=tuple(effects),
        engines=_asked_for(others.effects, options.what_ifs),
        weights=weights,
        choice=choice,
        codec=codec,
        scenarios=tuple(outlooks),
        planning=Planning(options.planning),
        comparisons=compare(_compared(outlooks, codec, options), disks, growth, outlooks[0], options.planning),
        skew=skew_of(newest),
        warnings=(),
        notes=(),
        how=how_obtained(newest, codec, engines=bool(others.effects)),
    )
    other_tables = note_on_other_tables(measurements) if len(newest.datastores) == 1 else []  # See ``combine``.
    report = replace(report, planning=_planning(report, growth))
    return replace(
        report,
        warnings=tuple(warnings_of(report)),
        notes=(*notes, *differences, *newest.notes, *notes_of(report), *other_tables),
    )


def _check_codecs(options: Asked, effects: Sequence[CodecEffect]) -> None:
    tried = {effect.codec for effect in effects}
    for change in options.what_ifs:
        if change.codec is not None and tried and change.codec not in tried:
            raise InvalidInput(
                f"scenario {change.name!r}: codec {change.codec} was not tried on this machine; "
                f"use one of {', '.join(sorted(tried))}"
            )


def _others(
    trials: CodecTrials, newest: Measurement, weights: Mapping[tuple[str, str], float], of_cluster: Mapping[str, str]
) -> Engines:
    """Return the effects of other storage engines, according to the trials."""
    effects: list[EngineEffect] = []
    files: dict[tuple[str, str, str | None], Interval] = {}
    for engine, tried in trials.engines.items():
        effects += engine_effects(engine, tried.columns, tried.disk_per_body, newest, weights)
        files |= {(engine, *key): size for key, size in predicted(newest, tried).items()}
    return Engines(of_cluster, tuple(effects), files)


def _in_engine(options: Asked, trials: CodecTrials, newest: Measurement, codec: str | None) -> list[WhatIf]:
    """Return the scenarios for the storage engine to compare with; ``codec`` was chosen for the present engine."""
    if options.engine is None:
        return []
    title = ENGINES[options.engine].title
    tried = trials.engines.get(options.engine)
    if tried is not None and options.codec is None:
        codec = _chosen(options.choice(codec_effects(tried.columns, []), newest, tried.disk_per_body))
    text = f"All cells moved to {title}, on disks like the present ones"
    changes = [WhatIf(name=title, text=f"{text}.", engine=options.engine)]
    if codec is not None:
        text += f", and re-encoded to {codec}."
        changes.append(WhatIf(name=f"{title}, {codec}", text=text, engine=options.engine, codec=codec))
    return changes


def _asked_for(effects: Sequence[EngineEffect], what_ifs: Sequence[WhatIf]) -> tuple[EngineEffect, ...]:
    asked = {(change.engine, codec) for change in what_ifs for codec in (None, change.codec)}
    return tuple(effect for effect in effects if (effect.engine, effect.codec) in asked)


def _compared(scenarios: Sequence[Scenario], codec: str | None, options: Asked) -> list[tuple[WhatIf, Scenario]]:
    """Return the scenarios to compare: ``now`` and the user's, or ``now`` and re-encoding if the user gave none."""
    changes = list(options.what_ifs)
    if codec is not None and all(change.engine is not None and change.engine == options.engine for change in changes):
        changes.insert(0, WhatIf(name=codec, codec=codec))
    by_name = {scenario.name: scenario for scenario in scenarios}
    return [(change, by_name[change.name]) for change in (NOTHING, *changes) if change.name in by_name]


def _planning(report: CapacityReport, growth: GrowthOfAll) -> Planning:
    now, after, options = report.now, report.after, report.planning.options
    by_name = {disk_forecast.disk.name: disk_forecast for disk_forecast in report.disks}
    worst_first = [by_name[outlook.disk] for outlook in now.worst_first]

    def of(scenario: Scenario | None) -> tuple[Level, ...]:
        return () if scenario is None else levels(scenario, worst_first, options)

    costs: list[Cost | None] = []
    if options.price_per_tb is not None:
        costs = [growth.cost(scenario, options.price_per_tb) for scenario in (now, after) if scenario is not None]
    found = tuple(cost for cost in costs if cost is not None)
    return Planning(options, of(now), of(after), found, verdict(now, options))


def try_all(cells: CellSample, listener: Listener = ignore_events) -> CodecTrials:
    """Try every codec on sampled cells of every column. Needs no server."""
    as_stored, now = _as_stored(cells), _lengths(cells)
    columns: list[ColumnTrial] = []
    units: dict[str | None, dict[str, Unit]] = {None: {}}
    for column, size in as_stored.disk_per_body.items():
        unit = _unit(cells, column, now[column], now[column], size, size)
        if unit is not None and cells.carries(column):
            units[None][column] = unit
    for name in codec_names():
        if not worth_trying(codec_named(name)):
            continue
        listener(Step(f"trying {name}"))
        for column in cells.column_names():
            trial = try_codec(cells, column, codec_named(name))
            columns.append(trial)
            lengths = [length for window in trial.migrated_bytes for length in window]
            per_body = as_stored.disk_per_body.get(column)
            if per_body is not None and trial.migrated_pages_share is not None:
                per_body *= trial.migrated_pages_share
            unit = _unit(cells, column, lengths, now[column], trial.migrated_share, per_body)
            if unit is not None and trial.carried:
                units.setdefault(name, {})[column] = unit
    return replace(as_stored, columns=tuple(columns), units=units)


def _unit(
    cells: CellSample,
    column: str,
    lengths: Sequence[int],
    before: Sequence[int],
    share: Interval | None,
    per_body: Interval | None,
) -> Unit | None:
    """Return the space of the average cell in pages or compressed blocks, given the lengths of the sampled bodies."""
    if not cells.in_blocks:
        return unit_of(column, lengths, cells.layouts[0], share, before)
    return None if per_body is None else unit_in_blocks(lengths, before, per_body)


def sizes_as_stored(store: Datastore, newest: Measurement) -> CodecTrials:
    """Sample cells to estimate the disk space of bodies as they are stored, without trying any codec.

    With the result, ``assemble_report`` forecasts disk usage as ``make`` does. If no cell can be read, the forecast
    uses the current files' ratio of disk space to body bytes, which is too high if the files are small.
    """
    try:
        cells = _cells(store, newest, DEFAULT_OPTIONS.seed)
    except (ServerError, InvalidInput) as error:
        _log.warning("cells could not be sampled, so the forecast may overestimate file sizes: %s", error)
        cells = None
    return NO_CODEC_TRIALS if cells is None else _as_stored(cells)


def _as_stored(cells: CellSample) -> CodecTrials:
    """Return each column's disk space per body byte, or no columns if the clusters have different engines."""
    layout = cells.layouts[0]
    mixed = len({each.row_share is None for each in cells.layouts}) > 1
    per_body = {}
    for column, lengths in {} if mixed else _lengths(cells).items():
        size = space_per_body(cells, column)
        large = None if layout == MYROCKS else disk_per_body(column, lengths, layout)
        if size is not None and size.mid:
            per_body[column] = size if large is None else size.times(large / size.mid)
    return CodecTrials((), {}, per_body, layout)


def _lengths(cells: CellSample) -> dict[str, list[int]]:
    return {column: [len(cell.body) for cell in cells.of_column(column)] for column in cells.column_names()}


def _cells(
    store: Datastore, newest: Measurement, seed: int, engines: Collection[str] = frozenset()
) -> CellSample | None:
    """Sample cells for trials in the present and the given storage engines; None if there are no cells."""
    reachable = {space.cluster for space in newest.clusters if space.problem is None}
    shards = [shard for name in sorted(reachable) for shard in internals_of(store).topology.shards_of(name)]
    if not shards or not newest.groups:
        return None
    in_blocks = ROCKSDB.name in {*engines, *(internals_of(store).topology.cluster_of(shard).engine for shard in shards)}
    cells = sample_cells(store, shards=shards, seed=seed, bounds=BLOCK_TRIAL_BOUNDS if in_blocks else TRIAL_BOUNDS)
    return cells if cells.column_names() else None
