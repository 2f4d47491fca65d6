"""Erasing a version that others are deltas against: they are made whole first, in the same transaction."""

from __future__ import annotations

import logging

import pytest

from schemaless import NewCell
from schemaless.codec.envelope import describe_body
from schemaless.ops.erasure.job import finish_erasure
from schemaless.store.erasures import eraser
from schemaless.store.erasures.ledger import target
from schemaless.store.internals import internals_of
from tests.store.cells.test_bases import COUNT, Versions, delta, document

pytestmark = [pytest.mark.mysql]


@pytest.fixture
def versions(erase_store, fresh_store, by_hand, new_row):
    return Versions(fresh_store, by_hand(fresh_store), new_row())


def read(store, versions):
    return {cell.ref_key: cell.body for cell in store.get_versions(versions.row, "BASE")}


def formats(store, versions):
    cells = (cell for cell in store.scan_shard(versions.shard) if cell.row_key == versions.row)
    return {cell.ref_key: describe_body(cell.body).name for cell in cells}


@pytest.mark.guarantee("history-erasure")
@pytest.mark.parametrize("erased", [[5], [35], [1], [COUNT], [10, 9], [9, 10], [20, 21, 22, 40]])
def test_all_other_versions_stay_readable(versions, erase_store, erased):
    """Whichever versions are erased, in whichever order."""
    for ref_key in erased:
        erase_store.erase(versions.row, "BASE", ref_key, reason="test")

    left = {number: document(number) for number in range(1, COUNT + 1) if number not in erased}
    assert read(erase_store, versions) == left
    stored = formats(erase_store, versions)
    for number in left:
        whole = number % 35 == 0 or number == COUNT or number + 1 in erased
        assert stored[number] == ("msgpack+zlib" if whole else "msgpack+delta")


@pytest.mark.twice
def test_versions_with_the_same_base_are_all_made_whole(versions, erase_store):
    """A version may have been written between another one and its base."""
    for ref_key in (3, 4, 5):
        versions.write(ref_key, delta(ref_key, 6))
    erase_store.erase(versions.row, "BASE", 6, reason="test")

    assert read(erase_store, versions) == {number: document(number) for number in range(1, COUNT + 1) if number != 6}
    assert [formats(erase_store, versions)[number] for number in (2, 3, 4, 5)] == [
        "msgpack+delta",
        *["msgpack+zlib"] * 3,
    ]


def test_erasing_everything_re_encodes_nothing(versions, erase_store, monkeypatch):
    """Versions are erased from the oldest to the newest, so that no delta loses its base first."""
    made = []
    real = eraser.whole_bodies
    monkeypatch.setattr(eraser, "whole_bodies", lambda *args: made.append(real(*args)) or made[-1])
    monkeypatch.setattr(eraser, "MAX_CELLS", 20)
    entry = erase_store.erase(versions.row, "BASE", reason="test")

    assert internals_of(erase_store).erasures.ledger.entry(entry.number).cells == COUNT
    assert read(erase_store, versions) == {}
    assert set(map(len, made)) == {0}


@pytest.mark.guarantee("history-erasure")
@pytest.mark.parametrize("way", ["row", "list", "ids"])
def test_a_version_that_is_put_below_the_erased_ones_keeps_its_document(
    erase_store, fresh_store, by_hand, new_row, way
):
    """Parts of a long row skip what was erased before, unless there are new versions."""
    row, shards = new_row(), by_hand(fresh_store)
    puts = fresh_store.put_cells([NewCell(row, "BASE", n, document(n)) for n in range(10, 500)])
    part = internals_of(erase_store).erasures.eraser(
        fresh_store.shard_of(row), internals_of(erase_store).erasures.ledger.intend("test", [target(row)])
    )
    part.max_cells = 100
    if way == "ids":
        batches = part.erase_ids([put.added_id for put in puts])
    else:
        batches = part.erase_targets([target(row)] if way == "row" else [target(*put.key) for put in puts])
    next(batches)
    next(batches)
    fresh_store.put_cell(row, "BASE", 5, document(5))
    body = delta(5, 220).hex()
    database = shards.database(fresh_store.shard_of(row))
    where = f"row_key=x'{row.hex}' AND ref_key=5"
    shards.execute(fresh_store.shard_of(row), f"UPDATE `{database}`.cell SET body=x'{body}' WHERE {where}".encode())
    assert len(next(batches).ids) == 100
    assert fresh_store.get_cell(row, "BASE", 5).body == document(5)
    also = way == "row"
    assert sum(len(batch.ids) for batch in batches) == len(puts) + also - 300
    assert [cell.ref_key for cell in fresh_store.get_versions(row, "BASE")] == [5][also:]


def test_a_delta_that_does_not_decode_does_not_block_an_erasure(versions, erase_store, caplog):
    """It could not be read before, either; the erasure goes on, and says so."""
    versions.write(3, delta(3)[:-4] + b"else")
    with caplog.at_level(logging.WARNING, "schemaless"):
        erase_store.erase(versions.row, "BASE", 4, reason="test")

    assert "stays a delta" in caplog.text
    assert erase_store.get_cell(versions.row, "BASE", 4) is None
    assert erase_store.get_cell(versions.row, "BASE", 5).body == document(5)


@pytest.mark.twice
@pytest.mark.guarantee("history-erasure")
def test_copies_of_a_rebuild_or_move_follow(versions, erase_store, caplog):
    """Dependents in the copy get the bodies of the serving table, except those that cannot be read there."""
    database = versions.shards.database(versions.shard).encode()
    versions.write(3, delta(3)[:-4] + b"else")
    for statement in (
        b"CREATE TABLE `%b`.cell_moved_0123abcd LIKE `%b`.cell",
        b"INSERT INTO `%b`.cell_moved_0123abcd SELECT * FROM `%b`.cell",
    ):
        versions.shards.execute(versions.shard, statement % (database, database))
    numbers = [erase_store.erase(versions.row, "BASE", n, reason="test").number for n in (4, 20)]
    for number in numbers:
        finish_erasure(erase_store, number)

    select = b"SELECT ref_key, body FROM `%b`.%b WHERE column_name='BASE' ORDER BY ref_key"
    names = b"cell_moved_0123abcd", b"cell"
    copied, stored = (versions.shards.rows(versions.shard, select % (database, name)) for name in names)
    versions.shards.execute(versions.shard, b"DROP TABLE `%b`.cell_moved_0123abcd" % database)
    assert copied == stored
    assert describe_body(dict(copied)[19]).name == "msgpack+zlib"
