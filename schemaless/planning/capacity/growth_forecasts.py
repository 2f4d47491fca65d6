"""Forecasts of the growth of disks, of all disks together, and of columns; calculated without I/O."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from schemaless.planning.capacity.comparison import GrowthOfAll
from schemaless.planning.capacity.disk_forecast import DiskForecast
from schemaless.planning.capacity.disks import Disk
from schemaless.planning.capacity.forecast import Forecast, NoForecast, forecast
from schemaless.planning.capacity.report import ColumnForecast
from schemaless.planning.capacity.series import Series, errors, weighted
from schemaless.planning.capacity.steps import rate, steps, usual_days
from schemaless.planning.capacity.whatif import Scenario

_MOST_COLUMNS: Final = 40

Weights = Mapping[tuple[str, str], float]


@dataclass(frozen=True, slots=True)
class GrowthForecasts:
    """Forecasts from the growth of each column on each day.

    Attributes:
        series: Growth of each column in each cluster.
        weights: Bytes of disk space per byte of a body, by cluster and column.
        datastore_of: Returns the datastore of a cluster.
        seed: Seed of the simulated futures.
    """

    series: Sequence[Series]
    weights: Weights
    datastore_of: Callable[[str], str]
    seed: int

    def of_disk(self, disk: Disk) -> DiskForecast:
        """Forecast the growth of a disk that holds one copy of its clusters' data."""
        series = [column for column in self.series if column.cluster in disk.clusters]
        days = weighted(series, self.weights)
        parts = self._by_datastore(series, self.weights)
        growth = forecast(days, seed=self.seed, parts=parts)
        imports = growth.bursts if isinstance(growth, Forecast) else ()
        usual = usual_days(days, imports)
        # The first day of a datastore that is younger than another is not a step.
        start = max((part[0][0] for part in parts if part), default=datetime.date.min)
        changes = steps([(day, value) for day, value in usual if day >= start]) if isinstance(growth, Forecast) else ()
        return DiskForecast(
            disk,
            tuple(days),
            growth,
            changes,
            rate(usual, changes),
            tuple(errors(series, self.weights)),
            bursts=imports,
        )

    def total(self, forecasts: Sequence[DiskForecast]) -> DiskForecast | None:
        """Forecast the growth of one copy on all of these disks together; None if there are none."""
        if len(forecasts) < 2:
            return forecasts[0] if forecasts else None
        disks = [disk_forecast.disk for disk_forecast in forecasts]

        def sum_of(name: str) -> int | None:
            values = [getattr(disk, name) for disk in disks]
            return None if None in values else sum(values)

        everything = Disk(
            clusters=tuple(name for disk in disks for name in disk.clusters),
            disk_bytes=sum_of("disk_bytes"),
            free_bytes=sum_of("free_bytes"),
            free_assumed=any(disk.free_assumed for disk in disks),
            file_bytes=sum_of("file_bytes"),
            copies=min(disk.copies for disk in disks),
            problem="; ".join(disk.problem for disk in disks if disk.problem) or None,
        )
        return self.of_disk(everything)

    def of_all(self, forecasts: Sequence[DiskForecast], total: DiskForecast | None, now: Scenario) -> GrowthOfAll:
        """Forecast the growth of all disks, counting every copy; without ``total``, return today's growth only."""
        copies = {entry.disk.name: entry.disk.copies for entry in forecasts}
        per_day = {outlook.disk: (outlook.bytes_per_day or 0.0) * copies[outlook.disk] for outlook in now.disks}
        if total is None:
            return GrowthOfAll(NoForecast("neither a price nor scenarios were given", 0), 1.0, copies, per_day)
        if len(set(copies.values())) == 1:  # The usual case: a multiple of the total, which has a forecast already.
            return GrowthOfAll(total.forecast, float(total.disk.copies), copies, per_day)
        copies_by_cluster = {name: entry.disk.copies for entry in forecasts for name in entry.disk.clusters}
        of_all = {key: weight * copies_by_cluster.get(key[0], 1) for key, weight in self.weights.items()}
        parts = self._by_datastore(self.series, of_all)
        growth = forecast(weighted(self.series, of_all), seed=self.seed, parts=parts)
        return GrowthOfAll(growth, 1.0, copies, per_day)

    def of_columns(self) -> list[ColumnForecast]:
        """Forecast the body bytes of the columns that grow fastest."""
        largest = sorted(self.series, key=lambda column: -column.bytes_per_day)[:_MOST_COLUMNS]
        forecasts = []
        for column in sorted(largest, key=lambda column: (column.cluster, column.column_name)):
            days = tuple((day.day, day.body_bytes) for day in column.days)
            forecasts.append(ColumnForecast(column.cluster, column.column_name, days, forecast(days, seed=self.seed)))
        return forecasts

    def _by_datastore(self, series: Sequence[Series], weights: Weights) -> list[list[tuple[datetime.date, float]]]:
        """Return the daily growth of each datastore, or an empty list if there is only one."""
        names = sorted({self.datastore_of(one.cluster) for one in series})
        if len(names) < 2:
            return []
        return [weighted([one for one in series if self.datastore_of(one.cluster) == name], weights) for name in names]
