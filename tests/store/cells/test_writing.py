"""Writing: a cell is written once, and a shard's part of a batch completely or not at all."""

from __future__ import annotations

import dataclasses
import json
import math
import pickle
import threading
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone

import pytest

import schemaless
from schemaless import (
    BatchError,
    CellConflict,
    ColdBodyMissing,
    CorruptBody,
    Datastore,
    InvalidBody,
    InvalidCell,
    InvalidInput,
    NewCell,
    NewStoredCell,
    ServerUnavailable,
    UnknownCodec,
)
from schemaless.codec.recode import recode
from schemaless.codec.references import reference_body
from schemaless.codec.registry import LEGACY, codec_named
from schemaless.store.internals import internals_of
from schemaless.wire.node import Node
from tests.topologies import opened_as

pytestmark = [pytest.mark.mysql, pytest.mark.twice, pytest.mark.myrocks]


def rows_in_shard(store: Datastore, new_row: Callable[[], uuid.UUID], shard: int, count: int) -> list[uuid.UUID]:
    """Return row_keys that belong to a shard."""
    found: list[uuid.UUID] = []
    while len(found) < count:
        row = new_row()
        if store.shard_of(row) == shard:
            found.append(row)
    return found


@pytest.mark.guarantee("written-once")
def test_put_same_cell_same_body_is_a_no_op(store, row):
    """Conformance 5: writing again changes nothing and returns the added_id of the existing cell."""
    first = store.put_cell(row, "BASE", 1, {"fare": 10, "to": "JFK"})
    again = store.put_cell(row, "BASE", 1, {"to": "JFK", "fare": 10})

    assert first.created
    assert not again.created
    assert again.added_id == first.added_id


@pytest.mark.guarantee("written-once")
@pytest.mark.parametrize("other", [{"fare": 99}, {"fare": 10.0}, {"fare": True}, {}, {"fare": 10, "x": None}, [], None])
def test_put_same_ref_key_with_other_body_raises_conflict(store, row, other):
    """Conformance 6: a different body never replaces the first one."""
    store.put_cell(row, "BASE", 1, {"fare": 10})

    with pytest.raises(CellConflict, match="exists with a different body; write a higher ref_key") as caught:
        store.put_cell(row, "BASE", 1, other)

    assert caught.value.stored.body == {"fare": 10}
    assert caught.value.shard == store.shard_of(row)
    assert store.get_cell_latest(row, "BASE").body == {"fare": 10}


@pytest.mark.guarantee("written-once")
def test_put_after_reencoding_is_still_the_same_cell(store, row):
    """Documents are compared, so putting a cell that was first written as legacy text stays idempotent."""
    text = b'{ "b": 1.50,\n "a": [1e2] }'
    store.put_stored_cells([NewStoredCell(row, "BASE", 1, text)])

    assert not store.put_cell(row, "BASE", 1, {"a": [100.0], "b": 1.5}).created
    assert not store.put_cell(row, "BASE", 1, {"b": 1.5, "a": [100.0]}, codec="json+zlib").created


@pytest.mark.guarantee("refused-before-io")
@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ((b"short", "BASE", 1), "row_key must be 16 bytes, got 5"),
        (("71f0c4d2-2918-44cc-a2df-000000000001", "BASE", 1), "got str: .*; parse text with uuid.UUID"),
        ((None, "BASE", 1), "row_key must be a uuid.UUID or 16 bytes, got NoneType: None$"),
        ((uuid.UUID(int=1), "", 1), "column_name must be 1 to 64"),
        ((uuid.UUID(int=1), "a b", 1), "column_name"),
        ((uuid.UUID(int=1), "ü", 1), "column_name"),
        ((uuid.UUID(int=1), "a\n", 1), "column_name"),
        ((uuid.UUID(int=1), "c" * 65, 1), "column_name"),
        ((uuid.UUID(int=1), None, 1), "column_name"),
        ((uuid.UUID(int=1), "BASE", -1), "ref_key must be an int from 0"),
        ((uuid.UUID(int=1), "BASE", 2**63), "ref_key"),
        ((uuid.UUID(int=1), "BASE", True), "ref_key"),
        ((uuid.UUID(int=1), "BASE", 1.0), "ref_key"),
    ],
)
def test_put_with_a_key_no_cell_may_have_raises_before_any_io(store, arguments, complaint):
    """MySQL would silently pad, fold or truncate such keys; the client refuses them."""
    with pytest.raises(InvalidCell, match=complaint):
        store.put_cell(*arguments, {})


@pytest.mark.guarantee("refused-before-io")
def test_put_with_a_body_outside_the_model_names_the_path(store, row):
    """Values that are not JSON are not converted."""
    with pytest.raises(InvalidBody, match=r"body\.fare\.parts\[1\].*set"):
        store.put_cell(row, "BASE", 1, {"fare": {"parts": [1, {2}]}})
    with pytest.raises(UnknownCodec, match="msgpack\\+zlib"):
        store.put_cell(row, "BASE", 1, {}, codec="pickle")

    assert store.get_row(row) == {}


@pytest.mark.guarantee("refused-before-io")
def test_nan_is_refused_unless_the_datastore_allows_it(store, datastore_url, row):
    """It is not JSON. Stored bytes that have it may still be copied, and are read."""
    for refused in (math.nan, math.inf, -math.inf):
        document = {"fare": {"total": refused}}
        with pytest.raises(InvalidBody, match=r"body\.fare\.total: (nan|-?inf) is not a JSON number"):
            store.put_cell(row, "BASE", 1, document)
        with pytest.raises(InvalidBody, match=r"cells\[0\]: .*body\.fare\.total"):
            store.put_cells([NewCell(row, "BASE", 1, document)])
        with pytest.raises(InvalidBody, match=r"body\.fare\.total"):
            store.append_cell(row, "BASE", document)
    assert store.get_row(row) == {}

    with schemaless.connect(datastore_url, allow_nan=True) as lenient:
        lenient.put_cell(row, "BASE", 1, [math.nan, -math.inf])
    store.put_stored_cells([NewStoredCell(row, "BASE", 2, b"[NaN]")])
    assert [repr(cell.body) for cell in store.get_versions(row, "BASE")] == ["[nan]", "[nan, -inf]"]


@pytest.mark.parametrize("ref_key", [0, 2**63 - 1])
def test_put_at_the_ends_of_ref_key_is_kept(store, row, ref_key):
    """0 and 2^63 - 1 are normal versions."""
    store.put_cell(row, "BASE", ref_key, [ref_key])

    assert store.get_cell(row, "BASE", ref_key).body == [ref_key]
    assert [cell.ref_key for cell in store.get_versions(row, "BASE")] == [ref_key]


@pytest.mark.guarantee("exact-documents")
@pytest.mark.parametrize("body", [None, False, 0, 0.0, "", [], {}, "\x00", 'it\'s \\ "quoted" %s \x1a\n'])
def test_put_falsy_and_awkward_bodies_round_trip(store, row, body):
    """Conformance 19: falsy bodies are valid, and bytes that SQL escapes are returned unchanged."""
    store.put_cell(row, "BASE", 1, body)
    found = store.get_cell(row, "BASE", 1)

    assert found.body == body
    assert type(found.body) is type(body)


def test_put_every_byte_value_in_every_position_comes_back(store, new_row):
    """Statements are built from bytes; no body may terminate its own literal."""
    cells = [
        NewStoredCell(new_row(), "RAW", 1, b'"' + "".join(chr(n) for n in order).encode() + b'"')
        for order in ([*range(32, 34), *range(35, 92), *range(93, 256)], [39, 32, 39, 39], [37, 115, 39])
    ]
    store.put_stored_cells(cells)

    for cell in cells:
        stored = next(store.get_stored_versions(cell.row_key, "RAW"))
        assert stored.body == cell.body


def test_put_cells_returns_puts_in_the_order_given(store, new_row):
    """One Put per cell in every shard, with the added_ids that reads return."""
    cells = [NewCell(new_row(), "BASE", number % 3, {"n": number}) for number in range(100)]
    puts = store.put_cells(cells)

    assert [put.key.row_key for put in puts] == [cell.row_key for cell in cells]
    assert all(put.created for put in puts)
    for cell, put in zip(cells, puts, strict=True):
        assert store.get_cell(cell.row_key, "BASE", cell.ref_key).added_id == put.added_id


def test_put_cells_empty_batch_is_fine(store):
    """Conformance 8: an empty batch is not an error."""
    assert store.put_cells([]) == []


@pytest.mark.guarantee("batch-atomic")
def test_put_cells_with_one_conflict_writes_nothing_in_that_shard(store, new_row):
    """Conformance 7: the other shards are written, and the error lists the cells that were and were not written."""
    here, there = rows_in_shard(store, new_row, 1, 3), rows_in_shard(store, new_row, 2, 2)
    store.put_cell(here[1], "BASE", 1, "first")
    cells = [NewCell(row, "BASE", 1, "second") for row in [*here, *there]]

    with pytest.raises(BatchError, match="3 of 5 cells were not written") as caught:
        store.put_cells(cells)

    assert {put.key.row_key for put in caught.value.written} == set(there)
    assert {key.row_key for key in caught.value.not_written} == set(here)
    assert list(caught.value.causes) == [1]
    assert isinstance(caught.value.causes[1], CellConflict)
    assert caught.value.causes[1].stored.body == "first"
    assert not caught.value.retryable
    assert [store.get_cell(row, "BASE", 1) and store.get_cell(row, "BASE", 1).body for row in [*here, *there]] == [
        None,
        "first",
        None,
        "second",
        "second",
    ]


def test_batch_errors_list_every_conflict_and_every_erased_cell(fresh_store, new_row, erase_store):
    """Also those of one shard, of which the cause names the first."""
    here, there = rows_in_shard(fresh_store, new_row, 1, 250), rows_in_shard(fresh_store, new_row, 2, 3)
    conflicts, erased = [*here[:3], here[-1], there[0]], [here[4], here[5], there[1]]
    fresh_store.put_cells([NewCell(row, "BASE", 1, "first") for row in [*conflicts, *erased, here[7]]])
    for row in erased:
        erase_store.erase(row, reason="test")

    with pytest.raises(BatchError, match="253 of 253 cells were not written") as caught:
        fresh_store.put_cells(
            [NewCell(row, "BASE", 1, "second" if row != here[7] else "first") for row in here + there]
        )
    error = pickle.loads(pickle.dumps(caught.value))
    assert {cell.row_key: cell.body for cell in error.conflicts} == dict.fromkeys(conflicts, "first")
    assert {key.row_key for key in error.erased} == set(erased)
    assert [len(error.conflicts), len(error.erased)] == [5, 3]


@pytest.mark.guarantee("batch-atomic")
def test_put_row_writes_all_columns_or_none(store, row):
    """In one transaction; the cause itself is raised, and it has those of the other columns."""
    puts = store.put_row(row, {"B": {"n": 1}, "A": None}, ref_key=2)
    assert [(name, put.key, put.created) for name, put in puts.items()] == [
        ("B", (row, "B", 2), True),
        ("A", (row, "A", 2), True),
    ]
    assert [put.created for put in store.put_row(row, {"A": None, "C": 3, "B": {"n": 1}}, 2).values()] == [
        False,
        True,
        False,
    ]
    with pytest.raises(CellConflict) as caught:
        store.put_row(row, {"D": 4, "C": 4, "A": 5, "B": {"n": 1}}, 2)
    assert {each.stored.column_name for each in (caught.value, *caught.value.others)} == {"A", "C"}
    with pytest.raises(InvalidBody, match=r"column B: body\.n.*set"):
        store.put_row(row, {"A": 1, "B": {"n": {1}}}, 3)
    for bodies in ([("A", 1)], None, "A"):
        with pytest.raises(InvalidInput, match="bodies must be of type Mapping"):
            store.put_row(row, bodies, 3)
    for arguments in ((b"short", {"A": 1}, 3), (row, {"a b": 1}, 3), (row, {1: 1}, 3), (row, {"A": 1}, "3")):
        with pytest.raises(InvalidCell):
            store.put_row(*arguments)
    assert store.put_row(row, {}, 3) == {}
    assert {cell.ref_key for cell in store.get_row(row).values()} == {2}
    assert store.column_names(row) == ["A", "B", "C"]


def test_put_cells_over_a_server_that_is_down_names_each_of_its_shards(fresh_store, new_row, tmp_path):
    """The server's other shards are not tried, but each has its own error with its own number."""
    internals = internals_of(fresh_store)
    up, down = internals.topology.clusters
    shards = internals.topology.shards_of(down.name)
    nobody = Node("primary", socket=str(tmp_path / "nobody.sock"))
    topology = dataclasses.replace(internals.topology, clusters=(up, dataclasses.replace(down, nodes=(nobody,))))
    cells = [NewCell(new_row(), "BASE", 1, {}) for _ in range(40)]
    with (
        opened_as(fresh_store, topology) as half,
        pytest.raises(BatchError) as caught,
    ):
        half.put_cells(cells)

    assert sorted(caught.value.causes) == shards == [2, 3]
    for shard, cause in caught.value.causes.items():
        assert isinstance(cause, ServerUnavailable)
        assert (cause.shard, cause.node) == (shard, str(nobody))
        assert f"shard {shard}: " in str(cause)
    assert {fresh_store.shard_of(key.row_key) for key in caught.value.not_written} == {2, 3}
    assert {fresh_store.shard_of(put.key.row_key) for put in caught.value.written} == {0, 1}
    assert caught.value.retryable


TWICE = b'{"a": 1, "a": 2, "text": "%b"}' % (b"long enough to be compressed " * 9)


@pytest.mark.parametrize("stored", ["legacy", "json+zlib", "msgpack+zlib"])
def test_put_over_text_with_a_duplicate_key_compares_the_text(store, row, stored):
    """Such text holds more than its document: equal text is the same cell, other text with an equal document is not."""
    once = TWICE.replace(b'"a": 1, ', b"")
    other = TWICE.replace(b'"a": 1', b'"a": 0')
    store.put_stored_cells([NewStoredCell(row, "KEPT", 1, recode(TWICE, codec_named(stored)).body)])
    store.put_stored_cells([NewStoredCell(row, "ONCE", 1, once)])
    again = store.put_stored_cells([NewStoredCell(row, "KEPT", 1, recode(TWICE, codec_named("json+zstd")).body)])
    document = store.put_cell(row, "KEPT", 1, json.loads(TWICE))

    assert [put.created for put in (*again, document)] == [False, False]
    for column, text in (("KEPT", other), ("ONCE", TWICE)):
        with pytest.raises(BatchError) as caught:
            store.put_stored_cells([NewStoredCell(row, column, 1, text)])
        assert [type(cause) for cause in caught.value.causes.values()] == [CellConflict]
    assert recode(next(store.get_stored_versions(row, "KEPT")).body, LEGACY).body == TWICE


def test_put_cells_same_key_twice_with_one_body_is_one_cell(store, row):
    """A key given twice with equal bodies is written once."""
    puts = store.put_cells([NewCell(row, "BASE", 1, {"a": 1}), NewCell(row.bytes, "BASE", 1, {"a": 1})])

    assert puts[0] == puts[1]
    assert len(list(store.get_versions(row, "BASE"))) == 1


def test_put_cells_same_key_with_two_bodies_raises_before_any_io(store, new_row):
    """A contradictory batch writes nothing in any shard."""
    one, other = new_row(), new_row()

    with pytest.raises(InvalidCell, match="with two different bodies; nothing was written"):
        store.put_cells([NewCell(other, "BASE", 1, 0), NewCell(one, "BASE", 1, 1), NewCell(one, "BASE", 1, 2)])

    assert store.get_row(one) == store.get_row(other) == {}


@pytest.mark.guarantee("refused-before-io")
def test_put_cells_with_one_bad_body_writes_nothing_and_names_it(store, new_row):
    """Bodies are encoded before anything is sent."""
    rows = [new_row(), new_row()]

    with pytest.raises(InvalidBody, match=rf"cells\[1\]: \({rows[1]}, BASE, 1\): body.*bytes"):
        store.put_cells([NewCell(rows[0], "BASE", 1, "fine"), NewCell(rows[1], "BASE", 1, b"bytes")])

    assert store.get_row(rows[0]) == {}


def test_put_cells_partly_there_writes_what_is_missing(store, new_row):
    """An interrupted batch can simply be repeated."""
    cells = [NewCell(new_row(), "BASE", 1, {"n": number}) for number in range(40)]
    store.put_cells(cells[:25])
    puts = store.put_cells(cells)

    assert [put.created for put in puts] == [False] * 25 + [True] * 15


def test_put_cells_with_look_first_uses_no_added_id(fresh_store, new_row):
    """A repeated import must not use up an added_id for each existing cell."""
    cells = [NewCell(row, "BASE", 1, "x") for row in rows_in_shard(fresh_store, new_row, 0, 20)]
    fresh_store.put_cells(cells[:10])
    for _ in range(5):
        fresh_store.put_cells(cells[:10], look_first=True)
    puts = fresh_store.put_cells(cells, look_first=True)

    assert sorted(put.added_id for put in puts) == list(range(1, 21))


@pytest.mark.long
@pytest.mark.guarantee("batch-atomic")
def test_put_cells_larger_than_a_packet_is_one_transaction(fresh_store, new_row):
    """Cells that do not fit into one statement are still written completely or not at all."""
    rows = rows_in_shard(fresh_store, new_row, 0, 12)
    text = b'"' + b"x" * 6_000_000 + b'"'
    packet = internals_of(fresh_store).shards.run(0, lambda connection: connection.max_allowed_packet)
    cells = [NewStoredCell(row, "BIG", 1, text) for row in rows]
    assert len(text) * len(rows) > packet
    fresh_store.put_cell(rows[7], "BIG", 1, "in the way")

    with pytest.raises(BatchError):
        fresh_store.put_stored_cells(cells)
    after_conflict = list(fresh_store.scan_shard(0))
    puts = fresh_store.put_stored_cells([cell for cell in cells if cell.row_key != rows[7]])

    assert len(after_conflict) == 1
    for put in puts:
        assert next(fresh_store.get_stored_versions(put.key.row_key, "BIG")).added_id == put.added_id


def test_put_stored_cells_that_do_not_decode_are_refused(store, new_row):
    """A copy cannot introduce unreadable bodies."""
    rows = [new_row(), new_row()]

    with pytest.raises(CorruptBody):
        store.put_stored_cells([NewStoredCell(rows[0], "BASE", 1, b"{}"), NewStoredCell(rows[1], "BASE", 1, b"{")])
    with pytest.raises(ColdBodyMissing):
        store.put_stored_cells([NewStoredCell(rows[0], "BASE", 1, reference_body(1, 0, 0, b"{}"))], trusted=True)

    assert store.get_row(rows[0]) == {}


def test_put_cells_with_created_at_keep_it_and_others_get_the_clocks(fresh_store, new_row):
    """An import keeps its times, in UTC and to the microsecond; an existing cell keeps its own."""
    old = datetime(2016, 3, 1, 12, 30, 0, 123456, tzinfo=timezone(timedelta(hours=-8)))
    rows = [new_row() for _ in range(3)]
    cells = [NewCell(rows[0], "BASE", 1, {}, old), NewCell(rows[1], "BASE", 1, {"q": "it's \\"})]
    stored = NewStoredCell(rows[2], "BASE", 1, b"{}", datetime(1999, 12, 31, tzinfo=UTC))
    started = datetime.now(UTC) - timedelta(minutes=1)
    fresh_store.put_cells(cells)
    fresh_store.put_stored_cells([stored])
    again = fresh_store.put_cells([NewCell(rows[0], "BASE", 1, {}, datetime(2020, 1, 1, tzinfo=UTC))])
    found = [fresh_store.get_cell(row, "BASE", 1) for row in rows]

    assert found[0].created_at == old
    assert found[0].created_at.utcoffset() == timedelta(0)
    assert started < found[1].created_at
    assert found[1].body == {"q": "it's \\"}
    assert found[2].created_at == stored.created_at
    assert not again[0].created


@pytest.mark.parametrize("created_at", [datetime(2016, 3, 1), "2016-03-01", datetime(999, 1, 1, tzinfo=UTC)])  # noqa: DTZ001
def test_put_cells_with_a_created_at_no_cell_may_have_raises_before_any_io(store, row, created_at):
    """A naive time could be wrong by hours, and MySQL's times begin with the year 1000."""
    with pytest.raises(InvalidCell, match="created_at must be"):
        store.put_cells([NewCell(row, "BASE", 1, {}, created_at)])

    assert store.get_cell(row, "BASE", 1) is None


@pytest.mark.guarantee("written-once", "myrocks-duplicates")
def test_put_cells_from_many_threads_all_agree_on_one_winner(store, new_row):
    """Eight threads write the same cells with different bodies: one thread wins in each shard."""
    rows = [new_row() for _ in range(30)]
    outcomes: list[tuple[int, object]] = []

    def write(thread: int) -> None:
        for row in rows:
            try:
                outcomes.append((thread, store.put_cell(row, "RACE", 1, {"winner": thread})))
            except CellConflict as conflict:
                outcomes.append((thread, conflict.stored))

    threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    for row in rows:
        winner = store.get_cell(row, "RACE", 1).body["winner"]
        seen = [outcome for outcome in outcomes if outcome[1].key.row_key == row]
        assert [thread for thread, verdict in seen if getattr(verdict, "created", False)] == [winner]
        assert all(stored.body == {"winner": winner} for _, stored in seen if hasattr(stored, "body"))
    assert len(outcomes) == 240


@pytest.mark.guarantee("put-results")
def test_put_cells_added_ids_are_right_beside_bulk_inserts(fresh_store, new_row, by_hand):
    """The ids of a batch are computed from the first one, which holds beside INSERTs of an unknown number of rows."""
    rows = rows_in_shard(fresh_store, new_row, 0, 400)
    database = internals_of(fresh_store).shards.database(0).encode()
    stop = threading.Event()

    def insert_select() -> None:
        turn = 0
        while not stop.is_set():
            turn += 1
            by_hand(fresh_store).execute(
                0,
                b"INSERT INTO `%b`.cell (row_key, column_name, ref_key, body) "
                b"SELECT UNHEX(REPLACE(UUID(), '-', '')), 'BULK', %d, '1' FROM information_schema.collations LIMIT 50"
                % (database, turn),
            )

    bulk = threading.Thread(target=insert_select)
    bulk.start()
    try:
        puts = [
            put
            for start in range(0, 400, 20)
            for put in fresh_store.put_cells([NewCell(row, "BASE", 1, str(row)) for row in rows[start : start + 20]])
        ]
    finally:
        stop.set()
        bulk.join()

    for put in puts:
        assert fresh_store.get_cell(*put.key).added_id == put.added_id
