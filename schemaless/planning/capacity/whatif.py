"""What-if scenarios: another codec or storage engine, a rebuild, more growth, a lost host. Pure functions.

``scenarios`` evaluates one list of ``WhatIf`` values, the built-in ones and those of a scenario file. Each option of
one is a function from a disk to a disk (``_STEPS``); together they change three figures: the free space, the growth as
a multiple of the forecast, and what expires. The days until full then follow from the disk's forecast. If these figures
are intervals, the lower end of the days combines their unfavourable ends, and the upper end their favourable ones; the
result is slightly wider than necessary.

The growth of a disk is the sum, over its columns, of the body bytes added per day times the bytes that a large file
needs per body byte according to the page model. Space inside files that a migration frees does not count before a
rebuild, because not all of it is reusable.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from schemaless.base.numbers import Interval, summed
from schemaless.codec.envelope import COLD, ERASED, REFERENCE_BYTES
from schemaless.errors import InvalidInput
from schemaless.planning.capacity.basis import Basis, DiskForecast, groups_of, mean
from schemaless.planning.capacity.days import MOST_DAYS
from schemaless.planning.capacity.disks import Disk
from schemaless.planning.capacity.expiry import Expiring, Stored, aging, erased_share, expiring, freed_share
from schemaless.planning.capacity.forecast import Band, Expiry, Forecast, NoForecast
from schemaless.planning.capacity.measurement import CodecTrials
from schemaless.planning.capacity.options import NOTHING, WhatIf
from schemaless.planning.sampling.column_trials import HISTORY, plain_name
from schemaless.schema.engines import ENGINES

_GROWTH_FACTORS: Final = (2, 10)
_80_OF_95: Final = 1.2816 / 1.9600
"""Width of an 80 % interval relative to a 95 % interval, for a normal distribution."""

LOST_HOST: Final = "a lost host"
RETENTION: Final = "retention"


@dataclass(frozen=True, slots=True)
class ColdShare:
    """What the cells of a disk add to the cold store.

    Attributes:
        start_bytes: Files with the cells that are old enough at the start.
        expiries: Files with later ones, in units of the disk's forecast.
    """

    start_bytes: Interval
    expiries: tuple[Expiry, ...]


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
        expiries: What expires or becomes cold, in units of the forecast.
        cold: What that adds to the cold store.
    """

    disk: str
    free_bytes: Interval | None = None
    bytes_per_day: float | None = None
    days: Band | None = None
    why: str | None = None
    first_day: datetime.date | None = None
    horizon_days: int | None = None
    at_rate: Interval | None = None
    rate_days: int | None = None
    times: Interval | None = None
    history_days: int | None = None
    forecast: Forecast | None = field(default=None, repr=False)
    expiries: tuple[Expiry, ...] = field(default=(), repr=False)
    cold: ColdShare | None = field(default=None, repr=False)

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
        change: What it changes; its name is short and stable: ``now``, ``rebuilt``, ``growth x2``, ...
        disks: One outlook per disk.
        file_bytes: Total length of the files at the start, counting one copy, or None if unknown.
        disk_file_bytes: The same by disk name.
    """

    change: WhatIf
    disks: tuple[DiskOutlook, ...]
    file_bytes: Interval | None = None
    disk_file_bytes: Mapping[str, Interval] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Name of the change."""
        return self.change.name

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


def scenarios(basis: Basis, codec: str | None) -> list[Scenario]:
    """Return all scenarios: ``now`` and the other built-in ones, then those of the user.

    Args:
        basis: Measurement, disks, growth and options.
        codec: The codec to re-encode to, one of those tried, or None.

    Raises:
        InvalidInput: Two scenarios have the same name, or one names an unknown datastore or column.
    """
    built_in, what_ifs = _built_in(basis, codec), basis.options.what_ifs
    names = [change.name for change in (*built_in, *what_ifs)] + [LOST_HOST]
    for change in what_ifs:
        if names.count(change.name) > 1:
            raise InvalidInput(
                f"{change.where}: two scenarios have this name; choose another one; the built-in ones are "
                f"{', '.join(repr(other.name) for other in built_in)} and {LOST_HOST!r}"
            )
        if unknown := change.growth_by_datastore.keys() - {"", *basis.measurement.datastores}:
            raise InvalidInput(
                f"{change.where}: growth names {min(unknown)!r}, but the report is about "
                f"{', '.join(basis.measurement.datastores)}"
            )
        if missing := change.retention.keys() - set(basis.measurement.column_names):
            raise InvalidInput(
                f"{change.where}: retention names the column {min(missing)!r}, which has no cells; the "
                f"columns are {', '.join(basis.measurement.column_names)}"
            )
        _check_tiers(basis, change)
        if change.dictionary and not basis.dictionaries:
            raise InvalidInput(
                f"{change.where}: the newest measurement has no dictionary that helps any column; leave out "
                "dictionary = true"
            )
    results = [_scenario(basis, change) for change in built_in]
    return [*results, _lost_host(basis), *(_scenario(basis, change) for change in what_ifs)]


def _check_tiers(basis: Basis, change: WhatIf) -> None:
    names = basis.measurement.column_names
    if missing := change.tiers.keys() - {"", *names}:
        raise InvalidInput(
            f"{change.where}: tier_after names the column {min(missing)!r}, which has no cells; the columns "
            f"are {', '.join(names)}"
        )
    cold = any(change.tier_days(name) is not None and name in basis.file_share for name in names)
    if change.tiers and names and not cold:
        raise InvalidInput(
            f"{change.where}: the newest measurement has no sizes of cold files; measure again where the "
            "extra is installed: pip install 'schemaless-store[cold]'"
        )


def _built_in(basis: Basis, codec: str | None) -> list[WhatIf]:
    """Return the built-in scenarios, except the loss of a host, which changes the free space of all other disks."""
    stored = {group.codec for group in basis.measurement.groups} - {COLD}
    # A codec that everything is in already re-encodes nothing, so its scenario would be the same as 'rebuilt'.
    codecs = [name for name in dict.fromkeys(trial.codec for trial in basis.trials) if stored != {name}]
    changes = [
        NOTHING,
        WhatIf(name="rebuilt", text="Tables rebuilt if that shortens their files; nothing re-encoded.", rebuilt=True),
    ]
    changes += [
        WhatIf(name=name, text="All cells re-encoded to this codec, tables rebuilt.", codec=name) for name in codecs
    ]
    in_history = basis.history_codec(codec)
    if in_history is not None:
        text = f"All cells re-encoded to {in_history}, superseded versions as differences, tables rebuilt."
        changes.append(WhatIf(name=f"{in_history}{HISTORY}", text=text, codec=in_history, history=True))
    if codec is not None:
        text = f"All cells re-encoded to {codec}; files keep their length, and new cells need less space."
        changes.append(WhatIf(name=f"{codec}, not rebuilt", text=text, codec=codec, rebuilt=False))
    for factor in _GROWTH_FACTORS:
        text = f"Every day adds {factor} times as much as forecast"
        changes.append(WhatIf(name=f"growth x{factor}", text=f"{text}.", growth=factor))
        if codec is not None:
            text += f"; cells re-encoded to {codec} and rebuilt."
            changes.append(WhatIf(name=f"growth x{factor}, {codec}", text=text, codec=codec, growth=factor))
    if basis.policies:
        policies = {column: str(policy) for column, policy in basis.policies.items()}
        rules = "; ".join(f"{column}: {policy}" for column, policy in policies.items())
        text = f"Retention runs daily ({rules}), and tables are rebuilt where that shortens their files."
        changes.append(WhatIf(name=RETENTION, text=text, retention=policies))
    return changes


@dataclass(frozen=True, slots=True)
class _State:
    """A disk, as the options of a scenario that were applied so far leave it.

    Attributes:
        disk: The disk.
        file_bytes: Length of its files at the start, or None if unknown.
        shares: Disk space of new cells relative to now, by cluster and column.
        times: Growth as a multiple of the forecast.
        expiries: What expires or becomes cold.
        cold: What that adds to the cold store.
    """

    disk: Disk
    file_bytes: Interval | None
    shares: Mapping[tuple[str, str], Interval]
    times: Interval = Interval(1.0, 1.0, 1.0)  # noqa: RUF009 - immutable
    expiries: tuple[Expiry, ...] = ()
    cold: ColdShare | None = None


def _reencode(basis: Basis, change: WhatIf, state: _State) -> _State:
    """Apply ``codec`` and ``engine``."""
    return replace(state, shares={key: _share(basis, *key, change.engine, change.trial) for key in state.shares})


def _share(basis: Basis, cluster: str, column: str, engine: str | None, codec: str | None) -> Interval:
    """Return the disk space of a column in a cluster after a change, relative to now; 1 if it is unknown."""
    if basis.converts(cluster, engine):
        in_engine = {
            each.codec: each.per_body for each in basis.engines if (each.engine, each.column_name) == (engine, column)
        }
        weight = basis.weights.get((cluster, column))
        found = next((in_engine[name] for name in _names(codec) if name in in_engine), None)
        return found.times(1 / weight) if found is not None and weight else Interval.of(1.0)
    tried = {each.codec: each.pages_share for each in basis.tried if each.column_name == column}
    return next((tried[name] for name in _names(codec) if name is not None and name in tried), Interval.of(1.0))


def _names(codec: str | None) -> list[str | None]:
    """Return the names of the trials to look for: not every column has differences, or a dictionary that helps."""
    return [codec] if codec is None else list(dict.fromkeys((codec, plain_name(codec))))


def _grow(basis: Basis, change: WhatIf, state: _State) -> _State:
    """Apply ``growth``."""
    now = basis.bytes_per_day(state.disk)
    shares = {key: state.shares[key].times(_growth(basis, change, key[1])) for key in now}
    return replace(state, times=mean(shares, now))


def _growth(basis: Basis, change: WhatIf, column: str) -> float:
    return change.growth_of(basis.measurement.datastore_of(column))


def _rebuild(basis: Basis, change: WhatIf, state: _State) -> _State:
    """Apply ``rebuilt``.

    Small files grow in steps, so a rebuild can even make them longer. The scenario assumes that such a rebuild is not
    done unless bodies get longer too. This assumption requires a measured length, since InnoDB's statistics may be
    outdated.
    """
    if state.file_bytes is None or not change.rebuilds:
        return state
    now = basis.bytes_per_day(state.disk)
    shrinks = mean({key: _share(basis, *key, None, change.trial) for key in now}, now).mid <= 1
    sizes = []
    for space in (space for space in basis.measurement.clusters if space.cluster in state.disk.clusters):
        converted = basis.converts(space.cluster, change.engine)
        if change.codec is None and not converted:
            size = space.rebuilt_bytes
        else:
            engine = change.engine if converted else None
            keys = ((engine, space.cluster, name) for name in _names(change.trial))
            size = next((basis.files[key] for key in keys if key in basis.files), None)
        if size is None:
            return replace(state, file_bytes=None)
        if shrinks and not converted and space.file_bytes is not None and space.file_bytes_measured:
            size = size.map(lambda end, now=float(space.file_bytes): min(end, now))  # type: ignore[misc]
        sizes.append(size)
    return replace(state, file_bytes=change.total(sizes))


def _expire(basis: Basis, change: WhatIf, state: _State) -> _State:
    """Apply ``retention``, but not to cells that are cold by then: a tombstone is hardly shorter than a reference."""
    hot = [column for column in change.policies if not _cold_first(basis, change, column)]
    return _without(state, change, [_expiring(basis, change, state, column) for column in hot])


def _cold_first(basis: Basis, change: WhatIf, column: str) -> bool:
    """Return True if the cells of a column become cold before its policy erases them."""
    days, policy = change.tier_days(column), change.policies.get(column)
    if days is None or policy is None or column not in basis.file_share:
        return False
    return days < (policy.keep_days or 0)


def _without(state: _State, change: WhatIf, found: Sequence[Expiring]) -> _State:
    """Return a disk without the space that is freed."""
    files, freed = state.file_bytes, sum(each.expired_bytes for each in found)
    if files is not None and change.rebuilds:
        files = files.map(lambda end: max(0.0, end - freed))
    return replace(state, file_bytes=files, expiries=(*state.expiries, *(each.expiry for each in found)))


def _tier(basis: Basis, change: WhatIf, state: _State) -> _State:
    """Apply ``tier_after``."""
    found, starts, later = [], [], []
    for column in basis.measurement.column_names:
        days, share = change.tier_days(column), basis.file_share.get(column)
        if days is None or share is None:
            continue
        stored, per_body = _in_database(basis, change, state, column)
        trials, policy = _trials(basis, change, state), change.policies.get(column)
        erased = 0.0 if policy is None else erased_share(policy, column, trials)
        cold_first = _cold_first(basis, change, column)
        freed = freed_share(stored, REFERENCE_BYTES, column.rpartition("/")[2], trials.layout)
        aged = aging(stored, days, freed * (1.0 if cold_first else 1 - erased), state.times.mid)
        found.append(aged)
        if not freed or not per_body:
            continue
        per_freed = share.times(1 / freed / per_body)  # bytes of files for a byte that becomes free
        later.append(_times(aged.expiry, per_freed.mid))
        gone = 0.0
        if policy is not None and policy.keep_days is not None and cold_first:
            from_files = aging(_stored(basis, change, state, column), policy.keep_days, freed * erased, state.times.mid)
            later.append(_times(from_files.expiry, -per_freed.mid))
            gone = from_files.expired_bytes
        starts.append(per_freed.times(max(0.0, aged.expired_bytes - gone)))
    if not found:
        return state
    return replace(_without(state, change, found), cold=ColdShare(summed(starts), tuple(later)))


def _times(expiry: Expiry, factor: float) -> Expiry:
    return replace(expiry, past=tuple(factor * size for size in expiry.past), share=factor * expiry.share)


def _in_database(basis: Basis, change: WhatIf, state: _State, column: str) -> tuple[Stored, float]:
    """Return the cells of a column on a disk that are not cold, and the bytes of disk for each byte of their bodies."""
    newest, clusters = basis.measurement, state.disk.clusters
    yesterday = newest.taken_at.date() - datetime.timedelta(1)
    past = {yesterday: 0.0}
    cells = bodies = space = 0.0
    for name in clusters:
        weight = basis.weights.get((name, column), 0.0) * _share(basis, name, column, change.engine, change.trial).mid
        groups = [
            group for group in groups_of(newest, column) if group.cluster == name and group.codec not in (COLD, ERASED)
        ]
        size = sum(group.body_bytes.mid for group in groups)
        cells += sum(group.cells.mid for group in groups)
        bodies += size
        space += weight * size
        intakes = [each for each in newest.growth if (each.cluster, each.column_name) == (name, column)]
        hot = {each.day: max(0.0, each.body_bytes.mid - REFERENCE_BYTES * each.cold_cells) for each in intakes}
        if len(hot) >= MOST_DAYS:  # Older cells are in no day.
            hot[min(hot)] += max(0.0, size - sum(hot.values()))
        for day, of_day in hot.items():
            if day <= yesterday:
                past[day] = past.get(day, 0.0) + weight * of_day
    return Stored(column, cells, space, sorted(past.items()), _growth_share(basis, change, state, column)), (
        space / bodies if bodies else 0.0
    )


def _growth_share(basis: Basis, change: WhatIf, state: _State, column: str) -> float:
    """Return the share of a column in the growth of a disk."""
    now = basis.bytes_per_day(state.disk)
    grown = sum(
        now.get((name, column), 0.0) * _share(basis, name, column, change.engine, change.trial).mid
        for name in state.disk.clusters
    )
    total = sum(now.values()) * state.times.mid
    return grown * _growth(basis, change, column) / total if total else 0.0


def _expiring(basis: Basis, change: WhatIf, state: _State, column: str) -> Expiring:
    stored = _stored(basis, change, state, column)
    return expiring(change.policies[column], stored, state.times.mid, _trials(basis, change, state))


def _stored(basis: Basis, change: WhatIf, state: _State, column: str) -> Stored:
    """Return all cells of a column on a disk; cold ones count with the bodies that they would have."""
    clusters = state.disk.clusters
    shares = {name: _share(basis, name, column, change.engine, change.trial).mid for name in clusters}
    past: dict[datetime.date, float] = {}
    for series in basis.series:
        if series.cluster in clusters and series.column_name == column:
            weight = basis.weights.get((series.cluster, column), 0.0) * shares[series.cluster]
            for day in series.days:
                past[day.day] = past.get(day.day, 0.0) + (0.0 if day.erased else weight * day.body_bytes)
    groups = [group for group in groups_of(basis.measurement, column) if group.cluster in clusters]
    return Stored(
        column,
        sum(group.cells.mid for group in groups),
        sum(group.allocated_bytes.mid * shares[group.cluster] for group in groups),
        sorted(past.items()),
        _growth_share(basis, change, state, column),
    )


def _trials(basis: Basis, change: WhatIf, state: _State) -> CodecTrials:
    """Return the trials, with the layout of the storage engine that the cells of a disk are in after a change."""
    trials = basis.measurement.trials
    converted = any(basis.converts(name, change.engine) for name in state.disk.clusters)
    there = trials.engines.get(change.engine or "") if converted else None
    return trials if there is None else replace(trials, layout=there.layout)


_STEPS: Final = (_reencode, _grow, _rebuild, _expire, _tier)
"""The options of a scenario, in the order in which they are applied."""


def _scenario(basis: Basis, change: WhatIf) -> Scenario:
    """Apply a change to every disk."""
    outlooks, sizes = [], {}
    for entry in basis.disks:
        disk = entry.disk
        if disk.problem is None and any(
            basis.converts(name, change.engine) and not any(key[:2] == (change.engine, name) for key in basis.files)
            for name in disk.clusters
        ):
            why = f"none of its cells could be tried in {ENGINES[change.engine or ''].title}"
            outlooks.append(DiskOutlook(disk.name, why=why))
            continue
        files = None if disk.file_bytes is None else Interval.of(disk.file_bytes)
        state = _State(disk, files, dict.fromkeys(basis.bytes_per_day(disk), Interval.of(1.0)))
        for step in _STEPS:
            state = step(basis, change, state)
        free = None
        if state.file_bytes is not None:
            sizes[disk.name] = files = state.file_bytes
            if disk.free_bytes is not None:
                room = disk.free_bytes + (disk.file_bytes or 0)
                free = Interval(room - files.high, room - files.mid, room - files.low)
        outlook = _outlook(basis, entry, free, state.times, state.expiries)
        outlooks.append(replace(outlook, cold=state.cold))
    known = change.total(sizes.values()) if sizes and len(sizes) == len(basis.disks) else None
    return Scenario(change, tuple(outlooks), known, sizes)


def _outlook(
    basis: Basis, entry: DiskForecast, free: Interval | None, times: Interval, expiries: Sequence[Expiry] = ()
) -> DiskOutlook:
    """Calculate the days until a disk is full, given its free space, a growth factor, and what expires."""
    forecast, rate = entry.forecast, entry.rate
    per_day = sum(basis.bytes_per_day(entry.disk).values()) * times.mid
    outlook = DiskOutlook(entry.disk.name, free, per_day, times=times, expiries=tuple(expiries))
    if entry.disk.problem is not None:
        return replace(outlook, why=f"not measured: {entry.disk.problem}")
    if isinstance(forecast, NoForecast):
        return replace(outlook, why=forecast.reason)
    if free is None:
        return replace(outlook, why="the size or free space of its disk is unknown; give --disk CLUSTER=TOTAL:FREE")
    remaining = forecast.less(expiries) if expiries else forecast
    return replace(
        outlook,
        days=days_until(remaining, free, times),
        first_day=forecast.first_day,
        horizon_days=forecast.horizon_days,
        at_rate=None if rate is None or expiries else days_at_rate(rate.per_day, free, times),
        rate_days=None if rate is None else rate.days,
        history_days=forecast.history_days,
        forecast=remaining if expiries else None,
    )


def _lost_host(basis: Basis) -> Scenario:
    """Evaluate the host loss that affects the other disks most."""
    single = [entry.disk for entry in basis.disks if entry.disk.copies == 1 and entry.disk.problem is None]
    if not single:
        text = "A host is lost. The other hosts of its cluster hold every cell, so no other disk fills up faster."
        return replace(_scenario(basis, WhatIf(name=LOST_HOST, text=text)), file_bytes=None)
    cases = []
    for lost in single:
        others = [entry for entry in basis.disks if entry.disk is not lost and entry.disk.free_bytes]
        if others:
            cases.append(_without_host(basis, lost, others))
    if not cases:
        text = "A host is lost, and there is no other disk of known size for its shards."
        outlooks = [DiskOutlook(disk.name, why="there is no other disk for its shards") for disk in single]
        return Scenario(WhatIf(name=LOST_HOST, text=text), tuple(outlooks))
    return min(cases, key=lambda case: case.first.days.mid if case.first and case.first.days else math.inf)


def _without_host(basis: Basis, lost: Disk, others: Sequence[DiskForecast]) -> Scenario:
    text = (
        f"The host of {lost.name} is lost, and its shards are restored from a backup to the other disks in "
        "proportion to their free space. Of all hosts without a replica, this is the one whose loss is worst."
    )
    free = sum(entry.disk.free_bytes or 0 for entry in others)
    moving_per_day = sum(basis.bytes_per_day(lost).values())
    outlooks = []
    for entry in others:
        disk = entry.disk
        share = (disk.free_bytes or 0) / free
        own = sum(basis.bytes_per_day(disk).values())
        remaining = Interval.of((disk.free_bytes or 0) - share * (lost.file_bytes or 0))
        if own:
            outlooks.append(_outlook(basis, entry, remaining, Interval.of(1 + share * moving_per_day / own)))
        else:
            outlooks.append(DiskOutlook(disk.name, remaining, why="it has no growth yet"))
    return Scenario(WhatIf(name=LOST_HOST, text=text), tuple(outlooks))


def days_until(forecast: Forecast, free: Interval, factor: Interval) -> Band:
    """Return the days until ``free`` is used up, with a growth of ``factor`` times the forecast."""
    low, mid, high = free.low / factor.high, free.mid / factor.mid, free.high / factor.low
    ends = zip(Band._fields, ends_of(Interval(low, mid, high)), strict=True)
    return Band(*(getattr(forecast.days_until(end), name) for name, end in ends))


def ends_of(estimate: Interval) -> Band:
    """Return an estimate whose interval is the 95 % one, with the 80 % interval of a normal distribution."""
    low, mid, high = estimate.low, estimate.mid, estimate.high
    return Band(low, mid - (mid - low) * _80_OF_95, mid, mid + (high - mid) * _80_OF_95, high)


def days_at_rate(per_day: Interval, free: Interval, factor: Interval) -> Interval:
    """Return the days until ``free`` is used up, with a growth of ``factor`` times a constant rate."""

    def days(room: float, growth: float) -> float:
        return max(0.0, room) / growth if growth else math.inf

    return Interval(
        days(free.low, per_day.high * factor.high),
        days(free.mid, per_day.mid * factor.mid),
        days(free.high, per_day.low * factor.low),
    )
