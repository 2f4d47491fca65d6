"""What a cut waits for: transactions, backups, pauses, more cells than were measured. Nobody else waits for long."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

import pytest

from schemaless import Datastore, ServerError, ServerTimeout
from schemaless.internals import internals_of
from schemaless.jobs.runner import ShardRun
from schemaless.jobs.worker import Outcome
from schemaless.move import sql, steps
from schemaless.move.copying import Copier
from schemaless.move.fence import Fence
from schemaless.move.record import Records
from schemaless.wire.sql.sessions import COMMIT
from tests.move.benches import SHARD, Point, other

pytestmark = [pytest.mark.mysql, pytest.mark.long, pytest.mark.shared]


def test_a_lock_that_is_not_to_be_had_holds_nobody_off(bench, movers, client):
    """A transaction that stays open: the try is given up within its budget, and writers go on at once."""
    database = internals_of(client).shards.database(SHARD)
    shards = internals_of(client).shards
    job = bench.begin()
    with shards.pool_for(shards.node_of(SHARD)).connection() as holder:
        holder.unfinished = True
        holder.execute(b"START TRANSACTION")
        holder.rows(b"SELECT * FROM `%b`.cell" % database.encode())
        tried = threading.Event()
        mover = threading.Thread(
            target=movers.move,
            args=(client, job, Point(-1, lambda sql: None)),
        )
        mover.start()
        while sum(sql.startswith(b"LOCK TABLES") for sql in movers.seen) < 2:
            bench.put()
        assert mover.is_alive()
        tried.set()
        holder.execute(COMMIT)
    mover.join()
    bench.job_store.complete(job.job_id)

    assert bench.check(job) == "verified"


@contextmanager
def backup_of(client: Datastore, cluster: str, flavour: str) -> Iterator[None]:
    """Hold changes of tables off, as a backup does."""
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


def test_a_backup_is_met_before_the_pause(bench, movers, client, flavour):
    """While it holds changes of tables off, nobody is held off by a mover, and the shard is cut over behind it."""
    job = bench.begin()
    outcomes: list[Outcome] = []
    with backup_of(client, other(client), flavour):
        movers.move(client, job, Point(-1, lambda sql: None), outcomes)
        assert outcomes[0].kind == "failed"
        assert isinstance(outcomes[0].error, ServerError | ServerTimeout)
        assert not any(sql.startswith(b"LOCK TABLES") for sql in movers.seen)
        bench.put()
    bench.end(job, movers, abort=False)

    assert bench.check(job) == "verified"


def test_a_backup_that_begins_within_the_cut_takes_no_shard_down(bench, movers, client, flavour, monkeypatch):
    """The source's tables get their names back at once, and the shard is cut over when the backup is through."""
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


def test_a_target_that_renames_slowly_is_waited_for_before_the_pause(bench, movers, client, monkeypatch, caplog):
    """It writes what was copied to its disk: a try that would take too long ends, and a later one waits it out."""
    job = bench.begin(max_pause_s=0.2)
    movers.work = partial(steps.work, hold_off=0)
    rename, slow = sql.rename, iter(range(25))
    held_off: list[bool] = []

    def renames(database, names, **named):
        statements = rename(database, names, **named)
        if names[1:2] != [names[0][::-1]] or next(slow, None) is None:
            return statements
        held_off.append(any(statement.startswith(b"LOCK TABLES") for statement in movers.seen))
        return (b"DO SLEEP(0.1)", *statements)

    monkeypatch.setattr(sql, "rename", renames)
    outcomes: list[Outcome] = []
    movers.move(client, job, Point(-1, lambda sql: None), outcomes)
    bench.job_store.complete(job.job_id)

    assert [(outcome.kind, outcome.error) for outcome in outcomes] == [("through", None)]
    assert held_off == 25 * [False]
    assert "is not cut over now" in caplog.text
    assert bench.check(job) == "verified"


@pytest.mark.parametrize("abort", [False, True], ids=["runs", "aborts"])
def test_a_successor_that_meets_a_backup_gives_the_shard_back(bench, movers, client, flavour, abort):
    """A mover killed within the cut, then a backup on the target: whoever goes on has the source serve first."""
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


def test_more_than_was_measured_is_not_copied_while_everybody_waits(bench, movers, client, monkeypatch):
    """Time runs out within the copying behind the lock: it is unlocked, and the next try finds less to copy."""
    internals = internals_of(client)
    database = internals.shards.database(SHARD)
    job = bench.begin()
    monkeypatch.setattr(steps, "Copier", partial(Copier, most_rows=1))
    movers.work = partial(steps.work, hold_off=0)
    lock, unlock, insert = Fence.lock, Fence.unlock, sql.insert_rows
    waiting: list[int] = []
    """How many rows were copied while everybody waited, by try."""

    def locks(fence, budget_s):
        had = lock(fence, budget_s)
        if had and not waiting:
            # As if they had come between what was measured and this.
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
    assert 0 < waiting[0] < 20
    assert len(waiting) > 1


def test_nothing_waits_between_what_is_measured_and_the_cut(bench, movers, client, monkeypatch):
    """A pause of the job or a replica that lags is waited for before: the cut would copy what came meanwhile."""
    job = bench.begin()
    events: list[str] = []

    def noted(kind, name):
        does = getattr(kind, name)

        def hooked(*args, **options):
            events.append(name)
            return does(*args, **options)

        monkeypatch.setattr(kind, name, hooked)

    for kind, name in ((ShardRun, "gate"), (Copier, "copy_rest"), (Fence, "probe"), (Fence, "lock")):
        noted(kind, name)
    movers.move(client, job)
    bench.job_store.complete(job.job_id)
    cut = events.index("lock")

    assert events[cut - 2 : cut] == ["copy_rest", "probe"]
    assert bench.check(job) == "verified"


@pytest.mark.parametrize("abort", [False, True], ids=["runs", "aborts"])
def test_a_shard_in_the_middle_of_its_cut_waits_for_no_replica_that_lags(bench, movers, monkeypatch, abort):
    """Nobody has it then: whoever goes on brings it to one of its servers before anything else is waited for."""
    job = bench.begin()
    movers.die_in(bench.client, job, Fence, "rename_target")
    gate = ShardRun.gate

    def lags(run):
        # As long as nobody has the shard, this would not come to an end.
        bench.put()
        gate(run)

    monkeypatch.setattr(ShardRun, "gate", lags)
    internals_of(bench.client).shards.move_wait_s = 0
    bench.end(job, movers, abort=abort)

    assert bench.check(job) == ("aborted" if abort else "verified")
