"""Quarantined shards: which workers serve them, for how long, and what their rows record."""

from __future__ import annotations

import math
import time
import uuid
from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import pytest

from schemaless.cell import StoredCell
from schemaless.store.followers import supervisor
from schemaless.store.followers.black_box import BlackBox
from schemaless.store.followers.inflight import InflightCall
from schemaless.store.followers.leases import Lease
from schemaless.store.followers.membership import ALL, HEALTHY, QUARANTINE, Member, View, remove_worker
from schemaless.store.followers.rows import FollowerRow
from schemaless.store.followers.sql import ParkedRow
from schemaless.store.followers.states import DIED, QUARANTINED, RUNNING
from schemaless.store.triggers.admin import Triggers
from schemaless.store.triggers.supervision import trigger_supervisor
from tests.cli.conftest import invoke  # noqa: F401 - the fixture
from tests.store.followers.workers import NAME, Seen, asleep, shards_of, turn

pytestmark = pytest.mark.mysql

PAIR = NAME, 1


@pytest.mark.once
def test_quarantined_shards_are_dealt_to_workers_for_them():
    """To workers for all shards if there are no others; never to workers for healthy shards."""
    healthy, everything, quarantine = (
        Member(role, frozenset({NAME}), role=role) for role in (HEALTHY, ALL, QUARANTINE)
    )

    assert View((healthy, everything, quarantine), {}).owner(PAIR, quarantined=True) == QUARANTINE
    assert View((healthy, everything), {}).owner(PAIR, quarantined=True) == ALL
    assert View((healthy,), {}).owner(PAIR, quarantined=True) is None
    assert View((quarantine,), {}).owner(PAIR) is None
    assert View((healthy, quarantine), {}).owner(PAIR) == HEALTHY


@pytest.mark.guarantee("follower-poison")
@pytest.mark.parametrize("proof", ["enough cells", "a while at its end"])
def test_a_quarantined_shard_has_a_worker_of_its_own_until_it_proves_healthy(settings, put, works, proof):
    """Its owner loses it, no worker for healthy shards claims it, and its cells are handled one at a time."""
    early, late = Seen(), Seen()
    healthy, apart = works("healthy", early, role=HEALTHY), works("apart", late, role=QUARANTINE)
    turn(healthy, apart)
    assert (shards_of(healthy), shards_of(apart)) == ({0, 1, 2, 3}, set())
    assert healthy.context.rows.quarantine(PAIR, healthy.leases.held[PAIR].row.epoch, f"{DIED} (SIGKILL)", 0.0)
    there = put(12)
    turn(healthy, apart, times=2)
    assert (shards_of(healthy), shards_of(apart)) == ({0, 2, 3}, {1})
    assert (healthy.leases.box.healthy, healthy.leases.box.quarantined, apart.leases.box.quarantined) == (3, 1, 1)
    assert set(late.cells) == {cell for cell in there if cell[0] == 1}
    assert set(late.careful) == {500}
    turn(apart)
    assert shards_of(apart) == {1}, "not yet"
    if proof == "enough cells":
        apart.leases.held[PAIR].careful = 0
    else:
        apart.leases.held[PAIR].claimed_at_s = -math.inf
    turn(apart, healthy)

    assert (shards_of(healthy), shards_of(apart)) == ({0, 1, 2, 3}, set())
    row = healthy.context.rows.look([PAIR]).rows[PAIR]
    assert (row.state, row.message, row.retry_s) == (RUNNING, None, None)


@pytest.mark.parametrize("evidence", ["a careful attempt", "a replay"])
def test_what_a_dead_worker_left_in_the_row_keeps_workers_for_healthy_shards_away(settings, works, evidence):
    """Its supervisor died as well, so the next worker quarantines the shard, by the message in the row."""
    dead = works("dead", Seen(), role=HEALTHY)
    turn(dead)
    lease = dead.leases.held[PAIR]
    if evidence == "a careful attempt":
        dead.context.rows.note_attempt(lease.move, 1, None, DIED)
    else:
        dead.context.rows.parked.park(lease.move, ParkedRow(7, b"k" * 16, "BASE", 1, 1, "ValueError: 7"))
        dead.context.rows.parked.begin_replay(PAIR, lease.row.epoch, 7, 1)
    remove_worker(dead.membership._pool, dead._access.name, "dead")
    successor = works("successor", Seen(), role=HEALTHY)
    with asleep(dead):
        turn(successor, times=2)

    assert shards_of(successor) == {0, 2, 3}
    assert successor.context.rows.look([PAIR]).rows[PAIR].quarantined
    assert successor.leases.box.quarantined == 1


def test_a_shard_that_stopped_before_a_cell_that_kills_resumes_in_quarantine(settings, works, follow_store):
    """Its owner releases it by itself."""
    worker = works("one", Seen(), role=HEALTHY)
    turn(worker)
    worker.context.rows.stop(worker.leases.held[PAIR].move, f"{DIED} (SIGSEGV)")
    worker.context.rows.stop(worker.leases.held[NAME, 2].move, "ValueError: no such fare")
    turn(worker)
    assert Triggers(follow_store).resume("seen") == 2
    turn(worker, times=2)
    rows = worker.context.rows.look((NAME, shard) for shard in range(4)).rows

    assert [rows[NAME, shard].state for shard in range(4)] == [RUNNING, QUARANTINED, RUNNING, RUNNING]
    assert [rows[NAME, shard].worker for shard in range(4)] == ["one", None, "one", "one"]


def test_a_death_blamed_on_one_shard_leaves_other_shards_alone(settings, works, follow_store):
    """The other shards of the dead worker are released, and the one at fault is quarantined."""
    keeper = trigger_supervisor(follow_store, "no.module:seen", "seen", 1)
    seen = Seen()
    for number in range(3):
        worker = works(f"worker {number}", seen, role=HEALTHY if number == 0 else ALL)
        turn(worker)
        child = Mock(box=BlackBox())
        child.name = worker.name
        with asleep(worker):
            assert keeper._settle(child, PAIR, "SIGSEGV")
            remove_worker(worker.membership._pool, follow_store.name, worker.name)
        rows = worker.context.rows.look((NAME, shard) for shard in range(4)).rows
        worker.leases.held.clear()
        assert {row.worker for row in rows.values()} == {None}
        assert (rows[PAIR].state, rows[PAIR].message) == (QUARANTINED, f"{DIED} (SIGSEGV)")
    heir = works("heir", seen)
    turn(heir)

    assert [heir.leases.held[NAME, shard].careful for shard in range(4)] == [0, 500, 0, 0]
    assert keeper._kills[PAIR].count == 3


def test_a_death_in_a_batch_of_shards_is_blamed_on_none_of_them(settings, put, works, follow_store):
    """The next owners handle the shards one at a time, so that a second death is blamed on the right one."""

    class Batching(Seen):
        def handle_batch(self, context: Any, pages: Sequence[tuple[Lease, Sequence[StoredCell]]]) -> bool:
            if len(pages) > 1:
                left._at.value = worker.leases.box._at.value
            return False

    left, single = BlackBox(), set()
    left.claim()
    worker = works("dies", Batching(), role=HEALTHY)
    turn(worker)
    put(12)
    turn(worker)
    assert (left.busy, left.at) == (True, None)
    keeper = trigger_supervisor(follow_store, "no.module:seen", "seen", 1)
    child = Mock(box=left)
    child.name = worker.name
    with asleep(worker):
        assert not keeper._settle(child, left.at, "SIGSEGV")
        remove_worker(worker.membership._pool, follow_store.name, worker.name)
    rows = worker.context.rows.look((NAME, shard) for shard in range(4)).rows
    assert {(row.state, row.worker) for row in rows.values()} == {(RUNNING, "dies")}
    put(12)
    left.leave()
    worker = works("heir", Batching(before=lambda cell: single.add(worker.leases.box.at)), role=HEALTHY)
    turn(worker, times=2)

    assert not left.busy
    assert single == {(NAME, shard) for shard in range(4)}


@pytest.mark.once
def test_the_backoff_of_a_shard_grows_while_it_stays_where_it_is():
    """It restarts after a parked cell, and continues from the attempts that another supervisor counted."""
    kills = supervisor._Kills()
    row = FollowerRow(7, "one", 1, QUARANTINED, 0, None, None, "", 9, 0, 0, 0, 0)

    assert [kills.next_pause_s(row) for _ in range(4)] == pytest.approx([0.1, 0.2, 0.4, 0.8])
    assert kills.next_pause_s(replace(row, location=8)) == pytest.approx(0.1)
    assert kills.next_pause_s(replace(row, location=8, replays=2)) == pytest.approx(0.1)
    assert kills.next_pause_s(replace(row, location=9, attempts=5)) == pytest.approx(1.6)
    assert kills.next_pause_s(replace(row, location=9, attempts=4_000)) == 30


@pytest.mark.once
def test_only_deaths_without_a_culprit_back_off():
    """A worker that does not even start, or is killed when idle, is replaced later and later, and delays no other."""
    idle, killed, apart = (supervisor._Seat(role) for role in (HEALTHY, HEALTHY, QUARANTINE))

    assert [idle.back_off(0, blamed=False) for _ in range(8)] == [0.5, 1, 2, 4, 8, 16, 30, 30]
    assert idle.back_off(61, blamed=False) == 0.5
    assert [killed.back_off(1, blamed=True) for _ in range(40)][:3] == pytest.approx([0.2, 0.4, 0.6])
    assert killed.back_off(1, blamed=True) == 5.0
    assert {apart.back_off(1, blamed=True) for _ in range(40)} == {0.2}


@pytest.mark.once
def test_a_half_written_record_of_a_dead_worker_names_no_shard():
    """Then its successors are careful in all of its shards."""
    box = BlackBox()
    found = []
    for text in (b"trigger:bill 17", b"trigger:bill", b"trigger:bill ", b"", b"\xff 1x"):
        box._at.value = text
        found.append(box.at)

    assert found == [("trigger:bill", 17), None, None, None, None]


def test_status_shows_quarantined_shards_and_long_calls(settings, works, follow_url, invoke):  # noqa: F811
    """The output names the workers of both kinds, the quarantined shard and its cause, and the long call."""
    settings.create(NAME, {"column": None}, lambda shard: 0)
    healthy, apart = works("healthy", Seen(), role=HEALTHY), works("apart", Seen(), role=QUARANTINE)
    turn(healthy)
    healthy.context.rows.quarantine(PAIR, healthy.leases.held[PAIR].row.epoch, f"{DIED} (SIGSEGV)", 60.0)
    cell = Mock(added_id=41, key=(uuid.UUID(int=7), "BASE", 1))
    apart.inflight.call = InflightCall(PAIR, cell, time.monotonic() - 30)
    turn(healthy, apart)
    shown = invoke("trigger", "status", "seen", url=follow_url)
    status = invoke("trigger", "status", "seen", "--json", url=follow_url).json

    assert "; 1 worker, and 1 worker for quarantined shards" in shown.out
    assert f"shard 1 quarantined: {DIED} (SIGSEGV)" in shown.err
    assert "of shard 1, added_id 41" in shown.err
    assert {frozenset(worker) for worker in status["workers"]} == {
        frozenset(("worker", "followers", "lease_s", "told"))
    }
    assert (shown.code, status["shards"][0]["state"], status["shards"][0]["shard"]) == (0, "quarantined", 1)
