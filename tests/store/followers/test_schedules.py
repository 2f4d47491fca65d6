"""The follower's protocol, by simulation: nothing is missing, and each part of it that is left out is found."""

from __future__ import annotations

import pytest

from tests.store.followers.schedules import CONTROLS, DECIDED, run

pytestmark = pytest.mark.once


@pytest.mark.guarantee("follower-at-least-once")
def test_no_schedule_of_deaths_sleepers_and_resets_misses_a_cell():
    """Late commits, kills between any two statements, freezes past the lease, cells that fail or kill, setting back."""
    outcome = run(DECIDED, range(150))

    assert outcome.missing == []
    assert min(outcome.deaths, outcome.sleeps, outcome.resets, outcome.parked, outcome.repeated) > 200


@pytest.mark.long
@pytest.mark.guarantee("follower-at-least-once")
@pytest.mark.parametrize("variant", CONTROLS)
def test_each_omitted_safeguard_is_detected(variant):
    """The schedules are hard enough: without this part of the design, cells are missing."""
    assert len(run(variant, range(80)).missing) >= 3
