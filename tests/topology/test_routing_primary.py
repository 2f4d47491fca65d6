"""Promotions under running programs, and replicas that lag behind a topology change."""

from __future__ import annotations

import itertools
import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

import schemaless
from schemaless import Datastore
from schemaless.local.description import LocalServer
from schemaless.ops.failover import nodes
from schemaless.ops.failover.change import NodeChange
from schemaless.ops.jobs.throttle import ClusterWatch, Thresholds
from schemaless.store.internals import internals_of
from schemaless.wire.errors import READ_ONLY
from tests.accounts import Accounts, accounts_on
from tests.movers import MoveByHand
from tests.promotion import caught_up, promoted, read_only, sql, word

pytestmark = [pytest.mark.mysql]

_names = itertools.count(1)
SHARD, ELSEWHERE = 0, 2


@pytest.fixture
def replica(replicated: LocalServer) -> LocalServer:
    """The replica of the replicated server."""
    return replicated.replicas[0]


@pytest.fixture(scope="module")
def own_accounts(replicated: LocalServer, servers: list[LocalServer]) -> Iterator[Accounts]:
    """Separate accounts on all of these servers; root can write even on a read-only one."""
    with accounts_on([replicated.url, servers[0].url], prefix="primary_") as made:
        yield made


@pytest.fixture
def set_primary(own_accounts: Accounts, client: Datastore) -> Callable[[LocalServer], NodeChange]:
    """Make a server the primary of the first cluster, as ``topology set-primary`` does."""
    url = internals_of(client).url.for_database(client.name)

    def change(server: LocalServer) -> NodeChange:
        return nodes.set_primary(
            own_accounts.url("admin", url), "cluster-1", own_accounts.url("admin", server.url), timeout_s=60
        )

    return change


@pytest.fixture
def client(own_accounts: Accounts, replica: LocalServer) -> Iterator[Datastore]:
    """A client, connected as ``app``; catalog, shards 0 and 1 are on a server with a replica, 2 and 3 on another."""
    url = own_accounts.create(f"primaries{next(_names)}", 4)
    nodes.add_replica(own_accounts.url("admin", url), "cluster-1", own_accounts.url("admin", replica.url))
    with schemaless.connect(url) as store:
        yield store


@pytest.fixture
def rows(client: Datastore, new_row: Callable[[], uuid.UUID]) -> Callable[[int], uuid.UUID]:
    """Return a new row of a shard."""
    return lambda shard: next(row for row in iter(new_row, None) if client.shard_of(row) == shard)


def server_of(store: Datastore, shard: int = SHARD) -> str:
    """Return the socket of the primary that a store uses for a shard."""
    return str(internals_of(store).shards.node_of(shard))


@pytest.mark.long
@pytest.mark.guarantee("topology-followed")
def test_a_hundred_threads_follow_a_primary_that_is_replaced(client, set_primary, replicated, replica, rows):
    """During a switchover of the catalog's own cluster writes are refused; afterwards they go to the new primary."""
    mine = [[rows(SHARD) for _ in range(4)] for _ in range(100)]
    begun, done, given_up = threading.Barrier(101), threading.Event(), threading.Event()
    refused = []

    def work(own: list[uuid.UUID]) -> dict[uuid.UUID, int]:
        written = {}
        begun.wait()
        for turn, row in enumerate(own):
            if turn == len(own) - 1:
                done.wait()
            while row not in written and not given_up.is_set():
                try:
                    written[row] = client.put_cell(row, "BASE", 1, turn).added_id
                except schemaless.ServerError as error:
                    # The old primary is read-only, and the catalog does not name the new one yet.
                    refused.append(error.code)
                    given_up.wait(0.01)
        return written

    with ThreadPoolExecutor(100) as threads:
        calls = [threads.submit(work, own) for own in mine]
        begun.wait()
        try:
            with read_only(replicated), caught_up(replicated), promoted(replicated):
                before = internals_of(client).topology
                change = set_primary(replica)
                done.set()
                written = {row: added_id for call in calls for row, added_id in call.result(120).items()}

                assert change.changed
                assert set(refused) <= READ_ONLY
                assert internals_of(client).topology != before
                assert server_of(client) == str(replica.socket)
                assert {cell.row_key: cell.added_id for cell in client.scan_shard(SHARD)} == written
                assert internals_of(client).catalog.node.socket == str(replica.socket)
        finally:
            given_up.set()
            done.set()


@pytest.mark.twice
@pytest.mark.guarantee("topology-jobs")
def test_followers_and_readers_continue_on_the_new_primary(client, set_primary, replicated, replica, rows):
    """The feed returns each cell once and in order; settlement is determined anew on the new primary."""
    puts = [client.put_cell(rows(SHARD), "BASE", 1, n).added_id for n in range(3)]
    feed = client.iter_shard(SHARD, follow=True, poll_s=0.01)
    seen = [next(feed).added_id for _ in range(3)]
    with read_only(replicated), caught_up(replicated), promoted(replicated):
        set_primary(replica)
        internals_of(client).shards.router.look_at_s = 0
        puts += [client.put_cell(rows(SHARD), "BASE", 1, n).added_id for n in range(3)]
        seen += [next(feed).added_id for _ in range(3)]

        assert server_of(client) == str(replica.socket)
    assert seen == puts


@pytest.mark.long
@pytest.mark.guarantee("topology-jobs")
def test_a_replica_that_lags_behind_a_move_is_not_read(own_accounts, client, replicated, replica, rows, caplog):
    """While it lacks the shard or its table, the primary is read; the topology token is unchanged."""
    row = rows(ELSEWHERE)
    client.put_cell(row, "BASE", 1, "here")
    root_url = own_accounts.root(internals_of(client).url.for_database(client.name))
    sql(replica, f"STOP {word(replica)} SQL_THREAD")
    try:
        with schemaless.connect(root_url) as root:
            MoveByHand(root, internals_of(root).shards, ELSEWHERE, "cluster-1").run()
            assert root.get_cell(row, "BASE", 1).body == "here"
            assert root.get_cell(row, "BASE", 1, read_from="replica").body == "here"
            assert [cell.row_key for cell in root.iter_shard(ELSEWHERE, read_from="replica")] == [row]
            assert f"does not have shard {ELSEWHERE} yet" in caplog.text
    finally:
        sql(replica, f"START {word(replica)} SQL_THREAD")


@pytest.mark.long
def test_a_shard_that_vanishes_from_a_replica_is_read_on_the_primary(client, replicated, replica, rows):
    """Error 1146 from a replica on which the shard was verified before."""
    row = rows(SHARD)
    client.put_cell(row, "BASE", 1, "here")
    database = internals_of(client).shards.database(SHARD)
    client.get_cell(row, "BASE", 1, read_from="replica")
    unlogged, rename = "SET SESSION sql_log_bin = 0", f"RENAME TABLE `{database}`.{{}} TO `{database}`.{{}}"
    # Outstanding events would break its replication for all later tests.
    with caught_up(replicated):
        sql(replica, "SET GLOBAL read_only = 0", unlogged, rename.format("cell", "away"))
    try:
        assert client.get_cell(row, "BASE", 1, read_from="replica").body == "here"
    finally:
        sql(replica, unlogged, rename.format("away", "cell"))
        sql(replica, f"SET GLOBAL {'super_' if replica.flavour == 'mysql' else ''}read_only = 1")


@pytest.mark.twice
def test_a_batch_continues_on_two_primaries(client, set_primary, replicated, replica, rows):
    """Only the shard on the promoted cluster changes its server."""
    elsewhere = server_of(client, ELSEWHERE)
    client.put_cells([schemaless.NewCell(rows(shard), "BASE", 1, 1) for shard in (SHARD, ELSEWHERE)])
    with read_only(replicated), caught_up(replicated), promoted(replicated):
        set_primary(replica)
        puts = client.put_cells([schemaless.NewCell(rows(shard), "BASE", 1, 2) for shard in (SHARD, ELSEWHERE)])

        assert [put.created for put in puts] == [True, True]
        assert (server_of(client), server_of(client, ELSEWHERE)) == (str(replica.socket), elsewhere)


@pytest.mark.long
@pytest.mark.guarantee("topology-jobs")
def test_a_watch_continues_with_the_clusters_new_servers(client, set_primary, replicated, replica):
    """A failover does not end a job: its watch switches to the new servers."""
    watch = ClusterWatch(internals_of(client).shards, "cluster-1", "writer", cache_s=0.0)
    with closing(watch), read_only(replicated), caught_up(replicated):
        look = watch.look(Thresholds(max_lag_s=None))
        assert (look.kind, "is read-only" in look.reason) == ("unreachable", True)
        with promoted(replicated):
            set_primary(replica)

            assert watch.look(Thresholds(max_lag_s=None)).kind is None
            assert str(watch.cluster.primary) == str(replica.socket)
