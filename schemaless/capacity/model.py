"""How long disks last: the arithmetic, with nothing measured and nothing guessed.

    days until full = hosts x disk x (1 - overhead) / (documents a day x bytes a document x copies)

Everything is a plain number in the unit that its name says; sizes are bytes. A GB is 10^9 bytes here, a GiB 2^30, and
a TB is 1,000 GB: mixing them up costs up to 10 %. Growth is linear: tomorrow brings as much as today.

The article's example, one million trips of 20 KB a day, counts a TB as 1,024 GB. One disk of 1 TB:

>>> disk = Plan(documents_per_day=1_000_000, bytes_per_document=20 * KB, disk_bytes_per_host=1_024 * GB)
>>> bytes_per_day(disk) / GB
20.0
>>> int(days_until_full(disk))
51

after the 40 % that other parts of the system use:

>>> int(days_until_full(replace(disk, overhead_share=0.40)))
30

and an installation of 32 TB, less the same 40 %, at one, three and ten million trips a day: below three years, one year
and four months:

>>> cluster = replace(disk, overhead_share=0.40, hosts=32)
>>> [int(days_until_full(replace(cluster, documents_per_day=trips * 1_000_000))) for trips in (1, 3, 10)]
[983, 327, 98]

With 2,822 bytes a trip the article gives 347 days for the disk of 1 TB. That does not deduct the 40 %, so it is to be
compared with the 51 days and not with the 30. On equal terms, before and after, without and with the overhead:

>>> encoded = replace(disk, bytes_per_document=2_822)
>>> int(days_until_full(disk)), int(days_until_full(encoded))
(51, 362)
>>> less_overhead = replace(encoded, overhead_share=0.40)
>>> int(days_until_full(replace(disk, overhead_share=0.40))), int(days_until_full(less_overhead))
(30, 217)

362 and not 347: how the article came to its figure it does not say; a day of 2.95 GB ("just under 3 GB") would give
it. docs/capacity-model.md says more.
"""

from __future__ import annotations

import datetime
import math
from dataclasses import dataclass, fields, replace
from typing import Final

from schemaless.errors import InvalidInput

__all__ = [
    "GB",
    "GIB",
    "KB",
    "KIB",
    "MB",
    "MIB",
    "TB",
    "TIB",
    "Plan",
    "bytes_per_day",
    "days_until_full",
    "full_on",
    "hosts_needed",
    "replace",
    "usable_bytes",
]

KB: Final = 10**3
MB: Final = 10**6
GB: Final = 10**9
TB: Final = 10**12
KIB: Final = 2**10
MIB: Final = 2**20
GIB: Final = 2**30
TIB: Final = 2**40


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is written, and what it is written to.

    Attributes:
        documents_per_day: new documents (cells) a day; 0 or more.
        bytes_per_document: what one takes on disk, in bytes, once: body, row and index; 1 or more. Body bytes alone
            flatter the answer, as InnoDB allocates more.
        disk_bytes_per_host: the size of each host's disk, in bytes; 1 or more.
        overhead_share: the part of the disk that cells cannot have (system, logs, room to work), 0 to below 1.
        copies: how often each cell is stored: 1 for a primary alone, 3 for one with two replicas.
        hosts: all of them, primaries and replicas; at least ``copies``, for two copies on one host are lost together.

    Raises:
        InvalidInput: a value is out of these bounds, not finite, or not a number.
    """

    documents_per_day: float
    bytes_per_document: float
    disk_bytes_per_host: float
    overhead_share: float = 0.0
    copies: int = 1
    hosts: int = 1

    def __post_init__(self) -> None:
        for field in fields(self):
            _check_number(field.name, getattr(self, field.name))
        if self.documents_per_day < 0:
            raise InvalidInput(f"documents_per_day must be 0 or more, got {self.documents_per_day}")
        for name in ("bytes_per_document", "disk_bytes_per_host"):
            if getattr(self, name) < 1:
                raise InvalidInput(f"{name} must be 1 byte or more, got {getattr(self, name)}")
        if not 0 <= self.overhead_share < 1:
            raise InvalidInput(
                f"overhead_share must be from 0 to below 1 (0.4 is 40 %), got {self.overhead_share}; "
                "at 1 there is no room for cells"
            )
        for name in ("copies", "hosts"):
            count = getattr(self, name)
            if not isinstance(count, int) or count < 1:
                raise InvalidInput(f"{name} must be a whole number of 1 or more, got {count}")
        if self.hosts < self.copies:
            raise InvalidInput(
                f"{self.copies} copies need at least {self.copies} hosts, got {self.hosts}; "
                "two copies on one host are lost together"
            )


def bytes_per_day(plan: Plan) -> float:
    """Return how many bytes all hosts together take in a day.

    ``documents_per_day x bytes_per_document x copies``

    Raises:
        InvalidInput: the product is beyond what a float holds.

    >>> bytes_per_day(Plan(documents_per_day=500, bytes_per_document=2 * KB, disk_bytes_per_host=TB, copies=3, hosts=3))
    3000000.0
    """
    return _finite("bytes a day", float(plan.documents_per_day) * plan.bytes_per_document * plan.copies)


def usable_bytes(plan: Plan) -> float:
    """Return how many bytes of all disks together cells may have.

    ``hosts x disk_bytes_per_host x (1 - overhead_share)``

    Raises:
        InvalidInput: the product is beyond what a float holds.

    >>> usable_bytes(
    ...     Plan(documents_per_day=1, bytes_per_document=1, disk_bytes_per_host=TB, overhead_share=0.25, hosts=4)
    ... ) / TB
    3.0
    """
    return _finite("usable bytes", float(plan.disk_bytes_per_host) * plan.hosts * (1 - plan.overhead_share))


def days_until_full(plan: Plan) -> float:
    """Return in how many days empty disks are full.

    ``usable_bytes / bytes_per_day``. The cells are taken to spread evenly: with skew, the fullest host is full earlier.

    Returns:
        Days, not rounded; infinity where no documents are written.

    Raises:
        InvalidInput: the values are too far apart, or too large, to be divided.

    >>> days_until_full(Plan(documents_per_day=0, bytes_per_document=KB, disk_bytes_per_host=TB))
    inf
    """
    if plan.documents_per_day == 0:
        return math.inf
    return _finite("days until full", usable_bytes(plan) / bytes_per_day(plan))


def full_on(start: datetime.date, days: float) -> datetime.date | None:
    """Return the date on which disks that were empty in the morning of ``start`` are full.

    Returns:
        ``start`` and as many whole days; None where that is never, or after the year 9999.

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
    """Return how many hosts of this plan last for at least ``days``; the plan's own number of them does not count.

    ``ceil(days x bytes_per_day / (disk_bytes_per_host x (1 - overhead_share)))``, and not fewer than ``copies``.

    Raises:
        InvalidInput: ``days`` is negative, not finite or not a number, or the answer is beyond what a float holds.

    >>> trips = Plan(
    ...     documents_per_day=1_000_000, bytes_per_document=20 * KB, disk_bytes_per_host=1_024 * GB, overhead_share=0.40
    ... )
    >>> hosts_needed(trips, days=365), hosts_needed(replace(trips, bytes_per_document=2_822), days=365)
    (12, 2)
    """
    _check_number("days", days)
    if days < 0:
        raise InvalidInput(f"days must be 0 or more, got {days}")
    one_host = usable_bytes(replace(plan, hosts=1, copies=1))
    needed = _finite("hosts needed", bytes_per_day(plan) * days / one_host)
    # A whole number of hosts must not become one more by the last bit of a float.
    nearest = round(needed)
    whole = nearest if math.isclose(needed, nearest, rel_tol=1e-12) else math.ceil(needed)
    return max(whole, plan.copies)


def _check_number(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InvalidInput(f"{name} must be a number, got {type(value).__name__}: {str(value)[:40]}")
    try:
        finite = math.isfinite(value)
    except OverflowError:  # an int beyond what a float holds
        raise InvalidInput(f"{name} is too large to calculate with") from None
    if not finite:
        raise InvalidInput(f"{name} must be finite, got {value}")


def _finite(what: str, value: float) -> float:
    if math.isfinite(value):
        return value
    raise InvalidInput(f"the {what} are beyond what can be calculated with; check the units of the values")
