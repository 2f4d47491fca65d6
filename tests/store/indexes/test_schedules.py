"""Simulation of the page protocol: no row is missing, and leaving out any part of it is detected."""

from __future__ import annotations

import pytest

from tests.store.indexes.schedules import CONTROLS, DECIDED, STALE_CONTROLS, run

pytestmark = pytest.mark.once


@pytest.mark.guarantee("index-late")
def test_no_schedule_of_deaths_and_sleepers_misses_a_row():
    """Late commits, late lower versions, deaths between any two statements, workers that wake after the end."""
    outcome = run(DECIDED, range(150))

    assert outcome.rows_missing == 0
    assert min(outcome.deaths, outcome.sleeps, outcome.entries_stale) > 10


@pytest.mark.guarantee("index-late")
def test_deaths_alone_leave_nothing_behind():
    """Repeating the page completes it, because at most one worker writes at a time."""
    outcome = run(DECIDED, range(400), sleepers=False)

    assert (outcome.rows_missing, outcome.entries_stale) == (0, 0)
    assert outcome.deaths > 500


@pytest.mark.long
@pytest.mark.guarantee("index-late")
@pytest.mark.parametrize("variant", CONTROLS)
def test_each_omitted_safeguard_is_detected(variant):
    """The schedules are hard enough: without this part of the protocol, rows are missing."""
    assert run(variant, range(150)).rows_missing >= 3


@pytest.mark.guarantee("index-late")
@pytest.mark.parametrize("variant", STALE_CONTROLS)
def test_an_old_shard_that_is_forgotten_is_found(variant):
    """Entries are left in old shards, even if no worker sleeps."""
    assert run(variant, range(80), sleepers=False).entries_stale >= 3
