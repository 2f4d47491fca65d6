"""Faults that are injected into servers: the status names each, with the command that helps."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import make_url

import schemaless
from schemaless.local.description import LocalServer
from schemaless.monitoring.metrics import values
from schemaless.monitoring.status.collector import Collector
from schemaless.monitoring.status.model import Finding, MonitorOptions, NodeView, Status
from schemaless.ops.failover import nodes
from schemaless.ops.failover.semi_sync import SemiSync, redundancy
from schemaless.topology.model import Cluster
from schemaless.wire.node import Node
from tests.accounts import accounts_on, connect
from tests.promotion import semi_synchronous, sql, word

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


def collected(url: str, **options: Any) -> tuple[Status, NodeView, list[Finding]]:
    """Return the status of a datastore, its primary, and the faults."""
    with schemaless.connect(url) as store:
        status = Collector(store, options=MonitorOptions(transactions_older_than_s=OLD_S, **options)).collect()
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
        _, _, found = collected(watched)
        dumping, _, none = collected(watched, backup_account="root")

    assert [f"thread {holder} of root@localhost" in each.text for each in faults] == [True]
    assert "a test write failed" in faults[0].text
    assert faults[0].command.endswith("--verbose processlist")
    assert gauges(status)["write_failed"] == 1
    assert primary.write_problem is not None
    assert [each.command.endswith(f" kill {idle}") for each in found] == [True]
    assert found[0].text.startswith("root@localhost has had a transaction open for ")
    assert none == []
    assert [each.severity for each in dumping.findings if each.command == found[0].command] == ["notice"]
    assert gauges(dumping)["old_transaction_seconds"] == 0


def test_a_write_that_hangs_is_reported_and_no_connections_pile_up_behind_it(watched, replicated, eventually):
    """Semi-synchronous replication without an acknowledgement: the server's state says so, and a second monitor too."""
    (replica,) = replicated.replicas
    stuck = "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE STATE LIKE 'Waiting for semi-sync%'"
    first: list[NodeView] = []

    def hangs() -> bool:
        first[:] = [collected(watched)[1]]
        return first[0].write_problem is not None

    with semi_synchronous(replicated, replica):
        sql(replica, f"STOP {word(replica)} IO_THREAD")
        try:
            eventually(hangs, "a write is due")
            status, again, faults = collected(watched)
            connections = sql(replicated, stuck)[0][0]
        finally:
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
