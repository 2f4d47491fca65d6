"""The change feed read from a replica: only cells that are settled on the primary and have arrived."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

import schemaless
from schemaless.local.description import LocalServer
from schemaless.ops.failover.nodes import add_replica
from schemaless.store.internals import internals_of
from schemaless.wire.connection import Connection
from schemaless.wire.pool import NodePool, PoolOptions
from schemaless.wire.urls import parse_url
from tests.accounts import Accounts, accounts_on

pytestmark = [pytest.mark.mysql, pytest.mark.twice, pytest.mark.myrocks]

DATABASE = "replicated_0000"


@pytest.fixture
def primary(replicated: LocalServer) -> LocalServer:
    """A server that has a replica."""
    return replicated


@pytest.fixture(scope="module")
def own_accounts(replicated: LocalServer) -> Iterator[Accounts]:
    """Accounts on the server, and so on its replica."""
    with accounts_on([replicated.url]) as made:
        yield made


@pytest.fixture(scope="module")
def url(replicated: LocalServer, own_accounts: Accounts) -> str:
    """A datastore of one shard whose catalog names the replica."""
    url = own_accounts.create("replicated", 1)
    own_accounts.allow("tail", "replicated", 1)
    add_replica(own_accounts.url("admin", url), "cluster-1", own_accounts.url("admin", replicated.replicas[0].url))
    return url


@pytest.fixture
def app(url: str) -> Iterator[schemaless.Datastore]:
    """The writing datastore."""
    with schemaless.connect(url) as opened:
        yield opened


@pytest.fixture
def store(url: str, own_accounts: Accounts) -> Iterator[schemaless.Datastore]:
    """The reading datastore, newly opened for each test, so that no id is known to be settled."""
    with schemaless.connect(own_accounts.url("tail", url)) as opened:
        yield opened


@contextmanager
def connection_to(url: str) -> Iterator[Connection]:
    """Root connections to the primary."""
    parsed = parse_url(url)
    pool = NodePool(parsed.node, parsed.credentials, PoolOptions())
    with pool.connection() as connection:
        yield connection
    pool.close()


@contextmanager
def applier_stopped(primary: LocalServer) -> Iterator[None]:
    """Stop the replica's applier during the block."""
    name = b"REPLICA" if primary.flavour == "mysql" else b"SLAVE"
    with connection_to(primary.replicas[0].url) as connection:
        connection.execute(b"STOP %b SQL_THREAD" % name)
        try:
            yield
        finally:
            connection.execute(b"START %b SQL_THREAD" % name)


def insert(connection: Connection) -> int:
    """Insert one legacy cell and return its added_id."""
    values = f"(x'{uuid.uuid4().hex}','BASE',1,'0')"
    insert = f"INSERT INTO `{DATABASE}`.cell (row_key,column_name,ref_key,body) VALUES {values}"
    return connection.execute(insert.encode()).last_id


def leave_gap(connection: Connection) -> None:
    """Use up an added_id in a transaction that is rolled back."""
    connection.execute(b"START TRANSACTION")
    insert(connection)
    connection.execute(b"ROLLBACK")


def rest(store: schemaless.Datastore, location: int) -> list[int]:
    """Return the added_ids after a location, read from the replica, once it has any."""
    deadline = time.monotonic() + 120
    while not (page := store.get_cells_for_shard(0, location, read_from="replica")).cells:
        assert time.monotonic() < deadline
        location = page.next_location
    return [cell.added_id for cell in page.cells]


@pytest.mark.long
def test_a_replica_returns_what_has_arrived(
    store: schemaless.Datastore, app: schemaless.Datastore, primary: LocalServer
) -> None:
    """With the applier stopped, new cells are missing; that is not an error, and no cell is skipped later."""
    start = store.end_of_shard(0)
    put = app.put_cell(uuid.uuid4(), "BASE", 1, "arrives")
    assert rest(store, start) == [put.added_id]
    with applier_stopped(primary):
        late = app.put_cell(uuid.uuid4(), "BASE", 1, "later")
        page = store.get_cells_for_shard(0, put.added_id, read_from="replica")
        assert (page.cells, page.next_location) == ([], put.added_id)
        primary_page = store.get_cells_for_shard(0, put.added_id)
        assert primary_page.next_location == late.added_id
        assert store.get_cells_for_shard(0, late.added_id, read_from="replica").cells == []
        with pytest.raises(schemaless.LocationLost):
            store.get_cells_for_shard(0, late.added_id + 1, read_from="replica")
    assert rest(store, put.added_id) == [late.added_id]


def test_a_gap_that_is_open_on_the_primary_is_open_on_the_replica(
    store: schemaless.Datastore, app: schemaless.Datastore, primary: LocalServer
) -> None:
    """The replica does not have the lower id yet, so the higher one is not returned."""
    start = store.end_of_shard(0)
    with connection_to(primary.url) as connection:
        connection.execute(b"START TRANSACTION")
        late = insert(connection)
        put = app.put_cell(uuid.uuid4(), "BASE", 1, "waits")
        deadline = time.monotonic() + 120
        while not (page := store.get_cells_for_shard(0, start, read_from="replica")).held:
            assert page.cells == []
            assert time.monotonic() < deadline
        connection.execute(b"COMMIT")
    assert rest(store, start) == [late, put.added_id]


@pytest.mark.guarantee("feed-replica")
def test_a_gap_that_is_settled_waits_for_the_replica(
    store: schemaless.Datastore, app: schemaless.Datastore, primary: LocalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cell in the gap is committed on the primary, but the replica only has the cell after it."""
    monkeypatch.setattr(internals_of(store).changes.settled, "replica_wait_s", 0.2)
    start = store.end_of_shard(0)
    with connection_to(primary.url) as connection:
        connection.execute(b"START TRANSACTION")
        late = insert(connection)
        put = app.put_cell(uuid.uuid4(), "BASE", 1, "first")
        while not store.get_cells_for_shard(0, start, read_from="replica").held:
            pass
        with applier_stopped(primary):
            connection.execute(b"COMMIT")
            page = store.get_cells_for_shard(0, start, read_from="replica")
            assert page.cells == []
            assert page.held == f"replica {primary.replicas[0].socket} lags behind {primary.socket}"
    assert rest(store, start) == [late, put.added_id]


def test_a_rolled_back_gap_is_resolved_once(
    store: schemaless.Datastore, app: schemaless.Datastore, primary: LocalServer
) -> None:
    """A gap is settled on the primary once, awaited on the replica once, and then remembered."""
    start = store.end_of_shard(0)
    with connection_to(primary.url) as connection:
        leave_gap(connection)
    put = app.put_cell(uuid.uuid4(), "BASE", 1, "behind the gap")
    assert rest(store, start) == [put.added_id]
    shards, settled = internals_of(store).shards, store._changes.settled
    assert settled.mark(shards.spot(0, "replica")) == put.added_id
    assert len(settled._replica_marks) == 1


@pytest.mark.guarantee("feed-replica", "myrocks-feed")
def test_writers_at_once_never_make_a_replica_skip(store: schemaless.Datastore, url: str, primary: LocalServer) -> None:
    """Eight threads commit late and roll back; the replica's feed ends up equal to the primary's."""
    start = store.end_of_shard(0)
    done = threading.Event()
    failures = []

    def write(number: int) -> None:
        try:
            with connection_to(primary.url) as connection:
                for turn in range(20):
                    connection.execute(b"START TRANSACTION")
                    insert(connection)
                    insert(connection)
                    time.sleep(0.001 * (turn * number % 7))
                    connection.execute(b"COMMIT" if (turn + number) % 4 else b"ROLLBACK")
        except BaseException as error:
            failures.append(error)
            raise

    seen: list[int] = []

    def tail() -> None:
        location = start
        while True:
            last = done.is_set()
            page = store.get_stored_cells_for_shard(0, location, 50, read_from="replica")
            seen.extend(cell.added_id for cell in page.cells)
            if last and page.next_location >= end:
                return
            location = page.next_location

    threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
    reader = threading.Thread(target=tail)
    end = 0
    for thread in [reader, *threads]:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    end = store.end_of_shard(0)
    done.set()
    reader.join()
    with connection_to(primary.url) as connection:
        sql = f"SELECT added_id FROM `{DATABASE}`.cell WHERE added_id>{start} ORDER BY added_id"
        assert seen == [added_id for (added_id,) in connection.rows(sql.encode())]


def test_a_primary_without_gtids_is_refused_where_it_matters(
    store: schemaless.Datastore, app: schemaless.Datastore, primary: LocalServer
) -> None:
    """The replica's position cannot be determined then."""
    start = store.end_of_shard(0)
    with connection_to(primary.url) as connection:
        leave_gap(connection)
        app.put_cell(uuid.uuid4(), "BASE", 1, "behind the gap")
        if primary.flavour == "mysql":
            connection.execute(b"SET GLOBAL gtid_mode=ON_PERMISSIVE")
            try:
                with pytest.raises(schemaless.FeedRefused, match="GTID"):
                    rest(store, start)
            finally:
                connection.execute(b"SET GLOBAL gtid_mode=ON")
    assert len(rest(store, start)) == 1
