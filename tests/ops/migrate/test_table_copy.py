"""Rebuilds on MySQL by copying: what is written, erased, opened or killed during the copy."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

import schemaless
from schemaless import Datastore
from schemaless.ops.erasure.copies import strays
from schemaless.ops.jobs.worker import let_go, work_on
from schemaless.ops.migrate import rebuild
from schemaless.ops.migrate.rebuild import REBUILD, RebuildSpec
from schemaless.ops.migrate.table_copy import TableCopy
from schemaless.schema.databases import next_id
from schemaless.store.internals import internals_of
from schemaless.store.opening import opening_of
from schemaless.wire.connection import Connection
from tests.ops.move.benches import Killed
from tests.store.cells.test_bases import COUNT, Versions, document

pytestmark = [pytest.mark.mysql, pytest.mark.twice, pytest.mark.innodb("a compaction needs no copy of the table")]


@pytest.fixture(autouse=True)
def only_on_mysql(flavour: str) -> None:
    """MariaDB rebuilds a table by itself, whatever is written to it."""
    if flavour == "mariadb":
        pytest.skip("MariaDB needs no copy: test_rebuild.py has equal puts during its ALTER; runs with SERVER=mysql")


@pytest.fixture
def rows(fresh_store, new_row) -> list:
    """Rows of shard 0, with a cell each."""
    found = [row for row in (new_row() for _ in range(60)) if fresh_store.shard_of(row) == 0][:8]
    fresh_store.put_cells([schemaless.NewCell(row, "BASE", 1, {"text": "x" * 5_000}) for row in found])
    return found


@pytest.fixture
def move_store(move_url: str) -> Iterator[Datastore]:
    """The new datastore, as ``move``."""
    with schemaless.connect(move_url) as opened:
        yield opened


@pytest.fixture
def before_swap(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], None]:
    """Call a function once, when the cells have been copied, before the swap."""

    def install(action: Callable[[], object]) -> None:
        build, actions = TableCopy.build_index, [action]

        def built(copy: TableCopy) -> float:
            index_s = build(copy)
            while actions:
                actions.pop()()
            return index_s

        monkeypatch.setattr(TableCopy, "build_index", built)

    return install


@pytest.fixture
def before_drop(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], None]:
    """Call a function once, before the old table is compared with the new one."""

    def install(action: Callable[[], object]) -> None:
        ask, actions = Connection.ask, [action]

        def asked(connection: Connection, sql: bytes, **how: object) -> object:
            if actions and b"new.added_id IS NULL" in sql:
                actions.pop()()
            return ask(connection, sql, **how)

        monkeypatch.setattr(Connection, "ask", asked)

    return install


def cells_of(store: Datastore) -> list:
    return list(store.scan_shard(0))


def tables_of(store: Datastore, by_hand: Callable) -> list[str]:
    database = internals_of(store).shards.database(0).encode()
    return [name for (name,) in by_hand(store).rows(0, b"SHOW TABLES FROM `%b` LIKE 'cell%%'" % database)]


def test_cells_written_and_erased_during_the_copy_are_so_afterwards(
    fresh_store, rows, move_store, erase_store, before_swap, by_hand
):
    """New cells have their ids, an erased one its tombstone, no id is assigned twice; the copy is no stray table."""
    expected = {}

    def change() -> None:
        erase_store.erase(rows[0], reason="ticket-1")
        fresh_store.put_cell(rows[1], "BASE", 2, {"late": True})
        # The ids of these are never stored.
        for _ in range(3):
            assert not fresh_store.put_cell(rows[1], "BASE", 2, {"late": True}).created
        expected["cells"] = cells_of(fresh_store)
        expected["strays"] = strays(erase_store, [0])

    before_swap(change)
    (done,) = rebuild.run(move_store, shards=[0])
    database = internals_of(fresh_store).shards.database(0)
    with by_hand(fresh_store).pool_for(internals_of(fresh_store).shards.node_of(0)).connection() as connection:
        following = next_id(connection, database, "cell")

    assert (done.state, done.message) == ("done", None)
    assert cells_of(fresh_store) == expected["cells"]
    assert expected["strays"] == []
    assert fresh_store.get_cell(rows[0], "BASE", 1) is None
    assert following > max(cell.added_id for cell in expected["cells"]) + 3
    assert tables_of(fresh_store, by_hand) == ["cell"]


@pytest.mark.guarantee("history-erasure")
@pytest.mark.parametrize("swapped", [False, True])
def test_deltas_against_versions_erased_during_the_rebuild_stay_readable(
    fresh_store, move_store, erase_store, before_swap, before_drop, by_hand, new_row, swapped
):
    """They are made whole in the copy, or after the swap in the table that is compared with the old one."""
    row = next(row for row in iter(new_row, None) if fresh_store.shard_of(row) == 0)
    history = Versions(fresh_store, by_hand(fresh_store), row)

    def erase() -> None:
        for ref_key in (5, 35, 36, COUNT):
            erase_store.erase(row, "BASE", ref_key, reason="test")

    if swapped:
        before_drop(erase)
    else:
        before_swap(erase)
    (done,) = rebuild.run(move_store, shards=[0])

    assert (done.state, done.message) == ("done", None)
    left = [(n, document(n)) for n in range(1, COUNT) if n not in (5, 35, 36)]
    assert history.documents(fresh_store.get_versions(row, "BASE", descending=False)) == left
    assert tables_of(fresh_store, by_hand) == ["cell"]


def test_a_dump_that_began_before_the_swap_is_waited_for(fresh_store, rows, move_store, before_swap, by_hand):
    """Its snapshot is older than the copied cells: after a swap, it would find an empty table."""
    pool = by_hand(fresh_store).pool_for(internals_of(fresh_store).shards.node_of(0))
    database = internals_of(fresh_store).shards.database(0).encode()
    with pool.connection() as dump:
        dump.unfinished = True
        before_swap(lambda: dump.execute(b"START TRANSACTION WITH CONSISTENT SNAPSHOT"))
        (failed,) = rebuild.run(move_store, RebuildSpec(attempts=1), shards=[0])
        dumped = dump.rows(b"SELECT COUNT(*) FROM `%b`.cell" % database)[0][0]
        dump.execute(b"COMMIT")
    (done,) = rebuild.run(move_store, RebuildSpec(attempts=1), shards=[0])

    assert failed.state == "failed"
    assert re.search(r"a transaction is open in thread \d+ of \S+ for \d+ s; it may be a backup", failed.message)
    assert dumped == len(rows)
    assert done.state == "done"


@pytest.mark.parametrize(
    ("point", "swapped"),
    [
        ("INSERT INTO", False),
        ("ADD UNIQUE KEY", False),
        ("LOCK TABLES", False),
        ("`cell` TO", False),
        ("DROP TABLE", True),
    ],
)
def test_a_runner_killed_before_a_statement_is_succeeded(
    fresh_store, rows, move_store, monkeypatch, by_hand, point, swapped
):
    """The next run drops what is left over; cells can be read and written at any time."""
    thread, ask = threading.get_ident(), Connection.ask

    def killed(connection: Connection, sql: bytes, **how: object) -> object:
        if threading.get_ident() == thread and b"cell_" in sql and point.encode() in sql:
            raise Killed
        return ask(connection, sql, **how)

    def run(name: str) -> None:
        work_on(opening_of(move_store), job.job_id, 0, name, rebuild.work, throttled=False)

    # The priority of the test process must not change: it also starts servers.
    monkeypatch.setattr(os, "setpriority", lambda *_: None)
    job, _ = REBUILD.begin_or_join(move_store, RebuildSpec(), [0])
    with monkeypatch.context() as patch, suppress(Killed):
        patch.setattr(Connection, "ask", killed)
        run("killed")
    left = tables_of(fresh_store, by_hand)
    fresh_store.put_cell(rows[0], "BASE", 2, {"late": True})
    expected = cells_of(fresh_store)
    run("successor")
    let_go()
    (done,) = rebuild.outcome_of(move_store, job)

    assert [name.rpartition("_")[0] for name in left] == ["", "cell_moved" if swapped else "cell_incoming"]
    assert done.state == "done"
    assert done.message == ("its runner died, but the rebuild was complete" if swapped else None)
    assert cells_of(fresh_store) == expected
    assert tables_of(fresh_store, by_hand) == ["cell"]


def test_an_old_table_with_other_cells_is_kept(fresh_store, rows, move_store, before_swap, by_hand):
    """A body that another program changes during the copy is not lost with the old table."""
    database = internals_of(fresh_store).shards.database(0).encode()
    change = b"UPDATE `%b`.cell SET body='\"other\"' ORDER BY added_id LIMIT 1" % database
    before_swap(lambda: by_hand(fresh_store).execute(0, change))
    (failed,) = rebuild.run(move_store, shards=[0])

    assert failed.state == "failed"
    assert failed.message.startswith("1 cells of its earlier table cell_moved_")
    assert [name.rpartition("_")[0] for name in tables_of(fresh_store, by_hand)] == ["", "cell_moved"]
