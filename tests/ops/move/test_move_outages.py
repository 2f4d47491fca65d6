"""Source, target or catalog killed and restarted, or frozen and thawed, before a statement of a mover."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

import schemaless
from schemaless import ServerTimeout, ServerUnavailable, ShardMoving
from schemaless.local import servers as local_servers
from schemaless.local.description import LocalServer
from schemaless.ops.move import run as moves
from schemaless.ops.move.spec import MoveSpec
from schemaless.store.internals import internals_of
from schemaless.testing.servers import private_servers
from schemaless.wire.node import Node
from schemaless.wire.pool import NodePool, PoolOptions
from schemaless.wire.pools import Pools
from tests.freezing import freeze, thaw
from tests.movers import query
from tests.ops.move.benches import ALL_POINTS, SHARD, Bench, Point, Writer

pytestmark = [pytest.mark.mysql]

_AWHILE_S = 8.0
"""Length of an outage for a mover that waits for the server between two steps, in seconds."""

BRIEF = {"connect_timeout_s": 1.0, "read_timeout_s": 1.0}
"""Timeouts of clients that meet a frozen server; the others wait until it is thawed."""


new_pool = Pools.new_pool


def brief_pool(pools: Pools, node: Node, options: PoolOptions, **others: bool) -> NodePool:
    """Give a mover's sessions the same short timeouts."""
    return new_pool(pools, node, PoolOptions(**BRIEF, pool_size=options.pool_size), **others)


class Weak:
    """The server that these tests kill and freeze."""

    def __init__(self, server: LocalServer) -> None:
        self.server = server
        self._down: str | None = None

    def hurt(self, how: str) -> None:
        """Kill it or freeze it."""
        if how == "killed":
            local_servers.kill(self.server)
        else:
            freeze(self.server.pid)
        self._down = how

    @contextmanager
    def hurt_for_a_while(self, how: str) -> Iterator[Callable[[bytes], None]]:
        """Yield a function that hurts the server; it is healed by a timer, or at the end of the block."""
        healing = threading.Timer(_AWHILE_S, self.heal)

        def hurt(sql: bytes) -> None:
            self.hurt(how)
            healing.start()

        try:
            yield hurt
        finally:
            healing.cancel()
            if healing.ident is not None:
                healing.join()
            self.heal()

    def heal(self) -> None:
        """Restart or thaw the server."""
        how, self._down = self._down, None
        if how == "killed":
            self.server = local_servers.start(self.server)
        elif how == "frozen":
            thaw(self.server.pid)


@pytest.fixture(scope="module")
def weak(flavour: str) -> Iterator[Weak]:
    """A server that only these tests use."""
    with private_servers(flavour, 1) as (server,):
        weak = Weak(server)
        yield weak
        weak.heal()


@pytest.fixture(scope="module")
def urls(weak: Weak, servers: list[LocalServer]) -> dict[str, str]:
    """Two datastores: one whose shard moves from or to the weak server, and one that has only its catalog there."""
    strong = [server.url for server in servers]
    name = f"outages_{servers[0].flavour}"
    shards = schemaless.create(f"{name}_shards", 2, [strong[0], weak.server.url])
    return {
        "source": shards,
        "target": shards,
        "catalog": schemaless.create(f"{name}_catalog", 3, [weak.server.url, *strong]),
    }


@contextmanager
def bench_of(url: str, new_row: Callable[[], uuid.UUID]) -> Iterator[Bench]:
    """Open a shard of a datastore that was used before."""
    with schemaless.connect(url) as client:
        internals_of(client).shards.move_wait_s = 60
        bench = Bench(client, new_row)
        bench.acknowledge_stored()
        bench.put(3)
        yield bench


@pytest.mark.parametrize(
    ("who", "how"),
    [
        ("target", "frozen"),
        *(
            pytest.param(who, how, marks=pytest.mark.long)
            for who in ("source", "target", "catalog")
            for how in ("killed", "frozen")
            if (who, how) != ("target", "frozen")
        ),
    ],
)
def test_a_server_that_is_lost_before_a_statement(urls, weak, movers, new_row, monkeypatch, who, how):
    """After the move is repeated or aborted, each acknowledged cell exists once under its id, and digests are equal."""
    source = {"source": "cluster-2", "target": "cluster-1", "catalog": None}[who]
    with bench_of(urls[who], new_row) as bench:
        points = [(number, abort) for number in bench.points(movers, f"{who} {how}", 1) for abort in (False, True)]
        for number, abort in points if ALL_POINTS else [points[how == "frozen"]]:
            if source is not None and internals_of(bench.client).topology.cluster_of(SHARD).name != source:
                bench.move(movers)
            with Writer(bench):
                job = bench.begin()
                with (
                    monkeypatch.context() as patch,
                    schemaless.connect(urls[who], **BRIEF) as brief,
                    weak.hurt_for_a_while(how) as hurt,
                ):
                    patch.setattr(Pools, "new_pool", brief_pool)
                    movers.move(brief, job, Point(number, hurt))
                bench.until_it_answers()
                bench.end(job, movers, abort=abort)
            phase = bench.check(job)

            assert phase == "verified" or abort, movers.sent[number]


def test_a_catalog_outage_affects_only_calls_that_need_it(urls, weak, new_row):
    """Calls to known shards work; connecting, starting a job and meeting a move raise retryable errors."""
    with schemaless.connect(urls["catalog"]) as client, schemaless.connect(urls["catalog"], **BRIEF) as brief:
        shards = internals_of(client).shards
        internals_of(brief).shards.move_wait_s = 0.1
        away, *rows = (next(row for row in iter(new_row, None) if client.shard_of(row) == shard) for shard in range(3))
        for row in (*rows, away):
            client.put_cell(row, "BASE", 1, 1)
            brief.get_cell(row, "BASE", 1)
        node, database = shards.node_of(SHARD), shards.database(SHARD)
        weak.hurt("frozen")
        try:
            for look_at_s in (shards.router.look_at_s, 0):
                shards.router.look_at_s = look_at_s
                assert all(client.append_cell(row, "BASE", 2).created for row in rows)
                assert [client.get_cell(row, "BASE", 1).body for row in rows] == [1, 1]
                assert client.get_cells_for_shard(SHARD).cells
            query(node, f"RENAME TABLE `{database}`.cell TO `{database}`.away")
            need: dict[str, Callable[[], object]] = {
                "a shard that has left": lambda: brief.append_cell(rows[0], "BASE", 3),
                "a shard on its server": lambda: brief.get_cell(away, "BASE", 1),
                "a new program": lambda: schemaless.connect(urls["catalog"], **BRIEF),
                "a job": lambda: moves.MOVE.begin_or_join(brief, MoveSpec("cluster-3"), [SHARD]),
            }
            for name, call in need.items():
                with pytest.raises((ServerUnavailable, ServerTimeout, ShardMoving)) as raised:
                    call()
                assert raised.value.retryable, name
            query(node, f"RENAME TABLE `{database}`.away TO `{database}`.cell")
            assert client.append_cell(rows[0], "BASE", 3).created
        finally:
            weak.heal()
