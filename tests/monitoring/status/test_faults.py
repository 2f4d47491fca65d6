"""Faults that are injected into servers: the status names each, with the command that helps.

A disk is nowhere filled up but in a long test, which mounts a small one; elsewhere, the system's call says that it is.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from dataclasses import replace
from html import escape
from types import SimpleNamespace
from typing import Any, NamedTuple

import pymysql
import pytest
from sqlalchemy import make_url

import schemaless
from schemaless import JobConflict
from schemaless.cell import NewStoredCell
from schemaless.local.description import LocalServer
from schemaless.local.options import RELAXED
from schemaless.local.servers import down, up
from schemaless.monitoring.metrics import PREFIX, values
from schemaless.monitoring.status.collector import Collector
from schemaless.monitoring.status.model import Finding, MonitorOptions, NodeView, Status, status_json
from schemaless.monitoring.status.page import SCRIPT, status_html
from schemaless.ops.failover import nodes
from schemaless.ops.failover.semi_sync import SemiSync, redundancy
from schemaless.ops.jobs.job_store import JobStore
from schemaless.ops.jobs.leases import Leases
from schemaless.ops.jobs.throttle import Thresholds
from schemaless.ops.migrate import run as migrate
from schemaless.ops.migrate.spec import MigrateSpec
from schemaless.store.followers.membership import Timing
from schemaless.store.followers.worker import Worker
from schemaless.store.internals import internals_of
from schemaless.store.triggers.calling import Calls
from schemaless.store.triggers.supervision import prepare
from schemaless.topology.model import Cluster
from schemaless.wire.node import Node
from schemaless.wire.sql.sessions import process_list
from schemaless.wire.transactions import OpenTransaction, open_transactions
from tests.accounts import accounts_on, connect
from tests.monitoring.metrics.test_dashboard import ALERTS
from tests.promotion import read_only, semi_synchronous, sql, word

pytestmark = [pytest.mark.mysql]

OLD_S = 0.2


@pytest.fixture(scope="module")
def watched(replicated: LocalServer) -> Iterator[str]:
    """The URL, for the role ``measure``, of a datastore whose cluster has a replica."""
    with accounts_on([replicated.url], prefix="beat_") as made:
        url = made.create("beats", 1)
        made.allow("measure", "beats", 1)
        nodes.add_replica(made.url("admin", url), "cluster-1", made.url("admin", replicated.replicas[0].url))
        yield made.url("measure", url)


def admin_of(url: str) -> str:
    """Return the URL of a datastore for the role ``admin``."""
    return url.replace("beat_measure", "beat_admin")


def root_of(url: str) -> str:
    """Return the URL of a datastore for root."""
    return url.replace("beat_measure", "root")


def collected(url: str, **options: Any) -> tuple[Status, NodeView, list[Finding]]:
    """Return the status of a datastore, its primary, and the faults.

    On a busy machine, a transaction of the datastore itself may be open for longer than ``OLD_S``.
    """
    options = {"transactions_older_than_s": 60.0, "disk_full_from": 1.0, **options}
    with schemaless.connect(url) as store:
        status = Collector(store, options=MonitorOptions(**options)).collect()
    assert status.clusters is not None
    return status, status.clusters[0].nodes[0], [each for each in status.findings if each.severity == "fault"]


def gauges(status: Status) -> dict[str, float]:
    """Return the figures about writes on the primary."""
    return {
        name: value
        for name, value, _ in values(status)
        if value is not None and name.startswith(("write_", "old_transaction"))
    }


@contextmanager
def session(server: LocalServer, *statements: str) -> Iterator[int]:
    """Run statements in a session that stays open for the block; yield its number."""
    with closing(connect(server.url, None)) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT CONNECTION_ID()")
        (number,) = cursor.fetchone()
        for statement in statements:
            cursor.execute(statement)
        yield int(number)


@pytest.mark.twice
def test_a_healthy_cluster_is_written_at_most_once_a_second_however_many_watch(watched, replicated):
    """Nothing is reported; the row is replaced, not added to; without the probe, nothing is written."""
    sql(replicated, "DELETE FROM beats_heartbeat.heartbeat_token WHERE writer='heartbeat'")
    _, _, before = collected(watched, probe=False)
    count = "SELECT COUNT(*) FROM beats_heartbeat.heartbeat_token WHERE writer='heartbeat'"
    assert (before, sql(replicated, count)[0][0]) == ([], 0)
    status, primary, faults = collected(watched)
    threads = [threading.Thread(target=collected, args=(watched,)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert faults == []
    assert primary.write_s is not None
    assert primary.write_age_s is not None
    assert gauges(status) == {
        "write_seconds": primary.write_s,
        "write_age_seconds": primary.write_age_s,
        "write_failed": 0,
        "old_transaction_seconds": 0,
    }
    assert sql(replicated, count)[0][0] == 1


@pytest.mark.twice
def test_a_lock_that_the_write_waits_for_is_named_with_its_session(watched, replicated):
    """The thread, its account and the age; the same for a transaction that is open for long, unless for a backup."""
    with session(replicated, "LOCK TABLES beats_heartbeat.heartbeat_token READ") as holder:
        status, primary, faults = collected(watched)
    with session(replicated, "BEGIN", "SELECT COUNT(*) FROM beats.cluster") as idle:
        # MariaDB tells the beginning of a transaction in whole seconds, from a list that it renews after 0.1 s.
        time.sleep(1.1 + OLD_S)
        _, _, open_for_long = collected(watched, transactions_older_than_s=OLD_S)
        dumping, busy, none = collected(watched, transactions_older_than_s=OLD_S, backup_account="root")
    # The datastore's own statements may be listed too: MariaDB rounds their beginning down to whole seconds.
    found, none = ([each for each in some if each.text.startswith("root@")] for some in (open_for_long, none))
    others = [each.age_s for each in busy.transactions or () if not each.account.startswith("root@")]

    assert [f"thread {holder} of root@localhost" in each.text for each in faults] == [True]
    assert "a test write failed" in faults[0].text
    assert faults[0].command.endswith("--verbose processlist")
    assert gauges(status)["write_failed"] == 1
    assert primary.write_problem is not None
    assert [each.command.endswith(f" kill {idle}") for each in found] == [True]
    assert found[0].text.startswith("root@localhost has had a transaction open for ")
    assert none == []
    assert [each.severity for each in dumping.findings if each.command == found[0].command] == ["notice"]
    assert gauges(dumping)["old_transaction_seconds"] == max(others, default=0)


@pytest.mark.twice
def test_the_age_of_a_transaction_does_not_depend_on_summer_time(watched, replicated, eventually):
    """MariaDB shows its beginning in local time. It is looked at an hour after the clocks have changed."""
    found: list[OpenTransaction] = []

    def is_open() -> bool:
        time.sleep(0.2)  # MariaDB renews its list only if it has not been read for 0.1 s.
        found[:] = [each for each in open_transactions(connection, 0) if each.thread == idle]
        return bool(found)

    with (
        session(replicated, "BEGIN", "SELECT COUNT(*) FROM beats.cluster") as idle,
        schemaless.connect(watched) as store,
        internals_of(store).catalog.connection() as connection,
    ):
        later_s = 13 * 3_600 if connection.is_mariadb else 0
        if later_s:
            connection.execute(b"SET timestamp=%d" % (time.time() + later_s))
        eventually(is_open, "the transaction is listed")

    assert 0 <= found[0].age_s - later_s < 1_800


def test_a_write_that_hangs_is_reported_and_no_connections_pile_up_behind_it(watched, replicated, eventually):
    """Semi-synchronous replication without an acknowledgement: the server's state says so, and a second monitor too.

    Another statement has bytes in it, like most puts.
    """
    (replica,) = replicated.replicas
    view = process_list(mariadb=replicated.flavour == "mariadb").decode()
    stuck = f"SELECT COUNT(*) FROM {view} WHERE STATE LIKE 'Waiting for semi-sync%'"
    first: list[NodeView] = []

    def hangs() -> bool:
        first[:] = [collected(watched)[1]]
        return first[0].write_problem is not None

    with ThreadPoolExecutor(1) as threads, semi_synchronous(replicated, replica):
        busy = pymysql.connect(unix_socket=str(replicated.socket), user="root", ssl_disabled=True)
        put = threads.submit(busy.query, b"DO SLEEP(600), _binary'\xc1\xff'")
        sql(replica, f"STOP {word(replica)} IO_THREAD")
        try:
            eventually(hangs, "a write is due")
            assert not put.done()
            status, again, faults = collected(watched)
            connections = sql(replicated, stuck)[0][0]
        finally:
            sql(replicated, f"KILL {busy.thread_id()}")
            put.exception(120)
            sql(replica, f"START {word(replica)} IO_THREAD")
            eventually(lambda: sql(replicated, stuck)[0][0] == 0, "the write ends")

    nodes.expect(admin_of(watched), "cluster-1", semi_sync=False)
    assert re.search(r"a test write got no reply in 3 s \(thread \d+: \w", str(first[0].write_problem))
    assert again.write_problem is not None
    assert connections <= 1
    assert gauges(status)["write_failed"] == 1
    assert len([each for each in faults if "wait for a replica" in each.text]) == 1


@pytest.mark.twice
def test_a_primary_that_takes_no_writes_and_an_account_that_may_not_write(watched, replicated):
    """The first is a fault, and told twice nowhere; of the second, a notice says why nothing is written."""
    account = f"'{make_url(watched).username}'@'%'"
    sql(replicated, "SET GLOBAL read_only=1")
    try:
        _, primary, faults = collected(watched)
    finally:
        sql(replicated, "SET GLOBAL read_only=0")
    sql(replicated, f"REVOKE INSERT, UPDATE ON beats_heartbeat.heartbeat_token FROM {account}")
    try:
        status, _, denied = collected(watched)
    finally:
        sql(replicated, f"GRANT INSERT, UPDATE ON beats_heartbeat.heartbeat_token TO {account}")

    assert primary.write_problem is not None
    assert [each.text for each in faults] == ["the primary is read-only; has another server taken its place?"]
    assert denied == []
    (notice,) = [each for each in status.findings if "no test write" in each.text]
    assert f"GRANT SELECT, INSERT, UPDATE ON `beats_heartbeat`.`heartbeat_token` TO {account}" in notice.text


@pytest.mark.twice
def test_a_cluster_that_had_more_is_red_until_the_operator_says_that_it_needs_no_more(invoke, watched, replicated):
    """Semi-synchronous replication that a monitor has seen, then the only replica; neither is missed before it was."""
    (replica,) = replicated.replicas
    admin = admin_of(watched)
    other = replica.url.replace("root@", "beat_admin@")
    node = "--cluster", "cluster-1"
    with semi_synchronous(replicated, replica):
        _, _, calm = collected(watched)
    status, _, asynchronous = collected(watched)
    shown = invoke("topology", "show", url=admin)
    accepted = invoke("topology", "expect", *node, "--no-semi-sync", url=admin)
    _, _, after = collected(watched)
    invoke("topology", "remove-replica", *node, other, url=admin)
    removed, _, alone = collected(watched)
    invoke("topology", "expect", *node, "--replicas", 0, url=admin)
    _, _, settled = collected(watched)
    invoke("topology", "add-replica", *node, other, url=admin)

    assert (calm, after, settled, accepted.code, shown.code) == ([], [], [], 0, 1)
    assert [each.text.partition(":")[0] for each in asynchronous] == ["cluster-1 is not semi-synchronous any more"]
    assert ("exposed", True, ("cluster-1", str(replicated.socket))) in list(values(status))
    assert "cluster-1 is not semi-synchronous any more" in shown.err
    assert [(each.text.partition(":")[0], each.command) for each in alone] == [
        ("cluster-1 has no replica left", "schemaless topology add-replica --cluster cluster-1 REPLICA_URL")
    ]
    assert ("missing_replicas", 1, ("cluster-1",)) in list(values(removed))


@pytest.mark.once
def test_redundancy_that_a_cluster_never_had_is_a_notice_except_at_a_local_address():
    """A developer's server is never red or yellow for it; what was lost is a fault only if nothing is left."""
    asynchronous = SemiSync(enabled=False, active=False, timeout_s=0, before_visible=True, group=False)
    primary, replicas = Node("primary", "db-1", 3306), (Node("replica", "db-2", 3306), Node("replica", "db-3", 3306))
    remote = Cluster("c", (primary,))

    def severity(cluster: Cluster) -> list[bool]:
        return [text is not None for text in redundancy(cluster, asynchronous)]

    assert severity(remote) == [False, True]
    assert severity(Cluster("c", (Node("primary", "127.0.0.1", 3306),))) == [False, False]
    assert severity(replace(remote, expected_replicas=0)) == [False, False]
    assert severity(replace(remote, expected_replicas=1)) == [True, False]
    assert severity(Cluster("c", (primary, replicas[0]), expected_replicas=2)) == [False, True]
    assert severity(Cluster("c", (primary, *replicas), expected_replicas=2)) == [False, False]
    assert severity(Cluster("c", (primary, *replicas), expected_replicas=2, semi_sync=True)) == [True, False]


class Fault(NamedTuple):
    """A fault.

    Attributes:
        text: what the finding says.
        command: the command that helps, as a pattern.
        metric: the metric that shows it.
        inject: has it for a block, on a primary and of the datastore at a URL.
        probe: whether writes are tried; where they hang, that takes seconds.
    """

    text: str
    command: str
    metric: str
    inject: Callable[[LocalServer, str], AbstractContextManager[Any]]
    probe: bool = True


@contextmanager
def stopped_thread(primary: LocalServer, url: str) -> Iterator[None]:
    """Stop what applies the primary's transactions on its replica."""
    (replica,) = primary.replicas
    sql(replica, f"STOP {word(replica)} SQL_THREAD")
    try:
        yield
    finally:
        sql(replica, f"START {word(replica)} SQL_THREAD")


@contextmanager
def lacking_acknowledgements(primary: LocalServer, url: str) -> Iterator[None]:
    """Make commits wait for more replicas than there are; MySQL notices only at a commit that one has stopped."""
    (replica,) = primary.replicas
    count = "SET GLOBAL rpl_semi_sync_source_wait_for_replica_count="
    mysql = primary.flavour == "mysql"
    begin, end = (f"{count}9", f"{count}1") if mysql else ("STOP SLAVE IO_THREAD", "START SLAVE IO_THREAD")
    with semi_synchronous(primary, replica):
        sql(primary if mysql else replica, begin)
        try:
            yield
        finally:
            sql(primary if mysql else replica, end)


@contextmanager
def idle_transaction(primary: LocalServer, url: str) -> Iterator[None]:
    """Leave a transaction open."""
    with session(primary, "BEGIN", "SELECT COUNT(*) FROM beats.cluster"):
        # MariaDB tells the beginning of a transaction in whole seconds.
        time.sleep(OLD_S + (1.1 if primary.flavour == "mariadb" else 0))
        yield


@contextmanager
def killed_runner(primary: LocalServer, url: str) -> Iterator[None]:
    """Have a job whose only runner was killed: its lease has expired."""
    with schemaless.connect(root_of(url)) as store:
        job_store = JobStore(store)
        job = job_store.create("migrate", {}, {0: 1}, ["cluster-1"], {})
        assert Leases(job_store.catalog, store.name).claim(job.job_id, 0, "killed") is not None
        sql(primary, "UPDATE beats.job_shard SET lease_until=UTC_TIMESTAMP(6) - INTERVAL 1 SECOND")
        try:
            yield
        finally:
            job_store.change_state(job.job_id, ["running"], "cancelled")


def with_free_share(share: float) -> Callable[[LocalServer, str], AbstractContextManager[Any]]:
    """Return a fault: a disk of which this share is free."""

    @contextmanager
    def inject(primary: LocalServer, url: str) -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patched:
            usage = SimpleNamespace(total=10**12, used=round((1 - share) * 10**12), free=round(share * 10**12))
            patched.setattr(shutil, "disk_usage", lambda folder: usage)
            yield

    return inject


ADVISE = "schemaless capacity advise"
SHOW = "schemaless topology show"
FAULTS = {
    "replica thread stopped": Fault("its SQL thread, which applies", SHOW, "replica_running", stopped_thread),
    "no replica answers": Fault("wait for a replica", SHOW, "writes_blocked", lacking_acknowledgements, probe=False),
    "read-only primary": Fault(
        "the primary is read-only", SHOW, "write_failed", lambda primary, url: read_only(primary)
    ),
    "full disk": Fault("the disk is 100 % full (0 B free)", ADVISE, "server_disk_used", with_free_share(0.0)),
    "disk at 80 %": Fault("the disk is 80 % full (200 GB free)", ADVISE, "server_disk_used", with_free_share(0.2)),
    "old transaction": Fault(
        "has had a transaction open", r"\S+admin .* kill \d+", "old_transaction_seconds", idle_transaction
    ),
    "killed runner": Fault(
        "no runner is working on it", r"schemaless migrate run --execute --job \d+", "job_shards", killed_runner
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_red_everywhere_with_the_command_that_helps(invoke, watched, replicated, name):
    """Finding, exit status, page, JSON, and a metric that an alert is about."""
    fault = FAULTS[name]
    with with_free_share(0.9)(replicated, watched):
        healthy, _, none = collected(watched, probe=fault.probe, disk_full_from=0.8)
    with fault.inject(replicated, watched):
        status, _, _ = collected(watched, transactions_older_than_s=OLD_S, probe=fault.probe, disk_full_from=0.8)
        options = ["--fast", "--transactions-older-than", OLD_S / 60, *([] if fault.probe else ["--no-probe"])]
        shown = invoke("status", *options, url=watched)

    assert none == []
    found = [each for each in status.findings if each.severity == "fault" and fault.text in each.text]
    assert found != [], status.findings
    assert all(re.fullmatch(fault.command, each.command) for each in found)
    assert shown.code == 1
    assert any(re.fullmatch(f"    {fault.command}", line) for line in shown.out.splitlines())
    items = status_html(status).split("</li>")
    assert any('<li class="fault">' in item and escape(found[0].command) in item for item in items)
    listed = [(each["severity"], each["command"]) for each in status_json(status)["findings"]]
    assert ("fault", found[0].command) in listed
    before, after = ({(each, labels): value for each, value, labels in values(of)} for of in (healthy, status))
    changed = {each for (each, labels), value in after.items() if before.get((each, labels)) != value}
    assert fault.metric in changed
    assert f"{PREFIX}{fault.metric}" in ALERTS


def test_a_page_shows_faults_within_ten_seconds(watched):
    """Servers and jobs are read, and the page fetched, often enough; so are metrics."""
    (fetched_ms,) = re.findall(r"everyMs = (\d+);", SCRIPT)
    for for_metrics in (False, True):
        with schemaless.connect(watched) as store, closing(Collector(store, for_metrics=for_metrics)) as collector:
            parts = [part for part in collector.parts if part.view.name in ("servers", "jobs")]
            for part in parts:
                part.refresh()

            assert [part.view.every_s <= 5 for part in parts] == [True, True]
            # A reading takes 2 s more if a server does not answer, 3 s if a write hangs.
            assert max(part.view.every_s for part in parts) + int(fetched_ms) / 1000 <= 7
    assert MonitorOptions() == MonitorOptions(True, 600.0, "backup", 0.8)


@pytest.mark.long
@pytest.mark.twice
def test_nothing_is_reported_of_a_healthy_datastore_under_load(watched, replicated, eventually):
    """Writers, a trigger and a migration are at work; what was never measured is all that a monitor mentions."""
    (replica,) = replicated.replicas
    over = threading.Event()

    @schemaless.trigger(column=None, start="beginning")
    def watch(cell: schemaless.Cell, call: schemaless.Call) -> None:
        """Do nothing."""

    with ExitStack() as stack:
        stack.enter_context(semi_synchronous(replicated, replica))
        store = stack.enter_context(schemaless.connect(root_of(watched)))
        texts = [json.dumps({"n": "x" * 3_000, "at": number}).encode() for number in range(200)]
        store.put_stored_cells([NewStoredCell(os.urandom(16), "OLD", 1, text) for text in texts])
        prepare(store, watch)
        timing = Timing(lease_s=1_000, give_up_s=900, renew_s=1, busy_s=0.05, note_s=0.0)
        worker = Worker(internals_of(store).follower_access, [Calls(watch, store)], "one", timing=timing, stop=over)

        def write() -> None:
            while not over.is_set():
                store.put_cell(os.urandom(16), "BASE", 1, {"n": 1})

        def follow() -> None:
            with worker.membership:
                while not over.is_set():
                    worker.membership.renew()
                    worker.turn()
                worker.release_all()

        def reencode() -> None:
            with suppress(JobConflict):  # it is cancelled in the end
                migrate.run(store, spec)

        spec = MigrateSpec("msgpack+zlib", columns=("OLD",), thresholds=Thresholds(max_mb_per_s=0.02))
        threads = stack.enter_context(ThreadPoolExecutor(4))
        works = [threads.submit(work) for work in (write, write, follow, reencode)]
        try:
            reports = []

            def working() -> bool:
                reports.append(collected(watched)[0])
                (trigger,) = reports[-1].followers or (None,)
                running = [job for job in reports[-1].jobs or () if job.state == "running"]
                return bool(running and running[0].cells and trigger.workers)

            eventually(working, "all are at work")
            again, primary, _ = collected(watched)
        finally:
            over.set()
            job_store = JobStore(store)
            for job in job_store.jobs():
                job_store.change_state(job.job_id, ["running"], "cancelled")
            for work in works:
                work.result()
            sql(replicated, "DELETE FROM beats.follower_setting")

    nodes.expect(admin_of(watched), "cluster-1", semi_sync=False)
    for report in (reports[-1], again):
        assert [(each.where, each.text) for each in report.findings] == [("capacity", "was never measured")]
    assert primary.write_problem is None


@pytest.mark.long
@pytest.mark.once
def test_a_primary_whose_disk_is_full_is_red_alive_and_dead(tmp_path, eventually):
    """MySQL may wait for space or end; its disk is named either way, because the monitor saw it before."""
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("a small disk is mounted, which takes root (id -u is not 0) and the program mount")
    small = tmp_path / "small"
    small.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=900m", "none", small]
    if (done := subprocess.run(mount, stderr=subprocess.PIPE, text=True)).returncode != 0:
        pytest.skip(f"a small disk cannot be mounted here: {done.stderr.strip()}")
    try:
        (server,) = up(small / "servers", 1, "mysql", options=RELAXED)
        url = schemaless.create("small", 1, [server.url])
        with schemaless.connect(url, read_timeout_s=2) as store, closing(Collector(store)) as found:
            servers, reports = found.parts[0], []
            servers.refresh()
            assert [each for each in found.status().findings if each.severity == "fault"] == []
            with (small / "filler").open("wb", buffering=0) as file, suppress(OSError):
                while file.write(bytes(1 << 20)):
                    pass
            assert shutil.disk_usage(small).free == 0

            def red(*begins: str) -> bool:
                servers.refresh()
                reports.append([each.text for each in found.status().findings if each.severity == "fault"])
                return any(text.startswith(begins) for text in reports[-1])

            eventually(lambda: red("a test write", "does not answer"), "no write gets through")
            assert any(text.startswith("the disk is 100 % full") for text in reports[-1])
            assert server.pid is not None
            with suppress(ProcessLookupError):
                os.kill(server.pid, signal.SIGKILL)
            eventually(lambda: red("does not answer"), "the server has ended")
            assert any(text.startswith("the disk is 100 % full") for text in reports[-1])
    finally:
        down(small / "servers", delete=True)
        subprocess.run(["umount", small], check=True)
