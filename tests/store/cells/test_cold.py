"""Cold cells: every read returns them as if their documents were in the database, or says what is wrong with a file."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import uuid
from dataclasses import replace

import pytest

import schemaless
import schemaless.aio
from schemaless import (
    CellConflict,
    ColdBodyMissing,
    ColdFileDamaged,
    ColdStoreUnavailable,
    InvalidInput,
    NewCell,
    NewStoredCell,
    connect,
)
from schemaless.codec.deltas import encode_delta
from schemaless.codec.engine import ENGINE
from schemaless.codec.envelope import is_reference, tombstone
from schemaless.ops.failover import nodes
from schemaless.store.cold.content import without_documents
from schemaless.store.cold.fetching import cache
from schemaless.store.cold.targets import LocalTarget
from schemaless.store.internals import internals_of
from schemaless.wire.connection import Connection
from tests.accounts import accounts_on
from tests.cold import ColdFolder
from tests.promotion import caught_up, promoted, read_only, sql, word

pytestmark = [pytest.mark.mysql]

COUNT = 12


def document(ref_key):
    return {"legs": [{"from": f"A{number}", "at": -0.0} for number in range(900)], "n": ref_key}


@pytest.fixture
def store(fresh_store):
    return fresh_store


@pytest.fixture
def folder(store, by_hand, tmp_path):
    return ColdFolder(store, by_hand(store), tmp_path)


@pytest.fixture
def cold_file(store, row, folder):
    """A row with some versions, all but the last of them in a file."""
    for ref_key in range(1, COUNT + 1):
        store.put_cell(row, "BASE", ref_key, document(ref_key))
    (file,) = folder.freeze([(row, "BASE", ref_key) for ref_key in range(1, COUNT)])
    return file


def forgetful(store):
    """Return another connection, which knows no file yet."""
    cache().clear()
    return connect(str(internals_of(store).url))


@pytest.mark.twice
@pytest.mark.guarantee("cold-exact")
def test_every_call_returns_the_documents_of_cold_cells(store, tail_store, row, cold_file):
    """By key, by row, descending, from the feed, from a scan and in Arrow batches; stored cells decode."""
    shard = store.shard_of(row)
    expected = [(ref_key, document(ref_key)) for ref_key in range(1, COUNT + 1)]

    def found(cells):
        return sorted((cell.ref_key, cell.body) for cell in cells if cell.row_key == row)

    assert [store.get_cell(row, "BASE", ref_key).body for ref_key, _ in expected] == [body for _, body in expected]
    assert found(store.get_versions(row, "BASE", limit=None)) == expected
    assert found(tail_store.iter_shard(shard)) == expected
    stored = [cell for cell in store.scan_shard(shard) if cell.row_key == row]
    assert [is_reference(cell.body) for cell in stored] == [True] * (COUNT - 1) + [False]
    assert [(cell.ref_key, cell.decode().body) for cell in stored] == expected
    batches = store.arrow("BASE", shards=[shard]).read_all().to_pylist()
    assert len([batch for batch in batches if batch["row_key"] == str(row)]) == COUNT

    async def read():
        async with await schemaless.aio.connect(str(internals_of(store).url)) as opened:
            cells = await asyncio.gather(*(opened.get_cell(row, "BASE", ref_key) for ref_key, _ in expected))
            versions = [cell async for cell in opened.get_versions(row, "BASE", limit=None)]
            return found(cells), found(versions)

    cache().clear()
    assert asyncio.run(read()) == (expected, expected)


class Gate:
    """Holds reads of files until it is opened."""

    def __init__(self, monkeypatch):
        self.opened, self.reads = threading.Event(), 0
        open_input = LocalTarget.open_input

        def slowly(target, name):
            self.reads += 1
            assert self.opened.wait(120)
            return open_input(target, name)

        monkeypatch.setattr(LocalTarget, "open_input", slowly)

    async def reached(self):
        while not self.reads:
            await asyncio.sleep(0.001)


@pytest.fixture
def gate(monkeypatch):
    cache().clear()
    made = Gate(monkeypatch)
    yield made
    made.opened.set()


@pytest.mark.guarantee("aio-cancelled", "cold-present")
def test_tasks_share_a_fetch_that_outlives_each_of_them(store, row, cold_file, gate, caplog):
    """One is cancelled, one does not wait, one gets the document, others read hot cells; then none waits."""

    async def read():
        url = str(internals_of(store).url)
        async with (
            await schemaless.aio.connect(url) as opened,
            await schemaless.aio.connect(url) as hasty,
        ):
            await hasty.get_cell(row, "BASE", COUNT)  # opens a connection, which keeps the timeout of other reads
            object.__setattr__(internals_of(hasty).shards.pools.options, "read_timeout_s", 0.05)
            tasks = [asyncio.create_task(opened.get_cell(row, "BASE", ref_key)) for ref_key in (1, 2, 3)]
            await gate.reached()
            with pytest.raises(ColdStoreUnavailable, match=r"no reply within 0\.05 s"):
                await hasty.get_cell(row, "BASE", 1)
            assert (await opened.get_cell(row, "BASE", COUNT)).body == document(COUNT)
            assert (await opened.put_cell(row, "BASE", COUNT, document(COUNT))).created is False
            tasks[0].cancel()
            with pytest.raises(asyncio.CancelledError):
                await tasks[0]
            assert not tasks[1].done()
            gate.opened.set()
            assert [(await task).body for task in tasks[1:]] == [document(2), document(3)]
            assert gate.reads == 1
            cache().clear()
            gate.opened.clear()
            gate.reads = 0
            last = asyncio.create_task(opened.get_cell(row, "BASE", 1))
            await gate.reached()
            last.cancel()
            with pytest.raises(asyncio.CancelledError):
                await last

    asyncio.run(read())
    gate.opened.set()
    assert store.get_cell(row, "BASE", 1).body == document(1)
    assert gate.reads == 1
    assert [record.message for record in caplog.records if record.levelno >= logging.ERROR] == []


def test_a_datastore_may_be_closed_during_a_fetch(store, row, cold_file, gate):
    """The call gets its document, or an error that says so; others read from the cache what was fetched."""

    async def read():
        opened = await schemaless.aio.connect(str(internals_of(store).url))
        task = asyncio.create_task(opened.get_cell(row, "BASE", 1))
        await gate.reached()
        await opened.close()
        gate.opened.set()
        return await task

    assert asyncio.run(read()).body == document(1)
    assert store.get_cell(row, "BASE", 2).body == document(2)
    assert gate.reads == 1


def test_a_child_process_reads_cold_cells(store, row, cold_file):
    """It has the parent's datastore, but neither its connections nor its threads."""
    assert store.get_cell(row, "BASE", 1).body == document(1)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = 0 if store.get_cell(row, "BASE", 2).body == document(2) and cache().misses == 1 else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert store.get_cell(row, "BASE", 3).body == document(3)


def test_a_cold_cell_takes_the_statements_of_a_hot_one(store, row, cold_file, monkeypatch):
    """Once the file is known: one, for any number of cells; and a put of a cold cell compares once more."""
    sent, rows = [], Connection.rows
    monkeypatch.setattr(
        Connection, "rows", lambda connection, sql, check=None: sent.append(sql) or rows(connection, sql, check)
    )

    def count(call):
        sent.clear()
        call()
        return len(sent)

    assert count(lambda: store.get_cell(row, "BASE", COUNT)) == 1
    assert count(lambda: store.get_cell(row, "BASE", 1)) == 3  # where the store is, and the file
    assert count(lambda: store.get_cell(row, "BASE", 2)) == 1
    assert count(lambda: list(store.get_versions(row, "BASE", limit=8))) == 1
    assert count(lambda: store.put_cell(row, "BASE", 3, document(3))) == 2
    assert count(lambda: store.put_cell(row, "BASE", COUNT, document(COUNT))) == 1


def test_jobs_read_cells_without_their_documents(store, row, cold_file):
    """The references are returned as they are stored, and no file is read."""
    fetched, internals, shard = cache().misses, internals_of(store), store.shard_of(row)
    scanned = [cell for cell in internals.scan(shard, cold=False) if cell.row_key == row]
    read = list(internals.read_stored(shard, [cell.added_id for cell in scanned], cold=False))
    assert [cell.body for cell in read] == [cell.body for cell in scanned]
    assert sum(is_reference(cell.body) for cell in read) == COUNT - 1
    with pytest.raises(ColdBodyMissing, match="is not available here"):
        read[0].decode()
    assert cache().misses == fetched


def test_latest_cells_may_be_cold(store, new_row, folder):
    """Many at once, whole rows, and rows that are fetched for an index."""
    rows = [new_row() for _ in range(20)]
    store.put_cells([NewCell(row, name, 1, document(7)) for row in rows for name in ("BASE", "NOTE")])
    folder.freeze([(row, "BASE", 1) for row in rows])
    latest = store.get_cells_latest([(row, name) for row in rows for name in ("BASE", "NOTE")])
    assert len(latest) == 40
    assert all(cell.body == document(7) for cell in latest.values())
    found = store.get_rows(rows)
    assert {row: sorted(cells) for row, cells in found.items()} == {row: ["BASE", "NOTE"] for row in rows}
    assert all(cell.body == document(7) for cells in found.values() for cell in cells.values())
    assert store.get_row(rows[0])["BASE"].body == document(7)
    with forgetful(store) as other:
        keys = [row.bytes for row in rows]
        fetched = internals_of(other).rows.read(keys, ["BASE"], lambda row: (row.damaged, row.documents["BASE"]))
    assert fetched == [({}, document(7))] * 20


def test_a_put_of_a_cold_cell_compares_documents(store, row, cold_file):
    """The same document is no new cell, and another one is a conflict; a batch too."""
    assert not store.put_cell(row, "BASE", 1, document(1)).created
    with pytest.raises(CellConflict) as caught:
        store.put_cell(row, "BASE", 1, document(2))
    assert caught.value.stored.body == document(1)
    cells = [NewCell(row, "BASE", ref_key, document(ref_key)) for ref_key in range(1, COUNT + 2)]
    puts = store.put_cells(cells)
    assert [put.created for put in puts] == [False] * COUNT + [True]
    assert not any(put.created for put in store.put_cells(cells, look_first=True))
    assert store.append_cell(row, "BASE", {"a": 1}).key.ref_key == COUNT + 2


def test_stored_cells_are_copied_with_their_documents(store, row, cold_file, new_row):
    """A copy does not refer to a file of another cell."""
    copy = new_row()
    stored = list(store.get_stored_versions(row, "BASE", limit=None))
    store.put_stored_cells([NewStoredCell(copy, cell.column_name, cell.ref_key, cell.body) for cell in stored])
    assert [cell.body for cell in store.get_versions(copy, "BASE")] == [
        cell.body for cell in store.get_versions(row, "BASE")
    ]
    assert not any(is_reference(cell.body) for cell in store.get_stored_versions(copy, "BASE"))
    with pytest.raises(ColdBodyMissing, match="is not available here"):
        store.put_stored_cells([NewStoredCell(copy, "BASE", 99, bytes(stored[-1].body))])


def test_a_delta_may_have_a_cold_base(store, row, cold_file, folder):
    """The base's document is read from its file."""
    dumps = ENGINE.msgpack.dumps
    body = encode_delta(ENGINE.msgpack, dumps(document(2)), 3, dumps(document(3)))
    folder.write(store.shard_of(row), store.get_cell(row, "BASE", 2).added_id, body)
    assert store.get_cell(row, "BASE", 2).body == document(2)
    assert [cell.body for cell in store.get_versions(row, "BASE", limit=None)][-2] == document(2)
    assert not store.put_cell(row, "BASE", 2, document(2)).created


def test_a_file_that_was_rewritten_or_recalled_is_noticed(store, row, cold_file, folder, monkeypatch):
    """The cell and its file are read again: a new generation, a tombstone, a body that is whole again."""
    shard = store.shard_of(row)
    assert store.get_cell(row, "BASE", 1).body == document(1)
    erased = store.get_cell(row, "BASE", 2)
    folder.rewrite(cold_file, {erased.added_id})
    cache().clear()
    assert store.get_cell(row, "BASE", 1).body == document(1)
    with pytest.raises(ColdBodyMissing, match="does not have it any more"):
        store.get_cell(row, "BASE", 2)
    folder.write(shard, erased.added_id, tombstone(7))
    assert store.get_cell(row, "BASE", 2) is None
    # An older backup of the shard lists the first generation, and a reader finds the later one.
    database = folder.shards.database(shard).encode()
    folder.shards.execute(shard, b"DELETE FROM `%b`.cold_file WHERE generation=1" % database)
    folder.shards.execute(shard, b"UPDATE `%b`.cold_file SET state='live'" % database)
    with forgetful(store) as other:
        assert other.get_cell(row, "BASE", 1).body == document(1)
    readers, read = [], LocalTarget.read

    def noted(target, name):
        readers.append(threading.current_thread())
        return read(target, name)

    async def read_async():
        async with await schemaless.aio.connect(str(internals_of(store).url)) as opened:
            return await opened.get_cell(row, "BASE", 1)

    monkeypatch.setattr(LocalTarget, "read", noted)
    cache().clear()
    assert asyncio.run(read_async()).body == document(1)
    assert readers
    assert threading.current_thread() not in readers, "a slow store would block the event loop"


def test_a_version_that_is_erased_during_a_read_does_not_count(store, row, cold_file, folder, monkeypatch):
    """The limit is that of the versions returned."""
    (subject,) = [cell for cell in store.get_stored_versions(row, "BASE") if cell.ref_key == COUNT - 2]
    cache().clear()
    open_input, first = LocalTarget.open_input, iter([True])

    def erased_before(target, name):
        if next(first, False):
            folder.rewrite(cold_file, [subject.added_id])
            folder.write(store.shard_of(row), subject.added_id, tombstone(1))
        return open_input(target, name)

    monkeypatch.setattr(LocalTarget, "open_input", erased_before)
    assert [cell.ref_key for cell in store.get_versions(row, "BASE", limit=3)] == [COUNT, COUNT - 1, COUNT - 3]


def test_listings_are_not_believed(store, row, cold_file, folder, monkeypatch):
    """A database that was restored looks for later generations; a listing may show deleted ones, and lack new ones."""
    names, generations = LocalTarget.names, {}
    content = folder.target.read(cold_file.name)
    for generation in range(1, 4):
        later = replace(cold_file, generation=generation, token=f"{generation}" * 16)
        generations[later.name.rpartition("/")[2]] = later
    shown = [*generations, "other.parquet"]
    monkeypatch.setattr(LocalTarget, "names", lambda target, listed: [*names(target, listed), *shown])
    folder.target.delete([cold_file.name])
    with forgetful(store) as other, pytest.raises(ColdBodyMissing):
        other.get_cell(row, "BASE", 1)
    folder.target.put(list(generations.values())[1].name, content, "test")
    with forgetful(store) as other:
        assert other.get_cell(row, "BASE", 1).body == document(1)
    monkeypatch.setattr(LocalTarget, "names", lambda target, listed: [])
    with forgetful(store) as other:
        with pytest.raises(ColdBodyMissing):
            other.get_cell(row, "BASE", 1)
        monkeypatch.undo()
        assert other.get_cell(row, "BASE", 1).body == document(1)


@pytest.fixture
def behind(replicated, servers, new_row, tmp_path):
    """A datastore with a replica of shard 1, its cold store, and a row there with two cold versions and a hot one."""
    name = f"behind{uuid.uuid5(uuid.NAMESPACE_OID, str(replicated.socket)).hex[:8]}"
    with accounts_on([servers[0].url, replicated.url], prefix="behind_") as accounts:
        url = accounts.create(name, 2)
        (replica,) = replicated.replicas
        nodes.add_replica(accounts.url("admin", url), "cluster-2", accounts.url("admin", replica.url))
        with connect(accounts.root(url)) as store:
            row = next(row for row in iter(new_row, None) if store.shard_of(row) == 1)
            for ref_key in (1, 2, 3):
                store.put_cell(row, "BASE", ref_key, document(ref_key))
            with caught_up(replicated):
                sql(replica, f"STOP {word(replica)} SQL_THREAD")
            try:
                folder = ColdFolder(store, internals_of(store).shards, tmp_path)
                (file,) = folder.freeze([(row, "BASE", 1), (row, "BASE", 2)])
                # The replica has the bodies that were there before.
                with forgetful(store) as other:
                    for read_from in ("primary", "replica"):
                        cells = [other.get_cell(row, "BASE", n, read_from=read_from) for n in (1, 2)]
                        assert [cell.body for cell in cells] == [document(1), document(2)]
                    stored = other.get_stored_versions(row, "BASE", read_from="replica")
                    assert not any(is_reference(cell.body) for cell in stored)
            finally:
                sql(replica, f"START {word(replica)} SQL_THREAD")
            with caught_up(replicated):
                yield accounts, store, row, folder, file


@pytest.mark.twice
@pytest.mark.guarantee("cold-exact", "cold-present")
def test_a_replica_may_know_only_an_older_generation_of_a_file(behind, replicated):
    """The cell and its file are read again from the primary; a replica that is promoted finds the later generation."""
    accounts, store, row, folder, file = behind
    database, erased = internals_of(store).shards.database(1), store.get_cell(row, "BASE", 2)
    content = without_documents(folder.target.read(file.name), {erased.added_id})
    later = replace(file, generation=1, token="b" * 16)
    folder.target.put(later.name, content.data, "test")
    folder.target.delete([file.name])
    # Transactions that do not arrive on the replica.
    sql(
        replicated,
        "SET SESSION sql_log_bin = 0",
        f"INSERT INTO `{database}`.cold_file (file_id, generation, incarnation, token, state, first_id, last_id, "
        "cells, text_bytes, file_bytes, sha256, erased_event) SELECT file_id, 1, incarnation, "
        f"'{later.token}', 'live', first_id, last_id, cells, text_bytes, {len(content.data)}, '{content.sha256}', "
        f"erased_event FROM `{database}`.cold_file",
        f"UPDATE `{database}`.cold_file SET state = 'condemned' WHERE generation = 0",
        f"UPDATE `{database}`.cell SET body = x'{tombstone(7).hex()}' WHERE added_id = {erased.added_id}",
    )
    calls = {
        "get_cell": lambda other: [other.get_cell(row, "BASE", n, read_from="replica") for n in (1, 3)],
        "get_versions": lambda other: list(other.get_versions(row, "BASE", descending=False, read_from="replica")),
        "get_cells_for_shard": lambda other: other.get_cells_for_shard(1, read_from="replica").cells,
    }
    for name, call in calls.items():
        with forgetful(store) as other:
            bodies = [cell.body for cell in call(other) if not cell.erased]
            assert bodies == [document(1), document(3)], name
    with forgetful(store) as other:
        assert other.get_cell(row, "BASE", 2, read_from="replica") is None
    with caught_up(replicated), read_only(replicated), promoted(replicated) as replica:
        admin = accounts.url("admin", str(internals_of(store).url))
        nodes.set_primary(admin, "cluster-2", accounts.url("admin", replica.url), timeout_s=60)
        with forgetful(store) as other:
            assert other.get_cell(row, "BASE", 1).body == document(1)
            # The erasure is lost on this server, and the document is not in the file.
            with pytest.raises(ColdBodyMissing, match="does not have it any more"):
                other.get_cell(row, "BASE", 2)


@pytest.mark.guarantee("cold-present", "corruption-detected")
def test_faults_of_files_name_the_cell(store, row, cold_file, folder):
    """Other cells are read; nothing is changed."""
    content = folder.target.read(cold_file.name)
    cell = store.get_cell(row, "BASE", 1)
    for damage, error in ((content[:-1], ColdFileDamaged), (None, ColdBodyMissing)):
        folder.target.delete([cold_file.name])
        if damage is not None:
            folder.target.put(cold_file.name, damage, "test")
        cache().clear()
        with pytest.raises(error) as caught:
            store.get_cell(row, "BASE", 1)
        assert caught.value.key == cell.key
        assert caught.value.file == cold_file.file_id
        assert store.get_cell(row, "BASE", COUNT).body == document(COUNT)
        stored = list(store.get_stored_versions(row, "BASE", limit=None))
        assert len(stored) == COUNT


@pytest.mark.guarantee("cold-present")
def test_a_store_that_cannot_be_read_is_no_server_that_is_down(store, row, new_row, cold_file, folder, tmp_path):
    """Hot cells are read and written, in the same batch too, and no breaker opens; nothing is lost in a mount point."""
    internals = internals_of(store)
    name = store.name.encode()
    root = folder.shards.pool_for(internals.catalog.node)
    set_place = b"UPDATE `%b`.cold_store SET uri='%b'"
    root.execute(set_place % (name, str(tmp_path / "missing").encode()))

    async def read() -> None:
        async with await schemaless.aio.connect(str(internals.url)) as opened:
            await opened.get_cell(row, "BASE", 1)

    with forgetful(store) as other:
        for attempt in (lambda: other.get_cell(row, "BASE", 1), lambda: asyncio.run(read())):
            with pytest.raises(ColdStoreUnavailable, match="not mounted"):
                attempt()
    elsewhere = tmp_path / "file"
    elsewhere.write_text("not a folder")
    root.execute(set_place % (name, str(elsewhere).encode()))
    with forgetful(store) as other:
        with pytest.raises(ColdStoreUnavailable, match="cannot be used") as caught:
            other.get_cell(row, "BASE", 1)
        assert caught.value.retryable
        assert other.get_cell(row, "BASE", COUNT).body == document(COUNT)
        others = [new_row() for _ in range(20)]
        cells = [NewCell(row, "BASE", 1, document(1)), *(NewCell(each, "BASE", 1, {"a": 1}) for each in others)]
        with pytest.raises(schemaless.BatchError) as batch:
            other.put_cells(cells)
        assert {type(cause) for cause in batch.value.causes.values()} == {ColdStoreUnavailable}
        assert list(batch.value.causes) == [store.shard_of(row)]
        assert len(batch.value.written) == len([each for each in others if store.shard_of(each) != store.shard_of(row)])
    root.execute(b"DELETE FROM `%b`.cold_store" % name)
    with forgetful(store) as other, pytest.raises(ColdStoreUnavailable, match="the catalog does not say where it is"):
        other.get_cell(row, "BASE", 1)


def test_the_store_can_be_pinned(store, row, cold_file, tmp_path, monkeypatch):
    """A catalog that names another place is not believed."""
    for prefix, is_within in (
        (tmp_path, True),
        (tmp_path.parent, True),
        (f"{tmp_path}x", False),
        (str(tmp_path)[:-1], False),
    ):
        monkeypatch.setenv("SCHEMALESS_COLD_PREFIX", str(prefix))
        with forgetful(store) as other:
            if is_within:
                assert other.get_cell(row, "BASE", 1).body == document(1)
            else:
                with pytest.raises(InvalidInput, match="SCHEMALESS_COLD_PREFIX demands"):
                    other.get_cell(row, "BASE", 1)
