"""What would become of the disks: in another codec, after a rebuild, with more growth, and with a host less. Pure.

A scenario changes two figures of a disk: what is free on it, and how much a day takes of it. How many days that lasts
is then read off the disk's forecast. Where a figure has an interval of its own, it is taken at its bad end for the bad
end of the days, and at its good end for the good one: that is a little wider than need be.

What a day takes of the disk is its body bytes, times what the column's cells take of a large file for each of theirs,
by the page model. Room in files that a migration left is not counted before a rebuild: not all of it can be used again.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from schemaless.capacity.disks import Disk
from schemaless.capacity.forecast import Band, Forecast, NoForecast
from schemaless.capacity.measurement import Group, Measurement
from schemaless.capacity.series import Series
from schemaless.codec.registry import LEGACY
from schemaless.numbers import Interval, added, summed
from schemaless.survey.column_trials import ColumnTrial
from schemaless.survey.recommendation import Choice, Option, choose

if TYPE_CHECKING:
    from schemaless.capacity.report import DiskForecast

__all__ = [
    "CodecEffect",
    "DiskOutlook",
    "Scenario",
    "best_codec",
    "codec_effects",
    "days_at_rate",
    "days_until",
    "growth_weights",
    "mean",
    "scenarios",
]

GROWTH_FACTORS: Final = (2, 10)
_80_OF_95: Final = 1.2816 / 1.9600
"""Half an interval of 80 % is this part of half an interval of 95 %."""


@dataclass(frozen=True, slots=True)
class CodecEffect:
    """A codec, as tried on sampled cells of a column.

    Attributes:
        sampled: how many cells it was tried on.
        left: how many of these cannot be had in it.
        body_share: new body bytes over those now.
        allocated_share: pages filled, over those now.
        migrated_share: pages filled after a migration, which leaves what counts as being in the codec, over those now.
        encode_s: CPU seconds for one cell, on the machine that tried it.
        decode_s: likewise.
        cells_per_day: at today's rate.
    """

    column_name: str
    codec: str
    sampled: int
    left: int
    body_share: Interval
    allocated_share: Interval
    migrated_share: Interval
    encode_s: float
    decode_s: float
    cells_per_day: float

    @property
    def encode_s_per_day(self) -> float:
        """CPU seconds to write a day's cells."""
        return self.encode_s * self.cells_per_day

    @property
    def decode_s_per_day(self) -> float:
        """CPU seconds to read a day's cells once."""
        return self.decode_s * self.cells_per_day


@dataclass(frozen=True, slots=True)
class DiskOutlook:
    """A disk in a scenario.

    Attributes:
        disk: its name.
        free_bytes: what is free at the start; None where it is not known.
        bytes_per_day: what a day takes now, on average of four weeks; None where nothing was measured.
        days: until it is full; None where that cannot be said.
        why: the reason then.
        first_day: that days count from.
        horizon_days: how far the forecast looks; infinite days are more than this.
        at_rate: days until it is full if each day brings what the last weeks did, the same every day; None where that
            is not known.
        rate_days: how many days those weeks are.
        times: what each day takes of the disk, as a part of what is forecast; None where that was not asked.
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

    @property
    def urgency(self) -> tuple[float, ...]:
        """What disks are sorted by: the one that is full first, then those beyond the horizon, then the unknown."""
        if self.days is None:
            return (math.inf,) * 5
        early = (self.days.low_80, self.days.low_95, math.inf if self.at_rate is None else self.at_rate.mid)
        return 0, self.days.mid, *early


@dataclass(frozen=True, slots=True)
class Scenario:
    """What if.

    Attributes:
        name: short, and the same in every report: ``now``, ``rebuilt``, ``msgpack+zlib``, ``growth x2``, ...
        text: for people.
        codec: that it is about, or None.
        disks: one outlook for each disk.
        file_bytes: what all files take at the start, of one copy; None where it is not known.
    """

    name: str
    text: str
    codec: str | None
    disks: tuple[DiskOutlook, ...]
    file_bytes: Interval | None = None

    @property
    def first(self) -> DiskOutlook | None:
        """The disk that is full first; None where it can be said of none."""
        return next((outlook for outlook in self.worst_first if outlook.days is not None), None)

    @property
    def worst_first(self) -> list[DiskOutlook]:
        """The disks, the one that is full first before the others."""
        return sorted(self.disks, key=lambda outlook: outlook.urgency)

    @property
    def unknown(self) -> list[DiskOutlook]:
        """The disks of which it cannot be said."""
        return [outlook for outlook in self.disks if outlook.days is None]


def codec_effects(tried: Iterable[ColumnTrial], series: Sequence[Series]) -> list[CodecEffect]:
    """Return trials as shares of what there is now.

    A column is left out whose sampled cells have no bytes at all, or are too few to carry an interval.
    """
    effects = []
    for trial in tried:
        allocated, migrated = trial.pages_share, trial.migrated_pages_share
        if trial.share is None or allocated is None or migrated is None or not trial.sampled or not trial.carried:
            continue
        cells = sum(days.cells_per_day for days in series if days.column_name == trial.column_name)
        effects.append(
            CodecEffect(
                column_name=trial.column_name,
                codec=trial.codec.name,
                sampled=trial.sampled,
                left=trial.left.total(),
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
    trials: Sequence[CodecEffect], measurement: Measurement, default: str, least_gain: float, most_cpu: float
) -> Choice | None:
    """Decide which codec all columns together should be re-encoded to; None where nothing was tried.

    ``legacy`` is none to go to.
    """
    cells = {name: sum(group.cells.mid for group in _groups(measurement, name)) for name in measurement.column_names}
    pages = {name: sum(group.allocated_bytes.mid for group in _groups(measurement, name)) for name in cells}
    bodies = {name: sum(group.body_bytes.mid for group in _groups(measurement, name)) for name in cells}
    options = [
        Option(
            codec,
            mean({effect.column_name: effect.migrated_share for effect in effects}, pages),
            mean({effect.column_name: effect.body_share for effect in effects}, bodies).mid,
            sum((effect.encode_s + effect.decode_s) * cells[effect.column_name] for effect in effects),
            sum(effect.left for effect in effects),
        )
        for codec, effects in _by_codec(trials).items()
        if codec != LEGACY.name
    ]
    return choose(options, default, least_gain=least_gain, most_cpu=most_cpu)


def growth_weights(measurement: Measurement, disk_per_body: Mapping[str, float]) -> dict[tuple[str, str], float]:
    """Return, by cluster and column, how many bytes of disk a new body byte takes.

    Args:
        measurement: the newest one.
        disk_per_body: by column, of large files. Where it is not known, what there is decides, which is too much in
            small files: these hold what a file takes once.
    """
    weights = {}
    for cluster, column in sorted({(group.cluster, group.column_name) for group in measurement.groups}):
        mine = [group for group in measurement.groups if (group.cluster, group.column_name) == (cluster, column)]
        bodies = sum(group.body_bytes.mid for group in mine)
        if column in disk_per_body:
            weights[cluster, column] = disk_per_body[column]
        elif bodies:
            weights[cluster, column] = sum(group.allocated_bytes.mid for group in mine) / bodies
    return weights


def scenarios(
    measurement: Measurement,
    grown: Sequence[DiskForecast],
    series: Sequence[Series],
    trials: Sequence[CodecEffect],
    files: Mapping[tuple[str, str], Interval],
    weights: Mapping[tuple[str, str], float],
    codec: str | None,
) -> list[Scenario]:
    """Return every scenario, ``now`` first.

    Args:
        measurement: the newest one.
        grown: its disks, with what a day takes of each.
        series: daily series of its clusters and columns.
        trials: of codecs; none where no cell could be read.
        files: how long files are after a migration and a rebuild, by cluster and codec.
        weights: what ``growth_weights`` gives.
        codec: that a re-encoding would be to, one of those tried, or None.
    """
    what_if = _WhatIf(measurement, grown, series, trials, files, weights)
    foretold = [
        what_if.scenario("now", "As it is.", None),
        what_if.scenario(
            "rebuilt", "The tables are rebuilt where that gives space back; no body is re-encoded.", None, rebuilt=True
        ),
    ]
    there = {group.codec for group in measurement.groups}
    for name in _by_codec(trials):
        if there == {name}:
            continue  # nothing would be re-encoded: that is 'rebuilt'
        text = "All bodies are in this codec, and the tables are rebuilt."
        foretold.append(what_if.scenario(name, text, name, rebuilt=True))
    if codec is not None:
        text = f"All bodies are re-encoded to {codec}; the files keep their length, and new cells take less."
        foretold.append(what_if.scenario(f"{codec}, not rebuilt", text, codec))
    for factor in GROWTH_FACTORS:
        text = f"Each day brings {factor} times as much."
        foretold.append(what_if.scenario(f"growth x{factor}", text, None, factor))
        if codec is not None:
            text = f"The same, re-encoded to {codec} and rebuilt."
            foretold.append(what_if.scenario(f"growth x{factor}, {codec}", text, codec, factor, rebuilt=True))
    return [*foretold, what_if.lost_host()]


@dataclass(frozen=True, slots=True)
class _WhatIf:
    measurement: Measurement
    grown: Sequence[DiskForecast]
    series: Sequence[Series]
    trials: Sequence[CodecEffect]
    files: Mapping[tuple[str, str], Interval]
    weights: Mapping[tuple[str, str], float]

    def scenario(
        self, name: str, text: str, codec: str | None, factor: float = 1.0, *, rebuilt: bool = False
    ) -> Scenario:
        """Return what becomes of every disk."""
        outlooks, sizes = [], []
        for grown in self.grown:
            disk = grown.disk
            files = self.file_bytes(disk, codec, rebuilt=rebuilt)
            free = None
            if disk.free_bytes is not None and files is not None and disk.file_bytes is not None:
                room = disk.free_bytes + disk.file_bytes
                free = Interval(room - files.high, room - files.mid, room - files.low)
            outlooks.append(self.outlook(grown, free, self.growth_factor(disk, codec).times(factor)))
            if files is not None:
                sizes.append(files)
        known = added(sizes) if sizes and len(sizes) == len(self.grown) else None
        return Scenario(name, text, codec, tuple(outlooks), known)

    def file_bytes(self, disk: Disk, codec: str | None, *, rebuilt: bool) -> Interval | None:
        """Return the lengths of the disk's files at the start.

        Small files grow in steps, and a rebuild may make them longer. Where bodies get no longer, it is not done then:
        nobody would. That needs a length that was measured: statistics may be from before most cells came.
        """
        if disk.file_bytes is None:
            return None
        if not rebuilt:
            return Interval.of(disk.file_bytes)
        shrinks = self.growth_factor(disk, codec).mid <= 1
        sizes = []
        for space in (space for space in self.measurement.clusters if space.cluster in disk.clusters):
            size = space.rebuilt_bytes if codec is None else self.files.get((space.cluster, codec))
            if size is None:
                return None
            if shrinks and space.file_bytes is not None and space.file_bytes_measured:
                size = Interval(*(min(end, float(space.file_bytes)) for end in size))
            sizes.append(size)
        return added(sizes)

    def growth_factor(self, disk: Disk, codec: str | None) -> Interval:
        """Return how much a day takes of the disk in a codec, as a part of what it takes now."""
        return mean(
            {trial.column_name: trial.allocated_share for trial in self.trials if trial.codec == codec},
            self._bytes_per_day(disk),
        )

    def outlook(self, grown: DiskForecast, free: Interval | None, factor: Interval) -> DiskOutlook:
        """Return how long so much lasts."""
        disk, forecast, last = grown.disk, grown.forecast, grown.rate
        per_day = sum(self._bytes_per_day(disk).values()) * factor.mid

        def cannot(why: str) -> DiskOutlook:
            return DiskOutlook(disk.name, free, per_day, None, why, None, None, times=factor)

        if disk.problem is not None:
            return cannot(f"not measured: {disk.problem}")
        if isinstance(forecast, NoForecast):
            return cannot(forecast.reason)
        if free is None:
            return cannot("its disk is not known; give --disk CLUSTER=SIZE:FREE")
        return DiskOutlook(
            disk=disk.name,
            free_bytes=free,
            bytes_per_day=per_day,
            days=days_until(forecast, free, factor),
            why=None,
            first_day=forecast.first_day,
            horizon_days=forecast.horizon_days,
            at_rate=None if last is None else days_at_rate(last.per_day, free, factor),
            rate_days=None if last is None else last.days,
            times=factor,
        )

    def lost_host(self) -> Scenario:
        """Return what becomes of the others when the host goes whose loss is worst."""
        name = "a lost host"
        alone = [grown.disk for grown in self.grown if grown.disk.copies == 1 and grown.disk.problem is None]
        if not alone:
            text = "A host is lost: its cluster's other copies hold every cell, and no disk gets more than it has."
            return Scenario(name, text, None, self.scenario(name, text, None).disks)
        others = [[grown for grown in self.grown if grown.disk is not lost and grown.disk.free_bytes] for lost in alone]
        candidates = [self._without(lost, left) for lost, left in zip(alone, others, strict=True) if left]
        if not candidates:
            text = "A host is lost: there is no other disk known that could take its shards."
            outlooks = [
                DiskOutlook(disk.name, None, None, None, "no other disk takes its shards", None, None) for disk in alone
            ]
            return Scenario(name, text, None, tuple(outlooks))
        return min(candidates, key=lambda left: left.first.days.mid if left.first and left.first.days else math.inf)

    def _without(self, lost: Disk, others: Sequence[DiskForecast]) -> Scenario:
        text = (
            f"The host of {lost.name} is lost, and its shards, from a backup or a dump, go to the others by what is "
            "free there; of all hosts without a replica, the one whose loss is worst."
        )
        free = sum(grown.disk.free_bytes or 0 for grown in others)
        moving_per_day = sum(self._bytes_per_day(lost).values())
        outlooks = []
        for grown in others:
            disk = grown.disk
            share = (disk.free_bytes or 0) / free
            own = sum(self._bytes_per_day(disk).values())
            left = Interval.of((disk.free_bytes or 0) - share * (lost.file_bytes or 0))
            if own:
                outlooks.append(self.outlook(grown, left, Interval.of(1 + share * moving_per_day / own)))
            else:
                outlooks.append(DiskOutlook(disk.name, left, None, None, "it has no growth of its own", None, None))
        return Scenario("a lost host", text, None, tuple(outlooks))

    def _bytes_per_day(self, disk: Disk) -> dict[str, float]:
        """Return what a day takes of a disk now, by column."""
        brings = dict.fromkeys(self.measurement.column_names, 0.0)
        for series in self.series:
            if series.cluster in disk.clusters and series.column_name in brings:
                weight = self.weights.get((series.cluster, series.column_name), 0.0)
                brings[series.column_name] += series.bytes_per_day * weight
        return brings


def days_until(forecast: Forecast, free: Interval, factor: Interval) -> Band:
    """Return days until so much is full, when each day takes ``factor`` of what is forecast."""
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
    """Return days until so much is full, when every day takes ``factor`` of the rate."""

    def days(room: float, taken: float) -> float:
        return max(0.0, room) / taken if taken else math.inf

    return Interval(
        days(free.low, per_day.high * factor.high),
        days(free.mid, per_day.mid * factor.mid),
        days(free.high, per_day.low * factor.low),
    )


def _groups(measurement: Measurement, column: str) -> list[Group]:
    return [group for group in measurement.groups if group.column_name == column]


def mean(shares: Mapping[str, Interval], weights: Mapping[str, float]) -> Interval:
    """Return the shares of columns, or of disks, weighted; what was not tried stays as it is."""
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
