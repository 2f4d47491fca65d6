"""Samples are unbiased for any gaps between ids, have valid intervals, and respect their bounds."""

from __future__ import annotations

import json
import random
import uuid
from bisect import bisect_right
from itertools import accumulate
from statistics import fmean, stdev

import pytest

from schemaless import InvalidInput, NewStoredCell
from schemaless.base.numbers import Interval
from schemaless.planning.sampling import sampling
from schemaless.planning.sampling.sampling import (
    Bounds,
    Sample,
    Span,
    Window,
    WindowFigures,
    draw,
    id_spans,
    sample,
    tile_count,
    window_rows,
)
from schemaless.planning.sampling.sql import select_probe
from schemaless.store.cells.paging import PageSize
from schemaless.store.internals import internals_of

RUNS = 100
ROWS = ("rows",)
BYTES = ("bytes",)


class Rows:
    """Rows of a few shards, generated from a seed: their ids, and the sums of their sizes."""

    def __init__(self, pattern: str, seed: int) -> None:
        drawn = random.Random(seed)
        self.shards = []
        for shard in range(6):
            added_id, ids, sizes = drawn.randrange(1, 1_000), [], []
            for number in range(3_000):
                gap, size = getattr(self, pattern)(drawn, number)
                added_id += gap
                ids.append(added_id)
                sizes.append(size)
            self.shards.append((Span(shard, ids[0], ids[-1]), ids, [0, *accumulate(sizes)]))
        self.spans = [span for span, _, _ in self.shards]
        self.ids = sum(span.high - span.low + 1 for span in self.spans)
        self.rows = sum(len(ids) for _, ids, _ in self.shards)
        self.bytes = sum(sums[-1] for _, _, sums in self.shards)

    @staticmethod
    def dense(drawn: random.Random, number: int) -> tuple[int, int]:
        """No gaps, widely varying sizes."""
        return 1, int(drawn.lognormvariate(7, 1))

    @staticmethod
    def after_gaps(drawn: random.Random, number: int) -> tuple[int, int]:
        """A row is as large as the gap before it."""
        gap = 1 + int(drawn.expovariate(1 / 20))
        return gap, 100 * gap

    @staticmethod
    def regions(drawn: random.Random, number: int) -> tuple[int, int]:
        """Of each 900 rows, 300 are large with large gaps."""
        return (drawn.randrange(1, 60), 20_000) if number % 900 < 300 else (1, drawn.randrange(200, 800))

    @staticmethod
    def weekly(drawn: random.Random, number: int) -> tuple[int, int]:
        """Two of seven days have larger rows, and rows grow over time."""
        return (drawn.randrange(1, 8), 9_000 + number) if number % 70 >= 50 else (1, 1_000 + number)

    def sample(self, width: int, windows: int, seed: int) -> Sample:
        """Sample the rows without a server."""
        drawn = draw(self.spans, width, windows, seed)
        return Sample(
            drawn,
            [self.look(window) for window in drawn],
            tile_count(self.spans, width),
            self.ids,
            seed,
        )

    def look(self, window: Window) -> WindowFigures:
        _, ids, sums = self.shards[window.shard]
        first, end = bisect_right(ids, window.after), bisect_right(ids, window.up_to)
        size = sums[end] - sums[first]
        return WindowFigures({ROWS: end - first, BYTES: size}, end - first, size)


@pytest.mark.parametrize("rows_of_a_window", [8, 40])
@pytest.mark.parametrize(
    "pattern", ["weekly", *(pytest.param(name, marks=pytest.mark.long) for name in ("dense", "after_gaps", "regions"))]
)
def test_intervals_contain_the_truth_and_estimates_are_unbiased(pattern, rows_of_a_window):
    """In at least 90 of 100 seeded runs, also if gaps correlate with sizes; the mean of the estimates is the truth."""
    rows = Rows(pattern, 1)
    width = round(rows_of_a_window * rows.ids / rows.rows)
    taken = [rows.sample(width, 120, seed) for seed in range(RUNS)]
    truths = [
        ("rows", rows.rows, [each.total(ROWS) for each in taken]),
        ("bytes", rows.bytes, [each.total(BYTES) for each in taken]),
        ("mean", rows.bytes / rows.rows, [each.ratio([BYTES], [ROWS]) for each in taken]),
    ]

    for name, truth, estimates in truths:
        held = sum(estimate.low <= truth <= estimate.high for estimate in estimates)
        mean = sum(estimate.mid for estimate in estimates) / RUNS
        widest = max(estimate.high - estimate.mid for estimate in estimates)
        assert held >= 90, (name, held)
        assert abs(mean - truth) <= max(widest / 4, 1e-9 * truth), (name, mean, truth)


def test_the_next_rows_from_a_random_id_would_be_biased():
    """The reason for windows: a random id tends to hit a row after a large gap."""
    rows = Rows("after_gaps", 1)
    drawn = random.Random(1)
    found = []
    for _ in range(2_000):
        span, ids, sums = drawn.choice(rows.shards)
        position = bisect_right(ids, drawn.randrange(span.low, span.high))
        found.append(sums[position + 1] - sums[position])

    assert sum(found) / len(found) > 1.7 * rows.bytes / rows.rows


def test_a_sample_of_all_tiles_is_exact():
    """Every row is in one tile, and the figures have no interval."""
    rows = Rows("regions", 2)
    taken = rows.sample(500, 10**9, 3)

    assert taken.exact
    assert taken.total(ROWS) == Interval.of(rows.rows)
    assert taken.count(BYTES) == Interval.of(rows.bytes)
    assert taken.total(ROWS).exact
    assert not rows.sample(500, 50, 3).total(ROWS).exact


def test_one_tile_of_each_stratum_is_drawn():
    """Windows have the requested number, do not overlap, are in order and inside the spans, and depend on the seed."""
    spans = [Span(2, 1, 1_000), Span(5, 10**15, 10**15 + 7), Span(9, 17, 90_017)]
    drawn = draw(spans, 64, 100, 7)

    assert len(drawn) == len({(window.shard, window.after) for window in drawn}) == 100
    assert drawn == sorted(drawn, key=lambda window: (window.shard, window.after))
    assert drawn == draw(spans, 64, 100, 7) != draw(spans, 64, 100, 8)
    assert sum(window.tiles for window in drawn) == 16 + 1 + 1_406
    by_shard = {span.shard: span for span in spans}
    for window in drawn:
        span = by_shard[window.shard]
        assert span.low - 1 <= window.after < window.up_to <= min(span.high, window.after + 65)


def test_a_part_of_a_tile_represents_the_whole_tile():
    """The value of one of four parts counts four times, with an interval, and is not exact."""
    windows = [Window(0, 100 * number, 100 * number + 100, 1.0) for number in range(20)]
    windows[7] = windows[7]._replace(up_to=725, parts=4)
    taken = Sample(windows, [WindowFigures({ROWS: 10 if n == 7 else 100}, 0, 0) for n in range(20)], 20, 2_000, 1)

    assert not taken.exact
    assert taken.total(ROWS).mid == pytest.approx(19 * 100 + 4 * 10)
    assert taken.total(ROWS).low >= 19 * 100 + 10


def test_occurrences_outside_the_sample_are_not_ruled_out():
    """With no or one occurrence in the sample, the upper bound allows more; the lower bound is the number found."""
    rows = Rows("dense", 1)
    few = rows.sample(10, 100, 1)
    few.figures[3].values["bad",] = 1

    assert few.count(("never",)).low == 0
    assert few.count(("never",)).high == pytest.approx(3.7 * few.tiles / 100, rel=0.02)
    assert few.count(("bad",)).low == 1
    assert few.count(("bad",)).high == pytest.approx(5.6 * few.tiles / 100, rel=0.02)
    assert few.ratio([BYTES], [("never",)]) is None


def test_bounds_with_too_few_windows_are_refused():
    """A handful of windows is not a sample."""
    with pytest.raises(InvalidInput, match="16 windows"):
        Bounds(windows=3)


# ---- on real servers


@pytest.fixture
def gaps(fresh_store, by_hand):
    """1,200 cells of two sizes in four shards; the large ones have ids that are ten times further apart.

    The row keys are the same in each run, because a seeded sample depends on their distribution to shards.
    """
    cells = [
        NewStoredCell(
            uuid.UUID(int=number), "AB"[number % 2], 1, json.dumps("x" * (2_000 if number % 2 else 100)).encode()
        )
        for number in range(1_200)
    ]
    fresh_store.put_stored_cells(cells)
    for shard in range(4):
        name = internals_of(fresh_store).shards.database(shard).encode()
        by_hand(fresh_store).execute(
            shard,
            b"UPDATE `%b`.cell SET added_id=added_id*10+100000 WHERE column_name='B' ORDER BY added_id DESC" % name,
        )
    return cells


def reader(store, read=None):
    """Return a function that measures the rows of a window by column."""
    size = PageSize()

    def look(window: Window) -> WindowFigures:
        rows = list(window_rows(internals_of(store).shards, window, size))
        if read is not None:
            read.extend(row[0] for row in rows)
        total = sum(len(row[4]) for row in rows)
        return WindowFigures({("rows", name): sum(row[2] == name for row in rows) for name in "AB"}, len(rows), total)

    return look


@pytest.mark.mysql
def test_a_small_datastore_is_read_as_a_whole(fresh_store, gaps):
    """Each cell is read once, and the counts are exact."""
    read: list[int] = []
    taken = sample(internals_of(fresh_store).shards, range(4), reader(fresh_store, read), seed=1)

    assert taken.exact
    assert len(read) == len(gaps)
    assert taken.total(("rows", "A")) == taken.total(("rows", "B")) == Interval.of(600)


@pytest.mark.mysql
def test_a_large_datastore_is_sampled_within_bounds(fresh_store, gaps):
    """The bounds are respected, and the intervals contain the truth, for a fixed seed."""
    bounds = Bounds(windows=100, window_rows=4, whole_rows=100)
    taken = sample(internals_of(fresh_store).shards, range(4), reader(fresh_store), seed=3, bounds=bounds)

    assert not taken.exact
    assert len(taken.windows) == 100
    assert 100 < taken.rows < 900
    taken.level = 0.9999  # a single draw would fail in one of twenty orders of the tests with 95 %
    for name in "AB":
        estimate = taken.total(("rows", name))
        assert estimate.low <= 600 <= estimate.high, (name, estimate)


@pytest.mark.mysql
def test_a_sample_that_has_read_enough_bytes_ends(fresh_store, gaps):
    """The current round is completed, so the sample still covers all shards."""
    bounds = Bounds(windows=100, window_rows=4, sample_bytes=10_000, whole_rows=100)
    taken = sample(internals_of(fresh_store).shards, range(4), reader(fresh_store), seed=3, bounds=bounds)

    assert 16 <= len(taken.windows) <= 25
    # A shard may have hardly any ids, depending on its rows.
    assert len({window.shard for window in taken.windows}) >= 3
    assert sum(window.tiles for window in taken.windows) == pytest.approx(taken.tiles)


@pytest.mark.mysql
def test_an_empty_datastore_has_an_empty_sample(fresh_store):
    """Nothing is read, and the result is exact."""
    taken = sample(internals_of(fresh_store).shards, range(4), reader(fresh_store), seed=1)

    assert (taken.exact, taken.windows, taken.rows) == (True, [], 0)
    assert taken.total(("rows", "A")) == taken.count(("rows", "A")) == Interval.of(0)
    assert id_spans(internals_of(fresh_store).shards, range(4)) == []


@pytest.mark.mysql
def test_a_probe_reads_a_few_rows_by_the_primary_key(fresh_store, gaps):
    """The density of rows is read without a scan, whatever the statistics are."""
    sql = select_probe(internals_of(fresh_store).shards.database(1), 1, 50, 10**9, 8)
    plan = json.dumps(internals_of(fresh_store).shards.rows(1, b"EXPLAIN FORMAT=JSON " + sql)[0][0])

    assert "PRIMARY" in plan
    before, first, _, count, _ = internals_of(fresh_store).shards.rows(1, sql)[0]
    assert before <= 50 < first
    assert count == 8


@pytest.mark.mysql
def test_a_stray_row_far_away_changes_neither_the_bounds_nor_the_estimate(fresh_store, gaps, by_hand):
    """A hole of nearly all ids is found and excluded, so that the windows contain rows."""
    for shard in range(4):
        name = internals_of(fresh_store).shards.database(shard).encode()
        by_hand(fresh_store).execute(
            shard,
            b"UPDATE `%b`.cell SET added_id=added_id+%d ORDER BY added_id DESC LIMIT 3"
            % (name, 10**15 + shard * 10**12),
        )
    bounds = Bounds(windows=60, window_rows=4, whole_rows=100)
    taken = sample(internals_of(fresh_store).shards, range(4), reader(fresh_store), seed=4, bounds=bounds)

    assert not taken.exact
    assert 60 < taken.rows < 900
    taken.level = 0.9999  # a single draw would fail in one of twenty orders of the tests with 95 %
    for name in "AB":
        estimate = taken.total(("rows", name))
        assert estimate.low <= 600 <= estimate.high, (name, estimate)


@pytest.mark.mysql
def test_a_crowded_window_is_read_in_part(fresh_store, gaps):
    """A tile with far more rows than expected respects the bounds; a part represents it."""
    crowded = Window(1, 100_000, 108_000, 1.0)
    reader_of = sampling._Reader(internals_of(fresh_store).shards, Bounds(), 1, "primary")
    rows = len(list(window_rows(internals_of(fresh_store).shards, crowded, PageSize())))
    parts = [
        sampling._Reader(internals_of(fresh_store).shards, Bounds(), seed, "primary").part(crowded, 50)
        for seed in range(300)
    ]
    counts = [len(list(window_rows(internals_of(fresh_store).shards, part, PageSize()))) for part in parts]

    assert reader_of.part(crowded, None) == crowded
    assert max(counts) <= 50 < rows
    weighted = [part.parts * count for part, count in zip(parts, counts, strict=True)]
    mean, spread = fmean(weighted), stdev(weighted) / len(weighted) ** 0.5
    assert abs(mean - rows) < 3 * spread
