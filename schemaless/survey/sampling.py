"""Samples of a datastore's cells: windows of added_ids all over its shards, and estimates of totals with intervals.

The added_ids of all shards, laid end to end, are cut into tiles of a width, the tiles into strata of about the same
number, and one tile of each stratum is read, drawn at random. A tile has the same chance wherever it lies and whatever
is in it, so totals are unbiased however large the gaps are, and where sizes go with gaps too. The next rows from a
random id on would not do: rows behind large gaps are met more often. One tile of each stratum, and not every k-th one,
since what is stored may have a period of its own.

How many windows there are, and how much is read, does not depend on the size of the datastore. Large holes in the
added_ids are found by probing and left out first; of a tile with far more rows than expected only a part is read, drawn
at random too. What is small enough is read as a whole; the figures are exact then, and say so.
"""

from __future__ import annotations

import math
import random
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from statistics import fmean
from typing import Any, Final, NamedTuple

from schemaless.cells.paging import PageSize, Row, every_row
from schemaless.cells.sql import select_block_end, select_id_span
from schemaless.errors import InvalidInput
from schemaless.events import Advanced, Listener, Total, nobody
from schemaless.numbers import LEVEL, Interval, poisson_bounds, student_t
from schemaless.survey.page_model import PAGE_BYTES
from schemaless.survey.sql import select_probe
from schemaless.topology.shards import ReadFrom, Shards
from schemaless.wire.parallel import on_servers

Key = tuple[str, ...]
"""Whoever looks at a window calls a value by such a key, as ``("cells", "BASE")``."""

_PROBE_ROUNDS: Final = 20
_MOST_TIMES: Final = 8
"""A window of so many times the rows that it should have is not read as a whole."""

_FEWEST_WINDOWS: Final = 16
"""Of fewer windows, a t interval says little; so few windows are read together, whatever they hold."""

_FEW: Final = 30
"""Where so few were seen, an interval by the windows' differences may be too narrow."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """How much a sample reads, at most.

    Attributes:
        windows: how many windows, 16 at least.
        window_rows: how many rows a window should have; fewer where bodies are long.
        sample_bytes: body bytes; a sample that has read as much ends with the round of windows that it is in.
        whole_rows: as many rows, if their bodies have ``sample_bytes`` at most, are read as a whole.
        pages: pages of tables, by the same rule as ``sample_bytes``; None does not count them. A body that is touched,
            even for its length, is read with all its overflow pages.
        round_windows: of a round, about; it takes several to end early.
        probes: places that are looked at first, to learn where rows are, and how long.
        probe_rows: rows at each of them.
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
        if self.windows < _FEWEST_WINDOWS or self.window_rows < 1 or self.sample_bytes < 1 or self.whole_rows < 0:
            raise InvalidInput(f"a sample takes {_FEWEST_WINDOWS} windows at least, of 1 row at least; got {self}")


BOUNDS: Final = Bounds()


class Span(NamedTuple):
    """The added_ids of a shard, from its first to its last."""

    shard: int
    low: int
    high: int


class Window(NamedTuple):
    """What is read of a stratum: ``after < added_id <= up_to``, one of ``parts`` of one of its ``tiles``."""

    shard: int
    after: int
    up_to: int
    tiles: float
    parts: int = 1

    @property
    def weight(self) -> float:
        """How many times what is found in it stands for."""
        return self.tiles * self.parts


class WindowFigures(NamedTuple):
    """What was found in a window.

    Attributes:
        values: what is to be estimated; a key that is absent is 0.
        rows: how many rows were read.
        body_bytes: their bodies' bytes.
        pages: what they take of the table, for ``Bounds.pages``.
    """

    values: Mapping[Key, float]
    rows: int
    body_bytes: int
    pages: float = 0.0


@dataclass(slots=True)
class Sample:
    """The windows that were read, in the order of their strata, and what is estimated from them.

    Attributes:
        windows: one of each stratum.
        figures: what was found, window by window.
        tiles: how many tiles there are in all.
        ids: how many added_ids they are.
        seed: draws the same windows again, of the same datastore.
        spans: where those added_ids are; large holes are left out.
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
        """Whether everything was read."""
        return len(self.windows) == self.tiles and all(window.parts == 1 for window in self.windows)

    @property
    def rows(self) -> int:
        """How many rows were read."""
        return sum(figures.rows for figures in self.figures)

    @property
    def body_bytes(self) -> int:
        """Bytes of the bodies that were read."""
        return sum(figures.body_bytes for figures in self.figures)

    def keys_of(self, first: str) -> list[Key]:
        """Return every key that begins with ``first`` and that a window has, in their order."""
        return sorted({key for figures in self.figures for key in figures.values if key[0] == first})

    def seen(self, *keys: Key) -> float:
        """Return the sum of some values over the windows that were read."""
        return sum(figures.values.get(key, 0) for figures in self.figures for key in keys)

    def total(self, *keys: Key) -> Interval:
        """Return the sum of some values over the whole datastore, with its interval.

        By the ratio to the added_ids of a window, whose sum is known: tiles differ by one or so.

        Source: stratified sampling with one unit of each stratum; the variance within a stratum is taken from the
        differences between neighbouring ones, which errs to the wider side (Wolter, Introduction to Variance
        Estimation, chapters 2.5 and 8).
        """
        values = [sum(figures.values.get(key, 0) for key in keys) for figures in self.figures]
        widths = [window.up_to - window.after for window in self.windows]
        mid = self._weighted(values)
        if not self.exact:
            mid *= self.ids / self._weighted(widths)
        half = self._half([value - mid / self.ids * width for value, width in zip(values, widths, strict=True)])
        # What was seen is there.
        return Interval(max(mid - half, math.fsum(values)), mid, mid + half)

    def count(self, *keys: Key) -> Interval:
        """Return how many of something there are, as ``total`` does, for what may be rare.

        Where few or none were seen, windows that differ little say nothing about those that were not read: the bounds
        are at least as wide as if each had been met on its own (Poisson's).
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
        """Return the ratio of two sums, with its interval; None where the second one is 0.

        Windows with much of the one have much of the other, so it is known better than either.
        """
        above = [sum(figures.values.get(key, 0) for key in over) for figures in self.figures]
        below = [sum(figures.values.get(key, 0) for key in under) for figures in self.figures]
        total = self._weighted(below)
        if not total:
            return None
        mid = self._weighted(above) / total
        half = self._half([(y - mid * x) / total for x, y in zip(below, above, strict=True)])
        return Interval(max(0.0, mid - half), mid, mid + half)

    def _weighted(self, values: Sequence[float]) -> float:
        return math.fsum(window.weight * value for window, value in zip(self.windows, values, strict=True))

    def _half(self, values: Sequence[float]) -> float:
        """Return half the width of the interval of a total."""
        if self.exact or len(values) < 2:
            return 0.0
        tiles = [window.parts * value for window, value in zip(self.windows, values, strict=True)]
        steps = [(one - other) ** 2 / 2 for one, other in pairwise(tiles)]
        spreads = [steps[0], *(fmean(pair) for pair in pairwise(steps)), steps[-1]]
        # For a window that is a whole tile: tiles * (tiles - 1) * spread.
        variance = math.fsum(
            window.tiles * (window.tiles - 1 / window.parts) * spread
            for window, spread in zip(self.windows, spreads, strict=True)
        )
        # Differences of neighbours share a term: n - 1 of them tell as much as two thirds of that.
        return student_t((1 + self.level) / 2, 2 * (len(values) - 1) / 3) * math.sqrt(variance)


def draw(spans: Sequence[Span], width: int, most: int, seed: int) -> list[Window]:
    """Return the windows of a sample, in the order of their strata.

    Args:
        spans: of the shards.
        width: added_ids of a tile, about.
        most: how many windows at most; all tiles where there are no more.
        seed: of what is drawn.
    """
    ends = list(accumulate(_tiles(span, width) for span in spans))
    tiles = ends[-1] if ends else 0
    count = min(most, tiles)
    drawn = random.Random(seed)  # noqa: S311 - nothing secret
    windows = []
    for number in range(count):
        first, behind = number * tiles // count, (number + 1) * tiles // count
        tile = drawn.randrange(first, behind)
        position = bisect_right(ends, tile)
        span = spans[position]
        parts, ids = _tiles(span, width), span.high - span.low + 1
        part = tile - (ends[position] - parts)
        after, up_to = (span.low - 1 + ids * edge // parts for edge in (part, part + 1))
        windows.append(Window(span.shard, after, up_to, float(behind - first)))
    return windows


def tile_count(spans: Sequence[Span], width: int) -> int:
    """Return how many tiles of about ``width`` added_ids spans have; those of a shard are of one width, if not all."""
    return sum(_tiles(span, width) for span in spans)


def _tiles(span: Span, width: int) -> int:
    # A last tile that is narrower would be unlike the others, and too rare to show in an interval.
    return max(1, round((span.high - span.low + 1) / width))


def sample(
    shards: Shards,
    numbers: Sequence[int],
    look: Callable[[Window], WindowFigures],
    *,
    seed: int,
    bounds: Bounds = BOUNDS,
    read_from: ReadFrom = "primary",
    listener: Listener = nobody,
) -> Sample:
    """Read windows of some shards.

    Args:
        shards: the datastore's.
        numbers: which of them.
        look: says what is in a window; ``window_rows`` reads it.
        seed: of what is drawn.
        bounds: how much is read.
        read_from: where first and last added_ids, and how close they lie, are asked for.
        listener: told the total and each advance, in windows.

    Raises:
        ServerError: a server cannot be reached.
    """
    reader = _Reader(shards, bounds, seed, read_from)
    spans, rows_per_id, bytes_per_id = reader.dense(id_spans(shards, numbers, read_from=read_from))
    width, most, cap = _layout(spans, rows_per_id, bytes_per_id, bounds)
    windows = draw(spans, width, most, seed)
    tiles = tile_count(spans, width)
    # In rounds, each of which goes over everything: whichever is the last one, what was read is a sample of the whole.
    rounds = max(1, len(windows) // bounds.round_windows)
    looked: dict[int, tuple[Window, WindowFigures]] = {}
    listener(Total(len(windows)))
    read_bytes = 0
    read_pages = 0.0
    for first in range(rounds):
        for number in range(first, len(windows), rounds):
            window = reader.part(windows[number], cap)
            looked[number] = window, look(window)
            read_bytes += looked[number][1].body_bytes
            read_pages += looked[number][1].pages
            listener(Advanced())
        if read_bytes >= bounds.sample_bytes or (bounds.pages is not None and read_pages >= bounds.pages):
            break
    chosen = [looked[number] for number in sorted(looked)]
    stands_for = tiles / sum(window.tiles for window, _ in chosen) if chosen else 1.0
    return Sample(
        [window._replace(tiles=window.tiles * stands_for) for window, _ in chosen],
        [figures for _, figures in chosen],
        tiles,
        _id_count(spans),
        seed,
        spans=spans,
    )


def id_spans(shards: Shards, numbers: Sequence[int], *, read_from: ReadFrom = "primary") -> list[Span]:
    """Return the first and last added_id of each shard that has cells, many servers at once."""

    def ask(shard: int) -> Span | None:
        sql = select_id_span(shards.database(shard))
        low, high = shards.rows(shard, sql, read_from=read_from)[0]
        return None if low is None else Span(shard, int(low), int(high))

    spans = on_servers([(shards.node_of(shard), shard) for shard in numbers], ask)
    return sorted(span for span in spans if span is not None)


def window_rows(shards: Shards, window: Window, size: PageSize, *, read_from: ReadFrom = "primary") -> Iterator[Row]:
    """Yield the rows of a window, bodies too, in pages that fit into memory."""
    return every_row(
        lambda sql, check: shards.rows(window.shard, sql, read_from=read_from, check=check),
        size,
        shards.database(window.shard),
        window.after,
        window.up_to,
    )


def _layout(
    spans: Sequence[Span], rows_per_id: float, bytes_per_id: float, bounds: Bounds
) -> tuple[int, int, int | None]:
    """Return the width of a tile, how many windows to read at most, and how many rows of one."""
    ids = _id_count(spans)
    if not rows_per_id:
        return -(-ids // bounds.windows) or 1, bounds.windows, bounds.window_rows * _MOST_TIMES
    rows, body_bytes = rows_per_id * ids, bytes_per_id * ids
    row_pages = _row_pages(body_bytes / rows)
    most_pages = math.inf if bounds.pages is None else bounds.pages
    if rows <= bounds.whole_rows and body_bytes <= bounds.sample_bytes and rows * row_pages <= most_pages:
        width = max(1, round(bounds.window_rows / rows_per_id))
        return width, tile_count(spans, width), bounds.whole_rows or None
    afforded = min(bounds.sample_bytes / max(1.0, body_bytes / rows), most_pages / row_pages) / bounds.windows
    window_rows = max(1.0, min(bounds.window_rows, afforded))
    return max(1, round(window_rows / rows_per_id)), bounds.windows, math.ceil(window_rows * _MOST_TIMES)


def _row_pages(body_bytes: float) -> float:
    """Return how many pages a row with such a body has, about."""
    return body_bytes / PAGE_BYTES + (1.0 if body_bytes > PAGE_BYTES / 2 else 0.01)


def _id_count(spans: Sequence[Span]) -> int:
    return sum(span.high - span.low + 1 for span in spans)


class _Reader:
    """Asks where rows lie; reads added_ids, and of a few rows the sizes."""

    def __init__(self, shards: Shards, bounds: Bounds, seed: int, read_from: ReadFrom) -> None:
        self._shards = shards
        self._bounds = bounds
        self._read_from = read_from
        # Not what windows are drawn by.
        self._random = random.Random(~seed)  # noqa: S311 - nothing secret

    def dense(self, spans: list[Span]) -> tuple[list[Span], float, float]:
        """Return the spans without their large holes, and about how many rows and body bytes an added_id has.

        A random id is in a hole as often as that is large, and tells where it begins and ends.
        """
        rows_per_id = bytes_per_id = 0.0
        for _ in range(_PROBE_ROUNDS):
            rows, sizes, holes = self._probe(spans)
            rows_per_id, bytes_per_id = (fmean(rows), fmean(sizes)) if rows else (0.0, 0.0)
            large = {hole for hole in holes if hole.high - hole.low + 1 > _id_count(spans) / self._bounds.windows}
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
        """Return a window, or a random part of it that has about ``cap`` rows at most; None means all."""
        while cap is not None and window.up_to - window.after > cap:
            sql = select_block_end(self._shards.database(window.shard), window.after, cap + 1, window.up_to)
            if self._ask(window.shard, sql)[1] <= cap:
                break
            # Each part as likely as its weight says, however the rows lie in it.
            parts = 2 if window.up_to - window.after < 16 * cap else 8
            part = self._random.randrange(parts)
            ids = window.up_to - window.after
            first, behind = (window.after + ids * edge // parts for edge in (part, part + 1))
            window = window._replace(after=first, up_to=behind, parts=window.parts * parts)
        return window

    def _ask(self, shard: int, sql: bytes) -> tuple[int, ...]:
        row: Sequence[Any] = self._shards.rows(shard, sql, read_from=self._read_from)[0]
        return tuple(int(value or 0) for value in row)


def _without(spans: Sequence[Span], holes: Collection[Span]) -> list[Span]:
    left: list[Span] = []
    for span in spans:
        low = span.low
        for hole in sorted(hole for hole in holes if hole.shard == span.shard and span.low <= hole.low <= span.high):
            if low < hole.low:
                left.append(Span(span.shard, low, hole.low - 1))
            low = hole.high + 1
        if low <= span.high:
            left.append(Span(span.shard, low, span.high))
    return left
