"""The ``topology`` commands, and those that ``local up --replicas`` prints."""

from __future__ import annotations

import re
import shlex
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from types import SimpleNamespace

import pytest

import schemaless
from schemaless.local import replication
from schemaless.local.description import LocalServer
from schemaless.monitoring.metrics import values
from schemaless.monitoring.status.collector import Collector
from schemaless.ops.failover import nodes, semi_sync
from schemaless.ops.failover.states import node_states
from schemaless.store.internals import internals_of
from schemaless.topology.sql.replicas import SELECT_HAS_THREADS, SELECT_THREADS
from schemaless.wire.connection import Connection
from tests.accounts import Accounts, accounts_on
from tests.promotion import caught_up, semi_synchronous, sql, word

pytestmark = pytest.mark.mysql


def test_topology_from_add_to_set_primary(invoke, flavour, replicated, tmp_path):
    """One cluster from start to end: a replica is added and removed, and the primary gets another address."""
    name = f"story_{flavour}"
    url = schemaless.create(name, 2, [replicated.url])
    (replica,) = replicated.replicas
    added = invoke("topology", "add-replica", "--cluster", "cluster-1", replica.url, url=url)
    again = invoke("topology", "add-replica", "--cluster", "cluster-1", replica.url, "--json", url=url)
    shown = invoke("topology", "show", url=url)
    data = invoke("topology", "show", "--json", url=url)

    assert (added.code, shown.code) == (0, 0)
    assert re.fullmatch(rf"{replica.socket} added to cluster-1; a transaction took [\d,]+ ms to arrive\n", added.out)
    assert added.err == "connected programs follow this change within 38 s while in use\n"
    assert (again.json["changed"], list(again.json["arrived_ms"])) == (False, [str(replica.socket)])
    assert [line.split()[:3] for line in shown.out.splitlines()[1:]] == [
        ["cluster-1", role, server.socket.stem[:7]] for role, server in (("primary", replicated), ("replica", replica))
    ]
    (cluster,) = data.json["clusters"]
    assert [node["address"] for node in cluster["nodes"]] == [str(replicated.socket), str(replica.socket)]
    assert (cluster["name"], cluster["shards"]) == ("cluster-1", 2)
    assert [(node["role"], node["read_only"], node["fault"]) for node in cluster["nodes"]] == [
        ("primary", False, None),
        ("replica", True, None),
    ]

    watched = [invoke("topology", "watch", url=url), invoke("topology", "watch", "--once", "--json", url=url)]

    assert [result.code for result in watched] == [1, 1]
    assert watched[0].out.count(f"cluster-1: {replicated.socket} is in no group") == 1
    assert "there is nothing to watch" in watched[0].err
    assert [watched[1].json[name] for name in ("cluster", "finding", "adoption")] == ["cluster-1", "no group", None]

    link = tmp_path / "renamed.sock"
    link.symlink_to(replicated.socket)
    renamed = invoke("topology", "set-primary", "--cluster", "cluster-1", f"mysql://root@/?unix_socket={link}", url=url)
    removed = invoke("topology", "remove-replica", "--cluster", "cluster-1", replica.url, "--json", url=url)

    assert (renamed.code, renamed.out) == (0, f"{link} is the primary of cluster-1\n")
    assert "replication is not semi-synchronous: a failover loses cells" in renamed.err
    assert f"export SCHEMALESS_URL='mysql://root@/{name}?unix_socket={link}'" in renamed.err
    assert [node["address"] for node in removed.json["removed"]] == [str(replica.socket)]
    assert [node["role"] for node in removed.json["cluster"]["nodes"]] == ["primary"]

    link.unlink()
    gone = invoke("topology", "show", url=url)
    assert gone.code == 1
    assert f"cluster-1, primary renamed: {link}: " in gone.err


def test_topology_refusals_exit_with_one_line(invoke, replicated, flavour, server_urls):
    """An unrelated server exits with 1 and a wrong argument with 2, without output on standard output."""
    url = schemaless.create(f"refused_{flavour}", 1, [replicated.url])
    add = ("topology", "add-replica", "--cluster")
    stranger = invoke(*add, "cluster-1", server_urls[0], "--timeout", "0.1", url=url)
    unknown = invoke(*add, "cluster-2", server_urls[0], url=url)

    assert (stranger.code, stranger.out) == (1, "")
    assert "did not arrive" in stranger.err
    assert (unknown.code, unknown.out) == (2, "")
    assert "its clusters are cluster-1" in unknown.err


@pytest.mark.long
def test_commands_that_local_up_prints_register_the_replicas(invoke, replicated, monkeypatch):
    """The last lines that ``local up`` prints can be run unchanged, one after the other."""
    # Other tests have created datastores.
    monkeypatch.setattr("schemaless.local.sql.SELECT_ANY_SHARD", b"SELECT 1 FROM DUAL WHERE 1 = 0")
    folder = replicated.folder.parent
    up = invoke("local", "up", "--servers", 1, "--flavour", replicated.flavour, "--folder", folder)
    lines = [shlex.split(line) for line in up.out.replace("\\\n", "").splitlines()[-2:]]
    results = [invoke(*line[1:]) for line in lines]

    assert [line[:3] for line in lines] == [["schemaless", "create", "demo"], ["schemaless", "topology", "add-replica"]]
    assert [result.code for result in results] == [0, 0], [result.err for result in results]
    with schemaless.connect(results[0].out.strip()) as store:
        assert [str(node) for node in internals_of(store).topology.clusters[0].replicas] == [
            str(replicated.replicas[0].socket)
        ]


@pytest.fixture(scope="module")
def waits(replicated: LocalServer) -> Iterator[Accounts]:
    """Accounts for the datastore ``waits``, whose only cluster has a replica."""
    with accounts_on([replicated.url], prefix="waits_") as made:
        url = made.create("waits", 1)
        made.allow("measure", "waits", 1)
        nodes.add_replica(made.url("admin", url), "cluster-1", made.url("admin", replicated.replicas[0].url))
        yield made


def figures(url: str) -> dict[str, float]:
    """Return the exporter's figures about replication."""
    with schemaless.connect(url) as store:
        found = list(values(Collector(store).collect()))
    wanted = "writes_blocked", "replica_running"
    return {name: value for name, value, _ in found if name in wanted and value is not None}


@pytest.mark.long
def test_writes_that_wait_for_a_stopped_replica_are_reported(invoke, waits, replicated, eventually, monkeypatch):
    """``topology show``, ``status``, metrics and a change of servers say so; a healthy semi-synchronous pair is green.

    MySQL counts a stopped replica as connected until the primary sends something; the waiting commit still shows.
    """
    monkeypatch.setattr(semi_sync, "STALLED_S", 0.2)
    (replica,) = replicated.replicas
    url = waits.url("measure", replicated.url, "waits")
    admin = waits.url("admin", replicated.url, "waits")
    add = ("topology", "add-replica", "--cluster", "cluster-1", "--timeout", "0.1", waits.url("admin", replica.url))

    def waiting() -> bool:
        return sql(replicated, "SHOW GLOBAL STATUS LIKE 'Rpl_semi_sync_%_wait_sessions'")[0][1] != "0"

    with semi_synchronous(replicated, replica):
        green = invoke("topology", "show", url=url)
        calm = invoke("status", "--json", "--disk-full-from", 100, url=url).json["findings"]
        before = figures(url)
        sql(replica, f"STOP {word(replica)} IO_THREAD")
        thread = threading.Thread(target=sql, args=(replicated, "CREATE TABLE waits_0000.written (id INT)"))
        thread.start()
        eventually(waiting, "a commit waits")
        shown = invoke("topology", "show", url=url)
        found = invoke("status", "--json", url=url)
        after = figures(url)
        refused = invoke(*add, url=admin)
        sql(replica, f"START {word(replica)} IO_THREAD")
        thread.join(120)
    sql(replicated, "DROP TABLE waits_0000.written")
    without = invoke("topology", "show", url=url)
    expected = invoke("topology", "expect", "--cluster", "cluster-1", "--no-semi-sync", url=admin)

    assert without.code == 1
    assert "cluster-1 is not semi-synchronous any more" in without.err
    assert expected.code == 0
    assert (green.code, green.err) == (0, "")
    assert [each for each in calm if each["severity"] == "fault"] == []
    assert before == {"writes_blocked": 0, "replica_running": 1}
    assert shown.code == found.code == refused.code == 1
    assert "cluster-1, primary" in shown.err
    assert "writes on cluster-1 wait for a replica" in shown.err
    assert "its IO thread, which receives transactions, is stopped" in shown.err
    assert re.search(r"primary .* innodb +wait ", shown.out)
    faults = [each["text"] for each in found.json["findings"] if each["severity"] == "fault"]
    assert [text.split(":")[0] for text in faults] == [
        "writes on cluster-1 wait for a replica",
        "its IO thread, which receives transactions, is stopped",
    ]
    assert after == {"writes_blocked": 1, "replica_running": 0}
    assert "writes on cluster-1 wait for a replica" in refused.err


def test_replication_that_is_broken_or_cannot_be_read_is_reported(invoke, waits, replicated):
    """A stopped applier is a fault; a missing privilege is a warning with the GRANT, not the absence of a fault."""
    (replica,) = replicated.replicas
    url = waits.url("app", replicated.url, "waits")
    measure = waits.url("measure", replicated.url, "waits")
    unread = invoke("topology", "show", url=url)
    absent = figures(url)
    sql(replica, f"STOP {word(replica)} SQL_THREAD")
    try:
        stopped = invoke("topology", "show", url=measure)
    finally:
        sql(replica, f"START {word(replica)} SQL_THREAD")

    privilege = "SLAVE MONITOR" if replicated.flavour == "mariadb" else "SELECT"
    assert unread.code == 0
    assert f"unknown whether it replicates; run on that server: GRANT {privilege} ON " in unread.err
    assert absent == {"writes_blocked": 0}
    assert stopped.code == 1
    assert "its SQL thread, which applies transactions, is stopped" in stopped.err


@contextmanager
def following(replica: LocalServer, port: int) -> Iterator[None]:
    """Have a replica connect to another port of 127.0.0.1 for the block, and then to its primary again."""
    mariadb = replica.flavour == "mariadb"
    source = "MASTER TO MASTER" if mariadb else "REPLICATION SOURCE TO SOURCE"
    before = sql(replica, f"SHOW {word(replica)} STATUS")[0][3]
    stop, start = (f"{what} {word(replica)}" for what in ("STOP", "START"))
    sql(replica, stop, f"CHANGE {source}_PORT={port}", start)
    try:
        yield
    finally:
        sql(replica, stop, f"CHANGE {source}_PORT={before}", start)


def test_a_replica_that_is_just_connecting_is_no_fault(invoke, waits, replicated, eventually):
    """It becomes one with the first attempt that fails, which the server remembers until one succeeds."""
    (replica,) = replicated.replicas
    url = waits.url("measure", replicated.url, "waits")

    def shown(text: str) -> Callable[[], bool]:
        return lambda: text in invoke("topology", "show", url=url).err

    with socket.create_server(("127.0.0.1", 0)) as silent, following(replica, silent.getsockname()[1]):
        with closing(silent.accept()[0]):
            connecting = invoke("topology", "show", url=url)
            notices = invoke("status", "--json", "--disk-full-from", 100, url=url).json["findings"]
            local = replication.fault(replica)
            metrics = figures(url)
            silent.close()
        eventually(shown("is connecting (error 20"), "the attempt has failed")
        failed = invoke("topology", "show", url=url)
        broken = replication.fault(replica)
    with caught_up(replicated):
        assert invoke("topology", "show", url=url).code == 0

    text = "its IO thread, which receives transactions, is connecting to its primary; no attempt has failed"
    assert (connecting.code, local) == (0, None)
    assert text in connecting.err
    assert [each["severity"] for each in notices if text in each["text"]] == ["notice"]
    assert [each for each in notices if each["severity"] == "fault"] == []
    assert metrics["replica_running"] == 0
    assert failed.code == 1
    assert broken is not None


def test_semi_synchronous_replicas_that_connect_again_are_no_fault(waits, replicated, eventually, monkeypatch):
    """The look at a primary without connected replicas waits a second for them, as for commits."""
    (replica,) = replicated.replicas
    url, connected = waits.url("admin", replicated.url, "waits"), "SHOW GLOBAL STATUS LIKE 'Rpl_semi_sync_%_clients'"
    begun = []

    def pause(seconds: float) -> None:
        if not begun:
            begun.append(sql(replica, f"START {word(replica)} IO_THREAD"))
        time.sleep(seconds)

    with semi_synchronous(replicated, replica):
        sql(replica, f"STOP {word(replica)} IO_THREAD")
        for thread, *_ in [row for row in sql(replicated, "SHOW PROCESSLIST") if str(row[4]).startswith("Binlog Dump")]:
            sql(replicated, f"KILL {thread}")
        eventually(lambda: sql(replicated, connected)[0][1] == "0", "the replica is gone")
        monkeypatch.setattr(semi_sync, "STALLED_S", 120)
        monkeypatch.setattr(semi_sync, "time", SimpleNamespace(monotonic=time.monotonic, sleep=pause))
        _, states = node_states(url)
        monkeypatch.undo()
        sql(replica, f"START {word(replica)} IO_THREAD")

    assert states[0].semi_sync.connected == 1
    assert states[0].fault is None


def test_a_reader_on_shared_storage_is_no_fault(invoke, waits, replicated, monkeypatch):
    """An Aurora reader has no replication channels and ``innodb_read_only``; these rows are made up."""
    if replicated.flavour != "mysql":
        pytest.skip("Aurora is compatible with MySQL; runs with SERVER=mysql")
    made_up, rows = {SELECT_THREADS: (), SELECT_HAS_THREADS: ((1, 1),)}, Connection.rows
    monkeypatch.setattr(Connection, "rows", lambda self, sql: made_up[sql] if sql in made_up else rows(self, sql))
    url = waits.url("measure", replicated.url, "waits")
    shown = invoke("topology", "show", url=url)

    assert (shown.code, figures(url)) == (0, {"writes_blocked": 0})
    assert "it has no replication threads; its storage is shared" in shown.err
