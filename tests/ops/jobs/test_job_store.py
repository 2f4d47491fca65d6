"""Jobs in the catalog: leases on the server's clock, and writes by a runner that lost its lease."""

from __future__ import annotations

import pytest

from schemaless import InvalidInput, JobConflict, LeaseLost
from schemaless.base.runner_names import is_dead_here, process_of, runner_name
from schemaless.ops.jobs.job import Failure
from schemaless.ops.jobs.job_store import JobStore
from schemaless.ops.jobs.leases import INTERRUPTED, Leases
from schemaless.ops.jobs.runner import ShardRun, Stopped
from schemaless.ops.jobs.throttle import Look
from schemaless.wire.errors import ReadOnly

pytestmark = pytest.mark.mysql

CLUSTERS = ["cluster-1", "cluster-2"]


@pytest.fixture
def job_store(migrate_store):
    """The job store of a new datastore for ``migrate``."""
    return JobStore(migrate_store)


@pytest.fixture
def job(job_store):
    """A job on all four shards."""
    return job_store.create("migrate", {"to": "json+zlib"}, dict.fromkeys(range(4), 100), CLUSTERS, {"python": "3"})


@pytest.fixture(params=["-INTERVAL 1 SECOND", "+INTERVAL 2 HOUR"], ids=["expired", "clock set back"])
def end_lease(by_hand, fresh_store, migrate_store, request):
    """Expire the lease of a shard, or leave it as it is when the server's clock was set back by two hours."""

    def end(shard: int) -> None:
        name = migrate_store.name.encode()
        for table in (b"job_shard", b"job_cluster"):
            sql = b"UPDATE `%b`.%b SET lease_until=UTC_TIMESTAMP(6) %b WHERE lease_until IS NOT NULL" % (
                name,
                table,
                request.param.encode(),
            )
            by_hand(fresh_store).execute(0, sql if table == b"job_cluster" else sql + b" AND shard=%d" % shard)

    return end


def test_job_comes_back_as_it_was_written(job_store, job):
    """A job has its spec, versions, shards with weights, clusters and creator."""
    found = job_store.job(job.job_id)

    assert (found.job_id, found.kind, found.state, found.spec) == (1, "migrate", "running", {"to": "json+zlib"})
    assert found.versions["python"] == "3"
    assert found.unfinished
    assert [(state.shard, state.data_bytes, state.state, state.held) for state in job_store.shards(1)] == [
        (shard, 100, "waiting", False) for shard in range(4)
    ]
    assert [state.cluster for state in job_store.clusters(1)] == CLUSTERS
    assert [what for _, _, what in job_store.events(1)] == ["created, 4 shards"]
    with pytest.raises(InvalidInput, match="has no job 2"):
        job_store.job(2)


@pytest.mark.guarantee("migrate-one-runner")
def test_second_job_about_the_same_shards_is_refused(job_store, job):
    """Two jobs cannot include the same shard until the first has completed the shard or ended."""
    with pytest.raises(JobConflict, match="migrate job 1 is running and has not finished shard 3") as caught:
        job_store.create("rebuild", {}, {3: 1}, ["cluster-2"], {})
    job_store.change_state(1, ("running",), "cancelled", "by a test")
    second = job_store.create("rebuild", {}, {3: 1}, ["cluster-2"], {})

    assert caught.value.job_id == 1
    assert second.job_id == 2
    assert job_store.latest("migrate").state == "cancelled"


@pytest.mark.guarantee("migrate-one-runner")
def test_shard_belongs_to_one_runner(job_store, job):
    """A second claim fails; after a release it succeeds, and the shard does not count as interrupted."""
    mine = job_store.leases.claim(1, 0, "a")
    theirs = job_store.leases.claim(1, 0, "b")
    mine.checkpoint, mine.counters, mine.cells = 7, {"columns": {}}, 3
    job_store.leases.release(1, mine)
    next_one = job_store.leases.claim(1, 0, "b")

    assert (mine.epoch, mine.held, mine.message) == (1, True, None)
    assert theirs is None
    assert (next_one.epoch, next_one.checkpoint, next_one.cells, next_one.counters) == (2, 7, 3, {"columns": {}})
    assert next_one.message is None


@pytest.mark.guarantee("migrate-one-runner")
def test_a_dead_runners_shard_is_taken_over_and_its_writes_are_refused(job_store, job, end_lease):
    """After the lease expires; the old runner's writes are refused if it was only suspended."""
    first = job_store.leases.claim(1, 0, "a")
    end_lease(0)
    second = job_store.leases.claim(1, 0, "b")

    assert (second.epoch, second.message) == (2, INTERRUPTED)
    for late in (
        lambda: job_store.leases.checkpoint(1, first),
        lambda: job_store.leases.renew(1, first, "cluster-1"),
        lambda: job_store.leases.release(1, first, after="done"),
    ):
        with pytest.raises(LeaseLost, match="another runner took over shard 0 of job 1"):
            late()
    assert job_store.leases.renew(1, second, "cluster-1").state == "running"


def test_a_runner_releases_its_shard_when_the_catalog_is_writable_again(job_store, job, monkeypatch):
    """Otherwise, a driver that stops would wait for the lease."""
    release, refused = Leases.release, []

    def read_only(leases, job_id, state, **changes):
        if not refused:
            refused.append(changes)
            raise ReadOnly("read-only", node="db:3306")
        release(leases, job_id, state, **changes)

    monkeypatch.setattr(Leases, "release", read_only)
    with pytest.raises(Stopped), ShardRun(job_store, job, job_store.leases.claim(1, 0, "a"), "cluster-1"):
        raise Stopped

    assert refused == [{"message": None}]
    assert not job_store.shards(1)[0].held


def test_one_runner_watches_a_cluster_for_all(job_store, job, end_lease):
    """The first runner holds the watch; when its lease expires another takes over, and the last result stays."""
    first, second = job_store.leases.claim(1, 0, "a"), job_store.leases.claim(1, 1, "b")
    watching = job_store.leases.renew(1, first, "cluster-1")
    other = job_store.leases.renew(1, second, "cluster-1")
    job_store.leases.record_poll(
        1, "cluster-1", "a", Look("replica lags", "lag", {"lag_s": 9, "yields": True}), {"lag": 1.5}
    )
    job_store.leases.record_poll(1, "cluster-1", "b", Look(None, None, {}), {})
    heard = job_store.leases.renew(1, second, "cluster-1")
    end_lease(0)
    after = job_store.leases.renew(1, second, "cluster-1")

    assert (watching.watches, other.watches) == (True, False)
    assert (watching.polled_ago_s, heard.reason, heard.watches) == (None, "replica lags", False)
    assert (watching.yields, heard.yields) == (False, True)
    assert heard.polled_ago_s < 60
    assert after.watches
    assert (job_store.clusters(1)[0].waits, job_store.clusters(1)[0].figures) == (
        {"lag": 1.5},
        {"lag_s": 9, "yields": True},
    )


def test_states_change_only_along_allowed_transitions(job_store, job):
    """A job is paused, resumed and cancelled; each change is an event with its actor."""
    paused = job_store.change_state(1, ("running",), "paused", "by a test")
    again = job_store.change_state(1, ("running",), "paused", "by a test")
    resumed = job_store.change_state(1, ("paused",), "running")
    cancelled = job_store.change_state(1, ("running", "paused"), "cancelled")
    late = job_store.change_state(1, ("paused",), "running")

    assert (paused, again, resumed, cancelled, late) == (True, False, True, True, False)
    assert [what for _, _, what in job_store.events(1)][1:] == ["paused: by a test", "running", "cancelled"]
    assert job_store.leases.claim(1, 0, "a") is None


def test_job_is_done_when_no_shard_waits(job_store, job):
    """A job is done only when its last shard is."""
    early = []
    for shard in range(4):
        early.append(job_store.complete(1))
        job_store.leases.release(1, job_store.leases.claim(1, shard, "a"), after="done")
    job_store.change_state(1, ("running",), "paused")

    assert early == [False] * 4
    assert job_store.complete(1)
    assert job_store.job(1).state == "done"
    assert job_store.job(1).ended_at >= job_store.job(1).created_at


def test_budget_is_one_for_all_runners(job_store, job, by_hand, fresh_store):
    """Ten megabytes at a hundredth of one per second: runners that share the limit wait one after the other.

    What they had spent is forgotten if the server's clock was set back by two hours.
    """
    ahead = b"UPDATE `%b`.job SET budget_us=(UNIX_TIMESTAMP()+7200)*1000000" % fresh_store.name.encode()
    by_hand(fresh_store).execute(0, ahead)
    waits = [job_store.spend(1, 2_000_000, 1e4) for _ in range(5)]

    assert waits[0] == 0
    assert waits == sorted(waits)
    assert 600 < waits[4] <= 800


def test_failures_are_kept_once_with_their_newest_reason(job_store, job):
    """Messages may contain any characters."""
    row = bytes(range(16))
    job_store.record_failures(1, [Failure(2, 5, row, "A", 1, "UnreadableLegacy", "it's \\ 'quoted' \N{SNOWMAN}")])
    job_store.record_failures(
        1, [Failure(2, 5, row, "A", 1, "Contended", "later"), Failure(0, 9, row, "B", 2, "X", "y")]
    )

    found = job_store.failures(1)
    assert [(failure.shard, failure.added_id, failure.reason, failure.message) for failure in found] == [
        (0, 9, "X", "y"),
        (2, 5, "Contended", "later"),
    ]
    assert found[1].row_key == row
    assert [failure.shard for failure in job_store.failures(1, shards=[2])] == [2]


def test_measures_are_added_up(job_store, job):
    """Measures are merged by name, for any number of shards."""
    job_store.record_on_shards(1, {shard: {"before": shard, "file": {"bytes": 5}} for shard in range(3)}, at_once=2)
    job_store.record_on_shards(1, {2: {"before": 7}, 0: {"before": 9}, 4_000: {"before": 1}}, at_once=2)
    job_store.record_on_shards(1, {})
    job_store.record_on_cluster(1, "cluster-1", {"log": "x"})

    found = {state.shard: state.measures for state in job_store.shards(1)}
    assert {shard: found[shard] for shard in range(3)} == {
        0: {"before": 9, "file": {"bytes": 5}},
        1: {"before": 1, "file": {"bytes": 5}},
        2: {"before": 7, "file": {"bytes": 5}},
    }
    assert not any(found[shard] for shard in found if shard > 2)
    assert job_store.clusters(1)[0].measures == {"log": "x"}


def test_dead_runner_of_this_machine_is_detected():
    """A dead process of this machine is detected without waiting for its lease; those of other machines are not."""
    here = runner_name()
    gone = here.replace(f" pid {here.split(' pid ')[1].split()[0]} ", " pid 4194999 ")

    assert not is_dead_here(here)
    assert is_dead_here(gone)
    assert not is_dead_here(f"{gone}/{here.split(' pid ')[1].split()[0]}.1")
    assert is_dead_here(f"{here}/4194999.1")
    assert not is_dead_here(gone.replace("@", "@elsewhere-"))
    assert not is_dead_here("somebody else's name")


def test_a_status_shows_who_runs_and_in_which_process():
    """It leaves out the random token; where a runner has worker processes, the number is that of the worker."""
    assert process_of("ann smith@db-1 pid 17 of 4026531836 a8452ecd") == "ann smith@db-1 pid 17"
    assert process_of("ann smith@db-1 pid 17 of 4026531836 a8452ecd/18.19") == "ann smith@db-1 pid 18"
    assert process_of("another form") == "another form"
