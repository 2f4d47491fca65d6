"""Moves that continue or abort after a mover died and the source or the target failed over."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

import schemaless
from schemaless import MoveRefused
from schemaless.local.description import LocalServer
from schemaless.ops.failover import adopt as failover
from schemaless.ops.failover import nodes
from schemaless.ops.jobs.job import Job
from schemaless.ops.jobs.worker import Outcome
from schemaless.ops.move.fence import Fence
from schemaless.ops.move.record import Records
from schemaless.store.internals import internals_of
from tests.ops.move.benches import SHARD, Bench, Killed, Movers
from tests.promotion import over, sound_replica, sql

pytestmark = [pytest.mark.mysql]

_names = itertools.count(1)
TIMEOUT_S = 0.3


@pytest.fixture
def first(flavour: str, request: pytest.FixtureRequest) -> LocalServer:
    """The primary of the second cluster, which has a replica."""
    if flavour == "mariadb":
        pytest.skip("failovers cannot be adopted on MariaDB; runs with SERVER=mysql")
    server: LocalServer = request.getfixturevalue("replicated")
    sound_replica(server)
    return server


@pytest.fixture
def make(
    first: LocalServer, servers: list[LocalServer], new_row: Callable[[], uuid.UUID]
) -> Iterator[Callable[[str], Bench]]:
    """Creates a datastore whose catalog is on the server with the replica, or on the other one."""
    with ExitStack() as stack:

        def bench_of(catalog: str) -> Bench:
            weak, strong = first.url, servers[0].url
            urls = [weak, strong] if catalog == "with it" else [strong, weak]
            cluster = f"cluster-{1 + urls.index(weak)}"
            url = schemaless.create(f"moves_over{next(_names)}", 2, urls)
            nodes.add_replica(url, cluster, first.replicas[0].url)
            failover.adopt(url, cluster, first.url, timeout_s=30)
            client = stack.enter_context(schemaless.connect(url, read_timeout_s=20))
            internals_of(client).shards.move_wait_s = 30
            return Bench(client, new_row)

        yield bench_of


PHASES = {"copying": (Fence, "lock"), "cutting": (Fence, "rename_target"), "committed": (Records, "flip")}
CASES = list(itertools.product(PHASES, ["source", "target"], ["elsewhere", "with it"]))
SHORT = [("committed", "source", "with it")]


@pytest.mark.parametrize(
    ("phase", "who", "catalog"),
    [case if case in SHORT else pytest.param(*case, marks=pytest.mark.long) for case in CASES],
)
@pytest.mark.long
def test_a_failover_after_a_mover_died(make, movers, monkeypatch, new_row, first, phase, who, catalog):
    """The same command continues on the new primaries, with the catalog on the lost server or elsewhere.

    If the source's new primary lacks the RENAME, two servers have the shard: the error names both, and nothing changes.
    """
    bench = make(catalog)
    name, internals = bench.client.name, internals_of(bench.client)
    lost = "cluster-1" if catalog == "with it" else "cluster-2"
    bench.put()
    if (internals.topology.cluster_of(SHARD).name == lost) != (who == "source"):
        bench.move(movers)
        bench.put()
    job = bench.begin()

    def kill(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(*PHASES[phase], kill)
        movers.move(bench.client, job)
    with over(first) as second:
        url = internals.url.for_database(name)
        if catalog == "with it":
            url = second.url.replace("/?", f"/{name}?")
        assert failover.adopt(url, lost, second.url, timeout_s=TIMEOUT_S).changed
        with schemaless.connect(url, read_timeout_s=20) as client:
            after = Bench(client, new_row)
            after.acknowledged = bench.acknowledged
            if (phase, who) == ("committed", "source"):
                assert_refused_without_the_rename(after, movers, second, job)
            after.end(job, movers, abort=False)

            assert after.check(job) == "verified"


def assert_refused_without_the_rename(bench: Bench, movers: Movers, source: LocalServer, job: Job) -> None:
    """Run the move while both the source and the target have a table ``cell``."""
    database = internals_of(bench.client).shards.database(SHARD)
    ((aside,),) = sql(source, f"SHOW TABLES FROM {database} LIKE 'cell_moved_%'")
    sql(source, f"RENAME TABLE {database}.{aside} TO {database}.cell")
    outcomes: list[Outcome] = []
    bench.free(job)
    movers.move(bench.client, job, outcomes=outcomes)
    sql(source, f"RENAME TABLE {database}.cell TO {database}.{aside}")

    assert isinstance(outcomes[0].error, MoveRefused)
    assert str(outcomes[0].error).count("has cell") == 2
