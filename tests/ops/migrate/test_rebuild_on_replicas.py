"""rebuild on a cluster with a replica: waits while the replica lags, and skips shards that would take too long."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import closing

import pytest

import schemaless
from schemaless.local.description import LocalServer
from schemaless.ops.failover import nodes
from schemaless.ops.jobs.job_store import JobStore
from schemaless.ops.jobs.throttle import Thresholds
from schemaless.ops.migrate import rebuild
from schemaless.ops.migrate.rebuild import RebuildSpec
from schemaless.store.internals import internals_of
from tests.accounts import Accounts, accounts_on, connect, run

pytestmark = [pytest.mark.mysql, pytest.mark.twice]

NAME = "rebuilt"


@pytest.fixture(scope="module")
def accounts(replicated: LocalServer) -> Iterator[Accounts]:
    """A datastore of two shards on a cluster with a replica, and its accounts."""
    with accounts_on([replicated.url], prefix="rebuild_") as made:
        url = made.create(NAME, 2)
        replica = made.url("admin", replicated.replicas[0].url)
        nodes.add_replica(made.url("admin", url), "cluster-1", replica, timeout_s=30)
        made.allow("move", NAME, 2)
        yield made


@pytest.mark.long
@pytest.mark.innodb("a compaction waits for no lock of the table")
def test_rebuild_waits_for_a_replica_that_lags(accounts, replicated, eventually):
    """While replication is stopped, no ALTER is started and the reason is shown; then the rebuild continues."""
    replica = replicated.replicas[0]
    what = "SLAVE" if replica.flavour == "mariadb" else "REPLICA"
    done = []
    with (
        schemaless.connect(accounts.url("move", replicated.url, NAME)) as store,
        closing(connect(replica.url, None)) as on_replica,
        closing(connect(replicated.url, None)) as reader,
    ):
        job_store = JobStore(store)
        # Hold back the rebuild of the first shard until the replica lags.
        reader.begin()
        run(reader, f"SELECT COUNT(*) FROM {internals_of(store).shards.database(0)}.cell")
        spec = RebuildSpec(lock_wait_s=1, thresholds=Thresholds(max_lag_s=0.5))
        thread = threading.Thread(target=lambda: done.extend(rebuild.run(store, spec)))
        thread.start()
        try:
            eventually(lambda: job_store.jobs("rebuild"), "there is a job")
            job_id = job_store.jobs("rebuild")[0].job_id
            eventually(lambda: job_store.clusters(job_id)[0].figures.get("proven"), "the replica is proven")
            run(on_replica, f"STOP {what} SQL_THREAD")
            eventually(lambda: job_store.clusters(job_id)[0].reason, "it waits")
            time.sleep(2 * spec.lock_wait_s)  # for an ALTER that was waiting for the lock when the reading was taken
            reader.rollback()
            reason = job_store.clusters(job_id)[0].reason
            states = [state.state for state in job_store.shards(job_id)]
        finally:
            run(on_replica, f"START {what} SQL_THREAD")
        thread.join(120)

    assert "replica" in reason
    assert "lags by" in reason
    assert states == ["waiting", "waiting"]
    assert [each.state for each in done] == ["done", "done"]


@pytest.mark.innodb("replicas repeat no compaction")
def test_plan_says_how_long_replicas_would_lag_and_refuses_above_the_limit(accounts, replicated):
    """The limit holds for a cluster with replicas; the message says how to raise it."""
    with schemaless.connect(accounts.url("move", replicated.url, NAME)) as store:
        usual = rebuild.plan_rebuild(store, RebuildSpec())
        strict = rebuild.plan_rebuild(store, RebuildSpec(max_rebuild_lag_s=1e-6))

    assert [(each.replicas, each.refusal) for each in usual] == [(1, None), (1, None)]
    assert all("raise the limit with --max-rebuild-lag" in each.refusal for each in strict)
