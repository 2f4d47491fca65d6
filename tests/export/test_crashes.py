"""An exporter that is killed, loses power or sleeps at each of its steps: no row is missing, none is there twice."""

from __future__ import annotations

import random
import shutil
from dataclasses import replace

import pytest

from schemaless.errors import LeaseLost
from schemaless.export.manifest import ShardWriter
from tests.export.crashes import (
    Crashed,
    Feed,
    RenamesBeforeSync,
    SteppedTarget,
    Suspended,
    faults,
    run_compact,
    run_export,
    visible_faults,
)

pytestmark = pytest.mark.once

WORKS = {"export": run_export, "compact": run_compact}


def prepared(root, work):
    """Make an export of some cells, which ``work`` has something to do for, and return the feed."""
    feed = Feed()
    feed.grow(15)
    made = root.parent / f"made for {work}"
    if not made.exists():
        run_export(SteppedTarget(made), feed)
    shutil.rmtree(root, ignore_errors=True)
    shutil.copytree(made, root)
    if work == "export":
        feed.grow(13)
    return feed


def crash_at(step):
    def at_step(now):
        if now == step:
            raise Crashed

    return at_step


def crashes(root, work, kind=SteppedTarget, *, control=False):
    """Crash at each step, with and without power; return the number of crashes and what was wrong after any of them.

    A control ends with the first fault.
    """
    found, count, step = [], 0, 0
    while not (control and found):
        for seed in range(2):
            feed = prepared(root, work)
            target = kind(root, crash_at(step))
            try:
                WORKS[work](target, feed)
            except Crashed:
                count += 1
            else:
                return count, found
            if seed:
                target.lose_power(random.Random(step * 100 + seed))
            found += faults(root, feed, complete=False) + visible_faults(root, feed)
            try:
                WORKS[work](kind(root), feed)
                run_export(kind(root), feed)
            except Exception as error:  # noqa: BLE001 - any is a fault
                found.append(f"after a crash at step {step}: {error!r}")
                continue
            found += faults(root, feed, complete=True) + visible_faults(root, feed)
        step += 1
    return count, found


@pytest.mark.parametrize("work", WORKS)
def test_a_crash_at_any_step_leaves_every_row_once(tmp_path, work):
    """Killed, or without power: what is listed and what is visible is right, and the next run completes it."""
    count, found = crashes(tmp_path / "lake", work)
    assert found == []
    assert count > 30


def test_a_rename_before_the_sync_is_found(tmp_path):
    """A control: power fails between the two, and a listed file is cut."""
    _, found = crashes(tmp_path / "lake", "export", RenamesBeforeSync, control=True)
    assert any("is not what the manifest says" in fault or "is damaged" in fault for fault in found)


def test_a_manifest_before_its_file_is_found(tmp_path, monkeypatch):
    """A control: the file is listed when it is announced, and the process dies before it is there."""
    announce = ShardWriter.announce

    def early(self, file, replaced=()):
        announce(self, file, replaced)
        entry = self.entry
        self.complete()
        self.entry = replace(entry)

    monkeypatch.setattr(ShardWriter, "announce", early)
    _, found = crashes(tmp_path / "lake", "export", control=True)
    assert any("is not what the manifest says" in fault for fault in found)


@pytest.mark.parametrize("work", WORKS)
@pytest.mark.parametrize("other", WORKS)
def test_a_writer_that_wakes_up_late_changes_nothing(tmp_path, work, other):
    """A writer is suspended at each step in turn, and resumes after another one has finished the work."""
    root, step, lost = tmp_path / "lake", 0, 0
    while True:
        feed = prepared(root, work)
        target = SteppedTarget(root)
        sleeper = Suspended(target, step, lambda feed=feed, target=target: WORKS[work](target, feed))
        if target.steps <= step - 1:
            sleeper.resume()
            break
        feed.grow(11)
        WORKS[other](SteppedTarget(root), feed)
        run_export(SteppedTarget(root), feed)
        before = (faults(root, feed, complete=True), visible_faults(root, feed))
        sleeper.resume()
        after = (faults(root, feed, complete=True), visible_faults(root, feed))
        assert (before, after) == (([], []), ([], [])), f"step {step}"
        assert sleeper.error is None or isinstance(sleeper.error, LeaseLost), f"step {step}: {sleeper.error!r}"
        lost += sleeper.error is not None
        step += 1
    assert lost > 10
