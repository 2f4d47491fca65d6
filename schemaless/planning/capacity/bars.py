"""File bytes by column, now and in each codec: the data of the stacked bar chart. Pure functions.

The file bytes of a column are its body bytes multiplied by the ratio of file bytes to body bytes in a large file. For
another codec, they are multiplied by the column's ratio in that codec. The rest of the file length is free space inside
the files; a small file is mostly free space.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from schemaless.base.numbers import Interval
from schemaless.planning.capacity.report import CapacityReport


@dataclass(frozen=True, slots=True)
class Bar:
    """File bytes of all columns in one codec.

    Attributes:
        name: ``now``, or the name of the codec.
        columns: Bytes that the cells of each column occupy.
        rest: Bytes of the files that no cell occupies.
        total: Length of all files, or of all cells if file lengths are unknown.
    """

    name: str
    columns: Mapping[str, float]
    rest: float
    total: Interval


def bars(report: CapacityReport) -> list[Bar]:
    """Return the bar for now, then one per codec, shortest first; an empty list if there are no cells."""
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
        # Scale the fitted sizes of the first bar, so that an unchanged column is drawn at the same length in both.
        sizes = {name: size * ratios.get(name, 1.0) for name, size in first.columns.items()}
        codecs.append(_bar(scenario.codec, sizes, scenario.file_bytes))
    return [first, *sorted(codecs, key=lambda bar: bar.total.mid)]


def _bar(name: str, columns: Mapping[str, float], files: Interval | None) -> Bar:
    """Fit a bar to the length of the files, if that is known."""
    cells = sum(columns.values())
    if files is None:
        return Bar(name, columns, 0.0, Interval.of(cells))
    fits = min(1.0, files.mid / cells) if cells else 1.0
    sizes = {column: size * fits for column, size in columns.items()}
    return Bar(name, sizes, max(0.0, files.mid - sum(sizes.values())), files)
