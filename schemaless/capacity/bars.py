"""What the files hold by column, now and in each codec: one currency, and each column by its own ratio. Pure.

The currency is bytes of files: all of them now, and as the scenarios foretell them. What the cells of a column take of
these is their body bytes, times what they take of a large file for each of theirs; in a codec times the column's own
ratio. The rest of the files is what they keep free, which in small ones is most.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from schemaless.numbers import Interval

if TYPE_CHECKING:
    from schemaless.capacity.report import CapacityReport

__all__ = ["Bar", "bars"]


@dataclass(frozen=True, slots=True)
class Bar:
    """The files in a codec.

    Attributes:
        name: ``now``, or the codec's.
        columns: what their cells take.
        rest: what the files have besides.
    """

    name: str
    columns: Mapping[str, float]
    rest: float
    total: Interval


def bars(report: CapacityReport) -> list[Bar]:
    """Return the bar of now, then those of the codecs, the shortest first; none where there are no cells."""
    measurement = report.measurement
    columns: dict[str, float] = {}
    for group in measurement.groups:
        size = group.body_bytes.mid * report.weights.get((group.cluster, group.column_name), 0.0)
        columns[group.column_name] = columns.get(group.column_name, 0.0) + size
    if not sum(columns.values()):
        return []
    files = [space.file_bytes for space in measurement.clusters if space.problem is None]
    known = None if None in files else Interval.of(float(sum(size or 0 for size in files)))
    first = _bar("now", columns, known)
    codecs = []
    for scenario in report.scenarios:
        if scenario.codec is None or scenario.name != scenario.codec:
            continue
        ratios = {
            trial.column_name: trial.migrated_share.mid for trial in report.trials if trial.codec == scenario.codec
        }
        # Of the bar of now, so that a column that stays as it is is drawn as long in both.
        sizes = {name: size * ratios.get(name, 1.0) for name, size in first.columns.items()}
        codecs.append(_bar(scenario.codec, sizes, scenario.file_bytes))
    return [first, *sorted(codecs, key=lambda bar: bar.total.mid)]


def _bar(name: str, columns: Mapping[str, float], files: Interval | None) -> Bar:
    """Return a bar that is as long as the files, where these are known."""
    cells = sum(columns.values())
    if files is None:
        return Bar(name, columns, 0.0, Interval.of(cells))
    fits = min(1.0, files.mid / cells) if cells else 1.0
    sizes = {column: size * fits for column, size in columns.items()}
    return Bar(name, sizes, max(0.0, files.mid - sum(sizes.values())), files)
