"""Predicts the file size of rebuilt shards from samples of body lengths."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from statistics import NormalDist, fmean, pstdev
from typing import Final

from schemaless.base.numbers import Interval
from schemaless.codec.registry import Codec
from schemaless.codec.trial import try_codec
from schemaless.planning.sampling.block_trial import MODEL_ERROR
from schemaless.planning.sampling.page_model import Content, Layout, Packer, rebuilt_file_bytes
from schemaless.planning.sampling.sampling import Bounds, Key, Sample, Window, WindowFigures, sample, window_rows
from schemaless.planning.sampling.sql import select_lengths
from schemaless.store.cells.paging import PageSize
from schemaless.store.datastore import Datastore
from schemaless.store.internals import internals_of
from schemaless.topology.shards import ReadFrom

BOUNDS: Final = Bounds(windows=64, window_rows=24, sample_bytes=16 << 20, whole_rows=2_000)
"""Bounds of the sample of one shard."""


_POINTS: Final = tuple(NormalDist().inv_cdf((number + 0.5) / 9) for number in range(9))
_95: Final = 1.96
PAGE_MODEL_ERROR: Final = 0.02
"""Standard error of the page model, relative to the number of pages."""

_MODEL_PAGES: Final = 0.25
"""Standard error of the page model per file, in pages."""


@dataclass(frozen=True, slots=True)
class PredictedSize:
    """Predicted size of a shard's table after a rebuild.

    Attributes:
        cells: number of cells.
        body_bytes: size of their bodies.
        file_bytes: size of the file.
    """

    cells: Interval
    body_bytes: Interval
    file_bytes: Interval


def predict(
    store: Datastore,
    shard: int,
    layout: Layout,
    seed: int,
    *,
    codec: Codec | None = None,
    read_from: ReadFrom = "primary",
    bounds: Bounds = BOUNDS,
) -> PredictedSize:
    """Predict a shard's size after a rebuild from the body lengths of a bounded number of rows.

    Args:
        store: the datastore.
        shard: number of the shard.
        layout: page layout of its server.
        seed: seed of the sample.
        codec: codec that its cells are migrated to before the rebuild; bodies are then read, and re-encoded here.
        read_from: server role to read from.
        bounds: bounds of the sample.

    Raises:
        ServerError: its server cannot be reached.
    """
    rows_of: dict[int, list[tuple[str, int]]] = {}

    def look(window: Window) -> WindowFigures:
        packer = Packer(layout)
        lengths = rows_of[window.after] = list(_lengths(store, window, codec, read_from))
        for column_name, length in lengths:
            packer.add(column_name, length)
        body_bytes = sum(length for _, length in lengths)
        return WindowFigures(
            {**content_values(packer.content(), "file"), ("bytes",): body_bytes}, len(lengths), body_bytes
        )

    taken = sample(internals_of(store).shards, [shard], look, seed=seed, bounds=bounds, read_from=read_from)
    if taken.exact:
        # Pack all rows in order, without starting a new page for each window.
        packer = Packer(layout)
        for after in sorted(rows_of):
            for column_name, length in rows_of[after]:
                packer.add(column_name, length)
        files = _modelled_file(packer.content(), layout)
    else:
        files = rebuilt_files(taken, ("file",), layout, 1)
    return PredictedSize(taken.total(("rows", "file")), taken.total(("bytes",)), files)


def _lengths(store: Datastore, window: Window, codec: Codec | None, read_from: ReadFrom) -> Iterable[tuple[str, int]]:
    """Return each row's column and body length; with a codec, the length after a migration."""
    internals = internals_of(store)
    if codec is None:
        sql = select_lengths(internals.shards.database(window.shard), window.after, window.up_to)
        return [
            (str(column), int(length))
            for column, length in internals.shards.rows(window.shard, sql, read_from=read_from)
        ]
    rows = list(window_rows(internals.shards, window, PageSize(), read_from=read_from))
    tried = try_codec((row[4] for row in rows), codec, dictionaries=internals.dictionaries)
    return zip((row[2] for row in rows), tried.migrated_bytes, strict=True)


def content_values(content: Content, *name: str) -> dict[Key, float]:
    """Return the fields of a ``Content`` as values of a window, under keys that end with ``name``."""
    return {(part, *name): pages for part, pages in asdict(content).items()}


def rebuilt_files(taken: Sample, name: Key, layout: Layout, shards: int) -> Interval:
    """Estimate the total file size of rebuilt shards from values of ``content_values``, in bytes.

    If all rows were read, the file of each shard is computed separately.
    """
    if taken.exact:
        by_shard: defaultdict[int, list[float]] = defaultdict(lambda: [0.0] * len(fields(Content)))
        for window, figures in zip(taken.windows, taken.figures, strict=True):
            for place, part in enumerate(fields(Content)):
                by_shard[window.shard][place] += figures.values.get((part.name, *name), 0.0)
        # If there are several kinds of servers, a shard has only the values of its kind.
        known = [Content(*parts) for parts in by_shard.values() if any(parts)]
        known += [Content()] * max(0, shards - len(known))
        return Interval.of(float(sum(rebuilt_file_bytes(content, layout) for content in known)))
    parts = {field.name: taken.total((field.name, *name)) for field in fields(Content)}
    low, mid, high = (
        Content(**{part: getattr(pages, bound) / shards for part, pages in parts.items()})
        for bound in ("low", "mid", "high")
    )
    own = _spread_between_shards(taken, name, mid.rows) if shards > 1 else 0.0
    common = (high.row_pages - low.row_pages) / (2 * _95 * mid.row_pages) if mid.row_pages else 0.0
    middle = shards * expected_file_bytes(mid, layout, math.hypot(common, own))[0]
    ends = [shards * expected_file_bytes(content, layout, own)[0] for content in (low, high)]
    return Interval(min(ends[0], middle), middle, max(ends[1], middle))


def expected_file_bytes(content: Content, layout: Layout, error: float) -> tuple[float, float]:
    """Return the mean and standard deviation of a file's size, in bytes, if its content is known only approximately.

    A file grows in steps, which are large for small files: on MySQL, a table of 31 pages has a file of about 36 pages,
    and a table of 33 pages has one of 448. The mean is therefore taken over the likely contents; near a step, it lies
    between the sizes before and after the step. All predictions of rebuilt files use this function.

    Args:
        content: most likely content.
        error: relative standard error of the content.
    """
    if not error:
        return float(rebuilt_file_bytes(content, layout)), 0.0
    sizes = [rebuilt_file_bytes(content.times(max(0.0, 1 + point * error)), layout) for point in _POINTS]
    return fmean(sizes), pstdev(sizes)


def _modelled_file(content: Content, layout: Layout) -> Interval:
    """Return the file size for completely known rows, with an interval from the page model's error."""
    error = model_error(content, layout)
    ends = (rebuilt_file_bytes(content.times(1 + sign * _95 * error), layout) for sign in (-1, 0, 1))
    return Interval(*(float(end) for end in ends))


def model_error(content: Content, layout: Layout) -> float:
    """Return the relative standard error of the page model or, on MyRocks, of compressed blocks."""
    if layout.row_share is not None:
        return MODEL_ERROR
    return math.hypot(PAGE_MODEL_ERROR, _MODEL_PAGES / max(1.0, content.row_pages))


def _spread_between_shards(taken: Sample, name: Key, rows: float) -> float:
    """Return the relative standard deviation of the number of pages among shards with this many random rows."""
    known = [
        (figures.values.get(("rows", *name), 0.0), _pages_of(figures, name))
        for figures in taken.figures
        if figures.rows
    ]
    total_rows, total_pages = (sum(pair[place] for pair in known) for place in (0, 1))
    if not total_rows or not total_pages or not rows:
        return 0.0
    mean = total_pages / total_rows
    # Variance per row: that of the windows, each divided by its number of rows.
    variance = fmean([(pages - mean * count) ** 2 / count for count, pages in known if count])
    return math.hypot(math.sqrt(variance) / mean, 1.0) / math.sqrt(rows)


def _pages_of(figures: WindowFigures, name: Key) -> float:
    return figures.values.get(("leaf_pages", *name), 0.0) + figures.values.get(("overflow_pages", *name), 0.0)
