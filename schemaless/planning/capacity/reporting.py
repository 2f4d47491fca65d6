"""Build a capacity report.

``collect`` reads the saved measurements of a datastore from the catalog; ``assemble_report`` is the pure part. ``make``
does both. Sizes, growth and codec trials come from the measurements alone, so that every output gives the same days for
the same measurement.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Final

from schemaless.base.events import Event, Listener, Step, ignore_events
from schemaless.base.numbers import counted
from schemaless.codec.registry import codec_named
from schemaless.errors import InvalidInput, ServerError
from schemaless.planning.capacity import history
from schemaless.planning.capacity.basis import Basis, Collected
from schemaless.planning.capacity.combined import combine
from schemaless.planning.capacity.disks import with_disks
from schemaless.planning.capacity.measure import check_disks, measure
from schemaless.planning.capacity.measurement import Measurement
from schemaless.planning.capacity.options import DEFAULT_OPTIONS, NOTHING, Asked, WhatIf
from schemaless.planning.capacity.planning import GrowthOfAll, Planning, Saving, compare, levels, verdict
from schemaless.planning.capacity.report import CapacityReport
from schemaless.planning.capacity.report_notes import how_obtained, note_on_other_tables, notes_of, warnings_of
from schemaless.planning.capacity.skew import skew_of
from schemaless.planning.capacity.whatif import LOST_HOST, scenarios
from schemaless.schema.engines import ENGINES
from schemaless.store.datastore import Datastore
from schemaless.store.erasures.retention import Policy
from schemaless.store.internals import internals_of

TIERING: Final = "tiering"
"""Name of the scenario of the tiering policies in force."""


def make(
    stores: Mapping[str, Datastore],
    options: Asked = DEFAULT_OPTIONS,
    *,
    fresh: bool = False,
    listener: Listener = ignore_events,
) -> CapacityReport:
    """Build one report of datastores, given by name. Writes nothing.

    Args:
        stores: The datastores. If there are several, their clusters and columns are called ``name/cluster`` and
            ``name/column``.
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
        prefix, own = "", options.disks
        if len(stores) > 1:
            prefix = f"{name}: "
            of_cluster = ((*given.rpartition("/"), disk) for given, disk in options.disks.items())
            own = {cluster: disk for datastore, _, cluster, disk in of_cluster if datastore == name}

        def listen(event: Event, prefix: str = prefix) -> None:
            listener(Step(f"{prefix}{event.what}") if isinstance(event, Step) else event)

        parts[name] = collect(store, replace(options, disks=own), fresh=fresh, listener=listen)
    listener(Step("forecasting"))
    return assemble_report(combine(parts), datetime.datetime.now(datetime.UTC), options)


def collect(
    store: Datastore, options: Asked = DEFAULT_OPTIONS, *, fresh: bool = False, listener: Listener = ignore_events
) -> Collected:
    """Read the measurements of a datastore, or take one; see ``make``."""
    if options.codec is not None:
        codec_named(options.codec)
    check_disks(store, options.disks)
    listener(Step("reading the saved measurements"))
    saved, unreadable = history.read(store, [sample.sample_id for sample in history.kept(store)])
    measurements = [*saved.values()]
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
    tiers: dict[str, int] = {}
    try:
        policies = {policy.column_name: policy for policy in internals_of(store).policies.all()}
        tiers = {policy.column_name: policy.after_days for policy in internals_of(store).cold.policies()}
    except ServerError as error:
        notes.append(f"policies could not be read: {error}")
    changes = history.changes_since(store, measurements[-1])
    return Collected(tuple(measurements), tuple(notes), tuple(changes), tuple(unreadable), policies, tiers, engines)


def _check_engines(options: Asked, newest: Measurement, of_cluster: Mapping[str, str]) -> None:
    """Check that cells were tried in the storage engines to compare with."""
    for engine in sorted(options.engines - newest.trials.engines.keys()):
        if newest.trials.columns and set(of_cluster.values()) != {engine}:
            raise InvalidInput(
                f"the newest measurement has no trials in {ENGINES[engine].title}; take one with 'schemaless capacity "
                f"measure --engine {engine}', or add --fresh"
            )


def assemble_report(
    collected: Collected, made_at: datetime.datetime, options: Asked = DEFAULT_OPTIONS
) -> CapacityReport:
    """Build a report from measurements. Needs no server.

    Args:
        collected: The measurements, and what else is known of the datastore.
        made_at: Current time, UTC.
        options: Options of the report.

    Raises:
        InvalidInput: The extra [report] is not installed.
    """
    newest = collected.measurements[-1]
    known = {space.cluster for space in newest.clusters}
    for cluster in options.disks:
        if cluster not in known:
            raise InvalidInput(
                f"{options.disks[cluster].source} names the cluster {cluster!r}, which does not exist; the report's "
                f"clusters are {', '.join(sorted(known))}"
            )
    spaces, differences = with_disks(newest.clusters, options.disks)
    newest = replace(newest, clusters=spaces)
    basis = Basis.of(replace(collected, measurements=(*collected.measurements[:-1], newest)), options)
    choice = basis.recommended()
    codec = options.codec or (choice and choice.chosen and choice.chosen.name)
    tried = {effect.codec for effect in basis.trials}
    if codec not in tried:
        codec = None
    for change in options.what_ifs:
        if change.codec is not None and tried and change.codec not in tried:
            raise InvalidInput(
                f"{change.where}: codec {change.codec} was not tried by the measurement; "
                f"use one of {', '.join(sorted(tried))}"
            )
    options = replace(options, what_ifs=(*_in_engine(basis, codec), *_tiering(basis), *options.what_ifs))
    basis = replace(basis, options=options)
    outlooks = scenarios(basis, codec)
    total = basis.forecast_total()
    growth = GrowthOfAll.of(basis, total, outlooks[0])
    compared = {each.name: compare(basis, growth, outlooks[0], each) for each in outlooks if each.name != LOST_HOST}
    asked = {(change.engine, codec) for change in options.what_ifs for codec in (None, change.trial)}
    shown = tuple(effect for effect in basis.engines if (effect.engine, effect.codec) in asked)
    inherited = {part.name: getattr(basis, part.name) for part in fields(basis)}
    report = CapacityReport(
        **{**inherited, "engines": shown},
        made_at=made_at,
        total=total,
        columns=tuple(basis.forecast_columns()),
        choice=choice,
        codec=codec,
        scenarios=tuple(outlooks),
        planning=Planning(options.planning),
        compared=compared,
        comparisons=tuple(compared[name] for name in _to_compare(codec, options) if name in compared),
        # Nothing is saved if all cells are in the codec already.
        saving=Saving.of(compared[NOTHING.name], compared[codec]) if codec in compared else None,
        skew=skew_of(newest),
        warnings=(),
        notes=(),
        how=how_obtained(newest, codec, engines=bool(basis.engines)),
    )
    stale = (
        f"{change} since the measurement, and all figures describe the cells before that; measure again with "
        "'schemaless capacity measure'"
        for change in collected.changes
    )
    other_tables = (
        note_on_other_tables(collected.measurements) if len(newest.datastores) == 1 else []
    )  # See ``combine``.
    return replace(
        report,
        planning=_planning(report),
        warnings=(*(f"left out: {problem}" for problem in collected.unreadable), *stale, *warnings_of(report)),
        notes=(*collected.notes, *differences, *newest.notes, *notes_of(report), *other_tables),
    )


def _in_engine(basis: Basis, codec: str | None) -> list[WhatIf]:
    """Return the scenarios for the storage engine to compare with; ``codec`` was chosen for the present engine."""
    options = basis.options
    if options.engine is None:
        return []
    title = ENGINES[options.engine].title
    if options.engine in basis.measurement.trials.engines and options.codec is None:
        choice = basis.recommended(options.engine)
        codec = None if choice is None or choice.chosen is None else choice.chosen.name
    text = f"All cells moved to {title}, on disks like the present ones"
    changes = [WhatIf(name=title, text=f"{text}.", engine=options.engine)]
    if codec is not None:
        text += f", and re-encoded to {codec}."
        changes.append(WhatIf(name=f"{title}, {codec}", text=text, engine=options.engine, codec=codec))
    return changes


def _tiering(basis: Basis) -> list[WhatIf]:
    """Return the scenario of the policies in force, if the size of cold files is known."""
    tiers = {column: days for column, days in basis.tiers.items() if column in basis.file_share}
    ages = "; ".join(f"{column}: after {counted(days, 'day')}" for column, days in tiers.items())
    text = f"Cells become cold daily ({ages}), and tables are rebuilt where that shortens their files."
    return [WhatIf(name=TIERING, text=text, tier_after=tiers)] if tiers else []


def _to_compare(codec: str | None, options: Asked) -> list[str]:
    """Name the scenarios to compare: ``now`` and the user's, or ``now`` and re-encoding if the user gave none."""
    asked = [change for change in options.what_ifs if change.name != TIERING]
    alone = all(change.engine is not None and change.engine == options.engine for change in asked)
    return [NOTHING.name, *([codec] if codec and alone else []), *(change.name for change in options.what_ifs)]


def _planning(report: CapacityReport) -> Planning:
    options = report.planning.options
    worst_first = [outlook.disk for outlook in report.now.worst_first]
    known = [scenario for scenario in (report.now, report.after) if scenario is not None]
    reached = [levels(report, scenario, worst_first, options.thresholds, options.lead_days) for scenario in known]
    costs = [] if options.price_per_tb is None else [report.compared[each.name].cost for each in known]
    return Planning(
        options,
        reached[0],
        reached[1] if report.after is not None else (),
        tuple(cost for cost in costs if cost is not None),
        verdict(report.now, options),
    )
