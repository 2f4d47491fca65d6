"""A mover killed, or frozen and thawed, before each statement of its cut; another one goes on, or gives it up."""

from __future__ import annotations

import threading

import pytest

from schemaless.jobs.worker import Outcome
from tests.move.benches import Killed, Point

pytestmark = [pytest.mark.mysql, pytest.mark.long, pytest.mark.shared]


@pytest.mark.parametrize("abort", [False, True], ids=["runs", "aborts"])
def test_a_mover_killed_before_a_statement(bench, movers, abort):
    """A successor runs, or aborts: 0 acknowledged cells are lost, renumbered or doubled, and no table is left over."""

    def kill(sql: bytes) -> None:
        raise Killed

    for number in bench.points(movers, f"killed {abort}", 4):
        bench.put()
        job = bench.begin()
        movers.move(bench.client, job, Point(number, kill))
        bench.end(job, movers, abort=abort)
        phase = bench.check(job)

        assert phase == "verified" or abort, movers.seen[number]


@pytest.mark.parametrize("abort", [False, True], ids=["runs", "aborts"])
def test_a_mover_frozen_before_a_statement_and_thawed(bench, movers, abort):
    """A successor runs, or aborts, while it stands still; thawed, it changes nothing more."""
    for number in bench.points(movers, f"frozen {abort}", 4):
        bench.put()
        job = bench.begin()
        frozen, thawed = threading.Event(), threading.Event()

        def freeze(sql: bytes, frozen: threading.Event = frozen, thawed: threading.Event = thawed) -> None:
            frozen.set()
            assert thawed.wait(60)

        outcomes: list[Outcome] = []
        mover = threading.Thread(target=movers.move, args=(bench.client, job, Point(number, freeze), outcomes))
        mover.start()
        while mover.is_alive() and not frozen.wait(0.01):
            pass
        bench.end(job, movers, abort=abort)
        thawed.set()
        mover.join()
        phase = bench.check(job)

        assert not outcomes or outcomes[0].kind != "through" or phase == "verified"
