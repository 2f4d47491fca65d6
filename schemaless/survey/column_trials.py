"""Codecs tried on sampled cells of a live datastore: body bytes, allocated bytes and time, with intervals.

The cells are read once; each codec is then tried on the same ones.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from schemaless.cells.paging import PageSize
from schemaless.codec import trial
from schemaless.codec.dictionaries import NO_DICTIONARIES, Dictionaries
from schemaless.codec.registry import Codec
from schemaless.datastore import Datastore
from schemaless.events import Listener, nobody
from schemaless.internals import internals_of
from schemaless.keys import check_column_name
from schemaless.numbers import Interval
from schemaless.survey.page_model import PAGE_BYTES, Layout, Packer
from schemaless.survey.sampling import Bounds, Sample, Window, WindowFigures, sample, window_rows
from schemaless.survey.table_sizes import layout_of

BOUNDS: Final = Bounds(windows=100, window_rows=16, sample_bytes=16 << 20, whole_rows=1_600)
"""The sample of all columns together is as large: so much is held in memory, too."""

LEAST_CELLS: Final = 20
"""A column has so many cells in a sample at least: fewer carry no interval that one could believe."""

_LEAST_WINDOWS: Final = 8
"""They lie in so many windows at least: an interval is of the differences between windows."""


@dataclass(frozen=True, slots=True)
class SampledCell:
    """A cell as it is stored."""

    row_key: bytes
    column_name: str
    body: bytes


@dataclass(frozen=True, slots=True)
class CellSample:
    """Sampled cells, by window.

    Attributes:
        taken: the sample, with ``("cells", column_name)`` and ``("bytes", column_name)``.
        windows: the cells of each window of ``taken``, in their order.
        layouts: how the server of each window lays pages out.
        dictionaries: those that the bodies name.
    """

    taken: Sample
    windows: list[list[SampledCell]]
    layouts: list[Layout]
    dictionaries: Dictionaries = NO_DICTIONARIES

    def column_names(self) -> list[str]:
        """Return the columns that were met, in their order."""
        return [name for _, name in self.taken.keys_of("cells")]

    def of_column(self, column_name: str) -> list[SampledCell]:
        """Return the cells of a column, window by window."""
        return [cell for window in self.windows for cell in window if cell.column_name == column_name]

    def carries(self, column_name: str) -> bool:
        """Whether its cells of a column carry an interval: all were read, or enough, in enough windows."""
        if self.taken.exact:
            return True
        counts = [sum(cell.column_name == column_name for cell in window) for window in self.windows]
        return sum(counts) >= LEAST_CELLS and sum(map(bool, counts)) >= _LEAST_WINDOWS

    def estimate(self, values: Sequence[float]) -> Interval:
        """Return the total over the datastore of something that has one value for each window."""
        return self._with(("value",), values).total(("value",))

    def ratio(self, over: Sequence[float], under: Sequence[float]) -> Interval | None:
        """Return the ratio of two such totals; None where the second one is 0."""
        both = [WindowFigures({("over",): a, ("under",): b}, 0, 0) for a, b in zip(over, under, strict=True)]
        return replace(self.taken, figures=both).ratio([("over",)], [("under",)])

    def _with(self, key: tuple[str, ...], values: Sequence[float]) -> Sample:
        return replace(self.taken, figures=[WindowFigures({key: value}, 0, 0) for value in values])


@dataclass(frozen=True, slots=True)
class ColumnSize:
    """What the cells of a column take.

    Attributes:
        body_bytes: their bodies.
        allocated_bytes: the pages that they fill, in part or whole, right after a rebuild; without what a file keeps
            free.
    """

    body_bytes: Interval
    allocated_bytes: Interval


@dataclass(frozen=True, slots=True)
class ColumnTrial:
    """A codec tried on the sampled cells of a column.

    Attributes:
        codec: what was tried.
        cells: how many cells the column has.
        sampled: how many were tried.
        now: what the column takes.
        new: what it would take, had it been written in this codec.
        migrated: what it would take after a migration, which leaves cells that count as being in the codec.
        share: ``new.body_bytes`` over ``now.body_bytes``, known better than either; None without any body.
        migrated_share: the same of ``migrated``.
        encode_s: for one cell, in seconds of this machine's processor time.
        decode_s: likewise.
        left: sampled cells that cannot be had in this codec, by reason; they count as they are.
        migrated_bytes: the lengths of the sampled bodies after a migration, window by window.
        carried: whether so many cells carry an interval; otherwise no figure of these is to be shown.
    """

    column_name: str
    codec: Codec
    cells: Interval
    sampled: int
    now: ColumnSize
    new: ColumnSize
    migrated: ColumnSize
    share: Interval | None
    migrated_share: Interval | None
    encode_s: float
    decode_s: float
    left: Counter[str]
    migrated_bytes: list[list[int]]
    carried: bool = True

    @property
    def pages_share(self) -> Interval | None:
        """The pages that it would fill, had it been written in this codec, over those now; None without any."""
        return self._pages(self.share, self.new)

    @property
    def migrated_pages_share(self) -> Interval | None:
        """The same after a migration."""
        return self._pages(self.migrated_share, self.migrated)

    def _pages(self, share: Interval | None, space: ColumnSize) -> Interval | None:
        """Return a share of pages; it is known as well as that of the bodies, in proportion."""
        if share is None or not self.now.allocated_bytes.mid:
            return None
        mid = space.allocated_bytes.mid / self.now.allocated_bytes.mid
        return share.times(mid / share.mid) if share.mid else Interval.of(mid)


def sample_cells(
    store: Datastore,
    *,
    columns: Iterable[str] | None = None,
    shards: Iterable[int] | None = None,
    seed: int | None = None,
    bounds: Bounds = BOUNDS,
    listener: Listener = nobody,
) -> CellSample:
    """Read a sample of the cells, bodies too. Changes nothing.

    Args:
        columns: only these; the others are read past.
        shards: numbers of the shards; all unless given.
        seed: of what is drawn; the clock's unless given.
        bounds: how much is read.
        listener: told the total and each advance, in windows.

    Raises:
        InvalidInput: there is no such shard, or a server's pages are not of InnoDB's default size.
        InvalidCell: no column may have this name.
        ServerError: a server cannot be reached.
    """
    internals = internals_of(store)
    numbers = internals_of(store).chosen_shards(shards)
    wanted = None if columns is None else frozenset(map(check_column_name, columns))
    by_window: dict[tuple[int, int, int], list[SampledCell]] = {}
    size = PageSize()

    def look(window: Window) -> WindowFigures:
        values: Counter[tuple[str, ...]] = Counter()
        cells: list[SampledCell] = []
        rows = body_bytes = 0
        for _, row_key, column_name, _, body, _ in window_rows(internals.shards, window, size):
            rows += 1
            body_bytes += len(body)
            if wanted is None or column_name in wanted:
                cells.append(SampledCell(row_key, column_name, body))
                values["cells", column_name] += 1
                values["bytes", column_name] += len(body)
        by_window[window.shard, window.after, window.up_to] = cells
        return WindowFigures(values, rows, body_bytes)

    drawn = time.time_ns() % 1_000_000 if seed is None else seed
    taken = sample(internals.shards, numbers, look, seed=drawn, bounds=bounds, listener=listener)
    by_cluster = {
        cluster.name: layout_of(internals.shards.pool_for(cluster.primary))
        for cluster in {internals.topology.cluster_of(window.shard) for window in taken.windows}
    }
    return CellSample(
        taken,
        [by_window[window.shard, window.after, window.up_to] for window in taken.windows],
        [by_cluster[internals.topology.cluster_of(window.shard).name] for window in taken.windows],
        internals.dictionaries,
    )


def try_codec(cells: CellSample, column_name: str, codec: Codec) -> ColumnTrial:
    """Try a codec on the sampled cells of a column. Asks no server.

    Args:
        cells: what ``sample_cells`` gave; has cells of this column.
        codec: its level counts.
    """
    windows = [[cell.body for cell in window if cell.column_name == column_name] for window in cells.windows]
    tried = trial.try_codec((body for window in windows for body in window), codec, dictionaries=cells.dictionaries)
    now = [[len(body) for body in window] for window in windows]
    new: list[list[int]] = []
    migrated: list[list[int]] = []
    position = 0
    for window in windows:
        behind = position + len(window)
        lengths = zip(tried.new_bytes[position:behind], window, strict=True)
        new.append([len(body) if length is None else length for length, body in lengths])
        migrated.append(tried.migrated_bytes[position:behind])
        position = behind
    before = [float(sum(window)) for window in now]
    return ColumnTrial(
        column_name=column_name,
        codec=codec,
        cells=cells.taken.count(("cells", column_name)),
        sampled=len(tried.new_bytes),
        now=column_size(cells, column_name, now),
        new=column_size(cells, column_name, new),
        migrated=column_size(cells, column_name, migrated),
        share=cells.ratio([float(sum(window)) for window in new], before),
        migrated_share=cells.ratio([float(sum(window)) for window in migrated], before),
        encode_s=tried.encode_s / max(1, tried.encoded),
        decode_s=tried.decode_s / max(1, tried.encoded),
        left=tried.left,
        migrated_bytes=migrated,
        carried=cells.carries(column_name),
    )


def column_size(cells: CellSample, column_name: str, lengths: Sequence[Sequence[int]]) -> ColumnSize:
    """Return what bodies of these lengths would take, window by window of a sample."""
    pages: list[float] = []
    for window, layout in zip(lengths, cells.layouts, strict=True):
        packer = Packer(layout)
        for length in window:
            packer.add(column_name, length)
        content = packer.content()
        pages.append(content.leaf_pages + content.overflow_pages + content.key_pages)
    return ColumnSize(
        cells.estimate([float(sum(window)) for window in lengths]),
        cells.estimate([PAGE_BYTES * count for count in pages]),
    )
