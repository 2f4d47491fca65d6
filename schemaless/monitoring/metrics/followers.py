"""Metrics of triggers: lag, parked cells and shard states."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

from schemaless.monitoring.metrics.metric import Collector, Metric, Read, Sample
from schemaless.store.datastore import Datastore
from schemaless.store.followers.states import PAUSED, QUARANTINED, RUNNING, STOPPED
from schemaless.store.triggers.admin import Triggers, TriggerStatus

_EVERY_S: Final = 15.0
_TRIGGER: Final = ("trigger",)
_STATES: Final = (RUNNING, "waiting", QUARANTINED, STOPPED, "missing")

LAG_IDS: Final = Metric(
    "trigger_ids_behind", "Number of added_ids between the trigger's locations and the ends of the shards.", _TRIGGER
)
LAG_S: Final = Metric(
    "trigger_behind_seconds", "Age of the oldest cell that the trigger has not processed; 0 if there is none.", _TRIGGER
)
PARKED: Final = Metric("trigger_parked_cells", "Cells that the trigger has parked.", _TRIGGER)
SHARDS: Final = Metric(
    "trigger_shards",
    "Shards by state: running, waiting for the next attempt at a cell, quarantined (a cell killed its "
    "worker), stopped, or "
    "missing (no progress row, or unreachable).",
    (*_TRIGGER, "state"),
)
WORKERS: Final = Metric("trigger_workers", "Live workers of the trigger.", _TRIGGER)
IS_PAUSED: Final = Metric("trigger_paused", "1 if the trigger is paused, else 0.", _TRIGGER)


def _reading(store: Datastore) -> Read:
    triggers = Triggers(store)

    def read() -> Iterator[Sample]:
        for name in triggers.names():
            yield from _samples(triggers.status(name))

    return read


def _samples(status: TriggerStatus) -> Iterator[Sample]:
    states = Counter(shard.state for shard in status.shards)
    yield LAG_IDS.at(sum(shard.ids_behind for shard in status.shards), status.name)
    yield LAG_S.at(max((shard.behind_s for shard in status.shards), default=0.0), status.name)
    yield PARKED.at(sum(shard.row.parked for shard in status.shards if shard.row is not None), status.name)
    for state in _STATES:
        yield SHARDS.at(states[state], status.name, state)
    yield WORKERS.at(len(status.workers), status.name)
    yield IS_PAUSED.at(status.setting.desired_state == PAUSED, status.name)


FOLLOWERS: Final = Collector("followers", (LAG_IDS, LAG_S, PARKED, SHARDS, WORKERS, IS_PAUSED), _EVERY_S, _reading)
