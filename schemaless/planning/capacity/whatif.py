"""What-if scenarios: another codec or storage engine, a rebuild, more growth, a lost host. Pure functions.

``scenarios`` evaluates one list of ``WhatIf`` values, the built-in ones and those of a scenario file. Each changes two
figures of a disk: its free space, and the growth as a multiple of the forecast. The days until full then follow from
the disk's forecast. If these figures are intervals, the lower end of the days combines their unfavourable ends, and the
upper end their favourable ones; the result is slightly wider than necessary.

The growth of a disk is the sum, over its columns, of the body bytes added per day times the bytes that a large file
needs per body byte according to the page model. Space inside files that a migration frees does not count before a
rebuild, because not all of it is reusable.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeVar

from schemaless.base.numbers import Interval, added, check_number, summed
from schemaless.codec.registry import LEGACY, codec_names
from schemaless.errors import InvalidCell, InvalidInput
from schemaless.planning.capacity.disk_forecast import DiskForecast
from schemaless.planning.capacity.disks import Disk
from schemaless.planning.capacity.engines import NO_ENGINES, Engines
from schemaless.planning.capacity.expiry import NO_RETENTION, Expiring, Retention, Stored
from schemaless.planning.capacity.forecast import Band, Expiry, Forecast, NoForecast
from schemaless.planning.capacity.measurement import CodecTrial, Group, Measurement
from schemaless.planning.capacity.series import Series
from schemaless.planning.sampling.recommendation import Choice, Option, choose
from schemaless.schema.engines import ENGINES, engine_named
from schemaless.store.erasures.retention import Policy, parse_policy

K = TypeVar("K", bound=Hashable)

GROWTH_FACTORS: Final = (2, 10)
_80_OF_95: Final = 1.2816 / 1.9600
"""Width of an 80 % interval relative to a 95 % interval, for a normal distribution."""


@dataclass(frozen=True, slots=True)
class CodecEffect:
    """Effect of a codec on a column, from a trial on sampled cells.

    Attributes:
        column_name: Name of the column.
        codec: Name of the codec.
        sampled: Number of cells tried.
        left_cells: Number of tried cells that cannot be stored in the codec.
        body_share: Body bytes in the codec relative to now.
        allocated_share: Allocated bytes of cells written in the codec, relative to now.
        migrated_share: Allocated bytes after a migration, which skips bodies that already count as encoded with the
            codec, relative to now.
        encode_s: CPU seconds to encode one cell, on the machine that tried it.
        decode_s: CPU seconds to decode one cell.
        cells_per_day: Current number of new cells a day.
    """

    column_name: str
    codec: str
    sampled: int
    left_cells: int
    body_share: Interval
    allocated_share: Interval
    migrated_share: Interval
    encode_s: float
    decode_s: float
    cells_per_day: float

    @property
    def encode_s_per_day(self) -> float:
        """CPU seconds to encode the new cells of a day."""
        return self.encode_s * self.cells_per_day

    @property
    def decode_s_per_day(self) -> float:
        """CPU seconds to decode the new cells of a day once."""
        return self.decode_s * self.cells_per_day


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """A named transformation of the forecast; fields that are not given keep things as they are.

    Attributes:
        name: Name of the scenario, unique in a report.
        text: Description; by default, it is derived from the other fields.
        codec: Codec to re-encode all cells to, and to write new cells in.
        engine: Storage engine to move all cells to, ``innodb`` or ``rocksdb``, on disks like the present ones.
        rebuilt: True if tables are rebuilt where that shortens their files; by default, True if cells are re-encoded,
            are moved to another engine, or expire.
        growth: Multiple of the forecast growth, for all datastores, or by datastore name.
        retention: Retention periods of columns, such as ``{"LOG": "400 days"}``; older cells expire.
        copies: Number of servers that hold each cell. Each has its own disk, so this changes the costs, but not
            the days until disks are full.
        price_per_tb: Price of a TB (1,000 GB) of disk, instead of the report's.
        lead_days: Days from ordering a disk until it can be used, instead of the report's.
    """

    name: str
    text: str | None = None
    codec: str | None = None
    engine: str | None = None
    rebuilt: bool | None = None
    growth: float | Mapping[str, float] = 1.0
    retention: Mapping[str, str] = field(default_factory=dict)
    copies: int | None = None
    price_per_tb: float | None = None
    lead_days: float | None = None

    def __post_init__(self) -> None:
        where = f"scenario {self.name!r}"
        if not self.name.strip():
            raise InvalidInput("a scenario needs a name")
        if self.codec is not None and self.codec not in codec_names():
            raise InvalidInput(f"{where}: no codec is called {self.codec!r}; use one of {', '.join(codec_names())}")
        if self.engine is not None:
            self._check_engine(where)
        for name, factor in self.growth_by_datastore.items():
            check_number(f"{where}: growth" + (f" of {name}" if name else ""), factor)
            if factor <= 0:
                raise InvalidInput(f"{where}: growth must be above 0, got {factor:g}; 2 means twice the forecast")
        try:
            self.policies  # noqa: B018 - reading them checks them
        except (InvalidInput, InvalidCell) as error:
            raise InvalidInput(f"{where}: {error}") from None
        if self.copies is not None and (isinstance(self.copies, bool) or self.copies < 1):
            raise InvalidInput(f"{where}: copies must be a whole number of 1 or more, got {self.copies}")
        for field_name in ("price_per_tb", "lead_days"):
            value = getattr(self, field_name)
            if value is not None:
                check_number(f"{where}: {field_name}", value)
                if value < 0:
                    raise InvalidInput(f"{where}: {field_name} must be 0 or more, got {value:g}")

    def _check_engine(self, where: str) -> None:
        try:
            engine_named(self.engine or "")
        except InvalidInput as error:
            raise InvalidInput(f"{where}: {error}") from None
        if self.rebuilt is False:
            raise InvalidInput(f"{where}: a move to another engine writes new tables, so leave out rebuilt = false")

    @property
    def growth_by_datastore(self) -> Mapping[str, float]:
        """Growth as a multiple of the forecast, by datastore; the one with an empty name applies to all."""
        return self.growth if isinstance(self.growth, Mapping) else {"": self.growth}

    def growth_of(self, datastore: str) -> float:
        """Return the growth of a datastore as a multiple of its forecast."""
        return self.growth_by_datastore.get("", self.growth_by_datastore.get(datastore, 1.0))

    @property
    def policies(self) -> dict[str, Policy]:
        """Retention policies of the columns, by column name."""
        return {column: parse_policy(column.rpartition("/")[2], text) for column, text in self.retention.items()}

    @property
    def rebuilds(self) -> bool:
        """True if tables are rebuilt where that shortens their files."""
        if self.rebuilt is not None:
            return self.rebuilt
        return self.codec is not None or self.engine is not None or bool(self.retention)

    def total(self, sizes: Iterable[Interval]) -> Interval:
        """Return the total size of files; errors of sizes in another engine are assumed to be fully correlated."""
        return added(sizes) if self.engine is None else summed(sizes)

    @property
    def changes(self) -> dict[str, str]:
        """The changes in words; empty if there are none."""
        growth = ", ".join(
            f"{name} x{factor:g}" if name else f"x{factor:g}"
            for name, factor in self.growth_by_datastore.items()
            if factor != 1
        )
        changes = {
            "growth": growth,
            "codec": self.codec or "",
            "engine": "" if self.engine is None else ENGINES[self.engine].title,
            "rebuilt": "" if self.rebuilt is None else "yes" if self.rebuilds else "no",
            "retention": "; ".join(f"{column}: {policy}" for column, policy in self.policies.items()),
            "copies": "" if self.copies is None else str(self.copies),
            "price per TB": "" if self.price_per_tb is None else f"{self.price_per_tb:,g}",
            "lead time": "" if self.lead_days is None else f"{self.lead_days:,g} days",
        }
        return {name: value for name, value in changes.items() if value}

    @property
    def description(self) -> str:
        """``text``, or a sentence made from the changes."""
        return self.text or "; ".join(f"{name} {value}" for name, value in self.changes.items()) or "Nothing changes."


@dataclass(frozen=True, slots=True)
class DiskOutlook:
    """A disk in a scenario.

    Attributes:
        disk: Name of the disk.
        free_bytes: Free space at the start, or None if unknown.
        bytes_per_day: Average daily growth over the last four weeks, or None if it was not measured.
        days: Days until the disk is full, or None if unknown.
        why: Why the days are unknown.
        first_day: The date that days count from.
        horizon_days: Number of days that the forecast covers; infinite ``days`` mean more than this.
        at_rate: Days until full at the constant rate of recent weeks, or None if unknown.
        rate_days: Number of days that the constant rate was calculated from.
        times: Growth in the scenario as a multiple of the forecast, or None if unknown.
        history_days: Number of measured days, which determines ``horizon_days``.
        forecast: The forecast less the data that expires; None if no data expires.
    """

    disk: str
    free_bytes: Interval | None
    bytes_per_day: float | None
    days: Band | None
    why: str | None
    first_day: datetime.date | None
    horizon_days: int | None
    at_rate: Interval | None = None
    rate_days: int | None = None
    times: Interval | None = None
    history_days: int | None = None
    forecast: Forecast | None = field(default=None, repr=False)

    @property
    def urgency(self) -> tuple[float, ...]:
        """Sort key: disks in the order in which they fill up, then those beyond the horizon, then unknown ones."""
        if self.days is None:
            return (math.inf,) * 5
        early = (self.days.low_80, self.days.low_95, math.inf if self.at_rate is None else self.at_rate.mid)
        return 0, self.days.mid, *early


@dataclass(frozen=True, slots=True)
class Scenario:
    """A what-if scenario.

    Attributes:
        name: Short and stable: ``now``, ``rebuilt``, ``msgpack+zlib``, ``growth x2``, ...
        text: Description for people.
        codec: The codec that all cells are re-encoded to, or None.
        disks: One outlook per disk.
        file_bytes: Total length of the files at the start, counting one copy, or None if unknown.
        disk_file_bytes: The same by disk name.
    """

    name: str
    text: str
    codec: str | None
    disks: tuple[DiskOutlook, ...]
    file_bytes: Interval | None = None
    disk_file_bytes: Mapping[str, Interval] = field(default_factory=dict)

    @property
    def first(self) -> DiskOutlook | None:
        """The disk that fills up first; None if that is unknown for all disks."""
        return next((outlook for outlook in self.worst_first if outlook.days is not None), None)

    @property
    def worst_first(self) -> list[DiskOutlook]:
        """The disks, most urgent first."""
        return sorted(self.disks, key=lambda outlook: outlook.urgency)

    @property
    def unknown(self) -> list[DiskOutlook]:
        """The disks for which the days until full are unknown."""
        return [outlook for outlook in self.disks if outlook.days is None]


NOTHING: Final = WhatIf(name="now", text="Nothing changes.")
LOST_HOST: Final = "a lost host"
RETENTION: Final = "retention"


def codec_effects(tried: Iterable[CodecTrial], series: Sequence[Series]) -> list[CodecEffect]:
    """Express codec trials relative to the stored bodies.

    Columns whose sampled cells are all empty, or too few for an interval, are left out.
    """
    effects = []
    for trial in tried:
        allocated, migrated = trial.pages_share, trial.migrated_pages_share
        if trial.share is None or allocated is None or migrated is None or not trial.sampled or not trial.carried:
            continue
        cells = sum(column.cells_per_day for column in series if column.column_name == trial.column_name)
        effects.append(
            CodecEffect(
                column_name=trial.column_name,
                codec=trial.codec,
                sampled=trial.sampled,
                left_cells=trial.left_cells,
                body_share=trial.share,
                allocated_share=allocated,
                migrated_share=migrated,
                encode_s=trial.encode_s,
                decode_s=trial.decode_s,
                cells_per_day=cells,
            )
        )
    return effects


def best_codec(
    trials: Sequence[CodecEffect],
    measurement: Measurement,
    default: str,
    least_gain: float,
    most_cpu: float,
    disk_per_body: Mapping[str, Interval] | None = None,
) -> Choice | None:
    """Choose the codec, other than ``legacy``, to re-encode all columns to; None if nothing was tried.

    With ``disk_per_body``, the space of the cells is calculated from its ratios, not measured.
    """
    cells = {name: sum(group.cells.mid for group in _groups(measurement, name)) for name in measurement.column_names}
    bodies = {name: sum(group.body_bytes.mid for group in _groups(measurement, name)) for name in cells}
    pages = {name: sum(group.allocated_bytes.mid for group in _groups(measurement, name)) for name in cells}
    if disk_per_body is not None:
        pages = {name: size * disk_per_body[name].mid for name, size in bodies.items() if name in disk_per_body}
    options = [
        Option(
            codec,
            mean({effect.column_name: effect.migrated_share for effect in effects}, pages),
            mean({effect.column_name: effect.body_share for effect in effects}, bodies).mid,
            sum((effect.encode_s + effect.decode_s) * cells[effect.column_name] for effect in effects),
            sum(effect.left_cells for effect in effects),
        )
        for codec, effects in _by_codec([trial for trial in trials if trial.column_name in cells]).items()
        if codec != LEGACY.name
    ]
    return choose(options, default, least_gain=least_gain, most_cpu=most_cpu)


def growth_weights(measurement: Measurement, disk_per_body: Mapping[str, Interval]) -> dict[tuple[str, str], float]:
    """Return how many bytes of disk space a new body byte takes, by cluster and column.

    Args:
        measurement: The newest measurement.
        disk_per_body: Bytes of a large file per body byte, by column. For columns without one, the ratio in the current
            files is used, which is too high in small files because of their fixed costs.
    """
    weights = {}
    for cluster, column in sorted({(group.cluster, group.column_name) for group in measurement.groups}):
        groups = [group for group in measurement.groups if (group.cluster, group.column_name) == (cluster, column)]
        bodies = sum(group.body_bytes.mid for group in groups)
        if column in disk_per_body:
            weights[cluster, column] = disk_per_body[column].mid
        elif bodies:
            weights[cluster, column] = sum(group.allocated_bytes.mid for group in groups) / bodies
    return weights


def scenarios(
    measurement: Measurement,
    disks: Sequence[DiskForecast],
    series: Sequence[Series],
    trials: Sequence[CodecEffect],
    files: Mapping[tuple[str, str | None], Interval],
    weights: Mapping[tuple[str, str], float],
    codec: str | None,
    what_ifs: Sequence[WhatIf] = (),
    retention: Retention = NO_RETENTION,
    engines: Engines = NO_ENGINES,
) -> list[Scenario]:
    """Return all scenarios, starting with ``now``.

    Args:
        measurement: The newest measurement.
        disks: Its disks with their forecasts.
        series: Daily series of its clusters and columns.
        trials: Codec trials; empty if no cell could be read.
        files: File lengths after a migration and a rebuild, by cluster and codec.
        weights: Result of ``growth_weights``.
        codec: The codec to re-encode to, one of those tried, or None.
        what_ifs: Scenarios of the user, which follow the built-in ones.
        retention: The policies in force, and what is known about expired cells.
        engines: The storage engines of the clusters, and trials of others.

    Raises:
        InvalidInput: Two scenarios have the same name, or one names an unknown datastore or column.
    """
    stored = {group.codec for group in measurement.groups}
    # A codec that everything is in already re-encodes nothing, so its scenario would be the same as 'rebuilt'.
    built_in = _built_in([name for name in _by_codec(trials) if stored != {name}], codec, retention)
    names = [change.name for change in (*built_in, *what_ifs)] + [LOST_HOST]
    for change in what_ifs:
        if names.count(change.name) > 1:
            raise InvalidInput(
                f"two scenarios are called {change.name!r}; choose another name; the built-in ones are "
                f"{', '.join(repr(other.name) for other in built_in)} and {LOST_HOST!r}"
            )
        unknown = change.growth_by_datastore.keys() - {"", *measurement.datastores}
        if unknown:
            raise InvalidInput(
                f"scenario {change.name!r}: growth names {min(unknown)!r}, but the report is about "
                f"{', '.join(measurement.datastores)}"
            )
        missing = change.retention.keys() - set(measurement.column_names)
        if missing:
            raise InvalidInput(
                f"scenario {change.name!r}: retention names the column {min(missing)!r}, which has no cells; the "
                f"columns are {', '.join(measurement.column_names)}"
            )
    evaluator = _Evaluator(measurement, disks, series, trials, files, weights, retention, engines)
    results = [evaluator.scenario(change) for change in built_in]
    return [*results, evaluator.lost_host(), *(evaluator.scenario(change) for change in what_ifs)]


def _built_in(codecs: Iterable[str], codec: str | None, retention: Retention) -> list[WhatIf]:
    """Return the built-in scenarios, except the loss of a host, which changes the free space of all other disks."""
    changes = [
        NOTHING,
        WhatIf(name="rebuilt", text="Tables rebuilt if that shortens their files; nothing re-encoded.", rebuilt=True),
    ]
    changes += [
        WhatIf(name=name, text="All cells re-encoded to this codec, tables rebuilt.", codec=name) for name in codecs
    ]
    if codec is not None:
        text = f"All cells re-encoded to {codec}; files keep their length, and new cells need less space."
        changes.append(WhatIf(name=f"{codec}, not rebuilt", text=text, codec=codec, rebuilt=False))
    for factor in GROWTH_FACTORS:
        text = f"Every day adds {factor} times as much as forecast."
        changes.append(WhatIf(name=f"growth x{factor}", text=text, growth=factor))
        if codec is not None:
            text = f"Every day adds {factor} times as much as forecast; cells re-encoded to {codec} and rebuilt."
            changes.append(WhatIf(name=f"growth x{factor}, {codec}", text=text, codec=codec, growth=factor))
    if retention.policies:
        rules = "; ".join(f"{column}: {policy}" for column, policy in retention.policies.items())
        text = f"Retention runs daily ({rules}), and tables are rebuilt where that shortens their files."
        policies = {column: str(policy) for column, policy in retention.policies.items()}
        changes.append(WhatIf(name=RETENTION, text=text, retention=policies))
    return changes


@dataclass(frozen=True, slots=True)
class _Evaluator:
    measurement: Measurement
    disks: Sequence[DiskForecast]
    series: Sequence[Series]
    trials: Sequence[CodecEffect]
    files: Mapping[tuple[str, str | None], Interval]
    weights: Mapping[tuple[str, str], float]
    retention: Retention = NO_RETENTION
    engines: Engines = NO_ENGINES

    def scenario(self, change: WhatIf) -> Scenario:
        """Evaluate a change on every disk."""
        outlooks, sizes = [], {}
        for disk_forecast in self.disks:
            disk = disk_forecast.disk
            if disk.problem is None and (why := self._untried(disk, change)) is not None:
                outlooks.append(DiskOutlook(disk.name, None, None, None, why, None, None))
                continue
            files = self.file_bytes(disk, change)
            factor = self.growth_factor(disk, change)
            expiring = self.expiring(disk, change, factor)
            if files is not None and change.rebuilds:
                freed = sum(each.expired_bytes for each in expiring)
                files = Interval(*(max(0.0, end - freed) for end in files))
            free = None
            if disk.free_bytes is not None and files is not None and disk.file_bytes is not None:
                room = disk.free_bytes + disk.file_bytes
                free = Interval(room - files.high, room - files.mid, room - files.low)
            outlooks.append(self.outlook(disk_forecast, free, factor, [each.expiry for each in expiring]))
            if files is not None:
                sizes[disk.name] = files
        known = change.total(sizes.values()) if sizes and len(sizes) == len(self.disks) else None
        return Scenario(change.name, change.description, change.codec, tuple(outlooks), known, sizes)

    def _untried(self, disk: Disk, change: WhatIf) -> str | None:
        """Return why the space in the change's storage engine is unknown; None if it is known."""
        tried = {(engine, cluster) for engine, cluster, _ in self.engines.files}
        if change.engine is None or all(
            not self.engines.converts(cluster, change.engine) or (change.engine, cluster) in tried
            for cluster in disk.clusters
        ):
            return None
        return f"none of its cells could be tried in {ENGINES[change.engine].title}"

    def file_bytes(self, disk: Disk, change: WhatIf) -> Interval | None:
        """Return the length of the disk's files at the start; None if unknown.

        Small files grow in steps, so a rebuild can even make them longer. The scenario assumes that such a rebuild is
        not done unless bodies get longer too. This assumption requires a measured length, since InnoDB's statistics may
        be outdated.
        """
        if disk.file_bytes is None:
            return None
        if not change.rebuilds:
            return Interval.of(disk.file_bytes)
        shrinks = self.growth_factor(disk, WhatIf(name=change.name, codec=change.codec)).mid <= 1
        sizes = []
        for space in (space for space in self.measurement.clusters if space.cluster in disk.clusters):
            converted = self.engines.converts(space.cluster, change.engine)
            if converted:
                size = self.engines.files.get((change.engine or "", space.cluster, change.codec))
            else:
                size = space.rebuilt_bytes if change.codec is None else self.files.get((space.cluster, change.codec))
            if size is None:
                return None
            if shrinks and not converted and space.file_bytes is not None and space.file_bytes_measured:
                size = Interval(*(min(end, float(space.file_bytes)) for end in size))
            sizes.append(size)
        return change.total(sizes)

    def growth_factor(self, disk: Disk, change: WhatIf) -> Interval:
        """Return the growth of the disk after a change, relative to the growth now."""
        now = self._bytes_per_day(disk)
        shares = {
            (cluster, column): self._share(cluster, column, change).times(
                change.growth_of(self.measurement.datastore_of(column))
            )
            for cluster, column in now
        }
        return mean(shares, now)

    def expiring(self, disk: Disk, change: WhatIf, factor: Interval) -> list[Expiring]:
        """Return the data that expires in each column of a disk, whose growth is ``factor`` times its forecast."""
        now = self._bytes_per_day(disk)
        total = sum(now.values()) * factor.mid
        found = []
        for column, policy in change.policies.items():
            times = {cluster: self._share(cluster, column, change).mid for cluster in disk.clusters}
            past: dict[datetime.date, float] = {}
            for each in self.series:
                if each.cluster in disk.clusters and each.column_name == column:
                    weight = self.weights.get((each.cluster, column), 0.0) * times[each.cluster]
                    for day in each.days:
                        past[day.day] = past.get(day.day, 0.0) + (0.0 if day.erased else weight * day.body_bytes)
            groups = [group for group in _groups(self.measurement, column) if group.cluster in disk.clusters]
            grown = sum(now.get((cluster, column), 0.0) * share for cluster, share in times.items())
            grown *= change.growth_of(self.measurement.datastore_of(column))
            stored = Stored(
                column,
                sum(group.cells.mid for group in groups),
                sum(group.allocated_bytes.mid * times[group.cluster] for group in groups),
                sorted(past.items()),
                grown / total if total else 0.0,
            )
            found.append(self.retention.expiring(policy, stored, factor.mid))
        return found

    def _share(self, cluster: str, column: str, change: WhatIf) -> Interval:
        """Return the disk space of a column in a cluster after a change, relative to now; 1 if it is unknown."""
        if self.engines.converts(cluster, change.engine):
            there = self.engines.per_body(change.engine, change.codec, column)
            weight = self.weights.get((cluster, column))
            return there.times(1 / weight) if there is not None and weight else Interval.of(1.0)
        return next(
            (
                trial.allocated_share
                for trial in self.trials
                if (trial.codec, trial.column_name) == (change.codec, column)
            ),
            Interval.of(1.0),
        )

    def outlook(
        self, disk_forecast: DiskForecast, free: Interval | None, factor: Interval, expiries: Sequence[Expiry] = ()
    ) -> DiskOutlook:
        """Calculate the days until a disk is full, given its free space, a growth factor, and what expires."""
        disk, forecast, rate = disk_forecast.disk, disk_forecast.forecast, disk_forecast.rate
        per_day = sum(self._bytes_per_day(disk).values()) * factor.mid

        def unknown(why: str) -> DiskOutlook:
            return DiskOutlook(disk.name, free, per_day, None, why, None, None, times=factor)

        if disk.problem is not None:
            return unknown(f"not measured: {disk.problem}")
        if isinstance(forecast, NoForecast):
            return unknown(forecast.reason)
        if free is None:
            return unknown("the size or free space of its disk is unknown; give --disk CLUSTER=TOTAL:FREE")
        remaining = forecast.less(expiries) if expiries else forecast
        return DiskOutlook(
            disk=disk.name,
            free_bytes=free,
            bytes_per_day=per_day,
            days=days_until(remaining, free, factor),
            why=None,
            first_day=forecast.first_day,
            horizon_days=forecast.horizon_days,
            at_rate=None if rate is None or expiries else days_at_rate(rate.per_day, free, factor),
            rate_days=None if rate is None else rate.days,
            times=factor,
            history_days=forecast.history_days,
            forecast=remaining if expiries else None,
        )

    def lost_host(self) -> Scenario:
        """Evaluate the host loss that affects the other disks most."""
        name = LOST_HOST
        single = [entry.disk for entry in self.disks if entry.disk.copies == 1 and entry.disk.problem is None]
        if not single:
            text = "A host is lost. The other hosts of its cluster hold every cell, so no other disk fills up faster."
            return replace(self.scenario(WhatIf(name=name, text=text)), file_bytes=None)
        candidates = []
        for lost in single:
            others = [entry for entry in self.disks if entry.disk is not lost and entry.disk.free_bytes]
            if others:
                candidates.append(self._without(lost, others))
        if not candidates:
            text = "A host is lost, and there is no other disk of known size for its shards."
            outlooks = [
                DiskOutlook(disk.name, None, None, None, "there is no other disk for its shards", None, None)
                for disk in single
            ]
            return Scenario(name, text, None, tuple(outlooks))
        return min(candidates, key=lambda case: case.first.days.mid if case.first and case.first.days else math.inf)

    def _without(self, lost: Disk, others: Sequence[DiskForecast]) -> Scenario:
        text = (
            f"The host of {lost.name} is lost, and its shards are restored from a backup to the other disks in "
            "proportion to their free space. Of all hosts without a replica, this is the one whose loss is worst."
        )
        free = sum(entry.disk.free_bytes or 0 for entry in others)
        moving_per_day = sum(self._bytes_per_day(lost).values())
        outlooks = []
        for entry in others:
            disk = entry.disk
            share = (disk.free_bytes or 0) / free
            own = sum(self._bytes_per_day(disk).values())
            remaining = Interval.of((disk.free_bytes or 0) - share * (lost.file_bytes or 0))
            if own:
                outlooks.append(self.outlook(entry, remaining, Interval.of(1 + share * moving_per_day / own)))
            else:
                outlooks.append(DiskOutlook(disk.name, remaining, None, None, "it has no growth yet", None, None))
        return Scenario(LOST_HOST, text, None, tuple(outlooks))

    def _bytes_per_day(self, disk: Disk) -> dict[tuple[str, str], float]:
        """Return the current daily growth of a disk by cluster and column."""
        return {
            (series.cluster, series.column_name): series.bytes_per_day
            * self.weights.get((series.cluster, series.column_name), 0.0)
            for series in self.series
            if series.cluster in disk.clusters
        }


def days_until(forecast: Forecast, free: Interval, factor: Interval) -> Band:
    """Return the days until ``free`` is used up, with a growth of ``factor`` times the forecast."""
    low, mid, high = free.low / factor.high, free.mid / factor.mid, free.high / factor.low
    best = forecast.days_until(mid)
    low_80, high_80 = mid - (mid - low) * _80_OF_95, mid + (high - mid) * _80_OF_95
    return Band(
        forecast.days_until(low).low_95,
        forecast.days_until(low_80).low_80,
        best.mid,
        forecast.days_until(high_80).high_80,
        forecast.days_until(high).high_95,
    )


def days_at_rate(per_day: Interval, free: Interval, factor: Interval) -> Interval:
    """Return the days until ``free`` is used up, with a growth of ``factor`` times a constant rate."""

    def days(room: float, growth: float) -> float:
        return max(0.0, room) / growth if growth else math.inf

    return Interval(
        days(free.low, per_day.high * factor.high),
        days(free.mid, per_day.mid * factor.mid),
        days(free.high, per_day.low * factor.low),
    )


def _groups(measurement: Measurement, column: str) -> list[Group]:
    return [group for group in measurement.groups if group.column_name == column]


def mean(shares: Mapping[K, Interval], weights: Mapping[K, float]) -> Interval:
    """Return the weighted mean of shares by column or disk; columns or disks without a share count as 1."""
    total = sum(weights.values())
    if not total:
        return Interval.of(1.0)
    parts = [shares.get(name, Interval.of(1.0)).times(weight / total) for name, weight in weights.items() if weight]
    return summed(parts)


def _by_codec(trials: Sequence[CodecEffect]) -> dict[str, list[CodecEffect]]:
    by_codec: dict[str, list[CodecEffect]] = {}
    for trial in trials:
        by_codec.setdefault(trial.codec, []).append(trial)
    return by_codec
