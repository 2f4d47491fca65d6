"""A topology that is followed: shards change their servers under the programs that use them."""

from __future__ import annotations

import dataclasses
import itertools
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import make_url

import schemaless
from schemaless import Datastore, OutcomeUnknown, ServerTimeout, ServerUnavailable, ShardIdentityMismatch, ShardMoving
from schemaless.cells import writing as cells
from schemaless.internals import internals_of
from schemaless.opening import opening_of
from schemaless.schema.databases import verify_identity
from schemaless.topology import routing, shards
from schemaless.topology.catalog import read_catalog, write_cluster
from schemaless.topology.shards import Shards
from schemaless.wire.errors import ConnectionLost
from schemaless.wire.node import Node
from tests.accounts import Accounts
from tests.movers import MoveByHand, query
from tests.topologies import opened_as

pytestmark = pytest.mark.mysql

SHARD = 1


@pytest.fixture
def url(accounts: Accounts, fresh_url: str) -> str:
    """A new datastore for root, who may use a shard wherever it goes."""
    return accounts.root(fresh_url)


@pytest.fixture
def client(url: str) -> Iterator[Datastore]:
    """A program that is connected while its servers change."""
    with schemaless.connect(url, read_timeout_s=20) as store:
        # Not what is tested: a hundred threads may hold up the mover, which is one more thread of this process.
        internals_of(store).shards.move_wait_s = 60
        yield store


@pytest.fixture
def move(client: Datastore, by_hand: Callable[[Datastore], Shards]) -> Callable[..., MoveByHand]:
    """Makes a move of a shard; each time that it is called, to the other cluster."""
    root = by_hand(client)

    def begin(shard: int = SHARD) -> MoveByHand:
        return MoveByHand(client, root, shard)

    return begin


@pytest.fixture
def rows(client: Datastore, new_row: Callable[[], uuid.UUID]) -> Iterator[uuid.UUID]:
    """New rows of the shard that is moved."""
    return (row for row in iter(new_row, None) if client.shard_of(row) == SHARD)


def node_now(store: Datastore, shard: int = SHARD) -> Node:
    """Return the primary that a store has a shard on."""
    return internals_of(store).shards.node_of(shard)


def fenced(store: Datastore, move: Callable[[], MoveByHand], row: uuid.UUID) -> MoveByHand:
    """Put a cell and move its shard, as far as that the table is away from where the catalog says it is."""
    store.put_cell(row, "BASE", 1, 1)
    moving = move()
    moving.copy()
    moving.fence()
    return moving


def stored_ids(store: Datastore, shard: int = SHARD) -> dict[uuid.UUID, int]:
    """Return what a shard holds: added_ids by row."""
    return {cell.row_key: cell.added_id for cell in store.scan_shard(shard)}


def test_a_hundred_threads_follow_a_shard_that_moves(client, move, rows):
    """Each put, append and read of before, during and after is answered; every acknowledged cell is there, once."""
    moving = move()
    moving.copy()
    first = client.put_cell(next(rows), "BASE", 1, "first")
    mine = [[next(rows) for _ in range(6)] for _ in range(100)]
    begun, flipped = threading.Barrier(101), threading.Event()

    def work(own: list[uuid.UUID]) -> dict[uuid.UUID, int]:
        written = {}
        begun.wait()
        for turn, row in enumerate(own):
            if turn == len(own) - 1:
                flipped.wait()
            put = client.append_cell(row, "BASE", turn) if turn % 2 else client.put_cell(row, "BASE", 1, turn)
            written[row] = put.added_id
            assert client.get_cell(row, "BASE", 1).body == turn
        return written

    with ThreadPoolExecutor(100) as threads:
        calls = [threads.submit(work, own) for own in mine]
        begun.wait()
        moving.fence()
        moving.flip()
        flipped.set()
        written = {row: added_id for call in calls for row, added_id in call.result().items()}

    assert node_now(client) == moving.target
    assert stored_ids(client) == written | {first.key.row_key: first.added_id}


def test_the_catalog_is_read_by_one_caller_at_a_time(client, move, rows, monkeypatch):
    """A hundred callers who meet the change at once wait for one answer."""
    row = next(rows)
    client.put_cell(row, "BASE", 1, 1)
    asked = itertools.count()
    at_once = threading.Lock()
    original = routing.CatalogReader.changed_since

    def ask(reader, known, **how):
        assert at_once.acquire(blocking=False), "two at a time"
        try:
            next(asked)
            return original(reader, known, **how)
        finally:
            at_once.release()

    move().run()
    monkeypatch.setattr(routing.CatalogReader, "changed_since", ask)
    with ThreadPoolExecutor(100) as threads:
        found = list(threads.map(lambda _: client.get_cell(row, "BASE", 1).body, range(100)))

    assert found == [1] * 100
    assert next(asked) == 1


def test_what_is_proven_of_other_shards_stays(client, move, rows):
    """Pools and proofs are kept; only the shard that changed its place is proven again."""
    internals = internals_of(client)
    for shard in range(4):
        client.end_of_shard(shard)
    before = internals.shards.routing
    pools = {shard: before.proven[shard] for shard in range(4)}
    move().run()
    client.put_cell(next(rows), "BASE", 1, 1)
    after = internals.shards.routing

    assert after is not before
    assert after.token != before.token
    assert [after.proven[shard] is pools[shard] for shard in range(4)] == [True, False, True, True]
    assert after.proven[SHARD] is internals.shards.pool_for(node_now(client))
    assert internals.topology is after.topology


def test_a_proof_that_comes_late_pins_nobody_to_the_old_server(client, move, rows):
    """A thread that proves a shard while another one swaps the routing writes where nobody looks any more."""
    shards = internals_of(client).shards
    client.put_cell(next(rows), "BASE", 1, 1)
    late = shards.spot(SHARD)
    moving = move()
    moving.run()
    row = next(rows)
    client.put_cell(row, "BASE", 1, 2)
    shards._verify(late)

    assert shards.routing.proven[SHARD] is shards.pool_for(moving.target)
    assert (SHARD, moving.source) not in shards.routing.verified
    assert client.get_cell(row, "BASE", 1).body == 2


def test_a_shard_that_moves_away_and_back_is_followed_by_who_saw_none_of_it(client, move, rows, url):
    """A to B to A, with a client of before: nothing that it knew of A is wrong there now."""
    row = next(rows)
    client.put_cell(row, "BASE", 1, 1)
    before = [cell.added_id for cell in client.iter_shard(SHARD)]
    with schemaless.connect(url) as other:
        move().run()
        away = other.put_cell(next(rows), "BASE", 1, 2)
        root = internals_of(other)
        back = MoveByHand(other, root.shards, SHARD)
        query(back.target, f"DROP DATABASE `{root.shards.database(SHARD)}`")
        back.run()
    put = client.put_cell(next(rows), "BASE", 1, 3)

    assert [cell.added_id for cell in client.iter_shard(SHARD)] == [*before, away.added_id, put.added_id]
    assert client.get_cell(row, "BASE", 1).body == 1


def test_a_call_between_the_rename_and_the_flip_waits(client, move, rows):
    """The table is away and the catalog says what it said: the call goes on as soon as it says something else."""
    row = next(rows)
    moving = fenced(client, move, row)
    with ThreadPoolExecutor(2) as threads:
        read = threads.submit(client.get_cell, row, "BASE", 1)
        put = threads.submit(client.put_cell, next(rows), "BASE", 1, 2)
        time.sleep(0.05)
        assert not read.done()
        assert not put.done()
        moving.flip()

        assert read.result().body == 1
        assert put.result().created


def test_a_call_goes_on_where_a_move_is_given_up(client, move, rows):
    """The table is back under the same token."""
    moving = move()
    moving.copy()
    row = next(rows)
    client.put_cell(row, "BASE", 1, 1)
    database = internals_of(client).shards.database(SHARD)
    query(moving.source, f"RENAME TABLE `{database}`.cell TO `{database}`.{moving._moved}")
    with ThreadPoolExecutor(1) as threads:
        read = threads.submit(client.get_cell, row, "BASE", 1)
        time.sleep(0.05)
        moving.give_up()

        assert read.result().body == 1


@pytest.mark.parametrize("error", [ServerUnavailable, ServerTimeout])
def test_a_proof_that_is_not_answered_while_a_shard_moves_says_nothing_about_it(client, move, rows, monkeypatch, error):
    """The table is away, and the server is too busy to say which shard it had: the caller waits on."""
    row = next(rows)
    moving = fenced(client, move, row)
    asked = itertools.count()

    def busy(*what):
        if next(asked) == 0:
            moving.flip()
            raise error("busy", node=str(moving.source), shard=SHARD)
        verify_identity(*what)

    monkeypatch.setattr(shards, "verify_identity", busy)

    assert client.get_cell(row, "BASE", 1).body == 1
    assert next(asked) == 2


def test_a_shard_that_stays_away_is_told_and_nothing_was_written(client, move, rows):
    """``ShardMoving``, which may be repeated, with the server and the shard; the reply of no attempt is open."""
    row = next(rows)
    moving = fenced(client, move, row)
    internals_of(client).shards.move_wait_s = 0.05
    for call in (
        lambda: client.get_cell(row, "BASE", 1),
        lambda: client.append_cell(row, "BASE", 1),
        lambda: client.get_cells_for_shard(SHARD),
    ):
        with pytest.raises(ShardMoving, match="Nothing was written") as caught:
            call()

        assert (caught.value.retryable, caught.value.shard, caught.value.code) == (True, SHARD, 1146)
    moving.flip()
    assert list(stored_ids(client)) == [row]


@pytest.mark.parametrize("call", ["put_cell", "append_cell"])
def test_a_lost_reply_that_a_move_follows_is_decided_there(client, move, rows, monkeypatch, call):
    """The first attempt was written and its reply lost; the second one is made at the new server, and tells."""
    client.put_cell(next(rows), "BASE", 1, 1)
    row = next(rows)
    moving = move()
    moving.copy()
    lose_then(monkeypatch, lambda: (moving.fence(), moving.flip()))
    put = client.put_cell(row, "BASE", 1, "mine") if call == "put_cell" else client.append_cell(row, "BASE", "mine")

    assert stored_ids(client)[row] == put.added_id
    assert [cell.body for cell in client.get_versions(row, "BASE")] == ["mine"]
    assert put.created == (call == "append_cell")


@pytest.mark.parametrize("call", ["put_cell", "append_cell"])
def test_a_lost_reply_before_a_shard_that_stays_away_is_an_unknown_outcome(client, move, rows, monkeypatch, call):
    """A missing table says of its statement that it wrote nothing, and not of the call."""
    client.put_cell(next(rows), "BASE", 1, 1)
    row = next(rows)
    internals_of(client).shards.move_wait_s = 0.05
    moving = move()
    moving.copy()
    lose_then(monkeypatch, moving.fence)
    with pytest.raises(OutcomeUnknown) as caught:
        client.put_cell(row, "BASE", 1, "mine") if call == "put_cell" else client.append_cell(row, "BASE", "mine")
    moving.flip()

    assert (caught.value.key is None) == (call == "put_cell")
    assert client.put_cell(row, "BASE", 1, "mine").created is False


def lose_then(monkeypatch: pytest.MonkeyPatch, happens: Callable[[], object]) -> None:
    """Have the next INSERT be committed and its reply be lost, with something happening behind it."""
    original = cells.Connection.execute
    turns = itertools.count()

    def execute(connection, sql):
        done = original(connection, sql)
        commits = (sql.startswith(b"INSERT INTO") and not connection.unfinished) or sql == b"COMMIT"
        if commits and next(turns) == 0:
            happens()
            raise ConnectionLost("lost", node=connection.node, shard=connection.shard, code=2013)
        return done

    monkeypatch.setattr(cells.Connection, "execute", execute)


def test_a_follower_goes_on_across_a_move(client, move, rows):
    """Every cell once, in order, under the added_id that it had."""
    puts = [client.put_cell(next(rows), "BASE", 1, n).added_id for n in range(3)]
    feed = client.iter_shard(SHARD, follow=True, poll_s=0.01)
    seen = [next(feed).added_id for _ in range(3)]
    for _ in range(2):
        move_on = move()
        if query(move_on.target, f"SHOW DATABASES LIKE '{internals_of(client).shards.database(SHARD)}'"):
            query(move_on.target, f"DROP DATABASE `{internals_of(client).shards.database(SHARD)}`")
        move_on.run()
        puts += [client.put_cell(next(rows), "BASE", 1, n).added_id for n in range(3)]
        seen += [next(feed).added_id for _ in range(3)]

    assert seen == puts
    assert puts == sorted(set(puts))


def test_a_change_without_an_error_is_seen_within_half_a_minute_of_use(client, move, monkeypatch):
    """A replica that is added breaks nothing, and is read from all the same."""
    internals = internals_of(client)
    before = internals.topology
    catalog = internals.catalog.node
    changed = dataclasses.replace(before)
    query(
        catalog,
        f"INSERT INTO `{client.name}`.node (cluster, role, socket) VALUES ('cluster-1', 'replica', '/tmp/no.sock')",
        f"UPDATE `{client.name}`.datastore SET topology_token = x'{uuid.uuid4().hex}'",
    )
    client.get_row(uuid.uuid4())
    assert internals.topology == changed
    internals.shards.look_at_s = 0
    client.get_row(uuid.uuid4())

    assert [str(node) for node in internals.topology.cluster("cluster-1").replicas] == ["/tmp/no.sock"]
    assert internals.shards.routing.changes == (0, 0, 0, 0)
    assert time.monotonic() < internals.shards.look_at_s < time.monotonic() + 1.25 * 30


def test_a_catalog_that_does_not_answer_changes_nothing(client, rows, monkeypatch):
    """What was known goes on to hold."""
    internals = internals_of(client)
    monkeypatch.setattr(internals.shards._catalog, "home", Node("primary", socket="/tmp/nobody.sock"))
    internals.shards.look_at_s = 0

    assert client.put_cell(next(rows), "BASE", 1, 1).created


def test_every_change_of_the_topology_draws_a_token(client, url, admin_url):
    """What creates a datastore and what changes its nodes; nothing else does."""
    internals = internals_of(client)

    def token():
        return read_catalog(internals.catalog, client.name).token

    first = token()
    client.put_cell(uuid.uuid4(), "BASE", 1, 1)
    assert token() == first
    before = internals.topology
    cluster = dataclasses.replace(
        before.clusters[1], nodes=(*before.clusters[1].nodes, Node("replica", socket="/tmp/no.sock"))
    )
    with schemaless.connect(admin_url) as admin:
        write_cluster(internals_of(admin).catalog, before, cluster)

    assert first is not None
    assert len(first) == len(token()) == 16
    assert token() != first


def test_a_catalog_without_a_token_is_compared_as_a_whole(client, move, rows):
    """As it is after an upgrade: until something changes, and then, too."""
    internals = internals_of(client)
    query(internals.catalog.node, f"UPDATE `{client.name}`.datastore SET topology_token = NULL")
    internals.shards.again(internals.shards.routing)
    known = internals.shards.routing
    assert known.token is None
    internals.shards.again(known)
    assert internals.shards.routing is known
    moving = move()
    moving.run()

    assert client.put_cell(next(rows), "BASE", 1, 1).created
    assert node_now(client) == moving.target


def test_a_program_that_does_not_follow_writes_nothing_into_what_was_left_behind(client, move, rows):
    """As programs of 0.1 go on after a move: refused, with no cell in the table that nobody reads."""
    row = next(rows)
    client.put_cell(row, "BASE", 1, 1)
    with opened_as(client, internals_of(client).topology) as old:
        old.get_row(row)
        internals_of(old).shards.move_wait_s = 0
        moving = move()
        moving.run()
        with pytest.raises(ShardMoving):
            old.put_cell(next(rows), "BASE", 1, 2)
        with pytest.raises(ShardMoving):
            old.get_row(row)

    assert list(stored_ids(client)) == [row]


def test_another_datastore_at_the_new_place_is_refused(client, move, rows):
    """A shard that is not what the catalog takes it for is not used there either."""
    client.put_cell(next(rows), "BASE", 1, 1)
    moving = move()
    moving.run()
    database = internals_of(client).shards.database(SHARD)
    query(moving.target, f"UPDATE `{database}`.shard_identity SET shard = 3")

    with pytest.raises(ShardIdentityMismatch):
        client.put_cell(next(rows), "BASE", 1, 1)


def test_other_tables_that_are_missing_are_explained_by_who_knows_them(client):
    """Only ``cell`` is waited for; what else a shard is read by has its own registry."""
    shards = internals_of(client).shards
    asked = []
    shards.known_tables = lambda shard, table: asked.append((shard, table))
    with pytest.raises(schemaless.ServerError) as caught:
        shards.rows(SHARD, b"SELECT 1 FROM `%b`.index_1" % shards.database(SHARD).encode())

    assert caught.value.code == 1146
    assert asked == [(SHARD, "index_1")]


def test_a_worker_opens_by_a_topology_and_follows_it(client, move, rows):
    """What is handed to other processes has no token; they follow all the same."""
    row = next(rows)
    client.put_cell(row, "BASE", 1, 1)
    opening = opening_of(client)
    move().run()
    with opening.open() as worker:
        assert worker.get_cell(row, "BASE", 1).body == 1
        assert make_url(opening.url.for_database(client.name)).database == client.name


@pytest.mark.parametrize("between", ["nothing", "a call about no shard"])
def test_after_a_loss_no_connection_is_used_before_the_catalog_was_asked(client, move, rows, between):
    """The server that was replaced is back, takes writes, and has every table: nothing more is written there."""
    first = client.put_cell(next(rows), "BASE", 1, 1)
    pool = internals_of(client).shards.pool_for(node_now(client))
    moving = move()
    moving.copy()
    moving.fence()
    moving.flip()
    moving.give_up()
    assert client.get_cell(*first.key).body == 1
    assert node_now(client) == moving.source, "nothing has told this program yet"
    pool.breaker.lost()
    if between != "nothing":
        assert pool.run(lambda connection: connection.rows(b"SELECT 1"))
    put = client.put_cell(next(rows), "BASE", 1, 2)

    assert node_now(client) == moving.target
    database = internals_of(client).shards.database(SHARD)
    assert query(moving.source, f"SELECT added_id FROM `{database}`.cell") == [(first.added_id,)]
    assert query(moving.target, f"SELECT MAX(added_id) FROM `{database}`.cell") == [(put.added_id,)]
