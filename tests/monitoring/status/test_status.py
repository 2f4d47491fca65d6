"""``schemaless status`` of live datastores: in the terminal, as JSON, and as a page with nothing secret on it."""

from __future__ import annotations

import json
import re
import signal
import urllib.error
import urllib.request
from dataclasses import replace
from datetime import timedelta

import pytest

import schemaless
from schemaless.cell import NewStoredCell
from schemaless.errors import InvalidInput
from schemaless.monitoring.status.collector import Collector
from schemaless.monitoring.status.followers import FollowerReader, ShardReader, follower_views
from schemaless.monitoring.status.history import History
from schemaless.monitoring.status.jobs import JobReader
from schemaless.monitoring.status.model import JobView, MonitorOptions, Point
from schemaless.monitoring.status.serve import address
from schemaless.ops.admin.indexes import indexes_of
from schemaless.store.followers.settings import Settings
from schemaless.store.followers.sql import delete_worker, renew_worker, stop
from schemaless.store.indexes.definition import define
from schemaless.store.internals import internals_of
from tests.accounts import Accounts
from tests.monitoring.status.statuses import CAPACITY, NOW, PRIMARY, REPLICA, cluster

SECRET = "the-document-says-this"
TOKEN = "a-token-for-the-tests"


@pytest.fixture
def measured_url(invoke, fresh_store, migrate_url, admin_url, accounts: Accounts, row) -> str:
    """A migrated and measured datastore with an index that no worker fills, for the role ``measure``."""
    body = json.dumps({"said": SECRET, "n": 1}).encode()
    fresh_store.put_stored_cells([NewStoredCell(row, "BASE", 1, body)])
    assert invoke("migrate", "run", "--execute", url=migrate_url).code == 0
    with schemaless.connect(admin_url) as store:
        indexes_of(store).create(define("by_n", "BASE.said:text(40)", ["BASE.n:int"]))
    accounts.allow("measure", fresh_store.name, 4)
    url = accounts.url("measure", accounts.servers[0], fresh_store.name)
    disks = [f"--disk=cluster-{number}=4GB:1GB" for number in (1, 2)]
    assert invoke("capacity", "measure", *disks, url=url).code == 0
    return url


@pytest.mark.mysql
def test_status_shows_every_part_and_no_document(invoke, measured_url, row, accounts):
    """Servers, the migration, the index, and the disks; a fault is exit 1."""
    disks = ("--disk-full-from", 100)
    shown = invoke("status", *disks, url=measured_url)
    found = invoke("status", "--json", *disks, url=measured_url)

    assert shown.code == found.code == 1
    (job,) = found.json["jobs"]
    assert (job["name"], job["state"], job["fraction"], job["shards_done"]) == ("migration", "done", 1, 4)
    nodes = [node for cluster in found.json["clusters"] for node in cluster["nodes"]]
    assert [(node["role"], node["up"], node["breaker_open"]) for node in nodes] == [("primary", True, False)] * 2
    assert [cluster["shards"] for cluster in found.json["clusters"]] == [2, 2]
    (index,) = found.json["followers"]
    assert (index["name"], index["state"], index["workers"]) == ("by_n", "backfilling", 0)
    assert index["ids_behind"] == 1
    assert [disk["disk_bytes"] for disk in found.json["capacity"]["disks"]] == [4 * 10**9] * 2
    assert [(each["where"], each["command"]) for each in found.json["findings"] if each["severity"] == "fault"] == [
        ("index by_n", "schemaless index run")
    ]
    assert [part["problem"] for part in found.json["parts"]] == [None] * 6
    assert "schemaless index run" in shown.out
    fast = invoke("status", "--fast", "--json", url=measured_url).json["capacity"]
    assert fast["disks"][0]["free_bytes"] == 10**9
    assert (fast["answer"], fast["problem"]) == ("unknown", "There is no forecast with --fast.")
    for heading in ("Servers", "Jobs", "Triggers, indexes and exports", "Space"):
        assert heading in shown.out
    for forbidden in (SECRET, str(row), row.hex):
        assert forbidden not in shown.out + found.out


def refusal(request: str | urllib.request.Request) -> int:
    """Return the status of an answer that is an error."""
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(request)
    with refused.value:
        return refused.value.code


@pytest.mark.mysql
def test_page_with_a_token_has_nothing_secret_and_refuses_others(start, measured_url, row, monkeypatch):
    """The cookie of the first request is enough; a wrong token is not, nor is none."""
    monkeypatch.setenv("SCHEMALESS_STATUS_TOKEN", TOKEN)
    process = start("status", "--listen", "0.0.0.0:0", "--remote", url=measured_url)
    said = process.stderr.readline().decode()
    port, query = re.findall(r"http://0\.0\.0\.0:(\d+)/(\S+), until Ctrl-C", said)[0]
    opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
    with opener.open(f"http://127.0.0.1:{port}/{query}") as reply:
        first, headers = reply.read().decode(), reply.headers
    with opener.open(f"http://127.0.0.1:{port}/status.json") as reply:
        data = reply.read().decode()

    assert query == f"?token={TOKEN}"
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    assert headers["Cache-Control"] == "no-store"
    assert json.loads(data)["shards"] == 4
    for forbidden in (SECRET, str(row), row.hex, TOKEN, "password"):
        assert forbidden not in first + data
    for path in ("", "status.json", "status.js", "?token=another-token-altogether"):
        assert refusal(f"http://127.0.0.1:{port}/{path}") == 401
    bearer = urllib.request.Request(
        f"http://127.0.0.1:{port}/status.json", headers={"Authorization": f"Bearer {TOKEN}"}
    )
    with urllib.request.urlopen(bearer) as reply:
        assert reply.status == 200

    process.send_signal(signal.SIGINT)
    assert process.wait(120) == 3
    assert "schemaless: stopped; nothing was changed" in process.stderr.read().decode()


@pytest.mark.mysql
def test_page_on_loopback_answers_to_no_other_name(start, measured_url):
    """A page of another origin could reach it through a name of its own; what it names would be trusted."""
    process = start("status", "--listen", "127.0.0.1:0", url=measured_url)
    (port,) = re.findall(r"http://127\.0\.0\.1:(\d+)/, until", process.stderr.readline().decode())
    with urllib.request.urlopen(f"http://localhost:{port}/") as reply:
        assert "Status of" in reply.read().decode()
    rebound = urllib.request.Request(f"http://127.0.0.1:{port}/", headers={"Host": "rebound.example"})
    assert refusal(rebound) == 400
    assert refusal(urllib.request.Request(f"http://127.0.0.1:{port}/", data=b"x")) == 405


@pytest.mark.once
@pytest.mark.parametrize(
    ("listen", "remote", "token", "error"),
    [
        ("9465", False, None, "takes HOST:PORT"),
        ("127.0.0.1:70000", False, None, "takes HOST:PORT"),
        ("0.0.0.0:9465", False, None, "add --remote"),
        ("db-1:9465", False, TOKEN, "add --remote"),
        ("0.0.0.0:9465", True, "short", "has 5 characters"),
    ],
)
def test_an_address_that_is_none_or_not_safe_is_refused(listen, remote, token, error):
    """Other machines can read the page with --remote only, and only with a token that is long enough."""
    with pytest.raises(InvalidInput, match=error):
        address(listen, remote=remote, token=token)


@pytest.mark.once
def test_a_remote_address_always_has_a_token():
    """A random one, unless the environment gives one; on loopback there is none."""
    tokens = {address("0.0.0.0:1", remote=True, token=None).token for _ in range(2)}

    assert len(tokens) == 2
    assert all(token is not None and len(token) >= 32 for token in tokens)
    assert address("[::1]:1", remote=True, token=TOKEN).token is None
    assert address("localhost:1", remote=False, token=None).token is None
    assert address("[::]:1", remote=True, token=TOKEN).token == TOKEN


@pytest.mark.long
@pytest.mark.mysql
def test_an_unexpected_error_is_a_fault_of_its_part_until_a_reading_succeeds(
    fresh_store, eventually, monkeypatch, caplog
):
    """Other parts are not affected. The message, which may contain a key, is logged once, and not shown."""
    reads = JobReader.__call__
    failing = [True]

    def read(reader: JobReader) -> tuple[JobView, ...]:
        if failing:
            raise KeyError(SECRET)
        return reads(reader)

    monkeypatch.setattr(JobReader, "__call__", read)
    with Collector(fresh_store, options=MonitorOptions(disk_full_from=1.0)) as collected:

        def faults() -> list[tuple[str, str]]:
            found = [each for each in collected.status().findings if each.severity == "fault"]
            return [(each.where, each.text) for each in found]

        eventually(faults, "the fault")
        first = faults()
        eventually(lambda: collected.status().clusters, "the servers")
        assert collected.status().jobs is None
        failing.clear()
        eventually(lambda: collected.status().jobs == () and not faults(), "the jobs")

    assert first == [("jobs", "cannot be read: unexpected KeyError; the log of 'schemaless status' has the traceback")]
    assert [(record.getMessage(), record.exc_info[1].args) for record in caplog.records] == [
        ("status: cannot read jobs", (SECRET,))
    ], "logged once, however often it fails"


@pytest.mark.mysql
def test_a_stopped_shard_shows_before_all_shards_are_read_again(follow_store):
    """Its worker reports it in the catalog; of a trigger that was added since, nothing is said until all are read."""
    internals = internals_of(follow_store)
    access, shards = internals.follower_access, internals.shards
    asked = []
    reader = FollowerReader(follow_store, lambda: last, lambda: asked.append(1))
    read_all = ShardReader(shards, reader.names)
    Settings(access).create("trigger:bill", {}, lambda shard: 0)
    last = read_all()

    def shown():
        return follower_views(reader(), last)

    (before,) = shown()
    pair = ("trigger:bill", 2)
    row = last.rows[pair]
    shards.execute(2, stop(shards.database(2), pair[0], row.epoch, 0, "no such fare"))
    (unreported,) = shown()
    report = json.dumps({"waits": [], "unhealthy": [list(pair)]})
    access.catalog().run(lambda wire: wire.execute(renew_worker(access.name, "one", '["trigger:bill"]', report, 60)))
    (reported,) = shown()
    assert asked == []
    Settings(access).create("trigger:later", {}, lambda shard: 0)
    assert [view.name for view in shown()] == ["bill"]
    assert asked == [1]
    access.catalog().run(lambda wire: wire.execute(delete_worker(access.name, "one")))
    last = read_all()
    reader()

    assert (before.shards, unreported.shards) == ({"running": 4}, {"running": 4})
    assert (reported.shards, reported.workers) == ({"running": 3, "stopped": 1}, 1)
    assert asked == [1, 1], "it has lost its worker"
    assert [view.shards for view in shown()] == [{"running": 3, "stopped": 1}, {"running": 4}]


@pytest.mark.once
def test_history_is_bounded_and_keeps_the_worst_values():
    """Of a lag that is read every two seconds for half a day, the last two hours remain, with their peak."""
    history = History(lambda shard: "cluster-1")
    for number in range(20_000):
        replica = replace(REPLICA, lag_s=9.0 if number == 19_990 else 0.5)
        history.note_servers((cluster(PRIMARY, replica),), NOW + timedelta(seconds=2 * number))
    for at in (NOW, NOW, NOW + timedelta(days=1)):
        sizes = Point(at, 1e9), Point(at + timedelta(hours=1), 2e9)
        history.note_capacity(replace(CAPACITY, measured_at=at, sizes=sizes), NOW)
    series = history.series()

    assert len(series["lag"]) == 240
    assert timedelta(hours=1.9) < series["lag"][-1].at - series["lag"][0].at < timedelta(hours=2.1)
    assert sorted({point.value for point in series["lag"]}) == [0.5, 9.0]
    assert [point.value for point in series["bytes"]] == [1e9, 2e9, 1e9, 2e9], "each measurement once"
    assert [point.value for point in series["days left"]] == [400.0, 400.0]


@pytest.mark.mysql
def test_the_collector_remembers_which_shards_have_puts(fresh_store, row):
    """Two readings are needed; a shard without new puts is not hot."""
    collected = Collector(fresh_store, forecast=False)
    (shards,) = (part for part in collected.parts if part.view.name == "shards")
    shards.refresh()
    before = collected.status()
    fresh_store.put_cell(row, "BASE", 1, {})
    shards.refresh()
    (hot,) = collected.status().hottest
    collected.close()

    shard = fresh_store.shard_of(row)
    place = internals_of(fresh_store).topology.cluster_of(shard).name
    assert (before.hottest, before.history) == ((), {})
    assert (hot.shard, hot.cluster, hot.share) == (shard, place, 1.0)
    (puts,) = collected.status().history["puts"]
    assert puts.value == hot.puts_per_s > 0
