"""How long files are after a migration and a rebuild: by shard, since a file grows in steps, a small one in large.

On MySQL a table of 31 pages takes some 36, and one of 33 pages 448. What is not known of a shard, which of its cells
are long and how well the sample knows them all, is averaged over: close to a step the middle is between its two ends.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean, pstdev
from typing import Final

from schemaless.capacity.measurement import ClusterSpace, Measurement
from schemaless.mysql.page_model import Content, Layout, Packer, rebuilt_file_bytes
from schemaless.store.sampling import Estimate

__all__ = ["Unit", "disk_per_body", "predicted_files", "unit_of"]

_PACKED_ROWS: Final = 2_000
_LARGE_TIMES: Final = 10_000
"""As large a file that what it takes once does not show."""

_POINTS: Final = tuple(NormalDist().inv_cdf((number + 0.5) / 9) for number in range(9))
_95: Final = 1.96


@dataclass(frozen=True, slots=True)
class Unit:
    """What a cell of a column takes in a codec.

    Attributes:
        content: of one cell, on average.
        variation: standard deviation of the bodies' lengths, over their mean.
        error: of the average length, as a part of it: its standard error.
    """

    content: Content
    variation: float
    error: float


def unit_of(column: str, lengths: Sequence[int], layout: Layout, share: Estimate | None) -> Unit | None:
    """Return what a cell takes whose body has one of these lengths; None without any.

    Args:
        column: its name.
        lengths: of bodies.
        layout: the server's.
        share: that these lengths add up to, of those now, with its 95 % interval.
    """
    if not lengths:
        return None
    packed = _packed(column, lengths, layout)
    mean = fmean(lengths)
    error = (share.high - share.low) / (2 * _95 * share.mid) if share is not None and share.mid else 0.0
    return Unit(packed.times(1 / packed.rows), pstdev(lengths) / mean if mean else 0.0, error)


def disk_per_body(column: str, lengths: Sequence[int], layout: Layout) -> float | None:
    """Return how many bytes of a large file cells take for each byte of bodies of these lengths; None without any."""
    if not sum(lengths):
        return None
    packed = _packed(column, lengths, layout)
    bodies = packed.rows / len(lengths) * sum(lengths)
    return rebuilt_file_bytes(packed.times(_LARGE_TIMES), layout) / (bodies * _LARGE_TIMES)


def predicted_files(
    measurement: Measurement, space: ClusterSpace, units: Mapping[str, Unit], layout: Layout
) -> Estimate | None:
    """Return how long a cluster's files are when every cell takes what ``units`` has for its column.

    None where the cluster could not be measured.
    """
    if space.problem is not None:
        return None
    shards = _shards(measurement, space)
    count = sum(times for _, _, times in shards)
    empty = rebuilt_file_bytes(Content(), layout) * max(0, space.shards - count)
    mid = float(empty)
    apart = 0.0
    ends = [0.0, 0.0]
    for cells, cells_error, times in shards:
        known = {column: number for column, number in cells.items() if column in units}
        content = _sum([units[column].content.times(number) for column, number in known.items()])
        pages = {column: _pages(units[column].content) * number for column, number in known.items()}
        weight = sum(pages.values()) or 1.0
        common = sum(units[column].error * part for column, part in pages.items()) / weight
        parts = [units[column].variation / math.sqrt(max(1.0, known[column])) * pages[column] for column in known]
        own = math.hypot(*(part / weight for part in parts), cells_error)
        sizes = [_scaled(content, 1 + point * math.hypot(common, own), layout) for point in _POINTS]
        mid += times * fmean(sizes)
        apart += times * pstdev([_scaled(content, 1 + point * own, layout) for point in _POINTS]) ** 2
        for place, sign in enumerate((-1, 1)):
            ends[place] += times * _scaled(content, 1 + sign * _95 * common, layout)
    half = math.hypot(_95 * math.sqrt(apart), (ends[1] - ends[0]) / 2)
    return Estimate(max(0.0, mid - half), mid, mid + half)


def _shards(measurement: Measurement, space: ClusterSpace) -> list[tuple[dict[str, float], float, int]]:
    """Return cells by column, how far off their number may be, and how many shards are so."""
    found: dict[int | None, dict[str, list[Estimate]]] = {}
    for group in measurement.groups:
        if group.cluster == space.cluster:
            found.setdefault(group.shard, {}).setdefault(group.column_name, []).append(group.cells)
    result = []
    for shard, columns in found.items():
        times = space.shards if shard is None else 1
        cells = {column: sum(each.mid for each in parts) / times for column, parts in columns.items()}
        widths = [each.high - each.low for parts in columns.values() for each in parts]
        total = sum(cells.values())
        error = math.hypot(*widths) / (2 * _95 * total * times) if total else 0.0
        # Of shards that were measured together nobody knows how even they are: as even as chance has it.
        result.append((cells, error if shard is not None else math.hypot(error, 1 / math.sqrt(max(1.0, total))), times))
    return result


def _packed(column: str, lengths: Sequence[int], layout: Layout) -> Content:
    """Return what such rows take together, so many of them that a page in part does not show."""
    packer = Packer(layout)
    for _ in range(-(-_PACKED_ROWS // len(lengths))):
        for length in lengths:
            packer.add(column, length)
    return packer.content()


def _scaled(content: Content, factor: float, layout: Layout) -> int:
    return rebuilt_file_bytes(content.times(max(0.0, factor)), layout)


def _pages(content: Content) -> float:
    return content.leaf_pages + content.overflow_pages


def _sum(contents: Sequence[Content]) -> Content:
    return Content(
        sum(each.rows for each in contents),
        sum(each.leaf_pages for each in contents),
        sum(each.overflow_pages for each in contents),
        sum(each.key_pages for each in contents),
    )
