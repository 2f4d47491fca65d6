"""Past usage of one disk, its daily growth, and a forecast of that growth; calculated without I/O.

``whatif`` and ``planning`` build on these values, and ``report`` contains all of them.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass, field

from schemaless.planning.capacity.disks import Disk
from schemaless.planning.capacity.forecast import Forecast, NoForecast
from schemaless.planning.capacity.measurement import Measurement
from schemaless.planning.capacity.steps import Burst, Rate, Step


@dataclass(frozen=True, slots=True)
class DiskUsage:
    """Past usage of a disk, in bytes.

    Attributes:
        by_day: Calculated backwards from now, for the start of each day of the history and of the first forecast day.
        measured: Measured file lengths plus the disk space that others use now, for each saved measurement.
    """

    by_day: tuple[tuple[datetime.date, float], ...] = ()
    measured: tuple[tuple[datetime.datetime, float], ...] = ()


@dataclass(frozen=True, slots=True)
class DiskForecast:
    """Daily growth of the usage of a disk, in bytes: measured and forecast.

    Attributes:
        disk: The disk.
        history: Growth of each whole day.
        forecast: Growth of the days to come.
        steps: Days on which the level of the growth changed abruptly.
        rate: Constant rate of the last four weeks, or of the whole weeks since the last step if they are fewer.
        errors: Half the width of each day's 95 % interval, in the order of ``history``.
        used: Bytes used in the past.
        bursts: Finished imports, which the forecast, the steps and the rate leave out.
    """

    disk: Disk
    history: tuple[tuple[datetime.date, float], ...]
    forecast: Forecast | NoForecast
    steps: tuple[Step, ...] = ()
    rate: Rate | None = None
    errors: tuple[float, ...] = ()
    used: DiskUsage = field(default_factory=DiskUsage)
    bursts: tuple[Burst, ...] = ()


def disk_usage(
    disk: Disk, history: Sequence[tuple[datetime.date, float]], measurements: Sequence[Measurement]
) -> DiskUsage:
    """Reconstruct how a disk filled up; the result has no entries if the disk's size or free space is unknown.

    The usage at the start of the forecast is known, so each day's growth is subtracted from it, latest day first. The
    usage according to the measured file lengths is returned as well. It differs from the reconstructed usage if files
    contain free space or were rebuilt. Usage by others is assumed to be constant, as its history is unknown.

    Args:
        disk: The current state of the disk.
        history: Growth of each whole day.
        measurements: Oldest first.
    """
    if disk.disk_bytes is None or disk.free_bytes is None:
        return DiskUsage()
    used = float(disk.disk_bytes - disk.free_bytes)
    others = used - (disk.file_bytes or 0)
    measured = []
    for measurement in measurements:
        sizes = [space.file_bytes for space in measurement.clusters if space.cluster in disk.clusters]
        if len(sizes) == len(disk.clusters) and None not in sizes:
            measured.append((measurement.taken_at, others + sum(size or 0 for size in sizes)))
    by_day: list[tuple[datetime.date, float]] = []
    if history:
        by_day.append((history[-1][0] + datetime.timedelta(1), used))
    for day, growth in reversed(history):
        used -= growth
        if used < 0:
            break  # The days add up to more than is stored: bodies were longer then, or cells were deleted.
        by_day.append((day, used))
    return DiskUsage(tuple(reversed(by_day)), tuple(measured))
