"""Reads by key, latest version, row and range of versions, with every codec."""

from __future__ import annotations

import copy
import functools
import pickle
import uuid
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from schemaless import CorruptBody, InvalidCell, InvalidInput, NewCell, NewStoredCell, StoredCell, UnknownCodec, connect
from schemaless.codec.envelope import Limits, encode_body
from schemaless.codec.registry import codec_named, codec_names
from schemaless.store.internals import internals_of
from schemaless.wire.connection import Connection, Rows

pytestmark = [pytest.mark.mysql, pytest.mark.twice]


@pytest.mark.guarantee("reading-latest")
def test_get_absent_cell_is_none(store, row):
    """Conformance 1: absence is not an error in any read."""
    store.put_cell(row, "BASE", 1, {})

    assert store.get_cell(row, "BASE", 2) is None
    assert store.get_cell_latest(row, "OTHER") is None
    assert store.get_cell_latest(uuid.UUID(int=7), "BASE") is None
    assert store.get_cells_latest([(row, "OTHER")]) == {}
    assert store.get_cells_latest([]) == {}
    assert store.get_row(uuid.UUID(int=7)) == {}
    assert list(store.get_versions(row, "OTHER")) == []


@pytest.mark.guarantee("reading-latest")
def test_get_latest_is_the_highest_ref_key_not_the_last_written(store, row):
    """Conformance 2: the order of insertion does not matter."""
    for ref_key in (5, 9, 1):
        store.put_cell(row, "BASE", ref_key, ref_key)

    assert store.get_cell_latest(row, "BASE").ref_key == 9
    assert store.get_cells_latest([(row, "BASE")])[row, "BASE"].ref_key == 9
    assert store.get_row(row)["BASE"].ref_key == 9


@pytest.mark.guarantee("reading-latest")
def test_get_cell_gives_an_exact_old_version(store, row):
    """Conformance 3: old versions do not change."""
    for ref_key in range(5):
        store.put_cell(row, "BASE", ref_key, {"version": ref_key})

    assert store.get_cell(row, "BASE", 2).body == {"version": 2}


@pytest.mark.guarantee("reading-latest")
def test_columns_are_independent_and_case_counts(store, row):
    """Conformance 4: BASE, base and BASE2 are different columns."""
    for column in ("BASE", "base", "BASE2"):
        store.put_cell(row, column, 1, column)

    assert {name: cell.body for name, cell in store.get_row(row).items()} == {
        "BASE": "BASE",
        "BASE2": "BASE2",
        "base": "base",
    }
    assert store.column_names(row) == ["BASE", "BASE2", "base"]


def test_get_cell_carries_its_key_id_and_time(store, row):
    """row_key is returned as a UUID even if bytes were given; created_at is the server's time, aware, in UTC."""
    put = store.put_cell(row.bytes, "BASE", 1, {})
    cell = store.get_cell(row.bytes, "BASE", 1)

    assert cell.key == put.key == (row, "BASE", 1)
    assert isinstance(cell.row_key, uuid.UUID)
    assert cell.added_id == put.added_id
    assert cell.created_at.tzinfo is UTC
    assert abs(cell.created_at - datetime.now(UTC)) < timedelta(minutes=5)


@pytest.mark.guarantee("reading-latest")
@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({}, [*range(249, -1, -1)]),
        ({"descending": False}, [*range(250)]),
        ({"limit": 3}, [249, 248, 247]),
        ({"limit": 0}, []),
        ({"limit": 100}, [*range(249, 149, -1)]),
        ({"limit": 101, "descending": False}, [*range(101)]),
        ({"after": 3, "before": 7}, [6, 5, 4]),
        ({"after": 3, "before": 7, "descending": False, "limit": 2}, [4, 5]),
        ({"after": 249}, []),
        ({"before": 0}, []),
        ({"after": 0, "before": 1}, []),
    ],
)
def test_get_versions_ranges_directions_and_limits(shared_store, arguments, expected):
    """Conformance 13: exclusive bounds, both directions, with limits, over several pages."""
    row = uuid.uuid5(uuid.NAMESPACE_OID, "versions")
    shared_store.put_cells([NewCell(row, "V", number, number) for number in range(250)], look_first=True)

    assert [cell.ref_key for cell in shared_store.get_versions(row, "V", **arguments)] == expected


@pytest.mark.guarantee("reading-at")
def test_reads_at_a_time_ignore_what_was_stored_later(store, row):
    """By created_at alone, to the microsecond: of a server's clock, and of an import."""
    store.put_cell(row, "BASE", 2, "second")
    stored_at = store.get_cell(row, "BASE", 2).created_at
    store.put_cells([NewCell(row, "BASE", 1, "imported late", stored_at - timedelta(days=9))])
    store.put_cells([NewCell(row, "BASE", 3, "of tomorrow", stored_at + timedelta(days=1))])

    def body(at: datetime) -> object:
        read = store.get_cell_latest(row, "BASE", at=at)
        assert store.get_cells_latest([(row, "BASE")], at=at) == ({} if read is None else {(row, "BASE"): read})
        assert store.get_row(row, at=at) == ({} if read is None else {"BASE": read})
        assert store.get_rows([row], columns=["BASE"], at=at, read_from="replica") == (
            {} if read is None else {row: {"BASE": read}}
        )
        return None if read is None else read.body

    assert body(stored_at) == "second"
    assert body(stored_at - timedelta(microseconds=1)) == "imported late"
    assert body(stored_at - timedelta(days=9, microseconds=1)) is None
    assert body((stored_at + timedelta(days=2)).astimezone(timezone(timedelta(hours=9)))) == "of tomorrow"


def test_get_rows_reads_many_rows_over_all_shards(fresh_store, new_row):
    """In the order of the request, each once; without the rows that have no such cell, as if read one by one."""
    rows = [new_row() for _ in range(450)]
    fresh_store.put_cells(
        [NewCell(row, name, n % 3 + 1, n) for n, row in enumerate(rows[:-1]) for name in ("b", "a", "B")[: n % 4]]
    )
    fresh_store.put_cell(rows[7], "a", 9, "latest")

    found = fresh_store.get_rows([*rows, rows[0].bytes, rows[7]])
    assert list(found) == [row for n, row in enumerate(rows[:-1]) if n % 4]
    assert list(found[rows[7]]) == ["B", "a", "b"]
    for name in ("primary", "replica", "available"):
        assert fresh_store.get_rows(iter(rows), read_from=name) == found
    for columns in (["a", "none", "b", "a"], ["none"], []):
        some = {row: fresh_store.get_row(row, columns=columns) for row in rows}
        assert fresh_store.get_rows(rows, columns=iter(columns)) == {row: cells for row, cells in some.items() if cells}
        assert some[rows[7]] == {name: found[rows[7]][name] for name in ("a", "b") if name in columns}
    assert fresh_store.get_rows([]) == {}
    with pytest.raises(InvalidCell, match="column_name must be"):
        fresh_store.get_rows(rows, columns=["a", "b'c"])


def test_get_versions_bad_arguments_raise_at_once(store, row):
    """By the call itself, not by the first step of the iterator."""
    with pytest.raises(InvalidInput, match="limit"):
        store.get_versions(row, "BASE", limit=-1)
    with pytest.raises(InvalidCell, match="ref_key"):
        store.get_versions(row, "BASE", after="3")


def test_arguments_of_the_wrong_type_are_refused(store, row):
    """Before any I/O, by an error of the library that names the argument and the position in it."""
    cell, stored = NewCell(row, "BASE", 1, {}), NewStoredCell(row, "BASE", 1, b"{}")
    refused = {
        r"cells\[0\]: a cell must be of type NewCell, got int: 1": lambda: store.put_cells([1]),
        r"cells\[1\]: a cell must be of type NewCell, got NewStoredCell": lambda: store.put_cells(iter([cell, stored])),
        r"cells must be a list or another iterable, got None": lambda: store.put_cells(None),
        r"cells must be a list or another iterable, got 'abc'": lambda: store.put_stored_cells("abc"),
        r"cells\[1\]: a cell must be of type NewStoredCell": lambda: store.put_stored_cells([stored, cell]),
        r"cells\[0\]: a stored body must be of type bytes, got str: '{}'": lambda: store.put_stored_cells(
            [NewStoredCell(row, "BASE", 1, "{}")], trusted=True
        ),
        r"cells\[1\]: row_key must be a uuid.UUID or 16 bytes": lambda: store.put_cells(
            [cell, NewCell("text", "BASE", 1, {})]
        ),
        r"bodies must be of type Mapping": lambda: store.put_row(row, [("BASE", 1)], 1),
        r"no codec is called \['msgpack'\]": lambda: store.put_cell(row, "BASE", 1, {}, codec=["msgpack"]),
        r"keys\[0\]: expected a pair of row_key and column_name, got None": lambda: store.get_cells_latest([None]),
        r"keys\[0\]: expected a pair .*, got 'a'": lambda: store.get_cells_latest({"a": 1}),
        r"keys\[1\]: column_name": lambda: store.get_cells_latest([(row, "BASE"), (row, None)]),
        r"keys must be a list": lambda: store.get_cells_latest(1),
        r"row_keys must be a list or another iterable, got 'abc'": lambda: store.get_rows("abc"),
        r"row_keys must be a list or another iterable, got b'": lambda: store.get_rows(row.bytes),
        r"row_keys\[1\]: row_key must be": lambda: store.get_rows([row, None]),
        r"columns must be a list or another iterable, got 'BASE'": lambda: store.get_row(row, columns="BASE"),
        r"columns\[0\]: column_name must be": lambda: store.get_rows([row], columns=[1]),
        r"at must be an aware datetime": lambda: store.get_cell_latest(row, "BASE", at=datetime(2026, 3, 1)),  # noqa: DTZ001
        r"at must be an aware datetime, got '2026": lambda: store.get_cells_latest([(row, "BASE")], at="2026-03-01"),
        r"at must be an aware datetime, got 1": lambda: store.get_row(row, at=1),
        r"at must be in the years 1000": lambda: store.get_rows([row], at=datetime.min.replace(tzinfo=UTC)),
        r"body must be of type bytes, got str": lambda: store.decode("{}"),
        r"poll_s must be a number": lambda: store.iter_shard(0, follow=True, poll_s="1"),
        r"timeout_s must be a number, got NoneType": lambda: store.end_of_shard(0, timeout_s=None),
        r"after must be 0 or an added_id, got '1'": lambda: store.scan_shard(0, after="1"),
        r"up_to must be 0 or an added_id, got nan": lambda: store.scan_shard(0, up_to=float("nan")),
        r"reason must be of type str, got int": lambda: store.erase(row, reason=1),
        r"keys\[1\]: row_key must be": lambda: store.erase_many([row, 1], reason="test"),
        r"keys must not be a mapping": lambda: store.erase_many({row: "BASE"}, reason="test"),
        r"keys\[0\]: a key to erase is a row_key": lambda: store.erase_many([()], reason="test"),
        r"an index name must be of type str": lambda: store.create_index(1, shard_field="BASE.a:int"),
        r"a field must be of type str, got NoneType": lambda: store.create_index("ix", shard_field=None),
        r"fields\[0\]: a field must be": lambda: store.create_index(
            "ix", shard_field="BASE.a:int", fields=[b"BASE.b:int"]
        ),
        r"requested_by must be of type str": lambda: store.erase(row, reason="test", requested_by=["me"]),
    }
    for message, call in refused.items():
        with pytest.raises((InvalidInput, InvalidCell, UnknownCodec), match=f"^{message}"):
            call()


def test_reads_from_anything_but_primary_or_replica_are_refused(store, row):
    """An unknown value is an error; it does not mean the primary."""
    reads = [
        lambda: store.get_cell(row, "BASE", 1, read_from="replicas"),
        lambda: store.get_cell_latest(row, "BASE", read_from="Primary"),
        lambda: store.get_cells_latest([(row, "BASE")], read_from=""),
        lambda: store.get_row(row, read_from=None),
        lambda: store.get_rows([row], read_from="primaries"),
        lambda: list(store.get_versions(row, "BASE", read_from="any")),
        lambda: list(store.get_stored_versions(row, "BASE", read_from="any")),
        lambda: store.column_names(row, read_from="secondary"),
    ]

    for read in reads:
        with pytest.raises(InvalidInput, match=r"read_from must be 'primary' or 'replica' .*got"):
            read()
    assert store.get_cell(row, "BASE", 1, read_from="replica") is None


def test_get_cells_latest_many_rows_over_all_shards(store, new_row):
    """Hundreds of pairs in one call; missing cells are left out, duplicates are returned once."""
    rows = [new_row() for _ in range(500)]
    store.put_cells([NewCell(row, column, 1, [str(row), column]) for row in rows[:450] for column in ("A", "B")])
    found = store.get_cells_latest([(row, column) for row in rows + rows[:10] for column in ("A", "C")])

    assert set(found) == {(row, "A") for row in rows[:450]}
    assert all(cell.body == [str(cell.row_key), "A"] for cell in found.values())


@pytest.mark.guarantee("mixed-codecs")
def test_every_format_at_once_reads_the_same_through_every_call(store, new_row):
    """Conformance 26: cells in every codec are read like cells in one."""
    document = {"text": "Grüße " * 40, "n": [1, 2.5, None, True], "nested": {"deep": [[]]}}
    big = {"n": 2**70, "half": "\ud800"}
    written = {}
    for codec in codec_names():
        for name, body in (("DOC", document), ("BIG", big), ("SMALL", [1])):
            row = new_row()
            stored = encode_body(body, codec_named(codec))
            store.put_stored_cells([NewStoredCell(row, name, 1, stored)])
            store.put_cell(row, name, 2, body, codec=codec)
            written[row] = (name, body)

    pairs = [(row, name) for row, (name, _) in written.items()]
    latest = store.get_cells_latest(pairs)
    for row, (name, body) in written.items():
        assert store.get_cell(row, name, 1).body == body
        assert store.get_cell_latest(row, name).body == body
        assert latest[row, name].body == body
        assert store.get_row(row)[name].body == body
        assert [cell.body for cell in store.get_versions(row, name)] == [body, body]
        scanned = [cell for cell in store.scan_shard(store.shard_of(row)) if cell.row_key == row]
        assert [cell.decode().body for cell in scanned] == [body, body]


@pytest.mark.guarantee("corruption-detected")
@pytest.mark.parametrize("damage", ["flip", "cut", "extend", "text"])
def test_get_rotten_body_raises_naming_cell_and_shard(fresh_store, row, damage, by_hand):
    """Conformance 27: corruption is detected and reported, never returned as data."""
    fresh_store.put_cell(row, "BASE", 1, {"fare": 10})
    shard = fresh_store.shard_of(row)
    change = {
        "flip": b"CONCAT(SUBSTRING(body, 1, 4), CHAR(ORD(SUBSTRING(body, 5, 1)) ^ 1), SUBSTRING(body, 6))",
        "cut": b"SUBSTRING(body, 1, LENGTH(body) - 1)",
        "extend": b"CONCAT(body, 'x')",
        "text": b"'{\"fare\": 1'",
    }[damage]
    by_hand(fresh_store).execute(
        shard, b"UPDATE `%b`.cell SET body=%b" % (internals_of(fresh_store).shards.database(shard).encode(), change)
    )
    reads = [
        lambda: fresh_store.get_cell(row, "BASE", 1),
        lambda: fresh_store.get_cell_latest(row, "BASE"),
        lambda: fresh_store.get_cells_latest([(row, "BASE")]),
        lambda: fresh_store.get_row(row),
        lambda: list(fresh_store.get_versions(row, "BASE")),
        lambda: [cell.decode() for cell in fresh_store.scan_shard(shard)],
        lambda: fresh_store.put_cell(row, "BASE", 1, {"fare": 10}),
    ]

    for read in reads:
        with pytest.raises(CorruptBody, match=f"cell \\({row}, BASE, 1\\) in shard {shard}: ") as caught:
            read()
        assert (caught.value.key, caught.value.shard) == ((row, "BASE", 1), shard)


def test_a_stored_cell_says_that_it_cannot_be_pickled(store, row):
    """It is decoded by its datastore, whose connections belong to the process."""
    store.put_cell(row, "BASE", 1, {})
    (cell,) = store.get_stored_versions(row, "BASE")
    for call in (copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="cannot pickle or deep-copy a StoredCell"):
            call(cell)
    assert copy.copy(cell) == cell


def test_get_over_the_readers_limit_raises_and_another_limit_reads_it(datastore_url, store, row):
    """The limit is a property of the reader, not of the cell."""
    store.put_cell(row, "BASE", 1, "x" * 100_000)
    with (
        connect(datastore_url, limits=Limits(decoded_bytes=50_000)) as careful,
        pytest.raises(CorruptBody, match=r"50,?000"),
    ):
        careful.get_cell(row, "BASE", 1)

    assert len(store.get_cell(row, "BASE", 1).body) == 100_000


def test_scan_shard_of_a_column_fetches_no_other_body(fresh_store, new_row, monkeypatch):
    """Every cell of the column in order, with bounded statements; other columns' bodies are not sent."""
    rows = [row for row in (new_row() for _ in range(800)) if fresh_store.shard_of(row) == 3]
    columns = ["OTHER"] * 60 + ["RARE"] + ["OTHER"] * 30 + ["RARE"] * (len(rows) - 91)
    fresh_store.put_cells(
        NewCell(row, column, 1, [column, number])
        for number, (row, column) in enumerate(zip(rows, columns, strict=True))
    )
    expected = [cell.added_id for cell in fresh_store.scan_shard(3) if cell.column_name == "RARE"]
    fetched: list[bytes] = []
    read = Connection.rows

    def watched(connection: Connection, *query: Any) -> Rows:
        found = read(connection, *query)
        fetched.extend(row[4] for row in found if len(row) == 6)
        return found

    monkeypatch.setattr(Connection, "rows", watched)
    scan = functools.partial(internals_of(fresh_store).scan, column_name="RARE", block_rows=25)
    found = list(scan(3))
    part = list(scan(3, after=expected[1], up_to=expected[-2]))

    assert [cell.added_id for cell in found] == expected
    assert [cell.added_id for cell in part] == expected[2:-1]
    assert fetched == [cell.body for cell in found + part]
    assert list(fresh_store.scan_shard(3, column_name="RARE")) == found
    assert list(fresh_store.scan_shard(3, column_name="NONE")) == []
    with pytest.raises(InvalidCell, match="column_name must be"):
        fresh_store.scan_shard(3, column_name="a`b")


def test_scan_shard_pages_in_added_id_order(fresh_store, new_row):
    """Every cell once and in order, whatever the size of the pages."""
    rows = [row for row in (new_row() for _ in range(1200)) if fresh_store.shard_of(row) == 3]
    fresh_store.put_cells([NewCell(row, "BASE", 1, "x" * (number % 50) * 100) for number, row in enumerate(rows)])
    cells = list(fresh_store.scan_shard(3))
    part = list(fresh_store.scan_shard(3, after=cells[9].added_id, up_to=cells[19].added_id))

    assert [cell.added_id for cell in cells] == sorted(cell.added_id for cell in cells)
    assert {cell.row_key for cell in cells} == set(rows)
    assert [cell.added_id for cell in part] == [cell.added_id for cell in cells[10:20]]
    assert all(isinstance(cell, StoredCell) and cell.shard == 3 for cell in cells)
    with pytest.raises(InvalidInput, match="0 to 3, got 4"):
        fresh_store.scan_shard(4)


def test_datastore_is_neither_copied_nor_pickled(store):
    """Its connections belong to this process; the error says what to do instead."""
    for call in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(
            TypeError, match=r"its connections belong to this process; open another one with connect\(\)"
        ):
            call(store)
