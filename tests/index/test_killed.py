"""Index workers killed with -9 and frozen past their lease, live: no row is without its entry."""

from __future__ import annotations

import pytest

from tests.index.live import TRIPS, LiveIndex

pytestmark = pytest.mark.mysql


def test_index_workers_killed_and_frozen_lose_no_entry(kept, fresh_store, follow_url, tmp_path):
    """Kill -9 and SIGSTOP at any moment and at the worst one, while cells come; half of the rows are written once.

    The harness finds each fault that the guards are there for: ``benchmarks/indexes.py --live`` shows that.
    """
    live = LiveIndex(fresh_store, follow_url, tmp_path, follow=kept.follow, entry=kept.make(TRIPS))
    live.run(workers=2, cells=800, kills=1, freezes=1, seed=3)

    assert live.missing_entries() == 0
    assert len(live.expected) > 400
    assert live.deaths >= 1
