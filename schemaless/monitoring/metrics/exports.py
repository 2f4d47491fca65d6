"""Metrics of exports: lag, shard states, and the contents of their manifests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

from schemaless.errors import SchemalessError
from schemaless.monitoring.metrics.metric import Collector, Metric, Read, Sample
from schemaless.ops.export.admin import exports
from schemaless.ops.export.exporter import follower_name
from schemaless.ops.export.manifest import read_definition, read_shard
from schemaless.ops.export.target import open_target
from schemaless.store.datastore import Datastore
from schemaless.store.followers.states import QUARANTINED, RUNNING, STOPPED
from schemaless.store.followers.status import shard_statuses, workers_of
from schemaless.store.internals import internals_of

_EVERY_S: Final = 60.0
"""Interval between readings, in seconds: each reads the manifest of every shard."""

_EXPORT: Final = ("export",)
_STATES: Final = (RUNNING, "waiting", QUARANTINED, STOPPED, "missing")

LAG_IDS: Final = Metric(
    "export_ids_behind", "Number of added_ids between the export's locations and the ends of the shards.", _EXPORT
)
LAG_S: Final = Metric("export_behind_seconds", "Age of the oldest cell not yet exported; 0 if there is none.", _EXPORT)
SHARDS: Final = Metric(
    "export_shards",
    "Shards by state: running, waiting for the next attempt at a file, quarantined (a page killed its "
    "worker), stopped, or "
    "missing (no progress row, or unreachable).",
    (*_EXPORT, "state"),
)
WORKERS: Final = Metric("export_workers", "Live workers of the export.", _EXPORT)
TARGET_UP: Final = Metric(
    "export_target_up", "1 if the metrics process can read the manifest in the export's target, else 0.", _EXPORT
)
FILES: Final = Metric("export_files", "Files of cells that the manifest lists.", _EXPORT)
ROWS: Final = Metric("export_rows", "Rows in these files.", _EXPORT)
BYTES: Final = Metric("export_bytes", "Size of these files in bytes.", _EXPORT)


def _reading(store: Datastore) -> Read:
    def read() -> Iterator[Sample]:
        for name, uri in exports(store).items():
            yield from _progress(store, name)
            yield from _manifest(name, uri, store.shard_count)

    return read


def _progress(store: Datastore, name: str) -> Iterator[Sample]:
    access, follower = internals_of(store).follower_access, follower_name(name)
    shards = list(shard_statuses(access, follower, "no progress row"))
    states = Counter(shard.state for shard in shards)
    yield LAG_IDS.at(sum(shard.ids_behind for shard in shards), name)
    yield LAG_S.at(max((shard.behind_s for shard in shards), default=0.0), name)
    for state in _STATES:
        yield SHARDS.at(states[state], name, state)
    yield WORKERS.at(sum(1 for _ in workers_of(access, follower)), name)


def _manifest(name: str, uri: str, shard_count: int) -> Iterator[Sample]:
    try:
        target = open_target(uri)
        # A folder that is not mounted has no definition.
        is_up = read_definition(target) is not None
        files = [file for shard in range(shard_count if is_up else 0) for file in read_shard(target, shard).files]
    except SchemalessError:
        # The target may be reachable from the exporter's machine only.
        is_up = False
    yield TARGET_UP.at(is_up, name)
    if is_up:
        yield FILES.at(len(files), name)
        yield ROWS.at(sum(file.rows for file in files), name)
        yield BYTES.at(sum(file.bytes for file in files), name)


EXPORTS: Final = Collector(
    "exports", (LAG_IDS, LAG_S, SHARDS, WORKERS, TARGET_UP, FILES, ROWS, BYTES), _EVERY_S, _reading
)
