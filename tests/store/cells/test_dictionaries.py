"""Dictionaries of a live datastore: fetched once, verified, reported when lost, and not removed while needed."""

from __future__ import annotations

import itertools
import json
import os
import signal
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

import schemaless
from schemaless import (
    BatchError,
    CellConflict,
    Datastore,
    DictionaryDamaged,
    DictionaryInUse,
    InvalidCell,
    InvalidInput,
    NewCell,
    NewStoredCell,
    UnknownDictionary,
)
from schemaless.codec.dictionaries import FIRST_ID, Dictionary
from schemaless.codec.envelope import describe_body, dictionary_of, encode_body
from schemaless.codec.registry import DEFAULT, codec_named
from schemaless.ops.admin.dictionary_removal import remove
from schemaless.store.cells import column_codecs as columns
from schemaless.store.cells import dictionaries
from schemaless.store.cells.column_codecs import ColumnCodecs, ColumnSetting, settings, unset_column
from schemaless.store.cells.dictionary_replicas import DictionaryReplica, Stored
from schemaless.store.internals import internals_of
from schemaless.topology.shards import Shards
from tests.cases import each
from tests.dictionaries import COLUMN, ZSTD, cells, document, kept, set_to, training

Sql = Callable[[str], None]


@pytest.fixture
def admin(admin_url: str) -> Iterator[Datastore]:
    with schemaless.connect(admin_url) as opened:
        yield opened


@pytest.fixture
def by_root(admin: Datastore, by_hand: Callable[[Datastore], Shards]) -> Sql:
    """Run SQL as root on the catalog and on every cluster's copy."""
    dictionary_replicas = internals_of(admin).dictionary_replicas

    def run(sql: str) -> None:
        for replica in (dictionary_replicas.catalog, *dictionary_replicas.copies):
            text = sql.format(table=f"`{replica.database}`.dictionary").encode()
            by_hand(admin).pool_for(replica.pool.node).run(lambda connection, text=text: connection.execute(text))

    return run


@pytest.fixture
def written(admin: Datastore, fresh_url: str) -> tuple[Dictionary, list[NewCell]]:
    """A dictionary and cells that need it."""
    dictionary = kept(admin)
    set_to(admin, dictionary.id)
    made = cells(60)
    with schemaless.connect(fresh_url) as store:
        store.put_cells(made)
    return dictionary, made


def named(store: Datastore) -> set[int | None]:
    return {dictionary_of(cell.body) for shard in range(store.shard_count) for cell in store.scan_shard(shard)}


def test_cells_of_a_column_are_written_with_its_dictionary(
    fresh_url: str, written: tuple[Dictionary, list[NewCell]], admin: Datastore
) -> None:
    """All three write calls use the column's codec; other columns and an explicit codec do not."""
    dictionary, made = written
    with schemaless.connect(fresh_url) as store:
        assert named(store) == {dictionary.id}
        row = made[0].row_key
        store.put_cell(row, COLUMN, 2, document(2))
        store.append_cell(row, COLUMN, document(3))
        store.put_cell(row, "OTHER", 1, document(4))
        store.put_cell(row, "OTHER", 2, document(5), codec="json+zlib")
        store.put_cell(row, COLUMN, 9, document(6), codec="msgpack+zlib")
        stored = {(cell.column_name, cell.ref_key): cell.body for cell in store.scan_shard(store.shard_of(row))}
        assert [dictionary_of(stored[COLUMN, ref_key]) for ref_key in (2, 3, 9)] == [dictionary.id, dictionary.id, None]
        assert [describe_body(stored["OTHER", ref_key]).name for ref_key in (1, 2)] == ["msgpack+zlib", "json+zlib"]
        assert {cell.row_key: store.get_cell(cell.row_key, COLUMN, 1).body for cell in made} == {  # type: ignore[union-attr]
            cell.row_key: cell.body for cell in made
        }
        assert store.put_cells(made)[0].created is False, "the same cell, however it is stored"
        with pytest.raises(schemaless.CellConflict):
            store.put_cell(row, COLUMN, 1, {"another": "document"})


THERE = ("nothing", "dictionary", "another dictionary", "legacy", "msgpack+zlib")


@each("there, trusted", itertools.product(THERE, (False, True)))
def test_put_stored_cells_with_a_dictionary_creates_finds_or_conflicts(
    fresh_store: Datastore, admin: Datastore, new_row: Callable[[], uuid.UUID], there: str, trusted: bool
) -> None:
    """Putting a body with a dictionary over any existing body is created, equal or in conflict, as for other bodies."""
    codecs = {
        "dictionary": replace(ZSTD, dictionary=kept(admin)),
        "another dictionary": replace(ZSTD, dictionary=kept(admin, 900)),
        "legacy": codec_named("legacy"),
        "msgpack+zlib": DEFAULT,
    }
    row = new_row()
    with_it = [NewStoredCell(row, COLUMN, 1, encode_body(document(n), codecs["dictionary"])) for n in (1, 2)]
    if there != "nothing":
        fresh_store.put_stored_cells([NewStoredCell(row, COLUMN, 1, encode_body(document(1), codecs[there]))])

    (put,) = fresh_store.put_stored_cells(with_it[:1], trusted=trusted)
    (again,) = fresh_store.put_stored_cells(with_it[:1], look_first=True, trusted=trusted)
    with pytest.raises(BatchError) as refused:
        fresh_store.put_stored_cells(with_it[1:], trusted=trusted)

    assert (put.created, again.created) == (there == "nothing", False)
    (cause,) = refused.value.causes.values()
    assert isinstance(cause, CellConflict)
    assert fresh_store.get_cell(row, COLUMN, 1).body == document(1)  # type: ignore[union-attr]


@pytest.mark.parametrize("trusted", [False, True])
def test_put_stored_cells_twice_in_a_batch_is_compared_by_document(
    fresh_store: Datastore, admin: Datastore, trusted: bool
) -> None:
    """One document with and without a dictionary is one cell; another document is refused before anything is sent."""
    coded = replace(ZSTD, dictionary=kept(admin))
    row = uuid.uuid5(uuid.NAMESPACE_OID, "a row of its own")
    one, same, other = (
        NewStoredCell(row, COLUMN, 1, encode_body(document(n), codec))
        for n, codec in ((1, coded), (1, DEFAULT), (2, coded))
    )

    assert [put.created for put in fresh_store.put_stored_cells([one, same], trusted=trusted)] == [True, True]
    with pytest.raises(InvalidCell, match="occurs in the batch with two different bodies"):
        fresh_store.put_stored_cells([one, other], trusted=trusted)


@pytest.mark.guarantee("dictionary-fetch")
def test_ten_thousand_reads_fetch_a_dictionary_once(
    fresh_url: str, written: tuple[Dictionary, list[NewCell]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Concurrent threads wait for a single fetch, and forked children inherit the parent's cache."""
    _, made = written
    asked: list[int] = []
    fetch = DictionaryReplica.row

    def counted(self: DictionaryReplica, dictionary_id: int) -> Stored | None:
        asked.append(os.getpid())
        time.sleep(0.05)  # lets other threads arrive
        return fetch(self, dictionary_id)

    monkeypatch.setattr(DictionaryReplica, "row", counted)
    with schemaless.connect(fresh_url) as store:
        rows = [cell.row_key for cell in made]
        wrong: list[object] = []

        def read(count: int) -> None:
            found = [store.get_cells_latest((row, COLUMN) for row in rows) for _ in range(count // len(rows))]
            wrong.extend(each for each in found if len(each) != len(rows))

        threads = [threading.Thread(target=read, args=(1_260,)) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert wrong == []
        assert asked == [os.getpid()]
        child = os.fork()
        if child == 0:  # has the parent's cache, but its own lock
            try:
                read(60)
                os._exit(0 if len(asked) == 1 and not wrong else 1)
            finally:
                os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert asked == [os.getpid()]


def test_rows_are_read_with_a_dictionary_that_has_to_be_fetched_by_one_connection_to_each_server(
    fresh_url: str, written: tuple[Dictionary, list[NewCell]]
) -> None:
    """Rows are decoded while connections are held, so fetching a dictionary then would need a second connection."""
    _, made = written
    bodies = {
        uuid.UUID(bytes=cell.row_key) if isinstance(cell.row_key, bytes) else cell.row_key: cell.body for cell in made
    }
    with schemaless.connect(fresh_url, pool_size=1) as store:
        rows = [row.bytes for row in bodies]
        for _ in range(2):
            found = internals_of(store).rows.read(rows, [COLUMN], lambda latest: latest)
            assert [(row.row_key, row.cells[COLUMN].body, row.damaged) for row in found] == [
                (row, body, {}) for row, body in bodies.items()
            ]


@pytest.mark.guarantee("dictionary-fetch")
def test_a_child_forked_during_a_fetch_continues(
    fresh_url: str, written: tuple[Dictionary, list[NewCell]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The child does not wait for a lock held by a thread of its parent."""
    _, made = written
    parent, begun, go_on = os.getpid(), threading.Event(), threading.Event()
    fetch = DictionaryReplica.row

    def held(self: DictionaryReplica, dictionary_id: int) -> Stored | None:
        if os.getpid() == parent:
            begun.set()
            go_on.wait(120)
        return fetch(self, dictionary_id)

    monkeypatch.setattr(DictionaryReplica, "row", held)
    with schemaless.connect(fresh_url) as store:
        thread = threading.Thread(target=lambda: store.get_cell(made[0].row_key, COLUMN, 1))
        thread.start()
        assert begun.wait(120)
        child = os.fork()
        if child == 0:
            try:
                signal.alarm(120)
                cell = store.get_cell(made[0].row_key, COLUMN, 1)
                os._exit(0 if cell is not None and cell.body == made[0].body else 1)
            finally:
                os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        go_on.set()
        thread.join()


@pytest.mark.guarantee("dictionary-loss")
@pytest.mark.parametrize(
    ("damage", "error"),
    [
        ("DELETE FROM {table}", UnknownDictionary),
        ("UPDATE {table} SET content=NULL, removed_at=UTC_TIMESTAMP()", UnknownDictionary),
        ("UPDATE {table} SET content=REPLACE(content, 'currency', 'currenzy')", DictionaryDamaged),
        ("UPDATE {table} SET content=LEFT(content, 900)", DictionaryDamaged),
        ("UPDATE {table} SET content=''", DictionaryDamaged),
        ("UPDATE {table} SET digest=REVERSE(digest)", DictionaryDamaged),
        ("UPDATE {table} SET dictionary_id=dictionary_id+1", UnknownDictionary),
    ],
)
def test_a_lost_or_altered_dictionary_is_named_and_can_be_restored(
    fresh_url: str,
    written: tuple[Dictionary, list[NewCell]],
    admin: Datastore,
    by_root: Sql,
    damage: str,
    error: type[Exception],
) -> None:
    """The error names the dictionary and the cell; reads work again after its restoration, without a restart."""
    dictionary, made = written
    by_root(damage)
    with schemaless.connect(fresh_url) as store:
        shard = store.shard_of(made[0].row_key)
        calls: list[Callable[[], object]] = [
            lambda: store.get_cell(made[0].row_key, COLUMN, 1),
            lambda: store.get_cell_latest(made[0].row_key, COLUMN),
            lambda: store.get_row(made[0].row_key),
            lambda: list(store.get_versions(made[0].row_key, COLUMN)),
            lambda: store.get_cells_for_shard(shard),
            lambda: store.put_cell(made[0].row_key, COLUMN, 1, {"another": 1}),
        ]
        for call in calls:
            with pytest.raises(error, match=rf"zstd dictionary {dictionary.id}\b") as raised:
                call()
            assert raised.value.key is not None  # type: ignore[attr-defined]
            assert raised.value.shard == shard  # type: ignore[attr-defined]
        # Writing continues without the dictionary.
        store.put_cell(made[0].row_key, COLUMN, 7, document(7))
        assert store.get_cell(made[0].row_key, COLUMN, 7).body == document(7)  # type: ignore[union-attr]
        assert internals_of(admin).dictionary_replicas.bring(dictionary, {}) == dictionary
        for cell in made:
            assert store.get_cell(cell.row_key, COLUMN, 1).body == cell.body  # type: ignore[union-attr]


@pytest.mark.guarantee("dictionary-loss")
def test_another_dictionary_under_the_number_is_found_out(
    fresh_url: str, written: tuple[Dictionary, list[NewCell]], admin: Datastore, by_root: Sql
) -> None:
    """A catalog restored from an old backup, with a newly trained dictionary, yields no wrong documents."""
    dictionary, made = written
    other = training(900).dictionary.renumbered(dictionary.id)
    by_root(f"UPDATE {{table}} SET content=x'{other.content.hex()}', digest=x'{other.digest.hex()}'")
    with schemaless.connect(fresh_url) as store:
        for cell in made:
            with pytest.raises(DictionaryDamaged, match=str(dictionary.id)):
                store.get_cell(cell.row_key, COLUMN, 1)


def test_numbers_are_given_once_and_the_same_bytes_kept_once(admin: Datastore, by_root: Sql) -> None:
    """Ids begin at 32,768, a lost id is not reused, and a dictionary that differs only in its id is found."""
    first, second = kept(admin), kept(admin, 900)
    assert (first.id, second.id) == (FIRST_ID, FIRST_ID + 1)
    assert internals_of(admin).dictionary_replicas.keep(first.renumbered(50_000), {}) == first
    assert internals_of(admin).dictionary_replicas.bring(first.renumbered(second.id), {}) == first, (
        "the number is taken"
    )
    third = training(1800).dictionary
    assert internals_of(admin).dictionary_replicas.bring(third.renumbered(first.id), {}).id == FIRST_ID + 2
    assert internals_of(admin).dictionary_replicas.bring(third.renumbered(FIRST_ID + 9), {}).id == FIRST_ID + 9, (
        "it is free"
    )
    by_root(f"DELETE FROM {{table}} WHERE dictionary_id={FIRST_ID + 9}")
    assert kept(admin, 2700).id == FIRST_ID + 10
    found = [*internals_of(admin).dictionary_replicas.catalog.rows().values()]
    assert [each.fault for each in found] == [None] * 4
    assert all(each.size_bytes == 2_048 for each in found)


def test_a_writing_process_learns_of_a_change_and_a_silent_catalog_stops_dictionaries(
    fresh_url: str, admin: Datastore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within the stated time, and without the dictionary once the catalog no longer confirms that it may be used."""
    now = [1_000.0]
    monkeypatch.setattr(columns.time, "monotonic", lambda: now[0])
    dictionary = kept(admin)
    with schemaless.connect(fresh_url) as store:
        assert store.codec_for(COLUMN) == DEFAULT
        set_to(admin, dictionary.id)
        now[0] += columns.REFRESH_S - 1
        assert store.codec_for(COLUMN) == DEFAULT
        now[0] += 2
        assert store.codec_for(COLUMN) == replace(ZSTD, dictionary=dictionary)
        unset_column(internals_of(admin).catalog, admin.name, COLUMN)
        now[0] += columns.REFRESH_S + 1
        assert store.codec_for(COLUMN) == DEFAULT

    def silent() -> list[ColumnSetting]:
        raise schemaless.ServerUnavailable("gone", node="db-1")

    codecs = ColumnCodecs(silent, dictionary, [ColumnSetting(COLUMN, "msgpack+zstd", 9, dictionary.id)])
    assert codecs.codec_for(COLUMN) == replace(ZSTD, level=9, dictionary=dictionary)
    now[0] += columns.REFRESH_S + 1
    assert codecs.codec_for(COLUMN) == replace(ZSTD, level=9)


def test_invalid_settings_are_refused(admin: Datastore) -> None:
    """A column cannot be set to a missing dictionary, to legacy, or to an option that the codec does not take."""
    dictionary = kept(admin)
    for setting, complaint in (
        (ColumnSetting(COLUMN, "msgpack+zstd", None, 40_000), "no dictionary 40000"),
        (ColumnSetting(COLUMN, "msgpack+zlib", None, dictionary.id), "does not take a dictionary"),
        (ColumnSetting(COLUMN, "msgpack+zstd", 23), "levels 1 to 22"),
        (ColumnSetting(COLUMN, "legacy"), "no checksum"),
    ):
        with pytest.raises(InvalidInput, match=complaint):
            columns.set_column(internals_of(admin).dictionary_replicas, setting)
    with pytest.raises(schemaless.InvalidCell):
        columns.set_column(internals_of(admin).dictionary_replicas, ColumnSetting("no such name", "msgpack+zstd"))
    assert settings(internals_of(admin).catalog, admin.name) == []


@pytest.mark.guarantee("dictionary-loss")
def test_removal_is_refused_while_anything_may_need_it(
    fresh_url: str, written: tuple[Dictionary, list[NewCell]], admin: Datastore
) -> None:
    """A column, an hour of retirement and a single cell each prevent removal; afterwards the id stays reserved."""
    dictionary, _ = written
    with pytest.raises(DictionaryInUse, match=f"column {COLUMN}"):
        remove(admin, dictionary.id, grace_s=0)
    set_to(admin, None)
    first = remove(admin, dictionary.id)
    assert not first.removed
    assert not remove(admin, dictionary.id).removed, "the hour is not over"
    with pytest.raises(InvalidInput, match="retired"):
        internals_of(admin).dictionaries.for_new_bodies(dictionary.id)
    with pytest.raises(DictionaryInUse, match="needs it") as raised:
        remove(admin, dictionary.id, grace_s=0)
    assert COLUMN in str(raised.value)
    assert [each.fault for each in [*internals_of(admin).dictionary_replicas.catalog.rows().values()]] == [None]
    set_to(admin, dictionary.id)
    assert internals_of(admin).dictionary_replicas.catalog.row(dictionary.id).retired_at is None, "taken back"


def test_a_dictionary_that_no_cell_needs_is_removed(admin: Datastore, fresh_store: Datastore) -> None:
    """Bodies with other codecs or dictionaries do not prevent removal, and the dictionary can be restored."""
    dictionary, other = kept(admin), kept(admin, 900)
    others = (DEFAULT, ZSTD, replace(ZSTD, dictionary=other))
    fresh_store.put_stored_cells(
        (
            schemaless.NewStoredCell(cell.row_key, COLUMN, 1, encode_body(cell.body, others[number % 3]))
            for number, cell in enumerate(cells(30))
        ),
        trusted=True,
    )
    remove(admin, dictionary.id, grace_s=0)
    done = remove(admin, dictionary.id, grace_s=0)
    assert (done.removed, done.cells) == (True, 30)
    assert internals_of(admin).dictionary_replicas.catalog.row(dictionary.id).removed_at is not None
    with pytest.raises(UnknownDictionary, match="was removed on"):
        internals_of(fresh_store).dictionaries.get(dictionary.id)
    with pytest.raises(InvalidInput):
        remove(admin, dictionary.id, grace_s=0)
    assert kept(admin, 1800).id == other.id + 1
    assert internals_of(admin).dictionary_replicas.bring(dictionary, {}) == dictionary
    assert internals_of(fresh_store).dictionaries.get(dictionary.id) == dictionary


def test_the_roles_that_read_may_not_write_dictionaries(fresh_store: Datastore, admin: Datastore) -> None:
    """The role ``app`` can read with dictionaries, but neither store nor set one."""
    dictionary = kept(admin)
    assert internals_of(fresh_store).dictionaries.get(dictionary.id) == dictionary
    with pytest.raises(schemaless.AccessDenied):
        internals_of(fresh_store).dictionary_replicas.keep(training(900).dictionary, {})
    with pytest.raises(schemaless.AccessDenied):
        set_to(fresh_store, dictionary.id)
    assert internals_of(fresh_store).dictionary_replicas.bring(dictionary, {}) == dictionary, "it is there"


def test_lines_of_dictionaries_are_verified() -> None:
    """An exported dictionary can be imported; an altered line is refused."""
    dictionary = training().dictionary
    line = dictionaries.dictionary_line(dictionary, {"column": COLUMN})
    fields = json.loads(line)
    assert dictionaries.parse_dictionary_line(fields) == (dictionary, {"column": COLUMN})
    assert dictionaries.is_dictionary_line(fields)
    for change in ({"sha256": "00" * 32}, {"dictionary": 40_000}, {"content": "!"}, {"content": ""}, {"content": None}):
        with pytest.raises(InvalidInput):
            dictionaries.parse_dictionary_line({**fields, **change})
