"""All cells of a datastore: iterated over, and counted."""

from __future__ import annotations

import pytest

from schemaless import InvalidCell, NewCell, NewStoredCell
from schemaless.codec.envelope import tombstone
from schemaless.store.cells.counting import exact_count
from schemaless.store.internals import internals_of

pytestmark = [pytest.mark.mysql, pytest.mark.twice]


@pytest.fixture
def cells(fresh_store, new_row):
    """200 rows in four shards; version 2 of BASE is older than version 1, and one row's STATUS is erased."""
    rows = [new_row() for _ in range(200)]
    cells = [
        NewCell(row, column, ref_key, [column, ref_key])
        for column, ref_key in (("BASE", 2), ("BASE", 1), ("STATUS", 7))
        for row in rows
    ]
    for start in range(0, 600, 200):
        fresh_store.put_cells(cells[start : start + 200])
    fresh_store.put_stored_cells([NewStoredCell(rows[0], "STATUS", 8, tombstone(1))])
    return cells


def test_iter_cells_returns_every_cell_once_or_the_latest_ones(fresh_store, cells):
    """Erased cells are left out, and a row whose latest version is erased has no latest cell."""
    erased = (cells[0].row_key, "STATUS", 7)
    everything = {(cell.row_key, cell.column_name, cell.ref_key): cell.body for cell in cells}
    latest = {key: everything[key] for key in everything if key[1:] != ("BASE", 1) and key != erased}

    for column in (None, "BASE", "STATUS", "NONE"):
        for wanted, only_latest in ((everything, False), (latest, True)):
            found = [(cell.key, cell.body) for cell in fresh_store.iter_cells(column, latest=only_latest)]
            expected = {key: body for key, body in wanted.items() if column in (None, key[1])}
            assert dict(found) == expected
            assert len(found) == len(expected)
    with pytest.raises(InvalidCell, match="column_name"):
        fresh_store.iter_cells("no spaces")


def test_count_is_exact_or_an_estimate(fresh_store, cells, by_hand):
    """An exact count includes erased cells, and is the same for blocks of any size."""
    assert [fresh_store.count(column, exact=True) for column in (None, "BASE", "STATUS", "NONE")] == [601, 400, 201, 0]
    shards = internals_of(fresh_store).shards
    for size in (1, 7, 1_000):
        assert sum(exact_count(shards, shard, "BASE", block_cells=size) for shard in range(4)) == 400
    for shard in range(4):
        # InnoDB may have counted while the cells were written, and counts a table every ten seconds at most.
        by_hand(fresh_store).rows(shard, b"ANALYZE TABLE `%b`.cell" % shards.database(shard).encode())
    assert 300 < fresh_store.count() < 1_200
    assert 150 < fresh_store.count("BASE") < 1_000
    assert fresh_store.count("NONE") == 0
    with pytest.raises(InvalidCell, match="column_name"):
        fresh_store.count("no spaces")
