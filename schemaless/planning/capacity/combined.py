"""Combine the figures of several datastores, so that one report forecasts all their disks. Pure functions.

The result treats them as one datastore, whose clusters and columns are called ``datastore/name``. Every figure of a
report is then calculated as for one datastore, even for disks that several datastores share.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from schemaless.base.type_variables import T
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
    trials = _joined_trials({name: part.measurements[-1] for name, part in parts.items()})
    newest = replace(_joined(newest_ones, until), trials=trials)
    return Collected(
        (*_by_day(earlier, len(parts)), newest),
        tuple(notes),
        tuple(f"{name}: {change}" for name, part in parts.items() for change in part.changes),
        tuple(f"{name}: {problem}" for name, part in parts.items() for problem in part.unreadable),
        *(
            _merged({name: getattr(part, each) for name, part in parts.items()})
            for each in ("policies", "tiers", "engines")
        ),
    )


def _joined_trials(measurements: Mapping[str, Measurement]) -> CodecTrials:
    """Join the trials of different datastores, with the file lengths predicted for each measurement."""
    trials = {name: replace(each.trials, files=predicted(each)) for name, each in measurements.items()}
    joined: dict[str, Any] = {"units": {}}
    for part in ("columns", "history", "dictionaries"):
        joined[part] = tuple(
            each for name, of_store in trials.items() for each in _qualified(name, getattr(of_store, part))
        )
    for part in ("disk_per_body", "files", "file_share", "superseded"):
        joined[part] = _merged({name: getattr(of_store, part) for name, of_store in trials.items()})
    joined["engines"] = {
        engine: _joined_trials(
            {
                name: replace(measurement, trials=measurement.trials.engines[engine])
                for name, measurement in measurements.items()
                if engine in measurement.trials.engines
            }
        )
        for engine in {engine for of_store in trials.values() for engine in of_store.engines}
    }
    return CodecTrials(**joined)


def _merged(parts: Mapping[str, Mapping[Any, T]]) -> dict[Any, T]:
    """Merge values by cluster or column, or by tuples that begin with one, of different datastores."""
    return {
        qualified(name, key) if isinstance(key, str) else (qualified(name, key[0]), *key[1:]): value
        for name, part in parts.items()
        for key, value in part.items()
    }


def _qualified(name: str, items: Iterable[Any]) -> tuple[Any, ...]:
    """Return values with the qualified names of their clusters and columns."""
    return tuple(
        replace(
            item,
            **{
                part: qualified(name, getattr(item, part)) for part in ("cluster", "column_name") if hasattr(item, part)
            },
        )
        for item in items
    )


def _renamed(name: str, measurement: Measurement) -> Measurement:
    notes = tuple(f"{name}: {note}" for note in measurement.notes)
    parts: dict[str, Any] = {
        part: _qualified(name, getattr(measurement, part)) for part in ("groups", "growth", "clusters")
    }
    return replace(measurement, datastore=name, notes=notes, **parts)


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
    joined: dict[str, Any] = {
        part: tuple(each for measurement in measurements for each in getattr(measurement, part))
        for part in ("groups", "clusters", "notes")
    }
    joined |= {
        part: sum(getattr(measurement, part) for measurement in measurements)
        for part in ("shard_count", "rows_read", "pages_read", "seconds")
    }
    growth = tuple(
        intake
        for measurement in measurements
        for intake in measurement.growth
        if intake.day <= until.date() or intake.day > measurement.taken_at.date()
    )
    datastore = " and ".join(measurement.datastore for measurement in measurements)
    return replace(measurements[0], taken_at=until, datastore=datastore, growth=growth, **joined)
