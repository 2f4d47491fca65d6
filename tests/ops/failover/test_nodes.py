"""Changes of replicas and primaries in the catalog, and their checks, on servers that really replicate."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pymysql
import pytest

import schemaless
from schemaless.errors import CatalogCopied, InvalidInput, ShardIdentityMismatch, TopologyError
from schemaless.local.description import LocalServer
from schemaless.ops.failover import change as changing
from schemaless.ops.failover import nodes
from schemaless.ops.failover.adopt import adopt
from schemaless.ops.failover.lost import settle_lost, unsettled
from schemaless.store.internals import internals_of
from tests.accounts import Accounts, accounts_on
from tests.cases import each
from tests.promotion import caught_up, promoted, read_only, semi_synchronous, sql, word

pytestmark = [pytest.mark.mysql, pytest.mark.twice]

_names = itertools.count(1)


def addresses(url: str, cluster: str) -> dict[str, list[str]]:
    """Return a cluster's nodes by role, as a new connection sees them."""
    with schemaless.connect(url) as store:
        found = internals_of(store).topology.cluster(cluster)
        return {"primary": [str(found.primary)], "replicas": [str(node) for node in found.replicas]}


def token_of(url: str) -> bytes | None:
    """Return the token by which programs notice a change."""
    with schemaless.connect(url) as store:
        return internals_of(store).shards.routing.token


@pytest.fixture
def replica(replicated: LocalServer) -> LocalServer:
    """The replica of the replicated server."""
    return replicated.replicas[0]


@pytest.fixture
def other(servers: list[LocalServer]) -> LocalServer:
    """A server that replicates nothing."""
    return servers[0]


@pytest.fixture
def stranger(servers: list[LocalServer]) -> LocalServer:
    """A server that is not part of the datastore."""
    return servers[1]


@pytest.fixture
def row(url: str, new_row: Callable[[], uuid.UUID]) -> uuid.UUID:
    """A row key of shard 0, which is on the replicated server."""
    with schemaless.connect(url) as store:
        return next(row for row in iter(new_row, None) if store.shard_of(row) == 0)


@pytest.fixture
def name() -> str:
    """A unique datastore name."""
    return f"nodes{next(_names)}"


@pytest.fixture(scope="module")
def own_accounts(replicated: LocalServer, servers: list[LocalServer]) -> Iterator[Accounts]:
    """Accounts of these tests on all servers."""
    with accounts_on([replicated.url, *(server.url for server in servers)], prefix="nodes_") as accounts:
        yield accounts


@pytest.fixture
def at(own_accounts: Accounts) -> Callable[[LocalServer], str]:
    """Returns a server's URL with an account that has exactly the role ``admin``."""
    return lambda server: own_accounts.url("admin", server.url)


@pytest.fixture
def url(name: str, own_accounts: Accounts, at: Callable[..., str], replicated: LocalServer, other: LocalServer) -> str:
    """A new datastore: the catalog and shard 0 on the server that has a replica, shard 1 elsewhere."""
    own_accounts.allow_admin_anywhere(name, 2)
    return schemaless.create(name, 2, [at(replicated), at(other)])


def test_a_checked_replica_is_added_and_read_from(url, at, replicated, replica, row):
    """The catalog has the replica, and only reads that ask for a replica go there."""
    before = addresses(url, "cluster-1")
    added = nodes.add_replica(url, "cluster-1", at(replica))
    again = nodes.add_replica(url, "cluster-1", at(replica))

    assert before == {"primary": [str(replicated.socket)], "replicas": []}
    assert addresses(url, "cluster-1") == {"primary": [str(replicated.socket)], "replicas": [str(replica.socket)]}
    assert (added.changed, again.changed) == (True, False)
    assert [str(node) for node in added.arrived_s] == [str(replica.socket)]
    with schemaless.connect(url) as store:
        who = b"SELECT @@server_id"
        assert internals_of(store).shards.rows(0, who) == ((1,),)
        assert internals_of(store).shards.rows(0, who, read_from="replica") == ((1001,),)
        assert internals_of(store).shards.rows(1, who, read_from="replica") == ((1,),), "a cluster without a replica"
        sql(replica, f"STOP {word(replica)} SQL_THREAD")
        try:
            store.put_cell(row, "BASE", 1, {"n": 1})
            reads: list[Callable[..., Any]] = [
                lambda **where: store.get_cell(row, "BASE", 1, **where),
                lambda **where: store.get_cell_latest(row, "BASE", **where),
                lambda **where: store.get_cells_latest([(row, "BASE")], **where),
                lambda **where: store.get_row(row, **where),
                lambda **where: list(store.get_versions(row, "BASE", **where)),
            ]
            assert all(read() and read(read_from="primary") for read in reads)
            assert not any(read(read_from="replica") for read in reads)
        finally:
            sql(replica, f"START {word(replica)} SQL_THREAD")
        nodes.add_replica(url, "cluster-1", at(replica))  # waits until the replica has it
        assert all(read(read_from="replica") for read in reads)


def test_a_server_that_does_not_replicate_is_refused(url, at, name, replicated, replica, stranger):
    """Another cluster's replica, a stopped one, and a server restored from a backup are refused."""
    before = addresses(url, "cluster-1")
    with pytest.raises(InvalidInput, match="is already in cluster-1"):
        nodes.add_replica(url, "cluster-1", at(replicated))
    with pytest.raises(TopologyError, match=r"did not arrive on .* within 0.2 s.* Nothing was written"):
        nodes.add_replica(url, "cluster-2", at(replica), timeout_s=0.2)
    nodes.add_replica(url, "cluster-1", at(replica))
    nodes.remove_replica(url, "cluster-1", at(replica))
    sql(replica, f"STOP {word(replica)}")
    try:
        with pytest.raises(TopologyError, match="did not arrive"):
            nodes.add_replica(url, "cluster-1", at(replica), timeout_s=0.2)
    finally:
        sql(replica, f"START {word(replica)}")
    token = f"{name}_heartbeat.heartbeat_token (cluster, writer, token) VALUES ('cluster-1', 'old', REPEAT('x', 16))"
    sql(replicated, f"INSERT INTO {token}")
    for database in (f"{name}_0000", f"{name}_heartbeat"):
        copy_database(replicated, stranger, database)
    with pytest.raises(TopologyError, match="did not arrive"):
        nodes.add_replica(url, "cluster-1", at(stranger), timeout_s=0.2)

    assert sql(stranger, f"SELECT COUNT(*) FROM {name}_heartbeat.heartbeat_token") == ((1,),)
    assert addresses(url, "cluster-1") == before


def copy_database(source: LocalServer, target: LocalServer, database: str) -> None:
    """Copy a database with its few rows, as a restored backup would have them."""
    sql(target, f"CREATE DATABASE {database}")
    connection = pymysql.connect(
        unix_socket=str(target.socket), user="root", database=database, autocommit=True, ssl_disabled=True
    )
    with connection, connection.cursor() as cursor:
        for (table,) in sql(source, f"SHOW TABLES FROM {database}"):
            ((_, definition),) = sql(source, f"SHOW CREATE TABLE {database}.{table}")
            cursor.execute(definition)
            for row in sql(source, f"SELECT * FROM {database}.{table}"):
                cursor.execute(f"INSERT INTO {table} VALUES ({', '.join(['%s'] * len(row))})", row)


def test_the_primary_under_another_address_is_refused_as_a_replica(url, at, replicated, tmp_path):
    """The primary's own server is refused under any address."""
    link = tmp_path / "another.sock"
    link.symlink_to(replicated.socket)

    with pytest.raises(TopologyError, match="itself, under another address"):
        nodes.add_replica(url, "cluster-1", f"mysql://nodes_admin@/?unix_socket={link}")


def test_replica_without_a_shard_is_refused(url, at, name, replicated, replica):
    """A replica that filters databases is detected by its missing shards."""
    nodes.add_replica(url, "cluster-1", at(replica))
    nodes.remove_replica(url, "cluster-1", at(replica))
    table = f"{name}_0000.shard_identity"
    sql(replica, "SET GLOBAL read_only = 0", "SET sql_log_bin = 0", f"UPDATE {table} SET shard = 7")
    try:
        with pytest.raises(ShardIdentityMismatch, match=f"'{name}_0000' on .* is shard 7"):
            nodes.add_replica(url, "cluster-1", at(replica))
    finally:
        sql(replica, "SET sql_log_bin = 0", f"UPDATE {table} SET shard = 0", "SET GLOBAL read_only = 1")
        if replica.flavour == "mysql":
            sql(replica, "SET GLOBAL super_read_only = 1")

    assert addresses(url, "cluster-1")["replicas"] == []


@each(
    "cluster, address, complaint",
    [
        ("cluster-3", "mysql://db-9/", "has no cluster 'cluster-3'; its clusters are cluster-1, cluster-2"),
        ("cluster-1", "mysql://db-9/trips", "of a server, not of a database"),
        ("cluster-1", "mysql://somebody@db-9/", "share one account"),
    ],
)
def test_arguments_that_cannot_be_used(url, at, cluster, address, complaint):
    """An unknown cluster, a database and another account are refused before any server is contacted."""
    for call in (nodes.add_replica, nodes.remove_replica, nodes.set_primary):
        with pytest.raises(InvalidInput, match=complaint):
            call(url, cluster, address)


def test_catalog_is_not_changed_through_a_replica(url, at, name, replicated, replica):
    """A replica's copy of the catalog is read but never written, although root could write there on MariaDB."""
    through_replica = f"mysql://nodes_admin@/{name}?unix_socket={replica.socket}"
    nodes.add_replica(url, "cluster-1", at(replica))

    with caught_up(replicated):
        assert addresses(through_replica, "cluster-1") == addresses(url, "cluster-1")
    with pytest.raises(TopologyError, match="is not a primary that accepts writes"):
        nodes.remove_replica(through_replica, "cluster-1", at(replica))
    assert addresses(url, "cluster-1")["replicas"] == [str(replica.socket)]


def test_concurrent_changes_do_not_overwrite_each_other(url, at, replica, monkeypatch):
    """A topology that changed since it was read is not overwritten."""
    write = changing.write_clusters

    def change_first(*arguments):
        monkeypatch.setattr(changing, "write_clusters", write)
        nodes.add_replica(url, "cluster-1", at(replica))
        write(*arguments)

    monkeypatch.setattr(changing, "write_clusters", change_first)
    with pytest.raises(TopologyError, match="changed concurrently"):
        nodes.add_replica(url, "cluster-1", at(replica))

    assert addresses(url, "cluster-1")["replicas"] == [str(replica.socket)]


def test_a_switchover_moves_the_catalog(url, at, name, replicated, replica, row):
    """After a switchover, the new primary has the catalog and every cell, and the old server is removed."""
    nodes.add_replica(url, "cluster-1", at(replica))
    with schemaless.connect(url) as store:
        store.put_cell(row, "BASE", 1, {"n": 1})
    with pytest.raises(TopologyError, match="is read-only, so it cannot be the primary"):
        nodes.set_primary(url, "cluster-1", at(replica))
    with caught_up(replicated), promoted(replicated):
        with pytest.raises(TopologyError, match="still accepts writes"):
            nodes.set_primary(url, "cluster-1", at(replica))
        with read_only(replicated):
            with pytest.raises(TopologyError, match=r"does not follow the new primary.*omit --keep-old-as-replica"):
                nodes.set_primary(url, "cluster-1", at(replica), keep_old=True, timeout_s=0.2)
            changed = nodes.set_primary(url, "cluster-1", at(replica))

            assert (changed.changed, changed.old_primary) == (True, "read-only")
            assert changed.url == f"mysql://nodes_admin@/{name}?unix_socket={replica.socket}"
            assert addresses(changed.url, "cluster-1") == {"primary": [str(replica.socket)], "replicas": []}
            token = token_of(changed.url)
            again = nodes.set_primary(changed.url, "cluster-1", at(replica))
            assert (again.changed, again.old_primary, again.removed, again.url) == (True, None, {}, None)
            assert token_of(changed.url) != token, "its address may lead to another server than before"
            with schemaless.connect(changed.url) as store:
                assert store.get_cell(row, "BASE", 1).body == {"n": 1}
                store.put_cell(row, "BASE", 2, {"n": 2})
            # The old catalog still names the old primary, and refuses changes.
            with pytest.raises(TopologyError):
                nodes.remove_replica(url, "cluster-1", at(replica))


@pytest.mark.long
def test_a_switchover_may_be_unable_to_read_what_the_old_primary_received(flavour, url, at, replicated, replica):
    """Errant transactions are found by what it has committed; a warning has the GRANT."""
    if flavour != "mysql":
        pytest.skip("errant transactions are looked for on MySQL only; runs with SERVER=mysql")
    nodes.add_replica(url, "cluster-1", at(replica))
    privilege = "SELECT ON performance_schema.replication_connection_status"
    sql(replicated, f"REVOKE {privilege} FROM nodes_admin")
    with caught_up(replicated), promoted(replicated), read_only(replicated):
        ((executed,),) = sql(replica, "SELECT @@global.gtid_executed")
        sql(replica, "CREATE DATABASE by_mistake", "DROP DATABASE by_mistake")
        ((expected,),) = sql(replica, f"SELECT GTID_SUBTRACT(@@global.gtid_executed, '{executed}')")
        changed = nodes.set_primary(url, "cluster-1", at(replica))

    assert (changed.old_primary, changed.cluster.primary.socket) == ("read-only", str(replica.socket))
    assert sql(replica, f"SELECT GTID_SUBSET('{expected}', '{changed.errant}')") == ((1,),)
    assert f"GRANT {privilege} TO 'nodes_admin'" in changed.warnings[0]


@pytest.mark.long
def test_a_primary_that_soon_stops_waiting_for_replicas_is_accepted(url, at, replicated, replica, tmp_path):
    """It waits for a semi-synchronous replica until a commit times out, and none was made yet."""
    link = tmp_path / "renamed.sock"
    link.symlink_to(replicated.socket)
    with semi_synchronous(replicated, timeout_ms=100):
        added = nodes.add_replica(url, "cluster-1", at(replica))
    with semi_synchronous(replicated, timeout_ms=100):
        renamed = nodes.set_primary(url, "cluster-1", f"mysql://nodes_admin@/?unix_socket={link}")

    assert added.changed
    assert renamed.changed
    assert "semi-synchronous replication has fallen back to asynchronous" in renamed.warnings[0]


def test_new_primary_that_lacks_transactions_is_refused(url, at, replicated, replica, row):
    """While the old primary answers, the new one must have everything that was committed there."""
    nodes.add_replica(url, "cluster-1", at(replica))  # it has the datastore
    sql(replica, f"STOP {word(replica)}")
    with schemaless.connect(url) as store:
        store.put_cell(row, "BASE", 1, {"late": True})
    with promoted(replicated), read_only(replicated), pytest.raises(TopologyError, match="lacks transactions"):
        nodes.set_primary(url, "cluster-1", at(replica), timeout_s=0.2)

    assert addresses(url, "cluster-1")["primary"] == [str(replicated.socket)]


@pytest.mark.parametrize("command", [nodes.set_primary, pytest.param(adopt, marks=pytest.mark.long)])
def test_a_promoted_server_that_the_catalog_does_not_list(url, at, name, replicated, replica, other, flavour, command):
    """A URL may name it although its catalog does not; a copy is refused, because the original is writable."""
    if flavour == "mariadb" and command is adopt:
        pytest.skip("adoption is not supported on MariaDB, see test_mariadb_is_refused")
    there = at(replica).replace("/?", f"/{name}?")
    with caught_up(replicated), promoted(replicated):
        with pytest.raises(CatalogCopied):
            command(there, "cluster-2", at(other))
        with pytest.raises(TopologyError, match=r"still accepts writes.* run 'schemaless topology restored' instead"):
            command(there, "cluster-1", at(replica))
        with read_only(replicated):
            changed = command(there, "cluster-1", at(replica))
        assert (changed.changed, changed.old_primary) == (True, "read-only")
        assert addresses(there, "cluster-1") == {"primary": [str(replica.socket)], "replicas": []}


GONE = "/nowhere/gone.sock"


def test_failover_when_the_old_primary_is_gone(url, at, name, replicated, other):
    """An old primary that does not answer does not prevent the change to a server with every shard."""
    sql(replicated, f"UPDATE {name}.node SET socket = '{GONE}' WHERE cluster = 'cluster-2'")
    with pytest.raises(TopologyError, match="cannot be kept as a replica, because it is unreachable"):
        nodes.set_primary(url, "cluster-2", at(other), keep_old=True)
    with pytest.raises(ShardIdentityMismatch, match=rf"no database '{name}_000[01]'"):
        nodes.set_primary(url, "cluster-1", at(other))
    changed = nodes.set_primary(url, "cluster-2", at(other))

    assert (changed.old_primary, changed.url) == ("unreachable", None)
    assert [str(node) for node in changed.removed] == [GONE]
    assert addresses(url, "cluster-2") == {"primary": [str(other.socket)], "replicas": []}
    with schemaless.connect(url) as store:
        assert unsettled(store) == [GONE], "its cells may be nowhere else"
        assert settle_lost(store, f"mysql://nodes_admin@/?unix_socket={GONE}") == ["cluster-2"]
        assert unsettled(store) == []


def test_replicas_that_do_not_follow_the_new_primary_are_refused_or_dropped(
    url, at, name, replica, replicated, tmp_path
):
    """Reads must not go to a replica of the old primary; an unreachable replica can be removed."""
    link = tmp_path / "renamed.sock"
    link.symlink_to(replicated.socket)
    renamed = f"mysql://nodes_admin@/?unix_socket={link}"
    nodes.add_replica(url, "cluster-1", at(replica))
    sql(
        replicated,
        f"INSERT INTO {name}.node (cluster, role, socket) VALUES ('cluster-1', 'replica', '{GONE}')",
    )
    with pytest.raises(
        TopologyError, match=rf"{GONE} does not follow the new primary .* remove it with --drop-replicas"
    ):
        nodes.set_primary(url, "cluster-1", renamed)
    changed = nodes.set_primary(url, "cluster-1", renamed, drop_replicas=True)

    assert addresses(url, "cluster-1") == {"primary": [str(link)], "replicas": [str(replica.socket)]}
    assert [str(node) for node in changed.removed] == [str(replicated.socket), GONE]
    with pytest.raises(InvalidInput, match=f"is not a replica of cluster-1; its replicas are: {replica.socket}"):
        nodes.remove_replica(url, "cluster-1", f"mysql:///?unix_socket={GONE}")


@pytest.mark.long
def test_new_address_of_the_same_server(url, at, name, replicated, other, tmp_path):
    """A new address of the same primary needs no read-only step; the URL changes if the server has the catalog."""
    link = tmp_path / "renamed.sock"
    link.symlink_to(replicated.socket)
    changed = nodes.set_primary(url, "cluster-1", f"mysql://nodes_admin@/?unix_socket={link}")

    assert (changed.old_primary, changed.url) == ("the same server", f"mysql://nodes_admin@/{name}?unix_socket={link}")
    assert addresses(url, "cluster-1") == {"primary": [str(link)], "replicas": []}
    assert addresses(changed.url, "cluster-2") == {"primary": [str(other.socket)], "replicas": []}
