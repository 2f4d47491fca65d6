"""Cells that kill, hang or fail their workers: their shard is quarantined, and every other shard is served."""

from __future__ import annotations

import os
import random
import signal
import time
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import schemaless
from schemaless.store.followers.membership import Timing
from schemaless.store.followers.states import DIED, QUARANTINED, RUNNING
from schemaless.store.followers.supervisor import Supervisor
from schemaless.store.triggers.admin import Triggers
from schemaless.store.triggers.supervision import caught_up, prepare, trigger_supervisor
from tests.store.followers import poison
from tests.store.followers.poison import EXITS, GOOD, HANGS, RAISES, Called

pytestmark = [pytest.mark.mysql]

PATIENCE_S = 150.0
QUICK = Timing(lease_s=2.0, give_up_s=1.5, renew_s=0.2, busy_s=1.0, note_s=0.02, look_s=0.2)


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that every call of ``poison`` is logged to, in whichever process."""
    path = tmp_path / "calls"
    path.touch()
    monkeypatch.setenv(poison.LOG, str(path))
    return path


@pytest.fixture
def put(fresh_store: schemaless.Datastore, new_row: Callable[[], uuid.UUID]) -> Callable[..., list[Called]]:
    """Put cells of these kinds into a shard, in this order."""

    def put_all(shard: int, kinds: Sequence[str]) -> list[Called]:
        rows = [next(row for row in iter(new_row, None) if fresh_store.shard_of(row) == shard) for _ in kinds]
        cells = [schemaless.NewCell(row, "BASE", 1, {"kind": kind}) for row, kind in zip(rows, kinds, strict=True)]
        puts = fresh_store.put_cells(cells)
        return [Called(kind, shard, put.added_id) for put, kind in zip(puts, kinds, strict=True)]

    return put_all


def until(reached: Callable[[], Any], what: str) -> Callable[[], bool]:
    """Return what ends a supervisor's run once this is reached; fails the test where it is not in time."""
    deadline_s = time.monotonic() + PATIENCE_S

    def ended() -> bool:
        if reached():
            return True
        if time.monotonic() > deadline_s:
            pytest.fail(f"after {PATIENCE_S:.0f} s, not yet: {what}")
        return False

    return ended


def healthy_deaths(*supervisors: Supervisor) -> int:
    """Return how many workers for healthy shards died of a shard's cells."""
    return sum(seat.kills for supervisor in supervisors for seat in supervisor._healthy)


@pytest.mark.guarantee("follower-poison")
def test_thirty_cells_that_kill_their_worker_stop_no_other_shard(follow_store, put, log):
    """With two workers, only one of them dies; the other shards are drained before most of these cells had a turn."""
    poisonous = put(0, [EXITS] * 30)
    good = {cell for shard in (1, 2, 3) for cell in put(shard, [GOOD] * 196)}
    prepare(follow_store, poison.exits)
    supervisor = trigger_supervisor(follow_store, poison.TARGET, "exits", 2)
    supervisor.run(until(lambda: good <= set(poison.calls(log)), "every good cell was called"))
    called = poison.calls(log)
    before = {call for call in called[: max(map(called.index, good))] if call.kind == EXITS}

    assert healthy_deaths(supervisor) <= 1
    assert len(before) < len(poisonous) / 2


@pytest.mark.long
@pytest.mark.guarantee("follower-poison")
def test_a_quarantined_shard_is_shown_with_its_cause_and_its_cells_are_parked_replayed_and_skipped(
    follow_store, put, log
):
    """To the end: parked one by one, replayed in vain, skipped, replayed with success; then the shard is healthy."""
    poisonous = sorted(put(0, [EXITS] * 3))
    (behind,) = put(0, [GOOD])
    prepare(follow_store, poison.exits)
    triggers, seen = Triggers(follow_store), []

    def parked(count: int, replay: bool = False) -> bool:
        seen.append(triggers.status("exits"))
        cells = triggers.parked("exits", range(4))
        return len(cells) == count and all(cell.replay == replay for cell in cells)

    def run(what: str, reached: Callable[[], bool]) -> Supervisor:
        timing = Timing(probation_s=1.0)
        supervisor = trigger_supervisor(follow_store, poison.TARGET, "exits", 2, timing=timing)
        supervisor.run(until(reached, what))
        return supervisor

    first = run("all are parked, and what is behind them was called", lambda: parked(3) and behind in poison.calls(log))
    cells = triggers.parked("exits", [0])
    quarantined = [status for status in seen if status.shards[0].state == QUARANTINED]
    assert healthy_deaths(first) == 1
    assert [cell.added_id for cell in cells] == [call.added_id for call in poisonous]
    assert {cell.error for cell in cells} == {f"{DIED} (exit status 9)"}
    assert f"{DIED} (exit status 9)" in {status.shards[0].cause for status in quarantined}
    assert any(not worker.for_quarantine for worker in quarantined[-1].workers)
    assert {shard.state for status in seen for shard in status.shards[1:]} == {"running"}

    before = Counter(poison.calls(log))
    triggers.replay("exits", cells[:2])
    second = run("each was tried three times", lambda: parked(3))
    assert healthy_deaths(second) <= 1
    assert Counter(poison.calls(log)) - before == {poisonous[0]: 3, poisonous[1]: 3}
    triggers.skip("exits", cells[:1])
    poison.fix(log)
    triggers.replay("exits", triggers.parked("exits", [0]))
    run("the others came through, and the shard is healthy", lambda: parked(0) and seen[-1].shards[0].state == RUNNING)


@pytest.mark.guarantee("follower-poison")
@pytest.mark.long
def test_two_supervisors_of_a_trigger_lose_one_worker_to_a_shard(follow_store, put, log):
    """What the row says keeps the workers of the other one away from it."""
    put(0, [EXITS] * 4)
    good = {cell for shard in (1, 2, 3) for cell in put(shard, [GOOD] * 20)}
    prepare(follow_store, poison.exits)
    supervisors = [trigger_supervisor(follow_store, poison.TARGET, "exits", 1) for _ in range(2)]
    triggers = Triggers(follow_store)
    ended = until(
        lambda: good <= set(poison.calls(log)) and len(triggers.parked("exits", [0])) == 4, "all are parked or called"
    )
    with ThreadPoolExecutor(1) as beside:
        other = beside.submit(supervisors[1].run, ended)
        supervisors[0].run(ended)
        other.result()

    assert healthy_deaths(*supervisors) == 1


@dataclass
class Hurt:
    """Kills workers with -9 and freezes them past their lease, as calls come in; called as a supervisor's end."""

    supervisor: Supervisor
    log: Path
    ended: Callable[[], bool]
    hows: list[str]
    chance: random.Random
    every: int
    done: int = 0
    frozen: list[tuple[float, int]] = field(default_factory=list)

    def __call__(self) -> bool:
        for thaw in [each for each in self.frozen if each[0] <= time.monotonic()]:
            self.frozen.remove(thaw)
            with suppress(ProcessLookupError):
                os.kill(thaw[1], signal.SIGCONT)
        asleep = {pid for _, pid in self.frozen}
        alive = [child.process.pid for child in self.supervisor._occupied if child.process.pid not in asleep]
        first = len(poison.first_calls(poison.calls(self.log)))
        if self.done < len(self.hows) and alive and first > self.every * (self.done + 1):
            pid = self.chance.choice(alive)
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP if self.hows[self.done] == "freeze" else signal.SIGKILL)
            if self.hows[self.done] == "freeze":
                self.frozen.append((time.monotonic() + 2 * QUICK.lease_s, pid))
            self.done += 1
        return self.done == len(self.hows) and not self.frozen and self.ended()


@pytest.mark.guarantee("follower-poison")
@pytest.mark.long
def test_a_fifth_of_cells_that_kill_fail_or_hang_and_workers_killed_and_frozen_miss_nothing(follow_store, put, log):
    """At least once to the end, in the order of each shard; whatever is at fault is parked, and nothing else."""
    chance = random.Random(28)
    faulty = [EXITS, RAISES, HANGS] * 5 + [EXITS]
    kinds = [GOOD] * 64 + faulty
    chance.shuffle(kinds)
    cells = {cell for shard in range(4) for cell in put(shard, kinds[shard * 20 : shard * 20 + 20])}
    prepare(follow_store, poison.chaos)
    supervisor = trigger_supervisor(follow_store, poison.CHAOS, "chaos", 2, timing=QUICK)
    hows = ["kill", "freeze", "kill", "freeze", "kill"]
    ended = until(caught_up(follow_store, poison.chaos), "all are called or parked")
    supervisor.run(Hurt(supervisor, log, ended, hows, chance, every=12))
    first = poison.first_calls(poison.calls(log))
    parked = {(cell.shard, cell.added_id) for cell in Triggers(follow_store).parked("chaos", range(4))}

    assert set(first) == cells
    for shard in range(4):
        ids = [call.added_id for call in first if call.shard == shard]
        assert ids == sorted(ids)
    assert parked == {(cell.shard, cell.added_id) for cell in cells if cell.kind != GOOD}
