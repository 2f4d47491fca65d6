"""``store.arrow``: the history as record batches, for pandas, polars and DuckDB."""

from __future__ import annotations

import builtins
import json
import random
import sys
import threading
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest

import schemaless
from schemaless import InvalidInput, NewCell
from schemaless.codec.documents import identical
from schemaless.codec.recode import recode
from schemaless.codec.registry import codec_named, codec_names
from schemaless.store.internals import internals_of
from tests.ops.admin.ndjson import LINES
from tests.store.arrow.random_documents import random_document

pytestmark = pytest.mark.mysql


def key_of(row):
    return row["row_key"], row["column_name"], row["ref_key"]


@pytest.mark.guarantee("export-exact")
def test_arrow_has_every_cell_with_its_exact_document(fresh_store, fresh_url, tail_store, new_row):
    """3,000 random documents over all columns, and awkward texts in every codec."""
    chance = random.Random(32)
    cells = [
        NewCell(new_row(), chance.choice(["BASE", "LOG"]), chance.randrange(9), random_document(chance))
        for _ in range(3_000)
    ]
    with schemaless.connect(fresh_url, allow_nan=True) as lenient:
        puts = lenient.put_cells(cells)
    stored = [
        schemaless.NewStoredCell(new_row(), "RAW", ref_key, recode(text, codec_named(name)).body)
        for text in LINES
        for ref_key, name in enumerate(codec_names())
    ]
    fresh_store.put_stored_cells(stored)
    repeated = [text for text in LINES for _ in codec_names()]

    rows = tail_store.arrow().read_all().to_pylist()

    found = {key_of(row): row for row in rows}
    assert len(found) == len(rows) == len(cells) + len(stored)
    for cell, put in zip(cells, puts, strict=True):
        row = found[str(cell.row_key), cell.column_name, cell.ref_key]
        assert identical(json.loads(row["body"]), cell.body)
        assert (row["added_id"], row["shard"]) == (put.added_id, fresh_store.shard_of(cell.row_key))
    texts = {str(cell.row_key): text for cell, text in zip(stored, repeated, strict=True)}
    for key, row in found.items():
        if key[1] == "RAW":
            assert row["body"].encode() == texts[key[0]] or identical(
                json.loads(row["body"]), json.loads(texts[key[0]])
            )
    one = cells[0]
    cell = fresh_store.get_cell(one.row_key, one.column_name, one.ref_key)
    assert found[str(one.row_key), one.column_name, one.ref_key]["created_at"] == cell.created_at


def test_arrow_refuses_arguments_of_the_wrong_type(fresh_store):
    """The errors are the library's own, and name the argument and the element."""
    refused = {
        r"fields must be a list or another iterable, got 'a:int'": lambda: list(
            fresh_store.arrow("BASE", fields="a:int")
        ),
        r"fields\[1\]: a typed column must be of type str": lambda: list(
            fresh_store.arrow("BASE", fields=["a:int", 1])
        ),
        r"shards must be a list": lambda: list(fresh_store.arrow("BASE", shards=1)),
        r"shards\[1\]: ": lambda: list(fresh_store.arrow("BASE", shards=[0, "1"])),
        r"since must be of type Mapping": lambda: list(fresh_store.arrow("BASE", since="2026-01-01")),
    }
    for message, call in refused.items():
        with pytest.raises(InvalidInput, match=f"^{message}"):
            call()


def test_arrow_goes_to_pandas_polars_and_duckdb(fresh_store, tail_store, new_row):
    """Each reads the same rows and typed values."""
    # Imported here, since each process that runs tests collects all of them.
    import duckdb
    import pandas as pd
    import polars as pl

    column = f"A{new_row().hex[:8]}"
    for number in range(5):
        fresh_store.put_cell(
            new_row(), column, 1, {"fare": {"total": number + 0.5}, "city": None if number == 3 else "Oslo"}
        )
    fields = ["fare.total:float", "city:text"]

    frame = tail_store.arrow(column, fields=fields).read_pandas()
    polars = pl.from_arrow(tail_store.arrow(column, fields=fields).read_all())
    batches = tail_store.arrow(column, fields=fields)  # noqa: F841 - DuckDB finds it by its name
    total, cities = duckdb.sql("SELECT sum(total), count(city) FROM batches").fetchall()[0]

    assert isinstance(frame, pd.DataFrame)
    assert frame["total"].sum() == polars["total"].sum() == total == 12.5
    assert frame["city"].count() == polars["city"].drop_nulls().len() == cities == 4


def test_arrow_since_a_time_or_locations_has_only_later_cells(fresh_store, tail_store, new_row):
    """Cells stored before the time or location are left out, also of other columns."""
    old, new = new_row(), new_row()
    fresh_store.put_cell(old, "BASE", 1, {"n": 1})
    ends = {shard: tail_store.end_of_shard(shard) for shard in range(fresh_store.shard_count)}
    fresh_store.put_cell(new, "BASE", 1, {"n": 2})
    fresh_store.put_cell(old, "LOG", 1, {"n": 3})
    at = fresh_store.get_cell(new, "BASE", 1).created_at

    later = tail_store.arrow("BASE", since=ends).read_all()
    timed = tail_store.arrow("BASE", since=at).read_all()
    none = tail_store.arrow("BASE", since=datetime.now(UTC) + timedelta(days=1)).read_all()

    assert [row["row_key"] for row in later.to_pylist()] == [str(new)]
    assert [row["row_key"] for row in timed.to_pylist()] == [str(new)]
    assert none.num_rows == 0
    assert none.schema == later.schema


def test_arrow_skips_no_cell_that_is_committed_late(fresh_store, tail_store, new_row):
    """Batches are read while writers write: what was there before the call is there, once."""
    before = [put.key for put in fresh_store.put_cells([NewCell(new_row(), "BASE", 1, [n]) for n in range(200)])]
    stop = threading.Event()

    def write():
        while not stop.is_set():
            fresh_store.put_cells([NewCell(new_row(), "BASE", 1, {}) for _ in range(5)])

    writer = threading.Thread(target=write)
    writer.start()
    try:
        tables = [tail_store.arrow("BASE").read_all() for _ in range(5)]
    finally:
        stop.set()
        writer.join()
    for table in tables:
        keys = table["row_key"].to_pylist()
        assert len(set(keys)) == len(keys)
        assert {str(key.row_key) for key in before} <= set(keys)


def test_arrow_names_the_cell_that_does_not_decode(fresh_store, tail_store, new_row, by_hand):
    """A damaged body ends the stream with an error that names its cell."""
    row = new_row()
    fresh_store.put_cell(row, "BASE", 1, {"a": "b" * 100})
    shard = fresh_store.shard_of(row)
    shards = by_hand(fresh_store)
    database = internals_of(fresh_store).shards.database(shard)
    shards.execute(shard, b"UPDATE `%b`.cell SET body=CONCAT(body, 'x')" % database.encode())
    with pytest.raises(schemaless.CorruptBody, match=str(row)):
        tail_store.arrow("BASE").read_all()


def test_arrow_arguments_that_cannot_be_used_are_refused(store):
    """Invalid times, locations, shards and fields are refused by the call itself."""
    for arguments in (
        {"since": datetime(2026, 3, 1)},  # noqa: DTZ001 - the point of the test
        {"since": {0: -1}},
        {"since": {99: 1}},
        {"shards": [99]},
        {"fields": ["x:int", "y.x:int"]},
    ):
        with pytest.raises(InvalidInput):
            store.arrow("BASE", **arguments)


def test_arrow_without_the_extra_names_it(store, monkeypatch):
    """Without pyarrow, the error says what to install."""
    real = builtins.__import__

    def without(name, *arguments, **options):
        if name.startswith("pyarrow"):
            raise ModuleNotFoundError("No module named 'pyarrow'")
        return real(name, *arguments, **options)

    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(InvalidInput, match=r"pip install 'schemaless-store\[export\]'"):
        store.arrow("BASE")


def test_arrow_is_a_stream(store):
    """An empty column gives a reader without batches."""
    assert isinstance(store.arrow("NONE"), pa.RecordBatchReader)
