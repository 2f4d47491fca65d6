"""URLs with several servers for the catalog: the right one is used, and errors name all of them."""

from __future__ import annotations

import contextlib
import uuid

import pytest

import schemaless
from schemaless import AccessDenied, CatalogCopied, DatastoreNotFound, ServerUnavailable
from schemaless.ops.admin.upgrades import schema_status
from schemaless.ops.failover.nodes import add_replica
from schemaless.store.internals import internals_of
from schemaless.topology.configuration import datastore_url
from schemaless.wire.errors import DatabaseMissing

MISSING = "/nowhere/mysql.sock"


def named(url: str, *sockets: str) -> str:
    """Return a URL with other sockets."""
    return f"{url.partition('unix_socket=')[0]}unix_socket={','.join(sockets)}"


@pytest.fixture(scope="module")
def url(replicated) -> str:
    """URL of a datastore whose catalog is on a server with a replica."""
    return schemaless.create("hosts", 1, [replicated.url])


@pytest.mark.mysql
@pytest.mark.twice
def test_the_first_writable_server_with_the_catalog_is_used(url, replicated, servers):
    """A dead server costs one timeout, then its breaker is open; unrelated servers and replicas are skipped."""
    own, replica, stranger = (str(each.socket) for each in (replicated, replicated.replicas[0], servers[0]))
    for sockets in ((own, MISSING), (MISSING, own), (stranger, replica, own), (MISSING, stranger, own, replica)):
        with schemaless.connect(named(url, *sockets)) as store:
            internals = internals_of(store)
            assert str(internals.catalog.node) == own
            assert {str(node) for node in internals.url.nodes} == set(sockets)
            store.put_cell(uuid.UUID(int=1), "BASE", 1, "here")
            down = [node for node in internals.url.nodes if str(node) == MISSING]
            opened = [internals.shards.pool_for(node).breaker.is_open for node in down]
            assert opened == [sockets[0] == MISSING] * len(down), "servers after the match are not queried"
    assert [state.current for state in schema_status(datastore_url(named(url, MISSING, own))[0])] == [True, True]


@pytest.mark.mysql
@pytest.mark.twice
def test_a_replica_is_read_if_no_server_is_writable(replicated, eventually):
    """During an outage of the primary, shards on other clusters stay reachable."""
    url = schemaless.create("hosts_replica", 1, [replicated.url])
    add_replica(url, "cluster-1", replicated.replicas[0].url)
    replica = str(replicated.replicas[0].socket)

    def opens() -> bool:
        # The change of the catalog may not have arrived.
        with contextlib.suppress(CatalogCopied), schemaless.connect(named(url, MISSING, replica)) as store:
            return store.name == "hosts_replica"
        return False

    eventually(opens, "the catalog on the replica names it")


@pytest.mark.mysql
@pytest.mark.twice
def test_the_error_names_all_servers_that_were_tried(url, servers):
    """If one of them answers without having the catalog, the error is about that, otherwise about the outage."""
    stranger = str(servers[0].socket)
    with pytest.raises(ServerUnavailable, match="none of the 2 servers") as raised:
        schemaless.connect(named(url, MISSING, f"{MISSING}.2"))
    assert all(f"{each}: " in str(raised.value) for each in (MISSING, f"{MISSING}.2"))
    with pytest.raises((DatastoreNotFound, DatabaseMissing, AccessDenied), match="none of the 2 servers") as raised:
        schemaless.connect(named(url, MISSING, stranger))
    assert all(f"{each}: " in str(raised.value) for each in (MISSING, stranger))
