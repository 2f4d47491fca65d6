"""An exporter that is killed, loses power or sleeps at each of its steps: no row is missing, none is there twice."""

from __future__ import annotations

import itertools
import random
import shutil
from contextlib import suppress

import pytest

from schemaless.errors import LeaseLost
from schemaless.ops.export.manifest import ShardWriter
from tests.ops.export.crashes import (
    Crashed,
    Feed,
    RenamesBeforeSync,
    SteppedObjects,
    SteppedTarget,
    Suspended,
    faults,
    list_early,
    run_compact,
    run_erase,
    run_export,
    visible_faults,
)

pytestmark = [pytest.mark.once]

STRIDES = pytest.mark.parametrize("stride", [5, pytest.param(1, marks=pytest.mark.long)])
"""Every fifth step, from the second one or one that differs from case to case; in the long version, each step."""
WORKS = {"export": run_export, "compact": run_compact, "erase": run_erase}
LATE = [*itertools.product([SteppedTarget, SteppedObjects], WORKS, WORKS)]
"""Target, work of the writer that is suspended, and work of the other one; half of them are long."""


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


def crashes(root, work, kind=SteppedTarget, *, control=False, stride=1):
    """Crash at each step, with and without power; return the number of crashes and what was wrong after any of them.

    A control ends with the first fault.
    """
    found, count, step = [], 0, stride // 4
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
        step += stride
    return count, found


@pytest.mark.guarantee("export-once")
@STRIDES
@pytest.mark.parametrize("work", WORKS)
def test_a_crash_at_any_step_leaves_every_row_once(tmp_path, work, stride):
    """Killed, or without power: what is listed and what is visible is right, and the next run completes it."""
    count, found = crashes(tmp_path / "lake", work, stride=stride)
    assert found == []
    assert count > 30 // stride


@pytest.mark.long
@pytest.mark.guarantee("export-once")
def test_a_rename_before_the_sync_is_found(tmp_path):
    """A control: power fails between the two, and a listed file is cut."""
    _, found = crashes(tmp_path / "lake", "export", RenamesBeforeSync, control=True)
    assert any("is not what the manifest says" in fault or "is damaged" in fault for fault in found)


@pytest.mark.long
@pytest.mark.guarantee("export-once")
def test_a_manifest_before_its_file_is_found(tmp_path, monkeypatch):
    """A control: the file is listed when it is announced, and the process dies before it is there."""
    monkeypatch.setattr(ShardWriter, "announce", list_early)
    _, found = crashes(tmp_path / "lake", "export", control=True)
    assert any("is not what the manifest says" in fault for fault in found)


@pytest.mark.guarantee("export-once")
@STRIDES
@pytest.mark.parametrize("work", WORKS)
def test_power_that_fails_under_the_next_writer_leaves_every_row_once(tmp_path, work, stride):
    """A writer is killed at each step; the next one loses power, and with it what the first had not made durable."""
    root, step, chance = tmp_path / "lake", stride // 4, random.Random(5)
    while True:
        feed = prepared(root, work)
        first = SteppedTarget(root, crash_at(step))
        try:
            WORKS[work](first, feed)
        except Crashed:
            pass
        else:
            break
        second = SteppedTarget(root, crash_at(chance.randrange(24)))
        second.unsynced, second.renames = first.unsynced, first.renames
        with suppress(Crashed):
            WORKS[work](second, feed)
            run_export(second, feed)
        second.lose_power(chance)
        assert faults(root, feed, complete=False) + visible_faults(root, feed) == [], f"steps {step}, {second.steps}"
        WORKS[work](SteppedTarget(root), feed)
        run_export(SteppedTarget(root), feed)
        assert faults(root, feed, complete=True) + visible_faults(root, feed) == [], f"steps {step}, {second.steps}"
        step += stride
    assert step > 20


@pytest.mark.guarantee("export-suspended")
@STRIDES
@pytest.mark.parametrize(
    ("kind", "work", "other"),
    [pytest.param(*case, marks=[pytest.mark.long] if number % 2 else []) for number, case in enumerate(LATE)],
)
def test_a_writer_that_wakes_up_late_changes_nothing(tmp_path, kind, work, other, stride):
    """A writer is suspended at each step in turn, and resumes after another one has finished the work.

    Readers go by the manifest. In a local folder, those that list it see the same at any time; in an object store, once
    the next compaction has deleted the objects of the late writer.
    """
    root, lost = tmp_path / "lake", 0
    step = random.Random(f"{kind.__name__} {work} {other}").randrange(stride)
    while True:
        feed = prepared(root, work)
        target = kind(root)
        sleeper = Suspended(target, step, lambda feed=feed, target=target: WORKS[work](target, feed))
        if target.steps <= step - 1:
            sleeper.resume()
            break
        feed.grow(11)
        WORKS[other](kind(root), feed)
        run_export(kind(root), feed)
        if feed.erased:
            # The suspended writer has not acknowledged the erasure.
            run_erase(kind(root), feed)
        sleeper.resume()
        if kind is SteppedObjects:
            run_compact(kind(root), feed)
        assert (faults(root, feed, complete=True), visible_faults(root, feed)) == ([], []), f"step {step}"
        assert sleeper.error is None or isinstance(sleeper.error, LeaseLost), f"step {step}: {sleeper.error!r}"
        lost += sleeper.error is not None
        step += stride
    assert lost > 4 // stride
