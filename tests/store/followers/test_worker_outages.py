"""Workers whose servers fail or are slow: what was reached is written down later, and no cell is dealt with twice."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable
from typing import Any

import pytest

from schemaless.errors import ServerUnavailable
from schemaless.store.followers.binlog_notifier import BinlogNotifier
from schemaless.store.followers.membership import Assigned, Pair
from schemaless.store.followers.ownership import Ownership
from schemaless.store.followers.rows import Looked, Move
from schemaless.wire.pool import NodePool
from tests.store.followers.workers import NAME, Seen, turn


@pytest.mark.mysql
def test_a_server_that_fails_is_waited_for_and_nothing_is_dealt_with_twice(settings, put, works, monkeypatch):
    """What was reached stays in memory until it can be written down."""
    seen = Seen()
    worker = works("one", seen)
    there = put(12)

    def refuse(moves: object) -> tuple[set[Pair], dict[Pair, Exception]]:
        return set(), {move.pair: ServerUnavailable("gone", node="db-1") for move in moves}

    with monkeypatch.context() as patch:
        patch.setattr(worker.context.rows, "move", refuse)
        shards = {shard for shard, _ in there}
        for _ in range(30):  # on a busy machine a shard may come up a turn later
            turn(worker)
            reasons = {shard: lease.wait.reason for (_, shard), lease in worker.leases.held.items()}
            if all(reasons[shard] == "db-1: gone" for shard in shards):
                break
        assert {reasons[shard] for shard in shards} == {"db-1: gone"}
        for _ in range(3):
            for lease in worker.leases.held.values():
                lease.wait.until_s = 0
            turn(worker)
        assert len(seen.cells) == len(shards), "one of each shard, and none before its location could be written"
    for lease in worker.leases.held.values():
        lease.wait.until_s = 0
    turn(worker, times=2)

    assert sorted(seen.cells) == sorted(there)
    assert {lease.wait.reason for lease in worker.leases.held.values()} <= {None, ""}


@pytest.mark.mysql
def test_the_error_of_each_shard_names_that_shard(settings, works, monkeypatch):
    """Also where one statement is about several shards."""
    worker = works("one", Seen())
    turn(worker)
    rows, pairs = worker.context.rows, list(worker.leases.held)
    moves = [lease.move for lease in worker.leases.held.values()]

    def fail(pool: NodePool, operation: object, shard: int, **options: object) -> None:
        raise ServerUnavailable("gone", node=str(pool.node), shard=shard)

    with monkeypatch.context() as patch:
        patch.setattr(NodePool, "run", fail)
        failures = [rows.look(pairs).failed, rows.tops(shard for _, shard in pairs)[1]]
        moved = rows.move(moves)[1]

    assert len(pairs) > 1
    for failed in [*failures, {shard: error for (_, shard), error in moved.items()}]:
        assert {shard: error.shard for shard, error in failed.items()} == {shard: shard for _, shard in pairs}


@pytest.mark.guarantee("follower-turns")
@pytest.mark.mysql
def test_a_shard_continues_as_soon_as_its_server_answers_again(settings, put, works, monkeypatch):
    """And no sooner; a look that meets the same makes the wait no longer."""
    seen = Seen()
    worker = works("one", seen)
    turn(worker)
    there = put(12)
    shards = worker._access.shards
    for (_, shard), lease in worker.leases.held.items():
        for _ in range(20):
            lease.wait.until_s = 0
            lease.fail(ServerUnavailable("gone", node=str(shards.node_of(shard))))
        lease.wait.began_s = -math.inf
    waits_s = {shard: lease.wait.until_s for (_, shard), lease in worker.leases.held.items()}
    gone = shards.node_of(0)

    def away(*_: Any, **__: Any) -> Any:
        raise ServerUnavailable("gone", node=str(gone))

    with monkeypatch.context() as patch:
        patch.setattr(shards.pool_for(gone), "run", away)
        turn(worker)
    assert set(seen.cells) == {(shard, added_id) for shard, added_id in there if shards.node_of(shard) != gone}
    assert worker.leases.held[NAME, 0].wait.until_s == waits_s[0]
    turn(worker)

    assert sorted(seen.cells) == sorted(there)


@pytest.mark.mysql
def test_a_stopping_worker_retries_unwritten_checkpoints_once(settings, put, works, monkeypatch):
    """Whatever was to be waited for: there is no later."""
    worker = works("one", Seen())
    there = put(12)
    with monkeypatch.context() as patch:
        gone = ServerUnavailable("gone", node="db-1")
        patch.setattr(worker.context.rows, "move", lambda moves: (set(), {move.pair: gone for move in moves}))
        turn(worker)
        assert all(lease.stuck for lease in worker.leases.held.values())
    worker.release_all()
    rows = worker.context.rows.look((NAME, shard) for shard in range(4)).rows

    assert worker.leases.held == {}
    assert {row.worker for row in rows.values()} == {None}
    assert {(shard, rows[NAME, shard].location) for shard in range(4)} <= there


@pytest.mark.mysql
def test_a_worker_rests_while_a_location_is_on_its_way(settings, works):
    """A server that takes long to write it down does not keep a processor busy here."""
    worker = works("one", Seen())
    turn(worker)
    rested = []

    class Silent(BinlogNotifier):
        has_news = False  # type: ignore[assignment]

        def __init__(self) -> None: ...

        def wait(self, seconds: float) -> None:
            rested.append(seconds)
            worker._stop.set()

    worker.discovery.notifier = Silent()
    worker.schedule.poll_at_s = math.inf
    worker.checkpoints.pending, worker.checkpoints.written_s = 1, -math.inf
    free = threading.Event()
    worker.checkpoints.slot.begin(free.wait)  # type: ignore[arg-type]
    try:
        worker._wait(worker.membership.view)
    finally:
        free.set()

    assert len(rested) == 1


@pytest.mark.mysql
def test_a_shard_claimed_without_a_reply_is_released_once_its_server_answers(settings, works, monkeypatch):
    """The claim's reply was lost and the shard is assigned to another worker, which claims no live worker's shards."""
    worker = works("one", Seen())
    turn(worker)
    pair = next(iter(worker.leases.held))
    del worker.leases.held[pair]
    worker.leases.doubtful.add(pair)
    monkeypatch.setattr(Ownership, "assigned", lambda *_: Assigned(frozenset(worker.leases.held), frozenset()))
    gone = ServerUnavailable("gone", node="db-1")
    look = worker.context.rows.look
    for name, fails in (
        ("look", lambda pairs: Looked({k: v for k, v in look(pairs).rows.items() if k != pair}, {pair[1]: gone})),
        ("release", lambda *of: (_ for _ in ()).throw(gone)),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(worker.context.rows, name, fails)
            turn(worker)
        assert worker.context.rows.look([pair]).rows[pair].worker == "one"
    turn(worker)

    assert worker.context.rows.look([pair]).rows[pair].worker is None
    assert worker.leases.doubtful == set()


@pytest.mark.mysql
def test_calls_go_on_while_locations_are_written_and_no_change_overtakes_them(settings, put, works, monkeypatch):
    """A location that came late would take back what its owner has written since: the next attempt, a parked cell."""
    worker = works("one", Seen())
    put(12)
    turn(worker, times=2)
    lease = next(iter(worker.leases.held.values()))
    free, done = threading.Event(), []
    real = worker.context.rows.move

    def held(moves: Iterable[Move]) -> object:
        free.wait()
        result = real(moves)
        done.append("on its way")
        return result

    monkeypatch.setattr(worker.context.rows, "move", held)
    lease.reached += 5
    worker.checkpoints.write(wait=False)
    assert (done, lease.row.location) == ([], lease.reached - 5)
    own = threading.Thread(target=lambda: worker.context.rows and done.append("its own"))
    own.start()
    own.join(0.05)
    free.set()
    own.join()

    assert done == ["on its way", "its own"]
    assert worker.context.rows.look([lease.pair]).rows[lease.pair].location == lease.row.location == lease.reached
