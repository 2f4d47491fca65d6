"""Saved measurements in the catalog: write, list and thin them, so that trends do not require reading old cells again.

Every measurement of the last 14 days is kept, then the last one of each day up to an age of 100 days, of each week up
to two years, and of each month beyond that (all UTC). The newest and the oldest one are never deleted.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from schemaless.errors import InvalidInput
from schemaless.planning.capacity import sql
from schemaless.planning.capacity.measurement import Measurement
from schemaless.store.datastore import Datastore
from schemaless.store.internals import internals_of
from schemaless.wire.connection import Connection

_ALL_DAYS: Final = 14
_DAILY_DAYS: Final = 100
_WEEKLY_DAYS: Final = 731


_CHANGES: Final = {
    "migrate": "migration {} has changed cells",
    "move": "move {} has moved shards",
    "rebuild": "rebuild {} has rebuilt tables",
    "restore": "restore {} has changed cells",
    "retain": "retention run {} has changed cells",
    "tier": "tier run {} has moved documents to cold files",
    "recall": "recall {} has put cold documents back",
}


@dataclass(frozen=True, slots=True)
class Kept:
    """Key of a measurement in the catalog; ``taken_at`` is UTC."""

    sample_id: int
    taken_at: datetime


def keep(store: Datastore, measurement: Measurement) -> int:
    """Save a measurement in the catalog, thin out the older ones, and return the new one's number.

    Raises:
        AccessDenied: The account lacks the privileges of the role ``measure``.
        OutcomeUnknown: The reply was lost; the measurement may have been saved.
        ServerError: The catalog's server cannot be reached or rejects the statement.
    """
    internals = internals_of(store)
    figures = json.dumps(measurement.to_json(), separators=(",", ":"))
    at = measurement.taken_at.astimezone(UTC).replace(tzinfo=None).isoformat(sep=" ")

    def insert(connection: Connection) -> int:
        # A retry after a lost reply must not save the measurement twice.
        saved = connection.rows(sql.select_same_sample(store.name, at, figures))
        return int(saved[0][0]) if saved else connection.execute(sql.insert_sample(store.name, at, figures)).last_id

    sample_id = internals.catalog.run(insert, writes=True)
    old = [old_sample.sample_id for old_sample in thinned(kept(store), measurement.taken_at)]
    if old:
        internals.catalog.run(lambda connection: connection.execute(sql.delete_samples(store.name, old)))
    return sample_id


def kept(store: Datastore) -> list[Kept]:
    """List the measurements in the catalog, oldest first.

    Raises:
        ServerError: The catalog's server cannot be reached or rejects the statement.
    """
    rows = internals_of(store).catalog.rows(sql.select_sample_times(store.name))
    return [Kept(int(sample_id), datetime.fromisoformat(taken_at)) for sample_id, taken_at in rows]


def read(store: Datastore, sample_ids: Sequence[int]) -> tuple[dict[int, Measurement], list[str]]:
    """Load measurements by number, oldest first.

    Returns:
        Those that can be read, and for each other one that exists, its number and why it cannot be read.

    Raises:
        ServerError: The catalog's server cannot be reached or rejects the statement.
    """
    found, problems = dict[int, Measurement](), list[str]()
    rows = internals_of(store).catalog.rows(sql.select_samples(store.name, sample_ids)) if sample_ids else ()
    for sample_id, figures in rows:
        try:
            found[int(sample_id)] = _parsed(int(sample_id), figures)
        except InvalidInput as error:
            problems.append(str(error))
    return found, problems


def _parsed(sample_id: int, figures: str | bytes) -> Measurement:
    try:
        return Measurement.from_json(json.loads(figures))
    except InvalidInput as error:
        raise InvalidInput(f"measurement {sample_id} in the catalog cannot be read: {error}") from error
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise InvalidInput(
            f"measurement {sample_id} in the catalog is damaged ({error}); delete the row with this sample_id from the "
            "catalog's table capacity_sample, and measure again"
        ) from error


def latest(store: Datastore) -> Measurement | None:
    """Load the newest measurement in the catalog, or None if there is none.

    Raises:
        InvalidInput: It is damaged, or a later version of schemaless wrote it.
        ServerError: The catalog's server cannot be reached or rejects the statement.
    """
    found, problems = read(store, [each.sample_id for each in kept(store)[-1:]])
    if problems:
        raise InvalidInput(problems[0])
    return next(iter(found.values()), None)


def changes_since(store: Datastore, measurement: Measurement) -> list[str]:
    """Return the jobs that have changed sizes since a measurement, as a clause such as "migration 7 has changed cells".

    Erasures are left out, because each concerns only a few cells, and so are sweeps, which concern none.

    Raises:
        ServerError: The catalog's server cannot be reached or rejects the statement.
    """
    known = measurement.job_progress
    return [
        _CHANGES[kind].format(job_id)
        for job_id, kind, done in job_progress(store, measurement.taken_at)
        if done != known.get(job_id, 0)
    ]


def job_progress(store: Datastore, since: datetime) -> list[tuple[int, str, int]]:
    """Return the progress of jobs, except erasures and sweeps, that are unfinished or ended after a time, oldest first.

    Each entry has the job's id and kind, and the number of completed shards of a move or rebuild, of changed cells of
    other jobs.
    """
    rows = internals_of(store).catalog.rows(sql.select_progress(store.name, since))
    return [(int(job_id), str(kind), int(done)) for job_id, kind, done in rows]


def thinned(all_kept: Sequence[Kept], now: datetime) -> list[Kept]:
    """Return the measurements that are due for deletion, oldest first."""
    last: dict[Hashable, Kept] = {}
    for sample in all_kept:
        last[_slot(sample, now)] = sample
    stay = {sample.sample_id for sample in last.values()} | {
        sample.sample_id for sample in (*all_kept[:1], *all_kept[-1:])
    }
    return [sample for sample in all_kept if sample.sample_id not in stay]


def _slot(sample: Kept, now: datetime) -> Hashable:
    """Return a key for the period from which one measurement is kept."""
    age_days, day = (now - sample.taken_at).days, sample.taken_at.astimezone(UTC).date()
    if age_days < _ALL_DAYS:
        return sample.sample_id
    if age_days < _DAILY_DAYS:
        return day
    if age_days < _WEEKLY_DAYS:
        return day.isocalendar()[:2]
    return day.year, "month", day.month
