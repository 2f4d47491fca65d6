"""Codec trials on sampled cells of a live datastore: body bytes, allocated bytes and time, with intervals.

The cells are read once, and every codec is tried on the same cells.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from itertools import islice
from typing import Final

from schemaless.base.events import Listener, ignore_events
from schemaless.base.keys import check_column_name
from schemaless.base.numbers import Interval
from schemaless.base.parts import parts
from schemaless.base.type_variables import T
from schemaless.codec import trial
from schemaless.codec.dictionaries import NO_DICTIONARIES, Dictionaries
from schemaless.codec.envelope import is_erased, is_reference
from schemaless.codec.registry import DEFAULT, ZSTD, Codec
from schemaless.planning.sampling.block_trial import stored_bytes, widened
from schemaless.planning.sampling.page_model import MYROCKS, PAGE_BYTES, Layout, Packer, lsm_entry_bytes
from schemaless.planning.sampling.sampling import Bounds, Sample, Window, WindowFigures, sample, window_rows
from schemaless.planning.sampling.sql import count_versions
from schemaless.planning.sampling.table_sizes import layout_of
from schemaless.schema.engines import ROCKSDB
from schemaless.store.cells.paging import PageSize
from schemaless.store.cells.reading import Place
from schemaless.store.datastore import Datastore
from schemaless.store.history import History, latest_versions
from schemaless.store.internals import internals_of
from schemaless.topology.shards import Shards

BOUNDS: Final = Bounds(windows=100, window_rows=16, sample_bytes=16 << 20, whole_rows=1_600)
"""Bounds of the sample of all columns together, which is kept in memory."""

MIN_CELLS: Final = 20
"""Minimum number of sampled cells of a column; with fewer, an interval is not meaningful."""

_MIN_WINDOWS: Final = 8
"""Minimum number of windows with cells of a column; intervals are derived from differences between windows."""


@dataclass(frozen=True, slots=True)
class SampledCell:
    """A sampled cell with its stored body, and when it was created, as text with the UTC offset."""

    row_key: bytes
    column_name: str
    ref_key: int
    body: bytes
    created_at: str = "2000-01-01 00:00:00+00:00"


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

    def by_window(self, column_name: str) -> list[list[SampledCell]]:
        """Return the cells of a column by window."""
        return [[cell for cell in window if cell.column_name == column_name] for window in self.windows]

    def of_column(self, column_name: str) -> list[SampledCell]:
        """Return the cells of a column, window by window."""
        return [cell for window in self.by_window(column_name) for cell in window]

    def carries(self, column_name: str) -> bool:
        """Whether the sample has enough cells of a column, in enough windows, for meaningful intervals."""
        counts = [len(window) for window in self.by_window(column_name)]
        return self.taken.exact or (sum(counts) >= MIN_CELLS and sum(map(bool, counts)) >= _MIN_WINDOWS)

    def size(self, column_name: str) -> tuple[Interval, Interval]:
        """Estimate the size of a column's bodies, and of the pages that they fill right after a rebuild.

        Free pages of the file are not included. On MyRocks, compressed blocks count instead of pages.
        """
        members = self.by_window(column_name)
        bodies, space = self.taken.estimate(_sums(members)), self.taken.estimate(self.space(column_name, members))
        return bodies, widened(space) if self.in_blocks else space

    def space_per_body(self, column_name: str) -> Interval | None:
        """Estimate the allocated bytes of a column per body byte, as it is stored now; None without bodies.

        The interval covers only the sampling error, not that of the model.
        """
        members = self.by_window(column_name)
        return self.taken.ratio_of(self.space(column_name, members), _sums(members))

    def space(self, column_name: str, members: Sequence[Sequence[SampledCell]]) -> list[float]:
        """Return the bytes of InnoDB pages, or of compressed blocks of MyRocks, that cells fill, by window."""
        if self.in_blocks:
            rows = stored_bytes([[(cell.row_key, cell.body) for cell in window] for window in members], column_name)
            key_bytes = self.layouts[0].key_share * lsm_entry_bytes(column_name)
            return [size + key_bytes * len(window) for size, window in zip(rows, members, strict=True)]
        return self.page_bytes(column_name, [[len(cell.body) for cell in window] for window in members])

    def page_bytes(self, column_name: str, lengths: Sequence[Sequence[int]]) -> list[float]:
        """Return the bytes of the InnoDB pages that bodies of these lengths fill, by window."""
        sizes: list[float] = []
        for window, layout in zip(lengths, self.layouts, strict=True):
            packer = Packer(layout)
            for length in window:
                packer.add(column_name, length)
            content = packer.content()
            sizes.append(PAGE_BYTES * (content.row_pages + content.key_pages))
        return sizes


def _sums(members: Sequence[Sequence[SampledCell]]) -> list[float]:
    return [float(sum(len(cell.body) for cell in window)) for window in members]


@dataclass(frozen=True, slots=True)
class CodecTrial:
    """Result of trying a codec on the sampled cells of a column, as measurements keep it.

    Attributes:
        column_name: name of the column.
        codec: name of the codec.
        sampled: number of cells that the codec was tried on.
        left_cells: number of these that the codec cannot encode; their present size is counted.
        share: body bytes if all cells had been written with this codec, relative to now.
        pages_share: the same for the pages that the column would fill, with the relative precision of ``share``.
        migrated_pages_share: the same pages after a migration, which skips cells that already count as being in the
            codec.
        encode_s: processor time for encoding one cell on this machine, in seconds.
        decode_s: processor time for decoding one cell on this machine, in seconds.
        carried: whether there are enough cells for meaningful figures; otherwise none of them should be shown.
    """

    column_name: str
    codec: str
    sampled: int
    left_cells: int
    share: Interval
    pages_share: Interval
    migrated_pages_share: Interval
    encode_s: float
    decode_s: float
    carried: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnTrial(CodecTrial):
    """A trial with what only those who make it need.

    Attributes:
        left: number of sampled cells that this codec cannot encode, by reason.
        migrated_share: body bytes after a migration, relative to now.
        migrated_bytes: body lengths after a migration, by window.
    """

    left: Counter[str]
    migrated_share: Interval
    migrated_bytes: list[list[int]]

    def kept(self) -> CodecTrial:
        """Return the part that measurements keep."""
        return CodecTrial(*(getattr(self, part.name) for part in fields(CodecTrial)))


def sample_cells(
    store: Datastore,
    *,
    columns: Iterable[str] | None = None,
    shards: Iterable[int] | None = None,
    seed: int | None = None,
    bounds: Bounds = BOUNDS,
    listener: Listener = ignore_events,
) -> CellSample:
    """Read a sample of cells with their bodies, without erased and cold ones.

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
        for _, row_key, column_name, ref_key, body, created_at in window_rows(internals.shards, window, size):
            rows += 1
            body_bytes += len(body)
            is_kept = wanted is None or column_name in wanted
            if is_kept and not is_erased(body) and not is_reference(body):
                cells.append(SampledCell(row_key, column_name, ref_key, body, created_at))
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
    bodies = [cell.body for cell in cells.of_column(column_name)]
    tried = trial.try_codec(bodies, codec, dictionaries=cells.dictionaries, keep=cells.in_blocks)
    return _column_trial(cells, column_name, codec, tried)


def _column_trial(cells: CellSample, column_name: str, codec: Codec, tried: trial.Trial) -> ColumnTrial:
    members = cells.by_window(column_name)
    bodies = [cell.body for window in members for cell in window]
    lengths = [len(body) if length is None else length for length, body in zip(tried.new_bytes, bodies, strict=True)]
    new, migrated = _windows(members, lengths), _windows(members, tried.migrated_bytes)
    before, now = _sums(members), cells.taken.estimate(cells.space(column_name, members)).mid

    def shares(lengths: list[list[int]], space: list[float]) -> tuple[Interval, Interval]:
        share = cells.taken.ratio_of([float(sum(window)) for window in lengths], before)
        if share is None or not share.mid:  # No cells; no body is empty.
            return Interval.of(1.0), Interval.of(1.0)
        return share, share.times(cells.taken.estimate(space).mid / now / share.mid)

    if cells.in_blocks:
        cell_of = zip((cell for window in members for cell in window), tried.bodies, strict=True)
        in_codec = _windows(members, [replace(cell, body=body) for cell, body in cell_of])
        new_space = migrated_space = cells.space(column_name, in_codec)
    else:
        new_space, migrated_space = (cells.page_bytes(column_name, windows) for windows in (new, migrated))
    share, pages_share = shares(new, new_space)
    migrated_share, migrated_pages_share = shares(migrated, migrated_space)
    return ColumnTrial(
        column_name=column_name,
        codec=codec.name,
        sampled=len(bodies),
        left_cells=tried.left.total(),
        left=tried.left,
        share=share,
        pages_share=pages_share,
        migrated_share=migrated_share,
        migrated_pages_share=migrated_pages_share,
        migrated_bytes=migrated,
        encode_s=tried.encode_s / max(1, tried.encoded),
        decode_s=tried.decode_s / max(1, tried.encoded),
        carried=bool(bodies) and cells.carries(column_name),
    )


HISTORY: Final = ", history"
"""Follows the name of a codec in which superseded versions are stored as deltas."""

DICTIONARY: Final = ", dictionary"
"""Follows the name of a codec that uses a dictionary trained on the column's own cells."""

WITH_DICTIONARY: Final = Codec(DEFAULT.serializer, ZSTD, ZSTD.level)
"""Codec that dictionaries are tried with."""


def plain_name(codec: str) -> str:
    """Return the name of a codec without what follows it in the name of a trial."""
    return codec.removesuffix(HISTORY).removesuffix(DICTIONARY)


_MOST_VERSIONS: Final = 10_000
"""Number of versions of a row and column above which they are not counted any further."""

_PAIRS_PER_SELECT: Final = 100

_MOST_COUNTS: Final = 100_000
"""Number of rows and columns whose versions are remembered."""


class RowShares:
    """Number of rows that sampled cells stand for.

    A row is sampled with each of its cells, so a cell of a row with n versions, erased ones included, is an n-th of it.

    Args:
        shards: access to the shards.
    """

    def __init__(self, shards: Shards) -> None:
        self._shards = shards
        self._counts: dict[tuple[bytes, str], int] = {}

    def of(self, shard: int, places: Iterable[Place]) -> defaultdict[str, float]:
        """Return the number of rows that the cells of a shard stand for, by column.

        Raises:
            ServerError: a server cannot be reached.
        """
        pairs = Counter(place[:2] for place in places)
        if len(self._counts) > _MOST_COUNTS:
            self._counts.clear()
        for part in parts([pair for pair in pairs if pair not in self._counts], _PAIRS_PER_SELECT):
            statement = count_versions(self._shards.database(shard), part, _MOST_VERSIONS)
            for position, versions in self._shards.rows(shard, statement):
                self._counts[part[int(position)]] = max(1, int(versions))
        rows: defaultdict[str, float] = defaultdict(float)
        for pair, cells in pairs.items():
            rows[pair[1]] += cells / self._counts[pair]
        return rows


@dataclass(frozen=True, slots=True)
class Versions:
    """Versions of the sampled rows of a column.

    Attributes:
        following: ref_key of the next higher version that was not erased, of the cells that have one, by window.
        per_row: average number of versions of a row, erased ones included.
    """

    following: list[dict[Place, int]]
    per_row: Interval


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryTrial(CodecTrial):
    """A trial of a codec in which superseded versions, those with a higher one that was not erased, become deltas.

    ``codec`` is followed by ``HISTORY``. The times are those of whole bodies.

    Attributes:
        versions: average number of versions of a row.
        now: body bytes of superseded versions, relative to all body bytes of the column.
        as_deltas: the same after a migration with ``history``, relative to all body bytes now.
    """

    versions: Interval
    now: Interval
    as_deltas: Interval


def versions_of(store: Datastore, cells: CellSample, column_name: str) -> Versions | None:
    """Read which sampled cells of a column have a higher version; None if none has, or there are too few cells.

    Args:
        store: the datastore.
        cells: result of ``sample_cells`` with cells of this column.
        column_name: name of the column.

    Raises:
        ServerError: a server cannot be reached.
    """
    if not cells.carries(column_name):
        return None
    shares = RowShares(internals_of(store).shards)
    following: list[dict[Place, int]] = []
    rows: list[float] = []
    counts: list[float] = []
    for window, sampled in zip(cells.taken.windows, cells.by_window(column_name), strict=True):
        places = [(cell.row_key, cell.column_name, cell.ref_key) for cell in sampled]
        following.append(latest_versions(internals_of(store), window.shard, places))
        rows.append(shares.of(window.shard, places)[column_name])
        counts.append(float(len(places)))
    per_row = cells.taken.ratio_of(counts, rows)
    if per_row is None or not any(following):
        return None
    return Versions(following, replace(per_row, low=max(1.0, per_row.low)))


def try_history(
    store: Datastore, cells: CellSample, column_name: str, codec: Codec, versions: Versions
) -> tuple[HistoryTrial, ColumnTrial]:
    """Predict the effect of a migration with ``history`` on a column; return it with the trial that it is based on.

    Args:
        store: the datastore, from which the next higher versions are read.
        cells: result of ``sample_cells`` with cells of this column.
        column_name: name of the column.
        codec: target codec of the migration, with a serializer that has deltas; its dictionary is not used.
        versions: result of ``versions_of``.

    Raises:
        ServerError: a server cannot be reached.
    """
    members = cells.by_window(column_name)
    # The catalog may not have its dictionary yet.
    plain = replace(codec, dictionary=None)
    tried = trial.try_codec(
        (cell.body for window in members for cell in window), plain, dictionaries=cells.dictionaries, keep=True
    )
    position = 0
    now: list[float] = []
    then: list[float] = []
    for window, sampled, following in zip(cells.taken.windows, members, versions.following, strict=True):
        places = [(cell.row_key, cell.column_name, cell.ref_key) for cell in sampled]
        whole = dict(zip(places, tried.bodies[position:], strict=False))
        deltas = History(internals_of(store), window.shard, plain, whole, following).deltas()
        now.append(0.0)
        then.append(0.0)
        for cell, place in zip(sampled, places, strict=True):
            if place in deltas:
                tried.bodies[position] = deltas[place][0]
                tried.new_bytes[position] = tried.migrated_bytes[position] = len(deltas[place][0])
            if place in following:
                now[-1] += len(cell.body)
                then[-1] += tried.migrated_bytes[position]
            position += 1
    shares = (cells.taken.ratio_of(sizes, _sums(members)) for sizes in (now, then))
    now_share, then_share = (Interval.of(0.0) if share is None else share for share in shares)
    made = replace(_column_trial(cells, column_name, plain, tried), codec=codec.name + HISTORY)
    kept = {part.name: getattr(made, part.name) for part in fields(CodecTrial)}
    return HistoryTrial(**kept, versions=versions.per_row, now=now_share, as_deltas=then_share), made


def _windows(members: Sequence[Sequence[SampledCell]], values: Sequence[T]) -> list[list[T]]:
    """Divide values, one for each cell, by window."""
    following = iter(values)
    return [list(islice(following, len(window))) for window in members]
