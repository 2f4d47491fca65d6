"""Workers killed with -9 and frozen past their lease, live: each cell is dealt with, in the order of its shard."""

from __future__ import annotations

import pytest

import schemaless
from tests.store.followers.live import Live

pytestmark = pytest.mark.mysql


@pytest.mark.long
@pytest.mark.guarantee("follower-at-least-once")
def test_workers_killed_and_frozen_miss_nothing(accounts, fresh_url, tmp_path):
    """Kill -9 and SIGSTOP at any moment, while cells come and a shard moves: none is missed, each comes in its turn."""
    url = accounts.root(fresh_url)
    with schemaless.connect(url) as store:
        live = Live(store, url, tmp_path)
        live.run(workers=3, cells=1_600, kills=3, freezes=2, seed=7, moves=1)

        assert (live.given.missing, live.given.out_of_turn) == (set(), 0)
        assert (live.deaths, live.freezes, live.moved) == (3, 2, 1)
