"""The change feed of a shard: in order, strictly after the location, and complete."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

import schemaless
from schemaless.store.feed import settlement as writers
from schemaless.store.internals import internals_of
from schemaless.testing.servers import private_servers
from schemaless.wire.connection import Connection
from schemaless.wire.errors import CannotObserve
from schemaless.wire.pool import NodePool, PoolOptions
from schemaless.wire.urls import parse_url
from tests.accounts import Accounts

pytestmark = [pytest.mark.mysql, pytest.mark.myrocks]

SHARD = 2


@pytest.fixture
def put(fresh_store: schemaless.Datastore) -> Callable[..., schemaless.Put]:
    """Puts a new cell into the shard under test."""
    numbers = iter(range(10**6))

    def put_one(body: object = None, column_name: str = "BASE") -> schemaless.Put:
        while True:
            row = uuid.uuid5(uuid.NAMESPACE_OID, f"tailed {next(numbers)}")
            if fresh_store.shard_of(row) == SHARD:
                return fresh_store.put_cell(row, column_name, 1, body)

    return put_one


@pytest.fixture
def primary(fresh_store: schemaless.Datastore, server_urls: list[str]) -> Iterator[NodePool]:
    """Root connections to the server of the shard under test."""
    node = internals_of(fresh_store).shards.node_of(SHARD)
    (url,) = (parse_url(url) for url in server_urls if parse_url(url).node == node)
    pool = NodePool(url.node, url.credentials, PoolOptions(pool_size=20))
    yield pool
    pool.close()


@pytest.fixture
def database(fresh_store: schemaless.Datastore) -> str:
    """Database of the shard under test."""
    return internals_of(fresh_store).shards.database(SHARD)


@contextmanager
def open_insert(primary: NodePool, database: str, rows: int = 1) -> Iterator[Connection]:
    """Insert rows in a transaction that stays open during the block, and is rolled back unless committed."""
    with primary.connection() as connection:
        connection.execute(b"START TRANSACTION")
        insert(connection, database, rows)
        yield connection
        connection.execute(b"ROLLBACK")


def insert(connection: Connection, database: str, rows: int = 1) -> None:
    """Insert legacy cells."""
    values = ",".join(f"(x'{uuid.uuid4().hex}','BASE',1,'0')" for _ in range(rows))
    connection.execute(f"INSERT INTO `{database}`.cell (row_key,column_name,ref_key,body) VALUES {values}".encode())


def ids(page: schemaless.Page[schemaless.Cell]) -> list[int]:
    """Return the added_ids of a page."""
    return [cell.added_id for cell in page.cells]


@pytest.mark.guarantee("feed-order")
def test_pages_are_ordered_limited_and_strictly_after_the_location(
    tail_store: schemaless.Datastore, put: Callable[..., schemaless.Put]
) -> None:
    """Case 9: each page begins after the previous one, and the feed ends with an empty page."""
    puts = [put(number) for number in range(7)]
    seen = []
    location = 0
    for size in (3, 3, 1, 0):
        page = tail_store.get_cells_for_shard(SHARD, location, 3)
        assert len(page.cells) == size
        assert page.held is None
        seen += page.cells
        location = page.next_location
    assert [(cell.key, cell.added_id, cell.body) for cell in seen] == [
        (put.key, put.added_id, number) for number, put in enumerate(puts)
    ]
    assert location == puts[-1].added_id
    assert list(tail_store.iter_shard(SHARD, puts[4].added_id)) == seen[5:]
    assert tail_store.get_cells_for_shard(SHARD - 1).cells == []


@pytest.mark.twice
@pytest.mark.guarantee("feed-order")
def test_gaps_in_the_ids_are_passed(
    tail_store: schemaless.Datastore, put: Callable[..., schemaless.Put], primary: NodePool, database: str
) -> None:
    """Case 10: ids of rolled-back transactions do not block the feed, at either end or in between."""
    with open_insert(primary, database, 5):
        pass
    first = put()
    for _ in range(3):
        with open_insert(primary, database, 2):
            pass
        last = put()
    assert last.added_id == first.added_id + 9
    page = tail_store.get_cells_for_shard(SHARD)
    assert (len(page.cells), page.next_location, page.held) == (4, last.added_id, None)
    with open_insert(primary, database):
        pass
    assert tail_store.get_cells_for_shard(SHARD, last.added_id) == schemaless.Page([], last.added_id)


@pytest.mark.twice
@pytest.mark.guarantee("feed-order")
def test_a_cell_that_is_committed_late_is_not_skipped(
    tail_store: schemaless.Datastore,
    put: Callable[..., schemaless.Put],
    primary: NodePool,
    database: str,
    eventually: Callable[..., None],
) -> None:
    """Case 11: the feed ends before an open transaction's id, says why, and continues after the commit."""
    first = put()
    with open_insert(primary, database) as late:
        behind = [put(), put()]
        page = tail_store.get_cells_for_shard(SHARD)
        assert ids(page) == [first.added_id]
        held = tail_store.get_cells_for_shard(SHARD, page.next_location)
        assert (held.cells, held.next_location) == ([], first.added_id)
        assert held.held is not None
        assert held.held.partition(":")[0] == f"open transactions on {primary.node}"
        number = late.rows(b"SELECT CONNECTION_ID()")[0][0]
        eventually(
            lambda: f": thread {number} of " in str(tail_store.get_cells_for_shard(SHARD, page.next_location).held),
            "the transaction is named once it is a second old",
        )
        late.execute(b"COMMIT")
        page = tail_store.get_cells_for_shard(SHARD, held.next_location)
        assert ids(page) == [first.added_id + 1, *(put.added_id for put in behind)]
        assert page.held is None


@pytest.mark.twice
def test_the_feed_continues_after_a_rollback(
    tail_store: schemaless.Datastore, put: Callable[..., schemaless.Put], primary: NodePool, database: str
) -> None:
    """Its ids remain gaps."""
    with open_insert(primary, database, 3) as late:
        put()
        assert tail_store.get_cells_for_shard(SHARD).cells == []
        late.execute(b"ROLLBACK")
        assert len(tail_store.get_cells_for_shard(SHARD).cells) == 1


@pytest.mark.twice
def test_later_transactions_do_not_hold_the_feed(
    tail_store: schemaless.Datastore, put: Callable[..., schemaless.Put], primary: NodePool, database: str
) -> None:
    """Under constant load some transaction is always open; the feed only waits for those that it has seen."""
    with open_insert(primary, database) as early:
        put()
        assert tail_store.get_cells_for_shard(SHARD).held
        with open_insert(primary, database):
            put()
            early.execute(b"COMMIT")
            page = tail_store.get_cells_for_shard(SHARD)
            assert [cell.added_id for cell in page.cells] == [1, 2]
            assert tail_store.get_cells_for_shard(SHARD, page.next_location).held
            insert(early, database)
            assert tail_store.get_cells_for_shard(SHARD, page.next_location).cells == []
        assert ids(tail_store.get_cells_for_shard(SHARD, page.next_location)) == [4, 5]


@pytest.mark.twice
def test_the_same_connection_writing_again_is_another_transaction(
    tail_store: schemaless.Datastore, put: Callable[..., schemaless.Put], primary: NodePool, database: str
) -> None:
    """A connection that commits and begins a new transaction does not block earlier ids."""
    with open_insert(primary, database) as busy:
        put()
        assert tail_store.get_cells_for_shard(SHARD).held
        busy.execute(b"COMMIT")
        busy.execute(b"START TRANSACTION")
        insert(busy, database)
        put()
        page = tail_store.get_cells_for_shard(SHARD)
        assert [cell.added_id for cell in page.cells][:2] == [1, 2]


@pytest.mark.twice
def test_readers_and_a_rebuild_do_not_hold_the_feed(
    tail_store: schemaless.Datastore, put: Callable[..., schemaless.Put], primary: NodePool, database: str
) -> None:
    """A transaction that has only read is not a writer."""
    with primary.connection() as reader:
        reader.execute(b"START TRANSACTION")
        reader.rows(f"SELECT COUNT(*) FROM `{database}`.cell".encode())
        with open_insert(primary, database):
            pass
        put()
        assert len(tail_store.get_cells_for_shard(SHARD).cells) == 1
        reader.execute(b"ROLLBACK")


@pytest.mark.twice
def test_a_page_ends_before_the_first_gap_that_is_open(
    tail_store: schemaless.Datastore, put: Callable[..., schemaless.Put], primary: NodePool, database: str
) -> None:
    """Cells before it are returned at once, including those after gaps that were settled earlier."""
    with open_insert(primary, database, 2):
        pass
    before = [put() for _ in range(3)]
    assert len(tail_store.get_cells_for_shard(SHARD).cells) == 3
    more = [put() for _ in range(2)]
    with open_insert(primary, database):
        put()
        page = tail_store.get_cells_for_shard(SHARD)
        assert ids(page) == [put.added_id for put in before]
        page = tail_store.get_cells_for_shard(SHARD, page.next_location)
        assert ids(page) == [put.added_id for put in more]


@pytest.mark.guarantee("feed-order")
def test_one_column_only(
    tail_store: schemaless.Datastore, put: Callable[..., schemaless.Put], primary: NodePool, database: str
) -> None:
    """Case 12: cells of other columns are skipped, and an open transaction blocks the feed all the same."""
    wanted = []
    for number in range(6):
        put(column_name="BASE")
        wanted.append(put(number, column_name="STATUS").added_id)
        with open_insert(primary, database):
            pass
    last = put(column_name="BASE")
    location = 0
    seen = []
    for size in (4, 2, 0):
        page = tail_store.get_cells_for_shard(SHARD, location, 4, column_name="STATUS")
        assert len(page.cells) == size
        seen += ids(page)
        location = page.next_location
    assert seen == wanted
    assert location == last.added_id
    with open_insert(primary, database) as late:
        put(column_name="STATUS")
        page = tail_store.get_cells_for_shard(SHARD, location, column_name="STATUS")
        assert page.cells == []
        assert page.held
        late.execute(b"COMMIT")
    assert len(list(tail_store.iter_shard(SHARD, location, column_name="STATUS"))) == 1
    assert [cell.body for cell in tail_store.iter_shard(SHARD, column_name="NONE")] == []


def test_big_cells_make_short_pages(tail_store: schemaless.Datastore, put: Callable[..., schemaless.Put]) -> None:
    """A page is limited by its size in bytes, but has at least one cell."""
    text = "".join(f"{number:x}" for number in range(700_000))
    puts = [put([number, text]) for number in range(4)]
    pages = []
    location = 0
    while (page := tail_store.get_stored_cells_for_shard(SHARD, location)).cells:
        pages.append(sum(len(cell.body) for cell in page.cells))
        location = page.next_location
    assert location == puts[-1].added_id
    assert len(pages) > 1
    assert all(size < 6 << 20 for size in pages)


def test_following_gives_cells_as_they_come(
    tail_store: schemaless.Datastore, put: Callable[..., schemaless.Put]
) -> None:
    """One thread follows the feed while another writes, one transaction per cell."""
    got: list[int] = []
    done = threading.Event()

    def follow() -> None:
        for cell in tail_store.iter_shard(SHARD, follow=True, poll_s=0.01):
            got.append(cell.body)
            if cell.body == 19:
                done.set()
                return

    thread = threading.Thread(target=follow)
    thread.start()
    for number in range(20):
        put(number)
    assert done.wait(120)
    thread.join()
    assert got == list(range(20))


@pytest.mark.twice
@pytest.mark.guarantee("feed-order", "myrocks-feed")
def test_writers_at_once_never_make_it_skip(tail_store: schemaless.Datastore, primary: NodePool, database: str) -> None:
    """Case 11 with twelve threads that commit late, roll back and insert many rows at once."""
    done = threading.Event()
    failures = []

    def write(number: int) -> None:
        try:
            for turn in range(15):
                with open_insert(primary, database, 40 if number % 4 == 0 else 2) as connection:
                    time.sleep(0.001 * (turn * number % 7))
                    if number % 3:
                        connection.execute(b"COMMIT")
        except BaseException as error:
            failures.append(error)
            raise

    seen: list[int] = []
    plain: list[int] = []

    def tail() -> None:
        location = 0
        while True:
            last = done.is_set()
            page = tail_store.get_stored_cells_for_shard(SHARD, location, 50)
            seen.extend(cell.added_id for cell in page.cells)
            if last and page.next_location == location:
                return
            location = page.next_location

    def skip() -> None:
        while not done.is_set():
            after = plain[-1] if plain else 0
            sql = f"SELECT added_id FROM `{database}`.cell WHERE added_id>{after} ORDER BY added_id LIMIT 50"
            with primary.connection() as connection:
                plain.extend(added_id for (added_id,) in connection.rows(sql.encode()))

    tails = [threading.Thread(target=tail), threading.Thread(target=skip)]
    threads = [threading.Thread(target=write, args=(number,)) for number in range(12)]
    for thread in [*tails, *threads]:
        thread.start()
    for thread in threads:
        thread.join()
    done.set()
    for thread in tails:
        thread.join()
    with primary.connection() as connection:
        there = [added_id for (added_id,) in connection.rows(f"SELECT added_id FROM `{database}`.cell".encode())]
    assert not failures
    assert seen == sorted(there)
    assert set(there) - set(plain), "the writers did not even make a plain tail skip"


@pytest.mark.twice
def test_the_end_is_settled(
    tail_store: schemaless.Datastore, put: Callable[..., schemaless.Put], primary: NodePool, database: str
) -> None:
    """The end is after all existing cells, and the call waits for transactions that may still add earlier ones."""
    assert tail_store.end_of_shard(SHARD) == 0
    with open_insert(primary, database) as late:
        last = put()
        with pytest.raises(schemaless.ServerTimeout, match="open transactions"):
            tail_store.end_of_shard(SHARD, timeout_s=0)
        late.execute(b"COMMIT")
        assert tail_store.end_of_shard(SHARD) == last.added_id


@pytest.mark.guarantee("feed-loss")
def test_a_location_beyond_the_last_cell_is_an_error(
    tail_store: schemaless.Datastore, put: Callable[..., schemaless.Put]
) -> None:
    """After a failover that lost cells, new cells would get ids below the location and be skipped silently."""
    last = put()
    with pytest.raises(schemaless.LocationLost, match=f"location {last.added_id + 1} is beyond") as caught:
        tail_store.get_cells_for_shard(SHARD, last.added_id + 1)
    assert (caught.value.shard, caught.value.last) == (SHARD, last.added_id)
    with pytest.raises(schemaless.LocationLost):
        list(tail_store.iter_shard(SHARD - 1, 1))


@pytest.mark.parametrize(
    "arguments",
    [(4,), (-1,), ("1",), (SHARD, -1), (SHARD, 1.0), (SHARD, None), (SHARD, 0, 0), (SHARD, 0, True), (SHARD, 0, 10**6)],
)
def test_arguments_are_checked_at_once(store: schemaless.Datastore, arguments: tuple[object, ...]) -> None:
    """Before any I/O, and for iterators before the first step."""
    with pytest.raises(schemaless.InvalidInput):
        store.get_cells_for_shard(*arguments)  # type: ignore[arg-type]
    with pytest.raises(schemaless.InvalidInput):
        store.iter_shard(*arguments[:2], **({"limit": arguments[2]} if len(arguments) > 2 else {}))  # type: ignore[arg-type]
    with pytest.raises(schemaless.InvalidCell):
        store.iter_shard(SHARD, column_name="no spaces")
    with pytest.raises(schemaless.InvalidInput, match="read_from"):
        store.iter_shard(SHARD, read_from="nowhere")  # type: ignore[arg-type]


def test_a_damaged_cell_is_named_and_can_be_passed(
    tail_store: schemaless.Datastore, put: Callable[..., schemaless.Put], primary: NodePool, database: str
) -> None:
    """The feed never returns corrupt data; the stored form of the feed reads past it."""
    damaged = put([1, 2, 3])
    put("whole")
    with primary.connection() as connection:
        connection.execute(
            f"UPDATE `{database}`.cell SET body=INSERT(body,4,1,'?') WHERE added_id={damaged.added_id}".encode()
        )
    with pytest.raises(schemaless.ChecksumMismatch, match=str(damaged.key.row_key)):
        tail_store.get_cells_for_shard(SHARD)
    assert len(tail_store.get_stored_cells_for_shard(SHARD).cells) == 2
    assert [cell.body for cell in tail_store.iter_shard(SHARD, damaged.added_id)] == ["whole"]


# ---- servers that do not show write locks


@contextmanager
def unobservable(primary: NodePool) -> Iterator[None]:
    """Disable the metadata lock instrument during the block."""
    switch = b"UPDATE performance_schema.setup_instruments SET ENABLED='%b' WHERE NAME='wait/lock/metadata/sql/mdl'"
    with primary.connection() as connection:
        connection.execute(switch % b"NO")
    try:
        yield
    finally:
        with primary.connection() as connection:
            connection.execute(switch % b"YES")


@pytest.mark.twice
@pytest.mark.guarantee("feed-settings")
def test_an_empty_list_of_locks_is_not_believed(
    fresh_store: schemaless.Datastore, put: Callable[..., schemaless.Put], primary: NodePool, database: str
) -> None:
    """With the instrument disabled the list is empty despite a writer; the query's own lock is missing too."""
    with unobservable(primary), open_insert(primary, database):
        put()
        with primary.connection() as connection, pytest.raises(CannotObserve, match="instrument"):
            writers.observe(connection, database)


@pytest.mark.twice
@pytest.mark.guarantee("myrocks-feed")
def test_without_the_list_writers_are_held_off(
    tail_store: schemaless.Datastore,
    put: Callable[..., schemaless.Put],
    primary: NodePool,
    database: str,
    accounts: Accounts,
) -> None:
    """The fallback waits for writers with LOCK TABLES, at most a second, and leaves no lock or setting behind."""
    with accounts.locking_tables(tail_store.name, 4), unobservable(primary):
        with open_insert(primary, database) as late:
            put()
            page = tail_store.get_cells_for_shard(SHARD)
            assert page.cells == []
            assert page.held == f"open transactions on {primary.node}"
            late.execute(b"COMMIT")
        tail_store._changes.settled._states.clear()
        with open_insert(primary, database):
            pass
        put()
        assert ids(tail_store.get_cells_for_shard(SHARD)) == [1, 2, 4]
    put()
    timeout = internals_of(tail_store).shards.rows(
        SHARD, b"SELECT @@session.lock_wait_timeout = @@global.lock_wait_timeout"
    )
    assert timeout == ((1,),)


@pytest.mark.twice
@pytest.mark.guarantee("feed-settings")
def test_several_writers_on_one_cluster_are_refused(
    tail_store: schemaless.Datastore, put: Callable[..., schemaless.Put], primary: NodePool, database: str
) -> None:
    """With auto_increment_increment other than 1, ids from different servers are not in order."""
    put()
    with primary.connection() as connection:
        connection.execute(b"SET GLOBAL auto_increment_increment=2")
        try:
            with open_insert(primary, database):
                pass
            put()
            with pytest.raises(schemaless.FeedRefused, match="auto_increment_increment is 2") as caught:
                tail_store.get_cells_for_shard(SHARD)
        finally:
            connection.execute(b"SET GLOBAL auto_increment_increment=1")
    assert (caught.value.shard, caught.value.node) == (SHARD, str(primary.node))


@pytest.mark.twice
@pytest.mark.guarantee("feed-settings")
def test_a_read_only_server_is_no_primary(
    tail_store: schemaless.Datastore, put: Callable[..., schemaless.Put], primary: NodePool, database: str
) -> None:
    """On a replica that the catalog takes for the primary, rows appear in the order of the applier."""
    with open_insert(primary, database):
        pass
    put()
    with primary.connection() as connection:
        connection.execute(b"SET GLOBAL read_only=1")
        try:
            with pytest.raises(schemaless.FeedRefused, match="has become a replica"):
                tail_store.get_cells_for_shard(SHARD)
        finally:
            connection.execute(b"SET GLOBAL read_only=0")
    assert len(tail_store.get_cells_for_shard(SHARD).cells) == 1


@pytest.mark.twice
@pytest.mark.long
@pytest.mark.guarantee("feed-settings")
def test_locks_that_had_no_room_are_noticed(flavour: str) -> None:
    """A server that could not record every lock reports that in a counter, and its list is not used."""
    with private_servers(flavour, 1, {"performance-schema-max-metadata-locks": "1"}) as (server,):
        url = schemaless.create("tight", 1, [server.url])
        parsed = parse_url(url)
        pool = NodePool(parsed.node, parsed.credentials, PoolOptions())
        with pool.connection() as connection, pytest.raises(CannotObserve, match=r"max_metadata_locks|instrument"):
            writers.observe(connection, "tight_0000")
        pool.close()
