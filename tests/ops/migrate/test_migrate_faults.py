"""Migration with failures: the result is byte for byte that of an undisturbed run.

Elsewhere: kill -9 of a run and of a primary in test_killed.py, of a worker in test_workers.py; a full disk in
test_migrate_archive.py; bodies changed and cells erased during a run in test_migrate.py; leases in
tests/ops/jobs/test_job_store.py.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator

import pytest

import schemaless
from schemaless import JobConflict, NewStoredCell
from schemaless.codec.recode import recode
from schemaless.local import servers as local_servers
from schemaless.local.description import LocalServer
from schemaless.ops.failover import nodes
from schemaless.ops.jobs.job_store import JobStore
from schemaless.ops.jobs.throttle import Thresholds
from schemaless.ops.migrate import run as migrate
from schemaless.ops.migrate.archive import digest_of
from schemaless.ops.migrate.reencode import BlockBounds
from schemaless.ops.migrate.spec import MigrateSpec
from schemaless.ops.migrate.sql import update_bodies
from schemaless.store.internals import internals_of
from schemaless.testing.servers import private_servers
from schemaless.wire import pool as pools
from tests.accounts import Accounts, accounts_on
from tests.faults.kinds import ONE_KIND
from tests.faults.proxy import Fault, Proxy
from tests.promotion import caught_up, sql

pytestmark = [pytest.mark.mysql]

_names = itertools.count(1)


def fill(store: schemaless.Datastore, count: int) -> dict[tuple[uuid.UUID, int], bytes]:
    """Write legacy cells; return the expected new bodies by row and version."""
    cells = [
        NewStoredCell(
            uuid.uuid5(uuid.NAMESPACE_OID, f"{store.name} {number}"),
            "A",
            number,
            json.dumps({"n": number, "text": "word " * (20 + number % 50)}).encode(),
        )
        for number in range(count)
    ]
    store.put_stored_cells(cells)
    return {(cell.row_key, cell.ref_key): recode(cell.body).body for cell in cells}


def bodies(store: schemaless.Datastore) -> dict[tuple[uuid.UUID, int], bytes]:
    """Return every stored body by row and version."""
    return {
        (cell.row_key, cell.ref_key): cell.body
        for shard in range(store.shard_count)
        for cell in store.scan_shard(shard)
    }


# Connections


@ONE_KIND
@pytest.mark.parametrize("how", ["rst", *(pytest.param(how, marks=pytest.mark.long) for how in ("late", "half"))])
def test_connection_cut_in_the_middle_of_a_commit(servers, monkeypatch, how):
    """The connection dies before or after any statement of a run, those on the job included: nothing is done twice."""
    monkeypatch.setattr(pools.NodePool, "retry_pause_s", 0.002)
    bounds = BlockBounds(first_rows=7, most_rows=7)
    chance = random.Random(f"cuts {how}")
    name = f"migratecuts{next(_names)}"
    proxy = Proxy([str(servers[0].socket)])
    try:
        url = schemaless.create(name, 1, proxy.urls)
        with schemaless.connect(url, connect_timeout_s=5, read_timeout_s=5) as store:
            expected = fill(store, 40)
            cells = list(store.scan_shard(0))
            for nth in range(10):
                back = [(cell.added_id, digest_of(recode(cell.body).body), cell.body) for cell in cells]
                internals_of(store).shards.execute(0, update_bodies(internals_of(store).shards.database(0), back))
                proxy.arm(
                    Fault(chance.choice(["UPDATE", "UPDATE", "SELECT", "INSERT"]), at, how, skip=chance.randrange(12))
                    for at in chance.sample(["before", "no reply"], 1 + nth % 2)
                )
                report = migrate.run(store, bounds=bounds)
                proxy.disarm()
                assert bodies(store) == expected, f"round {nth}"
                assert report.total().cells <= 40
                assert report.total().left == {}
                assert JobStore(store).job(report.job_id).state == "done"
    finally:
        proxy.close()


# Replicas


@pytest.fixture
def mortal(flavour: str) -> Iterator[LocalServer]:
    """A server with a replica; both may be killed."""
    with private_servers(flavour, 1, replicas=1) as (server,):
        yield server


@pytest.fixture
def primary(request: pytest.FixtureRequest, flavour: str) -> Iterator[LocalServer]:
    """A server with a replica, of the whole session unless a test names ``mortal``; in the end they replicate."""
    found = request.getfixturevalue(getattr(request, "param", "replicated"))
    yield found
    with caught_up(found):
        pass


@pytest.fixture
def own_accounts(primary: LocalServer) -> Iterator[Accounts]:
    """The accounts on that server."""
    with accounts_on([primary.url], prefix="migrated_") as made:
        yield made


@pytest.fixture
def url(own_accounts: Accounts, primary: LocalServer) -> str:
    """A new datastore of two shards with a replica, for ``migrate``."""
    name = f"migrated{next(_names)}"
    made = own_accounts.create(name, 2)
    nodes.add_replica(
        own_accounts.url("admin", made), "cluster-1", own_accounts.url("admin", primary.replicas[0].url), timeout_s=60
    )
    own_accounts.allow("migrate", name, 2)
    return own_accounts.url("migrate", made)


@pytest.fixture
def filled(own_accounts: Accounts, url: str) -> tuple[schemaless.Datastore, dict[tuple[uuid.UUID, int], bytes]]:
    """The datastore for ``app`` with legacy cells, and their expected new bodies."""
    with schemaless.connect(own_accounts.url("app", url)) as store:
        expected = fill(store, 120)
        yield store, expected


def run_in_a_thread(url: str, spec: MigrateSpec) -> tuple[threading.Thread, list[object]]:
    """Start a migration in a thread; its outcome or exception is appended to the list."""
    ended: list[object] = []

    def work() -> None:
        try:
            with schemaless.connect(url) as store:
                ended.append(migrate.run(store, spec))
        except schemaless.SchemalessError as error:
            ended.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    return thread, ended


@pytest.mark.long
@pytest.mark.guarantee("migrate-replicas")
def test_replication_that_stops_is_waited_for(primary, url, filled, eventually):
    """The job shows the reason, replaces nothing while it waits, and continues when the replica has caught up."""
    store, expected = filled
    word = "SLAVE" if primary.flavour == "mariadb" else "REPLICA"
    replica = primary.replicas[0]
    with schemaless.connect(url) as migrating:
        job_store = JobStore(migrating)
        # The replica has been proven before; one that never shows a token would be refused.
        migrate.run(migrating, MigrateSpec("json+zlib"), shards=[0])
        sql(replica, f"STOP {word}")
        try:
            time.sleep(0.1)
            spec = MigrateSpec(thresholds=Thresholds(max_lag_s=0.3))
            thread, ended = run_in_a_thread(url, spec)
            eventually(lambda: job_store.latest("migrate").job_id == 2 and job_store.clusters(2)[0].reason, "it waits")
            reason = job_store.clusters(2)[0].reason
            meanwhile = bodies(store)
        finally:
            sql(replica, f"START {word}")
        thread.join(120)

        assert str(replica.socket) in reason
        assert [body for key, body in meanwhile.items() if body == expected[key]] == []
        assert ended[0].total().cells == len(expected)
        assert sum(job_store.clusters(2)[0].waits.values()) > 0
    assert bodies(store) == expected


@pytest.mark.long
@pytest.mark.parametrize("primary", ["mortal"], indirect=True)
def test_replica_that_is_killed_is_waited_for(primary, url, filled, eventually):
    """The job waits until the replica is back and has caught up."""
    store, expected = filled
    replica = primary.replicas[0]
    with schemaless.connect(url) as migrating:
        job_store = JobStore(migrating)
        migrate.run(migrating, MigrateSpec("json+zlib"), shards=[0])
        local_servers.kill(replica)
        thread, ended = run_in_a_thread(url, MigrateSpec())
        eventually(lambda: job_store.latest("migrate").job_id == 2 and job_store.clusters(2)[0].reason, "it waits")
        reason = job_store.clusters(2)[0].reason
        local_servers.start(replica)
        thread.join(120)

        assert str(replica.socket) in reason
        assert ended[0].total().cells == len(expected)
    assert bodies(store) == expected


def test_new_bodies_are_verified_on_the_replica(primary, url, filled):
    """New bodies are read from the replica before each checkpoint; in the end it has the same bytes as the primary."""
    store, expected = filled
    with schemaless.connect(url) as migrating:
        report = migrate.run(migrating, MigrateSpec(verify_after="replica"))

    assert report.total().cells == len(expected)
    found = {
        (uuid.UUID(bytes=row[0]), row[1]): row[2]
        for shard in range(2)
        for row in internals_of(store).shards.rows(
            shard,
            f"SELECT row_key, ref_key, body FROM `{internals_of(store).shards.database(shard)}`.cell".encode(),
            read_from="replica",
        )
    }
    assert found == expected


# Jobs and clocks


def test_two_concurrent_jobs_do_not_share_shards(fresh_store, migrate_store, migrate_url):
    """A second job on the same shards is refused while the first is unfinished; on other shards it may run."""
    expected = fill(fresh_store, 80)
    first, _ = migrate.MIGRATE.begin_or_join(migrate_store, MigrateSpec(), [0, 1])
    with pytest.raises(JobConflict, match=f"migrate job {first.job_id} is running"):
        migrate.run(migrate_store, MigrateSpec("json+zlib"), [1, 2])
    threads = [
        run_in_a_thread(migrate_url, MigrateSpec()),
    ]
    with schemaless.connect(migrate_url) as other:
        migrate.run(other, MigrateSpec(), [0, 1])
    for thread, _ in threads:
        thread.join(120)
    migrate.run(migrate_store)

    assert bodies(fresh_store) == expected


CLOCK = """
import sys, time, datetime
hour = float(sys.argv[1])
now, monotonic_of = time.time, time.monotonic
time.time = lambda: now() + hour
class Wrong(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return super().now(tz) + datetime.timedelta(seconds=hour)
datetime.datetime = Wrong
from schemaless.cli.main import run
sys.exit(run(["migrate", "run", "--execute"]))
"""


@pytest.mark.guarantee("migrate-one-runner")
@pytest.mark.parametrize("hour", [3600, pytest.param(-3600, marks=pytest.mark.long)])
def test_worker_whose_clock_is_off_by_an_hour_takes_nothing_from_others(
    fresh_store, migrate_store, migrate_url, eventually, hour
):
    """Leases use the server's clock: a runner with a wrong clock leaves another's shard alone and does the rest."""
    expected = fill(fresh_store, 80)
    job_store = JobStore(migrate_store)
    job, _ = migrate.MIGRATE.begin_or_join(migrate_store, MigrateSpec())
    mine = job_store.leases.claim(job.job_id, 0, "another runner")
    process = subprocess.Popen(
        [sys.executable, "-c", CLOCK, str(hour)],
        env={**os.environ, "SCHEMALESS_URL": migrate_url},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )

    def rest_is_done() -> bool:
        job_store.leases.checkpoint(job.job_id, mine)  # renews the lease
        return all(state.state == "done" for state in job_store.shards(job.job_id)[1:])

    eventually(rest_is_done, "the rest is done")
    untouched = list(fresh_store.scan_shard(0, legacy_only=True))
    job_store.leases.release(job.job_id, mine)
    _, err = process.communicate(timeout=120)

    assert process.returncode == 0, err
    assert len(untouched) == sum(1 for row, _ in expected if fresh_store.shard_of(row) == 0)
    assert bodies(fresh_store) == expected
