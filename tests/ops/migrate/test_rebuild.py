"""rebuild: files shrink as predicted, writers are not blocked, and a rebuild that does not fit is not started."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

import schemaless
from schemaless import InvalidInput, JobConflict, NewStoredCell, ServerRefused
from schemaless.base.numbers import Interval
from schemaless.ops.jobs.job_store import JobStore
from schemaless.ops.migrate import rebuild
from schemaless.ops.migrate.rebuild import REBUILD, RebuildSpec
from schemaless.ops.migrate.run import MIGRATE
from schemaless.ops.migrate.spec import MigrateSpec
from schemaless.planning.sampling.table_sizes import DiskSpace, cell_table_sizes
from schemaless.store.internals import internals_of
from schemaless.wire.connection import Connection
from tests.topologies import opened_as

pytestmark = [pytest.mark.mysql, pytest.mark.twice]


@pytest.fixture
def move_store(move_url):
    """The new datastore, as ``move``."""
    with schemaless.connect(move_url) as opened:
        yield opened


@pytest.fixture
def shrunk(fresh_store, new_row, by_hand):
    """A datastore whose bodies in shards 0 and 1 shrank from 20 KB to 300 bytes."""
    cells = []
    while len(cells) < 300:
        row = new_row()
        if fresh_store.shard_of(row) < 2:
            cells.append(NewStoredCell(row, "BASE", 1, b'"%b"' % (b"x" * 20_000)))
    fresh_store.put_stored_cells(cells, trusted=True)
    for shard in (0, 1):
        name = internals_of(fresh_store).shards.database(shard).encode()
        by_hand(fresh_store).execute(shard, b"UPDATE `%b`.cell SET body=CONCAT('\"', REPEAT('y',298), '\"')" % name)


def everything(store) -> dict:
    return {
        (shard, cell.added_id): (cell.key, cell.body, cell.created_at)
        for shard in range(store.shard_count)
        for cell in store.scan_shard(shard)
    }


def file_bytes(store, by_hand, shard: int) -> int:
    database = internals_of(store).shards.database(shard)
    pool = by_hand(store).pool_for(internals_of(store).topology.cluster_of(shard).primary)
    return cell_table_sizes(pool, [database])[database].file_bytes


@pytest.mark.innodb("tests/planning/sampling/test_lsm_sizes.py has the sizes before and after a compaction")
def test_rebuild_gives_space_back_as_predicted(fresh_store, shrunk, move_store, by_hand):
    """Cells are unchanged, files have the predicted size, and the result includes the error of the prediction."""
    before = everything(fresh_store)
    sizes = [file_bytes(fresh_store, by_hand, shard) for shard in (0, 1)]
    planned = rebuild.plan_rebuild(move_store, RebuildSpec(), [0, 1])
    done = rebuild.run(move_store, shards=[1, 0])
    now = [file_bytes(fresh_store, by_hand, shard) for shard in (0, 1)]
    job = JobStore(move_store).latest("rebuild")

    assert everything(fresh_store) == before
    assert [each.size.file_bytes for each in planned] == [each.before_bytes for each in done] == sizes
    assert [each.after_bytes for each in done] == now
    assert all(after < size for after, size in zip(now, sizes, strict=True))
    assert [each.prediction.file_bytes for each in planned] == [each.predicted for each in done]
    assert [each.off for each in done] == pytest.approx([0, 0], abs=0.1)
    assert [(each.shard, each.state, each.attempts, each.message) for each in done] == [
        (0, "done", 1, None),
        (1, "done", 1, None),
    ]
    assert (job.kind, job.state) == ("rebuild", "done")


@pytest.mark.innodb("a compaction needs no copy of the table")
def test_rebuild_ends_while_equal_puts_are_repeated(fresh_store, shrunk, move_store, by_hand, new_row):
    """No repetition fails it, no put fails, and all cells and ids are there, in a smaller file."""
    before, size = everything(fresh_store), file_bytes(fresh_store, by_hand, 0)
    row = next(row for row in iter(new_row, None) if fresh_store.shard_of(row) == 0)
    acknowledged = {}
    done = threading.Event()

    def put_and_repeat() -> None:
        while not done.is_set():
            number = len(acknowledged)
            acknowledged[number] = fresh_store.put_cell(row, "BASE", number, {"n": number}).added_id
            assert not fresh_store.put_cell(row, "BASE", 0, {"n": 0}).created

    with ThreadPoolExecutor() as pool:
        try:
            writers = [pool.submit(put_and_repeat)]
            rebuilt = rebuild.run(move_store, shards=[0])
        finally:
            done.set()
        for writer in writers:
            writer.result()
    after = everything(fresh_store)
    database = internals_of(fresh_store).shards.database(0)
    tables = internals_of(fresh_store).shards.rows(0, b"SHOW TABLES FROM `%b` LIKE 'cell%%'" % database.encode())

    assert [(each.state, each.message) for each in rebuilt] == [("done", None)]
    assert rebuilt[0].after_bytes < size
    assert {place: cell for place, cell in after.items() if cell[0].row_key != row} == before
    assert {cell[0].ref_key: place[1] for place, cell in after.items() if cell[0].row_key == row} == acknowledged
    assert [name for (name,) in tables] == ["cell"]


@pytest.mark.innodb("a compaction is of the whole server, so it says nothing about the speed of a shard")
def test_plan_of_the_next_rebuild_rests_on_the_speed_of_the_last(fresh_store, shrunk, move_store):
    """The assumed speed is replaced by a measured one for each cluster."""
    assumed = rebuild.plan_rebuild(move_store, RebuildSpec(), [0])[0].seconds
    rebuild.run(move_store, shards=[0])
    measured = rebuild.plan_rebuild(move_store, RebuildSpec(), [0])[0].seconds

    assert assumed.high / assumed.low == pytest.approx(20)
    assert measured.high / measured.low == pytest.approx(1.5**2)


@pytest.mark.long
@pytest.mark.innodb("a compaction waits for no lock of the table")
def test_rebuild_waits_for_a_transaction_without_blocking_writers(
    fresh_store, shrunk, move_store, by_hand, eventually, new_row
):
    """The ALTER times out soon, so that queued writers continue, and is repeated until the transaction has ended."""
    job_store = JobStore(move_store)
    name = internals_of(fresh_store).shards.database(0).encode()
    row = next(row for row in iter(new_row, None) if fresh_store.shard_of(row) == 0)
    pool = by_hand(fresh_store).pool_for(internals_of(fresh_store).topology.cluster_of(0).primary)
    done = []
    with pool.connection() as reader:
        reader.unfinished = True
        reader.execute(b"START TRANSACTION")
        reader.rows(b"SELECT COUNT(*) FROM `%b`.cell" % name)
        spec = RebuildSpec(lock_wait_s=1)
        thread = threading.Thread(target=lambda: done.extend(rebuild.run(move_store, spec, shards=[0])))
        thread.start()
        eventually(lambda: job_store.jobs("rebuild"), "there is a job")
        job_id = job_store.jobs("rebuild")[0].job_id
        eventually(lambda: job_store.shards(job_id)[0].counters.get("attempts", 0) >= 2, "it has tried again")
        fresh_store.put_cell(row, "BASE", 1, {"written": "meanwhile"})
        reader.execute(b"COMMIT")
    thread.join(120)

    assert [(each.state, each.attempts >= 2) for each in done] == [("done", True)]
    assert fresh_store.get_cell(row, "BASE", 1).body == {"written": "meanwhile"}


@pytest.mark.innodb("a compaction waits for no lock of the table")
def test_rebuild_that_never_gets_the_lock_skips_the_shard(fresh_store, shrunk, move_store, by_hand):
    """After its attempts the shard is reported, the next one is rebuilt, and the job ends."""
    name = internals_of(fresh_store).shards.database(0).encode()
    pool = by_hand(fresh_store).pool_for(internals_of(fresh_store).topology.cluster_of(0).primary)
    size = file_bytes(fresh_store, by_hand, 0)
    with pool.connection() as reader:
        reader.unfinished = True
        # It holds the table's lock, but no snapshot, for which the other shard would have to wait on MySQL.
        reader.execute(b"SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
        reader.execute(b"START TRANSACTION")
        reader.rows(b"SELECT COUNT(*) FROM `%b`.cell" % name)
        holder = reader.rows(b"SELECT CONNECTION_ID()")[0][0]
        done = rebuild.run(move_store, RebuildSpec(lock_wait_s=1, attempts=1), shards=[0, 1])

    assert [each.state for each in done] == ["failed", "done"]
    assert f"in use by thread {holder} of " in done[0].message
    assert (done[0].after_bytes, file_bytes(fresh_store, by_hand, 0)) == (None, size)


def test_rebuild_without_disk_space_is_not_started(fresh_store, shrunk, move_store, by_hand, monkeypatch):
    """Free space is that of the disk if visible, else that given by the operator, else unknown in the plan."""
    size = file_bytes(fresh_store, by_hand, 0)
    monkeypatch.setattr(rebuild, "disk_space_of", lambda pool, database: DiskSpace(1 << 40, 1 << 16, 0))
    seen = rebuild.run(move_store, RebuildSpec(free_bytes=1 << 40), shards=[0])
    monkeypatch.setattr(rebuild, "disk_space_of", lambda pool, database: None)
    said = rebuild.plan_rebuild(move_store, RebuildSpec(free_bytes=1 << 16), [0])
    unknown = rebuild.plan_rebuild(move_store, RebuildSpec(), [0])

    assert [each.state for each in seen] == ["failed"]
    assert "has 0 MB free, of which 1,000 MB (--min-free) are kept; free some space" in seen[0].message
    assert seen[0].attempts == 0
    assert file_bytes(fresh_store, by_hand, 0) == size
    assert "has 0 MB free" in said[0].refusal
    assert (unknown[0].free_bytes, unknown[0].refusal) == (None, None)


@pytest.mark.innodb("MyRocks has no tablespaces")
def test_rebuild_into_the_system_tablespace_is_not_started(fresh_store, shrunk, move_store, by_hand):
    """The system tablespace never shrinks; sizes of tables in it are unknown."""
    pool = by_hand(fresh_store).pool_for(internals_of(fresh_store).topology.cluster_of(0).primary)
    before = everything(fresh_store)
    pool.run(lambda connection: connection.execute(b"SET GLOBAL innodb_file_per_table=OFF"))
    try:
        (planned,) = rebuild.plan_rebuild(move_store, RebuildSpec(), [0])
        (refused,) = rebuild.run(move_store, shards=[0])
        # Put the table into the system tablespace, as if the server had always run so.
        name = internals_of(fresh_store).shards.database(0).encode()
        for statement in (
            b"CREATE TABLE `%b`.other LIKE `%b`.cell" % (name, name),
            b"INSERT INTO `%b`.other SELECT * FROM `%b`.cell" % (name, name),
            b"DROP TABLE `%b`.cell" % name,
            b"RENAME TABLE `%b`.other TO `%b`.cell" % (name, name),
        ):
            by_hand(fresh_store).execute(0, statement)
        (inside,) = rebuild.plan_rebuild(move_store, RebuildSpec(), [0])
    finally:
        pool.run(lambda connection: connection.execute(b"SET GLOBAL innodb_file_per_table=ON"))
    (moved,) = rebuild.run(move_store, shards=[0])

    assert "innodb_file_per_table is OFF on" in planned.refusal
    assert (inside.refusal, inside.size.file_bytes) == (planned.refusal, 0)
    assert (refused.state, refused.message) == ("failed", planned.refusal)
    assert (moved.state, moved.before_bytes) == ("done", 0)
    assert moved.after_bytes == file_bytes(fresh_store, by_hand, 0)
    assert everything(fresh_store) == before


@pytest.mark.innodb("a compaction sorts no index")
def test_a_full_temporary_folder_skips_the_shard(fresh_store, shrunk, move_store, monkeypatch, server_kind):
    """The message names the folder and what to do; nothing is left over."""
    before, ask = everything(fresh_store), Connection.ask
    fails = b"FORCE" if server_kind == "mariadb" else b"ADD UNIQUE KEY"

    def full(connection: Connection, sql: bytes, **how: object) -> object:
        if sql.startswith(b"ALTER TABLE") and fails in sql:
            raise ServerRefused("Temporary file write failure.", node=connection.node, shard=0, code=1878)
        return ask(connection, sql, **how)

    with monkeypatch.context() as patch:
        patch.setattr(Connection, "ask", full)
        (skipped,) = rebuild.run(move_store, shards=[0])
    (done,) = rebuild.run(move_store, shards=[0])

    assert skipped.state == "failed"
    assert skipped.message.startswith("the folder /")
    assert "or set innodb_tmpdir to another folder" in skipped.message
    assert done.state == "done"
    assert everything(fresh_store) == before


def test_rebuild_over_the_lag_limit_is_not_started(shrunk, move_store, monkeypatch, server_kind):
    """The duration limit applies to clusters with replicas only, and not to MyRocks: replicas repeat no compaction."""
    monkeypatch.setattr(rebuild, "ASSUMED_BYTES_PER_S", Interval.of(1))
    alone = rebuild.plan_rebuild(move_store, RebuildSpec(), [0])[0]
    topology = internals_of(move_store).topology
    cluster = topology.cluster("cluster-1")
    topology = topology.with_cluster(replace(cluster, nodes=(*cluster.nodes, cluster.primary.having("replica"))))
    with opened_as(move_store, topology) as replicated:
        lagging = rebuild.plan_rebuild(replicated, RebuildSpec(), [0])[0]

    assert alone.refusal is None
    if server_kind == "myrocks":
        assert lagging.refusal is None
    else:
        assert "may make the replicas of cluster-1 lag by" in lagging.refusal
        assert "exceeds the limit of 600 s; raise the limit with --max-rebuild-lag" in lagging.refusal


def test_a_rebuild_waits_for_the_migration_of_its_shard(fresh_store, shrunk, move_store, migrate_store, server_kind):
    """A shard is rebuilt only after its migration has completed."""
    MIGRATE.begin_or_join(migrate_store, MigrateSpec(), [0])

    with pytest.raises(JobConflict, match="migrate job 1 is running and has not finished shard 0"):
        rebuild.run(move_store, shards=[0, 1])
    # An account of the role admin lacks SUPER, which a compaction needs.
    rebuilt = "failed" if server_kind == "myrocks" else "done"
    assert [each.state for each in rebuild.run(move_store, shards=[1])] == [rebuilt]


def test_invalid_specs_are_refused():
    """Arguments are checked before a server is contacted."""
    for wrong in ({"max_rebuild_lag_s": 0}, {"free_bytes": -1}, {"lock_wait_s": 0}, {"attempts": 0}):
        with pytest.raises(InvalidInput):
            RebuildSpec(**wrong)


def test_spec_goes_through_json():
    """The job stores the parameters that were given; those of a later version are refused by name."""
    spec = RebuildSpec(60, 10**12, 5, 3)

    assert RebuildSpec.from_json(json.loads(json.dumps(spec.as_json()))) == spec
    with pytest.raises(InvalidInput, match="does not know the parameters speed of the job"):
        RebuildSpec.from_json({**spec.as_json(), "speed": 1})


def test_rebuild_whose_thresholds_were_changed_is_joined(shrunk, move_store):
    """As with a migration, thresholds are not compared when a job is joined."""
    job, _ = REBUILD.begin_or_join(move_store, RebuildSpec(), [0])
    JobStore(move_store).change_thresholds(job.job_id, {"max_lag_s": 1.0})
    same, new = REBUILD.begin_or_join(move_store, RebuildSpec(), [0])

    assert (same.job_id, new, same.thresholds.max_lag_s) == (job.job_id, False, 1.0)
    with pytest.raises(JobConflict, match="rebuild job 1 is running and has not finished shard 0"):
        REBUILD.begin_or_join(move_store, RebuildSpec(attempts=7), [0])
