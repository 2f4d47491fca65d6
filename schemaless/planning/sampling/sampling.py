"""Stratified random samples of a datastore's cells, and estimates of totals with intervals.

The added_ids of all shards, laid end to end, are divided into tiles of almost equal width, and the tiles are grouped
into strata of about equal size; one random tile of each stratum, its window, is read. All tiles have the same
probability of being read, so totals are unbiased however large the gaps between ids are, even if sizes correlate with
gaps. Reading the next rows after a random id would be biased towards rows after large gaps. A random tile is used
instead of every k-th one, because stored data may be periodic.

The number of windows and the amount of data read do not depend on the size of the datastore. Large holes in the
added_ids are found by probing and excluded first; of a tile with far more rows than expected, only a random part is
read. A small datastore is read completely, and the figures are then marked as exact.
"""

from __future__ import annotations

import math
import random
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, pairwise
from statistics import fmean
from typing import Any, Final, NamedTuple

from schemaless.base.events import Advanced, Listener, Total, ignore_events
from schemaless.base.numbers import LEVEL, Interval, poisson_bounds, student_t
from schemaless.errors import InvalidInput
from schemaless.planning.sampling.page_model import PAGE_BYTES
from schemaless.planning.sampling.sql import select_probe
from schemaless.store.cells.paging import PageSize, Scan
from schemaless.store.cells.sql import Row, select_block_end, select_id_span
from schemaless.topology.shards import ReadFrom, Shards
from schemaless.wire.parallel import on_servers

Key = tuple[str, ...]
"""Name of a value measured in a window, such as ``("cells", "BASE")``."""

_PROBE_ROUNDS: Final = 20
_MAX_ROWS_FACTOR: Final = 8
"""Maximum number of rows of a window, as a multiple of the expected number; of a fuller window, only a part is read."""

_MIN_WINDOWS: Final = 16
"""Minimum number of windows; with fewer, a t interval is of little value."""

_FEW: Final = 30
"""Up to this number of occurrences, an interval based on the differences between windows may be too narrow."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Bounds of a sample.

    Attributes:
        windows: maximum number of windows, at least 16.
        window_rows: target number of rows per window; fewer if bodies are long.
        sample_bytes: limit on body bytes; a sample that reaches it ends after the current round of windows.
        whole_rows: number of rows up to which all rows are read, if their bodies do not exceed ``sample_bytes``.
        pages: limit on table pages, applied in the same way as ``sample_bytes``; None for no limit. Reading even the
            length of a body reads all its overflow pages.
        round_windows: approximate number of windows per round; a sample must have several rounds to end early.
        probes: number of places that are probed first for the density and size of rows.
        probe_rows: number of rows per probe.
    """

    windows: int = 200
    window_rows: int = 64
    sample_bytes: int = 48 << 20
    whole_rows: int = 20_000
    pages: int | None = None
    round_windows: int = 20
    probes: int = 32
    probe_rows: int = 8

    def __post_init__(self) -> None:
        if self.windows < _MIN_WINDOWS or self.window_rows < 1 or self.sample_bytes < 1 or self.whole_rows < 0:
            raise InvalidInput(f"a sample needs at least {_MIN_WINDOWS} windows of at least 1 row; got {self}")


BOUNDS: Final = Bounds()


class Span(NamedTuple):
    """A range of a shard's added_ids, both ends included."""

    shard: int
    low: int
    high: int


class Window(NamedTuple):
    """The range ``after < added_id <= up_to``: one of a stratum's ``tiles`` tiles, or of a tile's ``parts`` parts."""

    shard: int
    after: int
    up_to: int
    tiles: float
    parts: int = 1

    @property
    def weight(self) -> float:
        """Factor by which its values are multiplied in totals."""
        return self.tiles * self.parts


class WindowFigures(NamedTuple):
    """Values measured in a window.

    Attributes:
        values: values whose totals are to be estimated; a missing key counts as 0.
        rows: number of rows read.
        body_bytes: size of their bodies, in bytes.
        pages: table pages read, for ``Bounds.pages``.
    """

    values: Mapping[Key, float]
    rows: int
    body_bytes: int
    pages: float = 0.0


@dataclass(slots=True)
class Sample:
    """The windows that were read, in the order of their strata, with estimates of totals.

    Attributes:
        windows: one window per stratum.
        figures: measured values of each window.
        tiles: total number of tiles.
        ids: total number of added_ids in them.
        seed: seed of the sample; it draws the same windows again from the same datastore.
        level: confidence level of the intervals, 0 to 1.
        spans: sampled ranges of added_ids, without large holes.
    """

    windows: list[Window]
    figures: list[WindowFigures]
    tiles: int
    ids: int
    seed: int
    level: float = LEVEL
    spans: Sequence[Span] = ()

    @property
    def exact(self) -> bool:
        """Whether all rows were read."""
        return len(self.windows) == self.tiles and all(window.parts == 1 for window in self.windows)

    @property
    def rows(self) -> int:
        """Number of rows read."""
        return sum(figures.rows for figures in self.figures)

    @property
    def body_bytes(self) -> int:
        """Size of the bodies read, in bytes."""
        return sum(figures.body_bytes for figures in self.figures)

    def keys_of(self, first: str) -> list[Key]:
        """Return all measured keys whose first element is ``first``, sorted."""
        return sorted({key for figures in self.figures for key in figures.values if key[0] == first})

    def seen(self, *keys: Key) -> float:
        """Return the sum of the values for these keys over the windows read."""
        return sum(figures.values.get(key, 0) for figures in self.figures for key in keys)

    def total(self, *keys: Key) -> Interval:
        """Estimate the sum of the values for these keys over the whole datastore, with an interval."""
        return self.estimate([sum(figures.values.get(key, 0) for key in keys) for figures in self.figures])

    def estimate(self, values: Sequence[float]) -> Interval:
        """Estimate the sum of a value over the whole datastore from that of each window, with an interval.

        This is a ratio estimate relative to the number of added_ids, because the widths of tiles differ slightly.

        Source: stratified sampling with one unit per stratum; the variance within a stratum is estimated from the
        differences between neighbouring strata, which errs on the wide side (Wolter, Introduction to Variance
        Estimation, chapters 2.5 and 8).
        """
        widths = [window.up_to - window.after for window in self.windows]
        mid = self._weighted(values)
        if not self.exact:
            mid *= self.ids / self._weighted(widths)
        half = self._half([value - mid / self.ids * width for value, width in zip(values, widths, strict=True)])
        # The true total cannot be below what was read.
        return Interval(max(mid - half, math.fsum(values)), mid, mid + half)

    def count(self, *keys: Key) -> Interval:
        """Estimate a number of possibly rare occurrences, like ``total``.

        If there are few or none in the sample, the differences between windows say little about the rest. The interval
        is then at least as wide as that of a Poisson distribution.
        """
        estimate = self.total(*keys)
        seen = self.seen(*keys)
        if self.exact or seen > _FEW or not self.windows:
            return estimate
        weight = self.tiles / len(self.windows)
        low, high = poisson_bounds(seen, self.level)
        return Interval(
            max(min(estimate.low, low * weight), seen), estimate.mid, max(estimate.high, high * weight, seen)
        )

    def ratio(self, over: Sequence[Key], under: Sequence[Key]) -> Interval | None:
        """Estimate the ratio of the sums of the values for two groups of keys, like ``ratio_of``."""
        above, below = (
            [sum(figures.values.get(key, 0) for key in keys) for figures in self.figures] for keys in (over, under)
        )
        return self.ratio_of(above, below)

    def ratio_of(self, above: Sequence[float], below: Sequence[float]) -> Interval | None:
        """Estimate the ratio of two sums from their values in each window, with an interval; None if the second is 0.

        If the two correlate across windows, the ratio is more precise than either sum.
        """
        total = self._weighted(below)
        if not total:
            return None
        mid = self._weighted(above) / total
        half = self._half([(y - mid * x) / total for x, y in zip(below, above, strict=True)])
        return Interval(max(0.0, mid - half), mid, mid + half)

    def _weighted(self, values: Sequence[float]) -> float:
        return math.fsum(window.weight * value for window, value in zip(self.windows, values, strict=True))

    def _half(self, values: Sequence[float]) -> float:
        if self.exact or len(values) < 2:
            return 0.0
        tiles = [window.parts * value for window, value in zip(self.windows, values, strict=True)]
        steps = [(one - other) ** 2 / 2 for one, other in pairwise(tiles)]
        spreads = [steps[0], *(fmean(pair) for pair in pairwise(steps)), steps[-1]]
        # For a window that is a complete tile, the term is tiles * (tiles - 1) * spread.
        variance = math.fsum(
            window.tiles * (window.tiles - 1 / window.parts) * spread
            for window, spread in zip(self.windows, spreads, strict=True)
        )
        # Neighbouring differences share a term: n - 1 of them have about two thirds as many degrees of freedom.
        return student_t((1 + self.level) / 2, 2 * (len(values) - 1) / 3) * math.sqrt(variance)


def draw(spans: Sequence[Span], width: int, most: int, seed: int) -> list[Window]:
    """Draw the windows of a sample, in the order of their strata.

    Args:
        spans: ranges of added_ids of the shards.
        width: approximate number of added_ids per tile.
        most: maximum number of windows; all tiles are drawn if there are no more than that.
        seed: seed of the random choice.
    """
    ends = list(accumulate(_tiles(span, width) for span in spans))
    tiles = ends[-1] if ends else 0
    count = min(most, tiles)
    drawn = random.Random(seed)  # noqa: S311 - nothing secret
    windows = []
    for number in range(count):
        first, end = number * tiles // count, (number + 1) * tiles // count
        tile = drawn.randrange(first, end)
        position = bisect_right(ends, tile)
        span = spans[position]
        parts, ids = _tiles(span, width), span.high - span.low + 1
        part = tile - (ends[position] - parts)
        after, up_to = (span.low - 1 + ids * edge // parts for edge in (part, part + 1))
        windows.append(Window(span.shard, after, up_to, float(end - first)))
    return windows


def tile_count(spans: Sequence[Span], width: int) -> int:
    """Return the number of tiles of about ``width`` added_ids; tiles of one span have the same width."""
    return sum(_tiles(span, width) for span in spans)


def _tiles(span: Span, width: int) -> int:
    # A narrower last tile would differ from the others, and be too rare to show up in an interval.
    return max(1, round((span.high - span.low + 1) / width))


def sample(
    shards: Shards,
    numbers: Sequence[int],
    look: Callable[[Window], WindowFigures],
    *,
    seed: int,
    bounds: Bounds = BOUNDS,
    read_from: ReadFrom = "primary",
    listener: Listener = ignore_events,
) -> Sample:
    """Read a sample of windows of some shards.

    Args:
        shards: the datastore's shards.
        numbers: numbers of the shards to sample.
        look: measures a window; ``window_rows`` reads its rows.
        seed: seed of the random choice.
        bounds: bounds of the sample.
        read_from: server role for reading the ranges and densities of added_ids.
        listener: receives the total and each advance, in windows.

    Raises:
        ServerError: a server cannot be reached.
    """
    reader = _Reader(shards, bounds, seed, read_from)
    spans, rows_per_id, bytes_per_id = reader.dense(id_spans(shards, numbers, read_from=read_from))
    width, most, cap = _layout(spans, rows_per_id, bytes_per_id, bounds)
    windows = draw(spans, width, most, seed)
    tiles = tile_count(spans, width)
    # Each round covers all shards, so the windows read are a sample of everything, whichever round is the last.
    rounds = max(1, len(windows) // bounds.round_windows)
    measured: dict[int, tuple[Window, WindowFigures]] = {}
    listener(Total(len(windows)))
    read_bytes = 0
    read_pages = 0.0
    for first in range(rounds):
        for number in range(first, len(windows), rounds):
            window = reader.part(windows[number], cap)
            measured[number] = window, look(window)
            read_bytes += measured[number][1].body_bytes
            read_pages += measured[number][1].pages
            listener(Advanced())
        if read_bytes >= bounds.sample_bytes or (bounds.pages is not None and read_pages >= bounds.pages):
            break
    chosen = [measured[number] for number in sorted(measured)]
    scale = tiles / sum(window.tiles for window, _ in chosen) if chosen else 1.0
    return Sample(
        [window._replace(tiles=window.tiles * scale) for window, _ in chosen],
        [figures for _, figures in chosen],
        tiles,
        id_count(spans),
        seed,
        spans=spans,
    )


def id_spans(shards: Shards, numbers: Sequence[int], *, read_from: ReadFrom = "primary") -> list[Span]:
    """Return the first and last added_id of each shard that has cells, querying servers in parallel."""

    def ask(shard: int) -> Span | None:
        sql = select_id_span(shards.database(shard))
        low, high = shards.rows(shard, sql, read_from=read_from)[0]
        return None if low is None else Span(shard, int(low), int(high))

    spans = on_servers([(shards.node_of(shard), shard) for shard in numbers], ask)
    return sorted(span for span in spans if span is not None)


def window_rows(shards: Shards, window: Window, size: PageSize, *, read_from: ReadFrom = "primary") -> Iterator[Row]:
    """Yield the rows of a window with their bodies, read in pages that fit into memory."""
    run = partial(shards.run, window.shard, read_from=read_from)
    return Scan(run, shards.database(window.shard), size).rows(window.after, window.up_to)


def _layout(
    spans: Sequence[Span], rows_per_id: float, bytes_per_id: float, bounds: Bounds
) -> tuple[int, int, int | None]:
    """Return the width of a tile, and the maximum numbers of windows and of rows per window."""
    ids = id_count(spans)
    if not rows_per_id:
        return -(-ids // bounds.windows) or 1, bounds.windows, bounds.window_rows * _MAX_ROWS_FACTOR
    rows, body_bytes = rows_per_id * ids, bytes_per_id * ids
    row_pages = _row_pages(body_bytes / rows)
    most_pages = math.inf if bounds.pages is None else bounds.pages
    if rows <= bounds.whole_rows and body_bytes <= bounds.sample_bytes and rows * row_pages <= most_pages:
        width = max(1, round(bounds.window_rows / rows_per_id))
        return width, tile_count(spans, width), bounds.whole_rows or None
    afforded = min(bounds.sample_bytes / max(1.0, body_bytes / rows), most_pages / row_pages) / bounds.windows
    window_rows = max(1.0, min(bounds.window_rows, afforded))
    return max(1, round(window_rows / rows_per_id)), bounds.windows, math.ceil(window_rows * _MAX_ROWS_FACTOR)


def _row_pages(body_bytes: float) -> float:
    return body_bytes / PAGE_BYTES + (1.0 if body_bytes > PAGE_BYTES / 2 else 0.01)


def id_count(spans: Sequence[Span]) -> int:
    """Return the number of added_ids in spans, gaps included."""
    return sum(span.high - span.low + 1 for span in spans)


class _Reader:
    def __init__(self, shards: Shards, bounds: Bounds, seed: int, read_from: ReadFrom) -> None:
        self._shards = shards
        self._bounds = bounds
        self._read_from = read_from
        # Independent of the random choice of windows.
        self._random = random.Random(~seed)  # noqa: S311 - nothing secret

    def dense(self, spans: list[Span]) -> tuple[list[Span], float, float]:
        """Return the spans without large holes, and the approximate numbers of rows and body bytes per added_id.

        A random id hits a hole with a probability proportional to the hole's size; the probe returns both ends of the
        hole.
        """
        rows_per_id = bytes_per_id = 0.0
        for _ in range(_PROBE_ROUNDS):
            rows, sizes, holes = self._probe(spans)
            rows_per_id, bytes_per_id = (fmean(rows), fmean(sizes)) if rows else (0.0, 0.0)
            large = {hole for hole in holes if hole.high - hole.low + 1 > id_count(spans) / self._bounds.windows}
            if not large:
                break
            spans = _without(spans, large)
        return spans, rows_per_id, bytes_per_id

    def _probe(self, spans: Sequence[Span]) -> tuple[list[float], list[float], list[Span]]:
        ends = list(accumulate(span.high - span.low + 1 for span in spans))
        ids = ends[-1] if ends else 0
        rows, sizes, holes = [], [], []
        probes, probe_rows = min(self._bounds.probes, ids), self._bounds.probe_rows
        for number in range(probes):
            place = self._random.randrange(number * ids // probes, (number + 1) * ids // probes)
            position = bisect_right(ends, place)
            span = spans[position]
            after = span.high - (ends[position] - place)
            sql = select_probe(self._shards.database(span.shard), span.low, after, span.high, probe_rows)
            before, first, last, count, body_bytes = self._ask(span.shard, sql)
            reach = (last if count == probe_rows else span.high) - after
            rows.append(count / reach)
            sizes.append(body_bytes / reach)
            holes.append(Span(span.shard, (before or span.low - 1) + 1, (first or span.high + 1) - 1))
        return rows, sizes, holes

    def part(self, window: Window, cap: int | None) -> Window:
        """Return the window, or a random part of it with at most ``cap`` rows; a ``cap`` of None means no limit."""
        while cap is not None and window.up_to - window.after > cap:
            sql = select_block_end(self._shards.database(window.shard), window.after, cap + 1, window.up_to)
            if self._ask(window.shard, sql)[1] <= cap:
                break
            # Parts have equal probability, however the rows are distributed, and the window's weight accounts for it.
            parts = 2 if window.up_to - window.after < 16 * cap else 8
            part = self._random.randrange(parts)
            ids = window.up_to - window.after
            after, up_to = (window.after + ids * edge // parts for edge in (part, part + 1))
            window = window._replace(after=after, up_to=up_to, parts=window.parts * parts)
        return window

    def _ask(self, shard: int, sql: bytes) -> tuple[int, ...]:
        row: Sequence[Any] = self._shards.rows(shard, sql, read_from=self._read_from)[0]
        return tuple(int(value or 0) for value in row)


def _without(spans: Sequence[Span], holes: Collection[Span]) -> list[Span]:
    remaining: list[Span] = []
    for span in spans:
        low = span.low
        for hole in sorted(hole for hole in holes if hole.shard == span.shard and span.low <= hole.low <= span.high):
            if low < hole.low:
                remaining.append(Span(span.shard, low, hole.low - 1))
            low = hole.high + 1
        if low <= span.high:
            remaining.append(Span(span.shard, low, span.high))
    return remaining
