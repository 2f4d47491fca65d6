"""Index queries: their results, the arguments they refuse, and rows that they must not return."""

from __future__ import annotations

import base64
import random
import re
import uuid
from datetime import UTC, datetime
from typing import Any

import pytest

import schemaless
from schemaless.errors import IndexNotReady, InvalidInput, JobConflict, SchemaMismatch, UnknownIndex
from schemaless.ops.admin.indexes import indexes_of
from schemaless.ops.jobs.job_store import JobStore
from schemaless.ops.move.spec import MoveSpec
from schemaless.store.indexes import registry, sql
from schemaless.store.indexes.definition import define
from schemaless.store.indexes.query import check_query
from schemaless.store.indexes.registry import BACKFILLING, DROPPING, LOOK_S
from schemaless.store.indexes.usage import unread_since
from schemaless.store.internals import internals_of
from schemaless.wire.connection import Connection
from schemaless.wire.errors import ConnectionLost
from tests.movers import MoveByHand, query
from tests.store.indexes.conftest import TRIPS

pytestmark = [pytest.mark.mysql]

ARGUMENTS = {"where", "order_by", "limit", "columns"}

CLIENT = uuid.UUID(int=7)
OTHER = uuid.UUID(int=8)


def trip(day: int, client: uuid.UUID = CLIENT, **more: object) -> dict[str, object]:
    return {"client": str(client), "at": f"2026-03-{day:02}T12:00:00+00:00", "city": day % 3, **more}


def every(index: schemaless.Index, limit: int = 100, **query: Any) -> list[schemaless.IndexRow]:
    """Return all pages of a query."""
    return list(index.iter(limit=limit, **query))


# ---- the conformance cases


@pytest.mark.guarantee("index-refusals")
def test_an_index_build_fills_what_is_missing_ignores_what_is_there_and_spans_batches(kept, fresh_store, new_row):
    """Conformance case 14: 600 cells exist before the index is created, one is written while it is built."""
    rows = [new_row() for _ in range(600)]
    fresh_store.put_cells([schemaless.NewCell(row, "BASE", 1, trip(1 + n % 28)) for n, row in enumerate(rows)])
    entry = kept.make()
    with pytest.raises(IndexNotReady, match="client_trips is backfilling"):
        fresh_store.index("client_trips").query(client=CLIENT)
    kept.catch_up()
    rows.append(fresh_store.put_cell(new_row(), "BASE", 1, trip(1)).key.row_key)
    # Processes the feed again from its beginning, over existing entries.
    for shard in range(4):
        statement = (
            b"UPDATE `%b`.follower SET location=0, epoch=epoch+1"
            % internals_of(fresh_store).shards.database(shard).encode()
        )
        internals_of(kept.follow).shards.execute(shard, statement)
    kept.catch_up()
    indexes = indexes_of(kept.follow)
    backfill = indexes.backfill(entry)
    assert indexes.watch(entry, backfill)
    assert len(kept.follow.index("client_trips").query(client=CLIENT).rows) == 50, "known to this process at once"
    internals_of(fresh_store).registry.read()

    assert {each.row_key for each in every(fresh_store.index("client_trips"), client=CLIENT)} == set(rows)
    assert backfill.done == 601


@pytest.mark.guarantee("index-query")
def test_a_stale_index_entry_is_filtered(kept, fresh_store, new_row):
    """Conformance case 15: the row has changed and the index has not caught up; a stale match is filtered."""
    row = fresh_store.put_cell(new_row(), "BASE", 1, trip(3)).key.row_key
    kept.fill()
    index = fresh_store.index("client_trips")
    fresh_store.put_cell(row, "BASE", 2, trip(20))
    march_3 = datetime(2026, 3, 3, 12, tzinfo=UTC)
    late = index.query(client=CLIENT, at=march_3)
    anyway = index.query(client=CLIENT)
    fresh_store.put_cell(row, "BASE", 3, trip(3, OTHER))

    assert late.rows == []
    assert [(each.entry["at"].day, each.cells["BASE"].ref_key) for each in anyway.rows] == [(20, 2)]
    assert index.query(client=CLIENT).rows == []


@pytest.mark.guarantee("index-query")
def test_an_index_row_without_its_cell_gives_nothing(kept, fresh_store, by_hand, new_row):
    """Conformance case 16: an entry of a row that does not exist."""
    row = fresh_store.put_cell(new_row(), "BASE", 1, trip(3)).key.row_key
    kept.fill()
    shards = by_hand(fresh_store)
    shard = fresh_store.shard_of(row)
    assert shards.execute(shard, b"DELETE FROM `%b`.cell" % shards.database(shard).encode()).affected == 1

    page = fresh_store.index("client_trips").query(client=CLIENT)

    assert (page.rows, page.next) == ([], None)


@pytest.mark.guarantee("index-refusals")
def test_a_missing_shard_field_is_an_error_before_any_io(kept, fresh_store, monkeypatch):
    """Conformance case 17: nothing is sent to any server."""
    kept.fill()
    index = fresh_store.index("client_trips")
    assert index.first(client=CLIENT) is None
    monkeypatch.setattr(internals_of(fresh_store), "shards", None)
    monkeypatch.setattr(internals_of(fresh_store), "registry", None)

    for equals in ({}, {"city": 1}, {"client": None}):
        with pytest.raises(InvalidInput, match=r"needs a value for its shard field: query\(client=\.\.\.\)"):
            index.query(**equals)


# ---- results


FIELDS = define(
    "everything",
    "T.owner:text(3)",
    ["T.text:text(4)", "T.int:int", "T.float:float", "T.bool:bool", "T.time:time", "T.uuid:uuid"],
)
VALUES: dict[str, list[Any]] = {
    "text": ["", "a", "a ", "a\x1f", "abcd", "abcde", "abcdf", "ab\U0001f600", "ab\uffff", "'\\", "\x00", "é", "zzzzz"],
    "int": [0, -1, 1, (1 << 63) - 1, -(1 << 63), 7],
    "float": [0.0, -0.0, 1.5, -1e300, 5e-324, 0.1, 3, 1e16 + 2],
    "bool": [True, False],
    "time": ["2026-03-01", "2026-03-01T00:00:00.000001+00:00", "2026-03-01T02:00:00+02:00", "9999-12-31T23:59:59"],
    "uuid": [str(uuid.UUID(int=n)) for n in (0, 1, 1 << 127)],
}
UNFIT: list[Any] = [None, [], {"a": 1}, "no time", 1 << 70, -1.5]


def documents(chance: random.Random, count: int) -> list[dict[str, Any]]:
    """Return documents with boundary values, some of which do not fit."""
    made = []
    for _ in range(count):
        document = {"owner": chance.choice(["me", "you", "your", "yours"])}
        for name, values in VALUES.items():
            if chance.random() < 0.9:
                document[name] = chance.choice(values if chance.random() < 0.8 else UNFIT)
        made.append(document)
    return made


@pytest.mark.guarantee("index-query")
@pytest.mark.twice
def test_queries_return_the_rows_that_a_full_scan_finds(kept, fresh_store, new_row):
    """80 seeded queries: every operator and type, boundary values, truncated text, both directions, page by page."""
    chance = random.Random(7)
    rows = {new_row(): document for document in documents(chance, 100)}
    fresh_store.put_cells([schemaless.NewCell(row, "T", 1, document) for row, document in rows.items()])
    kept.fill(FIELDS)
    index = fresh_store.index("everything")
    found = 0
    for _ in range(80):
        owner = chance.choice(["me", "you", "your"])
        where = []
        for field in chance.sample(FIELDS.fields, chance.choice([0, 1, 1, 2])):
            way = chance.choice(["=", "!=", "<", "<=", ">", ">="])
            value = chance.choice([*VALUES[field.name], None] if way in ("=", "!=") else VALUES[field.name])
            where.append((field.name, way, value))
        query = check_query(FIELDS, {"owner": owner}, where, None, 1, None)
        fixed = {test.field.name for test in query.tests if test.operator == "="}
        first = next((field.name for field in FIELDS.fields if field.name not in fixed), None)
        order = chance.choice([None, first, None if first is None else f"-{first}"])
        expected = {
            row for row, document in rows.items() if all(test.holds(test.field.of(document)) for test in query.tests)
        }
        got = every(index, chance.choice([5, 30, 1_000]), owner=owner, where=where, order_by=order)
        found += len(got)
        assert (sorted(each.row_key for each in got), where) == (sorted(expected), where)
        if order is not None and not fixed:
            texts = [FIELDS.field("text").stored(each.entry["text"]) for each in got]
            keys = [(text is not None, text or "") for text in texts]
            assert keys == sorted(keys, reverse=order.startswith("-"))

    assert found > 200


@pytest.mark.guarantee("index-order")
@pytest.mark.twice
def test_each_form_of_query_reads_the_index_and_sorts_nothing(kept, fresh_store, by_hand, new_row):
    """By EXPLAIN, with 2,000 entries in the shard: a covering read of the key 'query', without a filesort."""
    entry = kept.fill()
    fresh_store.put_cells([schemaless.NewCell(new_row(), "BASE", 1, trip(1 + n % 28)) for n in range(2_000)])
    kept.catch_up()
    shards = by_hand(fresh_store)
    database = shards.database(fresh_store.shard_of(CLIENT))
    shards.rows(fresh_store.shard_of(CLIENT), b"ANALYZE TABLE `%b`.index_%d" % (database.encode(), entry.number))
    index = fresh_store.index("client_trips")
    sent: list[bytes] = []
    made = sql.select_matches
    forms: list[dict[str, Any]] = [
        {},
        {"order_by": "at"},
        {"order_by": "-at"},
        {"where": [("at", ">=", "2026-03-09"), ("at", "<", "2026-03-12")], "order_by": "-at"},
        {"where": [("at", "=", "2026-03-09T12:00")], "order_by": "city"},
        {"at": "2026-03-09T12:00", "city": 0, "where": [("s", "!=", "open")]},
        {"where": [("city", "=", 1), ("s", "=", None)]},
        {"where": [("s", ">", "a long text that is cut")], "order_by": "-at"},
        {"where": [("at", "in", ["2026-03-09T12:00", "2026-03-11T12:00"]), ("city", "in", [0, 1])], "order_by": "-at"},
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sql, "select_matches", lambda *args, **kw: sent.append(made(*args, **kw)) or sent[-1])
        for form in forms:
            page = index.query(client=CLIENT, limit=20, **form)
            if page.next is not None:
                index.query(client=CLIENT, limit=20, after=page.next, **form)
    plans = [
        shards.rows(fresh_store.shard_of(CLIENT), b"EXPLAIN FORMAT=TRADITIONAL " + statement) for statement in sent
    ]

    assert len(sent) > 12
    for statement, ((*row,),) in zip(sent, plans, strict=True):
        said = " ".join(map(str, row))
        assert "query" in row, statement
        assert "Using index" in said, statement
        assert "filesort" not in said, statement


def test_pages_go_on_behind_the_last_entry_and_only_with_the_same_query(kept, fresh_store, new_row):
    """A page may be short; ``next`` is text for URLs without values, and is refused with another query."""
    rows = [fresh_store.put_cell(new_row(), "BASE", 1, trip(1 + n)).key.row_key for n in range(6)]
    kept.fill()
    index = fresh_store.index("client_trips")
    fresh_store.put_cell(rows[1], "BASE", 2, trip(2, OTHER))
    first = index.query(client=CLIENT, order_by="at", limit=3)
    second = index.query(client=CLIENT, order_by="at", limit=3, after=first.next)

    assert [each.row_key for each in first.rows] == [rows[0], rows[2]]
    assert [each.row_key for each in second.rows] == rows[3:]
    assert index.query(client=CLIENT, order_by="at", limit=3, after=second.next).next is None
    assert list(index.iter(client=CLIENT, order_by="at", limit=2)) == [*first.rows, *second.rows]
    assert list(index.iter(client=CLIENT, order_by="at", limit=2, after=first.next)) == second.rows
    assert index.first(client=CLIENT, order_by="-at") == second.rows[-1]
    assert index.first(client=CLIENT, where=[("city", "=", 9)]) is None
    assert re.fullmatch("[A-Za-z0-9_-]+", first.next)
    shown = base64.urlsafe_b64decode(first.next + "=" * (-len(first.next) % 4))
    for hidden in (rows[2].bytes, rows[2].hex.encode(), b"2026", b"12:00"):
        assert hidden not in shown
    changed = first.next[:-1] + ("A" if first.next[-1] != "A" else "B")
    for token in (changed, first.next[:40], "[]", "nonsense", "\u00e9", 7):
        with pytest.raises(InvalidInput, match="after= must be the 'next' of an earlier page"):
            index.query(client=CLIENT, order_by="at", limit=3, after=token)
    for other in ({"client": OTHER}, {"client": CLIENT, "where": [("city", "in", [0, 1, 2])]}):
        with pytest.raises(InvalidInput, match="belongs to another query"):
            index.query(**other, order_by="at", after=first.next)


@pytest.mark.guarantee("index-query")
@pytest.mark.twice
def test_in_finds_what_equals_one_of_the_values(kept, fresh_store, new_row):
    """Texts that the index truncates too; nothing satisfies an empty list, and NULL no list."""
    texts = ["open", "closed", "a long text, first", "a long text, second", None]
    rows = [fresh_store.put_cell(new_row(), "BASE", 1, trip(1 + n)).key.row_key for n in range(5)]
    for row, text in zip(rows, texts, strict=True):
        fresh_store.put_cell(row, "STATUS", 1, {"s": text})
    kept.fill()
    index = fresh_store.index("client_trips")

    def found(*conditions: Any) -> list[str | None]:
        return [each.entry["s"] for each in every(index, client=CLIENT, order_by="at", where=conditions)]

    assert found(("s", "in", ["open", "a long text, second", "no such"])) == [texts[0], texts[3]]
    assert found(("s", "in", {"closed"}), ("at", "in", ["2026-03-02T12:00Z", "2026-03-03T12:00Z"])) == ["closed"]
    assert found(("s", "in", [])) == []
    assert found(("client", "in", [CLIENT])) == texts
    assert found(("client", "in", [OTHER])) == []


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ({"colour": 1}, "has no field 'colour'; its fields: client, at, city, s"),
        ({"where": [("city", "~", 1)]}, "one of = != < <= > >= in"),
        ({"where": [("s", "in", "open")]}, "values of 'in' must be a list or another iterable, got 'open'"),
        ({"where": [("city", "in", [1, None])]}, r"values of 'in'\[1\]: .*None does not fit that type"),
        ({"where": [("city", "in", range(1_001))]}, "'in' takes up to 1,000 values"),
        ({"where": [("city", "<", None)]}, "a condition is a field"),
        ({"city": "three"}, "field city is of type int, but 'three' does not fit that type"),
        ({"order_by": "city"}, "can order rows only by at, not by 'city'"),
        ({"limit": 0}, "limit must be an int from 1 to 1,000"),
        ({"columns": ["no such"]}, r"columns\[0\]: column_name"),
        ({"columns": "BASE"}, "columns must be a list or another iterable, got 'BASE'"),
        ({"order_by": 1}, "order_by must be of type str"),
        ({"where": [("city", "=", 1), ("city", ["="], 1)]}, r"where\[1\]: a condition is a field"),
        ({"where": ["city"]}, r"where\[0\]: a condition is a field.*got 'city'"),
        ({"where": 1}, "where must be a list"),
    ],
)
def test_an_impossible_query_says_which_ones_are_possible(query, said):
    """Before anything is sent."""
    with pytest.raises((InvalidInput, schemaless.SchemalessError), match=said):
        check_query(
            TRIPS,
            {"client": CLIENT, **{k: v for k, v in query.items() if k not in ARGUMENTS}},
            query.get("where", ()),
            query.get("order_by"),
            query.get("limit", 5),
            query.get("columns"),
        )


# ---- two columns, the shard field moves


@pytest.mark.guarantee("index-moves")
def test_entries_follow_rows_over_columns_and_shards(kept, fresh_store, new_row):
    """The shard field changes, disappears and returns; one version arrives late, with a lower ref_key."""
    row = new_row()
    fresh_store.put_cell(row, "STATUS", 1, {"s": "open"})
    kept.fill()
    index = fresh_store.index("client_trips")

    def seen() -> list[tuple[int, str | None]]:
        kept.catch_up()
        return [
            (number, each.entry["s"]) for number in range(7, 11) for each in every(index, client=uuid.UUID(int=number))
        ]

    assert seen() == []
    fresh_store.put_cell(row, "BASE", 5, trip(1))
    assert seen() == [(7, "open")]
    fresh_store.put_cell(row, "BASE", 6, trip(1, uuid.UUID(int=9)))
    fresh_store.put_cell(row, "STATUS", 2, {"s": "closed"})
    assert seen() == [(9, "closed")]
    fresh_store.put_cell(row, "BASE", 3, trip(1, OTHER))
    assert seen() == [(9, "closed")]
    fresh_store.put_cell(row, "BASE", 7, {"client": 12})
    assert seen() == []
    fresh_store.put_cell(row, "BASE", 8, trip(1))
    fresh_store.put_cell(row, "STATUS", 3, ["no object"])
    assert seen() == [(7, None)]


@pytest.mark.guarantee("index-wait")
def test_wait_gives_read_your_writes(kept, fresh_store, new_row):
    """It returns once the index has caught up, or on timeout; at once for a row without an entry."""
    kept.fill()
    index = fresh_store.index("client_trips")
    row = fresh_store.put_cell(new_row(), "BASE", 1, trip(1)).key.row_key
    assert not index.wait(row, timeout_s=0.01)
    kept.catch_up()
    assert index.wait(row, timeout_s=0)
    fresh_store.put_cell(row, "STATUS", 1, {"s": "a text over eight"})
    assert not index.wait(row, timeout_s=0)
    kept.catch_up()

    assert index.wait(row, timeout_s=0)
    assert index.wait(new_row(), timeout_s=0)
    with pytest.raises(InvalidInput, match="timeout_s must be a number"):
        index.wait(row, timeout_s="1")


# ---- another definition, dropping


@pytest.mark.guarantee("index-redefined")
@pytest.mark.twice
def test_a_new_definition_is_built_beside_the_old_one_and_takes_its_name(
    kept, fresh_store, admin_store, new_row, accounts, fresh_url, monkeypatch
):
    """Queries work all the time; the old index is dropped later. While a move is unfinished, both are kept."""
    fresh_store.put_cell(new_row(), "BASE", 1, trip(1))
    old = kept.fill()
    index = fresh_store.index("client_trips")
    page = index.query(client=CLIENT, limit=1)
    other = define("client_trips", "BASE.client:uuid", ["BASE.city:int"])
    new = kept.make(other)
    with pytest.raises(InvalidInput, match="exists with another definition, and is backfilling"):
        indexes_of(admin_store).create(define("client_trips", "BASE.client:uuid", ["BASE.at:time"]))
    assert len(index.query(client=CLIENT, where=[("at", ">", "2026-01-01")]).rows) == 1
    kept.catch_up()
    indexes = indexes_of(kept.follow)
    backfill = indexes.backfill(new)
    with schemaless.connect(accounts.root(fresh_url)) as root:
        move = JobStore(root).create("move", MoveSpec("cluster-2").as_json(), {0: 1}, ["cluster-1"], {}).job_id
        assert not indexes.watch(new, backfill)
        assert [each.state for each in indexes.named("client_trips")] == ["ready", BACKFILLING]
        JobStore(root).change_state(move, ("running",), "cancelled")
    assert indexes.watch(new, backfill)
    # For as long as it takes to drop both indexes, however busy the machine is.
    monkeypatch.setattr(registry, "LOOK_S", 1_000)
    internals_of(fresh_store).registry.read()

    assert [(each.number, each.state) for each in indexes.named("client_trips")] == [
        (old.number, DROPPING),
        (new.number, "ready"),
    ]
    assert len(index.query(client=CLIENT, order_by="city").rows) == 1
    with pytest.raises(InvalidInput, match="has no field 'at'"):
        index.query(client=CLIENT, where=[("at", ">", "2026-01-01")])
    with pytest.raises(InvalidInput, match="belongs to another query, or to an earlier index"):
        index.query(client=CLIENT, limit=1, after=page.next)
    waited: list[float] = []
    indexes_of(admin_store).drop(old, wait=waited.append)
    indexes_of(admin_store).drop(new, wait=waited.append)
    assert waited == [2 * LOOK_S]
    # This process still has the old list of indexes.
    with pytest.raises(UnknownIndex, match="was dropped"):
        index.query(client=CLIENT)
    internals_of(fresh_store).registry.read()
    with pytest.raises(UnknownIndex, match="has no index 'client_trips'"):
        index.query(client=CLIENT)
    unmaintained, _ = indexes_of(admin_store).create(other)
    assert unmaintained.number == new.number + 1
    kept.allow(unmaintained.number)
    indexes_of(admin_store).drop(unmaintained, wait=waited.append)
    assert waited == [2 * LOOK_S]


@pytest.mark.guarantee("index-redefined")
@pytest.mark.twice
def test_a_table_of_another_definition_is_not_used(kept, fresh_store, by_hand):
    """After the catalog or the shard was restored from an earlier backup."""
    entry = kept.fill()
    shards = by_hand(fresh_store)
    shard = fresh_store.shard_of(CLIENT)
    name = (shards.database(shard).encode(), entry.number)
    shards.execute(shard, b"ALTER TABLE `%b`.index_%d COMMENT='of another one'" % name)

    with pytest.raises(SchemaMismatch, match="was not created from the catalog's definition of index client_trips"):
        fresh_store.index("client_trips").query(client=CLIENT)


def test_an_index_is_made_where_a_shard_went_and_not_beside_a_move(accounts, fresh_url, admin_store):
    """An unfinished move prevents both creating and dropping. After a move, the topology of a client may be outdated.

    The tables are then created on the shard's new server, not on the one that it has left.
    """
    name, shard = admin_store.name, 0
    with schemaless.connect(accounts.root(fresh_url)) as root:
        job = JobStore(root).create("move", MoveSpec("cluster-2").as_json(), {shard: 1}, ["cluster-1"], {})
        with pytest.raises(JobConflict, match=rf"move {job.job_id} is running.*shards abort --job {job.job_id}"):
            indexes_of(admin_store).create(TRIPS)
        JobStore(root).change_state(job.job_id, ("running",), "cancelled")
        move = MoveByHand(root, internals_of(root).shards, shard)
        move.run()
        accounts.allow_admin_anywhere(name, 4)
        entry, _ = indexes_of(admin_store).create(TRIPS)
        tables = [
            {table for (table,) in query(node, f"SHOW TABLES FROM {name}_0000 LIKE 'index%'")}
            for node in (move.source, move.target)
        ]
        JobStore(root).change_state(job.job_id, ("cancelled",), "running")
        with pytest.raises(JobConflict):
            indexes_of(admin_store).drop(entry)

    assert tables == [set(), {f"index_{entry.number}"}]
    assert [each.state for each in indexes_of(admin_store).all()] == [BACKFILLING]


def test_an_index_whose_insert_lost_its_reply_is_there_once(kept, monkeypatch):
    """The statement that registers the index is repeated after a lost connection, and inserts nothing."""
    execute, losses = Connection.execute, [1]

    def lost(self, statement):
        done = execute(self, statement)
        if b"INTO `" in statement and b"secondary_index" in statement and losses:
            losses.pop()
            raise ConnectionLost("the reply was lost", node=self.node)
        return done

    monkeypatch.setattr(Connection, "execute", lost)
    kept.make()

    assert not losses
    assert [entry.number for entry in indexes_of(kept.admin).all()] == [1]


def test_a_text_that_is_no_utf8_does_not_fit(kept, fresh_store, new_row):
    """A lone surrogate is valid JSON: the field is NULL, the worker continues, and a query for it is refused."""
    odd = fresh_store.put_cell(new_row(), "STATUS", 1, {"s": "\ud800"}).key.row_key
    fresh_store.put_cell(odd, "BASE", 1, trip(1))
    later = fresh_store.put_cell(new_row(), "BASE", 1, trip(2)).key.row_key
    kept.fill()
    index = fresh_store.index("client_trips")

    assert {row.row_key: row.entry["s"] for row in index.query(client=CLIENT).rows} == {odd: None, later: None}
    with pytest.raises(InvalidInput, match="field s is of type text"):
        index.query(client=CLIENT, s="\ud800")


def test_an_unexpected_error_makes_the_shard_wait(kept, fresh_store, new_row, monkeypatch):
    """It would end every worker that takes over the page."""
    fresh_store.put_cell(new_row(), "BASE", 1, trip(1))
    kept.make()
    worker = kept.worker()
    with monkeypatch.context() as patch:
        patch.setattr("schemaless.store.indexes.entries.page_writes", lambda *_: 1 // 0)
        worker.turn()
        reasons = {lease.wait.reason for lease in worker.leases.held.values()}
    for lease in worker.leases.held.values():
        lease.wait.until_s = 0
    kept.catch_up()

    assert any(reason.startswith("ZeroDivisionError: ") for reason in reasons)


@pytest.mark.guarantee("index-query")
def test_a_damaged_cell_keeps_no_other_row_from_being_found(kept, fresh_store, by_hand, new_row):
    """Its row is found by its other values; the result has the error in place of the cell."""
    damaged, whole = (fresh_store.put_cell(new_row(), "BASE", 1, trip(1)).key.row_key for _ in range(2))
    fresh_store.put_cell(damaged, "STATUS", 1, {"s": "open"})
    shards, shard = by_hand(fresh_store), fresh_store.shard_of(damaged)
    shards.execute(shard, b"UPDATE `%b`.cell SET body='{' WHERE column_name='STATUS'" % shards.database(shard).encode())
    kept.fill()
    index = fresh_store.index("client_trips")
    found = {row.row_key: row for row in index.query(client=CLIENT).rows}

    assert found.keys() == {damaged, whole}
    assert (found[damaged].entry["s"], list(found[damaged].cells)) == (None, ["BASE"])
    assert (list(found[damaged].damaged), found[whole].damaged) == (["STATUS"], {})
    assert index.query(client=CLIENT, s="open").rows == []
    assert index.wait(damaged)


def test_a_column_whose_name_has_a_dot_is_declared_in_quotes():
    """Without quotes, the part after the dot is a key of the path."""
    quoted = define("by_client", '"v1.BASE".client:uuid', ['day="v1.BASE".at.day:int'])
    fields = [(field.name, field.column, field.path) for field in quoted.all_fields]

    assert fields == [("client", "v1.BASE", ("client",)), ("day", "v1.BASE", ("at", "day"))]
    assert define("plain", "v1.BASE.client:uuid", []).shard_field.column == "v1"
    with pytest.raises(InvalidInput, match="a field must be declared as"):
        define("odd", '"v1.BASE.client:uuid', [])


@pytest.mark.twice
def test_an_index_that_no_query_reads_is_known_until_one_does(
    kept, accounts, fresh_store, fresh_url, new_row, flavour, by_hand
):
    """Changes are counted, so no read means none; an account that may not read the counters knows nothing."""
    root = by_hand(fresh_store)
    accounts.allow("measure", fresh_store.name, 4)
    for shard in range(4) if flavour == "mariadb" else ():
        root.execute(shard, b"SET GLOBAL userstat=1")
    with schemaless.connect(accounts.url("measure", fresh_url)) as measured:
        shards, table = internals_of(measured).shards, kept.fill().layout.table
        clients = [uuid.UUID(int=number) for number in range(1, 20)]  # in all shards
        fresh_store.put_cells([schemaless.NewCell(new_row(), "BASE", 1, trip(1, client)) for client in clients])
        kept.catch_up()
        before = unread_since(shards, [table, "index_9999"])
        assert unread_since(internals_of(fresh_store).shards, [table]) == {}
        assert len(every(fresh_store.index("client_trips"), client=CLIENT)) == 1
        assert unread_since(shards, [table]) == {}
    assert list(before) == [table]
    assert before[table] < datetime.now(UTC)
    if flavour == "mariadb":
        statements = [sql.select_user_statistics([root.database(shard)], [table]) for shard in range(4)]
        found = [row for shard, statement in enumerate(statements) for row in root.rows(shard, statement)]
        changes, reads = (sum(figures) for figures in list(zip(*found, strict=True))[1:])
        assert (changes >= 19, reads >= 1) == (True, True)
