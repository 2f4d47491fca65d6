"""Measurements in the catalog: kept, listed, and thinned as they get old, so that trends need no reading again.

Of the last two weeks every measurement is kept; of the last hundred days the last one of each day; of the last two
years the last one of each week; before that, the last one of each month (all UTC). The newest and the oldest stay.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from schemaless.capacity import sql
from schemaless.capacity.measurement import Measurement
from schemaless.datastore import Datastore
from schemaless.errors import InvalidInput
from schemaless.internals import internals_of
from schemaless.wire.connection import Connection

_ALL_DAYS: Final = 14
_DAILY_DAYS: Final = 100
_WEEKLY_DAYS: Final = 731


@dataclass(frozen=True, slots=True)
class Kept:
    """A measurement in the catalog.

    Attributes:
        sample_id: its number.
        taken_at: UTC.
    """

    sample_id: int
    taken_at: datetime


def keep(store: Datastore, measurement: Measurement) -> int:
    """Write a measurement into the catalog, take out what is thinned, and return its number.

    Raises:
        AccessDenied: the account may not; the role ``measure`` may.
        OutcomeUnknown: the reply was lost; it may be there.
        ServerError: the catalog's server cannot be reached, or refuses.
    """
    internals = internals_of(store)
    figures = json.dumps(measurement.to_json(), separators=(",", ":"))
    at = measurement.taken_at.astimezone(UTC).replace(tzinfo=None).isoformat(sep=" ")

    def insert(connection: Connection) -> int:
        # Again after a lost reply: the same one is not written twice.
        there = connection.rows(sql.select_same_sample(store.name, at, figures))
        return int(there[0][0]) if there else connection.execute(sql.insert_sample(store.name, at, figures)).last_id

    sample_id = internals.catalog.run(insert, writes=True)
    old = [old_sample.sample_id for old_sample in thinned(kept(store), measurement.taken_at)]
    if old:
        internals.catalog.run(lambda connection: connection.execute(sql.delete_samples(store.name, old)))
    return sample_id


def kept(store: Datastore) -> list[Kept]:
    """Return what measurements the catalog has, oldest first.

    Raises:
        ServerError: the catalog's server cannot be reached, or refuses.
    """
    rows = internals_of(store).catalog.run(lambda connection: connection.rows(sql.select_sample_times(store.name)))
    return [Kept(int(sample_id), datetime.fromisoformat(taken_at)) for sample_id, taken_at in rows]


def read(store: Datastore, sample_ids: Iterable[int]) -> list[Measurement]:
    """Return measurements by their numbers, oldest first.

    Raises:
        InvalidInput: there is no such measurement, or it is of a later version.
        ServerError: the catalog's server cannot be reached, or refuses.
    """
    wanted = list(dict.fromkeys(sample_ids))
    if not wanted:
        return []
    rows = internals_of(store).catalog.run(lambda connection: connection.rows(sql.select_samples(store.name, wanted)))
    missing = set(wanted) - {int(row[0]) for row in rows}
    if missing:
        raise InvalidInput(
            f"there is no measurement {min(missing)} of {store.name!r}; 'schemaless capacity history' lists those kept"
        )
    return [Measurement.from_json(json.loads(figures)) for _, figures in rows]


def latest(store: Datastore) -> Measurement | None:
    """Return the newest measurement that the catalog has; None where there is none.

    Raises:
        InvalidInput: it is of a later version.
        ServerError: the catalog's server cannot be reached, or refuses.
    """
    all_kept = kept(store)
    return read(store, [all_kept[-1].sample_id])[0] if all_kept else None


def thinned(all_kept: Sequence[Kept], now: datetime) -> list[Kept]:
    """Return which measurements are to go, of all that are kept, oldest first."""
    last: dict[Hashable, Kept] = {}
    for sample in all_kept:
        last[_slot(sample, now)] = sample
    stay = {sample.sample_id for sample in last.values()} | {
        sample.sample_id for sample in (*all_kept[:1], *all_kept[-1:])
    }
    return [sample for sample in all_kept if sample.sample_id not in stay]


def _slot(sample: Kept, now: datetime) -> Hashable:
    """Return a name for the stretch of time of which one measurement stays."""
    age_days, day = (now - sample.taken_at).days, sample.taken_at.astimezone(UTC).date()
    if age_days < _ALL_DAYS:
        return sample.sample_id
    if age_days < _DAILY_DAYS:
        return day
    if age_days < _WEEKLY_DAYS:
        return day.isocalendar()[:2]
    return day.year, "month", day.month
