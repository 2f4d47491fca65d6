"""Space that retention and tiering free, from cells that are old enough by now and from later ones. Pure functions.

An expired cell leaves a row with a tombstone, a cold one a row with a reference. The space of its body becomes free
when the table is rebuilt.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import NamedTuple

from schemaless.cell import TOMBSTONE_BYTES
from schemaless.planning.capacity.disk_bytes import disk_bytes
from schemaless.planning.capacity.forecast import Expiry
from schemaless.planning.capacity.measurement import CodecTrials
from schemaless.planning.sampling.page_model import Layout
from schemaless.store.erasures.retention import Policy


class Expiring(NamedTuple):
    """Space that is freed in a column on a disk.

    Attributes:
        expired_bytes: Bytes of disk freed by cells that have reached the age by now.
        expiry: Space freed by cells that reach it later.
    """

    expired_bytes: float
    expiry: Expiry


class Stored(NamedTuple):
    """A column on a disk.

    Attributes:
        column_name: Name of the column in the report.
        cells: Number of its cells.
        disk_bytes: Bytes of disk that they take.
        past: Bytes of disk that were added on each whole day and are still stored; the forecast starts on the day after
            the last of these days.
        share: This column's share of the disk's growth.
    """

    column_name: str
    cells: float
    disk_bytes: float
    past: Sequence[tuple[datetime.date, float]]
    share: float


def expiring(policy: Policy, stored: Stored, factor: float, trials: CodecTrials) -> Expiring:
    """Return the space that a policy frees in a column on a disk.

    Args:
        policy: The policy of the column.
        stored: The column on the disk.
        factor: Growth of the disk as a multiple of its forecast; sizes in the returned expiry are divided by it.
        trials: Page layout, and shares of superseded bytes. For a number of versions between those tried, the share of
            the next higher one counts; above the highest, none.
    """
    freed = freed_share(stored, TOMBSTONE_BYTES, policy.column_name, trials.layout)
    freed *= erased_share(policy, stored.column_name, trials)
    if policy.keep_days is None:
        return Expiring(freed * stored.disk_bytes, Expiry(0, (), freed * stored.share))
    return aging(stored, policy.keep_days, freed, factor)


def erased_share(policy: Policy, column_name: str, trials: CodecTrials) -> float:
    """Return the share of a column's body bytes that a policy erases once they have its age."""
    if policy.keep_versions is None:
        return 1.0
    tried = sorted((kept, share) for (name, kept), share in trials.superseded.items() if name == column_name)
    return next((share for kept, share in tried if kept >= policy.keep_versions), 0.0)


def freed_share(stored: Stored, body_bytes: int, column_name: str, layout: Layout) -> float:
    """Return the share of a column's disk space that is freed if every cell keeps a body of this length."""
    if not stored.cells or not stored.disk_bytes:
        return 1.0
    row = disk_bytes(body_bytes, column_name=column_name, layout=layout)
    return max(0.0, 1 - row * stored.cells / stored.disk_bytes)


def aging(stored: Stored, after_days: int, freed: float, factor: float) -> Expiring:
    """Return the space that is freed if cells lose a share of their space, ``freed``, at an age in days.

    Args:
        stored: The column on the disk.
        after_days: The age.
        freed: The share.
        factor: Growth of the disk as a multiple of its forecast; sizes in the returned expiry are divided by it.
    """
    due = dict.fromkeys(range(after_days), 0.0)
    reached = 0.0
    for day, size in stored.past:
        in_days = (day - stored.past[-1][0]).days - 1 + after_days
        if in_days < 0:
            reached += size
        else:
            due[in_days] += size
    later = tuple(freed * size / factor for size in due.values())
    return Expiring(freed * reached, Expiry(after_days, later, freed * stored.share))
