"""Throttling: polls of servers that replicate, and of servers that do not."""

from __future__ import annotations

import itertools
import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import pymysql
import pytest

import schemaless
from schemaless import NewStoredCell
from schemaless.base.events import only
from schemaless.errors import InvalidInput, ReplicaRefused
from schemaless.local.description import LocalServer
from schemaless.ops.failover import nodes
from schemaless.ops.jobs.job import RunStarted
from schemaless.ops.jobs.job_store import JobStore
from schemaless.ops.jobs.status import status_of
from schemaless.ops.jobs.throttle import MOST, ClusterWatch, Look, Thresholds, discount_read
from schemaless.ops.migrate.run import run
from schemaless.ops.migrate.spec import MigrateSpec
from schemaless.store.internals import internals_of
from schemaless.topology.model import Cluster
from schemaless.topology.shards import Shards
from schemaless.wire.node import Node
from schemaless.wire.pool import NodePool, PoolOptions
from schemaless.wire.pools import Pools
from schemaless.wire.urls import parse_url
from tests.accounts import Accounts, accounts_on
from tests.freezing import freeze, thaw
from tests.promotion import sql, word

_writers = itertools.count(1)
NAME = "throttled"
TOKENS = f"{NAME}_heartbeat.heartbeat_token"

# Thresholds


def test_thresholds_come_back_from_json():
    """Thresholds are stored as JSON, including disabled ones."""
    chosen = Thresholds(max_lag_s=0.5, max_threads_running=None, max_mb_per_s=20, flag_file="/run/stop")

    assert Thresholds.of(json.loads(json.dumps(chosen.asdict()))) == chosen
    assert Thresholds.of({}) == Thresholds()
    assert None not in (Thresholds().max_lag_s, Thresholds().max_threads_running, Thresholds().max_history_length)


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ({"max_lag_s": 0}, "max_lag_s must be a number above 0"),
        ({"max_lag_s": "5"}, "got '5'"),
        ({"yield_above_per_s": -1}, "yield_above_per_s must be a number above 0"),
        ({"max_mb_per_s": float("nan")}, "max_mb_per_s must be a number above 0"),
        ({"max_threads_running": 2.5}, "max_threads_running must be an integer"),
        ({"max_threads_running": True}, "max_threads_running must be an integer"),
        ({"max_history_length": -1}, "max_history_length must be an integer"),
        ({"min_free_bytes": 0}, "min_free_bytes must be an integer"),
        ({"flag_file": "stop"}, "flag_file must be an absolute path"),
        ({"flag_file": 7}, "flag_file must be an absolute path"),
        ({"max_lags": 5}, "unknown threshold max_lags; the thresholds are max_lag_s, "),
    ],
)
def test_invalid_thresholds_are_refused(values, complaint):
    """The error says which values are allowed."""
    with pytest.raises(InvalidInput, match=complaint):
        Thresholds.of(values)


# Polls


@pytest.fixture(scope="module")
def datastore(replicated: LocalServer, servers: list[LocalServer]) -> Iterator[Accounts]:
    """A datastore whose first cluster has a replica, and its accounts."""
    with accounts_on([replicated.url, servers[0].url, servers[1].url], prefix="throttle_") as accounts:
        url = accounts.create(NAME, 4)
        nodes.add_replica(
            accounts.url("admin", url), "cluster-1", accounts.url("admin", replicated.replicas[0].url), timeout_s=30
        )
        accounts.allow("migrate", NAME, 4, server_wide=False)
        yield accounts


@pytest.fixture
def replica(replicated: LocalServer) -> LocalServer:
    """The replica of the first cluster."""
    return replicated.replicas[0]


@pytest.fixture
def cluster(datastore: Accounts, replicated: LocalServer) -> Cluster:
    """The cluster that has a replica."""
    with schemaless.connect(datastore.url("migrate", replicated.url, NAME)) as store:
        return internals_of(store).topology.cluster("cluster-1")


@dataclass
class Watched:
    """A watch with thresholds."""

    watch: ClusterWatch
    thresholds: Thresholds

    def look(self) -> Look:
        """Poll with the thresholds."""
        return self.watch.look(self.thresholds)

    def close(self) -> None:
        """Close the watch."""
        self.watch.close()


class PatientPools(Pools):
    """Pools for watches that wait for servers, however busy the machine is, where the usual ones wait for a moment."""

    def new_pool(self, node: Node, options: PoolOptions, **others: bool) -> NodePool:
        """Create a pool with long timeouts."""
        return super().new_pool(node, PoolOptions(pool_size=options.pool_size), **others)


Watching = Callable[..., Watched]


@pytest.fixture
def watching(datastore: Accounts, replicated: LocalServer, cluster: Cluster) -> Iterator[Watching]:
    """Return a function that creates watches of the cluster, optionally with other replicas or thresholds.

    They wait for servers that answer late, unless ``patient`` is False.
    """
    made: list[tuple[Watched, Shards]] = []

    def watch(
        *,
        writer: str | None = None,
        replicas: list[str] | None = None,
        role: str = "migrate",
        options: dict[str, Any] | None = None,
        proven: list[str] | None = None,
        patient: bool = True,
        **thresholds: Any,
    ) -> Watched:
        url = replicated.url if role == "root" else datastore.url("migrate", replicated.url)
        with schemaless.connect(datastore.url("migrate", replicated.url, NAME)) as store:
            topology = internals_of(store).topology
        if replicas is not None:
            watched = replace(
                cluster, nodes=(cluster.primary, *(Node("replica", socket=socket) for socket in replicas))
            )
            others = [each for each in topology.clusters if each.name != cluster.name]
            topology = replace(topology, clusters=(watched, *others))
        shards = Shards(topology, (PatientPools if patient else Pools)(parse_url(url).credentials, PoolOptions()))
        name = writer or f"test {next(_writers)}"
        watch = ClusterWatch(shards, cluster.name, name, **{"cache_s": 0.0, **(options or {})})
        watch.proven.update(proven or ())
        made.append((Watched(watch, Thresholds(**thresholds)), shards))
        return made[-1][0]

    yield watch
    for watched, shards in made:
        watched.close()
        shards.close()


@pytest.fixture
def until(eventually) -> Callable[[Watched, object], Look]:
    """Poll until there is a reason of this kind, or None; return that result."""

    def wait(watch: Watched, kind: object) -> Look:
        looks: list[Look] = []

        def seen() -> bool:
            looks.append(watch.look())
            return looks[-1].kind == kind

        eventually(seen, f"a look that says {kind}")
        return looks[-1]

    return wait


@contextmanager
def waiting_statements(server: LocalServer, count: int) -> Iterator[None]:
    """Run statements on a server for the duration of the block."""
    holder = pymysql.connect(unix_socket=str(server.socket), user="root", autocommit=True, ssl_disabled=True)
    holder.cursor().execute("SELECT GET_LOCK('throttle', 0)")
    threads = [
        threading.Thread(target=sql, args=(server, "SELECT GET_LOCK('throttle', 300)"), daemon=True)
        for _ in range(count)
    ]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        holder.close()
        for thread in threads:
            thread.join(120)


@pytest.mark.guarantee("migrate-replicas")
@pytest.mark.mysql
@pytest.mark.twice
def test_replica_that_lags_is_a_reason_until_it_has_caught_up(watching, until, replica):
    """The lag grows while the replica does not apply transactions, and is zero afterwards."""
    watch = watching(max_lag_s=0.2)
    until(watch, None)
    sql(replica, f"STOP {word(replica)} SQL_THREAD")
    try:
        first = until(watch, "lag")
        # The lag has a resolution of milliseconds.
        time.sleep(0.01)
        later = watch.look()
    finally:
        sql(replica, f"START {word(replica)} SQL_THREAD")
    after = until(watch, None)

    node = str(replica.socket)
    said = re.fullmatch(rf"replica {re.escape(node)} lags by ([0-9.]+) s \(limit 0\.2 s\)", first.reason)
    assert float(said[1]) == pytest.approx(first.figures["lag_s"][node], abs=0.051)
    assert later.figures["lag_s"][node] > first.figures["lag_s"][node] >= 0.2 >= after.figures["lag_s"][node]
    assert after.figures["proven"] == [node]
    assert json.loads(json.dumps(after.figures)) == after.figures


@pytest.mark.mysql
@pytest.mark.twice
def test_replica_shows_a_token_before_anything_is_done(watching, until, replica):
    """The job waits for the first token of a replica and names it; a replica proven before is never refused."""
    before = f"the same {next(_writers)}"
    until(watching(writer=before), None)
    sql(replica, f"STOP {word(replica)} SQL_THREAD")
    try:
        watch = watching(writer=before)
        patient = watching(options={"proof_s": 0.001}, proven=[str(replica.socket)])
        look, *_, again = watch.look(), patient.look(), patient.look()
    finally:
        sql(replica, f"START {word(replica)} SQL_THREAD")

    assert (look.kind, again.kind) == ("unproven", "unproven")
    assert look.reason.startswith(f"waiting for replica {replica.socket} to receive a write from ")
    assert (look.figures["lag_s"], look.figures["proven"]) == ({str(replica.socket): None}, [])
    assert until(watch, None).figures["proven"] == [str(replica.socket)]


@pytest.mark.guarantee("migrate-replicas")
@pytest.mark.mysql
@pytest.mark.twice
def test_stranger_is_refused(watching, servers, eventually):
    """A server that answers but shows no token in time ends the run; the error says what to do."""
    watch = watching(replicas=[str(servers[1].socket)], options={"proof_s": 0.05})
    looks: list[Look] = []
    with pytest.raises(ReplicaRefused, match=r"has received no write from its primary .* 'schemaless topology remove-"):
        eventually(lambda: looks.append(watch.look()), "refused")

    assert {look.kind for look in looks} == {"unproven"}


@pytest.mark.mysql
@pytest.mark.twice
def test_the_primary_under_another_address_is_refused_as_replica(watching, replicated, tmp_path):
    """The primary would show every token at once and never lag."""
    link = tmp_path / "another.sock"
    link.symlink_to(replicated.socket)

    with pytest.raises(ReplicaRefused, match=r"is the same server as its primary .* under another address"):
        watching(replicas=[str(link)]).look()


@pytest.mark.mysql
@pytest.mark.twice
def test_job_waits_for_an_unreachable_replica(watching, until, replica, tmp_path):
    """An unreachable replica neither ends the run nor blocks the poll; when it is back, the job continues."""
    link = tmp_path / "replica.sock"
    link.symlink_to(replica.socket)
    watch = watching(replicas=[str(link)], options={"proof_s": 0.001}, proven=[str(link)], patient=False)
    until(watch, None)
    freeze(replica.pid)
    try:
        hangs = watch.look()
    finally:
        thaw(replica.pid)
    link.unlink()
    watch.close()
    gone = watch.look()
    link.symlink_to(replica.socket)
    back = until(watch, None)

    assert (hangs.kind, gone.kind, back.reason) == ("unreachable", "unreachable", None)
    assert hangs.reason.startswith(f"replica {link} does not answer: ")
    assert hangs.figures["lag_s"] == gone.figures["lag_s"] == {str(link): None}


@pytest.mark.mysql
def test_a_recent_poll_is_reused_without_its_notes(watching):
    """Many small shards in a row do not poll at each; other thresholds are never answered by an old poll."""
    watch = watching(options={"cache_s": 600.0}).watch
    first, second = (watch.look(Thresholds()) for _ in range(2))
    other = watch.look(Thresholds(max_lag_s=None))

    assert (second.figures, second.notes) == (first.figures, ())
    assert second.figures is first.figures
    assert other.figures["lag_s"] == {}


@pytest.mark.mysql
@pytest.mark.twice
def test_running_threads_are_counted(watching, until, replicated):
    """Running threads of all clients on the primary are a reason to wait above the limit."""
    watch = watching(max_lag_s=None, max_threads_running=5)
    with waiting_statements(replicated, 6):
        busy = until(watch, "threads")
    idle = until(watch, None)

    assert busy.reason == (f"{replicated.socket} has {busy.figures['threads_running']} threads running (limit 5)")
    assert busy.figures["threads_running"] > 5 >= idle.figures["threads_running"] >= 1
    assert idle.figures["lag_s"] == {}, "without a limit, no replica is asked"


@pytest.mark.mysql
@pytest.mark.twice
def test_a_disk_that_fills_up_is_a_reason_to_wait(watching, until, replicated, replica, tmp_path):
    """Disks of the primary, its replica and the job's own folders; above the limit, and without one, work goes on."""
    watch = watching(min_free_bytes=MOST, options={"folders": [tmp_path]})
    until(watch, "disk")
    full = watch.look()
    enough = watch.watch.look(Thresholds(min_free_bytes=1))
    unlimited = watch.watch.look(Thresholds(min_free_bytes=None))

    free = full.figures["free_bytes"]
    assert free.keys() == {str(replicated.socket), str(replica.socket), str(tmp_path)}
    assert all(number > 0 for number in free.values())
    assert full.reason.startswith(f"the disk of {replicated.socket} has ")
    assert full.reason.endswith(" MB free (limit 1,000,000 MB)")
    assert (enough.reason, unlimited.reason, unlimited.figures["free_bytes"]) == (None, None, {})


@pytest.mark.mysql
def test_a_wait_for_space_is_noted_once(watching, tmp_path):
    """The runner logs notes as warnings, which a quiet command shows, too."""
    watch = watching(max_lag_s=None, min_free_bytes=MOST, options={"folders": [tmp_path]})
    notes = [[note for note in watch.look().notes if note.startswith("waits, because the disk of ")] for _ in range(3)]

    assert [len(found) for found in notes] == [1, 0, 0]


@pytest.mark.mysql
def test_a_hook_decides_where_a_disk_cannot_be_seen(watching, monkeypatch, tmp_path):
    """Exit status 0 lets the job go on; any other, or a hook that cannot be run, makes it wait and is quoted."""
    hook = tmp_path / "free space"
    hook.write_text('#!/bin/sh\necho "$1 on $SCHEMALESS_HOOK_CLUSTER"; exit $2\n')
    hook.chmod(0o700)

    def reason_of(command: str) -> str | None:
        monkeypatch.setenv("SCHEMALESS_THROTTLE_HOOK", command)
        return watching(max_lag_s=None).look().reason

    assert reason_of(f"'{hook}' full 0") is None
    assert reason_of("") is None
    assert reason_of(f"'{hook}' full 3") == "the hook of SCHEMALESS_THROTTLE_HOOK exits with 3: full on cluster-1"
    assert reason_of(f"{hook}-gone").startswith("the hook of SCHEMALESS_THROTTLE_HOOK cannot be run: ")
    assert reason_of("'").endswith("cannot be run: No closing quotation")


@pytest.mark.mysql
@pytest.mark.twice
def test_calls_of_applications_make_a_job_yield(watching, replicated, new_row, eventually):
    """Application calls are counted without those of the watch, and make the job yield, not wait."""
    watch = watching(yield_above_per_s=100)
    never = watching(yield_above_per_s=None)
    looks = [watch.look() for _ in range(12)]
    busy: list[Look] = []
    with schemaless.connect(f"mysql://root@/{NAME}?unix_socket={replicated.socket}") as store:
        row = next(row for row in iter(new_row, None) if store.shard_of(row) == 0)

        def yields() -> bool:
            for _ in range(100):
                store.get_cell_latest(row, "BASE")
            busy.append(watch.look())
            never.look()
            return busy[-1].yields

        eventually(yields, "calls are seen")
    refused = never.look()

    assert looks[0].figures["calls_per_s"] is None
    assert looks[-1].figures["calls_per_s"] < 100 < busy[-1].figures["calls_per_s"]
    assert not looks[-1].yields
    assert (busy[-1].reason, busy[-1].figures["yields"]) == (None, True)
    assert (refused.yields, refused.figures["calls_per_s"] > 0) == (False, True)


@pytest.mark.mysql
@pytest.mark.twice
def test_queries_of_the_job_are_not_application_calls(watching, replicated):
    """Reads of blocks, and those of job tables on the same server, are not counted as application calls."""
    with schemaless.connect(f"mysql://root@/{NAME}?unix_socket={replicated.socket}") as store:
        internals, job_store = internals_of(store), JobStore(store)
        calls_per_s = []
        for own in (True, False):
            watch = watching()
            for _ in range(5):
                for _ in range(100):
                    internals.shards.rows(0, b"SELECT 1")
                    if own:
                        internals.shards.run(0, discount_read)
                        job_store.jobs()
                look = watch.look()
            calls_per_s.append(look.figures["calls_per_s"])

    # The remainder is a few statements of the watch per poll, compared with 100 others.
    assert calls_per_s[0] * 5 < calls_per_s[1]


@pytest.mark.mysql
@pytest.mark.twice
def test_history_that_is_not_purged_is_a_reason(watching, until, replicated):
    """An open snapshot keeps the history long; it shrinks when the snapshot is closed."""
    watch = watching(role="root", max_history_length=20)
    reader = pymysql.connect(unix_socket=str(replicated.socket), user="root", ssl_disabled=True)
    with reader, reader.cursor() as cursor:
        cursor.execute("START TRANSACTION WITH CONSISTENT SNAPSHOT")
        look = until(watch, "history")
    after = until(watch, None)

    assert look.reason.startswith(f"{replicated.socket} has {look.figures['history_length']} transactions to purge (")
    assert look.figures["history_length"] > 20 >= after.figures["history_length"]


@pytest.mark.mysql
@pytest.mark.twice
def test_invisible_history_length_is_noted_once(watching, until, flavour, datastore):
    """The job runs without the history length and notes the GRANT; MariaDB shows it to every account."""
    watch = watching()
    first, second = watch.look(), watch.look()
    unwatched = watching(max_history_length=None).look()

    if flavour == "mariadb":
        assert (first.notes, second.figures["history_length"] is None) == ((), False)
    else:
        (note,) = first.notes
        assert note.endswith(
            f"so max_history_length is not checked; run GRANT PROCESS ON *.* TO {datastore.account('migrate')}"
        )
        assert second.figures["history_length"] is None
    assert second.notes == unwatched.notes == ()
    assert until(watch, None).reason is None


@pytest.mark.mysql
@pytest.mark.twice
def test_flag_file_stops_as_long_as_it_is_there(watching, until, tmp_path):
    """The flag file takes precedence over other reasons, and a path that cannot be checked counts as existing."""
    flag = tmp_path / "stop"
    watch = watching(flag_file=str(flag))
    until(watch, None)
    flag.touch()
    there = watch.look()
    flag.unlink()
    until(watch, None)
    unknown = watching(flag_file=f"/{'x' * 300}", max_threads_running=1).look()

    assert (there.kind, there.reason) == ("flag", f"the flag file {flag} exists")
    assert unknown.kind == "flag"
    assert unknown.reason.startswith("cannot check the flag file ")


@pytest.mark.mysql
@pytest.mark.twice
def test_watches_at_once_do_not_disturb_each_other_and_leave_nothing(watching, until, replicated):
    """A watch has one token row; closing removes it, and that of a killed watch is removed after a day."""
    sql(
        replicated,
        f"INSERT INTO {TOKENS} (cluster, writer, token, written_at) VALUES "
        "('cluster-1', 'killed', REPEAT('x', 16), UTC_TIMESTAMP(6) - INTERVAL 25 HOUR), "
        "('cluster-1', 'killed lately', REPEAT('x', 16), UTC_TIMESTAMP(6) - INTERVAL 23 HOUR)",
    )
    one, other = watching(), watching()
    for watch in (one, other):
        until(watch, None)
    looks = [watch.look() for _ in range(10) for watch in (one, other)]
    both = {writer for (writer,) in sql(replicated, f"SELECT writer FROM {TOKENS}")}
    one.close()
    after = {writer for (writer,) in sql(replicated, f"SELECT writer FROM {TOKENS}")}
    sql(replicated, f"DELETE FROM {TOKENS} WHERE writer = 'killed lately'")

    assert {look.reason for look in looks} == {None}
    assert len(both) == 3
    assert "killed lately" in after < both
    assert len(after) == 2


@pytest.mark.mysql
@pytest.mark.twice
def test_read_only_primary_is_waited_for(watching, replicated):
    """Writes to a demoted primary would be lost, so no token is written; another one is about to be named."""
    before = sql(replicated, f"SELECT COUNT(*) FROM {TOKENS}")
    sql(replicated, "SET GLOBAL read_only = 1")
    try:
        look = watching(role="root").look()
    finally:
        sql(replicated, "SET GLOBAL read_only = 0")

    assert look.kind == "unreachable"
    assert "is read-only; if another server is the primary now, record it with" in look.reason
    assert sql(replicated, f"SELECT COUNT(*) FROM {TOKENS}") == before


@pytest.mark.mysql
@pytest.mark.twice
def test_primary_that_is_locked_for_a_backup_is_waited_for(watching, until, replicated, eventually):
    """Statements of the watch do not wait long for a lock, and the job continues when it is released."""
    watch = watching(patient=False)
    until(watch, None)
    backup = pymysql.connect(unix_socket=str(replicated.socket), user="root", ssl_disabled=True)
    with backup, backup.cursor() as cursor:
        cursor.execute("FLUSH TABLES WITH READ LOCK")
        looks = [watch.look() for _ in range(5)]

        def nothing_waits() -> bool:
            cursor.execute("SELECT INFO FROM information_schema.PROCESSLIST WHERE INFO LIKE 'INSERT INTO `throttled%'")
            return not cursor.fetchall()

        eventually(nothing_waits, "the server has given the watch's statements up")

    assert {look.kind for look in looks} == {"unreachable"}
    assert looks[-1].reason.startswith(f"the primary {replicated.socket} does not answer: ")
    assert until(watch, None).reason is None


@pytest.mark.mysql
@pytest.mark.twice
def test_migration_waits_for_its_replica_and_says_so(datastore, replicated, replica, new_row, eventually, tmp_path):
    """The job waits for the flag file, then for lag; both waits are shown and recorded, and the job completes."""
    url = datastore.url("migrate", replicated.url, NAME)
    flag = tmp_path / "wait"
    flag.touch()
    with schemaless.connect(datastore.url("app", replicated.url, NAME)) as app:
        rows = [row for row in itertools.islice(iter(new_row, None), 40) if app.shard_of(row) == 0]
        app.put_stored_cells([NewStoredCell(row, "BASE", 1, b'{"legacy": true}') for row in rows])
    spec = MigrateSpec(thresholds=Thresholds(max_lag_s=1.0, flag_file=str(flag)))
    jobs: list[int] = []
    listener = only(RunStarted, lambda begun: jobs.append(begun.job.job_id))
    with schemaless.connect(url) as store, ThreadPoolExecutor(1) as pool:
        job_store = JobStore(store)
        migration = pool.submit(run, store, spec, [0], listener=listener)

        def waits_for(text: str) -> bool:
            assert not migration.done(), migration.result()
            return any(text in reason for job in jobs for _, reason in status_of(job_store, job).waits)

        try:
            eventually(
                lambda: waits_for("the flag file") and job_store.clusters(jobs[0])[0].figures["proven"], "flagged"
            )
            sql(replica, f"STOP {word(replica)} SQL_THREAD")
            eventually(lambda: (job_store.clusters(jobs[0])[0].figures["lag_s"][str(replica.socket)] or 0) > 1, "a lag")
            flag.unlink()
            eventually(lambda: waits_for(f"replica {replica.socket} lags by"), "waits for the replica")
        finally:
            flag.unlink(missing_ok=True)
            sql(replica, f"START {word(replica)} SQL_THREAD")
        report = migration.result(timeout=120)
        (cluster,) = job_store.clusters(jobs[0])

    assert report.total().cells == len(rows)
    assert cluster.reason is None
    # A server may answer late.
    assert set(cluster.waits) - {"unreachable"} == {"flag", "lag"}
    assert sql(replicated, f"SELECT COUNT(*) FROM {TOKENS}") == ((0,),)
