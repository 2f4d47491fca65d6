"""Pages of cells: complete, in order, and bounded in size whatever the bodies."""

from __future__ import annotations

import uuid
from dataclasses import dataclass

import pytest

import schemaless
from schemaless.store.cells.paging import PageSize, Scan
from schemaless.store.internals import internals_of
from schemaless.wire.connection import Connection

pytestmark = pytest.mark.mysql

SMALL = b'"small"'
SIZES = [*[7] * 150, 3 << 20, *[7] * 40, 9 << 20, 9 << 20, 300_000, *[7] * 90, 15 << 20]
MOST_BYTES = 16 << 20


@pytest.fixture(scope="module")
def uneven(server_urls, prefix):
    """A datastore of one shard whose adjacent bodies differ in size by a factor of a million."""
    with schemaless.connect(schemaless.create(f"{prefix}uneven", 1, server_urls[:1])) as store:
        cells = [
            schemaless.NewStoredCell(uuid.UUID(int=n), f"C{n % 2}", 1, b'"%b"' % (b"x" * (size - 2)))
            for n, size in enumerate(SIZES)
        ]
        # One by one, to fix the order of the added_ids.
        puts = [store.put_stored_cells([cell], trusted=True)[0] for cell in cells]
        yield store, [put.added_id for put in puts]


class Reader:
    """Reads from shard 0 and records the size of each reply."""

    def __init__(self, store):
        self.store = store
        self.body_bytes = []

    def __call__(self, operation):
        return internals_of(self.store).shards.run(0, lambda connection: operation(Counted(connection, self)))


@dataclass
class Counted:
    """A connection, as far as a page needs it, that records the sizes of the bodies."""

    connection: Connection
    reader: Reader

    def rows(self, sql, check=None):
        rows = self.connection.rows(sql, check)
        self.reader.body_bytes.append(sum(len(row[4] or b"") for row in rows if len(row) == 6))
        return rows


@pytest.mark.parametrize("column_name", [None, "C0", "C1"])
def test_pages_have_every_cell_once_and_are_never_too_long(uneven, column_name):
    """With bodies of 7 bytes and 15 MiB side by side, no reply is larger than the maximum body."""
    store, added_ids = uneven
    read, size, after, more = Reader(store), PageSize(), 0, True
    seen = []
    while more:
        rows, more = Scan(read, internals_of(store).shards.database(0), size, column_name=column_name).page(after, None)
        seen += [(row[0], len(row[4])) for row in rows]
        after = rows[-1][0]

    expected = list(zip(added_ids, SIZES, strict=True))
    assert seen == (expected if column_name is None else expected[int(column_name[1]) :: 2])
    assert max(read.body_bytes) <= MOST_BYTES


def test_scan_and_feed_over_uneven_neighbours_miss_nothing(uneven):
    """Every call that uses pages returns every cell in order."""
    store, added_ids = uneven

    assert [cell.added_id for cell in store.scan_shard(0)] == added_ids
    assert [cell.added_id for cell in store.scan_shard(0, after=added_ids[9], up_to=added_ids[-2])] == added_ids[10:-1]
    assert [cell.added_id for cell in store.iter_shard(0)] == added_ids
    assert [cell.added_id for cell in store.iter_shard(0, column_name="C1")] == added_ids[1::2]


def test_pages_of_small_cells_take_one_statement_each(fresh_store):
    """Sizes are only queried after a body was too long; small cells are read a thousand at a time."""
    rows = (uuid.uuid5(uuid.NAMESPACE_OID, f"many {n}") for n in range(5_000))
    cells = [schemaless.NewStoredCell(row, "BASE", 1, SMALL) for row in rows if fresh_store.shard_of(row) == 0]
    fresh_store.put_stored_cells(cells, trusted=True)
    read, size, after, more = Reader(fresh_store), PageSize(), 0, True
    counts = []
    while more:
        rows, more = Scan(read, internals_of(fresh_store).shards.database(0), size).page(after, None)
        counts.append(len(rows))
        after = rows[-1][0]

    assert counts == [64, 1_000, len(cells) - 1_064]
    assert len(read.body_bytes) == 3
    assert 1_064 < len(cells) < 2_064


def test_no_page_of_an_empty_shard(fresh_store):
    """An empty shard yields no rows and no promise of more."""
    read = Reader(fresh_store)

    assert Scan(read, internals_of(fresh_store).shards.database(1), PageSize()).page(0, None) == ((), False)
