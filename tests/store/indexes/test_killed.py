"""Index workers that are killed and frozen past their lease while a shard moves: no row loses its entry."""

from __future__ import annotations

import pytest

import schemaless
from tests.store.indexes.live import NOT_SET_BACK, LiveIndex

pytestmark = pytest.mark.mysql


@pytest.mark.long
@pytest.mark.guarantee("index-late")
@pytest.mark.parametrize(
    "control", ["", pytest.param(NOT_SET_BACK, marks=pytest.mark.long)], ids=["as it is", "followers are not set back"]
)
def test_index_workers_killed_and_frozen_lose_no_entry(accounts, fresh_url, tmp_path, control):
    """SIGKILL and SIGSTOP at random moments and at the worst one, while cells are written; half of the rows once only.

    A shard moves at the same time; without the rewind of followers by the move, entries are missing. That the harness
    finds a fault for each of the other guards is shown by ``benchmarks/indexes.py --live``.
    """
    url = accounts.root(fresh_url)
    with schemaless.connect(url) as store:
        live = LiveIndex(store, url, tmp_path, control)
        live.run(workers=2, cells=800, kills=1, freezes=0 if control else 1, seed=3, moves=1)

        assert bool(live.missing_entries()[0]) == bool(control)
        assert len(list(live.last_said())) > 400
        assert (live.deaths, live.moved) == (1, 1)
