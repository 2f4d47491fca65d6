"""Workers of a follower: shards assigned, claimed and released, locations fenced, and no cell missed."""

from __future__ import annotations

import math
import re
import threading
import time
from contextlib import closing
from dataclasses import replace

import pytest

from schemaless.errors import InvalidInput, LeaseLost
from schemaless.ops.move.sql import rewind_follower
from schemaless.store.followers.access import DatastoreAccess
from schemaless.store.followers.binlog_notifier import BinlogNotifier
from schemaless.store.followers.dispatch import read_batch
from schemaless.store.followers.membership import Assigned, Member, Timing, View, remove_worker
from schemaless.store.followers.ownership import Ownership
from schemaless.store.followers.rows import FollowerRows, Move
from schemaless.store.followers.settings import NEW, Settings
from schemaless.store.followers.sql import MOST_LEASE_S, ParkedRow
from schemaless.store.followers.states import PAUSED
from schemaless.store.followers.worker import Worker
from schemaless.store.internals import internals_of
from tests.store.followers.workers import CALM, NAME, SHORT, Seen, asleep, shards_of, turn

# ---- who has what


@pytest.mark.once
def test_shards_are_dealt_out_evenly_and_one_that_goes_moves_its_own_only():
    """All workers compute the same assignment; the shards of the others stay where they were."""
    members = tuple(Member(f"worker {number}", frozenset({NAME})) for number in range(8))
    before = {shard: View(members, {}).owner((NAME, shard)) for shard in range(1024)}
    after = {shard: View(members[1:], {}).owner((NAME, shard)) for shard in range(1024)}
    shares = [list(before.values()).count(member.worker) for member in members]

    assert min(shares) > 90
    assert {shard for shard in before if before[shard] != after[shard]} == {
        shard for shard, owner in before.items() if owner == "worker 0"
    }
    assert View((), {}).owner((NAME, 0)) is None


@pytest.mark.once
def test_a_worker_that_is_in_a_call_for_long_keeps_that_shard_alone():
    """Its other shards are assigned to other workers, if there are any."""
    busy = Member("busy", frozenset({NAME}), (NAME, 3))
    free = Member("free", frozenset({NAME}))
    owners = [View((busy, free), {}).owner((NAME, shard)) for shard in range(6)]

    assert owners == ["free", "free", "free", "busy", "free", "free"]
    assert View((busy,), {}).owner((NAME, 1)) == "busy"


@pytest.mark.once
@pytest.mark.parametrize(
    ("times", "problem"),
    [
        ({"lease_s": MOST_LEASE_S + 1}, "lease_s must be above 0 and at most 1,000 seconds, got 1001"),
        ({"lease_s": 0.0}, "lease_s must be above 0"),
        ({"lease_s": 5.0}, "give_up_s must be above 0 and below lease_s (5 s), got 8.0"),
    ],
)
def test_a_lease_that_other_workers_would_not_accept_is_refused(times, problem):
    """Instead of workers that take each other for dead, or work on after others have taken over."""
    with pytest.raises(InvalidInput, match=re.escape(problem)):
        Timing(**times)


@pytest.mark.mysql
def test_every_cell_is_handled_once_in_the_order_of_its_shard(settings, put, works, follow_store):
    """Later cells as well; the location is recorded in each shard."""
    seen = Seen()
    worker = works("one", seen)
    there = put(40)
    turn(worker, times=2)
    there |= put(7)
    turn(worker)
    rows = FollowerRows(internals_of(follow_store).shards).look((NAME, shard) for shard in range(4)).rows

    assert sorted(seen.cells) == sorted(there)
    for shard in range(4):
        ids = [added_id for where, added_id in seen.cells if where == shard]
        assert ids == sorted(ids)
        assert rows[NAME, shard].location == max(ids)
        assert rows[NAME, shard].worker == "one"


@pytest.mark.guarantee("follower-at-least-once")
@pytest.mark.mysql
def test_an_offset_survives_a_restart_with_replay_at_least_once(settings, put, works):
    """Case 23: a successor continues after a clean stop, or from the last checkpoint after a crash."""
    first, second, third = Seen(), Seen(), Seen()
    worker = works("first", first)
    there = put(20)
    turn(worker)
    worker.release_all()
    worker.membership.__exit__(None, None, None)
    successor = works("second", second, replace(CALM, note_s=1_000))
    more = put(20)
    turn(successor)
    # It dealt with these and is killed before it writes that down.
    assert set(second.cells) == more
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(successor.context.rows, "move", lambda moves: (set(), {}))
        last = put(8)
        turn(successor)
    successor.membership._ended.set()
    successor.membership.hurry()
    successor.membership._thread.join()
    remove_worker(successor.membership._pool, settings._catalog, "second")
    heir = works("third", third)
    turn(heir, times=2)

    assert set(first.cells) == there
    assert set(third.cells) == last
    assert set(third.careful) == {500}
    assert set(second.cells) == more | last


@pytest.mark.mysql
def test_workers_share_the_shards_and_take_over_from_one_that_goes(settings, put, works, by_hand, follow_store):
    """No shard has two owners, and another worker claims each shard of one that leaves when it next reads the rows.

    Nor is one left to a worker whose lease is in the future, because the server's clock was set back by two hours.
    """
    by_hand(follow_store).execute(
        0,
        b"INSERT INTO `%b`.follower_worker (worker, followers, lease_until, figures) "
        b"VALUES ('dead', '[\"%b\"]', UTC_TIMESTAMP(6) + INTERVAL 2 HOUR, '{}')"
        % (follow_store.name.encode(), NAME.encode()),
    )
    seen = Seen()
    workers = [works(f"worker {number}", seen) for number in range(3)]
    turn(*workers, times=3)
    shares = [shards_of(worker) for worker in workers]
    assert sorted(shard for share in shares for shard in share) == [0, 1, 2, 3]
    gone = max(workers, key=lambda worker: len(worker.leases.held))
    gone.release_all()
    gone.membership.__exit__(None, None, None)
    left = [worker for worker in workers if worker is not gone]
    turn(*left, times=2)
    there = put(30)
    turn(*left)

    assert sorted(shard for worker in left for shard in shards_of(worker)) == [0, 1, 2, 3]
    assert sorted(seen.cells) == sorted(there)


@pytest.mark.guarantee("follower-one-owner")
@pytest.mark.mysql
def test_a_worker_frozen_past_its_lease_changes_nothing(settings, put, works, eventually, follow_store):
    """A frozen process that resumes has lost its shards: its locations match no row, and no cell is missed."""
    early, late = Seen(), Seen()
    sleeper = works("sleeper", early, SHORT)
    there = put(20)
    # On a busy machine, its lease may be over before it has handled them.
    eventually(lambda: turn(sleeper) or set(early.cells) == there, "it has handled them")
    with asleep(sleeper):
        eventually(lambda: not sleeper.membership.alive, "it may begin nothing")
        more = put(20)
        turn(sleeper)
        assert set(early.cells) == there
        heir = works("heir", late)
        eventually(
            lambda: turn(heir, times=2) or len(heir.leases.held) == 4, "its lease is over, and its shards are taken"
        )
        stolen = [lease for lease in sleeper.leases.held.values() if lease.pair in heir.leases.held]
        assert len(stolen) == 4
        for lease in stolen:
            # What it still had in its hands when it fell asleep.
            lease.reached += 1_000
        lost, failed = sleeper.context.rows.move(lease.move for lease in stolen)
    rows = sleeper.context.rows.look(heir.leases.held).rows

    assert set(late.cells) == more
    assert (lost, failed) == (set(heir.leases.held), {})
    assert all(rows[pair].location == lease.row.location for pair, lease in heir.leases.held.items())
    turn(sleeper)
    assert all(
        lease.row.epoch == rows[lease.pair].epoch
        for lease in heir.leases.held.values()
        if lease.pair not in sleeper.leases.held
    )


@pytest.mark.guarantee("follower-one-owner")
@pytest.mark.mysql
def test_a_suspended_worker_reads_its_rows_before_it_continues(settings, put, works, follow_store, monkeypatch):
    """Its clock stood still while another worker handled its cells, and the binary log reports those cells to it."""
    early, late = Seen(), Seen()
    sleeper = works("sleeper", early)
    there = put(20)
    turn(sleeper)
    real = time.clock_gettime
    monkeypatch.setattr(time, "clock_gettime", lambda clock: real(clock) + 1_000)
    assert not sleeper.membership.alive
    internals = internals_of(follow_store)
    remove_worker(internals.catalog, follow_store.name, "sleeper")
    more = put(20)
    heir = Worker(internals_of(follow_store).follower_access, [late], "heir", timing=CALM, stop=threading.Event())
    with heir.membership:
        turn(heir)
        heir.release_all()
    assert set(late.cells) == more
    with closing(BinlogNotifier(internals.shards, CALM)) as sleeper.discovery.notifier:
        sleeper.schedule.poll_at_s = math.inf
        sleeper.discovery.notifier.notify(
            {internals.shards.database(shard): max(more)[1] + 1_000 for shard in range(4)}
        )
        sleeper.membership.renew()
        sleeper.turn()

    assert set(early.cells) == there
    assert len(sleeper.leases.held) == 4, "it claims the shards that have no owner"


@pytest.mark.guarantee("follower-one-owner")
@pytest.mark.mysql
def test_the_owner_of_a_removed_follower_owns_nothing_of_its_successor(settings, put, works):
    """If it is created again under its name, its epochs start above the old ones."""
    worker = works("one", Seen())
    put(4)
    turn(worker)
    zombie = list(worker.leases.held.values())
    settings.remove(NAME)
    settings.create(NAME, {}, lambda shard: 0)
    heir = works("heir", Seen())
    remove_worker(heir._access.catalog(), heir._access.name, "one")
    turn(heir)
    lost, _ = worker.context.rows.move(lease.move for lease in zombie)

    assert len(heir.leases.held) == len(zombie) == 4
    assert lost == set(heir.leases.held)


@pytest.mark.guarantee("follower-one-owner")
@pytest.mark.mysql
def test_a_worker_that_lost_the_shard_parks_nothing(settings, put, works, follow_store):
    """The insert and the location are one transaction, which requires the epoch."""
    worker = works("one", Seen())
    put(4)
    turn(worker)
    lease = next(iter(worker.leases.held.values()))
    row = ParkedRow(99, b"k" * 16, "BASE", 1, 3, "it failed")
    with pytest.raises(LeaseLost, match="taken over"):
        worker.context.rows.parked.park(Move(lease.pair, lease.row.epoch - 1, 99), row)
    with pytest.raises(LeaseLost):
        worker.context.rows.note_attempt(Move(lease.pair, lease.row.epoch - 1, 99), 1, 1.0, "it failed")
    with pytest.raises(LeaseLost):
        worker.context.rows.stop(Move(lease.pair, lease.row.epoch - 1, 99), "it failed")
    found = worker.context.rows.look([lease.pair]).rows[lease.pair]

    assert (found.location, found.attempts, found.state, found.parked) == (lease.row.location, 0, "running", 0)
    worker.context.rows.parked.park(lease.move._replace(location=99), row)
    worker.context.rows.parked.park(lease.move._replace(location=99), row)
    found = worker.context.rows.look([lease.pair]).rows[lease.pair]
    assert (found.location, found.parked) == (99, 1)


@pytest.mark.guarantee("follower-one-owner")
@pytest.mark.mysql
def test_one_lost_shard_does_not_keep_the_others_locations(settings, put, works):
    """They are written in one statement, or one by one if that does not match all rows."""
    worker = works("one", Seen())
    put(20)
    turn(worker)
    pairs = list(worker.leases.held)
    moves = [Move(pair, worker.leases.held[pair].row.epoch - (pair == pairs[0]), 5_000) for pair in pairs]
    lost, failed = worker.context.rows.move(moves)
    rows = worker.context.rows.look(pairs).rows

    assert (lost, failed) == ({pairs[0]}, {})
    assert [rows[pair].location == 5_000 for pair in pairs] == [False, True, True, True]


@pytest.mark.guarantee("follower-at-least-once")
@pytest.mark.mysql
def test_cells_that_are_committed_late_are_handled(settings, put, works, follow_store, by_hand, new_row, monkeypatch):
    """An open transaction delays its own shard only, and no cell after it is skipped.

    Activity in other shards does not cause the delayed shard to be read again.
    """
    seen = Seen()
    worker = works("one", seen)
    read: list[int] = []

    def noted(feed, batch, column):
        read.extend(lease.pair[1] for lease in batch)
        return read_batch(feed, batch, column)

    monkeypatch.setattr("schemaless.store.followers.dispatch.read_batch", noted)
    # So that whatever gave nothing is left alone until it is heard of.
    monkeypatch.setattr("schemaless.store.followers.leases.MAX_READ_PAUSE_S", 1_000.0)
    monkeypatch.setattr("schemaless.store.followers.leases.MIN_READ_PAUSE_S", 1_000.0)
    shards = by_hand(follow_store)
    row = next(row for row in iter(new_row, None) if follow_store.shard_of(row) == 1)
    insert = b"INSERT INTO `%b`.cell (row_key,column_name,ref_key,body) VALUES (x'%b','BASE',1,'0')"
    with shards.pool_for(shards.node_of(1)).connection() as late:
        late.execute(b"START TRANSACTION")
        late_id = late.execute(insert % (shards.database(1).encode(), row.hex.encode())).last_id
        there = put(20)
        turn(worker, times=3)
        assert set(seen.cells) == {cell for cell in there if cell[0] != 1}
        assert read.count(1) == 1
        late.execute(b"COMMIT")
    worker.leases.held[NAME, 1].notify(late_id)
    turn(worker, times=2)

    assert sorted(seen.cells) == sorted(there | {(1, late_id)})


@pytest.mark.guarantee("follower-start")
@pytest.mark.mysql
def test_no_worker_creates_a_row(settings, put, works, by_hand, follow_store, eventually):
    """A shard whose row is missing waits, and the others continue."""
    shards = by_hand(follow_store)
    shards.execute(2, b"DELETE FROM `%b`.follower" % shards.database(2).encode())
    seen = Seen()
    worker = works("one", seen)
    there = put(12)
    turn(worker, times=2)
    assert settings.create(NAME, {}, lambda shard: 0) is False
    turn(worker)

    assert shards_of(worker) == {0, 1, 3}
    assert set(seen.cells) == {cell for cell in there if cell[0] != 2}


@pytest.mark.mysql
def test_paused_and_removed_followers_begin_nothing(settings, put, works):
    """Each worker learns of it at its next renewal; a new follower may reuse the name."""
    seen = Seen()
    worker = works("one", seen)
    turn(worker)
    settings.set_desired_state(NAME, PAUSED)
    there = put(8)
    turn(worker, times=2)
    assert seen.cells == []
    settings.set_desired_state(NAME, "running")
    turn(worker)
    assert set(seen.cells) == there
    settings.remove(NAME)
    turn(worker)
    assert worker.leases.held == {}
    Worker(worker._access, [seen], "two", timing=CALM, stop=threading.Event()).run()
    with pytest.raises(InvalidInput, match="existing names: none"):
        settings.get(NAME)
    assert settings.create(NAME, {}, lambda shard: 0) is True


@pytest.mark.guarantee("follower-start")
@pytest.mark.mysql
def test_an_interrupted_creation_continues_and_keeps_existing_rows(follow_store, monkeypatch):
    """Existing rows keep their locations, and nothing runs until all rows exist."""
    settings = Settings(internals_of(follow_store).follower_access)

    def start(shard: int) -> int:
        if shard == 2:
            raise KeyboardInterrupt
        return 10 + shard

    with pytest.raises(KeyboardInterrupt):
        settings.create(NAME, {}, start)
    assert settings.get(NAME).desired_state == NEW
    with pytest.raises(InvalidInput, match="was interrupted; repeat the command that creates it"):
        settings.set_desired_state(NAME, PAUSED)
    settings.create(NAME, {"column": "BASE"}, lambda shard: 70 + shard)
    rows = FollowerRows(internals_of(follow_store).shards).look((NAME, shard) for shard in range(4)).rows

    assert [rows[NAME, shard].location for shard in range(4)] == [10, 11, 72, 73]
    assert (settings.get(NAME).desired_state, settings.get(NAME).spec) == ("running", {"column": "BASE"})


@pytest.mark.mysql
def test_shards_with_a_few_new_cells_are_read_together(settings, put, works, follow_store, monkeypatch):
    """A shard is read alone only until its identity is verified."""
    alone: list[int] = []
    read = DatastoreAccess.page

    def note(feed: DatastoreAccess, shard: int, *rest: object) -> object:
        alone.append(shard)
        return read(feed, shard, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(DatastoreAccess, "page", note)
    seen = Seen()
    worker = works("one", seen)
    there = put(12)
    turn(worker)
    once = sorted(alone)
    there |= put(40)
    turn(worker)

    assert sorted(seen.cells) == sorted(there)
    assert once == sorted(alone)
    assert once <= [0, 1, 2, 3]


@pytest.mark.mysql
def test_one_column_only(settings, put, works):
    """Cells of other columns are skipped."""
    seen = Seen(column="STATUS")
    worker = works("one", seen)
    put(10)
    there = put(10, "STATUS")
    put(10)
    turn(worker, times=3)

    assert sorted(seen.cells) == sorted(there)
    assert all(lease.reached == lease.top for lease in worker.leases.held.values())


@pytest.mark.guarantee("follower-turns")
@pytest.mark.mysql
def test_each_shard_gets_its_turn_although_the_first_ones_always_have_more(settings, put, works):
    """However short the turn, one page is handled, and the next turn starts with another shard.

    If each turn started with the first shard, the last ones would starve.
    """
    seen = Seen()
    worker = works("one", seen)
    turn(worker)
    served = []
    for _ in range(4):
        before = len(seen.cells)
        put(60)
        worker.discovery.poll(worker.membership.view)
        worker.dispatcher.run(worker.membership.view, -math.inf)
        served.append({shard for shard, _ in seen.cells[before:]})

    assert served == [{0}, {1}, {2}, {3}]


@pytest.mark.guarantee("follower-turns")
@pytest.mark.mysql
@pytest.mark.parametrize("dealt_to", ["this one", "another"])
def test_a_shard_rewound_by_a_move_goes_to_the_worker_it_is_assigned_to(settings, put, works, monkeypatch, dealt_to):
    """A move raises the epoch and keeps the owner's name, so the old owner has to release it if it is assigned away."""
    worker = works("one", Seen())
    turn(worker)
    pair = NAME, 1
    shards = worker._access.shards
    shards.execute(1, rewind_follower(shards.database(1), NAME, 0, 0))
    if dealt_to == "another":
        monkeypatch.setattr(
            Ownership, "assigned", lambda *_: Assigned(frozenset(worker.leases.held) - {pair}, frozenset())
        )
    turn(worker, times=2)

    assert worker.context.rows.look([pair]).rows[pair].worker == ("one" if dealt_to == "this one" else None)
    assert (pair in worker.leases.held) == (dealt_to == "this one")
    assert worker.leases.doubtful == set()
