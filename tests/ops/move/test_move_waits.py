"""Cuts that wait for transactions, backups, pauses or new cells do not block applications for long."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from schemaless import Datastore, ServerError, ServerTimeout
from schemaless.ops.jobs.runner import ShardRun
from schemaless.ops.jobs.worker import Outcome
from schemaless.ops.move import copying, sql, steps
from schemaless.ops.move.copying import Copier
from schemaless.ops.move.fence import Fence
from schemaless.ops.move.record import Records
from schemaless.store.internals import internals_of
from schemaless.wire.sql.sessions import COMMIT
from tests.ops.move.benches import SHARD, Point, other

pytestmark = [pytest.mark.mysql]


def test_a_lock_that_cannot_be_taken_does_not_block_writers(bench, movers, client, caplog):
    """With an open transaction, the attempt is abandoned within its budget, names it, and writers continue at once."""
    database = internals_of(client).shards.database(SHARD)
    shards = internals_of(client).shards
    job = bench.begin()
    with shards.pool_for(shards.node_of(SHARD)).connection() as holder:
        holder.unfinished = True
        holder.execute(b"START TRANSACTION")
        holder.rows(b"SELECT * FROM `%b`.cell" % database.encode())
        number = holder.rows(b"SELECT CONNECTION_ID()")[0][0]
        tried = threading.Event()
        mover = threading.Thread(
            target=movers.move,
            args=(client, job, Point(-1, lambda sql: None)),
        )
        mover.start()
        while sum(sql.startswith(b"LOCK TABLES") for sql in movers.sent) < 2:
            bench.put()
        assert mover.is_alive()
        assert f"thread {number} of " in caplog.text
        tried.set()
        holder.execute(COMMIT)
    mover.join()
    bench.job_store.complete(job.job_id)

    assert bench.check(job) == "verified"


@contextmanager
def backup_of(client: Datastore, cluster: str, flavour: str) -> Iterator[None]:
    """Block DDL, as a backup does."""
    internals = internals_of(client)
    with internals.shards.pool_for(internals.topology.cluster(cluster).primary).connection() as backup:
        backup.unfinished = True
        if flavour == "mysql":
            held = [b"LOCK INSTANCE FOR BACKUP"]
        else:
            held = [b"BACKUP STAGE START", b"BACKUP STAGE FLUSH", b"BACKUP STAGE BLOCK_DDL"]
        for statement in held:
            backup.execute(statement)
        yield


@pytest.mark.long
def test_a_backup_is_detected_before_the_pause(bench, movers, client, flavour):
    """While a backup blocks DDL, the mover does not lock the shard; it cuts over after the backup."""
    job = bench.begin()
    outcomes: list[Outcome] = []
    with backup_of(client, other(client), flavour):
        movers.move(client, job, Point(-1, lambda sql: None), outcomes)
        assert outcomes[0].kind == "failed"
        assert isinstance(outcomes[0].error, ServerError | ServerTimeout)
        assert not any(sql.startswith(b"LOCK TABLES") for sql in movers.sent)
        bench.put()
    bench.end(job, movers, abort=False)

    assert bench.check(job) == "verified"


@pytest.mark.long
def test_a_backup_that_begins_during_the_cut_does_not_take_the_shard_down(bench, movers, client, flavour, monkeypatch):
    """The source's tables get their names back at once, and the shard is cut over after the backup."""
    job = bench.begin()
    with ExitStack() as backup:
        rename, probe = Fence.rename_target, Fence.probe

        def begins(fence, token):
            monkeypatch.setattr(Fence, "rename_target", rename)
            monkeypatch.setattr(Fence, "probe", ends)
            backup.enter_context(backup_of(client, other(client), flavour))
            rename(fence, token)

        def ends(fence, token):
            monkeypatch.setattr(Fence, "probe", probe)
            bench.put()
            backup.close()
            probe(fence, token)

        monkeypatch.setattr(Fence, "rename_target", begins)
        outcomes: list[Outcome] = []
        movers.move(client, job, outcomes=outcomes)
    assert [(outcome.kind, outcome.error) for outcome in outcomes] == [("through", None)]
    bench.job_store.complete(job.job_id)

    assert bench.check(job) == "verified"


@pytest.mark.long
def test_a_target_that_renames_slowly_is_waited_for_before_the_pause(bench, movers, client, monkeypatch, caplog):
    """While the target flushes the copied cells, an attempt that would take too long ends, and a later one succeeds."""
    job = bench.begin(max_pause_s=0.2)
    monkeypatch.setattr(steps, "BACKOFF", 0)
    rename, slow = sql.rename, iter(range(25))
    locked: list[bool] = []

    def renames(database, names, **named):
        statements = rename(database, names, **named)
        if names[1:2] != [names[0][::-1]] or next(slow, None) is None:
            return statements
        locked.append(any(statement.startswith(b"LOCK TABLES") for statement in movers.sent))
        return (b"DO SLEEP(0.1)", *statements)

    monkeypatch.setattr(sql, "rename", renames)
    outcomes: list[Outcome] = []
    movers.move(client, job, Point(-1, lambda sql: None), outcomes)
    bench.job_store.complete(job.job_id)

    assert [(outcome.kind, outcome.error) for outcome in outcomes] == [("through", None)]
    assert locked == 25 * [False]
    assert "cannot be cut over yet" in caplog.text
    assert bench.check(job) == "verified"


@pytest.mark.long
@pytest.mark.parametrize("abort", [False, pytest.param(True, marks=pytest.mark.long)], ids=["runs", "aborts"])
def test_a_successor_that_meets_a_backup_lets_the_source_serve(bench, movers, client, flavour, abort):
    """After a mover died during the cut and a backup blocks the target, the source serves the shard again."""
    job = bench.begin()
    movers.die_in(client, job, Fence, "rename_target")
    if abort:
        Records(client).note_outcome(job.job_id, SHARD, ("cutting",), {"phase": "aborting"})
    bench.free(job)
    with backup_of(client, other(client), flavour):
        movers.move(client, job)
        bench.put()
    bench.end(job, movers, abort=False)

    assert bench.check(job) == ("aborted" if abort else "verified")


def test_a_tail_that_is_longer_than_measured_is_not_copied_under_the_lock(bench, movers, client, monkeypatch):
    """The copy under the lock runs out of time: the tables are unlocked, and the next attempt finds a shorter tail."""
    internals = internals_of(client)
    database = internals.shards.database(SHARD)
    job = bench.begin()
    monkeypatch.setattr(copying, "INSERT_ROWS", 1)
    monkeypatch.setattr(steps, "BACKOFF", 0)
    lock, unlock, insert = Fence.lock, Fence.unlock, sql.insert_rows
    waiting: list[int] = []
    """Number of rows copied under the lock, by attempt."""

    def locks(fence, budget_s):
        had = lock(fence, budget_s)
        if had and not waiting:
            # As if they had been written between the measurement and the lock.
            values = ", ".join(f"(x'{n:032x}', 'LATE', 1, '[]')" for n in range(20))
            fence.source.execute(
                f"INSERT INTO `{database}`.cell (row_key, column_name, ref_key, body) VALUES {values}".encode()
            )
            monkeypatch.setattr(sql, "insert_rows", slow)
        if had:
            waiting.append(0)
        return had

    def slow(database, table, rows):
        waiting[-1] += len(rows)
        time.sleep(0.1)
        return insert(database, table, rows)

    def unlocks(fence):
        monkeypatch.setattr(sql, "insert_rows", insert)
        unlock(fence)

    monkeypatch.setattr(Fence, "lock", locks)
    monkeypatch.setattr(Fence, "unlock", unlocks)
    movers.move(client, job)
    bench.job_store.complete(job.job_id)
    late = [cell for cell in client.scan_shard(SHARD) if cell.key.column_name == "LATE"]

    assert len(late) == 20
    assert waiting[0] < 20
    assert len(waiting) > 1


@pytest.mark.long
def test_a_mover_does_not_wait_between_measuring_the_tail_and_the_cut(bench, movers, client, monkeypatch):
    """It waits for a paused job or a lagging replica before it measures, because the tail grows while it waits."""
    job = bench.begin()
    events: list[str] = []

    def record_calls(kind, name):
        does = getattr(kind, name)

        def hooked(*args, **options):
            events.append(name)
            return does(*args, **options)

        monkeypatch.setattr(kind, name, hooked)

    for kind, name in ((ShardRun, "gate"), (Copier, "copy_tail"), (Fence, "probe"), (Fence, "lock")):
        record_calls(kind, name)
    movers.move(client, job)
    bench.job_store.complete(job.job_id)
    cut = events.index("lock")

    assert events[cut - 2 : cut] == ["copy_tail", "probe"]
    assert bench.check(job) == "verified"


@pytest.mark.parametrize("abort", [False, True], ids=["runs", "aborts"])
@pytest.mark.long
def test_an_unfinished_cut_does_not_wait_for_lagging_replicas(bench, movers, monkeypatch, abort):
    """No server serves the shard then: a successor completes or undoes the cut before it waits for anything."""
    job = bench.begin()
    movers.die_in(bench.client, job, Fence, "rename_target")
    gate = ShardRun.gate

    def lags(run):
        # This put would not return while no server serves the shard.
        bench.put()
        gate(run)

    monkeypatch.setattr(ShardRun, "gate", lags)
    internals_of(bench.client).shards.move_wait_s = 0
    bench.end(job, movers, abort=abort)

    assert bench.check(job) == ("aborted" if abort else "verified")
