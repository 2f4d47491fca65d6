"""Capacity metrics: the latest measurement in the catalog, and the forecast based on all measurements."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final

from schemaless.monitoring.metrics.metric import Collector, Metric, Read, Sample
from schemaless.planning.capacity import history
from schemaless.planning.capacity.disks import disks_of
from schemaless.planning.capacity.forecast import whole_days
from schemaless.planning.capacity.measurement import Measurement
from schemaless.store.datastore import Datastore

_EVERY_S: Final = 60.0
_STORED: Final = ("cluster", "column", "codec")

TAKEN: Final = Metric("measured_timestamp_seconds", "Time of the latest measurement, in seconds since 1970.")
CELLS: Final = Metric("stored_cells", "Stored cells in the latest measurement.", _STORED)
BODIES: Final = Metric("stored_body_bytes", "Bytes of stored bodies in the latest measurement.", _STORED)
FILES: Final = Metric("file_bytes", "Bytes of all cell tables' files, counting one copy of the data.", ("cluster",))
SIZE: Final = Metric("disk_bytes", "Size of the disk in the latest measurement.", ("disk",))
FREE: Final = Metric("disk_free_bytes", "Free bytes of the disk in the latest measurement.", ("disk",))
DAYS: Final = Metric(
    "disk_days_left",
    "Whole days until the disk is full: median and bounds of the 80 % and 95 % bands; +Inf if beyond the forecast.",
    ("disk", "bound"),
)


def _reading(store: Datastore) -> Read:
    reported: tuple[int, ...] = ()
    samples: list[Sample] = []

    def read() -> list[Sample]:
        nonlocal reported, samples
        kept = tuple(measurement.sample_id for measurement in history.kept(store))
        if kept != reported:  # a forecast takes seconds of CPU, so run it only after a new measurement
            samples = list(_samples(history.read(store, kept)))
            reported = kept
        return samples

    return read


def _samples(measurements: list[Measurement]) -> Iterator[Sample]:
    if not measurements:
        return
    newest = measurements[-1]
    yield TAKEN.at(newest.taken_at.timestamp())
    cells: Counter[tuple[str, str, str]] = Counter()
    bodies: Counter[tuple[str, str, str]] = Counter()
    for group in newest.groups:
        place = (group.cluster, group.column_name, group.codec)
        cells[place] += round(group.cells.mid)
        bodies[place] += round(group.body_bytes.mid)
    for place, count in cells.items():
        yield CELLS.at(count, *place)
        yield BODIES.at(bodies[place], *place)
    for space in newest.clusters:
        if space.file_bytes is not None:
            yield FILES.at(space.file_bytes, space.cluster)
    for disk in disks_of(newest):
        if disk.disk_bytes is not None:
            yield SIZE.at(disk.disk_bytes, disk.name)
        if disk.free_bytes is not None:
            yield FREE.at(disk.free_bytes, disk.name)
    yield from _days_left(measurements)


def _days_left(measurements: list[Measurement]) -> Iterator[Sample]:
    # Needs NumPy, which the other collectors do not.
    from schemaless.planning.capacity.reporting import assemble_report

    report = assemble_report(measurements, datetime.now(UTC))
    for outlook in report.now.disks:
        if outlook.days is not None:
            for bound, days in outlook.days._asdict().items():
                whole = whole_days(days)
                yield DAYS.at(math.inf if whole is None else whole, outlook.disk, bound)


CAPACITY: Final = Collector("capacity", (TAKEN, CELLS, BODIES, FILES, SIZE, FREE, DAYS), _EVERY_S, _reading)
