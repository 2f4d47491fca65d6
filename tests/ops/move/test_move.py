"""Moves of shards in use lose, renumber and duplicate nothing; and the cases that a move refuses."""

from __future__ import annotations

import itertools
import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest

import schemaless
from schemaless import (
    Datastore,
    InvalidInput,
    JobConflict,
    MoveRefused,
    NewCell,
    NewStoredCell,
    ServerUnavailable,
    finish_erasure,
)
from schemaless.cell import CellKey
from schemaless.codec.envelope import base_of, is_delta, is_reference
from schemaless.local.description import LocalServer
from schemaless.ops.failover import nodes
from schemaless.ops.jobs.job_store import JobStore
from schemaless.ops.migrate.rebuild import REBUILD, RebuildSpec
from schemaless.ops.migrate.run import MIGRATE
from schemaless.ops.migrate.spec import MigrateSpec
from schemaless.ops.move import run as moves
from schemaless.ops.move import sql
from schemaless.ops.move.compare import compare
from schemaless.ops.move.fence import Fence
from schemaless.ops.move.record import Records
from schemaless.ops.move.spec import CREATED_NEW, TABLES, MoveSpec
from schemaless.ops.move.sql import CARRIED, FENCED
from schemaless.ops.tier.cooling import TIER, TierSpec
from schemaless.ops.tier.survey import verify
from schemaless.schema.tables import shard_metadata
from schemaless.store.cold.files import ShardFiles
from schemaless.store.erasures.sql import insert_lock_row, record_deltas
from schemaless.store.followers.settings import Settings
from schemaless.store.followers.worker import Worker
from schemaless.store.internals import internals_of
from schemaless.wire.connection import Connection
from tests.movers import query
from tests.ops.jobs.kills import unsound
from tests.ops.move.benches import SHARD, other
from tests.promotion import caught_up
from tests.promotion import sql as server_sql
from tests.store.followers.child import TIMING
from tests.store.followers.workers import Seen

pytestmark = [pytest.mark.mysql]


@pytest.fixture
def client(url: str) -> Iterator[Datastore]:
    """A client that stays connected during moves."""
    with schemaless.connect(url, read_timeout_s=20) as store:
        internals_of(store).shards.move_wait_s = 60
        yield store


@pytest.fixture
def mover(url: str, client: Datastore) -> Iterator[Datastore]:
    """A second client, which moves shards."""
    with schemaless.connect(url) as store:
        yield store
    for cluster in internals_of(client).topology.clusters:
        database = internals_of(client).shards.database(SHARD)
        if internals_of(client).topology.cluster_of(SHARD) != cluster:
            query(cluster.primary, f"DROP DATABASE IF EXISTS `{database}`")


@pytest.fixture
def rows(client: Datastore, new_row: Callable[[], uuid.UUID]) -> Iterator[uuid.UUID]:
    """Unused row keys of the shard that is moved."""
    return (row for row in iter(new_row, None) if client.shard_of(row) == SHARD)


def spec_for(store: Datastore) -> MoveSpec:
    """Return a move to the other cluster."""
    return MoveSpec(other(store), accounts=False)


def everything(store: Datastore, shard: int = SHARD) -> dict[int, tuple[object, ...]]:
    """Return a shard's cells by added_id."""
    return {cell.added_id: (cell.key, cell.body, cell.created_at) for cell in store.scan_shard(shard)}


def test_a_move_preserves_cells(client, mover, rows):
    """Ids, keys, times and bytes stay, and the list of cold files; the next id is far above all that were assigned."""
    for size in (0, 10, 3_000, 70_000):
        client.put_cell(next(rows), "BASE", 1, "x" * size)
    cold = ShardFiles(internals_of(mover).shards, SHARD)
    cold.publish(cold.list_new("a" * 32, 1, 4), {"cells": 4, "sha256": "b" * 64})
    files = cold.all()
    before = everything(client)
    target = other(client)
    (record,) = moves.run(mover, spec_for(client), [SHARD])
    job = JobStore(mover).job(record.job_id)
    put = client.put_cell(next(rows), "BASE", 1, "later")

    assert (record.phase, record.target, record.fence_rows, record.fence_id) == ("verified", target, 4, max(before))
    assert (job.kind, job.state) == ("move", "done")
    assert internals_of(client).topology.cluster_of(SHARD).name == target
    assert {added_id: cell for added_id, cell in everything(client).items() if added_id != put.added_id} == before
    assert put.added_id > max(before) + (1 << 19)
    assert cold.all() == files
    assert [file.state for file in files] == ["live"]


@pytest.mark.guarantee("cold-exact")
def test_differences_recorded_during_a_move_are_known_on_the_target(client, mover, rows, monkeypatch):
    """A stalled migration records them after the log of erased cells was copied; a stalled tiering run looks there."""
    client.put_cell(next(rows), "BASE", 1, "x")
    shards = internals_of(client).shards
    database, recorded = shards.database(SHARD), []
    shards.execute(SHARD, insert_lock_row(database))
    lock = Fence.lock

    def late(fence: Fence, budget_s: float) -> bool:
        recorded.append(shards.execute(SHARD, record_deltas(database)))
        return lock(fence, budget_s)

    monkeypatch.setattr(Fence, "lock", late)
    (record,) = moves.run(mover, spec_for(client), [SHARD])

    target = internals_of(mover).topology.cluster(record.target).primary
    assert (record.phase, recorded[0].affected) == ("verified", 1)
    assert query(target, f"SELECT event_id, body_bytes FROM `{database}`.erased_cell") == [(0, 1)]


@pytest.fixture
def keys_required(servers: list[LocalServer], flavour: str) -> Iterator[None]:
    """Servers that refuse tables without a primary key."""
    variable = "sql_require_primary_key" if flavour == "mysql" else "innodb_force_primary_key"
    for server in servers:
        server_sql(server, f"SET GLOBAL {variable}=ON")
    yield
    for server in servers:
        server_sql(server, f"SET GLOBAL {variable}=OFF")


def test_a_move_makes_no_table_without_a_primary_key(keys_required, client, mover, rows):
    """Managed servers often refuse such tables."""
    client.put_cell(next(rows), "BASE", 1, "x")
    before = everything(client)
    (record,) = moves.run(mover, spec_for(client), [SHARD])

    assert (record.phase, everything(client)) == ("verified", before)


@pytest.mark.long
@pytest.mark.guarantee("history-exact", "cold-exact")
@pytest.mark.twice
def test_a_move_with_differences_and_cold_cells_while_applications_write_read_and_erase(client, mover, rows, tmp_path):
    """New versions are put above and between others, bases are erased, and every version is read all the time."""
    row, now = next(rows), datetime.now(UTC)
    keys = [CellKey(row, column, 2 * n) for column in ("BASE", "LOG") for n in range(60)]
    model: dict[CellKey, object] = {}

    def put(key: CellKey, age: int = 0) -> None:
        body = {"n": key.ref_key, "words": [f"word {number}" for number in range(100)]}
        client.put_cells([NewCell(*key, body, created_at=now - timedelta(age))])
        model[key] = body

    for key in keys:
        put(key, 9 if key.column_name == "LOG" and key.ref_key < 60 else 0)
    MIGRATE.run(mover, MigrateSpec(history=True), [SHARD])
    internals_of(mover).cold.set_store(str(tmp_path), 1)
    spec = TierSpec(("LOG 5",), (now + timedelta(minutes=5)).isoformat(), file_text_bytes=9_000)
    assert TIER.run(mover, spec, [SHARD]).state == "done"
    cells = {cell.key: bytes(cell.body) for cell in mover.scan_shard(SHARD)}
    bases = [key for key in keys if key.ref_key in map(base_of, filter(is_delta, cells.values()))]
    victims = (key for key in keys if is_reference(cells[key]) or key in bases)
    stop, faults, rounds = threading.Event(), [], itertools.count()

    def use() -> None:
        try:
            while not stop.is_set() or not next(rounds):
                for key in (CellKey(row, "BASE", 2 * next(numbers) + 1), CellKey(row, "LOG", 200 + next(numbers))):
                    put(key)
                erased = next(victims, None)
                if erased is not None:
                    finish_erasure(client, client.erase(*erased, reason="test").number)
                    del model[erased]
                faults.extend(wrong())
        except BaseException as error:  # noqa: BLE001 - asserted below
            faults.append(error)

    def wrong() -> list[CellKey]:
        found = {cell.key: cell.body for column in ("BASE", "LOG") for cell in client.get_versions(row, column)}
        return [key for key in found.keys() | model.keys() if found.get(key) != model.get(key)]

    numbers = itertools.count()
    thread = threading.Thread(target=use)
    thread.start()
    try:
        (record,) = moves.run(mover, spec_for(client), [SHARD])
    finally:
        stop.set()
        thread.join()
    assert (record.phase, faults, wrong()) == ("verified", [], [])
    assert unsound(mover.scan_shard(SHARD)) == []
    assert verify(mover, [SHARD]).faults == []
    (left,) = moves.left_behind(mover, [SHARD])
    assert compare(mover, left).same
    moves.drop(mover, left)


@pytest.mark.guarantee("myrocks-moves")
@pytest.mark.twice
@pytest.mark.myrocks(only=True)
def test_a_move_converts_between_storage_engines(client, mover, rows):
    """From MyRocks to InnoDB and back, the table is in the engine of its cluster, with the same cells."""
    puts = [client.put_cell(next(rows), "BASE", 1, {"n": n, "text": "x" * n}) for n in range(300)]
    before = everything(client)
    found = []
    for _ in range(3):
        cluster = internals_of(client).topology.cluster_of(SHARD)
        database = internals_of(client).shards.database(SHARD)
        ((engine,),) = query(
            cluster.primary,
            f"SELECT ENGINE FROM information_schema.TABLES WHERE TABLE_SCHEMA='{database}' AND TABLE_NAME='cell'",
        )
        found.append((cluster.engine, engine))
        assert everything(client) == before
        (record,) = moves.run(mover, spec_for(client), [SHARD])
        assert record.phase == "verified"
        client.get_cell(puts[0].key.row_key, "BASE", 1)  # the client follows the shard
        for left in moves.left_behind(mover):
            moves.drop(mover, left)

    assert {found[0], found[1]} == {("innodb", "InnoDB"), ("rocksdb", "ROCKSDB")}
    assert found[2] == found[0]


@pytest.mark.myrocks
def test_reads_and_writes_during_a_move(client, mover, rows, url):
    """Conformance case 18: beside writers, readers and a follower, each acknowledged cell arrives once, unchanged."""
    first = [client.put_cell(next(rows), "BASE", 1, n) for n in range(200)]
    mine = [[next(rows) for _ in range(400)] for _ in range(3)]
    done = threading.Event()
    written: dict[uuid.UUID, int] = {put.key.row_key: put.added_id for put in first}
    followed: list[int] = []

    def write(own: list[uuid.UUID]) -> None:
        for turn, row in enumerate(own):
            put = client.append_cell(row, "BASE", turn) if turn % 2 else client.put_cell(row, "BASE", 1, turn)
            written[row] = put.added_id
            if done.is_set() and turn > 20:
                return

    def read() -> None:
        for row in itertools.cycle(list(written)):
            assert client.get_cell(row, "BASE", 1) is not None
            if done.is_set():
                return

    def follow() -> None:
        with schemaless.connect(url) as follower:
            internals_of(follower).shards.move_wait_s = 60
            for cell in follower.iter_shard(SHARD, follow=True, poll_s=0.005):
                followed.append(cell.added_id)
                if done.is_set() and cell.body == "last":
                    return

    with ThreadPoolExecutor(5) as threads:
        calls = [threads.submit(write, own) for own in mine]
        others = [threads.submit(read), threads.submit(follow)]
        (record,) = moves.run(mover, spec_for(client), [SHARD])
        done.set()
        for call in calls:
            call.result()
        last = client.put_cell(next(rows), "BASE", 1, "last")
        written[last.key.row_key] = last.added_id
        for call in others:
            call.result()

    assert record.phase == "verified"
    assert {key.row_key: added_id for added_id, (key, _, _) in everything(client).items()} == written
    assert followed == sorted(written.values())


@pytest.mark.long
def test_followers_and_parked_cells_are_moved(client, mover, rows):
    """They stay unchanged except for the epoch, which is raised so that no previous owner changes anything."""
    client.put_cell(next(rows), "BASE", 1, 1)
    database = internals_of(client).shards.database(SHARD)
    source = internals_of(client).shards.node_of(SHARD)
    query(
        source,
        f"INSERT INTO `{database}`.follower (name, location, worker, epoch, state, attempts, retry_at, message) "
        "VALUES ('billing', 1, 'me', 7, 'stopped', 3, '2030-01-02 03:04:05.678901', 'it''s \\\\ so')",
        f"INSERT INTO `{database}`.parked (name, added_id, row_key, column_name, ref_key, attempts, error, replay) "
        "VALUES ('billing', 1, x'00112233445566778899AABBCCDDEEFF', 'BASE', 1, 4, 'no\\n', 1)",
    )
    tables = {table: f"SELECT {', '.join(columns)} FROM `{database}`.{table}" for table, columns in CARRIED.items()}
    before = {table: query(source, statement) for table, statement in tables.items()}
    moves.run(mover, spec_for(client), [SHARD])
    client.put_cell(next(rows), "BASE", 1, 1)
    target = internals_of(client).shards.node_of(SHARD)
    after = {table: query(target, statement) for table, statement in tables.items()}

    assert after["parked"] == before["parked"]
    assert [(*row[:3], row[3] - 1, *row[4:]) for row in after["follower"]] == before["follower"]


@pytest.mark.once
def test_every_table_of_a_shard_has_a_treatment():
    """A table that a schema revision adds needs an entry in ``TABLES``."""
    assert TABLES.keys() == {*shard_metadata.tables, "alembic_version"}
    for table, columns in CARRIED.items():
        assert columns == tuple(shard_metadata.tables[table].columns.keys())
    assert {name for name, treatment in TABLES.items() if treatment != CREATED_NEW} == set(FENCED)


def test_a_move_that_cannot_begin_is_refused(client, mover, rows):
    """The error gives the reason; no job is created, and nothing is changed."""
    database = internals_of(client).shards.database(SHARD)
    source = internals_of(client).shards.node_of(SHARD)
    spec = spec_for(client)
    query(source, f"CREATE TABLE `{database}`.notes (n INT)")
    with pytest.raises(MoveRefused, match="has the table notes, which does not belong to this store"):
        moves.run(mover, spec, [SHARD])
    query(source, f"DROP TABLE `{database}`.notes")
    with pytest.raises(MoveRefused, match="it is already on cluster-"):
        moves.run(mover, MoveSpec(internals_of(client).topology.cluster_of(SHARD).name), [SHARD])
    with pytest.raises(InvalidInput, match="has no cluster 'nowhere'"):
        moves.run(mover, MoveSpec("nowhere"), [SHARD])
    assert JobStore(mover).jobs("move") == []
    job, _ = REBUILD.begin_or_join(mover, RebuildSpec(), [SHARD])

    with pytest.raises(JobConflict, match=f"rebuild job {job.job_id} is running"):
        moves.run(mover, spec, [SHARD])


def test_leftovers_are_dropped_only_after_verification(client, mover, rows):
    """A move back is another move, which needs the leftovers of the last one to be dropped."""
    client.put_cell(next(rows), "BASE", 1, 1)
    back = internals_of(client).topology.cluster_of(SHARD).name
    moves.run(mover, spec_for(client), [SHARD])
    client.put_cell(next(rows), "BASE", 1, 2)
    with pytest.raises(MoveRefused, match="an earlier move left"):
        moves.run(mover, MoveSpec(back, accounts=False), [SHARD])
    (left,) = moves.left_behind(mover)
    database = internals_of(client).shards.database(SHARD)
    cells = f"`{database}`.{left.tables[-1]}"
    query(left.node, f"INSERT INTO {cells} (row_key, column_name, ref_key, body) VALUES (x'{'00' * 16}', 'A', 1, '')")
    (more,) = moves.left_behind(mover)

    assert (left.cells, left.refusal, len(left.tables)) == (1, None, 2)
    assert more.refusal == "its leftovers have 2 cells, but 1 were compared"
    for each in (more, left):
        with pytest.raises(MoveRefused, match="its leftovers have 2 cells, but 1 were compared; nothing was dropped"):
            moves.drop(mover, each)
    query(left.node, f"DELETE FROM {cells} WHERE column_name='A'")
    moves.drop(mover, left)
    assert query(left.node, f"SHOW DATABASES LIKE '{database}'") == []
    assert moves.left_behind(mover) == []
    moves.run(mover, MoveSpec(back, accounts=False), [SHARD])
    assert len(everything(client)) == 2


def test_dropping_leftovers_continues_after_a_kill(client, mover, rows, monkeypatch):
    """Killed after each statement and before the record's update; the cell table is last, so that it can be counted."""
    client.put_cell(next(rows), "BASE", 1, 1)
    moves.run(mover, spec_for(client), [SHARD])
    (left,) = moves.left_behind(mover)
    assert left.tables[-1].startswith("cell_moved_")
    execute, note = Connection.execute, Records.note_outcome

    def kill_after_drop(connection, statement):
        execute(connection, statement)
        if statement.startswith(b"DROP"):
            raise KeyboardInterrupt

    def killed(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(Connection, "execute", kill_after_drop)
    monkeypatch.setattr(Records, "note_outcome", killed)
    remaining = []
    for _ in range(4):
        (now,) = moves.left_behind(mover)
        remaining.append((len(now.tables), now.refusal))
        with pytest.raises(KeyboardInterrupt):
            moves.drop(mover, now)
    monkeypatch.setattr(Connection, "execute", execute)
    monkeypatch.setattr(Records, "note_outcome", note)
    moves.drop(mover, left)

    assert remaining == [(2, None), (1, None), (0, None), (0, None)]
    assert moves.left_behind(mover) == []


@pytest.mark.long
def test_a_client_that_missed_a_move_away_and_back_still_works(client, mover, rows):
    """A to B to A with an old client: its routing to A is right again, and its new ids are above those of B."""
    home = internals_of(client).topology.cluster_of(SHARD).name
    puts = [client.put_cell(next(rows), "BASE", 1, n) for n in range(3)]
    feed = client.iter_shard(SHARD, follow=True, poll_s=0.01)
    seen = [next(feed).added_id for _ in range(3)]
    for target in (spec_for(client).target, home):
        moves.run(mover, MoveSpec(target, accounts=False), [SHARD])
        puts.append(mover.put_cell(next(rows), "BASE", 1, target))
        for left in moves.left_behind(mover):
            moves.drop(mover, left)
    changes = internals_of(client).shards.routing.changes[SHARD]
    puts.append(client.put_cell(next(rows), "BASE", 1, "of before"))
    seen += [next(feed).added_id for _ in range(3)]

    assert changes == 0, "the client has noticed the moves"
    assert seen == [put.added_id for put in puts] == sorted(everything(client))


@pytest.mark.long
def test_a_worker_and_readers_of_a_replica_follow_a_shard(replicated, servers, new_row, eventually):
    """A worker gets each cell in order across two moves, and the target's replica has the shard at the flip."""
    name = f"live_{replicated.flavour}"
    url = schemaless.create(name, 2, [servers[0].url, replicated.url])
    nodes.add_replica(url, "cluster-2", replicated.replicas[0].url)
    seen, stop = Seen(), threading.Event()
    with schemaless.connect(url) as client, schemaless.connect(url) as mover, schemaless.connect(url) as follower:
        mine = (row for row in iter(new_row, None) if client.shard_of(row) == SHARD)
        Settings(internals_of(follower).follower_access).create(seen.name, {}, lambda shard: 0)
        worker = threading.Thread(
            target=Worker(internals_of(follower).follower_access, [seen], "one", timing=TIMING, stop=stop).run
        )
        worker.start()
        there = []
        try:
            for _ in range(2):
                there += [client.put_cell(next(mine), "BASE", 1, n) for n in range(20)]
                moves.run(mover, spec_for(mover), [SHARD])
                there += [client.put_cell(next(mine), "BASE", 1, n) for n in range(20)]
                with caught_up(replicated):
                    for put in there:
                        assert client.get_cell(*put.key, read_from="replica").added_id == put.added_id
                for left in moves.left_behind(mover):
                    moves.drop(mover, left)
            eventually(lambda: {(SHARD, put.added_id) for put in there} <= set(seen.cells), "the worker has all")
        finally:
            stop.set()
            worker.join()

    given = dict.fromkeys(added_id for shard, added_id in seen.cells if shard == SHARD)
    assert list(given) == [put.added_id for put in there]


@pytest.mark.long
def test_a_drop_that_wakes_up_after_the_shard_came_back_drops_nothing(client, mover, rows, monkeypatch):
    """Frozen before DROP DATABASE: the mover that brings the shard back has killed its session."""
    client.put_cell(next(rows), "BASE", 1, 1)
    back = internals_of(client).topology.cluster_of(SHARD).name
    moves.run(mover, spec_for(client), [SHARD])
    (left,) = moves.left_behind(mover)
    statement = moves.drop_database

    def move_back_first(database):
        moves.run(mover, MoveSpec(back, accounts=False), [SHARD])
        return statement(database)

    monkeypatch.setattr(moves, "drop_database", move_back_first)
    with pytest.raises(ServerUnavailable):
        moves.drop(mover, left)

    assert len(everything(client)) == 1


def test_a_move_that_began_elsewhere_is_aborted(client, mover, rows):
    """The shard stays on its cluster."""
    client.put_cell(next(rows), "BASE", 1, 1)
    home = internals_of(client).topology.cluster_of(SHARD).name
    job, _ = moves.MOVE.begin_or_join(mover, spec_for(client), [SHARD])
    Records(mover).begin(job.job_id, SHARD, "cluster-9", other(client))
    with pytest.raises(MoveRefused, match="its move began on cluster-9; abort the move"):
        moves.run(mover, spec_for(client), [SHARD])
    (record,) = moves.abort(mover, JobStore(mover).job(job.job_id))

    assert record.phase == "aborted"
    assert internals_of(client).topology.cluster_of(SHARD).name == home
    assert len(everything(client)) == 1


def test_verification_restores_a_missing_cell(client, mover, rows, monkeypatch):
    """A cell that the copy missed is restored from the leftovers, and followers are rewound to it."""
    puts = [client.put_cell(next(rows), "BASE", 1, n) for n in range(3)]
    before = everything(client)
    database = internals_of(client).shards.database(SHARD)
    query(
        internals_of(client).shards.node_of(SHARD),
        f"INSERT INTO `{database}`.follower (name, location) VALUES ('billing', {puts[2].added_id})",
    )
    original = Records.flip

    def flip(records, run, topology, target, *rest):
        node = topology.cluster(target).primary
        query(node, f"DELETE FROM `{database}`.cell WHERE added_id={puts[1].added_id}")
        return original(records, run, topology, target, *rest)

    rewind = sql.rewind_followers

    def killed(*_):
        monkeypatch.setattr(sql, "rewind_followers", rewind)
        raise MoveRefused("killed here")

    monkeypatch.setattr(Records, "flip", flip)
    monkeypatch.setattr(sql, "rewind_followers", killed)
    spec = spec_for(client)
    with pytest.raises(MoveRefused, match="killed here"):
        moves.run(mover, spec, [SHARD])
    assert len(everything(client)) == 2
    (record,) = moves.run(mover, spec, [SHARD])
    target = internals_of(mover).topology.cluster(record.target).primary

    assert record.phase == "verified"
    assert everything(client) == before
    assert query(target, f"SELECT location, epoch FROM `{database}`.follower") == [(puts[0].added_id, 2)]
    assert [left.reason for left in JobStore(mover).failures(record.job_id)] == ["Lacking"]


def test_the_role_move_can_move_and_locks_no_account_out(client, accounts, url, rows):
    """Its privileges suffice; accounts that use the shard need their privileges on the target first."""
    client.put_cell(next(rows), "BASE", 1, 1)
    accounts.allow("move", client.name, 4)
    with schemaless.connect(accounts.url("move", url)) as mover:
        spec = MoveSpec(other(client))
        with pytest.raises(MoveRefused, match=r"its accounts lack .*, which 'schemaless shards plan'"):
            moves.run(mover, spec, [SHARD])
        (plan,) = moves.plan(mover, spec, [SHARD])
        target = internals_of(client).topology.cluster(spec.target).primary
        query(target, *plan.grants)
        (record,) = moves.run(mover, spec, [SHARD])
        for left in moves.left_behind(mover):
            moves.drop(mover, left)
    with schemaless.connect(accounts.url("app", url)) as app:
        assert app.put_cell(next(rows), "BASE", 1, 2).created

    assert any(statement.startswith("GRANT CREATE, INSERT, SELECT ON") for statement in plan.grants)
    assert record.phase == "verified"


@pytest.mark.long
def test_bodies_of_all_sizes_fit_the_targets_packets(client, mover, rows):
    """More rows than one INSERT holds, and bodies that each need their own."""
    cells = [NewStoredCell(next(rows), "BASE", 1, b'"%b"' % (b"'\\" * 5)) for _ in range(2_500)]
    cells += [NewStoredCell(next(rows), "BASE", 1, b'"%b"' % (b"y" * (3 << 20))) for _ in range(3)]
    client.put_stored_cells(cells, trusted=True)
    before = everything(client)
    moves.run(mover, spec_for(client), [SHARD])

    assert everything(client) == before
