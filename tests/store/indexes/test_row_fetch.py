"""The row fetcher: latest cells of many rows, whatever the number of versions, read in key order."""

from __future__ import annotations

import random
from typing import Any

import pytest

import schemaless
from schemaless.store.indexes import sql
from schemaless.store.indexes.row_fetch import RowReader
from schemaless.store.internals import internals_of
from schemaless.wire.connection import Connection

pytestmark = pytest.mark.mysql

COLUMNS = ("BASE", "NOTES", "STATUS")


@pytest.fixture
def asked(monkeypatch) -> dict[str, int]:
    """Number of rows fetched by each statement: all versions, or separate searches for the latest."""
    counts = {"versions": 0, "latest": 0}
    made = {"versions": sql.select_versions_of_rows, "latest": sql.select_latest_of_rows}

    def noted(kind: str) -> Any:
        def select(database: str, rows: Any, *arguments: Any, **named: Any) -> bytes:
            counts[kind] += len(rows)
            return made[kind](database, rows, *arguments, **named)

        return select

    for kind in made:
        monkeypatch.setattr(sql, f"select_{kind}_of_rows", noted(kind))
    return counts


def new_cells(row: Any, column: str, versions: int) -> list[schemaless.NewCell]:
    return [schemaless.NewCell(row, column, ref, {"ref": ref, "of": column}) for ref in range(1, versions + 1)]


def read(
    store: schemaless.Datastore, rows: Any, columns: Any = COLUMNS, reader: RowReader | None = None
) -> dict[bytes, dict[str, int]]:
    """Return the ref_key of the latest cell of each column by row, after checking the documents."""
    found = {}
    read = (reader or internals_of(store).rows).read([row.bytes for row in rows], columns, lambda latest: latest)
    for row, cells, documents, damaged in read:
        assert list(cells) == [column for column in columns if column in cells]
        assert documents == {column: cell.body for column, cell in cells.items()}
        assert not damaged
        assert all(cell.body == {"ref": cell.ref_key, "of": column} for column, cell in cells.items())
        found[row.bytes] = {column: cell.ref_key for column, cell in cells.items()}
    return found


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in (1, 2))])
def test_the_latest_of_each_column_comes_however_many_versions_there_are(fresh_store, new_row, seed):
    """Random rows with 0 to 40 versions, in random order and combination; other columns are not returned."""
    chance = random.Random(seed)
    rows = [new_row() for _ in range(60)]
    latest = {
        row: {column: chance.choice([0, 0, 1, 1, 2, 3, 8, 9, 10, 40]) for column in (*COLUMNS, "OTHER")} for row in rows
    }
    fresh_store.put_cells(
        [cell for row in rows for column, count in latest[row].items() for cell in new_cells(row, column, count)]
    )
    for _ in range(60):
        some = chance.sample(rows, chance.randint(1, 60))
        columns = chance.sample(COLUMNS, chance.randint(1, 3))
        expected = {
            row.bytes: {column: latest[row][column] for column in columns if latest[row][column]} for row in some
        }
        assert read(fresh_store, some, columns) == expected


def test_a_row_with_too_many_versions_is_read_again_whole(fresh_store, new_row, asked):
    """The other rows of its shard are read again with it, so that no column is outdated; other shards are not."""
    rows = [next(row for row in iter(new_row, None) if fresh_store.shard_of(row) == shard) for shard in (0, 0, 0, 1, 1)]
    fresh_store.put_cells([cell for row in rows for column in COLUMNS for cell in new_cells(row, column, 1)])
    fresh_store.put_cells(new_cells(rows[2], "STATUS", 40))
    expected = {row.bytes: dict.fromkeys(COLUMNS, 1) for row in rows}
    expected[rows[2].bytes]["STATUS"] = 40

    assert read(fresh_store, rows) == expected
    assert asked == {"versions": 5, "latest": 3}


def test_rows_with_many_versions_are_read_by_separate_searches(fresh_store, new_row, asked):
    """For a number of reads of these columns; then the range scan is tried again."""
    internals = internals_of(fresh_store)
    reader = RowReader(internals.shards, internals.reader, internals.reader, exact_reads=3)
    row = new_row()
    fresh_store.put_cells([*new_cells(row, "STATUS", 30), *new_cells(row, "BASE", 1)])
    for _ in range(6):
        assert read(fresh_store, [row], reader=reader) == {row.bytes: {"STATUS": 30, "BASE": 1}}
        assert read(fresh_store, [row], ["BASE"], reader) == {row.bytes: {"BASE": 1}}

    # The first and the fifth read use both statements, the others one; BASE alone has few versions.
    assert asked == {"versions": 2 + 6, "latest": 6}


def test_versions_are_read_in_the_order_of_the_key_and_no_further_than_asked(fresh_store, new_row, by_hand):
    """EXPLAIN shows no sort, and the server's counters show that only the rows sent were read."""
    row = next(row for row in iter(new_row, None) if fresh_store.shard_of(row) == 0)
    other = next(row for row in iter(new_row, None) if fresh_store.shard_of(row) == 0)
    fresh_store.put_cells([*new_cells(row, "STATUS", 2_000), *new_cells(other, "BASE", 1)])
    statement = sql.select_versions_of_rows(
        internals_of(fresh_store).shards.database(0), [row.bytes, other.bytes], COLUMNS, 9
    )

    def look(connection: Connection) -> tuple[Any, int, int]:
        plan = connection.rows(b"EXPLAIN FORMAT=TRADITIONAL " + statement.strip(b"()"))
        connection.execute(b"FLUSH STATUS")
        count = len(connection.rows(statement))
        return plan, count, sum(int(value) for _, value in connection.rows(b"SHOW STATUS LIKE 'Handler_read%'"))

    ((*plan,),), count, read_rows = by_hand(fresh_store).run(0, look)
    said = " ".join(map(str, plan))

    assert "cell_key" in plan
    assert "filesort" not in said
    assert "temporary" not in said
    assert count == 18
    assert read_rows < 40
