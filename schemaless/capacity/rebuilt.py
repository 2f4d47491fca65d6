"""How long files are after a migration and a rebuild: by shard, since a file grows in steps, a small one in large.

What is known of a shard is how many cells it has and how long their bodies are now, column by column; what a codec
makes of that is each column's own ratio. What is not known is averaged over (``store.sizing``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, pstdev
from typing import Final

from schemaless.capacity.measurement import ClusterFiles, Group, Measurement
from schemaless.codec.registry import Codec
from schemaless.datastore import Datastore
from schemaless.internals import internals_of
from schemaless.numbers import Interval, summed
from schemaless.survey.page_model import PAGE_BYTES, Content, Layout, Packer, rebuilt_file_bytes
from schemaless.survey.sampling import Bounds
from schemaless.survey.sizing import expected_file_bytes, model_error, predict
from schemaless.survey.table_sizes import layout_of
from schemaless.topology.shards import ReadFrom

__all__ = ["Unit", "disk_per_body", "is_small", "predicted_files", "unit_of", "whole_files"]

_PACKED_ROWS: Final = 2_000
_LARGE_TIMES: Final = 10_000
"""In a file so many times as large, what it takes once does not show."""

_95: Final = 1.96
_SMALL_CELLS: Final = 20_000
_SMALL_BYTES: Final = 64 << 20
_WHOLE: Final = Bounds(windows=16, window_rows=24, sample_bytes=_SMALL_BYTES, whole_rows=_SMALL_CELLS)


@dataclass(frozen=True, slots=True)
class Unit:
    """What a cell of a column takes in a codec.

    Attributes:
        content: of one cell, on average.
        variation: of a cell: standard deviation of what is not known of its length, over the mean.
        error: of the average length, as a part of it: its standard error.
        before_bytes: how long the bodies are now, on average; None where that is not known.
    """

    content: Content
    variation: float
    error: float
    before_bytes: float | None = None


def unit_of(
    column: str, lengths: Sequence[int], layout: Layout, share: Interval | None, before: Sequence[int] = ()
) -> Unit | None:
    """Return what a cell takes whose body has one of these lengths; None without any.

    Args:
        lengths: of bodies.
        share: that these lengths add up to, of those now, with its 95 % interval.
        before: lengths of the same bodies now. Where they are known, of a shard too, only the ratio has to be.
    """
    if not lengths:
        return None
    packed = _packed(column, lengths, layout)
    mean = fmean(lengths)
    error = (share.high - share.low) / (2 * _95 * share.mid) if share is not None and share.mid else 0.0
    unknown: list[float] = list(lengths)
    if sum(before):
        ratio = sum(lengths) / sum(before)
        unknown = [length - ratio * now for length, now in zip(lengths, before, strict=True)]
    variation = pstdev(unknown) / mean if mean else 0.0
    return Unit(packed.times(1 / packed.rows), variation, error, fmean(before) if sum(before) else None)


def disk_per_body(column: str, lengths: Sequence[int], layout: Layout) -> float | None:
    """Return how many bytes of a large file cells take for each byte of bodies of these lengths; None without any."""
    if not sum(lengths):
        return None
    packed = _packed(column, lengths, layout)
    bodies = packed.rows / len(lengths) * sum(lengths)
    return rebuilt_file_bytes(packed.times(_LARGE_TIMES), layout) / (bodies * _LARGE_TIMES)


def predicted_files(
    measurement: Measurement, space: ClusterFiles, units: Mapping[str, Unit], layout: Layout
) -> Interval | None:
    """Return how long a cluster's files are when every cell takes what ``units`` has for its column.

    None where the cluster could not be measured.
    """
    if space.problem is not None:
        return None
    shards = _shards(measurement, space)
    count = sum(shard.times for shard in shards)
    empty = rebuilt_file_bytes(Content(), layout) * max(0, space.shards - count)
    mid = float(empty)
    apart = 0.0
    ends = [0.0, 0.0]
    for shard in shards:
        contents: dict[str, Content] = {}
        for column, kept in shard.columns.items():
            unit = units.get(column)
            if unit is None:  # not tried: it stays as it is
                contents[column] = Content(kept.cells, kept.allocated_bytes / PAGE_BYTES)
            elif unit.before_bytes:
                contents[column] = unit.content.times(kept.body_bytes / unit.before_bytes)
            else:
                contents[column] = unit.content.times(kept.cells)
        content = _sum(list(contents.values()))
        pages = {column: _pages(part) for column, part in contents.items()}
        weight = sum(pages.values()) or 1.0
        tried = {column: unit for column, unit in units.items() if column in shard.columns}
        common = sum(unit.error * pages[column] for column, unit in tried.items()) / weight
        common = math.hypot(common, model_error(content))
        parts = [
            unit.variation / math.sqrt(max(1.0, shard.columns[column].cells)) * pages[column]
            for column, unit in tried.items()
        ]
        own = math.hypot(*(part / weight for part in parts), shard.error)
        mid += shard.times * expected_file_bytes(content, layout, math.hypot(common, own))[0]
        apart += shard.times * expected_file_bytes(content, layout, own)[1] ** 2
        for place, sign in enumerate((-1, 1)):
            ends[place] += shard.times * rebuilt_file_bytes(content.times(max(0.0, 1 + sign * _95 * common)), layout)
    half = math.hypot(_95 * math.sqrt(apart), (ends[1] - ends[0]) / 2)
    return Interval(max(0.0, mid - half), mid, mid + half)


@dataclass(frozen=True, slots=True)
class _Kept:
    """What a shard has of a column."""

    cells: float
    body_bytes: float
    allocated_bytes: float


@dataclass(frozen=True, slots=True)
class _Shard:
    """What a shard has by column, how far off that may be, and how many shards are so."""

    columns: dict[str, _Kept]
    error: float
    times: int


def whole_files(store: Datastore, measurement: Measurement, codec: Codec, seed: int) -> dict[tuple[str, str], Interval]:
    """Return the same as ``predicted_files``, by cluster and codec, from every body: of a datastore that is small.

    Raises:
        ServerError: a server cannot be reached.
    """
    internals = internals_of(store)
    sizes = {}
    for space in measurement.clusters:
        if space.problem is not None:
            continue
        read_from: ReadFrom = "replica" if space.read_from == "replica" else "primary"
        shards = internals.topology.shards_of(space.cluster)
        layout = layout_of(internals.shards.pool_for(internals.shards.node_of(shards[0], read_from)))
        files = [
            predict(store, shard, layout, seed, codec=codec, read_from=read_from, bounds=_WHOLE).file_bytes
            for shard in shards
        ]
        # The model is wrong about all of them in the same way.
        sizes[space.cluster, codec.name] = summed(files)
    return sizes


def is_small(measurement: Measurement) -> bool:
    """Whether ``whole_files`` takes seconds."""
    cells = sum(group.cells.high for group in measurement.groups)
    return cells <= _SMALL_CELLS and sum(group.body_bytes.high for group in measurement.groups) <= _SMALL_BYTES


def _shards(measurement: Measurement, space: ClusterFiles) -> list[_Shard]:
    by_shard: dict[int | None, dict[str, list[Group]]] = {}
    for group in measurement.groups:
        if group.cluster == space.cluster:
            by_shard.setdefault(group.shard, {}).setdefault(group.column_name, []).append(group)
    result = []
    for shard, columns in by_shard.items():
        times = space.shards if shard is None else 1
        kept = {
            column: _Kept(
                sum(group.cells.mid for group in groups) / times,
                sum(group.body_bytes.mid for group in groups) / times,
                sum(group.allocated_bytes.mid for group in groups) / times,
            )
            for column, groups in columns.items()
        }
        sizes = [group.body_bytes for groups in columns.values() for group in groups]
        total = sum(size.mid for size in sizes)
        error = math.hypot(*(size.high - size.low for size in sizes)) / (2 * _95 * total) if total else 0.0
        if shard is None:
            # Of shards that were measured together nobody knows how even they are: as even as chance has it.
            error = math.hypot(error, 1 / math.sqrt(max(1.0, sum(group.cells for group in kept.values()))))
        result.append(_Shard(kept, error, times))
    return result


def _packed(column: str, lengths: Sequence[int], layout: Layout) -> Content:
    """Return what such rows take together, so many of them that a page in part does not show."""
    packer = Packer(layout)
    for _ in range(-(-_PACKED_ROWS // len(lengths))):
        for length in lengths:
            packer.add(column, length)
    return packer.content()


def _pages(content: Content) -> float:
    return content.leaf_pages + content.overflow_pages


def _sum(contents: Sequence[Content]) -> Content:
    return Content(
        sum(content.rows for content in contents),
        sum(content.leaf_pages for content in contents),
        sum(content.overflow_pages for content in contents),
        sum(content.key_pages for content in contents),
    )
