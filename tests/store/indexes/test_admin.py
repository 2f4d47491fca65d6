"""When ``index run --once`` ends, with made-up rows and workers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import pytest

from schemaless.base.events import ignore_events
from schemaless.store.followers import caught_up
from schemaless.store.followers.rows import FollowerRow, FollowerRows, Looked
from schemaless.store.followers.states import DIED, QUARANTINED
from schemaless.store.followers.status import WorkerStatus
from schemaless.store.indexes import admin
from schemaless.store.indexes.admin import Indexes, Watch
from schemaless.store.indexes.definition import define
from schemaless.store.indexes.registry import READY, IndexEntry
from tests.store.followers.test_caught_up import UNERASED

ENTRY = IndexEntry(1, define("trips", "BASE.client:int", []), READY, "", "", None)
DONE = replace(UNERASED, erased_event=3)


class Scene:
    """An index with two shards, the first of which is done."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, row: FollowerRow) -> None:
        self.row = row
        self.failures = 0
        monkeypatch.setattr(admin, "WATCH_S", 0.0)
        monkeypatch.setattr(FollowerRows, "look", lambda rows, pairs: self.look())
        monkeypatch.setattr(caught_up, "workers_of", lambda access, name: self.workers(name))
        self.indexes = Indexes(Mock(shard_count=2), Mock(read=lambda: (ENTRY,)))
        self.watch = Watch(self.indexes, [], ignore_events, once=True)

    def look(self) -> Looked:
        return Looked({(ENTRY.follower, 0): DONE, (ENTRY.follower, 1): self.row}, {})

    def workers(self, name: str) -> list[WorkerStatus]:
        return [WorkerStatus("w", (name,), 9.0, {"erasures": [[name, 1, self.failures, "no space"]]})]

    def change(self, **changes: Any) -> None:
        self.row = replace(self.row, **changes)


@pytest.mark.parametrize(
    ("row", "progress"),
    [(replace(DONE, location=4), {"location": 5}), (UNERASED, {"erased_event": 1})],
    ids=["cells", "erasures"],
)
def test_a_run_once_ends_if_a_shard_kills_each_worker(monkeypatch, row, progress):
    """A page or its erasures, after eight deaths at the same place; the count starts again after progress."""
    scene = Scene(monkeypatch, row)
    before = []
    for number in range(11):
        before.append(scene.watch())
        scene.change(
            epoch=scene.row.epoch + 2,
            state=QUARANTINED,
            message=f"{DIED} (SIGKILL)",
            **(progress if number == 2 else {}),
        )

    assert (before, scene.watch()) == ([False] * 11, True)
    assert scene.watch.gave_up == {"trips (1)": {1: f"{DIED} (SIGKILL)"}}


def test_a_run_once_ends_if_erasures_fail_eight_times(monkeypatch):
    """Once all cells are handled."""
    scene = Scene(monkeypatch, replace(UNERASED, location=4))
    ended = []
    for failures, location in ((7, 4), (8, 4), (7, 9), (8, 9)):
        scene.failures = failures
        scene.change(location=location)
        ended.append((scene.watch(), scene.watch.gave_up))
    scene.change(erased_event=3)

    assert ended == [(False, {})] * 3 + [(True, {"trips (1)": {1: "no space"}})]
    assert (scene.watch(), scene.watch.gave_up) == (True, {})
