"""How large a shard's file would be after a rebuild, from a sample of its bodies' lengths."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Final

from schemaless.mysql import statements
from schemaless.mysql.page_model import Content, Layout, Packer, rebuilt_file_bytes
from schemaless.store.datastore import Datastore
from schemaless.store.sampling import Bounds, Estimate, Key, Measured, Sample, Window, sample

BOUNDS: Final = Bounds(windows=64, window_rows=24, sample_bytes=16 << 20, whole_rows=2_000)
"""Of one shard."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """What a shard's table would take, were it rebuilt now.

    Attributes:
        cells: how many it has.
        body_bytes: what their bodies take.
        file_bytes: how long its file would be.
    """

    cells: Estimate
    body_bytes: Estimate
    file_bytes: Estimate


def predict(store: Datastore, shard: int, layout: Layout, seed: int, *, bounds: Bounds = BOUNDS) -> Prediction:
    """Predict a shard's size after a rebuild. Reads a bounded number of rows, and of these lengths only.

    Raises:
        ServerError: its server cannot be reached.
    """

    def measure(window: Window) -> Measured:
        sql = statements.select_lengths(store.shards.database(shard), window.after, window.up_to)
        packer = Packer(layout)
        rows = body_bytes = 0
        for column_name, length in store.shards.rows(shard, sql):
            packer.add(column_name, length)
            rows += 1
            body_bytes += length
        return Measured({**content_values(packer.content(), "file"), ("bytes",): body_bytes}, rows, body_bytes)

    taken = sample(store.shards, [shard], measure, seed=seed, bounds=bounds)
    return Prediction(
        taken.total(("rows", "file")), taken.total(("bytes",)), rebuilt_files(taken, ("file",), layout, 1)
    )


def content_values(content: Content, *name: str) -> dict[Key, float]:
    """Return a content as values of a window, under keys that end with ``name``."""
    return {(part, *name): pages for part, pages in asdict(content).items()}


def rebuilt_files(taken: Sample, name: Key, layout: Layout, shards: int) -> Estimate:
    """Return the bytes of the files of so many rebuilt shards, all of the same size, from such values."""
    parts = {each.name: taken.total((each.name, *name)) for each in fields(Content)}
    low, mid, high = (
        Content(**{part: getattr(pages, bound) / shards for part, pages in parts.items()})
        for bound in ("low", "mid", "high")
    )
    return Estimate(*(shards * rebuilt_file_bytes(content, layout) for content in (low, mid, high)))
