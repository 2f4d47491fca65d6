"""How fast a shard is copied where applications call: with rests, but not so slowly that it never ends."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from schemaless import MoveRefused, ServerUnavailable
from schemaless.jobs.runner import ShardRun
from schemaless.jobs.throttle import Look
from schemaless.jobs.worker import Outcome
from schemaless.move import copy_rate as pace
from schemaless.move import steps, verify
from schemaless.move.copy_rate import Pace, TargetServers
from schemaless.wire.connection import Connection
from tests.move.benches import SHARD


def on_servers(test: Callable[..., None]) -> Callable[..., None]:
    """Mark a test that needs servers."""
    return pytest.mark.mysql(pytest.mark.long(pytest.mark.shared(test)))


def looked_at(watched: Pace, came: list[int], done: list[int]) -> list[float]:
    """Let windows pass, and return the share after each."""
    top, copied, shares = 1_000_000, 0, []
    watched.begin()
    for new, more in zip(came, done, strict=True):
        assert watched.due(pace.WINDOW_S)
        top, copied = top + new, copied + more
        watched.look(copied, top, copied)
        shares.append(watched.share)
    return shares


@pytest.mark.once
def test_rests_get_shorter_where_cells_come_fast_and_longer_again():
    """The first window is what the others are compared with; half as many as are copied may come."""
    watched = Pace(SHARD, 60)

    assert looked_at(watched, [0, 49, 51, 80, 30, 20, 10], [0, *[100] * 6]) == [1, 1, 0.5, 0.25, 0.25, 0.5, 1]
    assert watched.told is not None
    assert "cells of shard 1 come at 26 a second, 50 are copied" in watched.told
    watched.told = None
    assert looked_at(watched, [0, 80], [0, 100]) == [1, 0.5]
    assert watched.told is None
    restless = Pace(SHARD, 60)
    restless.look(0, 1_000, 0, rests=False)
    restless.look(100, 1_080, 100, rests=False)
    assert restless.told is None


@pytest.mark.once
def test_a_copy_that_does_not_catch_up_says_so_and_ends():
    """Without rests, people are told; where what is left has not become less for long enough, the move ends."""
    watched = Pace(SHARD, 20)

    assert looked_at(watched, [0, *[200] * 6], [0, *[100] * 6])[-1] == 0
    assert watched.told is not None
    assert "does not catch up" in watched.told
    with pytest.raises(MoveRefused, match="run the same command again when less is written"):
        looked_at(watched, [200] * 6, [100] * 6)


@pytest.mark.once
def test_steps_are_small_where_applications_call():
    """What a put waits for behind one is over soon; where cells come fast, that counts for less."""
    watched = Pace(SHARD, 60)
    short: Any = [(each, b"", "BASE", 1, b"x" * 824, "") for each in range(10)]
    long: Any = [(1, b"", "BASE", 1, b"x" * 1_000_000, "")]

    assert watched.cells(short, called=False) == watched.cells((), called=True) == 1_000
    assert watched.cells(short, called=True) == 128
    assert watched.cells(long, called=True) == 1
    watched.share = 0.5
    assert watched.cells(short, called=True) == 1_000


@pytest.fixture
def crowded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps are of five cells, and each is looked at."""
    monkeypatch.setattr(pace, "MAX_PAGE_CELLS", 5)
    monkeypatch.setattr(pace, "WINDOW_S", 0)


@on_servers
@pytest.mark.usefixtures("crowded")
def test_a_shard_that_is_written_to_faster_than_it_is_copied_with_rests_is_moved(bench, movers, monkeypatch):
    """Twice as many cells come in a whole rest as are copied in a step."""
    left = [300]

    def rest(run: ShardRun, worked_s: float, share: float = 1.0, *, called: bool = False) -> None:
        left[0] -= 1
        assert left[0], "it does not catch up"
        bench.put(int(10 * share))

    bench.put(20)
    job = bench.begin()
    with monkeypatch.context() as patch:
        patch.setattr(ShardRun, "rest", rest)
        patch.setattr(ShardRun, "yields", True)
        movers.move(bench.client, job)
    bench.job_store.complete(job.job_id)

    assert bench.check(job) == "verified"
    assert sum("it rests less" in what for _, _, what in bench.job_store.events(job.job_id)) == 1


@on_servers
@pytest.mark.usefixtures("crowded")
def test_a_shard_that_cannot_be_caught_up_with_stays_and_is_moved_later(bench, movers, monkeypatch):
    """The mover says what comes and what is copied, and the same command goes on when less is written."""
    outcomes: list[Outcome] = []
    bench.put(20)
    job = bench.begin()
    with monkeypatch.context() as patch:
        patch.setattr(steps, "Pace", lambda shard, give_up_s: Pace(shard, 0))
        patch.setattr(ShardRun, "rest", lambda *_, **__: bench.put(10))
        movers.move(bench.client, job, outcomes=outcomes)
    assert isinstance(outcomes[0].error, MoveRefused)
    assert "what is left has not become less" in str(outcomes[0].error)

    bench.end(job, movers, abort=False)

    assert bench.check(job) == "verified"


@on_servers
def test_a_mover_does_not_take_its_own_calls_for_those_of_applications(bench, movers, monkeypatch):
    """What it reads and writes in a step is taken out of the calls that both servers count."""
    monkeypatch.setattr(pace, "MAX_PAGE_CELLS", 1)
    bench.put(20)
    job, me, sent, ask = bench.begin(), threading.get_ident(), [], Connection.ask

    def noted(connection: Connection, sql: bytes) -> Any:
        if threading.get_ident() == me:
            sent.append((connection.node, bytes(sql)))
        return ask(connection, sql)

    with monkeypatch.context() as patch:
        patch.setattr(Connection, "ask", noted)
        movers.move(bench.client, job)
    bench.job_store.complete(job.job_id)

    target = next(node for node, sql in sent if b"INSERT INTO" in sql and b"cell_incoming_" in sql)
    steps_there = sum(node == target and b"INSERT INTO" in sql and b"cell_incoming_" in sql for node, sql in sent)
    assert steps_there > 20
    assert sum(node == target and sql == b"DO 0" for node, sql in sent) >= 2 * steps_there
    assert sum(node != target and sql == b"DO 0" for node, sql in sent) >= steps_there


@on_servers
def test_comparing_leaves_the_servers_to_applications(bench, movers, monkeypatch):
    """Behind every block."""
    monkeypatch.setattr(verify, "BLOCK_ROWS", 1)
    bench.put(20)
    job, rests = bench.begin(), []
    with monkeypatch.context() as patch:
        patch.setattr(TargetServers, "rest_anyhow", lambda servers, worked_s: rests.append(worked_s))
        movers.move(bench.client, job)
    bench.job_store.complete(job.job_id)

    assert bench.check(job) == "verified"
    assert len(rests) == 25


@pytest.mark.once
def test_applications_that_call_the_target_are_left_alone(monkeypatch):
    """At a gate what is wrong there is raised; who only compares goes on."""
    answers: list[Look | ServerUnavailable] = [Look(None, None, {"lag_s": {"replica": 3}}, yields=True)]
    rests: list[tuple[float, bool]] = []

    def look(reads: int) -> Look:
        answer = answers.pop()
        if isinstance(answer, Look):
            return answer
        raise answer

    monkeypatch.setattr(pace, "make_watch", lambda *_: SimpleNamespace(look=look, close=lambda: None))
    run: Any = SimpleNamespace(
        gate=lambda: None,
        job=SimpleNamespace(thresholds=None),
        state=SimpleNamespace(runner="a"),
        job_store=SimpleNamespace(reads=0),
        rest=lambda worked_s, share, *, called: rests.append((worked_s * share, called)),
        yields=False,
    )
    store: Any = None
    servers = TargetServers(store, run, "cluster-2", look_s=0)
    servers.rest(8, 0.5)
    servers.gate()
    servers.rest(8, 0.5)
    answers.append(ServerUnavailable("gone", node="db-2:3306"))
    servers.rest_anyhow(2)
    answers.append(ServerUnavailable("gone", node="db-2:3306"))
    with pytest.raises(ServerUnavailable):
        servers.gate()
    servers.close()

    assert servers.called
    assert rests == [(4, False), (4, True), (2, True)]
    assert servers.lags == [3]
