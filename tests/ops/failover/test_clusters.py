"""Adding a cluster to a datastore: the checks before it is added, and moves to it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pytest
from sqlalchemy import make_url

import schemaless
from schemaless.errors import InvalidInput, TopologyError
from schemaless.local.description import LocalServer
from schemaless.ops.failover import clusters
from schemaless.ops.failover.clusters import add_cluster
from schemaless.ops.move import run as moves
from schemaless.ops.move.spec import MoveSpec
from schemaless.store.cells.sql import upsert_dictionary
from schemaless.store.internals import internals_of
from tests import dictionaries
from tests.accounts import Accounts, accounts_on
from tests.cli.conftest import invoke  # noqa: F401 - the fixture
from tests.promotion import sql

pytestmark = [pytest.mark.mysql, pytest.mark.twice]

_names = itertools.count(1)


@pytest.fixture(scope="module")
def own_accounts(replicated: LocalServer, servers: list[LocalServer]) -> Iterator[Accounts]:
    """Accounts of these tests on all servers."""
    with accounts_on([replicated.url, *(server.url for server in servers)], prefix="clusters_") as accounts:
        yield accounts


@pytest.fixture
def at(own_accounts: Accounts) -> Callable[[LocalServer], str]:
    """Returns a server's URL with an account that has exactly the role ``admin``."""
    return lambda server: own_accounts.url("admin", server.url)


@pytest.fixture
def url(own_accounts: Accounts, at: Callable[..., str], servers: list[LocalServer]) -> str:
    """A new datastore with one cluster."""
    name = f"clusters{next(_names)}"
    own_accounts.allow_admin_anywhere(name, 4)
    return schemaless.create(name, 4, [at(servers[0])])


def test_a_cluster_that_is_added_takes_shards(url, at, own_accounts, servers, replicated, new_row, invoke):  # noqa: F811
    """It has replicas and every dictionary; adding it again repeats the checks, and writes nothing."""
    root = own_accounts.root(url)
    with schemaless.connect(url) as admin:
        number = dictionaries.kept(admin).id
    reader = own_accounts.account("app")
    sql(servers[0], f"GRANT SELECT ON `{make_url(url).database}\\_heartbeat`.* TO {reader}")
    said = invoke("topology", "add-cluster", at(replicated), "--replica", at(replicated.replicas[0]), "--json", url=url)
    (lacking,) = said.json["warnings"]
    sql(replicated, lacking.partition("and run ")[2])
    again = add_cluster(url, at(replicated), replicas=[at(replicated.replicas[0])])
    with schemaless.connect(root) as store:
        put = store.put_cell(new_row(), "BASE", 1, {"n": 1})
        shard = store.shard_of(put.key.row_key)
        (record,) = moves.run(store, MoveSpec("cluster-2", accounts=False), [shard])
        copied = [
            replica.cluster for replica in internals_of(store).dictionary_replicas.copies if number in replica.rows()
        ]
        found = store.get_cell(put.key.row_key, "BASE", 1)
        homes = [internals_of(store).topology.cluster_of(each).name for each in range(4)]
        (left,) = moves.left_behind(store)
        moves.drop(store, left)

    assert (said.code, said.json["changed"], said.json["cluster"]["name"]) == (0, True, "cluster-2")
    assert [node["role"] for node in said.json["cluster"]["nodes"]] == ["primary", "replica"]
    assert copied == ["cluster-1", "cluster-2"]
    assert lacking.startswith(
        f"{reader} lacks privileges on {replicated.socket}; create it there if necessary, and run "
    )
    assert (again.changed, again.warnings) == (False, ())
    assert list(again.arrived_s) == list(again.cluster.replicas)
    assert (record.phase, found.body) == ("verified", {"n": 1})
    assert homes == ["cluster-2" if each == shard else "cluster-1" for each in range(4)]


def test_a_cluster_that_does_not_meet_the_requirements_is_refused(url, at, replicated, servers, monkeypatch):
    """The error has the reason, and the catalog is unchanged; of two concurrent calls, one adds the cluster."""
    stranger = servers[1]
    name = url.partition("?")[0].rpartition("/")[2]
    with pytest.raises(TopologyError, match="is read-only, so it cannot be the primary"):
        add_cluster(url, at(replicated.replicas[0]))
    with pytest.raises(InvalidInput, match="is already in cluster-1"):
        add_cluster(url, at(servers[0]), name="other")
    with pytest.raises(InvalidInput, match="cluster-1 already exists"):
        add_cluster(url, at(stranger), name="cluster-1")
    with pytest.raises(InvalidInput, match="a cluster's name must be"):
        add_cluster(url, at(stranger), name="no/name")
    with pytest.raises(TopologyError, match="did not arrive on"):
        add_cluster(url, at(stranger), replicas=[at(replicated.replicas[0])], timeout_s=0.2)
    sql(stranger, f"CREATE DATABASE {name}_0003")
    try:
        with pytest.raises(TopologyError, match=f"already has databases that the datastore '{name}' would use"):
            add_cluster(url, at(stranger))
    finally:
        sql(stranger, f"DROP DATABASE {name}_0003")
    own = f"{name}_heartbeat"
    sql(stranger, upsert_dictionary(own, 9, b"words", b"9" * 32, "{}").decode("latin-1"))
    with pytest.raises(TopologyError, match=f"has a database {own} of another datastore, with dictionary 9, which is"):
        add_cluster(url, at(stranger))
    claim = "SET cluster='archive', epoch=3, server='its own', claimed_at=UTC_TIMESTAMP(6), claimed_by='somebody'"
    sql(stranger, f"DELETE FROM {own}.dictionary", f"INSERT INTO {own}.primary_claim {claim}")
    with pytest.raises(TopologyError, match="of another datastore, with a claim on archive"):
        add_cluster(url, at(stranger), name="archive")
    sql(stranger, f"DELETE FROM {own}.primary_claim")
    with schemaless.connect(url) as store:
        assert [cluster.name for cluster in internals_of(store).topology.clusters] == ["cluster-1"]
    write = clusters.write_clusters

    def second(*args):
        monkeypatch.undo()
        assert add_cluster(url, at(stranger), name="archive").changed
        write(*args)

    monkeypatch.setattr(clusters, "write_clusters", second)
    with pytest.raises(TopologyError, match="were changed concurrently"):
        add_cluster(url, at(stranger), name="archive")
    again = add_cluster(url, at(stranger), name="archive")
    assert (again.cluster.name, again.changed) == ("archive", False)
