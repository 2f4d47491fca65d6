"""``Datastore.ping``: which servers answer."""

from __future__ import annotations

import socket
from dataclasses import replace
from pathlib import Path

import pytest

from schemaless import InvalidInput, Ping, ServerUnavailable
from schemaless.store.internals import internals_of
from schemaless.wire.node import Node
from tests.topologies import opened_as

pytestmark = pytest.mark.mysql


def test_every_server_answers(fresh_store):
    """One result per server, in the order of the clusters; invalid timeouts are refused."""
    pings = fresh_store.ping(timeout_s=60)

    clusters = internals_of(fresh_store).topology.clusters
    assert [(ping.server, ping.role, ping.cluster) for ping in pings] == [
        (str(cluster.primary), "primary", cluster.name) for cluster in clusters
    ]
    assert all(ping.ok and ping.latency_s > 0 and ping.error is None and not ping.read_only for ping in pings)
    for invalid in (0, "1", None, float("nan")):
        with pytest.raises(InvalidInput, match="timeout_s must be"):
            fresh_store.ping(invalid)


def test_servers_that_do_not_answer_are_reported_and_disturb_no_other_call(fresh_store, tmp_path: Path, eventually):
    """One is gone and one accepts connections without a word; breakers stay closed, however often they are pinged."""
    topology = internals_of(fresh_store).topology
    first, *others = topology.clusters
    catalog = str(first.primary)
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(tmp_path / "silent"))
        silent.listen(100)
        gone = Node("replica", socket=str(tmp_path / "gone"))
        moved = replace(first, nodes=(gone, Node("primary", socket=str(tmp_path / "silent"))))
        with opened_as(fresh_store, replace(topology, clusters=(moved, *others))) as store:
            for _ in range(3):
                store.ping(timeout_s=0.1)
            pings = []

            def others_answer() -> bool:
                pings[:] = store.ping(timeout_s=0.5)
                return all(ping.ok for ping in pings[2:])

            eventually(others_answer, "the others answer in time")
            breakers = internals_of(store).shards.pools.breakers().values()
            assert not any(breaker.is_open for breaker in breakers)

    assert [(ping.server, ping.role, ping.ok) for ping in pings] == [
        (str(tmp_path / "silent"), "primary", False),
        (str(tmp_path / "gone"), "replica", False),
        *((str(cluster.primary), "primary", True) for cluster in others),
        (catalog, "catalog", True),
    ]
    for ping in pings[:2]:
        assert isinstance(ping.error, ServerUnavailable)
        assert ping.server in str(ping.error)
        assert (ping.latency_s, ping.read_only) == (None, None)


@pytest.mark.parametrize(("role", "ok"), [("primary", False), ("catalog", False), ("replica", True)])
def test_only_replicas_may_be_read_only(role, ok):
    """A primary that refuses writes is not ready."""
    assert Ping("db-1:3306", role, "cluster-1", 0.01, read_only=True).ok is ok
