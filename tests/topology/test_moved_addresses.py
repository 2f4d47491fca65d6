"""Addresses that lead to another server, while the old one keeps its connections open."""

from __future__ import annotations

import asyncio
import itertools
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial

import pytest

import schemaless
from schemaless import Datastore, NewCell, ServerRefused, aio
from schemaless.local.description import LocalServer
from schemaless.ops.failover import adopt as failover
from schemaless.ops.failover import nodes
from schemaless.ops.failover.states import node_states
from schemaless.ops.jobs import driver
from schemaless.ops.jobs.throttle import ClusterWatch, Thresholds
from schemaless.ops.move import run as moves
from schemaless.ops.move.copying import Copier
from schemaless.ops.move.fence import Fence
from schemaless.ops.move.record import Records
from schemaless.ops.move.spec import MoveSpec
from schemaless.store.followers.binlog_notifier import BinlogNotifier
from schemaless.store.followers.membership import Timing
from schemaless.store.internals import Internals, internals_of
from schemaless.topology.placement import shard_for
from schemaless.wire import pool as pool_module
from schemaless.wire.address import BALANCED_S
from schemaless.wire.pool import NodePool
from schemaless.wire.urls import parse_url
from tests.accounts import Accounts, accounts_on
from tests.faults.proxy import Fault, Proxy
from tests.promotion import caught_up, promoted, read_only, sql

pytestmark = pytest.mark.mysql

_names = itertools.count(1)
SHARDS = 2


@pytest.fixture(autouse=True)
def patient_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check addresses when a test says so only, with more than a second for the connection, as on a busy machine."""
    monkeypatch.setattr(pool_module, "PROBE_S", 60)
    monkeypatch.setattr(pool_module, "RECHECK_S", 3_600)


@dataclass(frozen=True)
class Address:
    """An address that leads to a primary, and from ``move`` on to its replica, which has been promoted.

    Attributes:
        url: the datastore's URL, which names the address.
        admin: the same, and the address alone, for ``admin``.
        proxy: what listens at the address.
        move: make the first server read-only, promote the second, and lead new connections there.
    """

    url: str
    admin: tuple[str, str]
    proxy: Proxy
    move: Callable[[], None]


@pytest.fixture(scope="module")
def own_accounts(replicated: LocalServer) -> Iterator[Accounts]:
    """Accounts on the server and its replica; root can write even on a read-only server."""
    with accounts_on([replicated.url], prefix="address_") as made:
        yield made


@pytest.fixture
def address(own_accounts: Accounts, replicated: LocalServer) -> Iterator[Address]:
    """A datastore that was created through the address."""
    name = f"address{next(_names)}"
    proxy = Proxy([str(replicated.socket)])
    with ExitStack() as stack:
        stack.callback(proxy.close)
        own_accounts.allow("admin", name, SHARDS)
        (server,) = proxy.urls
        admin, app = (server.replace("root@", f"{own_accounts.account(role).name}@") for role in ("admin", "app"))
        url = schemaless.create(name, SHARDS, [admin])
        own_accounts.allow("app", name, SHARDS)

        def move() -> None:
            stack.enter_context(read_only(replicated))
            stack.enter_context(caught_up(replicated))
            replica = stack.enter_context(promoted(replicated))
            proxy.leads_to[str(replicated.socket)] = str(replica.socket)

        yield Address(app.replace("/?", f"/{name}?"), (url, admin), proxy, move)


def row_of(shard: int) -> uuid.UUID:
    """Return a new row of a shard."""
    return next(row for row in iter(uuid.uuid4, None) if shard_for(row.bytes, SHARDS) == shard)


@contextmanager
def several_connections(store: Datastore, count: int) -> Iterator[None]:
    """Leave several idle connections in the pool of shard 0's server."""
    pool = pool_of(internals_of(store))
    with ExitStack() as stack:
        for _ in range(count):
            stack.enter_context(pool.connection(0))
    assert len(pool.idle) == count
    yield


def reach(pool: NodePool, proxy: Proxy, primary: LocalServer, turn: int) -> None:
    """Make the pool's next call check its address, which leads to the primary or, in turn 1, its replica."""
    server = primary.replicas[0] if turn else primary
    proxy.leads_to[str(primary.socket)] = str(server.socket)
    pool.recheck_at_s = 0.0


def pool_of(internals: Internals) -> NodePool:
    """Return the pool of shard 0's primary."""
    return internals.shards.pool_for(internals.shards.node_of(0))


@pytest.mark.guarantee("address-lost")
def test_writes_continue_on_the_server_that_an_address_leads_to_now(address):
    """The first write that the old server rejects is repeated on a new connection; all older ones are discarded."""
    with schemaless.connect(address.url) as store, several_connections(store, 4):
        before = store.put_cell(row_of(0), "BASE", 1, {"n": 1})
        address.move()
        with ThreadPoolExecutor(4) as threads:
            puts = list(threads.map(lambda n: store.put_cell(row_of(n % SHARDS), "BASE", 1, {"n": n}), range(40)))
        batch = store.put_cells([NewCell(row_of(n % SHARDS), "BASE", 1, {"n": n}) for n in range(10)])
        appended = store.append_cell(before.key.row_key, "BASE", {"n": 2})

        assert appended.key.ref_key == 2
        for put in [before, appended, *puts, *batch]:
            assert store.get_cell(*put.key) is not None
    with schemaless.connect(address.url) as afterwards:
        for put in [before, appended, *puts, *batch]:
            assert afterwards.get_cell(*put.key) is not None


@pytest.mark.guarantee("address-lost")
def test_readers_notice_that_an_address_leads_elsewhere(address):
    """A program that only reads checks each address now and then, and then reads from the new server."""
    row = row_of(0)
    with schemaless.connect(address.url) as reader, schemaless.connect(address.url) as writer:
        writer.put_cell(row, "BASE", 1, {"n": 1})
        assert reader.get_cell_latest(row, "BASE").body == {"n": 1}
        routing = internals_of(reader).shards.routing
        address.move()
        writer.put_cell(row, "BASE", 2, {"n": 2})
        assert reader.get_cell_latest(row, "BASE").body == {"n": 1}, "it has not looked yet"

        pool_of(internals_of(reader)).recheck_at_s = 0.0

        assert reader.get_cell_latest(row, "BASE").body == {"n": 2}
        assert internals_of(reader).shards.routing.changes[0] == routing.changes[0] + 1, "shards and feeds start anew"


@pytest.mark.guarantee("address-lost")
def test_a_pool_never_mixes_the_servers_of_an_address(address):
    """As soon as one connection reaches the new server, no call is made on those to the old one."""
    with schemaless.connect(address.url) as store, several_connections(store, 3):
        pool = pool_of(internals_of(store))
        address.move()
        with ExitStack() as stack:
            for _ in range(3):
                stack.enter_context(pool.connection(0))
            with pytest.raises(schemaless.ServerUnavailable, match="leads to another server"), pool.connection(0):
                pass
        puts = [store.put_cell(row_of(0), "BASE", 1, {"n": n}) for n in range(20)]
        with ThreadPoolExecutor(4) as threads:
            assert None not in list(threads.map(lambda put: store.get_cell(*put.key), puts))


def test_set_primary_to_the_same_address_makes_programs_connect_again(address, caplog):
    """The catalog gets a new token, at which programs replace their connections, whatever server they reach."""
    row = row_of(0)
    with schemaless.connect(address.url) as reader, several_connections(reader, 3):
        assert reader.get_cell_latest(row, "BASE") is None
        address.move()
        url, primary = address.admin
        _, (shown,) = node_states(url)
        changed = nodes.set_primary(url, "cluster-1", primary)
        _, (after,) = node_states(url)
        with schemaless.connect(address.url) as writer:
            writer.put_cell(row, "BASE", 1, {"n": 1})
        assert reader.get_cell_latest(row, "BASE") is None, "it has not read the catalog yet"
        internals_of(reader).shards.router.look_at_s = 0.0

        assert (shown.read_only, shown.fault) == (False, None), "commands look over new connections"
        assert "leads to another server than the catalog has recorded" in "".join(shown.warnings)
        assert not after.replaced
        assert (changed.changed, changed.removed, changed.old_primary) == (True, {}, None)
        assert reader.get_cell_latest(row, "BASE").body == {"n": 1}
    assert "leads to another server than before" in caplog.text


@pytest.mark.long
@pytest.mark.guarantee("address-lost")
def test_workers_listen_to_the_server_that_an_address_leads_to_now(address, eventually):
    """The old server's binary log goes on without new cells."""
    with schemaless.connect(address.proxy.urls[0].replace("/?", f"/{parse_url(address.url).database}?")) as store:
        shards = internals_of(store).shards
        node, pool = shards.node_of(0), pool_of(internals_of(store))
        with closing(BinlogNotifier(shards, Timing(connect_s=0.05))) as notifier:
            notifier.listen([node])
            eventually(lambda: notifier.is_listening(node), "the log is received")
            before = notifier._listeners[node]._reader.facts.server
            address.move()
            pool.recheck_at_s = 0.0
            store.get_row(row_of(0))
            notifier.listen([node])
            eventually(lambda: notifier._listeners[node]._reader.facts.server != before, "it listens to the new server")
            eventually(lambda: notifier.is_listening(node), "its log is received")
            notifier.listen([node])
            assert notifier._listeners[node]._reader.facts.server == pool.address.newest.server


@pytest.mark.guarantee("address-lost")
def test_jobs_look_at_the_server_that_an_address_leads_to_now(address):
    """A watch over the load of a cluster does not end a job because its old connection is to a read-only server."""
    with schemaless.connect(address.url) as store:
        shards = internals_of(store).shards
        watch = ClusterWatch(shards, "cluster-1", "writer", cache_s=0.0)
        assert watch.look(Thresholds()).kind is None
        address.move()

        assert watch.look(Thresholds()).kind is None
        watch.close()


PHASES = {
    "copying": (Copier, "copy"),
    "catching up": (Fence, "probe"),
    "locked": (Fence, "rename_source"),
    "fenced": (Fence, "rename_target"),
    "switched": (Records, "flip"),
}


CASES = [(phase, who) for phase in PHASES for who in ("source", "target")]


@pytest.mark.guarantee("topology-jobs")
@pytest.mark.parametrize(
    ("phase", "who"),
    [case if case == ("copying", "target") else pytest.param(*case, marks=pytest.mark.long) for case in CASES],
)
def test_a_move_continues_on_the_server_that_an_address_leads_to_now(replicated, servers, phase, who, monkeypatch):
    """Its sessions lead to the former server, which is read-only; new ones find what the move has done so far."""
    monkeypatch.setattr(driver, "POLL_S", 0.01)
    name, proxy = f"address{next(_names)}", Proxy([str(replicated.socket), str(servers[0].socket)])
    with ExitStack() as stack:
        stack.callback(proxy.close)
        for server in (replicated, servers[0]):
            create_mover(server)
        moved, catalog = (url.replace("root@", "mover@") for url in proxy.urls)
        stack.enter_context(caught_up(replicated))
        url = schemaless.create(name, SHARDS, [catalog, moved])
        store = stack.enter_context(schemaless.connect(url))
        shard = 1 if who == "source" else 0
        puts = store.put_cells([NewCell(row_of(shard), "BASE", 1, {"n": n}) for n in range(10)])
        kind, function = PHASES[phase]
        original = getattr(kind, function)

        def leads_elsewhere(*given: object, **options: object) -> object:
            monkeypatch.setattr(kind, function, original)
            stack.enter_context(read_only(replicated))
            stack.enter_context(caught_up(replicated))
            replica = stack.enter_context(promoted(replicated))
            proxy.leads_to[str(replicated.socket)] = str(replica.socket)
            return original(*given, **options)

        monkeypatch.setattr(kind, function, leads_elsewhere)
        target = "cluster-1" if who == "source" else "cluster-2"
        (record,) = moves.run(store, MoveSpec(target, accounts=False), [shard])
        with schemaless.connect(url) as afterwards:
            cells = [(cell.row_key, cell.added_id) for cell in afterwards.iter_shard(shard)]

            assert record.phase == "verified"
            assert internals_of(afterwards).topology.cluster_of(shard).name == target
            assert sorted(cells) == sorted((put.key.row_key, put.added_id) for put in puts)


def create_mover(server: LocalServer) -> None:
    """Create an account that may do everything but write on a read-only server."""
    unable = "SUPER, READ_ONLY ADMIN" if server.flavour == "mariadb" else "SUPER, CONNECTION_ADMIN"
    sql(
        server,
        "CREATE USER IF NOT EXISTS mover@localhost",
        "GRANT ALL ON *.* TO mover@localhost",
        f"REVOKE {unable} ON *.* FROM mover@localhost",
    )


@pytest.mark.long
@pytest.mark.guarantee("address-lost")
def test_asyncio_follows_an_address(address):
    """The asyncio client has the same pools."""
    row = row_of(0)

    async def work() -> list[object]:
        async with await aio.connect(address.url) as store:
            puts = await asyncio.gather(*(store.put_cell(row, "BASE", n, {"n": n}) for n in range(1, 4)))
            await asyncio.to_thread(address.move)
            puts += await asyncio.gather(*(store.put_cell(row, "BASE", n, {"n": n}) for n in range(4, 12)))
            return [await store.get_cell(*put.key) for put in puts]

    assert None not in asyncio.run(work())


@pytest.mark.guarantee("address-lost")
def test_with_claims_the_server_at_an_address_has_to_be_adopted(address, flavour):
    """Until then, programs use the old server; afterwards, their first failing call follows. MySQL."""
    if flavour == "mariadb":
        pytest.skip("adoption is not supported on MariaDB; runs with SERVER=mysql")
    row = row_of(0)
    url, primary = address.admin
    with schemaless.connect(address.url) as store:
        store.put_cell(row, "BASE", 1, {"n": 1})
        failover.adopt(url, "cluster-1", primary)
        internals_of(store).shards.router.look_at_s = 0.0
        store.put_cell(row, "BASE", 2, {"n": 2})
        address.move()
        with pytest.raises(ServerRefused, match="read-only"):
            store.put_cell(row, "BASE", 3, {"n": 3})
        pool_of(internals_of(store)).recheck_at_s = 0.0
        assert store.get_cell_latest(row, "BASE").ref_key == 2, "from the old server, which has the claim"
        with pytest.raises(schemaless.PrimaryNotClaimed), schemaless.connect(address.url) as other:
            other.get_cell_latest(row, "BASE")

        assert failover.adopt(url, "cluster-1", primary).cluster.epoch == 2
        assert store.put_cell(row, "BASE", 3, {"n": 3}).added_id > 1 << 20


@pytest.mark.long
def test_a_server_that_is_read_only_still_says_so(address, replicated):
    """If the address leads to the same server, the write fails with the server's error, and reads continue."""
    row = row_of(0)
    with schemaless.connect(address.url) as store, several_connections(store, 2):
        store.put_cell(row, "BASE", 1, {"n": 1})
        with read_only(replicated):
            for _ in range(2):
                with pytest.raises(ServerRefused, match="read-only"):
                    store.put_cell(row, "BASE", 2, {"n": 2})
            assert store.get_cell_latest(row, "BASE").body == {"n": 1}
        assert store.put_cell(row, "BASE", 2, {"n": 2}).created


def test_a_read_only_server_does_not_cost_readers_their_connections(address, replicated, monkeypatch):
    """One new connection proves that the address still leads to it; further writes that fail discard none."""
    monkeypatch.setattr(pool_module, "READ_ONLY_S", 3600)
    row = row_of(0)
    with schemaless.connect(address.url) as store, several_connections(store, 2), read_only(replicated):
        pool, opened = pool_of(internals_of(store)), []
        connect = pool.connect
        monkeypatch.setattr(pool, "connect", lambda shard: opened.append(shard) or connect(shard))
        for _ in range(3):
            with pytest.raises(ServerRefused, match="read-only"):
                store.put_cell(row, "BASE", 1, {"n": 1})
            assert store.get_cell_latest(row, "BASE") is None
        assert opened == [0]


@pytest.mark.guarantee("address-lost")
def test_an_address_that_balances_over_servers_settles(address, replicated, caplog):
    """After the second return to a server, connections to each are used, and a single server ends that."""
    row = row_of(0)
    with schemaless.connect(address.url) as store:
        store.put_cell(row, "BASE", 1, {"n": 1})
        with caught_up(replicated):
            shards, pool = internals_of(store).shards, pool_of(internals_of(store))
        for turn in range(1, 12):
            reach(pool, address.proxy, replicated, turn % 2)
            assert store.get_cell_latest(row, "BASE").body == {"n": 1}
            if turn == 3:
                settled, changes = list(pool.idle), shards.routing.changes[0]
        assert list(pool.idle) == settled
        assert shards.routing.changes[0] == changes == 2
        assert caplog.text.count("leads to another server than before") == 2
        assert caplog.text.count("leads to several servers in turn") == 1

        for server in pool.address.left_at_s:
            pool.address.left_at_s[server] -= BALANCED_S
        pool.recheck_at_s = 0.0
        assert store.get_cell_latest(row, "BASE").body == {"n": 1}
        assert not pool.address.is_balanced
        assert not set(settled) & set(pool.idle)


@pytest.mark.guarantee("address-lost")
def test_no_call_writes_to_a_server_on_which_its_shard_was_not_verified(address, replicated):
    """Neither a call that began before the address moved, nor one on an address that leads to several servers."""
    row = row_of(1)
    foreign = f"UPDATE `{parse_url(address.url).database}_0001`.shard_identity SET shard_count = 4"
    with schemaless.connect(address.url) as store:
        shards, pool = internals_of(store).shards, pool_of(internals_of(store))
        for shard in range(SHARDS):
            store.put_cell(row_of(shard), "BASE", 1, {"n": 1})
        began = shards.routing
        address.move()
        sql(replicated.replicas[0], foreign)
        pool.recheck_at_s = 0.0
        store.get_row(row_of(0))

        wrote = []
        pool.run(wrote.append, shard=0, writes=True, route=began)
        with pytest.raises(schemaless.ShardIdentityMismatch):
            pool.run(wrote.append, shard=1, writes=True, route=began)
        assert len(wrote) == 1
        for turn in (0, 1, 0, 1):
            reach(pool, address.proxy, replicated, turn)
            store.get_row(row_of(0))
        assert pool.address.is_balanced
        pool.close()
        with pytest.raises(schemaless.ShardIdentityMismatch):
            store.put_cell(row, "BASE", 1, {"n": 1})
        reach(pool, address.proxy, replicated, 0)
        pool.close()
        assert store.get_row(row) == {}
        with pytest.raises(ServerRefused, match="read-only"):
            store.put_cell(row, "BASE", 1, {"n": 1})


def test_a_replica_whose_address_moves_leaves_its_primary_alone(address, replicated):
    """Its shards are verified there again; a call on that one server continues."""
    url, _ = address.admin
    (replica,) = replicated.replicas
    proxy, row = Proxy([str(replica.socket)]), row_of(0)
    with closing(proxy), schemaless.connect(address.url) as store:
        before = store.put_cell(row, "BASE", 1, {"n": 1})
        admin = proxy.urls[0].replace("root@", f"{parse_url(url).credentials.username}@")
        nodes.add_replica(url, "cluster-1", admin)
        shards = internals_of(store).shards
        shards.router.look_at_s = 0.0
        with caught_up(replicated):
            assert store.get_cell_latest(row, "BASE", read_from="replica").body == {"n": 1}
        node, kept = shards.node_of(0, "replica"), (shards.routing.changes, shards.routing.proven)
        pool = shards.pool_for(node)
        for turn in range(1, 6):
            proxy.leads_to[str(replica.socket)] = str((replica, replicated)[turn % 2].socket)
            pool.recheck_at_s = 0.0
            assert shards.run_on(node, 0, lambda connection: connection.rows(b"SELECT 1")) == ((1,),)
            assert (shards.routing.changes, shards.routing.proven) == kept
            page = store.get_cells_for_shard(0, 0, read_from="replica")
            assert [cell.added_id for cell in page.cells] == [before.added_id]
        assert pool.address.is_balanced


@pytest.mark.long
def test_a_call_on_one_server_follows_its_address(address):
    """The catalog still names that server, so the call is made again instead of reporting another one."""
    with schemaless.connect(address.url) as store:
        shards, pool = internals_of(store).shards, pool_of(internals_of(store))
        ask = partial(
            shards.run_on, shards.node_of(0), 0, lambda connection: connection.rows(b"SELECT @@global.server_id")
        )
        before = ask()
        address.move()
        pool.recheck_at_s = 0.0
        assert ask() != before


@pytest.mark.long
def test_what_identifies_a_server_does_not_change(address, replicated):
    """Other programs use UUID_SHORT, too, whose upper digits change after 16.7 million calls."""
    with schemaless.connect(address.url) as store:
        pool = pool_of(internals_of(store))
        store.get_row(row_of(0))
        before = pool.address.newest.server
        sql(replicated, f"SELECT BENCHMARK({1 << 24}, UUID_SHORT())")
        pool.recheck_at_s = 0.0
        store.get_row(row_of(0))
        assert pool.address.newest.server == before


def test_a_recheck_that_fails_changes_nothing(address):
    """While the server accepts no new connection, calls continue on those that are open."""
    row = row_of(0)
    with schemaless.connect(address.url) as store:
        store.put_cell(row, "BASE", 1, {"n": 1})
        pool = pool_of(internals_of(store))
        address.proxy.arm([Fault("accept")])
        pool.recheck_at_s = 0.0

        assert store.get_cell_latest(row, "BASE").body == {"n": 1}
        assert address.proxy.disarm() == [], "it was refused"
        assert pool.recheck_at_s > 0
        assert not pool.breaker.alarmed
