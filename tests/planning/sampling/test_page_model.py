"""The page model predicts the file size of a rebuilt table from stored lengths."""

from __future__ import annotations

import random

import pytest

import schemaless
from schemaless import NewStoredCell
from schemaless.ops.migrate import rebuild
from schemaless.planning.sampling.page_model import MARIADB, MYSQL, MYSQL_COPIED, Content, Packer, rebuilt_file_bytes
from schemaless.planning.sampling.table_sizes import cell_table_sizes, known_table_sizes, layout_of
from schemaless.store.internals import internals_of

MIB = 1 << 20


def content_of(lengths, layout=MYSQL) -> Content:
    packer = Packer(layout)
    for length in lengths:
        packer.add("BASE", length)
    return packer.content()


def test_the_longest_body_in_a_page_and_the_shortest_outside():
    """Records just below half a page fill a page in pairs; longer ones move to overflow pages."""
    inside = content_of([8_060] * 100)
    outside = content_of([8_061] * 100)

    assert (inside.leaf_pages, inside.overflow_pages) == (50, 0)
    assert outside.overflow_pages == 100
    assert outside.leaf_pages < 1


@pytest.mark.parametrize(("layout", "lengths"), [(MYSQL, (15_680, 32_007)), (MARIADB, (16_330, 32_660))])
def test_capacity_of_overflow_pages(layout, lengths):
    """One byte more than a page holds needs another page; on MySQL, the first one has a longer header."""
    assert [content_of([length], layout).overflow_pages for length in lengths] == [1, 2]
    assert [content_of([length + 1], layout).overflow_pages for length in lengths] == [2, 3]


def test_content_adds_up_and_scales():
    """Half the rows fill half the pages, which samples rely on."""
    whole = content_of([300, 2_600, 40_000] * 400)
    half = content_of([300, 2_600, 40_000] * 200).times(2)

    assert half.leaf_pages == pytest.approx(whole.leaf_pages, rel=0.02)
    assert half.overflow_pages == whole.overflow_pages
    assert half.rows == whole.rows == 1_200


def test_files_grow_by_pages_then_by_extents_then_by_four_of_them():
    """An empty file has 128 KiB, a small one whole MiB, a large one multiples of 4 MiB."""
    small, large = (rebuilt_file_bytes(content_of([2_600] * rows), MARIADB) for rows in (3_000, 60_000))

    assert small < 32 * MIB < large
    assert (small % MIB, large % (4 * MIB)) == (0, 0)
    assert rebuilt_file_bytes(content_of([]), MYSQL) == 128 << 10


@pytest.mark.parametrize(
    ("layout", "length", "rows", "file_bytes"),
    [
        (MYSQL, 2_560, 15_624, 67_108_864),
        (MYSQL_COPIED, 2_560, 15_624, 62_914_560),
        (MARIADB, 2_560, 15_624, 58_720_256),
        (MYSQL, 7_780, 25_708, 251_658_240),
        (MYSQL_COPIED, 7_780, 25_708, 222_298_112),
        (MARIADB, 7_780, 25_708, 218_103_808),
        (MYSQL, 39_400, 5_078, 260_046_848),
        (MYSQL_COPIED, 39_400, 5_078, 260_046_848),
        (MYSQL_COPIED, 300, 50, 163_840),
        (MYSQL_COPIED, 300, 200, 229_376),
        (MYSQL_COPIED, 3_000, 50, 344_064),
        (MARIADB, 39_400, 5_078, 251_658_240),
    ],
)
def test_tables_have_their_measured_sizes(layout, length, rows, file_bytes):
    """Measured once by hand; tables with 40 and 200 MB of bodies show the reserve of segments."""
    assert rebuilt_file_bytes(content_of([length] * rows, layout), layout) == file_bytes


@pytest.mark.mysql
@pytest.mark.twice
@pytest.mark.parametrize(
    "lengths",
    [
        *(pytest.param(lengths, marks=pytest.mark.long) for lengths in ((300,), (7_900,), (8_200,), (16_000,))),
        (300, 2_600, 7_900, 8_200, 12_000, 40_000),
    ],
    ids=str,
)
def test_a_rebuilt_table_is_as_large_as_predicted(fresh_store, move_url, new_row, by_hand, lengths):
    """Within ten percent, for bodies inside and outside of leaf pages, on both servers."""
    drawn = random.Random(1)
    left = 2 * MIB
    cells = []
    while left > 0:
        length = int(drawn.choice(lengths) * drawn.uniform(0.97, 1))
        left -= length
        row = new_row()
        while fresh_store.shard_of(row):
            row = new_row()
        cells.append(NewStoredCell(row, "BASE", 1, b"1" * length))
    fresh_store.put_stored_cells(cells, trusted=True)
    shards = by_hand(fresh_store)
    pool = shards.pool_for(internals_of(fresh_store).topology.clusters[0].primary)
    database = internals_of(fresh_store).shards.database(0)
    layout = layout_of(pool)
    assert layout is not None
    predicted = rebuilt_file_bytes(content_of([len(cell.body) for cell in cells], layout), layout)
    with schemaless.connect(move_url) as store:
        rebuild.run(store, shards=[0])
    actual = cell_table_sizes(pool, [database])[database].file_bytes

    assert predicted == pytest.approx(actual, rel=0.1)


@pytest.mark.mysql
@pytest.mark.twice
def test_an_account_without_process_gets_sizes_from_statistics(fresh_store, by_hand, row):
    """They are marked as not measured, and tables that do not exist are absent."""
    fresh_store.put_cell(row, "A", 1, {})
    names = [internals_of(fresh_store).shards.database(shard) for shard in range(4)]
    node = internals_of(fresh_store).topology.cluster_of(0).primary
    here = [
        name for shard, name in enumerate(names) if internals_of(fresh_store).topology.cluster_of(shard).primary == node
    ]
    estimated = known_table_sizes(internals_of(fresh_store).shards.pool_for(node), [*here, "nothing_0001"])
    measured = known_table_sizes(by_hand(fresh_store).pool_for(node), here)

    assert set(estimated) == set(measured) == set(here)
    assert not any(size.measured for size in estimated.values())
    assert all(size.measured for size in measured.values())
    assert all(size.file_bytes > 0 for size in estimated.values())
