"""What Prometheus scrapes: figures of a live datastore, its jobs, replicas and disks, and nothing of its documents."""

from __future__ import annotations

import json
import math
import re
import signal
import threading
import urllib.request
from contextlib import ExitStack
from dataclasses import replace

import pymysql
import pytest
from prometheus_client.parser import text_string_to_metric_families

import schemaless
from schemaless import NewStoredCell
from schemaless.errors import ServerUnavailable
from schemaless.monitoring.metrics import METRICS, PREFIX, Exporter, values
from schemaless.monitoring.status.capacity import CapacityReader
from schemaless.monitoring.status.jobs import JobReader
from schemaless.monitoring.status.model import ColdView
from schemaless.ops.failover import nodes
from schemaless.ops.migrate import run as migrate
from schemaless.ops.migrate.spec import MigrateSpec
from schemaless.planning.capacity import history
from schemaless.planning.capacity.forecast import Band
from schemaless.planning.capacity.measure import measure
from schemaless.planning.capacity.reporting import make
from schemaless.store.internals import internals_of
from schemaless.testing.servers import private_servers
from schemaless.ui.pages.capacity_json import report_json
from schemaless.wire.breaker import FAILURES
from schemaless.wire.node import Node
from tests.accounts import accounts_on
from tests.monitoring.status.statuses import status
from tests.planning.capacity.reports import measurement
from tests.promotion import sql
from tests.topologies import opened_as

EXPORTED = {PREFIX + name for name in METRICS}
PARTS = {("servers",), ("jobs",), ("followers",), ("shards",), ("capacity",), ("cold",), ("exports",)}
SECRET = "the-document-says-this"

Samples = dict[tuple[str, ...], float]


def samples(text: str) -> dict[str, Samples]:
    """Return what was scraped: values by metric and labels, in the order of their names, ``datastore`` left out."""
    found: dict[str, Samples] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = dict(sample.labels)
            labels.pop("datastore")
            found.setdefault(sample.name, {})[tuple(labels[name] for name in sorted(labels))] = sample.value
    return found


def scraped(exporter: Exporter) -> dict[str, Samples]:
    """Scrape as Prometheus does, through HTTP."""
    with exporter.serve("127.0.0.1", 0) as port, urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as reply:
        return samples(reply.read().decode())


@pytest.fixture
def exporter_of():
    """Returns an exporter of a datastore that reads only when the test has it read; closes it afterwards."""
    with ExitStack() as stack:

        def make(store: schemaless.Datastore) -> Exporter:
            exporter = Exporter(store)
            exporter.registry.register(exporter)
            stack.callback(exporter.collector.close)
            return exporter

        yield make


def read(exporter: Exporter, name: str) -> None:
    """Read one part of the status."""
    (part,) = (each for each in exporter.collector.parts if each.view.name == name)
    part.refresh()


@pytest.mark.long
@pytest.mark.mysql
def test_a_migration_is_followed_by_its_metrics(invoke, start, eventually, fresh_store, migrate_url, accounts, new_row):
    """The command serves them until Ctrl-C; labels hold nothing of a cell, and each name that is exported is listed."""
    row = new_row()
    fresh_store.put_cell(row, "BASE", 1, {"said": SECRET}, codec="json+none")
    accounts.allow("measure", fresh_store.name, 4)
    assert invoke("migrate", "run", "--execute", url=migrate_url).code == 0
    process = start(
        "metrics", "--listen", "127.0.0.1:0", url=accounts.url("measure", accounts.servers[0], fresh_store.name)
    )
    said = process.stderr.readline().decode()
    (port,) = re.findall(r"http://127\.0\.0\.1:(\d+)/metrics", said)
    texts: list[str] = []

    def complete() -> bool:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as reply:
            texts.append(reply.read().decode())
        ready = samples(texts[-1]).get("schemaless_collector_up", {})
        return set(ready) == PARTS and all(ready.values())

    eventually(complete, "each part has been read once")
    found = samples(texts[-1])
    shard = fresh_store.shard_of(row)
    cluster = internals_of(fresh_store).topology.cluster_of(shard).name
    assert found["schemaless_job_cells_total"] == {("1", "migrate"): 1}
    assert found["schemaless_job_state"] == {("1", "migrate", "done"): 1}
    assert found["schemaless_job_shards"][("1", "migrate", "done")] == 4
    assert found["schemaless_job_fraction"] == {("1", "migrate"): 1}
    assert found["schemaless_feed_end_location"][(cluster, str(shard))] == 1
    assert set(found["schemaless_server_up"].values()) == {1}
    assert found["schemaless_shards"] == {(): 4}
    assert set(found) <= EXPORTED
    for forbidden in (SECRET, str(row), row.hex, "password"):
        assert forbidden not in texts[-1]

    process.send_signal(signal.SIGINT)
    assert process.wait(120) == 3
    assert "schemaless: stopped; nothing was changed" in process.stderr.read().decode()


@pytest.mark.long
@pytest.mark.mysql
def test_lag_of_a_replica_grows_until_it_has_caught_up(replicated, flavour, new_row, eventually, exporter_of):
    """Nothing is written to measure it; a replica that is down is reported, and does not affect the others."""
    word = "SLAVE" if flavour == "mariadb" else "REPLICA"
    replica = replicated.replicas[0]
    with accounts_on([replicated.url], prefix="metrics_") as accounts:
        url = accounts.create("metrics_lag", 1)
        nodes.add_replica(accounts.url("admin", url), "cluster-1", accounts.url("admin", replica.url), timeout_s=30)
        on_replica = pymysql.connect(unix_socket=str(replica.socket), user="root", autocommit=True, ssl_disabled=True)
        with schemaless.connect(url) as store, on_replica, on_replica.cursor() as cursor:
            exporter = exporter_of(store)

            def lag_s() -> float:
                read(exporter, "servers")
                return scraped(exporter)["schemaless_replica_lag_seconds"][("cluster-1", str(replica.socket))]

            eventually(lambda: lag_s() == 0, "nothing to wait for")
            cursor.execute(f"STOP {word} SQL_THREAD")
            try:
                store.put_cell(new_row(), "BASE", 1, {})
                assert 0 < lag_s() < lag_s()
            finally:
                cursor.execute(f"START {word} SQL_THREAD")
            eventually(lambda: lag_s() == 0, "all has arrived")

            read(exporter, "servers")
            both = [("cluster-1", "primary", str(replicated.socket)), ("cluster-1", "replica", str(replica.socket))]
            assert scraped(exporter)["schemaless_server_up"] == dict.fromkeys(both, 1)
            assert scraped(exporter)["schemaless_breaker_open"] == dict.fromkeys(both, 0)


@pytest.mark.long
@pytest.mark.once
@pytest.mark.mysql
def test_lag_without_gtids_is_that_of_the_heartbeat(eventually, exporter_of):
    """The row that a monitor writes on the primary shows how far the replica is; MariaDB always has GTIDs."""
    with private_servers("mysql", 1, replicas=1) as (primary,):
        (replica,) = primary.replicas
        (where,) = sql(primary, "SHOW BINARY LOG STATUS")
        source = f"SOURCE_AUTO_POSITION=0, SOURCE_LOG_FILE='{where[0]}', SOURCE_LOG_POS={where[1]}"
        sql(replica, "STOP REPLICA", f"CHANGE REPLICATION SOURCE TO {source}", "START REPLICA")
        for mode in ("ON_PERMISSIVE", "OFF_PERMISSIVE", "OFF"):
            for server in (replica, primary):
                sql(server, f"SET GLOBAL gtid_mode={mode}")
        url = schemaless.create("without_gtids", 1, [primary.url])
        nodes.add_replica(url, "cluster-1", replica.url, timeout_s=30)
        with schemaless.connect(url) as store:
            exporter = exporter_of(store)

            def lag_s() -> float | None:
                read(exporter, "servers")
                found = scraped(exporter).get("schemaless_replica_lag_seconds", {})
                return found.get(("cluster-1", str(replica.socket)))

            eventually(lambda: lag_s() == 0, "the heartbeat has arrived")
            sql(replica, "STOP REPLICA SQL_THREAD")
            eventually(lambda: (lag_s() or 0) > 0, "a heartbeat that has not")
            sql(replica, "START REPLICA SQL_THREAD")
            eventually(lambda: lag_s() == 0, "all has arrived")


@pytest.mark.mysql
def test_a_breaker_opens_for_a_server_that_does_not_answer(fresh_store, tmp_path, exporter_of, monkeypatch):
    """The other cluster's stays closed."""
    up, down = internals_of(fresh_store).topology.clusters
    nobody = Node("primary", socket=str(tmp_path / "nobody.sock"))
    topology = replace(internals_of(fresh_store).topology, clusters=(up, replace(down, nodes=(nobody,))))
    with opened_as(fresh_store, topology) as half:
        # The catalog does not list the server that does not answer.
        monkeypatch.setattr(type(internals_of(half).shards.router), "again", lambda *_: None)
        exporter, found = exporter_of(half), []
        for _ in range(FAILURES):
            read(exporter, "servers")
            found.append(scraped(exporter))

    last, other = (down.name, "primary", str(nobody)), (up.name, "primary", str(up.primary))
    assert [each["schemaless_server_up"][last] for each in found] == [0] * FAILURES
    assert [each["schemaless_breaker_open"][last] for each in found] == [0] * (FAILURES - 1) + [1]
    assert [each["schemaless_breaker_open"][other] for each in found] == [0] * FAILURES


@pytest.mark.mysql
@pytest.mark.long
def test_days_left_and_sizes_are_those_of_the_report(
    fresh_store, fresh_url, new_row, accounts, migrate_store, exporter_of
):
    """Metrics, status and report have the same days, also after a migration, which the last two report."""
    text = json.dumps({"s": "x" * 900}).encode()
    fresh_store.put_stored_cells([NewStoredCell(new_row(), "BASE", 1, text) for _ in range(100)])
    accounts.allow("measure", fresh_store.name, 4)
    with schemaless.connect(accounts.url("measure", fresh_url)) as store:
        exporter = exporter_of(store)
        read(exporter, "capacity")
        assert "schemaless_stored_cells" not in scraped(exporter)
        history.keep(store, measurement(days=40))
        read(exporter, "capacity")
        found = scraped(exporter)

        assert found["schemaless_disk_bytes"][("cluster-1",)] == 4 << 30
        assert found["schemaless_measured_timestamp_seconds"][()] == measurement().taken_at.timestamp()
        assert found["schemaless_stored_cells"][("cluster-1", "legacy", "BASE")] > 0
        days = found["schemaless_disk_days_left"]
        bounds = [days[bound, "cluster-1"] for bound in ("low_95", "low_80", "mid", "high_80", "high_95")]
        assert bounds == sorted(bounds)
        assert bounds[0] < bounds[-1]
        report = report_json(make({"": store}))
        assert not any("since the measurement" in warning for warning in report["answer"]["warnings"])

        migrate.run(migrate_store, MigrateSpec("msgpack+zlib"))
        page = CapacityReader(store)()
        later = report_json(make({"": store}))
        assert page is not None
        assert later["scenarios"] == report["scenarios"]
        for outlook in later["scenarios"][0]["disks"]:
            shown_days = {bound: days[bound, outlook["disk"]] for bound in Band._fields}
            assert shown_days == {
                bound: math.inf if each is None else each for bound, each in outlook["days_until_full"].items()
            }
            (shown,) = (disk for disk in page.disks if disk.name == outlook["disk"])
            assert shown.days == outlook["days_until_full"]["mid"]
            assert shown.days_text == f"{shown.days:,} days"
        assert page.changes == ("migration 1 has changed cells",)
        assert later["answer"]["warnings"][0].startswith("migration 1 has changed cells since the measurement")
        assert "'schemaless capacity measure'" in later["answer"]["warnings"][0]
        history.keep(store, measure(store, trials=False))
        assert CapacityReader(store)().changes == ()


@pytest.mark.long
@pytest.mark.mysql
@pytest.mark.parametrize(
    ("error", "logged"),
    [
        (ServerUnavailable("it is down", node="db-1"), ["metrics of jobs: db-1: it is down"]),
        (KeyError(SECRET), ["status: cannot read jobs", "metrics of jobs: unexpected KeyError; the log"]),
    ],
)
def test_a_part_that_fails_says_so_and_is_read_again(
    fresh_store, migrate_store, caplog, error, logged, exporter_of, monkeypatch
):
    """Its samples are gone, the others stay; the reason is logged once, not with every reading."""
    migrate.run(migrate_store, MigrateSpec())
    answers = [True, False, False, True]
    jobs = JobReader.__call__

    def failing(reader: JobReader) -> object:
        if not answers.pop(0):
            raise error
        return jobs(reader)

    monkeypatch.setattr(JobReader, "__call__", failing)
    exporter = exporter_of(fresh_store)
    read(exporter, "servers")
    for up in (1, 0, 0, 1):
        read(exporter, "jobs")
        found = scraped(exporter)
        assert found["schemaless_collector_up"] == {("servers",): 1, ("jobs",): up}
        assert found.get("schemaless_job_state", {}) == ({("1", "migrate", "done"): 1} if up else {})
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == len(logged)
    assert all(message.startswith(begin) for message, begin in zip(messages, logged, strict=True))
    assert SECRET not in "".join(messages)


@pytest.mark.mysql
def test_an_exporter_reads_by_itself_and_stops(fresh_store, eventually):
    """Its threads end with its block."""
    with Exporter(fresh_store) as exporter:
        eventually(lambda: set(scraped(exporter).get("schemaless_collector_up", {})) == PARTS, "all have read")
    # Not at once where a reader is in the middle of something, and the machine busy.
    eventually(lambda: not any(thread.name.startswith("status ") for thread in threading.enumerate()), "all have ended")


@pytest.mark.once
@pytest.mark.parametrize("address", ["9464", ":9464", "127.0.0.1:", "127.0.0.1:x", "127.0.0.1:70000"])
def test_an_address_that_is_none_is_refused(invoke, address):
    """It has to say on which of the machine's addresses: nothing asks for a password there."""
    result = invoke("metrics", "--listen", address, url="mysql://u@nowhere.invalid/x")

    assert (result.code, "--listen takes HOST:PORT" in result.err) == (2, True)


@pytest.mark.once
def test_cold_files_have_values_of_each_cluster():
    """Live files, their size, and the files that an erasure has yet to rewrite."""
    views = ColdView("cluster-1", 40, 10**9, 2, 12), ColdView("cluster-2", 9, 10**8)
    found = {(name, *labels): value for name, value, labels in values(status(cold=views)) if "cold" in name}

    assert found == {
        ("cold_files", "cluster-1"): 40,
        ("cold_bytes", "cluster-1"): 10**9,
        ("cold_waiting_files", "cluster-1"): 2,
        ("cold_files", "cluster-2"): 9,
        ("cold_bytes", "cluster-2"): 10**8,
        ("cold_waiting_files", "cluster-2"): 0,
    }


@pytest.mark.once
def test_labels_name_no_cell():
    """Each is one of a few words; names are Prometheus's, counters end in _total, and none stands there twice."""
    labels = {label for metric in METRICS.values() for label in metric.labels}

    assert labels <= {
        "bound", "cluster", "codec", "collector", "column", "disk", "export", "index", "job", "kind", "number",
        "reason", "role", "server", "shard", "state", "trigger",
    }  # fmt: skip
    assert len(EXPORTED) == len(METRICS)
    assert all(re.fullmatch(r"schemaless_[a-z][a-z0-9_]*", name) for name in EXPORTED)
