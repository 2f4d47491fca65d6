"""When a run that is to end no longer waits for a follower, with made-up rows and workers."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import pytest

from schemaless.errors import AccessDenied, ServerUnavailable
from schemaless.store.followers import caught_up as caught_up_module
from schemaless.store.followers.caught_up import CaughtUp
from schemaless.store.followers.leases import Lease, Wait
from schemaless.store.followers.rows import FollowerRow, FollowerRows, Looked
from schemaless.store.followers.settings import Setting, Settings
from schemaless.store.followers.states import DIED, PAUSED, QUARANTINED, RUNNING, STOPPED
from schemaless.store.followers.status import WorkerStatus
from schemaless.store.followers.worker import Worker
from tests.store.followers.workers import CALM, NAME

UNERASED = FollowerRow(
    location=9,
    worker=None,
    epoch=100,
    state=RUNNING,
    attempts=0,
    retry_s=None,
    message=None,
    moved_at="",
    top=9,
    last_event=3,
    erased_event=0,
    parked=0,
    replays=0,
)


class Scene:
    """A follower with one row per shard, and its workers."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.rows: dict[int, FollowerRow] = {0: UNERASED}
        self.reported: dict[str, Any] = {}
        self.state = RUNNING
        monkeypatch.setattr(FollowerRows, "look", lambda rows, pairs: self.look())
        monkeypatch.setattr(Settings, "all", lambda settings: {NAME: Setting(NAME, self.state, {})})
        monkeypatch.setattr(
            caught_up_module, "workers_of", lambda access, name: [WorkerStatus("w", (name,), 9.0, self.reported)]
        )

    def look(self) -> Looked:
        return Looked({(NAME, shard): row for shard, row in self.rows.items()}, {})

    def ended(self) -> CaughtUp:
        return CaughtUp(Mock(shard_count=len(self.rows)), NAME)

    def change(self, **changes: Any) -> None:
        self.rows[0] = replace(self.rows[0], **changes)

    def calls_until(self, ended: CaughtUp, change: Callable[[int], None]) -> int:
        """Return the number of changes after which it has ended."""
        for number in range(20):
            if ended():
                return number
            change(number)
        raise AssertionError("it does not end")


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Scene:
    """One shard, with erasures that are not handled."""
    return Scene(monkeypatch)


def test_a_run_ends_though_the_erasures_of_many_shards_of_a_worker_fail(scene):
    """A worker publishes the error of 20 of them, and the number of failures of all."""
    worker = Worker(Mock(shard_count=30), [], "w", timing=CALM, stop=threading.Event(), listen=False)
    for shard in range(30):
        lease = Lease((NAME, shard), UNERASED, 9, 9, erasure_wait=Wait(8, reason=f"no {shard}"))
        worker.leases.held[lease.pair] = lease
    scene.rows = dict.fromkeys(range(30), UNERASED)
    scene.reported = dict(worker._report())
    ended = scene.ended()

    assert ended()
    assert ended.gave_up == {n: f"no {n}" if n < 20 else "the log of its worker has the error" for n in range(30)}
    assert len(scene.reported["waits"]) == 20


@pytest.mark.parametrize("message", [f"{DIED} (SIGKILL), 3 times in a row", "8 cells are parked"])
def test_a_run_ends_though_the_erasures_of_a_stopped_shard_kill_each_worker(scene, message):
    """The shard is quarantined for three deaths, then stopped; or it was stopped before, for another reason."""
    died = message.startswith(DIED)
    scene.change(state=RUNNING if died else STOPPED, message=None if died else message)

    def die(number: int) -> None:
        scene.change(epoch=scene.rows[0].epoch + 1)
        state = QUARANTINED if died and number < 2 else STOPPED
        scene.change(epoch=scene.rows[0].epoch + 1, state=state, message=message)

    ended = scene.ended()

    assert scene.calls_until(ended, die) == 8
    assert ended.gave_up == {0: message if died else DIED}


def test_deaths_at_different_places_are_not_added_up(scene):
    """A shard that handles some events with each worker is waited for."""

    def die(number: int) -> None:
        scene.change(epoch=scene.rows[0].epoch + 2, state=QUARANTINED, erased_event=number, last_event=15)

    scene.change(last_event=15)

    assert scene.calls_until(scene.ended(), die) == 16


def test_a_run_ends_if_its_follower_is_paused_before_it_has_caught_up(scene):
    """Not if it has caught up, and not while the catalog cannot be read, which may say that it was paused."""
    scene.state = PAUSED
    ended = scene.ended()
    assert (ended(), ended.paused, ended.gave_up) == (True, True, {})
    scene.change(erased_event=3)
    assert (ended(), ended.paused) == (True, False)
    scene.change(erased_event=0)
    scene.state = RUNNING
    assert (ended(), ended.paused) == (False, False)


def test_a_run_waits_for_the_server_of_the_catalog(scene, monkeypatch):
    """Other errors end it."""
    errors: list[Exception] = [ServerUnavailable("gone", node="db-1"), AccessDenied("no", node="db-1")]
    ended = scene.ended()
    monkeypatch.setattr(Settings, "all", Mock(side_effect=errors))

    assert not ended()
    with pytest.raises(AccessDenied):
        ended()
