"""What a report says in words: what to know before using a figure, and how each kind of figure was obtained."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from schemaless.capacity.forecast import Forecast, NoForecast
from schemaless.capacity.measurement import Measurement
from schemaless.capacity.series import RECENT_DAYS
from schemaless.codec.registry import LEGACY, NONE

if TYPE_CHECKING:
    from schemaless.capacity.report import Report

__all__ = ["how_obtained", "notes_of"]

_STALE_DAYS: Final = 3
_ONE_CODEC_SHARE: Final = 0.98


def notes_of(report: Report) -> list[str]:
    """Return what a reader has to know before using a figure."""
    newest, notes = report.measurement, []
    age = (report.made_at - newest.taken_at).total_seconds() / 86_400
    if age > _STALE_DAYS:
        notes.append(f"the newest measurement is {age:.0f} days old; 'capacity measure' takes one")
    if age < -1 / 24:
        notes.append("the newest measurement is of the future, by this machine's clock; one of the two clocks is wrong")
    today = newest.taken_at.date()
    future = sum(each.cells.mid for each in newest.growth if each.day > today)
    if future:
        notes.append(f"about {future:,.0f} cells have dates after {today}; they are in the sizes and not in the growth")
    notes += [f"{space.cluster} is in no figure: {space.problem}" for space in newest.problems]
    for each in report.disks:
        if each.disk.free_assumed:
            notes.append(
                f"{each.disk.name}: what is free on its disk is not known; taken to be all but this datastore's files"
            )
        if len(each.disk.clusters) > 1:
            notes.append(f"{each.disk.name} show the same disk, and are taken to share it")
        if each.disk.disk_bytes is None and each.disk.problem is None:
            notes.append(f"{each.disk.name}: its servers do not show their disk; --disk CLUSTER=SIZE:FREE gives it")
        if isinstance(each.forecast, NoForecast) and each.disk.problem is None:
            notes.append(f"{each.disk.name}: no forecast, as {each.forecast.reason}")
        elif isinstance(each.forecast, Forecast) and each.forecast.back_test is None:
            notes.append(f"{each.disk.name}: the history is too short to test the forecast on its last part")
    mixed = [name for name in newest.column_names if _mixed(newest, name)]
    if mixed and report.trials:
        notes.append(
            f"{', '.join(mixed)}: cells are stored in several codecs; new ones are taken to be like those there are, "
            "though most may be like the latest"
        )
    left = sorted({each.column_name for each in report.trials if each.left and each.codec != LEGACY.name})
    if left:
        notes.append(f"{', '.join(left)}: some sampled cells cannot be re-encoded, and count as they are")
    fewer = len(report.series) - len(report.columns)
    if fewer > 0:
        notes.append(f"{fewer} more series of a cluster and column have no forecast of their own, only in their disk's")
    return notes


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
    methods = {each.method for each in measurement.growth}
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
    "are of 1,000 simulated futures; sums are added up within each. It looks five times as far ahead as the "
    "history is long, five years at most."
)
_BACK_TEST: Final = (
    "the same forecast, made without the last quarter of the history and held against it. A band that is right "
    "holds 80 (95) of 100 days."
)
_DAYS: Final = (
    "from the morning after the last whole day, until the growth of this datastore's tables has taken what was "
    "free. The disk that is full first decides. Room inside of files, binary logs, undo and other users of the "
    "disk are not counted."
)
_TRIED: Final = (
    "each was tried on sampled cells of each column: encoded, decoded, and compared. CPU times are of one core of this "
    "machine; a day's are for today's cells a day, each written once and each read once."
)
_AFTER: Final = (
    "all cells re-encoded, tables rebuilt, new cells written so. While it runs, files and binary logs grow first:"
    " 'schemaless migrate plan' says by how much."
)
_SKEW: Final = (
    "by allocated bytes. A cluster's share is that of its disk where all disks are known, else the same for each."
    " The moves are a plan: nothing is moved."
)
