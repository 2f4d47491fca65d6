"""Copy rate beside applications: pauses between steps, without falling behind forever."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from schemaless import MoveRefused, ServerUnavailable
from schemaless.ops.jobs.runner import ShardRun
from schemaless.ops.jobs.throttle import Look
from schemaless.ops.jobs.worker import Outcome
from schemaless.ops.move import compare, copy_rate, steps
from schemaless.ops.move.copy_rate import CopyRate, TargetServers
from schemaless.wire.connection import Connection
from tests.ops.move.benches import SHARD


def on_servers(test: Callable[..., None]) -> Callable[..., None]:
    """Mark a test that needs servers."""
    return pytest.mark.mysql(test)


def shares_after(rate: CopyRate, arrived: list[int], done: list[int]) -> list[float]:
    """Report one measurement per window, and return the share after each."""
    top, copied, shares = 1_000_000, 0, []
    rate.begin()
    for new, more in zip(arrived, done, strict=True):
        assert rate.due(copy_rate.WINDOW_S)
        top, copied = top + new, copied + more
        rate.adjust(copied, top, copied)
        shares.append(rate.share)
    return shares


@pytest.mark.once
def test_pauses_shorten_when_cells_arrive_fast_and_lengthen_again():
    """The first window is the baseline; cells may arrive at half the copy rate."""
    warnings: list[str] = []
    rate = CopyRate(SHARD, 60, warnings.append)

    assert shares_after(rate, [0, 49, 51, 80, 30, 20, 10], [0, *[100] * 6]) == [1, 1, 0.5, 0.25, 0.25, 0.5, 1]
    assert "shard 1 receives 26 cells a second, and 50 are copied" in warnings[0]
    assert shares_after(rate, [0, 80], [0, 100]) == [1, 0.5]
    without_pauses = CopyRate(SHARD, 60, warnings.append)
    without_pauses.adjust(0, 1_000, 0, pauses=False)
    without_pauses.adjust(100, 1_080, 100, pauses=False)
    assert len(warnings) == 1


@pytest.mark.once
def test_a_copy_that_does_not_catch_up_warns_and_gives_up():
    """A copy that falls behind without pauses warns; the move ends when the backlog has not shrunk for too long."""
    warnings: list[str] = []
    rate = CopyRate(SHARD, 20, warnings.append)

    assert shares_after(rate, [0, *[200] * 6], [0, *[100] * 6])[-1] == 0
    assert "does not catch up" in warnings[-1]
    with pytest.raises(MoveRefused, match="Run the same command again when fewer cells are written"):
        shares_after(rate, [200] * 6, [100] * 6)


@pytest.mark.once
def test_steps_are_small_while_applications_are_active():
    """A put waits only briefly for a small step; catching up takes precedence."""
    rate = CopyRate(SHARD, 60, pytest.fail)
    short: Any = [(each, b"", "BASE", 1, b"x" * 824, "") for each in range(10)]
    long: Any = [(1, b"", "BASE", 1, b"x" * 1_000_000, "")]

    assert rate.step_cells(short, busy=False) == rate.step_cells((), busy=True) == 1_000
    assert rate.step_cells(short, busy=True) == 128
    assert rate.step_cells(long, busy=True) == 1
    rate.share = 0.5
    assert rate.step_cells(short, busy=True) == 1_000


@pytest.fixture
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copy five cells per step, and measure the rates after each."""
    monkeypatch.setattr(copy_rate, "MAX_PAGE_CELLS", 5)
    monkeypatch.setattr(copy_rate, "WINDOW_S", 0)


@pytest.mark.long
@on_servers
@pytest.mark.usefixtures("small_steps")
def test_a_shard_that_receives_cells_faster_than_it_is_copied_with_pauses_is_moved(bench, movers, monkeypatch):
    """During a full pause, twice as many cells arrive as are copied in a step."""
    remaining = [300]

    def rest(run: ShardRun, worked_s: float, share: float = 1.0, *, called: bool = False) -> None:
        remaining[0] -= 1
        assert remaining[0], "it does not catch up"
        bench.put(int(10 * share))

    bench.put(20)
    job = bench.begin()
    with monkeypatch.context() as patch:
        patch.setattr(ShardRun, "rest", rest)
        patch.setattr(ShardRun, "yields", True)
        movers.move(bench.client, job)
    bench.job_store.complete(job.job_id)

    assert bench.check(job) == "verified"
    assert sum("pauses between steps are shortened" in what for _, _, what in bench.job_store.events(job.job_id)) == 1


@pytest.mark.long
@on_servers
@pytest.mark.usefixtures("small_steps")
def test_a_move_that_does_not_catch_up_gives_up_and_continues_later(bench, movers, monkeypatch):
    """The mover reports both rates, and the same command continues when fewer cells are written."""
    outcomes: list[Outcome] = []
    bench.put(20)
    job = bench.begin()
    with monkeypatch.context() as patch:
        patch.setattr(steps, "CopyRate", lambda shard, _, warn: CopyRate(shard, 0, warn))
        patch.setattr(ShardRun, "rest", lambda *_, **__: bench.put(10))
        movers.move(bench.client, job, outcomes=outcomes)
    assert isinstance(outcomes[0].error, MoveRefused)
    assert "the backlog has not shrunk" in str(outcomes[0].error)

    bench.end(job, movers, abort=False)

    assert bench.check(job) == "verified"


@on_servers
def test_a_mover_does_not_count_its_own_calls_as_those_of_applications(bench, movers, monkeypatch):
    """Its reads and writes in a step are subtracted from the calls that both servers count."""
    monkeypatch.setattr(copy_rate, "MAX_PAGE_CELLS", 1)
    bench.put(20)
    job, me, sent, ask = bench.begin(), threading.get_ident(), [], Connection.ask

    def recorded(connection: Connection, sql: bytes) -> Any:
        if threading.get_ident() == me:
            sent.append((connection.node, bytes(sql)))
        return ask(connection, sql)

    with monkeypatch.context() as patch:
        patch.setattr(Connection, "ask", recorded)
        movers.move(bench.client, job)
    bench.job_store.complete(job.job_id)

    target = next(node for node, sql in sent if b"INSERT INTO" in sql and b"cell_incoming_" in sql)
    steps_there = sum(node == target and b"INSERT INTO" in sql and b"cell_incoming_" in sql for node, sql in sent)
    assert steps_there > 20
    assert sum(node == target and sql == b"DO 0" for node, sql in sent) >= 2 * steps_there
    assert sum(node != target and sql == b"DO 0" for node, sql in sent) >= steps_there


@on_servers
def test_verification_pauses_for_applications(bench, movers, monkeypatch):
    """It pauses after every block."""
    monkeypatch.setattr(compare, "BLOCK_ROWS", 1)
    bench.put(20)
    job, rests = bench.begin(), []
    with monkeypatch.context() as patch:
        patch.setattr(TargetServers, "rest_ungated", lambda servers, worked_s: rests.append(worked_s))
        movers.move(bench.client, job)
    bench.job_store.complete(job.job_id)

    assert bench.check(job) == "verified"
    assert len(rests) == 25


@pytest.mark.once
def test_the_job_pauses_for_applications_on_the_target(monkeypatch):
    """A gate raises errors of the target's servers; verification, which passes no gate, continues."""
    answers: list[Look | ServerUnavailable] = [Look(None, None, {"lag_s": {"replica": 3}}, yields=True)]
    answers.append(Look("the disk is full", "disk", {"lag_s": {}}))
    polls: list[str | None] = []
    rests: list[tuple[float, bool]] = []

    def look(thresholds: Any) -> Look:
        answer = answers.pop()
        if isinstance(answer, Look):
            return answer
        raise answer

    watch = SimpleNamespace(look=look, close=lambda: None, proven=set())
    monkeypatch.setattr(copy_rate, "ClusterWatch", lambda *_, **__: watch)
    nothing = SimpleNamespace(shards=None)
    monkeypatch.setattr(copy_rate, "internals_of", lambda _: nothing)
    known = SimpleNamespace(cluster="cluster-2", figures={"proven": ["replica"]}, waits={})
    leases = SimpleNamespace(
        claim_watch=lambda *_: True, record_poll=lambda _, cluster, writer, look, __: polls.append(look.reason)
    )
    run: Any = SimpleNamespace(
        gate=lambda: None,
        job=SimpleNamespace(job_id=1),
        thresholds=None,
        state=SimpleNamespace(runner="a"),
        job_store=SimpleNamespace(clusters=lambda _: [known], leases=leases),
        pause=lambda _: None,
        rest=lambda worked_s, share, *, called: rests.append((worked_s * share, called)),
        yields=False,
    )
    store: Any = None
    servers = TargetServers(store, run, "cluster-2")
    servers.rest(8, 0.5)
    servers.gate()
    servers.rest(8, 0.5)
    answers.append(ServerUnavailable("gone", node="db-2:3306"))
    servers.rest_ungated(2)
    answers.append(ServerUnavailable("gone", node="db-2:3306"))
    with pytest.raises(ServerUnavailable):
        servers.gate()
    servers.close()

    assert servers.busy
    assert rests == [(4, False), (4, True), (2, True)]
    assert servers.lags == [3]
    assert polls == ["the disk is full", None], "'job list' says why the move waits"
    assert watch.proven == {"replica"}
