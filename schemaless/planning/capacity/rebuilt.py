"""Predict file lengths after a migration and a rebuild, shard by shard, because files grow in steps.

The number of cells and the length of their bodies are known for each shard and column, and each column has its own size
ratio for a codec. ``planning/sampling/sizing.py`` averages over the remaining uncertainty.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, pstdev
from typing import Final

from schemaless.base.numbers import Interval, summed
from schemaless.codec.envelope import COLD
from schemaless.codec.registry import Codec
from schemaless.planning.capacity.disk_bytes import bytes_per_row, packed
from schemaless.planning.capacity.measurement import ClusterFiles, Group, Measurement, Unit
from schemaless.planning.sampling.page_model import PAGE_BYTES, Content, Layout, rebuilt_file_bytes
from schemaless.planning.sampling.sampling import Bounds
from schemaless.planning.sampling.sizing import expected_file_bytes, model_error, predict
from schemaless.planning.sampling.table_sizes import layout_of
from schemaless.store.datastore import Datastore
from schemaless.store.internals import internals_of
from schemaless.topology.shards import ReadFrom

_95: Final = 1.96
_SMALL_CELLS: Final = 20_000
_SMALL_BYTES: Final = 64 << 20
_WHOLE: Final = Bounds(windows=16, window_rows=24, sample_bytes=_SMALL_BYTES, whole_rows=_SMALL_CELLS)


def unit_of(
    column: str, lengths: Sequence[int], layout: Layout, share: Interval | None, before: Sequence[int] = ()
) -> Unit | None:
    """Return the average cell, given the lengths of the sampled bodies, or None if there are no lengths.

    Args:
        column: Name of the column.
        lengths: Lengths of the sampled bodies in the codec.
        layout: Page layout of the server.
        share: Sum of ``lengths`` relative to the sum of the present lengths, with its 95 % interval.
        before: Present lengths of the same bodies. If given, only the ratio of ``lengths`` to them counts as uncertain.
    """
    if not lengths:
        return None
    content = packed(column, lengths, layout)
    error = 0.0 if share is None else _relative_error(share)
    before_bytes = fmean(before) if sum(before) else None
    return Unit(content.times(1 / content.rows), _variation(lengths, before), error, before_bytes)


def unit_in_blocks(lengths: Sequence[int], before: Sequence[int], per_body: Interval) -> Unit | None:
    """Return the average cell in MyRocks, or None if there are no bodies.

    Args:
        lengths: Lengths of the sampled bodies in the codec.
        before: Lengths of the same bodies now.
        per_body: Compressed bytes of a cell and its index entry, per byte of its present body.
    """
    if not sum(before):
        return None
    content = Content(1.0, per_body.mid * fmean(before) / PAGE_BYTES)
    return Unit(content, _variation(lengths, before), _relative_error(per_body), fmean(before))


def _relative_error(estimate: Interval) -> float:
    return (estimate.high - estimate.low) / (2 * _95 * estimate.mid) if estimate.mid else 0.0


def _variation(lengths: Sequence[int], before: Sequence[int]) -> float:
    """Return the standard deviation of the residuals of ``lengths`` given ``before``, relative to their mean."""
    mean = fmean(lengths)
    unexplained: list[float] = list(lengths)
    if sum(before):
        ratio = sum(lengths) / sum(before)
        unexplained = [length - ratio * now for length, now in zip(lengths, before, strict=True)]
    return pstdev(unexplained) / mean if mean else 0.0


def disk_per_body(column: str, lengths: Sequence[int], layout: Layout) -> float | None:
    """Return the bytes of a large file per body byte, for bodies of these lengths; None if all bodies are empty."""
    if not sum(lengths):
        return None
    return bytes_per_row(packed(column, lengths, layout), layout) * len(lengths) / sum(lengths)


def predicted_files(
    measurement: Measurement, space: ClusterFiles, units: Mapping[str, Unit], layout: Layout
) -> Interval | None:
    """Predict the total length of a cluster's files if every cell has the average size of its column in ``units``.

    Returns None if the cluster could not be measured.
    """
    if space.problem is not None:
        return None
    shards: dict[int | None, dict[str, list[Group]]] = {}
    for group in measurement.groups:
        if group.cluster == space.cluster:
            # Rows of cold cells keep their size in every codec; no unit has such a name.
            name = f"{group.column_name} {COLD}" if group.codec == COLD else group.column_name
            shards.setdefault(group.shard, {}).setdefault(name, []).append(group)
    count = space.shards if None in shards else len(shards)
    mid = float(rebuilt_file_bytes(Content(), layout) * max(0, space.shards - count))
    variance = 0.0
    ends = [0.0, 0.0]
    for number, columns in shards.items():
        times = 1 if number is not None else space.shards
        cells = {column: sum(group.cells.mid for group in groups) / times for column, groups in columns.items()}
        contents = {
            column: _content(column, groups, units.get(column), layout).times(1 / times)
            for column, groups in columns.items()
        }
        content = sum(contents.values(), Content())
        pages = {column: part.row_pages for column, part in contents.items()}
        weight = sum(pages.values()) or 1.0
        tried = {column: unit for column, unit in units.items() if column in columns}
        common = sum(unit.error * pages[column] for column, unit in tried.items()) / weight
        common = math.hypot(common, model_error(content, layout))
        own = [
            unit.variation / math.sqrt(max(1.0, cells[column])) * pages[column] / weight
            for column, unit in tried.items()
        ]
        own.append(_size_error([group.body_bytes for groups in columns.values() for group in groups]))
        if number is None:
            # The differences between shards that were measured together are unknown; assume random placement.
            own.append(1 / math.sqrt(max(1.0, sum(cells.values()))))
        alone = math.hypot(*own)
        mid += times * expected_file_bytes(content, layout, math.hypot(common, alone))[0]
        variance += times * expected_file_bytes(content, layout, alone)[1] ** 2
        for place, sign in enumerate((-1, 1)):
            ends[place] += times * rebuilt_file_bytes(content.times(max(0.0, 1 + sign * _95 * common)), layout)
    half = math.hypot(_95 * math.sqrt(variance), (ends[1] - ends[0]) / 2)
    return Interval(max(0.0, mid - half), mid, mid + half)


def predicted(measurement: Measurement) -> dict[tuple[str, str | None], Interval]:
    """Return file lengths after a migration and a rebuild, by cluster and codec.

    The codec None stands for the codecs now in use.
    """
    files: dict[tuple[str, str | None], Interval] = {}
    trials = measurement.trials
    for space in measurement.clusters:
        for name, units in trials.units.items():
            size = predicted_files(measurement, space, units, trials.layout)
            if size is not None:
                files[space.cluster, name] = size
    return files | dict(trials.files)


def _content(column: str, groups: Sequence[Group], unit: Unit | None, layout: Layout) -> Content:
    """Return the pages that the cells of a column fill, if each has the average size of ``unit``.

    Without a unit (the codec was not tried on this column), cells keep their size: the bodies of a group count as
    equally long. The allocated bytes of a group are no basis, because they include its share of the file's free pages.
    """
    if unit is not None and unit.before_bytes:
        return unit.content.times(sum(group.body_bytes.mid for group in groups) / unit.before_bytes)
    if unit is not None:
        return unit.content.times(sum(group.cells.mid for group in groups))
    name = column.rpartition("/")[2].removesuffix(f" {COLD}")
    counted = [(group.cells.mid, group.body_bytes.mid) for group in groups if group.cells.mid]
    parts = ((cells, packed(name, [round(size / cells)], layout)) for cells, size in counted)
    return sum((part.times(cells / part.rows) for cells, part in parts), Content())


def _size_error(sizes: Sequence[Interval]) -> float:
    """Return the relative standard error of the sum of independent sizes."""
    total = sum(size.mid for size in sizes)
    return math.hypot(*(size.high - size.low for size in sizes)) / (2 * _95 * total) if total else 0.0


def whole_files(
    store: Datastore, measurement: Measurement, codec: Codec, seed: int
) -> dict[tuple[str, str | None], Interval]:
    """Predict file lengths by cluster and codec from every body of a small datastore.

    Raises:
        ServerError: A server cannot be reached.
    """
    internals = internals_of(store)
    sizes: dict[tuple[str, str | None], Interval] = {}
    for space in measurement.clusters:
        if space.problem is not None:
            continue
        read_from: ReadFrom = "replica" if space.read_from == "replica" else "primary"
        shards = internals.topology.shards_of(space.cluster)
        layout = layout_of(
            internals.shards.pool_for(internals.shards.node_of(shards[0], read_from)),
            internals.topology.cluster(space.cluster).engine,
        )
        files = [
            predict(store, shard, layout, seed, codec=codec, read_from=read_from, bounds=_WHOLE).file_bytes
            for shard in shards
        ]
        # The errors of the page model are the same for all shards, so the intervals are summed as fully correlated.
        sizes[space.cluster, codec.name] = summed(files)
    return sizes


def is_small(measurement: Measurement) -> bool:
    """Return whether the datastore is small enough for ``whole_files`` to finish within seconds."""
    cells = sum(group.cells.high for group in measurement.groups)
    return cells <= _SMALL_CELLS and sum(group.body_bytes.high for group in measurement.groups) <= _SMALL_BYTES
