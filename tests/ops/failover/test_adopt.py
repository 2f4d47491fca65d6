"""Adoption of failovers: which servers are written to, which ids come next, and adoptions killed at any point."""

from __future__ import annotations

import itertools
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pymysql
import pytest
from pymysql.constants import ER

import schemaless
from schemaless import Datastore, DictionaryInUse, InvalidInput, PrimaryNotClaimed, ServerError, TopologyError
from schemaless.cli.topology_failover import say_promotion
from schemaless.local import replication
from schemaless.local.description import LocalServer
from schemaless.ops.admin import dictionary_removal as removal
from schemaless.ops.admin.ndjson import dump_lines, dump_reader, load
from schemaless.ops.failover import adopt as failover
from schemaless.ops.failover import change as changing
from schemaless.ops.failover import nodes
from schemaless.ops.failover.change import NodeChange
from schemaless.ops.failover.lost import lost_cells, settle_lost, unsettled
from schemaless.ops.failover.promotion import BLOCK_BITS
from schemaless.ops.failover.states import node_states
from schemaless.ops.jobs.job_store import JobStore
from schemaless.ops.jobs.throttle import Thresholds
from schemaless.ops.migrate.run import run as migrate
from schemaless.ops.migrate.spec import MigrateSpec
from schemaless.ops.move.record import Records
from schemaless.store.internals import internals_of
from schemaless.wire.connection import Connection
from tests.accounts import Accounts, accounts_on
from tests.promotion import failed_over, over, read_only, semi_synchronous, sound_replica, sql

pytestmark = pytest.mark.mysql

_names = itertools.count(1)
SHARD, ELSEWHERE = 0, 2
TIMEOUT_S = 60
"""More than a replica that follows takes on a busy machine."""

SHORT_S = 0.5
"""For adoptions that wait in vain for a server that does not follow."""

ASYNCHRONOUS = "replication is not semi-synchronous: a failover loses cells that were acknowledged but not sent yet"


@pytest.fixture(scope="module")
def first(flavour: str, request: pytest.FixtureRequest) -> LocalServer:
    """The first primary."""
    if flavour == "mariadb":
        pytest.skip("adoption is not supported on MariaDB, see test_mariadb_is_refused; runs with SERVER=mysql")
    server: LocalServer = request.getfixturevalue("replicated")
    return server


@pytest.fixture
def second(first: LocalServer) -> LocalServer:
    """Its replica, which is promoted."""
    replica = sound_replica(first)
    replication.wait_until_replicating(first, replica, print)  # the accounts of these tests, for one
    return replica


@pytest.fixture(scope="module")
def own_accounts(first: LocalServer, servers: list[LocalServer]) -> Iterator[Accounts]:
    """Accounts of these tests on all servers."""
    with accounts_on([first.url, servers[0].url], prefix="failover_") as accounts:
        yield accounts


@pytest.fixture
def url(own_accounts: Accounts, second: LocalServer) -> str:
    """A new datastore for ``app``: the catalog and shards 0 and 1 on the first server, 2 and 3 elsewhere."""
    url = own_accounts.create(f"failovers{next(_names)}", 4)
    nodes.add_replica(own_accounts.url("admin", url), "cluster-1", own_accounts.url("admin", second.url))
    return url


@pytest.fixture
def client(url: str) -> Iterator[Datastore]:
    """A client that stays connected during failovers."""
    with schemaless.connect(url) as store:
        yield store


@pytest.fixture
def elsewhere(own_accounts: Accounts, servers: list[LocalServer]) -> Iterator[Datastore]:
    """A client of a datastore with shards 2 and 3 on the first server, and the catalog and the others elsewhere."""
    swapped = Accounts([servers[0].url, own_accounts.servers[0]], None, "failover_")
    url = swapped.create(f"failovers{next(_names)}", 4)
    with schemaless.connect(url) as store:
        yield store


@pytest.fixture
def adopt(own_accounts: Accounts, client: Datastore) -> Callable[..., NodeChange]:
    """Adopts a server, as ``topology adopt`` does, with a URL that names this server."""

    def run(server: LocalServer, **options: object) -> NodeChange:
        server_url = own_accounts.url("admin", server.url)
        name = server_url.replace("/?", f"/{client.name}?", 1)
        return failover.adopt(name, "cluster-1", server_url, **{"timeout_s": TIMEOUT_S, **options})

    return run


@pytest.fixture
def rows(client: Datastore, new_row: Callable[[], uuid.UUID]) -> Callable[..., uuid.UUID]:
    """Returns an unused row key of a shard."""
    return lambda shard=SHARD: next(row for row in iter(new_row, None) if client.shard_of(row) == shard)


def block_of(added_id: int) -> int:
    """Return the block of an added_id."""
    return added_id >> BLOCK_BITS


def lose_connections(server: LocalServer) -> None:
    """Kill every connection of an application to a server, as its restart would."""
    for (number,) in sql(server, "SELECT ID FROM information_schema.PROCESSLIST WHERE USER LIKE 'failover%'"):
        try:
            sql(server, f"KILL {number}")
        except pymysql.OperationalError as error:  # a pool may have closed it since
            if error.args[0] != ER.NO_SUCH_THREAD:
                raise


def keys_on(server: LocalServer, store: Datastore) -> set[bytes]:
    """Return the row keys of the shard on a server."""
    return {row for (row,) in sql(server, f"SELECT row_key FROM {store.name}_{SHARD:04d}.cell")}


def test_first_claim_is_made_while_programs_write(client, adopt, first, rows):
    """The present primary gets a claim, and clients continue in a new block of ids; a repetition does nothing."""
    before = client.put_cell(rows(), "BASE", 1, 1).added_id
    done = adopt(first)
    again = adopt(first)
    internals_of(client).shards.router.look_at_s = 0
    after = client.put_cell(rows(), "BASE", 1, 2).added_id

    assert (done.changed, done.cluster.epoch, again.changed) == (True, 1, False)
    assert list(done.removed) == list(again.removed) == []
    assert (block_of(before), block_of(after)) == (0, 2)
    assert internals_of(client).topology.cluster("cluster-1").epoch == 1


@pytest.mark.long
def test_first_claim_follows_at_once_when_it_is_required(client, adopt, first, rows, monkeypatch, caplog):
    """No shard is changed, and no table created, between the two: new connections are refused until the claim is made.

    Connected programs report no shard on another server, since none is.
    """
    original, sent = Connection.ask, []

    def send(connection, statement, **options):
        sent.append(statement)
        return original(connection, statement, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Connection, "ask", send)
        adopt(first)
    required = next(n for n, statement in enumerate(sent) if b"primary_epoch=1" in statement)
    made = next(n for n, statement in enumerate(sent) if b"INSERT" in statement and b".primary_claim" in statement)
    internals_of(client).shards.router.look_at_s = 0
    with caplog.at_level("INFO", "schemaless"):
        client.put_cell(rows(), "BASE", 1, 1)

    assert required < made
    shard = f"{client.name}_0000".encode()
    assert any(shard in statement for statement in sent[:required])
    assert [each for each in sent[required:made] if shard in each or each.startswith(b"CREATE")] == []
    assert internals_of(client).topology.cluster("cluster-1").epoch == 1
    assert [record.getMessage() for record in caplog.records] == []


def test_server_without_the_claim_is_not_used(client, adopt, first, rows):
    """Another server behind the same address, whose copy of the claim names a different server, is not used."""
    adopt(first)
    internals_of(client).shards.router.look_at_s = 0
    client.put_cell(rows(), "BASE", 1, 1)
    claims = f"{client.name}_heartbeat.primary_claim"
    sql(first, f"UPDATE {claims} SET server = UUID()")
    lose_connections(first)
    with pytest.raises(PrimaryNotClaimed, match="no claim on cluster-1, but the catalog requires claim 1") as refused:
        client.get_cell(rows(), "BASE", 1)
    sql(first, f"DROP TABLE {claims}")
    with pytest.raises(PrimaryNotClaimed):
        client.put_cell(rows(), "BASE", 1, 1)
    adopt(first)

    assert refused.value.retryable
    assert refused.value.retry_after_s
    assert client.put_cell(rows(), "BASE", 1, 1).created
    assert client.put_cell(rows(ELSEWHERE), "BASE", 1, 1).created


def test_old_primary_that_comes_back_is_not_written_to(client, url, adopt, first, second, rows):
    """It is back, writable, with its old catalog: neither connected programs nor new ones write there.

    A program that has met no error stops writing there when it reads the catalog again.
    """
    adopt(first)
    client.put_cell(rows(), "BASE", 1, 1)
    with schemaless.connect(url) as calm, failed_over(first):
        calm.get_cell(rows(), "BASE", 1)
        with read_only(first):
            done = adopt(second)
        kept = keys_on(first, client)
        mine = [rows() for _ in range(5)]
        internals_of(calm).shards.router.look_at_s = 0
        puts = [calm.put_cell(mine[0], "BASE", 1, 2)]
        lose_connections(first)
        puts += [client.put_cell(row, "BASE", 1, 2) for row in mine[1:3]]
        with schemaless.connect(url) as late:
            puts += [late.put_cell(row, "BASE", 1, 2) for row in mine[3:]]

            assert internals_of(late).catalog.node.socket == str(second.socket)
        assert all(put.created for put in puts)
        assert keys_on(first, client) == kept
        assert keys_on(second, client) == kept | {row.bytes for row in mine}
    assert (done.old_primary, done.url) == ("read-only", None)


@pytest.mark.long
def test_jobs_go_on_where_the_catalog_is(url, client, adopt, first, second, own_accounts):
    """A runner keeps its job store across the failover: the call that fails finds the new catalog."""
    adopt(first)
    with schemaless.connect(own_accounts.root(url)) as store:
        job_store, records = JobStore(store), Records(store)
        job = job_store.create("check", {}, {SHARD: 1}, ["cluster-1"], {})
        with over(first):
            adopt(second)
            with pytest.raises(ServerError):
                job_store.change_state(job.job_id, ["running"], "paused")
            assert job_store.change_state(job.job_id, ["running"], "paused")

            assert internals_of(store).catalog.node.socket == str(second.socket)
            assert job_store.job(job.job_id).state == "paused"
            assert records.all() == []


def test_two_failovers_give_no_id_twice(elsewhere, first, second, own_accounts, new_row):
    """Also if the second server does not know the first one's ids, and if nothing was written in between.

    The third primary reaches block 4 by its own ids and the second one block 5: adding the epoch would collide.
    """
    cells = f"{elsewhere.name}_0002.cell"
    sql(first, f"ALTER TABLE {cells} AUTO_INCREMENT = {4 << BLOCK_BITS}")

    def adopt(server: LocalServer, **options: bool) -> NodeChange:
        url = own_accounts.url("admin", internals_of(elsewhere).url.for_database(elsewhere.name))
        return failover.adopt(url, "cluster-2", own_accounts.url("admin", server.url), timeout_s=SHORT_S, **options)

    def put() -> int:
        row = next(row for row in iter(new_row, None) if elsewhere.shard_of(row) == 2)
        return elsewhere.put_cell(row, "BASE", 1, 1).added_id

    ids = [put()]
    with failed_over(first):
        with read_only(first):
            values = f"{(5 << BLOCK_BITS) + 10}, UUID_TO_BIN(UUID()), 'BASE', 1, ''"
            sql(second, f"INSERT INTO {cells} (added_id, row_key, column_name, ref_key, body) VALUES ({values})")
            adopt(second)
            lose_connections(first)
            ids.append(put())
        # As if that server did not answer.
        sql(second, f"DELETE FROM {cells}", f"ALTER TABLE {cells} AUTO_INCREMENT = 1")
        with read_only(second):
            with pytest.raises(TopologyError, match="lacks transactions"):
                adopt(first)
            third = adopt(first, accept_loss=True)
            lose_connections(second)
            ids.append(put())
        with read_only(first):
            adopt(second, accept_loss=True)
        with read_only(second):
            adopt(first, accept_loss=True)
            ids.append(put())

    assert third.old_primary == "ahead"
    assert len({block_of(added_id) for added_id in ids}) == 4
    assert ids == sorted(ids)


@pytest.mark.long
def test_shards_that_are_being_moved_are_not_fenced(client, own_accounts, adopt, first, second, rows):
    """A cut that had fenced the source, a cut past its commit point here, and a table that belongs to no move.

    The last one needs a privilege that the account lacks, which is reported before anything is written.
    """
    name, admin = client.name, own_accounts.account("admin")
    before = client.put_cell(rows(), "BASE", 1, 1).added_id
    sql(first, f"RENAME TABLE {name}_0000.cell TO {name}_0000.cell_moved_0123456789abcdef")
    for shard in (2, 3):
        sql(
            first,
            f"CREATE DATABASE {name}_000{shard}",
            f"CREATE TABLE {name}_000{shard}.cell LIKE {name}_0001.cell",
            f"GRANT SELECT, INSERT, CREATE, ALTER, INDEX ON {name}_000{shard}.* TO {admin}",
        )
    move = f"INSERT INTO {name}.shard_move SET job_id=1, shard=2, source='cluster-2', target='cluster-1', phase="
    sql(first, f"{move}'cutting'")
    with failed_over(first):
        with read_only(first):
            with pytest.raises(TopologyError, match=r"cells of a shard .*_0003.*RENAME TABLE.*Nothing was written"):
                adopt(second)
            ((epoch,),) = sql(second, f"SELECT MAX(primary_epoch) FROM {name}.cluster")
            sql(second, f"GRANT DROP ON {name}_0003.* TO {admin}")
            adopt(second)
            lose_connections(first)
        there = {shard: {table for (table,) in sql(second, f"SHOW TABLES FROM {name}_000{shard}")} for shard in (2, 3)}
        sql(second, f"RENAME TABLE {name}_0000.cell_moved_0123456789abcdef TO {name}_0000.cell")
        after = client.put_cell(rows(), "BASE", 1, 1).added_id
    sql(first, *(f"DROP DATABASE {name}_000{shard}" for shard in (2, 3)))

    assert epoch == 0
    assert there[2] == {"cell"}
    assert [table[:11] for table in there[3]] == ["cell_moved_"]
    assert (block_of(before), block_of(after)) == (0, 2)


@pytest.mark.long
def test_concurrent_changes_of_clusters_do_not_prevent_an_adoption(client, adopt, first, rows, monkeypatch):
    """Neither a change of another cluster nor one of the same cluster between the two writes prevents the claim."""
    original, claimed = failover.make_claim, []

    def make_claim(*arguments: Any) -> None:
        cluster = f"cluster-{2 - len(claimed)}"
        node = f"INSERT INTO {client.name}.node (cluster, role, socket) VALUES ('{cluster}', 'replica', '/nowhere')"
        sql(first, node)
        claimed.append(cluster)
        original(*arguments)

    monkeypatch.setattr(failover, "make_claim", make_claim)
    elsewhere = adopt(first)
    sql(first, f"DELETE FROM {client.name}_heartbeat.primary_claim")
    here = adopt(first)
    sql(first, f"DELETE FROM {client.name}.node WHERE cluster = 'cluster-2' AND socket = '/nowhere'")
    internals_of(client).shards.router.look_at_s = 0

    assert claimed == ["cluster-2", "cluster-1"]
    assert (list(elsewhere.removed), [node.socket for node in here.removed]) == ([], ["/nowhere"])
    assert (elsewhere.cluster.epoch, here.cluster.epoch) == (1, 2)
    assert client.put_cell(rows(), "BASE", 1, 1).created


def test_lost_lists_what_only_the_old_primary_has(client, url, adopt, first, second, rows, own_accounts):
    """With lagging asynchronous replication, exactly the cells that were not sent; ``load`` puts them again."""
    replicated = [client.put_cell(rows(), "BASE", 1, {"n": n}).key for n in range(3)]
    with failed_over(first):
        missing = [client.put_cell(rows(), "BASE", 1, {"n": n}).key for n in range(5)]
        text, row = "x" * 900, rows()
        missing += [client.put_cell(row, "VERSIONS", n, {"n": n, "text": text}).key for n in range(12)]
        with schemaless.connect(own_accounts.root(url)) as root:
            spec = MigrateSpec(columns=("VERSIONS",), history=True, thresholds=Thresholds(max_lag_s=None))
            assert migrate(root, spec).total().cells > 8
        with read_only(first), pytest.raises(TopologyError, match="lacks transactions"):
            adopt(second, timeout_s=SHORT_S)
        with read_only(first):
            done = adopt(second, accept_loss=True, timeout_s=SHORT_S)
        lose_connections(first)
        differs, equal = missing[:2]
        client.put_cell(*key_of(differs), {"other": True})
        client.put_cell(*key_of(equal), {"n": 1})
        with schemaless.connect(own_accounts.url("admin", second.url, client.name)) as store:
            lines = [line + b"\n" for _, line in dump_lines(store, lost_cells(store, first_url(first)), stored=False)]
            to_cell = dump_reader(None, codec_for=store.codec_for)
            report = load(store, lines, to_cell, source="lost", keep_going=True)
            remaining = [cell.key for cell in lost_cells(store, first_url(first))]
            with pytest.raises(DictionaryInUse, match="may have cells that a failover lost"):
                removal.remove(store, 1)
            lost = unsettled(store)
            settled = [settle_lost(store, first_url(first)) for _ in range(2)]
            assert (lost, unsettled(store)) == ([str(first.socket)], [])
            with pytest.raises(InvalidInput, match="has no dictionary 1"):
                removal.remove(store, 1)
            with pytest.raises(TopologyError, match="is the primary of cluster-1"):
                next(lost_cells(store, first_url(second)))

        assert done.old_primary == "ahead"
        assert all(client.get_cell(*key_of(key)) for key in [*replicated, *missing])
        found = client.get_versions(row, "VERSIONS", descending=False)
        assert [cell.body for cell in found] == [{"n": n, "text": text} for n in range(12)]
    assert len(lines) == 16
    assert (report.created, len(report.failures)) == (15, 1)
    assert remaining == [differs]
    assert settled == [["cluster-1"], []]


def key_of(key: schemaless.CellKey) -> tuple[uuid.UUID, str, int]:
    """Return the arguments that address a cell."""
    return key.row_key, key.column_name, key.ref_key


def first_url(server: LocalServer) -> str:
    """Return a server's URL without an account."""
    return server.url.replace("root@", "")


@pytest.mark.long
def test_show_warns_of_asynchronous_replication_and_reports_an_old_primary(
    client, own_accounts, adopt, first, second, capsys
):
    """Asynchronous replication is a warning; a primary without its claim and an old primary's catalog are faults."""
    url = own_accounts.url("admin", first.url, client.name)
    calm = {state.node.role: state for state in node_states(url)[1] if state.cluster == "cluster-1"}
    adopt(first)
    claimed = node_states(url)[1][0]
    sql(first, f"UPDATE {client.name}_heartbeat.primary_claim SET server = UUID()")
    unclaimed = node_states(url)[1][0]
    sql(first, f"DELETE FROM {client.name}_heartbeat.primary_claim")
    replication.wait_until_replicating(first, second, print)
    with failed_over(first):
        with read_only(first):
            adopt(second)
        old = [state.fault for state in node_states(url)[1] if state.cluster == "cluster-1"]

    assert (calm["primary"].fault, calm["replica"].fault, calm["replica"].warnings) == (None, None, [])
    assert calm["primary"].warnings == [ASYNCHRONOUS]
    assert (claimed.fault, claimed.claim) == (None, 1)
    assert "the primary has no claim, but the catalog requires claim 1" in str(unclaimed.fault)
    assert any("has recorded claim 2, but this catalog requires 1" in str(fault) for fault in old)


CHANGES = (b"UPDATE", b"INSERT", b"DELETE", b"CREATE", b"ROLLBACK", b"COMMIT")


@pytest.mark.long
def test_a_server_that_is_not_ready_is_not_adopted(client, adopt, first, second, rows, monkeypatch):
    """A server that is read-only, still replicates, or has not applied received transactions is refused.

    So is any server while the old primary accepts writes, unless its group has replaced it.
    """
    with pytest.raises(TopologyError, match="is read-only, so it cannot be the primary"):
        adopt(second)
    with failed_over(first):
        replication.follow(first, second)
        with read_only(first), pytest.raises(TopologyError, match="still replicates from another server"):
            adopt(second)
        sql(second, "STOP REPLICA SQL_THREAD")
        client.put_cell(rows(), "BASE", 1, 1)
        eventually_received(first, second)
        sql(second, "STOP REPLICA IO_THREAD")
        with read_only(first), pytest.raises(TopologyError, match="received transactions that it has not applied"):
            adopt(second, timeout_s=SHORT_S)
        sql(second, "START REPLICA SQL_THREAD")
        with pytest.raises(TopologyError, match="still accepts writes"):
            adopt(second)
        with schemaless.connect(url_at(client, first)) as store:
            assert internals_of(store).topology.cluster("cluster-1").epoch == 0
        asked = []
        monkeypatch.setattr(
            changing, "has_replaced", lambda *pools: asked.append([str(each.node) for each in pools]) or 1
        )
        replaced = adopt(second)

    assert asked == [[str(second.socket), str(first.socket)]]
    assert replaced.old_primary == "read-only"


def eventually_received(first: LocalServer, second: LocalServer) -> None:
    """Wait until a replica has received everything that its primary has committed."""
    ((committed,),) = sql(first, "SELECT @@global.gtid_executed")
    received = "SELECT RECEIVED_TRANSACTION_SET FROM performance_schema.replication_connection_status"
    for _ in range(3000):
        if sql(second, f"SELECT GTID_SUBSET('{committed}', CONCAT(@@global.gtid_executed, ',', ({received})))") == (
            (1,),
        ):
            return
        time.sleep(0.01)
    pytest.fail(f"after 30 s, not received: {committed}")


def test_a_server_is_not_adopted_while_a_replica_has_more_transactions(
    client, own_accounts, adopt, first, second, rows, tmp_path
):
    """The error names the replica that has received more."""
    link = tmp_path / "another.sock"
    link.symlink_to(first.socket)
    node = f"INSERT INTO {client.name}.node (cluster, role, socket) VALUES ('cluster-1', 'replica', '{link}')"
    sql(first, node)
    with failed_over(first):
        client.put_cell(rows(), "BASE", 1, 1)
        with read_only(first), pytest.raises(TopologyError, match="promote that replica instead"):
            adopt(second, timeout_s=SHORT_S)


def test_adoption_says_what_the_new_primary_lacks(client, adopt, first, second):
    """A new primary whose commits wait for a replica is refused; one without a replica, or asynchronous, is named."""
    claimed = adopt(first)
    with over(first):
        with semi_synchronous(second), pytest.raises(TopologyError, match="writes on cluster-1 wait for a replica"):
            adopt(second, timeout_s=SHORT_S)
        done = adopt(second)

    assert claimed.warnings == (f"{first.socket}: {ASYNCHRONOUS}",)
    assert [warning.partition(":")[0] for warning in done.warnings] == [
        "cluster-1 has no replica left",
        str(second.socket),
    ]


@pytest.mark.long
def test_a_new_primary_that_soon_stops_waiting_for_replicas_is_adopted(client, adopt, first, second):
    """Nothing commits there before its adoption, so only the adoption's own first commit makes it asynchronous."""
    with over(first), semi_synchronous(second, timeout_ms=100):
        done = adopt(second)

    assert done.cluster.primary.socket == str(second.socket)
    assert "semi-synchronous replication has fallen back to asynchronous" in done.warnings[0]


@pytest.mark.parametrize("old", ["read-only", "unreachable"])
@pytest.mark.long
def test_errant_transactions_of_a_promoted_replica_are_named(
    client, adopt, first, second, monkeypatch, tmp_path, capsys, old
):
    """Those that began on the replica, but not the old primary's own, which it may not have completed.

    If the old primary does not answer, another replica is asked: here, the same server under another address.
    """
    adopt(first)
    if old == "unreachable":
        link = tmp_path / "another.sock"
        link.symlink_to(first.socket)
        node = f"INSERT INTO {client.name}.node (cluster, role, socket) VALUES ('cluster-1', 'replica', '{link}')"
        sql(first, node)
        monkeypatch.setattr(changing.Change, "old_primary", lambda *arguments, **options: "unreachable")
    ((uuid_of_first,),) = sql(first, "SELECT @@server_uuid")
    with failed_over(first):
        ((executed,),) = sql(second, "SELECT @@global.gtid_executed")
        sql(second, "CREATE DATABASE by_mistake", "DROP DATABASE by_mistake")
        ((expected,),) = sql(second, f"SELECT GTID_SUBTRACT(@@global.gtid_executed, '{executed}')")
        sql(second, f"SET GTID_NEXT = '{uuid_of_first}:1000000'", "BEGIN", "COMMIT", "SET GTID_NEXT = AUTOMATIC")
        with read_only(first):
            done = adopt(second, timeout_s=SHORT_S)
    say_promotion(done)

    assert (done.old_primary, done.errant) == (old, expected)
    assert expected in capsys.readouterr().err


def test_mariadb_is_refused(flavour, admin_url, admin_urls):
    """Adoption was not tested there, so it is refused, and the error names the command that needs no claim."""
    if flavour != "mariadb":
        pytest.skip("adoption is supported on MySQL; the refusal runs with SERVER=mariadb")
    with pytest.raises(TopologyError, match=r"untested and not supported.*set-primary.*Nothing was written"):
        failover.adopt(admin_url, "cluster-1", admin_urls[0])


class Killed(BaseException):
    """Simulates SIGKILL: nothing catches it, and no statement is sent after it."""


@pytest.mark.long
def test_an_adoption_killed_before_each_statement_is_repeated(client, adopt, first, second, rows, monkeypatch):
    """Killed before each statement that changes something: the next run completes, and no id is assigned twice."""
    original, blocks = Connection.ask, []
    as_before = (
        f"DELETE FROM {client.name}_heartbeat.primary_claim",
        f"UPDATE {client.name}.node SET socket = '{first.socket}' WHERE cluster = 'cluster-1' AND role = 'primary'",
        f"DELETE FROM {client.name}.node WHERE role = 'replica'",
        f"INSERT INTO {client.name}.node (cluster, role, socket) VALUES ('cluster-1', 'replica', '{second.socket}')",
    )

    with failed_over(first), read_only(first):
        for last in itertools.count():
            written = []

            def send(connection, statement, written=written, last=last):
                if statement.split()[0] in CHANGES:
                    written.append(statement)
                if len(written) > last:
                    raise Killed
                return original(connection, statement)

            monkeypatch.setattr(Connection, "ask", send)
            try:
                adopt(second)
                complete = True
            except Killed:
                complete = False
            finally:
                monkeypatch.setattr(Connection, "ask", original)
            done = adopt(second)
            lose_connections(first)
            blocks.append(block_of(client.put_cell(rows(), "BASE", 1, 1).added_id))

            assert [node.socket for node in done.cluster.nodes] == [str(second.socket)]
            if complete:
                break
            sql(second, *as_before)

    assert len(set(blocks)) == len(blocks) > 15


def url_at(client: Datastore, server: LocalServer) -> str:
    """Return a datastore's URL with another of its servers."""
    return f"mysql://failover_app@/{client.name}?unix_socket={server.socket}"
