"""Metrics of indexes: state, lag and shard states."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

from schemaless.monitoring.metrics.metric import Collector, Metric, Read, Sample
from schemaless.ops.admin.indexes import indexes_of
from schemaless.store.datastore import Datastore
from schemaless.store.followers.states import QUARANTINED, RUNNING
from schemaless.store.indexes.admin import IndexStatus
from schemaless.store.indexes.registry import BACKFILLING, DECLARED, DROPPING, READY

_EVERY_S: Final = 15.0
_INDEX: Final = ("index", "number")

STATE: Final = Metric(
    "index_state", "1 for the index's current state: declared, backfilling, ready or dropping.", (*_INDEX, "state")
)
LAG_IDS: Final = Metric(
    "index_ids_behind",
    "Number of added_ids between the index's locations and the ends of the shards.",
    _INDEX,
)
LAG_S: Final = Metric(
    "index_behind_seconds", "Age of the oldest cell that is missing from the index; 0 if none is.", _INDEX
)
SHARDS: Final = Metric(
    "index_shards",
    "Shards by state: running, quarantined (a page killed its worker), or missing (no progress row, or unreachable).",
    (*_INDEX, "state"),
)
WORKERS: Final = Metric("index_workers", "Live workers that maintain the index.", _INDEX)


def _reading(store: Datastore) -> Read:
    indexes = indexes_of(store)

    def read() -> Iterator[Sample]:
        for entry in indexes.all():
            yield from _samples(indexes.status(entry))

    return read


def _samples(status: IndexStatus) -> Iterator[Sample]:
    index = status.entry.name, status.entry.number
    for state in (DECLARED, BACKFILLING, READY, DROPPING):
        yield STATE.at(status.entry.state == state, *index, state)
    if not status.shards:
        return
    states = Counter(shard.state for shard in status.shards)
    yield LAG_IDS.at(sum(shard.ids_behind for shard in status.shards), *index)
    yield LAG_S.at(max(shard.behind_s for shard in status.shards), *index)
    for state in (RUNNING, QUARANTINED, "missing"):
        yield SHARDS.at(states[state], *index, state)
    yield WORKERS.at(len(status.workers), *index)


INDEXES: Final = Collector("indexes", (STATE, LAG_IDS, LAG_S, SHARDS, WORKERS), _EVERY_S, _reading)
