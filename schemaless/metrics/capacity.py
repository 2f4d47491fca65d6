"""Capacity: the newest measurement that the catalog has, and how many days are left by all of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final

from schemaless.capacity import history
from schemaless.capacity.disks import disks_of
from schemaless.capacity.measurement import Measurement
from schemaless.capacity.report import NO_CODEC_TRIALS
from schemaless.datastore import Datastore
from schemaless.metrics.metric import Collector, Metric, Read, Sample

_EVERY_S: Final = 60.0
_STORED: Final = ("cluster", "column", "codec")

TAKEN: Final = Metric("measured_timestamp_seconds", "The time of the newest measurement, in seconds since 1970.")
CELLS: Final = Metric("stored_cells", "Stored cells, by the newest measurement.", _STORED)
BODIES: Final = Metric("stored_body_bytes", "Bytes of the stored bodies, by the newest measurement.", _STORED)
FILES: Final = Metric(
    "file_bytes", "Bytes of the files of all tables of cells, counting one copy of the data.", ("cluster",)
)
SIZE: Final = Metric("disk_bytes", "The size of the disk, by the newest measurement.", ("disk",))
FREE: Final = Metric("disk_free_bytes", "Free bytes of the disk, by the newest measurement.", ("disk",))
DAYS: Final = Metric(
    "disk_days_left",
    "Days until the disk is full: the forecast's middle and the ends of its 80 % and 95 % bands, +Inf if beyond it.",
    ("disk", "bound"),
)


def _reading(store: Datastore) -> Read:
    seen: tuple[int, ...] = ()
    samples: list[Sample] = []

    def read() -> list[Sample]:
        nonlocal seen, samples
        kept = tuple(measurement.sample_id for measurement in history.kept(store))
        if kept != seen:  # a forecast takes seconds of CPU: one for each new measurement
            samples = list(_samples(history.read(store, kept)))
            seen = kept
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
    from schemaless.capacity.reporting import assemble_report  # it imports NumPy, which other collectors do without

    report = assemble_report(measurements, NO_CODEC_TRIALS, datetime.now(UTC))
    for outlook in report.now.disks:
        if outlook.days is not None:
            for bound, days in outlook.days._asdict().items():
                yield DAYS.at(days, outlook.disk, bound)


CAPACITY: Final = Collector("capacity", (TAKEN, CELLS, BODIES, FILES, SIZE, FREE, DAYS), _EVERY_S, _reading)
