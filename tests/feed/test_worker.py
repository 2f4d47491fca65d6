"""Workers of a follower: shards dealt out, taken over and given back, locations fenced, and no cell missed."""

from __future__ import annotations

import math
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace

import pytest

import schemaless
from schemaless.cell import StoredCell
from schemaless.errors import InvalidInput, LeaseLost, ServerUnavailable
from schemaless.feed.members import Member, Pair, Timing, View, remove_worker
from schemaless.feed.owned import PAUSED, Owned
from schemaless.feed.rows import FollowerRows, Looked, Move
from schemaless.feed.settings import NEW, Settings
from schemaless.feed.wakes import Wakes
from schemaless.feed.worker import Worker
from schemaless.mysql.sql.followers import ParkedRow
from schemaless.store.tools import tools_of

NAME = "trigger:seen"
# Signs of life are given by hand: nothing here depends on how busy the machine is.
CALM = Timing(lease_s=1_000, give_up_s=900, renew_s=1_000, note_s=0.0)
SHORT = Timing(lease_s=2.0, give_up_s=1.6, renew_s=1_000, note_s=0.0)


@dataclass
class Seen:
    """A dealer that keeps what it was given, in its order."""

    name: str = NAME
    column: str | None = None
    timeout_s: float | None = None
    cells: list[tuple[int, int]] = field(default_factory=list)
    careful: list[int] = field(default_factory=list)
    before: Callable[[StoredCell], None] = lambda cell: None

    def deal(self, worker: Worker, owned: Owned, cells: Sequence[StoredCell]) -> bool:
        for cell in cells:
            worker.go_on(owned)
            with worker.calling(owned, cell):
                self.before(cell)
            self.careful.append(owned.careful)
            self.cells.append((cell.shard, cell.added_id))
            worker.dealt(owned, cell.added_id)
        return True

    def replay(self, worker: Worker, owned: Owned) -> None:
        raise AssertionError("nothing is to be tried again")


@pytest.fixture
def settings(follow_store: schemaless.Datastore) -> Settings:
    """A follower from the beginning, in each shard of a new datastore."""
    made = Settings(follow_store)
    made.make(NAME, {}, lambda shard: 0)
    return made


@pytest.fixture
def put(fresh_store: schemaless.Datastore, new_row: Callable[[], uuid.UUID]) -> Callable[[int], set[tuple[int, int]]]:
    """Puts so many cells, and returns shard and added_id of each."""

    def put_many(count: int, column: str = "BASE") -> set[tuple[int, int]]:
        puts = fresh_store.put_cells([schemaless.NewCell(new_row(), column, 1, n) for n in range(count)])
        return {(fresh_store.shard_of(put.key.row_key), put.added_id) for put in puts}

    return put_many


@pytest.fixture
def works(follow_store: schemaless.Datastore) -> Iterator[Callable[..., Worker]]:
    """Makes workers that live until the test ends, and do one turn when they are told to."""
    with ExitStack() as stack:

        def make(name: str, dealer: Seen, timing: Timing = CALM) -> Worker:
            worker = Worker(follow_store, [dealer], name, timing=timing, stop=threading.Event())
            stack.enter_context(worker._members)
            return worker

        yield make


def turn(*workers: Worker, times: int = 1) -> None:
    """Have each see who lives, then look and work, one after the other."""
    for _ in range(times):
        for worker in workers:
            worker._members.renew()
        for worker in workers:
            worker._pace.now()
            worker.turn()


@contextmanager
def asleep(worker: Worker) -> Iterator[None]:
    """Have a worker give no sign of life for the block."""
    renew, worker._members.renew = worker._members.renew, lambda: None  # type: ignore[method-assign]
    yield
    worker._members.renew = renew  # type: ignore[method-assign]


def shards_of(worker: Worker) -> set[int]:
    """Return the shards that a worker takes for its own."""
    return {shard for _, shard in worker.owned}


# ---- who has what


@pytest.mark.once
def test_shards_are_dealt_out_evenly_and_one_that_goes_moves_its_own_only():
    """All workers come to the same deal; the rest stays where it was."""
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
    """Its others are dealt to the rest; where there is no rest, they stay."""
    busy = Member("busy", frozenset({NAME}), (NAME, 3))
    free = Member("free", frozenset({NAME}))
    owners = [View((busy, free), {}).owner((NAME, shard)) for shard in range(6)]

    assert owners == ["free", "free", "free", "busy", "free", "free"]
    assert View((busy,), {}).owner((NAME, 1)) == "busy"


@pytest.mark.mysql
def test_every_cell_is_dealt_with_once_in_the_order_of_each_shard(settings, put, works, follow_store):
    """And what comes later too; how far it is stands in each shard."""
    seen = Seen()
    worker = works("one", seen)
    there = put(40)
    turn(worker, times=2)
    there |= put(7)
    turn(worker)
    rows = FollowerRows(tools_of(follow_store).shards).look((NAME, shard) for shard in range(4)).rows

    assert sorted(seen.cells) == sorted(there)
    for shard in range(4):
        ids = [added_id for where, added_id in seen.cells if where == shard]
        assert ids == sorted(ids)
        assert rows[NAME, shard].location == max(ids)
        assert rows[NAME, shard].worker == "one"


@pytest.mark.mysql
def test_an_offset_survives_a_restart_with_replay_at_least_once(settings, put, works):
    """Case 23: who comes after a clean end goes on behind it; after a death, at what was written down last."""
    first, second, third = Seen(), Seen(), Seen()
    worker = works("first", first)
    there = put(20)
    turn(worker)
    worker.let_go()
    worker._members.__exit__(None, None, None)
    successor = works("second", second, replace(CALM, note_s=1_000))
    more = put(20)
    turn(successor)
    # It dealt with these and is killed before it writes that down.
    assert set(second.cells) == more
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(successor.rows, "move", lambda moves: (set(), {}))
        last = put(8)
        turn(successor)
    successor._members._ended.set()
    successor._members._thread.join()
    remove_worker(successor._members._pool, settings._catalog, "second")
    heir = works("third", third)
    turn(heir, times=2)

    assert set(first.cells) == there
    assert set(third.cells) == last
    assert set(third.careful) == {500}
    assert set(second.cells) == more | last


@pytest.mark.mysql
def test_workers_share_the_shards_and_take_over_from_one_that_goes(settings, put, works):
    """None is owned by two, and each of one that ends is somebody's at his next look."""
    seen = Seen()
    workers = [works(f"worker {number}", seen) for number in range(3)]
    turn(*workers, times=3)
    shares = [shards_of(worker) for worker in workers]
    assert sorted(shard for share in shares for shard in share) == [0, 1, 2, 3]
    gone = max(workers, key=lambda worker: len(worker.owned))
    gone.let_go()
    gone._members.__exit__(None, None, None)
    left = [worker for worker in workers if worker is not gone]
    turn(*left, times=2)
    there = put(30)
    turn(*left)

    assert sorted(shard for worker in left for shard in shards_of(worker)) == [0, 1, 2, 3]
    assert sorted(seen.cells) == sorted(there)


@pytest.mark.mysql
def test_who_was_asleep_for_longer_than_its_lease_changes_nothing(settings, put, works, eventually, follow_store):
    """A frozen process that goes on: its shards are another's, its locations match no row, and nothing is missed."""
    early, late = Seen(), Seen()
    sleeper = works("sleeper", early, SHORT)
    there = put(20)
    turn(sleeper)
    with asleep(sleeper):
        eventually(lambda: not sleeper._members.alive, "it may begin nothing")
        more = put(20)
        turn(sleeper)
        assert set(early.cells) == there
        heir = works("heir", late)
        eventually(lambda: turn(heir, times=2) or len(heir.owned) == 4, "its lease is over, and its shards are taken")
        stolen = [owned for owned in sleeper.owned.values() if owned.pair in heir.owned]
        assert len(stolen) == 4
        for owned in stolen:
            # What it still had in its hands when it fell asleep.
            owned.reached += 1_000
        lost, failed = sleeper.rows.move(owned.move for owned in stolen)
    rows = sleeper.rows.look(heir.owned).rows

    assert set(late.cells) == more
    assert (lost, failed) == (set(heir.owned), {})
    assert all(rows[pair].location == owned.location for pair, owned in heir.owned.items())
    turn(sleeper)
    assert all(
        owned.epoch == rows[owned.pair].epoch for owned in heir.owned.values() if owned.pair not in sleeper.owned
    )


@pytest.mark.mysql
def test_who_was_suspended_looks_before_it_goes_on(settings, put, works, follow_store, monkeypatch):
    """Its machine's clock stood still; others have come and gone since, and it hears of cells that they dealt with."""
    early, late = Seen(), Seen()
    sleeper = works("sleeper", early)
    there = put(20)
    turn(sleeper)
    real = time.clock_gettime
    monkeypatch.setattr(time, "clock_gettime", lambda clock: real(clock) + 1_000)
    assert not sleeper._members.alive
    tools = tools_of(follow_store)
    remove_worker(tools.catalog, follow_store.name, "sleeper")
    more = put(20)
    heir = Worker(follow_store, [late], "heir", timing=CALM, stop=threading.Event())
    with heir._members:
        turn(heir)
        heir.let_go()
    assert set(late.cells) == more
    with closing(Wakes(tools.shards)) as sleeper._wakes:
        sleeper._pace.sweep_at_s = math.inf
        sleeper._wakes.heard({tools.shards.database(shard): max(more)[1] + 1_000 for shard in range(4)})
        sleeper._members.renew()
        sleeper.turn()

    assert set(early.cells) == there
    assert len(sleeper.owned) == 4, "and takes what nobody has"


@pytest.mark.mysql
def test_who_owned_a_follower_that_was_removed_owns_nothing_of_its_successor(settings, put, works):
    """Made again under its name, its epochs begin above those of before."""
    worker = works("one", Seen())
    put(4)
    turn(worker)
    zombie = list(worker.owned.values())
    settings.remove(NAME)
    settings.make(NAME, {}, lambda shard: 0)
    heir = works("heir", Seen())
    remove_worker(tools_of(heir.store).catalog, heir.store.name, "one")
    turn(heir)
    lost, _ = worker.rows.move(owned.move for owned in zombie)

    assert len(heir.owned) == len(zombie) == 4
    assert lost == set(heir.owned)


@pytest.mark.mysql
def test_parking_by_who_lost_the_shard_parks_nothing(settings, put, works, follow_store):
    """The insert and the location are one transaction that asks for the epoch."""
    worker = works("one", Seen())
    put(4)
    turn(worker)
    owned = next(iter(worker.owned.values()))
    row = ParkedRow(99, b"k" * 16, "BASE", 1, 3, "it failed")
    with pytest.raises(LeaseLost, match="taken over"):
        worker.rows.park(Move(owned.pair, owned.epoch - 1, 99), row)
    with pytest.raises(LeaseLost):
        worker.rows.note_attempt(Move(owned.pair, owned.epoch - 1, 99), 1, 1.0, "it failed")
    with pytest.raises(LeaseLost):
        worker.rows.stop(Move(owned.pair, owned.epoch - 1, 99), "it failed")
    found = worker.rows.look([owned.pair]).rows[owned.pair]

    assert (found.location, found.attempts, found.state, found.parked) == (owned.location, 0, "running", 0)
    worker.rows.park(owned.move._replace(location=99), row)
    worker.rows.park(owned.move._replace(location=99), row)
    found = worker.rows.look([owned.pair]).rows[owned.pair]
    assert (found.location, found.parked) == (99, 1)


@pytest.mark.mysql
def test_one_lost_shard_does_not_keep_the_others_locations(settings, put, works):
    """They are written in one step; where that matches not all, one by one."""
    worker = works("one", Seen())
    put(20)
    turn(worker)
    pairs = list(worker.owned)
    moves = [Move(pair, worker.owned[pair].epoch - (pair == pairs[0]), 5_000) for pair in pairs]
    lost, failed = worker.rows.move(moves)
    rows = worker.rows.look(pairs).rows

    assert (lost, failed) == ({pairs[0]}, {})
    assert [rows[pair].location == 5_000 for pair in pairs] == [False, True, True, True]


@pytest.mark.mysql
def test_cells_that_are_committed_late_are_dealt_with(
    settings, put, works, follow_store, by_hand, new_row, monkeypatch
):
    """A transaction that stays open holds its shard up, not the others; nothing behind it is skipped.

    Nor is it read again whenever there is something in another shard.
    """
    seen = Seen()
    worker = works("one", seen)
    read: list[int] = []
    page = worker._page
    monkeypatch.setattr(worker, "_page", lambda owned, *rest: read.append(owned.pair[1]) or page(owned, *rest))
    # So that whatever gave nothing is left alone until it is heard of.
    monkeypatch.setattr("schemaless.feed.owned.MOST_AGAIN_S", 1_000.0)
    monkeypatch.setattr("schemaless.feed.owned.LEAST_AGAIN_S", 1_000.0)
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
    worker.owned[NAME, 1].hear(late_id)
    turn(worker, times=2)

    assert sorted(seen.cells) == sorted(there | {(1, late_id)})


@pytest.mark.mysql
def test_a_server_that_fails_is_waited_for_and_nothing_is_dealt_with_twice(settings, put, works, monkeypatch):
    """What was reached stays in memory until it can be written down."""
    seen = Seen()
    worker = works("one", seen)
    there = put(12)

    def refuse(moves: object) -> tuple[set[Pair], dict[Pair, Exception]]:
        return set(), {move.pair: ServerUnavailable("gone", node="db-1") for move in moves}

    with monkeypatch.context() as patch:
        patch.setattr(worker.rows, "move", refuse)
        shards = {shard for shard, _ in there}
        for _ in range(30):  # on a busy machine a shard may come up a turn later
            turn(worker)
            reasons = {shard: owned.reason for (_, shard), owned in worker.owned.items()}
            if all(reasons[shard] == "db-1: gone" for shard in shards):
                break
        assert {reasons[shard] for shard in shards} == {"db-1: gone"}
        for _ in range(3):
            for owned in worker.owned.values():
                owned.not_before_s = 0
            turn(worker)
        assert len(seen.cells) == len(shards), "one of each shard, and none before its location could be written"
    for owned in worker.owned.values():
        owned.not_before_s = 0
    turn(worker, times=2)

    assert sorted(seen.cells) == sorted(there)
    assert {owned.reason for owned in worker.owned.values()} <= {None, ""}


@pytest.mark.mysql
def test_who_stops_tries_once_more_to_write_down_what_could_not_be(settings, put, works, monkeypatch):
    """Whatever was to be waited for: there is no later."""
    worker = works("one", Seen())
    there = put(12)
    with monkeypatch.context() as patch:
        gone = ServerUnavailable("gone", node="db-1")
        patch.setattr(worker.rows, "move", lambda moves: (set(), {move.pair: gone for move in moves}))
        turn(worker)
        assert all(owned.stuck for owned in worker.owned.values())
    worker.let_go()
    rows = worker.rows.look((NAME, shard) for shard in range(4)).rows

    assert worker.owned == {}
    assert {row.worker for row in rows.values()} == {None}
    assert {(shard, rows[NAME, shard].location) for shard in range(4)} <= there


@pytest.mark.mysql
def test_a_worker_rests_while_a_location_is_on_its_way(settings, works):
    """A server that takes long to write it down does not keep a processor busy here."""
    worker = works("one", Seen())
    turn(worker)
    rested = []

    class Silent(Wakes):
        news = False  # type: ignore[assignment]

        def __init__(self) -> None: ...

        def wait(self, seconds: float) -> None:
            rested.append(seconds)
            worker._stop.set()

    worker._wakes = Silent()
    worker._pace.sweep_at_s = math.inf
    worker._pending, worker._noted_s, worker._notes._step = 1, -math.inf, Future()
    worker._rest(worker._members.view)

    assert len(rested) == 1


@pytest.mark.mysql
def test_a_shard_in_the_name_of_who_does_not_know_it_is_given_back_once_its_server_answers(
    settings, works, monkeypatch
):
    """The claim's reply was lost and it is dealt to another by now, who leaves alone what is one's who lives."""
    worker = works("one", Seen())
    turn(worker)
    pair = next(iter(worker.owned))
    del worker.owned[pair]
    worker._doubtful.add(pair)
    monkeypatch.setattr(worker, "_dealt_to_me", lambda view: frozenset(worker.owned))
    gone = ServerUnavailable("gone", node="db-1")
    look = worker.rows.look
    for name, fails in (
        ("look", lambda pairs: Looked({k: v for k, v in look(pairs).rows.items() if k != pair}, {pair[1]: gone})),
        ("release", lambda *of: (_ for _ in ()).throw(gone)),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(worker.rows, name, fails)
            turn(worker)
        assert worker.rows.look([pair]).rows[pair].worker == "one"
    turn(worker)

    assert worker.rows.look([pair]).rows[pair].worker is None
    assert worker._doubtful == set()


@pytest.mark.mysql
def test_calls_go_on_while_locations_are_written_and_no_change_overtakes_them(settings, put, works, monkeypatch):
    """A location that came late would take back what its owner has written since: the next attempt, a parked cell."""
    worker = works("one", Seen())
    put(12)
    turn(worker, times=2)
    owned = next(iter(worker.owned.values()))
    free, done = threading.Event(), []
    real = worker.rows.move

    def held(moves: Iterable[Move]) -> object:
        free.wait()
        result = real(moves)
        done.append("on its way")
        return result

    monkeypatch.setattr(worker.rows, "move", held)
    owned.reached += 5
    worker.write_down(wait=False)
    assert (done, owned.location) == ([], owned.reached - 5)
    own = threading.Thread(target=lambda: worker.rows and done.append("its own"))
    own.start()
    own.join(0.05)
    free.set()
    own.join()

    assert done == ["on its way", "its own"]
    assert worker.rows.look([owned.pair]).rows[owned.pair].location == owned.location == owned.reached


@pytest.mark.mysql
def test_no_worker_makes_a_row(settings, put, works, by_hand, follow_store, eventually):
    """A shard whose row is missing is waited for, and what is done elsewhere goes on."""
    shards = by_hand(follow_store)
    shards.execute(2, b"DELETE FROM `%b`.follower" % shards.database(2).encode())
    seen = Seen()
    worker = works("one", seen)
    there = put(12)
    turn(worker, times=2)
    assert settings.make(NAME, {}, lambda shard: 0) is False
    turn(worker)

    assert shards_of(worker) == {0, 1, 3}
    assert set(seen.cells) == {cell for cell in there if cell[0] != 2}


@pytest.mark.mysql
def test_paused_and_removed_followers_begin_nothing(settings, put, works):
    """Seen by each worker at its next sign of life; a new follower may have the name again."""
    seen = Seen()
    worker = works("one", seen)
    turn(worker)
    settings.want(NAME, PAUSED)
    there = put(8)
    turn(worker, times=2)
    assert seen.cells == []
    settings.want(NAME, "running")
    turn(worker)
    assert set(seen.cells) == there
    settings.remove(NAME)
    turn(worker)
    assert worker.owned == {}
    Worker(worker.store, [seen], "two", timing=CALM, stop=threading.Event()).run()
    with pytest.raises(InvalidInput, match="none yet"):
        settings.get(NAME)
    assert settings.make(NAME, {}, lambda shard: 0) is True


@pytest.mark.mysql
def test_making_that_was_interrupted_goes_on_and_keeps_what_is_there(follow_store, monkeypatch):
    """The rows that are there stay where they are; until all are, nothing runs."""
    settings = Settings(follow_store)

    def start(shard: int) -> int:
        if shard == 2:
            raise KeyboardInterrupt
        return 10 + shard

    with pytest.raises(KeyboardInterrupt):
        settings.make(NAME, {}, start)
    assert settings.get(NAME).wanted == NEW
    with pytest.raises(InvalidInput, match="was interrupted; run the command that creates it again"):
        settings.want(NAME, PAUSED)
    settings.make(NAME, {"column": "BASE"}, lambda shard: 70 + shard)
    rows = FollowerRows(tools_of(follow_store).shards).look((NAME, shard) for shard in range(4)).rows

    assert [rows[NAME, shard].location for shard in range(4)] == [10, 11, 72, 73]
    assert (settings.get(NAME).wanted, settings.get(NAME).spec) == ("running", {"column": "BASE"})


@pytest.mark.mysql
def test_shards_with_a_few_new_cells_are_read_together(settings, put, works, follow_store, monkeypatch):
    """Each by itself only until it was proven to be the right one."""
    alone: list[int] = []
    read = follow_store.get_stored_cells_for_shard

    def note(shard: int, *rest: object, **how: object) -> object:
        alone.append(shard)
        return read(shard, *rest, **how)

    monkeypatch.setattr(follow_store, "get_stored_cells_for_shard", note)
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
    """Cells of others are gone over."""
    seen = Seen(column="STATUS")
    worker = works("one", seen)
    put(10)
    there = put(10, "STATUS")
    put(10)
    turn(worker, times=3)

    assert sorted(seen.cells) == sorted(there)
    assert all(owned.reached == owned.top for owned in worker.owned.values())
