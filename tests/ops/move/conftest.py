"""Fixtures of the move tests: datastores, movers, and the bench that checks a moved shard."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator

import pytest

import schemaless
from schemaless import Datastore
from schemaless.store.internals import internals_of
from tests.accounts import Accounts
from tests.movers import query
from tests.ops.move.benches import SHARD, Bench, Movers


@pytest.fixture
def movers(monkeypatch: pytest.MonkeyPatch) -> Movers:
    """Movers that tests can interrupt before a statement."""
    return Movers(monkeypatch)


@pytest.fixture
def url(accounts: Accounts, fresh_url: str, server_kind: str) -> str:
    """A new datastore, as root, which has access to a shard on every server.

    With MyRocks, the first cluster is in InnoDB, so that every move converts a shard.
    """
    root = accounts.root(fresh_url)
    if server_kind == "myrocks":
        with schemaless.connect(root) as store:
            internals = internals_of(store)
            cluster = internals.topology.clusters[0]
            query(cluster.primary, f"UPDATE `{store.name}`.cluster SET engine='innodb' WHERE name='{cluster.name}'")
            for shard in internals.topology.shards_of(cluster.name):
                query(cluster.primary, f"ALTER TABLE `{internals.shards.database(shard)}`.cell ENGINE=InnoDB")
    return root


@pytest.fixture
def client(url: str) -> Iterator[Datastore]:
    """A client that stays connected during moves."""
    with schemaless.connect(url, read_timeout_s=20) as store:
        internals_of(store).shards.move_wait_s = 30
        yield store
        database = internals_of(store).shards.database(SHARD)
        for cluster in internals_of(store).topology.clusters:
            if cluster != internals_of(store).topology.cluster_of(SHARD):
                query(cluster.primary, f"DROP DATABASE IF EXISTS `{database}`")


@pytest.fixture
def bench(client: Datastore, new_row: Callable[[], uuid.UUID]) -> Bench:
    """A shard with a few cells and the row of one follower."""
    bench = Bench(client, new_row)
    bench.put(5)
    database = internals_of(client).shards.database(SHARD)
    query(
        internals_of(client).shards.node_of(SHARD),
        f"INSERT INTO `{database}`.follower (name, location) VALUES ('billing', 1)",
    )
    return bench
