"""The demo's capacity report, based on invented document times and disk sizes."""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, time, timedelta
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Final

from schemaless.planning.capacity import history
from schemaless.planning.capacity.disks import GivenDisk, with_disks
from schemaless.planning.capacity.measure import measure
from schemaless.planning.capacity.options import Asked
from schemaless.planning.capacity.reporting import make
from schemaless.store.datastore import Datastore
from schemaless.ui.pages.capacity_page import capacity_html
from schemaless.ui.terminal.files import write_whole

if TYPE_CHECKING:
    from schemaless.planning.capacity.report import CapacityReport

DAYS: Final = 180
_WEEK: Final = (1.15, 1.1, 1.05, 1.05, 1.15, 0.8, 0.7)
_GROWTH_SHARE: Final = 0.3
_NOISE_SHARE: Final = 0.1
_FREE_SHARE: Final = 0.5
_SEED: Final = 2013


def times(count: int) -> Callable[[int], datetime]:
    """Return a function that assigns each of the documents 1 to ``count`` a time in the last 180 days, in order.

    The invented times have a weekly pattern, growth and noise, and are the same for all runs on the same day.
    """
    draw = random.Random(_SEED)  # noqa: S311 - nothing secret
    today = datetime.combine(datetime.now(UTC).date(), time(), UTC)
    days = [today - timedelta(DAYS - number) for number in range(DAYS)]
    weights = [
        _WEEK[day.weekday()] * (1 + _GROWTH_SHARE * number / DAYS) * draw.gauss(1, _NOISE_SHARE)
        for number, day in enumerate(days)
    ]
    ends = list(accumulate(weights))

    def at(number: int) -> datetime:
        place = ends[-1] * (number - 0.5) / count
        day = bisect_right(ends, place)
        begun = ends[day] - weights[day]
        return days[day] + timedelta((place - begun) / weights[day])

    return at


def report(store: Datastore, codec: str, file: Path) -> CapacityReport:
    """Take and save a measurement, write the report's page, and return the report.

    The disk sizes are invented, one and a half times the size of the files, and saved so that later reports use them
    too.
    """
    first = measure(store, codec=codec)
    files = {space.cluster: space.file_bytes or 0 for space in first.clusters}
    free = {name: round(_FREE_SHARE * size) for name, size in files.items()}
    disks = {name: GivenDisk(size + free[name], free[name]) for name, size in files.items()}
    spaces, _ = with_disks(first.clusters, disks)
    history.keep(store, replace(first, clusters=spaces))
    report = make({"": store}, Asked(codec=codec))
    write_whole(file, capacity_html(report))
    return report
