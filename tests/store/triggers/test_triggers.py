"""Triggers: a function called for each cell, tried again, parked, and never passed over in silence."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
import uuid
from asyncio import CancelledError
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from typing import Any

import pytest

import schemaless
from schemaless.cli import trigger as commands
from schemaless.errors import InvalidInput, ServerTimeout
from schemaless.ops.migrate.run import run as migrate
from schemaless.ops.migrate.spec import MigrateSpec
from schemaless.store.followers import inflight
from schemaless.store.followers import rows as parked_rows
from schemaless.store.followers import sql as table_caches
from schemaless.store.followers.leases import Lease
from schemaless.store.followers.membership import Timing, remove_worker
from schemaless.store.followers.settings import Settings
from schemaless.store.followers.states import DIED
from schemaless.store.followers.worker import Worker
from schemaless.store.internals import internals_of
from schemaless.store.triggers import admin, calling
from schemaless.store.triggers.admin import Triggers
from schemaless.store.triggers.calling import Calls
from schemaless.store.triggers.supervision import prepare
from tests.cli.conftest import Result, invoke  # noqa: F401 - the fixture

# Long, because renewals are triggered by hand.
TIMING = Timing(lease_s=1_000, give_up_s=900, renew_s=1_000, busy_s=0.05, note_s=0.0)
SHARD = 2


class Died(BaseException):
    """The process ends here, without a word."""


@pytest.fixture
def mortal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets ``Died`` pass where a function's exceptions are caught, as Ctrl-C does."""
    monkeypatch.setattr(calling, "is_interrupt", lambda error: isinstance(error, Died))
    monkeypatch.setattr(signal, "getsignal", lambda _: signal.default_int_handler)


@pytest.fixture
def put(fresh_store: schemaless.Datastore, new_row: Callable[[], uuid.UUID]) -> Callable[..., schemaless.Put]:
    """Puts a cell into the shard that most of these tests look at."""

    def put_one(body: Any, column: str = "BASE", shard: int = SHARD) -> schemaless.Put:
        row = next(row for row in iter(new_row, None) if fresh_store.shard_of(row) == shard)
        return fresh_store.put_cell(row, column, 1, body)

    return put_one


@pytest.fixture
def works(follow_store: schemaless.Datastore) -> Iterator[Callable[..., Worker]]:
    """Prepares a trigger, and returns a worker of it whose turns the test runs."""
    with ExitStack() as stack:

        def make(trigger: schemaless.Trigger, name: str = "one") -> Worker:
            prepare(follow_store, trigger)
            worker = Worker(
                internals_of(follow_store).follower_access,
                [Calls(trigger, follow_store)],
                name,
                timing=TIMING,
                stop=threading.Event(),
            )
            stack.enter_context(worker.membership)
            return worker

        yield make


@pytest.fixture
def triggers(follow_store: schemaless.Datastore) -> Triggers:
    """What an operator sees and does."""
    return Triggers(follow_store)


def turn(*workers: Worker, times: int = 1) -> None:
    """Run polls and handling of workers, without the backoff between attempts."""
    for _ in range(times):
        for worker in workers:
            worker.membership.renew()
            for owned in worker.leases.held.values():
                owned.wait.until_s = 0
            worker.schedule.poll_now()
            worker.turn()


def owned(worker: Worker, shard: int = SHARD) -> Lease:
    return next(each for each in worker.leases.held.values() if each.pair[1] == shard)


def test_function_gets_each_cell_with_its_document_in_the_order_of_its_shard(put, works):
    """Its context has the store, the shard and the number of the attempt."""
    calls = []

    @schemaless.trigger(column="BASE", start="beginning")
    def keep(cell, call):
        calls.append((cell.body, call.shard, call.attempt, call.store.get_cell(*cell.key) == cell))

    for number in range(5):
        put({"n": number})
        put({"n": number}, column="OTHER")
    worker = works(keep)
    turn(worker)
    put({"n": 5})
    turn(worker)

    assert calls == [({"n": number}, SHARD, 1, True) for number in range(6)]
    assert keep.name == "keep"


def test_function_gets_the_documents_of_versions_stored_as_differences(fresh_store, migrate_store, new_row, works):
    """From the beginning of a shard whose versions were migrated before."""
    row = next(row for row in iter(new_row, None) if fresh_store.shard_of(row) == SHARD)
    documents = [{"n": n, "text": "x" * 900} for n in range(40)]
    fresh_store.put_cells([schemaless.NewCell(row, "BASE", n, body) for n, body in enumerate(documents)])
    assert migrate(migrate_store, MigrateSpec(history=True)).total().cells > 30
    calls = []

    @schemaless.trigger(column="BASE", start="beginning")
    def keep(cell, call):
        calls.append(cell.body)

    turn(works(keep), times=2)
    assert calls == documents


class Unprintable(BaseException):
    """An exception of a user whose text cannot be had."""

    def __str__(self) -> str:
        raise ValueError("no text")


@pytest.mark.parametrize(
    ("raised", "said"),
    [
        (KeyboardInterrupt, "KeyboardInterrupt: "),
        (SystemExit, "SystemExit: "),
        (CancelledError, "CancelledError: "),
        (Unprintable, "Unprintable"),
    ],
)
def test_any_exception_that_a_function_raises_is_a_failed_attempt(put, works, triggers, monkeypatch, raised, said):
    """In a worker process, which ignores Ctrl-C: it lives on, the cell is parked, and the next one is called."""
    seen = []

    @schemaless.trigger(column="BASE", start="beginning", attempts=2)
    def keep(cell, call):
        if cell.body == "bad":
            raise raised
        seen.append(cell.body)

    monkeypatch.setattr(signal, "getsignal", lambda _: signal.SIG_IGN)
    put("bad")
    put("good")
    try:
        turn(works(keep), times=4)
    except BaseException as error:  # noqa: BLE001 - pytest would end here, and not only this test
        pytest.fail(f"the worker was ended by {type(error).__name__}")
    (parked,) = triggers.parked("keep", [SHARD])

    assert seen == ["good"]
    assert (parked.attempts, parked.error.partition("\n")[0]) == (2, said)


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # Python 3.12 warns of threads beside fork
def test_a_child_that_a_function_forks_ends_with_the_call(put, works, triggers, capfd):
    """Whether it returns, fails, or exits with a status; it never becomes a second worker."""
    statuses = []

    @schemaless.trigger(column="BASE", start="beginning")
    def keep(cell, call):
        if child := os.fork():
            statuses.append(os.waitpid(child, 0)[1])
            return
        signal.setitimer(signal.ITIMER_REAL, 60.0)  # ends a child that goes on as a second worker
        if cell.body is not None:
            raise SystemExit(cell.body) if isinstance(cell.body, int) else ValueError(cell.body)

    for body in (None, 7, "in words"):
        put(body)
    turn(works(keep))
    failed = capfd.readouterr().err

    assert "ValueError: in words" in failed
    assert [os.waitstatus_to_exitcode(status) for status in statuses] == [0, 7, 1]
    assert triggers.parked("keep", [SHARD]) == []


@pytest.mark.guarantee("follower-parked")
def test_a_call_that_returns_a_coroutine_is_a_failed_attempt(put, works, triggers):
    """The cell does not count as done, and the error says why."""

    async def never(cell, call): ...

    @schemaless.trigger(column="BASE", start="beginning", attempts=2)
    def keep(cell, call):
        return never(cell, call)

    put("one")
    turn(works(keep), times=3)
    (parked,) = triggers.parked("keep", [SHARD])

    assert parked.attempts == 2
    assert parked.error.startswith("InvalidInput: the function returned a coroutine, which nothing runs")


def test_ctrl_c_in_a_function_ends_a_program_that_hears_it(put, works, monkeypatch):
    """A worker within an application that does not ignore Ctrl-C, even if the tests run in a shell's background."""
    monkeypatch.setattr(signal, "getsignal", lambda _: signal.default_int_handler)

    @schemaless.trigger(column="BASE", start="beginning")
    def keep(cell, call):
        raise KeyboardInterrupt

    put("a")
    with pytest.raises(KeyboardInterrupt):
        turn(works(keep))


def test_an_unknown_trigger_lists_the_existing_ones(follow_store, triggers):
    """And not the follower of an index, by its number."""
    settings = Settings(internals_of(follow_store).follower_access)
    settings.create("index:1", {"index": "trips"}, lambda shard: 0)
    with pytest.raises(InvalidInput, match=r"has no trigger nosuch; existing names: none$"):
        triggers.status("nosuch")
    for name in ("bill", "keep"):
        settings.create(f"trigger:{name}", {"column": None}, lambda shard: 0)
    with pytest.raises(InvalidInput, match=r"has no trigger nosuch; existing names: bill, keep$"):
        triggers.pause("nosuch")


def test_a_trigger_that_is_run_first_begins_at_the_end_unless_told_otherwise(put, works, follow_store):
    """What was there before is not its business; what comes between two runs is."""
    seen = []

    @schemaless.trigger(column="BASE")
    def keep(cell, call):
        seen.append(cell.body)

    put("before")
    worker = works(keep)
    turn(worker)
    put("after")
    turn(worker)
    worker.release_all()
    put("between")
    assert prepare(follow_store, keep) is False
    turn(worker, times=2)

    assert seen == ["after", "between"]


@pytest.mark.guarantee("follower-parked")
def test_failures_are_tried_again_then_parked_and_the_others_go_on(put, works, triggers, follow_store):
    """By default after eight attempts; later cells of the shard wait, other shards do not."""
    calls = []

    @schemaless.trigger(column="BASE", start="beginning", attempts=3)
    def fail(cell, call):
        calls.append((cell.body, call.attempt))
        if cell.body == "bad":
            raise ValueError("no such fare\ud800")

    put("good")
    bad = put("bad")
    put("behind")
    put("elsewhere", shard=0)
    worker = works(fail)
    turn(worker)
    status = triggers.status("fail")
    waiting = status.shards[SHARD]

    assert ("elsewhere", 1) in calls
    assert ("behind", 1) not in calls
    assert (waiting.state, waiting.row.attempts, waiting.row.location) == ("waiting", 1, bad.added_id - 1)
    assert waiting.row.message.startswith("ValueError: no such fare\\ud800\n\nTraceback")
    assert not status.stands
    turn(worker, times=2)
    (parked,) = triggers.parked("fail", range(4))

    assert [call for call in calls if call[0] == "bad"] == [("bad", 1), ("bad", 2), ("bad", 3)]
    assert calls[-1] == ("behind", 1)
    assert (parked.shard, parked.added_id, parked.key, parked.attempts) == (SHARD, bad.added_id, bad.key, 3)
    assert triggers.status("fail").shards[SHARD].row.parked == 1


@pytest.mark.guarantee("follower-parked")
def test_attempts_go_on_where_another_worker_left_them(put, works, triggers):
    """They are counted in the shard, not in a process."""
    attempts = []

    @schemaless.trigger(column="BASE", start="beginning", attempts=3)
    def fail(cell, call):
        attempts.append(call.attempt)
        raise ValueError("no")

    put("bad")
    for number in range(3):
        worker = works(fail, f"worker {number}")
        while len(attempts) == number:
            turn(worker)
        worker.release_all()
        worker.membership.__exit__(None, None, None)

    assert attempts == [1, 2, 3]
    assert len(triggers.parked("fail", range(4))) == 1


def test_the_pauses_between_attempts_grow(put, works, monkeypatch):
    """From a tenth of a second to half a minute, give or take a fifth."""
    waits = []
    monkeypatch.setattr(Lease, "defer", lambda self, seconds, reason: waits.append(seconds))

    @schemaless.trigger(column="BASE", start="beginning", attempts=12)
    def fail(cell, call):
        raise ValueError("no")

    put("bad")
    worker = works(fail)
    for _ in range(11):
        turn(worker)

    assert all(0.8 <= wait / min(30, 0.1 * 2**number) <= 1.2 for number, wait in enumerate(waits))
    assert len(waits) >= 11


def test_park_cell_parks_at_once_and_retry_later_does_not_count(put, works, triggers):
    """What the function knows better than a number of attempts; a server that is away does not count either."""
    calls = []

    @schemaless.trigger(column="BASE", start="beginning", attempts=2)
    def known(cell, call):
        calls.append((cell.body, call.attempt))
        if cell.body == "never":
            raise schemaless.ParkCell("a fare of nothing")
        if len(calls) < 4:
            raise schemaless.RetryLater(600, "the bank is closed")
        if len(calls) < 7:
            raise ServerTimeout("busy", node="db-9")

    put("never")
    put("later")
    worker = works(known)
    turn(worker)
    waiting = triggers.status("known").shards[SHARD]
    assert waiting.row.message == "RetryLater: the bank is closed; in 600 s"
    assert 400 < waiting.row.retry_s <= 600
    turn(worker, times=6)
    (parked,) = triggers.parked("known", range(4))

    assert calls == [("never", 1), *[("later", 1)] * 6]
    assert (parked.error, parked.attempts) == ("ParkCell: a fare of nothing", 1)
    with pytest.raises(InvalidInput, match="seconds must be from 0"):
        schemaless.RetryLater(-1)


@pytest.mark.guarantee("follower-parked")
def test_the_limit_of_parked_cells_stops_the_shard_before_the_cell(put, works, triggers, fresh_store):
    """Case 24: no more is parked, the cell is not passed over, other shards go on; room and 'resume' let it go on."""
    seen = []

    @schemaless.trigger(column="BASE", start="beginning", attempts=1, parked_limit=2)
    def fail(cell, call):
        if cell.body != "good":
            raise ValueError(cell.body)
        seen.append(call.shard)

    bad = [put(f"bad {number}") for number in range(4)]
    put("good")
    put("good", shard=1)
    worker = works(fail)
    turn(worker, times=3)
    status = triggers.status("fail")
    stopped = status.shards[SHARD]

    assert status.stands
    assert worker._report()["unhealthy"] == [["trigger:fail", SHARD]]
    assert (stopped.state, stopped.row.location, stopped.row.parked) == ("stopped", bad[1].added_id, 2)
    assert stopped.row.message.startswith("ValueError: bad 2")
    assert seen == [1]
    assert triggers.resume("fail") == 1
    turn(worker, times=2)
    assert triggers.status("fail").shards[SHARD].state == "stopped", "there is no room yet"
    triggers.skip("fail", triggers.parked("fail", [SHARD]))
    triggers.resume("fail")
    turn(worker, times=3)

    assert [cell.added_id for cell in triggers.parked("fail", [SHARD])] == [bad[2].added_id, bad[3].added_id]
    assert seen == [1, SHARD]
    assert not triggers.status("fail").stands


@pytest.mark.guarantee("follower-parked")
def test_a_body_that_does_not_decode_is_parked_as_such(put, works, triggers, by_hand, follow_store):
    """No attempt can succeed; the function does not see the cell."""
    seen = []

    @schemaless.trigger(column="BASE", start="beginning")
    def keep(cell, call):
        seen.append(cell.body)

    put("first")
    rotten = put("second")
    put("third")
    shards = by_hand(follow_store)
    table = shards.database(SHARD).encode()
    shards.execute(SHARD, b"UPDATE `%b`.cell SET body=x'C111FF' WHERE added_id=%d" % (table, rotten.added_id))
    turn(works(keep), times=2)
    (parked,) = triggers.parked("keep", range(4))

    assert seen == ["first", "third"]
    assert "Body: cell" in parked.error or "Mismatch: cell" in parked.error
    assert str(rotten.key.row_key) in parked.error


@pytest.mark.usefixtures("mortal")
def test_a_cell_that_kills_its_worker_is_parked_by_careful_successors(put, works, triggers, follow_store):
    """Attempts are written down before the call once an owner has died; cells around it are not blamed."""
    calls = []

    @schemaless.trigger(column="BASE", start="beginning", attempts=3)
    def kill(cell, call):
        calls.append(cell.body)
        if cell.body == "deadly":
            raise Died

    put("before")
    deadly = put("deadly")
    put("behind")
    for number in range(5):
        worker = works(kill, f"worker {number}")
        try:
            turn(worker)
        except Died:
            worker.membership._ended.set()
            remove_worker(worker.membership._pool, follow_store.name, worker.name)
        else:
            break
    (parked,) = triggers.parked("kill", range(4))

    # One death that was not counted, then three that were.
    assert calls.count("deadly") == 4
    assert calls.count("behind") == 1
    assert (parked.added_id, parked.attempts, parked.error) == (deadly.added_id, 3, DIED)


@pytest.mark.guarantee("follower-idempotent")
@pytest.mark.usefixtures("mortal")
def test_a_write_under_a_key_derived_from_the_cells_happens_once(put, works, fresh_store, follow_store):
    """The worker dies between the write and the storing of its location, so that its successor calls again."""
    calls = []

    @schemaless.trigger(column="BASE", start="beginning")
    def bill(cell, call):
        calls.append(cell.key)
        fresh_store.put_cell(cell.row_key, "BILL", cell.ref_key, cell.body)
        if len(calls) == 2:
            raise Died

    keys = [put(number).key for number in range(3)]
    first = works(bill, "first")
    with pytest.raises(Died):
        turn(first)
    first.membership._ended.set()
    remove_worker(first.membership._pool, follow_store.name, first.name)
    turn(works(bill, "second"))
    bills = [cell.decode() for cell in fresh_store.scan_shard(SHARD) if cell.key.column_name == "BILL"]

    assert len(calls) > len({*calls}) == 3
    assert sorted((cell.key.row_key, cell.body) for cell in bills) == sorted(
        (key.row_key, number) for number, key in enumerate(keys)
    )


def test_what_could_not_be_written_down_before_a_careful_call_does_not_count(put, works, triggers, monkeypatch):
    """Otherwise a server that rejects writes for a while would cause a cell to be parked without a call."""
    calls = []

    @schemaless.trigger(column="BASE", start="beginning", attempts=2)
    def keep(cell, call):
        calls.append((cell.body, call.attempt))

    worker = works(keep)
    turn(worker)
    owned(worker).careful = 500
    put("one")
    with monkeypatch.context() as patch:
        gone = ServerTimeout("read-only", node="db-9")
        patch.setattr(worker.context.rows, "note_attempt", lambda *what: (_ for _ in ()).throw(gone))
        turn(worker, times=4)
    turn(worker)

    assert calls == [("one", 1)]
    assert triggers.parked("keep", range(4)) == []


@pytest.mark.usefixtures("mortal")
def test_a_cell_that_kills_its_replayer_is_replayed_three_times(put, works, triggers, follow_store):
    """A worker that dies by chance takes no wish along; a cell that kills has its wish taken in the end."""

    @schemaless.trigger(column="BASE", start="beginning", attempts=1)
    def kill(cell, call):
        if call.attempt > 1:
            raise Died
        raise ValueError("not yet deadly")

    put("deadly")
    worker = works(kill)
    turn(worker)
    triggers.replay("kill", triggers.parked("kill", range(4)))
    wanted = []
    for _ in range(3):
        with pytest.raises(Died):
            turn(worker)
        wanted += triggers.parked("kill", range(4))
    turn(worker)
    (parked,) = triggers.parked("kill", range(4))

    assert [each.replay for each in wanted] == [True] * 3
    assert (parked.replay, parked.attempts, parked.error) == (False, 2, DIED)


@pytest.mark.guarantee("follower-parked")
def test_replayed_cells_that_come_through_are_parked_no_more(put, works, triggers):
    """Once each, beside the cells that come; those that fail again stay, with their newest error."""
    mended = []
    seen = []

    @schemaless.trigger(column="BASE", start="beginning", attempts=1)
    def fail(cell, call):
        if cell.body not in mended:
            raise ValueError(f"{cell.body} {call.attempt}")
        seen.append(cell.body)

    put("one")
    put("two")
    worker = works(fail)
    turn(worker)
    mended.append("one")
    triggers.replay("fail", triggers.parked("fail", range(4)))
    assert all(cell.replay for cell in triggers.parked("fail", range(4)))
    turn(worker, times=2)
    (left,) = triggers.parked("fail", range(4))

    assert seen == ["one"]
    assert (left.attempts, left.replay, left.error.partition("\n")[0]) == (2, False, "ValueError: two 2")


def test_parked_cells_are_read_shown_and_replayed_a_few_at_a_time(
    put,
    works,
    triggers,
    follow_url,
    invoke,  # noqa: F811
    monkeypatch,
):
    """However many there are, and however long their tracebacks; new cells have their turn between two replays."""
    fixed, seen = [], []

    @schemaless.trigger(column="BASE", start="beginning", attempts=1)
    def fail(cell, call):
        if not fixed and cell.body != "new":
            raise ValueError(f"no fare for {cell.body}")
        seen.append(cell.body)

    monkeypatch.setattr(admin, "PARKED_PER_READ", 2)
    monkeypatch.setattr(parked_rows, "REPLAYS_PER_TURN", 2)
    monkeypatch.setattr(commands, "PARKED_SHOWN", 3)
    ids = [put(number).added_id for number in range(5)]
    put("elsewhere", shard=1)
    worker = works(fail)
    turn(worker)

    def call(*arguments: object) -> Result:
        return invoke("trigger", *arguments, url=follow_url)

    pages = list(triggers.parked_pages("fail", [SHARD, 1], tracebacks=False))
    assert [[cell.added_id for cell in page] for page in pages[:3]] == [ids[:2], ids[2:4], ids[4:]]
    assert pages[0][0].error == "ValueError: no fare for 0"
    shown, whole = call("parked", "fail"), call("parked", "fail", "--json").json
    assert (shown.out.count("no fare"), "3 more parked cells are not shown" in shown.err) == (3, True)
    assert [cell["added_id"] for cell in whole if cell["shard"] == SHARD] == ids
    assert "Traceback" in whole[0]["error"]
    assert call("parked", "fail", "--shards", 0, "--json").json == []
    skipped = call("skip", "fail", "--shards", 1, "--all", "--execute", "--json")
    assert skipped.json == {"name": "fail", "executed": True, "cells": 1}
    done = call("replay", "fail", "--shards", SHARD, "--all", "--execute")
    assert done.out.endswith("5 parked cells of fail will be tried again\n")
    fixed.append(True)
    put("new")
    turn(worker)

    assert seen == [0, 1, "new"]
    turn(worker, times=2)
    assert seen == [0, 1, "new", 2, 3, 4]
    assert triggers.parked_count("fail", range(4)) == 0


@pytest.mark.guarantee("follower-parked")
def test_reset_delivers_cells_after_the_location_again(put, works, triggers, follow_store):
    """The shard's owner loses it; cells parked after the location are delivered again."""
    seen = []

    @schemaless.trigger(column="BASE", start="beginning", attempts=1)
    def keep(cell, call):
        seen.append(cell.body)
        if cell.body == 3:
            raise ValueError("no")

    puts = [put(number) for number in range(5)]
    worker = works(keep)
    turn(worker, times=2)
    assert len(triggers.parked("keep", range(4))) == 1
    triggers.reset("keep", {SHARD: puts[2].added_id})
    assert triggers.parked("keep", range(4)) == []
    turn(worker, times=2)

    assert seen == [0, 1, 2, 3, 4, 3, 4]
    assert triggers.location_since(SHARD, datetime.now(UTC)) == puts[0].added_id - 1


@pytest.mark.guarantee("follower-poison")
def test_a_hanging_function_is_named_and_other_shards_continue(put, works, triggers, follow_store, eventually):
    """Others take them over; who waits for what, and since when, is in the status."""
    hang = threading.Event()
    seen = []

    @schemaless.trigger(column="BASE", start="beginning")
    def stick(cell, call):
        if cell.body == "hangs":
            assert hang.wait(120)
        seen.append(cell.body)

    stuck = works(stick)
    turn(stuck)
    hangs = put("hangs")
    thread = threading.Thread(target=turn, args=(stuck,))
    thread.start()
    try:
        eventually(lambda: stuck.inflight.call is not None, "it is in the call")
        time.sleep(TIMING.busy_s)
        stuck.membership.renew()
        for shard in (0, 1, 3):
            put(f"of {shard}", shard=shard)
        other = works(stick, "other")
        turn(other, times=2)
        (worker,) = [each for each in triggers.status("stick").workers if "in_hand" in each.reported]

        assert sorted(seen) == ["of 0", "of 1", "of 3"]
        assert {shard for _, shard in other.leases.held} == {0, 1, 3}
        assert worker.reported["in_hand"]["added_id"] == hangs.added_id
        assert worker.reported["in_hand"]["key"] == [str(part) for part in hangs.key]
    finally:
        hang.set()
        thread.join()
    turn(stuck, other, times=3)
    assert seen.count("hangs") == 1


@pytest.mark.guarantee("follower-poison")
def test_a_call_over_its_timeout_ends_the_process(put, works, monkeypatch, eventually):
    """Its successor is careful, so that the cell is parked in its turn."""
    ended = []
    monkeypatch.setattr(inflight, "end_process", lambda pair, key, for_s: ended.append(key))
    hang = threading.Event()

    @schemaless.trigger(column="BASE", start="beginning", timeout_s=0.01)
    def stick(cell, call):
        assert hang.wait(120)

    hangs = put("hangs")
    worker = works(stick)
    thread = threading.Thread(target=turn, args=(worker,))
    thread.start()
    eventually(
        lambda: worker.inflight.call is not None and time.monotonic() - worker.inflight.call.since_s > 0.02,
        "in the call",
    )
    worker.membership.renew()
    hang.set()
    thread.join()

    assert ended == [hangs.key]


def test_a_trigger_keeps_its_column(works, follow_store):
    """Where it is means something for one column only."""
    works(schemaless.trigger(column="BASE", name="same")(lambda cell, call: None))
    with pytest.raises(InvalidInput, match="same follows column BASE, but the code names OTHER"):
        prepare(follow_store, schemaless.trigger(column="OTHER", name="same")(lambda cell, call: None))
    assert internals_of(follow_store).topology.shard_count == 4


pytestmark = pytest.mark.mysql


def test_status_says_where_a_server_keeps_too_few_tables_open(put, works, triggers, monkeypatch):
    """Three tables of each of its shards, for one connection; else each look opens and closes them again."""

    @schemaless.trigger(column="BASE")
    def calm(cell, call): ...

    works(calm)
    said = []
    for cache in (b"SELECT 6, 1, 6", b"SELECT 5, 1, 400", b"SELECT 400, 1, 5"):
        monkeypatch.setattr(table_caches, "SELECT_TABLE_CACHE", cache)
        said.append(triggers.status("calm").small_caches)
    shards = internals_of(triggers._store).shards
    away = next(node for node in map(shards.node_of, range(4)) if node != shards.node_of(0))
    monkeypatch.setattr(shards.pool_for(away), "connection", lambda: (_ for _ in ()).throw(ServerTimeout("", node="")))
    said.append(triggers.status("calm").small_caches)

    assert [len(each) for each in said] == [0, 2, 2, 1]
    assert all("its 2 shards read 6 tables" in advice for advice in said[1].values())


def test_catch_up_calls_triggers_in_this_thread_until_nothing_is_left(
    follow_store, fresh_store, put, triggers, eventually
):
    """From the first cell; what is paused, keeps failing or has stopped is an error, and the next call continues."""
    seen: list[tuple[int, int]] = []
    broken = [True]

    def note(cell: schemaless.Cell, call: schemaless.Call) -> None:
        if broken[0] and cell.body == 3:
            raise ValueError("three")
        seen.append((cell.body, threading.get_ident()))

    noted = schemaless.trigger(column="BASE", start="beginning", name="noted", timeout_s=0.001, attempts=1_000)(note)
    for number in range(6):
        put(number)
    said: list[str] = []

    def keeps_failing() -> bool:
        # A busy machine may not come to the cell in a second, and the next call continues.
        with pytest.raises(schemaless.NotCaughtUp) as raised:
            schemaless.catch_up(follow_store, noted, timeout_s=1)
        said.append(str(raised.value))
        return "is waiting" in said[-1]

    eventually(keeps_failing, "it has met the cell")
    assert re.search(r"trigger:noted, shard 2 is waiting, \d ids behind: ValueError", said[-1])
    broken[0] = False
    rest = schemaless.catch_up(follow_store, noted)
    put(6)
    triggers.pause("noted")
    with pytest.raises(schemaless.NotCaughtUp, match="trigger:noted is paused"):
        schemaless.catch_up(follow_store, noted)
    triggers.resume("noted")

    assert [rest, *(schemaless.catch_up(follow_store, noted) for _ in range(2))] == [True, True, False]
    assert seen == [(number, threading.get_ident()) for number in range(7)]
