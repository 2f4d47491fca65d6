"""Routing: clients follow shards that move while they are in use."""

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
from schemaless.schema.databases import verify_identity
from schemaless.store.cells import writing as cells
from schemaless.store.internals import internals_of
from schemaless.store.opening import opening_of
from schemaless.topology import routing, shards
from schemaless.topology.catalog import read_catalog, write_clusters
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
    """URL of a new datastore for root, which can use a shard on every server."""
    return accounts.root(fresh_url)


@pytest.fixture
def client(url: str) -> Iterator[Datastore]:
    """A client that stays connected while the topology changes."""
    with schemaless.connect(url, read_timeout_s=20) as store:
        # Long enough for the mover, another thread of this process, which a hundred threads may delay.
        internals_of(store).shards.move_wait_s = 60
        yield store


@pytest.fixture
def move(client: Datastore, by_hand: Callable[[Datastore], Shards]) -> Callable[..., MoveByHand]:
    """Begin a move of a shard to the other cluster."""
    root = by_hand(client)

    def begin(shard: int = SHARD) -> MoveByHand:
        return MoveByHand(client, root, shard)

    return begin


@pytest.fixture
def rows(client: Datastore, new_row: Callable[[], uuid.UUID]) -> Iterator[uuid.UUID]:
    """New rows of the shard that is moved."""
    return (row for row in iter(new_row, None) if client.shard_of(row) == SHARD)


def node_now(store: Datastore, shard: int = SHARD) -> Node:
    """Return the primary that a store uses for a shard."""
    return internals_of(store).shards.node_of(shard)


def fenced(store: Datastore, move: Callable[[], MoveByHand], row: uuid.UUID) -> MoveByHand:
    """Put a cell and move its shard up to the cutover, where its table is renamed but the catalog is unchanged."""
    store.put_cell(row, "BASE", 1, 1)
    moving = move()
    moving.copy()
    moving.fence()
    return moving


def stored_ids(store: Datastore, shard: int = SHARD) -> dict[uuid.UUID, int]:
    """Return the added_ids of a shard by row."""
    return {cell.row_key: cell.added_id for cell in store.scan_shard(shard)}


@pytest.mark.guarantee("topology-followed")
def test_a_hundred_threads_follow_a_shard_that_moves(client, move, rows):
    """Every call before, during and after the move is answered, and every acknowledged cell exists exactly once."""
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


@pytest.mark.guarantee("topology-one-reader")
def test_the_catalog_is_read_by_one_caller_at_a_time(client, move, rows, monkeypatch):
    """A hundred concurrent callers share one read."""
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


@pytest.mark.guarantee("topology-other-shards")
def test_proofs_of_other_shards_are_kept(client, move, rows):
    """Pools and proofs are kept; only the moved shard is verified again."""
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


@pytest.mark.guarantee("topology-other-shards")
def test_a_late_proof_does_not_affect_the_new_routing(client, move, rows):
    """A thread that verifies a shard while the routing is replaced updates the old routing only."""
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


@pytest.mark.guarantee("topology-other-shards")
def test_a_client_that_missed_a_move_away_and_back_continues(client, move, rows, url):
    """After moves from A to B and back, everything the client knows about A is still valid."""
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


@pytest.mark.guarantee("topology-cutover")
def test_a_call_during_the_cutover_waits(client, move, rows):
    """While the table is missing and the catalog unchanged, the call waits; it continues once the catalog changes."""
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


@pytest.mark.guarantee("topology-cutover")
def test_a_call_continues_after_an_aborted_move(client, move, rows):
    """The table is back, with the same topology token."""
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
def test_an_unanswered_identity_check_during_a_move_is_no_verdict(client, move, rows, monkeypatch, error):
    """While the table is missing and the server too busy to answer, the caller keeps waiting."""
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


@pytest.mark.guarantee("topology-cutover")
def test_a_shard_that_does_not_reappear_raises_and_nothing_was_written(client, move, rows):
    """``ShardMoving`` is retryable and names server and shard; no outcome is open."""
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


@pytest.mark.guarantee("topology-lost-reply")
@pytest.mark.parametrize("call", ["put_cell", "append_cell"])
def test_a_lost_reply_before_a_move_is_settled_on_the_new_server(client, move, rows, monkeypatch, call):
    """The first attempt was written and its reply lost; the retry on the new server finds the cell."""
    client.put_cell(next(rows), "BASE", 1, 1)
    row = next(rows)
    moving = move()
    moving.copy()
    lose_reply_and(monkeypatch, lambda: (moving.fence(), moving.flip()))
    put = client.put_cell(row, "BASE", 1, "mine") if call == "put_cell" else client.append_cell(row, "BASE", "mine")

    assert stored_ids(client)[row] == put.added_id
    assert [cell.body for cell in client.get_versions(row, "BASE")] == ["mine"]
    assert put.created == (call == "append_cell")


@pytest.mark.guarantee("topology-lost-reply")
@pytest.mark.parametrize("call", ["put_cell", "append_cell"])
def test_a_lost_reply_before_a_shard_that_does_not_reappear_is_an_unknown_outcome(
    client, move, rows, monkeypatch, call
):
    """The missing table proves that the retry wrote nothing, but not the first attempt."""
    client.put_cell(next(rows), "BASE", 1, 1)
    row = next(rows)
    internals_of(client).shards.move_wait_s = 0.05
    moving = move()
    moving.copy()
    lose_reply_and(monkeypatch, moving.fence)
    with pytest.raises(OutcomeUnknown) as caught:
        client.put_cell(row, "BASE", 1, "mine") if call == "put_cell" else client.append_cell(row, "BASE", "mine")
    moving.flip()

    assert (caught.value.key is None) == (call == "put_cell")
    assert client.put_cell(row, "BASE", 1, "mine").created is False


def lose_reply_and(monkeypatch: pytest.MonkeyPatch, happens: Callable[[], object]) -> None:
    """Commit the next INSERT, then call ``happens`` and drop the reply."""
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


@pytest.mark.guarantee("topology-jobs")
def test_a_follower_continues_across_a_move(client, move, rows):
    """Every cell is returned once, in order, with its original added_id."""
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


@pytest.mark.guarantee("topology-one-reader")
def test_a_change_without_an_error_is_noticed_within_half_a_minute(client, move, monkeypatch):
    """An added replica causes no error, but is read eventually."""
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
    internals.shards.router.look_at_s = 0
    client.get_row(uuid.uuid4())

    assert [str(node) for node in internals.topology.cluster("cluster-1").replicas] == ["/tmp/no.sock"]
    assert internals.shards.routing.changes == (0, 0, 0, 0)
    assert time.monotonic() < internals.shards.router.look_at_s < time.monotonic() + 1.25 * 30


@pytest.mark.guarantee("topology-one-reader")
def test_a_catalog_that_does_not_answer_changes_nothing(client, rows, monkeypatch):
    """The known topology stays in use."""
    internals = internals_of(client)
    monkeypatch.setattr(internals.shards.router._catalog, "home", Node("primary", socket="/tmp/nobody.sock"))
    internals.shards.router.look_at_s = 0

    assert client.put_cell(next(rows), "BASE", 1, 1).created


@pytest.mark.guarantee("topology-followed")
def test_every_topology_change_replaces_the_token(client, url, admin_url):
    """Creating a datastore and changing its nodes replace it; nothing else does."""
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
        write_clusters(internals_of(admin).catalog, before, [cluster], {})

    assert first is not None
    assert len(first) == len(token()) == 16
    assert token() != first


@pytest.mark.guarantee("topology-followed")
def test_without_a_token_whole_topologies_are_compared(client, move, rows):
    """After an upgrade there is no token until the first change, which is still noticed."""
    internals = internals_of(client)
    query(internals.catalog.node, f"UPDATE `{client.name}`.datastore SET topology_token = NULL")
    internals.shards.router.again(internals.shards.routing)
    known = internals.shards.routing
    assert known.token is None
    internals.shards.router.again(known)
    assert internals.shards.routing is known
    moving = move()
    moving.run()

    assert client.put_cell(next(rows), "BASE", 1, 1).created
    assert node_now(client) == moving.target


@pytest.mark.guarantee("topology-old-programs")
def test_a_client_with_a_fixed_topology_writes_nothing_into_the_old_table(client, move, rows):
    """Programs of version 0.1 keep their topology: after a move they are refused and write nothing there."""
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


@pytest.mark.guarantee("topology-other-shards")
def test_another_datastore_on_the_new_server_is_refused(client, move, rows):
    """The identity is verified on the new server, too."""
    client.put_cell(next(rows), "BASE", 1, 1)
    moving = move()
    moving.run()
    database = internals_of(client).shards.database(SHARD)
    query(moving.target, f"UPDATE `{database}`.shard_identity SET shard = 3")

    with pytest.raises(ShardIdentityMismatch):
        client.put_cell(next(rows), "BASE", 1, 1)


def test_missing_index_tables_are_left_to_their_registry(client):
    """Calls wait only for the standard tables of a shard; index tables have a registry of their own."""
    shards = internals_of(client).shards
    asked = []
    shards.router.known_tables = lambda shard, table: asked.append((shard, table))
    with pytest.raises(schemaless.ServerError) as caught:
        shards.rows(SHARD, b"SELECT 1 FROM `%b`.index_1" % shards.database(SHARD).encode())

    assert caught.value.code == 1146
    assert asked == [(SHARD, "index_1")]


def test_a_worker_opened_with_a_topology_follows_changes(client, move, rows):
    """An opening for other processes has no token, but its topology is followed."""
    row = next(rows)
    client.put_cell(row, "BASE", 1, 1)
    opening = opening_of(client)
    move().run()
    with opening.open() as worker:
        assert worker.get_cell(row, "BASE", 1).body == 1
        assert make_url(opening.url.for_database(client.name)).database == client.name


@pytest.mark.guarantee("lost-connection-rereads")
@pytest.mark.parametrize("between", ["nothing", "a call about no shard"])
def test_after_a_lost_connection_the_catalog_is_read_before_any_use(client, move, rows, between):
    """A replaced server that is back, writable and complete receives no further writes."""
    first = client.put_cell(next(rows), "BASE", 1, 1)
    pool = internals_of(client).shards.pool_for(node_now(client))
    moving = move()
    moving.copy()
    moving.fence()
    moving.flip()
    moving.give_up()
    assert client.get_cell(*first.key).body == 1
    assert node_now(client) == moving.source, "this client does not know yet"
    pool.breaker.lost()
    if between != "nothing":
        assert pool.run(lambda connection: connection.rows(b"SELECT 1"))
    put = client.put_cell(next(rows), "BASE", 1, 2)

    assert node_now(client) == moving.target
    database = internals_of(client).shards.database(SHARD)
    assert query(moving.source, f"SELECT added_id FROM `{database}`.cell") == [(first.added_id,)]
    assert query(moving.target, f"SELECT MAX(added_id) FROM `{database}`.cell") == [(put.added_id,)]
