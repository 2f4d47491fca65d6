"""Restored datastores: a copied catalog is refused until it has its own servers."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Iterator

import pytest

import schemaless
from schemaless.errors import CatalogCopied, InvalidInput, TopologyError
from schemaless.export.exporter import follower_name
from schemaless.failover.adopt import adopt
from schemaless.failover.restored import restored
from schemaless.followers.settings import Settings
from schemaless.internals import internals_of
from schemaless.local.description import LocalServer
from schemaless.testing.servers import private_servers
from schemaless.topology.catalog import server_identity
from tests.promotion import sql

pytestmark = pytest.mark.mysql

_names = itertools.count(1)
ROWS = [uuid.uuid5(uuid.NAMESPACE_OID, f"restored {number}") for number in range(40)]


@pytest.fixture(scope="module")
def drill(flavour: str, replicated: LocalServer) -> Iterator[list[LocalServer]]:
    """Servers to restore on: one with GTIDs, a past and a replica, and an empty one, on MySQL without GTIDs."""
    options = {"gtid-mode": "OFF", "enforce-gtid-consistency": "OFF"} if flavour == "mysql" else {}
    with private_servers(flavour, 1, options) as (empty,):
        yield [replicated, empty]


@pytest.fixture
def name() -> str:
    """A name that no datastore has."""
    return f"backup{next(_names)}"


@pytest.fixture
def url(name: str, servers: list[LocalServer], flavour: str) -> str:
    """The datastore in production, on two servers; on MySQL, the second one has a claim."""
    made = schemaless.create(name, 2, [server.url for server in servers])
    if flavour == "mysql":
        adopt(made, "cluster-2", servers[1].url)
    with schemaless.connect(made) as store:
        for row in ROWS:
            store.put_cell(row, "BASE", 1, {"row": str(row)})
        exports = Settings(internals_of(store).follower_access)
        exports.create(follower_name("lake"), {"uri": "s3://lake/cells"}, lambda shard: 0)
    return made


def at(server: LocalServer, name: str = "") -> str:
    return f"mysql://root@/{name}?unix_socket={server.socket}"


def test_a_catalog_that_is_no_copy_keeps_its_servers(url, servers, drill, flavour):
    """Only an explicit option makes the command work on the original, where it renews the claims."""
    with pytest.raises(TopologyError, match=r"is not a copy.*set-primary"):
        restored(url, {"cluster-1": at(drill[0]), "cluster-2": at(servers[1])}, lambda store: None)
    with pytest.raises(InvalidInput, match="no server is given"):
        restored(url, {}, lambda store: None)
    done = restored(url, {}, lambda store: None, replaces_original=True)
    with schemaless.connect(url) as store:
        store.put_cell(ROWS[0], "BASE", 2, "still here")
        topology = internals_of(store).topology
    assert done.changed
    assert [str(cluster.primary) for cluster in topology.clusters] == [str(server.socket) for server in servers]
    assert topology.clusters[1].epoch == (2 if flavour == "mysql" else 0)


def test_a_catalog_is_at_home_by_the_identity_or_the_address_of_its_server(url, name, servers, drill, tmp_path):
    """Another address of the same server is fine, and so is another server at the same address, as after a failover."""
    link = tmp_path / "renamed.sock"
    link.symlink_to(servers[0].socket)
    with schemaless.connect(f"mysql://root@/{name}?unix_socket={link}") as store:
        pool = internals_of(store).catalog
        assert pool.run(lambda connection: connection.rows(b"SELECT 1"))
        own = server_identity(pool)
    assert sql(servers[0], f"SELECT server FROM {name}.node ORDER BY node_id")[0] == (own,)
    sql(servers[0], f"UPDATE {name}.node SET server='another'")
    schemaless.connect(url).close()
    with pytest.raises(CatalogCopied):
        schemaless.connect(f"mysql://root@/{name}?unix_socket={link}")
