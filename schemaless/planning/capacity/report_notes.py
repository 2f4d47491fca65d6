"""Prose of a report: warnings, notes, and how each kind of figure was obtained."""

from __future__ import annotations

import datetime
import math
from collections.abc import Iterable, Sequence
from typing import Final

from schemaless.base.numbers import bytes_text, counted, units_text
from schemaless.base.parts import grouped
from schemaless.codec.envelope import COLD
from schemaless.codec.registry import LEGACY, NONE, PACKED, codec_named
from schemaless.codec.trial import NEEDS_NATIVE
from schemaless.planning.capacity.basis import DiskForecast
from schemaless.planning.capacity.forecast import Forecast, NoForecast
from schemaless.planning.capacity.measurement import Measurement
from schemaless.planning.capacity.report import CapacityReport
from schemaless.planning.capacity.series import RECENT_DAYS
from schemaless.planning.capacity.steps import Burst, Step, recurring

_STALE_DAYS: Final = 3
_RECENT_STEP_DAYS: Final = 56
_ONE_CODEC_SHARE: Final = 0.98
_AFTER_A_STEP: Final = (
    "The forecast mistakes such a step for a trend or for chance; the constant rate uses only the days since then"
)


def warnings_of(report: CapacityReport) -> list[str]:
    """Return reasons not to rely on the headline: missing clusters, failed back-tests, recent imports and steps."""
    first = report.now.first
    found: list[tuple[str, str]] = []
    for disk_forecast in report.disks:
        name = "" if len(report.disks) == 1 else disk_forecast.disk.name
        test = disk_forecast.forecast.back_test if isinstance(disk_forecast.forecast, Forecast) else None
        if test is not None and test.failure is not None:
            text = (
                f"the forecast failed its back-test: {test.failure}. Do not rely on it alone; compare it with the "
                "constant rate of recent weeks"
            )
            found.append((name, text))
        found += [
            (name, f"{_burst_text(burst)}. If imports recur, disks fill up sooner")
            for burst in disk_forecast.bursts
            if _is_recent(disk_forecast, burst.last_day)
        ]
        found += [
            (name, f"{_step_text(step)}. {_AFTER_A_STEP}")
            for step in disk_forecast.steps
            if _is_recent(disk_forecast, step.day)
        ]
    warnings = _once(found)
    if first is not None and warnings and first.at_rate is None:
        warnings.append("there are too few days since the step for a constant rate")
    missing = ((space.cluster, f"missing from all figures: {space.problem}") for space in report.measurement.problems)
    return [*_once(missing), *warnings]


def _once(remarks: Iterable[tuple[str, str]]) -> list[str]:
    """Join remarks with the same text, given with the name of what they apply to."""
    names = grouped((text, name) for name, text in remarks)
    return [": ".join(filter(None, [", ".join(filter(None, of)), text])) for text, of in names.items()]


def _step_text(step: Step) -> str:
    return (
        f"the daily growth {'rose' if step.times >= 1 else 'dropped'} abruptly on "
        f"{step.day}, to {f'{step.times:.1f} times' if step.times >= 1 else f'{step.times:.0%} of'} its previous level"
    )


def _burst_text(burst: Burst) -> str:
    days = f"on {burst.first_day}" if burst.first_day == burst.last_day else f"{burst.first_day} to {burst.last_day}"
    return (
        f"an import ({days}, {burst.times:,.0f} times the usual daily growth) is left out "
        "of the forecast and of the constant rate"
    )


def _is_recent(disk_forecast: DiskForecast, day: datetime.date) -> bool:
    return (disk_forecast.history[-1][0] - day).days < _RECENT_STEP_DAYS


def notes_of(report: CapacityReport) -> list[str]:
    """Return caveats to read before using a figure."""
    return [
        *_measurement_notes(report),
        *_once(note for disk_forecast in report.disks for note in _disk_notes(disk_forecast)),
        *_column_notes(report),
    ]


def _measurement_notes(report: CapacityReport) -> list[str]:
    newest, notes = report.measurement, []
    if newest.groups and not newest.trials.columns:
        notes.append(
            "the newest measurement has no codec trials, so the growth of disk space is calculated from the present "
            "files, and is too high if these are small; measure again with 'schemaless capacity measure'"
        )
    age = (report.made_at - newest.taken_at).total_seconds() / 86_400
    if age > _STALE_DAYS:
        notes.append(
            f"the newest measurement is {counted(math.floor(age), 'day')} old; take a new one with 'schemaless "
            "capacity measure'"
        )
    if age < -1 / 24:
        notes.append(
            "by this machine's clock the newest measurement is from the future; either this clock or the catalog "
            "server's is wrong"
        )
    today = newest.taken_at.date()
    future = sum(day_intake.cells.mid for day_intake in newest.growth if day_intake.day > today)
    if future:
        notes.append(
            f"about {counted(round(future), 'cell has', 'cells have')} dates after {today}; they count "
            "towards the sizes but not towards the growth"
        )
    return notes


def _disk_notes(disk_forecast: DiskForecast) -> list[tuple[str, str]]:
    """Return the caveats of a disk, each with its name."""
    notes = []
    disk, forecast = disk_forecast.disk, disk_forecast.forecast
    if disk.free_assumed:
        notes.append("the free space is unknown; the report assumes that only this datastore uses the disk")
    if len(disk.clusters) > 1 and disk.label is None:
        notes.append("they report the same disk; the report assumes that they share it")
    if disk.disk_bytes is None and disk.problem is None:
        notes.append("the servers do not report the size of their disk; give it with --disk CLUSTER=TOTAL:FREE")
    if isinstance(forecast, NoForecast) and disk.problem is None:
        notes.append(f"no forecast, because {forecast.reason}")
    elif isinstance(forecast, Forecast) and forecast.back_test is None:
        notes.append("the history is too short for a back-test of the forecast")
    notes += [_burst_text(burst) for burst in disk_forecast.bursts if not _is_recent(disk_forecast, burst.last_day)]
    imports = recurring(disk_forecast.history)
    if imports:
        notes.append(
            f"imports recur, {imports} in {counted(len(disk_forecast.history), 'day')}, and the forecast includes them"
        )
    notes += [_step_text(step) for step in disk_forecast.steps if not _is_recent(disk_forecast, step.day)]
    return [(disk.name, note) for note in notes]


def _column_notes(report: CapacityReport) -> list[str]:
    newest, notes = report.measurement, []
    chosen = None if report.choice is None else report.choice.chosen
    if chosen is not None and codec_named(chosen.name).serializer is PACKED:
        notes.append(NEEDS_NATIVE)
    if report.too_few:
        notes.append(
            f"{', '.join(report.too_few)}: too few cells were sampled to evaluate codecs; the report assumes that "
            "re-encoding does not change their size" + (", nor does another storage engine" if report.engines else "")
        )
    mixed = [name for name in newest.column_names if _mixed(newest, name)]
    if mixed and report.trials:
        notes.append(
            f"{', '.join(mixed)}: cells are stored in several codecs; the report assumes the same mix for new cells, "
            "although these may all be in one codec"
        )
    kept = sorted({trial.column_name for trial in report.trials if trial.left_cells and trial.codec != LEGACY.name})
    if kept:
        notes.append(f"{', '.join(kept)}: some sampled cells cannot be re-encoded and keep their size")
    fewer = len(report.series) - len(report.columns)
    if fewer > 0:
        notes.append(
            f"{counted(fewer, 'column')} (counted per cluster) with little growth "
            f"{'has' if fewer == 1 else 'have'} no separate forecast, only that of the disk"
        )
    return notes


def note_on_other_tables(measurements: Sequence[Measurement]) -> list[str]:
    """Return a note on the size and growth of the tables of followers and indexes.

    Args:
        measurements: Oldest first.
    """
    newest = measurements[-1]
    files = newest.other_files
    if not files:
        return []
    sizes = ", ".join(f"{table} {bytes_text(size)}" for table, size in files.items())
    text = f"other tables of the shards use {bytes_text(sum(files.values()))}: {sizes}"
    earlier = [
        measurement for measurement in measurements if measurement.other_files and _days(measurement, newest) >= 1
    ]
    if earlier:
        growth = sum(files.values()) - sum(earlier[0].other_files.values())
        days = _days(earlier[0], newest)
        text += f"; they grew by {bytes_text(growth / days)} a day over {counted(math.floor(days), 'day')}"
    return [f"{text}. They count as used space now, but no forecast includes their growth"]


def _days(earlier: Measurement, later: Measurement) -> float:
    return (later.taken_at - earlier.taken_at).total_seconds() / 86_400


def _mixed(measurement: Measurement, column: str) -> bool:
    """Return whether a column is stored in several codecs, ignoring cold ones and bodies too short to compress."""
    by_codec: dict[str, float] = {}
    for group in measurement.groups:
        if group.column_name == column and group.codec != COLD and not group.codec.endswith(f"+{NONE.name}"):
            by_codec[group.codec] = by_codec.get(group.codec, 0.0) + group.cells.mid
    return max(by_codec.values(), default=0.0) < _ONE_CODEC_SHARE * sum(by_codec.values())


def how_obtained(measurement: Measurement, codec: str | None, *, engines: bool = False) -> tuple[tuple[str, str], ...]:
    """Return the method and assumptions for each kind of figure, as pairs of a term and a text.

    Args:
        measurement: The newest measurement.
        codec: The codec to re-encode to, or None.
        engines: True if other storage engines were tried.
    """
    exact = all(group.cells.exact for group in measurement.groups)
    unread = measurement.unread
    source = (
        f"All cells were read{unread}, so figures are exact"
        if exact
        else f"Estimated from a sample of neighbouring cells{unread}"
    )
    level = "" if exact else f" Intervals have {measurement.level:.0%} confidence."
    methods = {day.method for day in measurement.growth}
    if methods == {"search"}:
        days = "found by searching along added_id"
    elif methods <= {"sample", "count"}:
        days = "determined from the created_at of the cells read"
    else:
        days = "found by searching along added_id or, if created_at does not follow it, from the cells read"
    rows = (
        f"{counted(measurement.rows_read, 'row')} in about {counted(measurement.pages_read, 'page')}, in "
        f"{measurement.seconds:.1f} s"
    )
    return (
        ("Sizes", f"{source}: {rows}, at {measurement.taken_at:%Y-%m-%d %H:%M} UTC.{level}"),
        ("Allocated", _ALLOCATED),
        ("Growth", f"Cells and body bytes by day (UTC), {days}, at their present size. {_GROWTH}"),
        ("A day now", f"Average of the last {RECENT_DAYS} whole days, or of all days if there are fewer."),
        ("Forecast", _FORECAST),
        ("Back-test", _BACK_TEST),
        ("Constant rate", _RATE),
        ("Days until full", _DAYS),
        ("Codecs", _TRIED if codec else "No codec could be tried, or none is recommended."),
        *([("Storage engines", _ENGINES)] if engines else []),
        ("After re-encoding", _AFTER),
        ("Skew", _SKEW),
        ("Units", f"{units_text()} Days have 24 hours, UTC."),
    )


_ALLOCATED: Final = (
    "Disk space of one copy, by a model of InnoDB's pages right after a rebuild: rows, overflow pages, and a share of "
    "the indexes and of the space that InnoDB keeps free. Every replica uses the same amount again."
)
_GROWTH: Final = (
    "Only whole days count. Body bytes are converted to disk space with each column's ratio of file bytes to body "
    "bytes in a large file."
)
_FORECAST: Final = (
    "A time series model of the bytes added per day: level, slope, weekly pattern and noise (statsmodels' unobserved "
    "components). The result is averaged over 40 variants, weighted by how well each predicts every day of the history "
    "from the days before it. The 80 % and 95 % bands come from 1,000 simulated futures with the errors seen in the "
    "history. The forecast covers five times the length of the history, at most five years, and only as many days as "
    "its 80 % interval spans a factor of at most 100. At most two finished imports are left out: days with at least "
    "four times the usual growth, which add more than two weeks' usual growth."
)
_BACK_TEST: Final = (
    "The same forecast, made without the last quarter of the history and compared with it. Correct bands contain about "
    "80 (95) of 100 days. The back-test fails if so few days are in the 80 % band that this happens by chance in at "
    "most 1 of 100 cases, if the total is outside its 95 % band, or if it is outside its 80 % band and off by more "
    "than a quarter."
)
_RATE: Final = (
    "Assumes that every day is like the average of the last four whole weeks, or of the whole weeks since the last "
    "step, with a 95 % interval from the differences between weeks. It assumes no trend and uses no model. A step is "
    "an abrupt change of the level by at least 20 % and at least six standard errors, found by least squares over the "
    "four weeks before and after a day, with a slope and weekdays."
)
_DAYS: Final = (
    "Counted from the start of the day after the last whole day, until the growth of this datastore's tables has used "
    "up the free space. The disk that fills up first decides. Free space inside files is not counted, nor "
    "are binary logs, undo logs and other users of the disk."
)
_TRIED: Final = (
    "Each codec was tried on sampled cells of each column: encode, decode, compare. CPU times are for one core of the "
    "machine that measured; those per day are for writing as many cells a day as now and reading each once. The "
    "recommended codec follows the rule of 'schemaless codec advise': the fewest pages among the codecs that take no "
    "more than --cpu times the default's CPU time. The default wins unless another codec saves --least-gain more, and "
    "nothing is recommended if the saving is below --least-gain."
)
_ENGINES: Final = (
    "Sampled cells were compressed by the measurement in blocks like those of MyRocks, or packed into pages like those "
    "of InnoDB; no server with that engine was used. Intervals include the measured error of this model. The free "
    "space of each disk is what is free now, less the growth of the files due to the conversion. 'schemaless "
    "shards move' converts "
    "shards between clusters of MariaDB; from MySQL, copy the datastore with 'schemaless dump' and 'load'."
)
_AFTER: Final = (
    "All cells re-encoded, all tables rebuilt, and new cells written in the same codec. While a migration runs, files "
    "and binary logs grow at first; 'schemaless migrate plan' estimates by how much."
)
_SKEW: Final = (
    "By allocated bytes. The fair share of a cluster is proportional to its disk if all disks are known, else equal "
    "for all. The listed moves are a proposal; the report moves nothing."
)
