"""Creation of datastores: over several servers, repeatable after an interruption, never over existing databases."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

import schemaless
from schemaless import DatastoreExists, InvalidInput, ShardIdentityMismatch
from schemaless.ops.admin import create as creation
from schemaless.schema import engines
from schemaless.schema.databases import databases_like
from schemaless.wire.pool import NodePool, PoolOptions
from schemaless.wire.urls import parse_url


def databases(url: str, name: str) -> list[str]:
    """Return a server's databases of a datastore."""
    parsed = parse_url(url)
    pool = NodePool(parsed.node, parsed.credentials, PoolOptions())
    try:
        return databases_like(pool, name)
    finally:
        pool.close()


@pytest.mark.mysql
def test_create_spreads_shards_over_both_servers(server_urls, new_name, admin_urls):
    """Each server gets half of the shards, and the first one the catalog."""
    created = []
    url = schemaless.create(new_name, 5, admin_urls, on_shard=created.append)

    endings = [["", "_0000", "_0001", "_heartbeat"], ["_0002", "_0003", "_0004", "_heartbeat"]]
    assert [databases(url, new_name) for url in server_urls] == [[new_name + each for each in of] for of in endings]
    assert sorted(created) == [0, 1, 2, 3, 4]
    with schemaless.connect(url) as store:
        assert store.shard_count == 5
        assert store.name == new_name


@pytest.mark.mysql
def test_create_twice_is_refused_and_changes_nothing(new_name, row, admin_urls):
    """A second create, with the same or another number of shards, changes no cell."""
    url = schemaless.create(new_name, 4, admin_urls)
    with schemaless.connect(url) as store:
        store.put_cell(row, "BASE", 1, "mine")
        for shards in (4, 8):
            with pytest.raises(DatastoreExists, match="nothing was changed"):
                schemaless.create(new_name, shards, admin_urls)

        assert store.get_cell(row, "BASE", 1).body == "mine"


@pytest.mark.mysql
@pytest.mark.parametrize("after", [0, 1, 3])
@pytest.mark.long
def test_an_interrupted_creation_continues_when_repeated(
    server_urls, new_name, monkeypatch, after, admin_urls, accounts
):
    """Created shards are kept and the others are created; until then, connections are refused."""
    created = 0
    original = creation.create_shard

    def breaks(*arguments: object) -> None:
        nonlocal created
        if created >= after:
            raise KeyboardInterrupt
        created += 1
        original(*arguments)

    monkeypatch.setattr(creation, "create_shard", breaks)
    with pytest.raises(KeyboardInterrupt):
        schemaless.create(new_name, 4, admin_urls)
    monkeypatch.undo()
    with pytest.raises(schemaless.DatastoreNotFound, match="interrupted"):
        schemaless.connect(accounts.url("admin", server_urls[0], new_name))
    with pytest.raises(DatastoreExists, match=r"was interrupted, with 4 shards"):
        schemaless.create(new_name, 5, admin_urls)
    url = schemaless.create(new_name, 4, admin_urls)

    with schemaless.connect(url) as store:
        assert [list(store.scan_shard(shard)) for shard in range(4)] == [[]] * 4


@pytest.mark.mysql
def test_two_concurrent_creations_of_one_name_create_one_datastore(new_name, monkeypatch, admin_urls):
    """Both find no database; one writes the catalog, and the other fails without a change."""
    both = threading.Barrier(2)
    original = creation.write_topology

    def together(*arguments: object) -> None:
        both.wait(120)
        original(*arguments)

    def one(shards: int) -> object:
        try:
            return schemaless.create(new_name, shards, admin_urls)
        except DatastoreExists as error:
            return error

    monkeypatch.setattr(creation, "write_topology", together)
    with ThreadPoolExecutor(2) as threads:
        outcomes = dict(zip((4, 5), threads.map(one, (4, 5)), strict=True))

    [(shards, url)] = [(shards, outcome) for shards, outcome in outcomes.items() if isinstance(outcome, str)]
    [refused] = [str(outcome) for outcome in outcomes.values() if isinstance(outcome, DatastoreExists)]
    assert f"another process is creating '{new_name}'" in refused
    assert "nothing was changed" in refused
    assert sum(len(databases(server, new_name)) for server in admin_urls) == 1 + 2 + shards
    with schemaless.connect(url) as store:
        assert store.shard_count == shards


@pytest.mark.mysql
def test_create_over_existing_databases_is_refused(server_urls, new_name, admin_urls):
    """A database with a shard's name, but without a catalog, is not used."""
    parsed = parse_url(server_urls[1])
    pool = NodePool(parsed.node, parsed.credentials, PoolOptions())
    pool.run(lambda connection: connection.execute(f"CREATE DATABASE {new_name}_0002".encode()))
    pool.close()

    with pytest.raises(DatastoreExists, match=f"{new_name}_0002"):
        schemaless.create(new_name, 4, admin_urls)
    assert databases(server_urls[0], new_name) == []


@pytest.mark.mysql
def test_create_beside_a_datastore_with_a_longer_name(server_urls, new_name, admin_urls, accounts):
    """'trips' and 'trips_eu' do not conflict."""
    accounts.allow_admin_anywhere(f"{new_name}_eu", 2)
    schemaless.create(f"{new_name}_eu", 2, admin_urls)
    schemaless.create(new_name, 2, admin_urls)

    assert len(databases(server_urls[0], new_name)) == 3


@pytest.mark.guarantee("shard-identity")
@pytest.mark.mysql
def test_shards_swapped_between_servers_are_refused(server_urls, new_name, row, admin_urls):
    """A catalog that points to the wrong server is detected before a read finds nothing."""
    url = schemaless.create(new_name, 2, admin_urls)
    parsed = parse_url(server_urls[0])
    pool = NodePool(parsed.node, parsed.credentials, PoolOptions())
    swap = f"UPDATE `{new_name}`.shard_range SET cluster = IF(cluster = 'cluster-1', 'cluster-2', 'cluster-1')"
    pool.run(lambda connection: connection.execute(swap.encode()))
    pool.close()

    with schemaless.connect(url) as store, pytest.raises(ShardIdentityMismatch, match="has no database"):
        store.get_cell(row, "BASE", 1)


@pytest.mark.mysql
@pytest.mark.twice
def test_one_server_under_two_addresses_is_refused(servers, new_name, tmp_path):
    """Each cluster's shards would be tables in the wrong place to the other, which 'check' advises to drop."""
    link = tmp_path / "another.sock"
    link.symlink_to(servers[0].socket)
    addresses = [servers[0].url, servers[1].url, f"mysql://root@/?unix_socket={link}"]

    with pytest.raises(InvalidInput, match=r"another\.sock are the same server under two addresses"):
        schemaless.create(new_name, 3, addresses)

    assert databases(servers[0].url, new_name) == databases(servers[1].url, new_name) == []
    schemaless.create(new_name, 3, addresses[:2])


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("Trips", 4, ["mysql://db-1/"]), "name must be 1 to 48"),
        (("trips", 0, ["mysql://db-1/"]), "shards must be"),
        (("trips", 4, []), "at least one cluster"),
        (("trips", 1, ["mysql://db-1/", "mysql://db-2/"]), "a shard count of 1 cannot be spread over 2"),
        (("trips", 4, ["mysql://db-1/trips"]), "not a database"),
        (("trips", 4, ["mysql://db-1/", "mysql://db-1:3306/"]), "given for two clusters"),
        (("trips", 4, ["mysql://a@db-1/", "mysql://b@db-2/"]), "share one account"),
        (("trips", 4, ["db-1"]), "not a server URL"),
        (("trips", 4, "mysql://db-1/"), "a list of URLs"),
    ],
)
def test_create_with_unusable_arguments_is_refused_before_any_io(arguments, complaint):
    """The server db-1 does not exist, so an attempt to reach it would fail differently."""
    with pytest.raises(InvalidInput, match=complaint):
        schemaless.create(*arguments)


@pytest.mark.mysql
def test_a_withdrawn_release_of_mysql_is_named(new_name, server_urls, server_kind, monkeypatch, caplog):
    """It would not start again once it has thousands of tables."""
    parsed = parse_url(server_urls[0])
    pool = NodePool(parsed.node, parsed.credentials, PoolOptions())
    version = pool.run(lambda connection: connection.version)
    pool.close()
    schemaless.create(new_name, 1, server_urls[:1])
    assert caplog.messages == []
    monkeypatch.setattr(engines, "WITHDRAWN", (version.partition("-")[0],))
    schemaless.create(f"{new_name}_2", 1, server_urls[:1])

    assert len(caplog.messages) == (server_kind == "mysql")
    assert all(f"is MySQL {version}, which was withdrawn" in message for message in caplog.messages)
