"""Calculates how long disks last, by arithmetic alone: nothing is measured or estimated here.

    days until full = hosts x disk x (1 - overhead) / (documents a day x bytes a document x copies)

Values are plain numbers in the unit that their name gives; sizes are in bytes. A GB is 10^9 bytes, a GiB 2^30, and a TB
1,000 GB; mixing them up causes errors of up to 10 %. The formula holds for a constant number of documents a day;
``growth.py`` adds growth and weekdays, and a plan may delete documents at a given age.

Uber's example of one million trips of 20 kB a day counts a TB as 1,024 GB. One disk of 1 TB:

>>> disk = Plan(documents_per_day=1_000_000, bytes_per_document=20 * KB, disk_bytes_per_host=1_024 * GB)
>>> bytes_per_day(disk) / GB
20.0
>>> int(days_until_full(disk))
51

less the 40 % that other parts of the system use:

>>> int(days_until_full(replace(disk, overhead_share=0.40)))
30

and 32 TB less the same 40 %, at one, three and ten million trips a day, last under three years, under one year and
under four months:

>>> cluster = replace(disk, overhead_share=0.40, hosts=32)
>>> [int(days_until_full(replace(cluster, documents_per_day=trips * 1_000_000))) for trips in (1, 3, 10)]
[983, 327, 98]

With 2,822 bytes a trip, the article gives 347 days for the disk of 1 TB. That figure does not deduct the 40 %, so it is
comparable to the 51 days, not to the 30. Before and after re-encoding, first without and then with the overhead:

>>> encoded = replace(disk, bytes_per_document=2_822)
>>> int(days_until_full(disk)), int(days_until_full(encoded))
(51, 362)
>>> less_overhead = replace(encoded, overhead_share=0.40)
>>> int(days_until_full(replace(disk, overhead_share=0.40))), int(days_until_full(less_overhead))
(30, 217)

The article does not explain its 347; 2.95 GB a day ("just under 3 GB") would give it. See docs/capacity.md.
"""

from __future__ import annotations

import datetime
import functools
import math
from dataclasses import dataclass, replace
from typing import Final

from schemaless.base.numbers import check_number
from schemaless.errors import InvalidInput
from schemaless.planning.capacity.growth import CONSTANT, Growth

KB: Final = 10**3
GB: Final = 10**9
TB: Final = 10**12

MOST_RETENTION_DAYS: Final = 36_525

_NEVER_DAYS: Final = 1e15
"""Growth that has not filled the disks after this many days counts as never filling them."""

_NEVER_WITH_RETENTION_DAYS: Final = 1e7
"""The same limit with retention; beyond it, floats cannot resolve written minus deleted bytes."""

_LEAST: Final = {
    "documents_per_day": (0, "0"),
    "bytes_per_document": (1, "1 byte"),
    "disk_bytes_per_host": (1, "1 byte"),
    "stored_bytes": (0, "0"),
}
"""Smallest values of a plan, as numbers and as errors name them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Workload and hardware of a capacity calculation.

    Attributes:
        documents_per_day: New documents (cells) a day; 0 or more.
        bytes_per_document: Disk space of one copy of a document in bytes, with row and index; 1 or more. The length of
            the body alone is too low a value, as InnoDB allocates more.
        disk_bytes_per_host: Size of each host's disk in bytes; 1 or more.
        overhead_share: Share of the disk that is not available for cells (system, logs, working space), from 0 to
            below 1.
        copies: Copies of each cell: 1 for a primary alone, 3 for a primary with two replicas.
        hosts: Number of hosts, primaries and replicas; at least ``copies``, as two copies on one host are lost
            together.
        growth: How the number of documents a day changes.
        stored_bytes: Bytes of cells on all hosts at the start, all copies; 0 or more.
        retention_days: Age at which cells are deleted, 1 to 36,525 days (100 years); None for never. The cells stored
            at the start are assumed to be evenly distributed in age, so they are deleted evenly over this period.

    Raises:
        InvalidInput: A value is out of these bounds, not finite, or not a number.
    """

    documents_per_day: float
    bytes_per_document: float
    disk_bytes_per_host: float
    overhead_share: float = 0.0
    copies: int = 1
    hosts: int = 1
    growth: Growth = CONSTANT
    stored_bytes: float = 0.0
    retention_days: float | None = None

    def __post_init__(self) -> None:
        for name, (least, text) in _LEAST.items():
            value = getattr(self, name)
            check_number(name, value)
            if value < least:
                raise InvalidInput(f"{name} must be {text} or more, got {value}")
        if self.retention_days is not None:
            check_number("retention_days", self.retention_days)
            if not 1 <= self.retention_days <= MOST_RETENTION_DAYS:
                raise InvalidInput(
                    f"retention_days must be 1 to {MOST_RETENTION_DAYS:,}, got {self.retention_days}; "
                    "omit it if nothing is deleted"
                )
        check_number("overhead_share", self.overhead_share)
        if not 0 <= self.overhead_share < 1:
            raise InvalidInput(
                f"overhead_share must be at least 0 and below 1 (0.4 is 40 %), got {self.overhead_share}; "
                "at 1 there is no space for cells"
            )
        for name in ("copies", "hosts"):
            count = getattr(self, name)
            check_number(name, count)
            if not isinstance(count, int) or count < 1:
                raise InvalidInput(f"{name} must be an integer of at least 1, got {count}")
        if self.hosts < self.copies:
            raise InvalidInput(
                f"{self.copies} copies need at least {self.copies} hosts, got {self.hosts}; "
                "two copies on one host are lost together"
            )


def bytes_per_day(plan: Plan) -> float:
    """Return the bytes written to all hosts per day at the start, averaged over a week.

    ``documents_per_day x bytes_per_document x copies``

    Raises:
        InvalidInput: The product overflows a float.

    >>> bytes_per_day(Plan(documents_per_day=500, bytes_per_document=2 * KB, disk_bytes_per_host=TB, copies=3, hosts=3))
    3000000.0
    """
    return _finite("bytes a day", float(plan.documents_per_day) * plan.bytes_per_document * plan.copies)


def usable_bytes(plan: Plan) -> float:
    """Return the bytes of all disks that are available for cells.

    ``hosts x disk_bytes_per_host x (1 - overhead_share)``

    Raises:
        InvalidInput: The product overflows a float.

    >>> usable_bytes(
    ...     Plan(documents_per_day=1, bytes_per_document=1, disk_bytes_per_host=TB, overhead_share=0.25, hosts=4)
    ... ) / TB
    3.0
    """
    return _finite("usable bytes", float(plan.disk_bytes_per_host) * plan.hosts * (1 - plan.overhead_share))


def most_bytes(plan: Plan, days: float) -> float:
    """Return the peak of stored bytes on all disks between the start and ``days``.

    Without retention, or while more is written than deleted, the peak is at ``days``.

    Raises:
        InvalidInput: ``days`` is negative, not finite or not a number, or the result overflows a float.

    >>> trips = Plan(documents_per_day=1_000_000, bytes_per_document=20 * KB, disk_bytes_per_host=1_024 * GB)
    >>> most_bytes(trips, days=365) / TB, most_bytes(replace(trips, retention_days=30), days=365) / TB
    (7.3, 0.6)
    >>> doubling = replace(trips, growth=Growth(1.0, "compound"))
    >>> round(most_bytes(doubling, days=365) / TB, 2)
    10.53
    """
    check_number("days", days)
    if days < 0:
        raise InvalidInput(f"days must be 0 or more, got {days}")
    return _finite("bytes to be stored", _most_bytes(plan, days))


def headroom_share(plan: Plan, days: float) -> float:
    """Return the lowest share of the usable bytes that is free up to ``days``; negative if they are exceeded.

    ``1 - most_bytes / usable_bytes``

    Raises:
        InvalidInput: As for ``most_bytes``.

    >>> trips = Plan(documents_per_day=1_000_000, bytes_per_document=20 * KB, disk_bytes_per_host=1_000 * GB)
    >>> headroom_share(trips, days=10), headroom_share(trips, days=100)
    (0.8, -1.0)
    """
    return 1 - most_bytes(plan, days) / usable_bytes(plan)


def days_until_full(plan: Plan) -> float:
    """Return the days until the disks are full.

    ``(usable_bytes - stored_bytes) / bytes_per_day`` at a constant rate without deletion; otherwise the first time at
    which the stored bytes reach the usable bytes. Cells are assumed to be spread evenly; with skew, the fullest host
    fills up earlier.

    Returns:
        Days, not rounded; 0 if the disks are already full; infinity if they never fill up, because too few documents
        are written or they are deleted in time. With retention, more than 20,000 years counts as never.

    Raises:
        InvalidInput: A value is too large or too small to calculate with.

    >>> days_until_full(Plan(documents_per_day=0, bytes_per_document=KB, disk_bytes_per_host=TB))
    inf
    >>> trips = Plan(documents_per_day=1_000_000, bytes_per_document=20 * KB, disk_bytes_per_host=1_000 * GB)
    >>> days_until_full(trips), days_until_full(replace(trips, stored_bytes=400 * GB))
    (50.0, 30.0)
    >>> [days_until_full(replace(trips, retention_days=days)) for days in (60, 50, 49)]
    [50.0, 50.0, inf]
    >>> year = replace(trips, hosts=10)
    >>> [int(days_until_full(replace(year, growth=Growth(0.5, kind)))) for kind in ("linear", "compound")]
    [393, 397]
    """
    room = usable_bytes(plan)
    if plan.stored_bytes >= room:
        return 0.0
    if plan.documents_per_day == 0:
        return math.inf
    if plan.growth.constant and plan.retention_days is None:
        return _finite("days until full", (room - plan.stored_bytes) / bytes_per_day(plan))
    bytes_per_day(plan)  # Raises on overflow.
    late = 1.0
    while _most_bytes(plan, late) < room:
        late *= 2
        if late > (_NEVER_DAYS if plan.retention_days is None else _NEVER_WITH_RETENTION_DAYS):
            return math.inf
    early = late / 2 if late > 1 else 0.0
    while early < (middle := (early + late) / 2) < late:
        if _most_bytes(plan, middle) < room:
            early = middle
        else:
            late = middle
    return late


def _most_bytes(plan: Plan, days: float) -> float:
    """Return the peak until ``days``, which never decreases with ``days``; infinity on overflow."""
    age = plan.retention_days
    if age is None:
        return _stored(plan, days)
    if days <= age:
        most = _stored(plan, days)
        return max(most, _early_peaks(plan)[int(days)]) if plan.stored_bytes else most
    # From here on everything stored was written after the start. One week later the stored bytes are never less if
    # growth is 0 or positive, and never more if it is negative, so the peak is in the last or the first week. Within
    # that week the rate only changes at these points.
    first, last = (max(age, days - 7), days) if plan.growth.share_per_year >= 0 else (age, min(age + 7, days))
    points = {first, last}
    for edge in (0.0, age):
        begin = math.ceil(first - edge) + edge
        points.update(point for point in (begin + step for step in range(8)) if first <= point <= last)
    return max(_most_bytes(plan, age), *(_stored(plan, point) for point in points))


@functools.lru_cache(maxsize=16)
def _early_peaks(plan: Plan) -> tuple[float, ...]:
    """Return the peak until each whole day of the first ``retention_days``, while the initial cells are deleted."""
    peaks = [0.0]
    for day in range(int(plan.retention_days or 0) + 1):
        peaks.append(max(peaks[-1], _stored(plan, day)))
    return tuple(peaks[1:])


def _stored(plan: Plan, days: float) -> float:
    written, initial = plan.growth.until(days), plan.stored_bytes
    if plan.retention_days is not None:
        written -= plan.growth.until(days - plan.retention_days) if written < math.inf else 0.0
        initial *= max(0.0, 1 - days / plan.retention_days)
    return initial + written * plan.documents_per_day * plan.bytes_per_document * plan.copies if written else initial


def full_on(start: datetime.date, days: float) -> datetime.date | None:
    """Return the date on which disks are full, ``days`` after the beginning of ``start``.

    Returns:
        The date, or None if that is never or after the year 9999.

    Raises:
        InvalidInput: ``days`` is negative or not a number.

    >>> full_on(datetime.date(2016, 3, 1), 30.72)
    datetime.date(2016, 3, 31)
    """
    if math.isnan(days) or days < 0:
        raise InvalidInput(f"days must be 0 or more, got {days}")
    try:
        return start + datetime.timedelta(days=math.floor(days))
    except OverflowError:
        return None


def hosts_needed(plan: Plan, days: float) -> int:
    """Return the number of hosts needed to last at least ``days``; ``plan.hosts`` is ignored.

    ``ceil(most_bytes / (disk_bytes_per_host x (1 - overhead_share)))``, and at least ``copies``.

    Raises:
        InvalidInput: ``days`` is negative, not finite or not a number, or the result overflows a float.

    >>> trips = Plan(
    ...     documents_per_day=1_000_000, bytes_per_document=20 * KB, disk_bytes_per_host=1_024 * GB, overhead_share=0.40
    ... )
    >>> hosts_needed(trips, days=365), hosts_needed(replace(trips, bytes_per_document=2_822), days=365)
    (12, 2)
    """
    one_host = usable_bytes(replace(plan, hosts=1, copies=1))
    needed = _finite("hosts needed", most_bytes(plan, days) / one_host)
    # Rounding errors must not turn a whole number of hosts into one more.
    nearest = round(needed)
    whole = nearest if math.isclose(needed, nearest, rel_tol=1e-12) else math.ceil(needed)
    return max(whole, plan.copies)


def _finite(quantity: str, value: float) -> float:
    if math.isfinite(value):
        return value
    raise InvalidInput(f"cannot calculate the {quantity}: the values are too large or too small; check their units")
