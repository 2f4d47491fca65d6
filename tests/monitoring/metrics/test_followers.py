"""Metrics of triggers and indexes: lag, parked cells and stopped shards."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from itertools import islice

import pytest

import schemaless
from schemaless.monitoring.metrics import values
from schemaless.monitoring.status.collector import Collector
from schemaless.ops.admin.indexes import indexes_of
from schemaless.store.followers.membership import Timing
from schemaless.store.followers.worker import Worker
from schemaless.store.indexes.definition import define
from schemaless.store.internals import internals_of
from schemaless.store.triggers.admin import Triggers
from schemaless.store.triggers.calling import Calls
from schemaless.store.triggers.supervision import prepare
from tests.accounts import Accounts

Found = dict[tuple[str, ...], float]


def scraped(url: str, kind: str = "trigger") -> Found:
    """Return the metrics of triggers or indexes with an account for measuring: values by metric and labels."""
    with schemaless.connect(url) as store:
        found = Collector(store).collect()
    return {
        (name, *map(str, labels)): value
        for name, value, labels in values(found)
        if name.startswith(kind) and value is not None
    }


@pytest.mark.mysql
def test_metrics_follow_a_trigger_that_lags_parks_and_stops(
    fresh_store: schemaless.Datastore,
    follow_store: schemaless.Datastore,
    accounts: Accounts,
    fresh_url: str,
    new_row: Callable[[], uuid.UUID],
) -> None:
    """There are none before the first run; then the trigger lags, and at the end one shard has stopped."""

    @schemaless.trigger(column="BASE", start="beginning", attempts=1, parked_limit=1)
    def bill(cell: schemaless.Cell, call: schemaless.Call) -> None:
        raise ValueError("no such fare")

    accounts.allow("measure", fresh_store.name, 4)
    url = accounts.url("measure", fresh_url)
    assert scraped(url) == {}

    rows = list(islice((row for row in iter(new_row, None) if fresh_store.shard_of(row) == 2), 3))
    fresh_store.put_cells([schemaless.NewCell(row, "BASE", 1, {}) for row in rows])
    prepare(follow_store, bill)
    lagging = scraped(url)
    assert lagging["trigger_ids_behind", "bill"] == 3
    assert lagging["trigger_behind_seconds", "bill"] > 0
    assert lagging["trigger_shards", "bill", "running"] == 4
    assert (lagging["trigger_workers", "bill"], lagging["trigger_paused", "bill"]) == (0, 0)

    timing = Timing(lease_s=1_000, give_up_s=900, renew_s=1_000, busy_s=0.05, note_s=0.0)
    worker = Worker(
        internals_of(follow_store).follower_access,
        [Calls(bill, follow_store)],
        "one",
        timing=timing,
        stop=threading.Event(),
    )
    with worker.membership:
        for _ in range(3):
            worker.membership.renew()
            worker.turn()
        stopped = scraped(url)
    assert stopped["trigger_parked_cells", "bill"] == 1
    assert stopped["trigger_ids_behind", "bill"] == 2
    shards = {key[2]: value for key, value in stopped.items() if key[0] == "trigger_shards"}
    assert shards == {"running": 3, "waiting": 0, "quarantined": 0, "stopped": 1, "missing": 0}
    assert stopped["trigger_workers", "bill"] == 1

    Triggers(follow_store).pause("bill")
    paused = scraped(url)
    assert (paused["trigger_paused", "bill"], paused["trigger_workers", "bill"]) == (1, 0)


@pytest.mark.mysql
def test_an_index_has_a_state_and_is_behind(
    fresh_store: schemaless.Datastore,
    accounts: Accounts,
    fresh_url: str,
    admin_url: str,
    new_row: Callable[[], uuid.UUID],
) -> None:
    """An index without workers has a state, a lag, and no workers."""
    accounts.allow("measure", fresh_store.name, 4)
    fresh_store.put_cells([schemaless.NewCell(new_row(), "BASE", 1, {}) for _ in range(3)])
    with schemaless.connect(admin_url) as admin:
        indexes_of(admin).create(define("trips", "BASE.client:uuid", []))
    found = scraped(accounts.url("measure", fresh_url), "index")

    assert found["index_state", "trips", "1", "backfilling"] == 1
    assert found["index_state", "trips", "1", "ready"] == 0
    assert found["index_ids_behind", "trips", "1"] == 3
    assert found["index_behind_seconds", "trips", "1"] > 0
    assert [found["index_shards", "trips", "1", state] for state in ("running", "missing")] == [4, 0]
    assert found["index_workers", "trips", "1"] == 0
