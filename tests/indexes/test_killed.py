"""Index workers killed with -9 and frozen past their lease, live, while a shard moves: no row is without its entry."""

from __future__ import annotations

import pytest

import schemaless
from tests.indexes.live import NOT_SET_BACK, LiveIndex

pytestmark = pytest.mark.mysql


@pytest.mark.parametrize("control", ["", NOT_SET_BACK], ids=["as it is", "followers are not set back"])
def test_index_workers_killed_and_frozen_lose_no_entry(accounts, fresh_url, tmp_path, control):
    """Kill -9 and SIGSTOP at any moment and at the worst one, while cells come; half of the rows are written once.

    A shard moves meanwhile, and what its move has to mend is missing where it does not. The harness finds each fault
    that the guards are there for, too: ``benchmarks/indexes.py --live`` shows that.
    """
    url = accounts.root(fresh_url)
    with schemaless.connect(url) as store:
        live = LiveIndex(store, url, tmp_path, control)
        live.run(workers=2, cells=800, kills=1, freezes=0 if control else 1, seed=3, moves=1)

        assert bool(live.missing_entries()[0]) == bool(control)
        assert len(list(live.last_said())) > 400
        assert (live.deaths, live.moved) == (1, 1)
