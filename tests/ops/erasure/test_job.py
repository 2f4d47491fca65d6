"""Erase jobs: the command line, followers, indexes and moves."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pytest

import schemaless
from schemaless.base.events import ignore_events
from schemaless.errors import InvalidInput, ServerTimeout
from schemaless.ops.admin.indexes import indexes_of
from schemaless.ops.erasure.archives import erase_from_archives
from schemaless.ops.erasure.job import ErasureSpec
from schemaless.ops.erasure.job import run as run_erasure
from schemaless.ops.erasure.status import record_acknowledgements, status
from schemaless.ops.jobs import throttle
from schemaless.ops.migrate import run as migrate
from schemaless.ops.migrate.spec import MigrateSpec
from schemaless.planning.sampling.table_sizes import DiskSpace
from schemaless.store.erasures.ledger import target
from schemaless.store.erasures.sql import insert_lock_row, lock_log
from schemaless.store.followers.membership import Timing
from schemaless.store.followers.rows import FollowerRows
from schemaless.store.followers.states import DIED
from schemaless.store.followers.worker import Worker
from schemaless.store.indexes.admin import Watch
from schemaless.store.indexes.definition import define
from schemaless.store.internals import internals_of
from schemaless.store.triggers.admin import Triggers
from schemaless.store.triggers.calling import Calls
from schemaless.store.triggers.supervision import caught_up, prepare

REASON = "gdpr-art-17"
CALM = Timing(lease_s=1_000, give_up_s=900, renew_s=1_000, note_s=0.0)


def erase(store: schemaless.Datastore, *rows: uuid.UUID) -> int:
    """Erase rows by a job; return the number of the erasure."""
    number = internals_of(store).erasures.ledger.intend(REASON, [target(row) for row in rows])
    run_erasure(store, ErasureSpec(number))
    return number


def turn(worker: Worker) -> None:
    worker.membership.renew()
    for lease in worker.leases.held.values():
        lease.wait.until_s = lease.erasure_wait.until_s = 0.0
    worker.schedule.poll_now()
    worker.turn()


@pytest.fixture
def following(follow_store: schemaless.Datastore) -> Iterator[Callable[..., Worker]]:
    """Makes a worker for handlers, whose turns the test runs."""
    with ExitStack() as stack:

        def make(*handlers: Any) -> Worker:
            access = internals_of(follow_store).follower_access
            worker = Worker(access, handlers, "one", timing=CALM, stop=threading.Event(), listen=False)
            stack.enter_context(worker.membership)
            return worker

        yield make


def test_a_job_erases_rows_in_several_shards(fresh_store, erase_store, new_row):
    """The ledger says how many cells in which shard; other rows stay."""
    rows = [new_row() for _ in range(12)]
    for row in rows:
        fresh_store.put_cell(row, "BASE", 1, {"row": str(row)})
    number = erase(erase_store, *rows[:9])
    entry = internals_of(erase_store).erasures.ledger.entry(number)

    assert entry.cells == 9
    assert entry.body_bytes > 9 * 36
    assert entry.executed_at is not None
    assert {each.shard for each in entry.shards} == {fresh_store.shard_of(row) for row in rows[:9]}
    assert [fresh_store.get_cell(row, "BASE", 1) is None for row in rows] == [True] * 9 + [False] * 3


@pytest.mark.guarantee("erasure-followers")
@pytest.mark.mysql
@pytest.mark.twice
def test_an_erasure_names_the_session_that_keeps_the_log_locked(fresh_store, erase_store, by_hand, row):
    """Such as that of a process that was stopped in a transaction; nothing is erased until it has ended."""
    shard, shards = fresh_store.shard_of(row), by_hand(fresh_store)
    fresh_store.put_cell(row, "BASE", 1, {})
    with schemaless.connect(str(internals_of(erase_store).url), pool_size=1) as single:
        internals_of(single).shards.execute(shard, b"SET SESSION innodb_lock_wait_timeout=1")
        shards.execute(shard, insert_lock_row(shards.database(shard)))
        with shards.pool_for(shards.node_of(shard)).connection() as stopped, stopped.transaction():
            stopped.rows(lock_log(shards.database(shard)))
            thread = stopped.rows(b"SELECT CONNECTION_ID()")[0][0]
            with pytest.raises(ServerTimeout, match=rf"in use by .*thread {thread} of root@localhost for "):
                single.erase(row, reason=REASON)
            assert fresh_store.get_cell_latest(row, "BASE") is not None
        single.erase(row, reason=REASON)
    assert fresh_store.get_cell_latest(row, "BASE") is None


def test_a_trigger_is_told_of_erased_cells_whether_seen_or_not(fresh_store, erase_store, follow_store, following, row):
    """on_erase is called until it succeeds; the function is never called for a cell that was erased before."""
    seen, erased = [], []

    def forget(cell, call):
        erased.append((cell.key, cell.erasure))
        if len(erased) == 1:
            raise SystemExit("not now")
        # A generator, which is no success, because nothing runs it.
        return iter(()) if len(erased) > 2 else (_ for _ in ())

    @schemaless.trigger(column="BASE", start="beginning", on_erase=forget)
    def keep(cell, call):
        seen.append(cell.key)

    prepare(follow_store, keep)
    worker = following(Calls(keep, follow_store))
    first = fresh_store.put_cell(row, "BASE", 1, {"n": 1}).key
    fresh_store.put_cell(row, "LOG", 1, {"n": 1})
    turn(worker)
    second = fresh_store.put_cell(row, "BASE", 2, {"n": 2}).key
    number = erase(erase_store, row)

    ended = caught_up(follow_store, keep)
    assert status(erase_store, number).waiting == {"trigger:keep": [fresh_store.shard_of(row)]}
    assert record_acknowledgements(erase_store, number).state == "executed"
    before = []
    for _ in range(3):
        before.append(ended())
        turn(worker)
    assert (before, ended()) == ([False] * 3, True)
    third = fresh_store.put_cell(row, "BASE", 3, {"n": 3}).key
    turn(worker)

    assert seen == [first, third]
    assert erased == [*[(first, number)] * 3, (second, number)]
    assert status(erase_store, number).waiting == {}
    assert record_acknowledgements(erase_store, number).state == "acknowledged"
    assert list(status(erase_store, number).acknowledged) == ["trigger:keep"]


def test_a_run_once_gives_up_on_erasures_that_keep_failing(fresh_store, erase_store, follow_store, following, row):
    """They are not acknowledged, and the status says why they wait."""

    def forget(cell, call):
        raise ValueError("no such ledger")

    @schemaless.trigger(column="BASE", start="beginning", on_erase=forget)
    def keep(cell, call): ...

    prepare(follow_store, keep)
    key = fresh_store.put_cell(row, "BASE", 1, {"n": 1}).key
    erase(erase_store, row)
    worker, shard, turns = following(Calls(keep, follow_store)), fresh_store.shard_of(row), 0
    ended = caught_up(follow_store, keep)
    while not ended() and turns < 20:
        turn(worker)
        turns += 1
    (reported,) = Triggers(follow_store).status("keep").workers
    said = f"on_erase failed for cell {key}: ValueError: no such ledger"

    assert 8 < turns < 20
    assert ended.gave_up == {shard: said}
    assert reported.reported["waits"] == [["trigger:keep", shard, f"erased cells are not handled yet: {said}"]]


def test_a_run_once_gives_up_on_erasures_that_kill_each_worker(fresh_store, erase_store, follow_store, row):
    """Workers claim the quarantined shard one after the other, and die."""

    @schemaless.trigger(column="BASE", on_erase=print)
    def keep(cell, call): ...

    fresh_store.put_cell(row, "BASE", 1, {"n": 1})
    prepare(follow_store, keep)
    erase(erase_store, row)
    ended, shard = caught_up(follow_store, keep), fresh_store.shard_of(row)
    rows, pair = FollowerRows(internals_of(follow_store).shards), ("trigger:keep", shard)
    before = []
    for number in range(8):
        before.append(ended())
        epoch = rows.claim(pair, f"worker {number}", rows.look([pair]).rows[pair])
        assert epoch
        rows.quarantine(pair, epoch, f"{DIED} (SIGKILL)", 0.0)

    assert (before, ended()) == ([False] * 8, True)
    assert ended.gave_up == {shard: f"{DIED} (SIGKILL)"}


@pytest.mark.guarantee("erasure-followers")
def test_parked_cells_and_messages_of_followers_are_erased(fresh_store, erase_store, follow_store, following, row):
    """A traceback may quote the document."""

    @schemaless.trigger(column="BASE", start="beginning", attempts=1)
    def keep(cell, call):
        raise ValueError(cell.body["secret"])

    @schemaless.trigger(column="BASE", start="beginning", attempts=9)
    def retry(cell, call):
        raise ValueError(cell.body["secret"])

    for trigger in (keep, retry):
        prepare(follow_store, trigger)
    worker = following(Calls(keep, follow_store), Calls(retry, follow_store))
    fresh_store.put_cell(row, "BASE", 1, {"secret": "sesame"})
    turn(worker)
    shard, database = fresh_store.shard_of(row), internals_of(fresh_store).shards.database(fresh_store.shard_of(row))
    texts = f"SELECT message FROM `{database}`.follower UNION ALL SELECT error FROM `{database}`.parked".encode()

    def held() -> int:
        return sum("sesame" in str(text) for (text,) in internals_of(follow_store).shards.rows(shard, texts))

    assert held() == 2
    erase(erase_store, row)

    assert held() == 0


@pytest.mark.guarantee("erasure-followers")
def test_index_entries_of_erased_rows_are_removed(
    fresh_store, erase_store, admin_url, follow_store, accounts, following, new_row
):
    """Entries are in another shard than their rows; an entry with a shard field that is left has NULLs."""
    with schemaless.connect(admin_url) as admin:
        entry, _ = indexes_of(admin).create(define("trips", "BASE.client:int", ["BASE.at:int", "STATUS.s:text(8)"]))
    for role in ("app", "follow"):
        accounts.allow(role, fresh_store.name, 4, indexes=[entry.number])
    worker = following(*indexes_of(follow_store).handlers())
    rows = [new_row() for _ in range(6)]
    for number, row in enumerate(rows):
        fresh_store.put_cell(row, "BASE", 1, {"client": number, "at": 5})
        fresh_store.put_cell(row, "STATUS", 1, {"s": "sesame"})
    turn(worker)
    internals = internals_of(erase_store)
    number = internals.erasures.ledger.intend(REASON, [target(rows[0]), target(rows[1]), target(rows[2], "STATUS")])
    run_erasure(erase_store, ErasureSpec(number))
    # Each reads the progress once a second.
    before, after = (Watch(indexes_of(follow_store), [], ignore_events, once=True) for _ in range(2))

    def entries() -> dict[uuid.UUID, Any]:
        found = {}
        for shard in range(4):
            database = internals.shards.database(shard)
            statement = f"SELECT row_key, client, s FROM `{database}`.index_{entry.number}".encode()
            found |= {uuid.UUID(bytes=key): rest for key, *rest in internals.shards.rows(shard, statement)}
        return found

    assert entries().keys() == set(rows)
    assert before() is False
    turn(worker)

    assert after() is True
    assert entries() == {rows[2]: [2, None]} | {row: [rows.index(row), b"sesame"] for row in rows[3:]}
    assert status(erase_store, number).waiting == {}


@pytest.mark.mysql
def test_an_erasure_waits_for_disk_space_and_says_so(fresh_store, erase_store, row, monkeypatch, caplog, eventually):
    """It writes to the same disks as other jobs; what it waits for is logged where no command shows it."""
    fresh_store.put_cell(row, "BASE", 1, "sesame")
    number = internals_of(erase_store).erasures.ledger.intend(REASON, [target(row)])
    free = [0]
    monkeypatch.setattr(throttle, "disk_space_in", lambda folder: DiskSpace(10**13, free[0], 0))
    with ThreadPoolExecutor(1) as thread:
        finished = thread.submit(schemaless.finish_erasure, erase_store, number)
        try:
            eventually(lambda: "has 0 MB free (limit 1,000 MB)" in caplog.text, "it says what it waits for")
            assert fresh_store.get_cell(row, "BASE", 1).body == "sesame"
        finally:
            free[0] = 10**12
        assert finished.result().entry.cells == 1
    assert fresh_store.get_cell(row, "BASE", 1) is None


def test_an_erasure_is_finished_from_python(fresh_store, erase_store, migrate_store, row, tmp_path):
    """As by 'erase run' and 'erase archive': with the originals in the archives that the catalog names."""
    folder = tmp_path / "originals"
    fresh_store.put_stored_cells([schemaless.NewStoredCell(row, "BASE", 1, b'{"who": "secret"}')])
    migrate.run(migrate_store, MigrateSpec("msgpack+zlib", archive=str(folder)))
    entry = erase_store.erase_many([row], reason=REASON)
    before = erase_from_archives(erase_store, [folder], execute=False)
    finished = schemaless.finish_erasure(erase_store, entry.number)

    assert [file.originals for file in before] == [1]
    assert erase_from_archives(erase_store, [folder], execute=False) == []
    assert (finished.state, finished.entry.number, finished.entry.cells) == ("acknowledged", entry.number, 1)
    with pytest.raises(InvalidInput, match="no erasure 999"):
        schemaless.finish_erasure(erase_store, 999)
    with pytest.raises(InvalidInput, match=r"expected the number of an erasure in the ledger, got Erasure\("):
        schemaless.finish_erasure(erase_store, entry)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match=r"expected a Datastore, .* got int"):
        schemaless.finish_erasure(entry.number, erase_store)  # type: ignore[arg-type]
