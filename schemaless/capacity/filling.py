"""How a disk came to be as full as it is: by day, reckoned back from now, and at each measurement. Pure.

What is used at the start of the forecast is known; what each day brought is taken off it, the last day first. Beside
that stand the lengths that the files were measured with, at each measurement that is kept. The two differ where files
keep room, or were rebuilt. What others use of the disk is taken to be the same all the time, as nothing is known of it.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass

from schemaless.capacity.disks import Disk
from schemaless.capacity.measurement import Measurement

__all__ = ["Filling", "filling"]


@dataclass(frozen=True, slots=True)
class Filling:
    """What was used of a disk.

    Attributes:
        by_day: in the morning of each day of the history, and of the day after it, which is the start of the forecast.
        measured: files as they were measured, and what others use now.
    """

    by_day: tuple[tuple[datetime.date, float], ...] = ()
    measured: tuple[tuple[datetime.datetime, float], ...] = ()


def filling(disk: Disk, history: Sequence[tuple[datetime.date, float]], measurements: Sequence[Measurement]) -> Filling:
    """Return how a disk came to be as full as it is; nothing where its size or what is free is not known.

    Args:
        disk: as it is now.
        history: whole days, and what each brought.
        measurements: oldest first.
    """
    if disk.disk_bytes is None or disk.free_bytes is None:
        return Filling()
    used = float(disk.disk_bytes - disk.free_bytes)
    others = used - (disk.file_bytes or 0)
    measured = []
    for measurement in measurements:
        spaces = [space.file_bytes for space in measurement.clusters if space.cluster in disk.clusters]
        if len(spaces) == len(disk.clusters) and None not in spaces:
            measured.append((measurement.taken_at, others + sum(size or 0 for size in spaces)))
    by_day: list[tuple[datetime.date, float]] = []
    if history:
        by_day.append((history[-1][0] + datetime.timedelta(1), used))
    for day, brought in reversed(history):
        used -= brought
        if used < 0:
            break  # days brought more than there is: bodies were longer then, or cells are gone
        by_day.append((day, used))
    return Filling(tuple(reversed(by_day)), tuple(measured))
