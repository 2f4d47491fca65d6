"""Number of connections that a datastore opens, counted on its servers."""

from __future__ import annotations

import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator

import pytest

from schemaless import connect
from schemaless.local.description import LocalServer
from schemaless.store.internals import internals_of
from schemaless.wire.pool import NodePool, PoolOptions
from schemaless.wire.urls import parse_url

pytestmark = pytest.mark.mysql


@pytest.fixture
def opened_since(servers: list[LocalServer]) -> Iterator[Callable[[], list[int]]]:
    """Count the connections opened to each server since the start of the test."""
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
    """Return a row whose shard is on the given cluster."""
    rows = (uuid.UUID(int=number) for number in range(1_000))
    return next(
        row
        for row in rows
        if internals_of(store).topology.cluster_of(store.shard_of(row))
        is internals_of(store).topology.clusters[cluster]
    )


@pytest.mark.parametrize("pool_size", [1, 8])
def test_connect_and_the_first_calls_use_one_connection(fresh_url, opened_since, pool_size):
    """The connection that read the catalog is reused for the shards of its server; another server gets its own."""
    with connect(fresh_url, pool_size=pool_size) as store:
        opened = opened_since()
        here, there = row_on(store, 0), row_on(store, 1)
        assert store.get_cell(here, "BASE", 1) is None
        store.put_cell(here, "BASE", 1, {})
        store.append_cell(here, "BASE", {})
        used = opened_since()
        assert store.get_cell(there, "BASE", 1) is None
        both = opened_since()

    assert (opened, used, both) == ([1, 0], [1, 0], [1, 1])


def test_no_connection_is_kept_to_a_catalog_apart_from_the_shards(fresh_url, opened_since, servers):
    """If the catalog is reached by another address than the clusters, its connection is closed after reading."""
    # The same socket, written differently.
    with connect(fresh_url.replace(str(servers[0].socket), f"/.{servers[0].socket}")) as store:
        assert not internals_of(store).catalog.idle
        assert store.get_cell(row_on(store, 0), "BASE", 1) is None

        assert opened_since() == [2, 0]


def test_a_program_that_only_reads_and_writes_cells_does_not_import_sqlalchemy(datastore_url: str) -> None:
    """The import would double the start time of commands and workers."""
    script = (
        "import sys, uuid, schemaless, schemaless.cli.main\n"
        "import schemaless.ops.migrate.run, schemaless.store.followers.worker\n"
        f"with schemaless.connect({datastore_url!r}) as store:\n"
        "    row = uuid.uuid4()\n"
        "    store.put_cell(row, 'BASE', 1, {})\n"
        "    print(store.get_cell(row, 'BASE', 1).body, 'sqlalchemy' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    assert done.stdout == "{} False\n"
