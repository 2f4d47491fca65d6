"""What Prometheus scrapes: figures of a live datastore, its jobs, replicas and disks, and nothing of its documents."""

from __future__ import annotations

import json
import math
import re
import signal
import urllib.request
from collections.abc import Callable
from dataclasses import replace

import pymysql
import pytest
from prometheus_client.parser import text_string_to_metric_families

import schemaless
from schemaless import NewStoredCell
from schemaless.errors import ServerUnavailable
from schemaless.monitoring.metrics import capacity, servers
from schemaless.monitoring.metrics.exporter import COLLECTORS, OWN, Exporter
from schemaless.monitoring.metrics.metric import Collector, Metric
from schemaless.monitoring.status.capacity import CapacityReader
from schemaless.ops.failover import nodes
from schemaless.ops.migrate import run as migrate
from schemaless.ops.migrate.spec import MigrateSpec
from schemaless.planning.capacity import history
from schemaless.planning.capacity.forecast import Band
from schemaless.planning.capacity.measure import measure
from schemaless.planning.capacity.reporting import make
from schemaless.store.internals import internals_of
from schemaless.ui.pages.capacity_json import report_json
from schemaless.wire.breaker import FAILURES
from schemaless.wire.node import Node
from tests.accounts import accounts_on
from tests.planning.capacity.reports import measurement
from tests.topologies import opened_as

METRICS = [*OWN, *(metric for collector in COLLECTORS for metric in collector.metrics)]
EXPORTED = {metric.exported for metric in METRICS}
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


def once(store: schemaless.Datastore, *collectors: Collector) -> Exporter:
    """Return an exporter whose collectors have each read once."""
    exporter = Exporter(store, collectors)
    exporter.registry.register(exporter)
    for each in collectors:
        next(exporter.read(each))
    return exporter


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
        return set(ready) == {(each.name,) for each in COLLECTORS} and all(ready.values())

    eventually(complete, "each collector has read once")
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
    assert process.wait(30) == 3
    assert "schemaless: stopped; nothing was changed" in process.stderr.read().decode()


@pytest.mark.mysql
def test_lag_of_a_replica_grows_until_it_has_caught_up(replicated, flavour, new_row, eventually):
    """Nothing is written to measure it; a replica that is down is reported, and does not affect the others."""
    word = "SLAVE" if flavour == "mariadb" else "REPLICA"
    replica = replicated.replicas[0]
    with accounts_on([replicated.url], prefix="metrics_") as accounts:
        url = accounts.create("metrics_lag", 1)
        nodes.add_replica(accounts.url("admin", url), "cluster-1", accounts.url("admin", replica.url), timeout_s=30)
        on_replica = pymysql.connect(unix_socket=str(replica.socket), user="root", autocommit=True, ssl_disabled=True)
        with schemaless.connect(url) as store, on_replica, on_replica.cursor() as cursor:
            exporter = Exporter(store)
            exporter.registry.register(exporter)
            reading = exporter.read(servers.SERVERS)

            def lag_s() -> float:
                next(reading)
                return scraped(exporter)["schemaless_replica_lag_seconds"][("cluster-1", str(replica.socket))]

            eventually(lambda: lag_s() == 0, "nothing to wait for")
            cursor.execute(f"STOP {word} SQL_THREAD")
            try:
                store.put_cell(new_row(), "BASE", 1, {})
                assert 0 < lag_s() < lag_s()
            finally:
                cursor.execute(f"START {word} SQL_THREAD")
            eventually(lambda: lag_s() == 0, "all has arrived")

            next(reading)
            both = [("cluster-1", "primary", str(replicated.socket)), ("cluster-1", "replica", str(replica.socket))]
            assert scraped(exporter)["schemaless_server_up"] == dict.fromkeys(both, 1)
            assert scraped(exporter)["schemaless_breaker_open"] == dict.fromkeys(both, 0)


@pytest.mark.mysql
def test_a_breaker_opens_for_a_server_that_does_not_answer(fresh_store, tmp_path):
    """The other cluster's stays closed."""
    up, down = internals_of(fresh_store).topology.clusters
    nobody = Node("primary", socket=str(tmp_path / "nobody.sock"))
    topology = replace(internals_of(fresh_store).topology, clusters=(up, replace(down, nodes=(nobody,))))
    with opened_as(fresh_store, topology) as half:
        read = servers.SERVERS.reading(half)
        found = [{(each.metric, each.labels[0]): each.value for each in read()} for _ in range(FAILURES)]

    assert [each[servers.UP, down.name] for each in found] == [0] * FAILURES
    assert [each[servers.BREAKER, down.name] for each in found] == [0] * (FAILURES - 1) + [1]
    assert [each[servers.BREAKER, up.name] for each in found] == [0] * FAILURES


@pytest.mark.mysql
@pytest.mark.long
def test_days_left_and_sizes_are_those_of_the_report(fresh_store, fresh_url, new_row, accounts, migrate_store):
    """Metrics, status and report have the same days, also after a migration, which the last two report."""
    text = json.dumps({"s": "x" * 900}).encode()
    fresh_store.put_stored_cells([NewStoredCell(new_row(), "BASE", 1, text) for _ in range(100)])
    accounts.allow("measure", fresh_store.name, 4)
    with schemaless.connect(accounts.url("measure", fresh_url)) as store:
        read = capacity.CAPACITY.reading(store)
        assert read() == []
        history.keep(store, measurement(days=40))
        found: dict[str, Samples] = {}
        for sample in read():
            found.setdefault(sample.metric.exported, {})[sample.labels] = sample.value

        assert found["schemaless_disk_bytes"][("cluster-1",)] == 4 << 30
        assert found["schemaless_measured_timestamp_seconds"][()] == measurement().taken_at.timestamp()
        assert found["schemaless_stored_cells"][("cluster-1", "BASE", "legacy")] > 0
        days = found["schemaless_disk_days_left"]
        bounds = [days["cluster-1", bound] for bound in ("low_95", "low_80", "mid", "high_80", "high_95")]
        assert bounds == sorted(bounds)
        assert bounds[0] < bounds[-1]
        report = report_json(make(store))
        assert not any("since the measurement" in warning for warning in report["answer"]["warnings"])

        migrate.run(migrate_store, MigrateSpec("msgpack+zlib"))
        page = CapacityReader(store)()
        later = report_json(make(store))
        assert page is not None
        assert later["scenarios"] == report["scenarios"]
        for outlook in later["scenarios"][0]["disks"]:
            shown_days = {bound: days[outlook["disk"], bound] for bound in Band._fields}
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


@pytest.mark.mysql
@pytest.mark.parametrize(
    ("error", "logged"),
    [
        (ServerUnavailable("it is down", node="db-1"), "metrics of odd: db-1: it is down"),
        (KeyError("unexpected"), "metrics of odd"),
    ],
)
def test_a_collector_that_fails_says_so_and_is_read_again(fresh_store, caplog, error, logged):
    """Its samples are gone, the others stay; the reason is logged once, not with every reading."""
    answers = [True, False, False, True]
    one = Metric("one", "A figure.", ("part",))

    def reading(store: schemaless.Datastore) -> Callable[[], list[object]]:
        def read() -> list[object]:
            if not answers.pop(0):
                raise error
            return [one.at(7, "a")]

        return read

    exporter = Exporter(fresh_store, [])
    exporter.registry.register(exporter)
    steps = exporter.read(Collector("odd", (one,), 1, reading))
    for up in (1, 0, 0, 1):
        next(steps)
        found = scraped(exporter)
        assert found["schemaless_collector_up"] == {("odd",): up}
        assert found.get("schemaless_one", {}) == ({("a",): 7} if up else {})
    assert [record.message for record in caplog.records] == [logged]


@pytest.mark.mysql
def test_an_exporter_reads_by_itself_and_stops(fresh_store, eventually):
    """Its threads end with its block."""
    with Exporter(fresh_store) as exporter:
        eventually(
            lambda: len(scraped(exporter).get("schemaless_collector_up", {})) == len(COLLECTORS), "all have read"
        )
    # Not at once where a reader is in the middle of something, and the machine busy.
    eventually(lambda: not any(thread.is_alive() for thread in exporter._threads), "all have ended")


@pytest.mark.once
@pytest.mark.parametrize("address", ["9464", ":9464", "127.0.0.1:", "127.0.0.1:x", "127.0.0.1:70000"])
def test_an_address_that_is_none_is_refused(invoke, address):
    """It has to say on which of the machine's addresses: nothing asks for a password there."""
    result = invoke("metrics", "--listen", address, url="mysql://u@nowhere.invalid/x")

    assert (result.code, "--listen takes HOST:PORT" in result.err) == (2, True)


@pytest.mark.once
def test_labels_name_no_cell():
    """Each is one of a few words; names are Prometheus's, counters end in _total, and none stands there twice."""
    labels = {label for metric in METRICS for label in metric.labels}

    assert labels <= {
        "bound", "cluster", "codec", "collector", "column", "disk", "export", "index", "job", "kind", "number",
        "reason", "role", "server", "shard", "state", "trigger",
    }  # fmt: skip
    assert len(EXPORTED) == len(METRICS)
    assert all(re.fullmatch(r"schemaless_[a-z][a-z0-9_]*", name) for name in EXPORTED)
