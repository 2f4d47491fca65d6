"""Several servers for the catalog in a URL: the first that has it is used, and an error names all of them."""

from __future__ import annotations

import contextlib
import uuid

import pytest

import schemaless
from schemaless import AccessDenied, DatastoreNotFound, ServerError, ServerUnavailable
from schemaless.admin.upgrades import schema_status
from schemaless.internals import internals_of
from schemaless.topology.configuration import datastore_url
from schemaless.wire.errors import DatabaseMissing

NOBODY = "/nowhere/mysql.sock"


def named(url: str, *sockets: str) -> str:
    """Return a URL with these sockets in place of its own."""
    return f"{url.partition('unix_socket=')[0]}unix_socket={','.join(sockets)}"


@pytest.fixture(scope="module")
def url(replicated) -> str:
    """A datastore whose catalog is on a server with a replica."""
    return schemaless.create("hosts", 1, [replicated.url])


@pytest.mark.mysql
def test_the_first_server_that_has_the_catalog_and_takes_writes_is_used(url, replicated, servers):
    """One that is down costs once, then its breaker is open; a stranger and a replica are passed over."""
    own, replica, stranger = (str(each.socket) for each in (replicated, replicated.replicas[0], servers[0]))
    for sockets in ((own, NOBODY), (NOBODY, own), (stranger, replica, own), (NOBODY, stranger, own, replica)):
        with schemaless.connect(named(url, *sockets)) as store:
            internals = internals_of(store)
            assert str(internals.catalog.node) == own
            assert {str(node) for node in internals.url.nodes} == set(sockets)
            store.put_cell(uuid.UUID(int=1), "BASE", 1, "here")
            down = [node for node in internals.url.nodes if str(node) == NOBODY]
            opened = [internals.shards.pool_for(node).breaker.is_open for node in down]
            assert opened == [sockets[0] == NOBODY] * len(down), "nobody asks behind the one that was found"
    assert [state.current for state in schema_status(datastore_url(named(url, NOBODY, own))[0])] == [True, True]


@pytest.mark.mysql
def test_a_replica_is_read_where_nothing_takes_writes(url, replicated, eventually):
    """The catalog of an outage is better than none: shards elsewhere are found by it."""
    replica = str(replicated.replicas[0].socket)

    def opens() -> bool:
        arriving = contextlib.suppress(ServerError, DatastoreNotFound)
        with arriving, schemaless.connect(named(url, NOBODY, replica)) as store:
            return store.name == "hosts"
        return False

    eventually(opens, "the datastore has arrived on the replica")


@pytest.mark.mysql
def test_an_error_names_all_servers_that_were_tried(url, servers):
    """Where one answers that has no such catalog, that is what it is about; else that nobody answers."""
    stranger = str(servers[0].socket)
    with pytest.raises(ServerUnavailable, match="none of the 2 servers") as raised:
        schemaless.connect(named(url, NOBODY, f"{NOBODY}.2"))
    assert all(f"{each}: " in str(raised.value) for each in (NOBODY, f"{NOBODY}.2"))
    with pytest.raises((DatastoreNotFound, DatabaseMissing, AccessDenied), match="none of the 2 servers") as raised:
        schemaless.connect(named(url, NOBODY, stranger))
    assert all(f"{each}: " in str(raised.value) for each in (NOBODY, stranger))
