"""Codec trials on sampled cells of a live datastore: body bytes, allocated bytes and time, with intervals.

The cells are read once, and every codec is tried on the same cells.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from schemaless.base.events import Listener, ignore_events
from schemaless.base.keys import check_column_name
from schemaless.base.numbers import Interval
from schemaless.codec import trial
from schemaless.codec.dictionaries import NO_DICTIONARIES, Dictionaries
from schemaless.codec.envelope import is_erased
from schemaless.codec.registry import Codec
from schemaless.planning.sampling.block_trial import stored_bytes, widened
from schemaless.planning.sampling.page_model import MYROCKS, PAGE_BYTES, Layout, Packer, lsm_entry_bytes
from schemaless.planning.sampling.sampling import Bounds, Sample, Window, WindowFigures, sample, window_rows
from schemaless.planning.sampling.table_sizes import layout_of
from schemaless.schema.engines import ROCKSDB
from schemaless.store.cells.paging import PageSize
from schemaless.store.datastore import Datastore
from schemaless.store.internals import internals_of

BOUNDS: Final = Bounds(windows=100, window_rows=16, sample_bytes=16 << 20, whole_rows=1_600)
"""Bounds of the sample of all columns together, which is kept in memory."""

MIN_CELLS: Final = 20
"""Minimum number of sampled cells of a column; with fewer, an interval is not meaningful."""

_MIN_WINDOWS: Final = 8
"""Minimum number of windows with cells of a column; intervals are derived from differences between windows."""


@dataclass(frozen=True, slots=True)
class SampledCell:
    """A sampled cell with its stored body."""

    row_key: bytes
    column_name: str
    body: bytes


@dataclass(frozen=True, slots=True)
class CellSample:
    """Sampled cells, by window.

    Attributes:
        taken: the sample, with values for ``("cells", column_name)`` and ``("bytes", column_name)``.
        windows: cells of each window of ``taken``, in order.
        layouts: page layout of each window's server.
        dictionaries: dictionaries that the bodies refer to.
    """

    taken: Sample
    windows: list[list[SampledCell]]
    layouts: list[Layout]
    dictionaries: Dictionaries = NO_DICTIONARIES

    @property
    def in_blocks(self) -> bool:
        """Whether the cells are in MyRocks, or their sizes in MyRocks were requested."""
        return any(layout.row_share is not None for layout in self.layouts)

    def column_names(self) -> list[str]:
        """Return the names of the sampled columns, sorted."""
        return [name for _, name in self.taken.keys_of("cells")]

    def of_column(self, column_name: str) -> list[SampledCell]:
        """Return the cells of a column, window by window."""
        return [cell for window in self.windows for cell in window if cell.column_name == column_name]

    def carries(self, column_name: str) -> bool:
        """Whether the sample has enough cells of a column, in enough windows, for meaningful intervals."""
        if self.taken.exact:
            return True
        counts = [sum(cell.column_name == column_name for cell in window) for window in self.windows]
        return sum(counts) >= MIN_CELLS and sum(map(bool, counts)) >= _MIN_WINDOWS

    def estimate(self, values: Sequence[float]) -> Interval:
        """Estimate a total over the datastore from one value per window."""
        figures = [WindowFigures({("value",): value}, 0, 0) for value in values]
        return replace(self.taken, figures=figures).total(("value",))

    def ratio(self, over: Sequence[float], under: Sequence[float]) -> Interval | None:
        """Estimate the ratio of two totals; None if the second one is 0."""
        both = [WindowFigures({("over",): a, ("under",): b}, 0, 0) for a, b in zip(over, under, strict=True)]
        return replace(self.taken, figures=both).ratio([("over",)], [("under",)])


@dataclass(frozen=True, slots=True)
class ColumnSize:
    """Size of a column.

    Attributes:
        body_bytes: size of its bodies.
        allocated_bytes: size of the pages that it fills, partly or completely, right after a rebuild; free pages of the
            file are not included.
    """

    body_bytes: Interval
    allocated_bytes: Interval


@dataclass(frozen=True, slots=True)
class ColumnTrial:
    """Result of trying a codec on the sampled cells of a column.

    Attributes:
        column_name: name of the column.
        codec: the codec.
        cells: number of cells in the column.
        sampled: number of cells that the codec was tried on.
        now: present size of the column.
        new: size if all cells had been written with this codec.
        migrated: size after a migration, which skips cells that already count as being in the codec.
        share: ``new.body_bytes`` relative to ``now.body_bytes``, a ratio that is more precise than either; None without
            bodies.
        migrated_share: the same for ``migrated``.
        encode_s: processor time for encoding one cell on this machine, in seconds.
        decode_s: processor time for decoding one cell on this machine, in seconds.
        left: number of sampled cells that this codec cannot encode, by reason; their present size is counted.
        migrated_bytes: body lengths after a migration, by window.
        carried: whether there are enough cells for meaningful figures; otherwise none of them should be shown.
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
        """Pages that the column would fill with this codec, relative to now; None without pages."""
        return self._pages(self.share, self.new)

    @property
    def migrated_pages_share(self) -> Interval | None:
        """Pages that the column would fill after a migration, relative to now; None without pages."""
        return self._pages(self.migrated_share, self.migrated)

    def _pages(self, share: Interval | None, space: ColumnSize) -> Interval | None:
        """Return a share of pages, with the relative precision of the share of body bytes."""
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
    listener: Listener = ignore_events,
) -> CellSample:
    """Read a sample of cells with their bodies.

    Args:
        store: the datastore.
        columns: names of the columns to keep; by default all.
        shards: numbers of the shards; by default all.
        seed: seed of the sample; by default derived from the clock.
        bounds: bounds of the sample.
        listener: receives the total and each advance, in windows.

    Raises:
        InvalidInput: a shard does not exist, or a server's pages do not have InnoDB's default size.
        InvalidCell: a column name is invalid.
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
            if (wanted is None or column_name in wanted) and not is_erased(body):
                cells.append(SampledCell(row_key, column_name, body))
                values["cells", column_name] += 1
                values["bytes", column_name] += len(body)
        by_window[window.shard, window.after, window.up_to] = cells
        return WindowFigures(values, rows, body_bytes)

    drawn = time.time_ns() % 1_000_000 if seed is None else seed
    taken = sample(internals.shards, numbers, look, seed=drawn, bounds=bounds, listener=listener)
    return CellSample(
        taken,
        [by_window[window.shard, window.after, window.up_to] for window in taken.windows],
        layouts_in(store, taken.windows),
        internals.dictionaries,
    )


def layouts_in(store: Datastore, windows: Sequence[Window], engine: str | None = None) -> list[Layout]:
    """Return the layout of cells in each window's cluster.

    Args:
        store: the datastore.
        windows: the windows.
        engine: storage engine, which the servers need not have; by default, the one that each cluster has.
    """
    internals = internals_of(store)
    layouts: dict[str, Layout] = {}
    for cluster in {internals.topology.cluster_of(window.shard) for window in windows}:
        foreign = engine == ROCKSDB.name and cluster.engine != engine
        pool = internals.shards.pool_for(cluster.primary)
        layouts[cluster.name] = MYROCKS if foreign else layout_of(pool, engine or cluster.engine)
    return [layouts[internals.topology.cluster_of(window.shard).name] for window in windows]


def try_codec(cells: CellSample, column_name: str, codec: Codec) -> ColumnTrial:
    """Try a codec on the sampled cells of a column, without contacting a server.

    Args:
        cells: result of ``sample_cells`` with cells of this column.
        column_name: name of the column.
        codec: the codec; its compression level is used.
    """
    members = [[cell for cell in window if cell.column_name == column_name] for window in cells.windows]
    windows = [[cell.body for cell in window] for window in members]
    tried = trial.try_codec(
        (body for window in windows for body in window),
        codec,
        dictionaries=cells.dictionaries,
        keep=cells.in_blocks,
    )
    now = [[len(body) for body in window] for window in windows]
    new: list[list[int]] = []
    migrated: list[list[int]] = []
    position = 0
    for window in windows:
        end = position + len(window)
        lengths = zip(tried.new_bytes[position:end], window, strict=True)
        new.append([len(body) if length is None else length for length, body in lengths])
        migrated.append(tried.migrated_bytes[position:end])
        position = end
    before = [float(sum(window)) for window in now]
    size = column_size(cells, column_name, migrated, _with_bodies(members, tried.bodies))
    return ColumnTrial(
        column_name=column_name,
        codec=codec,
        cells=cells.taken.count(("cells", column_name)),
        sampled=len(tried.new_bytes),
        now=column_size(cells, column_name, now, members),
        new=size if cells.in_blocks else column_size(cells, column_name, new),
        migrated=size,
        share=cells.ratio([float(sum(window)) for window in new], before),
        migrated_share=cells.ratio([float(sum(window)) for window in migrated], before),
        encode_s=tried.encode_s / max(1, tried.encoded),
        decode_s=tried.decode_s / max(1, tried.encoded),
        left=tried.left,
        migrated_bytes=migrated,
        carried=cells.carries(column_name),
    )


def _with_bodies(members: Sequence[Sequence[SampledCell]], bodies: Sequence[bytes]) -> list[list[SampledCell]] | None:
    """Return the cells with their bodies replaced by ``bodies``, in order; None if ``bodies`` is empty."""
    if not bodies:
        return None
    following = iter(bodies)
    return [[replace(cell, body=next(following)) for cell in window] for window in members]


def column_size(
    cells: CellSample,
    column_name: str,
    lengths: Sequence[Sequence[int]],
    members: Sequence[Sequence[SampledCell]] | None = None,
) -> ColumnSize:
    """Estimate the size of a column.

    Args:
        cells: the sample.
        column_name: the column.
        lengths: lengths of the bodies, by window.
        members: cells with these bodies, by window; required if the cells are in MyRocks.
    """
    bodies = cells.estimate([float(sum(window)) for window in lengths])
    if cells.in_blocks and members is not None:
        return ColumnSize(bodies, widened(cells.estimate(_block_bytes(cells, column_name, members))))
    return ColumnSize(bodies, cells.estimate(_page_bytes(cells, column_name, lengths)))


def space_per_body(cells: CellSample, column_name: str) -> Interval | None:
    """Estimate the allocated bytes of a column per body byte, as it is stored now; None without bodies.

    The interval covers only the sampling error, not that of the model.
    """
    members = [[cell for cell in window if cell.column_name == column_name] for window in cells.windows]
    lengths = [[len(cell.body) for cell in window] for window in members]
    size = _block_bytes(cells, column_name, members) if cells.in_blocks else _page_bytes(cells, column_name, lengths)
    return cells.ratio(size, [float(sum(window)) for window in lengths])


def _block_bytes(cells: CellSample, column_name: str, members: Sequence[Sequence[SampledCell]]) -> list[float]:
    """Return the compressed bytes of a column's cells in MyRocks, by window."""
    rows = stored_bytes([[(cell.row_key, cell.body) for cell in window] for window in members], column_name)
    key_bytes = cells.layouts[0].key_share * lsm_entry_bytes(column_name)
    return [size + key_bytes * len(window) for size, window in zip(rows, members, strict=True)]


def _page_bytes(cells: CellSample, column_name: str, lengths: Sequence[Sequence[int]]) -> list[float]:
    """Return the bytes of the InnoDB pages that bodies of these lengths fill, by window."""
    sizes: list[float] = []
    for window, layout in zip(lengths, cells.layouts, strict=True):
        packer = Packer(layout)
        for length in window:
            packer.add(column_name, length)
        content = packer.content()
        sizes.append(PAGE_BYTES * (content.leaf_pages + content.overflow_pages + content.key_pages))
    return sizes
