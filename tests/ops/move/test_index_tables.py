"""Moves of a shard with an index: its entries and followers move too, with writes in parallel."""

from __future__ import annotations

import random
import re
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

import schemaless
from schemaless import Datastore, JobConflict, MoveRefused, ServerUnavailable
from schemaless.cell import StoredCell
from schemaless.ops.admin.indexes import indexes_of
from schemaless.ops.erasure.verify import verify
from schemaless.ops.jobs.job import Job
from schemaless.ops.jobs.runner import ShardRun, Stopped
from schemaless.ops.jobs.worker import Outcome
from schemaless.ops.move import run as moves
from schemaless.ops.move.copying import Copier
from schemaless.ops.move.index_tables import IndexMover
from schemaless.ops.move.record import Records
from schemaless.ops.move.spec import MoveSpec
from schemaless.store.followers.erasures import ErasureEvent
from schemaless.store.followers.handler import HandlerContext
from schemaless.store.followers.leases import Lease
from schemaless.store.followers.membership import Timing
from schemaless.store.followers.rows import FollowerRows
from schemaless.store.followers.settings import Settings
from schemaless.store.followers.worker import Worker
from schemaless.store.indexes import check as index_check
from schemaless.store.indexes.definition import define
from schemaless.store.indexes.registry import READY
from schemaless.store.internals import internals_of
from schemaless.topology.placement import shard_for
from schemaless.topology.shards import Shards
from tests.movers import query
from tests.ops.move.benches import SHARD, Bench, Killed, Movers, Point, other

pytestmark = [pytest.mark.mysql]

SHARDS = 4
CALM = Timing(lease_s=1_000, give_up_s=900, renew_s=1_000, note_s=0.0)
CLIENTS = [uuid.UUID(int=n) for n in range(400) if shard_for(uuid.UUID(int=n).bytes, SHARDS) == SHARD]
"""Clients whose rows have their index entries in the shard that is moved."""

TRIPS = define(
    "trips",
    "BASE.client:uuid",
    ["BASE.at:time", "BASE.city:int", "BASE.far:float", "BASE.done:bool", "STATUS.s:text(8)"],
)


class Seen:
    """A trigger handler that records its cells."""

    name = "trigger:seen"
    column = None
    timeout_s = None

    def __init__(self) -> None:
        self.ids: list[tuple[int, int]] = []

    def handle_batch(self, context: HandlerContext, pages: Sequence[tuple[Lease, Sequence[StoredCell]]]) -> bool:
        return False

    def handle(self, context: HandlerContext, lease: Lease, cells: Sequence[StoredCell]) -> bool:
        for cell in cells:
            self.ids.append((cell.shard, cell.added_id))
            context.advance(lease, cell.added_id)
        return True

    def handle_erased(self, context: HandlerContext, lease: Lease, events: Sequence[ErasureEvent]) -> bool:
        return True

    def replay(self, context: HandlerContext, lease: Lease) -> None:
        raise AssertionError("nothing is parked")


class Indexed:
    """A datastore with a complete index, a trigger, one worker for both, and rows whose entries are in the shard."""

    def __init__(self, store: Datastore, bench: Bench, new_row: Callable[[], uuid.UUID], stack: ExitStack) -> None:
        self.store = store
        self.bench = bench
        self.seen = Seen()
        self._new_row = new_row
        self._chance = random.Random(7)
        self.rows: list[uuid.UUID] = []
        self.write(60)
        self.entry, _ = indexes_of(store).create(TRIPS)
        Settings(internals_of(store).follower_access).create(self.seen.name, {}, lambda shard: 0)
        handlers = [*indexes_of(store).handlers(), self.seen]
        self._worker = Worker(
            internals_of(store).follower_access, handlers, "the worker", timing=CALM, stop=threading.Event()
        )
        stack.enter_context(self._worker.membership)
        self.catch_up()
        indexes = indexes_of(store)
        assert indexes.watch(self.entry, indexes.backfill(self.entry))
        (self.entry,) = indexes.all()
        assert self.entry.state == READY

    def write(self, count: int) -> None:
        """Write new rows and new versions of existing ones, whose entries enter or leave the shard."""
        for _ in range(count):
            self.rows.append(self._new_row())
            self._put(self.rows[-1], 1, self._chance.choice(CLIENTS))
        for row in self._chance.sample(self.rows, count // 3):
            client = self._chance.choice([*CLIENTS[:9], *(uuid.UUID(int=n) for n in range(20)), None])
            put = self.store.append_cell(row, "BASE", self._trip(client))
            self._acknowledge(row, put.added_id, self._trip(client))

    def _put(self, row: uuid.UUID, ref_key: int, client: uuid.UUID) -> None:
        put = self.store.put_cell(row, "BASE", ref_key, self._trip(client))
        self._acknowledge(row, put.added_id, self._trip(client))

    def _trip(self, client: uuid.UUID | None) -> dict[str, object]:
        city = len(self.rows)
        at = f"2026-03-{1 + city % 28:02}T12:00:00.{city:06}Z"
        return {"client": client and str(client), "at": at, "city": city, "far": city / 7, "done": bool(city % 2)}

    def _acknowledge(self, row: uuid.UUID, added_id: int, body: dict[str, object]) -> None:
        if self.store.shard_of(row) == SHARD:
            self.bench.acknowledged[added_id] = row, body  # type: ignore[assignment]

    def catch_up(self) -> None:
        """Run the worker until it has processed all cells, and check the result against the shards."""
        worker, rows = self._worker, FollowerRows(internals_of(self.store).shards)
        names = [handler.name for handler in worker._handlers.values()]
        worker.membership.renew()
        for _ in range(2_000):
            worker.schedule.poll_now()
            worker.turn()
            found = rows.look((name, shard) for name in names for shard in range(SHARDS)).rows
            if len(found) == len(names) * SHARDS and all(row.location == row.top for row in found.values()):
                return
            time.sleep(0.002)
        raise AssertionError([lease.wait.reason for lease in worker.leases.held.values()])

    def handle_erasures(self) -> None:
        """Make the worker look for erased cells now, and handle them."""
        self._worker.membership.renew()
        for lease in self._worker.leases.held.values():
            lease.wait.until_s = lease.erasure_wait.until_s = 0.0
        self._worker.schedule.poll_now()
        self._worker.turn()

    def write_beside(self) -> None:
        """Write more rows and index them, as another process would."""

        def other_process() -> None:
            self.write(20)
            self.catch_up()

        with ThreadPoolExecutor(1) as thread:
            thread.submit(other_process).result()

    def faults(self) -> dict[str, int]:
        """Return the faults that a check of the index finds once the worker has caught up."""
        self.catch_up()
        internals_of(self.store).registry.read()
        every = list(indexes_of(self.store).check(self.entry).run(range(SHARDS)))
        names = ("lagging", "missing", "stale", "ahead", "orphan")
        return {name: count for name in names if (count := sum(each.counts[name] for each in every))}

    def tables(self, cluster: str) -> set[str]:
        """Return the shard's tables on a cluster."""
        internals = internals_of(self.store)
        node, database = internals.topology.cluster(cluster).primary, internals.shards.database(SHARD)
        exists = query(node, f"SHOW DATABASES LIKE '{database}'")
        return {str(row[0]) for row in query(node, f"SHOW TABLES FROM `{database}`")} if exists else set()


@pytest.fixture
def indexed(bench: Bench, client: Datastore, new_row: Callable[[], uuid.UUID]) -> Iterator[Indexed]:
    """A datastore with an index."""
    with ExitStack() as stack:
        yield Indexed(client, bench, new_row, stack)


@pytest.fixture
def beside(indexed: Indexed, monkeypatch: pytest.MonkeyPatch) -> None:
    """Change entries that the mover has already copied."""
    copy = IndexMover.copy

    def copied(self: IndexMover, *args: object) -> set[str]:
        tables = copy(self, *args)  # type: ignore[arg-type]
        indexed.write_beside()
        return tables

    monkeypatch.setattr(IndexMover, "copy", copied)


@pytest.mark.guarantee("myrocks-indexes")
@pytest.mark.twice
@pytest.mark.myrocks
@pytest.mark.usefixtures("beside")
def test_an_index_and_a_trigger_move_with_the_shard(indexed, bench, client):
    """Entries changed during the copy are written again, and the trigger gets each cell once."""
    source, target = (internals_of(client).topology.cluster_of(SHARD).name, other(client))
    table = f"index_{indexed.entry.number}"
    (record,) = moves.run(client, MoveSpec(target, accounts=False), [SHARD])
    indexed.write(10)

    assert indexed.faults() == {}
    assert record.phase == "verified"
    assert {name for name in indexed.tables(target) if "index" in name or "noted" in name} == {table}
    cluster = internals_of(client).topology.cluster_of(SHARD)
    found = query(
        cluster.primary,
        "SELECT LOWER(ENGINE) FROM information_schema.TABLES "
        f"WHERE TABLE_SCHEMA='{internals_of(client).shards.database(SHARD)}' AND TABLE_NAME='{table}'",
    )
    assert [engine for (engine,) in found] == [cluster.engine]
    every = [(shard, cell.added_id) for shard in range(SHARDS) for cell in client.scan_shard(shard)]
    assert sorted(indexed.seen.ids) == sorted(every)
    found = client.index("trips").query(client=CLIENTS[0], limit=1_000).rows
    assert {row.row_key for row in found} == {
        row for row in indexed.rows if client.get_cell_latest(row, "BASE").body["client"] == str(CLIENTS[0])
    }
    (left,) = moves.left_behind(client)
    assert [name.partition("_moved_")[0] for name in left.tables] == ["erased_cell", "cell"]
    moves.drop(client, left)
    assert indexed.tables(source) == set()


@pytest.mark.guarantee("erasure-lasting")
def test_an_erasure_is_verified_once_a_move_has_dropped_what_followers_made(
    indexed, bench, movers: Movers, client, monkeypatch
):
    """A cell is erased during the copy: old and copied tables have its entry, which verification reports until then."""
    clients = {str(each) for each in CLIENTS}
    row = next(
        row
        for row in indexed.rows
        if client.shard_of(row) == SHARD and client.get_cell_latest(row, "BASE").body["client"] in clients
    )
    internals, home = internals_of(client), internals_of(client).topology.cluster_of(SHARD).name
    node, database = internals.shards.node_of(SHARD), internals.shards.database(SHARD)
    copy_tail, erased = Copier.copy_tail, list[int]()

    def erase(*arguments: object, **named: object) -> object:
        if not erased:
            erased.append(client.erase(row, reason="ticket-1").number)
        return copy_tail(*arguments, **named)  # type: ignore[arg-type]

    job = bench.begin()
    with monkeypatch.context() as patch:
        patch.setattr(Copier, "copy_tail", erase)
        movers.die_in(client, job, IndexMover, "drop_left")
    # The list of cold files names no documents.
    left = {name for name in indexed.tables(home) if "_moved_" in name and not re.match("cold_file|.*cell", name)}
    faults = verify(client, erased[0]).faults

    assert {name.partition("_moved_")[0] for name in left} == {indexed.entry.layout.table, "follower", "parked"}
    (entries,) = (name for name in left if "index" in name)
    assert query(node, f"SELECT 1 FROM `{database}`.{entries} WHERE row_key=x'{row.hex}'")
    assert {
        f"table {database}.{name} on {node}, which the unfinished move will drop before it ends" for name in left
    } <= faults.keys()
    bench.end(job, movers, abort=False)
    assert {name for name in indexed.tables(home) if "_moved_" in name and "cell" not in name} == set()
    indexed.handle_erasures()
    found = verify(client, erased[0])
    assert (dict(found.faults), found.status.state) == ({}, "verified")


@pytest.mark.long
@pytest.mark.usefixtures("beside")
@pytest.mark.parametrize("rewound", [pytest.param("never", marks=pytest.mark.long), "before the fence"])
def test_entries_are_missing_if_followers_are_not_rewound_after_the_fence(indexed, client, monkeypatch, rewound):
    """The control: without the rewind, or with an early one, the check above finds missing entries."""
    rewind, copy = IndexMover.rewind_followers, IndexMover.copy
    monkeypatch.setattr(IndexMover, "rewind_followers", lambda *_: None)
    if rewound == "before the fence":

        def too_early(self, fence, token):
            tables = copy(self, fence, token)
            rewind(self, internals_of(client).topology.cluster(other(client)).primary)
            indexed.catch_up()
            return tables

        monkeypatch.setattr(IndexMover, "copy", too_early)
    moves.run(client, MoveSpec(other(client), accounts=False), [SHARD])

    assert indexed.faults()["missing"] > 0


@pytest.mark.long
@pytest.mark.usefixtures("beside")
def test_followers_are_rewound_in_a_paused_job_and_beside_unreachable_shards(
    indexed, bench, movers: Movers, client, monkeypatch
):
    """Neither a paused job nor an unreachable shard delays the rewind on the reachable ones."""
    tried: list[int] = []
    execute, flip = Shards.execute, Records.flip

    def waits(run: ShardRun) -> None:
        raise Stopped

    def flipped(*args: object) -> None:
        flip(*args)  # type: ignore[arg-type]
        patch.setattr(ShardRun, "gate", waits)

    def away(self: Shards, shard: int, statement: bytes) -> object:
        if b"LEAST(location" in statement:
            tried.append(shard)
            if len(tried) == 1:
                raise ServerUnavailable("it is away", node="somewhere", shard=shard)
        return execute(self, shard, statement)

    job = bench.begin()
    outcomes: list[Outcome] = []
    with monkeypatch.context() as patch:
        patch.setattr(Records, "flip", flipped)
        patch.setattr(Shards, "execute", away)
        movers.move(client, job, outcomes=outcomes)
    bench.end(job, movers, abort=False)

    assert isinstance(outcomes[0].error, ServerUnavailable)
    assert set(tried) == set(range(SHARDS))
    assert indexed.faults() == {}


@pytest.mark.long
@pytest.mark.usefixtures("beside")
@pytest.mark.parametrize("abort", [False, pytest.param(True, marks=pytest.mark.long)], ids=["runs", "aborts"])
def test_a_mover_of_an_index_killed_before_a_statement(indexed, bench, movers: Movers, client, abort):
    """After a successor ran or aborted the move, no entry is missing, and only the shard's server has the table."""

    def kill(sql: bytes) -> None:
        raise Killed

    job = bench.begin()
    movers.move(client, job, Point(-1, lambda sql: None))
    bench.job_store.complete(job.job_id)
    assert indexed.faults() == {}
    chance = random.Random(11 + abort)
    names = (b"noted", b"index_", b"RENAME", b"LOCK TABLES", b"follower")
    about = [number for number, sql in enumerate(movers.sent) if any(name in sql for name in names)]
    for number in chance.sample(about, 3):
        for left in moves.left_behind(client):
            moves.drop(client, left)
        job = bench.begin()
        movers.move(client, job, Point(number, kill))
        bench.end(job, movers, abort=abort)

        assert indexed.faults() == {}, movers.sent[number]
        topology = internals_of(client).topology
        for cluster in topology.clusters:
            tables = indexed.tables(cluster.name)
            home = cluster == topology.cluster_of(SHARD)
            assert (f"index_{indexed.entry.number}" in tables) == home, movers.sent[number]
            assert not [name for name in tables if "incoming" in name or "noted" in name], movers.sent[number]


def test_an_index_that_cannot_be_moved_is_refused(indexed, client):
    """Its tables are being created or dropped, or are unknown; and no index is repaired while its shard is moved."""
    internals, spec = internals_of(client), MoveSpec(other(client), accounts=False)
    database, node = internals.shards.database(SHARD), internals.shards.node_of(SHARD)
    target = internals.topology.cluster(other(client)).primary
    note = f"`{database}`.follower_noted_{'0' * 16}"
    query(target, f"CREATE DATABASE `{database}`", f"CREATE TABLE {note} (n INT)")
    with pytest.raises(MoveRefused, match=r"left .*follower_noted_0+ on .*no longer needed: drop it"):
        moves.run(client, spec, [SHARD])
    query(target, f"DROP DATABASE `{database}`")
    query(node, f"CREATE TABLE `{database}`.index_77 (n INT)")
    with pytest.raises(MoveRefused, match="has a table index_77, but the catalog has no such index"):
        moves.run(client, spec, [SHARD])
    query(node, f"DROP TABLE `{database}`.index_77")
    name = client.name
    home = internals.topology.clusters[0].primary
    query(home, f"UPDATE `{name}`.secondary_index SET state='declared'")
    with pytest.raises(MoveRefused, match=r"index trips \(1\) is declared.*'schemaless index create trips'"):
        moves.run(client, spec, [SHARD])
    query(home, f"UPDATE `{name}`.secondary_index SET state='dropping'")
    with pytest.raises(MoveRefused, match=r"is dropping.*complete 'schemaless index drop trips --number 1'"):
        moves.run(client, spec, [SHARD])
    query(home, f"UPDATE `{name}`.secondary_index SET state='ready'")
    job, _ = moves.MOVE.begin_or_join(client, spec, [SHARD])
    with pytest.raises(JobConflict, match=f"move {job.job_id} is running, and index tables"):
        list(indexes_of(client).check(indexed.entry, repair=True).run([0]))
    moves.abort(client, job)

    assert indexed.faults() == {}


@pytest.mark.long
def test_a_repair_ends_when_a_move_begins(indexed, client, monkeypatch):
    """The move may have copied unrepaired entries; after the move, the same repair completes."""
    shards, begun = internals_of(client).shards, list[Job]()
    query(shards.node_of(SHARD), f"DELETE FROM `{shards.database(SHARD)}`.index_{indexed.entry.number}")
    select = index_check.sql.select_entries_after

    def begin(*arguments: object) -> bytes:
        begun.append(moves.MOVE.begin_or_join(client, MoveSpec(other(client), accounts=False), [SHARD])[0])
        return select(*arguments)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(index_check.sql, "select_entries_after", begin)
        with pytest.raises(JobConflict, match=r"move \d+ began while shard 0 was being repaired"):
            list(indexes_of(client).check(indexed.entry, repair=True).run(range(SHARDS)))
    moves.abort(client, begun[0])
    list(indexes_of(client).check(indexed.entry, repair=True).run(range(SHARDS)))

    assert indexed.faults() == {}


@pytest.mark.long
def test_a_plan_knows_an_index_that_is_created_during_it(indexed, client, url, monkeypatch):
    """A stale registry must not make the plan report a new index's table as unknown."""
    disk_space = moves.disk_space_of

    def create_index(*args: object) -> object:
        with schemaless.connect(url) as another:
            indexes_of(another).create(define("more", "BASE.client:uuid", ["BASE.city:int"]))
        return disk_space(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(moves, "disk_space_of", create_index)
    internals_of(client).registry.read()
    (plan,) = moves.plan(client, MoveSpec(other(client), accounts=False), [SHARD])

    assert plan.refusal is None


def test_a_plan_names_missing_privileges_on_index_tables(indexed, client, accounts):
    """Accounts with privileges on the index's table need them on the target as well."""
    accounts.allow("app", client.name, SHARDS, indexes=[indexed.entry.number])
    (plan,) = moves.plan(client, MoveSpec(other(client)), [SHARD])
    account = str(accounts.account("app"))

    assert [grant for grant in plan.grants if f"`index_{indexed.entry.number}`" in grant and account in grant]
