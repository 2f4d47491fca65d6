"""Codec trials on sampled cells: if all cells are read, the figures equal those of bodies that a writer would store."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable

import pytest

from schemaless import Datastore, NewCell
from schemaless.codec.envelope import encode_body
from schemaless.codec.registry import DEFAULT, codec_named
from schemaless.planning.sampling.column_trials import MIN_CELLS, sample_cells, try_codec
from schemaless.planning.sampling.page_model import PAGE_BYTES
from schemaless.planning.sampling.sampling import Bounds


@pytest.fixture
def documents(fresh_store: Datastore, new_row: Callable[[], uuid.UUID]) -> dict[str, list[dict[str, object]]]:
    drawn = random.Random(6)
    documents: dict[str, list[dict[str, object]]] = {"LONG": [], "SHORT": []}
    cells = []
    for _ in range(120):
        for column, count in (("LONG", 80), ("SHORT", 3)):
            document = {"legs": [{"miles": drawn.randrange(9_999), "to": "IAH"} for _ in range(count)]}
            documents[column].append(document)
            cells.append(NewCell(new_row(), column, 1, document))
    fresh_store.put_cells(cells, codec="json+none")
    return documents


@pytest.mark.parametrize("name", ["msgpack+zstd", "msgpack+zlib", "json+zlib"])
def test_trial_of_all_cells_is_exact(
    fresh_store: Datastore, documents: dict[str, list[dict[str, object]]], name: str
) -> None:
    """A small datastore is read completely, and the figures are sums."""
    cells = sample_cells(fresh_store, seed=1)
    assert cells.column_names() == ["LONG", "SHORT"]
    for column, of_column in documents.items():
        found = try_codec(cells, column, codec_named(name))
        new_bytes = sum(len(encode_body(document, codec_named(name))) for document in of_column)
        now_bytes = sum(len(encode_body(document, codec_named("json+none"))) for document in of_column)
        bodies, pages = cells.size(column)
        assert cells.taken.exact
        assert found.sampled == 120
        assert bodies.mid == pytest.approx(now_bytes)
        assert bodies.mid < pages.mid
        assert found.share.mid == pytest.approx(new_bytes / now_bytes)
        assert found.migrated_share == found.share
        assert sum(map(sum, found.migrated_bytes)) == new_bytes
        assert new_bytes / pages.mid < found.pages_share.mid < 1
        assert not found.left


def test_some_columns_and_a_part_of_the_cells(
    fresh_store: Datastore, documents: dict[str, list[dict[str, object]]]
) -> None:
    """Other columns are ignored, and estimates have intervals."""
    few = Bounds(windows=16, window_rows=4, sample_bytes=1 << 20, whole_rows=0)
    cells = sample_cells(fresh_store, columns=["LONG"], shards=[0, 1, 2, 3], seed=3, bounds=few)
    assert cells.column_names() == ["LONG"]
    found = try_codec(cells, "LONG", DEFAULT)
    assert 16 < found.sampled < 120
    new_bytes = sum(len(encode_body(document)) for document in documents["LONG"])
    bodies, pages = cells.size("LONG")
    assert found.share.low < found.share.mid < found.share.high
    assert bodies.mid * found.share.mid == pytest.approx(new_bytes, rel=0.5)
    assert pages.mid >= PAGE_BYTES


def test_too_few_cells_of_a_column_carry_no_figure(
    fresh_store: Datastore, documents: dict[str, list[dict[str, object]]], new_row: Callable[[], uuid.UUID]
) -> None:
    """Three cells among hundreds are not a sample: figures from them would differ between reports."""
    fresh_store.put_cells([NewCell(new_row(), "RARE", 1, {"n": number}) for number in range(3)])
    some = Bounds(windows=24, window_rows=8, sample_bytes=4 << 20, whole_rows=0)
    cells = sample_cells(fresh_store, seed=3, bounds=some)

    assert not cells.carries("RARE")
    assert len(cells.of_column("LONG")) >= MIN_CELLS
    assert try_codec(cells, "LONG", DEFAULT).carried
    assert sample_cells(fresh_store, seed=3).carries("RARE")  # all cells were read, so the figures are exact
