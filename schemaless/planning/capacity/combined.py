"""Combine the figures of several datastores, so that one report forecasts all their disks. Pure functions.

The result treats them as one datastore, whose clusters and columns are called ``datastore/name``. Every figure of a
report is then calculated as for one datastore, even for disks that several datastores share.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import replace

from schemaless.errors import InvalidInput
from schemaless.planning.capacity.basis import Collected
from schemaless.planning.capacity.measurement import CodecTrials, Measurement, qualified
from schemaless.planning.capacity.rebuilt import predicted
from schemaless.planning.capacity.report_notes import note_on_other_tables


def combine(parts: Mapping[str, Collected]) -> Collected:
    """Combine several datastores, given by name.

    Raises:
        InvalidInput: Two of them are the same datastore.
    """
    if len(parts) == 1:
        return next(iter(parts.values()))
    nodes: dict[tuple[str, str], str] = {}
    for name, part in parts.items():
        newest = part.measurements[-1]
        for space in newest.clusters:
            other = nodes.setdefault((newest.datastore, space.node), name)
            if other != name:
                raise InvalidInput(f"{other} and {name} are the same datastore, {newest.datastore} on {space.node}")
    renamed = {name: [_renamed(name, measurement) for measurement in part.measurements] for name, part in parts.items()}
    newest_ones = [measurements[-1] for measurements in renamed.values()]
    # Days after the oldest of the newest measurements are unknown for its datastore.
    until = min(measurement.taken_at for measurement in newest_ones)
    earlier = [measurement for measurements in renamed.values() for measurement in measurements[:-1]]
    notes = [
        f"{name}: {note}"
        for name, part in parts.items()
        for note in (*part.notes, *note_on_other_tables(part.measurements))
    ]
    trials = {name: part.measurements[-1] for name, part in parts.items()}
    tried = {
        engine: _joined_trials(
            {
                name: replace(newest, trials=newest.trials.engines[engine])
                for name, newest in trials.items()
                if engine in newest.trials.engines
            }
        )
        for engine in {engine for newest in trials.values() for engine in newest.trials.engines}
    }
    newest = replace(_joined(newest_ones, until), trials=replace(_joined_trials(trials), engines=tried))
    return Collected(
        (*_by_day(earlier, len(parts)), newest),
        tuple(notes),
        tuple(f"{name}: {change}" for name, part in parts.items() for change in part.changes),
        {qualified(name, column): policy for name, part in parts.items() for column, policy in part.policies.items()},
        {qualified(name, column): days for name, part in parts.items() for column, days in part.tiers.items()},
        {qualified(name, cluster): engine for name, part in parts.items() for cluster, engine in part.engines.items()},
    )


def _joined_trials(measurements: Mapping[str, Measurement]) -> CodecTrials:
    """Join the trials of different datastores, with the file lengths predicted for each measurement."""
    trials = {name: measurement.trials for name, measurement in measurements.items()}
    return CodecTrials(
        columns=tuple(
            replace(trial, column_name=qualified(name, trial.column_name))
            for name, of_store in trials.items()
            for trial in of_store.columns
        ),
        history=tuple(
            replace(trial, column_name=qualified(name, trial.column_name))
            for name, of_store in trials.items()
            for trial in of_store.history
        ),
        dictionaries=tuple(
            replace(trial, column_name=qualified(name, trial.column_name))
            for name, of_store in trials.items()
            for trial in of_store.dictionaries
        ),
        units={},
        disk_per_body={
            qualified(name, column): size
            for name, of_store in trials.items()
            for column, size in of_store.disk_per_body.items()
        },
        files={
            (qualified(name, cluster), codec): size
            for name, measurement in measurements.items()
            for (cluster, codec), size in predicted(measurement).items()
        },
        file_share={
            qualified(name, column): share
            for name, of_store in trials.items()
            for column, share in of_store.file_share.items()
        },
        superseded={
            (qualified(name, column), kept): share
            for name, of_store in trials.items()
            for (column, kept), share in of_store.superseded.items()
        },
    )


def _renamed(name: str, measurement: Measurement) -> Measurement:
    return replace(
        measurement,
        datastore=name,
        groups=tuple(
            replace(group, cluster=qualified(name, group.cluster), column_name=qualified(name, group.column_name))
            for group in measurement.groups
        ),
        growth=tuple(
            replace(intake, cluster=qualified(name, intake.cluster), column_name=qualified(name, intake.column_name))
            for intake in measurement.growth
        ),
        clusters=tuple(replace(space, cluster=qualified(name, space.cluster)) for space in measurement.clusters),
        notes=tuple(f"{name}: {note}" for note in measurement.notes),
    )


def _by_day(measurements: Sequence[Measurement], datastores: int) -> list[Measurement]:
    """Return the measurements, oldest first; on days when every datastore has one, the first of each are joined.

    Datastores may share disks, so a sum needs all of them.
    """
    days: dict[datetime.date, dict[str, Measurement]] = {}
    results = []
    for measurement in measurements:
        same_day = days.setdefault(measurement.taken_at.date(), {})
        if measurement.datastore in same_day:
            results.append(measurement)
        else:
            same_day[measurement.datastore] = measurement
    for by_name in days.values():
        if len(by_name) == datastores:
            results.append(_joined(list(by_name.values()), min(one.taken_at for one in by_name.values())))
        else:
            results += by_name.values()
    return sorted(results, key=lambda measurement: measurement.taken_at)


def _joined(measurements: Sequence[Measurement], until: datetime.datetime) -> Measurement:
    """Join measurements of different datastores, leaving out the measured days after ``until``."""
    return replace(
        measurements[0],
        taken_at=until,
        datastore=" and ".join(measurement.datastore for measurement in measurements),
        shard_count=sum(measurement.shard_count for measurement in measurements),
        groups=tuple(group for measurement in measurements for group in measurement.groups),
        growth=tuple(
            intake
            for measurement in measurements
            for intake in measurement.growth
            if intake.day <= until.date() or intake.day > measurement.taken_at.date()
        ),
        clusters=tuple(space for measurement in measurements for space in measurement.clusters),
        notes=tuple(note for measurement in measurements for note in measurement.notes),
        rows_read=sum(measurement.rows_read for measurement in measurements),
        pages_read=sum(measurement.pages_read for measurement in measurements),
        seconds=sum(measurement.seconds for measurement in measurements),
    )
