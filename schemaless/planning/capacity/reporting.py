"""Build a capacity report.

``collect`` reads the saved measurements of a datastore from the catalog; ``assemble_report`` is the pure part. ``make``
does both for one datastore, ``make_of_several`` for several. Sizes, growth and codec trials come from the measurements
alone, so that every output gives the same days for the same measurement.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from schemaless.base.events import Event, Listener, Step, ignore_events
from schemaless.base.numbers import Interval
from schemaless.codec.registry import DEFAULT, codec_named
from schemaless.errors import InvalidInput, ServerError
from schemaless.planning.capacity import history
from schemaless.planning.capacity.combined import Collected, combine, predicted
from schemaless.planning.capacity.comparison import GrowthOfAll, compare
from schemaless.planning.capacity.disk_forecast import DiskForecast, disk_usage
from schemaless.planning.capacity.disks import GivenDisk, disks_of, with_disks
from schemaless.planning.capacity.engines import EngineEffect, Engines, engine_effects
from schemaless.planning.capacity.expiry import Retention
from schemaless.planning.capacity.growth_forecasts import GrowthForecasts
from schemaless.planning.capacity.measure import check_disks, measure
from schemaless.planning.capacity.measurement import CodecTrials, Measurement
from schemaless.planning.capacity.planning import Cost, Level, Planning, PlanningOptions, levels, verdict
from schemaless.planning.capacity.report import CapacityReport
from schemaless.planning.capacity.report_notes import how_obtained, note_on_other_tables, notes_of, warnings_of
from schemaless.planning.capacity.series import Series, daily
from schemaless.planning.capacity.skew import skew_of
from schemaless.planning.capacity.whatif import (
    NOTHING,
    CodecEffect,
    Scenario,
    WhatIf,
    best_codec,
    codec_effects,
    growth_weights,
    scenarios,
)
from schemaless.planning.sampling.recommendation import LEAST_GAIN, MOST_CPU, Choice
from schemaless.schema.engines import ENGINES
from schemaless.store.datastore import Datastore
from schemaless.store.erasures.retention import Policy
from schemaless.store.internals import internals_of


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
    return assemble_report(
        collected.measurements,
        datetime.datetime.now(datetime.UTC),
        options,
        notes=collected.notes,
        changes=collected.changes,
        policies=collected.policies,
        engines=collected.engines,
    )


def collect(
    store: Datastore, options: Asked = DEFAULT_OPTIONS, *, fresh: bool = False, listener: Listener = ignore_events
) -> Collected:
    """Read the measurements of a datastore, or take one; see ``make``."""
    if options.codec is not None:
        codec_named(options.codec)
    check_disks(store, options.disks)
    listener(Step("reading the saved measurements"))
    measurements = history.read(store, [sample.sample_id for sample in history.kept(store)])
    engines = {cluster.name: cluster.engine for cluster in internals_of(store).topology.clusters}
    notes: list[str] = []
    if fresh or not measurements:
        listener(Step("measuring"))
        new = measure(
            store,
            disks=options.disks,
            seed=options.seed,
            engines=options.engines,
            codec=options.codec,
            listener=listener,
        )
        measurements.append(new)
        if not fresh:
            notes.append(
                "the catalog has no saved measurement, so one was taken for this report only; run 'schemaless capacity "
                "measure' daily to save measurements"
            )
    _check_engines(options, measurements[-1], engines)
    policies: dict[str, Policy] = {}
    try:
        policies = {policy.column_name: policy for policy in internals_of(store).policies.all()}
    except ServerError as error:
        notes.append(f"retention policies could not be read: {error}")
    changes = history.changes_since(store, measurements[-1])
    return Collected(tuple(measurements), tuple(notes), tuple(changes), policies, engines)


def _check_engines(options: Asked, newest: Measurement, of_cluster: Mapping[str, str]) -> None:
    """Check that cells were tried in the storage engines to compare with."""
    for engine in sorted(options.engines - newest.trials.engines.keys()):
        if newest.trials.columns and set(of_cluster.values()) != {engine}:
            raise InvalidInput(
                f"the newest measurement has no trials in {ENGINES[engine].title}; take one with 'schemaless capacity "
                f"measure --engine {engine}', or add --fresh"
            )


def _chosen(choice: Choice | None) -> str | None:
    return None if choice is None or choice.chosen is None else choice.chosen.name


def assemble_report(
    measurements: Sequence[Measurement],
    made_at: datetime.datetime,
    options: Asked = DEFAULT_OPTIONS,
    *,
    notes: Sequence[str] = (),
    changes: Sequence[str] = (),
    policies: Mapping[str, Policy] | None = None,
    engines: Mapping[str, str] | None = None,
) -> CapacityReport:
    """Build a report from measurements. Needs no server.

    Args:
        measurements: Oldest first, at least one; sizes and codec trials come from the last.
        made_at: Current time, UTC.
        options: Options of the report.
        notes: Notes to include, from the caller.
        changes: What has changed the cells since the last measurement, from ``history.changes_since``.
        policies: The retention policies in force, by column.
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
    trials = newest.trials
    retention = Retention(policies or {}, trials.superseded, trials.layout)
    series = daily([*measurements[:-1], newest])
    weights = growth_weights(newest, trials.disk_per_body)
    forecasts = GrowthForecasts(series, weights, newest.datastore_of, options.seed)
    disks = []
    for disk in disks_of(newest, options.disk_names):
        disk_forecast = forecasts.of_disk(disk)
        used = disk_usage(disk, disk_forecast.history, [*measurements[:-1], newest])
        disks.append(replace(disk_forecast, used=used))
    series = _without_bursts(series, disks)
    effects = codec_effects(trials.columns, series)
    choice = options.choice(effects, newest)
    codec = options.codec or _chosen(choice)
    if not any(effect.codec == codec for effect in effects):
        codec = None
    _check_codecs(options, effects)
    files = predicted(newest)
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
        warnings=(*_change_warnings(changes), *warnings_of(report)),
        notes=(*notes, *differences, *newest.notes, *notes_of(report), *other_tables),
    )


def _without_bursts(series: Sequence[Series], disks: Sequence[DiskForecast]) -> list[Series]:
    left_out = {
        cluster: frozenset(day for burst in disk_forecast.bursts for day in burst.dates)
        for disk_forecast in disks
        for cluster in disk_forecast.disk.clusters
    }
    return [replace(one, left_out=left_out.get(one.cluster, frozenset())) for one in series]


def _change_warnings(changes: Sequence[str]) -> list[str]:
    return [
        f"{change} since the measurement, and all figures describe the cells before that; measure again with "
        "'schemaless capacity measure'"
        for change in changes
    ]


def _check_codecs(options: Asked, effects: Sequence[CodecEffect]) -> None:
    tried = {effect.codec for effect in effects}
    for change in options.what_ifs:
        if change.codec is not None and tried and change.codec not in tried:
            raise InvalidInput(
                f"scenario {change.name!r}: codec {change.codec} was not tried by the measurement; "
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
        files |= {(engine, *key): size for key, size in predicted(replace(newest, trials=tried)).items()}
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
