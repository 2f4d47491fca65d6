"""What a report says in words: what to know before using a figure, and how each kind of figure was obtained."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from schemaless.capacity.forecast import Forecast, NoForecast
from schemaless.capacity.measurement import Measurement
from schemaless.capacity.series import RECENT_DAYS
from schemaless.codec.registry import LEGACY, NONE, PACKED, codec_named
from schemaless.codec.trial import NEEDS_NATIVE

if TYPE_CHECKING:
    from schemaless.capacity.report import CapacityReport, DiskForecast
    from schemaless.capacity.steps import Step

__all__ = ["beside_the_cells", "how_obtained", "notes_of", "warnings_of"]

_STALE_DAYS: Final = 3
_RECENT_STEP_DAYS: Final = 56
_ONE_CODEC_SHARE: Final = 0.98


def warnings_of(report: CapacityReport) -> list[str]:
    """Return why the headline is not to be relied on: forecasts that failed their back-test, steps in the level."""
    first = report.now.first
    warnings = []
    for grown in report.disks:
        name = "" if len(report.disks) == 1 else f" of {grown.disk.name}"
        test = grown.forecast.back_test if isinstance(grown.forecast, Forecast) else None
        if test is not None and test.failure is not None:
            warnings.append(
                f"the forecast{name} failed its back-test: {test.failure}. Do not plan with it alone; the constant "
                "rate of the last weeks stands beside it"
            )
        warnings += [
            f"{_step_text(grown, step)}. Forecasts take that for a trend or for chance; the constant rate is of "
            "the days since"
            for step in grown.steps
            if _is_recent(grown, step)
        ]
    if first is not None and warnings and first.at_rate is None:
        warnings.append("the last weeks since then are too few for a constant rate")
    return warnings


def _step_text(grown: DiskForecast, step: Step) -> str:
    more = f"{step.times:.1f} times as much" if step.times >= 1 else f"{step.times:.0%} of what it was"
    return f"{grown.disk.name}: what a day brings changed at once on {step.day}, to {more}"


def _is_recent(grown: DiskForecast, step: Step) -> bool:
    return (grown.history[-1][0] - step.day).days < _RECENT_STEP_DAYS


def notes_of(report: CapacityReport) -> list[str]:
    """Return what a reader has to know before using a figure."""
    newest, notes = report.measurement, []
    age = (report.made_at - newest.taken_at).total_seconds() / 86_400
    if age > _STALE_DAYS:
        notes.append(f"the newest measurement is {age:.0f} days old; 'capacity measure' takes one")
    if age < -1 / 24:
        notes.append("the newest measurement is of the future, by this machine's clock; one of the two clocks is wrong")
    today = newest.taken_at.date()
    future = sum(day_intake.cells.mid for day_intake in newest.growth if day_intake.day > today)
    if future:
        notes.append(f"about {future:,.0f} cells have dates after {today}; they are in the sizes and not in the growth")
    notes += [f"{space.cluster} is in no figure: {space.problem}" for space in newest.problems]
    for grown in report.disks:
        if grown.disk.free_assumed:
            notes.append(
                f"{grown.disk.name}: what is free on its disk is not known; taken to be all but this datastore's files"
            )
        if len(grown.disk.clusters) > 1:
            notes.append(f"{grown.disk.name} show the same disk, and are taken to share it")
        if grown.disk.disk_bytes is None and grown.disk.problem is None:
            notes.append(f"{grown.disk.name}: its servers do not show their disk; --disk CLUSTER=SIZE:FREE gives it")
        if isinstance(grown.forecast, NoForecast) and grown.disk.problem is None:
            notes.append(f"{grown.disk.name}: no forecast, as {grown.forecast.reason}")
        elif isinstance(grown.forecast, Forecast) and grown.forecast.back_test is None:
            notes.append(f"{grown.disk.name}: the history is too short to test the forecast on its last part")
        notes += [_step_text(grown, step) for step in grown.steps if not _is_recent(grown, step)]
    chosen = None if report.choice is None else report.choice.chosen
    if chosen is not None and codec_named(chosen.name).serializer is PACKED:
        notes.append(NEEDS_NATIVE)
    if report.choice is not None and chosen is None:
        notes.append(f"no re-encoding is advised: {report.choice.reason}")
    if report.too_few:
        notes.append(
            f"{', '.join(report.too_few)}: too few cells were met to say what a codec makes of them; they count as they"
            " are"
        )
    mixed = [name for name in newest.column_names if _mixed(newest, name)]
    if mixed and report.trials:
        notes.append(
            f"{', '.join(mixed)}: cells are stored in several codecs; new ones are taken to be like those there are, "
            "though most may be like the latest"
        )
    left = sorted({trial.column_name for trial in report.trials if trial.left and trial.codec != LEGACY.name})
    if left:
        notes.append(f"{', '.join(left)}: some sampled cells cannot be re-encoded, and count as they are")
    fewer = len(report.series) - len(report.columns)
    if fewer > 0:
        notes.append(f"{fewer} more series of a cluster and column have no forecast of their own, only in their disk's")
    return notes


def beside_the_cells(measurements: Sequence[Measurement]) -> list[str]:
    """Return what the tables of followers and indexes take, and what they grow by, of measurements oldest first."""
    newest = measurements[-1]
    taken = newest.other_files
    if not taken:
        return []
    sizes = ", ".join(f"{table} {_mib(size)}" for table, size in taken.items())
    text = f"beside the cells, other tables of the shards take {_mib(sum(taken.values()))}: {sizes}"
    earlier = [one for one in measurements if one.other_files and _days(one, newest) >= 1]
    if earlier:
        grown = sum(taken.values()) - sum(earlier[0].other_files.values())
        days = _days(earlier[0], newest)
        text += f"; they grew by {_mib(grown / days)} a day over {days:.0f} days"
    return [f"{text}. They are part of what is used of a disk now; no forecast counts their growth"]


def _days(earlier: Measurement, later: Measurement) -> float:
    return (later.taken_at - earlier.taken_at).total_seconds() / 86_400


def _mib(size: float) -> str:
    return f"{size / (1 << 20):,.1f} MiB"


def _mixed(measurement: Measurement, column: str) -> bool:
    """Return whether a column's cells are of several codecs; what is too short to compress is of any."""
    by_codec: dict[str, float] = {}
    for group in measurement.groups:
        if group.column_name == column and not group.codec.endswith(f"+{NONE.name}"):
            by_codec[group.codec] = by_codec.get(group.codec, 0.0) + group.cells.mid
    return max(by_codec.values(), default=0.0) < _ONE_CODEC_SHARE * sum(by_codec.values())


def how_obtained(measurement: Measurement, codec: str | None) -> tuple[tuple[str, str], ...]:
    """Return how each kind of figure was obtained, and what is assumed: term and text."""
    exact = all(group.cells.exact for group in measurement.groups)
    read = "all cells were read, figures are exact" if exact else "from a sample of neighbouring cells"
    level = "" if exact else f" Intervals are those of {measurement.level:.0%} confidence."
    methods = {day.method for day in measurement.growth}
    if methods == {"search"}:
        days = "found by searching along added_id"
    elif methods <= {"sample", "count"}:
        days = "by the created_at of the cells that were read"
    else:
        days = "found by searching along added_id; where created_at does not follow it, by that of the cells read"
    rows = f"{measurement.rows_read:,} rows in about {measurement.pages_read:,} pages, in {measurement.seconds:.1f} s"
    return (
        ("Sizes", f"{read}; {rows}, at {measurement.taken_at:%Y-%m-%d %H:%M} UTC.{level}"),
        ("Allocated", _ALLOCATED),
        ("Growth", f"cells and body bytes by day (UTC), {days}, as they are stored now. {_GROWTH}"),
        ("A day now", f"the average of the last {RECENT_DAYS} whole days, or of as many as there are."),
        ("Forecast", _FORECAST),
        ("Back-test", _BACK_TEST),
        ("Constant rate", _RATE),
        ("Days until full", _DAYS),
        ("Codecs", _TRIED if codec else "none was tried, as there are no cells that could be read."),
        ("After re-encoding", _AFTER),
        ("Skew", _SKEW),
        ("Units", "bytes; 1 KiB is 1,024 bytes, 1 MiB 1,024 KiB, and so on. Days are of 24 hours, UTC."),
    )


_ALLOCATED: Final = (
    "bytes of disk, by a model of InnoDB's pages as they are right after a rebuild: rows, overflow pages, their "
    "part of the indexes and of what InnoDB keeps free. Of one copy; every replica takes as much again."
)
_GROWTH: Final = (
    "Whole days only. What a day takes of the disk is its body bytes, times what the column's cells take of a large "
    "file for each of theirs."
)
_FORECAST: Final = (
    "of bytes a day: level, slope, weekly pattern and noise (statsmodels' unobserved components), averaged over "
    "40 models by how well each foretold every day of the history from those before it. The 80 % and 95 % bands "
    "are of 1,000 simulated futures, whose days err as those of the history did; sums are added up within each. It "
    "looks five times as far ahead as the history is long, five years at most."
)
_BACK_TEST: Final = (
    "the same forecast, made without the last quarter of the history and held against it. A band that is right "
    "holds 80 (95) of 100 days. It failed where fewer days were within 80 % than one of 100 right forecasts has, where "
    "their sum was outside its 95 % band, or outside that of 80 % and off by a quarter."
)
_RATE: Final = (
    "each day as the last four whole weeks were on average, or those since the last step in the level, with the 95 % "
    "interval of the differences between weeks. No trend, no model. A step is looked for in the four weeks before and "
    "behind each day, by least squares with a slope and weekdays: six standard errors, and 20 %."
)
_DAYS: Final = (
    "from the morning after the last whole day, until the growth of this datastore's tables has taken what was "
    "free. The disk that is full first decides. Room inside of files, binary logs, undo and other users of the "
    "disk are not counted."
)
_TRIED: Final = (
    "each was tried on sampled cells of each column: encoded, decoded, and compared. CPU times are of one core of this "
    "machine; a day's are for today's cells a day, each written once and each read once. A codec is recommended by the "
    "rule of 'codec advise': the fewest pages among those that take no more time than the default, the default unless "
    "another saves --least-gain more than it does, and none where even that saves less than --least-gain."
)
_AFTER: Final = (
    "all cells re-encoded, tables rebuilt, new cells written so. While it runs, files and binary logs grow first:"
    " 'schemaless migrate plan' says by how much."
)
_SKEW: Final = (
    "by allocated bytes. A cluster's share is that of its disk where all disks are known, else the same for each."
    " The moves are a plan: nothing is moved."
)
