"""Connections: how many a datastore opens, counted at its servers."""

from __future__ import annotations

import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator

import pytest

from schemaless import connect
from schemaless.internals import internals_of
from schemaless.local.description import LocalServer
from schemaless.wire.pool import NodePool, PoolOptions
from schemaless.wire.urls import parse_url

pytestmark = pytest.mark.mysql


@pytest.fixture
def made(servers: list[LocalServer]) -> Iterator[Callable[[], list[int]]]:
    """Returns how many connections were made to each server since the test began."""
    urls = [parse_url(server.url) for server in servers]
    pools = [NodePool(url.node, url.credentials, PoolOptions(pool_size=1)) for url in urls]

    def counts() -> list[int]:
        sql = b"SHOW GLOBAL STATUS LIKE 'Connections'"
        return [int(pool.run(lambda connection: connection.rows(sql))[0][1]) for pool in pools]

    counts()
    before = counts()
    yield lambda: [now - then for now, then in zip(counts(), before, strict=True)]
    for pool in pools:
        pool.close()


def row_on(store, cluster: int) -> uuid.UUID:
    """Return a row whose shard is on one of the clusters."""
    rows = (uuid.UUID(int=number) for number in range(1_000))
    return next(
        row
        for row in rows
        if internals_of(store).topology.cluster_of(store.shard_of(row))
        is internals_of(store).topology.clusters[cluster]
    )


@pytest.mark.parametrize("pool_size", [1, 8])
def test_connect_and_the_first_calls_take_one_connection(fresh_url, made, pool_size):
    """What reads the catalog goes on to read and to write the shards of that server; another server has its own."""
    with connect(fresh_url, pool_size=pool_size) as store:
        opened = made()
        here, there = row_on(store, 0), row_on(store, 1)
        assert store.get_cell(here, "BASE", 1) is None
        store.put_cell(here, "BASE", 1, {})
        store.append_cell(here, "BASE", {})
        used = made()
        assert store.get_cell(there, "BASE", 1) is None
        both = made()

    assert (opened, used, both) == ([1, 0], [1, 0], [1, 1])


def test_a_catalog_far_from_the_shards_keeps_no_connection(fresh_url, made, servers):
    """By another address than its clusters have: the connection that the catalog was read on is closed."""
    # A socket's path may be written in more than one way.
    with connect(fresh_url.replace(str(servers[0].socket), f"/.{servers[0].socket}")) as store:
        assert not internals_of(store).catalog.idle
        assert store.get_cell(row_on(store, 0), "BASE", 1) is None

        assert made() == [2, 0]


def test_a_program_that_only_reads_and_writes_cells_does_not_import_sqlalchemy(datastore_url: str) -> None:
    """It would take as long as all the rest: each command and each worker starts so much sooner."""
    script = (
        "import sys, uuid, schemaless, schemaless.cli.main, schemaless.followers.worker, schemaless.migrate.run\n"
        f"with schemaless.connect({datastore_url!r}) as store:\n"
        "    row = uuid.uuid4()\n"
        "    store.put_cell(row, 'BASE', 1, {})\n"
        "    print(store.get_cell(row, 'BASE', 1).body, 'sqlalchemy' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    assert done.stdout == "{} False\n"
