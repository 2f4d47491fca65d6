"""Workers killed with -9 and frozen past their lease, live: each cell is dealt with, in the order of its shard."""

from __future__ import annotations

import pytest

from tests.feed.live import Live

pytestmark = pytest.mark.mysql


def test_workers_killed_and_frozen_miss_nothing(fresh_store, follow_url, tmp_path):
    """Kill -9 and SIGSTOP at any moment, while cells come: none is missed, and each comes first in its turn."""
    live = Live(fresh_store, follow_url, tmp_path)
    live.run(workers=3, cells=1_600, kills=3, freezes=2, seed=7)

    assert (live.missing, live.out_of_turn) == (set(), 0)
    assert live.deaths + live.freezes >= 4
