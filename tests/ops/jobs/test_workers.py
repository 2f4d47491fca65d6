"""Several workers on one job: processes and Dask give the result of one thread, and dead workers are replaced."""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import multiprocessing.synchronize  # before there are no file descriptors
import os
import resource
import signal
import socket
import sys
import threading
import time
from concurrent.futures import BrokenExecutor, ThreadPoolExecutor
from dataclasses import replace

import pymysql
import pytest

import schemaless
from schemaless import AccessDenied, InvalidInput, JobConflict, NewStoredCell, ServerUnavailable, WorkersDied
from schemaless.base.events import only
from schemaless.codec.envelope import DEFAULT_LIMITS
from schemaless.codec.recode import recode
from schemaless.ops.jobs import driver
from schemaless.ops.jobs.driver import Driver
from schemaless.ops.jobs.job_store import JobStore
from schemaless.ops.jobs.leases import Leases
from schemaless.ops.jobs.throttle import ClusterWatch, Thresholds
from schemaless.ops.jobs.workers import Workers, run_shards, workers
from schemaless.ops.migrate import rebuild, reencode, restore
from schemaless.ops.migrate import run as migrate
from schemaless.ops.migrate.binlog_cost import binary_log_point
from schemaless.ops.migrate.rebuild import REBUILD
from schemaless.ops.migrate.reencode import BlockBounds
from schemaless.ops.migrate.restore import RestoreSpec
from schemaless.ops.migrate.run import MIGRATE
from schemaless.ops.migrate.spec import MigrateSpec
from schemaless.ops.migrate.verify import Fault, check
from schemaless.ops.tier.sweep import SWEEP
from schemaless.store.internals import internals_of
from schemaless.store.opening import Opening, opening_of
from schemaless.wire.errors import translated
from schemaless.wire.pool import NodePool, PoolOptions
from schemaless.wire.urls import parse_url

pytestmark = [pytest.mark.mysql]

CELLS = 240


@pytest.fixture
def legacy(fresh_store, new_row):
    """Store legacy cells in four shards; return the expected new bodies by key."""
    cells = [
        NewStoredCell(new_row(), "A", number, json.dumps({"n": number, "text": "word " * (number % 50)}).encode())
        for number in range(CELLS)
    ]
    fresh_store.put_stored_cells(cells)
    return {(cell.row_key, cell.ref_key): recode(cell.body).body for cell in cells}


def bodies(store) -> dict[tuple, bytes]:
    """Return every stored body by row and version."""
    return {
        (cell.row_key, cell.ref_key): cell.body
        for shard in range(store.shard_count)
        for cell in store.scan_shard(shard)
    }


@pytest.mark.long
@pytest.mark.guarantee("migrate-runners-agree")
def test_processes_give_what_one_thread_gives(fresh_store, legacy, migrate_store):
    """Bytes and counts are the same as with one thread."""
    report = migrate.run(migrate_store, count=2)

    assert bodies(fresh_store) == legacy
    assert (report.total().cells, report.interruptions, report.failures) == (CELLS, 0, [])
    job_store = JobStore(migrate_store)
    assert job_store.job(report.job_id).state == "done"
    assert all(state.state == "done" and not state.held for state in job_store.shards(report.job_id))


@pytest.mark.guarantee("migrate-runners-agree")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.long
def test_dask_gives_what_one_thread_gives(fresh_store, legacy, migrate_store):
    """Migrate and check on a local Dask cluster of two workers, beside another cluster."""
    pytest.importorskip(
        "distributed", reason="the extra [dask] is not installed: no distributed; 'make install' installs it"
    )
    with socket.socket() as others:
        with contextlib.suppress(OSError):  # there is another
            others.bind(("127.0.0.1", 8787))
            others.listen()
        report = migrate.run(migrate_store, count=2, dask="local")
        with workers(2, "local") as hands:
            checked = check(fresh_store, workers=hands)

    assert bodies(fresh_store) == legacy
    assert (report.total().cells, report.interruptions) == (CELLS, 0)
    assert checked == check(fresh_store)


def test_check_by_processes_names_each_fault(fresh_store, legacy, by_hand):
    """The faults are the same as in one thread."""
    database = internals_of(fresh_store).shards.database(2).encode()
    by_hand(fresh_store).execute(2, b"UPDATE `%b`.cell SET body=x'C111FF' LIMIT 3" % database)
    found, expected = [], []
    with workers(2) as hands:
        report = check(fresh_store, workers=hands, listener=only(Fault, found.append))
    plain = check(fresh_store, listener=only(Fault, expected.append))

    assert report == plain
    assert found == expected
    assert len(found) == 3


@pytest.mark.long
def test_worker_that_is_killed_is_replaced(fresh_store, legacy, migrate_store, eventually):
    """After kill -9 of a worker in the middle of a shard, the driver starts others, which take over the shard."""
    job_store = JobStore(migrate_store)
    hold = internals_of(fresh_store).shards.database(0).encode()
    with (
        internals_of(migrate_store)
        .shards.pool_for(internals_of(migrate_store).shards.node_of(0))
        .connection() as blocker
    ):
        # These row locks stop a worker in the middle of its shard.
        blocker.execute(b"START TRANSACTION")
        blocker.execute(b"UPDATE `%b`.cell SET body=body" % hold)
        reports = []
        run = threading.Thread(target=lambda: reports.append(migrate.run(migrate_store, count=2)))
        run.start()
        eventually(
            lambda: job_store.jobs() and any(s.held for s in job_store.shards(1) if s.shard == 0), "shard 0 is taken"
        )
        held = next(state for state in job_store.shards(1) if state.shard == 0)
        worker = int(held.runner.rpartition("/")[2].partition(".")[0])
        eventually(lambda: job_store.shards(1)[3].state == "done", "others are through")
        os.kill(worker, signal.SIGKILL)
        eventually(lambda: job_store.shards(1)[0].epoch > held.epoch, "shard 0 is taken over")
        blocker.execute(b"ROLLBACK")
    run.join(120)

    assert bodies(fresh_store) == legacy
    assert reports[0].interruptions >= 1
    assert job_store.job(1).state == "done"


def die(*arguments: object) -> None:
    """Die at once."""
    os._exit(9)


@pytest.mark.once
def test_calls_whose_worker_dies_are_repeated():
    """Each shard gives one result; a pool that broke between two calls is replaced, too."""
    tried, made = [], []

    class Broken(ThreadPoolExecutor):
        """Its workers died before the first call."""

        def submit(self, *arguments, **options):
            raise BrokenExecutor("dead")

    def make():
        made.append(ThreadPoolExecutor(2) if made else Broken(2))
        return made[-1]

    def dies_once(opening, shard, options):
        tried.append(shard)
        if tried.count(shard) == 1:
            raise BrokenExecutor("killed")
        return shard

    pool = Workers(2, make)
    shards = sorted(run_shards(pool, dies_once, [(None, shard, None) for shard in range(7)]))
    pool.close()

    assert shards == list(range(7))
    assert len(made) > 2


@pytest.mark.once
def test_processes_that_cannot_be_started_are_an_error_with_a_remedy():
    """Here for lack of file descriptors; a container may lack /dev/shm, where their locks are."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with workers(2) as pool:
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
        try:
            with pytest.raises(OSError, match="starting worker processes") as raised:
                pool.submit(len, "")
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    assert raised.value.errno == errno.EMFILE
    assert "a single worker needs no processes" in str(raised.value)


def test_no_job_is_created_where_processes_cannot_be_started(fresh_store, legacy, migrate_store, monkeypatch):
    """It would block other jobs. Here /dev/shm is read-only."""

    def read_only(*arguments, **options):
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(multiprocessing.synchronize.SemLock, "__init__", read_only)

    with pytest.raises(OSError, match=r"several need /dev/shm.*starting worker processes"):
        MIGRATE.run(migrate_store, MigrateSpec(), count=2)

    assert JobStore(migrate_store).jobs(MIGRATE.name) == []


@pytest.mark.parametrize(("kind", "role"), [(MIGRATE, "migrate"), (REBUILD, "move"), (SWEEP, "migrate")])
def test_a_refusal_in_a_job_names_the_role_of_the_job(accounts, fresh_url, legacy, kind, role):
    """Not one that has to do with the table, in the error and in what 'job show' says of the shard."""
    text = "INSERT command denied to user 'x'@'y' for table 'erased_cell'"

    def refused(store, run):
        raise translated(pymysql.err.OperationalError(1142, text), "db-1", 0, connecting=False)

    with schemaless.connect(accounts.root(fresh_url)) as store:
        with pytest.raises(AccessDenied, match=f"'schemaless grants --role {role}' prints what"):
            replace(kind, work=refused, check=lambda *_: None).run(store, kind.spec(), [0])
        (state,) = JobStore(store).shards(1)
    assert f"--role {role}'" in state.message


def test_calls_that_always_kill_their_worker_end_with_an_error():
    """It names the shards."""

    def dies(opening, shard, options):
        raise BrokenExecutor("killed")

    pool = Workers(1, lambda: ThreadPoolExecutor(1))
    with pytest.raises(WorkersDied, match=r"died 6 times .* on shards \[7\] \(killed\)"):
        list(run_shards(pool, dies, [(None, 7, None)]))
    pool.close()


@pytest.mark.long
def test_workers_that_always_die_end_the_run(fresh_store, legacy, migrate_store, monkeypatch):
    """The run ends with an error that says so, and the job can be continued."""
    monkeypatch.setattr("schemaless.ops.jobs.workers.MOST_DEATHS", 1)
    job, _ = migrate.MIGRATE.begin_or_join(migrate_store, MigrateSpec())
    with workers(2) as hands:
        # The pool is broken before the driver submits a call.
        assert isinstance(hands.submit(die).exception(), BrokenExecutor)
        with pytest.raises(WorkersDied, match="died 2 times"):
            Driver(migrate_store, job, die).run(hands)
    report = migrate.run(migrate_store)

    assert report.job_id == 1
    assert bodies(fresh_store) == legacy


def test_paused_job_waits_until_resumed(fresh_store, legacy, migrate_store, eventually):
    """While the job is paused from another process, nothing is replaced."""
    job_store = JobStore(migrate_store)
    job, _ = migrate.MIGRATE.begin_or_join(migrate_store, MigrateSpec())
    job_store.change_state(job.job_id, ("running",), "paused", "by a test")
    before = bodies(fresh_store)
    reports = []
    run = threading.Thread(target=lambda: reports.append(migrate.run(migrate_store)))
    run.start()
    eventually(lambda: any(state.held for state in job_store.shards(job.job_id)), "a runner waits")
    time.sleep(1.2)
    meanwhile = bodies(fresh_store)
    job_store.change_state(job.job_id, ("paused",), "running")
    run.join(120)

    assert meanwhile == before
    assert bodies(fresh_store) == legacy
    assert [report.job_id for report in reports] == [job.job_id]


def test_cancelled_job_ends_and_another_does_the_rest(fresh_store, legacy, migrate_store, eventually):
    """The runners stop, and a new job does the rest."""
    job_store = JobStore(migrate_store)
    job, _ = migrate.MIGRATE.begin_or_join(migrate_store, MigrateSpec())
    job_store.change_state(job.job_id, ("running",), "paused", "by a test")
    errors = []

    def work() -> None:
        try:
            migrate.run(migrate_store)
        except JobConflict as error:
            errors.append(error)

    run = threading.Thread(target=work)
    run.start()
    eventually(lambda: any(state.held for state in job_store.shards(job.job_id)), "a runner waits")
    job_store.change_state(job.job_id, ("running", "paused"), "cancelled", "by a test")
    run.join(120)
    with pytest.raises(JobConflict, match="cannot continue job 1: it is cancelled"):
        migrate.run(migrate_store, job=job_store.job(1))
    report = migrate.run(migrate_store)

    assert "was cancelled (by a test)" in str(errors[0])
    assert report.job_id == 2
    assert bodies(fresh_store) == legacy


@pytest.mark.long
@pytest.mark.guarantee("migrate-runners-agree")
def test_budget_holds_for_all_workers_together(fresh_store, legacy, migrate_store):
    """A run with a rate limit takes at least the time that the limit implies."""
    size = sum(len(cell.body) for shard in range(4) for cell in fresh_store.scan_shard(shard))
    thresholds = Thresholds(max_mb_per_s=size / 1e6)
    began = time.monotonic()
    migrate.run(migrate_store, MigrateSpec(thresholds=thresholds), count=2)
    taken = time.monotonic() - began

    # The last of four shards waits for the time that the bytes of the other three take.
    assert taken > 0.6
    assert bodies(fresh_store) == legacy


def test_interrupt_during_dispatch_stops_the_runner_too(fresh_store, legacy, migrate_store, monkeypatch, eventually):
    """Runners stop at a checkpoint and release their shards, including a call that was not recorded yet."""
    original, job_store = Workers.submit, JobStore(migrate_store)

    def interrupted(hands, *arguments):
        original(hands, *arguments)
        eventually(lambda: any(state.held or state.state == "done" for state in job_store.shards(1)), "it has begun")
        raise KeyboardInterrupt

    monkeypatch.setattr(Workers, "submit", interrupted)
    with pytest.raises(KeyboardInterrupt):
        migrate.run(migrate_store)
    monkeypatch.undo()
    held = [state for state in job_store.shards(1) if state.held]
    report = migrate.run(migrate_store)

    assert held == []
    assert (report.job_id, report.interruptions) == (1, 0)
    assert bodies(fresh_store) == legacy


def test_a_call_that_claims_its_shard_after_the_driver_has_stopped_gets_none(
    fresh_store, legacy, migrate_store, monkeypatch, eventually
):
    """A run that ended leaves no runner behind, and the next run does the work."""
    submit, claim, claims = Workers.submit, Leases.claim, []
    begun, ended = threading.Event(), threading.Event()

    def late(leases, *arguments):
        begun.set()
        ended.wait()
        claims.append(claim(leases, *arguments))
        return claims[-1]

    def interrupted(hands, *arguments):
        submit(hands, *arguments)
        begun.wait()
        raise KeyboardInterrupt

    monkeypatch.setattr(Leases, "claim", late)
    monkeypatch.setattr(Workers, "submit", interrupted)
    with pytest.raises(KeyboardInterrupt):
        migrate.run(migrate_store)
    monkeypatch.undo()
    ended.set()
    eventually(lambda: claims, "the call has tried to claim its shard")
    report = migrate.run(migrate_store)

    assert claims == [None]
    assert (report.job_id, report.interruptions) == (1, 0)
    assert bodies(fresh_store) == legacy


@pytest.mark.parametrize("ending", [KeyboardInterrupt(), InvalidInput("by a test")])
def test_ctrl_c_is_named_only_after_an_interrupt(
    legacy, migrate_store, monkeypatch, caplog, eventually, tmp_path, ending
):
    """A run that ends by an error waits for its runners, too, but no one has pressed Ctrl-C."""
    flag = tmp_path / "wait"
    flag.touch()
    original, gate = Workers.submit, reencode.ShardRun.gate

    def patient(run):
        # A runner that stops between the request and the look at the leases is not waited for.
        eventually(lambda: "stopping: " in caplog.text, "the run waits for it")
        gate(run)

    monkeypatch.setattr(reencode.ShardRun, "gate", patient)

    def failing(hands, *arguments):
        original(hands, *arguments)
        eventually(lambda: any(state.held for state in JobStore(migrate_store).shards(1)), "it is at work")
        raise ending

    monkeypatch.setattr(Workers, "submit", failing)
    with pytest.raises(type(ending)):
        migrate.run(migrate_store, MigrateSpec(thresholds=Thresholds(flag_file=str(flag))))

    assert "save a checkpoint" in caplog.text
    assert ("press Ctrl-C again" in caplog.text) == isinstance(ending, KeyboardInterrupt)


def test_thresholds_of_a_running_job_can_be_changed(fresh_store, legacy, migrate_store, eventually, tmp_path):
    """Runners use the new thresholds, and a run started with other thresholds joins with the job's own."""
    flag = tmp_path / "wait"
    flag.touch()
    job_store = JobStore(migrate_store)
    job, _ = migrate.MIGRATE.begin_or_join(migrate_store, MigrateSpec(thresholds=Thresholds(flag_file=str(flag))))
    reports = []
    run = threading.Thread(target=lambda: reports.append(migrate.run(migrate_store)))
    run.start()
    eventually(lambda: any(state.reason for state in job_store.clusters(job.job_id)), "it waits for the file to go")
    before = bodies(fresh_store)
    job_store.change_thresholds(job.job_id, Thresholds().asdict())
    run.join(120)

    assert not any(body in legacy.values() for body in before.values())
    assert [report.job_id for report in reports] == [job.job_id]
    assert bodies(fresh_store) == legacy
    assert any(what.startswith("thresholds: ") for _, _, what in job_store.events(job.job_id))


@pytest.mark.guarantee("migrate-late-writes")
def test_follow_repeats_until_nothing_is_left(fresh_store, legacy, migrate_store, monkeypatch, new_row, by_hand):
    """A legacy body written after the checkpoint passed it is re-encoded in the next pass."""
    original = reencode.ShardRun.checkpoint
    late = []

    def checkpoint(run) -> None:
        if not late:
            shard = run.state.shard
            late.append(shard)
            database = internals_of(fresh_store).shards.database(shard).encode()
            # An old client writes bare text to the first cell of the shard.
            by_hand(fresh_store).execute(
                shard, b"UPDATE `%b`.cell SET body='{\"late\": 1}' ORDER BY added_id LIMIT 1" % database
            )
        original(run)

    monkeypatch.setattr(reencode.ShardRun, "checkpoint", checkpoint)
    # Else it would save one in the middle of a pass that takes a second.
    monkeypatch.setattr(reencode.ShardRun, "due", lambda run: False)
    report = migrate.run(migrate_store, MigrateSpec(follow=True), bounds=BlockBounds(next_pass_s=0.01))
    passes = {state.shard: state.pass_number for state in JobStore(migrate_store).shards(1)}

    assert report.total().cells == CELLS + 1
    assert len(late) == 1
    assert passes[late[0]] == 3
    assert all(not list(fresh_store.scan_shard(shard, legacy_only=True)) for shard in range(4))


def test_workers_that_cannot_be_are_refused(fresh_store, migrate_store):
    """No worker, or a scheduler that does not answer."""
    with pytest.raises(InvalidInput, match="workers must be from 1 to 1,024, got 0"):
        migrate.run(migrate_store, count=0)
    pytest.importorskip(
        "distributed", reason="the extra [dask] is not installed: no distributed; 'make install' installs it"
    )
    with (
        pytest.raises(InvalidInput, match="no Dask scheduler answers at"),
        workers(1, "tcp://127.0.0.1:1", dask_s=0.5),
    ):
        pass


def test_opening_opens_the_same_store(fresh_store):
    """An ``Opening`` opens the same datastore, and its repr has no password."""
    secret = Opening(parse_url("mysql://app:secret@db-1/mezzanine"), PoolOptions(), DEFAULT_LIMITS)
    with opening_of(fresh_store).open() as again:
        assert (again.name, internals_of(again).topology) == (fresh_store.name, internals_of(fresh_store).topology)
    assert "secret" not in repr(secret)


@pytest.mark.skipif(
    sys.platform != "linux",
    reason=f"a thread has a priority of its own on Linux only (setpriority(2), C library/kernel differences); this is "
    f"{sys.platform}",
)
def test_work_steps_aside_for_servers_and_clients(migrate_store):
    """A worker's thread has a low priority; that of the caller is unchanged."""
    own = os.getpriority(os.PRIO_PROCESS, 0)
    seen = set()

    def work(store, shard_run):
        seen.add(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
        shard_run.finish()

    job, _ = migrate.MIGRATE.begin_or_join(migrate_store, MigrateSpec())
    with workers(1) as hands:
        ended = Driver(migrate_store, job, work).run(hands)

    assert ended.state == "done"
    assert (seen, os.getpriority(os.PRIO_PROCESS, 0)) == ({max(10, own)}, own)


def test_dispatch_does_not_query_for_each_shard(fresh_store, legacy, migrate_store, monkeypatch):
    """The driver polls the catalog at intervals and at the end, however many small shards there are."""
    original = JobStore.shards
    asked = []

    def shards(job_store, job_id, **how):
        asked.append(how)
        return original(job_store, job_id, **how)

    job, _ = migrate.MIGRATE.begin_or_join(migrate_store, MigrateSpec())
    monkeypatch.setattr(JobStore, "shards", shards)
    monkeypatch.setattr("schemaless.ops.jobs.driver.POLL_S", 600.0)
    with workers(1) as hands:
        ended = Driver(migrate_store, job, migrate.work).run(hands)

    assert ended.state == "done"
    assert bodies(fresh_store) == legacy
    # At the start, when no shard is left to dispatch, and if both calls of a dispatch have ended at the first look.
    assert len(asked) <= 3


def test_learned_values_are_kept_between_shards(fresh_store, legacy, migrate_store):
    """Learned values are shared by all shards of a worker and job."""
    seen = []

    def work(store, shard_run):
        seen.append(dict(shard_run.learned))
        shard_run.learned["shards"] = shard_run.learned.get("shards", 0) + 1
        shard_run.finish()

    for _ in range(2):
        job, _ = migrate.MIGRATE.begin_or_join(migrate_store, MigrateSpec())
        with workers(1) as hands:
            Driver(migrate_store, job, work).run(hands)

    assert seen == [{}, {"shards": 1}, {"shards": 2}, {"shards": 3}] * 2


def test_a_runner_adopts_thresholds_changed_between_its_shards(fresh_store, legacy, migrate_store, monkeypatch):
    """A worker keeps its watch between shards, and polls with the present thresholds."""
    job_store = JobStore(migrate_store)
    job, _ = migrate.MIGRATE.begin_or_join(migrate_store, MigrateSpec())
    other = Thresholds(max_threads_running=77)
    original = ClusterWatch.look
    polled = []

    def look(watch, thresholds, *load):
        polled.append(thresholds)
        return original(watch, thresholds, *load)

    monkeypatch.setattr(ClusterWatch, "look", look)

    def work(store, shard_run):
        shard_run.gate()
        job_store.change_thresholds(job.job_id, other.asdict())
        shard_run.finish()

    with workers(1) as hands:
        Driver(migrate_store, job, work).run(hands)

    assert polled[0] == Thresholds()
    assert polled[-1] == other


@pytest.fixture
def root_store(accounts, fresh_url):
    """A connection to the new datastore as root, which every kind of job may use."""
    with schemaless.connect(accounts.root(fresh_url)) as store:
        yield store


@pytest.mark.parametrize(
    "kind", ["migrate", *(pytest.param(kind, marks=pytest.mark.long) for kind in ("rebuild", "restore"))]
)
def test_a_job_that_is_done_ends_whatever_fails_afterwards(kind, root_store, legacy, tmp_path, monkeypatch):
    """A call that fails once, such as during a failover, is repeated: repeating the command would begin another job."""
    spec = MigrateSpec(archive=str(tmp_path))
    if kind == "restore":
        migrate.run(root_store, spec)
    run = {
        "migrate": lambda: migrate.run(root_store, spec),
        "rebuild": lambda: rebuild.run(root_store),
        "restore": lambda: restore.run(root_store, RestoreSpec((str(tmp_path),))),
    }[kind]
    complete, ask = JobStore.complete, NodePool.run
    calls: list[int] = []
    fails = 0

    def completing(job_store: JobStore, job_id: int) -> bool:
        calls.append(0)
        return complete(job_store, job_id)

    def failing(pool: NodePool, *given: object, **options: object) -> object:
        if calls:
            calls.append(len(calls))
            if len(calls) - 1 == fails:
                raise ServerUnavailable("it has gone", node=str(pool.node))
        return ask(pool, *given, **options)

    monkeypatch.setattr(driver, "POLL_S", 0.01)
    monkeypatch.setattr(JobStore, "complete", completing)
    monkeypatch.setattr(NodePool, "run", failing)
    for fails in itertools.count(1):
        calls.clear()
        run()
        struck = len(calls) > fails
        calls.clear()
        job = JobStore(root_store).jobs(kind)[-1]
        assert job.state == "done"
        if kind == "migrate":
            assert all("size_after" in state.measures for state in JobStore(root_store).shards(job.job_id))
        if not struck:
            break
    assert fails > 3


def test_what_is_measured_before_a_job_is_measured_whatever_fails(fresh_store, legacy, migrate_store, monkeypatch):
    """The command, repeated, would join the job and take up its work at once."""
    failures = [ServerUnavailable("it has gone", node="db-1")]

    def failing(connection):
        if failures:
            raise failures.pop()
        return binary_log_point(connection)

    monkeypatch.setattr(driver, "POLL_S", 0.01)
    monkeypatch.setattr(migrate, "binary_log_point", failing)
    report = migrate.run(migrate_store)

    assert failures == []
    assert all("size_before" in state.measures for state in JobStore(migrate_store).shards(report.job_id))


def test_a_job_is_not_done_if_a_failover_lost_that(fresh_store, legacy, migrate_store, monkeypatch):
    """The catalog's new primary may still have it as running, with shards whose end it has lost too."""
    complete = JobStore.complete
    lost = []

    def completing(job_store: JobStore, job_id: int) -> bool:
        done = complete(job_store, job_id)
        if not lost:
            lost.append(job_id)
            for table, where in (("job", "job_id"), ("job_shard", "shard=1 AND job_id")):
                running = "state='running'" if table == "job" else "state='waiting'"
                statement = f"UPDATE `{migrate_store.name}`.{table} SET {running}, ended_at=NULL WHERE {where}={job_id}"
                job_store.catalog.execute(statement.encode())
        return done

    monkeypatch.setattr(JobStore, "complete", completing)
    report = migrate.run(migrate_store)

    job_store = JobStore(migrate_store)
    assert lost == [report.job_id]
    assert job_store.job(report.job_id).state == "done"
    assert all(state.state == "done" for state in job_store.shards(report.job_id))
